package transformer

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/cuda/onhost"
	"contraflow/gpustage/ref"
	"contraflow/testdata/goldens"
)

var sparseHeads = []string{"bert", "jina-v2", "bert-untied", "xlm-roberta", "mpnet", "distilbert", "modernbert", "modernbert-bias", "nomic-bert", "gte", "jina", "ernie"}

// loadSparse makes the model of one of testdata/golden/splade, with its head.
func loadSparse(t testing.TB, name string, d gpustage.Device, o Options, change func(*Config)) (*Model, gpustage.Stream, *goldens.Golden, Rows) {
	t.Helper()
	g := goldens.Load(t, "splade/"+name)
	raw := configAt(t, "splade/"+name)
	c, err := ParseConfig(raw)
	if err != nil {
		t.Fatal(err)
	}
	var meta struct{ Activation string }
	g.Meta(t, &meta)
	if c.MLMHead, err = c.MLM(raw, meta.Activation == "log1p_relu"); err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(&c)
	}
	m, s := loadWeights(t, "splade/"+name+"/model", c, d, o)
	return m, s, g, goldenRows(t, g, "")
}

// smallTiles makes tiles of the least size.
func smallTiles(t testing.TB) {
	usual := logitBytes
	logitBytes = 1
	t.Cleanup(func() { logitBytes = usual })
}

// Against transformers and sentence-transformers: sparse embeddings, and every parameter's gradient, of every kind of head; of one tile and of two.
func TestSparse(t *testing.T) {
	fast := fastDevice(t)
	for _, name := range sparseHeads {
		for _, dtype := range []gpustage.DType{gpustage.F64, gpustage.F32} {
			t.Run(fmt.Sprint(name, "/", dtype), func(t *testing.T) {
				var d gpustage.Device = ref.New()
				limit, gradLimit := 1e-12, 1e-7 // gradients are stored in f32
				if dtype == gpustage.F32 {
					d, limit, gradLimit = fast, 1e-5, 1e-4
					smallTiles(t)
				}
				m, s, g, rows := loadSparse(t, name, d, Options{DType: dtype}, nil)
				grads, err := m.NewGradients()
				if err != nil {
					t.Fatal(err)
				}
				p := m.Forward(s, newArena(t, d), rows, true, true)
				if e := relative(floats(t, s, p.Embeddings()), g.F64(t, "embeddings"), 0); !(e <= limit) {
					t.Errorf("embeddings: error %.3g", e)
				}
				p.Backward(upload64(t, s, dtype, rows.Len(), m.EmbeddingSize(), g.F64(t, "r")), grads)
				largest, found := 0.0, 0
				of := func(name string) []float64 {
					return g.F64(t, "grad/"+inFile(m.Config, func(n string) bool { return g.Has("grad/" + n) }, name))
				}
				for _, p := range m.Layout.Params {
					for _, v := range of(p.Name) {
						largest = max(largest, math.Abs(v))
					}
				}
				for _, p := range m.Layout.Params {
					found++
					if e := relative(floats(t, s, m.Layout.View(grads, p)), of(p.Name), largest); !(e <= gradLimit) {
						t.Errorf("gradient of %s: error %.3g", p.Name, e)
					}
				}
				all := len(g.Names("grad/"))
				if name == "bert-untied" { // whose cls.predictions.bias is nobody's: its gradient is zero
					all--
				}
				if found != all {
					t.Errorf("%d parameters, transformers has %d", found, all)
				}
			})
		}
	}
}

