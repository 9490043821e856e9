package tokenize

import "unicode/utf8"

// span is a piece of a text: bytes start to end.
type span struct{ start, end int }

// preTokenizer cuts each of s.spans of s.text into smaller ones; what lies between them is dropped.
type preTokenizer interface {
	split(s *scratch)
	// splitsAtSpaces says that no span it makes has white space in it, and that cutting the text before a white space
	// beforehand changes nothing. Long texts are then worked on in chunks.
	splitsAtSpaces() bool
}

// preTokenizerSequence applies its parts one after the other.
type preTokenizerSequence []preTokenizer

func (p preTokenizerSequence) split(s *scratch) {
	for _, part := range p {
		part.split(s)
	}
}

// splitsAtSpaces asks the first part only: what follows works on words.
func (p preTokenizerSequence) splitsAtSpaces() bool { return len(p) > 0 && p[0].splitsAtSpaces() }

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

func (p *runSplitter) splitsAtSpaces() bool { return true }

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
		if last != runSpace && start < piece.end {
			out = append(out, span{start, piece.end})
		}
	}
	s.swapSpans(out)
}

// punctuationSplitter is Hugging Face's Punctuation, with what becomes of a punctuation character.
type punctuationSplitter struct {
	u        *unicodeData
	behavior string
}

// The behaviours, as tokenizer.json names them.
const (
	behaviorIsolated           = "Isolated"
	behaviorRemoved            = "Removed"
	behaviorContiguous         = "Contiguous"
	behaviorMergedWithPrevious = "MergedWithPrevious"
	behaviorMergedWithNext     = "MergedWithNext"
)

func (p punctuationSplitter) splitsAtSpaces() bool { return false }

func (p punctuationSplitter) split(s *scratch) {
	out := s.spareSpans[:0]
	for _, piece := range s.spans {
		// Of the span before: did it come from punctuation, and is it of this piece?
		wasMark, first := false, len(out)
		for i := piece.start; i < piece.end; {
			start, isMark := i, false
			for i < piece.end {
				r, size := utf8.DecodeRune(s.text[i:piece.end])
				if p.u.class.at(r)&classPunctuation != 0 {
					if i == start {
						i, isMark = i+size, true
					}
					break
				}
				i += size
			}
			join := false
			switch p.behavior {
			case behaviorRemoved:
				if isMark {
					continue
				}
			case behaviorContiguous:
				join = isMark == wasMark
			case behaviorMergedWithPrevious:
				join = isMark && !wasMark
			case behaviorMergedWithNext:
				// Of several in a row only the last joins the text after it; it came as a span of its own.
				join = wasMark && !isMark
			}
			if join && len(out) > first {
				out[len(out)-1].end = i
			} else {
				out = append(out, span{start, i})
			}
			wasMark = isMark
		}
	}
	s.swapSpans(out)
}
