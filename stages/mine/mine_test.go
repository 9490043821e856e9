package mine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"contraflow/gpustage/ref"
	"contraflow/stages/evaluate"
	"contraflow/testdata/goldens"
)

// Against sentence-transformers' mine_hard_negatives: every row, its negatives in order, and the scores.
func TestGolden(t *testing.T) {
	g := goldens.Load(t, "mine/negatives")
	var meta struct {
		Texts []string
		Pairs [][2]string
		Cases []struct {
			Options struct {
				Negatives int      `json:"num_negatives"`
				RangeMin  int      `json:"range_min"`
				RangeMax  int      `json:"range_max"`
				MinScore  *float64 `json:"min_score"`
				MaxScore  *float64 `json:"max_score"`
				Absolute  *float64 `json:"absolute_margin"`
				Relative  *float64 `json:"relative_margin"`
			}
			Cross  bool // rescored by the second embeddings
			Corpus []string
			Rows   []struct {
				Query, Positive string
				Negatives       []string
				Scores          []float64
			}
		}
	}
	g.Meta(t, &meta)
	dim := len(g.F64(t, "embeddings")) / len(meta.Texts)
	of := func(name string, texts []string) (out []float32) {
		for _, text := range texts {
			k := slices.Index(meta.Texts, text)
			for _, v := range g.F64(t, name)[k*dim : (k+1)*dim] {
				out = append(out, float32(v))
			}
		}
		return out
	}
	embed := func(texts []string) []float32 { return of("embeddings", texts) }
	rescore := func(_ context.Context, queries, documents []string) (out []float32, err error) {
		q, d := of("cross", queries), of("cross", documents)
		for i := range queries {
			out = append(out, float32(evaluate.Product(q[i*dim:(i+1)*dim], d[i*dim:(i+1)*dim])))
		}
		return out, nil
	}
	var queries, positives []string
	for _, p := range meta.Pairs {
		queries, positives = append(queries, p[0]), append(positives, p[1])
	}
	mined := 0
	for i, c := range meta.Cases {
		o := Options{
			Negatives: max(c.Options.Negatives, 0), RangeMin: c.Options.RangeMin, RangeMax: c.Options.RangeMax, MinScore: c.Options.MinScore,
			MaxScore: c.Options.MaxScore, AbsoluteMargin: c.Options.Absolute, RelativeMargin: c.Options.Relative,
		}
		if o.Negatives == 0 {
			o.Negatives = 3
		}
		if c.Cross {
			o.Rescore = rescore
		}
		p := Pair(queries, positives, c.Corpus)
		rows, short, err := p.Mine(t.Context(), ref.New(), o, embed(p.Queries), embed(p.Corpus), dim, nil)
		if err != nil {
			t.Fatal(err)
		}
		if short+len(rows) != len(p.Rows) {
			t.Errorf("case %d: %d rows and %d short, of %d", i, len(rows), short, len(p.Rows))
		}
		// The peer's rows come query by query.
		slices.SortStableFunc(rows, func(a, b Row) int { return a.Query - b.Query })
		if len(rows) != len(c.Rows) {
			t.Errorf("case %d: %d rows, want %d", i, len(rows), len(c.Rows))
			continue
		}
		for k, want := range c.Rows {
			r := rows[k]
			got, scores := []string{}, []float64{float64(r.Score)}
			for _, h := range r.Negatives {
				got, scores = append(got, p.Corpus[h.Doc]), append(scores, float64(h.Score))
			}
			if p.Queries[r.Query] != want.Query || p.Corpus[r.Positive] != want.Positive || !slices.Equal(got, want.Negatives) {
				t.Errorf("case %d, row %d: %s %s %v, want %v", i, k, p.Queries[r.Query], p.Corpus[r.Positive], got, want)
			}
			for j, s := range want.Scores {
				if !(math.Abs(s-scores[j]) <= 1e-6) {
					t.Errorf("case %d, row %d: scores %v, want %v", i, k, scores, want.Scores)
				}
			}
			mined++
		}
	}
	if mined < 300 {
		t.Errorf("only %d rows were mined", mined)
	}
}

