package newmodel_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/gpustage/ref"
	"contraflow/io/hfmodel"
	"contraflow/stages/embedder"
	"contraflow/stages/newmodel"
	"contraflow/stages/transformer"
	"contraflow/testdata/goldens"
	"contraflow/tokenize"
)

// Numbers of a config.json stay as they are written: transformers tells 2.0 from 2, and refuses one for the other. So it is where a model that
// begins with the folder is saved.
func TestConfigNumbers(t *testing.T) {
	config := `{"model_type": "modernbert", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 32, "local_attention": 8,
		"initializer_cutoff_factor": 2.0, "norm_eps": 1e-5, "other": {"factor": 1.0, "large": 12345678901234567890}, "dtype": "bfloat16", "pad_token_id": 9, "cls_token_id": 7, "vocab_size": 3}`
	first, second := filepath.Join(t.TempDir(), "first"), filepath.Join(t.TempDir(), "second")
	if err := newmodel.Create(t.Context(), first, newmodel.Spec{Config: []byte(config), Lowercase: true}, newmodel.Texts([]string{"the river and the stone", "a river"})); err != nil {
		t.Fatal(err)
	}
	m, err := embedder.LoadTrainable(first, ref.New())
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := m.Save(second, embedder.Saving{}); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{first, second} {
		data, err := os.ReadFile(filepath.Join(dir, "config.json"))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{`"initializer_cutoff_factor": 2.0`, `"norm_eps": 1e-5`, `"factor": 1.0`, `"large": 12345678901234567890`, `"pad_token_id": 0`} {
			if !strings.Contains(string(data), want) {
				t.Errorf("%s has no %s:\n%s", dir, want, data)
			}
		}
		for _, other := range []string{"bos_token_id", "eos_token_id", "sep_token_id"} { // which the configuration has not
			if strings.Contains(string(data), other) {
				t.Errorf("%s has a %s:\n%s", dir, other, data)
			}
		}
	}
}

