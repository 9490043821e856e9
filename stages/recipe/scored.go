package recipe

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"contraflow/io/dataset"
	"contraflow/io/hfmodel"
	"contraflow/stages/embedder"
	"contraflow/stages/evaluate"
	"contraflow/stages/reranker"
	"contraflow/stages/scoring"
)

// scoredTask is a task of which the model scores pairs of texts, as the recipe names it.
type scoredTask struct {
	kind   *scoring.Kind
	i, n   int // the i-th of n of its kind
	name   string
	source scoring.Source
	nano   *nanoTask // nil: it is a file of its own
}

// key is where the recipe names it.
func (s scoredTask) key() string {
	if s.nano != nil {
		return s.nano.at()
	}
	return taskKey(s.kind.Key, s.i, s.n)
}

// scored are all of them.
func (e Eval) scored() (all []scoredTask) {
	add := func(kind *scoring.Kind, i, n int, name string, s scoring.Source) {
		key := taskKey(kind.Key, i, n)
		s.Instead = func(role string) string {
			return fmt.Sprintf("it takes another file (%s.path) or column (%[1]s.%s), or no eval.%s", key, role, kind.Key)
		}
		all = append(all, scoredTask{kind: kind, i: i, n: n, name: name, source: s})
	}
	for i, s := range e.STS {
		add(scoring.STS, i, len(e.STS), s.Name, scoring.Source{Path: s.Path, Columns: []string{s.A, s.B, s.Score}})
	}
	for i, p := range e.PairClassification {
		add(scoring.PairClassification, i, len(e.PairClassification), p.Name, scoring.Source{Path: p.Path, Columns: []string{p.A, p.B, p.Label}})
	}
	for i, t := range e.Triplets {
		add(scoring.Triplets, i, len(e.Triplets), t.Name, scoring.Source{Path: t.Path, Columns: []string{t.Query, t.Positive, t.Negative}, Margin: t.Margin})
	}
	for i, c := range e.Candidates {
		add(scoring.Candidates, i, len(e.Candidates), c.Name, scoring.Source{
			Path: c.Path, Columns: []string{c.Query, c.Positive, c.Negative}, Documents: c.Documents, Found: c.Found, Measures: e.candidateMeasures(),
		})
	}
	for _, n := range e.nano() {
		if n.reranker {
			all = append(all, scoredTask{kind: scoring.Candidates, name: n.name, source: n.source(e.candidateMeasures()), nano: &n})
		}
	}
	return all
}

// candidateMeasures are those of candidates, eval.metric first, where it is one.
func (e Eval) candidateMeasures() []evaluate.Measure {
	m, err := evaluate.ParseMeasure(e.ranks())
	if err != nil {
		return evaluate.CandidateMeasures() // another task's, or the recipe was refused
	}
	return evaluate.CandidateMeasures(m)
}

// scoredMetrics are the figures that they go by, whatever eval.metric says.
func (e Eval) scoredMetrics() (names []string) {
	for _, s := range e.scored() {
		if s.kind.Metric != "" {
			names = append(names, s.kind.Metric)
		}
	}
	return slices.Compact(names)
}

// checkScored checks them; key gives one its key and takes its name.
func (c *checker) checkScored(e Eval, key func(kind string, i, n int, name, path string) string) {
	for _, s := range e.scored() {
		if s.nano != nil {
			continue // checkNano did
		}
		key := key(s.kind.Key, s.i, s.n, s.name, s.source.Path)
		last := len(s.kind.Roles) - 1
		if s.kind == scoring.Candidates {
			c.checkCandidates(e, e.Candidates[s.i], key)
			continue
		}
		c.require(s.source.Path != "" && !slices.Contains(s.source.Columns, ""), key, "needs path and the columns %s and %s", strings.Join(s.kind.Roles[:last], ", "), s.kind.Roles[last])
		c.require(s.source.Margin >= 0, key+".margin", "is %v, want a number of at least 0", s.source.Margin)
	}
}

func (c *checker) checkCandidates(e Eval, x Candidates, key string) {
	c.require(x.Path != "" && x.Query != "" && x.Positive != "" && (x.Negative == "") != (x.Documents == ""), key, "needs path and the columns query, positive and one of negative and documents")
	c.require(!x.Found || x.Documents != "", key+".found", "is of documents: which of them are positives; with negative all positives are ranked")
	c.checkCandidateMeasure(e)
}

// checkCandidateMeasure refuses an eval.metric that ranks documents otherwise than candidates can be.
func (c *checker) checkCandidateMeasure(e Eval) {
	if m, err := evaluate.ParseMeasure(e.ranks()); err == nil {
		if err := evaluate.CheckCandidateMeasure(m); err != nil {
			c.fail("eval.metric", "%v", err)
		}
	}
}

func (x *Run) openScored(ctx context.Context) error {
	for _, s := range x.Recipe.Eval.scored() {
		t := task{key: s.key(), name: taskName(s.name, s.source.Path), from: shortPath(s.source.Path), fusion: x.Recipe.fusion()}
		key, file := t.key, s.source.Path
		if s.nano != nil {
			t.from, t.of = s.nano.from(), s.nano.of
			key, file = s.nano.key, dataset.NanoPath(s.nano.Dataset)
		} else if s.name != "" {
			t.from = s.name + ": " + shortPath(s.source.Path)
		}
		if x.passedOver(key, file) {
			continue
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
		result, all = t.scored.None, []scoring.Figure{{Name: t.scored.Counts()}}
	}
	var metrics []hfmodel.Metric
	for _, m := range all {
		metrics = append(metrics, hfmodel.Metric{Dataset: t.from, Task: t.scored.Card, Name: m.Name, Value: m.Value})
	}
	js, err := json.Marshal(result)
	v := &TaskValue{Name: t.name, Metric: t.scored.Counts(), Value: all[0].Value, Eval: json.RawMessage(js), of: t.of, result: result}
	if c, ok := result.(*evaluate.Candidates); ok && c.Before != nil {
		v.Base = &c.Before[0] // of the measure that counts
	}
	return v, metrics, err
}
