// Package scoring has the tasks that are one file, and of which a model scores pairs of texts: an embedding model by the similarity of their embeddings or of their parts, a
// reranker by its own score. Recipes' evaluations and the commands that measure a model load, check and measure such tasks here.
package scoring

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"contraflow/io/dataset"
	"contraflow/io/spelling"
	"contraflow/stages/evaluate"
)

// Kind is a kind of such tasks.
type Kind struct {
	Key    string   // in a recipe's eval
	What   string   // that a file has
	Roles  []string // of its columns: their keys in a recipe
	Usual  []string // their names where nothing else is said
	Metric string   // the figure that counts; "": the first of Source.Measures
	Card   string   // the task's type in a model card
	Asked  bool     // the first text of a pair is a query and the second a document; otherwise both are read alike, as queries are, or where these are weights of tokens as documents; a multi_vector always has a query and a document

	load func(ctx context.Context, t *Task) error
}

// The kinds.
var (
	STS = &Kind{
		Key: "sts", What: "pairs of texts and scores", Roles: []string{"a", "b", "score"}, Usual: []string{"sentence1", "sentence2", "score"},
		Metric: "spearman", Card: "semantic-similarity", load: loadSTS,
	}
	PairClassification = &Kind{
		Key: "pair_classification", What: "pairs of texts and labels", Roles: []string{"a", "b", "label"}, Usual: []string{"sentence1", "sentence2", "label"},
		Metric: "ap", Card: "binary-classification", load: loadPairClassification,
	}
	Triplets = &Kind{
		Key: "triplets", What: "triplets of texts", Roles: []string{"query", "positive", "negative"}, Usual: []string{"anchor", "positive", "negative"},
		Metric: "accuracy", Card: "triplet", Asked: true, load: loadTriplets,
	}
	Candidates = &Kind{
		Key: "candidates", What: "queries, each with lists of candidates to rank", Roles: []string{"query", "positive", "negative"}, Usual: []string{"query", "positive", "negative"},
		Card: "reranking", Asked: true, load: loadCandidates,
	}
	Kinds = []*Kind{STS, PairClassification, Triplets, Candidates}
)

// Source is a task's file.
type Source struct {
	Path    string
	Columns []string // as Kind.Roles; of candidates with Documents that of negative is none
	Margin  float64  // of triplets: by how much a query is to be nearer to its positive

	// Of candidates.
	Measures  []evaluate.Measure // the first counts; nil: evaluate.CandidateMeasures
	Documents string             // the column with all of them, in an order of theirs, in the place of those that are not relevant
	Found     bool               // then: relevant ones that are not among these have been missed

	nano *nano

	// Instead is how another file, or another column for a role (of Kind.Roles, or documents), is asked for. It ends errors of files that nothing can be measured on.
	Instead func(role string) string
}

// nano says where in NanoBEIR candidates are.
type nano struct {
	dataset, task string
	top           int
}

// NanoBEIR is what [dataset.LoadNanoCandidates] reads, in the place of a file of Candidates.
func NanoBEIR(id, task string, top int, found bool) Source {
	return Source{Path: task + " of " + id, Columns: []string{"query-id", "corpus-id"}, Documents: "corpus-ids", Found: found, nano: &nano{id, task, top}}
}

// Task is a task that can be measured again and again.
type Task struct {
	*Kind
	Source
	A, B    []string     // [pairs]: the texts whose pairs are scored
	Content any          // what tells it from other tasks, as JSON
	None    fmt.Stringer // what Measure gives, with no figure in it

	measure func(scores []float64) (fmt.Stringer, []Figure, error)
}

// Figure is one of a task's.
type Figure struct {
	Name  string
	Value float64
}

// Figures are measures' means.
func Figures(measures []evaluate.Measure, means []float64) (all []Figure) {
	for i, m := range measures {
		all = append(all, Figure{m.String(), means[i]})
	}
	return all
}

// Counts is the name of the figure that counts.
func (t *Task) Counts() string {
	if t.Metric != "" {
		return t.Metric
	}
	return t.Measures[0].String()
}

