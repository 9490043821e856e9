package dataset

import (
	"slices"
)

// waitingRow is a row with its place among all rows that came up in the epoch.
type waitingRow struct {
	seq, row int64
}

// waitingRows holds the rows that wait, each in the list of one text. Lists and offers are binary heaps on seq; rows mostly
// arrive in order, which makes putting them O(1).
type waitingRows struct {
	lists  map[Hash128][]waitingRow
	offers []offer // the oldest row of each list whose text is free, in this batch
	n      int
	seq    int64
	spare  [][]waitingRow
}

type offer struct {
	waitingRow
	text Hash128
}

func (w *waitingRows) clear() {
	if w.lists == nil {
		w.lists = map[Hash128][]waitingRow{}
	}
	clear(w.lists)
	w.offers, w.n, w.seq = w.offers[:0], 0, 0
}

// arrive numbers a row that comes up for the first time.
func (w *waitingRows) arrive(row int64) waitingRow {
	w.seq++
	return waitingRow{w.seq, row}
}

// put makes a row wait for a text to be free.
func (w *waitingRows) put(text Hash128, r waitingRow) {
	list, ok := w.lists[text]
	if !ok && len(w.spare) > 0 {
		list = w.spare[len(w.spare)-1]
		w.spare = w.spare[:len(w.spare)-1]
	}
	w.lists[text] = push(list, r, waitingRow.before)
	w.n++
}

// beginBatch makes every list offer its oldest row: no text is taken yet.
func (w *waitingRows) beginBatch() {
	w.offers = w.offers[:0]
	for text, list := range w.lists {
		w.offers = append(w.offers, offer{list[0], text})
	}
	// In order of seq, which is a heap too. A map's order is random; seq isn't.
	slices.SortFunc(w.offers, func(a, b offer) int { return int(a.seq - b.seq) })
}

// next returns the oldest row on offer, which stays in its list. That list is what it was when the row was offered unless
// its text has come into the batch since: only then rows are put there.
func (w *waitingRows) next() (o offer, ok bool) {
	if len(w.offers) == 0 {
		return offer{}, false
	}
	o, w.offers = pop(w.offers, offer.before)
	return o, true
}

// take removes the oldest row of a text's list.
func (w *waitingRows) take(text Hash128) {
	_, list := pop(w.lists[text], waitingRow.before)
	w.n--
	if len(list) > 0 {
		w.lists[text] = list
		return
	}
	delete(w.lists, text)
	w.spare = append(w.spare, list)
}

// offerNext offers the oldest row of a text's list, if there is one.
func (w *waitingRows) offerNext(text Hash128) {
	if list := w.lists[text]; len(list) > 0 {
		w.offers = push(w.offers, offer{list[0], text}, offer.before)
	}
}

// rows returns the rows that wait, oldest first.
func (w *waitingRows) rows() []int64 {
	all := make([]waitingRow, 0, w.n)
	for _, list := range w.lists {
		all = append(all, list...)
	}
	slices.SortFunc(all, func(a, b waitingRow) int { return int(a.seq - b.seq) })
	rows := make([]int64, len(all))
	for i, r := range all {
		rows[i] = r.row
	}
	return rows
}

func (a waitingRow) before(b waitingRow) bool { return a.seq < b.seq }
func (a offer) before(b offer) bool           { return a.seq < b.seq }

// push and pop keep the smallest item of a binary heap first.
func push[T any](heap []T, v T, before func(a, b T) bool) []T {
	heap = append(heap, v)
	for i := len(heap) - 1; i > 0; {
		up := (i - 1) / 2
		if !before(heap[i], heap[up]) {
			break
		}
		heap[i], heap[up] = heap[up], heap[i]
		i = up
	}
	return heap
}

func pop[T any](heap []T, before func(a, b T) bool) (T, []T) {
	first, last := heap[0], len(heap)-1
	heap[0] = heap[last]
	heap = heap[:last]
	for i := 0; ; {
		down := 2*i + 1
		if down >= last {
			break
		}
		if down+1 < last && before(heap[down+1], heap[down]) {
			down++
		}
		if !before(heap[down], heap[i]) {
			break
		}
		heap[i], heap[down] = heap[down], heap[i]
		i = down
	}
	return first, heap
}

// textSet is the set of the texts in a batch: open addressing on the hashes, emptied by moving to a new generation.
type textSet struct {
	slots      []textSlot // a power of two, at most half of it used
	used       int
	generation uint32
}

type textSlot struct {
	hash       Hash128
	generation uint32
}

func (t *textSet) clear() {
	t.used = 0
	if t.generation++; t.generation == 0 {
		clear(t.slots)
		t.generation = 1
	}
}

// slot returns the hash's slot, or the free one where it belongs.
func (t *textSet) slot(h Hash128) *textSlot {
	mask := uint64(len(t.slots) - 1)
	for i := h.Lo & mask; ; i = (i + 1) & mask {
		if s := &t.slots[i]; s.generation != t.generation || s.hash == h {
			return s
		}
	}
}

func (t *textSet) has(h Hash128) bool {
	return len(t.slots) > 0 && t.slot(h).generation == t.generation
}

func (t *textSet) add(h Hash128) {
	if 2*t.used >= len(t.slots) {
		old := t.slots
		t.slots = make([]textSlot, max(64, 2*len(old)))
		for _, s := range old {
			if s.generation == t.generation {
				*t.slot(s.hash) = s
			}
		}
	}
	if s := t.slot(h); s.generation != t.generation {
		*s = textSlot{h, t.generation}
		t.used++
	}
}
