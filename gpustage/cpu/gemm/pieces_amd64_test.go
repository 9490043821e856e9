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
			if k == 1 && !(worst <= 1.5) {
				t.Errorf("%s: a product is off by %.2f of its last bit", kernels, worst)
			}
		}
		if k > 16 && !(rms[0] <= rms[1]) {
			t.Errorf("K %d: the mean error is %.3g in pieces and %.3g with AVX-512", k, rms[0], rms[1])
		}
	}
	for _, k := range []int{63, 64} {
		if got, want := NewWorkspace[float32](AMX).setFor(k, false), []*set[float32]{avx512, amxPieces}[k-63]; got != want {
			t.Errorf("K %d: the kernels are of tiles of %d x %d", k, got.rows, got.cols)
		}
	}
}

// K alone decides which kernels a product has: from 64 elements on pieces, below AVX-512's with its bits and its tiny numbers, whether B is packed before,
// at once or a part of K at a time.
func TestFewElements(t *testing.T) {
	if !slices.Contains(Available(), AMX) {
		t.Skip("this processor has no AMX")
	}
	defer func(n int) { mostB = n }(mostB)
	r := newRand(t)
	for _, k := range []int{1, 63, 64, 384 + 20} {
		j := randomJob[float32](r, 40, 50, k)
		j.TransA, j.Add = false, false
		j.A, j.LDA = matrix[float32](r, 40, k, k), k
		multiply := func(ws *Workspace[float32], way int) []float32 {
			one := *j
			one.C = make([]float32, len(j.C))
			if err := run(ws, &one, way); err != nil {
				t.Fatal(err)
			}
			return one.C
		}
		own, pieces, vectors := NewWorkspace[float32](AMX), thorough[float32](AMX), NewWorkspace[float32](AVX512)
		want := multiply(vectors, 1)
		if k >= 64 {
			want = multiply(pieces, 1)
		}
		for _, most := range []int{mostB, 1} {
			mostB = most
			for way := 1; way < 4; way++ {
				if !slices.Equal(multiply(own, way), want) {
					t.Errorf("K %d, way %d, %d bytes of B at once: the bits are not those of the kernels for so many elements", k, way, most)
				}
			}
		}
		if k >= 64 && slices.Equal(want, multiply(vectors, 1)) {
			t.Errorf("K %d: pieces give AVX-512's bits", k)
		}
		if !slices.Equal(multiply(own, 0), multiply(vectors, 0)) {
			t.Errorf("K %d: Small's bits are not AVX-512's", k)
		}
	}
}
