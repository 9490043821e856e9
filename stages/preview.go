package stages

import (
	"context"
	"errors"

	"contraflow/collective"
	"contraflow/gpustage"
	"contraflow/pipeline"
	"contraflow/stages/transformer"
)

// Preview reads a run's first step as each of so many ranks would, and returns rank 0's batches of it with what all ranks have:
// a header without ranks.
func Preview(ctx context.Context, p Plan, x Text, size Size, ranks int) ([]*Batch, error) {
	var mine []*Batch
	var peers [][]Peer // by batch, rank
	for rank := range ranks {
		part := p
		part.MaxSteps, part.Rank, part.Ranks, part.Sampler = 1, rank, ranks, p.Sampler.Restart()
		g := pipeline.New("preview")
		batches := Assemble(g, Tokenize(g, Ingest(g, part), x))
		pipeline.Sink(g, "collect", batches, func(t *pipeline.Task, b *Batch) error {
			if err := b.check(); err != nil {
				return err
			}
			i := t.Index.Batch
			if rank == 0 {
				mine, peers = append(mine, b), append(peers, nil)
			}
			peers[i] = append(peers[i], b.peer(t.Index, size, true, !b.Pairs))
			return nil
		})
		plan, err := g.Build()
		if err != nil {
			return nil, err
		}
		if err := plan.Run(ctx); err != nil {
			return nil, err
		}
	}
	if len(mine) == 0 {
		return nil, errors.New("the data does not fill one batch")
	}
	for i, b := range mine {
		if err := b.join(peers[i]); err != nil {
			return nil, err
		}
	}
	return mine, nil
}

// Plan makes room for a batch, on a device that computes nothing as on any other, and says how much of each sub-batch's forward pass
// will be computed again: 1 for a replay.
func (e *Encoder) Plan(b *Batch) (again []float64, err error) {
	if err := e.begin(b); err != nil {
		return nil, err
	}
	if e.ranks.early() || e.ranks.streams() {
		if err := e.planWords(b); err != nil {
			return nil, err
		}
	}
	for u := range b.Subs {
		again = append(again, e.again(u))
	}
	return again, nil
}

// planWords makes the room for rows of word embeddings that a batch's passes would make as they come to them, and has every rank
// replay what this one would.
func (e *Encoder) planWords(b *Batch) error {
	b.Global.keepFrom = e.keeps.from
	var errs []error
	room := func(x *slot, u int, all bool) {
		w := e.wordRows(b.Global, u, all)
		errs = append(errs, e.growWords(x, w, len(b.places(u, w))))
	}
	for u := range b.Global.Subs() {
		if e.ranks.early() && e.tableTrains() {
			room(e.tailSlot, u, e.beyond(u == 0 && b.EndsStep))
		}
		if e.ranks.streams() {
			room(e.wordsSlot, u, false)
		}
	}
	return errors.Join(errs...)
}

// Done is when the step's last backward pass puts one of its Final outputs, as a share of the pass without replay: time goes with
// the parameters in layers.
func (e *Encoder) Done(output string) float64 {
	l := e.Model.Layout
	_, bottom := l.Span(transformer.Outside) // layers begin there
	if _, table := tableOf(l); bottom < table {
		bottom = table
	}
	for _, b := range e.buckets {
		if b.name == output && b.from >= bottom {
			return float64(l.Trained()-b.from) / float64(l.Trained()-bottom)
		}
	}
	if output == "table" {
		return 0
	}
	return 1
}

// SubTokens is how many tokens the rank with the most has in sub-batch u: the others wait for it.
func (g *Global) SubTokens(u int) int {
	n := 0
	for _, p := range g.Peers {
		if u < len(p.SubTokens) {
			n = max(n, p.SubTokens[u])
		}
	}
	return n
}

// ScoreCount is how many scores of a row and a candidate the rank with the most computes.
func (g *Global) ScoreCount(gathered bool) float64 {
	rows, candidates := 0, 0
	for _, p := range g.Peers {
		rows, candidates = max(rows, p.Rows), max(candidates, len(p.Texts)-p.Rows)
	}
	if gathered {
		candidates = g.N() - g.Rows
	}
	return float64(rows) * float64(candidates)
}

// OnPaper is rank 0 of a mesh that nobody has: a graph can be built for it, and planned, but not run.
func OnPaper(m collective.Mesh, x Exchanging) *Replicas {
	if m.Size() == 1 {
		return nil
	}
	return &Replicas{
		Exchanging: x, Comm: &collective.Comm{Mesh: m, World: paper(m.Size()), Replicate: paper(m.Replicate), Shard: paper(m.Shard)}, Params: paper(m.Shard),
	}
}

// paper is a group of so many ranks, of which there is none.
type paper int

var errPaper = errors.New("this mesh exists on paper only")

func (paper) Rank() int   { return 0 }
func (p paper) Size() int { return int(p) }

func (paper) AllGather(s gpustage.Stream, _, _ gpustage.Tensor, _ []int, _ gpustage.DType) {
	s.Fail(errPaper)
}
func (paper) ReduceScatter(s gpustage.Stream, _, _ gpustage.Tensor, _ []int, _ gpustage.DType) {
	s.Fail(errPaper)
}
func (paper) AllReduce(s gpustage.Stream, _ gpustage.Tensor, _ gpustage.DType) { s.Fail(errPaper) }
func (paper) Broadcast(s gpustage.Stream, _ gpustage.Tensor, _ int)            { s.Fail(errPaper) }
func (paper) Exchange(context.Context, []byte) ([][]byte, error)               { return nil, errPaper }
func (paper) Split(context.Context, int) (collective.Group, error)             { return nil, errPaper }
func (paper) For(string)                                                       {}
func (paper) Traffic() collective.Traffic                                      { return collective.Traffic{} }
func (paper) Abort(error)                                                      {}
func (paper) Err() error                                                       { return nil }
func (paper) Done() <-chan struct{}                                            { return nil }
func (paper) Close() error                                                     { return nil }
