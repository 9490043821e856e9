package prep

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"contraflow/io/dataset"
	"contraflow/tokenize"
)

// Config says what is prepared and how; PREP.yaml is this type. Zero values leave a step out, or where one can't be without them are as in Default.
type Config struct {
	Input         []Input       `yaml:"input"`
	Output        Output        `yaml:"output"`
	Normalize     Normalize     `yaml:"normalize"`
	Filter        Filter        `yaml:"filter"`
	Dedupe        Dedupe        `yaml:"dedupe"`
	Decontaminate Decontaminate `yaml:"decontaminate"`
	Split         Split         `yaml:"split"`
	Mix           Mix           `yaml:"mix"`
	Tokenize      Tokenize      `yaml:"tokenize"`
	Seed          uint64        `yaml:"seed"`
	Samples       int           `yaml:"samples"` // dropped rows that the card shows, for each rule
}

// Input is a set of files with the same columns. All inputs have the same roles; the columns that are written have the first one's names.
type Input struct {
	Name      string   `yaml:"name,omitempty"` // in the column source and in the card; "": input, input-2, ...
	Path      []string `yaml:"path" path:"~"`  // parquet, JSON lines or CSV: files and globs
	Query     string   `yaml:"query"`
	Positive  string   `yaml:"positive,omitempty"` // "": rows are single texts
	Negatives []string `yaml:"negatives,omitempty"`
	Documents string   `yaml:"documents,omitempty"` // instead of both: a column of lists, each all of a row's documents in the order of its scores
	Label     string   `yaml:"label,omitempty"`
	Weight    string   `yaml:"weight,omitempty"`
	Scores    []string `yaml:"scores,omitempty"`
	Share     float64  `yaml:"share"` // with mix: {kind: weighted}
}

// Output is a folder of shards.
type Output struct {
	Dir    string `yaml:"dir" path:"~"`
	Shards int    `yaml:"shards"` // of the training part, and as many of the dev part; 0: one for every 131,072 rows of input

	Run string `yaml:"-" json:",omitempty"` // names the run's folder in Temporary; Begin sets it
}

// Normalize changes texts.
type Normalize struct {
	Unicode    string `yaml:"unicode,omitempty"` // nfc, nfkc, nfd or nfkd; "": as they are
	Whitespace bool   `yaml:"whitespace"`        // runs of white space become one space (or line break), none at the ends, no control characters
	HTML       bool   `yaml:"html"`              // tags go, entities become characters
}

// Filter drops rows of which a text does not pass.
type Filter struct {
	Unit     string   `yaml:"unit"` // of lengths: tokens, words (also "") or characters
	Query    Range    `yaml:"query"`
	Document Range    `yaml:"document"` // positives, negatives and documents
	Script   Script   `yaml:"script"`
	Require  []string `yaml:"require,omitempty"` // regular expressions that every text must match
	Reject   []string `yaml:"reject,omitempty"`  // and that none may
}

// Range is inclusive; a Max of 0 is no limit.
type Range struct {
	Min int `yaml:"min"`
	Max int `yaml:"max"`
}

func (r Range) holds(n int) bool { return n >= r.Min && (r.Max == 0 || n <= r.Max) }

// wrong says why no length is in a range.
func (r Range) wrong() string {
	switch {
	case r.Min < 0:
		return fmt.Sprintf("min is %d, want at least 0", r.Min)
	case r.Max < 0:
		return fmt.Sprintf("max is %d, want at least 0, which is no limit", r.Max)
	}
	return fmt.Sprintf("min is %d, and max is less, %d", r.Min, r.Max)
}

// Script asks that a share of each text's letters be of a script, by its name in Unicode: Latin, Cyrillic, Han.
type Script struct {
	Name  string  `yaml:"name"`
	Share float64 `yaml:"share"`
}

// Dedupe keeps the first of rows that are the same, by Exact, or nearly, by Near. Texts that are equal are no near-duplicates: with Near of positives the
// first of similar documents stays, with all its queries, and Exact of positives leaves it one.
type Dedupe struct {
	Exact string `yaml:"exact,omitempty"` // what must not repeat: row, query or positive
	Near  Near   `yaml:"near"`
}

