package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"contraflow/io/atomicfile"
	"contraflow/io/dataset"
	"contraflow/io/spelling"
	"contraflow/stages/embedder"
	"contraflow/stages/evaluate"
	"contraflow/stages/scoring"
)

// evalFlags are eval's.
type evalFlags struct {
	model         modelFlags
	parts         partFlags
	queries       []string
	corpus, qrels string
	queryPrompt   string
	docPrompt     string
	runFile       string
	scored        scoredFlags
	nano          nanoFlags
	asJSON, bm25  bool
	cuts          []int // dimensions that embeddings are cut to; nil: what the model says

	weights map[string]float64 // of the model's parts, by which texts are compared; nil: embeddings alone
}

func newEval() *cobra.Command {
	var f evalFlags
	cmd := &cobra.Command{
		Use:   "eval --model DIR (--queries FILE --corpus FILE --qrels FILE | --nanobeir[=TASKS] | --sts FILE | --pair-classification FILE | --triplets FILE | --candidates FILE)",
		Short: "Measure a model: retrieval, NanoBEIR, STS, pairs, triplets, candidates to rank",
		Long: `eval prints nDCG@10, MRR@10, recall@100 and MAP, as trec_eval defines them, of each query's first 100 documents.

Queries and corpus are parquet, JSON lines or CSV with the columns id and text (a title is put before the text), qrels have
query_id, doc_id and relevance. MS MARCO's .tsv files (an id, a tab, a text) and TREC's qrels (query, iteration, document, relevance) are read
as they are. A folder in BEIR's or MTEB's layout may be given as --queries alone, also as hf://datasets/org/name, s3:// or gs://, and
more than one of them: then the mean over tasks stands below. Of another dataset of the hub, such as hf://datasets/org/name?config=qrels, its split test is
taken, or else validation, or the only one that it has, and a note says which; ?split=NAME names another.

With --nanobeir it measures on NanoBEIR, 13 small retrieval tasks of one dataset of the hub, and below stands their mean: figures are those of sentence-transformers'
NanoBEIREvaluator (MAP but for queries with more than 100 relevant documents). --nanobeir=msmarco,nq names tasks, and --nanobeir-dataset a translated dataset.

With --sts, pairs of texts with scores (semantic textual similarity), it prints how the similarities of pairs (cosines, or inner products where the model's folder says dot) correlate with their scores: Spearman's
rank correlation, and Pearson's. With --pair-classification, pairs of texts with labels (1 or true of those that belong together, 0 or false of
others), it prints average precision, and the best accuracy and F1 with the similarities from which on pairs then count as belonging together. With --triplets it prints how
often a text is nearer to its positive than to its negative. With --candidates, a query with a list of positives and one of negatives in each row as MTEB's
reranking tasks have them, it prints nDCG@10, MRR@10 and MAP of the candidates' ranking; or of --documents, a list of all in the order of something
else, and those of this order beside them. A query without positives or without other candidates is left out, and a note counts it; with --found, which says how well
documents have been found, those without positives alone are. Of candidates with equal scores a measure is the mean over their orders.

A model of kind m3 compares texts by what --part names, documents of --queries and pairs alike: by default by all of its parts, fused, as evaluations in
training do. A multi_vector compares a query with a document, by MaxSim: of pairs with scores or labels too it reads the first text as a query and the
second as a document, where other models read both as queries.

A row that can't be used (a query without text, a judgement or a score that is no number) ends eval with its file and line. There is no --on-error as other
commands have it: what is measured on fewer rows is another task, which no other number compares with. Documents without text are ranked as such, and counted.

With --dimensions 256,64 the model is measured by the first 256 dimensions of its embeddings and by the first 64; texts are embedded once. With --json there is an object for each, by its number.

--run keeps each query's first 100 documents in a file, as trec_eval reads it.`,
		Example: `  contraflow eval --model q/model --queries q/queries.parquet --corpus q/corpus.parquet --qrels q/qrels.parquet
  contraflow eval --model q/model --queries beir/scifact --json
  contraflow eval --model q/model --queries hf://datasets/mteb/scifact
  contraflow eval --model q/model --queries beir/scifact --queries beir/nfcorpus --queries beir/arguana
  contraflow eval --model q/model --queries beir/scifact --dimensions 256,128,64
  contraflow eval --model q/model --nanobeir
  contraflow eval --model q/model --nanobeir=msmarco,nq --nanobeir-dataset lightonai/NanoBEIR-de
  contraflow eval --model q/model --sts sts.parquet --columns sentence1,sentence2,score
  contraflow eval --model q/model --pair-classification hf://datasets/sentence-transformers/quora-duplicates?config=pair-class
  contraflow eval --model q/model --triplets hf://datasets/sentence-transformers/all-nli?config=triplet
  contraflow eval --model q/model --candidates samples.jsonl --columns query,positive,negative`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			kind, file, err := f.check(cmd)
			if err != nil {
				return err
			}
			if u := progressOf(cmd); kind != nil {
				f.model.options = []embedder.Option{embedder.Progress(func(done, total int) { u.progress(int64(done), int64(total), "", "text embedded", "texts embedded") })}
			}
			e, err := f.model.load(cmd)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, e.Close()) }()
			if f.weights, err = f.parts.fusion(e); err != nil {
				return err
			}
			if kind != nil {
				return f.pairs(cmd, e, kind, file)
			}
			return f.rank(cmd, e)
		},
	}
	cmd.Flags().StringArrayVar(&f.queries, "queries", nil, "the `FILE` with the queries, or a folder in BEIR's layout; several folders: once for each, and a mean")
	cmd.Flags().StringVar(&f.corpus, "corpus", "", "the `FILE` with the documents")
	cmd.Flags().StringVar(&f.qrels, "qrels", "", "the `FILE` with the judgements")
	f.nano.add(cmd.Flags(), "all 13")
	f.scored.add(cmd.Flags())
	cmd.Flags().StringVar(&f.queryPrompt, "query-prompt", "", fmt.Sprintf(promptFlag, "query, and before both texts of a pair that is read as queries are", "queries"))
	cmd.Flags().StringVar(&f.docPrompt, "document-prompt", "", fmt.Sprintf(promptFlag, "document", "documents"))
	addQuiet(cmd, "results, notes and errors")
	cmd.Flags().BoolVar(&f.asJSON, "json", false, "print one JSON object; with --bm25, one for the model and one for BM25 in it; of several tasks, that for each by its name, and mean")
	cmd.Flags().StringVar(&f.runFile, "run", "", "write the ranking to this `FILE`, in TREC's format")
	cmd.Flags().BoolVar(&f.bm25, "bm25", false, "measure BM25 beside the model")
	f.parts.add(cmd, "fused")
	f.model.add(cmd, "texts")
	cmd.Flags().IntSliceVar(&f.cuts, "dimensions", nil, "cut embeddings to so many dimensions `N,N`, as matryoshka training allows; of several the model is measured by each, and texts are embedded once (default: what the model says)")
	f.model.addQueryLength(cmd, "", "queries, and both texts of a pair that is read as queries are,")
	return cmd
}

