package evaluate

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// golden reads testdata/golden/evaluate/NAME.json, which make.py beside it made with trec_eval, scipy and bm25s.
func golden(t testing.TB, name string, into any) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("..", "..", "testdata", "golden", "evaluate", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, into); err != nil {
		t.Fatal(err)
	}
}

func ids(t testing.TB, names ...string) *IDs {
	t.Helper()
	ids, err := NewIDs(names)
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

type retrievalGolden struct {
	Docs, Queries []string
	Qrels         map[string]map[string]int
	Run           map[string]map[string]float64
	Values        map[string]map[string]float64
	Means         map[string]float64
}

func (g *retrievalGolden) load(t *testing.T) (Run, *Qrels) {
	golden(t, "retrieval", g)
	qrels := NewQrels(ids(t, g.Queries...), ids(t, g.Docs...))
	for query, judged := range g.Qrels {
		for doc, relevance := range judged {
			if err := qrels.Add(query, doc, relevance); err != nil {
				t.Fatal(err)
			}
		}
	}
	run := make(Run, len(g.Queries))
	for q, query := range g.Queries {
		for doc, score := range g.Run[query] { // in any order
			d, ok := qrels.Docs.Number(doc)
			if !ok {
				t.Fatalf("document %q", doc)
			}
			run[q] = append(run[q], Hit{int32(d), float32(score)})
		}
	}
	return run, qrels
}

func TestAgreesWithTrecEval(t *testing.T) {
	var g retrievalGolden
	run, qrels := g.load(t)
	var measures []Measure
	for name := range g.Means {
		m, err := ParseMeasure(name)
		if err != nil {
			t.Fatal(err)
		}
		measures = append(measures, m)
	}
	if len(measures) != 29 {
		t.Fatalf("the golden has %d measures", len(measures))
	}
	r, err := Evaluate(run, qrels, measures...)
	if err != nil {
		t.Fatal(err)
	}
	// The sums are trec_eval's in trec_eval's order; only the logarithm's last bit may differ.
	const tolerance = 1e-14
	for i, m := range measures {
		for j, query := range r.Queries {
			want, ok := g.Values[qrels.Queries.Name(query)][m.String()]
			if got := r.Values[i][j]; !ok || !(math.Abs(got-want) <= tolerance) {
				t.Errorf("%s of query %s: got %.17g, want %.17g", m, qrels.Queries.Name(query), got, want)
			}
		}
		if got := r.Means[i]; !(math.Abs(got-g.Means[m.String()]) <= tolerance) {
			t.Errorf("mean %s: got %.17g, want %.17g", m, got, g.Means[m.String()])
		}
	}
	if len(r.Queries) != len(g.Values) || r.Unjudged != 1 || r.Irrelevant < 1 || r.Unanswered != 2 {
		t.Errorf("counted %d queries of %d, %d unjudged, %d irrelevant, %d unanswered", len(r.Queries), len(g.Values), r.Unjudged, r.Irrelevant, r.Unanswered)
	}
	if q, d := qrels.Unknown(); q != 1 || d != 1 {
		t.Errorf("unknown: %d queries, %d documents", q, d)
	}
}

// What TopK cuts at k must be what trec_eval would have cut, ties included.
func TestTopKCutsWhereTrecEvalDoes(t *testing.T) {
	var g retrievalGolden
	full, qrels := g.load(t)
	for _, k := range []int{1, 3, 10} {
		var run Run
		for _, hits := range full {
			top, err := NewTopK(1, k, qrels.Docs.TieOrder())
			if err != nil {
				t.Fatal(err)
			}
			for _, h := range hits {
				if err := top.Add(0, int(h.Doc), []float32{h.Score}, 1); err != nil {
					t.Fatal(err)
				}
			}
			run = append(run, top.Run()...)
		}
		r, err := Evaluate(run, qrels, NDCG(k), MRR(0), Recall(0))
		if err != nil {
			t.Fatal(err)
		}
		for i, name := range []Measure{NDCG(k), MRR(k), Recall(k)} {
			if got, want := r.Means[i], g.Means[name.String()]; !(math.Abs(got-want) <= 1e-14) {
				t.Errorf("k = %d: mean %s: got %.17g, want %.17g", k, name, got, want)
			}
		}
	}
}

func TestCorrelationAgreesWithScipy(t *testing.T) {
	var g struct {
		Cases []struct {
			Name              string
			X, Y              []float64
			Pearson, Spearman float64
		}
	}
	golden(t, "correlation", &g)
	for _, c := range g.Cases {
		s, err := EvaluateSTS(c.X, c.Y)
		if err != nil {
			t.Fatalf("%s: %v", c.Name, err)
		}
		// A mean of 1e6 over values of 1 leaves 1e-16 * 1e6 of them.
		tolerance := 1e-13
		if c.Name == "large_offset" {
			tolerance = 1e-9
		}
		if !(math.Abs(s.Pearson-c.Pearson) <= tolerance) || !(math.Abs(s.Spearman-c.Spearman) <= 1e-13) {
			t.Errorf("%s: got %+v, want pearson %.17g and spearman %.17g", c.Name, s, c.Pearson, c.Spearman)
		}
	}
}

func TestBM25AgreesWithBM25S(t *testing.T) {
	var g struct {
		Docs, Queries []string
		Terms         [][]string
		Cases         []struct {
			K1, B  float64
			Scores []map[int]float64
		}
	}
	golden(t, "bm25", &g)
	for i, want := range g.Terms {
		if got := Analyze(g.Docs[i]); !slices.Equal(got, want) {
			t.Errorf("terms of %q: got %q, want %q", g.Docs[i], got, want)
		}
	}
	for _, c := range g.Cases {
		index, err := NewBM25(t.Context(), g.Docs, BM25Options{K1: c.K1, B: c.B})
		if err != nil {
			t.Fatal(err)
		}
		all, err := index.Search(t.Context(), g.Queries, len(g.Docs))
		if err != nil {
			t.Fatal(err)
		}
		best, err := index.Search(t.Context(), g.Queries, 7)
		if err != nil {
			t.Fatal(err)
		}
		for q, hits := range all {
			if len(hits) != len(c.Scores[q]) {
				t.Errorf("k1 %g, b %g, query %d: %d documents, want %d", c.K1, c.B, q, len(hits), len(c.Scores[q]))
			}
			for rank, h := range hits {
				// Weights are rounded to float32 and so is each of up to 8 additions.
				want := c.Scores[q][int(h.Doc)]
				if !(math.Abs(float64(h.Score)-want) <= 5e-7*want) {
					t.Errorf("k1 %g, b %g, query %d, document %d: got %.9g, want %.9g", c.K1, c.B, q, h.Doc, h.Score, want)
				}
				if rank > 0 && !better(hits[rank-1], h, nil) {
					t.Errorf("k1 %g, b %g, query %d: %v before %v", c.K1, c.B, q, hits[rank-1], h)
				}
			}
			if !slices.Equal(best[q], hits[:min(7, len(hits))]) {
				t.Errorf("k1 %g, b %g, query %d: the best 7 are %v, want %v", c.K1, c.B, q, best[q], hits[:min(7, len(hits))])
			}
		}
	}
}
