package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"contraflow/io/dataset"
	"contraflow/stages/evaluate"
)

func newEval() *cobra.Command {
	var f modelFlags
	var parts partFlags
	var queries, corpus, qrels, queryPrompt, docPrompt string
	var asJSON, bm25 bool
	cmd := &cobra.Command{
		Use:   "eval --model DIR --queries FILE --corpus FILE --qrels FILE",
		Short: "Measure a model on a retrieval task",
		Long: `eval prints nDCG@10, MRR@10, recall@100 and MAP, as trec_eval defines them, of each query's first 100 documents.

Queries and corpus are parquet, JSON lines or CSV with the columns id and text (a title is put before the text), qrels have
query_id, doc_id and relevance. MS MARCO's .tsv files (an id, a tab, a text) and TREC's qrels (query, iteration, document, relevance) are read
as they are. A folder in BEIR's or MTEB's layout may be given as --queries alone, also as hf://datasets/org/name, s3:// or gs://.`,
		Example: `  contraflow eval --model q/model --queries q/queries.parquet --corpus q/corpus.parquet --qrels q/qrels.parquet
  contraflow eval --model q/model --queries beir/scifact --json
  contraflow eval --model q/model --queries hf://datasets/mteb/scifact`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			ctx := cmd.Context()
			r, err := loadRetrieval(cmd, queries, corpus, qrels)
			if err != nil {
				return err
			}
			e, err := f.load(cmd)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, e.Close()) }()
			query, document := e.RolePrompts()
			if !cmd.Flags().Changed("query-prompt") {
				queryPrompt = query
			}
			if !cmd.Flags().Changed("document-prompt") {
				docPrompt = document
			}
			task, err := e.NewTask(ctx, r, queryPrompt, docPrompt)
			if err != nil {
				return err
			}
			if task.Fusion, err = parts.fusion(e); err != nil {
				return err
			}
			res, err := e.Evaluate(ctx, task, evaluate.Standard()...)
			if err != nil {
				return err
			}
			rows := []evaluate.Row{{Name: f.path, Result: res}}
			if bm25 {
				b, err := task.BM25(ctx, evaluate.Standard()...)
				if err != nil {
					return err
				}
				rows = append(rows, evaluate.Row{Name: "BM25", Result: b})
			}
			if asJSON && bm25 {
				return printJSON(cmd, map[string]*evaluate.Result{"model": res, "bm25": rows[1].Result})
			}
			if asJSON {
				return printJSON(cmd, res)
			}
			fmt.Fprint(cmd.OutOrStdout(), evaluate.Table(rows...))
			return nil
		},
	}
	cmd.Flags().StringVar(&queries, "queries", "", "queries, or a folder in BEIR's layout")
	cmd.Flags().StringVar(&corpus, "corpus", "", "documents")
	cmd.Flags().StringVar(&qrels, "qrels", "", "judgements")
	cmd.Flags().StringVar(&queryPrompt, "query-prompt", "", "text before each query (default: the model's query prompt)")
	cmd.Flags().StringVar(&docPrompt, "document-prompt", "", "text before each document (default: the model's document prompt)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object; with --bm25, one for the model and one for BM25 in it")
	cmd.Flags().BoolVar(&bm25, "bm25", false, "measure BM25 beside the model")
	parts.add(cmd)
	f.add(cmd)
	f.addCut(cmd)
	require(cmd, "queries")
	return cmd
}

// loadRetrieval loads a retrieval task, of which corpus and judgements may be left out where queries is a folder.
func loadRetrieval(cmd *cobra.Command, queries, corpus, qrels string) (*dataset.Retrieval, error) {
	if info, err := os.Stat(queries); (corpus == "" || qrels == "") && !strings.Contains(queries, "://") && (err != nil || !info.IsDir()) {
		return nil, usageError{fmt.Errorf("%s is not a folder in BEIR's layout: give --queries, --corpus and --qrels", queries)}
	}
	r, err := dataset.LoadRetrieval(cmd.Context(), queries, corpus, qrels)
	if err != nil {
		return nil, err
	}
	if note := r.Note(); note != "" {
		fmt.Fprintf(cmd.ErrOrStderr(), "note: %s\n", note)
	}
	return r, nil
}

func printJSON(cmd *cobra.Command, v any) error {
	enc := json.NewEncoder(cmd.OutOrStdout())
	return enc.Encode(v)
}
