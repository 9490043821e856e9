package stages

import (
	"fmt"
	"slices"

	"contraflow/io/dataset"
)

// InBatch has a reranker's rows get documents of other rows of their batch for negatives. They are in a row's own group then, so that nothing else of a graph
// knows of them: sub-batches, replay, accumulation and ranks are those of rows with as many negatives of their own. What a row gets is as [dataset.Others] says, and
// drawn of the whole batch, on whichever rank: so each rank reads all rows of each batch, and tokenizes the pairs of its own. It is drawn where texts become
// tokens, so that a stage of one's own behind Ingest may change a row's texts and these are what others get.
type InBatch struct {
	N      int // documents of other rows for each, or as many as there are; dataset.AllNegatives: all
	Lo, Hi int // which of a chunk's Examples, that are all rows of its batch, are this rank's
	Seed   uint64
	Epoch  int
}

// draw is a chunk of this rank's rows, each with what it gets.
func (c *Chunk) draw() (*Chunk, error) {
	if c.InBatch == nil {
		return c, nil
	}
	b := *c.InBatch
	if b.Lo < 0 || b.Hi < b.Lo || b.Hi > len(c.Examples) || b.N < dataset.AllNegatives {
		return nil, fmt.Errorf("a chunk of %d rows has InBatch %+v: want a part of its rows, and a number of negatives or dataset.AllNegatives", len(c.Examples), b)
	}
	others, err := dataset.NewOthers(c.Examples)
	if err != nil {
		return nil, err
	}
	out := *c
	out.InBatch, out.Data, out.Examples = nil, withOthers{c.Data}, nil
	for i := b.Lo; i < b.Hi; i++ {
		out.Examples = append(out.Examples, others.With(i, b.N, b.Seed, b.Epoch))
	}
	return &out, nil
}

// withOthers are Rows that have documents of other rows in one more column.
type withOthers struct{ Rows }

func (r withOthers) Columns() []dataset.Column {
	return append(slices.Clip(r.Rows.Columns()), dataset.Column{Role: dataset.Negative, Source: "a document of another row", Ragged: true})
}

// HasScores is false: other rows' documents have none for this one's query.
func (withOthers) HasScores() bool { return false }
