package transformer

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/cpu"
	"contraflow/gpustage/cuda/onhost"
	"contraflow/gpustage/ref"
)

var layerGoldens = []string{"minicpm-train", "minicpm-shared"}

// ways are those in which a pass comes to its backward pass.
var ways = map[string]func(*Model, gpustage.Stream, *gpustage.Arena, Rows) *Pass{
	"kept": func(m *Model, s gpustage.Stream, a *gpustage.Arena, r Rows) *Pass {
		return m.Forward(s, a, r, true, true)
	},
	"lean":     (*Model).Lean,
	"replayed": (*Model).Replay,
}

// Against FlagEmbedding's model and loss: the scores of all layers, and every parameter's gradient of its loss with a teacher and without, with and
// without activation checkpointing, whatever is kept. In f64 the gradients are as exact as the golden's f32, eps 6e-8; in f32 limits are those of the
// other heads: some hundred roundings.
func TestLayerScores(t *testing.T) {
	fast, err := cpu.New(cpu.Threads(2))
	if err != nil {
		t.Fatal(err)
	}
	defer fast.Close()
	for _, name := range layerGoldens {
		for _, dtype := range []gpustage.DType{gpustage.F64, gpustage.F32} {
			for every := range 5 {
				var d gpustage.Device = ref.New()
				limit, gradLimit := 1e-12, 1e-7
				if dtype == gpustage.F32 {
					d, limit, gradLimit = fast, 1e-5, 1e-4
				}
				m, s, g, rows := loadHead(t, name, d, Options{DType: dtype, CheckpointEvery: every}, nil)
				n := m.EmbeddingSize()
				if n != 3 {
					t.Fatalf("%d scores, want those of layers 2 to 4", n)
				}
				for way, forward := range ways {
					for _, kind := range []string{"alone", "taught"} {
						t.Run(fmt.Sprintf("%s/%s/every %d/%s/%s", name, dtype, every, way, kind), func(t *testing.T) {
							grads, err := m.NewGradients()
							if err != nil {
								t.Fatal(err)
							}
							p := forward(m, s, newArena(t, d), rows)
							if e := relative(floats(t, s, p.Embeddings()), g.F64(t, "scores"), 0); !(e <= limit) {
								t.Errorf("scores %v: error %.3g", floats(t, s, p.Embeddings()), e)
							}
							p.Backward(upload64(t, s, dtype, rows.Len(), n, g.F64(t, kind+"/dscores")), grads)
							inGolden := func(p Param) string {
								return kind + "/grad/" + inFile(m.Config, func(n string) bool { return g.Has(kind + "/grad/" + n) }, p.Name)
							}
							largest := 0.0
							for _, p := range m.Layout.Params {
								for _, v := range g.F64(t, inGolden(p)) {
									largest = max(largest, math.Abs(v))
								}
							}
							for _, p := range m.Layout.Params {
								if e := relative(floats(t, s, m.Layout.View(grads, p)), g.F64(t, inGolden(p)), largest); !(e <= gradLimit) {
									t.Errorf("gradient of %s: error %.3g", p.Name, e)
								}
							}
							if all := len(g.Names(kind + "/grad/")); len(m.Layout.Params) != all {
								t.Errorf("%d parameters, the peer has %d", len(m.Layout.Params), all)
							}
						})
					}
				}
			}
		}
	}
}

