package vec

import (
	"math"
	"testing"
)

// normTruth is a layer norm and its backward in float64.
type normTruth struct {
	y, dx         [][]float64
	mean, rstd    []float64
	dGamma, dBeta []float64
}

func layerNormTruth(x, dy Rows, rows int, gamma, beta []float32, epsilon float64) normTruth {
	n := len(gamma)
	r := normTruth{dGamma: make([]float64, n), dBeta: make([]float64, n)}
	for t := range rows {
		x, dy := widen(x.Row(t, n)), widen(dy.Row(t, n))
		mean, variance := 0.0, 0.0
		for _, v := range x {
			mean += v / float64(n)
		}
		for _, v := range x {
			variance += (v - mean) * (v - mean) / float64(n)
		}
		rstd := 1 / math.Sqrt(variance+epsilon)
		y, dx := make([]float64, n), make([]float64, n)
		avg, avgN := 0.0, 0.0
		for j := range x {
			norm := (x[j] - mean) * rstd
			y[j] = norm*float64(gamma[j]) + float64(beta[j])
			r.dGamma[j] += dy[j] * norm
			r.dBeta[j] += dy[j]
			avg += dy[j] * float64(gamma[j]) / float64(n)
			avgN += dy[j] * float64(gamma[j]) * norm / float64(n)
		}
		for j := range x {
			dx[j] = rstd * (dy[j]*float64(gamma[j]) - avg - (x[j]-mean)*rstd*avgN)
		}
		r.mean, r.rstd = append(r.mean, mean), append(r.rstd, rstd)
		r.y, r.dx = append(r.y, y), append(r.dx, dx)
	}
	return r
}

func TestLayerNorm(t *testing.T) {
	forEach(t, func(t *testing.T, k *Kernels) {
		b := newBed(t)
		for _, n := range lengths {
			if n == 0 {
				continue
			}
			for _, rows := range []int{0, 1, 2, 5} {
				gap := b.rng.IntN(2) * 3
				matrix := func(value func() float32) Rows {
					return Rows{X: b.row(max(0, rows*(n+gap)-gap), value), Stride: n + gap}
				}
				x, dy := matrix(func() float32 { return 3 + 2*b.normal() }), matrix(nil)
				y, dx := matrix(nil), matrix(nil)
				between := b.copy(y.X)
				gamma, beta := b.row(n, nil), b.row(n, nil)
				mean, rstd := b.row(rows, nil), b.row(rows, nil)
				dGamma, dBeta := b.row(n, nil), b.row(n, nil)
				wasG, wasB := widen(dGamma), widen(dBeta)
				const epsilon = 1e-5
				want := layerNormTruth(x, dy, rows, gamma, beta, epsilon)

				k.LayerNorm(y, mean, rstd, x, gamma, beta, epsilon)
				k.LayerNormBackward(dx, dGamma, dBeta, dy, x, mean, rstd, gamma)
				for t := range rows { // of few columns the deviation may be small, and what is rounded is divided by it
					tol := 16 * max(1, want.rstd[t])
					near(b.t, "y", y.Row(t, n), func(j int) float64 { return want.y[t][j] }, tol)
					near(b.t, "dx", dx.Row(t, n), func(j int) float64 { return want.dx[t][j] }, 4*tol*max(1, want.rstd[t]))
					near(b.t, "mean", mean[t:t+1], func(int) float64 { return want.mean[t] }, 2)
					near(b.t, "rstd", rstd[t:t+1], func(int) float64 { return want.rstd[t] }, 4*tol)
					for j := n; j < n+gap && t < rows-1; j++ {
						if y.X[t*y.Stride+j] != between[t*y.Stride+j] {
							b.t.Fatalf("between rows %d and %d something was written", t, t+1)
						}
					}
				}
				near(t, "dGamma", dGamma, func(j int) float64 { return wasG[j] + want.dGamma[j] }, 400)
				near(t, "dBeta", dBeta, func(j int) float64 { return wasB[j] + want.dBeta[j] }, 8)

				// In place, and without one of the sums or both.
				again := Rows{b.copy(dy.X), dy.Stride}
				k.LayerNormBackward(again, nil, nil, again, x, mean, rstd, gamma)
				alone := [2][]float32{b.row(n, func() float32 { return 0 }), b.row(n, func() float32 { return 0 })}
				k.LayerNormBackward(dx, alone[0], nil, dy, x, mean, rstd, gamma)
				k.LayerNormBackward(dx, nil, alone[1], dy, x, mean, rstd, gamma)
				near(t, "dGamma alone", alone[0], func(j int) float64 { return want.dGamma[j] }, 400)
				near(t, "dBeta alone", alone[1], func(j int) float64 { return want.dBeta[j] }, 8)
				in := Rows{b.copy(x.X), x.Stride}
				k.LayerNorm(in, mean, rstd, in, gamma, beta, epsilon)
				for t := range rows {
					if i := bitsEqual(again.Row(t, n), dx.Row(t, n)); i >= 0 {
						b.t.Fatalf("dx in place without dGamma: %d of %d differs", i, n)
					}
					if i := bitsEqual(in.Row(t, n), y.Row(t, n)); i >= 0 {
						b.t.Fatalf("y in place: %d of %d differs", i, n)
					}
				}
				b.check()
			}
		}
	})
}

