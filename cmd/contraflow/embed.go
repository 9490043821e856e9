package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"contraflow/io/dataset"
	"contraflow/io/hfmodel"
	"contraflow/io/spelling"
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
	cmd.Flags().StringVar(&f.precision, "precision", "f32", "products of matrices are of f32, or of bf16")
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

// notes is where loading a model says what a user should know.
func notes(cmd *cobra.Command) func(message string) {
	return func(message string) { fmt.Fprintln(cmd.ErrOrStderr(), "note:", message) }
}

// resolve checks the flags and finds the model's folder.
func (f *modelFlags) resolve(cmd *cobra.Command) (dir string, bf16 bool, err error) {
	if err := atLeastOne(cmd, "max-length"); err != nil {
		return "", false, err
	}
	if f.precision != "f32" && f.precision != "bf16" {
		return "", false, usageError{fmt.Errorf("--precision is %q, want f32 or bf16", f.precision)}
	}
	dir, err = hfmodel.Resolve(cmd.Context(), f.path, hfmodel.Options{Progress: newUI(cmd.ErrOrStderr(), false).download})
	return dir, f.precision == "bf16", err
}

// partFlags choose what texts are compared by.
type partFlags struct {
	part    string
	weights []float64
	fused   bool // what a model with parts is compared by where nobody says: fused, or dense
}

func (p *partFlags) add(cmd *cobra.Command, byDefault string) {
	p.fused = byDefault == "fused"
	cmd.Flags().StringVar(&p.part, "part", "", "of a model of kind m3, what texts are compared by: dense, sparse, multi_vector or fused (default: "+byDefault+")")
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

func newEmbed() *cobra.Command {
	var f modelFlags
	var prompts promptFlags
	var in embedInput
	var parts bool
	var most int
	var outputColumn string
	var texts []string
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
			if len(texts) == 0 && (len(in.files) == 0 || in.output == "") {
				return missing(errors.New("give --input, --column and --output, or --text"))
			}
			if len(texts) > 0 && len(in.files)+len(in.output) > 0 {
				return usageError{errors.New("--text prints embeddings, --input and --output write them: give one or the other")}
			}
			for _, flag := range []string{"column", "output-column", "on-error"} {
				if len(texts) > 0 && cmd.Flags().Changed(flag) {
					return usageError{fmt.Errorf("--%s goes with --input; --text prints embeddings of texts", flag)}
				}
			}
			for _, text := range texts {
				if !utf8.ValidString(text) {
					return usageError{fmt.Errorf("--text %q is not valid UTF-8", text)}
				}
			}
			if err := in.bad.check(); err != nil {
				return err
			}
			npy := strings.EqualFold(filepath.Ext(in.output), ".npy")
			if npy && (parts || cmd.Flags().Changed("output-column")) {
				return usageError{fmt.Errorf("--output %s has the embeddings alone: --parts and --output-column are for parquet", in.output)}
			}
			if err := checkStreams(cmd, in.files, in.output, "output-column"); err != nil {
				return err
			}
			in.open = openRows(cmd, &in.bad)
			switch {
			case npy:
				in.bad.instead = "NaN"
				err = errors.Join(separate("--output", in.output, in.files...), noFolder("--output", in.output, "out.npy"))
				if err == nil {
					err = sameKind("--output", in.output, "array of NumPy", isArray)
				}
			case in.output == std:
				in.bad.instead = "null"
			case in.output != "":
				if err = in.bad.apart(in.output, in.files, "the embeddings"); err == nil {
					err = mayReplace(in.files, in.output)
				}
			}
			if err != nil {
				return err
			}
			if prompts.role() == embedder.Query {
				f.queries = f.maxLength
			}
			f.options = append(prompts.options(cmd), embedder.Progress(in.within), embedder.MaxActive(most))
			e, err := f.load(cmd)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, e.Close()) }()
			prompt, err := prompts.settle(cmd, &f, e)
			if err != nil {
				return err
			}
			if e.Sparse() && (npy || cmd.Flags().Changed("output-column")) {
				return usageError{fmt.Errorf("%s is a sparse encoder: its embeddings are the columns lexical_ids and lexical_weights of a parquet file, not --output-column or .npy", f.path)}
			}
			if err := atLeastOne(cmd, "max-active"); err != nil {
				return err
			}
			if most > 0 && !e.Sparse() {
				return usageError{fmt.Errorf("--max-active is for sparse encoders: %s is none", f.path)}
			}
			if parts && !e.HasParts() {
				return usageError{fmt.Errorf("--parts is for models of kind m3 and multi_vector: %s gives no vectors of tokens", f.path)}
			}
			if !parts && e.VectorsAlone() {
				if npy {
					return usageError{fmt.Errorf("%s gives vectors of tokens and no embeddings, as many a text as it has tokens: an .npy has one. Give --parts and --output %s.parquet, which gets them as token_vectors", f.path, strings.TrimSuffix(in.output, filepath.Ext(in.output)))}
				}
				return usageError{fmt.Errorf("%s gives vectors of tokens and no embeddings: --parts has them written, as token_vectors", f.path)}
			}
			if len(texts) > 0 || in.output == std {
				lines := embeddingLines(cmd.Context(), e, prompt)
				switch {
				case e.Sparse():
					lines = sparseLines(cmd.Context(), e, prompts.role(), prompt)
				case parts:
					lines = partLines(cmd.Context(), e, prompt)
				}
				if len(texts) > 0 {
					return printTexts(cmd, texts, lines)
				}
				return embedLines(cmd, e, prompt, &in, lines)
			}
			if e.Sparse() {
				return embedSparse(cmd, e, prompts.role(), prompt, &in)
			}
			if npy {
				return embedNPY(cmd, e, prompt, &in)
			}
			of := embeddings
			if parts {
				of = allParts
			}
			_, err = embedTable(cmd, e, prompt, &in, of(cmd.Context(), e, prompt, outputColumn))
			return err
		},
	}
	cmd.Flags().StringArrayVar(&in.files, "input", nil, filesFlag)
	cmd.Flags().StringVar(&in.column, "column", "text", fmt.Sprintf(columnFlag, "texts"))
	cmd.Flags().StringVar(&in.output, "output", "", "the `FILE` to write: .parquet, or .npy; or -")
	cmd.Flags().StringVar(&outputColumn, "output-column", "embedding", "the `NAME` of the column with the embeddings")
	cmd.Flags().StringArrayVar(&texts, "text", nil, "a `TEXT` to embed; its embedding is printed as JSON (may be repeated)")
	in.bad.add(cmd, "; of an .npy, whose rows are the input's, it makes them NaN")
	prompts.add(cmd)
	cmd.Flags().BoolVar(&parts, "parts", false, "of a model of kind m3: lexical_ids with lexical_weights, and token_vectors besides; of a multi_vector token_vectors alone")
	cmd.Flags().IntVar(&most, "max-active", 0, "of a sparse encoder: no more than so many features of a text, those with the largest weights (default: what the model's folder says, or all)")
	f.add(cmd, "texts")
	f.addCut(cmd)
	return cmd
}

