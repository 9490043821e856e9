package hfmodel

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"contraflow/io/dataset"
)

// Against Python's datasets (testdata/golden/hub/splits.py): the files of each split of each configuration, by cards and by names.
func TestSplitsGolden(t *testing.T) {
	text, err := os.ReadFile("../../testdata/golden/hub/splits.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Files   []string
		Card    string
		Configs map[string]map[string][]string // nil: an error
	}
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, c := range cases {
		for config, want := range c.Configs {
			got := map[string][]string{}
			for _, split := range []string{"train", "validation", "test", "dev", "weird_name"} {
				files, err := whole{url: "hf://datasets/org/name", files: c.Files, card: []byte(c.Card), part: part{config, split}}.pick()
				if err == nil {
					got[split] = files
				}
			}
			if len(got) != len(want) || len(want) > 0 && !reflect.DeepEqual(got, want) {
				t.Errorf("%q, config %q:\n%v, want\n%v", c.Files, config, got, want)
			}
			checked++
		}
	}
	if checked < 34 {
		t.Fatalf("%d cases", checked)
	}
}

// What ** stands for, told by trying all there is: folders, none included, or files.
func TestGlobMatch(t *testing.T) {
	var stands func(pattern, name []string) bool
	stands = func(pattern, name []string) bool {
		switch {
		case len(pattern) == 0 || len(name) == 0:
			return len(pattern) == len(name)
		case pattern[0] != "**":
			return partMatch(pattern[0], name[0]) && stands(pattern[1:], name[1:])
		case len(pattern) == 1:
			return len(name) == 1 || stands(pattern, name[1:])
		}
		return stands(pattern[1:], name) || stands(pattern, name[1:])
	}
	pick := func(words []string, n int) (out []string) {
		for range 1 + n%4 {
			n /= 4
			out = append(out, words[n%len(words)])
			n /= len(words)
		}
		return out
	}
	matched := 0
	for i := range 40000 {
		pattern, name := pick([]string{"**", "a", "*", "_*", ".*", "**"}, i*7919), pick([]string{"a", "_b", "__c", ".d", "a"}, i*104729/3)
		want := stands(pattern, name) && hidden(pattern) == hidden(name)
		if got := globMatch(pattern, name); got != want {
			t.Fatalf("%q, %q: %v", pattern, name, got)
		}
		if want {
			matched++
		}
	}
	if matched < 1000 {
		t.Errorf("%d of all match", matched)
	}
	for _, c := range []struct {
		pattern, name string
		want          bool // as datasets 5.2.0 has it
	}{
		{"*", "__c", true},
		{"**", "ab/b/__c", true},
		{"_*/**", "__c/ab/b", false},
		{"__*/**", "__c/ab/b", true},
		{"**/.d/*", "a/.d/b", true},
		{"**", "a/.d/b", false},
		{"*", ".d", false},
		{"[.]b", ".b", false},
		{".*", ".b", true},
		{"**/*", "_b/c", true},
		{"a/**", "a", false},
		{"a/**", "a/b/c", true},
		{"**/b", "b", true},
		{"*/*", "__c/.d", false},
	} {
		if got := globMatch(strings.Split(c.pattern, "/"), strings.Split(c.name, "/")); got != c.want {
			t.Errorf("%q, %q: %v", c.pattern, c.name, got)
		}
	}
	for pattern, want := range map[string]string{"x[12].csv": "x1.csv", `x\3.csv`: "x3.csv", "x3.cs?": "x3.csv", "x[12].cs*": "x1.csv"} {
		splits, _, err := cardConfig{Files: pattern}.splits([]string{"x1.csv", "x3.csv"})
		if err != nil || !slices.Equal(splits["train"], []string{want}) {
			t.Errorf("%s: %q, %v", pattern, splits, err)
		}
	}
	if splits, said := splitsByName([]string{"__a.csv", "__b/a.csv", ".c.csv", "d/__e.csv"}); said || !slices.Equal(splits["train"], []string{"__a.csv", "d/__e.csv"}) {
		t.Errorf("without a card: %q, %t", splits, said)
	}
	if globMatch(strings.Split(strings.Repeat("**/", 40)+"x", "/"), strings.Split(strings.Repeat("a/", 80)+"y", "/")) {
		t.Error("x is no y")
	}
}

// Folders are of a split by each of its words.
func TestSplitWords(t *testing.T) {
	for split, words := range map[string][]string{"train": {"train", "training"}, "validation": {"validation", "valid", "dev", "val"}, "test": {"test", "testing", "eval", "evaluation"}} {
		for _, word := range words {
			if splits, said := splitsByName([]string{word + "/a.jsonl", "other/b.jsonl"}); !said || len(splits) != 1 || !slices.Equal(splits[split], []string{word + "/a.jsonl"}) {
				t.Errorf("%s: %v", word, splits)
			}
		}
	}
}

