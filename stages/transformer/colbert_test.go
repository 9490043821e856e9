package transformer

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/ref"
	"contraflow/testdata/goldens"
)

// loadColBERT makes a model of testdata/golden/families/modernbert with two dense layers, drawn by their names, which gives vectors of all
// tokens, or embeddings by a pooling.
func loadColBERT(t testing.TB, d gpustage.Device, o Options, h Head, alone bool) (*Model, gpustage.Stream, Rows) {
	t.Helper()
	c, err := ParseConfig(configAt(t, "families/modernbert"))
	if err != nil {
		t.Fatal(err)
	}
	c.Dense = []Dense{{Name: "1_Dense", Out: 20}, {Name: "2_Dense", Out: 12, Bias: true, Activation: gpustage.Tanh}}
	if alone {
		c.Tokens = c.ColBERT(true, 7)
	}
	m, err := New(d, c, h, o)
	if err != nil {
		t.Fatal(err)
	}
	s, err := d.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	w := goldens.Load(t, "families/modernbert/model")
	if err := m.Load(s, func(p Param, dst []float32) error {
		if c.dense(p) {
			m.InitParam(p, dst, 7)
		} else {
			copy(dst, w.F32(t, p.Name))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return m, s, goldenRows(t, goldens.Load(t, "families/modernbert"), "")
}

// Vectors of tokens are what pooling that takes one token's hidden state gives, and so are the gradients: texts' first tokens are those of CLS
// pooling, their last those of last pooling, to the bit.
func TestVectorsAlone(t *testing.T) {
	d := ref.New()
	for pooling, at := range map[gpustage.Pooling]func(r Rows, b int) int32{
		gpustage.CLSPooling:  func(r Rows, b int) int32 { return r.Cu[b] },
		gpustage.LastPooling: func(r Rows, b int) int32 { return r.Cu[b+1] - 1 },
	} {
		for _, every := range []int{0, 1} {
			run := func(alone bool) (vectors, grads []float64) {
				m, s, rows := loadColBERT(t, d, Options{DType: gpustage.F64, CheckpointEvery: every}, Head{Pooling: pooling, Normalize: true}, alone)
				if alone {
					for b := range rows.Len() {
						rows.Shown = append(rows.Shown, at(rows, b))
					}
				}
				flat, _ := m.NewGradients()
				p := m.Forward(s, newArena(t, d), rows, true, true)
				x := p.Parts()[0]
				if x.Rows != rows.Len() {
					t.Fatalf("%d rows of %d texts", x.Rows, rows.Len())
				}
				vectors = floats(t, s, x)
				rng := rand.New(rand.NewPCG(3, 4))
				r := make([]float64, x.Len())
				for i := range r {
					r[i] = rng.NormFloat64()
				}
				p.BackwardTo([]gpustage.Tensor{upload64(t, s, gpustage.F64, x.Rows, x.Cols, r)}, Gradients{Flat: flat})
				return vectors, floats(t, s, flat)
			}
			got, grads := run(true)
			want, wantGrads := run(false)
			how := fmt.Sprintf("%v pooling, activation checkpointing every %d", pooling, every)
			if !slices.Equal(got, want) {
				t.Errorf("%s: the vectors differ from the embeddings by %.3g", how, relative(got, want, 0))
			}
			if e := relative(grads, wantGrads, 0); !(e <= 1e-14) { // rows that are not shown add zeros in between
				t.Errorf("%s: gradients differ by %.3g", how, e)
			}
			if slices.Max(grads) == 0 {
				t.Errorf("%s: gradients are zero", how)
			}
		}
	}
}

// Without Shown all tokens have rows; ways of keeping a pass give the same bits, in the memory that is predicted, however many are shown.
func TestVectorsMemory(t *testing.T) {
	d := ref.New()
	for _, none := range []bool{false, true} {
		m, s, rows := loadColBERT(t, d, Options{}, Head{Normalize: true}, true)
		if none {
			rows.Shown = []int32{}
		} else if n := m.Config.Tokens.shown(rows); len(n) != len(rows.IDs) {
			t.Fatalf("%d of %d tokens have rows", len(n), len(rows.IDs))
		}
		var lengths []int
		for b := range rows.Len() {
			lengths = append(lengths, int(rows.Cu[b+1]-rows.Cu[b]))
		}
		mem := m.Memory(lengths)
		grads, _ := m.NewGradients()
		var want []byte
		for i, way := range []struct {
			bytes int
			pass  func(a *gpustage.Arena) *Pass
		}{
			{mem.Forward, func(a *gpustage.Arena) *Pass { return m.Forward(s, a, rows, true, false) }},
			{mem.Backward, func(a *gpustage.Arena) *Pass { return m.Forward(s, a, rows, true, true) }},
			{mem.Backward, func(a *gpustage.Arena) *Pass { return m.Replay(s, a, rows) }},
			{mem.LeanBackward, func(a *gpustage.Arena) *Pass { return m.Lean(s, a, rows) }},
		} {
			a, err := gpustage.NewArena(d, way.bytes)
			if err != nil {
				t.Fatal(err)
			}
			p := way.pass(a)
			x := p.Parts()[0]
			if none != (x.Rows == 0) {
				t.Fatalf("%d rows", x.Rows)
			}
			if !none {
				if got := gpustage.Bytes(floats(t, s, x)); i == 0 {
					want = got
				} else if !bytes.Equal(got, want) {
					t.Errorf("way %d has other bits", i)
				}
			}
			if i > 0 {
				p.BackwardTo(p.Parts(), Gradients{Flat: grads})
			}
			p.Release()
			if err := s.Sync(); err != nil {
				t.Errorf("way %d: %v", i, err)
			}
			if a.Peak() != way.bytes && i != 1 {
				t.Errorf("way %d: %d bytes were predicted, %d taken", i, way.bytes, a.Peak())
			}
		}
		if none && slices.ContainsFunc(floats(t, s, grads), func(v float64) bool { return v != 0 }) {
			t.Error("no token is shown, and there is a gradient")
		}
	}
}

// A role's reading: what is filled up, and which tokens have vectors.
func TestReading(t *testing.T) {
	h := TokenHeads{Alone: true, Query: Reading{Length: 5, Fill: 9}, Document: Reading{Skip: []int32{3, 4}}}
	if got := h.Query.Expand([]int32{7, 7, 1, 2}, 2); !slices.Equal(got, []int32{7, 7, 1, 2, 9, 9, 9}) {
		t.Errorf("expanded to %v", got)
	}
	if got := h.Query.Expand([]int32{1, 2, 3, 4, 5, 6}, 0); len(got) != 6 {
		t.Errorf("a long text became %v", got)
	}
	if got := h.Shown(true, []int32{3, 9}); !slices.Equal(got, []int32{0, 1}) {
		t.Errorf("of a query %v are shown", got)
	}
	if got := h.Shown(false, []int32{1, 3, 2, 4, 5}); !slices.Equal(got, []int32{0, 2, 4}) {
		t.Errorf("of a document %v are shown", got)
	}
	if got := (TokenHeads{}).Shown(false, []int32{1, 3, 2}); !slices.Equal(got, []int32{1, 2}) {
		t.Errorf("of M3's %v are shown", got)
	}
}
