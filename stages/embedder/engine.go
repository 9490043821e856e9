package embedder

import (
	"context"
	"sort"

	"contraflow/gpustage"
	"contraflow/stages/transformer"
)

// Engine embeds tokenized texts with a model on one stream. It belongs to the stream's thread.
type Engine struct {
	Model  *transformer.Model
	Stream gpustage.Stream
	// Tokens bounds what goes through the model at once; 0 means what
	// the device likes. Texts are sorted by length first, so that a pass
	// has rows of similar cost, and nothing is padded anyway.
	Tokens int

	arena *gpustage.Arena
}

// Embed computes the embedding of every text, given as token ids, and calls yield with its place among texts. Texts come longest
// first; vec is valid during the call only.
func (e *Engine) Embed(ctx context.Context, texts [][]int32, yield func(i int, vec []float32)) error {
	order := make([]int, len(texts))
	for i := range order {
		order[i] = i
	}
	sort.SliceStable(order, func(a, b int) bool { return len(texts[order[a]]) > len(texts[order[b]]) })
	limit := e.Tokens
	if limit == 0 {
		limit = e.Stream.Device().Info().PassTokens()
	}
	size := e.Model.EmbeddingSize()
	var out []float32
	for from := 0; from < len(order); {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		rows, to := transformer.Rows{Cu: []int32{0}}, from
		var lengths []int
		for to < len(order) && (to == from || len(rows.IDs)+len(texts[order[to]]) <= limit) {
			ids := texts[order[to]]
			rows.IDs = append(rows.IDs, ids...)
			rows.Cu = append(rows.Cu, int32(len(rows.IDs)))
			lengths = append(lengths, len(ids))
			to++
		}
		if err := e.Model.Check(rows); err != nil {
			return err
		}
		if err := e.reserve(e.Model.Memory(lengths).Forward); err != nil {
			return err
		}
		p := e.Model.Forward(e.Stream, e.arena, rows, false, false)
		out = append(out[:0], make([]float32, rows.Len()*size)...)
		emb := p.Embeddings()
		if emb.DType != gpustage.F32 {
			narrow, err := gpustage.NewTensor(e.Model.Device, gpustage.F32, emb.Rows, emb.Cols)
			if err != nil {
				return err
			}
			e.Stream.Copy(narrow, emb)
			emb = narrow
		}
		e.Stream.CopyOut(gpustage.Bytes(out), emb)
		err := e.Stream.Sync()
		p.Release()
		if err != nil {
			return err
		}
		for k := range rows.Len() {
			yield(order[from+k], out[k*size:(k+1)*size])
		}
		from = to
	}
	return nil
}

func (e *Engine) reserve(bytes int) error {
	if e.arena != nil && e.arena.Size() >= bytes {
		return nil
	}
	if e.arena != nil {
		if err := e.arena.Free(); err != nil {
			return err
		}
		e.arena = nil
	}
	a, err := gpustage.NewArena(e.Model.Device, bytes)
	e.arena = a
	return err
}

// Close gives the engine's memory back.
func (e *Engine) Close() error {
	if e.arena == nil {
		return nil
	}
	a := e.arena
	e.arena = nil
	return a.Free()
}
