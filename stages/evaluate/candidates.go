package evaluate

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"contraflow/io/spelling"
)

// Candidates is how well a model's scores put the relevant ones of a query's given candidates before the others: sentence-transformers'
// RerankingEvaluator and CrossEncoderRerankingEvaluator.
type Candidates struct {
	Measures []Measure
	Means    []float64 // [measure], over the queries
	Before   []float64 // [measure] of the order in which the candidates were given, which is one of theirs; nil: they were given in none
	Queries  int
}

// CandidateMeasures is what RankCandidates computes when it isn't told, ndcg@10, mrr@10 and map; those that are named come before them.
func CandidateMeasures(first ...Measure) []Measure {
	for _, m := range []Measure{NDCG(10), MRR(10), MAP(0)} {
		if !slices.Contains(first, m) {
			first = append(first, m)
		}
	}
	return first
}

// CheckCandidateMeasure tells whether a measure is one of candidates: map is so of all of them, recall of the first ones alone.
func CheckCandidateMeasure(m Measure) error {
	switch {
	case m.Kind == KindMAP && m.K > 0:
		return fmt.Errorf("%s: average precision of given candidates has no cut-off, whose scores may be equal on both its sides: map has all of them", m)
	case m.Kind == KindRecall && m.K == 0:
		return errors.New("recall: of all the candidates it is the same for every model: it needs a cut-off, such as recall@5")
	}
	return m.check()
}

// RankCandidates measures scores, of which higher ones are to be those of relevant candidates: scores[q][i] and relevant[q][i] are of query q's candidate
// i. A query without a relevant candidate counts as 0. missed[q] is how many relevant texts are not among its candidates, which lower its recall alone; nil: none.
//
// Candidates with one score have no order, and no model that gives many the same score gains by that of its input: a measure is the mean over all their
// orders, as scikit-learn's ndcg_score has it. Average precision is scikit-learn's, by thresholds: they are above one all together, or below it.
// What sentence-transformers' MRR has of equal scores depends on how its sort leaves them.
func RankCandidates(scores [][]float64, relevant [][]bool, missed []int, measures ...Measure) (*Candidates, error) {
	if len(measures) == 0 {
		measures = CandidateMeasures()
	}
	for _, m := range measures {
		if err := CheckCandidateMeasure(m); err != nil {
			return nil, err
		}
	}
	if len(scores) != len(relevant) {
		return nil, fmt.Errorf("scores of %d queries' candidates, and %d queries: want one of each", len(scores), len(relevant))
	}
	if missed != nil && len(missed) != len(scores) {
		return nil, fmt.Errorf("%d numbers of missed candidates, and %d queries: want one of each", len(missed), len(scores))
	}
	if len(scores) == 0 {
		return nil, errors.New("there are no queries")
	}
	c := &Candidates{Measures: measures, Means: make([]float64, len(measures)), Queries: len(scores)}
	for q, s := range scores {
		if len(s) != len(relevant[q]) {
			return nil, fmt.Errorf("query %d: %d scores of %d candidates: want one of each", q, len(s), len(relevant[q]))
		}
		for i, v := range s {
			if v-v != 0 {
				return nil, fmt.Errorf("the score of candidate %d of query %d is %v", i, q, v)
			}
		}
		alike, positives, lost := byScore(s, relevant[q]), count(relevant[q]), 0
		if missed != nil {
			lost = missed[q]
		}
		for i, m := range measures {
			c.Means[i] += m.ofCandidates(alike, positives, lost)
		}
	}
	for i := range c.Means {
		c.Means[i] /= float64(len(scores))
	}
	return c, nil
}

// alike are so many candidates, or pairs, of one score, and how many of them are relevant, or belong together.
type alike struct {
	score  float64
	n, yes int
}

// byScore groups scores, the highest first.
func byScore(scores []float64, yes []bool) (groups []alike) {
	order := make([]int, len(scores))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(scores[b], scores[a]) })
	for _, i := range order {
		if n := len(groups); n == 0 || groups[n-1].score != scores[i] {
			groups = append(groups, alike{score: scores[i]})
		}
		g := &groups[len(groups)-1]
		if g.n++; yes[i] {
			g.yes++
		}
	}
	return groups
}

