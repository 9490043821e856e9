package local

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"contraflow/collective"
	"contraflow/collective/internal/engine"
	"contraflow/gpustage"
)

// point is where the ranks of a group meet, again and again. A meeting is complete when all ranks have come, each with a
// post that the others read.
//
// After a lending meeting the posts' tensors are read by the others. A rank that comes to the next meeting has read what it
// wanted; a rank that leaves because the job has failed first waits until nobody reads any more, which takes no longer than a copy:
// its memory may be unmapped when it has gone. That holds for a rank that panics in the middle of a call, too (package engine refuses the
// call). The job's deadline ends this wait as it ends all others; the error then says who still reads.
type point struct {
	hub *hub

	mu      sync.Mutex
	n       int64 // meetings completed
	arrived int
	what    func() string // the operation of the last rank that came
	here    []bool
	gone    []bool        // left the job
	posts   [2][]post     // of meetings with even and odd numbers: the last one's are read while the next one's are written
	start   time.Time     // when the last rank came to the last meeting
	lent    []bool        // reads others' tensors
	reading int           // number of those
	idle    chan struct{} // closed when reading is 0 again
	wake    []chan struct{}
}

// post is what a rank brings to a meeting.
type post struct {
	call    *engine.Call
	tensors []gpustage.Tensor // in host memory
	bytes   [][]byte          // instead, of tensors elsewhere
	message []byte
}

func newPoint(h *hub) *point {
	n := len(h.ranks)
	p := &point{hub: h, here: make([]bool, n), gone: make([]bool, n), lent: make([]bool, n), posts: [2][]post{make([]post, n), make([]post, n)}}
	for range n {
		p.wake = append(p.wake, make(chan struct{}, 1))
	}
	for k, r := range h.ranks {
		p.gone[k] = h.job.left[r] // the caller holds the job's lock
	}
	return p
}

// waiter is a rank's alarm clock, kept from wait to wait.
type waiter struct{ timer *time.Timer }

func newWaiter() *waiter {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &waiter{t}
}

// meet waits for all ranks and returns what each has brought. what names the operation in errors.
func (p *point) meet(ctx context.Context, rank int, mine post, lend bool, w *waiter, what func() string) ([]post, time.Time, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unlend(rank)
	if err := p.arrive(rank, mine, lend, what); err != nil {
		return nil, time.Time{}, p.abandon(w, err)
	}
	n := p.n
	if p.here[rank] { // not complete yet
		p.mu.Unlock()
		cause := p.sleep(ctx, rank, w)
		p.mu.Lock()
		if p.n == n {
			return nil, time.Time{}, p.abandon(w, p.explain(cause, rank, what))
		}
		select { // a wake-up that came too late to be the reason
		case <-p.wake[rank]:
		default:
		}
	}
	return p.posts[p.n%2], p.start, nil
}

// arrive posts, and completes the meeting if everybody else is there.
func (p *point) arrive(rank int, mine post, lend bool, what func() string) error {
	fate := p.hub.job.fate
	if err := fate.Err(); err != nil {
		return err
	}
	for k, gone := range p.gone {
		if gone && !p.here[k] {
			return fate.Fail(p.hub.ranks[k], fmt.Errorf("it has left the job; rank %d waits for it in %s", p.hub.ranks[rank], what()))
		}
	}
	posts := p.posts[(p.n+1)%2]
	posts[rank] = mine
	p.here[rank] = true
	p.what = what
	p.hub.job.last[p.hub.ranks[rank]].Store(&what)
	if p.arrived++; p.arrived < len(posts) {
		return nil
	}
	if err := p.compare(posts); err != nil {
		return err
	}
	p.n++
	p.arrived = 0
	p.start = time.Now()
	for k := range p.here {
		p.here[k] = false
	}
	if lend {
		p.reading, p.idle = len(posts), make(chan struct{})
	}
	for k := range posts {
		p.lent[k] = lend
		if k != rank {
			p.wake[k] <- struct{}{}
		}
	}
	return nil
}

// compare fails the job if ranks have come to different operations.
func (p *point) compare(posts []post) error {
	a := posts[0].call
	for k, o := range posts {
		if b := o.call; a != nil && (!a.Equal(b.Call) || a.Phase != b.Phase) {
			return p.hub.job.fate.Fail(p.hub.ranks[k], fmt.Errorf("ranks disagree: rank %d calls %s, rank %d calls %s", p.hub.ranks[0], a, p.hub.ranks[k], b))
		}
	}
	return nil
}

// sleep returns when the meeting is complete, with nil, or with the reason why the rank no longer waits.
func (p *point) sleep(ctx context.Context, rank int, w *waiter) error {
	fate := p.hub.job.fate
	w.timer.Reset(p.hub.job.deadline)
	defer w.timer.Stop()
	select {
	case <-p.wake[rank]:
		return nil
	case <-fate.Done():
		return fate.Err()
	case <-ctx.Done():
		return collective.Stopped(ctx)
	case <-w.timer.C:
		return fmt.Errorf("within %v", p.hub.job.deadline)
	}
}

// explain ends the job with why a rank no longer waits: somebody is missing, or its caller has given up.
func (p *point) explain(cause error, rank int, what func() string) error {
	fate := p.hub.job.fate
	if err := fate.Err(); err != nil {
		return err
	}
	if errors.Is(cause, context.Canceled) {
		return fate.Fail(p.hub.ranks[rank], fmt.Errorf("%s: %w", what(), cause))
	}
	var missing []int
	for k, here := range p.here {
		if !here {
			missing = append(missing, p.hub.ranks[k])
		}
	}
	also := ""
	if last := p.hub.job.last[missing[0]].Load(); last != nil {
		also = "; the last that it came to is " + (*last)()
	}
	if len(missing) > 1 {
		also += fmt.Sprintf(" (missing: %v)", missing)
	}
	return fate.Fail(missing[0], fmt.Errorf("it did not come to %s, where rank %d waits: %w%s", what(), p.hub.ranks[rank], cause, also))
}

// abandon is how a rank leaves a meeting that will not complete. The lock is held.
func (p *point) abandon(w *waiter, err error) error {
	if p.reading == 0 {
		return err
	}
	idle := p.idle // no other loan begins: the job has failed
	p.mu.Unlock()
	defer p.mu.Lock()
	w.timer.Reset(p.hub.job.deadline)
	defer w.timer.Stop()
	select {
	case <-idle:
		return err
	case <-w.timer.C:
		return errors.Join(err, fmt.Errorf("within %v it has not ended what ranks lend each other: rank %v still reads", p.hub.job.deadline, p.readers()))
	}
}

// readers are the ranks that read others' tensors.
func (p *point) readers() (ranks []int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for k, lent := range p.lent {
		if lent {
			ranks = append(ranks, p.hub.ranks[k])
		}
	}
	return ranks
}

// giveBack ends a rank's loan outside a meeting, because the job is over for it, and returns err.
func (p *point) giveBack(rank int, w *waiter, err error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unlend(rank)
	return p.abandon(w, err)
}

// unlend notes that a rank reads no more. The lock is held.
func (p *point) unlend(rank int) {
	if p.lent[rank] {
		p.lent[rank] = false
		if p.reading--; p.reading == 0 {
			close(p.idle)
		}
	}
}

// leave notes that a rank has left the job.
func (p *point) leave(rank int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gone[rank] = true
	if p.arrived > 0 && !p.here[rank] {
		p.hub.job.fate.Fail(p.hub.ranks[rank], fmt.Errorf("it has left the job; others wait for it in %s", p.what()))
	}
}
