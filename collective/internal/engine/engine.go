// Package engine carries out data collectives on top of a transport: what local, mpi and nccl share. Transports move bytes;
// everything that decides a bit of a result is here, once: which rank sums what, in which order, and where a bfloat16 wire
// rounds. All arithmetic is ops of the caller's stream, so it runs where the tensors are.
//
//	all-gather       [round own rows]   gather             [widen]
//	reduce-scatter   [round all rows]   all-to-all         sum own part in the order of ranks
//	all-reduce       a reduce-scatter of equal parts, then an all-gather of the sums
//	broadcast        broadcast
//
// An all-to-all sends as many bytes per rank as a ring does, (W-1)/W of the tensor, but each contribution arrives unsummed:
// that is what makes the order of ranks, and sums in F32 of a bfloat16 wire, possible. The price is room for W parts instead of
// two, which [Chunk] bounds, and, across machines of several GPUs each, more traffic between machines than a ring that sums as it
// passes.
package engine

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"

	"contraflow/collective"
	"contraflow/gpustage"
)

type (
	tensor = gpustage.Tensor
	stream = gpustage.Stream
)

// Chunk is the most bytes of scratch that one kind of room takes, and there are at most four kinds: larger calls are cut
// into several exchanges.
const Chunk = 32 << 20

// block is how many elements a processor sums at a time: two f32 blocks stay in a 48 KiB first-level cache.
const block = 4096

// Transport moves tensors between the ranks of a group. All tensors are vectors. What the methods return are views, one per
// rank: the peers' own memory where it can be reached, otherwise into()[k]. Views, and what this rank has lent in turn, hold until
// the transport's next call or Release.
type Transport interface {
	Rank() int
	Size() int
	// AllToAll sends parts[k] to rank k.
	AllToAll(c *Call, parts []tensor, into func() ([]tensor, error)) ([]tensor, error)
	// Gather sends own to every rank.
	Gather(c *Call, own tensor, into func() ([]tensor, error)) ([]tensor, error)
	// Broadcast returns a view of root's x; other transports than shared memory receive in x itself.
	Broadcast(c *Call, x tensor, root int) (tensor, error)
	// Release ends a call.
	Release(c *Call) error
	// Refuse ends the job because this rank can't go on with c, and returns what has ended it.
	Refuse(c *Call, err error) error
}

// Call is a collective under way.
type Call struct {
	collective.Call
	Seq    int64 // of the group's data collectives, from 1
	Phase  int   // of the transport calls within the collective
	Host   bool  // the tensors are in host memory
	Stream stream
	For    string // what it is for; may be ""
}

func (c *Call) String() string { return collective.In(c.Call.String(), c.For) }

// Group implements the data collectives of collective.Group.
type Group struct {
	t       Transport
	seq     int64
	chunk   int   // bytes
	moved   int64 // bytes that the transport was given for other ranks in the call under way
	purpose string
	scratch [5]scratch

	mu      sync.Mutex
	traffic collective.Traffic
}

// The kinds of room. Each is one allocation that grows.
const (
	// Own contribution, rounded: two rooms that take turns, as peers may look at one until the next exchange has begun.
	roomWire = iota
	_
	roomPeer // what arrives
	roomAcc
	roomTmp
)

type scratch struct {
	device gpustage.Device
	mem    gpustage.Memory
}

// New makes a group of a transport.
func New(t Transport) *Group {
	return &Group{t: t, chunk: Chunk, traffic: collective.Traffic{Calls: map[collective.Op]int64{}, Bytes: map[collective.Op]int64{}}}
}

// SetChunk makes a chunk smaller, so that tests need no large tensors. All ranks must do it.
func (g *Group) SetChunk(bytes int) { g.chunk = bytes }

// Rank is this rank's number within the group.
func (g *Group) Rank() int { return g.t.Rank() }

// Size is the number of ranks of the group.
func (g *Group) Size() int { return g.t.Size() }

// For says what the data collectives that follow are for.
func (g *Group) For(purpose string) { g.purpose = purpose }

// Traffic is what this rank has sent.
func (g *Group) Traffic() collective.Traffic {
	g.mu.Lock()
	defer g.mu.Unlock()
	return collective.Traffic{Calls: maps.Clone(g.traffic.Calls), Bytes: maps.Clone(g.traffic.Bytes)}
}

// Count adds an operation to the traffic.
func (g *Group) Count(op collective.Op, bytes int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.traffic.Calls[op]++
	g.traffic.Bytes[op] += bytes
}

