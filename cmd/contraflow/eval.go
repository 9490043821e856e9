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
	"contraflow/stages/embedder"
	"contraflow/stages/evaluate"
	"contraflow/stages/scoring"
)

func newEval() *cobra.Command {
	var f modelFlags
	var parts partFlags
	var queries []string
	var corpus, qrels, queryPrompt, docPrompt, runFile string
	var scored scoredFlags
	var nano nanoFlags
	var asJSON, bm25, quiet bool
	cmd := &cobra.Command{
		Use:   "eval --model DIR (--queries FILE --corpus FILE --qrels FILE | --nanobeir[=TASKS] | --sts FILE | --pair-classification FILE | --triplets FILE | --candidates FILE)",
		Short: "Measure a model on a retrieval task, on pairs or triplets of texts, or on candidates to rank",
		Long: `eval prints nDCG@10, MRR@10, recall@100 and MAP, as trec_eval defines them, of each query's first 100 documents.

Queries and corpus are parquet, JSON lines or CSV with the columns id and text (a title is put before the text), qrels have
query_id, doc_id and relevance. MS MARCO's .tsv files (an id, a tab, a text) and TREC's qrels (query, iteration, document, relevance) are read
as they are. A folder in BEIR's or MTEB's layout may be given as --queries alone, also as hf://datasets/org/name, s3:// or gs://, and
more than one of them: then the mean over tasks stands below. Of another dataset of the hub, such as hf://datasets/org/name?config=qrels, its split test is
taken, or else validation, or the only one that it has, and a note says which; ?split=NAME names another.

With --nanobeir it measures on NanoBEIR, 13 small retrieval tasks of one dataset of the hub, and below stands their mean: figures are those of sentence-transformers'
NanoBEIREvaluator (MAP but for queries with more than 100 relevant documents). --nanobeir=msmarco,nq names tasks, and --nanobeir-dataset a translated dataset.

With --sts, pairs of texts with scores (semantic textual similarity), it prints how the cosines of pairs correlate with their scores: Spearman's
rank correlation, and Pearson's. With --pair-classification, pairs of texts with labels (1 or true of those that belong together, 0 or false of
others), it prints average precision, and the best accuracy and F1 with the similarities (cosines; of sparse embeddings products) from which on pairs then count as belonging together. With --triplets it prints how
often a text is nearer to its positive than to its negative. With --candidates, a query with a list of positives and one of negatives in each row as MTEB's
reranking tasks have them, it prints nDCG@10, MRR@10 and MAP of the candidates' ranking; or of --documents, a list of all in the order of something
else, and those of this order beside them. A query without positives or without other candidates is left out, and a note counts it; with --found, which says how well
documents have been found, those without positives alone are. Of candidates with equal scores a measure is the mean over their orders.

A model of kind m3 compares texts by what --part names, documents of --queries and pairs alike: by default by all of its parts, fused, as evaluations in
training do. A multi_vector compares a query with a document, by MaxSim: of pairs with scores or labels too it reads the first text as a query and the
second as a document, where other models read both as queries.

A row that can't be used (a query without text, a judgement or a score that is no number) ends eval with its file and line. There is no --on-error as other
commands have it: what is measured on fewer rows is another task, which no other number compares with. Documents without text are ranked as such, and counted.

--run keeps each query's first 100 documents in a file, as trec_eval reads it.`,
		Example: `  contraflow eval --model q/model --queries q/queries.parquet --corpus q/corpus.parquet --qrels q/qrels.parquet
  contraflow eval --model q/model --queries beir/scifact --json
  contraflow eval --model q/model --queries hf://datasets/mteb/scifact
  contraflow eval --model q/model --queries beir/scifact --queries beir/nfcorpus --queries beir/arguana
  contraflow eval --model q/model --nanobeir
  contraflow eval --model q/model --nanobeir=msmarco,nq --nanobeir-dataset lightonai/NanoBEIR-de
  contraflow eval --model q/model --sts sts.parquet --columns sentence1,sentence2,score
  contraflow eval --model q/model --pair-classification hf://datasets/sentence-transformers/quora-duplicates?config=pair-class
  contraflow eval --model q/model --triplets hf://datasets/sentence-transformers/all-nli?config=triplet
  contraflow eval --model q/model --candidates samples.jsonl --columns query,positive,negative`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			kind, file, err := scored.given(queries != nil, false)
			if err != nil {
				return err
			}
			if err := nano.check(cmd, false, append([]string{"queries", "corpus", "qrels", "run"}, scoredFlagsOf(scoring.Kinds...)...)...); err != nil {
				return err
			}
			switch {
			case queries == nil && kind == nil && nano.tasks == nil:
				return missing(errors.New("give --queries (with --corpus and --qrels, or a folder in BEIR's layout), --nanobeir, " + scoredFlagNames("or")))
			case kind != nil && (corpus+qrels+runFile != "" || bm25):
				return usageError{errors.New("--corpus, --qrels, --run and --bm25 are for --queries")}
			}
			if len(queries) > 1 && runFile != "" {
				return usageError{errors.New("--run is of one task: give one --queries")}
			}
			if len(queries) > 1 && corpus+qrels != "" {
				return usageError{errors.New("several --queries are folders in BEIR's or MTEB's layout, each with its documents and judgements: --corpus and --qrels are for one")}
			}
			if runFile != "" {
				if err := sameKind("--run", runFile, "ranking", isRanking); err != nil {
					return err
				}
			}
			for i, q := range queries { // known before a model is loaded
				same := func(other string) bool { return filepath.Clean(other) == filepath.Clean(q) }
				if slices.ContainsFunc(queries[:i], same) {
					return usageError{fmt.Errorf("--queries %s is given twice: it would count twice in the mean", q)}
				}
				if err := isTask(q, corpus, qrels); err != nil {
					return err
				}
			}
			e, err := f.load(cmd)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, e.Close()) }()
			weights, err := parts.fusion(e)
			if err != nil {
				return err
			}
			asked := kind != nil && (kind.Asked || e.VectorsAlone()) // a pair is a query and a document
			if kind != nil && !asked {
				if err := checkPairTexts(cmd, f.path, e.WeighsQueries(), flagOf(kind)); err != nil {
					return err
				}
			}
			queryPrompt, docPrompt = textPrompts(cmd, e, queryPrompt, docPrompt)
			if kind != nil {
				return measureScored(cmd, kind, file, asJSON, func(a, b []string) ([]float64, error) {
					if asked {
						return e.PartRelevance(cmd.Context(), weights, queryPrompt, docPrompt, a, b)
					}
					if e.WeighsQueries() { // both are documents
						return e.Similarity(cmd.Context(), docPrompt, a, b)
					}
					return e.PartSimilarity(cmd.Context(), weights, queryPrompt, a, b)
				})
			}
			nanos, err := nano.retrieval(noting(cmd))
			if err != nil {
				return err
			}
			u := newUI(cmd.ErrOrStderr(), quiet)
			var tasks []taskResult
			for _, q := range slices.Concat(queries, nano.tasks) {
				of := ""
				if len(queries)+len(nano.tasks) > 1 {
					of = dataset.TaskName(q) + ": "
				}
				load := func(ctx context.Context) (*dataset.Retrieval, error) {
					return dataset.LoadRetrieval(ctx, q, corpus, qrels)
				}
				if nano.tasks != nil {
					load = func(context.Context) (*dataset.Retrieval, error) { return nanos[q], nil }
				}
				m, err := measureTask(cmd, e, weights, of, u, q, load, queryPrompt, docPrompt, runFile, bm25)
				if err != nil {
					return err
				}
				tasks = append(tasks, m)
			}
			if len(tasks) == 1 {
				tasks[0].name = f.path
			} else if tasks, err = withMean(tasks); err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd, jsonOf(tasks))
			}
			var rows []evaluate.Row
			for _, m := range tasks {
				rows = append(rows, evaluate.Row{Name: m.name, Result: m.model})
				if bm25 && len(tasks) == 1 {
					rows = append(rows, evaluate.Row{Name: "BM25", Result: m.bm25})
				} else if bm25 {
					rows = append(rows, evaluate.Row{Name: m.name + ", BM25", Result: m.bm25})
				}
			}
			fmt.Fprint(cmd.OutOrStdout(), evaluate.Table(rows...))
			return nil
		},
	}
	cmd.Flags().StringArrayVar(&queries, "queries", nil, "the `FILE` with the queries, or a folder in BEIR's layout; several folders: once for each, and a mean")
	cmd.Flags().StringVar(&corpus, "corpus", "", "the `FILE` with the documents")
	cmd.Flags().StringVar(&qrels, "qrels", "", "the `FILE` with the judgements")
	nano.add(cmd.Flags(), "all 13")
	scored.add(cmd.Flags())
	cmd.Flags().StringVar(&queryPrompt, "query-prompt", "", fmt.Sprintf(promptFlag, "query, and before both texts of a pair that is read as queries are", "queries"))
	cmd.Flags().StringVar(&docPrompt, "document-prompt", "", fmt.Sprintf(promptFlag, "document", "documents"))
	cmd.Flags().BoolVar(&quiet, "quiet", false, "print no progress")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object; with --bm25, one for the model and one for BM25 in it; of several tasks, that for each by its name, and mean")
	cmd.Flags().StringVar(&runFile, "run", "", "write the ranking to this `FILE`, in TREC's format")
	cmd.Flags().BoolVar(&bm25, "bm25", false, "measure BM25 beside the model")
	parts.add(cmd, "fused")
	f.add(cmd, "texts")
	f.addCut(cmd)
	f.addQueryLength(cmd, "", "queries, and both texts of a pair that is read as queries are,")
	return cmd
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

func measureTask(cmd *cobra.Command, e *embedder.Embedder, weights map[string]float64, of string, u *ui, name string, load func(context.Context) (*dataset.Retrieval, error), queryPrompt, docPrompt, runFile string, bm25 bool) (m taskResult, err error) {
	ctx := cmd.Context()
	r, err := notedRetrieval(cmd, of, load)
	if err != nil {
		return m, err
	}
	task, err := e.NewTask(ctx, r, queryPrompt, docPrompt)
	if err != nil {
		return m, err
	}
	m.name, task.Fusion, task.Progress = name, weights, u.embedded(of)
	keep, err := beginRun(task, runFile)
	if err != nil {
		return m, fmt.Errorf("--run: %w", err)
	}
	run, err := e.Rank(ctx, task, embedder.Depth)
	if err == nil {
		m.model, err = task.Measure(run, evaluate.Standard()...)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	if err := keep(run, err); err != nil {
		return m, err
	}
	if bm25 {
		m.bm25, err = task.BM25(ctx, evaluate.Standard()...)
	}
	return m, err
}

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
	return dataset.WithNote(cmd.Context(), notes(cmd))
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
