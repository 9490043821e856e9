package ref_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"contraflow/gpustage"
)

// checkGradient compares hand-written gradients with central differences of a random linear functional of an op's
// outputs: for every input element, (L(x+h) - L(x-h)) / 2h. In f64 with h = 1e-5 the truncation error is about 1e-10.
func checkGradient(t *testing.T, f fixture, inputs, outputs []gpustage.Tensor, forward func(), backward func(dOut []gpustage.Tensor) []gpustage.Tensor) {
	t.Helper()
	rng := rand.New(rand.NewPCG(3, 4))
	var dOut []gpustage.Tensor
	for _, o := range outputs {
		d := f.zeros(o.Rows, o.Cols)
		for i := range gpustage.Slice[float64](d) {
			gpustage.Slice[float64](d)[i] = rng.NormFloat64()
		}
		dOut = append(dOut, d)
	}
	loss := func() float64 {
		forward()
		sum := 0.0
		for i, o := range outputs {
			for j, v := range gpustage.Slice[float64](o) {
				sum += v * gpustage.Slice[float64](dOut[i])[j]
			}
		}
		return sum
	}
	loss()
	grads := backward(dOut)
	if err := f.s.Sync(); err != nil {
		t.Fatal(err)
	}
	const h = 1e-5
	for k, in := range inputs {
		x, g := gpustage.Slice[float64](in), gpustage.Slice[float64](grads[k])
		for i := range x {
			was := x[i]
			x[i] = was + h
			up := loss()
			x[i] = was - h
			down := loss()
			x[i] = was
			if want := (up - down) / (2 * h); !(math.Abs(g[i]-want) <= 1e-7*(1+math.Abs(want))) {
				t.Errorf("input %d, element %d: gradient %v, difference quotient %v", k, i, g[i], want)
			}
		}
	}
}

func (f fixture) random(rows, cols int, seed uint64) gpustage.Tensor {
	rng := rand.New(rand.NewPCG(seed, 1))
	x := f.zeros(rows, cols)
	for i := range gpustage.Slice[float64](x) {
		gpustage.Slice[float64](x)[i] = rng.NormFloat64()
	}
	return x
}

type ts = []gpustage.Tensor

func TestGradientMatMul(t *testing.T) {
	for _, act := range []gpustage.Activation{gpustage.Identity, gpustage.GELU, gpustage.SiLU} {
		f := newFixture(t)
		q := f.sequences([]int{3, 2}, func(b int) uint64 { return uint64(7 + b) })
		x, w, b, r := f.random(5, 4, 1), f.random(3, 4, 2), f.random(1, 3, 3), f.random(5, 3, 4)
		y, pre := f.zeros(5, 3), f.zeros(5, 3)
		d := gpustage.Dropout{P: 0.4, Seqs: q}
		forward := func() {
			f.s.MatMul(y, x, w, gpustage.MatMul{TransB: true, Alpha: 0.7, Bias: b, PreAct: pre, Act: act, Dropout: d, Residual: r})
		}
		checkGradient(t, f, ts{x, w, b, r}, ts{y}, forward, func(dy []gpustage.Tensor) []gpustage.Tensor {
			// The backward of Linear as transformers write it: through dropout and activation, then three products.
			dz, dx, dw, db := f.zeros(5, 3), f.zeros(5, 4), f.zeros(3, 4), f.zeros(1, 3)
			f.s.Dropout(dz, dy[0], gpustage.Tensor{}, d)
			f.s.ActivateBackward(dz, dz, pre, act)
			f.s.MatMul(dx, dz, w, gpustage.MatMul{Alpha: 0.7})
			f.s.MatMul(dw, dz, x, gpustage.MatMul{TransA: true, Alpha: 0.7})
			f.s.ColumnSum(db, dz)
			return ts{dx, dw, db, dy[0]}
		})
	}
}

// GradOf is ActivateBackward fused into a product.
func TestGradOf(t *testing.T) {
	f := newFixture(t)
	a, b, pre := f.random(4, 3, 1), f.random(3, 5, 2), f.random(4, 5, 3)
	want, got := f.zeros(4, 5), f.zeros(4, 5)
	f.s.MatMul(want, a, b, gpustage.MatMul{})
	f.s.ActivateBackward(want, want, pre, gpustage.GELU)
	f.s.MatMul(got, a, b, gpustage.MatMul{GradOf: pre, Act: gpustage.GELU})
	f.equal("GradOf", got, gpustage.Slice[float64](want), 1e-15)
	again, in := f.zeros(4, 5), f.random(4, 5, 3)
	f.s.Activate(again, pre, gpustage.GELU)
	f.s.MatMul(got, a, b, gpustage.MatMul{GradOf: in, Again: in, Act: gpustage.GELU})
	f.equal("GradOf, with Again in its place", got, gpustage.Slice[float64](want), 1e-15)
	f.equal("Again", in, gpustage.Slice[float64](again), 0)
}

