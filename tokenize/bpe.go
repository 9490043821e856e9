package tokenize

import (
	"bytes"
	"fmt"
	"maps"
	"math"
	"slices"
	"unicode/utf8"
)

// bpe cuts a word into characters, or bytes, and joins neighbours again and again: at each turn the pair that comes first
// in the list of merges, of several such pairs the leftmost one (Sennrich et al., "Neural Machine Translation of Rare
// Words with Subword Units", 2016). A character that is no token becomes the tokens of its bytes, or unknown, or nothing.
type bpe struct {
	merges mergeTable
	// The tokens of single characters, + 1; 0: none. With byteLevel, those of the bytes' letters.
	chars     pages[uint32]
	byteLevel bool
	letters   [256]int32 // by byte (ASCII without byteLevel); -1: none

	bytes    *[256]int32      // tokens for the bytes of a character that is none, -1 where there is none; nil: not wanted
	unknown  int32            // -1: none
	fuse     bool             // unknown neighbours are one token
	complete map[string]int32 // words that are tokens whatever the merges say; nil: none
	cache    wordCache

	// Without byteLevel a word may be a whole text. It is cut where no merge reaches across, so that the cache has its
	// parts: cuts says so of two bytes that meet there, the first one's character's last and the second one's first. Before
	// a "▁", which shares its first byte with much else, it is cutsMeta. nil: not to be cut.
	cuts     *[256][256]bool
	cutsMeta [256]bool
}

// bpeConfig is a BPE model as tokenizer.json has it.
type bpeConfig struct {
	vocab        map[string]int32
	merges       [][2]string
	unknown      *string // nil: none
	fuse         bool
	byteFallback bool
	ignoreMerges bool // for words that are tokens
	byteLevel    bool
}

// sameID is the error of a vocabulary in which tokens have one id: the first two that do, in the order of texts.
func sameID(vocab map[string]int32) error {
	texts := map[int32]string{}
	for _, text := range slices.Sorted(maps.Keys(vocab)) {
		id := vocab[text]
		if other, ok := texts[id]; ok {
			return fmt.Errorf("vocab: tokens %q and %q have one id, %d", other, text, id)
		}
		texts[id] = text
	}
	return nil
}

func newBPE(c bpeConfig) (*bpe, error) {
	m := &bpe{byteLevel: c.byteLevel, unknown: -1, fuse: c.fuse, cache: newWordCache(len(c.vocab))}
	if c.unknown != nil {
		id, ok := c.vocab[*c.unknown]
		if !ok {
			return nil, fmt.Errorf("the unknown token %q is not in the vocabulary", *c.unknown)
		}
		m.unknown = id
	}
	if c.byteFallback {
		m.bytes = byteTokens(c.vocab)
	}
	// What is joined is told by its id: each id must be one text.
	seen := make(map[int32]bool, len(c.vocab))
	var chars pageBuilder[uint32]
	for text, id := range c.vocab {
		if seen[id] {
			return nil, sameID(c.vocab)
		}
		seen[id] = true
		if r, size := utf8.DecodeRuneInString(text); size > 0 && size == len(text) {
			chars.or(r, uint32(id)+1)
		}
	}
	m.chars = chars.build()
	for b := range m.letters {
		r := rune(b)
		if c.byteLevel {
			r = byteLetters[b]
		}
		m.letters[b] = int32(m.chars.at(r)) - 1
	}
	if c.ignoreMerges {
		m.complete = make(map[string]int32, len(c.vocab))
		var word []byte
		for text, id := range c.vocab {
			ok := true
			if word = append(word[:0], text...); c.byteLevel {
				word, ok = appendLetterBytes(word[:0], text)
			}
			if ok {
				m.complete[string(word)] = id
			}
		}
	}
	if err := m.addMerges(c); err != nil {
		return nil, err
	}
	return m, nil
}

