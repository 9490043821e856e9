//go:build linux && amd64

package launch_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/cuda/onhost"
)

// Attention has the same bits whichever one of its tensors has rows that can't be moved 16 bytes at a time.
func TestAttentionOfOddRows(t *testing.T) {
	d := onhost.Open(t, onhost.Plain)
	s := streamOf(t, d)
	const tokens, dim, places = 9, 32, 5
	for _, kind := range []gpustage.DType{gpustage.F32, gpustage.BF16} {
		for _, far := range []bool{false, true} {
			var want [][]float32
			var start [10]gpustage.Tensor
			made, copied := makers(t, d, s, rand.New(rand.NewPCG(21, 21)))
			for i := range start {
				start[i] = made(kind, []int{tokens, places}[i/8], dim, 0)
			}
			for odd := -1; odd < len(start); odd++ {
				xs := start
				for i, x := range xs {
					xs[i] = copied(kind, x, map[bool]int{true: 3}[i == odd])
				}
				q, k, v, ctx, dctx, dq, dk, dv := xs[0], xs[1], xs[2], xs[3], xs[4], xs[5], xs[6], xs[7]
				ints := func(n int, value func(i int) int) gpustage.Tensor {
					x, err := gpustage.NewTensor(d, gpustage.I32, 1, n)
					if err != nil {
						t.Fatal(err)
					}
					for i := range n {
						gpustage.Slice[int32](x)[i] = int32(value(i))
					}
					return x
				}
				o := gpustage.Attention{Seqs: gpustage.Sequences{Rows: 1, Tokens: tokens, MaxLen: tokens, Cu: ints(2, func(i int) int { return i * tokens })}, Heads: 1, HeadDim: dim,
					Scale: 0.2, BF16: kind == gpustage.BF16}
				if far {
					o.Positions = gpustage.Positions{Keys: xs[8], Queries: xs[9], Rows: ints(2*tokens-1, func(i int) int { return i % places })}
				}
				lse := made(gpustage.F32, 1, tokens, 0)
				s.Attention(ctx, lse, q, k, v, o)
				s.AttentionBackward(dq, dk, dv, dctx, ctx, lse, q, k, v, o)
				var got [][]float32
				for _, x := range []gpustage.Tensor{ctx, dq, dk, dv} {
					got = append(got, slices.Clone(gpustage.Slice[float32](copied(gpustage.F32, x, 0))))
				}
				if err := s.Sync(); err != nil {
					t.Fatal(err)
				}
				if odd < 0 {
					want = got
				}
				for i := range want {
					if !slices.Equal(got[i], want[i]) {
						t.Errorf("%v, positions %v, tensor %d with odd rows: result %d has other bits", kind, far, odd, i)
					}
				}
			}
		}
	}
}
