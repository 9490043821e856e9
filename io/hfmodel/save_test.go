package hfmodel

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"contraflow/io/safetensors"
)

// specOf describes an open folder as something to save again.
func specOf(t *testing.T, f *Folder) Spec {
	t.Helper()
	s := Spec{
		Config: f.Config, Normalize: f.Normalize, MaxSeqLength: f.MaxSeqLength, LowerCase: f.LowerCase,
		Prompts: f.Prompts, DefaultPromptName: f.DefaultPromptName, Similarity: f.Similarity,
		Base: f, Tokenizer: f.CopyTokenizer, Pooling: Pooling{Mode: Mean, IncludePrompt: true},
	}
	if f.Pooling != nil {
		s.Pooling = *f.Pooling
	}
	for _, name := range f.Names() {
		x, err := f.Tensor(name)
		if err != nil {
			t.Fatal(err)
		}
		x.Name = strings.TrimPrefix(name, "bert.")
		s.Tensors = append(s.Tensors, x)
	}
	return s
}

// TestRoundTrip saves each golden folder and opens what was saved.
func TestRoundTrip(t *testing.T) {
	for _, name := range []string{"st6", "st2", "sharded"} {
		t.Run(name, func(t *testing.T) {
			a := open(t, golden+name)
			dir := filepath.Join(t.TempDir(), "out", "model")
			s := specOf(t, a)
			for range 2 { // into nothing, and over the previous one
				if err := Save(dir, s); err != nil {
					t.Fatal(err)
				}
			}
			b := open(t, dir)
			if b.TransformerDir != dir || string(b.Config) != string(a.Config) {
				t.Errorf("folder %s, config %s", b.TransformerDir, b.Config)
			}
			if *b.Pooling != (Pooling{s.Pooling.Mode, 16, true}) || b.Normalize != a.Normalize ||
				b.MaxSeqLength != a.MaxSeqLength || b.LowerCase != a.LowerCase || b.Similarity != "cosine" ||
				!reflect.DeepEqual(b.Prompts, a.Prompts) || b.DefaultPromptName != a.DefaultPromptName {
				t.Errorf("%+v is not %+v", b, a)
			}
			if len(b.Names()) != len(a.Names()) {
				t.Errorf("%d tensors, want %d", len(b.Names()), len(a.Names()))
			}
			for _, x := range s.Tensors {
				y, err := b.Tensor(x.Name)
				if err != nil || !slices.Equal(x.Data, y.Data) || !slices.Equal(x.Shape, y.Shape) {
					t.Errorf("%s is %s, %v", x, y, err)
				}
			}
			if got := tree(t, filepath.Dir(dir)); slices.ContainsFunc(got, func(s string) bool { return !strings.HasPrefix(s, "model/") }) {
				t.Errorf("left behind: %q", got)
			}
		})
	}
}

// A sparse encoder's similarity is its base's, or else the dot product, which is sentence-transformers' for these.
func TestSparseSimilarity(t *testing.T) {
	for was, want := range map[string]string{"cosine": "cosine", "": "dot"} {
		base := copyGolden(t, "st6")
		edit(t, base, "config_sentence_transformers.json", map[string]any{"similarity_fn_name": was})
		s := specOf(t, open(t, base))
		s.Splade, s.Normalize, s.Similarity = &Splade{}, false, ""
		dir := filepath.Join(t.TempDir(), "m")
		if err := Save(dir, s); err != nil {
			t.Fatal(err)
		}
		if f := open(t, dir); f.Similarity != want || f.Splade == nil {
			t.Errorf("%q became %q, want %q", was, f.Similarity, want)
		}
	}
}

// Without prompts there are none, which is not null: sentence-transformers asks for a prompt by its name. What is in one stands as people read it.
func TestSavedPrompts(t *testing.T) {
	for want, prompts := range map[string]map[string]string{`"prompts": {}`: nil, `"query": "<q> & "`: {"query": "<q> & "}} {
		s := specOf(t, open(t, golden+"st6"))
		s.Base, s.Prompts, s.DefaultPromptName = nil, prompts, ""
		dir := filepath.Join(t.TempDir(), "m")
		if err := Save(dir, s); err != nil {
			t.Fatal(err)
		}
		if data, err := os.ReadFile(filepath.Join(dir, modelFile)); err != nil || !strings.Contains(string(data), want) {
			t.Errorf("%s, %v, want %s", data, err, want)
		}
	}
}

