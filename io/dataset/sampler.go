package dataset

import (
	"fmt"
	"slices"

	"contraflow/io/spelling"
)

// SamplerConfig says how rows become contrastive batches.
type SamplerConfig struct {
	Seed         uint64
	GlobalSize   int  // rows of a batch, over all replicas (batch.global_size)
	Epochs       int  // at least 1
	Shuffle      bool // data.shuffle
	Window       Window
	NoDuplicates bool // no text twice in a batch, in whatever column (batch.no_duplicates)
	DropLast     bool // leave out what doesn't fill a batch at an epoch's end (batch.drop_last)

	// Lengths makes batches of rows of similar length (batch.by_length); nil: lengths don't matter. It needs Shuffle.
	Lengths TextLengths
	// Skip are rows that are left out because they can't be used ([Index.Bad]), ascending.
	Skip []int64

	// Counts remembers how many batches epochs have, and may be shared: samplers of other goroutines, as those of the ranks of a process, then count none
	// again. nil: its own.
	Counts *Counts
	// Counting, if not nil, is told from time to time how many rows of an epoch have been gone through, where [Sampler.Len] takes long.
	Counting func(done, total int64)
}

// TextLengths gives the lengths of the texts that a row uses in an epoch: an [Index] does.
type TextLengths interface {
	Lengths(dst []uint32, seed uint64, epoch int, row int64) []uint32
}

// TextHashes gives the identities of the texts that a row uses in an epoch: an [Index] does.
type TextHashes interface {
	Hashes(dst []Hash128, seed uint64, epoch int, row int64) []Hash128
}

// Batch is one contrastive batch, the same on every rank.
type Batch struct {
	Epoch int
	Index int     // within the epoch, from 0
	Rows  []int64 // row ids, in order

	// Of several datasets ([Mixer]):
	Source int // the one that the rows belong to
	Pass   int // over that one: what its lists are read by; Epoch if there is one dataset
}

// Stats counts what a sampler did since its start; a cursor carries it.
type Stats struct {
	Deferred int64 `json:"deferred"` // rows that had to wait for a later batch
	Dropped  int64 `json:"dropped"`  // rows that DropLast left out, over all finished epochs
}

// Sampler yields the batches of all epochs, a function of the data, the seed and the configuration alone: no rank, thread
// or time enters into it. Not for concurrent use.
//
// # No duplicates
//
// A batch is filled from the rows that wait, oldest first, and then from the epoch's order; a row that shares a text with
// the batch so far waits for the next one. (A row may hold one text twice; nothing can be done about that here.) Nothing
// is lost: what waits at the end of an epoch is tried again, and what doesn't fill a batch then is either dropped and
// counted (DropLast) or comes in smaller batches.
//
// Going through all waiting rows for every batch would be slow when one text occurs 100,000 times. So a row waits in the
// list of one text that kept it out. A list whose text is not in the current batch offers its oldest row, and only when
// that row turned out to be kept out by another text, the one after it. The result is the same; a batch looks at as many
// rows as it takes, and at no more others than there are texts in two batches. Memory: a batch's texts, and 16 bytes for
// every row that waits.
type Sampler struct {
	layout Layout
	texts  TextHashes
	cfg    SamplerConfig

	epoch   int
	batch   int
	pos     int64
	order   *Order
	waiting waitingRows
	used    textSet
	stats   Stats

	buf   []Hash128
	sizes []uint32
}

