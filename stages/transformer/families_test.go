package transformer

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
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

func TestFamilyConfigErrors(t *testing.T) {
	for raw, want := range map[string]string{
		`{"model_type":"distilbert","dim":-3}`:                                                                                                                  "dim is -3, want a positive number",
		`{"model_type":"roberta","max_position_embeddings":2}`:                                                                                                  "max_position_embeddings is 2, of which padding takes 2",
		`{"model_type":"qwen3","num_key_value_heads":5}`:                                                                                                        "num_attention_heads 32 is not a multiple of num_key_value_heads 5",
		`{"model_type":"qwen3","head_dim":0,"hidden_size":30}`:                                                                                                  "0 features of a head are turned",
		`{"model_type":"qwen2","rope_scaling":{"type":"mrope","mrope_section":[1]}}`:                                                                            `rotary positions of type "mrope" are not supported (supported: default`,
		`{"model_type":"llama","partial_rotary_factor":0.5}`:                                                                                                    `partial_rotary_factor "0.5" is not supported`,
		`{"model_type":"gemma3_text","rope_parameters":{"full_attention":{"partial_rotary_factor":0.25}}}`:                                                      `partial_rotary_factor "0.25" is not supported`,
		`{"model_type":"llama","rope_scaling":{"rope_type":"llama3","factor":8}}`:                                                                               "want low_freq_factor below high_freq_factor",
		`{"model_type":"llama","rope_scaling":{"rope_type":"linear"}}`:                                                                                          "factor is 0, want at least 1",
		`{"model_type":"llama","rope_theta":0}`:                                                                                                                 "rope_theta is 0",
		`{"model_type":"llama","head_dim":7}`:                                                                                                                   "7 features of a head are turned, want an even number",
		`{"model_type":"llama","rope_parameters":{"full_attention":{}}}`:                                                                                        "by layer type are not supported",
		`{"model_type":"qwen2","num_hidden_layers":2,"layer_types":["full_attention","chunked_attention"]}`:                                                     `layer_types: "chunked_attention" is not supported`,
		`{"model_type":"qwen2","num_hidden_layers":2,"layer_types":["sliding_attention","sliding_attention"]}`:                                                  "sliding_window is not set",
		`{"model_type":"qwen2","num_hidden_layers":2,"layer_types":["full_attention"]}`:                                                                         "layer_types has 1 layers, num_hidden_layers is 2",
		`{"model_type":"mistral","sliding_window":1}`:                                                                                                           "see 0 tokens on each side",
		`{"model_type":"gemma2","use_bidirectional_attention":true}`:                                                                                            `use_bidirectional_attention "true" is not supported`,
		`{"model_type":"gemma3_text","hidden_activation":"mish"}`:                                                                                               `hidden_activation "mish" is not supported`,
		`{"model_type":"gemma2","query_pre_attn_scalar":0}`:                                                                                                     "query_pre_attn_scalar is 0, want a positive number",
		`{"model_type":"gemma2","attn_logit_softcapping":-1}`:                                                                                                   "attn_logit_softcapping gives -1",
		`{"model_type":"gemma3_text","attn_logit_softcapping":50.0}`:                                                                                            `attn_logit_softcapping "50" is not supported`,
		`{"model_type":"llama","rope_scaling":{"type":"ntk","factor":2}}`:                                                                                       `rotary positions of type "ntk": it is not supported in this family`,
		`{"model_type":"gte","rope_scaling":{"type":"ntk","factor":2}}`:                                                                                         `rotary positions of type "ntk": it is not supported in this family`,
		`{"model_type":"modernbert","head_dim":32}`:                                                                                                             "head_dim 32 is not supported in this family, whose heads are hidden_size/num_attention_heads = 64",
		`{"model_type":"mistral","num_hidden_layers":1,"layer_types":["chunked_attention"]}`:                                                                    `layer_types: "chunked_attention" is not supported`,
		`{"model_type":"nomic_bert","num_experts":8}`:                                                                                                           "num_experts is not supported",
		`{"model_type":"nomic_bert","activation_function":"gelu"}`:                                                                                              `activation_function "gelu" is not supported`,
		`{"model_type":"new","position_embedding_type":"absolute"}`:                                                                                             `position_embedding_type "absolute" is not supported`,
		`{"model_type":"new","layer_norm_type":"rms_norm"}`:                                                                                                     `layer_norm_type "rms_norm" is not supported`,
		`{"model_type":"modernbert","embedding_dropout":0.1,"mlp_dropout":0.2}`:                                                                                 "embedding_dropout 0.1 with mlp_dropout 0.2 is not supported",
		`{"model_type":"modernbert","num_attention_heads":0}`:                                                                                                   "num_attention_heads is 0",
		`{"model_type":"mpnet","relative_attention_num_buckets":64}`:                                                                                            "relative_attention_num_buckets 64 is not supported in this family, want 32",
		`{"model_type":"t5","relative_attention_num_buckets":3}`:                                                                                                "relative_attention_num_buckets is 3, want 4 to",
		`{"model_type":"llama","rope_scaling":{"rope_type":"yarn","factor":0}}`:                                                                                 `rotary positions of type "yarn": its numbers give the frequency`,
		`{"model_type":"llama","rope_theta":1,"rope_scaling":{"rope_type":"yarn","factor":2}}`:                                                                  `rotary positions of type "yarn": its numbers give the frequency`,
		`{"model_type":"llama","head_dim":2,"rope_scaling":{"rope_type":"longrope","short_factor":[1],"long_factor":[0]}}`:                                      `rotary positions of type "longrope": its numbers give the frequency`,
		`{"model_type":"llama","head_dim":2,"rope_scaling":{"rope_type":"longrope","short_factor":[1],"long_factor":[1],"original_max_position_embeddings":1}}`: "its numbers multiply cosines and sines by +Inf",
		`{"model_type":"llama","rope_scaling":{"rope_type":"yarn","factor":2,"attention_factor":0}}`:                                                            "attention_factor is 0, want a positive number",
		`{"model_type":"gemma3_text","rope_parameters":{"sliding_attention":{"rope_type":"yarn","factor":2,"truncate":false}}}`:                                 `truncate "false" is not supported`,
		`{"model_type":"t5","relative_attention_max_distance":8}`:                                                                                               "relative_attention_max_distance is 8, want more than a quarter of the 32 buckets",
		`{"model_type":"t5","is_decoder":true}`:                                                                                                                 `is_decoder "true" is not supported`,
		`{"model_type":"t5","d_kv":0}`:                                                                                                                          "d_kv is 0",
		`{"model_type":"t5","d_model":-1}`:                                                                                                                      "d_model is -1",
		`{"model_type":"t5","feed_forward_proj":"gated-mish"}`:                                                                                                  `feed_forward_proj "mish" is not supported`,
		`{"model_type":"electra","embedding_size":0}`:                                                                                                           "embedding_size is 0",
		`{"model_type":"xlm-roberta","lora_adaptations":["separation"]}`:                                                                                        "jinaai/jina-embeddings-v3-hf is the model without them",
		`{"model_type":"ernie","use_task_id":true,"task_type_vocab_size":0}`:                                                                                    "task_type_vocab_size is 0",
		`{"model_type":"gemma","use_bidirectional_attention":true}`:                                                                                             `use_bidirectional_attention "true" is not supported`,
		`{"model_type":"mpnet","relative_attention_num_buckets":"x"}`:                                                                                           "relative_attention_num_buckets",
		`{"model_type":"deberta-v2","conv_kernel_size":3}`:                                                                                                      "conv_kernel_size 3 is not supported",
		`{"model_type":"deberta-v2","embedding_size":128}`:                                                                                                      "embedding_size 128 is not supported",
		`{"model_type":"deberta-v2","attention_head_size":32}`:                                                                                                  "attention_head_size 32 is not supported",
		`{"model_type":"deberta-v2","pooler_hidden_size":32}`:                                                                                                   "pooler_hidden_size 32 is not supported",
		`{"model_type":"deberta-v2","pos_att_type":"c2p|p2p"}`:                                                                                                  `pos_att_type "p2p" is not supported`,
		`{"model_type":"deberta-v2","pos_att_type":7}`:                                                                                                          "pos_att_type: ",
		`{"model_type":"deberta-v2","relative_attention":true}`:                                                                                                 "relative_attention without c2p or p2c in pos_att_type is not supported",
		`{"model_type":"deberta-v2","relative_attention":true,"pos_att_type":"c2p","position_buckets":1}`:                                                       "position_buckets 1 with max_relative_positions 512 is not supported",
		`{"model_type":"deberta-v2","relative_attention":true,"pos_att_type":"c2p","position_buckets":80,"max_relative_positions":41}`:                          "position_buckets 80 with max_relative_positions 41 is not supported",
		`{"model_type":"deberta-v2","relative_attention":true,"pos_att_type":"c2p","position_buckets":33554432,"max_relative_positions":33554432}`:              "position_buckets, or without it max_relative_positions, is 33554432",
	} {
		_, err := ParseConfig([]byte(raw))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "config.json: ") {
			t.Errorf("%s: error %v, want %q", raw, err, want)
		}
	}
	if _, err := ParseConfig([]byte(`{"model_type":"llama","rope_scaling":{"rope_type":"proportional"}}`)); !errors.Is(err, ErrUnsupported) {
		t.Errorf("error %v", err)
	}
}

