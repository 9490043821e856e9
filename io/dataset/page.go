package dataset

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/bits"
	"slices"
	"sort"
	"sync"

	"github.com/parquet-go/parquet-go/format"
)

// Reading the pages of a column.
//
// parquet-go has a page reader, and this package used it until four things spoke against it:
//   - Files without an offset index (pyarrow's default, one row group per million rows) are only read from the start:
//     shuffling them decodes every page before the wanted one, each time. Here a chunk's page headers are walked once.
//   - A damaged length is allocated before it is read (gigabytes, or the end of the process), and some damage ends in a
//     panic or, in the assembly decoders, in a read beyond the buffer. Here every length is checked first.
//   - The dictionary's checksum is not verified when a reader starts in the middle.
//   - Texts are copied through a slice of values of 24 bytes each. Here they go from the decompressed page to the block.

// maxPageValues bounds the slots of a page; writers stop at 20,000 rows or 1 MiB.
const maxPageValues = 1 << 24

// chunk is one column of one row group.
type chunk struct {
	column
	offset, end int64 // of its pages, in the file
	rows        int64
	values      int64 // slots: a null and an empty list take one each
	size        int64 // uncompressed, by the footer
	codec       format.CompressionCodec
	indexAt     int64 // the offset index, if there is one
	indexLen    int64

	mu      sync.Mutex
	scanned bool
	dict    *pageInfo
	pages   []pageInfo
	counted int // pages[:counted] know their first row and rows
}

type pageInfo struct {
	pageHeader
	at       int64 // where the page's bytes start, after the header
	firstRow int64 // of the rows that start in this page
	starts   int64 // how many rows start in this page
	mid      bool  // its first slot continues a row of the page before
}

// scan walks the page headers. For flat columns, V2 pages and chunks with an offset index that also tells where each
// row is; in V1 pages of lists the rows have to be counted (see count).
func (c *chunk) scan(f io.ReaderAt) error {
	at := c.offset
	for slots := int64(0); slots < c.values; {
		h, err := readPageHeader(f, at, c.end)
		if err != nil {
			return fmt.Errorf("page header at byte %d: %w", at, err)
		}
		p := pageInfo{pageHeader: h, at: at + int64(h.headerBytes)}
		if err := c.checkHeader(&p, slots); err != nil {
			return fmt.Errorf("page header at byte %d: %w", at, err)
		}
		at = p.at + h.compressed
		switch h.kind {
		case pageData, pageDataV2:
			slots += h.values
			c.pages = append(c.pages, p)
		case pageDictionary:
			if c.dict != nil || len(c.pages) > 0 {
				return fmt.Errorf("page header at byte %d: a second dictionary", p.at)
			}
			c.dict = &p
		case pageIndex:
		default:
			return fmt.Errorf("page header at byte %d: pages of type %d are not known", p.at, h.kind)
		}
	}
	c.scanned = true
	if !c.list {
		for i := range c.pages {
			c.setRows(i, c.pages[i].values, false)
		}
		return nil
	}
	for i := range c.pages {
		if c.pages[i].kind == pageDataV2 {
			c.setRows(i, c.pages[i].rows, false)
		} else {
			break
		}
	}
	if c.counted < len(c.pages) && c.indexLen > 0 {
		c.useOffsetIndex(f)
	}
	return nil
}

func (c *chunk) setRows(page int, starts int64, mid bool) {
	p := &c.pages[page]
	p.starts, p.mid = starts, mid
	if page == c.counted {
		if page > 0 {
			p.firstRow = c.pages[page-1].firstRow + c.pages[page-1].starts
		}
		c.counted++
	}
}

func (c *chunk) checkHeader(p *pageInfo, slotsBefore int64) error {
	h := &p.pageHeader
	switch {
	case h.compressed < 0 || p.at+h.compressed > c.end:
		return errors.New("the page reaches beyond its column")
	case h.size < 0 || h.size > maxPage || h.size > max(c.size, 16<<20):
		return fmt.Errorf("an uncompressed size of %d bytes", h.size)
	case h.values < 0 || h.values > maxPageValues:
		return fmt.Errorf("%d values in one page", h.values)
	case h.kind == pageDictionary || h.kind == pageIndex:
		return nil
	case slotsBefore+h.values > c.values:
		return fmt.Errorf("more values than the column has (%d)", c.values)
	case h.kind == pageDataV2 && (h.rows < 0 || h.rows > h.values || !c.list && h.rows != h.values):
		return fmt.Errorf("%d rows in %d values", h.rows, h.values)
	case h.kind == pageDataV2 && (h.repBytes < 0 || h.defBytes < 0 || h.repBytes+h.defBytes > min(h.compressed, h.size)):
		return errors.New("levels larger than their page")
	}
	return nil
}

