package evaluate

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Kind is which of the retrieval measures a Measure is.
type Kind uint8

const (
	KindNDCG Kind = iota
	KindMRR
	KindMAP
	KindRecall
	KindPrecision
)

var kindNames = [...]string{"ndcg", "mrr", "map", "recall", "precision"}

// Measure is a retrieval measure, with the number of documents that it looks at (0: the whole ranking).
type Measure struct {
	Kind Kind
	K    int
}

// NDCG is the normalized discounted cumulative gain of the first k documents, with linear gain (trec_eval's ndcg_cut; k = 0: ndcg).
func NDCG(k int) Measure { return Measure{KindNDCG, k} }

// MRR is the reciprocal of the first relevant document's rank, 0 when there is none among the first k (trec_eval's
// recip_rank, of the first k results).
func MRR(k int) Measure { return Measure{KindMRR, k} }

// MAP is the average precision: precision at the rank of each relevant document among the first k, summed, over all
// relevant documents of the query (trec_eval's map_cut; k = 0: map).
func MAP(k int) Measure { return Measure{KindMAP, k} }

// Recall is the share of the query's relevant documents among the first k (trec_eval's recall; k = 0: set_recall).
func Recall(k int) Measure { return Measure{KindRecall, k} }

// Precision is the share of relevant documents among the first k places, which is trec_eval's P.
func Precision(k int) Measure { return Measure{KindPrecision, k} }

// Standard is what Evaluate computes when it isn't told: ndcg@10, mrr@10, recall@100 and map.
func Standard() []Measure { return []Measure{NDCG(10), MRR(10), Recall(100), MAP(0)} }

// String is the measure's name: "ndcg@10", "map".
func (m Measure) String() string {
	if m.K == 0 {
		return kindNames[m.Kind]
	}
	return kindNames[m.Kind] + "@" + strconv.Itoa(m.K)
}

// ParseMeasure reads a name such as "ndcg@10", "mrr@10", "recall@100", "precision@1" or "map", in any case.
func ParseMeasure(name string) (Measure, error) {
	kind, cut, hasCut := strings.Cut(strings.ToLower(strings.TrimSpace(name)), "@")
	at := slices.Index(kindNames[:], kind)
	if at < 0 {
		return Measure{}, fmt.Errorf("measure %q is not known: use %s, with a cut-off such as ndcg@10", name, strings.Join(kindNames[:], ", "))
	}
	m := Measure{Kind: Kind(at)}
	if hasCut {
		k, err := strconv.Atoi(cut)
		if err != nil || k < 1 {
			return Measure{}, fmt.Errorf("measure %q: the cut-off after @ must be a number of documents, 1 or more", name)
		}
		m.K = k
	}
	return m, m.check()
}

func (m Measure) check() error {
	switch {
	case int(m.Kind) >= len(kindNames):
		return fmt.Errorf("measure of kind %d is not known", m.Kind)
	case m.K < 0:
		return fmt.Errorf("measure %s: the cut-off must be a number of documents, 1 or more", m)
	case m.Kind == KindPrecision && m.K == 0:
		return fmt.Errorf("measure precision needs a cut-off, such as precision@10")
	}
	return nil
}

// value computes the measure of one query: relevances are those of the ranking, in its order, with 0 for what is not
// judged; gains are those of all relevant documents of the query, descending.
func (m Measure) value(relevances []int32, gains []int32) float64 {
	if m.K > 0 {
		relevances = relevances[:min(m.K, len(relevances))]
	}
	sum, found := 0.0, 0
	switch m.Kind {
	case KindNDCG:
		return ratio(dcg(relevances), dcg(gains[:m.cut(len(gains))]))
	case KindMRR:
		if i := slices.IndexFunc(relevances, func(r int32) bool { return r > 0 }); i >= 0 {
			return 1 / float64(i+1)
		}
		return 0
	case KindMAP:
		for i, r := range relevances {
			if r > 0 {
				found++
				sum += float64(found) / float64(i+1)
			}
		}
		return ratio(sum, float64(len(gains)))
	}
	for _, r := range relevances {
		if r > 0 {
			found++
		}
	}
	if m.Kind == KindRecall {
		return ratio(float64(found), float64(len(gains)))
	}
	return float64(found) / float64(m.K)
}

func (m Measure) cut(n int) int {
	if m.K == 0 {
		return n
	}
	return min(m.K, n)
}

func dcg(relevances []int32) float64 {
	sum := 0.0
	for i, r := range relevances {
		if r > 0 {
			sum += float64(r) / discount(i+1)
		}
	}
	return sum
}

// discount is what a gain is divided by at a rank, counted from 1.
func discount(rank int) float64 { return math.Log2(float64(rank + 1)) }

// ratio is 0 where there is nothing to find.
func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}
