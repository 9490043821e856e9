package stages

import (
	"errors"
	"slices"

	"contraflow/gpustage"
	"contraflow/pipeline"
	"contraflow/stages/transformer"
)

// Notes of tasks, for traces and for calibration.
const (
	Tokens   = "tokens"   // that go through the model
	Replayed = "replayed" // of them, those that go through it again; those of a lean pass as far as they do
	Padded   = "padded"   // beside them, on devices that sub-batches are padded for
	Scores   = "scores"   // rows times candidates
)

// Embedded tells that a sub-batch's embeddings are in the encoder's matrix.
type Embedded struct{ Sub SubBatch }

// Embed adds the stage that computes each sub-batch's embeddings, keeping the activations of the last ones for Backward.
func Embed(g *pipeline.Graph, subs pipeline.Port[SubBatch], e *Encoder) pipeline.Port[Embedded] {
	s := g.Stage("embed", e.on())
	in := pipeline.In(s, "sub-batches", subs)
	pipeline.Loop(s, "weights", e.weights, Weights{})
	e.fetch(g, subs, false)
	out := pipeline.Out[Embedded](s, "embeddings")
	s.Do(func(t *pipeline.Task) error {
		sub := in.Get(t)
		if err := sub.Batch.check(); err != nil {
			return err
		}
		if err := e.checkAlone(sub.Batch); err != nil {
			return err
		}
		if e.Model.Config.Tokens.Alone && sub.Batch.ShownCu == nil {
			return errors.New("the model gives vectors of tokens, and nothing says which have one: Text.Heads is the model's Config.Tokens, as stages.TextOf has it")
		}
		if e.Model.Config.Tokens.Unseen() != (sub.Batch.Seen != nil) {
			return errors.New("the model's queries have tokens that the others do not attend to and the batch's have none, or the other way round: Text.Heads is the model's Config.Tokens, as stages.TextOf has it")
		}
		if e.Model.Config.Queries.There != sub.Batch.Weighed {
			return errors.New("the model's queries are weights of tokens and the batch's are not, or the other way round: Text.Weighed is the model's Config.Queries.There, as stages.TextOf has it")
		}
		if t.Index.Sub == 0 {
			if err := e.begin(sub.Batch); err != nil {
				return err
			}
			if e.ranks != nil && !e.ranks.compared && e.began == "" {
				var err error
				if e.began, err = e.weightsTerm(Stream(t)); err != nil {
					return err
				}
			}
			if n := sub.Batch.first(); n > 0 { // queries that are read with their documents have no score of their own
				Stream(t).Fill(e.parts[0].emb.Span(0, n), 0)
			}
		}
		defer e.feed.begin(t, sub)()
		if sub.Len() == 0 { // other ranks have more sub-batches
			e.without(t, sub, false, transformer.Gradients{})
			out.Put(t, Embedded{sub})
			return nil
		}
		t.Note(Tokens, float64(sub.Tokens()))
		stream := Stream(t)
		keep := e.keeps.of(t.Index.Sub)
		e.passes.count(keep)
		rows := sub.rows(e.Seed, t.Index.Step)
		if err := e.Model.Check(rows); err != nil {
			return err
		}
		start := e.arena.Mark()
		var p *transformer.Pass
		if keep == lean {
			p = e.Model.Lean(stream, e.arena, rows)
		} else {
			p = e.Model.Forward(stream, e.arena, rows, true, keep == whole)
		}
		if n := p.Padding(); n > 0 {
			t.Note(Padded, float64(n))
		}
		for i, x := range p.Parts() {
			if x.Rows > 0 { // else no token is shown
				stream.Copy(e.parts[i].of(sub, e.parts[i].emb), x)
			}
		}
		if keep != nothing {
			if e.Model.Buckets() {
				kept, _ := keep.bytes(sub.Batch.memory[t.Index.Sub])
				e.arena.Reserve(start, kept)
			}
			e.kept = append(e.kept, p)
		} else {
			p.Release()
		}
		out.Put(t, Embedded{sub})
		return nil
	})
	return out.Port
}

