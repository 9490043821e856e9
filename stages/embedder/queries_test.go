package embedder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"contraflow/gpustage/cpu"
	"contraflow/io/dataset"
	"contraflow/io/hfmodel"
	"contraflow/io/safetensors"
	"contraflow/stages/transformer"
	"contraflow/tokenize"
)

// weighedFolder is a SparseEncoder whose documents are those of testdata/golden/splade/encoder, and whose queries are weights of tokens, as sentence-transformers
// writes it, or as OpenSearch's models are, with the transformer in the folder itself. The weights are (1 + id) / 64.
func weighedFolder(t testing.TB, whole bool) (dir string, weights []float32) {
	t.Helper()
	golden, _, _ := sparseGolden(t)
	dir = t.TempDir()
	document, pooling := "document_0_Transformer", "document_1_SpladePooling"
	if whole {
		document = ""
	}
	err := os.CopyFS(filepath.Join(dir, document), os.DirFS(golden))
	for i := range 120 {
		weights = append(weights, float32(1+i)/64)
	}
	put := func(name, text string) {
		if err == nil {
			if err = os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o777); err == nil {
				err = os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666)
			}
		}
	}
	if err == nil {
		err = os.Rename(filepath.Join(dir, document, "1_SpladePooling"), filepath.Join(dir, pooling))
	}
	put("modules.json", `[{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.router.Router"}]`)
	put("config_sentence_transformers.json", `{"model_type": "SparseEncoder", "prompts": {"query": "", "document": ""}, "default_prompt_name": null, "similarity_fn_name": null}`)
	put("router_config.json", fmt.Sprintf(`{"types": {"query_0_SparseStaticEmbedding": "sentence_transformers.sparse_encoder.modules.sparse_static_embedding.SparseStaticEmbedding",
		%q: "sentence_transformers.base.modules.transformer.Transformer", %q: "sentence_transformers.sparse_encoder.modules.splade_pooling.SpladePooling"},
		"structure": {"query": ["query_0_SparseStaticEmbedding"], "document": [%q, %q]}, "parameters": {"default_route": "document", "allow_empty_key": true, "route_mappings": {}}}`, document, pooling, document, pooling))
	put("query_0_SparseStaticEmbedding/config.json", `{"frozen": true}`)
	put("query_0_SparseStaticEmbedding/tokenizer_config.json", `{"model_max_length": 7}`)
	if err == nil {
		err = copyFile(filepath.Join(golden, "tokenizer.json"), filepath.Join(dir, "query_0_SparseStaticEmbedding", "tokenizer.json"))
	}
	if err == nil {
		var x safetensors.Tensor
		if x, err = safetensors.FromFloat32s("weight", []int{120}, weights); err == nil {
			err = safetensors.Write(filepath.Join(dir, "query_0_SparseStaticEmbedding", "model.safetensors"), []safetensors.Tensor{x}, nil)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir, weights
}

// Queries have the weights of their tokens, without special ones and at most so many as their own tokenizer says, and documents what the transformer gives,
// of folders of both forms and of what is saved of them; pairs and rankings compare the one with the other.
func TestWeighed(t *testing.T) {
	ctx := context.Background()
	golden, g, texts := sparseGolden(t)
	tok, err := tokenize.Load(golden)
	if err != nil {
		t.Fatal(err)
	}
	texts = slices.Clone(texts)
	for _, whole := range []bool{false, true} {
		dir, weights := weighedFolder(t, whole)
		want := make([][]float32, len(texts))
		for i, text := range texts {
			want[i] = make([]float32, len(weights))
			ids := tok.Encode(text, 0)
			ids = ids[1 : len(ids)-1] // [CLS] and [SEP]
			for _, id := range ids[:min(7, len(ids))] {
				want[i][id] = weights[id]
			}
		}
		check := func(what, dir string) {
			t.Helper()
			e, err := Load(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			queries, err := e.EmbedPrompt(ctx, "query", texts)
			if err != nil {
				t.Fatal(err)
			}
			docs, err := e.EmbedPrompt(ctx, "document", texts)
			if err != nil {
				t.Fatal(err)
			}
			for i := range want {
				if !slices.Equal(queries[i], want[i]) {
					t.Errorf("%s: query %q is %v, want %v", what, texts[i], queries[i], want[i])
				}
			}
			near(t, what, docs, g.F32(t, "embeddings"))
			plain, err := e.Embed(ctx, texts)
			if err != nil || !slices.EqualFunc(plain, docs, slices.Equal[[]float32]) {
				t.Errorf("%s: texts of which nobody says what they are, are no documents: %v", what, err)
			}
			if empty, err := e.EmbedPrompt(ctx, "query", []string{""}); err != nil || slices.ContainsFunc(empty[0], func(v float32) bool { return v != 0 }) {
				t.Errorf("%s: the empty query is %v, %v", what, empty, err)
			}
			n := len(texts) / 2
			both, err := e.Relevance(ctx, "", "", texts[:n], texts[n:2*n])
			if err != nil {
				t.Fatal(err)
			}
			alike, err := e.Similarity(ctx, "", texts[:n], texts[n:2*n])
			if err != nil {
				t.Fatal(err)
			}
			r := &dataset.Retrieval{Queries: texts[:n], Docs: texts}
			for i := range texts {
				r.DocIDs = append(r.DocIDs, fmt.Sprint(i))
			}
			r.QueryIDs = r.DocIDs[:n]
			task, err := e.NewTask(ctx, r, "", "")
			if err != nil {
				t.Fatal(err)
			}
			run, err := e.Rank(ctx, task, 1)
			if err != nil {
				t.Fatal(err)
			}
			for i := range n {
				if w := product(queries[i], docs[n+i]); !(math.Abs(both[i]-w) <= 1e-5*w) {
					t.Errorf("%s: query %d and its document are compared to %v, want %v", what, i, both[i], w)
				}
				if w := product(docs[i], docs[n+i]); !(math.Abs(alike[i]-w) <= 1e-5*w) {
					t.Errorf("%s: texts %d are compared to %v, want those of documents, %v", what, i, alike[i], w)
				}
				best := 0.0
				for _, d := range docs {
					best = max(best, product(queries[i], d))
				}
				if got := float64(run[i][0].Score); !(math.Abs(got-best) <= 1e-5*best) {
					t.Errorf("%s: the best document of query %d has %v, want %v", what, i, got, best)
				}
			}
		}
		check("as it was", dir)
		d, err := cpu.New()
		if err != nil {
			t.Fatal(err)
		}
		m, err := LoadTrainable(dir, d)
		if err != nil {
			t.Fatal(err)
		}
		saved := filepath.Join(t.TempDir(), "saved")
		if err := m.Save(saved, Saving{}); err != nil {
			t.Fatal(err)
		}
		if m.QueryLength() != 7 || m.MaxLength() == 7 || !m.Model.Config.Queries.Frozen {
			t.Errorf("queries are cut at %d, documents at %d, frozen: %t", m.QueryLength(), m.MaxLength(), m.Model.Config.Queries.Frozen)
		}
		m.Close()
		d.Close()
		check("saved", saved)
		for name, want := range map[string]string{
			"query_0_SparseStaticEmbedding/config.json": `"frozen": true`, "query_0_SparseStaticEmbedding/tokenizer_config.json": `"model_max_length": 7`,
			"modules.json": "sentence_transformers.models.Router", "document_1_SpladePooling/config.json": `"max"`, "config.json": "BertForMaskedLM",
			"README.md": "weights of its tokens, without the model", "./README.md": "Maximum length of a query: 7 tokens",
		} {
			if data, err := os.ReadFile(filepath.Join(saved, name)); err != nil || !strings.Contains(string(data), want) {
				t.Errorf("%s: %v\n%s\nwant %s", name, err, data, want)
			}
		}
		// Weights of a file of token to weight are those of a tensor.
		idf := map[string]float32{}
		for id, w := range weights {
			idf[tok.Token(int32(id))] = w
		}
		data, err := json.Marshal(idf)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "idf.json"), data, 0o666)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "query_0_SparseStaticEmbedding", "config.json"), []byte(`{"frozen": true, "path": "some/repository/idf.json"}`), 0o666)
		}
		if err = errors.Join(err, os.Remove(filepath.Join(dir, "query_0_SparseStaticEmbedding", "model.safetensors"))); err != nil {
			t.Fatal(err)
		}
		check("of idf.json", dir)
	}
}

