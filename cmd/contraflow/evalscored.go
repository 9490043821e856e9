package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"contraflow/io/dataset"
	"contraflow/stages/evaluate"
)

// scoredKinds are what eval measures by similarities of pairs of texts.
var scoredKinds = [...]scoredKind{
	{"sts", "pairs of texts and scores", []string{"sentence1", "sentence2", "score"}, false, measureSTS},
	{"pair-classification", "pairs of texts and labels", []string{"sentence1", "sentence2", "label"}, false, measureLabelled},
	{"triplets", "triplets of texts", []string{"anchor", "positive", "negative"}, true, measureTriplets},
}

type scoredKind struct {
	flag, what string
	columns    []string
	asked      bool // the first text is a query, the others are documents; otherwise all are read as queries are, or where these are weights of tokens as documents
	measure    func(ctx context.Context, file string, columns []string, similar similar) (result any, text string, err error)
}

// similar are the similarities of pairs of texts.
type similar func(a, b []string) ([]float64, error)

// scoredFlags are the flags of one of them.
type scoredFlags struct {
	files   [len(scoredKinds)]string
	columns []string
}

func (f *scoredFlags) add(fl *pflag.FlagSet) {
	var defaults []string
	for i, k := range scoredKinds {
		fl.StringVar(&f.files[i], k.flag, "", "a `FILE` with "+k.what+", instead of queries")
		defaults = append(defaults, fmt.Sprintf("--%s (default %s)", k.flag, strings.Join(k.columns, ",")))
	}
	fl.StringSliceVar(&f.columns, "columns", nil, "the columns `NAME,NAME,NAME` of "+strings.Join(defaults, ", ")+"; those of texts may be templates such as \"{title} {text}\"")
}

// given is which one is given, and its file; ok tells that there is one. Beside queries there is none.
func (f *scoredFlags) given(queries bool) (kind scoredKind, file string, ok bool, err error) {
	for i, name := range f.files {
		if name == "" {
			continue
		}
		if ok {
			return kind, file, true, usageError{fmt.Errorf("--%s and --%s: give one at a time", kind.flag, scoredKinds[i].flag)}
		}
		kind, file, ok = scoredKinds[i], name, true
	}
	if ok && queries {
		return kind, file, true, usageError{fmt.Errorf("--queries and --%s: give one at a time", kind.flag)}
	}
	if !ok && f.columns != nil {
		return kind, "", false, usageError{errors.New("--columns is for --sts, --pair-classification and --triplets")}
	}
	return kind, file, ok, nil
}

func (k scoredKind) run(cmd *cobra.Command, file string, columns []string, asJSON bool, similar similar) error {
	if columns == nil {
		columns = k.columns
	}
	if len(columns) != len(k.columns) {
		return usageError{fmt.Errorf("--columns has %d names, want %d as in --columns %s", len(columns), len(k.columns), strings.Join(k.columns, ","))}
	}
	if slices.Contains(columns, "") {
		return usageError{fmt.Errorf("--columns has a name without anything in it: want %d as in --columns %s", len(k.columns), strings.Join(k.columns, ","))}
	}
	result, text, err := k.measure(noting(cmd), file, columns, similar)
	if err != nil {
		return err
	}
	if asJSON {
		return printJSON(cmd, result)
	}
	fmt.Fprintln(cmd.OutOrStdout(), text)
	return nil
}

func measureSTS(ctx context.Context, file string, columns []string, similar similar) (any, string, error) {
	p, err := dataset.LoadPairs(ctx, file, columns[0], columns[1], columns[2])
	if err != nil {
		return nil, "", err
	}
	if err := evaluate.CheckGold(p.Scores); err != nil {
		return nil, "", fmt.Errorf("%s, column %q: %w", file, columns[2], err)
	}
	sims, err := similar(p.A, p.B)
	if err != nil {
		return nil, "", err
	}
	r, err := evaluate.EvaluateSTS(sims, p.Scores)
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w (the first list is the pairs' similarities)", file, err)
	}
	return r, fmt.Sprintf("spearman %.4f, pearson %.4f, %d pairs", r.Spearman, r.Pearson, r.Pairs), nil
}

func measureLabelled(ctx context.Context, file string, columns []string, similar similar) (any, string, error) {
	p, together, err := dataset.LoadLabelledPairs(ctx, file, columns[0], columns[1], columns[2])
	if err != nil {
		return nil, "", err
	}
	if err := evaluate.CheckLabels(together); err != nil {
		return nil, "", fmt.Errorf("%s, column %q: %w", file, columns[2], err)
	}
	sims, err := similar(p.A, p.B)
	if err != nil {
		return nil, "", err
	}
	r, err := evaluate.ClassifyPairs(sims, together)
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", file, err)
	}
	return r, fmt.Sprintf("ap %.4f, accuracy %.4f from %.4f on, f1 %.4f from %.4f on (precision %.4f, recall %.4f, mcc %.4f), %d pairs",
		r.AP, r.Accuracy, r.AccuracyThreshold, r.F1, r.F1Threshold, r.Precision, r.Recall, r.MCC, r.Pairs), nil
}

func measureTriplets(ctx context.Context, file string, columns []string, similar similar) (any, string, error) {
	t, err := dataset.LoadTriplets(ctx, file, columns[0], columns[1], columns[2])
	if err != nil {
		return nil, "", err
	}
	sims, err := similar(t.Pairs())
	if err != nil {
		return nil, "", err
	}
	n := len(t.Queries)
	r, err := evaluate.CompareTriplets(sims[:n], sims[n:], 0)
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", file, err)
	}
	return r, fmt.Sprintf("accuracy %.4f, %d triplets", r.Accuracy, r.Triplets), nil
}
