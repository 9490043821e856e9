package tokenize

import (
	"bytes"
	"unicode/utf8"
)

// addedToken is a token found in the text itself, before the model sees it.
type addedToken struct {
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"` // only where no word character (\w) stands next to it
	LStrip     bool   `json:"lstrip"`      // takes the white space on its left with it
	RStrip     bool   `json:"rstrip"`      // and on its right
	Normalized bool   `json:"normalized"`  // looked for in the normalized text, else in the raw text
	Special    bool   `json:"special"`

	id     int32
	normal string // what to look for: Content, normalized if it is to be
}

// addedMatcher finds added tokens: from left to right, at each place the longest (Hugging Face's LeftmostLongest).
type addedMatcher struct {
	u      *unicodeData
	tokens map[int32]addedToken // by id
	trie   *trie                // nil: no tokens
	first  [256]bool            // bytes that tokens begin with
	only   int                  // the one such byte, or -1
}

// newAddedMatcher looks for tokens. Where two texts are equal the lower id wins (Hugging Face picks one at random).
func newAddedMatcher(u *unicodeData, tokens []addedToken) (*addedMatcher, error) {
	m := &addedMatcher{u: u, tokens: map[int32]addedToken{}, only: -1}
	var keys []trieKey
	for _, token := range tokens {
		m.tokens[token.id] = token
		keys = append(keys, trieKey{token.normal, token.id})
		m.first[token.normal[0]] = true
	}
	if len(keys) == 0 {
		return m, nil
	}
	count := 0
	for b, is := range m.first {
		if is {
			m.only, count = b, count+1
		}
	}
	if count > 1 {
		m.only = -1
	}
	var err error
	m.trie, err = newTrie(keys)
	return m, err
}

// next finds the first token at or after from.
func (m *addedMatcher) next(text []byte, from int) (start, end int, token addedToken, ok bool) {
	if m.trie == nil {
		return 0, 0, addedToken{}, false
	}
	for start = from; start < len(text); start++ {
		if m.only >= 0 {
			skip := bytes.IndexByte(text[start:], byte(m.only))
			if skip < 0 {
				break
			}
			start += skip
		} else if !m.first[text[start]] {
			continue
		}
		found := int32(-1)
		at := m.trie.root()
		for i := start; i < len(text); i++ {
			var more bool
			if at, more = m.trie.child(at, text[i]); !more {
				break
			}
			if id, is := at.id(); is {
				found, end = id, i+1
			}
		}
		if found >= 0 {
			return start, end, m.tokens[found], true
		}
	}
	return 0, 0, addedToken{}, false
}

// split calls piece for each stretch of text (by its bounds) between added tokens and token for each of these, in
// order, until piece returns false.
//
// The details are Hugging Face's: a match that single_word rejects still uses up its text for the search; a token found
// in the space that the one before took along (rstrip) is given all the same, unless lstrip leaves nothing of it.
func (m *addedMatcher) split(text []byte, piece func(start, end int) bool, token func(id int32)) {
	done := 0 // text before this is dealt with
	for from := 0; ; {
		start, end, found, ok := m.next(text, from)
		if !ok {
			break
		}
		from = end
		if found.SingleWord && (m.wordBefore(text[:start]) || m.wordAfter(text[end:])) {
			continue
		}
		if found.LStrip {
			start = max(done, m.u.trimRight(text[:start]))
		}
		if found.RStrip {
			end += m.u.leadingSpace(text[end:])
		}
		if done < start && !piece(done, start) {
			return
		}
		if start < end {
			token(found.id)
		}
		done = end
	}
	if done != len(text) {
		piece(done, len(text))
	}
}

func (m *addedMatcher) wordBefore(text []byte) bool {
	r, size := utf8.DecodeLastRune(text)
	return size > 0 && m.u.class.at(r)&classWord != 0
}

func (m *addedMatcher) wordAfter(text []byte) bool {
	r, size := utf8.DecodeRune(text)
	return size > 0 && m.u.class.at(r)&classWord != 0
}