// NewSampler starts at the first batch of the first epoch. texts is needed for NoDuplicates only and may be nil otherwise.
//
// A batch larger than the data is an error with DropLast, as no batch would ever come; likewise when so many rows share
// texts that no batch without duplicates can be filled.
func NewSampler(l Layout, texts TextHashes, cfg SamplerConfig) (*Sampler, error) {
	rows := l.total()
	usable := rows - int64(len(cfg.Skip))
	switch {
	case cfg.GlobalSize < 1:
		return nil, fmt.Errorf("batch.global_size is %d: it must be at least 1", cfg.GlobalSize)
	case cfg.Epochs < 1:
		return nil, fmt.Errorf("train.epochs is %d: it must be at least 1", cfg.Epochs)
	case cfg.NoDuplicates && texts == nil:
		return nil, fmt.Errorf("batch.no_duplicates needs an index of the texts: Dataset.Index makes one")
	case rows == 0:
		return nil, fail(ErrNoFiles, "the data has no rows")
	case rows <= int64(len(cfg.Skip)):
		return nil, fail(ErrBadRow, "none of the %s can be used", spelling.Count(rows, "row", "rows"))
	case cfg.Lengths != nil && !cfg.Shuffle:
		return nil, fmt.Errorf("batch.by_length needs data.shuffle: rows in their own order have the lengths they have")
	case cfg.DropLast && int64(cfg.GlobalSize) > usable:
		return nil, fail(ErrBatchTooLarge, "batch.global_size is %d, but the data has only %s", cfg.GlobalSize, fewRows(usable))
	}
	if !cfg.NoDuplicates {
		texts = nil
	}
	cfg.Window = cfg.Window.orDefault()
	if cfg.Counts == nil {
		cfg.Counts = &Counts{}
	}
	s := &Sampler{layout: l, texts: texts, cfg: cfg}
	s.startEpoch(0)
	if cfg.NoDuplicates && cfg.DropLast {
		probe := s.fresh(0)
		if rows, full := probe.fill(); !full {
			return nil, fail(ErrBatchTooLarge, "batch.global_size is %d, but so many rows share texts that a batch without duplicates gets only %d of the %d rows: lower batch.global_size, or of rows with negatives (which they share too) negatives_per_query, or set batch.no_duplicates or batch.drop_last to false", cfg.GlobalSize, len(rows), probe.order.Len())
		}
	}
	return s, nil
}

// fewRows says what to do about data with fewer rows than a batch.
func fewRows(rows int64) string {
	if rows == 1 {
		return "1 row, which has no negatives: it takes more data"
	}
	return fmt.Sprintf("%d rows: lower batch.global_size, or set batch.drop_last to false", rows)
}

// fresh returns a sampler at the start of an epoch that shares nothing that changes.
func (s *Sampler) fresh(epoch int) *Sampler {
	f := &Sampler{layout: s.layout, texts: s.texts, cfg: s.cfg}
	f.startEpoch(epoch)
	return f
}

// Restart is a sampler of the same sequence at its beginning.
func (s *Sampler) Restart() *Sampler { return s.fresh(0) }

func (s *Sampler) startEpoch(epoch int) {
	s.epoch, s.batch, s.pos = epoch, 0, 0
	s.order = NewOrder(s.layout, s.cfg.Seed, epoch, s.cfg.Shuffle, s.cfg.Window)
	if s.cfg.Lengths != nil {
		s.order.byLength(s.cfg.GlobalSize, s.length)
	}
	s.waiting.clear()
}

// length is that of all texts of a row, in bytes.
func (s *Sampler) length(row int64) (n uint32) {
	s.sizes = s.cfg.Lengths.Lengths(s.sizes[:0], s.cfg.Seed, s.epoch, row)
	for _, l := range s.sizes {
		n += l
	}
	return n
}

// take returns the row at the epoch's position, and moves on; false for one that is skipped.
func (s *Sampler) take() (row int64, ok bool) {
	row = s.order.At(s.pos)
	s.pos++
	if len(s.cfg.Skip) == 0 {
		return row, true
	}
	_, bad := slices.BinarySearch(s.cfg.Skip, row)
	return row, !bad
}

// taken finds one of some rows, ascending, that the epoch's batches have had.
func (s *Sampler) taken(rows []int64) (row int64, ok bool) {
	for pos := int64(0); pos < s.pos && len(rows) > 0; pos++ {
		row = s.order.At(pos)
		if _, ok := slices.BinarySearch(rows, row); ok {
			return row, true
		}
	}
	return 0, false
}