// Near finds near-duplicates with MinHash (Broder, "On the resemblance and containment of documents", 1997) and locality-sensitive
// hashing: Bands x Rows minima per text, and rows that agree in a whole band are compared. Without a Column the others are as they are in Default, or
// all 0.
type Near struct {
	Column    string  `yaml:"column,omitempty"` // query, positive or row; "": no near-dedupe
	Threshold float64 `yaml:"threshold"`        // Jaccard similarity of shingles from which rows are duplicates; 0: 0.8
	Shingle   int     `yaml:"shingle"`          // words; 0: 3
	Bands     int     `yaml:"bands"`            // 0: 20
	Rows      int     `yaml:"rows"`             // 0: 6
}

// Decontaminate drops rows that share a run of Words words with an evaluation set, or are a shorter text of it as a whole.
type Decontaminate struct {
	Against []Against `yaml:"against,omitempty"`
	Words   int       `yaml:"words"` // 0: 13
}

// Against is a table of an evaluation set, and its columns of texts.
type Against struct {
	Path    []string `yaml:"path" path:"~"`
	Columns []string `yaml:"columns"`
}

// Split puts a share of the queries aside: equal queries go together.
type Split struct {
	Dev  float64 `yaml:"dev"`
	BEIR bool    `yaml:"beir"` // write that share also as a retrieval task in BEIR's layout, in the folder beir, with all rows' documents
}

// Mix balances inputs by dropping rows (and repeating those for training, up to Repeat times, if that is above 1), after everything else.
type Mix struct {
	Kind   string  `yaml:"kind"`   // proportional (also ""): as they are; balanced: equal; weighted: by each input's share
	Repeat float64 `yaml:"repeat"` // how often a row may occur at most, on average; 0: once
}

// Tokenize adds ids, so that training needs no tokenizer's time. Lengths and prompts are to be those that it trains with (in Go stages.TextOf's), or it refuses
// the ids. Run does not know how many positions the model has: contraflow-prep finds longer lengths, and otherwise training does.
type Tokenize struct {
	Model     string  `yaml:"model,omitempty" path:"~"` // a folder, or a hub id that Dir says the place of
	Dir       string  `yaml:"-" json:",omitempty"`      // where the model is on this machine; "": Model
	Bare      bool    `yaml:"-" json:",omitempty"`      // texts get no special tokens: the model is static embeddings
	MaxLength Lengths `yaml:"max_length"`
	Prompts   Prompts `yaml:"prompts"`
}

// Lengths are in tokens, special ones included. 0, for static embeddings, leaves texts whole.
type Lengths struct {
	Query    int `yaml:"query"`
	Document int `yaml:"document"`
}

// Prompts are put before texts when they become ids.
type Prompts struct {
	Query    string `yaml:"query,omitempty"`
	Document string `yaml:"document,omitempty"`
}

// Default is a configuration that cleans and keeps everything else.
func Default() Config {
	return Config{
		Normalize:     Normalize{Unicode: "nfc", Whitespace: true},
		Filter:        Filter{Unit: "words"},
		Dedupe:        Dedupe{Exact: "row", Near: Near{Threshold: 0.8, Shingle: 3, Bands: 20, Rows: 6}},
		Decontaminate: Decontaminate{Words: 13},
		Mix:           Mix{Kind: "proportional", Repeat: 1},
		Tokenize:      Tokenize{MaxLength: Lengths{Query: 64, Document: 256}},
		Seed:          42, Samples: 5,
	}
}

// A Problem is a mistake in a configuration, with its key.
type Problem struct{ Key, Text string }

func (p Problem) Error() string { return p.Key + ": " + p.Text }

