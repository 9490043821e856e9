package devicetest

import (
	"slices"
	"strings"
	"testing"

	"contraflow/gpustage"
)

// testHalvesAttention is attention whose tensors are BF16 on the device. With a gap of 8, and heads of so many features, they begin at
// multiples of 16 bytes.
func testHalvesAttention(t *testing.T, dev gpustage.Device) {
	if !gpustage.TakesBF16(dev) {
		return
	}
	for _, c := range []attentionCase{
		{heads: 1, dim: 32, lengths: []int{1}},
		{heads: 1, dim: 64, lengths: []int{5}},
		{heads: 1, dim: 128, lengths: []int{17}},
		{heads: 4, dim: 32, lengths: []int{64, 65, 1, 130}},
		{heads: 2, dim: 64, lengths: []int{130, 5, 64}, gap: 8},
		{heads: 2, dim: 128, lengths: []int{65, 17}, gap: 8},
		{heads: 2, dim: 32, lengths: []int{17, 65, 5}, gap: 3},
		{heads: 2, dim: 64, lengths: []int{130, 1}, gap: 3, p: 0.2},
		{heads: 2, kv: 1, dim: 64, lengths: []int{257, 140}, gap: 8, p: 0.2}, // more keys than a block has
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
		{heads: 3, kv: 1, dim: 256, lengths: []int{70, 33}, gap: 8, cap: 3, p: 0.2, window: 40},
		{heads: 2, dim: 256, lengths: []int{97, 48, 49}, p: 0.1, gap: 8},
		{heads: 2, kv: 1, dim: 256, lengths: []int{130}, causal: true, window: 70, cap: 2},
		{heads: 1, dim: 256, lengths: []int{33}, bias: 9},
		{heads: 2, dim: 64, lengths: []int{33, 70}, causal: true, negative: true},
		{heads: 2, dim: 64, lengths: []int{65, 17}, cap: 3},
		{heads: 1, dim: 32, lengths: []int{100}, window: 50}, // hides keys from the last 16 of 32 queries alone
		{heads: 1, dim: 64, lengths: []int{100}, window: 50},
		{heads: 1, dim: 128, lengths: []int{70}, window: 50},
		{heads: 2, dim: 32, lengths: []int{64, 1, 17}, bias: 33, p: 0.2},
		{heads: 2, dim: 64, lengths: []int{33, 70, 1}, bias: 33, p: 0.2},
		{heads: 1, dim: 64, lengths: []int{140}, bias: 257, gap: 8},
		{heads: 1, dim: 64, lengths: []int{40, 70}, bias: 9, causal: true, window: 20, gap: 3},
		{heads: 1, dim: 64, lengths: slices.Repeat([]int{3, 17}, 35), bias: 17, p: 0.1},
		{heads: 2, dim: 64, lengths: []int{33, 5}, bias: 9, around: 95},
		{heads: 1, dim: 64, lengths: []int{33}, bias: 9, around: 95, causal: true},
		{heads: 2, dim: 64, lengths: []int{33}, bias: 9, cap: 3},
		{heads: 1, dim: 64, lengths: []int{40}, bias: 1025},
		{heads: 1, dim: 64, lengths: []int{40}, bias: 1027},
		{heads: 1, dim: 64, lengths: []int{0, 40, 0}, bias: 33, p: 0.1},
		{heads: 2, kv: 1, dim: 64, lengths: []int{33}, bias: 1},
		{heads: 2, dim: 64, lengths: []int{33}, bias: 1},
		{heads: 2, kv: 1, dim: 128, lengths: []int{65}, bias: 9, causal: true, gap: 8},
		{heads: 2, dim: 64, lengths: []int{128, 5, 64, 100}, gap: 8, p: 0.2}, // sequences that one block may have
		{heads: 3, dim: 32, lengths: []int{96, 128, 17}, gap: 8, p: 0.2},
		{heads: 2, dim: 64, lengths: []int{40, 64, 3}, p: 0.3},
		{heads: 4, kv: 2, dim: 32, lengths: []int{40, 70}, p: 0.1}, // as short, of heads that share keys
		{heads: 2, kv: 1, dim: 64, lengths: []int{40}},
		{heads: 2, dim: 32, lengths: []int{33, 64, 100}, gap: 8, p: 0.2}, // short ones beside one that is not: two heads to a block
		{heads: 1, dim: 64, lengths: []int{70, 20}, gap: 8, p: 0.7},
		{heads: 1, dim: 32, lengths: []int{33, 1, 64}, gap: 3, p: 0.1},
		{heads: 1, dim: 64, lengths: []int{0, 33, 0, 128}, causal: true, window: 20, p: 0.1},
		{heads: 1, dim: 32, lengths: []int{0, 127}, causal: true, gap: 8},
		{heads: 2, dim: 64, lengths: []int{33, 17}, negative: true, gap: 8},
		{heads: 2, dim: 64, lengths: []int{33, 0, 70}, positions: "both", gap: 8, p: 0.2},
		{heads: 2, dim: 20, lengths: []int{17, 5}, positions: "keys", gap: 3},
		{heads: 1, dim: 32, lengths: []int{40}, positions: "queries", frozen: true},
	} {
		c.bf16, c.halves = true, true
		c.test(t, dev, 31)
	}
	t.Run("refused", func(t *testing.T) { testHalvesAttentionRefused(t, dev) })
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
	positions := func(half, others bool) error { // of keys of positions, beside the others
		f := newFixture(t, dev, 33, 0)
		const dim = 32
		q := f.sequences([]int{9, 3})
		x, ctx, lse := f.operand("x", others, q.tokens, dim, nil).dev, f.operand("ctx", others, q.tokens, dim, nil).dev, f.floats("lse", 1, q.tokens, nil).dev
		o := gpustage.Attention{Seqs: q.on(func(a *arg) gpustage.Tensor { return a.dev }), Heads: 1, HeadDim: dim, Scale: 0.2, BF16: true}
		o.Positions = gpustage.Positions{Keys: f.operand("keys", half, 2, dim, nil).dev, Rows: f.ints("rows", make([]int32, 17)).dev}
		f.s.Attention(ctx, lse, x, x, x, o)
		return f.s.Sync()
	}
	refused := func(what string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "attention") || !strings.Contains(err.Error(), "bf16") {
			t.Errorf("%s: error %v", what, err)
		}
	}
	refused("only positions in BF16", positions(true, false))
	refused("only positions in F32", positions(false, true))
	if err := positions(true, true); err != nil {
		t.Error(err)
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
