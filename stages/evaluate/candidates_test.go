package evaluate

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
)

// Measures are quotients of small numbers, means over orders of 7 scores and over 20 queries at most: sums of a few thousand of them.
func TestCandidatesAgreeWithSentenceTransformers(t *testing.T) {
	var g struct {
		Cases []struct {
			Name     string
			Scores   [][]float64
			Relevant [][]bool
			Want     map[string]float64
		}
	}
	golden(t, "candidates", &g)
	if len(g.Cases) < 6 {
		t.Fatalf("%d cases", len(g.Cases))
	}
	for _, c := range g.Cases {
		var measures []Measure
		for name := range c.Want {
			m, err := ParseMeasure(name)
			if err != nil {
				t.Fatal(err)
			}
			measures = append(measures, m)
		}
		got, err := RankCandidates(c.Scores, c.Relevant, nil, measures...)
		if err != nil || len(measures) != 13 || got.Queries != len(c.Scores) {
			t.Fatalf("%s: %d measures, %+v, %v", c.Name, len(measures), got, err)
		}
		for i, m := range measures {
			if want := c.Want[m.String()]; !(math.Abs(got.Means[i]-want) <= 1e-13) {
				t.Errorf("%s: %s is %.17g, want %.17g", c.Name, m, got.Means[i], want)
			}
		}
	}
}

