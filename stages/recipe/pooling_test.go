package recipe

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/io/checkpoint"
	"contraflow/tokenize"
)

// The first token's vector of a causal model, which knows nothing of the text, is refused; with a model whose tokens see each other it trains.
func TestCausalPooling(t *testing.T) {
	j := newJob(t, 30)
	causal := j.family(t, "mistral", nil)
	const want = "model.pooling: cls is the first token's vector"
	for pooling, refused := range map[string]bool{"cls": true, "last": false, "mean": false} {
		_, err := j.run(t, pooling, nil, 0, false, "model.path="+causal, "model.pooling="+pooling, "train.max_steps=1")
		if refused != (err != nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", pooling, err)
		}
	}
	if _, err := j.run(t, "bert", nil, 0, false, "model.pooling=cls", "train.max_steps=1"); err != nil {
		t.Error(err)
	}
}

// A run goes on with the pooling that it has had, also where nobody has said which it is; before a checkpoint kept it that was a mean.
func TestResumePooling(t *testing.T) {
	j := newJob(t, 30)
	silent := j.family(t, "mistral", map[string]any{"architectures": []string{"MistralForCausalLM"}})
	if err := os.Remove(filepath.Join(silent, "modules.json")); err != nil {
		t.Fatal(err)
	}
	sets := []string{"model.path=" + silent, "train.max_steps=4"}
	if _, err := j.run(t, "run", nil, 2, false, sets...); err != nil {
		t.Fatal(err)
	}
	if _, err := j.run(t, "run", nil, 0, true, append(sets, "model.pooling=mean")...); !errors.Is(err, ErrRecipeChanged) || !strings.Contains(err.Error(), "model.pooling: embeddings were pooled by last, and now are by mean; model.pooling: last goes on") {
		t.Error(err)
	}
	if _, err := j.run(t, "run", nil, 0, true, append(sets, "model.pooling=last")...); err != nil {
		t.Error(err)
	}
	model, bert, cls := os.DirFS(filepath.Join(j.dir, "model")), filepath.Join(j.dir, "silent"), filepath.Join(j.dir, "cls")
	if err := errors.Join(os.CopyFS(bert, model), os.Remove(filepath.Join(bert, "modules.json")), os.CopyFS(cls, model),
		os.WriteFile(filepath.Join(cls, "1_Pooling", "config.json"), []byte(`{"word_embedding_dimension": 32, "pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}`), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		was  string // as the checkpoint's recipe says it, which keeps it nowhere else
		sets []string
		ok   bool
	}{
		{"", sets, false},
		{"", append(sets, "model.pooling=mean"), true},
		{"last", sets, true},
		{"", []string{"model.path=" + cls}, true}, // which it says
		{"", []string{"model.path=" + cls, "model.pooling=mean"}, false},
		{"", []string{"model.path=" + bert, "model.kind=m3"}, true},           // of which cls is usual
		{"", append(sets, "model.kind=multi_vector", "loss.name=mnrl"), true}, // which pools nothing
	} {
		x := j.opened(t, append(c.sets, "save.dir="+filepath.Join(j.dir, "old")))
		old := &checkpoint.Checkpoint{State: checkpoint.State{Recipe: "model: {path: a}"}}
		if c.was != "" {
			old.Recipe = "model: {path: a, pooling: " + c.was + "}"
		}
		if err := x.checkPooled(old); (err == nil) != c.ok {
			t.Errorf("%q, %q: %v", c.was, c.sets, err)
		}
	}
}

// With model.eos all texts end in the tokenizer's EOS token, in training and in the saved model, also of an adapter; without it a note says that pooling: last
// takes whatever stands there.
func TestEOS(t *testing.T) {
	j := newJob(t, 30)
	model := j.family(t, "mistral", map[string]any{"max_position_embeddings": 400})
	// The tokenizer of a base model: nothing behind texts, and an EOS token.
	edit := func(name string, change func(map[string]any)) {
		t.Helper()
		file := filepath.Join(model, name)
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var all map[string]any
		if err := json.Unmarshal(raw, &all); err != nil {
			t.Fatal(err)
		}
		change(all)
		if raw, err = json.Marshal(all); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, raw, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	edit("tokenizer.json", func(all map[string]any) { all["post_processor"] = nil })
	edit("tokenizer_config.json", func(all map[string]any) { all["eos_token"] = "[SEP]" })
	base, err := tokenize.Load(model)
	if err != nil {
		t.Fatal(err)
	}
	eos, _ := base.ID("[SEP]")
	want := append(base.Encode(j.words[7], 0), eos)

	tokens := map[string]int{}
	for name, more := range map[string][]string{"none": nil, "false": {"model.eos=false"}, "true": {"model.eos=true"}, "adapter": {"model.eos=true", "model.lora={rank: 2}"}} {
		o, err := j.run(t, name, nil, 0, false, append(more, "model.path="+model, "model.pooling=last", "train.max_steps=1", "batch.accumulate=1", "data.shuffle=false", "model.max_length=300")...)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		noted := strings.Contains(fmt.Sprint(o.notes), "with model.eos: true all end in [SEP]")
		if noted != (name == "none") {
			t.Errorf("%s: %q", name, o.notes)
		}
		tokens[name] = o.summary.Tokens
		saved, err := tokenize.Load(filepath.Join(j.dir, name, "model"))
		if err != nil {
			t.Fatal(err)
		}
		with := name == "true" || name == "adapter"
		if got := saved.Encode(j.words[7], 0); slices.Equal(got, want) != with {
			t.Errorf("%s: the saved tokenizer makes %v, want %v: %v", name, got, want, with)
		}
	}
	// A step has 13 rows, each a query and a positive, and all fit.
	if tokens["true"] != tokens["none"]+26 || tokens["adapter"] != tokens["true"] || tokens["false"] != tokens["none"] {
		t.Errorf("tokens of a step: %v", tokens)
	}
	if _, err := j.run(t, "refused", nil, 0, false, "model.eos=true"); err == nil || !strings.Contains(err.Error(), "model.eos: ") || !strings.Contains(err.Error(), "names no eos_token") { // BERT's
		t.Error(err)
	}
	if _, err := Parse("r.yaml", []byte(minimal), []string{"model.kind=m3", "model.eos=true"}); err == nil || !strings.Contains(err.Error(), "model.eos: is for model.kind: embedder") {
		t.Error(err)
	}
}

// With model.include_prompt: false pooling leaves prompts out, with gradients that verify, and the saved model says so; a folder that does trains alike without the key.
// A prompt that is in front of texts makes a difference all the same, as they attend to it.
func TestIncludePrompt(t *testing.T) {
	t.Parallel()
	j := newJob(t, 30)
	prompts := fmt.Sprintf("data.train.0.prompts={query: %q, document: %q}", j.words[3]+" ", j.words[4]+" "+j.words[5]+" ")
	losses := func(name string, sets ...string) map[int]float64 {
		t.Helper()
		o, err := j.run(t, name, nil, 0, false, append(sets, "train.max_steps=2", "model.dropout=0")...)
		if err != nil {
			t.Fatal(err)
		}
		return o.losses
	}
	without := losses("without", "model.include_prompt=false", prompts)
	for name, other := range map[string]map[int]float64{"with": losses("with", prompts), "none": losses("none", "model.include_prompt=false")} {
		if maps.Equal(without, other) {
			t.Errorf("%s: the same losses as without prompts in pooling", name)
		}
	}
	if !maps.Equal(losses("none, with", "model.include_prompt=true"), losses("none, without", "model.include_prompt=false")) {
		t.Error("without prompts there are other losses")
	}
	const config = "1_Pooling/config.json"
	for name, want := range map[string]string{"without": `"include_prompt":false`, "with": `"include_prompt":true`} {
		if raw, err := os.ReadFile(filepath.Join(j.dir, name, "model", config)); err != nil || !strings.Contains(strings.ReplaceAll(string(raw), " ", ""), want) {
			t.Errorf("%s: %s %v", name, raw, err)
		}
	}
	folder := filepath.Join(j.dir, "folder")
	if err := errors.Join(os.CopyFS(folder, os.DirFS(filepath.Join(j.dir, "model"))), os.WriteFile(filepath.Join(folder, config), []byte(`{"word_embedding_dimension": 32, "include_prompt": false}`), 0o600)); err != nil {
		t.Fatal(err)
	}
	if got := losses("folder", "model.path="+folder, prompts); !maps.Equal(got, without) {
		t.Errorf("a folder without include_prompt has the losses %v, want %v", got, without)
	}
	if _, err := j.run(t, "vectors", nil, 0, false, "model.path="+folder, "model.kind=multi_vector", "train.max_steps=1", prompts); err != nil {
		t.Error(err)
	}
	if got := losses("folder, with", "model.path="+folder, "model.include_prompt=true", prompts); maps.Equal(got, without) {
		t.Error("a folder without include_prompt trains without it where the recipe says otherwise")
	}

	x := j.opened(t, []string{"model.include_prompt=false", prompts, "save.dir=" + filepath.Join(j.dir, "verified")})
	o := DefaultVerify()
	o.Accumulate, o.SubBatches, o.Rows, o.Replicas = []int{2}, []int{5}, 4, []int{1, 2}
	if ok, err := x.Verify(t.Context(), o); err != nil || !ok {
		t.Errorf("gradients are right: %t, %v", ok, err)
	}
	if _, err := Parse("r.yaml", []byte(minimal), []string{"model.kind=sparse", "model.include_prompt=false"}); err == nil || !strings.Contains(err.Error(), "model.include_prompt: is for model.kind: embedder") {
		t.Error(err)
	}
}
