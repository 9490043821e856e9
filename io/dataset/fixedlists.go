package dataset

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
)

// Lists of values of a fixed width: token ids, and the halves of hashes. A run on ids that prep has made reads these and little else,
// so there is a way of reading them that does next to nothing an id.
//
// Each slot of a page of lists has a level that says whether it starts a row, and one that says whether a value is there. The general way
// unpacks both, a byte a slot, and looks at each slot. But where nothing is null and no list is empty, the second is one number for all
// slots, and of the first only the zeros matter, which are found 64 slots at a time: then a page's values are copied in one piece. Such
// pages are read sparsely; the general way remains for all others, and as what the tests hold this one to.

// fixedLists are lists of values of a fixed width: row i has values starts[i] to starts[i+1]-1 of data.
type fixedLists struct {
	starts []uint32
	data   []byte
}

// row are the bytes of row i.
func (v *fixedLists) row(i, width int) []byte {
	return v.data[int(v.starts[i])*width : int(v.starts[i+1])*width]
}

// readFixed appends rows [from, to) of a row group to v. Lists that are null, or hold nulls, are errors.
func (r *columnReader) readFixed(v *fixedLists, from, to int64) error {
	width := r.c.leaf.width()
	v.reserve(r.c, width, to-from)
	at := uint32(len(v.data) / width)
	err := r.read(from, to, func() error {
		pg := &r.page
		first := pg.value
		if pg.sparse {
			pg.takeRows(v, at, to)
		} else if err := pg.takeSlots(v, &r.c.column, at, to); err != nil {
			return err
		}
		at += uint32(pg.value - first)
		if pg.form != dictForm {
			v.data = append(v.data, pg.data[first*width:pg.value*width]...)
			return nil
		}
		for _, i := range pg.indices[first:pg.value] {
			v.data = append(v.data, r.dict.data[int(i)*width:(int(i)+1)*width]...)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if n := int64(len(v.starts)); n != to-from {
		return fmt.Errorf("%d rows, want %d", n, to-from)
	}
	v.starts = append(v.starts, at)
	return nil
}

// reserve makes room for as many values as rows of the chunk have on average, and some: growing bit by bit copies all of them twice. What
// the footer says is not believed beyond a few megabytes.
func (v *fixedLists) reserve(c *chunk, width int, rows int64) {
	v.starts = slices.Grow(v.starts, int(min(rows, 1<<16))+1)
	mean := float64(c.values) / float64(max(1, c.rows))
	v.data = slices.Grow(v.data, int(min(1.07*mean*float64(rows)*float64(width), 8<<20)))
}

// takeRows takes what a sparse page has of the rows before row to; at is the place of its first value.
func (pg *page) takeRows(v *fixedLists, at uint32, to int64) {
	n := int(min(int64(len(pg.begins)-pg.begun), to-pg.row))
	for _, slot := range pg.begins[pg.begun : pg.begun+n] {
		v.starts = append(v.starts, at+slot-uint32(pg.value))
	}
	pg.row += int64(n)
	pg.begun += n
	pg.slot = pg.slots
	if pg.begun < len(pg.begins) {
		pg.slot = int(pg.begins[pg.begun])
	}
	pg.value = pg.slot
}

// takeSlots is takeRows of other pages.
func (pg *page) takeSlots(v *fixedLists, c *column, at uint32, to int64) error {
	first := pg.value
	for ; pg.slot < pg.slots; pg.slot++ {
		if pg.rep == nil || pg.rep[pg.slot] == 0 {
			if pg.row == to {
				break
			}
			pg.row++
			v.starts = append(v.starts, at+uint32(pg.value-first))
		}
		if pg.def == nil || pg.def[pg.slot] == c.leaf.maxDef {
			pg.value++
		} else if def := pg.def[pg.slot]; def >= c.listDef {
			return fmt.Errorf("row %d of the row group: a null in the list", pg.row-1)
		} else if def+1 < c.listDef {
			return fmt.Errorf("row %d of the row group: the list is null", pg.row-1)
		}
	}
	return nil
}

// rowStarts appends the slots that start a row: those of n repetition levels of one bit that are 0.
func rowStarts(dst []uint32, src []byte, n int) ([]uint32, error) {
	for at := 0; at < n; {
		if len(src) > 1 && src[0]&0x81 == 0 && src[0] > 0 && src[1] == 1 { // a short run of slots that start none: half of all runs
			at, src = at+int(src[0]>>1), src[2:]
			continue
		}
		r, rest, err := nextRun(src, 1, n-at)
		switch {
		case err != nil:
			return nil, err
		case r.packed != nil:
			for i := 0; i < r.n; i += 64 {
				zeros := ^word(r.packed[i/8:])
				if left := r.n - i; left < 64 {
					zeros &= 1<<left - 1
				}
				for ; zeros != 0; zeros &= zeros - 1 {
					dst = append(dst, uint32(at+i+bits.TrailingZeros64(zeros)))
				}
			}
		case r.value == 0:
			for i := range r.n {
				dst = append(dst, uint32(at+i))
			}
		case r.value > 1:
			return nil, fmt.Errorf("a level of %d, the schema allows 1", r.value)
		}
		at, src = at+r.n, rest
	}
	return dst, nil
}

// word is the first eight bytes of b, or as many as it has.
func word(b []byte) uint64 {
	if len(b) >= 8 {
		return binary.LittleEndian.Uint64(b)
	}
	var le [8]byte
	copy(le[:], b)
	return binary.LittleEndian.Uint64(le[:])
}
