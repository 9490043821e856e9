package stages

import (
	"errors"
	"fmt"
	"slices"
	"sort"

	"contraflow/gpustage"
	"contraflow/pipeline"
	"contraflow/stages/transformer"
)

// With early gradients a rank has no room for a whole gradient: it holds its shares of the sum. A sub-batch's backward pass writes
// each layer's gradient into one of two buffers and hands it to the communication lane, where a stage beside it, "reduce early",
// reduces it along the shard axis and adds the rank's part to its share, while the layer below goes backward:
//
//	compute   back 2: L5 L4 L3 L2 L1 L0 emb | back 1: L5 ...
//	comm                 L5 L4 L3 L2 L1 L0 emb, rows | ...
//
// Of the word embeddings only rows travel: those that some rank of the axis has a token of, ascending, so that each owner's lie
// together and the reduction is a reduce-scatter too. Along the replicate axis shares are summed once a step: each layer's when the
// step's last sub-batch has been added, the table's from earlier sub-batches while the last one runs, and that one's rows at the end.
//
// What is frozen has no gradient: a layer in which nothing trains is passed over, and where nothing outside of layers trains there is
// no tail. Ranks without rows in a sub-batch add zeros. The order of additions is the plan's, as everywhere.

// earlyGradients is what an encoder has for it.
type earlyGradients struct {
	slots    *handover       // of layers
	tail     *handover       // of what is outside of layers, and rows of the word embeddings; nil if nothing of it trains
	tailSlot *slot           // its only one
	complete gpustage.Tensor // the whole gradient, for who wants to see it
	earlier  int             // sub-batches of the step that have been reduced
	reducing pipeline.Port[struct{}]
}

func (e *Encoder) openEarly() error {
	var err error
	if e.slots, err = e.layerSlots(e.longestLayer()); err != nil {
		return err
	}
	rest := e.restShare()
	if rest.empty() && !e.tableTrains() {
		return nil
	}
	e.tailSlot = &slot{}
	e.tail = newHandover(e.tailSlot)
	e.buffers = append(e.buffers, e.tailSlot)
	if rest.empty() {
		return nil
	}
	return e.grow(&e.tailSlot.mem, 1, rest.to-rest.from)
}

// layerPlace is where layer l is among shares that are by layer; the word embeddings are the first, what else is outside of layers the
// last.
func (e *Encoder) layerPlace(l int) int { return e.Model.Config.Layers - l }

func (e *Encoder) restShare() share { return e.shares[len(e.shares)-1] }

// tableShare is the word embeddings', whether they train or not.
func (e *Encoder) tableShare() share {
	if e.tableTrains() {
		return e.shares[0]
	}
	return e.frozen[0]
}

// wordRows are rows of the word embeddings that a sub-batch's tokens have on some ranks.
type wordRows struct {
	ids   []int32 // ascending
	parts []int   // how many of them each rank of the shard axis owns
	lo    int     // this rank's first
}

func (w wordRows) own(rank int) int { return w.parts[rank] }

// wordRows finds the rows of sub-batch u: those of the shard axis, or of all ranks.
func (e *Encoder) wordRows(g *Global, u int, all bool) wordRows {
	c := e.ranks.Comm
	replicate, _ := c.Mesh.Place(c.World.Rank())
	from, to := c.Mesh.Rank(replicate, 0), c.Mesh.Rank(replicate+1, 0)
	if all {
		from, to = 0, c.World.Size()
	}
	var lists [][]int32
	for _, p := range g.Peers[from:to] {
		if u < len(p.SubIDs) {
			lists = append(lists, p.SubIDs[u])
		}
	}
	return e.unite(lists)
}

// unite finds the rows of some ids.
func (e *Encoder) unite(lists [][]int32) (w wordRows) {
	c := e.ranks.Comm
	w.ids = slices.Concat(lists...)
	slices.Sort(w.ids)
	w.ids = slices.Compact(w.ids)
	x, at, row := e.tableShare(), 0, 0
	for rank, n := range x.parts {
		row += n / e.Model.Config.WordDim()
		end := sort.Search(len(w.ids), func(i int) bool { return int(w.ids[i]) >= row })
		w.parts = append(w.parts, end-at)
		if rank < c.Shard.Rank() {
			w.lo = end
		}
		at = end
	}
	return w
}

// places are where each token of sub-batch u has its row.
func (b *Batch) places(u int, w wordRows) (places []int32) {
	if u >= len(b.distinct) {
		return nil
	}
	return b.distinct[u].places(w)
}

