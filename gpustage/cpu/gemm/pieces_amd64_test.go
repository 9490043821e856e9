package gemm

import (
	"math"
	"slices"
	"testing"
)

// Products in pieces are float32's: a single one is off by less than three halves of its last bit, and of sums the mean error is not above AVX-512's,
// which rounds after every element of k.
func TestPieces(t *testing.T) {
	if !slices.Contains(Available(), AMX) {
		t.Skip("this processor has no AMX")
	}
	r := newRand(t)
	const m, n = 64, 96
	for _, k := range []int{1, 2, 64, 384, 5000} {
		normal := func(n int) []float32 {
			x := make([]float32, n)
			for i := range x {
				x[i] = float32(r.NormFloat64())
			}
			return x
		}
		j := &Job[float32]{M: m, N: n, K: k, A: normal(m * k), LDA: k, B: normal(k * n), LDB: n, LDC: n}
		want, _ := expect(j)
		var rms [2]float64
		for i, kernels := range []Kernels{AMX, AVX512} {
			j.C = make([]float32, m*n)
			if err := thorough[float32](kernels).Multiply(j, serial{}); err != nil {
				t.Fatal(err)
			}
			worst := 0.0
			for at, c := range j.C {
				off := float64(c) - want[at]
				rms[i] += off * off / float64(m*n)
				_, exp := math.Frexp(want[at])
				worst = max(worst, math.Abs(off)/math.Ldexp(1, exp-24))
			}
			rms[i] = math.Sqrt(rms[i])
			t.Logf("K %d, %s: mean error %.3g", k, kernels, rms[i])
			if k == 1 && worst > 1.5 {
				t.Errorf("%s: a product is off by %.2f of its last bit", kernels, worst)
			}
		}
		if k > 16 && rms[0] > rms[1] {
			t.Errorf("K %d: the mean error is %.3g in pieces and %.3g with AVX-512", k, rms[0], rms[1])
		}
	}
	for _, k := range []int{63, 64} {
		if got, want := NewWorkspace[float32](AMX).setFor(k, false), []*set[float32]{avx512, amxPieces}[k-63]; got != want {
			t.Errorf("K %d: the kernels are of tiles of %d x %d", k, got.rows, got.cols)
		}
	}
}
