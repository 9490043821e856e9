package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"contraflow/cmd/contraflow/internal/bench"
	"contraflow/gpustage"
	"contraflow/io/atomicfile"
	"contraflow/stages/recipe"
)

// benchFlags are those of all benchmarks.
type benchFlags struct {
	json    bool
	paced   bool
	threads int
	profile string
}

// measured is what a benchmark prints.
type measured interface{ Print(w io.Writer) error }

func newBench() *cobra.Command {
	var f benchFlags
	cmd := &cobra.Command{
		Use:   "bench gemm|ops|step|layers|tokenize|read",
		Short: "Measure this machine: products of matrices, ops, training steps, tokenization, reading",
		Long: `bench measures what contraflow does on this machine. Rates of arithmetic stand beside those of a probe, multiply-adds between
registers on as many threads, measured right before and after: what no program can beat.`,
		Example: `  contraflow bench step
  contraflow bench gemm --seconds 60
  contraflow bench step --model q/model --data q/train.parquet --query comment --positive body --precision bf16 --json`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("unknown benchmark %q%s", args[0], suggestions(cmd, args[0]))}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.PersistentFlags().BoolVar(&f.json, "json", false, "print a JSON object")
	cmd.PersistentFlags().IntVar(&f.threads, "threads", runtime.GOMAXPROCS(0), "threads to compute with")
	cmd.PersistentFlags().StringVar(&f.profile, "cpu-profile", "", "write a CPU profile to this `FILE`, for go tool pprof")
	cmd.AddCommand(newBenchGEMM(&f), newBenchOps(&f), newBenchStep(&f), newBenchLayers(&f), newBenchTokenize(&f), newBenchRead(&f))
	for _, c := range cmd.Commands() {
		c.Args = noArgs
		run := c.RunE
		c.RunE = func(cmd *cobra.Command, args []string) error {
			if f.threads < 1 || f.threads > 1024 {
				return usageError{fmt.Errorf("--threads is %d, want 1 to 1024", f.threads)}
			}
			if d, err := cmd.Flags().GetFloat64("seconds"); err == nil && !(d >= 0 && d <= 999_999) { // it has such a flag
				return usageError{fmt.Errorf("--seconds is %v, want 0 to 999,999", d)}
			}
			runtime.GOMAXPROCS(f.threads) // what devices and the tokenizer go by
			return f.profiled(func() error { return run(cmd, args) })
		}
	}
	return cmd
}

// profiled runs a benchmark, under the profiler if asked for.
func (f *benchFlags) profiled(run func() error) error {
	if f.profile == "" {
		return run()
	}
	packed := func(head string) bool { return strings.HasPrefix(head, "\x1f\x8b") }
	if err := sameKind("--cpu-profile", f.profile, "profile", packed); err != nil {
		return err
	}
	out, err := atomicfile.Replace(f.profile)
	if err != nil {
		return err
	}
	var profile bytes.Buffer // pprof drops errors of writing
	if err := pprof.StartCPUProfile(&profile); err != nil {
		return out.Abort(err)
	}
	err = run()
	pprof.StopCPUProfile()
	if _, failed := out.Write(profile.Bytes()); failed != nil {
		return errors.Join(err, out.Abort(failed))
	}
	return errors.Join(err, out.Commit())
}

// timed adds --seconds to a benchmark.
func timed(cmd *cobra.Command, seconds float64) {
	cmd.Flags().Float64("seconds", seconds, "how long to measure, in all")
}

// duration is what --seconds says. Of what takes long it is told: nothing more is said until it is over.
func duration(cmd *cobra.Command) time.Duration {
	d, _ := cmd.Flags().GetFloat64("seconds") // there is such a flag
	if d >= 5 {
		progressOf(cmd).printf("measuring for about %v s\n", d)
	}
	return time.Duration(d * float64(time.Second))
}

// pacing adds --paced.
func (f *benchFlags) pacing(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.paced, "paced", false, "measure one round for each line of standard input and print it as a line of JSON, for scripts that alternate with another program")
}

// print prints what was measured.
func (f *benchFlags) print(cmd *cobra.Command, r measured) error {
	if f.json || f.paced {
		return printJSON(cmd, r)
	}
	return r.Print(cmd.OutOrStdout())
}

