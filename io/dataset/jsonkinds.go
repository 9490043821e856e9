package dataset

import (
	"bytes"
	"strings"
)

// What the columns of JSON lines are, and of separated values, by what most of a file's first values are.

// valueKind is what the values of a column are, by the first byte of one.
type valueKind struct {
	first   byte
	row     int64 // that has the first such value; -1 where it does not matter
	numbers bool  // it is numbers where true and false are, too: these are not counted as another kind then
}

// valueKinds counts a column's values that are not null, by their kinds.
type valueKinds []struct {
	valueKind
	n int
}

// add counts a row's value, of which c is the first byte: of true and false the first is t, of a number 0.
func (k *valueKinds) add(c byte, row int64) {
	switch jsonKind(c) {
	case "null":
		return
	case "true or false":
		c = 't'
	case "a number":
		c = '0'
	}
	for i := range *k {
		if (*k)[i].first == c {
			(*k)[i].n++
			return
		}
	}
	*k = append(*k, struct {
		valueKind
		n int
	}{valueKind{first: c, row: row}, 1})
}

// most is the kind of most of them, or the one that comes first of those; null if there are none.
func (k valueKinds) most() valueKind {
	best, n := valueKind{first: 'n', row: -1}, 0
	numbers, first := 0, -1 // with true and false: how many there are, and where in k they begin
	for i, of := range k {
		if of.n > n {
			best, n = of.valueKind, of.n
		}
		if of.first == 't' || of.first == '0' {
			numbers += of.n
			if first < 0 {
				first = i
			}
		}
	}
	best.numbers = first >= 0
	for i, of := range k {
		if of.first != 't' && of.first != '0' && (of.n > numbers || of.n == numbers && i < first) {
			best.numbers = false
		}
	}
	return best
}

func jsonKind(first byte) string {
	switch first {
	case '"':
		return "a string"
	case '[':
		return "a list"
	case '{':
		return "an object"
	case 't', 'f':
		return "true or false"
	case 'n':
		return "null"
	}
	return "a number"
}

// kinds looks at the first block: the columns there are, and for each what most of its values are that aren't null: a row with another one can't be used.
// Of separated values it is what most cells are: a string, a list, or what listOfPython is, with the row of the first of those.
// Lines that are no JSON are bad rows, told when they are read, unless there is nothing else.
func (j *jsonlFile) kinds() (names []string, kind map[string]valueKind, err error) {
	kind = map[string]valueKind{}
	if len(j.blocks) == 0 {
		return nil, kind, nil
	}
	buf, err := j.read(j.blocks[0], nil)
	if err != nil {
		return nil, nil, err
	}
	row := int64(0)
	var bad error
	cells, values, found := map[string]*cellKinds{}, map[string]*valueKinds{}, map[string]bool{}
	lines(buf, func(from, to int) error {
		r := jsonReader{b: buf[from:to]}
		var object func(prefix string) error
		object = func(prefix string) error {
			return r.object(func(key []byte) error {
				name := prefix + string(key)
				c := r.peek()
				if values[name] == nil {
					values[name] = &valueKinds{}
				}
				values[name].add(c, row)
				if c == '{' {
					return object(name + ".")
				}
				if !found[name] {
					names, found[name] = append(names, name), true
				}
				if c == '"' && j.text {
					from, to, err := r.text()
					if cells[name] == nil {
						cells[name] = &cellKinds{}
					}
					cells[name].add(r.b[from:to], row)
					return err
				}
				return r.skip()
			})
		}
		if err := r.row(j.text, func() error { return object("") }); err != nil && bad == nil {
			bad = fail(ErrCorrupt, "%v: %w", j.at(row), err)
		}
		row++
		return nil
	})
	if len(names) == 0 && bad != nil {
		return nil, nil, bad
	}
	for _, name := range names { // what is objects alone is no column: what they hold is
		kind[name] = values[name].most()
	}
	for name, c := range cells {
		kind[name] = valueKind{first: c.most(), row: -1}
		if kind[name].first == listOfPython {
			kind[name] = valueKind{first: listOfPython, row: c.row}
		}
	}
	return names, kind, nil
}

// cellKinds counts the cells of a column that are not empty.
type cellKinds struct {
	all, lists, python int
	row                int64 // of the first of python
}

// listOfPython is a list as Python prints it, which pandas' to_csv does.
const listOfPython = '\''

// add counts a row's cell, whose text it may unescape.
func (k *cellKinds) add(text []byte, row int64) {
	k.all++
	text = bytes.TrimSpace(text)
	n := len(text)
	if n == 0 || text[0] != '[' || text[n-1] != ']' {
		return
	}
	quote := func(c byte) bool { return c == '"' || c == '\'' }
	python := n > 3 && quote(text[1]) && quote(text[n-2])
	r := jsonReader{b: text}
	simple := true // strings, numbers, true, false and nulls, of which there are columns
	err := r.array(func() error {
		simple = simple && !strings.ContainsRune("[{", rune(r.peek()))
		return r.skip()
	})
	switch {
	case err == nil && r.end("it") == nil:
		if simple {
			k.lists++
		}
	case python:
		if k.python++; k.python == 1 {
			k.row = row
		}
	}
}

// most is the kind of more than half of them: jsonKind's, or listOfPython.
func (k *cellKinds) most() byte {
	switch {
	case 2*k.lists > k.all:
		return '['
	case 2*(k.lists+k.python) > k.all:
		return listOfPython
	}
	return '"'
}
