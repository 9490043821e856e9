package dataset

import (
	"fmt"
	"slices"
	"sync"
	"testing"
)

// CheckText is asked of every text of a row, of all that a list has, and its row is bad for what it says of any of them.
func TestCheckTextOfLists(t *testing.T) {
	dir := write(t, map[string]string{"a.jsonl": `{"q": "one", "p": "two", "n": ["three", "four"]}
{"q": "one", "p": "two", "n": ["three", "bad"]}
{"q": "one", "p": "bad", "n": ["three", "four"]}
`})
	src := Source{Paths: []string{dir + "/a.jsonl"}, Query: "q", Positive: "p", Negatives: []string{"n"}, NegativesPerQuery: AllNegatives}
	src.CheckText = func(role Role, text string, ids []int32) string {
		if text == "bad" && ids == nil {
			return fmt.Sprintf("role %d is bad", role)
		}
		return ""
	}
	d, err := Open(t.Context(), src)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	x, err := d.Index(t.Context(), IndexConfig{SkipBad: true})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, bad := range x.Bad() {
		got = append(got, fmt.Sprintf("%d, %s: %s", bad.Location.Line, bad.Column, bad.Reason))
	}
	if want := []string{fmt.Sprintf("2, n: text 1 of the list: role %d is bad", Negative), fmt.Sprintf("3, p: role %d is bad", Positive)}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// Of rows that come as token ids CheckText is given those, and no text.
func TestCheckTextOfIDs(t *testing.T) {
	var want struct{ Rows []idsRow }
	readJSON(t, golden("ids.json"), &want)
	src := idsSource
	src.Paths = []string{golden("ids_plain.parquet")}
	var mu sync.Mutex
	var asked []string
	src.CheckText = func(role Role, text string, ids []int32) string {
		mu.Lock()
		defer mu.Unlock()
		if text != "" {
			t.Errorf("a text of %d bytes", len(text))
		}
		asked = append(asked, fmt.Sprint(role, ids))
		return ""
	}
	d, err := Open(t.Context(), src)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	x, err := d.Index(t.Context(), IndexConfig{SkipBad: true})
	if err != nil || len(x.Bad()) > 0 {
		t.Fatal(err, x.Bad())
	}
	var all []string
	for _, row := range want.Rows {
		all = append(all, fmt.Sprint(Query, row.QueryIDs))
		from := 0
		for _, n := range row.PosCounts {
			ids := row.PosIDs[from : from+int(n)]
			all = append(all, fmt.Sprint(Positive, ids), fmt.Sprint(Negative, ids)) // both roles take of the list
			from += int(n)
		}
	}
	for _, ids := range all {
		if !slices.Contains(asked, ids) {
			t.Errorf("not asked of %s", ids)
		}
	}
	for _, ids := range asked {
		if !slices.Contains(all, ids) {
			t.Errorf("asked of %s", ids)
		}
	}
}
