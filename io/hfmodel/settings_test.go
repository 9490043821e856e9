package hfmodel

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/io/safetensors"
)

// Without weights only small files are fetched, and what opens knows all but tensors; whoever wants the weights afterwards gets them.
func TestNoWeights(t *testing.T) {
	noEnvironment(t)
	h := newFakeHub(t)
	t.Setenv("HF_ENDPOINT", h.URL)
	weights := func(s string) bool { return strings.Contains(s, "model.safetensors") && !strings.Contains(s, "index") }
	for _, sharded := range []bool{false, true} {
		t.Setenv("HF_HOME", t.TempDir())
		if sharded {
			h.files[indexFile], h.files["model-00001-of-00001.safetensors"] = `{"weight_map": {"a": "model-00001-of-00001.safetensors"}}`, "far too much"
			delete(h.files, weightsFile)
			weights = func(s string) bool { return strings.Contains(s, "-of-") }
		}
		h.seen()
		dir := mustResolve(t, "org/name", Options{NoWeights: true})
		if seen := h.seen(); slices.ContainsFunc(seen, weights) || !slices.ContainsFunc(seen, func(s string) bool { return strings.HasSuffix(s, "1_Pooling/config.json") }) {
			t.Errorf("asked for %q", seen)
		}
		full, err := Open(dir)
		if !errors.Is(err, ErrNoWeights) {
			t.Errorf("opened with weights: %v, %v", full, err)
		}
		f, err := OpenSettings(dir)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Tensor("a"); !errors.Is(err, safetensors.ErrNoTensor) || f.Pooling == nil || f.ModelType != "bert" || f.MaxSeqLength == 0 {
			t.Errorf("%+v: %v", f, err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		if _, err := resolve(t.Context(), "org/name", Options{Offline: true}); !errors.Is(err, ErrOffline) || !strings.Contains(err.Error(), "not all of it") {
			t.Errorf("offline: %v", err)
		}
		if again := mustResolve(t, "org/name", Options{Offline: true, NoWeights: true}); again != dir {
			t.Errorf("offline without weights: %s", again)
		}
		if sharded {
			break
		}
		h.seen()
		if again := mustResolve(t, "org/name", Options{}); again != dir || !slices.ContainsFunc(h.seen(), weights) {
			t.Errorf("the weights were not fetched into %s", again)
		}
		open(t, dir)
		// Of a newer commit the settings are fetched, and offline the older one has weights still.
		h.commit = commit2
		if newer := mustResolve(t, "org/name", Options{NoWeights: true}); newer == dir {
			t.Error("the newer commit's settings were not fetched")
		}
		if again := mustResolve(t, "org/name", Options{Offline: true}); again != dir {
			t.Errorf("offline: %s", again)
		}
		h.commit = commit1
	}
}

// What is nowhere but in the weights is fetched with them, and an error where they are missing.
func TestSizedByWeights(t *testing.T) {
	static := &Folder{ModelType: StaticType, Modules: []Module{{Type: "sentence_transformers.models.StaticEmbedding"}}}
	listed := []string{"modules.json", "tokenizer.json", weightsFile}
	files, err := static.neededFiles(listed, true)
	if err != nil || !slices.Contains(files, weightsFile) {
		t.Errorf("%q: %v", files, err)
	}
	stanford := &Folder{}
	if files, err := stanford.neededFiles([]string{"config.json", metadataFile, weightsFile}, true); err != nil || !slices.Contains(files, weightsFile) {
		t.Errorf("%q: %v", files, err)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{"modules.json": `[{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.StaticEmbedding"}]`, "tokenizer.json": "{}"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := OpenSettings(dir); !errors.Is(err, ErrNoWeights) {
		t.Errorf("opened without its sizes: %v", err)
	}
}

// TestPoolingKeys: of a pooling's two keys for its dimension the one that sentence-transformers writes since 6 counts.
func TestPoolingKeys(t *testing.T) {
	for _, text := range []string{`{"embedding_dimension": 4, "word_embedding_dimension": 8}`, `{"word_embedding_dimension": 8, "embedding_dimension": 4}`, `{"word_embedding_dimension": 4}`} {
		o, err := parseObject([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if p, err := parsePooling(o); err != nil || p.Dimension != 4 {
			t.Errorf("%s: %+v, %v", text, p, err)
		}
	}
}
