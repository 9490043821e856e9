package evaluate

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// Figures are those of sentence-transformers' ParaphraseMiningEvaluator, here said once more as it says them: of each text's 100 nearest, every pair once, best first.
func TestParaphrases(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	const n = 140
	var scores [n][n]float32
	for i := range n {
		for j := range i {
			scores[i][j] = float32(rng.IntN(3000)) / 3000 // some are equal
			scores[j][i] = scores[i][j]
		}
		if scores[i][i] = 1; i%2 == 0 {
			scores[i][i] = -1 // as of a text with very many copies, which is not among its own nearest
		}
	}
	var given [][2]int
	are := map[[2]int]bool{}
	for range 400 {
		i, j := rng.IntN(n), rng.IntN(n)
		given = append(given, [2]int{i, j})
		if i != j {
			are[[2]int{min(i, j), max(i, j)}] = true
		}
	}
	nearest := make(Run, n)
	found := map[[2]int]bool{}
	for i := range n {
		for j := range n {
			nearest[i] = append(nearest[i], Hit{Doc: int32(j), Score: scores[i][j]})
		}
		slices.SortFunc(nearest[i], func(a, b Hit) int {
			if better(a, b, nil) {
				return -1
			}
			return 1
		})
		nearest[i] = nearest[i][:Neighbours+1]
		others := 0
		for _, h := range nearest[i] {
			if j := int(h.Doc); j != i && others < 100 {
				others++
				found[[2]int{min(i, j), max(i, j)}] = true
			}
		}
	}
	var pairs [][2]int
	for p := range found {
		pairs = append(pairs, p)
	}
	score := func(p [2]int) float64 { return float64(scores[p[0]][p[1]]) }
	slices.SortFunc(pairs, func(a, b [2]int) int { return int(math.Copysign(1, score(b)-score(a))) })
	var want Paraphrases
	right, before := 0, 0
	for i, p := range pairs {
		if are[p] {
			right++
		}
		if i+1 < len(pairs) && score(pairs[i+1]) == score(p) {
			continue
		}
		precision, recall := float64(right)/float64(i+1), float64(right)/float64(len(are))
		want.AP += precision * float64(right-before) / float64(len(are))
		before = right
		if f1 := 2 * precision * recall / (precision + recall); f1 > want.F1 {
			want.F1, want.Precision, want.Recall, want.F1Threshold = f1, precision, recall, (score(p)+score(pairs[min(i+1, len(pairs)-1)]))/2
		}
	}
	got, err := MeasureParaphrases(nearest, given)
	if err != nil || got.Pairs != len(pairs) || got.Paraphrases != len(are) || len(pairs) == n*(n-1)/2 {
		t.Fatalf("%+v, %v, want %d pairs", got, err, len(pairs))
	}
	for what, of := range map[string][2]float64{
		"AP": {got.AP, want.AP}, "F1": {got.F1, want.F1}, "threshold": {got.F1Threshold, want.F1Threshold}, "precision": {got.Precision, want.Precision}, "recall": {got.Recall, want.Recall},
	} {
		if !(math.Abs(of[0]-of[1]) < 1e-12) {
			t.Errorf("%s: %v, want %v", what, of[0], of[1])
		}
	}
	many := make(Run, foundPairs/Neighbours+20)
	for i := range many {
		for k := range Neighbours {
			many[i] = append(many[i], Hit{Doc: int32((i + 1 + k) % len(many)), Score: -float32(i)})
		}
	}
	if got, err := MeasureParaphrases(many, [][2]int{{len(many) - 1, 0}}); err != nil || got != (Paraphrases{Pairs: foundPairs, Paraphrases: 1}) {
		t.Errorf("%+v, %v: a pair counts that is not among the best", got, err)
	}
	if _, err := MeasureParaphrases(nearest, [][2]int{{4, 4}}); err == nil {
		t.Error("a text is no paraphrase of itself, and nobody says so")
	}
	for _, none := range [][2]int{{0, n}, {-1, 0}} {
		if _, err := MeasureParaphrases(nearest, [][2]int{none}); err == nil {
			t.Errorf("texts %v are there", none)
		}
	}
	for _, h := range []Hit{{Doc: -1}, {Doc: 2}, {Doc: 1, Score: float32(math.NaN())}} {
		if _, err := MeasureParaphrases(Run{{h}, nil}, [][2]int{{0, 1}}); err == nil {
			t.Errorf("%v is near", h)
		}
	}
}
