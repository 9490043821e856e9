package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"contraflow/io/dataset"
	"contraflow/io/hfmodel"
	"contraflow/stages/newmodel"
)

func newInit() *cobra.Command {
	var out, pooling string
	var input, columns []string
	spec := newmodel.Spec{Lowercase: true, Seed: 42}
	cmd := &cobra.Command{
		Use:   "init --out DIR --input FILES --column NAME",
		Short: "Make a new model: random weights, and a vocabulary of your texts",
		Example: `  contraflow init --out start --input 'data/*.parquet' --column query --column positive
  contraflow init --out start --input texts.jsonl --column text --hidden 768 --layers 12 --vocab 50000`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			t, err := dataset.OpenTable(cmd.Context(), input)
			if err != nil {
				return err
			}
			defer t.Close()
			spec.Pooling = hfmodel.PoolingMode(pooling)
			var readErr error
			err = newmodel.Create(out, spec, func(yield func(string) bool) {
				for _, col := range columns {
					for c, err := range t.Chunks(cmd.Context(), col, 8192) {
						if err != nil {
							readErr = err
							return
						}
						for _, text := range c.Texts {
							if !yield(text) {
								return
							}
						}
					}
				}
			})
			if readErr != nil {
				return readErr
			}
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "a new model is in %s; train it with model.path: %s\n", out, out)
			return nil
		},
	}
	cmd.Flags().StringVar(&out, "out", "", "folder for the model")
	cmd.Flags().StringArrayVar(&input, "input", nil, "parquet or JSON lines with texts (may be repeated)")
	cmd.Flags().StringArrayVar(&columns, "column", []string{"text"}, "a column with texts (may be repeated)")
	cmd.Flags().IntVar(&spec.Hidden, "hidden", 384, "hidden size")
	cmd.Flags().IntVar(&spec.Layers, "layers", 6, "layers")
	cmd.Flags().IntVar(&spec.Heads, "heads", 0, "attention heads (default: hidden/32)")
	cmd.Flags().IntVar(&spec.Vocab, "vocab", 30000, "tokens of the vocabulary")
	cmd.Flags().IntVar(&spec.MaxLength, "max-length", 512, "longest text in tokens")
	cmd.Flags().Float64Var(&spec.Dropout, "dropout", 0.1, "dropout while training")
	cmd.Flags().BoolVar(&spec.Lowercase, "lowercase", true, "lower-case texts")
	cmd.Flags().StringVar(&pooling, "pooling", "mean", "mean, cls or last")
	cmd.Flags().Uint64Var(&spec.Seed, "seed", 42, "of the weights")
	require(cmd, "out", "input")
	return cmd
}
