package stages

import (
	"errors"

	"contraflow/io/dataset"
	"contraflow/pipeline"
)

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
