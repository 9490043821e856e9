package hfmodel

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"contraflow/io/safetensors"
	"contraflow/testdata/goldens"
)

// copyAdapter copies a golden adapter, whose base is then an absolute path.
func copyAdapter(t testing.TB, name string, change func(config map[string]any)) string {
	t.Helper()
	dir := t.TempDir()
	from := goldens.Path(t, "lora/"+name)
	raw, err := os.ReadFile(filepath.Join(from, adapterConfigFile))
	if err != nil {
		t.Fatal(err)
	}
	var config map[string]any
	if err := json.Unmarshal(raw, &config); err != nil {
		t.Fatal(err)
	}
	config["base_model_name_or_path"] = goldens.Path(t, "bert/minilm-tiny")
	if change != nil {
		change(config)
	}
	if raw, err = json.Marshal(config); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, adapterConfigFile), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	weights, err := os.ReadFile(filepath.Join(from, AdapterWeights))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, AdapterWeights), weights, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// PEFT's folders open as their base with the adapter.
func TestAdapter(t *testing.T) {
	for _, c := range []struct {
		name           string
		factors, whole int
		scale          float64
	}{
		{"bert-qv", 6, 0, 2},
		{"bert-all", 19, 0, 6 / math.Sqrt(3)}, // with the pooler's
		{"bert-save", 6, 14, 1.5},
	} {
		f, err := Open(copyAdapter(t, c.name, nil))
		if err != nil {
			t.Fatal(err)
		}
		a := f.Adapter
		if len(a.Factors) != c.factors || len(a.Whole) != c.whole {
			t.Errorf("%s: %d factors and %d whole tensors, want %d and %d", c.name, len(a.Factors), len(a.Whole), c.factors, c.whole)
		}
		for _, x := range a.Factors {
			if x.Scale != c.scale || x.A.Shape[0] != a.Rank || x.B.Shape[1] != a.Rank || strings.Contains(x.Module, "base_model") {
				t.Errorf("%s: %+v", c.name, x)
			}
		}
		if f.ModelType != "bert" || !f.Normalize || f.Pooling == nil || len(f.Prompts) == 0 || f.MaxSeqLength != f.Base.MaxSeqLength || f.TokenizerDir != f.Base.Dir {
			t.Errorf("%s: %+v", c.name, f)
		}
		const norm = "embeddings.LayerNorm.weight"
		mine, err := f.Tensor(norm)
		if err != nil {
			t.Fatal(err)
		}
		if saved := strings.HasPrefix(mine.Name, AdapterPrefix); saved != (c.whole > 0) {
			t.Errorf("%s: %s is %s", c.name, norm, mine.Name)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		if err := f.Close(); err != nil {
			t.Errorf("closed again: %v", err)
		}
	}
}

// The base is pinned by its revision where it is the hub's; target_modules may be one regular expression; an adapter is no base of another; and a model beside which its configuration was left is none.
func TestAdapterSays(t *testing.T) {
	here := goldens.Path(t, "bert/minilm-tiny")
	for want, a := range map[string]Adapter{"org/name@v2": {Base: "org/name", Revision: "v2"}, "org/name": {Base: "org/name"}, here: {Base: here, Revision: "v2"}} {
		if got := a.BaseID(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	dir := copyAdapter(t, "bert-qv", func(c map[string]any) { c["target_modules"], c["revision"] = ".*query", "v2" })
	if got := open(t, dir).Adapter.Targets; !slices.Equal(got, []string{".*query"}) {
		t.Errorf("targets %q", got)
	}
	if _, err := OpenOn(dir, dir); err == nil || !strings.Contains(err.Error(), "is an adapter itself") {
		t.Errorf("on an adapter: %v", err)
	}
	merged := copyGolden(t, "st6")
	put(t, merged, adapterConfigFile, "{}") // without the adapter
	if f := open(t, merged); f.Adapter != nil {
		t.Errorf("merged: %+v", f.Adapter)
	}
}

// Modules may have alphas of their own, by patterns of which the first that fits counts. The golden is PEFT's, made by alphas.py.
func TestAdapterAlphas(t *testing.T) {
	raw, err := os.ReadFile(goldens.Path(t, "lora/alphas.json"))
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Cases []struct {
			Pattern json.RawMessage `json:"alpha_pattern"`
			RSLoRA  bool            `json:"use_rslora"`
			Scales  map[string]float64
		}
	}
	if err := json.Unmarshal(raw, &golden); err != nil || len(golden.Cases) == 0 {
		t.Fatal(err, "or no cases")
	}
	for _, c := range golden.Cases {
		f := open(t, copyAdapter(t, "bert-qv", func(config map[string]any) { config["alpha_pattern"], config["use_rslora"] = c.Pattern, c.RSLoRA }))
		got := map[string]float64{}
		for _, x := range f.Adapter.Factors {
			got[x.Module] = x.Scale
		}
		if !maps.Equal(got, c.Scales) {
			t.Errorf("%s: %v, want %v", c.Pattern, got, c.Scales)
		}
	}
	for pattern, want := range map[string]float64{"x|query": 3. / 4, "x|uery": 2} { // of a choice each is a whole name
		f := open(t, copyAdapter(t, "bert-qv", func(config map[string]any) { config["alpha_pattern"] = map[string]any{pattern: 3} }))
		if x := f.Adapter.Factors[0]; !strings.HasSuffix(x.Module, ".query") || x.Scale != want {
			t.Errorf("%s: %s has %v, want %v", pattern, x.Module, x.Scale, want)
		}
	}
	ranked := open(t, copyAdapter(t, "bert-qv", func(config map[string]any) { // alpha 8 is divided by the rank of a module's own
		config["r"], config["rank_pattern"] = 2, map[string]int{"query": 4, "value": 4}
	}))
	for _, x := range ranked.Adapter.Factors {
		if x.Scale != 2 {
			t.Errorf("of rank 4 %s has %v, want 2", x.Module, x.Scale)
		}
	}
}

// What a folder of PEFT's does not say, its base's does.
func TestAdapterOfBase(t *testing.T) {
	base := filepath.Join(t.TempDir(), "base")
	if err := os.CopyFS(base, os.DirFS(goldens.Path(t, "bert/minilm-tiny"))); err != nil {
		t.Fatal(err)
	}
	put(t, base, modelFile, `{"prompts": {"query": "q: "}, "default_prompt_name": "query", "similarity_fn_name": "dot", "truncate_dim": 8}`)
	put(t, base, "sentence_bert_config.json", `{"max_seq_length": 20, "do_lower_case": true}`)
	f, err := OpenOn(base, copyAdapter(t, "bert-qv", nil))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got := fmt.Sprintf("%v %s %s %d %d %t %t", f.Prompts, f.DefaultPromptName, f.Similarity, f.TruncateDim, f.MaxSeqLength, f.LengthGiven, f.LowerCase); got != "map[query:q: ] query dot 8 20 true true" {
		t.Error(got)
	}
}

func TestAdapterErrors(t *testing.T) {
	set := func(key string, value any) func(map[string]any) {
		return func(c map[string]any) { c[key] = value }
	}
	for want, change := range map[string]func(map[string]any){
		`peft_type "IA3" is not supported`:                                                 set("peft_type", "IA3"),
		"use_dora true is not supported; merge":                                            set("use_dora", true),
		`alpha_pattern: "(?!value)query" is not supported`:                                 set("alpha_pattern", map[string]int{"(?!value)query": 3}),
		`alpha_pattern: query: got "3", want`:                                              set("alpha_pattern", map[string]string{"query": "3"}),
		`alpha_pattern: query: got null, want a number`:                                    set("alpha_pattern", map[string]any{"query": nil}),
		`init_lora_weights "pissa_niter_4" is not supported; merge`:                        set("init_lora_weights", "pissa_niter_4"),
		`init_lora_weights "olora" is not supported; merge`:                                set("init_lora_weights", "olora"),
		`bias "all" is not supported; merge`:                                               set("bias", "all"),
		`of_a_later_peft 1 is not supported; merge`:                                        set("of_a_later_peft", 1),
		"base_model_name_or_path in adapter_config.json names it: put it there, edit that": set("base_model_name_or_path", "/nowhere/model"),
		"adapter_config.json: r: got":                                                      set("r", "four"),
		"does not name the base model":                                                     set("base_model_name_or_path", nil),
		"the adapter's base model: model folder /nowher":                                   set("base_model_name_or_path", "/nowhere/model"),
		"is an adapter itself":                                                             set("base_model_name_or_path", goldens.Path(t, "lora/bert-qv")),
		"target_modules: got 3, want names":                                                set("target_modules", 3),
	} {
		if _, err := Open(copyAdapter(t, "bert-qv", change)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	for _, start := range []any{nil, true, false, "gaussian", "Gaussian", "eva"} { // the base stays as it is
		f, err := Open(copyAdapter(t, "bert-qv", set("init_lora_weights", start)))
		if err != nil {
			t.Errorf("init_lora_weights %v: %v", start, err)
			continue
		}
		f.Close()
	}
	tensor := func(name string, shape ...int) safetensors.Tensor {
		n := 1
		for _, d := range shape {
			n *= d
		}
		x, err := safetensors.FromFloat32s(name, shape, make([]float32, n))
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	for want, tensors := range map[string][]safetensors.Tensor{
		`tensor "x.lora_A.weight" does not begin with base_model.model.`: {tensor("x.lora_A.weight", 2, 3)},
		"x has one of lora_A and lora_B, want both":                      {tensor(AdapterPrefix+"x.lora_A.weight", 2, 3)},
		"their ranks differ":                {tensor(AdapterPrefix+"x.lora_A.weight", 2, 3), tensor(AdapterPrefix+"x.lora_B.weight", 3, 4)},
		"lora_A has shape [0 3]":            {tensor(AdapterPrefix+"x.lora_A.weight", 0, 3), tensor(AdapterPrefix+"x.lora_B.weight", 3, 0)},
		"only factors of linear layers are": {tensor(AdapterPrefix+"x.lora_embedding_A", 2, 3)},
		"save it with save_pretrained":      {tensor(AdapterPrefix+"x.lora_A.default.weight", 2, 3)},
		"no tensors":                        {},
	} {
		dir := copyAdapter(t, "bert-qv", nil)
		if err := safetensors.Write(filepath.Join(dir, AdapterWeights), tensors, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	dir := copyAdapter(t, "bert-qv", func(c map[string]any) { c["lora_alpha"] = 1e308 })
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "lora_alpha of adapter_config.json is 1e+308, which float32 does not have") {
		t.Errorf("error %v", err)
	}
	dir = copyAdapter(t, "bert-qv", nil)
	os.Remove(filepath.Join(dir, AdapterWeights))
	os.WriteFile(filepath.Join(dir, "adapter_model.bin"), nil, 0o600)
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "a Python pickle") {
		t.Errorf("error %v", err)
	}
	if _, err := OpenOn(goldens.Path(t, "bert/minilm-tiny"), goldens.Path(t, "bert/minilm-tiny")); err == nil || !strings.Contains(err.Error(), "not the folder of a LoRA adapter") {
		t.Errorf("error %v", err)
	}
}

// What Save writes as an adapter opens again, with a tokenizer, pooling and prompts of its own.
func TestSaveAdapter(t *testing.T) {
	base, err := Open(goldens.Path(t, "bert/minilm-tiny"))
	if err != nil {
		t.Fatal(err)
	}
	defer base.Close()
	a, _ := safetensors.FromFloat32s("encoder.layer.0.attention.self.query.lora_A.weight", []int{1, 32}, make([]float32, 32))
	b, _ := safetensors.FromFloat32s("encoder.layer.0.attention.self.query.lora_B.weight", []int{32, 1}, make([]float32, 32))
	norm, _ := safetensors.FromFloat32s("embeddings.LayerNorm.bias", []int{32}, make([]float32, 32))
	dir := filepath.Join(t.TempDir(), "adapter")
	spec := Spec{
		Config: base.Config, Tensors: []safetensors.Tensor{a, b, norm}, Pooling: Pooling{Mode: CLS, IncludePrompt: true}, MaxSeqLength: 20, Base: base,
		Prompts: map[string]string{"query": "q: "}, Tokenizer: base.CopyTokenizer,
		Adapter: &AdapterSpec{Base: base.Dir, Rank: 1, Alpha: 3, Dropout: 0.1, RSLoRA: true, Targets: []string{"query"}, Save: []string{"embeddings.LayerNorm"}},
	}
	for range 2 { // the second time it replaces the first
		if err := Save(dir, spec); err != nil {
			t.Fatal(err)
		}
	}
	f, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got := fmt.Sprint(f.Adapter.Rank, f.Adapter.Alpha, f.Adapter.Dropout, f.Adapter.RSLoRA, f.Adapter.Targets, f.Adapter.Save, len(f.Adapter.Factors), len(f.Adapter.Whole))
	if got != "1 3 0.1 true [query] [embeddings.LayerNorm] 1 1" {
		t.Error(got)
	}
	if f.Pooling.Mode != CLS || f.Normalize || f.MaxSeqLength != 20 || f.Prompts["query"] != "q: " || f.TokenizerDir != dir || f.Base.Dir != base.Dir {
		t.Errorf("%+v", f)
	}
	if _, err := os.Stat(filepath.Join(dir, "config.json")); err == nil {
		t.Error("an adapter's folder has a config.json: transformers would look for a model in it")
	}
	commit := strings.Repeat("0a", 20)
	cache := filepath.Join(t.TempDir(), "models--org--name", "snapshots", commit)
	if err := os.MkdirAll(cache, 0o700); err != nil {
		t.Fatal(err)
	}
	for base, want := range map[string][3]any{"org/name": {"org/name", nil, 1}, "org/name@v1": {"org/name", "v1", 1}, cache: {"org/name", commit, 2}} {
		var c map[string]any
		files := (AdapterSpec{Base: base}).files(dir)
		if err := json.Unmarshal(files[adapterConfigFile], &c); err != nil || c["base_model_name_or_path"] != want[0] || c["revision"] != want[1] || len(files) != want[2] {
			t.Errorf("%s: %v, %v", base, files, err)
		}
	}
}

// An adapter that moves together with its base finds it. Where it does not, it says what to do. PEFT finds a folder that is named in full.
func TestAdapterMoves(t *testing.T) {
	dir := t.TempDir()
	at := func(names ...string) string { return filepath.Join(append([]string{dir}, names...)...) }
	if err := os.CopyFS(at("here", "base"), os.DirFS(goldens.Path(t, "bert/minilm-tiny"))); err != nil {
		t.Fatal(err)
	}
	base, err := Open(at("here", "base"))
	if err != nil {
		t.Fatal(err)
	}
	defer base.Close()
	a, _ := safetensors.FromFloat32s("encoder.layer.0.attention.self.query.lora_A.weight", []int{1, 32}, make([]float32, 32))
	b, _ := safetensors.FromFloat32s("encoder.layer.0.attention.self.query.lora_B.weight", []int{32, 1}, make([]float32, 32))
	if err := Save(at("here", "run", "model"), Spec{
		Config: base.Config, Tensors: []safetensors.Tensor{a, b}, Pooling: Pooling{Mode: Mean, IncludePrompt: true}, MaxSeqLength: 20, Base: base, Tokenizer: base.CopyTokenizer,
		Adapter: &AdapterSpec{Base: base.Dir, Rank: 1, Alpha: 3, Targets: []string{"query"}},
	}); err != nil {
		t.Fatal(err)
	}
	opens := func(where string, want string) {
		t.Helper()
		f, err := Open(where)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if f.Base.Dir != want || f.Adapter.BaseID() != want {
			t.Errorf("the base of %s is %s, %s; want %s", where, f.Base.Dir, f.Adapter.BaseID(), want)
		}
	}
	opens(at("here", "run", "model"), at("here", "base"))
	if err := os.CopyFS(at("there"), os.DirFS(at("here"))); err != nil {
		t.Fatal(err)
	}
	opens(at("there", "run", "model"), at("here", "base")) // as in PEFT
	if err := os.RemoveAll(at("here")); err != nil {
		t.Fatal(err)
	}
	opens(at("there", "run", "model"), at("there", "base"))
	if got, err := Resolve(t.Context(), at("there", "run", "model"), Options{Offline: true}); err != nil || got != at("there", "run", "model") {
		t.Errorf("%s, %v", got, err)
	}
	config := at("there", "run", "model", adapterConfigFile)
	raw, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(at("there", "run", "model", adapterBaseFile)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(config, bytes.Replace(raw, []byte(strconv.Quote(at("here", "base"))), []byte(`"../../base"`), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	opens(at("there", "run", "model"), at("there", "base"))
	if err := os.Rename(at("there", "base"), at("elsewhere")); err != nil {
		t.Fatal(err)
	}
	want := "model folder ../../base: not found, nor is it at " + at("there", "base") + "; base_model_name_or_path in adapter_config.json names it: put it there, edit that, or give the model"
	if _, err := Open(at("there", "run", "model")); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v; want %q", err, want)
	}
}
