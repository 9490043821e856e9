//go:build linux && amd64

package launch_test

import (
	"math/rand/v2"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/cuda/onhost"
)

// A multiprocessor multiplies four times as many numbers at a time as it reads from shared memory. attention.cu's kernels read about one for two
// multiplications of heads of 64 features, and write what they stage: never two of a bank at once; global memory as whole sectors.
func TestAttentionReads(t *testing.T) {
	const tokens, dim = 64, 64
	d := onhost.Open(t, onhost.Plain)
	for name, products := range map[string]map[string]int{ // of each pair of tokens
		"tokens": {"attention_64": 2, "attention_backward_q_64": 3, "attention_backward_kv_64": 4},
		// the last one's pairs are those of 128 distances and each query
		"positions": {"positions_64": 4, "positions_backward_q_64": 6, "positions_backward_kv_64": 7, "positions_gradients_64": 2 * 6},
	} {
		t.Run(name, func(t *testing.T) {
			r, s := rand.New(rand.NewPCG(64, 64)), streamOf(t, d)
			cu, err := gpustage.NewTensor(d, gpustage.I32, 1, 2)
			if err != nil {
				t.Fatal(err)
			}
			copy(gpustage.Slice[int32](cu), []int32{0, tokens})
			x := func(rows, cols int) gpustage.Tensor { return random(t, d, r, rows, cols, 0) }
			o := gpustage.Attention{Seqs: gpustage.Sequences{Rows: 1, Tokens: tokens, MaxLen: tokens, Cu: cu}, Heads: 1, HeadDim: dim, Scale: 0.1}
			if name == "positions" {
				rows, err := gpustage.NewTensor(d, gpustage.I32, 1, 2*tokens-1)
				if err != nil {
					t.Fatal(err)
				}
				const count = 12
				for i := range gpustage.Slice[int32](rows) {
					gpustage.Slice[int32](rows)[i] = int32(i % count)
				}
				o.Positions = gpustage.Positions{Keys: x(count, dim), Queries: x(count, dim), Rows: rows, DKeys: x(count, dim), DQueries: x(count, dim)}
			}
			traffic := d.Traffic(func() {
				q, k, v, ctx, dctx, lse := x(tokens, dim), x(tokens, dim), x(tokens, dim), x(tokens, dim), x(tokens, dim), x(1, tokens)
				s.Attention(ctx, lse, q, k, v, o)
				s.AttentionBackward(x(tokens, dim), x(tokens, dim), x(tokens, dim), dctx, ctx, lse, q, k, v, o)
				if err := s.Sync(); err != nil {
					t.Fatal(err)
				}
			})
			for kernel, n := range products {
				got, of := traffic[kernel], tokens*tokens*dim*n/32
				t.Logf("%-24s %.3f for each that is multiplied", kernel, float64(got.Wavefronts)/float64(of))
				if w := float64(got.Wavefronts) / float64(of); w == 0 || w > 0.65 {
					t.Errorf("%s: %d wavefronts of shared memory for %d multiplications of a warp", kernel, got.Wavefronts, of)
				}
				if got.Wavefronts != got.LeastWavefronts {
					t.Errorf("%s: %d wavefronts of shared memory, %d would do", kernel, got.Wavefronts, got.LeastWavefronts)
				}
				if float64(got.Sectors) > 1.1*float64(got.LeastSectors) {
					t.Errorf("%s: %d sectors of global memory, %d would do", kernel, got.Sectors, got.LeastSectors)
				}
			}
		})
	}
}
