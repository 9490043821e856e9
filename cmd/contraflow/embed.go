package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"contraflow/io/dataset"
	"contraflow/io/spelling"
	"contraflow/stages/embedder"
)

// embedFlags are embed's.
type embedFlags struct {
	model        modelFlags
	prompts      promptFlags
	in           tableFlags
	column       string
	outputColumn string
	texts        []string
	parts        bool
	most         int
}

func newEmbed() *cobra.Command {
	f := embedFlags{in: tableFlags{arrays: true}}
	cmd := &cobra.Command{
		Use:   "embed --model DIR (--input FILES --column NAME --output FILE | --text TEXT)",
		Short: "Embed a column of texts into a parquet or NumPy file",
		Long: `embed writes a parquet file with the input's columns and an embedding column beside them, or prints the embedding of texts given on the command
line.
` + inPlace + `

To an --output that ends with .npy it writes the embeddings alone, row after row and files in the order given (those of a glob in the order of their
paths), as numpy.load reads them: float32, [rows, dimensions].

embed does not know whether its texts are queries or documents. As sentence-transformers' encode does, it puts the model's default prompt before them,
which most models do not have; a multi_vector's texts, and those of a sparse encoder whose queries are weights of tokens, are read as documents without
it. --prompt query and --prompt document are what eval, mine and
distill put before texts of themselves. They are what encode_query and encode_document put, but for --prompt document of a model with no prompt
"document": it is the one called passage, or corpus, before which sentence-transformers 6.2 finds an empty "document" of its own.

Empty texts are embedded as such. A text that is null, no string or not UTF-8, or a line that is no JSON, ends embed before anything is embedded;
--on-error skip leaves the row out of a parquet file, and in an .npy file, whose rows are the input's, makes it NaN.

` + streamHelp("the embedding, as of --text,") + `

Of a sparse encoder it writes lists, lexical_ids and lexical_weights: the features of each text that are not 0, which are ids of tokens, and their
weights.`,
		Example: `  contraflow embed --model q/model --input 'docs/*.parquet' --column text --prompt document --output docs.emb.parquet
  contraflow embed --model q/model --input docs.csv --prompt document --output docs.npy
  contraflow embed --model q/model --text "reads a file"
  jq -c '{text: .body}' docs.json | contraflow embed --model q/model --input - --output - > vectors.jsonl`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if err := f.check(cmd); err != nil {
				return err
			}
			e, prompt, err := f.load(cmd)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, e.Close()) }()
			return f.run(cmd, e, prompt)
		},
	}
	cmd.Flags().StringArrayVar(&f.in.files, "input", nil, filesFlag)
	cmd.Flags().StringVar(&f.column, "column", "text", fmt.Sprintf(columnFlag, "texts"))
	cmd.Flags().StringVar(&f.in.output, "output", "", "the `FILE` to write: .parquet, or .npy; or -")
	cmd.Flags().StringVar(&f.outputColumn, "output-column", "embedding", "the `NAME` of the column with the embeddings")
	cmd.Flags().StringArrayVar(&f.texts, "text", nil, "a `TEXT` to embed; its embedding is printed as JSON (may be repeated)")
	addQuiet(cmd, "results, notes and errors")
	f.in.bad.add(cmd, "; of an .npy, whose rows are the input's, it makes them NaN")
	f.prompts.add(cmd)
	cmd.Flags().BoolVar(&f.parts, "parts", false, "of a model of kind m3: lexical_ids with lexical_weights, and token_vectors besides; of a multi_vector token_vectors alone")
	cmd.Flags().IntVar(&f.most, "max-active", 0, "of a sparse encoder: no more than so many features of a text, those with the largest weights (default: what the model's folder says, or all)")
	f.model.add(cmd, "texts")
	f.model.addCut(cmd)
	return cmd
}

// check finds flags that make no sense together, and files that can't be written, before a model is loaded.
func (f *embedFlags) check(cmd *cobra.Command) error {
	switch in := &f.in; {
	case len(f.texts) == 0 && (len(in.files) == 0 || in.output == ""):
		return missing(errors.New("give --input, --column and --output, or --text"))
	case len(f.texts) > 0 && len(in.files)+len(in.output) > 0:
		return usageError{errors.New("--text prints embeddings, --input and --output write them: give one or the other")}
	case in.npy() && (f.parts || cmd.Flags().Changed("output-column")):
		return usageError{fmt.Errorf("--output %s has the embeddings alone: --parts and --output-column are for parquet", in.output)}
	case len(f.texts) == 0:
		return in.check(cmd, "the embeddings", "output-column")
	}
	for _, flag := range []string{"column", "output-column", "on-error"} {
		if cmd.Flags().Changed(flag) {
			return usageError{fmt.Errorf("--%s goes with --input; --text prints embeddings of texts", flag)}
		}
	}
	return validTexts("text", f.texts...)
}

