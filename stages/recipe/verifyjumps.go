package recipe

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"sync"

	"contraflow/gpustage/ref"
	"contraflow/stages"
	"contraflow/stages/transformer"
)

// A ReLU's slope jumps where its input changes sign, MaxSim's where another token becomes the nearest, and a sparse embedding's at 0 and where another
// token has the largest weight. Where rounding does that, a token's part of a gradient comes or goes, in one way and not in another, which can be any
// part of a tensor's: of a T5 of 3 layers of 48 it was 0.01, of short texts 0.038. A right gradient is then that in double precision with some of the
// values that are nearest to a jump beyond it; which, the gradient shows itself, as each of them changes it in its own way. So what may be left is
// rounding, as it is of a model without jumps.

// standard is a gradient that others are held against.
type standard struct {
	*verifier // of its batches; nil: it is what it is
	way       way
	stages.Captured
	near  []near              // what is nearest to a jump, nearest first
	spots []spot              // which sketches have
	moves map[group][]float64 // what comes of it if some of them jump, as sketch has it

	values map[int]bool // which were tried last, by index
	tried  []float64    // and the gradient
}

// near is a value that is near to a jump. Values that are the same are told apart by which of them it is.
type near struct {
	place
	off float64 // see ref.Jump
}

type place struct {
	bits uint64
	nth  int
}

// group is of what is near, from lo up to hi.
type group struct{ lo, hi int }

const (
	nearest  = 1e-3 // what is farther from a jump does not jump
	jumpMost = 0.5  // what is more wrong than that is so without a jump

	sampled    = 1 << 13 // values of a tensor's gradient, or one of each row
	firstProbe = 8       // values that are looked for one by one, nearest to jumps
	lastProbe  = 512     // and in all

	// leastShare is the part of the square of what is left that a group has if one of it has jumped: 0.2 to 1 in ten T5s, and up to 0.03 where none had.
	// A half of such a group may have one of two whose rows are a small part: 0.035 and 0.004 of one that had 0.24. leastCosine is that between what is left
	// and what a group does, times the root of how many it is of: 0.3 to 1 where one had jumped, and up to 0.03 elsewhere, but for once 0.35.
	leastShare, leastOfHalf, leastCosine = 0.05, 0.0125, 0.2
)

// learn computes a gradient that others are held against.
func (v *verifier) learn(ctx context.Context, w way) (*standard, error) {
	k := &standard{verifier: v, way: w, moves: map[group][]float64{}}
	w.jump = nearJumps(func(n near) bool {
		k.near = append(k.near, n)
		return false
	})
	is, err := v.gradient(ctx, w)
	slices.SortStableFunc(k.near, func(a, b near) int { return cmp.Compare(a.off, b.off) })
	k.near = slices.Clone(k.near[:min(len(k.near), lastProbe)])
	if err == nil {
		k.Captured, k.spots = is, spotsOf(v.x.model.Layout, is.Gradient)
	}
	return k, err
}

// nearJumps asks f of what is near to a jump, one at a time.
func nearJumps(f func(near) bool) ref.Jump {
	var mu sync.Mutex
	seen := map[uint64]int{}
	return func(value, off float64) bool {
		if !(off > 0 && off <= nearest) { // at a jump nothing rounds: the logits of a row of zeros are zero, and the same vectors as near as each other
			return false
		}
		mu.Lock()
		defer mu.Unlock()
		bits := math.Float64bits(value)
		seen[bits]++
		return f(near{place{bits, seen[bits]}, off})
	}
}

// jumped is the gradient where some of what is near, by index, is beyond its jump.
func (k *standard) jumped(ctx context.Context, is func(i int) bool) ([]float64, error) {
	beyond := map[place]bool{}
	for i, n := range k.near {
		if is(i) {
			beyond[n.place] = true
		}
	}
	w := k.way
	w.jump = nearJumps(func(n near) bool { return beyond[n.place] })
	c, err := k.gradient(ctx, w)
	return c.Gradient, err
}

// explain holds a gradient against what k is with some of the nearest values beyond their jumps, as long as the next try is nearer to it: try tells that, of
// so many values, the farthest of which is so far off, and whether it is near enough. limits are those of the tensors.
func (k *standard) explain(ctx context.Context, got, limits []float64, try func(want []float64, n int, off float64) (nearer, enough bool)) error {
	if k.verifier == nil {
		return nil
	}
	held, values := k.Gradient, map[int]bool{}
	for {
		next, err := k.fitted(ctx, k.sketch(got, held), limits, values)
		if err != nil || next == nil {
			return err
		}
		if k.tried == nil || !maps.Equal(next, k.values) { // ways mostly have the same beyond
			if k.tried, err = k.jumped(ctx, func(i int) bool { return next[i] }); err != nil {
				return err
			}
			k.values = next
		}
		nearer, enough := try(k.tried, len(next), k.near[slices.Max(slices.Collect(maps.Keys(next)))].off)
		if !nearer || enough {
			return nil
		}
		held, values = k.tried, next
	}
}

