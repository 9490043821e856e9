package dataset

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/zeebo/xxh3"
)

// JSON lines have no index. One pass counts the lines and notes where every block begins; from then on any block is one
// read away. Lines of white space are no rows. Compressed files can't be entered in the middle, so they are unpacked
// once into a temporary file, which is unlinked while it is open.

const maxLine = 256 << 20

// blockLimit is where a block ends. 4,096 rows and about 2 MiB of text are small enough that a window of the shuffle draws
// from many places, and large enough that a page is seldom decoded for two blocks.
type blockLimit struct {
	rows  int64
	bytes int64
}

var defaultLimit = blockLimit{rows: 4096, bytes: 2 << 20}

type jsonlFile struct {
	path   string
	size   int64 // on disk
	hash   Hash128
	rows   int64
	blocks []jsonlBlock
	gaps   gaps
	spool  *os.File // the unpacked content of a compressed file, or the rows of one of separated values
	array  bool     // the file is a JSON array, and lines are its elements
	memory []byte   // the lines of rows in memory (rows.go), which are in no file
	text   bool     // of separated values: all values are strings or null, and a row that is none is a string
}

// gaps are the lines that begin no row: blank ones, a header, and what a row in quotes goes on with.
type gaps []struct{ rows, lines int64 } // so many lines before the first row that so many rows stand before

// until says how many such lines there are before a row; none is fewer than before the one before.
func (g *gaps) until(row, lines int64) {
	if n := len(*g); n > 0 && (*g)[n-1].lines == lines || lines == 0 {
		return
	}
	*g = append(*g, struct{ rows, lines int64 }{row, lines})
}

// before is how many such lines there are before a row.
func (g gaps) before(row int64) int64 {
	i := sort.Search(len(g), func(i int) bool { return g[i].rows > row })
	if i == 0 {
		return 0
	}
	return g[i-1].lines
}

type jsonlBlock struct {
	at, bytes int64
	rows      int
}

// unpacked is a file's content without the compression that its name says it has. end belongs to the caller, before the file is closed.
func unpacked(path string, f *os.File) (in io.Reader, end func(), err error) {
	switch strings.ToLower(filepath.Ext(path)) {
	case ".gz":
		gz, err := gzip.NewReader(bufio.NewReaderSize(f, 1<<20))
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", path, err)
		}
		return gz, func() {}, nil
	case ".zst":
		z, err := zstd.NewReader(f, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(1<<30))
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", path, err)
		}
		return z, z.Close, nil
	}
	return f, func() {}, nil
}

// pieces is an io.Reader of what next gives, each piece valid until the next. It gives the error that ends them again and again: a bufio.Reader's Peek
// takes the first one without a word.
type pieces struct {
	next func() ([]byte, error)
	rest []byte
	err  error
}

func (p *pieces) Read(b []byte) (int, error) {
	for len(p.rest) == 0 {
		if p.err != nil {
			return 0, p.err
		}
		p.rest, p.err = p.next()
	}
	n := copy(b, p.rest)
	p.rest = p.rest[n:]
	return n, nil
}

const byteOrderMark = "\xef\xbb\xbf"

// afterMark reads content after its byte order mark, of so many bytes.
func afterMark(path string, content io.Reader) (in *bufio.Reader, mark int64, err error) {
	in = bufio.NewReaderSize(content, 1<<20)
	switch head, _ := in.Peek(3); {
	case string(head) == byteOrderMark:
		mark = 3
		in.Discard(3)
	case bytes.HasPrefix(head, []byte("\xff\xfe")) || bytes.HasPrefix(head, []byte("\xfe\xff")):
		err = fail(ErrCorrupt, "%s is UTF-16, as its byte order mark says: it has to be UTF-8 (iconv -f UTF-16 -t UTF-8)", path)
	}
	return in, mark, err
}