func TestGradientLayerNorm(t *testing.T) {
	f := newFixture(t)
	x, gamma, beta := f.random(3, 5, 1), f.random(1, 5, 2), f.random(1, 5, 3)
	y, mean, rstd := f.zeros(3, 5), f.zeros(1, 3), f.zeros(1, 3)
	checkGradient(t, f, ts{x, gamma, beta}, ts{y}, func() { f.s.LayerNorm(y, mean, rstd, x, gamma, beta, 1e-5) },
		func(dy []gpustage.Tensor) []gpustage.Tensor {
			dx, dg, db := f.zeros(3, 5), f.zeros(1, 5), f.zeros(1, 5)
			f.s.LayerNormBackward(dx, dg, db, dy[0], x, mean, rstd, gamma, gpustage.Dropped{})
			return ts{dx, dg, db}
		})
}

// With the statistics that a layer norm has made, another one gives the same.
func TestLayerNormWith(t *testing.T) {
	f := newFixture(t)
	x, gamma := f.random(3, 5, 1), f.random(1, 5, 2)
	y, again, mean, rstd := f.zeros(3, 5), f.zeros(3, 5), f.zeros(1, 3), f.zeros(1, 3)
	for name, beta := range map[string]gpustage.Tensor{"beta": f.random(1, 5, 3), "no beta": {}} {
		f.s.LayerNorm(y, mean, rstd, x, gamma, beta, 1e-5)
		f.s.LayerNormWith(again, x, mean, rstd, gamma, beta)
		f.equal("with statistics, and "+name, again, gpustage.Slice[float64](y), 0)
	}
}

func TestGradientLayerNormWithoutBeta(t *testing.T) {
	f := newFixture(t)
	x, gamma := f.random(3, 5, 1), f.random(1, 5, 2)
	y, mean, rstd := f.zeros(3, 5), f.zeros(1, 3), f.zeros(1, 3)
	checkGradient(t, f, ts{x, gamma}, ts{y}, func() { f.s.LayerNorm(y, mean, rstd, x, gamma, gpustage.Tensor{}, 1e-5) },
		func(dy []gpustage.Tensor) []gpustage.Tensor {
			dx, dg := f.zeros(3, 5), f.zeros(1, 5)
			f.s.LayerNormBackward(dx, dg, gpustage.Tensor{}, dy[0], x, mean, rstd, gamma, gpustage.Dropped{})
			return ts{dx, dg}
		})
}

func TestGradientRMSNorm(t *testing.T) {
	for _, groups := range []int{1, 3} {
		for _, offset := range []float64{0, 1} {
			f := newFixture(t)
			x, gamma := f.random(4, 5*groups, 1), f.random(1, 5, 2)
			y, rstd := f.zeros(4, 5*groups), f.zeros(1, 4*groups)
			checkGradient(t, f, ts{x, gamma}, ts{y}, func() { f.s.RMSNorm(y, rstd, x, gamma, 1e-5, offset) },
				func(dy []gpustage.Tensor) []gpustage.Tensor {
					dx, dg := f.zeros(4, 5*groups), f.zeros(1, 5)
					f.s.RMSNormBackward(dx, dg, dy[0], x, rstd, gamma, offset)
					return ts{dx, dg}
				})
		}
	}
}

func TestGradientGate(t *testing.T) {
	for _, act := range []gpustage.Activation{gpustage.GELU, gpustage.GELUTanh, gpustage.SiLU} {
		f := newFixture(t)
		x := f.random(3, 8, 1) // gate and up side by side, as one product leaves them
		y := f.zeros(3, 4)
		checkGradient(t, f, ts{x}, ts{y}, func() { f.s.Gate(y, x.Columns(0, 4), x.Columns(4, 8), act) },
			func(dy []gpustage.Tensor) []gpustage.Tensor {
				dx := f.zeros(3, 8)
				again := f.zeros(3, 4)
				f.s.GateBackward(dx.Columns(0, 4), dx.Columns(4, 8), again, dy[0], x.Columns(0, 4), x.Columns(4, 8), act)
				f.s.Gate(y, x.Columns(0, 4), x.Columns(4, 8), act)
				f.equal("again", again, gpustage.Slice[float64](y), 0)
				return ts{dx}
			})
	}
}

