package hfmodel

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode"

	"contraflow/io/safetensors"
	"contraflow/io/torchfile"
	"contraflow/testdata/goldens"
	"contraflow/tokenize"
)

// holds checks values of a JSON file that was written; of a path to a value the steps are divided by slashes. A nil value: the key is not there.
func holds(t *testing.T, dir, name string, want map[string]any) {
	t.Helper()
	var all any
	readJSON(t, filepath.Join(dir, filepath.FromSlash(name)), &all)
	for _, path := range sortedKeys(want) {
		at, there := all, true
		for _, key := range strings.Split(path, "/") {
			m, _ := at.(map[string]any)
			at, there = m[key], m != nil
			if _, ok := m[key]; !ok {
				there = false
			}
		}
		data, err := json.Marshal(want[path])
		var wanted any
		if err == nil {
			err = json.Unmarshal(data, &wanted)
		}
		if err != nil {
			t.Fatal(err)
		}
		if there != (want[path] != nil) || there && !reflect.DeepEqual(at, wanted) {
			t.Errorf("%s: %s is %v (there: %v), want %v", name, path, at, there, want[path])
		}
	}
}

// files lists what is in a folder, without lengths.
func files(t *testing.T, dir string) (names []string) {
	t.Helper()
	for _, line := range tree(t, dir) {
		name, _, _ := strings.Cut(line, " ")
		names = append(names, name)
	}
	return names
}

// Each pooling that can be trained can be saved, from nothing too, and is what sentence-transformers calls so.
func TestSavedPooling(t *testing.T) {
	f := open(t, golden+"st6")
	for mode, key := range map[PoolingMode]string{CLS: "pooling_mode_cls_token", Mean: "pooling_mode_mean_tokens", Last: "pooling_mode_lasttoken"} {
		s := specOf(t, f)
		s.Base, s.Pooling, s.Normalize = nil, Pooling{Mode: mode}, mode == CLS
		dir := filepath.Join(t.TempDir(), "m")
		if err := Save(dir, s); err != nil {
			t.Fatal(err)
		}
		for _, m := range stModes {
			holds(t, dir, "1_Pooling/config.json", map[string]any{m.key: m.key == key, "include_prompt": false, "word_embedding_dimension": 16})
		}
		if g := open(t, dir); *g.Pooling != (Pooling{mode, 16, false}) || g.Normalize != s.Normalize {
			t.Errorf("%s is read as %+v, normalized: %v", mode, g.Pooling, g.Normalize)
		}
		w, err := safetensors.Open(filepath.Join(dir, weightsFile))
		if err != nil {
			t.Fatal(err)
		}
		if got := w.Metadata(); !maps.Equal(got, map[string]string{"format": "pt"}) { // transformers loads no other
			t.Errorf("the weights say %v", got)
		}
		w.Close()
	}
}

// config.json's dtype is the one that most numbers have, the first tensor's of two that have as many; whole numbers do not count.
func TestMostDType(t *testing.T) {
	x := func(d safetensors.DType, n int) safetensors.Tensor {
		return safetensors.Tensor{DType: d, Shape: []int{n}}
	}
	for _, c := range []struct {
		tensors []safetensors.Tensor
		want    string
	}{
		{[]safetensors.Tensor{x(safetensors.F32, 3), x(safetensors.BF16, 2), x(safetensors.BF16, 2)}, "bfloat16"},
		{[]safetensors.Tensor{x(safetensors.F16, 4), x(safetensors.F32, 4)}, "float16"},
		{[]safetensors.Tensor{x(safetensors.I64, 9), x(safetensors.F64, 1)}, "float64"},
		{[]safetensors.Tensor{x(safetensors.F32, 5), x(safetensors.F16, 4)}, "float32"},
	} {
		for _, key := range []string{"dtype", "torch_dtype"} {
			o := newObject()
			o.set(key, "torch.float8")
			var got string
			if changed := setDType(o, c.tensors); !changed {
				t.Errorf("%v: unchanged", c.tensors)
			}
			if o.get(key, &got); got != c.want {
				t.Errorf("%v: %s, want %s", c.tensors, got, c.want)
			}
			o.set(key, "torch."+c.want)
			if setDType(o, c.tensors) {
				t.Errorf("%v: %s is changed", c.tensors, "torch."+c.want)
			}
		}
	}
}

