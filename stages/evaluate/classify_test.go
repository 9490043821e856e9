package evaluate

import (
	"math"
	"math/rand/v2"
	"testing"
)

// Thresholds are midpoints of two scores, so a rounding away; the measures are quotients of small numbers, summed over 80 pairs at most.
func TestClassifyAgreesWithSentenceTransformers(t *testing.T) {
	var g struct {
		Cases []struct {
			Name   string
			Scores []float64
			Labels []bool
			Want   PairClassification
		}
	}
	golden(t, "classify", &g)
	if len(g.Cases) < 10 {
		t.Fatalf("%d cases", len(g.Cases))
	}
	for _, c := range g.Cases {
		got, err := ClassifyPairs(c.Scores, c.Labels)
		if err != nil {
			t.Fatalf("%s: %v", c.Name, err)
		}
		near := func(what string, a, b float64) {
			if !(math.Abs(a-b) <= 1e-14) {
				t.Errorf("%s: %s is %.17g, want %.17g", c.Name, what, a, b)
			}
		}
		near("ap", got.AP, c.Want.AP)
		near("accuracy", got.Accuracy, c.Want.Accuracy)
		near("accuracy_threshold", got.AccuracyThreshold, c.Want.AccuracyThreshold)
		near("f1", got.F1, c.Want.F1)
		near("f1_threshold", got.F1Threshold, c.Want.F1Threshold)
		near("precision", got.Precision, c.Want.Precision)
		near("recall", got.Recall, c.Want.Recall)
		near("mcc", got.MCC, c.Want.MCC)
		if got.Pairs != c.Want.Pairs {
			t.Errorf("%s: %d pairs", c.Name, got.Pairs)
		}
		right := 0
		for i, s := range c.Scores {
			if (s >= got.AccuracyThreshold) == c.Labels[i] {
				right++
			}
		}
		near("accuracy at its threshold", float64(right)/float64(len(c.Scores)), got.Accuracy)
	}
	// The order of pairs says nothing, nor does a scale of scores.
	c := g.Cases[1]
	want, _ := ClassifyPairs(c.Scores, c.Labels)
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(c.Scores), func(i, j int) {
		c.Scores[i], c.Scores[j] = c.Scores[j], c.Scores[i]
		c.Labels[i], c.Labels[j] = c.Labels[j], c.Labels[i]
	})
	if got, err := ClassifyPairs(c.Scores, c.Labels); err != nil || got != want {
		t.Errorf("shuffled: %+v, want %+v (%v)", got, want, err)
	}
}

func TestCompareTriplets(t *testing.T) {
	for _, c := range []struct {
		positive, negative []float64
		margin, want       float64
	}{
		{[]float64{0.5, 0.25, 0, 1}, []float64{0.25, 0.5, 0, 0}, 0, 0.5}, // as near is not nearer
		{[]float64{0.5, 0.25, 0, 1}, []float64{0.25, 0.5, 0, 0}, 0.25, 0.25},
		{[]float64{-1}, []float64{-2}, 0.5, 1},
	} {
		if got, err := CompareTriplets(c.positive, c.negative, c.margin); err != nil || got != (Triplets{c.want, len(c.positive)}) {
			t.Errorf("%+v: %+v, %v", c, got, err)
		}
	}
}

// A threshold lies halfway to the next score, the last but one's, too, and is the last score itself behind which there is none.
func TestThresholds(t *testing.T) {
	for _, c := range []struct {
		together []bool
		want     float64
	}{{[]bool{true, false, false}, 4}, {[]bool{true, true, false}, 2}, {[]bool{true, false, true}, 1}} {
		if r, err := ClassifyPairs([]float64{5, 3, 1}, c.together); err != nil || r.F1Threshold != c.want {
			t.Errorf("%v: %+v, %v, want %v", c.together, r, err, c.want)
		}
	}
}

func TestClassifyMistakes(t *testing.T) {
	_, err := ClassifyPairs([]float64{1, 2}, []bool{true})
	fails(t, "fewer labels", err, "2 scores and 1 labels")
	_, err = ClassifyPairs([]float64{1, 2}, []bool{true, true})
	fails(t, "all together", err, "2 of 2 labels are 1: there is nothing to tell apart")
	_, err = ClassifyPairs(nil, nil)
	fails(t, "none", err, "0 of 0 labels")
	_, err = ClassifyPairs([]float64{1, math.NaN()}, []bool{true, false})
	fails(t, "NaN", err, "the score of pair 1 is NaN")
	_, err = CompareTriplets([]float64{1}, nil, 0)
	fails(t, "fewer negatives", err, "1 scores of positives and 0 of negatives")
	_, err = CompareTriplets(nil, nil, 0)
	fails(t, "no triplets", err, "there are no triplets")
	_, err = CompareTriplets([]float64{1}, []float64{math.Inf(1)}, 0)
	fails(t, "infinite", err, "the scores of triplet 0 are 1 and +Inf")
}
