package dataset

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// A list of all of a row's documents with a score each gives them as they stand in the file, as the goldens' script wrote it: the first is the
// positive, and a row may have no other.
func TestDocuments(t *testing.T) {
	var want []shapeRow
	readJSON(t, golden("shapes.json"), &want)
	longest := 0
	for _, file := range []string{"shapes.parquet", "shapes_f32.parquet", "shapes.jsonl"} {
		for _, limit := range []blockLimit{defaultLimit, {7, 1 << 20}} {
			d, err := open(t.Context(), Source{Paths: []string{golden(file)}, Query: "query", Documents: "pos", Scores: []string{"pos_scores"}}, limit)
			if err != nil {
				t.Fatal(err)
			}
			x, err := d.Index(t.Context(), IndexConfig{})
			if err != nil {
				t.Fatal(err)
			}
			rows := make([]int64, len(want))
			for i := range rows {
				rows[i] = int64((i * 13) % len(rows))
			}
			examples, err := d.NewReader(ReaderConfig{Seed: 9}).Read(t.Context(), 1, rows)
			if err != nil {
				t.Fatal(err)
			}
			for i, row := range rows {
				r, e := &want[row], &examples[i]
				longest = max(longest, len(r.Pos))
				if !slices.Equal(e.Texts, append([]string{r.Query}, r.Pos...)) || !slices.Equal(e.Scores, r.PosScores) {
					t.Fatalf("%s, row %d: texts %q, scores %v, want %q, %v", file, row, e.Texts, e.Scores, r.Pos, r.PosScores)
				}
				if got := x.Hashes(nil, 9, 1, row); !slices.Equal(got, e.Hashes) || len(got) != len(e.Texts) {
					t.Fatalf("%s, row %d: the index has other texts than the reader", file, row)
				}
				if got, want := e.Starts, []int32{0, 1, 2, int32(len(e.Texts))}; !slices.Equal(got, want) {
					t.Fatalf("%s, row %d: columns begin at %v, want %v", file, row, got, want)
				}
			}
			if most := d.MostTexts(); limit == defaultLimit && most != 1+longest {
				t.Errorf("%s: an example has %d texts at most, want %d", file, most, 1+longest)
			}
		}
	}
	if longest < 3 {
		t.Fatalf("the longest list has %d texts", longest)
	}
}

// TestMostTexts: room is made for the largest row, not for one of the mean.
func TestMostTexts(t *testing.T) {
	dir := write(t, map[string]string{"a.jsonl": `{"q": "a", "p": "b", "n": ["c"]}
{"q": "a", "p": "b", "n": ["c", "d", "e", "f", "g"]}
{"q": "a", "p": "b", "n": []}
`})
	d, err := Open(t.Context(), Source{Paths: []string{dir + "/a.jsonl"}, Query: "q", Positive: "p", Negatives: []string{"n"}, NegativesPerQuery: AllNegatives})
	if err != nil || d.MostTexts() != 7 {
		t.Errorf("%d texts, want 7: %v", d.MostTexts(), err)
	}
}

func TestDocumentsErrors(t *testing.T) {
	dir := write(t, map[string]string{
		"a.jsonl": `{"q": "a", "docs": ["x"], "text": "x", "labels": [1]}` + "\n" + `{"q": "b", "docs": ["x", "y"], "text": "x", "labels": [1, 0, 2]}` + "\n" + `{"q": "c", "docs": [], "text": "x", "labels": []}` + "\n",
	})
	base := Source{Paths: []string{dir + "/a.jsonl"}, Query: "q", Documents: "docs", Scores: []string{"labels"}}
	d, err := Open(t.Context(), base)
	if err != nil {
		t.Fatal(err)
	}
	for row, want := range map[int64]string{
		1: "a.jsonl:2, column \"labels\": the row has 3 scores for its 2 documents: scores are one for each document, in their order",
		2: "a.jsonl:3, column \"docs\": the list is null or empty",
	} {
		if _, err := d.NewReader(ReaderConfig{}).Read(t.Context(), 0, []int64{row}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("row %d: %v, want %q", row, err, want)
		}
	}
	one, err := Open(t.Context(), Source{Paths: base.Paths, Query: "q", Positive: "text", Negatives: []string{"q"}, Scores: base.Scores})
	if err != nil {
		t.Fatal(err)
	}
	const label = "the row has 1 scores for its 2 documents: scores are one for the positive and one for each negative, in the order of their columns; one number for both is a label, such as the difference of two scores (margin_mse)"
	const differences = "; if they are differences to the positive's score, d1, d2, ... (margin_mse), the scores are 0, -d1, -d2, ..."
	if _, err := one.NewReader(ReaderConfig{}).Read(t.Context(), 0, []int64{0}); err == nil || !strings.HasSuffix(err.Error(), label+differences) {
		t.Errorf("one score for two documents: %v", err)
	}
	if e, err := d.NewReader(ReaderConfig{}).Read(t.Context(), 0, []int64{0}); err != nil || len(e[0].Texts) != 2 {
		t.Errorf("a row of one document: %v, %v", e, err)
	}
	for _, c := range []struct {
		change func(*Source)
		kind   error
		want   string
	}{
		{func(s *Source) { s.Documents = "text" }, ErrColumnType, `column "text" is string, want list<string>: documents are lists`},
		{func(s *Source) { s.Positive = "text" }, ErrMissingColumn, "there is no positive column beside it"},
		{func(s *Source) { s.Documents = "{docs}" }, ErrMissingColumn, "no template"},
		{func(s *Source) { s.Negatives = []string{"docs"} }, ErrMissingColumn, "there is no positive column beside it, no negatives"},
		{func(s *Source) { s.NegativesPerQuery = AllNegatives }, ErrMissingColumn, "there is no positive column beside it, no negatives"},
		{func(s *Source) { s.Documents, s.Raw = "text", true }, ErrColumnType, `column "text" is string, want list<string>: documents are lists`},
		{func(s *Source) { s.Tokens = true }, ErrMissingColumn, "no token ids are read of it"},
	} {
		src := base
		c.change(&src)
		if _, err := Open(t.Context(), src); !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
	empty := write(t, map[string]string{"a.jsonl": "\n"})
	for _, raw := range []bool{false, true} {
		if _, err := Open(t.Context(), Source{Paths: []string{empty + "/a.jsonl"}, Query: "q", Documents: "docs", Raw: raw}); !errors.Is(err, ErrNoFiles) || !strings.Contains(err.Error(), "no rows") {
			t.Errorf("without rows: %v", err)
		}
	}
	src := base
	src.Documents, src.Positive, src.Negatives, src.NegativesPerQuery = "", "docs", []string{"docs"}, AllNegatives
	if other, err := Open(t.Context(), src); err != nil || other.Fingerprint() == d.Fingerprint() {
		t.Errorf("%v: one fingerprint for documents and for their parts", err)
	}
}

// Another column of documents is other data, though the files and all else are the same.
func TestDocumentsFingerprint(t *testing.T) {
	dir := write(t, map[string]string{"a.jsonl": `{"q": "a", "docs": ["x"], "more": ["y"]}` + "\n"})
	var prints []Hash128
	for _, column := range []string{"docs", "more", "docs"} {
		d, err := Open(t.Context(), Source{Paths: []string{dir + "/a.jsonl"}, Query: "q", Documents: column})
		if err != nil {
			t.Fatal(err)
		}
		prints = append(prints, d.Fingerprint())
	}
	if prints[0] == prints[1] || prints[0] != prints[2] {
		t.Errorf("fingerprints %v", prints)
	}
}
