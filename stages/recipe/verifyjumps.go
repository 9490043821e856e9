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

	sketchLen  = 1 << 10 // of each tensor
	firstProbe = 8       // values that are looked for first, nearest to jumps
	lastProbe  = 128     // and in all
	leastShare = 0.02    // of the square of what is left, if one of a group has jumped
	// leastCosine is that between what is left and what a group does, times the root of how many it is of: 0.3 to 1 where one of it had jumped, and up to 0.03,
	// but for once 0.3, where what was left of a T5 of 4 layers was rounding.
	leastCosine = 0.05
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
	k.Captured = is
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
		want := k.tried
		nearer, enough := try(want, len(next), k.near[slices.Max(slices.Collect(maps.Keys(next)))].off)
		if !nearer || enough {
			return nil
		}
		held, values = want, next
	}
}

// fitted are values, those beyond their jumps by index, with changes by which less is left of a rest, which is a sketch; nil: there are none.
//
// Of each value it is known what it does to the gradient once it has been tried, which is a computation of all of it. But what many do at once tells
// whether any of them is in the rest, where they do it to other parts of the gradient, as most do: groups in which most of the rest is are halved first.
// What two values together do that neither does alone is left for the next try.
func (k *standard) fitted(ctx context.Context, rest, limits []float64, values map[int]bool) (next map[int]bool, err error) {
	next = maps.Clone(values)
	whole := k.product(rest, rest, limits)
	var groups []group
	for lo, hi := 0, firstProbe; lo < len(k.near); lo, hi = hi, 4*hi {
		groups = append(groups, group{lo, min(hi, len(k.near))})
	}
	for {
		most, at, along := 0.0, -1, []float64(nil)
		for i, g := range groups {
			move, err := k.move(ctx, g)
			if err != nil {
				return nil, err
			}
			for j := range next {
				if g.lo <= j && j < g.hi { // it would go back: as it is in next, it is known by itself
					move = added(move, k.moves[group{j, j + 1}], -2)
				}
			}
			share, square := k.product(rest, move, limits), k.product(move, move, limits)
			if share > most && share > leastShare*whole && share*share*float64(g.hi-g.lo) > leastCosine*leastCosine*square*whole {
				most, at, along = share, i, move
			}
		}
		if at < 0 {
			break
		}
		g := groups[at]
		groups = slices.Delete(groups, at, at+1)
		if mid := (g.lo + g.hi) / 2; mid > g.lo {
			left, right := group{g.lo, mid}, group{mid, g.hi}
			move, err := k.move(ctx, left)
			if err != nil {
				return nil, err
			}
			if k.moves[right] == nil {
				k.moves[right] = added(k.moves[g], move, -1)
			}
			groups = append(groups, left, right)
		} else if most > k.product(along, along, limits)/2 {
			if rest = added(rest, along, -1); next[g.lo] {
				delete(next, g.lo)
			} else {
				next[g.lo] = true
			}
		}
	}
	if maps.Equal(next, values) {
		return nil, nil
	}
	return next, nil
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

// sketch is the difference of two gradients, of each tensor in the proportion that its error is measured in, folded to sketchLen: products of two
// sketches are about those of what they are of (Charikar, Chen and Farach-Colton, 2002), and many are kept.
func (k *standard) sketch(got, want []float64) []float64 {
	layout := k.x.model.Layout
	out := make([]float64, sketchLen*len(layout.Training()))
	for i, top := range tops(layout, k.Gradient) {
		p := layout.Training()[i]
		for e := range p.Len() {
			h := uint64(e) * 0x9e3779b97f4a7c15
			at := layout.At(p) + e
			d := (got[at] - want[at]) / top
			if h>>63 == 1 {
				d = -d
			}
			out[i*sketchLen+int(h>>32%sketchLen)] += d
		}
	}
	return out
}

// product is that of two sketches, of each tensor's in proportion to its limit.
func (k *standard) product(a, b, limits []float64) (sum float64) {
	for i, x := range a {
		limit := limits[i/sketchLen]
		sum += x / limit * b[i] / limit
	}
	return sum
}
