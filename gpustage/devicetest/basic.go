package devicetest

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"contraflow/gpustage"
)

func testMemory(t *testing.T, dev gpustage.Device) {
	for _, n := range []int{0, 1, 1000, 3 << 20} {
		m, err := dev.Alloc(n)
		if err != nil {
			t.Fatal(err)
		}
		if m.Bytes() != n {
			t.Errorf("%d bytes allocated, %d asked for", m.Bytes(), n)
		}
		s, err := dev.OpenStream()
		if err != nil {
			t.Fatal(err)
		}
		if n >= 4 {
			x := gpustage.Tensor{Mem: m, Rows: 1, Cols: n / 4, Stride: n / 4, DType: gpustage.F32}
			for i, v := range download(t, s, x) {
				if v != 0 {
					t.Fatalf("element %d of fresh memory is %v", i, v)
				}
			}
		}
		if err := m.Free(); err != nil {
			t.Error(err)
		}
		s.Close()
	}
	if _, err := dev.Alloc(1 << 50); !errors.Is(err, gpustage.ErrOutOfMemory) {
		t.Errorf("allocating a pebibyte: %v", err)
	}
}

// What is copied in is the host's again at once, however much of it a stream has not come to yet; and another stream that waits for
// an event finds it, and what was made of it.
func testStreams(t *testing.T, dev gpustage.Device) {
	f, g := newFixture(t, dev, 1, 0), newFixture(t, dev, 1, 0)
	const pieces, n = 10, 300_000
	x, err := gpustage.NewTensor(dev, gpustage.F32, pieces, n)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Mem.Free()
	src := make([]float32, n)
	for i := range pieces {
		for j := range src {
			src[j] = float32(i*n + j)
		}
		f.s.CopyIn(x.Span(i, i+1), gpustage.Bytes(src))
		f.s.Scale(x.Span(i, i+1), x.Span(i, i+1), 2)
	}
	clear(src)
	before := f.s.Record()
	g.s.Record() // is another one, which has come
	g.s.Wait(before)
	g.s.Add(x, x, x)
	event := g.s.Record()
	if err := event.Sync(); err != nil {
		t.Fatal(err)
	}
	for i, v := range download(t, f.s, x) {
		if v != float64(4*float32(i)) {
			t.Fatalf("element %d is %v, want %v", i, v, 4*float32(i))
		}
	}
}

// The last ones are of more rows than a device gives to one thread.
var sizes = [][2]int{{1, 1}, {1, 7}, {2, 16}, {3, 33}, {5, 64}, {17, 100}, {33, 31}, {64, 129}, {7, 384}, {130, 65}, {301, 7}, {701, 50}}

func testBasic(t *testing.T, dev gpustage.Device) {
	for _, sz := range sizes {
		for _, gap := range []int{0, 5} {
			t.Run(name(sz, "gap", gap), func(t *testing.T) {
				f := newFixture(t, dev, 2, gap)
				a, b := f.floats("a", sz[0], sz[1], nil), f.floats("b", sz[0], sz[1], nil)
				sum, twice := f.floats("sum", sz[0], sz[1], nil), f.floats("twice", sz[0], sz[1], nil)
				copied, filled := f.floats("copied", sz[0], sz[1], nil), f.floats("filled", sz[0], sz[1], nil)
				cols := f.vector("columns", sz[1], nil)
				f.run(func(s gpustage.Stream, x picker) {
					s.Add(x(sum), x(a), x(b))
					s.Scale(x(twice), x(a), -2.5)
					s.Copy(x(copied), x(a))
					s.Fill(x(filled), 0.75)
					s.ColumnSum(x(cols), x(a))
				})
				f.check(sum, 1)
				f.check(twice, 1)
				f.check(copied, 0)
				f.check(filled, 0)
				f.check(cols, 2*float64(sz[0]))
				f.untouched(a, b)
				f.run(func(s gpustage.Stream, x picker) { // through bf16: the same bits everywhere
					half, err := gpustage.NewTensor(s.Device(), gpustage.BF16, sz[0], sz[1])
					if err != nil {
						t.Fatal(err)
					}
					s.Copy(half, x(a))
					s.Copy(x(copied), half)
				})
				f.check(copied, 0)
				f.run(func(s gpustage.Stream, x picker) { s.Add(x(a), x(a), x(b)); s.Scale(x(b), x(b), 3) })
				f.check(a, 1)
				f.check(b, 1)
				// In f64: beyond an f32's digits, and the same bits everywhere.
				normal := func(int, int) float64 { return f.rng.NormFloat64() }
				p, q := f.make("p", gpustage.F64, gpustage.F64, sz[0], sz[1], gap, normal), f.make("q", gpustage.F64, gpustage.F64, sz[0], sz[1], gap, normal)
				r := f.make("r", gpustage.F64, gpustage.F64, sz[0], sz[1], gap, normal)
				f.run(func(s gpustage.Stream, x picker) {
					s.Add(x(r), x(p), x(q))
					s.Add(x(q), x(p), x(q))
					s.Copy(x(p), x(r))
				})
				f.check(p, 0)
				f.check(q, 0)
				f.check(r, 0)
			})
		}
	}
}

