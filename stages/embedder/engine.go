package embedder

import (
	"cmp"
	"context"
	"errors"
	"slices"
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
	// Cut is how many of an embedding's dimensions are yielded, the first ones; 0: all.
	Cut int
	// Active is how many features of a sparse embedding are yielded, those with the largest weights; 0: all.
	Active int
	// Turns, if not nil, are what each pass waits for: calls at the same time then share the engine.
	Turns *Turns
	// Told, if not nil, is called on rank 0 after each pass, within the turn, with how many of a call's texts are embedded.
	Told func(done, total int)
	// Ranks, if not nil, are others that embed the same texts at the same time: each takes some of the passes.
	Ranks Sharing

	arena *gpustage.Arena
	all   []gpustage.Tensor // of a round, with Ranks, by part
}

// Sharing is ranks that embed texts together, in rounds of one pass each.
type Sharing interface {
	Rank() int
	Size() int
	// Begin comes before each round, with every rank's token ids.
	Begin(s gpustage.Stream, passes [][]int32) error
	// Skip takes part in a round in which this rank has no pass.
	Skip(s gpustage.Stream)
	// Gather gives every rank the rows of all: dst [sum(rows), E] of src [rows[rank], E], for embeddings and for any other part.
	Gather(s gpustage.Stream, dst, src gpustage.Tensor, rows []int)
}

// Embed computes the embedding of every text, given as token ids, and calls yield with its place among texts. Texts come longest
// first; vec is valid during the call only. With Ranks, rank 0 gets all embeddings and the others none.
func (e *Engine) Embed(ctx context.Context, texts [][]int32, yield func(i int, vec []float32)) error {
	return e.EmbedTyped(ctx, texts, nil, yield)
}

// EmbedPrompted is Embed for texts that begin with prompts, of so many tokens each (tokenize.Tokenizer.PromptTokens), which a model whose Head has SkipPrompt
// does not pool; nil: there are none.
func (e *Engine) EmbedPrompted(ctx context.Context, texts [][]int32, prompts []int32, yield func(i int, vec []float32)) error {
	return e.embedOne(ctx, reading{texts: texts, prompts: prompts}, yield)
}

// EmbedTyped is Embed for texts whose tokens have types. A model that scores yields scores.
func (e *Engine) EmbedTyped(ctx context.Context, texts, kinds [][]int32, yield func(i int, vec []float32)) error {
	return e.embedOne(ctx, reading{texts: texts, kinds: kinds}, yield)
}

// embedOne yields the embedding of each text.
func (e *Engine) embedOne(ctx context.Context, r reading, yield func(i int, vec []float32)) error {
	if vectorsOnly(e.Model) {
		return errVectorsAlone
	}
	return e.embed(ctx, r, 1, func(i int, parts [][]float32) { yield(i, e.yielded(parts[0])) })
}

// yielded is what Embed yields of an embedding.
func (e *Engine) yielded(vec []float32) []float32 {
	vec = vec[:e.Size()]
	if e.Active > 0 {
		strongest(e.Active, vec)
	}
	return vec
}

// reading is texts as they go through the model.
type reading struct {
	texts, kinds [][]int32
	shown        [][]int32 // the places of each text's tokens that have rows; nil: all but the first
	seen         []int32   // how many of each text's tokens the others attend to; nil: all
	prompts      []int32   // how many of each text's tokens are its prompt's; nil: none
	weighed      bool      // they are queries that are weights of tokens
}

// cost is what text i counts in a pass: its tokens, and of queries that are weights, where the embedding is what takes memory, some at least.
func (r reading) cost(i int) int {
	if r.weighed {
		return max(len(r.texts[i]), 4)
	}
	return len(r.texts[i])
}

// Size is the number of dimensions that Embed yields.
func (e *Engine) Size() int { return cmp.Or(e.Cut, e.Model.EmbeddingSize()) }

// embed yields the first so many parts of each text.
func (e *Engine) embed(ctx context.Context, r reading, parts int, yield func(i int, parts [][]float32)) error {
	texts := r.texts
	if none := slices.IndexFunc(texts, func(ids []int32) bool { return len(ids) == 0 }); none >= 0 && !r.weighed && e.Model.Config.Family != transformer.Static {
		return &NoTokensError{none}
	}
	order := make([]int, len(texts))
	for i := range order {
		order[i] = i
	}
	sort.SliceStable(order, func(a, b int) bool { return len(texts[order[a]]) > len(texts[order[b]]) })
	limit := e.Tokens
	if limit == 0 {
		limit = e.Model.Device.Info().PassTokens()
	}
	var passes [][]int // places among texts
	tokens := 0
	for _, i := range order {
		if n := len(passes); n == 0 || tokens+r.cost(i) > limit {
			passes, tokens = append(passes, nil), 0
		}
		n := len(passes) - 1
		passes[n], tokens = append(passes[n], i), tokens+r.cost(i)
	}
	ranks := 1
	if e.Ranks != nil {
		ranks = e.Ranks.Size()
	}
	done := 0
	turn := func(passes [][]int) error {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		_, give, err := e.Turns.Take(ctx)
		if err != nil {
			return err
		}
		defer give() // also if what is called panics: others, and Close, would wait without end
		if err := e.round(passes, r, parts, yield); err != nil {
			return err
		}
		for _, pass := range passes {
			done += len(pass)
		}
		if e.Told != nil && e.first() {
			e.Told(done, len(texts))
		}
		return nil
	}
	for some := range slices.Chunk(passes, ranks) {
		if err := turn(some); err != nil {
			return err
		}
	}
	return nil
}

