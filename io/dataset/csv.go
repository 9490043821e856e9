package dataset

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"contraflow/io/spelling"
)

// Files of separated values become JSON lines as they are opened: an object of strings for each row, in the same temporary file that
// compressed JSON lines are unpacked into. From there on they are read as such. They have no types: where numbers are wanted, those that
// strings say are taken, and an empty cell is null. A row of which no object can be made keeps its place: it becomes a string, which says why,
// and is a bad row as others are. A quote out of place is no such row: nobody can say where its row ends.
//
// A cell of JSON, ["a", "b"] or [0.5, 2], is a list where most cells of its column are, in the file's first block. Most: a text that happens
// to be one leaves the column one of texts (and is told: liststrings.go), and a list that is spoilt is a bad row of a column of lists.
//
// .csv is RFC 4180's: commas, and quotes around what has some, or lines, in it. .tsv is IANA's text/tab-separated-values: no quotes at all, a
// quote is a character as any other. MS MARCO's and BEIR's are such files, and reading them with quotes joins rows without a word.

// separated is what a path of separated values ends with, compressed or not, .csv or .tsv; "" of others.
func separated(path string) string {
	ext := ending(path)
	if ext != ".csv" && ext != ".tsv" {
		return ""
	}
	return ext
}

// csvReader reads a file of separated values as JSON lines.
type csvReader struct {
	pieces
	path   string
	fields func() (fields []string, line int64, err error) // of the next row; io.EOF at the end
	in     *rowLimit

	keys   [][]byte // `"name":` of each column
	held   []string // the first row, if the first line is one, and that line
	heldAt int64
	rows   int64
	gaps   *gaps
	buf    []byte // the line at hand
}

// rowLimit bounds what is read for one row: a quote that nothing closes would have the rest of the file.
type rowLimit struct {
	r    io.Reader
	max  int64
	read int64 // since the last row was complete
}

// maxRow takes encoding/csv some five times the memory.
const maxRow = 64 << 20

// notUTF8 goes on from what it is said of.
const notUTF8 = "is " + textNotUTF8

// textNotUTF8 is why a text can't be trained on.
const textNotUTF8 = "not UTF-8, which it has to be (iconv -f windows-1252 -t utf-8, if a program for Windows has written it)"

var errLongRow = errors.New("a row is too long")

func (l *rowLimit) Read(b []byte) (int, error) {
	if l.read > l.max {
		return 0, errLongRow
	}
	n, err := l.r.Read(b)
	l.read += int64(n)
	return n, err
}

// newCSVReader reads the header. Lines that begin no row are told gaps. bare, which may be nil, names the columns of a .tsv file whose first line is a row
// already; of others it returns nil.
func newCSVReader(path string, content io.Reader, gaps *gaps, bare func(first []string) []string) (*csvReader, error) {
	c := &csvReader{path: path, gaps: gaps, in: &rowLimit{r: content, max: maxRow}}
	c.next = c.line
	in, _, err := afterMark(path, c.in)
	if err != nil {
		return nil, err
	}
	if separated(path) == ".csv" {
		r := csv.NewReader(quotedReturns(in))
		r.ReuseRecord, r.FieldsPerRecord = true, -1 // rows of other lengths are ours to tell
		c.fields = func() ([]string, int64, error) {
			fields, err := r.Read()
			if err != nil {
				return nil, 0, err
			}
			line, _ := r.FieldPos(0)
			return fields, int64(line), nil
		}
	} else {
		c.fields = tabbed(in)
	}
	header, line, err := c.fields()
	if err == io.EOF {
		return nil, fail(ErrNoFiles, "%s is empty: its first line has to name the columns", path)
	}
	if err != nil {
		return nil, c.wrong(err)
	}
	if err := c.known(header); err != nil {
		return nil, err
	}
	if bare != nil && separated(path) == ".tsv" {
		if names := bare(header); names != nil {
			c.held, c.heldAt, header = header, line, names
		}
	}
	named := map[string]bool{}
	for i, name := range header {
		if !utf8.ValidString(name) {
			return nil, fail(ErrCorrupt, "%s:%d: the name of column %d %s", path, line, i+1, notUTF8)
		}
		if named[name] {
			return nil, fail(ErrCorrupt, "%s:%d: the first line names a column %q twice; it has to name the columns", path, line, name)
		}
		named[name] = true
		c.keys = append(c.keys, append(appendJSONString(nil, name), ':'))
	}
	return c, nil
}

// quotedReturns doubles the carriage returns that end lines between quotes: encoding/csv takes one from every line, and there they are the text's.
func quotedReturns(in io.Reader) io.Reader {
	var raw [4096]byte
	var buf []byte                   // raw with what is doubled
	quoted, returned := false, false // what has been read is in quotes, and ends with a carriage return
	return &pieces{next: func() ([]byte, error) {
		n, err := in.Read(raw[:])
		if got := raw[:n]; !returned && bytes.IndexByte(got, '\r') < 0 { // as nearly always: nothing to double
			quoted = quoted != (bytes.Count(got, []byte{'"'})%2 == 1)
			return got, err
		}
		buf = buf[:0]
		for _, c := range raw[:n] {
			switch {
			case c == '"':
				quoted = !quoted
			case c == '\n' && quoted && returned:
				buf = append(buf, '\r')
			}
			buf, returned = append(buf, c), c == '\r'
		}
		return buf, err
	}}
}

