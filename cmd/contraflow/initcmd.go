package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"contraflow/gpustage"
	"contraflow/io/dataset"
	"contraflow/io/hfmodel"
	"contraflow/io/safetensors"
	"contraflow/io/spelling"
	"contraflow/stages/embedder"
	"contraflow/stages/newmodel"
)

// initFlags are init's.
type initFlags struct {
	spec                                       newmodel.Spec
	out, pooling, config, tokenizer, distilled string
	input, columns                             []string
	force                                      bool
}

func newInit() *cobra.Command {
	f := initFlags{spec: newmodel.Spec{Lowercase: true, Seed: 42}}
	cmd := &cobra.Command{
		Use:   "init --out DIR --input FILES --column NAME",
		Short: "Make a new model: random weights, and a vocabulary of your texts",
		Long: `init writes a model folder to begin training with. Its vocabulary is of your texts, and its weights are random.

Static embeddings (--static) may have another model's tokenizer instead. With --distill they have what that model knows, too: a token's vector is
the model's embedding of that token alone, less what all share, turned to as many principal components as --hidden says, and weighed by how
rare it is. That takes no texts and some seconds, and embeds well before any training.`,
		Example: `  contraflow init --out start --input 'data/*.parquet' --column query --column positive
  contraflow init --out start --input texts.jsonl --column text --hidden 768 --layers 12 --vocab 50000
  contraflow init --out start --input texts.jsonl --column text --config modernbert/config.json
  contraflow init --out start --input texts.jsonl --column text --sparse
  contraflow init --out start --input texts.jsonl --column text --static
  contraflow init --out start --static --hidden 1024 --tokenizer google-bert/bert-base-uncased
  contraflow init --out start --static --hidden 256 --distill sentence-transformers/all-MiniLM-L6-v2`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(cmd); err != nil {
				return err
			}
			return f.run(cmd)
		},
	}
	cmd.Flags().StringVar(&f.out, "out", "", "the folder `DIR` to write the model into")
	cmd.Flags().BoolVar(&f.force, "force", false, "replace a model that is there")
	cmd.Flags().StringArrayVar(&f.input, "input", nil, filesFlag)
	cmd.Flags().StringArrayVar(&f.columns, "column", []string{"text"}, fmt.Sprintf(columnFlag, "texts")+" (may be repeated)")
	cmd.Flags().BoolVar(&f.spec.Static, "static", false, "static embeddings: a text is the mean of its tokens' vectors, and training takes seconds")
	cmd.Flags().BoolVar(&f.spec.Sparse, "sparse", false, "a sparse encoder (SPLADE), with a head for masked language modelling, for recipes of model.kind: sparse")
	cmd.Flags().StringVar(&f.tokenizer, "tokenizer", "", "with --static, the folder `DIR` or hub id of a model whose tokenizer it gets, instead of a new vocabulary")
	cmd.Flags().StringVar(&f.distilled, "distill", "", "with --static, the folder `DIR` or hub id of a model whose tokenizer it gets, and what it knows of each token")
	cmd.Flags().StringVar(&f.config, "config", "", "a `FILE`, Hugging Face's config.json of any family but qwen2, for the model's shape")
	cmd.Flags().IntVar(&f.spec.Hidden, "hidden", 384, "hidden size (with --distill at most that of its embeddings, which is the default)")
	cmd.Flags().IntVar(&f.spec.Layers, "layers", 6, "layers")
	cmd.Flags().IntVar(&f.spec.Heads, "heads", 0, "attention heads (default: hidden/32)")
	cmd.Flags().IntVar(&f.spec.Vocab, "vocab", 30000, "tokens of the vocabulary, fewer if the texts give no more (with --config: its vocab_size, if it has one)")
	cmd.Flags().IntVar(&f.spec.MaxLength, "max-length", 0, "longest text in tokens (default: 512, or what --config says; with --static any)")
	cmd.Flags().Float64Var(&f.spec.Dropout, "dropout", 0.1, "dropout while training")
	cmd.Flags().BoolVar(&f.spec.Lowercase, "lowercase", true, "lower-case texts")
	oneOf(cmd, &f.pooling, "pooling", "mean", "which tokens make the embedding", "mean", "cls", "last")
	cmd.Flags().Uint64Var(&f.spec.Seed, "seed", 42, "of the weights")
	require(cmd, "out")
	return cmd
}

