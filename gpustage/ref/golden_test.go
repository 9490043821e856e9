package ref_test

import (
	"fmt"
	"math"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/ref"
	"contraflow/testdata/goldens"
)

// The goldens are PyTorch's, in float64; both sides do the same arithmetic in another order.
const exact = 1e-12

type fixture struct {
	t testing.TB
	s gpustage.Stream
}

func newFixture(t testing.TB) fixture { return fixtureOf(t, ref.New()) }

func fixtureOf(t testing.TB, d gpustage.Device) fixture {
	s, _ := d.OpenStream()
	return fixture{t, s}
}

func (f fixture) zeros(rows, cols int) gpustage.Tensor {
	f.t.Helper()
	x, err := gpustage.NewTensor(f.s.Device(), gpustage.F64, rows, cols)
	if err != nil {
		f.t.Fatal(err)
	}
	return x
}

func (f fixture) floats(rows, cols int, vs []float64) gpustage.Tensor {
	f.t.Helper()
	x := f.zeros(rows, cols)
	if len(vs) != x.Len() {
		f.t.Fatalf("%d values for [%d %d]", len(vs), rows, cols)
	}
	copy(gpustage.Slice[float64](x), vs)
	return x
}

func (f fixture) ints(vs []int32) gpustage.Tensor {
	f.t.Helper()
	x, err := gpustage.NewTensor(f.s.Device(), gpustage.I32, 1, len(vs))
	if err != nil {
		f.t.Fatal(err)
	}
	copy(gpustage.Slice[int32](x), vs)
	return x
}

func (f fixture) sequences(lengths []int, key func(b int) uint64) gpustage.Sequences {
	f.t.Helper()
	q := gpustage.Sequences{Rows: len(lengths)}
	cu := []int32{0}
	var row, pos []int32
	for b, n := range lengths {
		cu = append(cu, cu[b]+int32(n))
		q.MaxLen = max(q.MaxLen, n)
		for p := range n {
			row, pos = append(row, int32(b)), append(pos, int32(p))
		}
	}
	q.Tokens = len(row)
	q.Cu, q.Row, q.Pos = f.ints(cu), f.ints(row), f.ints(pos)
	keys, err := gpustage.NewTensor(f.s.Device(), gpustage.U64, 1, len(lengths))
	if err != nil {
		f.t.Fatal(err)
	}
	for b := range lengths {
		gpustage.Slice[uint64](keys)[b] = key(b)
	}
	q.Keys = keys
	return q
}

// equal compares with a limit relative to the largest expected value.
func (f fixture) equal(name string, got gpustage.Tensor, want []float64, limit float64) {
	f.t.Helper()
	if err := f.s.Sync(); err != nil {
		f.t.Fatal(err)
	}
	worst, scale := 0.0, 1e-3
	g := gpustage.Slice[float64](got)
	if len(g) != len(want) {
		f.t.Fatalf("%s: %d values, want %d", name, len(g), len(want))
	}
	for i := range want {
		worst, scale = max(worst, math.Abs(g[i]-want[i])), max(scale, math.Abs(want[i]))
	}
	if !(worst <= limit*scale) {
		f.t.Errorf("%s: error %.3g of a largest value %.3g", name, worst, scale)
	}
}

func TestGoldenLayerNorm(t *testing.T) {
	g := goldens.Load(t, "ops/layer_norm")
	var meta struct {
		Cases []struct {
			Name string
			T, C int
			Eps  float64
		}
	}
	g.Meta(t, &meta)
	for _, c := range meta.Cases {
		f := newFixture(t)
		in := func(name string, rows, cols int) gpustage.Tensor {
			return f.floats(rows, cols, g.F64(t, c.Name+"/"+name))
		}
		x, dy, gamma, beta := in("x", c.T, c.C), in("dy", c.T, c.C), in("gamma", 1, c.C), in("beta", 1, c.C)
		y, mean, rstd, dx, dg, db := f.zeros(c.T, c.C), f.zeros(1, c.T), f.zeros(1, c.T), f.zeros(c.T, c.C), f.zeros(1, c.C), f.zeros(1, c.C)
		f.s.LayerNorm(y, mean, rstd, x, gamma, beta, c.Eps)
		f.s.LayerNormBackward(dx, dg, db, dy, x, mean, rstd, gamma, gpustage.Dropped{})
		limit := exact
		if c.Name == "large_mean" || c.Name == "constant_row" || c.Name == "one_feature" { // cancellation in x - mean, times rstd
			limit = 1e-9
		}
		for name, got := range map[string]gpustage.Tensor{"y": y, "mean": mean, "rstd": rstd, "dx": dx, "dgamma": dg, "dbeta": db} {
			f.equal(c.Name+" "+name, got, g.F64(t, c.Name+"/"+name), limit)
		}
	}
}

