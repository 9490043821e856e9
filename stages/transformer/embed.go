package transformer

import "contraflow/gpustage"

// input is a sub-batch on the device, and what positions have to do with it.
type input struct {
	seqs   gpustage.Sequences
	ids    gpustage.Tensor // i32 [1, T]
	kinds  gpustage.Tensor // i32 [1, T]: token types
	places gpustage.Tensor // i32 [1, T]: rows of the learned positions

	rotary, localRotary turns
	distances           distances
	reached             reached
}

// upload copies a sub-batch to the device, to the arena's bottom.
func (m *Model) upload(s gpustage.Stream, a *gpustage.Arena, r Rows) input {
	c := m.Config
	t, b := len(r.IDs), r.Len()
	row, pos := make([]int32, t), make([]int32, t)
	for i := range b {
		for p := range r.Cu[i+1] - r.Cu[i] {
			row[r.Cu[i]+p], pos[r.Cu[i]+p] = int32(i), p
		}
	}
	ints := func(vs []int32) gpustage.Tensor {
		x := a.Keep(s, gpustage.I32, 1, len(vs))
		s.CopyIn(x, gpustage.Bytes(vs))
		return x
	}
	in := input{ids: ints(r.IDs)}
	if c.TypeVocab > 0 {
		kinds := r.Kinds
		if kinds == nil {
			kinds = make([]int32, t)
		}
		in.kinds = ints(kinds)
	}
	in.seqs = gpustage.Sequences{Rows: b, Tokens: t, MaxLen: r.MaxLen(), Cu: ints(r.Cu), Row: ints(row), Pos: ints(pos)}
	if r.Keys != nil {
		in.seqs.Keys = a.Keep(s, gpustage.U64, 1, b)
		s.CopyIn(in.seqs.Keys, gpustage.Bytes(r.Keys))
	}
	switch {
	case c.Rotary != nil:
		in.rotary = m.turns(s, a, c.Rotary, r, in.seqs)
		if c.LocalRotary != nil {
			in.localRotary = m.turns(s, a, c.LocalRotary, r, in.seqs)
		}
	case c.Unplaced:
	case c.PadPositions > 0:
		in.places = ints(c.padPlaces(r))
	default:
		in.places = in.seqs.Pos
	}
	in.distances = m.spreadBias(s, a)
	in.reached = m.reach(s, a, in.seqs.MaxLen)
	return in
}

// padPlaces numbers a row's tokens from behind the padding's position. Padding tokens, which a text may well contain, have
// its position and do not count: so RoBERTa has learned it.
func (c Config) padPlaces(r Rows) []int32 {
	pad := int32(c.PadPositions - 1)
	places := make([]int32, len(r.IDs))
	for b := range r.Len() {
		next := pad + 1
		for t := r.Cu[b]; t < r.Cu[b+1]; t++ {
			if places[t] = pad; int(r.IDs[t]) != c.PadID {
				places[t] = next
				next++
			}
		}
	}
	return places
}

// embedActs is what the embeddings' backward needs.
type embedActs struct {
	sum   gpustage.Tensor // [T, C]: the norm's input
	stats stats
}

// embedTokens computes x = dropout(norm(scale * word + position + type)). The norm, where a family has one here, is a layer norm.
func (p *Pass) embedTokens(x gpustage.Tensor, keep bool) {
	m, in := p.m, p.in
	mark := p.a.Mark()
	word, ids := p.words()
	o := gpustage.Embed{
		Words: gpustage.Lookup{Table: word, Index: ids}, Positions: gpustage.Lookup{Table: m.w.position, Index: in.places},
		Kinds: gpustage.Lookup{Table: m.w.kind, Index: in.kinds}, Scale: m.Config.EmbedScale, Dropout: p.dropout(0, gpustage.SiteEmbeddings), Operand: p.room,
	}
	if n := m.w.embedNorm; !n.absent() {
		sum := x
		if keep {
			sum = p.keep(x.Rows, x.Cols)
		}
		p.embed = embedActs{sum: sum, stats: p.keepStats(n, sum)}
		o.Gamma, o.Beta, o.Eps = n.gamma, n.beta, m.Config.NormEps
	}
	p.s.Embed(x, p.embed.sum, p.embed.stats.mean, p.embed.stats.rstd, o)
	p.takes(x, p.room)
	if !keep {
		p.a.Release(mark)
	}
}

// embedTokensBackward changes dx. word is each token's row in g.word, but for padding's, whose gradient is zero.
func (p *Pass) embedTokensBackward(dx gpustage.Tensor, g weights, word gpustage.Tensor) {
	s, m, in := p.s, p.m, p.in
	if d := p.dropout(0, gpustage.SiteEmbeddings); d.Active() {
		s.Dropout(dx, dx, gpustage.Tensor{}, d)
	}
	if n := m.w.embedNorm; !n.absent() {
		p.normBackward(n, g.embedNorm, dx, dx, p.embed.stats, p.embed.sum)
	}
	if !g.position.IsZero() {
		s.ScatterAdd(g.position, dx, in.places)
	}
	if !g.kind.IsZero() {
		s.ScatterAdd(g.kind, dx, in.kinds)
	}
	if scale := m.Config.EmbedScale; scale != 0 {
		s.Scale(dx, dx, scale)
	}
	if !g.word.IsZero() {
		s.ScatterAdd(g.word, dx.Span(0, word.Cols), word)
	}
}
