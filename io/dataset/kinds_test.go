package dataset

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// What a column of JSON lines is, most of its values say, whichever comes first. A row with another value is one that can't be used, and named; a column that is
// not what it has to be is named with a line of it.
// What is wrong with a key's value is forgotten where the key comes again, and nothing else is.
func TestKeysThatComeAgain(t *testing.T) {
	for line, want := range map[string]string{
		`{"q": 5, "p": ["a"], "q": "ok"}`:                           "",
		`{"q": "ok", "p": ["a"], "q": 5}`:                           `column "q": it is a number, want a string`,
		`{"q": 5, "p": ["a", 7], "q": "ok"}`:                        `column "p": it is a number, want a list of strings`,
		`{"q": 5, "p": ["a", 7], "q": "ok", "p": ["b"]}`:            "",
		`{"q": 5, "p": ["a", 7]}`:                                   `column "q": it is a number, want a string`,
		`{"q": 5, "p": ["a", 7], "w": {}, "p": ["b"], "q": "ok"}`:   `column "w": it is an object, want a number`,
		`{"q": "ok", "p": ["a", 7, {}], "w": 1, "w": true, "w": 2}`: `column "p": it is a number, want a list of strings`,
	} {
		usable := strings.Repeat(`{"q": "q", "p": ["p"], "w": 1}`+"\n", 3)
		line = strings.TrimSuffix(line, "}")
		if !strings.Contains(line, `"w"`) {
			line += `, "w": 1`
		}
		dir := write(t, map[string]string{"a.jsonl": usable + line + "}\n"})
		d, err := Open(t.Context(), Source{Paths: []string{dir + "/a.jsonl"}, Query: "q", Positive: "p", Weight: "w"})
		if err != nil {
			t.Fatal(err)
		}
		x, err := d.Index(t.Context(), IndexConfig{SkipBad: true})
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, bad := range x.Bad() {
			got += bad.Kind()
		}
		if got != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
	dir := write(t, map[string]string{"a.jsonl": `{"q": "x", "q": "q", "n": ["x", "y", "z"], "p": "p", "s": [7, 8, 9, 10], "n": ["n"], "w": 3, "s": [1, 2], "w": 2}`})
	d, err := Open(t.Context(), Source{Paths: []string{dir + "/a.jsonl"}, Query: "q", Positive: "p", Negatives: []string{"n"}, Scores: []string{"s"}, Weight: "w"})
	if err != nil {
		t.Fatal(err)
	}
	rows, err := d.NewReader(ReaderConfig{}).Read(t.Context(), 0, []int64{0})
	if err != nil || fmt.Sprint(rows[0].Texts, rows[0].Scores, rows[0].Weight) != "[q p n] [1 2] 2" {
		t.Errorf("%+v, %v", rows, err)
	}
}

func TestJSONLKinds(t *testing.T) {
	const two = `"a"|"a"`
	for _, c := range []struct {
		src    Source
		values string // of column v, by row
		bad    string // "": every row can be used
		open   bool   // it is an error of the whole
	}{
		{Source{Label: "v"}, `1|0.5|-2|1e3`, "", false},
		{Source{Label: "v"}, `null|1|2`, `1: it is null, want a number`, false},
		{Source{Label: "v"}, `"x"|1|2`, `1: it is a string, want a number`, false},
		{Source{Label: "v"}, `1|2|"0.5"`, `3: it is a string, want a number`, false},
		{Source{Label: "v"}, `true|0.5|1`, "", false},
		{Source{Label: "v"}, `"1"|"2"|3`, `:1: column "v" is a string, want a number: a number stands without quotes, 0.5 and not "0.5"`, true},
		{Source{Label: "v"}, `"x"|true|1|"x"|0|"x"|false`, `1: it is a string, want a number`, false},
		{Source{Label: "v"}, `"x"|true|1|"x"`, `:1: column "v" is a string, want a number: a number stands without quotes, 0.5 and not "0.5"`, true},
		{Source{Positive: "v"}, `null|null|null|["a"]|["b"]`, `1: the list is null or empty`, false},
		{Source{Negatives: []string{"n"}, Scores: []string{"v"}}, `[1, 2]|true|[1, 2]|1|0`, `1: it is a list, want a number`, false},
		{Source{Weight: "v"}, `"x"|true|1|"x"|1|true`, `:1: column "v" is a string, want a number: a number stands without quotes, 0.5 and not "0.5"`, true},
		{Source{Weight: "v"}, `true|1|2`, `1: it is true or false, want a number`, false},
		{Source{Weight: "v"}, `1|true|false`, `:2: column "v" is true or false, want a number`, true},
		{Source{Positive: "v"}, `2024|"a"|"b"`, `1: it is a number, want a string`, false},
		{Source{Positive: "v"}, two + `|2024`, `3: it is a number, want a string`, false},
		{Source{Positive: "v"}, `null|"a"|1|2|3`, `:3: column "v" is a number, want string or list<string>`, true},
		{Source{Positive: "v"}, `"a"|["a"]|["b"]`, `1: it is a string, want a list of strings`, false},
		{Source{Positive: "v"}, `["a"]|` + two, `1: it is a list, want a string`, false},
		{Source{Positive: "v"}, `["a"]|"a"`, `2: it is a string, want a list of strings`, false},
		{Source{Positive: "v"}, `{"x": 1}|` + two, `1: it is an object, want a string`, false},
		{Source{Positive: "v"}, `"x"|true|1|"x"|1|true`, `2: it is true or false, want a string`, false},
		{Source{Positive: "v"}, two + `|{"x": 1}|{"x": 2}|{"x": 3}`, `:3: column "v" is an object, want string or list<string>`, true},
		{Source{Positive: "v.x"}, `{"x": "a"}|"a"|{"x": "b"}`, `2: the text is missing: the row has no such key`, false},
		{Source{Label: "v"}, `null|null`, `1: it is null, want a number`, false},
		{Source{Positive: "v"}, `null|null`, `1: the text is null`, false},
		{Source{Positive: "v"}, `[]|["a"]|["b"]`, `1: the list is null or empty`, false},
		{Source{Negatives: []string{"n"}, Scores: []string{"v"}}, `1|[1, 2]|[3, 4]`, `1: it is a number, want a list of numbers`, false},
	} {
		var lines []string
		for i, v := range strings.Split(c.values, "|") {
			lines = append(lines, fmt.Sprintf(`{"q": "q %d", "p": "p", "n": "n", "v": %s}`, i, v))
		}
		dir := write(t, map[string]string{"a.jsonl": strings.Join(lines, "\n") + "\n"})
		src := c.src
		src.Paths, src.Query = []string{dir + "/a.jsonl"}, "q"
		if src.Positive == "" {
			src.Positive = "p"
		}
		d, err := Open(t.Context(), src)
		if c.open {
			if !errors.Is(err, ErrColumnType) || !strings.HasSuffix(err.Error(), "a.jsonl"+c.bad) {
				t.Errorf("%s: %v, want %s", c.values, err, c.bad)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.values, err)
			continue
		}
		x, err := d.Index(t.Context(), IndexConfig{SkipBad: true})
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if bad := x.Bad(); len(bad) > 0 {
			got = fmt.Sprintf("%d: %s", bad[0].Location.Line, bad[0].Reason)
		}
		if got != c.bad {
			t.Errorf("%s: %q, want %q", c.values, got, c.bad)
		}
	}
}