func testGather(t *testing.T, dev gpustage.Device) {
	// Tables of so few rows that one has most of the tokens, and of so many that some have none.
	for _, v := range []int{1, 3, 11, 400} {
		for _, sz := range sizes {
			f := newFixture(t, dev, 3, 0)
			tokens, c := sz[0], sz[1]
			index := make([]int32, tokens)
			for i := range index {
				index[i] = int32(min(f.rng.IntN(v), f.rng.IntN(v)))
			}
			table, idx := f.floats("table", v, c, nil), f.ints("index", index)
			y, dTable := f.floats("y", tokens, c, nil), f.floats("dTable", v, c, nil)
			f.run(func(s gpustage.Stream, x picker) {
				s.Gather(x(y), x(table), x(idx), false)
				s.Gather(x(y), x(table), x(idx), true)
				s.ScatterAdd(x(dTable), x(y), x(idx))
			})
			f.check(y, 1)
			f.check(dTable, 4*float64(tokens))
			f.untouched(table)
			if t.Failed() {
				t.Fatal("at", v, sz)
			}
		}
	}
}

func testEmbed(t *testing.T, dev gpustage.Device) {
	for _, w := range []struct {
		norm, beta, places, kinds bool
		scale, p                  float64
		reuse                     bool // sum is y
	}{
		{norm: true, beta: true, places: true, kinds: true, p: 0.1},
		{norm: true, beta: true, places: true, kinds: true, reuse: true},
		{norm: true, beta: true, places: true, reuse: true, p: 0.5},
		{norm: true, kinds: true, scale: 3},
		{norm: true, p: 0.3},
		{scale: 0.5, p: 0.1},
		{places: true},
		{},
	} {
		for _, c := range []int{2, 7, 16, 33, 130, 768, 1030} {
			for _, gap := range []int{0, 3} {
				f := newFixture(t, dev, 12, gap)
				q := f.sequences([]int{3, 1, 17, 9})
				lookup := func(name string, rows int) (table, index *arg) {
					vs := make([]int32, q.tokens)
					for i := range vs {
						vs[i] = int32(f.rng.IntN(rows))
					}
					return f.floats(name, rows, c, nil), f.ints(name+" of tokens", vs)
				}
				words, ids := lookup("words", 40)
				places, placeOf := lookup("places", 17)
				kinds, kindOf := lookup("kinds", 2)
				gamma, beta := f.vector("gamma", c, nil), f.vector("beta", c, nil)
				y, sum := f.floats("y", q.tokens, c, nil), f.floats("sum", q.tokens, c, nil)
				mean, rstd := f.vector("mean", q.tokens, nil), f.vector("rstd", q.tokens, nil)
				operand := f.copyFor("operand", q.tokens, c)
				f.run(func(s gpustage.Stream, x picker) {
					o := gpustage.Embed{
						Operand: f.in(s, operand),
						Words:   gpustage.Lookup{Table: x(words), Index: x(ids)}, Scale: w.scale, Eps: 1e-2, // two features may be nearly equal
						Dropout: gpustage.Dropout{P: w.p, Seqs: q.on(x), Site: gpustage.SiteEmbeddings},
					}
					if w.places {
						o.Positions = gpustage.Lookup{Table: x(places), Index: x(placeOf)}
					}
					if w.kinds {
						o.Kinds = gpustage.Lookup{Table: x(kinds), Index: x(kindOf)}
					}
					if w.beta {
						o.Beta = x(beta)
					}
					switch none := (gpustage.Tensor{}); {
					case !w.norm:
						s.Embed(x(y), none, none, none, o)
					case w.reuse:
						o.Gamma = x(gamma)
						s.Embed(x(y), x(y), x(mean), x(rstd), o)
					default:
						o.Gamma = x(gamma)
						s.Embed(x(y), x(sum), x(mean), x(rstd), o)
					}
				})
				f.check(y, 200) // as a layer norm's
				f.checkCopy(operand, y)
				f.check(sum, 8) // or as it was
				f.check(mean, 8)
				f.check(rstd, 64)
				f.untouched(words, places, kinds, gamma, beta, ids, placeOf, kindOf)
				if t.Failed() {
					t.Fatalf("at %+v, %d columns, gap %d", w, c, gap)
				}
			}
		}
	}
	f := newFixture(t, dev, 13, 0)
	y, table, index, gamma := f.floats("y", 3, 4, nil), f.floats("table", 5, 4, nil), f.ints("index", []int32{0, 1, 2}), f.vector("gamma", 4, nil)
	f.s.Embed(y.dev, gpustage.Tensor{}, gpustage.Tensor{}, gpustage.Tensor{}, gpustage.Embed{Words: gpustage.Lookup{Table: table.dev, Index: index.dev}, Gamma: gamma.dev})
	if err := f.s.Sync(); err == nil || !strings.Contains(err.Error(), "embed: sum is missing, want f32[3 4]") {
		t.Errorf("a norm without room for its input: error %v", err)
	}
}

