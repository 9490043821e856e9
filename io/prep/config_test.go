package prep

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/io/dataset"
)

// TestUseless: settings that would do nothing are told, and inputs of the same roles may have them in columns of any names.
func TestUseless(t *testing.T) {
	c := bare(t, "x")
	c.Dedupe.Near.Threshold, c.Mix.Repeat = 0.9, 2
	if p := c.Check(); len(p) != 2 || p[0] != NearWithoutColumn || p[1].Key != "mix.repeat" {
		t.Errorf("settings without use: %v", p)
	}
	a, b := Input{Positive: "p", Scores: []string{"s", "t"}, Weight: "w"}, Input{Positive: "q", Scores: []string{"s"}, Weight: "v"}
	if roles := a.unlike(&b); len(roles) > 0 {
		t.Errorf("the same roles: %q", roles)
	}
}

func TestCheck(t *testing.T) {
	c := Config{Mix: Mix{Kind: "sideways", Repeat: 0.5}, Filter: Filter{Unit: "tokens", Query: Range{5, 2}, Script: Script{"Elvish", 2}, Reject: []string{"("}}, Decontaminate: Decontaminate{Words: -1}, Split: Split{Dev: 1}, Normalize: Normalize{Unicode: "nfx"}}
	c.Input = []Input{{Query: "q"}, {Name: "input", Path: []string{"x"}, Query: "q", Positive: "p"}}
	c.Dedupe = Dedupe{Exact: "positive", Near: Near{Column: "query", Threshold: 2, Shingle: -1}}
	var keys []string
	for _, p := range c.Check() {
		keys = append(keys, p.Key)
	}
	for _, want := range []string{"input[0].path", "input[1].name", "input[1]", "output.dir", "filter.unit", "filter.query", "filter.script.name", "filter.script.share", "filter.reject[0]", "dedupe.exact", "dedupe.near.threshold",
		"dedupe.near", "normalize.unicode", "decontaminate.words", "split.dev", "mix.kind", "mix.repeat"} {
		if !slices.Contains(keys, want) {
			t.Errorf("no problem with %s in %v", want, keys)
		}
	}
	c.Filter.Document, c.Filter.Require = Range{-1, 0}, []string{"["}
	var before string
	for range 20 { // in one order
		said := fmt.Sprint(c.Check())
		if before != "" && said != before {
			t.Fatalf("%s\nand before\n%s", said, before)
		}
		before = said
	}
	d := Default()
	d.Input, d.Output.Dir = []Input{{Path: []string{"x"}, Query: "q", Positive: "p"}}, "out"
	if p := d.Check(); len(p) > 0 {
		t.Errorf("defaults: %v", p)
	}
	d.Tokenize = Tokenize{Model: "m", MaxLength: Lengths{Query: -1}}
	if p, want := fmt.Sprint(d.Check()), "[tokenize.max_length: is {query: -1, document: 0}, want at least 1, or for static embeddings 0, which leaves texts whole]"; p != want {
		t.Errorf("%s, want %s", p, want)
	}
}

// TestZeroConfig: what is left out of a configuration in Go changes nothing, and what a step needs besides what names it is as in Default.
func TestZeroConfig(t *testing.T) {
	dir := t.TempDir()
	text := "the quick brown fox jumps over the lazy dog and runs through the wide green wood until night falls"
	path, against := filepath.Join(dir, "raw.jsonl"), filepath.Join(dir, "test.jsonl")
	writeJSONL(t, path, pair{Query: "a", Positive: text}, pair{Query: "a", Positive: text}, pair{Query: "b", Positive: text + " again"}, pair{Query: "c", Positive: "something else"})
	writeJSONL(t, against, pair{Query: "d", Positive: "something else"})
	c := Config{Input: []Input{{Path: []string{path}, Query: "query", Positive: "positive"}}, Output: Output{Dir: filepath.Join(dir, "out")}}
	mustRun(t, c)
	if written := readPairs(t, c.Output.Dir, "train"); len(written) != 4 || written[1].Positive != text {
		t.Errorf("%v", written)
	}
	c.Output.Dir = filepath.Join(dir, "again")
	c.Filter.Query.Max, c.Dedupe.Near.Column, c.Decontaminate.Against = 1, "positive", []Against{{Path: []string{against}, Columns: []string{"positive"}}}
	mustRun(t, c)
	if written := readPairs(t, c.Output.Dir, "train"); len(written) != 2 || written[1].Query != "a" { // two rows of one text are for Exact to say
		t.Errorf("%v", written)
	}
}

