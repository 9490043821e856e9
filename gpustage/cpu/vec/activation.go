package vec

import (
	"math"

	"contraflow/gpustage"
	"contraflow/gpustage/cpu/vec/internal/coef"
)

// activations is how many of gpustage's activations there are.
const activations = gpustage.Tanh + 1

// Act is y = f(x), less than one unit of 2^-23 * (1 + |y|) off. GELU is x*Phi(x) with the tail of Phi as an exponential
// times a quotient of polynomials, so that for negative x nothing cancels, as with erf it would.
func (k *Kernels) Act(f gpustage.Activation, y, x []float32) {
	x = x[:len(y)]
	if f == gpustage.Identity {
		copy(y, x)
		return
	}
	k.act[f](y, x)
}

// ActBackward is dx = dy * f'(x), with f'(x) less than 4 units of 2^-23 * (1 + |f'(x)|) off.
func (k *Kernels) ActBackward(f gpustage.Activation, dx, dy, x []float32) {
	dy, x = dy[:len(dx)], x[:len(dx)]
	if f == gpustage.Identity {
		copy(dx, dy)
		return
	}
	k.actBackward[f](dx, dy, x)
}

// pointwise makes a row's function, and its backward, of a number's.
func pointwise(f func(x float64) float64) func(y, x []float32) {
	return func(y, x []float32) {
		for i := range y {
			y[i] = float32(f(float64(x[i])))
		}
	}
}

func pointwiseBackward(f func(x float64) float64) func(dx, dy, x []float32) {
	return func(dx, dy, x []float32) {
		for i := range dx {
			dx[i] = float32(float64(dy[i]) * f(float64(x[i])))
		}
	}
}

// clamp is x within -limit to limit; NaN stays.
func clamp(x, limit float64) float64 { return max(-limit, min(x, limit)) }

// tail is exp(-a*a/2), and what it is multiplied by for Phi(-a), for a = |x| or TailMax.
func tail(x float64) (a, e, q float64) {
	a = min(math.Abs(x), coef.TailMax)
	if a <= coef.TailEnd || x != x {
		e = exp64(-a * a / 2)
	}
	n, d := &coef.TailN, &coef.TailD
	num := float64(n[0]) + a*(float64(n[1])+a*(float64(n[2])+a*(float64(n[3])+a*float64(n[4]))))
	den := 1 + a*(float64(d[1])+a*(float64(d[2])+a*(float64(d[3])+a*(float64(d[4])+a*float64(d[5])))))
	return a, e, num / den
}

func gelu(x float64) float64 {
	_, e, q := tail(x)
	if phi := e * q; x < 0 {
		return x * phi
	} else {
		return x * (1 - phi)
	}
}

func geluGrad(x float64) float64 { // Phi(x) + x*phi(x)
	a, e, q := tail(x)
	if g := e * (q - a*coef.Phi0); x < 0 {
		return g
	} else {
		return 1 - g
	}
}

// expAny is exp64 for any number.
func expAny(x float64) float64 {
	if x > 700 {
		return math.Inf(1)
	}
	return exp64(max(x, -700))
}

func geluTanh(x float64) float64 {
	return x / (1 + expAny(-x*(coef.Tanh1+coef.Tanh3*x*x)))
}

func geluTanhGrad(x float64) float64 {
	x = clamp(x, 10) // beyond, it is 0 or 1
	e := exp64(-x * (coef.Tanh1 + coef.Tanh3*x*x))
	s := 1 / (1 + e)
	return s * (1 + x*(coef.Tanh1+3*coef.Tanh3*x*x)*e*s)
}

func silu(x float64) float64 { return x / (1 + expAny(-x)) }

func siluGrad(x float64) float64 {
	x = clamp(x, 87) // beyond, it is 0 or 1
	e := exp64(-x)
	s := 1 / (1 + e)
	return s * (1 + x*e*s)
}

func tanhGrad(x float64) float64 {
	t := math.Tanh(x)
	return 1 - t*t
}

func reluPortable(y, x []float32) {
	for i := range y {
		y[i] = max(x[i], 0)
	}
}

func reluBackwardPortable(dx, dy, x []float32) {
	for i := range dx {
		if x[i] > 0 {
			dx[i] = dy[i]
		} else {
			dx[i] = 0
		}
	}
}
