package gemm

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"
)

// BenchmarkMultiply reports the shapes of a small encoder, GFLOP/s and percent of the peak, measured before and after each
// product at the same number of threads; the best of all of them. The products of a mode are named as their operands are
// stored: NN is dX = dY W, NT is Y = X Wᵀ, TN is dW = dYᵀ X, packed is NT with W packed before. With -short, which only shows that it runs,
// it has fewer tokens.
func BenchmarkMultiply(b *testing.B) {
	for _, k := range Available() {
		for _, bf16 := range []bool{false, true} {
			for _, d := range [][3]int{{4096, 384, 384}, {4096, 1536, 384}, {4096, 384, 1536}, {2048, 3072, 768}, {8, 1536, 384}} {
				if k == Portable {
					d[0] = max(1, d[0]/16)
				}
				if testing.Short() {
					d[0] = max(1, d[0]/16)
				}
				for _, mode := range []string{"NN", "NT", "TN", "packed"} {
					for _, n := range []int{1, 2} {
						if n > runtime.NumCPU() {
							continue
						}
						name := fmt.Sprintf("%s/bf16=%t/%dx%dx%d/%s/threads=%d", k, bf16, d[0], d[1], d[2], mode, n)
						b.Run(name, func(b *testing.B) { benchmark(b, k, product(d[0], d[1], d[2], mode, bf16), mode == "packed", n) })
					}
				}
			}
		}
	}
}

// product is one linear layer's: m tokens, n outputs, k inputs.
func product(m, n, k int, mode string, bf16 bool) *Job[float32] {
	j := &Job[float32]{M: m, N: n, K: k, LDA: k, LDB: n, LDC: n, BF16: bf16}
	switch mode {
	case "NT", "packed":
		j.TransB, j.LDB = true, k
	case "TN":
		j.M, j.N, j.K = n, k, m
		j.TransA, j.LDA, j.LDB, j.LDC = true, n, k, k
	}
	random := func(n int) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = rand.Float32() - 0.5
		}
		return x
	}
	j.A, j.B, j.C = random(j.M*j.K), random(j.K*j.N), random(j.M*j.N)
	return j
}

func benchmark(b *testing.B, k Kernels, j *Job[float32], packed bool, n int) {
	var r Runner = serial{}
	if n > 1 {
		r = threads(n)
	}
	ws := NewWorkspace[float32](k)
	if packed {
		j.Packed = new(Packed[float32])
		if err := ws.Pack(j.Packed, j.B, j.LDB, j.TransB, j.K, j.N, j.BF16, r); err != nil {
			b.Fatal(err)
		}
	}
	work := 2 * float64(j.M) * float64(j.N) * float64(j.K)
	best, peak := 0.0, 0.0
	for b.Loop() {
		b.StopTimer()
		peak = max(peak, Peak[float32](k, j.BF16, time.Millisecond, r))
		b.StartTimer()
		start := time.Now()
		if err := ws.Multiply(j, r); err != nil {
			b.Fatal(err)
		}
		best = max(best, work/time.Since(start).Seconds())
	}
	b.ReportMetric(best/1e9, "GFLOP/s")
	b.ReportMetric(100*best/peak, "%peak")
}

// BenchmarkSmall is the products of one attention head of 32 features, among the columns of q, k and v of 12 heads.
func BenchmarkSmall(b *testing.B) {
	const ld = 3 * 384
	for _, k := range Available() {
		for _, bf16 := range []bool{false, true} {
			for _, tokens := range []int{136, 40} {
				q, p, o := make([]float32, tokens*ld), make([]float32, tokens*tokens), make([]float32, tokens*384)
				for mode, j := range map[string]Job[float32]{
					"QKt":  {M: tokens, N: tokens, K: 32, A: q, LDA: ld, B: q[384:], LDB: ld, TransB: true, C: p, LDC: tokens},
					"PV":   {M: tokens, N: 32, K: tokens, A: p, LDA: tokens, B: q[768:], LDB: ld, C: o, LDC: 384},
					"PtdO": {M: tokens, N: 32, K: tokens, A: p, LDA: tokens, TransA: true, B: q[768:], LDB: ld, C: o, LDC: 384},
				} {
					b.Run(fmt.Sprintf("%s/bf16=%t/%d/%s", k, bf16, tokens, mode), func(b *testing.B) {
						ws := NewWorkspace[float32](k)
						j.BF16 = bf16
						for b.Loop() {
							if err := ws.Small(&j); err != nil {
								b.Fatal(err)
							}
						}
						work := 2 * float64(j.M) * float64(j.N) * float64(j.K)
						b.ReportMetric(work*float64(b.N)/float64(b.Elapsed().Nanoseconds()), "GFLOP/s")
					})
				}
			}
		}
	}
}
