package newmodel_test

import (
	"encoding/json"
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