// With dropout in front of the heads and in the layers all ways have the same bits, memory is as predicted, masks of layers are their own, and the
// gradient is that of the masked function.
func TestLayerScoresBitEqual(t *testing.T) {
	for _, name := range layerGoldens {
		d := ref.New()
		drop := func(c *Config) { c.Scorer.DropoutOut, c.AttentionDropout = 0.3, 0.2 }
		var scores, grad []byte
		for every := range 5 {
			m, s, g, rows := loadHead(t, name, d, Options{CheckpointEvery: every}, drop)
			var lengths []int
			for b := range rows.Len() {
				rows.Keys = append(rows.Keys, gpustage.RowKey(1, 2, int64(b), 0))
				lengths = append(lengths, int(rows.Cu[b+1]-rows.Cu[b]))
			}
			want := m.Memory(lengths)
			a := newArena(t, d)
			first := m.Forward(s, a, rows, true, false)
			if now := gpustage.Bytes(floats(t, s, first.Embeddings())); scores == nil {
				scores = now
			} else if !bytes.Equal(now, scores) {
				t.Errorf("%s: every %d: other scores", name, every)
			}
			if a.Peak() != want.Forward {
				t.Errorf("%s: every %d: forward took %d bytes, predicted %d", name, every, a.Peak(), want.Forward)
			}
			seen := map[int]bool{first.scoring.dropOut.Layer: true}
			for _, drop := range first.scoring.below.drops {
				if seen[drop.Layer] || !drop.Active() || drop.Layer < m.Config.Layers {
					t.Errorf("%s: the dropout of a head has layer %d, which another one has, or it is none", name, drop.Layer)
				}
				seen[drop.Layer] = true
			}
			first.Release()
			for way, forward := range ways {
				a := newArena(t, d)
				p := forward(m, s, a, rows)
				if !bytes.Equal(scores, gpustage.Bytes(floats(t, s, p.Embeddings()))) {
					t.Errorf("%s: every %d, %s: other scores", name, every, way)
				}
				kept := map[string]int{"kept": want.Kept, "lean": want.Lean, "replayed": a.Used()}[way]
				if a.Used() != kept {
					t.Errorf("%s: every %d, %s: %d bytes are kept, predicted %d", name, every, way, a.Used(), kept)
				}
				grads, err := m.NewGradients()
				if err != nil {
					t.Fatal(err)
				}
				p.Backward(upload64(t, s, gpustage.F32, rows.Len(), 3, g.F64(t, "alone/dscores")), grads)
				if most := max(want.Backward, want.LeanBackward); a.Peak() > most {
					t.Errorf("%s: every %d, %s: backward took %d bytes, predicted %d", name, every, way, a.Peak(), most)
				}
				if p.Release(); a.Used() != 0 {
					t.Errorf("%s: every %d, %s: %d bytes were not given back", name, every, way, a.Used())
				}
				if now := gpustage.Bytes(floats(t, s, grads)); grad == nil {
					grad = now
				} else if !bytes.Equal(now, grad) {
					t.Errorf("%s: every %d, %s: another gradient", name, every, way)
				}
			}
		}
		m, s, g, rows := loadHead(t, name, d, Options{DType: gpustage.F64, CheckpointEvery: 3}, drop)
		for b := range rows.Len() {
			rows.Keys = append(rows.Keys, uint64(b)*77)
		}
		testDerivative(t, m, s, rows, g.F64(t, "taught/dscores"))
	}
}

// On CUDA's kernels, in f32 with activation checkpointing and with operands of bf16 in lean passes, gradients are the golden's: the whole vector is off
// by at most 1e-6 of its length, 17 roundings of f32, or 4 of bf16, of 2^-8 each.
func TestLayerScoresOnKernels(t *testing.T) {
	d := onhost.OpenUnchecked(t, onhost.Plain)
	for _, name := range layerGoldens {
		for way, o := range map[string]Options{"kept": {CheckpointEvery: 3}, "lean": {BF16: true}} {
			m, s, g, rows := loadHead(t, name, d, o, nil)
			limit, forward := 1e-6, ways[way]
			if o.BF16 {
				limit = 4.0 / 256
			}
			grads, err := m.NewGradients()
			if err != nil {
				t.Fatal(err)
			}
			p := forward(m, s, newArena(t, d), rows)
			p.Backward(onDevice(t, s, rows.Len(), 3, g.F64(t, "alone/dscores")), grads)
			off, size := 0.0, 0.0
			for _, p := range m.Layout.Params {
				got, err := m.Read(s, grads, p)
				if err != nil {
					t.Fatal(err)
				}
				for i, w := range g.F64(t, "alone/grad/"+inFile(m.Config, func(n string) bool { return g.Has("alone/grad/" + n) }, p.Name)) {
					off, size = off+(float64(got[i])-w)*(float64(got[i])-w), size+w*w
				}
			}
			if e := math.Sqrt(off / size); !(e <= limit) {
				t.Errorf("%s, %+v, %s: the gradient is off by %.3g of it", name, o, way, e)
			}
		}
	}
}

