package recipe

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"contraflow/io/dataset"
	"contraflow/io/hfmodel"
	"contraflow/stages/evaluate"
	"contraflow/stages/scoring"
)

// NanoBEIR are tasks of a dataset in NanoBEIR's layout, as [dataset.LoadNanoRetrieval] reads them: retrieval of embedders, and reranking of what BM25 has found.
// They count as one task, whose figures are the means of theirs.
type NanoBEIR struct {
	Dataset string   `yaml:"dataset,omitempty" path:"~"` // its id on the hub, or a folder with its files; "": dataset.NanoBEIR
	Tasks   []string `yaml:"tasks,omitempty"`            // nil: dataset.NanoTasks
	Prompts *Prompts `yaml:"prompts,omitempty"`          // of queries and documents; nil: those of other evaluations
	Top     int      `yaml:"top,omitempty"`              // of a reranker: documents of each query; 0: 100
	Found   bool     `yaml:"found,omitempty"`            // of a reranker: relevant documents that are not among these have been missed, they are not ranked

	Dimensions Cuts `yaml:"dimensions,omitempty"` // that embeddings are cut to

	reranker bool
}

// set is the dataset as it is measured on: what has the same one counts together.
func (n NanoBEIR) set(cut int) string { return shorter(strings.TrimRight(n.Dataset, "/"), cut) }

// NanoBEIRs are one, or several that differ in their prompts, dataset or dimensions.
type NanoBEIRs []NanoBEIR

// decode takes true for all tasks of the English dataset, a list of tasks, a mapping, or a list of mappings.
func (l *NanoBEIRs) decode(d *decoder, path string, n *node) {
	if n.kind == scalar && !n.quoted {
		if yes, err := strconv.ParseBool(n.text); err == nil {
			if *l = nil; yes {
				*l = NanoBEIRs{{}}
			}
			return
		}
	}
	if n.kind == scalar || n.kind == list && !slices.ContainsFunc(n.list, func(e *node) bool { return e.kind == mapping }) {
		var one NanoBEIR
		d.value(path, n, reflect.ValueOf(&one.Tasks).Elem())
		*l = NanoBEIRs{one}
		return
	}
	d.slice(path, n, reflect.ValueOf((*[]NanoBEIR)(l)).Elem())
}

// MarshalYAML writes what decode reads.
func (l NanoBEIRs) MarshalYAML() (any, error) { return OneOrMore[NanoBEIR](l).MarshalYAML() }

// nano are all of their tasks, those of one dataset together, by as many dimensions.
func (e Eval) nano() (all []task) {
	var ids []string
	called := map[string]int{} // datasets by the last part of their ids
	for _, n := range e.NanoBEIR {
		for _, cut := range each(n.Dimensions) {
			if id := n.set(cut); !slices.Contains(ids, id) {
				ids = append(ids, id)
				called[path.Base(id)]++
			}
		}
	}
	for _, id := range ids {
		of := id
		if called[path.Base(id)] == 1 {
			of = path.Base(id)
		}
		for i, n := range e.NanoBEIR {
			for _, cut := range each(n.Dimensions) {
				if n.set(cut) != id {
					continue
				}
				for _, name := range n.Tasks {
					t := e.nanoTask(n, name, taskKey("nanobeir", i, len(e.NanoBEIR)))
					t.cutTo(cut)
					if t.of = of; len(ids) > 1 {
						t.name = of + "/" + name
					}
					all = append(all, t)
				}
			}
		}
	}
	return all
}