// TestColumnNames: of two columns of one name it is said what they are, and what helps.
func TestColumnNames(t *testing.T) {
	for _, c := range []struct {
		change func(*Config)
		want   string
	}{
		{func(c *Config) {
			c.Input[0].Scores = []string{"pos_scores", "source"}
			c.Input[1].Scores = []string{"a", "b"}
		}, `"source": of several inputs a column source says which one a row is of`},
		{func(c *Config) { c.Input = c.Input[:1]; c.Input[0].Scores = []string{"pos_scores", "source"} }, ""},
		{func(c *Config) { c.Input[0].Query, c.Input[1].Query = "source", "q" }, `"source": of several inputs`},
		{func(c *Config) { c.Input = c.Input[:1]; c.Input[0].Scores = []string{"s", "s"} }, ""}, // written as one, of lists
		{func(c *Config) { c.Input = c.Input[:1]; c.Input[0].Scores = []string{"p"} }, `"p": label, weight and scores are written under their columns' names`},
		{func(c *Config) { c.Input = c.Input[:1]; c.Input[0].Label = "q" + dataset.HashSuffix }, `"q` + dataset.HashSuffix + `": prep writes a column so called beside the texts`},
		{func(c *Config) { c.Input = c.Input[:1]; c.Input[0].Query, c.Input[0].Positive = "{title}", "query" }, `"query": a template of one column`},
	} {
		d := Default()
		d.Input, d.Output.Dir = []Input{{Name: "a", Path: []string{"x"}, Query: "q", Positive: "p"}, {Name: "b", Path: []string{"y"}, Query: "q", Positive: "p"}}, "out"
		c.change(&d)
		if got := fmt.Sprint(d.Check()); c.want == "" && got != "[]" || c.want != "" && !strings.HasPrefix(got, "[input[0]: two columns would be written under the name "+c.want) {
			t.Errorf("%s, want %q", got, c.want)
		}
	}
}

// What is written of templates is called by its role.
func TestNamesOfTemplates(t *testing.T) {
	c := Config{Input: []Input{{Query: "{a}", Positive: "b: {b}", Negatives: []string{"{c}", "d", "{e}"}}}}
	if got, want := c.columnNames(), []string{"query", "positive", "negative_1", "d", "negative_3"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestCompletes: defaults stand in for what is left out, not for what is said.
func TestCompletes(t *testing.T) {
	c := bare(t, "x.jsonl")
	c.Filter.Unit, c.Decontaminate.Words, c.Mix, c.Dedupe.Near = "characters", 5, Mix{"balanced", 2}, Near{"row", 0.7, 2, 7, 3}
	want := fmt.Sprint(c.Filter, c.Decontaminate, c.Mix, c.Dedupe)
	if found := c.Check(); len(found) > 0 {
		t.Error(found)
	}
	if got := fmt.Sprint(c.Filter, c.Decontaminate, c.Mix, c.Dedupe); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestChecks: what a configuration lacks, or has that can't be, is told with its key.
func TestChecks(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"input: is missing":                                               func(c *Config) { c.Input = nil },
		"input[0].query: is missing":                                      func(c *Config) { c.Input[0].Query = "" },
		"input[0].share: is 0: with mix: {kind: weighted} every":          func(c *Config) { c.Mix.Kind = "weighted" },
		"output.dir: is \"s3://bucket/x\": output is written to a folder": func(c *Config) { c.Output.Dir = "s3://bucket/x" },
		"output.shards: is -1":                                            func(c *Config) { c.Output.Shards = -1 },
		"samples: is -1":                                                  func(c *Config) { c.Samples = -1 },
		"max is -1, want at least 0":                                      func(c *Config) { c.Filter.Query.Max = -1 },
		"decontaminate.against[1]: needs path and columns": func(c *Config) {
			c.Decontaminate.Against = []Against{{Path: []string{"x"}, Columns: []string{"text"}}, {Path: []string{"x"}}}
		},
		"decontaminate.against[0]: needs path and columns": func(c *Config) { c.Decontaminate.Against = []Against{{Columns: []string{"text"}}} },
		"decontaminate.words: is 4097, want 1 to 4096":     func(c *Config) { c.Decontaminate.Words = 4097 },
		"shingles of 4097 words":                           func(c *Config) { c.Dedupe.Near = Near{Column: "query", Shingle: 4097} },
		"4611686018427387904 bands of 4 rows":              func(c *Config) { c.Dedupe.Near = Near{Column: "query", Bands: 1 << 62, Rows: 4} },
		"decontaminate.words: is -1":                       func(c *Config) { c.Decontaminate.Words = -1 },
		"filter.script.name: \"\" is no script":            func(c *Config) { c.Filter.Script.Share = 0.5 },
		"filter.script.share: is 0, want a share above 0":  func(c *Config) { c.Filter.Script.Name = "Latin" },
		"split.dev: is 1":                                  func(c *Config) { c.Split.Dev = 1 },
		"split.beir: needs split.dev above 0":              func(c *Config) { c.Split.BEIR = true },
		"a positive and no label": func(c *Config) {
			c.Split, c.Input[0].Label = Split{Dev: 0.5, BEIR: true}, "label"
		},
		"input[1]: has other roles than input[0]: label (1 column, there none), weight (1 column, there none)": func(c *Config) {
			c.Input = append(c.Input, Input{Name: "b", Path: []string{"x"}, Query: "q", Positive: "p", Label: "l", Weight: "w"})
		},
		"input[1]: has other roles than input[0]: scores (1 column, there none)": func(c *Config) {
			c.Input = append(c.Input, Input{Name: "b", Path: []string{"x"}, Query: "q", Positive: "p", Scores: []string{"s"}})
		},
	} {
		c := bare(t, "x.jsonl")
		change(&c)
		if got := fmt.Sprint(c.Check()); !strings.Contains(got, want) {
			t.Errorf("%s, want %q", got, want)
		}
	}
	if c := bare(t, "x.jsonl"); len(c.Check()) > 0 {
		t.Error(c.Check())
	}
}