// What a spec says is in the folder: the shape and dropout in config.json, pooling and length 1, how texts are read; and a seed's weights are its own, the
// pooler's too, of the deviation that they begin with.
func TestCreate(t *testing.T) {
	dir := t.TempDir()
	texts := newmodel.Texts([]string{"the River and the stone", "a River"})
	create := func(name string, s newmodel.Spec) *hfmodel.Folder {
		t.Helper()
		s.Hidden, s.Layers, s.Vocab = 16, 1, 60
		if err := newmodel.Create(t.Context(), filepath.Join(dir, name), s, texts); err != nil {
			t.Fatal(err)
		}
		f, err := hfmodel.Open(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	f := create("first", newmodel.Spec{Seed: 1, Dropout: 0.25, Pooling: hfmodel.CLS, Lowercase: true, MaxLength: 20})
	c, err := transformer.ParseConfig(f.Config)
	if err != nil || c.Heads != 1 || c.HiddenDropout != 0.25 || c.AttentionDropout != 0.25 || c.MaxPositions != 20 || c.TypeVocab != 2 || f.MaxSeqLength != 20 {
		t.Errorf("%+v, %d tokens: %v", c, f.MaxSeqLength, err)
	}
	if f.Pooling == nil || f.Pooling.Mode != hfmodel.CLS || !f.Pooling.IncludePrompt || !f.Normalize {
		t.Errorf("pooling %+v, normalized %t", f.Pooling, f.Normalize)
	}
	cased := create("cased", newmodel.Spec{Seed: 2})
	if cased.Pooling.Mode != hfmodel.Mean || cased.MaxSeqLength != 512 {
		t.Errorf("by default: pooling %+v, %d tokens", cased.Pooling, cased.MaxSeqLength)
	}
	for name, same := range map[string]bool{"first": true, "cased": false} {
		tok, err := tokenize.Load(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.Equal(tok.Encode("the river", 0), tok.Encode("THE RIVER", 0)); got != same {
			t.Errorf("%s: capital letters are the same: %t", name, got)
		}
	}
	weights := func(f *hfmodel.Folder) (all map[string][]float32) {
		all = map[string][]float32{}
		for _, name := range f.Names() {
			x, err := f.Tensor(name)
			if err != nil {
				t.Fatal(err)
			}
			all[name] = make([]float32, x.Len())
			if err := x.Float32s(all[name]); err != nil {
				t.Fatal(err)
			}
		}
		return all
	}
	one, again, other := weights(f), weights(create("again", newmodel.Spec{Seed: 1, Lowercase: true, MaxLength: 20})), weights(create("other", newmodel.Spec{Seed: 3, Lowercase: true, MaxLength: 20}))
	for _, name := range []string{"pooler.dense.weight", "embeddings.word_embeddings.weight", "encoder.layer.0.attention.self.query.weight"} {
		sum := 0.0
		for _, v := range one[name] {
			sum += float64(v) * float64(v)
		}
		if d := math.Sqrt(sum / float64(len(one[name]))); !(math.Abs(d-0.02) < 0.004) { // of 256 numbers and more: four deviations of that
			t.Errorf("%s has a deviation of %v", name, d)
		}
		if !slices.Equal(one[name], again[name]) || slices.Equal(one[name], other[name]) {
			t.Errorf("%s is not the seed's", name)
		}
	}
}

// No two tensors are drawn alike, however many layers there are: the pooler is none of their own.
func TestDrawnApart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	if err := newmodel.Create(t.Context(), dir, newmodel.Spec{Hidden: 16, Layers: 6, Seed: 1}, newmodel.Texts([]string{"the river and the stone"})); err != nil {
		t.Fatal(err)
	}
	f, err := hfmodel.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	by := map[float32]string{} // its last number
	for _, name := range f.Names() {
		x, err := f.Tensor(name)
		if err != nil {
			t.Fatal(err)
		}
		vs := make([]float32, x.Len())
		if err := x.Float32s(vs); err != nil {
			t.Fatal(err)
		}
		if v := vs[len(vs)-1]; v != 0 && v != 1 { // biases, norms
			if by[v] != "" {
				t.Errorf("%s ends as %s does", name, by[v])
			}
			by[v] = name
		}
	}
	if len(by) != 3+6*6+1 {
		t.Errorf("%d tensors are drawn", len(by))
	}
}

// Special tokens of a config.json become the new tokenizer's, those that nothing needs go, and a family that knows one type of tokens gets a tokenizer that gives one.
func TestConfigTokens(t *testing.T) {
	for _, types := range []int{1, 2} {
		config := fmt.Sprintf(`{"model_type": "bert", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 32, "type_vocab_size": %d, "hidden_act": "gelu",
			"vocab_size": 99, "pad_token_id": 90, "bos_token_id": 91, "eos_token_id": 92, "sep_token_id": 93, "cls_token_id": 94, "mask_token_id": 95, "unk_token_id": 96}`, types)
		dir := filepath.Join(t.TempDir(), "m")
		if err := newmodel.Create(t.Context(), dir, newmodel.Spec{Config: []byte(config), Lowercase: true}, newmodel.Texts([]string{"the river and the stone", "a river"})); err != nil {
			t.Fatal(err)
		}
		tok, err := tokenize.Load(dir)
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]any{"vocab_size": float64(tok.VocabSize())}
		for key, token := range map[string]string{"pad": "[PAD]", "bos": "[CLS]", "cls": "[CLS]", "eos": "[SEP]", "sep": "[SEP]"} {
			id, ok := tok.ID(token)
			if !ok {
				t.Fatalf("no %s", token)
			}
			want[key+"_token_id"] = float64(id)
		}
		data, err := os.ReadFile(filepath.Join(dir, "config.json"))
		if err != nil {
			t.Fatal(err)
		}
		var got map[string]any
		if err := json.Unmarshal(data, &got); err != nil {
			t.Fatal(err)
		}
		for key, v := range want {
			if got[key] != v {
				t.Errorf("%s is %v, want %v", key, got[key], v)
			}
		}
		for _, key := range []string{"mask_token_id", "unk_token_id"} {
			if v, ok := got[key]; ok {
				t.Errorf("%s is %v", key, v)
			}
		}
		pairs, err := tok.NewPairs(tokenize.PairOptions{MaxLength: 16})
		if err != nil {
			t.Fatal(err)
		}
		if _, kinds, _, err := pairs.Append(nil, nil, "a", "river"); err != nil || int(slices.Max(kinds)) != types-1 {
			t.Errorf("a pair's tokens have types %v of %d: %v", kinds, types, err)
		}
	}
}

// New static embeddings are torch's, of a standard deviation of 1, and read texts as a whole, wherever the model that they have the tokenizer of cuts
// them; unless a length is asked for.
func TestStatic(t *testing.T) {
	first, second := filepath.Join(t.TempDir(), "first"), filepath.Join(t.TempDir(), "second")
	texts := newmodel.Texts([]string{"the river and the stone", "a river"})
	if err := newmodel.Create(t.Context(), first, newmodel.Spec{Static: true, Hidden: 64, MaxLength: 9, Lowercase: true}, texts); err != nil {
		t.Fatal(err)
	}
	tok, err := tokenize.Load(first)
	if err != nil {
		t.Fatal(err)
	}
	if err := newmodel.CreateWith(t.Context(), second, newmodel.Spec{Static: true, Hidden: 64}, tok); err != nil {
		t.Fatal(err)
	}
	for dir, length := range map[string]int{first: 9, second: 0} {
		f, err := hfmodel.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if !f.Static() || f.MaxSeqLength != length {
			t.Errorf("static: %t, %d tokens, want %d", f.Static(), f.MaxSeqLength, length)
		}
		c, err := transformer.ParseConfig(f.Config)
		if err != nil || c.Family != transformer.Static {
			t.Errorf("%+v, %v", c, err)
		}
		vs, sum := slices.Concat(rowsOf(t, dir)...), 0.0
		for _, v := range vs {
			sum += v * v
		}
		if d := math.Sqrt(sum / float64(len(vs))); !(math.Abs(d-1) < 0.1) {
			t.Errorf("a standard deviation of %v of %d numbers", d, len(vs))
		}
		var file struct{ Truncation, Padding any }
		data, err := os.ReadFile(filepath.Join(dir, "tokenizer.json"))
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(data, &file); err != nil || (file.Truncation != nil) != (length > 0) || file.Padding != nil {
			t.Errorf("truncation %v, padding %v, %v", file.Truncation, file.Padding, err)
		}
	}
	if err := os.Remove(filepath.Join(first, "tokenizer.json")); err != nil {
		t.Fatal(err)
	}
	if tok, err = tokenize.Load(first); err != nil { // of vocab.txt
		t.Fatal(err)
	}
	if err := newmodel.CreateWith(t.Context(), second, newmodel.Spec{Static: true}, tok); err == nil || !strings.Contains(err.Error(), "transformers writes one beside a vocab.txt") {
		t.Errorf("error %v", err)
	}
}

// Nothing is written where the texts end with an error, or a length is beyond the positions that there are.
func TestNothingWritten(t *testing.T) {
	texts := func(yield func(string, error) bool) {
		_ = yield("the river and the stone", nil) && yield("", errors.New("row 7 is torn"))
	}
	config := []byte(`{"model_type": "bert", "vocab_size": 9, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 32}`)
	for want, s := range map[string]newmodel.Spec{"row 7 is torn": {Hidden: 16, Layers: 1}, "33 tokens is beyond config.json's 32 positions": {Config: config, MaxLength: 33}} {
		dir := filepath.Join(t.TempDir(), "new")
		if err := newmodel.Create(t.Context(), dir, s, texts); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s: a folder is there", want)
		}
	}
}

