package gpustage_test

import (
	"fmt"
	"math"
	"math/bits"
	"testing"

	"contraflow/gpustage"
)

// The known answers are those of the Random123 library's kat_vectors file for philox4x32 with 7 rounds.
func TestPhiloxKnownAnswers(t *testing.T) {
	for _, c := range []struct {
		key      uint64
		ctr, out [4]uint32
	}{
		{0, [4]uint32{}, [4]uint32{0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48}},
		{math.MaxUint64, [4]uint32{math.MaxUint32, math.MaxUint32, math.MaxUint32, math.MaxUint32}, [4]uint32{0x5207ddc2, 0x45165e59, 0x4d8ee751, 0x8c52f662}},
		{0x299f31d0a4093822, [4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, [4]uint32{0x4dfccaba, 0x190a87f0, 0xc47362ba, 0xb6b5242a}},
	} {
		if got := gpustage.Philox(c.key, c.ctr); got != c.out {
			t.Errorf("key %x counter %x: %x, want %x", c.key, c.ctr, got, c.out)
		}
	}
}

// Each of the 16 elements of a call is dropped as often as it should be, and two of them are as often as the product of both, give or take what their common
// byte does. All elements' rate would show one of whole bytes, 0.1016 for 0.1, as 5 sigma off.
func TestDropoutRate(t *testing.T) {
	const rows, positions = 400, 200
	for _, p := range []float64{0.1, 0.5, 0.02, 255.0 / 256} {
		d := gpustage.Dropout{P: p, Layer: 3, Site: gpustage.SiteFeedForward}
		var dropped [16][16]float64 // i and j at once
		for row := range rows {
			key := gpustage.RowKey(1, 2, int64(row), 0)
			for pos := range positions {
				var drops [16]bool
				for j := range drops {
					drops[j] = d.Element(key, 16*(pos%3)+j, pos, 0) < d.Threshold()
					for i := range j + 1 {
						if drops[i] && drops[j] {
							dropped[i][j]++
						}
					}
				}
			}
		}
		check := func(what string, got, n, p, more float64) {
			if sigma := math.Sqrt((p*(1-p) + more) / n); !(math.Abs(got/n-p) <= 4*sigma+more) {
				t.Errorf("p = %v: %v of %s dropped, %.1f sigma off", d.P, got/n, what, (got/n-p)/sigma)
			}
		}
		p = float64(d.Threshold()) / 65536
		const n = rows * positions
		all := 0.0
		for j := range 16 {
			for i := range j {
				check(fmt.Sprintf("elements %d and %d", i, j), dropped[i][j], n, p*p, 0x1p-18)
			}
			all += dropped[j][j]
			check(fmt.Sprintf("element %d", j), dropped[j][j], n, p, 0)
		}
		check("elements", all, 16*n, p, 0)
		if got := d.KeepScale() * (1 - float64(d.Threshold())/65536); !(math.Abs(got-1) <= 1e-15) {
			t.Errorf("p = %v: the expectation of the mask is %v", p, got)
		}
	}
}

// What is more than the largest probability is that one, which kernels compare by a byte.
func TestDropoutBounds(t *testing.T) {
	for p, want := range map[float64]uint32{0: 0, 1. / 65536: 1, 255. / 256: 0xff00, 0.999: 0xff00, math.Nextafter(1, 0): 0xff00} {
		d := gpustage.Dropout{P: p}
		if got := d.Threshold(); got != want || d.KeepScale() != 65536/float64(65536-want) {
			t.Errorf("p = %v: threshold %#x and scale %v, want %#x", p, got, d.KeepScale(), want)
		}
	}
}

// Any two of the 16 numbers' own bytes and the byte that all share are independent if the random words are. DropoutNumber is linear over bits: three bytes
// of 128 random bits take all 2^24 values equally often where the bits' 128 contributions have rank 24.
func TestDropoutBytes(t *testing.T) {
	bit := func(k int) (w [4]uint32) {
		w[k/32] = 1 << (k % 32)
		return w
	}
	a, b := gpustage.Philox(1, [4]uint32{}), gpustage.Philox(2, [4]uint32{})
	both := [4]uint32{a[0] ^ b[0], a[1] ^ b[1], a[2] ^ b[2], a[3] ^ b[3]}
	for i := range 16 {
		if got, want := gpustage.DropoutNumber(both, i), gpustage.DropoutNumber(a, i)^gpustage.DropoutNumber(b, i); got != want {
			t.Fatalf("number %d is not linear: %x, want %x", i, got, want)
		}
		for j := range i {
			var rows [24]uint32 // by their uppermost bits
			rank := 0
			for k := range 128 {
				r := gpustage.DropoutNumber(bit(k), i)<<8 | gpustage.DropoutNumber(bit(k), j)>>8
				for r != 0 {
					top := bits.Len32(r) - 1
					if rows[top] == 0 {
						rows[top] = r
						rank++
						break
					}
					r ^= rows[top]
				}
			}
			if rank != 24 {
				t.Errorf("numbers %d and %d: their bytes and the shared one have rank %d, want 24", j, i, rank)
			}
		}
	}
}

// Every part of the key matters.
func TestRowKeysDiffer(t *testing.T) {
	seen := map[uint64]bool{}
	for seed := range uint64(3) {
		for step := range 3 {
			for row := range int64(5) {
				for col := range 3 {
					k := gpustage.RowKey(seed, step, row, col)
					if seen[k] {
						t.Fatalf("two rows have key %x", k)
					}
					seen[k] = true
				}
			}
		}
	}
}

func TestBF16(t *testing.T) {
	for _, c := range []struct {
		in   float32
		want uint16
	}{
		{1, 0x3F80}, {-2, 0xC000}, {0, 0}, {1 + 1.0/256, 0x3F80}, {1 + 3.0/256, 0x3F82}, {1 + 1.0/256 + 1.0/4096, 0x3F81},
		{3.4e38, 0x7F80}, {float32(math.Inf(-1)), 0xFF80}, {1e-45, 0},
	} {
		if got := gpustage.ToBF16(c.in); got != c.want {
			t.Errorf("ToBF16(%v) = %#x, want %#x", c.in, got, c.want)
		}
	}
	nan := gpustage.FromBF16(gpustage.ToBF16(float32(math.NaN())))
	if nan == nan {
		t.Error("NaN was lost")
	}
}
