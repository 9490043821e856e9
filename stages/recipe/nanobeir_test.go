package recipe

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"contraflow/io/dataset"
	"contraflow/stages/scoring"
	"contraflow/testdata/harness"
)

// nanoFiles are a dataset in NanoBEIR's layout, with the tasks NanoMSMARCO, NanoNQ and NanoArguAna, whose folder says how its texts begin.
func (j *job) nanoFiles(t *testing.T) map[string][]byte {
	t.Helper()
	files, card := map[string][]byte{}, "---\nconfigs:\n"
	for _, config := range []string{"bm25", "corpus", "qrels", "queries"} {
		card += fmt.Sprintf("- config_name: %s\n  data_files:\n", config)
		for k, task := range []string{"NanoMSMARCO", "NanoNQ", "NanoArguAna"} {
			card += fmt.Sprintf("  - {split: %s, path: %s/%[1]s-*}\n", task, config)
			var b strings.Builder
			for i := range 12 {
				switch query := fmt.Sprintf("{\"query-id\": \"q%d\", ", i); {
				case config == "corpus":
					fmt.Fprintf(&b, "{\"_id\": \"d%d\", \"text\": \"%s number %d by the river\"}\n", i, j.words[i+20*k], i)
				case i%3 != 0:
				case config == "queries":
					fmt.Fprintf(&b, "{\"_id\": \"q%d\", \"text\": \"which %s is %d\"}\n", i, j.words[i+20*k], i)
				case config == "qrels":
					fmt.Fprintf(&b, "%s\"corpus-id\": \"d%d\"}\n", query, (i+k)%12)
				default:
					fmt.Fprintf(&b, "%s\"corpus-ids\": [\"d%d\", \"d%d\", \"d%d\", \"d%d\"]}\n", query, (i+1)%12, (i+k)%12, (i+5)%12, (i+7)%12)
				}
			}
			files[config+"/"+task+"-00000-of-00001.jsonl"] = []byte(b.String())
		}
	}
	files["README.md"] = []byte(card + "---\n")
	return files
}

func (e evaluated) measures(t *testing.T, raw json.RawMessage) (all map[string]float64) {
	t.Helper()
	if err := json.Unmarshal(raw, &all); err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	return all
}

