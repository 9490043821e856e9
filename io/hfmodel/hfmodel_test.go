package hfmodel

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"contraflow/io/safetensors"
)

const golden = "../../testdata/golden/hfmodel/"

func readJSON(t *testing.T, path string, v any) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(b, v)
	}
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

func open(t *testing.T, dir string) *Folder {
	t.Helper()
	f, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// copyGolden is a golden folder to spoil.
func copyGolden(t testing.TB, name string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	if err := os.CopyFS(dir, os.DirFS(golden+name)); err != nil {
		t.Fatal(err)
	}
	return dir
}

func put(t testing.TB, dir, name, text string) {
	t.Helper()
	path := filepath.Join(dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
}

// edit changes keys of a JSON file; a nil value removes the key.
func edit(t *testing.T, dir, name string, keys map[string]any) {
	t.Helper()
	o, err := readObject(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range keys {
		if o.set(k, v); v == nil {
			o.remove(k)
		}
	}
	put(t, dir, name, string(o.bytes()))
}

// TestGolden compares folders of three generations with what sentence-transformers 6.2 makes of them.
func TestGolden(t *testing.T) {
	var want struct {
		Folders map[string]struct {
			Modules             []string
			Pooling             *PoolingMode
			Normalize           bool
			Dimension           *int
			Max_Seq_Length      int
			Prompts             map[string]string
			Default_Prompt_Name string
			Tensors             map[string]struct {
				Shape []int
				Sum   float64
			}
		}
	}
	readJSON(t, golden+"expected.json", &want)
	if len(want.Folders) != 3 {
		t.Fatalf("%d folders", len(want.Folders))
	}
	for name, w := range want.Folders {
		t.Run(name, func(t *testing.T) {
			f := open(t, golden+name)
			var kinds []string
			for _, m := range f.Modules {
				kinds = append(kinds, m.Kind())
			}
			if !slices.Equal(kinds, w.Modules) {
				t.Errorf("modules %q, want %q", kinds, w.Modules)
			}
			if (f.Pooling == nil) != (w.Pooling == nil) {
				t.Errorf("pooling %v, want %v", f.Pooling, w.Pooling)
			} else if w.Pooling != nil && *f.Pooling != (Pooling{*w.Pooling, *w.Dimension, true}) {
				t.Errorf("pooling %v, want %s %d", *f.Pooling, *w.Pooling, *w.Dimension)
			}
			prompts := map[string]string{}
			for k, v := range f.Prompts {
				if v != "" {
					prompts[k] = v
				}
			}
			if f.Normalize != w.Normalize || f.MaxSeqLength != w.Max_Seq_Length || f.ModelType != "bert" ||
				f.DefaultPromptName != w.Default_Prompt_Name || !reflect.DeepEqual(prompts, w.Prompts) {
				t.Errorf("normalize %v, max_seq_length %d, type %s, prompts %v default %q; want %+v",
					f.Normalize, f.MaxSeqLength, f.ModelType, f.Prompts, f.DefaultPromptName, w)
			}
			if len(w.Tensors) < 35 {
				t.Errorf("only %d tensors to compare", len(w.Tensors))
			}
			for name, wt := range w.Tensors {
				x, err := f.Tensor(name, "bert.")
				if err != nil {
					t.Fatal(err)
				}
				v := make([]float32, x.Len())
				if err := x.Float32s(v); err != nil {
					t.Fatal(err)
				}
				sum := 0.0
				for _, a := range v {
					sum += float64(a)
				}
				if !slices.Equal(x.Shape, wt.Shape) || !(math.Abs(sum-wt.Sum) <= 1e-9) {
					t.Errorf("%s: shape %v sum %v, want %v %v", name, x.Shape, sum, wt.Shape, wt.Sum)
				}
			}
			config, err := os.ReadFile(filepath.Join(f.TransformerDir, "config.json"))
			if err != nil || !bytes.Equal(config, f.Config) {
				t.Errorf("Config is not the file's bytes (%v)", err)
			}
		})
	}
}

// TestGoldenPooling compares pooling configurations with what sentence-transformers makes of them.
func TestGoldenPooling(t *testing.T) {
	var cases []struct {
		Name, Error    string
		Config         json.RawMessage
		Modes          []string
		Dimension      int
		Include_Prompt bool
	}
	readJSON(t, golden+"pooling.json", &cases)
	ours := map[string]PoolingMode{"cls": CLS, "mean": Mean, "lasttoken": Last}
	good := 0
	for _, c := range cases {
		o, err := parseObject(c.Config)
		if err != nil {
			t.Fatal(err)
		}
		got, err := parsePooling(o)
		if c.Error != "" {
			if err == nil {
				t.Errorf("%s: %v, sentence-transformers says %s", c.Name, *got, c.Error)
			}
			continue
		}
		mode, known := ours[c.Modes[0]]
		if len(c.Modes) > 1 || !known {
			if err == nil || !strings.Contains(err.Error(), strings.Join(c.Modes, ", ")) || !strings.Contains(err.Error(), "not supported") {
				t.Errorf("%s: error %v, want one that names %q as not supported", c.Name, err, c.Modes)
			}
			continue
		}
		good++
		if err != nil || *got != (Pooling{mode, c.Dimension, c.Include_Prompt}) {
			t.Errorf("%s: %v, %v; want %s %d %v", c.Name, got, err, mode, c.Dimension, c.Include_Prompt)
		}
		// What Save writes must read back the same.
		o, err = parseObject(encodePooling(*got, o))
		if err != nil {
			t.Fatal(err)
		}
		if again, err := parsePooling(o); err != nil || *again != *got {
			t.Errorf("%s: written and read again: %v, %v", c.Name, again, err)
		}
	}
	if good < 8 {
		t.Errorf("only %d good configurations", good)
	}
}

// TestMaxSeqLength: the places where the limit may be, by sentence-transformers' rule.
func TestMaxSeqLength(t *testing.T) {
	for _, c := range []struct {
		sentence, positions, tokenizer any
		want                           int
	}{
		{nil, 32, 20, 20},
		{nil, 32, 1e30, 32},
		{nil, 32, 512, 32},
		{nil, 32, nil, 32},
		{nil, nil, 20, 20},
		{nil, nil, nil, 0},
		{nil, -1, 1e30, 0},
		{64, 32, 20, 64}, // not capped: sentence-transformers does not either
	} {
		dir := copyGolden(t, "st6")
		edit(t, dir, "config.json", map[string]any{"max_position_embeddings": c.positions})
		edit(t, dir, "tokenizer_config.json", map[string]any{"model_max_length": c.tokenizer})
		edit(t, dir, "sentence_bert_config.json", map[string]any{"max_seq_length": c.sentence})
		if got := open(t, dir).MaxSeqLength; got != c.want {
			t.Errorf("%+v: got %d", c, got)
		}
	}
	for _, name := range []string{"bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet"} { // what the first versions named after the model
		dir := copyGolden(t, "st6")
		if err := os.Remove(filepath.Join(dir, "sentence_bert_config.json")); err != nil {
			t.Fatal(err)
		}
		put(t, dir, "sentence_"+name+"_config.json", `{"max_seq_length": 11}`)
		if got := open(t, dir).MaxSeqLength; got != 11 {
			t.Errorf("of %s: %d", name, got)
		}
	}
	f := open(t, golden+"st2")
	if !f.LowerCase || f.TransformerDir != filepath.Join(golden+"st2", "0_Transformer") {
		t.Errorf("lower case %v, folder %s", f.LowerCase, f.TransformerDir)
	}
}

// TestBadFolders: every mistake names its file, and what to do.
func TestBadFolders(t *testing.T) {
	remove := func(name string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	write := func(name, text string) func(*testing.T, string) {
		return func(t *testing.T, dir string) { put(t, dir, name, text) }
	}
	all := func(steps ...func(*testing.T, string)) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			for _, s := range steps {
				s(t, dir)
			}
		}
	}
	modules := func(rest string) func(*testing.T, string) {
		return write("modules.json", `[{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}, `+
			`{"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}`+rest+`]`)
	}
	dense := `, {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}`
	index := func(file string) func(*testing.T, string) {
		return all(remove("model.safetensors"), write("model.safetensors.index.json", `{"weight_map": {"embeddings.LayerNorm.bias": "`+file+`"}}`))
	}
	for name, c := range map[string]struct {
		spoil func(*testing.T, string)
		want  []string
	}{
		"no config":           {remove("config.json"), []string{"not a model folder", "no config.json"}},
		"a run":               {all(remove("config.json"), write("model/config.json", "{}")), []string{"no config.json: the model is in", "model, give that"}},
		"a static run":        {all(remove("config.json"), write("model/modules.json", "[]")), []string{"no config.json: the model is in", "model, give that"}},
		"adapter only":        {all(remove("config.json"), remove("model.safetensors"), write("adapter_config.json", "{}")), []string{"adapter_config.json: peft_type \"\" is not supported; LORA is"}},
		"model and adapter":   {all(write("adapter_config.json", "{}"), write("adapter_model.safetensors", "x")), []string{"adapter_model.safetensors beside the model model.safetensors", "a folder of its own"}},
		"adapter and weights": {all(remove("config.json"), write("adapter_config.json", "{}"), write("adapter_model.safetensors", "x")), []string{"not a model folder", "no config.json"}},
		"broken config": {write("config.json", "{\n\"model_type\":\n oops}"),
			[]string{"config.json: line 3: not valid JSON"}},
		"byte order mark":     {write("config.json", "\ufeff{\"model_type\": \"bert\"}"), []string{"config.json: it begins with a byte order mark"}},
		"config a list":       {write("config.json", "[1]"), []string{"config.json: line 1: got a JSON array, want an object"}},
		"no model_type":       {write("config.json", "{}"), []string{"config.json: no model_type"}},
		"model_type a number": {write("config.json", `{"model_type": 3}`), []string{"config.json: model_type: got 3, want a string"}},
		"only a pickle": {all(remove("model.safetensors"), write("pytorch_model.bin", "x")),
			[]string{"pytorch_model.bin", "pickle", "convert it with: python -c", "save_pretrained"}},
		"no weights":     {remove("model.safetensors"), []string{"neither model.safetensors nor model.safetensors.index.json"}},
		"broken weights": {write("model.safetensors", "xx"), []string{"model.safetensors: only 2 bytes"}},
		"missing shard":  {index("model-1.safetensors"), []string{"shard listed in", "index.json", "model-1.safetensors"}},
		"shard outside":  {index("../../x.safetensors"), []string{"index.json", `tensor "embeddings.LayerNorm.bias": file "../../x.safetensors" leads out of its folder`}},
		"index with no map": {all(remove("model.safetensors"), write("model.safetensors.index.json", "{}")),
			[]string{"index.json: no weight_map"}},
		"tensor not in shard": {all(func(t *testing.T, dir string) {
			os.Rename(filepath.Join(dir, "model.safetensors"), filepath.Join(dir, "a.safetensors"))
		}, write("model.safetensors.index.json", `{"weight_map": {"oops": "a.safetensors"}}`)),
			[]string{"index.json", "a.safetensors", `"oops"`}},
		"modules an object": {write("modules.json", "{}"), []string{"modules.json: line 1: got a JSON object, want a list"}},
		"modules empty":     {write("modules.json", "[]"), []string{"modules.json: no Transformer"}},
		"no type":           {write("modules.json", `[{"path": ""}]`), []string{"modules.json: module 0 has no path or no type"}},
		"no path":           {write("modules.json", `[{"type": "sentence_transformers.models.Transformer"}]`), []string{"modules.json: module 0 has no path or no type"}},
		"router": {modules(`, {"idx": 2, "name": "2", "path": "2_Router", "type": "sentence_transformers.models.Router"}`),
			[]string{"modules.json: module 2 (sentence_transformers.models.Router): Router modules are not supported yet"}},
		"no dense file": {modules(dense), []string{"2_Dense", "config.json"}},
		"dense pickled": {all(modules(dense), write("2_Dense/config.json", `{"in_features": 16, "out_features": 4}`), write("2_Dense/pytorch_model.bin", "x")),
			[]string{"2_Dense", "pytorch_model.bin", "pickle", "python -c", "save_pretrained"}},
		"no dense weights": {all(modules(dense), write("2_Dense/config.json", `{"in_features": 16, "out_features": 4}`)), []string{"2_Dense has neither model.safetensors nor pytorch_model.bin"}},
		"dense residual": {all(modules(dense), write("2_Dense/config.json", `{"in_features": 16, "out_features": 16, "use_residual": true}`)),
			[]string{"2_Dense", "use_residual is not supported"}},
		"dense activation": {all(modules(dense), write("2_Dense/config.json", `{"in_features": 16, "out_features": 16, "activation_function": "torch.nn.modules.activation.Mish"}`)),
			[]string{"2_Dense", `activation_function "torch.nn.modules.activation.Mish" is not supported; Identity, Tanh`}},
		"dense of tokens": {all(modules(dense), write("2_Dense/config.json", `{"in_features": 16, "out_features": 16, "module_input_name": "token_embeddings"}`)),
			[]string{"2_Dense", `module_input_name "token_embeddings"`}},
		"dense of nothing":   {all(modules(dense), write("2_Dense/config.json", `{"in_features": 16}`)), []string{"2_Dense", "out_features 0"}},
		"dense from nothing": {all(modules(dense), write("2_Dense/config.json", `{"out_features": 16}`)), []string{"2_Dense", "in_features 0"}},
		"dense after normalize": {modules(`, {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}` + strings.ReplaceAll(dense, "2", "3")),
			[]string{"module 3", "not between pooling and normalization"}},
		"own code": {modules(`, {"idx": 2, "name": "2", "path": "x", "type": "custom_st.Head"}`),
			[]string{"modules.json: module 2 (custom_st.Head)", "code of its own"}},
		"two poolings": {modules(`, {"idx": 2, "name": "2", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}`),
			[]string{"module 2", "second Pooling"}},
		"module outside": {modules(`, {"idx": 2, "name": "2", "path": "../x", "type": "sentence_transformers.models.Normalize"}`),
			[]string{`modules.json: module 2: path "../x" leads out`}},
		"normalize tokens": {write("2_Normalize/config.json", `{"module_input_name": "token_embeddings"}`),
			[]string{"2_Normalize", `module_input_name "token_embeddings" is not supported`}},
		"no pooling file": {remove("1_Pooling"), []string{"1_Pooling"}},
		"pooling combined": {write("1_Pooling/config.json", `{"embedding_dimension": 16, "pooling_mode": ["cls", "max"]}`),
			[]string{"1_Pooling", "combination of pooling modes (cls, max)"}},
		"pooling dimension": {write("1_Pooling/config.json", `{"embedding_dimension": 8, "pooling_mode": "cls"}`),
			[]string{"1_Pooling", "dimension 8", "hidden_size 16"}},
		"pooling not bool": {write("1_Pooling/config.json", `{"word_embedding_dimension": 16, "pooling_mode_cls_token": "yes"}`),
			[]string{"1_Pooling", `pooling_mode_cls_token: got "yes", want true or false`}},
		"default prompt": {write("config_sentence_transformers.json", `{"prompts": {"query": "q"}, "default_prompt_name": "doc"}`),
			[]string{"config_sentence_transformers.json", `default_prompt_name "doc"`, `"query"`}},
		"prompt not text": {write("config_sentence_transformers.json", `{"prompts": {"query": 1}}`),
			[]string{"config_sentence_transformers.json: prompts: got", "want a string"}},
		"length not a number": {write("sentence_bert_config.json", `{"max_seq_length": "long"}`),
			[]string{`sentence_bert_config.json: max_seq_length: got "long", want a whole number`}},
		"splade late": {modules(`, {"idx": 2, "name": "2", "path": "2_S", "type": "sentence_transformers.sparse_encoder.models.SpladePooling"}`),
			[]string{"module 2", "SpladePooling that is not right behind the transformer"}},
		"splade without pooling": {write("modules.json", `[{"path": "", "type": "sentence_transformers.sparse_encoder.models.MLMTransformer"}]`),
			[]string{"modules.json: a MLMTransformer without SpladePooling behind it"}},
		"normalize first": {write("modules.json", `[{"path": "", "type": "sentence_transformers.models.Transformer"}, {"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}, {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]`),
			[]string{"modules.json: module 1", "normalization before pooling"}},
		"another task": {write("sentence_bert_config.json", `{"transformer_task": "fill-mask"}`), []string{`"fill-mask" is not supported`}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := copyGolden(t, "st6")
			c.spoil(t, dir)
			f, err := Open(dir)
			if err == nil {
				f.Close()
				t.Fatal("no error")
			}
			for _, want := range append(c.want, dir) {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q lacks %q", err, want)
				}
			}
		})
	}
	for _, dir := range []string{filepath.Join(t.TempDir(), "missing"), golden + "st6/config.json"} {
		if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: %v", dir, err)
		}
	}
}

