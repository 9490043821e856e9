package hfmodel

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
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
func staticFolder(t testing.TB, path string, tensors ...safetensors.Tensor) string {
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

func floatsOf(t testing.TB, name string, shape []int, vs ...float32) safetensors.Tensor {
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
		case safetensors.F16: // of powers of two
			x.Data = binary.LittleEndian.AppendUint16(x.Data, uint16(15+math.Ilogb(v))<<10)
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
		"weights":   {".", []safetensors.Tensor{vec, numbers(safetensors.F64, "weights", 0.5, 0.3, 0.1)}, []float32{0.5, 1, float32(3 * 0.3), float32(4 * 0.3), 0.5, float32(6 * 0.1)}},
		"halves":    {".", []safetensors.Tensor{vec, numbers(safetensors.F16, "weights", 0.5, 2, 4)}, []float32{0.5, 1, 6, 8, 20, 24}},
		"both": {".", []safetensors.Tensor{vec, numbers(safetensors.I32, "mapping", 1, 1), floatsOf(t, "weights", []int{2}, 0.5, 4)},
			[]float32{1.5, 2, 12, 16}},
	} {
		f := open(t, staticFolder(t, x.path, x.tensors...))
		got, err := f.Tensor("embedding.weight")
		if err != nil {
			t.Fatal(name, err)
		}
		vs := make([]float32, got.Len())
		if err := got.Float32s(vs); err != nil || !slices.Equal(vs, x.want) || got.Name != x.tensors[0].Name {
			t.Errorf("%s: %q, %v, %v, want %v", name, got.Name, vs, err, x.want)
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

// denseStatic adds a Dense module to a static folder, and puts its normalization behind it.
func denseStatic(t *testing.T, dir, path string) {
	t.Helper()
	put(t, dir, "modules.json", `[{"idx": 0, "name": "0", "path": "`+path+`", "type": "sentence_transformers.models.StaticEmbedding"},
		{"idx": 1, "name": "1", "path": "own", "type": "sentence_transformers.models.Dense"},
		{"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}]`)
	put(t, dir, "own/config.json", `{"in_features": 2, "out_features": 1, "bias": false, "activation_function": "torch.nn.modules.linear.Identity"}`)
	if err := safetensors.Write(filepath.Join(dir, "own", weightsFile), []safetensors.Tensor{floatsOf(t, "linear.weight", []int{1, 2}, 7, 8)}, nil); err != nil {
		t.Fatal(err)
	}
}

// What is saved is what sentence-transformers saves, its modules numbered as it numbers them, and opens again; keys that nobody here knows are carried
// over.
func TestSaveStatic(t *testing.T) {
	folder := staticFolder(t, "0_StaticEmbedding", floatsOf(t, "embedding.weight", []int{3, 2}, 1, 2, 3, 4, 5, 6))
	dir := filepath.Join(t.TempDir(), "model")
	for _, x := range []struct {
		dense   bool
		names   []string
		modules []module
	}{
		{true, []string{"1_Dense/config.json", "1_Dense/model.safetensors", "README.md", "config_sentence_transformers.json", "model.safetensors", "modules.json", "tokenizer.json"}, []module{
			{0, "0", "", "sentence_transformers.models.StaticEmbedding"}, {1, "1", "1_Dense", "sentence_transformers.models.Dense"}, {2, "2", "2_Normalize", "sentence_transformers.models.Normalize"}}},
		{false, []string{"README.md", "config_sentence_transformers.json", "model.safetensors", "modules.json", "tokenizer.json"}, []module{
			{0, "0", "", "sentence_transformers.models.StaticEmbedding"}, {1, "1", "1_Normalize", "sentence_transformers.models.Normalize"}}},
	} {
		if x.dense {
			denseStatic(t, folder, "0_StaticEmbedding")
		} else {
			put(t, folder, "modules.json", `[{"path": "0_StaticEmbedding", "type": "sentence_transformers.models.StaticEmbedding"}, {"path": "1", "type": "sentence_transformers.models.Normalize"}]`)
		}
		f := open(t, folder)
		s := specOf(t, f)
		s.Dense = f.Dense
		if err := Save(dir, s); err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, file := range tree(t, dir) {
			names = append(names, strings.Trim(strings.Fields(file)[0], `"`))
		}
		if !slices.Equal(names, x.names) {
			t.Errorf("%q, want %q", names, x.names)
		}
		var modules []module
		readJSON(t, filepath.Join(dir, "modules.json"), &modules)
		if !slices.Equal(modules, x.modules) {
			t.Errorf("%+v, want %+v", modules, x.modules)
		}
		if x.dense {
			g := open(t, dir)
			w, err := g.Tensor("1_Dense.linear.weight")
			vs := make([]float32, 2)
			if err = errors.Join(err, w.Float32s(vs)); err != nil || vs[0] != 7 || vs[1] != 8 {
				t.Errorf("%v, %v", vs, err)
			}
		}
	}
	f, g := open(t, folder), open(t, dir)
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

// tokenizer.json's truncation, which transformers passes over, is heeded by StaticEmbedding: it is read from where the tokenizer is, and written; a
// file that says what it should stays as it is.
func TestStaticTruncation(t *testing.T) {
	dir := staticFolder(t, "0_StaticEmbedding", floatsOf(t, "embedding.weight", []int{1, 1}, 1))
	put(t, dir, "tokenizer.json", `{"truncation": {"max_length": 5}}`) // of nothing
	const model = `"model":{"b":[ 1,2 ],"a":{}}}`
	cut := `{"truncation":{"max_length":128,"direction":"Right"},"padding":null,` + model
	put(t, dir, "0_StaticEmbedding/tokenizer.json", cut)
	if f := open(t, dir); f.MaxSeqLength != 128 || !f.LengthGiven {
		t.Errorf("%d tokens", f.MaxSeqLength)
	}
	for name, x := range map[string]struct {
		given  string
		length int
		want   string // without white space
	}{
		"the same":     {cut, 128, cut},
		"another":      {cut, 60, `{"truncation":{"direction":"Right","max_length":60,"strategy":"LongestFirst","stride":0},"padding":null,` + model},
		"none":         {cut, 0, `{"truncation":null,"padding":null,` + model},
		"none, as was": {`{` + model, 0, `{` + model},
		"new":          {`{` + model, 7, `{` + model[:len(model)-1] + `,"padding":null,"truncation":{"direction":"Right","max_length":7,"strategy":"LongestFirst","stride":0}}`},
		"padded":       {`{"padding":{"pad_id":3},` + model, 0, `{"padding":null,` + model[:len(model)-1] + `,"truncation":null}`},
	} {
		put(t, dir, "0_StaticEmbedding/tokenizer.json", x.given)
		s := specOf(t, open(t, dir))
		s.MaxSeqLength = x.length
		out := filepath.Join(t.TempDir(), "model")
		if err := Save(out, s); err != nil {
			t.Fatal(name, err)
		}
		got, err := os.ReadFile(filepath.Join(out, "tokenizer.json"))
		if err != nil {
			t.Fatal(err)
		}
		var a, b any
		if err := errors.Join(json.Unmarshal(got, &a), json.Unmarshal([]byte(x.want), &b)); err != nil || !reflect.DeepEqual(a, b) || x.given == x.want && string(got) != x.want {
			t.Errorf("%s: %s, want %s", name, got, x.want)
		}
		if i, j := strings.Index(string(got), `"b"`), strings.Index(string(got), `"a"`); i > j {
			t.Errorf("%s: keys are in another order: %s", name, got)
		}
		if f := open(t, out); f.MaxSeqLength != x.length {
			t.Errorf("%s: saved with %d tokens, opened with %d", name, x.length, f.MaxSeqLength)
		}
		card, err := os.ReadFile(filepath.Join(out, "README.md"))
		if err != nil {
			t.Fatal(err)
		}
		if line := fmt.Sprintf("- Maximum length: %d tokens\n", x.length); strings.Contains(string(card), line) != (x.length > 0) || strings.Contains(string(card), "however long") {
			t.Errorf("%s: %s", name, card)
		}
	}
}

// What model2vec wrote before it wrote a modules.json is known by its config.json's model_type, or by the table's name; other folders are what they
// were.
func TestModel2vec(t *testing.T) {
	table := floatsOf(t, "embeddings", []int{2, 2}, 1, 2, 3, 4)
	for config, x := range map[string]struct {
		table     safetensors.Tensor
		normalize bool
		err       string
	}{
		`{"model_type": "model2vec", "normalize": true}`: {table: table, normalize: true},
		`{"normalize": false, "hidden_dim": 2}`:          {table: table},
		``:                                               {table: table},
		`{"normalize": 3}`:                               {table: table, err: "normalize: got 3"},
		`{"model_type": "model2vec"}`:                    {table: floatsOf(t, "table", []int{1}, 1), err: "embedding.weight"},
		`{"hidden_dim": 2}`:                              {table: floatsOf(t, "embedding.weight", []int{1, 1}, 1), err: "no model_type"},
		`{"model_type": "other"}`:                        {table: table},
	} {
		dir := staticFolder(t, "", x.table)
		if err := os.Remove(filepath.Join(dir, "modules.json")); err != nil {
			t.Fatal(err)
		}
		if config != "" {
			put(t, dir, "config.json", config)
		}
		f, err := Open(dir)
		if x.err != "" {
			if err == nil || !strings.Contains(err.Error(), x.err) {
				t.Errorf("%s: error %v, want %q", config, err, x.err)
			}
			continue
		}
		if err != nil {
			t.Fatal(config, err)
		}
		if static := !strings.Contains(config, "other"); f.Static() != static || f.Normalize != x.normalize || static && f.Pooling.Dimension != 2 {
			t.Errorf("%s: %+v", config, f)
		}
		f.Close()
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
		`tensor "weights": element 1 is NaN`:         {vec, floatsOf(t, "weights", []int{2}, 1, float32(math.NaN()))},
	} {
		if _, err := Open(staticFolder(t, "", tensors...)); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	dir := staticFolder(t, "", vec)
	for want, modules := range map[string][]string{
		"static embeddings are pooled already":                {"StaticEmbedding", "Pooling"},
		"there is nothing before it that it could normalize":  {"Normalize", "StaticEmbedding"},
		"static embeddings that are not the first module are": {"Transformer", "StaticEmbedding"},
	} {
		var list []string
		for i, kind := range modules {
			list = append(list, fmt.Sprintf(`{"path": "%d", "type": "sentence_transformers.models.%s"}`, i, kind))
		}
		put(t, dir, "modules.json", "["+strings.Join(list, ", ")+"]")
		if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	for want, tokenizer := range map[string]string{
		"truncation: max_length is 0": `{"truncation": {"max_length": 0}}`, "truncation: got 3": `{"truncation": 3}`, "has no tokenizer.json": "",
	} {
		dir := staticFolder(t, "", vec)
		if put(t, dir, "tokenizer.json", tokenizer); tokenizer == "" {
			put(t, dir, "vocab.txt", "a\nb\n")
			if err := os.Remove(filepath.Join(dir, "tokenizer.json")); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	s := specOf(t, open(t, staticFolder(t, "", vec)))
	s.Tokenizer = func(dir string) error { return os.WriteFile(filepath.Join(dir, "vocab.txt"), []byte("a\n"), 0o666) }
	if err := Save(filepath.Join(t.TempDir(), "model"), s); err == nil || !strings.Contains(err.Error(), "save_pretrained") {
		t.Errorf("error %v", err)
	}
	dir = staticFolder(t, "", vec)
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
	for _, name := range []string{"tokenizer.json", weightsFile} { // as models of sentence-transformers have them
		h.files["0_StaticEmbedding/"+name] = h.files[name]
		delete(h.files, name)
	}
	h.files["modules.json"] = strings.Replace(h.files["modules.json"], `"path": "."`, `"path": "0_StaticEmbedding"`, 1)
	options.CacheDir = t.TempDir()
	if f := open(t, mustResolve(t, "org/name", options)); !f.Static() || filepath.Base(f.TransformerDir) != "0_StaticEmbedding" {
		t.Errorf("%+v", f)
	}
	delete(h.files, "config.json")
	options.CacheDir = t.TempDir()
	open(t, mustResolve(t, "org/name", options))
	options.Offline = true
	open(t, mustResolve(t, "org/name", options)) // all of it is there
}
