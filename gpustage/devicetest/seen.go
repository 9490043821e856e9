package devicetest

import (
	"slices"
	"strings"
	"testing"

	"contraflow/gpustage"
)

// unseen tells whether a case's token is no key. Then the case has NaN for what it would be as one, which nobody is to read.
func (c attentionCase) unseen(token int) bool {
	for b, n := range c.lengths {
		if c.seen != nil && token < n {
			return token >= c.seen[b]
		}
		token -= n
	}
	return false
}

func (c attentionCase) newSeen(f *fixture) *arg {
	if c.seen == nil {
		return nil
	}
	var seen []int32
	for _, n := range c.seen {
		seen = append(seen, int32(n))
	}
	return f.ints("seen", seen)
}

// checkUnseen checks that the gradients of tokens as keys that they are not are zero: dqkv began with something.
func (c attentionCase) checkUnseen(f *fixture, dqkv *arg, e int) {
	f.t.Helper()
	got := download(f.t, f.s, dqkv.back)
	for t := range dqkv.dev.Rows {
		for j := c.lead + e; j < dqkv.dev.Cols && c.unseen(t); j++ {
			if v := got[dqkv.dev.Off+t*dqkv.dev.Stride+j]; v != 0 {
				f.t.Errorf("token %d is no key, and column %d of its gradient is %v", t, j, v)
				return
			}
		}
	}
}

func testSeen(t *testing.T, dev gpustage.Device) {
	cases := []attentionCase{
		{heads: 1, dim: 4, lengths: []int{1, 2}, seen: []int{1, 1}},
		{heads: 2, dim: 5, lengths: []int{9, 40, 3}, seen: []int{4, 33, 3}},
		{heads: 4, kv: 2, dim: 16, lengths: []int{20, 7, 32, 33}, seen: []int{1, 7, 31, 17}},
		{heads: 2, dim: 32, lengths: []int{40, 2, 33}, seen: []int{12, 2, 32}, p: 0.3},
		{heads: 1, dim: 64, lengths: []int{31, 65}, seen: []int{5, 64}},
		{heads: 2, kv: 1, dim: 128, lengths: []int{33, 17}, seen: []int{16, 17}, p: 0.1},
		{heads: 2, kv: 1, dim: 256, lengths: []int{9, 18}, seen: []int{8, 3}, cap: 3},
		{heads: 2, dim: 8, lengths: []int{20, 30}, seen: []int{6, 18}, causal: true},
		{heads: 4, kv: 2, dim: 12, lengths: []int{20, 50}, seen: []int{6, 18}, window: 4, p: 0.2},      // the last ones see no key
		{heads: 1, dim: 8, lengths: []int{150, 40}, seen: []int{20, 2}, window: 9},                     // in blocks that see none
		{heads: 2, kv: 1, dim: 8, lengths: []int{40, 70}, seen: []int{9, 50}, causal: true, window: 9}, // on one side
		{heads: 2, dim: 8, lengths: []int{5, 0, 40}, seen: []int{0, 0, 20}},
		{heads: 2, dim: 12, lengths: []int{20, 40, 5}, seen: []int{3, 35, 5}, bias: 17, p: 0.3},
		{heads: 4, kv: 2, dim: 8, lengths: []int{30, 20}, seen: []int{9, 20}, bias: 9, cap: 2, window: 6},
		{heads: 2, dim: 32, lengths: []int{32, 12, 32}, seen: []int{7, 12, 20}, bf16: true, p: 0.2},
		{heads: 2, kv: 1, dim: 64, lengths: []int{32, 40}, seen: []int{12, 33}, bf16: true},
		{heads: 1, dim: 128, lengths: []int{35}, seen: []int{20}, bf16: true, causal: true},
	}
	if gpustage.TakesBF16(dev) {
		for _, c := range []attentionCase{
			{heads: 2, dim: 32, lengths: []int{32, 17, 32}, seen: []int{9, 17, 31}, gap: 8, p: 0.2},
			{heads: 2, dim: 64, lengths: []int{32, 35}, seen: []int{1, 33}, gap: 8},
			{heads: 2, kv: 1, dim: 64, lengths: []int{32, 70}, seen: []int{12, 20}, window: 20, p: 0.1},
			{heads: 2, dim: 64, lengths: []int{32, 20}, seen: []int{12, 20}, bias: 17},
			{heads: 2, kv: 1, dim: 128, lengths: []int{20}, seen: []int{12}, causal: true},
			{heads: 1, dim: 256, lengths: []int{17}, seen: []int{12}},
			{heads: 2, dim: 20, lengths: []int{32, 9}, seen: []int{12, 9}, gap: 3},
		} {
			c.bf16, c.halves = true, true
			cases = append(cases, c)
		}
	}
	for _, c := range cases {
		c.test(t, dev, 47)
	}
	t.Run("all", func(t *testing.T) { testAllSeen(t, dev) })
	t.Run("refused", func(t *testing.T) { testSeenRefused(t, dev) })
}

