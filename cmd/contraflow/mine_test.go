package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/io/dataset"
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
	for i := range 16 {
		q := fmt.Sprint("the question number ", i%13)
		p := fmt.Sprint("an answer about ", i, " stones")
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
	d, err := dataset.Open(t.Context(), dataset.Source{
		Paths: []string{at("mined.parquet")}, Query: "query", Positive: "positive", Negatives: []string{"negatives"}, NegativesPerQuery: dataset.AllNegatives, Scores: []string{"scores"},
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
	if err != nil || len(examples) != 16 {
		t.Fatal(len(examples), err)
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
	for want, more := range map[string][]string{
		"--sampling is \"some\", want top or random":           {"--sampling", "some"},
		"the range 0 to 1 has no room for 2 negatives":         {"--range-max", "1"},
		"none of 16 pairs has 2 negatives within these bounds": {"--max-score", "-1"},
		`has no column "x"`: {"--positive", "x"},
	} {
		if r := contraflow(t, "", append(slices.Clone(args), more...)...); r.code == 0 || !strings.Contains(r.stderr, want) {
			t.Errorf("%v: exit code %d, want %q in\n%s", more, r.code, want, r.stderr)
		}
	}
}