// load loads the model, and finds the name of the prompt that it puts before texts.
func (f *embedFlags) load(cmd *cobra.Command) (e *embedder.Embedder, prompt string, err error) {
	if err := atLeastOne(cmd, "max-active"); err != nil {
		return nil, "", err
	}
	if f.prompts.role() == embedder.Query {
		f.model.queries = f.model.maxLength
	}
	f.model.options = append(f.prompts.options(cmd), embedder.Progress(f.in.within), embedder.MaxActive(f.most))
	if e, err = f.model.load(cmd); err != nil {
		return nil, "", err
	}
	if prompt, err = f.prompts.settle(cmd, &f.model, e); err == nil {
		err = f.fits(cmd, e)
	}
	if err != nil {
		return nil, "", errors.Join(err, e.Close())
	}
	return e, prompt, nil
}

// fits refuses flags that the model has nothing for.
func (f *embedFlags) fits(cmd *cobra.Command, e *embedder.Embedder) error {
	model, npy := f.model.path, f.in.npy()
	switch {
	case e.Sparse() && (npy || cmd.Flags().Changed("output-column")):
		return usageError{fmt.Errorf("%s is a sparse encoder: its embeddings are the columns lexical_ids and lexical_weights of a parquet file, not --output-column or .npy", model)}
	case f.most > 0 && !e.Sparse():
		return usageError{fmt.Errorf("--max-active is for sparse encoders: %s is none", model)}
	case f.parts && !e.HasParts():
		return usageError{fmt.Errorf("--parts is for models of kind m3 and multi_vector: %s gives no vectors of tokens", model)}
	case f.parts || !e.VectorsAlone():
		return nil
	case npy:
		return usageError{fmt.Errorf("%s gives vectors of tokens and no embeddings, as many a text as it has tokens: an .npy has one. Give --parts and --output %s.parquet, which gets them as token_vectors", model, strings.TrimSuffix(f.in.output, filepath.Ext(f.in.output)))}
	}
	return usageError{fmt.Errorf("%s gives vectors of tokens and no embeddings: --parts has them written, as token_vectors", model)}
}

func (f *embedFlags) run(cmd *cobra.Command, e *embedder.Embedder, prompt string) error {
	active := 0
	x := f.embeddings(cmd.Context(), e, prompt)
	switch {
	case e.Sparse():
		x = f.features(cmd.Context(), e, prompt, &active)
	case f.parts:
		x = f.allParts(cmd.Context(), e, prompt)
	}
	if len(f.texts) > 0 {
		values, cut, err := x.of([][]string{f.texts})
		if err != nil {
			return ofTexts(f.texts, err)
		}
		sayTextsCut(progressOf(cmd), e, prompt, cut)
		return newLines(cmd, x.columns).lines(len(f.texts), values, nil)
	}
	n, err := f.in.run(cmd, []string{f.column}, x)
	if err != nil {
		return err
	}
	dimensions := spelling.Count(e.Size(), "dimension", "dimensions")
	if e.VectorsAlone() {
		n.printf("vectors of the tokens of %s, of %s each, written to %s\n", spelling.Count(n.done, "text", "texts"), dimensions, f.in.to())
	} else {
		n.printf("%s of %s written to %s\n", spelling.Count(n.done, "embedding", "embeddings"), dimensions, f.in.to())
	}
	sayTextsCut(n.ui, e, prompt, n.cut)
	if n.empty > 0 {
		n.printf("%s empty, and embedded as such\n", spelling.Count(n.empty, "text is", "texts are"))
	}
	f.in.bad.say(n.ui)
	if e.Sparse() && n.done > 0 {
		n.printf("%.1f active features a text\n", float64(active)/float64(n.done))
	}
	return nil
}

