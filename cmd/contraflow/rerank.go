package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"contraflow/io/dataset"
	"contraflow/io/spelling"
	"contraflow/stages/embedder"
	"contraflow/stages/evaluate"
	"contraflow/stages/reranker"
	"contraflow/stages/scoring"
	"contraflow/tokenize"
)

// rerankFlags are rerank's.
type rerankFlags struct {
	model                  modelFlags
	template, instruction  string
	input                  []string
	query, document        string
	output, outputColumn   string
	sigmoid, asJSON        bool
	bad                    badRows
	queries, corpus, qrels string
	first                  string
	scored                 scoredFlags
	nano                   nanoFlags
	top, cutoff            int
}

// What rerank, and distill and mine with a reranker, have alike.
var (
	templateFlag    = "what surrounds a pair, instead of what the model says: " + strings.Join(tokenize.TemplateNames(), " or ")
	instructionFlag = "the instruction in the template, a `TEXT`"
	sigmoidFlag     = "scores between 0 and 1, as CrossEncoder gives them"
)

func newRerank() *cobra.Command {
	var f rerankFlags
	cmd := &cobra.Command{
		Use:   "rerank --model DIR (--input FILES --output FILE | --queries FILE --corpus FILE --qrels FILE | --nanobeir[=TASKS] | --sts FILE | --pair-classification FILE | --triplets FILE | --candidates FILE)",
		Short: "Score pairs of texts with a reranker, or measure it behind a first stage, on pairs or on candidates",
		Long: `rerank writes a parquet file with the input's columns and a score column beside them: the model's score of each row's query and
document.
` + inPlace + `
Models are cross-encoders, as transformers and sentence-transformers save them, and decoders that answer yes or no.

` + streamHelp("the score") + `

Empty texts are scored as such. A text that is null, no string or not UTF-8, or a line that is no JSON, ends rerank before anything is scored; --on-error
skip leaves the row out.

With queries, corpus and judgements (as eval has them) it reranks the first documents of BM25, or those of BM25 and the embedding model
--first, and prints a table: BM25, the embedding model, the reranker, and the sum of its scores and BM25's, standardized. MAP is
of the documents that are reranked (--top).

With --nanobeir it reranks what the dataset has of BM25's ranking (--top), and relevant documents that are not among it, or with --found not, as
sentence-transformers' CrossEncoderNanoBEIREvaluator does; --metric names the measure that comes first.

With --sts, --pair-classification, --triplets and --candidates it measures the model's scores as eval does an embedding model's cosines.`,
		Example: `  contraflow rerank --model r/model --input pairs.parquet --output scores.parquet
  jq -c '{query: .q, document: .a}' pairs.json | contraflow rerank --model r/model --input - --output -
  contraflow rerank --model r/model --first q/model --queries q/queries.parquet --corpus q/corpus.parquet --qrels q/qrels.parquet
  contraflow rerank --model r/model --nanobeir=msmarco,nfcorpus,nq
  contraflow rerank --model r/model --pair-classification pairs.parquet --columns question,answer,correct
  contraflow rerank --model r/model --candidates samples.jsonl --documents documents --columns query,positive`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			kind, file, err := f.scored.given(f.queries != "", cmd.Flags().Changed("nanobeir"))
			if err != nil {
				return err
			}
			if err := f.nano.check(cmd, true, append([]string{"input", "output", "queries", "corpus", "qrels", "first"}, scoredFlagsOf(scoring.Kinds...)...)...); err != nil {
				return err
			}
			scores, measures := len(f.input) > 0 || f.output != "", f.queries != "" || f.nano.tasks != nil || kind != nil
			if scores == measures || scores && (len(f.input) == 0 || f.output == "") {
				return missing(errors.New("give --input and --output, --queries, --corpus and --qrels, --nanobeir, or one of " + scoredFlagNames("and")))
			}
			of, goes := []string{"first", "top", "corpus", "qrels", "json"}, "goes with --queries, which measures a reranker; --input is scored"
			if measures {
				of, goes = []string{"sigmoid", "query-column", "document-column", "output-column", "on-error"}, "goes with --input, whose rows are scored; --queries measures a reranker"
			}
			if kind != nil {
				of, goes = append(of, "first", "top", "corpus", "qrels"), "does not go with "+flagOf(kind)
			}
			for _, flag := range of {
				if cmd.Flags().Changed(flag) {
					return usageError{fmt.Errorf("--%s %s", flag, goes)}
				}
			}
			if err := errors.Join(atLeastOne(cmd, "top", "cutoff-layer"), f.bad.check()); err != nil {
				return err
			}
			if err := checkStreams(cmd, f.input, f.output, "output-column"); err != nil {
				return err
			}
			if scores && f.output == std {
				f.bad.instead = "null"
			} else if scores {
				if err := f.bad.apart(f.output, f.input, "the scores"); err != nil {
					return err
				}
				if err := mayReplace(f.input, f.output); err != nil {
					return err
				}
			}
			r, err := f.load(cmd)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, r.Close()) }()
			if scores {
				return f.table(cmd, r)
			}
			if kind != nil {
				return measureScored(cmd, kind, file, f.asJSON, func(a, b []string) ([]float64, error) {
					scores, _, err := r.ScorePairs(cmd.Context(), a, b)
					return widened(scores), err
				})
			}
			if f.nano.tasks != nil {
				return f.nano.rerank(cmd, r, &f)
			}
			return f.measure(cmd, r)
		},
	}
	fl := cmd.Flags()
	fl.StringArrayVar(&f.input, "input", nil, filesFlag)
	fl.StringVar(&f.query, "query-column", "query", fmt.Sprintf(columnFlag, "queries")+"; --query as well")
	fl.StringVar(&f.document, "document-column", "document", fmt.Sprintf(columnFlag, "documents")+"; --document as well")
	fl.StringVar(&f.output, "output", "", "the parquet `FILE` to write; or -")
	fl.StringVar(&f.outputColumn, "output-column", "score", "the `NAME` of the column with the scores")
	f.bad.add(cmd, "")
	fl.BoolVar(&f.sigmoid, "sigmoid", false, sigmoidFlag)
	fl.StringVar(&f.template, "template", "", templateFlag)
	fl.StringVar(&f.instruction, "instruction", "", instructionFlag)
	fl.IntVar(&f.cutoff, "cutoff-layer", 0, "of a layer-wise reranker: score by this layer, counted from 1, and compute none above it (default: the last)")
	fl.StringVar(&f.queries, "queries", "", "the `FILE` with the queries, or a folder in BEIR's layout")
	fl.StringVar(&f.corpus, "corpus", "", "the `FILE` with the documents")
	fl.StringVar(&f.qrels, "qrels", "", "the `FILE` with the judgements")
	f.nano.add(fl, "all but ArguAna and Touche2020")
	f.scored.add(fl)
	fl.StringVar(&f.first, "first", "", "the folder `DIR` or hub id of an embedding model whose first documents are reranked as well as BM25's")
	fl.IntVar(&f.top, "top", 100, "how many documents of each query are reranked")
	fl.BoolVar(&f.asJSON, "json", false, "print one JSON object")
	f.model.add(cmd, "pairs")
	fl.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName { // as mine and distill call them
		if name == "query" || name == "document" {
			name += "-column"
		}
		return pflag.NormalizedName(name)
	})
	return cmd
}

