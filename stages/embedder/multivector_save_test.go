package embedder

import (
	"os"
	"path/filepath"
	"testing"

	"contraflow/io/hfmodel"
	"contraflow/io/safetensors"
	"contraflow/testdata/goldens"
)

// A model of tokens' vectors that is saved with a length of its own cuts documents there, whatever its folder said before; saved without, where
// its folder did.
func TestSavedDocumentLength(t *testing.T) {
	dir := copyFolder(t, goldens.Path(t, "bert/minilm-tiny"))
	for name, text := range map[string]string{
		"modules.json": `[{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
			{"idx": 1, "name": "1", "path": "1_Dense", "type": "sentence_transformers.models.Dense"},
			{"idx": 2, "name": "2", "path": "2_MultiVectorMask", "type": "sentence_transformers.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask"}]`,
		"config_sentence_transformers.json": `{"model_type": "MultiVectorEncoder", "similarity_fn_name": "maxsim"}`,
		"sentence_bert_config.json":         `{"query_length": 8, "document_length": 30, "query_expansion": null}`,
		"1_Dense/config.json":               `{"in_features": 32, "out_features": 2, "bias": false, "activation_function": "torch.nn.modules.linear.Identity", "module_input_name": "token_embeddings"}`,
		"2_MultiVectorMask/config.json":     `{}`,
	} {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w, err := safetensors.FromFloat32s("linear.weight", []int{2, 32}, make([]float32, 64))
	if err == nil {
		err = safetensors.Write(filepath.Join(dir, "1_Dense", "model.safetensors"), []safetensors.Tensor{w}, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	m := trainable(t, dir)
	for _, c := range [][2]int{{9, 9}, {0, 30}} { // the second also says that the first did not change what is loaded
		out := filepath.Join(t.TempDir(), "out")
		if err := m.Save(out, Saving{MaxLength: c[0]}); err != nil {
			t.Fatal(err)
		}
		f, err := hfmodel.Open(out)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		e, err := Load(out)
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		if v := f.MultiVector; v == nil || v.DocumentLength != c[1] || v.QueryLength != 8 || e.maxLength != c[1] || e.queryLength != 8 {
			t.Errorf("saved with %d: %+v, cut at %d and %d tokens, want 8 and %d", c[0], v, e.queryLength, e.maxLength, c[1])
		}
	}
}
