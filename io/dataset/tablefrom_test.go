package dataset

import (
	"cmp"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
)

// A table of a stream is that of a file with its content, also where it comes a byte at a time; errors call it by its name.
func TestOpenTableFrom(t *testing.T) {
	const lines = `{"text": "a", "n": 1}` + "\r\n\n" + `{"text": null}` + "\nno json\n" + `{"n": 2, "text": "b"}`
	const array = `[{"text": "a", "n": 1}, {"text": null}, 5, {"n": 2, "text": "b"}]`
	for content, where := range map[string][]string{lines: {"in:3", "in:4"}, array: {"in: element 2", "in: element 3"}} {
		for _, in := range []io.Reader{strings.NewReader(content), iotest.OneByteReader(strings.NewReader(content))} {
			table, err := OpenTableFrom(t.Context(), "in", in, true)
			if err != nil {
				t.Fatal(err)
			}
			var texts, bad []string
			for c, err := range table.Chunks(t.Context(), "text", 10) {
				if err != nil {
					t.Fatal(err)
				}
				texts = append(texts, c.Texts...)
				for i := range c.Rows {
					if e := c.Bad[i]; e != nil {
						bad = append(bad, e.Location.String())
					}
				}
			}
			if !reflect.DeepEqual(texts, []string{"a", "", "", "b"}) || !reflect.DeepEqual(bad, where) || !reflect.DeepEqual(table.Columns(), []string{"text", "n"}) {
				t.Errorf("texts %q, columns %q, bad at %q, want %q", texts, table.Columns(), bad, where)
			}
			table.Close()
		}
		if _, err := OpenTableFrom(t.Context(), "in", strings.NewReader(content), false); !errors.Is(err, ErrBadRow) || !strings.HasPrefix(err.Error(), where[1]) {
			t.Errorf("%v, want %s", err, where[1])
		}
	}
	for content, want := range map[string]string{"": "in: no rows", "\xff\xfe{": "in is UTF-16", `[{"text": "a"}`: "in ends after 1 elements"} {
		if _, err := OpenTableFrom(t.Context(), "in", strings.NewReader(content), true); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", content, err, want)
		}
	}
	// What files are by their names a stream is not.
	const csv = "; the first line looks like CSV or TSV, where JSON lines are read"
	for content, want := range map[string]struct{ stop, skip string }{
		"\x1f\x8b\x08\x00":               {"in is compressed, by gzip, where JSON lines are read: unpack it first (gzip -dc)", ""},
		"\x28\xb5\x2f\xfd\x00":           {"in is compressed, by zstd", ""},
		"PAR1\x15\x04":                   {"in is parquet, where JSON lines are read: a file of that is read by its name", ""},
		"query,text\na,b\n":              {"in:1: not JSON at byte 1: 'q' where an object { } should be" + csv, "in: none of 2 rows is an object of JSON" + csv},
		"\xef\xbb\xbf\"q\",\"t\"\n{\n":   {"in:1: not JSON at byte 1: '\"' where an object { } should be" + csv, "in: none of 2 rows is an object of JSON" + csv},
		"q\tt\na\tb":                     {"in:1: not JSON at byte 1: 'q' where an object { } should be" + csv, "in: none of 2 rows is an object of JSON" + csv},
		"query,text\n" + `{"text": "a"}`: {"in:1: not JSON at byte 1: 'q' where an object { } should be" + csv, "-"},
		`"a, b"`:                         {"in:1: it is a string, where an object { } should be", "-"},
		"text\na\n":                      {"in:1: not JSON at byte 1: 't' where an object { } should be", "-"},
		`{"text": "a, b"` + "\n":         {"in:1: not JSON at byte 16: ", "-"},
	} {
		for withBad, want := range map[bool]string{false: want.stop, true: cmp.Or(want.skip, want.stop)} { // "-": a table
			table, err := OpenTableFrom(t.Context(), "in", iotest.OneByteReader(strings.NewReader(content)), withBad)
			if err == nil {
				table.Close()
			}
			if (err == nil) != (want == "-") || err != nil && (!strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), csv) != strings.Contains(want, csv)) {
				t.Errorf("%q, with bad rows %v: %v, want %q", content, withBad, err, want)
			}
			if err != nil && errors.Is(err, ErrBadRow) && strings.Contains(err.Error(), csv) {
				t.Errorf("%q: %v is a row's fault", content, err)
			}
		}
	}
	lost := errors.New("the pipe is gone")
	for content, want := range map[string]string{lines: "in: after ", "q,t\na,b\n": "in: after ", array[:30]: "in: in element 2: "} {
		if _, err := OpenTableFrom(t.Context(), "in", io.MultiReader(strings.NewReader(content), iotest.ErrReader(lost)), true); !errors.Is(err, lost) || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("a stream that ends with an error: %v, want %q", err, want)
		}
	}
}
