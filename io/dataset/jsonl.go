package dataset

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
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
	spool  *scratch                      // the unpacked content of a compressed file, or the rows of one of separated values
	array  bool                          // the file is a JSON array, and lines are its elements
	memory []byte                        // the lines of rows in memory (memory.go), which are in no file
	bare   func(first []string) []string // of separated values: see newCSVReader
	text   bool                          // of separated values: all values are strings or null, and a row that is none is a string
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
func openJSONL(ctx context.Context, path string, limit blockLimit, bare func(first []string) []string) (_ *jsonlFile, err error) {
	f, size, err := openFile(path, -1)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	j := &jsonlFile{path: path, size: size, bare: bare}
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
		content, err = newCSVReader(j.path, content, &j.gaps, j.bare)
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
	if j.spool, err = newScratch("jsonl"); err != nil {
		return err
	}
	spool := bufio.NewWriterSize(j.spool, 1<<20)
	if err := j.count(ctx, io.TeeReader(content, spool), 0, limit); err != nil {
		return err
	}
	return spool.Flush()
}

func (j *jsonlFile) close() {
	if j.spool != nil {
		j.spool.dispose()
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
	if j.spool != nil {
		_, err := j.spool.ReadAt(buf, b.at)
		return buf, err
	}
	f, _, err := openFile(j.path, j.size)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	_, err = f.ReadAt(buf, b.at)
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
