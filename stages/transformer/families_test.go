package transformer

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"math/bits"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"contraflow/gpustage"
	_ "contraflow/gpustage/cpu"
	"contraflow/gpustage/ref"
	"contraflow/testdata/goldens"
	"contraflow/testdata/harness"
)

// fastDevice is a processor, or what CONTRAFLOW_TEST_DEVICE names: testdata/peers/gpu.sh has a GPU compute the goldens.
func fastDevice(t testing.TB) gpustage.Device {
	t.Helper()
	d, err := gpustage.Open(cmp.Or(os.Getenv("CONTRAFLOW_TEST_DEVICE"), "cpu"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// familyGoldens are the folders of testdata/golden/families: every family but BERT, which has goldens of its own.
func familyGoldens(t testing.TB) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(goldens.Path(t, "families"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names
}

// No family is without a golden, of its own or as a variant of another's.
func TestEveryFamilyHasAGolden(t *testing.T) {
	seen := map[string]bool{"bert": true, Static: true, "new": true, "minicpm": true} // TestStatic has its own; "new" is how the hub calls what transformers calls "gte"; MiniCPM's is in rerank
	see := func(config []byte) {
		c, err := ParseConfig(config)
		if err != nil {
			t.Error(err)
		}
		seen[c.Family] = true
	}
	for _, name := range familyGoldens(t) {
		config, err := os.ReadFile(filepath.Join(goldens.Path(t, "families/"+name), "config.json"))
		if err != nil {
			t.Fatal(err)
		}
		see(config)
		var meta familyMeta
		goldens.Load(t, "families/"+name).Meta(t, &meta)
		for _, v := range meta.Variants {
			see(v)
		}
	}
	for _, f := range Families() {
		if !seen[f] {
			t.Errorf("%s has none", f)
		}
	}
}

type familyMeta struct {
	Pooling  string
	Variants map[string]json.RawMessage
}

// loadFamily makes a golden's model under its own configuration, or another one.
func loadFamily(t testing.TB, name string, config []byte, d gpustage.Device, o Options) (*Model, gpustage.Stream) {
	t.Helper()
	var meta familyMeta
	goldens.Load(t, "families/"+name).Meta(t, &meta)
	folder := "families/" + name
	if config == nil {
		config = configAt(t, folder)
	}
	w := goldens.Load(t, folder+"/model")
	m, s := loadModel(t, config, d, Head{Pooling: poolings[meta.Pooling], Normalize: true}, o, weightsOf(t, w))
	for _, n := range w.Names("") {
		if _, ok := m.Layout.Find(n); !ok && !strings.HasPrefix(n, "pooler.") {
			t.Errorf("the model has no place for %s", n)
		}
	}
	return m, s
}

// spy sees what is pooled: the hidden states.
type spy struct {
	gpustage.Stream
	t      testing.TB
	hidden []float64
}

func (s *spy) Pool(y, x gpustage.Tensor, q gpustage.Sequences, mode gpustage.Pooling) {
	s.hidden = floats(s.t, s.Stream, x)
	s.Stream.Pool(y, x, q, mode)
}

// signs are the sums that goldens have of a gradient in float64.
func signs(vs []float64) (sums [3]float64, size float64) {
	for i, v := range vs {
		for k := range sums {
			if bits.OnesCount32(uint32(uint64(i+1+7919*k)*2654435761))%2 == 0 {
				sums[k] += v
			} else {
				sums[k] -= v
			}
		}
		size += math.Abs(v)
	}
	return sums, size
}

// Against transformers: hidden states, embeddings, every parameter's gradient. In f64 on ref to the last digits that a sum of
// thousands leaves, in f32 on the processor within the limits of package stages' contract. And under every variant of the configuration.
func TestFamilies(t *testing.T) {
	harness.Thorough(t)
	fast := fastDevice(t)
	for _, name := range familyGoldens(t) {
		g := goldens.Load(t, "families/"+name)
		var meta familyMeta
		g.Meta(t, &meta)
		configs := map[string][]byte{"": nil}
		for v, raw := range meta.Variants {
			configs[v+"/"] = raw
		}
		for variant, config := range configs {
			for _, dtype := range []gpustage.DType{gpustage.F64, gpustage.F32} {
				t.Run(fmt.Sprint(name, "/", variant, dtype), func(t *testing.T) {
					var d gpustage.Device = ref.New()
					limit, gradLimit, signLimit := 1e-12, 1e-7, 1e-11 // gradients are stored in f32
					if dtype == gpustage.F32 {
						d, limit, gradLimit, signLimit = fast, 1e-5, 1e-4, math.Inf(1)
					}
					m, s := loadFamily(t, name, config, d, Options{DType: dtype})
					rows := goldenRows(t, g, "")
					if err := m.Check(rows); err != nil {
						t.Fatal(err)
					}
					watch := &spy{Stream: s, t: t}
					grads, err := m.NewGradients()
					if err != nil {
						t.Fatal(err)
					}
					p := m.Forward(watch, newArena(t, d), rows, true, true)
					p.Backward(upload64(t, s, dtype, rows.Len(), m.Config.Hidden, g.F64(t, "r")), grads)
					hiddenLimit := limit
					if variant != "" {
						hiddenLimit = max(limit, 1e-7) // stored in f32
					}
					if e := relative(watch.hidden, g.F64(t, variant+"hidden"), 0); !(e <= hiddenLimit) {
						t.Errorf("hidden states: error %.3g", e)
					}
					if e := relative(floats(t, s, p.Embeddings()), g.F64(t, variant+"embedding"), 0); !(e <= limit) {
						t.Errorf("embeddings: error %.3g", e)
					}
					largest := 0.0
					for _, p := range m.Layout.Params {
						for _, v := range floats(t, s, m.Layout.View(grads, p)) {
							largest = max(largest, math.Abs(v))
						}
					}
					for _, p := range m.Layout.Params {
						got := floats(t, s, m.Layout.View(grads, p))
						if variant == "" {
							if e := relative(got, g.F64(t, "grad/"+p.Name), largest); !(e <= gradLimit) {
								t.Errorf("gradient of %s: error %.3g", p.Name, e)
							}
						}
						sums, size := signs(got)
						for k, want := range g.F64(t, variant+"signs/"+p.Name) {
							if e := math.Abs(sums[k]-want) / max(size, 1e-4*largest); !(e <= signLimit) {
								t.Errorf("gradient of %s: sum %d is off by %.3g of the elements' sizes", p.Name, k, e)
							}
						}
					}
				})
			}
		}
	}
}

// Every family's replayed passes have the same bits, and so has activation checkpointing, dropout included; dropout does
// something at each of its places; and the arena's predictions hold.
func TestFamiliesBitEqual(t *testing.T) {
	harness.Thorough(t)
	for _, name := range familyGoldens(t) {
		t.Run(name, func(t *testing.T) {
			d := ref.New()
			g := goldens.Load(t, "families/"+name)
			rows := goldenRows(t, g, "")
			var lengths []int
			for b := range rows.Len() {
				rows.Keys = append(rows.Keys, gpustage.RowKey(1, 2, int64(b), 0))
				lengths = append(lengths, int(rows.Cu[b+1]-rows.Cu[b]))
			}
			run := func(every int, drop float64, bf16 bool) (emb, grad []byte) {
				m, s := loadFamily(t, name, nil, d, Options{CheckpointEvery: every, BF16: bf16})
				m.Config.HiddenDropout, m.Config.AttentionDropout = drop, drop
				want := m.Memory(lengths)
				a := newArena(t, d)
				first := m.Forward(s, a, rows, true, false)
				emb = gpustage.Bytes(floats(t, s, first.Embeddings()))
				if a.Peak() != want.Forward {
					t.Errorf("every %d: forward took %d bytes, predicted %d", every, a.Peak(), want.Forward)
				}
				first.Release()
				a = newArena(t, d)
				again := m.Forward(s, a, rows, true, true)
				if !bytes.Equal(emb, gpustage.Bytes(floats(t, s, again.Embeddings()))) {
					t.Error("a replayed forward pass gave other bits")
				}
				if a.Used() != want.Kept {
					t.Errorf("every %d: %d bytes kept, predicted %d", every, a.Used(), want.Kept)
				}
				grads, err := m.NewGradients()
				if err != nil {
					t.Fatal(err)
				}
				again.Backward(upload64(t, s, gpustage.F32, rows.Len(), m.Config.Hidden, g.F64(t, "r")), grads)
				if a.Peak() != want.Backward {
					t.Errorf("every %d: backward took %d bytes, predicted %d", every, a.Peak(), want.Backward)
				}
				again.Release()
				grad = gpustage.Bytes(floats(t, s, grads))
				for _, way := range []struct {
					name       string
					pass       func(gpustage.Stream, *gpustage.Arena, Rows) *Pass
					kept, peak int
				}{{"at once", m.Replay, 0, want.Backward}, {"lean", m.Lean, want.Lean, want.LeanBackward}} {
					a := newArena(t, d)
					p := way.pass(s, a, rows)
					kept := a.Used()
					others, err := m.NewGradients()
					if err != nil {
						t.Fatal(err)
					}
					p.Backward(upload64(t, s, gpustage.F32, rows.Len(), m.Config.Hidden, g.F64(t, "r")), others)
					if !bytes.Equal(emb, gpustage.Bytes(floats(t, s, p.Embeddings()))) || !bytes.Equal(grad, gpustage.Bytes(floats(t, s, others))) {
						t.Errorf("every %d: a pass that goes backward %s has other bits", every, way.name)
					}
					if a.Peak() > way.peak || way.kept > 0 && (kept != way.kept || a.Peak() < way.peak) {
						t.Errorf("every %d: a pass that goes backward %s kept %d bytes of %d, and took %d of %d", every, way.name, kept, way.kept, a.Peak(), way.peak)
					}
					p.Release()
					if a.Used() != 0 {
						t.Errorf("%d bytes of the arena were not given back", a.Used())
					}
				}
				if less := want.Lean < want.Kept; less != (every == 0) {
					t.Errorf("every %d: a lean pass keeps %d bytes, another one %d", every, want.Lean, want.Kept)
				}
				return emb, grad
			}
			for _, bf16 := range []bool{false, true} {
				plain, _ := run(0, 0, bf16)
				emb, grad := run(0, 0.2, bf16)
				if bytes.Equal(plain, emb) {
					t.Error("dropout did nothing")
				}
				for _, every := range []int{1, 2} {
					e, g := run(every, 0.2, bf16)
					if !bytes.Equal(e, emb) || !bytes.Equal(g, grad) {
						t.Errorf("checkpointing every %d layers changes bits, bf16 %t", every, bf16)
					}
				}
			}
		})
	}
}

// The gradient with dropout everywhere is that of the masked function: central differences in a random direction.
func TestFamiliesDirectionalDerivative(t *testing.T) {
	harness.Thorough(t)
	for _, name := range []string{"gte", "modernbert", "distilbert", "mpnet", "gemma2", "qwen3", "electra", "t5", "t5-gated", "deberta-v2", "deberta-v2-own"} {
		d := ref.New()
		g := goldens.Load(t, "families/"+name)
		rows := goldenRows(t, g, "")
		for b := range rows.Len() {
			rows.Keys = append(rows.Keys, uint64(b)*77)
		}
		m, s := loadFamily(t, name, nil, d, Options{DType: gpustage.F64})
		m.Config.HiddenDropout, m.Config.AttentionDropout = 0.2, 0.2
		testDerivative(t, m, s, rows, g.F64(t, "r"))
	}
}

// Of a layer outside of its family's places nothing drops, and at each of the family's places something does.
func TestDropoutPlaces(t *testing.T) {
	all := []gpustage.Site{gpustage.SiteEmbeddings, gpustage.SiteAttention, gpustage.SiteAttentionOut, gpustage.SiteActivation, gpustage.SiteFeedForward, gpustage.SiteOutput}
	for family, want := range map[string][]float64{
		"bert": {1, 2, 1, 0, 1}, "roberta": {1, 2, 1, 0, 1}, "mpnet": {1, 2, 1, 0, 1}, "deberta-v2": {1, 2, 1, 0, 1}, "distilbert": {1, 2, 0, 0, 1},
		"modernbert": {1, 2, 2, 1, 0}, "nomic_bert": {1, 2, 1, 0, 1}, "new": {1, 2, 1, 1, 1}, "qwen3": {0, 2, 0, 0, 0}, "gemma2": {0, 2, 0, 0, 0},
		"electra": {1, 2, 1, 0, 1, 0}, "t5": {1, 1, 1, 1, 1, 1}, "mt5": {1, 1, 1, 1, 1, 1},
	} {
		c := Config{Family: family, HiddenDropout: 1, AttentionDropout: 2}
		for i, site := range all {
			if got := c.dropout(site); i < len(want) && got != want[i] || i >= len(want) && got != 0 {
				t.Errorf("%s: rate %v at place %d, want %v", family, got, i, want)
			}
		}
	}
	c, err := ParseConfig([]byte(`{"model_type":"modernbert","embedding_dropout":0.1,"attention_dropout":0.3}`))
	if err != nil || c.dropout(gpustage.SiteEmbeddings) != 0.1 || c.dropout(gpustage.SiteActivation) != 0 || c.dropout(gpustage.SiteAttentionOut) != 0.3 {
		t.Errorf("%+v, %v", c, err)
	}
}

// Padding tokens within a text take RoBERTa's position for padding.
func TestPaddingInText(t *testing.T) {
	g := goldens.Load(t, "families/roberta")
	m, s := loadFamily(t, "roberta", nil, ref.New(), Options{DType: gpustage.F64})
	watch := &spy{Stream: s, t: t}
	m.Forward(watch, newArena(t, s.Device()), goldenRows(t, g, "padded/"), false, false)
	if e := relative(watch.hidden, g.F64(t, "padded/hidden"), 0); !(e <= 1e-12) {
		t.Errorf("hidden states: error %.3g", e)
	}
}

func TestBuckets(t *testing.T) {
	for i, want := range goldens.Load(t, "families/mpnet").Ints(t, "buckets") {
		if got := bucket(i-300, 32, 128); int(got) != want {
			t.Errorf("distance %d is in bucket %d, want %d", i-300, got, want)
		}
	}
	g := goldens.Load(t, "families/t5")
	cases := g.Names("buckets/")
	for _, name := range cases {
		var n, reach int
		fmt.Sscanf(name, "buckets/%d/%d", &n, &reach)
		for i, want := range g.Ints(t, name) {
			if got := bucket(i-400, n, reach); int(got) != want {
				t.Errorf("%s: distance %d is in bucket %d, want %d", name, i-400, got, want)
			}
		}
	}
	if len(cases) < 6 {
		t.Errorf("cases %v", cases)
	}
}

// Frequencies are transformers'.
func TestRotary(t *testing.T) {
	g := goldens.Load(t, "families/rope")
	var meta struct {
		Cases []struct {
			Name   string
			Dim    int
			Factor float64
			Config json.RawMessage
		}
	}
	g.Meta(t, &meta)
	for _, c := range meta.Cases {
		var rope struct {
			ropeConfig
			MaxPositions int `json:"max_position_embeddings"`
		}
		if err := json.Unmarshal(c.Config, &rope); err != nil {
			t.Fatal(err)
		}
		rope.ntk = strings.HasPrefix(c.Name, "gte-")
		r, longest, err := rope.one(c.Dim, 10000, rope.MaxPositions)
		if err != nil {
			t.Errorf("%s: %v", c.Name, err)
			continue
		}
		want := rope.MaxPositions
		if c.Name == "qwen2.5-128k" {
			want = 4 * 32768
		}
		if c.Name == "yarn-no-original" {
			want = 8 * 4096
		}
		if c.Name == "yarn-mscale" {
			want = 40 * 4096
		}
		if longest != want {
			t.Errorf("%s: good for %d positions, want %d", c.Name, longest, want)
		}
		compare := func(what string, got, want []float64) {
			t.Helper()
			if len(got) != len(want) {
				t.Fatalf("%s: %d %s, want %d", c.Name, len(got), what, len(want))
			}
			for j := range want {
				if !(math.Abs(got[j]-want[j]) <= 1e-13*want[j]) {
					t.Errorf("%s: %s %d is %v, want %v", c.Name, what, j, got[j], want[j])
				}
			}
		}
		compare("frequencies", r.Frequencies, g.F64(t, c.Name))
		if g.Has(c.Name + "/long") {
			compare("long frequencies", r.Long, g.F64(t, c.Name+"/long"))
		} else if r.Long != nil {
			t.Errorf("%s has long frequencies", c.Name)
		}
		if factor := max(r.Factor, 0); factor != c.Factor && !(factor == 0 && c.Factor == 1) && !(math.Abs(factor-c.Factor) <= 1e-15) {
			t.Errorf("%s: factor %v, want %v", c.Name, r.Factor, c.Factor)
		}
	}
}

// What was trained with n positions does not take more.
func TestTooLong(t *testing.T) {
	for name, longest := range map[string]int{"roberta": 38, "mpnet": 178, "deberta-v2-own": 40, "modernbert": 40, "llama": 40, "electra": 40} {
		m, _ := loadFamily(t, name, nil, ref.New(), Options{})
		rows := func(n int) Rows { return Rows{IDs: make([]int32, n), Cu: []int32{0, int32(n)}} }
		if err := m.Check(rows(longest)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		want := fmt.Sprintf("row 0 of the sub-batch has %d tokens, the model was trained with %d positions", longest+1, longest)
		if err := m.Check(rows(longest + 1)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", name, err, want)
		}
	}
}

func TestFamilyInit(t *testing.T) {
	m, s := loadFamily(t, "gemma3", nil, ref.New(), Options{})
	if err := m.Init(s, 1); err != nil {
		t.Fatal(err)
	}
	for _, p := range m.Layout.Params {
		vs, err := m.Read(s, m.Params, p)
		if err != nil {
			t.Fatal(err)
		}
		if p.kind == normWeight && (vs[0] != 0 || p.Decay()) { // it is added to 1
			t.Errorf("%s: %v, decay %v", p.Name, vs[0], p.Decay())
		}
	}
}

// Layers lie one after the other, and what is outside of them, but for the word embeddings, in one piece before them.
func TestSpans(t *testing.T) {
	for _, name := range familyGoldens(t) {
		m, _ := loadFamily(t, name, nil, ref.New(), Options{})
		at := m.Layout.Word().Len()
		if w := m.Layout.Word(); w.Off != 0 || w.Rows != m.Config.Vocab {
			t.Errorf("%s: the flat vector begins with %+v", name, w)
		}
		for l := Outside; l < m.Config.Layers; l++ {
			from, to := m.Layout.Span(l)
			n := 0
			for _, p := range m.Layout.Params[1:] {
				if p.Layer == l {
					n += p.Len()
				}
			}
			if from != at || to-from != n || n == 0 {
				t.Errorf("%s: layer %d lies from %d to %d, begins at %d and has %d parameters", name, l, from, to, at, n)
			}
			at = to
		}
		if at != m.Layout.Len {
			t.Errorf("%s: %d parameters of %d are in layers", name, at, m.Layout.Len)
		}
	}
}

// When a backward pass says that gradients are complete from a mark on, nothing is added to them any more; it says so at every mark.
func TestMarks(t *testing.T) {
	for _, name := range familyGoldens(t) {
		for every, tuning := range []Tuning{{}, {}, {FreezeEmbeddings: true, FreezeLayers: 1}, {LoRA: &LoRA{Rank: 2, Alpha: 4, Targets: []string{AllLinear}}}} {
			m, s := loadFamily(t, name, nil, ref.New(), Options{CheckpointEvery: every % 2, Tuning: tuning})
			grads, err := m.NewGradients()
			if err != nil {
				t.Fatal(err)
			}
			rows := Rows{IDs: []int32{3, 4, 5, 6, 7}, Cu: []int32{0, 2, 5}, Keys: []uint64{1, 2}}
			a, err := gpustage.NewArena(m.Device, m.Memory([]int{2, 3}).Backward)
			if err != nil {
				t.Fatal(err)
			}
			marks := m.Layout.Marks()
			var seen [][]byte
			d, err := gpustage.NewTensor(m.Device, gpustage.F32, 2, m.Config.Hidden)
			if err != nil {
				t.Fatal(err)
			}
			for i, vs := 0, gpustage.Slice[float32](d); i < len(vs); i++ {
				vs[i] = float32(i%7) - 3
			}
			p := m.Forward(s, a, rows, true, true)
			p.BackwardTo([]gpustage.Tensor{d}, Gradients{Flat: grads, Done: func(mark int) {
				if n := len(seen); n == len(marks) || mark != marks[n] {
					t.Fatalf("%s: call %d of Done is for %d, marks are %v", name, n, mark, marks)
				}
				seen = append(seen, bytes.Clone(hostBytes(grads.Columns(mark, m.Layout.Trained()))))
			}})
			if len(seen) != len(marks) {
				t.Fatalf("%s: %d calls of Done, %d marks", name, len(seen), len(marks))
			}
			for i, mark := range marks {
				if !bytes.Equal(seen[i], hostBytes(grads.Columns(mark, m.Layout.Trained()))) {
					t.Errorf("%s: gradients change after they are complete at %s", name, m.Layout.MarkName(i))
				}
			}
			if from := marks[0]; tuning.LoRA == nil && bytes.Count(hostBytes(grads.Columns(from, from+m.Config.Hidden)), []byte{0}) == 4*m.Config.Hidden {
				t.Errorf("%s: the gradient of the last layer is zero", name)
			}
		}
	}
}

func hostBytes(x gpustage.Tensor) []byte { return gpustage.Bytes(gpustage.Slice[float32](x)) }

// Whatever config.json says, ParseConfig gives a model that can be laid out, or an error.
func FuzzParseConfig(f *testing.F) {
	for _, name := range familyGoldens(f) {
		config, err := os.ReadFile(filepath.Join(goldens.Path(f, "families/"+name), "config.json"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(config)
	}
	f.Add([]byte(`{"model_type":"qwen3","rope_scaling":{"type":"yarn","factor":1e300}}`))
	f.Add([]byte(`{"model_type":"nomic_bert","n_head":-1,"rotary_emb_fraction":2}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := ParseConfig(raw)
		if err != nil {
			return
		}
		if l, err := c.layout(Tuning{}); err != nil || l.Len < 1 || len(l.Params) < c.Layers {
			t.Errorf("%d layers: %v, %v", c.Layers, l, err)
		}
		for l := range c.Layers {
			if r := c.rotary(l); r != nil && (len(r.Frequencies) == 0 || 2*len(r.Frequencies) > c.HeadDim()) {
				t.Errorf("%d frequencies for heads of %d", len(r.Frequencies), c.HeadDim())
			}
			for _, x := range []float64{c.QueryScale, c.EmbedScale, c.SoftCap} {
				if x-x != 0 || x < 0 {
					t.Errorf("a scale of %v", x)
				}
			}
		}
	})
}

// work counts multiply-adds of products.
type work struct {
	gpustage.Stream
	n int
}

func (w *work) MatMul(c, a, b gpustage.Tensor, o gpustage.MatMul) {
	_, _, k, _ := gpustage.CheckMatMul(c, a, b, o)
	w.n += c.Rows * c.Cols * k
	w.Stream.MatMul(c, a, b, o)
}

// LeanShare is how many of a forward pass's multiply-adds a lean pass has more on its way back.
func TestLeanShare(t *testing.T) {
	for _, name := range []string{"modernbert", "qwen3", "mpnet"} {
		for _, o := range []Options{{}, {Tuning: Tuning{FreezeEmbeddings: true, FreezeLayers: 1}}, {CheckpointEvery: 1}} {
			m, s := loadFamily(t, name, nil, ref.New(), o)
			grads, err := m.NewGradients()
			if err != nil {
				t.Fatal(err)
			}
			rows := Rows{IDs: []int32{5, 6, 7}, Cu: []int32{0, 3}, Keys: []uint64{1}}
			w := &work{Stream: s}
			var forward, back [2]int // of a kept pass, and of a lean one
			for i, how := range []manner{usual, lean} {
				p := m.forward(w, newArena(t, s.Device()), rows, true, true, how)
				forward[i], w.n = w.n, 0
				p.Backward(p.Embeddings(), grads)
				back[i], w.n = w.n, 0
			}
			if err := s.Sync(); err != nil {
				t.Fatal(err)
			}
			if got, want := m.LeanShare(), float64(forward[1]+back[1]-forward[0]-back[0])/float64(forward[1]); !(math.Abs(got-want) <= 1e-9) {
				t.Errorf("%s, %+v: a lean pass's share is %v, want %v", name, o, got, want)
			}
		}
	}
}
