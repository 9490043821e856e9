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