// TestUnknownKeys: what we don't know is carried over, what we write wins.
func TestUnknownKeys(t *testing.T) {
	base := copyGolden(t, "st6")
	edit(t, base, "config_sentence_transformers.json", map[string]any{"requirements": []string{"x<é>"}, "similarity_fn_name": "dot"})
	edit(t, base, "sentence_bert_config.json", map[string]any{"processing_kwargs": map[string]any{"image": map[string]any{"a": 1.50}}})
	edit(t, base, "1_Pooling/config.json", map[string]any{"new_option": true})
	f := open(t, base)
	s := specOf(t, f)
	s.Similarity = ""
	s.MaxSeqLength = 7
	dir := filepath.Join(t.TempDir(), "m")
	if err := Save(dir, s); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		"config_sentence_transformers.json": `{"__version__":{"pytorch":"2.9.0+cu128","sentence_transformers":"6.2.0","transformers":"5.23.0"},` +
			`"default_prompt_name":"query","model_type":"SentenceTransformer","prompts":{"document":"","passage":"","query":"the "},` +
			`"requirements":["x<é>"],"similarity_fn_name":"dot"}`,
		"sentence_bert_config.json": `{"do_lower_case":false,"max_seq_length":7,` +
			`"modality_config":{"text":{"method":"forward","method_output_name":"last_hidden_state"}},"module_output_name":"token_embeddings",` +
			`"processing_kwargs":{"image":{"a":1.5}},"transformer_task":"feature-extraction"}`,
		"1_Pooling/config.json": `{"include_prompt":true,"new_option":true,"pooling_mode_cls_token":false,"pooling_mode_lasttoken":false,` +
			`"pooling_mode_max_tokens":false,"pooling_mode_mean_sqrt_len_tokens":false,"pooling_mode_mean_tokens":true,` +
			`"pooling_mode_weightedmean_tokens":false,"word_embedding_dimension":16}`,
	} {
		var got, wanted any
		readJSON(t, filepath.Join(dir, file), &got)
		if err := json.Unmarshal([]byte(want), &wanted); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, wanted) {
			t.Errorf("%s:\n got %v\nwant %v", file, got, wanted)
		}
	}
}

// What is saved of a T5 is its encoder, whatever it began as.
func TestConfigOfEncoders(t *testing.T) {
	for config, want := range map[string]string{
		`{"model_type":"t5","architectures":["T5ForConditionalGeneration"],"d_model":16}`: "{\n  \"model_type\": \"t5\",\n  \"architectures\": [\n    \"T5EncoderModel\"\n  ],\n  \"d_model\": 16\n}\n",
		`{"model_type":"mt5","d_model":16}`:                                               "{\n  \"model_type\": \"mt5\",\n  \"d_model\": 16,\n  \"architectures\": [\n    \"MT5EncoderModel\"\n  ]\n}\n",
		`{"model_type":"t5","architectures":["T5EncoderModel"]}`:                          `{"model_type":"t5","architectures":["T5EncoderModel"]}`,
		`{"model_type":"bert","architectures":["BertForMaskedLM"]}`:                       `{"model_type":"bert","architectures":["BertForMaskedLM"]}`,
	} {
		o, err := parseObject([]byte(config))
		if err != nil {
			t.Fatal(err)
		}
		if got := string(Spec{Config: []byte(config)}.configBytes(o)); got != want {
			t.Errorf("%s becomes %s, want %s", config, got, want)
		}
	}
}

// TestConfigDType: transformers loads in the type that config.json names, so it must be the tensors'.
func TestConfigDType(t *testing.T) {
	f := open(t, golden+"st6")
	s := specOf(t, f)
	s.Config = []byte(`{"z": 1, "model_type": "bert", "torch_dtype": "float16", "hidden_size": 16, "a": [1,2]}`)
	dir := filepath.Join(t.TempDir(), "m")
	if err := Save(dir, s); err != nil {
		t.Fatal(err)
	}
	got, _ := os.ReadFile(filepath.Join(dir, "config.json"))
	want := "{\n  \"z\": 1,\n  \"model_type\": \"bert\",\n  \"torch_dtype\": \"float32\",\n  \"hidden_size\": 16,\n  \"a\": [\n    1,\n    2\n  ]\n}\n"
	if string(got) != want {
		t.Errorf("got %s", got)
	}
}

// Of several types it is that of most numbers, not of most tensors: an LLM's norms are many and small.
func TestMixedDType(t *testing.T) {
	f32, bf16 := safetensors.Tensor{DType: safetensors.F32, Shape: []int{4}}, safetensors.Tensor{DType: safetensors.BF16, Shape: []int{4, 4}}
	config := newObject()
	config.set("dtype", "float32")
	if !setDType(config, []safetensors.Tensor{f32, f32, bf16}) || string(config.values["dtype"]) != `"bfloat16"` {
		t.Errorf("%s", config.bytes())
	}
}

