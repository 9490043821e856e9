package dataset

import (
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
	lost := errors.New("the pipe is gone")
	if _, err := OpenTableFrom(t.Context(), "in", io.MultiReader(strings.NewReader(lines), iotest.ErrReader(lost)), true); !errors.Is(err, lost) || !strings.Contains(err.Error(), "in: after ") {
		t.Errorf("a stream that ends with an error: %v", err)
	}
}
