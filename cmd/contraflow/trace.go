package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"contraflow/io/dataset"
	"contraflow/pipeline"
	"contraflow/stages"
	"contraflow/stages/recipe"
)

func newTrace() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "trace",
		Short:   "Look at a run's trace",
		Example: "  contraflow trace summary runs/x/trace.json",
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var serial string
	summary := &cobra.Command{
		Use:   "summary FILE|RUN...",
		Short: "Where a run's time went: stages, collectives, hidden communication",
		Long: `summary prints, for each stage of a trace that "train --trace" wrote, how long it was busy and how long its lane waited for its inputs;
for each stage that communicates the number of collectives, bytes and their rate; and how much of the communication was hidden
behind computation of the same device. Of several ranks each writes a trace of its own: trace.json, trace.1.json, ... RUN is a run's folder, and stands
for all of them.

That measure does not see computing that communication slows down. --serial adds one that does, 1 - (t - t_without)/t_communication: given the
trace of the same run with --set mesh.overlap=false, which shows what a step takes without communication and what that takes besides.`,
		Example: `  contraflow trace summary runs/x
  contraflow trace summary runs/x/trace.json
  contraflow trace summary runs/x/trace.json --serial runs/serial/trace.json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return missing(errors.New("which trace? FILE is the trace.json of a run that was made with --trace, RUN its folder"))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if serial != "" && len(args) > 1 {
				return usageError{errors.New("--serial goes with one trace")}
			}
			out := cmd.OutOrStdout()
			var s *pipeline.TraceSummary
			files, err := traces(notes(cmd), args)
			if err != nil {
				return err
			}
			if serial != "" && len(files) > 1 {
				return usageError{fmt.Errorf("--serial goes with one trace, and %s has %d: name one of them, such as %s", args[0], len(files), files[0])}
			}
			if serial != "" {
				of, err := traces(notes(cmd), []string{serial})
				if err != nil {
					return fmt.Errorf("--serial: %w", err)
				}
				serial = of[0]
			}
			for i, file := range files {
				var err error
				if s, err = summarize(cmd.ErrOrStderr(), file); err != nil {
					return err
				}
				if len(files) > 1 {
					fmt.Fprintf(out, "%s%s\n", strings.Repeat("\n", min(i, 1)), file)
				}
				fmt.Fprintln(out, s)
			}
			if serial == "" {
				return nil
			}
			base, err := summarize(cmd.ErrOrStderr(), serial)
			if err != nil {
				return err
			}
			hidden, err := s.HiddenAgainstSerial(base)
			if err != nil {
				return fmt.Errorf("--serial: %s and %s: %w", files[0], serial, err)
			}
			fmt.Fprintf(out, "a step takes %v, %v with mesh.overlap: false: %.1f %% hidden by that measure\n", s.StepTime.Round(10*time.Microsecond), base.StepTime.Round(10*time.Microsecond), 100*hidden)
			return nil
		},
	}
	summary.Flags().StringVar(&serial, "serial", "", "a `FILE`, the trace of the same run with mesh.overlap: false")
	cmd.AddCommand(summary)
	return cmd
}

// traces are the files that are named, and of a run's folder those of all its ranks.
func traces(note func(message string), args []string) (files []string, err error) {
	for _, arg := range args {
		info, err := os.Stat(arg)
		if err != nil || !info.IsDir() {
			files = append(files, arg) // what is wrong with it, reading it says
			continue
		}
		found, _ := filepath.Glob(filepath.Join(dataset.InGlob(arg), "trace*.json"))
		rank := func(file string) int { // 0 of trace.json
			n, _ := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), "trace."), ".json"))
			return n
		}
		slices.SortFunc(found, func(a, b string) int { return cmp.Compare(rank(a), rank(b)) })
		if len(found) == 0 {
			return nil, fmt.Errorf("%s has no trace.json: train --trace writes one into its run's folder", arg)
		}
		sayOlder(note, arg, found)
		files = append(files, found...)
	}
	return files, nil
}

// sayOlder says of traces in a run's folder that they are older than the run.
func sayOlder(note func(message string), dir string, traces []string) {
	r, err := recipe.ReadRecord(dir)
	if err != nil {
		return // a run that keeps none, or one of a time before it did
	}
	for _, file := range traces {
		info, err := os.Stat(file)
		if err != nil || !info.ModTime().Before(r.Began) { // which is cut to a second
			continue
		}
		of := "an earlier run's: the one that is there now was made without --trace"
		if r.From > 0 {
			of = fmt.Sprintf("older than what went on after step %d, without --trace", r.From)
		}
		note(fmt.Sprintf("%s is %s", file, of))
	}
}

func summarize(warn io.Writer, file string) (*pipeline.TraceSummary, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	events, err := pipeline.ReadTrace(f)
	if errors.Is(err, pipeline.ErrTruncated) && len(events) > 0 {
		fmt.Fprintf(warn, "%s: %v; this is what there is\n", file, err)
		err = nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	spans := pipeline.Spans(events)
	if len(spans) == 0 {
		return nil, fmt.Errorf("%s has no tasks: those of train are its complete events (\"ph\": \"X\")", file)
	}
	return pipeline.Summary(spans, stages.StepStages), nil
}
