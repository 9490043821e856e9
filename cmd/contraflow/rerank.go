package main

import (
	"cmp"
	"encoding/json"
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
	in                     tableFlags
	query, document        string
	ask                    string   // a query,
	texts                  []string // and texts to rank for it
	outputColumn           string
	sigmoid, asJSON        bool
	queries, corpus, qrels string
	first                  string
	scored                 scoredFlags
	nano                   nanoFlags
	top, cutoff            int
}

// What rerank, and distill and mine with a reranker, have alike.
var (
	instructionFlag = "the instruction in the template, a `TEXT`"
	sigmoidFlag     = "scores between 0 and 1, as CrossEncoder gives them"
)

func addTemplate(cmd *cobra.Command, to *string, of string) {
	oneOf(cmd, to, "template", "", of+"what surrounds a pair, instead of what the model says", tokenize.TemplateNames()...)
}

func newRerank() *cobra.Command {
	var f rerankFlags
	cmd := &cobra.Command{
		Use:   "rerank --model DIR (--input FILES --output FILE | --query-text TEXT --text TEXT | --queries FILE --corpus FILE --qrels FILE | --nanobeir[=TASKS] | --sts FILE | --pair-classification FILE | --triplets FILE | --candidates FILE)",
		Short: "Score pairs of texts with a reranker, or measure it",
		Long: `rerank writes a parquet file with the input's columns and a score column beside them: the model's score of each row's query and
document.
` + inPlace + `
Models are cross-encoders, as transformers and sentence-transformers save them, and decoders that answer yes or no.

` + streamHelp("the score") + `

With --query-text it prints the texts that are given with --text and their scores, the best one first, an object of JSON a line.

Empty texts are scored as such. A text that is null, no string or not UTF-8, or a line that is no JSON, ends rerank before anything is scored. A pair that
the model can't read ends it where it stands: one of which the tokenizer makes no tokens, or whose query leaves no room for a document where documents
alone are cut. --on-error skip leaves out either.

With queries, corpus and judgements (as eval has them) it reranks the first documents of BM25, or those of BM25 and the embedding model
--first, and prints a table: BM25, the embedding model, the reranker, and the sum of its scores and BM25's, standardized. MAP is
of the documents that are reranked (--top).

With --nanobeir it reranks what the dataset has of BM25's ranking (--top), and relevant documents that are not among it, or with --found not, as
sentence-transformers' CrossEncoderNanoBEIREvaluator does; --metric names the measure that comes first.

With --sts, --pair-classification, --triplets and --candidates it measures the model's scores as eval does an embedding model's similarities.`,
		Example: `  contraflow rerank --model r/model --input pairs.parquet --output scores.parquet
  contraflow rerank --model r/model --query-text "reads a file" --text "func Sort(x []int)" --text "func ReadAll(r io.Reader)"
  jq -c '{query: .q, document: .a}' pairs.json | contraflow rerank --model r/model --input - --output -
  contraflow rerank --model r/model --first q/model --queries q/queries.parquet --corpus q/corpus.parquet --qrels q/qrels.parquet
  contraflow rerank --model r/model --nanobeir=msmarco,nfcorpus,nq
  contraflow rerank --model r/model --pair-classification pairs.parquet --columns question,answer,correct
  contraflow rerank --model r/model --candidates samples.jsonl --documents documents --columns query,positive`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			kind, file, err := f.check(cmd)
			if err != nil {
				return err
			}
			r, err := f.load(cmd)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, r.Close()) }()
			switch {
			case kind != nil:
				return measureScored(cmd, kind, file, nil, f.asJSON, func(a, b []string) ([][]float64, error) {
					scores, _, err := r.ScorePairs(cmd.Context(), a, b)
					return one(widened(scores), err)
				})
			case f.nano.tasks != nil:
				return f.nano.rerank(cmd, r, &f)
			case f.queries != "":
				return f.measure(cmd, r)
			case f.texts != nil:
				return f.rank(cmd, r)
			}
			return f.table(cmd, r)
		},
	}
	fl := cmd.Flags()
	fl.StringArrayVar(&f.in.files, "input", nil, filesFlag)
	fl.StringVar(&f.query, "query-column", "query", fmt.Sprintf(columnFlag, "queries")+"; --query as well")
	fl.StringVar(&f.document, "document-column", "document", fmt.Sprintf(columnFlag, "documents")+"; --document as well")
	fl.StringVar(&f.ask, "query-text", "", "a query, a `TEXT`, for which those of --text are ranked")
	fl.StringArrayVar(&f.texts, "text", nil, "a `TEXT` to rank for --query-text (may be repeated)")
	fl.StringVar(&f.in.output, "output", "", "the parquet `FILE` to write; or -")
	fl.StringVar(&f.outputColumn, "output-column", "score", "the `NAME` of the column with the scores")
	addQuiet(cmd, "results, notes and errors")
	f.in.bad.add(cmd, "")
	fl.BoolVar(&f.sigmoid, "sigmoid", false, sigmoidFlag)
	addTemplate(cmd, &f.template, "")
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

