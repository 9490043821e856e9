package dataset

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"

	"github.com/parquet-go/parquet-go"
)

// JSON lines as a table. One pass over all files finds each top-level key's type: text, int64, float64 (also for a mix of
// integers and others), bool, and lists of one of these. Whatever else it holds (objects, lists of lists, a mix of types, integers
// that int64 has not, such as ids that are hashes) is passed on as JSON in a text column.

type jsonType uint8

const (
	jsonNothing jsonType = iota // only nulls so far: a text column in the end
	jsonBool
	jsonInt
	jsonBig // an integer beyond int64
	jsonFloat
	jsonText
	jsonAny
)

func (k jsonType) String() string {
	return [...]string{"string", "bool", "int64", "json", "float64", "string", "json"}[k]
}

type jsonColumn struct {
	name string
	kind jsonType
	list bool
	seen bool // a value that is not null: list is settled
	file int  // where the first of those is
	text bool // a value that is a string
}

// mixed tells that some values are strings, and others are not.
func (c *jsonColumn) mixed() bool { return c.kind == jsonAny && c.text }

// join widens a type so that it also holds another's values.
func (k jsonType) join(o jsonType) jsonType {
	switch {
	case k == o || o == jsonNothing:
		return k
	case k == jsonNothing:
		return o
	case k.number() && o.number():
		return max(k, o)
	}
	return jsonAny
}

func (k jsonType) number() bool { return k >= jsonInt && k <= jsonFloat }

func (t *Table) openJSONL(ctx context.Context, paths []string) error {
	for _, path := range paths {
		if isParquet(path) {
			return fail(ErrColumnType, "%s is parquet, but %s is not: a table is one or the other", path, paths[0])
		}
	}
	return t.openLines(ctx, len(paths), func(i int) (*jsonlFile, error) { return openJSONL(ctx, paths[i], defaultLimit, nil) })
}

// openLines looks at so many files' columns.
func (t *Table) openLines(ctx context.Context, files int, open func(i int) (*jsonlFile, error)) error {
	index := map[string]int{}
	for i := range files {
		j, err := open(i)
		if err != nil {
			return err
		}
		f := t.add(file{jsonl: j})
		if j.text {
			if f.names, f.cells, err = j.kinds(); err != nil {
				return err
			}
		}
		err = eachJSONLine(ctx, j, func(r *jsonReader) error {
			return r.object(func(key []byte) error {
				k, ok := index[string(key)]
				if !ok {
					k = len(t.json)
					index[string(key)] = k
					t.json = append(t.json, jsonColumn{name: string(key)})
					t.names = append(t.names, string(key))
				}
				c := &t.json[k]
				if !c.seen {
					c.file = i
				}
				return c.observe(r)
			})
		}, t.leave(func(*RowError) error { return nil }))
		if err != nil {
			return err
		}
	}
	if t.Rows() == 0 {
		return fail(ErrNoFiles, "%s: no rows", t.files[0].path())
	}
	for k := range t.json {
		if c := &t.json[k]; c.kind == jsonAny {
			c.list = false
		}
	}
	t.schema = func(g *orderedGroup) error {
		for _, c := range t.json {
			g.add(c.name, c.node())
		}
		return nil
	}
	return nil
}

// leave is do where rows that can't be read are left to the caller, else nil.
func (t *Table) leave(do func(*RowError) error) func(*RowError) error {
	if !t.bad {
		return nil
	}
	return do
}

