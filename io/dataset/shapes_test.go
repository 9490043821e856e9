package dataset

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go/deprecated"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"
)

// shapeRow is what pyarrow reads of testdata/golden/dataset/shapes.parquet.
type shapeRow struct {
	Query, Positive, Negative, Text, Joined string
	Title                                   *string
	Pos, Neg                                []string
	PosScores                               []float32 `json:"pos_scores"`
	NegScores                               []float32 `json:"neg_scores"`
	AllScores                               []float32 `json:"all_scores"`
	Score, Label, Stars                     float32
	Teacher                                 []float32
}

// TestGoldenShapes reads labels, scores, teachers' embeddings, ragged lists and joined texts in every form, in blocks of every size.
func TestGoldenShapes(t *testing.T) {
	var want []shapeRow
	readJSON(t, golden("shapes.json"), &want)
	scoreOf := func(list []string, scores []float32, text string) float32 { return scores[slices.Index(list, text)] }
	for _, file := range []string{"shapes.parquet", "shapes_f32.parquet", "shapes.jsonl"} {
		base := Source{Paths: []string{golden(file)}, Query: "query", Label: "label", Teacher: "teacher"}
		for name, c := range map[string]struct {
			change func(*Source)
			texts  func(r *shapeRow, e *Example) []string  // of the documents
			scores func(r *shapeRow, e *Example) []float32 // likewise
		}{
			"one text": {func(s *Source) { s.Label = "stars" }, func(*shapeRow, *Example) []string { return nil }, nil},
			"all negatives, a column each": {func(s *Source) {
				s.Positive, s.Negatives, s.NegativesPerQuery, s.Scores = "positive", []string{"neg", "negative"}, AllNegatives, []string{"score", "neg_scores", "label"}
			}, func(r *shapeRow, e *Example) []string {
				return slices.Concat([]string{r.Positive}, r.Neg, []string{r.Negative})
			},
				func(r *shapeRow, e *Example) []float32 {
					return slices.Concat([]float32{r.Score}, r.NegScores, []float32{r.Label})
				}},
			"a list of scores and a choice of positives": {func(s *Source) {
				s.Positive, s.Negatives, s.NegativesPerQuery, s.Scores = "pos", []string{"neg"}, AllNegatives, []string{"all_scores"}
			}, func(r *shapeRow, e *Example) []string { return slices.Concat([]string{e.Texts[1]}, r.Neg) },
				func(r *shapeRow, e *Example) []float32 {
					return slices.Concat([]float32{scoreOf(r.Pos, r.PosScores, e.Texts[1])}, r.NegScores)
				}},
			"chosen with their scores": {func(s *Source) {
				s.Positive, s.Negatives, s.NegativesPerQuery, s.Scores = "pos", []string{"pos", "{title} - {text}"}, 2, []string{"pos_scores", "pos_scores", "stars"}
			}, func(r *shapeRow, e *Example) []string { return append(slices.Clone(e.Texts[1:4]), r.Joined) },
				func(r *shapeRow, e *Example) (out []float32) {
					for _, text := range e.Texts[1:4] {
						out = append(out, scoreOf(r.Pos, r.PosScores, text))
					}
					return append(out, r.Stars)
				}},
			"joined": {func(s *Source) { s.Query, s.Positive = "Q: {query}", "{title} - {text}" }, func(r *shapeRow, e *Example) []string { return []string{r.Joined} }, nil},
		} {
			src := base
			c.change(&src)
			for _, limit := range []blockLimit{defaultLimit, {7, 1 << 20}} {
				d, err := open(t.Context(), src, limit)
				if err != nil {
					t.Fatalf("%s, %s: %v", file, name, err)
				}
				x, err := d.Index(t.Context(), IndexConfig{Threads: 2})
				if err != nil {
					t.Fatalf("%s, %s: %v", file, name, err)
				}
				rows := make([]int64, len(want))
				for i := range rows {
					rows[i] = int64((i * 13) % len(rows))
				}
				examples, err := d.NewReader(ReaderConfig{Seed: 9}).Read(t.Context(), 1, rows)
				if err != nil {
					t.Fatalf("%s, %s: %v", file, name, err)
				}
				for i, row := range rows {
					r, e := &want[row], &examples[i]
					where := fmt.Sprintf("%s, %s, row %d", file, name, row)
					query := r.Query
					if strings.HasPrefix(src.Query, "Q") {
						query = "Q: " + r.Query
					}
					if texts := append([]string{query}, c.texts(r, e)...); !slices.Equal(e.Texts, texts) {
						t.Fatalf("%s: texts %q, want %q", where, e.Texts, texts)
					}
					if c.scores != nil && !slices.Equal(e.Scores, c.scores(r, e)) || c.scores == nil && e.Scores != nil {
						t.Fatalf("%s: scores %v of %q, want %v", where, e.Scores, e.Texts, c.scores(r, e))
					}
					label := r.Label
					if src.Label == "stars" {
						label = r.Stars
					}
					if e.Label != label || !slices.Equal(e.Teacher, r.Teacher) {
						t.Fatalf("%s: label %v, teacher %v", where, e.Label, e.Teacher)
					}
					if got := x.Hashes(nil, 9, 1, row); !slices.Equal(got, e.Hashes) || len(got) != len(e.Texts) {
						t.Fatalf("%s: the index has %d other texts than the reader", where, len(got))
					}
					at := 0
					for col, column := range d.Columns() {
						from, to := e.Column(col)
						if from != at || !column.Ragged && to != from+1 || column.Ragged && to-from != len(r.Neg) {
							t.Fatalf("%s: column %d is texts %d to %d, after %d", where, col, from, to, at)
						}
						at = to
					}
					if at != len(e.Texts) {
						t.Fatalf("%s: columns end at text %d of %d", where, at, len(e.Texts))
					}
				}
			}
		}
	}
}

