package recipe

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"contraflow/io/dataset"
	"contraflow/stages/evaluate"
	"contraflow/testdata/harness"
)

// tasks writes two retrieval tasks, the first as a folder in BEIR's layout, and returns their settings.
func (j *job) tasks(t *testing.T) []string {
	t.Helper()
	var all []string
	for k, name := range []string{"easy", "hard"} {
		dir := filepath.Join(j.dir, name)
		if err := os.MkdirAll(filepath.Join(dir, "qrels"), 0o777); err != nil {
			t.Fatal(err)
		}
		var queries, corpus, qrels strings.Builder
		qrels.WriteString("query-id\tcorpus-id\tscore\n")
		for i := range 12 {
			fmt.Fprintf(&corpus, "{\"_id\": \"d%d\", \"text\": \"stone number %d by the river and the house %d\"}\n", i, i, i*i%7)
			if i%(k+2) == 0 {
				fmt.Fprintf(&queries, "{\"_id\": \"q%d\", \"text\": \"which stone is %d near %d\"}\n", i, i, i*i%7)
				fmt.Fprintf(&qrels, "q%d\td%d\t1\n", i, (i+k)%12)
			}
		}
		for file, text := range map[string]string{"queries.jsonl": queries.String(), "corpus.jsonl": corpus.String(), "qrels/test.tsv": qrels.String()} {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		all = append(all, fmt.Sprintf("{queries: %q}", dir))
	}
	all[1] = fmt.Sprintf("{name: the other, queries: %q, corpus: %q, qrels: %q}", filepath.Join(j.dir, "hard/queries.jsonl"), filepath.Join(j.dir, "hard/corpus.jsonl"), filepath.Join(j.dir, "hard/qrels/test.tsv"))
	return all
}

// evaluated is a line of an evaluation.
type evaluated struct {
	Step   int
	Metric string
	Value  float64
	Base   float64
	Eval   json.RawMessage
	Tasks  []struct {
		Name, Metric string
		Value        float64
		Eval         json.RawMessage
	}
}

// evaluations are a run's lines of evaluations.
func (j *job) evaluations(t *testing.T, out string) (all []evaluated) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(j.dir, out, "metrics.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		var e evaluated
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		if e.Metric != "" {
			all = append(all, e)
		}
	}
	return all
}

