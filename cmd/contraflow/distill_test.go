package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"contraflow/io/dataset"
	"contraflow/testdata/goldens"
)

// What distill's help shows is what to type: its command, after mine, prints the entry for data.train that the help has, and training takes that. A run that
// takes the miner's own scores for a teacher's is told so, also of what distill has passed on; but of a reranker's, which mine writes as well, it is not.
func TestDistillEntry(t *testing.T) {
	dir := workspace(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	model, cross := goldens.Path(t, "bert/minilm-tiny"), goldens.Path(t, "rerank/cross")
	mine := []string{"mine", "--model", model, "--input", at("train.parquet"), "--num-negatives", "2", "--output"}
	succeed(t, append(mine, at("mined.parquet"))...)

	help := newDistill()
	entry := regexp.MustCompile(`\{path: .*\}`).FindString(help.Long)
	args := commandLine(help.Example)
	for flag, value := range map[string]string{"--model": cross, "--input": at("mined.parquet"), "--output": at("scored.parquet")} {
		args[slices.Index(args, flag)+1] = value
	}
	said := succeed(t, args...).stderr
	if want := strings.Replace(entry, "scored.parquet", inYAML(at("scored.parquet")), 1); !strings.Contains(said, "data.train takes as "+want+"\n") {
		t.Errorf("distill says %q, want %q", said, want)
	}
	succeed(t, append(mine, at("cross.parquet"), "--cross-encoder", cross, "--max-score", "100")...)
	train := func(entry string) string {
		recipe := fmt.Sprintf("model: {path: %q}\ndata: {train: [%s]}\nbatch: {global_size: 8}\nloss: {name: margin_mse}\ntrain: {max_steps: 1}\nsave: {dir: %q}\n", model, entry, at("run"))
		if err := os.WriteFile(at("recipe.yaml"), []byte(recipe), 0o600); err != nil {
			t.Fatal(err)
		}
		return succeed(t, "train", "-c", at("recipe.yaml"), "--log", "human").stderr
	}
	for _, c := range []struct {
		file, scores string
		note         bool
	}{
		{"scored.parquet", "teacher", false}, {"scored.parquet", "scores", true}, {"mined.parquet", "scores", true}, {"cross.parquet", "scores", false},
	} {
		entry := strings.NewReplacer("scored.parquet", inYAML(at(c.file)), "scores: teacher", "scores: "+c.scores).Replace(entry)
		want := "note: data.train[0]: " + at(c.file) + `: the scores in column "scores" are those of the model by which contraflow mine has found the negatives`
		if said := train(entry); strings.Contains(said, want) != c.note {
			t.Errorf("%s: says so %v, want %v\n%s", entry, !c.note, c.note, said)
		}
	}
	// Names that YAML would take for something else are quoted, columns that are no lists have no number of negatives.
	r := succeed(t, "distill", "--model", cross, "--input", at("train.parquet"), "--positive", "{positive} {negative}", "--negatives", "negative", "--output", at("b.parquet"), "--output-column", "yes")
	if want := `, query: query, positive: "{positive} {negative}", negatives: [negative], scores: "yes"}` + "\n"; !strings.Contains(r.stderr, want) {
		t.Errorf("says %q, want %q", r.stderr, want)
	}
	train(regexp.MustCompile(`\{path: .*\}`).FindString(r.stderr))
	// Without negatives the entry is for few losses, which is said.
	const alone = "note: these are scores of positives alone: margin_mse, distill_kl"
	bare := succeed(t, "distill", "--model", cross, "--input", at("train.parquet"), "--output", at("c.parquet"), "--output-column", "scores")
	if !strings.Contains(bare.stderr, alone) || strings.Contains(r.stderr, alone) {
		t.Errorf("without negatives says %q, with them %q", bare.stderr, r.stderr)
	}
}

// Of rows with lists of documents each document has the score that rerank gives the pair, and a reranker trains on the entry that distill prints.
func TestDistillDocuments(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	cross := goldens.Path(t, "rerank/cross")
	rows, pairs := "", ""
	for i, docs := range [][]string{{"a bird of the river", "The cat sees a bird.", "open the file"}, {"a stone"}, {"the house of a dog", "fire and water"}} {
		rows += fmt.Sprintf("{\"query\": \"find %d\", \"docs\": [\"%s\"], \"labels\": [%s]}\n", i, strings.Join(docs, `", "`), strings.Trim(strings.Repeat("1, ", len(docs)), ", "))
		for _, d := range docs {
			pairs += fmt.Sprintf("{\"query\": \"find %d\", \"document\": %q}\n", i, d)
		}
	}
	for name, text := range map[string]string{"lists.jsonl": rows, "pairs.jsonl": pairs} {
		if err := os.WriteFile(at(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, more := range [][]string{nil, {"--sigmoid"}} {
		said := succeed(t, append([]string{"distill", "--model", cross, "--input", at("lists.jsonl"), "--documents", "docs", "--output", at("scored.parquet")}, more...)...).stderr
		succeed(t, append([]string{"rerank", "--model", cross, "--input", at("pairs.jsonl"), "--output", at("pairs.parquet")}, more...)...)
		want := floats(t, dataset.Source{Paths: []string{at("pairs.parquet")}, Query: "query", Positive: "document", Scores: []string{"score"}})
		got := floats(t, dataset.Source{Paths: []string{at("scored.parquet")}, Query: "query", Documents: "docs", Scores: []string{"scores"}})
		if len(got) != 6 || len(want) != 6 {
			t.Fatalf("%d scores, %d of pairs", len(got), len(want))
		}
		for i := range got {
			if d := got[i] - want[i]; !(math.Abs(float64(d)) <= 1e-5) { // the pairs may stand in other passes: a few epsilons of float32
				t.Errorf("%v: document %d: %v, rerank %v", more, i, got[i], want[i])
			}
		}
		entry := fmt.Sprintf("{path: %s, query: query, documents: docs, scores: scores}", inYAML(at("scored.parquet")))
		if !strings.Contains(said, "6 scores of 3 rows written to "+at("scored.parquet")+", which data.train takes as "+entry+"\n") {
			t.Errorf("distill says %q", said)
		}
		recipe := fmt.Sprintf("model: {path: %q, kind: reranker}\ndata: {train: [%s]}\nbatch: {global_size: 3}\nloss: {name: mse}\ntrain: {max_steps: 1}\nsave: {dir: %q}\n", cross, entry, at("run"))
		if err := os.WriteFile(at("recipe.yaml"), []byte(recipe), 0o600); err != nil {
			t.Fatal(err)
		}
		os.RemoveAll(at("run"))
		succeed(t, "train", "-c", at("recipe.yaml"), "--quiet")
	}
	for want, more := range map[string][]string{
		"--positive is among --documents":                            {"--documents", "docs", "--positive", "p"},
		"--negatives is among --documents":                           {"--documents", "docs", "--negatives", "n"},
		`column "query" is string, want list<string>: documents are`: {"--documents", "query"},
		`has no column "documents"; its columns are "query", "docs"`: {"--documents", "documents"},
	} {
		r := contraflow(t, "", append([]string{"distill", "--model", cross, "--input", at("lists.jsonl"), "--output", at("x.parquet")}, more...)...)
		if r.code == 0 || !strings.Contains(r.stderr, want) {
			t.Errorf("%v: exit code %d, want %q in\n%s", more, r.code, want, r.stderr)
		}
	}
}

// --dot has products of embeddings as embed prints them, and without it their cosines are the scores.
func TestDistillDot(t *testing.T) {
	dir, model := t.TempDir(), goldens.Path(t, "bert/odd-sizes") // whose embeddings are of any length
	in, out := filepath.Join(dir, "pairs.jsonl"), filepath.Join(dir, "scored.parquet")
	if err := os.WriteFile(in, []byte(`{"query": "a cat", "positive": "the river and the bird"}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	printed := succeed(t, "embed", "--model", model, "--prompt-text", "", "--text", "a cat", "--text", "the river and the bird").stdout
	x := numbersIn(t, strings.Split(strings.TrimSuffix(printed, "\n"), "\n")...)
	var ab, aa, bb float64
	for k := range x[0] {
		ab, aa, bb = ab+x[0][k]*x[1][k], aa+x[0][k]*x[0][k], bb+x[1][k]*x[1][k]
	}
	size := math.Sqrt(aa * bb)
	if size < 2 {
		t.Fatalf("embeddings of length %v: products and cosines are alike", size)
	}
	for flag, want := range map[string]float64{"--dot=false": ab / size, "--dot": ab} {
		succeed(t, "distill", "--model", model, "--input", in, "--output", out, "--query-prompt", "", "--document-prompt", "", flag)
		got := floats(t, dataset.Source{Paths: []string{out}, Query: "query", Positive: "positive", Scores: []string{"scores"}})
		if bound := 1e-5 * size; len(got) != 1 || !(math.Abs(float64(got[0])-want) <= bound) { // some epsilons of float32 of the largest product that there can be
			t.Errorf("%s: %v, want %v", flag, got, want)
		}
	}
}

// floats are all scores of a file, row after row.
func floats(t *testing.T, src dataset.Source) (all []float32) {
	t.Helper()
	src.Raw, src.InOrder = true, true
	d, err := dataset.Open(t.Context(), src)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for row, err := range d.Each(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		all = row.Scores(all, row.Place)
	}
	return all
}
