package dataset

import (
	"context"
	"fmt"
	"math/bits"
	"runtime"
	"slices"
	"unsafe"
)

// Example is a row ready for training.
type Example struct {
	Row    int64     // row id, another one for every row: dropout is drawn by it, and [Dataset.Locate] says where it is at rest
	Texts  []string  // in the order of [Dataset.Columns]; nil with Source.Tokens
	IDs    [][]int32 // likewise, with Source.Tokens
	Hashes []Hash128 // of Texts, by which duplicates are known: [Example.SetText] changes both
	Starts []int32   // column c's texts are Starts[c] to Starts[c+1]-1; nil: no column is ragged, each has one

	Weight  float32
	Label   float32
	Scores  []float32 // of the documents, Texts[1:]; nil if the source names none
	Teacher []float32 // a teacher's embedding; likewise
}

// NewExample is a row of one's own with a text for each column, the query first, and the weight 1: for sources of which not all rows
// are there at once, as those of [FromRows] are.
func NewExample(row int64, texts ...string) Example {
	e := Example{Row: row, Texts: slices.Clone(texts), Hashes: make([]Hash128, len(texts)), Weight: 1}
	for i, text := range texts {
		e.Hashes[i] = HashText(text)
	}
	return e
}

// SetText puts another text in the place of text i, with its hash. It panics where there is no text i, as of a row of token ids (Source.Tokens).
func (e *Example) SetText(i int, text string) {
	switch {
	case e.Texts == nil && e.IDs != nil:
		panic(fmt.Sprintf("dataset.Example.SetText: row %d comes as token ids (Source.Tokens), whose texts can't be changed", e.Row))
	case i < 0 || i >= len(e.Texts):
		panic(fmt.Sprintf("dataset.Example.SetText: row %d has %d texts, and none is number %d", e.Row, len(e.Texts), i))
	}
	e.Texts[i], e.Hashes[i] = text, HashText(text)
}

// Column returns which of Texts are column c's.
func (e *Example) Column(c int) (from, to int) {
	if e.Starts == nil {
		return c, c + 1
	}
	return int(e.Starts[c]), int(e.Starts[c+1])
}

// ReaderConfig says how rows are fetched.
type ReaderConfig struct {
	Seed       uint64 // of the choices from lists; the sampler's
	Window     Window // the sampler's: what the cache should hold
	CacheBytes int64  // decoded blocks kept for the next batches; 0: one and a half windows
	Threads    int    // that decode blocks; 0: all processors
}

// Reader fetches rows by id. It keeps the blocks of the current window; a row of an old block (one that no-duplicates
// deferred, say) has its block read again. Its texts are copies: nothing it returns is changed by later calls or keeps a
// block in memory. Ids are not: they lie in their blocks, 2 MiB or so each, which nothing changes and which live as long as one of
// their rows is held. Whoever trains packs them into a batch at once, and that is the one time that they are copied.
// For one consumer; it runs no goroutine between calls.
type Reader struct {
	d       *Dataset
	cfg     ReaderConfig
	cache   map[int]*cachedBlock
	bytes   int64
	calls   int64
	spare   []*Block
	readers []*Scanner
	arena   int // bytes of text in the last call
}

type cachedBlock struct {
	*Block
	bytes int64
	used  int64 // the last call that needed it
}

// NewReader returns a reader with an empty cache.
func (d *Dataset) NewReader(cfg ReaderConfig) *Reader {
	if cfg.CacheBytes <= 0 {
		cfg.CacheBytes = d.windowMemory(cfg.Window) * 3 / 2
	}
	if cfg.Threads <= 0 {
		cfg.Threads = runtime.GOMAXPROCS(0)
	}
	r := &Reader{d: d, cfg: cfg, cache: map[int]*cachedBlock{}}
	for range cfg.Threads {
		r.readers = append(r.readers, d.NewScanner())
	}
	return r
}

// windowMemory estimates what the blocks of a window take.
func (d *Dataset) windowMemory(w Window) int64 {
	w = w.orDefault()
	var bytes, most int64
	for i := range d.blocks {
		bytes += d.blocks[i].bytes
		most = max(most, d.blocks[i].bytes)
	}
	overhead := int64(8 * (d.perRow + 1)) // spans
	perRow := bytes/d.Rows() + overhead
	return min(w.Bytes*(perRow+overhead)/perRow, int64(w.Rows)*perRow) + most
}

// Close closes files and empties the cache.
func (r *Reader) Close() error {
	for _, b := range r.readers {
		b.Close()
	}
	r.cache, r.bytes, r.spare = map[int]*cachedBlock{}, 0, nil
	return nil
}

