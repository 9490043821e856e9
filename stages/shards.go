package stages

import (
	"fmt"
	"slices"
	"sort"

	"contraflow/collective"
	"contraflow/gpustage"
	"contraflow/pipeline"
	"contraflow/stages/optim"
	"contraflow/stages/transformer"
)

// Ranks along the mesh's shard axis hold a part each of the optimizer's state: of the word embeddings an equal number of rows, and
// of every bucket an equal part. A rank updates what it holds the state of. How much else is cut the same way is a choice:
//
//	gradients late     every rank adds up whole gradients; a bucket's reduction, once a step, is a reduce-scatter along the shard
//	                   axis and an all-reduce of the own part along the replicate axis
//	gradients early    every sub-batch's gradients are reduced to their shares while it goes backward: see early.go
//	params resident    every rank has all parameters; a stage after the update, spread, gives each the others' (one all-gather per
//	                   bucket and step), and the next step's embed waits for it
//	params streamed    every rank holds its shares, and layers are fetched while the one before computes: see streamed.go
//
// With P parameters, G = P, n sub-batches, S shards: bytes held and sent by a rank, in units of P and (S-1)/S P
//
//	                     parameters    gradients    sent per step
//	resident, late       1             1            2
//	resident, early      1             1/S          1 + n
//	streamed, early      1/S           1/S          n (1 reduced + 2 or 3 fetched)
//
// but for a few layers under way, and the word embeddings, of which only rows travel in early and streamed modes. With frozen
// parameters (LoRA, model.freeze) P of the column "parameters" and of what is fetched is all of them, that of everything else what
// trains. What is frozen is cut by itself, so that the rank that updates a parameter is the one that holds it: a layer in which some
// parameters train takes two all-gathers.

// sharded tells whether a rank updates a part of the parameters alone; early and streams which of that is cut besides.
func (r *Replicas) sharded() bool { return r != nil && r.Comm.Mesh.Shard > 1 }
func (r *Replicas) early() bool   { return r.sharded() && r.Early && !r.EverySubBatch }
func (r *Replicas) streams() bool { return r.sharded() && r.Streamed }

// share is a part of the flat gradient, or of the frozen parameters, cut for the shard axis. On rank 1 of 3:
//
//	flat gradient       from          lo            hi           to
//	               ...   | parts[0]   | parts[1]     | parts[2]   |  ...      a bucket, or the word embeddings
//	                                  |              |
//	the rank's shares          ...    at        at + hi - lo  ...             one after another
type share struct {
	name     string
	from, to int
	parts    []int // lengths, by rank of the axis
	lo, hi   int   // this rank's
	at       int   // where this rank's begins in vectors that hold its shares side by side, in ascending order
}

func (x share) len() int { return x.hi - x.lo }

// empty tells that there is nothing in it on any rank.
func (x share) empty() bool { return x.from == x.to }

// shares is the word embeddings' share, and those of the buckets; none without a shard axis.
func (r *Replicas) shares(l *transformer.Layout, t gpustage.DType) []share {
	if !r.sharded() {
		return nil
	}
	from, to := tableOf(l)
	if r.byLayer() {
		return r.layerShares(l, from, to, l.Span)
	}
	var out []share
	if from < to {
		out = append(out, r.share("table", from, to, l.Word().Cols))
	}
	for _, b := range r.cut(l, t) {
		out = append(out, r.share(b.name, b.from, b.to, 1))
	}
	return side(out)
}

// frozen is the shares of frozen parameters, each beside that of shares with the same place, where parameters are streamed.
func (r *Replicas) frozen(l *transformer.Layout) []share {
	if !r.streams() {
		return nil
	}
	from, to := 0, 0
	if word := l.Word(); !l.Trains(word) {
		from, to = word.Off, word.Off+word.Len()
	}
	return r.layerShares(l, from, to, l.SpanFrozen)
}

// byLayer tells whether layers travel one by one.
func (r *Replicas) byLayer() bool { return r.early() || r.streams() }

// layerShares are the word embeddings' share, those of layers from the top one down, and that of what else there is: each may be of
// nothing.
func (r *Replicas) layerShares(l *transformer.Layout, from, to int, span func(layer int) (from, to int)) []share {
	out := []share{r.share("table", from, to, l.Word().Cols)}
	for layer := topLayer(l); layer >= 0; layer-- {
		from, to := span(layer)
		out = append(out, r.share(fmt.Sprintf("layer %d", layer), from, to, 1))
	}
	from, to = span(transformer.Outside)
	return side(append(out, r.share("embeddings", from, to, 1)))
}

// share cuts a part of a vector: units stay whole.
func (r *Replicas) share(name string, from, to, unit int) share {
	axis := r.Comm.Shard
	x := share{name: name, from: from, to: to, lo: from}
	at := 0
	for rank, n := range collective.Parts(to-from, axis.Size()) {
		if unit > 1 { // whole rows
			_, end := Slice((to-from)/unit, rank, axis.Size())
			n = end*unit - at
		}
		x.parts = append(x.parts, n)
		if rank < axis.Rank() {
			x.lo += n
		}
		at += n
	}
	x.hi = x.lo + x.parts[axis.Rank()]
	return x
}

