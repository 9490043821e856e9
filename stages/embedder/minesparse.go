package embedder

import (
	"context"
	"errors"
	"slices"

	"contraflow/stages/evaluate"
	"contraflow/stages/mine"
)

// dense writes embeddings with all features, one after the other, into room for as many or more, and returns them.
func dense(texts []active, size int, room []float32) []float32 {
	out := room[:len(texts)*size]
	clear(out)
	for i, t := range texts {
		for k, id := range t.ids {
			out[i*size+int(id)] = t.weights[k]
		}
	}
	return out
}

// mineSparse mines by products. Of all texts the active features are in memory, and all features of a block of queries and one of documents at a time,
// whose products are computed as those of dense embeddings are.
func (e *Embedder) mineSparse(ctx context.Context, p mine.Pairs, m Mining) (rows []mine.Row, short int, err error) {
	size, block := e.Size(), max(1, sparseBlock/e.Size())
	queries, corpus, err := bothSides(p, m, func(role Role, prompt string, texts []string) (all []active, err error) {
		room := make([]float32, min(block, len(texts))*size)
		err = e.minedInto(ctx, role, m, prompt, texts, block, func(_, n int) []float32 { return room[:n*size] }, func(vecs []float32) {
			for vec := range slices.Chunk(vecs, size) {
				ids, weights := Active(vec)
				all = append(all, active{ids, weights})
			}
		})
		return all, err
	})
	if err != nil {
		return nil, 0, err
	}
	ctx, give, err := e.engine.Turns.Take(ctx)
	if err != nil {
		return nil, 0, err
	}
	defer give()
	s, err := e.device.OpenStream()
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	var run evaluate.Run
	rooms := [2][]float32{make([]float32, min(block, len(queries))*size), make([]float32, min(block, len(corpus))*size)}
	for asked := range slices.Chunk(queries, block) {
		top, err := evaluate.NewTopK(len(asked), min(p.Depth(m.Options), len(corpus)), nil)
		if err != nil {
			return nil, 0, err
		}
		q, first := dense(asked, size, rooms[0]), 0
		for docs := range slices.Chunk(corpus, block) {
			if err := evaluate.SearchInto(ctx, s, top, q, dense(docs, size, rooms[1]), size, first, nil); err != nil {
				return nil, 0, err
			}
			first += len(docs)
			m.searched(int64(len(run))*int64(len(corpus))+int64(len(asked))*int64(first), int64(len(queries))*int64(len(corpus)))
		}
		run = append(run, top.Run()...)
	}
	return p.Choose(ctx, m.Options, run, func(query, doc int) float32 { return float32(queries[query].product(corpus[doc])) })
}
