package launch

import (
	"testing"
	"unsafe"

	"contraflow/gpustage"
)

// vectors notes which elements of a long vector at 256 kernels work on: from the first of the given arguments, the first tensor's or the
// second's, so many as the last one says.
type vectors struct {
	recorder
	argument int
	did      [][2]int
}

func (v *vectors) Launch(kernel string, grid, block [3]int, _ int, words []uint64, at []int32) error {
	if kernel == "square_finish" {
		return nil
	}
	if kernel == "adamw" {
		a := (*updateArgs)(unsafe.Pointer(&words[0]))
		for _, r := range a.run[:a.runs] {
			from := int(a.p-256)/4 + int(r.p)
			if state := int(r.state); from != int(a.m-256)/4+state || from != int(a.v-256)/4+state || from != int(a.g-256)/4+int(r.g) {
				from = -1 // all are in one place
			}
			v.did = append(v.did, [2]int{from, from + int(r.n)})
		}
		return nil
	}
	from := int(words[at[v.argument]]-256) / 4
	v.did = append(v.did, [2]int{from, from + int(words[at[len(at)-1]])})
	return nil
}

// A model may have more parameters than an int32 counts. What works on vectors of them reaches each once.
func TestLongVectors(t *testing.T) {
	for _, n := range []int{1<<30 - 1, 1 << 30, 1<<31 + 8, 4_000_000_000, 10_000_000_001} {
		x, _ := gpustage.NewTensor(gpustage.Dry{}, gpustage.F32, 1, n)
		out, _ := gpustage.NewTensor(gpustage.Dry{}, gpustage.F64, 1, 1)
		half := x
		half.DType = gpustage.BF16
		double, _ := gpustage.NewTensor(gpustage.Dry{}, gpustage.F64, 1, n)
		table := x
		if n%8 == 0 {
			table = x.Reshape(8, n/8)
		}
		for name, f := range map[string]func(s *Stream){
			"fill":           func(s *Stream) { s.Fill(x, 0) },
			"fill of rows":   func(s *Stream) { s.Fill(table, 0) },
			"sum of squares": func(s *Stream) { s.SumSquares(out, x) },
			"add":            func(s *Stream) { s.Add(x, x, x) },
			"add of f64":     func(s *Stream) { s.Add(double, double, double) },
			"scale":          func(s *Stream) { s.Scale(x, x, 2) },
			"copy":           func(s *Stream) { s.Copy(x, x) },
			"from bf16":      func(s *Stream) { s.Copy(x, half) },
			"to bf16":        func(s *Stream) { s.Copy(half, x) },
			"sgd":            func(s *Stream) { s.SGD(x, gpustage.Tensor{}, x, gpustage.SGD{}) },
			"adamw":          func(s *Stream) { s.AdamW(x, x, x, x, gpustage.AdamW{Beta1: .9, Beta2: .999, Step: 1}) },
			"adamw of runs": func(s *Stream) {
				s.AdamW(x, x, x, x, gpustage.AdamW{Beta1: .9, Beta2: .999, Step: 1, Runs: []gpustage.Run{{Len: n / 2}, {P: n / 2, State: n / 2, G: n / 2, Len: n - n/2}}})
			},
		} {
			v := &vectors{}
			if name == "sum of squares" {
				v.argument = 1
			}
			s := NewStream(gpustage.Dry{}, v)
			f(s)
			if s.Err() != nil {
				t.Errorf("%s of %d elements: %v", name, n, s.Err())
				continue
			}
			end := 0
			for _, d := range v.did {
				lo, hi := d[0], d[1]
				switch name { // places are counted in f32's
				case "add of f64":
					lo, hi = lo/2, lo/2+hi-lo
				case "to bf16":
					lo, hi = lo*2, lo*2+hi-lo
				}
				if lo != end || hi-lo > 1<<30 {
					t.Errorf("%s of %d elements works on %v", name, n, v.did)
					break
				}
				end = hi
			}
			if end != n {
				t.Errorf("%s of %d elements works on %v", name, n, v.did)
			}
		}
	}
}
