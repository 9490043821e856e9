package recipe

import (
	"context"
	"encoding/json"
	"fmt"

	"contraflow/io/dataset"
	"contraflow/io/hfmodel"
	"contraflow/stages/embedder"
	"contraflow/stages/evaluate"
	"contraflow/stages/reranker"
)

// scoredTask is a task of which the model scores pairs of texts: an embedder by the cosine of their embeddings, a reranker by its score.
type scoredTask struct {
	kind    string // sentence-transformers' name of it, for the model card
	metric  string // the measure that counts
	a, b    []string
	asked   bool                                                        // a are queries and b documents; otherwise both are read alike, as queries are
	content any                                                         // all that is measured with
	none    any                                                         // what stands for measures where there are none
	measure func(scores []float64) (result any, all []named, err error) // the one that counts first
}

type named struct {
	name  string
	value float64
}

// scoredKinds are the kinds of such tasks: the key, how many there are, and the measure that they go by.
func (e Eval) scoredKinds() []scoredKind {
	return []scoredKind{{"sts", len(e.STS), "spearman"}, {"pair_classification", len(e.PairClassification), "ap"}, {"triplets", len(e.Triplets), "accuracy"}}
}

type scoredKind struct {
	key    string
	n      int
	metric string
}

// scored is how many such tasks there are.
func (e Eval) scored() (n int) {
	for _, k := range e.scoredKinds() {
		n += k.n
	}
	return n
}

// scoredMetrics are the measures that they go by.
func (e Eval) scoredMetrics() (names []string) {
	for _, k := range e.scoredKinds() {
		if k.n > 0 {
			names = append(names, k.metric)
		}
	}
	return names
}

// checkScored checks them; key gives one its key and takes its name.
func (c *checker) checkScored(e Eval, key func(kind string, i, n int, name, path string) string) {
	for i, s := range e.STS {
		key := key("sts", i, len(e.STS), s.Name, s.Path)
		c.require(s.Path != "" && s.A != "" && s.B != "" && s.Score != "", key, "needs path and the columns a, b and score")
	}
	for i, p := range e.PairClassification {
		key := key("pair_classification", i, len(e.PairClassification), p.Name, p.Path)
		c.require(p.Path != "" && p.A != "" && p.B != "" && p.Label != "", key, "needs path and the columns a, b and label")
	}
	for i, t := range e.Triplets {
		key := key("triplets", i, len(e.Triplets), t.Name, t.Path)
		c.require(t.Path != "" && t.Query != "" && t.Positive != "" && t.Negative != "", key, "needs path and the columns query, positive and negative")
		c.require(t.Margin >= 0, key+".margin", "is %v, want a number of at least 0", t.Margin)
	}
}

// noScored refuses them for a kind of model whose texts have no embedding alone.
func (c *checker) noScored(e Eval, kind string) {
	for _, k := range e.scoredKinds() {
		c.require(k.n == 0, "eval."+k.key, "compares embeddings: measure %s by eval.retrieval", kind)
	}
}

func (x *Run) openScored(ctx context.Context) error {
	return x.scoredTasks(func(kind string, i, n int, name, path string, load func(ctx context.Context, key string) (*scoredTask, error)) error {
		t := task{key: taskKey(kind, i, n), name: taskName(name, path), from: shortPath(path)}
		if name != "" {
			t.from = name + ": " + shortPath(path)
		}
		var err error
		if t.scored, err = load(x.noting(ctx, t.key), t.key); err != nil {
			return fmt.Errorf("%s: %w", t.key, err)
		}
		x.tasks = append(x.tasks, t)
		return nil
	})
}

