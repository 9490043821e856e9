package main

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/spf13/cobra"

	"contraflow/collective"
	"contraflow/collective/sim"
	"contraflow/gpustage"
	"contraflow/gpustage/cuda/launch"
	"contraflow/io/hfmodel"
	"contraflow/stages/recipe"
)

// planFlags are plan's, and what they say.
type planFlags struct {
	recipeFlags
	gpus, nodes, steps   int
	tokens               float64
	asJSON               bool
	linkText, memoryText string

	link   sim.Link
	memory recipe.Bytes // 0: nobody says
}

func newPlan() *cobra.Command {
	var f planFlags
	cmd := &cobra.Command{
		Use:   "plan -c RECIPE",
		Short: "Predict memory, traffic and time on machines that you don't have",
		Long: `plan builds the recipe's graph for a mesh that exists on paper and runs its schedule on a clock of its own: memory of each device by its parts, as train
predicts it; bytes and time of communication per step, and how much of it nothing hides.

Data that eval names is read, for the memory that ranking it takes, but not downloaded.

With --memory or --tokens-per-s it is for another device, and nothing is computed: the data is read, and of the model its settings and its tokenizer. A folder
without weights will do, and of a hub id only these small files are fetched. --memory is what such a device has free when training starts: plan says whether
the run fits, what then may go to kept activations (batch.replay_budget), or what would make it fit. --tokens-per-s is what it trains, as
metrics.jsonl of a run of this model on one of them has it; without it there is no time of computing. The device is a GPU, or where the recipe says
train.device: cpu a processor as this one.

Without the two, computing takes what it takes on this machine, measured in a few steps of one rank's share of a batch, and the memory is this machine's.
A processor hides what a GPU does not.

Communication takes what the link's bandwidth and latency say. There is one kind of link: what each device has to itself towards all others. Where
8 devices share a machine's 400 Gb/s, that is 50Gb; what faster links within a machine save is not counted.`,
		Example: `  contraflow plan -c recipe.yaml --gpus 8 --nodes 4 --link 50Gb --tokens-per-s 400000
  contraflow plan -c recipe.yaml --gpus 8 --memory 80GiB
  contraflow plan -c recipe.yaml --gpus 8 --memory 80GiB --json
  contraflow plan -c recipe.yaml --gpus 2 --link "10Gb 50us" --set mesh.shard=2`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := f.load()
			if err != nil {
				return err
			}
			if err := f.check(cmd, r); err != nil {
				return usageError{err}
			}
			return f.run(cmd, r)
		},
	}
	cmd.Flags().IntVar(&f.gpus, "gpus", 1, "devices of each machine")
	cmd.Flags().IntVar(&f.nodes, "nodes", 1, "machines")
	cmd.Flags().StringVar(&f.linkText, "link", "100Gb", "the `SPEED` of each device's link to the others, and its latency if you know it: \"10Gb 50us\"")
	cmd.Flags().Float64Var(&f.tokens, "tokens-per-s", 0, "tokens that one device trains in a second (default: as this machine does; with --memory there is no time of computing)")
	cmd.Flags().StringVar(&f.memoryText, "memory", "", "the `BYTES` of memory that each device has free when training starts, such as 80GiB (default: this machine's, or with --tokens-per-s unknown)")
	cmd.Flags().IntVar(&f.steps, "steps", 3, "steps to measure computing with")
	cmd.Flags().BoolVar(&f.asJSON, "json", false, "print the plan as one JSON object, whose keys stages/recipe/README.md lists")
	f.add(cmd)
	return cmd
}

