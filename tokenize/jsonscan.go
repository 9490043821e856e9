package tokenize

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
)

// jsonScanner reads JSON that is known to be well formed: the large parts of a tokenizer.json, three times as fast as
// reflection would.
type jsonScanner struct {
	data []byte
	text string // the same; strings are parts of it
	at   int
}

func newJSONScanner(data []byte) *jsonScanner { return &jsonScanner{data: data, text: string(data)} }

// next returns the byte that the next value or mark begins with.
func (s *jsonScanner) next() byte {
	for s.at < len(s.data) {
		switch b := s.data[s.at]; b {
		case ' ', '\t', '\r', '\n', ',', ':':
			s.at++
		default:
			return b
		}
	}
	return 0
}

// take skips b if it's next.
func (s *jsonScanner) take(b byte) bool {
	if s.next() != b {
		return false
	}
	s.at++
	return true
}

// string reads a string.
func (s *jsonScanner) string() (string, error) {
	if s.next() != '"' {
		return "", fmt.Errorf("want a string, got %s", s.excerpt())
	}
	start := s.at
	s.at++
	ascii := true
	for s.data[s.at] != '"' {
		switch b := s.data[s.at]; {
		case b == '\\':
			return s.quoted(start)
		case b >= utf8.RuneSelf:
			ascii = false
		}
		s.at++
	}
	text := s.text[start+1 : s.at]
	s.at++
	if !ascii {
		text = strings.ToValidUTF8(text, string(utf8.RuneError))
	}
	return text, nil
}

// quoted reads a string, which begins at start, with a backslash in it.
func (s *jsonScanner) quoted(start int) (text string, err error) {
	for ; s.data[s.at] != '"'; s.at++ {
		if s.data[s.at] == '\\' {
			s.at++
		}
	}
	s.at++
	if half := halfSurrogate(s.data[start:s.at]); half != "" {
		return "", fmt.Errorf("%s is half a surrogate pair", half)
	}
	err = json.Unmarshal(s.data[start:s.at], &text)
	return text, err
}

// halfSurrogate returns the first escape of a quoted string that is half a surrogate pair, which stands for no character.
func halfSurrogate(quoted []byte) string {
	unit := func(at int) int64 { // of an escape at a place, else -1
		if at+6 > len(quoted) || quoted[at] != '\\' || quoted[at+1] != 'u' {
			return -1
		}
		v, err := strconv.ParseInt(string(quoted[at+2:at+6]), 16, 32)
		if err != nil {
			return -1
		}
		return v
	}
	for i := 0; i < len(quoted); i++ {
		if quoted[i] != '\\' {
			continue
		}
		switch u := unit(i); {
		case u < 0xD800 || u > 0xDFFF:
			i++ // what is escaped, perhaps a backslash
		case u < 0xDC00 && unit(i+6)&^0x3FF == 0xDC00:
			i += 11
		default:
			return string(quoted[i : i+6])
		}
	}
	return ""
}

// number reads a number's digits.
func (s *jsonScanner) number() (string, error) {
	if b := s.next(); b != '-' && (b < '0' || b > '9') {
		return "", fmt.Errorf("want a number, got %s", s.excerpt())
	}
	start := s.at
	for s.at < len(s.data) && bytes.IndexByte([]byte("+-.0123456789Ee"), s.data[s.at]) >= 0 {
		s.at++
	}
	return s.text[start:s.at], nil
}

// excerpt is what comes next, for an error.
func (s *jsonScanner) excerpt() string {
	s.next()
	rest := s.text[s.at:]
	const enough = 20
	if len(rest) > enough {
		rest = strings.ToValidUTF8(rest[:enough], "") + "..."
	}
	return rest
}

// jsonFloat reads a number as serde_json does, with which Hugging Face reads scores: often not as the nearest float64, so
// that what is equal there is equal here.
func jsonFloat(number string) (float64, error) {
	digits, negative := strings.CutPrefix(number, "-")
	var significand uint64
	exponent := 0
	// take takes a digit, unless that would overflow.
	take := func(c byte) bool {
		const most = math.MaxUint64
		d := uint64(c - '0')
		if significand > most/10 || significand == most/10 && d > most%10 {
			return false
		}
		significand = significand*10 + d
		return true
	}
	i := 0
	isDigit := func() bool { return i < len(digits) && '0' <= digits[i] && digits[i] <= '9' }
	for isDigit() && take(digits[i]) {
		i++
	}
	for ; isDigit(); i++ {
		exponent++
	}
	if i < len(digits) && digits[i] == '.' {
		i++
		for isDigit() && take(digits[i]) {
			i++
			exponent--
		}
		for isDigit() {
			i++
		}
	}
	if i < len(digits) { // e
		power, _ := strconv.Atoi(digits[i+1:]) // of one out of range the nearest int
		exponent += min(max(power, -1<<30), 1<<30)
	}
	value := float64(significand)
	for value != 0 && exponent < -308 {
		value /= 1e308
		exponent += 308
	}
	switch powers := powersOf10(); {
	case value == 0:
	case exponent > 308:
		value = math.Inf(1)
	case exponent < 0:
		value /= powers[-exponent]
	default:
		value *= powers[exponent]
	}
	if math.IsInf(value, 0) {
		return 0, fmt.Errorf("number %s is out of range", number)
	}
	if negative {
		value = -value
	}
	return value, nil
}

var powersOf10 = sync.OnceValue(func() (powers [309]float64) {
	for i := range powers {
		powers[i], _ = strconv.ParseFloat("1e"+strconv.Itoa(i), 64) // the nearest one, which math.Pow10 need not give
	}
	return powers
})