func TestTensorNames(t *testing.T) {
	dir := copyGolden(t, "st6")
	tensor := func(name string) safetensors.Tensor {
		x, err := safetensors.FromFloat32s(name, []int{1}, []float32{1})
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	var all []safetensors.Tensor
	for _, name := range []string{"bert.a", "b", "bert.LayerNorm.gamma", "bert.LayerNorm.beta", "bert.both", "both", "encoder.embed_tokens.weight", "cls.predictions.decoder.bias", "lm_head.bias", "lm_head.decoder.bias", "tied.lm_head.decoder.bias"} {
		all = append(all, tensor(name))
	}
	if err := safetensors.Write(filepath.Join(dir, "model.safetensors"), all, nil); err != nil {
		t.Fatal(err)
	}
	f := open(t, dir)
	for name, want := range map[string]string{
		"a": "bert.a", "bert.a": "bert.a", "bert.b": "b", "b": "b", "both": "both", "bert.both": "bert.both",
		"LayerNorm.weight": "bert.LayerNorm.gamma", "bert.LayerNorm.bias": "bert.LayerNorm.beta",
		"shared.weight":        "encoder.embed_tokens.weight",
		"cls.predictions.bias": "cls.predictions.decoder.bias", "lm_head.bias": "lm_head.bias", "lm_head.decoder.bias": "lm_head.decoder.bias", "tied.lm_head.bias": "tied.lm_head.decoder.bias",
	} {
		x, err := f.Tensor(name, "roberta.", "bert.")
		if err != nil || x.Name != want {
			t.Errorf("%s: %s, %v; want %s", name, x.Name, err, want)
		}
	}
	if _, err := f.Tensor("a"); !errors.Is(err, safetensors.ErrNoTensor) || !strings.Contains(err.Error(), "bert.a") {
		t.Errorf("without prefixes: %v", err)
	}
	if got := f.Names(); len(got) != 11 {
		t.Errorf("names %q", got)
	}
}

// Of the hub's Instructor models sentence-transformers leaves the prompt out when it pools, though their folders don't say so.
func TestInstructor(t *testing.T) {
	dir := copyGolden(t, "st6")
	if f := open(t, dir); !f.Pooling.IncludePrompt {
		t.Fatal("the prompt is left out of another model's pooling")
	}
	snapshot := filepath.Join(t.TempDir(), "models--hkunlp--instructor-base", "snapshots", "1")
	if err := os.CopyFS(snapshot, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if f := open(t, snapshot); f.Pooling.IncludePrompt {
		t.Error("the prompt is pooled")
	}
}

func TestCheckPath(t *testing.T) {
	for _, good := range []string{"a", "a/b.json", "1_Pooling/config.json", "..a", "a..b/c", ".hidden", "Größe"} {
		if err := checkPath(good); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{"", "/a", "../a", "a/../../b", "a/..", "a//b", "./a", "a/.", `a\b`, `..\a`, "C:/a", "C:a", "a:b",
		"a\x00b", "a\nb", "a./b", "a ", "\xff", "a/", strings.Repeat("a", 2000)} {
		if err := checkPath(bad); err == nil {
			t.Errorf("%q passed", bad)
		}
	}
}

// TestRealMiniLM opens the model that a Python package brings along, where CONTRAFLOW_MINILM says it is.
func TestRealMiniLM(t *testing.T) {
	dir := os.Getenv("CONTRAFLOW_MINILM")
	if dir == "" {
		t.Skip("CONTRAFLOW_MINILM is not set")
	}
	f := open(t, dir)
	if *f.Pooling != (Pooling{Mean, 384, true}) || !f.Normalize || f.MaxSeqLength != 256 || len(f.Names()) < 100 {
		t.Errorf("%+v %v %d, %d tensors", *f.Pooling, f.Normalize, f.MaxSeqLength, len(f.Names()))
	}
	x, err := f.Tensor("encoder.layer.5.output.dense.weight", "bert.")
	if err != nil || !slices.Equal(x.Shape, []int{384, 1536}) {
		t.Error(x, err)
	}
}

// tree lists every file below dir, with its content's length, so that nothing can hide.
func tree(t testing.TB, dir string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		info, err := os.Lstat(path)
		all = append(all, fmt.Sprintf("%s %d", filepath.ToSlash(rel), info.Size()))
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return all
}

// As sentence-transformers documents for encode_query and encode_document.
func TestNullPrompt(t *testing.T) {
	dir := copyGolden(t, "st6")
	put(t, dir, "config_sentence_transformers.json", `{"prompts": {"query": null, "document": "d: "}}`)
	if f := open(t, dir); len(f.Prompts) != 1 || f.Prompts["document"] != "d: " {
		t.Errorf("%q", f.Prompts)
	}
}

func TestRolePrompts(t *testing.T) {
	for _, c := range []struct {
		prompts         map[string]string
		query, document string
	}{
		{nil, "", ""},
		{map[string]string{"query": "q: ", "document": "d: ", "passage": "p: "}, "q: ", "d: "},
		{map[string]string{"query": "q: ", "passage": "p: ", "corpus": "c: "}, "q: ", "p: "},
		{map[string]string{"corpus": "c: "}, "", "c: "},
		{map[string]string{"query": "q: ", "document": "", "passage": "p: "}, "q: ", ""},
	} {
		f := Folder{Prompts: c.prompts}
		if q, d := f.RolePrompts(); q != c.query || d != c.document {
			t.Errorf("%v: %q, %q", c.prompts, q, d)
		}
	}
}
