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

// An encoder becomes a model of tokens' vectors alone, which is measured as in training, embeds and mines; what wants embeddings says what there is instead.
func TestMultiVector(t *testing.T) {
	dir := workspace(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	text := fmt.Sprintf(`model: {path: %q, kind: multi_vector, vector_dim: 16, max_length: {query: 20, document: 40}, skiplist: punctuation}
data:
  train:
    - {path: %q, query: query, positive: positive, negatives: [negative], prompts: {query: "find: "}}
batch: {global_size: 8, sub_batch: {rows: 5}}
optimizer: {lr: 1e-3}
train: {epochs: 1, device: cpu, precision: f32}
eval: {every: 0, retrieval: {queries: %q, corpus: %q, qrels: %q}}
save: {dir: %q}
`, goldens.Path(t, "bert/minilm-tiny"), at("train.parquet"), at("queries.parquet"), at("corpus.parquet"), at("qrels.tsv"), at("run"))
	recipe, model := at("colbert.yaml"), at("run/model")
	if err := os.WriteFile(recipe, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := succeed(t, "train", "-c", recipe); !strings.Contains(r.stderr, "vectors of tokens, 16 features") || !strings.Contains(r.stderr, "maxsim  at most") {
		t.Errorf("it says\n%s", r.stderr)
	}
	lines := metricLines(t, at("run/metrics.jsonl"))
	want, _ := lines[len(lines)-1]["value"].(float64)
	task := []string{"eval", "--model", model, "--queries", at("queries.parquet"), "--corpus", at("corpus.parquet"), "--qrels", at("qrels.tsv"), "--json"}
	for _, more := range [][]string{nil, {"--part", "multi_vector"}} {
		var res map[string]any
		if err := json.Unmarshal([]byte(succeed(t, append(task, more...)...).stdout), &res); err != nil {
			t.Fatal(err)
		}
		if ndcg, _ := res["ndcg@10"].(float64); want == 0 || math.Abs(ndcg-want) > 1e-9 {
			t.Errorf("%v: nDCG@10 was %v in training, now %v", more, want, ndcg)
		}
	}
	tokens := func(flags ...string) int {
		var one struct {
			Vectors [][]float64 `json:"token_vectors"`
		}
		r := succeed(t, append([]string{"embed", "--model", model, "--parts", "--text", "a, b. c"}, flags...)...)
		if err := json.Unmarshal([]byte(r.stdout), &one); err != nil || len(one.Vectors[0]) != 16 || strings.Contains(r.stdout, "embedding") {
			t.Errorf("%s, %v", r.stdout, err)
		}
		return len(one.Vectors)
	}
	if d, q := tokens(), tokens("--prompt", "query"); d >= q {
		t.Errorf("a text has %d vectors as a document, without its punctuation, and %d as a query, behind a prompt", d, q)
	}
	succeed(t, "embed", "--model", model, "--input", at("corpus.parquet"), "--output", at("vectors.parquet"), "--parts")
	out, err := dataset.OpenTable(t.Context(), []string{at("vectors.parquet")})
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(out.Columns()); !strings.Contains(got, "token_vectors") || strings.Contains(got, "embedding") || strings.Contains(got, "lexical") {
		t.Errorf("columns %s", got)
	}
	out.Close()
	succeed(t, "mine", "--model", model, "--input", at("train.parquet"), "--output", at("mined.parquet"), "--num-negatives", "1")
	for want, args := range map[string][]string{
		"--parts has them written":                 {"embed", "--model", model, "--text", "x"},
		"--part and --weights are for":             append(task, "--part", "dense"),
		"model.kind: multi_vector trains it":       {"train", "-c", recipe, "--out", at("other"), "--set", "model={path: " + model + "}"},
		"loss.name: is \"gist\", want one of dist": {"train", "-c", recipe, "--out", at("other"), "--set", "loss.name=gist"},
	} {
		if r := contraflow(t, "", args...); r.code == 0 || !strings.Contains(r.stderr, want) {
			t.Errorf("%v: exit %d, %q, want %q", args, r.code, r.stderr, want)
		}
	}
}