func (l lastRows) places(w wordRows) (places []int32) {
	at := make([]int32, len(l.ids))
	for i, id := range l.ids {
		k, _ := slices.BinarySearch(w.ids, id)
		at[i] = int32(k)
	}
	for _, k := range l.index {
		places = append(places, at[k])
	}
	return places
}

// ownRows are the ids of own rows, from the first row that this rank owns.
func (e *Encoder) ownRows(w wordRows) []int32 {
	first := int32(e.tableShare().lo / e.Model.Config.WordDim())
	own := slices.Clone(w.ids[w.lo : w.lo+w.own(e.ranks.Comm.Shard.Rank())])
	for i := range own {
		own[i] -= first
	}
	return own
}

// rows views a share of the word embeddings.
func (e *Encoder) rows(own gpustage.Tensor) gpustage.Tensor {
	return own.Reshape(own.Cols/e.Model.Config.WordDim(), e.Model.Config.WordDim())
}

// beyond tells whether the sub-batch's gradients are to be summed along the replicate axis as well.
func (e *Encoder) beyond(last bool) bool { return last && e.ranks.Comm.Mesh.Replicate > 1 }

// beginEarly is where a sub-batch's backward pass puts its gradients; end comes after the pass.
func (e *Encoder) beginEarly(t *pipeline.Task, sub SubBatch, last bool) (to transformer.Gradients, end func(), err error) {
	s := Stream(t)
	var tail *slot
	if e.tail != nil {
		if tail, err = e.takeTail(t, sub, last, &to); err != nil {
			return to, nil, err
		}
	}
	var x *slot
	to.Layer = func(l int) gpustage.Tensor {
		from, end := e.Model.Layout.Span(l)
		if x, err = take(t, s, e.slots.free, true); err != nil {
			s.Fail(err)
			return nowhere(e.Model.DType, end-from)
		}
		x.what = l
		grads := x.mem.Columns(0, end-from)
		s.Fill(grads, 0)
		return grads
	}
	bottom := map[int]bool{}
	for l := range e.Model.Config.Layers {
		if from, to := e.Model.Layout.Span(l); from < to {
			bottom[from] = true
		}
	}
	to.Done = func(mark int) {
		if err == nil && bottom[mark] {
			pass(s, e.slots.full, x)
			if e.ranks.NoOverlap {
				s.Fail(e.reduceLayer(t, last))
			}
		}
	}
	if e.ranks.NoOverlap {
		e.reduceTable(t, last)
	}
	return to, func() {
		if err != nil || tail == nil {
			return
		}
		pass(s, e.tail.full, tail)
		if e.ranks.NoOverlap {
			s.Fail(e.reduceTail(t, sub.Batch, last))
		}
	}, nil
}

// takeTail prepares for the gradients of what is outside of layers.
func (e *Encoder) takeTail(t *pipeline.Task, sub SubBatch, last bool, to *transformer.Gradients) (*slot, error) {
	s, u := Stream(t), t.Index.Sub
	tail, err := take(t, s, e.tail.free, true)
	if err != nil {
		return nil, err
	}
	if to.Rest = tail.mem; !to.Rest.IsZero() {
		s.Fill(to.Rest, 0)
	}
	if !e.tableTrains() {
		return tail, nil
	}
	w := e.wordRows(sub.Batch.Global, u, e.beyond(last))
	places := sub.Batch.places(u, w)
	if err := e.growWords(tail, w, len(places)); err != nil {
		return nil, err
	}
	to.WordRows, to.WordIndex = tail.rows.Span(0, len(w.ids)), tail.index.Span(0, len(places)).Vector()
	if len(w.ids) > 0 {
		s.Fill(to.WordRows, 0)
	}
	if len(places) > 0 {
		s.CopyIn(to.WordIndex, gpustage.Bytes(places))
	}
	return tail, nil
}

// nowhere stands for memory that a stream which has failed does not touch.
func nowhere(t gpustage.DType, n int) gpustage.Tensor {
	x, _ := gpustage.NewTensor(gpustage.Dry{}, t, 1, n)
	return x
}

// reduceEarly adds the stage beside backward.
func (e *Encoder) reduceEarly(g *pipeline.Graph, subs pipeline.Port[SubBatch], grads pipeline.Port[Gradient]) {
	if !e.ranks.early() || e.ranks.NoOverlap {
		return
	}
	s := g.Stage(ReduceEarly, e.OnComm(), pipeline.Descending())
	in := pipeline.In(s, "sub-batches", subs)
	pipeline.In(s, "gradient", grads) // nothing else is under way on this lane then
	out := pipeline.Out[struct{}](s, "reduced")
	e.reducing = out.Port
	s.Do(func(t *pipeline.Task) error {
		b := in.Get(t).Batch
		last := t.Index.Sub == 0 && b.EndsStep
		e.reduceTable(t, last)
		for l := range e.Model.Config.Layers {
			if e.Model.Layout.Part(l).Trained() == 0 {
				continue
			}
			if err := e.reduceLayer(t, last); err != nil {
				return err
			}
		}
		var err error
		if e.tail != nil {
			err = e.reduceTail(t, b, last)
		}
		out.Put(t, struct{}{})
		return err
	})
}