// check finds flags that make no sense together, and the task of scored pairs that is measured; nil: another one, or a table is scored.
func (f *rerankFlags) check(cmd *cobra.Command) (kind *scoring.Kind, file scoring.Source, err error) {
	if kind, file, err = f.scored.given(f.queries != "", cmd.Flags().Changed("nanobeir")); err != nil {
		return nil, file, err
	}
	if err := f.nano.check(cmd, true, append(kindFlags(), "--input", "--output", "--queries", "--corpus", "--qrels", "--first")...); err != nil {
		return nil, file, err
	}
	if asks := cmd.Flags().Changed("query-text"); asks || f.texts != nil {
		return nil, file, f.checkTexts(cmd, asks)
	}
	scores, measures := len(f.in.files) > 0 || f.in.output != "", f.queries != "" || f.nano.tasks != nil || kind != nil
	if scores == measures || scores && (len(f.in.files) == 0 || f.in.output == "") {
		return nil, file, missing(errors.New("give --input and --output, --query-text and --text, --queries, --corpus and --qrels, --nanobeir, " + either(kindFlags())))
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
			return nil, file, usageError{fmt.Errorf("--%s %s", flag, goes)}
		}
	}
	if err := atLeastOne(cmd, "top", "cutoff-layer"); err != nil || measures {
		return kind, file, err
	}
	return nil, file, f.in.check(cmd, "the scores", "output-column")
}

// checkTexts is check where a query and texts are given on the command line.
func (f *rerankFlags) checkTexts(cmd *cobra.Command, asks bool) error {
	if !asks || f.texts == nil {
		return usageError{errors.New("--query-text and --text go together: a query, and the texts that are ranked for it")}
	}
	goes := append(kindFlags(), "--input", "--output", "--queries", "--corpus", "--qrels", "--nanobeir", "--first", "--top", "--json", "--query-column", "--document-column", "--output-column", "--on-error")
	for _, flag := range goes {
		if cmd.Flags().Changed(strings.TrimPrefix(flag, "--")) {
			return usageError{fmt.Errorf("%s does not go with --query-text, whose texts are those of --text", flag)}
		}
	}
	if err := errors.Join(validTexts("query-text", f.ask), validTexts("text", f.texts...)); err != nil {
		return err
	}
	return atLeastOne(cmd, "cutoff-layer")
}

