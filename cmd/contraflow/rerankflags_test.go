package main

import (
	"encoding/json"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/io/dataset"
	"contraflow/stages/embedder"
	"contraflow/stages/evaluate"
	"contraflow/stages/reranker"
	"contraflow/testdata/goldens"
)

// The figures are those of BM25, of the first model, of what the reranker makes of both's first documents, and of that and BM25 together.
func TestRerankFirst(t *testing.T) {
	dir, ctx := workspace(t), t.Context()
	at := func(name string) string { return filepath.Join(dir, name) }
	cross, first := goldens.Path(t, "rerank/cross"), goldens.Path(t, "bert/minilm-tiny")
	r, err := reranker.Load(cross)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	e, err := embedder.Load(first)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	data, err := dataset.LoadRetrieval(ctx, at("queries.parquet"), at("corpus.parquet"), at("qrels.tsv"))
	if err != nil {
		t.Fatal(err)
	}
	query, document := e.RolePrompts()
	task, err := e.NewTask(ctx, data, query, document)
	if err != nil {
		t.Fatal(err)
	}
	const top = 5
	bm25, err := task.RankBM25(ctx, top)
	if err != nil {
		t.Fatal(err)
	}
	embedded, err := e.Rank(ctx, task, top)
	if err != nil {
		t.Fatal(err)
	}
	reranked, _, err := r.Rerank(ctx, data, task.Fuse(top, bm25, embedded))
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]map[string]float64
	out := succeed(t, "rerank", "--model", cross, "--first", first, "--queries", at("queries.parquet"), "--corpus", at("corpus.parquet"), "--qrels", at("qrels.tsv"), "--top", "5", "--json").stdout
	if err := json.Unmarshal([]byte(out), &got); err != nil || len(got) != 4 {
		t.Fatalf("%v: %s", err, out)
	}
	var figures []float64
	for name, run := range map[string]evaluate.Run{"bm25": bm25, "first": embedded, "reranker": reranked, "fused": task.Fuse(top, reranked, bm25)} {
		want, err := task.Measure(run, evaluate.NDCG(10))
		if err != nil {
			t.Fatal(err)
		}
		if figures = append(figures, want.Means[0]); !(math.Abs(got[name]["ndcg@10"]-want.Means[0]) <= 1e-9) {
			t.Errorf("%s: %v, want %v", name, got[name], want.Means[0])
		}
	}
	if slices.Sort(figures); len(slices.Compact(figures)) != 4 {
		t.Errorf("figures %v: a mistaken one would not be seen", figures)
	}
}

// The scores of a table are cut, and squeezed, as flags say.
func TestRerankCutAndSqueezed(t *testing.T) {
	dir, cross := workspace(t), goldens.Path(t, "rerank/cross")
	out := filepath.Join(dir, "out.parquet")
	scores := func(more ...string) []float32 {
		t.Helper()
		succeed(t, append([]string{"rerank", "--model", cross, "--input", filepath.Join(dir, "train.parquet"), "--document", "positive", "--output", out}, more...)...)
		return floats(t, dataset.Source{Paths: []string{out}, Query: "query", Positive: "positive", Scores: []string{"score"}})
	}
	plain, cut := scores(), scores("--max-length", "8")
	if len(plain) == 0 || slices.Equal(plain, cut) {
		t.Errorf("%d scores, and cut at 8 tokens the same", len(plain))
	}
	for i, s := range scores("--sigmoid") {
		if want := 1 / (1 + math.Exp(-float64(plain[i]))); !(math.Abs(float64(s)-want) <= 1e-6) {
			t.Fatalf("pair %d: %v, want %v, the sigmoid of %v", i, s, want, plain[i])
		}
	}
}

// Texts of the command line stand in the order of their scores, which are those of pairs.
func TestRerankTexts(t *testing.T) {
	cross := goldens.Path(t, "rerank/cross")
	r, err := reranker.Load(cross)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	const query = "the river"
	texts := []string{"a cat", "the river <b> stone", "", "a cat", strings.Repeat("cat ", 40)}
	want, _, err := r.ScorePairs(t.Context(), slices.Repeat([]string{query}, len(texts)), texts)
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"rerank", "--model", cross, "--query-text", query}
	for _, text := range texts {
		args = append(args, "--text", text)
	}
	ranked, above := succeed(t, args...), float32(math.Inf(1))
	if !strings.Contains(ranked.stderr, "1 pair was longer than 24 tokens and cut") {
		t.Errorf("%s", ranked.stderr)
	}
	for _, line := range strings.Split(strings.TrimSpace(ranked.stdout), "\n") {
		var got struct {
			Text  string
			Score float32
		}
		if err := json.Unmarshal([]byte(line), &got); err != nil || got.Score > above || !strings.Contains(line, got.Text) {
			t.Fatalf("%v: %s", err, line)
		}
		above = got.Score
		i := slices.Index(texts, got.Text)
		if i < 0 || got.Score != want[i] {
			t.Fatalf("%s, want %v", line, want)
		}
		texts, want = slices.Delete(texts, i, i+1), slices.Delete(want, i, i+1)
	}
	if len(texts) > 0 {
		t.Errorf("left out: %q", texts)
	}
	for _, flag := range []string{"--input=x", "--queries=x", "--corpus=x", "--qrels=x", "--first=x", "--top=3", "--json", "--query-column=x", "--document=x", "--output-column=x", "--on-error=skip"} {
		if r := contraflow(t, "", "rerank", "--model", cross, "--query-text", "a", "--text", "b", flag); r.code != 2 || !strings.Contains(r.stderr, " does not go with --query-text") {
			t.Errorf("%s: exit code %d\n%s", flag, r.code, r.stderr)
		}
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--query-text", "a"}, "--query-text and --text go together"},
		{[]string{"--text", "a"}, "--query-text and --text go together"},
		{[]string{"--query-text", "a", "--text", "b", "--output", "o.parquet"}, "--output does not go with --query-text"},
		{[]string{"--query-text", "a", "--text", "b", "--nanobeir"}, "--nanobeir does not go with --query-text"},
		{[]string{"--query-text", "a", "--text", "\xff"}, "is not valid UTF-8"},
	} {
		if r := contraflow(t, "", append([]string{"rerank", "--model", cross}, c.args...)...); r.code != 2 || !strings.Contains(r.stderr, c.want) {
			t.Errorf("%q: exit code %d\n%s", c.args, r.code, r.stderr)
		}
	}
}
