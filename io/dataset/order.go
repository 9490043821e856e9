package dataset

import (
	"cmp"
	"slices"
	"sort"
)

// The global order of an epoch: a function of (seed, epoch) from position to row, the same on every rank.
//
//	1. The blocks are put in random order.
//	2. Consecutive blocks of that order make a window, until it has Window.Rows rows or Window.Bytes bytes.
//	3. The rows of a window are put in random order.
//
// A run that reads along needs one window in memory, and any position can be entered at once: finding its window is a
// binary search, and the window's permutation is made from its own key. The price is that rows stay near those of the
// same block: a batch draws from a window's blocks (16 or more, unless the data is small), not from all of the data. Data
// sorted by topic with row groups much larger than a window is better shuffled once when it is written.

// Window bounds how much of the data is shuffled, and has to be held, at a time. Zeros mean 65,536 rows and 64 MiB.
type Window struct {
	Rows  int
	Bytes int64
}

func (w Window) orDefault() Window {
	if w.Rows <= 0 {
		w.Rows = 1 << 16
	}
	if w.Bytes <= 0 {
		w.Bytes = 64 << 20
	}
	return w
}

// Layout is what an order needs to know of a dataset: its blocks in the order of their rows.
type Layout struct {
	Rows        []int   // of each block
	Bytes       []int64 // of each block, about
	Fingerprint Hash128 // of the data
}

// Layout returns the dataset's blocks.
func (d *Dataset) Layout() Layout {
	l := Layout{Fingerprint: d.hash}
	for _, b := range d.blocks {
		l.Rows = append(l.Rows, int(b.rows))
		l.Bytes = append(l.Bytes, b.bytes)
	}
	return l
}

func (l Layout) total() int64 {
	n := int64(0)
	for _, r := range l.Rows {
		n += int64(r)
	}
	return n
}

// Order is the sequence of rows of one epoch. It keeps the window it was last asked about: not for concurrent use.
type Order struct {
	rows    int64
	shuffle bool
	seed    uint64
	epoch   int
	spans   []blockSpan // in permuted order
	windows []window

	current int // the window whose permutation is in perm
	perm    []uint32

	size   int                    // rows of a batch, if batches are to have rows of similar length
	length func(row int64) uint32 // likewise
}

type blockSpan struct {
	first int64 // row id
	begin int64 // position of its first row if windows were not shuffled
}

type window struct {
	begin, end int64 // positions
	span       int   // its first block in spans
}

// NewOrder makes the order of an epoch; shuffle false gives the rows as they are. It takes O(blocks) time.
func NewOrder(l Layout, seed uint64, epoch int, shuffle bool, w Window) *Order {
	o := &Order{shuffle: shuffle, seed: seed, epoch: epoch, current: -1, rows: l.total()}
	if !shuffle {
		return o
	}
	w = w.orDefault()
	firsts := make([]int64, len(l.Rows))
	for i := 1; i < len(firsts); i++ {
		firsts[i] = firsts[i-1] + int64(l.Rows[i-1])
	}
	s := keyed(seed, forBlocks, uint64(epoch))
	at, bytes := int64(0), int64(0)
	cur := window{}
	for _, b := range s.permutation(nil, len(l.Rows)) {
		o.spans = append(o.spans, blockSpan{first: firsts[b], begin: at})
		at += int64(l.Rows[b])
		bytes += l.Bytes[b]
		if at-cur.begin >= int64(w.Rows) || bytes >= w.Bytes {
			cur.end = at
			o.windows = append(o.windows, cur)
			cur, bytes = window{begin: at, span: len(o.spans)}, 0
		}
	}
	if at > cur.begin {
		cur.end = at
		o.windows = append(o.windows, cur)
	}
	return o
}

// Len returns the number of rows.
func (o *Order) Len() int64 { return o.rows }

// At returns the row at a position, 0 <= pos < Len(). Positions in one window after another cost a few nanoseconds;
// entering a window costs making its permutation (a millisecond for 65,536 rows).
func (o *Order) At(pos int64) int64 {
	if !o.shuffle {
		return pos
	}
	if o.current < 0 || pos < o.windows[o.current].begin || pos >= o.windows[o.current].end {
		o.current = sort.Search(len(o.windows), func(i int) bool { return o.windows[i].end > pos })
		w := &o.windows[o.current]
		s := keyed(o.seed, forWindow, uint64(o.epoch), uint64(o.current))
		o.perm = s.permutation(o.perm, int(w.end-w.begin))
		if o.length != nil {
			o.bucket()
		}
	}
	return o.row(o.perm[pos-o.windows[o.current].begin])
}

// row is the row that lies at the given place of the current window before it is shuffled.
func (o *Order) row(place uint32) int64 {
	w := &o.windows[o.current]
	inside := w.begin + int64(place)
	last := len(o.spans)
	if o.current+1 < len(o.windows) {
		last = o.windows[o.current+1].span
	}
	spans := o.spans[w.span:last]
	i := sort.Search(len(spans), func(i int) bool { return spans[i].begin > inside }) - 1
	return spans[i].first + inside - spans[i].begin
}

// byLength makes batches of rows of similar length, as far as randomness allows: within a window, the shuffled rows of
// bucketBatches batches are sorted by length, cut into batches, and these, and the rows of each, shuffled again. So which rows meet is
// still random, among those of similar length, and long and short batches come in random order. A batch that lies across two windows
// is left as it is.
func (o *Order) byLength(size int, length func(row int64) uint32) { o.size, o.length = size, length }

// bucketBatches is as many as transformers' LengthGroupedSampler has.
const bucketBatches = 50

func (o *Order) bucket() {
	w := &o.windows[o.current]
	size := int64(o.size)
	first := (w.begin + size - 1) / size * size // batches begin at multiples of their size
	for k := uint64(0); first+size <= w.end; k++ {
		n := min(bucketBatches, (w.end-first)/size)
		rows := o.perm[first-w.begin : first-w.begin+n*size]
		first += n * size
		lengths := make(map[uint32]uint32, len(rows))
		for _, p := range rows {
			lengths[p] = o.length(o.row(p))
		}
		slices.SortStableFunc(rows, func(a, b uint32) int { return cmp.Compare(lengths[a], lengths[b]) })
		s := keyed(o.seed, forLengths, uint64(o.epoch), uint64(o.current), k)
		sorted := slices.Clone(rows)
		at := 0
		for _, b := range s.permutation(nil, int(n)) {
			for _, i := range s.permutation(nil, int(size)) {
				rows[at] = sorted[int64(b)*size+int64(i)]
				at++
			}
		}
	}
}