// check finds flags that make no sense together, before a model is loaded, and the task of scored pairs that is measured; nil: one of retrieval.
func (f *evalFlags) check(cmd *cobra.Command) (kind *scoring.Kind, file scoring.Source, err error) {
	if kind, file, err = f.scored.given(f.queries != nil, false); err != nil {
		return nil, file, err
	}
	if err := f.nano.check(cmd, false, append(kindFlags(), "--queries", "--corpus", "--qrels", "--run")...); err != nil {
		return nil, file, err
	}
	switch {
	case f.queries == nil && kind == nil && f.nano.tasks == nil:
		err = missing(errors.New("give --queries (with --corpus and --qrels, or a folder in BEIR's layout), --nanobeir, " + either(kindFlags())))
	case kind != nil && (f.corpus+f.qrels+f.runFile != "" || f.bm25):
		err = usageError{errors.New("--corpus, --qrels, --run and --bm25 are for --queries")}
	case len(f.queries) > 1 && f.runFile != "":
		err = usageError{errors.New("--run is of one task: give one --queries")}
	case len(f.queries) > 1 && f.corpus+f.qrels != "":
		err = usageError{errors.New("several --queries are folders in BEIR's or MTEB's layout, each with its documents and judgements: --corpus and --qrels are for one")}
	case len(f.cuts) > 1 && f.runFile != "":
		err = usageError{errors.New("--run is of one ranking: give one number of --dimensions")}
	case f.runFile != "":
		err = sameKind("--run", f.runFile, "ranking", isRanking)
	}
	if err != nil {
		return nil, file, err
	}
	for i, n := range f.cuts {
		if n < 1 {
			return nil, file, usageError{fmt.Errorf("--dimensions has %d, want at least 1", n)}
		}
		if slices.Contains(f.cuts[:i], n) {
			return nil, file, usageError{fmt.Errorf("--dimensions has %d twice", n)}
		}
		f.model.cut = max(f.model.cut, n)
	}
	for i, q := range f.queries {
		same := func(other string) bool { return filepath.Clean(other) == filepath.Clean(q) }
		if slices.ContainsFunc(f.queries[:i], same) {
			return nil, file, usageError{fmt.Errorf("--queries %s is given twice: it would count twice in the mean", q)}
		}
		if err := isTask(q, f.corpus, f.qrels); err != nil {
			return nil, file, err
		}
	}
	return kind, file, nil
}