func (f *rerankFlags) load(cmd *cobra.Command) (*reranker.Reranker, error) {
	dir, bf16, err := f.model.resolve(cmd)
	if err != nil {
		return nil, err
	}
	u := newUI(cmd.ErrOrStderr(), false)
	told := reranker.Progress(func(done, total int) {
		if u.due(done == total) {
			u.printf("%d of %s reranked\n", done, spelling.Count(total, "pair", "pairs"))
		}
	})
	opts := []reranker.Option{told, reranker.Warn(notes(cmd)), reranker.MaxLength(f.model.maxLength), reranker.Template(f.template), reranker.Instruction(f.instruction), reranker.CutoffLayer(f.cutoff)}
	if bf16 {
		opts = append(opts, reranker.BF16())
	}
	return reranker.Load(dir, opts...)
}

// scoreWriter writes scores, of a chunk's rows that are left and beside them; out are the places of those that are not.
type scoreWriter struct {
	rows  func(c *dataset.Chunk, scores []float32, out []int) error
	close func() error
}

func widened(scores []float32) []float64 {
	wide := make([]float64, len(scores))
	for i, s := range scores {
		wide[i] = float64(s)
	}
	return wide
}

// open opens the table and what its scores are written to.
func (f *rerankFlags) open(cmd *cobra.Command) (t *dataset.Table, w scoreWriter, end func(), err error) {
	ctx, open := cmd.Context(), openRows(cmd, &f.bad)
	if f.output == std {
		if t, err = open(ctx, f.input); err != nil {
			return nil, w, nil, err
		}
		lines := newLines(cmd)
		w.rows = func(_ *dataset.Chunk, scores []float32, out []int) error {
			var values []any
			for _, s := range scores {
				values = append(values, s)
			}
			return lines.write(values, out)
		}
		w.close = func() error { return nil }
		return t, w, func() { t.Close() }, nil
	}
	t, table, end, err := besides(ctx, open, f.input, f.output, dataset.OutColumn{Name: f.outputColumn, Type: dataset.FloatOut})
	if err != nil {
		return nil, w, nil, err
	}
	w.rows = func(c *dataset.Chunk, scores []float32, _ []int) error {
		if c.Rows == 0 {
			return nil
		}
		return table.Write(c, widened(scores))
	}
	w.close = table.Close
	return t, w, end, nil
}