// fitted are values, those beyond their jumps by index, with changes by which less is left of a rest, which is a sketch; nil: there are none.
//
// Of each value it is known what it does to the gradient once it has been tried, which is a computation of all of it. But what many do at once tells
// which of them may be in the rest: that of a ReLU's input changes a row of the weights before it as nothing else does, so that a part of the rest is the
// same number in what its group does, even where others of the group do much more. Groups of which that is so are halved, and those that point where the
// rest does, as two do that change one row. What two values together do that neither does alone is left for the next try.
func (k *standard) fitted(ctx context.Context, rest, limits []float64, values map[int]bool) (next map[int]bool, err error) {
	next = maps.Clone(values)
	whole := k.product(rest, rest, limits)
	type candidate struct {
		group
		least float64
	}
	var groups []candidate
	for lo, hi := 0, 1; lo < len(k.near); lo = hi {
		if hi = lo + 1; lo >= firstProbe {
			hi = 4 * lo
		}
		groups = append(groups, candidate{group{lo, min(hi, len(k.near))}, leastShare * whole})
	}
	for {
		most, at, along := 0.0, -1, []float64(nil)
		for i, g := range groups {
			move, err := k.move(ctx, g.group)
			if err != nil {
				return nil, err
			}
			for _, j := range slices.Sorted(maps.Keys(next)) {
				if g.lo <= j && j < g.hi { // it would go back: as it is in next, it is known by itself
					move = added(move, k.moves[group{j, j + 1}], -2)
				}
			}
			share := k.share(g.group, rest, move, limits, whole)
			if share > g.least && share > most {
				most, at, along = share, i, move
			}
		}
		if at < 0 {
			break
		}
		g := groups[at]
		groups = slices.Delete(groups, at, at+1)
		if g.hi == g.lo+1 {
			if rest = added(rest, along, -1); next[g.lo] {
				delete(next, g.lo)
			} else {
				next[g.lo] = true
			}
			continue
		}
		mid := (g.lo + g.hi) / 2
		left, right := group{g.lo, mid}, group{mid, g.hi}
		move, err := k.move(ctx, left)
		if err != nil {
			return nil, err
		}
		if k.moves[right] == nil {
			k.moves[right] = added(k.moves[g.group], move, -1)
		}
		groups = append(groups, candidate{left, leastOfHalf * whole}, candidate{right, leastOfHalf * whole})
	}
	if len(next) == 0 || maps.Equal(next, values) {
		return nil, nil
	}
	return next, nil
}

// share is how much of a rest, whose square was the whole, a group seems to have that does this.
func (k *standard) share(g group, rest, move, limits []float64, whole float64) float64 {
	n, along, square := float64(g.hi-g.lo), k.product(rest, move, limits), k.product(move, move, limits)
	switch {
	case n == 1 && along < square/2: // more is left with it
		return 0
	case n == 1:
		return along
	case along < leastCosine*math.Sqrt(square*whole/n):
		return k.common(rest, move, limits)
	default:
		return max(along, k.common(rest, move, limits))
	}
}

// move is what comes of it if a group of values jumps.
func (k *standard) move(ctx context.Context, g group) ([]float64, error) {
	if m := k.moves[g]; m != nil {
		return m, nil
	}
	gradient, err := k.jumped(ctx, func(i int) bool { return g.lo <= i && i < g.hi })
	if err != nil {
		return nil, err
	}
	m := k.sketch(gradient, k.Gradient)
	k.moves[g] = m
	return m, nil
}

func added(a, b []float64, times float64) []float64 {
	out := slices.Clone(a)
	for i, x := range b {
		out[i] += times * x
	}
	return out
}

// spot is a value of the gradient that sketches have: at in the gradient, of a tensor whose errors are in proportion to top.
type spot struct {
	at, tensor int
	top        float64
}

// spotsOf are values of each row, as each row of a layer's weights belongs to one input of a ReLU.
func spotsOf(l *transformer.Layout, gradient []float64) (out []spot) {
	for i, top := range tops(l, gradient) {
		p := l.Training()[i]
		step := min(p.Cols, (p.Len()+sampled-1)/sampled)
		for row := range p.Rows {
			for col := row % step; col < p.Cols; col += step {
				out = append(out, spot{l.At(p) + row*p.Cols + col, i, top})
			}
		}
	}
	return out
}

// sketch is the difference of two gradients, at spots.
func (k *standard) sketch(got, want []float64) []float64 {
	out := make([]float64, len(k.spots))
	for i, s := range k.spots {
		out[i] = (got[s.at] - want[s.at]) / s.top
	}
	return out
}

// product is that of two sketches, of each tensor's in proportion to its limit.
func (k *standard) product(a, b, limits []float64) (sum float64) {
	for i, s := range k.spots {
		sum += a[i] / limits[s.tensor] * b[i] / limits[s.tensor]
	}
	return sum
}

// common is a rest's product with itself where a move is about the same.
func (k *standard) common(rest, move, limits []float64) (sum float64) {
	for i, s := range k.spots {
		if r := rest[i] / limits[s.tensor]; math.Abs(move[i]-rest[i]) <= math.Abs(rest[i])/8 {
			sum += r * r
		}
	}
	return sum
}