// A Dense module that is new has its sizes; of a MultiVectorEncoder, what works on tokens says so: left out it would be a text's embedding.
func TestSavedModules(t *testing.T) {
	dir := t.TempDir()
	f := open(t, golden+"st6")
	s := specOf(t, f)
	s.addDense(true, []int{3, 16}, []int{3})
	if err := Save(filepath.Join(dir, "dense"), s); err != nil {
		t.Fatal(err)
	}
	holds(t, dir, "dense/2_Dense/config.json", map[string]any{"in_features": 16, "out_features": 3, "bias": true, "activation_function": "torch.nn.modules.activation.Tanh", "module_input_name": nil})

	f = open(t, multiVectorFolder(t, pylateFiles(`, "query_length": 24, "document_length": 40, "query_expansion": null, "attend_to_mask_tokens": true, "attend_to_expansion_tokens": true, "do_query_expansion": true, "skiplist_words": ["x"]`)))
	for _, normalize := range []bool{true, false} {
		s := specOf(t, f)
		s.MultiVector, s.Dense, s.Normalize, s.Similarity = f.MultiVector, f.Dense, normalize, "maxsim"
		x, err := f.Tensor("1_Dense.linear.weight")
		if err != nil {
			t.Fatal(err)
		}
		s.Tensors = append(s.Tensors, x)
		out := filepath.Join(dir, "tokens", map[bool]string{true: "normalized", false: "plain"}[normalize])
		if err := Save(out, s); err != nil {
			t.Fatal(err)
		}
		tokens := map[string]any{"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}
		holds(t, out, "1_Dense/config.json", tokens)
		holds(t, out, modelFile, map[string]any{
			"model_type": "MultiVectorEncoder", "query_length": nil, "document_length": nil, "query_expansion": nil, "do_query_expansion": nil,
			"attend_to_expansion_tokens": nil, "attend_to_mask_tokens": nil, "skiplist_words": nil, "query_prefix": "[Q] ", "document_prefix": "[D] ",
		})
		holds(t, out, "2_MultiVectorMask/config.json", map[string]any{"skiplist_words": []string{"x"}, "skiplist_tasks": []string{"document"}})
		got := files(t, out)
		if slices.ContainsFunc(got, func(n string) bool { return strings.HasPrefix(n, "1_Pooling") }) || slices.Contains(got, "3_Normalize/config.json") != normalize {
			t.Errorf("normalized %v: %q", normalize, got)
		}
		if normalize {
			holds(t, out, "3_Normalize/config.json", tokens)
		}
		if g := open(t, out); g.Normalize != normalize || g.MultiVector.QueryLength != 24 {
			t.Errorf("normalized %v is read as %v, %+v", normalize, g.Normalize, g.MultiVector)
		}
	}

	f = open(t, golden+"st6")
	for twice, activation := range map[bool]string{false: "relu", true: "log1p_relu"} {
		s := specOf(t, f)
		s.Splade, s.Normalize = &Splade{Twice: twice}, false
		out := filepath.Join(dir, activation)
		if err := Save(out, s); err != nil {
			t.Fatal(err)
		}
		vocab := f.configInt("vocab_size")
		holds(t, out, "1_SpladePooling/config.json", map[string]any{"pooling_strategy": "max", "activation_function": activation, "word_embedding_dimension": vocab, "embedding_dimension": nil})
		holds(t, out, modelFile, map[string]any{"model_type": "SparseEncoder"})
		holds(t, out, "config.json", map[string]any{"architectures": []string{"BertForMaskedLM"}})
		if got := files(t, out); slices.ContainsFunc(got, func(n string) bool { return strings.HasPrefix(n, "1_Pooling") }) {
			t.Errorf("%q", got)
		}
		if g := open(t, out); g.Splade == nil || g.Splade.Twice != twice {
			t.Errorf("%s is read as %+v", activation, g.Splade)
		}
		for want, change := range map[string]map[string]any{
			`pooling_strategy "sum" is not supported`:     {"pooling_strategy": "sum"},
			`activation_function "tanh" is not supported`: {"activation_function": "tanh"},
			"embedding_dimension 7, but config.json":      {"embedding_dimension": 7},
			"embedding_dimension 8, but config.json":      {"word_embedding_dimension": 8},
		} {
			bad := filepath.Join(t.TempDir(), "bad")
			if err := os.CopyFS(bad, os.DirFS(out)); err != nil {
				t.Fatal(err)
			}
			edit(t, bad, "1_SpladePooling/config.json", change)
			if _, err := Open(bad); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q", err, want)
			}
		}
	}
}

