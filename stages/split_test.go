package stages

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/ref"
	"contraflow/io/dataset"
	"contraflow/stages/loss"
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

// Queries some of whose tokens nobody attends to share no sub-batch with documents.
func TestCutUnseen(t *testing.T) {
	for want, z := range map[string]Size{"[0:2 2:6]": {}, "[0:2 2:5 5:6]": {Rows: 3}, "[0:1 1:2 2:3 3:4 4:5 5:6]": {Tokens: 3}} {
		b := batchOf(3, 3, 3, 3, 3, 3)
		b.Rows, b.Seen = []int64{7, 8}, []int32{2, 3, 3, 1, 3, 3}
		var got []string
		var seen []int32
		for _, s := range z.Cut(b) {
			got = append(got, fmt.Sprintf("%d:%d", s.Lo, s.Hi))
			seen = append(seen, s.rows(0, 0).Seen...)
		}
		if !slices.Equal(seen, b.Seen) {
			t.Errorf("%+v: sequences have %v tokens that others attend to, want %v", z, seen, b.Seen)
		}
		if fmt.Sprint(got) != want {
			t.Errorf("%+v: %v, want %s", z, got, want)
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

// A sub-batch's padding is what its sequences lack to the longest of them.
func TestPadding(t *testing.T) {
	if got := (SubBatch{batchOf(9, 3, 5, 1), 1, 4}).padding(); got != 2+4 {
		t.Errorf("sequences of 3, 5 and 1 tokens have a padding of %d, want 6", got)
	}
}

// A sequence's dropout key tells seed, step, row and column, and not the sub-batch that it is in.
func TestDropoutKeys(t *testing.T) {
	keys := func(seed uint64, step int, z Size) (out []uint64) {
		b := batchOf(1, 1, 1, 1, 1, 1)
		b.Rows = []int64{7, 8} // three columns
		for _, s := range z.Cut(b) {
			out = append(out, s.rows(seed, step).Keys...)
		}
		return out
	}
	seen := map[uint64]string{}
	for seed := range uint64(2) {
		for step := range 2 {
			all := keys(seed, step, Size{})
			for n, k := range all {
				at := fmt.Sprintf("seed %d, step %d, sequence %d", seed, step, n)
				if other, ok := seen[k]; ok {
					t.Errorf("%s has the key of %s", at, other)
				}
				seen[k] = at
			}
			if cut := keys(seed, step, Size{Rows: 4}); fmt.Sprint(cut) != fmt.Sprint(all) {
				t.Errorf("in sub-batches of 4 keys are %v, in one %v", cut, all)
			}
		}
	}
}

// Where a column has several texts of a row, each of them has a key of its own, whichever chunk its row came in.
func TestDropoutKeysRagged(t *testing.T) {
	data := Described{Texts: []dataset.Column{{Role: dataset.Query}, {Role: dataset.Positive}, {Role: dataset.Negative, Ragged: true}}}
	chunk := func(rows []int64, counts ...int32) *TokenChunk {
		c := &TokenChunk{Chunk: Chunk{Data: data}, Rows: rows, Counts: [][]int32{nil, nil, counts}}
		negatives := 0
		for _, n := range counts {
			negatives += int(n)
		}
		for _, n := range []int{len(rows), len(rows), negatives} {
			c.IDs, c.Texts = append(c.IDs, slices.Repeat([][]int32{{1}}, n)), append(c.Texts, make([]loss.TextID, n))
		}
		return c
	}
	b := assemble([]*TokenChunk{chunk([]int64{7, 8}, 2, 3), chunk([]int64{9}, 2)})
	var places []string
	for n := range b.N() {
		row, place := b.Origin(n)
		places = append(places, fmt.Sprintf("%d.%d", row, place))
	}
	if want := "[7.0 8.0 9.0 7.1 8.1 9.1 7.2 7.3 8.2 8.3 8.4 9.2 9.3]"; fmt.Sprint(places) != want {
		t.Errorf("rows and places are %v, want %s", places, want)
	}
	keys := SubBatch{b, 0, b.N()}.rows(1, 0).Keys
	slices.Sort(keys)
	if n := len(slices.Compact(keys)); n != b.N() {
		t.Errorf("%d sequences have %d keys", b.N(), n)
	}
}

// A text that is its own positive gets two embeddings under dropout, as SimCSE needs, and one without.
func TestSameTextTwice(t *testing.T) {
	for _, dropout := range []float64{0, 0.1} {
		c := transformer.Config{
			Family: "bert", Vocab: 10, Hidden: 8, Layers: 1, Heads: 2, FeedForward: 16, MaxPositions: 8, TypeVocab: 2, NormEps: 1e-12,
			HiddenDropout: dropout, AttentionDropout: dropout, InitRange: 0.1,
		}
		d := ref.New()
		m, err := transformer.New(d, c, transformer.Head{Normalize: true}, transformer.Options{})
		if err != nil {
			t.Fatal(err)
		}
		s, err := d.OpenStream()
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Init(s, 1); err != nil {
			t.Fatal(err)
		}
		b := batchOf(3, 3)
		b.Rows, b.IDs = []int64{4}, []int32{2, 5, 3, 2, 5, 3}
		arena, err := gpustage.NewArena(d, m.Memory([]int{3, 3}).Forward)
		if err != nil {
			t.Fatal(err)
		}
		emb := m.Forward(s, arena, SubBatch{b, 0, 2}.rows(1, 0), true, false).Embeddings()
		x, y := fmt.Sprint(gpustage.Slice[float32](emb.Span(0, 1))), fmt.Sprint(gpustage.Slice[float32](emb.Span(1, 2)))
		if (x == y) != (dropout == 0) {
			t.Errorf("dropout %v: %s and %s", dropout, x, y)
		}
	}
}

func TestPlanReplay(t *testing.T) {
	m := func(forward, kept, backward, lean, leanBackward int) transformer.Memory {
		return transformer.Memory{Forward: forward, Kept: kept, Backward: backward, Lean: lean, LeanBackward: leanBackward}
	}
	fat := []transformer.Memory{m(10, 30, 50, 30, 50), m(10, 40, 60, 40, 60), m(10, 20, 35, 20, 35)} // nothing leans
	subs := []transformer.Memory{m(10, 30, 50, 12, 40), m(10, 40, 60, 15, 45), m(10, 20, 35, 8, 25)}
	for _, c := range []struct {
		subs       []transformer.Memory
		budget     int64
		loss       int
		from, lean int
		arena      int
	}{
		{fat, 0, 5, 3, 3, 60},        // everything replayed: the largest pass
		{fat, 20, 5, 2, 3, 60},       // the last one kept
		{fat, 59, 5, 2, 3, 60},       // one byte short of the last two
		{fat, 60, 5, 1, 3, 75},       // 40 kept below a pass of 35
		{fat, 60, 100, 1, 3, 160},    // the loss on top of what is kept
		{fat, -1, 5, 0, 3, 105},      // all: 30 + 40 below a pass of 35
		{fat, 1 << 40, 5, 0, 3, 105}, // as much
		{subs, 7, 5, 3, 3, 60},
		{subs, 8, 5, 2, 2, 60},  // the last one lean
		{subs, 34, 5, 1, 1, 50}, // and the one before it; 11 bytes more do not make it whole
		{subs, 35, 5, 0, 0, 57}, // all: 12 below a pass of 45
		{subs, 52, 5, 0, 0, 57}, // one byte short of the first one whole
		{subs, 53, 5, 0, 1, 75}, // 30 below a pass of 45
		{subs, 78, 90, 0, 2, 30 + 40 + 8 + 90},
		{subs, -1, 5, 0, 3, 105},
	} {
		k, arena := planReplay(c.subs, c.budget, c.loss, 0)
		if k.from != c.from || k.lean != c.lean || arena != c.arena {
			t.Errorf("budget %d, loss %d: kept from %d, lean from %d in %d bytes, want %d and %d in %d", c.budget, c.loss, k.from, k.lean, arena, c.from, c.lean, c.arena)
		}
	}
	// Where ranks have agreed that one of them can't keep the first, what that leaves makes others whole.
	if k, _ := planReplay(subs, 53, 5, 1); k != (keeping{1, 2}) {
		t.Errorf("%+v", k)
	}
}

// Where all ranks must keep the same sub-batches, they keep what the rank with the least memory can.
func TestKeepFrom(t *testing.T) {
	for _, from := range [][]int{{3, 1}, {1, 3}, {0, 0}} {
		var peers []Peer
		for rank, k := range from {
			peers = append(peers, Peer{First: rank, Rows: 1, Total: 2, Counts: []int{1, 1}, Texts: make([]loss.TextID, 2), KeepFrom: k})
		}
		if g, err := joinPeers(peers, 2); err != nil || g.keepFrom != slices.Max(from) {
			t.Errorf("of %v: %+v, %v", from, g, err)
		}
	}
}

// Kept passes have places of one size, and so have lean ones; a sub-batch that only other ranks have takes none.
func TestEqualPlaces(t *testing.T) {
	subs := []transformer.Memory{{Forward: 10, Kept: 30, Backward: 50, Lean: 12, LeanBackward: 40}, {}, {Forward: 20, Kept: 20, Backward: 35, Lean: 14, LeanBackward: 25}}
	equalPlaces(subs)
	want := []transformer.Memory{{Forward: 10, Kept: 30, Backward: 50, Lean: 14, LeanBackward: 42}, {}, {Forward: 20, Kept: 30, Backward: 45, Lean: 14, LeanBackward: 25}}
	if !slices.Equal(subs, want) {
		t.Errorf("%+v, want %+v", subs, want)
	}
}