func testLayerNorm(t *testing.T, dev gpustage.Device) {
	for _, sz := range append(sizes, [2]int{5, 1024}, [2]int{3, 1030}, [2]int{70, 772}, [2]int{3, 1536}, [2]int{3, 2052}) { // a device may keep short rows in registers
		for _, eps := range []float64{1e-12, 0.3} {
			f := newFixture(t, dev, 4, 0)
			rows, c := sz[0], sz[1]
			x := f.floats("x", rows, c, func(i, j int) float64 { return 3 + 2*f.rng.NormFloat64() })
			gamma, beta := f.vector("gamma", c, nil), f.vector("beta", c, nil)
			y, mean, rstd := f.floats("y", rows, c, nil), f.vector("mean", rows, nil), f.vector("rstd", rows, nil)
			dy, dx := f.floats("dy", rows, c, nil), f.floats("dx", rows, c, nil)
			dGamma, dBeta := f.vector("dGamma", c, nil), f.vector("dBeta", c, nil)
			if c == 1 { // the variance is zero and rstd is 1/sqrt(eps): nothing to compare but that it does not fail
				f.run(func(s gpustage.Stream, p picker) { s.LayerNorm(p(y), p(mean), p(rstd), p(x), p(gamma), p(beta), eps) })
				continue
			}
			f.run(func(s gpustage.Stream, p picker) {
				s.LayerNorm(p(y), p(mean), p(rstd), p(x), p(gamma), p(beta), eps)
				s.LayerNormBackward(p(dx), p(dGamma), p(dBeta), p(dy), p(x), p(mean), p(rstd), p(gamma), gpustage.Dropped{})
			})
			with, over := f.floats("with statistics", rows, c, nil), f.floats("with statistics, in place", rows, c, nil)
			f.s.Copy(over.dev, x.dev)
			f.ref.Copy(over.ref, x.ref)
			f.run(func(s gpustage.Stream, p picker) {
				s.LayerNormWith(p(with), p(x), p(mean), p(rstd), p(gamma), p(beta))
				s.LayerNormWith(p(over), p(over), p(mean), p(rstd), p(gamma), p(beta))
			})
			// A mean of 3 against a deviation of 2 loses a few bits; rows of few columns can have a small deviation.
			f.check(y, 200)
			f.check(with, 200)
			f.check(over, 200)
			if gpustage.TakesBF16(dev) {
				same(t, f, with, y, "a layer norm with statistics and one that makes them")
			}
			f.check(mean, 8)
			f.check(rstd, 200)
			f.check(dx, 800)
			f.check(dGamma, 100+20*float64(rows))
			f.check(dBeta, 4*float64(rows))
			f.untouched(x, gamma, beta, dy)
			plain := f.floats("without beta", rows, c, nil)
			f.run(func(s gpustage.Stream, p picker) {
				s.LayerNorm(p(plain), p(mean), p(rstd), p(x), p(gamma), gpustage.Tensor{}, eps)
				s.LayerNormWith(p(with), p(x), p(mean), p(rstd), p(gamma), gpustage.Tensor{})
			})
			f.check(plain, 200)
			f.check(with, 200)
			q := f.sequences([]int{rows - rows/2, rows / 2}[:1+min(1, rows/2)])
			dropped, copied, sum := f.floats("dropped", rows, c, nil), f.floats("a copy of dx", rows, c, nil), f.vector("the sum of dropped", c, nil)
			f.run(func(s gpustage.Stream, p picker) {
				d := gpustage.Dropout{P: 0.3, Seqs: q.on(p), Layer: 3, Site: gpustage.SiteFeedForward}
				s.LayerNormBackward(p(dx), gpustage.Tensor{}, p(dBeta), p(dy), p(x), p(mean), p(rstd), p(gamma), gpustage.Dropped{Y: p(dropped), Dropout: d, Sum: p(sum)})
				s.LayerNormBackward(p(dx), gpustage.Tensor{}, gpustage.Tensor{}, p(dy), p(x), p(mean), p(rstd), p(gamma), gpustage.Dropped{Y: p(copied)})
			})
			f.check(dropped, 2*800)
			f.check(copied, 800)
			f.check(sum, 2*800*math.Sqrt(float64(rows)))
			f.check(dBeta, 8*float64(rows))
			inGamma, inBeta := f.vector("dGamma in place", c, nil), f.vector("dBeta in place", c, nil)
			f.run(func(s gpustage.Stream, p picker) { // in place: the parameters' gradients are of dy as it was
				s.LayerNormBackward(p(dy), p(inGamma), p(inBeta), p(dy), p(x), p(mean), p(rstd), p(gamma), gpustage.Dropped{})
				s.LayerNorm(p(x), p(mean), p(rstd), p(x), p(gamma), p(beta), eps)
			})
			f.check(dy, 800)
			f.check(inGamma, 100+20*float64(rows))
			f.check(inBeta, 4*float64(rows))
			f.check(x, 200)
		}
	}
}