// Of a model whose classes transformers does not have auto_map names the code of its head, wherever that of the model is, but no file that stays behind.
func TestCodedClasses(t *testing.T) {
	const auto, new, jina = "AutoModelForSequenceClassification", `"model_type": "new"`, `"model_type": "bert", "position_embedding_type": "alibi"`
	for config, want := range map[string]string{
		`{"model_type": "bert", "auto_map": {"AutoModel": "a/b--c.D"}}`: `BertForSequenceClassification map[AutoModel:a/b--c.D]`,
		`{` + new + `}`: `NewForSequenceClassification map[AutoConfig:Alibaba-NLP/new-impl--configuration.NewConfig AutoModelForSequenceClassification:Alibaba-NLP/new-impl--modeling.NewForSequenceClassification]`,
		`{` + new + `, "auto_map": {"AutoConfig": "me/impl--conf.C", "AutoModel": "me/impl--mod.M"}}`:                                         `NewForSequenceClassification map[AutoConfig:me/impl--conf.C AutoModelForSequenceClassification:me/impl--mod.NewForSequenceClassification]`,
		`{` + new + `, "auto_map": {"AutoModel": "me/impl--mod.M", "AutoModelForSequenceClassification": "you/impl--x.NewForX"}}`:             `NewForSequenceClassification map[AutoConfig:Alibaba-NLP/new-impl--configuration.NewConfig AutoModelForSequenceClassification:you/impl--x.NewForSequenceClassification]`,
		`{` + jina + `, "auto_map": {"AutoConfig": "conf.C", "AutoModel": "mod.M", "AutoTokenizer": ["a/b--c.D", null]}, "architectures": 1}`: `JinaBertForSequenceClassification map[AutoConfig:jinaai/jina-bert-implementation--configuration_bert.JinaBertConfig AutoModelForSequenceClassification:jinaai/jina-bert-implementation--modeling_bert.JinaBertForSequenceClassification]`,
	} {
		c, err := parseObject([]byte(config))
		if err != nil {
			t.Fatal(err)
		}
		class, err := rerankerClass(c)
		if err != nil {
			t.Fatal(err)
		}
		if inCode := setClass(c, class, "ForSequenceClassification", auto); inCode == (class == "Bert") {
			t.Errorf("%s: %v", config, inCode)
		}
		var got struct {
			Architectures []string
			AutoMap       map[string]string `json:"auto_map"`
		}
		if err := json.Unmarshal(c.bytes(), &got); err != nil || fmt.Sprint(got.Architectures[0], " ", got.AutoMap) != want {
			t.Errorf("%s: %v %v", config, got, err)
		}
	}
}

