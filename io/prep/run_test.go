package prep

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"contraflow/io/dataset"
	"contraflow/tokenize"
)

type pair struct {
	Query    string   `json:"query"`
	Positive string   `json:"positive"`
	Negs     []string `json:"negs,omitempty"`
}

func writeJSONL(t testing.TB, path string, rows ...pair) {
	t.Helper()
	var b bytes.Buffer
	for _, r := range rows {
		js, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(append(js, '\n'))
	}
	if err := os.WriteFile(path, b.Bytes(), 0o666); err != nil {
		t.Fatal(err)
	}
}

// bare is a configuration that changes nothing.
func bare(t testing.TB, paths ...string) Config {
	c := Default()
	c.Normalize, c.Dedupe.Exact = Normalize{}, "none"
	c.Input = []Input{{Path: paths, Query: "query", Positive: "positive"}}
	c.Output.Dir = filepath.Join(t.TempDir(), "out")
	return c
}

func mustRun(t testing.TB, c Config) *Stats {
	t.Helper()
	s, err := Run(t.Context(), c, Options{Threads: 3})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// readPairs reads what a run wrote, part "train" or "dev".
func readPairs(t testing.TB, dir, part string) (rows []pair) {
	t.Helper()
	d, err := dataset.Open(t.Context(), dataset.Source{Paths: []string{filepath.Join(dir, part+"-*.parquet")}, Query: "query", Positive: "positive"})
	if errors.Is(err, dataset.ErrNoFiles) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for b := range d.Blocks() {
		block, err := d.ReadBlock(t.Context(), b)
		if err != nil {
			t.Fatal(err)
		}
		for i := range block.Rows {
			rows = append(rows, pair{Query: block.Texts(nil, i, 0)[0], Positive: block.Texts(nil, i, 1)[0]})
		}
	}
	return rows
}

func counts(s *Stats) map[string]int64 {
	m := map[string]int64{}
	for name, r := range s.Rules {
		m[name] = r.Dropped
	}
	return m
}

func TestRules(t *testing.T) {
	in := filepath.Join(t.TempDir(), "in.jsonl")
	lines := []string{
		`{"query": "<b>how</b>  to sort", "positive": "call the sort function with a list of things"}`,
		`{"query": "how to sort", "positive": "call the sort function with a list of things"}`, // equal once they are normalized
		`{"query": "how to sort", "positive": "another document for this very question"}`,
		`{"query": null, "positive": "a document"}`,
		`no json`,
		`{"query": "<p></p>", "positive": "a document of some words"}`,
		`{"query": "one", "positive": "too short"}`,
		`{"query": "как это", "positive": "совсем другой язык здесь"}`,
		`{"query": "see http", "positive": "visit http://spam.example for more of it"}`,
		`{"query": "evaluation", "positive": "text before the quick brown fox jumps text after"}`,
		`{"query": "The Evaluation Query!", "positive": "a document of some words"}`,
	}
	if err := os.WriteFile(in, []byte(strings.Join(lines, "\n")), 0o666); err != nil {
		t.Fatal(err)
	}
	eval := filepath.Join(t.TempDir(), "eval.jsonl")
	if err := os.WriteFile(eval, []byte("{\"title\": \"x\", \"text\": \"Quick, brown fox jumps\"}\n{\"title\": \"the evaluation query\", \"text\": \"x\"}\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	c := bare(t, in)
	c.Normalize = Normalize{Unicode: "nfc", Whitespace: true, HTML: true}
	c.Dedupe.Exact = "row"
	c.Filter.Document = Range{Min: 3}
	c.Filter.Script = Script{"Latin", 0.5}
	c.Filter.Reject = []string{`https?://`}
	c.Decontaminate = Decontaminate{Against: []Against{{[]string{eval}, []string{"text", "title"}}}, Words: 4}
	s := mustRun(t, c)
	want := map[string]int64{Unusable: 2, Empty: 1, LengthRule: 1, ScriptRule: 1, Reject: 1, Contaminated: 2, Duplicate: 1}
	if got := counts(s); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("dropped %v, want %v", got, want)
	}
	if got := readPairs(t, c.Output.Dir, "train"); len(got) != 2 || got[0].Query != "how to sort" || got[1].Positive != "another document for this very question" {
		t.Errorf("what stays: %q", got)
	}
	d := s.Rules[Duplicate].Samples[0]
	if d.Where != "in.jsonl:2" || d.Why != "repeats in.jsonl:1" || !strings.Contains(d.Text, "call the sort") {
		t.Errorf("sample %+v", d)
	}
	card, err := os.ReadFile(filepath.Join(c.Output.Dir, readme))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"\n| input | read | train | of these repeats | dev |\n|---|---|---|---|---|\n| input | 11 | 2 | 0 | 0 |\n", "\n| rule | rows dropped |\n|---|---|\n| unusable | 2 |\n", "\n- `in.jsonl:2`: repeats in.jsonl:1\n  \"how to sort\\ncall",
	} {
		if !strings.Contains(string(card), want) {
			t.Errorf("the card lacks %q:\n%s", want, card)
		}
	}
	if why := s.Rules[LengthRule].Samples[0].Why; why != `column "positive": 2 words` {
		t.Errorf("length: %q", why)
	}
	for _, name := range []string{Success, "README.md", "card.json", "train-00000-of-00001.parquet"} {
		if _, err := os.Stat(filepath.Join(c.Output.Dir, name)); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(filepath.Join(c.Output.Dir, Temporary)); !errors.Is(err, os.ErrNotExist) {
		t.Error("the temporary folder is still there")
	}
}

// Where every row is dropped that is an error, with each rule's count and first row, and an earlier output stays as it is.
func TestNothingLeft(t *testing.T) {
	in := filepath.Join(t.TempDir(), "in.jsonl")
	writeJSONL(t, in, pair{Query: "a query", Positive: "a document"}, pair{Query: "another", Positive: ""}, pair{Query: "one more", Positive: "its document"})
	c := bare(t, in)
	for _, before := range []bool{false, true} {
		if before {
			mustRun(t, c)
		}
		want, had := "no row is left of 3 rows, and nothing is written: unusable has dropped 1, first in.jsonl:2: column \"positive\": the text is empty; "+
			"length has dropped 2 (filter.query, filter.document), first in.jsonl:1: column \"positive\": 2 words. ", []pair(nil)
		if before {
			had = readPairs(t, c.Output.Dir, "train")
		}
		strict := c
		strict.Filter.Document.Min = 3
		if _, err := Run(t.Context(), strict, Options{Overwrite: true}); !errors.Is(err, ErrNothingLeft) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
		left, err := os.ReadDir(c.Output.Dir)
		if err != nil || before != (len(left) > 0) || !slices.EqualFunc(readPairs(t, c.Output.Dir, "train"), had, func(a, b pair) bool { return a.Query == b.Query && a.Positive == b.Positive }) {
			t.Errorf("left in the folder: %v, %v", left, err)
		}
	}
}

// What the inputs' texts look like is told, and a template that takes them as they are is taken at its word, in what is written too.
func TestListNotes(t *testing.T) {
	in := filepath.Join(t.TempDir(), "in.jsonl")
	writeJSONL(t, in, pair{Query: "a", Positive: "['b', 'c']"}, pair{Query: "d", Positive: "e"})
	c := bare(t, in)
	var notes []string
	if _, err := Run(t.Context(), c, Options{Note: func(n string) { notes = append(notes, n) }}); err != nil || len(notes) != 1 || !strings.HasPrefix(notes[0], `input "input": `+in+`:1, column "positive": the text is a list`) {
		t.Errorf("%q, %v", notes, err)
	}
	writeJSONL(t, in, pair{Query: "a", Positive: "['b', 'c']"})
	if _, err := Run(t.Context(), c, Options{Overwrite: true}); err == nil || !strings.Contains(err.Error(), `as a template, "{positive}"`) {
		t.Error(err)
	}
	c.Input[0].Positive = "{positive}"
	c.Split = Split{Dev: 0.999, BEIR: true}
	if _, err := Run(t.Context(), c, Options{Overwrite: true}); err != nil {
		t.Fatal(err)
	}
	if got := readPairs(t, c.Output.Dir, "dev"); len(got) != 1 || got[0].Positive != "['b', 'c']" {
		t.Errorf("%q", got)
	}
}

// files are a folder's contents.
func files(t testing.TB, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]string{}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		m[e.Name()] = string(b)
	}
	return m
}

