package stages

import (
	"fmt"

	"contraflow/collective"
	"contraflow/pipeline"
)

// Totals are sums over all ranks' rows of a step.
type Totals struct {
	Loss, Weight                      float64
	Losses, Weights                   []float64 // [batches] of each one's rows the weighted mean, and by how much they count
	Pairs, Tokens, Truncated, Padding int
	Negatives                         int
	Drawn                             drawn
	Asked                             Asked
}

// counted is a batch's loss, and by how much it counts in its mean, on one rank.
type counted struct{ Loss, Weight float64 }

// totals adds the host stage that sums a step's losses over ranks, in their order, while the step goes backward.
func (e *Encoder) totals(g *pipeline.Graph, grads pipeline.Port[Gradient]) pipeline.Port[Totals] {
	s := g.Stage("totals", pipeline.At(pipeline.Step))
	in := pipeline.Collect(s, "losses", grads)
	out := pipeline.Out[Totals](s, "totals")
	s.Do(func(t *pipeline.Task) error {
		var sum Totals
		rows := 0.0 // the weight of the step's
		type mine struct {
			Batches []counted
			Asked   Asked
			Began   string
		}
		m := mine{Began: e.began}
		batches := in.All(t)
		for _, x := range batches {
			c := counted{x.Sum, x.Weight}
			if x.whole && e.ranks.Rank() > 0 {
				c = counted{} // every rank has computed all of it
			}
			m.Batches = append(m.Batches, c)
			sum.add(x.Batch)
			rows += weightOfAll(x.Batch)
		}
		if e.Ask != nil {
			m.Asked = e.Ask()
		}
		all := []mine{m}
		if e.ranks != nil {
			var err error
			if all, err = exchange(collective.For(t.Context(), purpose(t)), e.ranks.totals, m); err != nil {
				return err
			}
		}
		began := make([]string, len(all))
		for rank, m := range all {
			began[rank] = m.Began
			sum.Asked = sum.Asked.or(m.Asked)
		}
		if err := e.weightsAlike(began); err != nil {
			return err
		}
		for i := range batches {
			var c counted
			for _, m := range all {
				c.Loss += m.Batches[i].Loss
				c.Weight += m.Batches[i].Weight
			}
			sum.Loss += c.Loss
			sum.Weight += c.Weight
			sum.Losses, sum.Weights = append(sum.Losses, c.Loss/c.Weight), append(sum.Weights, c.Weight)
		}
		if sum.Weight == 0 {
			if p, ok := e.loss.(interface{ Pairs() bool }); !ok || !p.Pairs() {
				return weightless(t.Index.Step+1, sum.Pairs, rows)
			}
			sum.Weight = 1 // no document is better than another: there is nothing to learn
		}
		out.Put(t, sum)
		return nil
	})
	return out.Port
}

// weightless says why a step, counted from 1, has no mean: of how many rows, and of which weight, the loss has counted none.
func weightless(step, rows int, weight float64) error {
	switch {
	case rows == 0:
		return fmt.Errorf("step %d has no rows: where a stage behind Ingest leaves rows out, leave them out with dataset.Part.Skip instead, and a source of one's own gives no batch that has none", step)
	case weight == 0:
		return fmt.Errorf("all rows of step %d have weight 0 (data.train[].weight, in Go Example.Weight): some row of each step needs a weight above 0; rows that are not to count can be left out of the data", step)
	}
	return fmt.Errorf("the loss has counted none of step %d's rows, which weigh %v: its Result.Weight, by which its Sum is divided, is 0 for all of them", step, weight)
}

// weightOfAll is the weight of a batch's rows on all ranks.
func weightOfAll(b *Batch) float64 {
	if b.Global == nil {
		return weightOf(b)
	}
	return weigh(b.Global.Rows, b.Global.Weights)
}

// add counts a batch.
func (s *Totals) add(b *Batch) {
	if b.Global == nil {
		s.Pairs += len(b.Rows)
		s.Tokens += len(b.IDs)
		s.Negatives += len(b.Owner)
		s.Truncated += b.Truncated
		s.Drawn = b.drawn.plus(s.Drawn)
		for _, sub := range b.Subs {
			s.Padding += sub.padding()
		}
		return
	}
	s.Pairs += b.Global.Rows
	for _, p := range b.Global.Peers {
		s.Tokens += p.Tokens
		s.Negatives += len(p.Owner)
		s.Truncated += p.Truncated
		s.Drawn = p.Drawn.plus(s.Drawn)
		s.Padding += p.Padding
	}
}