// complete puts defaults in the places of zero values that leave nothing out.
func (c *Config) complete() {
	d, n := Default(), &c.Dedupe.Near
	c.Filter.Unit = cmp.Or(c.Filter.Unit, d.Filter.Unit)
	c.Decontaminate.Words = cmp.Or(c.Decontaminate.Words, d.Decontaminate.Words)
	c.Mix.Kind, c.Mix.Repeat = cmp.Or(c.Mix.Kind, d.Mix.Kind), cmp.Or(c.Mix.Repeat, d.Mix.Repeat)
	n.Threshold, n.Shingle = cmp.Or(n.Threshold, d.Dedupe.Near.Threshold), cmp.Or(n.Shingle, d.Dedupe.Near.Shingle)
	n.Bands, n.Rows = cmp.Or(n.Bands, d.Dedupe.Near.Bands), cmp.Or(n.Rows, d.Dedupe.Near.Rows)
}

// most is how many words a shingle and a run that is looked for may have, which are kept while a text is read, and how many minima there are of each.
const most = 4096

// Check returns every mistake that can be seen without opening files. It names inputs that have no name, and completes what Default has.
func (c *Config) Check() (found []Problem) {
	c.complete()
	bad := func(key, format string, args ...any) {
		found = append(found, Problem{key, fmt.Sprintf(format, args...)})
	}
	oneOf := func(key, got string, words ...string) {
		if !slices.Contains(words, got) {
			bad(key, "is %q, want one of %s", got, strings.Join(words, ", "))
		}
	}
	if len(c.Input) == 0 {
		bad("input", "is missing: which files to read, as in input: [{path: \"raw/*.parquet\", query: query, positive: positive}]")
	}
	names := map[string]bool{}
	for i := range c.Input {
		in, key := &c.Input[i], fmt.Sprintf("input[%d]", i)
		if in.Name == "" {
			in.Name = "input"
			if i > 0 {
				in.Name = fmt.Sprintf("input-%d", i+1)
			}
		}
		if names[in.Name] {
			bad(key+".name", "%q is another input's name", in.Name)
		}
		names[in.Name] = true
		if len(in.Path) == 0 {
			bad(key+".path", "is missing")
		}
		if in.Query == "" {
			bad(key+".query", "is missing: the column of queries, or of texts")
		}
		in.checkDocuments(key, bad)
		if c.Mix.Kind == "weighted" && !(in.Share > 0) {
			bad(key+".share", "is %v: with mix: {kind: weighted} every input needs a share above 0", in.Share)
		}
		if roles := in.unlike(&c.Input[0]); len(roles) > 0 {
			bad(key, "has other roles than input[0]: %s; all inputs need the same of positive, negatives, documents, label, weight and scores", strings.Join(roles, ", "))
		}
	}
	if len(c.Input) > 0 {
		written, numbers, ours := map[string]bool{}, append(c.scoreColumns(), c.Input[0].Label, c.Input[0].Weight), map[string]bool{}
		if len(c.Input) > 1 {
			ours["source"] = true
		}
		for _, name := range c.columnNames() {
			ours[name+dataset.HashSuffix], ours[name+dataset.IDsSuffix], ours[name+dataset.CountsSuffix] = true, true, true
		}
		for _, col := range c.columns(make([]bool, len(c.Input[0].columns()))) {
			why := "a template of one column, such as query: \"{title}\", is written as query, positive or negative_1"
			switch {
			case col.Name == "source" && ours["source"]:
				why = "of several inputs a column source says which one a row is of. Give the input's column another name in its files"
			case ours[col.Name]:
				why = "prep writes a column so called beside the texts. Give the input's column another name in its files"
			case slices.Contains(numbers, col.Name):
				why = "label, weight and scores are written under their columns' names. Let each name a column of its own; a template of one column, such as query: \"{title}\", is written as query, positive or negative_1"
			}
			if written[col.Name] {
				bad("input[0]", "two columns would be written under the name %q: %s", col.Name, why)
			}
			written[col.Name] = true
		}
	}
	switch dir := c.Output.Dir; {
	case dir == "":
		bad("output.dir", "is missing: the folder to write")
	case dataset.Remote(dir):
		bad("output.dir", "is %q: output is written to a folder of a file system, one that all workers have mounted where there are several; from there another program takes it to a URL", dir)
	}
	if c.Output.Shards < 0 {
		bad("output.shards", "is %d, want at least 0", c.Output.Shards)
	}
	oneOf("normalize.unicode", cmp.Or(c.Normalize.Unicode, "nfc"), "nfc", "nfkc", "nfd", "nfkd")
	oneOf("filter.unit", c.Filter.Unit, "tokens", "words", "characters")
	if c.Filter.Unit == "tokens" && c.Tokenize.Model == "" {
		bad("filter.unit", "is tokens, which takes tokenize.model")
	}
	lengths := func(key string, r Range) {
		if r.Min < 0 || r.Max < 0 || r.Max > 0 && r.Max < r.Min {
			bad(key, "%s", r.wrong())
		}
	}
	lengths("filter.query", c.Filter.Query)
	lengths("filter.document", c.Filter.Document)
	if s := c.Filter.Script; s.Name != "" || s.Share != 0 {
		if _, ok := scripts(s.Name); !ok {
			bad("filter.script.name", "%q is no script of Unicode, such as Latin, Cyrillic or Han", s.Name)
		}
		if !(s.Share > 0 && s.Share <= 1) {
			bad("filter.script.share", "is %v, want a share above 0 and at most 1", s.Share)
		}
	}
	expressions := func(key string, list []string) {
		for i, e := range list {
			if _, err := regexp.Compile(e); err != nil {
				bad(fmt.Sprintf("%s[%d]", key, i), "%v", err)
			}
		}
	}
	expressions("filter.require", c.Filter.Require)
	expressions("filter.reject", c.Filter.Reject)
	texts := []string{"row", "query", "positive"}
	if len(c.Input) > 0 && c.Input[0].Positive == "" { // of documents as well: scores say which are positives
		texts = texts[:2]
	}
	oneOf("dedupe.exact", cmp.Or(c.Dedupe.Exact, "row"), append(texts, "none")...)
	if n := c.Dedupe.Near; n.Column != "" {
		oneOf("dedupe.near.column", n.Column, texts...)
		if !(n.Threshold > 0 && n.Threshold <= 1) {
			bad("dedupe.near.threshold", "is %v, want a Jaccard similarity above 0 and at most 1", n.Threshold)
		}
		if n.Shingle < 1 || n.Shingle > most || n.Bands < 1 || n.Rows < 1 || n.Bands > most/n.Rows {
			bad("dedupe.near", "shingles of %d words, %d bands of %d rows: want at least 1 of each, at most %d words and as many minima, bands x rows", n.Shingle, n.Bands, n.Rows, most)
		}
	} else if n != (Near{}) && n != Default().Dedupe.Near {
		found = append(found, NearWithoutColumn)
	}
	for i, a := range c.Decontaminate.Against {
		if len(a.Path) == 0 || len(a.Columns) == 0 {
			bad(fmt.Sprintf("decontaminate.against[%d]", i), "needs path and columns")
		}
	}
	if w := c.Decontaminate.Words; w < 1 || w > most {
		bad("decontaminate.words", "is %d, want 1 to %d", w, most)
	}
	if !(c.Split.Dev >= 0 && c.Split.Dev < 1) {
		bad("split.dev", "is %v, want a share of at least 0 and below 1", c.Split.Dev)
	}
	if c.Split.BEIR && (c.Split.Dev == 0 || len(c.Input) > 0 && (c.Input[0].Positive == "" || c.Input[0].Label != "")) {
		bad("split.beir", "needs split.dev above 0 and inputs with a positive and no label (of documents and labeled pairs, whose scores are of any scale, it can't tell which are relevant)")
	}
	oneOf("mix.kind", c.Mix.Kind, "proportional", "balanced", "weighted")
	if !(c.Mix.Repeat >= 1 && c.Mix.Repeat <= 1000) {
		bad("mix.repeat", "is %v, want 1 to 1000", c.Mix.Repeat)
	} else if c.Mix.Repeat > 1 && c.Mix.Kind == "proportional" {
		bad("mix.repeat", "is %v, and mix.kind: proportional leaves inputs as they are: balanced and weighted repeat rows", c.Mix.Repeat)
	}
	if m := c.Tokenize.MaxLength; c.Tokenize.Model != "" && (m.Query < 0 || m.Document < 0) {
		bad("tokenize.max_length", "is {query: %d, document: %d}, want at least 1, or for static embeddings 0, which leaves texts whole", m.Query, m.Document)
	}
	if c.Samples < 0 {
		bad("samples", "is %d, want at least 0", c.Samples)
	}
	return found
}

