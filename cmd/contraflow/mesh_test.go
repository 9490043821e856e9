package main

import (
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"
)

// A recipe on a mesh of local ranks trains as on one rank; what it communicated is in its metrics and its trace.
func TestMesh(t *testing.T) {
	dir := workspace(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	train := func(out string, sets ...string) []any {
		args := []string{"train", "--log", "human", "-c", at("recipe.yaml"), "--out", at(out), "--trace", "--set", "train.max_steps=8"}
		for _, s := range sets {
			args = append(args, "--set", s)
		}
		succeed(t, args...)
		return losses(t, at(out+"/metrics.jsonl"))
	}
	one := train("one")
	alone := metricLines(t, at("one/metrics.jsonl"))
	measured := alone[len(alone)-1]["value"].(float64) // ranks share the embedding of queries and documents
	for i, sets := range [][]string{
		{"mesh.replicate=2"}, {"mesh.shard=3"}, {"mesh.shard=2", "mesh.gradients=early"},
		{"mesh.replicate=2", "mesh.shard=2", "mesh.parameters=streamed", "model.activation_checkpointing=true", "eval.every=3"}, {"mesh.replicate=2", "mesh.shard=2", "mesh.bucket=4KiB"},
		{"mesh.replicate=2", "mesh.overlap=false", "mesh.link=10Gb 20us"}, {"mesh.replicate=2", "train.sync=every"},
	} {
		out := fmt.Sprint("mesh", i)
		many := train(out, sets...)
		for step := range one {
			a, b := one[step].(float64), many[step].(float64)
			if !(math.Abs(a-b) <= 1e-4*a) {
				t.Errorf("%v: step %d: loss %v, alone %v", sets, step, b, a)
			}
		}
		var last, evaluation map[string]any
		for _, line := range metricLines(t, at(out+"/metrics.jsonl")) {
			if _, ok := line["loss"]; ok {
				last = line
			} else {
				evaluation = line
			}
		}
		if v, ok := evaluation["value"].(float64); !ok || math.Abs(v-measured) > 0.05 {
			t.Errorf("%v: the model measures %v, alone %v", sets, evaluation["value"], measured)
		}
		if n, _ := last["comm_bytes"].(float64); sets[len(sets)-1] != "train.sync=every" && sets[1%len(sets)] != "mesh.overlap=false" && n == 0 {
			t.Errorf("%v: no communication in %v", sets, last)
		}
		r := succeed(t, "trace", "summary", at(out+"/trace.json"), "--without", at("one/trace.json"))
		for _, want := range []string{"gather", "backward", "steps,", "hidden by that measure"} {
			if !strings.Contains(r.stdout, want) {
				t.Errorf("%v: the summary lacks %q:\n%s", sets, want, r.stdout)
			}
		}
	}
	// bf16 between ranks: close, not equal.
	for step, loss := range train("wire", "mesh.replicate=2", "mesh.wire=bf16") {
		a, b := one[step].(float64), loss.(float64)
		if e := math.Abs(a-b) / a; !(e <= 1e-2) {
			t.Errorf("bf16 wire: step %d: loss %v, f32 %v", step, b, a)
		}
	}
	// Negatives that stay on their rank: another loss.
	if local := train("local", "mesh.replicate=2", "loss.gather_across_devices=false"); math.Abs(local[0].(float64)-one[0].(float64)) < 1e-3 {
		t.Error("local negatives change nothing")
	}
	r := contraflow(t, "", "train", "--log", "human", "-c", at("recipe.yaml"), "--out", at("bad"), "--set", "mesh.replicate=2", "--set", "optimizer.lr=1e30", "--set", "optimizer.warmup_ratio=0")
	if r.code != 1 || !strings.Contains(r.stderr, "finite") || strings.Contains(r.stderr, "goroutine") {
		t.Errorf("a loss that explodes on a mesh: exit code %d\n%s", r.code, r.stderr)
	}
}

func TestPlan(t *testing.T) {
	dir := workspace(t)
	r := succeed(t, "plan", "-c", filepath.Join(dir, "recipe.yaml"), "--gpus", "2", "--nodes", "2", "--link", "1Gb 50us", "--set", "mesh.shard=2")
	for _, want := range []string{"2 x 2 (replicate x shard), 4 ranks", "sent by each rank per step", "% hidden", "reduce last rows", "spread"} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("the plan lacks %q:\n%s", want, r.stdout)
		}
	}
	if r := contraflow(t, "", "plan", "-c", filepath.Join(dir, "recipe.yaml"), "--gpus", "3", "--set", "mesh.shard=2"); r.code != 2 {
		t.Errorf("3 devices in shards of 2: exit code %d\n%s", r.code, r.stderr)
	}
}
