package transformer

import (
	"fmt"
	"slices"

	"contraflow/gpustage"
)

// TokenHeads give, besides the embedding, two parts of every token but the first, as BGE-M3 has them (Chen et al., arXiv 2402.03216):
// of its hidden state h
//
//	sparse        relu(w h + b), the token's weight in the lexical match     [T', 1]
//	multi_vector  W h + b, of length 1 where embeddings are                  [T', D]
//
// T' is T - B: the first token, whose hidden state CLS pooling takes, has neither; texts begin T' rows at Cu[b] - b. The zero value
// is no such heads.
//
// Alone it is what ColBERT has (Khattab and Zaharia, arXiv 2004.12832): the model gives a vector of each token, and nothing else. Then what
// Config.Dense makes of a token's hidden state, of length 1 where Head.Normalize says so, is its vector [T', D], and Reading says of each
// role's texts which tokens have one.
type TokenHeads struct {
	Sparse  string  // parameters [1, C] and [1], without ".weight" and ".bias"
	Vectors string  // [D, C] and [D]
	Dim     int     // D
	Special []int32 // ids of tokens that no lexical weight is of; the heads themselves don't look at ids
	New     bool    // what a checkpoint lacks of them begins at random
	Seed    uint64  // of those

	Alone           bool // of Sparse, Vectors and Special there is nothing then
	Mean            bool // a score is the mean over the query's vectors, and not their sum
	Query, Document Reading
}

// Reading is how a role's texts are read where each token has a vector of its own.
type Reading struct {
	Skip []int32 // ids of tokens that have no vector
	// Fill is the token that follows a text of less than Length tokens until it has as many: ColBERT's query expansion. 0: nothing does.
	Length int
	Fill   int32
	Unseen bool // no token attends to those that follow, and they attend to the text's: PyLate's and Stanford's ColBERT
}

// ColBERT are the heads of a model that gives vectors of dim features alone.
func (c Config) ColBERT(fresh bool, seed uint64) TokenHeads {
	return TokenHeads{Alone: true, Dim: c.embeddingSize(), New: fresh, Seed: seed}
}

// Reading is that of a role's texts.
func (h TokenHeads) Reading(query bool) Reading {
	if query {
		return h.Query
	}
	return h.Document
}

// Unseen tells whether queries have tokens that the others do not attend to.
func (h TokenHeads) Unseen() bool { return h.Query.Unseen && h.Query.Length > 0 }

// Sees refuses tokens that are not attended to where they are more than that: see UnseenBlind.
func (c Config) Sees(r Reading) error {
	if r.Unseen && c.UnseenBlind {
		return fmt.Errorf("queries filled up with tokens that no token attends to are %w in a model of family %s", ErrUnsupported, c.Family)
	}
	return nil
}

// Expand appends to ids, of which a text begins at a place, what follows a text that is short.
func (r Reading) Expand(ids []int32, from int) []int32 {
	for len(ids)-from < r.Length {
		ids = append(ids, r.Fill)
	}
	return ids
}

// M3Heads are BGE-M3's by their names; dim 0 is as many features as hidden states have.
func (c Config) M3Heads(dim int, fresh bool, seed uint64) TokenHeads {
	if dim == 0 {
		dim = c.Hidden
	}
	return TokenHeads{Sparse: "sparse_linear", Vectors: "colbert_linear", Dim: dim, New: fresh, Seed: seed}
}

// None tells that there are none.
func (h TokenHeads) None() bool { return h.Vectors == "" && !h.Alone }

// Part is something that a model gives of each text.
type Part struct {
	Name   string // one of the names below
	Size   int    // features
	Tokens bool   // a row for each token that has some, otherwise one for the text
}

// The parts of a model with TokenHeads; any other that embeds has the first alone, and one whose heads are Alone the last.
const (
	DensePart   = "dense"
	SparsePart  = "sparse"
	VectorsPart = "multi_vector"
)

// Parts lists what the model gives of a text, its embedding first if it has one.
func (m *Model) Parts() []Part {
	h := m.Config.Tokens
	if h.Alone {
		return []Part{{VectorsPart, m.EmbeddingSize(), true}}
	}
	parts := []Part{{Name: DensePart, Size: m.EmbeddingSize()}}
	if !h.None() {
		parts = append(parts, Part{SparsePart, 1, true}, Part{VectorsPart, h.Dim, true})
	}
	return parts
}

// tokenWeights are the heads' parameters, or their gradients.
type tokenWeights struct{ sparse, vectors linear }