// Close frees the scratch.
func (g *Group) Close() error {
	for i := range g.scratch {
		if m := g.scratch[i].mem; m != nil {
			if err := m.Free(); err != nil {
				return err
			}
			g.scratch[i] = scratch{}
		}
	}
	return nil
}

// room gives a vector of a kind, valid until the kind's next.
func (g *Group) room(c *Call, kind int, t gpustage.DType, n int) (tensor, error) {
	r := &g.scratch[kind]
	bytes := n * t.Size()
	if r.mem == nil || r.mem.Bytes() < bytes || r.device != c.Stream.Device() {
		if r.mem != nil {
			if err := c.Stream.Sync(); err != nil {
				return tensor{}, err
			}
			if err := r.mem.Free(); err != nil {
				return tensor{}, err
			}
			r.mem = nil
		}
		m, err := c.Stream.Device().Alloc(max(bytes, 64))
		if err != nil {
			return tensor{}, fmt.Errorf("%d bytes of scratch: %w", bytes, err)
		}
		*r = scratch{c.Stream.Device(), m}
	}
	return tensor{Mem: r.mem, Rows: 1, Cols: n, Stride: n, DType: t}, nil
}

// do runs one collective: run's error, or a refusal of the arguments, ends the job and stays with the stream.
func (g *Group) do(s stream, call collective.Call, host bool, check error, run func(c *Call) error) {
	g.seq++
	g.moved = 0
	if check == nil && call.Sum() == 0 { // nothing travels, and what is absent does not say of which columns and type
		call.Cols, call.DType, call.Wire = 0, gpustage.F32, gpustage.F32
	}
	c := &Call{Call: call, Seq: g.seq, Host: host, Stream: s, For: g.purpose}
	if check == nil && len(call.Rows) != g.Size() {
		check = fmt.Errorf("rows %v of a group of %d ranks", call.Rows, g.Size())
	}
	if check == nil && call.Wire != call.DType && call.Wire != gpustage.BF16 {
		check = fmt.Errorf("a wire of %s; want the tensors' %s, or bf16", call.Wire, call.DType)
	}
	if check == nil && call.DType != gpustage.F32 && call.DType != gpustage.F64 {
		check = fmt.Errorf("%s tensors; want f32 or f64", call.DType)
	}
	if check == nil && host {
		check = s.Sync() // free, and the others learn of a failure here and now
	}
	if check != nil {
		s.Fail(g.t.Refuse(c, fmt.Errorf("%s: %w", collective.In(string(call.Op), c.For), check)))
		return
	}
	returned := false
	defer func() { // a panic, which may be caught further up, or Goexit: others must not read what this rank has lent when it has gone
		if !returned {
			v := recover()
			reason := errors.New("its goroutine ended")
			if v != nil {
				reason = fmt.Errorf("panic: %v", v)
			}
			s.Fail(g.t.Refuse(c, fmt.Errorf("%s: %w", c, reason)))
			if v != nil {
				panic(v)
			}
		}
	}()
	err := run(c)
	returned = true
	if err != nil {
		s.Fail(g.t.Refuse(c, err))
		return
	}
	if err := g.t.Release(c); err != nil {
		s.Fail(err)
		return
	}
	g.Count(call.Op, g.moved) // not what the call says: that is what a plan says, which is compared with this
}

// give counts what the transport is given for so many other ranks.
func (g *Group) give(x tensor, ranks int) {
	g.moved += int64(x.Cols * x.DType.Size() * ranks)
}

// AllGather gives every rank the rows of all.
func (g *Group) AllGather(s stream, dst, src tensor, rows []int, wire gpustage.DType) {
	like := oneOf(dst, src)
	all, own, err := rowwise(g, dst, src, rows, like, "dst", "src")
	g.do(s, collective.GatherCall(rows, like.Cols, like.DType, wire), onHost(like), err, func(c *Call) error {
		if g.Size() == 1 && wire == like.DType {
			move(s, all[0], own)
			return nil
		}
		return g.gather(c, all, own)
	})
}

// gather brings every rank's own to all[k], chunk by chunk if that takes scratch.
func (g *Group) gather(c *Call, all []tensor, own tensor) error {
	size := g.chunk
	if c.Wire == c.DType {
		size = math.MaxInt
	}
	return g.chunks(c, size, all, func(lo, hi int) error {
		dst := make([]tensor, len(all))
		for k := range all {
			dst[k] = clip(all[k], lo, hi)
		}
		src := clip(own, lo, hi)
		into := func() ([]tensor, error) { return slices.Clone(dst), nil }
		if c.Wire != c.DType {
			w, err := g.room(c, roomWire+c.Phase%2, c.Wire, src.Cols)
			if err != nil {
				return err
			}
			move(c.Stream, w, src)
			src = w
			into = g.into(c, dst)
		}
		g.give(src, g.Size()-1)
		views, err := g.t.Gather(c, src, into)
		if err != nil {
			return err
		}
		for k := range dst {
			move(c.Stream, dst[k], views[k])
		}
		return nil
	})
}

