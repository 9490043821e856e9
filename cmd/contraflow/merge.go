package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"contraflow/gpustage"
	"contraflow/io/hfmodel"
	"contraflow/stages/embedder"
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
			if hfmodel.IsModel(out) && !force {
				return fmt.Errorf("%s holds a model already: --force replaces it, unless it is the adapter or its base model", out)
			}
			o := hfmodel.Options{Progress: newUI(cmd.ErrOrStderr(), false).download}
			if model != "" {
				if model, err = hfmodel.Resolve(cmd.Context(), model, o); err != nil {
					return err
				}
			} else if adapter, err = hfmodel.Resolve(cmd.Context(), adapter, o); err != nil {
				return err
			}
			d, err := gpustage.Open("auto")
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, d.Close()) }()
			if err := embedder.Merge(model, adapter, out, precision, d); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "merged model saved in %s\n", out)
			return err
		},
	}
	cmd.Flags().StringVar(&model, "model", "", "the base model, a folder or hub id (default: what the adapter says)")
	cmd.Flags().StringVar(&adapter, "adapter", "", "the adapter's folder")
	cmd.Flags().StringVar(&out, "out", "", "the folder to write")
	cmd.Flags().StringVar(&precision, "precision", "f32", "what the weights are written in: f32, bf16 or f16")
	cmd.Flags().BoolVar(&force, "force", false, "replace another model in --out")
	require(cmd, "adapter", "out")
	return cmd
}