// The table's entries need not be a cosine and a sine: scaling variants multiply them.
func TestGradientRotary(t *testing.T) {
	for _, r := range []int{2, 4, 6} {
		f := newFixture(t)
		x, table, index := f.random(5, 12, 1), f.random(3, r, 2), f.ints([]int32{0, 2, 1, 0, 2})
		y := f.zeros(5, 12)
		o := gpustage.Rotary{Table: table, Index: index, HeadDim: 6}
		checkGradient(t, f, ts{x}, ts{y}, func() { f.s.Rotary(y, x, o) }, func(dy []gpustage.Tensor) []gpustage.Tensor {
			dx, back := f.zeros(5, 12), o
			back.Inverse = true
			f.s.Rotary(dx, dy[0], back)
			return ts{dx}
		})
	}
}

func TestGradientAttention(t *testing.T) {
	for _, o := range []gpustage.Attention{
		{Heads: 2, HeadDim: 3},
		{Heads: 2, HeadDim: 3, Causal: true},
		{Heads: 2, HeadDim: 3, Window: 1},
		{Heads: 4, KVHeads: 2, HeadDim: 2, Causal: true, Window: 2},
		{Heads: 2, HeadDim: 3, Dropout: gpustage.Dropout{P: 0.3, Layer: 1, Site: gpustage.SiteAttention}},
		{Heads: 2, HeadDim: 3, SoftCap: 0.7, Causal: true},
		{Heads: 4, KVHeads: 2, HeadDim: 2, SoftCap: 1.5, Window: 1, Dropout: gpustage.Dropout{P: 0.3, Layer: 1, Site: gpustage.SiteAttention}},
	} {
		testAttentionGradient(t, o, 0)
		if o.KVHeads == 0 { // rows that several distances share, on one side and on both, and some that none has
			o.Positions.Rows = newFixture(t).ints([]int32{5, 5, 4, 1, 2, 2, 0, 0, 0})
			for _, parts := range []string{"keys", "queries", "both"} {
				testAttentionGradient(t, o, 0, parts)
			}
		}
	}
	// With a bias whose reach is shorter than a sequence, as long, and longer.
	for _, rows := range []int{1, 3, 7, 11} {
		testAttentionGradient(t, gpustage.Attention{Heads: 2, HeadDim: 3}, rows)
		testAttentionGradient(t, gpustage.Attention{Heads: 4, KVHeads: 2, HeadDim: 2, Causal: true, SoftCap: 1.5}, rows)
	}
}

// With BF16 each product of attention takes what it multiplies rounded: queries and keys, probabilities and values, and on the way back the gradients
// of scores with their scale.
func TestAttentionRounds(t *testing.T) {
	f := newFixture(t)
	const n, dim, scale = 3, 2, 0.7
	o := gpustage.Attention{Seqs: f.sequences([]int{n}, noKey), Heads: 1, HeadDim: dim, Scale: scale, BF16: true}
	q, k, v, dctx := f.random(n, dim, 1), f.random(n, dim, 2), f.random(n, dim, 3), f.random(n, dim, 4)
	ctx, lse, dq, dk, dv := f.zeros(n, dim), f.zeros(1, n), f.zeros(n, dim), f.zeros(n, dim), f.zeros(n, dim)
	f.s.Attention(ctx, lse, q, k, v, o)
	f.s.AttentionBackward(dq, dk, dv, dctx, ctx, lse, q, k, v, o)
	round := func(x float64) float64 { return float64(gpustage.RoundBF16(float32(x))) }
	of := func(x gpustage.Tensor, i, d int) float64 { return round(gpustage.Slice[float64](x)[i*dim+d]) }
	dot := func(x, y gpustage.Tensor, i, j int) float64 { return of(x, i, 0)*of(y, j, 0) + of(x, i, 1)*of(y, j, 1) }
	var want [4][n * dim]float64 // ctx, dq, dk, dv
	for i := range n {
		var p [n]float64
		sum, mean := 0.0, 0.0
		for j := range n {
			p[j] = math.Exp(scale * dot(q, k, i, j))
			sum += p[j]
		}
		for j := range n {
			p[j] /= sum
			mean += p[j] * dot(dctx, v, i, j)
		}
		for j := range n {
			ds := round(p[j] * (dot(dctx, v, i, j) - mean) * scale)
			for d := range dim {
				want[0][i*dim+d] += round(p[j]) * of(v, j, d)
				want[1][i*dim+d] += ds * of(k, j, d)
				want[2][j*dim+d] += ds * of(q, i, d)
				want[3][j*dim+d] += round(p[j]) * of(dctx, i, d)
			}
		}
	}
	for i, got := range (ts{ctx, dq, dk, dv}) {
		f.equal([]string{"ctx", "dq", "dk", "dv"}[i], got, want[i][:], 1e-14)
	}
}