// part is a part of a task on a communication lane, with what it sends; a computing task has none. A task that is one part, without a name, is
// counted when that ends, before it gives anything: the step may be over, and its bytes summed up, before the task itself ends.
func (e *Encoder) part(t *pipeline.Task, name string) (end func()) {
	sent := e.count(t)
	if e.ranks.NoOverlap {
		return sent
	}
	done := t.Part(name)
	return func() {
		sent()
		done()
	}
}

// reduceTable sums the word embeddings' shares along the replicate axis, as far as earlier sub-batches go, before the last one.
func (e *Encoder) reduceTable(t *pipeline.Task, last bool) {
	if e.beyond(last) && e.earlier > 0 && e.tableTrains() {
		defer e.part(t, "table")()
		x := e.shares[0]
		e.ranks.Comm.Replicate.AllReduce(Stream(t), e.grads.Columns(x.at, x.at+x.len()), e.wire())
	}
	if e.earlier++; last {
		e.earlier = 0
	}
}

// reduceLayer reduces the next layer's gradient.
func (e *Encoder) reduceLayer(t *pipeline.Task, last bool) error {
	s := Stream(t)
	x, err := take(t, s, e.slots.full, false)
	if err != nil {
		return err
	}
	defer e.part(t, fmt.Sprintf("layer %d", x.what))()
	e.addShare(s, e.shares[e.layerPlace(x.what)], x.mem, last)
	pass(s, e.slots.free, x)
	return nil
}

// addShare reduces gradients along the shard axis and adds the own part to this rank's share.
func (e *Encoder) addShare(s gpustage.Stream, x share, mem gpustage.Tensor, last bool) {
	c := e.ranks.Comm
	own := column(mem, x.lo-x.from, x.hi-x.from)
	c.Shard.ReduceScatter(s, own, column(mem, 0, x.to-x.from), x.parts, e.wire())
	sum := e.grads.Columns(x.at, x.at+x.len())
	if x.len() > 0 {
		s.Add(sum, sum, own.Vector())
	}
	if e.beyond(last) {
		c.Replicate.AllReduce(s, sum, e.wire())
	}
}

// reduceTail reduces what is outside of layers, and rows of the word embeddings.
func (e *Encoder) reduceTail(t *pipeline.Task, b *Batch, last bool) error {
	s, c := Stream(t), e.ranks.Comm
	tail, err := take(t, s, e.tail.full, false)
	if err != nil {
		return err
	}
	defer e.part(t, "embeddings")()
	if rest := e.restShare(); !rest.empty() {
		e.addShare(s, rest, tail.mem, last)
	}
	var w wordRows
	if e.tableTrains() {
		w = e.wordRows(b.Global, t.Index.Sub, e.beyond(last))
	}
	if len(w.ids) > 0 {
		ids := e.ownRows(w)
		own := tail.rows.Span(w.lo, w.lo+len(ids))
		c.Shard.ReduceScatter(s, own, tail.rows.Span(0, len(w.ids)), w.parts, e.wire())
		if e.beyond(last) {
			c.Replicate.AllReduce(s, own.Vector(), e.wire())
		}
		if len(ids) > 0 {
			at := tail.ids.Span(0, len(ids)).Vector()
			s.CopyIn(at, gpustage.Bytes(ids))
			table := e.shares[0]
			s.ScatterAdd(e.rows(e.grads.Columns(table.at, table.at+table.len())), own, at)
		}
	}
	pass(s, e.tail.free, tail)
	return nil
}

// growWords makes room for rows of the word embeddings and for the tokens' places in them.
func (e *Encoder) growWords(x *slot, w wordRows, tokens int) error {
	if err := e.grow(&x.rows, max(1, len(w.ids)), e.Model.Config.WordDim()); err != nil {
		return fmt.Errorf("%d rows of word embeddings: %w", len(w.ids), err)
	}
	return errors.Join(e.growTyped(&x.index, gpustage.I32, max(1, tokens), 1),
		e.growTyped(&x.ids, gpustage.I32, max(1, w.own(e.ranks.Comm.Shard.Rank())), 1))
}