// ReduceScatter gives each rank its own rows of the sum over ranks.
func (g *Group) ReduceScatter(s stream, dst, src tensor, rows []int, wire gpustage.DType) {
	like := oneOf(src, dst)
	all, own, err := rowwise(g, src, dst, rows, like, "src", "dst")
	g.do(s, collective.ReduceScatterCall(rows, like.Cols, like.DType, wire), onHost(like), err, func(c *Call) error {
		if g.Size() == 1 && wire == like.DType {
			move(s, own, all[0])
			return nil
		}
		return g.reduce(c, own, all)
	})
}

// reduce makes own the sum over ranks of their all[rank], chunk by chunk. own may be all[rank].
func (g *Group) reduce(c *Call, own tensor, all []tensor) error {
	return g.chunks(c, g.chunk, all, func(lo, hi int) error {
		src := make([]tensor, len(all))
		total := 0
		for k := range all {
			src[k] = clip(all[k], lo, hi)
			total += src[k].Cols
		}
		dst := clip(own, lo, hi)
		if c.Wire != c.DType {
			w, err := g.room(c, roomWire+c.Phase%2, c.Wire, total)
			if err != nil {
				return err
			}
			at := 0
			for k := range src {
				part := w.Columns(at, at+src[k].Cols)
				move(c.Stream, part, src[k])
				src[k] = part
				at += part.Cols
			}
		}
		same := make([]tensor, len(all))
		for k := range same {
			same[k] = dst
		}
		for k := range src {
			if k != g.Rank() {
				g.give(src[k], 1)
			}
		}
		views, err := g.t.AllToAll(c, src, g.into(c, same))
		if err != nil {
			return err
		}
		return g.sum(c, dst, views)
	})
}

// sum is dst = views[0] + views[1] + ..., element by element in that order, in dst's type. dst may be one of the views.
func (g *Group) sum(c *Call, dst tensor, views []tensor) error {
	if dst.Cols == 0 {
		return nil
	}
	s, size := c.Stream, dst.Cols
	if onHost(dst) {
		size = min(size, block)
	}
	acc, err := g.room(c, roomAcc, dst.DType, size)
	if err != nil {
		return err
	}
	tmp := acc
	if c.Wire != dst.DType {
		if tmp, err = g.room(c, roomTmp, dst.DType, size); err != nil {
			return err
		}
	}
	for lo := 0; lo < dst.Cols; lo += size {
		hi := min(lo+size, dst.Cols)
		wide := func(k int, room tensor) tensor {
			v := views[k].Columns(lo, hi)
			if v.DType == dst.DType {
				return v
			}
			room = room.Columns(0, hi-lo)
			s.Copy(room, v)
			return room
		}
		y := dst.Columns(lo, hi)
		a := wide(0, acc)
		for k := 1; k < len(views); k++ {
			to := acc.Columns(0, hi-lo)
			if k == len(views)-1 {
				to = y
			}
			s.Add(to, a, wide(k, tmp))
			a = to
		}
		if len(views) == 1 {
			s.Copy(y, a)
		}
	}
	return nil
}

// AllReduce makes x the sum over ranks.
func (g *Group) AllReduce(s stream, x tensor, wire gpustage.DType) {
	call := collective.AllReduceCall(x.Len(), g.Size(), x.DType, wire)
	g.do(s, call, onHost(x), contiguous("x", x), func(c *Call) error {
		if g.Size() == 1 && wire == x.DType {
			return nil
		}
		v := vector(x)
		at := 0
		all := make([]tensor, g.Size())
		for k, n := range call.Rows {
			all[k] = v.Columns(at, at+n)
			at += n
		}
		own := all[g.Rank()]
		if err := g.reduce(c, own, all); err != nil {
			return err
		}
		return g.gather(c, all, own)
	})
}

// Broadcast makes x that of rank root.
func (g *Group) Broadcast(s stream, x tensor, root int) {
	err := contiguous("x", x)
	if err == nil && (root < 0 || root >= g.Size()) {
		err = fmt.Errorf("from rank %d of %d", root, g.Size())
		root = 0
	}
	g.do(s, collective.BroadcastCall(x.Len(), g.Size(), root, x.DType), onHost(x), err, func(c *Call) error {
		c.Phase++
		v := vector(x)
		if g.Rank() == root {
			g.give(v, g.Size()-1)
		}
		from, err := g.t.Broadcast(c, v, root)
		if err != nil {
			return err
		}
		move(s, v, from)
		return nil
	})
}