// averagePrecision is scikit-learn's: the sum over thresholds of the recall that one adds times its precision.
func averagePrecision(groups []alike, positives int) (ap float64) {
	above, right := 0, 0
	for _, g := range groups {
		above, right = above+g.n, right+g.yes
		ap += float64(g.yes) * (float64(right) / float64(above))
	}
	return ap / float64(positives)
}

// ofCandidates computes the measure of one query, by its candidates' groups, how many of all are relevant, and how many more have been missed.
func (m Measure) ofCandidates(groups []alike, positives, missed int) float64 {
	if positives == 0 {
		return 0
	}
	switch m.Kind {
	case KindMAP:
		return averagePrecision(groups, positives)
	case KindMRR:
		return m.reciprocalRank(groups)
	}
	before, found, gain := 0, 0.0, 0.0
	for _, g := range groups {
		places := g.n
		if m.K > 0 {
			places = min(g.n, m.K-before)
		}
		found += float64(g.yes*places) / float64(g.n)
		share := float64(g.yes) / float64(g.n) // what each of their places has, in the mean over their orders
		for i := range places {
			gain += share / discount(before+i+1)
		}
		if before += places; before == m.K {
			break
		}
	}
	switch m.Kind {
	case KindNDCG:
		best := 0.0
		for rank := range m.cut(positives) {
			best += 1 / discount(rank+1)
		}
		return gain / best
	case KindRecall:
		return found / float64(positives+missed)
	}
	return found / float64(m.K)
}

// reciprocalRank is the mean over the orders of the first group with a relevant candidate: its first one is at place j of n, of which so many are relevant,
// with probability C(n-j, relevant-1) / C(n, relevant).
func (m Measure) reciprocalRank(groups []alike) (mean float64) {
	before := 0
	for _, g := range groups {
		if g.yes == 0 {
			before += g.n
			continue
		}
		p := float64(g.yes) / float64(g.n)
		for j := 1; j <= g.n-g.yes+1 && (m.K == 0 || before+j <= m.K); j++ {
			mean += p / float64(before+j)
			if j < g.n {
				p *= float64(g.n-j-g.yes+1) / float64(g.n-j)
			}
		}
		return mean
	}
	return 0
}

// AverageCandidates is [Average] of candidates' measures.
func AverageCandidates(results ...*Candidates) (*Candidates, error) {
	if len(results) == 0 {
		return nil, errors.New("the average of no results")
	}
	first := results[0]
	all := &Candidates{Measures: first.Measures, Means: make([]float64, len(first.Measures))}
	if first.Before != nil {
		all.Before = make([]float64, len(first.Measures))
	}
	for _, c := range results {
		if !slices.Equal(c.Measures, first.Measures) || (c.Before == nil) != (first.Before == nil) {
			return nil, fmt.Errorf("the average of %v and %v: results must have the same measures, and all or none an order that was given", first.Measures, c.Measures)
		}
		for m := range all.Measures {
			all.Means[m] += c.Means[m] / float64(len(results))
			if c.Before != nil {
				all.Before[m] += c.Before[m] / float64(len(results))
			}
		}
		all.Queries += c.Queries
	}
	return all, nil
}

// String is a line of the figures.
func (c *Candidates) String() string {
	line := func(values []float64) string {
		var parts []string
		for i, m := range c.Measures {
			parts = append(parts, fmt.Sprintf("%s %.4f", m, values[i]))
		}
		return strings.Join(parts, ", ")
	}
	text := fmt.Sprintf("%s, %s", line(c.Means), spelling.Count(c.Queries, "query", "queries"))
	if c.Before != nil {
		text += "; in the order of the file " + line(c.Before)
	}
	return text
}

// Rows are lines of a [Table]: the figures, and those of the given order, where there is one.
func (c *Candidates) Rows(name, before string) []Row {
	row := func(name string, means []float64) Row {
		return Row{name, &Result{Measures: c.Measures, Means: means, Queries: make([]int, c.Queries)}}
	}
	rows := []Row{row(name, c.Means)}
	if c.Before != nil {
		rows = append(rows, row(before, c.Before))
	}
	return rows
}

// MarshalJSON gives the means by their measures' names, in their order, and those of the given order with base_ before them as sentence-transformers has
// it: {"ndcg@10": 0.8, "mrr@10": 0.7, "map": 0.6, "queries": 375}.
func (c *Candidates) MarshalJSON() ([]byte, error) {
	means, err := meansJSON(c.Measures, c.Means, c.Before)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(means, `"queries":%d}`, c.Queries), nil
}
