package recipe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"contraflow/io/hfmodel"
	"contraflow/io/spelling"
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

// evalText is how a task's texts are read.
func (x *Run) evalText(t *task) embedder.Text {
	text := embedder.Text{
		Tokenizer: x.tok, QueryLength: x.text.QueryLength, DocumentLength: x.text.DocumentLength,
		QueryPrompt: x.text.QueryPrompt, DocumentPrompt: x.text.DocumentPrompt, Weighed: x.text.Weighed,
		Fusion: x.Recipe.fusion(),
	}
	if t.prompts != nil {
		text.QueryPrompt, text.DocumentPrompt = t.prompts.Query, t.prompts.Document
	}
	return text
}

// evaluates tells whether there is something to measure the model on.
func (x *Run) evaluates() bool { return len(x.tasks)+len(x.heldOut)+len(x.unread) > 0 }

// evaluate embeds together with the other ranks, and measures on rank 0: on others it returns nil. So it does where there is one task, and the
// similarities are such that nothing correlates with them, as those of embeddings that have become all alike: a run has more to lose than a figure.
// Among several tasks, or beside a loss, such a one counts as 0. Likewise where the loss decides, and is not finite.
func (x *Run) evaluate(ctx context.Context, engine *embedder.Engine) (*Evaluation, error) {
	ev := &Evaluation{}
	found := map[*task]measured{}
	for i := range x.tasks {
		t := &x.tasks[i]
		if _, ok := found[t]; !ok {
			if err := x.measureAlike(ctx, engine, t, found); err != nil {
				return nil, err
			}
		}
		if m := found[t]; m.value != nil {
			m.value.Name, m.value.of = t.name, t.of
			ev.Tasks, ev.results = append(ev.Tasks, *m.value), append(ev.results, cardMetrics(t.from, t.card(), m.figures)...)
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

// tell has the observer see how far the engine's next evaluation is, and alive, if not nil, called as often.
func (x *Run) tell(engine *embedder.Engine, alive func()) {
	if !x.Main() {
		return
	}
	before := int64(0) // what the evaluation's earlier calls have embedded
	engine.Told = func(done, of int) {
		if alive != nil {
			alive()
		}
		if x.obs.Measured == nil {
			return
		}
		if x.measures == 0 {
			x.measures = x.measuredTexts(engine)
		}
		x.obs.Measured(before+int64(done), x.measures)
		if done == of {
			before += int64(of)
		}
	}
}

// measuredTexts is how many texts, or a reranker's pairs, pass through the model in an evaluation.
func (x *Run) measuredTexts(engine *embedder.Engine) (n int64) {
	for i := range x.tasks {
		t := &x.tasks[i]
		if !slices.ContainsFunc(x.tasks[:i], func(o task) bool { return o.alike(t) }) {
			n += int64(x.textsOf(engine, t))
		}
	}
	for _, h := range x.heldOut {
		n += int64(h.rows.Texts())
	}
	return n
}

func (x *Run) textsOf(engine *embedder.Engine, t *task) (n int) {
	switch {
	case t.scored != nil && x.reranker != nil:
		return len(t.scored.A)
	case t.scored != nil:
		return x.evalText(t).PairTexts(engine, t.scored.Asked, t.scored.A, t.scored.B)
	case t.mined:
		return t.retrieval.Queries()
	case t.first != nil:
		for _, hits := range t.first {
			n += len(hits)
		}
		return n
	}
	return t.retrieval.Queries() + t.retrieval.Docs()
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

// measured is what was found of a task: no value on ranks but the first, and where there is none.
type measured struct {
	value   *TaskValue
	figures []scoring.Figure
}

// measureAlike measures the model on a task and on all that are alike, whose texts are embedded once.
func (x *Run) measureAlike(ctx context.Context, engine *embedder.Engine, t *task, found map[*task]measured) error {
	var alike []*task
	var cuts []int
	for i := range x.tasks {
		if o := &x.tasks[i]; o.alike(t) {
			alike, cuts = append(alike, o), append(cuts, o.cut)
		}
	}
	by := x.rank
	switch {
	case t.scored != nil:
		by = x.score
	case t.mined:
		by = x.mine
	}
	all, err := by(ctx, engine, t, cuts)
	if err != nil {
		return err
	}
	for i, o := range alike {
		if found[o] = (measured{}); x.Main() {
			found[o] = all[i]
		}
	}
	return nil
}

// card is the task's type in a model card; "": retrieval.
func (t *task) card() string {
	switch {
	case t.scored != nil:
		return t.scored.Card
	case t.mined:
		return "paraphrase-mining"
	}
	return ""
}

// cardMetrics are figures as a model card has them.
func cardMetrics(from, task string, figures []scoring.Figure) (all []hfmodel.Metric) {
	for _, f := range figures {
		all = append(all, hfmodel.Metric{Dataset: from, Task: task, Name: f.Name, Value: f.Value})
	}
	return all
}

// rank measures a task of ranking documents by each of cuts; on ranks but the first it finds nothing.
func (x *Run) rank(ctx context.Context, engine *embedder.Engine, t *task, cuts []int) (all []measured, err error) {
	name := x.Recipe.Eval.ranks()
	measure, err := evaluate.ParseMeasure(name)
	if err != nil {
		return nil, err
	}
	measures := evaluate.Standard()
	if !slices.Contains(measures, measure) {
		measures = append(measures, measure)
	}
	results, err := x.measure(ctx, engine, t, cuts, measures...)
	if err != nil {
		return nil, err
	}
	for _, res := range results {
		at := slices.Index(res.Measures, measure)
		v := &TaskValue{Metric: name, Value: res.Means[at], Eval: res, result: res}
		if res.Before != nil {
			v.Base = &res.Before[at]
		}
		all = append(all, measured{v, scoring.Figures(res.Measures, res.Means)})
	}
	return all, nil
}

// minedMetric is what a task of finding paraphrases counts by: average precision.
const minedMetric = "ap"

// mine is rank of a task of finding paraphrases.
func (x *Run) mine(ctx context.Context, engine *embedder.Engine, t *task, cuts []int) (all []measured, err error) {
	results, err := t.retrieval.Paraphrases(ctx, engine, cuts...)
	if err != nil {
		return nil, err
	}
	for _, p := range results {
		js, err := json.Marshal(p)
		if err != nil {
			return nil, err
		}
		all = append(all, measured{&TaskValue{Metric: minedMetric, Value: p.AP, Eval: json.RawMessage(js)}, []scoring.Figure{{Name: minedMetric, Value: p.AP}, {Name: "f1", Value: p.F1}}})
	}
	return all, nil
}

// measure ranks a task's documents by each of cuts; on ranks but the first it returns nil.
func (x *Run) measure(ctx context.Context, engine *embedder.Engine, t *task, cuts []int, measures ...evaluate.Measure) ([]*evaluate.Result, error) {
	if t.first == nil {
		return t.retrieval.EvaluateCut(ctx, engine, cuts, measures...)
	}
	res, err := reranker.Evaluate(ctx, engine, x.text.Pairs[0], t.retrieval, t.first, measures...)
	if err != nil || res == nil {
		return nil, err
	}
	before, err := t.retrieval.Measure(t.first, measures...)
	if err != nil {
		return nil, err
	}
	res.Before = before.Means
	return slices.Repeat([]*evaluate.Result{res}, len(cuts)), nil
}

// ranking is the recipe's first task of ranking documents.
func (x *Run) ranking() (*task, error) {
	for i := range x.tasks {
		if t := x.tasks[i]; t.retrieval != nil && !t.mined {
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
	all, err := x.measure(ctx, engine, t, []int{t.cut}, evaluate.Standard()...)
	if err := errors.Join(err, engine.Close()); err != nil || all == nil {
		return nil, err
	}
	return all[0], nil
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

// scores are the model's of a task's pairs, by each of cuts; on ranks but the first it returns nil.
func (x *Run) scores(ctx context.Context, engine *embedder.Engine, t *task, cuts []int) ([][]float64, error) {
	s := t.scored
	switch {
	case x.reranker != nil:
		scores, err := reranker.ScorePairs(ctx, engine, x.text.Pairs[0], s.A, s.B)
		return slices.Repeat([][]float64{scores}, len(cuts)), err // which has nothing to cut
	case s.Asked:
		return x.evalText(t).Relevance(ctx, engine, s.A, s.B, cuts...)
	}
	return x.evalText(t).Similarity(ctx, engine, s.A, s.B, cuts...)
}

// score is rank of a task of pairs.
func (x *Run) score(ctx context.Context, engine *embedder.Engine, t *task, cuts []int) (all []measured, err error) {
	each, err := x.scores(ctx, engine, t, cuts)
	if err != nil || !x.Main() {
		return nil, err
	}
	for i, scores := range each {
		result, figures, err := t.scored.Measure(scores)
		if err != nil {
			at := t.at()
			if cuts[i] > 0 {
				at += ", " + spelling.Count(cuts[i], "dimension", "dimensions") + ","
			}
			if len(x.tasks)+len(x.heldOut) == 1 {
				x.obs.note("%s has no figure this time: %v", at, err)
				return make([]measured, 1), nil
			}
			x.obs.note("%s has no figure this time, and counts as 0: %v", at, err)
			result, figures = t.scored.None, []scoring.Figure{{Name: t.scored.Counts()}}
		}
		js, err := json.Marshal(result)
		if err != nil {
			return nil, err
		}
		v := &TaskValue{Metric: t.scored.Counts(), Value: figures[0].Value, Eval: json.RawMessage(js), result: result}
		if c, ok := result.(*evaluate.Candidates); ok && c.Before != nil {
			v.Base = &c.Before[0] // of the measure that counts
		}
		all = append(all, measured{v, figures})
	}
	return all, nil
}
