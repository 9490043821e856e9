package recipe

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"contraflow/io/hfmodel"
	"contraflow/stages/embedder"
	"contraflow/stages/reranker"
	"contraflow/stages/scoring"
)

// scoredTask is a task of which the model scores pairs of texts, as the recipe names it.
type scoredTask struct {
	kind   *scoring.Kind
	i, n   int // the i-th of n of its kind
	name   string
	source scoring.Source
}

// scored are all of them.
func (e Eval) scored() (all []scoredTask) {
	add := func(kind *scoring.Kind, i, n int, name, path string, margin float64, columns ...string) {
		key := taskKey(kind.Key, i, n)
		last := len(columns) - 1
		all = append(all, scoredTask{kind, i, n, name, scoring.Source{
			Path: path, Columns: columns, Margin: margin,
			Instead: fmt.Sprintf("it takes another file (%s.path) or column (%[1]s.%s), or no eval.%s", key, kind.Columns[last], kind.Key),
		}})
	}
	for i, s := range e.STS {
		add(scoring.STS, i, len(e.STS), s.Name, s.Path, 0, s.A, s.B, s.Score)
	}
	for i, p := range e.PairClassification {
		add(scoring.PairClassification, i, len(e.PairClassification), p.Name, p.Path, 0, p.A, p.B, p.Label)
	}
	for i, t := range e.Triplets {
		add(scoring.Triplets, i, len(e.Triplets), t.Name, t.Path, t.Margin, t.Query, t.Positive, t.Negative)
	}
	return all
}

// scoredMetrics are the figures that they go by.
func (e Eval) scoredMetrics() (names []string) {
	for _, s := range e.scored() {
		names = append(names, s.kind.Metric)
	}
	return slices.Compact(names)
}

// checkScored checks them; key gives one its key and takes its name.
func (c *checker) checkScored(e Eval, key func(kind string, i, n int, name, path string) string) {
	for _, s := range e.scored() {
		key := key(s.kind.Key, s.i, s.n, s.name, s.source.Path)
		last := len(s.kind.Columns) - 1
		c.require(s.source.Path != "" && !slices.Contains(s.source.Columns, ""), key, "needs path and the columns %s and %s", strings.Join(s.kind.Columns[:last], ", "), s.kind.Columns[last])
		c.require(s.source.Margin >= 0, key+".margin", "is %v, want a number of at least 0", s.source.Margin)
	}
}

// noScored refuses them for a kind of model whose texts have no embedding alone.
func (c *checker) noScored(e Eval, kind string) {
	for _, s := range e.scored() {
		c.require(false, "eval."+s.kind.Key, "compares embeddings: measure %s by eval.retrieval", kind)
	}
}

func (x *Run) openScored(ctx context.Context) error {
	for _, s := range x.Recipe.Eval.scored() {
		t := task{key: taskKey(s.kind.Key, s.i, s.n), name: taskName(s.name, s.source.Path), from: s.source.Path}
		if s.name != "" {
			t.from = s.name + ": " + s.source.Path
		}
		var err error
		if t.scored, err = s.kind.Load(x.noting(ctx, t.key), s.source); err != nil {
			return fmt.Errorf("%s: %w", t.key, err)
		}
		x.tasks = append(x.tasks, t)
	}
	return nil
}

// scores are the model's of a task's pairs; on ranks but the first it returns nil.
func (x *Run) scores(ctx context.Context, engine *embedder.Engine, s *scoring.Task) ([]float64, error) {
	switch {
	case x.reranker != nil:
		return reranker.ScorePairs(ctx, engine, x.pairs[0], s.A, s.B)
	case s.Asked:
		return x.evalText().Relevance(ctx, engine, s.A, s.B)
	}
	return x.evalText().Similarity(ctx, engine, s.A, s.B)
}

// measureScored is measureTask of such a task.
func (x *Run) measureScored(ctx context.Context, engine *embedder.Engine, t *task) (*TaskValue, []hfmodel.Metric, error) {
	scores, err := x.scores(ctx, engine, t.scored)
	if err != nil || !x.Main() {
		return nil, nil, err
	}
	result, all, err := t.scored.Measure(scores)
	if err != nil {
		if len(x.tasks)+len(x.heldOut) == 1 {
			x.obs.note("%s has no figure this time: %v", t.key, err)
			return nil, nil, nil
		}
		x.obs.note("%s has no figure this time, and counts as 0: %v", t.key, err)
		result, all = t.scored.None, []scoring.Figure{{Name: t.scored.Metric}}
	}
	var metrics []hfmodel.Metric
	for _, m := range all {
		metrics = append(metrics, hfmodel.Metric{Dataset: t.from, Task: t.scored.Card, Name: m.Name, Value: m.Value})
	}
	js, err := json.Marshal(result)
	return &TaskValue{t.name, t.scored.Metric, all[0].Value, json.RawMessage(js)}, metrics, err
}
