package collectivetest

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"contraflow/collective"
	"contraflow/gpustage"
)

// shape is what a row-wise collective is tried with.
type shape struct {
	rows  []int
	cols  int
	dtype gpustage.DType
	wire  gpustage.DType
	alias bool
}

func (s shape) String() string {
	return fmt.Sprintf("rows %v x %d, %s, %s wire, aliased %v", s.rows, s.cols, s.dtype, s.wire, s.alias)
}

func sum(rows []int) (n int) {
	for _, r := range rows {
		n += r
	}
	return n
}

func shapes(size int) (all []shape) {
	patterns := [][]int{}
	for _, f := range []func(r int) int{
		func(int) int { return 4 },
		func(r int) int { return (r * 5) % 7 },                         // ragged, rank 0 has none
		func(r int) int { return (r + 1) % 2 * 33 },                    // every second has none
		func(r int) int { return (size - r) * 3 },                      // falling
		func(r int) int { return r / (size - 1 + b2i(size == 1)) * 5 }, // the last alone
		func(int) int { return 0 },
	} {
		p := make([]int, size)
		for r := range p {
			p[r] = f(r)
		}
		patterns = append(patterns, p)
	}
	for i, p := range patterns {
		for _, cols := range []int{1, 17, 96} {
			for _, w := range [][2]gpustage.DType{{gpustage.F32, gpustage.F32}, {gpustage.F32, gpustage.BF16}, {gpustage.F64, gpustage.F64}, {gpustage.F64, gpustage.BF16}} {
				if w[0] == gpustage.F64 && cols != 17 {
					continue
				}
				all = append(all, shape{p, cols, w[0], w[1], (i+cols)%2 == 0}, shape{p, cols, w[0], w[1], (i+cols)%2 == 1})
			}
		}
	}
	return all
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

func testAllGather(r *rank) {
	for salt, s := range shapes(r.Size()) {
		r.allGather(r.World, r.members(r.World), salt, s)
	}
}

// members is the identities of a group's ranks: contributions depend on who somebody is, not on the place in a group.
func (r *rank) members(g collective.Group) []int {
	ids := make([]int, g.Size())
	for k := range ids {
		ids[k] = k
	}
	return ids
}

func (r *rank) allGather(g collective.Group, ids []int, salt int, s shape) {
	dst := r.room(s.dtype, sum(s.rows), s.cols)
	var want []float64
	at := 0
	src := room{}
	for k, n := range s.rows {
		own := contribution(ids[k], salt, n*s.cols, s.dtype)
		if k == g.Rank() {
			part := dst.Span(at, at+n)
			if !s.alias {
				src = r.room(s.dtype, n, s.cols)
				part = src.Tensor
			} else {
				src.Tensor = part
			}
			r.put(part, own)
		}
		for _, v := range own {
			want = append(want, as(s.wire, v))
		}
		at += n
	}
	g.AllGather(r.s, dst.Tensor, src.Tensor, s.rows, s.wire)
	r.sync("all-gather, %v", s)
	if !s.alias {
		r.check(src, contribution(ids[g.Rank()], salt, s.rows[g.Rank()]*s.cols, s.dtype), "all-gather's src, %v", s)
	}
	r.check(dst, want, "all-gather, %v", s)
}

func testReduceScatter(r *rank) {
	for salt, s := range shapes(r.Size()) {
		r.reduceScatter(r.World, r.members(r.World), salt, s)
	}
}

func (r *rank) reduceScatter(g collective.Group, ids []int, salt int, s shape) {
	n := sum(s.rows) * s.cols
	own := contribution(ids[g.Rank()], salt, n, s.dtype)
	src := r.room(s.dtype, sum(s.rows), s.cols)
	r.put(src.Tensor, own)
	lo := sum(s.rows[:g.Rank()])
	hi := lo + s.rows[g.Rank()]
	want := sumsOf(ids, salt, n, s.dtype, s.wire)[lo*s.cols : hi*s.cols]
	if s.alias {
		g.ReduceScatter(r.s, src.Span(lo, hi), src.Tensor, s.rows, s.wire)
		r.sync("reduce-scatter, %v", s)
		got := r.get(src.Span(lo, hi))
		if !slices.Equal(got, want) {
			r.fail("reduce-scatter, %v: %v, want %v", s, got, want)
		}
		r.check(src, slices.Concat(own[:lo*s.cols], want, own[hi*s.cols:]), "reduce-scatter's other parts of src, %v", s)
		return
	}
	dst := r.room(s.dtype, hi-lo, s.cols)
	g.ReduceScatter(r.s, dst.Tensor, src.Tensor, s.rows, s.wire)
	r.sync("reduce-scatter, %v", s)
	r.check(src, own, "reduce-scatter's src, %v", s)
	r.check(dst, want, "reduce-scatter, %v", s)
}

// sumsOf is the sum over ranks with the given identities, in that order.
func sumsOf(ids []int, salt, n int, t, wire gpustage.DType) []float64 {
	acc := make([]float64, n)
	for k, id := range ids {
		for i, v := range contribution(id, salt, n, t) {
			v = as(wire, v)
			if k > 0 {
				v = as(t, acc[i]+v)
			}
			acc[i] = v
		}
	}
	return acc
}

func testAllReduce(r *rank) {
	salt := 0
	for _, n := range []int{0, 1, 5, 16, 17, 100, 1000, 10007} {
		for _, w := range [][2]gpustage.DType{{gpustage.F32, gpustage.F32}, {gpustage.F32, gpustage.BF16}, {gpustage.F64, gpustage.F64}} {
			salt++
			r.allReduce(r.World, r.members(r.World), salt, n, w[0], w[1])
		}
	}
	if n := r.Size(); n > 2 { // or the test could not tell an order from another
		ids := r.members(r.World)
		forward := sumsOf(ids, 1, 1000, gpustage.F32, gpustage.F32)
		slices.Reverse(ids)
		if slices.Equal(forward, sumsOf(ids, 1, 1000, gpustage.F32, gpustage.F32)) {
			r.fail("the sums do not depend on their order")
		}
	}
}

func (r *rank) allReduce(g collective.Group, ids []int, salt, n int, t, wire gpustage.DType) {
	x := r.room(t, 1, n)
	r.put(x.Tensor, contribution(ids[g.Rank()], salt, n, t))
	g.AllReduce(r.s, x.Tensor, wire)
	r.sync("all-reduce of %d %s, %s wire", n, t, wire)
	want := sumsOf(ids, salt, n, t, wire)
	for i := range want {
		want[i] = as(wire, want[i])
	}
	r.check(x, want, "all-reduce of %d %s, %s wire", n, t, wire)
}

func testBroadcast(r *rank) {
	for root := range r.Size() {
		for salt, n := range []int{0, 1, 33, 5000} {
			r.broadcast(r.World, r.members(r.World), salt, n, root, gpustage.F32)
			r.broadcast(r.World, r.members(r.World), salt, n, root, gpustage.F64)
		}
	}
}

func (r *rank) broadcast(g collective.Group, ids []int, salt, n, root int, t gpustage.DType) {
	x := r.room(t, 1, n)
	r.put(x.Tensor, contribution(ids[g.Rank()], salt, n, t))
	g.Broadcast(r.s, x.Tensor, root)
	r.sync("broadcast of %d %s from %d", n, t, root)
	r.check(x, contribution(ids[root], salt, n, t), "broadcast of %d %s from %d", n, t, root)
}

// testChunks: results do not depend on how a call is cut.
func testChunks(r *rank) {
	c, ok := r.World.(interface{ SetChunk(bytes int) })
	if !ok {
		return
	}
	c.SetChunk(300 * r.Size())
	ids := r.members(r.World)
	for i, wire := range []gpustage.DType{gpustage.F32, gpustage.BF16} {
		for _, alias := range []bool{true, false} {
			rows := make([]int, r.Size())
			for k := range rows {
				rows[k] = 40 * (k % 3)
			}
			s := shape{rows, 11, gpustage.F32, wire, alias}
			r.allGather(r.World, ids, i, s)
			r.reduceScatter(r.World, ids, i, s)
		}
		r.allReduce(r.World, ids, i, 2000, gpustage.F32, wire)
	}
}

// testRandom: a program of operations on all ranks and on groups of them, the same on every rank.
func testRandom(r *rank) {
	rng := rand.New(rand.NewPCG(11, uint64(r.Size())))
	groups := []collective.Group{r.World}
	idsOf := [][]int{r.members(r.World)}
	for range 2 {
		color := make([]int, r.Size())
		for k := range color {
			color[k] = rng.IntN(3)
		}
		g, ids := r.split(color)
		groups, idsOf = append(groups, g), append(idsOf, ids)
	}
	for salt := range 60 {
		k := rng.IntN(len(groups))
		g, ids := groups[k], idsOf[k]
		rows := make([]int, r.Size()) // as many random numbers on every rank, whatever its group
		for i := range rows {
			rows[i] = rng.IntN(20) * rng.IntN(2)
		}
		rows = rows[:g.Size()]
		t, wire := gpustage.F32, gpustage.F32
		if rng.IntN(3) == 0 {
			wire = gpustage.BF16
		}
		s := shape{rows, 1 + rng.IntN(40), t, wire, rng.IntN(2) == 0}
		n, root := rng.IntN(3000), rng.IntN(1000)
		switch rng.IntN(5) {
		case 0:
			r.allGather(g, ids, salt, s)
		case 1:
			r.reduceScatter(g, ids, salt, s)
		case 2:
			r.allReduce(g, ids, salt, n, t, wire)
		case 3:
			r.broadcast(g, ids, salt, n, root%g.Size(), t)
		case 4:
			r.exchange(g, ids, salt)
		}
	}
}
