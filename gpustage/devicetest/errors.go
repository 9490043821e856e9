package devicetest

import (
	"slices"
	"strings"
	"testing"

	"contraflow/gpustage"
)

// An op with arguments that don't fit leaves its outputs alone and an error in the stream, which stays.
func testErrors(t *testing.T, dev gpustage.Device) {
	f := newFixture(t, dev, 1, 0)
	a, b, c := f.floats("a", 3, 4, nil), f.floats("b", 5, 6, nil), f.floats("c", 3, 6, nil)
	f.s.MatMul(c.dev, a.dev, b.dev, gpustage.MatMul{})
	f.s.Fill(c.dev, 1)
	err := f.s.Sync()
	if err == nil || !strings.Contains(err.Error(), "matmul: a is f32[3 4]") || !strings.Contains(err.Error(), "inner sizes 4 and 5 differ") {
		t.Errorf("error %v", err)
	}
	g := newFixture(t, dev, 1, 0)
	x, y := g.floats("x", 2, 3, nil), g.floats("y", 2, 3, nil)
	g.s.Activate(y.dev, gpustage.Tensor{}, gpustage.GELU)
	if g.s.Sync() == nil {
		t.Error("an op without its input was accepted")
	}
	n := newFixture(t, dev, 1, 0)
	square, v := n.floats("square", 4, 4, nil), n.vector("a vector", 4, nil).dev
	n.s.MatMul(square.dev, a.dev, a.dev, gpustage.MatMul{TransA: true, ResultSum: v, Norm: gpustage.Norm{Y: square.dev, Mean: v, Rstd: v, Gamma: v, Eps: 1}})
	if err := n.s.Sync(); err == nil || !strings.Contains(err.Error(), "Norm.Y has its place") {
		t.Errorf("a norm in the place of what is to be summed: %v", err)
	}
	if p := newFixture(t, dev, 1, 0); !gpustage.TakesBF16(dev) {
		p.s.MatMul(gpustage.Tensor{}, a.dev, a.dev, gpustage.MatMul{TransB: true, PreAct: p.floats("pre", 3, 3, nil).dev})
		if err := p.s.Sync(); err == nil || !strings.Contains(err.Error(), "c is missing") {
			t.Errorf("a product without a result: %v", err)
		}
	}
	h := newFixture(t, dev, 1, 0)
	wide := x.dev
	wide.Cols, wide.Stride = 1<<20, 1<<20
	h.s.Add(wide, wide, wide)
	if h.s.Sync() == nil {
		t.Error("a tensor beyond its memory was accepted")
	}
	none, few, many := gpustage.Tensor{}, f.ints("few", make([]int32, 3)).dev, f.ints("many", make([]int32, 6)).dev
	for want, op := range map[string]func(s gpustage.Stream){
		"fill: the tensor is f32[1048576 3] at element": func(s gpustage.Stream) {
			tall := x.dev
			tall.Rows = 1 << 20 // of which the first is there
			s.Fill(tall, 1)
		},
		"fill: the tensor is missing": func(s gpustage.Stream) { s.Fill(none, 1) },
		"copy: src is i32[1 1048576] at element": func(s gpustage.Stream) {
			beyond := few
			beyond.Cols, beyond.Stride = 1<<20, 1<<20
			s.Copy(many, beyond)
		},
		"copy: src is missing": func(s gpustage.Stream) {
			s.Copy(few, gpustage.Tensor{Rows: 1, Cols: 3, Stride: 3, DType: gpustage.I32})
		},
		"copy: dst is i32[1 6], want i32[1 3]": func(s gpustage.Stream) { s.Copy(many, few) },
		"column sum: sum is missing":           func(s gpustage.Stream) { s.ColumnSum(none, x.dev) },
		"layer norm: gamma is missing":         func(s gpustage.Stream) { s.LayerNorm(y.dev, v, v, x.dev, none, none, 1) },
		"layer norm with: gamma is missing":    func(s gpustage.Stream) { s.LayerNormWith(y.dev, x.dev, v, v, none, none) },
		"layer norm backward: gamma is missing": func(s gpustage.Stream) {
			s.LayerNormBackward(y.dev, none, none, x.dev, x.dev, v, v, none, gpustage.Dropped{})
		},
	} {
		s := newFixture(t, dev, 1, 0).s
		op(s)
		if err := s.Sync(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// Of nothing, nothing is made.
func testEmpty(t *testing.T, dev gpustage.Device) {
	f := newFixture(t, dev, 1, 0)
	x, y := f.floats("x", 3, 4, nil), f.floats("y", 3, 4, nil)
	before := download(t, f.s, y.dev)
	for _, e := range [][2]gpustage.Tensor{{x.dev.Span(1, 1), y.dev.Span(2, 2)}, {x.dev.Columns(1, 1), y.dev.Columns(2, 2)}} {
		f.s.Add(e[1], e[0], e[0])
		f.s.Scale(e[1], e[0], 2)
		f.s.Activate(e[1], e[0], gpustage.GELU)
		f.s.Copy(e[1], e[0])
		f.s.Fill(e[1], 7)
	}
	if err := f.s.Sync(); err != nil {
		t.Fatal(err)
	}
	if after := download(t, f.s, y.dev); !slices.Equal(after, before) {
		t.Errorf("%v, had been %v", after, before)
	}
	none := f.sequences([]int{0, 0})
	rows, keys, grads := f.ints("rows", []int32{0, 1, 1}), f.floats("keys", 2, 4, nil), f.floats("dKeys", 2, 4, nil)
	o := gpustage.Attention{Seqs: none.on(func(a *arg) gpustage.Tensor { return a.dev }), Heads: 2, HeadDim: 2, Scale: 1, Positions: gpustage.Positions{Keys: keys.dev, Rows: rows.dev, DKeys: grads.dev}}
	at, lse := x.dev.Span(0, 0), y.dev.Span(0, 2).Columns(0, 0)
	f.s.Attention(at, lse, at, at, at, o)
	f.s.AttentionBackward(at, at, at, at, at, lse, at, at, at, o)
	if err := f.s.Sync(); err != nil {
		t.Fatal(err)
	}
	f.untouched(grads)
}
