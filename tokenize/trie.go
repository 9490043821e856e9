package tokenize

import (
	"fmt"
	"slices"
	"strings"
)

// trie maps byte strings to ids: a double array, in which the child of a node for byte c is the unit at the node's
// base + c if that unit carries the label c. A step is one addition, one load and one comparison.
//
// A unit packs base (28 bits), a "used" bit with the label (9), and the id + 1 (27; 0 is a node without an id). No two
// nodes share a base, so a matching label is proof of parenthood; base 0 belongs to nobody, so a step from a leaf or
// from the zero node fails by itself.
type trie struct {
	units []node
}

// node is a unit's content and at the same time a place in the trie. The zero node has no children and no id.
type node uint64

const (
	maxTrieID    = 1<<27 - 2
	maxTrieUnits = 1<<28 - 512
)

func (n node) id() (id int32, ok bool) { return int32(n&(1<<27-1)) - 1, n&(1<<27-1) != 0 }

func (t *trie) root() node { return t.units[0] }

// child returns n's child for c, if there is one.
func (t *trie) child(n node, c byte) (node, bool) {
	u := t.units[uint64(n>>36)+uint64(c)]
	return u, u>>27&0x1ff == node(c)|0x100
}

// walk goes from n along key; the zero node says that the key leads nowhere.
func (t *trie) walk(n node, key string) node {
	for i := range len(key) {
		var ok bool
		if n, ok = t.child(n, key[i]); !ok {
			return 0
		}
	}
	return n
}

// trieKey is an entry of a trie to be.
type trieKey struct {
	text string
	id   int32
}

// newTrie builds the trie of keys (sorted in place). Of equal keys the one with the lowest id counts; the empty key is
// dropped, since nothing can match it.
func newTrie(keys []trieKey) (*trie, error) {
	slices.SortFunc(keys, func(a, b trieKey) int {
		if c := strings.Compare(a.text, b.text); c != 0 {
			return c
		}
		return int(a.id) - int(b.id)
	})
	keys = slices.CompactFunc(keys, func(a, b trieKey) bool { return a.text == b.text })
	if len(keys) > 0 && keys[0].text == "" {
		keys = keys[1:]
	}
	size := 512
	for _, key := range keys {
		size += len(key.text) // prefixes are shared, holes remain: about as many units are needed
	}
	b := trieBuilder{units: make([]node, 0, size), baseTaken: make([]bool, 0, size)}
	b.grow(1)
	b.units[0] = 1<<35 | 1<<27 // the root, in use; a label that no step to unit 0 has
	type task struct{ lo, hi, depth, unit int }
	var labels []byte
	var starts []int
	queue := []task{{0, len(keys), 0, 0}}
	for len(queue) > 0 {
		t := queue[0]
		queue = queue[1:]
		lo := t.lo
		if lo < t.hi && len(keys[lo].text) == t.depth { // sorted: a key that ends here comes first
			b.units[t.unit] |= node(keys[lo].id + 1)
			lo++
		}
		if lo == t.hi {
			continue
		}
		labels, starts = labels[:0], starts[:0]
		for i := lo; i < t.hi; i++ {
			if c := keys[i].text[t.depth]; len(labels) == 0 || labels[len(labels)-1] != c {
				labels, starts = append(labels, c), append(starts, i)
			}
		}
		starts = append(starts, t.hi)
		base := b.place(labels)
		if base > maxTrieUnits {
			return nil, fmt.Errorf("the vocabulary's %d tokens are too many bytes for one trie", len(keys))
		}
		b.units[t.unit] |= node(base) << 36
		for i, c := range labels {
			b.units[base+int(c)] = node(c)<<27 | 1<<35
			queue = append(queue, task{starts[i], starts[i+1], t.depth + 1, base + int(c)})
		}
	}
	b.grow(len(b.units) + 256) // a step never leaves the array
	return &trie{units: slices.Clone(b.units)}, nil
}

type trieBuilder struct {
	units     []node
	baseTaken []bool
	// from[n] is where to look for room for n children. It only moves up, so that the search is linear in the array's
	// size; the holes that it leaves are filled by nodes with fewer children.
	from [257]int
}

func (b *trieBuilder) grow(n int) {
	if n > len(b.units) {
		b.units = append(b.units, make([]node, n-len(b.units))...)
		b.baseTaken = append(b.baseTaken, make([]bool, n-len(b.baseTaken))...)
	}
}

// place finds a base no other node has, under which all labels' units are free, and reserves it.
func (b *trieBuilder) place(labels []byte) int {
	for slot := max(b.from[len(labels)], 256); ; slot++ {
		base := slot - int(labels[0]) // at least 1
		b.grow(base + 256)
		if b.units[slot] == 0 && !b.baseTaken[base] && b.fits(base, labels) {
			b.baseTaken[base] = true
			b.from[len(labels)] = slot
			return base
		}
	}
}

func (b *trieBuilder) fits(base int, labels []byte) bool {
	for _, c := range labels {
		if b.units[base+int(c)] != 0 {
			return false
		}
	}
	return true
}
