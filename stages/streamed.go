package stages

import (
	"fmt"

	"contraflow/collective"
	"contraflow/gpustage"
	"contraflow/pipeline"
	"contraflow/stages/transformer"
)

// With streamed parameters a rank holds its shares of them. Beside embed and backward a stage runs on a lane of its own, with a
// communicator of its own (reductions of gradients go on meanwhile): it gathers what the passes will ask for, in their order
// (transformer's Visits), into one of two buffers, while the layer in the other one computes:
//
//	fetch     words 0, L0 | L1 | L2 | ... | words 1, L0 | ...
//	compute               | L0 | L1 | ...
//
// A layer travels with what is frozen of it. Of the word embeddings only the rows travel that some rank of the shard axis has a
// token of. What else is outside of layers is small and stays everywhere (see spread). All ranks of the axis gather together, so
// they must ask for the same: a rank without rows asks all the same, and which sub-batches are replayed, which depends on a rank's
// rows and memory, is agreed upon in the header: the fewest that any rank can keep are kept everywhere.

// streamedParameters is what an encoder has for it.
type streamedParameters struct {
	layers *handover
	words  *handover
	feed   *feed

	wordsSlot *slot // its only one
}

func (e *Encoder) openStreamed() error {
	var err error
	if e.layers, err = e.layerSlots(e.longestPart()); err != nil {
		return err
	}
	e.wordsSlot = &slot{}
	e.words = newHandover(e.wordsSlot)
	e.buffers = append(e.buffers, e.wordsSlot)
	e.feed = &feed{e: e}
	e.Model.Feed = e.feed
	e.ranks.keepFrom = func(b *Batch) int {
		e.measure(b)
		return keepWithin(b.memory, b.budget, 0).from
	}
	return nil
}

// longestPart is the elements of the largest layer, longestLayer those that train of the layer that has most of them.
func (e *Encoder) longestPart() (n int) {
	for l := range e.Model.Config.Layers {
		n = max(n, e.Model.Layout.Part(l).Len)
	}
	return n
}

func (e *Encoder) longestLayer() (n int) {
	for l := range e.Model.Config.Layers {
		n = max(n, e.Model.Layout.Part(l).Trained())
	}
	return n
}

// visits is what embed or backward asks for in a sub-batch.
func (e *Encoder) visits(g *Global, u int, backward bool) []int {
	if backward {
		return e.Model.Visits(u < g.keepFrom, true)
	}
	return e.Model.Visits(true, false)
}

// fetch adds the stage beside embed or backward.
func (e *Encoder) fetch(g *pipeline.Graph, subs pipeline.Port[SubBatch], backward bool) {
	if !e.ranks.streams() || e.ranks.NoOverlap {
		return
	}
	name, opts := FetchForEmbed, []pipeline.Option{pipeline.On(e.device, pipeline.Fetch)}
	if backward {
		name, opts = FetchForBackward, append(opts, pipeline.Descending())
	}
	s := g.Stage(name, opts...)
	in := pipeline.In(s, "sub-batches", subs)
	pipeline.Loop(s, "weights", e.weights, Weights{})
	s.Do(func(t *pipeline.Task) error {
		b, stream := in.Get(t).Batch, Stream(t)
		for _, l := range e.visits(b.Global, t.Index.Sub, backward) {
			from := e.layers
			if l == transformer.VisitWords {
				from = e.words
			}
			x, err := take(t, stream, from.free, false)
			if err != nil {
				return err
			}
			if err := e.fetchOne(t, b, x, l); err != nil {
				return err
			}
			pass(stream, from.full, x)
		}
		return nil
	})
}

// fetchOne gathers a layer, or rows of the word embeddings.
func (e *Encoder) fetchOne(t *pipeline.Task, b *Batch, x *slot, l int) error {
	s, group := Stream(t), e.ranks.Params
	sent := e.count(t, group)
	end := func() {}
	x.what = l
	if l == transformer.VisitWords {
		if !e.ranks.NoOverlap {
			end = t.Part("words")
		}
		w := e.wordRows(b.Global, t.Index.Sub, false)
		if err := e.gatherWords(s, group, x, w, b.places(t.Index.Sub, w)); err != nil {
			return err
		}
	} else {
		if !e.ranks.NoOverlap {
			end = t.Part(fmt.Sprintf("layer %d", l))
		}
		e.gatherLayer(s, group, x.mem, l)
	}
	sent()
	end()
	return nil
}

