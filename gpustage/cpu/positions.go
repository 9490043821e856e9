package cpu

import (
	"slices"

	"contraflow/gpustage"
)

// Attention that sees positions (gpustage.Positions) takes keys and queries of positions by distance: a head's are copied so that distance j-i has a
// row of its own, also where several share one. A block of m queries and n keys has m+n-1 distances, and the products of all its queries with the
// keys of all these distances are a tile [m, m+n-1] of which query i's scores are n neighbors; the products of up to 128 of its keys with the distances'
// queries are a tile [n, m+n-1], of which they are a diagonal. So there is one gather, in the second-level cache, and everything else is products. With
// both kinds of positions and sequences of one block they are 6 n² D multiply-adds forward where plain attention has 2, and 17 for 5 on the way back; of
// much longer sequences 5 and 14. R does not count.
//
// The backward pass writes the gradient of scores into the same places of the same tiles, zero elsewhere, and multiplies again. Gradients of what
// distances have are summed for each head and, in ascending order, over the sequences of a part of the sub-batch (positionParts), then over parts.

// positionParts is how many parts of a sub-batch sum gradients of positions by themselves: with 12 heads, 96 tasks. A part has as many numbers
// as the rows of positions that the longest sequence reaches, twice.
const positionParts = 8

// byDistance is what a head has of positions: [2n-1, D] each, for distances from -(n-1) on, and a block's tiles. What there is none of is empty.
type byDistance struct {
	keys, queries   []float32
	dKeys, dQueries []float32
	ofQueries       []float32 // [m, m+n-1]: products of a block's queries with keys
	ofKeys          []float32 // [n, m+n-1]: of some of its keys with queries
	dRow            []float32 // a part's sums [2, rows, H*D], or nil
}

// positionRows is which rows of positions the sequences reach, from the first to before the last.
func positionRows(o *gpustage.Attention) (first, end int) {
	reach, n := o.Positions.Reach(), o.Seqs.MaxLen
	if n == 0 {
		return 0, 0
	}
	rows := ints(o.Positions.Rows)[reach-n : reach+n-1]
	return int(slices.Min(rows)), int(slices.Max(rows)) + 1
}

// positionElements is what a head of n tokens takes of scratch memory.
func positionElements(o *gpustage.Attention, n int) int {
	p := o.Positions
	if p.None() || n == 0 {
		return 0
	}
	d, m := (2*n-1)*o.HeadDim, min(queryBlock, n)
	total := 0
	if !p.Keys.IsZero() {
		total += 2*d + m*(m+n-1)
	}
	if !p.Queries.IsZero() {
		total += 2*d + m*(2*m-1)
	}
	return total
}

// spreadPositions copies the head's, by distance.
func (h *head) spreadPositions(buf []float32) {
	p, n := h.o.Positions, h.n
	h.at = byDistance{dRow: h.at.dRow}
	if len(buf) == 0 {
		return
	}
	take := func(n int) []float32 {
		part := buf[:n]
		buf = buf[n:]
		return part
	}
	d, m := h.o.HeadDim, min(queryBlock, n)
	rows := ints(p.Rows)[p.Reach()-n:]
	spread := func(from gpustage.Tensor) (to, sum []float32) {
		to, sum = take((2*n-1)*d), take((2*n-1)*d)
		for i := range 2*n - 1 {
			copy(to[i*d:(i+1)*d], row(from, int(rows[i]))[h.h*d:])
		}
		if h.at.dRow != nil {
			clear(sum)
		}
		return to, sum
	}
	if !p.Keys.IsZero() {
		h.at.keys, h.at.dKeys = spread(p.Keys)
		h.at.ofQueries = take(m * (m + n - 1))
	}
	if !p.Queries.IsZero() {
		h.at.queries, h.at.dQueries = spread(p.Queries)
		h.at.ofKeys = take(m * (2*m - 1))
	}
}

// distances is a block's part of what is by distance, and how many there are.
func (h *head) distances(of []float32, b block) ([]float32, int) {
	first := b.k0 - (b.q1 - 1) + h.n - 1
	count := b.q1 - b.q0 + b.k1 - b.k0 - 1
	return of[first*h.o.HeadDim:][:count*h.o.HeadDim], count
}

