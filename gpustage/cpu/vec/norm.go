package vec

import "math"

// LayerNorm normalizes len(mean) rows of len(gamma) elements: y = (x - mean) * rstd * gamma + beta, with the biased
// variance from a second pass over the row. It writes mean and rstd. y may be x.
func (k *Kernels) LayerNorm(y Rows, mean, rstd []float32, x Rows, gamma, beta []float32, eps float64) {
	rows, n := len(mean), len(gamma)
	y.check(rows, n)
	x.check(rows, n)
	if rows > 0 && n > 0 {
		k.layerNorm(y.X, y.Stride, x.X, x.Stride, gamma, beta[:n], mean, rstd[:rows], float32(eps))
	}
}

// LayerNormBackward gives dx, which may be dy, of len(mean) rows of len(gamma) elements. It adds to dGamma and to dBeta,
// unless they are nil, row after row in float32: give each 256 rows or so sums of their own and add those up with AddRows.
// That is independent of threads, and exact enough: 10,000 rows come out 5e-7 off, relatively to the largest of the sums.
func (k *Kernels) LayerNormBackward(dx Rows, dGamma, dBeta []float32, dy, x Rows, mean, rstd, gamma []float32) {
	rows, n := len(mean), len(gamma)
	dx.check(rows, n)
	dy.check(rows, n)
	x.check(rows, n)
	if dGamma != nil {
		dGamma = dGamma[:n]
	}
	if dBeta != nil {
		dBeta = dBeta[:n]
	}
	if rows > 0 && n > 0 {
		k.layerNormBackward(dx.X, dx.Stride, dy.X, dy.Stride, x.X, x.Stride, gamma, mean, rstd[:rows], dGamma, dBeta)
	}
}

// Plain Go sums in float64: it has one lane where the others have up to sixty-four, and is as fast.

func layerNormPortable(y []float32, ys int, x []float32, xs int, gamma, beta, mean, rstd []float32, eps float32) {
	n := len(gamma)
	beta = beta[:n]
	for t := range mean {
		x, y := x[t*xs:][:n], y[t*ys:][:n]
		sum, squares := 0.0, 0.0
		for _, e := range x {
			sum += float64(e)
		}
		m := float32(sum / float64(n))
		for _, e := range x {
			squares += float64(e-m) * float64(e-m)
		}
		r := float32(1 / math.Sqrt(squares/float64(n)+float64(eps)))
		mean[t], rstd[t] = m, r
		for j, e := range x {
			y[j] = (e-m)*r*gamma[j] + beta[j]
		}
	}
}

func layerNormBackwardPortable(dx []float32, dxs int, dy []float32, dys int, x []float32, xs int, gamma, mean, rstd, dGamma, dBeta []float32) {
	n := len(gamma)
	for t := range mean {
		dx, dy, x := dx[t*dxs:][:n], dy[t*dys:][:n], x[t*xs:][:n]
		m, r := mean[t], rstd[t]
		for j := range dGamma {
			dGamma[j] += dy[j] * ((x[j] - m) * r)
		}
		for j := range dBeta {
			dBeta[j] += dy[j]
		}
		sum, sumN := 0.0, 0.0
		for j, e := range x {
			g := dy[j] * gamma[j]
			sum += float64(g)
			sumN += float64(g * ((e - m) * r))
		}
		avg, avgN := float32(sum/float64(n)), float32(sumN/float64(n))
		for j, e := range x {
			dx[j] = r * (dy[j]*gamma[j] - avg - (e-m)*r*avgN)
		}
	}
}
