package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/spf13/cobra"

	"contraflow/io/dataset"
	"contraflow/io/spelling"
	"contraflow/stages/embedder"
	"contraflow/stages/mine"
	"contraflow/stages/reranker"
)

// mineFlags say what to mine.
type mineFlags struct {
	pairFlags
	corpus                                 []string
	corpusColumn                           string
	labels                                 string
	options                                mine.Options
	minScore, maxScore, absolute, relative float64
	sampling                               string
	parts                                  partFlags
	crossEncoder                           string
	sigmoid                                bool
}

func newMine() *cobra.Command {
	var f modelFlags
	var m mineFlags
	cmd := &cobra.Command{
		Use:   "mine --model DIR --input FILES --query NAME (--positive NAME | --documents NAME) --output FILE",
		Short: "Find hard negatives for pairs with a model",
		Long: `mine embeds queries and a corpus (by default, all positives), searches exactly, and writes a parquet file with the columns
query, positive, negatives (a list) and scores (a list: the positive's, then each negative's), which data.train takes as

  {path: mined.parquet, query: query, positive: positive, negatives: [negatives], negatives_per_query: all}

The scores are those of the model that mines, to look at: a loss that learns from scores takes a teacher's, which contraflow distill adds in a
column of another name. With --cross-encoder a reranker scores the nearest documents and the positives again, and margins, bounds and ranks are by
its scores, which are what is written; such a loss may take them (scores: scores).

Rows that have a list of documents and a label of each, as rerankers train on, are pairs of their query and each document with a label above 0
(--documents docs --labels labels); without --labels the first document is the positive. The others are documents to mine like those of --corpus, and
may become negatives of any query that they are near to.

Options have the names and the meaning of sentence-transformers' mine_hard_negatives; FlagEmbedding's --range_for_sampling 10-210 is
--range-min 10 --range-max 210 --sampling random. A positive of the query is never a negative, and neither is the query itself, which corpora of
questions have as a document; nor is a text that differs from them by whitespace around it alone. Pairs that keep fewer negatives than asked for are
left out and counted, but for those that have --min-negatives.

` + ownAlone,
		Example: `  contraflow mine --model q/model --input 'pairs/*.parquet' --query query --positive positive --output mined.parquet --relative-margin 0.05`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if err := m.settle(cmd); err != nil {
				return err
			}
			if m.crossEncoder != "" {
				r, err := (&rerankFlags{model: modelFlags{path: m.crossEncoder, precision: f.precision}}).load(cmd)
				if err != nil {
					return fmt.Errorf("--cross-encoder: %w", err)
				}
				defer func() { err = errors.Join(err, r.Close()) }()
				m.options.Rescore = func(ctx context.Context, queries, documents []string) ([]float32, error) {
					for i, query := range queries {
						if err := r.CheckPair(query, documents[i]); err != nil {
							return nil, fmt.Errorf("--cross-encoder: query %.60q: %w", query, err)
						}
					}
					scores, _, err := r.ScorePairs(ctx, queries, documents)
					if m.sigmoid {
						reranker.Sigmoid(scores)
					}
					return scores, err
				}
				if err := m.options.Check(); err != nil {
					return usageError{fmt.Errorf("--cross-encoder: %w", err)}
				}
			}
			e, err := f.load(cmd)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, e.Close()) }()
			return m.run(cmd, e)
		},
	}
	fl := cmd.Flags()
	m.pairFlags.add(cmd, "of a list, each is one", "")
	fl.Lookup("on-error").Usage += "; documents of --corpus that are empty are left out always"
	fl.StringArrayVar(&m.corpus, "corpus", nil, "`FILES` with more documents, as of --input (default: those of --input alone)")
	addQuiet(cmd, "notes and errors")
	fl.StringVar(&m.corpusColumn, "corpus-column", "text", "of --corpus: "+fmt.Sprintf(columnFlag, "documents"))
	fl.StringVar(&m.documents, "documents", "", "instead of --positive: the column `NAME` with lists of all of a row's documents")
	fl.StringVar(&m.labels, "labels", "", "of --documents: the column `NAME` with lists of a label of each; those above 0 are positives (default: the first document is)")
	fl.IntVar(&m.options.Negatives, "num-negatives", 3, "negatives of each query")
	fl.IntVar(&m.options.RangeMin, "range-min", 0, "skip so many of the best candidates")
	fl.IntVar(&m.options.RangeMax, "range-max", 0, "candidates end there (default: as the other options need)")
	fl.Float64Var(&m.minScore, "min-score", 0, "the lowest score of a negative: its cosine, of sparse embeddings their product")
	fl.Float64Var(&m.maxScore, "max-score", 0, "the highest score of a negative")
	fl.Float64Var(&m.absolute, "absolute-margin", 0, "a negative's score is by so much below the positive's")
	fl.Float64Var(&m.relative, "relative-margin", 0, "a negative's score is by this part of it below the positive's")
	fl.IntVar(&m.options.Fewest, "min-negatives", 0, "keep pairs with so many, in lists of different lengths (default: --num-negatives)")
	fl.StringVar(&m.crossEncoder, "cross-encoder", "", "the folder `DIR` or hub id of a reranker that scores candidates again, with a margin or a bound")
	fl.BoolVar(&m.sigmoid, "sigmoid", false, "of --cross-encoder: "+sigmoidFlag)
	oneOf(cmd, &m.sampling, "sampling", "top", "the best of the candidates, or random ones among them", "top", "random")
	fl.Uint64Var(&m.options.Seed, "seed", 42, "of --sampling random")
	m.parts.add(cmd, "dense")
	f.add(cmd, "texts")
	f.addQueryLength(cmd, "", "queries")
	f.addCut(cmd)
	return cmd
}

