package main

import (
	"path/filepath"

	"github.com/spf13/cobra"

	"contraflow/stages/quickstart"
	"contraflow/stages/recipe"
)

func newQuickstart() *cobra.Command {
	o := quickstart.Options{Seed: 42}
	cmd := &cobra.Command{
		Use:   "quickstart --out DIR",
		Short: "Train a small model from scratch on this machine's Go sources, in two minutes",
		Long: `quickstart extracts (doc comment, function) pairs from the Go sources installed with the toolchain, trains a vocabulary and
a small encoder on them, and measures on packages that it has not seen how well a comment finds its function: before training, after,
and by BM25. Nothing is downloaded.`,
		Example: "  contraflow quickstart --out q",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ui := newUI(cmd.OutOrStdout(), false)
			defer ui.close()
			o.Say = ui.printf
			o.Observer = func(r recipe.Recipe) recipe.Observer { return ui.observer(r.Log.Every) }
			o.Begin = ui.begin
			rep, err := quickstart.Run(cmd.Context(), o)
			ui.close()
			if err != nil {
				return err
			}
			ui.printf("%s\n\n%s\n", rep.Summary, rep.Table)
			if rep.Rerank != nil {
				ui.printf("%s\n", rep.Rerank.Table)
			}
			if err := writeReport(ui, o.Out); err != nil {
				return err
			}
			ui.printf("done in %.0f s. Next:\n", rep.Seconds)
			model := filepath.Join(o.Out, "model")
			ui.printf("  contraflow embed --model %s --text %q\n", model, rep.Example)
			ui.printf("  contraflow eval --model %s --queries %s --corpus %s --qrels %s --bm25\n", model, filepath.Join(o.Out, "queries.parquet"), filepath.Join(o.Out, "corpus.parquet"), filepath.Join(o.Out, "qrels.parquet"))
			ui.printf("  change %s and run: contraflow train -c %s --out runs/mine\n", filepath.Join(o.Out, "recipe.yaml"), filepath.Join(o.Out, "recipe.yaml"))
			ui.printf("  in Python: SentenceTransformer(%q)\n", model)
			return nil
		},
	}
	cmd.Flags().StringVar(&o.Out, "out", "", "folder for data, model and report")
	cmd.Flags().StringVar(&o.Source, "source", "", "a folder of Go sources (default: those of the toolchain)")
	cmd.Flags().BoolVar(&o.Reranker, "reranker", false, "train a reranker as well, from the encoder, on negatives that BM25 and it find (four minutes more of training, besides mining and measuring)")
	cmd.Flags().IntVar(&o.RerankSteps, "reranker-steps", 0, "steps to train it for (default: as many as fit four minutes)")
	cmd.Flags().Uint64Var(&o.Seed, "seed", o.Seed, "of everything that is random")
	cmd.Flags().StringArrayVar(&o.Sets, "set", nil, "override a key of the recipe")
	require(cmd, "out")
	return cmd
}
