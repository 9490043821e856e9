package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"contraflow/io/dataset"
	"contraflow/stages/evaluate"
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
		if ndcg, _ := res["ndcg@10"].(float64); want == 0 || !(math.Abs(ndcg-want) <= 1e-9) {
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
	if r := succeed(t, "embed", "--model", model, "--input", at("corpus.parquet"), "--output", at("vectors.parquet"), "--parts"); !strings.Contains(r.stderr, "texts, of 16 dimensions each, written to") || strings.Contains(r.stderr, "embeddings of") {
		t.Errorf("it says\n%s", r.stderr)
	}
	out, err := dataset.OpenTable(t.Context(), []string{at("vectors.parquet")})
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(out.Columns()); !strings.Contains(got, "token_vectors") || strings.Contains(got, "embedding") || strings.Contains(got, "lexical") {
		t.Errorf("columns %s", got)
	}
	out.Close()
	succeed(t, "mine", "--model", model, "--input", at("train.parquet"), "--output", at("mined.parquet"), "--num-negatives", "1")
	// Pairs are compared by MaxSim, the first text as a query and the second as a document.
	vectors := func(role, text string) (v [][]float64) {
		var one struct {
			Vectors [][]float64 `json:"token_vectors"`
		}
		if err := json.Unmarshal([]byte(succeed(t, "embed", "--model", model, "--parts", "--prompt", role, "--text", text).stdout), &one); err != nil {
			t.Fatal(err)
		}
		return one.Vectors
	}
	var rows strings.Builder
	var sims, gold []float64
	for i, p := range [][2]string{{"a reader of files", "it reads a file, and more"}, {"it reads a file, and more", "a reader of files"}, {"writes", "a reader of files"}, {"a reader of files", "writes"}, {"a", "!"}} {
		fmt.Fprintf(&rows, "{\"a\": %q, \"b\": %q, \"s\": %d, \"y\": %d}\n", p[0], p[1], i*i%5, i%2)
		sum, documents := 0.0, vectors("document", p[1])
		for _, q := range vectors("query", p[0]) {
			best := math.Inf(-1)
			for _, d := range documents {
				dot := 0.0
				for k := range q {
					dot += q[k] * d[k]
				}
				best = max(best, dot)
			}
			sum += best
		}
		sims, gold = append(sims, sum), append(gold, float64(i*i%5))
	}
	if err := os.WriteFile(at("sts.jsonl"), []byte(rows.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	wantSTS, err := evaluate.EvaluateSTS(sims, gold)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range [][]string{{"--sts", "a,b,s", "pearson", fmt.Sprint(wantSTS.Pearson)}, {"--pair-classification", "a,b,y", "accuracy_threshold", ""}, {"--triplets", "a,b,a", "accuracy", ""}, {"--candidates", "a,b,a", "map", ""}} {
		args := []string{"eval", "--model", model, c[0], at("sts.jsonl"), "--columns", c[1], "--json"}
		var res map[string]float64
		if err := json.Unmarshal([]byte(succeed(t, args...).stdout), &res); err != nil {
			t.Fatal(err)
		}
		if want, err := strconv.ParseFloat(c[3], 64); err == nil && !(math.Abs(res[c[2]]-want) <= 1e-5) {
			t.Errorf("%v: %v, want %v", c, res, want)
		}
		if _, ok := res[c[2]]; !ok {
			t.Errorf("%v: %v", c, res)
		}
	}
	sts := []string{"eval", "--model", model, "--sts", at("sts.jsonl"), "--columns", "a,b,s", "--json"}
	if a, b := succeed(t, sts...), succeed(t, append(sts, "--document-prompt", "the file ")...); a.stdout == b.stdout {
		t.Errorf("another prompt before second texts changes nothing: %s", a.stdout)
	}
	for want, args := range map[string][]string{
		"--parts has them written": {"embed", "--model", model, "--text", "x"},
		"a vector for each token and no embeddings: a teacher is a reranker or an embedding model": {
			"distill", "--model", model, "--input", at("train.parquet"), "--query", "query", "--positive", "positive", "--output", at("scored.parquet")},
		"--part and --weights are for":             append(task, "--part", "dense"),
		"model.kind: multi_vector trains it":       {"train", "-c", recipe, "--out", at("other"), "--set", "model={path: " + model + "}"},
		"loss.name: is \"gist\", want one of dist": {"train", "-c", recipe, "--out", at("other"), "--set", "loss.name=gist"},
	} {
		if r := contraflow(t, "", args...); r.code == 0 || !strings.Contains(r.stderr, want) {
			t.Errorf("%v: exit %d, %q, want %q", args, r.code, r.stderr, want)
		}
	}
}

// filledUp is a model of vectors of tokens whose queries are filled up to 10 tokens, with a skiplist of punctuation and of a word that is no token.
func filledUp(t *testing.T, dir string) string {
	t.Helper()
	model := filepath.Join(dir, "expanded")
	if err := os.CopyFS(model, os.DirFS(goldens.Path(t, "bert/minilm-tiny"))); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"modules.json": `[{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"},
			{"idx": 1, "name": "1", "path": "1_MultiVectorMask", "type": "sentence_transformers.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask"}]`,
		"config_sentence_transformers.json": `{"model_type": "MultiVectorEncoder"}`,
		"sentence_bert_config.json":         `{"query_expansion": {"strategy": "fixed", "attend": true, "token": null, "length": 10}}`,
		"1_MultiVectorMask/config.json":     `{"skiplist_words": [".", ",", "!", "[CLS]", "[SEP]", "nosuchtoken"], "skiplist_tasks": ["document"]}`,
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(model, name)), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(model, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return model
}

// A document all of whose tokens are in the skiplist is ranked last, and ends neither an evaluation nor mining. Lengths that a fixed expansion does not
// keep are told, and so are words of the skiplist that are no tokens.
func TestVectorless(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	model := filledUp(t, dir)
	for name, text := range map[string]string{
		"queries.jsonl": `{"id": "1", "text": "a river"}` + "\n" + `{"id": "2", "text": "the stone"}` + "\n",
		"corpus.jsonl": `{"id": "none", "text": "., !"}` + "\n" + `{"id": "b", "text": "a river"}` + "\n" + `{"id": "c", "text": "the stone"}` + "\n" + `{"id": "d", "text": "a house"}` + "\n" +
			`{"id": "e", "text": "some light"}` + "\n" + `{"id": "f", "text": "a tree"}` + "\n" + `{"id": "nothing-none", "text": "!"}` + "\n",
		"qrels.tsv":   "query-id\tcorpus-id\tscore\n1\tb\t1\n2\tc\t1\n",
		"train.jsonl": `{"query": "a river", "positive": "a tree"}` + "\n" + `{"query": "the stone", "positive": "a house"}` + "\n" + `{"query": "x", "positive": "., !"}` + "\n",
	} {
		if err := os.WriteFile(at(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	eval := []string{"eval", "--model", model, "--queries", at("queries.jsonl"), "--corpus", at("corpus.jsonl"), "--qrels", at("qrels.tsv"), "--run", at("run.trec")}
	r := succeed(t, eval...)
	if !strings.Contains(r.stderr, `the skiplist has ["nosuchtoken"], which the vocabulary does not have`) {
		t.Errorf("it says\n%s", r.stderr)
	}
	run, err := os.ReadFile(at("run.trec"))
	if err != nil {
		t.Fatal(err)
	}
	if lines := strings.Split(strings.TrimSpace(string(run)), "\n"); len(lines) != 14 || !strings.Contains(lines[5], "none") || !strings.Contains(lines[6], "none") || !strings.Contains(lines[12], "none") {
		t.Errorf("the run is\n%s", run)
	}
	r = succeed(t, "mine", "--model", model, "--input", at("train.jsonl"), "--output", at("mined.parquet"), "--num-negatives", "1")
	if strings.Contains(r.stderr, "row ") {
		t.Errorf("mine says\n%s", r.stderr)
	}
	recipe := at("r.yaml")
	if err := os.WriteFile(recipe, []byte(fmt.Sprintf(`model: {path: %q, kind: multi_vector}
data: {train: [{path: %q, query: query, positive: positive}]}
batch: {global_size: 2, drop_last: false}
train: {epochs: 1, device: cpu, precision: f32}
eval: {every: 0, at_start: true, retrieval: {queries: %q, corpus: %q, qrels: %q}}
save: {dir: %q}
`, model, at("train.jsonl"), at("queries.jsonl"), at("corpus.jsonl"), at("qrels.tsv"), at("trained"))), 0o600); err != nil {
		t.Fatal(err)
	}
	r = contraflow(t, "", "train", "-c", recipe)
	for _, want := range []string{"train.jsonl:3", "all of them are in model.skiplist", "data.on_error: skip"} {
		if r.code != 1 || !strings.Contains(r.stderr, want) {
			t.Errorf("training: exit %d, no %q in\n%s", r.code, want, r.stderr)
		}
	}
	r = succeed(t, "train", "-c", recipe, "--set", "data.on_error=skip")
	for _, want := range []string{"1 row", "ndcg@10", "model.skiplist: the skiplist has ["} {
		if !strings.Contains(r.stderr, want) {
			t.Errorf("training without the row: no %q in\n%s", want, r.stderr)
		}
	}
	const fixed = "query_expansion, whose length is fixed, makes all of them 10"
	for _, args := range [][]string{append(eval, "--query-max-length", "20"), {"embed", "--model", model, "--parts", "--prompt", "query", "--text", "a river", "--max-length", "20"}} {
		if r := succeed(t, args...); !strings.Contains(r.stderr, fixed) {
			t.Errorf("%v says\n%s", args, r.stderr)
		}
	}
	for _, args := range [][]string{append(eval, "--query-max-length", "5"), {"embed", "--model", model, "--parts", "--prompt", "query", "--text", "a river", "--max-length", "5"}} {
		if r := contraflow(t, "", args...); r.code == 0 || !strings.Contains(r.stderr, "and query_expansion fills them up to 10") {
			t.Errorf("%v: exit %d, %q", args, r.code, r.stderr)
		}
	}
}
