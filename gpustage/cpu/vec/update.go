package vec

import (
	"math"

	"contraflow/gpustage"
)

// AdamW updates parameters and moments, of p's length, from gradients. Arithmetic is in float32; what a parameter
// loses is added up before it is subtracted, so p is rounded once.
func (k *Kernels) AdamW(p, m, v, g []float32, h gpustage.AdamW) {
	n := len(p)
	c1 := 1 - math.Pow(h.Beta1, float64(h.Step))
	c2 := 1 - math.Pow(h.Beta2, float64(h.Step))
	k.adamW(p, m[:n], v[:n], g[:n], float32(h.GradScale), float32(h.Beta1), float32(1-h.Beta1), float32(h.Beta2), float32(1-h.Beta2),
		float32(1/math.Sqrt(c2)), float32(h.Eps), float32(h.LR/c1), float32(h.LR*h.WeightDecay))
}

// SGD updates parameters from gradients, and with momentum its buffer v, which is otherwise nil.
func (k *Kernels) SGD(p, v, g []float32, h gpustage.SGD) {
	if v != nil {
		v = v[:len(p)]
	}
	k.sgd(p, v, g[:len(p)], float32(h.GradScale), float32(h.Momentum), float32(h.LR), float32(h.WeightDecay))
}

func adamWPortable(p, m, v, g []float32, gradScale, beta1, rest1, beta2, rest2, correct2, eps, lr, decay float32) {
	for i := range p {
		g := gradScale * g[i]
		m[i] = beta1*m[i] + rest1*g
		v[i] = beta2*v[i] + rest2*(g*g)
		step := lr * m[i] / (correct2*float32(math.Sqrt(float64(v[i]))) + eps)
		p[i] -= step + decay*p[i]
	}
}

func sgdPortable(p, v, g []float32, gradScale, momentum, lr, decay float32) {
	for i := range p {
		d := gradScale*g[i] + decay*p[i]
		if v != nil {
			d += momentum * v[i]
			v[i] = d
		}
		p[i] -= lr * d
	}
}