// check finds flags that make no sense together, and takes the shape of --config.
func (f *initFlags) check(cmd *cobra.Command) error {
	given := cmd.Flags().Changed
	if err := atLeastOne(cmd, "hidden", "layers", "heads", "vocab", "max-length"); err != nil {
		return err
	}
	if d := f.spec.Dropout; !(d >= 0 && d < 1) {
		return usageError{fmt.Errorf("--dropout is %v, want at least 0 and less than 1", d)}
	}
	if f.config != "" {
		if err := withConfig(cmd, f.config, &f.spec); err != nil {
			return err
		}
	}
	for _, flag := range []string{"config", "layers", "heads", "dropout", "pooling", "sparse"} {
		if f.spec.Static && given(flag) {
			return usageError{fmt.Errorf("--%s and --static: static embeddings have a vector for each token, and nothing else", flag)}
		}
	}
	if f.spec.Sparse && given("pooling") {
		return usageError{errors.New("--pooling and --sparse: sparse embeddings are the largest logits of a text's tokens")}
	}
	switch made := f.tokenizer == "" && f.distilled == ""; { // the vocabulary
	case made && len(f.input) == 0:
		return missing(errors.New("--input is missing: the texts of which the vocabulary is made; with --static there may be --tokenizer or --distill instead"))
	case made:
	case !f.spec.Static:
		return usageError{errors.New("--tokenizer and --distill are for --static; an encoder gets a vocabulary of --input")}
	case given("input") || given("column") || given("vocab") || given("lowercase"):
		return usageError{errors.New("--tokenizer and --distill have their vocabulary: leave out --input, --column, --vocab and --lowercase")}
	case f.tokenizer != "" && f.distilled != "":
		return usageError{errors.New("--tokenizer and --distill: a distilled model has the tokenizer of the other")}
	case f.distilled != "" && given("seed"):
		return usageError{errors.New("--seed and --distill: nothing is random")}
	}
	if err := f.apart("--input", dataset.LocalFiles(f.input...)...); err != nil {
		return err
	}
	return mayWrite(f.out, f.force, "")
}

// apart refuses a folder to write that has what is read in it: a model that is replaced goes with all that lies beside it. flag is what names what is read.
func (f *initFlags) apart(flag string, paths ...string) error {
	for _, path := range paths {
		if in, err := embedder.Within(path, f.out); err != nil {
			return err
		} else if in {
			return usageError{fmt.Errorf("--out %s would replace %s, which is read (%s): choose another folder", f.out, path, flag)}
		}
	}
	return nil
}

func (f *initFlags) run(cmd *cobra.Command) error {
	if f.distilled != "" {
		if !cmd.Flags().Changed("hidden") {
			f.spec.Hidden = 0
		}
		return f.distill(cmd)
	}
	if f.tokenizer != "" {
		dir, err := findModel(cmd, f.tokenizer)
		if err != nil {
			return fmt.Errorf("--tokenizer: %w", err)
		}
		if err := f.apart("--tokenizer", dir); err != nil {
			return err
		}
		tok, err := tokenizerOf(cmd, dir)
		if err != nil {
			return fmt.Errorf("--tokenizer: %w", err)
		}
		if err := newmodel.CreateWith(cmd.Context(), f.out, f.spec, tok); err != nil {
			return err
		}
		return created(cmd, f.out, nil)
	}
	t, err := dataset.OpenTable(cmd.Context(), f.input)
	if err != nil {
		return err
	}
	defer t.Close()
	t.KeepEmpty()
	f.spec.Pooling = hfmodel.PoolingMode(f.pooling)
	read := textCount{asked: f.spec.Vocab}
	if err := newmodel.Create(cmd.Context(), f.out, f.spec, textsOf(cmd.Context(), t, f.columns, &read)); err != nil {
		return err
	}
	return created(cmd, f.out, &read)
}

