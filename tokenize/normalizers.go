package tokenize

import (
	"bytes"
	"slices"
	"unicode/utf8"
)

// normalizer rewrites s.text, which is valid UTF-8 before and after.
type normalizer interface {
	normalize(s *scratch)
	// cut says what may follow the place of a cut after normalizing, given what may before (see edge).
	cut(at edge) edge
}

// normalizerSequence applies its parts one after the other.
type normalizerSequence []normalizer

func (n normalizerSequence) normalize(s *scratch) {
	for _, part := range n {
		part.normalize(s)
	}
}

func (n normalizerSequence) cut(at edge) edge {
	for i := 0; i < len(n) && at != 0; i++ {
		at = n[i].cut(at)
	}
	return at
}

// lowercase maps each character by itself, as Rust's char::to_lowercase does: a final sigma becomes σ, and U+0130
// becomes two characters.
type lowercase struct{ u *unicodeData }

func (n lowercase) cut(at edge) edge { return at }

func (n lowercase) normalize(s *scratch) {
	out := slices.Grow(s.spare[:0], len(s.text))
	for i := 0; i < len(s.text); {
		r, size := utf8.DecodeRune(s.text[i:])
		i += size
		out = n.u.appendLower(out, r, n.u.class.at(r))
	}
	s.swap(out)
}

func (u *unicodeData) appendLower(dst []byte, r rune, c class) []byte {
	if c&classLower == 0 {
		return utf8.AppendRune(dst, r)
	}
	for _, l := range u.texts[u.lower.at(r)] {
		dst = utf8.AppendRune(dst, l)
	}
	return dst
}

// stripAccents removes all marks. Unlike BertNormalizer's option of that name it doesn't decompose first.
type stripAccents struct{ u *unicodeData }

func (n stripAccents) cut(at edge) edge { return at }

func (n stripAccents) normalize(s *scratch) {
	out := slices.Grow(s.spare[:0], len(s.text))
	for i := 0; i < len(s.text); {
		r, size := utf8.DecodeRune(s.text[i:])
		if n.u.class.at(r)&classMark == 0 {
			out = append(out, s.text[i:i+size]...)
		}
		i += size
	}
	s.swap(out)
}

// bertNormalizer does what Hugging Face's does in up to four passes, in one: clean_text (drop control characters, turn
// white space into spaces), handle_chinese_chars (spaces around CJK ideographs), strip_accents (NFD, then drop
// nonspacing marks) and lowercase.
//
// The passes act on single characters, but for NFD's order of combining marks. Nearly all of those are dropped; the few
// that stay (spacing marks with a combining class) wait in pending until a starter comes.
type bertNormalizer struct {
	u       *unicodeData
	clean   bool
	chinese bool
	accents bool // strip them
	lower   bool
	// plain characters have none of these classes: they are copied.
	special class
	// ascii[b] is what becomes of b, + 0x100 unless it is dropped.
	ascii [utf8.RuneSelf]uint16
}

func newBertNormalizer(u *unicodeData, clean, chinese, accents, lower bool) *bertNormalizer {
	n := &bertNormalizer{u: u, clean: clean, chinese: chinese, accents: accents, lower: lower}
	if clean {
		n.special |= classRemoved | classSpace
	}
	if chinese {
		n.special |= classChinese
	}
	if accents {
		n.special |= classMn | classNFD | classHangul | classCombining
	}
	if lower {
		n.special |= classLower
	}
	for b := range rune(utf8.RuneSelf) {
		c := u.class.at(b)
		switch {
		case clean && c&classRemoved != 0:
			continue
		case clean && c&classSpace != 0:
			n.ascii[b] = 0x100 | ' '
		case lower && c&classLower != 0:
			n.ascii[b] = 0x100 | uint16(u.texts[u.lower.at(b)][0])
		default:
			n.ascii[b] = 0x100 | uint16(b)
		}
	}
	return n
}

func (n *bertNormalizer) cut(at edge) edge { return at }

func (n *bertNormalizer) normalize(s *scratch) {
	src, out := s.text, s.spare[:0]
	pending := s.runes[:0]
	for i := 0; i < len(src); {
		if src[i] < utf8.RuneSelf && len(pending) == 0 {
			// 0.6 ns a byte: written at w whether it is kept or not, w moves only if it is.
			out = slices.Grow(out, len(src)-i)
			w := len(out)
			room := out[:w+len(src)-i]
			for ; i < len(src) && src[i] < utf8.RuneSelf; i++ {
				to := n.ascii[src[i]]
				room[w] = byte(to)
				w += int(to >> 8)
			}
			out = room[:w]
			continue
		}
		r, size := utf8.DecodeRune(src[i:])
		c := n.u.class.at(r)
		if c&n.special == 0 && len(pending) == 0 {
			out = append(out, src[i:i+size]...)
			i += size
			continue
		}
		i += size
		if n.clean {
			if c&classRemoved != 0 {
				continue
			}
			if c&classSpace != 0 {
				r, c = ' ', classSpace
			}
		}
		padded := n.chinese && c&classChinese != 0
		if padded {
			out, pending = n.flush(out, pending)
			out = append(out, ' ')
		}
		switch {
		case !n.accents:
			out = n.put(out, r, c)
		case c&(classNFD|classHangul) == 0:
			out, pending = n.strip(out, pending, r, c)
		default:
			var parts [4]rune
			for _, part := range n.u.decompose(parts[:0], r, c, false) {
				out, pending = n.strip(out, pending, part, n.u.class.at(part))
			}
		}
		if padded {
			out, pending = n.flush(out, pending)
			out = append(out, ' ')
		}
	}
	out, s.runes = n.flush(out, pending)
	s.swap(out)
}

