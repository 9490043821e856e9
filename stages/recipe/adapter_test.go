package recipe

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/gpustage/ref"
	"contraflow/io/safetensors"
	"contraflow/stages/embedder"
	"contraflow/testdata/harness"
)

// Training goes on with an adapter: its factors are those that train, and its modules that train as a whole, on ranks that hold parts of them too;
// what is saved is an adapter of the same base. At its first step the model is what it is with the adapter merged.
func TestAdapterGoesOn(t *testing.T) {
	harness.Thorough(t)
	j := newJob(t, 60)
	const (
		quick   = "optimizer={lr: 2e-2, schedule: constant, warmup_ratio: 0}"
		nowhere = "optimizer={lr: 1e-30, schedule: constant, warmup_ratio: 0, weight_decay: 0}"
		lora    = "model.lora={rank: 3, alpha: 5, rslora: true, targets: [query, output.dense], modules_to_save: [LayerNorm]}"
	)
	train := func(out string, resume bool, stopAt int, sets ...string) outcome {
		t.Helper()
		o, err := j.run(t, out, nil, stopAt, resume, append([]string{lora, "model.dropout=0"}, sets...)...)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	train("first", false, 0, quick, "train.max_steps=6")
	first := filepath.Join(j.dir, "first", "model")
	on := "model.path=" + first
	config := func(out string) (c struct {
		Base    string   `json:"base_model_name_or_path"`
		Rank    int      `json:"r"`
		Targets []string `json:"target_modules"`
		Save    []string `json:"modules_to_save"`
	}) {
		raw, err := os.ReadFile(filepath.Join(j.dir, out, "model", "adapter_config.json"))
		if err == nil {
			err = json.Unmarshal(raw, &c)
		}
		if err != nil {
			t.Fatal(err)
		}
		return c
	}

	merged := filepath.Join(j.dir, "merged")
	if err := embedder.Merge("", first, merged, "f32", ref.New(), nil); err != nil {
		t.Fatal(err)
	}
	want := train("anew", false, 0, "model.path="+merged, nowhere, "train.max_steps=1").losses[0]
	bare := train("bare", false, 0, nowhere, "train.max_steps=1").losses[0]
	if math.Abs(want-bare) < 1e-3 {
		t.Fatalf("the adapter does nothing: losses %v and %v", want, bare)
	}
	for name, sets := range map[string][]string{
		"alone": nil, "replicas": {"mesh.replicate=2"}, "shards": {"mesh.shard=2"}, "streamed": {"mesh.shard=2", "mesh.parameters=streamed"},
	} {
		o := train(name, false, 0, append(sets, on, nowhere, "train.max_steps=1")...)
		if e := math.Abs(o.losses[0] - want); !(e <= 1e-5*want) {
			t.Errorf("%s: the first loss is %v, of the merged model %v", name, o.losses[0], want)
		}
		if !bytes.Equal(j.saved(t, name, "adapter_model.safetensors"), j.saved(t, "first", "adapter_model.safetensors")) {
			t.Errorf("%s: a step of no length leaves another adapter", name)
		}
		if got, want := config(name), config("first"); got.Base != want.Base || got.Rank != 3 || strings.Join(got.Targets, " ") != strings.Join(want.Targets, " ") || len(got.Save) != 1 {
			t.Errorf("%s: adapter_config.json says %+v, want %+v", name, got, want)
		}
	}

	whole := train("whole", false, 0, on, quick, "train.max_steps=4", "save.every=1")
	if !(whole.losses[3] < want) {
		t.Errorf("losses %v, the first of which is %v", whole.losses, want)
	}
	train("stopped", false, 2, on, quick, "train.max_steps=4", "save.every=1")
	train("stopped", true, 0, on, quick, "train.max_steps=4", "save.every=1")
	if !bytes.Equal(j.saved(t, "stopped", "adapter_model.safetensors"), j.saved(t, "whole", "adapter_model.safetensors")) {
		t.Error("a run that was stopped and resumed ends with another adapter")
	}
}

// A Dense module that is named trains beside the adapter, whose folder has it, and so does what goes on with it; another recipe's stays as it is.
func TestAdapterDense(t *testing.T) {
	j := newJob(t, 30)
	base := filepath.Join(j.dir, "model")
	of := func(dir string) []float32 {
		f, err := safetensors.Open(filepath.Join(dir, "2_Dense", "model.safetensors"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		w := make([]float32, 20*32)
		x, err := f.Tensor("linear.weight")
		if err == nil {
			err = x.Float32s(w)
		}
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	weight := make([]float32, 20*32)
	for i := range weight {
		weight[i] = float32(math.Sin(float64(i*i))) / 4
	}
	w, err := safetensors.FromFloat32s("linear.weight", []int{20, 32}, weight)
	if err == nil {
		err = os.Mkdir(filepath.Join(base, "2_Dense"), 0o777)
	}
	if err == nil {
		err = safetensors.Write(filepath.Join(base, "2_Dense", "model.safetensors"), []safetensors.Tensor{w}, nil)
	}
	for name, text := range map[string]string{
		"2_Dense/config.json": `{"in_features": 32, "out_features": 20, "bias": false, "activation_function": "torch.nn.modules.activation.Tanh"}`,
		"modules.json": `[{"path": "", "type": "sentence_transformers.models.Transformer"}, {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
			{"path": "2_Dense", "type": "sentence_transformers.models.Dense"}, {"path": "3", "type": "sentence_transformers.models.Normalize"}]`,
	} {
		err = errors.Join(err, os.WriteFile(filepath.Join(base, name), []byte(text), 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	train := func(out, lora string, sets ...string) []float32 {
		t.Helper()
		sets = append(sets, "model.lora={rank: 2, alpha: 4, targets: "+lora+"}", "train.max_steps=2", "optimizer={lr: 1e-2, schedule: constant, warmup_ratio: 0}")
		if _, err := j.run(t, out, nil, 0, false, sets...); err != nil {
			t.Fatal(err)
		}
		raw, err := os.ReadFile(filepath.Join(j.dir, out, "model", "adapter_config.json"))
		if err != nil || !bytes.Contains(raw, []byte(`"modules_to_save": null`)) {
			t.Errorf("%s: %v, adapter_config.json names modules of the transformer that train as a whole: %s", out, err, raw)
		}
		return of(filepath.Join(j.dir, out, "model"))
	}
	if !slices.Equal(train("still", "query"), weight) {
		t.Error("a Dense module that nobody names trains")
	}
	for _, targets := range []string{"query", "all-linear"} {
		first := train(targets, targets+", modules_to_save: [2_Dense]")
		if slices.Equal(first, weight) {
			t.Errorf("%s: the Dense module stays as it is", targets)
		}
		on := "model.path=" + filepath.Join(j.dir, targets, "model")
		if slices.Equal(train(targets+"-on", targets+", modules_to_save: [2_Dense]", on), first) || !slices.Equal(train(targets+"-still", targets, on), first) {
			t.Errorf("%s: what goes on has another Dense module than it should", targets)
		}
	}
	merged := filepath.Join(j.dir, "merged")
	if err := embedder.Merge("", filepath.Join(j.dir, "query", "model"), merged, "f32", ref.New(), nil); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(of(merged), of(filepath.Join(j.dir, "query", "model"))) {
		t.Error("the merged model has another Dense module")
	}
}

// What does not fit the adapter is an error that says what would.
func TestAdapterOfSomethingElse(t *testing.T) {
	harness.Thorough(t)
	j := newJob(t, 40)
	for _, c := range []struct {
		kind, has, fits string
		wrong           map[string]string // model.lora, and why not
	}{
		{"all", "{rank: 2, alpha: 3}", "{rank: 2, alpha: 3, dropout: 0, targets: [all-linear]}", map[string]string{
			"{}":                                  "model.lora: model.path is an adapter of something else: rank is 16, and the adapter's factors of encoder.layer.0.attention.self.query have rank 2; to go on",
			"{rank: 2, alpha: 3, targets: query}": "the adapter has factors of encoder.layer.0.attention.self.key, which is no target; to go on",
		}},
		{"some", "{rank: 2, alpha: 3, rslora: true, targets: [key, value]}", "{rank: 2, alpha: 3, dropout: 0, targets: [key, value], rslora: true}", map[string]string{
			"{rank: 2, alpha: 3, targets: [key, value]}": "alpha 3, at rank 2, multiplies factors with 1.5, and the adapter's are multiplied with 2.12",
			"{rank: 2, alpha: 3, rslora: true}":          "encoder.layer.0.attention.self.query is a target, and the adapter has no factors of it; to go on",
		}},
		{"saved", "{rank: 4, alpha: 8, dropout: 0.1, targets: query, modules_to_save: [LayerNorm]}",
			"{rank: 4, alpha: 8, dropout: 0.25, targets: [query], modules_to_save: [LayerNorm]}", map[string]string{
				"{rank: 4, alpha: 8, dropout: 0.25, targets: query}":                                             "the adapter has embeddings.LayerNorm.weight as a whole, which would not train; to go on",
				"{rank: 4, alpha: 8, dropout: 0.25, targets: query, modules_to_save: [LayerNorm, output.dense]}": "output.dense.weight would train as a whole, and the adapter does not have it; to go on",
			}},
	} {
		if _, err := j.run(t, c.kind, nil, 0, false, "train.max_steps=1", "model.lora="+c.has); err != nil {
			t.Fatal(err)
		}
		path := "model.path=" + filepath.Join(j.dir, c.kind, "model")
		for lora, why := range c.wrong {
			_, err := j.run(t, "x", nil, 0, false, path, "train.max_steps=1", "model.lora="+lora)
			if err == nil || !strings.Contains(err.Error(), why) || !strings.Contains(err.Error(), "to go on with it: model.lora: "+c.fits+"; to train a new one") {
				t.Errorf("%s with %s: %v, want %q", c.kind, lora, err, why)
			}
		}
		if _, err := j.run(t, "x", nil, 0, false, path, "train.max_steps=1", "model.lora="+c.fits); err != nil {
			t.Errorf("%s with what the error says: %v", c.kind, err)
		}
	}
	// What has no place in model.lora: layers with factors that are frozen.
	_, err := j.run(t, "x", nil, 0, false, "model.path="+filepath.Join(j.dir, "all", "model"), "model.lora={rank: 2, alpha: 3}", "model.freeze={layers: 1}")
	if err == nil || !strings.Contains(err.Error(), "the adapter has factors of encoder.layer.0.attention.self.query, which is no target; to train a new one") {
		t.Error(err)
	}
	// A reranker begins with none, and what merges it is not contraflow.
	_, err = j.run(t, "x", nil, 0, false, "model.path="+filepath.Join(j.dir, "all", "model"), "model.kind=reranker", "model.max_length=32",
		fmt.Sprintf("data.train=[{path: %q, query: q, positive: p, negatives: [q]}]", filepath.Join(j.dir, "data.jsonl")))
	if err == nil || !strings.Contains(err.Error(), "model.path: ") || !strings.Contains(err.Error(), "a reranker does not begin with one: PEFT's merge_and_unload") {
		t.Error(err)
	}
}