// known refuses what other programs call CSV: its header would be read as one column, or with the rows as its columns.
func (c *csvReader) known(header []string) error {
	all := strings.Join(header, "")
	switch {
	case strings.Contains(strings.ReplaceAll(all, "\r\n", ""), "\r"):
		return fail(ErrCorrupt, "%s: lines end with a carriage return alone, as on a Mac of old: they have to end with a line feed (tr '\\r' '\\n')", c.path)
	case len(header) > 1 || separated(c.path) == ".tsv":
		return nil
	case strings.Contains(all, ";"):
		return fail(ErrCorrupt, "%s:1: the first line has semicolons between its columns, as Excel writes them in some countries: it has to be written with commas, or with tabs as .tsv", c.path)
	case strings.Contains(all, "\t"):
		return fail(ErrCorrupt, "%s:1: the first line has tabs between its columns: they make it .tsv, by its name too", c.path)
	}
	return nil
}

// line is the next row's.
func (c *csvReader) line() ([]byte, error) {
	c.in.read = 0
	fields, line, err := c.held, c.heldAt, error(nil)
	if c.held = nil; fields == nil {
		fields, line, err = c.fields()
	}
	switch {
	case err == io.EOF:
		return nil, err
	case err != nil:
		return nil, c.wrong(err)
	}
	c.gaps.until(c.rows, line-1-c.rows)
	c.rows++
	c.buf = append(c.appendRow(c.buf[:0], fields), '\n')
	return c.buf, nil
}

// appendRow appends a row as JSON: an object, or as a string why it is none.
func (c *csvReader) appendRow(b []byte, fields []string) []byte {
	if why := c.unfit(fields); why != "" {
		return appendJSONString(b, why)
	}
	for i, f := range fields {
		b = append(append(b, "{,"[min(i, 1)]), c.keys[i]...)
		if f == "" {
			b = append(b, "null"...)
		} else {
			b = appendJSONString(b, f)
		}
	}
	return append(b, '}')
}

// unfit says why fields are no row, "" if they are one. A cell that is not UTF-8 is a fault whether or not its column is in use: a table of
// it would be parquet that other programs refuse, and the rest of the file is hardly better.
func (c *csvReader) unfit(fields []string) string {
	if len(fields) != len(c.keys) {
		hint := ""
		if separated(c.path) == ".csv" {
			hint = ": one with a comma in it needs quotes"
		}
		has := "1 field"
		if n := len(fields); n != 1 {
			has = fmt.Sprintf("%d fields", n)
		}
		return fmt.Sprintf("the row has %s where the first line names %d columns%s", has, len(c.keys), hint)
	}
	for i, f := range fields {
		if !utf8.ValidString(f) {
			return fmt.Sprintf("column %d, %s, %s", i+1, bytes.TrimSuffix(c.keys[i], []byte(":")), notUTF8)
		}
	}
	return ""
}

// wrong names the file and the line of an error.
func (c *csvReader) wrong(err error) error {
	var parse *csv.ParseError
	switch {
	case errors.Is(err, errLongRow):
		return fail(ErrCorrupt, "%s: after %s: %w, above %d MiB: is a quote not closed?", c.path, spelling.Count(c.rows, "row", "rows"), errLongRow, c.in.max>>20)
	case !errors.As(err, &parse):
		return fmt.Errorf("%s: after %s: %w", c.path, spelling.Count(c.rows, "row", "rows"), err)
	}
	return fail(ErrCorrupt, "%s:%d: the row that begins here has a quote out of place (in line %d, byte %d): a field with quotes in it is in quotes itself, and has them twice",
		c.path, parse.StartLine, parse.Line, parse.Column)
}

// tabbed splits lines at tabs. Those of nothing, or of spaces, are no rows; one of tabs is a row of empty cells.
func tabbed(in *bufio.Reader) func() ([]string, int64, error) {
	line := int64(0)
	return func() ([]string, int64, error) {
		for {
			text, err := in.ReadString('\n')
			if text == "" && err != nil || err != nil && err != io.EOF {
				return nil, 0, err
			}
			line++
			if text = strings.TrimRight(text, "\r\n"); strings.Trim(text, " ") != "" {
				return strings.Split(text, "\t"), line, nil
			}
		}
	}
}

// appendJSONString appends a string as JSON has it.
func appendJSONString(b []byte, s string) []byte {
	b = append(b, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c == '\n':
			b = append(b, '\\', 'n')
		case c < 0x20:
			b = fmt.Appendf(b, `\u%04x`, c)
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}
