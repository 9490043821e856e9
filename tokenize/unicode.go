package tokenize

import (
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
)

// unicodeTables lists the Unicode classes and mappings as Hugging Face tokenizers has them. Go's own (package unicode,
// golang.org/x/text) are of other Unicode versions and have rules of their own (unicode.C counts unassigned code
// points, x/text's normal forms insert U+034F after 30 marks): each such difference would change ids. gen_tables.py
// asks the Python package about every code point and writes this file.
//
//go:embed unicode_tables.txt
var unicodeTables string

// class is what the tables say about one code point.
type class uint32

const (
	classSpace       class = 1 << iota // White_Space: Rust's char::is_whitespace, regex's \s
	classRemoved                       // what BertNormalizer's clean_text drops: NUL, U+FFFD, control, format, private use
	classChinese                       // BertNormalizer's CJK ranges
	classMn                            // nonspacing mark, which BertNormalizer's strip_accents drops
	classMark                          // any mark (M), which the StripAccents normalizer drops
	classPunctuation                   // ASCII punctuation or category P
	classWord                          // regex's \w
	classNumeric                       // Rust's char::is_numeric
	classLower                         // has another lower case
	classNFD                           // has a canonical decomposition
	classNFKD                          // has a compatibility decomposition that isn't the canonical one
	classCombining                     // canonical combining class is not 0
	classHangul                        // a Hangul syllable, decomposed by arithmetic

	classJoining   // may be joined to what is before it by NFC
	classRewritten // is not what NFC makes of it

	// As the regular expressions of Split and ByteLevel have them.
	classLetter  // \p{L}
	classNumber  // \p{N}
	classMarked  // \p{M}
	classCapital // \p{Lu}, \p{Lt}
	classSmall   // \p{Ll}
)

// Hangul syllables are composed and decomposed by arithmetic (Unicode, section 3.12).
const (
	hangulS, hangulL, hangulV, hangulT = 0xAC00, 0x1100, 0x1161, 0x11A7
	hangulLs, hangulVs, hangulTs       = 19, 21, 28
	hangulSs                           = hangulLs * hangulVs * hangulTs
)

// unicodeData is the parsed tables.
type unicodeData struct {
	class     pages[class]
	combining pages[uint8]
	lower     pages[uint16] // indices into texts; 0: none
	nfd       pages[uint16]
	nfkd      pages[uint16]
	cluster   pages[clusterClass]
	texts     [][]rune
	compose   map[[2]rune]rune
}

// ucd parses the tables once, when the first tokenizer is made (3 ms).
var ucd = sync.OnceValue(func() *unicodeData {
	u, err := parseUnicodeTables(unicodeTables)
	if err != nil {
		panic("tokenize: unicode_tables.txt: " + err.Error()) // the file is compiled in; a test parses it
	}
	return u
})

func parseUnicodeTables(text string) (*unicodeData, error) {
	u := &unicodeData{texts: [][]rune{nil}, compose: map[[2]rune]rune{}}
	var classes pageBuilder[class]
	var combining pageBuilder[uint8]
	var lower, nfd, nfkd pageBuilder[uint16]
	var clusters pageBuilder[clusterClass]
	ranges := map[string]class{"space": classSpace, "removed": classRemoved, "chinese": classChinese, "mn": classMn,
		"mark": classMark, "punctuation": classPunctuation, "word": classWord, "numeric": classNumeric, "combining": classCombining,
		"letter": classLetter, "number": classNumber, "marked": classMarked, "capital": classCapital, "small": classSmall}
	clusterRanges := map[string]clusterClass{"control": clusterControl, "joining": clusterJoining, "prepend": clusterPrepend,
		"extend": clusterExtend, "pictographic": clusterPictographic, "hangul_l": clusterL, "hangul_v": clusterV,
		"hangul_t": clusterT, "consonant": clusterConsonant, "linker": clusterLinker, "conjunct": clusterConjunct}
	mappings := map[string]struct {
		class class
		table *pageBuilder[uint16]
	}{"lower": {classLower, &lower}, "nfd": {classNFD, &nfd}, "nfkd": {classNFKD, &nfkd}}

	var composites []rune
	section := ""
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimSuffix(line, "\n")
		if line == "" || line[0] == '#' {
			continue
		}
		if line[0] == '!' {
			section = line[1:]
			continue
		}
		span, rest, _ := strings.Cut(line, " ")
		first, last, isRange := strings.Cut(span, "..")
		if !isRange {
			last = first
		}
		lo, err1 := strconv.ParseUint(first, 16, 21)
		hi, err2 := strconv.ParseUint(last, 16, 21)
		if err1 != nil || err2 != nil || lo > hi || hi > 0x10FFFF {
			return nil, fmt.Errorf("line %d: bad range %q", number, span)
		}
		switch mapping, ok := mappings[section]; {
		case ok:
			runes, err := parseRunes(rest)
			if err != nil {
				return nil, fmt.Errorf("line %d: %w", number, err)
			}
			classes.or(rune(lo), mapping.class)
			if section == "nfd" {
				composites = append(composites, rune(lo))
			}
			mapping.table.or(rune(lo), uint16(len(u.texts)))
			u.texts = append(u.texts, runes)
		case section == "compose":
			pair, err := parseRunes(rest)
			if err != nil || len(pair) != 2 {
				return nil, fmt.Errorf("line %d: want two code points: %q", number, rest)
			}
			u.compose[[2]rune(pair)] = rune(lo)
		case ranges[section] != 0:
			for r := lo; r <= hi; r++ {
				classes.or(rune(r), ranges[section])
			}
			if section == "combining" {
				k, err := strconv.ParseUint(rest, 10, 8)
				if err != nil {
					return nil, fmt.Errorf("line %d: %w", number, err)
				}
				for r := lo; r <= hi; r++ {
					combining.or(rune(r), uint8(k))
				}
			}
		case clusterRanges[section] != 0:
			for r := lo; r <= hi; r++ {
				clusters.or(rune(r), clusterRanges[section])
			}
		default:
			return nil, fmt.Errorf("line %d: unknown section %q", number, section)
		}
	}
	for r := rune(hangulS); r < hangulS+hangulSs; r++ {
		classes.or(r, classHangul)
		if (r-hangulS)%hangulTs == 0 {
			clusters.or(r, clusterLV)
		} else {
			clusters.or(r, clusterLVT)
		}
	}
	for r := range rune(utf8.RuneSelf) {
		if r < ' ' || r == 0x7F {
			clusters.or(r, clusterControl)
		}
	}
	u.combining = combining.build()
	u.lower, u.nfd, u.nfkd, u.cluster = lower.build(), nfd.build(), nfkd.build(), clusters.build()
	u.markJoining(&classes, composites)
	return u, nil
}

