package engine

import (
	"sync"

	"contraflow/collective"
)

// Fate is how a job ends: in peace, or by the first failure, which every rank's every wait learns of.
type Fate struct {
	mu   sync.Mutex
	err  *collective.RankError
	done chan struct{}
}

// NewFate is an open one.
func NewFate() *Fate { return &Fate{done: make(chan struct{})} }

// Fail ends the job, unless it has ended, and returns what has ended it. The rank is that of reason, if it is a RankError.
func (f *Fate) Fail(rank int, reason error) error {
	re := collective.NewRankError(rank, reason)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = re
		close(f.done)
	}
	return f.err
}

// Done is closed when the job has failed.
func (f *Fate) Done() <-chan struct{} { return f.done }

// Err is what has ended the job, or nil.
func (f *Fate) Err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		return nil
	}
	return f.err
}