// openJSONL counts the rows of a file.
func openJSONL(ctx context.Context, path string, limit blockLimit) (_ *jsonlFile, err error) {
	f, size, err := openFile(path, -1)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	j := &jsonlFile{path: path, size: size}
	in, end, err := unpacked(path, f)
	if err != nil {
		return nil, asCorrupt(err)
	}
	defer end()
	if err := j.open(ctx, in, in == io.Reader(f), limit); err != nil {
		return nil, err
	}
	return j, nil
}

// open counts the rows of content, which is kept in a temporary file if they do not stand in the file as they are.
func (j *jsonlFile) open(ctx context.Context, content io.Reader, asIs bool, limit blockLimit) (err error) {
	defer func() {
		if err != nil {
			j.close()
			err = asCorrupt(err)
		}
	}()
	var mark int64
	if j.text = separated(j.path) != ""; j.text {
		content, err = newCSVReader(j.path, content, &j.gaps)
	} else {
		var in *bufio.Reader
		in, mark, err = afterMark(j.path, content)
		if content, j.array = in, isArray(in); j.array {
			content = newElements(j.path, in)
		}
	}
	if err != nil {
		return err
	}
	if asIs && !j.text && !j.array {
		return j.count(ctx, content, mark, limit)
	}
	if j.spool, err = os.CreateTemp("", "contraflow-*.jsonl"); err != nil {
		return err
	}
	os.Remove(j.spool.Name()) // Windows refuses; close removes it there
	spool := bufio.NewWriterSize(j.spool, 1<<20)
	if err := j.count(ctx, io.TeeReader(content, spool), 0, limit); err != nil {
		return err
	}
	return spool.Flush()
}

func (j *jsonlFile) close() {
	if j.spool != nil {
		j.spool.Close()
		os.Remove(j.spool.Name())
		j.spool = nil
	}
}

// count counts the rows of content, which stands at a place in what is read later.
func (j *jsonlFile) count(ctx context.Context, content io.Reader, at int64, limit blockLimit) error {
	in := bufio.NewReaderSize(content, 1<<20)
	hash := xxh3.New128()
	lineAt, cur := at, jsonlBlock{at: at}
	var blank int64 // lines
	var begun bool  // the line has something in it
	endLine := func() {
		if begun {
			cur.rows++
			j.rows++
		} else {
			blank++
			j.gaps.until(j.rows, blank)
		}
		begun, lineAt = false, at
		if cur.bytes = at - cur.at; int64(cur.rows) >= limit.rows || cur.rows > 0 && cur.bytes >= limit.bytes {
			j.blocks = append(j.blocks, cur)
			cur = jsonlBlock{at: at}
		}
	}
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		_, err := in.Peek(1) // fills the buffer
		piece, _ := in.Peek(in.Buffered())
		if len(piece) == 0 {
			if err == io.EOF {
				break
			}
			if j.text || j.array {
				return err // says where
			}
			return fmt.Errorf("%s: after %d bytes: %w", j.path, at, err)
		}
		hash.Write(piece)
		for rest := piece; len(rest) > 0; {
			line := rest
			nl := bytes.IndexByte(rest, '\n')
			if nl >= 0 {
				line = rest[:nl+1]
			}
			begun = begun || len(bytes.TrimLeft(line, " \t\r\n")) > 0
			rest = rest[len(line):]
			at += int64(len(line))
			if at-lineAt > maxLine {
				return fmt.Errorf("%v: the line is longer than %d MiB: is this one JSON object a line?", j.at(j.rows), maxLine>>20)
			}
			if nl >= 0 {
				endLine()
			}
		}
		in.Discard(len(piece))
	}
	if begun {
		endLine()
	}
	if cur.rows > 0 {
		j.blocks = append(j.blocks, cur)
	}
	j.hash = Hash128(hash.Sum128())
	return nil
}

// at says where a row is at rest.
func (j *jsonlFile) at(row int64) Location {
	l := Location{File: j.path, RowGroup: -1, Row: row}
	switch {
	case j.array:
		l.Element = row + 1
	case j.memory == nil:
		l.Line = j.line(row)
	}
	return l
}

