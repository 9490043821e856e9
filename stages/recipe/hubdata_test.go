package recipe

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"contraflow/io/dataset"
	"contraflow/io/hfmodel"
)

// hubCache has a dataset of the hub be in the cache, which is then offline.
func hubCache(t *testing.T, files map[string][]byte) {
	t.Helper()
	const commit = "0123456789012345678901234567890123456789"
	cache := t.TempDir()
	at := filepath.Join(cache, "datasets--org--name")
	put := func(name string, data []byte) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(filepath.Join(at, "refs", "main"), []byte(commit))
	for name, data := range files {
		put(filepath.Join(at, "snapshots", commit, name), data)
	}
	t.Setenv("HF_HUB_CACHE", cache)
	t.Setenv("HF_HUB_OFFLINE", "1")
}

// A run trains on a dataset's split train and is measured with its split test, which a note tells; and a run that began with both, as they were named, is
// told how it goes on.
func TestWholeDatasets(t *testing.T) {
	j := newJob(t, 60)
	raw, err := os.ReadFile(filepath.Join(j.dir, "data.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(raw, []byte("\n"))
	sts, err := os.ReadFile(j.stsFile(t))
	if err != nil {
		t.Fatal(err)
	}
	train, test := bytes.Join(lines[:40], nil), bytes.Join(lines[40:60], nil)
	card := "---\nconfigs:\n- config_name: default\n  data_files: [{split: train, path: train.jsonl}, {split: test, path: test.jsonl}]\n- config_name: sts\n  data_dir: sts\n- config_name: queries\n  data_files: q.jsonl\n- config_name: corpus\n  data_files: c.jsonl\n- config_name: qrels\n  data_dir: qrels\n---\n"
	hubCache(t, map[string][]byte{"README.md": []byte(card), "train.jsonl": train, "test.jsonl": test, "sts/train.jsonl": []byte("{}\n"), "sts/test.jsonl": sts,
		"q.jsonl": []byte(`{"_id": "1", "text": "a"}`), "c.jsonl": []byte(`{"_id": "1", "text": "b"}`), "qrels/train.jsonl": []byte("{}\n"), "qrels/test.jsonl": []byte(`{"query-id": "1", "corpus-id": "1", "score": 1}`)})
	const name = "hf://datasets/org/name"
	if err := os.WriteFile(filepath.Join(j.dir, "test.jsonl"), test, 0o600); err != nil {
		t.Fatal(err)
	}
	evaluated := func(out, path string) (map[int]float64, outcome) {
		t.Helper()
		o, err := j.run(t, out, nil, 0, false, "train.max_steps=1", "eval.at_start=true", "data.train.0.path="+name+"?split=train",
			fmt.Sprintf("eval.loss={path: %q, query: q, positive: p}", path), fmt.Sprintf("eval.sts={path: %q, a: a, b: b, score: s}", name+"?config=sts"),
			fmt.Sprintf("eval.retrieval={queries: %q, corpus: %q, qrels: %q}", name+"?config=queries", name+"?config=corpus", name+"?config=qrels"))
		if err != nil {
			t.Fatal(err)
		}
		return j.heldOutLosses(t, out), o
	}
	want, _ := evaluated("file", filepath.Join(j.dir, "test.jsonl"))
	got, o := evaluated("hub", name)
	if len(want) == 0 || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("losses %v, of the split's file %v", got, want)
	}
	notes := strings.Join(o.notes, "\n")
	for _, want := range []string{"eval.loss: " + name + ": its split test is what is measured with", "eval.sts: " + name + ": its split test is what", "eval.retrieval: " + name + ": its split test is what", "eval.retrieval: " + name + ": its split train is what is measured with, of train; ?config=corpus&split=NAME"} {
		if !strings.Contains(notes, want) {
			t.Errorf("notes %q, want %q", notes, want)
		}
	}

	both := fmt.Sprintf("data.train.0.path=[%q, %q]", name, name+"?split=test")
	if _, err := j.run(t, "old", nil, 2, false, both); err != nil {
		t.Fatal(err)
	}
	_, err = j.run(t, "old", nil, 0, true, "data.train.0.path="+name)
	for _, want := range []string{"test.jsonl is gone", "data.train[0].path, " + name + ", is its split train alone: with other splits as well it is data.train[0].path: [" + name + ", " + name + "?split=test]", "start anew"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, err := j.run(t, "old", nil, 4, true, both); err != nil {
		t.Error(err)
	}
}

// An observer hears of the data that arrives here: what trains and what the run is measured on, of several ranks rank 0's, alone.
func TestDownloadsOfData(t *testing.T) {
	j := newJob(t, 20)
	sts := j.stsFile(t)
	ctx := dataset.WithProgress(t.Context(), func(file string, _, _ int64) { t.Errorf("a program's context hears of %s, whose observer does", file) })
	dataset.RegisterScheme("elsewhere", func(ctx context.Context, url string, _ dataset.Splits) ([]string, error) {
		if tell := dataset.Progress(ctx); tell != nil {
			tell(url, 3, 5)
		}
		if strings.HasSuffix(url, "sts") {
			return []string{sts}, nil
		}
		return []string{filepath.Join(j.dir, "data.jsonl")}, nil
	})
	for _, ranks := range []int{1, 2} {
		r, err := Parse("job", []byte(j.text), []string{"save.dir=" + filepath.Join(j.dir, "run"), fmt.Sprint("mesh.replicate=", ranks), "data.train.0.path=elsewhere://train", "eval.loss={path: elsewhere://dev, query: q, positive: p}", "eval.sts={path: elsewhere://sts, a: a, b: b, score: s}"})
		if err != nil {
			t.Fatal(err)
		}
		told := map[string]bool{}
		err = OnRanks(ctx, r, Place{}, Observer{Download: func(p hfmodel.Progress) { told[fmt.Sprint(p.File, " ", p.Done, " of ", p.Total)] = true }}, func(*Run) error { return nil })
		if want := map[string]bool{"elsewhere://train 3 of 5": true, "elsewhere://dev 3 of 5": true, "elsewhere://sts 3 of 5": true}; err != nil || !maps.Equal(told, want) {
			t.Errorf("%d ranks: told %v, want %v (%v)", ranks, told, want, err)
		}
	}
}
