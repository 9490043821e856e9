package tokenize

import (
	"bytes"
	"unicode/utf8"
)

// span is a piece of a text: bytes start to end.
type span struct{ start, end int }

// preTokenizer cuts each of s.spans of s.text into smaller ones, which aren't empty; what lies between them is dropped. It
// may rewrite the text.
type preTokenizer interface {
	split(s *scratch)
	// cut says what may follow the place of a cut afterwards, given what may before (see edge), and whether it is settled
	// that no span reaches across.
	cut(at edge) (edge, bool)
}

// preTokenizerSequence applies its parts one after the other.
type preTokenizerSequence []preTokenizer

func (p preTokenizerSequence) split(s *scratch) {
	for _, part := range p {
		part.split(s)
	}
}

// cut asks until it is settled: what follows works on words.
func (p preTokenizerSequence) cut(at edge) (edge, bool) {
	settled := false
	for i := 0; i < len(p) && at != 0 && !settled; i++ {
		at, settled = p[i].cut(at)
	}
	return at, settled
}

// runKind says how a run splitter treats a character.
type runKind uint8

const (
	runWord   runKind = iota // joins its neighbours of the same kind
	runOther                 // joins its neighbours of the same kind
	runSpace                 // separates, and is dropped
	runSingle                // a span by itself
	runBeyond                // not ASCII: ask the tables
)

// runSplitter cuts a text into runs of characters of one kind. Three of Hugging Face's pre-tokenizers are that:
// BertPreTokenizer (white space separates, each punctuation character stands alone), WhitespaceSplit (white space
// separates) and Whitespace (the regular expression \w+|[^\w\s]+).
type runSplitter struct {
	u     *unicodeData
	bytes [256]runKind
	kind  func(class) runKind
}

func newRunSplitter(u *unicodeData, kind func(class) runKind) *runSplitter {
	p := &runSplitter{u: u, kind: kind}
	for b := range rune(len(p.bytes)) {
		p.bytes[b] = runBeyond
		if b < utf8.RuneSelf {
			p.bytes[b] = kind(u.class.at(b))
		}
	}
	return p
}

func bertKind(c class) runKind {
	switch {
	case c&classSpace != 0:
		return runSpace
	case c&classPunctuation != 0:
		return runSingle
	}
	return runWord
}

func whitespaceSplitKind(c class) runKind {
	if c&classSpace != 0 {
		return runSpace
	}
	return runWord
}

func whitespaceKind(c class) runKind {
	switch {
	case c&classSpace != 0:
		return runSpace
	case c&classWord != 0:
		return runWord
	}
	return runOther
}

func (p *runSplitter) cut(at edge) (edge, bool) { return settledAtSpaces(at) }

// settledAtSpaces is the answer of a pre-tokenizer for which a space, but nothing else, begins a word or separates.
func settledAtSpaces(at edge) (edge, bool) {
	if at == edgeSpace {
		return at, true
	}
	return 0, false
}

func (p *runSplitter) split(s *scratch) {
	out := s.spareSpans[:0]
	for _, piece := range s.spans {
		start, last := piece.start, runSpace // start: of the run that goes on, of kind last
		text := s.text[:piece.end]
		for i := piece.start; i < len(text); {
			kind, size := p.bytes[text[i]], 1
			if kind == last && kind != runSingle {
				i++
				continue
			}
			if kind == runBeyond {
				var r rune
				r, size = utf8.DecodeRune(text[i:])
				kind = p.kind(p.u.class.at(r))
			}
			if kind != last || kind == runSingle {
				if last != runSpace {
					out = append(out, span{start, i})
				}
				start, last = i, kind
			}
			i += size
		}
		if last != runSpace {
			out = append(out, span{start, piece.end})
		}
	}
	s.swapSpans(out)
}

// delimiterSplitter cuts at matches of a pattern: Hugging Face's Punctuation and Digits, and its Split at a given text.
type delimiterSplitter struct {
	pattern  delimiter
	behavior string // what becomes of a match
	invert   bool   // of what doesn't match, that is
}

// delimiter is a pattern.
type delimiter interface {
	// match returns the first match in text, which isn't empty; start is len(text) if there is none.
	match(text []byte) (start, end int)
}

// The behaviours, as tokenizer.json names them.
const (
	behaviorIsolated           = "Isolated"
	behaviorRemoved            = "Removed"
	behaviorContiguous         = "Contiguous"
	behaviorMergedWithPrevious = "MergedWithPrevious"
	behaviorMergedWithNext     = "MergedWithNext"
)