// line returns the number, from 1, of the line that holds a row.
func (j *jsonlFile) line(row int64) int64 {
	return row + 1 + j.gaps.before(row)
}

// missing is missingColumn's error. Of a file without a header the columns it lists are a row's cells.
func (j *jsonlFile) missing(name string, have []string) error {
	err := missingColumn(j.path, name, have)
	if j.text {
		return fmt.Errorf("%w (the first line has to name the columns)", err)
	}
	if list := j.listOfRows(); list != "" {
		err = fmt.Errorf("%w; its one row has a list of objects: jq -c '%s' makes a row of each", err, list)
	}
	return err
}

// listOfRows is the first list of objects in the one object that a file has, as jq writes its items, .data[]; "" if there is none, or more rows.
func (j *jsonlFile) listOfRows() (found string) {
	if j.rows != 1 || j.array || j.text || j.memory != nil {
		return ""
	}
	buf, err := j.read(j.blocks[0], nil)
	if err != nil {
		return ""
	}
	lines(buf, func(from, to int) error {
		r := jsonReader{b: buf[from:to]}
		var object func(path string) error
		object = func(path string) error {
			return r.object(func(key []byte) error {
				at := path + "." + string(key)
				if !plainKey.Match(key) {
					at = fmt.Sprintf("%s.[%q]", path, key)
				}
				switch r.peek() {
				case '{':
					return object(at)
				case '[':
					if next := (jsonReader{b: r.b, i: r.i + 1}); found == "" && next.peek() == '{' {
						found = at + "[]"
					}
				}
				return r.skip()
			})
		}
		return object("")
	})
	return found
}

// plainKey is a key that jq takes without quotes.
var plainKey = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// read returns the bytes of a block in buf's memory.
func (j *jsonlFile) read(b jsonlBlock, buf []byte) ([]byte, error) {
	if j.memory != nil {
		return append(buf[:0], j.memory[b.at:b.at+b.bytes]...), nil // texts are unescaped where they stand
	}
	buf = slices.Grow(buf[:0], int(b.bytes))[:b.bytes]
	f := j.spool
	if f == nil {
		var err error
		if f, _, err = openFile(j.path, j.size); err != nil {
			return nil, err
		}
		defer f.Close()
	}
	_, err := f.ReadAt(buf, b.at)
	return buf, err
}

// lines calls row with each line that is not blank.
func lines(buf []byte, row func(from, to int) error) error {
	for from := 0; from < len(buf); {
		to := len(buf)
		next := to
		if nl := bytes.IndexByte(buf[from:], '\n'); nl >= 0 {
			to, next = from+nl, from+nl+1
		}
		if len(bytes.TrimLeft(buf[from:to], " \t\r")) > 0 {
			if err := row(from, to); err != nil {
				return err
			}
		}
		from = next
	}
	return nil
}

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
		return takeJSON(p, w, &p.numbers[i-len(p.texts)], nullNumber, "number", func(c byte) bool {
			return c == '-' || c >= '0' && c <= '9' || w.truth && (c == 't' || c == 'f') || c == '"' && p.strings
		}, func() (float32, error) { return p.number(w) })
	}
	return takeJSON(p, w, &p.texts[i].rowsOf, nullText, "string", func(c byte) bool { return c == '"' }, p.text)
}

// takeJSON reads the value of a column: one, or a list of such, by what it begins with. null stands for those that are null.
func takeJSON[T any](p *jsonlParser, w *sourceColumn, to *rowsOf[T], null T, what string, is func(c byte) bool, read func() (T, error)) error {
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
	case !w.list && is(c):
		v, err := read()
		to.again(v)
		return err
	case c == 'n' && (w.list || !w.number):
		return p.r.skip()
	case w.list && c == '[':
		return p.r.array(func() (err error) {
			v := null
			switch c := p.r.peek(); {
			case is(c):
				v, err = read()
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

func (p *jsonlParser) text() (span, error) {
	from, to, err := p.r.text()
	return span{uint32(p.from + from), uint32(to - from)}, err
}

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
