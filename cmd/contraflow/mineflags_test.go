package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/io/dataset"
	"contraflow/testdata/goldens"
)

// minedRows are all rows of a file that mine or distill has written, with a column's scores.
func minedRows(t *testing.T, path, scores string) []dataset.Example {
	t.Helper()
	d, err := dataset.Open(t.Context(), dataset.Source{
		Paths: []string{path}, Query: "query", Positive: "positive", Negatives: []string{"negatives"}, NegativesPerQuery: dataset.AllNegatives, Scores: []string{scores},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	rows := make([]int64, d.Rows())
	for i := range rows {
		rows[i] = int64(i)
	}
	examples, err := d.NewReader(dataset.ReaderConfig{}).Read(t.Context(), 0, rows)
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range examples {
		examples[i].Texts, examples[i].Scores = slices.Clone(e.Texts), slices.Clone(e.Scores)
	}
	return examples
}

// minedPairs mines pairs of words, and is each row's texts, and its scores.
func minedPairs(t *testing.T, more ...string) (texts [][]string, scores [][]float32) {
	t.Helper()
	dir := t.TempDir()
	in, out := filepath.Join(dir, "pairs.parquet"), filepath.Join(dir, "mined.parquet")
	var queries, positives []string
	for _, w := range strings.Fields("cat dog bird fish tree river road house city stone bread water fire wind") {
		queries, positives = append(queries, "find the "+w), append(positives, fmt.Sprintf("a %s of the %s", w, w))
	}
	write(t, in, []string{"query", "positive"}, queries, positives)
	succeed(t, append([]string{"mine", "--model", goldens.Path(t, "bert/minilm-tiny"), "--input", in, "--output", out}, more...)...)
	examples := minedRows(t, out, "scores")
	if len(examples) != len(queries) {
		t.Fatalf("%d rows of %d pairs", len(examples), len(queries))
	}
	for _, e := range examples {
		texts, scores = append(texts, e.Texts), append(scores, e.Scores)
	}
	return texts, scores
}

// A random sample is by --seed, whose default is 42.
func TestMineSeed(t *testing.T) {
	mined := func(more ...string) string {
		texts, _ := minedPairs(t, append([]string{"--num-negatives", "2", "--range-max", "12", "--sampling", "random"}, more...)...)
		return fmt.Sprint(texts)
	}
	usual := mined()
	if got := mined("--seed", "42"); got != usual {
		t.Errorf("with the default's seed %s, without %s", got, usual)
	}
	if mined("--seed", "43") == usual {
		t.Error("another --seed draws the same negatives")
	}
}

// With --sigmoid what a cross-encoder's scores are written as, and bounds are of, is between 0 and 1.
func TestMineSigmoid(t *testing.T) {
	args := []string{"--num-negatives", "3", "--cross-encoder", goldens.Path(t, "rerank/cross"), "--max-score", "1000"}
	texts, raw := minedPairs(t, args...)
	again, scores := minedPairs(t, append(args, "--sigmoid")...)
	if fmt.Sprint(again) != fmt.Sprint(texts) {
		t.Errorf("negatives %v, without --sigmoid %v", again, texts)
	}
	for i := range raw {
		for k, s := range raw[i] {
			if want := 1 / (1 + math.Exp(-float64(s))); !(math.Abs(float64(scores[i][k])-want) <= 1e-5) {
				t.Errorf("row %d, document %d: %v, want %v of %v", i, k, scores[i][k], want, s)
			}
		}
	}
}

// Rows of documents with labels are mined as the pairs that they say, with their other documents in the corpus.
func TestMineDocuments(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	put := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(at(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	lists, first, pairs, corpus, firsts, others := "", "", "", "", "", ""
	for i, w := range strings.Fields("cat dog bird fish tree river") {
		query := "find the " + w
		docs := []string{"a " + w + " of the " + w, w + " and water", "not the " + w}
		lists += fmt.Sprintf("{\"query\": %q, \"docs\": [%q, %q, %q], \"labels\": [0, 2, %v]}\n", query, docs[0], docs[1], docs[2], i%2 == 0)
		first += fmt.Sprintf("{\"query\": %q, \"docs\": [%q, %q]}\n", query, docs[0], docs[1])
		pairs += fmt.Sprintf("{\"query\": %q, \"positive\": %q}\n", query, docs[1])
		corpus += fmt.Sprintf("{\"text\": %q}\n", docs[0])
		if i%2 == 0 {
			pairs += fmt.Sprintf("{\"query\": %q, \"positive\": %q}\n", query, docs[2])
		} else {
			corpus += fmt.Sprintf("{\"text\": %q}\n", docs[2])
		}
		firsts += fmt.Sprintf("{\"query\": %q, \"positive\": %q}\n", query, docs[0])
		others += fmt.Sprintf("{\"text\": %q}\n", docs[1])
	}
	put("lists.jsonl", strings.ReplaceAll(strings.ReplaceAll(lists, "true", "0.25"), "false", "-1")+`{"query": "none", "docs": ["a house", "a wall"], "labels": [0, 0]}`+"\n")
	put("pairs.jsonl", pairs)
	put("corpus.jsonl", corpus+`{"text": "a house"}`+"\n"+`{"text": "a wall"}`+"\n")
	put("first.jsonl", first)
	put("firsts.jsonl", firsts)
	put("others.jsonl", others)
	put("zero.jsonl", `{"query": "none", "docs": ["a house", "a wall"], "labels": [0, 0]}`+"\n")
	mine := []string{"mine", "--model", goldens.Path(t, "bert/minilm-tiny"), "--num-negatives", "4", "--output"}
	for _, c := range []struct{ lists, plain []string }{
		{[]string{"--input", at("lists.jsonl"), "--documents", "docs", "--labels", "labels"}, []string{"--input", at("pairs.jsonl"), "--corpus", at("corpus.jsonl")}},
		{[]string{"--input", at("first.jsonl"), "--documents", "docs"}, []string{"--input", at("firsts.jsonl"), "--corpus", at("others.jsonl")}},
	} {
		said := succeed(t, append(append(mine, at("a.parquet")), c.lists...)...).stderr
		succeed(t, append(append(mine, at("b.parquet")), c.plain...)...)
		got, want := minedRows(t, at("a.parquet"), "scores"), minedRows(t, at("b.parquet"), "scores")
		if len(want) < 6 || len(got) != len(want) {
			t.Fatalf("%d rows of documents, %d of pairs", len(got), len(want))
		}
		for i := range want {
			if !slices.Equal(got[i].Texts, want[i].Texts) || !slices.Equal(got[i].Scores, want[i].Scores) {
				t.Errorf("row %d: %q, of pairs %q", i, got[i].Texts, want[i].Texts)
			}
		}
		if without := strings.Contains(said, "1 of 7 rows has no document with a label above 0, and no pair"); without != (len(c.lists) > 4) {
			t.Errorf("mine says %q", said)
		}
	}
	for want, more := range map[string][]string{
		"--positive is among --documents":                             {"--input", at("lists.jsonl"), "--documents", "docs", "--positive", "p"},
		"--labels is of --documents, which is not given":              {"--input", at("lists.jsonl"), "--labels", "labels"},
		`zero.jsonl has no column "docz" (did you mean "docs"?)`:      {"--input", at("zero.jsonl"), "--documents", "docz"},
		`none of 1 row has a document with a label above 0 in column`: {"--input", at("zero.jsonl"), "--documents", "docs", "--labels", "labels"},
	} {
		if r := contraflow(t, "", append(append(mine, at("x.parquet")), more...)...); r.code == 0 || !strings.Contains(r.stderr, want) {
			t.Errorf("%v: exit code %d, want %q in\n%s", more, r.code, want, r.stderr)
		}
	}
}

// --on-error is of --corpus as well: a document that can't be used ends mine, or is left out and counted, and then the others are mined as without it.
func TestMineBadCorpus(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for name, text := range map[string]string{
		"pairs.jsonl": `{"query": "the cat", "positive": "a bird"}` + "\n",
		"bad.jsonl":   `{"text": "a dog"}` + "\n" + `{"text": 7}` + "\n" + `{"text": ""}` + "\nno json\n" + `{"text": "a river"}` + "\n",
		"good.jsonl":  `{"text": "a dog"}` + "\n" + `{"text": "a river"}` + "\n",
		"none.jsonl":  `{"text": null}` + "\n",
	} {
		if err := os.WriteFile(at(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	args := []string{"mine", "--model", goldens.Path(t, "bert/minilm-tiny"), "--input", at("pairs.jsonl"), "--num-negatives", "2", "--query-max-length", "4"}
	if r := contraflow(t, "", append(args, "--corpus", at("bad.jsonl"), "--output", at("x.parquet"))...); r.code != 1 || !strings.Contains(r.stderr, `--corpus: `+at("bad.jsonl")+`:2, column "text": it is a number, want a string; --on-error skip leaves out rows`) {
		t.Errorf("exit code %d\n%s", r.code, r.stderr)
	}
	if r := contraflow(t, "", append(args, "--corpus", at("none.jsonl"), "--output", at("x.parquet"), "--on-error", "skip")...); r.code != 1 || !strings.Contains(r.stderr, `--corpus: none of 1 row can be used; the first: `) {
		t.Errorf("exit code %d\n%s", r.code, r.stderr)
	}
	said := succeed(t, append(args, "--corpus", at("bad.jsonl"), "--output", at("a.parquet"), "--on-error", "skip")...).stderr
	if !strings.Contains(said, "2 rows of --corpus can't be used and are left out (--on-error skip); the first: "+at("bad.jsonl")+":2") || !strings.Contains(said, "1 document of --corpus is empty") {
		t.Errorf("mine says %q", said)
	}
	succeed(t, append(args, "--corpus", at("good.jsonl"), "--output", at("b.parquet"))...)
	a, b := minedRows(t, at("a.parquet"), "scores"), minedRows(t, at("b.parquet"), "scores")
	if len(a) != 1 || len(b) != 1 || !slices.Equal(a[0].Texts, b[0].Texts) || !slices.Equal(a[0].Scores, b[0].Scores) {
		t.Errorf("%v, without the documents that can't be used %v", a, b)
	}
}

// A file that was mined says that its scores are those of the model that mined, and not where a cross-encoder has scored: a note comes of it where they
// are taken for a teacher's.
func TestMinedScoresNoted(t *testing.T) {
	dir := t.TempDir()
	in, out := filepath.Join(dir, "pairs.parquet"), filepath.Join(dir, "mined.parquet")
	words := strings.Fields("cat dog bird fish")
	write(t, in, []string{"query", "positive"}, words, []string{"a cat", "a dog", "a bird", "a fish"})
	for _, c := range []struct {
		noted bool
		more  []string
	}{{true, nil}, {false, []string{"--cross-encoder", goldens.Path(t, "rerank/cross"), "--max-score", "1000"}}} {
		succeed(t, append([]string{"mine", "--model", goldens.Path(t, "bert/minilm-tiny"), "--input", in, "--output", out, "--num-negatives", "1"}, c.more...)...)
		d, err := dataset.Open(t.Context(), dataset.Source{Paths: []string{out}, Query: "query", Positive: "positive", Negatives: []string{"negatives"}, NegativesPerQuery: dataset.AllNegatives, Scores: []string{"scores"}})
		if err != nil {
			t.Fatal(err)
		}
		if noted := strings.Contains(strings.Join(d.Notes(), "\n"), "mined"); noted != c.noted {
			t.Errorf("%q: notes %q", c.more, d.Notes())
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// --out is where a run goes, whatever --set says of save.dir.
func TestOutBeforeSet(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.yaml")
	if err := os.WriteFile(path, []byte("model: {path: m}\ndata: {train: [{path: d.parquet, query: q, positive: p}]}\nsave: {dir: one}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		sets []string
		out  string
		want string
	}{{nil, "", "one"}, {[]string{"save.dir=two"}, "", "two"}, {[]string{"save.dir=two"}, "three, four", "three, four"}} {
		f := recipeFlags{file: path, sets: c.sets, out: c.out}
		if r, err := f.load(); err != nil || r.Save.Dir != c.want || len(f.sets) != len(c.sets) {
			t.Errorf("%+v: %q, %v", c, r.Save.Dir, err)
		}
	}
}
