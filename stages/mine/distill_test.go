package mine_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"contraflow/io/dataset"
	"contraflow/stages/mine"
)

// lengths scores a pair by its texts' lengths: 100 times the query's and the document's. lost is a document whose score is no number.
type lengths struct{ lost string }

func (t lengths) ScorePairs(_ context.Context, queries, documents []string) ([]float32, int, error) {
	scores := make([]float32, len(queries))
	for i := range scores {
		scores[i] = float32(100*len(queries[i]) + len(documents[i]))
		if documents[i] == t.lost {
			scores[i] = float32(math.NaN())
		}
	}
	return scores, 1, nil
}

func ExampleDistillation_Run() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	in, out := filepath.Join(dir, "lists.jsonl"), filepath.Join(dir, "scored.parquet")
	if err := os.WriteFile(in, []byte(`{"query": "what flies", "docs": ["a stone", "a bird"]}`+"\n"), 0o600); err != nil {
		fmt.Println(err)
		return
	}
	// The teacher would be a reranker.Reranker or an embedder.Teacher.
	of := mine.Distillation{Source: dataset.Source{Paths: []string{in}, Query: "query", Documents: "docs"}, Output: out, Column: "teacher"}
	done, err := of.Run(context.Background(), lengths{})
	fmt.Println(done.Scores, "scores of", done.Rows, "row", err)
	// Output: 2 scores of 1 row <nil>
}

// scored is what stands in a file of scores, by query.
func scored(t *testing.T, src dataset.Source) map[string][]float32 {
	t.Helper()
	src.Raw = true
	d, err := dataset.Open(t.Context(), src)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	all := map[string][]float32{}
	for row, err := range d.Each(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		all[row.Column(nil, 0)[0]] = row.Scores(nil, row.Place)
	}
	return all
}

// Each document of a row has a score, in the order of the row's columns; labels stay beside them. Rows that can't be used are Bad's.
func TestDistillation(t *testing.T) {
	dir := t.TempDir()
	in, out := filepath.Join(dir, "rows.jsonl"), filepath.Join(dir, "scored.parquet")
	text := `{"query": "a", "positive": "x", "neg": ["xx", "xxx"], "docs": ["xxxx", "y", "zz"], "labels": [0, 1, 2]}` + "\n" + "no json\n" +
		`{"query": "bb", "positive": "yyyyy", "neg": ["z"], "docs": ["zzz"], "labels": [1]}` + "\n"
	if err := os.WriteFile(in, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		src  dataset.Source
		want map[string][]float32
	}{
		{dataset.Source{Positive: "positive", Negatives: []string{"neg"}}, map[string][]float32{"a": {101, 102, 103}, "bb": {205, 201}}},
		{dataset.Source{Documents: "docs"}, map[string][]float32{"a": {104, 101, 102}, "bb": {203}}},
	} {
		c.src.Paths, c.src.Query = []string{in}, "query"
		var bad []error
		var progress []int64
		x := mine.Distillation{Source: c.src, Output: out, Column: "teacher", Bad: func(err error) error { bad = append(bad, err); return nil }, Progress: func(done, total int64) { progress = append(progress, done, total) }}
		got, err := x.Run(t.Context(), lengths{})
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, list := range c.want {
			n += len(list)
		}
		if got.Rows != 2 || got.Scores != n || got.Cut != 1 || len(bad) != 1 || !errors.Is(bad[0], dataset.ErrBadRow) || !reflect.DeepEqual(progress, []int64{3, 3}) {
			t.Errorf("%+v, of bad rows %v, progress %v", got, bad, progress)
		}
		c.src.Paths = []string{out}
		c.src.Scores = []string{"teacher"}
		if got := scored(t, c.src); !reflect.DeepEqual(got, c.want) {
			t.Errorf("scores %v, want %v", got, c.want)
		}
		if c.src.Documents != "" {
			c.src.Scores = []string{"labels"}
			if got := scored(t, c.src); !reflect.DeepEqual(got, map[string][]float32{"a": {0, 1, 2}, "bb": {1}}) {
				t.Errorf("labels %v", got)
			}
		}
	}
	if err := os.Remove(out); err != nil {
		t.Fatal(err)
	}
	x := mine.Distillation{Source: dataset.Source{Paths: []string{in}, Query: "query", Documents: "docs"}, Output: out, Column: "teacher"}
	if _, err := x.Run(t.Context(), lengths{}); !errors.Is(err, dataset.ErrBadRow) || !strings.Contains(err.Error(), "rows.jsonl:2") {
		t.Errorf("without Bad: %v", err)
	}
	x.Bad = func(error) error { return nil }
	// A score that is no number names the row, and no file is left.
	if _, err := x.Run(t.Context(), lengths{"zzz"}); err == nil || !strings.Contains(err.Error(), "row 2: the teacher's score of document 0 is NaN") {
		t.Errorf("a score that is none: %v", err)
	}
	if files, _ := filepath.Glob(filepath.Join(dir, "*")); len(files) != 1 {
		t.Errorf("left behind: %v", files)
	}
	x.Source.Documents, x.Source.Positive = "", "labels"
	if _, err := x.Run(t.Context(), lengths{}); !errors.Is(err, mine.ErrNoRow) {
		t.Errorf("no row that can be used: %v", err)
	}
}
