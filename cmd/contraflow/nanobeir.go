package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"contraflow/io/dataset"
	"contraflow/io/hfmodel"
	"contraflow/io/spelling"
	"contraflow/stages/evaluate"
	"contraflow/stages/reranker"
	"contraflow/stages/scoring"
)

// nanoFlags name tasks of NanoBEIR.
type nanoFlags struct {
	tasks   []string
	dataset string
}

// allTasks is what --nanobeir alone stands for.
const allTasks = "all"

func (n *nanoFlags) add(fl *pflag.FlagSet, of string) {
	fl.StringSliceVar(&n.tasks, "nanobeir", nil, "measure on NanoBEIR's `TASKS`, such as --nanobeir=msmarco,nq, and their mean; alone on "+of)
	fl.Lookup("nanobeir").NoOptDefVal = allTasks
	fl.StringVar(&n.dataset, "nanobeir-dataset", dataset.NanoBEIR, "the hub `ID` of a dataset in NanoBEIR's layout, as there are of other languages, or a folder with its files")
}

// check resolves the tasks' names; there are none where nobody asked for them. others are flags of other tasks.
func (n *nanoFlags) check(cmd *cobra.Command, reranker bool, others ...string) error {
	if !cmd.Flags().Changed("nanobeir") {
		if cmd.Flags().Changed("nanobeir-dataset") {
			return usageError{errors.New("--nanobeir-dataset goes with --nanobeir, which says that NanoBEIR is measured on")}
		}
		return nil
	}
	for _, flag := range others {
		if cmd.Flags().Changed(strings.TrimPrefix(flag, "--")) {
			return usageError{fmt.Errorf("--nanobeir and %s: give one at a time", flag)}
		}
	}
	if err := dataset.CheckNano(n.dataset); err != nil {
		return usageError{fmt.Errorf("--nanobeir-dataset: %w", err)}
	}
	if len(n.tasks) == 1 && n.tasks[0] == allTasks {
		n.tasks = dataset.NanoTasks(reranker)
		return nil
	}
	seen := map[string]bool{}
	for i, name := range n.tasks {
		task, err := dataset.NanoTask(name)
		if err == nil && seen[task] {
			err = fmt.Errorf("%s is given twice: it would count twice in the mean", task)
		}
		if err != nil {
			return usageError{fmt.Errorf("--nanobeir: %w", err)}
		}
		n.tasks[i], seen[task] = task, true
	}
	if len(n.tasks) == 0 {
		return usageError{errors.New("--nanobeir= names no task; --nanobeir alone is all")}
	}
	return nil
}

// retrieval loads all tasks, by name: where one is not there, none is measured for nothing.
func (n *nanoFlags) retrieval(ctx context.Context) (map[string]*dataset.Retrieval, error) {
	all := map[string]*dataset.Retrieval{}
	ctx = hfmodel.ListOnce(ctx)
	for _, task := range n.tasks {
		r, err := dataset.LoadNanoRetrieval(ctx, n.dataset, task)
		if err != nil {
			return nil, err
		}
		all[task] = r
	}
	return all, nil
}

// rerank measures a reranker on the tasks: it ranks the first documents that BM25 has found.
func (n *nanoFlags) rerank(cmd *cobra.Command, r *reranker.Reranker, f *rerankFlags) error {
	var measures []evaluate.Measure
	if f.scored.metric != "" {
		m, err := candidateMeasure(f.scored.metric)
		if err != nil {
			return err
		}
		measures = evaluate.CandidateMeasures(m)
	}
	names := n.tasks
	var tasks []*scoring.Task
	ctx := hfmodel.ListOnce(noting(cmd))
	for _, name := range names { // all, before one is measured for nothing
		s := scoring.NanoBEIR(n.dataset, name, f.top, f.scored.found)
		s.Measures, s.Instead = measures, func(string) string {
			return "it takes other tasks (--nanobeir=TASKS) or another dataset (--nanobeir-dataset)"
		}
		t, err := scoring.Candidates.Load(ctx, s)
		if err != nil {
			return err
		}
		tasks = append(tasks, t)
	}
	var results []*evaluate.Candidates
	cut, u := 0, progressOf(cmd)
	for i, t := range tasks {
		u.printf("%s: %s\n", names[i], spelling.Count(len(t.A), "pair", "pairs"))
		scores, c, err := r.ScorePairs(cmd.Context(), t.A, t.B)
		if err != nil {
			return fmt.Errorf("%s: %w", names[i], err)
		}
		result, _, err := t.Measure(widened(scores))
		if err != nil {
			return err
		}
		cut, results = cut+c, append(results, result.(*evaluate.Candidates))
	}
	sayCut(u, cut, r)
	if len(results) > 1 {
		mean, err := evaluate.AverageCandidates(results...)
		if err != nil {
			return err
		}
		names, results = append(names, meanName), append(results, mean)
	}
	if f.asJSON {
		if len(results) == 1 {
			return printJSON(cmd, results[0])
		}
		all := map[string]*evaluate.Candidates{}
		for i, c := range results {
			all[names[i]] = c
		}
		return printJSON(cmd, all)
	}
	var rows []evaluate.Row
	for i, c := range results {
		rows = append(rows, c.Rows(names[i], names[i]+", BM25")...)
	}
	_, err := fmt.Fprint(cmd.OutOrStdout(), evaluate.Table(rows...))
	return err
}
