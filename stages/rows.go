package stages

import (
	"errors"
	"fmt"
	"slices"

	"contraflow/io/dataset"
	"contraflow/pipeline"
)

// MapRows adds a stage that calls f with each row before it becomes tokens, one row at a time: see [Chunk.MapRows].
func MapRows(g *pipeline.Graph, name string, chunks pipeline.Port[*Chunk], f func(*Chunk, *dataset.Example) error) pipeline.Port[*Chunk] {
	if f == nil {
		return pipeline.Map[*Chunk, *Chunk](g, name, chunks, nil) // which Build refuses
	}
	return pipeline.Map(g, name, chunks, func(t *pipeline.Task, c *Chunk) (*Chunk, error) { return c.MapRows(t, f) })
}

// MapRows is a chunk of what f makes of each row; c itself stays as it is, for other stages that read it. f may change the texts, not their number, of which
// MapRows computes the hashes anew; and the weight, label, scores and teacher's embedding. A row that f returns an error for can't be used: the run ends before
// its step, as after [Chunk.Unusable].
func (c *Chunk) MapRows(t *pipeline.Task, f func(*Chunk, *dataset.Example) error) (*Chunk, error) {
	if c == nil || c.Data == nil { // Tokenize says so
		return c, nil
	}
	mapped := *c
	mapped.Examples = slices.Clone(c.Examples)
	for i := range mapped.Examples {
		e := &mapped.Examples[i]
		e.Texts, e.Scores, e.Teacher = slices.Clone(e.Texts), slices.Clone(e.Scores), slices.Clone(e.Teacher)
		row, n := e.Row, len(e.Texts)
		where := func(err error) error { return fmt.Errorf("%v: %w", c.Data.Locate(row-c.Offset), err) }
		if err := f(&mapped, e); err != nil {
			return c.Unusable(t, where(err))
		}
		if e.Row != row || len(e.Texts) != n {
			return nil, where(fmt.Errorf("of row %d with %d texts has been made row %d with %d: a row's texts may change, not their number", row, n, e.Row, len(e.Texts)))
		}
		if n > 0 {
			e.Hashes = make([]dataset.Hash128, n)
		}
		for k, text := range e.Texts {
			e.Hashes[k] = dataset.HashText(text)
		}
	}
	return &mapped, nil
}

// RowsError ends a run before the step that has rows which can't be used or read, here or on another rank. All steps before that one are done on all ranks, and
// their results seen, so that nothing is lost: [Encoder.Save] makes a checkpoint of what they came to.
type RowsError struct {
	Err  error // where the rows are, and what is wrong: of another rank's, its text
	Row  bool  // with a row itself, without which others go on: errors.Is(Err, dataset.ErrBadRow), on the rank that has read it
	Rank int   // that has them: all ranks tell of the same rows, the first of the batch that can't be used
}

func (e *RowsError) Error() string { return e.Err.Error() }
func (e *RowsError) Unwrap() error { return e.Err }

// OfRank is Rank: see [collective.NewRankError].
func (e *RowsError) OfRank() int { return e.Rank }

// Is tells that another rank's row is a bad one, too.
func (e *RowsError) Is(target error) bool { return e.Row && target == dataset.ErrBadRow }

// Unusable is what a stage of one's own, in a task of the stream, passes on in place of a chunk of Ingest's that has rows it can't use: the run then ends
// with a [RowsError], after the steps before theirs. Of rows that no Plan has ordered other ranks would not hear: err is returned, for the task to end the
// run with at once. So it is where the run has been stopped, which may be all that err says.
func (c *Chunk) Unusable(t *pipeline.Task, err error) (*Chunk, error) {
	if c.plan == nil || t.Context().Err() != nil {
		return nil, err
	}
	bad := *c
	bad.Examples, bad.InBatch, bad.EndsBatch, bad.EndsStep, bad.Next, bad.Place = nil, nil, false, false, nil, nil
	bad.bad = &RowsError{Err: err, Row: errors.Is(err, dataset.ErrBadRow)}
	t.EndBefore(bad.bad)
	return &bad, nil
}

// Bad is why a chunk has no rows: one of them can't be used, or read, and the run ends before the chunk's batch. nil of all others. Stages of one's own that
// read chunks pass such a one on as it is.
func (c *Chunk) Bad() error {
	if c.bad == nil {
		return nil
	}
	return c.bad
}

// ofPeers is the error of the first rank's rows that can't be used, if any rank has some.
func (b *Batch) ofPeers(peers []Peer, rank int) error {
	for r, p := range peers {
		switch {
		case p.Bad == "":
		case r == rank:
			return &RowsError{b.bad.Err, b.bad.Row, r}
		default:
			return &RowsError{errors.New(p.Bad), p.BadRow, r}
		}
	}
	return nil
}
