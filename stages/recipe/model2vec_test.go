package recipe

import (
	"math"
	"path/filepath"
	"strings"
	"testing"

	"contraflow/gpustage/ref"
	"contraflow/io/safetensors"
	"contraflow/stages/embedder"
	"contraflow/stages/newmodel"
)

// Errors about the numbers of a folder of model2vec name what its file has.
func TestModel2vecErrors(t *testing.T) {
	dir := t.TempDir()
	if err := newmodel.Create(t.Context(), dir, newmodel.Spec{Static: true, Hidden: 2}, newmodel.Texts([]string{"a river"})); err != nil {
		t.Fatal(err)
	}
	made, err := embedder.LoadTrainable(dir, ref.New())
	if err != nil {
		t.Fatal(err)
	}
	n := made.Model.Config.Vocab
	vs := make([]float32, 2*n)
	vs[3] = float32(math.NaN())
	table, err := safetensors.FromFloat32s("embeddings", []int{n, 2}, vs)
	if err != nil {
		t.Fatal(err)
	}
	for want, table := range map[string]safetensors.Tensor{
		`tensor "embeddings": element 3 is NaN`:            table,
		`tensor "embeddings": I8 can't be read as float32`: {Name: "embeddings", DType: safetensors.I8, Shape: []int{n, 2}, Data: make([]byte, 2*n)},
		"the tokenizer has ":                               {Name: "embeddings", DType: safetensors.F16, Shape: []int{1, 2}, Data: make([]byte, 4)},
	} {
		if err := safetensors.Write(filepath.Join(dir, "model.safetensors"), []safetensors.Tensor{table}, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := embedder.Load(dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}
