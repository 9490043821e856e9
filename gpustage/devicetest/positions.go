package devicetest

import (
	"math"
	"slices"
	"strings"
	"testing"

	"contraflow/gpustage"
)

// positions are a case's: keys and queries are columns of one tensor, as a projection of both leaves them.
type positions struct {
	c                  attentionCase
	table, grads, rows *arg
}

// newPositions makes rows as DeBERTa has them: near distances have one each, far ones share, the farthest on one side are cut off. Some rows
// are of no distance.
func (c attentionCase) newPositions(f *fixture, q sequences) (p positions) {
	p.c = c
	if c.positions == "" {
		return p
	}
	longest := 1
	for _, n := range c.lengths {
		longest = max(longest, n)
	}
	const near, count = 10, 38
	reach := longest + 3
	rows := make([]int32, 2*reach-1)
	for i := range rows {
		d := i - (reach - 1)
		far := math.Abs(float64(d))
		if far > near {
			far = near + math.Ceil(3*math.Log(far/near))
		}
		rows[i] = int32(max(0, min(count-4, count/2-int(math.Copysign(far, float64(d))))))
	}
	e := c.heads * c.dim
	p.rows = f.ints("rows", rows)
	p.table = f.tensor("positions", c.halves, count, 2*e, func(int, int) float64 { return f.rng.NormFloat64() })
	p.grads = f.floats("dPositions", count, 2*e, nil) // they begin with something, which the op adds to
	return p
}

func (p positions) on(x picker, e int) (o gpustage.Positions) {
	if p.table == nil {
		return o
	}
	o.Rows = x(p.rows)
	halves := func(t gpustage.Tensor) (queries, keys gpustage.Tensor) { return t.Columns(0, e), t.Columns(e, 2*e) }
	o.Queries, o.Keys = halves(x(p.table))
	o.DQueries, o.DKeys = halves(x(p.grads))
	switch p.c.positions {
	case "keys":
		o.Queries, o.DQueries = gpustage.Tensor{}, gpustage.Tensor{}
	case "queries":
		o.Keys, o.DKeys = gpustage.Tensor{}, gpustage.Tensor{}
	}
	if p.c.frozen {
		o.DKeys, o.DQueries = gpustage.Tensor{}, gpustage.Tensor{}
	}
	return o
}

func testPositions(t *testing.T, dev gpustage.Device) {
	for _, c := range []attentionCase{
		{heads: 1, dim: 4, lengths: []int{1}, positions: "both"},
		{heads: 3, dim: 8, lengths: []int{3, 1, 17, 0, 40}, positions: "both"},
		{heads: 2, dim: 64, lengths: []int{33, 150}, positions: "both", p: 0.2, gap: 3},
		{heads: 2, dim: 5, lengths: []int{9, 40}, positions: "keys", p: 0.3},
		{heads: 2, dim: 16, lengths: []int{20, 7, 33}, positions: "queries"},
		{heads: 1, dim: 16, lengths: []int{300, 20}, positions: "both"},
		{heads: 2, dim: 12, lengths: slices.Repeat([]int{5, 30, 2}, 7), positions: "both", p: 0.1},
		{heads: 2, dim: 16, lengths: []int{50, 140}, positions: "both", causal: true, window: 9, cap: 2},
		{heads: 2, dim: 16, lengths: []int{150, 40}, positions: "both", window: 30},
		{heads: 1, dim: 128, lengths: []int{40, 21}, positions: "both"},
		{heads: 2, dim: 20, lengths: []int{19, 30}, positions: "both", frozen: true},
		{heads: 2, dim: 32, lengths: []int{40, 9}, positions: "both", bf16: true, p: 0.2},
		{heads: 1, dim: 64, lengths: []int{140}, positions: "both", bf16: true},
	} {
		c.test(t, dev, 14)
	}
	t.Run("refused", func(t *testing.T) { testPositionsRefused(t, dev) })
}

// Positions that do not fit are refused, and nothing is written.
func testPositionsRefused(t *testing.T, dev gpustage.Device) {
	for want, spoil := range map[string]func(o *gpustage.Attention){
		"positions without their Rows":                  func(o *gpustage.Attention) { o.Positions.Rows = gpustage.Tensor{} },
		"neither Keys nor Queries":                      func(o *gpustage.Attention) { o.Positions = gpustage.Positions{Rows: o.Positions.Rows} },
		"2 heads and 1 key-value heads":                 func(o *gpustage.Attention) { o.KVHeads = 1 },
		"Bias and positions exclude each other":         func(o *gpustage.Attention) { o.Bias = o.Positions.Keys.Span(0, 1).Columns(0, 2) },
		"an odd number of at least 9":                   func(o *gpustage.Attention) { o.Positions.Rows = o.Positions.Rows.Columns(0, 7) },
		"the positions' Keys is":                        func(o *gpustage.Attention) { o.Positions.Keys = o.Positions.Keys.Span(0, 5) },
		"a gradient of positions without what it is of": func(o *gpustage.Attention) { o.Positions.Keys = gpustage.Tensor{} },
	} {
		f := newFixture(t, dev, 19, 0)
		q := f.sequences([]int{5, 2})
		const dim = 4
		x, ctx, lse := f.floats("x", q.tokens, 2*dim, nil), f.floats("ctx", q.tokens, 2*dim, nil), f.floats("lse", 2, q.tokens, nil)
		table, grads, rows := f.floats("table", 6, 4*dim, nil), f.floats("grads", 6, 4*dim, nil), f.ints("rows", []int32{5, 5, 4, 3, 3, 2, 2, 1, 0})
		was := download(t, f.s, ctx.back)
		o := gpustage.Attention{Seqs: q.on(func(a *arg) gpustage.Tensor { return a.dev }), Heads: 2, HeadDim: dim, Scale: 0.3, Positions: gpustage.Positions{
			Keys: table.dev.Columns(0, 2*dim), Queries: table.dev.Columns(2*dim, 4*dim), Rows: rows.dev, DKeys: grads.dev.Columns(0, 2*dim), DQueries: grads.dev.Columns(2*dim, 4*dim),
		}}
		k := x.dev
		spoil(&o)
		if o.KVHeads == 1 {
			k = k.Columns(0, dim)
		}
		f.s.Attention(ctx.dev, lse.dev, x.dev, k, k, o)
		if err := f.s.Sync(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
		s, err := dev.OpenStream()
		if err != nil {
			t.Fatal(err)
		}
		for i, v := range download(t, s, ctx.back) {
			if v != was[i] {
				t.Errorf("%s: element %d was written", want, i)
				break
			}
		}
		s.Close()
	}
}