func TestGoldenActivations(t *testing.T) {
	g := goldens.Load(t, "ops/activations")
	for name, act := range map[string]gpustage.Activation{"gelu": gpustage.GELU, "gelu_tanh": gpustage.GELUTanh, "relu": gpustage.ReLU, "silu": gpustage.SiLU, "tanh": gpustage.Tanh} {
		f := newFixture(t)
		x, dy := f.floats(1, 63, g.F64(t, "x")), f.floats(1, 63, g.F64(t, "dy"))
		y, dx := f.zeros(1, 63), f.zeros(1, 63)
		f.s.Activate(y, x, act)
		f.s.ActivateBackward(dx, dy, x, act)
		f.equal(name+" y", y, g.F64(t, name+"/y"), exact)
		f.equal(name+" dx", dx, g.F64(t, name+"/dx"), exact)
	}
}

func noKey(int) uint64 { return 0 }

func TestGoldenAttention(t *testing.T) {
	t.Run("attention", func(t *testing.T) { testGoldenAttention(t, "ops/attention") })
	t.Run("seen", func(t *testing.T) { testGoldenAttention(t, "ops/seen") })
}

func testGoldenAttention(t *testing.T, golden string) {
	g := goldens.Load(t, golden)
	var meta struct {
		Cases []struct {
			Name    string
			Lengths []int
			Heads   int
			KVHeads int `json:"kv_heads"`
			HeadDim int `json:"head_dim"`
			Scale   float64
			Causal  bool
			Window  int
			Keys    []int32
		}
	}
	g.Meta(t, &meta)
	for _, c := range meta.Cases {
		f := newFixture(t)
		q := f.sequences(c.Lengths, noKey)
		e, ek := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
		in := func(name string, cols int) gpustage.Tensor {
			return f.floats(q.Tokens, cols, g.F64(t, c.Name+"/"+name))
		}
		qt, k, v, dctx := in("q", e), in("k", ek), in("v", ek), in("dctx", e)
		ctx, lse := f.zeros(q.Tokens, e), f.zeros(c.Heads, q.Tokens)
		dq, dk, dv := f.zeros(q.Tokens, e), f.zeros(q.Tokens, ek), f.zeros(q.Tokens, ek)
		o := gpustage.Attention{Seqs: q, Heads: c.Heads, KVHeads: c.KVHeads, HeadDim: c.HeadDim, Scale: c.Scale, Causal: c.Causal, Window: c.Window}
		if c.Keys != nil {
			o.Seen = f.ints(c.Keys)
		}
		f.s.Attention(ctx, lse, qt, k, v, o)
		f.s.AttentionBackward(dq, dk, dv, dctx, ctx, lse, qt, k, v, o)
		for i, v := range gpustage.Slice[float64](lse) {
			if math.IsInf(v, -1) {
				gpustage.Slice[float64](lse)[i] = -math.MaxFloat64 // the golden's, which is finite
			}
		}
		for name, got := range map[string]gpustage.Tensor{"ctx": ctx, "lse": lse, "dq": dq, "dk": dk, "dv": dv} {
			f.equal(c.Name+" "+name, got, g.F64(t, c.Name+"/"+name), 100*exact)
		}
	}
	if len(meta.Cases) == 0 {
		t.Error("no cases")
	}
}

func TestGoldenRows(t *testing.T) {
	g := goldens.Load(t, "ops/rows")
	var meta struct {
		Cases []struct {
			Name    string
			Lengths []int
		}
	}
	g.Meta(t, &meta)
	modes := map[string]gpustage.Pooling{"pool_mean": gpustage.MeanPooling, "pool_cls": gpustage.CLSPooling, "pool_last": gpustage.LastPooling}
	seen := 0
	for _, c := range meta.Cases {
		f := newFixture(t)
		if mode, ok := modes[c.Name]; ok {
			q := f.sequences(c.Lengths, noKey)
			x, dy := f.floats(q.Tokens, 7, g.F64(t, "pool/x")), f.floats(q.Rows, 7, g.F64(t, "pool/dy"))
			y, dx := f.zeros(q.Rows, 7), f.zeros(q.Tokens, 7)
			f.s.Pool(y, x, q, mode)
			f.s.PoolBackward(dx, dy, q, mode)
			f.equal(c.Name+" y", y, g.F64(t, c.Name+"/y"), exact)
			f.equal(c.Name+" dx", dx, g.F64(t, c.Name+"/dx"), exact)
			seen++
		}
	}
	shape := g.Shape(t, "normalize/x")
	f := newFixture(t)
	x, dy := f.floats(shape[0], shape[1], g.F64(t, "normalize/x")), f.floats(shape[0], shape[1], g.F64(t, "normalize/dy"))
	y, norm, dx := f.zeros(shape[0], shape[1]), f.zeros(1, shape[0]), f.zeros(shape[0], shape[1])
	f.s.Normalize(y, norm, x)
	f.s.NormalizeBackward(dx, dy, y, norm)
	f.equal("normalize y", y, g.F64(t, "normalize/y"), exact)
	f.equal("normalize norm", norm, g.F64(t, "normalize/norm"), exact)
	f.equal("normalize dx", dx, g.F64(t, "normalize/dx"), exact)
	if seen != 3 {
		t.Errorf("%d poolings tested", seen)
	}
}