// settle makes options of flags, and finds those that make no sense together.
func (m *mineFlags) settle(cmd *cobra.Command) error {
	if err := m.checkDocuments(cmd, "positive"); err != nil {
		return err
	}
	for _, x := range []struct{ flag, of string }{{"sigmoid", "cross-encoder"}, {"corpus-column", "corpus"}, {"labels", "documents"}} {
		if cmd.Flags().Changed(x.flag) && !cmd.Flags().Changed(x.of) {
			return usageError{fmt.Errorf("--%s is of --%s, which is not given", x.flag, x.of)}
		}
	}
	if err := separate("--output", m.output, slices.Concat(m.input, m.corpus)...); err != nil {
		return err
	}
	if err := asParquet(m.output); err != nil {
		return err
	}
	for flag, to := range map[string]struct {
		value *float64
		into  **float64
	}{
		"min-score": {&m.minScore, &m.options.MinScore}, "max-score": {&m.maxScore, &m.options.MaxScore},
		"absolute-margin": {&m.absolute, &m.options.AbsoluteMargin}, "relative-margin": {&m.relative, &m.options.RelativeMargin},
	} {
		if cmd.Flags().Changed(flag) {
			*to.into = to.value
		}
	}
	m.options.Sample = m.sampling == "random"
	if err := atLeastOne(cmd, "num-negatives", "min-negatives"); err != nil {
		return err
	}
	if err := m.options.Check(); err != nil {
		return usageError{err}
	}
	return nil
}

func (m *mineFlags) run(cmd *cobra.Command, e *embedder.Embedder) error {
	ctx, u := cmd.Context(), progressOf(cmd)
	w, err := dataset.NewParquetWriter(m.output, dataset.OutColumn{Name: "query", Type: dataset.TextOut}, dataset.OutColumn{Name: "positive", Type: dataset.TextOut},
		dataset.OutColumn{Name: "negatives", Type: dataset.TextListOut}, dataset.OutColumn{Name: "scores", Type: dataset.NumbersOut})
	if err != nil {
		return err
	}
	defer w.Abort()
	if m.crossEncoder == "" {
		w.SetMetadata(dataset.MinedKey, "scores")
	}
	queries, positives, others, err := m.pairs(ctx, u)
	if err != nil {
		return err
	}
	m.bad.say(u)
	var corpus []string
	if len(m.corpus) > 0 {
		empty := 0
		bad := badRows{onError: m.bad.onError, of: "--corpus"}
		if corpus, empty, err = documents(ctx, u, m.corpus, m.corpusColumn, &bad); err != nil {
			return fmt.Errorf("--corpus: %w", err)
		}
		bad.say(u)
		if empty > 0 {
			u.printf("%s, and negatives of no query\n", spelling.Count(empty, "document of --corpus is empty", "documents of --corpus are empty"))
		}
	}
	p := mine.Pair(queries, positives, append(corpus, others...))
	queryPrompt, documentPrompt := textPrompts(cmd, e, m.queryPrompt, m.documentPrompt)
	weights, err := m.parts.fusion(e)
	if err != nil {
		return err
	}
	rows, short, err := e.Mine(ctx, p, embedder.Mining{
		Options: m.options, Prompts: &[2]string{queryPrompt, documentPrompt}, Weights: weights,
		Progress: func(what string, done, total int64) {
			if what == "searched" {
				u.passing(done == total, fmt.Sprintf("%d %% of %s x %s", 100*done/total, spelling.Count(len(p.Queries), "query", "queries"), spelling.Count(len(p.Corpus), "document", "documents")))
			} else {
				u.progress(done, total, "", what+" embedded", what+" embedded")
			}
		},
	})
	if err != nil {
		return err
	}
	if len(rows) == 0 {
		return fmt.Errorf("none of %s has %s within these bounds: %s", spelling.Count(len(p.Rows), "pair", "pairs"), spelling.Count(cmp.Or(m.options.Fewest, m.options.Negatives), "negative", "negatives"), moreNegatives)
	}
	if err := writeMined(w, p, rows); err != nil {
		return err
	}
	m.say(u, p, rows, short)
	return nil
}

