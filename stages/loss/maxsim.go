package loss

import "contraflow/gpustage"

// maxSim is the score of late interaction (Khattab and Zaharia, arXiv 2004.12832) of queries and documents of which each token has a
// vector: the mean over a query's tokens of the largest product with one of the document's, of which factor makes a sum. Queries meet
// documents a tile of tokens at a time: a product, of which each document's maximum and its place stay. So memory is a place for each query
// token and document of a strip of queries, never a score of two tokens, and the backward pass needs no product again: it follows the places.
//
// At 1,024 x 1,024 texts of (32, 128) tokens with 384 features that is 64 MiB where all products were 17 GiB.
type maxSim struct {
	s    gpustage.Stream
	a    *gpustage.Arena
	part *Part
	docs int // the sequence that is the first document
	rows int // of queries in a tile
	ends []gpustage.Tensor
	tile [][2]int // documents, from 0, of each tile

	// of the strip at hand
	from, to int
	at       gpustage.Tensor // i32 [tokens, documents]: places within the document's tile
}

// A tile of 560 x 1,024 scores is 2.2 MiB: in a processor's L2 and L3 caches from the product to the maximum, and large enough for
// products to run at full speed. A GPU would spend its time on starting kernels that don't fill it: on the way back a document has a block of threads,
// which goes through a strip's query tokens one after the other, and such a tile has eight documents. By arithmetic an H200 computes 1,024 x 1,024 texts
// of (32, 128) tokens in 64 MiB tiles of 128 documents in 0.05 s, and in those of 8 in 0.4.
const (
	maxSimRows, maxSimCols           = 560, 1024
	maxSimRowsOnGPU, maxSimColsOnGPU = 1024, 16384
)

func maxSimTile(gpu bool) (rows, cols int) {
	if gpu {
		return maxSimRowsOnGPU, maxSimColsOnGPU
	}
	return maxSimRows, maxSimCols
}

// openMaxSim cuts all documents, behind the queries, into tiles of at most so many tokens, or of one document.
func openMaxSim(s gpustage.Stream, a *gpustage.Arena, part *Part, rows, cols int) *maxSim {
	return openDocuments(s, a, part, rows, len(part.Cu)-1, cols)
}

// openDocuments is for documents that are sequences from to to-1.
func openDocuments(s gpustage.Stream, a *gpustage.Arena, part *Part, from, to, cols int) *maxSim {
	m := &maxSim{s: s, a: a, part: part, docs: from}
	m.rows, _ = maxSimTile(!gpustage.InHost(part.X))
	for lo := 0; lo < to-from; {
		hi := lo + 1
		for hi < to-from && part.tokens(from+lo, from+hi+1) <= cols {
			hi++
		}
		m.tile = append(m.tile, [2]int{lo, hi})
		m.ends = append(m.ends, m.ints(offsets(part.Cu[from+lo:from+hi+1])))
		lo = hi
	}
	return m
}

func (m *maxSim) ints(vs []int32) gpustage.Tensor {
	t := m.a.Scratch(m.s, gpustage.I32, 1, len(vs))
	m.s.CopyIn(t, gpustage.Bytes(vs))
	return t
}

// offsets begin at 0.
func offsets(cu []int32) []int32 {
	out := make([]int32, len(cu))
	for i, c := range cu {
		out[i] = c - cu[0]
	}
	return out
}

// span is the rows of a part's tensor that sequences lo to hi-1 have.
func (p *Part) span(x gpustage.Tensor, lo, hi int) gpustage.Tensor {
	return x.Span(int(p.Cu[lo]), int(p.Cu[hi]))
}

func (p *Part) tokens(lo, hi int) int { return int(p.Cu[hi] - p.Cu[lo]) }

// documents are the i-th tile's rows of a tensor of the part.
func (m *maxSim) documents(x gpustage.Tensor, i int) gpustage.Tensor {
	return m.part.span(x, m.docs+m.tile[i][0], m.docs+m.tile[i][1])
}

// forward writes the scores of queries from to to-1 to out [to-from, documents], and takes memory for places until the caller gives it
// back.
func (m *maxSim) forward(from, to int, out gpustage.Tensor) {
	m.from, m.to = from, to
	q := m.part.span(m.part.X, from, to)
	m.at = m.a.Scratch(m.s, gpustage.I32, q.Rows, out.Cols)
	start := m.a.Mark()
	queries := m.sequences(from, to)
	mark := m.a.Mark()
	for i, docs := range m.tile {
		top := m.a.Scratch(m.s, q.DType, q.Rows, docs[1]-docs[0])
		d := m.documents(m.part.X, i)
		tile := m.a.Scratch(m.s, q.DType, min(m.rows, q.Rows), d.Rows)
		for lo := 0; lo < q.Rows; lo += m.rows {
			hi := min(q.Rows, lo+m.rows)
			scores := tile.Span(0, hi-lo)
			m.s.MatMul(scores, q.Span(lo, hi), d, gpustage.MatMul{TransB: true})
			m.s.SegmentMax(top.Span(lo, hi), m.at.Span(lo, hi).Columns(docs[0], docs[1]), scores, m.ends[i])
		}
		m.s.Pool(out.Columns(docs[0], docs[1]), top, queries, gpustage.MeanPooling)
		m.a.ReleaseScratch(mark)
	}
	m.a.ReleaseScratch(start)
}

// backward adds the gradient of what forward was called for last, given that of its scores.
func (m *maxSim) backward(d gpustage.Tensor) {
	q, dq := m.part.span(m.part.X, m.from, m.to), m.part.span(m.part.Gradient, m.from, m.to)
	start := m.a.Mark()
	queries := m.sequences(m.from, m.to)
	mark := m.a.Mark()
	for i, docs := range m.tile {
		g := m.a.Scratch(m.s, q.DType, q.Rows, docs[1]-docs[0])
		m.s.PoolBackward(g, d.Columns(docs[0], docs[1]), queries, gpustage.MeanPooling)
		m.s.MaxSimBackward(dq, m.documents(m.part.Gradient, i), g, m.at.Columns(docs[0], docs[1]), q, m.documents(m.part.X, i))
		m.a.ReleaseScratch(mark)
	}
	m.a.ReleaseScratch(start)
}

// factor makes a sum of the mean over a query's vectors.
func (m *maxSim) factor(query int) float64 { return float64(m.part.tokens(query, query+1)) }

// sequences are queries as an op takes them.
func (m *maxSim) sequences(from, to int) gpustage.Sequences {
	cu := offsets(m.part.Cu[from : to+1])
	z := gpustage.Sequences{Rows: to - from, Tokens: int(cu[to-from]), Cu: m.ints(cu)}
	row, pos := make([]int32, z.Tokens), make([]int32, z.Tokens)
	for i := range z.Rows {
		for t := cu[i]; t < cu[i+1]; t++ {
			row[t], pos[t] = int32(i), t-cu[i]
		}
		z.MaxLen = max(z.MaxLen, int(cu[i+1]-cu[i]))
	}
	z.Row, z.Pos = m.ints(row), m.ints(pos)
	return z
}