// A sample is of the range, without the positive, the same for the same seed, and reaches the range's last candidate.
func TestSample(t *testing.T) {
	var hits []evaluate.Hit
	for i := range 30 {
		hits = append(hits, evaluate.Hit{Doc: int32(i), Score: 1 - float32(i)/100})
	}
	o := Options{Negatives: 3, RangeMin: 2, RangeMax: 10, Sample: true}
	seen := map[int32]int{}
	for seed := range uint64(200) {
		o.Seed = seed
		got := o.Choose(5, hits, []int32{4}, nil, 1, 1)
		if again := o.Choose(5, hits, []int32{4}, nil, 1, 1); !slices.Equal(got, again) || len(got) != 3 || got[0].Score < got[1].Score || got[1].Score < got[2].Score {
			t.Fatalf("seed %d: %v, then %v", seed, got, again)
		}
		for _, h := range got {
			seen[h.Doc]++
		}
	}
	for doc := range int32(30) { // without the positive, document 4: ranks 2 to 9 are documents 2, 3, 5, ... 10
		if in := doc >= 2 && doc <= 10 && doc != 4; in != (seen[doc] > 0) {
			t.Errorf("document %d was drawn %d times", doc, seen[doc])
		}
	}
}

// Corpora of questions have the queries as documents: neither they nor a positive, with whitespace around it or without, are negatives, and what is
// left out for that makes no list shorter.
func TestSameText(t *testing.T) {
	corpus := []string{"far", "query", " query\n", "positive ", "near", "nearer", "other"}
	p := Pair([]string{"query", "other"}, []string{"positive", "positive"}, corpus)
	at := func(text string) int32 { return int32(slices.Index(p.Corpus, text)) }
	if want := [][]int32{{at("query"), at(" query\n"), at("positive ")}, {at("other"), at("positive ")}}; fmt.Sprint(p.Same) != fmt.Sprint(want) {
		t.Errorf("the same are %v, want %v", p.Same, want)
	}
	of := map[string]float32{"far": 0.2, "query": 1, " query\n": 1, "positive ": 0.9, "positive": 0.9, "near": 0.6, "nearer": 0.8, "other": 0.1}
	embed := func(texts []string) (out []float32) {
		for _, text := range texts {
			x := of[text]
			out = append(out, x, float32(math.Sqrt(float64(1-x*x))))
		}
		return out
	}
	rows, short, err := p.Mine(t.Context(), ref.New(), Options{Negatives: 3}, []float32{1, 0, 1, 0}, embed(p.Corpus), 2, nil)
	if err != nil || short != 0 || len(rows) != 2 {
		t.Fatalf("%v, %d short, %v", rows, short, err)
	}
	for i, want := range [][]string{{"nearer", "near", "far"}, {"query", " query\n", "nearer"}} {
		var got []string
		for _, h := range rows[i].Negatives {
			got = append(got, p.Corpus[h.Doc])
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s has the negatives %q, want %q", p.Queries[rows[i].Query], got, want)
		}
	}
}

// A score that is no number is an error that says whose, not a negative.
func TestRescoreNaN(t *testing.T) {
	for bad := range 12 { // of 2 x 2 candidates and 2 positives, NaN or infinite
		p := Pair([]string{"a", "b"}, []string{"x", "y"}, nil)
		n := 0
		margin := 0.1
		o := Options{Negatives: 1, AbsoluteMargin: &margin, Rescore: func(_ context.Context, queries, _ []string) (out []float32, err error) {
			for range queries {
				out = append(out, float32(n))
				if n++; n == bad%6+1 {
					out[len(out)-1] = []float32{float32(math.NaN()), float32(math.Inf(-1))}[bad/6]
				}
			}
			return out, nil
		}}
		x := []float32{1, 0, 0, 1}
		if rows, _, err := p.Mine(t.Context(), ref.New(), o, x, x, 2, nil); err == nil || !strings.Contains(err.Error(), `other model's score of "`) || !strings.Contains(err.Error(), []string{"is NaN", "is -Inf"}[bad/6]) {
			t.Errorf("score %d: %v, %v", bad, rows, err)
		}
	}
}

