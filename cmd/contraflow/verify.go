package main

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"contraflow/io/dataset"
	"contraflow/stages/recipe"
)

func newVerify() *cobra.Command {
	var f recipeFlags
	o := recipe.DefaultVerify()
	var plant string
	cmd := &cobra.Command{
		Use:   "verify-grads -c RECIPE",
		Short: "Prove that gradients are right, on your model and data",
		Long: `verify-grads computes the gradient of one step on some rows from all over the recipe's data in every way that training may compute it (sub-batches,
replay budgets, activation checkpointing, loss tiles, accumulation, meshes of ranks, dropout on) and compares each with a plain computation in
double precision, which in turn is compared with a finite difference of the loss. It prints a row for each, with how many there are, and exits with 1 if
any error is more than rounding. How much that is depends on the model: where a row is beyond the usual limit, two computations in single
precision on the reference device tell, in rows of their own (noise), and the limit of each tensor follows what it has there; where that is not enough,
two more do so in double precision, of weights that single precision hardly tells from the model's.
Where a gradient jumps (a ReLU's where its input changes sign, MaxSim's where another token becomes the nearest, a sparse embedding's at 0 and where
another token has the largest weight) rounding may do that to a token: a row that says so (with 1 of the values within 8e-07 of a jump beyond it) is held
against what double precision gives with as many of the values that are nearest to a jump on the other side. Where weights are on a jump themselves, as
a new model's row for padding is, which is zero, the finite difference is of weights that are moved by 0.001, and its row says so.

Meshes are of ranks in this process, which exchange as the recipe says (mesh.wire, mesh.overlap, train.sync, loss.gather_across_devices). Started by
mpirun, srun or torchrun it verifies the job's own mesh: each rank what it computes alone, and then all of them together.`,
		Example: `  contraflow verify-grads -c recipe.yaml --replicas 1,2,4 --shards 1,2 --sub-batch 8,32 --accumulate 1,3
  mpirun -n 4 contraflow verify-grads -c recipe.yaml --replicas 2 --shards 2`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Plant = recipe.Fault(plant)
			if err := o.Check(); err != nil {
				return usageError{err}
			}
			r, err := f.load()
			if err != nil {
				return err
			}
			place, err := joinJob(cmd.Context(), r)
			if err != nil {
				return err
			}
			main, ok := true, false
			verify := func(x *recipe.Run) (err error) {
				w := cmd.OutOrStdout()
				if main = x.Main(); !main {
					w = io.Discard
				}
				if plant != "" {
					fmt.Fprintf(w, "with a fault planted: %s\n", plant)
				}
				o := o
				o.Report = func(row recipe.VerifyRow) {
					fmt.Fprintln(w, row)
				}
				if ok, err = x.Verify(cmd.Context(), o); ok {
					fmt.Fprintln(w, "all gradients agree with a plain computation in double precision, and that with finite differences")
				}
				if errors.Is(err, dataset.ErrBadRow) {
					err = fmt.Errorf("%w; data.on_error: skip verifies, and trains, without rows that can't be used", err)
				}
				return err
			}
			obs := progressOf(cmd).observer()
			if place.World != nil {
				err = recipe.OnRanks(cmd.Context(), r, place, obs, verify)
			} else { // which makes its own ranks
				var x *recipe.Run
				if x, err = recipe.Open(cmd.Context(), r, obs); err == nil {
					err = errors.Join(verify(x), x.Close())
				}
			}
			switch {
			case err != nil:
				return err
			case !ok && main:
				return errors.New("gradients are wrong")
			case !ok:
				return exitCode(1)
			}
			return nil
		},
	}
	cmd.Flags().IntVar(&o.Rows, "rows", o.Rows, "rows of a contrastive batch")
	cmd.Flags().IntSliceVar(&o.SubBatches, "sub-batch", o.SubBatches, "sub-batch sizes in sequences")
	cmd.Flags().IntSliceVar(&o.Accumulate, "accumulate", o.Accumulate, "contrastive batches per step")
	cmd.Flags().IntSliceVar(&o.Replicas, "replicas", o.Replicas, "ranks along the mesh's replicate axis")
	cmd.Flags().IntSliceVar(&o.Shards, "shards", o.Shards, "ranks along the mesh's shard axis")
	var faults []string
	for _, f := range slices.Concat(recipe.Faults, recipe.MeshFaults) {
		faults = append(faults, string(f))
	}
	oneOf(cmd, &plant, "plant", "", "plant a `FAULT` that must be found: factor, mask, remote or dropout; on a mesh gather, scatter, sync or shard", faults...)
	f.add(cmd)
	return cmd
}
