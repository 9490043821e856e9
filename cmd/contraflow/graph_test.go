package main

import (
	"path/filepath"
	"strings"
	"testing"
)

// A graph is printed, or written to --out as it is by commands that write one file; no other command takes that for a folder that it does not write.
func TestGraph(t *testing.T) {
	dir := workspace(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	for format, want := range map[string]string{"mermaid": "flowchart LR", "dot": "digraph", "svg": "<svg"} {
		if out := succeed(t, "graph", "-c", at("recipe.yaml"), "--format", format).stdout; !strings.Contains(out, want) {
			t.Errorf("graph --format %s: %s", format, out)
		}
		file := at("graph." + format)
		if r := succeed(t, "graph", "-c", at("recipe.yaml"), "--format", format, "--out", file); r.stdout != file+"\n" || !strings.Contains(mustRead(t, file), want) {
			t.Errorf("graph --format %s --out %s printed %s, and wrote %s", format, file, r.stdout, mustRead(t, file))
		}
	}
	if out := succeed(t, "graph", "-c", at("recipe.yaml"), "--set", "mesh.replicate=64", "--set", "mesh.shard=8").stdout; !strings.Contains(out, `"device 0 comm"`) || !strings.Contains(out, `["gather"]`) {
		t.Errorf("the graph of a mesh:\n%s", out)
	}
	for out, want := range map[string]string{dir: "is a folder: give a file in it, such as " + at("graph.mermaid"), at("recipe.yaml"): "is a file that is read"} {
		if r := contraflow(t, "", "graph", "-c", at("recipe.yaml"), "--out", out); r.code != 2 || !strings.Contains(r.stderr, "--out "+out+" "+want) {
			t.Errorf("exit code %d: %s", r.code, r.stderr)
		}
	}
	for _, c := range []string{"plan", "verify-grads"} { // which write nothing
		if r := contraflow(t, "", c, "-c", at("recipe.yaml"), "--out", dir); r.code != 2 || !strings.Contains(r.stderr, "unknown flag: --out") {
			t.Errorf("%s --out: exit code %d: %s", c, r.code, r.stderr)
		}
	}
}

// Devices that no row is left for are said, by plan and by train; plan says once that it reads the data, and both what their figures of memory are of.
func TestIdleRanks(t *testing.T) {
	dir := workspace(t)
	const note = "note: batch.global_size is 4, over all ranks, and there are 6: 2 of them have no row in any batch, and compute nothing; a larger batch.global_size or fewer ranks helps\n"
	sets := []string{"-c", filepath.Join(dir, "recipe.yaml"), "--set", "batch.global_size=4", "--set", "eval.every=0", "--set", "train.max_steps=1"}
	r := succeed(t, append([]string{"plan"}, append(sets, "--gpus", "3", "--nodes", "2", "--steps", "1")...)...)
	if strings.Count(r.stderr, note) != 1 || strings.Count(r.stderr, "reading the data: 160 of 160 rows\n") != 1 {
		t.Errorf("plan says\n%s", r.stderr)
	}
	if !strings.Contains(r.stdout, " on each device, besides the program and the data that it reads: model ") {
		t.Errorf("plan says\n%s", r.stdout)
	}
	r = succeed(t, append([]string{"train"}, append(sets, "--log", "human", "--set", "mesh.replicate=6")...)...)
	for _, want := range []string{note, " on each device, besides the program and the data that it reads: model ", ", peak memory of the process "} {
		if strings.Count(r.stderr, want) != 1 {
			t.Errorf("want once %q, train says\n%s", want, r.stderr)
		}
	}
	if r := succeed(t, append([]string{"plan"}, append(sets, "--gpus", "4", "--steps", "1")...)...); strings.Contains(r.stderr, "have no row") {
		t.Errorf("plan says\n%s", r.stderr)
	}
}