// sayTextsCut tells of texts that were cut.
func sayTextsCut(u *ui, e *embedder.Embedder, prompt string, cut int) {
	if cut == 0 {
		return
	}
	length := e.MaxLength()
	if prompt == "query" && (e.VectorsAlone() || e.WeighsQueries()) { // of other models' texts nobody says which are queries
		length = e.QueryLength()
	}
	u.loud().printf("%s longer than %s and cut\n", spelling.Count(cut, "text was", "texts were"), spelling.Count(length, "token", "tokens"))
}

// embedRows is how many rows are embedded at a time: sorted by length, they fill passes well.
const embedRows = 8192

// partRows is that of parts: a text has a vector for each of its tokens.
const partRows = embedRows / 16

// sparseRows is how many numbers of sparse embeddings are in memory at a time before lists are made of them: 128 MiB.
const sparseRows = 32 << 20

// embeddings are a vector a text.
func (f *embedFlags) embeddings(ctx context.Context, e *embedder.Embedder, prompt string) made {
	var vecs []float32
	return made{[]dataset.OutColumn{{Name: f.outputColumn, Type: dataset.VectorOut}}, e.Size(), embedRows, func(texts [][]string) ([]any, int, error) {
		vecs = ofLength(vecs, len(texts[0])*e.Size())
		cut, err := e.EmbedInto(ctx, prompt, texts[0], vecs)
		return []any{dataset.Vectors{Dim: e.Size(), Data: vecs}}, cut, err
	}, nil}
}

// lexical are the columns of lists of tokens' ids and their weights.
var lexical = []dataset.OutColumn{{Name: "lexical_ids", Type: dataset.IDsOut}, {Name: "lexical_weights", Type: dataset.NumbersOut}}

// features are the active ones of sparse embeddings, which active counts.
func (f *embedFlags) features(ctx context.Context, e *embedder.Embedder, prompt string, active *int) made {
	var vecs []float32
	return made{lexical, 0, min(embedRows, max(1, sparseRows/e.Size())), func(texts [][]string) ([]any, int, error) {
		vecs = ofLength(vecs, len(texts[0])*e.Size())
		cut, err := e.EmbedAs(ctx, f.prompts.role(), prompt, texts[0], vecs)
		if err != nil {
			return nil, 0, err
		}
		var ids [][]int32
		var weights [][]float32
		for vec := range slices.Chunk(vecs, e.Size()) {
			i, w := embedder.Active(vec)
			ids, weights = append(ids, i), append(weights, w)
			*active += len(i)
		}
		return []any{ids, weights}, cut, nil
	}, nil}
}

// ofLength is a list that long, in the memory of another where that will do.
func ofLength(list []float32, n int) []float32 { return slices.Grow(list[:0], n)[:n] }

// allParts are those of --parts.
func (f *embedFlags) allParts(ctx context.Context, e *embedder.Embedder, prompt string) made {
	columns := []dataset.OutColumn{{Name: "token_vectors", Type: dataset.VectorListOut}}
	if !e.VectorsAlone() {
		columns = slices.Concat([]dataset.OutColumn{{Name: f.outputColumn, Type: dataset.VectorOut}}, lexical, columns)
	}
	return made{columns, 0, partRows, func(texts [][]string) ([]any, int, error) {
		p, cut, err := e.EmbedParts(ctx, prompt, texts[0], nil)
		if err != nil {
			return nil, 0, err
		}
		vectors := dataset.VectorLists{Dim: p.VectorSize, Cu: p.Cu, Data: p.Vectors}
		if e.VectorsAlone() {
			return []any{vectors}, cut, nil
		}
		ids, weights := make([][]int32, p.Len()), make([][]float32, p.Len())
		for i := range ids {
			ids[i], weights[i] = p.Lexical(i)
		}
		return []any{dataset.Vectors{Dim: p.Size, Data: p.Dense}, ids, weights, vectors}, cut, nil
	}, nil}
}

// validTexts refuses what a flag gives and is no text.
func validTexts(flag string, texts ...string) error {
	for _, text := range texts {
		if !utf8.ValidString(text) {
			return usageError{fmt.Errorf("--%s %q is not valid UTF-8", flag, text)}
		}
	}
	return nil
}

// ofTexts is an error of texts that flags give.
func ofTexts(texts []string, err error) error {
	if text, what, ok := ofOne(err); ok {
		return fmt.Errorf("--text %.60q: %w", texts[text], what)
	}
	return err
}
