package tokenize

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// modelJSON is what any of the models has in tokenizer.json.
type modelJSON struct {
	Type   string     `json:"type"`
	Vocab  vocabJSON  `json:"vocab"`
	Merges mergesJSON `json:"merges"`

	UnkToken     *string  `json:"unk_token"`
	UnkID        *int     `json:"unk_id"`
	Prefix       *string  `json:"continuing_subword_prefix"`
	Suffix       *string  `json:"end_of_word_suffix"`
	MaxChars     *int     `json:"max_input_chars_per_word"`
	Dropout      *float64 `json:"dropout"`
	FuseUnk      bool     `json:"fuse_unk"`
	ByteFallback bool     `json:"byte_fallback"`
	IgnoreMerges bool     `json:"ignore_merges"`
}

// vocabJSON is an object of tokens and their ids, or, for Unigram, a list of tokens and their scores.
type vocabJSON struct {
	ids    map[string]int32 // nil: none given
	scored []scoredToken    // nil: not a list
	size   int              // the id of the next token to be added, for Hugging Face
}

func (v *vocabJSON) UnmarshalJSON(data []byte) error {
	s := newJSONScanner(data)
	switch {
	case s.take('{'):
		v.ids = make(map[string]int32, len(data)/20)
		for !s.take('}') {
			token, err := s.string()
			if err != nil {
				return fmt.Errorf("vocab: %w", err)
			}
			number, err := s.number()
			if err != nil {
				return fmt.Errorf("vocab: token %q: %w", token, err)
			}
			id, err := strconv.ParseInt(number, 10, 32)
			if err != nil || checkID(int32(id)) != nil {
				return fmt.Errorf("vocab: token %q: id %s is not in 0 to %d", token, number, maxTrieID)
			}
			v.ids[token] = int32(id)
		}
		v.size = len(v.ids)
	case s.take('['):
		v.scored = make([]scoredToken, 0, len(data)/30)
		for !s.take(']') {
			if !s.take('[') {
				return fmt.Errorf("vocab: entry %d: want a token and its score, got %s", len(v.scored), s.excerpt())
			}
			token, err := s.string()
			if err != nil {
				return fmt.Errorf("vocab: entry %d: %w", len(v.scored), err)
			}
			number, err := s.number()
			if err != nil {
				return fmt.Errorf("vocab: token %q: %w", token, err)
			}
			score, err := jsonFloat(number)
			if err != nil {
				return fmt.Errorf("vocab: token %q: %w", token, err)
			}
			if !s.take(']') {
				return fmt.Errorf("vocab: token %q has more than a score", token)
			}
			v.scored = append(v.scored, scoredToken{token, score})
		}
		v.size = len(v.scored)
		v.ids = make(map[string]int32, v.size)
		for id, token := range v.scored {
			v.ids[token.text] = int32(id)
		}
	default:
		return fmt.Errorf("vocab: want tokens with ids, or a list of tokens with scores, got %s", s.excerpt())
	}
	return nil
}

// mergesJSON is a list of pairs, or, in older files, of texts with a space between the two.
type mergesJSON [][2]string

func (m *mergesJSON) UnmarshalJSON(data []byte) error {
	s := newJSONScanner(data)
	if !s.take('[') {
		return fmt.Errorf("merges: want a list, got %s", s.excerpt())
	}
	*m = make(mergesJSON, 0, len(data)/20)
	for !s.take(']') {
		var pair [2]string
		if s.take('[') {
			for i := range pair {
				var err error
				if pair[i], err = s.string(); err != nil {
					return fmt.Errorf("merges: number %d: %w", len(*m), err)
				}
			}
			if !s.take(']') {
				return fmt.Errorf("merges: number %d has more than two tokens", len(*m))
			}
		} else {
			text, err := s.string()
			if err != nil {
				return fmt.Errorf("merges: number %d: %w", len(*m), err)
			}
			if strings.HasPrefix(text, "#version") {
				continue
			}
			var ok bool
			if pair[0], pair[1], ok = strings.Cut(text, " "); !ok || strings.Contains(pair[1], " ") {
				return fmt.Errorf("merges: number %d is %q: want two tokens with a space between them", len(*m), text)
			}
		}
		*m = append(*m, pair)
	}
	return nil
}

// build makes the model. byteLevel says that words come as bytes.
func (c *modelJSON) build(byteLevel bool) (model, error) {
	kind := c.Type
	if kind == "" { // files of early versions
		switch {
		case c.Merges != nil:
			kind = "BPE"
		case c.MaxChars != nil:
			kind = "WordPiece"
		case c.Vocab.scored != nil:
			kind = "Unigram"
		}
	}
	if byteLevel && kind != "BPE" {
		return nil, unsupported("ByteLevel with type", kind, "BPE is")
	}
	switch kind {
	case "BPE":
		if c.Vocab.ids == nil || c.Vocab.scored != nil || c.Merges == nil {
			return nil, errors.New("BPE needs vocab (tokens with ids) and merges")
		}
		if c.Dropout != nil && *c.Dropout != 0 {
			return nil, unsupported("BPE's dropout", fmt.Sprint(*c.Dropout), "null and 0 are")
		}
		if c.Prefix != nil && *c.Prefix != "" {
			return nil, unsupported("BPE's continuing_subword_prefix", *c.Prefix, "null is")
		}
		if c.Suffix != nil && *c.Suffix != "" {
			return nil, unsupported("BPE's end_of_word_suffix", *c.Suffix, "null is")
		}
		config := bpeConfig{vocab: c.Vocab.ids, merges: c.Merges, unknown: c.UnkToken, fuse: c.FuseUnk,
			byteFallback: c.ByteFallback, ignoreMerges: c.IgnoreMerges, byteLevel: byteLevel}
		return newBPE(config)
	case "Unigram":
		if c.Vocab.scored == nil {
			return nil, errors.New("Unigram needs vocab (a list of tokens with scores)")
		}
		if c.UnkID == nil {
			return nil, unsupported("Unigram's unk_id", "null", "that of a token is")
		}
		return newUnigram(c.Vocab.scored, c.Vocab.ids, *c.UnkID, c.ByteFallback)
	case "WordPiece":
		if c.UnkToken == nil || c.Prefix == nil || c.Vocab.ids == nil || c.Vocab.scored != nil || c.MaxChars == nil {
			return nil, errors.New("WordPiece needs unk_token, continuing_subword_prefix, max_input_chars_per_word and vocab (tokens with ids)")
		}
		if *c.MaxChars < 0 {
			return nil, fmt.Errorf("max_input_chars_per_word is %d", *c.MaxChars)
		}
		return newWordPiece(c.Vocab.ids, *c.UnkToken, *c.Prefix, *c.MaxChars)
	}
	return nil, unsupported("type", c.Type, "BPE, Unigram and WordPiece are")
}