// A reranker is one for transformers and for sentence-transformers' CrossEncoder: with one label, or as the language model whose tokens are scored.
func TestSavedReranker(t *testing.T) {
	base := copyGolden(t, "st6")
	edit(t, base, "config_sentence_transformers.json", map[string]any{"truncate_dim": 8, "other": 1})
	f := open(t, base)
	config, yes, no := newObject(), int32(5), int32(7)
	for key, v := range map[string]any{
		"model_type": "bert", "num_labels": 3, "id2label": map[string]string{"0": "a", "1": "b", "2": "c"}, "auto_map": map[string]string{"AutoModel": "x.Y"}, "dtype": "float16",
		"architectures": []string{"BertModel"}, "hidden_size": 16,
	} {
		config.set(key, v)
	}
	number := func(name string) safetensors.Tensor {
		return safetensors.Tensor{Name: name, DType: safetensors.F32, Shape: []int{1}, Data: make([]byte, 4)}
	}
	for _, tokens := range []bool{false, true} {
		s := RerankerSpec{
			Config: config.bytes(), Tensors: []safetensors.Tensor{number("encoder.x"), number("pooler.dense.weight"), number("classifier.weight")}, Prefix: "bert.", Head: []string{"pooler", "classifier"},
			MaxSeqLength: 9, Base: f, Tokenizer: f.CopyTokenizer, Card: Card{Summary: "By hand.", BaseModel: "org/base", Recipe: "model: {path: org/base}\n"},
		}
		s.Reranker.QueryPrompt = "ask: "
		task, out, architecture := "sequence-classification", "scores", "BertForSequenceClassification"
		labels := map[string]any{"id2label": map[string]string{"0": "LABEL_0"}, "label2id": map[string]int{"LABEL_0": 0}, "num_labels": nil, "auto_map": nil, "dtype": "float32", "hidden_size": 16}
		if tokens {
			s.Reranker.TrueID, s.Reranker.FalseID = &yes, &no
			task, out, architecture = "text-generation", "causal_logits", "Gemma3ForCausalLM"
			config.set("model_type", "gemma3_text") // whose class for sequences is Gemma3TextForSequenceClassification
			s.Config = config.bytes()
			labels = map[string]any{"auto_map": nil, "dtype": "float32"}
		}
		dir := filepath.Join(t.TempDir(), "reranker")
		if tokens {
			bert := s
			bert.Config = bytes.Replace(s.Config, []byte("gemma3_text"), []byte("bert"), 1)
			if err := SaveReranker(dir, bert); err == nil || !strings.Contains(err.Error(), `model_type "bert" by the logits of tokens`) {
				t.Error(err)
			}
		}
		if err := SaveReranker(dir, s); err != nil {
			t.Fatal(err)
		}
		labels["architectures"] = []string{architecture}
		holds(t, dir, "config.json", labels)
		holds(t, dir, "sentence_bert_config.json", map[string]any{"transformer_task": task, "module_output_name": out, "max_seq_length": 9, "modality_config/text/method": "forward"})
		holds(t, dir, modelFile, map[string]any{
			"model_type": "CrossEncoder", "activation_fn": "torch.nn.modules.activation.Sigmoid", "similarity_fn_name": nil, "truncate_dim": nil, "other": 1,
			"prompts": map[string]any{"query": "ask: "}, "default_prompt_name": "query",
		})
		if tokens {
			holds(t, dir, "1_LogitScore/config.json", map[string]any{"true_token_id": 5, "false_token_id": 7, "module_input_name": "causal_logits"})
		}
		g := open(t, dir)
		if r := g.Reranker; r == nil || r.QueryPrompt != "ask: " || (r.TrueID != nil) != tokens || tokens && (*r.TrueID != 5 || *r.FalseID != 7) {
			t.Errorf("read as %+v", g.Reranker)
		}
		if err := os.Remove(filepath.Join(dir, rerankerFile)); err != nil {
			t.Fatal(err)
		}
		if r := open(t, dir).Reranker; r == nil || r.QueryPrompt != "ask: " { // CrossEncoder's default prompt
			t.Errorf("without %s read as %+v", rerankerFile, r)
		}
		if got := slices.Sorted(slices.Values(g.Names())); !slices.Equal(got, []string{"bert.encoder.x", "bert.pooler.dense.weight", "classifier.weight"}) {
			t.Errorf("tensors %q", got)
		}
		if card, err := os.ReadFile(filepath.Join(dir, "README.md")); err != nil || !strings.Contains(string(card), "\n# reranker\n\n") || !strings.Contains(string(card), "By hand.") || !strings.Contains(string(card), "\nmodel: {path: org/base}\n") || !strings.Contains(string(card), "\nbase_model: \"org/base\"\n") || !strings.Contains(string(card), "Put before each query") || strings.Contains(string(card), "Put before each document") {
			t.Errorf("%v, the card is %s", err, card)
		}
		for prompts, want := range map[[2]string]string{{"ask: ", ""}: `[("how `, {"ask: ", "text: "}: `[("ask: how are gradients accumulated?", "text: a first text")]`} { // of a document's CrossEncoder has no place
			s.Reranker.QueryPrompt, s.Reranker.DocumentPrompt = prompts[0], prompts[1]
			if card := string(s.card("x")); !strings.Contains(card, want) {
				t.Errorf("with %q the card lacks %q: %s", prompts, want, card)
			}
		}
		for _, m := range g.Modules {
			if info, err := fs.Stat(os.DirFS(dir), cmp.Or(m.Path, ".")); err != nil || !info.IsDir() {
				t.Errorf("module %+v has no folder: %v", m, err)
			}
		}
	}
}

