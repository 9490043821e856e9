package dataset

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/klauspost/compress/gzip"
)

// element is a row of FlagEmbedding's data.
type element struct {
	Query string    `json:"query"`
	Pos   []string  `json:"pos"`
	Neg   []string  `json:"neg"`
	Score []float32 `json:"pos_scores"`
}

// arrayRows have in their texts all that could be taken for the borders of elements.
func arrayRows() (rows []element) {
	texts := []string{"plain", `a "quote"`, `back\slash\`, "], [", "}, {", "line\nbreak", "tab\tand é 😀", `\"`, `[{"query": "x"}]`, "\u0001"}
	for i := range 200 {
		at := func(k int) string { return fmt.Sprint(texts[(i+k)%len(texts)], i) }
		rows = append(rows, element{at(0), []string{at(1)}, []string{at(2), at(3)}, []float32{float32(i)}})
	}
	return rows
}

// A file that is one JSON array has the rows that encoding/json reads of it, however it is written: compact, indented, with a byte order mark, with CRLF,
// compressed; whole, and with small reads and blocks.
func TestJSONArray(t *testing.T) {
	want := arrayRows()
	compact, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	indented, err := json.MarshalIndent(want, " ", "\t")
	if err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	gz := gzip.NewWriter(&packed)
	gz.Write(indented)
	gz.Close()
	dir := t.TempDir()
	for name, content := range map[string][]byte{
		"compact.json": compact, "indented.json": indented, "mark.json": append([]byte("\xef\xbb\xbf \n"), compact...), "crlf.jsonl": bytes.ReplaceAll(indented, []byte("\n"), []byte("\r\n")),
		"packed.json.gz": packed.Bytes(), "spaced.ndjson": append(append([]byte("\n\n  "), compact...), "\n \n"...),
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, limit := range []blockLimit{defaultLimit, {7, 1 << 20}} {
			d, err := open(t.Context(), Source{Paths: []string{path}, Query: "query", Positive: "pos", Negatives: []string{"neg"}, Scores: []string{"pos_scores"}, Raw: true}, limit)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			var got []element
			for row := range d.Each(t.Context()) {
				got = append(got, element{row.Column(nil, 0)[0], row.Column(nil, 1), row.Column(nil, 2), row.Scores(nil, row.Place)})
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%s: %d rows, want %d, or others", name, len(got), len(want))
			}
			if at := d.Locate(12).String(); at != path+": element 13" {
				t.Errorf("%s: row 12 is at %q", name, at)
			}
			d.Close()
		}
		table, err := OpenTable(t.Context(), []string{path})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		n := 0
		for c, err := range table.Chunks(t.Context(), "query", 64) {
			if err != nil {
				t.Fatal(err)
			}
			for _, text := range c.Texts {
				if text != want[n].Query {
					t.Errorf("%s: the table's row %d is %q, want %q", name, n, text, want[n].Query)
				}
				n++
			}
		}
		if at := table.Locate(3).String(); n != len(want) || at != path+": element 4" {
			t.Errorf("%s: a table of %d rows, row 3 at %q", name, n, at)
		}
		table.Close()
	}
}

// What is wrong with an element is its row's fault and names the element; what is wrong with the array is the file's.
func TestJSONArrayErrors(t *testing.T) {
	dir := t.TempDir()
	open := func(text string) (*Dataset, error) {
		t.Helper()
		path := filepath.Join(dir, "a.json")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return Open(t.Context(), Source{Paths: []string{path}, Query: "q", Raw: true})
	}
	d, err := open(`[{"q": "a"}, 12, {"q": "b"}, {"q" "c"}, null,"x",  [{"q": "d"}], {"q": 5}, {"q": "line
break"}, {"q": "e"}, truex, {"q": "f", "x": 1
2}, {"q":
"g"}]`)
	if err != nil {
		t.Fatal(err)
	}
	var good []string
	var bad []string
	for row, err := range d.Each(t.Context()) {
		if err == nil {
			good = append(good, row.Column(nil, 0)...)
			continue
		}
		if !errors.Is(err, ErrBadRow) {
			t.Fatal(err)
		}
		bad = append(bad, strings.TrimPrefix(err.Error(), filepath.Join(dir, "a.json")+": "))
	}
	d.Close()
	if !reflect.DeepEqual(good, []string{"a", "b", "e", "g"}) {
		t.Errorf("rows %q", good)
	}
	want := []string{"element 2: it is a number, where an object", "element 4: not JSON at byte 6: ", "element 5: it is null, where", "element 6: it is a string, where", "element 7: it is a list, where an object { } should be", `element 8, column "q": it is a number, want a string`,
		"element 9: not JSON at byte 12: a control character in a string", "element 11: not JSON at byte 1: 't' where an object", "element 12: not JSON at byte 19: '2' where a comma or } should be"}
	if len(bad) != len(want) {
		t.Fatalf("bad rows %q", bad)
	}
	for i, w := range want {
		if !strings.HasPrefix(bad[i], w) {
			t.Errorf("%q, want %q", bad[i], w)
		}
	}
	for text, want := range map[string]string{
		`[]`:                          "no rows",
		` [ `:                         "a.json ends after 0 elements of its JSON array, where an element or ] should be",
		`[{"q": "a"}, {"q": "b"`:      "a.json ends in element 2 of its JSON array: it is not whole",
		`[{"q": "a"}, {"q": "b}]`:     "a.json ends in element 2",
		`[{"q": "a"}`:                 "a.json ends after 1 elements of its JSON array, where a comma or ] should be",
		`[{"q": "a"},]`:               "after element 1 of its JSON array comes ']', where an element should be",
		`[,{"q": "a"}]`:               "after element 0 of its JSON array comes ',', where an element or ] should be",
		`[{"q": "a"} {"q": "b"}]`:     "after element 1 of its JSON array comes '{', where a comma or ] should be",
		`[{"q": "a"}] x`:              "after element 1 of its JSON array comes 'x', where nothing should be",
		"[{\"q\": \"a\"}]\n[1]":       "another JSON array after the first, which has 1 elements",
		`[1, 2]`:                      "a.json: element 1: it is a number, where an object { } should be",
		"{\"q\": \"a\"}\n[1]\n[2, 3]": "", // lines, of which two are none
	} {
		d, err := open(text)
		if want == "" && err == nil {
			if at := d.Locate(1).String(); !strings.HasSuffix(at, "a.json:2") {
				t.Errorf("%s: row 1 is at %s", text, at)
			}
			d.Close()
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// An element is as long as a line may be and no longer, and the error comes before more is read of it; what reading a file ends with is the error, and names
// the element.
func TestJSONArrayEnds(t *testing.T) {
	const most = 3 << 20
	row := func(bytes int) string { return `{"q": "` + strings.Repeat("a", bytes-len(`{"q": ""}`)) + `"}` }
	read := func(in io.Reader) (int, error) {
		e := newElements("a.json", bufio.NewReader(in))
		if e.most != maxLine {
			t.Errorf("an element has at most %d bytes, and a line %d", e.most, maxLine)
		}
		e.most = most
		b, err := io.ReadAll(e)
		return len(b), err
	}
	fits := `[{"q": "b"}, ` + row(most)
	if n, err := read(strings.NewReader(fits + "]")); err != nil || n != len(fits)-len("[, ")+len("\n\n") {
		t.Errorf("%d bytes, %v", n, err)
	}
	lost := errors.New("the disk is gone")
	if _, err := read(io.MultiReader(strings.NewReader(`[{"q": "b"}, `+row(most+1)), iotest.ErrReader(lost))); err == nil || !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "a.json: element 2 of its JSON array is longer than 3 MiB") {
		t.Errorf("%.200v", err)
	}
	for text, element := range map[string]string{`[{"q": "b"}, {"q`: "element 2", `[{"q": "b"}, `: "element 1", `[{"q": "b"}]`: "element 1"} {
		if _, err := read(io.MultiReader(strings.NewReader(text), iotest.ErrReader(lost))); !errors.Is(err, lost) || !strings.Contains(err.Error(), "a.json: in "+element+": ") {
			t.Errorf("%s: %v, want %v in %s", text, err, lost, element)
		}
	}
	// A compressed file that has not come whole.
	var packed bytes.Buffer
	gz := gzip.NewWriter(&packed)
	gz.Write([]byte(fits[:1000]))
	gz.Close()
	path := filepath.Join(t.TempDir(), "a.json.gz")
	if err := os.WriteFile(path, packed.Bytes()[:packed.Len()-9], 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), Source{Paths: []string{path}, Query: "q", Raw: true}); !errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(err.Error(), path+": in element 2") {
		t.Errorf("a file that is cut off: %v", err)
	}
}

// A file with one object that has lists of objects is told how to become rows, by the first of those lists.
func TestObjectOfRows(t *testing.T) {
	const hint = "its one row has a list of objects: jq -c "
	path := filepath.Join(t.TempDir(), "a.json")
	for text, want := range map[string]string{
		`{"version": 1, "data": [{"q": "a"}, {"q": "b"}]}`:              hint + `'.data[]' `,
		`{"a b": [{"q": "a"}], "data": [{"q": "b"}], "no": ["a", "b"]}`: hint + `'.["a b"][]' `,
		`{"a": {"b": [{"q": "a"}]}}`:                                    hint + `'.a.b[]' `,
		`{"data": ["a", "b"]}`:                                          "",
		`{"data": []}`:                                                  "",
		`{"data": [{"q": "a"}]}` + "\n" + `{"data": [{"q": "a"}]}`:      "",
		`[{"data": [{"q": "a"}]}]`:                                      "",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Open(t.Context(), Source{Paths: []string{path}, Query: "text", Raw: true})
		if !errors.Is(err, ErrMissingColumn) || strings.Contains(err.Error(), "jq") != (want != "") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
		table, err := OpenTable(t.Context(), []string{path})
		if err != nil {
			t.Fatal(err)
		}
		for _, err := range table.Chunks(t.Context(), "text", 10) {
			if !errors.Is(err, ErrMissingColumn) || strings.Contains(err.Error(), "jq") != (want != "") || !strings.Contains(err.Error(), want) {
				t.Errorf("a table of %s: %v, want %q", text, err, want)
			}
		}
		table.Close()
	}
}

// A column of the wrong kind is told by the first element that has it.
func TestJSONArrayColumn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.json")
	if err := os.WriteFile(path, []byte("[{\"q\": \"x\", \"p\": null},\n\n{\"q\": \"y\", \"p\": 3}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), Source{Paths: []string{path}, Query: "q", Positive: "p"}); !errors.Is(err, ErrColumnType) || !strings.Contains(err.Error(), `a.json: element 2: column "p" is a number`) {
		t.Error(err)
	}
}

// A byte order mark is no part of the first line, of a file read in place and of one that is unpacked.
func TestJSONLinesMark(t *testing.T) {
	lines := byteOrderMark + "{\"q\": \"one\"}\n\n{\"q\": \"two\"}\n{\"q\": \"three\"}"
	var packed bytes.Buffer
	gz := gzip.NewWriter(&packed)
	gz.Write([]byte(lines))
	gz.Close()
	dir := write(t, map[string]string{"a.jsonl": lines, "a.jsonl.gz": packed.String()})
	for _, name := range []string{"a.jsonl", "a.jsonl.gz"} {
		d, err := open(t.Context(), Source{Paths: []string{filepath.Join(dir, name)}, Query: "q", Raw: true}, blockLimit{2, 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		var got []string
		for row, err := range d.Each(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			got = row.Column(got, 0)
		}
		if want := []string{"one", "two", "three"}; !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
		if at, want := d.Locate(1).String(), filepath.Join(dir, name)+":3"; at != want {
			t.Errorf("row 1 is at %s, want %s", at, want)
		}
	}
}
