package devicetest

import (
	"testing"

	"contraflow/gpustage"
)

// testRepeat: what Repeat is given does what it does without, each time that it comes. Pieces of work that come in turns differ in one thing
// each, so that a device which takes one for another is seen: a number, a place in memory, a size, the longest row, which decides about a
// grid alone, or what is copied in its middle. They add to what is there.
func testRepeat(t *testing.T, dev gpustage.Device) {
	const rows, cols, out = 37, 12, 8
	f := newFixture(t, dev, 23, 3)
	x, y, z, w := f.floats("x", rows, cols, nil), f.floats("y", rows, cols, nil), f.floats("z", rows, cols, nil), f.floats("w", out, cols, nil)
	total, product, ctx, lse := f.floats("total", rows, cols, nil), f.floats("product", rows, out, nil), f.floats("ctx", rows, cols, nil), f.floats("lse", 1, rows, nil)
	gamma, dGamma, dBeta := f.vector("gamma", cols, nil), f.vector("dGamma", cols, nil), f.vector("dBeta", cols, nil)
	mean, rstd := f.vector("mean", rows, nil), f.vector("rstd", rows, nil)
	cu := f.ints("cu", make([]int32, 5))
	f.gap = 0
	values := f.floats("values", rows, cols, nil)
	numbers := make([]float64, rows*cols)
	for i := range numbers {
		numbers[i] = f.rng.NormFloat64()
	}

	type piece struct {
		alpha float64 // of all but the product
		times float64 // the product's
		at    *arg
		rows  int
		cu    []float64
		copy  float64 // times numbers is what is copied from the host; 0: nothing is
	}
	short, long := []float64{0, 10, 20, 30, 37}, []float64{0, 2, 5, 17, 37} // as many rows and tokens, the longest of 10 and 20
	pieces := []piece{
		{0.5, 0.3, x, rows, long, 0}, {0.25, 0.3, x, rows, long, 0}, {0.5, -0.3, x, rows, long, 0}, {0.5, 0.3, y, rows, long, 0}, {0.5, 0.3, x, rows - 9, long, 0},
		{0.5, 0.3, x, rows, short, 0}, {0.5, 0.3, x, rows, long, -0.5}, {0.25, 0.3, x, rows, long, 1},
	}
	issue := func(s gpustage.Stream, get picker, p piece) {
		a, sum, part := get(p.at).Span(0, p.rows), get(z).Span(0, p.rows), get(total).Span(0, p.rows)
		m, r := get(mean).Columns(0, p.rows), get(rstd).Columns(0, p.rows)
		s.RowAxpy(get(z), get(values), get(rstd), p.alpha)
		s.Scale(part, a, p.alpha)
		s.Add(sum, sum, part)
		s.MatMul(get(product).Span(0, p.rows), a, get(w), gpustage.MatMul{TransB: true, Add: true, Alpha: p.times})
		s.LayerNorm(part, m, r, a, get(gamma), gpustage.Tensor{}, 1e-5)
		s.LayerNormBackward(part, get(dGamma), get(dBeta), sum, a, m, r, get(gamma), gpustage.Dropped{})
		if p.copy != 0 {
			vs := make([]float64, len(numbers))
			for i, v := range numbers {
				vs[i] = v * p.copy
			}
			upload(s, get(values), vs)
		}
		longest := 10
		if p.cu[1] == 2 {
			longest = 20
		}
		s.Fill(get(ctx), 7) // what is not computed shows
		s.Attention(get(ctx), get(lse), get(x), get(y), get(values), gpustage.Attention{
			Seqs: gpustage.Sequences{Rows: 4, Tokens: rows, MaxLen: longest, Cu: get(cu)}, Heads: 1, HeadDim: cols, Scale: p.alpha,
		})
		s.Add(get(z), get(z), get(ctx))
		s.Scale(get(z), get(z), 0.5)
		s.RowAxpy(get(z), get(values), get(rstd), p.alpha)
	}
	f.run(func(s gpustage.Stream, get picker) {
		for range 4 {
			for _, p := range pieces {
				upload(s, get(cu), p.cu)
				gpustage.Repeat(s, func() { issue(s, get, p) })
			}
		}
	})
	for _, a := range []*arg{z, total, product, ctx, lse, dGamma, dBeta, mean, rstd} {
		f.check(a, 4000)
	}
	f.untouched(x, y, w, gamma)
	// Who waits for an event within it has what was issued before, and what comes after waits in its turn.
	e, o := newFixture(t, dev, 5, 0), newFixture(t, dev, 6, 0)
	v, seen := e.floats("v", 40, 30, nil).dev, e.floats("seen", 40, 30, nil).dev
	e.s.Fill(v, 1)
	for turn := range 4 {
		gpustage.Repeat(e.s, func() {
			for range 5 {
				e.s.Scale(v, v, 2)
			}
			o.s.Wait(e.s.Record())
			o.s.Copy(seen, v)
			e.s.Wait(o.s.Record())
			e.s.Fill(v, 1)
		})
		if got := download(t, o.s, seen)[7]; got != 32 {
			t.Errorf("turn %d: a stream that waits for an event has %v, want 32", turn, got)
		}
		done(t, e.s)
	}
	// A mistake in it comes out as ever, and nothing more is done.
	g := newFixture(t, dev, 1, 0)
	a, b := g.floats("a", 3, 4, nil), g.floats("b", 4, 3, nil)
	for range 3 {
		gpustage.Repeat(g.s, func() {
			g.s.Scale(a.dev, a.dev, 2)
			g.s.Add(a.dev, a.dev, b.dev)
			g.s.Scale(a.dev, a.dev, 2)
		})
	}
	if g.s.Sync() == nil {
		t.Error("an op with tensors that don't fit was accepted")
	}
}
