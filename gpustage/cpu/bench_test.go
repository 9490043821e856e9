package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"contraflow/gpustage"
)

// BenchmarkAttention reports GFLOP/s of products only, 4 n² H D forward and 10 backward (a fifth of which computes scores again),
// of the pairs that see each other.
func BenchmarkAttention(b *testing.B) {
	for _, c := range []struct {
		name                    string
		n, rows, heads, kv, dim int
		causal                  bool
		window                  int
		cap                     float64
	}{
		{"16", 16, 512, 12, 12, 32, false, 0, 0},
		{"512", 512, 4, 8, 8, 64, false, 0, 0},
		{"2048", 2048, 1, 4, 4, 64, false, 0, 0},
		{"8192", 8192, 1, 2, 2, 64, false, 0, 0},
		{"8192/causal", 8192, 1, 2, 2, 64, true, 0, 0},
		{"8192/window", 8192, 1, 12, 12, 64, false, 64, 0},
		{"2048/grouped128", 2048, 1, 8, 2, 128, true, 0, 0},
		{"2048/capped256", 2048, 1, 4, 2, 256, true, 0, 50},
	} {
		d, err := New()
		if err != nil {
			b.Fatal(err)
		}
		s, _ := d.OpenStream()
		tokens := c.n * c.rows
		tensor := func(rows, cols int) gpustage.Tensor {
			x, err := gpustage.NewTensor(d, gpustage.F32, rows, cols)
			if err != nil {
				b.Fatal(err)
			}
			rng := rand.New(rand.NewPCG(1, 2))
			for i := range f32(x) {
				f32(x)[i] = float32(rng.NormFloat64())
			}
			return x
		}
		cu, _ := gpustage.NewTensor(d, gpustage.I32, 1, c.rows+1)
		for i := range ints(cu) {
			ints(cu)[i] = int32(i * c.n)
		}
		e, ek := c.heads*c.dim, c.kv*c.dim
		q, k, v := tensor(tokens, e), tensor(tokens, ek), tensor(tokens, ek)
		ctx, lse, dctx := tensor(tokens, e), tensor(c.heads, tokens), tensor(tokens, e)
		dq, dk, dv := tensor(tokens, e), tensor(tokens, ek), tensor(tokens, ek)
		o := gpustage.Attention{Seqs: gpustage.Sequences{Rows: c.rows, Tokens: tokens, MaxLen: c.n, Cu: cu}, Heads: c.heads, KVHeads: c.kv, HeadDim: c.dim,
			Scale: 1 / math.Sqrt(float64(c.dim)), Causal: c.causal, Window: c.window, SoftCap: c.cap}
		pairs := float64(c.n) * float64(c.n)
		if c.causal {
			pairs /= 2
		}
		if c.window > 0 {
			pairs = float64(c.n) * float64(2*c.window+1)
		}
		flops := pairs * float64(c.rows*c.heads*c.dim)
		report := func(name string, factor float64, f func()) {
			b.Run(fmt.Sprint(c.name, "/", name), func(b *testing.B) {
				for b.Loop() {
					f()
				}
				if err := s.Sync(); err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(factor*flops*float64(b.N)/float64(b.Elapsed().Nanoseconds()), "GFLOP/s")
			})
		}
		report("forward", 4, func() { s.Attention(ctx, lse, q, k, v, o) })
		report("backward", 10, func() { s.AttentionBackward(dq, dk, dv, dctx, ctx, lse, q, k, v, o) })
		d.Close()
	}
}
