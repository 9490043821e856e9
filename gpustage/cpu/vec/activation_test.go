package vec

import (
	"math"
	"testing"

	"contraflow/gpustage"
)

// The definitions, in float64, and the derivatives. At infinity both are their limits but for x times 0, which is NaN.
var (
	actTruth = [activations]func(x float64) float64{
		gpustage.Identity: func(x float64) float64 { return x },
		gpustage.GELU:     func(x float64) float64 { return x * 0.5 * math.Erfc(-x/math.Sqrt2) },
		gpustage.GELUTanh: func(x float64) float64 {
			// (1 + tanh(u))/2, without cancelling for negative u.
			return x / (1 + math.Exp(-2*math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
		},
		gpustage.ReLU: func(x float64) float64 { return max(x, 0) },
		gpustage.SiLU: func(x float64) float64 { return x / (1 + math.Exp(-x)) },
		gpustage.Tanh: math.Tanh,
	}
	gradTruth = [activations]func(x float64) float64{
		gpustage.Identity: func(x float64) float64 { return 1 },
		gpustage.GELU: func(x float64) float64 {
			x = max(-40, min(x, 40))
			return 0.5*math.Erfc(-x/math.Sqrt2) + x*math.Exp(-x*x/2)/math.Sqrt(2*math.Pi)
		},
		gpustage.GELUTanh: func(x float64) float64 {
			x = max(-20, min(x, 20))
			a, b := math.Sqrt(2/math.Pi), 0.044715
			t := math.Tanh(a * (x + b*x*x*x))
			return 0.5*(1+t) + 0.5*x*(1-t*t)*a*(1+3*b*x*x)
		},
		gpustage.ReLU: func(x float64) float64 {
			if x > 0 {
				return 1
			}
			return 0
		},
		gpustage.SiLU: func(x float64) float64 {
			x = max(-200, min(x, 200))
			s := 1 / (1 + math.Exp(-x))
			return s * (1 + x*(1-s))
		},
		gpustage.Tanh: func(x float64) float64 { t := math.Tanh(x); return 1 - t*t },
	}
)

func TestActivations(t *testing.T) {
	xs := sweep()
	for x := -20.0; x < 20; x += 1e-3 {
		xs = append(xs, float32(x))
	}
	ys, dy := make([]float32, len(xs)), make([]float32, len(xs))
	want, wantGrad := make([]float64, len(xs)), make([]float64, len(xs))
	for i := range dy {
		dy[i] = 1
	}
	for f := range activations {
		for i, x := range xs {
			want[i], wantGrad[i] = actTruth[f](float64(x)), gradTruth[f](float64(x))
		}
		forEach(t, func(t *testing.T, k *Kernels) {
			k.Act(f, ys, xs)
			forward := near(t, f.String(), ys, func(i int) float64 { return want[i] }, 1)
			k.ActBackward(f, ys, dy, xs)
			backward := near(t, f.String()+" backward", ys, func(i int) float64 { return wantGrad[i] }, 4)
			t.Logf("%v: at most %.2f units off, backward %.2f", f, forward, backward)
		})
	}
}

// GELU and SiLU of negative numbers are small: they are exact relatively to themselves, too, as far as exp(-x*x/2) is a
// normal number. A relative error of x*x/2 * 2^-24 comes of rounding the exponent.
func TestTails(t *testing.T) {
	forEach(t, func(t *testing.T, k *Kernels) {
		for _, c := range []struct {
			f    gpustage.Activation
			from float64
			tol  float64
		}{{gpustage.GELU, -13, 100}, {gpustage.GELUTanh, -9.9, 100}, {gpustage.SiLU, -87, 8}, {gpustage.Tanh, -20, 12}} {
			worst := 0.0
			for x := c.from; x < -1e-3; x += 1e-3 {
				in, out := []float32{float32(x)}, []float32{0}
				k.Act(c.f, out, in)
				w := actTruth[c.f](float64(in[0]))
				worst = max(worst, math.Abs(float64(out[0])/w-1)/eps)
			}
			t.Logf("%v: at most %.1f units off relatively, from %v to 0", c.f, worst, c.from)
			if !(worst <= c.tol) {
				t.Errorf("want at most %v", c.tol)
			}
		}
	})
}

func TestActivationRows(t *testing.T) {
	forEach(t, func(t *testing.T, k *Kernels) {
		b := newBed(t)
		for _, n := range lengths {
			x, dy := b.row(n, func() float32 { return 3 * b.normal() }), b.row(n, nil)
			for f := range activations {
				y, in := b.row(n, nil), b.copy(x)
				want := func(i int) float64 { return actTruth[f](float64(x[i])) }
				k.Act(f, y, x)
				k.Act(f, in, in)
				near(t, f.String(), y, want, 3)
				near(t, f.String()+" in place", in, want, 3)

				want = func(i int) float64 { return float64(dy[i]) * gradTruth[f](float64(x[i])) }
				dx, dIn := b.row(n, nil), b.copy(dy)
				k.ActBackward(f, dx, dy, x)
				k.ActBackward(f, dIn, dIn, x)
				near(t, f.String()+" backward", dx, want, 12)
				near(t, f.String()+" backward in place", dIn, want, 12)
			}
			b.check()
		}
	})
}