// A dataset's name is its split train: rows to test with are not among those to train on. What is not clear is an error that lists what there is.
func TestDataSplits(t *testing.T) {
	noEnvironment(t)
	h := newFakeHub(t)
	row := func(q string) string { return `{"query": "` + q + `", "positive": "p"}` + "\n" }
	h.files = map[string]string{
		"README.md": "# no head\n", "train.jsonl": row("train"), "test.jsonl": row("test"), "sub/valid-0.jsonl": row("valid"), "sub/x-test.jsonl": row("sub test"), "only/test/a.jsonl": row("only"), "plain/a.jsonl": row("plain"),
	}
	s, cache := serveData(t, h)
	queries := func(url string) (all []string, err error) {
		d, err := dataset.Open(t.Context(), dataset.Source{Paths: []string{url}, Query: "query", Positive: "positive", InOrder: true})
		if err != nil {
			return nil, err
		}
		defer d.Close()
		for row := range d.Each(t.Context()) {
			all = row.Column(all, 0)
		}
		return all, nil
	}
	check := func(url string, want ...string) {
		t.Helper()
		if got, err := queries(url); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: rows %q, want %q; %v", url, got, want, err)
		}
	}
	fails := func(url, want string) {
		t.Helper()
		if _, err := queries(url); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", url, err, want)
		}
	}
	const name = "hf://datasets/org/name"
	fails(name, `it has no split "train", but test: name one, as in hf://datasets/org/name?split=test`) // a folder called test comes first, as datasets has it
	delete(h.files, "only/test/a.jsonl")
	check(name, "train")
	check(name+"?split=test", "sub test", "test")
	check(name+"@main?split=validation", "valid")
	check(name+"/plain", "plain")
	check(name+"/sub/?split=test", "sub test")
	check(name+"/*.jsonl", "test", "train") // files that are named are taken as they are
	fails(name+"?split=none", `it has no split "none", but test, train, validation: name one, as in hf://datasets/org/name?split=test`)
	fails(name+"?config=a", `it has no configuration "a": its card, README.md, names none; a folder of it is hf://datasets/org/name/FOLDER`)
	fails(name+"/sub", `it has no split "train", but test, validation: name one, as in hf://datasets/org/name/sub?split=test`)
	fails(name+"/sub?config=a", `it has no configuration "a": its card, README.md, names none; a folder of it is hf://datasets/org/name/FOLDER`)
	fails(name+"/*.jsonl?split=test", "config and split are of a dataset or a folder of it, and files are named here")
	fails(name+"?split=", "want ?split=NAME")
	fails(name+"?split=a&spilt=b", `what follows the question mark is "split=a&spilt=b": want ?split=NAME, ?config=NAME or`)
	fails(name+"/nothing", "it has 6 files, such as")

	h.commit = commit2
	const head = "---\nlanguage: en\nconfigs:\n- config_name: pair\n  data_files:\n  - split: train\n    path: \"tr*\"\n  - split: test\n    path: test.jsonl\n- config_name: more\n  data_files: sub/*\n"
	h.files["README.md"] = head + "---\n# A dataset\n"
	fails(name, "it has the configurations more, pair, and none is the default: name one, as in hf://datasets/org/name?config=more")
	check(name+"?config=pair", "train")
	check(name+"?split=test&config=pair", "test")
	check(name+"?config=more", "valid", "sub test")
	fails(name+"?config=mroe", `it has no configuration "mroe", but more, pair`)
	fails(name+"?config=more&split=test", `it has no split "test", but train: name one, as in hf://datasets/org/name?config=more&split=train`)
	s.Close()
	t.Setenv("HF_HUB_OFFLINE", "1")
	check(name+"?config=pair", "train") // from the cache, with the card that is there
	fails(name+"?config=pair&split=none", "of what is in the cache "+cache)

	for card, want := range map[string]string{
		"---\nconfigs: 5\n---\n":                                                                       "its card, README.md, can't be read",
		"---\nconfigs:\n- {config_name: a, data_files: 7}\n---\n":                                      `data_files of the configuration "a" that are no pattern`,
		"---\nconfigs:\n- {config_name: a, data_files: [{split: train}]}\n---\n":                       `data_files of the configuration "a" that are no pattern`,
		"---\na: &x [1]\nconfigs: *x\n---\n":                                                           "has an alias in its configs (line 3), which is not read; files of it may be named, as in hf://datasets/org/name/a.jsonl",
		"\n---\na: &x 1\nconfigs:\n- " + strings.Repeat("[", 200) + strings.Repeat("]", 200) + "\n---": "more than 100 levels (line 5)",
		"---\nconfigs:\n- {config_name: a, data_files: [" + strings.Repeat("a, ", 6000) + "a]}\n---":   "a line of more than 16 KiB in its configs (line 3)",
		"---\na: b\n# c\nconfigs:\n- {config_name: a, data_files: [*x]}\n---":                          "an alias in its configs (line 5)",
		"---\nconfigs: !\n\n---":                                                                       "a tag in its configs (line 2)",
		"---\na: b\nconfigs: 5\n---":                                                                   "[3:10]",
		"---\nconfigs: []\na: 1\nconfigs: []\n---":                                                     "has configs twice (lines 2 and 4)",
		"---\n{configs: &x [1], b: *x}\n---":                                                           "an alias in its configs (line 2)",
	} {
		if _, err := (whole{url: name, files: []string{"a.jsonl"}, card: []byte(card)}).pick(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %v, want %q", card, err, want)
		}
	}
	if _, err := (whole{url: name, files: []string{"a.parquet"}, part: part{split: "test"}}).pick(); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(cache, "*")); len(left) == 0 {
		t.Error("nothing is in the cache")
	}
}
