package main

import (
	"encoding/json"
	"fmt"
	"iter"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/io/dataset"
	"contraflow/stages/embedder"
	"contraflow/stages/reranker"
	"contraflow/testdata/goldens"
)

// mine writes what train reads: pairs with lists of negatives, which never hold a positive of the query, and the scores of all
// documents; losses of several kinds train on them.
func TestMine(t *testing.T) {
	model := goldens.Path(t, "bert/minilm-tiny")
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	var lines, more strings.Builder
	positives := map[string][]string{}
	words := strings.Fields("cat dog bird fish tree river road house city stone bread water fire wind rain snow sun") // both models know these
	for i := range 16 {
		q := "find the " + words[i%13]
		p := fmt.Sprintf("a %s of the %s", words[(5*i+3)%len(words)], words[i])
		positives[q] = append(positives[q], p)
		json.NewEncoder(&lines).Encode(map[string]string{"q": q, "p": p})
		json.NewEncoder(&more).Encode(map[string]string{"text": fmt.Sprint("water runs ", i)})
	}
	for name, content := range map[string]string{"pairs.jsonl": lines.String(), "more.jsonl": more.String()} {
		if err := os.WriteFile(at(name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	args := []string{"mine", "--model", model, "--input", at("pairs.jsonl"), "--query", "q", "--positive", "p", "--output", at("mined.parquet"), "--num-negatives", "2"}
	r := succeed(t, append(args, "--corpus", at("more.jsonl"), "--range-max", "12", "--sampling", "random")...)
	if !strings.Contains(r.stderr, "16 pairs with 2 negatives each") {
		t.Errorf("mine says %q", r.stderr)
	}
	examples := minedRows(t, at("mined.parquet"), "scores")
	if len(examples) != 16 {
		t.Fatal(len(examples))
	}
	for _, e := range examples {
		if !slices.Contains(positives[e.Texts[0]], e.Texts[1]) || len(e.Texts) != 4 || len(e.Scores) != 3 || e.Scores[1] < e.Scores[2] {
			t.Errorf("row %d: %q, scores %v", e.Row, e.Texts, e.Scores)
		}
		for _, n := range e.Texts[2:] {
			if slices.Contains(positives[e.Texts[0]], n) {
				t.Errorf("row %d: %q is a positive", e.Row, n)
			}
		}
	}
	for _, l := range []string{"{name: mnrl, hardness_mode: hard_negatives, hardness_strength: 5}", "{name: distill_kl, similarity: cosine, temperature: 0.05}", "{name: mnrl, matryoshka: {dims: [32, 8]}}"} {
		recipe := fmt.Sprintf("model: {path: %q}\ndata:\n  train:\n    - {path: %q, query: query, positive: positive, negatives: negatives, negatives_per_query: all, scores: scores}\nbatch: {global_size: 8, no_duplicates: false}\nloss: %s\ntrain: {max_steps: 2}\nmesh: {replicate: 2}\nsave: {dir: %q}\n",
			model, at("mined.parquet"), l, at("run"))
		if err := os.WriteFile(at("recipe.yaml"), []byte(recipe), 0o600); err != nil {
			t.Fatal(err)
		}
		os.RemoveAll(at("run"))
		succeed(t, "train", "-c", at("recipe.yaml"), "--quiet")
	}
	// A cross-encoder scores again; lists may be shorter than asked for. A teacher scores what was mined, and losses learn from it.
	teacher := goldens.Path(t, "rerank/cross")
	r = succeed(t, append(slices.Clone(args), "--cross-encoder", teacher, "--max-score", medianScore(t, teacher, positives), "--num-negatives", "8", "--min-negatives", "1")...)
	if !strings.Contains(r.stderr, "with 1 to 8 negatives") {
		t.Errorf("mine says %q", r.stderr)
	}
	// A corpus has columns of its own, and a template joins them as it does the positives'.
	joined := append(slices.Clone(args), "--positive", "a: {p}", "--corpus", at("more.jsonl"), "--corpus-column", "b: {text}", "--num-negatives", "30", "--output", at("joined.parquet"))
	succeed(t, joined...)
	seen := map[string]bool{}
	for text := range documentsOf(t, at("joined.parquet")) {
		seen[text[:3]] = true
	}
	if len(seen) != 2 || !seen["a: "] || !seen["b: "] {
		t.Errorf("documents begin with %v, want both templates' words", seen)
	}
	lists := []string{"--input", at("mined.parquet"), "--negatives", "negatives"}
	for name, of := range map[string]struct{ model, loss string }{
		"reranker": {teacher, "{name: distill_kl, similarity: cosine, temperature: 0.1}"},
		"embedder": {model, "{name: margin_mse, similarity: cosine}"},
	} {
		out := at(name + ".parquet")
		if r := succeed(t, append([]string{"distill", "--model", of.model, "--output", out, "--output-column", "teacher"}, lists...)...); !strings.Contains(r.stderr, "rows written to "+out) {
			t.Errorf("distill says %q", r.stderr)
		}
		checkDistilled(t, out, of.model, name == "reranker")
		recipe := fmt.Sprintf("model: {path: %q}\ndata:\n  train:\n    - {path: %q, query: query, positive: positive, negatives: negatives, negatives_per_query: all, scores: teacher}\nbatch: {global_size: 4, no_duplicates: false}\nloss: %s\ntrain: {max_steps: 2}\nsave: {dir: %q}\n",
			model, out, of.loss, at("run"))
		if err := os.WriteFile(at("recipe.yaml"), []byte(recipe), 0o600); err != nil {
			t.Fatal(err)
		}
		os.RemoveAll(at("run"))
		succeed(t, "train", "-c", at("recipe.yaml"), "--quiet")
	}
	for want, more := range map[string][]string{
		"is a file that is read":        {"--output", at("mined.parquet"), "--input", at("min*.parquet")},
		"--sigmoid is for a reranker":   {"--sigmoid"},
		`already has a column "scores"`: {"--output-column", "scores"},
	} {
		if r := contraflow(t, "", append(append([]string{"distill", "--model", model, "--output", at("x.parquet")}, lists...), more...)...); r.code == 0 || !strings.Contains(r.stderr, want) {
			t.Errorf("distill %v: exit code %d, want %q in\n%s", more, r.code, want, r.stderr)
		}
	}
	for want, more := range map[string][]string{
		"is a file that is read":                               {"--output", dir + "/./pairs.jsonl"},
		"pairs.jsonl is a file that is read":                   {"--output", at("pairs.jsonl"), "--input", at("p*.jsonl")},
		"more.jsonl is a file that is read":                    {"--output", at("more.jsonl"), "--corpus", at("more.jsonl")},
		"what is written is parquet":                           {"--output", at("mined.jsonl")},
		"--sigmoid is of --cross-encoder, which is not given":  {"--sigmoid"},
		"--corpus-column is of --corpus, which is not given":   {"--corpus-column", "text"},
		"contraflow: --sigmoid is of --cross-encoder":          {"--corpus-column", "text", "--sigmoid"}, // always, though both are wrong
		"other scores matter only with a margin":               {"--cross-encoder", teacher},
		"--sampling is \"some\", want top or random":           {"--sampling", "some"},
		"the range 0 to 1 has no room for 2 negatives":         {"--range-max", "1"},
		"none of 16 pairs has 2 negatives within these bounds": {"--max-score", "-1"},
		`has no column "x"`:                                    {"--positive", "x"},
	} {
		if r := contraflow(t, "", append(slices.Clone(args), more...)...); r.code == 0 || !strings.Contains(r.stderr, want) {
			t.Errorf("%v: exit code %d, want %q in\n%s", more, r.code, want, r.stderr)
		}
	}
}

// mine hears that it can't write before it embeds, and leaves nothing where it fails later.
func TestMineOutput(t *testing.T) {
	dir := workspace(t)
	out := filepath.Join(dir, "mined.parquet")
	args := []string{"mine", "--model", goldens.Path(t, "bert/minilm-tiny"), "--input", filepath.Join(dir, "train.parquet")}
	if r := contraflow(t, "", append(args, "--output", out, "--max-score", "-1")...); r.code != 1 || !strings.Contains(r.stderr, "queries embedded") {
		t.Errorf("exit code %d\n%s", r.code, r.stderr)
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".mined*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	nowhere := filepath.Join(dir, "nodir/m.parquet")
	if r := contraflow(t, "", append(args, "--output", nowhere)...); r.code != 1 || !strings.Contains(r.stderr, "write "+nowhere) || strings.Contains(r.stderr, "embedded") {
		t.Errorf("exit code %d\n%s", r.code, r.stderr)
	}
}

// mine says what helps where more than a tenth of the pairs are left out, and not where fewer are.
func TestMineShort(t *testing.T) {
	dir := t.TempDir()
	var queries, positives []string
	for _, w := range strings.Fields("cat dog bird fish tree road house city fire wind") {
		queries, positives = append(queries, "the "+w), append(positives, "the "+w) // nearest to itself
	}
	in := filepath.Join(dir, "pairs.parquet")
	for _, w := range []string{"cat", "dog"} { // other documents are nearer to these than their positives
		queries, positives = append(queries, "a "+w), append(positives, "water and stone under the rain "+w)
		write(t, in, []string{"query", "positive"}, queries, positives)
		r := succeed(t, "mine", "--model", goldens.Path(t, "bert/minilm-tiny"), "--input", in, "--output", filepath.Join(dir, "mined.parquet"), "--num-negatives", fmt.Sprint(len(queries)-1), "--absolute-margin", "0.00001", "--query-prompt", "", "--document-prompt", "")
		short := len(queries) - 10
		want := map[int]string{
			1: "1 of 11 pairs has fewer negatives within these bounds and is left out", 2: "2 of 12 pairs have fewer negatives within these bounds and are left out",
		}[short]
		if want += map[bool]string{true: ": a larger --range-max, a smaller margin or fewer --num-negatives helps, and --min-negatives keeps pairs with fewer\n", false: "\n"}[short == 2]; !strings.Contains(r.stderr, want) {
			t.Errorf("want %q in\n%s", want, r.stderr)
		}
	}
}

// A corpus that has the queries as documents gives none its own text, and pairs that the model ranks the other way round are noted.
func TestMineQueries(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	var queries, positives []string
	for _, w := range strings.Fields("cat dog bird fish tree road house city") {
		queries, positives = append(queries, "the "+w), append(positives, "water and stone under the rain "+w)
	}
	write(t, at("pairs.parquet"), []string{"query", "positive"}, queries, positives)
	write(t, at("corpus.parquet"), []string{"text"}, append(slices.Clone(queries), " the cat ", "the dog\n"))
	r := succeed(t, "mine", "--model", goldens.Path(t, "bert/minilm-tiny"), "--input", at("pairs.parquet"), "--corpus", at("corpus.parquet"), "--output", at("mined.parquet"), "--num-negatives", "5", "--query-prompt", "", "--document-prompt", "")
	if !strings.Contains(r.stderr, "8 pairs with 5 negatives each") || !strings.Contains(r.stderr, " below a negative's on average") || !strings.Contains(r.stderr, "of 40 negatives score above their positive") {
		t.Errorf("mine says %q", r.stderr)
	}
	d, err := dataset.Open(t.Context(), dataset.Source{Paths: []string{at("mined.parquet")}, Query: "query", Positive: "positive", Negatives: []string{"negatives"}, NegativesPerQuery: dataset.AllNegatives})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for row, err := range d.Each(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		query := row.Column(nil, 0)[0]
		for _, n := range row.Column(nil, 2) {
			if strings.TrimSpace(n) == query {
				t.Errorf("%q has the negative %q", query, n)
			}
		}
	}
}

// Rows that can't be used end mine and distill, which name the flag that leaves them out: then the others are scored as they are without them.
func TestSkipRows(t *testing.T) {
	model, dir := goldens.Path(t, "bert/minilm-tiny"), t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	q := []string{"the cat", "the dog", "the bird", "the fish", "the tree"}
	p := []string{"a river", "", "a road", " ", "a house"}
	n := []string{"a stone", "some fire", "some rain", "some snow", "the sun"}
	pick := func(of []string) []string { return []string{of[0], of[2], of[4]} }
	write(t, at("all.parquet"), []string{"query", "positive", "negative"}, q, p, n)
	write(t, at("good.parquet"), []string{"query", "positive", "negative"}, pick(q), pick(p), pick(n))
	write(t, at("none.parquet"), []string{"query", "positive", "negative"}, q[1:2], p[1:2], n[1:2])
	read := func(path, negatives string) (out []string) {
		for _, e := range rowsOf(t, dataset.Source{Paths: []string{path}, Query: "query", Positive: "positive", Negatives: []string{negatives}, Scores: []string{"scores"}}) {
			out = append(out, fmt.Sprintf("%q %.4f", e.Texts, e.Scores))
		}
		return out
	}
	for _, c := range []struct {
		args      []string
		negatives string
	}{
		{[]string{"mine", "--model", model, "--num-negatives", "1"}, "negatives"},
		{[]string{"distill", "--model", model, "--negatives", "negative"}, "negative"},
	} {
		run := func(in, out string, more ...string) result {
			return contraflow(t, "", append(append(slices.Clone(c.args), "--input", at(in), "--output", at(out)), more...)...)
		}
		name := c.args[0]
		if r := run("all.parquet", name+"1.parquet"); r.code == 0 || !strings.Contains(r.stderr, `row 1, column "positive": the text is empty; --on-error skip leaves out`) {
			t.Errorf("%s: exit code %d\n%s", name, r.code, r.stderr)
		}
		if r := run("none.parquet", name+"2.parquet", "--on-error", "skip"); r.code == 0 || !strings.Contains(r.stderr, "none of 1 row can be used; the first: ") {
			t.Errorf("%s: exit code %d\n%s", name, r.code, r.stderr)
		}
		if r := run("all.parquet", name+"3.parquet", "--on-error", "go"); r.code != 2 || !strings.Contains(r.stderr, `--on-error is "go", want stop or skip`) {
			t.Errorf("%s: exit code %d\n%s", name, r.code, r.stderr)
		}
		r := run("all.parquet", name+"4.parquet", "--on-error", "skip")
		if want := "2 rows of --input can't be used and are left out (--on-error skip); the first: " + at("all.parquet") + ": row group 0, row 1, "; r.code != 0 || !strings.Contains(r.stderr, want) {
			t.Fatalf("%s: exit code %d, want %q in\n%s", name, r.code, want, r.stderr)
		}
		if r := run("good.parquet", name+"5.parquet"); r.code != 0 {
			t.Fatal(r.stderr)
		}
		got, want := read(at(name+"4.parquet"), c.negatives), read(at(name+"5.parquet"), c.negatives)
		if len(got) != 3 || !slices.Equal(got, want) {
			t.Errorf("%s: %v, want as without the rows that are left out %v", name, got, want)
		}
	}
}

// A parquet file that gets its scores in place loses no row: with --on-error skip, which leaves out rows, it is no output, under any of its names.
func TestSkipInPlace(t *testing.T) {
	model, dir := goldens.Path(t, "bert/minilm-tiny"), t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	write(t, at("a.parquet"), []string{"query", "positive"}, []string{"the cat", "the dog"}, []string{"a river", ""})
	if err := os.Link(at("a.parquet"), at("b.parquet")); err != nil {
		t.Fatal(err)
	}
	before := mustRead(t, at("a.parquet"))
	for _, output := range []string{"a.parquet", "b.parquet"} {
		r := contraflow(t, "", "distill", "--model", model, "--input", at("a.parquet"), "--output", at(output), "--on-error", "skip")
		if r.code != 2 || !strings.Contains(r.stderr, "--output "+at(output)+" is a file that is read: it would be replaced; give another; without --on-error skip, which leaves out rows,") {
			t.Errorf("%s: exit code %d\n%s", output, r.code, r.stderr)
		}
		if mustRead(t, at(output)) != before {
			t.Fatalf("%s is another file now", output)
		}
	}
	write(t, at("a.parquet"), []string{"query", "positive"}, []string{"the cat", "the dog"}, []string{"a river", "a road"})
	succeed(t, "distill", "--model", model, "--input", at("a.parquet"), "--output", at("a.parquet"))
	d, err := dataset.Open(t.Context(), dataset.Source{Paths: []string{at("a.parquet")}, Query: "query", Positive: "positive", Scores: []string{"scores"}})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if d.Rows() != 2 {
		t.Errorf("%d rows, want 2", d.Rows())
	}
}

// Lines that are no JSON, and rows of separated values with too few fields, are among the rows that --on-error skip leaves out: they are counted, and
// the first is named by its line. Without it they end the command before anything is scored.
func TestSkipLines(t *testing.T) {
	model, dir := goldens.Path(t, "bert/minilm-tiny"), t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for name, content := range map[string]string{
		"a.jsonl": `{"query": "the cat", "positive": "a river"}` + "\nno json\n" + `{"query": "the dog", "positive": ""}` + "\n" + `{"query": "x", "positive"` + "\n" + `{"query": "the tree", "positive": "a house"}` + "\n",
		"a.csv":   "query,positive\nthe cat,a river\nthe bird\nthe dog,\na,b,c\nthe tree,a house\n",
	} {
		if err := os.WriteFile(at(name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		line := map[string]string{"a.jsonl": ":2: not JSON at byte 1", "a.csv": ":3: the row has 1 field where the first line names 2 columns"}[name]
		for _, args := range [][]string{{"mine", "--model", model, "--num-negatives", "1"}, {"distill", "--model", model}} {
			args = append(args, "--input", at(name), "--output", at(args[0]+".parquet"))
			if r := contraflow(t, "", args...); r.code == 0 || !strings.Contains(r.stderr, at(name)+line) || !strings.Contains(r.stderr, "; --on-error skip leaves out") {
				t.Errorf("%s of %s: exit code %d\n%s", args[0], name, r.code, r.stderr)
			}
			r := contraflow(t, "", append(args, "--on-error", "skip")...)
			if want := "3 rows of --input can't be used and are left out (--on-error skip); the first: " + at(name) + line; r.code != 0 || !strings.Contains(r.stderr, want) {
				t.Fatalf("%s of %s: exit code %d, want %q in\n%s", args[0], name, r.code, want, r.stderr)
			}
		}
		d, err := dataset.Open(t.Context(), dataset.Source{Paths: []string{at("distill.parquet")}, Query: "query", Positive: "positive", Scores: []string{"scores"}})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		if b, err := d.ReadBlock(t.Context(), 0); err != nil || b.Rows != 2 || b.Texts(nil, 1, 1)[0] != "a house" || b.Check(1) != nil {
			t.Errorf("%s: %d rows, %v", name, b.Rows, err)
		}
	}
}

// mine and distill say where a text is a list.
func TestListNotes(t *testing.T) {
	model, dir := goldens.Path(t, "bert/minilm-tiny"), t.TempDir()
	in := filepath.Join(dir, "a.csv")
	if err := os.WriteFile(in, []byte("query,positive\nthe cat,a river\nthe dog,\"['a road', 'a house']\"\nthe tree,some rain\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	note := in + `:3, column "positive": the text is a list, ['a road', 'a house'], as pandas prints them (1 of the first 3 texts are), and is one text`
	for _, c := range []struct {
		args  []string
		notes int
	}{
		{[]string{"mine", "--num-negatives", "1"}, 1},
		{[]string{"mine", "--num-negatives", "1", "--corpus", in, "--corpus-column", "positive"}, 2},
		{[]string{"distill"}, 1}, {[]string{"distill", "--positive", "{positive}"}, 0},
	} {
		if r := succeed(t, append(c.args, "--model", model, "--input", in, "--output", filepath.Join(dir, "out.parquet"))...); strings.Count(r.stderr, note) != c.notes {
			t.Errorf("%v: want %d times %s in\n%s", c.args, c.notes, note, r.stderr)
		}
	}
}

// distill's scores are of their rows where files come in another order than their paths', or twice.
func TestDistillOrder(t *testing.T) {
	model, dir := goldens.Path(t, "bert/minilm-tiny"), t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	write(t, at("a.parquet"), []string{"query", "positive"}, []string{"the cat", "the dog"}, []string{"the cat", "the dog"})
	write(t, at("b.parquet"), []string{"query", "positive"}, []string{"the bird"}, []string{"some stone"})
	scores := map[string][]float32{}
	for _, files := range [][]string{{"a", "b"}, {"b", "a", "b"}} {
		args := []string{"distill", "--model", model, "--output", at("out.parquet")}
		for _, f := range files {
			args = append(args, "--input", at(f+".parquet"))
		}
		succeed(t, args...)
		d, err := dataset.Open(t.Context(), dataset.Source{Paths: []string{at("out.parquet")}, Query: "query", Positive: "positive", Scores: []string{"scores"}})
		if err != nil {
			t.Fatal(err)
		}
		ids := []int64{0, 1, 2, 3}[:d.Rows()]
		examples, err := d.NewReader(dataset.ReaderConfig{}).Read(t.Context(), 0, ids)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range examples {
			if had, ok := scores[e.Texts[0]]; ok && !slices.Equal(had, e.Scores) {
				t.Errorf("files %v: %q has score %v, and had %v", files, e.Texts, e.Scores, had)
			}
			scores[e.Texts[0]] = slices.Clone(e.Scores)
		}
		d.Close()
	}
}

// checkDistilled compares a teacher's scores with those that its Go package gives each row alone.
func checkDistilled(t *testing.T, path, model string, reranks bool) {
	t.Helper()
	examples := minedRows(t, path, "teacher")
	if len(examples) < 5 {
		t.Fatal(len(examples))
	}
	var score func(query string, documents []string) ([]float32, error)
	if reranks {
		r, err := reranker.Load(model)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		score = func(query string, documents []string) ([]float32, error) {
			return r.Score(t.Context(), query, documents)
		}
	} else {
		e, err := embedder.Load(model)
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		score = func(query string, documents []string) (out []float32, err error) {
			ask, tell := e.RolePrompts()
			texts := []string{ask + query}
			for _, d := range documents {
				texts = append(texts, tell+d)
			}
			x, err := e.EmbedPrompt(t.Context(), "", texts)
			for i := 1; i < len(x); i++ {
				out = append(out, 0)
				for j := range x[0] {
					out[i-1] += x[0][j] * x[i][j]
				}
			}
			return out, err
		}
	}
	lengths := map[int]bool{}
	for _, e := range examples {
		want, err := score(e.Texts[0], e.Texts[1:])
		if err != nil {
			t.Fatal(err)
		}
		lengths[len(want)] = true
		for i, w := range want {
			if !(math.Abs(float64(e.Scores[i]-w)) <= 1e-5) {
				t.Errorf("%s, row %d, document %d: score %v, want %v", model, e.Row, i, e.Scores[i], w)
			}
		}
	}
	if len(lengths) < 2 {
		t.Errorf("all rows have as many documents: %v", lengths)
	}
}

// medianScore is in the middle of a reranker's scores of all queries with all positives.
func medianScore(t *testing.T, model string, positives map[string][]string) string {
	t.Helper()
	r, err := reranker.Load(model)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var documents []string
	for _, p := range positives {
		documents = append(documents, p...)
	}
	var all []float32
	for q := range positives {
		scores, err := r.Score(t.Context(), q, documents)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, scores...)
	}
	slices.Sort(all)
	return fmt.Sprint(all[len(all)/2])
}

// documentsOf yields the positives and negatives of what mine has written.
func documentsOf(t *testing.T, path string) iter.Seq[string] {
	t.Helper()
	d, err := dataset.Open(t.Context(), dataset.Source{Paths: []string{path}, Query: "query", Positive: "positive", Negatives: []string{"negatives"}, NegativesPerQuery: dataset.AllNegatives})
	if err != nil {
		t.Fatal(err)
	}
	return func(yield func(string) bool) {
		defer d.Close()
		for row, err := range d.Each(t.Context()) {
			if err != nil {
				t.Error(err)
				return
			}
			for _, text := range row.Column(row.Column(nil, 1), 2) {
				if !yield(text) {
					return
				}
			}
		}
	}
}
