package remote

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"contraflow/collective"
	"contraflow/collective/internal/engine"
)

// Transport carries a group's data between processes.
type Transport interface {
	engine.Transport
	// Close ends it. After a failure it must not wait for others.
	Close() error
}

// Opener makes the transport of a new group of ranks. All of them call it, in the same order of groups. share gives every
// member what the group's first rank passes.
type Opener func(ctx context.Context, m *Member, share func(message []byte) ([]byte, error)) (Transport, error)

// Member is a rank's place in a group: what transports build on.
type Member struct {
	Client *Client
	Name   string
	Ranks  []int // of the world
	rank   int
}

// Rank is the number within the group.
func (m *Member) Rank() int { return m.rank }

// Size is that of the group.
func (m *Member) Size() int { return len(m.Ranks) }

// Begin announces a transport call; the first of a collective is what others compare.
func (m *Member) Begin(c *engine.Call) error {
	if err := m.Client.fate.Err(); err != nil {
		return err
	}
	if c.Phase > 1 || m.Size() == 1 {
		return nil
	}
	return m.Client.Issued(m.Name, int(c.Seq), c.Call.String(), c.String())
}

// Refuse ends the job because this rank can't go on with c.
func (m *Member) Refuse(_ *engine.Call, err error) error { return m.Client.Abort(err) }

// Wait looks at done until it says so, the job ends, or the deadline passes. After a few looks it sleeps between them, so that whoever
// computes has the processor.
func (m *Member) Wait(c *engine.Call, done func() (bool, error)) error {
	start := time.Now()
	for looks := 0; ; looks++ {
		ok, err := done()
		if err != nil {
			return m.Client.settle(func() error { return m.Client.Abort(fmt.Errorf("%s: %w", c, err)) })
		}
		if ok {
			return nil
		}
		if looks < eager || looks%burst != 0 {
			continue
		}
		time.Sleep(nap)
		if err := m.Client.fate.Err(); err != nil {
			return err
		}
		if looks%64 == 0 && time.Since(start) > m.Client.Deadline {
			return m.Client.Late(m.Name, int(c.Seq), c.String())
		}
	}
}

// Looking is also what lets MPI progress, a piece at a time: with one look between naps, MPICH took 181 ms for an all-reduce of 92 MB between
// 2 processes, with 16 it takes 25 (OpenMPI 28 and 26), and a lane that waits still uses less than a tenth of a processor.
const (
	eager = 20                    // looks before the first nap
	burst = 16                    // looks between naps
	nap   = 20 * time.Microsecond // the system makes it 70 or so
)

// group implements collective.Group.
type group struct {
	*engine.Group
	member    *Member
	transport Transport
	exchanges int
}

// Exchange gives every rank the messages of all.
func (g *group) Exchange(ctx context.Context, message []byte) ([][]byte, error) {
	g.exchanges++
	out, err := g.member.Client.Exchange(ctx, g.member.Name, g.exchanges, message)
	if err != nil {
		return nil, err
	}
	lengths := make([]int, len(out))
	for k := range out {
		lengths[k] = len(out[k])
	}
	g.Count(collective.OpExchange, collective.ExchangeCall(lengths).Sent(g.Rank()))
	return out, nil
}

// World implements collective.World for ranks in processes of their own.
type World struct {
	*group
	client *Client
	open   Opener
	splits int
	made   []*group
	ended  func(failed bool) error
	closed bool
}

// NewWorld makes the group of all ranks once they have all come. ended is called when the world closes, after its transports have, and before the connections of
// the star do. An error leaves nothing open.
func NewWorld(ctx context.Context, c *Client, open Opener, ended func(failed bool) error) (*World, error) {
	w := &World{client: c, open: open, ended: ended}
	ranks := make([]int, c.Size)
	for r := range ranks {
		ranks[r] = r
	}
	var err error
	if w.group, err = w.newGroup(ctx, c, "all ranks", ranks, c.Rank, c.Start); err != nil { // the job has failed, so that nobody is waited for
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

func (w *World) newGroup(ctx context.Context, c *Client, name string, ranks []int, rank int, patience time.Duration) (*group, error) {
	ctx, cancel := context.WithTimeout(collective.For(ctx, fmt.Sprintf("meeting as ranks %v", ranks)), patience)
	defer cancel()
	if err := c.Register(name, ranks); err != nil {
		return nil, err
	}
	g := &group{member: &Member{Client: c, Name: name, Ranks: ranks, rank: rank}}
	share := func(message []byte) ([]byte, error) {
		if rank > 0 {
			message = nil
		}
		g.exchanges++
		all, err := c.exchange(ctx, name, g.exchanges, message, patience)
		if err != nil {
			return nil, err
		}
		return all[0], nil
	}
	if _, err := share(nil); err != nil { // all are there
		return nil, err
	}
	t, err := w.open(ctx, g.member, share)
	if err != nil {
		return nil, c.Abort(fmt.Errorf("a communicator of ranks %v: %w", ranks, err))
	}
	g.transport = t
	g.Group = engine.New(t)
	w.made = append(w.made, g)
	return g, nil
}

// Split gives the group of the ranks that pass the same color.
func (w *World) Split(ctx context.Context, color int) (collective.Group, error) {
	all, err := w.Exchange(ctx, engine.SplitMessage(color))
	if err != nil {
		return nil, err
	}
	ranks, culprit, err := engine.Members(all, color)
	if err != nil {
		return nil, w.client.Abort(collective.NewRankError(culprit, err))
	}
	w.splits++
	g, err := w.newGroup(ctx, w.client, fmt.Sprintf("ranks %v (split %d)", ranks, w.splits), ranks, slices.Index(ranks, w.client.Rank), w.client.Deadline)
	if err != nil {
		return nil, err
	}
	return g, nil
}

// Abort ends the job. When it returns the others have been told.
func (w *World) Abort(reason error) { _ = w.client.Abort(reason) }

// Err is what has ended the job.
func (w *World) Err() error { return w.client.fate.Err() }

// Done is closed when the job has failed.
func (w *World) Done() <-chan struct{} { return w.client.fate.Done() }

// Close leaves the job: it waits until all ranks do, or the job has failed.
func (w *World) Close() error {
	if w.closed {
		return nil
	}
	w.closed = true
	w.client.Leave()
	var first error
	keep := func(err error) {
		if first == nil {
			first = err
		}
	}
	failed := w.Err() != nil
	for _, g := range slices.Backward(w.made) {
		keep(g.Group.Close())
		keep(g.transport.Close())
	}
	if w.ended != nil {
		keep(w.ended(failed))
	}
	keep(w.client.Close())
	return first
}
