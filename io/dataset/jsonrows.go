package dataset

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// From lines to columns: texts and numbers for training. Tables read theirs in tablejson.go.

// jsonlParser fills the columns of a block.
type jsonlParser struct {
	want    []sourceColumn    // those of texts, and then those of numbers
	strings bool              // as jsonlFile.text: numbers and lists are said by strings
	texts   []textColumn      // of those that are no numbers, in order
	numbers []rowsOf[float32] // of those that are
	r       jsonReader
	from    int      // where the line begins in the arena
	faults  []badRow // what is wrong with the row's values, at most once a column
}

var (
	nullText   = span{0, null}
	nullNumber = float32(math.NaN())
)

// parse reads the line buf[from:to] as the next row. What it returns is wrong with this row only.
func (p *jsonlParser) parse(buf []byte, from, to int, texts []textColumn, numbers []rowsOf[float32]) (column, reason string) {
	p.r = jsonReader{b: buf[from:to]}
	p.texts, p.numbers, p.from, p.faults = texts, numbers, from, p.faults[:0]
	for i := range texts {
		texts[i].beginWith(span{missing, null})
	}
	for i := range numbers {
		numbers[i].beginWith(nullNumber)
	}
	if err := p.r.row(p.strings, func() error { return p.object("") }); err != nil {
		for i := range texts {
			texts[i].again(nullText)
		}
		for i := range numbers {
			numbers[i].again(nullNumber)
		}
		return "", err.Error()
	}
	if len(p.faults) > 0 {
		return p.faults[0].column, p.faults[0].reason
	}
	return "", ""
}

// fault notes the first thing that is wrong with a column's value.
func (p *jsonlParser) fault(column, format string, args ...any) {
	if !slices.ContainsFunc(p.faults, func(f badRow) bool { return f.column == column }) {
		p.faults = append(p.faults, badRow{column, fmt.Sprintf(format, args...)})
	}
}

// forgive forgets it: another value stands in its place.
func (p *jsonlParser) forgive(column string) {
	p.faults = slices.DeleteFunc(p.faults, func(f badRow) bool { return f.column == column })
}

// object reads an object whose keys stand behind prefix ("" or "a.").
func (p *jsonlParser) object(prefix string) error {
	return p.r.object(func(key []byte) error {
		inside := false
		for i := range p.want {
			name, ok := strings.CutPrefix(p.want[i].name, prefix)
			if !ok || len(name) < len(key) || name[:len(key)] != string(key) {
				continue
			}
			if len(name) == len(key) {
				return p.take(i)
			}
			inside = inside || name[len(key)] == '.'
		}
		if inside && p.r.peek() == '{' {
			return p.object(prefix + string(key) + ".")
		}
		return p.r.skip()
	})
}

// take reads the value of column i. A key that comes twice counts once: the last time, as in other JSON readers.
func (p *jsonlParser) take(i int) error {
	w := &p.want[i]
	p.forgive(w.name)
	switch {
	case w.list && p.strings && p.r.peek() == '"':
		return p.takeCell(i)
	case w.number:
		begins := beginsNumber
		if w.truth {
			begins |= beginsTruth
		}
		if p.strings {
			begins |= beginsText
		}
		return takeJSON(p, w, &p.numbers[i-len(p.texts)], nullNumber, "number", begins, (*jsonlParser).number)
	}
	if w.id {
		return takeJSON(p, w, &p.texts[i].rowsOf, nullText, "string or integer", beginsText|beginsNumber, (*jsonlParser).id)
	}
	return takeJSON(p, w, &p.texts[i].rowsOf, nullText, "string", beginsText, (*jsonlParser).text)
}

const (
	beginsText uint8 = 1 << iota
	beginsNumber
	beginsTruth
)

// beginnings is what each byte begins.
var beginnings = [256]uint8{'"': beginsText, '-': beginsNumber, '0': beginsNumber, '1': beginsNumber, '2': beginsNumber, '3': beginsNumber, '4': beginsNumber,
	'5': beginsNumber, '6': beginsNumber, '7': beginsNumber, '8': beginsNumber, '9': beginsNumber, 't': beginsTruth, 'f': beginsTruth}

// takeJSON reads the value of a column: one, or a list of such, by what it begins with. null stands for those that are null.
func takeJSON[T any](p *jsonlParser, w *sourceColumn, to *rowsOf[T], null T, what string, begins uint8, read func(*jsonlParser, *sourceColumn) (T, error)) error {
	wrong := func(c byte) error {
		want := "a " + what
		if w.list {
			want = "a list of " + what + "s"
		}
		p.fault(w.name, "it is %s, want %s", jsonKind(c), want)
		return p.r.skip()
	}
	to.again(null)
	switch c := p.r.peek(); {
	case !w.list && beginnings[c]&begins != 0:
		v, err := read(p, w)
		to.again(v)
		return err
	case c == 'n' && (w.list || !w.number):
		return p.r.skip()
	case w.list && c == '[':
		return p.r.array(func() (err error) {
			v := null
			switch c := p.r.peek(); {
			case beginnings[c]&begins != 0:
				v, err = read(p, w)
			case c == 'n':
				err = p.r.skip()
			default:
				return wrong(c)
			}
			to.values = append(to.values, v)
			return err
		})
	default:
		return wrong(c)
	}
}

// takeCell reads the value of column i, a list, from the cell that says it: JSON in a string of JSON.
func (p *jsonlParser) takeCell(i int) error {
	from, to, err := p.r.text()
	if err != nil {
		return err
	}
	line, at := p.r, p.from
	p.r, p.from, p.strings = jsonReader{b: line.b[from:to]}, at+from, false
	if p.r.peek() != '[' {
		err = p.r.expected("a list [ ]")
	} else if err = p.take(i); err == nil {
		err = p.r.end("the list")
	}
	p.r, p.from, p.strings = line, at, true
	if err != nil {
		want := `strings, such as ["a", "b"]`
		if p.want[i].number {
			want = "numbers, such as [0.5, 2]"
		}
		p.forgive(p.want[i].name) // what is no JSON is no value of the wrong kind either
		p.fault(p.want[i].name, "want a list of %s: %v", want, err)
	}
	return nil
}

// number reads a number, or true or false, or of separated values the string that says it.
func (p *jsonlParser) number(w *sourceColumn) (float32, error) {
	switch c := p.r.peek(); c {
	case 't', 'f':
		return float32(truth(c == 't')), p.r.skip()
	case '"':
		from, to, err := p.r.text()
		if err != nil {
			return nullNumber, err
		}
		said := string(p.r.b[from:to])
		v, bad := parseNumber(said)
		if is := strings.ToLower(strings.TrimSpace(said)); w.truth && (is == "true" || is == "false") {
			v, bad = truth(is == "true"), nil
		}
		if bad != nil && !errors.Is(bad, strconv.ErrRange) {
			p.fault(w.name, "it is %q, want a number", said)
			v = math.NaN()
		}
		return float32(v), nil
	}
	digits, err := p.r.number()
	v, _ := strconv.ParseFloat(string(digits), 64) // beyond the range: infinite, which the check finds
	return float32(v), err
}

func (p *jsonlParser) text(*sourceColumn) (span, error) {
	from, to, err := p.r.text()
	return span{uint32(p.from + from), uint32(to - from)}, err
}
