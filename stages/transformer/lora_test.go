package transformer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/cpu"
	"contraflow/gpustage/ref"
	"contraflow/testdata/goldens"
	"contraflow/testdata/harness"
)

var loraGoldens = []string{"bert-qv", "bert-all", "bert-save", "qwen3-qo", "qwen3-last-o", "qwen3-all", "modernbert-fused", "electra-all", "t5-all", "deberta-qk", "deberta-own-all", "deberta-own-far"}

// adapterOf is a golden's adapter_config.json.
func adapterOf(t testing.TB, name string) *LoRA {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(goldens.Path(t, "lora/"+name), "adapter_config.json"))
	if err != nil {
		t.Fatal(err)
	}
	var c struct {
		R       int             `json:"r"`
		Alpha   float64         `json:"lora_alpha"`
		RSLoRA  bool            `json:"use_rslora"`
		Targets json.RawMessage `json:"target_modules"`
		Save    []string        `json:"modules_to_save"`
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		t.Fatal(err)
	}
	l := &LoRA{Rank: c.R, Alpha: c.Alpha, RSLoRA: c.RSLoRA, Save: c.Save, Targets: []string{AllLinear}}
	if strings.HasSuffix(name, "-all") {
		return l // PEFT has written the names that it found, those of BERT's pooler among them
	}
	if err := json.Unmarshal(c.Targets, &l.Targets); err != nil {
		t.Fatal(err)
	}
	return l
}

type loraMeta struct{ Base, Pooling string }

