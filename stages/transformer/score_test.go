package transformer

import (
	"bytes"
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
)

var heads = []string{"bert", "jina-v2", "xlm-roberta", "mpnet", "electra", "ernie", "jina", "distilbert", "modernbert-cls", "modernbert-mean", "deberta-v2", "qwen3-score", "qwen3-yes-no", "llama-yes-no", "gemma2-yes", "gemma-yes", "minicpm-layers", "minicpm-layer"}

// loadWeights makes a model whose weights, the head's too, are a golden's.
func loadWeights(t testing.TB, golden string, c Config, d gpustage.Device, o Options) (*Model, gpustage.Stream) {
	t.Helper()
	m, err := New(d, c, Head{}, o)
	if err != nil {
		t.Fatal(err)
	}
	s, err := d.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	w := goldens.Load(t, golden)
	if err := m.Load(s, func(p Param, dst []float32) error {
		n := inFile(c, w.Has, p.Name)
		if got, want := fmt.Sprint(w.Shape(t, n)), fmt.Sprint(p.Shape()); got != want {
			t.Errorf("%s has shape %s, want %s", n, got, want)
		}
		copy(dst, w.F32(t, n))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return m, s
}

// loadHead makes the model of one of testdata/golden/rerank, with its head.
func loadHead(t testing.TB, name string, d gpustage.Device, o Options, change func(*Config)) (*Model, gpustage.Stream, *goldens.Golden, Rows) {
	t.Helper()
	g := goldens.Load(t, "rerank/"+name)
	raw, err := os.ReadFile(filepath.Join(goldens.Path(t, "rerank/"+name), "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := ParseConfig(raw)
	if err != nil {
		t.Fatal(err)
	}
	var meta struct {
		Tokens []int32
		Cutoff int
		Groups int // in training
	}
	switch g.Meta(t, &meta); {
	case meta.Cutoff > 0:
		var layer int
		if c.Scorer, layer, err = c.LayerScorer(raw, meta.Cutoff); err == nil {
			c.CutOff(layer)
		}
	case meta.Groups > 0:
		c.Scorer, err = c.LayerScorers(raw)
	case len(meta.Tokens) > 0:
		c.Scorer, err = c.TokenScorer(raw, meta.Tokens...)
	default:
		c.Scorer, err = c.Classifier(raw, false)
	}
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(&c)
	}
	m, s := loadWeights(t, "rerank/"+name+"/model", c, d, o)
	r := goldenRows(t, g, "")
	if g.Has("kinds") {
		for _, k := range g.Ints(t, "kinds") {
			r.Kinds = append(r.Kinds, int32(k))
		}
	}
	return m, s, g, r
}

func inFile(c Config, has func(string) bool, name string) string {
	for _, p := range c.Prefixes() {
		if has(p + name) {
			return p + name
		}
	}
	return name
}

// Against transformers: scores and every parameter's gradient, of every kind of head.
func TestHeads(t *testing.T) {
	fast, err := cpu.New(cpu.Threads(2))
	if err != nil {
		t.Fatal(err)
	}
	defer fast.Close()
	for _, name := range heads {
		for _, dtype := range []gpustage.DType{gpustage.F64, gpustage.F32} {
			t.Run(fmt.Sprint(name, "/", dtype), func(t *testing.T) {
				var d gpustage.Device = ref.New()
				limit, gradLimit := 1e-12, 1e-7 // gradients are stored in f32
				if dtype == gpustage.F32 {
					d, limit, gradLimit = fast, 1e-5, 1e-4
				}
				m, s, g, rows := loadHead(t, name, d, Options{DType: dtype}, nil)
				grads, err := m.NewGradients()
				if err != nil {
					t.Fatal(err)
				}
				p := m.Forward(s, newArena(t, d), rows, true, true)
				if e := relative(floats(t, s, p.Embeddings()), g.F64(t, "scores"), 0); !(e <= limit) {
					t.Errorf("scores %v: error %.3g", floats(t, s, p.Embeddings()), e)
				}
				p.Backward(upload64(t, s, dtype, rows.Len(), 1, g.F64(t, "r")), grads)
				largest, found := 0.0, 0
				for _, p := range m.Layout.Params {
					for _, v := range g.F64(t, "grad/"+inFile(m.Config, func(n string) bool { return g.Has("grad/" + n) }, p.Name)) {
						largest = max(largest, math.Abs(v))
					}
				}
				for _, p := range m.Layout.Params {
					found++
					n := "grad/" + inFile(m.Config, func(n string) bool { return g.Has("grad/" + n) }, p.Name)
					if e := relative(floats(t, s, m.Layout.View(grads, p)), g.F64(t, n), largest); !(e <= gradLimit) {
						t.Errorf("gradient of %s: error %.3g", p.Name, e)
					}
				}
				if all := len(g.Names("grad/")); found != all {
					t.Errorf("%d parameters, transformers has %d", found, all)
				}
				if len(m.Config.Scorer.Tied()) > 0 {
					testTiedRows(t, m, s, rows, upload64(t, s, dtype, rows.Len(), 1, g.F64(t, "r")), grads)
				}
			})
		}
	}
}

// testTiedRows checks that rows of the word embeddings' gradient are those of all of it, the head's among them.
func testTiedRows(t *testing.T, m *Model, s gpustage.Stream, rows Rows, r, grads gpustage.Tensor) {
	places := slices.Concat(rows.IDs, m.Config.Scorer.Tied())
	ids := Distinct(slices.Clone(places), 0)
	for i, id := range places {
		at, _ := slices.BinarySearch(ids, id)
		places[i] = int32(at)
	}
	word := m.Layout.Word()
	apart, err := gpustage.NewTensor(s.Device(), m.DType, len(ids), word.Cols)
	if err != nil {
		t.Fatal(err)
	}
	rest, err := m.NewGradients()
	if err != nil {
		t.Fatal(err)
	}
	m.Forward(s, newArena(t, s.Device()), rows, true, true).BackwardTo([]gpustage.Tensor{r}, Gradients{Flat: rest, WordRows: apart, WordIndex: ints32(t, s, places)})
	s.ScatterAdd(m.Layout.View(rest, word), apart, ints32(t, s, ids)) // where nothing has been added
	if got, want := floats(t, s, rest), floats(t, s, grads); !slices.Equal(got, want) {
		t.Errorf("with rows of the word embeddings apart gradients differ: error %.3g", relative(got, want, 0))
	}
}

// ints32 is a vector on the device.
func ints32(t *testing.T, s gpustage.Stream, vs []int32) gpustage.Tensor {
	t.Helper()
	x, err := gpustage.NewTensor(s.Device(), gpustage.I32, 1, len(vs))
	if err != nil {
		t.Fatal(err)
	}
	s.CopyIn(x, gpustage.Bytes(vs))
	return x
}

// Dropout in the head: a replay, and activation checkpointing, have the same bits, memory is as predicted, and the gradient is that of
// the masked function.
func TestHeadsBitEqual(t *testing.T) {
	for _, name := range heads {
		t.Run(name, func(t *testing.T) {
			d := ref.New()
			drop := func(c *Config) { c.Scorer.DropoutIn, c.Scorer.DropoutOut = 0.3, 0.3 }
			run := func(every int) (scores, grad []byte) {
				m, s, g, rows := loadHead(t, name, d, Options{CheckpointEvery: every}, drop)
				var lengths []int
				for b := range rows.Len() {
					rows.Keys = append(rows.Keys, gpustage.RowKey(1, 2, int64(b), 0))
					lengths = append(lengths, int(rows.Cu[b+1]-rows.Cu[b]))
				}
				want, a := m.Memory(lengths), newArena(t, d)
				first := m.Forward(s, a, rows, true, false)
				scores = gpustage.Bytes(floats(t, s, first.Embeddings()))
				if in, out := first.scoring.dropIn, first.scoring.dropOut; in.Active() && in.Layer == out.Layer && in.Site == out.Site {
					t.Error("both dropouts have one mask")
				}
				if a.Peak() != want.Forward {
					t.Errorf("forward took %d bytes, predicted %d", a.Peak(), want.Forward)
				}
				first.Release()
				again := m.Replay(s, a, rows)
				if !bytes.Equal(scores, gpustage.Bytes(floats(t, s, again.Embeddings()))) {
					t.Error("a replay gave other bits")
				}
				grads, err := m.NewGradients()
				if err != nil {
					t.Fatal(err)
				}
				again.Backward(upload64(t, s, gpustage.F32, rows.Len(), 1, g.F64(t, "r")), grads)
				if a.Peak() > want.Backward {
					t.Errorf("backward took %d bytes, predicted %d", a.Peak(), want.Backward)
				}
				again.Release()
				if a.Used() != 0 {
					t.Errorf("%d bytes were not given back", a.Used())
				}
				return scores, gpustage.Bytes(floats(t, s, grads))
			}
			scores, grad := run(0)
			s, g := run(1)
			if !bytes.Equal(s, scores) || !bytes.Equal(g, grad) {
				t.Error("activation checkpointing changes bits")
			}
			if m, s, gold, rows := loadHead(t, name, d, Options{DType: gpustage.F64}, drop); !strings.Contains(name, "yes") {
				for b := range rows.Len() {
					rows.Keys = append(rows.Keys, uint64(b)*77)
				}
				testDerivative(t, m, s, rows, gold.F64(t, "r"))
			}
		})
	}
}

// With LoRA a classification head trains as a whole, and nothing else outside of the factors; BERT's pooler is not of it.
func TestHeadsWithLoRA(t *testing.T) {
	for name, want := range map[string]string{
		"bert": "classifier.weight classifier.bias", "xlm-roberta": "classifier.dense.weight classifier.dense.bias classifier.out_proj.weight classifier.out_proj.bias",
		"modernbert-cls": "classifier.weight classifier.bias", "qwen3-score": "score.weight", "qwen3-yes-no": "", "llama-yes-no": "",
	} {
		m, s, g, rows := loadHead(t, name, ref.New(), Options{DType: gpustage.F64, Tuning: Tuning{LoRA: &LoRA{Rank: 2, Alpha: 4, Targets: []string{AllLinear}}}}, nil)
		var got []string
		for _, p := range m.Layout.Training() {
			if !p.Factor() {
				got = append(got, p.Name)
			}
		}
		if s := strings.Join(got, " "); s != want {
			t.Errorf("%s: %s train, want %s", name, s, want)
		}
		grads, err := m.NewGradients()
		if err != nil {
			t.Fatal(err)
		}
		p := m.Forward(s, newArena(t, s.Device()), rows, true, true)
		p.Backward(upload64(t, s, gpustage.F64, rows.Len(), 1, g.F64(t, "r")), grads)
		for _, p := range m.Layout.Training() { // B is 0 at first, so A's gradient is 0, and the model is the golden's
			if p.Factor() {
				continue
			}
			n := "grad/" + inFile(m.Config, func(n string) bool { return g.Has("grad/" + n) }, p.Name)
			if e := relative(floats(t, s, m.Layout.View(grads, p)), g.F64(t, n), 1); !(e <= 1e-7) {
				t.Errorf("%s: gradient of %s: error %.3g", name, p.Name, e)
			}
		}
	}
}

// What config.json leaves out is transformers' default.
func TestTokenScorerDefaults(t *testing.T) {
	for config, want := range map[string]Scorer{
		`{"model_type":"gemma2"}`: {Pooling: gpustage.LastPooling, Tokens: []int32{7}, Cap: 30},
		`{"model_type":"gemma2","final_logit_softcapping":0,"tie_word_embeddings":false}`: {Pooling: gpustage.LastPooling, Tokens: []int32{7}, LMHead: "lm_head"},
		`{"model_type":"gemma2","final_logit_softcapping":null}`:                          {Pooling: gpustage.LastPooling, Tokens: []int32{7}},
		`{"model_type":"gemma3_text","final_logit_softcapping":20}`:                       {Pooling: gpustage.LastPooling, Tokens: []int32{7}, Cap: 20},
		`{"model_type":"llama","final_logit_softcapping":30}`:                             {Pooling: gpustage.LastPooling, Tokens: []int32{7}, LMHead: "lm_head"},
		`{"model_type":"gemma","final_logit_softcapping":30}`:                             {Pooling: gpustage.LastPooling, Tokens: []int32{7}}, // Gemma caps nothing
		`{"model_type":"llama"}`:                                                          {Pooling: gpustage.LastPooling, Tokens: []int32{7}, LMHead: "lm_head"},
	} {
		c, err := ParseConfig([]byte(config))
		if err != nil {
			t.Fatal(err)
		}
		if h, err := c.TokenScorer([]byte(config), 7); err != nil || fmt.Sprint(h) != fmt.Sprint(want) {
			t.Errorf("%s: %+v, %v", config, h, err)
		}
	}
}

// The rates of dropout in front of and within a classifier's head are those of the family's model in transformers.
func TestClassifierDropout(t *testing.T) {
	for _, c := range []struct {
		config  string
		in, out float64
	}{
		{`"bert"`, 0, 0.1},
		{`"bert","hidden_dropout_prob":0.3`, 0, 0.3},
		{`"bert","hidden_dropout_prob":0.3,"classifier_dropout":0.4`, 0, 0.4},
		{`"roberta","hidden_dropout_prob":0.3`, 0.3, 0.3},
		{`"xlm-roberta","hidden_dropout_prob":0.3,"classifier_dropout":0.4`, 0.4, 0.4},
		{`"camembert"`, 0.1, 0.1},
		{`"mpnet"`, 0.1, 0.1},
		{`"electra","hidden_dropout_prob":0.3`, 0.3, 0.3},
		{`"electra","hidden_dropout_prob":0.3,"classifier_dropout":0.4`, 0.4, 0.4},
		{`"mpnet","hidden_dropout_prob":0.3,"classifier_dropout":0.4`, 0.3, 0.3}, // it has no classifier_dropout
		{`"distilbert"`, 0, 0.2},
		{`"distilbert","dropout":0.3,"classifier_dropout":0.4`, 0, 0.2}, // neither
		{`"distilbert","seq_classif_dropout":0.4`, 0, 0.4},
		{`"deberta-v2"`, 0, 0.1},
		{`"deberta-v2","hidden_dropout_prob":0.3,"pooler_dropout":0.2,"classifier_dropout":0.4`, 0.2, 0.3}, // it has no classifier_dropout
		{`"deberta-v2","cls_dropout":0`, 0, 0},
		{`"modernbert","mlp_dropout":0.3`, 0, 0},
		{`"modernbert","classifier_dropout":0.4`, 0, 0.4},
		{`"ernie","hidden_dropout_prob":0.3`, 0, 0.3},
		{`"data2vec-text","hidden_dropout_prob":0.3`, 0.3, 0.3},
		{`"jina_embeddings_v3","classifier_dropout":0.3`, 0.3, 0.3},
		{`"new","hidden_dropout_prob":0.3,"classifier_dropout":0.4`, 0, 0.4},
		{`"gte","hidden_dropout_prob":0.3`, 0, 0.3},
		{`"qwen3","attention_dropout":0.3`, 0, 0},
	} {
		raw := []byte(`{"model_type":` + c.config + `,"num_labels":1}`)
		config, err := ParseConfig(raw)
		if err != nil {
			t.Fatal(err)
		}
		if h, err := config.Classifier(raw, false); err != nil || h.DropoutIn != c.in || h.DropoutOut != c.out {
			t.Errorf("%s: rates %v and %v (%v), want %v and %v", raw, h.DropoutIn, h.DropoutOut, err, c.in, c.out)
		}
	}
}

func TestHeadErrors(t *testing.T) {
	raw := []byte(`{"model_type":"bert","id2label":{"0":"no","1":"yes"}}`)
	c, err := ParseConfig(raw)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Classifier(raw, false); err == nil || !strings.Contains(err.Error(), "2 labels") {
		t.Errorf("%v", err)
	}
	if _, err := c.TokenScorer(raw, 1); err == nil || !strings.Contains(err.Error(), "not a decoder") {
		t.Errorf("%v", err)
	}
	for _, x := range []struct {
		config string
		layer  int
		want   string
	}{
		{`"start_layer":8,"num_hidden_layers":9`, 7, "layer 7 has no score: those of layers 8 to 9 have"},
		{`"start_layer":8,"num_hidden_layers":9`, 10, "layer 10 has no score"},
		{`"start_layer":8,"head_type":"raw"`, 0, `head_type "raw" is not supported`},
		{`"start_layer":8,"rope_scaling":{"type":"linear","factor":2.0}`, 0, "rope_scaling"},
		{`"hidden_size":64`, 0, "but for layer-wise rerankers"},
		{`"start_layer":8,"scale_depth":0`, 0, "want positive numbers"},
	} {
		raw := []byte(`{"model_type":"minicpm",` + x.config + "}")
		c, err := ParseConfig(raw)
		if err == nil {
			_, _, err = c.LayerScorer(raw, x.layer)
		}
		if err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: %v, want %q", x.config, err, x.want)
		}
	}
	c.Scorer = Scorer{Tokens: []int32{1 << 20}}
	if _, err := New(gpustage.Dry{}, c, Head{}, Options{}); err == nil || !strings.Contains(err.Error(), "vocabulary of 30522") {
		t.Errorf("%v", err)
	}
}
