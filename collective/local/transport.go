package local

import (
	"context"
	"errors"
	"fmt"
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
	staged [2]staging
}

// staging is memory of the host for a device's copies.
type staging struct {
	device gpustage.Device
	mem    *gpustage.HostMemory
}

// of gives n bytes.
func (b *staging) of(d gpustage.Device, n int) ([]byte, error) {
	if n == 0 {
		return nil, nil
	}
	if b.mem == nil || b.device != d || b.mem.Bytes() < n {
		more := n
		if b.mem != nil {
			more = max(n, b.mem.Bytes()*3/2) // so that it does not grow often
		}
		if err := b.free(); err != nil {
			return nil, err
		}
		m, err := gpustage.Staging(d, more)
		if err != nil {
			return nil, fmt.Errorf("memory for what others read: %w", err)
		}
		*b = staging{d, m}
	}
	return b.mem.Data()[:n], nil
}

func (b *staging) free() error {
	m := b.mem
	if b.mem = nil; m == nil {
		return nil
	}
	return m.Free()
}

// close frees what others have read. Of a job that has failed somebody may read yet, when the wait for it is over: that memory ends with its
// device.
func (t *transport) close() error {
	if t.hub.job.fate.Err() != nil {
		return nil
	}
	return errors.Join(t.staged[0].free(), t.staged[1].free())
}

// Rank and Size are of the group.
func (t *transport) Rank() int { return t.rank }
func (t *transport) Size() int { return len(t.hub.ranks) }

// AllToAll lends parts[k] to rank k.
func (t *transport) AllToAll(c *engine.Call, parts []gpustage.Tensor, into func() ([]gpustage.Tensor, error)) ([]gpustage.Tensor, error) {
	return t.meet(c, parts, t.rank, t.rank, into)
}

// Gather lends own to every rank.
func (t *transport) Gather(c *engine.Call, own gpustage.Tensor, into func() ([]gpustage.Tensor, error)) ([]gpustage.Tensor, error) {
	return t.meet(c, []gpustage.Tensor{own}, 0, nobody, into)
}

// Broadcast lends root's x.
func (t *transport) Broadcast(c *engine.Call, x gpustage.Tensor, root int) (gpustage.Tensor, error) {
	var mine []gpustage.Tensor
	if t.rank == root {
		mine = []gpustage.Tensor{x}
	}
	posts, err := t.lend(c, mine, nobody)
	if err != nil || t.rank == root {
		return x, err
	}
	return t.view(c, posts[root], 0, x), c.Stream.Sync()
}

// nobody, as own, is that no part stays here: all of it is for others.
const nobody = -1

// meet lends tensors and returns what each rank lends at an index. The one at own is this rank's alone.
func (t *transport) meet(c *engine.Call, mine []gpustage.Tensor, index, own int, into func() ([]gpustage.Tensor, error)) ([]gpustage.Tensor, error) {
	posts, err := t.lend(c, mine, own)
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

// lend shows the others tensors, but for the one at own, if there is one, which stays here.
func (t *transport) lend(c *engine.Call, mine []gpustage.Tensor, own int) ([]post, error) {
	p := post{call: c, tensors: mine}
	if !c.Host && t.Size() > 1 {
		if err := t.hub.job.fate.Err(); err != nil {
			return nil, t.hub.data.giveBack(t.rank, t.wait, err) // others may still read what would be written over
		}
		p.tensors, p.bytes = nil, make([][]byte, len(mine))
		total := 0
		for k, x := range mine {
			if k != own {
				total += x.Len() * x.DType.Size()
			}
		}
		room, err := t.staged[c.Phase%2].of(c.Stream.Device(), total)
		if err != nil {
			return nil, err
		}
		for k, x := range mine {
			if n := x.Len() * x.DType.Size(); n > 0 && k != own {
				p.bytes[k], room = room[:n], room[n:]
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
		return collective.Stopped(ctx)
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