// Load reads and checks a task. A row that can't be used, and rows on which every model's figure would be the same or none, are errors.
func (k *Kind) Load(ctx context.Context, s Source) (*Task, error) {
	t := &Task{Kind: k, Source: s}
	return t, k.load(ctx, t)
}

// Measure makes the task's figures of the scores of its pairs: the result, as JSON and as a line of text, and its figures, the one that counts first.
// It is an error if there are none of such scores, all of which may be equal.
func (t *Task) Measure(scores []float64) (result fmt.Stringer, all []Figure, err error) {
	if len(scores) != len(t.A) {
		return nil, nil, fmt.Errorf("%s: %d scores of %d pairs: want one of each", t.Path, len(scores), len(t.A))
	}
	if result, all, err = t.measure(scores); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", t.Path, err)
	}
	return result, all, nil
}

// documents is the role of the column Source.Documents.
const documents = "documents"

// unmeasurable is the error of a role's column that nothing can be measured by.
func (t *Task) unmeasurable(role string, err error) error {
	column := t.Documents
	if role != documents {
		column = t.Columns[slices.Index(t.Roles, role)]
	}
	return fmt.Errorf("%s, column %q: %w; %s", t.Path, column, err, t.Instead(role))
}

func loadSTS(ctx context.Context, t *Task) error {
	c := t.Columns
	p, err := dataset.LoadPairs(ctx, t.Path, c[0], c[1], c[2])
	if err != nil {
		return err
	}
	if err := evaluate.CheckGold(p.Scores); err != nil {
		return t.unmeasurable("score", err)
	}
	t.A, t.B, t.Content, t.None = p.A, p.B, p, evaluate.STS{Pairs: len(p.A)}
	t.measure = func(scores []float64) (fmt.Stringer, []Figure, error) {
		r, err := evaluate.EvaluateSTS(scores, p.Scores)
		if err != nil {
			err = fmt.Errorf("%w (the first list is the pairs' similarities)", err)
		}
		return r, []Figure{{"spearman", r.Spearman}, {"pearson", r.Pearson}}, err
	}
	return nil
}

func loadPairClassification(ctx context.Context, t *Task) error {
	c := t.Columns
	p, err := dataset.LoadLabelledPairs(ctx, t.Path, c[0], c[1], c[2])
	if err != nil {
		return err
	}
	if err := evaluate.CheckLabels(p.Together); err != nil {
		return t.unmeasurable("label", err)
	}
	// The labels are in it as numbers, which runs have told tasks by.
	t.A, t.B, t.Content, t.None = p.A, p.B, dataset.Pairs{A: p.A, B: p.B, Scores: numbers(p.Together)}, evaluate.PairClassification{Pairs: len(p.A)}
	t.measure = func(scores []float64) (fmt.Stringer, []Figure, error) {
		r, err := evaluate.ClassifyPairs(scores, p.Together)
		return r, []Figure{{"ap", r.AP}, {"accuracy", r.Accuracy}, {"f1", r.F1}, {"mcc", r.MCC}}, err
	}
	return nil
}

func numbers(labels []bool) []float64 {
	out := make([]float64, len(labels))
	for i, yes := range labels {
		if yes {
			out[i] = 1
		}
	}
	return out
}

func loadTriplets(ctx context.Context, t *Task) error {
	c := t.Columns
	x, err := dataset.LoadTriplets(ctx, t.Path, c[0], c[1], c[2])
	if err != nil {
		return err
	}
	n := len(x.Queries)
	if n == 0 {
		return fmt.Errorf("%s has no rows", t.Path)
	}
	t.A, t.B = x.Pairs()
	t.Content, t.None = []any{x, t.Margin}, evaluate.Triplets{Triplets: n}
	t.measure = func(scores []float64) (fmt.Stringer, []Figure, error) {
		r, err := evaluate.CompareTriplets(scores[:n], scores[n:], t.Margin)
		return r, []Figure{{"accuracy", r.Accuracy}}, err
	}
	return nil
}

