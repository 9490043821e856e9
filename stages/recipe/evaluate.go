package recipe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"contraflow/io/dataset"
	"contraflow/io/hfmodel"
	"contraflow/stages/embedder"
	"contraflow/stages/evaluate"
	"contraflow/stages/reranker"
)

// Evaluation is another kind of line: a measurement after a step, 0 before the first one. Of several tasks the value is the mean of theirs.
type Evaluation struct {
	Step   int            `json:"step"`
	Metric string         `json:"metric"`
	Value  float64        `json:"value"`
	Eval   json.Marshaler `json:"eval,omitempty"`  // of the only task: all measures
	Tasks  []TaskValue    `json:"tasks,omitempty"` // of several, in the recipe's order

	took    time.Duration
	results []hfmodel.Metric // all measures
}

// TaskValue is what an evaluation has of one of several tasks.
type TaskValue struct {
	Name   string         `json:"name"`
	Metric string         `json:"metric"`
	Value  float64        `json:"value"`
	Eval   json.Marshaler `json:"eval"`
}

// String is the value by its metric, and of several tasks each one's.
func (e Evaluation) String() string {
	var tasks []string
	for _, t := range e.Tasks {
		name := t.Name
		if e.Metric == mixedMean {
			name += " " + t.Metric
		}
		tasks = append(tasks, fmt.Sprintf("%s %.4f", name, t.Value))
	}
	text := fmt.Sprintf("%s %.4f", e.Metric, e.Value)
	if tasks != nil {
		text += " (" + strings.Join(tasks, ", ") + ")"
	}
	return text
}

// mixedMean is the metric of tasks that have different ones.
const mixedMean = "mean"

// exam is a task that a run's model is measured on: retrieval, reranking BM25's first documents, or scored pairs.
type exam struct {
	key  string // eval.retrieval, or of several eval.retrieval[1]
	name string
	from string // the file, for the model card

	data   *dataset.Retrieval
	task   *embedder.Task
	first  evaluate.Run // what is reranked; nil: all documents are ranked by their embeddings
	top    int          // of them
	pairs  *dataset.Pairs
	fusion map[string]float64
}

// defaultTop is how many of BM25's documents are reranked.
const defaultTop = 100

// examName is what a task is called if its recipe gives no name: its folder, or its file without the ending.
func examName(name, path string) string {
	if name != "" || path == "" {
		return name
	}
	return dataset.TaskName(path)
}

// checkExams checks what a model is measured on.
func (c *checker) checkExams(e Eval) {
	names := map[string]string{}
	key := func(kind string, i, n int, name, path string) string {
		key := examKey(kind, i, n)
		if name = examName(name, path); name == "" {
			return key
		}
		if other, ok := names[name]; ok {
			c.fail(key+".name", "%q is that of %s too: several tasks are told apart by their names", name, other)
		}
		names[name] = key
		return key
	}
	whole := func(key, queries, corpus, qrels string) {
		c.require(queries != "" && (corpus == "") == (qrels == ""), key, "needs queries, corpus and qrels, or as queries a folder that has all three in BEIR's or MTEB's layout")
	}
	for i, r := range e.Retrieval {
		whole(key("retrieval", i, len(e.Retrieval), r.Name, r.Queries), r.Queries, r.Corpus, r.Qrels)
	}
	for i, r := range e.Rerank {
		key := key("rerank", i, len(e.Rerank), r.Name, r.Queries)
		whole(key, r.Queries, r.Corpus, r.Qrels)
		c.require(r.Top >= 0, key+".top", "is negative")
	}
	for i, s := range e.STS {
		key := key("sts", i, len(e.STS), s.Name, s.Path)
		c.require(s.Path != "" && s.A != "" && s.B != "" && s.Score != "", key, "needs path and the columns a, b and score")
	}
	if e.STS == nil || e.Retrieval != nil {
		if _, err := evaluate.ParseMeasure(e.Metric); err != nil {
			c.fail("eval.metric", "%v", err)
		}
	}
}

func examKey(kind string, i, n int) string {
	if n == 1 {
		return "eval." + kind
	}
	return fmt.Sprintf("eval.%s[%d]", kind, i)
}

