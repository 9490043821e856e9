package transformer

import "contraflow/gpustage"

// TokenHeads give, besides the embedding, two parts of every token but the first, as BGE-M3 has them (Chen et al., arXiv 2402.03216):
// of its hidden state h
//
//	sparse        relu(w h + b), the token's weight in the lexical match     [T', 1]
//	multi_vector  W h + b, of length 1 where embeddings are                  [T', D]
//
// T' is T - B: the first token, whose hidden state CLS pooling takes, has neither; texts begin T' rows at Cu[b] - b. The zero value
// is no such heads.
type TokenHeads struct {
	Sparse  string  // parameters [1, C] and [1], without ".weight" and ".bias"
	Vectors string  // [D, C] and [D]
	Dim     int     // D
	Special []int32 // ids of tokens that no lexical weight is of; the heads themselves don't look at ids
	New     bool    // what a checkpoint lacks of them begins at random
	Seed    uint64  // of those
}

// M3Heads are BGE-M3's by their names; dim 0 is as many features as hidden states have.
func (c Config) M3Heads(dim int, fresh bool, seed uint64) TokenHeads {
	if dim == 0 {
		dim = c.Hidden
	}
	return TokenHeads{Sparse: "sparse_linear", Vectors: "colbert_linear", Dim: dim, New: fresh, Seed: seed}
}

// None tells that there are none.
func (h TokenHeads) None() bool { return h.Vectors == "" }

// Part is something that a model gives of each text.
type Part struct {
	Name   string // one of the names below
	Size   int    // features
	Tokens bool   // a row for each token but the first, otherwise one for the text
}

// The parts of a model with TokenHeads; any other that embeds has the first alone.
const (
	DensePart   = "dense"
	SparsePart  = "sparse"
	VectorsPart = "multi_vector"
)

// Parts lists what the model gives of a text, its embedding first.
func (m *Model) Parts() []Part {
	parts := []Part{{Name: DensePart, Size: m.EmbeddingSize()}}
	if h := m.Config.Tokens; !h.None() {
		parts = append(parts, Part{SparsePart, 1, true}, Part{VectorsPart, h.Dim, true})
	}
	return parts
}

// tokenWeights are the heads' parameters, or their gradients.
type tokenWeights struct{ sparse, vectors linear }

func (h TokenHeads) weights(v viewer) (w tokenWeights) {
	if !h.None() {
		w.sparse, w.vectors = v.linear("", h.Sparse), v.linear("", h.Vectors)
	}
	return w
}

// tokenActs is what the heads give, and what their backward needs.
type tokenActs struct {
	index           gpustage.Tensor // i32 [1, T']: the tokens
	h               gpustage.Tensor // [T', C]: their hidden states, where the pass is kept
	pre, sparse     gpustage.Tensor // [T', 1]: before the ReLU and behind it
	vectors, length gpustage.Tensor // [T', D], [1, T']
}

// openTokens takes room for the heads, at the arena's bottom.
func (p *Pass) openTokens(r Rows, keep bool) {
	h := p.m.Config.Tokens
	if h.None() {
		return
	}
	index := make([]int32, 0, len(r.IDs)-r.Len())
	for b := range r.Len() {
		for t := r.Cu[b] + 1; t < r.Cu[b+1]; t++ {
			index = append(index, t)
		}
	}
	n, a := len(index), &p.tokens
	a.pre, a.sparse, a.vectors = p.keep(n, 1), p.keep(n, 1), p.keep(n, h.Dim)
	if p.m.Head.Normalize {
		a.length = p.keep(1, n)
	}
	if keep {
		a.h = p.keep(n, p.m.Config.Hidden)
	}
	if n > 0 {
		a.index = p.a.Keep(p.s, gpustage.I32, 1, n)
		p.s.CopyIn(a.index, gpustage.Bytes(index))
	}
}

// forwardTokens computes the parts of x [T, C].
func (p *Pass) forwardTokens(x gpustage.Tensor) {
	a, w := p.tokens, p.m.w.tokens
	if a.index.IsZero() {
		return
	}
	if a.h.IsZero() {
		a.h = p.scratch(a.index.Cols, x.Cols)
	}
	p.s.Gather(a.h, x, a.index, false)
	p.forward(w.sparse, a.sparse, a.h, gpustage.MatMul{PreAct: a.pre, Act: gpustage.ReLU})
	p.forward(w.vectors, a.vectors, a.h, gpustage.MatMul{})
	if !a.length.IsZero() {
		p.s.Normalize(a.vectors, a.length, a.vectors)
	}
}

// tokensBackward adds to d [T, C] what comes through the parts, and the heads' gradients to g.
func (p *Pass) tokensBackward(d, dSparse, dVectors gpustage.Tensor, g tokenWeights) {
	a, w := p.tokens, p.m.w.tokens
	if a.index.IsZero() {
		return
	}
	mark := p.a.Mark()
	defer p.a.Release(mark)
	n := a.index.Cols
	dx, dPre := p.scratch(n, d.Cols), p.scratch(n, 1)
	if !a.length.IsZero() {
		dv := p.scratch(n, dVectors.Cols)
		p.s.NormalizeBackward(dv, dVectors, a.vectors, a.length)
		dVectors = dv
	}
	p.gradients(w.vectors, g.vectors, dVectors, a.h)
	p.backward(w.vectors, dx, dVectors, gpustage.MatMul{})
	p.s.ActivateBackward(dPre, dSparse, a.pre, gpustage.ReLU)
	p.gradients(w.sparse, g.sparse, dPre, a.h)
	p.backward(w.sparse, dx, dPre, gpustage.MatMul{Add: true})
	p.s.ScatterAdd(d, dx, a.index)
}

// Parts is what the pass gives, as the model's Parts lists it: embeddings [B, E], and of tokens [T', ...]. They are valid until Release.
func (p *Pass) Parts() []gpustage.Tensor {
	if p.m.Config.Tokens.None() {
		return []gpustage.Tensor{p.Embeddings()}
	}
	n := p.own.tokens - p.own.rows
	return []gpustage.Tensor{p.Embeddings(), p.tokens.sparse.Span(0, n), p.tokens.vectors.Span(0, n)}
}
