package hfmodel

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"contraflow/io/safetensors"
	"contraflow/testdata/goldens"
)

const tokenModule = `{"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}`

// multiVectorFolder is testdata/golden/bert/minilm-tiny as a MultiVectorEncoder, as sentence-transformers 6.2 saves it, with other files by their names.
func multiVectorFolder(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(goldens.Path(t, "bert/minilm-tiny"))); err != nil {
		t.Fatal(err)
	}
	all := map[string]string{
		"modules.json": `[{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"},
			{"idx": 1, "name": "1", "path": "1_Dense", "type": "sentence_transformers.base.modules.dense.Dense"},
			{"idx": 2, "name": "2", "path": "2_MultiVectorMask", "type": "sentence_transformers.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask"},
			{"idx": 3, "name": "3", "path": "3_Normalize", "type": "sentence_transformers.base.modules.normalize.Normalize"}]`,
		"config_sentence_transformers.json": `{"model_type": "MultiVectorEncoder", "prompts": {"query": "ask: ", "document": ""}, "similarity_fn_name": "meanmaxsim", "other": 1}`,
		"sentence_bert_config.json":         `{"transformer_task": "feature-extraction", "query_length": 20, "document_length": 30, "query_expansion": {"strategy": "min", "attend": true, "token": null, "length": 12}}`,
		"1_Dense/config.json":               `{"in_features": 32, "out_features": 3, "bias": false, "activation_function": "torch.nn.modules.linear.Identity", "module_input_name": "token_embeddings"}`,
		"2_MultiVectorMask/config.json":     `{"skiplist_words": [".", ","], "skiplist_tasks": "document", "keep_only_token_ids": null}`,
		"3_Normalize/config.json":           tokenModule,
	}
	maps.Copy(all, files)
	for name, text := range all {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if text == "" {
			os.Remove(path)
		} else if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w, err := safetensors.FromFloat32s("linear.weight", []int{3, 32}, make([]float32, 96))
	if err != nil {
		t.Fatal(err)
	}
	if err := safetensors.Write(filepath.Join(dir, "1_Dense", weightsFile), []safetensors.Tensor{w}, nil); err != nil {
		t.Fatal(err)
	}
	return dir
}

// pylateFiles make of it a folder of PyLate's.
func pylateFiles(settings string) map[string]string {
	return map[string]string{
		"modules.json": `[{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
			{"idx": 1, "name": "1", "path": "1_Dense", "type": "pylate.models.Dense.Dense"}]`,
		"1_Dense/config.json":               `{"in_features": 32, "out_features": 3, "bias": false, "activation_function": "torch.nn.modules.linear.Identity", "use_residual": false}`,
		"sentence_bert_config.json":         `{"max_seq_length": 31, "do_lower_case": false}`,
		"config_sentence_transformers.json": `{"model_type": "ColBERT", "prompts": {"document": "[D] x"}, "query_prefix": "[Q] ", "document_prefix": "[D] "` + settings + `}`,
	}
}

