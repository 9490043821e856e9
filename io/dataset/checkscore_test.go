package dataset

import (
	"errors"
	"strings"
	"testing"
)

// A score that is no number for what it is to be used for makes a row that can't be used, in a list or alone.
func TestCheckScore(t *testing.T) {
	dir := write(t, map[string]string{"a.jsonl": `{"q": "a", "p": "b", "n": "c", "s": 1, "l": [0, 1]}
{"q": "a", "p": "b", "n": "c", "s": 3, "l": [0, 4]}
`})
	below2 := func(y float64) error {
		if y < 2 {
			return nil
		}
		return errors.New("want less than 2")
	}
	for _, c := range []struct {
		negatives []string
		scores    []string
		want      string
	}{
		{nil, []string{"s"}, `a.jsonl:2, column "s": the score is 3: want less than 2`},
		{[]string{"n"}, []string{"l"}, `a.jsonl:2, column "l": score 1 of the list is 4: want less than 2`},
	} {
		src := Source{Paths: []string{dir + "/a.jsonl"}, Query: "q", Positive: "p", Negatives: c.negatives, Scores: c.scores}
		for _, check := range []func(float64) error{nil, below2} {
			src.CheckScore = check
			d, err := Open(t.Context(), src)
			if err != nil {
				t.Fatal(err)
			}
			x, err := d.Index(t.Context(), IndexConfig{SkipBad: true})
			switch {
			case err != nil:
				t.Error(err)
			case check == nil && len(x.Bad()) > 0:
				t.Errorf("without a check: %v", x.Bad()[0])
			case check != nil && (len(x.Bad()) != 1 || !strings.HasSuffix(x.Bad()[0].Error(), c.want)):
				t.Errorf("%v, want %s", x.Bad(), c.want)
			}
		}
	}
}
