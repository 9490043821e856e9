package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"contraflow/pipeline"
	"contraflow/stages"
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
		Use:   "summary FILE...",
		Short: "Where a run's time went: stages, collectives, hidden communication",
		Long: `summary prints, for each stage of a trace that "train --trace" wrote, how long it was busy and how long its lane waited for its inputs;
for each stage that communicates the number of collectives, bytes and their rate; and how much of the communication was hidden
behind computation of the same device. Of several ranks each writes a trace of its own: trace.json, trace.1.json, ...

That measure does not see computing that communication slows down. --serial adds one that does, 1 - (t - t_without)/t_communication: given the
trace of the same run with --set mesh.overlap=false, which shows what a step takes without communication and what that takes besides.`,
		Example: `  contraflow trace summary runs/x/trace.json
  contraflow trace summary runs/x/trace.json --serial runs/serial/trace.json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return missing(errors.New("which trace? FILE is the trace.json of a run that was made with --trace"))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if serial != "" && len(args) > 1 {
				return usageError{errors.New("--serial goes with one trace")}
			}
			out := cmd.OutOrStdout()
			var s *pipeline.TraceSummary
			for i, file := range args {
				var err error
				if s, err = summarize(cmd.ErrOrStderr(), file); err != nil {
					return err
				}
				if len(args) > 1 {
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
				return fmt.Errorf("--serial: %s and %s: %w", args[0], serial, err)
			}
			fmt.Fprintf(out, "a step takes %v, %v with mesh.overlap: false: %.1f %% hidden by that measure\n", s.StepTime.Round(10*time.Microsecond), base.StepTime.Round(10*time.Microsecond), 100*hidden)
			return nil
		},
	}
	summary.Flags().StringVar(&serial, "serial", "", "a trace of the same run with mesh.overlap: false")
	cmd.AddCommand(summary)
	return cmd
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
	return pipeline.Summary(pipeline.Spans(events), stages.StepStages), nil
}
