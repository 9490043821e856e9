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
	"contraflow/stages/scoring"
)

// Evaluation is another kind of line: a measurement after a step, 0 before the first one. Of several tasks the value is the mean of theirs.
type Evaluation struct {
	Step   int            `json:"step"`
	Metric string         `json:"metric"`
	Value  float64        `json:"value"`
	Base   *float64       `json:"base,omitempty"`  // of the order that the model reranks, where there is one: the same measure
	Eval   json.Marshaler `json:"eval,omitempty"`  // of the only task, or the mean of those of eval.nanobeir alone: all measures
	Tasks  []TaskValue    `json:"tasks,omitempty"` // of several, in the recipe's order; and of those that stand beside a loss that decides

	Loss   *float64           `json:"loss,omitempty"`   // of eval.loss, also where it is the value; of several datasets the mean of theirs
	Losses map[string]float64 `json:"losses,omitempty"` // of several, each one's by its name

	took    time.Duration
	results []hfmodel.Metric // all measures

	best     *float64 // with save.best: the best value up to here, whose model is in best/
	bestStep int
}

// TaskValue is what an evaluation has of one of several tasks.
type TaskValue struct {
	Name   string         `json:"name"`
	Metric string         `json:"metric"`
	Value  float64        `json:"value"`
	Base   *float64       `json:"base,omitempty"` // as Evaluation.Base
	Eval   json.Marshaler `json:"eval"`

	of     string // the tasks that it belongs to, as task.of
	result any    // a *evaluate.Result or *evaluate.Candidates, where it belongs to some
}

// Key tells the value from those of other tasks, where one name is wanted.
func (t TaskValue) Key() string { return strings.TrimPrefix(t.Name+"/"+t.Metric, "/") }

// valueText is a value, and what it was before where there is an order to rerank.
func valueText(value float64, base *float64) string {
	text := fmt.Sprintf("%.4f", value)
	if base != nil {
		text += fmt.Sprintf(" from %.4f", *base)
	}
	return text
}

// String is the value by its metric, with that of the order that is reranked, and of several tasks each one's; then the loss on held-out rows, and each
// dataset's.
func (e Evaluation) String() string {
	var tasks []string
	for _, t := range e.Tasks {
		name := t.Name
		if e.Metric == mixedMean || e.Metric == lossMetric {
			name += " " + t.Metric
		}
		tasks = append(tasks, name+" "+valueText(t.Value, t.Base))
	}
	if e.Metric == lossMetric {
		return strings.Join(append([]string{e.lossText()}, tasks...), ", ")
	}
	text := e.Metric + " " + valueText(e.Value, e.Base)
	if tasks != nil {
		text += " (" + strings.Join(tasks, ", ") + ")"
	}
	if e.Loss != nil {
		text += ", " + e.lossText()
	}
	return text
}

// mixedMean is the metric of tasks that have different ones.
const mixedMean = "mean"

// task is something that a run's model is measured on: retrieval, reranking BM25's first documents, or scores of pairs.
type task struct {
	key  string // eval.retrieval, or of several eval.retrieval[1]
	name string
	from string // the file, for the model card
	of   string // the name of tasks that count as one, by their mean; "": it counts alone

	data      *dataset.Retrieval
	retrieval *embedder.Task // of data
	first     evaluate.Run   // what is reranked; nil: all documents are ranked by their embeddings
	top       int            // of them
	prompts   *Prompts       // of this task alone
	scored    *scoring.Task
	fusion    map[string]float64 // what each part of an m3 counts in scored
}

// defaultTop is how many of BM25's documents are reranked.
const defaultTop = 100

// taskName is what a task is called if its recipe gives no name: its folder, or its file without the ending.
func taskName(name, path string) string {
	if name != "" || path == "" {
		return name
	}
	return dataset.TaskName(path)
}