// pairs measures the model's scores of pairs.
func (f *evalFlags) pairs(cmd *cobra.Command, e *embedder.Embedder, kind *scoring.Kind, file scoring.Source) error {
	asked := kind.Asked || e.VectorsAlone() // a pair is a query and a document
	if !asked {
		if err := checkPairTexts(cmd, f.model.path, e.WeighsQueries(), flagOf(kind)); err != nil {
			return err
		}
	}
	query, document := textPrompts(cmd, e, f.queryPrompt, f.docPrompt)
	return measureScored(cmd, kind, file, f.cuts, f.asJSON, func(a, b []string) ([][]float64, error) {
		switch {
		case asked && f.weights != nil:
			return one(e.PartRelevance(cmd.Context(), f.weights, query, document, a, b))
		case asked:
			return e.RelevanceCut(cmd.Context(), f.cuts, query, document, a, b)
		case e.WeighsQueries(): // both are documents
			return one(e.Similarity(cmd.Context(), document, a, b))
		case f.weights != nil:
			return one(e.PartSimilarity(cmd.Context(), f.weights, query, a, b))
		}
		return e.SimilarityCut(cmd.Context(), f.cuts, query, a, b)
	})
}

// rank measures the model on tasks of retrieval, and prints what it finds.
func (f *evalFlags) rank(cmd *cobra.Command, e *embedder.Embedder) error {
	query, document := textPrompts(cmd, e, f.queryPrompt, f.docPrompt)
	nanos, err := f.nano.retrieval(noting(cmd))
	if err != nil {
		return err
	}
	u := progressOf(cmd)
	found := make([][]taskResult, max(1, len(f.cuts))) // by dimensions
	for _, q := range slices.Concat(f.queries, f.nano.tasks) {
		of := ""
		if len(f.queries)+len(f.nano.tasks) > 1 {
			of = dataset.TaskName(q) + ": "
		}
		r, err := notedRetrieval(cmd, of, func(ctx context.Context) (*dataset.Retrieval, error) {
			if f.nano.tasks != nil {
				return nanos[q], nil
			}
			return dataset.LoadRetrieval(ctx, q, f.corpus, f.qrels)
		})
		if err != nil {
			return err
		}
		task, err := e.NewTask(noting(cmd), r, query, document)
		if err != nil {
			return err
		}
		task.Fusion, task.Progress = f.weights, u.embedded(of)
		all, err := f.task(cmd.Context(), e, task, q)
		if err != nil {
			return err
		}
		for i, m := range all {
			found[i] = append(found[i], m)
		}
	}
	var results []any
	for i, tasks := range found {
		if len(tasks) == 1 {
			tasks[0].name = f.model.path
		} else if found[i], err = withMean(tasks); err != nil {
			return err
		}
		results = append(results, jsonOf(found[i]))
	}
	if f.asJSON {
		return printJSON(cmd, byCut(f.cuts, results))
	}
	var rows []evaluate.Row
	tasks := found[0]
	for k, m := range tasks {
		for i := range found {
			name := m.name
			if len(found) > 1 {
				name = m.name + ", " + spelling.Count(f.cuts[i], "dimension", "dimensions")
			}
			rows = append(rows, evaluate.Row{Name: name, Result: found[i][k].model})
		}
		if m.bm25 != nil && len(tasks) == 1 {
			rows = append(rows, evaluate.Row{Name: "BM25", Result: m.bm25})
		} else if m.bm25 != nil {
			rows = append(rows, evaluate.Row{Name: m.name + ", BM25", Result: m.bm25})
		}
	}
	_, err = fmt.Fprint(cmd.OutOrStdout(), evaluate.Table(rows...))
	return err
}

