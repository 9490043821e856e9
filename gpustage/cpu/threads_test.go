package cpu

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/cpu/gemm"
	"contraflow/gpustage/ref"
)

// open is a device until the test ends.
func open(t *testing.T, o ...Option) *Device {
	t.Helper()
	d, err := New(o...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// sheet hands out tensors of random numbers, the same ones on every device, and remembers those that an op has written.
type sheet struct {
	t       *testing.T
	d       gpustage.Device
	s       gpustage.Stream
	rng     *rand.Rand
	written []gpustage.Tensor
}

func newSheet(t *testing.T, d gpustage.Device) *sheet {
	t.Helper()
	s, err := d.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	return &sheet{t: t, d: d, s: s, rng: rand.New(rand.NewPCG(4, 7))}
}

func (h *sheet) empty(d gpustage.DType, rows, cols int) gpustage.Tensor {
	h.t.Helper()
	x, err := gpustage.NewTensor(h.d, d, rows, cols)
	if err != nil {
		h.t.Fatal(err)
	}
	return x
}

// in is an input, or what an op adds to.
func (h *sheet) in(d gpustage.DType, rows, cols int) gpustage.Tensor {
	h.t.Helper()
	numbers := make([]float64, rows*cols)
	for i := range numbers {
		numbers[i] = h.rng.NormFloat64()
	}
	x := h.empty(d, rows, cols)
	gpustage.Upload(h.s, x, numbers)
	return x
}

// out is an input that is written.
func (h *sheet) out(rows, cols int) gpustage.Tensor { return h.keep(h.in(gpustage.F32, rows, cols)) }

func (h *sheet) keep(x gpustage.Tensor) gpustage.Tensor {
	h.written = append(h.written, x)
	return x
}

func (h *sheet) ints(vs []int32) gpustage.Tensor {
	x := h.empty(gpustage.I32, 1, len(vs))
	copy(ints(x), vs)
	return x
}

func (h *sheet) sequences(lengths []int) gpustage.Sequences {
	q := gpustage.Sequences{Rows: len(lengths), Keys: h.empty(gpustage.U64, 1, len(lengths))}
	cu, rows, places := []int32{0}, []int32(nil), []int32(nil)
	for b, n := range lengths {
		for i := range n {
			rows, places = append(rows, int32(b)), append(places, int32(i))
		}
		cu, q.MaxLen, q.Tokens = append(cu, int32(len(rows))), max(q.MaxLen, n), len(rows)
		gpustage.Slice[uint64](q.Keys)[b] = gpustage.RowKey(1, 2, int64(b), 0)
	}
	q.Cu, q.Row, q.Pos = h.ints(cu), h.ints(rows), h.ints(places)
	return q
}

// ops names every op that divides work among threads, with sizes that are worth it.
func (h *sheet) ops() map[string]func() {
	const rows, cols, table = 701, 130, 40
	lengths := []int{1, 300, 40, 129, 231}
	f32 := gpustage.F32
	x := func() gpustage.Tensor { return h.in(f32, rows, cols) }
	perRow, perColumn := func() gpustage.Tensor { return h.in(f32, 1, rows) }, func() gpustage.Tensor { return h.in(f32, 1, cols) }
	index := func() gpustage.Tensor {
		ids := make([]int32, rows)
		for i := range ids {
			ids[i] = int32(h.rng.IntN(table))
		}
		return h.ints(ids)
	}
	drop := func() gpustage.Dropout {
		return gpustage.Dropout{P: 0.1, Seqs: h.sequences(lengths), Layer: 1, Site: gpustage.SiteFeedForward}
	}
	attention := func(lengths []int) func() {
		return func() {
			q := h.sequences(lengths)
			rows := q.Tokens
			o := gpustage.Attention{Seqs: q, Heads: 4, KVHeads: 2, HeadDim: 20, Scale: 0.2, Dropout: gpustage.Dropout{P: 0.1, Seqs: q, Site: gpustage.SiteAttention}}
			o.Bias, o.DBias = h.in(f32, 9, 4), h.out(9, 4)
			in, ctx, lse := h.in(f32, rows, 160), h.out(rows, 80), h.out(4, rows)
			d := h.out(rows, 160)
			h.s.Attention(ctx, lse, in.Columns(0, 80), in.Columns(80, 120), in.Columns(120, 160), o)
			h.s.AttentionBackward(d.Columns(0, 80), d.Columns(80, 120), d.Columns(120, 160), h.in(f32, rows, 80), ctx, lse,
				in.Columns(0, 80), in.Columns(80, 120), in.Columns(120, 160), o)
		}
	}
	return map[string]func(){
		"product": func() {
			h.s.MatMul(h.out(rows, cols), h.in(f32, rows, 500), h.in(f32, cols, 500), gpustage.MatMul{TransB: true, Bias: perColumn(), Act: gpustage.GELU, Dropout: drop()})
		},
		"weight gradient": func() {
			h.s.MatMul(h.out(cols, 90), x(), h.in(f32, rows, 90), gpustage.MatMul{TransA: true, Add: true})
		},
		"column sum":  func() { h.s.ColumnSum(h.out(1, cols), x()) },
		"scatter add": func() { h.s.ScatterAdd(h.out(table, cols), x(), index()) },
		"layer norm backward": func() {
			h.s.LayerNormBackward(h.out(rows, cols), h.out(1, cols), h.out(1, cols), x(), x(), perRow(), perRow(), perColumn(), gpustage.Dropped{})
		},
		"rms norm backward": func() {
			h.s.RMSNormBackward(h.out(rows, 2*cols), h.out(1, cols), h.in(f32, rows, 2*cols), h.in(f32, rows, 2*cols), h.in(f32, 1, 2*rows), perColumn(), 1)
		},
		"dropout": func() { h.s.Dropout(h.out(rows, cols), x(), x(), drop()) },
		"gate": func() {
			h.s.GateBackward(h.out(rows, cols), h.out(rows, cols), h.out(rows, cols), x(), x(), x(), gpustage.SiLU)
		},
		"pool": func() { h.s.Pool(h.out(len(lengths), cols), x(), h.sequences(lengths), gpustage.MeanPooling) },
		"online lse": func() {
			h.s.OnlineLSE(h.out(1, rows), h.out(1, rows), x())
		},
		"softmax tile": func() { h.s.SoftmaxTile(h.out(rows, cols), h.out(1, rows), perRow(), perRow()) },
		"MaxSim backward": func() {
			at := h.empty(gpustage.I32, rows, 3)
			for i := range ints(at) {
				ints(at)[i] = int32(i%3*50 + h.rng.IntN(50))
			}
			h.s.MaxSimBackward(h.out(rows, cols), h.out(150, cols), h.in(f32, rows, 3), at, x(), h.in(f32, 150, cols))
		},
		"splade": func() {
			at := h.keep(h.empty(gpustage.I32, rows, 7))
			y := h.out(7, rows)
			h.s.Splade(y, at, h.in(f32, rows, 7), perRow(), false)
			h.s.CountActive(h.out(1, 7), y)
			h.s.SpladeBackward(h.out(rows, 7), h.out(1, rows), h.in(f32, 7, rows), y, false)
		},
		"squares": func() { h.s.SumSquares(h.keep(h.empty(gpustage.F64, 1, 1)), x()) },
		"adamw": func() {
			v := h.out(rows, cols)
			h.s.Scale(v, v, 0)
			h.s.AdamW(h.out(rows, cols), h.out(rows, cols), v, x(), gpustage.AdamW{LR: 1e-3, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.1, Step: 2, GradScale: 1})
		},
		"attention":       attention(lengths),
		"short attention": attention(slices.Repeat([]int{3, 0, 7, 1, 5}, 60)), // several heads make a task
		"positions": func() { // more sequences than parts that sum
			q := h.sequences([]int{1, 100, 40, 129, 31, 100, 100, 60, 20, 3, 87, 30})
			o := gpustage.Attention{Seqs: q, Heads: 2, HeadDim: 20, Scale: 0.2, Dropout: gpustage.Dropout{P: 0.1, Seqs: q, Site: gpustage.SiteAttention}}
			at := make([]int32, 2*q.MaxLen-1)
			for i := range at {
				at[i] = int32(i / 7)
			}
			o.Positions = gpustage.Positions{Rows: h.ints(at), Keys: h.in(f32, table, 40), Queries: h.in(f32, table, 40), DKeys: h.out(table, 40), DQueries: h.out(table, 40)}
			in, ctx, lse := h.in(f32, rows, 120), h.out(rows, 40), h.out(2, rows)
			d := h.out(rows, 120)
			h.s.Attention(ctx, lse, in.Columns(0, 40), in.Columns(40, 80), in.Columns(80, 120), o)
			h.s.AttentionBackward(d.Columns(0, 40), d.Columns(40, 80), d.Columns(80, 120), h.in(f32, rows, 40), ctx, lse,
				in.Columns(0, 40), in.Columns(40, 80), in.Columns(80, 120), o)
		},
	}
}

// One thread, two and three give the same bits: no sum's order depends on how many share it.
func TestThreads(t *testing.T) {
	for _, k := range gemm.Available() {
		want := map[string][]byte{}
		for n := 1; n <= 3; n++ {
			d := open(t, Kernels(string(k)), Threads(n))
			for name := range newSheet(t, d).ops() {
				h := newSheet(t, d)
				h.ops()[name]()
				if err := h.s.Sync(); err != nil {
					t.Fatal(err)
				}
				var got []byte
				for _, x := range h.written {
					out := make([]byte, x.Len()*x.DType.Size())
					h.s.CopyOut(out, x)
					got = append(got, out...)
				}
				if n == 1 {
					want[name] = got
				} else if !bytes.Equal(got, want[name]) {
					t.Errorf("%s, %s: %d threads give other bits than one", k, name, n)
				}
			}
		}
	}
}

// Sizes of zero are nothing to do.
func TestNothing(t *testing.T) {
	d := open(t, Threads(2))
	h := newSheet(t, d)
	h.s.ScatterAdd(h.out(4, 0), h.out(3, 0), h.ints([]int32{0, 1, 3}))
	h.s.(gpustage.Bagger).BagBackward(h.out(4, 0), h.out(1, 0), h.ints([]int32{0, 1, 3}), h.sequences([]int{3}))
	q := h.sequences([]int{0, 3, 0})
	o := gpustage.Attention{Seqs: q, Heads: 2, HeadDim: 4, Scale: 0.5, Bias: h.in(gpustage.F32, 3, 2), DBias: h.out(3, 2)}
	x := func() gpustage.Tensor { return h.in(gpustage.F32, 3, 8) }
	ctx, lse := h.out(3, 8), h.out(2, 3)
	h.s.Attention(ctx, lse, x(), x(), x(), o)
	h.s.AttentionBackward(h.out(3, 8), h.out(3, 8), h.out(3, 8), x(), ctx, lse, x(), x(), x(), o)
	if err := h.s.Sync(); err != nil {
		t.Error(err)
	}
}

// An index beyond the table is an error that names it: ids come from users' files.
func TestIndexBeyondTable(t *testing.T) {
	for name, run := range map[string]func(h *sheet, index gpustage.Tensor){
		"bag": func(h *sheet, index gpustage.Tensor) {
			h.s.(gpustage.Bagger).Bag(h.out(2, 3), h.out(5, 3), index, h.sequences([]int{1, 1}))
		},
		"bag backward": func(h *sheet, index gpustage.Tensor) {
			h.s.(gpustage.Bagger).BagBackward(h.out(5, 3), h.out(2, 3), index, h.sequences([]int{1, 1}))
		},
		"gather":      func(h *sheet, index gpustage.Tensor) { h.s.Gather(h.out(2, 3), h.out(5, 3), index, false) },
		"scatter add": func(h *sheet, index gpustage.Tensor) { h.s.ScatterAdd(h.out(5, 3), h.out(2, 3), index) },
		"rotary": func(h *sheet, index gpustage.Tensor) {
			h.s.Rotary(h.out(2, 4), h.out(2, 4), gpustage.Rotary{Table: h.out(5, 2), Index: index, HeadDim: 4})
		},
	} {
		for _, d := range []gpustage.Device{open(t, Threads(1)), ref.New()} {
			for _, bad := range []int32{-1, 5} {
				h := newSheet(t, d)
				run(h, h.ints([]int32{0, bad}))
				if err, want := h.s.Sync(), fmt.Sprintf("%s: index %d of token 1 is outside the table's 5 rows", name, bad); err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%s: %v, want %q", d.Name(), err, want)
				}
			}
		}
	}
}

// Products in f64 run on kernels of their own, with ref's epilogue: what verification compares with.
func TestMatMul64(t *testing.T) {
	d := open(t, Threads(2))
	run := func(dev gpustage.Device) []float64 {
		h := newSheet(t, dev)
		var all []float64
		for i := range 16 {
			m, n, k := 33, 70, 150
			o := gpustage.MatMul{TransA: i&1 != 0, TransB: i&2 != 0, Alpha: 0.3, Add: i&4 != 0}
			shape := func(rows, cols int, trans bool) gpustage.Tensor {
				if trans {
					rows, cols = cols, rows
				}
				return h.in(gpustage.F64, rows, cols)
			}
			a, b, c := shape(m, k, o.TransA), shape(k, n, o.TransB), h.in(gpustage.F64, m, n)
			if i&8 != 0 {
				o.Bias, o.Act, o.Residual = h.in(gpustage.F64, 1, n), gpustage.GELU, h.in(gpustage.F64, m, n)
			}
			h.s.MatMul(c, a, b, o)
			all = append(all, gpustage.Slice[float64](c)...)
		}
		if err := h.s.Sync(); err != nil {
			t.Fatal(err)
		}
		return all
	}
	got, want := run(d), run(ref.New())
	for i, w := range want {
		if !(math.Abs(got[i]-w) <= 1e-13*(1+math.Abs(w))) { // 150 additions of about 1
			t.Fatalf("element %d is %v, want %v", i, got[i], w)
		}
	}
}

// What a product keeps for the backward pass is its result where there is no activation, with a bias or without.
func TestKeptWithoutActivation(t *testing.T) {
	for _, bias := range []bool{false, true} {
		run := func(d gpustage.Device) []float32 {
			h := newSheet(t, d)
			c, kept := h.out(5, 40), h.out(5, 40)
			o := gpustage.MatMul{PreAct: kept}
			if bias {
				o.Bias = h.in(gpustage.F32, 1, 40)
			}
			h.s.MatMul(c, h.in(gpustage.F32, 5, 7), h.in(gpustage.F32, 7, 40), o)
			if err := h.s.Sync(); err != nil {
				t.Fatal(err)
			}
			return slices.Concat(f32(c), f32(kept))
		}
		got, want := run(open(t, Threads(1))), run(ref.New())
		for i, w := range want {
			if !(math.Abs(float64(got[i]-w)) <= 1e-5) {
				t.Fatalf("bias %t: element %d is %v, want %v", bias, i, got[i], w)
			}
		}
	}
}

// The backward pass makes a query's probabilities sum to one, as ref does: a log-sum-exp that is off, by rounding or here by much more,
// changes no gradient.
func TestAttentionBackwardNormalizes(t *testing.T) {
	d := open(t, Threads(1))
	h := newSheet(t, d)
	q := h.sequences([]int{150, 3})
	o := gpustage.Attention{Seqs: q, Heads: 2, HeadDim: 8, Scale: 0.35}
	in := func() gpustage.Tensor { return h.in(gpustage.F32, q.Tokens, 16) }
	query, key, value, dctx, ctx, lse := in(), in(), in(), in(), in(), h.in(gpustage.F32, 2, q.Tokens)
	h.s.Attention(ctx, lse, query, key, value, o)
	gradients := func() []float32 {
		dq, dk, dv := in(), in(), in()
		h.s.AttentionBackward(dq, dk, dv, dctx, ctx, lse, query, key, value, o)
		return slices.Concat(f32(dq), f32(dk), f32(dv))
	}
	want := gradients()
	for i := range f32(lse) {
		f32(lse)[i] += 0.01
	}
	for i, g := range gradients() {
		if !(math.Abs(float64(g-want[i])) <= 1e-5*(1+math.Abs(float64(want[i])))) {
			t.Fatalf("gradient %d is %v, was %v", i, g, want[i])
		}
	}
}
