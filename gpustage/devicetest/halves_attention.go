package devicetest

import (
	"math"
	"strings"
	"testing"

	"contraflow/gpustage"
)

// testHalvesAttention is attention whose tensors are BF16 on the device: its inputs have the same values for ref, in f64.
func testHalvesAttention(t *testing.T, dev gpustage.Device) {
	if !gpustage.TakesBF16(dev) {
		return
	}
	type config struct {
		heads, kv, dim, window int
		causal                 bool
		p                      float64
		lengths                []int
		cap                    float64
		bias                   int // rows of Bias
		gap                    int // elements between rows: with 8, and heads of so many, they begin at multiples of 16 bytes
		lead                   int // columns before q
	}
	for _, c := range []config{
		{heads: 1, dim: 32, lengths: []int{1}},
		{heads: 1, dim: 64, lengths: []int{5}},
		{heads: 1, dim: 128, lengths: []int{17}},
		{heads: 4, dim: 32, lengths: []int{64, 65, 1, 130}},
		{heads: 2, dim: 64, lengths: []int{130, 5, 64}, gap: 8},
		{heads: 2, dim: 128, lengths: []int{65, 17}, gap: 8},
		{heads: 2, dim: 32, lengths: []int{17, 65, 5}, gap: 3},
		{heads: 2, dim: 64, lengths: []int{130, 1}, gap: 3, p: 0.2},
		{heads: 1, dim: 128, lengths: []int{65, 64}, gap: 3, causal: true},
		{heads: 1, dim: 64, lengths: []int{70}, gap: 7, lead: 1}, // even strides, odd addresses
		{heads: 2, dim: 32, lengths: []int{40}, lead: 8},
		{heads: 4, kv: 2, dim: 32, lengths: []int{130, 17}, causal: true, p: 0.1},
		{heads: 4, kv: 1, dim: 64, lengths: []int{65, 5}, causal: true, window: 9},
		{heads: 3, kv: 1, dim: 128, lengths: []int{33, 130}, causal: true, window: 20, p: 0.1},
		{heads: 4, kv: 2, dim: 32, lengths: []int{150}, window: 78}, // larger than a tile
		{heads: 1, dim: 64, lengths: []int{300}, window: 9, p: 0.3},
		{heads: 1, dim: 32, lengths: []int{300}},
		{heads: 2, kv: 1, dim: 64, lengths: []int{300}, causal: true},
		{heads: 1, dim: 128, lengths: []int{300}, p: 0.1},
		{heads: 2, dim: 8, lengths: []int{1, 5, 17}},
		{heads: 4, kv: 2, dim: 8, lengths: []int{65, 64}, causal: true, p: 0.2, gap: 8},
		{heads: 2, dim: 20, lengths: []int{17, 70}, window: 6},
		{heads: 3, dim: 24, lengths: []int{17, 5}, gap: 8}, // a lane's share of heads whose size is no power of two
		{heads: 2, dim: 96, lengths: []int{33}, gap: 8, causal: true},
		{heads: 2, kv: 1, dim: 20, lengths: []int{130}, gap: 3, cap: 3},
		{heads: 2, kv: 1, dim: 256, lengths: []int{5, 65}, causal: true},
		{heads: 1, dim: 256, lengths: []int{17, 1}, gap: 3, p: 0.1},
		{heads: 2, dim: 64, lengths: []int{65, 17}, cap: 3},
		{heads: 2, dim: 32, lengths: []int{64, 1, 17}, bias: 33, p: 0.2},
		{heads: 2, kv: 1, dim: 128, lengths: []int{65}, bias: 9, causal: true, gap: 8},
	} {
		work := 0
		for _, n := range c.lengths {
			work += n * n * c.heads * c.dim
		}
		if testing.Short() && work > 1e6 {
			continue
		}
		t.Run(name(c), func(t *testing.T) {
			f := newFixture(t, dev, 31, c.gap)
			q := f.sequences(c.lengths)
			kv := c.kv
			if kv == 0 {
				kv = c.heads
			}
			e, ek := c.heads*c.dim, kv*c.dim
			half := func(name string, cols int) *arg { return f.operand(name, true, q.tokens, cols, nil) }
			qkv, dqkv, ctx, dctx := half("qkv", c.lead+e+2*ek), half("dqkv", c.lead+e+2*ek), half("ctx", e), half("dctx", e)
			lse := f.floats("lse", c.heads, q.tokens, nil)
			var bias, dBias *arg
			if c.bias > 0 {
				bias, dBias = f.floats("bias", c.bias, c.heads, nil), f.floats("dBias", c.bias, c.heads, nil)
			}
			parts := func(x gpustage.Tensor) (q, k, v gpustage.Tensor) {
				x = x.Columns(c.lead, x.Cols)
				return x.Columns(0, e), x.Columns(e, e+ek), x.Columns(e+ek, e+2*ek)
			}
			f.run(func(s gpustage.Stream, x picker) {
				o := gpustage.Attention{Seqs: q.on(x), Heads: c.heads, KVHeads: c.kv, HeadDim: c.dim, Scale: 1 / math.Sqrt(float64(c.dim)),
					SoftCap: c.cap, Causal: c.causal, Window: c.window, BF16: true, Dropout: gpustage.Dropout{P: c.p, Seqs: q.on(x), Layer: 3, Site: gpustage.SiteAttention}}
				if c.bias > 0 {
					o.Bias, o.DBias = x(bias), x(dBias)
				}
				q, k, v := parts(x(qkv))
				dq, dk, dv := parts(x(dqkv))
				s.Attention(x(ctx), x(lse), q, k, v, o)
				s.AttentionBackward(dq, dk, dv, x(dctx), x(ctx), x(lse), q, k, v, o)
			})
			// testAttention's tolerances, beside the rounding of what is written, which check adds. <dctx, ctx> is taken from a rounded ctx as
			// well: its terms are off by half a spacing at most, 0.2 spacings in the quadratic mean, and the sum by 0.2 sqrt(D), which Scale
			// divides by sqrt(D) for dq and dk; not for the bias, where up to 65 of them are added. Errors that were seen: 0.7, 1.3, 3.3 spacings.
			f.check(ctx, bf16Spacing)
			f.check(lse, 32)
			f.check(dqkv, 3*bf16Spacing)
			f.untouched(qkv, dctx)
			if c.bias > 0 {
				f.check(dBias, 6*bf16Spacing)
				f.untouched(bias)
			}
		})
	}
	t.Run("NaN", func(t *testing.T) { testHalvesAttentionNaN(t, dev) })
	t.Run("refused", func(t *testing.T) { testHalvesAttentionRefused(t, dev) })
}

