package evaluate

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Paraphrases is how well a model finds, among texts, those that say the same: sentence-transformers' ParaphraseMiningEvaluator.
type Paraphrases struct {
	AP          float64 `json:"ap"`           // average precision of the pairs that were found, over all there are
	F1          float64 `json:"f1"`           // at the threshold where it is largest; so are precision and recall
	F1Threshold float64 `json:"f1_threshold"` // from which on a pair counts as paraphrases
	Precision   float64 `json:"precision"`
	Recall      float64 `json:"recall"`
	Pairs       int     `json:"pairs"`       // that were found
	Paraphrases int     `json:"paraphrases"` // that there are
}

// String is a line of the figures.
func (p Paraphrases) String() string {
	return fmt.Sprintf("ap %.4f, f1 %.4f from %.4f on (precision %.4f, recall %.4f), %d pairs found, %d paraphrases", p.AP, p.F1, p.F1Threshold, p.Precision, p.Recall, p.Pairs, p.Paraphrases)
}

// Neighbours is how many texts nearest to each are looked at, the top_k of sentence-transformers' evaluator.
const Neighbours = 100

const foundPairs = 500_000 // that count at most, those with the highest scores

// MeasureParaphrases measures each text's nearest ones (itself may be among them), best first, by which texts are paraphrases: pairs of their numbers, in either
// order. A pair counts once, and pairs with equal scores stand on one side of every threshold, which lies halfway between two scores. Numbers
// of no text, and scores that are NaN, are errors.
func MeasureParaphrases(nearest Run, paraphrases [][2]int) (Paraphrases, error) {
	are := map[[2]int]bool{}
	for _, p := range paraphrases {
		if min(p[0], p[1]) < 0 || max(p[0], p[1]) >= len(nearest) {
			return Paraphrases{}, fmt.Errorf("texts %d and %d are paraphrases, but there are %d texts", p[0], p[1], len(nearest))
		}
		if p[0] != p[1] {
			are[[2]int{min(p[0], p[1]), max(p[0], p[1])}] = true
		}
	}
	m := Paraphrases{Paraphrases: len(are)}
	if len(are) == 0 {
		return m, errors.New("no two texts are paraphrases: there is nothing to find")
	}
	others := make(Run, len(nearest))
	for a, hits := range nearest {
		for _, h := range hits {
			if h.Doc < 0 || int(h.Doc) >= len(nearest) || h.Score != h.Score {
				return Paraphrases{}, fmt.Errorf("text %d of %d is near text %d, with a score of %v: want the number of a text and a number", h.Doc, len(nearest), a, h.Score)
			}
		}
		hits = slices.DeleteFunc(slices.Clone(hits), func(h Hit) bool { return int(h.Doc) == a })
		others[a] = hits[:min(len(hits), Neighbours)]
	}
	type pair struct {
		score float32
		yes   bool
	}
	var found []pair
	for a, hits := range others {
		for _, h := range hits {
			b := int(h.Doc)
			if b < a && slices.ContainsFunc(others[b], func(h Hit) bool { return int(h.Doc) == a }) {
				continue // it is among b's
			}
			found = append(found, pair{h.Score, are[[2]int{min(a, b), max(a, b)}]})
		}
	}
	slices.SortStableFunc(found, func(a, b pair) int { return cmp.Compare(b.score, a.score) })
	found = found[:min(len(found), foundPairs)]
	m.Pairs = len(found)
	scores, yes := make([]float64, len(found)), make([]bool, len(found))
	for i, p := range found {
		scores[i], yes[i] = float64(p.score), p.yes
	}
	groups := byScore(scores, yes)
	m.AP = averagePrecision(groups, m.Paraphrases)
	best, from, right, above := bestF1(groups, float64(m.Paraphrases))
	if best > 0 { // some were found
		m.F1, m.F1Threshold, m.Precision, m.Recall = best, from, right/above, right/float64(m.Paraphrases)
	}
	return m, nil
}
