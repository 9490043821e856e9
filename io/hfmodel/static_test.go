package hfmodel

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"contraflow/io/safetensors"
)

// staticFolder is one of static embeddings, with these tensors.
func staticFolder(t *testing.T, path string, tensors ...safetensors.Tensor) string {
	t.Helper()
	dir := t.TempDir()
	put(t, dir, "modules.json", `[{"idx": 0, "name": "0", "path": "`+path+`", "type": "sentence_transformers.models.StaticEmbedding"},
		{"idx": 1, "name": "1", "path": "1_Normalize", "type": "sentence_transformers.models.Normalize"}]`)
	put(t, dir, "config_sentence_transformers.json", `{"prompts": {"query": "q: "}, "default_prompt_name": null, "mine": 7}`)
	put(t, dir, filepath.ToSlash(filepath.Join(path, "tokenizer.json")), `{"truncation": null, "model": {}}`)
	if err := safetensors.Write(filepath.Join(dir, path, weightsFile), tensors, nil); err != nil {
		t.Fatal(err)
	}
	return dir
}

func floatsOf(t *testing.T, name string, shape []int, vs ...float32) safetensors.Tensor {
	t.Helper()
	x, err := safetensors.FromFloat32s(name, shape, vs)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func numbers(kind safetensors.DType, name string, vs ...float64) safetensors.Tensor {
	x := safetensors.Tensor{Name: name, DType: kind, Shape: []int{len(vs)}}
	for _, v := range vs {
		switch kind {
		case safetensors.F64:
			x.Data = binary.LittleEndian.AppendUint64(x.Data, math.Float64bits(v))
		case safetensors.I64:
			x.Data = binary.LittleEndian.AppendUint64(x.Data, uint64(int64(v)))
		case safetensors.I32:
			x.Data = binary.LittleEndian.AppendUint32(x.Data, uint32(int32(v)))
		}
	}
	return x
}

// Folders of sentence-transformers in the root and in a subfolder, and model2vec's, whose table may have fewer rows than there are tokens.
func TestStatic(t *testing.T) {
	table := []float32{1, 2, 3, 4, 5, 6}
	wide := floatsOf(t, "embedding.weight", []int{3, 2}, table...)
	vec := floatsOf(t, "embeddings", []int{3, 2}, table...)
	for name, x := range map[string]struct {
		path    string
		tensors []safetensors.Tensor
		want    []float32
	}{
		"root":      {"", []safetensors.Tensor{wide}, table},
		"dot":       {".", []safetensors.Tensor{wide}, table},
		"subfolder": {"0_StaticEmbedding", []safetensors.Tensor{wide}, table},
		"model2vec": {".", []safetensors.Tensor{vec}, table},
		"mapping":   {".", []safetensors.Tensor{vec, numbers(safetensors.I64, "mapping", 2, 0, 2, 1)}, []float32{5, 6, 1, 2, 5, 6, 3, 4}},
		"weights":   {".", []safetensors.Tensor{vec, numbers(safetensors.F64, "weights", 0.5, 2, 0.1)}, []float32{0.5, 1, 6, 8, 0.5, float32(6 * 0.1)}},
		"both": {".", []safetensors.Tensor{vec, numbers(safetensors.I32, "mapping", 1, 1), floatsOf(t, "weights", []int{2}, 0.5, 4)},
			[]float32{1.5, 2, 12, 16}},
	} {
		f := open(t, staticFolder(t, x.path, x.tensors...))
		got, err := f.Tensor("embedding.weight")
		if err != nil {
			t.Fatal(name, err)
		}
		vs := make([]float32, got.Len())
		if err := got.Float32s(vs); err != nil || !slices.Equal(vs, x.want) {
			t.Errorf("%s: %v, %v, want %v", name, vs, err, x.want)
		}
		var config map[string]any
		json.Unmarshal(f.Config, &config)
		if want := map[string]any{"model_type": StaticType, "vocab_size": float64(len(x.want) / 2), "hidden_size": 2.0}; !reflect.DeepEqual(config, want) {
			t.Errorf("%s: config %v, want %v", name, config, want)
		}
		if !f.Static() || !f.Normalize || f.Pooling.Mode != Mean || f.Pooling.Dimension != 2 || f.MaxSeqLength != 0 || f.Prompts["query"] != "q: " {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

// What is saved is what sentence-transformers saves, and opens again; keys that nobody here knows are carried over.
func TestSaveStatic(t *testing.T) {
	f := open(t, staticFolder(t, "0_StaticEmbedding", floatsOf(t, "embedding.weight", []int{3, 2}, 1, 2, 3, 4, 5, 6)))
	dir := filepath.Join(t.TempDir(), "model")
	for range 2 {
		if err := Save(dir, specOf(t, f)); err != nil {
			t.Fatal(err)
		}
	}
	var names []string
	for _, file := range tree(t, dir) {
		names = append(names, strings.Trim(strings.Fields(file)[0], `"`))
	}
	if want := []string{"README.md", "config_sentence_transformers.json", "model.safetensors", "modules.json", "tokenizer.json"}; !slices.Equal(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
	g := open(t, dir)
	if !g.Static() || !g.Normalize || string(g.Config) != string(f.Config) || g.Prompts["query"] != "q: " {
		t.Errorf("%+v", g)
	}
	var own struct{ Mine int }
	readJSON(t, filepath.Join(dir, "config_sentence_transformers.json"), &own)
	if own.Mine != 7 {
		t.Error("a key is lost")
	}
	if card, _ := os.ReadFile(filepath.Join(dir, "README.md")); !strings.Contains(string(card), "mean of its tokens' vectors, normalized") || strings.Contains(string(card), "Maximum length") {
		t.Errorf("%s", card)
	}
}

// tokenizer.json's truncation, which transformers passes over, is heeded by StaticEmbedding.
func TestStaticTruncation(t *testing.T) {
	dir := staticFolder(t, "", floatsOf(t, "embedding.weight", []int{1, 1}, 1))
	put(t, dir, "tokenizer.json", `{"truncation": {"max_length": 128, "direction": "Right"}}`)
	if f := open(t, dir); f.MaxSeqLength != 128 || !f.LengthGiven {
		t.Errorf("%d tokens", f.MaxSeqLength)
	}
}

func TestBadStatic(t *testing.T) {
	vec := floatsOf(t, "embeddings", []int{2, 2}, 1, 2, 3, 4)
	for want, tensors := range map[string][]safetensors.Tensor{
		"embedding.weight":                           {floatsOf(t, "embedding", []int{2, 2}, 1, 2, 3, 4)},
		"want 2 dimensions":                          {floatsOf(t, "embedding.weight", []int{4}, 1, 2, 3, 4)},
		`"mapping": element 1 is 2, and there are 2`: {vec, numbers(safetensors.I64, "mapping", 0, 2)},
		`"mapping": element 0 is -1`:                 {vec, numbers(safetensors.I64, "mapping", -1)},
		"want whole numbers":                         {vec, numbers(safetensors.F64, "mapping", 1)},
		"a number for each of 2 tokens":              {vec, numbers(safetensors.F64, "weights", 1)},
		"want 1 dimensions":                          {vec, floatsOf(t, "weights", []int{2, 1}, 1, 2)},
	} {
		if _, err := Open(staticFolder(t, "", tensors...)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	dir := staticFolder(t, "", vec)
	put(t, dir, "modules.json", `[{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
		{"idx": 1, "name": "1", "path": "1_S", "type": "sentence_transformers.models.StaticEmbedding"}]`)
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "not the first module") {
		t.Errorf("error %v", err)
	}
}

// A repository without config.json is downloaded, with what belongs to it and nothing else.
func TestDownloadStatic(t *testing.T) {
	noEnvironment(t)
	h := newFakeHub(t)
	dir := staticFolder(t, ".", floatsOf(t, "embeddings", []int{2, 2}, 1, 2, 3, 4))
	h.files = map[string]string{"pytorch_model.onnx": "", "config.json": `{"model_type": "model2vec"}`}
	for _, name := range []string{"modules.json", "tokenizer.json", weightsFile, "config_sentence_transformers.json"} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		h.files[name] = string(data)
	}
	options := Options{Endpoint: h.URL, CacheDir: t.TempDir()}
	f := open(t, mustResolve(t, "org/name", options))
	if !f.Static() || f.Pooling.Dimension != 2 {
		t.Errorf("%+v", f)
	}
	if seen := h.seen(); slices.ContainsFunc(seen, func(s string) bool { return strings.Contains(s, "onnx") }) {
		t.Errorf("asked for %q", seen)
	}
	delete(h.files, "config.json")
	options.CacheDir = t.TempDir()
	open(t, mustResolve(t, "org/name", options))
	options.Offline = true
	open(t, mustResolve(t, "org/name", options)) // all of it is there
}