// strip takes one character of the decomposition.
func (n *bertNormalizer) strip(out []byte, pending []rune, r rune, c class) ([]byte, []rune) {
	if c&classCombining != 0 {
		if c&classMn == 0 {
			pending = append(pending, r)
		}
		return out, pending
	}
	out, pending = n.flush(out, pending)
	if c&classMn == 0 {
		out = n.put(out, r, c)
	}
	return out, pending
}

func (n *bertNormalizer) flush(out []byte, pending []rune) ([]byte, []rune) {
	if len(pending) > 1 {
		n.u.order(pending)
	}
	for _, r := range pending {
		out = n.put(out, r, n.u.class.at(r))
	}
	return out, pending[:0]
}

func (n *bertNormalizer) put(out []byte, r rune, c class) []byte {
	if n.lower {
		return n.u.appendLower(out, r, c)
	}
	return utf8.AppendRune(out, r)
}

// prepend puts a text before each piece that isn't empty.
type prepend string

func (n prepend) normalize(s *scratch) {
	if s.first && len(s.text) > 0 {
		s.swap(append(append(s.spare[:0], n...), s.text...))
	}
}

func (n prepend) cut(at edge) edge { return at }

// strip removes white space at the ends of a piece.
type strip struct {
	u           *unicodeData
	left, right bool
}

func (n strip) normalize(s *scratch) {
	text := s.text
	if n.right {
		text = text[:n.u.trimRight(text)]
	}
	if n.left && s.first {
		text = text[n.u.leadingSpace(text):]
	}
	if len(text) < len(s.text) {
		s.swap(append(s.spare[:0], text...))
	}
}

// cut: what is before it doesn't end in white space; so none is stripped there, and no run of it reaches across.
func (n strip) cut(at edge) edge { return at }

// replaceText replaces each occurrence of a text that isn't empty.
type replaceText struct{ old, new string }

func (n replaceText) normalize(s *scratch) {
	src := s.text
	at := bytes.Index(src, []byte(n.old))
	if at < 0 {
		return
	}
	out := s.spare[:0]
	for ; at >= 0; at = bytes.Index(src, []byte(n.old)) {
		out = append(append(out, src[:at]...), n.new...)
		src = src[at+len(n.old):]
	}
	s.swap(append(out, src...))
}

func (n replaceText) cut(at edge) edge {
	if at == edgeSpace && n.old == " " {
		return edgeOf(n.new)
	}
	return 0
}

// replaceSpaces replaces each run of two or more spaces (the regular expression " {2,}").
type replaceSpaces string

func (n replaceSpaces) normalize(s *scratch) {
	src := s.text
	at := bytes.Index(src, []byte("  "))
	if at < 0 {
		return
	}
	out := s.spare[:0]
	for ; at >= 0; at = bytes.Index(src, []byte("  ")) {
		out = append(append(out, src[:at]...), n...)
		src = bytes.TrimLeft(src[at:], " ")
	}
	s.swap(append(out, src...))
}

func (n replaceSpaces) cut(at edge) edge {
	if at&edgeSpace == 0 {
		return at
	}
	if to := edgeOf(string(n)); to != 0 {
		return at | to
	}
	return 0
}

// replaceBlanks replaces each run of two or more characters of white space, and each line end and tab alone (the regular expression
// "\s{2,}|[\n\r\t]").
type replaceBlanks struct {
	u   *unicodeData
	new string
}

func (n replaceBlanks) normalize(s *scratch) {
	src, out := s.text, s.spare[:0]
	for len(src) > 0 {
		r, size := utf8.DecodeRune(src)
		run := 0
		if n.u.class.at(r)&classSpace != 0 {
			run = n.u.leadingSpace(src)
		}
		if run > size || size == 1 && (r == '\n' || r == '\r' || r == '\t') {
			out, src = append(out, n.new...), src[run:]
			continue
		}
		out, src = append(out, src[:size]...), src[size:]
	}
	s.swap(out)
}

func (n replaceBlanks) cut(at edge) edge { return replaceSpaces(n.new).cut(at) }
