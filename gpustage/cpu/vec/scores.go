package vec

import "math"

// MaskRow sets s[j] to -Inf where ids[j] == id. A negative id masks nothing. This is one row of gpustage.Mask, for one of
// its equalities.
func (k *Kernels) MaskRow(s []float32, id int32, ids []int32) {
	if id >= 0 {
		k.maskRow(s, id, ids[:len(s)])
	}
}

// OnlineLSE folds scores into a running maximum and a running sum of exp(s - max), which start as -Inf and 0, and returns
// them (Milakov and Gimelshein, arXiv 1805.02867). They stay (-Inf, 0) while every score has been -Inf; a NaN among the
// scores makes the sum NaN.
func (k *Kernels) OnlineLSE(top, sum float32, s []float32) (float32, float32) {
	m := max(top, k.largest(s))
	if math.IsInf(float64(m), -1) {
		return m, sum + k.sumExp(s, 0) // 0, or NaN
	}
	return m, sum*expPortable(top-m) + k.sumExp(s, m)
}

// SoftmaxBackward is ds = scale * p * (dp - delta), for delta the sum of p*dp over the row: what a softmax's scores get,
// times the factor that they were scaled by.
func (k *Kernels) SoftmaxBackward(ds, p, dp []float32, delta, scale float32) {
	k.softmaxBackward(ds, p[:len(ds)], dp[:len(ds)], delta, scale)
}

func maskRowPortable(s []float32, id int32, ids []int32) {
	for j := range s {
		if ids[j] == id {
			s[j] = float32(math.Inf(-1))
		}
	}
}

func softmaxBackwardPortable(ds, p, dp []float32, delta, scale float32) {
	for i := range ds {
		ds[i] = scale * p[i] * (dp[i] - delta)
	}
}
