package dataset

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"

	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"
	"github.com/zeebo/xxh3"

	"contraflow/io/internal/plainfile"
)

// parquetFile is what is kept of a parquet file between reads: no file handle, no page.
type parquetFile struct {
	path   string
	size   int64
	footer Hash128
	root   *node
	leaves []*node
	meta   *format.FileMetaData // nil once the chunks of the wanted columns are made
	rows   int64
	ends   []int64 // of each row group: how many rows it and those before it have
}

// openParquet reads and checks the footer.
func openParquet(path string) (*parquetFile, error) {
	f, size, err := openFile(path, -1)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	p := &parquetFile{path: path, size: size}
	if err := guard(func() error { return p.readFooter(f) }); err != nil {
		return nil, p.wrap(err)
	}
	return p, nil
}

// openFile opens a file for reading; a size that isn't want any more (unless that is -1) is an error: the row ids, and
// with them the order of the data, would no longer be what the run began with.
func openFile(path string, want int64) (*os.File, int64, error) {
	if want < 0 {
		if err := plainfile.Here(path); errors.Is(err, plainfile.ErrElsewhere) {
			return nil, 0, err
		}
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) && want < 0 {
		err = fail(ErrNoFiles, "%w", err)
	}
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err == nil && info.IsDir() {
		if said := savedByDatasets(path); said != "" {
			err = fail(ErrNoFiles, "%s", said)
		} else {
			err = fail(ErrNoFiles, "%s is a folder: name its files, as in %s/*.parquet", path, path)
		}
	}
	if err == nil && want >= 0 && info.Size() != want {
		err = fail(ErrCorrupt, "%s has changed while it was in use: %d bytes, before %d", path, info.Size(), want)
	}
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, info.Size(), nil
}

// guard turns a panic below the reading boundary into an error. Nothing here is known to panic; codecs of other modules
// read what may be damaged.
func guard(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("decoding it failed: %v", p)
		}
	}()
	return f()
}

func (p *parquetFile) wrap(err error) error {
	return asCorrupt(fmt.Errorf("%s: %w", p.path, err))
}

func (p *parquetFile) wrapColumn(group int, column string, err error) error {
	return asCorrupt(fmt.Errorf("%s: row group %d, column %q: %w", p.path, group, column, err))
}

// asCorrupt marks an error as the file's fault, unless the operating system's or already told apart.
func asCorrupt(err error) error {
	var system *fs.PathError
	var known *failure
	if errors.As(err, &system) || errors.As(err, &known) && known.kind != ErrCorrupt {
		return err
	}
	return fail(ErrCorrupt, "%w", err)
}

const magic = "PAR1"

func (p *parquetFile) readFooter(f io.ReaderAt) error {
	if p.size < 12 {
		return fmt.Errorf("%d bytes are not a parquet file", p.size)
	}
	var head [4]byte
	var tail [8]byte
	if _, err := f.ReadAt(head[:], 0); err != nil {
		return err
	}
	if _, err := f.ReadAt(tail[:], p.size-8); err != nil {
		return err
	}
	switch {
	case string(tail[4:]) == "PARE":
		return errors.New("encrypted parquet files can't be read")
	case string(head[:]) != magic:
		return errors.New("not a parquet file: it doesn't begin with PAR1")
	case string(tail[4:]) != magic:
		return errors.New("the file is cut off, or still being written: it doesn't end with PAR1")
	}
	n := int64(binary.LittleEndian.Uint32(tail[:]))
	if n > p.size-12 {
		return fmt.Errorf("a footer of %d bytes in a file of %d", n, p.size)
	}
	footer := make([]byte, n)
	if _, err := f.ReadAt(footer, p.size-8-n); err != nil {
		return err
	}
	p.footer = hashBytes(footer)
	if err := checkThrift(footer); err != nil {
		return fmt.Errorf("its footer: %w", err)
	}
	p.meta = new(format.FileMetaData)
	var protocol thrift.CompactProtocol
	if err := thrift.NewDecoder(protocol.NewReaderFromBytes(footer)).Decode(p.meta); err != nil {
		return fmt.Errorf("its footer: %w", err)
	}
	var err error
	if p.root, p.leaves, err = buildSchema(p.meta.Schema); err != nil {
		return err
	}
	for i, g := range p.meta.RowGroups {
		if len(g.Columns) != len(p.leaves) {
			return fmt.Errorf("row group %d has %d columns, the schema %d", i, len(g.Columns), len(p.leaves))
		}
		if g.NumRows < 0 || p.rows+g.NumRows < p.rows {
			return fmt.Errorf("row group %d has %d rows", i, g.NumRows)
		}
		p.rows += g.NumRows
		p.ends = append(p.ends, p.rows)
	}
	if p.rows != p.meta.NumRows {
		return fmt.Errorf("its row groups have %d rows together, the footer says %d", p.rows, p.meta.NumRows)
	}
	return nil
}

