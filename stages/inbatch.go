package stages

import (
	"context"
	"slices"

	"contraflow/io/dataset"
)

// A reranker's in-batch negatives are documents that other rows of the batch have, and which are in a row's own group then, so that nothing else of a
// graph knows of them: sub-batches, replay, accumulation and ranks are those of rows with as many negatives of their own. They are drawn of the whole batch,
// whichever rank has a row, and so every rank reads the texts of all rows of each batch, where it otherwise reads those of its own; it tokenizes the pairs of
// its own alone. What is drawn for a row is as [dataset.Others] says, and the same after a restart and on any number of ranks.

// withOthers are Rows that have documents of other rows in one more column.
type withOthers struct{ Rows }

func (r withOthers) Columns() []dataset.Column {
	return append(slices.Clip(r.Rows.Columns()), dataset.Column{Role: dataset.Negative, Source: "a document of another row", Ragged: true})
}

// HasScores is false: other rows' documents have none for this one's query.
func (withOthers) HasScores() bool { return false }

// InBatch gives rows lo to hi-1 of a whole batch n documents each of its other rows, or with dataset.AllNegatives all that are candidates: for chunks that
// Ingest has not made, which takes care of it by Plan.InBatch. data is what the examples are of, and what is returned beside them is what they are of then.
func InBatch(data Rows, batch []dataset.Example, lo, hi, n int, seed uint64, epoch int) (Rows, []dataset.Example, error) {
	others, err := dataset.NewOthers(batch)
	if err != nil {
		return nil, nil, err
	}
	return withOthers{data}, inBatchOf(others, lo, hi, n, seed, epoch), nil
}

// othersOf reads all rows of a batch.
func othersOf(ctx context.Context, r *dataset.Reader, b dataset.Batch) (*dataset.Others, error) {
	examples, err := r.Read(ctx, b.Pass, b.Rows)
	if err != nil {
		return nil, err
	}
	return dataset.NewOthers(examples)
}

func inBatchOf(others *dataset.Others, lo, hi, n int, seed uint64, epoch int) (own []dataset.Example) {
	for i := lo; i < hi; i++ {
		own = append(own, others.With(i, n, seed, epoch))
	}
	return own
}