// With dropout and normalization behind the head: an embedding, a kept and a replayed pass have the same bits, so has activation checkpointing, memory is
// as predicted, tiles change nothing but rounding, and the gradient is that of the masked function.
func TestSparseBitEqual(t *testing.T) {
	for _, name := range []string{"bert", "modernbert"} {
		t.Run(name, func(t *testing.T) {
			smallTiles(t)
			d := ref.New()
			drop := func(c *Config) { c.HiddenDropout, c.AttentionDropout = 0.2, 0.2 }
			if name == "modernbert" {
				drop = func(c *Config) { c.AttentionDropout = 0.2 }
			}
			run := func(o Options) (embeddings, grad []byte) {
				m, s, g, rows := loadSparse(t, name, d, o, drop)
				m.Head.Normalize = true
				var lengths []int
				for b := range rows.Len() {
					rows.Keys = append(rows.Keys, gpustage.RowKey(1, 2, int64(b), 0))
					lengths = append(lengths, int(rows.Cu[b+1]-rows.Cu[b]))
				}
				want := m.Memory(lengths)
				grads, err := m.NewGradients()
				if err != nil {
					t.Fatal(err)
				}
				r := upload64(t, s, gpustage.F32, rows.Len(), m.EmbeddingSize(), g.F64(t, "r"))
				for i, way := range []struct {
					bytes int
					pass  func(a *gpustage.Arena) *Pass
				}{
					{want.Forward, func(a *gpustage.Arena) *Pass { return m.Forward(s, a, rows, true, false) }},
					{want.Backward, func(a *gpustage.Arena) *Pass { return m.Forward(s, a, rows, true, true) }},
					{want.LeanBackward, func(a *gpustage.Arena) *Pass { return m.Lean(s, a, rows) }},
					{want.Backward, func(a *gpustage.Arena) *Pass { return m.Replay(s, a, rows) }},
				} {
					a, err := gpustage.NewArena(d, way.bytes)
					if err != nil {
						t.Fatal(err)
					}
					p := way.pass(a)
					vs := gpustage.Bytes(floats(t, s, p.Embeddings()))
					if i == 0 {
						embeddings = vs
						p.Release()
						continue
					}
					if !bytes.Equal(embeddings, vs) {
						t.Errorf("pass %d gave other embeddings", i)
					}
					s.Fill(grads, 0)
					p.Backward(r, grads)
					vs = gpustage.Bytes(floats(t, s, grads))
					if i > 1 && !bytes.Equal(vs, grad) {
						t.Errorf("pass %d gave another gradient", i)
					}
					grad = vs
					p.Release()
					if a.Used() != 0 {
						t.Errorf("%d bytes were not given back", a.Used())
					}
				}
				return embeddings, grad
			}
			e, g := run(Options{})
			again, grad := run(Options{CheckpointEvery: 1})
			if !bytes.Equal(e, again) || !bytes.Equal(g, grad) {
				t.Error("activation checkpointing changes bits")
			}
			m, s, gold, rows := loadSparse(t, name, d, Options{DType: gpustage.F64}, drop)
			for b := range rows.Len() {
				rows.Keys = append(rows.Keys, uint64(b)*77)
			}
			testDerivative(t, m, s, rows, gold.F64(t, "r"))
		})
	}
}

// What products of all tiles take is rounded once, and the place that it takes is predicted: with two tiles as many roundings as with one, and one more,
// of the second part of the decoder.
func TestSparseRounding(t *testing.T) {
	d := onhost.OpenUnchecked(t, onhost.Plain)
	roundings := func() int {
		m, s, _, rows := loadSparse(t, "bert", d, Options{BF16: true}, nil)
		a, err := gpustage.NewArena(d, m.Memory([]int{int(rows.Cu[rows.Len()])}).Forward)
		if err != nil {
			t.Fatal(err)
		}
		d.Launched = map[string]int{}
		m.Forward(s, a, Rows{IDs: rows.IDs, Cu: []int32{0, rows.Cu[rows.Len()]}}, false, false).Release()
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		return d.Launched["to_bf16"]
	}
	one := roundings()
	smallTiles(t)
	if two := roundings(); two != one+1 {
		t.Errorf("%d roundings with one tile, %d with two", one, two)
	}
}

