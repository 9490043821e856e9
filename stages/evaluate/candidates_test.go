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
		got, err := RankCandidates(c.Scores, c.Relevant, measures...)
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
		"map@5: average precision of given candidates": func() (*Candidates, error) { return RankCandidates(one, yes, MAP(5)) },
		"precision needs a cut-off":                    func() (*Candidates, error) { return RankCandidates(one, yes, Precision(0)) },
		"there are no queries":                         func() (*Candidates, error) { return RankCandidates(nil, nil) },
		"scores of 1 queries' candidates, and 2":       func() (*Candidates, error) { return RankCandidates(one, append(yes, nil)) },
		"query 0: 2 scores of 1 candidates":            func() (*Candidates, error) { return RankCandidates(one, [][]bool{{true}}) },
		"the score of candidate 1 of query 0 is NaN": func() (*Candidates, error) {
			return RankCandidates([][]float64{{1, math.NaN()}}, yes)
		},
	} {
		if _, err := try(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	c, err := RankCandidates([][]float64{{1, 2}, nil}, [][]bool{{true, false}, nil}, MRR(0), Recall(1)) // a query with nothing counts as 0
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