// markJoining sets u.class, with what follows from the canonical decompositions, which composites have.
func (u *unicodeData) markJoining(classes *pageBuilder[class], composites []rune) {
	for pair := range u.compose {
		classes.or(pair[1], classJoining)
	}
	for r := rune(hangulV); r < hangulV+hangulVs; r++ {
		classes.or(r, classJoining)
	}
	for r := rune(hangulT + 1); r < hangulT+hangulTs; r++ {
		classes.or(r, classJoining)
	}
	u.class = classes.build()
	for _, r := range composites {
		parts := u.texts[u.nfd.at(r)]
		joined := u.recompose(slices.Clone(parts))
		if len(joined) != 1 || joined[0] != r || u.class.at(parts[0])&(classJoining|classCombining) != 0 {
			classes.or(r, classRewritten)
		}
	}
	u.class = classes.build()
}

func parseRunes(text string) ([]rune, error) {
	var runes []rune
	for field := range strings.FieldsSeq(text) {
		r, err := strconv.ParseUint(field, 16, 21)
		if err != nil {
			return nil, err
		}
		runes = append(runes, rune(r))
	}
	return runes, nil
}

// trimRight returns where the white space at the end of text begins.
func (u *unicodeData) trimRight(text []byte) int {
	end := len(text)
	for end > 0 {
		r, size := utf8.DecodeLastRune(text[:end])
		if u.class.at(r)&classSpace == 0 {
			break
		}
		end -= size
	}
	return end
}

// leadingSpace returns how many bytes of white space text begins with.
func (u *unicodeData) leadingSpace(text []byte) int {
	n := 0
	for n < len(text) {
		r, size := utf8.DecodeRune(text[n:])
		if u.class.at(r)&classSpace == 0 {
			break
		}
		n += size
	}
	return n
}

// pages is a table over all code points, in which equal pages of 256 are stored once.
type pages[T comparable] struct {
	index []uint16
	pages [][256]T
}

func (p *pages[T]) at(r rune) T { return p.pages[p.index[r>>8]][r&0xff] }

// mapPages is the table of f of a table's values.
func mapPages[T, U comparable](p pages[T], f func(T) U) pages[U] {
	out := pages[U]{index: p.index, pages: make([][256]U, len(p.pages))}
	for i := range p.pages {
		for j, v := range p.pages[i] {
			out.pages[i][j] = f(v)
		}
	}
	return out
}

type pageBuilder[T ~uint8 | ~uint16 | ~uint32] struct{ pages map[rune]*[256]T }

func (b *pageBuilder[T]) or(r rune, v T) {
	page := b.pages[r>>8]
	if page == nil {
		if b.pages == nil {
			b.pages = map[rune]*[256]T{}
		}
		page = new([256]T)
		b.pages[r>>8] = page
	}
	page[r&0xff] |= v
}

func (b *pageBuilder[T]) build() pages[T] {
	p := pages[T]{index: make([]uint16, 0x110000>>8), pages: make([][256]T, 1)}
	seen := map[[256]T]uint16{{}: 0}
	for i := range p.index {
		page := b.pages[rune(i)]
		if page == nil {
			continue
		}
		at, ok := seen[*page]
		if !ok {
			at = uint16(len(p.pages))
			seen[*page] = at
			p.pages = append(p.pages, *page)
		}
		p.index[i] = at
	}
	return p
}