// Next returns the next batch, and false after the last epoch's last.
func (s *Sampler) Next() (Batch, bool) {
	for s.epoch < s.cfg.Epochs {
		if s.pos < s.order.Len() || s.waiting.n > 0 {
			rows, full := s.fill()
			if full || len(rows) > 0 && !s.cfg.DropLast {
				b := Batch{Epoch: s.epoch, Pass: s.epoch, Index: s.batch, Rows: rows}
				s.batch++
				return b, true
			}
			s.stats.Dropped += int64(len(rows)) + int64(s.waiting.n)
		}
		s.nextEpoch()
	}
	return Batch{}, false
}

// leave ends the epoch at hand: what is left of it is dropped.
func (s *Sampler) leave() {
	for s.pos < s.order.Len() {
		if _, ok := s.take(); ok {
			s.stats.Dropped++
		}
	}
	s.stats.Dropped += int64(s.waiting.n)
	s.nextEpoch()
}

func (s *Sampler) nextEpoch() {
	if s.epoch+1 < s.cfg.Epochs {
		s.startEpoch(s.epoch + 1)
		return
	}
	s.epoch++
	s.batch, s.pos = 0, 0
	s.waiting.clear()
}

// fill takes the rows of the next batch. full is false when the epoch ends before the batch is full.
func (s *Sampler) fill() (rows []int64, full bool) {
	rows = make([]int64, 0, min(int64(s.cfg.GlobalSize), s.order.Len()))
	if s.texts == nil {
		for len(rows) < s.cfg.GlobalSize && s.pos < s.order.Len() {
			if row, ok := s.take(); ok {
				rows = append(rows, row)
			}
		}
		return rows, len(rows) == s.cfg.GlobalSize
	}
	s.used.clear()
	s.waiting.beginBatch()
	for len(rows) < s.cfg.GlobalSize {
		o, ok := s.waiting.next()
		if !ok {
			break
		}
		if s.used.has(o.text) {
			continue // nor can any other row of this list come into the batch
		}
		s.waiting.take(o.text)
		if s.admit(o.waitingRow) {
			rows = append(rows, o.row)
		} else {
			s.waiting.offerNext(o.text)
		}
	}
	for len(rows) < s.cfg.GlobalSize && s.pos < s.order.Len() {
		row, ok := s.take()
		if !ok {
			continue
		}
		w := s.waiting.arrive(row)
		if s.admit(w) {
			rows = append(rows, w.row)
		} else {
			s.stats.Deferred++
		}
	}
	return rows, len(rows) == s.cfg.GlobalSize
}

// admit puts a row's texts into the batch, or the row into the list of the first text that is there already.
func (s *Sampler) admit(w waitingRow) bool {
	s.buf = s.texts.Hashes(s.buf[:0], s.cfg.Seed, s.epoch, w.row)
	for _, h := range s.buf {
		if s.used.has(h) {
			s.waiting.put(h, w)
			return false
		}
	}
	for _, h := range s.buf {
		s.used.add(h)
	}
	return true
}

// Len returns the number of batches of an epoch, exactly. Without NoDuplicates it is rows/GlobalSize, rounded down with
// DropLast and up otherwise. With it, it depends on which rows meet, and is found by going through the epoch once (about
// a second per million rows; SamplerConfig.Counts remembers it).
func (s *Sampler) Len(epoch int) int64 {
	if epoch < 0 || epoch >= s.cfg.Epochs {
		return 0
	}
	rows, size := s.layout.total()-int64(len(s.cfg.Skip)), int64(s.cfg.GlobalSize)
	switch {
	case s.texts == nil && s.cfg.DropLast:
		return rows / size
	case s.texts == nil:
		return (rows + size - 1) / size
	}
	return s.cfg.Counts.of(s, epoch)
}

// Total returns the number of batches of all epochs, as Len does.
func (s *Sampler) Total() int64 {
	n := int64(0)
	for e := range s.cfg.Epochs {
		n += s.Len(e)
	}
	return n
}