// round embeds a pass on each rank.
func (e *Engine) round(passes [][]int, r reading, parts int, yield func(i int, parts [][]float32)) error {
	own := 0
	if e.Ranks != nil {
		own = e.Ranks.Rank()
		ids := make([][]int32, e.Ranks.Size())
		for rank, pass := range passes {
			for _, i := range pass {
				ids[rank] = append(ids[rank], r.texts[i]...)
			}
		}
		if err := e.Ranks.Begin(e.Stream, ids); err != nil {
			return err
		}
	}
	outs := make([]gpustage.Tensor, parts)
	if own < len(passes) {
		p, err := e.pass(passes[own], r)
		if err != nil {
			return err
		}
		defer p.Release()
		copy(outs, p.Parts())
	} else {
		e.Ranks.Skip(e.Stream)
	}
	var host [][]float32
	kindsOf := e.Model.Parts()[:parts]
	rowsOf := func(k, i int) int { // of a part, that a text has
		switch {
		case kindsOf[k].Tokens && r.shown != nil:
			return len(r.shown[i])
		case kindsOf[k].Tokens:
			return len(r.texts[i]) - 1
		}
		return 1
	}
	for k := range outs {
		if e.Ranks != nil {
			rows := make([]int, e.Ranks.Size())
			for rank, pass := range passes {
				for _, i := range pass {
					rows[rank] += rowsOf(k, i)
				}
			}
			all, err := e.gather(k, outs[k], rows, kindsOf[k].Size)
			if err != nil {
				return err
			}
			if own > 0 {
				continue
			}
			outs[k] = all
		}
		out, err := e.host(outs[k])
		if err != nil {
			return err
		}
		host = append(host, out)
	}
	if own > 0 {
		return e.Stream.Sync()
	}
	at, vecs := make([]int, parts), make([][]float32, parts)
	for _, pass := range passes {
		for _, i := range pass {
			for k := range vecs {
				n := rowsOf(k, i) * kindsOf[k].Size
				vecs[k] = host[k][at[k] : at[k]+n]
				at[k] += n
			}
			yield(i, vecs)
		}
	}
	return nil
}

// gather gives all ranks the rows of a part.
func (e *Engine) gather(k int, own gpustage.Tensor, rows []int, size int) (gpustage.Tensor, error) {
	total := 0
	for _, n := range rows {
		total += n
	}
	if total == 0 { // on all ranks
		return own, nil
	}
	for len(e.all) <= k {
		e.all = append(e.all, gpustage.Tensor{})
	}
	if x := &e.all[k]; x.Rows < total {
		if !x.IsZero() {
			if err := x.Mem.Free(); err != nil {
				return *x, err
			}
		}
		var err error
		if *x, err = gpustage.NewTensor(e.Model.Device, e.Model.DType, total, size); err != nil {
			return *x, err
		}
	}
	all := e.all[k].Span(0, total)
	e.Ranks.Gather(e.Stream, all, own, rows)
	return all, nil
}

// pass embeds some texts.
func (e *Engine) pass(places []int, r reading) (*transformer.Pass, error) {
	texts, kinds, shown, seen := r.texts, r.kinds, r.shown, r.seen
	rows := transformer.Rows{Cu: []int32{0}, Weighed: r.weighed}
	if shown != nil {
		rows.Shown = []int32{}
	}
	var lengths []int
	for _, i := range places {
		if shown != nil {
			for _, at := range shown[i] {
				rows.Shown = append(rows.Shown, int32(len(rows.IDs))+at)
			}
		}
		rows.IDs = append(rows.IDs, texts[i]...)
		if kinds != nil {
			rows.Kinds = append(rows.Kinds, kinds[i]...)
		}
		if seen != nil {
			rows.Seen = append(rows.Seen, seen[i])
		}
		if r.prompts != nil {
			rows.Prompt = append(rows.Prompt, r.prompts[i])
		}
		rows.Cu = append(rows.Cu, int32(len(rows.IDs)))
		lengths = append(lengths, len(texts[i]))
	}
	if err := e.Model.Check(rows); err != nil {
		return nil, err
	}
	memory := e.Model.Memory
	if r.weighed {
		memory = e.Model.WeighedMemory
	}
	if err := e.reserve(memory(lengths).Forward); err != nil {
		return nil, err
	}
	return e.Model.Forward(e.Stream, e.arena, rows, false, false), nil
}

// host copies embeddings to the host.
func (e *Engine) host(emb gpustage.Tensor) ([]float32, error) {
	if emb.DType != gpustage.F32 && emb.Rows > 0 {
		narrow, err := gpustage.NewTensor(e.Model.Device, gpustage.F32, emb.Rows, emb.Cols)
		if err != nil {
			return nil, err
		}
		defer narrow.Mem.Free()
		e.Stream.Copy(narrow, emb)
		emb = narrow
	}
	if emb.Rows == 0 { // of parts of tokens
		return nil, e.Stream.Sync()
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

// CloseStream closes the stream, of an engine that has it to itself.
func (e *Engine) CloseStream() error {
	if e.Stream == nil {
		return nil
	}
	s := e.Stream
	e.Stream = nil
	return s.Close()
}

func (e *Engine) freeAll() error {
	var errs []error
	for _, x := range e.all {
		if !x.IsZero() {
			errs = append(errs, x.Mem.Free())
		}
	}
	e.all = nil
	return errors.Join(errs...)
}
