package tokenize

import "testing"

// What tokenizers 0.23.3 makes of Replace(Regex(r"\s{2,}|[\n\r\t]"), "_"): white space is Unicode's, without the separators of information.
func TestReplaceBlanks(t *testing.T) {
	for text, want := range map[string]string{
		"a\tb": "a_b", "a \n b": "a_b", "a b": "a b", "a\u00a0b": "a\u00a0b", "a\u00a0\u2003b": "a_b", "\r\n": "_", "\v": "\v", "a\v\fb": "a_b", "\u0085\u0085": "_",
		"\u200b\u200b": "\u200b\u200b", "\u180e\u180e": "\u180e\u180e", "": "", "  ": "_", "x\n": "x_", "\u2028\u2029y\u3000\u3000": "_y_", "\x1c\x1dz": "\x1c\x1dz",
	} {
		s := scratch{text: []byte(text)}
		replaceBlanks{ucd(), "_"}.normalize(&s)
		if string(s.text) != want {
			t.Errorf("%q becomes %q, want %q", text, s.text, want)
		}
	}
}