// addPositions adds to a block's scores p [m, n], which have been multiplied by Scale, those of positions.
func (h *head) addPositions(b block, p, qs []float32, ldq int, ks []float32, ldk int) {
	m, n, d, scale := b.q1-b.q0, b.k1-b.k0, h.o.HeadDim, float32(h.o.Scale)
	if len(h.at.keys) > 0 {
		keys, w := h.distances(h.at.keys, b)
		tile := h.at.ofQueries
		h.product(tile, w, qs, ldq, false, keys, d, true, m, w, d, scale, false)
		for i := range m {
			x := p[i*n : (i+1)*n]
			h.s.v.Add(x, x, tile[i*w+m-1-i:][:n])
		}
	}
	if len(h.at.queries) > 0 {
		b.eachKeys(func(c block) {
			first, count := c.k0-b.k0, c.k1-c.k0
			queries, w := h.distances(h.at.queries, c)
			tile := h.at.ofKeys
			h.product(tile, w, ks[first*ldk:], ldk, false, queries, d, true, count, w, d, scale, false)
			for i := range m {
				at, x := m-1-i, p[i*n+first:][:count]
				for j := range x {
					x[j] += tile[at]
					at += w + 1
				}
			}
		})
	}
}

// eachKeys cuts a block into some of as many queries and up to queryBlock keys.
func (b block) eachKeys(f func(block)) {
	for k := b.k0; k < b.k1; k += queryBlock {
		f(block{b.q0, b.q1, k, min(b.k1, k+queryBlock)})
	}
}

// positionsBackward adds to dq and dk what comes through positions, given the gradient ds [m, n] of the products, and to the head's sums.
func (h *head) positionsBackward(b block, ds, qs []float32, ldq int, ks []float32, ldk int, dq []float32, lddq int, dk []float32, lddk int) {
	m, n, d := b.q1-b.q0, b.k1-b.k0, h.o.HeadDim
	if len(h.at.keys) > 0 {
		keys, w := h.distances(h.at.keys, b)
		sum, _ := h.distances(h.at.dKeys, b)
		tile := h.at.ofQueries[:m*w]
		clear(tile)
		for i := range m {
			copy(tile[i*w+m-1-i:][:n], ds[i*n:(i+1)*n])
		}
		h.product(dq, lddq, tile, w, false, keys, d, false, m, d, w, 1, true)
		if h.at.dRow != nil {
			h.product(sum, d, tile, w, true, qs, ldq, false, w, d, m, 1, true)
		}
	}
	if len(h.at.queries) > 0 {
		b.eachKeys(func(c block) {
			first, count := c.k0-b.k0, c.k1-c.k0
			queries, w := h.distances(h.at.queries, c)
			sum, _ := h.distances(h.at.dQueries, c)
			tile := h.at.ofKeys[:count*w]
			clear(tile)
			for i := range m {
				at := m - 1 - i
				for _, v := range ds[i*n+first:][:count] {
					tile[at] = v
					at += w + 1
				}
			}
			h.product(dk[first*lddk:], lddk, tile, w, false, queries, d, false, count, d, w, 1, true)
			if h.at.dRow != nil {
				h.product(sum, d, tile, w, true, ks[first*ldk:], ldk, false, w, d, count, 1, true)
			}
		})
	}
}

// gatherPositions is spreadPositions' backward: it adds what distances have to the rows that they share, in the part's sums.
func (h *head) gatherPositions() {
	if h.at.dRow == nil || h.n == 0 {
		return
	}
	p, d, cols := h.o.Positions, h.o.HeadDim, h.o.Heads*h.o.HeadDim
	rows, first := ints(p.Rows)[p.Reach()-h.n:], h.firstRow
	half := len(h.at.dRow) / 2
	for k, of := range [...][]float32{h.at.dKeys, h.at.dQueries} {
		for i := range len(of) / d {
			to := h.at.dRow[k*half+(int(rows[i])-first)*cols+h.h*d:][:d]
			h.s.v.Add(to, to, of[i*d:(i+1)*d])
		}
	}
}

// sumPositions adds all parts' sums [parts, 2, rows, H*D] to the gradients of the rows from first on.
func (s *Stream) sumPositions(p gpustage.Positions, sums []float32, parts, first, rows int) {
	each := len(sums) / max(1, parts)
	for k, to := range [...]gpustage.Tensor{p.DKeys, p.DQueries} {
		if to.IsZero() {
			continue
		}
		s.rows(rows, parts*to.Cols, func(_ *worker, lo, hi int) {
			for r := lo; r < hi; r++ {
				sum := row(to, first+r)
				for part := range parts {
					s.v.Add(sum, sum, sums[part*each+k*each/2+r*to.Cols:][:to.Cols])
				}
			}
		})
	}
}