func TestGoldenEmbedding(t *testing.T) {
	g := goldens.Load(t, "ops/embedding")
	f := newFixture(t)
	shape := g.Shape(t, "y")
	tokens, c := shape[0], shape[1]
	y, sum := f.zeros(tokens, c), f.zeros(tokens, c)
	dy := f.floats(tokens, c, g.F64(t, "dy"))
	var lookups [3]gpustage.Lookup
	for i, names := range [][2]string{{"words", "ids"}, {"places", "positions"}, {"kinds", "types"}} {
		var idx []int32
		for _, v := range g.Ints(t, names[1]) {
			idx = append(idx, int32(v))
		}
		rows := g.Shape(t, names[0])[0]
		table, d := f.floats(rows, c, g.F64(t, names[0])), f.zeros(rows, c)
		lookups[i] = gpustage.Lookup{Table: table, Index: f.ints(idx)}
		f.s.Gather(y, table, lookups[i].Index, i > 0)
		f.s.ScatterAdd(d, dy, lookups[i].Index)
		f.equal("d"+names[0], d, g.F64(t, "d"+names[0]), exact)
	}
	f.equal("y", y, g.F64(t, "y"), exact)
	f.s.Embed(sum, gpustage.Tensor{}, gpustage.Tensor{}, gpustage.Tensor{}, gpustage.Embed{Words: lookups[0], Positions: lookups[1], Kinds: lookups[2]})
	f.equal("the sum of all three", sum, g.F64(t, "y"), exact)
}

func TestGoldenAdamW(t *testing.T) {
	g := goldens.Load(t, "ops/adamw")
	var meta struct {
		Cases []struct {
			Name              string
			LR                []float64
			Beta1, Beta2, Eps float64
			WeightDecay       float64 `json:"weight_decay"`
		}
	}
	g.Meta(t, &meta)
	for _, c := range meta.Cases {
		f := newFixture(t)
		n := g.Shape(t, c.Name+"/p0")[0]
		p, m, v := f.floats(1, n, g.F64(t, c.Name+"/p0")), f.zeros(1, n), f.zeros(1, n)
		for step, lr := range c.LR {
			at := func(name string) []float64 { return g.F64(t, c.Name+"/"+name)[step*n : (step+1)*n] }
			f.s.AdamW(p, m, v, f.floats(1, n, at("g")), gpustage.AdamW{LR: lr, Beta1: c.Beta1, Beta2: c.Beta2, Eps: c.Eps, WeightDecay: c.WeightDecay, Step: step + 1, GradScale: 1})
			for name, got := range map[string]gpustage.Tensor{"p": p, "m": m, "v": v} {
				f.equal(fmt.Sprint(c.Name, " ", name, " after step ", step+1), got, at(name), exact)
			}
		}
	}
}

func TestGoldenSGD(t *testing.T) {
	g := goldens.Load(t, "ops/sgd")
	var meta struct {
		Cases []struct {
			Name        string
			LR          []float64
			Momentum    float64
			WeightDecay float64 `json:"weight_decay"`
		}
	}
	g.Meta(t, &meta)
	for _, c := range meta.Cases {
		f := newFixture(t)
		n := g.Shape(t, c.Name+"/p0")[0]
		p, v := f.floats(1, n, g.F64(t, c.Name+"/p0")), gpustage.Tensor{}
		if c.Momentum != 0 {
			v = f.zeros(1, n)
		}
		for step, lr := range c.LR {
			at := func(name string) []float64 { return g.F64(t, c.Name+"/"+name)[step*n : (step+1)*n] }
			f.s.SGD(p, v, f.floats(1, n, at("g")), gpustage.SGD{LR: lr, Momentum: c.Momentum, WeightDecay: c.WeightDecay, GradScale: 1})
			f.equal(c.Name+" p", p, at("p"), exact)
		}
	}
}
