package stages

import (
	"contraflow/collective"
	"contraflow/gpustage"
	"contraflow/pipeline"
)

// Ranks along the mesh's shard axis hold a part of the gradients' sums and of the optimizer's state each: of every bucket, and
// of the word embeddings, an equal part. A bucket's reduction is a reduce-scatter along that axis and an all-reduce of the
// own part along the replicate axis; the update touches own parameters alone; a stage after it, spread, gives each rank the
// others' (one all-gather per bucket and step), and the next step's embed waits for it.

// sharded tells whether this rank updates a part of the parameters alone.
func (e *Encoder) sharded() bool { return e.ranks != nil && e.ranks.Comm.Mesh.Shard > 1 }

// share is a part of the flat gradient, cut for the shard axis.
type share struct {
	from, to int
	parts    []int // lengths, by rank of the axis
	lo, hi   int   // this rank's
}

func (e *Encoder) share(from, to int) share {
	axis := e.ranks.Comm.Shard
	s := share{from: from, to: to, parts: collective.Parts(to-from, axis.Size()), lo: from}
	for _, n := range s.parts[:axis.Rank()] {
		s.lo += n
	}
	s.hi = s.lo + s.parts[axis.Rank()]
	return s
}

// whole is the shares that make up the flat gradient; none without shards.
func (e *Encoder) whole() []share {
	if !e.sharded() {
		return nil
	}
	var out []share
	if from, to := e.table(); from < to {
		out = append(out, e.share(from, to))
	}
	for _, b := range e.cut() {
		out = append(out, e.share(b.from, b.to))
	}
	return out
}

// Complete makes Gradients the whole gradient on every rank, where ranks have shares of it. It is a collective: see OnComm.
func (e *Encoder) Complete(s gpustage.Stream) {
	for _, x := range e.whole() {
		e.ranks.Comm.Shard.AllGather(s, column(e.grads, x.from, x.to), column(e.grads, x.lo, x.hi), x.parts, e.Model.DType)
	}
}

// owned is the ranges of the parameters that train which this rank updates.
func (e *Encoder) owned() [][2]int {
	if !e.sharded() {
		return [][2]int{{0, e.Model.Layout.Trained()}}
	}
	var out [][2]int
	for _, s := range e.whole() {
		out = append(out, [2]int{s.lo, s.hi})
	}
	return out
}

// column views a part of a flat vector as rows of one element, as ragged collectives have it.
func column(flat gpustage.Tensor, from, to int) gpustage.Tensor {
	return flat.Columns(from, to).Reshape(to-from, 1)
}

// reduce sums a part of the gradient over all ranks; with shards, each gets its share of the sum.
func (e *Encoder) reduce(s gpustage.Stream, from, to int) {
	c := e.ranks.Comm
	if !e.sharded() {
		c.World.AllReduce(s, e.grads.Columns(from, to), e.wire())
		return
	}
	x := e.share(from, to)
	own := column(e.grads, x.lo, x.hi)
	c.Shard.ReduceScatter(s, own, column(e.grads, from, to), x.parts, e.wire())
	if c.Mesh.Replicate > 1 {
		c.Replicate.AllReduce(s, own.Vector(), e.wire())
	}
}

// squares adds the stage that sums the squares of the whole gradient over the shard axis, for update; without shards update does
// it by itself. Each share lies on one rank of the axis, so everything counts once.
func (e *Encoder) squares(g *pipeline.Graph, contributions pipeline.Port[Contribution], sum gpustage.Tensor, update *pipeline.Stage) {
	if !e.sharded() {
		return
	}
	s := g.Stage("norm", e.OnComm(), pipeline.At(pipeline.Step))
	pipeline.Collect(s, "contributions", contributions)
	e.AfterSync(s)
	out := pipeline.Out[struct{}](s, "norm")
	pipeline.In(update, "norm", out.Port)
	s.Do(func(t *pipeline.Task) error {
		defer e.count(t)()
		stream := Stream(t)
		stream.Fill(sum, 0)
		for _, r := range e.owned() {
			if r[0] < r[1] {
				stream.SumSquares(sum, e.grads.Columns(r[0], r[1]))
			}
		}
		e.ranks.Comm.Shard.AllReduce(stream, sum, gpustage.F64)
		out.Put(t, struct{}{})
		return nil
	})
}

// spread adds the stage that gives every rank the parameters that the others have updated.
func (e *Encoder) spread(g *pipeline.Graph, updated pipeline.Port[StepResult]) pipeline.Port[StepResult] {
	s := g.Stage("spread", e.OnComm(), pipeline.At(pipeline.Step))
	in := pipeline.In(s, "updated", updated)
	weights := pipeline.Out[Weights](s, "weights")
	out := pipeline.Out[StepResult](s, "result")
	pipeline.Bind(e.weights, weights)
	s.Do(func(t *pipeline.Task) error {
		defer e.count(t)()
		params := e.Model.Trained()
		for _, x := range e.whole() {
			e.ranks.Comm.Shard.AllGather(Stream(t), column(params, x.from, x.to), column(params, x.lo, x.hi), x.parts, e.Model.DType)
		}
		e.Model.Changed()
		weights.Put(t, Weights{})
		out.Put(t, in.Get(t))
		return nil
	})
	return out.Port
}