// NanoBEIR's figure is the mean of its tasks', which each have what they have as files; beside others it counts as one task, whose means are there too.
func TestNanoBEIR(t *testing.T) {
	harness.Thorough(t)
	j := newJob(t, 60)
	files := j.nanoFiles(t)
	hubCache(t, files)
	common := []string{"train.max_steps=2", "optimizer.lr=1e-2", "eval.every=1", "eval.at_start=true", "save.best=true", "save.every=1"}
	run := func(out string, sets ...string) ([]evaluated, outcome) {
		t.Helper()
		o, err := j.run(t, out, nil, 0, false, append(slices.Clone(common), sets...)...)
		if err != nil {
			t.Fatal(err)
		}
		return j.evaluations(t, out), o
	}
	const two = "eval.nanobeir={dataset: org/name, tasks: [msmarco, nq]}"
	got, o := run("nano", two)
	// The same texts as files, whose judgements have a grade.
	var tasks []string
	for _, name := range []string{"NanoMSMARCO", "NanoNQ"} {
		at := func(config string) string { return filepath.Join(j.dir, name+"-"+config+".jsonl") }
		for _, config := range []string{"queries", "corpus", "qrels"} {
			text := string(files[config+"/"+name+"-00000-of-00001.jsonl"])
			if config == "qrels" {
				text = strings.ReplaceAll(text, "}\n", ", \"score\": 1}\n")
			}
			if err := os.WriteFile(at(config), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		tasks = append(tasks, fmt.Sprintf("{name: %s, queries: %q, corpus: %q, qrels: %q}", name, at("queries"), at("corpus"), at("qrels")))
	}
	sts := j.sts(t)
	want, _ := run("files", "eval.retrieval=["+strings.Join(tasks, ", ")+"]")
	beside, _ := run("beside", two, sts)
	alone, _ := run("sts", sts)
	if len(got) != 3 || len(want) != 3 || len(beside) != 3 {
		t.Fatalf("%d, %d and %d evaluations, want 3", len(got), len(want), len(beside))
	}
	best := math.Inf(-1)
	for i, e := range got {
		w, b := want[i], beside[i]
		if e.Metric != "mean ndcg@10" || e.Value != w.Value || len(e.Tasks) != 2 {
			t.Errorf("step %d: %+v, want %+v", i, e, w)
		}
		means := e.measures(t, e.Eval)
		for k, task := range e.Tasks {
			if task.Name != w.Tasks[k].Name || task.Value != w.Tasks[k].Value || string(task.Eval) != string(w.Tasks[k].Eval) {
				t.Errorf("step %d: %+v, want %+v", i, task, w.Tasks[k])
			}
			for name, v := range e.measures(t, task.Eval) {
				if means[name] -= v / 2; strings.HasPrefix(name, "queries") {
					means[name] -= v / 2 // which are counted
				}
			}
		}
		for name, left := range means {
			if !(math.Abs(left) <= 1e-12) {
				t.Errorf("step %d: the mean of %s is off by %v", i, name, left)
			}
		}
		if b.Metric != "mean" || !(math.Abs(b.Value-(e.Value+alone[i].Value)/2) <= 1e-12) || len(b.Tasks) != 4 || b.Tasks[2].Name != "name" || b.Tasks[2].Value != e.Value || string(b.Tasks[2].Eval) != string(e.Eval) || b.Eval != nil {
			t.Errorf("step %d, beside sts: %+v, NanoBEIR alone %+v, sts %+v", i, b, e, alone[i])
		}
		if i > 0 {
			best = max(best, e.Value)
		}
	}
	if v := o.summary; v.BestStep == 0 && got[0].Value < best || v.BestStep > 0 && v.Best != best && v.Best != got[0].Value {
		t.Errorf("the best is %v, of step %d; the evaluations are %+v", v.Best, v.BestStep, got)
	}
	card, err := os.ReadFile(filepath.Join(j.dir, "nano", "model", "README.md"))
	if err != nil || !strings.Contains(string(card), "NanoMSMARCO of org/name") || !strings.Contains(string(card), "name, mean of 2 tasks") {
		t.Errorf("the card has not where the figures are from: %v\n%s", err, card)
	}

	// A loss that decides has them beside it, with their mean.
	loss, _ := run("loss", two, "eval.metric=loss", fmt.Sprintf("eval.loss={path: %q, query: q, positive: p}", filepath.Join(j.dir, "data.jsonl")))
	if e := loss[0]; e.Metric != "loss" || len(e.Tasks) != 3 || e.Tasks[2].Value != got[0].Value {
		t.Errorf("%+v, want what NanoBEIR alone has, %+v", e, got[0])
	}
	// One task is a task like others; a prompt of its own changes its figures' texts; and all tasks of two datasets are apart.
	one, _ := run("one", "eval.nanobeir={dataset: org/name, tasks: nq}", "train.max_steps=1")
	if e := one[0]; e.Metric != "ndcg@10" || e.Value != got[0].Tasks[1].Value || e.Tasks != nil {
		t.Errorf("%+v, want the second of %+v", e, got[0])
	}
	x := j.opened(t, []string{"save.dir=" + filepath.Join(j.dir, "x"), `eval.nanobeir=[{dataset: org/name, tasks: [nq], prompts: {query: "which "}}, {dataset: org/name, tasks: [msmarco]}]`})
	plain := j.opened(t, []string{"save.dir=" + filepath.Join(j.dir, "y"), "eval.nanobeir={dataset: org/name, tasks: [nq, msmarco]}", "eval.at_start=true"})
	if x.tasks[0].of != "name" || x.tasks[1].of != "name" || x.tasks[0].name != "NanoNQ" {
		t.Errorf("%+v", x.tasks)
	}
	x.Recipe.Eval.AtStart = true
	a, errA := x.judge()
	b, errB := plain.judge()
	if errA != nil || errB != nil || a == b || !strings.Contains(a, "ndcg@10 in name, ndcg@10 in name on ") {
		t.Errorf("with a prompt %q (%v), without %q (%v): they are to differ", a, errA, b, errB)
	}
	if p, q := first(t, x), first(t, plain); p == q {
		t.Errorf("a prompt changes nothing: %v", p)
	}
	docs := j.opened(t, []string{"save.dir=" + filepath.Join(j.dir, "z"), `eval.nanobeir={dataset: org/name, tasks: [nq, msmarco], prompts: {document: "which cat "}}`})
	if p, q := first(t, docs), first(t, plain); p == q {
		t.Errorf("a prompt of documents changes nothing: %v", p)
	}
	// Parts of an m3 count as in other retrieval.
	m3 := j.opened(t, []string{"save.dir=" + filepath.Join(j.dir, "m3"), "model.kind=m3", "model.vector_dim=64", "eval.part=sparse", "eval.nanobeir={dataset: org/name, tasks: nq}"})
	if f := m3.tasks[0].retrieval.Fusion; len(f) != 1 || f["sparse"] != 1 {
		t.Errorf("of an m3 %v counts, want the sparse part", f)
	}
}

// first is a run's first figure.
func first(t *testing.T, x *Run) string {
	t.Helper()
	r, err := x.Evaluate(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(r.Values, r.Means)
}

// A reranker ranks what BM25 has found, as with files of candidates; tasks of arguments are left out where none are named.
func TestNanoBEIRReranker(t *testing.T) {
	j := newJob(t, 40)
	files := j.nanoFiles(t)
	hubCache(t, files)
	sets := []string{"model.kind=reranker", "model.max_length=32", "data.train.0.negatives=[p]", "eval.every=0", "train.max_steps=1", "optimizer.lr=1e-2"}
	run := func(out string, more ...string) evaluated {
		t.Helper()
		if _, err := j.run(t, out, nil, 0, false, append(slices.Clone(sets), more...)...); err != nil {
			t.Fatal(err)
		}
		all := j.evaluations(t, out)
		return all[len(all)-1]
	}
	got := run("nano", "eval.nanobeir={dataset: org/name, tasks: [nq, arguana], top: 3}")
	var lines [2][]string
	for k, name := range []string{"NanoNQ", "NanoArguAna"} {
		texts := map[string]string{}
		read := func(config string, row func(map[string]any)) {
			for line := range strings.Lines(string(files[config+"/"+name+"-00000-of-00001.jsonl"])) {
				var r map[string]any
				if err := json.Unmarshal([]byte(line), &r); err != nil {
					t.Fatal(err)
				}
				row(r)
			}
		}
		text := func(r map[string]any) { texts[r["_id"].(string)] = r["text"].(string) }
		read("corpus", text)
		read("queries", text)
		positive := map[string]string{}
		read("qrels", func(r map[string]any) { positive[r["query-id"].(string)] = texts[r["corpus-id"].(string)] })
		read("bm25", func(r map[string]any) {
			var docs []string
			for _, d := range r["corpus-ids"].([]any)[:3] {
				docs = append(docs, texts[d.(string)])
			}
			q := r["query-id"].(string)
			line, err := json.Marshal(map[string]any{"query": texts[q], "positive": []string{positive[q]}, "documents": docs})
			if err != nil {
				t.Fatal(err)
			}
			lines[k] = append(lines[k], string(line))
		})
	}
	var tasks []string
	for k, name := range []string{"NanoNQ", "NanoArguAna"} {
		path := filepath.Join(j.dir, name+".jsonl")
		if err := os.WriteFile(path, []byte(strings.Join(lines[k], "\n")), 0o600); err != nil {
			t.Fatal(err)
		}
		tasks = append(tasks, fmt.Sprintf("{path: %q, query: query, positive: positive, documents: documents}", path))
	}
	want := run("files", "eval.candidates=["+strings.Join(tasks, ", ")+"]")
	if got.Metric != "mean ndcg@10" || got.Value != want.Value || len(got.Tasks) != 2 {
		t.Fatalf("%+v, want %+v", got, want)
	}
	means := got.measures(t, got.Eval)
	if base := means["base_ndcg@10"]; base == 0 || got.Base != base || want.Base != base {
		t.Errorf("the order of the file has %v and %v, want %v", got.Base, want.Base, base)
	}
	for k, task := range got.Tasks {
		if task.Name != want.Tasks[k].Name || string(task.Eval) != string(want.Tasks[k].Eval) {
			t.Errorf("%s %s, want %s %s", task.Name, task.Eval, want.Tasks[k].Name, want.Tasks[k].Eval)
		}
		for name, v := range got.measures(t, task.Eval) {
			if means[name] -= v / 2; name == "queries" {
				means[name] -= v / 2
			}
		}
	}
	if len(means) != 7 || slices.ContainsFunc(slices.Collect(maps.Values(means)), func(left float64) bool { return !(math.Abs(left) <= 1e-12) }) {
		t.Errorf("means are off by %v", means)
	}
	x := j.opened(t, append(slices.Clone(sets), "save.dir="+filepath.Join(j.dir, "all"), "eval.nanobeir={dataset: org/name, tasks: [nq, msmarco], found: true}"))
	if c, _ := json.Marshal(x.tasks[1].scored.Content); len(x.tasks) != 2 || !strings.Contains(string(c), "Missed") {
		t.Errorf("found: %s", c)
	}
}

// What a recipe may say.
func TestNanoBEIRForms(t *testing.T) {
	const base = "model: {path: m}\ndata: {train: [{path: p, query: q, positive: p}]}\nsave: {dir: d}\n"
	read := func(text string) (Recipe, error) {
		path := filepath.Join(t.TempDir(), "recipe.yaml")
		if err := os.WriteFile(path, []byte(base+text), 0o600); err != nil {
			t.Fatal(err)
		}
		return Load(path, nil)
	}
	all := "[NanoClimateFEVER NanoDBPedia NanoFEVER NanoFiQA2018 NanoHotpotQA NanoMSMARCO NanoNFCorpus NanoNQ NanoQuoraRetrieval NanoSCIDOCS NanoArguAna NanoSciFact NanoTouche2020]"
	for text, want := range map[string]string{
		"true":              "sentence-transformers/NanoBEIR-en " + all,
		"false":             "",
		"msmarco":           "sentence-transformers/NanoBEIR-en [NanoMSMARCO]",
		"[nq, NanoMSMARCO]": "sentence-transformers/NanoBEIR-en [NanoNQ NanoMSMARCO]",
		"{tasks: SciFact}":  "sentence-transformers/NanoBEIR-en [NanoSciFact]",
		"{dataset: o/de}":   "o/de " + all,
		"[{tasks: nq}, {dataset: o/de, tasks: nq}]": "sentence-transformers/NanoBEIR-en [NanoNQ] o/de [NanoNQ]",
	} {
		r, err := read("eval: {nanobeir: " + text + "}\n")
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		said := func(r Recipe) string {
			var all []string
			for _, n := range r.Eval.NanoBEIR {
				all = append(all, fmt.Sprint(n.Dataset, " ", n.Tasks))
			}
			return strings.Join(all, " ")
		}
		if got := said(r); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
		// What a run's folder has of it is read as the same.
		yaml, err := r.YAML()
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "recipe.yaml")
		if err := os.WriteFile(path, yaml, 0o600); err != nil {
			t.Fatal(err)
		}
		if again, err := Load(path, nil); err != nil || said(again) != want {
			t.Errorf("%s: read again it is %q, want %q, %v", text, said(again), want, err)
		}
	}
	r, err := read("eval: {nanobeir: [{tasks: [nq, msmarco]}, {dataset: o/NanoBEIR-de, tasks: nq}, {tasks: scifact}, {dataset: u/NanoBEIR-de, tasks: nq}], retrieval: {queries: beir/scifact}}\n")
	var names []string
	for _, n := range r.Eval.nano() {
		names = append(names, n.name)
	}
	if want := []string{"NanoBEIR-en/NanoNQ", "NanoBEIR-en/NanoMSMARCO", "NanoBEIR-en/NanoSciFact", "o/NanoBEIR-de/NanoNQ", "u/NanoBEIR-de/NanoNQ"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("%q, want %q, %v", names, want, err)
	}
	for text, want := range map[string]string{
		"nanobeir: [msmarko]":                                 "eval.nanobeir: NanoBEIR has no task \"msmarko\"; did you mean msmarco?",
		"nanobeir: all":                                       "; nanobeir: true measures on all",
		"nanobeir: [nq, NanoNQ]":                              "eval.nanobeir: names NanoNQ twice",
		"nanobeir: {tasks: []}":                               "eval.nanobeir.tasks: is an empty list",
		"nanobeir: {dataset: NanoBEIR-de}":                    "eval.nanobeir.dataset: \"NanoBEIR-de\" is no id of a dataset on the Hugging Face hub",
		"nanobeir: [nq, {tasks: msmarco}]":                    "eval.nanobeir",
		"nanobeir: {top: 50}":                                 "eval.nanobeir: top and found are of a reranker",
		"nanobeir: {prompts: {positive: x}}":                  "eval.nanobeir.prompts: positive and negative are for training",
		"nanobeir: {languages: de}":                           "eval.nanobeir[0].languages: unknown key",
		"nanobeir: nq, retrieval: {name: NanoNQ, queries: x}": "eval.retrieval.name: \"NanoNQ\" is that of eval.nanobeir too",
		"nanobeir: nq, metric: accuracy":                      "eval.metric: measure \"accuracy\" is not known",
	} {
		if _, err := read("eval: {" + text + "}\n"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// Likewise of a reranker.
func TestNanoBEIRFormsOfReranker(t *testing.T) {
	read := func(eval string) (Recipe, error) {
		return Parse("job", []byte("model: {path: m, kind: reranker, max_length: 32}\ndata: {train: [{path: p, query: q, positive: p, negatives: [n]}]}\nsave: {dir: d}\neval: {"+eval+"}\n"), nil)
	}
	r, err := read("nanobeir: true")
	if err != nil {
		t.Fatal(err)
	}
	if all := r.Eval.nano(); len(all) != 11 || all[10].name != "NanoSciFact" {
		t.Errorf("all tasks are %v, want those of CrossEncoderNanoBEIREvaluator, without ArguAna and Touche2020", all)
	}
	source := r.Eval.nano()[0].source
	if source.Instead, source.Measures = nil, nil; !reflect.DeepEqual(source, scoring.NanoBEIR(dataset.NanoBEIR, "NanoClimateFEVER", 100, false)) {
		t.Errorf("%+v is not the first 100", source)
	}
	for text, want := range map[string]string{
		`nanobeir: {prompts: {query: "x"}}`: "eval.nanobeir.prompts: are for embedders",
		"nanobeir: {top: -1}":               "eval.nanobeir.top: is negative",
		"nanobeir: nq, metric: map@5":       "eval.metric: map@5: average precision",
	} {
		if _, err := read(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// check reads them, and tells of each.
func TestNanoBEIRLookover(t *testing.T) {
	j := newJob(t, 40)
	files := j.nanoFiles(t)
	files["corpus/NanoNQ-00000-of-00001.jsonl"] = append(files["corpus/NanoNQ-00000-of-00001.jsonl"], "{\"_id\": \"d5\", \"text\": \"again\"}\n"...)
	hubCache(t, files)
	_, err := j.run(t, "run", nil, 0, false, "eval.nanobeir={dataset: org/name, tasks: [msmarco, nq]}")
	if want := "eval.nanobeir, NanoNQ: "; err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), `"d5" comes a second time`) {
		t.Errorf("%v, want %q", err, want)
	}
}