// useOffsetIndex takes the first rows from the offset index if it describes exactly these pages. What it says is
// checked again when a page is read.
func (c *chunk) useOffsetIndex(f io.ReaderAt) {
	if c.indexAt <= 0 || c.indexLen > 64<<20 {
		return
	}
	b := make([]byte, c.indexLen)
	if _, err := f.ReadAt(b, c.indexAt); err != nil {
		return
	}
	index, err := parseOffsetIndex(b)
	if err != nil || len(index) != len(c.pages) {
		return
	}
	for i := range index {
		end := c.rows
		if i+1 < len(index) {
			end = index[i+1].firstRow
		}
		if index[i].offset+int64(c.pages[i].headerBytes) != c.pages[i].at || end < index[i].firstRow || i == 0 && index[i].firstRow != 0 {
			return
		}
	}
	for i := range index {
		end := c.rows
		if i+1 < len(index) {
			end = index[i+1].firstRow
		}
		c.counted = i
		c.setRows(i, end-index[i].firstRow, false)
	}
}

// readPageHeader reads the header at offset at. Headers take tens of bytes, more when a writer put statistics there.
func readPageHeader(f io.ReaderAt, at, end int64) (pageHeader, error) {
	var h pageHeader
	for _, size := range []int64{1 << 10, 64 << 10, 16 << 20} {
		b := make([]byte, min(size, max(0, end-at)))
		n, err := f.ReadAt(b, at)
		if n < len(b) {
			if err == io.EOF {
				return h, io.ErrUnexpectedEOF
			}
			return h, err
		}
		if h, err = parsePageHeader(b); err == nil {
			return h, nil
		}
		if int64(len(b)) < size {
			break
		}
	}
	return h, errThrift
}

// columnReader reads rows of one chunk. It keeps the page it is in: reading on costs nothing twice.
type columnReader struct {
	f     io.ReaderAt
	c     *chunk
	index int // of the current page in c.pages; -1 before the first
	page  page
	dict  dictionary

	raw, plain []byte // scratch
	sparse     bool   // its pages are, where they can be: for readFixed
}

// dictionary holds the distinct values of a chunk.
type dictionary struct {
	loaded bool
	n      int
	data   []byte
	spans  []span // of byte arrays
}

// page is a decoded page with a position in it.
type page struct {
	slots    int
	rep, def []uint8 // nil: every slot starts a row; every slot holds a value
	form     valueForm
	data     []byte   // plain: lengths and bytes; ended: bytes; fixed: width bytes a value
	indices  []uint32 // of the dictionary
	ends     []uint32
	values   int // that are not null

	slot, value, off int   // position: slots, values, bytes of data
	row              int64 // the next row to start, in the row group

	// A sparse page has no null and no empty list, and its levels are not unpacked (fixedlists.go).
	sparse bool
	begins []uint32 // the slots that start a row
	begun  int      // position: of those

	repBuf, defBuf []uint8
	fixedBuf       []byte
}

type valueForm uint8

const (
	plainForm valueForm = iota // byte arrays, each after its length
	dictForm                   // indices
	endedForm                  // byte arrays, ends apart
	fixedForm                  // width bytes a value; booleans take one
)

func (r *columnReader) reset(f io.ReaderAt, c *chunk) {
	if r.c != c {
		r.c, r.index = c, -1
		r.dict = dictionary{data: r.dict.data[:0], spans: r.dict.spans[:0]}
	}
	r.f = f
}

