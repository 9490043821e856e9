package stages

import (
	"errors"
	"fmt"

	"contraflow/gpustage"
	"contraflow/pipeline"
	"contraflow/stages/transformer"
)

// replication is what an encoder has besides when it trains with other ranks.
type replication struct {
	buckets    []bucket
	tableReady pipeline.Output[bool]     // whether earlier sub-batches have added to the word embeddings' gradient
	rowsReady  pipeline.Output[*Batch]   // the batch that ends the step
	reduced    []pipeline.Port[struct{}] // what an update waits for
	seen       int                       // sub-batches of the step so far

	rowsOut gpustage.Tensor // [U, C]: the last sub-batch's gradient of the word embeddings
	rowsIn  gpustage.Tensor // [sum of U, C]: all ranks'
	index   gpustage.Tensor // i32 [T, 1]: each token's row in rowsOut
	ids     gpustage.Tensor // i32 [sum of U, 1]: each row of rowsIn's token id
	sum     gpustage.Tensor // flat, with EverySubBatch: what has been reduced
}

func (r *replication) tensors() []*gpustage.Tensor {
	return []*gpustage.Tensor{&r.rowsOut, &r.rowsIn, &r.index, &r.ids, &r.sum}
}

// beginReplicated makes room for what all ranks have of a batch.
func (e *Encoder) beginReplicated(b *Batch) error {
	g := b.Global
	var errs []error
	if e.gathers() {
		for _, p := range e.parts {
			widest := 0
			for u := range b.Subs {
				widest = max(widest, sum(g.subRows(u, p.Tokens)))
			}
			n := p.inAll(g, g.N())
			errs = append(errs, e.grow(&p.all, n, p.Size), e.grow(&p.dAll, n, p.Size), e.grow(&p.arriving, widest, p.Size))
		}
	}
	if b.EndsStep && !e.ranks.EverySubBatch && !e.ranks.early() && e.tableTrains() && !e.wholeTable(g) {
		rows, total := g.lastRows()
		c := e.Model.Config.WordDim()
		errs = append(errs, e.grow(&e.rowsOut, rows[e.ranks.Rank()], c), e.grow(&e.rowsIn, total, c),
			e.growTyped(&e.index, gpustage.I32, len(b.last.index), 1), e.growTyped(&e.ids, gpustage.I32, total, 1))
	}
	if e.ranks.EverySubBatch {
		errs = append(errs, e.grow(&e.sum, 1, e.grads.Cols))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("a batch of %d rows on %d ranks: %w", g.Rows, len(g.Peers), err)
	}
	return nil
}

// finals declares what backward tells while it runs.
func (e *Encoder) finals(s *pipeline.Stage) {
	if e.ranks == nil || e.ranks.EverySubBatch || e.ranks.early() {
		return
	}
	if e.tableTrains() {
		e.tableReady = pipeline.Final[bool](s, "table")
	}
	e.buckets = e.ranks.cut(e.Model.Layout, e.Model.DType)
	for i := range e.buckets {
		e.buckets[i].ready = pipeline.Final[struct{}](s, e.buckets[i].name)
	}
	if e.tableTrains() {
		e.rowsReady = pipeline.Final[*Batch](s, "last rows")
	}
}

// beginLast prepares the step's last sub-batch: its gradient of the word embeddings goes elsewhere, so that the table can
// be reduced meanwhile, and each bucket is passed on when its gradients are complete.
func (e *Encoder) beginLast(t *pipeline.Task, sub SubBatch, to *transformer.Gradients) error {
	if e.ranks == nil || e.ranks.EverySubBatch {
		return nil
	}
	to.Done = func(mark int) {
		for _, b := range e.buckets {
			if b.from == mark {
				b.ready.Put(t, struct{}{})
			}
		}
	}
	if !e.tableTrains() {
		return nil
	}
	whole := e.wholeTable(sub.Batch.Global)
	e.tableReady.Put(t, e.seen > 0 && !whole)
	if sub.Len() == 0 || whole {
		return nil
	}
	s, last := Stream(t), sub.Batch.last
	to.WordRows = e.rowsOut.Span(0, len(last.ids))
	s.Fill(to.WordRows, 0)
	to.WordIndex = e.index.Span(0, len(last.index)).Vector()
	s.CopyIn(to.WordIndex, gpustage.Bytes(last.index))
	return nil
}

func (e *Encoder) endLast(t *pipeline.Task, sub SubBatch) {
	e.seen = 0
	if e.ranks != nil && !e.ranks.EverySubBatch && !e.ranks.early() && e.tableTrains() {
		e.rowsReady.Put(t, sub.Batch)
	}
}

// reduceNow sums a sub-batch's gradient over ranks at once.
func (e *Encoder) reduceNow(t *pipeline.Task, last bool) {
	defer e.count(t)()
	s := Stream(t)
	e.ranks.Comm.World.AllReduce(s, e.grads, e.wire())
	s.Add(e.sum, e.sum, e.grads)
	if last {
		s.Copy(e.grads, e.sum)
		s.Fill(e.sum, 0)
	} else {
		s.Fill(e.grads, 0)
	}
}

// AfterSync makes a stage, which must collect the contributions as well, wait until the step's gradient is complete on all
// ranks: for stages that look at Gradients before the update. They are on the encoder's lane and are added before Apply: a lane runs a step's stages in the
// order of the graph, and behind Apply there is nothing left of the gradient, so that Build then fails.
func (e *Encoder) AfterSync(s *pipeline.Stage) {
	if e.applied {
		s.Refuse(errors.New("it is to look at a gradient behind stages.Apply, which leaves none: it belongs between Sync and Apply (in place of stages.Train the program calls Forward, Backward, Sync and Apply)"))
	}
	if e.reducing != (pipeline.Port[struct{}]{}) {
		pipeline.Collect(s, "reduced early", e.reducing)
	}
	for i, r := range e.reduced {
		pipeline.In(s, fmt.Sprintf("reduced %d", i), r)
	}
}
