package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"contraflow/pipeline"
)

func newTrace() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "trace",
		Short:   "Look at a run's trace",
		Example: "  contraflow trace summary runs/x/trace.json",
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var without string
	summary := &cobra.Command{
		Use:   "summary FILE",
		Short: "Where a run's time went: stages, collectives, hidden communication",
		Long: `summary prints, for each stage of a trace that "train --trace" wrote, how long it was busy and how long its lane waited for its inputs;
for each stage that communicates the number of collectives, bytes and their rate; and how much of the communication was hidden
behind computation of the same device. Given a trace of the same run without communication (one rank, or --set loss.gather_across_devices=false
on a mesh of one), --without adds the other measure of hidden communication, 1 - (t - t_without)/t_communication.`,
		Example: "  contraflow trace summary runs/x/trace.json",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError{errors.New("which trace? FILE is the trace.json of a run that was made with --trace")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := summarize(args[0])
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), s)
			if without != "" {
				base, err := summarize(without)
				if err != nil {
					return err
				}
				fmt.Fprintf(cmd.OutOrStdout(), "a step takes %v, %v without communication: %.1f %% hidden by that measure\n", s.StepTime, base.StepTime, 100*s.HiddenAgainst(base.StepTime))
			}
			return nil
		},
	}
	summary.Flags().StringVar(&without, "without", "", "a trace of the same run without communication")
	cmd.AddCommand(summary)
	return cmd
}

func summarize(file string) (*pipeline.TraceSummary, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	events, err := pipeline.ReadTrace(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return pipeline.Summary(pipeline.Spans(events)), nil
}
