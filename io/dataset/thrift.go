package dataset

import (
	"encoding/binary"
	"errors"
	"math"
)

// Thrift's compact protocol, as far as a reader of parquet pages needs it.
//
// Page headers are read here and not through parquet-go for one reason: a flipped byte can turn a list's length into two
// billion, and parquet-go allocates what a length says before it looks at the bytes. Running out of memory is no panic
// that could be recovered. So everything is walked here first, with each length held against the bytes that remain.
// https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md

var errThrift = errors.New("damaged metadata")

// compact reads from b. The first mistake sticks in err and everything after it reads as zero.
type compact struct {
	b   []byte
	pos int
	err error
}

const (
	thriftStop   = 0
	thriftTrue   = 1
	thriftFalse  = 2
	thriftByte   = 3
	thriftI16    = 4
	thriftI32    = 5
	thriftI64    = 6
	thriftDouble = 7
	thriftBinary = 8
	thriftList   = 9
	thriftSet    = 10
	thriftMap    = 11
	thriftStruct = 12
	thriftUUID   = 13
)

func (c *compact) fail() {
	if c.err == nil {
		c.err = errThrift
	}
	c.pos = len(c.b)
}

func (c *compact) byte() byte {
	if c.pos >= len(c.b) {
		c.fail()
		return 0
	}
	c.pos++
	return c.b[c.pos-1]
}

func (c *compact) uvarint() uint64 {
	v, n := binary.Uvarint(c.b[c.pos:])
	if n <= 0 {
		c.fail()
		return 0
	}
	c.pos += n
	return v
}

func (c *compact) int() int64 {
	v := c.uvarint()
	return int64(v>>1) ^ -int64(v&1)
}

// length reads the number of items that follow, each at least one byte long.
func (c *compact) length() int {
	n := c.uvarint()
	if n > uint64(len(c.b)-c.pos) {
		c.fail()
		return 0
	}
	return int(n)
}

// field reads a field's header and returns its id and type; type thriftStop ends the struct.
func (c *compact) field(last int16) (id int16, typ byte) {
	h := c.byte()
	if h&15 == thriftStop {
		if h != 0 {
			c.fail()
		}
		return 0, thriftStop
	}
	if delta := h >> 4; delta != 0 {
		return last + int16(delta), h & 15
	}
	return int16(c.int()), h & 15
}

func (c *compact) list() (n int, typ byte) {
	h := c.byte()
	if n = int(h >> 4); n == 15 {
		n = c.length()
	} else if n > len(c.b)-c.pos {
		c.fail()
		return 0, 0
	}
	return n, h & 15
}

// maxThriftDepth is far above what parquet nests (the schema is a flat list).
const maxThriftDepth = 32

// skip walks over a value of type typ, checking every length.
func (c *compact) skip(typ byte, depth int) {
	if depth > maxThriftDepth {
		c.fail()
	}
	if c.err != nil {
		return
	}
	switch typ {
	case thriftTrue, thriftFalse: // a field's value is in its type
	case thriftByte:
		c.byte()
	case thriftI16, thriftI32, thriftI64:
		c.uvarint()
	case thriftDouble:
		c.advance(8)
	case thriftUUID:
		c.advance(16)
	case thriftBinary:
		c.advance(c.length())
	case thriftList, thriftSet:
		n, item := c.list()
		for range n {
			c.skipItem(item, depth+1)
		}
	case thriftMap:
		n := c.length()
		if n == 0 {
			return
		}
		types := c.byte()
		for range n {
			c.skipItem(types>>4, depth+1)
			c.skipItem(types&15, depth+1)
		}
	case thriftStruct:
		c.structOf(depth+1, func(int16, byte) bool { return false })
	default:
		c.fail()
	}
}

// skipItem skips an item of a list, set or map, where a bool takes a byte.
func (c *compact) skipItem(typ byte, depth int) {
	if typ == thriftTrue || typ == thriftFalse {
		typ = thriftByte
	}
	c.skip(typ, depth)
}

