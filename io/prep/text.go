package prep

import (
	"html"
	"strings"
	"unicode"
	"unicode/utf8"

	"contraflow/tokenize"
)

// The row functions of texts. They are plain functions of their arguments, so that every runner gives the same rows.

// Clean normalizes a text: HTML, then Unicode form, then white space.
func (n Normalize) Clean(text string) string {
	if n.HTML {
		text = StripHTML(text)
	}
	if n.Unicode != "" {
		text = tokenize.NormalForm(n.Unicode, text)
	}
	if n.Whitespace {
		text = Squeeze(text)
	}
	return text
}

// inline are elements that don't separate words: "<b>bold</b>ly" is one.
var inline = map[string]bool{"a": true, "abbr": true, "b": true, "bdi": true, "bdo": true, "cite": true, "code": true, "em": true, "font": true, "i": true, "kbd": true,
	"mark": true, "q": true, "s": true, "samp": true, "small": true, "span": true, "strong": true, "sub": true, "sup": true, "tt": true, "u": true, "var": true, "wbr": true}

// StripHTML takes markup away: comments, elements that hold no text (script, style) with what is in them, and tags, in whose place a line
// break stands unless they are inline. Then entities become characters. A < that begins no tag is text, and so is what is in <pre>.
// It is for texts with some HTML in them, not a browser's parser.
func StripHTML(s string) string {
	if !strings.ContainsAny(s, "<&") {
		return s
	}
	var b strings.Builder
	for {
		i := strings.IndexByte(s, '<')
		if i < 0 {
			b.WriteString(s)
			break
		}
		b.WriteString(s[:i])
		s = s[i:]
		if rest, ok := strings.CutPrefix(s, "<!--"); ok {
			_, after, closed := strings.Cut(rest, "-->")
			if !closed {
				break
			}
			s = after
			continue
		}
		name, end := tag(s)
		if end == 0 {
			b.WriteByte('<')
			s = s[1:]
			continue
		}
		closing := s[1] == '/'
		s = s[end:]
		if name == "script" || name == "style" {
			if !closing {
				at := indexFold(s, "</"+name)
				if at < 0 {
					break
				}
				s = s[at:]
			}
			continue
		}
		if !inline[name] {
			b.WriteByte('\n')
		}
	}
	return html.UnescapeString(b.String())
}

// tag reads the tag that s begins with: its name in lower case, and where it ends; 0 if there is none.
func tag(s string) (name string, end int) {
	i := 1
	if i < len(s) && s[i] == '/' {
		i++
	}
	from := i
	for i < len(s) && (s[i]|0x20 >= 'a' && s[i]|0x20 <= 'z' || i > from && s[i] >= '0' && s[i] <= '9') {
		i++
	}
	declaration := i == from && strings.HasPrefix(s, "<!") && len(s) > 2 && s[2]|0x20 >= 'a' && s[2]|0x20 <= 'z'
	if i == from && !declaration {
		return "", 0
	}
	name = strings.ToLower(s[from:i])
	if !declaration && i < len(s) && !strings.ContainsRune(" \t\r\n/>", rune(s[i])) {
		return "", 0 // a < b, <user@host>
	}
	quote := byte(0)
	for ; i < len(s); i++ {
		switch c := s[i]; {
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '"' || c == '\'':
			quote = c
		case c == '>':
			return name, i + 1
		case c == '<':
			return "", 0
		}
	}
	return "", 0
}

func indexFold(s, lower string) int {
	for i := 0; i+len(lower) <= len(s); i++ {
		if strings.EqualFold(s[i:i+len(lower)], lower) {
			return i
		}
	}
	return -1
}

// Squeeze makes one space of every run of white space, or one line break if there is a line break in it, drops control characters, byte
// order marks and zero-width spaces, and has no white space at the ends. Invalid UTF-8 becomes U+FFFD.
func Squeeze(s string) string {
	if squeezed(s) {
		return s
	}
	out := make([]byte, 0, len(s))
	gap := byte(0)
	for _, r := range s {
		switch {
		case r == '\n' || r == '\v' || r == '\f' || r == 0x85 || r == 0x2028 || r == 0x2029:
			gap = '\n'
			continue
		case unicode.IsSpace(r):
			if gap == 0 {
				gap = ' '
			}
			continue
		case unicode.IsControl(r) || r == 0xfeff || r == 0x200b:
			continue
		}
		if gap != 0 && len(out) > 0 {
			out = append(out, gap)
		}
		gap = 0
		out = utf8.AppendRune(out, r)
	}
	return string(out)
}

// squeezed reports whether an ASCII text is squeezed already: most are.
func squeezed(s string) bool {
	space := true
	for i := range len(s) {
		c := s[i]
		switch {
		case c == ' ' || c == '\n':
			if space {
				return false
			}
			space = true
		case c < ' ' || c >= 0x7f:
			return false
		default:
			space = false
		}
	}
	return !space || s == ""
}

// scripts finds a script by its name in Unicode.
func scripts(name string) (*unicode.RangeTable, bool) {
	t, ok := unicode.Scripts[name]
	return t, ok
}

// ScriptShare is the share of a text's letters that are of a script; 1 if it has no letters. Han, Hiragana, Katakana and others are
// counted by characters, as everything is.
func ScriptShare(text string, script *unicode.RangeTable) float64 {
	letters, of := 0, 0
	for _, r := range text {
		if !unicode.IsLetter(r) {
			continue
		}
		letters++
		if unicode.Is(script, r) {
			of++
		}
	}
	if letters == 0 {
		return 1
	}
	return float64(of) / float64(letters)
}

// solid are scripts written without spaces between words: a character is a word.
var solid = []*unicode.RangeTable{unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Thai, unicode.Lao, unicode.Khmer, unicode.Myanmar}

// Words calls each with every word of text in lower case: runs of letters, marks and digits, and single characters of scripts without
// spaces. The bytes are valid during the call.
func Words(text string, each func(word []byte)) {
	var buf [64]byte
	word := buf[:0]
	end := func() {
		if len(word) > 0 {
			each(word)
			word = word[:0]
		}
	}
	for _, r := range text {
		switch {
		case r < utf8.RuneSelf:
			switch c := byte(r); {
			case c >= 'a' && c <= 'z' || c >= '0' && c <= '9':
				word = append(word, c)
			case c >= 'A' && c <= 'Z':
				word = append(word, c|0x20)
			default:
				end()
			}
		case r >= 0x0e00 && unicode.In(r, solid...):
			end()
			each(utf8.AppendRune(word, r))
		case unicode.IsLetter(r) || unicode.IsMark(r) || unicode.IsDigit(r):
			word = utf8.AppendRune(word, unicode.ToLower(r))
		default:
			end()
		}
	}
	end()
}

// CountWords is the number of words.
func CountWords(text string) (n int) {
	Words(text, func([]byte) { n++ })
	return n
}
