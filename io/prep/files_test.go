package prep

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A row that another rule has dropped is not left out to balance the inputs besides, and each row has one rule.
func TestMixOfDropped(t *testing.T) {
	dir := t.TempDir()
	var some, few []pair
	for i := range 300 {
		p := pair{Query: fmt.Sprint("query ", i), Positive: fmt.Sprint("document ", i)}
		if i%3 == 0 {
			p.Positive = "short"
		}
		if some = append(some, p); i < 50 {
			few = append(few, pair{Query: fmt.Sprint("other query ", i), Positive: fmt.Sprint("other document ", i)})
		}
	}
	writeJSONL(t, filepath.Join(dir, "a.jsonl"), some...)
	writeJSONL(t, filepath.Join(dir, "b.jsonl"), few...)
	c := bare(t, filepath.Join(dir, "a.jsonl"))
	c.Input = append(c.Input, Input{Name: "b", Path: []string{filepath.Join(dir, "b.jsonl")}, Query: "query", Positive: "positive"})
	c.Filter.Document, c.Mix.Kind = Range{Min: 2}, "balanced"
	s := mustRun(t, c)
	if got, a := counts(s), s.Inputs[0]; got[LengthRule] != 100 || got[Mixing]+a.Train != 200 || a.Train < 20 || a.Train > 80 || s.Inputs[1].Train != 50 {
		t.Errorf("dropped %v, %+v", got, s.Inputs)
	}
}