func testRMSNorm(t *testing.T, dev gpustage.Device) {
	for _, sz := range append(sizes, [2]int{70, 128}) {
		for _, groups := range []int{1, 3} {
			for _, offset := range []float64{0, 1} {
				for _, gap := range []int{0, 5} {
					f := newFixture(t, dev, 4, gap)
					rows, d := sz[0], sz[1]
					c, eps := d*groups, []float64{0.3, 1e-6}[int(offset)]
					x := f.floats("x", rows, c, func(i, j int) float64 { return 0.5 + 2*f.rng.NormFloat64() })
					gamma, y, rstd := f.vector("gamma", d, nil), f.floats("y", rows, c, nil), f.vector("rstd", rows*groups, nil)
					dy, dx, dGamma := f.floats("dy", rows, c, nil), f.floats("dx", rows, c, nil), f.vector("dGamma", d, nil)
					f.run(func(s gpustage.Stream, p picker) {
						s.RMSNorm(p(y), p(rstd), p(x), p(gamma), eps, offset)
						s.RMSNormBackward(p(dx), p(dGamma), p(dy), p(x), p(rstd), p(gamma), offset)
					})
					f.check(y, 8)
					f.check(rstd, 8) // groups of one feature may have a large one, which is compared relatively
					if d > 1 {       // of one feature the gradient is zero, but for rounding
						f.check(dx, 400)
					}
					f.check(dGamma, 20+20*float64(rows*groups))
					f.untouched(x, gamma, dy)
					inGamma := f.vector("dGamma in place", d, nil)
					f.run(func(s gpustage.Stream, p picker) { // in place: gamma's gradient is of dy as it was
						s.RMSNormBackward(p(dy), p(inGamma), p(dy), p(x), p(rstd), p(gamma), offset)
						s.RMSNorm(p(x), p(rstd), p(x), p(gamma), eps, offset)
					})
					f.check(inGamma, 20+20*float64(rows*groups))
					if d > 1 {
						f.check(dy, 400)
					}
					f.check(x, 8)
					if t.Failed() {
						t.Fatal("at", sz, groups, offset, gap)
					}
				}
			}
		}
	}
}

func testGate(t *testing.T, dev gpustage.Device) {
	for _, act := range []gpustage.Activation{gpustage.GELU, gpustage.GELUTanh, gpustage.ReLU, gpustage.SiLU} {
		for _, sz := range append(sizes, [2]int{3, 1024}, [2]int{2, 2500}) {
			f := newFixture(t, dev, 5, 0)
			rows, c := sz[0], sz[1]
			// gate and up are columns of one tensor, as one product leaves them.
			x := f.floats("x", rows, 2*c, func(i, j int) float64 { return 2 * f.rng.NormFloat64() })
			y, dy, dx := f.floats("y", rows, c, nil), f.floats("dy", rows, c, nil), f.floats("dx", rows, 2*c, nil)
			f.run(func(s gpustage.Stream, p picker) {
				gate, up := p(x).Columns(0, c), p(x).Columns(c, 2*c)
				s.Gate(p(y), gate, up, act)
				s.GateBackward(p(dx).Columns(0, c), p(dx).Columns(c, 2*c), gpustage.Tensor{}, p(dy), gate, up, act)
			})
			f.check(y, 32)
			f.check(dx, 64)
			f.untouched(x, dy)
			f.run(func(s gpustage.Stream, p picker) { // in place
				s.Gate(p(dx).Columns(0, c), p(dx).Columns(0, c), p(dx).Columns(c, 2*c), act)
				s.Gate(p(dx).Columns(c, 2*c), p(dx).Columns(0, c), p(dx).Columns(c, 2*c), act)
				gate, up := p(x).Columns(0, c), p(x).Columns(c, 2*c)
				s.GateBackward(gate, up, p(dy), p(dy), gate, up, act)
			})
			f.check(x, 64)
			f.check(dy, 32)
			f.check(dx, 2000) // products of products
			if t.Failed() {
				t.Fatal("at", act, sz)
			}
		}
	}
}

