package main

import (
	"fmt"
	"math"
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
			if want := 1 / (1 + math.Exp(-float64(s))); math.Abs(float64(scores[i][k])-want) > 1e-5 {
				t.Errorf("row %d, document %d: %v, want %v of %v", i, k, scores[i][k], want, s)
			}
		}
	}
}
