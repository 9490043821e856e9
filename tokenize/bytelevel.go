package tokenize

import "unicode/utf8"

// byteLevel is Hugging Face's ByteLevel: the words of GPT-2's regular expression, in which each byte counts as a
// character. There, bytes are turned into the letters that stand for them in the vocabulary ("Ġ" for a space); here the
// model knows what byte a letter stands for, and reads the text as it is.
type byteLevel struct {
	prefix bool           // put a space before each piece that doesn't begin with one
	words  *regexSplitter // nil: leave pieces whole
}

func (p byteLevel) cut(at edge) (edge, bool) {
	// What comes after a cut begins with a space and so gets none.
	if at, settled := settledAtSpaces(at); p.words != nil || !settled {
		return at, settled
	}
	return at, false
}

func (p byteLevel) split(s *scratch) {
	if p.prefix {
		out, spans := s.spare[:0], s.spareSpans[:0]
		for _, sp := range s.spans {
			start := len(out)
			if s.text[sp.start] != ' ' {
				out = append(out, ' ')
			}
			out = append(out, s.text[sp.start:sp.end]...)
			spans = append(spans, span{start, len(out)})
		}
		s.swap(out)
		s.swapSpans(spans)
	}
	if p.words != nil {
		p.words.split(s)
	}
}

// byteLetters are the letters that stand for bytes: a visible Latin-1 character for itself, those from U+0100 on for the
// other bytes in order.
var byteLetters = func() (letters [256]rune) {
	next := rune(0x100)
	for b := range letters {
		switch r := rune(b); {
		case '!' <= r && r <= '~', 0xA1 <= r && r <= 0xAC, 0xAE <= r:
			letters[b] = r
		default:
			letters[b] = next
			next++
		}
	}
	return letters
}()

// letterBytes is byteLetters the other way round.
var letterBytes = func() map[rune]byte {
	m := make(map[rune]byte, len(byteLetters))
	for b, r := range byteLetters {
		m[r] = byte(b)
	}
	return m
}()

// appendLetterBytes appends the bytes that a token stands for; false says that it has other letters.
func appendLetterBytes(dst []byte, token string) ([]byte, bool) {
	for i := 0; i < len(token); {
		r, size := utf8.DecodeRuneInString(token[i:])
		b, ok := letterBytes[r]
		if !ok {
			return dst, false
		}
		dst = append(dst, b)
		i += size
	}
	return dst, true
}
