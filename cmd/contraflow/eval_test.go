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

// Several tasks are measured one after another, and their mean stands below: each counts the same.
func TestEvalTasks(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for k, name := range []string{"a", "b", "c/a"} {
		if err := os.MkdirAll(at(name+"/qrels"), 0o777); err != nil {
			t.Fatal(err)
		}
		var queries, corpus strings.Builder
		qrels := "query-id\tcorpus-id\tscore\n"
		for i := range 9 {
			fmt.Fprintf(&corpus, "{\"_id\": \"d%d\", \"text\": \"stone %d of the house by river %d\"}\n", i, i, i%4)
			if i > 3*k {
				fmt.Fprintf(&queries, "{\"_id\": \"q%d\", \"text\": \"stone %d near river %d\"}\n", i, i, i%4)
				qrels += fmt.Sprintf("q%d\td%d\t1\n", i, (i+k)%9)
			}
		}
		for file, text := range map[string]string{"queries.jsonl": queries.String(), "corpus.jsonl": corpus.String(), "qrels/test.tsv": qrels} {
			if err := os.WriteFile(at(name+"/"+file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	type result map[string]map[string]float64
	read := func(args ...string) (all map[string]result) {
		t.Helper()
		args = append([]string{"eval", "--model", goldens.Path(t, "bert/minilm-tiny"), "--json", "--bm25"}, args...)
		if err := json.Unmarshal([]byte(succeed(t, args...).stdout), &all); err != nil {
			t.Fatal(err)
		}
		return all
	}
	alone := func(name string) (r result) {
		t.Helper()
		if err := json.Unmarshal([]byte(succeed(t, "eval", "--model", goldens.Path(t, "bert/minilm-tiny"), "--json", "--bm25", "--queries", at(name)).stdout), &r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	a, b := alone("a"), alone("b")
	both := read("--queries", at("a"), "--queries", at("b"))
	for what := range a {
		for measure, v := range a[what] {
			mean := (v + b[what][measure]) / 2
			if strings.HasPrefix(measure, "queries") {
				mean *= 2
			}
			if both["a"][what][measure] != v || both["b"][what][measure] != b[what][measure] || math.Abs(both["mean"][what][measure]-mean) > 1e-12 {
				t.Errorf("%s, %s: %v; alone %v and %v", what, measure, both, a, b)
			}
		}
	}
	if a["model"]["mrr@10"] == b["model"]["mrr@10"] || len(both) != 3 {
		t.Errorf("%v", both)
	}
	if same := read("--queries", at("a"), "--queries", at("c/a")); len(same) != 3 || len(same[at("a")]) != 2 || len(same[at("c/a")]) != 2 {
		t.Errorf("%v", same)
	}
	table := succeed(t, "eval", "--model", goldens.Path(t, "bert/minilm-tiny"), "--queries", at("a"), "--queries", at("b"), "--bm25").stdout
	if lines := strings.Split(table, "\n"); len(lines) < 7 || !strings.HasPrefix(lines[1], "a ") || !strings.HasPrefix(lines[2], "a, BM25 ") || !strings.HasPrefix(lines[5], "mean ") || !strings.HasPrefix(lines[6], "mean, BM25 ") {
		t.Errorf("%s", table)
	}
	if r := contraflow(t, "", "eval", "--model", "m", "--queries", at("a"), "--queries", at("b"), "--corpus", "c"); r.code != 2 || !strings.Contains(r.stderr, "--corpus and --qrels are for one") {
		t.Errorf("%d: %s", r.code, r.stderr)
	}
}

// Corpora have empty texts: they are embedded, their rows keep their places, and none is mined.
func TestEmptyTexts(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	var corpus, pairs strings.Builder
	for i := range 40 {
		text := fmt.Sprintf("stone %d of the house by river %d", i, i%7)
		if i%20 == 3 {
			text = " "
		}
		fmt.Fprintf(&corpus, "{\"text\": %q}\n", text)
		fmt.Fprintf(&pairs, "{\"query\": \"which stone is %d\", \"positive\": \"it is stone %d of the house\"}\n", i, i)
	}
	for name, data := range map[string]string{"corpus.jsonl": corpus.String(), "pairs.jsonl": pairs.String()} {
		if err := os.WriteFile(at(name), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	succeed(t, "init", "--out", at("model"), "--static", "--hidden", "16", "--input", at("corpus.jsonl"))
	for _, out := range []string{"out.npy", "out.parquet"} {
		if r := succeed(t, "embed", "--model", at("model"), "--input", at("corpus.jsonl"), "--output", at(out)); !strings.Contains(r.stderr, "40 embeddings") || !strings.Contains(r.stderr, "2 texts are empty") {
			t.Errorf("%s: %s", out, r.stderr)
		}
	}
	r := succeed(t, "mine", "--model", at("model"), "--input", at("pairs.jsonl"), "--corpus", at("corpus.jsonl"), "--output", at("mined.parquet"), "--query", "query", "--positive", "positive", "--num-negatives", "30", "--range-max", "70")
	if !strings.Contains(r.stderr, "2 documents of --corpus are empty") {
		t.Errorf("%s", r.stderr)
	}
	succeed(t, "embed", "--model", at("model"), "--input", at("mined.parquet"), "--column", "positive", "--output", at("again.npy"))
	if r := contraflow(t, "", "mine", "--model", at("model"), "--input", at("corpus.jsonl"), "--query", "text", "--positive", "text", "--output", at("none.parquet")); r.code != 1 || !strings.Contains(r.stderr, "corpus.jsonl:4") {
		t.Errorf("queries of nothing: %d: %s", r.code, r.stderr)
	}
}
