package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"contraflow/io/dataset"
	"contraflow/testdata/goldens"
)

// A sparse encoder is trained, measured as in training, writes lists, and refuses what is not for it.
func TestSparse(t *testing.T) {
	dir := workspace(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	text := fmt.Sprintf(`model: {path: %q, kind: sparse, max_length: 40}
data:
  train:
    - {path: %q, query: query, positive: positive, negatives: [negative]}
batch: {global_size: 8, sub_batch: {rows: 5}}
loss: {name: mnrl, flops: {query: 0.02, document: 0.01}}
optimizer: {lr: 1e-3}
train: {epochs: 1, device: cpu, precision: f32}
eval: {every: 0, retrieval: {queries: %q, corpus: %q, qrels: %q}}
save: {dir: %q}
`, goldens.Path(t, "splade/encoder"), at("train.parquet"), at("queries.parquet"), at("corpus.parquet"), at("qrels.tsv"), at("run"))
	recipe := at("sparse.yaml")
	if err := os.WriteFile(recipe, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	succeed(t, "train", "-c", recipe)
	lines := metricLines(t, at("run/metrics.jsonl"))
	want, _ := lines[len(lines)-1]["value"].(float64)
	model := at("run/model")
	r := succeed(t, "eval", "--model", model, "--max-length", "40", "--queries", at("queries.parquet"), "--corpus", at("corpus.parquet"), "--qrels", at("qrels.tsv"), "--json")
	var res map[string]any
	if err := json.Unmarshal([]byte(r.stdout), &res); err != nil {
		t.Fatal(err)
	}
	if got, _ := res["ndcg@10"].(float64); want == 0 || math.Abs(got-want) > 1e-9 {
		t.Errorf("nDCG@10 was %v in training, now %v", want, got)
	}

	r = succeed(t, "embed", "--model", model, "--input", at("train.parquet"), "--column", "positive", "--output", at("lists.parquet"))
	if !strings.Contains(r.stderr, "active features a text") {
		t.Errorf("embed says %q", r.stderr)
	}
	lists, err := dataset.OpenTable(t.Context(), []string{at("lists.parquet")})
	if err != nil {
		t.Fatal(err)
	}
	defer lists.Close()
	if got := strings.Join(lists.Columns(), " "); !strings.HasSuffix(got, " lexical_ids lexical_weights") || strings.Contains(got, "embedding") {
		t.Errorf("columns %s", got)
	}
	type one struct {
		IDs     []int     `json:"lexical_ids"`
		Weights []float64 `json:"lexical_weights"`
	}
	var all, some one
	for more, to := range map[string]*one{"": &all, "--max-active=3": &some} {
		args := []string{"embed", "--model", model, "--text", "a reader of files"}
		if more != "" {
			args = append(args, more)
		}
		if err := json.Unmarshal([]byte(succeed(t, args...).stdout), to); err != nil {
			t.Fatal(err)
		}
	}
	if len(all.IDs) != len(all.Weights) || len(all.IDs) < 4 || len(some.IDs) != 3 || len(some.Weights) != 3 {
		t.Errorf("%+v, at most three %+v", all, some)
	}
	scored := map[string]string{} // by products, whether --dot says so or not
	for _, more := range [][]string{nil, {"--dot"}} {
		out := at(fmt.Sprintf("scored%d.parquet", len(more)))
		succeed(t, append([]string{"distill", "--model", model, "--input", at("train.parquet"), "--query", "query", "--positive", "positive", "--negatives", "negative", "--output", out, "--output-column", "teacher"}, more...)...)
		data, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		scored[string(data)] = out
	}
	if len(scored) != 1 {
		t.Error("a sparse encoder teaches other scores without --dot")
	}
	for want, args := range map[string][]string{
		"lexical_ids and lexical_weights": {"embed", "--model", model, "--input", at("train.parquet"), "--output", at("x.npy")},
		"not --output-column":             {"embed", "--model", model, "--input", at("train.parquet"), "--output", at("x.parquet"), "--output-column", "e"},
		"--max-active is for sparse":      {"embed", "--model", goldens.Path(t, "bert/minilm-tiny"), "--text", "a", "--max-active", "2"},
		"--parts is for models of kind":   {"embed", "--model", model, "--text", "a", "--parts"},
		"are not cut":                     {"embed", "--model", model, "--text", "a", "--dimensions", "2"},
		"mines no negatives":              {"mine", "--model", model, "--input", at("train.parquet"), "--output", at("mined.parquet"), "--num-negatives", "1"},
		"model.kind: sparse trains it":    {"train", "-c", recipe, "--set", "model.kind=embedder", "--set", "loss.flops=null", "--out", at("r")},
	} {
		if r := contraflow(t, "", args...); r.code == 0 || !strings.Contains(r.stderr, want) {
			t.Errorf("%q: exit %d, %s, want %q", args, r.code, r.stderr, want)
		}
	}
}
