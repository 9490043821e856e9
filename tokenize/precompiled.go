package tokenize

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"
)

// precompiled is SentencePiece's normalization map (nmt_nfkc and the like), as Hugging Face reads it: a grapheme cluster
// of up to 5 bytes is replaced by what its shortest prefix in the map stands for, whatever else is in the cluster; in a
// longer cluster, or if the map has no prefix of it, each character is replaced by itself. A replacement may be empty.
type precompiled struct {
	u       *unicodeData
	trie    *trie    // from keys to indices into replacements
	replace []string // by index
	longest int      // of them, in bytes, or 1
	// plain[b] says of an ASCII character that it stays if nothing joins it: the map doesn't have it.
	plain [utf8.RuneSelf]bool
	// whole says that a cluster of which a character visible in ASCII is the end, or a space the beginning, may be
	// replaced.
	whole bool
}

// maxCluster is the longest cluster, in bytes, that is looked up as a whole; so keys beyond it never match.
const maxCluster = 5

// newPrecompiled reads a precompiled_charsmap: the length of a trie in bytes, the trie, and the replacements, each ended
// by a NUL. The trie is a double array of Darts-clone: units of 32 bits, little-endian.
func newPrecompiled(u *unicodeData, data []byte) (*precompiled, error) {
	if len(data) < 4 {
		return nil, fmt.Errorf("precompiled_charsmap has %d bytes, less than a length", len(data))
	}
	size := binary.LittleEndian.Uint32(data)
	data = data[4:]
	if uint64(size) > uint64(len(data)) {
		return nil, fmt.Errorf("precompiled_charsmap says that its trie has %d bytes; %d follow", size, len(data))
	}
	units := make([]uint32, size/4)
	for i := range units {
		units[i] = binary.LittleEndian.Uint32(data[4*i:])
	}
	texts := data[4*len(units):]
	if !utf8.Valid(texts) {
		return nil, errors.New("precompiled_charsmap's replacements are not UTF-8")
	}
	if len(units) == 0 {
		return nil, errors.New("precompiled_charsmap's trie is empty")
	}
	p := &precompiled{u: u, longest: 1}
	var keys []trieKey
	index := map[uint32]int32{}
	err := walkDarts(units, func(key []byte, at uint32) error {
		if uint64(at) > uint64(len(texts)) || int(at) < len(texts) && !utf8.RuneStart(texts[at]) {
			return fmt.Errorf("precompiled_charsmap's key %q has its replacement at byte %d of %d", key, at, len(texts))
		}
		id, ok := index[at]
		if !ok {
			text := texts[at:]
			if end := slices.Index(text, 0); end >= 0 {
				text = text[:end]
			}
			if len(text) > maxReplacement {
				return fmt.Errorf("precompiled_charsmap's key %q has a replacement of %d bytes, more than %d", key, len(text), maxReplacement)
			}
			id = int32(len(p.replace))
			index[at] = id
			p.replace = append(p.replace, string(text))
			p.longest = max(p.longest, len(text))
		}
		keys = append(keys, trieKey{string(key), id})
		first, size := utf8.DecodeRune(key)
		p.whole = p.whole || first == ' ' || first == utf8.RuneError && size == 1 || u.cluster.at(first)&clusterPrepend != 0
		return nil
	})
	if err != nil {
		return nil, err
	}
	if p.trie, err = newTrie(keys); err != nil {
		return nil, err
	}
	for b := range p.plain {
		_, mapped := p.trie.walk(p.trie.root(), string(rune(b))).id()
		p.plain[b] = !mapped && b != '\r' // CR LF is one cluster
	}
	return p, nil
}

// maxReplacement is the longest replacement that is believed, in bytes: SentencePiece's have up to 33.
const maxReplacement = 256

// maxDartsNodes is how much of a double array is believed: SentencePiece's largest map has about 30,000 nodes. One that
// was made to harm may have paths without end, or more of them than units.
const maxDartsNodes = 1 << 20

// walkDarts calls found for each key that can match and has no other key as a prefix, with its value.
//
// A unit has the label of the byte that leads to it (8 bits), whether a key ends here (bit 8), and the offset of its
// children (22 bits from bit 10, in units of 256 if bit 9 is set); bit 31 marks a value. The child for byte c is at the
// node's position XOR offset XOR c, the value at that of byte 0.
func walkDarts(units []uint32, found func(key []byte, value uint32) error) error {
	offset := func(unit uint32) uint32 { return unit >> 10 << (unit & (1 << 9) >> 6) }
	nodes := 0
	var walk func(children uint32, key []byte) error
	walk = func(children uint32, key []byte) error {
		for c := uint32(1); c < 256; c++ {
			at := children ^ c
			if uint64(at) >= uint64(len(units)) || units[at]&(1<<31|0xff) != c {
				continue
			}
			if nodes++; nodes > maxDartsNodes {
				return fmt.Errorf("precompiled_charsmap's trie has more than %d nodes", maxDartsNodes)
			}
			key := append(key, byte(c))
			next := at ^ offset(units[at])
			switch {
			case units[at]>>8&1 != 0:
				if uint64(next) >= uint64(len(units)) {
					return fmt.Errorf("precompiled_charsmap's key %q has its value at unit %d of %d", key, next, len(units))
				}
				if err := found(key, units[next]&(1<<31-1)); err != nil {
					return err
				}
			case len(key) < maxCluster:
				if err := walk(next, key); err != nil {
					return err
				}
			}
		}
		return nil
	}
	return walk(offset(units[0]), nil)
}

// lookup returns what the shortest key that text begins with stands for.
func (n *precompiled) lookup(text []byte) (string, bool) {
	at := n.trie.root()
	for _, c := range text {
		var ok bool
		if at, ok = n.trie.child(at, c); !ok {
			break
		}
		if id, ok := at.id(); ok {
			return n.replace[id], true
		}
	}
	return "", false
}

func (n *precompiled) cut(at edge) edge {
	if n.whole || slices.Contains(n.plain[' ':0x7F], false) {
		return 0
	}
	return at & edgeSpace
}

func (n *precompiled) normalize(s *scratch) {
	src, out := s.text, slices.Grow(s.spare[:0], len(s.text))
	for i := 0; i < len(src); {
		// An ASCII character is a cluster, but for CR LF, unless something joins it.
		plain := i
		for plain < len(src) && src[plain] < utf8.RuneSelf && n.plain[src[plain]] {
			plain++
		}
		if plain < len(src) && src[plain] >= utf8.RuneSelf && plain > i {
			plain-- // it may join the character before
		}
		if plain > i {
			out = append(out, src[i:plain]...)
			i = plain
			continue
		}
		end := i + n.u.clusterEnd(src[i:])
		if end-i <= maxCluster {
			if text, ok := n.lookup(src[i:end]); ok {
				out = append(out, text...)
				i = end
				continue
			}
		}
		for i < end {
			_, size := utf8.DecodeRune(src[i:end])
			if text, ok := n.lookup(src[i : i+size]); ok {
				out = append(out, text...)
			} else {
				out = append(out, src[i:i+size]...)
			}
			i += size
		}
	}
	s.swap(out)
}