// Configurations as the hub has them, for models whose code was not in transformers when they appeared.
func TestHubConfigs(t *testing.T) {
	for name, raw := range map[string][2]string{
		"nomic-embed-text-v1.5": {
			`{"model_type":"nomic_bert","activation_function":"swiglu","attn_pdrop":0.0,"causal":false,"embd_pdrop":0.0,"layer_norm_epsilon":1e-12,
			"max_trained_positions":2048,"mlp_fc1_bias":false,"mlp_fc2_bias":false,"n_embd":768,"n_head":12,"n_inner":3072,"n_layer":12,"n_positions":8192,
			"pad_vocab_size_multiple":64,"parallel_block":false,"prenorm":false,"qkv_proj_bias":false,"resid_pdrop":0.0,"rotary_emb_base":1000,
			"rotary_emb_fraction":1.0,"rotary_emb_interleaved":false,"rotary_emb_scale_base":null,"rotary_scaling_factor":null,"type_vocab_size":2,
			"use_rms_norm":false,"vocab_size":30528}`,
			`{"model_type":"nomic_bert","hidden_size":768,"num_hidden_layers":12,"num_attention_heads":12,"intermediate_size":3072,"hidden_act":"silu",
			"max_position_embeddings":2048,"layer_norm_eps":1e-12,"vocab_size":30528,"rope_parameters":{"rope_theta":1000.0,"rope_type":"default"}}`,
		},
		"an inner size that the code of such configurations rounds up": {
			`{"model_type":"nomic_bert","activation_function":"swiglu","n_inner":2900}`, `{"model_type":"nomic_bert","intermediate_size":3072,"hidden_act":"silu"}`,
		},
		"mxbai-rerank-base-v1": {
			`{"model_type":"deberta-v2","architectures":["DebertaV2ForSequenceClassification"],"attention_probs_dropout_prob":0.1,"hidden_act":"gelu","hidden_dropout_prob":0.1,
			"hidden_size":768,"initializer_range":0.02,"intermediate_size":3072,"layer_norm_eps":1e-07,"max_position_embeddings":512,"max_relative_positions":-1,
			"norm_rel_ebd":"layer_norm","num_attention_heads":12,"num_hidden_layers":12,"pad_token_id":0,"pooler_dropout":0,"pooler_hidden_act":"gelu",
			"pooler_hidden_size":768,"pos_att_type":["p2c","c2p"],"position_biased_input":false,"position_buckets":256,"relative_attention":true,
			"share_att_key":true,"type_vocab_size":0,"vocab_size":128100}`,
			`{"model_type":"deberta-v2","hidden_size":768,"num_hidden_layers":12,"num_attention_heads":12,"intermediate_size":3072,"norm_rel_ebd":"NONE | Layer_Norm",
			"pos_att_type":"C2P|p2c","position_biased_input":false,"position_buckets":256,"max_relative_positions":512,"relative_attention":true,"share_att_key":true,
			"attention_head_size":64,"embedding_size":768,"conv_kernel_size":0}`,
		},
		"is_causal null, which is false": {`{"model_type":"qwen3","is_causal":null}`, `{"model_type":"qwen3","is_causal":false}`},
		"betas of 0, which are as none": {
			`{"model_type":"llama","rope_scaling":{"rope_type":"yarn","factor":2,"original_max_position_embeddings":64,"beta_fast":0,"beta_slow":0}}`,
			`{"model_type":"llama","rope_scaling":{"rope_type":"yarn","factor":2,"original_max_position_embeddings":64,"beta_fast":32,"beta_slow":1}}`,
		},
		"gte-base-en-v1.5": {
			`{"model_type":"new","hidden_size":768,"type_vocab_size":0,"vocab_size":30528,"max_position_embeddings":8192,"rope_theta":500000,
			"rope_scaling":{"factor":1.0,"type":"ntk"},"layer_norm_type":"layer_norm","position_embedding_type":"rope","pack_qkv":true,"hidden_dropout_prob":0.1}`,
			`{"model_type":"gte","hidden_size":768,"type_vocab_size":0,"vocab_size":30528,"pad_token_id":0,"rope_parameters":{"rope_theta":500000.0}}`,
		},
	} {
		a, errA := ParseConfig([]byte(raw[0]))
		b, errB := ParseConfig([]byte(raw[1]))
		if err := errors.Join(errA, errB); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		a.Family = b.Family
		x, _ := json.Marshal(a)
		y, _ := json.Marshal(b)
		if !bytes.Equal(x, y) {
			t.Errorf("%s:\n%s\n%s", name, x, y)
		}
	}
}

