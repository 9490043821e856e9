package transformer

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/cpu"
	"contraflow/gpustage/ref"
	"contraflow/testdata/goldens"
)

// loadM3 makes the model of testdata/golden/m3 with heads of tokens, whose weights the golden's gradients are of: they begin at
// random if fresh.
func loadM3(t testing.TB, d gpustage.Device, o Options) (*Model, gpustage.Stream, *goldens.Golden, Rows) {
	t.Helper()
	g := goldens.Load(t, "m3/model")
	raw, err := os.ReadFile(filepath.Join(goldens.Path(t, "m3/model"), "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := ParseConfig(raw)
	if err != nil {
		t.Fatal(err)
	}
	c.Tokens = c.M3Heads(12, false, 0)
	m, err := New(d, c, Head{Pooling: gpustage.CLSPooling, Normalize: true}, o)
	if err != nil {
		t.Fatal(err)
	}
	s, err := d.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	w := goldens.Load(t, "m3/model/model")
	if err := m.Load(s, func(p Param, dst []float32) error {
		if p.Head {
			for i, v := range g.F64(t, "head/"+p.Name) {
				dst[i] = float32(v)
			}
			return nil
		}
		copy(dst, w.F32(t, p.Name))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return m, s, g, goldenRows(t, g, "")
}

// Against torch: all three parts and every parameter's gradient, with and without activation checkpointing.
func TestTokenHeads(t *testing.T) {
	fast, err := cpu.New(cpu.Threads(2))
	if err != nil {
		t.Fatal(err)
	}
	defer fast.Close()
	for _, x := range []struct {
		d            gpustage.Device
		t            gpustage.DType
		limit, grads float64
	}{{ref.New(), gpustage.F64, 1e-9, 1e-9}, {fast, gpustage.F32, 1e-5, 1e-4}} {
		for _, every := range []int{0, 1} {
			m, s, g, rows := loadM3(t, x.d, Options{DType: x.t, CheckpointEvery: every})
			grads, err := m.NewGradients()
			if err != nil {
				t.Fatal(err)
			}
			p := m.Forward(s, newArena(t, x.d), rows, true, true)
			var d []gpustage.Tensor
			for i, part := range m.Parts() {
				got := p.Parts()[i]
				if e := relative(floats(t, s, got), g.F64(t, "part/"+part.Name), 0); !(e <= x.limit) {
					t.Errorf("%s %s: error %.3g", x.t, part.Name, e)
				}
				d = append(d, upload64(t, s, x.t, got.Rows, got.Cols, g.F64(t, "r/"+part.Name)))
			}
			p.BackwardTo(d, Gradients{Flat: grads})
			largest := 0.0
			for _, p := range m.Layout.Params {
				for _, v := range g.F64(t, "grad/"+p.Name) {
					largest = max(largest, math.Abs(v))
				}
			}
			for _, p := range m.Layout.Params {
				if e := relative(floats(t, s, m.Layout.View(grads, p)), g.F64(t, "grad/"+p.Name), largest); !(e <= x.grads) {
					t.Errorf("%s, activation checkpointing every %d: the gradient of %s is off by %.3g", x.t, every, p.Name, e)
				}
			}
		}
	}
}

// An embedding, a kept and a replayed pass give the same bits of all parts, in the memory that is predicted; and heads alone can train.
func TestTokenHeadsMemory(t *testing.T) {
	d := ref.New()
	for _, o := range []Options{{}, {CheckpointEvery: 1}, {Tuning: Tuning{FreezeEmbeddings: true, FreezeLayers: 2}}} {
		m, s, _, rows := loadM3(t, d, o)
		var lengths []int
		for b := range rows.Len() {
			lengths = append(lengths, int(rows.Cu[b+1]-rows.Cu[b]))
		}
		mem := m.Memory(lengths)
		grads, _ := m.NewGradients()
		var want [][]byte
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
			for k, x := range p.Parts() {
				got := gpustage.Bytes(floats(t, s, x))
				if i == 0 {
					want = append(want, got)
				} else if !bytes.Equal(got, want[k]) {
					t.Errorf("%+v: part %d of way %d has other bits", o, k, i)
				}
			}
			if i > 0 {
				p.BackwardTo(p.Parts(), Gradients{Flat: grads})
			}
			p.Release()
			if err := s.Sync(); err != nil {
				t.Errorf("%+v, way %d: %v", o, i, err)
			}
			if a.Peak() != way.bytes && i != 1 && o.CheckpointEvery == 0 {
				t.Errorf("%+v, way %d: %d bytes were predicted, %d taken", o, i, way.bytes, a.Peak())
			}
		}
	}
}
