package stages

import (
	"slices"

	"contraflow/gpustage"
	"contraflow/stages/transformer"
)

// What a model gives of a batch is a set of parts: embeddings [N, E], and of a model with heads of tokens also rows for tokens [T', .].
// Split, gather, loss and scatter treat them alike; they differ in where a sequence's rows begin: sequence n's at n, or behind those of the
// tokens before it that have rows, which Text decides.

// part is one of them on the device.
type part struct {
	transformer.Part
	emb, dEmb gpustage.Tensor // of this rank's sequences, and their gradient
	all, dAll gpustage.Tensor // of all ranks': emb and dEmb themselves if this one is alone; dAll is of this rank's rows' losses
	arriving  gpustage.Tensor // of one sub-batch of all ranks
}

// at is where sequence n's rows begin in a part of a batch, inAll in that of all ranks.
func (p *part) at(b *Batch, n int) int {
	if p.Tokens {
		return b.at(n)
	}
	return n
}

func (p *part) inAll(g *Global, n int) int {
	if p.Tokens {
		return g.at(n)
	}
	return n
}

// of is a sub-batch's rows of emb or dEmb.
func (p *part) of(s SubBatch, x gpustage.Tensor) gpustage.Tensor {
	return x.Span(p.at(s.Batch, s.Lo), p.at(s.Batch, s.Hi))
}

// at is where the rows of sequence n's tokens begin.
func (b *Batch) at(n int) int {
	if b.ShownCu == nil {
		return int(b.Cu[n]) - n
	}
	return int(b.ShownCu[n])
}

// tokenIDs are the ids of all tokens that have rows.
func (b *Batch) tokenIDs() []int32 {
	ids := make([]int32, 0, b.at(b.N()))
	if b.ShownCu == nil {
		for n := range b.N() {
			ids = append(ids, b.IDs[b.Cu[n]+1:b.Cu[n+1]]...)
		}
	}
	for _, t := range b.Shown {
		ids = append(ids, b.IDs[t])
	}
	return ids
}

// shown are the places of a sub-batch's tokens that have rows, among its own; nil: all but each sequence's first.
func (s SubBatch) shown() []int32 {
	b := s.Batch
	if b.ShownCu == nil {
		return nil
	}
	out := make([]int32, 0, b.at(s.Hi)-b.at(s.Lo))
	for _, t := range b.Shown[b.at(s.Lo):b.at(s.Hi)] {
		out = append(out, t-b.Cu[s.Lo])
	}
	return out
}

func (g *Global) at(n int) int { return int(g.cu[n]) }

// joinTokens puts the ranks' tokens into the global order.
func (g *Global) joinTokens() {
	if !slices.ContainsFunc(g.Peers, func(p Peer) bool { return p.PartRows != nil }) {
		return
	}
	rows := make([]int32, g.N())
	for r := range g.Peers {
		p := &g.Peers[r]
		p.cu = ends(p.PartRows)
		from := 0
		g.runs(r, 0, len(p.PartRows), func(place, n int) { from += copy(rows[place:place+n], p.PartRows[from:]) })
	}
	g.cu = ends(rows)
	g.IDs = make([]int32, g.cu[g.N()])
	for r := range g.Peers {
		p := &g.Peers[r]
		from := 0
		g.runs(r, 0, len(p.PartRows), func(place, n int) {
			copy(g.IDs[g.cu[place]:g.cu[place+n]], p.IDs[p.cu[from]:p.cu[from+n]])
			from += n
		})
	}
}

// ends are the sums of rows up to each.
func ends(rows []int32) []int32 {
	cu := make([]int32, 1, len(rows)+1)
	for i, n := range rows {
		cu = append(cu, cu[i]+n)
	}
	return cu
}

// rows is how many rows of a part the rank's sequences lo to hi-1 have.
func (p *Peer) rows(lo, hi int, tokens bool) int {
	if tokens {
		return int(p.cu[hi] - p.cu[lo])
	}
	return hi - lo
}

// subRows is how many rows of a part each rank has in sub-batch u.
func (g *Global) subRows(u int, tokens bool) (rows []int) {
	for i := range g.Peers {
		p := &g.Peers[i]
		rows = append(rows, p.rows(p.start(u), p.start(u)+p.subSize(u), tokens))
	}
	return rows
}

// columnRows is how many rows of a part each rank has of a column.
func (g *Global) columnRows(column int, tokens bool) (rows []int) {
	for i := range g.Peers {
		p := &g.Peers[i]
		first := sum(p.Counts[:column])
		rows = append(rows, p.rows(first, first+p.Counts[column], tokens))
	}
	return rows
}

func sum(ns []int) (total int) {
	for _, n := range ns {
		total += n
	}
	return total
}
