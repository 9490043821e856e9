package dataset

import (
	"context"
	"errors"
	"runtime"
	"sync"
)

// Index holds the identity and the length of every text of a dataset, in the order of its rows. It takes 20 bytes per
// text (and 4 per row and list column) for as long as it lives, outside the Go heap: a million rows of query, positive and
// one negative take 60 MB. It is safe for concurrent use.
type Index struct {
	d      *Dataset
	blocks [][]indexColumn // per block, per source column of texts
	bad    []*RowError     // ascending
}

type indexColumn struct {
	starts  []uint32 // lists only, as in textColumn
	hashes  []Hash128
	lengths []uint32
}

// IndexConfig says how the first pass runs.
type IndexConfig struct {
	Threads  int                     // 0: all processors
	Progress func(done, total int64) // rows; called from several goroutines, one at a time; may be nil
	SkipBad  bool                    // collect what can't be used ([Index.Bad]) instead of ending with the first of it
}

// Index reads all texts once and checks each ([Block.Check]): the first row that can't be used, in the order of rows, is
// the error, unless SkipBad is set. Then that is no error, nor is a block that can't be decoded, whose rows are all bad. What remains is what no-duplicates batches and length bucketing need to know.
func (d *Dataset) Index(ctx context.Context, cfg IndexConfig) (*Index, error) {
	if cfg.Threads <= 0 {
		cfg.Threads = runtime.GOMAXPROCS(0)
	}
	x := &Index{d: d, blocks: make([][]indexColumn, len(d.blocks))}
	// Runs of blocks, so that pages at their borders are decoded once.
	run := max(1, min(16, len(d.blocks)/(4*cfg.Threads)))
	runs := (len(d.blocks) + run - 1) / run
	memory := new(slab)
	runtime.AddCleanup(x, (*slab).release, memory)
	bad := make([][]*RowError, len(d.blocks))
	var mu sync.Mutex
	var done int64
	err := forEach(cfg.Threads, runs, func(i int) error {
		r := d.NewScanner()
		defer r.Close()
		var b Block
		for k := i * run; k < min(len(d.blocks), (i+1)*run); k++ {
			err := r.Read(ctx, k, &b)
			switch {
			case cfg.SkipBad && errors.Is(err, ErrCorrupt):
				bad[k] = d.allBad(k, err)
			case err != nil:
				return err
			default:
				if bad[k] = b.badRows(); len(bad[k]) > 0 && !cfg.SkipBad {
					return bad[k][0]
				}
				x.blocks[k] = b.index(memory)
			}
			if cfg.Progress != nil {
				mu.Lock()
				done += int64(d.blocks[k].rows)
				cfg.Progress(done, d.Rows())
				mu.Unlock()
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, rows := range bad {
		x.bad = append(x.bad, rows...)
	}
	return x, nil
}

// Bad lists the rows that can't be used, ascending, with the reasons; none unless SkipBad was set.
func (x *Index) Bad() []*RowError { return x.bad }

// Skip are the ids of those rows, as [SamplerConfig] takes them.
func (x *Index) Skip() (rows []int64) {
	for _, b := range x.bad {
		rows = append(rows, b.Row)
	}
	return rows
}

func (b *Block) badRows() (bad []*RowError) {
	for row := range b.Rows {
		if column, reason := b.check(row); reason != "" {
			bad = append(bad, b.d.rowError(b.First+int64(row), column, reason))
		}
	}
	return bad
}

// allBad says that none of a block's rows can be read.
func (d *Dataset) allBad(block int, err error) (bad []*RowError) {
	b := &d.blocks[block]
	for i := range int64(b.rows) {
		bad = append(bad, d.rowError(b.first+i, "", err.Error()))
	}
	return bad
}

// index keeps what is known of the texts; of those that are null, nothing.
func (b *Block) index(memory *slab) []indexColumn {
	cols := make([]indexColumn, len(b.texts))
	for i := range b.texts {
		if i < b.d.firstNumber && !b.d.sources[i].direct {
			continue // only a template's part
		}
		t, c := &b.texts[i], &cols[i]
		if t.list {
			c.starts = cut[uint32](memory, len(t.starts))
			copy(c.starts, t.starts)
		}
		c.hashes = cut[Hash128](memory, len(t.values))
		c.lengths = cut[uint32](memory, len(t.values))
		for k, s := range t.values {
			if s.n != null {
				c.hashes[k], c.lengths[k] = b.identity(t, s), s.n
			}
		}
	}
	return cols
}

// Hashes appends the identities of the texts that a row uses in an epoch, in the order of [Dataset.Columns]. For lists the
// choice is the one that a [Reader] with the same seed makes.
func (x *Index) Hashes(dst []Hash128, seed uint64, epoch int, row int64) []Hash128 {
	x.each(seed, epoch, row, func(c *indexColumn, i int) { dst = append(dst, c.hashes[i]) })
	return dst
}

// Lengths appends the lengths in bytes of those texts.
func (x *Index) Lengths(dst []uint32, seed uint64, epoch int, row int64) []uint32 {
	x.each(seed, epoch, row, func(c *indexColumn, i int) { dst = append(dst, c.lengths[i]) })
	return dst
}

// Longest is the length in bytes of the longest text of all rows.
func (x *Index) Longest() (most int) {
	for _, cols := range x.blocks {
		for _, c := range cols {
			for _, n := range c.lengths {
				most = max(most, int(n))
			}
		}
	}
	runtime.KeepAlive(x)
	return most
}

func (x *Index) each(seed uint64, epoch int, row int64, use func(c *indexColumn, i int)) {
	b := x.d.blockOf(row)
	at := int(row - x.d.blocks[b].first)
	for role, r := range x.d.roles {
		c := &x.blocks[b][r.source]
		if c.starts == nil {
			use(c, at)
			continue
		}
		from := int(c.starts[at])
		var picks [16]int
		for _, p := range x.d.pick(picks[:0], seed, epoch, row, role, int(c.starts[at+1])-from) {
			use(c, from+p)
		}
	}
	runtime.KeepAlive(x) // and with it the memory of its columns
}