// lineValues are what is printed of each text.
type lineValues struct {
	rows int // at a time
	of   func(texts []string) (values []any, cut int, err error)
}

// partLines are an object a text, with the names of the parquet file's columns.
func partLines(ctx context.Context, e *embedder.Embedder, prompt string) lineValues {
	return lineValues{partRows, func(texts []string) (values []any, cut int, err error) {
		p, cut, err := e.EmbedParts(ctx, prompt, texts, nil)
		if err != nil {
			return nil, 0, err
		}
		for i := range texts {
			vectors := [][]float32{}
			for flat := p.TokenVectors(i); len(flat) > 0; flat = flat[p.VectorSize:] {
				vectors = append(vectors, flat[:p.VectorSize])
			}
			if e.VectorsAlone() {
				values = append(values, struct {
					Vectors [][]float32 `json:"token_vectors"`
				}{vectors})
				continue
			}
			ids, weights := p.Lexical(i)
			values = append(values, struct {
				Embedding []float32   `json:"embedding"`
				IDs       []int32     `json:"lexical_ids"`
				Weights   []float32   `json:"lexical_weights"`
				Vectors   [][]float32 `json:"token_vectors"`
			}{p.Dense[i*p.Size : (i+1)*p.Size], ids, weights, vectors})
		}
		return values, cut, nil
	}}
}

// embeddingLines are a list of numbers a text.
func embeddingLines(ctx context.Context, e *embedder.Embedder, prompt string) lineValues {
	return lineValues{embedRows, func(texts []string) (values []any, cut int, err error) {
		x := make([]float32, len(texts)*e.Size())
		if cut, err = e.EmbedInto(ctx, prompt, texts, x); err != nil {
			return nil, 0, err
		}
		for v := range slices.Chunk(x, e.Size()) {
			values = append(values, v)
		}
		return values, cut, nil
	}}
}

// printTexts prints what there is of texts that flags give.
func printTexts(cmd *cobra.Command, texts []string, lines lineValues) error {
	values, _, err := lines.of(texts)
	if err != nil {
		return ofTexts(texts, err)
	}
	return newLines(cmd).write(values, nil)
}