// onDevice is f32 of a device that may not have f64.
func onDevice(t *testing.T, s gpustage.Stream, rows, cols int, vs []float64) gpustage.Tensor {
	t.Helper()
	x, err := gpustage.NewTensor(s.Device(), gpustage.F32, rows, cols)
	if err != nil {
		t.Fatal(err)
	}
	narrow := make([]float32, len(vs))
	for i, v := range vs {
		narrow[i] = float32(v)
	}
	s.CopyIn(x, gpustage.Bytes(narrow))
	return x
}

// A layer's score in training is that of the model that is cut off there.
func TestLayerScoresAsCutOff(t *testing.T) {
	for _, name := range layerGoldens {
		m, s, _, rows := loadHead(t, name, ref.New(), Options{DType: gpustage.F64}, nil)
		p := m.Forward(s, newArena(t, s.Device()), rows, false, false)
		all := floats(t, s, p.Embeddings())
		for j := range 3 {
			cut, s, _, _ := loadHead(t, name, ref.New(), Options{DType: gpustage.F64}, func(c *Config) {
				c.Scorer = Scorer{Pooling: gpustage.LastPooling, Out: append([]string{c.Scorer.Out}, c.Scorer.Below...)[j]}
				c.CutOff(4 - j)
			})
			for b, v := range floats(t, s, cut.Forward(s, newArena(t, s.Device()), rows, false, false).Embeddings()) {
				if e := math.Abs(v - all[3*b+j]); e > 1e-14*math.Abs(v) {
					t.Errorf("%s: row %d, layer %d: %v, alone %v", name, b, 4-j, all[3*b+j], v)
				}
			}
		}
	}
}

// With LoRA the heads train where they are named, as in PEFT; the model begins as the golden's, so heads and the final norm have its gradient. Where
// layers below are frozen, a backward pass ends above them, and their heads learn all the same.
func TestLayerScoresTuning(t *testing.T) {
	for what, c := range map[string]struct {
		tuning Tuning
		want   string
		lowest int
	}{
		"lora":   {Tuning{LoRA: &LoRA{Rank: 2, Alpha: 4, Targets: []string{"q_proj", "v_proj"}}}, "", 0},
		"heads":  {Tuning{LoRA: &LoRA{Rank: 2, Alpha: 4, Targets: []string{AllLinear}, Save: []string{"linear_head"}}}, "lm_head.2.linear_head.weight lm_head.1.linear_head.weight lm_head.0.linear_head.weight", 0},
		"frozen": {Tuning{FreezeEmbeddings: true, FreezeLayers: 3}, "norm.weight lm_head.2.linear_head.weight lm_head.1.linear_head.weight lm_head.0.linear_head.weight", 3},
	} {
		for every := range 2 {
			m, s, g, rows := loadHead(t, "minicpm-train", ref.New(), Options{DType: gpustage.F64, CheckpointEvery: every, Tuning: c.tuning}, nil)
			if m.Lowest() != c.lowest {
				t.Errorf("%s: a backward pass goes down to layer %d, want %d", what, m.Lowest(), c.lowest)
			}
			grads, err := m.NewGradients()
			if err != nil {
				t.Fatal(err)
			}
			p := m.Replay(s, newArena(t, s.Device()), rows)
			p.Backward(upload64(t, s, gpustage.F64, rows.Len(), 3, g.F64(t, "alone/dscores")), grads)
			var outside []string
			for _, p := range m.Layout.Training() {
				if p.Factor() {
					continue
				}
				if p.Layer == Outside {
					outside = append(outside, p.Name)
				}
				n := "alone/grad/" + inFile(m.Config, func(n string) bool { return g.Has("alone/grad/" + n) }, p.Name)
				if e := relative(floats(t, s, m.Layout.View(grads, p)), g.F64(t, n), 1); !(e <= 1e-7) {
					t.Errorf("%s: every %d: gradient of %s: error %.3g", what, every, p.Name, e)
				}
			}
			if got := strings.Join(outside, " "); got != c.want {
				t.Errorf("%s: outside of layers %q train, want %q", what, got, c.want)
			}
		}
	}
}

