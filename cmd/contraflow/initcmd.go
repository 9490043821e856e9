package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"

	"github.com/spf13/cobra"

	"contraflow/io/dataset"
	"contraflow/io/hfmodel"
	"contraflow/stages/newmodel"
)

func newInit() *cobra.Command {
	var out, pooling, config, tokenizer string
	var input, columns []string
	var force bool
	spec := newmodel.Spec{Lowercase: true, Seed: 42}
	cmd := &cobra.Command{
		Use:   "init --out DIR --input FILES --column NAME",
		Short: "Make a new model: random weights, and a vocabulary of your texts",
		Example: `  contraflow init --out start --input 'data/*.parquet' --column query --column positive
  contraflow init --out start --input texts.jsonl --column text --hidden 768 --layers 12 --vocab 50000
  contraflow init --out start --input texts.jsonl --column text --config modernbert/config.json
  contraflow init --out start --input texts.jsonl --column text --static
  contraflow init --out start --static --hidden 1024 --tokenizer google-bert/bert-base-uncased`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := atLeastOne(cmd, "hidden", "layers", "heads", "vocab", "max-length"); err != nil {
				return err
			}
			if config != "" {
				if err := withConfig(cmd, config, &spec); err != nil {
					return err
				}
			}
			if spec.Static {
				for _, f := range []string{"config", "layers", "heads", "dropout", "pooling"} {
					if cmd.Flags().Changed(f) {
						return usageError{fmt.Errorf("--%s and --static: static embeddings have a vector for each token, and nothing else", f)}
					}
				}
			}
			switch given := cmd.Flags().Changed; {
			case tokenizer == "" && len(input) == 0:
				return usageError{errors.New("--input is missing: the texts of which the vocabulary is made; with --static there may be --tokenizer instead")}
			case tokenizer == "":
			case !spec.Static:
				return usageError{errors.New("--tokenizer is for --static; an encoder gets a vocabulary of --input")}
			case given("input") || given("column") || given("vocab") || given("lowercase"):
				return usageError{errors.New("--tokenizer has its vocabulary: leave out --input, --column, --vocab and --lowercase")}
			}
			if hfmodel.IsModel(out) && !force {
				return fmt.Errorf("%s holds a model already: --force replaces it", out)
			}
			if tokenizer != "" {
				tok, err := tokenizerOf(cmd.Context(), tokenizer)
				if err != nil {
					return fmt.Errorf("--tokenizer: %w", err)
				}
				if err := newmodel.CreateWith(cmd.Context(), out, spec, tok); err != nil {
					return err
				}
				created(cmd, out)
				return nil
			}
			t, err := dataset.OpenTable(cmd.Context(), input)
			if err != nil {
				return err
			}
			defer t.Close()
			spec.Pooling = hfmodel.PoolingMode(pooling)
			if err := newmodel.Create(cmd.Context(), out, spec, textsOf(cmd.Context(), t, columns)); err != nil {
				return err
			}
			created(cmd, out)
			return nil
		},
	}
	cmd.Flags().StringVar(&out, "out", "", "folder for the model")
	cmd.Flags().BoolVar(&force, "force", false, "replace a model that is there")
	cmd.Flags().StringArrayVar(&input, "input", nil, "parquet, JSON lines or CSV with texts (may be repeated)")
	cmd.Flags().StringArrayVar(&columns, "column", []string{"text"}, "a column with texts (may be repeated)")
	cmd.Flags().BoolVar(&spec.Static, "static", false, "static embeddings: a text is the mean of its tokens' vectors, and training takes seconds")
	cmd.Flags().StringVar(&tokenizer, "tokenizer", "", "with --static, a model folder or hub id whose tokenizer it gets, instead of a new vocabulary")
	cmd.Flags().StringVar(&config, "config", "", "a config.json of Hugging Face's, of any family, for the model's shape")
	cmd.Flags().IntVar(&spec.Hidden, "hidden", 384, "hidden size")
	cmd.Flags().IntVar(&spec.Layers, "layers", 6, "layers")
	cmd.Flags().IntVar(&spec.Heads, "heads", 0, "attention heads (default: hidden/32)")
	cmd.Flags().IntVar(&spec.Vocab, "vocab", 30000, "tokens of the vocabulary")
	cmd.Flags().IntVar(&spec.MaxLength, "max-length", 0, "longest text in tokens (default 512, or what --config says; with --static any)")
	cmd.Flags().Float64Var(&spec.Dropout, "dropout", 0.1, "dropout while training")
	cmd.Flags().BoolVar(&spec.Lowercase, "lowercase", true, "lower-case texts")
	cmd.Flags().StringVar(&pooling, "pooling", "mean", "mean, cls or last")
	cmd.Flags().Uint64Var(&spec.Seed, "seed", 42, "of the weights")
	require(cmd, "out")
	return cmd
}

func created(cmd *cobra.Command, out string) {
	fmt.Fprintf(cmd.ErrOrStderr(), "a new model is in %s; train it with model.path: %s\n", out, out)
}

// withConfig takes the model's shape from a file.
func withConfig(cmd *cobra.Command, path string, spec *newmodel.Spec) error {
	for _, f := range []string{"hidden", "layers", "heads", "dropout"} {
		if cmd.Flags().Changed(f) {
			return usageError{fmt.Errorf("--%s and --config: %s says it", f, path)}
		}
	}
	var err error
	if spec.Config, err = os.ReadFile(path); err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	return nil
}

// textsOf are the texts of a table's columns.
func textsOf(ctx context.Context, t *dataset.Table, columns []string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for _, col := range columns {
			for c, err := range t.Chunks(ctx, col, 8192) {
				if err != nil {
					yield("", err)
					return
				}
				for _, text := range c.Texts {
					if !yield(text, nil) {
						return
					}
				}
			}
		}
	}
}
