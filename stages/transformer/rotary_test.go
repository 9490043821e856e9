package transformer

import (
	"math"
	"slices"
	"testing"
	"unsafe"

	"contraflow/gpustage"
)

// A model's angles grow with the longest sub-batch that has come, those of long sequences by themselves.
func TestAnglesGrow(t *testing.T) {
	r := &Rotary{Frequencies: []float64{1, 0.3}, Long: []float64{0.25, 0.01}, LongFrom: 4, Factor: 1.5}
	for _, dtype := range []gpustage.DType{gpustage.F32, gpustage.F64} {
		var a angles
		for i, n := range []int{3, 3, 9, 2, 70, 9, 71} {
			for _, long := range []bool{i%2 == 0, i%2 != 0} {
				freqs := r.Frequencies
				if long {
					freqs = r.Long
				}
				var want []float64 // of each position the cosines, then the sines
				for p := range n {
					for _, quarter := range []float64{math.Pi / 2, 0} {
						for _, f := range freqs {
							want = append(want, 1.5*math.Sin(float64(p)*f+quarter))
						}
					}
				}
				raw := a.of(r, long, n, dtype)
				got := make([]float64, len(raw)/dtype.Size())
				if dtype == gpustage.F64 {
					copy(got, unsafe.Slice((*float64)(unsafe.Pointer(&raw[0])), len(got)))
				} else {
					for k, v := range unsafe.Slice((*float32)(unsafe.Pointer(&raw[0])), len(got)) {
						got[k] = float64(v)
					}
				}
				limit := map[gpustage.DType]float64{gpustage.F32: 1e-7, gpustage.F64: 1e-13}[dtype]
				if !slices.EqualFunc(got, want, func(g, w float64) bool { return math.Abs(g-w) <= limit }) {
					t.Errorf("%s, %d positions, long %v: %v, want %v", dtype, n, long, got, want)
				}
			}
		}
	}
}