func testRotary(t *testing.T, dev gpustage.Device) {
	for _, heads := range []int{1, 3} {
		for _, dim := range []int{2, 6, 16, 34, 64, 128, 200} {
			for _, r := range []int{2, dim / 4 * 2, dim / 2 * 2} {
				if r == 0 {
					continue
				}
				f := newFixture(t, dev, 16, 3)
				tokens, places := 9, 5
				index := make([]int32, tokens)
				for i := range index {
					index[i] = int32(f.rng.IntN(places))
				}
				x, y, back := f.floats("x", tokens, heads*dim, nil), f.floats("y", tokens, heads*dim, nil), f.floats("back", tokens, heads*dim, nil)
				table := f.floats("table", places, r, nil)
				idx := f.ints("index", index)
				f.run(func(s gpustage.Stream, p picker) {
					o := gpustage.Rotary{Table: p(table), Index: p(idx), HeadDim: dim}
					s.Rotary(p(y), p(x), o)
					o.Inverse = true
					s.Rotary(p(back), p(x), o)
				})
				f.check(y, 16)
				f.check(back, 16)
				f.untouched(x, table)
				f.run(func(s gpustage.Stream, p picker) {
					s.Rotary(p(x), p(x), gpustage.Rotary{Table: p(table), Index: p(idx), HeadDim: dim})
				})
				f.check(x, 16)
			}
		}
	}
}

func testActivation(t *testing.T, dev gpustage.Device) {
	extreme := []float64{0, math.Copysign(0, -1), 1e-30, -1e-30, 1e-8, 0.5, -0.5, 1, -1, 3, -3, 5.5, -5.5, 10, -10, 40, -40, 88, -88, 1e4, -1e4, 3e38, -3e38}
	for _, act := range []gpustage.Activation{gpustage.Identity, gpustage.GELU, gpustage.GELUTanh, gpustage.ReLU, gpustage.SiLU, gpustage.Tanh} {
		for _, sz := range append(sizes, [2]int{2, len(extreme)}) {
			t.Run(name(act, sz), func(t *testing.T) {
				f := newFixture(t, dev, 5, 3)
				x := f.floats("x", sz[0], sz[1], func(i, j int) float64 {
					if sz[1] == len(extreme) {
						return extreme[j]
					}
					return 3 * f.rng.NormFloat64()
				})
				y, dy, dx := f.floats("y", sz[0], sz[1], nil), f.floats("dy", sz[0], sz[1], nil), f.floats("dx", sz[0], sz[1], nil)
				f.run(func(s gpustage.Stream, p picker) {
					s.Activate(p(y), p(x), act)
					s.ActivateBackward(p(dx), p(dy), p(x), act)
				})
				f.check(y, 8)
				f.check(dx, 16)
				f.run(func(s gpustage.Stream, p picker) {
					s.ActivateBackward(p(dy), p(dy), p(x), act)
					s.Activate(p(x), p(x), act)
				})
				f.check(dy, 16)
				f.check(x, 8)
			})
		}
	}
}

func testDropout(t *testing.T, dev gpustage.Device) {
	for _, p := range []float64{0, 0.1, 0.5, 0.99} {
		for _, c := range []int{1, 7, 8, 16, 33, 130, 4096} { // of the last some numbers are the threshold, and some are one less
			f := newFixture(t, dev, 6, 2)
			q := f.sequences([]int{3, 1, 17, 9})
			x, r := f.floats("x", q.tokens, c, nil), f.floats("residual", q.tokens, c, nil)
			y, z := f.floats("y", q.tokens, c, nil), f.floats("z", q.tokens, c, nil)
			f.run(func(s gpustage.Stream, g picker) {
				d := gpustage.Dropout{P: p, Seqs: q.on(g), Layer: 5, Site: gpustage.SiteFeedForward}
				s.Dropout(g(y), g(x), gpustage.Tensor{}, d)
				s.Dropout(g(z), g(x), g(r), d)
			})
			f.check(y, 2)
			f.check(z, 2*(1+1/(1-p)))
			f.untouched(x, r)
			f.run(func(s gpustage.Stream, g picker) {
				d := gpustage.Dropout{P: p, Seqs: q.on(g), Layer: 0, Site: gpustage.SiteEmbeddings}
				s.Dropout(g(r), g(x), g(r), d)
				s.Dropout(g(x), g(x), gpustage.Tensor{}, d)
			})
			f.check(r, 2*(1+1/(1-p)))
			f.check(x, 2)
		}
	}
}

func testPool(t *testing.T, dev gpustage.Device) {
	for _, mode := range []gpustage.Pooling{gpustage.MeanPooling, gpustage.CLSPooling, gpustage.LastPooling} {
		for _, c := range []int{1, 16, 33, 384} {
			f := newFixture(t, dev, 7, 0)
			lengths := []int{1, 40, 2, 17, 150}
			if mode == gpustage.MeanPooling {
				lengths = []int{0, 1, 40, 0, 2, 17, 150, 0}
			}
			q := f.sequences(lengths)
			x, y := f.floats("x", q.tokens, c, nil), f.floats("y", q.rows, c, nil)
			dy, dx := f.floats("dy", q.rows, c, nil), f.floats("dx", q.tokens, c, nil)
			f.run(func(s gpustage.Stream, g picker) {
				s.Pool(g(y), g(x), q.on(g), mode)
				s.PoolBackward(g(dx), g(dy), q.on(g), mode)
			})
			f.check(y, 20)
			f.check(dx, 2)
			f.untouched(x, dy)
		}
	}
}