// What config.json leaves out is what transformers takes, and of what transformers writes nothing is overlooked: another value of
// any key gives another Config, or an error about the value; but for keys that don't concern embeddings.
func TestDefaults(t *testing.T) {
	raw, err := os.ReadFile(goldens.Path(t, "families/defaults.json"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Configs map[string]map[string]any
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	aside := map[string]bool{}
	for key := range strings.FieldsSeq(`transformers_version architectures output_hidden_states output_attentions return_dict dtype _name_or_path
		chunk_size_feed_forward is_encoder_decoder id2label label2id problem_type use_cache pretraining_tp deterministic_flash_attn
		bos_token_id eos_token_id cls_token_id sep_token_id mask_token_id tie_word_embeddings final_logit_softcapping
		classifier_dropout qa_dropout seq_classif_dropout classifier_pooling classifier_bias classifier_activation decoder_bias
		sparse_prediction sparse_pred_ignore_index initializer_cutoff_factor sinusoidal_pos_embds pooler_dropout pooler_hidden_act legacy
		summary_type summary_use_proj summary_activation summary_last_dropout num_decoder_layers decoder_start_token_id scale_decoder_outputs`) {
		aside[key] = true
	}
	for _, family := range Families() {
		if family == "new" || family == "minicpm" || family == Static {
			continue // is not in transformers
		}
		all := file.Configs[family]
		if all == nil {
			t.Errorf("%s is not in defaults.json", family)
			continue
		}
		parse := func(config map[string]any) (string, error) {
			raw, err := json.Marshal(config)
			if err != nil {
				t.Fatal(err)
			}
			c, err := ParseConfig(raw)
			if err != nil {
				return "", err
			}
			c.KVHeads, c.HeadSize = c.kvHeads(), c.HeadDim()
			text, err := json.Marshal(c)
			return string(text), err
		}
		few, errFew := parse(map[string]any{"model_type": family})
		full, errFull := parse(all)
		if err := errors.Join(errFew, errFull); err != nil || few != full {
			t.Errorf("%s: %v\nof nothing:  %s\nof defaults: %s", family, err, few, full)
			continue
		}
		base := maps.Clone(all)
		if _, ok := base["use_sliding_window"]; ok { // without, window and layers have no consequence
			base["use_sliding_window"], base["sliding_window"] = true, 8.0
			delete(base, "layer_types")
		}
		delete(base, "_sliding_window_pattern") // it makes layer_types
		if _, ok := base["use_task_id"]; ok {   // without, the number of tasks has no consequence
			base["use_task_id"] = true
		}
		if _, ok := base["relative_attention"]; ok { // without, distances have no consequence
			base["relative_attention"], base["pos_att_type"], base["max_relative_positions"] = true, []any{"c2p"}, 30.0
		}
		plain, err := parse(base)
		if err != nil {
			t.Fatal(err)
		}
		for key, value := range base {
			if aside[key] || family == "mpnet" && key == "pad_token_id" { // of MPNet padding is 1 whatever it says
				continue
			}
			others := []any{true, 3, "other"} // for null
			switch v := value.(type) {
			case bool:
				others = []any{!v}
			case float64:
				others = []any{2*v + 2, v / 2}
			case string:
				others = []any{"other"}
			case []any:
				others = []any{[]any{}, append([]any{"full_attention"}, v[1:]...)}
			case map[string]any:
				others = []any{map[string]any{"rope_type": "linear", "factor": 2}}
			}
			none := maps.Clone(base)
			none[key] = nil
			parse(none) // which may be an error, and is no panic
			read := false
			for _, other := range others {
				changed := maps.Clone(base)
				if key == "feed_forward_proj" { // which these two come from, if they are not there
					delete(changed, "dense_act_fn")
					delete(changed, "is_gated_act")
				}
				changed[key] = other
				got, err := parse(changed)
				var wrongType *json.UnmarshalTypeError
				read = read || err != nil && !errors.As(err, &wrongType) || err == nil && got != plain
			}
			if !read {
				t.Errorf("%s: nothing reads %s, which is %v by default", family, key, value)
			}
		}
	}
}

// Keys of other families are ignored, as they are in transformers, or an error.
func TestForeignKeys(t *testing.T) {
	raw, err := os.ReadFile(goldens.Path(t, "families/defaults.json"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Configs map[string]map[string]any
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	read := map[string]bool{
		"qwen2 head_dim": true, "mistral layer_types": true, // in transformers, too
		"nomic_bert layer_norm_epsilon": true, // its first configurations have it
	}
	all := map[string]any{"hidden_act": "relu"}
	for _, config := range file.Configs {
		for key, value := range config {
			if all[key] == nil {
				all[key] = value
			}
		}
	}
	for family, own := range file.Configs {
		parse := func(change map[string]any) string {
			config := map[string]any{"model_type": family}
			maps.Copy(config, change)
			raw, err := json.Marshal(config)
			if err != nil {
				t.Fatal(err)
			}
			c, err := ParseConfig(raw)
			if err != nil {
				return ""
			}
			c.HeadSize = c.HeadDim()
			text, err := json.Marshal(c)
			if err != nil {
				t.Fatal(err)
			}
			return string(text)
		}
		plain := parse(nil)
		for key, value := range all {
			if _, ok := own[key]; ok || read[family+" "+key] {
				continue
			}
			for _, v := range []any{value, true, 3, 0.5} {
				if got := parse(map[string]any{key: v}); got != "" && got != plain {
					t.Errorf("%s: %s %v, which is of other families, changes\n%s\nto\n%s", family, key, v, plain, got)
				}
			}
		}
	}
}

// Of Qwen's layers those from max_window_layers on see a window, if there is to be one: of 8 tokens, the own one among them.
func TestMaxWindowLayers(t *testing.T) {
	for _, family := range []string{"qwen2", "qwen3"} {
		for use, want := range map[bool]string{true: "[false false true true] 7", false: "[] 0"} {
			c, err := ParseConfig(fmt.Appendf(nil, `{"model_type":%q,"num_hidden_layers":4,"max_window_layers":2,"sliding_window":8,"use_sliding_window":%v}`, family, use))
			if got := fmt.Sprint(c.Local, c.Window); err != nil || got != want {
				t.Errorf("%s, use_sliding_window %v: %s, %v, want %s", family, use, got, err, want)
			}
		}
	}
}

// Of heads of 64 half of the features turned are 16 pairs.
func TestPartlyTurned(t *testing.T) {
	c, err := ParseConfig([]byte(`{"model_type":"nomic_bert","rotary_emb_fraction":0.5}`))
	if err != nil {
		t.Fatal(err)
	}
	if f := c.Rotary.Frequencies; len(f) != 16 || !(math.Abs(f[8]-math.Pow(1000, -0.5)) <= 1e-15) {
		t.Errorf("frequencies %v", f)
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