// side gives this rank's parts their places side by side.
func side(out []share) []share {
	order := make([]*share, len(out))
	for i := range out {
		order[i] = &out[i]
	}
	sort.Slice(order, func(i, j int) bool { return order[i].lo < order[j].lo })
	at := 0
	for _, x := range order {
		x.at = at
		at += x.len()
	}
	return out
}

// Own is what transformer.Options.Own wants for models that are trained with these ranks: nil unless parameters are streamed.
func (r *Replicas) Own() func(*transformer.Layout) [][2]int {
	if !r.streams() {
		return nil
	}
	return func(l *transformer.Layout) [][2]int {
		own := ranges(r.frozen(l))
		for _, x := range ranges(r.shares(l, gpustage.F32)) {
			own = append(own, [2]int{l.Frozen + x[0], l.Frozen + x[1]})
		}
		return own
	}
}

// piece is what this rank holds of a share of streamed parameters.
type piece struct {
	share
	own gpustage.Tensor // [1, len]
}

// pieces make up the parameters at a place among shares: first what is frozen of them, then what trains.
func (e *Encoder) pieces(i int) (out []piece) {
	if x := e.frozen[i]; !x.empty() {
		out = append(out, piece{x, e.Model.Params.Columns(x.at, x.at+x.len())})
	}
	if x := e.shares[i]; !x.empty() {
		out = append(out, piece{x, e.Model.Trained().Columns(x.at, x.at+x.len())})
	}
	return out
}

// ranges are this rank's parts, in ascending order.
func ranges(shares []share) (out [][2]int) {
	for _, x := range shares {
		out = append(out, [2]int{x.lo, x.hi})
	}
	sort.Slice(out, func(i, j int) bool { return out[i][0] < out[j][0] })
	return out
}

// owned is the parameters that this rank updates, and how many they are. rates are learning rates of all that train, or nil.
func (e *Encoder) owned(rates []float64) ([]optim.Segment, int) {
	l := e.Model.Layout
	var all []optim.Segment
	for i, p := range l.Training() {
		at := l.At(p)
		s := optim.Segment{Off: at, Grad: at, Len: p.Len(), State: at, Decay: p.Decay()}
		if rates != nil {
			s.LR = rates[i]
		}
		all = append(all, s)
	}
	if !e.ranks.sharded() {
		return optim.Segments(all), l.Trained()
	}
	segs, n := optim.Owned(all, ranges(e.shares))
	for i := range segs { // states lie as shares do, side by side
		if e.ranks.early() {
			segs[i].Grad = segs[i].State
		}
		if e.ranks.streams() {
			segs[i].Off = segs[i].State
		}
	}
	return optim.Segments(segs), n
}

// ownGradients is where this rank's part of the sum lies.
func (e *Encoder) ownGradients() (out []gpustage.Tensor) {
	segs, _ := e.owned(nil)
	for _, s := range segs {
		out = append(out, e.grads.Columns(s.Grad, s.Grad+s.Len))
	}
	return out
}

// Complete is the whole gradient on every rank, where ranks have shares of it. It is a collective: see OnComm. What it returns
// is Gradients, or valid until the next call.
func (e *Encoder) Complete(s gpustage.Stream) (gpustage.Tensor, error) {
	whole := e.grads
	if e.ranks.early() {
		if err := e.grow(&e.complete, 1, e.Model.Layout.Trained()); err != nil {
			return whole, fmt.Errorf("the whole gradient: %w", err)
		}
		whole = e.complete
	}
	for _, x := range e.shares {
		if x.empty() {
			continue
		}
		own := column(whole, x.lo, x.hi)
		if e.ranks.early() {
			own = column(e.grads, x.at, x.at+x.len())
		}
		e.ranks.Comm.Shard.AllGather(s, column(whole, x.from, x.to), own, x.parts, e.Model.DType)
	}
	return whole, nil
}

// column views a part of a flat vector as rows of one element, as ragged collectives have it.
func column(flat gpustage.Tensor, from, to int) gpustage.Tensor {
	return flat.Columns(from, to).Reshape(to-from, 1)
}

// reduce sums a part of the whole gradient over all ranks; with shards, each gets its share of the sum. from and to are the word
// embeddings' or a bucket's.
func (e *Encoder) reduce(s gpustage.Stream, from, to int) {
	c := e.ranks.Comm
	if !e.ranks.sharded() {
		c.World.AllReduce(s, e.grads.Columns(from, to), e.wire())
		return
	}
	x := e.shareAt(from)
	own := column(e.grads, x.lo, x.hi)
	c.Shard.ReduceScatter(s, own, column(e.grads, from, to), x.parts, e.wire())
	if c.Mesh.Replicate > 1 {
		c.Replicate.AllReduce(s, own.Vector(), e.wire())
	}
}

// shareAt is the share that begins at an element.
func (e *Encoder) shareAt(from int) share {
	for _, x := range e.shares {
		if x.from == from && !x.empty() {
			return x
		}
	}
	panic(fmt.Sprintf("stages: no share begins at %d", from))
}