// Keys that are not seen get no gradient, and a query that sees none has none.
func TestGradientSeen(t *testing.T) {
	for _, o := range []gpustage.Attention{
		{Heads: 2, HeadDim: 3},
		{Heads: 4, KVHeads: 2, HeadDim: 2, Causal: true, SoftCap: 1.5},
		{Heads: 2, HeadDim: 3, Window: 1, Dropout: gpustage.Dropout{P: 0.3, Layer: 1, Site: gpustage.SiteAttention}},
	} {
		for _, seen := range [][]int32{{2, 1, 3}, {1, 0, 2}} {
			o.Seen = newFixture(t).ints(seen)
			testAttentionGradient(t, o, 0)
			testAttentionGradient(t, o, 5)
		}
	}
}

func testAttentionGradient(t *testing.T, o gpustage.Attention, bias int, positions ...string) {
	t.Helper()
	f := newFixture(t)
	o.Seqs = f.sequences([]int{4, 1, 3}, func(b int) uint64 { return uint64(90 + b) })
	o.Dropout.Seqs = o.Seqs
	o.Scale = 0.6
	kv := o.KVHeads
	if kv == 0 {
		kv = o.Heads
	}
	e, ek := o.Heads*o.HeadDim, kv*o.HeadDim
	q, k, v := f.random(8, e, 1), f.random(8, ek, 2), f.random(8, ek, 3)
	ctx, lse := f.zeros(8, e), f.zeros(o.Heads, 8)
	in := ts{q, k, v}
	if bias > 0 {
		o.Bias, o.DBias = f.random(bias, o.Heads, 4), f.zeros(bias, o.Heads)
		in = append(in, o.Bias)
	}
	p := &o.Positions
	for _, parts := range positions {
		if parts != "queries" {
			p.Keys, p.DKeys = f.random(7, e, 5), f.zeros(7, e)
			in = append(in, p.Keys)
		}
		if parts != "keys" {
			p.Queries, p.DQueries = f.random(7, e, 6), f.zeros(7, e)
			in = append(in, p.Queries)
		}
	}
	checkGradient(t, f, in, ts{ctx}, func() { f.s.Attention(ctx, lse, q, k, v, o) },
		func(d []gpustage.Tensor) []gpustage.Tensor {
			dq, dk, dv := f.zeros(8, e), f.zeros(8, ek), f.zeros(8, ek)
			f.s.AttentionBackward(dq, dk, dv, d[0], ctx, lse, q, k, v, o)
			grads := ts{dq, dk, dv}
			for _, d := range (ts{o.DBias, p.DKeys, p.DQueries}) {
				if !d.IsZero() {
					grads = append(grads, d)
				}
			}
			return grads
		})
}

func TestGradientPoolAndNormalize(t *testing.T) {
	for _, mode := range []gpustage.Pooling{gpustage.MeanPooling, gpustage.CLSPooling, gpustage.LastPooling} {
		f := newFixture(t)
		q := f.sequences([]int{3, 1, 4}, noKey)
		x := f.random(8, 5, 1)
		p, y, norm := f.zeros(3, 5), f.zeros(3, 5), f.zeros(1, 3)
		checkGradient(t, f, ts{x}, ts{y}, func() { f.s.Pool(p, x, q, mode); f.s.Normalize(y, norm, p) },
			func(d []gpustage.Tensor) []gpustage.Tensor {
				dp, dx := f.zeros(3, 5), f.zeros(8, 5)
				f.s.NormalizeBackward(dp, d[0], y, norm)
				f.s.PoolBackward(dx, dp, q, mode)
				return ts{dx}
			})
	}
}

func TestGradientGather(t *testing.T) {
	f := newFixture(t)
	table, idx := f.random(4, 3, 1), f.ints([]int32{2, 0, 2, 3, 2})
	y := f.zeros(5, 3)
	checkGradient(t, f, ts{table}, ts{y}, func() { f.s.Gather(y, table, idx, false) },
		func(d []gpustage.Tensor) []gpustage.Tensor {
			dt := f.zeros(4, 3)
			f.s.ScatterAdd(dt, d[0], idx)
			return ts{dt}
		})
}

