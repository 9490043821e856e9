package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"contraflow/stages/scoring"
)

// scoredFlags are the flags of tasks of which a model scores pairs of texts: a file each, and its columns.
type scoredFlags struct {
	files   []string // as scoring.Kinds
	columns []string
}

func (f *scoredFlags) add(fl *pflag.FlagSet) {
	f.files = make([]string, len(scoring.Kinds))
	var usual []string
	for i, k := range scoring.Kinds {
		fl.StringVar(&f.files[i], k.Flag()[2:], "", "a `FILE` with "+k.What+", instead of queries")
		usual = append(usual, fmt.Sprintf("%s (default %s)", k.Flag(), strings.Join(k.Usual, ",")))
	}
	fl.StringSliceVar(&f.columns, "columns", nil, "the columns `NAME,NAME,NAME` of "+strings.Join(usual, ", ")+"; those of texts may be templates such as \"{title} {text}\"")
}

// given is the kind of which a file is given, and the file; nil if there is none. Beside queries there is none.
func (f *scoredFlags) given(queries bool) (kind *scoring.Kind, s scoring.Source, err error) {
	for i, path := range f.files {
		if path == "" {
			continue
		}
		if kind != nil {
			return nil, s, usageError{fmt.Errorf("%s and %s: give one at a time", kind.Flag(), scoring.Kinds[i].Flag())}
		}
		kind, s.Path = scoring.Kinds[i], path
	}
	switch s.Columns = f.columns; {
	case kind == nil && f.columns != nil:
		return nil, s, usageError{errors.New("--columns is for --sts, --pair-classification and --triplets")}
	case kind == nil:
		return nil, s, nil
	case queries:
		return nil, s, usageError{fmt.Errorf("--queries and %s: give one at a time", kind.Flag())}
	case f.columns == nil:
		s.Columns = kind.Usual
	}
	want := fmt.Sprintf("want %d as in --columns %s", len(kind.Usual), strings.Join(kind.Usual, ","))
	switch {
	case len(s.Columns) != len(kind.Usual):
		return nil, s, usageError{fmt.Errorf("--columns has %d names, %s", len(s.Columns), want)}
	case slices.Contains(s.Columns, ""):
		return nil, s, usageError{fmt.Errorf("--columns has a name without anything in it: %s", want)}
	}
	s.Instead = fmt.Sprintf("it takes another file (%s) or column (--columns)", kind.Flag())
	return kind, s, nil
}

// measureScored prints a model's figures of such a task; scores are its scores of pairs.
func measureScored(cmd *cobra.Command, kind *scoring.Kind, s scoring.Source, asJSON bool, scores func(a, b []string) ([]float64, error)) error {
	t, err := kind.Load(noting(cmd), s)
	if err != nil {
		return err
	}
	of, err := scores(t.A, t.B)
	if err != nil {
		return err
	}
	result, _, err := t.Measure(of)
	if err != nil {
		return err
	}
	if asJSON {
		return printJSON(cmd, result)
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), result)
	return err
}