func (f *rerankFlags) load(cmd *cobra.Command) (*reranker.Reranker, error) {
	dir, bf16, err := f.model.resolve(cmd)
	if err != nil {
		return nil, err
	}
	u := progressOf(cmd)
	told := func(done, total int) {
		if f.in.rows != nil {
			f.in.within(done, total)
		} else {
			u.progress(int64(done), int64(total), "", "pair reranked", "pairs reranked")
		}
	}
	opts := []reranker.Option{reranker.Progress(told), reranker.Warn(notes(cmd)), reranker.MaxLength(f.model.maxLength), reranker.Template(f.template), reranker.Instruction(f.instruction), reranker.CutoffLayer(f.cutoff)}
	if bf16 {
		opts = append(opts, reranker.BF16())
	}
	return reranker.Load(dir, opts...)
}

func widened(scores []float32) []float64 {
	wide := make([]float64, len(scores))
	for i, s := range scores {
		wide[i] = float64(s)
	}
	return wide
}

// scores are those of pairs; an error of one is an ofRow.
func (f *rerankFlags) scores(cmd *cobra.Command, r *reranker.Reranker, queries, documents []string) ([]float32, int, error) {
	scores, cut, err := r.ScorePairs(cmd.Context(), queries, documents)
	if err != nil {
		return nil, 0, err
	}
	if f.sigmoid {
		reranker.Sigmoid(scores)
	}
	for i, s := range scores {
		if !finite(s) {
			return nil, 0, &ofRow{i, fmt.Errorf("the score is %v: the model's weights, or what it computes of them in --precision %s, are not finite", s, f.model.precision)}
		}
	}
	return scores, cut, nil
}

// rank prints the texts of --text, the best one first.
func (f *rerankFlags) rank(cmd *cobra.Command, r *reranker.Reranker) error {
	for _, text := range f.texts {
		if err := r.CheckPair(f.ask, text); err != nil {
			return fmt.Errorf("--query-text %.60q, --text %.60q: %w", f.ask, text, err)
		}
	}
	scores, cut, err := f.scores(cmd, r, slices.Repeat([]string{f.ask}, len(f.texts)), f.texts)
	if err != nil {
		return ofTexts(f.texts, err)
	}
	sayCut(progressOf(cmd), cut, r)
	type ranked struct {
		Text  string  `json:"text"`
		Score float32 `json:"score"`
	}
	all := make([]ranked, len(scores))
	for i, s := range scores {
		all[i] = ranked{f.texts[i], s}
	}
	slices.SortStableFunc(all, func(a, b ranked) int { return cmp.Compare(b.Score, a.Score) })
	out := json.NewEncoder(cmd.OutOrStdout())
	out.SetEscapeHTML(false)
	for _, a := range all {
		if err := out.Encode(a); err != nil {
			return err
		}
	}
	return nil
}

// table scores the rows of a table.
func (f *rerankFlags) table(cmd *cobra.Command, r *reranker.Reranker) error {
	columns := []dataset.OutColumn{{Name: f.outputColumn, Type: dataset.FloatOut}}
	n, err := f.in.run(cmd, []string{f.query, f.document}, made{columns, 0, embedRows, func(texts [][]string) ([]any, int, error) {
		scores, cut, err := f.scores(cmd, r, texts[0], texts[1])
		return []any{scores}, cut, err
	}, r.CheckPair})
	if err != nil {
		return err
	}
	n.printf("%s written to %s\n", spelling.Count(n.done, "score", "scores"), f.in.to())
	sayCut(n.ui, n.cut, r)
	if n.empty > 0 {
		n.printf("%s with an empty query or document, scored as such\n", spelling.Count(n.empty, "pair", "pairs"))
	}
	f.in.bad.say(n.ui)
	return nil
}

func sayCut(u *ui, cut int, r *reranker.Reranker) {
	if cut > 0 {
		u.loud().printf("%s longer than %s and cut\n", spelling.Count(cut, "pair was", "pairs were"), spelling.Count(r.MaxLength(), "token", "tokens"))
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
		if task, err = e.NewTask(noting(cmd), data, query, document); err != nil {
			return err
		}
		task.Progress = progressOf(cmd).embedded("")
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
	sayCut(progressOf(cmd), cut, r)
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
