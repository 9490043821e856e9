package dataset

import (
	"context"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// Of documents a text that is twice is a candidate as often; how many positives have been missed never falls below 0. Files are the held-out ones of a dataset.
func TestLoadCandidates(t *testing.T) {
	dir := write(t, map[string]string{"c.jsonl": `{"q": "twice", "p": ["x"], "n": ["y"], "d": ["x", "y", "y", "x"]}
{"q": "missed", "p": ["x", "z"], "n": ["y"], "d": ["y", "x"]}
{"q": "both", "p": ["x"], "n": ["y", "x"], "d": ["x", "y"]}
{"q": "none", "p": ["x"], "n": null, "d": ["y"]}
{"q": "all", "p": ["x"], "n": [], "d": ["x"]}
{"q": "empty", "p": [], "n": ["y"], "d": ["y"]}
`})
	var splits []Splits
	RegisterScheme("candidates", func(_ context.Context, _ string, s Splits) ([]string, error) {
		splits = append(splits, s)
		return []string{filepath.Join(dir, "c.jsonl")}, nil
	})
	const yes, no = true, false
	for name, c := range map[string]struct {
		columns CandidateColumns
		want    Candidates
		note    string
	}{
		"negatives": {CandidateColumns{Query: "q", Positive: "p", Negative: "n", Found: true}, Candidates{ // which is of documents alone
			Queries: []string{"twice", "missed", "both"}, Texts: [][]string{{"x", "y"}, {"x", "z", "y"}, {"x", "y", "x"}}, Relevant: [][]bool{{yes, no}, {yes, yes, no}, {yes, no, no}}, Without: 1, Alone: 2,
		}, "of 6 queries 1 has no positive and 2 have no other candidate: left out, for such a query tells nothing of a model"},
		"documents": {CandidateColumns{Query: "q", Positive: "p", Documents: "d"}, Candidates{
			Queries: []string{"twice", "missed", "both", "none"}, Texts: [][]string{{"x", "y", "y"}, {"x", "z", "y"}, {"x", "y"}, {"x", "y"}}, Relevant: [][]bool{{yes, no, no}, {yes, yes, no}, {yes, no}, {yes, no}},
			Given: [][]bool{{yes, no, no, yes}, {no, yes, yes}, {yes, no}, {no}}, Without: 1, Alone: 1,
		}, "of 6 queries 1 has no positive and 1 has no other candidate: left out, for such a query tells nothing of a model"},
		"found": {CandidateColumns{Query: "q", Positive: "p", Documents: "d", Found: true}, Candidates{
			Queries: []string{"twice", "missed", "both", "none", "all"}, Texts: [][]string{{"x", "y", "y", "x"}, {"y", "x"}, {"x", "y"}, {"y"}, {"x"}}, Relevant: [][]bool{{yes, no, no, yes}, {no, yes}, {yes, no}, {no}, {yes}},
			Given: [][]bool{{yes, no, no, yes}, {no, yes, yes}, {yes, no}, {no}, {yes}}, Missed: []int{0, 1, 0, 1, 0}, Without: 1,
		}, "of 6 queries 1 has no positive: left out, for such a query tells nothing of a model"},
	} {
		note, url := "", "candidates://x"
		got, err := LoadCandidates(WithNote(t.Context(), func(m string) { note += m }), url, c.columns)
		if err != nil || !reflect.DeepEqual(*got, c.want) || note != url+": "+c.note {
			t.Errorf("%s: %v, %q\n%+v, want\n%+v", name, err, note, got, c.want)
		}
	}
	broken := write(t, map[string]string{"c.jsonl": `{"q": "a", "p": ["x"], "d": ["y"]}` + "\n" + `{"q": "b", "p": ["x"], "d": ["y", null]}`})
	_, err := LoadCandidates(t.Context(), filepath.Join(broken, "c.jsonl"), CandidateColumns{Query: "q", Positive: "p", Documents: "d"})
	if want := `c.jsonl:2, column "d": text 1 of the list is null`; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
	if !reflect.DeepEqual(splits, []Splits{HeldOut, HeldOut, HeldOut}) {
		t.Errorf("splits %v, want those that are held out", splits)
	}
}
