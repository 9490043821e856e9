package tokenize

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// TestGrowth: no character grows by more than a normalizer is known to make it grow, by which files that would fill the memory are refused.
func TestGrowth(t *testing.T) {
	u := ucd()
	var long strings.Builder // characters that become others are of these planes
	for r := range rune(0x30000) {
		if utf8.ValidRune(r) {
			long.WriteRune(r)
		}
	}
	all := long.String()
	for name, n := range map[string]normalizer{
		"Lowercase": lowercase{u}, "StripAccents": stripAccents{u}, "NFC": newNormalForm(u, false, true), "NFKD": newNormalForm(u, true, false),
		"Bert": newBertNormalizer(u, true, true, true, true), "accents": newBertNormalizer(u, false, false, true, false),
		"Replace": replaceText{"é", "abcde"}, "blanks": replaceBlanks{u, "12345"}, "Prepend": prepend("ab"),
	} {
		bound, s := growth(n), new(scratch)
		for i, r := range all {
			size := utf8.RuneLen(r)
			s.text, s.first = append(s.text[:0], all[i:i+size]...), true
			n.normalize(s)
			if len(s.text) > int(bound*float64(size)) {
				t.Errorf("%s: %+q grows to %d bytes, to more than %v times its own", name, r, len(s.text), bound)
			}
		}
	}
}