func (c *compact) advance(n int) {
	if n > len(c.b)-c.pos {
		c.fail()
		return
	}
	c.pos += n
}

// pageHeader is format.PageHeader in one piece.
type pageHeader struct {
	kind               int64 // pageData, pageDictionary, pageDataV2
	size, compressed   int64 // of the page without this header; bytes
	crc                uint32
	hasCRC             bool
	values             int64 // slots: nulls and empty lists count
	rows               int64 // V2 only
	encoding           int64
	repBytes, defBytes int64 // V2 only
	repEncoding        int64 // V1 only
	defEncoding        int64
	plain              bool // V2: the values are not compressed
	headerBytes        int
}

const (
	pageData       = 0
	pageIndex      = 1
	pageDictionary = 2
	pageDataV2     = 3
)

// structOf calls read for each field of the struct that starts here; read returns false for fields it leaves to skip.
func (c *compact) structOf(depth int, read func(id int16, typ byte) bool) {
	for last := int16(0); c.err == nil; {
		id, typ := c.field(last)
		if typ == thriftStop {
			return
		}
		if !read(id, typ) {
			c.skip(typ, depth)
		}
		last = id
	}
}

// wantedFields are what is wanted of a struct, by its fields' numbers: integers, of which true and false are 1 and 0, and structs in it.
type wantedFields struct {
	integers []*int64
	structs  []wantedFields
}

// read reads such fields of the struct that starts here.
func (c *compact) read(depth int, want wantedFields) {
	c.structOf(depth, func(id int16, typ byte) bool {
		var to *int64
		if id >= 0 && int(id) < len(want.integers) {
			to = want.integers[id]
		}
		switch {
		case typ == thriftStruct && id >= 0 && int(id) < len(want.structs):
			c.read(depth+1, want.structs[id])
		case to == nil:
			return false
		case typ == thriftTrue || typ == thriftFalse:
			*to = int64(thriftFalse - typ)
		case typ == thriftI16 || typ == thriftI32 || typ == thriftI64:
			*to = c.int()
		default:
			return false
		}
		return true
	})
}

// parsePageHeader reads the header at the start of b.
func parsePageHeader(b []byte) (pageHeader, error) {
	const none = math.MinInt64
	c, h, crc, compressed := compact{b: b}, pageHeader{}, int64(none), int64(1)
	c.read(1, wantedFields{
		integers: []*int64{1: &h.kind, 2: &h.size, 3: &h.compressed, 4: &crc},
		structs: []wantedFields{
			5: {integers: []*int64{1: &h.values, 2: &h.encoding, 3: &h.defEncoding, 4: &h.repEncoding}},
			7: {integers: []*int64{1: &h.values, 2: &h.encoding}}, // a dictionary
			8: {integers: []*int64{1: &h.values, 3: &h.rows, 4: &h.encoding, 5: &h.defBytes, 6: &h.repBytes, 7: &compressed}},
		},
	})
	h.hasCRC, h.crc, h.plain, h.headerBytes = crc != none, uint32(crc), compressed == 0, c.pos
	return h, c.err
}

// pageLocation is what an offset index says of a page.
type pageLocation struct {
	offset, firstRow int64
}

func parseOffsetIndex(b []byte) ([]pageLocation, error) {
	c := compact{b: b}
	var pages []pageLocation
	c.structOf(1, func(id int16, typ byte) bool {
		if id != 1 || typ != thriftList {
			return false
		}
		n, item := c.list()
		if item != thriftStruct {
			c.fail()
		}
		for range n {
			var p pageLocation
			c.read(2, wantedFields{integers: []*int64{1: &p.offset, 3: &p.firstRow}})
			pages = append(pages, p)
			if c.err != nil {
				break
			}
		}
		return true
	})
	return pages, c.err
}

// checkThrift walks the struct that b starts with.
func checkThrift(b []byte) error {
	c := compact{b: b}
	c.skip(thriftStruct, 0)
	return c.err
}
