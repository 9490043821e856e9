package tokenize

import (
	"fmt"
	"unicode/utf8"
)

// model turns words into ids.
type model interface {
	// tokenize appends the ids of the words at s.spans of s.text to ids. It stops after the word with which len(ids)
	// reaches limit.
	tokenize(ids []int32, s *scratch, limit int) []int32
	// cut says whether a word may be cut where the text was (see edge).
	cut(at edge) bool
}

// wordPiece cuts a word into the longest pieces the vocabulary has, from left to right, those after the first with the
// continuation prefix ("##"). A word that can't be cut to its end, or is too long, is one unknown token.
//
// Both kinds of piece live in one trie: the continuing pieces are those below the prefix's node. One walk finds a
// word's longest piece, so a word costs about a step per byte (Hugging Face tries every end, hashing each time).
type wordPiece struct {
	trie      *trie
	continued node // where a continuing piece's walk begins; the zero node if the vocabulary has none
	unknown   int32
	maxChars  int // of a word, in characters
}

// newWordPiece builds the model. The unknown token must be in vocab.
func newWordPiece(vocab map[string]int32, unknown, prefix string, maxChars int) (*wordPiece, error) {
	unknownID, ok := vocab[unknown]
	if !ok {
		return nil, fmt.Errorf("the unknown token %q is not in the vocabulary", unknown)
	}
	keys := make([]trieKey, 0, len(vocab))
	for text, id := range vocab {
		keys = append(keys, trieKey{text, id})
	}
	t, err := newTrie(keys)
	if err != nil {
		return nil, err
	}
	return &wordPiece{trie: t, continued: t.walk(t.root(), prefix), unknown: unknownID, maxChars: maxChars}, nil
}

func (m *wordPiece) cut(edge) bool { return false }

func (m *wordPiece) tokenize(ids []int32, s *scratch, limit int) []int32 {
	units := m.trie.units
	for _, sp := range s.spans {
		word := s.text[sp.start:sp.end]
		if len(word) > m.maxChars && utf8.RuneCount(word) > m.maxChars {
			ids = append(ids, m.unknown)
		} else {
			first := len(ids)
			at := units[0]
			for start := 0; start < len(word); {
				best, end := node(0), start
				// trie.child and node.id, written out: this loop is most of the time.
				for i := start; i < len(word); i++ {
					c := word[i]
					at = units[uint64(at>>36)+uint64(c)]
					if at>>27&0x1ff != node(c)|0x100 {
						break
					}
					if id := at & (1<<27 - 1); id != 0 {
						best, end = id, i+1
					}
				}
				if best == 0 {
					ids = append(ids[:first], m.unknown)
					break
				}
				ids = append(ids, int32(best)-1)
				start, at = end, m.continued
			}
		}
		if len(ids) >= limit {
			break
		}
	}
	return ids
}