// What folders of each kind say, and that a saved one says the same.
func TestMultiVectorFolders(t *testing.T) {
	ours := MultiVector{QueryLength: 20, DocumentLength: 30, Expansion: &Expansion{Strategy: "min", Attend: true, Length: 12}, Skiplist: []string{".", ","}, SkipTasks: []string{"document"}}
	pylate := MultiVector{DocumentLength: 40, Expansion: &Expansion{Strategy: "fixed", Length: 24}, Skiplist: Punctuation(), SkipTasks: []string{"document"}, Prefixes: map[string]string{"query": "[Q] ", "document": "[D] "}, legacy: true}
	without, attends := pylate, pylate
	without.Expansion, without.QueryLength, without.Skiplist = nil, 24, []string{"x"}
	attends.Expansion = &Expansion{Strategy: "fixed", Attend: true, Length: 32}
	token := ours
	token.Expansion = &Expansion{Strategy: "fixed", Attend: true, Token: "[SEP]", Length: 7}
	token.QueryLength, token.DocumentLength, token.Skiplist = 0, 0, nil
	nothing := MultiVector{SkipTasks: []string{"document"}}
	for name, c := range map[string]struct {
		files   map[string]string
		want    MultiVector
		prompts map[string]string
	}{
		"sentence-transformers'": {nil, ours, map[string]string{"query": "ask: ", "document": ""}},
		"without more":           {map[string]string{"sentence_bert_config.json": `{"query_expansion": null}`, "2_MultiVectorMask/config.json": `{}`}, nothing, map[string]string{"query": "ask: ", "document": ""}},
		"filled with a token":    {map[string]string{"sentence_bert_config.json": `{"query_expansion": {"strategy": "fixed", "attend": true, "token": "[SEP]", "length": 7}}`, "2_MultiVectorMask/config.json": `{}`}, token, map[string]string{"query": "ask: ", "document": ""}},
		"PyLate's":               {pylateFiles(`, "query_length": 24, "document_length": 40, "attend_to_expansion_tokens": false`), pylate, map[string]string{"query": "[Q] ", "document": "[D] x"}},
		"not expanded":           {pylateFiles(`, "query_length": 24, "document_length": 40, "do_query_expansion": false, "skiplist_words": ["x"]`), without, map[string]string{"query": "[Q] ", "document": "[D] x"}},
		"attended to the mask":   {pylateFiles(`, "document_length": 40, "attend_to_mask_tokens": true`), attends, map[string]string{"query": "[Q] ", "document": "[D] x"}},
		"attended":               {pylateFiles(`, "document_length": 40, "attend_to_expansion_tokens": true`), attends, map[string]string{"query": "[Q] ", "document": "[D] x"}},
	} {
		f := open(t, multiVectorFolder(t, c.files))
		if !reflect.DeepEqual(*f.MultiVector, c.want) {
			t.Errorf("%s: %+v, want %+v", name, *f.MultiVector, c.want)
		}
		if !maps.Equal(f.Prompts, c.prompts) || !f.Normalize || len(f.Dense) != 1 || f.Dense[0].Out != 3 || f.Pooling != nil {
			t.Errorf("%s: prompts %q, normalized %v, dense %+v, pooling %v", name, f.Prompts, f.Normalize, f.Dense, f.Pooling)
		}
		var tensors []safetensors.Tensor
		for _, n := range append(f.Names(), "1_Dense.linear.weight") {
			x, err := f.Tensor(n)
			if err != nil {
				t.Fatal(err)
			}
			tensors = append(tensors, x)
		}
		out := filepath.Join(t.TempDir(), "out")
		if err := Save(out, Spec{
			Config: f.Config, Tensors: tensors, MultiVector: f.MultiVector, Dense: f.Dense, Normalize: true, MaxSeqLength: 33, Prompts: f.Prompts, Similarity: "maxsim", Base: f, Tokenizer: f.CopyTokenizer,
		}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		g := open(t, out)
		c.want.legacy = false
		if !reflect.DeepEqual(*g.MultiVector, c.want) || !maps.Equal(g.Prompts, c.prompts) || !g.Normalize || len(g.Dense) != 1 || g.MaxSeqLength != 33 || g.Similarity != "maxsim" {
			t.Errorf("%s: saved it says %+v, %q, %v, %+v", name, *g.MultiVector, g.Prompts, g.Normalize, g.Dense)
		}
		var kinds []string
		for _, m := range g.Modules {
			kinds = append(kinds, m.Kind())
		}
		if !slices.Equal(kinds, []string{"Transformer", "Dense", "MultiVectorMask", "Normalize"}) {
			t.Errorf("%s: saved with %q", name, kinds)
		}
		var config map[string]any
		data, err := os.ReadFile(filepath.Join(out, modelFile))
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(data, &config); err != nil || config["model_type"] != multiVector || config["skiplist_words"] != nil || config["do_query_expansion"] != nil || (name == "sentence-transformers'") != (config["other"] != nil && config["query_prefix"] == nil) && name != "without more" && name != "filled with a token" {
			t.Errorf("%s: %s is %s", name, modelFile, data)
		}
		card, err := os.ReadFile(filepath.Join(out, "README.md"))
		if err != nil || !strings.Contains(string(card), "from sentence_transformers import MultiVectorEncoder") || strings.Contains(string(card), "Pooling") {
			t.Errorf("%s: %v, the card is\n%s", name, err, card)
		}
	}
}

// A folder of Stanford's ColBERT has its projection among the encoder's weights.
func TestStanford(t *testing.T) {
	config := `{"model_type": "bert", "hidden_size": 4, "architectures": ["HF_ColBERT"], "max_position_embeddings": 64}`
	head, err := safetensors.FromFloat32s("linear.weight", []int{2, 4}, []float32{1, 2, 3, 4, 5, 6, 7, 8})
	if err != nil {
		t.Fatal(err)
	}
	write := func(dir, name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := MultiVector{Expansion: &Expansion{Strategy: "fixed", Length: 32}, Skiplist: Punctuation(), SkipTasks: []string{"document"}, Prefixes: map[string]string{"query": "[unused0] ", "document": "[unused1] "}}
	for metadata, change := range map[string]func(m *MultiVector){
		"": func(*MultiVector) {},
		`{"doc_maxlen": 180, "query_maxlen": 24, "attend_to_mask_tokens": true, "mask_punctuation": false, "query_token_id": "[Q]"}`: func(m *MultiVector) {
			m.DocumentLength, m.Skiplist, m.Expansion, m.Prefixes = 180, nil, &Expansion{Strategy: "fixed", Attend: true, Length: 24}, map[string]string{"query": "[Q] ", "document": "[unused1] "}
		},
	} {
		dir := t.TempDir()
		write(dir, "config.json", config)
		if err := safetensors.Write(filepath.Join(dir, weightsFile), []safetensors.Tensor{head}, nil); err != nil {
			t.Fatal(err)
		}
		if metadata != "" {
			write(dir, metadataFile, metadata)
		}
		m := want
		change(&m)
		f := open(t, dir)
		if !reflect.DeepEqual(*f.MultiVector, m) || f.Prompts["query"] != m.Prefixes["query"] || !f.Normalize {
			t.Errorf("%s: %+v, %q, want %+v", metadata, *f.MultiVector, f.Prompts, m)
		}
		x, err := f.Tensor("1_Dense.linear.weight")
		if err != nil || len(f.Dense) != 1 || f.Dense[0].In != 4 || f.Dense[0].Out != 2 || x.Shape[0] != 2 {
			t.Errorf("dense %+v, %v, %v", f.Dense, x, err)
		}
		if path := f.Settings()[metadataFile]; path != filepath.Join(dir, metadataFile) {
			t.Errorf("its metadata, among what decides what it computes, is %q", path)
		}
	}
}

// What is not supported is named.
func TestMultiVectorErrors(t *testing.T) {
	modules := func(middle string) string {
		return `[{"path": "", "type": "sentence_transformers.models.Transformer"}, ` + middle + `]`
	}
	for want, files := range map[string]map[string]string{
		"HierarchicalTokenPooling modules are not supported yet":          {"modules.json": modules(`{"path": "1_P", "type": "sentence_transformers.multi_vector_encoder.modules.HierarchicalTokenPooling"}`)},
		"a MultiVectorEncoder pools nothing":                              {"modules.json": modules(`{"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}`)},
		"it is of a MultiVectorEncoder, which config_sentence":            {"config_sentence_transformers.json": `{}`, "modules.json": modules(`{"path": "2_MultiVectorMask", "type": "sentence_transformers.x.MultiVectorMask"}`)},
		`module_input_name "sentence_embedding" is not supported; token_`: {"3_Normalize/config.json": `{"module_input_name": "sentence_embedding"}`},
		"without it the module is of a text's embedding":                  {"3_Normalize/config.json": ""},
		"keep_only_token_ids is not supported":                            {"2_MultiVectorMask/config.json": `{"keep_only_token_ids": [1]}`},
		`skiplist_tasks "both" is not supported`:                          {"2_MultiVectorMask/config.json": `{"skiplist_tasks": ["both"]}`},
		`module_input_name "sentence_embedding" with module_output_name`:  {"1_Dense/config.json": `{"in_features": 32, "out_features": 3, "module_input_name": "sentence_embedding"}`},
		"in_features 33, but what comes before it gives 32":               {"1_Dense/config.json": `{"in_features": 33, "out_features": 3, "bias": false, "activation_function": "torch.nn.modules.linear.Identity"}`},
		"query_expansion has the length 0":                                {"sentence_bert_config.json": `{"query_expansion": {"strategy": "fixed"}}`},
		`the strategy "max"`:                                              {"sentence_bert_config.json": `{"query_expansion": {"strategy": "max", "length": 4}}`},
		"query_length is 5, and query_expansion has the length 12":        {"sentence_bert_config.json": `{"query_length": 5, "query_expansion": {"strategy": "min", "length": 12}}`},
		"code of its own": {"modules.json": modules(`{"path": "1_Dense", "type": "pylate.models.Other"}`)},
	} {
		f, err := Open(multiVectorFolder(t, files))
		if err == nil {
			f.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// The prefixes of a folder without prompts are its prompts.
func TestPrefixesAlone(t *testing.T) {
	files := pylateFiles("")
	files[modelFile] = `{"model_type": "ColBERT", "query_prefix": "[Q] ", "document_prefix": "[D] "}`
	if got := open(t, multiVectorFolder(t, files)).Prompts; !maps.Equal(got, map[string]string{"query": "[Q] ", "document": "[D] "}) {
		t.Errorf("prompts %q", got)
	}
}

// Words may be left out of queries as well, or of them alone.
func TestSkipTasks(t *testing.T) {
	for tasks, want := range map[string]string{`"document"`: "document", `"query"`: "query", `["query", "document"]`: "query document", `null`: "document", `[]`: ""} {
		f := open(t, multiVectorFolder(t, map[string]string{"2_MultiVectorMask/config.json": `{"skiplist_words": ["."], "skiplist_tasks": ` + tasks + `}`}))
		if got := strings.Join(f.MultiVector.SkipTasks, " "); got != want {
			t.Errorf("skiplist_tasks %s are %q, want %q", tasks, got, want)
		}
	}
}

// A MultiVectorEncoder of the hub is downloaded with all that says how it reads.
func TestMultiVectorHub(t *testing.T) {
	noEnvironment(t)
	dir := multiVectorFolder(t, nil)
	h := newFakeHub(t)
	h.files = map[string]string{}
	for _, name := range []string{
		"config.json", "vocab.txt", "tokenizer_config.json", "modules.json", "config_sentence_transformers.json", "sentence_bert_config.json", "1_Dense/config.json", "2_MultiVectorMask/config.json",
		"3_Normalize/config.json", "1_Dense/model.safetensors", "model.safetensors",
	} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		h.files[name] = string(data)
	}
	f := open(t, mustResolve(t, "org/name", Options{Endpoint: h.URL, CacheDir: t.TempDir()}))
	if f.MultiVector == nil || len(f.MultiVector.Skiplist) != 2 || len(f.Dense) != 1 {
		t.Errorf("%+v, %+v", f.MultiVector, f.Dense)
	}
}

// An adapter as PEFT saves it is of the kind of model that its base is.
func TestMultiVectorAdapter(t *testing.T) {
	base := multiVectorFolder(t, nil)
	f := open(t, copyAdapter(t, "bert-qv", func(config map[string]any) { config["base_model_name_or_path"] = base }))
	if f.MultiVector == nil || f.MultiVector.QueryLength != 20 || len(f.Dense) != 1 || f.Pooling != nil {
		t.Errorf("%+v, dense %+v, pooling %v", f.MultiVector, f.Dense, f.Pooling)
	}
}