// Too few scores of another model, or too many, are an error that says how many there should be.
func TestRescoreCount(t *testing.T) {
	for _, extra := range []int{-1, 1} {
		margin := 0.1
		o := Options{Negatives: 1, AbsoluteMargin: &margin, Rescore: func(_ context.Context, queries, _ []string) ([]float32, error) {
			return make([]float32, len(queries)+extra), nil
		}}
		x := []float32{1, 0, 0, 1}
		_, _, err := Pair([]string{"a", "b"}, []string{"x", "y"}, nil).Mine(t.Context(), ref.New(), o, x, x, 2, nil)
		if err == nil || !strings.Contains(err.Error(), "Options.Rescore gave ") {
			t.Errorf("%d scores more: %v", extra, err)
		}
	}
}

// What goes wrong in the other model, with candidates or with positives, is the error.
func TestRescoreError(t *testing.T) {
	for after := range 2 {
		margin, calls, torn := 0.1, 0, errors.New("torn")
		o := Options{Negatives: 1, AbsoluteMargin: &margin, Rescore: func(_ context.Context, queries, _ []string) ([]float32, error) {
			if calls++; calls > after {
				return nil, torn
			}
			return make([]float32, len(queries)), nil
		}}
		x := []float32{1, 0, 0, 1}
		if rows, _, err := Pair([]string{"a", "b"}, []string{"x", "y"}, nil).Mine(t.Context(), ref.New(), o, x, x, 2, nil); !errors.Is(err, torn) {
			t.Errorf("after %d calls: %v, %v", after, rows, err)
		}
	}
}

// Queries with the same seed have samples of their own.
func TestSampleOfEachQuery(t *testing.T) {
	var queries, positives, corpus []string
	for i := range 30 {
		corpus = append(corpus, fmt.Sprint("document ", i))
	}
	for i := range 10 {
		queries, positives = append(queries, fmt.Sprint("query ", i)), append(positives, "positive")
	}
	p, run := Pair(queries, positives, corpus), make(evaluate.Run, 10)
	for q := range run {
		for i := range corpus {
			run[q] = append(run[q], evaluate.Hit{Doc: int32(i), Score: 1 - float32(i)/100})
		}
	}
	rows, _, err := p.Choose(t.Context(), Options{Negatives: 3, RangeMax: 30, Sample: true, Seed: 42}, run, func(int, int) float32 { return 1 })
	if err != nil || len(rows) != 10 {
		t.Fatal(rows, err)
	}
	others := 0
	for _, r := range rows[1:] {
		if !slices.Equal(r.Negatives, rows[0].Negatives) {
			others++
		}
	}
	if others < 8 {
		t.Errorf("%d of 9 queries have other samples than the first, %v", others, rows[0].Negatives)
	}
}

// A score that is the bound itself is within it, whichever bound it is.
func TestBoundsInclude(t *testing.T) {
	p := Pair([]string{"query"}, []string{"positive"}, []string{"near", "as near", "far"})
	half, quarter := 0.5, 0.25
	for name, c := range map[string]struct {
		o    Options
		want []int32
	}{
		"absolute margin": {Options{AbsoluteMargin: &quarter}, []int32{2}}, "relative margin": {Options{RelativeMargin: &half}, []int32{2}},
		"highest score": {Options{MaxScore: &half}, []int32{1, 2}}, "lowest score": {Options{MinScore: &half}, []int32{0, 1}},
	} {
		c.o.Negatives, c.o.Fewest = 3, 1
		run := evaluate.Run{{{Doc: 0, Score: 0.75}, {Doc: 1, Score: 0.5}, {Doc: 2, Score: 0.25}}} // numbers that are exact
		rows, _, err := p.Choose(t.Context(), c.o, run, func(int, int) float32 { return 0.5 })
		var got []int32
		for _, r := range rows {
			for _, h := range r.Negatives {
				got = append(got, h.Doc)
			}
		}
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, %v, want %v", name, got, err, c.want)
		}
	}
}