// The pieces of the tiled loss: -log softmax of row scores, folded over tiles.
func TestGradientScores(t *testing.T) {
	f := newFixture(t)
	a, b, p := f.random(3, 4, 1), f.random(7, 4, 2), f.random(3, 4, 3)
	tile, top, sum := f.zeros(3, 7), f.zeros(1, 3), f.zeros(1, 3)
	loss := f.zeros(1, 3)
	lse := f.zeros(1, 3)
	own, all := f.ints([]int32{0, 5, -1}), f.ints([]int32{0, 1, 2, 3, 4, 5, 6})
	scores := func(s gpustage.Tensor) {
		f.s.MatMul(s, a, b, gpustage.MatMul{TransB: true, Alpha: 2})
		f.s.Mask(s, gpustage.Mask{{Row: own, Col: all}})
	}
	forward := func() {
		f.s.Fill(top, math.Inf(-1))
		f.s.Fill(sum, 0)
		scores(tile)
		f.s.OnlineLSE(top, sum, tile.Columns(0, 3))
		f.s.OnlineLSE(top, sum, tile.Columns(3, 7))
		f.s.RowDot(loss, a, p, -2)
		for i := range 3 {
			v := gpustage.Slice[float64](top)[i] + math.Log(gpustage.Slice[float64](sum)[i])
			gpustage.Slice[float64](lse)[i] = v
			gpustage.Slice[float64](loss)[i] += v
		}
	}
	checkGradient(t, f, ts{a, b, p}, ts{loss}, forward, func(w []gpustage.Tensor) []gpustage.Tensor {
		da, db, dp := f.zeros(3, 4), f.zeros(7, 4), f.zeros(3, 4)
		scores(tile)
		f.s.SoftmaxTile(tile, f.zeros(1, 3), lse, w[0])
		f.s.MatMul(da, tile, b, gpustage.MatMul{Alpha: 2, Add: true})
		f.s.MatMul(db, tile, a, gpustage.MatMul{TransA: true, Alpha: 2, Add: true})
		f.s.RowAxpy(da, p, w[0], -2)
		f.s.RowAxpy(dp, a, w[0], -2)
		return ts{da, db, dp}
	})
}

// Scores of MaxSim, whose largest are far enough from the next ones that none changes.
func TestGradientMaxSim(t *testing.T) {
	f := newFixture(t)
	x, y, cu := f.random(4, 5, 1), f.random(9, 5, 2), f.ints([]int32{0, 3, 3, 4, 9})
	scores, top := f.zeros(4, 9), f.zeros(4, 4)
	at := gpustage.Tensor{Mem: f.ints(make([]int32, 16)).Mem, Rows: 4, Cols: 4, Stride: 4, DType: gpustage.I32}
	checkGradient(t, f, ts{x, y}, ts{top}, func() {
		f.s.MatMul(scores, x, y, gpustage.MatMul{TransB: true})
		f.s.SegmentMax(top, at, scores, cu)
	}, func(g []gpustage.Tensor) []gpustage.Tensor {
		dx, dy := f.zeros(4, 5), f.zeros(9, 5)
		f.s.MaxSimBackward(dx, dy, g[0], at, x, y)
		return ts{dx, dy}
	})
}

func TestGradientSplade(t *testing.T) {
	for _, twice := range []bool{false, true} {
		f := newFixture(t)
		top, bias, y := f.random(7, 3, 1), f.random(1, 7, 2), f.zeros(3, 7)
		at := gpustage.Tensor{Mem: f.ints(make([]int32, 21)).Mem, Rows: 7, Cols: 3, Stride: 3, DType: gpustage.I32}
		checkGradient(t, f, ts{top, bias}, ts{y}, func() { f.s.Splade(y, at, top, bias, twice) },
			func(dy []gpustage.Tensor) []gpustage.Tensor {
				g, db := f.zeros(7, 3), f.zeros(1, 7)
				f.s.SpladeBackward(g, db, dy[0], y, twice)
				return ts{g, db}
			})
	}
}

func TestGradientBag(t *testing.T) {
	f := newFixture(t)
	q := f.sequences([]int{2, 0, 3}, noKey)
	table, idx, y := f.random(4, 3, 1), f.ints([]int32{2, 0, 2, 3, 2}), f.zeros(3, 3)
	s := f.s.(gpustage.Bagger)
	checkGradient(t, f, ts{table}, ts{y}, func() { s.Bag(y, table, idx, q) },
		func(d []gpustage.Tensor) []gpustage.Tensor {
			dt := f.zeros(4, 3)
			s.BagBackward(dt, d[0], idx, q)
			return ts{dt}
		})
}
