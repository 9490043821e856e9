package evaluate

import (
	"context"
	"fmt"
	"math"

	"contraflow/gpustage"
)

// Blocks of the search: 1,024 queries against 4,096 documents are 16 MiB of scores. Products of that shape run at full speed, and their
// scores are selected from while they are still in a processor's last cache; in host memory they are read where they are.
const (
	queryBlock  = 1024
	corpusBlock = 4096
)

// Normalize gives embeddings [n, dim], one after the other, length 1, in place; those of zeros stay as they are. It panics unless they are whole ones.
func Normalize(embeddings []float32, dim int) {
	if dim < 1 || len(embeddings)%dim != 0 {
		panic(fmt.Sprintf("evaluate.Normalize: %d numbers are no embeddings of %d dimensions", len(embeddings), dim))
	}
	for ; len(embeddings) >= dim; embeddings = embeddings[dim:] {
		x, sum := embeddings[:dim], 0.0
		for _, v := range x {
			sum += float64(v) * float64(v)
		}
		norm := max(math.Sqrt(sum), 1e-12)
		for i, v := range x {
			x[i] = float32(float64(v) / norm)
		}
	}
}

// Product is the inner product of two embeddings of one size, summed in float64.
func Product(a, b []float32) (sum float64) {
	for i, v := range a {
		sum += float64(v) * float64(b[i])
	}
	return sum
}

// Search finds the k documents nearest to each query by the product of their embeddings, which are [n, dim] one after the other: exactly,
// block by block on the stream's device. Equal scores rank by tie. progress, which may be nil, is told of scores done.
func Search(ctx context.Context, s gpustage.Stream, queries, corpus []float32, dim, k int, tie TieOrder, progress func(done, total int64)) (Run, error) {
	nq, nd, err := counts(queries, corpus, dim)
	if err != nil {
		return nil, err
	}
	top, err := NewTopK(nq, min(k, max(1, nd)), tie)
	if err != nil {
		return nil, err
	}
	if err := SearchInto(ctx, s, top, queries, corpus, dim, 0, progress); err != nil {
		return nil, err
	}
	return top.Run(), nil
}

// SearchCut is Search by the first cut of the dim dimensions of embeddings, which unit gives length 1. They stay as they are: what is compared is a copy, of
// the documents a block at a time.
func SearchCut(ctx context.Context, s gpustage.Stream, queries, corpus []float32, dim, cut, k int, unit bool, tie TieOrder) (Run, error) {
	nq, nd, err := counts(queries, corpus, dim)
	if err != nil {
		return nil, err
	}
	if cut < 1 || cut > dim {
		return nil, fmt.Errorf("a search by the first %d of %d dimensions: there must be 1 to %d", cut, dim, dim)
	}
	if cut == dim && !unit {
		return Search(ctx, s, queries, corpus, dim, k, tie, nil)
	}
	top, err := NewTopK(nq, min(k, max(1, nd)), tie)
	if err != nil {
		return nil, err
	}
	compared := func(x []float32) []float32 {
		out := make([]float32, 0, len(x)/dim*cut)
		for ; len(x) > 0; x = x[dim:] {
			out = append(out, x[:cut]...)
		}
		if unit {
			Normalize(out, cut)
		}
		return out
	}
	q := compared(queries)
	for from := 0; from < nd; from += corpusBlock {
		if err := SearchInto(ctx, s, top, q, compared(corpus[from*dim:min(nd, from+corpusBlock)*dim]), cut, from, nil); err != nil {
			return nil, err
		}
	}
	return top.Run(), nil
}

// SearchMemory is how many bytes Search takes on the device.
func SearchMemory(queries, documents, dim int) int64 {
	qb, db := blocksOf(queries, documents)
	return 4 * (int64(qb+db)*int64(dim) + int64(qb)*int64(db))
}

// blocksOf is how many queries and documents a block has.
func blocksOf(queries, documents int) (qb, db int) {
	return min(queryBlock, max(1, queries)), min(corpusBlock, max(1, documents))
}

// counts is how many embeddings there are.
func counts(queries, corpus []float32, dim int) (nq, nd int, err error) {
	if dim < 1 || len(queries)%dim != 0 || len(corpus)%dim != 0 {
		return 0, 0, fmt.Errorf("%d and %d numbers are no embeddings of %d dimensions", len(queries), len(corpus), dim)
	}
	return len(queries) / dim, len(corpus) / dim, nil
}

// SearchInto is Search for a part of the documents, the first of which has the number first among all: top takes what is found.
func SearchInto(ctx context.Context, s gpustage.Stream, top *TopK, queries, corpus []float32, dim, first int, progress func(done, total int64)) (err error) {
	nq, nd, err := counts(queries, corpus, dim)
	if err != nil {
		return err
	}
	qb, db := blocksOf(nq, nd)
	var blocks [3]gpustage.Tensor // queries, documents, scores
	for i, shape := range [][2]int{{qb, dim}, {db, dim}, {1, qb * db}} {
		if blocks[i], err = gpustage.NewTensor(s.Device(), gpustage.F32, shape[0], shape[1]); err != nil {
			return err
		}
		defer blocks[i].Mem.Free()
	}
	inPlace := gpustage.InHost(blocks[2])
	var host []float32
	if !inPlace {
		host = make([]float32, qb*db)
	}
	done := int64(0)
	for from := 0; from < nd; from += db {
		docs := blocks[1].Span(0, min(db, nd-from))
		s.CopyIn(docs, gpustage.Bytes(corpus[from*dim:(from+docs.Rows)*dim]))
		for lo := 0; lo < nq; lo += qb {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			q := blocks[0].Span(0, min(qb, nq-lo))
			s.CopyIn(q, gpustage.Bytes(queries[lo*dim:(lo+q.Rows)*dim]))
			scores := blocks[2].Columns(0, q.Rows*docs.Rows).Reshape(q.Rows, docs.Rows)
			s.MatMul(scores, q, docs, gpustage.MatMul{TransB: true})
			var out []float32
			if !inPlace {
				out = host[:scores.Len()]
				s.CopyOut(gpustage.Bytes(out), scores)
			}
			if err := s.Sync(); err != nil {
				return err
			}
			if inPlace {
				out = gpustage.Slice[float32](scores)
			}
			if err := top.Add(lo, first+from, out, docs.Rows); err != nil {
				return err
			}
			if done += int64(scores.Len()); progress != nil {
				progress(done, int64(nq)*int64(nd))
			}
		}
	}
	return nil
}