// checkTasks checks what a model is measured on.
func (c *checker) checkTasks(e Eval) {
	names := map[string]string{}
	for _, n := range e.nano() {
		_, twice := names[n.name]
		c.require(!twice, n.key, "names %s twice: it would count twice in the mean", n.name)
		names[n.name] = n.key
	}
	for _, n := range e.nano() {
		names[n.of] = n.key // their mean
	}
	key := func(kind string, i, n int, name, path string) string {
		key := taskKey(kind, i, n)
		if name = taskName(name, path); name == "" {
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
	c.checkScored(e, key)
	if e.Metric == lossMetric {
		c.require(len(e.Loss) > 0, "eval.metric", "loss needs eval.loss: the rows that it is measured on")
	} else if _, err := evaluate.ParseMeasure(e.Metric); err != nil && (!slices.Contains(e.scoredMetrics(), e.Metric) || len(e.Retrieval)+len(e.Rerank)+len(e.Candidates)+len(e.NanoBEIR) > 0) {
		also := ""
		if m := e.scoredMetrics(); m != nil {
			also = fmt.Sprintf("; it is of retrieval, rerank, candidates and nanobeir, and what else is measured here goes by %s", strings.Join(m, " and "))
		}
		c.fail("eval.metric", "%v%s; or loss, of the rows of eval.loss", err, also)
	}
}

// tasks counts what ranks documents or scores pairs.
func (e Eval) tasks() int {
	return len(e.Retrieval) + len(e.NanoBEIR) + len(e.Rerank) + len(e.scored())
}

func taskKey(kind string, i, n int) string {
	if n == 1 {
		return "eval." + kind
	}
	return fmt.Sprintf("eval.%s[%d]", kind, i)
}

func (x *Run) openEval(ctx context.Context) error {
	e := x.Recipe.Eval
	ctx = hfmodel.ListOnce(ctx) // of NanoBEIR's 13 tasks 4 tables each, of one dataset
	for i, r := range e.Retrieval {
		t := task{key: taskKey("retrieval", i, len(e.Retrieval)), name: taskName(r.Name, r.Queries), from: shortTask(r.Queries)}
		if x.passedOver(t.key, r.Queries, r.Corpus, r.Qrels) {
			continue
		}
		if err := x.loadTask(ctx, &t, r.Queries, r.Corpus, r.Qrels, x.evalText()); err != nil {
			return err
		}
		x.tasks = append(x.tasks, t)
	}
	if err := x.openNano(ctx); err != nil {
		return err
	}
	for i, r := range e.Rerank {
		t := task{key: taskKey("rerank", i, len(e.Rerank)), name: taskName(r.Name, r.Queries), from: shortTask(r.Queries) + ", BM25's candidates", top: r.Top}
		if x.passedOver(t.key, r.Queries, r.Corpus, r.Qrels) {
			continue
		}
		if err := x.loadTask(ctx, &t, r.Queries, r.Corpus, r.Qrels, embedder.Text{}); err != nil {
			return err
		}
		top := r.Top
		if top == 0 {
			top = defaultTop
		}
		if t.first = (evaluate.Run{}); !x.planned {
			var err error
			if t.first, err = t.retrieval.RankBM25(ctx, top); err != nil {
				return fmt.Errorf("%s: %w", t.key, err)
			}
		}
		x.tasks = append(x.tasks, t)
	}
	return x.openScored(ctx)
}

// noting has what is to be known of a key's files become notes of the run.
func (x *Run) noting(ctx context.Context, key string) context.Context {
	if !x.Main() {
		return dataset.WithNote(ctx, nil)
	}
	return dataset.WithNote(ctx, func(message string) { x.obs.note("%s: %s", key, message) })
}

func (x *Run) loadTask(ctx context.Context, t *task, queries, corpus, qrels string, text embedder.Text) error {
	data, err := dataset.LoadRetrieval(x.noting(ctx, t.key), queries, corpus, qrels)
	if err != nil {
		return fmt.Errorf("%s: %w", t.key, err)
	}
	return x.newTask(ctx, t, data, text)
}

func (x *Run) newTask(ctx context.Context, t *task, data *dataset.Retrieval, text embedder.Text) (err error) {
	t.data = data
	if note := t.data.Note(); note != "" {
		x.obs.note("%s: %s", t.key, note)
	}
	t.retrieval, err = embedder.NewTask(ctx, t.data, text)
	return err
}

func (x *Run) evalText() embedder.Text {
	return embedder.Text{
		Tokenizer: x.tok, QueryLength: x.text.QueryLength, DocumentLength: x.text.DocumentLength,
		QueryPrompt: x.text.QueryPrompt, DocumentPrompt: x.text.DocumentPrompt, Weighed: x.text.Weighed,
		Fusion: x.Recipe.fusion(),
	}
}

// evaluates tells whether there is something to measure the model on.
func (x *Run) evaluates() bool { return len(x.tasks)+len(x.heldOut)+len(x.unread) > 0 }

// passedOver tells of files that a plan does without, for they are elsewhere: what is measured changes none of its figures but the memory of ranking.
func (x *Run) passedOver(key string, paths ...string) bool {
	if !x.planned || !slices.ContainsFunc(paths, dataset.Remote) {
		return false
	}
	if !slices.Contains(x.unread, key) { // NanoBEIR's tasks have one
		x.obs.note("%s is not downloaded for a plan: what measuring takes of memory, besides a pass, is not in it", key)
		x.unread = append(x.unread, key)
	}
	return true
}

// evaluate embeds together with the other ranks, and measures on rank 0: on others it returns nil. So it does where there is one task, and the
// similarities are such that nothing correlates with them, as those of embeddings that have become all alike: a run has more to lose than a figure.
// Among several tasks, or beside a loss, such a one counts as 0. Likewise where the loss decides, and is not finite.
func (x *Run) evaluate(ctx context.Context, engine *embedder.Engine) (*Evaluation, error) {
	ev := &Evaluation{}
	for i := range x.tasks {
		v, metrics, err := x.measureTask(ctx, engine, &x.tasks[i])
		if err != nil {
			return nil, err
		}
		if v != nil {
			ev.Tasks, ev.results = append(ev.Tasks, *v), append(ev.results, metrics...)
		}
	}
	counted, all, err := ev.together()
	if err != nil {
		return nil, err
	}
	if err := x.measureLosses(ctx, engine, ev); err != nil {
		return nil, err
	}
	if x.Recipe.Eval.byLoss() {
		if ev.Loss == nil {
			return nil, nil
		}
		ev.Metric, ev.Value, ev.Tasks = lossMetric, *ev.Loss, all
		return ev, nil
	}
	if counted == nil {
		return nil, nil
	}
	first := counted[0]
	if len(ev.Tasks) == 1 {
		ev.Metric, ev.Value, ev.Base, ev.Eval, ev.Tasks = first.Metric, first.Value, first.Base, first.Eval, nil
		return ev, nil
	}
	ev.Metric = mixedMean + " " + first.Metric
	if len(counted) == 1 {
		ev.Value, ev.Base, ev.Eval = first.Value, first.Base, first.Eval
		return ev, nil
	}
	ev.Tasks, ev.Base = all, meanBase(counted)
	for _, t := range counted {
		ev.Value += t.Value / float64(len(counted))
		if t.Metric != first.Metric {
			ev.Metric = mixedMean
		}
	}
	return ev, nil
}

// meanBase is the mean of what tasks had before, where all have that.
func meanBase(tasks []TaskValue) *float64 {
	mean := 0.0
	for _, t := range tasks {
		if t.Base == nil {
			return nil
		}
		mean += *t.Base / float64(len(tasks))
	}
	return &mean
}

// measureTask measures the model on one task; the value is nil on ranks but the first, and where there is none.
func (x *Run) measureTask(ctx context.Context, engine *embedder.Engine, t *task) (*TaskValue, []hfmodel.Metric, error) {
	if t.scored != nil {
		return x.measureScored(ctx, engine, t)
	}
	name := x.Recipe.Eval.ranks()
	measure, err := evaluate.ParseMeasure(name)
	if err != nil {
		return nil, nil, err
	}
	measures := evaluate.Standard()
	if !slices.Contains(measures, measure) {
		measures = append(measures, measure)
	}
	res, err := x.measure(ctx, engine, t, measures...)
	if err != nil || !x.Main() {
		return nil, nil, err
	}
	var all []hfmodel.Metric
	for i, m := range res.Measures {
		all = append(all, hfmodel.Metric{Dataset: t.from, Name: m.String(), Value: res.Means[i]})
	}
	v := &TaskValue{Name: t.name, Metric: name, Eval: res, of: t.of, result: res}
	at := slices.Index(res.Measures, measure)
	if v.Value = res.Means[at]; res.Before != nil {
		v.Base = &res.Before[at]
	}
	return v, all, nil
}

// measure ranks a task's documents; on ranks but the first it returns nil.
func (x *Run) measure(ctx context.Context, engine *embedder.Engine, t *task, measures ...evaluate.Measure) (*evaluate.Result, error) {
	if t.first == nil {
		return t.retrieval.Evaluate(ctx, engine, measures...)
	}
	res, err := reranker.Evaluate(ctx, engine, x.pairs[0], t.retrieval, t.first, measures...)
	if err != nil || res == nil {
		return nil, err
	}
	before, err := t.retrieval.Measure(t.first, measures...)
	if err != nil {
		return nil, err
	}
	res.Before = before.Means
	return res, nil
}

// ranking is the recipe's first task of ranking documents.
func (x *Run) ranking() (*task, error) {
	for i := range x.tasks {
		if x.tasks[i].retrieval != nil {
			return &x.tasks[i], nil
		}
	}
	return nil, errors.New("the recipe has no eval.retrieval, eval.nanobeir of an embedder, or eval.rerank")
}

// Evaluate measures the model as it is on the recipe's retrieval task, the first of several.
func (x *Run) Evaluate(ctx context.Context) (*evaluate.Result, error) {
	if x.closed {
		return nil, errClosed
	}
	t, err := x.ranking()
	if err != nil {
		return nil, err
	}
	if x.model.Partial() {
		return nil, errors.New("this rank holds a part of the model: with mesh.parameters: streamed it is evaluated while it is trained")
	}
	engine := &embedder.Engine{Model: x.model, Stream: x.stream}
	res, err := x.measure(ctx, engine, t, evaluate.Standard()...)
	return res, errors.Join(err, engine.Close())
}

// BM25 measures BM25 on the recipe's retrieval task, the first of several.
func (x *Run) BM25(ctx context.Context) (*evaluate.Result, error) {
	t, err := x.ranking()
	if err != nil {
		return nil, err
	}
	if t.first != nil {
		return t.retrieval.Measure(t.first, evaluate.Standard()...)
	}
	return t.retrieval.BM25(ctx, evaluate.Standard()...)
}

// identity names what a task measures, and its content.
func (t *task) identity(metric string) (name string, content any) {
	name, content = metric, t.data
	switch {
	case t.scored != nil && t.fusion != nil:
		return fmt.Sprint(t.scored.Counts(), t.fusion), t.scored.Content
	case t.scored != nil:
		name, content = t.scored.Counts(), t.scored.Content
	case t.first != nil:
		name = fmt.Sprintf("%s of %d", metric, t.top)
	case t.retrieval.Fusion != nil:
		name = fmt.Sprint(metric, t.retrieval.Fusion)
	}
	if t.of != "" {
		name += " in " + t.of
	}
	if t.prompts != nil {
		content = []any{content, *t.prompts}
	}
	return name, content
}
