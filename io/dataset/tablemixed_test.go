package dataset

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Rows of JSON lines whose value is no string in a column of strings are errors of these rows, in the file that has them, and Bad where they are to be
// left out, alone or in a template. Of a key that comes twice the last value counts. A column without any string is of another type, in its file.
func TestTableMixed(t *testing.T) {
	folder := write(t, map[string]string{
		"a.jsonl": `{"a": "x"}` + "\n" + `{"a": null}` + "\n" + `{"a": "y", "b": 1}` + "\n",
		"b.jsonl": `{"a": "z", "b": 1, "c": 2}` + "\n\n" + `{"a": 7, "b": 2}` + "\n" + `{"a": 8, "a": "u"}` + "\n" + `{"a": "v", "a": ["w"]}` + "\n" + `{"a": true}` + "\n",
	})
	paths := []string{filepath.Join(folder, "a.jsonl"), filepath.Join(folder, "b.jsonl")}
	table, err := OpenTable(t.Context(), paths)
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	table.KeepEmpty()
	for column, want := range map[string]string{
		"{a}": `b.jsonl:3, column "a": it is a number, want a string`, "a": `a.jsonl:2, column "a": the text is null`,
		"b": `a.jsonl: column "b" is int64, want string`, "{a}{c}": `b.jsonl: column "c" is int64, want string`,
	} {
		if err := table.CheckTexts(t.Context(), column); err == nil || !strings.HasSuffix(err.Error(), want) || errors.Is(err, ErrBadRow) == strings.Contains(want, "int64") {
			t.Errorf("%s: %v, want %q", column, err, want)
		}
	}
	skips, err := OpenTableWithBad(t.Context(), paths)
	if err != nil {
		t.Fatal(err)
	}
	defer skips.Close()
	for _, column := range []string{"a", "{a}."} {
		for _, rows := range []int{1, 2, 100} {
			var texts, bad []string
			for c, err := range skips.Chunks(t.Context(), column, rows) {
				if err != nil {
					t.Fatal(err)
				}
				for i, text := range c.Texts {
					if b := c.Bad[i]; b == nil {
						texts = append(texts, strings.TrimSuffix(text, "."))
					} else {
						bad = append(bad, fmt.Sprintf("%d %s:%d %s", b.Row, filepath.Base(b.Location.File), b.Location.Line, b.Reason))
					}
				}
			}
			wantTexts, wantBad := []string{"x", "y", "z", "u"}, []string{"1 a.jsonl:2 the text is null", "4 b.jsonl:3 it is a number, want a string", "6 b.jsonl:5 it is a list, want a string", "7 b.jsonl:6 it is true or false, want a string"}
			if column != "a" { // of which null is nothing
				wantTexts, wantBad = slices.Insert(wantTexts, 1, ""), wantBad[1:]
			}
			if !slices.Equal(texts, wantTexts) || !slices.Equal(bad, wantBad) {
				t.Errorf("%s, %d rows at a time: %q and %q, want %q and %q", column, rows, texts, bad, wantTexts, wantBad)
			}
		}
	}
}

// Rows that can't be used are no empty texts of a template, of whose columns they have none.
func TestTableBadIsNotEmpty(t *testing.T) {
	folder := write(t, map[string]string{
		"a.jsonl": `{"a": "x", "b": ""}` + "\nno json\n" + `{"a": "", "b": null}` + "\n" + `{"a": "caf` + "\xe9" + `"}` + "\n",
		"a.csv":   "a,b\nx,\ny\n,\nx,y,z\n",
	})
	for _, name := range []string{"a.jsonl", "a.csv"} {
		table, err := OpenTableWithBad(t.Context(), []string{filepath.Join(folder, name)})
		if err != nil {
			t.Fatal(err)
		}
		defer table.Close()
		table.KeepEmpty()
		empty, bad := 0, 0
		for c, err := range table.Chunks(t.Context(), "{a} {b}", 3) {
			if err != nil {
				t.Fatal(err)
			}
			empty, bad = empty+c.Empty, bad+len(c.Bad)
			if len(c.Texts) != c.Rows {
				t.Errorf("%s: %d texts of %d rows", name, len(c.Texts), c.Rows)
			}
		}
		if empty != 1 || bad != 2 {
			t.Errorf("%s: %d texts are empty and %d rows bad, want 1 and 2", name, empty, bad)
		}
	}
}

// The note of a column of the miner's scores goes on with the column, and not to one of its name that is written anew.
func TestTableMined(t *testing.T) {
	at := filepath.Join(t.TempDir(), "a.parquet")
	for _, c := range []struct{ had, more, want string }{{"scores", "teacher", "scores"}, {"query", "scores", ""}, {"query", "teacher", ""}} {
		w, err := NewParquetWriter(at, OutColumn{Name: c.had, Type: TextOut})
		if err != nil {
			t.Fatal(err)
		}
		w.SetMetadata(MinedKey, "scores")
		if err := errors.Join(w.Write([]string{"x"}), w.Close()); err != nil {
			t.Fatal(err)
		}
		table, err := OpenTable(t.Context(), []string{at})
		if err != nil {
			t.Fatal(err)
		}
		out, err := table.NewWriter(filepath.Join(t.TempDir(), "b.parquet"), OutColumn{Name: c.more, Type: TextOut})
		if err != nil {
			t.Fatal(err)
		}
		for chunk, err := range table.Chunks(t.Context(), "", 9) {
			if err := errors.Join(err, out.Write(chunk, []string{"y"})); err != nil {
				t.Fatal(err)
			}
		}
		if err := out.Close(); err != nil {
			t.Fatal(err)
		}
		p, err := openParquet(out.w.path)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.said(MinedKey); got != c.want {
			t.Errorf("%q beside %q: the miner's column is %q, want %q", c.more, c.had, got, c.want)
		}
		table.Close()
	}
}

// TestTableScalarsAndLists: a key that has a value here and a list there, whichever comes first, is passed on as JSON.
func TestTableScalarsAndLists(t *testing.T) {
	for first, second := range map[string]string{"5": "[1, 2]", `[1, 2]`: "5", `"a"`: `["b"]`, `["b"]`: "true", "[]": "0.5", "0.5": "[]"} {
		dir := write(t, map[string]string{"a.jsonl": `{"x": ` + first + "}\n" + `{"x": ` + second + "}"})
		table, err := OpenTable(t.Context(), []string{filepath.Join(dir, "a.jsonl")})
		if err != nil {
			t.Fatal(err)
		}
		defer table.Close()
		var got []string
		for c, err := range table.Chunks(t.Context(), "", 9) {
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range c.leaves[0].list {
				got = append(got, v.String())
			}
		}
		if want := []string{strings.Trim(first, `"`), strings.Trim(second, `"`)}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