// column finds a column by name and shape. It has no leaf where the node is no column of scalars or of lists of these.
func (p *parquetFile) column(name string) (column, *node, error) {
	found := p.root.find(name)
	switch len(found) {
	case 0:
		return column{}, nil, missingColumn(p.path, name, p.root.names())
	case 1:
		c, _ := found[0].asColumn()
		return c, found[0], nil
	}
	return column{}, nil, fail(ErrCorrupt, "%s has %d columns %q, and which one is meant can't be told: all but one need other names", p.path, len(found), name)
}

// chunk makes the reader's view of one column in one row group.
func (p *parquetFile) chunk(group int, col column) (*chunk, error) {
	g := &p.meta.RowGroups[group]
	cc := &g.Columns[col.leaf.leaf]
	m := &cc.MetaData
	c := &chunk{
		column: col, rows: g.NumRows, values: m.NumValues, size: m.TotalUncompressedSize, codec: m.Codec,
		offset: m.DataPageOffset, indexAt: cc.OffsetIndexOffset, indexLen: int64(cc.OffsetIndexLength),
	}
	if d := m.DictionaryPageOffset; d > 0 && d < c.offset {
		c.offset = d
	}
	c.end = c.offset + m.TotalCompressedSize
	switch {
	case cc.CryptoMetadata.Value != nil || len(cc.EncryptedColumnMetadata) > 0:
		return nil, errors.New("encrypted columns can't be read")
	case cc.FilePath != "":
		return nil, fmt.Errorf("its data is in another file (%s), which is not supported", cc.FilePath)
	case m.Type != col.leaf.elem.Type.V:
		return nil, fmt.Errorf("its values are %v, the schema says %v", m.Type, col.leaf.elem.Type.V)
	case m.Type == format.FixedLenByteArray && (col.leaf.width() <= 0 || col.leaf.width() > 1<<20):
		return nil, fmt.Errorf("values of %d bytes", col.leaf.width())
	case c.rows == 0:
		return c, nil
	case c.offset < 4 || m.TotalCompressedSize <= 0 || c.end > p.size || c.end < c.offset:
		return nil, fmt.Errorf("its pages are at bytes %d to %d of a file of %d: cut off?", c.offset, c.end, p.size)
	case c.values < c.rows || col.leaf.maxRep == 0 && c.values != c.rows:
		return nil, fmt.Errorf("%d values in %d rows", c.values, c.rows)
	case c.rows>>16 > c.end-c.offset: // a run of equal values is short, but not that short
		return nil, fmt.Errorf("%d rows in %d bytes", c.rows, c.end-c.offset)
	}
	return c, nil
}

// bytesPerRow estimates what a row of these columns takes in memory, from the footer.
func bytesPerRow(chunks []*chunk) int64 {
	var size, rows int64 = 0, 1
	for _, c := range chunks {
		if c != nil {
			size += max(c.size, 0)
			rows = max(rows, c.rows)
		}
	}
	return max(1, size/rows)
}

// hashPages adds to the fingerprint what parquet files hold in the columns in use, as it is stored: pages may change where the footer
// and the size do not (texts of equal lengths, no statistics), and a run that goes on would then train on other rows without a word.
//
// All bytes are hashed. Samples of them would miss the change of a few rows, times of modification change when a file is copied, and
// checksums of pages are optional and behind each page's header. The pass over JSON lines does the same. It costs a tenth of decoding: 2.9 GB/s
// on each thread from the page cache on a busy machine (BenchmarkFingerprint: 0.2 s a GB on two threads), else what the disk gives.
func (d *Dataset) hashPages(ctx context.Context) error {
	type stored struct {
		of    *dataFile
		chunk *chunk
		sum   Hash128
	}
	var all []stored
	for i := range d.files {
		f := &d.files[i]
		for g, chunks := range f.groups {
			if f.tokens != nil { // read in place of the texts
				chunks = chunks[d.firstNumber:]
				for _, t := range f.tokens[g] {
					chunks = append(chunks[:len(chunks):len(chunks)], t.hashes, t.ids, t.counts)
				}
			}
			for _, c := range chunks {
				if c != nil && c.rows > 0 {
					all = append(all, stored{of: f, chunk: c})
				}
			}
		}
	}
	err := forEach(runtime.GOMAXPROCS(0), len(all), func(i int) (err error) {
		if err = ctx.Err(); err == nil {
			all[i].sum, err = all[i].of.parquet.hashRange(all[i].chunk.offset, all[i].chunk.end)
		}
		return err
	})
	if err != nil {
		return err
	}
	h := xxh3.New128()
	fmt.Fprintln(h, d.hash)
	for _, s := range all {
		fmt.Fprintln(h, s.sum)
		s.of.content = hashBytes(fmt.Append(nil, s.of.content, s.sum))
	}
	if len(all) > 0 {
		d.hash = Hash128(h.Sum128())
	}
	return nil
}

// hashRange is the hash of a range of the file's bytes.
func (p *parquetFile) hashRange(from, to int64) (Hash128, error) {
	f, _, err := openFile(p.path, p.size)
	if err != nil {
		return Hash128{}, err
	}
	defer f.Close()
	h := xxh3.New128()
	if _, err := io.CopyBuffer(h, io.NewSectionReader(f, from, to-from), make([]byte, 256<<10)); err != nil {
		return Hash128{}, p.wrap(err)
	}
	return Hash128(h.Sum128()), nil
}