func loadCandidates(ctx context.Context, t *Task) error {
	columns := dataset.CandidateColumns{Query: t.Columns[0], Positive: t.Columns[1], Documents: t.Documents, Found: t.Found}
	others := documents
	if t.Documents == "" {
		others, columns.Negative = "negative", t.Columns[2]
	}
	var x *dataset.Candidates
	var err error
	if t.nano != nil {
		x, err = dataset.LoadNanoCandidates(ctx, t.nano.dataset, t.nano.task, t.nano.top, t.Found)
	} else {
		x, err = dataset.LoadCandidates(ctx, t.Path, columns)
	}
	if errors.Is(err, dataset.ErrMissingColumn) && t.Documents == "" {
		err = fmt.Errorf("%w; where rows have a list of all candidates %s", err, t.Instead(documents))
	}
	if err != nil {
		return err
	}
	switch {
	case len(x.Queries) == 0 && x.Alone == 0:
		return t.unmeasurable("positive", errors.New("no query has a positive"))
	case len(x.Queries) == 0:
		return t.unmeasurable(others, fmt.Errorf("no query with a positive (column %q) has another candidate: there is nothing to rank", columns.Positive))
	}
	if t.Measures == nil {
		t.Measures = evaluate.CandidateMeasures()
	}
	if err := telling(x, t.Measures[0]); err != nil {
		return t.unmeasurable(others, err)
	}
	t.Content = []any{x, columns.Found}
	for q, texts := range x.Texts {
		t.A, t.B = append(t.A, slices.Repeat(x.Queries[q:q+1], len(texts))...), append(t.B, texts...)
	}
	var before []float64
	if x.Given != nil {
		order := make([][]float64, len(x.Given))
		for q := range order {
			for i := range x.Given[q] {
				order[q] = append(order[q], float64(-i))
			}
		}
		given, err := evaluate.RankCandidates(order, x.Given, nil, t.Measures...)
		if err != nil {
			return err
		}
		before = given.Means
	}
	t.None = &evaluate.Candidates{Measures: t.Measures, Means: make([]float64, len(t.Measures)), Before: before, Queries: len(x.Queries)}
	t.measure = func(scores []float64) (fmt.Stringer, []Figure, error) {
		of := make([][]float64, len(x.Texts))
		for q, texts := range x.Texts {
			of[q], scores = scores[:len(texts)], scores[len(texts):]
		}
		r, err := evaluate.RankCandidates(of, x.Relevant, x.Missed, t.Measures...)
		if err != nil {
			return nil, nil, err
		}
		r.Before = before
		return r, Figures(r.Measures, r.Means), nil
	}
	return nil
}

// telling is nil if a measure can differ between models, and else says why not. One query is enough that has relevant candidates, others, and not one text
// alone; for recall and precision among the first k it has more than k.
func telling(x *dataset.Candidates, m evaluate.Measure) error {
	none, all, alike, few := 0, 0, 0, 0
	for q, relevant := range x.Relevant {
		switch {
		case !slices.Contains(relevant, true):
			none++
		case !slices.Contains(relevant, false):
			all++
		case len(slices.Compact(slices.Sorted(slices.Values(x.Texts[q])))) == 1:
			alike++
		case (m.Kind == evaluate.KindRecall || m.Kind == evaluate.KindPrecision) && len(relevant) <= m.K:
			few++
		default:
			return nil
		}
	}
	var why []string
	for _, w := range []struct {
		n   int
		has string
	}{{none, "no positive among the candidates"}, {all, "positives alone"}, {alike, "one text as a positive and as another candidate"}, {few, "no more than " + spelling.Count(m.K, "candidate", "candidates")}} {
		if w.n > 0 {
			why = append(why, spelling.Count(w.n, "has ", "have ")+w.has)
		}
	}
	return fmt.Errorf("%s is the same for every model: of %s %s", m, spelling.Count(len(x.Queries), "query", "queries"), strings.Join(why, ", "))
}