func (m *bpe) addMerges(c bpeConfig) error {
	m.merges = newMergeTable(len(c.merges))
	// Tokens that stand for other text than their own.
	special, taken := map[int32]bool{m.unknown: true}, false
	if m.bytes != nil {
		for _, id := range m.bytes {
			special[id] = true
		}
	}
	var joined []byte
	for rank, merge := range c.merges {
		left, ok1 := c.vocab[merge[0]]
		right, ok2 := c.vocab[merge[1]]
		joined = append(append(joined[:0], merge[0]...), merge[1]...)
		id, ok3 := c.vocab[string(joined)]
		if merge[0] == "" || merge[1] == "" {
			return fmt.Errorf("merges: number %d joins %q and %q: one is empty", rank, merge[0], merge[1])
		}
		for i, ok := range []bool{ok1, ok2, ok3} {
			if !ok {
				token := []string{merge[0], merge[1], string(joined)}[i]
				return fmt.Errorf("merges: number %d joins %q and %q: token %q is not in the vocabulary", rank, merge[0], merge[1], token)
			}
		}
		m.merges.add(left, right, uint32(rank), id)
		taken = taken || special[left] || special[right]
	}
	// There are no cuts if merges can't be told by their text, since such a token takes part; if a character may leave
	// nothing behind; or if words that are tokens are not to be merged.
	if !taken && !c.byteLevel && !c.ignoreMerges && m.unknown >= 0 {
		m.findCuts(c.merges)
	}
	return nil
}

// findCuts fills in cuts.
func (m *bpe) findCuts(merges [][2]string) {
	cuts := new([256][256]bool)
	for x := range cuts {
		for y := range cuts[x] {
			// Unknown neighbours may be one token: one of the two must be known.
			known := x < utf8.RuneSelf && m.letters[x] >= 0 || y < utf8.RuneSelf && m.letters[y] >= 0
			cuts[x][y] = known && utf8.RuneStart(byte(y))
		}
		m.cutsMeta[x] = m.chars.at('▁') != 0
	}
	var text []byte
	for _, merge := range merges {
		text = append(append(text[:0], merge[0]...), merge[1]...)
		for i := 1; i < len(text); i++ {
			if bytes.HasPrefix(text[i:], []byte(metaSpace)) {
				m.cutsMeta[text[i-1]] = false
			} else {
				cuts[text[i-1]][text[i]] = false
			}
		}
	}
	m.cuts = cuts
}

func (m *bpe) cut(at edge) bool {
	for x, cuts := range m.cutsMeta {
		if visible(byte(x)) && !cuts {
			return false
		}
	}
	return m.cuts != nil && at == edgeMeta
}

func (m *bpe) tokenize(ids []int32, s *scratch, limit int) []int32 {
	for _, sp := range s.spans {
		word := s.text[sp.start:sp.end]
		if m.cuts == nil {
			ids = m.word(ids, s, word)
		} else {
			for start := 0; start < len(word) && len(ids) < limit; {
				end := m.nextCut(word, start)
				ids = m.word(ids, s, word[start:end])
				start = end
			}
		}
		if len(ids) >= limit {
			break
		}
	}
	return ids
}

// nextCut returns the first place after start where a word is cut, or its end.
func (m *bpe) nextCut(word []byte, start int) int {
	for i := start + 1; i < len(word); i++ {
		before, after := word[i-1], word[i]
		if after == metaSpace[0] && bytes.HasPrefix(word[i:], []byte(metaSpace)) {
			if m.cutsMeta[before] {
				return i
			}
		} else if m.cuts[before][after] {
			return i
		}
	}
	return len(word)
}

// word appends the ids of a word.
func (m *bpe) word(ids []int32, s *scratch, word []byte) []int32 {
	ids, free, ok := m.cache.find(ids, word)
	if ok {
		return ids
	}
	first := len(ids)
	if id, ok := m.complete[string(word)]; ok {
		ids = append(ids, id)
	} else {
		s.merging.ids = m.symbols(s.merging.ids[:0], word)
		ids = append(ids, m.merges.join(&s.merging)...)
	}
	free.put(word, ids[first:])
	return ids
}