// squares adds the stage that sums the squares of the whole gradient over the shard axis, for update; without shards update does
// it by itself. Each share lies on one rank of the axis, so everything counts once.
func (e *Encoder) squares(g *pipeline.Graph, contributions pipeline.Port[Contribution], sum gpustage.Tensor, update *pipeline.Stage) {
	if !e.ranks.sharded() {
		return
	}
	s := g.Stage("norm", e.OnComm(), pipeline.At(pipeline.Step))
	pipeline.Collect(s, "contributions", contributions)
	e.AfterSync(s)
	out := pipeline.Out[struct{}](s, "norm")
	pipeline.In(update, "norm", out.Port)
	s.Do(func(t *pipeline.Task) error {
		end, stream := e.part(t, ""), Stream(t)
		stream.Fill(sum, 0)
		for _, x := range e.ownGradients() {
			stream.SumSquares(sum, x)
		}
		e.ranks.Comm.Shard.AllReduce(stream, sum, gpustage.F64)
		end()
		out.Put(t, struct{}{})
		return nil
	})
}

// spread adds the stage that gives every rank the parameters that the others have updated: all of them, or with streamed parameters
// those that stay everywhere.
func (e *Encoder) spread(g *pipeline.Graph, updated pipeline.Port[StepResult]) pipeline.Port[StepResult] {
	s := g.Stage("spread", e.OnComm(), pipeline.At(pipeline.Step))
	in := pipeline.In(s, "updated", updated)
	weights := pipeline.Out[Weights](s, "weights")
	out := pipeline.Out[StepResult](s, "result")
	pipeline.Bind(e.weights, weights)
	s.Do(func(t *pipeline.Task) error {
		m, end := e.Model, e.part(t, "")
		m.Change(Stream(t), func() {
			for _, x := range e.spreads() {
				params, own := m.Trained(), column(m.Trained(), x.lo, x.hi)
				all := column(params, x.from, x.to)
				if e.ranks.streams() {
					rest := m.Layout.Part(transformer.Outside)
					all, own = column(m.Rest, rest.Frozen, rest.Len), column(params, x.at, x.at+x.len())
				}
				e.ranks.Comm.Shard.AllGather(Stream(t), all, own, x.parts, m.DType)
			}
		})
		end() // before the step's result is known: who gets it may communicate through the same groups, to save for one
		weights.Put(t, Weights{})
		out.Put(t, in.Get(t))
		return nil
	})
	return out.Port
}

// spreads is what spread gives to all ranks.
func (e *Encoder) spreads() []share {
	all := e.shares
	if e.ranks.streams() {
		all = all[len(all)-1:] // what is outside of layers
	}
	return slices.DeleteFunc(slices.Clone(all), share.empty)
}

// Parameters calls yield with the elements of every parameter that is wanted, on the host, in the layout's order. Where ranks hold
// shares, it is a collective of the shard axis, and a piece at a time passes through the device.
func (r *Replicas) Parameters(s gpustage.Stream, m *transformer.Model, want func(transformer.Param) bool, yield func(p transformer.Param, vs []float32) error) error {
	if !m.Partial() {
		for _, p := range m.Layout.Params {
			if !want(p) {
				continue
			}
			vs, err := m.Read(s, m.Params, p)
			if err == nil {
				err = yield(p, vs)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	const most = 1 << 18 // elements of a piece
	piece, err := gpustage.NewTensor(m.Device, m.DType, 1, most)
	if err != nil {
		return err
	}
	defer piece.Mem.Free()
	shares := r.frozen(m.Layout)
	for _, x := range r.shares(m.Layout, m.DType) { // as they lie in the whole vector
		x.from, x.to, x.lo, x.hi = x.from+m.Layout.Frozen, x.to+m.Layout.Frozen, x.lo+m.Layout.Frozen, x.hi+m.Layout.Frozen
		x.at += m.Params.Cols - m.Trained().Cols
		shares = append(shares, x)
	}
	slices.SortStableFunc(shares, func(a, b share) int { return a.from - b.from })
	left := m.Layout.Params
	for _, x := range shares { // each is of whole parameters
		n := 0
		for n < len(left) && left[n].Off < x.to {
			n++
		}
		var ps []transformer.Param
		ps, left = left[:n], left[n:]
		if !slices.ContainsFunc(ps, want) {
			continue
		}
		var host []float32
		at := x.from
		for owner, n := range x.parts {
			for end := at + n; at < end; {
				k := min(most, end-at)
				part := piece.Columns(0, k)
				if owner == r.Comm.Shard.Rank() {
					s.Copy(part, m.Params.Columns(x.at+at-x.lo, x.at+at-x.lo+k))
				}
				r.Comm.Shard.Broadcast(s, part, owner)
				vs, err := m.ReadVector(s, part)
				if err != nil {
					return err
				}
				host = append(host, vs...)
				for at += k; len(ps) > 0 && len(host) >= ps[0].Len(); ps = ps[1:] {
					p := ps[0]
					vs := host[:p.Len():p.Len()]
					host = append(make([]float32, 0, len(host)-p.Len()), host[p.Len():]...)
					if !want(p) {
						continue
					}
					if err := yield(p, vs); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}