// NearWithoutColumn is what Check finds where dedupe.near says how texts are compared and not which.
var NearWithoutColumn = Problem{"dedupe.near.column", "is missing: which texts are compared, one of row, query, positive; without it none are"}

// valid is Check as an error.
func (c *Config) valid() error {
	for _, p := range c.Check() {
		return p
	}
	return nil
}

// columns are an input's columns of texts.
func (in *Input) columns() []string {
	names := []string{in.Query}
	if in.Positive != "" {
		names = append(names, in.Positive)
	}
	if in.Documents != "" {
		names = append(names, in.Documents)
	}
	return append(names, in.Negatives...)
}

// checkDocuments finds what does not go with documents.
func (in *Input) checkDocuments(key string, bad func(key, format string, args ...any)) {
	if in.Documents == "" {
		return
	}
	const already = "among the documents already: %s.documents names a column with all of a row's"
	if in.Positive != "" {
		bad(key+".positive", "is "+already, key)
	}
	if len(in.Negatives) > 0 {
		bad(key+".negatives", "are "+already, key)
	}
	if in.Label != "" {
		bad(key+".label", "is for pairs: of documents, scores: [%s] names the column with a label of each", in.Label)
	}
	if strings.ContainsAny(in.Documents, "{}") {
		bad(key+".documents", "is a template, %q: documents are one column, of lists", in.Documents)
	}
}