// Many queries are scored again in several parts, and each keeps its own scores and its positive's.
func TestRescoreParts(t *testing.T) {
	n := 2*rescoreQueries + 3
	number := map[string]int{}
	var queries, positives []string
	for i := range n {
		queries, positives = append(queries, fmt.Sprint("query ", i)), append(positives, fmt.Sprint("positive ", i))
		number[queries[i]], number[positives[i]] = i, i
	}
	score := func(query, document int) float32 { return float32(1000*query - document) } // of its first three the smallest is the best
	margin := 0.0
	o := Options{Negatives: 1, RangeMax: 3, AbsoluteMargin: &margin, Rescore: func(_ context.Context, queries, documents []string) (out []float32, err error) {
		for i, q := range queries {
			if q, d := number[q], number[documents[i]]; q == d {
				out = append(out, float32(1000*q+1)) // above all others
			} else {
				out = append(out, score(q, d))
			}
		}
		return out, nil
	}}
	p, run := Pair(queries, positives, nil), make(evaluate.Run, n)
	for q := range run {
		for k := range 3 {
			run[q] = append(run[q], evaluate.Hit{Doc: int32((q + 3 - k) % n), Score: float32(-k)}) // worst first by the other scores
		}
	}
	p.Same[n-1] = []int32{int32(n / 2)} // beside which the last query has five places, the fifth the best
	run[n-1] = append(evaluate.Run{{{Doc: int32(n / 2)}, {Doc: 7}}}[0], run[n-1][0], run[n-1][1], run[n-1][2])
	rows, _, err := p.Choose(t.Context(), o, run, func(int, int) float32 { return 0 })
	if err != nil || len(rows) != n {
		t.Fatalf("%d rows of %d: %v", len(rows), n, err)
	}
	for q, r := range rows {
		want := min((q+1)%n, (q+2)%n, (q+3)%n)
		if r.Query != q || r.Score != float32(1000*q+1) || len(r.Negatives) != 1 || r.Negatives[0] != (evaluate.Hit{Doc: int32(want), Score: score(q, want)}) {
			t.Fatalf("query %d: %+v, want document %d", q, r, want)
		}
	}
}

// Candidates are those of the range, of what so many places hold, and no deeper: also for a query with fewer positives, or texts that are the same, than others.
func TestNoDeeper(t *testing.T) {
	var hits []evaluate.Hit
	for i := range 12 {
		hits = append(hits, evaluate.Hit{Doc: int32(i), Score: 1 - float32(i)/16})
	}
	docs := func(hits []evaluate.Hit) (out []int32) {
		for _, h := range hits {
			out = append(out, h.Doc)
		}
		return out
	}
	// All of the range are sampled, where it has no more than are asked for.
	if got := docs((Options{Negatives: 3, RangeMin: 1, RangeMax: 4, Sample: true}).Choose(0, hits, []int32{20}, nil, 1, 2)); !slices.Equal(got, []int32{1, 2, 3}) {
		t.Errorf("ranks 1 to 3 are %v", got)
	}
	if got := docs((Options{Negatives: 1, RangeMax: 1, Sample: true}).Choose(0, hits, nil, nil, 1, 9)); !slices.Equal(got, []int32{0}) {
		t.Errorf("the first of a range of one is %v", got)
	}
	highest := 1 - 2.5/16 // leaves the first three out
	for same, want := range map[int][]int32{0: nil, 1: {3}} {
		if got := docs((Options{Negatives: 1, RangeMax: 2, MaxScore: &highest}).Choose(0, hits, []int32{20}, []int32{21, 22}[:same], 1, 1)); !slices.Equal(got, want) {
			t.Errorf("of three places, and %d of texts that are the same: %v, want %v", same, got, want)
		}
	}
	// Nor does another model score what lies deeper: of three places a query's fourth and fifth, which it would have be the best.
	p := Pair([]string{"a", "b"}, []string{"p", "r"}, []string{"c", "d", "e", "f", "g", "r ", " r"})
	run := evaluate.Run{{{Doc: 0}, {Doc: 1}, {Doc: 2}, {Doc: 3}, {Doc: 4}}, {{Doc: 5}, {Doc: 6}, {Doc: 0}, {Doc: 1}, {Doc: 2}}}
	one := 1e9
	o := Options{Negatives: 1, RangeMax: 2, MaxScore: &one, Rescore: func(_ context.Context, queries, documents []string) (out []float32, err error) {
		for _, d := range documents {
			out = append(out, float32(d[0]))
		}
		return out, nil
	}}
	if rows, _, err := p.Choose(t.Context(), o, run, func(int, int) float32 { return 0 }); err != nil || len(rows) != 2 || p.Corpus[rows[0].Negatives[0].Doc] != "e" || p.Corpus[rows[1].Negatives[0].Doc] != "e" {
		t.Errorf("%+v, %v", rows, err)
	}
}