// The card of a model that reads pairs as FlagLLMReranker does shows that one, which alone scores it as it was trained; a new head behind the template it has not.
func TestFlagCard(t *testing.T) {
	yes, no, bge := int32(5), int32(7), tokenize.Templates["bge"]
	r := Reranker{Template: bge.Template, Instruction: bge.Instruction, TrueID: &yes, DocumentPrompt: "text: "}
	card := func(r Reranker) string {
		return string(RerankerSpec{Config: []byte(`{"model_type": "gemma"}`), Reranker: r}.card("x"))
	}
	if got := card(r); !strings.Contains(got, `FlagLLMReranker("x", use_bf16=True)`) || !strings.Contains(got, `"text: a first text")`) || strings.Contains(got, "import CrossEncoder") {
		t.Error(got)
	}
	own, head, both, other := r, r, r, r
	own.Instruction, head.TrueID, both.FalseID, other.Template = "Judge.", nil, &no, tokenize.Templates["qwen3"].Template
	if got := card(own); !strings.Contains(got, `FlagLLMReranker("x", use_bf16=True, prompt="Judge.")`) {
		t.Error(got)
	}
	for _, r := range []Reranker{head, both, other, {}} {
		if got := card(r); strings.Contains(got, "FlagEmbedding") || !strings.Contains(got, "import CrossEncoder") {
			t.Error(got)
		}
	}
}

// How a saved reranker's pairs are cut CrossEncoder reads too, where its own way is another.
func TestSavedTruncation(t *testing.T) {
	f := open(t, golden+"st6")
	for _, x := range []struct {
		how      string
		template tokenize.Template
		kwargs   any
		read     string
	}{
		{"only_second", nil, "only_second", "only_second"}, {"longest_first", nil, nil, ""}, {"", nil, nil, ""}, {"only_second", tokenize.Template{{Text: "{query}"}, {Text: "{document}", Cut: true}}, nil, ""},
	} {
		s := RerankerSpec{
			Config: []byte(`{"model_type": "bert"}`), Tensors: []safetensors.Tensor{floatsOf(t, "classifier.weight", []int{1}, 2)}, Prefix: "bert.", Head: []string{"classifier"}, MaxSeqLength: 9, Tokenizer: f.CopyTokenizer,
			Reranker: Reranker{Truncation: x.how, Template: x.template},
		}
		dir := filepath.Join(t.TempDir(), "reranker")
		if err := SaveReranker(dir, s); err != nil {
			t.Fatal(err)
		}
		holds(t, dir, "sentence_bert_config.json", map[string]any{"processing_kwargs/text/truncation": x.kwargs})
		if r := open(t, dir).Reranker; r.Truncation != x.how {
			t.Errorf("saved as %q, read as %q", x.how, r.Truncation)
		}
		if err := os.RemoveAll(filepath.Join(dir, rerankerFile)); err != nil {
			t.Fatal(err)
		}
		if r := open(t, dir).Reranker; r.Truncation != x.read {
			t.Errorf("without %s %q is read as %q, want %q", rerankerFile, x.how, r.Truncation, x.read)
		}
	}
}