// embedLines prints what there is of a table's texts.
func embedLines(cmd *cobra.Command, e *embedder.Embedder, prompt string, in *embedInput, lines lineValues) error {
	ctx := cmd.Context()
	t, err := in.open(ctx, in.files)
	if err != nil {
		return err
	}
	defer t.Close()
	p, w := in.begin(cmd, t), newLines(cmd)
	err = in.each(ctx, t, lines.rows, func(c *dataset.Chunk, out []int, ids []int64) error {
		read := c.Rows
		var values []any
		if c.Drop(out); c.Rows > 0 {
			var n int
			if values, n, err = lines.of(c.Texts); err != nil {
				return inRows(t, ids, err)
			}
			p.cut += n
		}
		p.add(c, read)
		return w.write(values, out)
	})
	if err != nil {
		return err
	}
	p.end(e, prompt, in)
	return nil
}

// embedRows is how many rows are embedded at a time: sorted by length, they fill passes well.
const embedRows = 8192

// partRows is that of parts: a text has a vector for each of its tokens.
const partRows = embedRows / 16

// embedded is what is written of each text, besides the input's columns.
type embedded struct {
	columns []dataset.OutColumn
	rows    int                                                           // at a time
	of      func(texts []string) (values []any, truncated int, err error) // a value for each column
}

// embeddings are a vector a text.
func embeddings(ctx context.Context, e *embedder.Embedder, prompt, outputColumn string) embedded {
	vecs := make([]float32, embedRows*e.Size())
	return embedded{[]dataset.OutColumn{{Name: outputColumn, Type: dataset.VectorOut}}, embedRows, func(texts []string) ([]any, int, error) {
		out := vecs[:len(texts)*e.Size()]
		n, err := e.EmbedInto(ctx, prompt, texts, out)
		return []any{dataset.Vectors{Dim: e.Size(), Data: out}}, n, err
	}}
}

// lexical are the columns of lists of tokens' ids and their weights.
var lexical = []dataset.OutColumn{{Name: "lexical_ids", Type: dataset.IDsOut}, {Name: "lexical_weights", Type: dataset.NumbersOut}}

// allParts are those of --parts.
func allParts(ctx context.Context, e *embedder.Embedder, prompt, outputColumn string) embedded {
	columns := []dataset.OutColumn{{Name: "token_vectors", Type: dataset.VectorListOut}}
	if !e.VectorsAlone() {
		columns = slices.Concat([]dataset.OutColumn{{Name: outputColumn, Type: dataset.VectorOut}}, lexical, columns)
	}
	return embedded{columns, partRows, func(texts []string) ([]any, int, error) { return partValues(ctx, e, prompt, texts) }}
}

// embedInput is what embed reads, and where to it writes.
type embedInput struct {
	files          []string
	column, output string
	bad            badRows
	open           func(ctx context.Context, files []string) (*dataset.Table, error)
	progress       *embedding // nil: of texts that flags give, or not begun
}

// begin counts the texts of a table.
func (in *embedInput) begin(cmd *cobra.Command, t *dataset.Table) *embedding {
	in.progress = &embedding{ui: newUI(cmd.ErrOrStderr(), false), of: t.Rows()}
	return in.progress
}

// within says how far a chunk is, whose end [embedding.add] tells.
func (in *embedInput) within(done, total int) {
	if p := in.progress; p != nil && done < total && p.due(false) {
		p.printf("%d of %s\n", p.read+done, spelling.Count(p.of, "text", "texts"))
	}
}

// to is what people call the output.
func (in *embedInput) to() string { return outputName(in.output) }

// each calls do with the chunks of a table, of whose rows those with the ids can be used, and those in out can't.
func (in *embedInput) each(ctx context.Context, t *dataset.Table, rows int, do func(c *dataset.Chunk, out []int, ids []int64) error) error {
	t.KeepEmpty()
	if err := in.bad.checkTexts(ctx, t, in.column); err != nil {
		return err
	}
	for c, err := range t.Chunks(ctx, in.column, rows) {
		if err != nil {
			return err
		}
		out, ids, err := in.bad.in(c)
		if err != nil {
			return err
		}
		if err := do(c, out, ids); err != nil {
			return err
		}
	}
	return in.bad.all(t)
}

