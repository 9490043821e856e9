package dataset

import (
	"encoding/binary"
	"fmt"
	"unicode/utf16"
	"unicode/utf8"
)

// A JSON reader that takes some fields of an object and checks the rest (RFC 8259, as strict as encoding/json, which the
// tests hold it against). Texts stay where they are in the buffer; those with escapes are unescaped in place, which never
// makes them longer.

type jsonReader struct {
	b     []byte
	i     int
	depth int
}

// maxJSONDepth bounds the nesting, as encoding/json does at 10,000.
const maxJSONDepth = 1000

// jsonError is a syntax error at a byte of the line, or, at 0, what else is wrong with it.
type jsonError struct {
	at   int
	want string
}

func (e *jsonError) Error() string {
	if e.at == 0 {
		return e.want
	}
	return fmt.Sprintf("not JSON at byte %d: %s", e.at, e.want)
}

func (r *jsonReader) fail(format string, args ...any) error {
	return &jsonError{at: r.i + 1, want: fmt.Sprintf(format, args...)}
}

func (r *jsonReader) expected(what string) error {
	if r.i >= len(r.b) {
		return r.fail("it ends where %s should be", what)
	}
	return r.fail("%q where %s should be", rune(r.b[r.i]), what)
}

func (r *jsonReader) space() {
	for r.i < len(r.b) {
		switch r.b[r.i] {
		case ' ', '\t', '\r', '\n':
			r.i++
		default:
			return
		}
	}
}

// peek returns the next byte that is not space, 0 at the end.
func (r *jsonReader) peek() byte {
	r.space()
	if r.i < len(r.b) {
		return r.b[r.i]
	}
	return 0
}

// row reads a line: an object, by read, and nothing else. Of separated values it may be a string instead, what is wrong with the row (csv.go).
func (r *jsonReader) row(separated bool, read func() error) error {
	if separated && r.peek() == '"' {
		from, to, err := r.text()
		if err == nil {
			err = &jsonError{want: string(r.b[from:to])}
		}
		return err
	}
	switch c := r.peek(); c {
	case '{':
		if alone := *r; alone.onlyBracket() {
			return &jsonError{at: r.i + 2, want: "the object goes on in other lines, where each row is one line (jq -c . makes a line of each object)"}
		}
	case 0:
	default:
		if other := *r; other.skip() == nil && other.end("it") == nil {
			return &jsonError{want: fmt.Sprintf("it is %s, where an object { } should be", jsonKind(c))}
		}
	}
	if err := read(); err != nil {
		return err
	}
	return r.end("the object")
}

// onlyBracket tells a line that opens an object and says nothing of it, as those of several lines begin.
func (r *jsonReader) onlyBracket() bool {
	r.i++
	return r.peek() == 0 && r.i == len(r.b)
}

// end makes sure that nothing follows.
func (r *jsonReader) end(of string) error {
	if r.peek() != 0 || r.i < len(r.b) {
		return r.fail("something after %s", of)
	}
	return nil
}

// object reads an object and calls field at each value, which has to read it. The key is valid until field returns.
func (r *jsonReader) object(field func(key []byte) error) error {
	if r.peek() != '{' {
		return r.expected("an object { }")
	}
	r.i++
	if r.depth++; r.depth > maxJSONDepth {
		return r.fail("nested more than %d deep", maxJSONDepth)
	}
	defer func() { r.depth-- }()
	if r.peek() == '}' {
		r.i++
		return nil
	}
	for {
		if r.peek() != '"' {
			return r.expected("a key in quotes")
		}
		from, to, err := r.text()
		if err != nil {
			return err
		}
		if r.peek() != ':' {
			return r.expected("a colon")
		}
		r.i++
		if err := field(r.b[from:to]); err != nil {
			return err
		}
		switch r.peek() {
		case ',':
			r.i++
		case '}':
			r.i++
			return nil
		default:
			return r.expected("a comma or }")
		}
	}
}

// array reads an array and calls item at each value, which has to read it.
func (r *jsonReader) array(item func() error) error {
	if r.peek() != '[' {
		return r.expected("an array [ ]")
	}
	r.i++
	if r.depth++; r.depth > maxJSONDepth {
		return r.fail("nested more than %d deep", maxJSONDepth)
	}
	defer func() { r.depth-- }()
	if r.peek() == ']' {
		r.i++
		return nil
	}
	for {
		if err := item(); err != nil {
			return err
		}
		switch r.peek() {
		case ',':
			r.i++
		case ']':
			r.i++
			return nil
		default:
			return r.expected("a comma or ]")
		}
	}
}

