package vec

import (
	"math"
	"testing"

	"contraflow/gpustage"
)

func TestDropout(t *testing.T) {
	forEach(t, func(t *testing.T, k *Kernels) {
		b := newBed(t)
		for _, n := range lengths {
			for _, first := range []int{0, 8, 3, 1000*16 + 15} {
				d := gpustage.Dropout{P: []float64{0, 0.1, 0.5, 0.999}[b.rng.IntN(4)], Layer: b.rng.IntN(100), Site: gpustage.SiteAttention}
				key, pos, head := b.rng.Uint64(), b.rng.IntN(1<<20), b.rng.IntN(50)
				v := NewDropout(d)
				v.Key, v.Pos, v.Head = key, uint32(pos), uint32(head)
				x, residual, y := b.row(n, nil), b.row(n, nil), b.row(n, nil)
				if n > 5 {
					x[n-3] = float32(math.NaN()) // dropped or not, it stays, as 0 times NaN is
				}
				for _, r := range [][]float32{nil, residual} {
					want := make([]float32, n)
					for i := range want {
						f := v.Scale
						if d.Element(key, first+i, pos, head) < d.Threshold() {
							f = 0
						}
						want[i] = float32(x[i] * f)
						if r != nil {
							want[i] += r[i]
						}
					}
					k.Dropout(y, x, r, first, v)
					if i := bitsEqual(y, want); i >= 0 {
						t.Fatalf("element %d of %d from %d, P %v: %v, want %v from %v", i, n, first, d.P, y[i], want[i], x[i])
					}
					in := b.copy(x)
					k.Dropout(in, in, r, first, v)
					if i := bitsEqual(in, want); i >= 0 {
						t.Fatalf("in place: element %d of %d is %v, want %v", i, n, in[i], want[i])
					}
					if r != nil {
						in = b.copy(r)
						k.Dropout(in, x, in, first, v)
						if i := bitsEqual(in, want); i >= 0 {
							t.Fatalf("in place of the residual: element %d of %d is %v, want %v", i, n, in[i], want[i])
						}
					}
				}
			}
			b.check()
		}
	})
}

func TestBF16(t *testing.T) {
	forEach(t, func(t *testing.T, k *Kernels) {
		b := newBed(t)
		for _, n := range lengths {
			x := b.row(n, func() float32 { return math.Float32frombits(b.rng.Uint32()) })
			y, back := b.half(n), b.row(n, nil)
			k.ToBF16(y, x)
			k.FromBF16(back, y)
			for i := range x {
				if y[i] != gpustage.ToBF16(x[i]) || math.Float32bits(back[i]) != uint32(y[i])<<16 {
					t.Fatalf("element %d of %d, %v: %#x, want %#x; widened %v", i, n, x[i], y[i], gpustage.ToBF16(x[i]), back[i])
				}
			}
			b.check()
		}
		// All that there are, the ties above them, and both neighbours of the ties.
		for _, low := range []uint32{0, 0x7FFF, 0x8000, 0x8001, 0xFFFF} {
			x, y := make([]float32, 1<<16), make([]uint16, 1<<16)
			for i := range x {
				x[i] = math.Float32frombits(uint32(i)<<16 | low)
			}
			k.ToBF16(y, x)
			for i := range x {
				if want := nearestBF16(x[i]); y[i] != want {
					t.Fatalf("%v (%#x): %#x, want %#x", x[i], math.Float32bits(x[i]), y[i], want)
				}
			}
		}
	})
}

// nearestBF16 rounds by comparing distances.
func nearestBF16(x float32) uint16 {
	down := uint16(math.Float32bits(x) >> 16)
	if x != x {
		return down | 0x40
	}
	if math.IsInf(float64(x), 0) {
		return down
	}
	up := down + 1
	value := func(b uint16) float64 {
		if b&0x7FFF == 0x7F80 { // one step beyond the largest number
			return math.Copysign(0x1p128, float64(x))
		}
		return float64(math.Float32frombits(uint32(b) << 16))
	}
	toDown, toUp := math.Abs(float64(x)-value(down)), math.Abs(value(up)-float64(x))
	if toUp < toDown || toUp == toDown && up%2 == 0 {
		return up
	}
	return down
}