// gatherLayer brings layer l's parameters together.
func (e *Encoder) gatherLayer(s gpustage.Stream, group collective.Group, mem gpustage.Tensor, l int) {
	at := 0
	for _, x := range e.pieces(e.layerPlace(l)) {
		n := x.to - x.from
		group.AllGather(s, column(mem, at, at+n), column(x.own, 0, x.len()), x.parts, e.Model.DType)
		at += n
	}
}

// gatherWords brings rows of the word embeddings together.
func (e *Encoder) gatherWords(s gpustage.Stream, group collective.Group, x *slot, w wordRows, places []int32) error {
	if err := e.growWords(x, w, len(places)); err != nil {
		return err
	}
	if len(places) > 0 {
		s.CopyIn(x.index.Span(0, len(places)).Vector(), gpustage.Bytes(places))
	}
	if len(w.ids) == 0 {
		return nil
	}
	all, ids := x.rows.Span(0, len(w.ids)), e.ownRows(w)
	own := all.Span(w.lo, w.lo+len(ids))
	if len(ids) > 0 {
		at := x.ids.Span(0, len(ids)).Vector()
		s.CopyIn(at, gpustage.Bytes(ids))
		s.Gather(own, e.rows(e.pieces(0)[0].own), at, false)
	}
	group.AllGather(s, all, own, w.parts, e.Model.DType)
	return nil
}

// feed gives the compute lane's passes what has been fetched.
type feed struct {
	e    *Encoder
	task *pipeline.Task // at hand
	sub  SubBatch
	held *slot // what the pass uses
	from *handover
}

// begin prepares for a task's passes; the function it returns ends them.
func (f *feed) begin(t *pipeline.Task, sub SubBatch) (end func()) {
	if f == nil {
		return func() {}
	}
	f.task, f.sub = t, sub
	return func() {
		f.giveBack(Stream(t))
		f.task = nil
	}
}

func (f *feed) giveBack(s gpustage.Stream) {
	if f.held != nil {
		pass(s, f.from.free, f.held)
		f.held = nil
	}
}

// next gives what was held back and takes what is asked for.
func (f *feed) next(s gpustage.Stream, from *handover, l int) *slot {
	f.giveBack(s)
	var err error
	if f.e.ranks.NoOverlap {
		if f.held, err = take(f.task, s, from.free, true); err == nil {
			err = f.e.fetchOne(f.task, f.sub.Batch, f.held, l)
		}
	} else {
		f.held, err = take(f.task, s, from.full, true)
	}
	f.from = from
	if err == nil && f.held.what != l {
		err = fmt.Errorf("layer %d was fetched where layer %d is needed: its passes and Visits do not agree", f.held.what, l)
	}
	if err != nil {
		s.Fail(err)
	}
	return f.held
}

// Words are those of the task's sub-batch.
func (f *feed) Words(s gpustage.Stream) (table, index gpustage.Tensor) {
	x := f.next(s, f.e.words, transformer.VisitWords)
	if x == nil {
		return nowhere(f.e.Model.DType, f.e.Model.Config.WordDim()), nowhere(gpustage.I32, f.sub.Tokens())
	}
	return x.rows, x.index.Span(0, f.sub.Tokens()).Vector()
}

// Layer is a layer's parameters.
func (f *feed) Layer(s gpustage.Stream, l int) gpustage.Tensor {
	n := f.e.Model.Layout.Part(l).Len
	if f.held != nil && f.held.what == l {
		return f.held.mem.Columns(0, n)
	}
	x := f.next(s, f.e.layers, l)
	if x == nil {
		return nowhere(f.e.Model.DType, n)
	}
	return x.mem.Columns(0, n)
}