// symbols appends the tokens that a word's joining begins with.
func (m *bpe) symbols(ids []int32, word []byte) []int32 {
	unknown := false // is there an unknown token to come? Tokens for bytes overtake it, as in Hugging Face's.
	for i := 0; i < len(word); {
		id, size := m.letters[word[i]], 1
		r := rune(word[i])
		if m.byteLevel {
			r = byteLetters[word[i]]
		} else if r >= utf8.RuneSelf {
			r, size = utf8.DecodeRune(word[i:])
			id = int32(m.chars.at(r)) - 1
		}
		i += size
		if id >= 0 {
			if unknown {
				ids, unknown = append(ids, m.unknown), false
			}
			ids = append(ids, id)
			continue
		}
		if m.bytes != nil {
			var ok bool
			if ids, ok = m.appendBytes(ids, r); ok {
				continue
			}
		}
		if m.unknown >= 0 {
			if unknown && !m.fuse {
				ids = append(ids, m.unknown)
			}
			unknown = true
		}
	}
	if unknown {
		ids = append(ids, m.unknown)
	}
	return ids
}

// appendBytes appends the tokens of a character's bytes, if there are all of them.
func (m *bpe) appendBytes(ids []int32, r rune) ([]int32, bool) {
	var buf [utf8.UTFMax]byte
	first := len(ids)
	for _, b := range buf[:utf8.EncodeRune(buf[:], r)] {
		if m.bytes[b] < 0 {
			return ids[:first], false
		}
		ids = append(ids, m.bytes[b])
	}
	return ids, true
}

// mergeTable finds merges: a hash table with linear probing.
type mergeTable struct {
	slots []merge
	shift int
}

// merge says that left and right become id, sooner than merges of a higher rank.
type merge struct {
	left, right int32 // left is -1 in an empty slot
	rank        uint32
	id          int32
}

// noRank is that of pairs that don't merge.
const noRank = math.MaxUint32

func newMergeTable(count int) mergeTable {
	t := mergeTable{shift: 64 - 4}
	for 1<<(64-t.shift) < count+count/2 {
		t.shift--
	}
	t.slots = make([]merge, 1<<(64-t.shift))
	for i := range t.slots {
		t.slots[i] = merge{left: -1, rank: noRank}
	}
	return t
}

func (t *mergeTable) slot(left, right int32) int {
	i := int((uint64(left)<<32 | uint64(right)) * 0x9E3779B97F4A7C15 >> t.shift)
	for t.slots[i].left >= 0 && (t.slots[i].left != left || t.slots[i].right != right) {
		i = (i + 1) & (len(t.slots) - 1)
	}
	return i
}

// add adds a merge; of equal pairs the last one counts.
func (t *mergeTable) add(left, right int32, rank uint32, id int32) {
	t.slots[t.slot(left, right)] = merge{left, right, rank, id}
}

// find returns the rank of a pair, noRank if it has none, and what it becomes.
func (t *mergeTable) find(left, right int32) (rank uint32, id int32) {
	m := &t.slots[t.slot(left, right)]
	return m.rank, m.id
}

// merging is the working memory of joining a word.
type merging struct {
	ids   []int32
	pairs []pairMerge // that of ids[i] and ids[i+1]
	links []link
	heap  []uint64
}

type pairMerge struct {
	rank uint32
	id   int32
}

// longWord is how many symbols are too many to look at each pair at each turn. BenchmarkJoin, without and with a heap: 16
// symbols 0.25 and 0.37 us, 32 symbols 0.83 and 1.0, 64 symbols 2.4 and 2.0, 200 symbols 14 and 4.6.
const longWord = 40

// join joins w.ids and returns what is left of them.
func (t *mergeTable) join(w *merging) []int32 {
	if len(w.ids) > longWord {
		return t.joinLong(w)
	}
	return t.joinShort(w)
}