func newBenchGEMM(f *benchFlags) *cobra.Command {
	var shapes []string
	cmd := &cobra.Command{
		Use:   "gemm",
		Short: "Products of matrices: GFLOP/s, and percent of the peak",
		Long: `gemm multiplies the matrices of linear layers with M tokens, N outputs and K inputs, in f32 and bf16, on one thread and on all:
NT is y = x Wᵀ of the forward pass, NN the gradient of x, TN the gradient of W. Weights are packed once, as in training.`,
		Example: `  contraflow bench gemm
  contraflow bench gemm --shape 8704,1536,384 --threads 1`,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			o := bench.GEMMOptions{Shapes: bench.Shapes, Threads: f.threads}
			if len(shapes) > 0 {
				o.Shapes = nil
			}
			for _, s := range shapes {
				var shape bench.Shape
				var rest string
				if n, _ := fmt.Sscanf(s, "%d,%d,%d%s", &shape.M, &shape.N, &shape.K, &rest); n != 3 || min(shape.M, shape.N, shape.K) < 1 {
					return usageError{fmt.Errorf("--shape is %q, want M,N,K such as 4096,384,384", s)}
				}
				o.Shapes = append(o.Shapes, shape)
			}
			g, err := bench.NewGEMM(o)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, g.Close()) }()
			if f.paced {
				return bench.Paced(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), func() (any, error) { return g.Round(cmd.Context()) })
			}
			r, err := g.Run(cmd.Context(), duration(cmd))
			if err != nil {
				return err
			}
			return f.print(cmd, r)
		},
	}
	timed(cmd, 30)
	f.pacing(cmd)
	cmd.Flags().StringArrayVar(&shapes, "shape", nil, "`M,N,K` instead of MiniLM's and BERT-base's layers (may be repeated)")
	return cmd
}

func newBenchOps(f *benchFlags) *cobra.Command {
	var o bench.OpsOptions
	var precision string
	cmd := &cobra.Command{
		Use:   "ops",
		Short: "The ops of a training step: ms, GB/s, GFLOP/s",
		Long:  "ops measures the ops of a training step of MiniLM-L6, one after another, at the sizes that pairs of 39 and 97 tokens give them.",
		Example: `  contraflow bench ops
  contraflow bench ops --only attention --precision bf16
  contraflow bench ops --only loss --rows 65536`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if min(o.Pairs, o.LossRows) < 1 || max(o.Pairs, o.LossRows) > 1e6 {
				return usageError{errors.New("--pairs and --rows want 1 to 1,000,000")}
			}
			o.BF16 = precision == "bf16"
			r, err := bench.MeasureOps(cmd.Context(), o, duration(cmd))
			if err != nil {
				return err
			}
			return f.print(cmd, r)
		},
	}
	timed(cmd, 20)
	cmd.Flags().StringVar(&o.Only, "only", "", "ops with this `WORD` in their name")
	oneOf(cmd, &precision, "precision", "f32", "of products", "f32", "bf16")
	cmd.Flags().IntVar(&o.Pairs, "pairs", 64, "pairs of the step, of 39 and 97 tokens")
	cmd.Flags().IntVar(&o.LossRows, "rows", 1024, "pairs of the loss's batch")
	return cmd
}