func testBag(t *testing.T, dev gpustage.Device) {
	if !gpustage.Bags(dev) {
		t.Skip("the device pools rows of a table where Gather has put them")
	}
	for i, c := range []int{1, 16, 33, 384, 391, 1001, 1024} { // of the odd ones a later thread's part has a tail
		f := newFixture(t, dev, 23, 3*(i%2)) // the table's rows lie apart, or behind one another
		q := f.sequences([]int{0, 1, 40, 0, 2, 170, 250, 0})
		ids := make([]int32, q.tokens)
		for i := range ids {
			ids[i] = int32(i * i % 47)
		}
		index, fewer := f.ints("index", ids), f.ints("index of fewer tokens", ids[:q.tokens-9])
		table, y, dy := f.floats("table", 50, c, nil), f.floats("y", q.rows, c, nil), f.floats("dy", q.rows, c, nil)
		dTable, dFewer := f.floats("dTable", 50, c, nil), f.floats("dTable of fewer tokens", 50, c, nil)
		f.run(func(s gpustage.Stream, g picker) {
			b := s.(gpustage.Bagger)
			b.Bag(g(y), g(table), g(index), q.on(g))
			b.BagBackward(g(dTable), g(dy), g(index), q.on(g))
			b.BagBackward(g(dFewer), g(dy), g(fewer), q.on(g))
		})
		f.check(y, 20)
		f.check(dTable, 20)
		f.check(dFewer, 20)
		f.untouched(table, dy)
	}
	for want, op := range map[string]func(s gpustage.Bagger, y, table, index, few, floats gpustage.Tensor, q gpustage.Sequences){
		"bag: index is i32[1 3], want i32[1 5]": func(s gpustage.Bagger, y, table, _, few, _ gpustage.Tensor, q gpustage.Sequences) {
			s.Bag(y, table, few, q)
		},
		"bag: index is f32[1 5], want i32[1 5]": func(s gpustage.Bagger, y, table, _, _, floats gpustage.Tensor, q gpustage.Sequences) {
			s.Bag(y, table, floats, q)
		},
		"bag: y is f32[2 3]/4, want f32[2 4]": func(s gpustage.Bagger, y, table, index, _, _ gpustage.Tensor, q gpustage.Sequences) {
			s.Bag(y.Columns(0, 3), table, index, q)
		},
		"bag backward: index is f32[1 5], want i32[1 5]": func(s gpustage.Bagger, y, table, _, _, floats gpustage.Tensor, q gpustage.Sequences) {
			s.BagBackward(table, y, floats, q)
		},
		"bag backward: y is f32[1 4], want f32[2 4]": func(s gpustage.Bagger, y, table, index, _, _ gpustage.Tensor, q gpustage.Sequences) {
			s.BagBackward(table, y.Span(0, 1), index, q)
		},
	} {
		f := newFixture(t, dev, 1, 0)
		q := f.sequences([]int{2, 3})
		index, few, floats := f.ints("index", []int32{0, 1, 2, 3, 4}), f.ints("few", []int32{0, 1, 2}), f.floats("floats", 1, 5, nil)
		op(f.s.(gpustage.Bagger), f.floats("y", 2, 4, nil).dev, f.floats("table", 5, 4, nil).dev, index.dev, few.dev, floats.dev,
			q.on(func(a *arg) gpustage.Tensor { return a.dev }))
		if err := f.s.Sync(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

func testNormalize(t *testing.T, dev gpustage.Device) {
	for _, sz := range sizes {
		f := newFixture(t, dev, 8, 0)
		x := f.floats("x", sz[0], sz[1], func(i, j int) float64 {
			if i == 2 {
				return 0 // a zero row stays zero
			}
			return f.rng.NormFloat64() + 0.1
		})
		y, norm := f.floats("y", sz[0], sz[1], nil), f.vector("norm", sz[0], nil)
		dy, dx := f.floats("dy", sz[0], sz[1], nil), f.floats("dx", sz[0], sz[1], nil)
		f.run(func(s gpustage.Stream, g picker) {
			s.Normalize(g(y), g(norm), g(x))
			s.NormalizeBackward(g(dx), g(dy), g(y), g(norm))
		})
		f.check(y, 8)
		f.check(norm, 4+float64(sz[1])/8)
		f.check(dx, 40*float64(1+sz[1]/64))
		f.run(func(s gpustage.Stream, g picker) {
			s.NormalizeBackward(g(dy), g(dy), g(y), g(norm))
			s.Normalize(g(x), g(norm), g(x))
		})
		f.check(dy, 40*float64(1+sz[1]/64))
		f.check(x, 8)
	}
}

func testScores(t *testing.T, dev gpustage.Device) {
	inf := math.Inf(-1)
	for _, sz := range sizes {
		f := newFixture(t, dev, 9, 0)
		r, n := sz[0], sz[1]
		a, b := f.floats("a", r, n, nil), f.floats("b", r, n, nil)
		dot, y := f.vector("dot", r, nil), f.floats("y", r, n, nil)
		w := f.vector("w", r, func(_, i int) float64 { return []float64{f.rng.NormFloat64(), 0, 1, 0.5}[i%4] })
		// Scores as large as a scale of 100 makes them; every fourth entry of row 1 and all of row 2 are excluded.
		tile := f.floats("tile", r, n, func(i, j int) float64 { return 30 * f.rng.NormFloat64() })
		top := f.vector("max", r, func(int, int) float64 { return inf })
		sum := f.vector("sum", r, func(int, int) float64 { return 0 })
		rows, cols := make([]int32, r), make([]int32, n)
		for i := range rows {
			rows[i] = int32(i%4 - 1)
		}
		for j := range cols {
			cols[j] = int32(j%4 - 1)
		}
		for j := range cols {
			if r > 2 && n < 4 {
				cols[j] = 1
			}
		}
		ri, ci := f.ints("rows", rows), f.ints("cols", cols)
		limits := []float64{0.5, inf, 2, -0.1}
		guide, limit := f.floats("guide", r, n, func(i, j int) float64 {
			switch {
			case j%3 == 1: // is not above it
				return limits[i%4]
			case j%7 == 3:
				return math.NaN()
			}
			return f.rng.NormFloat64()
		}), f.vector("limit", r, func(_, i int) float64 { return limits[i%4] })
		guided := f.floats("guided", r, n, nil)
		f.run(func(s gpustage.Stream, g picker) {
			s.RowDot(g(dot), g(a), g(b), 20)
			s.RowAxpy(g(y), g(a), g(w), -1.5)
			s.Mask(g(tile), gpustage.Mask{{Row: g(ri), Col: g(ci)}})
			s.MaskAbove(g(guided), g(guide), g(limit))
			for lo := 0; lo < n; lo += 13 { // folded in pieces
				s.OnlineLSE(g(top), g(sum), g(tile).Columns(lo, min(n, lo+13)))
			}
		})
		f.check(dot, 20*4*math.Sqrt(float64(n)))
		f.check(y, 4)
		f.check(tile, 0)
		f.check(guided, 0)
		f.check(top, 0)
		f.check(sum, 64)
		// A log-sum-exp is at least its row's scores; some lie below here, as rounding could have it.
		lse := f.vector("lse", r, func(int, int) float64 { return 70 + 10*f.rng.NormFloat64() })
		total := f.vector("total", r, nil)
		f.run(func(s gpustage.Stream, g picker) { s.SoftmaxTile(g(tile), g(total), g(lse), g(w)) })
		f.check(tile, 512) // exp multiplies the rounding of a difference of up to 150 by the result
		f.check(total, 1024)
	}
}

// A NaN among the scores is not lost, even where nothing else is but -Inf: the sum is NaN. (The maximum may be anything then.)
func testScoresNaN(t *testing.T, dev gpustage.Device) {
	f := newFixture(t, dev, 9, 0)
	inf, nan := math.Inf(-1), math.NaN()
	rows := [][]float64{{nan, inf, inf, inf}, {nan, nan, nan, nan}, {1, 2, 3, nan}, {1, 2, inf, 3}, {inf, inf, inf, inf}}
	tile := f.floats("tile", len(rows), 4, func(i, j int) float64 { return rows[i][j] })
	next := f.floats("next", len(rows), 4, nil)
	top := f.vector("max", len(rows), func(int, int) float64 { return inf })
	sum := f.vector("sum", len(rows), func(int, int) float64 { return 0 })
	for _, x := range []*arg{tile, next} {
		f.run(func(s gpustage.Stream, g picker) { s.OnlineLSE(g(top), g(sum), g(x)) })
		f.check(sum, 64)
	}
}

func testMaxSim(t *testing.T, dev gpustage.Device) {
	for _, lengths := range [][]int32{{1}, {0, 3, 0}, {17, 1, 130, 5, 64}, {8, 16, 32, 0, 7, 9}} {
		for _, sz := range [][2]int{{1, 1}, {5, 33}, {40, 64}} {
			f := newFixture(t, dev, 11, 3)
			cu := []int32{0}
			for _, n := range lengths {
				cu = append(cu, cu[len(cu)-1]+n)
			}
			rows, e, docs, n := sz[0], sz[1], len(lengths), int(cu[len(cu)-1])
			// Few values, so that several are the largest. Row 2 has nothing but NaNs, row 3 some, row 4 -Inf beside them.
			s := f.floats("s", rows, n, func(i, j int) float64 {
				if i == 2 || (i == 3 || i == 4) && j%5 == 2 {
					return math.NaN()
				}
				if i == 4 {
					return math.Inf(-1)
				}
				return float64(f.rng.IntN(9)) - 12
			})
			top, at, c := f.floats("top", rows, docs, nil), f.places("at", rows, docs), f.ints("cu", cu)
			x, y, g := f.floats("x", rows, e, nil), f.floats("y", n, e, nil), f.floats("g", rows, docs, nil)
			dx, dy := f.floats("dx", rows, e, nil), f.floats("dy", n, e, nil)
			f.run(func(st gpustage.Stream, p picker) {
				st.SegmentMax(p(top), p(at), p(s), p(c))
				st.MaxSimBackward(p(dx), p(dy), p(g), p(at), p(x), p(y))
			})
			f.check(top, 0)
			f.check(at, 0)
			f.check(dx, 8)
			f.check(dy, 8*math.Sqrt(float64(rows)))
			f.untouched(s, c, x, y, g)
		}
	}
}

func testUpdate(t *testing.T, dev gpustage.Device) {
	for _, n := range []int{1, 7, 16, 63, 1000, 70001} {
		f := newFixture(t, dev, 10, 0)
		p, g := f.vector("p", n, nil), f.vector("g", n, nil)
		m := f.vector("m", n, func(int, int) float64 { return 0.1 * f.rng.NormFloat64() })
		v := f.vector("v", n, func(int, int) float64 { return 0.01 * f.rng.Float64() })
		q, mom, bare := f.vector("q", n, nil), f.vector("momentum", n, nil), f.vector("bare", n, nil)
		sum := f.double("sum", 1)
		f.run(func(s gpustage.Stream, x picker) {
			s.SumSquares(x(sum), x(g))
			s.SumSquares(x(sum), x(q))
			for step := 1; step <= 3; step++ {
				s.AdamW(x(p), x(m), x(v), x(g), gpustage.AdamW{LR: 1e-2, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.1, Step: step, GradScale: 0.5})
			}
			s.SGD(x(q), x(mom), x(g), gpustage.SGD{LR: 0.1, Momentum: 0.9, WeightDecay: 0.01, GradScale: 2})
			s.SGD(x(bare), gpustage.Tensor{}, x(g), gpustage.SGD{LR: 0.1, GradScale: 1})
		})
		f.check(p, 16)
		f.check(m, 4)
		f.check(v, 4)
		f.check(q, 4)
		f.check(mom, 4)
		f.check(bare, 2)
		f.check(sum, 1) // f64: sums of 1e5 squares agree far below f32's epsilon
		f.untouched(g)
	}
}

// Runs of parameters, of odd lengths and at odd places, are updated each with its rate and its decay, and what lies between them is not.
func testRuns(t *testing.T, dev gpustage.Device) {
	for _, most := range []int{0, 1, 3, 300} { // more than a device may take at once
		f := newFixture(t, dev, 17, 0)
		runs := []gpustage.Run{}
		at := gpustage.Run{P: 3, G: 1}
		for i := range most {
			r := at
			r.Len, r.LR, r.WeightDecay = []int{1, 4, 33, 0, 9000, 64}[i%6], 1e-2*float64(1+i%4), 0.1*float64(i%3)
			if i > 10 {
				r.Len = min(r.Len, 70)
			}
			runs = append(runs, r)
			at.P, at.State, at.G = r.P+r.Len+i%2*5, r.State+r.Len, r.G+r.Len+i%3
		}
		if most == 3 { // in any order
			slices.Reverse(runs)
		}
		p, g := f.vector("p", at.P+2, nil), f.vector("g", at.G+9, nil)
		m := f.vector("m", at.State, func(int, int) float64 { return 0.1 * f.rng.NormFloat64() })
		v := f.vector("v", at.State, func(int, int) float64 { return 0.01 * f.rng.Float64() })
		f.run(func(s gpustage.Stream, x picker) {
			h := gpustage.AdamW{LR: 7, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 7, Step: 2, GradScale: 0.5, Runs: runs}
			s.AdamW(x(p), x(m), x(v), x(g), h)
		})
		f.check(p, 16)
		f.check(m, 4)
		f.check(v, 4)
		f.untouched(g)
	}
	f := newFixture(t, dev, 18, 0)
	x := f.vector("x", 10, nil)
	f.s.AdamW(x.dev, x.dev, x.dev, x.dev, gpustage.AdamW{Step: 1, Runs: []gpustage.Run{{P: 4, G: 4, Len: 6}, {G: 5, Len: 6}}})
	if err := f.s.Sync(); err == nil || !strings.Contains(err.Error(), "run 1 is") || !strings.Contains(err.Error(), "beyond vectors of 10 parameters") {
		t.Errorf("a run beyond its vectors: error %v", err)
	}
}
