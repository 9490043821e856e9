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

func (x *Run) evalText() embedder.Text {
	return embedder.Text{
		Tokenizer: x.tok, QueryLength: x.text.QueryLength, DocumentLength: x.text.DocumentLength,
		QueryPrompt: x.text.QueryPrompt, DocumentPrompt: x.text.DocumentPrompt, Weighed: x.text.Weighed,
		Fusion: x.Recipe.fusion(),
	}
}

// evaluates tells whether there is something to measure the model on.
func (x *Run) evaluates() bool { return len(x.tasks)+len(x.heldOut)+len(x.unread) > 0 }

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
	by, card := x.rank, ""
	switch {
	case t.scored != nil:
		by, card = x.score, t.scored.Card
	case t.mined:
		by, card = x.mine, "paraphrase-mining"
	}
	engine.Cut = t.cut
	v, all, err := by(ctx, engine, t)
	engine.Cut = 0
	if err != nil || v == nil {
		return nil, nil, err
	}
	v.Name, v.of = t.name, t.of
	return v, cardMetrics(t.from, card, all), nil
}

// cardMetrics are figures as a model card has them.
func cardMetrics(from, task string, figures []scoring.Figure) (all []hfmodel.Metric) {
	for _, f := range figures {
		all = append(all, hfmodel.Metric{Dataset: from, Task: task, Name: f.Name, Value: f.Value})
	}
	return all
}

// rank is measureTask of a task of ranking documents.
func (x *Run) rank(ctx context.Context, engine *embedder.Engine, t *task) (*TaskValue, []scoring.Figure, error) {
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
	at := slices.Index(res.Measures, measure)
	v := &TaskValue{Metric: name, Value: res.Means[at], Eval: res, result: res}
	if res.Before != nil {
		v.Base = &res.Before[at]
	}
	return v, scoring.Figures(res.Measures, res.Means), nil
}

// minedMetric is what a task of finding paraphrases counts by: average precision.
const minedMetric = "ap"

// mine is measureTask of a task of finding paraphrases.
func (x *Run) mine(ctx context.Context, engine *embedder.Engine, t *task) (*TaskValue, []scoring.Figure, error) {
	p, err := t.retrieval.Paraphrases(ctx, engine)
	if err != nil || !x.Main() {
		return nil, nil, err
	}
	js, err := json.Marshal(p)
	return &TaskValue{Metric: minedMetric, Value: p.AP, Eval: json.RawMessage(js)}, []scoring.Figure{{Name: minedMetric, Value: p.AP}, {Name: "f1", Value: p.F1}}, err
}

// measure ranks a task's documents; on ranks but the first it returns nil.
func (x *Run) measure(ctx context.Context, engine *embedder.Engine, t *task, measures ...evaluate.Measure) (*evaluate.Result, error) {
	if t.first == nil {
		return t.retrieval.Evaluate(ctx, engine, measures...)
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
	return res, nil
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
	engine := &embedder.Engine{Model: x.model, Stream: x.stream, Cut: t.cut}
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

// scores are the model's of a task's pairs; on ranks but the first it returns nil.
func (x *Run) scores(ctx context.Context, engine *embedder.Engine, s *scoring.Task) ([]float64, error) {
	switch {
	case x.reranker != nil:
		return reranker.ScorePairs(ctx, engine, x.text.Pairs[0], s.A, s.B)
	case s.Asked:
		return x.evalText().Relevance(ctx, engine, s.A, s.B)
	}
	return x.evalText().Similarity(ctx, engine, s.A, s.B)
}

// score is measureTask of a task of pairs.
func (x *Run) score(ctx context.Context, engine *embedder.Engine, t *task) (*TaskValue, []scoring.Figure, error) {
	scores, err := x.scores(ctx, engine, t.scored)
	if err != nil || !x.Main() {
		return nil, nil, err
	}
	result, all, err := t.scored.Measure(scores)
	if err != nil {
		if len(x.tasks)+len(x.heldOut) == 1 {
			x.obs.note("%s has no figure this time: %v", t.at(), err)
			return nil, nil, nil
		}
		x.obs.note("%s has no figure this time, and counts as 0: %v", t.at(), err)
		result, all = t.scored.None, []scoring.Figure{{Name: t.scored.Counts()}}
	}
	js, err := json.Marshal(result)
	v := &TaskValue{Metric: t.scored.Counts(), Value: all[0].Value, Eval: json.RawMessage(js), result: result}
	if c, ok := result.(*evaluate.Candidates); ok && c.Before != nil {
		v.Base = &c.Before[0] // of the measure that counts
	}
	return v, all, err
}
