package collectivetest

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"contraflow/collective"
	"contraflow/gpustage"
)

// message is what a rank says in an exchange: of any length, sometimes nothing.
func message(id, salt int) []byte {
	return bytes.Repeat([]byte{byte(id + 1), byte(salt)}, (id*7+salt*3)%23*b2i((id+salt)%4 != 0))
}

func (r *rank) exchange(g collective.Group, ids []int, salt int) {
	got, err := g.Exchange(context.Background(), message(ids[g.Rank()], salt))
	r.ok(err, "exchange")
	if len(got) != len(ids) {
		r.fail("an exchange of %d ranks gave %d messages", len(ids), len(got))
	}
	for k, id := range ids {
		if !bytes.Equal(got[k], message(id, salt)) {
			r.fail("exchange: rank %d said %v, want %v", k, got[k], message(id, salt))
		}
	}
	for _, m := range got { // they are the caller's
		clear(m)
	}
}

func testExchange(r *rank) {
	ids := r.members(r.World)
	for salt := range 40 {
		r.exchange(r.World, ids, salt)
	}
	long := bytes.Repeat([]byte{byte(r.Rank())}, 1<<20)
	got, err := r.Exchange(context.Background(), long)
	r.ok(err, "a long exchange")
	for k, m := range got {
		if len(m) != 1<<20 || m[0] != byte(k) || m[len(m)-1] != byte(k) {
			r.fail("a long message of rank %d came as %d bytes", k, len(m))
		}
	}
	clear(long)

	// Beside data collectives, from another goroutine.
	var wait sync.WaitGroup
	failed := make(chan any, 1)
	wait.Go(func() {
		defer func() {
			if p := recover(); p != nil {
				failed <- p
			}
		}()
		for salt := range 100 {
			r.exchange(r.World, ids, salt)
		}
	})
	for salt := range 30 {
		r.allReduce(r.World, ids, salt, 999, gpustage.F32, gpustage.F32)
	}
	wait.Wait()
	select {
	case p := <-failed:
		panic(p)
	default:
	}
}

// split makes the groups of a coloring and checks this rank's.
func (r *rank) split(color []int) (collective.Group, []int) {
	var ids []int
	for k, c := range color {
		if c == color[r.Rank()] {
			ids = append(ids, k)
		}
	}
	g, err := r.Split(context.Background(), color[r.Rank()])
	r.ok(err, "split by %v", color)
	if g.Size() != len(ids) || g.Rank() != slices.Index(ids, r.Rank()) {
		r.fail("split by %v: rank %d is %d of %d; want %d of %d", color, r.Rank(), g.Rank(), g.Size(), slices.Index(ids, r.Rank()), len(ids))
	}
	return g, ids
}

func testGroups(r *rank) {
	for _, f := range []func(k int) int{
		func(int) int { return 5 },
		func(k int) int { return k % 2 },
		func(k int) int { return -(k / 3) },
		func(k int) int { return k },
	} {
		color := make([]int, r.Size())
		for k := range color {
			color[k] = f(k)
		}
		g, ids := r.split(color)
		rows := make([]int, g.Size())
		for k := range rows {
			rows[k] = ids[k] % 4
		}
		r.allGather(g, ids, 1, shape{rows, 5, gpustage.F32, gpustage.BF16, true})
		r.reduceScatter(g, ids, 2, shape{rows, 5, gpustage.F32, gpustage.F32, false})
		r.allReduce(g, ids, 3, 100, gpustage.F64, gpustage.F64)
		r.broadcast(g, ids, 4, 10, g.Size()-1, gpustage.F32)
		r.exchange(g, ids, 5)
		r.allReduce(r.World, r.members(r.World), 6, 50, gpustage.F32, gpustage.F32)
	}
}