// Inputs are balanced by the rows that are left of each, whatever has dropped the others.
func TestMixOfWhatIsLeft(t *testing.T) {
	dir := t.TempDir()
	var some, few []pair
	for i := range 20 {
		text := fmt.Sprintf("%d %d %d %d %d %d %d %d %d %d %d %d", i, i+100, i+200, i+300, i+400, i+500, i+600, i+700, i+800, i+900, i+1000, i+1100)
		p := pair{Query: fmt.Sprint("query ", i), Positive: text}
		some = append(some, p, p, pair{Query: p.Query, Positive: "short"}, pair{Query: fmt.Sprint("again ", i), Positive: text + " more"})
		few = append(few, pair{Query: fmt.Sprint("other query ", i), Positive: strings.ReplaceAll(text, " ", " x")})
	}
	writeJSONL(t, filepath.Join(dir, "a.jsonl"), some...)
	writeJSONL(t, filepath.Join(dir, "b.jsonl"), few...)
	c := bare(t, filepath.Join(dir, "a.jsonl"))
	c.Input = append(c.Input, Input{Name: "b", Path: []string{filepath.Join(dir, "b.jsonl")}, Query: "query", Positive: "positive"})
	c.Filter.Document, c.Mix.Kind, c.Dedupe.Exact, c.Dedupe.Near.Column = Range{Min: 2}, "balanced", "row", "positive"
	s := mustRun(t, c)
	if got, want := fmt.Sprint(counts(s), s.Inputs[0].Train, s.Inputs[1].Train), fmt.Sprint(map[string]int64{LengthRule: 20, Duplicate: 20, NearDuplicate: 20}, 20, 20); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// An output that takes another's place leaves nothing of it: shards, a development part or a task that are not its own.
func TestReplacesAll(t *testing.T) {
	c, _ := corpus(t, 200)
	c.Split = Split{Dev: 0.3, BEIR: true}
	mustRun(t, c)
	c.Split, c.Input[0].Path = Split{}, []string{strings.Replace(c.Input[0].Path[0], "*.*", "b.jsonl", 1)} // one block, whatever is asked for
	if _, err := Run(t.Context(), c, Options{Overwrite: true}); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(c.Output.Dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range left {
		names = append(names, e.Name())
	}
	if want := []string{"README.md", "_SUCCESS", "card.json", "train-00000-of-00001.parquet"}; !slices.Equal(names, want) {
		t.Errorf("%q are there, want %q", names, want)
	}
}

// A pair that is there twice is judged once.
func TestJudgedOnce(t *testing.T) {
	in := filepath.Join(t.TempDir(), "in.jsonl")
	p := pair{Query: "a query", Positive: "a document"}
	writeJSONL(t, in, p, p, pair{Query: "a query", Positive: "another"}, p)
	c := bare(t, in)
	c.Split = Split{Dev: 0.999, BEIR: true}
	s := mustRun(t, c)
	b, err := os.ReadFile(filepath.Join(c.Output.Dir, "beir", "qrels", "test.tsv"))
	if err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(string(b), "\n"); lines != 3 || s.BEIR.Judgements != 2 {
		t.Errorf("%d judgements are said, of\n%s", s.BEIR.Judgements, b)
	}
}

// Of many files, which the first pass reads some at a time, each row is compared with each other once, and it is told how far that is.
func TestManyFiles(t *testing.T) {
	const n = 40
	dir := t.TempDir()
	words := strings.Fields("a text of some ten words that differs in one of")
	for i := range n {
		rows := []pair{{Query: fmt.Sprint("query ", i), Positive: fmt.Sprintf("%d %d %d %d %d %d", i, i+100, i+200, i+300, i+400, i+500)}}
		switch i {
		case 2, 35:
			rows = append(rows, pair{Query: "the same", Positive: "in two files"})
		case 17, 39:
			rows = append(rows, pair{Query: "nearly the same", Positive: strings.Repeat(strings.Join(words, " ")+" ", 3) + fmt.Sprint(i)})
		}
		writeJSONL(t, filepath.Join(dir, fmt.Sprintf("%02d.jsonl", i)), rows...)
	}
	c := bare(t, filepath.Join(dir, "*.jsonl"))
	c.Dedupe = Dedupe{Exact: "row", Near: Near{Column: "positive"}}
	c.Output.Shards = 3
	reached, ends := map[string]int{}, map[string]int{}
	s, err := Run(t.Context(), c, Options{Threads: 3, Progress: func(stage string, done, total int) {
		if reached[stage]++; done != reached[stage] || ends[stage] != 0 && ends[stage] != total {
			t.Errorf("%s: %d of %d, want %d", stage, done, total, reached[stage])
		}
		ends[stage] = total
	}})
	if err != nil {
		t.Fatal(err)
	}
	if got := counts(s); got[Duplicate] != 1 || got[NearDuplicate] != 1 || len(got) != 2 || s.Inputs[0].Train != n+2 {
		t.Fatalf("dropped %v, %+v", got, s.Inputs)
	}
	if d, near := s.Rules[Duplicate].Samples[0], s.Rules[NearDuplicate].Samples[0]; d.Where+" "+d.Why != "35.jsonl:2 repeats 02.jsonl:2" || near.Where+" "+near.Why != "39.jsonl:2 its positive is nearly that of 17.jsonl:2" {
		t.Errorf("%+v, %+v", d, near)
	}
	if fmt.Sprint(reached) != fmt.Sprint(ends) || reached["read"] != 3 || reached["write"] != 3 || reached["compare"] == 0 {
		t.Errorf("progress of %v, to %v", reached, ends)
	}
}

// Rows have the order and a card the places that they have from any folder, however the inputs' files are named from it.
func TestNamedFromAnywhere(t *testing.T) {
	top := t.TempDir()
	here := filepath.Join(top, "m")
	for _, dir := range []string{"a", "m/n", "z"} {
		if err := os.MkdirAll(filepath.Join(top, dir), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	for i, file := range []string{"z/x.jsonl", "m/n/x.jsonl", "a/x.jsonl"} {
		writeJSONL(t, filepath.Join(top, file), pair{Query: "a query", Positive: "a document"}, pair{Query: fmt.Sprint("query ", i), Positive: "another"})
	}
	cards := map[string][]string{}
	for name, paths := range map[string][]string{
		"relative": {"../z/x.jsonl", "n/*.jsonl", "../a/x.jsonl"}, "absolute": {top + "/z/x.jsonl", here + "/n/x.jsonl", top + "/a/x.jsonl"},
		"both": {top + "/z/x.jsonl", "n/x.jsonl", "../a/x.jsonl", here + "/n/x.jsonl"},
	} {
		t.Chdir(here)
		c := bare(t, paths...)
		c.Dedupe.Exact = "row"
		s := mustRun(t, c)
		var said []string
		for _, d := range s.Rules[Duplicate].Samples {
			said = append(said, d.Where+" "+d.Why)
		}
		for _, p := range readPairs(t, c.Output.Dir, "train") {
			said = append(said, p.Query)
		}
		cards[name] = said
	}
	want := []string{"m/n/x.jsonl:1 repeats a/x.jsonl:1", "z/x.jsonl:1 repeats a/x.jsonl:1", "a query", "query 2", "query 1", "query 0"}
	for name, said := range cards {
		if !slices.Equal(said, want) {
			t.Errorf("%s: %q, want %q", name, said, want)
		}
	}
}