// joinShort looks at all pairs at each turn.
func (t *mergeTable) joinShort(w *merging) []int32 {
	ids := w.ids
	pairs := slices.Grow(w.pairs[:0], len(ids))
	for i := 1; i < len(ids); i++ {
		rank, id := t.find(ids[i-1], ids[i])
		pairs = append(pairs, pairMerge{rank, id})
	}
	w.pairs = pairs
	for {
		best, at := uint32(noRank), 0
		for i := range pairs {
			if pairs[i].rank < best {
				best, at = pairs[i].rank, i
			}
		}
		if best == noRank {
			return ids
		}
		ids[at] = pairs[at].id
		copy(ids[at+1:], ids[at+2:])
		copy(pairs[at:], pairs[at+1:])
		ids, pairs = ids[:len(ids)-1], pairs[:len(pairs)-1]
		if at > 0 {
			pairs[at-1].rank, pairs[at-1].id = t.find(ids[at-1], ids[at])
		}
		if at < len(pairs) {
			pairs[at].rank, pairs[at].id = t.find(ids[at], ids[at+1])
		}
	}
}

// link ties a symbol to its neighbours; -1: none.
type link struct{ before, after int32 }

// joinLong is join with a heap of the pairs that merge, as rank and place of the left symbol. Pairs that are no more
// stay in it: they are told by their rank, which only one pair has.
func (t *mergeTable) joinLong(w *merging) []int32 {
	ids := w.ids
	links := slices.Grow(w.links[:0], len(ids))
	for i := range ids {
		links = append(links, link{int32(i) - 1, int32(i) + 1})
	}
	links[len(links)-1].after = -1
	w.links, w.heap = links, w.heap[:0]
	for i := 1; i < len(ids); i++ {
		if rank, _ := t.find(ids[i-1], ids[i]); rank != noRank {
			w.heap = append(w.heap, uint64(rank)<<32|uint64(i-1))
		}
	}
	for i := len(w.heap)/2 - 1; i >= 0; i-- {
		w.down(i, w.heap[i])
	}
	const gone = -1
	for len(w.heap) > 0 {
		top := w.heap[0]
		last := len(w.heap) - 1
		moved := w.heap[last]
		w.heap = w.heap[:last]
		if last > 0 {
			w.down(0, moved)
		}
		left := int32(uint32(top))
		right := links[left].after
		if ids[left] == gone || right < 0 {
			continue
		}
		rank, id := t.find(ids[left], ids[right])
		if rank != uint32(top>>32) {
			continue
		}
		ids[left], ids[right] = id, gone
		after := links[right].after
		links[left].after = after
		if after >= 0 {
			links[after].before = left
			t.offer(w, left, after)
		}
		if before := links[left].before; before >= 0 {
			t.offer(w, before, left)
		}
	}
	return slices.DeleteFunc(ids, func(id int32) bool { return id == gone })
}

// offer puts the pair of two symbols on the heap, if it merges.
func (t *mergeTable) offer(w *merging, left, right int32) {
	rank, _ := t.find(w.ids[left], w.ids[right])
	if rank == noRank {
		return
	}
	item := uint64(rank)<<32 | uint64(left)
	w.heap = append(w.heap, item)
	i := len(w.heap) - 1
	for i > 0 && item < w.heap[(i-1)/2] {
		w.heap[i] = w.heap[(i-1)/2]
		i = (i - 1) / 2
	}
	w.heap[i] = item
}

// down puts an item at i, or as far below as it belongs.
func (w *merging) down(i int, item uint64) {
	heap := w.heap
	for {
		child := 2*i + 1
		if child >= len(heap) {
			break
		}
		if child+1 < len(heap) && heap[child+1] < heap[child] {
			child++
		}
		if heap[child] >= item {
			break
		}
		heap[i] = heap[child]
		i = child
	}
	heap[i] = item
}