func TestCandidatesErrors(t *testing.T) {
	one, yes := [][]float64{{1, 2}}, [][]bool{{true, false}}
	for want, try := range map[string]func() (*Candidates, error){
		"map@5: average precision of given candidates":  func() (*Candidates, error) { return RankCandidates(one, yes, nil, MAP(5)) },
		"recall: of all the candidates it is the same":  func() (*Candidates, error) { return RankCandidates(one, yes, nil, Recall(0)) },
		"2 numbers of missed candidates, and 1 queries": func() (*Candidates, error) { return RankCandidates(one, yes, []int{0, 1}) },
		"the score of candidate 0 of query 0 is -Inf": func() (*Candidates, error) {
			return RankCandidates([][]float64{{math.Inf(-1), 1}}, yes, nil)
		},
		"precision needs a cut-off":              func() (*Candidates, error) { return RankCandidates(one, yes, nil, Precision(0)) },
		"there are no queries":                   func() (*Candidates, error) { return RankCandidates(nil, nil, nil) },
		"scores of 1 queries' candidates, and 2": func() (*Candidates, error) { return RankCandidates(one, append(yes, nil), nil) },
		"query 0: 2 scores of 1 candidates":      func() (*Candidates, error) { return RankCandidates(one, [][]bool{{true}}, nil) },
		"the score of candidate 1 of query 0 is NaN": func() (*Candidates, error) {
			return RankCandidates([][]float64{{1, math.NaN()}}, yes, nil)
		},
	} {
		if _, err := try(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	c, err := RankCandidates([][]float64{{1, 2}, nil}, [][]bool{{true, false}, nil}, nil, MRR(0), Recall(1)) // a query with nothing counts as 0
	if err != nil || c.Means[0] != 0.25 || c.Means[1] != 0 {
		t.Errorf("%+v, %v", c, err)
	}
	c.Before = []float64{0.5, 1}
	js, err := json.Marshal(c)
	if want := `{"mrr":0.25,"recall@1":0,"base_mrr":0.5,"base_recall@1":1,"queries":2}`; err != nil || string(js) != want {
		t.Errorf("%s, %v, want %s", js, err, want)
	}
	if want := "mrr 0.2500, recall@1 0.0000, 2 queries; in the order of the file mrr 0.5000, recall@1 1.0000"; c.String() != want {
		t.Errorf("%q, want %q", c, want)
	}
}

// A model that puts all relevant ones first has 1, and of however many queries and candidates.
func TestCandidatesPerfect(t *testing.T) {
	var scores [][]float64
	var relevant [][]bool
	for n := range 60 { // as many relevant ones and one more, of which some have equal scores, and as many others
		var s []float64
		var yes []bool
		for i := range 2*n + 2 {
			yes = append(yes, i <= n)
			s = append(s, float64(-i/(1+n%4)))
			if i > n {
				s[i] = -100
			}
		}
		scores, relevant = append(scores, s), append(relevant, yes)
		for _, from := range []int{0, n} {
			c, err := RankCandidates(scores[from:], relevant[from:], nil, NDCG(0), NDCG(10), MRR(10), MAP(0), Recall(100), Precision(1))
			if err != nil {
				t.Fatal(err)
			}
			for i, v := range c.Means {
				if v != 1 {
					t.Errorf("queries from %d to %d: %s is %v", from, n, c.Measures[i], v)
				}
			}
		}
	}
}

// Relevant texts that are no candidates lower recall, as they do that of a ranking without them, and nothing else.
func TestCandidatesMissed(t *testing.T) {
	scores, relevant, measures := [][]float64{{3, 2, 1}, {1, 2, 3}}, [][]bool{{true, false, true}, {false, true, true}}, []Measure{Recall(2), NDCG(2), MAP(0)}
	all, err1 := RankCandidates(scores, relevant, nil, measures...)
	got, err2 := RankCandidates(scores, relevant, []int{2, 0}, measures...)
	if err1 != nil || err2 != nil || all.Means[0] != 0.75 || got.Means[0] != (0.25+1)/2 || got.Means[1] != all.Means[1] || got.Means[2] != all.Means[2] {
		t.Errorf("%v, %v: %+v, without missed ones %+v", err1, err2, got, all)
	}
}

// What stands first stands once.
func TestCandidateMeasures(t *testing.T) {
	if got := CandidateMeasures(MRR(10)); len(got) != 3 || got[0] != MRR(10) || got[1] != NDCG(10) || got[2] != MAP(0) {
		t.Errorf("%v", got)
	}
	if got := CandidateMeasures(NDCG(3)); len(got) != 4 || got[0] != NDCG(3) {
		t.Errorf("%v", got)
	}
	fails(t, "map@1", CheckCandidateMeasure(MAP(1)), "average precision of given candidates has no cut-off")
}

// A gain is divided by its discount at once.
func TestDCG(t *testing.T) {
	for rank := range 200 {
		relevances := make([]int32, rank+1)
		relevances[rank] = 3
		if got, want := dcg(relevances), 3/math.Log2(float64(rank+2)); got != want {
			t.Errorf("rank %d: %v, want %v", rank+1, got, want)
		}
	}
}

func TestAverageCandidates(t *testing.T) {
	a := &Candidates{Measures: []Measure{NDCG(10), MAP(0)}, Means: []float64{0.5, 0.25}, Before: []float64{1, 0}, Queries: 3}
	b := &Candidates{Measures: []Measure{NDCG(10), MAP(0)}, Means: []float64{0.25, 0.75}, Before: []float64{0.5, 0.5}, Queries: 7}
	got, err := AverageCandidates(a, b)
	if js, _ := json.Marshal(got); err != nil || string(js) != `{"ndcg@10":0.375,"map":0.5,"base_ndcg@10":0.75,"base_map":0.25,"queries":10}` {
		t.Errorf("%s, %v", js, err)
	}
	rows := got.Rows("mean", "before")
	if table := Table(rows...); !strings.Contains(table, "mean     0.3750  0.5000       10\nbefore   0.7500  0.2500       10\n") {
		t.Errorf("%s", table)
	}
	for _, other := range []*Candidates{{Measures: a.Measures, Means: a.Means, Queries: 1}, {Measures: a.Measures[:1], Means: a.Means[:1], Before: a.Before[:1], Queries: 1}} {
		if _, err := AverageCandidates(a, other); err == nil || !strings.Contains(err.Error(), "results must have the same measures") {
			t.Error(err)
		}
	}
	if _, err := AverageCandidates(); err == nil {
		t.Error("the average of nothing")
	}
}
