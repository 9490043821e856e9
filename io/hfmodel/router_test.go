package hfmodel

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"contraflow/io/safetensors"
	"contraflow/io/torchfile"
	"contraflow/testdata/goldens"
)

// Tokenizers of queries and documents are the same where all but what says how texts are padded, cut and framed is.
func TestSameTokenizer(t *testing.T) {
	const documents = `{"normalizer": {"a": 1}, "model": {"b": 2}, "padding": null}`
	for queries, same := range map[string]bool{
		documents: true, `{"normalizer": {"a":1}, "model": {"b":2}, "padding": {"x": 1}, "truncation": 5, "post_processor": 3}`: true,
		`{"normalizer": {"a": 3}, "model": {"b": 2}}`: false, `{"normalizer": {"a": 1}, "model": {"b": 3}}`: false, `{"normalizer": {"a": 1}}`: false, `{`: false,
	} {
		f, dir := &Folder{TokenizerDir: t.TempDir()}, t.TempDir()
		put(t, f.TokenizerDir, "tokenizer.json", documents)
		put(t, dir, "tokenizer.json", queries)
		if err := f.sameTokenizer(dir); (err == nil) != same || err != nil && !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: %v", queries, err)
		}
	}
	f, dir := &Folder{TokenizerDir: t.TempDir()}, t.TempDir() // of old ones the vocabulary is a file of its own
	for name, text := range map[string]string{"vocab.txt": "a\nb\n", "tokenizer_config.json": "{}"} {
		put(t, f.TokenizerDir, name, text)
		put(t, dir, name, text)
	}
	if err := f.sameTokenizer(dir); err != nil {
		t.Error(err)
	}
	put(t, dir, "vocab.txt", "a\nc\n")
	if err := f.sameTokenizer(dir); err == nil {
		t.Error("two vocabularies are one")
	}
}

// A Router's modules are fetched from the hub, those of queries too, or a file of token to weight in their place; one of other routes is refused before
// anything large is.
func TestHubRouter(t *testing.T) {
	noEnvironment(t)
	const query, sparse = "query_0_SparseStaticEmbedding", "sentence_transformers.sparse_encoder.models."
	splade := filepath.Join("..", "..", "testdata", "golden", "splade", "encoder")
	for _, idf := range []bool{false, true} {
		h := newFakeHub(t)
		h.files = map[string]string{"README.md": ""}
		add := func(as, file string) {
			data, err := os.ReadFile(filepath.Join(splade, file))
			if err != nil {
				t.Fatal(err)
			}
			h.files[as] = string(data)
		}
		for _, name := range []string{"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "sentence_bert_config.json"} {
			add(name, name)
		}
		add("document_1_SpladePooling/config.json", "1_SpladePooling/config.json")
		add(query+"/tokenizer.json", "tokenizer.json")
		h.files["modules.json"] = `[{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Router"}]`
		h.files[routerFile] = `{"types": {"` + query + `": "` + sparse + `SparseStaticEmbedding", "": "` + sparse + `MLMTransformer", "document_1_SpladePooling": "` + sparse + `SpladePooling"},
			"structure": {"query": ["` + query + `"], "document": ["", "document_1_SpladePooling"]}, "parameters": {"default_route": "document", "allow_empty_key": true}}`
		h.files[query+"/config.json"] = `{"frozen": true}`
		if idf {
			h.files[query+"/config.json"], h.files["idf.json"] = `{"frozen": true, "path": "org/name/idf.json"}`, `{"the": 2}`
		} else {
			h.files[query+"/model.safetensors"] = h.files["model.safetensors"]
		}
		f := open(t, mustResolve(t, "org/name", Options{Endpoint: h.URL, CacheDir: t.TempDir()}))
		if f.Queries == nil || !f.Queries.Frozen || f.Splade == nil || (f.Queries.WeightsFile() != "") != idf || f.TransformerDir != f.Dir {
			t.Errorf("idf.json %t: %+v", idf, f.Queries)
		}
		files := f.Settings()
		for name, want := range map[string]bool{routerFile: true, query + "/config.json": true, query + "/tokenizer.json": true, "idf.json": idf} {
			if _, ok := files[name]; ok != want {
				t.Errorf("idf.json %t: the settings have %s: %t", idf, name, ok)
			}
		}
		h.files[routerFile] = strings.ReplaceAll(h.files[routerFile], `"query":`, `"image":`)
		if _, err := resolve(t.Context(), "org/name", Options{Endpoint: h.URL, CacheDir: t.TempDir()}); err == nil || !strings.Contains(err.Error(), `routes ["document" "image"]`) {
			t.Errorf("another route: %v", err)
		}
	}
}

// The weights of queries may be in pytorch_model.bin, if there are no safetensors; with neither the error names both. An adapter of such a model is refused.
func TestQueriesWeights(t *testing.T) {
	const query, sparse = "query_0_SparseStaticEmbedding", "sentence_transformers.sparse_encoder.models."
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(goldens.Path(t, "splade/encoder"))); err != nil {
		t.Fatal(err)
	}
	tokenizer, err := os.ReadFile(filepath.Join(dir, "tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	put(t, dir, "modules.json", `[{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Router"}]`)
	put(t, dir, routerFile, `{"types": {"`+query+`": "`+sparse+`SparseStaticEmbedding", "": "`+sparse+`MLMTransformer", "1_SpladePooling": "`+sparse+`SpladePooling"},
		"structure": {"query": ["`+query+`"], "document": ["", "1_SpladePooling"]}, "parameters": {"default_route": "document", "allow_empty_key": true}}`)
	put(t, dir, query+"/config.json", `{"frozen": true}`)
	put(t, dir, query+"/tokenizer.json", string(tokenizer))
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), query+" has neither model.safetensors nor pytorch_model.bin, with the weights of queries' tokens") {
		t.Errorf("no weights: %v", err)
	}
	want := []float32{3, -1, 0.5}
	weight, err := safetensors.FromFloat32s("weight", []int{len(want)}, want)
	if err != nil {
		t.Fatal(err)
	}
	data, err := torchfile.Encode("pytorch_model", []safetensors.Tensor{weight})
	if err != nil {
		t.Fatal(err)
	}
	put(t, dir, query+"/pytorch_model.bin", string(data))
	x, err := open(t, dir).Tensor(QueryTensor)
	if err != nil || !bytes.Equal(x.Data, weight.Data) {
		t.Errorf("%v: %v", x, err)
	}
	plain := copyAdapter(t, "bert-qv", func(c map[string]any) { c["base_model_name_or_path"] = dir }) // without the modules
	if _, err := Open(plain); err == nil || !strings.Contains(err.Error(), "a LoRA adapter behind a Router is not supported: merge it") {
		t.Errorf("an adapter of it: %v", err)
	}
	adapted := copyAdapter(t, "bert-qv", nil)
	for _, name := range []string{adapterConfigFile, AdapterWeights} {
		data, err := os.ReadFile(filepath.Join(adapted, name))
		if err != nil {
			t.Fatal(err)
		}
		put(t, dir, name, string(data))
	}
	for _, name := range []string{"config.json", "model.safetensors"} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "a LoRA adapter behind a Router is not supported: merge it") {
		t.Errorf("an adapter: %v", err)
	}
}
