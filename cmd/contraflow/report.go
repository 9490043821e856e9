package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"contraflow/stages/recipe"
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
				return missing(errors.New("which run? RUN is a folder that train has written, its save.dir"))
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
			if err := errors.Join(notOfRun(out), noFolder("--out", out, report.File)); err != nil {
				return err
			}
			if err := sameKind("--out", out, "page of HTML", isPage); err != nil {
				return err
			}
			if err := report.Save(out, runs...); err != nil {
				return err
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), out)
			return err
		},
	}
	cmd.Flags().StringVar(&out, "out", "", "the `FILE` to write (default: report.html in the run's folder, or here for several runs)")
	notEmpty(cmd, "out")
	return cmd
}

// notOfRun refuses a report's file that is one of a run's own, or may become one: whatever in its folder does not end with .html, and what is
// there already below it. A run's folder is one with a metrics.jsonl.
func notOfRun(out string) error {
	if filepath.Ext(out) == ".html" {
		return nil
	}
	dir, err := filepath.Abs(filepath.Dir(out))
	if err != nil {
		return err
	}
	if to, err := filepath.EvalSymlinks(dir); err == nil {
		dir = to
	}
	_, absent := os.Stat(out)
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "metrics.jsonl")); err == nil && (d == dir || absent == nil) {
			return usageError{fmt.Errorf("--out %s would be one of the own files of the run in %s: give a name that ends with .html", out, d)}
		}
		if d == filepath.Dir(d) {
			return nil
		}
	}
}

// reportFailure writes the report of a run that has begun since, and failed: it shows when things went wrong. The run's own error is what
// counts, whatever happens here.
func reportFailure(u *ui, dir string, since time.Time) {
	if r, err := recipe.ReadRecord(dir); err != nil || r.Error == "" || r.Began.Before(since.Truncate(time.Second)) {
		return
	}
	if file, err := report.WriteFile(dir); err == nil {
		u.say("report", "report "+file, zap.String("file", file))
	}
}

// writeReport is a run's last act.
func writeReport(u *ui, dir string) error {
	file, err := report.WriteFile(dir)
	if err != nil {
		return fmt.Errorf("the run is done, but not its report: %w", err)
	}
	u.say("report", "report "+file, zap.String("file", file))
	return nil
}