// Families that do not call it hidden_size have a dimension all the same.
func TestPoolingDimension(t *testing.T) {
	f := open(t, golden+"st6")
	for _, key := range []string{"hidden_size", "dim", "n_embd", "d_model"} {
		s := specOf(t, f)
		s.Config, s.Pooling.Dimension = []byte(`{"model_type": "x", "`+key+`": 16}`), 0
		dir := filepath.Join(t.TempDir(), "m")
		if err := Save(dir, s); err != nil {
			t.Fatal(err)
		}
		if got := open(t, dir).Pooling.Dimension; got != 16 {
			t.Errorf("%s: dimension %d", key, got)
		}
	}
}

// addDense adds a module from 16 dimensions to 3, and tensors of it.
func (s *Spec) addDense(bias bool, shapes ...[]int) {
	s.Dense = append(s.Dense, Dense{Path: "2_Dense", In: 16, Out: 3, Bias: bias, Activation: "tanh"})
	for i, name := range []string{"2_Dense.linear.weight", "2_Dense.linear.bias"} {
		if shapes[i] != nil {
			n := 4
			for _, d := range shapes[i] {
				n *= d
			}
			s.Tensors = append(s.Tensors, safetensors.Tensor{Name: name, DType: safetensors.F32, Shape: shapes[i], Data: make([]byte, n)})
		}
	}
}

func TestSaveErrors(t *testing.T) {
	f := open(t, golden+"st6")
	boom := errors.New("boom")
	for want, spoil := range map[string]func(*Spec){
		"config.json: line 1: not valid JSON":       func(s *Spec) { s.Config = []byte("oops") },
		"config.json: no model_type":                func(s *Spec) { s.Config = []byte("{}") },
		`pooling "max" is not one of`:               func(s *Spec) { s.Pooling.Mode = "max" },
		"max_seq_length 0":                          func(s *Spec) { s.MaxSeqLength = 0 },
		`default prompt "x" is not among`:           func(s *Spec) { s.DefaultPromptName = "x" },
		"no tensors":                                func(s *Spec) { s.Tensors = nil },
		"no tokenizer":                              func(s *Spec) { s.Tokenizer = nil },
		"tokenizer: boom":                           func(s *Spec) { s.Tokenizer = func(string) error { return boom } },
		"the tokenizer wrote none of its files":     func(s *Spec) { s.Tokenizer = func(string) error { return nil } },
		`tensor "embeddings.LayerNorm.bias" occurs`: func(s *Spec) { s.Tensors = append(s.Tensors, s.Tensors...) },
		`the module 2_Dense has the tensors ["linear.weight"], where it should have ["linear.bias" "linear.weight"]`: func(s *Spec) { s.addDense(true, []int{3, 16}, nil) },
		`the module 2_Dense has the tensors ["linear.bias" "linear.weight"], where it should have ["linear.weight"]`: func(s *Spec) { s.addDense(false, []int{3, 16}, []int{3}) },
		"tensor 2_Dense.linear.weight has shape [16 3], want [3 16]":                                                 func(s *Spec) { s.addDense(false, []int{16, 3}, nil) },
		"tensor 2_Dense.linear.bias has shape [16], want [3]":                                                        func(s *Spec) { s.addDense(true, []int{3, 16}, []int{16}) },
		"no tensors of the module 2_Dense":                                                                           func(s *Spec) { s.addDense(true, nil, nil) },
		"the pooling's dimension is not given": func(s *Spec) {
			s.Config, s.Pooling.Dimension = []byte(`{"model_type": "x"}`), 0
		},
	} {
		dir := copyGolden(t, "st2")
		before := tree(t, filepath.Dir(dir))
		s := specOf(t, f)
		spoil(&s)
		err := Save(dir, s)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), dir) {
			t.Errorf("got %v, want %s and %s", err, want, dir)
		}
		if after := tree(t, filepath.Dir(dir)); !slices.Equal(before, after) {
			t.Errorf("%s: the previous model changed from %q to %q", want, before, after)
		}
	}
	dir := t.TempDir()
	put(t, dir, "letters.txt", "dear")
	if err := Save(dir, specOf(t, f)); err == nil || !strings.Contains(err.Error(), "holds no model") {
		t.Errorf("a folder that is no model was replaced: %v", err)
	}
	if got := tree(t, dir); len(got) != 1 {
		t.Errorf("%q", got)
	}
}

