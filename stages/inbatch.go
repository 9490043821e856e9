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

// drawn counts rows that InBatch could give less than it says.
type drawn struct {
	Fewer int // than N documents, or with all of them, none
	Bare  int // of these, rows that have none, nor a negative of their own: nothing is learned of them
}

func (d drawn) plus(o drawn) drawn { return drawn{d.Fewer + o.Fewer, d.Bare + o.Bare} }

// draw is a chunk of this rank's rows, each with what it gets.
func (c *Chunk) draw() (*Chunk, drawn, error) {
	var count drawn
	if c.InBatch == nil {
		return c, count, nil
	}
	b := *c.InBatch
	if b.Lo < 0 || b.Hi < b.Lo || b.Hi > len(c.Examples) || b.N < dataset.AllNegatives {
		return nil, count, fmt.Errorf("a chunk of %d rows has InBatch %+v: want a part of its rows, and a number of negatives or dataset.AllNegatives", len(c.Examples), b)
	}
	others, err := dataset.NewOthers(c.Examples)
	if err != nil {
		return nil, count, err
	}
	out := *c
	out.InBatch, out.Data, out.Examples = nil, withOthers{c.Data}, nil
	for i := b.Lo; i < b.Hi; i++ {
		e := others.With(i, b.N, b.Seed, b.Epoch)
		if got := len(e.Texts) - len(c.Examples[i].Texts); got < max(b.N, 1) {
			count.Fewer++
			if len(e.Texts) == 2 {
				count.Bare++
			}
		}
		out.Examples = append(out.Examples, e)
	}
	return &out, count, nil
}

// withOthers are Rows that have documents of other rows in one more column.
type withOthers struct{ Rows }

func (r withOthers) Columns() []dataset.Column {
	return append(slices.Clip(r.Rows.Columns()), dataset.Column{Role: dataset.Negative, Source: "a document of another row", Ragged: true})
}

// HasScores is false: other rows' documents have none for this one's query.
func (withOthers) HasScores() bool { return false }
