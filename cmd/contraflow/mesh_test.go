package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A recipe on a mesh of local ranks trains as on one rank; what it communicated is in its metrics and its trace.
func TestMesh(t *testing.T) {
	dir := workspace(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	said := map[string]string{}
	train := func(out string, sets ...string) []any {
		args := []string{"train", "--log", "human", "-c", at("recipe.yaml"), "--out", at(out), "--trace", "--set", "train.max_steps=8"}
		for _, s := range sets {
			args = append(args, "--set", s)
		}
		said[out] = succeed(t, args...).stderr
		return losses(t, at(out+"/metrics.jsonl"))
	}
	one := train("one")
	alone := metricLines(t, at("one/metrics.jsonl"))
	measured := alone[len(alone)-1]["value"].(float64) // ranks share the embedding of queries and documents
	for i, sets := range [][]string{
		{"mesh.replicate=2"}, {"mesh.shard=3"}, {"mesh.shard=2", "mesh.gradients=early"},
		{"mesh.replicate=2", "mesh.shard=2", "mesh.parameters=streamed", "model.activation_checkpointing=true", "eval.every=3"}, {"mesh.replicate=2", "mesh.shard=2", "mesh.bucket=4KiB"},
		{"mesh.replicate=2", "mesh.overlap=false", "mesh.link=0.02Gb 200us"}, {"mesh.replicate=2", "train.sync=every", "mesh.link=0.1Gb 200us"},
	} {
		out := fmt.Sprint("mesh", i)
		sameLosses(t, fmt.Sprint(sets), one, train(out, sets...))
		var last, evaluation map[string]any
		for _, line := range metricLines(t, at(out+"/metrics.jsonl")) {
			if _, ok := line["loss"]; ok {
				last = line
			} else {
				evaluation = line
			}
		}
		if v, ok := evaluation["value"].(float64); !ok || !(math.Abs(v-measured) <= 0.05) {
			t.Errorf("%v: the model measures %v, alone %v", sets, evaluation["value"], measured)
		}
		if n, _ := last["comm_bytes"].(float64); n < 1e5 { // gradients are 130 kB
			t.Errorf("%v: too little communication in %v", sets, last)
		}
		r := succeed(t, "trace", "summary", at(out+"/trace.json"), at(out+"/trace.1.json"))
		for _, want := range []string{"gather", "backward", "steps,", "of it hidden behind computation", "trace.1.json\n"} {
			if !strings.Contains(r.stdout, want) {
				t.Errorf("%v: the summary lacks %q:\n%s", sets, want, r.stdout)
			}
		}
	}
	// Where communication is exposed the way out is said, and by how much it was hidden can be asked of the run that hides nothing.
	for out, want := range map[string]string{"mesh5": "communication that nothing hid: mesh.overlap: true communicates", "mesh6": "communication that nothing hid: train.sync: last reduces"} {
		if !strings.Contains(said[out], want) {
			t.Errorf("%s: no %q in %s", out, want, said[out])
		}
	}
	train("beside", "mesh.replicate=2", "mesh.link=0.02Gb 200us")
	if r := succeed(t, "trace", "summary", at("beside/trace.json"), "--serial", at("mesh5/trace.json")); !strings.Contains(r.stdout, "hidden by that measure") {
		t.Errorf("%s", r.stdout)
	}
	for base, want := range map[string]string{"one": "communicates nothing", "beside": "beside computing, too", "mesh6": "mesh"} {
		if r := contraflow(t, "", "trace", "summary", at("beside/trace.json"), "--serial", at(base+"/trace.json")); r.code != 1 || !strings.Contains(r.stderr, want) {
			t.Errorf("against %s: exit code %d: %s%s", base, r.code, r.stdout, r.stderr)
		}
	}
	// A run that was killed leaves a trace without an end.
	whole, err := os.ReadFile(at("beside/trace.json"))
	if err == nil {
		err = os.WriteFile(at("cut.json"), whole[:len(whole)*2/3], 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if r := succeed(t, "trace", "summary", at("cut.json")); !strings.Contains(r.stdout, "gather") || !strings.Contains(r.stderr, "has no end") {
		t.Errorf("%s%s", r.stdout, r.stderr)
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
	plan := []string{"plan", "-c", filepath.Join(dir, "recipe.yaml"), "--gpus", "2", "--steps", "1"}
	if r := succeed(t, append(plan[:len(plan)-2:len(plan)-2], "--tokens-per-s", "1e6")...); !strings.Contains(r.stdout, "compute  1000000 tokens/s on each rank, of a device as given") {
		t.Errorf("%s", r.stdout)
	}
	if r := succeed(t, "plan", "-c", filepath.Join(dir, "recipe.yaml"), "--steps", "1"); strings.Contains(r.stdout, "link") || !strings.Contains(r.stdout, "one rank") {
		t.Errorf("%s", r.stdout)
	}
	for option, want := range map[string]string{"gpus=3": "do not make a mesh", "nodes=4611686018427387904": "are more than a job can have", "steps=0": "--steps is 0", "link=infGb": `link "infGb"`, "tokens-per-s=-1": "--tokens-per-s is -1",
		"tokens-per-s=1e6": "--steps are measured on this machine", "memory=80x": `--memory is "80x"`, "memory=0": `--memory is "0"`} {
		if r := contraflow(t, "", append(plan, "--set", "mesh.shard=2", "--"+option)...); r.code != 2 || !strings.Contains(r.stderr, want) {
			t.Errorf("--%s: exit code %d\n%s", option, r.code, r.stderr)
		}
	}
}
