package local

import (
	"context"
	"time"

	"contraflow/collective"
	"contraflow/collective/internal/engine"
	"contraflow/gpustage"
)

// transport is a rank's side of a group's data collectives.
type transport struct {
	hub   *hub
	rank  int
	wait  *waiter
	seq   int64     // of the call under way
	start time.Time // when all had come to it
	// Tensors that the processor can't address, on their way, in buffers that take turns: peers may read one until the
	// next meeting.
	staged [2][][]byte
}

// Rank and Size are of the group.
func (t *transport) Rank() int { return t.rank }
func (t *transport) Size() int { return len(t.hub.ranks) }

// AllToAll lends parts[k] to rank k.
func (t *transport) AllToAll(c *engine.Call, parts []gpustage.Tensor, into func() ([]gpustage.Tensor, error)) ([]gpustage.Tensor, error) {
	return t.meet(c, parts, t.rank, into)
}

// Gather lends own to every rank.
func (t *transport) Gather(c *engine.Call, own gpustage.Tensor, into func() ([]gpustage.Tensor, error)) ([]gpustage.Tensor, error) {
	return t.meet(c, []gpustage.Tensor{own}, 0, into)
}

// Broadcast lends root's x.
func (t *transport) Broadcast(c *engine.Call, x gpustage.Tensor, root int) (gpustage.Tensor, error) {
	var mine []gpustage.Tensor
	if t.rank == root {
		mine = []gpustage.Tensor{x}
	}
	posts, err := t.lend(c, mine)
	if err != nil || t.rank == root {
		return x, err
	}
	return t.view(c, posts[root], 0, x), c.Stream.Sync()
}

// meet lends tensors and returns what each rank lends at an index.
func (t *transport) meet(c *engine.Call, mine []gpustage.Tensor, index int, into func() ([]gpustage.Tensor, error)) ([]gpustage.Tensor, error) {
	posts, err := t.lend(c, mine)
	if err != nil {
		return nil, err
	}
	room := make([]gpustage.Tensor, len(posts))
	if !c.Host || !allTensors(posts) {
		if room, err = into(); err != nil {
			return nil, err
		}
	}
	views := make([]gpustage.Tensor, len(posts))
	for k := range posts {
		if k == t.rank {
			views[k] = mine[index]
		} else {
			views[k] = t.view(c, posts[k], index, room[k])
		}
	}
	return views, c.Stream.Sync()
}

func (t *transport) lend(c *engine.Call, mine []gpustage.Tensor) ([]post, error) {
	p := post{call: c, tensors: mine}
	if !c.Host {
		p.tensors = nil
		staged := &t.staged[c.Phase%2]
		for k, x := range mine {
			n := x.Len() * x.DType.Size()
			if k == len(*staged) {
				*staged = append(*staged, nil)
			}
			if cap((*staged)[k]) < n {
				(*staged)[k] = make([]byte, n)
			}
			p.bytes = append(p.bytes, (*staged)[k][:n])
			if n > 0 {
				c.Stream.CopyOut(p.bytes[k], x)
			}
		}
		if err := c.Stream.Sync(); err != nil {
			return nil, err
		}
	}
	posts, start, err := t.hub.data.meet(context.Background(), t.rank, p, true, t.wait, c.String)
	if t.seq != c.Seq {
		t.seq, t.start = c.Seq, start
	}
	return posts, err
}

// view is what a peer lends, in place if this rank can address it.
func (t *transport) view(c *engine.Call, p post, index int, room gpustage.Tensor) gpustage.Tensor {
	switch {
	case p.tensors != nil && c.Host:
		return p.tensors[index]
	case room.Len() == 0:
	case p.tensors != nil:
		c.Stream.CopyIn(room, hostBytes(p.tensors[index]))
	default:
		c.Stream.CopyIn(room, p.bytes[index])
	}
	return room
}

// Release ends the loans of a call, and makes the call last as long as it takes over the link.
func (t *transport) Release(c *engine.Call) error {
	c.Phase++
	if _, _, err := t.hub.data.meet(context.Background(), t.rank, post{call: c}, false, t.wait, c.String); err != nil {
		return err
	}
	return t.hub.pace(context.Background(), t.start, c.Call)
}

// Refuse ends the job.
func (t *transport) Refuse(c *engine.Call, err error) error {
	return t.hub.data.giveBack(t.rank, t.wait, t.hub.job.fate.Fail(t.hub.ranks[t.rank], err))
}

// pace sleeps until a call that started at start is over.
func (h *hub) pace(ctx context.Context, start time.Time, c collective.Call) error {
	if h.job.link == nil {
		return nil
	}
	left := time.Until(start.Add(h.job.link.Time(c)))
	if left <= 0 {
		return nil
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-h.job.fate.Done():
		return h.job.fate.Err()
	}
}

func allTensors(posts []post) bool {
	for _, p := range posts {
		if p.tensors == nil {
			return false
		}
	}
	return true
}

// hostBytes views a tensor in host memory.
func hostBytes(t gpustage.Tensor) []byte {
	switch {
	case t.Len() == 0:
		return nil
	case t.DType == gpustage.F32:
		return gpustage.Bytes(gpustage.Slice[float32](t))
	case t.DType == gpustage.F64:
		return gpustage.Bytes(gpustage.Slice[float64](t))
	default:
		return gpustage.Bytes(gpustage.Slice[uint16](t))
	}
}
