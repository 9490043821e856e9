package embedder

import (
	"context"
	"errors"
	"sync/atomic"
)

// ErrClosed is what calls get whose model has been closed.
var ErrClosed = errors.New("the model is closed")

// Turns let several calls share an [Engine]: each has it for one pass, or for as long as it needs the stream, in the order in which they ask. So
// a call with few texts does not wait for all of one with many, and one whose context ends does not wait at all.
type Turns struct {
	c      chan struct{} // who has put something in has the turn
	closed atomic.Bool
}

// NewTurns is for one engine.
func NewTurns() *Turns { return &Turns{c: make(chan struct{}, 1)} }

// holding is the key of the turns that a context's caller has for longer than a pass.
type holding struct{}

// Take waits for a turn, which give ends. The context that it returns is for what is done meanwhile.
func (t *Turns) Take(ctx context.Context) (_ context.Context, give func(), err error) {
	if t == nil || ctx.Value(holding{}) == t {
		return ctx, func() {}, nil
	}
	if err := t.Err(); err != nil {
		return ctx, nil, err
	}
	select {
	case t.c <- struct{}{}:
	case <-ctx.Done():
		return ctx, nil, context.Cause(ctx)
	}
	if err := t.Err(); err != nil { // while it waited
		<-t.c
		return ctx, nil, err
	}
	return context.WithValue(ctx, holding{}, t), func() { <-t.c }, nil
}

// Close waits for the turn at hand and lets nobody have one again. Then free, which gives back what they were of; it is called once.
func (t *Turns) Close(free func() error) error {
	t.c <- struct{}{}
	defer func() { <-t.c }()
	if t.closed.Swap(true) {
		return nil
	}
	return free()
}

// Err tells whether it is closed.
func (t *Turns) Err() error {
	if t.closed.Load() {
		return ErrClosed
	}
	return nil
}
