package quickstart

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/io/dataset"
	"contraflow/stages/embedder"
	"contraflow/stages/gopairs"
	"contraflow/testdata/goldens"
)

// A comment comes with its function first, whose score is raised, and with others, none of which is its own, another with the same text, or one of the same comment.
func TestMine(t *testing.T) {
	e, err := embedder.Load(goldens.Path(t, "bert/minilm-tiny"))
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	var pairs []gopairs.Pair
	for i := range 9 { // of whose eight others each comment gets seven
		pairs = append(pairs, gopairs.Pair{Comment: fmt.Sprintf("the cat %d sees a bird and a river", i), Body: fmt.Sprintf("func bird%d() { sees(cat, river, %d) }", i, i)})
	}
	pairs[7].Body, pairs[1].Comment = pairs[8].Body, strings.ToUpper(pairs[3].Comment)
	path := filepath.Join(t.TempDir(), "mined.parquet")
	if err := mine(t.Context(), e, pairs, 1, path); err != nil {
		t.Fatal(err)
	}
	d, err := dataset.Open(t.Context(), dataset.Source{Paths: []string{path}, Query: "comment", Positive: "body", Negatives: []string{"negatives"}, Scores: []string{"scores"}, InOrder: true, Raw: true})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	// What BM25 and the encoder make of each function together.
	data := &dataset.Retrieval{}
	for i, p := range pairs {
		data.QueryIDs, data.Queries = append(data.QueryIDs, fmt.Sprint(i)), append(data.Queries, p.Comment)
		data.DocIDs, data.Docs = append(data.DocIDs, fmt.Sprint(i)), append(data.Docs, p.Body)
	}
	task, err := e.NewTask(t.Context(), data, "", "")
	if err != nil {
		t.Fatal(err)
	}
	bm25, err := task.RankBM25(t.Context(), 100)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := e.Rank(t.Context(), task, 100)
	if err != nil {
		t.Fatal(err)
	}
	fused, i := task.Fuse(200, bm25, encoded), 0
	for row, err := range d.Each(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		p := pairs[i]
		others := row.Column(nil, 2)
		if own := row.Column(nil, 1); !slices.Equal(own, []string{p.Body}) || len(others) != 7 {
			t.Errorf("comment %d has %q first, and %d others", i, own, len(others))
		}
		scores := row.Scores(nil, row.Place)
		for _, h := range fused[i] {
			other, at := pairs[h.Doc], slices.Index(others, pairs[h.Doc].Body)
			got, want := float64(h.Score), float64(h.Score)
			switch own := int(h.Doc) == i; {
			case own:
				got, want = float64(scores[0]), want+2
			case other.Body == p.Body || strings.EqualFold(other.Comment, p.Comment):
				if at >= 0 {
					t.Errorf("comment %d has function %d among the others", i, h.Doc)
				}
			case at >= 0:
				got = float64(scores[1+at])
			}
			if !(math.Abs(got-want) <= 1e-5) {
				t.Errorf("comment %d: function %d has the score %v, want %v", i, h.Doc, got, want)
			}
		}
		i++
	}
	if i != len(pairs) {
		t.Errorf("%d rows, want %d", i, len(pairs))
	}
}
