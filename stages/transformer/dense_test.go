package transformer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/cpu"
	"contraflow/gpustage/ref"
	"contraflow/testdata/goldens"
)

// loadDense makes a golden's model.
func loadDense(t testing.TB, name string, d gpustage.Device, o Options) (*Model, gpustage.Stream, *goldens.Golden) {
	t.Helper()
	g := goldens.Load(t, "dense/"+name)
	var meta struct {
		Pooling   string
		Normalize bool
		Config    json.RawMessage
		Dense     []struct {
			Name, Activation string
			Out              int
			Bias             bool
		}
	}
	g.Meta(t, &meta)
	c, err := ParseConfig(meta.Config)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range meta.Dense {
		act := gpustage.Identity
		for act.String() != x.Activation {
			act++
		}
		c.Dense = append(c.Dense, Dense{Name: x.Name, Out: x.Out, Bias: x.Bias, Activation: act})
	}
	m, err := New(d, c, Head{Pooling: poolings[meta.Pooling], Normalize: meta.Normalize}, o)
	if err != nil {
		t.Fatal(err)
	}
	s, err := d.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Load(s, func(p Param, dst []float32) error {
		if !p.Factor() {
			copy(dst, g.F32(t, "weight/"+p.Name))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return m, s, g
}

// Embeddings and every gradient, against torch.
func TestDense(t *testing.T) {
	fast, err := cpu.New(cpu.Threads(2))
	if err != nil {
		t.Fatal(err)
	}
	defer fast.Close()
	for _, name := range []string{"chain", "tanh", "narrow"} {
		for _, every := range []int{0, 1} {
			for _, dtype := range []gpustage.DType{gpustage.F64, gpustage.F32} {
				t.Run(fmt.Sprint(name, "/", dtype, "/every", every), func(t *testing.T) {
					var d gpustage.Device = ref.New()
					limit, gradLimit := 1e-12, 1e-11
					if dtype == gpustage.F32 {
						d, limit, gradLimit = fast, 1e-5, 1e-4
					}
					m, s, g := loadDense(t, name, d, Options{DType: dtype, CheckpointEvery: every})
					rows := goldenRows(t, g, "")
					if size := g.Shape(t, "r")[1]; m.EmbeddingSize() != size {
						t.Fatalf("embeddings of %d, want %d", m.EmbeddingSize(), size)
					}
					grads, err := m.NewGradients()
					if err != nil {
						t.Fatal(err)
					}
					r := upload64(t, s, dtype, rows.Len(), m.EmbeddingSize(), g.F64(t, "r"))
					p := m.Forward(s, newArena(t, d), rows, true, true)
					p.Backward(r, grads)
					if e := relative(floats(t, s, p.Embeddings()), g.F64(t, "embedding"), 0); !(e <= limit) {
						t.Errorf("embeddings: error %.3g", e)
					}
					if got := floats(t, s, r); relative(got, g.F64(t, "r"), 0) != 0 {
						t.Error("the backward pass changed the embeddings' gradient")
					}
					largest := 0.0
					for _, n := range g.Names("grad/") {
						for _, v := range g.F64(t, n) {
							largest = max(largest, math.Abs(v))
						}
					}
					for _, p := range m.Layout.Params {
						if e := relative(floats(t, s, m.Layout.View(grads, p)), g.F64(t, "grad/"+p.Name), largest); !(e <= gradLimit) {
							t.Errorf("gradient of %s: error %.3g", p.Name, e)
						}
					}
					if n := len(g.Names("grad/")); n != len(m.Layout.Params) {
						t.Errorf("%d parameters, want %d", len(m.Layout.Params), n)
					}
				})
			}
		}
	}
}

// Predicted memory is what passes take; replayed passes have the same bits.
func TestDenseMemory(t *testing.T) {
	for _, every := range []int{0, 1} {
		d := ref.New()
		m, s, g := loadDense(t, "narrow", d, Options{CheckpointEvery: every})
		rows := goldenRows(t, g, "")
		var lengths []int
		for b := range rows.Len() {
			lengths = append(lengths, int(rows.Cu[b+1]-rows.Cu[b]))
		}
		want := m.Memory(lengths)
		r := upload64(t, s, gpustage.F32, rows.Len(), m.EmbeddingSize(), g.F64(t, "r"))
		var all [][]byte
		for _, pass := range []func(a *gpustage.Arena) *Pass{
			func(a *gpustage.Arena) *Pass { return m.Forward(s, a, rows, true, true) },
			func(a *gpustage.Arena) *Pass { return m.Replay(s, a, rows) },
		} {
			a := newArena(t, d)
			p := pass(a)
			grads, err := m.NewGradients()
			if err != nil {
				t.Fatal(err)
			}
			p.Backward(r, grads)
			if a.Peak() > want.Backward {
				t.Errorf("every %d: backward took %d bytes, predicted %d", every, a.Peak(), want.Backward)
			}
			all = append(all, gpustage.Bytes(append(floats(t, s, p.Embeddings()), floats(t, s, grads)...)))
			p.Release()
			if a.Used() != 0 {
				t.Errorf("%d bytes of the arena were not given back", a.Used())
			}
		}
		if !bytes.Equal(all[0], all[1]) {
			t.Errorf("every %d: a replayed pass has other bits", every)
		}
	}
}

// With everything before it frozen a dense layer learns, and its gradient is the same; so beside LoRA that names it, and any other leaves it as it is.
func TestDenseTuning(t *testing.T) {
	for _, tuning := range []Tuning{{FreezeEmbeddings: true, FreezeLayers: 1}, {LoRA: &LoRA{Rank: 2, Alpha: 2, Targets: []string{AllLinear}, Save: []string{"2_Dense"}}}} {
		m, s, g := loadDense(t, "tanh", ref.New(), Options{DType: gpustage.F64, Tuning: tuning})
		rows := goldenRows(t, g, "")
		grads, err := m.NewGradients()
		if err != nil {
			t.Fatal(err)
		}
		p := m.Forward(s, newArena(t, s.Device()), rows, true, true)
		p.Backward(upload64(t, s, gpustage.F64, rows.Len(), m.EmbeddingSize(), g.F64(t, "r")), grads)
		n := 0
		for _, p := range m.Layout.Training() {
			if p.Factor() {
				continue
			}
			n += p.Len()
			if e := relative(floats(t, s, m.Layout.View(grads, p)), g.F64(t, "grad/"+p.Name), 0); !(e <= 1e-11) {
				t.Errorf("gradient of %s: error %.3g", p.Name, e)
			}
		}
		if n != 16*16+16 {
			t.Errorf("%d parameters train", n)
		}
	}
	m, _, _ := loadDense(t, "tanh", ref.New(), Options{Tuning: Tuning{LoRA: &LoRA{Rank: 2, Alpha: 2, Targets: []string{AllLinear}}}})
	for _, p := range m.Layout.Training() {
		if strings.Contains(p.Name, "Dense") {
			t.Errorf("%s trains", p.Name)
		}
	}
	for want, lora := range map[string]LoRA{`"2_Dense.linear" is no linear layer`: {Targets: []string{"2_Dense.linear"}}, "2_Dense.linear": {Targets: []string{AllLinear}, Save: []string{"3_Dense"}}} {
		lora.Rank, lora.Alpha = 2, 2
		_, err := New(ref.New(), m.Config, m.Head, Options{Tuning: Tuning{LoRA: &lora}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}