// skip reads any value.
func (r *jsonReader) skip() error {
	switch c := r.peek(); {
	case c == '"':
		_, _, err := r.text()
		return err
	case c == '{':
		return r.object(func([]byte) error { return r.skip() })
	case c == '[':
		return r.array(r.skip)
	case c == '-' || c >= '0' && c <= '9':
		_, err := r.number()
		return err
	case c == 't':
		return r.word("true")
	case c == 'f':
		return r.word("false")
	case c == 'n':
		return r.word("null")
	}
	return r.expected("a value")
}

func (r *jsonReader) word(w string) error {
	if len(r.b)-r.i < len(w) || string(r.b[r.i:r.i+len(w)]) != w {
		return r.expected(w)
	}
	r.i += len(w)
	return nil
}

// number returns the number's characters.
func (r *jsonReader) number() ([]byte, error) {
	r.space()
	from := r.i
	digits := func() bool {
		at := r.i
		for r.i < len(r.b) && r.b[r.i] >= '0' && r.b[r.i] <= '9' {
			r.i++
		}
		return r.i > at
	}
	have := func(c byte) bool { return r.i < len(r.b) && r.b[r.i] == c }
	if have('-') {
		r.i++
	}
	if have('0') {
		r.i++
	} else if !digits() {
		return nil, r.expected("a digit")
	}
	if have('.') {
		r.i++
		if !digits() {
			return nil, r.expected("a digit")
		}
	}
	if have('e') || have('E') {
		r.i++
		if have('+') || have('-') {
			r.i++
		}
		if !digits() {
			return nil, r.expected("a digit")
		}
	}
	return r.b[from:r.i], nil
}

// text reads a string in quotes and returns where its unescaped bytes stand.
func (r *jsonReader) text() (from, to int, err error) {
	r.space()
	r.i++ // the quote
	from = r.i
	b := r.b
	for i := from; ; {
		// Eight bytes at a time while none of them is a quote, a backslash or a control character.
		for i+8 <= len(b) {
			const ones, highs = 0x0101010101010101, 0x8080808080808080
			w := binary.LittleEndian.Uint64(b[i:])
			quote, slash := w^ones*'"', w^ones*'\\'
			if ((quote-ones)&^quote|(slash-ones)&^slash|(w-ones*0x20)&^w)&highs != 0 {
				break
			}
			i += 8
		}
		if i >= len(b) {
			r.i = len(b)
			return 0, 0, r.expected("the end of a string")
		}
		switch c := b[i]; {
		case c == '"':
			r.i = i + 1
			return from, i, nil
		case c == '\\':
			to, err := r.unescape(i)
			return from, to, err
		case c < 0x20:
			r.i = i
			return 0, 0, r.fail("a control character in a string")
		}
		i++
	}
}

// unescape continues text at its first backslash, moving what follows to where it belongs.
func (r *jsonReader) unescape(i int) (to int, err error) {
	b := r.b
	to = i
	for i < len(b) {
		c := b[i]
		switch {
		case c == '"':
			r.i = i + 1
			return to, nil
		case c < 0x20:
			r.i = i
			return 0, r.fail("a control character in a string")
		case c != '\\':
			b[to] = c
			i, to = i+1, to+1
			continue
		}
		if i+1 >= len(b) {
			break
		}
		i += 2
		switch e := b[i-1]; e {
		case '"', '\\', '/':
			b[to] = e
			to++
		case 'b', 'f', 'n', 'r', 't':
			b[to] = map[byte]byte{'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}[e]
			to++
		case 'u':
			c, ok := hex4(b, i)
			if !ok {
				r.i = i - 2
				return 0, r.fail("\\u without four hexadecimal digits")
			}
			i += 4
			if utf16.IsSurrogate(c) { // half a pair stands for U+FFFD, as in encoding/json
				var low rune
				if i+1 < len(b) && b[i] == '\\' && b[i+1] == 'u' {
					low, _ = hex4(b, i+2)
				}
				if pair := utf16.DecodeRune(c, low); pair != utf8.RuneError {
					c = pair
					i += 6
				} else {
					c = utf8.RuneError
				}
			}
			to += utf8.EncodeRune(b[to:to+utf8.UTFMax], c) // an escape took six bytes or more
		default:
			r.i = i - 1
			return 0, r.fail("the escape \\%c is not known", e)
		}
	}
	r.i = len(b)
	return 0, r.expected("the end of a string")
}

func hex4(b []byte, i int) (rune, bool) {
	if i+4 > len(b) {
		return 0, false
	}
	var v rune
	for _, c := range b[i : i+4] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		v = v<<4 | rune(c)
	}
	return v, true
}