func (x *Run) openEval(ctx context.Context) error {
	e := x.Recipe.Eval
	for i, r := range e.Retrieval {
		ex := exam{key: examKey("retrieval", i, len(e.Retrieval)), name: examName(r.Name, r.Queries), from: r.Queries, fusion: x.Recipe.fusion()}
		if err := x.loadTask(ctx, &ex, r.Queries, r.Corpus, r.Qrels, x.evalText()); err != nil {
			return err
		}
		ex.task.Fusion = ex.fusion
		x.exams = append(x.exams, ex)
	}
	for i, r := range e.Rerank {
		ex := exam{key: examKey("rerank", i, len(e.Rerank)), name: examName(r.Name, r.Queries), from: r.Queries + ", BM25's candidates", top: r.Top}
		if err := x.loadTask(ctx, &ex, r.Queries, r.Corpus, r.Qrels, embedder.Text{}); err != nil {
			return err
		}
		top := r.Top
		if top == 0 {
			top = defaultTop
		}
		var err error
		if ex.first, err = ex.task.RankBM25(ctx, top); err != nil {
			return fmt.Errorf("%s: %w", ex.key, err)
		}
		x.exams = append(x.exams, ex)
	}
	for i, s := range e.STS {
		ex := exam{key: examKey("sts", i, len(e.STS)), name: examName(s.Name, s.Path), from: s.Path}
		var err error
		if ex.pairs, err = dataset.LoadPairs(ctx, s.Path, s.A, s.B, s.Score); err != nil {
			return fmt.Errorf("%s: %w", ex.key, err)
		}
		if err := evaluate.CheckGold(ex.pairs.Scores); err != nil {
			return fmt.Errorf("%s: %s, column %q: %w; it takes another file (%[1]s.path) or column (%[1]s.score), or no eval.sts", ex.key, s.Path, s.Score, err)
		}
		x.exams = append(x.exams, ex)
	}
	return nil
}

func (x *Run) loadTask(ctx context.Context, ex *exam, queries, corpus, qrels string, text embedder.Text) (err error) {
	if ex.data, err = dataset.LoadRetrieval(ctx, queries, corpus, qrels); err != nil {
		return fmt.Errorf("%s: %w", ex.key, err)
	}
	if note := ex.data.Note(); note != "" {
		x.obs.note("%s: %s", ex.key, note)
	}
	ex.task, err = embedder.NewTask(ctx, ex.data, text)
	return err
}

func (x *Run) evalText() embedder.Text {
	return embedder.Text{
		Tokenizer: x.tok, QueryLength: x.text.QueryLength, DocumentLength: x.text.DocumentLength,
		QueryPrompt: x.text.QueryPrompt, DocumentPrompt: x.text.DocumentPrompt,
	}
}

// evaluates tells whether there is something to measure the model on.
func (x *Run) evaluates() bool { return len(x.exams) > 0 }

// evaluate embeds together with the other ranks, and measures on rank 0: on others it returns nil. So it does where the similarities are such that
// nothing correlates with them, as those of embeddings that have become all alike: a run has more to lose than a figure.
func (x *Run) evaluate(ctx context.Context, engine *embedder.Engine) (*Evaluation, error) {
	ev := &Evaluation{}
	for i := range x.exams {
		v, metrics, err := x.measureExam(ctx, engine, &x.exams[i])
		if err != nil {
			return nil, err
		}
		if v == nil { // and yet all ranks go through all tasks
			ev = nil
		}
		if ev != nil {
			ev.Tasks, ev.results = append(ev.Tasks, *v), append(ev.results, metrics...)
		}
	}
	if ev == nil {
		return nil, nil
	}
	first := ev.Tasks[0]
	if len(ev.Tasks) == 1 {
		ev.Metric, ev.Value, ev.Eval, ev.Tasks = first.Metric, first.Value, first.Eval, nil
		return ev, nil
	}
	ev.Metric = mixedMean + " " + first.Metric
	for _, t := range ev.Tasks {
		ev.Value += t.Value / float64(len(ev.Tasks))
		if t.Metric != first.Metric {
			ev.Metric = mixedMean
		}
	}
	return ev, nil
}

