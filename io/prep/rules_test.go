package prep

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/io/dataset"
	"contraflow/tokenize"
)

// TestContaminationIsOfNormalizedTexts: an evaluation set's texts are cleaned as the rows' are, so no spelling of the same characters hides one.
func TestContaminationIsOfNormalizedTexts(t *testing.T) {
	const row = "le caf\u00e9 du coin est ouvert"
	for _, text := range []string{row, "le caf&eacute; du coin est ouvert", "le <b>cafe\u0301</b> du coin est ouvert", "le cafe du coin est ouvert"} {
		eval := filepath.Join(t.TempDir(), "eval.jsonl")
		if err := os.WriteFile(eval, fmt.Appendf(nil, "{\"text\": %q}\n", text), 0o666); err != nil {
			t.Fatal(err)
		}
		c := bare(t, "x")
		c.Normalize = Normalize{Unicode: "nfc", Whitespace: true, HTML: true}
		c.Decontaminate = Decontaminate{Against: []Against{{[]string{eval}, []string{"text"}}}, Words: 6}
		rules, err := NewRules(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		r := &Row{Texts: [][]string{{"a query"}, {row}}}
		w := rules.NewWorker()
		w.Normalize(r)
		w.Filter(r)
		if want := strings.Contains(text, " cafe "); (r.Rule == "") != want || r.Rule != "" && r.Rule != Contaminated {
			t.Errorf("%q is dropped by %q for %q", row, r.Rule, text)
		}
	}
}

// TestContaminationOfAllSplits: a dataset that is named as a whole keeps the rows of all its splits out.
func TestContaminationOfAllSplits(t *testing.T) {
	const test = "these words are of a row to test with"
	dir := t.TempDir()
	dataset.RegisterScheme("whole", func(_ context.Context, _ string, splits dataset.Splits) (files []string, err error) {
		for name, text := range map[string]string{"train": "nothing else is said by what one trains on", "test": test} {
			file := filepath.Join(dir, name+".jsonl")
			if name == "train" || splits == dataset.All {
				files = append(files, file)
			}
			err = errors.Join(err, os.WriteFile(file, fmt.Appendf(nil, "{\"text\": %q}\n", text), 0o666))
		}
		return files, err
	})
	c := bare(t, "x")
	c.Decontaminate = Decontaminate{Against: []Against{{[]string{"whole://o/n"}, []string{"text"}}}, Words: 6}
	rules, err := NewRules(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	r := &Row{Texts: [][]string{{"a query"}, {test}}}
	if rules.NewWorker().Filter(r); r.Rule != Contaminated {
		t.Errorf("a row to test with is dropped by %q", r.Rule)
	}
}

// TestSeedMoves: which queries are put aside and which rows are repeated is the seed's to say, and independent between two seeds.
func TestSeedMoves(t *testing.T) {
	const n = 10000
	rules := func(seed uint64) *Rules {
		c := bare(t, "x")
		c.Seed, c.Split.Dev = seed, 0.5
		r, err := NewRules(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	a, b, again := rules(1), rules(2), rules(1)
	dev, copies := 0, 0
	for id := range int64(n) {
		query := fmt.Sprint("query ", id)
		if a.IsDev(query) != again.IsDev(query) || a.Copies(id, 1.5) != again.Copies(id, 1.5) {
			t.Fatalf("row %d: one seed says two things", id)
		}
		if a.IsDev(query) != b.IsDev(query) {
			dev++
		}
		if a.Copies(id, 1.5) != b.Copies(id, 1.5) {
			copies++
		}
	}
	for what, got := range map[string]int{"the split": dev, "the copies": copies} {
		if !(math.Abs(float64(got)-n/2) <= 5*math.Sqrt(n)/2) { // five standard deviations
			t.Errorf("of %d rows two seeds differ in %s of %d, want about half", n, what, got)
		}
	}
}

// TestTokenLimits: queries are cut at their own limit and documents at theirs.
func TestTokenLimits(t *testing.T) {
	in := filepath.Join(t.TempDir(), "in.jsonl")
	long := strings.Repeat("query of words ", 10)
	writeJSONL(t, in, pair{Query: long, Positive: long})
	c := bare(t, in)
	c.Tokenize = Tokenize{Model: tinyTokenizer(t), MaxLength: Lengths{Query: 4, Document: 12}}
	mustRun(t, c)
	tok, err := tokenize.Load(c.Tokenize.Model)
	if err != nil {
		t.Fatal(err)
	}
	d, err := dataset.Open(t.Context(), dataset.Source{Paths: []string{filepath.Join(c.Output.Dir, "*.parquet")}, Query: "query", Positive: "positive", Tokens: true})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	rows, err := d.NewReader(dataset.ReaderConfig{}).Read(t.Context(), 0, []int64{0})
	if err != nil {
		t.Fatal(err)
	}
	for k, limit := range []int{4, 12} {
		if got, want := rows[0].IDs[k], tok.Encode(long, limit); !slices.Equal(got, want) || len(got) != limit {
			t.Errorf("text %d: ids %v, want %v", k, got, want)
		}
	}
	if want := (dataset.TokenInfo{Tokenizer: tok.Hash(), Query: dataset.TokenRole{MaxLength: 4}, Document: dataset.TokenRole{MaxLength: 12}}); *d.Tokens() != want {
		t.Errorf("the file says %+v, want %+v", *d.Tokens(), want)
	}
}

// TestNothingLeftOfAText: a text of which normalizing leaves white space alone goes as an empty one does. Training would refuse it.
func TestNothingLeftOfAText(t *testing.T) {
	for text, n := range map[string]Normalize{"<p></p>": {HTML: true}, "\u00a0": {Unicode: "nfkc"}, "\u200b": {Whitespace: true}} {
		in := filepath.Join(t.TempDir(), "in.jsonl")
		writeJSONL(t, in, pair{Query: "a query", Positive: text}, pair{Query: text, Positive: "a document"}, pair{Query: "one", Positive: "that stays"})
		c := bare(t, in)
		c.Normalize = n
		s := mustRun(t, c)
		if r := s.Rules[Empty]; r == nil || r.Dropped != 2 || len(readPairs(t, c.Output.Dir, "train")) != 1 {
			t.Errorf("%q: %+v, want 2 rows dropped and one left", text, s.Rules)
		}
	}
}

// TestContaminationByEmptyTexts: an evaluation set may have texts without anything in them, as corpora do. They are no row's.
func TestContaminationByEmptyTexts(t *testing.T) {
	eval := filepath.Join(t.TempDir(), "eval.jsonl")
	if err := os.WriteFile(eval, []byte("{\"text\": \"\"}\n{\"text\": \" \"}\n{\"text\": \"words of a test\"}\n{\"text\": \"Alone!\"}\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	c := bare(t, "x")
	c.Decontaminate = Decontaminate{Against: []Against{{[]string{eval}, []string{"text"}}}, Words: 3}
	rules, err := NewRules(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{"--- !": "", "some words of a test": Contaminated, "other ones": "", "alone": Contaminated, "not alone": ""} {
		r := &Row{Texts: [][]string{{"a query"}, {text}}}
		if rules.NewWorker().Filter(r); r.Rule != want {
			t.Errorf("%q is dropped by %q, want %q", text, r.Rule, want)
		}
	}
}

// TestRatesAreWhole: where an input's rows are a whole multiple of another's, so are the rates, whatever the quotients are rounded to: each row occurs as often.
func TestRatesAreWhole(t *testing.T) {
	inputs := []Input{{Share: 0.7}, {Share: 0.7}}
	for n := range int64(1000) {
		for _, kind := range []string{"balanced", "weighted"} {
			if got := (Mix{Kind: kind, Repeat: 3}).Rates(inputs, []int64{n + 1, 3 * (n + 1)}); !slices.Equal(got, []float64{3, 1}) {
				t.Errorf("%s, %d rows and three times as many: rates %v", kind, n+1, got)
			}
		}
	}
}