// What is frozen has no gradient, and the rest the one that it has anyway: the head alone, beside frozen embeddings, and LoRA's factors.
func TestSparseFrozen(t *testing.T) {
	d := ref.New()
	gradients := func(o Options) (*Model, map[string][]float64) {
		m, s, g, rows := loadSparse(t, "bert", d, o, nil)
		grads, err := m.NewGradients()
		if err != nil {
			t.Fatal(err)
		}
		p := m.Forward(s, newArena(t, d), rows, true, true)
		p.Backward(upload64(t, s, gpustage.F64, rows.Len(), m.EmbeddingSize(), g.F64(t, "r")), grads)
		out := map[string][]float64{}
		for _, p := range m.Layout.Training() {
			out[p.Name] = floats(t, s, m.Layout.View(grads, p))
		}
		return m, out
	}
	_, whole := gradients(Options{DType: gpustage.F64})
	m, some := gradients(Options{DType: gpustage.F64, Tuning: Tuning{FreezeEmbeddings: true, FreezeLayers: 2}})
	if m.Lowest() != 2 || len(some) != 5 {
		t.Errorf("of a head alone %d parameters train, and backward goes down to layer %d", len(some), m.Lowest())
	}
	for name, vs := range some {
		if e := relative(vs, whole[name], 0); !(e <= 1e-12) {
			t.Errorf("%s alone: error %.3g", name, e)
		}
	}
	lora := &LoRA{Rank: 2, Alpha: 4, Targets: []string{"query"}, Save: []string{"cls.predictions.transform"}}
	_, some = gradients(Options{DType: gpustage.F64, Tuning: Tuning{LoRA: lora}})
	if len(some) != 2*2+4 {
		t.Errorf("with LoRA %d parameters train", len(some))
	}
	for name, vs := range some {
		if want, there := whole[name]; there {
			if e := relative(vs, want, 0); !(e <= 1e-12) {
				t.Errorf("%s beside LoRA: error %.3g", name, e)
			}
		}
	}
}

// What config.json leaves out of a ModernBERT's head is as in transformers: a decoder with a bias, that of the word embeddings.
func TestSparseDefaults(t *testing.T) {
	c, err := ParseConfig([]byte(`{"model_type":"modernbert"}`))
	if err != nil {
		t.Fatal(err)
	}
	for raw, want := range map[string]MLMHead{
		`{}`:                               {Bias: "decoder.bias"},
		`{"decoder_bias":false}`:           {},
		`{"tie_word_embeddings":false}`:    {Bias: "decoder.bias", Decoder: "decoder"},
		`{"classifier_activation":"silu"}`: {Bias: "decoder.bias", Act: gpustage.SiLU},
	} {
		want.Dense, want.Norm = "head.dense", "head.norm"
		if want.Act == 0 {
			want.Act = gpustage.GELU
		}
		if got, err := c.MLM([]byte(raw), false); err != nil || got != want {
			t.Errorf("%s: %+v (%v), want %+v", raw, got, err, want)
		}
	}
}

func TestSparseErrors(t *testing.T) {
	c, err := ParseConfig([]byte(`{"model_type":"eurobert","vocab_size":10,"hidden_size":8,"num_hidden_layers":1,"num_attention_heads":2,"intermediate_size":8,"max_position_embeddings":8}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.MLM([]byte("{}"), false); !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), `"eurobert"`) {
		t.Errorf("a family without such a head: %v", err)
	}
	m, _, _, _ := loadSparse(t, "bert", ref.New(), Options{}, nil)
	c = m.Config
	c.Dense = []Dense{{Name: "2_Dense", Out: 3}}
	if _, err := New(ref.New(), c, Head{}, Options{}); !errors.Is(err, ErrUnsupported) {
		t.Errorf("with dense layers: %v", err)
	}
	_, err = New(ref.New(), m.Config, Head{}, Options{Own: func(l *Layout) [][2]int { return [][2]int{{0, l.Len}} }})
	if err == nil || !strings.Contains(err.Error(), "mesh.parameters") {
		t.Errorf("streamed parameters: %v", err)
	}
	c = m.Config
	c.MLMHead.Decoder = "cls.predictions.decoder"
	if _, err := New(ref.New(), c, Head{}, Options{Own: func(l *Layout) [][2]int { return [][2]int{{0, l.Len}} }}); err != nil {
		t.Errorf("streamed parameters with a decoder of its own: %v", err)
	}
}