// measureExam measures the model on one task; the value is nil on ranks but the first, and where there is none.
func (x *Run) measureExam(ctx context.Context, engine *embedder.Engine, ex *exam) (*TaskValue, []hfmodel.Metric, error) {
	if ex.pairs != nil {
		sims, err := x.evalText().Similarity(ctx, engine, ex.pairs.A, ex.pairs.B)
		if err != nil || !x.Main() {
			return nil, nil, err
		}
		res, err := evaluate.EvaluateSTS(sims, ex.pairs.Scores)
		if err != nil {
			x.obs.note("%s has no figure this time: %v (the first list is the pairs' similarities)", ex.key, err)
			return nil, nil, nil
		}
		js, err := json.Marshal(res)
		return &TaskValue{ex.name, "spearman", res.Spearman, json.RawMessage(js)}, []hfmodel.Metric{{Dataset: ex.from, Name: "spearman", Value: res.Spearman}}, err
	}
	measure, err := evaluate.ParseMeasure(x.Recipe.Eval.Metric)
	if err != nil {
		return nil, nil, err
	}
	measures := evaluate.Standard()
	if !slices.Contains(measures, measure) {
		measures = append(measures, measure)
	}
	res, err := x.measure(ctx, engine, ex, measures...)
	if err != nil || !x.Main() {
		return nil, nil, err
	}
	var all []hfmodel.Metric
	for i, m := range res.Measures {
		all = append(all, hfmodel.Metric{Dataset: ex.from, Name: m.String(), Value: res.Means[i]})
	}
	value, _ := res.Mean(measure)
	return &TaskValue{ex.name, x.Recipe.Eval.Metric, value, res}, all, nil
}

// measure ranks a task's documents; on ranks but the first it returns nil.
func (x *Run) measure(ctx context.Context, engine *embedder.Engine, ex *exam, measures ...evaluate.Measure) (*evaluate.Result, error) {
	if ex.first == nil {
		return ex.task.Evaluate(ctx, engine, measures...)
	}
	run, _, err := reranker.Rerank(ctx, engine, x.pairs[0], ex.data, ex.first)
	if err != nil || run == nil {
		return nil, err
	}
	return ex.task.Measure(run, measures...)
}

// ranking is the recipe's first task of ranking documents.
func (x *Run) ranking() (*exam, error) {
	for i := range x.exams {
		if x.exams[i].task != nil {
			return &x.exams[i], nil
		}
	}
	return nil, errors.New("the recipe has no eval.retrieval or eval.rerank")
}

// Evaluate measures the model as it is on the recipe's retrieval task, the first of several.
func (x *Run) Evaluate(ctx context.Context) (*evaluate.Result, error) {
	ex, err := x.ranking()
	if err != nil {
		return nil, err
	}
	if x.model.Partial() {
		return nil, errors.New("this rank holds a part of the model: with mesh.parameters: streamed it is evaluated while it is trained")
	}
	engine := &embedder.Engine{Model: x.model, Stream: x.stream}
	res, err := x.measure(ctx, engine, ex, evaluate.Standard()...)
	return res, errors.Join(err, engine.Close())
}

// BM25 measures BM25 on the recipe's retrieval task, the first of several.
func (x *Run) BM25(ctx context.Context) (*evaluate.Result, error) {
	ex, err := x.ranking()
	if err != nil {
		return nil, err
	}
	if ex.first != nil {
		return ex.task.Measure(ex.first, evaluate.Standard()...)
	}
	return ex.task.BM25(ctx, evaluate.Standard()...)
}

// identity names what a task measures, and its content.
func (ex *exam) identity(metric string) (name string, content any) {
	switch {
	case ex.pairs != nil:
		return "spearman", ex.pairs
	case ex.first != nil:
		return fmt.Sprintf("%s of %d", metric, ex.top), ex.data
	case ex.fusion != nil:
		return fmt.Sprint(metric, ex.fusion), ex.data
	}
	return metric, ex.data
}