// say tells what was mined, and of how many pairs too little.
func (m *mineFlags) say(u *ui, p mine.Pairs, rows []mine.Row, short int) {
	sum, negatives, under := 0.0, 0, 0
	for _, r := range rows {
		for _, h := range r.Negatives {
			sum += float64(r.Score) - float64(h.Score)
			negatives++
			if r.Score < h.Score {
				under++
			}
		}
	}
	each := spelling.Count(m.options.Negatives, "negative each", "negatives each")
	if m.options.Fewest > 0 {
		each = fmt.Sprintf("%d to %d negatives, %d in all,", m.options.Fewest, m.options.Negatives, negatives)
	}
	by, side := sum/math.Max(1, float64(negatives)), "above"
	if by < 0 {
		by, side = -by, "below"
	}
	u.printf("%s with %s written to %s, which data.train takes as {path: %s, query: query, positive: positive, negatives: [negatives], negatives_per_query: all}\n", spelling.Count(len(rows), "pair", "pairs"), each, m.output, inYAML(m.output))
	u.printf("a positive's score is %.3f %s a negative's on average\n", by, side)
	if 2*under > negatives {
		u.printf("note: %d of %s score above their positive: the model does not know these pairs, or their columns are not what they are taken for, or many negatives are positives that nobody has marked; --absolute-margin 0 leaves out those above\n", under, spelling.Count(negatives, "negative", "negatives"))
	}
	if short > 0 {
		helps := ""
		if 10*short > len(p.Rows) {
			helps = ": " + moreNegatives + ", and --min-negatives keeps pairs with fewer"
		}
		u.printf("%d of %s %s fewer negatives within these bounds and %s left out%s\n", short, spelling.Count(len(p.Rows), "pair", "pairs"), spelling.Form(short, "has", "have"), spelling.Form(short, "is", "are"), helps)
	}
}

// moreNegatives is what to do where few pairs have enough negatives.
const moreNegatives = "a larger --range-max, a smaller margin or fewer --num-negatives helps"

// pairs reads the queries with their positives, and the documents beside these that are none.
func (m *mineFlags) pairs(ctx context.Context, u *ui) (queries, positives, others []string, err error) {
	src := dataset.Source{Paths: m.input, Query: m.query, Positive: m.positives(), Documents: m.documents, Raw: m.documents != "", InOrder: true}
	if m.labels != "" {
		src.Scores = []string{m.labels}
	}
	d, err := dataset.Open(ctx, src)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("--input: %w", err)
	}
	defer d.Close()
	u.notes(d)
	without, used := 0, 0
	for row, err := range d.Each(ctx) {
		if err != nil {
			if err := m.bad.leave(err); err != nil {
				return nil, nil, nil, err
			}
			continue
		}
		used++
		query, before := row.Column(nil, 0)[0], len(positives)
		labels := row.Scores(nil, row.Place)
		for i, text := range row.Column(nil, 1) {
			if is := labels != nil && labels[i] > 0 || labels == nil && (i == 0 || m.documents == ""); !is {
				others = append(others, text)
				continue
			}
			queries, positives = append(queries, query), append(positives, text)
		}
		if len(positives) == before {
			without++
		}
	}
	switch {
	case used == 0:
		return nil, nil, nil, fmt.Errorf("--input: %w", m.bad.none())
	case len(queries) == 0:
		return nil, nil, nil, fmt.Errorf("--input: none of %s has a document with a label above 0 in column %q: there is no positive to mine for", spelling.Count(used, "row", "rows"), m.labels)
	case without > 0:
		u.printf("%d of %s %s no document with a label above 0, and no pair: the documents are mined\n", without, spelling.Count(used, "row", "rows"), spelling.Form(without, "has", "have"))
	}
	return queries, positives, others, nil
}

// documents reads a corpus, but for its empty texts, of which corpora have some.
func documents(ctx context.Context, u *ui, files []string, column string, unusable *badRows) (out []string, empty int, err error) {
	d, err := dataset.Open(ctx, dataset.Source{Paths: files, Query: column, Raw: true, InOrder: true})
	if err != nil {
		return nil, 0, err
	}
	defer d.Close()
	u.notes(d)
	for row, err := range d.Each(ctx) {
		var bad *dataset.RowError
		switch {
		case err == nil:
			out = row.Column(out, 0)
		case errors.As(err, &bad) && bad.Empty():
			empty++
		default:
			if err := unusable.leave(err); err != nil {
				return nil, 0, err
			}
		}
	}
	if len(out)+empty == 0 {
		return nil, 0, unusable.none()
	}
	return out, empty, nil
}

// writeMined writes what was mined.
func writeMined(w *dataset.ParquetWriter, p mine.Pairs, rows []mine.Row) error {
	for ; len(rows) > 0; rows = rows[min(len(rows), embedRows):] {
		var query, positive []string
		var negatives [][]string
		var scores [][]float32
		for _, r := range rows[:min(len(rows), embedRows)] {
			query, positive = append(query, p.Queries[r.Query]), append(positive, p.Corpus[r.Positive])
			own, of := []string{}, []float32{r.Score}
			for _, h := range r.Negatives {
				own, of = append(own, p.Corpus[h.Doc]), append(of, h.Score)
			}
			negatives, scores = append(negatives, own), append(scores, of)
		}
		if err := w.Write(query, positive, negatives, scores); err != nil {
			return err
		}
	}
	return w.Close()
}
