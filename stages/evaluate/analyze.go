package evaluate

import (
	"unicode"
	"unicode/utf8"
)

// Analyze cuts a text into the terms that BM25 counts: runs of letters, combining marks and numbers, in lower case.
// There are no stop words, there is no stemming, camelCase stays one term and snake_case becomes two. That is plain on
// purpose: a yardstick should be the same stick for prose and for code. Scripts that don't put spaces between words
// (Chinese, Japanese, Thai) would need a segmenter: there a term is all that stands between two punctuation marks.
// Lower case is rune by rune, without a language's special rules, and text that is not UTF-8 separates terms.
func Analyze(text string) []string {
	var terms []string
	eachTerm(text, nil, func(term []byte) { terms = append(terms, string(term)) })
	return terms
}

// eachTerm calls yield with each term of text. The term's memory is overwritten by the next; what is returned is buf,
// grown, for the next text.
func eachTerm(text string, buf []byte, yield func(term []byte)) []byte {
	buf = buf[:0]
	for i := 0; i < len(text); {
		if c := text[i]; c < utf8.RuneSelf {
			i++
			switch {
			case 'A' <= c && c <= 'Z':
				buf = append(buf, c+'a'-'A')
				continue
			case 'a' <= c && c <= 'z' || '0' <= c && c <= '9':
				buf = append(buf, c)
				continue
			}
		} else {
			r, size := utf8.DecodeRuneInString(text[i:])
			i += size
			if unicode.IsLetter(r) || unicode.IsMark(r) || unicode.IsNumber(r) {
				buf = utf8.AppendRune(buf, unicode.ToLower(r))
				continue
			}
		}
		if len(buf) > 0 {
			yield(buf)
			buf = buf[:0]
		}
	}
	if len(buf) > 0 {
		yield(buf)
	}
	return buf
}
