package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"contraflow/stages/embedder"
	"contraflow/stages/evaluate"
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
			if both["a"][what][measure] != v || both["b"][what][measure] != b[what][measure] || !(math.Abs(both["mean"][what][measure]-mean) <= 1e-12) {
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
	r := succeed(t, "eval", "--model", goldens.Path(t, "bert/minilm-tiny"), "--queries", at("a"), "--queries", at("b"), "--bm25")
	if !strings.Contains(r.stderr, "a: 8 of 8 queries embedded\n") || !strings.HasSuffix(r.stderr, "b: 9 of 9 documents embedded\n") {
		t.Errorf("eval does not show how far it has come: %q", r.stderr)
	}
	table := r.stdout
	if lines := strings.Split(table, "\n"); len(lines) < 7 || !strings.HasPrefix(lines[1], "a ") || !strings.HasPrefix(lines[2], "a, BM25 ") || !strings.HasPrefix(lines[5], "mean ") || !strings.HasPrefix(lines[6], "mean, BM25 ") {
		t.Errorf("%s", table)
	}
	// A ranking in TREC's format has the figures that are printed.
	succeed(t, "eval", "--model", goldens.Path(t, "bert/minilm-tiny"), "--queries", at("b"), "--run", at("b.run"))
	ids := func(prefix string) (all []string) {
		for i := range 9 {
			all = append(all, fmt.Sprint(prefix, i))
		}
		return all
	}
	q, err := evaluate.NewIDs(ids("q"))
	if err != nil {
		t.Fatal(err)
	}
	d, err := evaluate.NewIDs(ids("d"))
	if err != nil {
		t.Fatal(err)
	}
	qrels := evaluate.NewQrels(q, d)
	for i := 4; i < 9; i++ {
		if err := qrels.Add(fmt.Sprint("q", i), fmt.Sprint("d", (i+1)%9), 1); err != nil {
			t.Fatal(err)
		}
	}
	run, last := make(evaluate.Run, 9), float32(0)
	for line := range strings.Lines(mustRead(t, at("b.run"))) {
		var query, doc, rank int
		var score float32
		if n, err := fmt.Sscanf(line, "q%d Q0 d%d %d %g contraflow\n", &query, &doc, &rank, &score); n != 4 || err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if rank != len(run[query])+1 || rank > 1 && score > last {
			t.Errorf("%q after a score of %v", line, last)
		}
		run[query], last = append(run[query], evaluate.Hit{Doc: int32(doc), Score: score}), score
	}
	res, err := evaluate.Evaluate(run, qrels)
	if err != nil {
		t.Fatal(err)
	}
	for i, m := range res.Measures {
		if !(math.Abs(res.Means[i]-b["model"][m.String()]) <= 1e-12) {
			t.Errorf("%v of the file is %v, printed was %v", m, res.Means[i], b["model"][m.String()])
		}
	}
	if r := contraflow(t, "", "eval", "--model", goldens.Path(t, "bert/minilm-tiny"), "--queries", at("b"), "--run", at("nowhere/b.run")); r.code != 1 || !strings.Contains(r.stderr, "--run: ") {
		t.Errorf("%d: %s", r.code, r.stderr)
	}
	if r := contraflow(t, "", "eval", "--model", "m", "--queries", at("a"), "--queries", at("b"), "--run", "x"); r.code != 2 || !strings.Contains(r.stderr, "--run is of one task") {
		t.Errorf("%d: %s", r.code, r.stderr)
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

// Scored pairs are measured by the cosines of their embeddings, in what columns they are, with the model's prompt for queries or another.
func TestEvalSTS(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	model := goldens.Path(t, "bert/minilm-tiny")
	texts := []string{"the river", "stone of the house", "a cat on a mat", "who is there", "two stones by the river", "nothing"}
	var rows, same strings.Builder
	var scores []float64
	for i := range texts {
		scores = append(scores, float64(i*i%5))
		fmt.Fprintf(&rows, "{\"a\": %q, \"sentence1\": %[1]q, \"b\": %[2]q, \"sentence2\": %[2]q, \"s\": %[3]v, \"score\": %[3]v}\n", texts[i], texts[(i+2)%len(texts)], scores[i])
		fmt.Fprintf(&same, "{\"sentence1\": \"x\", \"sentence2\": \"y\", \"score\": %d}\n", i)
	}
	for name, text := range map[string]string{"sts.jsonl": rows.String(), "same.jsonl": same.String(), "equal.jsonl": strings.Repeat(`{"sentence1": "x", "sentence2": "y", "score": 1}`+"\n", 2)} {
		if err := os.WriteFile(at(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	e, err := embedder.Load(model)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for _, prompt := range []string{"find : ", ""} { // the model's for queries, and none
		args := []string{"eval", "--model", model, "--sts", at("sts.jsonl"), "--json"}
		var prompted []string
		for _, text := range texts {
			prompted = append(prompted, prompt+text)
		}
		if prompt == "" {
			args = append(args, "--query-prompt", "", "--columns", "a,b,s")
		}
		vecs, err := e.EmbedPrompt(t.Context(), "", prompted)
		if err != nil {
			t.Fatal(err)
		}
		var cosines []float64
		for i := range vecs { // of length 1
			dot := 0.0
			for k, v := range vecs[(i+2)%len(vecs)] {
				dot += float64(v) * float64(vecs[i][k])
			}
			cosines = append(cosines, dot)
		}
		want, err := evaluate.EvaluateSTS(cosines, scores)
		if err != nil {
			t.Fatal(err)
		}
		var got evaluate.STS
		if err := json.Unmarshal([]byte(succeed(t, args...).stdout), &got); err != nil || got.Spearman != want.Spearman || !(math.Abs(got.Pearson-want.Pearson) <= 1e-5) || got.Pairs != len(texts) {
			t.Errorf("%+v (%v), want %+v", got, err, want)
		}
	}
	if out := succeed(t, "eval", "--model", model, "--sts", at("sts.jsonl")).stdout; !strings.HasPrefix(out, "spearman ") || !strings.HasSuffix(out, ", 6 pairs\n") {
		t.Errorf("%q", out)
	}
	// Pairs and triplets that show what is read how: a query's prompt is part of the same text where it stands on both sides, and not before documents.
	for name, lines := range map[string][]string{
		"classes.jsonl":  {`{"sentence1": "a b", "sentence2": "a b", "label": 1, "y": false}`, `{"sentence1": "a b", "sentence2": "c d e", "label": 0, "y": true}`},
		"triplets.jsonl": {`{"anchor": "a b", "positive": "find : a b", "negative": "a b"}`, `{"anchor": "a b", "positive": "c", "negative": "c"}`},
		"odd.jsonl":      {`{"sentence1": "a", "sentence2": "b", "label": 2}`},
	} {
		if err := os.WriteFile(at(name), []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--pair-classification", at("classes.jsonl")}, "ap 1.0000, accuracy 1.0000 from "},
		{[]string{"--pair-classification", at("classes.jsonl"), "--columns", "sentence1,sentence2,y"}, "ap 0.5000, accuracy 0.5000 from "},
		{[]string{"--pair-classification", at("classes.jsonl"), "--json"}, `{"ap":1,"accuracy":1,"accuracy_threshold":`},
		{[]string{"--triplets", at("triplets.jsonl")}, "accuracy 0.5000, 2 triplets\n"},
		{[]string{"--candidates", at("triplets.jsonl"), "--columns", "anchor,positive,negative"}, "ndcg@10 0.9077, mrr@10 0.8750, map 0.7500, 2 queries\n"}, // the second one's texts are the same: a mean over two orders, and precision at the one threshold
		{[]string{"--candidates", at("triplets.jsonl"), "--columns", "anchor,positive,negative", "--query-prompt", ""}, "ndcg@10 0.7232, mrr@10 0.6250, map 0.5000, 2 queries\n"},
		{[]string{"--candidates", at("triplets.jsonl"), "--columns", "anchor,positive,negative", "--query-prompt", "", "--metric", "recall@1"}, "recall@1 0.2500, ndcg@10 0.7232, mrr@10 0.6250, map 0.5000, 2 queries\n"},
		{[]string{"--triplets", at("triplets.jsonl"), "--query-prompt", ""}, "accuracy 0.0000, 2 triplets\n"},
		{[]string{"--triplets", at("triplets.jsonl"), "--query-prompt", "", "--columns", "anchor,negative,positive"}, "accuracy 0.5000, 2 triplets\n"},
		{[]string{"--triplets", at("triplets.jsonl"), "--document-prompt", "find : ", "--columns", "anchor,negative,positive", "--json"}, `{"accuracy":0.5,"triplets":2}`},
	} {
		if out := succeed(t, append([]string{"eval", "--model", model}, c.args...)...).stdout; !strings.HasPrefix(out, c.want) {
			t.Errorf("%v: %q, want %q", c.args, out, c.want)
		}
	}
	// Of a dataset of the hub, which is in the cache, its split test.
	const commit = "0123456789012345678901234567890123456789"
	for name, text := range map[string]string{"refs/main": commit, "snapshots/" + commit + "/README.md": "---\nconfigs: [{config_name: default, data_files: [{split: train, path: train.jsonl}, {split: test, path: test.jsonl}]}, {config_name: q, data_dir: q}]\n---\n", "snapshots/" + commit + "/train.jsonl": same.String(), "snapshots/" + commit + "/test.jsonl": rows.String()} {
		name = at("cache/datasets--org--name/" + name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{"q/test.jsonl": `{"_id": "1", "text": "a"}`, "q/train.jsonl": "{}", "qrels/test.jsonl": `{"query-id": "1", "corpus-id": "1", "score": 1}`} {
		name = at("cache/datasets--org--name/snapshots/" + commit + "/" + name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	// By several numbers of dimensions there is for each what it alone gives, as text and as JSON.
	for _, of := range [][]string{{"--sts", at("sts.jsonl")}, {"--triplets", at("triplets.jsonl")}} {
		args := append([]string{"eval", "--model", model}, of...)
		alone := func(more ...string) string { return strings.TrimSpace(succeed(t, append(args, more...)...).stdout) }
		want := fmt.Sprintf("3 dimensions: %s\n2 dimensions: %s", alone("--dimensions", "3"), alone("--dimensions", "2"))
		if got := alone("--dimensions", "3,2"); got != want {
			t.Errorf("%v: %q, want %q", of, got, want)
		}
		want = fmt.Sprintf(`{"2":%s,"3":%s}`, alone("--dimensions", "2", "--json"), alone("--dimensions", "3", "--json"))
		if got := alone("--dimensions", "3,2", "--json"); got != want {
			t.Errorf("%v: %s, want %s", of, got, want)
		}
	}
	t.Setenv("HF_HUB_CACHE", at("cache"))
	t.Setenv("HF_HUB_OFFLINE", "1")
	if r := succeed(t, "eval", "--model", model, "--sts", "hf://datasets/org/name"); !strings.HasSuffix(r.stdout, ", 6 pairs\n") || r.stdout != succeed(t, "eval", "--model", model, "--sts", at("sts.jsonl")).stdout ||
		!strings.Contains(r.stderr, "note: hf://datasets/org/name: its split test is what is measured with, of test, train; ?split=NAME behind it names another") {
		t.Errorf("%q, %q", r.stdout, r.stderr)
	}
	const queries = "hf://datasets/org/name?config=q"
	if r := succeed(t, "eval", "--model", model, "--queries", queries, "--corpus", queries, "--qrels", "hf://datasets/org/name/qrels/test.jsonl"); strings.Count(r.stderr, "note: hf://datasets/org/name: its split test is what") != 2 {
		t.Errorf("%q, %q", r.stdout, r.stderr)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--sts", at("same.jsonl")}, 1, "the first list is the pairs' similarities"},
		{[]string{"--sts", at("equal.jsonl")}, 1, `equal.jsonl, column "score": all 2 scores are 1: nothing correlates with that; it takes another file (--sts) or column (--columns)`},
		{[]string{"--sts", at("sts.jsonl"), "--columns", "a,b"}, 2, "--columns has 2 names"},
		{[]string{"--sts", at("sts.jsonl"), "--columns", "a,b,c"}, 1, `has no column "c"`},
		{[]string{"--sts", at("sts.jsonl"), "--bm25"}, 2, "--bm25 are for --queries"},
		{[]string{"--queries", dir, "--columns", "a,b,c"}, 2, "--columns is for --sts"},
		{[]string{"--queries", dir, "--sts", at("sts.jsonl")}, 2, "--queries and --sts: give one at a time"},
		{[]string{"--triplets", at("triplets.jsonl"), "--sts", at("sts.jsonl")}, 2, "--sts and --triplets: give one at a time"},
		{[]string{"--candidates", at("triplets.jsonl"), "--columns", "a,b"}, 2, "--columns has 2 names, want 3 as in --columns query,positive,negative"},
		{[]string{"--candidates", at("triplets.jsonl"), "--found"}, 2, "--found is of --documents"},
		{[]string{"--candidates", at("triplets.jsonl"), "--columns", "anchor,positive", "--documents", "positive"}, 1, "there is nothing to rank; it takes another file (--candidates) or column (--documents)"},
		{[]string{"--candidates", at("triplets.jsonl"), "--columns", "anchor,positive", "--documents", "positive", "--found"}, 1, "ndcg@10 is the same for every model: of 2 queries 2 have positives alone; it takes another file (--candidates) or column (--documents)"},
		{[]string{"--candidates", at("triplets.jsonl"), "--columns", "anchor,positive,x"}, 1, "where rows have a list of all candidates it takes another file (--candidates) or column (--documents)"},
		{[]string{"--candidates", at("triplets.jsonl"), "--metric", "recall"}, 2, "--metric: recall: of all the candidates it is the same for every model: it needs a cut-off"},
		{[]string{"--candidates", at("triplets.jsonl"), "--metric", "x"}, 2, `--metric: measure "x" is not known`},
		{[]string{"--triplets", at("triplets.jsonl"), "--metric", "ndcg@3"}, 2, "--metric is for --candidates"},
		{[]string{"--sts", at("sts.jsonl"), "--documents", "x"}, 2, "--documents is for --candidates"},
		{[]string{"--pair-classification", at("odd.jsonl")}, 1, `odd.jsonl:1, column "label": a label of "2": want 1 or true`},
		{[]string{"--pair-classification", at("sts.jsonl"), "--columns", "a,b,"}, 2, "--columns has a name without anything in it: want 3 as in --columns sentence1,sentence2,label"},
		{[]string{"--pair-classification", at("sts.jsonl"), "--columns", "a,b,missing"}, 1, `has no column "missing"`},
		{[]string{"--pair-classification", at("classes.jsonl"), "--document-prompt", "x"}, 2, "both texts of --pair-classification are read as queries are"},
	} {
		if r := contraflow(t, "", append([]string{"eval", "--model", model}, c.args...)...); r.code != c.code || !strings.Contains(r.stderr, c.want) {
			t.Errorf("%v: %d, %s", c.args, r.code, r.stderr)
		}
	}
}

// Training with two lengths says what the saved model, whose folder has one, reads otherwise; eval with the queries' own has training's figure.
func TestQueryLength(t *testing.T) {
	dir := workspace(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	const note = "note: the saved model reads queries to 12 tokens, as documents, for its folder's format has one max_seq_length; training has cut them at 4, and so does contraflow eval --query-max-length 4\n"
	r := succeed(t, "train", "--log", "human", "-c", at("recipe.yaml"), "--set", "model.max_length={query: 4, document: 12}", "--set", "train.max_steps=4")
	if strings.Count(r.stderr, note) != 1 {
		t.Errorf("want once %q in\n%s", note, r.stderr)
	}
	trained := 0.0
	for line := range strings.Lines(mustRead(t, at("run/metrics.jsonl"))) {
		var e struct {
			Metric string
			Value  float64
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		if e.Metric == "ndcg@10" {
			trained = e.Value
		}
	}
	measured := func(args ...string) float64 {
		var m map[string]float64
		args = append([]string{"eval", "--model", at("run/model"), "--queries", at("queries.parquet"), "--corpus", at("corpus.parquet"), "--qrels", at("qrels.tsv"), "--json"}, args...)
		if err := json.Unmarshal([]byte(succeed(t, args...).stdout), &m); err != nil {
			t.Fatal(err)
		}
		return m["ndcg@10"]
	}
	if got := measured("--query-max-length", "4"); trained == 0 || !(math.Abs(got-trained) <= 1e-12) {
		t.Errorf("%v with the queries' length, training has %v", got, trained)
	}
	if got := measured(); got == trained {
		t.Errorf("%v without it, as training has: the queries' length makes no difference here", got)
	}
	if r := contraflow(t, "", "eval", "--model", at("run/model"), "--queries", dir, "--query-max-length", "1000"); r.code == 0 || !strings.Contains(r.stderr, "queries: a maximum length of 1000 tokens is beyond the model's") {
		t.Errorf("exit code %d: %s", r.code, r.stderr)
	}
	r = succeed(t, "train", "--log", "human", "-c", at("recipe.yaml"), "--set", "model.max_length=12", "--set", "train.max_steps=1", "--out", at("same"))
	if strings.Contains(r.stderr, "max_seq_length") {
		t.Error(r.stderr)
	}
}
