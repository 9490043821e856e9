package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"contraflow/testdata/goldens"
)

// A LoRA run with activation checkpointing and frozen layers leaves an adapter that embeds as the model did in training, and merged
// embeds the same; the same recipe on two ranks trains the same.
func TestLoRA(t *testing.T) {
	dir := workspace(t)
	recipe := filepath.Join(dir, "recipe.yaml")
	sets := []string{
		"--set", "model.lora={rank: 4, alpha: 8, dropout: 0.1, targets: all-linear, modules_to_save: [LayerNorm]}", "--set", "model.freeze.layers=1",
		"--set", "model.activation_checkpointing=true", "--set", "optimizer.groups=[{params: lora_B, lr: 3e-2}]", "--set", "train.max_steps=4",
	}
	r := succeed(t, append([]string{"train", "--log", "human", "-c", recipe}, sets...)...)
	if !strings.Contains(r.stderr, " of which ") {
		t.Errorf("nothing is said of what trains:\n%s", r.stderr)
	}
	model := filepath.Join(dir, "run", "model")
	if info, err := os.Stat(filepath.Join(model, "adapter_model.safetensors")); err != nil || info.Size() > 60<<10 {
		t.Errorf("%v, %v", info, err)
	}
	embed := func(model string) (out []float64) {
		t.Helper()
		r := succeed(t, "embed", "--model", model, "--text", "the cat sat", "--prompt", "query")
		if err := json.Unmarshal([]byte(r.stdout), &out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	largest := func(a, b []float64) (most float64) {
		for i := range a {
			most = max(most, math.Abs(a[i]-b[i]))
		}
		return most
	}
	base, got := embed(goldens.Path(t, "bert/minilm-tiny")), embed(model)
	if !(largest(got, base) >= 1e-2) {
		t.Error("training changed nothing")
	}
	merged := filepath.Join(dir, "merged")
	succeed(t, "merge", "--adapter", model, "--out", merged)
	if e := largest(embed(merged), got); !(e <= 1e-6) {
		t.Errorf("merged, embeddings differ by %v", e)
	}
	if _, err := os.Stat(filepath.Join(merged, "adapter_config.json")); err == nil {
		t.Error("the merged model's folder holds an adapter")
	}
	if r := contraflow(t, "", "merge", "--adapter", model, "--out", merged); r.code != 1 || !strings.Contains(r.stderr, "--force replaces it") {
		t.Errorf("merged over a model: %+v", r)
	}
	other := goldens.Path(t, "bert/odd-sizes")
	if r := contraflow(t, "", "merge", "--adapter", model, "--model", other, "--out", filepath.Join(dir, "x")); r.code != 1 || !strings.Contains(r.stderr, filepath.Join(other, "config.json")+" has hidden_size 30") {
		t.Errorf("merged with a model of another size: %+v", r)
	}
	if r := contraflow(t, "", "merge", "--adapter", model, "--out", model, "--force"); r.code != 1 || !strings.Contains(r.stderr, "would replace the adapter") {
		t.Errorf("merged over the adapter: %+v", r)
	}
	succeed(t, "merge", "--adapter", model, "--out", merged, "--force")
	// What evaluation saw in training is what the saved adapter gives.
	lines := metricLines(t, filepath.Join(dir, "run", "metrics.jsonl"))
	want, _ := lines[len(lines)-1]["value"].(float64)
	var scores map[string]float64
	ev := succeed(t, "eval", "--model", model, "--queries", filepath.Join(dir, "queries.parquet"), "--corpus", filepath.Join(dir, "corpus.parquet"), "--qrels", filepath.Join(dir, "qrels.tsv"), "--json")
	if err := json.Unmarshal([]byte(ev.stdout), &scores); err != nil || !(math.Abs(scores["ndcg@10"]-want) <= 1e-9) || want == 0 {
		t.Errorf("%v, %s, %v", want, ev.stdout, err)
	}
	for i, mesh := range [][]string{{"mesh.replicate=2", "mesh.shard=1"}, {"mesh.replicate=1", "mesh.shard=2", "mesh.parameters=streamed", "mesh.gradients=early"}} {
		out := filepath.Join(dir, fmt.Sprint("two", i))
		args := append([]string{"train", "--log", "human", "-c", recipe, "--out", out}, sets...)
		for _, m := range mesh {
			args = append(args, "--set", m)
		}
		succeed(t, args...)
		if e := largest(embed(filepath.Join(out, "model")), got); !(e <= 1e-3) {
			t.Errorf("%v: embeddings differ by %v from one rank's", mesh, e)
		}
	}
	// Mistakes are found before the first step.
	for set, want := range map[string]string{
		"model.lora={targets: q_proj}":                                     `model.lora.targets: "q_proj" is no linear layer of this model above its 1 frozen layers; there are attention.self.query`,
		"model={path: " + model + ", lora: {rank: 2}}":                     "model.lora: model.path is an adapter of something else: rank is 2, and the adapter's factors of encoder.layer.1.attention.self.query have rank 4; to go on with it: model.lora: {rank: 4, alpha: 8, ",
		"model.path=" + model:                                              "", // training goes on
		"optimizer.groups=[{params: [classifier, pooler], lr: 1}]":         "optimizer.groups[0]: of what trains, no name that is not in a group before has \"classifier\" or \"pooler\" in it",
		"model.freeze={layers: 9}":                                         "model.freeze.layers: 9 layers are to be frozen, the model has 3",
		"model.activation_checkpointing={every: 99}":                       "model.activation_checkpointing: every is 99, the model has 3 layers",
		"optimizer.groups=[{params: [\"\"], lr: 1}]":                       "optimizer.groups[0].params: have an empty name",
		"model.lora={targets: query, modules_to_save: [attention.output]}": "",
	} {
		args := append(append([]string{"train", "--log", "human", "-c", recipe, "--out", filepath.Join(dir, "x")}, sets...), "--set", set)
		if r := contraflow(t, "", args...); (r.code != 1 || !strings.Contains(r.stderr, want)) && want != "" || want == "" && r.code != 0 {
			t.Errorf("--set %s: exit code %d, want %q\n%s", set, r.code, want, r.stderr)
		}
	}
	if r := contraflow(t, "", "merge", "--adapter", goldens.Path(t, "bert/minilm-tiny"), "--out", filepath.Join(dir, "y")); r.code != 1 || !strings.Contains(r.stderr, "is not the folder of a LoRA adapter") || !strings.Contains(r.stderr, "is merged as it is saved") {
		t.Errorf("%+v", r)
	}
	// Gradients of what trains are proven too.
	succeed(t, append([]string{"verify-grads", "-c", recipe, "--accumulate", "1", "--sub-batch", "5", "--replicas", "1,2", "--shards", "1,2"}, sets...)...)
}
