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
type normalForm struct {
	u               *unicodeData
	compat, compose bool
}

func (n normalForm) normalize(s *scratch) {
	if isASCII(s.text) {
		return
	}
	runes := s.runes[:0]
	for i := 0; i < len(s.text); {
		r, size := utf8.DecodeRune(s.text[i:])
		i += size
		runes = n.u.decompose(runes, r, n.u.class.at(r), n.compat)
	}
	n.u.order(runes)
	s.runes = runes
	if n.compose {
		runes = n.u.recompose(runes)
	}
	out := s.spare[:0]
	for _, r := range runes {
		out = utf8.AppendRune(out, r)
	}
	s.swap(out)
}

func isASCII(text []byte) bool {
	for _, b := range text {
		if b >= utf8.RuneSelf {
			return false
		}
	}
	return true
}