// writesIDs reports whether token ids are written beside the texts. Nothing reads those of documents: a reranker reads them with their query.
func (c *Config) writesIDs() bool { return c.Tokenize.Model != "" && c.Input[0].Documents == "" }

// unlike names the roles that an input has other columns of than the first one.
func (in *Input) unlike(first *Input) (roles []string) {
	count := func(n int) string {
		switch n {
		case 0:
			return "none"
		case 1:
			return "1 column"
		}
		return fmt.Sprintf("%d columns", n)
	}
	role := func(name string, here, there []string, some bool) {
		n, m := len(here), len(there)
		if some && n > 0 && m > 0 || n == m {
			return
		}
		roles = append(roles, fmt.Sprintf("%s (%s, there %s)", name, count(n), count(m)))
	}
	one := func(column string) []string {
		if column == "" {
			return nil
		}
		return []string{column}
	}
	role("positive", one(in.Positive), one(first.Positive), false)
	role("negatives", in.Negatives, first.Negatives, false)
	role("documents", one(in.Documents), one(first.Documents), false)
	role("label", one(in.Label), one(first.Label), false)
	role("weight", one(in.Weight), one(first.Weight), false)
	role("scores", in.Scores, first.Scores, true) // columns, or one of lists
	return roles
}

// source is how dataset sees an input.
func (in *Input) source() dataset.Source {
	return dataset.Source{
		Paths: in.Path, Query: in.Query, Positive: in.Positive, Negatives: in.Negatives, Documents: in.Documents, Label: in.Label, Weight: in.Weight, Scores: in.Scores, Raw: true,
	}
}

// JSON is the configuration as workers on other machines get it.
func (c Config) JSON() (string, error) {
	b, err := json.Marshal(c)
	return string(b), err
}

// ParseJSON is its inverse.
func ParseJSON(s string) (c Config, err error) {
	err = json.Unmarshal([]byte(s), &c)
	return c, err
}

// tokenizer loads tokenize.model; nil if there is none.
func (c *Config) tokenizer() (*tokenize.Tokenizer, error) {
	if c.Tokenize.Model == "" {
		return nil, nil
	}
	load := tokenize.Load
	if c.Tokenize.Bare {
		load = tokenize.LoadStatic
	}
	t, err := load(cmp.Or(c.Tokenize.Dir, c.Tokenize.Model))
	if err != nil {
		return nil, fmt.Errorf("tokenize.model: %w", err)
	}
	return t, nil
}