// seek makes the page current in which row starts, positioned at that row.
func (r *columnReader) seek(row int64) error {
	c := r.c
	if err := c.open(r.f); err != nil {
		return err
	}
	for {
		page, next := c.find(row)
		if page < 0 && next < 0 {
			return fmt.Errorf("its pages end before row %d of the row group", row)
		}
		if page < 0 { // V1 pages of lists: counting needs their levels
			if err := r.load(next); err != nil {
				return err
			}
			continue
		}
		if r.index != page || r.page.row > row {
			if err := r.load(page); err != nil {
				return err
			}
		}
		return r.page.skip(r.c, row)
	}
}

// open scans the chunk if nobody has yet.
func (c *chunk) open(f io.ReaderAt) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.scanned {
		return nil
	}
	c.pages, c.counted, c.dict = nil, 0, nil
	return c.scan(f)
}

// find returns the page in which row starts; or -1 and the page to count next; or twice -1.
func (c *chunk) find(row int64) (page, next int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.pages[:c.counted]
	i := sort.Search(len(known), func(i int) bool { return known[i].firstRow+known[i].starts > row })
	if i < len(known) {
		return i, -1
	}
	if i < len(c.pages) {
		return -1, i
	}
	return -1, -1
}

// settle compares what page i holds with what is known of it, or notes it, and returns the page's first row.
func (c *chunk) settle(i int, starts int64, mid bool) (firstRow int64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := &c.pages[i]
	if i >= c.counted {
		c.setRows(i, starts, mid)
	}
	switch {
	case starts != p.starts || mid != p.mid:
		return 0, fmt.Errorf("%d rows start here, its header or the index says %d", starts, p.starts)
	case p.firstRow+starts > c.rows:
		return 0, fmt.Errorf("more rows than the row group has (%d)", c.rows)
	case mid && i == 0:
		return 0, errors.New("it begins in the middle of a row")
	}
	return p.firstRow, nil
}

// follow makes the next page current if it holds rows before row to, or may hold the rest of row to-1.
func (r *columnReader) follow(to int64) (bool, error) {
	i := r.index + 1
	if i >= len(r.c.pages) {
		return false, nil
	}
	if r.page.row >= to {
		if !r.c.list {
			return false, nil
		}
		r.c.mu.Lock()
		whole := i < r.c.counted && !r.c.pages[i].mid
		r.c.mu.Unlock()
		if whole {
			return false, nil
		}
	}
	return true, r.load(i)
}

// load reads and decodes page i, checksum included.
func (r *columnReader) load(i int) error {
	p := &r.c.pages[i]
	r.index = -1
	err := r.decode(p)
	if err == nil {
		starts, mid := int64(r.page.slots), false
		if b := r.page.begins; r.page.sparse {
			starts, mid = int64(len(b)), r.page.slots > 0 && (len(b) == 0 || b[0] != 0)
		} else if r.page.rep != nil {
			starts = 0
			for _, l := range r.page.rep {
				if l == 0 {
					starts++
				}
			}
			mid = r.page.slots > 0 && r.page.rep[0] != 0
		}
		r.page.row, err = r.c.settle(i, starts, mid)
	}
	if err != nil {
		return fmt.Errorf("page %d at byte %d: %w", i, p.at-int64(p.headerBytes), err)
	}
	r.index = i
	return nil
}