// Contribution tells that a sub-batch's gradient has been added to the encoder's.
type Contribution struct{ Tokens int }

// Backward adds the stage that sends the gradient of each sub-batch's embeddings through the model, from the last sub-batch
// to the first.
func Backward(g *pipeline.Graph, subs pipeline.Port[SubBatch], grads pipeline.Port[Gradient], e *Encoder) pipeline.Port[Contribution] {
	s := g.Stage(StepStages.Last, e.on(), pipeline.Descending())
	in := pipeline.In(s, "sub-batches", subs)
	pipeline.In(s, "gradient", grads)
	out := pipeline.Out[Contribution](s, "contributions")
	e.finals(s)
	e.fetch(g, subs, true)
	e.reduceEarly(g, subs, grads)
	s.Do(func(t *pipeline.Task) error {
		sub, stream := in.Get(t), Stream(t)
		last := t.Index.Sub == 0 && sub.Batch.EndsStep
		to := transformer.Gradients{Flat: e.grads}
		end := func() {}
		var err error
		if e.ranks.early() {
			to, end, err = e.beginEarly(t, sub, last)
		} else if last {
			err = e.beginLast(t, sub, &to)
		}
		if err != nil {
			return err
		}
		defer e.feed.begin(t, sub)()
		e.seen++
		if sub.Len() > 0 {
			t.Note(Tokens, float64(sub.Tokens()))
			if again := e.again(t.Index.Sub); again > 0 {
				t.Note(Replayed, again*float64(sub.Tokens()))
			}
			p := e.pass(stream, sub, t.Index.Step)
			var d []gpustage.Tensor
			for _, x := range e.parts {
				d = append(d, x.of(sub, x.dEmb))
			}
			p.BackwardTo(d, to)
			p.Release()
		} else {
			e.without(t, sub, true, to)
		}
		end()
		if last {
			e.endLast(t, sub)
		}
		if e.ranks != nil && e.ranks.EverySubBatch {
			e.reduceNow(t, last)
		}
		out.Put(t, Contribution{sub.Tokens()})
		return nil
	})
	return out.Port
}

// without takes part in the passes of a sub-batch that this rank does not have: it asks for the same parameters and adds nothing to the
// same gradients, in the order in which the other ranks' passes do, or they would wait for each other.
func (e *Encoder) without(t *pipeline.Task, sub SubBatch, backward bool, to transformer.Gradients) {
	l := e.Model.Layout
	if e.feed != nil || to.Layer != nil {
		visits := e.visits(sub.Batch.Global, t.Index.Sub, backward)
		for i, layer := range visits {
			switch {
			case e.feed != nil && layer == transformer.VisitWords:
				e.feed.Words(Stream(t))
			case e.feed != nil:
				e.feed.Layer(Stream(t), layer)
			}
			if to.Layer == nil || layer == transformer.VisitWords || slices.Contains(visits[i+1:], layer) { // the last visit is the backward pass's
				continue
			}
			if from, end := l.Span(layer); from < end {
				to.Layer(layer)
				to.Done(from)
			}
		}
	}
	if to.Layer == nil && to.Done != nil {
		for _, mark := range l.Marks() {
			to.Done(mark)
		}
	}
}

// again is how much of a sub-batch's forward pass its backward pass computes again.
func (e *Encoder) again(sub int) float64 {
	switch e.keeps.of(sub) {
	case nothing:
		return 1
	case lean:
		return e.Model.LeanShare()
	}
	return 0
}

// pass is the kept pass of a sub-batch, or a replay of it.
func (e *Encoder) pass(s gpustage.Stream, sub SubBatch, step int) *transformer.Pass {
	if n := len(e.kept); n > 0 {
		last := e.kept[n-1]
		e.kept = e.kept[:n-1]
		return last
	}
	return e.Model.Replay(s, e.arena, sub.rows(e.replay, step))
}