// As testAttentionNaN: keys that are NaN fill a tile.
func testHalvesAttentionNaN(t *testing.T, dev gpustage.Device) {
	f := newFixture(t, dev, 32, 0)
	q := f.sequences([]int{100, 7})
	const dim = 32
	qkv := f.operand("qkv", true, q.tokens, 3*dim, func(i, j int) float64 {
		if i < 64 && j >= dim && j < 2*dim {
			return math.NaN()
		}
		return f.rng.NormFloat64()
	})
	ctx, lse := f.operand("ctx", true, q.tokens, dim, nil), f.floats("lse", 1, q.tokens, nil)
	f.run(func(s gpustage.Stream, x picker) {
		in := x(qkv)
		s.Attention(x(ctx), x(lse), in.Columns(0, dim), in.Columns(dim, 2*dim), in.Columns(2*dim, 3*dim),
			gpustage.Attention{Seqs: q.on(x), Heads: 1, HeadDim: dim, Scale: 0.2, BF16: true})
	})
	f.check(ctx, bf16Spacing)
}

// Either all of a call's tensors are BF16 or none, and only where attention rounds; what it keeps is F32.
func testHalvesAttentionRefused(t *testing.T, dev gpustage.Device) {
	names := []string{"q", "k", "v", "ctx", "dctx", "dq", "dk", "dv"}
	const forward = 4 // of them in the forward pass
	// try gives the error of a call whose i-th tensor is BF16 if halves(i).
	try := func(n int, bf16 bool, halves func(i int) bool, lseHalf bool) error {
		f := newFixture(t, dev, 33, 0)
		const dim = 32
		q := f.sequences([]int{9, 3})
		var xs [8]gpustage.Tensor
		for i := range xs {
			xs[i] = f.operand(names[i], halves(i), q.tokens, dim, nil).dev
		}
		lse := f.operand("lse", lseHalf, 1, q.tokens, nil).dev
		o := gpustage.Attention{Seqs: q.on(func(a *arg) gpustage.Tensor { return a.dev }), Heads: 1, HeadDim: dim, Scale: 0.2, BF16: bf16}
		if n == forward {
			f.s.Attention(xs[3], lse, xs[0], xs[1], xs[2], o)
		} else {
			f.s.AttentionBackward(xs[5], xs[6], xs[7], xs[4], xs[3], lse, xs[0], xs[1], xs[2], o)
		}
		return f.s.Sync()
	}
	refused := func(what string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "attention") || !strings.Contains(err.Error(), "bf16") {
			t.Errorf("%s: error %v", what, err)
		}
	}
	every, none := func(int) bool { return true }, func(int) bool { return false }
	for _, n := range []int{forward, len(names)} {
		for _, halves := range []func(int) bool{every, none} {
			if err := try(n, true, halves, false); err != nil {
				t.Error(err)
			}
		}
		for odd := range n {
			refused("only "+names[odd]+" in F32", try(n, true, func(i int) bool { return i != odd }, false))
			refused("only "+names[odd]+" in BF16", try(n, true, func(i int) bool { return i == odd }, false))
		}
		refused("no rounding", try(n, false, every, false))
		refused("lse in BF16", try(n, true, every, true))
	}
}
