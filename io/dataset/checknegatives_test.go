package dataset

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// CheckNegatives is asked of each row how many negatives it has, whatever columns they are in, and the row is named by one of them.
func TestCheckNegatives(t *testing.T) {
	dir := write(t, map[string]string{"a.jsonl": `{"q": "a", "p": "b", "n": "c", "l": ["d", "e"], "m": ["x", "y", "z"], "d": ["b", "c", "d"]}
{"q": "a", "p": "b", "n": "c", "l": [], "m": ["x", "y"], "d": ["b"]}
{"q": "a", "p": "b", "n": "c", "l": null, "m": ["x"], "d": ["b", "c"]}
{"q": "a", "p": "b", "n": "c", "l": ["d"], "m": ["x", "y"], "d": ["b"]}
`})
	for _, c := range []struct {
		src  Source
		want []int // numbers of negatives
		of   string
	}{
		{Source{Positive: "p"}, []int{0, 0, 0, 0}, "p"},
		{Source{Positive: "p", Negatives: []string{"n"}}, []int{1, 1, 1, 1}, ""},
		{Source{Positive: "p", Negatives: []string{"l"}, NegativesPerQuery: AllNegatives}, []int{2, 0, 0, 1}, "l"},
		{Source{Positive: "p", Negatives: []string{"n", "l"}, NegativesPerQuery: AllNegatives}, []int{3, 1, 1, 2}, ""},
		{Source{Positive: "p", Negatives: []string{"m"}, NegativesPerQuery: 2}, []int{2, 2, 2, 2}, ""}, // of one a row has it twice
		{Source{Positive: "p", Negatives: []string{"n", "m"}, NegativesPerQuery: 3}, []int{4, 4, 4, 4}, ""},
		{Source{Documents: "d"}, []int{2, 0, 1, 0}, "d"},
	} {
		src := c.src
		src.Paths, src.Query = []string{dir + "/a.jsonl"}, "q"
		var asked []int
		src.CheckNegatives = func(n int) error {
			if asked = append(asked, n); n == 0 {
				return errors.New("want one")
			}
			return nil
		}
		d, err := Open(t.Context(), src)
		if err != nil {
			t.Fatal(err)
		}
		asked = nil
		x, err := d.Index(t.Context(), IndexConfig{SkipBad: true})
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		for i, n := range c.want {
			if n == 0 {
				why := "want one"
				if c.src.Documents != "" {
					why = "the list has one document, and it takes two or more: " + why
				}
				want = append(want, fmt.Sprintf("a.jsonl:%d, column %q: %s", i+1, c.of, why))
			}
		}
		if !slices.Equal(asked, c.want) || len(x.Bad()) != len(want) {
			t.Errorf("%+v: asked of %v, want %v; bad %v", c.src, asked, c.want, x.Bad())
			continue
		}
		for i, bad := range x.Bad() {
			if !strings.HasSuffix(bad.Error(), want[i]) {
				t.Errorf("%v, want %s", bad, want[i])
			}
		}
	}
}

// A score or a text of a list makes a row that can't be used whether an epoch has drawn it or not: no row can be used in one epoch and not in another.
func TestBadOfWhatIsNotDrawn(t *testing.T) {
	texts := []string{"c", "d", "e", "f", "g", "h"}
	row := func(spoil func(i int) (text, score string)) string {
		var ns, ss []string
		for i := range texts {
			text, score := spoil(i)
			ns, ss = append(ns, fmt.Sprintf("%q", text)), append(ss, score)
		}
		return fmt.Sprintf("{\"q\": \"a\", \"p\": \"b\", \"n\": [%s], \"ps\": 1, \"ns\": [%s]}\n", strings.Join(ns, ", "), strings.Join(ss, ", "))
	}
	const at = 3
	for _, c := range []struct{ text, score, want string }{
		{"f", "0.5", ""},
		{" ", "0.5", `column "n": text 3 of the list is blank`},
		{"f", "null", `column "ns": score 3 of the list is null or NaN`},
		{"f", "7", `column "ns": score 3 of the list is 7: want at most 1`},
	} {
		dir := write(t, map[string]string{"a.jsonl": row(func(i int) (string, string) {
			if i == at {
				return c.text, c.score
			}
			return texts[i], "0.5"
		})})
		d, err := Open(t.Context(), Source{Paths: []string{dir + "/a.jsonl"}, Query: "q", Positive: "p", Negatives: []string{"n"}, NegativesPerQuery: 1, Scores: []string{"ps", "ns"}, CheckScore: func(y float64) error {
			if y > 1 {
				return errors.New("want at most 1")
			}
			return nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		r := d.NewReader(ReaderConfig{Seed: 1})
		undrawn := 0
		for epoch := range 8 {
			e, err := r.Read(t.Context(), epoch, []int64{0})
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("epoch %d: %v, want %q", epoch, err, c.want)
			}
			if err == nil && e[0].Texts[2] != texts[at] {
				undrawn++
			}
		}
		if c.want == "" && undrawn < 4 {
			t.Errorf("the text is left out in %d of 8 epochs", undrawn)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}
