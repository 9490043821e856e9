package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"contraflow/io/hfmodel"
	"contraflow/stages/embedder"
	"contraflow/stages/loss"
)

// modelFlags are those of commands that load a model.
type modelFlags struct {
	path      string
	maxLength int
	queries   int // --query-max-length, of eval, mine and distill
	cut       int
	precision string
	options   []embedder.Option // besides those of flags
}

// add adds them. cut is what is cut to --max-length.
func (f *modelFlags) add(cmd *cobra.Command, cut string) {
	cmd.Flags().StringVar(&f.path, "model", "", "the folder `DIR` of a model, or a hub id such as sentence-transformers/all-MiniLM-L6-v2")
	cmd.Flags().IntVar(&f.maxLength, "max-length", 0, "cut "+cut+" to so many tokens (default: what the model says)")
	oneOf(cmd, &f.precision, "precision", "f32", "precision of products of matrices", "f32", "bf16")
	require(cmd, "model")
}

// addCut is for commands whose model embeds.
func (f *modelFlags) addCut(cmd *cobra.Command) {
	cmd.Flags().IntVar(&f.cut, "dimensions", 0, "cut embeddings to so many dimensions, as matryoshka training allows; they are not normalized again (default: what the model says)")
}

// addQueryLength is for commands that embed queries beside documents. of says whose it is, and queries what.
func (f *modelFlags) addQueryLength(cmd *cobra.Command, of, queries string) {
	cmd.Flags().IntVar(&f.queries, "query-max-length", 0, of+"cut "+queries+" to so many tokens, as training may have (default: as documents)")
}

func (f *modelFlags) load(cmd *cobra.Command) (*embedder.Embedder, error) {
	if err := atLeastOne(cmd, "dimensions", "query-max-length"); err != nil {
		return nil, err
	}
	dir, bf16, err := f.resolve(cmd)
	if err != nil {
		return nil, err
	}
	opts := append([]embedder.Option{embedder.MaxLength(f.maxLength), embedder.QueryMaxLength(f.queries), embedder.Dimensions(f.cut), embedder.Warn(notes(cmd))}, f.options...)
	if bf16 {
		opts = append(opts, embedder.BF16())
	}
	return embedder.Load(dir, opts...)
}

// notes is where what a command calls says what a user should know.
func notes(cmd *cobra.Command) func(message string) {
	return func(message string) { fmt.Fprintf(cmd.ErrOrStderr(), "%snote: %s\n", overLast(), message) }
}

// resolve checks the flags and finds the model's folder.
func (f *modelFlags) resolve(cmd *cobra.Command) (dir string, bf16 bool, err error) {
	if err := atLeastOne(cmd, "max-length"); err != nil {
		return "", false, err
	}
	dir, err = findModel(cmd, f.path)
	return dir, f.precision == "bf16", err
}

// findModel finds a model's folder, or downloads it.
func findModel(cmd *cobra.Command, path string) (dir string, err error) {
	return hfmodel.Resolve(cmd.Context(), path, hfmodel.Options{Progress: progressOf(cmd).download})
}

// mayWrite refuses a folder to write a model into that has one, unless it may be replaced.
func mayWrite(out string, force bool, unless string) error {
	if hfmodel.IsModel(out) && !force {
		return fmt.Errorf("%s holds a model already: --force replaces it%s", out, unless)
	}
	return nil
}

// partFlags choose what texts are compared by.
type partFlags struct {
	part    string
	weights []float64
	fused   bool // what a model with parts is compared by where nobody says: fused, or dense
}

func (p *partFlags) add(cmd *cobra.Command, byDefault string) {
	p.fused = byDefault == "fused"
	oneOf(cmd, &p.part, "part", "", "of a model of kind m3, the `PART` by which texts are compared: dense, sparse, multi_vector or fused (default: "+byDefault+")", append(slices.Clone(loss.M3Parts), "fused")...)
	cmd.Flags().Float64SliceVar(&p.weights, "weights", nil, "the `NUMBERS` by which dense, sparse and multi_vector count in --part fused (default: 1,0.3,1)")
	cmd.Flags().Lookup("weights").DefValue = "" // the default is the text's
}

// fusion is what each part counts; nil: embeddings alone.
func (p *partFlags) fusion(e *embedder.Embedder) (map[string]float64, error) {
	if p.part == "" && p.weights == nil {
		if p.fused && e.HasParts() && !e.VectorsAlone() {
			return loss.Fusion, nil
		}
		return nil, nil
	}
	if e.VectorsAlone() && p.part == loss.VectorsPart && p.weights == nil { // which is all that there is
		return nil, nil
	}
	if !e.HasParts() || e.VectorsAlone() {
		return nil, usageError{errors.New("--part and --weights are for models of kind m3, with heads of tokens")}
	}
	if p.weights != nil && p.part != "" && p.part != "fused" {
		return nil, usageError{errors.New("--weights are for --part fused")}
	}
	w, err := embedder.FlagWeights(p.part, p.weights)
	if err != nil {
		return nil, usageError{fmt.Errorf("--part: %w", err)}
	}
	return w, nil
}
