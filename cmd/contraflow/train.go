package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"contraflow/collective"
	"contraflow/pipeline"
	"contraflow/stages/recipe"
)

// recipeFlags are those of commands that take a recipe.
type recipeFlags struct {
	file  string
	sets  []string
	out   string
	saves bool // the command writes into save.dir, which the recipe has to name
}

func (f *recipeFlags) add(cmd *cobra.Command) {
	cmd.Flags().VarP(&once{value: &f.file}, "config", "c", "the recipe, a YAML file")
	cmd.Flags().StringArrayVar(&f.sets, "set", nil, "override a key: --set train.max_steps=8 (may be repeated); KEY=null takes back what the recipe says of it")
	require(cmd, "config")
}

func (f *recipeFlags) addOut(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.out, "out", "", "folder for the run: sets save.dir")
	notEmpty(cmd, "out")
}

func (f *recipeFlags) load() (recipe.Recipe, error) {
	sets := f.sets
	if f.out != "" {
		sets = append(sets[:len(sets):len(sets)], fmt.Sprintf("save.dir=%q", f.out))
	}
	load := recipe.LoadUnsaved
	if f.saves {
		load = recipe.Load
	}
	r, err := load(f.file, sets)
	if info, wrong := os.Stat(f.file); wrong == nil && info.IsDir() {
		return r, fmt.Errorf("recipe: %s is a folder, want a YAML file; contraflow recipe embedder > recipe.yaml writes one to begin with", f.file)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return r, fmt.Errorf("%w; contraflow recipe embedder > recipe.yaml writes one to begin with", err)
	}
	return r, err
}