// A saved reranker's scores go through the function that the one it was trained from has, wherever that says so.
func TestSavedActivation(t *testing.T) {
	f := open(t, golden+"st6")
	const identity, tanh, sigmoid = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Tanh", "torch.nn.modules.activation.Sigmoid"
	newest, newer, old := `, "activation_fn": "`+tanh+`"`, `, "sentence_transformers": {"activation_fn": "`+identity+`"}`, `, "sbert_ce_default_activation_function": "`+identity+`"`
	for _, x := range []struct{ model, config, want string }{
		{"", "", sigmoid}, {newest, newer, tanh}, {"", newer, identity}, {"", old, identity}, {"", newer + strings.Replace(old, identity, tanh, 1), identity}, {`, "activation_fn": null`, `, "sentence_transformers": {"version": "4.1"}`, sigmoid},
	} {
		base := copyGolden(t, "st6")
		put(t, base, modelFile, `{"model_type": "CrossEncoder"`+x.model+`}`)
		s := RerankerSpec{
			Config: []byte(`{"model_type": "bert"` + x.config + `}`), Tensors: []safetensors.Tensor{floatsOf(t, "classifier.weight", []int{1}, 2)}, Prefix: "bert.", Head: []string{"classifier"},
			MaxSeqLength: 9, Base: open(t, base), Tokenizer: f.CopyTokenizer,
		}
		dir := filepath.Join(t.TempDir(), "reranker")
		if err := SaveReranker(dir, s); err != nil {
			t.Fatal(err)
		}
		holds(t, dir, modelFile, map[string]any{"activation_fn": x.want})
	}
}

// A reranker with a template is saved with a chat template, through which CrossEncoder has pairs go, and without the prompt that is in it.
func TestSavedTemplate(t *testing.T) {
	f := open(t, golden+"st6")
	weight := floatsOf(t, "classifier.weight", []int{1}, 2)
	s := RerankerSpec{Config: []byte(`{"model_type": "bert"}`), Tensors: []safetensors.Tensor{weight}, Prefix: "bert.", Head: []string{"classifier"}, MaxSeqLength: 9, Tokenizer: f.CopyTokenizer}
	s.Reranker = Reranker{QueryPrompt: "ask: ", Template: tokenize.Template{{Text: "{query}"}, {Text: "{document}", Cut: true}}}
	dir := filepath.Join(t.TempDir(), "reranker")
	if err := SaveReranker(dir, s); err != nil {
		t.Fatal(err)
	}
	template, err := os.ReadFile(filepath.Join(dir, "chat_template.jinja"))
	if err != nil || string(template) != chatTemplate(s.Reranker) {
		t.Errorf("%s, %v", template, err)
	}
	for _, kind := range []string{"text", "message"} {
		holds(t, dir, "sentence_bert_config.json", map[string]any{"modality_config/" + kind + "/method": "forward", "modality_config/" + kind + "/method_output_name": "logits"})
	}
	o, err := readObject(filepath.Join(dir, modelFile))
	if err != nil {
		t.Fatal(err)
	}
	if got := sortedKeys(o.values); !slices.Equal(got, []string{"activation_fn", "default_prompt_name", "model_type", "prompts"}) || string(o.values["prompts"]) != "{}" {
		t.Errorf("%s has %q, prompts %s", modelFile, got, o.values["prompts"])
	}
	if r := open(t, dir).Reranker; r == nil || !r.Chat || len(r.Template) != 2 || r.QueryPrompt != "ask: " {
		t.Errorf("read as %+v", r)
	}
}

// All that a tokenizer may need is copied, under its name, and nothing else.
func TestCopyTokenizer(t *testing.T) {
	want := []string{
		"added_tokens.json", "merges.txt", "sentencepiece.bpe.model", "special_tokens_map.json", "spiece.model", "spm.model", "tokenizer.json", "tokenizer.model", "tokenizer_config.json",
		"vocab.json", "vocab.txt",
	}
	from, to := t.TempDir(), t.TempDir()
	for _, name := range append(want, "config.json", "notes.txt") {
		put(t, from, name, "of "+name)
	}
	f := &Folder{TokenizerDir: from}
	if err := f.CopyTokenizer(to); err != nil {
		t.Fatal(err)
	}
	if got := files(t, to); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	for _, name := range want {
		if data, err := os.ReadFile(filepath.Join(to, name)); err != nil || string(data) != "of "+name {
			t.Errorf("%s: %q, %v", name, data, err)
		}
	}
	if err := errors.Join(os.Remove(filepath.Join(from, "vocab.txt")), os.Mkdir(filepath.Join(from, "vocab.txt"), 0o777)); err != nil {
		t.Fatal(err)
	}
	if err := f.CopyTokenizer(t.TempDir()); err == nil || !strings.Contains(err.Error(), "vocab.txt") {
		t.Errorf("a folder in a file's place: %v", err)
	}
}

