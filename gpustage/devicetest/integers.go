package devicetest

import (
	"slices"
	"testing"

	"contraflow/gpustage"
)

// Integers are copied and filled as they are, and what lies between rows stays.
func testIntegers(t *testing.T, dev gpustage.Device) {
	for _, sz := range sizes {
		for _, gap := range []int{0, 3} {
			integers(newFixture(t, dev, 20, gap), gpustage.I32, sz[0], sz[1], -1<<30-5, func(n uint64) int32 { return int32(n) })
			integers(newFixture(t, dev, 20, gap), gpustage.U64, sz[0], sz[1], 1<<40+5, func(n uint64) uint64 { return n })
			if t.Failed() {
				t.Fatal("at", sz, "gap", gap)
			}
		}
	}
}

func integers[T int32 | uint64](f *fixture, kind gpustage.DType, rows, cols int, value T, of func(uint64) T) {
	stride := cols + f.gap
	random := func() (x gpustage.Tensor, all []T) {
		x, err := gpustage.NewTensor(f.dev, kind, 1, rows*stride)
		if err != nil {
			f.t.Fatal(err)
		}
		f.t.Cleanup(func() { x.Mem.Free() })
		for range rows * stride {
			all = append(all, of(f.rng.Uint64()))
		}
		f.s.CopyIn(x, gpustage.Bytes(all))
		return x, all
	}
	src, numbers := random()
	for what, filled := range map[string]bool{"copied": false, "filled": true} {
		dst, want := random()
		view := func(x gpustage.Tensor) gpustage.Tensor { return x.Reshape(rows, stride).Columns(0, cols) }
		for i := range want {
			switch {
			case i%stride >= cols:
			case filled:
				want[i] = value
			default:
				want[i] = numbers[i]
			}
		}
		if filled {
			f.s.Fill(view(dst), float64(value))
		} else {
			f.s.Copy(view(dst), view(src))
		}
		got := make([]T, len(want))
		f.s.CopyOut(gpustage.Bytes(got), dst)
		done(f.t, f.s)
		if !slices.Equal(got, want) {
			f.t.Errorf("%s, %s: %v, want %v", kind, what, got, want)
		}
	}
}
