package stages

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/zeebo/xxh3"

	"contraflow/gpustage"
	"contraflow/io/dataset"
	"contraflow/pipeline"
	"contraflow/stages/embedder"
	"contraflow/stages/loss"
	"contraflow/stages/transformer"
)

// HeldOut are rows that nothing trains on, tokenized, in batches: a loss is measured on them again and again. Several ranks embed them together, and
// rank 0 computes the loss of each batch as a whole, so that the figure does not depend on how many ranks there are.
type HeldOut struct {
	// Guide is the model of a loss that has one; Text.Guide has said how it reads the rows. Rank 0 embeds them with it once, each batch before all ranks
	// embed it with the model, and keeps that.
	Guide *transformer.Model

	batches []*Batch
	looks   [][]float32 // the guide's embeddings of each batch, once it has been looked at
}

// NewHeldOut reads all rows of a dataset, in the files' order, and tokenizes them, in batches of so many rows; the last one has what remains. Text
// sees them as those of dataset 0. What is chosen from lists of negatives follows from the seed. A row that can't be used is an error. The
// dataset stays open while the rows are in use: errors name its rows.
func NewHeldOut(ctx context.Context, d *dataset.Dataset, x Text, rows int, seed uint64) (*HeldOut, error) {
	return NewHeldOutInBatch(ctx, d, x, rows, seed, 0)
}

// NewHeldOutInBatch is NewHeldOut where a row gets so many documents of other rows of its batch for negatives, the same ones each time: see [InBatch].
// dataset.AllNegatives are all there are.
func NewHeldOutInBatch(ctx context.Context, d *dataset.Dataset, x Text, rows int, seed uint64, inBatch int) (*HeldOut, error) {
	if rows < 1 {
		return nil, fmt.Errorf("batches of %d rows, want at least 1", rows)
	}
	if d.Rows() == 0 {
		return nil, errors.New("there are no rows")
	}
	reader := d.NewReader(dataset.ReaderConfig{Seed: seed})
	defer reader.Close()
	h, next := &HeldOut{}, int64(0)
	var unread error // what a user can act on, without the graph around it
	g := pipeline.New("held-out rows")
	chunks := pipeline.Source(g, "read", func(ctx context.Context) (*Chunk, error) {
		if next == d.Rows() {
			return nil, io.EOF
		}
		first := next / int64(rows) * int64(rows) // of the batch
		total := min(int64(rows), d.Rows()-first)
		to := min(next+chunkRows, first+total)
		if inBatch != 0 {
			to = first + total
		}
		var ids []int64
		for ; next < to; next++ {
			ids = append(ids, next)
		}
		examples, err := reader.Read(ctx, 0, ids)
		unread = err
		ends := to == first+total
		c := &Chunk{Data: d, Examples: examples, EndsBatch: ends, EndsStep: ends, Total: int(total)}
		if inBatch != 0 {
			c.InBatch = &InBatch{N: inBatch, Hi: len(examples), Seed: seed}
		}
		return c, err
	})
	pipeline.Sink(g, "keep", Assemble(g, Tokenize(g, chunks, x)), func(_ *pipeline.Task, b *Batch) error {
		h.batches = append(h.batches, b)
		return nil
	})
	p, err := g.Build()
	if err != nil {
		return nil, err
	}
	if err := p.Run(ctx); err != nil {
		if bad := (*dataset.RowError)(nil); errors.As(err, &bad) {
			return nil, bad
		}
		return nil, cmp.Or(unread, err)
	}
	weight := 0.0
	for _, b := range h.batches {
		weight += weightOf(b)
	}
	if weight == 0 {
		return nil, errors.New("no row counts: all their weights are 0")
	}
	return h, nil
}

// Rows is how many there are.
func (h *HeldOut) Rows() (n int) {
	for _, b := range h.batches {
		n += len(b.Rows)
	}
	return n
}

// Texts is how many of their texts Loss has the engine embed.
func (h *HeldOut) Texts() (n int) {
	for _, b := range h.batches {
		n += b.N() - b.first()
	}
	return n
}