// What decides what a model computes is told, each file once, where it is.
func TestSettings(t *testing.T) {
	f := open(t, denseFolderOf(t))
	at := func(names ...string) map[string]string {
		files := map[string]string{}
		for _, n := range names {
			files[n] = filepath.Join(f.Dir, filepath.FromSlash(n))
		}
		return files
	}
	want := at(append([]string{
		"modules.json", "config_sentence_transformers.json", "reranker.json", "config.json", "adapter_config.json", "1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors",
		"2_Dense/pytorch_model.bin", "3_Dense/config.json", "3_Dense/model.safetensors", "3_Dense/pytorch_model.bin", "4_Normalize/config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt",
		"vocab.json", "merges.txt", "sentencepiece.bpe.model", "spiece.model", "spm.model", "tokenizer.model",
	}, transformerFiles...)...)
	if got := f.Settings(); !maps.Equal(got, want) {
		t.Errorf("%q\nwant %q", sortedKeys(got), sortedKeys(want))
	}
	f = open(t, copyAdapter(t, "bert-qv", nil))
	got := f.Settings()
	base := goldens.Path(t, "bert/minilm-tiny")
	for name, path := range map[string]string{
		"adapter_config.json": filepath.Join(f.Dir, "adapter_config.json"), "vocab.txt": filepath.Join(base, "vocab.txt"), "the base model's config.json": filepath.Join(base, "config.json"),
	} {
		if got[name] != path {
			t.Errorf("%s is %s, want %s", name, got[name], path)
		}
	}
}

// An adapter that does not say how much it adds has PEFT's own alpha, 8.
func TestAdapterAlpha(t *testing.T) {
	f := open(t, copyAdapter(t, "bert-qv", func(config map[string]any) { delete(config, "lora_alpha") }))
	if x := f.Adapter.Factors[0]; x.Scale != 8/float64(x.A.Shape[0]) {
		t.Errorf("scale %v at rank %d", x.Scale, x.A.Shape[0])
	}
}

