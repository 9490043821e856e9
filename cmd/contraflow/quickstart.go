package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"contraflow/stages/quickstart"
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
			if cmd.Flags().Changed("reranker-steps") && !o.Reranker {
				return usageError{errors.New("--reranker-steps are of --reranker, which is not given")}
			}
			if err := atLeastOne(cmd, "reranker-steps"); err != nil {
				return err
			}
			ui := newUI(cmd.OutOrStdout(), false)
			defer ui.close()
			o.Say = ui.printf
			o.Observer = ui.observer()
			o.Begin = ui.begin
			rep, err := quickstart.Run(cmd.Context(), o)
			ui.close()
			if err != nil {
				return err
			}
			ui.printf("%s\n\n%s\n", rep.Summary, rep.Table)
			if rep.Rerank != nil {
				ui.printf("%s\n\n%s\n", rep.Rerank.Summary, rep.Rerank.Table)
			}
			if err := writeReport(ui, o.Out); err != nil {
				return err
			}
			ui.printf("done in %.0f s. Next:\n%s", rep.Seconds, afterQuickstart(o.Out, rep))
			return nil
		},
	}
	cmd.Flags().StringVar(&o.Out, "out", "", "the folder `DIR` for data, model and report")
	cmd.Flags().StringVar(&o.Source, "source", "", "a folder `DIR` of Go sources (default: those of the toolchain)")
	cmd.Flags().BoolVar(&o.Reranker, "reranker", false, "train a reranker as well, from the encoder, on negatives that BM25 and it find (four minutes more of training, besides mining and measuring)")
	cmd.Flags().IntVar(&o.RerankSteps, "reranker-steps", 0, "steps to train it for (default: as many as fit four minutes)")
	cmd.Flags().Uint64Var(&o.Seed, "seed", o.Seed, "of everything that is random")
	cmd.Flags().StringArrayVar(&o.Sets, "set", nil, setFlag)
	require(cmd, "out")
	return cmd
}

// afterQuickstart is what to do with what it has left in a folder.
func afterQuickstart(out string, rep *quickstart.Report) string {
	in := func(name string) string { return shellWord(filepath.Join(out, name)) }
	task := fmt.Sprintf("--queries %s --corpus %s --qrels %s", in("queries.parquet"), in("corpus.parquet"), in("qrels.parquet"))
	var b strings.Builder
	fmt.Fprintf(&b, "  contraflow embed --model %s --text %s\n", in("model"), shellWord(rep.Example))
	fmt.Fprintf(&b, "  contraflow eval --model %s %s --bm25\n", in("model"), task)
	if rep.Rerank != nil {
		fmt.Fprintf(&b, "  contraflow rerank --model %s --first %s %s --top 20\n", in("reranker/model"), in("model"), task)
	}
	fmt.Fprintf(&b, "  change %s and run: contraflow train -c %[1]s --out runs/mine\n", in("recipe.yaml"))
	fmt.Fprintf(&b, "  in Python: SentenceTransformer(%q)\n", filepath.Join(out, "model"))
	return b.String()
}
