package reranker

import (
	"context"
	"fmt"

	"contraflow/io/dataset"
	"contraflow/stages/embedder"
	"contraflow/stages/evaluate"
	"contraflow/tokenize"
)

// Rerank scores the documents that a first stage found for each query: the same run with other scores. It tells how many pairs were cut.
func (r *Reranker) Rerank(ctx context.Context, data *dataset.Retrieval, run evaluate.Run) (out evaluate.Run, cut int, err error) {
	if err := r.engine.Turns.Err(); err != nil {
		return nil, 0, err
	}
	return rerank(ctx, &r.engine, r.pairs, data, run, r.progress)
}

// Evaluate measures a model in training by the order into which it puts first, what something else has found for each of the task's queries:
// [embedder.Task.RankBM25], or an embedder's [embedder.Task.Rank]. A relevant document that is not in it is not found. Ranks that score together
// all call it; it returns nil on all but rank 0.
func Evaluate(ctx context.Context, e *embedder.Engine, p *tokenize.Pairs, task *embedder.Task, first evaluate.Run, measures ...evaluate.Measure) (*evaluate.Result, error) {
	run, _, err := Rerank(ctx, e, p, task.Data(), first)
	if err != nil || run == nil {
		return nil, err
	}
	return task.Measure(run, measures...)
}

// ScorePairs scores each query's document with a model in training. Ranks that score together all call it; it returns nil on all but rank 0.
func ScorePairs(ctx context.Context, e *embedder.Engine, p *tokenize.Pairs, queries, documents []string) ([]float64, error) {
	if len(queries) != len(documents) {
		return nil, fmt.Errorf("%d queries and %d documents: pairs have one of each", len(queries), len(documents))
	}
	scores := make([]float64, len(queries))
	for from := 0; from < len(queries); from += rerankPairs {
		to := min(from+rerankPairs, len(queries))
		ids, kinds, _, err := p.EncodeAll(ctx, queries[from:to], documents[from:to])
		if err != nil {
			return nil, err
		}
		if err := e.EmbedTyped(ctx, ids, kinds, func(i int, score []float32) { scores[from+i] = float64(score[0]) }); err != nil {
			return nil, err
		}
	}
	if e.Ranks != nil && e.Ranks.Rank() > 0 {
		return nil, nil
	}
	return scores, nil
}

// rerankPairs is how many pairs are tokenized at a time. A test sets it.
var rerankPairs = 16384

// Rerank is [Reranker.Rerank] with a model in training. Ranks that score together all call it; it returns nil on all but rank 0.
func Rerank(ctx context.Context, e *embedder.Engine, p *tokenize.Pairs, data *dataset.Retrieval, run evaluate.Run) (out evaluate.Run, cut int, err error) {
	return rerank(ctx, e, p, data, run, nil)
}

// tellEvery is after how many pairs progress is told.
const tellEvery = 16

func rerank(ctx context.Context, e *embedder.Engine, p *tokenize.Pairs, data *dataset.Retrieval, run evaluate.Run, progress func(done, total int)) (out evaluate.Run, cut int, err error) {
	if len(run) != len(data.Queries) {
		return nil, 0, fmt.Errorf("there are documents to rerank for %d queries, and the task has %d", len(run), len(data.Queries))
	}
	out = make(evaluate.Run, len(run))
	type place struct{ query, hit int }
	var places []place
	var queries, docs []string
	done, total := 0, 0
	for _, hits := range run {
		total += len(hits)
	}
	flush := func() error {
		ids, kinds, n, err := p.EncodeAll(ctx, queries, docs)
		if err != nil {
			return err
		}
		cut += n
		err = e.EmbedTyped(ctx, ids, kinds, func(i int, score []float32) {
			out[places[i].query][places[i].hit].Score = score[0]
			if done++; progress != nil && (done%tellEvery == 0 || done == total) {
				progress(done, total)
			}
		})
		places, queries, docs = places[:0], queries[:0], docs[:0]
		return err
	}
	for q, hits := range run {
		out[q] = make([]evaluate.Hit, len(hits))
		for i, h := range hits {
			out[q][i].Doc = h.Doc
			places, queries, docs = append(places, place{q, i}), append(queries, data.Queries[q]), append(docs, data.Docs[h.Doc])
		}
		if len(places) >= rerankPairs || q == len(run)-1 && len(places) > 0 {
			if err := flush(); err != nil {
				return nil, 0, err
			}
		}
	}
	if e.Ranks != nil && e.Ranks.Rank() > 0 {
		return nil, 0, nil
	}
	return out, cut, nil
}
