package evaluate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// fails says what is wrong with err, which must have all parts.
func fails(t *testing.T, what string, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error", what)
		return
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%s: error %q does not mention %q", what, err, part)
		}
	}
}

func TestParseMeasure(t *testing.T) {
	for name, want := range map[string]Measure{
		"ndcg@10": NDCG(10), "nDCG@5 ": NDCG(5), "ndcg": NDCG(0), "MRR@10": MRR(10), "mrr": MRR(0), "map": MAP(0),
		"map@100": MAP(100), "recall@1": Recall(1), "precision@3": Precision(3),
	} {
		got, err := ParseMeasure(name)
		if err != nil || got != want {
			t.Errorf("%q: got %v, %v", name, got, err)
		}
		again, err := ParseMeasure(got.String())
		if err != nil || again != got {
			t.Errorf("%q: its name %q is not read back: %v", name, got, err)
		}
	}
	for name, part := range map[string]string{
		"": "not known", "dcg@10": "ndcg, mrr, map, recall, precision", "ndcg@": "cut-off", "ndcg@0": "1 or more",
		"ndcg@-1": "1 or more", "ndcg@ten": "cut-off", "precision": "precision@10",
	} {
		_, err := ParseMeasure(name)
		fails(t, name, err, part)
	}
}

func TestMistakesAreNamed(t *testing.T) {
	_, err := NewIDs([]string{"a", "b", "a"})
	fails(t, "two ids", err, `"a"`, "rows 0 and 2")

	qrels := NewQrels(ids(t, "q1", "q2"), ids(t, "d1", "d2"))
	run := Run{{{0, 1}}}
	_, err = Evaluate(run, qrels)
	fails(t, "no judgments", err, "2 queries", `"q1"`, "judged")
	if err := qrels.Add("q1", "d1", 1); err != nil {
		t.Fatal(err)
	}
	fails(t, "judged twice", qrels.Add("q1", "d1", 2), `"q1"`, `"d1"`, "1 and 2")
	fails(t, "relevance", qrels.Add("q1", "d2", math.MaxInt), `"d2"`, "32 bits")
	if qrels.Len() != 1 || len(qrels.Of(0)) != 1 || len(qrels.Of(7)) != 0 {
		t.Errorf("refused judgments stayed: %v", qrels.Of(0))
	}
	_, err = Evaluate(Run{{{0, 1}, {1, 1}, {0, 2}}}, qrels)
	fails(t, "ranked twice", err, `"q1"`, `"d1"`, "twice")
	_, err = Evaluate(Run{nil, {{1, float32(math.NaN())}}}, qrels)
	fails(t, "NaN", err, `"q2"`, `"d2"`, "NaN")
	_, err = Evaluate(Run{{{2, 1}}}, qrels)
	fails(t, "no such document", err, `"q1"`, "number 2", "2 documents")
	_, err = Evaluate(make(Run, 3), qrels)
	fails(t, "no such query", err, "3 queries")
	_, err = Evaluate(run, qrels, Measure{Kind: 77})
	fails(t, "no such measure", err, "77")
	_, err = Evaluate(run, qrels, Measure{KindMAP, -1})
	fails(t, "negative cut-off", err, "1 or more")
	_, err = Evaluate(nil, NewQrels(ids(t), ids(t)))
	fails(t, "nothing", err, "no queries")

	_, err = NewTopK(1, 0, nil)
	fails(t, "k", err, "1 or more")
	top, err := NewTopK(2, 3, TieOrder{0, 1, 2, 3})
	if err != nil {
		t.Fatal(err)
	}
	nan := float32(math.NaN())
	fails(t, "shape", top.Add(0, 0, make([]float32, 5), 2), "5 scores", "2 documents")
	fails(t, "queries", top.Add(1, 0, make([]float32, 4), 2), "queries 1 to 2", "there are 2")
	fails(t, "documents", top.Add(0, 3, make([]float32, 4), 2), "documents 3 to 4", "there are 4")
	fails(t, "NaN", top.Add(0, 0, []float32{1, 1, 1, 1, 1, 1, nan, 1}, 4), "query 1", "document 2")
	// A full heap drops most scores unseen: not this one.
	fails(t, "NaN", top.Add(0, 3, []float32{nan}, 1), "query 0", "document 3")

	_, err = NewBM25(t.Context(), []string{"a"}, BM25Options{B: 0.5})
	fails(t, "k1", err, "k1 = 0")
	_, err = NewBM25(t.Context(), []string{"a"}, BM25Options{K1: -1, B: 0.5})
	fails(t, "k1", err, "k1 = -1")
	_, err = NewBM25(t.Context(), []string{"a"}, BM25Options{K1: 1, B: 1.5})
	fails(t, "b", err, "b = 1.5")
	_, err = NewBM25(t.Context(), []string{"a", "b"}, BM25Options{Tie: TieOrder{0}})
	fails(t, "ties", err, "2 documents")
	index, err := NewBM25(t.Context(), nil, BM25Options{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = index.Search(t.Context(), []string{"a"}, 0)
	fails(t, "k", err, "1 or more")
	if run, err := index.Search(t.Context(), []string{"a"}, 1); err != nil || len(run) != 1 || len(run[0]) != 0 {
		t.Errorf("an empty corpus gives %v, %v", run, err)
	}

	x := []float64{1, 2, 3}
	_, err = Pearson(x, x[:2])
	fails(t, "lengths", err, "3 values with 2")
	_, err = Spearman(x[:1], x[:1])
	fails(t, "one pair", err, "two")
	_, err = Spearman(x, []float64{2, 2, 2})
	fails(t, "constant", err, "second list", "all 3 values", "2")
	_, err = Pearson([]float64{0, 0}, x[:2])
	fails(t, "zeros", err, "first list")
	_, err = EvaluateSTS([]float64{1, math.NaN(), 3}, x)
	fails(t, "NaN", err, "value 1 of the first list")
	_, err = Pearson(x, []float64{1, 2, math.Inf(1)})
	fails(t, "Inf", err, "value 2 of the second list")
}

// The truth is a sort of everything; coarse scores make most of them ties, and blocks come in any order and size.
func TestTopKIsASort(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for trial := range 60 {
		queries, docs, k := 1+random.IntN(6), 1+random.IntN(400), 1+random.IntN(40)
		levels := []int{2, 10, 1 << 30}[trial%3]
		var tie TieOrder
		if trial%2 == 0 {
			for _, p := range random.Perm(docs) {
				tie = append(tie, int32(p))
			}
		}
		scores := make([]float32, queries*docs)
		for i := range scores {
			scores[i] = float32(random.IntN(levels)) - 1
			if random.IntN(50) == 0 {
				scores[i] = float32(math.Inf(random.IntN(2)*2 - 1))
			}
		}
		top, err := NewTopK(queries, k, tie)
		if err != nil {
			t.Fatal(err)
		}
		size := 1 + random.IntN(docs)
		for _, block := range random.Perm((docs + size - 1) / size) {
			from := block * size
			to := min(from+size, docs)
			for _, q := range [][2]int{{0, queries / 2}, {queries / 2, queries}} {
				var part []float32
				for row := q[0]; row < q[1]; row++ {
					part = append(part, scores[row*docs+from:row*docs+to]...)
				}
				if err := top.Add(q[0], from, part, to-from); err != nil {
					t.Fatal(err)
				}
			}
		}
		for q, got := range top.Run() {
			want := make([]int, docs)
			for d := range want {
				want[d] = d
			}
			slices.SortFunc(want, func(a, b int) int {
				if x, y := scores[q*docs+a], scores[q*docs+b]; x != y {
					return map[bool]int{true: -1, false: 1}[x > y]
				}
				if tie != nil {
					return int(tie[a] - tie[b])
				}
				return a - b
			})
			want = want[:min(k, docs)]
			if len(got) != len(want) {
				t.Fatalf("trial %d, query %d: %d hits, want %d", trial, q, len(got), len(want))
			}
			for i, h := range got {
				if int(h.Doc) != want[i] || h.Score != scores[q*docs+want[i]] {
					t.Fatalf("trial %d, query %d: place %d has %v, want document %d", trial, q, i, h, want[i])
				}
			}
		}
	}
}

// Without constants BM25 has those that it says.
func TestBM25Defaults(t *testing.T) {
	texts := []string{"a a a b", "a b c d e f g", "b b c", "a"}
	search := func(o BM25Options) Run {
		t.Helper()
		index, err := NewBM25(t.Context(), texts, o)
		if err != nil {
			t.Fatal(err)
		}
		run, err := index.Search(t.Context(), []string{"a b", "c"}, len(texts))
		if err != nil {
			t.Fatal(err)
		}
		return run
	}
	if got, want := search(BM25Options{}), search(BM25Options{K1: 1.2, B: 0.75}); !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// Documents that are alike come and are cut in the order of ties.
func TestBM25Ties(t *testing.T) {
	index, err := NewBM25(t.Context(), []string{"a", "a", "a", "a b"}, BM25Options{Tie: TieOrder{2, 0, 1, 3}})
	if err != nil {
		t.Fatal(err)
	}
	for k, want := range map[int][]int32{1: {1}, 2: {1, 2}, 4: {1, 2, 0, 3}} {
		run, err := index.Search(t.Context(), []string{"a"}, k)
		var got []int32
		for _, h := range run[0] {
			got = append(got, h.Doc)
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("the best %d are %v, want %v: %v", k, got, want, err)
		}
	}
}

// Rounding takes no correlation out of its interval, and scores that are not numbers correlate with nothing.
func TestCorrelationBounds(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	for range 200 {
		x, y := make([]float64, 3), make([]float64, 3)
		for i := range x {
			x[i] = random.NormFloat64()
			y[i] = -x[i]
		}
		up, err := Pearson(x, x)
		down, wrong := Pearson(x, y)
		if err != nil || wrong != nil || !(up <= 1 && up >= 1-1e-15 && down >= -1 && down <= -1+1e-15) {
			t.Fatalf("%v: %.17g with itself, %.17g with its opposite: %v, %v", x, up, down, err, wrong)
		}
	}
	for _, gold := range [][]float64{{1, math.NaN(), 3}, {1, math.Inf(1)}, {2, 2}, {1}} {
		if CheckGold(gold) == nil {
			t.Errorf("%v are taken for scores", gold)
		}
	}
	if err := CheckGold([]float64{1, 2}); err != nil {
		t.Error(err)
	}
}

// threads runs f with 1 and with 7 threads.
func threads(f func() any) (one, seven any) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	one = f()
	runtime.GOMAXPROCS(7)
	return one, f()
}

func TestThreadsChangeNothing(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	texts := make([]string, 3000)
	for i := range texts {
		for range 1 + random.IntN(30) {
			texts[i] += fmt.Sprintf("w%d ", int(random.ExpFloat64()*20))
		}
	}
	scores := make([]float32, 64*8192)
	for i := range scores {
		scores[i] = float32(random.IntN(1000))
	}
	one, seven := threads(func() any {
		index, err := NewBM25(t.Context(), texts, BM25Options{})
		if err != nil {
			t.Fatal(err)
		}
		run, err := index.Search(t.Context(), texts[:50], 20)
		if err != nil {
			t.Fatal(err)
		}
		top, err := NewTopK(64, 100, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := top.Add(0, 0, scores, 8192); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(index.starts, index.postings, run, top.Run())
	})
	if one != seven {
		t.Error("the number of threads changes an index, a ranking or the best k")
	}
}

func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	index, err := NewBM25(ctx, []string{"a b c"}, BM25Options{})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := index.Search(ctx, []string{"a"}, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("search: %v", err)
	}
	if _, err := NewBM25(ctx, []string{"a"}, BM25Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("index: %v", err)
	}
}

func TestAnalyzeOddText(t *testing.T) {
	for text, want := range map[string][]string{
		"":                            nil,
		"snake_case camelCase HTTP/2": {"snake", "case", "camelcase", "http", "2"},
		"na\u0308ive ÉTÉ":             {"na\u0308ive", "été"}, // a combining mark belongs to its letter
		"a\xffb":                      {"a", "b"},
		"x²=½":                        {"x²", "½"},
		"end":                         {"end"},
		"AZaz09@[`{/:":                {"azaz09"}, // what stands beside letters and digits in ASCII is neither
		"数据库 テスト":                     {"数据库", "テスト"},
	} {
		if got := Analyze(text); !slices.Equal(got, want) {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

func TestTableAndJSON(t *testing.T) {
	a := &Result{Measures: []Measure{NDCG(10), MRR(10)}, Means: []float64{0.5, 1}, Before: []float64{0.25, 0.5}, Queries: make([]int, 12)}
	b := &Result{Measures: []Measure{MRR(10), Recall(100)}, Means: []float64{0.25, 0.125}, Queries: make([]int, 7), Unjudged: 2, Unanswered: 1}
	want := strings.Join([]string{
		"        ndcg@10  mrr@10  recall@100  queries",
		"before   0.5000  1.0000           -       12",
		"après         -  0.2500      0.1250        7",
		"après: queries to note: 2 (left out, no document is judged), 1 (counted as 0, the ranking is empty)",
		"",
	}, "\n")
	if got := Table(Row{"before", a}, Row{"après", b}); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got, want := a.String(), "ndcg@10  mrr@10  queries\n 0.5000  1.0000       12\n"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	raw, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"mrr@10":0.25,"recall@100":0.125,"queries":7,"queries_without_judgments":2,"queries_without_relevant":0,"queries_without_ranking":1}`; string(raw) != want {
		t.Errorf("got  %s\nwant %s", raw, want)
	}
	if _, ok := a.Mean(MAP(0)); ok || a.PerQuery(MAP(0)) != nil {
		t.Error("a result has a measure that nobody computed")
	}
}

func TestEvaluateLeavesTheRunAlone(t *testing.T) {
	qrels := NewQrels(ids(t, "q"), ids(t, "a", "b"))
	if err := qrels.Add("q", "b", 1); err != nil {
		t.Fatal(err)
	}
	run := Run{{{0, 1}, {1, 2}}}
	if _, err := Evaluate(run, qrels); err != nil {
		t.Fatal(err)
	}
	if run[0][0] != (Hit{0, 1}) {
		t.Errorf("the run was sorted in place: %v", run)
	}
}

// Each task counts the same, whatever its size.
func TestAverage(t *testing.T) {
	a := &Result{Measures: []Measure{NDCG(10), MRR(10)}, Means: []float64{0.5, 1}, Before: []float64{0.25, 0.5}, Queries: []int{0, 2}, Values: [][]float64{{0, 1}, {1, 1}}, Unjudged: 1, Irrelevant: 1}
	b := &Result{Measures: []Measure{NDCG(10), MRR(10)}, Means: []float64{0.1, 0.2}, Before: []float64{0.75, 0}, Queries: []int{4}, Values: [][]float64{{0.1}, {0.2}}, Unjudged: 2, Unanswered: 1}
	got, err := Average(a, b)
	want := &Result{Measures: a.Measures, Means: []float64{0.3, 0.6}, Before: []float64{0.5, 0.25}, Queries: []int{0, 1, 2}, Values: [][]float64{{0, 1, 0.1}, {1, 1, 0.2}}, Unjudged: 3, Irrelevant: 1, Unanswered: 1}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	if _, err := Average(a, &Result{Measures: []Measure{NDCG(10)}}); err == nil || !strings.Contains(err.Error(), "same measures") {
		t.Error(err)
	}
	if _, err := Average(a, &Result{Measures: a.Measures, Means: a.Means}); err == nil || !strings.Contains(err.Error(), "all or none an order before") {
		t.Error(err)
	}
	if _, err := Average(); err == nil {
		t.Error("an average of nothing")
	}
}

// With Ascending, equal scores stand in the order of names, in a search and in what is measured of it; without, in the reverse one.
func TestTiesEitherWay(t *testing.T) {
	for ascending, want := range map[bool][]float64{false: {1, 1. / 3}, true: {1. / 3, 1}} {
		queries, err := NewIDs([]string{"p", "q"})
		if err != nil {
			t.Fatal(err)
		}
		docs, err := NewIDs([]string{"b", "c", "a"})
		if err != nil {
			t.Fatal(err)
		}
		q := NewQrels(queries, docs)
		q.Ascending = ascending
		for query, doc := range map[string]string{"p": "c", "q": "a"} {
			if err := q.Add(query, doc, 1); err != nil {
				t.Fatal(err)
			}
		}
		tied := []Hit{{0, 1}, {1, 1}, {2, 1}}
		r, err := Evaluate(Run{tied, tied}, q, MRR(0))
		if err != nil || !slices.Equal(r.Values[0], want) {
			t.Errorf("ascending %t: %v, %v, want %v", ascending, r.Values, err, want)
		}
		hits := slices.Clone(tied)
		sortHits(hits, q.TieOrder())
		first := map[bool]int32{false: 1, true: 2}[ascending]
		if hits[0].Doc != first || hits[1].Doc != 0 {
			t.Errorf("ascending %t: %v", ascending, hits)
		}
	}
}
