package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"contraflow/gpustage"
	"contraflow/stages/embedder"
	"contraflow/stages/recipe"
)

func newMerge() *cobra.Command {
	var model, adapter, out, precision string
	var force bool
	cmd := &cobra.Command{
		Use:   "merge --adapter DIR --out DIR [--model DIR] [--precision bf16]",
		Short: "Merge a LoRA adapter into its base model",
		Long: `merge writes a model folder whose weights have a LoRA adapter added to them. It loads wherever its base model does, without PEFT.

The adapter is a folder that a run with model.lora, PEFT or sentence-transformers has saved, and its base an embedding model: rerankers that
contraflow trains with LoRA are merged as they are saved, and others PEFT's merge_and_unload merges. The mean of several models, which some call merging
as well, is contraflow mix.`,
		Example: `  contraflow merge --adapter runs/x/model --out runs/x/merged
  contraflow merge --model intfloat/e5-small-v2 --adapter adapter --out merged`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if err := mayWrite(out, force, ", unless it is the adapter or its base model"); err != nil {
				return err
			}
			of := &model
			if model == "" {
				of = &adapter // which names its base
			}
			if *of, err = findModel(cmd, *of); err != nil {
				return err
			}
			d, err := gpustage.Open("auto")
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, d.Close()) }()
			u := progressOf(cmd)
			u.said = time.Now() // of what is over within a second nothing is said
			if err := embedder.Merge(model, adapter, out, precision, d, func(what string, done, total int64) {
				if what == "written" {
					u.passing(false, fmt.Sprintf("%s of %s written", recipe.Size(done), recipe.Size(total)))
				} else {
					u.passing(false, fmt.Sprintf("%.0f%% of %.1f million parameters merged", 100*float64(done)/float64(total), float64(total)/1e6))
				}
			}); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "merged model saved in %s\n", out)
			return err
		},
	}
	cmd.Flags().StringVar(&model, "model", "", "the folder `DIR` or hub id of the base model (default: what the adapter says)")
	cmd.Flags().StringVar(&adapter, "adapter", "", "the adapter's folder `DIR`, or hub id")
	cmd.Flags().StringVar(&out, "out", "", "the folder `DIR` to write")
	oneOf(cmd, &precision, "precision", "f32", "what the weights are written in", "f32", "bf16", "f16")
	cmd.Flags().BoolVar(&force, "force", false, "replace another model in --out")
	require(cmd, "adapter", "out")
	return cmd
}
