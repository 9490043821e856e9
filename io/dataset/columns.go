package dataset

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/deprecated"
	"github.com/parquet-go/parquet-go/format"
)

// From pages to columns: texts for training, whole values for tables that are passed on.

// span is a text in an arena. It holds no pointer: the garbage collector has nothing to do with a block's texts.
type span struct{ off, n uint32 }

const null = math.MaxUint32    // span.n of a null
const missing = math.MaxUint32 // span.off of one that its row has no key for

// rowsOf is a column's values in rows: one each, or a list.
type rowsOf[T any] struct {
	list   bool
	starts []uint32 // lists: row i has values[starts[i]:starts[i+1]]
	values []T
}

func (c *rowsOf[T]) reset(list bool) { *c = rowsOf[T]{list, c.starts[:0], c.values[:0]} }

// row returns the values of row i.
func (c *rowsOf[T]) row(i int) []T {
	if !c.list {
		return c.values[i : i+1]
	}
	return c.values[c.starts[i]:c.starts[i+1]]
}

// begin begins a row's list.
func (c *rowsOf[T]) begin() { c.starts = append(c.starts, uint32(len(c.values))) }

// beginWith begins a row: a list, or a value, without until there is one.
func (c *rowsOf[T]) beginWith(without T) {
	if c.list {
		c.begin()
	} else {
		c.values = append(c.values, without)
	}
}

// again has a row that was begun begin anew, with a value of its own if it is no list.
func (c *rowsOf[T]) again(v T) {
	if c.list {
		c.values = c.values[:c.starts[len(c.starts)-1]]
	} else {
		c.values[len(c.values)-1] = v
	}
}

// end closes the last row, of as many as there have to be.
func (c *rowsOf[T]) end(rows int) error {
	n := len(c.values)
	if c.list {
		n = len(c.starts)
		c.begin()
	}
	if n != rows {
		return fmt.Errorf("%d rows, want %d", n, rows)
	}
	return nil
}

// textColumn is a column of texts, or of lists of texts.
type textColumn struct {
	rowsOf[span]
	arena []byte
	of    *Texts // what spans are of then: the text's number, and its length

	memo []uint32 // 1 + where a dictionary's entry stands in the arena
}

func (t *textColumn) reset(list bool) {
	t.rowsOf.reset(list)
	t.arena, t.memo, t.of = t.arena[:0], t.memo[:0], nil
}

func (t *textColumn) bytes(s span) []byte {
	if t.of != nil {
		return t.of.text(s.off)
	}
	return t.arena[s.off : s.off+s.n]
}

// drop takes rows out, ascending, of a column whose rows have ended.
func (c *rowsOf[T]) drop(out []int32, rows int) {
	starts, values := c.starts[:0], c.values[:0]
	for row := range rows {
		if len(out) > 0 && int(out[0]) == row {
			out = out[1:]
			continue
		}
		list := c.row(row)
		if c.list {
			starts = append(starts, uint32(len(values)))
		}
		values = append(values, list...)
	}
	if c.starts, c.values = starts, values; c.list {
		c.begin()
	}
}

// skip moves to the given row, which starts in this page.
func (pg *page) skip(c *chunk, row int64) error {
	if pg.sparse {
		pg.begun += int(row - pg.row)
		pg.row, pg.slot = row, int(pg.begins[pg.begun])
		pg.value = pg.slot
		return nil
	}
	slot, values := pg.slot, 0
	for ; slot < pg.slots; slot++ {
		if pg.rep == nil || pg.rep[slot] == 0 {
			if pg.row == row {
				break
			}
			pg.row++
		}
		if pg.def == nil || pg.def[slot] == c.leaf.maxDef {
			values++
		}
	}
	pg.slot = slot
	if pg.form == plainForm {
		for range values {
			_, to, err := plainText(pg.data, pg.off)
			if err != nil {
				return err
			}
			pg.off = to
		}
	}
	pg.value += values
	return nil
}

// readTexts appends rows [from, to) of the row group to t.
func (r *columnReader) readTexts(t *textColumn, from, to int64) error {
	if len(t.memo) != 0 {
		t.memo = t.memo[:0]
	}
	return r.read(from, to, func() error { return r.takeTexts(t, to) })
}

func (r *columnReader) read(from, to int64, take func() error) error {
	if err := r.seek(from); err != nil {
		return err
	}
	for {
		if err := take(); err != nil {
			return fmt.Errorf("page %d at byte %d: %w", r.index, r.c.pages[r.index].at-int64(r.c.pages[r.index].headerBytes), err)
		}
		if r.page.slot < r.page.slots {
			return nil
		}
		more, err := r.follow(to)
		if err != nil {
			return err
		}
		if !more {
			if r.page.row < to {
				return fmt.Errorf("its pages end at row %d of the row group, want %d", r.page.row, to)
			}
			return nil
		}
	}
}

