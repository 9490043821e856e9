package evaluate

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"contraflow/io/spelling"
)

// Hit is one document of a ranking, by its number, with the score that put it there.
type Hit struct {
	Doc   int32
	Score float32
}

// Run is a ranking per query: Run[q] holds query q's hits. Evaluate sorts them, so their order is free.
type Run [][]Hit

// Result is what Evaluate found.
type Result struct {
	Measures []Measure
	Means    []float64   // [measure], over Queries
	Queries  []int       // numbers of the queries that counted, ascending
	Values   [][]float64 // [measure][i] for query Queries[i]
	Before   []float64   // [measure], of the order that was reranked; nil: there was none, or nobody has set it

	Unjudged   int // queries that were left out because no document is judged for them
	Irrelevant int // queries that counted as 0 because none of their judged documents is relevant
	Unanswered int // queries that counted as 0 because their ranking is empty or missing
}

// Evaluate computes measures (Standard when none is given) of a run. The run may be shorter than the query set: the
// queries beyond it have no ranking. An error names the query and document: a document twice in one ranking, a score
// that is NaN, a number that is not in the corpus; and it is an error when no query at all is judged.
//
// MAP without a cut-off looks at the whole ranking: a run with the first 100 documents gives MAP of the first 100.
func Evaluate(run Run, qrels *Qrels, measures ...Measure) (*Result, error) {
	if len(measures) == 0 {
		measures = Standard()
	}
	for _, m := range measures {
		if err := m.check(); err != nil {
			return nil, err
		}
	}
	if len(run) > qrels.Queries.Len() {
		return nil, fmt.Errorf("the run ranks documents for %d queries, but there are %d", len(run), qrels.Queries.Len())
	}
	r := &Result{Measures: measures, Means: make([]float64, len(measures)), Values: make([][]float64, len(measures))}
	seen := make([]int32, qrels.Docs.Len()) // the last query (from 1) that ranked the document
	var sorted []Hit
	var relevances, gains []int32
	for query := range qrels.Queries.Len() {
		var hits []Hit
		if query < len(run) {
			hits = run[query]
		}
		if err := checkHits(hits, query, qrels, seen); err != nil {
			return nil, err
		}
		judged := qrels.Of(query)
		if len(judged) == 0 {
			r.Unjudged++
			continue
		}
		gains = gains[:0]
		for _, j := range judged {
			if j.Relevance > 0 {
				gains = append(gains, j.Relevance)
			}
		}
		slices.SortFunc(gains, func(a, b int32) int { return int(b) - int(a) })
		if len(gains) == 0 {
			r.Irrelevant++
		}
		if len(hits) == 0 {
			r.Unanswered++
		}
		sorted = append(sorted[:0], hits...)
		slices.SortFunc(sorted, qrels.compare)
		relevances = relevances[:0]
		for _, h := range sorted {
			relevance := int32(0)
			if at, ok := find(judged, h.Doc); ok {
				relevance = judged[at].Relevance
			}
			relevances = append(relevances, relevance)
		}
		r.Queries = append(r.Queries, query)
		for i, m := range measures {
			r.Values[i] = append(r.Values[i], m.value(relevances, gains))
		}
	}
	if len(r.Queries) == 0 {
		return nil, nothingJudged(qrels)
	}
	for i, values := range r.Values {
		sum := 0.0
		for _, v := range values {
			sum += v
		}
		r.Means[i] = sum / float64(len(values))
	}
	return r, nil
}

// compare orders hits, those with equal scores as TieOrder does. Equal scores are rare enough to compare names then: Evaluate does not need the
// sorted list of all names that it makes.
func (q *Qrels) compare(a, b Hit) int {
	switch {
	case a.Score > b.Score:
		return -1
	case a.Score < b.Score:
		return 1
	}
	if q.Ascending {
		a, b = b, a
	}
	return strings.Compare(q.Docs.Name(int(b.Doc)), q.Docs.Name(int(a.Doc)))
}

func checkHits(hits []Hit, query int, qrels *Qrels, seen []int32) error {
	for i, h := range hits {
		if h.Doc < 0 || int(h.Doc) >= len(seen) {
			return fmt.Errorf("query %q: hit %d is document number %d, but there are %d documents", qrels.Queries.Name(query), i, h.Doc, len(seen))
		}
		if math.IsNaN(float64(h.Score)) {
			return fmt.Errorf("query %q: the score of document %q is NaN: look for NaN in the embeddings", qrels.Queries.Name(query), qrels.Docs.Name(int(h.Doc)))
		}
		if seen[h.Doc] == int32(query)+1 {
			return fmt.Errorf("query %q: document %q is ranked twice", qrels.Queries.Name(query), qrels.Docs.Name(int(h.Doc)))
		}
		seen[h.Doc] = int32(query) + 1
	}
	return nil
}

func nothingJudged(qrels *Qrels) error {
	if qrels.Queries.Len() == 0 {
		return fmt.Errorf("there are no queries to evaluate")
	}
	return fmt.Errorf("none of the %s (%s, ...) has a judged document: there are no judgments", spelling.Count(qrels.Queries.Len(), "query", "queries"), qrels.Queries.examples())
}

// Mean is the mean of a measure, and whether the result has it.
func (r *Result) Mean(m Measure) (float64, bool) {
	if i := slices.Index(r.Measures, m); i >= 0 {
		return r.Means[i], true
	}
	return 0, false
}

// PerQuery is a measure's values in the order of r.Queries, nil when the result does not have it.
func (r *Result) PerQuery(m Measure) []float64 {
	if i := slices.Index(r.Measures, m); i >= 0 {
		return r.Values[i]
	}
	return nil
}

// Average is the mean of several results' means, each of which counts the same however many queries it has, as in BEIR's and MTEB's averages. Its
// queries are those of all results, numbered through. The results must have the same measures.
func Average(results ...*Result) (*Result, error) {
	if len(results) == 0 {
		return nil, errors.New("the average of no results")
	}
	first := results[0]
	all := &Result{Measures: first.Measures, Means: make([]float64, len(first.Measures)), Values: make([][]float64, len(first.Measures))}
	if first.Before != nil {
		all.Before = make([]float64, len(first.Measures))
	}
	for _, r := range results {
		if !slices.Equal(r.Measures, first.Measures) || (r.Before == nil) != (first.Before == nil) {
			return nil, fmt.Errorf("the average of %v and %v: results must have the same measures, and all or none an order before", first.Measures, r.Measures)
		}
		for range r.Queries {
			all.Queries = append(all.Queries, len(all.Queries))
		}
		for m := range r.Measures {
			all.Means[m] += r.Means[m] / float64(len(results))
			all.Values[m] = append(all.Values[m], r.Values[m]...)
			if r.Before != nil {
				all.Before[m] += r.Before[m] / float64(len(results))
			}
		}
		all.Unjudged, all.Irrelevant, all.Unanswered = all.Unjudged+r.Unjudged, all.Irrelevant+r.Irrelevant, all.Unanswered+r.Unanswered
	}
	return all, nil
}