// eachJSONLine calls line for every row of a file, and checks that it reads the whole line. A row that can't be read is an error, unless there is
// bad: that is then called in place of line, which gets nothing of the row.
func eachJSONLine(ctx context.Context, j *jsonlFile, line func(r *jsonReader) error, bad func(*RowError) error) error {
	var buf, probe []byte
	row := int64(0)
	for _, b := range j.blocks {
		if err := ctx.Err(); err != nil {
			return err
		}
		var err error
		if buf, err = j.read(b, buf); err != nil {
			return asCorrupt(fmt.Errorf("%s: %w", j.path, err))
		}
		err = lines(buf, func(from, to int) error {
			r := jsonReader{b: buf[from:to]}
			err := error(&jsonError{want: "the line " + notUTF8})
			if utf8.Valid(r.b) {
				err = nil
				if bad != nil {
					probe = append(probe[:0], r.b...)
					whole := jsonReader{b: probe}
					err = whole.row(j.text, func() error { return whole.object(func([]byte) error { return whole.skip() }) })
				}
				if err == nil {
					err = r.row(j.text, func() error { return line(&r) })
				}
			}
			if _, ok := err.(*jsonError); ok {
				wrong := &RowError{Row: row, Location: j.at(row), Reason: err.Error()}
				if bad == nil {
					return wrong
				}
				err = bad(wrong)
			}
			row++
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// observe reads a value and widens the column's type.
func (c *jsonColumn) observe(r *jsonReader) error {
	if r.peek() != '[' {
		k, err := r.scalar()
		c.text = c.text || k == jsonText
		if k != jsonNothing {
			if c.seen && c.list {
				k = jsonAny
			}
			c.seen = true
		}
		c.kind = c.kind.join(k)
		return err
	}
	if c.seen && !c.list {
		c.kind = jsonAny
	}
	c.seen, c.list = true, true
	return r.array(func() error {
		k, err := r.scalar()
		c.kind = c.kind.join(k)
		return err
	})
}

// scalar reads a value and returns its type, jsonAny for lists and objects.
func (r *jsonReader) scalar() (jsonType, error) {
	switch c := r.peek(); c {
	case 'n':
		return jsonNothing, r.skip()
	case 't', 'f':
		return jsonBool, r.skip()
	case '"':
		return jsonText, r.skip()
	case '[', '{':
		return jsonAny, r.skip()
	}
	digits, err := r.number()
	if err != nil {
		return jsonAny, err
	}
	switch _, err := strconv.ParseInt(string(digits), 10, 64); {
	case err == nil:
		return jsonInt, nil
	case errors.Is(err, strconv.ErrRange):
		return jsonBig, nil
	}
	return jsonFloat, nil
}

func (c jsonColumn) node() parquet.Node {
	var n parquet.Node
	switch c.kind {
	case jsonBool:
		n = parquet.Leaf(parquet.BooleanType)
	case jsonInt:
		n = parquet.Int(64)
	case jsonFloat:
		n = parquet.Leaf(parquet.DoubleType)
	default:
		n = parquet.String()
	}
	n = parquet.Optional(parquet.Encoded(n, &parquet.Plain))
	if c.list {
		n = parquet.Optional(parquet.List(n))
	}
	return n
}

// jsonChunks reads a file of JSON lines.
func (t *Table) jsonChunks(ctx context.Context, f *tableFile, rows int, c *Chunk, send func(int64, int) bool) (more bool, err error) {
	index := map[string]int{}
	for i, col := range t.json {
		index[col.name] = i
	}
	reset := func() {
		for i := range c.leaves {
			c.leaves[i] = values{list: c.leaves[i].list[:0]}
		}
	}
	reset()
	first, n := f.first, 0
	begin := make([]int, len(t.json)) // where the row's values begin, for keys that come twice
	var original []byte
	errStop := errors.New("no more")
	end := func() error { // of a row
		for i := range begin {
			if len(c.leaves[i].list) == begin[i] {
				c.leaves[i].list = append(c.leaves[i].list, parquet.NullValue().Level(0, 0, i))
			}
		}
		if n++; n == rows {
			if !send(first, n) {
				return errStop
			}
			first, n = first+int64(n), 0
			reset()
		}
		for i := range begin {
			begin[i] = len(c.leaves[i].list)
		}
		return nil
	}
	err = eachJSONLine(ctx, f.jsonl, func(r *jsonReader) error {
		original = append(original[:0], r.b...)
		err := r.object(func(key []byte) error {
			i, ok := index[string(key)]
			if !ok {
				return fail(ErrCorrupt, "%s has changed while it was in use: a new key %q", f.jsonl.path, key)
			}
			v := &c.leaves[i]
			v.list = v.list[:begin[i]]
			if t.json[i].mixed() {
				v.note(n, r.peek())
			}
			return t.json[i].read(r, original, v, i)
		})
		if err != nil {
			return err
		}
		return end()
	}, t.leave(func(bad *RowError) error {
		if c.Bad == nil {
			c.Bad = map[int]*RowError{}
		}
		c.Bad[n] = bad
		return end()
	}))
	if err == errStop {
		return false, nil
	}
	if err == nil && n > 0 {
		return send(first, n), nil
	}
	return true, err
}

// read appends a key's value. original is the line as it stood: reading texts unescapes them in place.
func (c jsonColumn) read(r *jsonReader, original []byte, v *values, column int) error {
	if c.kind == jsonAny || !c.list {
		value, err := c.value(r, original, v)
		def := 1
		if value.IsNull() {
			def = 0
		}
		v.list = append(v.list, value.Level(0, def, column))
		return err
	}
	if r.peek() == 'n' {
		v.list = append(v.list, parquet.NullValue().Level(0, 0, column))
		return r.skip()
	}
	begin := len(v.list)
	err := r.array(func() error {
		value, err := c.value(r, original, v)
		def := 3
		if value.IsNull() {
			def = 2
		}
		v.list = append(v.list, value.Level(min(1, len(v.list)-begin), def, column))
		return err
	})
	if len(v.list) == begin {
		v.list = append(v.list, parquet.NullValue().Level(0, 1, column))
	}
	return err
}

func (c jsonColumn) value(r *jsonReader, original []byte, v *values) (parquet.Value, error) {
	first := r.peek()
	from := r.i
	if first == '"' {
		a, b, err := r.text()
		if err != nil {
			return parquet.Value{}, err
		}
		return v.text(r.b[a:b]), nil
	}
	if err := r.skip(); err != nil {
		return parquet.Value{}, err
	}
	raw := bytes.TrimSpace(original[from:r.i])
	if first == 'n' {
		return parquet.NullValue(), nil
	}
	switch c.kind {
	case jsonBool:
		return parquet.BooleanValue(first == 't'), nil
	case jsonInt:
		n, err := strconv.ParseInt(string(raw), 10, 64)
		return parquet.Int64Value(n), err
	case jsonFloat:
		x, _ := strconv.ParseFloat(string(raw), 64) // beyond the range: infinite
		return parquet.DoubleValue(x), nil
	}
	return v.text(raw), nil
}

// note keeps what a row's value is if it is no string, by its first byte.
func (v *values) note(row int, first byte) {
	switch {
	case first == '"' || first == 'n':
		delete(v.others, row) // of a key that comes twice
	case v.others == nil:
		v.others = map[int]string{row: jsonKind(first)}
	default:
		v.others[row] = jsonKind(first)
	}
}

func (v *values) text(b []byte) parquet.Value {
	from := len(v.arena)
	v.arena = append(v.arena, b...)
	return parquet.ByteArrayValue(v.arena[from:len(v.arena):len(v.arena)])
}