// Several tasks have each the figures that it has alone, on one rank and on two, and their mean is what counts.
func TestSeveralTasks(t *testing.T) {
	t.Parallel()
	harness.Thorough(t)
	j := newJob(t, 40)
	tasks, sts := j.tasks(t), j.sts(t)
	plain := []string{"eval.every=1", "eval.metric=recall@3", "eval.at_start=true", "optimizer.lr=1e-2"}
	common := append(slices.Clip(plain), "save.best=true", "save.every=1")
	alone := map[string][]evaluated{}
	for name, set := range map[string]string{"easy": "eval.retrieval=" + tasks[0], "the other": "eval.retrieval=" + tasks[1], "sts": sts} {
		if _, err := j.run(t, "alone "+name, nil, 0, false, append(slices.Clip(plain), set)...); err != nil {
			t.Fatal(err)
		}
		alone[name] = j.evaluations(t, "alone "+name)
	}
	retrieval := "eval.retrieval=[" + strings.Join(tasks, ", ") + "]"
	for _, c := range []struct {
		out, metric string
		names       []string
		sets        []string
	}{
		{"two", "mean recall@3", []string{"easy", "the other"}, []string{retrieval}},
		{"three", "mean", []string{"easy", "the other", "sts"}, []string{retrieval, sts}},
		{"three on two ranks", "mean", []string{"easy", "the other", "sts"}, []string{retrieval, sts, "mesh.replicate=2"}},
	} {
		o, err := j.run(t, c.out, nil, 0, false, append(common, c.sets...)...)
		if err != nil {
			t.Fatal(err)
		}
		got := j.evaluations(t, c.out)
		if len(got) != 1+len(o.losses) || len(got) < 3 {
			t.Fatalf("%s: %d evaluations of %d steps", c.out, len(got), len(o.losses))
		}
		best, at := math.Inf(-1), 0
		for i, e := range got {
			mean := 0.0
			for k, name := range c.names {
				if v := e.Tasks[k]; v.Name != name || v.Metric != alone[name][i].Metric || !(math.Abs(v.Value-alone[name][i].Value) <= 1e-6) || len(v.Eval) < 20 {
					t.Errorf("%s, step %d, %s: %+v, alone %+v", c.out, e.Step, name, v, alone[name][i])
				}
				mean += e.Tasks[k].Value / float64(len(c.names))
			}
			if e.Step != i || e.Metric != c.metric || !(math.Abs(e.Value-mean) <= 1e-12) || e.Eval != nil || len(e.Tasks) != len(c.names) {
				t.Errorf("%s: %+v, want a mean of %v", c.out, e, mean)
			}
			if i > 0 && e.Value > best {
				best, at = e.Value, i
			}
		}
		if s := o.summary; s.Eval.Value != got[len(got)-1].Value || at < s.Steps && (s.BestStep != at || s.Best != best) {
			t.Errorf("%s: %+v; the best is %v at step %d", c.out, s, best, at)
		}
		card, err := os.ReadFile(filepath.Join(j.dir, c.out, "model", "README.md"))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{filepath.Join(filepath.Base(j.dir), "easy") + " |", "hard/queries.jsonl |"} {
			if !strings.Contains(string(card), want) {
				t.Errorf("%s: the card has nothing of %s", c.out, want)
			}
		}
	}
	if a, b := alone["easy"], alone["the other"]; slices.EqualFunc(a, b, func(a, b evaluated) bool { return a.Value == b.Value }) {
		t.Error("both tasks have the same figures: which is whose would not show")
	}
	// Other tasks, or other content in one of them, are another measure: the best evaluation so far says nothing of it. The same ones are the same.
	const forgotten = "what eval measures has changed"
	went := func(out string, epochs int, sets ...string) string {
		t.Helper()
		o, err := j.run(t, out, nil, 0, true, append(append(append([]string{}, common...), fmt.Sprint("train.epochs=", epochs)), sets...)...)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(o.notes)
	}
	if notes := went("two", 4, retrieval); strings.Contains(notes, forgotten) {
		t.Errorf("the same tasks: %s", notes)
	}
	if notes := went("two", 5, "eval.retrieval="+tasks[0]); !strings.Contains(notes, forgotten) {
		t.Errorf("one task of two: %s", notes)
	}
	if notes := went("three", 4, retrieval, sts, "eval.metric=mrr@10"); !strings.Contains(notes, forgotten) {
		t.Errorf("another metric: %s", notes)
	}
	qrels := filepath.Join(j.dir, "hard/qrels/test.tsv")
	raw, err := os.ReadFile(qrels)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(qrels, append(raw, "q0\td5\t1\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	if notes := went("three", 5, retrieval, sts, "eval.metric=mrr@10"); !strings.Contains(notes, forgotten) {
		t.Errorf("one more judgement of the second task: %s", notes)
	}
}

// What is read to measure with is told with the key that it is of, by the main rank.
func TestTellsReading(t *testing.T) {
	told := ""
	x := &Run{obs: Observer{Reading: func(what string, texts int) { told += fmt.Sprint(what, " ", texts) }}}
	dataset.Reading(x.noting(t.Context(), "eval.retrieval"))("reading corpus.jsonl", 7)
	if told != "eval.retrieval: reading corpus.jsonl 7" {
		t.Error(told)
	}
}

// Where one of several tasks has no figure it counts as 0: the others' are kept, and the mean stays the same measure.
func TestNoFigureOfOne(t *testing.T) {
	j := newJob(t, 40)
	same := filepath.Join(j.dir, "same.jsonl")
	if err := os.WriteFile(same, []byte(`{"a":"x","b":"y","s":1}`+"\n"+`{"a":"x","b":"y","s":2}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, mesh := range []string{"mesh.replicate=1", "mesh.replicate=2"} {
		o, err := j.run(t, mesh, nil, 0, false, "eval.every=1", "eval.retrieval="+j.tasks(t)[0], fmt.Sprintf("eval.sts=[{name: good, path: %q, a: a, b: b, score: s}, {path: %q, a: a, b: b, score: s}]", j.stsFile(t), same), mesh)
		if err != nil {
			t.Fatal(err)
		}
		got := j.evaluations(t, mesh)
		for _, e := range got {
			if len(e.Tasks) != 3 || e.Tasks[2].Value != 0 || !(math.Abs(e.Value-(e.Tasks[0].Value+e.Tasks[1].Value)/3) <= 1e-12) || e.Tasks[0].Value == 0 {
				t.Errorf("%s: %+v", mesh, e)
			}
		}
		if len(got) != len(o.losses) || !strings.Contains(fmt.Sprint(o.notes), "eval.sts[1] has no figure this time, and counts as 0: ") {
			t.Errorf("%s: %d evaluations, %s", mesh, len(got), o.notes)
		}
	}
}

// A file to measure on that is not there is found before the model and the data are opened.
func TestMissingToMeasure(t *testing.T) {
	j := newJob(t, 10)
	data, nowhere := filepath.Join(j.dir, "data.jsonl"), filepath.Join(j.dir, "now*.jsonl")
	for want, set := range map[string]string{
		"eval.sts[1]: ":          fmt.Sprintf("eval.sts=[{path: %q, a: q, b: p, score: y}, {name: b, path: %q, a: q, b: p, score: y}]", data, nowhere),
		"eval.loss: ":            fmt.Sprintf("eval.loss={path: [%q, %q], query: q, positive: p}", data, nowhere),
		"eval.retrieval: ":       fmt.Sprintf("eval.retrieval={queries: %q, corpus: %[1]q, qrels: none.tsv}", data),
		"eval.candidates: open ": "eval.candidates={path: a/b.jsonl, query: q, positive: p, negative: n}",
		"eval.loss: a/**/b.jsonl: ** for folders in folders is not known": "eval.loss={path: a/**/b.jsonl, query: q, positive: p}",
	} {
		_, err := j.run(t, "run", nil, 0, false, "model.path=./nowhere", "data.train.0.path=nowhere.jsonl", set)
		if !errors.Is(err, dataset.ErrNoFiles) || !strings.Contains(err.Error(), want) || !strings.Contains(set, "**") && !strings.Contains(err.Error(), "no such file") && !strings.HasSuffix(err.Error(), nowhere+" matches no file") {
			t.Errorf("%v, want %q", err, want)
		}
	}
	there := fmt.Sprintf("eval.loss={path: %q, query: q, positive: p}", j.dir+"/nowhere/../data.jsonl") // as it is read
	if _, err := j.run(t, "run", nil, 0, false, "model.path=./nowhere", there, "eval.nanobeir=true", "eval.retrieval="+j.tasks(t)[0]); err == nil || !strings.Contains(err.Error(), "model.path: ") {
		t.Errorf("what is there, or on the hub: %v", err)
	}
}

// What BM25 has found is reranked for each task by itself.
func TestRerankTasks(t *testing.T) {
	j := newJob(t, 40)
	tasks := j.tasks(t)
	sets := []string{"model.kind=reranker", "model.max_length=32", "data.train.0.negatives=[p]", "eval.every=0", "train.max_steps=2", "optimizer.lr=1e-2"}
	values := func(out, tasks string) (all []float64) {
		t.Helper()
		if _, err := j.run(t, out, nil, 0, false, append(append([]string{}, sets...), "eval.rerank="+tasks)...); err != nil {
			t.Fatal(err)
		}
		e := j.evaluations(t, out)
		for _, x := range e[len(e)-1].Tasks {
			all = append(all, x.Value)
		}
		if all == nil {
			all = []float64{e[len(e)-1].Value}
		}
		return all
	}
	top := func(i int) string { return strings.TrimSuffix(tasks[i], "}") + ", top: 4}" }
	both, first, second := values("both", "["+top(0)+", "+top(1)+"]"), values("first", top(0)), values("second", top(1))
	if len(both) != 2 || both[0] != first[0] || both[1] != second[0] || first[0] == second[0] {
		t.Errorf("%v, alone %v and %v", both, first, second)
	}
	if card := j.card(t, "first"); !strings.Contains(card, "/easy, BM25's candidates | ") {
		t.Errorf("the card does not say what was reranked:\n%s", card)
	}
	sets = append(sets, "eval.metric=mrr@3") // whose figure of BM25's order is then the one beside it
	values("mrr", tasks[1])
	e := j.evaluations(t, "mrr")[0]
	if m := e.measures(t, e.Eval); e.Base != m["base_mrr@3"] || e.Base == m["base_ndcg@10"] || e.Value != m["mrr@3"] {
		t.Errorf("%v from %v, of %v", e.Value, e.Base, m)
	} else if _, ok := m["ndcg@10"]; !ok || len(m) < 2*len(evaluate.Standard()) {
		t.Errorf("beside eval.metric there is %v", m)
	}
	x := j.opened(t, append(sets[:len(sets):len(sets)], "save.dir="+filepath.Join(j.dir, "all"), "eval.rerank="+tasks[0]))
	all, err := x.tasks[0].retrieval.RankBM25(t.Context(), 100) // where the recipe does not say how many
	if err != nil || !reflect.DeepEqual(x.tasks[0].first, all) || len(slices.MaxFunc(all, func(a, b []evaluate.Hit) int { return len(a) - len(b) })) < 5 {
		t.Errorf("%v are reranked, of %v: %v", x.tasks[0].first, all, err)
	}
	x = j.opened(t, append(sets[:len(sets):len(sets)], "save.dir="+filepath.Join(j.dir, "four"), "eval.rerank="+top(0)))
	if most := len(slices.MaxFunc(x.tasks[0].first, func(a, b []evaluate.Hit) int { return len(a) - len(b) })); most != 4 {
		t.Errorf("with top: 4 there are %d to rerank", most)
	}
}

// What reranks stands beside the figure of the order that it was given, and a mean beside one only where all tasks have such an order.
func TestEvaluationString(t *testing.T) {
	low, high := 0.25, 0.75
	both := []TaskValue{{Name: "a", Metric: "ndcg@10", Value: 0.4, Base: &low}, {Name: "b", Metric: "ndcg@10", Value: 0.6, Base: &high}}
	if mean := meanBase(both); mean == nil || *mean != 0.5 || meanBase([]TaskValue{both[0], {}}) != nil || meanBase([]TaskValue{{}, both[0]}) != nil {
		t.Errorf("a mean of %v", mean)
	}
	for want, e := range map[string]Evaluation{
		"ndcg@10 0.5000 from 0.2500": {Metric: "ndcg@10", Value: 0.5, Base: &low},
		"mean ndcg@10 0.5000 from 0.2500 (a 0.4000 from 0.2500, b 0.6000 from 0.7500)": {Metric: "mean ndcg@10", Value: 0.5, Base: &low, Tasks: both},
		"ndcg@10 0.5000": {Metric: "ndcg@10", Value: 0.5},
		"mean ndcg@10 0.5000 (a 0.4000, b 0.6000)":          {Metric: "mean ndcg@10", Value: 0.5, Tasks: []TaskValue{{Name: "a", Metric: "ndcg@10", Value: 0.4}, {Name: "b", Metric: "ndcg@10", Value: 0.6}}},
		"mean 0.5000 (a ndcg@10 0.4000, b spearman 0.6000)": {Metric: "mean", Value: 0.5, Tasks: []TaskValue{{Name: "a", Metric: "ndcg@10", Value: 0.4}, {Name: "b", Metric: "spearman", Value: 0.6}}},
	} {
		if got := e.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
