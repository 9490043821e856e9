package dataset

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

type memoryRow struct {
	Query  string    `json:"query"`
	Pos    []string  `json:"pos"`
	Neg    []string  `json:"neg"`
	Scores []float32 `json:"scores"`
	Meta   struct {
		Weight float64 `json:"weight"`
	} `json:"meta"`
}

var memorySource = Source{Query: "query", Positive: "pos", Negatives: []string{"neg"}, NegativesPerQuery: 1, Scores: []string{"scores"}, Weight: "meta.weight"}

func memoryRows(n int) []memoryRow {
	rows := make([]memoryRow, n)
	for i := range rows {
		r := &rows[i]
		r.Query = fmt.Sprintf("<q> %d & \"so\\ufffd\" é\u2028\ufffd\n\\", i)
		r.Pos = []string{fmt.Sprint("p", i%7), fmt.Sprint("p2 ", i)}
		r.Neg = []string{fmt.Sprint("n", i), "often"}
		r.Scores = []float32{float32(i) / 3, 0.1, float32(math.SmallestNonzeroFloat32), -2}
		r.Meta.Weight = 1 + float64(i%3)
	}
	return rows
}

// Rows in memory are what a file of their lines has: the same identity, the same batches, shuffled and without duplicates, and the same examples, over blocks
// that end anywhere. What the examples say is what the rows do.
func TestFromRows(t *testing.T) {
	rows := memoryRows(300)
	var lines bytes.Buffer
	out := json.NewEncoder(&lines)
	out.SetEscapeHTML(false) // by which a file's hash would differ
	for _, r := range rows {
		if err := out.Encode(r); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), "rows.jsonl")
	if err := os.WriteFile(path, lines.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	limit := blockLimit{rows: 64, bytes: 4 << 10}
	onFile := memorySource
	onFile.Paths = []string{path}
	file, err := open(t.Context(), onFile, limit)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	memory, err := fromRows(t.Context(), "rows.jsonl", rows, memorySource, limit)
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Close()
	rows[0].Query = "changed later"
	if memory.Blocks() < 4 || memory.Fingerprint() != file.Fingerprint() || !reflect.DeepEqual(memory.Files(), file.Files()) {
		t.Fatalf("%d blocks, %v and %v", memory.Blocks(), memory.Files(), file.Files())
	}
	if got := memory.Locate(299).String(); got != "rows.jsonl: row 299" {
		t.Error(got)
	}
	batches := func(d *Dataset) (all [][]Example) {
		index, err := d.Index(t.Context(), IndexConfig{})
		if err != nil {
			t.Fatal(err)
		}
		s, err := NewSampler(d.Layout(), index, SamplerConfig{Seed: 3, GlobalSize: 7, Epochs: 2, Shuffle: true, NoDuplicates: true})
		if err != nil {
			t.Fatal(err)
		}
		r := d.NewReader(ReaderConfig{Seed: 3})
		defer r.Close()
		for b, ok := s.Next(); ok; b, ok = s.Next() {
			examples, err := r.Read(t.Context(), b.Epoch, b.Rows)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, examples)
		}
		return all
	}
	got := batches(memory)
	if len(got) < 60 || !reflect.DeepEqual(got, batches(file)) {
		t.Fatalf("%d batches, others than the file's", len(got))
	}
	rows = memoryRows(300)
	for _, b := range got {
		positives := map[string]bool{}
		for _, e := range b {
			r := rows[e.Row]
			p, n := 0, 0
			if e.Texts[1] == r.Pos[1] {
				p = 1
			}
			if e.Texts[2] == r.Neg[1] {
				n = 1
			}
			if want := []string{r.Query, r.Pos[p], r.Neg[n]}; !reflect.DeepEqual(e.Texts, want) || e.Weight != float32(r.Meta.Weight) ||
				!reflect.DeepEqual(e.Scores, []float32{r.Scores[p], r.Scores[2+n]}) || e.Hashes[0] != HashText(r.Query) {
				t.Fatalf("row %d: %+v", e.Row, e)
			}
			if positives[e.Texts[1]] {
				t.Errorf("%q twice in a batch", e.Texts[1])
			}
			positives[e.Texts[1]] = true
		}
	}
}