// Digest is a hash of the tokenized rows and of how they lie in batches.
func (h *HeldOut) Digest() string {
	x := xxh3.New()
	for _, b := range h.batches {
		fmt.Fprint(x, b.Pairs, b.Starts, len(b.Weights), len(b.Labels), len(b.Scores), len(b.Teacher), len(b.Guide))
		for _, part := range [][]byte{gpustage.Bytes(b.Cu), gpustage.Bytes(b.IDs), gpustage.Bytes(b.Owner), gpustage.Bytes(b.Weights), gpustage.Bytes(b.Labels), gpustage.Bytes(b.Scores), gpustage.Bytes(b.Teacher)} {
			x.Write(part)
		}
		for _, ids := range b.Guide {
			fmt.Fprint(x, len(ids))
			x.Write(gpustage.Bytes(ids))
		}
	}
	return Digest(x)
}

// Loss measures a loss of the engine's model as it is, without dropout: the sum over all batches, and what it is the mean over, which is to say that
// the figure is Sum/Weight ([loss.Result.Mean]). What a loss draws at random is the same each time, and one that changes with the step is as it ends.
// Ranks that embed together all call it; it returns nil on all but rank 0. An error that wraps [loss.ErrNotFinite] means that there is no figure.
func (h *HeldOut) Loss(ctx context.Context, e *embedder.Engine, l loss.Loss) (_ *loss.Result, err error) {
	if l == nil {
		return nil, errors.New("there is no loss to measure: it is nil")
	}
	if err := loss.Check(l); err != nil {
		return nil, err
	}
	main := e.Ranks == nil || e.Ranks.Rank() == 0
	var total loss.Result
	var failed error // the other ranks go on embedding with this one
	var guide *embedder.Engine
	if main && h.Guide != nil {
		var s gpustage.Stream
		if s, failed = h.Guide.Device.OpenStream(); failed == nil {
			guide = &embedder.Engine{Model: h.Guide, Stream: s}
			defer func() { err = errors.Join(err, guide.Close(), s.Close()) }()
		}
	}
	for i, b := range h.batches {
		if main && failed == nil { // batch by batch, as the others wait for it, and no longer than a deadline
			failed = h.look(ctx, i, guide)
		}
		parts, err := embedBatch(ctx, e, b)
		if err != nil {
			return nil, err
		}
		if !main || failed != nil {
			continue
		}
		r, err := h.compute(e, l, i, parts)
		if err != nil {
			failed = b.blame(err)
			continue
		}
		total.Sum, total.Weight = total.Sum+r.Sum, total.Weight+r.Weight
	}
	switch {
	case !main:
		return nil, nil
	case failed != nil:
		return nil, failed
	case total.Weight == 0:
		return nil, fmt.Errorf("%w: it is the mean over nothing, as no row counts in it", loss.ErrNotFinite)
	}
	return &total, nil
}

// embedBatch is what the model gives of a batch, on rank 0: of its embeddings [N, E], and of other parts the rows of all tokens that have some.
func embedBatch(ctx context.Context, e *embedder.Engine, b *Batch) (parts [][]float32, err error) {
	var texts, kinds [][]int32
	first := b.first()
	for n := first; n < b.N(); n++ {
		texts = append(texts, b.IDs[b.Cu[n]:b.Cu[n+1]])
		if b.Kinds != nil {
			kinds = append(kinds, b.Kinds[b.Cu[n]:b.Cu[n+1]])
		}
	}
	if h := e.Model.Config.Tokens; !h.None() {
		p, err := e.PartsOf(ctx, texts, func(i int) bool { return i < len(b.Rows) }, b.Seen, nil)
		switch {
		case err != nil || p == nil:
			return nil, err
		case h.Alone:
			return [][]float32{p.Vectors}, nil
		}
		return [][]float32{p.Dense, p.Weights, p.Vectors}, nil
	}
	size := e.Model.EmbeddingSize()
	x := make([]float32, b.N()*size) // queries that are read with their documents have none of their own
	put := func(from int) func(i int, vec []float32) {
		return func(i int, vec []float32) { copy(x[(from+i)*size:], vec) }
	}
	if b.Weighed {
		n := len(b.Rows)
		err := e.EmbedAs(ctx, embedder.Query, 0, texts[:n], put(0))
		if err == nil {
			err = e.Embed(ctx, texts[n:], put(n))
		}
		return [][]float32{x}, err
	}
	if kinds == nil {
		err = e.EmbedPrompted(ctx, texts, b.prompts(b.Prompt, first, b.N()), put(first))
	} else {
		err = e.EmbedTyped(ctx, texts, kinds, put(first))
	}
	return [][]float32{x}, err
}

