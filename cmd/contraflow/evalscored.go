package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"contraflow/io/spelling"
	"contraflow/stages/evaluate"
	"contraflow/stages/scoring"
)

// scoredFlags are the flags of tasks of which a model scores pairs of texts: a file each, and its columns.
type scoredFlags struct {
	files     []string // as scoring.Kinds
	columns   []string
	documents string
	found     bool
	metric    string
}

func (f *scoredFlags) add(fl *pflag.FlagSet) {
	f.files = make([]string, len(scoring.Kinds))
	var usual []string
	for i, k := range scoring.Kinds {
		fl.StringVar(&f.files[i], strings.TrimPrefix(flagOf(k), "--"), "", "a `FILE` with "+k.What+", instead of --queries")
		usual = append(usual, fmt.Sprintf("%s (default %s)", flagOf(k), strings.Join(k.Usual, ",")))
	}
	fl.StringSliceVar(&f.columns, "columns", nil, "the columns `NAME,NAME,NAME` of "+strings.Join(usual, ", ")+"; those of texts may be templates such as \"{title} {text}\"")
	fl.StringVar(&f.documents, "documents", "", "of --candidates, in the place of its negatives: the column `NAME` with lists of all candidates, in an order of theirs that is measured too")
	fl.StringVar(&f.metric, "metric", "", "of --candidates: the measure `NAME` that comes first, such as mrr@5 or recall@3, as a recipe's eval.metric (default ndcg@10)")
	fl.BoolVar(&f.found, "found", false, "with --documents: positives that are not among a query's documents have been missed: they are not ranked, and lower recall")
}

// given is the kind of which a file is given, and the file; nil if there is none. Beside queries there is none. Candidates may be NanoBEIR's instead.
func (f *scoredFlags) given(queries, nano bool) (kind *scoring.Kind, s scoring.Source, err error) {
	for i, path := range f.files {
		if path == "" {
			continue
		}
		if kind != nil {
			return nil, s, usageError{fmt.Errorf("%s and %s: give one at a time", flagOf(kind), flagOf(scoring.Kinds[i]))}
		}
		kind, s.Path = scoring.Kinds[i], path
	}
	switch s.Columns = f.columns; {
	case f.documents != "" && kind != scoring.Candidates:
		return nil, s, usageError{errors.New("--documents is for --candidates")}
	case f.metric != "" && kind != scoring.Candidates && !nano:
		return nil, s, usageError{errors.New("--metric is for --candidates")}
	case f.found && f.documents == "" && !nano:
		return nil, s, usageError{errors.New("--found is of --documents: which of them are positives")}
	case kind == nil && f.columns != nil:
		return nil, s, usageError{fmt.Errorf("--columns is for %s", either(kindFlags()))}
	case kind == nil:
		return nil, s, nil
	case queries:
		return nil, s, usageError{fmt.Errorf("--queries and %s: give one at a time", flagOf(kind))}
	}
	usual := kind.Usual
	if f.documents != "" {
		usual = usual[:2]
	}
	if f.columns == nil {
		s.Columns = usual
	}
	want := fmt.Sprintf("want %d as in --columns %s", len(usual), strings.Join(usual, ","))
	switch {
	case len(s.Columns) != len(usual):
		return nil, s, usageError{fmt.Errorf("--columns has %d names, %s", len(s.Columns), want)}
	case slices.Contains(s.Columns, ""):
		return nil, s, usageError{fmt.Errorf("--columns has a name without anything in it: %s", want)}
	}
	if s.Documents, s.Found = f.documents, f.found; f.metric != "" {
		m, err := candidateMeasure(f.metric)
		if err != nil {
			return nil, s, err
		}
		s.Measures = evaluate.CandidateMeasures(m)
	}
	s.Instead = func(role string) string {
		flag := "--columns"
		if role == "documents" {
			flag = "--documents"
		}
		return fmt.Sprintf("it takes another file (%s) or column (%s)", flagOf(kind), flag)
	}
	return kind, s, nil
}

// candidateMeasure is what --metric names.
func candidateMeasure(name string) (evaluate.Measure, error) {
	m, err := evaluate.ParseMeasure(name)
	if err == nil {
		err = evaluate.CheckCandidateMeasure(m)
	}
	if err != nil {
		return m, usageError{fmt.Errorf("--metric: %w", err)}
	}
	return m, nil
}

// flagOf is the flag of a kind's file.
func flagOf(k *scoring.Kind) string { return "--" + strings.ReplaceAll(k.Key, "_", "-") }

// kindFlags are the flags of all kinds.
func kindFlags() (flags []string) {
	for _, k := range scoring.Kinds {
		flags = append(flags, flagOf(k))
	}
	return flags
}

// measureScored prints a model's figures of such a task; scores are its scores of pairs, of several cuts for each.
func measureScored(cmd *cobra.Command, kind *scoring.Kind, s scoring.Source, cuts []int, asJSON bool, scores func(a, b []string) ([][]float64, error)) error {
	t, err := kind.Load(noting(cmd), s)
	if err != nil {
		return err
	}
	of, err := scores(t.A, t.B)
	if err != nil {
		return err
	}
	var results []any
	for _, each := range of {
		result, _, err := t.Measure(each)
		if err != nil {
			return err
		}
		results = append(results, result)
	}
	if asJSON {
		return printJSON(cmd, byCut(cuts, results))
	}
	for i, result := range results {
		if len(results) > 1 {
			result = fmt.Sprintf("%s: %v", spelling.Count(cuts[i], "dimension", "dimensions"), result)
		}
		if _, err := fmt.Fprintln(cmd.OutOrStdout(), result); err != nil {
			return err
		}
	}
	return nil
}