func TestCheck(t *testing.T) {
	bad := math.NaN()
	for want, o := range map[string]Options{
		"0 negatives, want at least 1":                 {},
		"the range begins at -1":                       {Negatives: 1, RangeMin: -1},
		"the range 3 to 5 has no room for 3 negatives": {Negatives: 3, RangeMin: 3, RangeMax: 5},
		"3 negatives of the range 0 to 9223372036854775807: want numbers of at most 2147483647": {Negatives: 3, RangeMax: math.MaxInt},
		"at least 4 negatives of 3":              {Negatives: 3, Fewest: 4},
		"other scores matter only with a margin": {Negatives: 1, Rescore: func(context.Context, []string, []string) ([]float32, error) { return nil, nil }},
		"a score or margin of NaN":               {Negatives: 1, MaxScore: &bad},
	} {
		if err := o.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	// The range is ten times as deep where a bound leaves out candidates that a search has found: not for a lowest score of the search's own.
	bound, scores := 0.1, func(context.Context, []string, []string) ([]float32, error) { return nil, nil }
	for _, c := range []struct {
		o    Options
		want int // behind three positives, which the range may begin with
	}{
		{Options{Negatives: 2, RangeMin: 1, MinScore: &bound}, 1 + 2 + 3},
		{Options{Negatives: 2, RangeMin: 1, MinScore: &bound, Rescore: scores}, 1 + 20 + 3},
		{Options{Negatives: 2, MaxScore: &bound}, 20 + 3},
		{Options{Negatives: 2, RangeMax: 7, MaxScore: &bound}, 7},
	} {
		if got := c.o.Depth(3); got != c.want+3 {
			t.Errorf("%+v: %d documents of a query with 3 positives, want %d", c.o, got, c.want+3)
		}
	}
	for _, o := range []Options{{Negatives: 3, RangeMin: 2, RangeMax: 5}, {Negatives: 3, Fewest: 3}} { // just enough
		if err := o.Check(); err != nil {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

func ExamplePairs_Mine() {
	p := Pair([]string{"sort a slice"}, []string{"slices.Sort"}, []string{"sort.Strings", "os.Open"})
	// sort.Strings is near the query, os.Open is not; slices.Sort is its positive.
	queries, corpus := []float32{1, 0}, []float32{0.8, 0.6, 0, 1, 1, 0}
	rows, _, err := p.Mine(context.Background(), ref.New(), Options{Negatives: 1}, queries, corpus, 2, nil)
	fmt.Println(p.Corpus[rows[0].Negatives[0].Doc], rows[0].Negatives[0].Score, err)
	// Output: sort.Strings 0.8 <nil>
}

func TestPairOfOne(t *testing.T) {
	defer func() {
		if got := fmt.Sprint(recover()); got != "mine.Pair: 2 queries and 1 positives: a pair is one of each" {
			t.Error(got)
		}
	}()
	Pair([]string{"a", "b"}, []string{"x"}, nil)
}
