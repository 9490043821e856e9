package recipe

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/io/dataset"
)

// A line of skipped.jsonl has what the error about its row names it by: a line, or of an array, whose rows may be on any lines, the element.
func TestSkippedRowSaysWhere(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct{ name, text, want string }{
		{"a.jsonl", "{\"q\": \"a\", \"p\": \"b\"}\n\n{\"q\": \"a\", \"p\": \"\"}\n", `"row":1,"line":3,"column":"p",`},
		{"a.csv", "q,p\na,b\na,\n", `"row":1,"line":3,"column":"p",`},
		{"a.json", "[\n{\n\"q\": \"a\",\n\"p\": \"b\"}, {\"q\": \"a\", \"p\": \"c\"},\n\n{\"q\": \"a\", \"p\":\n\"\"}]", `"row":2,"element":3,"column":"p",`},
	} {
		file := filepath.Join(dir, c.name)
		if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		d, err := dataset.Open(t.Context(), dataset.Source{Paths: []string{file}, Query: "q", Positive: "p"})
		if err != nil {
			t.Fatal(err)
		}
		x, err := d.Index(t.Context(), dataset.IndexConfig{SkipBad: true})
		if err != nil || len(x.Bad()) != 1 {
			t.Fatalf("%s: %v, bad %v", c.name, err, x.Bad())
		}
		list := filepath.Join(dir, skippedFile)
		if err := writeSkipped(list, x.Bad()); err != nil {
			t.Fatal(err)
		}
		line, err := os.ReadFile(list)
		var row SkippedRow
		if err == nil {
			err = json.Unmarshal(line, &row)
		}
		if err != nil || bytes.Count(line, []byte("\n")) != 1 || !strings.Contains(string(line), c.want) || row.Where() != x.Bad()[0].Location {
			t.Errorf("%s: %v: %s, want %s, of %v", c.name, err, line, c.want, x.Bad()[0])
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Rows to verify are from all over those that can be used: none of the others, and none twice.
func TestFromAllOver(t *testing.T) {
	j := newJob(t, 20)
	path := filepath.Join(j.dir, "data.jsonl")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(string(raw), "\n")
	for _, row := range []int{0, 1, 5, 6, 19} {
		lines[row] = `{"q": "a", "p": null}` + "\n"
	}
	if err := os.WriteFile(path, []byte(strings.Join(lines, "")), 0o600); err != nil {
		t.Fatal(err)
	}
	x := j.opened(t, []string{"save.dir=" + j.dir, "data.on_error=skip"})
	all := []int64{2, 3, 4, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18}
	for n, want := range map[int][]int64{99: all, 15: all, 5: {2, 7, 10, 13, 16}, 1: {2}} {
		if got := x.fromAllOver(0, n); !slices.Equal(got, want) {
			t.Errorf("%d: %v, want %v", n, got, want)
		}
	}
}