// Python's string.punctuation is what ASCII has beside letters, digits and spaces.
func TestPunctuation(t *testing.T) {
	var want []string
	for c := rune(' ' + 1); c < 0x7f; c++ {
		if !unicode.IsLetter(c) && !unicode.IsDigit(c) {
			want = append(want, string(c))
		}
	}
	if got := Punctuation(); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// A folder of each kind that is written anew with the tensors that it has is the same folder: its files, where each tensor is, and every bit.
func TestRewriteEach(t *testing.T) {
	static := staticFolder(t, "0_Static", floatsOf(t, "embeddings", []int{3, 2}, 1, 2, 3, 4, 5, 6))
	denseStatic(t, static, "0_Static")
	for kind, dir := range map[string]string{"Dense": denseFolderOf(t), "M3": m3Folder(t), "static": static, "multi-vector": multiVectorFolder(t, nil), "older": copyGolden(t, "st2")} {
		f := open(t, dir)
		tensors, err := f.Stored()
		if err != nil {
			t.Fatal(err)
		}
		if kind == "static" && tensors[0].Name != staticTensor {
			t.Errorf("the table is called %s", tensors[0].Name)
		}
		bare := slices.Clone(tensors)
		for i := range bare {
			bare[i].Data = nil
		}
		out := filepath.Join(t.TempDir(), "out")
		err = f.Rewrite(out, bare, []byte("the card"), func(w io.Writer, x safetensors.Tensor) error {
			y, err := f.Tensor(x.Name)
			if err == nil {
				_, err = w.Write(y.Data)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		g := open(t, out)
		again, err := g.Stored()
		if err != nil {
			t.Fatal(err)
		}
		if len(again) != len(tensors) {
			t.Errorf("%s: %d tensors, want %d", kind, len(again), len(tensors))
		}
		for _, x := range tensors {
			i := slices.IndexFunc(again, func(y safetensors.Tensor) bool { return y.Name == x.Name })
			if i < 0 || again[i].String() != x.String() || !bytes.Equal(again[i].Data, x.Data) {
				t.Errorf("%s: %s is not what it was", kind, x)
			}
		}
		if !reflect.DeepEqual(g.Dense == nil, f.Dense == nil) || !reflect.DeepEqual(g.MultiVector, f.MultiVector) || !reflect.DeepEqual(g.Pooling, f.Pooling) || g.Normalize != f.Normalize ||
			g.MaxSeqLength != f.MaxSeqLength || !maps.Equal(g.Prompts, f.Prompts) || (g.M3 == nil) != (f.M3 == nil) {
			t.Errorf("%s: %+v, want %+v", kind, g, f)
		}
		for _, name := range files(t, out) {
			switch base := filepath.Base(name); {
			case base == weightsFile:
				w, err := safetensors.Open(filepath.Join(out, filepath.FromSlash(name)))
				if err != nil {
					t.Fatal(err)
				}
				if w.Metadata()["format"] != "pt" {
					t.Errorf("%s: %s says %v", kind, name, w.Metadata())
				}
				w.Close()
			case name == "README.md":
				if data, err := os.ReadFile(filepath.Join(out, name)); err != nil || string(data) != "the card" {
					t.Errorf("%s: %q, %v", kind, data, err)
				}
			case strings.HasSuffix(name, ".json") || strings.HasSuffix(name, ".txt"):
				was, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(name)))
				is, err2 := os.ReadFile(filepath.Join(out, filepath.FromSlash(name)))
				if err != nil || err2 != nil || !bytes.Equal(was, is) {
					t.Errorf("%s: %s: %v, %v, or it has changed", kind, name, err, err2)
				}
			}
		}
		if kind != "M3" {
			continue
		}
		if got := files(t, out); slices.Contains(got, "model.pt") {
			t.Errorf("%q: the model is among the heads", got)
		}
		for _, head := range m3Files { // in both forms, of the same numbers
			a, err := torchfile.Read(filepath.Join(out, head+".pt"))
			b, err2 := safetensors.Open(filepath.Join(out, head+".safetensors"))
			if err != nil || err2 != nil {
				t.Fatal(err, err2)
			}
			for _, x := range a {
				if y, err := b.Tensor(x.Name); err != nil || !bytes.Equal(x.Data, y.Data) || len(x.Data) == 0 {
					t.Errorf("%s: %s in one, %s in the other (%v)", head, x, y, err)
				}
			}
			b.Close()
		}
	}
}

// A template is a chat template of two messages, in which what is meant is put in and all else stands as it is.
func TestChatTemplate(t *testing.T) {
	r := Reranker{QueryPrompt: "Q ", DocumentPrompt: "D ", Instruction: "Judge \"it\" {{ now }}", Template: tokenize.Template{{Text: "{bos}<I>{instruction}</I>{query}"}, {Text: " & {document}!", Cut: true}}}
	want := `{{ bos_token or "" }}{{ "\u003cI\u003eJudge \"it\" {{ now }}\u003c/I\u003e" }}{{ "Q " }}{{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }}` +
		`{{ " \u0026 " }}{{ "D " }}{{ messages | selectattr("role", "eq", "document") | map(attribute="content") | first }}{{ "!" }}`
	if got := chatTemplate(r); got != want {
		t.Errorf("\n%s, want\n%s", got, want)
	}
}

// Decoders have no class for masked language modelling, so they make no sparse embeddings; what has one does.
func TestCheckSparse(t *testing.T) {
	for kind := range classes {
		_, decoder := causalClasses[kind]
		f := &Folder{Config: []byte(`{"model_type": "` + kind + `"}`)}
		if err := f.CheckSparse(); (err != nil) != decoder || err != nil && !strings.Contains(err.Error(), `model_type "`+kind+`"`) {
			t.Errorf("%s: %v", kind, err)
		}
		if err := f.CheckReranker(); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
	}
	f := &Folder{Config: []byte(`{"model_type": "nomic_bert"}`)}
	if err := f.CheckSparse(); err != nil {
		t.Error(err)
	}
	if f.CheckReranker() == nil {
		t.Error("a reranker of NomicBERT, which has no class")
	}
}