// character matches one of some classes.
type character struct {
	u       *unicodeData
	classes class
}

func (d character) match(text []byte) (start, end int) {
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRune(text[i:])
		if d.u.class.at(r)&d.classes != 0 {
			return i, i + size
		}
		i += size
	}
	return len(text), len(text)
}

// literal matches a text that isn't empty.
type literal string

func (d literal) match(text []byte) (start, end int) {
	if i := bytes.Index(text, []byte(d)); i >= 0 {
		return i, i + len(d)
	}
	return len(text), len(text)
}

// cut: neither a space nor what is before it is a number, so that all is the same on either side.
func (p delimiterSplitter) cut(at edge) (edge, bool) {
	if c, ok := p.pattern.(character); ok && c.classes == classNumeric {
		return at, false
	}
	return 0, false
}

func (p delimiterSplitter) split(s *scratch) {
	out := s.spareSpans[:0]
	for _, piece := range s.spans {
		// Of the span before: was it a match, and is it of this piece?
		wasMatch, first := false, len(out)
		start, end := 0, 0 // of the next match
		for i := piece.start; i < piece.end; {
			if i >= end {
				start, end = p.pattern.match(s.text[i:piece.end])
				start, end = i+start, i+end
			}
			next, isMatch := start, i == start
			if isMatch {
				next = end
			}
			isMatch = isMatch != p.invert
			join := false
			switch p.behavior {
			case behaviorRemoved:
				if isMatch {
					i = next
					continue
				}
			case behaviorContiguous:
				join = isMatch == wasMatch
			case behaviorMergedWithPrevious:
				join = isMatch && !wasMatch
			case behaviorMergedWithNext:
				// Of several in a row only the last joins the text after it; it came as a span of its own.
				join = wasMatch && !isMatch
			}
			if join && len(out) > first {
				out[len(out)-1].end = next
			} else {
				out = append(out, span{i, next})
			}
			i, wasMatch = next, isMatch
		}
	}
	s.swapSpans(out)
}

// metaspace is Hugging Face's Metaspace: each space becomes the replacement ("▁"), before which the text is cut, and a
// piece that doesn't begin with one gets one.
type metaspace struct {
	replacement  string
	prepend      bool // to each piece
	prependFirst bool // to the piece with which the input begins
	splits       bool // else it is not cut
}

// scheme is the prepend_scheme of tokenizer.json.
func (p metaspace) scheme() string {
	switch {
	case p.prepend:
		return "always"
	case p.prependFirst:
		return "first"
	}
	return "never"
}

func (p metaspace) cut(at edge) (edge, bool) {
	if p.replacement != metaSpace {
		return 0, false
	}
	return edgeMeta, p.splits
}

func (p metaspace) split(s *scratch) {
	out, spans := s.spare[:0], s.spareSpans[:0]
	for _, sp := range s.spans {
		out, spans = p.piece(out, spans, s.text[sp.start:sp.end], s.start && sp.start == 0)
	}
	s.start = s.start && len(s.spans) > 0 && s.spans[0].start == 0 // what came before the first piece is no longer in the text
	s.swap(out)
	s.swapSpans(spans)
}

// piece appends a piece to out and what it is cut into to spans.
func (p metaspace) piece(out []byte, spans []span, piece []byte, first bool) ([]byte, []span) {
	start := len(out)
	if (p.prepend || p.prependFirst && first) && piece[0] != ' ' && !bytes.HasPrefix(piece, []byte(p.replacement)) {
		out = append(out, p.replacement...)
	}
	for i := 0; i < len(piece); {
		next := i
		for next < len(piece) && piece[next] != ' ' && piece[next] != p.replacement[0] {
			next++
		}
		out = append(out, piece[i:next]...)
		i = next
		if i == len(piece) {
			break
		}
		switch {
		case piece[i] == ' ':
			i++
		case bytes.HasPrefix(piece[i:], []byte(p.replacement)):
			i += len(p.replacement)
		default:
			out = append(out, piece[i])
			i++
			continue
		}
		if p.splits && len(out) > start {
			spans = append(spans, span{start, len(out)})
			start = len(out)
		}
		out = append(out, p.replacement...)
	}
	return out, append(spans, span{start, len(out)})
}