// testAtOnce: two goroutines of each rank use two groups of the same ranks, and come to them at any time.
func testAtOnce(r *rank) {
	color := make([]int, r.Size())
	a, ids := r.split(color)
	b, _ := r.split(color)
	var wait sync.WaitGroup
	failed := make(chan any, 2)
	for i, g := range []collective.Group{a, b} {
		s, err := r.device.OpenStream()
		r.ok(err, "a stream")
		wait.Go(func() {
			defer s.Close()
			defer func() {
				if p := recover(); p != nil {
					r.Abort(fmt.Errorf("beside this: %v", p))
					failed <- p
				}
			}()
			own := &rank{World: r.World, device: r.device, s: s}
			for salt := range 30 {
				own.allReduce(g, ids, salt*2+i, 700+300*i, gpustage.F32, gpustage.F32)
			}
		})
	}
	wait.Wait()
	select {
	case p := <-failed:
		panic(p)
	default:
	}
}

// testMesh: every shape that the ranks can form.
func testMesh(r *rank) {
	ctx := context.Background()
	for shard := 1; shard <= r.Size(); shard++ {
		if r.Size()%shard != 0 {
			continue
		}
		m := collective.Mesh{Replicate: r.Size() / shard, Shard: shard}
		c, err := collective.Connect(ctx, r.World, m)
		r.ok(err, "a mesh of %v", m)
		w, s := m.Place(r.Rank())
		if c.Replicate.Size() != m.Replicate || c.Shard.Size() != m.Shard || c.Replicate.Rank() != w || c.Shard.Rank() != s || m.Rank(w, s) != r.Rank() {
			r.fail("a mesh of %v: rank %d is %d of %d along replicate, %d of %d along shard", m, r.Rank(),
				c.Replicate.Rank(), c.Replicate.Size(), c.Shard.Rank(), c.Shard.Size())
		}
		along, across := make([]int, m.Shard), make([]int, m.Replicate)
		for k := range along {
			along[k] = m.Rank(w, k)
		}
		for k := range across {
			across[k] = m.Rank(k, s)
		}
		r.allReduce(c.Shard, along, shard, 40, gpustage.F32, gpustage.F32)
		r.allReduce(c.Replicate, across, shard, 40, gpustage.F32, gpustage.F32)
	}
}

// testTraffic counts by hand.
func testTraffic(r *rank) {
	g, ids := r.split(make([]int, r.Size()))
	w, me := r.Size(), r.Rank()
	rows := make([]int, w)
	for k := range rows {
		rows[k] = k + 1
	}
	s := shape{rows, 3, gpustage.F32, gpustage.F32, false}
	r.allGather(g, ids, 1, s)
	s.wire = gpustage.BF16
	r.allGather(g, ids, 1, s)
	r.reduceScatter(g, ids, 2, s)
	r.allReduce(g, ids, 3, 160*w, gpustage.F32, gpustage.F32)
	r.broadcast(g, ids, 4, 10, w-1, gpustage.F64)
	_, err := g.Exchange(context.Background(), make([]byte, 5+me))
	r.ok(err, "exchange")
	own, all := (me+1)*3, w*(w+1)/2*3 // elements
	want := map[collective.Op]int64{
		collective.OpAllGather:     int64(own * (w - 1) * (4 + 2)),
		collective.OpReduceScatter: int64((all - own) * 2),
		collective.OpAllReduce:     int64(2 * 160 * (w - 1) * 4),
		collective.OpBroadcast:     int64(b2i(me == w-1) * 10 * 8 * (w - 1)),
		collective.OpExchange:      int64((5 + me) * (w - 1)),
	}
	calls := map[collective.Op]int64{collective.OpAllGather: 2, collective.OpReduceScatter: 1, collective.OpAllReduce: 1, collective.OpBroadcast: 1, collective.OpExchange: 1}
	if got := g.Traffic(); !maps.Equal(got.Bytes, want) || !maps.Equal(got.Calls, calls) {
		r.fail("traffic %v; want bytes %v, calls %v", got, want, calls)
	}
}
