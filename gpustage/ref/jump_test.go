package ref_test

import (
	"math"
	"slices"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/cpu"
	"contraflow/gpustage/ref"
)

// A Jump that says so gives a ReLU's input the slope of the other sign everywhere that it is asked for, a sparse embedding's too, and puts another of a
// segment in the largest's place; and it is told how far that is from each.
func TestJump(t *testing.T) {
	host, err := cpu.New()
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	for _, d := range []ref.Jumper{ref.New(), host} {
		for _, within := range []float64{-1, 0.1, 1} {
			asked := map[float64]float64{}
			device := d.WithJump(func(value, off float64) bool {
				asked[value] = off
				return off <= within
			})
			if within < 0 {
				device = d.(gpustage.Device)
			}
			f := fixtureOf(t, device)
			of := func(rows int, v ...float64) gpustage.Tensor { return f.floats(rows, len(v)/rows, v) }
			values := []float64{-1, -0.1, 0.1, 1.95} // of a root mean square of 1.1
			want := []float64{0, 0, 1, 1}
			for i, v := range values {
				if math.Abs(v)/1.1 <= within {
					want[i] = 1 - want[i]
				}
			}
			for rows := 1; rows <= 4; rows += 3 {
				pre, ones := of(rows, values...), of(rows, 1, 1, 1, 1)
				byPass, byGate, dUp, byProduct := f.zeros(rows, 4/rows), f.zeros(rows, 4/rows), f.zeros(rows, 4/rows), f.zeros(rows, 4/rows)
				f.s.ActivateBackward(byPass, ones, pre, gpustage.ReLU)
				f.s.GateBackward(byGate, dUp, gpustage.Tensor{}, ones, pre, ones, gpustage.ReLU)
				if rows == 1 {
					f.s.MatMul(byProduct, of(1, 1), ones, gpustage.MatMul{GradOf: pre, Act: gpustage.ReLU})
				} else {
					f.s.MatMul(byProduct, ones, of(1, 1), gpustage.MatMul{GradOf: pre, Act: gpustage.ReLU})
				}
				for i, got := range []gpustage.Tensor{byPass, byGate, byProduct} {
					if slopes := gpustage.Slice[float64](got); !slices.Equal(slopes, want) {
						t.Errorf("%s, within %v, %d rows, %d: slopes %v, want %v", device.Name(), within, rows, i, slopes, want)
					}
				}
			}
			for i, v := range values {
				if off := math.Abs(v) / math.Sqrt((1+0.02+1.95*1.95)/4); within >= 0 && math.Abs(asked[v]-off) > 1e-12 {
					t.Errorf("%d: %v is said to be %v off, want %v", i, v, asked[v], off)
				}
			}
			y, from, slopes := f.zeros(4, 1), f.ints([]int32{5, 5, 5, 5}), f.zeros(1, 4)
			from.Rows, from.Cols, from.Stride = 1, 4, 4
			f.s.Splade(y, from, of(1, values...), gpustage.Tensor{}, false)
			f.s.SpladeBackward(slopes, gpustage.Tensor{}, f.floats(4, 1, []float64{1, 1, 1, 1}), y, false)
			for i, slope := range gpustage.Slice[float64](slopes) {
				if has := want[i] > 0; has != (slope > 0) || has != (gpustage.Slice[int32](from)[i] == 5) {
					t.Errorf("%s, within %v: of %d a sparse embedding's slope is %v, from %v", device.Name(), within, i, slope, gpustage.Slice[int32](from))
				}
			}
			clear(asked)
			top, at := f.zeros(1, 2), f.ints([]int32{9, 9})
			at.Rows, at.Cols, at.Stride = 1, 2, 2
			f.s.SegmentMax(top, at, of(1, 0.95, 1, -1, 1.2, 0.9), f.ints([]int32{0, 3, 5}))
			places := map[float64][]int32{-1: {1, 3}, 0.1: {0, 3}, 1: {0, 4}}[within]
			if got, tops := gpustage.Slice[int32](at), gpustage.Slice[float64](top); !slices.Equal(got, places) || !slices.Equal(tops, []float64{1, 1.2}) {
				t.Errorf("%s, within %v: the largest %v are at %v, want 1 and 1.2 at %v", device.Name(), within, tops, got, places)
			}
			if off := 0.3 / math.Sqrt((0.95*0.95+1+1+1.2*1.2+0.9*0.9)/5); within >= 0 && (len(asked) != 3 || math.Abs(asked[0.9]-off) > 1e-12) {
				t.Errorf("a segment's others: %v, want 0.9 to be %v off", asked, off)
			}
			if err := f.s.Sync(); err != nil {
				t.Error(err)
			}
		}
	}
}