// Sparse embeddings are not normalized.
func TestSparse(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	if err := newmodel.Create(t.Context(), dir, newmodel.Spec{Sparse: true, Hidden: 16, Layers: 1}, newmodel.Texts([]string{"the river and the stone"})); err != nil {
		t.Fatal(err)
	}
	f, err := hfmodel.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if f.Splade == nil || f.Normalize {
		t.Errorf("%+v, normalized %t", f.Splade, f.Normalize)
	}
	for _, name := range f.Names() { // transformers' of BertForMaskedLM, which has no pooler
		if !strings.HasPrefix(name, "bert.") && !strings.HasPrefix(name, "cls.predictions.") || strings.Contains(name, "pooler") {
			t.Errorf("a tensor is called %s", name)
		}
	}
}

// What can't be meant is an error, whoever makes the folder.
func TestSpecErrors(t *testing.T) {
	tok, err := tokenize.Load(goldens.Path(t, "bert/minilm-tiny"))
	if err != nil {
		t.Fatal(err)
	}
	for want, s := range map[string]newmodel.Spec{
		"texts of -5 tokens": {Static: true, MaxLength: -5}, "hidden size -1": {Static: true, Hidden: -1}, "have no config.json": {Static: true, Config: []byte("{}")},
		"no head for masked language modelling": {Static: true, Sparse: true}, "only static embeddings take any tokenizer": {}, "2 tokens leaves no room": {MaxLength: 2},
	} {
		dir := filepath.Join(t.TempDir(), "new")
		if err := newmodel.CreateWith(t.Context(), dir, s, tok); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s: a folder is there", want)
		}
	}
}