func newTrain() *cobra.Command {
	f := recipeFlags{saves: true}
	var trace, quiet, resume bool
	var log, metricsAddr string
	cmd := &cobra.Command{
		Use:   "train -c RECIPE",
		Short: "Train a model by a recipe",
		Long: `train runs a recipe. It writes a checkpoint into save.dir every save.every steps (or epoch, or minutes: 10m), and --resume goes on from the newest
complete one as if nothing had happened: on the same mesh to the bit.

SIGTERM or an interrupt make it write one after the step at hand or the next one and end with exit code 0, a second one ends it at once; an
evaluation that is due then is made by --resume, unless save.best or eval.early_stopping need it. Before the first step there is nothing to write:
it ends with exit code 0 and says so. SIGUSR1 makes it write one and go on.`,
		Example: `  contraflow train -c recipe.yaml
  contraflow train -c recipe.yaml --resume
  contraflow train -c recipe.yaml --set train.max_steps=8 --out runs/try`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			r, err := f.load()
			if err != nil {
				return err
			}
			ui, err := newUI(cmd.ErrOrStderr(), quiet).withLog(log)
			if err != nil {
				return err
			}
			defer ui.close()
			first, trained := true, atomic.Bool{} // of this process's ranks
			defer func() {
				if trained.Load() || !endedAsAsked(cmd.Context(), err) {
					return
				}
				if err = nil; !first {
					return
				}
				ui.close()
				if resume {
					ui.say("done", "ended before a step: nothing was trained, and checkpoints are as they were; the same command goes on from them")
				} else {
					ui.say("done", "ended before its first step: nothing was trained; the same command begins anew")
				}
			}()
			say := func() {
				ui.note("asked to end: a checkpoint comes after the step at hand or the next one; asked again it ends at once, without one")
			}
			stopping.Store(&say)
			defer stopping.Store(nil)
			opts := []recipe.TrainOption{recipe.Controlled(control)}
			if resume {
				opts = append(opts, recipe.Resuming())
			}
			if trace {
				opts = append(opts, recipe.WithTrace())
			}
			place, err := joinJob(cmd.Context(), r)
			if err != nil {
				return err
			}
			if place.World != nil && place.World.Rank() > 0 { // steps and evaluations are the job's: rank 0 tells of them
				first, metricsAddr = false, ""
			}
			if place.World == nil { // of a job's ranks the first alone need see save.dir
				if err := r.CheckSaving(resume); err != nil {
					return err
				}
			}
			watcher, err := serveMetrics(metricsAddr)
			if err != nil {
				return fmt.Errorf("--metrics-addr: %w", err)
			}
			defer watcher.close()
			if watcher != nil {
				ui.say("metrics", "metrics at http://"+watcher.addr+"/metrics", zap.String("addr", watcher.addr))
			}
			err = recipe.OnRanks(cmd.Context(), r, place, watcher.observer(ui.observer()), func(x *recipe.Run) error {
				if !x.Main() {
					_, err := x.Train(cmd.Context(), opts...)
					if err == nil {
						trained.Store(true)
					}
					return err
				}
				ui.say("run", x.Describe(), figuresOf(x.Facts())...)
				ui.begin(x.Steps)
				began := time.Now()
				s, err := x.Train(cmd.Context(), opts...)
				ui.close()
				if err != nil {
					reportFailure(ui, r.Save.Dir, began)
					return err
				}
				trained.Store(true)
				ui.say("done", s.String(), outcome(s)...)
				return writeReport(ui, r.Save.Dir)
			})
			if few := (*recipe.LeftOutError)(nil); first && errors.As(err, &few) {
				list, failed := few.List(r.Save.Dir)
				if failed != nil {
					return errors.Join(err, fmt.Errorf("save.dir: %w", failed))
				}
				return fmt.Errorf("%w; %s says which and why", err, list)
			}
			if err != nil && cmd.Context().Err() != nil {
				return fmt.Errorf("%w: no model was saved", err)
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&trace, "trace", false, "write trace.json (opens in Perfetto) into the run's folder")
	cmd.Flags().BoolVar(&resume, "resume", false, "go on from the newest complete checkpoint in save.dir, if there is one")
	cmd.Flags().BoolVar(&quiet, "quiet", false, "print errors only")
	cmd.Flags().StringVar(&log, "log", "auto", "how to print progress: human, json, or auto: human on a terminal, JSON lines elsewhere")
	cmd.Flags().StringVar(&metricsAddr, "metrics-addr", "", "serve metrics for Prometheus at this address, such as :9090, under /metrics; of several ranks, rank 0 does")
	f.add(cmd)
	f.addOut(cmd)
	return cmd
}

// endedAsAsked tells that a run has ended because it was asked to before its first step: by a signal to this process, or in a job whose other
// process, which says itself what is wrong if anything is, has ended meanwhile.
func endedAsAsked(ctx context.Context, err error) bool {
	var rank *collective.RankError
	return context.Cause(ctx) == errAsked && (errors.Is(err, context.Canceled) || errors.As(err, &rank) && rank.Unwrap() == nil)
}

func newGraph() *cobra.Command {
	var f recipeFlags
	var format, out string
	cmd := &cobra.Command{
		Use:     "graph -c RECIPE",
		Short:   "Draw a recipe's stage graph",
		Example: "  contraflow graph -c recipe.yaml --format svg --out graph.svg",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := f.load()
			if err != nil {
				return err
			}
			draw := map[string]func(*pipeline.Graph) string{"dot": (*pipeline.Graph).DOT, "mermaid": (*pipeline.Graph).Mermaid, "svg": (*pipeline.Graph).SVG}[format]
			if draw == nil {
				return usageError{fmt.Errorf("--format is %q, want dot, mermaid or svg", format)}
			}
			if err := errors.Join(separate("--out", out, f.file), noFolder("--out", out, "graph."+format)); err != nil {
				return err
			}
			if out != "" {
				if err := sameKind("--out", out, "drawing in "+format, isDrawing[format]); err != nil {
					return err
				}
			}
			x, err := recipe.Open(cmd.Context(), r, recipe.Observer{})
			if err != nil {
				return err
			}
			defer x.Close()
			g, err := x.Graph()
			if err != nil {
				return err
			}
			if out == "" {
				_, err = fmt.Fprint(cmd.OutOrStdout(), draw(g))
				return err
			}
			if err := writeText(out, draw(g)); err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), out)
			return err
		},
	}
	cmd.Flags().StringVar(&format, "format", "mermaid", "dot, mermaid or svg")
	cmd.Flags().StringVar(&out, "out", "", "the file to write; default: standard output")
	notEmpty(cmd, "out")
	f.add(cmd)
	return cmd
}
