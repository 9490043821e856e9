package vec

import (
	"math"
	"testing"

	"contraflow/gpustage"
)

func TestAdamW(t *testing.T) {
	forEach(t, func(t *testing.T, k *Kernels) {
		b := newBed(t)
		h := gpustage.AdamW{LR: 1e-2, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.1, GradScale: 0.5}
		for _, n := range lengths {
			p, g := b.row(n, nil), b.row(n, nil)
			m := b.row(n, func() float32 { return 0.1 * b.normal() })
			v := b.row(n, func() float32 { return 0.01 * b.rng.Float32() })
			if n > 3 {
				g[n/2], m[n/2], v[n/2] = 0, 0, 0 // a parameter that is not used only decays
			}
			P, M, V := widen(p), widen(m), widen(v)
			for h.Step = 1; h.Step <= 3; h.Step++ {
				k.AdamW(p, m, v, g, h)
				for i := range P { // as gpustage.AdamW writes it
					g := h.GradScale * float64(g[i])
					P[i] -= h.LR * h.WeightDecay * P[i]
					M[i] = h.Beta1*M[i] + (1-h.Beta1)*g
					V[i] = h.Beta2*V[i] + (1-h.Beta2)*g*g
					P[i] -= h.LR * (M[i] / (1 - math.Pow(h.Beta1, float64(h.Step)))) / (math.Sqrt(V[i]/(1-math.Pow(h.Beta2, float64(h.Step)))) + h.Eps)
				}
			}
			near(t, "p", p, func(i int) float64 { return P[i] }, 4)
			near(t, "m", m, func(i int) float64 { return M[i] }, 2)
			near(t, "v", v, func(i int) float64 { return V[i] }, 2)
			b.check()
		}
	})
}

// A decay of 4e-8 a step, a third of a unit in p's last place, must not be lost: it is added to the rest of the step before
// p is rounded, and then rounds up as often as it should.
func TestAdamWSmallDecay(t *testing.T) {
	forEach(t, func(t *testing.T, k *Kernels) {
		const n, steps = 4096, 200
		b := newBed(t)
		p := b.row(n, func() float32 { return 1 + 0.25*b.rng.Float32() })
		before := widen(p)
		for step := range steps {
			g := b.row(n, func() float32 { return 1e-3 * b.normal() })
			m, v := make([]float32, n), make([]float32, n)
			k.AdamW(p, m, v, g, gpustage.AdamW{LR: 1e-5, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 4e-3, Step: step + 1, GradScale: 1})
			for i := range before { // the gradient's part, as float64 has it
				m := 0.1 * float64(g[i]) / (1 - math.Pow(0.9, float64(step+1)))
				v := 0.001 * float64(g[i]) * float64(g[i]) / (1 - math.Pow(0.999, float64(step+1)))
				before[i] -= 1e-5 * m / (math.Sqrt(v) + 1e-8)
			}
			b.floats = nil
		}
		lost, want := 0.0, 0.0
		for i := range p {
			lost += before[i] - float64(p[i])
			want += before[i] * 4e-8 * steps
		}
		t.Logf("decay %.4f of what it should be", lost/want)
		if !(math.Abs(lost/want-1) <= 0.05) {
			t.Error("want within 0.05 of 1")
		}
	})
}

func TestSGD(t *testing.T) {
	forEach(t, func(t *testing.T, k *Kernels) {
		b := newBed(t)
		for _, n := range lengths {
			for _, momentum := range []float64{0, 0.9} {
				h := gpustage.SGD{LR: 0.1, Momentum: momentum, WeightDecay: 0.01, GradScale: 2}
				p, g := b.row(n, nil), b.row(n, nil)
				var v []float32
				if momentum != 0 {
					v = b.row(n, nil)
				}
				P, V := widen(p), widen(v)
				k.SGD(p, v, g, h)
				for i := range P {
					d := 2*float64(g[i]) + 0.01*P[i]
					if v != nil {
						V[i] = 0.9*V[i] + d
						d = V[i]
					}
					P[i] -= 0.1 * d
				}
				near(t, "p", p, func(i int) float64 { return P[i] }, 1)
				near(t, "v", v, func(i int) float64 { return V[i] }, 2)
				b.check()
			}
		}
	})
}
