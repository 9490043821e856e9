package launch

import (
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/cuda/kernels"
	"contraflow/gpustage/ref"
)

// recorder is a driver that only notes blocks' threads.
type recorder map[string]int

func (r recorder) Launch(kernel string, _, block [3]int, _ int, _ []uint64, _ []int32) error {
	r[kernel] = max(r[kernel], block[0]*block[1]*block[2])
	return nil
}
func (recorder) Multiply(Product) error          { return nil }
func (recorder) Fuses(p Product) (bool, error)   { return p.Epilogue == NoEpilogue, nil }
func (recorder) Address(gpustage.Memory) uintptr { return 256 }

// A GPU refuses blocks of more threads than a kernel's launch bounds say, which a processor does not know of.
func TestLaunchBounds(t *testing.T) {
	d := ref.New()
	used := recorder{}
	s := NewStream(d, used)
	grouped := NewStream(d, used)
	grouped.Warpgroups = true
	for _, dim := range []int{32, 64, 128, 256} {
		for _, n := range []int{50, 100, 129, 400} {
			for _, bf16 := range []bool{false, true} {
				tensor := func(dtype gpustage.DType, rows, cols int) gpustage.Tensor {
					x, err := gpustage.NewTensor(d, dtype, rows, cols)
					if err != nil {
						t.Fatal(err)
					}
					return x
				}
				kind := gpustage.F32
				if bf16 {
					kind = gpustage.BF16
				}
				x, lse := tensor(kind, n, dim), tensor(gpustage.F32, 1, n)
				o := gpustage.Attention{Seqs: gpustage.Sequences{Rows: 1, Tokens: n, MaxLen: n, Cu: tensor(gpustage.I32, 1, 2)}, Heads: 1, HeadDim: dim, Scale: 1, BF16: bf16}
				at := gpustage.Positions{
					Keys: tensor(kind, 5, dim), Queries: tensor(kind, 5, dim), Rows: tensor(gpustage.I32, 1, 2*n-1), DKeys: tensor(gpustage.F32, 5, dim), DQueries: tensor(gpustage.F32, 5, dim),
				}
				for i, bias := range []gpustage.Tensor{{}, tensor(gpustage.F32, 9, 1), {}, {}} {
					o.Bias, o.DBias, o.Positions, o.Seen = bias, bias, gpustage.Positions{}, gpustage.Tensor{}
					switch {
					case i == 2 && dim <= maxFarDim:
						o.Positions = at
					case i == 3:
						o.Seen = tensor(gpustage.I32, 1, 1)
					}
					for _, s := range []*Stream{s, grouped} {
						s.Attention(x, lse, x, x, x, o)
						s.AttentionBackward(x, x, x, x, x, lse, x, x, x, o)
						if s.Err() != nil {
							t.Fatal(s.Err())
						}
					}
				}
			}
		}
	}
	for _, module := range []string{"flash.cu", "hopper.cu", "attention.cu"} {
		for _, kernel := range kernels.Names(module) {
			switch n, most := used[kernel], kernels.Bound(kernel); {
			case most == 0: // any
			case n == 0:
				t.Errorf("%s was not launched", kernel)
			case n > most:
				t.Errorf("%s is launched with %d threads, its bounds are %d", kernel, n, most)
			}
		}
	}
}
