package vec

import (
	"math"
	"testing"

	"contraflow/gpustage/cpu/vec/internal/coef"
)

// sweep is float32s of every exponent and sign, NaN and infinities included: every 3,989th bit pattern, and the neighbours
// of some that matter.
func sweep() []float32 {
	var xs []float32
	for bits := uint64(0); bits < 1<<32; bits += 3989 {
		xs = append(xs, math.Float32frombits(uint32(bits)))
	}
	for _, v := range []float64{0, coef.ExpMin, coef.ExpMax, coef.TailEnd, -coef.TailEnd, 10, -10, 87, -87, 88, -88, 1, -1, 1e4, -1e4, 3e38, -3e38,
		math.MaxFloat32, -math.MaxFloat32, math.Inf(1), math.Inf(-1), math.NaN(), 1e-45, -1e-45, math.Copysign(0, -1)} {
		for d := range 5 {
			xs = append(xs, math.Float32frombits(math.Float32bits(float32(v))+uint32(d)-2))
		}
	}
	return xs
}

// ulp is the spacing of float32s at v, a normal number.
func ulp(v float64) float64 {
	_, e := math.Frexp(v)
	return math.Ldexp(1, e-24)
}

func TestExp(t *testing.T) {
	xs := sweep()
	ys := make([]float32, len(xs))
	forEach(t, func(t *testing.T, k *Kernels) {
		k.Exp(ys, xs)
		worst, where := 0.0, float32(0)
		for i, x := range xs {
			got, want := float64(ys[i]), math.Exp(float64(x))
			switch {
			case x != x:
				if got == got {
					t.Fatalf("exp(NaN) is %v", got)
				}
			case x > coef.ExpMax || x < coef.ExpMin:
				if flushed := math.Inf(1); x > 0 && got != flushed || x < 0 && got != 0 {
					t.Fatalf("exp(%v) is %v", x, got)
				}
			default:
				if e := math.Abs(got-want) / ulp(want); !(e <= worst) {
					worst, where = e, x
				}
			}
		}
		t.Logf("at most %.3f units in the last place off, at %v", worst, where)
		if !(worst <= 1.5) {
			t.Error("want at most 1.5")
		}
	})
}

func TestExpRows(t *testing.T) {
	forEach(t, func(t *testing.T, k *Kernels) {
		b := newBed(t)
		for _, n := range lengths {
			// Scores as the loss has them, one of them excluded.
			x := b.row(n, func() float32 { return 30 * b.normal() })
			if n > 2 {
				x[n/2] = float32(math.Inf(-1))
			}
			shift := k.Max(x)
			want := func(i int) float64 { return math.Exp(float64(x[i] - shift)) }
			total := 0.0
			for i := range x {
				total += want(i)
			}
			y := b.row(n, nil)
			sum := k.ExpSum(y, x, shift)
			near(t, "exponentials", y, want, 2)
			near(t, "their sum, and the sum alone", []float32{sum, k.SumExp(x, shift)}, func(int) float64 { return total }, 4)
			k.ExpScale(y, x, shift, -0.75)
			near(t, "scaled", y, func(i int) float64 { return -0.75 * want(i) }, 2)
			in := b.copy(x)
			k.ExpSum(in, in, shift)
			near(t, "in place", in, want, 2)
			in = b.copy(x)
			k.ExpScale(in, in, shift, 1)
			near(t, "scaled in place", in, want, 2)
			b.check()
		}
		// A shift that is not the maximum: what overflows is infinite.
		y := make([]float32, 40)
		x := make([]float32, 40)
		for i := range x {
			x[i] = float32(i) * 5
		}
		k.ExpScale(y, x, 10, 2)
		near(t, "large", y, func(i int) float64 { return 2 * math.Exp(float64(i)*5-10) }, 4)
	})
}

func TestOnlineLSE(t *testing.T) {
	inf := float32(math.Inf(-1))
	forEach(t, func(t *testing.T, k *Kernels) {
		b := newBed(t)
		for _, n := range lengths {
			for _, piece := range []int{1, 13, 64} {
				x := b.row(n, func() float32 {
					if b.rng.IntN(4) == 0 {
						return inf
					}
					return 30 * b.normal()
				})
				top, sum := inf, float32(0)
				for lo := 0; lo < n; lo += piece {
					top, sum = k.OnlineLSE(top, sum, x[lo:min(n, lo+piece)])
				}
				wantTop, wantSum := math.Inf(-1), 0.0
				for _, v := range x {
					wantTop = max(wantTop, float64(v))
				}
				if !math.IsInf(wantTop, -1) {
					for _, v := range x {
						wantSum += math.Exp(float64(v) - wantTop)
					}
				}
				if float64(top) != wantTop || !(math.Abs(float64(sum)-wantSum) <= 16*eps*wantSum) {
					t.Fatalf("%d scores in pieces of %d: %v, %v, want %v, %v", n, piece, top, sum, wantTop, wantSum)
				}
			}
		}
		for _, bad := range [][]float32{{inf, float32(math.NaN())}, {1, float32(math.NaN()), 2}} {
			if _, sum := k.OnlineLSE(inf, 0, bad); sum == sum {
				t.Errorf("the sum over %v is %v", bad, sum)
			}
		}
	})
}

func TestMaskRow(t *testing.T) {
	forEach(t, func(t *testing.T, k *Kernels) {
		b := newBed(t)
		for _, n := range lengths {
			ids := make([]int32, n)
			for j := range ids {
				ids[j] = int32(b.rng.IntN(4) - 1)
			}
			for id := int32(-1); id < 3; id++ {
				s := b.row(n, nil)
				was := b.copy(s)
				k.MaskRow(s, id, ids)
				for j := range s {
					want := was[j]
					if id >= 0 && ids[j] == id {
						want = float32(math.Inf(-1))
					}
					if s[j] != want {
						t.Fatalf("score %d of %d is %v, want %v: id %d of %d", j, n, s[j], want, ids[j], id)
					}
				}
			}
			b.check()
		}
	})
}