// Cursor is a sampler's place between two batches. It is small: the rows that wait are what grows it.
type Cursor struct {
	Epoch    int     `json:"epoch"`
	Batch    int     `json:"batch"`             // the next one's index in the epoch
	Position int64   `json:"position"`          // rows taken from the epoch's order
	Pending  []int64 `json:"pending,omitempty"` // row ids that wait, oldest first
	Stats    Stats   `json:"stats"`

	Data         string `json:"data"` // fingerprint of the dataset
	Seed         uint64 `json:"seed"`
	GlobalSize   int    `json:"global_size"`
	Shuffle      bool   `json:"shuffle"`
	WindowRows   int    `json:"window_rows"`
	WindowBytes  int64  `json:"window_bytes"`
	NoDuplicates bool   `json:"no_duplicates"`
	DropLast     bool   `json:"drop_last"`
	ByLength     bool   `json:"by_length,omitempty"`
	Skipped      int    `json:"skipped,omitempty"` // rows that can't be used

	// Of several datasets: Epoch and Batch are the mixture's, all else is the parts'.
	Mixing string   `json:"mixing,omitempty"`
	Parts  []Cursor `json:"parts,omitempty"`
}

// Cursor returns the place before the batch that Next would return. A program that reads ahead takes it along with
// each batch. It costs O(n log n) in the rows that wait.
func (s *Sampler) Cursor() Cursor {
	c := s.cursor()
	c.Epoch, c.Batch, c.Position, c.Stats = s.epoch, s.batch, s.pos, s.stats
	c.Pending = s.waiting.rows()
	return c
}

// cursor returns a cursor with what must be equal to go on.
func (s *Sampler) cursor() Cursor {
	return Cursor{
		Data: s.layout.Fingerprint.String(), Seed: s.cfg.Seed, GlobalSize: s.cfg.GlobalSize, Shuffle: s.cfg.Shuffle,
		WindowRows: s.cfg.Window.Rows, WindowBytes: s.cfg.Window.Bytes, NoDuplicates: s.cfg.NoDuplicates, DropLast: s.cfg.DropLast,
		ByLength: s.cfg.Lengths != nil, Skipped: len(s.cfg.Skip),
	}
}

// Restore goes to a cursor's place: what follows is what would have followed there. It costs O(blocks) and the rows that
// wait, whatever the position. The number of epochs may have grown; anything else that differs is an error that names it.
func (s *Sampler) Restore(c Cursor) error {
	own := s.cursor()
	for _, f := range []struct {
		key       string
		was, here any
	}{
		{"the data (its files' names, columns or rows)", c.Data, own.Data},
		{"train.seed", c.Seed, own.Seed},
		{"batch.global_size", c.GlobalSize, own.GlobalSize},
		{"data.shuffle", c.Shuffle, own.Shuffle},
		{"the shuffle window's rows", c.WindowRows, own.WindowRows},
		{"the shuffle window's bytes", c.WindowBytes, own.WindowBytes},
		{"batch.no_duplicates", c.NoDuplicates, own.NoDuplicates},
		{"batch.drop_last", c.DropLast, own.DropLast},
		{"batch.by_length", c.ByLength, own.ByLength},
		{"the number of rows that can't be used", c.Skipped, own.Skipped},
	} {
		if f.was != f.here {
			return fail(ErrCursor, "the order of the data can't be continued: %s was %v and is %v now", f.key, f.was, f.here)
		}
	}
	rows := s.layout.total()
	bad := c.Epoch < 0 || c.Batch < 0 || c.Position < 0 || c.Position > rows || int64(len(c.Pending)) > c.Position ||
		slices.ContainsFunc(c.Pending, func(r int64) bool { return r < 0 || r >= rows })
	if bad || s.texts == nil && len(c.Pending) > 0 {
		return fail(ErrCursor, "the cursor (epoch %d, batch %d, position %d, %d rows waiting) is damaged: the data has %d rows", c.Epoch, c.Batch, c.Position, len(c.Pending), rows)
	}
	s.startEpoch(min(c.Epoch, s.cfg.Epochs))
	s.epoch, s.batch, s.pos, s.stats = c.Epoch, c.Batch, c.Position, c.Stats
	for _, row := range c.Pending {
		// Which of its texts a row waits for is forgotten; any will do, the first batch sorts it out.
		w := s.waiting.arrive(row)
		s.buf = s.texts.Hashes(s.buf[:0], s.cfg.Seed, s.epoch, row)
		s.waiting.put(s.buf[0], w)
	}
	return nil
}
