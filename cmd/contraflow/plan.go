package main

import (
	"fmt"
	"math"

	"github.com/spf13/cobra"

	"contraflow/collective"
	"contraflow/collective/sim"
	"contraflow/stages/recipe"
)

func newPlan() *cobra.Command {
	var f recipeFlags
	var gpus, nodes, steps int
	var link string
	var tokens float64
	cmd := &cobra.Command{
		Use:   "plan -c RECIPE",
		Short: "Predict memory, traffic and time on machines that you don't have",
		Long: `plan builds the recipe's graph for a mesh that exists on paper and runs its schedule on a clock of its own: memory per device, bytes and
time of communication per step, and how much of it nothing hides. Computing takes what it takes on this machine, measured in a
few steps of one rank's share of a batch. To plan for another device, say what it does: --tokens-per-s, as metrics.jsonl of a run of this model on one
of them has it; activations then lie in its memory as in a GPU's. A processor hides what a GPU does not.

Communication takes what the link's bandwidth and latency say. There is one kind of link: what each device has to itself towards all others. Where
8 devices share a machine's 400 Gb/s, that is 50Gb; what faster links within a machine save is not counted.`,
		Example: `  contraflow plan -c recipe.yaml --gpus 8 --nodes 4 --link 50Gb --tokens-per-s 400000
  contraflow plan -c recipe.yaml --gpus 2 --link "10Gb 50us" --set mesh.shard=2`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := f.load()
			if err != nil {
				return err
			}
			var l sim.Link
			if err := l.UnmarshalText([]byte(link)); err != nil {
				return usageError{fmt.Errorf("--link: %w", err)}
			}
			if steps < 1 {
				return usageError{fmt.Errorf("--steps is %d, want at least 1", steps)}
			}
			if cmd.Flags().Changed("tokens-per-s") && !(tokens > 0 && tokens < math.Inf(1)) {
				return usageError{fmt.Errorf("--tokens-per-s is %v, want a positive number", tokens)}
			}
			ranks := gpus * nodes
			if gpus < 1 || nodes < 1 || ranks%r.Mesh.Shard != 0 {
				return usageError{fmt.Errorf("%d nodes of %d devices do not make a mesh with mesh.shard %d", nodes, gpus, r.Mesh.Shard)}
			}
			x, err := recipe.Open(cmd.Context(), r, newUI(cmd.ErrOrStderr(), false).observer(1))
			if err != nil {
				return err
			}
			defer x.Close()
			mesh := collective.Mesh{Replicate: ranks / r.Mesh.Shard, Shard: r.Mesh.Shard}
			rates, err := x.Calibrate(cmd.Context(), ranks, steps)
			if err != nil {
				return err
			}
			if tokens > 0 {
				rates = rates.Of(tokens)
			}
			forecast, err := x.Forecast(cmd.Context(), mesh, l, rates)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), forecast)
			return err
		},
	}
	cmd.Flags().IntVar(&gpus, "gpus", 1, "devices of each machine")
	cmd.Flags().IntVar(&nodes, "nodes", 1, "machines")
	cmd.Flags().StringVar(&link, "link", "100Gb", "bandwidth of each device's link to the others, and its latency if you know it")
	cmd.Flags().Float64Var(&tokens, "tokens-per-s", 0, "tokens that one device trains in a second (default: as this machine does)")
	cmd.Flags().IntVar(&steps, "steps", 3, "steps to measure computing with")
	f.add(cmd)
	return cmd
}