// body reads a page's bytes into r.raw and verifies the checksum.
func (r *columnReader) body(p *pageInfo) error {
	r.raw = slices.Grow(r.raw[:0], int(p.compressed))[:p.compressed]
	if n, err := r.f.ReadAt(r.raw, p.at); n < len(r.raw) {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	if p.hasCRC && crc32.ChecksumIEEE(r.raw) != p.crc {
		return errors.New("the checksum does not match")
	}
	return nil
}

func (r *columnReader) decode(p *pageInfo) error {
	if err := r.body(p); err != nil {
		return err
	}
	c, pg := r.c, &r.page
	*pg = page{slots: int(p.values), indices: pg.indices[:0], ends: pg.ends[:0], begins: pg.begins[:0], repBuf: pg.repBuf, defBuf: pg.defBuf, fixedBuf: pg.fixedBuf[:0]}
	var repBytes, defBytes, data []byte
	var err error
	if p.kind == pageDataV2 {
		repBytes, defBytes, data = r.raw[:p.repBytes], r.raw[p.repBytes:p.repBytes+p.defBytes], r.raw[p.repBytes+p.defBytes:]
		if !p.plain {
			data, err = r.inflate(data, int(p.size-p.repBytes-p.defBytes))
		}
	} else {
		data, err = r.inflate(r.raw, int(p.size))
		if err == nil && c.leaf.maxRep > 0 {
			repBytes, data, err = levelsV1(data, p.repEncoding)
		}
		if err == nil && c.leaf.maxDef > 0 {
			defBytes, data, err = levelsV1(data, p.defEncoding)
		}
	}
	if err != nil {
		return err
	}
	pg.values = pg.slots
	nulls := false
	if m := c.leaf.maxDef; m > 0 {
		nulls = m >= 1<<7 || !constantRuns(defBytes, bits.Len8(m), pg.slots, m)
	}
	if pg.sparse = r.sparse && !nulls && c.leaf.maxRep == 1; pg.sparse {
		if pg.begins, err = rowStarts(pg.begins, repBytes, pg.slots); err != nil {
			return fmt.Errorf("repetition levels: %w", err)
		}
		return r.decodeValues(p, data)
	}
	if m := c.leaf.maxRep; m > 0 {
		pg.repBuf = slices.Grow(pg.repBuf[:0], pg.slots)[:pg.slots]
		pg.rep = pg.repBuf
		if err := levels(pg.rep, repBytes, m); err != nil {
			return fmt.Errorf("repetition levels: %w", err)
		}
	}
	if m := c.leaf.maxDef; nulls {
		pg.defBuf = slices.Grow(pg.defBuf[:0], pg.slots)[:pg.slots]
		pg.def = pg.defBuf
		if err := levels(pg.def, defBytes, m); err != nil {
			return fmt.Errorf("definition levels: %w", err)
		}
		pg.values = 0
		for _, l := range pg.def {
			if l == m {
				pg.values++
			}
		}
	}
	return r.decodeValues(p, data)
}

func (r *columnReader) inflate(src []byte, size int) ([]byte, error) {
	if r.c.codec == format.Uncompressed {
		return src, nil
	}
	if size == 0 {
		return nil, nil
	}
	r.plain = slices.Grow(r.plain[:0], size+slack)[:size]
	if err := decompress(r.c.codec, r.plain, src); err != nil {
		return nil, fmt.Errorf("decompressing: %w", err)
	}
	return r.plain, nil
}

// levelsV1 splits off levels that stand behind their length.
func levelsV1(data []byte, encoding int64) (levels, rest []byte, err error) {
	if encoding != int64(format.RLE) {
		return nil, nil, fmt.Errorf("levels in the encoding %v, which the format has given up", format.Encoding(encoding))
	}
	if len(data) < 4 {
		return nil, nil, errShort
	}
	n := int64(binary.LittleEndian.Uint32(data))
	if n > int64(len(data)-4) {
		return nil, nil, errShort
	}
	return data[4 : 4+n], data[4+n:], nil
}

func levels(dst []uint8, src []byte, most uint8) error {
	if err := decodeHybrid(dst, src, bits.Len8(most)); err != nil {
		return err
	}
	for _, l := range dst {
		if l > most {
			return fmt.Errorf("a level of %d, the schema allows %d", l, most)
		}
	}
	return nil
}

func (r *columnReader) decodeValues(p *pageInfo, data []byte) error {
	pg, leaf, enc := &r.page, r.c.leaf, format.Encoding(p.encoding)
	var decode func(leaf *node, enc format.Encoding, data []byte) (known bool, err error)
	switch {
	case pg.values > 0 && leaf.isNull():
		return errors.New("a value, of a type that has none")
	case enc == format.PlainDictionary || enc == format.RLEDictionary:
		return r.decodeIndices(data)
	case leaf.elem.Type.V == format.Boolean:
		decode = pg.decodeBooleans
	case leaf.width() == 0 || enc == format.DeltaByteArray && leaf.elem.Type.V == format.FixedLenByteArray:
		decode = pg.decodeTexts
	default:
		decode = pg.decodeFixed
	}
	known, err := decode(leaf, enc, data)
	if !known {
		err = fmt.Errorf("%s in the encoding %v is not known", leaf.scalarName(), enc)
	}
	return err
}

// decodeIndices reads values of the dictionary.
func (r *columnReader) decodeIndices(data []byte) error {
	pg, n := &r.page, r.page.values
	if err := r.loadDictionary(); err != nil {
		return err
	}
	pg.form = dictForm
	pg.indices = slices.Grow(pg.indices[:0], n)[:n]
	if n == 0 {
		return nil
	}
	if len(data) == 0 {
		return errShort
	}
	if err := decodeHybrid(pg.indices, data[1:], int(data[0])); err != nil {
		return err
	}
	for _, i := range pg.indices {
		if int64(i) >= int64(r.dict.n) {
			return fmt.Errorf("value %d of a dictionary of %d", i, r.dict.n)
		}
	}
	return nil
}

func (pg *page) decodeBooleans(_ *node, enc format.Encoding, data []byte) (known bool, err error) {
	pg.form = fixedForm
	pg.fixedBuf = slices.Grow(pg.fixedBuf, pg.values)[:pg.values]
	pg.data = pg.fixedBuf
	switch {
	case enc == format.Plain && len(data) < (pg.values+7)/8:
		return true, errShort
	case enc == format.Plain:
		unpack(pg.data, data, 1)
		return true, nil
	case enc == format.RLE:
		runs, _, err := levelsV1(data, int64(format.RLE))
		if err != nil {
			return true, err
		}
		return true, decodeHybrid(pg.data, runs, 1)
	}
	return false, nil
}

func (pg *page) decodeTexts(_ *node, enc format.Encoding, data []byte) (known bool, err error) {
	pg.form = endedForm
	switch enc {
	case format.Plain:
		pg.form, pg.data = plainForm, data
	case format.DeltaLengthByteArray:
		pg.data, pg.ends, err = deltaLengthText(pg.ends, data, pg.values)
	case format.DeltaByteArray:
		pg.data, pg.ends, err = deltaText(pg.ends, data, pg.values)
	default:
		return false, nil
	}
	return true, err
}

func (pg *page) decodeFixed(leaf *node, enc format.Encoding, data []byte) (known bool, err error) {
	pg.form = fixedForm
	width := leaf.width()
	integer := leaf.elem.Type.V == format.Int32 || leaf.elem.Type.V == format.Int64
	switch {
	case enc == format.Plain:
		if pg.data = data; len(data)/width < pg.values {
			err = errShort
		}
		return true, err
	case enc == format.ByteStreamSplit:
		pg.fixedBuf, err = joinBytes(pg.fixedBuf, data, pg.values, width)
	case enc == format.DeltaBinaryPacked && integer:
		var values []int64
		values, _, err = deltaInts(data, pg.values)
		for _, v := range values {
			if width == 4 {
				pg.fixedBuf = binary.LittleEndian.AppendUint32(pg.fixedBuf, uint32(v))
			} else {
				pg.fixedBuf = binary.LittleEndian.AppendUint64(pg.fixedBuf, uint64(v))
			}
		}
	default:
		return false, nil
	}
	pg.data = pg.fixedBuf
	return true, err
}

func (r *columnReader) loadDictionary() error {
	if r.dict.loaded {
		return nil
	}
	p := r.c.dict
	if p == nil {
		return errors.New("it needs a dictionary, and the column has none")
	}
	// The page that asks is in r.raw or r.plain: the dictionary is read with buffers of its own.
	own := columnReader{f: r.f, c: r.c, raw: r.dict.data[:0]}
	if err := own.body(p); err != nil {
		return fmt.Errorf("its dictionary: %w", err)
	}
	data, err := own.inflate(own.raw, int(p.size))
	if err != nil {
		return fmt.Errorf("its dictionary: %w", err)
	}
	d := dictionary{loaded: true, n: int(p.values), data: data, spans: r.dict.spans[:0]}
	if width := r.c.leaf.width(); width > 0 {
		if len(data)/width < d.n {
			return fmt.Errorf("its dictionary: %w", errShort)
		}
	} else {
		for off := 0; len(d.spans) < d.n; {
			from, to, err := plainText(data, off)
			if err != nil {
				return fmt.Errorf("its dictionary: %w", err)
			}
			d.spans = append(d.spans, span{uint32(from), uint32(to - from)})
			off = to
		}
	}
	r.dict = d
	return nil
}