// checkPairTexts refuses flags of the texts that pairs have none of: both are read as queries are, or where these are weights of tokens as documents.
func checkPairTexts(cmd *cobra.Command, model string, weighed bool, kind string) error {
	if !weighed {
		if cmd.Flags().Changed("document-prompt") {
			return usageError{fmt.Errorf("--document-prompt is for --queries, --triplets and --candidates: both texts of %s are read as queries are", kind)}
		}
		return nil
	}
	for flag, instead := range map[string]string{"query-prompt": "document-prompt", "query-max-length": "max-length"} {
		if cmd.Flags().Changed(flag) {
			return usageError{fmt.Errorf("--%s is for --queries, --triplets and --candidates: queries of %s are weights of tokens, and both texts of %s are read as documents, which --%s is of", flag, model, kind, instead)}
		}
	}
	return nil
}

// taskResult is what eval has found of a task.
type taskResult struct {
	name        string
	model, bm25 *evaluate.Result // bm25: nil if nobody asked
}

// task measures the model on one of them, by each of --dimensions, and writes the ranking if it has a file.
func (f *evalFlags) task(ctx context.Context, e *embedder.Embedder, task *embedder.Task, name string) (all []taskResult, err error) {
	keep, err := beginRun(task, f.runFile)
	if err != nil {
		return nil, fmt.Errorf("--run: %w", err)
	}
	runs, err := e.RankCut(ctx, task, embedder.Depth, f.cuts...)
	for i := 0; i < len(runs) && err == nil; i++ {
		m := taskResult{name: name}
		m.model, err = task.Measure(runs[i], evaluate.Standard()...)
		all = append(all, m)
	}
	if err != nil {
		return nil, keep(nil, fmt.Errorf("%s: %w", name, err))
	}
	if err := keep(runs[0], nil); err != nil || !f.bm25 {
		return all, err
	}
	bm25, err := task.BM25(ctx, evaluate.Standard()...)
	for i := range all {
		all[i].bm25 = bm25
	}
	return all, err
}

// byCut are results as JSON, of several cuts by their numbers.
func byCut(cuts []int, results []any) any {
	if len(results) == 1 {
		return results[0]
	}
	all := map[string]any{}
	for i, r := range results {
		all[fmt.Sprint(cuts[i])] = r
	}
	return all
}

// one is a list of what there is one of.
func one[T any](v T, err error) ([]T, error) { return []T{v}, err }

