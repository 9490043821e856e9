package transformer

import "contraflow/gpustage"

// Pooling of whole texts, and of what follows their prompts.

// skips tells whether prompts make a difference to pooling.
func (h Head) skips() bool { return h.SkipPrompt && h.Pooling != gpustage.LastPooling }

// halves are where the halves of rows begin: each row's prompt, and what follows it, which of a row that is nothing but its prompt is nothing, or
// where that can't be pooled all of it.
func (r Rows) halves(mode gpustage.Pooling) []int32 {
	cu := make([]int32, 0, 2*r.Len()+1)
	for b := range r.Len() {
		prompt, n := int32(0), r.Cu[b+1]-r.Cu[b]
		if b < len(r.Prompt) {
			prompt = min(r.Prompt[b], n)
		}
		if prompt == n && mode != gpustage.MeanPooling {
			prompt = 0
		}
		cu = append(cu, r.Cu[b], r.Cu[b]+prompt)
	}
	return append(cu, r.Cu[r.Len()])
}

// poolTexts makes of hidden states x [T, C] a row for each text.
func (p *Pass) poolTexts(x gpustage.Tensor) {
	mode := p.m.Head.Pooling
	if !p.m.Head.skips() {
		p.s.Pool(p.pooled, x, p.in.seqs, mode)
		return
	}
	mark := p.a.Mark()
	both := p.scratch(p.in.halves.Rows, x.Cols)
	p.s.Pool(both, x, p.in.halves, mode)
	_, rest := split(both)
	p.s.Copy(p.pooled, rest)
	p.a.ReleaseScratch(mark)
}

// poolTextsBackward writes to d [T, C] the gradient that comes through poolTexts.
func (p *Pass) poolTextsBackward(d, dPooled gpustage.Tensor) {
	mode := p.m.Head.Pooling
	if !p.m.Head.skips() {
		p.s.PoolBackward(d, dPooled, p.in.seqs, mode)
		return
	}
	mark := p.a.Mark()
	both := p.scratch(p.in.halves.Rows, d.Cols)
	prompts, rest := split(both)
	p.s.Fill(prompts, 0)
	p.s.Copy(rest, dPooled)
	p.s.PoolBackward(d, both, p.in.halves, mode)
	p.a.ReleaseScratch(mark)
}

// split is what is pooled of halves [2B, C], of prompts and of what follows them: [B, C] each.
func split(halves gpustage.Tensor) (prompts, rest gpustage.Tensor) {
	c := halves.Cols
	rows := halves.Reshape(halves.Rows/2, 2*c)
	return rows.Columns(0, c), rows.Columns(c, 2*c)
}
