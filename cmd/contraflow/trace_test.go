package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"contraflow/stages/recipe"
)

// What has no tasks to sum up is said, and is not summed up as nothing.
func TestTraceWithoutTasks(t *testing.T) {
	file := filepath.Join(t.TempDir(), "trace.json")
	const name = `{"name":"process_name","ph":"M","ts":0,"pid":0,"tid":0,"args":{"name":"cpu:0"}}`
	for text, want := range map[string]string{
		"[\n" + name + "\n]\n": file + " has no tasks", // and no more
		"[\n" + name + "\n,{":  "has no end: the run has not ended, or was killed; this is what there is\ncontraflow: " + file + " has no tasks",
		`{"traceEvents":[{"name":"x","ph":"B","ts":1,"pid":1,"tid":2},{"name":"x","ph":"E","ts":9,"pid":1,"tid":2}]}`: file + " has no tasks", // as others write them
		`[{"name":"x","ph":"X","ts":1,"dur":2,"pid":"Spans"}]`:                                                        file + ": reading a trace: event 1: ",
		"[\n" + name + "\n]\n[\n" + name + "\n]\n":                                                                    "is it more than one trace?",
		"": file + ": reading a trace: it is empty",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if r := contraflow(t, "", "trace", "summary", file); r.code != 1 || !strings.Contains(r.stderr, want) || r.stdout != "" {
			t.Errorf("%s: exit code %d, want %q in %s%s", text, r.code, want, r.stdout, r.stderr)
		}
	}
}

// A run's folder has no trace of a rank that an earlier run there had, and this one has not.
func TestTraceOfFewerRanks(t *testing.T) {
	dir := workspace(t)
	for _, ranks := range []string{"3", "1"} {
		succeed(t, "train", "-c", filepath.Join(dir, "recipe.yaml"), "--trace", "--set", "eval.every=0", "--set", "train.max_steps=1", "--set", "batch.global_size=4", "--set", "mesh.replicate="+ranks)
		if found, err := filepath.Glob(filepath.Join(dir, "run", "trace*")); err != nil || len(found) != int(ranks[0]-'0') {
			t.Errorf("%s ranks: %v %v", ranks, found, err)
		}
	}
	// Its own trace is a run's, and one that was there before it is not.
	run := filepath.Join(dir, "run")
	if r := succeed(t, "trace", "summary", run); r.stderr != "" {
		t.Error(r.stderr)
	}
	before := time.Now().Add(-time.Hour)
	if err := os.Chtimes(filepath.Join(run, "trace.json"), before, before); err != nil {
		t.Fatal(err)
	}
	if r := succeed(t, "trace", "summary", run); r.stderr != "note: "+filepath.Join(run, "trace.json")+" is an earlier run's: the one that is there now was made without --trace\n" {
		t.Error(r.stderr)
	}
	text, err := json.Marshal(recipe.Record{Began: time.Now(), From: 7})
	if err == nil {
		err = os.WriteFile(filepath.Join(run, "run.json"), text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if r := succeed(t, "trace", "summary", run); r.stderr != "note: "+filepath.Join(run, "trace.json")+" is older than what went on after step 7, without --trace\n" {
		t.Error(r.stderr)
	}
}