// beginRun opens the file of a ranking: what can't be written is known before anything is embedded. keep writes the ranking, or after an error
// nothing, and returns the error. Without a file it does nothing.
func beginRun(task *embedder.Task, file string) (keep func(run evaluate.Run, err error) error, err error) {
	if file == "" {
		return func(_ evaluate.Run, err error) error { return err }, nil
	}
	f, err := atomicfile.Replace(file)
	if err != nil {
		return nil, err
	}
	return func(run evaluate.Run, err error) error {
		if err == nil {
			err = task.WriteRun(f, run, "contraflow")
		}
		if err != nil {
			return f.Abort(err)
		}
		return f.Commit()
	}, nil
}

// meanName is what the mean over tasks is called.
const meanName = "mean"

// withMean adds the mean of several tasks, and calls them by the last part of their paths where that tells them apart.
func withMean(tasks []taskResult) ([]taskResult, error) {
	called := map[string]int{meanName: 1}
	for _, m := range tasks {
		called[dataset.TaskName(m.name)]++
	}
	for i, m := range tasks {
		if name := dataset.TaskName(m.name); called[name] == 1 {
			tasks[i].name = name
		} else if m.name == meanName {
			tasks[i].name = "./" + meanName
		}
	}
	var model, bm25 []*evaluate.Result
	for _, m := range tasks {
		model = append(model, m.model)
		if m.bm25 != nil {
			bm25 = append(bm25, m.bm25)
		}
	}
	mean := taskResult{name: meanName}
	var err error
	if mean.model, err = evaluate.Average(model...); err == nil && bm25 != nil {
		mean.bm25, err = evaluate.Average(bm25...)
	}
	return append(tasks, mean), err
}

// jsonOf is the result of one task, or those of several by their names.
func jsonOf(tasks []taskResult) any {
	of := func(m taskResult) any {
		if m.bm25 == nil {
			return m.model
		}
		return map[string]*evaluate.Result{"model": m.model, "bm25": m.bm25}
	}
	if len(tasks) == 1 {
		return of(tasks[0])
	}
	all := map[string]any{}
	for _, m := range tasks {
		all[m.name] = of(m)
	}
	return all
}

// isTask refuses queries that are no folder where corpus and judgements are left out.
func isTask(queries, corpus, qrels string) error {
	if corpus != "" && qrels != "" || strings.Contains(queries, "://") {
		return nil
	}
	if info, err := os.Stat(queries); err != nil || !info.IsDir() {
		return usageError{fmt.Errorf("%s is not a folder in BEIR's layout: give --queries, --corpus and --qrels", queries)}
	}
	return nil
}

// noting notes what a user should know of the files, such as which split a dataset of the hub has to measure with.
func noting(cmd *cobra.Command) context.Context {
	return dataset.WithReading(dataset.WithNote(cmd.Context(), notes(cmd)), progressOf(cmd).reading)
}

// loadRetrieval loads a retrieval task, of which corpus and judgements may be left out where queries is a folder.
func loadRetrieval(cmd *cobra.Command, queries, corpus, qrels string) (*dataset.Retrieval, error) {
	if err := isTask(queries, corpus, qrels); err != nil {
		return nil, err
	}
	return notedRetrieval(cmd, "", func(ctx context.Context) (*dataset.Retrieval, error) {
		return dataset.LoadRetrieval(ctx, queries, corpus, qrels)
	})
}

// notedRetrieval loads a task, and notes what a user should know of it; of says of which.
func notedRetrieval(cmd *cobra.Command, of string, load func(context.Context) (*dataset.Retrieval, error)) (*dataset.Retrieval, error) {
	r, err := load(noting(cmd))
	if err != nil {
		return nil, err
	}
	if note := r.Note(); note != "" {
		fmt.Fprintf(cmd.ErrOrStderr(), "note: %s%s\n", of, note)
	}
	return r, nil
}

func printJSON(cmd *cobra.Command, v any) error {
	enc := json.NewEncoder(cmd.OutOrStdout())
	return enc.Encode(v)
}