// Of sequences whose tokens are all keys the results are what they are without Seen: to the bit where kernels are the same.
func testAllSeen(t *testing.T, dev gpustage.Device) {
	run := func(seen bool) (all []float64) {
		f := newFixture(t, dev, 48, 0)
		q := f.sequences([]int{33, 1, 20})
		const dim = 12
		xs := map[string]*arg{}
		for _, name := range []string{"q", "k", "v", "dctx", "ctx", "dq", "dk", "dv"} {
			xs[name] = f.floats(name, q.tokens, 2*dim, nil)
		}
		lse, counts := f.floats("lse", 2, q.tokens, nil), f.ints("seen", []int32{33, 1, 20})
		on := func(a *arg) gpustage.Tensor { return a.dev }
		o := gpustage.Attention{Seqs: q.on(on), Heads: 2, HeadDim: dim, Scale: 0.3, Window: 9, Dropout: gpustage.Dropout{P: 0.2, Seqs: q.on(on)}}
		if seen {
			o.Seen = counts.dev
		}
		at := func(name string) gpustage.Tensor { return xs[name].dev }
		f.s.Attention(at("ctx"), lse.dev, at("q"), at("k"), at("v"), o)
		f.s.AttentionBackward(at("dq"), at("dk"), at("dv"), at("dctx"), at("ctx"), lse.dev, at("q"), at("k"), at("v"), o)
		for _, a := range []*arg{xs["ctx"], lse, xs["dq"], xs["dk"], xs["dv"]} {
			all = append(all, download(t, f.s, a.back)...)
		}
		return all
	}
	if !slices.Equal(run(true), run(false)) {
		t.Error("they differ")
	}
}

// What does not fit is refused, and nothing is written.
func testSeenRefused(t *testing.T, dev gpustage.Device) {
	for want, spoil := range map[string]func(f *fixture, o *gpustage.Attention){
		"Seen is i32[1 1]": func(_ *fixture, o *gpustage.Attention) { o.Seen = o.Seen.Columns(0, 1) },
		"Seen and positions exclude each other": func(f *fixture, o *gpustage.Attention) {
			o.Positions = gpustage.Positions{Keys: f.floats("keys", 1, 8, nil).dev, Rows: f.ints("rows", make([]int32, 9)).dev}
		},
	} {
		f := newFixture(t, dev, 19, 0)
		q := f.sequences([]int{5, 2})
		x, ctx, lse := f.floats("x", q.tokens, 8, nil), f.floats("ctx", q.tokens, 8, nil), f.floats("lse", 2, q.tokens, nil)
		was := download(t, f.s, ctx.back)
		o := gpustage.Attention{Seqs: q.on(func(a *arg) gpustage.Tensor { return a.dev }), Heads: 2, HeadDim: 4, Scale: 0.3, Seen: f.ints("seen", []int32{3, 2}).dev}
		spoil(f, &o)
		f.s.Attention(ctx.dev, lse.dev, x.dev, x.dev, x.dev, o)
		if err := f.s.Sync(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
		s, err := dev.OpenStream()
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(download(t, s, ctx.back), was) {
			t.Errorf("%s: something was written", want)
		}
		s.Close()
	}
}
