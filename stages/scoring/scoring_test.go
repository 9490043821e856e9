package scoring

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"contraflow/io/dataset"
	"contraflow/stages/evaluate"
)

func write(t *testing.T, name string, lines ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Documents in a first stage's order have a CrossEncoderRerankingEvaluator's figures, and base_ those of that order, with all positives and with those that
// have been found. testdata/golden/evaluate/candidates.py made them; the tolerance is a few roundings of means over 8 queries.
func TestRankedDocuments(t *testing.T) {
	var g struct {
		Ranked struct {
			Rows       []json.RawMessage
			Scores     [][]any
			All, Found map[string]float64
		}
	}
	raw, err := os.ReadFile(filepath.Join("..", "..", "testdata", "golden", "evaluate", "candidates.json"))
	if err == nil {
		err = json.Unmarshal(raw, &g)
	}
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, row := range g.Ranked.Rows {
		lines = append(lines, string(row))
	}
	table := map[[2]string]float64{}
	for _, s := range g.Ranked.Scores {
		table[[2]string{s[0].(string), s[1].(string)}] = s[2].(float64)
	}
	s := Source{Path: write(t, "ranked.jsonl", lines...), Columns: []string{"query", "positive"}, Documents: "documents"}
	var contents []any
	for found, want := range map[bool]map[string]float64{false: g.Ranked.All, true: g.Ranked.Found} {
		s.Found = found
		task, err := Candidates.Load(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		var scores []float64
		for i, q := range task.A {
			v, ok := table[[2]string{q, task.B[i]}]
			if !ok {
				t.Fatalf("found: %t: a pair of %q and %q", found, q, task.B[i])
			}
			scores = append(scores, v)
		}
		result, all, err := task.Measure(scores)
		if err != nil {
			t.Fatal(err)
		}
		js, err1 := json.Marshal(result)
		got := map[string]float64{}
		if err := errors.Join(err1, json.Unmarshal(js, &got)); err != nil || got["queries"] != 8 || len(want) != 6 {
			t.Fatalf("%v, %s", err, js)
		}
		for name, w := range want {
			if v, ok := got[name]; !ok || !(math.Abs(v-w) <= 1e-14) {
				t.Errorf("found: %t: %s is %v, want %v", found, name, v, w)
			}
		}
		none, err := json.Marshal(task.None)
		if err != nil || !strings.Contains(string(none), `"ndcg@10":0,`) || !strings.Contains(string(none), `"base_ndcg@10":0.`) {
			t.Errorf("without a figure %s, %v", none, err)
		}
		if all[0].Name != task.Counts() || all[0].Name != "ndcg@10" || len(all) != 3 || reflect.TypeOf(result) != reflect.TypeOf(task.None) {
			t.Errorf("%v, %v", all, task.None)
		}
		contents = append(contents, task.Content)
	}
	if reflect.DeepEqual(contents[0], contents[1]) {
		t.Error("what is measured is the same with found and without")
	}
}

// Pairs are scored in the file's order by what the columns hold, and another score or label is another task.
func TestPairs(t *testing.T) {
	for _, c := range []struct {
		kind    *Kind
		numbers [2][3]string // of two files
		want    []Figure     // by hand, of the first
	}{
		{STS, [2][3]string{{"1", "2", "4"}, {"1", "2", "3"}}, []Figure{{"spearman", 0.5}, {"pearson", 3 / math.Sqrt(84)}}},
		{PairClassification, [2][3]string{{"1", "0", "1"}, {"1", "0", "0"}}, []Figure{{"ap", 1./2 + 1./3}}}, // the pair that is 0 is second
	} {
		var contents []string
		for i, n := range c.numbers {
			path := write(t, fmt.Sprint(i, ".csv"), "a,b,n", "a,b,"+n[0], "c,d,"+n[1], "e,f,"+n[2])
			task, err := c.kind.Load(t.Context(), Source{Path: path, Columns: []string{"a", "b", "n"}})
			if err != nil {
				t.Fatal(err)
			}
			if a, b := strings.Join(task.A, ""), strings.Join(task.B, ""); a != "ace" || b != "bdf" || task.Counts() != c.want[0].Name {
				t.Errorf("%s: %q, %q, %s", c.kind.Key, a, b, task.Counts())
			}
			content, err1 := json.Marshal(task.Content)
			contents = append(contents, string(content))
			result, all, err := task.Measure([]float64{1, 3, 2})
			if c.kind == PairClassification {
				result, all, err = task.Measure([]float64{3, 2, 1})
			}
			if err := errors.Join(err, err1); err != nil || reflect.TypeOf(result) != reflect.TypeOf(task.None) {
				t.Fatal(err, result)
			}
			for k, w := range c.want {
				if i == 0 && (all[k].Name != w.Name || !(math.Abs(all[k].Value-w.Value) <= 1e-12)) {
					t.Errorf("%v, want %v", all[k], w)
				}
			}
			if _, _, err := task.Measure([]float64{1, math.NaN(), 2}); err == nil || !strings.HasPrefix(err.Error(), path+": ") || c.kind == STS && !strings.Contains(err.Error(), "the first list is the pairs' similarities") {
				t.Error(err)
			}
		}
		if contents[0] == contents[1] {
			t.Errorf("%s: both are %s", c.kind.Key, contents[0])
		}
	}
}

// A row's positives and negatives may be lists or a text each; queries that lack either are left out, and a note counts them.
func TestCandidates(t *testing.T) {
	for name, lines := range map[string][]string{
		"lists.jsonl":   {`{"query": "a", "positive": ["x", "y"], "negative": ["z", "x2"]}`, `{"query": "none", "positive": [], "negative": ["z"]}`, `{"query": "alone", "positive": ["z"], "negative": []}`, `{"query": "null", "positive": ["z"], "negative": null}`, `{"query": "b", "positive": ["z"], "negative": ["y"]}`},
		"texts.csv":     {"query,positive,negative", "a,x,z", "b,z,y"},
		"separated.csv": {"query,positive,negative", `a,"[""x"", ""y""]",z`, `b,"[""z""]",y`},
	} {
		var note string
		ctx := dataset.WithNote(t.Context(), func(m string) { note += m })
		task, err := Candidates.Load(ctx, Source{Path: write(t, name, lines...), Columns: Candidates.Usual})
		if err != nil {
			t.Fatal(err)
		}
		wantA, wantB, wantNote := "a a a a b b", "x y z x2 z y", "of 5 queries 1 has no positive and 2 have no other candidate: left out"
		switch name {
		case "texts.csv":
			wantA, wantB, wantNote = "a a b b", "x z z y", ""
		case "separated.csv":
			wantA, wantB, wantNote = "a a a b b", "x y z z y", ""
		}
		if a, b := strings.Join(task.A, " "), strings.Join(task.B, " "); a != wantA || b != wantB || !strings.Contains(note, wantNote) || (wantNote == "") != (note == "") {
			t.Errorf("%s: %q, %q, %q", name, a, b, note)
		}
	}
}

func TestErrors(t *testing.T) {
	instead := func(role string) string { return "it takes another " + role }
	documents := func(found bool, lines ...string) Source {
		return Source{Path: write(t, "d.jsonl", lines...), Documents: "documents", Found: found, Measures: []evaluate.Measure{evaluate.Recall(2)}}
	}
	for want, c := range map[string]struct {
		kind *Kind
		s    Source
	}{
		`c.jsonl:2, column "negative": text 1 of the list is empty; a model is measured on all rows`: {Candidates, Source{Path: write(t, "c.jsonl", `{"query": "a", "positive": ["x"], "negative": ["y"]}`, `{"query": "a", "positive": ["x"], "negative": ["y", ""]}`)}},
		`n.jsonl:1, column "positive": text 0 of the list is null`:                                   {Candidates, Source{Path: write(t, "n.jsonl", `{"query": "a", "positive": [null], "negative": ["y"]}`)}},
		`q.jsonl:1, column "query": the text is blank`:                                               {Candidates, Source{Path: write(t, "q.jsonl", `{"query": " ", "positive": ["x"], "negative": ["y"]}`)}},
		`l.jsonl: column "query" is list<string>`:                                                    {Candidates, Source{Path: write(t, "l.jsonl", `{"query": ["a"], "positive": ["x"], "negative": ["y"]}`)}},
		`has no column "negative"`:                                                                   {Candidates, Source{Path: write(t, "m.jsonl", `{"query": "a", "positive": ["x"]}`)}},
		`column "negative"; its columns are "query", "positive", "ranked"; where rows have a list of all candidates it takes another documents`:   {Candidates, Source{Path: write(t, "r.jsonl", `{"query": "a", "positive": ["x"], "ranked": ["x"]}`)}},
		`e.jsonl, column "positive": no query has a positive; it takes another positive`:                                                          {Candidates, Source{Path: write(t, "e.jsonl", `{"query": "a", "positive": [], "negative": ["x"]}`)}},
		`column "documents": no query with a positive (column "positive") has another candidate: there is nothing to rank; it takes another docu`: {Candidates, documents(false, `{"query": "a", "positive": ["x"], "documents": ["x"]}`)},
		`d.jsonl, column "documents": recall@2 is the same for every model: of 2 queries 1 has no positive among the candidates, 1 has positives alone; it takes another documents`: {Candidates,
			documents(true, `{"query": "a", "positive": ["x"], "documents": ["y", "z"]}`, `{"query": "b", "positive": ["x", "y"], "documents": ["y", "x"]}`)},
		`column "negative": recall@2 is the same for every model: of 2 queries 1 has one text as a positive and as another candidate, 1 has no more than 2 candidates; it takes another negative`: {Candidates,
			Source{Path: write(t, "f.jsonl", `{"query": "a", "positive": ["x"], "negative": ["x", "x"]}`, `{"query": "b", "positive": ["x"], "negative": ["z"]}`), Measures: []evaluate.Measure{evaluate.Recall(2)}}},
		`precision@2 is the same for every model: of 1 query 1 has no more than 2 candidates`: {Candidates,
			Source{Path: write(t, "k.jsonl", `{"query": "b", "positive": ["x"], "negative": ["z"]}`), Measures: []evaluate.Measure{evaluate.Precision(2)}}},
		`o.jsonl, column "negative": no query with a positive (column "positive") has another candidate: there is nothing to rank; it takes another negative`: {Candidates, Source{Path: write(t, "o.jsonl", `{"query": "a", "positive": ["x"], "negative": []}`)}},
		`t.csv: no rows`: {Triplets, Source{Path: write(t, "t.csv", "anchor,positive,negative")}},
		`column "label": 2 of 2 labels are 1: there is nothing to tell apart; it takes another label`:     {PairClassification, Source{Path: write(t, "p.csv", "sentence1,sentence2,label", "a,b,1", "c,d,true")}},
		`column "score": a correlation is of two pairs at least, and there are 1; it takes another score`: {STS, Source{Path: write(t, "s.csv", "sentence1,sentence2,score", "a,b,1")}},
	} {
		if c.s.Instead, c.s.Columns = instead, c.kind.Usual; c.s.Documents != "" {
			c.s.Columns = c.s.Columns[:2]
		}
		if _, err := c.kind.Load(context.Background(), c.s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	path := write(t, "good.csv", "anchor,positive,negative", "a,b,c")
	task, err := Triplets.Load(t.Context(), Source{Path: path, Columns: Triplets.Usual})
	if err != nil {
		t.Fatal(err)
	}
	for _, scores := range [][]float64{{1}, {1, math.NaN()}} {
		if _, _, err := task.Measure(scores); err == nil || !strings.HasPrefix(err.Error(), path+": ") {
			t.Errorf("%v: %v", scores, err)
		}
	}
	var contents [2]string
	for i, accuracy := range []float64{1, 0} { // a lead of 1 is one without a margin, and none of more than 1
		task, err := Triplets.Load(t.Context(), Source{Path: path, Columns: Triplets.Usual, Margin: 1.5 * float64(i)})
		if err != nil {
			t.Fatal(err)
		}
		if r, _, err := task.Measure([]float64{2, 1}); err != nil || r != (evaluate.Triplets{Accuracy: accuracy, Triplets: 1}) {
			t.Errorf("%v, %v", r, err)
		}
		content, err := json.Marshal(task.Content)
		if contents[i] = string(content); err != nil {
			t.Error(err)
		}
	}
	if contents[0] == contents[1] {
		t.Errorf("with two margins both tasks are %s", contents[0])
	}
}

// What is measured is another thing in another order of documents, which base_ tells of, and with other missed ones; recall counts those, as base_ does.
func TestDocuments(t *testing.T) {
	load := func(found bool, line string) (*Task, string) {
		t.Helper()
		task, err := Candidates.Load(t.Context(), Source{
			Path: write(t, "d.jsonl", line), Columns: []string{"query", "positive"}, Documents: "documents", Found: found, Measures: []evaluate.Measure{evaluate.Recall(2)},
		})
		if err != nil {
			t.Fatal(err)
		}
		content, err := json.Marshal(task.Content)
		if err != nil {
			t.Fatal(err)
		}
		return task, string(content)
	}
	_, one := load(false, `{"query": "q", "positive": ["x"], "documents": ["x", "y", "z"]}`)
	_, other := load(false, `{"query": "q", "positive": ["x"], "documents": ["y", "x", "z"]}`)
	if one == other {
		t.Errorf("in two orders both tasks are %s", one)
	}
	task, content := load(true, `{"query": "q", "positive": ["x", "lost"], "documents": ["x", "y", "z"]}`)
	if _, other := load(true, `{"query": "q", "positive": ["x"], "documents": ["x", "y", "z"]}`); content == other {
		t.Errorf("with a missed positive and without both tasks are %s", content)
	}
	result, _, err := task.Measure([]float64{3, 2, 1})
	if want := "recall@2 0.5000, 1 query; in the order of the file recall@2 0.5000"; err != nil || result.String() != want {
		t.Errorf("%v, %v, want %s", result, err, want)
	}
}
