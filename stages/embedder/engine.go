package embedder

import (
	"context"
	"errors"
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
	// Ranks, if not nil, are others that embed the same texts at the same time: each takes some of the passes.
	Ranks Sharing

	arena *gpustage.Arena
	all   gpustage.Tensor // of a round, with Ranks
}

// Sharing is ranks that embed texts together, in rounds of one pass each.
type Sharing interface {
	Rank() int
	Size() int
	// Begin comes before each round, with every rank's token ids.
	Begin(s gpustage.Stream, passes [][]int32) error
	// Skip takes part in a round in which this rank has no pass.
	Skip(s gpustage.Stream)
	// Gather gives every rank the rows of all: dst [sum(rows), E] of src [rows[rank], E].
	Gather(s gpustage.Stream, dst, src gpustage.Tensor, rows []int)
}

// Embed computes the embedding of every text, given as token ids, and calls yield with its place among texts. Texts come longest
// first; vec is valid during the call only. With Ranks, rank 0 gets all embeddings and the others none.
func (e *Engine) Embed(ctx context.Context, texts [][]int32, yield func(i int, vec []float32)) error {
	return e.EmbedTyped(ctx, texts, nil, yield)
}

// EmbedTyped is Embed for texts whose tokens have types. A model that scores yields scores.
func (e *Engine) EmbedTyped(ctx context.Context, texts, kinds [][]int32, yield func(i int, vec []float32)) error {
	order := make([]int, len(texts))
	for i := range order {
		order[i] = i
	}
	sort.SliceStable(order, func(a, b int) bool { return len(texts[order[a]]) > len(texts[order[b]]) })
	limit := e.Tokens
	if limit == 0 {
		limit = e.Stream.Device().Info().PassTokens()
	}
	var passes [][]int // places among texts
	tokens := 0
	for _, i := range order {
		if n := len(passes); n == 0 || tokens+len(texts[i]) > limit {
			passes, tokens = append(passes, nil), 0
		}
		n := len(passes) - 1
		passes[n], tokens = append(passes[n], i), tokens+len(texts[i])
	}
	ranks := 1
	if e.Ranks != nil {
		ranks = e.Ranks.Size()
	}
	for len(passes) > 0 {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		n := min(ranks, len(passes))
		if err := e.round(passes[:n], texts, kinds, yield); err != nil {
			return err
		}
		passes = passes[n:]
	}
	return nil
}

// round embeds a pass on each rank.
func (e *Engine) round(passes [][]int, texts, kinds [][]int32, yield func(i int, vec []float32)) error {
	own := 0
	if e.Ranks != nil {
		own = e.Ranks.Rank()
		ids := make([][]int32, e.Ranks.Size())
		for r, pass := range passes {
			for _, i := range pass {
				ids[r] = append(ids[r], texts[i]...)
			}
		}
		if err := e.Ranks.Begin(e.Stream, ids); err != nil {
			return err
		}
	}
	var emb gpustage.Tensor
	if own < len(passes) {
		p, err := e.pass(passes[own], texts, kinds)
		if err != nil {
			return err
		}
		defer p.Release()
		emb = p.Embeddings()
	} else {
		e.Ranks.Skip(e.Stream)
	}
	if e.Ranks != nil {
		rows, total := make([]int, e.Ranks.Size()), 0
		for r, pass := range passes {
			rows[r] = len(pass)
			total += len(pass)
		}
		if e.all.Rows < total {
			if err := e.freeAll(); err != nil {
				return err
			}
			var err error
			if e.all, err = gpustage.NewTensor(e.Model.Device, e.Model.DType, total, e.Model.EmbeddingSize()); err != nil {
				return err
			}
		}
		all := e.all.Span(0, total)
		e.Ranks.Gather(e.Stream, all, emb, rows)
		if own > 0 {
			return e.Stream.Sync()
		}
		emb = all
	}
	out, err := e.host(emb)
	if err != nil {
		return err
	}
	at := 0
	for _, pass := range passes {
		for _, i := range pass {
			yield(i, out[at:at+emb.Cols])
			at += emb.Cols
		}
	}
	return nil
}

// pass embeds some texts.
func (e *Engine) pass(places []int, texts, kinds [][]int32) (*transformer.Pass, error) {
	rows := transformer.Rows{Cu: []int32{0}}
	var lengths []int
	for _, i := range places {
		rows.IDs = append(rows.IDs, texts[i]...)
		if kinds != nil {
			rows.Kinds = append(rows.Kinds, kinds[i]...)
		}
		rows.Cu = append(rows.Cu, int32(len(rows.IDs)))
		lengths = append(lengths, len(texts[i]))
	}
	if err := e.Model.Check(rows); err != nil {
		return nil, err
	}
	if err := e.reserve(e.Model.Memory(lengths).Forward); err != nil {
		return nil, err
	}
	return e.Model.Forward(e.Stream, e.arena, rows, false, false), nil
}

// host copies embeddings to the host.
func (e *Engine) host(emb gpustage.Tensor) ([]float32, error) {
	if emb.DType != gpustage.F32 {
		narrow, err := gpustage.NewTensor(e.Model.Device, gpustage.F32, emb.Rows, emb.Cols)
		if err != nil {
			return nil, err
		}
		defer narrow.Mem.Free()
		e.Stream.Copy(narrow, emb)
		emb = narrow
	}
	out := make([]float32, emb.Len())
	e.Stream.CopyOut(gpustage.Bytes(out), emb)
	return out, e.Stream.Sync()
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
	err := e.freeAll()
	if e.arena == nil {
		return err
	}
	a := e.arena
	e.arena = nil
	return errors.Join(err, a.Free())
}

func (e *Engine) freeAll() error {
	if e.all.IsZero() {
		return nil
	}
	m := e.all.Mem
	e.all = gpustage.Tensor{}
	return m.Free()
}