// distill makes static embeddings of what a model knows.
func (f *initFlags) distill(cmd *cobra.Command) (err error) {
	u := progressOf(cmd)
	dir, err := findModel(cmd, f.distilled)
	if err != nil {
		return fmt.Errorf("--distill: %w", err)
	}
	if err := f.apart("--distill", dir); err != nil {
		return err
	}
	d, err := gpustage.Open("auto")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	err = newmodel.Distill(cmd.Context(), f.out, f.spec, dir, f.distilled, d, func(done, total int) {
		u.progress(int64(done), int64(total), "", "token", "tokens")
	})
	if err != nil {
		return fmt.Errorf("--distill: %w", err)
	}
	return created(cmd, f.out, nil)
}

// created says what is there now, and what a vocabulary was made of; nil: none was made.
func created(cmd *cobra.Command, out string, read *textCount) error {
	f, err := hfmodel.Open(out)
	if err != nil {
		return err
	}
	if read != nil {
		if err := read.say(cmd, f); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	weights, err := safetensors.Open(filepath.Join(f.TransformerDir, "model.safetensors"))
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	parameters := 0
	for _, name := range weights.Names() {
		t, err := weights.Tensor(name)
		if err != nil {
			return errors.Join(err, weights.Close())
		}
		parameters += t.Len()
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "a new model of %.3g million parameters is in %s; train it with model.path: %s\n", float64(parameters)/1e6, out, out)
	return weights.Close()
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
	var shape struct {
		Type  string `json:"model_type"`
		Vocab int    `json:"vocab_size"`
	}
	if err := json.Unmarshal(spec.Config, &shape); err != nil {
		return fmt.Errorf("--config %s: %w", path, err)
	}
	if shape.Vocab > 0 && !cmd.Flags().Changed("vocab") {
		spec.Vocab = shape.Vocab
	}
	if shape.Type == "qwen2" {
		return fmt.Errorf("--config %s: a new model of type qwen2 would embed other tokens in Python: its vocabulary is WordPiece, and transformers 5 reads any tokenizer of that type as byte-level BPE; choose another type, such as qwen3 or llama", path)
	}
	return nil
}

// textCount is of how many texts a vocabulary is made.
type textCount struct {
	asked        int // tokens
	texts, empty int64
}

// say tells what has become of them in a new model's folder.
func (n textCount) say(cmd *cobra.Command, f *hfmodel.Folder) error {
	tok, err := embedder.LoadTokenizer(f)
	if err != nil {
		return err
	}
	w, fewer := cmd.ErrOrStderr(), ""
	if size := tok.VocabSize(); size < n.asked {
		fewer = fmt.Sprintf(", and not %d: the texts give no more", n.asked)
	}
	fmt.Fprintf(w, "a vocabulary of %d tokens%s, from %s\n", tok.VocabSize(), fewer, spelling.Count(n.texts, "text", "texts"))
	if n.empty > 0 {
		fmt.Fprintf(w, "%s empty\n", spelling.Count(n.empty, "text is", "texts are"))
	}
	return nil
}

// textsOf are the texts of a table's columns, which it counts.
func textsOf(ctx context.Context, t *dataset.Table, columns []string, n *textCount) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for _, col := range columns {
			for c, err := range t.Chunks(ctx, col, 8192) {
				if err != nil {
					yield("", err)
					return
				}
				n.texts, n.empty = n.texts+int64(len(c.Texts)), n.empty+int64(c.Empty)
				for _, text := range c.Texts {
					if !yield(text, nil) {
						return
					}
				}
			}
		}
	}
}