// A checkpoint's place is that of these rows, and of no others: not of more, in another order or with another text.
func TestFromRowsResumed(t *testing.T) {
	of := func(rows []memoryRow) *Mixer {
		d, err := FromRows(t.Context(), "faq", rows, memorySource)
		if err != nil {
			t.Fatal(err)
		}
		m, err := NewMixer([]Part{{Layout: d.Layout()}}, SamplerConfig{Seed: 1, GlobalSize: 4, Epochs: 2, Shuffle: true}, Mixing{})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	m := of(memoryRows(40))
	for range 13 {
		m.Next()
	}
	at := m.Cursor()
	again := of(memoryRows(40))
	if err := again.Restore(at); err != nil {
		t.Fatal(err)
	}
	for range 7 {
		want, _ := m.Next()
		if got, ok := again.Next(); !ok || !reflect.DeepEqual(got, want) {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	other := memoryRows(40)
	other[39].Neg[1] = "seldom"
	turned := memoryRows(40)
	turned[0], turned[1] = turned[1], turned[0]
	for name, rows := range map[string][]memoryRow{"a text": other, "order": turned, "number": memoryRows(41)} {
		if err := of(rows).Restore(at); !errors.Is(err, ErrCursor) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFromRowsErrors(t *testing.T) {
	type pair = map[string]any
	good := pair{"q": "a question", "p": "an answer"}
	source := Source{Query: "q", Positive: "p"}
	for want, c := range map[string]struct {
		rows []any
		src  Source
	}{
		"faq are rows in memory, and Source.Paths has files": {[]any{good}, Source{Paths: []string{"a.jsonl"}, Query: "q", Positive: "p"}},
		"faq: no rows": {nil, source},
		`faq has no column "positive"; its columns are "p", "q"`:               {[]any{good}, Source{Query: "q", Positive: "positive"}},
		"faq: row 1: json: unsupported value: NaN":                             {[]any{good, pair{"q": "x", "p": math.NaN()}}, source},
		"faq: row 0: it is a list, where an object { } should be":              {[]any{[]string{"q", "p"}}, source},
		`faq: row 0: column "p" is a number`:                                   {[]any{pair{"q": "x", "p": 1}, pair{"q": "x", "p": 2}}, source},
		"faq has no token ids":                                                 {[]any{good}, Source{Query: "q", Positive: "p", Tokens: true}},
		"a dataset needs a query and a positive column":                        {[]any{good}, Source{Query: "q"}},
		`faq: row 1, column "p": the text is missing: the row has no such key`: {[]any{good, pair{"q": "x"}}, source},
		`faq: row 2, column "q": the text is not UTF-8`:                        {[]any{good, good, pair{"q": "a\xff\\", "p": `\ufffd`}}, source},
		`faq: row 1, column "p": the text is blank`:                            {[]any{pair{"q": "\ufffd \\ufffd", "p": `\\ufffd`}, pair{"q": "x", "p": " "}}, source},
		"faq: row 1: it is null, where an object { } should be":                {[]any{good, nil}, source},
		`faq has no column "q"; its columns are "data"`:                        {[]any{pair{"data": []any{good}}}, source},
	} {
		d, err := FromRows(t.Context(), "faq", c.rows, c.src)
		if err == nil {
			_, err = d.Index(t.Context(), IndexConfig{})
		}
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "jq") { // which is for files
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// A row of one's own is not the caller's slice, and what can't be set is a panic that says so.
func TestExample(t *testing.T) {
	texts := []string{"a", "b"}
	e := NewExample(3, texts...)
	e.SetText(1, "c")
	if texts[1] != "b" || e.Texts[1] != "c" || e.Hashes[1] != HashText("c") || e.Hashes[0] != HashText("a") {
		t.Errorf("%v, %v", texts, e)
	}
	panics := func(want string, f func()) {
		t.Helper()
		defer func() {
			if got := fmt.Sprint(recover()); !strings.Contains(got, want) {
				t.Errorf("%s, want %q", got, want)
			}
		}()
		f()
	}
	panics("row 3 has 2 texts, and none is number 2", func() { e.SetText(2, "d") })
	ids := Example{Row: 4, IDs: [][]int32{{1}, {2}}, Hashes: make([]Hash128, 2)}
	panics("row 4 comes as token ids", func() { ids.SetText(0, "d") })
}
