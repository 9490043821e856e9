package tokenize

import (
	"slices"
	"unicode/utf8"
)

// decompose appends the full decomposition of r, canonical or also compatibility, to dst.
func (u *unicodeData) decompose(dst []rune, r rune, c class, compat bool) []rune {
	switch {
	case compat && c&classNFKD != 0:
		return append(dst, u.texts[u.nfkd.at(r)]...)
	case c&classNFD != 0:
		return append(dst, u.texts[u.nfd.at(r)]...)
	case c&classHangul != 0:
		r -= hangulS
		dst = append(dst, hangulL+r/(hangulVs*hangulTs), hangulV+r/hangulTs%hangulVs)
		if t := r % hangulTs; t != 0 {
			dst = append(dst, hangulT+t)
		}
		return dst
	}
	return append(dst, r)
}

// composePair returns the character that a and b make together.
func (u *unicodeData) composePair(a, b rune) (rune, bool) {
	if l, v := a-hangulL, b-hangulV; 0 <= l && l < hangulLs && 0 <= v && v < hangulVs {
		return hangulS + (l*hangulVs+v)*hangulTs, true
	}
	if s, t := a-hangulS, b-hangulT; 0 <= s && s < hangulSs && s%hangulTs == 0 && 0 < t && t < hangulTs {
		return a + t, true
	}
	r, ok := u.compose[[2]rune{a, b}]
	return r, ok
}

// order sorts each run of combining characters by combining class, keeping the order of equals.
func (u *unicodeData) order(runes []rune) {
	for i := 0; i < len(runes); {
		if u.combining.at(runes[i]) == 0 {
			i++
			continue
		}
		j := i + 1
		for j < len(runes) && u.combining.at(runes[j]) != 0 {
			j++
		}
		if j-i > 1 {
			slices.SortStableFunc(runes[i:j], func(a, b rune) int {
				return int(u.combining.at(a)) - int(u.combining.at(b))
			})
		}
		i = j
	}
}

// recompose joins what composes, in place (Unicode, section 3.11, D117): a character joins the last starter unless
// something between them has a combining class that is 0 or not lower.
func (u *unicodeData) recompose(runes []rune) []rune {
	out := runes[:0]
	starter, last := -1, uint8(0)
	for _, r := range runes {
		k := u.combining.at(r)
		if starter >= 0 && (last < k || last == 0) {
			if joined, ok := u.composePair(out[starter], r); ok {
				out[starter] = joined
				continue
			}
		}
		if k == 0 {
			starter = len(out)
		}
		last = k
		out = append(out, r)
	}
	return out
}

// normalForm is the NFD, NFC, NFKD and NFKC normalizers.
//
// Most characters stay what they are and have a boundary before them: nothing before them composes with them or is
// ordered after them. Such text is copied; others are worked on together with the character before, which they may join.
type normalForm struct {
	u               *unicodeData
	compat, compose bool
	active          class // characters of these classes are the others
}

func newNormalForm(u *unicodeData, compat, compose bool) normalForm {
	n := normalForm{u: u, compat: compat, compose: compose, active: classCombining | classNFD | classHangul}
	if compose {
		n.active = classCombining | classJoining | classRewritten
	}
	if compat {
		n.active |= classNFKD
	}
	return n
}

func (n normalForm) cut(at edge) edge { return at }

func (n normalForm) normalize(s *scratch) {
	src, out := s.text, s.spare[:0]
	done, before := 0, 0 // what is in out; the last character before i that isn't active, or done
	for i := 0; i < len(src); {
		if src[i] < utf8.RuneSelf {
			before = i
			i++
			continue
		}
		r, size := utf8.DecodeRune(src[i:])
		if n.u.class.at(r)&n.active == 0 {
			before = i
			i += size
			continue
		}
		out = append(out, src[done:before]...)
		runes := s.runes[:0]
		for i = before; i < len(src); i += size {
			r, size = utf8.DecodeRune(src[i:])
			c := n.u.class.at(r)
			if c&n.active == 0 && i > before {
				break
			}
			runes = n.u.decompose(runes, r, c, n.compat)
		}
		n.u.order(runes)
		s.runes = runes
		if n.compose {
			runes = n.u.recompose(runes)
		}
		for _, r := range runes {
			out = utf8.AppendRune(out, r)
		}
		done, before = i, i
	}
	if done > 0 {
		s.swap(append(out, src[done:]...))
	}
}

// NormalForm puts a text into one of Unicode's normal forms, "nfc", "nfkc", "nfd" or "nfkd", by the same tables as tokenizers. It panics if
// form is another word.
func NormalForm(form, text string) string {
	ascii := true
	for i := range len(text) {
		if text[i] >= utf8.RuneSelf {
			ascii = false
			break
		}
	}
	u := ucd()
	var n normalForm
	switch form {
	case "nfc", "nfkc", "nfd", "nfkd":
		n = newNormalForm(u, form[2] == 'k', form[len(form)-1] == 'c')
	default:
		panic("tokenize: no normal form " + form)
	}
	if ascii {
		return text
	}
	if !utf8.ValidString(text) {
		text = string([]rune(text))
	}
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	s.text = append(s.text[:0], text...)
	n.normalize(s)
	return string(s.text)
}
