package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
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
	if got, _ := res["ndcg@10"].(float64); want == 0 || !(math.Abs(got-want) <= 1e-9) {
		t.Errorf("nDCG@10 was %v in training, now %v", want, got)
	}

	r = succeed(t, "embed", "--model", model, "--input", at("train.parquet"), "--column", "positive", "--output", "-", "--max-active", "3")
	if !strings.Contains(r.stderr, "\n3.0 active features a text") {
		t.Errorf("embed says %q", r.stderr)
	}
	succeed(t, "embed", "--model", model, "--input", at("train.parquet"), "--column", "positive", "--output", at("lists.parquet"))
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
	succeed(t, "mine", "--model", model, "--input", at("train.parquet"), "--output", at("mined.parquet"), "--num-negatives", "1")
	if mined, err := dataset.OpenTable(t.Context(), []string{at("mined.parquet")}); err != nil || mined.Rows() == 0 {
		t.Errorf("nothing is mined: %v", err)
	} else {
		mined.Close()
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
		"model.kind: sparse trains it":    {"train", "-c", recipe, "--set", "model.kind=embedder", "--set", "loss.flops=null", "--out", at("r")},
	} {
		if r := contraflow(t, "", args...); r.code == 0 || !strings.Contains(r.stderr, want) {
			t.Errorf("%q: exit %d, %s, want %q", args, r.code, r.stderr, want)
		}
	}
}

// Where queries are weights of tokens, a run measures as eval does the model that it leaves, which cuts texts as the run has. Both texts of a pair are documents:
// flags of queries are refused beside pairs, and those of documents count.
func TestPairsOfWeighed(t *testing.T) {
	dir := workspace(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	data := `{"query": "a cat sleeps", "positive": "the cat is here", "sentence1": "a cat", "sentence2": "the cat sleeps", "score": 0.5}
{"query": "what is a dog", "positive": "a dog is there", "sentence1": "a dog is here", "sentence2": "is it a cat", "score": 0.1}
{"query": "who sleeps", "positive": "the dog sleeps", "sentence1": "it is there", "sentence2": "the dog and the cat", "score": 0.9}
`
	recipe := fmt.Sprintf(`model: {path: %q, kind: sparse, queries: ones, max_length: {query: 2, document: 40}}
data: {train: [{path: %q, query: query, positive: positive}]}
batch: {global_size: 2}
loss: {name: mnrl, flops: {document: 0.01}}
train: {max_steps: 1, device: cpu, precision: f32}
eval: {every: 0, retrieval: {queries: %q, corpus: %q, qrels: %q}, sts: {path: %q, a: sentence1, b: sentence2, score: score}, triplets: {path: %q, query: query, positive: positive, negative: negative}}
save: {dir: %q}
`, goldens.Path(t, "splade/encoder"), at("data.jsonl"), at("queries.parquet"), at("corpus.parquet"), at("qrels.tsv"), at("data.jsonl"), at("train.parquet"), at("run"))
	long := fmt.Sprintf("{\"text\": %q}\n", strings.Repeat("the cat ", 50))
	for name, text := range map[string]string{"data.jsonl": data, "long.jsonl": long, "r.yaml": recipe} {
		if err := os.WriteFile(at(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if r := succeed(t, "train", "-c", at("r.yaml")); strings.Contains(r.stderr+r.stdout, "max_seq_length") {
		t.Errorf("the saved folder has a length for queries of their own, and the run says %s%s", r.stdout, r.stderr)
	}
	model := at("run/model")
	lines := metricLines(t, at("run/metrics.jsonl"))
	tasks, _ := lines[len(lines)-1]["tasks"].([]any)
	for i, flags := range [][]string{
		{"--queries", at("queries.parquet"), "--corpus", at("corpus.parquet"), "--qrels", at("qrels.tsv")},
		{"--sts", at("data.jsonl")}, {"--triplets", at("train.parquet"), "--columns", "query,positive,negative"},
	} {
		var got map[string]any
		if err := json.Unmarshal([]byte(succeed(t, append([]string{"eval", "--json", "--model", model}, flags...)...).stdout), &got); err != nil {
			t.Fatal(err)
		}
		if len(tasks) != 3 || !reflect.DeepEqual(tasks[i].(map[string]any)["eval"], any(got)) {
			t.Errorf("%s: %v in training, now %v", flags[0], tasks, got)
		}
	}
	eval := func(flags ...string) string {
		return succeed(t, append([]string{"eval", "--model", model, "--sts", at("data.jsonl")}, flags...)...).stdout
	}
	if eval() == eval("--document-prompt", "dog there who ") {
		t.Error("a prompt of documents changes nothing")
	}
	for flag, want := range map[string]string{"--query-prompt": "--document-prompt is of", "--query-max-length": "--max-length is of"} {
		r := contraflow(t, "", "eval", "--model", model, "--sts", at("data.jsonl"), flag, "3")
		if r.code != 2 || !strings.Contains(r.stderr, want) || !strings.Contains(r.stderr, flag+" is for --queries, --triplets and --candidates") {
			t.Errorf("%s: %d, %s", flag, r.code, r.stderr)
		}
	}
	// With a text for a prompt, too, --prompt says what texts are.
	embed := func(flags ...string) string {
		return succeed(t, append([]string{"embed", "--model", model}, flags...)...).stdout
	}
	query, document := embed("--prompt", "query", "--prompt-text", "", "--text", "the cat"), embed("--prompt", "", "--text", "the cat")
	if q := embed("--prompt", "query", "--prompt-text", "the ", "--text", "cat"); q != query || q == document {
		t.Errorf("the query is %s behind a text, and %s with it in front", q, query)
	}
	if d := embed("--prompt-text", "the ", "--text", "cat"); d != document {
		t.Errorf("the document is %s behind a text, and %s with it in front", d, document)
	}
	settings := filepath.Join(model, "config_sentence_transformers.json")
	if err := os.WriteFile(settings, []byte(strings.Replace(mustRead(t, settings), `"prompts"`, `"none"`, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	for prompt, want := range map[string][2]string{"query": {"read as queries, as they are", "longer than 2 tokens"}, "document": {"read as documents, as they are", "longer than 40 tokens"}} {
		said := succeed(t, "embed", "--model", model, "--input", at("long.jsonl"), "--prompt", prompt, "--output", at(prompt+".parquet")).stderr
		if !strings.Contains(said, want[0]) || !strings.Contains(said, want[1]) {
			t.Errorf("--prompt %s says %q, want %q", prompt, said, want)
		}
		said = succeed(t, "embed", "--model", model, "--input", at("long.jsonl"), "--prompt", prompt, "--output", at(prompt+".parquet"), "--quiet").stderr
		if !strings.Contains(said, want[1]) || strings.Contains(said, "written to") {
			t.Errorf("--prompt %s --quiet says %q, want %q alone", prompt, said, want[1])
		}
		said = succeed(t, "embed", "--model", model, "--text", "a cat and a dog in the house", "--prompt", prompt, "--max-length", "3").stderr
		if !strings.Contains(said, "1 text was longer than 3 tokens and cut") {
			t.Errorf("--prompt %s --text says %q", prompt, said)
		}
	}
}
