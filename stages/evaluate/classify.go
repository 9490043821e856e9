package evaluate

import (
	"errors"
	"fmt"
	"math"

	"contraflow/io/spelling"
)

// PairClassification is how well a model's scores tell pairs of texts that belong together from pairs that don't. Its measures are those of
// sentence-transformers' BinaryClassificationEvaluator.
type PairClassification struct {
	AP                float64 `json:"ap"`                 // average precision, as scikit-learn has it: the sum over thresholds of the recall that one adds times its precision
	Accuracy          float64 `json:"accuracy"`           // at the threshold where it is largest
	AccuracyThreshold float64 `json:"accuracy_threshold"` // from which on a pair counts as one that belongs together
	F1                float64 `json:"f1"`                 // at the threshold where it is largest; so are the others
	F1Threshold       float64 `json:"f1_threshold"`
	Precision         float64 `json:"precision"`
	Recall            float64 `json:"recall"`
	MCC               float64 `json:"mcc"` // Matthews' correlation coefficient; 0 where all pairs count as the same
	Pairs             int     `json:"pairs"`
}

// String is a line of the figures.
func (c PairClassification) String() string {
	return fmt.Sprintf("ap %.4f, accuracy %.4f from %.4f on, f1 %.4f from %.4f on (precision %.4f, recall %.4f, mcc %.4f), %d pairs",
		c.AP, c.Accuracy, c.AccuracyThreshold, c.F1, c.F1Threshold, c.Precision, c.Recall, c.MCC, c.Pairs)
}

// CheckLabels tells whether ClassifyPairs can say anything with such labels, whatever the scores: for who will have those much later.
func CheckLabels(together []bool) error {
	if n := count(together); n == 0 || n == len(together) {
		return fmt.Errorf("%d of %d labels are 1: there is nothing to tell apart", n, len(together))
	}
	return nil
}

func count(together []bool) (n int) {
	for _, yes := range together {
		if yes {
			n++
		}
	}
	return n
}

// ClassifyPairs measures scores, of which higher ones are to be those of pairs that belong together; entry i of both is pair i's. Pairs with one
// score are on the same side of every threshold, and of thresholds that are as good the highest is taken. It lies halfway between two scores, or
// above them all where no pair is told apart better by another.
func ClassifyPairs(scores []float64, together []bool) (PairClassification, error) {
	c := PairClassification{Pairs: len(scores)}
	if len(scores) != len(together) {
		return c, fmt.Errorf("%d scores and %d labels: a pair has one of each", len(scores), len(together))
	}
	if err := CheckLabels(together); err != nil {
		return c, err
	}
	for i, s := range scores {
		if s-s != 0 {
			return c, fmt.Errorf("the score of pair %d is %v", i, s)
		}
	}
	groups := byScore(scores, together)
	positives := float64(count(together))
	negatives := float64(len(scores)) - positives
	c.AP = averagePrecision(groups, count(together))
	c.Accuracy, c.AccuracyThreshold = negatives/float64(len(scores)), math.Nextafter(groups[0].score, math.Inf(1))
	right, above := 0.0, 0.0 // pairs that belong together among those above a threshold, and all of these
	for i, g := range groups {
		right, above = right+float64(g.yes), above+float64(g.n)
		if accuracy := (right + negatives - (above - right)) / float64(len(scores)); accuracy > c.Accuracy {
			c.Accuracy, c.AccuracyThreshold = accuracy, threshold(groups, i)
		}
	}
	c.F1, c.F1Threshold, right, above = bestF1(groups, positives)
	c.Precision, c.Recall = right/above, right/positives
	c.MCC = matthews(right, above-right, positives-right, negatives-(above-right))
	return c, nil
}

// bestF1 is the largest F1 of pairs above a threshold, where there are so many positives in all, and the threshold, with how many of the pairs above it are
// positives and how many these are. It is 0, as all are, if no pair is a positive.
func bestF1(groups []alike, positives float64) (best, from, right, above float64) {
	yes, n := 0.0, 0.0
	for i, g := range groups {
		yes, n = yes+float64(g.yes), n+float64(g.n)
		if f1 := 2 * yes / (n + positives); f1 > best {
			best, from, right, above = f1, threshold(groups, i), yes, n
		}
	}
	return best, from, right, above
}

// threshold is one below the scores of group i: halfway to the next ones.
func threshold(groups []alike, i int) float64 {
	score := groups[i].score
	if i+1 < len(groups) {
		next := groups[i+1].score
		if middle := score/2 + next/2; middle > next { // rounding may make it the next score, which is below
			return middle
		}
	}
	return score
}

// matthews is the correlation of what is said and what is so (Matthews 1975), by how many are rightly said to belong together, wrongly so, wrongly
// not and rightly not.
func matthews(tp, fp, fn, tn float64) float64 {
	d := math.Sqrt(tp+fp) * math.Sqrt(tp+fn) * math.Sqrt(tn+fp) * math.Sqrt(tn+fn)
	if d == 0 {
		return 0
	}
	return (tp*tn - fp*fn) / d
}

// Triplets is how often a text is nearer to its positive than to its negative: sentence-transformers' TripletEvaluator.
type Triplets struct {
	Accuracy float64 `json:"accuracy"`
	Triplets int     `json:"triplets"`
}

// String is a line of the figures.
func (t Triplets) String() string {
	return fmt.Sprintf("accuracy %.4f, %s", t.Accuracy, spelling.Count(t.Triplets, "triplet", "triplets"))
}

// CompareTriplets counts triplets whose positive has a higher score than the negative, by more than margin; entry i of both is triplet i's.
func CompareTriplets(positive, negative []float64, margin float64) (Triplets, error) {
	t := Triplets{Triplets: len(positive)}
	if len(positive) != len(negative) {
		return t, fmt.Errorf("%d scores of positives and %d of negatives: a triplet has one of each", len(positive), len(negative))
	}
	if len(positive) == 0 {
		return t, errors.New("there are no triplets")
	}
	n := 0
	for i, p := range positive {
		if d := p - negative[i]; d-d != 0 {
			return t, fmt.Errorf("the scores of triplet %d are %v and %v", i, p, negative[i])
		}
		if p > negative[i]+margin {
			n++
		}
	}
	t.Accuracy = float64(n) / float64(len(positive))
	return t, nil
}
