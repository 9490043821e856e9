package tokenize

import "strings"

// Long texts go through the pipeline in chunks, which end between a visible ASCII character and a space after it. edge is
// the set of what may stand there instead of that space at some stage of the pipeline. Each stage says what it makes of
// the set, given that no text before the cut is in doubt: it ends in a visible character. The empty set says that the
// stage might not give the same for the chunks as for the text; then texts are left whole.
type edge uint8

const (
	edgeSpace edge = 1 << iota // a space
	edgeMeta                   // "▁" (U+2581)
)

// metaSpace is what SentencePiece has for a space.
const metaSpace = "▁"

// edgeOf is the set for a text that replaces a space.
func edgeOf(text string) edge {
	switch text {
	case " ":
		return edgeSpace
	case metaSpace:
		return edgeMeta
	}
	return 0
}

// cuttable decides whether texts may be cut: a stage settles it that makes no word with both sides in it; if none does,
// the model must be able to tell.
func (t *Tokenizer) cuttable(normalized []addedToken) bool {
	at := edgeSpace
	if t.normalizer != nil {
		at = t.normalizer.cut(at)
	}
	for _, token := range normalized {
		if token.SingleWord || token.RStrip || reachesAcross(token.normal) {
			return false // it would look, or be, beyond the cut
		}
	}
	settled := false
	if t.preTokenizer != nil && at != 0 {
		at, settled = t.preTokenizer.cut(at)
	}
	return at != 0 && (settled || t.model.cut(at))
}

// reachesAcross says whether a text has a cut in it.
func reachesAcross(text string) bool {
	for i := 1; i < len(text); i++ {
		if visible(text[i-1]) && (text[i] == ' ' || strings.HasPrefix(text[i:], metaSpace)) {
			return true
		}
	}
	return false
}

// visible says whether a byte is an ASCII character other than a space or control character.
func visible(b byte) bool { return ' ' < b && b < 0x7F }

// chunkEnd says where to cut text, from size on.
func chunkEnd(text []byte, size int) int {
	for n := size; n < len(text); n++ {
		if text[n] == ' ' && visible(text[n-1]) {
			return n
		}
	}
	return len(text)
}
