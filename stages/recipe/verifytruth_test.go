package recipe

import (
	"math"
	"testing"
)

// The worst tensor is the one that is farthest beyond its own limit, and one that is NaN is worse than all.
func TestWorst(t *testing.T) {
	nan := math.NaN()
	for _, c := range []struct {
		errors, limits []float64
		want           int
	}{
		{[]float64{1, 3, 2}, nil, 1}, {[]float64{1, 3, 2}, []float64{0.1, 3, 1}, 0}, {[]float64{3, nan, 9}, nil, 1}, {[]float64{3, 1, nan}, []float64{1, 1, 1}, 2}, {[]float64{0, 0}, nil, 1},
	} {
		if got := worst(c.errors, c.limits); got != c.want {
			t.Errorf("%v within %v: tensor %d, want %d", c.errors, c.limits, got, c.want)
		}
	}
}

// Memory is predicted of the longest texts, be they queries.
func TestLongestSub(t *testing.T) {
	j := newJob(t, 30)
	for _, set := range []string{"model.max_length={query: 30, document: 9}", "model.max_length={query: 9, document: 30}"} {
		x := j.opened(t, []string{set, "save.dir=" + j.dir})
		if lengths, _ := x.longestSub(); len(lengths) != 5 || lengths[0] != 30 {
			t.Errorf("%s: %v", set, lengths)
		}
	}
}
