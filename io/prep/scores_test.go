package prep

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"contraflow/io/dataset"
)

// What is prepared has the scores that the raw files have, under the names that they have there: a recipe of FlagEmbedding's rows fits both.
func TestScoresKeepTheirNames(t *testing.T) {
	dir := t.TempDir()
	flag, list := filepath.Join(dir, "flag.jsonl"), filepath.Join(dir, "list.jsonl")
	for path, text := range map[string]string{
		flag: `{"query": "a", "pos": ["b", "c"], "neg": ["d"], "pos_scores": [1, 2], "neg_scores": [3]}` + "\n" + `{"query": "e", "pos": ["f"], "neg": ["g", "h", "i"], "pos_scores": [4], "neg_scores": [5, 6, 7]}` + "\n",
		list: `{"query": "k", "pos": ["l"], "neg": ["m", "n"], "all": [8, 9, 10]}` + "\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	scores := func(paths []string, columns ...string) map[string][]float32 {
		t.Helper()
		d, err := dataset.Open(t.Context(), dataset.Source{Paths: paths, Query: "query", Positive: "pos", Negatives: []string{"neg"}, NegativesPerQuery: dataset.AllNegatives, Scores: columns})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		b, err := d.ReadBlock(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		all := map[string][]float32{}
		for row := range b.Rows {
			if err := b.Check(row); err != nil {
				t.Error(err)
			}
			all[b.Texts(nil, row, 0)[0]] = b.Scores(nil, row)
		}
		return all
	}
	same := func(a, b map[string][]float32) {
		t.Helper()
		for q, want := range b {
			if !slices.Equal(a[q], want) {
				t.Errorf("%s: scores %v, want %v", q, a[q], want)
			}
		}
	}
	c := bare(t, flag)
	c.Input[0] = Input{Path: []string{flag}, Query: "query", Positive: "pos", Negatives: []string{"neg"}, Scores: []string{"pos_scores", "neg_scores"}}
	mustRun(t, c)
	same(scores([]string{c.Output.Dir + "/train-*.parquet"}, "pos_scores", "neg_scores"), scores([]string{flag}, "pos_scores", "neg_scores"))

	d := bare(t, flag)
	d.Input = []Input{c.Input[0], {Path: []string{list}, Query: "query", Positive: "pos", Negatives: []string{"neg"}, Scores: []string{"all"}}}
	mustRun(t, d)
	got := scores([]string{d.Output.Dir + "/train-*.parquet"}, "pos_scores")
	same(got, scores([]string{flag}, "pos_scores", "neg_scores"))
	same(got, scores([]string{list}, "all"))
}
