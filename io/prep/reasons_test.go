package prep

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Unusable rows are counted by reason: rows with one fault have one, whatever they hold, in the card and in what a reader sees of it. Of each reason the
// first three rows are named, whatever the shards they are in.
func TestReasons(t *testing.T) {
	in := filepath.Join(t.TempDir(), "in.jsonl")
	faults := []struct {
		line, reason string
		rows         int64
	}{
		{`{"query": null, "positive": "p %d"}`, `column "query": the text is null`, 7},
		{`{"query": "q %d", "positive": " "}`, `column "positive": the text is blank`, 6},
		{`{"query": "q %d", "positive": ""}`, `column "positive": the text is empty`, 5},
		{`{"query": "q %d"}`, `column "positive": the text is missing: the row has no such key`, 4},
		{`{"query": "q %d", "positive": 3}`, `column "positive": it is a number, want a string`, 3},
		{`{"query": "q %d", "positive": ["p"]}`, `column "positive": it is a list, want a string`, 2},
		{`{"query": "q` + "\xff" + ` %d", "positive": "p"}`, `column "query": the text is not UTF-8, which it has to be (iconv -f windows-1252 -t utf-8, if a program for Windows has written it)`, 8},
		{`no json %d`, "", 9},
	}
	var lines []string
	at := make([][]string, len(faults)) // by fault: where its rows are
	for n := range 9 {
		lines = append(lines, fmt.Sprintf(`{"query": "query %d", "positive": "document %d"}`, n, n))
		for i, f := range faults {
			if int64(n) < f.rows {
				at[i] = append(at[i], fmt.Sprintf("in.jsonl:%d", len(lines)+1))
				lines = append(lines, strings.Repeat(" ", n)+strings.Replace(f.line, "%d", fmt.Sprint(n), 1)) // no JSON from another byte on
			}
		}
	}
	if err := os.WriteFile(in, []byte(strings.Join(lines, "\n")), 0o666); err != nil {
		t.Fatal(err)
	}
	c := bare(t, in)
	c.Output.Shards = 3
	mustRun(t, c)
	card := func(name string) []byte {
		b, err := os.ReadFile(filepath.Join(c.Output.Dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	var read Card
	if err := json.Unmarshal(card("card.json"), &read); err != nil {
		t.Fatal(err)
	}
	got, shown := read.Rules[Unusable], string(card("README.md"))
	if got.Dropped != 44 || len(got.Reasons) != len(faults) || len(got.Samples) >= len(faults) {
		t.Errorf("%d rows for %v", got.Dropped, got.Reasons)
	}
	for i, f := range faults {
		if f.reason == "" {
			most, _ := got.Most(1)
			f.reason = most[0]
		}
		first := at[i][:min(3, f.rows)]
		where := strings.Join(first, ", ")
		if f.rows > 3 {
			where += fmt.Sprintf(" and %d more", f.rows-3)
		}
		var named []string
		for _, p := range got.Firsts[f.reason] {
			named = append(named, p.Where)
		}
		if got.Reasons[f.reason] != f.rows || !slices.Equal(named, first) || !strings.Contains(shown, fmt.Sprintf("\n| %s | %d | %s |\n", f.reason, f.rows, where)) {
			t.Errorf("%s: %d rows, want %d, first %v, want %v, in %q", f.reason, got.Reasons[f.reason], f.rows, named, first, shown)
		}
	}
	if first, others := got.Most(1); len(first) != 1 || got.Reasons[first[0]] != 9 || others != 35 {
		t.Errorf("the most frequent reason is %q, and %d rows are of others: %v", first, others, got.Reasons)
	}
}

// Files of one name are cited with the folders that tell them apart, others without any.
func TestCites(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct{ files, want []string }{
		{[]string{"x/a.jsonl", "y/b.jsonl"}, []string{"a.jsonl:1", "b.jsonl:1"}},
		{[]string{"x/a.jsonl", "y/a.jsonl", "y/deep/b.jsonl"}, []string{"x/a.jsonl:1", "y/a.jsonl:1", "y/deep/b.jsonl:1"}},
		{[]string{"x/deep/a.jsonl", "xy/deep/a.jsonl", "a.jsonl"}, []string{"x/deep/a.jsonl:1", "xy/deep/a.jsonl:1", "a.jsonl:1"}},
		{[]string{"x/deep/a.jsonl", "x/deeper/a.jsonl"}, []string{"deep/a.jsonl:1", "deeper/a.jsonl:1"}},
	} {
		var paths []string
		for _, name := range c.files {
			path := filepath.Join(dir, filepath.FromSlash(name))
			if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
				t.Fatal(err)
			}
			writeJSONL(t, path, pair{Query: "a query", Positive: "a document"})
			paths = append(paths, path)
		}
		config := bare(t, paths[0])
		config.Input[0].Path = paths[:1]
		for i, path := range paths[1:] { // another input each
			in := config.Input[0]
			in.Name, in.Path = fmt.Sprint("in", i), []string{path}
			config.Input = append(config.Input, in)
		}
		r, err := NewRules(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		x, err := OpenInputs(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range c.want {
			if got := x.cite(int64(i)); got != want {
				t.Errorf("%v: row %d is cited as %s, want %s", c.files, i, got, want)
			}
		}
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A run that fails or is interrupted leaves nothing of its own, and an earlier output as it was; what a killed one has left half replaced stays refused.
func TestLeavesNothing(t *testing.T) {
	in := filepath.Join(t.TempDir(), "in.jsonl")
	writeJSONL(t, in, pair{Query: "a query", Positive: "a document"}, pair{Query: "another", Positive: "one"})
	rules := func(c Config) *Rules {
		r, err := NewRules(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	for _, before := range []bool{false, true} {
		c := bare(t, in)
		if before {
			mustRun(t, c)
		}
		for name, fail := range map[string]func() error{
			"interrupted": func() error {
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				r := rules(c)
				r.trouble = func(string) { stop() }
				_, err := run(ctx, r, Options{Overwrite: true, Progress: func(string, int, int) {}})
				return err
			},
			"broken": func() error {
				r := rules(c)
				r.trouble = func(string) { panic("boom") }
				_, err := run(t.Context(), r, Options{Overwrite: true})
				return err
			},
			"no card": func() error { // as where there is no room left for one
				r := rules(c)
				_, err := run(t.Context(), r, Options{Overwrite: true, Progress: func(stage string, done, total int) {
					if stage == "write" && done == total {
						runs, err := filepath.Glob(filepath.Join(c.Output.Dir, Temporary, "*", "train-*"))
						if err != nil || len(runs) == 0 {
							t.Fatalf("%v, %v", runs, err)
						}
						if err := os.Mkdir(filepath.Join(filepath.Dir(runs[0]), cardFile), 0o777); err != nil {
							t.Fatal(err)
						}
					}
				}})
				return err
			},
		} {
			if err := fail(); err == nil {
				t.Errorf("%s: no error", name)
			}
			if _, err := os.Stat(filepath.Join(c.Output.Dir, Temporary)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s, before %t: what is not complete is still there: %v", name, before, err)
			}
			if got := len(readPairs(t, c.Output.Dir, "train")); before && got != 2 || !before && got != 0 {
				t.Errorf("%s, before %t: %d rows", name, before, got)
			}
		}
		if !before {
			continue
		}
		tmp := filepath.Join(c.Output.Dir, Temporary)
		if err := errors.Join(os.Remove(filepath.Join(c.Output.Dir, Success)), os.Mkdir(tmp, 0o777)); err != nil { // killed while names were given
			t.Fatal(err)
		}
		r := rules(c)
		r.trouble = func(string) { panic("boom") }
		if _, err := run(t.Context(), r, Options{Overwrite: true}); err == nil {
			t.Error("no error")
		}
		if left, err := os.ReadDir(tmp); err != nil || len(left) != 1 || left[0].Name() != lockFile {
			t.Errorf("half an output looks whole: %v, %v", left, err)
		}
		_, err := Run(t.Context(), c, Options{Overwrite: true})
		if err != nil || len(readPairs(t, c.Output.Dir, "train")) != 2 {
			t.Error(err)
		}
	}
}

// Parts' first rows are the whole's, in whatever order the parts come.
func TestFirstsMerge(t *testing.T) {
	part := func(ids ...int64) *Stats {
		s := NewStats(nil)
		for _, id := range ids {
			s.drop(Unusable, "why", 0, func() Sample { return Sample{ID: id, Where: fmt.Sprintf("a:%d", id)} })
		}
		return s
	}
	parts := []*Stats{part(1, 4), part(11, 12, 13, 14), part(6, 7, 8)}
	for _, order := range [][]int{{0, 1, 2}, {2, 1, 0}, {1, 2, 0}, {2, 0, 1}} {
		s := NewStats(nil)
		for _, i := range order {
			s.Merge(parts[i], 0)
		}
		if got := s.Rules[Unusable].Where("why"); got != "a:1, a:4, a:6 and 6 more" {
			t.Errorf("%v: %s", order, got)
		}
	}
}

// Rows of separated values with too few fields have one fault, however many they have.
func TestReasonOfFields(t *testing.T) {
	in := filepath.Join(t.TempDir(), "in.csv")
	if err := os.WriteFile(in, []byte("query,positive,more\na,b,c\nd\ne,f\ng,h,i\nj,k,l,m\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	c := bare(t, in)
	const want = "the row has … fields where the first line names … columns: one with a comma in it needs quotes"
	if got := mustRun(t, c).Rules[Unusable].Reasons; len(got) != 1 || got[want] != 3 {
		t.Errorf("%v", got)
	}
}