func newBenchLayers(f *benchFlags) *cobra.Command {
	var o bench.LayersOptions
	cmd := &cobra.Command{
		Use:   "layers",
		Short: "Activation checkpointing: peak memory and time by the number of layers",
		Long: `layers runs a replayed forward pass and its backward through models of BERT's shape with random weights, with activation checkpointing and
without: peak and kept activations, and how many times as long it takes.`,
		Example: `  contraflow bench layers
  contraflow bench layers --layers 4,16,64 --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(o.Layers) == 0 || slices.Min(o.Layers) < 1 || o.Rows < 1 || o.Tokens < 1 || o.Rounds < 1 || o.Hidden < 64 || o.Hidden%64 != 0 || o.LoRA < 0 {
				return usageError{errors.New("--layers, --rows, --tokens and --rounds want 1 or more, --hidden a multiple of 64")}
			}
			r, err := bench.MeasureLayers(cmd.Context(), o)
			if err != nil {
				return err
			}
			return f.print(cmd, r)
		},
	}
	cmd.Flags().IntSliceVar(&o.Layers, "layers", []int{4, 16, 64}, "numbers of layers")
	cmd.Flags().IntVar(&o.Rows, "rows", 16, "rows of the sub-batch")
	cmd.Flags().IntVar(&o.Tokens, "tokens", 64, "tokens of each row")
	cmd.Flags().IntVar(&o.Hidden, "hidden", 384, "hidden size")
	cmd.Flags().IntVar(&o.LoRA, "lora", 0, "rank of LoRA on every linear layer (default: everything trains)")
	cmd.Flags().IntVar(&o.Rounds, "rounds", 6, "rounds to take the best of")
	return cmd
}

func newBenchTokenize(f *benchFlags) *cobra.Command {
	var in bench.Input
	var maxLength int
	cmd := &cobra.Command{
		Use:   "tokenize",
		Short: "Tokenization: MB/s on one thread and on all",
		Example: `  contraflow bench tokenize
  contraflow bench tokenize --model q/model --data q/train.parquet --query comment --positive body`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if maxLength < 0 {
				return usageError{fmt.Errorf("--max-length is %d, want 0 or more", maxLength)}
			}
			return f.texts(cmd, &in, true, func() (*bench.TextReport, error) {
				return bench.Tokenization(cmd.Context(), &in, maxLength, duration(cmd))
			})
		},
	}
	timed(cmd, 5)
	inputFlags(cmd, &in, true)
	cmd.Flags().IntVar(&maxLength, "max-length", 0, "cut to so many tokens (default: not at all)")
	return cmd
}

func newBenchRead(f *benchFlags) *cobra.Command {
	var in bench.Input
	cmd := &cobra.Command{
		Use:     "read",
		Short:   "Reading rows: MB/s and rows/s, in order and shuffled",
		Example: "  contraflow bench read --data 'data/*.parquet' --query query --positive positive",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.texts(cmd, &in, false, func() (*bench.TextReport, error) { return bench.Reading(cmd.Context(), &in, duration(cmd)) })
		},
	}
	timed(cmd, 5)
	inputFlags(cmd, &in, false)
	return cmd
}

// texts runs a benchmark that goes over the data's texts.
func (f *benchFlags) texts(cmd *cobra.Command, in *bench.Input, model bool, run func() (*bench.TextReport, error)) (err error) {
	in.Say = newUI(cmd.ErrOrStderr(), f.json).printf
	if err := in.Prepare(cmd.Context(), model); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Clean()) }()
	r, err := run()
	if err != nil {
		return err
	}
	return f.print(cmd, r)
}

// inputFlags say what model and data a benchmark runs on.
func inputFlags(cmd *cobra.Command, in *bench.Input, model bool) {
	if model {
		cmd.Flags().StringVar(&in.Model, "model", "", "the folder `DIR` of a model, or a hub id (default: random weights of MiniLM-L6's shape, with a vocabulary of the data)")
	}
	cmd.Flags().StringVar(&in.Data, "data", "", "the `FILES` to read: parquet, JSON lines or CSV, rows in the order of the files (default: doc comments and functions of the installed Go sources)")
	cmd.Flags().StringVar(&in.Query, "query", "query", "the column `NAME` with the queries, of --data")
	cmd.Flags().StringVar(&in.Positive, "positive", "positive", "the column `NAME` with the documents, of --data")
}

func newBenchStep(f *benchFlags) *cobra.Command {
	var in bench.Input
	var o stepFlags
	cmd := &cobra.Command{
		Use:   "step",
		Short: "Training steps, or embedding: pairs/s, tokens/s, percent of the peak, memory",
		Long: `step trains as a recipe would, through the whole graph from reading to the update, and measures each step: pairs/s, real
tokens/s, GFLOP/s counting real tokens only, percent of the probe's, peak resident memory, and each stage's part. With --embed
it embeds the documents of the data instead.`,
		Example: `  contraflow bench step
  contraflow bench step --batch 1024 --replay-budget 4GiB --steps 3
  contraflow bench step --embed --model q/model --data docs.parquet --query title --positive text`,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if err := atLeastOne(cmd, "batch"); err != nil {
				return err
			}
			r, err := o.recipe()
			if err != nil {
				return err
			}
			ctx := cmd.Context()
			in.Say = newUI(cmd.ErrOrStderr(), f.json || f.paced).printf
			if err := in.Prepare(ctx, true); err != nil {
				return err
			}
			defer func() { err = errors.Join(err, in.Clean()) }()
			if !cmd.Flags().Changed("max-length") {
				if o.maxLength, err = in.Shorter(o.maxLength); err != nil {
					return err
				}
				r.Model.MaxLength.Query, r.Model.MaxLength.Document = o.maxLength, o.maxLength
			}
			var x interface {
				Step(ctx context.Context) (bench.Step, error)
				Report(steps []bench.Step) (*bench.StepReport, error)
				Close() error
			}
			if o.embed {
				x, err = bench.NewEmbedding(ctx, bench.EmbeddingOptions{Input: &in, Device: o.device, MaxLength: o.maxLength, Batch: o.batch, Tokens: r.Batch.SubBatch.Tokens, BF16: o.precision == "bf16"})
			} else {
				x, err = bench.NewTraining(ctx, bench.TrainingOptions{Input: &in, Device: o.device, Recipe: r})
			}
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, x.Close()) }()
			var steps []bench.Step
			if f.paced {
				if _, err := bench.Measure(ctx, o.warmup, 0, x.Step); err != nil {
					return err
				}
				err = bench.Paced(ctx, cmd.InOrStdin(), cmd.OutOrStdout(), func() (any, error) {
					s, err := x.Step(ctx)
					steps = append(steps, s)
					return s, err
				})
			} else {
				steps, err = bench.Measure(ctx, o.warmup, o.steps, x.Step)
			}
			if err != nil || len(steps) == 0 {
				return err
			}
			rep, err := x.Report(steps)
			if err != nil {
				return err
			}
			return f.print(cmd, rep)
		},
	}
	f.pacing(cmd)
	inputFlags(cmd, &in, true)
	o.add(cmd)
	return cmd
}

// stepFlags are the keys of a recipe that matter to a step's speed.
type stepFlags struct {
	batch, maxLength, steps, warmup          int
	precision, cache, replayBudget, subBatch string
	device                                   string
	embed                                    bool
}

func (o *stepFlags) add(cmd *cobra.Command) {
	cmd.Flags().IntVar(&o.batch, "batch", 0, "pairs of a step's contrastive batch (64), or with --embed texts of a round (512)")
	cmd.Flags().IntVar(&o.maxLength, "max-length", 128, "cut texts to so many tokens; without it, to what a model takes that takes fewer")
	oneOf(cmd, &o.precision, "precision", "f32", "of products; tf32 for steps on NVIDIA GPUs", "f32", "bf16", "tf32")
	oneOf(cmd, &o.device, "device", "cpu", "what computes", gpustage.Kinds()...)
	oneOf(cmd, &o.cache, "cache", "auto", "keep activations up to the replay budget, none, or all", "auto", "always", "never")
	cmd.Flags().StringVar(&o.replayBudget, "replay-budget", "", "how many `BYTES` of activations to keep, such as 4GiB (default: half of the memory that is left, fifteen sixteenths on a GPU)")
	cmd.Flags().StringVar(&o.subBatch, "sub-batch", "", "`TOKENS` of a sub-batch (default: what the device likes)")
	cmd.Flags().IntVar(&o.steps, "steps", 10, "steps to measure")
	cmd.Flags().IntVar(&o.warmup, "warmup", 2, "steps to run before")
	cmd.Flags().BoolVar(&o.embed, "embed", false, "embed the documents instead of training")
}

// recipe is the flags as a recipe, which checks them.
func (o *stepFlags) recipe() (recipe.Recipe, error) {
	if o.batch == 0 {
		if o.batch = 64; o.embed {
			o.batch = 512
		}
	}
	if o.steps < 1 || o.warmup < 0 || o.batch < 1 {
		return recipe.Recipe{}, usageError{errors.New("--steps and --batch want 1 or more, --warmup 0 or more")}
	}
	if o.precision == "tf32" && o.embed {
		return recipe.Recipe{}, usageError{fmt.Errorf("--precision is %q, %w with --embed", o.precision, notOne{"f32", "bf16"})}
	}
	// The model and the data are not the recipe's here; its three keys without defaults need something.
	const stub = "model: {path: .}\ndata: {train: [{path: ., query: query, positive: positive}]}\nsave: {dir: .}\n"
	sets := []string{
		fmt.Sprint("batch.global_size=", o.batch), fmt.Sprint("model.max_length=", o.maxLength), "train.precision=" + o.precision,
		"batch.cache=" + o.cache,
	}
	if o.subBatch != "" {
		sets = append(sets, "batch.sub_batch={tokens: "+o.subBatch+"}")
	}
	if o.replayBudget != "" {
		sets = append(sets, "batch.replay_budget="+o.replayBudget)
	}
	r, err := recipe.Parse("bench step", []byte(stub), sets)
	if err != nil {
		err = usageError{err}
	}
	return r, err
}
