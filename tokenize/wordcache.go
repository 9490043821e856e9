package tokenize

import (
	"encoding/binary"
	"math/bits"
	"slices"
	"sync/atomic"
)

// wordCache remembers what a model made of short words, which are most of a text: it is read and written by any number
// of goroutines without a lock. An entry is written once; the words that a corpus begins with include its frequent ones.
type wordCache struct {
	entries []cachedWord
	shift   int // from a hash to an entry
}

const (
	maxCacheBits = 16 // 65,536 entries: 4 MB, of which the system gives what is used
	cacheWays    = 4  // places that a word may be in
)

// wordKey is a word of up to 31 bytes and its length, in the last byte: equal keys are equal words.
type wordKey [4]uint64

const maxCachedWord = 31

// cachedWord fills one cache line.
type cachedWord struct {
	key   wordKey
	state atomic.Int32 // wordFree, wordTaken, or the number of ids + wordReady
	ids   [7]int32
}

const (
	wordTaken = -1 // key and ids are being written
	wordFree  = 0
	wordReady = 1
)

// newWordCache makes a cache for a vocabulary of some size: more words than tokens are worth remembering.
func newWordCache(vocab int) wordCache {
	n := min(bits.Len(uint(vocab))+3, maxCacheBits)
	return wordCache{make([]cachedWord, 1<<n), 64 - n}
}

// find appends the ids of a word to ids, if it has them. Else free is where they may be put; nil is nowhere.
func (c *wordCache) find(ids []int32, word []byte) (_ []int32, free *cachedWord, ok bool) {
	if len(word) > maxCachedWord {
		return ids, nil, false
	}
	key := newWordKey(word)
	first := int(key.hash()>>c.shift) &^ (cacheWays - 1)
	entries := c.entries[first : first+cacheWays]
	for i := range entries {
		entry := &entries[i]
		state := entry.state.Load()
		if state < wordReady {
			return ids, entry, false
		}
		if have := &entry.key; (have[0]^key[0])|(have[1]^key[1])|(have[2]^key[2])|(have[3]^key[3]) == 0 {
			// All seven are copied: a fixed size is faster than the right one.
			n := len(ids)
			ids = slices.Grow(ids, len(entry.ids))[:n+len(entry.ids)]
			*(*[7]int32)(ids[n:]) = entry.ids
			return ids[:n+int(state-wordReady)], nil, true
		}
	}
	return ids, nil, false
}

// put remembers the ids of a word, in an entry that find gave.
func (e *cachedWord) put(word []byte, ids []int32) {
	if e == nil || len(ids) > len(e.ids) || !e.state.CompareAndSwap(wordFree, wordTaken) {
		return // another goroutine was faster
	}
	e.key = newWordKey(word)
	copy(e.ids[:], ids)
	e.state.Store(int32(wordReady + len(ids)))
}

// newWordKey reads 32 bytes, whatever the word's length, and drops those beyond it: branches on the length would be
// mispredicted at about every word. A word at the end of its buffer is copied for that.
func newWordKey(word []byte) (key wordKey) {
	if cap(word) < 32 {
		word = append(make([]byte, 0, 32), word...)
	}
	from, mask := word[:32], &wordMasks[len(word)]
	key[0] = binary.LittleEndian.Uint64(from) & mask[0]
	key[1] = binary.LittleEndian.Uint64(from[8:]) & mask[1]
	key[2] = binary.LittleEndian.Uint64(from[16:]) & mask[2]
	key[3] = binary.LittleEndian.Uint64(from[24:])&mask[3] | uint64(len(word))<<56
	return key
}

// wordMasks are the bits of a word of so many bytes.
var wordMasks = func() (masks [maxCachedWord + 1]wordKey) {
	for n := range masks {
		for i := range n {
			masks[n][i/8] |= 0xFF << (i % 8 * 8)
		}
	}
	return masks
}()

// hash mixes a key into 64 bits, of which the highest are the best.
func (k *wordKey) hash() uint64 {
	const k0, k1 = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93
	hi, lo := bits.Mul64(k[0]^bits.RotateLeft64(k[2], 32)^k0, k[1]^k[3]^k1)
	return (hi ^ lo) * k0
}
