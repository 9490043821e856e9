package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"contraflow/collective"
	"contraflow/collective/sim"
	"contraflow/stages/recipe"
)

func newPlan() *cobra.Command {
	var f recipeFlags
	var gpus, nodes, steps int
	var link string
	cmd := &cobra.Command{
		Use:   "plan -c RECIPE",
		Short: "Predict memory, traffic and time on machines that you don't have",
		Long: `plan builds the recipe's graph for a mesh that exists on paper and runs its schedule on a clock of its own: memory per device, bytes and
time of communication per step, and how much of it nothing hides. Computing takes what it takes on this machine, measured in a
few steps of one rank's share of a batch; communication takes what the link's bandwidth and latency say.`,
		Example: `  contraflow plan -c recipe.yaml --gpus 8 --nodes 4 --link 400Gb
  contraflow plan -c recipe.yaml --gpus 2 --link "10Gb 50us" --set mesh.shard=2`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.out == "" {
				f.out = "unused" // nothing is written
			}
			r, err := f.load()
			if err != nil {
				return err
			}
			var l sim.Link
			if err := l.UnmarshalText([]byte(link)); err != nil {
				return usageError{fmt.Errorf("--link: %w", err)}
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
			forecast, err := x.Forecast(cmd.Context(), mesh, l, rates)
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), forecast)
			return nil
		},
	}
	cmd.Flags().IntVar(&gpus, "gpus", 1, "devices of each machine")
	cmd.Flags().IntVar(&nodes, "nodes", 1, "machines")
	cmd.Flags().StringVar(&link, "link", "100Gb", "bandwidth of each device's link to the others, and its latency if you know it")
	cmd.Flags().IntVar(&steps, "steps", 3, "steps to measure computing with")
	f.add(cmd)
	return cmd
}
