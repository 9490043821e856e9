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

	"contraflow/cmd/internal/flags"
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

// setFlag is what the help says of --set.
const setFlag = "override a key, `KEY=VALUE`: --set train.max_steps=8 (may be repeated); KEY=null takes back what the recipe says of it"

func (f *recipeFlags) add(cmd *cobra.Command) {
	cmd.Flags().VarP(flags.Once(&f.file), "config", "c", "the recipe, a YAML `FILE`")
	cmd.Flags().StringArrayVar(&f.sets, "set", nil, setFlag)
	require(cmd, "config")
}

func (f *recipeFlags) addOut(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.out, "out", "", "the folder `DIR` for the run: sets save.dir")
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

// trainFlags are train's.
type trainFlags struct {
	recipeFlags
	trace, resume    bool
	log, metricsAddr string
}

func newTrain() *cobra.Command {
	f := trainFlags{recipeFlags: recipeFlags{saves: true}}
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
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	cmd.Flags().BoolVar(&f.trace, "trace", false, "write trace.json (opens in Perfetto) into the run's folder")
	cmd.Flags().BoolVar(&f.resume, "resume", false, "go on from the newest complete checkpoint in save.dir, if there is one")
	addQuiet(cmd, "errors")
	oneOf(cmd, &f.log, "log", "auto", "how to print progress; auto is human on a terminal, and JSON lines elsewhere", "auto", "human", "json")
	cmd.Flags().StringVar(&f.metricsAddr, "metrics-addr", "", "serve metrics for Prometheus at this `ADDRESS`, such as :9090, under /metrics; of several ranks, rank 0 does")
	f.add(cmd)
	f.addOut(cmd)
	return cmd
}

func (f *trainFlags) run(cmd *cobra.Command) (err error) {
	r, err := f.load()
	if err != nil {
		return err
	}
	ui := progressOf(cmd).withLog(f.log)
	defer ui.close()
	first, trained := true, atomic.Bool{} // of this process's ranks
	defer func() {
		if trained.Load() || !endedAsAsked(cmd.Context(), err) {
			return
		}
		if err = nil; first {
			ui.close()
			ui.say("done", f.nothing())
		}
	}()
	say := func() {
		ui.note("asked to end: a checkpoint comes after the step at hand or the next one, and after an evaluation that has begun; asked again it ends at once, without one")
	}
	stopping.Store(&say)
	defer stopping.Store(nil)
	place, err := joinJob(cmd.Context(), r)
	if err != nil {
		return err
	}
	if place.World != nil && place.World.Rank() > 0 { // steps and evaluations are the job's: rank 0 tells of them
		first, f.metricsAddr = false, ""
	}
	if place.World == nil { // of a job's ranks the first alone need see save.dir
		if err := r.CheckSaving(f.resume); err != nil {
			return err
		}
	}
	watcher, err := serveMetrics(f.metricsAddr)
	if err != nil {
		return fmt.Errorf("--metrics-addr: %w", err)
	}
	defer watcher.close()
	if watcher != nil {
		ui.say("metrics", "metrics at http://"+watcher.addr+"/metrics", zap.String("addr", watcher.addr))
	}
	err = recipe.OnRanks(cmd.Context(), r, place, watcher.observer(ui.observer()), func(x *recipe.Run) error {
		err := f.rank(cmd.Context(), x, ui, r.Save.Dir, &trained)
		if err == nil && x.Main() {
			err = writeReport(ui, r.Save.Dir)
		}
		return err
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
}

// nothing is what is said of a run that was asked to end before its first step.
func (f *trainFlags) nothing() string {
	if f.resume {
		return "ended before a step: nothing was trained, and checkpoints are as they were; the same command goes on from them"
	}
	return "ended before its first step: nothing was trained; the same command begins anew"
}

// rank trains on one of this process's ranks, of which the main one tells.
func (f *trainFlags) rank(ctx context.Context, x *recipe.Run, ui *ui, dir string, trained *atomic.Bool) error {
	opts := []recipe.TrainOption{recipe.Controlled(control)}
	if f.resume {
		opts = append(opts, recipe.Resuming())
	}
	if f.trace {
		opts = append(opts, recipe.WithTrace())
	}
	if x.Main() {
		ui.say("run", x.Describe(), figuresOf(x.Facts())...)
		ui.begin(x.Steps)
	}
	began := time.Now()
	s, err := x.Train(ctx, opts...)
	if err == nil {
		trained.Store(true)
	}
	if !x.Main() {
		return err
	}
	ui.close()
	if err != nil {
		reportFailure(ui, dir, began)
		return err
	}
	ui.say("done", s.String(), outcome(s)...)
	return nil
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
		Long:    "Draw the stages of a training step, where each runs, and what goes from one to the next, as every rank of the recipe's mesh has them.",
		Example: "  contraflow graph -c recipe.yaml --format svg --out graph.svg",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := f.load()
			if err != nil {
				return err
			}
			draw := map[string]func(*pipeline.Graph) string{"dot": (*pipeline.Graph).DOT, "mermaid": (*pipeline.Graph).Mermaid, "svg": (*pipeline.Graph).SVG}[format]
			if err := errors.Join(separate("--out", out, f.file), noFolder("--out", out, "graph."+format)); err != nil {
				return err
			}
			if out != "" {
				if err := sameKind("--out", out, "drawing in "+format, isDrawing[format]); err != nil {
					return err
				}
			}
			r.Mesh.Replicate, r.Mesh.Shard = min(r.Mesh.Replicate, 2), min(r.Mesh.Shard, 2) // more ranks have no other stages
			var drawing string
			err = recipe.OnRanks(cmd.Context(), r, recipe.Place{}, recipe.Observer{}, func(x *recipe.Run) error {
				g, err := x.Graph()
				if err == nil && x.Main() {
					drawing = draw(g)
				}
				return err
			})
			if err != nil {
				return err
			}
			if out == "" {
				_, err = fmt.Fprint(cmd.OutOrStdout(), drawing)
				return err
			}
			if err := writeText(out, drawing); err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), out)
			return err
		},
	}
	oneOf(cmd, &format, "format", "mermaid", "what it is drawn in", "mermaid", "dot", "svg")
	cmd.Flags().StringVar(&out, "out", "", "the `FILE` to write (default: standard output)")
	notEmpty(cmd, "out")
	f.add(cmd)
	return cmd
}
