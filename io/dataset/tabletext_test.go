package dataset

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// tableOf opens a table of a file with a title, a text and a number in each row; of "-" the title is null.
func tableOf(t *testing.T, name string, bad bool, titles, texts []string) *Table {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	var lines strings.Builder
	switch filepath.Ext(name) {
	case ".jsonl":
		for i := range titles {
			title := fmt.Sprintf("%q", titles[i])
			if titles[i] == "-" {
				title = "null"
			}
			fmt.Fprintf(&lines, "{\"n\": %d, \"text\": %q, \"title\": %s}\n", i, texts[i], title)
		}
	case ".csv":
		lines.WriteString("text,title\n")
		for i := range titles {
			fmt.Fprintf(&lines, "%q,%q\n", texts[i], strings.TrimPrefix(titles[i], "-"))
		}
	}
	if err := os.WriteFile(path, []byte(lines.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	open := OpenTable
	if bad {
		open = OpenTableWithBad
	}
	table, err := open(t.Context(), []string{path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { table.Close() })
	return table
}

// A table's texts may be joined of columns, as a dataset's are: a part that is null is empty, and white space around the whole goes.
func TestTableTemplate(t *testing.T) {
	titles, texts := []string{"a river", "-", "", "the sun"}, []string{"is long", " is low ", "", "  "}
	want := []string{"a river: is long", ":  is low", ":", "the sun:"}
	for _, name := range []string{"a.jsonl", "a.csv"} {
		table := tableOf(t, name, false, titles, texts)
		var got, again []string
		for c, err := range table.Chunks(t.Context(), "{title}: {text}", 3) {
			if err != nil {
				t.Fatal(err)
			}
			more, err := table.Texts(c, " {title}: {text}")
			if err != nil {
				t.Fatal(err)
			}
			got, again = append(got, c.Texts...), append(again, more...)
		}
		if !slices.Equal(got, want) || !slices.Equal(again, want) {
			t.Errorf("%s: %q and %q, want %q", name, got, again, want)
		}
		err := table.CheckTexts(t.Context(), "{title}{text}")
		if bad := (*RowError)(nil); !errors.As(err, &bad) || bad.Row != 2 || bad.Column != "{title}{text}" || !bad.Empty() {
			t.Errorf("%s: %v, want row 2, of which both parts are empty", name, err)
		}
	}
	table := tableOf(t, "a.jsonl", false, titles, texts)
	for template, want := range map[string]string{
		"{titel} {text}": `no column "titel" (did you mean "title"?)`, "{n}": `column "n" is int64, want string`, "{title": "has a { without", "}": "has a } without", "{}": "without a column",
	} {
		if err := table.CheckTexts(t.Context(), template); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", template, err, want)
		}
	}
}

// Rows whose texts can't be used are Bad where they are to be left out, of either column, and an error otherwise, which CheckTexts finds as well. A
// chunk without them keeps what is beside the others.
func TestTableBadTexts(t *testing.T) {
	titles, texts := []string{"a", "-", "c", "-", "e"}, []string{"1", "2", " ", "4", "5"}
	table := tableOf(t, "a.jsonl", true, titles, texts)
	var ids []int64
	var left []string
	for c, err := range table.Chunks(t.Context(), "title", 4) {
		if err != nil {
			t.Fatal(err)
		}
		second, err := table.Texts(c, "text")
		if err != nil || len(second) != len(c.Texts) || len(c.Texts) != c.Rows {
			t.Fatalf("%d and %d texts of %d rows, %v", len(c.Texts), len(second), c.Rows, err)
		}
		var out []int
		for i := range c.Rows {
			if bad := c.Bad[i]; bad != nil {
				ids, out = append(ids, bad.Row), append(out, i)
				if want := map[int64]string{1: "the text is null", 2: "the text is blank", 3: "the text is null"}[bad.Row]; bad.Reason != want || bad.Location.Line != bad.Row+1 {
					t.Errorf("%v, want %q", bad, want)
				}
			}
		}
		c.Drop(out)
		left = append(left, c.Texts...)
	}
	if !slices.Equal(ids, []int64{1, 2, 3}) || !slices.Equal(left, []string{"a", "e"}) {
		t.Errorf("rows %v are bad, and %q are left", ids, left)
	}
	table = tableOf(t, "a.jsonl", false, titles, texts)
	for _, c := range []struct {
		columns []string
		row     int64
	}{{[]string{"title"}, 1}, {[]string{"text"}, 2}, {[]string{"text", "title"}, 1}, {[]string{"{title}{text}"}, -1}} {
		bad, err := (*RowError)(nil), table.CheckTexts(t.Context(), c.columns...)
		if c.row < 0 && err != nil || c.row >= 0 && (!errors.As(err, &bad) || bad.Row != c.row) {
			t.Errorf("%q: %v, want row %d", c.columns, err, c.row)
		}
	}
	if table.KeepEmpty(); table.CheckTexts(t.Context(), "text") != nil {
		t.Error("a blank text is none to keep")
	}
}

// Standard input is no file.
func TestTableStandardInput(t *testing.T) {
	if _, err := OpenTable(t.Context(), []string{"-"}); !errors.Is(err, ErrNoFiles) || !strings.Contains(err.Error(), "not from standard input") {
		t.Errorf("error %v", err)
	}
}

// Scored pairs may have texts that are joined of columns.
func TestPairsTemplate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.csv")
	if err := os.WriteFile(path, []byte("a,b,c,s\nx,y,z,0.5\nu,,w,1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := LoadPairs(t.Context(), path, "{b} {a}", "c", "s")
	if err != nil || !slices.Equal(p.A, []string{"y x", "u"}) || !slices.Equal(p.B, []string{"z", "w"}) || !slices.Equal(p.Scores, []float64{0.5, 1}) {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := LoadPairs(t.Context(), path, "{b}", "c", "s"); err == nil || !strings.Contains(err.Error(), `a.csv:3, column "{b}": the text is null or empty`) {
		t.Errorf("error %v", err)
	}
}

// Names may end in capital letters, compressed or not, and tasks are called without what they end in.
func TestEndings(t *testing.T) {
	dir := t.TempDir()
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	z.Write([]byte(`{"a": "y"}` + "\n"))
	z.Close()
	w, err := NewParquetWriter(filepath.Join(dir, "d.PARQUET"), OutColumn{Name: "a", Type: TextOut})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Write([]string{"w"}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"a.JSONL": `{"a": "x"}`, "b.Jsonl.GZ": packed.String(), "c.CSV": "a\nz\n", "d.PARQUET": "", "e.json": `{"a": "u"}`, "f.ndjson": `{"a": "v"}`} {
		if content != "" {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want := map[byte]string{'a': "x", 'b': "y", 'c': "z", 'd': "w", 'e': "u", 'f': "v"}[name[0]]
		table, err := OpenTable(t.Context(), []string{filepath.Join(dir, name)})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for c, err := range table.Chunks(t.Context(), "a", 9) {
			if err != nil || len(c.Texts) != 1 || c.Texts[0] != want {
				t.Errorf("%s: %q, %v, want %q", name, c.Texts, err, want)
			}
		}
		table.Close()
		d, err := Open(t.Context(), Source{Paths: []string{filepath.Join(dir, name)}, Query: "a", Positive: "a"})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		d.Close()
		if got := TaskName("x/" + name); got != name[:1] {
			t.Errorf("%s is called %q", name, got)
		}
	}
	if got := Pick([]string{"x/a.JSONL", "x/b.txt"}, "x"); !slices.Equal(got, []string{"x/a.JSONL"}) {
		t.Errorf("of a store: %q", got)
	}
	names := []string{"x/a.csv", "x/b.jsonl", "xy/c.parquet", "d.parquet"}
	for pattern, want := range map[string][]string{"x": names[1:2], "xy": names[2:3], "": names[2:], "x*/*": names[:3], "y": nil} {
		if got := Pick(names, pattern); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", pattern, got, want)
		}
	}
}