// chunks calls f for ranges of elements of every rank's part, so that the parts' ranges together stay within so many bytes.
// Every rank makes the same calls, as all know all sizes.
func (g *Group) chunks(c *Call, bytes int, parts []tensor, f func(lo, hi int) error) error {
	longest := 0
	for k := range parts {
		longest = max(longest, parts[k].Cols)
	}
	step := max(1, bytes/c.DType.Size()/len(parts))
	for lo := 0; lo < longest || lo == 0; lo += step {
		c.Phase++
		if err := f(lo, lo+step); err != nil {
			return err
		}
	}
	return nil
}

// into makes room for what peers send, shaped like the given parts, when a transport asks for it.
func (g *Group) into(c *Call, like []tensor) func() ([]tensor, error) {
	return func() ([]tensor, error) {
		total := 0
		for _, p := range like {
			total += p.Cols
		}
		all, err := g.room(c, roomPeer, c.Wire, total)
		if err != nil {
			return nil, err
		}
		parts := make([]tensor, len(like))
		at := 0
		for k, p := range like {
			parts[k] = all.Columns(at, at+p.Cols)
			at += p.Cols
		}
		return parts, nil
	}
}

// move copies, unless there is nothing to copy or it is there already.
func move(s stream, dst, src tensor) {
	if dst.Cols > 0 && !(dst.Mem == src.Mem && dst.Off == src.Off && dst.DType == src.DType) {
		s.Copy(dst, src)
	}
}

func onHost(t tensor) bool {
	_, ok := t.Mem.(*gpustage.HostMemory)
	return ok
}

// clip is elements lo to hi of a vector, as far as it goes.
func clip(v tensor, lo, hi int) tensor {
	return v.Columns(min(lo, v.Cols), min(hi, v.Cols))
}

func oneOf(a, b tensor) tensor {
	if a.IsZero() {
		return b
	}
	return a
}

func vector(t tensor) tensor {
	if t.Len() == 0 {
		t.Rows, t.Cols, t.Stride = 1, 0, 0
		return t
	}
	return t.Vector()
}

func contiguous(name string, t tensor) error {
	switch {
	case t.IsZero() && t.Len() > 0:
		return fmt.Errorf("%s is missing", name)
	case !t.Contiguous():
		return fmt.Errorf("%s is %v; want a contiguous one", name, t)
	case !t.IsZero() && (t.Off+t.Len())*t.DType.Size() > t.Mem.Bytes():
		return fmt.Errorf("%s is %v at element %d of %d bytes", name, t, t.Off, t.Mem.Bytes())
	}
	return nil
}

// rowwise checks whole[sum(rows), C] and own[rows[rank], C] and cuts the first by ranks, all as vectors.
func rowwise(g *Group, whole, own tensor, rows []int, like tensor, wholeName, ownName string) (all []tensor, mine tensor, err error) {
	if len(rows) != g.Size() {
		return nil, mine, fmt.Errorf("rows %v of a group of %d ranks", rows, g.Size())
	}
	sum := 0
	for r, n := range rows {
		if n < 0 {
			return nil, mine, fmt.Errorf("rank %d has %d rows", r, n)
		}
		sum += n
	}
	for _, x := range []struct {
		name string
		t    tensor
		rows int
	}{{wholeName, whole, sum}, {ownName, own, rows[g.Rank()]}} {
		if x.rows == 0 && (x.t.IsZero() || x.t.Len() == 0) {
			continue
		}
		if x.t.IsZero() || x.t.Rows != x.rows || x.t.Cols != like.Cols || x.t.DType != like.DType {
			return nil, mine, fmt.Errorf("%s is %v; rows %v want %s[%d %d] on rank %d", x.name, x.t, rows, like.DType, x.rows, like.Cols, g.Rank())
		}
		if err := contiguous(x.name, x.t); err != nil {
			return nil, mine, err
		}
	}
	w := vector(whole)
	all = make([]tensor, len(rows))
	at := 0
	for r, n := range rows {
		all[r] = w.Columns(at, at+n*like.Cols)
		at += n * like.Cols
	}
	mine = vector(own)
	part := all[g.Rank()]
	if mine.Mem == part.Mem && mine.Cols > 0 && mine.Off != part.Off && mine.Off < w.Off+w.Cols && w.Off < mine.Off+mine.Cols {
		return nil, mine, fmt.Errorf("%s lies within %s but is not this rank's part of it", ownName, wholeName)
	}
	return all, mine, nil
}
