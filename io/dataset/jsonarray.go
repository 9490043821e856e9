package dataset

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
)

// A file that is one JSON array of objects, as json.dump writes a list and FlagEmbedding's data comes, becomes JSON lines as it is opened: each element
// a line, in the same temporary file that compressed JSON lines are unpacked into. It is read as a stream: no element is held but in what is read of
// the file at a time. Here only the elements' borders are looked for, by brackets and quotes. What is between them is read later as a line is, so
// that an element that is no object is a bad row as others are; a file whose elements can't be told apart is an error.

// elements reads an array's elements as lines.
type elements struct {
	pieces
	path string
	in   *bufio.Reader
	most int64 // bytes of an element

	state   elementState
	depth   int  // of brackets in the element
	quoted  bool // in a string
	escaped bool // behind a backslash
	scalar  bool // the element is no object, array or string
	count   int64
	size    int64 // bytes of the element

	buf []byte // lines at hand
}

// elementState is where in the array the reader is.
type elementState uint8

const (
	beforeArray elementState = iota
	beforeFirst              // an element, or the end
	beforeNext               // an element, behind a comma
	inElement
	afterElement // a comma, or the end
	afterArray
)

// isArray tells whether a file's content begins with a bracket, which no row does.
func isArray(in *bufio.Reader) bool {
	head, _ := in.Peek(64 << 10)
	head = bytes.TrimLeft(head, " \t\r\n")
	return len(head) > 0 && head[0] == '['
}

func newElements(path string, content *bufio.Reader) *elements {
	e := &elements{path: path, in: content, most: maxLine}
	e.next = e.lines
	return e
}

// lines are those of what there is to read at a time.
func (e *elements) lines() ([]byte, error) {
	_, err := e.in.Peek(1) // fills the buffer
	piece, _ := e.in.Peek(e.in.Buffered())
	e.buf = e.buf[:0]
	for _, c := range piece {
		if err := e.take(c); err != nil {
			return e.buf, err
		}
	}
	e.in.Discard(len(piece))
	switch {
	case len(piece) > 0:
		return e.buf, nil
	case err != io.EOF:
		err = fmt.Errorf("%s: in element %d: %w", e.path, e.count, err)
	case e.state == inElement:
		err = fail(ErrCorrupt, "%s ends in element %d of its JSON array: it is not whole, or one of the element's brackets or quotes is not closed", e.path, e.count)
	case e.state != afterArray:
		err = fail(ErrCorrupt, "%s ends after %d elements of its JSON array, where %s should be: it is not whole", e.path, e.count, e.state.want())
	}
	return nil, err
}

func (s elementState) want() string {
	switch s {
	case beforeFirst:
		return "an element or ]"
	case beforeNext:
		return "an element"
	case afterElement:
		return "a comma or ]"
	}
	return "nothing"
}

// take takes a byte of the file.
func (e *elements) take(c byte) error {
	space := c == ' ' || c == '\t' || c == '\r' || c == '\n'
	if e.state == inElement {
		return e.inside(c, space)
	}
	if space {
		return nil
	}
	switch {
	case e.state == beforeArray: // isArray has seen it
		e.state = beforeFirst
	case e.state == afterElement && c == ',':
		e.state = beforeNext
	case (e.state == afterElement || e.state == beforeFirst) && c == ']':
		e.state = afterArray
	case (e.state == beforeFirst || e.state == beforeNext) && c != ',' && c != ']':
		e.state, e.count, e.size = inElement, e.count+1, 0
		e.depth, e.quoted, e.escaped, e.scalar = 0, false, false, c != '{' && c != '[' && c != '"'
		return e.inside(c, false)
	case e.state == afterArray && c == '[':
		return fail(ErrCorrupt, "%s: another JSON array after the first, which has %d elements: a file is one array of all its rows, or has an object a line", e.path, e.count)
	default:
		return fail(ErrCorrupt, "%s: after element %d of its JSON array comes %q, where %s should be", e.path, e.count, rune(c), e.state.want())
	}
	return nil
}

// inside takes a byte of an element. A line's end is a space there, and in a string, where it must not be, another character that must not.
func (e *elements) inside(c byte, space bool) error {
	if e.scalar && (space || c == ',' || c == ']') {
		e.end()
		return e.take(c)
	}
	if e.size++; e.size > e.most {
		return fail(ErrCorrupt, "%s: element %d of its JSON array is longer than %d MiB: is each element a row?", e.path, e.count, e.most>>20)
	}
	switch {
	case c == '\n' && e.quoted:
		e.buf = append(e.buf, '\r')
	case c == '\n':
		e.buf = append(e.buf, ' ')
	default:
		e.buf = append(e.buf, c)
	}
	switch {
	case e.escaped:
		e.escaped = false
		return nil
	case e.quoted:
		e.escaped, e.quoted = c == '\\', c != '"'
	case c == '"':
		e.quoted = true
	case c == '{' || c == '[':
		e.depth++
	case c == '}' || c == ']':
		e.depth--
	}
	if e.depth == 0 && !e.quoted && !e.scalar {
		e.end()
	}
	return nil
}

func (e *elements) end() {
	e.buf = append(e.buf, '\n')
	e.state = afterElement
}