// loadLoRA makes a golden's model with its adapter.
func loadLoRA(t testing.TB, name string, d gpustage.Device, o Options) (*Model, gpustage.Stream, *goldens.Golden) {
	t.Helper()
	g := goldens.Load(t, "lora/"+name)
	var meta loraMeta
	g.Meta(t, &meta)
	o.Tuning.LoRA = adapterOf(t, name)
	m, s := loadAt(t, meta.Base, d, Head{Pooling: poolings[meta.Pooling], Normalize: true}, o)
	adapter := goldens.Load(t, "lora/"+name+"/adapter_model")
	if err := m.load(s, func(p Param, dst []float32) error {
		if !m.Layout.Trains(p) {
			return errLeave
		}
		copy(dst, adapter.F32(t, "base_model.model."+p.Name))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return m, s, g
}

// anyFactors gives a model's factors, if it has any, numbers that are not zero.
func anyFactors(t testing.TB, m *Model, s gpustage.Stream) {
	t.Helper()
	if err := m.LoadFactors(s, func(p Param, dst []float32) error {
		for i := range dst {
			dst[i] = float32((i+p.Len())%13)/20 - 0.3
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// Against PEFT: embeddings with the adapter, and the gradient of everything that trains.
func TestLoRAGolden(t *testing.T) {
	harness.Thorough(t)
	fast, err := cpu.New(cpu.Threads(2))
	if err != nil {
		t.Fatal(err)
	}
	defer fast.Close()
	for _, name := range loraGoldens {
		for _, dtype := range []gpustage.DType{gpustage.F64, gpustage.F32} {
			for _, every := range []int{0, 1, 2} {
				t.Run(fmt.Sprint(name, "/", dtype, "/every", every), func(t *testing.T) {
					var d gpustage.Device = fast
					limit := 1e-5
					if dtype == gpustage.F64 {
						d, limit = ref.New(), 1e-11
					}
					m, s, g := loadLoRA(t, name, d, Options{DType: dtype, CheckpointEvery: every})
					rows := goldenRows(t, g, "")
					grads, err := m.NewGradients()
					if err != nil {
						t.Fatal(err)
					}
					p := m.Forward(s, newArena(t, d), rows, true, true)
					p.Backward(upload64(t, s, dtype, rows.Len(), m.Config.Hidden, g.F64(t, "r")), grads)
					if e := relative(floats(t, s, p.Embeddings()), g.F64(t, "embedding"), 0); !(e <= limit) {
						t.Errorf("embeddings: error %.3g", e)
					}
					names, largest := g.Names("grad/"), 0.0
					for _, n := range names {
						for _, v := range g.F64(t, n) {
							largest = max(largest, math.Abs(v))
						}
					}
					if got := m.Layout.Training(); len(got) != len(names) {
						t.Errorf("%d tensors train, PEFT trains %d", len(got), len(names))
					}
					for _, p := range m.Layout.Training() {
						if e := relative(floats(t, s, m.Layout.View(grads, p)), g.F64(t, "grad/"+p.Name), largest); !(e <= limit) {
							t.Errorf("gradient of %s: error %.3g", p.Name, e)
						}
					}
				})
			}
		}
	}
}

// B begins as zero: the model begins as its base.
func TestLoRAStart(t *testing.T) {
	g := goldens.Load(t, "lora/qwen3-all")
	lora := adapterOf(t, "qwen3-all")
	lora.Seed = 3
	m, s := loadAt(t, "lora/qwen3-tiny", ref.New(), Head{Normalize: true}, Options{DType: gpustage.F64, Tuning: Tuning{LoRA: lora}})
	p := m.Forward(s, newArena(t, s.Device()), goldenRows(t, g, ""), true, false)
	if e := relative(floats(t, s, p.Embeddings()), g.F64(t, "base/embedding"), 0); !(e <= 1e-12) {
		t.Errorf("embeddings: error %.3g", e)
	}
	seen := map[float64]string{}
	for _, p := range m.Layout.Training() {
		vs := floats(t, s, m.Layout.View(m.Params, p))
		if other, ok := seen[vs[0]]; ok && vs[0] != 0 {
			t.Errorf("%s and %s begin alike", p.Name, other)
		}
		seen[vs[0]] = p.Name
		largest, sum := 0.0, 0.0
		for _, v := range vs {
			largest, sum = max(largest, math.Abs(v)), sum+v*v
		}
		if p.kind == loraB {
			if largest != 0 {
				t.Errorf("%s is not zero", p.Name)
			}
			continue
		}
		// Uniform within 1/sqrt(in), whose mean square is a third of the bound's.
		bound := 1 / math.Sqrt(float64(p.Cols))
		if ms := sum / float64(len(vs)) * float64(p.Cols); !(largest <= bound) || !(ms >= 0.2) || !(ms <= 0.5) {
			t.Errorf("%s: largest %v of %v, mean square %v of the bound's", p.Name, largest, bound, ms)
		}
	}
}

// With dropout everywhere, LoRA's included, the gradient is that of the masked function, every target has its own mask, and
// activation checkpointing and replay change no bit.
func TestLoRADropout(t *testing.T) {
	for _, name := range []string{"bert-all", "qwen3-all", "modernbert-fused", "bert-save", "electra-all", "t5-all"} {
		setup := func(o Options, drop float64) (*Model, gpustage.Stream, Rows, []float64) {
			m, s, g := loadLoRA(t, name, ref.New(), o)
			m.lora().Dropout = drop
			rows := goldenRows(t, g, "")
			for b := range rows.Len() {
				rows.Keys = append(rows.Keys, gpustage.RowKey(5, 1, int64(b), 0))
			}
			return m, s, rows, g.F64(t, "r")
		}
		m, s, rows, r := setup(Options{DType: gpustage.F64}, 0.3)
		m.Config.HiddenDropout, m.Config.AttentionDropout = 0.2, 0.1
		testDerivative(t, m, s, rows, r)

		run := func(every int, drop float64) (emb, grad []byte) {
			m, s, rows, r := setup(Options{CheckpointEvery: every}, drop)
			a := newArena(t, s.Device())
			p := m.Forward(s, a, rows, true, false)
			emb = gpustage.Bytes(floats(t, s, p.Embeddings()))
			p.Release()
			p = m.Forward(s, a, rows, true, true)
			if !bytes.Equal(emb, gpustage.Bytes(floats(t, s, p.Embeddings()))) {
				t.Errorf("%s: a replayed forward pass gave other bits", name)
			}
			grads, _ := m.NewGradients()
			p.Backward(upload64(t, s, gpustage.F32, rows.Len(), m.Config.Hidden, r), grads)
			p.Release()
			grad = gpustage.Bytes(floats(t, s, grads))
			s.Fill(grads, 0)
			p = m.Lean(s, a, rows)
			p.Backward(upload64(t, s, gpustage.F32, rows.Len(), m.Config.Hidden, r), grads)
			p.Release()
			if !bytes.Equal(grad, gpustage.Bytes(floats(t, s, grads))) {
				t.Errorf("%s: a lean pass gave other bits", name)
			}
			if a.Used() != 0 {
				t.Errorf("%s: %d bytes of the arena were not given back", name, a.Used())
			}
			return emb, grad
		}
		plain, _ := run(0, 0)
		m, s, rows, _ = setup(Options{}, 0.3)
		if p := m.Forward(s, newArena(t, s.Device()), rows, false, false); !bytes.Equal(plain, gpustage.Bytes(floats(t, s, p.Embeddings()))) {
			t.Errorf("%s: outside of training, dropout drops something", name)
		}
		emb, grad := run(0, 0.3)
		if bytes.Equal(plain, emb) {
			t.Errorf("%s: dropout did nothing", name)
		}
		for _, every := range []int{1, 2} {
			if e, g := run(every, 0.3); !bytes.Equal(e, emb) || !bytes.Equal(g, grad) {
				t.Errorf("%s: checkpointing every %d layers changes bits", name, every)
			}
		}
	}
	sites := map[gpustage.Site]bool{}
	m, _, _ := loadLoRA(t, "qwen3-all", ref.New(), Options{})
	pass := &Pass{m: m, train: true}
	for _, w := range m.w.layers[1].linears() {
		for _, f := range w.factors {
			d := pass.loraDropout(f)
			if sites[d.Site] || d.Layer != 1 {
				t.Errorf("site %d of layer %d is used twice", d.Site, d.Layer)
			}
			sites[d.Site] = true
		}
	}
	if len(sites) != 7 {
		t.Errorf("%d sites for 7 projections", len(sites))
	}
}

// What freezing leaves has the gradient that it has when everything trains, and a step keeps and computes less.
func TestFreezing(t *testing.T) {
	for _, c := range []struct {
		folder string
		tuning Tuning
		lowest int
	}{
		{"bert/minilm-tiny", Tuning{FreezeEmbeddings: true}, 0},
		{"bert/minilm-tiny", Tuning{FreezeLayers: 2}, 0}, // the embeddings' gradient comes through all layers
		{"bert/minilm-tiny", Tuning{FreezeEmbeddings: true, FreezeLayers: 2}, 2},
		{"lora/qwen3-tiny", Tuning{FreezeEmbeddings: true, FreezeLayers: 1}, 1},
		{"lora/qwen3-tiny", Tuning{FreezeEmbeddings: true, FreezeLayers: 2}, 2}, // the final norm is left
		{"families/mpnet", Tuning{FreezeEmbeddings: true, FreezeLayers: 1}, 1},
		{"families/modernbert", Tuning{FreezeEmbeddings: true, FreezeLayers: 3}, 3},
		{"families/deberta-v2", Tuning{FreezeEmbeddings: true, FreezeLayers: 1}, 1},
		{"families/deberta-v2", Tuning{FreezeLayers: 2}, 0}, // that of the embeddings of distances, too
		{"families/deberta-v2-own", Tuning{FreezeEmbeddings: true}, 0},
	} {
		for _, every := range []int{0, 2} {
			t.Run(fmt.Sprintf("%s/%+v/every%d", c.folder, c.tuning, every), func(t *testing.T) {
				rows := goldenRows(t, goldens.Load(t, "lora/bert-qv"), "")
				for i := range rows.IDs {
					rows.IDs[i] %= 50
				}
				run := func(tuning Tuning) (*Model, gpustage.Stream, gpustage.Tensor, Memory) {
					m, s := loadAt(t, c.folder, ref.New(), Head{Normalize: true}, Options{DType: gpustage.F64, CheckpointEvery: every, Tuning: tuning})
					a := newArena(t, s.Device())
					p := m.Forward(s, a, rows, true, true)
					kept := a.Used()
					r := make([]float64, rows.Len()*m.Config.Hidden)
					for i := range r {
						r[i] = math.Sin(float64(i))
					}
					grads, _ := m.NewGradients()
					var done []int
					p.BackwardTo([]gpustage.Tensor{upload64(t, s, gpustage.F64, rows.Len(), m.Config.Hidden, r)}, Gradients{Flat: grads, Done: func(mark int) { done = append(done, mark) }})
					if err := s.Sync(); err != nil {
						t.Fatal(err)
					}
					if marks := m.Layout.Marks(); !slices.Equal(done, marks) {
						t.Errorf("marks were reached in the order %v, want %v", done, marks)
					}
					return m, s, grads, Memory{Kept: kept, Backward: a.Peak()}
				}
				all, s, want, before := run(Tuning{})
				m, fs, got, after := run(c.tuning)
				if m.Lowest() != c.lowest {
					t.Errorf("backward goes down to layer %d, want %d", m.Lowest(), c.lowest)
				}
				if c.lowest > 0 && (every == 0 && after.Kept >= before.Kept || after.Backward >= before.Backward) {
					t.Errorf("kept %d of %d bytes, peak %d of %d", after.Kept, before.Kept, after.Backward, before.Backward)
				}
				largest := 0.0
				for _, v := range floats(t, s, want) {
					largest = max(largest, math.Abs(v))
				}
				for _, p := range all.Layout.Params {
					mine, _ := m.Layout.Find(p.Name)
					frozen := p.Layer >= 0 && p.Layer < c.tuning.FreezeLayers || p.Layer < 0 && c.tuning.FreezeEmbeddings && p.Name != "norm.weight" && p.Name != "final_norm.weight"
					if m.Layout.Trains(mine) == frozen {
						t.Errorf("%s trains: %v", p.Name, !frozen)
					}
					if frozen {
						if !m.Layout.View(got, mine).IsZero() {
							t.Errorf("%s is frozen and has a gradient", p.Name)
						}
						continue
					}
					if e := relative(floats(t, fs, m.Layout.View(got, mine)), floats(t, s, all.Layout.View(want, p)), largest); !(e <= 1e-12) {
						t.Errorf("%s: error %.3g", p.Name, e)
					}
				}
			})
		}
	}
}

// What is outside of layers and trains as a whole beside LoRA's factors has the gradient that it has where everything trains, however far down the
// backward pass must go for it.
func TestSavedOutside(t *testing.T) {
	harness.Thorough(t)
	rows := Rows{IDs: []int32{3, 4, 5, 6, 7, 8}, Cu: []int32{0, 2, 6}}
	for _, name := range familyGoldens(t) {
		run := func(o Tuning) (*Model, func(p Param) []float64) {
			m, s := loadFamily(t, name, nil, ref.New(), Options{DType: gpustage.F64, Tuning: o})
			grads, err := m.NewGradients()
			if err != nil {
				t.Fatal(err)
			}
			r := make([]float64, rows.Len()*m.Config.Hidden)
			for i := range r {
				r[i] = math.Sin(float64(i))
			}
			p := m.Forward(s, newArena(t, s.Device()), rows, true, true)
			p.Backward(upload64(t, s, gpustage.F64, rows.Len(), m.Config.Hidden, r), grads)
			return m, func(p Param) []float64 { return floats(t, s, m.Layout.View(grads, p)) }
		}
		all, want := run(Tuning{})
		for _, p := range all.Layout.Params {
			if p.Layer != Outside {
				continue
			}
			m, got := run(Tuning{LoRA: &LoRA{Rank: 1, Alpha: 1, Targets: []string{all.Config.names().down}, Save: []string{p.Module()}}})
			mine, _ := m.Layout.Find(p.Name)
			if e := relative(got(mine), want(p), 1); !(e <= 1e-12) {
				t.Errorf("%s: %s: error %.3g", name, p.Name, e)
			}
		}
	}
}

// Predictions hold with factors and with frozen layers.
func TestLoRAMemory(t *testing.T) {
	for _, name := range []string{"bert-all", "qwen3-last-o", "bert-save", "electra-all"} {
		for i := range 6 {
			every, bf16 := i%3, i >= 3
			m, s, g := loadLoRA(t, name, ref.New(), Options{CheckpointEvery: every, BF16: bf16})
			m.lora().Dropout = 0.1
			rows := goldenRows(t, g, "")
			rows.Keys = make([]uint64, rows.Len())
			var lengths []int
			for b := range rows.Len() {
				lengths = append(lengths, int(rows.Cu[b+1]-rows.Cu[b]))
			}
			want := m.Memory(lengths)
			a := newArena(t, s.Device())
			m.Forward(s, a, rows, true, false).Release()
			got := Memory{Forward: a.Peak()}
			grads, _ := m.NewGradients()
			there := func(pass func(a *gpustage.Arena) *Pass) (kept, peak int) {
				a := newArena(t, s.Device())
				p := pass(a)
				kept = a.Used()
				p.Backward(p.Embeddings(), grads)
				return kept, a.Peak()
			}
			got.Kept, got.Backward = there(func(a *gpustage.Arena) *Pass { return m.Forward(s, a, rows, true, true) })
			got.Lean, got.LeanBackward = there(func(a *gpustage.Arena) *Pass { return m.Lean(s, a, rows) })
			if err := s.Sync(); err != nil || got != want {
				t.Errorf("%s every %d, bf16 %t: took %+v, predicted %+v, %v", name, every, bf16, got, want, err)
			}
		}
	}
}

func TestTuningErrors(t *testing.T) {
	lora := func(change func(*LoRA)) Tuning {
		l := LoRA{Rank: 2, Alpha: 4, Targets: []string{"query"}}
		change(&l)
		return Tuning{LoRA: &l}
	}
	frozen := func(t Tuning, save ...string) Tuning {
		t.LoRA = &LoRA{Rank: 2, Alpha: 4, Targets: []string{"query"}, Save: save}
		return t
	}
	for want, tuning := range map[string]Tuning{
		"freeze.layers: 4 layers are to be frozen, the model has 3": {FreezeLayers: 4},
		"freeze: everything is frozen":                              {FreezeLayers: 3, FreezeEmbeddings: true},
		"lora.rank: is 0":                                           lora(func(l *LoRA) { l.Rank = 0 }),
		"lora.rank: is 3000000000, want 1 to 65536":                 lora(func(l *LoRA) { l.Rank = 3000000000 }),
		"lora.alpha: is 0":                                          lora(func(l *LoRA) { l.Alpha = 0 }),
		"lora.alpha: is 1e+39":                                      lora(func(l *LoRA) { l.Alpha = 1e39 }),
		"lora.dropout: is 1":                                        lora(func(l *LoRA) { l.Dropout = 1 }),
		"lora.targets: are missing":                                 lora(func(l *LoRA) { l.Targets = nil }),
		"lora.targets: all-linear stands alone":                     lora(func(l *LoRA) { l.Targets = append(l.Targets, AllLinear) }),
		`lora.targets: "q_proj" is no linear layer`:                 lora(func(l *LoRA) { l.Targets = append(l.Targets, "q_proj") }),
		"attention.self.query, attention.self.key":                  lora(func(l *LoRA) { l.Targets = []string{"uery"} }),
		`lora.modules_to_save: "classifier" is not`:                 lora(func(l *LoRA) { l.Save = []string{"classifier"} }),
		"layer.0.attention.self.query is both":                      lora(func(l *LoRA) { l.Save = []string{"attention.self"} }),
		"key, attention.self.value are computed toget":              lora(func(l *LoRA) { l.Targets, l.Save = []string{"intermediate.dense"}, []string{"key"} }),
		"lora.targets: all-linear leaves no linear layer beside":    lora(func(l *LoRA) { l.Targets, l.Save = []string{AllLinear}, []string{"encoder"} }),
		`modules_to_save: all of "word_embeddings" is frozen`:       frozen(Tuning{FreezeEmbeddings: true}, "word_embeddings"),
		`modules_to_save: all of "layer.0.output.LayerNorm" is fr`:  frozen(Tuning{FreezeLayers: 1}, "LayerNorm", "layer.0.output.LayerNorm"),
	} {
		c := Config{Family: "bert", Vocab: 50, Hidden: 16, Layers: 3, Heads: 2, FeedForward: 32, MaxPositions: 8, TypeVocab: 2}
		if _, err := New(ref.New(), c, Head{}, Options{Tuning: tuning}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	c, err := ParseConfig(configAt(t, "families/deberta-v2-own"))
	if err != nil {
		t.Fatal(err)
	}
	own := lora(func(l *LoRA) { l.Targets, l.Save = []string{"intermediate.dense"}, []string{"pos_key_proj"} })
	if _, err := New(ref.New(), c, Head{}, Options{Tuning: own}); err == nil || !strings.Contains(err.Error(), "pos_key_proj are computed together") {
		t.Errorf("error %v", err)
	}
}

// Names are PEFT's: ends of names between dots, in full, or a module that contains others.
func TestTuningNames(t *testing.T) {
	c := Config{Family: "bert", Vocab: 50, Hidden: 16, Layers: 3, Heads: 2, FeedForward: 32, MaxPositions: 8, TypeVocab: 2}
	for _, x := range []struct {
		tuning Tuning
		count  int // tensors that train
		some   []string
	}{
		{Tuning{LoRA: &LoRA{Rank: 1, Alpha: 1, Targets: []string{"query", "encoder.layer.1.output.dense"}}}, 8, []string{"encoder.layer.2.attention.self.query.lora_A.weight"}},
		{Tuning{LoRA: &LoRA{Rank: 1, Alpha: 1, Targets: []string{"dense"}}}, 18, []string{"encoder.layer.0.attention.output.dense.lora_B.weight"}},
		{Tuning{FreezeLayers: 2, LoRA: &LoRA{Rank: 1, Alpha: 1, Targets: []string{AllLinear}}}, 12, nil},
		{Tuning{LoRA: &LoRA{Rank: 1, Alpha: 1, Targets: []string{AllLinear}, Save: []string{"embeddings", "layer.2.attention"}}}, 5 + 6*4 + 10 + 4, []string{"embeddings.word_embeddings.weight", "encoder.layer.2.attention.output.dense.bias"}},
		// What is frozen stays so, though a name of what is saved has it too.
		{Tuning{FreezeEmbeddings: true, FreezeLayers: 1, LoRA: &LoRA{Rank: 1, Alpha: 1, Targets: []string{"query"}, Save: []string{"LayerNorm"}}}, 2*2 + 2*4, nil},
	} {
		l, err := c.layout(x.tuning)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, p := range l.Training() {
			names = append(names, p.Name)
		}
		if len(names) != x.count {
			t.Errorf("%+v: %d tensors train, want %d: %v", x.tuning.LoRA, len(names), x.count, names)
		}
		for _, n := range x.some {
			if !slices.Contains(names, n) {
				t.Errorf("%s does not train, but %v", n, names)
			}
		}
	}
}
