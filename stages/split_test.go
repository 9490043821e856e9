package stages

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"contraflow/stages/transformer"
)

func batchOf(lengths ...int) *Batch {
	b := &Batch{Cu: []int32{0}}
	for _, n := range lengths {
		b.IDs = append(b.IDs, make([]int32, n)...)
		b.Cu = append(b.Cu, int32(len(b.IDs)))
	}
	return b
}

func TestCut(t *testing.T) {
	for _, c := range []struct {
		size    Size
		lengths []int
		want    string
	}{
		{Size{}, []int{3, 4, 5}, "[0:3]"},
		{Size{Rows: 2}, []int{3, 4, 5}, "[0:2 2:3]"},
		{Size{Rows: 5}, []int{3, 4, 5}, "[0:3]"},
		{Size{Tokens: 7}, []int{3, 4, 5}, "[0:2 2:3]"},
		{Size{Tokens: 8}, []int{3, 4, 5, 1}, "[0:2 2:4]"},
		{Size{Tokens: 4}, []int{9, 1, 9}, "[0:1 1:2 2:3]"}, // longer than the bound: alone
		{Size{Tokens: 100, Rows: 2}, []int{1, 1, 1, 1, 1}, "[0:2 2:4 4:5]"},
	} {
		var got []string
		for _, s := range c.size.Cut(batchOf(c.lengths...)) {
			got = append(got, fmt.Sprintf("%d:%d", s.Lo, s.Hi))
		}
		if fmt.Sprint(got) != c.want {
			t.Errorf("%+v of %v: %v, want %s", c.size, c.lengths, got, c.want)
		}
	}
}

// Every sequence is in exactly one sub-batch, in order, and no bound is broken but by a single sequence.
func TestCutCovers(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 300 {
		var lengths []int
		for range 1 + rng.IntN(30) {
			lengths = append(lengths, 1+rng.IntN(20))
		}
		z := Size{Tokens: rng.IntN(60), Rows: rng.IntN(8)}
		next := 0
		for _, s := range z.Cut(batchOf(lengths...)) {
			if s.Lo != next || s.Hi <= s.Lo {
				t.Fatalf("%+v of %v: sub-batch %d:%d after %d", z, lengths, s.Lo, s.Hi, next)
			}
			next = s.Hi
			if one := s.Hi-s.Lo == 1; !one && (z.Tokens > 0 && s.Tokens() > z.Tokens || z.Rows > 0 && s.Hi-s.Lo > z.Rows) {
				t.Errorf("%+v of %v: sub-batch %d:%d has %d tokens", z, lengths, s.Lo, s.Hi, s.Tokens())
			}
		}
		if next != len(lengths) {
			t.Errorf("%+v of %v: %d sequences covered", z, lengths, next)
		}
	}
}

func TestPlanReplay(t *testing.T) {
	m := func(forward, kept, backward int) transformer.Memory {
		return transformer.Memory{Forward: forward, Kept: kept, Backward: backward}
	}
	subs := []transformer.Memory{m(10, 30, 50), m(10, 40, 60), m(10, 20, 35)}
	for _, c := range []struct {
		budget          int64
		loss            int
		keepFrom, arena int
	}{
		{0, 5, 3, 60},        // everything replayed: the largest pass
		{20, 5, 2, 60},       // the last one kept
		{59, 5, 2, 60},       // one byte short of the last two
		{60, 5, 1, 75},       // 40 kept below a pass of 35
		{60, 100, 1, 160},    // the loss on top of what is kept
		{-1, 5, 0, 105},      // all: 30 + 40 below a pass of 35
		{1 << 40, 5, 0, 105}, // as much
	} {
		keepFrom, arena := planReplay(subs, c.budget, c.loss, 0)
		if keepFrom != c.keepFrom || arena != c.arena {
			t.Errorf("budget %d, loss %d: kept from %d in %d bytes, want %d in %d", c.budget, c.loss, keepFrom, arena, c.keepFrom, c.arena)
		}
	}
}
