package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"contraflow/stages/report"
)

func newReport() *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use:   "report RUN [RUN...]",
		Short: "Show runs in a browser: one HTML file that needs no network",
		Long: `report draws a run's losses, rates, memory and evaluations, its stage graph with where the time went, one step's timeline, what the data came
to, and its recipe. RUN is a folder that train has written (save.dir); it may still be running. train writes report.html into it at its end.
Several runs are drawn over each other, with where their recipes differ.`,
		Example: `  contraflow report runs/x
  contraflow report runs/x runs/y --out compare.html`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError{errors.New("which run? RUN is a folder that train has written, its save.dir")}
			}
			var runs []*report.Run
			for _, dir := range args {
				r, err := report.Load(dir)
				if err != nil {
					return err
				}
				if len(args) > 1 {
					r.Name = filepath.Clean(dir)
				}
				runs = append(runs, r)
			}
			if out == "" {
				out = report.File
				if len(args) == 1 {
					out = filepath.Join(args[0], report.File)
				}
			}
			var b strings.Builder
			if err := report.Write(&b, runs...); err != nil {
				return err
			}
			if err := os.WriteFile(out, []byte(b.String()), 0o666); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), out)
			return nil
		},
	}
	cmd.Flags().StringVar(&out, "out", "", "the file to write; default: report.html in the run's folder, or here for several runs")
	return cmd
}

// writeReport is a run's last act.
func writeReport(u *ui, dir string) error {
	file, err := report.WriteFile(dir)
	if err != nil {
		return fmt.Errorf("the run is done, but not its report: %w", err)
	}
	u.say("report", "report "+file)
	return nil
}
