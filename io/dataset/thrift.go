package dataset

import (
	"encoding/binary"
	"errors"
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
		for last := int16(0); c.err == nil; {
			id, typ := c.field(last)
			if typ == thriftStop {
				return
			}
			c.skip(typ, depth+1)
			last = id
		}
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

// parsePageHeader reads the header at the start of b.
func parsePageHeader(b []byte) (pageHeader, error) {
	c := compact{b: b}
	var h pageHeader
	integer := func(typ byte, p *int64) bool {
		if typ != thriftI16 && typ != thriftI32 && typ != thriftI64 {
			return false
		}
		*p = c.int()
		return true
	}
	c.structOf(1, func(id int16, typ byte) bool {
		switch {
		case id == 1:
			return integer(typ, &h.kind)
		case id == 2:
			return integer(typ, &h.size)
		case id == 3:
			return integer(typ, &h.compressed)
		case id == 4:
			var crc int64
			h.hasCRC = integer(typ, &crc)
			h.crc = uint32(crc)
			return h.hasCRC
		case id == 5 && typ == thriftStruct:
			c.structOf(2, func(id int16, typ byte) bool {
				switch id {
				case 1:
					return integer(typ, &h.values)
				case 2:
					return integer(typ, &h.encoding)
				case 3:
					return integer(typ, &h.defEncoding)
				case 4:
					return integer(typ, &h.repEncoding)
				}
				return false
			})
			return true
		case id == 7 && typ == thriftStruct:
			c.structOf(2, func(id int16, typ byte) bool {
				switch id {
				case 1:
					return integer(typ, &h.values)
				case 2:
					return integer(typ, &h.encoding)
				}
				return false
			})
			return true
		case id == 8 && typ == thriftStruct:
			c.structOf(2, func(id int16, typ byte) bool {
				switch id {
				case 1:
					return integer(typ, &h.values)
				case 3:
					return integer(typ, &h.rows)
				case 4:
					return integer(typ, &h.encoding)
				case 5:
					return integer(typ, &h.defBytes)
				case 6:
					return integer(typ, &h.repBytes)
				case 7:
					h.plain = typ == thriftFalse
				}
				return false
			})
			return true
		}
		return false
	})
	h.headerBytes = c.pos
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
			c.structOf(2, func(id int16, typ byte) bool {
				switch {
				case id == 1 && typ == thriftI64:
					p.offset = c.int()
				case id == 3 && typ == thriftI64:
					p.firstRow = c.int()
				default:
					return false
				}
				return true
			})
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
