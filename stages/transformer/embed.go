package transformer

import "contraflow/gpustage"

// input is a sub-batch on the device, and what positions have to do with it.
type input struct {
	seqs   gpustage.Sequences
	ids    gpustage.Tensor    // i32 [1, T]
	kinds  gpustage.Tensor    // i32 [1, T]: token types
	places gpustage.Tensor    // i32 [1, T]: rows of the learned positions
	seen   gpustage.Tensor    // i32 [1, B], as attention has it; absent where all tokens are keys
	halves gpustage.Sequences // 2B: each row's prompt, and the rest of it; without rows where prompts are pooled too

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
	if c.Tokens.Unseen() { // there is room, whatever the sub-batch has
		counts, some := r.keys()
		if counts := ints(counts); some {
			in.seen = counts
		}
	}
	if m.Head.skips() {
		in.halves = gpustage.Sequences{Rows: 2 * b, Tokens: t, MaxLen: in.seqs.MaxLen, Cu: ints(r.halves(m.Head.Pooling))}
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
	in.distances = m.spreadBias(s, a, in.seqs.MaxLen)
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
	sum   gpustage.Tensor // [T, E0]: the norm's input
	stats stats
	out   gpustage.Tensor // [T, E0]: what the projection takes
}

// embedTokens computes x = project(dropout(norm(scale * word + position + type + task))). The norm, where a family has one here, is a layer norm; a
// projection there is where hidden states have another number of features.
func (p *Pass) embedTokens(x gpustage.Tensor, keep bool) {
	if !p.m.Config.projects() {
		p.embedInto(x, p.room, keep)
		p.takes(x, p.room)
		return
	}
	mark := p.a.Mark()
	out := p.a.Keep(p.s, p.m.operands, x.Rows, p.m.Config.WordDim())
	e, operand := out, gpustage.Tensor{}
	if p.m.operands != p.m.DType {
		e, operand = p.scratch(out.Rows, out.Cols), out
	}
	p.embedInto(e, operand, keep)
	p.forward(p.m.w.project, x, out, gpustage.MatMul{})
	p.embed.out = out
	p.a.ReleaseScratch(mark)
	if !keep {
		p.a.Release(mark)
	}
}

// embedInto is what comes before a projection. What products take of x is left in operand, if there is one.
func (p *Pass) embedInto(x, operand gpustage.Tensor, keep bool) {
	m, in := p.m, p.in
	mark := p.a.Mark()
	word, ids := p.words()
	kinds := m.w.kind
	if task := m.w.task; !task.IsZero() { // which all tokens have, as they have one of the kinds
		kinds = p.scratch(kinds.Rows, kinds.Cols)
		for i := range kinds.Rows {
			p.s.Add(kinds.Span(i, i+1), m.w.kind.Span(i, i+1), task.Span(0, 1))
		}
		defer p.a.ReleaseScratch(mark)
	}
	o := gpustage.Embed{
		Words: gpustage.Lookup{Table: word, Index: ids}, Positions: gpustage.Lookup{Table: m.w.position, Index: in.places},
		Kinds: gpustage.Lookup{Table: kinds, Index: in.kinds}, Scale: m.Config.EmbedScale, Dropout: p.dropout(0, gpustage.SiteEmbeddings), Operand: operand,
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
	if !keep {
		p.a.Release(mark)
	}
}

// embedTokensBackward changes dx. word is each token's row in g.word, but for padding's, whose gradient is zero.
func (p *Pass) embedTokensBackward(dx gpustage.Tensor, g weights, word gpustage.Tensor) {
	s, m, in := p.s, p.m, p.in
	if m.Config.projects() {
		mark := p.a.Mark()
		defer p.a.Release(mark)
		project := p.narrow(m.w.project, dx)
		p.gradients(project, g.project, dx, p.embed.out)
		if g.word.IsZero() && g.position.IsZero() && g.kind.IsZero() && g.task.IsZero() && g.embedNorm.gamma.IsZero() {
			return
		}
		de := p.scratch(dx.Rows, m.Config.WordDim())
		p.backward(project, de, dx, gpustage.MatMul{})
		dx = de
	}
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
	if !g.task.IsZero() {
		s.ColumnSum(g.task.Span(0, 1), dx)
	}
	if scale := m.Config.EmbedScale; scale != 0 {
		s.Scale(dx, dx, scale)
	}
	if !g.word.IsZero() {
		s.ScatterAdd(g.word, dx.Span(0, word.Cols), word)
	}
}
