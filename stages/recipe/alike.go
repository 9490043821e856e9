package recipe

import (
	"errors"
	"time"

	"contraflow/collective"
	"contraflow/io/dataset"
)

// ErrFirstTells is wrapped by an error of a process that need not be printed: that of the job's rank 0 is the same, and it tells.
var ErrFirstTells = errors.New("as rank 0 says")

// alikeError is about rows that can't be used, found when data is opened: all ranks have read the same rows. It is told once, without a rank's number.
type alikeError struct{ error }

func (e *alikeError) Unwrap() error { return e.error }

// alikeTakes is how long rank 0 may take to meet with a row that another rank has met with.
var alikeTakes = 5 * time.Second

// alike marks an error of opening as an alikeError, if it is one. Where rank 0 does not meet with it in time, its files may be others: then the rank that has is
// named.
func alike(w collective.World, err error) error {
	if !errors.Is(err, dataset.ErrBadRow) {
		return err
	}
	if w.Rank() > 0 {
		select {
		case <-w.Done():
		case <-time.After(alikeTakes):
			return err
		}
	}
	return &alikeError{err}
}

// withoutRank is an error of all of a job's ranks without the number of the one that has told of it.
func withoutRank(err error) error {
	var same *alikeError
	if errors.As(err, &same) {
		return same.error
	}
	return err
}

// ofProcess is what a process returns whose rank has failed with err.
func ofProcess(w collective.World, err error) error {
	var same *alikeError
	var end *collective.RankError
	switch mine := errors.As(err, &same); {
	case !errors.As(w.Err(), &end):
		return err
	case mine && w.Rank() == 0 && end.Rank == 0:
		return same.error
	case mine && end.Rank == 0 && end.Reason == same.Error():
		return errors.Join(ErrFirstTells, same.error)
	}
	return end // what this rank has seen of it may be less
}
