package stages

import (
	"contraflow/gpustage"
	"contraflow/stages/transformer"
)

// Together lets the ranks of a run embed texts together between two steps, for evaluation: each takes some of the passes, so nobody
// waits for one rank to embed a corpus, and with streamed parameters nobody needs all of them. Its methods are those of
// embedder.Sharing. It works on the compute lane, through the communication lane's communicators: nothing is under way there before
// the next step's first sub-batch is embedded.
type Together struct {
	e           *Encoder
	layer, rows *slot
	held        int // the layer that was gathered last, or -1
	tokens      int // of this rank's pass
}

// newTogether is for evaluation of the encoder's model, nil on a rank alone. Close it.
func (e *Encoder) newTogether() *Together {
	if e.ranks == nil {
		return nil
	}
	x := &Together{e: e, layer: &slot{}, rows: &slot{}}
	e.buffers = append(e.buffers, x.layer, x.rows)
	return x
}

// Model is the encoder's model for these passes.
func (x *Together) Model() *transformer.Model {
	m := *x.e.Model
	if m.Partial() {
		m.Feed = x
	}
	return &m
}

// Rank and Size are of all ranks.
func (x *Together) Rank() int { return x.e.ranks.Rank() }
func (x *Together) Size() int { return x.e.ranks.Size() }

// Begin comes before each round with every rank's token ids, none on a rank without a pass.
func (x *Together) Begin(s gpustage.Stream, passes [][]int32) error {
	if !x.e.Model.Partial() {
		return nil
	}
	c := x.e.ranks.Comm
	replicate, _ := c.Mesh.Place(c.World.Rank())
	own := distinctIDs(passes[c.World.Rank()])
	w := x.e.unite(passes[c.Mesh.Rank(replicate, 0):c.Mesh.Rank(replicate+1, 0)])
	x.held, x.tokens = -1, len(own.index)
	if x.layer.mem.IsZero() {
		if err := x.e.grow(&x.layer.mem, 1, x.e.longestPart()); err != nil {
			return err
		}
	}
	return x.e.gatherWords(s, c.Shard, x.rows, w, own.places(w))
}

// Skip takes part in a round without a pass.
func (x *Together) Skip(s gpustage.Stream) {
	if m := x.e.Model; m.Partial() {
		for l := range m.Config.Layers {
			x.Layer(s, l)
		}
	}
}

// Gather gives every rank the embeddings of all, in the order of ranks.
func (x *Together) Gather(s gpustage.Stream, dst, src gpustage.Tensor, rows []int) {
	x.e.ranks.Comm.World.AllGather(s, dst, src, rows, x.e.Model.DType)
}

// Words are those of the round.
func (x *Together) Words(gpustage.Stream) (table, index gpustage.Tensor) {
	return x.rows.rows, x.rows.index.Span(0, x.tokens).Vector()
}

// Layer gathers a layer's parameters.
func (x *Together) Layer(s gpustage.Stream, l int) gpustage.Tensor {
	if x.held != l {
		x.e.gatherLayer(s, x.e.ranks.Comm.Shard, x.layer.mem, l)
		x.held = l
	}
	return x.layer.mem.Columns(0, x.e.Model.Layout.Part(l).Len)
}

// Close gives its memory back.
func (x *Together) Close() error {
	if x == nil {
		return nil
	}
	for _, t := range []*gpustage.Tensor{&x.layer.mem, &x.rows.rows, &x.rows.index, &x.rows.ids} {
		if t.IsZero() {
			continue
		}
		x.e.hold(-int64(t.Mem.Bytes()))
		if err := t.Mem.Free(); err != nil {
			return err
		}
		*t = gpustage.Tensor{}
	}
	return nil
}
