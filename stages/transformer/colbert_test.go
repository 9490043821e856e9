package transformer

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/ref"
	"contraflow/testdata/goldens"
)

// loadColBERT makes a model of testdata/golden/families/modernbert with two dense layers, drawn by their names, which gives vectors of all
// tokens, or embeddings by a pooling.
func loadColBERT(t testing.TB, d gpustage.Device, o Options, h Head, alone bool) (*Model, gpustage.Stream, Rows) {
	t.Helper()
	return loadTokens(t, d, o, h, alone, Dense{Name: "1_Dense", Out: 20}, Dense{Name: "2_Dense", Out: 12, Bias: true, Activation: gpustage.Tanh})
}

// loadTokens is loadColBERT with other dense layers, or none.
func loadTokens(t testing.TB, d gpustage.Device, o Options, h Head, alone bool, dense ...Dense) (*Model, gpustage.Stream, Rows) {
	t.Helper()
	c, err := ParseConfig(configAt(t, "families/modernbert"))
	if err != nil {
		t.Fatal(err)
	}
	c.Dense = dense
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
		if c.IsDense(p) {
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

// Without Shown all tokens have rows; ways of keeping a pass give the same bits, in the memory that is predicted, however many are
// shown, and whether all are attended to.
func TestVectorsMemory(t *testing.T) {
	d := ref.New()
	for _, which := range []string{"all", "none", "unseen", "all seen"} {
		m, s, rows := loadColBERT(t, d, Options{}, Head{Normalize: true}, true)
		none := which == "none"
		switch which {
		case "unseen":
			m, rows = unseen(m), halfSeen(rows)
		case "all seen":
			m = unseen(m)
		}
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

// unseen is a model whose queries are filled up with tokens that the others do not attend to.
func unseen(m *Model) *Model {
	m.Config.Tokens.Query = Reading{Length: 1, Unseen: true}
	return m
}

// halfSeen has the others attend to the first half of each row's tokens.
func halfSeen(r Rows) Rows {
	for b := range r.Len() {
		r.Seen = append(r.Seen, (r.Cu[b+1]-r.Cu[b]+1)/2)
	}
	return r
}

// Tokens that the others do not attend to leave these as they are without them, and each other; what they attend to themselves makes a difference to them.
func TestUnseen(t *testing.T) {
	d := ref.New()
	m, s, _ := loadColBERT(t, d, Options{DType: gpustage.F64}, Head{Normalize: true}, true)
	m = unseen(m)
	vectors := func(ids []int32, seen ...int32) []float64 {
		rows := Rows{IDs: ids, Cu: []int32{0, int32(len(ids))}, Seen: seen}
		if err := m.Check(rows); err != nil {
			t.Fatal(err)
		}
		p := m.Forward(s, newArena(t, d), rows, false, false)
		defer p.Release()
		return floats(t, s, p.Embeddings())
	}
	const text, size = 5, 12
	filled := []int32{3, 11, 12, 13, 4, 20, 20, 20, 20}
	got := vectors(filled, text)
	for what, want := range map[string]struct {
		vectors []float64
		from    int // tokens that are the same
		to      int
		differ  bool // the others are all another
	}{
		"without them":         {vectors(filled[:text]), 0, text, false},
		"another at the end":   {vectors([]int32{3, 11, 12, 13, 4, 20, 20, 20, 21}, text), 0, text + 3, true},
		"another before":       {vectors([]int32{3, 11, 12, 13, 4, 21, 20, 20, 20}, text), text + 1, len(filled), false},
		"another in the text":  {vectors([]int32{3, 11, 14, 13, 4, 20, 20, 20, 20}, text), 0, 0, true},
		"attended to":          {vectors(filled), 0, 0, true},
		"one more attended to": {vectors(filled, text+1), 0, 0, true},
	} {
		for token := range len(want.vectors) / size {
			at := func(x []float64) []float64 { return x[token*size : (token+1)*size] }
			same := slices.Equal(at(got), at(want.vectors))
			if inside := token >= want.from && token < want.to; inside && !same || !inside && want.differ && same {
				t.Errorf("%s: token %d is the same: %v", what, token, same)
			}
		}
	}
	for want, rows := range map[string]Rows{
		"row 0 of the sub-batch has 2 tokens, of which the others attend to 3, want 0 to 2":  {IDs: []int32{1, 2}, Cu: []int32{0, 2}, Seen: []int32{3}},
		"row 1 of the sub-batch has 1 tokens, of which the others attend to -1, want 0 to 1": {IDs: []int32{1, 2}, Cu: []int32{0, 1, 2}, Seen: []int32{1, -1}},
		"a sub-batch of 2 rows says of 1": {IDs: []int32{1, 2}, Cu: []int32{0, 1, 2}, Seen: []int32{1}},
	} {
		if err := m.Check(rows); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	deberta, err := ParseConfig(configAt(t, "families/deberta-v2"))
	if err != nil {
		t.Fatal(err)
	}
	if err := deberta.Sees(Reading{Length: 3, Unseen: true}); !errors.Is(err, ErrUnsupported) {
		t.Errorf("DeBERTa: %v", err)
	}
	for _, r := range []Reading{{}, {Length: 3}} {
		if err := deberta.Sees(r); err != nil {
			t.Error(err)
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