// request is one of the rows asked for.
type request struct {
	row int64
	pos int // in the answer
}

// wantedBlock is a block with those of its rows that were asked for.
type wantedBlock struct {
	block int
	rows  []request
}

// fetch is one call's answer in the making.
type fetch struct {
	d        *Dataset
	seed     uint64
	epoch    int
	examples []Example
	first    []int      // of each example: its first text
	count    []int      // of each example: its texts
	spans    []textSpan // of the examples' texts in arena
	arena    []byte
	ids      [][]int32 // with tokens, instead
	hashes   []Hash128
	picks    []int
	scores   []float32 // of a row's texts
	touched  uint32
	err      error
	errPos   int
}

type textSpan struct{ off, n int }

// Read returns the rows in the order of their ids. The error is that of the first row in that order which can't be used
// (a *RowError) or whose block can't be read.
func (r *Reader) Read(ctx context.Context, epoch int, rows []int64) ([]Example, error) {
	r.calls++
	requests, err := r.d.inOrder(rows)
	if err != nil {
		return nil, err
	}
	n := len(rows) * r.d.perRow
	f := &fetch{
		d: r.d, seed: r.cfg.Seed, epoch: epoch, errPos: len(rows),
		examples: make([]Example, len(rows)), first: make([]int, len(rows)), count: make([]int, len(rows)),
		hashes: make([]Hash128, 0, n),
	}
	if r.d.tokens != nil {
		f.ids = make([][]int32, 0, n)
	} else {
		f.spans, f.arena = make([]textSpan, 0, n), make([]byte, 0, r.arena+r.arena/16)
	}
	var missing []wantedBlock
	for len(requests) > 0 {
		block := r.d.blockOf(requests[0].row)
		first, n := r.d.BlockRows(block)
		end := 1
		for end < len(requests) && requests[end].row < first+int64(n) {
			end++
		}
		group := requests[:end]
		requests = requests[end:]
		if c := r.cache[block]; c != nil {
			c.used = r.calls
			f.take(c.Block, group)
		} else {
			missing = append(missing, wantedBlock{block, group})
		}
	}
	for len(missing) > 0 {
		groups := missing[:min(len(missing), r.cfg.Threads)]
		missing = missing[len(groups):]
		blocks := make([]*Block, len(groups))
		errs := make([]error, len(groups))
		for i := range groups {
			blocks[i] = r.take()
		}
		forEach(r.cfg.Threads, len(groups), func(i int) error {
			errs[i] = r.readers[i].Read(ctx, groups[i].block, blocks[i])
			return nil // the first row's in the order of the answer counts
		})
		for i, g := range groups {
			if errs[i] != nil {
				f.fail(errs[i], slices.MinFunc(g.rows, func(a, b request) int { return a.pos - b.pos }).pos)
				continue
			}
			f.take(blocks[i], g.rows)
			r.keep(g.block, blocks[i])
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	if f.err != nil {
		return nil, f.err
	}
	r.arena = len(f.arena)
	return f.finish(), nil
}

// inOrder are the requests for rows, by row and so by block. Row and place are sorted as one number: at a third of what a comparing function takes.
func (d *Dataset) inOrder(rows []int64) ([]request, error) {
	shift := bits.Len(uint(len(rows)))
	if bits.Len64(uint64(d.Rows()))+shift > 63 {
		return nil, fmt.Errorf("%d rows at once of a dataset of %d", len(rows), d.Rows())
	}
	keys := make([]int64, len(rows))
	for i, row := range rows {
		if row < 0 || row >= d.Rows() {
			return nil, fmt.Errorf("row %d: the dataset has rows 0 to %d", row, d.Rows()-1)
		}
		keys[i] = row<<shift | int64(i)
	}
	slices.Sort(keys)
	requests := make([]request, len(rows))
	for i, key := range keys {
		requests[i] = request{key >> shift, int(key & (1<<shift - 1))}
	}
	return requests, nil
}

// take returns a block to decode into.
func (r *Reader) take() *Block {
	if n := len(r.spare); n > 0 {
		b := r.spare[n-1]
		r.spare = r.spare[:n-1]
		return b
	}
	return new(Block)
}

// keep puts a block into the cache; the least recently used ones leave it.
func (r *Reader) keep(id int, b *Block) {
	c := &cachedBlock{b, b.memory(), r.calls}
	r.cache[id] = c
	r.bytes += c.bytes
	for r.bytes > r.cfg.CacheBytes && len(r.cache) > 1 {
		oldest := -1
		for k, c := range r.cache {
			if k != id && (oldest < 0 || c.used < r.cache[oldest].used || c.used == r.cache[oldest].used && k < oldest) {
				oldest = k
			}
		}
		old := r.cache[oldest]
		delete(r.cache, oldest)
		r.bytes -= old.bytes
		if len(r.spare) < r.cfg.Threads && r.d.tokens == nil {
			r.spare = append(r.spare, old.Block)
		}
	}
}

// memory returns what the block holds, in bytes.
func (b *Block) memory() int64 {
	n := cap(b.raw)
	for i := range b.numbers {
		n += 4*cap(b.numbers[i].values) + 4*cap(b.numbers[i].starts)
	}
	for i := range b.texts {
		t := &b.texts[i]
		n += 8*cap(t.values) + 4*cap(t.starts) + 4*cap(t.memo)
		if b.raw == nil || i >= b.d.firstNumber {
			n += cap(t.arena)
		}
	}
	return int64(n)
}

func (f *fetch) fail(err error, pos int) {
	if pos < f.errPos {
		f.err, f.errPos = err, pos
	}
}

// take takes the requested rows out of a block.
func (f *fetch) take(b *Block, group []request) {
	f.touched += b.touch(group)
	for _, q := range group {
		at := int(q.row - b.First)
		if err := b.Check(at); err != nil {
			f.fail(err, q.pos)
			continue
		}
		e := &f.examples[q.pos]
		*e = Example{Row: q.row, Weight: b.Weight(at), Label: b.Label(at)}
		if t := b.teacher(at); t != nil {
			e.Teacher = append([]float32(nil), t...)
		}
		f.scores = b.Scores(f.scores[:0], at)
		if len(f.scores) > 0 {
			e.Scores = make([]float32, 0, f.d.perRow)
		}
		first, document := len(f.hashes), 0 // of the row's documents, the role's first
		f.first[q.pos] = first
		for role, rc := range f.d.roles {
			if f.d.ragged {
				for k := range max(1, rc.picks) {
					e.Starts = append(e.Starts, int32(len(f.hashes)-first+k))
				}
			}
			t := &b.texts[rc.source]
			list := t.row(at)
			f.picks = append(f.picks[:0], 0)
			if t.list {
				f.picks = f.d.pick(f.picks[:0], f.seed, f.epoch, q.row, role, len(list))
			}
			for _, p := range f.picks {
				text := t.bytes(list[p])
				f.hashes = append(f.hashes, b.identity(t, list[p]))
				if f.d.tokens != nil {
					f.ids = append(f.ids, idsOf(text))
				} else {
					f.spans = append(f.spans, textSpan{len(f.arena), len(text)})
					f.arena = append(f.arena, text...)
				}
				if len(f.scores) > 0 && rc.role != Query {
					e.Scores = append(e.Scores, f.scores[document+p])
				}
			}
			if rc.role != Query && f.d.src.Documents == "" { // of which positive and negatives are one list
				document += len(list)
			}
		}
		f.count[q.pos] = len(f.hashes) - first
		if f.d.ragged {
			e.Starts = append(e.Starts, int32(f.count[q.pos]))
		}
	}
}

// touch reads a byte of each cache line that the rows' texts are in. They are wherever the shuffle wants them, mostly not in a cache: here
// a dozen are waited for at a time, copied one text after the other they would be waited for one by one. The sum is there to be used.
func (b *Block) touch(group []request) (sum uint32) {
	const line = 64
	ahead := uint32(0)
	if b.d.tokens != nil {
		ahead = hashSize
	}
	for i := range b.texts { // where they are
		t := &b.texts[i]
		for _, q := range group {
			if at := int(q.row - b.First); t.list {
				sum += t.starts[at]
			} else {
				sum += t.values[at].n
			}
		}
	}
	for _, q := range group {
		for i := range b.texts {
			t := &b.texts[i]
			if t.of != nil { // by way of a table of places, which would be waited for
				continue
			}
			for _, s := range t.row(int(q.row - b.First)) {
				if s.n == null {
					continue
				}
				for k := s.off - ahead; k < s.off+s.n; k += line {
					sum += uint32(t.arena[k])
				}
			}
		}
	}
	return sum
}

// finish makes strings of what was copied: the arena moves no more.
func (f *fetch) finish() []Example {
	texts := make([]string, len(f.spans))
	for i, s := range f.spans {
		texts[i] = unsafe.String(unsafe.SliceData(f.arena[s.off:]), s.n)
	}
	for i := range f.examples {
		e, from, to := &f.examples[i], f.first[i], f.first[i]+f.count[i]
		if e.Hashes = f.hashes[from:to:to]; f.d.tokens != nil {
			e.IDs = f.ids[from:to:to]
		} else {
			e.Texts = texts[from:to:to]
		}
	}
	return f.examples
}