func (h TokenHeads) weights(v viewer) (w tokenWeights) {
	if !h.None() && !h.Alone {
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

// Shown are the places of a text's tokens that have rows in parts of tokens.
func (h TokenHeads) Shown(query bool, ids []int32) (places []int32) {
	skip := h.Reading(query).Skip
	for t := h.first(); t < len(ids); t++ {
		if !slices.Contains(skip, ids[t]) {
			places = append(places, int32(t))
		}
	}
	return places
}

// first is the first token of a text that may have a row.
func (h TokenHeads) first() int {
	if h.Alone {
		return 0
	}
	return 1
}

// shown are those of all rows that may have one.
func (h TokenHeads) shown(r Rows) (places []int32) {
	for b := range r.Len() {
		for t := int(r.Cu[b]) + h.first(); t < int(r.Cu[b+1]); t++ {
			places = append(places, int32(t))
		}
	}
	return places
}

// index is which token each row of a pass is of: first those that are shown, then, so that rows are as many whatever is shown, the
// others, whose rows nobody sees.
func (h TokenHeads) index(r Rows) []int32 {
	out := make([]int32, 0, h.rows(len(r.IDs), r.Len()))
	out = append(out, r.Shown...)
	seen := make([]bool, len(r.IDs))
	for _, t := range r.Shown {
		seen[t] = true
	}
	for _, t := range h.shown(r) {
		if !seen[t] {
			out = append(out, t)
		}
	}
	return out
}

// rows is how many rows a pass of so many tokens and texts has.
func (h TokenHeads) rows(tokens, texts int) int { return tokens - texts*h.first() }

// openTokens takes room for the heads, at the arena's bottom.
func (p *Pass) openTokens(r Rows, keep bool) {
	h := p.m.Config.Tokens
	if h.None() {
		return
	}
	index := h.index(r)
	n, a := len(index), &p.tokens
	if n > 0 {
		a.index = p.a.Keep(p.s, gpustage.I32, 1, n)
		p.s.CopyIn(a.index, gpustage.Bytes(index))
	}
	if h.Alone { // dense layers, which have places already, are all there is
		return
	}
	a.pre, a.sparse, a.vectors = p.keep(n, 1), p.keep(n, 1), p.keep(n, h.Dim)
	if p.m.Head.Normalize {
		a.length = p.keep(1, n)
	}
	if keep {
		a.h = p.keep(n, p.m.Config.Hidden)
	}
}

// forwardTokens computes the parts of x [T, C].
func (p *Pass) forwardTokens(x gpustage.Tensor) {
	a, w := p.tokens, p.m.w.tokens
	if a.index.IsZero() || p.m.Config.Tokens.Alone {
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

// pool makes of hidden states x [T, C] what Config.Dense takes: a row for each text, which may be a sparse embedding, or, Alone, for each token that
// has one.
func (p *Pass) pool(x gpustage.Tensor) {
	switch c := p.m.Config; {
	case c.Tokens.Alone:
		p.s.Gather(p.pooled, x, p.tokens.index, false)
	case !c.MLMHead.None():
		p.forwardMLM(x)
	default:
		p.poolTexts(x)
	}
}

// poolBackward writes to d [T, C] the gradient that comes through pool, and adds that of an MLMHead to g.
func (p *Pass) poolBackward(d, dPooled gpustage.Tensor, g *weights) {
	switch c := p.m.Config; {
	case c.Tokens.Alone:
		p.s.Fill(d, 0)
		p.s.ScatterAdd(d, dPooled, p.tokens.index)
	case !c.MLMHead.None():
		p.backwardMLM(d, dPooled, g)
	default:
		p.poolTextsBackward(d, dPooled)
	}
}

// outputs is how many rows dense layers and normalization have in a pass of so many tokens and texts: B, or what index has.
func (h TokenHeads) outputs(tokens, texts int) int {
	if h.Alone {
		return h.rows(tokens, texts)
	}
	return texts
}

// Parts is what the pass gives, as the model's Parts lists it: embeddings [B, E], and of tokens [T', ...]. They are valid until Release.
func (p *Pass) Parts() []gpustage.Tensor {
	if h := p.m.Config.Tokens; h.None() || h.Alone {
		return []gpustage.Tensor{p.Embeddings()}
	}
	return []gpustage.Tensor{p.Embeddings(), p.tokens.sparse.Span(0, p.shown), p.tokens.vectors.Span(0, p.shown)}
}

// Most is how many rows a text of so many tokens has at most.
func (h TokenHeads) Most(tokens int) int { return max(0, tokens-h.first()) }
