package newmodel_test

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/io/hfmodel"
	"contraflow/stages/newmodel"
	"contraflow/stages/transformer"
	"contraflow/tokenize"
)

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
