package vec

import (
	"math/rand/v2"
	"testing"

	"contraflow/gpustage"
)

// bench reports elements per nanosecond of f, which does n of them.
func bench(b *testing.B, what string, n int, f func()) {
	b.Run(what, func(b *testing.B) {
		for b.Loop() {
			f()
		}
		b.ReportMetric(float64(n)*float64(b.N)/float64(b.Elapsed().Nanoseconds()), "elements/ns")
	})
}

func random(n int) []float32 {
	rng := rand.New(rand.NewPCG(1, 2))
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	return x
}

func forEachBench(b *testing.B, f func(b *testing.B, k *Kernels)) {
	for _, name := range Available() {
		k, _ := Select(name)
		b.Run(name, func(b *testing.B) { f(b, k) })
	}
}

// BenchmarkKernels runs on rows that stay in the first-level cache: 2,048 elements, and layer norms of 4 rows of 384.
func BenchmarkKernels(b *testing.B) {
	forEachBench(b, func(b *testing.B, k *Kernels) {
		const n = 2048
		x, y, z, v := random(n), random(n), random(n), random(n)
		for i := range v {
			v[i] *= v[i]
		}
		bench(b, "Add", n, func() { k.Add(y, x, z) })
		bench(b, "Mul", n, func() { k.Mul(y, x, z) })
		bench(b, "MulAdd", n, func() { k.MulAdd(y, x, z, 1e-9) })
		bench(b, "Rotate", n, func() { k.Rotate(y[:n/2], y[n/2:], x[:n/2], x[n/2:], z[:n/2], z[n/2:]) })
		bench(b, "Axpy", n, func() { k.Axpy(y, x, 1e-9) })
		bench(b, "Scale", n, func() { k.Scale(y, x, 2) })
		bench(b, "Axpby", n, func() { k.Axpby(y, x, z, 2, 3) })
		bench(b, "AddRows", n, func() { k.AddRows(y[:n/8], Rows{x, n / 8}, 8) })
		bench(b, "Dot", n, func() { k.Dot(x, z) })
		bench(b, "SumSquares", n, func() { k.SumSquares(x) })
		bench(b, "Max", n, func() { k.Max(x) })
		bench(b, "Normalize", n, func() { k.Normalize(y, x) })
		bench(b, "NormalizeBackward", n, func() { k.NormalizeBackward(y, z, x, 1) })
		bench(b, "Exp", n, func() { k.Exp(y, x) })
		bench(b, "ExpSum", n, func() { k.ExpSum(y, x, 1) })
		bench(b, "SumExp", n, func() { k.SumExp(x, 1) })
		bench(b, "ExpScale", n, func() { k.ExpScale(y, x, 1, 2) })
		bench(b, "SoftmaxBackward", n, func() { k.SoftmaxBackward(y, x, z, 1, 2) })
		ids := make([]int32, n)
		for i := range ids {
			ids[i] = int32(i % 17)
		}
		bench(b, "MaskRow", n, func() { k.MaskRow(y, 3, ids) })
		for f := gpustage.GELU; f < activations; f++ {
			bench(b, "Act/"+f.String(), n, func() { k.Act(f, y, x) })
			bench(b, "ActBackward/"+f.String(), n, func() { k.ActBackward(f, y, z, x) })
		}
		d := NewDropout(gpustage.Dropout{P: 0.1})
		bench(b, "Dropout", n, func() { k.Dropout(y, x, z, 0, d) })
		bench(b, "Dropout/384", 384, func() { k.Dropout(y[:384], x, z, 0, d) })
		bench(b, "Dropout/39", 39, func() { k.Dropout(y[:39], x, nil, 0, d) })
		h := gpustage.AdamW{LR: 1e-3, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, Step: 9, GradScale: 1}
		bench(b, "AdamW", n, func() { k.AdamW(x, y, v, z, h) })
		bench(b, "SGD", n, func() { k.SGD(x, y, z, gpustage.SGD{LR: 1e-9, Momentum: 0.1, GradScale: 1}) })
		half := make([]uint16, n)
		bench(b, "ToBF16", n, func() { k.ToBF16(half, z) })
		bench(b, "FromBF16", n, func() { k.FromBF16(y, half) })
		const rows, c = 4, 384
		mean, rstd, sums := make([]float32, rows), make([]float32, rows), make([]float32, 2*c)
		in, out, up := Rows{random(rows * c), c}, Rows{random(rows * c), c}, Rows{random(rows * c), c}
		bench(b, "LayerNorm", rows*c, func() { k.LayerNorm(out, mean, rstd, in, z[:c], z[c:], 1e-12) })
		bench(b, "LayerNormBackward", rows*c, func() { k.LayerNormBackward(out, sums[:c], sums[c:], up, in, mean, rstd, z[:c]) })
	})
}

// BenchmarkStep runs on what a training step of MiniLM-L6 has: 8,704 tokens of 384 features, 1,536 in the feed-forward layer, and
// 13 million parameters. Most of it is memory traffic.
func BenchmarkStep(b *testing.B) {
	forEachBench(b, func(b *testing.B, k *Kernels) {
		const tokens, c, f = 8704, 384, 1536
		x, y, z, w := random(tokens*f), random(tokens*f), random(tokens*f), random(tokens*f)
		for i := range w {
			w[i] *= w[i]
		}
		bench(b, "gelu", tokens*f, func() { k.Act(gpustage.GELU, y, x) })
		bench(b, "geluBackward", tokens*f, func() { k.ActBackward(gpustage.GELU, y, z, x) })
		mean, rstd, sums := make([]float32, tokens), make([]float32, tokens), make([]float32, 2*c)
		bench(b, "LayerNorm", tokens*c, func() { k.LayerNorm(Rows{y, c}, mean, rstd, Rows{x, c}, z[:c], z[c:2*c], 1e-12) })
		bench(b, "LayerNormBackward", tokens*c, func() {
			k.LayerNormBackward(Rows{y, c}, sums[:c], sums[c:], Rows{z, c}, Rows{x, c}, mean, rstd, z[:c])
		})
		bench(b, "AddRows", tokens*f, func() { k.AddRows(sums, Rows{x, f}, tokens) })
		h := gpustage.AdamW{LR: 1e-3, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, Step: 9, GradScale: 1}
		bench(b, "AdamW", tokens*f, func() { k.AdamW(x, y, w, z, h) })
		bench(b, "SumSquares", tokens*f, func() { k.SumSquares(x) })
	})
}
