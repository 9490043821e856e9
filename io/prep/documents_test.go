package prep

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"contraflow/io/dataset"
	"contraflow/tokenize"
)

// labeled is a row as rerankers train on.
type labeled struct {
	Query  string    `json:"query"`
	Docs   []string  `json:"docs"`
	Labels []float32 `json:"labels"`
}

// writeRows writes rows of any kind as JSON lines.
func writeRows[T any](t *testing.T, rows ...T) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "in.jsonl")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, r := range rows {
		if err := json.NewEncoder(f).Encode(r); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

// readLabeled reads rows of documents back as training reads them.
func readLabeled(t *testing.T, dir string) (rows []labeled) {
	t.Helper()
	d, err := dataset.Open(t.Context(), dataset.Source{Paths: []string{filepath.Join(dir, "train-*.parquet")}, Query: "query", Documents: "docs", Scores: []string{"labels"}, InOrder: true})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	ids := make([]int64, d.Rows())
	for i := range ids {
		ids[i] = int64(i)
	}
	examples, err := d.NewReader(dataset.ReaderConfig{}).Read(t.Context(), 0, ids)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range examples {
		rows = append(rows, labeled{e.Texts[0], e.Texts[1:], e.Scores})
	}
	return rows
}

// Rows of documents keep their documents' order and labels; a row goes if any of its documents does not pass, whichever it is.
func TestDocuments(t *testing.T) {
	eval := writeRows(t, map[string]string{"text": "quick brown fox jumps"})
	long := strings.Repeat("word ", 30)
	in := []labeled{
		{"first query", []string{"not the  one", "the very one", "nor this one"}, []float32{0, 3, 1}},
		{"second query", []string{"a document alone"}, []float32{1}},
		{"third query", []string{"a good document", "over the quick brown fox jumps a dog"}, []float32{1, 0}}, // contaminated
		{"fourth query", []string{"a good document", "another good one", "short"}, []float32{1, 0, 0}},        // too short
		{"fifth query", []string{long, "a good document"}, []float32{1, 0}},                                   // too long
		{"first query", []string{"not the one", "the very one", "nor this one"}, []float32{0, 3, 1}},          // normalized, the first row
		{"first query", []string{"not the one", "the very one", "another one here"}, []float32{0, 3, 1}},      // of another last document
		{"sixth query", []string{"a good document", "another good one"}, []float32{1}},                        // a label short
		{"seventh query", []string{}, []float32{}},
	}
	c := bare(t, writeRows(t, in...))
	c.Input = []Input{{Path: c.Input[0].Path, Query: "query", Documents: "docs", Scores: []string{"labels"}}}
	c.Normalize.Whitespace, c.Dedupe.Exact, c.Filter.Document = true, "row", Range{2, 20}
	c.Decontaminate = Decontaminate{Against: []Against{{[]string{eval}, []string{"text"}}}, Words: 4}
	s := mustRun(t, c)
	if got, want := counts(s), map[string]int64{Unusable: 2, LengthRule: 2, Contaminated: 1, Duplicate: 1}; !reflect.DeepEqual(got, want) {
		t.Errorf("dropped %v, want %v", got, want)
	}
	want := []labeled{in[0], in[1], in[6]}
	want[0].Docs = in[5].Docs
	if got := readLabeled(t, c.Output.Dir); !reflect.DeepEqual(got, want) {
		t.Errorf("left are\n%v, want\n%v", got, want)
	}
	if why := s.Rules[LengthRule].Samples[0].Why; why != `column "docs": 1 words` {
		t.Errorf("the sample of a short document says %q", why)
	}
}

// With a tokenizer lengths are in tokens, of whole texts, and no ids are written that nothing would read.
func TestDocumentsWithTokens(t *testing.T) {
	in := labeled{"query here", []string{"one two three four five six seven", "one"}, []float32{1, 0}}
	c := bare(t, writeRows(t, in, labeled{"a", []string{"one two"}, []float32{1}}))
	c.Input = []Input{{Path: c.Input[0].Path, Query: "query", Documents: "docs", Scores: []string{"labels"}}}
	c.Tokenize = Tokenize{Model: tinyTokenizer(t), MaxLength: Lengths{Query: 8, Document: 4}}
	tok, err := tokenize.Load(c.Tokenize.Model)
	if err != nil {
		t.Fatal(err)
	}
	ids := tok.Encode(in.Docs[0], 0)
	if len(ids) <= 4 {
		t.Fatalf("%d tokens, too few to cut", len(ids))
	}
	c.Filter.Unit, c.Filter.Query = "tokens", Range{2, 0}
	s := mustRun(t, c)
	if got := readLabeled(t, c.Output.Dir); !reflect.DeepEqual(got, []labeled{in}) {
		t.Errorf("left are %v", got)
	}
	if h := s.Lengths["docs"]; h.Max != len(ids) || s.Cut() != 0 {
		t.Errorf("the longest document has %d tokens, want %d; %d cut, want none", h.Max, len(ids), s.Cut())
	}
	info, err := dataset.PreparedTokens(t.Context(), []string{c.Output.Dir + "/train-*.parquet"})
	if err != nil || info != nil {
		t.Errorf("token ids are said to be there: %v, %v", info, err)
	}
	table, err := dataset.OpenTable(t.Context(), []string{c.Output.Dir + "/train-*.parquet"})
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	if got, want := fmt.Sprint(table.Columns()), "[query docs labels query"+dataset.HashSuffix+" docs"+dataset.HashSuffix+"]"; got != want {
		t.Errorf("columns %s, want %s", got, want)
	}
}

func TestDocumentsCheck(t *testing.T) {
	c := bare(t, "x")
	c.Input[0] = Input{Path: []string{"x"}, Query: "query", Positive: "p", Negatives: []string{"n"}, Label: "l", Documents: "{a} {b}"}
	c.Dedupe.Exact, c.Split = "positive", Split{Dev: 0.5, BEIR: true}
	said := fmt.Sprint(c.Check())
	for _, want := range []string{
		"input[0].positive: is among the documents already: input[0].documents names", "input[0].negatives: are among", "input[0].label: is for pairs: of documents, scores: [l] names",
		`input[0].documents: is a template, "{a} {b}"`,
	} {
		if !strings.Contains(said, want) {
			t.Errorf("%s\nwant %q", said, want)
		}
	}
	c.Input = []Input{{Path: []string{"x"}, Query: "q", Documents: "d"}, {Path: []string{"y"}, Query: "q", Positive: "p"}}
	said = fmt.Sprint(c.Check())
	for _, want := range []string{`dedupe.exact: is "positive", want one of row, query, none`, "split.beir: needs split.dev above 0 and inputs with a positive", "input[1]: has other roles than input[0]: positive (1 column, there none), documents (none, there 1 column)"} {
		if !strings.Contains(said, want) {
			t.Errorf("%s\nwant %q", said, want)
		}
	}
}