// laid is batch i as a loss takes it, with room on a device for what the model gives of it, each part and its gradient, and for what the guide has seen:
// in held, in this order, which the caller frees.
func (h *HeldOut) laid(i int, m *transformer.Model, d gpustage.Device) (lb *loss.Batch, held []gpustage.Tensor, err error) {
	b := h.batches[i]
	tensor := func(rows, cols int) gpustage.Tensor {
		t, failed := gpustage.NewTensor(d, gpustage.F32, rows, cols)
		if failed == nil {
			held = append(held, t)
		}
		err = errors.Join(err, failed)
		return t
	}
	lb = b.forLoss(m)
	for _, p := range m.Parts() {
		rows := b.N()
		if p.Tokens {
			rows = b.at(rows)
		}
		x, g := tensor(rows, p.Size), tensor(rows, p.Size)
		if !p.Tokens {
			lb.Embeddings, lb.Gradient = x, g
			continue
		}
		part := loss.Part{Name: p.Name, X: x, Gradient: g}
		for n := range b.N() + 1 {
			part.Cu = append(part.Cu, int32(b.at(n)))
		}
		lb.Parts = append(lb.Parts, part)
	}
	if h.Guide != nil {
		lb.Guide = tensor(b.N(), h.Guide.EmbeddingSize())
	}
	return lb, held, err
}

// Memory is how many bytes of the device rank 0 takes to compute a loss of the batch that needs most, besides the model and its passes.
func (h *HeldOut) Memory(m *transformer.Model, l loss.Loss) (most int64) {
	for i := range h.batches {
		lb, held, _ := h.laid(i, m, gpustage.Dry{}) // which has room for all
		size := lb.Size()
		size.GPU = m.Device.Info().Threads == 0
		bytes := int64(l.Memory(size))
		for _, t := range held {
			bytes += int64(t.Mem.Bytes())
		}
		most = max(most, bytes)
	}
	return most
}

// compute is the loss of batch i.
func (h *HeldOut) compute(e *embedder.Engine, l loss.Loss, i int, parts [][]float32) (r loss.Result, err error) {
	s := e.Stream
	lb, held, err := h.laid(i, e.Model, e.Model.Device)
	defer func() {
		for _, t := range held {
			err = errors.Join(err, t.Mem.Free())
		}
	}()
	if err != nil {
		return r, err
	}
	for k, x := range parts {
		s.CopyIn(held[2*k], gpustage.Bytes(x))
	}
	if !lb.Guide.IsZero() {
		s.CopyIn(lb.Guide, gpustage.Bytes(h.looks[i]))
	}
	lb.Draw, lb.Step = Draw(0, 0, i), math.MaxInt
	fillGradient(s, lb, 0) // nobody asks for it
	a, err := gpustage.NewArena(e.Model.Device, l.Memory(lb.Size()))
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, a.Free()) }()
	r, err = l.Compute(s, a, lb)
	if done := s.Sync(); err == nil {
		err = errors.Join(done, r.Check())
	}
	if err == nil && !(finite(r.Sum) && finite(r.Weight)) {
		err = loss.ErrNotFinite
	}
	return r, err
}

// blame adds to a loss's error where the row stands that it is about.
func (b *Batch) blame(err error) error {
	at := func(row int) dataset.Location { return b.Data.Locate(b.Rows[row] - b.Offset) }
	var label *loss.LabelError
	var row *loss.RowError
	switch {
	case errors.As(err, &label):
		return fmt.Errorf("%v: %s", at(label.Row), label.Why)
	case errors.As(err, &row):
		return fmt.Errorf("%w: that of %v is %v", loss.ErrNotFinite, at(row.Row), row.Loss)
	}
	return err
}

// look embeds batch i with the guide, if there is one that has not yet done so.
func (h *HeldOut) look(ctx context.Context, i int, guide *embedder.Engine) (err error) {
	if guide == nil {
		return nil
	}
	if h.looks == nil {
		h.looks = make([][]float32, len(h.batches))
	}
	if h.looks[i] == nil {
		h.looks[i], err = h.batches[i].look(ctx, guide)
	}
	return err
}

// EvaluateLoss is [Evaluate] of a loss on held-out rows. Its results are nil after other steps, and on ranks but the first.
func EvaluateLoss(g *pipeline.Graph, steps pipeline.Port[StepResult], e *Encoder, h *HeldOut, l loss.Loss, due func(step int) bool) pipeline.Port[*loss.Result] {
	return evaluateStage(g, steps, e, due, func(ctx context.Context, engine *embedder.Engine) (*loss.Result, error) {
		return h.Loss(ctx, engine, l)
	})
}