// scoredTasks calls add with each of those that the recipe names, and what reads it.
func (x *Run) scoredTasks(add func(kind string, i, n int, name, path string, load func(ctx context.Context, key string) (*scoredTask, error)) error) error {
	e := x.Recipe.Eval
	for i, s := range e.STS {
		err := add("sts", i, len(e.STS), s.Name, s.Path, func(ctx context.Context, key string) (*scoredTask, error) {
			p, err := dataset.LoadPairs(ctx, s.Path, s.A, s.B, s.Score)
			if err != nil {
				return nil, err
			}
			if err := evaluate.CheckGold(p.Scores); err != nil {
				return nil, fmt.Errorf("%s, column %q: %w; it takes another file (%[4]s.path) or column (%[4]s.score), or no eval.sts", s.Path, s.Score, err, key)
			}
			return &scoredTask{kind: "semantic-similarity", metric: "spearman", a: p.A, b: p.B, content: p, none: evaluate.STS{Pairs: len(p.A)}, measure: func(scores []float64) (any, []named, error) {
				r, err := evaluate.EvaluateSTS(scores, p.Scores)
				if err != nil {
					err = fmt.Errorf("%w (the first list is the pairs' similarities)", err)
				}
				return r, []named{{"spearman", r.Spearman}, {"pearson", r.Pearson}}, err
			}}, nil
		})
		if err != nil {
			return err
		}
	}
	for i, c := range e.PairClassification {
		err := add("pair_classification", i, len(e.PairClassification), c.Name, c.Path, func(ctx context.Context, key string) (*scoredTask, error) {
			p, together, err := dataset.LoadLabelledPairs(ctx, c.Path, c.A, c.B, c.Label)
			if err != nil {
				return nil, err
			}
			if err := evaluate.CheckLabels(together); err != nil {
				return nil, fmt.Errorf("%s, column %q: %w; it takes another file (%[4]s.path) or column (%[4]s.label), or no eval.pair_classification", c.Path, c.Label, err, key)
			}
			return &scoredTask{kind: "binary-classification", metric: "ap", a: p.A, b: p.B, content: p, none: evaluate.PairClassification{Pairs: len(p.A)}, measure: func(scores []float64) (any, []named, error) {
				r, err := evaluate.ClassifyPairs(scores, together)
				return r, []named{{"ap", r.AP}, {"accuracy", r.Accuracy}, {"f1", r.F1}, {"mcc", r.MCC}}, err
			}}, nil
		})
		if err != nil {
			return err
		}
	}
	for i, r := range e.Triplets {
		err := add("triplets", i, len(e.Triplets), r.Name, r.Path, func(ctx context.Context, _ string) (*scoredTask, error) {
			t, err := dataset.LoadTriplets(ctx, r.Path, r.Query, r.Positive, r.Negative)
			if err != nil {
				return nil, err
			}
			n := len(t.Queries)
			if n == 0 {
				return nil, fmt.Errorf("%s has no rows", r.Path)
			}
			queries, documents := t.Pairs()
			return &scoredTask{
				kind: "triplet", metric: "accuracy", a: queries, b: documents, asked: true, content: []any{t, r.Margin}, none: evaluate.Triplets{Triplets: n},
				measure: func(scores []float64) (any, []named, error) {
					c, err := evaluate.CompareTriplets(scores[:n], scores[n:], r.Margin)
					return c, []named{{"accuracy", c.Accuracy}}, err
				},
			}, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// scores are the model's of a task's pairs; on ranks but the first it returns nil.
func (x *Run) scores(ctx context.Context, engine *embedder.Engine, s *scoredTask) ([]float64, error) {
	switch {
	case x.reranker != nil:
		return reranker.ScorePairs(ctx, engine, x.pairs[0], s.a, s.b)
	case s.asked:
		return x.evalText().Relevance(ctx, engine, s.a, s.b)
	}
	return x.evalText().Similarity(ctx, engine, s.a, s.b)
}

// measureScored is measureTask of such a task.
func (x *Run) measureScored(ctx context.Context, engine *embedder.Engine, t *task) (*TaskValue, []hfmodel.Metric, error) {
	scores, err := x.scores(ctx, engine, t.scored)
	if err != nil || !x.Main() {
		return nil, nil, err
	}
	result, all, err := t.scored.measure(scores)
	if err != nil {
		if len(x.tasks)+len(x.heldOut) == 1 {
			x.obs.note("%s has no figure this time: %v", t.key, err)
			return nil, nil, nil
		}
		x.obs.note("%s has no figure this time, and counts as 0: %v", t.key, err)
		result, all = t.scored.none, []named{{name: t.scored.metric}}
	}
	var metrics []hfmodel.Metric
	for _, m := range all {
		metrics = append(metrics, hfmodel.Metric{Dataset: t.from, Task: t.scored.kind, Name: m.name, Value: m.value})
	}
	js, err := json.Marshal(result)
	return &TaskValue{t.name, t.scored.metric, all[0].value, json.RawMessage(js)}, metrics, err
}
