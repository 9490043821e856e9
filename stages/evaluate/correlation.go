package evaluate

import (
	"fmt"
	"math"
	"slices"
)

// STS is how well a model's similarities follow people's judgments of the same pairs of sentences.
type STS struct {
	Spearman float64 `json:"spearman"`
	Pearson  float64 `json:"pearson"`
	Pairs    int     `json:"pairs"`
}

// String is a line of the figures.
func (s STS) String() string {
	return fmt.Sprintf("spearman %.4f, pearson %.4f, %d pairs", s.Spearman, s.Pearson, s.Pairs)
}

// EvaluateSTS compares similarities (cosines, say) with gold scores; entry i of both belongs to pair i. The two scales
// need not agree.
func EvaluateSTS(similarities, gold []float64) (STS, error) {
	s := STS{Pairs: len(gold)}
	var err error
	if s.Pearson, err = Pearson(similarities, gold); err != nil {
		return STS{}, err
	}
	s.Spearman, err = Spearman(similarities, gold)
	return s, err
}

// CheckGold tells whether EvaluateSTS can say anything with such gold scores, whatever the similarities: for who will have those much later.
func CheckGold(gold []float64) error {
	switch {
	case len(gold) < 2:
		return fmt.Errorf("a correlation is of two pairs at least, and there are %d", len(gold))
	case slices.Min(gold) == slices.Max(gold):
		return fmt.Errorf("all %d scores are %v: nothing correlates with that", len(gold), gold[0])
	}
	_, err := Spearman(gold, gold)
	return err
}

// Pearson is the linear correlation of x and y, in [-1, 1]. Fewer than two pairs, a list in which all values are equal
// (where scipy gives NaN and a warning) and values that are not finite are errors.
func Pearson(x, y []float64) (float64, error) {
	x, y, err := centre(x, y)
	if err != nil {
		return 0, err
	}
	sum := 0.0
	for i := range x {
		sum += x[i] * y[i]
	}
	return max(-1, min(1, sum)), nil // rounding can leave the interval
}

// Spearman is the correlation of the ranks of x and y; equal values share the mean of their ranks. Errors are Pearson's.
func Spearman(x, y []float64) (float64, error) {
	if _, _, err := centre(x, y); err != nil {
		return 0, err
	}
	return Pearson(ranks(x), ranks(y))
}

// centre checks x and y and returns them with mean 0 and length 1.
func centre(x, y []float64) ([]float64, []float64, error) {
	if len(x) != len(y) {
		return nil, nil, fmt.Errorf("correlation of %d values with %d: there must be as many", len(x), len(y))
	}
	if len(x) < 2 {
		return nil, nil, fmt.Errorf("correlation of %d pairs: two are the least", len(x))
	}
	var out [2][]float64
	for list, values := range [2][]float64{x, y} {
		name := [2]string{"first", "second"}[list]
		largest := 0.0
		for i, v := range values {
			if math.IsNaN(v) || math.IsInf(v, 0) {
				return nil, nil, fmt.Errorf("correlation: value %d of the %s list is %v", i, name, v)
			}
			largest = max(largest, math.Abs(v))
		}
		// Dividing by the largest value keeps the squares of huge and tiny values in range.
		mean := 0.0
		for _, v := range values {
			mean += v / largest / float64(len(values))
		}
		square := 0.0
		centred := make([]float64, len(values))
		for i, v := range values {
			centred[i] = v/largest - mean
			square += centred[i] * centred[i]
		}
		if slices.Min(values) == slices.Max(values) || square == 0 {
			return nil, nil, fmt.Errorf("correlation: all %d values of the %s list are %v: it is not defined", len(values), name, values[0])
		}
		for i := range centred {
			centred[i] /= math.Sqrt(square)
		}
		out[list] = centred
	}
	return out[0], out[1], nil
}

func ranks(values []float64) []float64 {
	order := make([]int, len(values))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		switch {
		case values[a] < values[b]:
			return -1
		case values[a] > values[b]:
			return 1
		}
		return 0
	})
	ranks := make([]float64, len(values))
	for from := 0; from < len(order); {
		to := from + 1
		for to < len(order) && values[order[to]] == values[order[from]] {
			to++
		}
		for _, i := range order[from:to] {
			ranks[i] = float64(from+1+to) / 2 // the mean of from+1 ... to
		}
		from = to
	}
	return ranks
}