func TestSameBytesWithAnyParallelism(t *testing.T) {
	c, _ := corpus(t, 1200)
	c.Split.Dev = 0.1
	c.Mix = Mix{Kind: "balanced", Repeat: 1}
	in := c.Input[0]
	in.Name, in.Path = "second", []string{filepath.Join(filepath.Dir(in.Path[0]), "b.jsonl")}
	c.Input[0].Path = []string{filepath.Join(filepath.Dir(in.Path[0]), "a.parquet")}
	c.Input = append(c.Input, in)
	var first map[string]string
	for _, threads := range []int{1, 2, 7} {
		c.Output.Dir = filepath.Join(t.TempDir(), "out")
		if _, err := Run(t.Context(), c, Options{Threads: threads}); err != nil {
			t.Fatal(err)
		}
		got := files(t, c.Output.Dir)
		if first == nil {
			first = got
			continue
		}
		for name := range first {
			if got[name] != first[name] {
				t.Errorf("%d threads: %s differs", threads, name)
			}
		}
		if len(got) != len(first) {
			t.Errorf("%d threads: %d files, want %d", threads, len(got), len(first))
		}
	}
	if len(first) != 3+4 {
		t.Errorf("%d files", len(first))
	}
	var card struct {
		Rows, Train, Dev int64
		Inputs           []InputStats
		Rules            map[string]RuleStats
	}
	if err := json.Unmarshal([]byte(first["card.json"]), &card); err != nil {
		t.Fatal(err)
	}
	total := card.Train + card.Dev
	for _, r := range card.Rules {
		total += r.Dropped
	}
	if total != card.Rows || card.Rows != 1200 {
		t.Errorf("%d rows read, %d accounted for", card.Rows, total)
	}
	a, b := card.Inputs[0].Train+card.Inputs[0].Dev, card.Inputs[1].Train+card.Inputs[1].Dev
	if a < b*8/10 || b < a*8/10 {
		t.Errorf("inputs of %d and %d rows are not balanced", a, b)
	}
	if share := float64(card.Dev) / float64(card.Train+card.Dev); share < 0.05 || share > 0.15 {
		t.Errorf("%.3f of the rows are dev's", share)
	}
}