// table scores the rows of a table.
func (f *rerankFlags) table(cmd *cobra.Command, r *reranker.Reranker) error {
	ctx := cmd.Context()
	t, write, end, err := f.open(cmd)
	if err != nil {
		return err
	}
	defer end()
	t.KeepEmpty()
	if err := f.bad.checkTexts(ctx, t, f.query, f.document); err != nil {
		return err
	}
	u := newUI(cmd.ErrOrStderr(), false)
	read, done, cut, empty := 0, 0, 0, 0
	for c, err := range t.Chunks(ctx, f.query, embedRows) {
		if err != nil {
			return err
		}
		documents, err := t.Texts(c, f.document)
		if err != nil {
			return err
		}
		out, ids, err := f.bad.in(c)
		if err != nil {
			return err
		}
		read += c.Rows
		for i, row := range out {
			documents = slices.Delete(documents, row-i, row-i+1)
		}
		var scores []float32
		if c.Drop(out); c.Rows > 0 {
			var n int
			scores, n, err = r.ScorePairs(ctx, c.Texts, documents)
			if err != nil {
				return inRows(t, ids, err)
			}
			if f.sigmoid {
				reranker.Sigmoid(scores)
			}
			for i, s := range scores {
				if !finite(s) {
					return fmt.Errorf("%v: the score is %v: the model's weights, or what it computes of them in --precision %s, are not finite", t.Locate(ids[i]), s, f.model.precision)
				}
				if dataset.Blank(c.Texts[i]) || dataset.Blank(documents[i]) {
					empty++
				}
			}
			done, cut = done+c.Rows, cut+n
		}
		if err := write.rows(c, scores, out); err != nil {
			return err
		}
		if u.due(int64(read) == t.Rows()) {
			u.printf("%d of %s\n", read, spelling.Count(t.Rows(), "pair", "pairs"))
		}
	}
	if err := f.bad.all(t); err != nil {
		return err
	}
	if err := write.close(); err != nil {
		return err
	}
	u.printf("%s written to %s\n", spelling.Count(done, "score", "scores"), outputName(f.output))
	sayCut(u, cut, r)
	if empty > 0 {
		u.printf("%s with an empty query or document, scored as such\n", spelling.Count(empty, "pair", "pairs"))
	}
	f.bad.say(u)
	return nil
}

func sayCut(u *ui, cut int, r *reranker.Reranker) {
	if cut > 0 {
		u.printf("%s longer than %s and cut\n", spelling.Count(cut, "pair was", "pairs were"), spelling.Count(r.MaxLength(), "token", "tokens"))
	}
}

// measure reranks the documents of a first stage.
func (f *rerankFlags) measure(cmd *cobra.Command, r *reranker.Reranker) error {
	ctx := cmd.Context()
	data, err := loadRetrieval(cmd, f.queries, f.corpus, f.qrels)
	if err != nil {
		return err
	}
	measures := []evaluate.Measure{evaluate.NDCG(10), evaluate.MRR(10), evaluate.MAP(0)}
	var rows []evaluate.Row
	var task *embedder.Task
	add := func(name string, run evaluate.Run) error {
		res, err := task.Measure(run, measures...)
		rows = append(rows, evaluate.Row{Name: name, Result: res})
		return err
	}
	var first evaluate.Run
	if f.first != "" {
		e, err := (&modelFlags{path: f.first, precision: "f32"}).load(cmd)
		if err != nil {
			return err
		}
		defer e.Close()
		query, document := e.RolePrompts()
		if task, err = e.NewTask(ctx, data, query, document); err != nil {
			return err
		}
		task.Progress = newUI(cmd.ErrOrStderr(), false).embedded("")
		if first, err = e.Rank(ctx, task, f.top); err != nil {
			return err
		}
	} else if task, err = embedder.NewTask(ctx, data, embedder.Text{}); err != nil {
		return err
	}
	bm25, err := task.RankBM25(ctx, f.top)
	if err != nil {
		return err
	}
	if err := add("BM25", bm25); err != nil {
		return err
	}
	candidates := bm25
	if first != nil {
		candidates = task.Fuse(f.top, bm25, first)
		if err := add(f.first, first); err != nil {
			return err
		}
	}
	reranked, cut, err := r.Rerank(ctx, data, candidates)
	if err != nil {
		return err
	}
	sayCut(newUI(cmd.ErrOrStderr(), false), cut, r)
	if err := add(f.model.path, reranked); err != nil {
		return err
	}
	if err := add("fused with BM25", task.Fuse(f.top, reranked, bm25)); err != nil {
		return err
	}
	if f.asJSON {
		out := map[string]*evaluate.Result{}
		for i, key := range []string{"bm25", "first", "reranker", "fused"} {
			if first == nil && i > 0 {
				i--
			}
			if first != nil || key != "first" {
				out[key] = rows[i].Result
			}
		}
		return printJSON(cmd, out)
	}
	_, err = fmt.Fprint(cmd.OutOrStdout(), evaluate.Table(rows...))
	return err
}