func embedTable(cmd *cobra.Command, e *embedder.Embedder, prompt string, in *embedInput, x embedded) (*embedding, error) {
	ctx := cmd.Context()
	t, w, end, err := besides(ctx, in.open, in.files, in.output, x.columns...)
	if err != nil {
		return nil, err
	}
	defer end()
	progress := in.begin(cmd, t)
	err = in.each(ctx, t, x.rows, func(c *dataset.Chunk, out []int, ids []int64) error {
		read := c.Rows
		if c.Drop(out); c.Rows > 0 {
			values, n, err := x.of(c.Texts)
			if err != nil {
				return inRows(t, ids, err)
			}
			if err := w.Write(c, values...); err != nil {
				return err
			}
			progress.cut += n
		}
		progress.add(c, read)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	progress.end(e, prompt, in)
	return progress, nil
}

// embedNPY writes the embeddings alone.
func embedNPY(cmd *cobra.Command, e *embedder.Embedder, prompt string, in *embedInput) error {
	ctx := cmd.Context()
	t, err := in.open(ctx, in.files)
	if err != nil {
		return err
	}
	defer t.Close()
	w, err := dataset.NewNPYWriter(in.output, t.Rows(), e.Size())
	if err != nil {
		return err
	}
	defer w.Abort()
	p := in.begin(cmd, t)
	vecs := make([]float32, embedRows*e.Size())
	err = in.each(ctx, t, embedRows, func(c *dataset.Chunk, out []int, ids []int64) error {
		rows := vecs[:c.Rows*e.Size()]
		if c.Drop(out); c.Rows > 0 {
			n, err := e.EmbedInto(ctx, prompt, c.Texts, rows[:c.Rows*e.Size()])
			if err != nil {
				return inRows(t, ids, err)
			}
			p.cut += n
		}
		withNaN(rows, out, e.Size())
		if err := w.Write(rows); err != nil {
			return err
		}
		p.add(c, len(rows)/e.Size())
		return nil
	})
	if err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	p.end(e, prompt, in)
	return nil
}

// withNaN moves rows, which lie one after the other, to their places between rows of NaN, those in out (ascending).
func withNaN(rows []float32, out []int, size int) {
	nan := float32(math.NaN())
	for i := len(rows)/size - 1; len(out) > 0; i-- {
		to := rows[i*size : (i+1)*size]
		if last := len(out) - 1; out[last] == i {
			for k := range to {
				to[k] = nan
			}
			out = out[:last]
		} else {
			copy(to, rows[(i-len(out))*size:])
		}
	}
}

// embedding counts texts, and says so.
type embedding struct {
	*ui
	read, done, cut, empty int
	of                     int64
}

// add counts a chunk, of which so many rows were read.
func (p *embedding) add(c *dataset.Chunk, read int) {
	p.read, p.done, p.empty = p.read+read, p.done+c.Rows, p.empty+c.Empty
	if p.due(int64(p.read) == p.of) {
		p.printf("%d of %s\n", p.read, spelling.Count(p.of, "text", "texts"))
	}
}

func (p *embedding) end(e *embedder.Embedder, prompt string, in *embedInput) {
	length := e.MaxLength()
	if prompt == "query" && (e.VectorsAlone() || e.WeighsQueries()) { // of other models' texts nobody says which are queries
		length = e.QueryLength()
	}
	if e.VectorsAlone() {
		p.printf("vectors of the tokens of %s, of %s each, written to %s\n", spelling.Count(p.done, "text", "texts"), spelling.Count(e.Size(), "dimension", "dimensions"), in.to())
	} else {
		p.printf("%s of %s written to %s\n", spelling.Count(p.done, "embedding", "embeddings"), spelling.Count(e.Size(), "dimension", "dimensions"), in.to())
	}
	if p.cut > 0 {
		p.printf("%s longer than %s and cut\n", spelling.Count(p.cut, "text was", "texts were"), spelling.Count(length, "token", "tokens"))
	}
	if p.empty > 0 {
		p.printf("%s empty, and embedded as such\n", spelling.Count(p.empty, "text is", "texts are"))
	}
	in.bad.say(p.ui)
}

// ofTexts is an error of texts that flags give.
func ofTexts(texts []string, err error) error {
	var lost *embedder.NotFiniteError
	if errors.As(err, &lost) {
		return fmt.Errorf("--text %.60q: %w", texts[lost.Text], embedder.ErrNotFinite)
	}
	return err
}

// inRows is an error of the texts of rows.
func inRows(t *dataset.Table, ids []int64, err error) error {
	var lost *embedder.NotFiniteError
	if errors.As(err, &lost) {
		return fmt.Errorf("%v: %w", t.Locate(ids[lost.Text]), embedder.ErrNotFinite)
	}
	return fmt.Errorf("rows %d to %d: %w", ids[0], ids[len(ids)-1], err)
}

// partValues are the values of --parts' columns.
func partValues(ctx context.Context, e *embedder.Embedder, prompt string, texts []string) (values []any, cut int, err error) {
	p, cut, err := e.EmbedParts(ctx, prompt, texts, nil)
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
}
