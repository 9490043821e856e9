package dataset

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Rows that a function refuses are left out beside those that can't be used, over several reads and files; its error has the row's place.
func TestFilter(t *testing.T) {
	dir := t.TempDir()
	var want []int64
	for file := range 2 {
		var b strings.Builder
		for i := range 3000 {
			q := fmt.Sprintf(`"query %d"`, i)
			if i == 7 {
				q = "null"
			}
			fmt.Fprintf(&b, `{"q": %s, "p": "answer %d"}`+"\n", q, i)
			if i == 7 || i%1000 == 999 {
				want = append(want, int64(3000*file+i))
			}
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(file, ".jsonl")), []byte(b.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	d, err := Open(t.Context(), Source{Paths: []string{filepath.Join(dir, "*.jsonl")}, Query: "q", Positive: "p"})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	index, err := d.Index(t.Context(), IndexConfig{SkipBad: true})
	if err != nil {
		t.Fatal(err)
	}
	short := func(e *Example) (bool, error) { return !strings.HasSuffix(e.Texts[0], "999"), nil }
	if got, err := d.Filter(t.Context(), index.Skip(), short); err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, want %v: %v", got, want, err)
	}
	if _, err := d.Filter(t.Context(), nil, short); err == nil || !strings.Contains(err.Error(), "0.jsonl") || !strings.Contains(err.Error(), `"q"`) {
		t.Errorf("a row without a query: %v", err)
	}
	failed := errors.New("no such language")
	for _, line := range []int64{5, 2995} { // in the first rows that are read at once, and in the last
		_, err = d.Filter(t.Context(), index.Skip(), func(e *Example) (bool, error) {
			if e.Row == 3000+line-1 {
				return false, failed
			}
			return true, nil
		})
		if want := fmt.Sprintf("1.jsonl:%d: ", line); !errors.Is(err, failed) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
