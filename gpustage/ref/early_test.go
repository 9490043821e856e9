package ref_test

import (
	"slices"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/ref"
)

// With Early a ReLU's slope begins before zero, or behind it, everywhere that it is asked for, a sparse embedding's too; and the second of what is
// near takes the largest's place.
func TestEarly(t *testing.T) {
	for early, want := range map[float64]struct {
		slopes []float64
		at     []int32
	}{
		0:    {[]float64{0, 0, 1, 1}, []int32{1, 3}},
		0.1:  {[]float64{0, 1, 1, 1}, []int32{0, 3}}, // of a root mean square of 1.1
		-0.1: {[]float64{0, 0, 0, 1}, []int32{0, 3}},
	} {
		f := fixtureOf(t, &ref.Device{Early: early})
		of := func(v ...float64) gpustage.Tensor { return f.floats(1, len(v), v) }
		pre, ones := of(-1, -0.1, 0.1, 1.95), of(1, 1, 1, 1)
		byPass, byGate, dUp, byProduct := f.zeros(1, 4), f.zeros(1, 4), f.zeros(1, 4), f.zeros(1, 4)
		f.s.ActivateBackward(byPass, ones, pre, gpustage.ReLU)
		f.s.GateBackward(byGate, dUp, gpustage.Tensor{}, ones, pre, ones, gpustage.ReLU)
		f.s.MatMul(byProduct, of(1), ones, gpustage.MatMul{GradOf: pre, Act: gpustage.ReLU})
		for i, got := range []gpustage.Tensor{byPass, byGate, byProduct} {
			if slopes := gpustage.Slice[float64](got); !slices.Equal(slopes, want.slopes) {
				t.Errorf("%v early, %d: slopes %v, want %v", early, i, slopes, want.slopes)
			}
		}
		y, from, slopes := f.zeros(4, 1), f.ints([]int32{5, 5, 5, 5}), f.zeros(1, 4)
		from.Rows, from.Cols, from.Stride = 1, 4, 4
		f.s.Splade(y, from, pre, gpustage.Tensor{}, false)
		f.s.SpladeBackward(slopes, gpustage.Tensor{}, f.floats(4, 1, []float64{1, 1, 1, 1}), y, false)
		for i, slope := range gpustage.Slice[float64](slopes) {
			if has := want.slopes[i] > 0; has != (slope > 0) || has != (gpustage.Slice[int32](from)[i] == 5) {
				t.Errorf("%v early: of %d a sparse embedding's slope is %v, from %v", early, i, slope, gpustage.Slice[int32](from))
			}
		}
		top, at := f.zeros(1, 2), f.ints([]int32{9, 9})
		at.Rows, at.Cols, at.Stride = 1, 2, 2
		f.s.SegmentMax(top, at, of(0.95, 1, -1, 1.2, 1), f.ints([]int32{0, 3, 5}))
		if got, tops := gpustage.Slice[int32](at), gpustage.Slice[float64](top); !slices.Equal(got, want.at) || !slices.Equal(tops, []float64{1, 1.2}) {
			t.Errorf("%v early: the largest %v are at %v, want 1 and 1.2 at %v", early, tops, got, want.at)
		}
		if err := f.s.Sync(); err != nil {
			t.Error(err)
		}
	}
}
