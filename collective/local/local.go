// Package local runs the ranks of a job as goroutines of one process: the default for a mesh on one machine.
//
// Ranks meet. At a meeting each lends the others a view of its tensors, and once all have come every rank reads what
// it needs where it lies: nothing is copied that the operation itself does not copy, and each rank sums its own part, so
// the work is spread. The next meeting of the group ends the loan. Who waits at a meeting sleeps; computing goes on.
//
// Devices whose memory the processor can't address take part through host memory, pinned on a GPU: a copy out, the meeting, a copy in.
// So two ranks may share one GPU.
package local

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"contraflow/collective"
	"contraflow/collective/internal/engine"
)

// Option configures a job.
type Option func(*job)

// Deadline sets how long an operation waits for other ranks; the default is collective.DefaultDeadline.
func Deadline(d time.Duration) Option { return func(j *job) { j.deadline = d } }

// Pace makes every operation last as long as the link says from the moment when the last rank has come. Ranks sleep the
// rest of it. Package sim gives links.
func Pace(link Link) Option { return func(j *job) { j.link = link } }

// Link tells how long operations take.
type Link interface {
	Time(c collective.Call) time.Duration
}

// job is what the ranks share.
type job struct {
	deadline time.Duration
	link     Link
	fate     *engine.Fate

	mu     sync.Mutex
	groups map[string]*hub
	left   []bool // by rank

	last []atomic.Pointer[func() string] // by rank: the last operation that it came to
}

// hub is what the members of a group share.
type hub struct {
	job        *job
	ranks      []int // of the world, by rank of the group
	data, host *point
}

// New makes the worlds of n ranks, one for each, which closes it. A negative n panics.
func New(n int, opts ...Option) []collective.World {
	j := &job{deadline: collective.DefaultDeadline, fate: engine.NewFate(), groups: map[string]*hub{}, left: make([]bool, n), last: make([]atomic.Pointer[func() string], n)}
	for _, o := range opts {
		o(j)
	}
	ranks := make([]int, n)
	for r := range ranks {
		ranks[r] = r
	}
	h := j.hub("all ranks", ranks)
	ws := make([]collective.World, n)
	for r := range ws {
		ws[r] = &world{group: newGroup(h, r)}
	}
	return ws
}

// Run runs f as each of n ranks, each on a goroutine, closes each rank's world, and returns when all have returned. The first error ends the job, and is
// returned with its rank, as a [collective.RankError] behind which errors.Is and errors.As find it. No rank at all, n below 1, is an error.
func Run(n int, f func(w collective.World) error, opts ...Option) error {
	if n < 1 {
		return fmt.Errorf("local.Run: %d ranks; want at least 1", n)
	}
	ws := New(n, opts...)
	errs := make([]error, n)
	var wait sync.WaitGroup
	for r, w := range ws {
		wait.Go(func() {
			finished := false
			defer func() {
				if !finished { // a panic, or testing's FailNow
					w.Abort(errors.New("its goroutine ended"))
				}
			}()
			if errs[r] = f(w); errs[r] != nil {
				w.Abort(errs[r])
			} else {
				errs[r] = w.Close()
			}
			finished = true
		})
	}
	wait.Wait()
	if err := ws[0].Err(); err != nil {
		return err
	}
	return errors.Join(errs...)
}

func (j *job) hub(name string, ranks []int) *hub {
	j.mu.Lock()
	defer j.mu.Unlock()
	h := j.groups[name]
	if h == nil {
		h = &hub{job: j, ranks: ranks}
		h.data, h.host = newPoint(h), newPoint(h)
		j.groups[name] = h
	}
	return h
}

// group is a rank's membership.
type group struct {
	*engine.Group
	hub  *hub
	rank int
	data *transport
	wait *waiter // of exchanges
}

func newGroup(h *hub, rank int) *group {
	t := &transport{hub: h, rank: rank, wait: newWaiter()}
	return &group{Group: engine.New(t), hub: h, rank: rank, data: t, wait: newWaiter()}
}

// Exchange gives every rank the messages of all.
func (g *group) Exchange(ctx context.Context, message []byte) ([][]byte, error) {
	h := g.hub
	what := func() string { return collective.ExchangeFor(ctx) }
	posts, start, err := h.host.meet(ctx, g.rank, post{message: slices.Clone(message)}, false, g.wait, what)
	if err != nil {
		return nil, err
	}
	out := make([][]byte, len(posts))
	lengths := make([]int, len(posts))
	for r, p := range posts {
		out[r] = slices.Clone(p.message)
		lengths[r] = len(p.message)
	}
	call := collective.ExchangeCall(lengths)
	if err := h.pace(ctx, start, call); err != nil {
		return nil, err
	}
	g.Count(collective.OpExchange, call.Sent(g.rank))
	return out, nil
}

type world struct {
	*group
	splits int
	made   []*group
}

// Split gives the group of the ranks that pass the same color.
func (w *world) Split(ctx context.Context, color int) (collective.Group, error) {
	all, err := w.Exchange(ctx, engine.SplitMessage(color))
	if err != nil {
		return nil, err
	}
	ranks, culprit, err := engine.Members(all, color)
	if err != nil {
		return nil, w.hub.job.fate.Fail(culprit, err)
	}
	w.splits++
	name := fmt.Sprintf("ranks %v (split %d)", ranks, w.splits)
	g := newGroup(w.hub.job.hub(name, ranks), slices.Index(ranks, w.rank))
	w.made = append(w.made, g)
	return g, nil
}

// Abort ends the job.
func (w *world) Abort(reason error) { w.hub.job.fate.Fail(w.rank, reason) }

// Err is what has ended the job.
func (w *world) Err() error { return w.hub.job.fate.Err() }

// Done is closed when the job has failed.
func (w *world) Done() <-chan struct{} { return w.hub.job.fate.Done() }

// Close leaves the job. Ranks that wait for this one, now or later, get an error.
func (w *world) Close() error {
	j := w.hub.job
	j.mu.Lock()
	j.left[w.rank] = true
	hubs := make([]*hub, 0, len(j.groups))
	for _, h := range j.groups {
		hubs = append(hubs, h)
	}
	j.mu.Unlock()
	for _, h := range hubs {
		if r := slices.Index(h.ranks, w.rank); r >= 0 {
			h.data.leave(r)
			h.host.leave(r)
		}
	}
	var errs []error
	for _, g := range append(w.made, w.group) {
		errs = append(errs, g.Group.Close(), g.data.close())
	}
	return errors.Join(errs...)
}
