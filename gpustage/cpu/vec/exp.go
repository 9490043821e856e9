package vec

import (
	"math"

	"contraflow/gpustage/cpu/vec/internal/coef"
)

// Exp is y = exp(x), at most 1.5 units in the last place off; 0 where it is below 2^-126, and infinite beyond the largest
// float32.
func (k *Kernels) Exp(y, x []float32) { k.expScale(y, x[:len(y)], 0, 1) }

// ExpScale is y = w * exp(x - shift): with shift a row's log-sum-exp, a row of w times a softmax.
func (k *Kernels) ExpScale(y, x []float32, shift, w float32) {
	k.expScale(y, x[:len(y)], shift, w)
}

// ExpSum is y = exp(x - shift), and returns the sum of y.
func (k *Kernels) ExpSum(y, x []float32, shift float32) float32 {
	return k.expSum(y, x[:len(y)], shift)
}

// SumExp is the sum of exp(x - shift).
func (k *Kernels) SumExp(x []float32, shift float32) float32 { return k.sumExp(x, shift) }

// exp64 is the exponential of -700 to 700, 1e-8 off at most: far below half a unit in the last place of a float32, and in
// fewer operations than math.Exp.
func exp64(x float64) float64 {
	const magic = 1.5 * (1 << 52) // adding it rounds to an integer
	n := x*coef.Log2E + magic - magic
	r := x - n*math.Ln2
	p := 1 + r*(1+r*(1./2+r*(1./6+r*(1./24+r*(1./120+r*(1./720+r*(1./5040)))))))
	return p * math.Float64frombits(uint64(1023+int64(n))<<52)
}

func expPortable(x float32) float32 {
	switch {
	case x < coef.ExpMin:
		return 0
	case x > coef.ExpMax:
		return float32(math.Inf(1))
	case x != x:
		return x
	}
	return float32(exp64(float64(x)))
}

func expScalePortable(y, x []float32, shift, w float32) {
	for i := range y {
		y[i] = w * expPortable(x[i]-shift)
	}
}

func expSumPortable(y, x []float32, shift float32) float32 {
	for i := range y {
		y[i] = expPortable(x[i] - shift)
	}
	return sumPortable(y)
}

func sumExpPortable(x []float32, shift float32) float32 {
	sum := float32(0)
	for _, v := range x {
		sum += expPortable(v - shift)
	}
	return sum
}