func (f *planFlags) check(cmd *cobra.Command, r recipe.Recipe) error {
	given := cmd.Flags().Changed
	if err := f.link.UnmarshalText([]byte(f.linkText)); err != nil {
		return fmt.Errorf("--link: %w", err)
	}
	if given("memory") {
		if err := f.memory.UnmarshalText([]byte(f.memoryText)); err != nil || f.memory == 0 {
			return fmt.Errorf("--memory is %q, want an amount of memory such as 80GiB", f.memoryText)
		}
	}
	switch {
	case f.steps < 1:
		return fmt.Errorf("--steps is %d, want at least 1", f.steps)
	case given("tokens-per-s") && !(f.tokens > 0 && f.tokens < math.Inf(1)):
		return fmt.Errorf("--tokens-per-s is %v, want a positive number", f.tokens)
	case f.gpus > collective.MaxRanks || f.nodes > collective.MaxRanks || f.gpus*f.nodes > collective.MaxRanks:
		return fmt.Errorf("%d nodes of %d devices are more than a job can have: at most %d devices", f.nodes, f.gpus, collective.MaxRanks)
	case f.gpus < 1 || f.nodes < 1 || f.gpus*f.nodes%r.Mesh.Shard != 0:
		return fmt.Errorf("%d nodes of %d devices do not make a mesh with mesh.shard %d", f.nodes, f.gpus, r.Mesh.Shard)
	case f.elsewhere() && given("steps"):
		return errors.New("--steps are measured on this machine: --tokens-per-s and --memory are for another device, and nothing is computed")
	}
	return nil
}

// elsewhere tells that the devices are others than this machine's.
func (f *planFlags) elsewhere() bool { return f.tokens > 0 || f.memory > 0 }

func (f *planFlags) run(cmd *cobra.Command, r recipe.Recipe) (err error) {
	ctx, obs, ranks := cmd.Context(), progressOf(cmd).observer(), f.gpus*f.nodes
	mesh := collective.Mesh{Replicate: ranks / r.Mesh.Shard, Shard: r.Mesh.Shard}
	var x *recipe.Run
	var rates recipe.Rates
	if f.elsewhere() {
		x, rates, err = onPaper(ctx, r, recipe.Target{Mesh: mesh, Memory: int64(f.memory)}, f.tokens, obs)
	} else {
		x, rates, err = calibrated(ctx, r, ranks, f.steps, obs)
	}
	if err != nil {
		return err
	}
	forecast, err := x.Forecast(ctx, mesh, f.link, rates)
	if err := errors.Join(err, x.Close()); err != nil {
		return err
	}
	if f.asJSON {
		return printJSON(cmd, forecast)
	}
	newUI(cmd.OutOrStdout(), false).say("plan", forecast.String())
	return nil
}

// calibrated opens a recipe and measures what computing takes on this machine.
func calibrated(ctx context.Context, r recipe.Recipe, ranks, steps int, obs recipe.Observer) (*recipe.Run, recipe.Rates, error) {
	x, err := recipe.OpenToPlan(ctx, r, obs)
	if errors.Is(err, hfmodel.ErrNoWeights) {
		err = fmt.Errorf("%w; --memory or --tokens-per-s plan without weights", err)
	}
	if err != nil {
		return nil, recipe.Rates{}, err
	}
	rates, err := x.Calibrate(ctx, ranks, steps)
	if err != nil {
		return nil, rates, errors.Join(err, x.Close())
	}
	return x, rates, nil
}

// paperDevice is like the device that a recipe names, which need not be there; auto is taken for a GPU.
func paperDevice(r recipe.Recipe) (gpustage.Device, error) {
	if kind := r.Train.Device; kind != "auto" && kind != "cuda" {
		d, err := gpustage.Open(kind)
		if err != nil {
			return nil, fmt.Errorf("train.device: %w", err)
		}
		return d, d.Close() // what it is like is known afterwards, too
	}
	return launch.Paper{}, nil
}

// onPaper opens a recipe for devices that are not there, of a speed that may be unknown, 0.
func onPaper(ctx context.Context, r recipe.Recipe, t recipe.Target, tokensPerS float64, obs recipe.Observer) (*recipe.Run, recipe.Rates, error) {
	var err error
	if t.Device, err = paperDevice(r); err != nil {
		return nil, recipe.Rates{}, err
	}
	x, err := recipe.OpenOnPaper(ctx, r, t, obs)
	if err != nil || tokensPerS == 0 {
		return x, recipe.Rates{}, err
	}
	return x, x.RatesAt(tokensPerS), nil
}
