package hfmodel

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"contraflow/testdata/goldens"
)

// An embedder that began as a classifier, whose class config.json still has, is none that reranks.
func TestClassifierThatEmbeds(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"config.json", "model.safetensors", "tokenizer.json"} {
		data, err := os.ReadFile(filepath.Join(goldens.Path(t, "rerank/cross"), name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	reranks := func() bool {
		t.Helper()
		f, err := Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		return f.Reranker != nil
	}
	if !reranks() {
		t.Error("a cross-encoder reranks nothing")
	}
	modules := `[{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}, {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]`
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "modules.json"), []byte(modules), 0o600), os.Mkdir(filepath.Join(dir, "1_Pooling"), 0o700),
		os.WriteFile(filepath.Join(dir, "1_Pooling", "config.json"), []byte(`{"word_embedding_dimension": 16, "pooling_mode_mean_tokens": true}`), 0o600)); err != nil {
		t.Fatal(err)
	}
	if reranks() {
		t.Error("an embedder of a classifier's class reranks")
	}
}
