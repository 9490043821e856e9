package transformer

import (
	"errors"
	"sync"

	"contraflow/gpustage"
)

// changes counts what writes parameters that train, so that who copies them on another stream gets all of them from between two updates.
type changes struct {
	mu   sync.Mutex
	n    uint64         // odd while a change is being issued
	last gpustage.Event // after the last one; nil: there was none, or it is over
}

// Change calls write, which issues on s what writes parameters that train. Ops on s that come later read the new ones.
func (m *Model) Change(s gpustage.Stream, write func()) {
	c := m.changes
	c.mu.Lock()
	c.n++
	c.mu.Unlock()
	write()
	m.version.Changed()
	e := s.Record()
	c.mu.Lock()
	c.n++
	c.last = e
	c.mu.Unlock()
}

// ErrChanged is what a copy of parameters gets that an update has changed meanwhile.
var ErrChanged = errors.New("an update has changed the model while it was copied: copy it when the pipeline's Run has returned, or in a stage on the model's compute lane (pipeline.On) behind Apply, which the next update waits for")

// Unchanged calls read, which copies parameters to the host with s, after all changes so far. A change in between is [ErrChanged]: what was read is
// of two steps then.
func (m *Model) Unchanged(s gpustage.Stream, read func() error) error {
	c := m.changes
	c.mu.Lock()
	before, last := c.n, c.last
	c.mu.Unlock()
	if before%2 == 1 {
		return ErrChanged
	}
	if last != nil {
		s.Wait(last)
	}
	if err := read(); err != nil {
		return err
	}
	if err := s.Sync(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n != before {
		return ErrChanged
	}
	return nil
}
