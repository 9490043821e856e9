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

// Rows that are scored in several parts have each their own scores, and what is counted and told is of all of them.
func TestDistillationParts(t *testing.T) {
	dir := t.TempDir()
	in, out := filepath.Join(dir, "rows.jsonl"), filepath.Join(dir, "scored.parquet")
	const n = 1100 // of 1,024 at a time
	var text strings.Builder
	for i := range n {
		fmt.Fprintf(&text, "{\"query\": \"q%04d\", \"docs\": [\"%s\", \"b\"]}\n", i, strings.Repeat("a", i+1))
	}
	if err := os.WriteFile(in, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	var progress []int64
	x := mine.Distillation{Source: dataset.Source{Paths: []string{in}, Query: "query", Documents: "docs"}, Output: out, Column: "teacher", Progress: func(done, total int64) { progress = append(progress, done, total) }}
	got, err := x.Run(t.Context(), lengths{})
	if err != nil || got.Rows != n || got.Scores != 2*n || got.Cut != 2 || !reflect.DeepEqual(progress, []int64{1024, n, n, n}) {
		t.Errorf("%+v, progress %v: %v", got, progress, err)
	}
	all := scored(t, dataset.Source{Paths: []string{out}, Query: "query", Documents: "docs", Scores: []string{"teacher"}})
	for i := range n {
		if got, want := all[fmt.Sprintf("q%04d", i)], []float32{float32(500 + i + 1), 501}; !reflect.DeepEqual(got, want) {
			t.Fatalf("row %d: %v, want %v", i, got, want)
		}
	}
	if _, err := x.Run(t.Context(), lengths{strings.Repeat("a", 1051)}); err == nil || !strings.Contains(err.Error(), "row 1050: the teacher's score of document 0 is NaN") {
		t.Error(err)
	}
	// Without Bad a line that is no JSON is found before a teacher has scored anything, however far down.
	text.WriteString("no json\n")
	if err := os.WriteFile(in, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	calls := 0
	counting := teacherOf(func(queries, _ []string) []float32 { calls++; return make([]float32, len(queries)) })
	if _, err := x.Run(t.Context(), counting); !errors.Is(err, dataset.ErrBadRow) || !strings.Contains(err.Error(), "rows.jsonl:1101") || calls != 0 {
		t.Errorf("%v, after %d calls of the teacher", err, calls)
	}
}

// teacherOf is a teacher made of a function.
type teacherOf func(queries, documents []string) []float32

func (t teacherOf) ScorePairs(_ context.Context, queries, documents []string) ([]float32, int, error) {
	return t(queries, documents), 0, nil
}

// What can't be meant ends a distillation before a text is scored, and the files are as they were. A teacher that gives fewer or more scores than there are
// documents ends it too.
func TestDistillationRefuses(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	const text = `{"query": "a", "positive": "x"}` + "\n" + `{"query": "b", "positive": "y"}` + "\n"
	for _, name := range []string{"a.jsonl", "b.jsonl"} {
		if err := os.WriteFile(at(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Link(at("a.jsonl"), at("link.parquet")); err != nil {
		t.Fatal(err)
	}
	source := dataset.Source{Paths: []string{at("a.jsonl")}, Query: "query", Positive: "positive"}
	// A parquet file with its texts, which may get a column in place.
	if _, err := (mine.Distillation{Source: source, Output: at("own.parquet"), Column: "scores"}).Run(t.Context(), lengths{}); err != nil {
		t.Fatal(err)
	}
	content := func(name string) string {
		t.Helper()
		b, err := os.ReadFile(at(name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	own := content("own.parquet")
	of := func(edit func(x *mine.Distillation)) mine.Distillation {
		x := mine.Distillation{Source: source, Output: at("out.parquet"), Column: "teacher"}
		edit(&x)
		return x
	}
	scored := 0
	teacher := teacherOf(func(queries, _ []string) []float32 { scored++; return make([]float32, len(queries)) })
	for want, x := range map[string]mine.Distillation{
		"link.parquet is a file that is read: it would be replaced": of(func(x *mine.Distillation) { x.Output = at("link.parquet") }),
		"b.jsonl is a file that is read":                            of(func(x *mine.Distillation) { x.Output, x.Source.Paths = at("b.jsonl"), []string{at("*.jsonl")} }),
		"own.parquet is a file that is read": of(func(x *mine.Distillation) {
			x.Output, x.Source.Paths = at("own.parquet"), []string{at("own.parquet"), at("own.parquet")}
		}),
		"own.parquet is its Source, which would lose the rows that Bad leaves out": of(func(x *mine.Distillation) {
			x.Output, x.Source.Paths, x.Bad = at("own.parquet"), []string{at("own.parquet")}, func(error) error { return nil }
		}),
		"out.jsonl: what is written is parquet":                of(func(x *mine.Distillation) { x.Output = at("out.jsonl") }),
		filepath.Base(dir) + " is a folder":                    of(func(x *mine.Distillation) { x.Output = dir }),
		"Source needs a column of them, Positive or Documents": of(func(x *mine.Distillation) { x.Source.Positive = "" }),
		"the new column needs a name":                          of(func(x *mine.Distillation) { x.Column = "" }),
		"already has a column \"positive\"":                    of(func(x *mine.Distillation) { x.Column = "positive" }),
	} {
		if _, err := x.Run(t.Context(), teacher); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if scored > 0 {
		t.Errorf("scored %d times", scored)
	}
	for _, c := range []struct {
		more int
		want string
	}{{-1, "1 scores of 2"}, {1, "3 scores of 2"}} {
		counts := teacherOf(func(queries, _ []string) []float32 { return make([]float32, len(queries)+c.more) })
		x := of(func(*mine.Distillation) {})
		if _, err := x.Run(t.Context(), counts); err == nil || !strings.Contains(err.Error(), "rows 0 to 1: the teacher has given "+c.want+" documents") {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
	files, _ := filepath.Glob(at("*"))
	if len(files) != 4 || content("a.jsonl") != text || content("b.jsonl") != text || content("own.parquet") != own {
		t.Errorf("files %v, or what is in them, have changed", files)
	}
	// One parquet file may get its scores in place.
	x := of(func(x *mine.Distillation) { x.Output, x.Source.Paths = at("own.parquet"), []string{at("own.parquet")} })
	if got, err := x.Run(t.Context(), lengths{}); err != nil || got.Rows != 2 {
		t.Errorf("in place: %+v, %v", got, err)
	}
}
