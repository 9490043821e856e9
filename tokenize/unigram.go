package tokenize

import (
	"fmt"
	"math"
	"slices"
	"unicode/utf8"
)

// unigram cuts a word into the tokens whose scores, the logarithms of their probabilities, have the greatest sum, by
// dynamic programming over the places in the word (Kudo, "Subword Regularization", 2018). A character that is no token
// by itself may also be unknown, which scores well below all tokens; unknown neighbours are one token.
type unigram struct {
	trie    *trie
	scores  []float64 // by id
	unknown int32
	penalty float64     // the score of an unknown character
	bytes   *[256]int32 // tokens for the bytes of unknown text, -1 where there is none; nil: not wanted
	cache   wordCache
}

// scoredToken is an entry of a Unigram vocabulary, whose place is its id.
type scoredToken struct {
	text  string
	score float64
}

// unknownPenalty is how far an unknown character's score is below the lowest one.
const unknownPenalty = 10

// newUnigram builds the model. Of equal tokens the last one counts.
func newUnigram(vocab []scoredToken, ids map[string]int32, unknown int, byteFallback bool) (*unigram, error) {
	if unknown < 0 || unknown >= len(vocab) {
		return nil, fmt.Errorf("unk_id %d is not in the vocabulary of %d tokens", unknown, len(vocab))
	}
	m := &unigram{scores: make([]float64, len(vocab)), unknown: int32(unknown), penalty: math.Inf(1), cache: newWordCache(len(vocab))}
	for id, token := range vocab {
		m.scores[id] = token.score
		m.penalty = min(m.penalty, token.score)
	}
	m.penalty -= unknownPenalty
	if byteFallback {
		m.bytes = byteTokens(ids)
	}
	keys := make([]trieKey, 0, len(ids))
	for text, id := range ids {
		keys = append(keys, trieKey{text, id})
	}
	var err error
	m.trie, err = newTrie(keys)
	return m, err
}

// byteTokens returns the tokens <0x00> to <0xFF>, -1 for those that a vocabulary lacks.
func byteTokens(vocab map[string]int32) *[256]int32 {
	var ids [256]int32
	for b := range ids {
		id, ok := vocab[fmt.Sprintf("<0x%02X>", b)]
		if !ok {
			id = -1
		}
		ids[b] = id
	}
	return &ids
}

func (m *unigram) cut(edge) bool { return false }

func (m *unigram) tokenize(ids []int32, s *scratch, limit int) []int32 {
	for _, sp := range s.spans {
		word := s.text[sp.start:sp.end]
		first := len(ids)
		var free *cachedWord
		var ok bool
		if ids, free, ok = m.cache.find(ids, word); !ok {
			ids = m.best(ids, s, word)
			free.put(word, ids[first:])
		}
		if len(ids) >= limit {
			break
		}
	}
	return ids
}

// pathNode is the last token of the best way to cut a word up to some place.
type pathNode struct {
	score  float64 // of all of the way
	length int32   // of the token; 0: no way known yet
	id     int32
}

// take is the way to the node by a token, if it's better. Of equals the first one stays.
func (n *pathNode) take(score float64, length int, id int32) {
	if n.length == 0 || score > n.score {
		*n = pathNode{score, int32(length), id}
	}
}

// best appends the ids of a word.
func (m *unigram) best(ids []int32, s *scratch, word []byte) []int32 {
	path := slices.Grow(s.path[:0], len(word)+1)[:len(word)+1]
	s.path = path
	clear(path)
	for start := 0; start < len(word); {
		_, size := utf8.DecodeRune(word[start:])
		score, known := path[start].score, false
		at := m.trie.root()
		for i := start; i < len(word); i++ {
			var ok bool
			if at, ok = m.trie.child(at, word[i]); !ok {
				break
			}
			if id, ok := at.id(); ok {
				length := i + 1 - start
				path[i+1].take(score+m.scores[id], length, id)
				known = known || length == size
			}
		}
		if !known {
			path[start+size].take(score+m.penalty, size, m.unknown)
		}
		start += size
	}
	first := len(ids)
	for end := len(word); end > 0; {
		id := path[end].id
		start := end - int(path[end].length)
		if id == m.unknown {
			for start > 0 && path[start].id == id {
				start -= int(path[start].length)
			}
			ids = m.appendUnknown(ids, word[start:end])
		} else {
			ids = append(ids, id)
		}
		end = start
	}
	slices.Reverse(ids[first:])
	return ids
}

// appendUnknown appends the ids of unknown text, in reverse: it may be a token after all (of a score below that of its
// unknown characters, or the unknown token's own text), or have tokens for its bytes.
func (m *unigram) appendUnknown(ids []int32, text []byte) []int32 {
	at, ok := m.trie.root(), true
	for i := 0; i < len(text) && ok; i++ {
		at, ok = m.trie.child(at, text[i])
	}
	if id, is := at.id(); ok && is {
		return append(ids, id)
	}
	if m.bytes != nil {
		first := len(ids)
		for _, c := range slices.Backward(text) {
			if m.bytes[c] < 0 {
				return append(ids[:first], m.unknown)
			}
			ids = append(ids, m.bytes[c])
		}
		return ids
	}
	return append(ids, m.unknown)
}