// What a Router may have besides is refused by name.
func TestWeighedErrors(t *testing.T) {
	replace := func(file, from, to string) func(string) error {
		return func(dir string) error {
			file := filepath.Join(dir, file)
			data, err := os.ReadFile(file)
			if err != nil || !strings.Contains(string(data), from) {
				return fmt.Errorf("%s has no %q: %v", file, from, err)
			}
			return os.WriteFile(file, []byte(strings.Replace(string(data), from, to, 1)), 0o666)
		}
	}
	query := "query_0_SparseStaticEmbedding/"
	for name, x := range map[string]struct {
		change func(dir string) error
		wants  []string
	}{
		"another route":     {replace("router_config.json", `"query": [`, `"image": [`), []string{"router_config.json", `"document" "image"`}},
		"another default":   {replace("router_config.json", `"default_route": "document"`, `"default_route": "query"`), []string{"default_route", "for_query_document"}},
		"no default":        {replace("router_config.json", `"default_route": "document"`, `"default_route": null`), []string{"there is no default_route"}},
		"none named":        {replace("router_config.json", `"default_route": "document", `, ``), []string{"there is no default_route"}},
		"mappings":          {replace("router_config.json", `"route_mappings": {}`, `"route_mappings": {"('query', 'text')": "query"}`), []string{"route_mappings"}},
		"outside":           {replace("router_config.json", `"query": ["query_0`, `"query": ["../query_0`), []string{"router_config.json", "query_0"}},
		"no type":           {replace("router_config.json", `"document_1_SpladePooling": "`, `"document_2": "`), []string{"document_1_SpladePooling", "no type"}},
		"dense queries":     {replace("router_config.json", `sparse_static_embedding.SparseStaticEmbedding`, `static_embedding.StaticEmbedding`), []string{"[StaticEmbedding]"}},
		"nothing pools":     {replace("router_config.json", `splade_pooling.SpladePooling`, `pooling.Pooling`), []string{"[Transformer, Pooling]", "SpladePooling"}},
		"no config":         {func(dir string) error { return os.Remove(filepath.Join(dir, "router_config.json")) }, []string{"config.json"}},
		"no weights":        {func(dir string) error { return os.Remove(filepath.Join(dir, query, "model.safetensors")) }, []string{query[:len(query)-1], "model.safetensors"}},
		"a file not there":  {replace(query+"config.json", `true`, `true, "path": "a/b/idf.json"`), []string{"a/b/idf.json", "put it there"}},
		"another tokenizer": {replace(query+"tokenizer.json", `"##ing"`, `"##ign"`), []string{"tokenizer of queries", "documents"}},
		"fewer tokens": {func(dir string) error { // of both tokenizers than the model has
			for _, at := range []string{query, "document_0_Transformer/"} {
				file := filepath.Join(dir, at, "tokenizer.json")
				data, err := os.ReadFile(file)
				if err != nil {
					return err
				}
				less := regexp.MustCompile(`,\s*"[^"]+":\s*119\b`).ReplaceAll(data, nil)
				if err := os.WriteFile(file, less, 0o666); err != nil || len(less) == len(data) {
					return fmt.Errorf("%s has no token 119: %v", file, err)
				}
			}
			return nil
		}, []string{"have 119 features", "120"}},
		"no tokenizer.json": {func(dir string) error {
			err := os.Remove(filepath.Join(dir, query, "tokenizer.json"))
			return errors.Join(err, os.WriteFile(filepath.Join(dir, query, "vocab.txt"), []byte("a"), 0o666), os.WriteFile(filepath.Join(dir, "document_0_Transformer", "vocab.txt"), []byte("b"), 0o666))
		}, []string{"tokenizer of queries", "documents"}},
		"other weights": {func(dir string) error {
			x, err := safetensors.FromFloat32s("weight", []int{119}, make([]float32, 119))
			if err != nil {
				return err
			}
			return safetensors.Write(filepath.Join(dir, query, "model.safetensors"), []safetensors.Tensor{x}, nil)
		}, []string{transformer.QueryWeight, "[119]", "[120]"}},
	} {
		dir, _ := weighedFolder(t, false)
		if err := x.change(dir); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		_, err := Load(dir)
		for _, want := range x.wants {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", name, err, want)
			}
		}
	}
	id := func(token string) (int32, bool) { return 1, token == "a" }
	file := filepath.Join(t.TempDir(), "idf.json")
	for text, want := range map[string]string{
		`{"a": 1, "zz": 2}`: `"zz" is no token`, `[1]`: "token to weight", `{}`: "no weights", `{"a": 1e99}`: "finite", `{"a": null}`: `"a" is null`,
	} {
		if err := os.WriteFile(file, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		if _, err := hfmodel.TokenWeights(file, 2, id); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// Queries that nothing cuts are saved so, beside documents that are cut; their tokenizer may have no special tokens, which they are read without.
func TestWeighedUncut(t *testing.T) {
	dir, _ := weighedFolder(t, true)
	const query = "query_0_SparseStaticEmbedding"
	file := filepath.Join(dir, query, "tokenizer.json")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	from, to := strings.Index(string(data), `"post_processor"`), strings.Index(string(data), `"decoder"`)
	if from < 0 || to < from {
		t.Fatalf("no special tokens before a decoder in %s", data)
	}
	err = os.WriteFile(file, []byte(string(data[:from])+`"post_processor": null, `+string(data[to:])), 0o666)
	for at, text := range map[string]string{query: `{}`, "": `{"model_max_length": 20}`} {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, at, "tokenizer_config.json"), []byte(text), 0o666))
	}
	d, errOpen := cpu.New()
	if err = errors.Join(err, errOpen); err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	saved := filepath.Join(t.TempDir(), "saved")
	for _, dir := range []string{dir, saved} {
		m, err := LoadTrainable(dir, d)
		if err != nil {
			t.Fatal(err)
		}
		if m.QueryLength() != 0 || m.MaxLength() != 20 {
			t.Errorf("%s: queries are cut at %d tokens, documents at %d", dir, m.QueryLength(), m.MaxLength())
		}
		shorter := filepath.Join(t.TempDir(), "shorter") // both
		if err = m.Save(shorter, Saving{MaxLength: 9}); err == nil {
			short, errLoad := LoadTrainable(shorter, d)
			if err = errLoad; err == nil && (short.QueryLength() != 9 || short.MaxLength() != 9) {
				t.Errorf("saved to be cut at 9 tokens, queries are at %d, documents at %d", short.QueryLength(), short.MaxLength())
			}
			err = errors.Join(err, short.Close())
		}
		if dir != saved {
			err = errors.Join(err, m.Save(saved, Saving{}))
		}
		if err = errors.Join(err, m.Close()); err != nil {
			t.Fatal(err)
		}
	}
	// There is no config.json beside the queries' tokenizer by which transformers would find its class.
	if data, err = os.ReadFile(filepath.Join(saved, query, "tokenizer_config.json")); err != nil || !strings.Contains(string(data), `"tokenizer_class": "PreTrainedTokenizerFast"`) {
		t.Errorf("tokenizer_config.json of queries: %v, %s", err, data)
	}
}