// TestCard: the front matter is YAML with what the hub looks for, and data can't break out of its place.
func TestCard(t *testing.T) {
	f := open(t, golden+"st6")
	s := specOf(t, f)
	s.Card = Card{
		Name: "two\nlines", BaseModel: "sentence-transformers/all-MiniLM-L6-v2", Summary: "It is *small*.",
		TrainingData: []Dataset{{Name: "data/a|b.parquet", Columns: []string{"query", "positive"}, Rows: 12345}},
		Metrics:      []Metric{{Dataset: "test: a", Name: "nDCG@10", Value: 0.51239}, {Dataset: "test: a", Task: "triplet", Name: "accuracy", Value: 0.5}},
		Recipe:       "model: {path: x}\n# ```\n",
	}
	dir := filepath.Join(t.TempDir(), "m")
	if err := Save(dir, s); err != nil {
		t.Fatal(err)
	}
	data, _ := os.ReadFile(filepath.Join(dir, "README.md"))
	parts := strings.SplitN(string(data), "---\n", 3)
	if len(parts) != 3 || parts[0] != "" {
		t.Fatalf("no front matter: %s", data)
	}
	var front map[string]any
	if err := yaml.Unmarshal([]byte(parts[1]), &front); err != nil {
		t.Fatal(err)
	}
	if want := map[string]any{
		"library_name": "sentence-transformers", "pipeline_tag": "sentence-similarity",
		"tags":       []any{"sentence-transformers", "sentence-similarity", "feature-extraction", "contraflow"},
		"base_model": "sentence-transformers/all-MiniLM-L6-v2",
		"model-index": []any{map[string]any{"name": "two lines", "results": []any{map[string]any{
			"task": map[string]any{"type": "information-retrieval"}, "dataset": map[string]any{"name": "test: a", "type": "unknown"},
			"metrics": []any{map[string]any{"type": "ndcg_at_10", "value": 0.51239, "name": "nDCG@10"}},
		}, map[string]any{
			"task": map[string]any{"type": "triplet"}, "dataset": map[string]any{"name": "test: a", "type": "unknown"},
			"metrics": []any{map[string]any{"type": "accuracy", "value": 0.5, "name": "accuracy"}},
		}}}},
	}; !reflect.DeepEqual(front, want) {
		t.Errorf("front matter %v", front)
	}
	for _, want := range []string{
		"\n# two lines\n", "vector of 16 dimensions", "It is *small*.", "- Pooling: mean, normalized to length 1\n",
		"- Maximum length: 20 tokens\n", "- Prompt `query`: `the `\n", `model.encode("how are gradients accumulated?", prompt_name="query")`, `model.encode(["a first text", "a second text"], prompt_name="document")`,
		"\ncontraflow embed --model . --text 'how are gradients accumulated?' --prompt query\n", "\ncontraflow embed --model . --input docs.parquet --column text --prompt document --output docs.emb.parquet\n",
		`| data/a\|b.parquet | query, positive | 12345 |`, "| test: a | nDCG@10 | 0.5124 |", "\n````yaml\nmodel: {path: x}\n# ```\n````\n",
	} {
		if !strings.Contains(parts[2], want) {
			t.Errorf("the card lacks %q:\n%s", want, parts[2])
		}
	}
	s.DefaultPromptName = ""
	for name, want := range map[string]string{
		"none": " --column text --output", "query": " --column text --output", "passage": " --column text --prompt passage --output",
	} {
		s.Prompts = map[string]string{name: "x: ", "document": ""}
		if card := string(s.Card.render("m", s, s.Pooling)); !strings.Contains(card, want) || strings.Contains(card, "--prompt query") != (name == "query") {
			t.Errorf("a prompt for %s: %s", name, card)
		}
	}
	t.Chdir(t.TempDir())
	if err := os.MkdirAll("out/model", 0o777); err != nil {
		t.Fatal(err)
	}
	for _, base := range []string{"/home/me/model: x", "out/model"} { // which reads as an id
		s.Card = Card{BaseModel: base}
		r := RerankerSpec{Card: s.Card}
		for _, card := range []string{string(s.Card.render("m", s, s.Pooling)), string(r.card("m"))} {
			if strings.Contains(card, "base_model") || !strings.Contains(card, base) {
				t.Errorf("a local folder is given as the hub's base model:\n%s", card)
			}
		}
	}
}

// big is a model whose weights are larger than the disk of the tests that fill one.
func big(t *testing.T, f *Folder) Spec {
	s := specOf(t, f)
	x, err := safetensors.FromFloat32s("big", []int{1 << 19}, make([]float32, 1<<19))
	if err != nil {
		t.Fatal(err)
	}
	s.Tensors = append(s.Tensors, x)
	return s
}

// Code stands between runs of backticks that it does not have itself.
func TestCode(t *testing.T) {
	for s, want := range map[string]string{"": "``", "a ": "`a `", "a`b\n": "`` a`b\\n ``", "``": "``` `` ```", "```a`": "```` ```a` ````"} {
		if got := Code(s); got != want {
			t.Errorf("%q: %s, want %s", s, got, want)
		}
	}
}
