package loss

import (
	"math"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/ref"
)

// A reranker's margin_mse learns from differences of scores as labels: of each row the mean of ((s_0 - s_j) - label)^2, and of all rows the mean.
func TestMarginsAsLabels(t *testing.T) {
	s, err := ref.New().OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	sizes, scores, labels := []int{2, 4}, []float64{1, -1, 0.5, 2, 0, -3}, []float64{0.25, -1.5}
	b, place := groupBatch(t, s, gpustage.F64, sizes, scores, make([]float64, len(scores)))
	b.Scores, b.Labels = nil, labels
	r, got, err := computeGroups(t, s, Groups{Name: GroupMarginMSE}, b)
	if err != nil {
		t.Fatal(err)
	}
	value, grad, at := 0.0, make([]float64, len(scores)), 0
	for i, n := range sizes {
		for j := 1; j < n; j++ {
			d := scores[at] - scores[at+j] - labels[i]
			value += d * d / float64(n-1)
			grad[at] += 2 * d / float64(n-1)
			grad[at+j] -= 2 * d / float64(n-1)
		}
		at += n
	}
	const limit = 64 * 0x1p-52
	if !(math.Abs(r.Sum-value) <= limit*value) || r.Weight != 2 {
		t.Errorf("%v of %v, want %v of 2", r.Sum, r.Weight, value)
	}
	for i, to := range place {
		if !(math.Abs(got[to]-grad[i]) <= limit*10) {
			t.Errorf("score %d has the gradient %v, want %v", i, got[to], grad[i])
		}
	}
	if _, _, err := computeGroups(t, s, Groups{Name: GroupMSE}, b); err == nil {
		t.Error("mse takes a label of two documents")
	}
}
