package tokenize

import (
	"bytes"
	"unicode/utf8"
)

// The regular expressions that byte-level tokenizers cut text with use lookahead, and the engine's own tables: each is
// written out here. All match at every place, so that a text is cut into matches without gaps.
const (
	regexGPT2  = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	regexLlama = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	regexQwen  = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	// Of Qwen3.5: marks are like letters.
	regexQwenMarks = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	// Of Mistral's Tekken: a word ends where a capital follows a small letter.
	regexTekken = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	// GPT-4o's, of o200k: likewise, with a contraction behind the word.
	regexO200k = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

// regexSplitter cuts a text into the matches of one of them.
type regexSplitter struct {
	ascii [256]regexKind // regexBeyond for what isn't
	kinds pages[regexKind]
	// next returns the end of the match that begins at i, before the end of text.
	next func(p *regexSplitter, text []byte, i int) int

	// Of all but GPT-2's:
	contractions bool
	word         func(p *regexSplitter, text []byte, i int) int // the end of a word that begins at i, or i
	digits       int                                            // that a match takes at most
	slash        bool                                           // goes with the line ends that follow punctuation
}

// regexKind is the classes of a character, as far as the regular expressions ask.
type regexKind uint8

const (
	regexLetter  regexKind = 1 << iota // what words are made of
	regexNumber                        // \p{N}
	regexSpace                         // \s
	regexNewline                       // \r, \n
	regexOther                         // none of these
	regexUpper                         // [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]
	regexLower                         // [\p{Ll}\p{Lm}\p{Lo}\p{M}]
	regexBeyond
)

// newRegexSplitter returns the splitter for a regular expression, if it is one of the above.
func newRegexSplitter(u *unicodeData, regex string) (*regexSplitter, bool) {
	p := &regexSplitter{next: (*regexSplitter).nextMatch, contractions: true, word: (*regexSplitter).lettersWord, digits: 1}
	letters := classLetter
	switch regex {
	case regexGPT2:
		p.next = (*regexSplitter).nextGPT2
	case regexLlama:
		p.digits = 3
	case regexQwen:
	case regexQwenMarks:
		letters |= classMarked
	case regexTekken:
		p.contractions, p.word, p.slash = false, (*regexSplitter).casedWord, true
	case regexO200k:
		p.contractions, p.word, p.slash, p.digits = false, (*regexSplitter).contractedWord, true, 3
	default:
		return nil, false
	}
	p.kinds = mapPages(u.class, func(c class) (kind regexKind) {
		switch {
		case c&letters != 0:
			kind = regexLetter
		case c&classNumber != 0:
			kind = regexNumber
		case c&classSpace != 0:
			kind = regexSpace
		default:
			kind = regexOther
		}
		if c&(classLetter|classMarked) != 0 {
			if c&classSmall == 0 {
				kind |= regexUpper
			}
			if c&classCapital == 0 {
				kind |= regexLower
			}
		}
		return kind
	})
	for b := range p.ascii {
		p.ascii[b] = regexBeyond
		if b < utf8.RuneSelf {
			p.ascii[b] = p.kinds.at(rune(b))
		}
	}
	p.ascii['\r'] |= regexNewline
	p.ascii['\n'] |= regexNewline
	return p, true
}

func (p *regexSplitter) cut(at edge) (edge, bool) { return settledAtSpaces(at) }

func (p *regexSplitter) split(s *scratch) {
	out := s.spareSpans[:0]
	for _, piece := range s.spans {
		text := s.text[:piece.end]
		for i := piece.start; i < piece.end; {
			end := p.next(p, text, i)
			out = append(out, span{i, end})
			i = end
		}
	}
	s.swapSpans(out)
}

// kind returns the classes of the character at i, and its length; at the end of the text it has none.
func (p *regexSplitter) kind(text []byte, i int) (regexKind, int) {
	if i >= len(text) {
		return 0, 0
	}
	kind := p.ascii[text[i]]
	if kind != regexBeyond {
		return kind, 1
	}
	r, size := utf8.DecodeRune(text[i:])
	return p.kinds.at(r), size
}

// run returns the end of the run of characters of some kinds at i.
func (p *regexSplitter) run(text []byte, i int, kinds regexKind) int {
	for i < len(text) {
		kind := p.ascii[text[i]]
		if kind != regexBeyond {
			if kind&kinds == 0 {
				return i
			}
			i++
			continue
		}
		r, size := utf8.DecodeRune(text[i:])
		if p.kinds.at(r)&kinds == 0 {
			return i
		}
		i += size
	}
	return i
}

// space returns the end of a match of \s+(?!\S)|\s+ at a space: all but the last one of a run that is followed by
// something else, unless that one is all there is.
func (p *regexSplitter) space(text []byte, i int) int {
	end := p.run(text, i, regexSpace)
	if end < len(text) {
		_, size := utf8.DecodeLastRune(text[i:end])
		if end-size > i {
			return end - size
		}
	}
	return end
}

func (p *regexSplitter) nextGPT2(text []byte, i int) int {
	start := i
	if text[i] == '\'' {
		if n := contraction(text[i+1:]); n > 0 {
			return i + 1 + n
		}
	}
	if text[i] == ' ' {
		start++
	}
	switch kind, size := p.kind(text, start); {
	case kind == 0 || kind&regexSpace != 0:
		return p.space(text, i)
	default:
		return p.run(text, start+size, kind&(regexLetter|regexNumber|regexOther))
	}
}

// contraction returns the length of s, t, re, ve, m, ll or d that text, what is after an apostrophe, begins with; 0 if none.
func contraction(text []byte) int {
	switch {
	case len(text) > 0 && (text[0] == 's' || text[0] == 't' || text[0] == 'm' || text[0] == 'd'):
		return 1
	case len(text) > 1 && (text[1] == 'e' && (text[0] == 'r' || text[0] == 'v') || text[0] == 'l' && text[1] == 'l'):
		return 2
	}
	return 0
}

// foldedContraction is contraction in any case; an s may also be a long one (U+017F).
func foldedContraction(text []byte) int {
	if bytes.HasPrefix(text, []byte("\u017F")) {
		return len("\u017F")
	}
	var lower [2]byte
	for i, b := range text[:min(len(text), len(lower))] {
		lower[i] = b
		if 'A' <= b && b <= 'Z' {
			lower[i] += 'a' - 'A'
		}
	}
	return contraction(lower[:])
}

// nextMatch takes the alternatives in their order: a contraction, a word, digits, punctuation with the line ends after it,
// white space up to the last line end, other white space.
func (p *regexSplitter) nextMatch(text []byte, i int) int {
	if p.contractions && text[i] == '\'' {
		if n := foldedContraction(text[i+1:]); n > 0 {
			return i + 1 + n
		}
	}
	if end := p.word(p, text, i); end > i {
		return end
	}
	kind, size := p.kind(text, i)
	if kind&regexNumber != 0 {
		end := i + size
		for range p.digits - 1 {
			if kind, size = p.kind(text, end); kind&regexNumber == 0 {
				break
			}
			end += size
		}
		return end
	}
	start := i
	if text[i] == ' ' {
		start++
	}
	if end := p.run(text, start, regexOther); end > start {
		for end < len(text) && (p.ascii[text[end]]&regexNewline != 0 || p.slash && text[end] == '/') {
			end++
		}
		return end
	}
	spaces := text[i:p.run(text, i, regexSpace)]
	for n := len(spaces); n > 0; n-- {
		if b := spaces[n-1]; b == '\n' || b == '\r' {
			return i + n
		}
	}
	return p.space(text, i)
}

// lettersWord is [^\r\n\p{L}\p{N}]?\p{L}+.
func (p *regexSplitter) lettersWord(text []byte, i int) int {
	kind, size := p.kind(text, i)
	if kind&regexLetter != 0 {
		return p.run(text, i+size, regexLetter)
	}
	if kind&(regexNumber|regexNewline) == 0 {
		if end := p.run(text, i+size, regexLetter); end > i+size {
			return end
		}
	}
	return i
}

// casedWord is Tekken's first two alternatives.
func (p *regexSplitter) casedWord(text []byte, i int) int {
	kind, size := p.kind(text, i)
	starts := [2]int{i, i} // with the character before the word, if it may be one; without
	n := 1
	if kind&(regexLetter|regexNumber|regexNewline) == 0 {
		starts[0], n = i+size, 2
	}
	for _, start := range starts[:n] {
		if end := p.smallWord(text, start); end > start {
			return end
		}
	}
	for _, start := range starts[:n] {
		if end := p.run(text, start, regexUpper); end > start {
			return p.run(text, end, regexLower)
		}
	}
	return i
}

// smallWord is upper* lower+: if no small letter follows the upper ones, then these give back what they took, down to the
// last one that is lower, too.
func (p *regexSplitter) smallWord(text []byte, i int) int {
	both := i
	end := i
	for end < len(text) {
		kind, size := p.kind(text, end)
		if kind&regexUpper == 0 {
			break
		}
		end += size
		if kind&regexLower != 0 {
			both = end
		}
	}
	if more := p.run(text, end, regexLower); more > end {
		return more
	}
	return both
}

// contractedWord is o200k's first two alternatives: Tekken's, and a contraction behind them.
func (p *regexSplitter) contractedWord(text []byte, i int) int {
	end := p.casedWord(text, i)
	if end > i && end < len(text) && text[end] == '\'' {
		if n := foldedContraction(text[end+1:]); n > 0 {
			return end + 1 + n
		}
	}
	return end
}