// TestShapeErrors: what is wrong with names and with rows, to act on. Both formats say the same of the rows.
func TestShapeErrors(t *testing.T) {
	at := []string{golden("shapes.parquet")}
	for _, c := range []struct {
		src  Source
		is   error
		want string
	}{
		{Source{Query: "query", Positive: "positive", Label: "labell"}, ErrMissingColumn, `did you mean "label"?`},
		{Source{Query: "query", Positive: "positive", Label: "text"}, ErrColumnType, `column "text" is string, want a number`},
		{Source{Query: "query", Positive: "positive", Label: "teacher"}, ErrColumnType, `column "teacher" is a list, want a number`},
		{Source{Query: "query", Positive: "positive", Weight: "teacher"}, ErrColumnType, `column "teacher" is a list, want a number`},
		{Source{Query: "query", Positive: "positive", Teacher: "label"}, ErrColumnType, `column "label" is no list, want a list of numbers`},
		{Source{Query: "query", Positive: "positive", Scores: []string{"pos"}}, ErrColumnType, `column "pos" is list<string>, want a number or a list of numbers`},
		{Source{Query: "query", Positive: "positive", NegativesPerQuery: AllNegatives}, ErrColumnType, "negatives_per_query is all, but no column of negatives is a list"},
		{Source{Query: "query", Positive: "positive", NegativesPerQuery: 1, Raw: true}, ErrColumnType, "negatives_per_query is 1, but no column of negatives is a list"},
		{Source{Query: "query", Positive: "positive", Negatives: []string{"neg"}, NegativesPerQuery: -2}, ErrColumnType, "negatives_per_query is -2: want how many texts"},
		{Source{Query: "query", Positive: "{pos} {text}"}, ErrColumnType, `column "pos" of the template "{pos} {text}" is list<string>`},
		{Source{Query: "query", Positive: "{titel} {text}"}, ErrMissingColumn, `has no column "titel"`},
		{Source{Query: "query", Positive: "{title {text}"}, ErrMissingColumn, "a { without a column"},
		{Source{Query: "query", Positive: "title} {text}"}, ErrMissingColumn, "a } without {"},
		{Source{Query: "query", Negatives: []string{"neg"}, Label: "label"}, ErrMissingColumn, "single texts with a label or"},
		{Source{Query: "query", Negatives: []string{"neg"}, Scores: []string{"score"}, Label: "label"}, ErrMissingColumn, "single texts with a label or"},
	} {
		c.src.Paths = at
		d, err := Open(t.Context(), c.src)
		if err == nil {
			d.Close()
		}
		if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v:\n got %v\nwant %q", c.src, err, c.want)
		}
	}
	if d, err := Open(t.Context(), Source{Paths: at, Query: "query", Positive: "positive", Negatives: []string{"neg"}, NegativesPerQuery: 1, Raw: true}); err != nil {
		t.Errorf("raw lists, which give all their texts: %v", err)
	} else {
		d.Close()
	}
	yes := write(t, map[string]string{"yes.jsonl": `{"q": "a", "p": "b", "l": true}`})
	if _, err := Open(t.Context(), Source{Paths: []string{filepath.Join(yes, "yes.jsonl")}, Query: "q", Positive: "p", Label: "l", Weight: "l"}); !errors.Is(err, ErrColumnType) || !strings.Contains(err.Error(), `column "l" is true or false, want a number`) {
		t.Errorf("labels that are weights too: %v", err)
	}
	folder := write(t, map[string]string{"rows.jsonl": strings.Join([]string{
		`{"q": "a", "p": "b", "n": ["c"], "s": [1, 2], "l": 1, "e": [1, 2]}`,
		`{"q": "a", "p": "b", "n": [], "s": [1], "l": 1, "e": [1, 2]}`,
		`{"q": "a", "p": "b", "n": ["c", "d"], "s": [1, 2], "l": 1, "e": [1, 2]}`,
		`{"q": "a", "p": "b", "n": ["c"], "s": [1, null], "l": 1, "e": [1, 2]}`,
		`{"q": "a", "p": "b", "n": ["c"], "s": [1, "2"], "l": 1, "e": [1, 2]}`,
		`{"q": "a", "p": "b", "n": ["c"], "s": [1, 1e99], "l": 1, "e": [1, 2]}`,
		`{"q": "a", "p": "b", "n": ["c"], "s": [1, 2], "l": null, "e": [1, 2]}`,
		`{"q": "a", "p": "b", "n": ["c"], "s": [1, 2], "l": 1, "e": [1]}`,
		`{"q": "a", "p": "b", "n": ["c"], "s": [1, 2], "l": 1}`,
		`{"q": "a", "p": "b", "n": ["c", " "], "s": [1, 2, 3], "l": 1, "e": [1, 2]}`,
		`{"q": "a", "p": "b", "n": null, "s": [1], "l": 1, "e": [1, 2]}`,
		`{"p": "b", "n": ["c"], "s": [1, 2], "l": 1, "e": [1, 2]}`,
	}, "\n")})
	src := Source{Paths: []string{filepath.Join(folder, "rows.jsonl")}, Query: "q", Positive: "{p}{x}", Negatives: []string{"n"}, NegativesPerQuery: AllNegatives, Label: "l", Scores: []string{"s"}, Teacher: "e"}
	if _, err := Open(t.Context(), src); err == nil || !strings.Contains(err.Error(), `no column "x"`) {
		t.Errorf("a template's column that is not there: %v", err)
	}
	src.Positive = "p"
	d, err := Open(t.Context(), src)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	x, err := d.Index(t.Context(), IndexConfig{SkipBad: true})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, b := range x.Bad() {
		got = append(got, fmt.Sprintf("%d %s: %s", b.Row, b.Column, b.Reason))
	}
	want := []string{
		"2 s: the row has 2 scores for its 3 documents: scores are one for the positive and one for each negative, in the order of their columns; if they are differences to the positive's score, d1, d2, ... (margin_mse), the scores are 0, -d1, -d2, ...",
		"3 s: score 1 of the list is null or NaN: it must be a number",
		"4 s: it is a string, want a list of numbers",
		"5 s: score 1 of the list is +Inf, infinite or beyond the 3.4028235e+38 of float32: it must be a number",
		"6 l: it is null, want a number",
		"7 e: the list has 1 numbers, the first one has 2: a teacher's embeddings all have one length",
		"8 e: the list is null or empty",
		"9 n: text 1 of the list is blank",
		"11 q: the text is missing: the row has no such key",
	}
	if !slices.Equal(got, want) {
		t.Errorf("bad rows:\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	_, err = d.NewReader(ReaderConfig{}).Read(t.Context(), 0, []int64{0, 2})
	var bad *RowError
	if !errors.As(err, &bad) || bad.Location.Line != 3 || bad.Column != "s" {
		t.Errorf("reading a bad row: %v", err)
	}
}

// Of margins the positive's score is 0, whichever negatives an epoch draws. The first row tells whether numbers are margins: another one with as many as documents,
// or with several positives, where they would be to nobody knows which, can't be used then, and among rows of scores none with one fewer.
func TestMargins(t *testing.T) {
	folder := write(t, map[string]string{"margins.jsonl": strings.Join([]string{
		`{"q": "a", "p": ["b"], "n": ["c", "d", "e"], "s": [1, 2, -3]}`,
		`{"q": "a", "p": ["b"], "n": ["c"], "s": [0.5]}`,
		`{"q": "a", "p": ["b"], "n": ["c", "d"], "s": [5, 3, 1]}`,
		`{"q": "a", "p": ["b", "f"], "n": ["c"], "s": [1, 2]}`,
		`{"q": "a", "p": ["b"], "n": ["c", "d", "e"], "s": [1, 2]}`,
	}, "\n"), "scores.jsonl": strings.Join([]string{
		`{"q": "a", "p": "b", "n": ["c"], "s": null}`,
		`{"q": "a", "p": "b", "n": ["c"], "s": [2, 1]}`,
		`{"q": "a", "p": "b", "n": ["c"], "s": [2]}`,
	}, "\n"), "columns.jsonl": strings.Join([]string{
		`{"q": "a", "p": "b", "n": ["c", "d"], "s": null, "t": [2, 1]}`,
		`{"q": "a", "p": "b", "n": ["c", "d"], "s": [3], "t": [2, 1]}`,
	}, "\n")})
	opened := func(name string, scores ...string) *Dataset {
		d, err := Open(t.Context(), Source{Paths: []string{filepath.Join(folder, name)}, Query: "q", Positive: "p", Negatives: []string{"n"}, NegativesPerQuery: 2, Scores: scores, Margins: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		return d
	}
	d := opened("margins.jsonl", "s")
	of := map[string]float32{"b": 0, "c": -1, "d": -2, "e": 3}
	for epoch := range 5 {
		rows, err := d.NewReader(ReaderConfig{}).Read(t.Context(), epoch, []int64{0, 1})
		if err != nil {
			t.Fatal(err)
		}
		for i, text := range rows[0].Texts[1:] {
			if got := rows[0].Scores[i]; got != of[string(text)] {
				t.Errorf("epoch %d: %s has the score %v, want %v", epoch, text, got, of[string(text)])
			}
		}
		if got, want := rows[1].Scores, []float32{0, -0.5, -0.5}; !slices.Equal(got, want) {
			t.Errorf("scores are %v, want %v", got, want)
		}
	}
	scores, columns := opened("scores.jsonl", "s"), opened("columns.jsonl", "s", "t")
	for _, c := range []struct {
		d    *Dataset
		row  int64
		want string
	}{
		{d, 2, "3 scores for its 3 documents, and the first row one fewer"}, {d, 3, "2 scores for its 3 documents"}, {d, 4, "2 scores for its 4 documents"},
		{scores, 2, "1 scores for its 2 documents: scores are one for"}, {columns, 0, "2 scores for its 3 documents: scores are one for"},
	} {
		if _, err := c.d.NewReader(ReaderConfig{}).Read(t.Context(), 0, []int64{c.row}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("row %d: %v, want %q", c.row, err, c.want)
		}
	}
	for d, row := range map[*Dataset]int64{scores: 1, columns: 1} {
		if _, err := d.NewReader(ReaderConfig{}).Read(t.Context(), 0, []int64{row}); err != nil {
			t.Error(err)
		}
	}
}

// TestShapeFingerprint: what rows carry is part of what a cursor is of.
func TestShapeFingerprint(t *testing.T) {
	for _, file := range []string{"shapes.parquet", "shapes.jsonl"} { // of the first the columns' bytes are hashed as well
		seen := map[Hash128]string{}
		base := Source{Paths: []string{golden(file)}, Query: "query", Positive: "positive", Negatives: []string{"neg"}, NegativesPerQuery: AllNegatives}
		for name, change := range map[string]func(*Source){
			"plain": func(*Source) {}, "label": func(s *Source) { s.Label = "label" }, "other label": func(s *Source) { s.Label = "stars" },
			"documents":       func(s *Source) { s.Positive, s.Negatives, s.NegativesPerQuery, s.Documents = "", nil, 0, "pos" },
			"other documents": func(s *Source) { s.Positive, s.Negatives, s.NegativesPerQuery, s.Documents = "", nil, 0, "neg" },
			"scores":          func(s *Source) { s.Scores = []string{"score", "neg_scores"} }, "other scores": func(s *Source) { s.Scores = []string{"stars", "neg_scores"} },
			"teacher": func(s *Source) { s.Teacher = "teacher" }, "sampled": func(s *Source) { s.NegativesPerQuery = 1 },
			"joined": func(s *Source) { s.Positive = "{title} {text}" }, "joined otherwise": func(s *Source) { s.Positive = "{title}: {text}" },
		} {
			src := base
			change(&src)
			d, err := Open(context.Background(), src)
			if err != nil {
				t.Fatal(err)
			}
			if other, ok := seen[d.Fingerprint()]; ok {
				t.Errorf("%s: %s and %s have one fingerprint", file, name, other)
			}
			seen[d.Fingerprint()] = name
		}
	}
}

// TestStoredFingerprint: a parquet file whose footer and size are what they were, but not what it holds in the columns in use, is other data.
func TestStoredFingerprint(t *testing.T) {
	raw, err := os.ReadFile(golden("shapes.parquet"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "shapes.parquet")
	open := func(raw []byte, label string) *Dataset {
		t.Helper()
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		d, err := Open(t.Context(), Source{Paths: []string{path}, Query: "query", Positive: "positive", Label: label})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	before, labelled := open(raw, ""), open(raw, "label")
	for _, chunks := range labelled.files[0].groups {
		for i, c := range chunks {
			for _, at := range []int64{c.offset, (c.offset + c.end) / 2, c.end - 1} {
				changed := slices.Clone(raw)
				changed[at] ^= 1
				if got, used := open(changed, "").Fingerprint() != before.Fingerprint(), i < 2; got != used {
					t.Errorf("byte %d of column %d: fingerprint changed: %v, want %v", at-c.offset, i, got, used)
				}
				if open(changed, "label").Fingerprint() == labelled.Fingerprint() {
					t.Errorf("byte %d of column %d is not in the fingerprint", at-c.offset, i)
				}
			}
		}
	}
	if open(raw, "").Fingerprint() != before.Fingerprint() {
		t.Error("the same file has another fingerprint")
	}
	// Of raw sources the pages are not read: prep opens them on every worker.
	changed := slices.Clone(raw)
	changed[before.files[0].groups[0][0].offset] ^= 1
	var sums [2]Hash128
	for i, b := range [][]byte{raw, changed} {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		d, err := Open(t.Context(), Source{Paths: []string{path}, Query: "query", Positive: "positive", Raw: true})
		if err != nil {
			t.Fatal(err)
		}
		sums[i] = d.Fingerprint()
	}
	if sums[0] != sums[1] {
		t.Error("opening a raw source reads its pages")
	}
}

// BenchmarkFingerprint hashes a column's worth of bytes from the page cache.
func BenchmarkFingerprint(b *testing.B) {
	path := filepath.Join(b.TempDir(), "bytes")
	const size = 256 << 20
	if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
		b.Fatal(err)
	}
	p := &parquetFile{path: path, size: size}
	b.SetBytes(size)
	for b.Loop() {
		if _, err := p.hashRange(0, size); err != nil {
			b.Fatal(err)
		}
	}
}

// Which groups are lists of texts is told by what repeats, and in old files by names (parquet-format's LogicalTypes.md, "Backward-compatibility rules").
func TestListShapes(t *testing.T) {
	group := func(name string, repetition format.FieldRepetitionType, children int32) format.SchemaElement {
		return format.SchemaElement{Name: name, RepetitionType: thrift.New(repetition), NumChildren: thrift.New(children)}
	}
	leaf := func(name string, repetition format.FieldRepetitionType) format.SchemaElement {
		return format.SchemaElement{Name: name, RepetitionType: thrift.New(repetition), Type: thrift.New(format.ByteArray)}
	}
	list := group("pos", format.Optional, 1)
	list.ConvertedType = thrift.New(deprecated.List)
	for name, c := range map[string]struct {
		elems []format.SchemaElement // inside pos
		list  bool
	}{
		"three levels":           {[]format.SchemaElement{group("list", format.Repeated, 1), leaf("element", format.Optional)}, true},
		"two levels":             {[]format.SchemaElement{leaf("array", format.Repeated)}, true},
		"any name":               {[]format.SchemaElement{group("bag", format.Repeated, 1), leaf("x", format.Required)}, true},
		"of structs, by array":   {[]format.SchemaElement{group("array", format.Repeated, 1), leaf("element", format.Optional)}, false},
		"of structs, by _tuple":  {[]format.SchemaElement{group("pos_tuple", format.Repeated, 1), leaf("element", format.Optional)}, false},
		"of structs, by fields":  {[]format.SchemaElement{group("list", format.Repeated, 2), leaf("a", format.Optional), leaf("b", format.Optional)}, false},
		"of lists":               {[]format.SchemaElement{group("list", format.Repeated, 1), leaf("element", format.Repeated)}, false},
		"nothing repeats":        {[]format.SchemaElement{group("list", format.Optional, 1), leaf("element", format.Optional)}, false},
		"one text, not repeated": {[]format.SchemaElement{leaf("element", format.Optional)}, false},
	} {
		root, _, err := buildSchema(append([]format.SchemaElement{group("schema", format.Required, 1), list}, c.elems...))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if col, ok := root.find("pos")[0].asColumn(); ok != c.list || col.list != c.list {
			t.Errorf("%s: a list of texts %v, want %v", name, ok, c.list)
		}
	}
}

// Old writers say by converted types alone what a number or a text is (parquet.thrift lists them).
func TestConvertedTypes(t *testing.T) {
	numbers := []deprecated.ConvertedType{deprecated.Uint8, deprecated.Uint16, deprecated.Uint32, deprecated.Uint64, deprecated.Int8, deprecated.Int16, deprecated.Int32, deprecated.Int64}
	texts := []deprecated.ConvertedType{deprecated.UTF8, deprecated.Enum, deprecated.Json}
	for c := deprecated.UTF8; c <= deprecated.Interval; c++ {
		of := func(kind format.Type) *node {
			return &node{elem: &format.SchemaElement{Type: thrift.New(kind), ConvertedType: thrift.New(c)}}
		}
		if number, text := of(format.Int32).isNumber(), of(format.ByteArray).isText(); number != slices.Contains(numbers, c) || text != slices.Contains(texts, c) {
			t.Errorf("%v: a number %v, a text %v", c, number, text)
		}
		if of(format.Int64).isPlain() != slices.Contains(numbers, c) {
			t.Errorf("%v: plain", c)
		}
	}
}