func TestLayerScorersErrors(t *testing.T) {
	for config, want := range map[string]string{
		`"start_layer":8,"num_hidden_layers":7`:                   "layer 7 has no score: those of layers 8 to 7 have",
		`"start_layer":2,"num_hidden_layers":7,"head_type":"raw"`: `head_type "raw" is not supported`,
		`"start_layer":null,"head_type":"simple"`:                 "start_layer is null",
		`"start_layer":2,"head_multi":null`:                       "head_multi is null",
		`"start_layer":0,"head_multi":true`:                       "with start_layer 0 and head_multi there are heads below layer 1",
	} {
		raw := []byte(`{"model_type":"minicpm",` + config + "}")
		c, err := ParseConfig(raw)
		if err == nil {
			_, err = c.LayerScorers(raw)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", config, err, want)
		}
	}
	m, _, _, _ := loadHead(t, "minicpm-train", ref.New(), Options{}, nil)
	for want, change := range map[string]func(*Config){
		"4 layers below": func(c *Config) {
			c.Scorer.Below = append(c.Scorer.Below, "lm_head.3.linear_head", "lm_head.4.linear_head")
		},
		"of the last token":         func(c *Config) { c.Scorer.Pooling = gpustage.MeanPooling },
		"2 layers below":            func(c *Config) { c.Scorer.Out, c.Scorer.Tokens = "", []int32{1} },
		"2 layers below the last":   func(c *Config) { c.Scorer.Dense = "pooler.dense" },
		`a model of family "bert" `: func(c *Config) { c.Family = "bert" },
	} {
		c := m.Config
		change(&c)
		if err := c.checkScorer(); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "want fewer than those, of the last token, and a final norm") {
			t.Errorf("%v, want %q", err, want)
		}
		if _, err := New(gpustage.Dry{}, c, Head{}, Options{}); err == nil {
			t.Errorf("%q is no error of New", want)
		}
	}
	// A head is no target of LoRA, nor among those that there are.
	for target, want := range map[string]string{"lm_head.2.linear_head": `"lm_head.2.linear_head" is of the head`, "linear_head": "lora.modules_to_save", "q": "there are self_attn.q_proj, "} {
		_, err := New(gpustage.Dry{}, m.Config, Head{}, Options{Tuning: Tuning{LoRA: &LoRA{Rank: 2, Alpha: 4, Targets: []string{target}}}})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "there are") && strings.Contains(err.Error(), "linear_head") {
			t.Errorf("%s: %v, want %q", target, err, want)
		}
	}
}

// Layers are counted from 1, whatever start_layer says: the embeddings' output has no score here, and layer 1 has the second of the heads.
func TestLayerScorersFromZero(t *testing.T) {
	for start, want := range map[int]string{0: "lm_head.1.linear_head", 1: "lm_head.0.linear_head"} {
		raw := fmt.Appendf(nil, `{"model_type":"minicpm","num_hidden_layers":3,"start_layer":%d,"head_multi":true}`, start)
		c, err := ParseConfig(raw)
		if err != nil {
			t.Fatal(err)
		}
		if h, _, err := c.LayerScorer(raw, 1); err != nil || h.Out != want {
			t.Errorf("start_layer %d: layer 1 has the head %q, %v, want %q", start, h.Out, err, want)
		}
		raw = bytes.Replace(raw, []byte("true"), []byte("false"), 1)
		if h, err := c.LayerScorers(raw); err != nil || h.Scores() != 3 {
			t.Errorf("start_layer %d: %d scores of a shared head, %v, want those of 3 layers", start, h.Scores(), err)
		}
	}
}

// What comes back to a head is rounded once for its two products, as in layers.
func TestLayerScoresSharedRounding(t *testing.T) {
	m, s, g, rows := loadHead(t, "minicpm-train", rounder{fastDevice(t)}, Options{BF16: true}, nil)
	grads, err := m.NewGradients()
	if err != nil {
		t.Fatal(err)
	}
	spy := &roundingSpy{Stream: s, t: t, found: map[*gpustage.Rounded][]float64{}}
	p := m.Forward(spy, newArena(t, m.Device), rows, true, true)
	p.Backward(upload64(t, s, m.DType, rows.Len(), 3, g.F64(t, "alone/dscores")), grads)
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	if want := 4*m.Config.Layers + 3; spy.shared != want {
		t.Errorf("%d products take what another one has rounded, want %d: 4 of each layer, and one of each of 3 heads", spy.shared, want)
	}
}