// Ten thousand rows, summed as the comment of LayerNormBackward says, against float64, by the measure of the gradient contract:
// the largest difference over the tensor's largest value, which has to be below 1e-5.
func TestLayerNormManyRows(t *testing.T) {
	const rows, n, chunk = 10000, 48, 256
	forEach(t, func(t *testing.T, k *Kernels) {
		b := newBed(t)
		for _, bias := range []float32{0, 0.5} { // gradients that cancel, and that add up
			x := Rows{b.row(rows*n, nil), n}
			dy := Rows{b.row(rows*n, func() float32 { return bias + b.normal() }), n}
			dx := Rows{b.row(rows*n, nil), n}
			gamma, beta, mean, rstd := b.row(n, nil), b.row(n, nil), b.row(rows, nil), b.row(rows, nil)
			want := layerNormTruth(x, dy, rows, gamma, beta, 1e-12)
			k.LayerNorm(Rows{b.row(rows*n, nil), n}, mean, rstd, x, gamma, beta, 1e-12)
			chunks := (rows + chunk - 1) / chunk
			parts := Rows{make([]float32, chunks*2*n), 2 * n}
			for c := range chunks {
				lo, hi := c*chunk, min(rows, (c+1)*chunk)
				sums := parts.Row(c, 2*n)
				from := func(r Rows) Rows { return Rows{r.X[lo*n:], n} }
				k.LayerNormBackward(from(dx), sums[:n], sums[n:], from(dy), from(x), mean[lo:hi], rstd[lo:hi], gamma)
			}
			total := make([]float32, 2*n)
			k.AddRows(total, parts, chunks)
			for i, w := range [][]float64{want.dGamma, want.dBeta} {
				worst, largest := 0.0, 0.0
				for j := range w {
					worst = max(worst, math.Abs(float64(total[i*n+j])-w[j]))
					largest = max(largest, math.Abs(w[j]))
				}
				t.Logf("offset %v, %s: error %.2g", bias, []string{"dGamma", "dBeta"}[i], worst/largest)
				if !(worst/largest <= 1e-6) {
					t.Error("want below 1e-6")
				}
			}
			b.check()
		}
	})
}

func TestNormalize(t *testing.T) {
	forEach(t, func(t *testing.T, k *Kernels) {
		tiny := make([]float32, 2) // what is shorter than 1e-12 is divided by that
		if norm := k.Normalize(tiny, []float32{3e-13, -4e-13}); norm != 1e-12 {
			t.Errorf("a vector of length 5e-13 is divided by %v", norm)
		}
		near(t, "a tiny vector", tiny, func(i int) float64 { return []float64{0.3, -0.4}[i] }, 2)
		b := newBed(t)
		for _, n := range lengths {
			for _, zero := range []bool{false, true} {
				x, dy := b.row(n, func() float32 { return b.normal() + 0.1 }), b.row(n, nil)
				if zero {
					clear(x)
				}
				sum := 0.0
				for _, v := range x {
					sum += float64(v) * float64(v)
				}
				size := max(math.Sqrt(sum), 1e-12)
				y, dx := b.row(n, nil), b.row(n, nil)
				norm := k.Normalize(y, x)
				near(t, "norm", []float32{norm}, func(int) float64 { return size }, 1)
				near(t, "normalized", y, func(i int) float64 { return float64(x[i]) / size }, 2)
				dot := 0.0
				for i := range y {
					dot += float64(dy[i]) * float64(y[i])
				}
				k.NormalizeBackward(dx, dy, y, norm)
				want := func(i int) float64 { return (float64(dy[i]) - float64(y[i])*dot) / float64(norm) }
				near(t, "normalized backward", dx, want, 4/min(1, float64(norm)))
				k.NormalizeBackward(dy, dy, y, norm)
				if i := bitsEqual(dy, dx); i >= 0 {
					t.Fatalf("normalized backward in place: %d of %d differs", i, n)
				}
				k.Normalize(x, x)
				if i := bitsEqual(x, y); i >= 0 {
					t.Fatalf("normalized in place: %d of %d differs", i, n)
				}
				b.check()
			}
		}
	})
}