// takeTexts takes what the current page has of the rows before row to.
func (r *columnReader) takeTexts(t *textColumn, to int64) error {
	pg, maxDef, listDef := &r.page, r.c.leaf.maxDef, r.c.listDef
	base, begin := len(t.arena), pg.begin()
	for ; pg.slot < pg.slots; pg.slot++ {
		if pg.rep == nil || pg.rep[pg.slot] == 0 {
			if pg.row == to {
				break
			}
			pg.row++
			if t.list {
				t.begin()
			}
		}
		if pg.def != nil && pg.def[pg.slot] < maxDef {
			if !t.list || pg.def[pg.slot] >= listDef {
				t.values = append(t.values, span{0, null})
			}
			continue
		}
		if pg.form == dictForm {
			t.values = append(t.values, t.fromDictionary(&r.dict, pg.indices[pg.value]))
			pg.value++
			continue
		}
		from, end, err := pg.next()
		if err != nil {
			return err
		}
		t.values = append(t.values, span{uint32(base + from - begin), uint32(end - from)})
	}
	if pg.form != dictForm {
		t.arena = append(t.arena, pg.data[begin:pg.begin()]...) // with the lengths between the texts: one copy for all
	}
	if int64(len(t.arena)) > math.MaxUint32 {
		return errors.New("a block of more than 4 GiB of text")
	}
	return nil
}

// begin returns where in data the next value starts, or its length does.
func (pg *page) begin() int {
	if pg.form == endedForm {
		if pg.value == 0 {
			return 0
		}
		return int(pg.ends[pg.value-1])
	}
	return pg.off
}

// next returns the place of the next byte array in data.
func (pg *page) next() (from, to int, err error) {
	if pg.form == endedForm {
		from, to = pg.begin(), int(pg.ends[pg.value])
	} else if from, to, err = plainText(pg.data, pg.off); err == nil {
		pg.off = to
	}
	pg.value++
	return from, to, err
}

// fromDictionary copies an entry to the arena, once a block as long as the dictionary is small: large ones seldom repeat.
func (t *textColumn) fromDictionary(d *dictionary, i uint32) span {
	const remembered = 1 << 16
	s := d.spans[i]
	if d.n <= remembered {
		if len(t.memo) == 0 {
			if cap(t.memo) < d.n {
				t.memo = make([]uint32, d.n)
			} else {
				t.memo = t.memo[:d.n]
				clear(t.memo)
			}
		}
		if at := t.memo[i]; at > 0 {
			return span{at - 1, s.n}
		}
	}
	at := uint32(len(t.arena))
	t.arena = append(t.arena, d.data[s.off:s.off+s.n]...)
	if d.n <= remembered {
		t.memo[i] = at + 1
	}
	return span{at, s.n}
}

// values is a leaf's values with their levels, as parquet-go's writer takes them.
type values struct {
	list   []parquet.Value
	arena  []byte
	others map[int]string // of a column of texts and others in JSON lines: rows of a chunk whose values are none, and what they are
}

// readValues appends rows [from, to) of the row group to v. Column is the index that the values carry.
func (r *columnReader) readValues(v *values, from, to int64, column int) error {
	return r.read(from, to, func() error {
		pg, maxDef := &r.page, int(r.c.leaf.maxDef)
		for ; pg.slot < pg.slots; pg.slot++ {
			rep, def := 0, maxDef
			if pg.rep != nil {
				rep = int(pg.rep[pg.slot])
			}
			if rep == 0 {
				if pg.row == to {
					return nil
				}
				pg.row++
			}
			if pg.def != nil {
				def = int(pg.def[pg.slot])
			}
			value := parquet.NullValue()
			if def == maxDef {
				var err error
				if value, err = r.value(v); err != nil {
					return err
				}
			}
			v.list = append(v.list, value.Level(rep, def, column))
		}
		return nil
	})
}

// value returns the next value of the page.
func (r *columnReader) value(v *values) (parquet.Value, error) {
	pg, width := &r.page, r.c.leaf.width()
	var b []byte
	switch {
	case pg.form == dictForm && width > 0:
		i := int(pg.indices[pg.value])
		b = r.dict.data[i*width : (i+1)*width]
		pg.value++
	case pg.form == dictForm:
		s := r.dict.spans[pg.indices[pg.value]]
		b = r.dict.data[s.off : s.off+s.n]
		pg.value++
	case pg.form == fixedForm:
		w := max(width, 1) // booleans
		b = pg.data[pg.value*w : (pg.value+1)*w]
		pg.value++
	default:
		from, to, err := pg.next()
		if err != nil {
			return parquet.Value{}, err
		}
		b = pg.data[from:to]
	}
	switch r.c.leaf.elem.Type.V {
	case format.Boolean:
		return parquet.BooleanValue(b[0] != 0), nil
	case format.Int32:
		return parquet.Int32Value(int32(binary.LittleEndian.Uint32(b))), nil
	case format.Int64:
		return parquet.Int64Value(int64(binary.LittleEndian.Uint64(b))), nil
	case format.Int96:
		return parquet.Int96Value(deprecated.Int96{binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:]), binary.LittleEndian.Uint32(b[8:])}), nil
	case format.Float:
		return parquet.FloatValue(math.Float32frombits(binary.LittleEndian.Uint32(b))), nil
	case format.Double:
		return parquet.DoubleValue(math.Float64frombits(binary.LittleEndian.Uint64(b))), nil
	}
	from := len(v.arena)
	v.arena = append(v.arena, b...)
	b = v.arena[from:len(v.arena):len(v.arena)]
	if r.c.leaf.elem.Type.V == format.FixedLenByteArray {
		if len(b) != width {
			return parquet.Value{}, fmt.Errorf("a value of %d bytes, want %d", len(b), width)
		}
		return parquet.FixedLenByteArrayValue(b), nil
	}
	return parquet.ByteArrayValue(b), nil
}