// nanoTask is one task of them: of a reranker, what BM25 has found are its candidates.
func (e Eval) nanoTask(n NanoBEIR, name, key string) task {
	t := task{key: key, name: name, nano: name, from: name + " of " + shortPath(n.Dataset), files: []string{dataset.NanoPath(n.Dataset)}, prompts: n.Prompts}
	if !n.reranker {
		t.load = func(ctx context.Context) (*dataset.Retrieval, error) {
			return dataset.LoadNanoRetrieval(ctx, n.Dataset, name)
		}
		return t
	}
	t.kind, t.source = scoring.Candidates, scoring.NanoBEIR(n.Dataset, name, cmp.Or(n.Top, defaultTop), n.Found)
	t.source.Measures = e.candidateMeasures()
	t.source.Instead = func(string) string {
		return fmt.Sprintf("it takes other tasks (%s.tasks) or another dataset (%[1]s.dataset)", key)
	}
	return t
}

// checkNano checks and resolves them.
func (c *checker) checkNano(r *Recipe) {
	reranker := r.Model.Kind == "reranker"
	for i := range r.Eval.NanoBEIR {
		n, key := &r.Eval.NanoBEIR[i], taskKey("nanobeir", i, len(r.Eval.NanoBEIR))
		n.reranker, n.Dataset = reranker, cmp.Or(n.Dataset, dataset.NanoBEIR)
		if err := dataset.CheckNano(n.Dataset); err != nil {
			c.fail(key+".dataset", "%v", err)
		}
		if n.Tasks == nil {
			n.Tasks = dataset.NanoTasks(reranker)
		}
		c.require(len(n.Tasks) > 0, key+".tasks", "is an empty list: without it all tasks are measured, and with nanobeir: false none")
		for k, name := range n.Tasks {
			task, err := dataset.NanoTask(name)
			if err != nil {
				c.fail(key, "%v; nanobeir: true measures on all", err)
				continue
			}
			n.Tasks[k] = task
		}
		c.require(n.Top >= 0, key+".top", "is negative")
		if !reranker {
			c.require(n.Top == 0 && !n.Found, key, "top and found are of a reranker, which ranks what BM25 has found: an embedder ranks all documents")
			continue
		}
		c.checkCandidateMeasure(r.Eval)
	}
}

// together are the tasks whose mean an evaluation's value is, where those that belong together are one; and all tasks, with such means behind their own.
func (e *Evaluation) together() (counted, all []TaskValue, err error) {
	for i, n := 0, 0; i < len(e.Tasks); i += n {
		t := e.Tasks[i]
		for n = 1; t.of != "" && i+n < len(e.Tasks) && e.Tasks[i+n].of == t.of; n++ {
		}
		all = append(all, e.Tasks[i:i+n]...)
		if n > 1 {
			var metrics []hfmodel.Metric
			if t, metrics, err = meanOf(e.Tasks[i : i+n]); err != nil {
				return nil, nil, err
			}
			all, e.results = append(all, t), append(e.results, metrics...)
		}
		counted = append(counted, t)
	}
	return counted, all, nil
}

// meanOf are the means of tasks that belong together.
func meanOf(tasks []TaskValue) (mean TaskValue, metrics []hfmodel.Metric, err error) {
	mean = TaskValue{Name: tasks[0].of, Metric: tasks[0].Metric, Base: meanBase(tasks)}
	for _, t := range tasks {
		mean.Value += t.Value / float64(len(tasks))
	}
	var figures []scoring.Figure
	card := ""
	if _, scored := tasks[0].result.(*evaluate.Candidates); scored {
		var of []*evaluate.Candidates
		for _, t := range tasks {
			of = append(of, t.result.(*evaluate.Candidates))
		}
		c, err := evaluate.AverageCandidates(of...)
		if err != nil {
			return mean, nil, err
		}
		mean.Eval, figures, card = c, scoring.Figures(c.Measures, c.Means), scoring.Candidates.Card
	} else {
		var of []*evaluate.Result
		for _, t := range tasks {
			of = append(of, t.result.(*evaluate.Result))
		}
		r, err := evaluate.Average(of...)
		if err != nil {
			return mean, nil, err
		}
		mean.Eval, figures = r, scoring.Figures(r.Measures, r.Means)
	}
	return mean, cardMetrics(fmt.Sprintf("%s, mean of %d tasks", mean.Name, len(tasks)), card, figures), nil
}