func TestSplitKeepsQueriesTogether(t *testing.T) {
	in := filepath.Join(t.TempDir(), "in.jsonl")
	var rows []pair
	for i := range 400 {
		rows = append(rows, pair{Query: fmt.Sprint("query ", i%100), Positive: fmt.Sprint("document ", i), Negs: []string{fmt.Sprint("document ", (i+1)%400), fmt.Sprint("other ", i%7)}})
	}
	writeJSONL(t, in, rows...)
	c := bare(t, in)
	c.Input[0].Negatives = []string{"negs"}
	c.Split = Split{Dev: 0.3, BEIR: true}
	s := mustRun(t, c)
	train, dev := readPairs(t, c.Output.Dir, "train"), readPairs(t, c.Output.Dir, "dev")
	if len(train)+len(dev) != 400 || len(dev) < 60 || len(dev) > 180 {
		t.Fatalf("%d and %d rows", len(train), len(dev))
	}
	task, err := dataset.LoadRetrieval(t.Context(), filepath.Join(c.Output.Dir, "beir"), "", "")
	if err != nil {
		t.Fatal(err)
	}
	// All rows' documents are there, those of dev's rows first.
	if len(task.Judgements) != len(dev) || len(task.Docs) != 400+7 || len(task.Queries) != len(dev)/4 || task.Unknown > 0 {
		t.Errorf("the task has %d queries, %d documents, %d judgements for %d rows", len(task.Queries), len(task.Docs), len(task.Judgements), len(dev))
	}
	card, err := os.ReadFile(filepath.Join(c.Output.Dir, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	devs := map[string]bool{}
	for _, p := range rows {
		if slices.ContainsFunc(dev, func(d pair) bool { return d.Query == p.Query }) {
			for _, text := range append(p.Negs, p.Positive) {
				devs[text] = true
			}
		}
	}
	if want := (BEIRStats{len(dev) / 4, 407, len(devs), len(dev)}); s.BEIR == nil || *s.BEIR != want || !strings.Contains(string(card), "`beir` is a retrieval task: "+want.String()) {
		t.Errorf("the task is said to have %v, want %v", s.BEIR, &want)
	}
	for i, doc := range task.Docs {
		if devs[doc] != (i < len(devs)) {
			t.Fatalf("document %d, %q, is of dev's %d: %v", i, doc, len(devs), devs[doc])
		}
	}
	for _, j := range task.Judgements {
		if !slices.ContainsFunc(dev, func(d pair) bool { return d.Query == task.Queries[j.Query] && d.Positive == task.Docs[j.Doc] }) {
			t.Errorf("%q is judged of %q", task.Docs[j.Doc], task.Queries[j.Query])
		}
	}
	for _, d := range dev {
		for _, r := range train {
			if d.Query == r.Query {
				t.Fatalf("%q is in both parts", d.Query)
			}
		}
	}
	c.Output.Dir, c.Split.Dev = filepath.Join(filepath.Dir(in), "out"), 1e-9
	if _, err := Run(t.Context(), c, Options{}); err == nil || !strings.Contains(err.Error(), "split.beir: none of the queries of 400 rows is in the development part, which split.dev: 1e-09 is the share of") {
		t.Error(err)
	}
}

func TestMixRepeats(t *testing.T) {
	inputs := []Input{{Share: 3}, {Share: 1}}
	for _, c := range []struct {
		m    Mix
		rows []int64
		want string
	}{
		{Mix{"proportional", 1}, []int64{100, 900}, "[1 1]"},
		{Mix{"balanced", 1}, []int64{100, 400}, "[1 0.25]"},
		{Mix{"balanced", 4}, []int64{100, 400}, "[4 1]"},
		{Mix{"weighted", 1}, []int64{300, 400}, "[1 0.25]"},
		{Mix{"balanced", 1}, []int64{0, 400}, "[0 1]"},
		{Mix{"balanced", 1}, []int64{0, 0}, "[0 0]"},
	} {
		if got := fmt.Sprint(c.m.Rates(inputs, c.rows)); got != c.want {
			t.Errorf("%+v of %v: %s, want %s", c.m, c.rows, got, c.want)
		}
	}
	r := &Rules{Config: Config{Seed: 1}}
	n := 0
	for id := range int64(10000) {
		n += r.Copies(id, 2.25)
	}
	if n < 22200 || n > 22800 {
		t.Errorf("10000 rows at a rate of 2.25 become %d", n)
	}
}

// TestRepeatsAreForTraining: a development part has each row once, and the card says how rows add up.
func TestRepeatsAreForTraining(t *testing.T) {
	dir := t.TempDir()
	var inputs []Input
	for i, n := range []int{100, 400} {
		var rows []pair
		for k := range n {
			rows = append(rows, pair{Query: fmt.Sprint("query ", i, " ", k), Positive: fmt.Sprint("document ", i, " ", k)})
		}
		path := filepath.Join(dir, fmt.Sprint(i, ".jsonl"))
		writeJSONL(t, path, rows...)
		inputs = append(inputs, Input{Name: fmt.Sprint("n", n), Path: []string{path}, Query: "query", Positive: "positive"})
	}
	for repeat, want := range map[float64]string{4: "repeats", 2: "repeats and drops", 1: "drops"} {
		c := bare(t)
		c.Input, c.Split.Dev, c.Mix = inputs, 0.2, Mix{Kind: "balanced", Repeat: repeat}
		c.Output.Shards = 2 // of an input each
		s := mustRun(t, c)
		occur := map[string]map[string]int{"train": {}, "dev": {}}
		written := map[string]int64{}
		for part, of := range occur {
			for _, p := range readPairs(t, c.Output.Dir, part) {
				of[p.Query]++
				written[part]++
			}
		}
		for query, n := range occur["dev"] {
			if n > 1 {
				t.Fatalf("repeat %v: development has %q %d times", repeat, query, n)
			}
		}
		var card Card
		if err := json.Unmarshal([]byte(files(t, c.Output.Dir)["card.json"]), &card); err != nil {
			t.Fatal(err)
		}
		again, drops := written["train"]-int64(len(occur["train"])), counts(s)[Mixing]
		if card.Repeated != again || card.Train != written["train"] || card.Dev != written["dev"] || card.Rows != card.Train-card.Repeated+card.Dev+drops {
			t.Errorf("repeat %v: the card has %d rows, %d for training, %d of them repeats, %d for development, %d dropped; %d repeats are written", repeat, card.Rows, card.Train, card.Repeated, card.Dev, drops, again)
		}
		if strings.Contains(want, "repeats") != (again > 0) || strings.Contains(want, "drops") != (drops > 0) {
			t.Errorf("repeat %v: %d repeats, %d drops, want %s", repeat, again, drops, want)
		}
		text := files(t, c.Output.Dir)["README.md"]
		if strings.Contains(text, fmt.Sprintf("\n| mix | %d |\n", drops)) != (drops > 0) {
			t.Errorf("repeat %v: %d drops: %s", repeat, drops, text)
		}
		if line := fmt.Sprintf("Of the rows for training %d are repeats of others (`mix`).", again); strings.Contains(text, line) != (again > 0) || !strings.Contains(text, fmt.Sprintf("| n100 | 100 | %d | %d | %d |\n", s.Inputs[0].Train, s.Inputs[0].Repeated, s.Inputs[0].Dev)) {
			t.Errorf("repeat %v: %s", repeat, text)
		}
	}
}

// tinyTokenizer is a vocabulary trained on a few words.
func tinyTokenizer(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	tok, err := tokenize.TrainWordPiece(t.Context(), func(yield func(string) bool) {
		for range 20 {
			if !yield("query document sort list of things with words and numbers 0 1 2 3 4 5 6 7 8 9") {
				return
			}
		}
	}, tokenize.TrainOptions{VocabSize: 300})
	if err != nil {
		t.Fatal(err)
	}
	if err := tok.Save(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestTokens: ids and identities that training reads are those of the texts, and so is how many texts were cut.
func TestTokens(t *testing.T) {
	in := filepath.Join(t.TempDir(), "in.jsonl")
	var rows []pair
	for i := range 300 {
		p := pair{Query: fmt.Sprint(strings.Repeat("list of things ", i%3), "query ", i), Positive: strings.Repeat("document of words ", 1+i%9)}
		for k := range i % 4 {
			p.Negs = append(p.Negs, fmt.Sprint(strings.Repeat("list ", i%11), i*k))
		}
		if p.Negs == nil {
			p.Negs = []string{"none"}
		}
		rows = append(rows, p)
	}
	writeJSONL(t, in, rows...)
	c := bare(t, in)
	c.Input[0].Negatives = []string{"negs"}
	c.Output.Shards = 1
	c.Tokenize = Tokenize{Model: "org/tiny", Dir: tinyTokenizer(t), MaxLength: Lengths{8, 12}, Prompts: Prompts{Query: "sort ", Document: "things: "}}
	s := mustRun(t, c)
	made, err := tokenize.Load(c.Tokenize.Dir)
	if err != nil {
		t.Fatal(err)
	}
	if card := files(t, c.Output.Dir)["card.json"]; !strings.Contains(card, "org/tiny") || strings.Contains(card, c.Tokenize.Dir) || !strings.Contains(card, fmt.Sprintf(`"tokenizer": %q`, made.Hash())) || !strings.Contains(card, `"unit": "tokens"`) {
		t.Errorf("the card should name the model and its tokenizer, and no folder of this machine: %s", card)
	}
	tok, err := tokenize.Load(c.Tokenize.Dir)
	if err != nil {
		t.Fatal(err)
	}
	src := dataset.Source{Paths: []string{filepath.Join(c.Output.Dir, "*.parquet")}, Query: "query", Positive: "positive", Negatives: []string{"negs"}, NegativesPerQuery: dataset.AllNegatives}
	read := func(src dataset.Source) []dataset.Example {
		d, err := dataset.Open(t.Context(), src)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		r := d.NewReader(dataset.ReaderConfig{})
		defer r.Close()
		var ids []int64
		for i := range d.Rows() {
			ids = append(ids, (i*7)%d.Rows())
		}
		ex, err := r.Read(t.Context(), 0, ids)
		if err != nil {
			t.Fatal(err)
		}
		return ex
	}
	texts := read(src)
	src.Tokens = true
	ids := read(src)
	cut := map[string]int64{}
	for i := range texts {
		for k, text := range texts[i].Texts {
			prompt, limit := "things: ", 12
			if k == 0 {
				prompt, limit = "sort ", 8
			}
			want, long := tok.Append(nil, prompt+text, limit)
			if long {
				cut[[]string{"query", "positive", "negs"}[min(k, 2)]]++
			}
			if !slices.Equal(ids[i].IDs[k], want) {
				t.Fatalf("row %d, text %d: ids %v, want %v", texts[i].Row, k, ids[i].IDs[k], want)
			}
			if ids[i].Hashes[k] != dataset.HashText(text) || texts[i].Hashes[k] != ids[i].Hashes[k] {
				t.Fatalf("row %d, text %d: another identity", texts[i].Row, k)
			}
		}
	}
	d, err := dataset.Open(t.Context(), src)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if d.Tokens().Tokenizer != tok.Hash() || d.Tokens().Query.Prompt != "sort " || d.Tokens().Document.Prompt != "things: " {
		t.Errorf("%+v", d.Tokens())
	}
	all := cut["query"] + cut["positive"] + cut["negs"]
	if note := fmt.Sprintf("[%d texts were longer than max_length {query: 8, document: 12} when contraflow prep made the token ids, and cut]", all); len(cut) < 3 || s.Cut() != all || d.Cut() != all || fmt.Sprint(d.Notes()) != note {
		t.Errorf("%v are cut, counted %d, and of the files %d: %q", cut, s.Cut(), d.Cut(), d.Notes())
	}
	readme := files(t, c.Output.Dir)["README.md"]
	for column, n := range cut {
		if h := s.Lengths[column]; h.Cut != n || !strings.Contains(readme, fmt.Sprintf("| %d | %d |\n", h.Max, n)) {
			t.Errorf("%s: %d are cut, want %d: %s", column, h.Cut, n, readme)
		}
	}
	if line := fmt.Sprintf("\n%d texts were longer than `tokenize.max_length` (query 8, document 12) and cut: lengths are of what is left.\n", all); !strings.Contains(readme, line) {
		t.Errorf("no %q in %s", line, readme)
	}
	pairs := src
	pairs.Negatives, pairs.NegativesPerQuery = nil, 0
	p, err := dataset.Open(t.Context(), pairs)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if p.Cut() != all-cut["negs"] {
		t.Errorf("without negatives %d texts are cut, want %d", p.Cut(), all-cut["negs"])
	}
	index, err := d.Index(t.Context(), dataset.IndexConfig{})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range texts[:20] {
		if got := index.Hashes(nil, 0, 0, e.Row); !slices.Equal(got, e.Hashes) {
			t.Errorf("row %d: the index has other identities", e.Row)
		}
	}
	src.Query = "{query}"
	if _, err := dataset.Open(t.Context(), src); err == nil || !strings.Contains(err.Error(), "template") {
		t.Errorf("a template of ids: %v", err)
	}
	src = dataset.Source{Paths: []string{in}, Query: "query", Positive: "positive", Tokens: true}
	if _, err := dataset.Open(t.Context(), src); err == nil || !strings.Contains(err.Error(), "no token ids") {
		t.Errorf("JSON lines with ids: %v", err)
	}
}

func TestPoisonedRow(t *testing.T) {
	c, _ := corpus(t, 600)
	rules, err := NewRules(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	rules.trouble = func(text string) {
		if strings.HasPrefix(text, "sort") {
			panic("index out of range")
		}
		n++
	}
	_, err = run(t.Context(), rules, Options{Threads: 1})
	var p *PanicError
	if !errors.As(err, &p) || !strings.Contains(err.Error(), "row group 0, row") || !strings.Contains(err.Error(), "a.parquet") {
		t.Fatalf("got %v", err)
	}
	// What is there is not taken for complete, and the next run begins anew.
	if _, err := dataset.Open(t.Context(), dataset.Source{Paths: []string{filepath.Join(c.Output.Dir, "*.parquet")}, Query: "query", Positive: "positive"}); err == nil {
		t.Error("a half-written folder was read")
	}
	mustRun(t, c)
	if len(readPairs(t, c.Output.Dir, "train")) == 0 {
		t.Error("nothing written")
	}
}

// TestTwoRuns: while one run lives, no other begins in the same folder; once it is gone, what it has left behind can't write any more.
func TestTwoRuns(t *testing.T) {
	c, _ := corpus(t, 200)
	rules, err := NewRules(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	x, err := OpenInputs(t.Context(), rules)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	first, err := Begin(&rules.Config, false)
	if err != nil {
		t.Fatal(err)
	}
	keep := func(int64) Verdict { return Verdict{Of: -1} }
	if _, err := x.WriteShard(t.Context(), 0, keep, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := Run(t.Context(), c, Options{Overwrite: true}); !errors.Is(err, ErrBusy) {
		t.Errorf("a second run: %v", err)
	}
	first.Release()
	other := c
	second, err := Begin(&other, false)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Release()
	if left, _ := filepath.Glob(filepath.Join(c.Output.Dir, Temporary, "*", "*")); len(left) > 0 {
		t.Errorf("the dead run's files are still there: %q", left)
	}
	if _, err := x.WriteShard(t.Context(), 0, keep, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a worker of the dead run writes: %v", err)
	}
}

// TestExactKey: what is equal is what the configuration says, and texts don't run into each other.
func TestExactKey(t *testing.T) {
	row := func(texts ...string) *Row {
		r := &Row{}
		for _, list := range texts {
			r.Texts = append(r.Texts, strings.Split(list, "|"))
		}
		return r
	}
	for _, c := range []struct {
		exact string
		a, b  *Row
		same  bool
	}{
		{"row", row("a", "b", "c"), row("a", "b", "c"), true},
		{"row", row("ab", "c"), row("a", "bc"), false},
		{"row", row("a", "b|c"), row("a", "b", "c"), false},
		{"row", row("a", "b|c"), row("a", "bc"), false},
		{"row", row("a", "b"), row("b", "a"), false},
		{"row", row("a", "b", "c"), row("a", "b", "d"), false},
		{"query", row("a", "b"), row("a", "c"), true},
		{"query", row("a", "b"), row("b", "b"), false},
		{"positive", row("a", "b"), row("c", "b"), true},
		{"positive", row("a", "b", "c"), row("a", "b", "d"), true},
		{"positive", row("a", "b"), row("a", "c"), false},
	} {
		w := (&Rules{Config: Config{Dedupe: Dedupe{Exact: c.exact}}}).NewWorker()
		a, ok := w.ExactKey(c.a)
		b, _ := w.ExactKey(c.b)
		if !ok || (a == b) != c.same {
			t.Errorf("%s of %q and %q: same is %v", c.exact, c.a.Texts, c.b.Texts, a == b)
		}
	}
	if _, ok := (&Rules{Config: Config{Dedupe: Dedupe{Exact: "none"}}}).NewWorker().ExactKey(row("a")); ok {
		t.Error("none has a key")
	}
}

// TestFilters asks each filter at its bounds.
func TestFilters(t *testing.T) {
	tok := tinyTokenizer(t)
	for _, c := range []struct {
		change func(*Config)
		column int
		text   string
		want   string
	}{
		{func(c *Config) { c.Filter.Query = Range{2, 3} }, 0, "one", LengthRule},
		{func(c *Config) { c.Filter.Query = Range{2, 3} }, 0, "one two", ""},
		{func(c *Config) { c.Filter.Query = Range{2, 3} }, 0, "one two three", ""},
		{func(c *Config) { c.Filter.Query = Range{2, 3} }, 0, "one two three four", LengthRule},
		{func(c *Config) { c.Filter.Query = Range{2, 3} }, 1, "one", ""},
		{func(c *Config) { c.Filter.Document = Range{Min: 2} }, 0, "one", ""},
		{func(c *Config) { c.Filter.Document = Range{Min: 2} }, 2, "one", LengthRule},
		{func(c *Config) { c.Filter.Document, c.Filter.Unit = Range{0, 4}, "characters" }, 1, "äöü€", ""},
		{func(c *Config) { c.Filter.Document, c.Filter.Unit = Range{0, 4}, "characters" }, 1, "äöü€.", LengthRule},
		{func(c *Config) { c.Filter.Document, c.Filter.Unit = Range{0, 2}, "tokens" }, 1, "sort list", ""}, // special tokens don't count
		{func(c *Config) { c.Filter.Document, c.Filter.Unit = Range{0, 2}, "tokens" }, 1, "sort list of", LengthRule},
		{func(c *Config) { c.Filter.Script = Script{"Latin", 0.5} }, 1, "ab вг", ""},
		{func(c *Config) { c.Filter.Script = Script{"Latin", 0.5} }, 1, "a вг", ScriptRule},
		{func(c *Config) { c.Filter.Require = []string{"a", "b"} }, 1, "ab", ""},
		{func(c *Config) { c.Filter.Require = []string{"a", "b"} }, 1, "a", Require},
		{func(c *Config) { c.Filter.Reject = []string{"x", "y"} }, 0, "why", Reject},
		{func(*Config) {}, 0, "", Empty},
	} {
		conf := bare(t, "x")
		conf.Tokenize.Model, conf.Input[0].Negatives = tok, []string{"negs"}
		c.change(&conf)
		rules, err := NewRules(t.Context(), conf)
		if err != nil {
			t.Fatal(err)
		}
		row := &Row{Texts: [][]string{nil, nil, nil}}
		row.Texts[c.column] = []string{c.text}
		if rules.NewWorker().Filter(row); row.Rule != c.want {
			t.Errorf("%+v: column %d, %q is dropped by %q, want %q", conf.Filter, c.column, c.text, row.Rule, c.want)
		}
	}
}

// TestWrittenNames: a column that would be written twice is told before anything is read.
func TestWrittenNames(t *testing.T) {
	for _, change := range []func(*Config){
		func(c *Config) { c.Input[0].Positive = "query" },
		func(c *Config) { c.Input[0].Query = "source"; c.Input = append(c.Input, c.Input[0]) },
		func(c *Config) { c.Input[0].Positive = "query_hash" },
		func(c *Config) { c.Input[0].Label = "positive" },
	} {
		c := bare(t, "x")
		change(&c)
		found := false
		for _, p := range c.Check() {
			found = found || p.Key == "input[0]" && strings.Contains(p.Text, "two columns")
		}
		if !found {
			t.Errorf("%+v: no problem is seen", c.Input)
		}
	}
	c := bare(t, "x")
	c.Input[0].Query = "{source}"
	c.Input = append(c.Input, c.Input[0])
	if p := c.Check(); len(p) > 0 {
		t.Errorf("a template: %v", p)
	}
}

// TestHalfWritten ends the completion between two renames.
func TestHalfWritten(t *testing.T) {
	c, _ := corpus(t, 200)
	mustRun(t, c)
	want := files(t, c.Output.Dir)
	if err := os.Remove(filepath.Join(c.Output.Dir, Success)); err != nil {
		t.Fatal(err)
	}
	tmp := filepath.Join(c.Output.Dir, Temporary)
	if err := os.Mkdir(tmp, 0o777); err != nil {
		t.Fatal(err)
	}
	shard := "train-00001-of-00002.parquet"
	if err := os.Rename(filepath.Join(c.Output.Dir, shard), filepath.Join(tmp, shard)); err != nil {
		t.Fatal(err)
	}
	_, err := dataset.Open(t.Context(), dataset.Source{Paths: []string{filepath.Join(c.Output.Dir, "*.parquet")}, Query: "query", Positive: "positive"})
	if err == nil || !strings.Contains(err.Error(), "is not complete") {
		t.Errorf("opening it: %v", err)
	}
	if _, err := Run(t.Context(), c, Options{}); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("without --overwrite: %v", err)
	}
	if _, err := Run(t.Context(), c, Options{Overwrite: true}); err != nil {
		t.Fatal(err)
	}
	if got := files(t, c.Output.Dir); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Error("the second run wrote something else")
	}
	if err := os.WriteFile(filepath.Join(c.Output.Dir, "mine.txt"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := Run(t.Context(), c, Options{Overwrite: true}); !errors.Is(err, ErrNotEmpty) || !strings.Contains(err.Error(), "mine.txt") {
		t.Errorf("with a stranger's file: %v", err)
	}
}

// TestSpillsAreNameless: a run that is killed leaves no gigabytes behind.
func TestSpillsAreNameless(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("it removes no open file")
	}
	c, _ := corpus(t, 300)
	temp, most := t.TempDir(), 0
	_, err := Run(t.Context(), c, Options{TempDir: temp, Progress: func(string, int, int) {
		left, _ := filepath.Glob(filepath.Join(temp, "*", "*"))
		most = max(most, len(left))
	}})
	if err != nil || most > 0 {
		t.Errorf("%d files could be seen (%v)", most, err)
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("%v is left (%v)", left, err)
	}
	c, _ = corpus(t, 300)
	if _, err := Run(t.Context(), c, Options{TempDir: filepath.Join(temp, "none")}); err == nil || !strings.Contains(err.Error(), "--temp DIR chooses another place") {
		t.Errorf("no folder to spill into: %v", err)
	}
}

func TestCancelled(t *testing.T) {
	c, _ := corpus(t, 300)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, c, Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
