package transformer

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"contraflow/gpustage"
)

// QueryWeights are a weight for each token of the vocabulary, of which queries' sparse embeddings are made without the transformer: sentence-transformers'
// SparseStaticEmbedding, of inference-free SPLADE (Lassance et al., arXiv 2403.06789; Geng et al., arXiv 2411.04403),
//
//	e[b, v] = weight[v] if v is among the tokens of text b, else 0
//
// A token counts once, however often a text has it. Texts are read without special tokens, and may have none. Documents go through the transformer
// and its MLMHead. The gradient of weight[v] is the sum of e[b, v]'s over the texts that have v. The zero value is no such weights.
type QueryWeights struct {
	There  bool
	Frozen bool      // they do not train
	First  []float32 // [V]: what they begin as; nil: what the model's folder has
}

// QueryWeight is the weights' name in a [Layout], [V].
const QueryWeight = "queries.weight"

// check tells whether a model may have them.
func (q QueryWeights) check(c Config) error {
	if q.There && c.MLMHead.None() {
		return fmt.Errorf("queries of weights alone are sparse, and the model's documents are not: this is %w", ErrUnsupported)
	}
	return nil
}

// Distinct has the ids of flat from start on once each, in ascending order: how [Rows.Weighed] has them.
func Distinct(flat []int32, start int) []int32 {
	slices.Sort(flat[start:])
	return flat[:start+len(slices.Compact(flat[start:]))]
}

// checkWeighed is Check of rows that are weights of tokens.
func (m *Model) checkWeighed(r Rows) error {
	if !m.Config.Queries.There {
		return errors.New("a sub-batch of queries that are weights of tokens (Rows.Weighed) is for a model with QueryWeights")
	}
	for b := range r.Len() {
		ids := r.IDs[r.Cu[b]:r.Cu[b+1]]
		for i, id := range ids {
			switch {
			case id < 0 || int(id) >= m.Config.Vocab:
				return fmt.Errorf("row %d of the sub-batch has a token with id %d, the vocabulary has %d", b, id, m.Config.Vocab)
			case i > 0 && id <= ids[i-1]:
				return fmt.Errorf("row %d of the sub-batch has token %d behind %d: tokens of queries that are weights are distinct and ascend (transformer.Distinct)", b, id, ids[i-1])
			}
		}
	}
	return nil
}

// weighedBlock is some rows of a pass, as many as have features that an i32 can count.
type weighedBlock struct {
	lo, hi  int             // rows
	ids, at gpustage.Tensor // i32 [1, T]: tokens, and the places of their features among the rows', one row after another
}

// weighedFeatures is how many features a block has at most. Tests change it.
var weighedFeatures = math.MaxInt32

// openWeighed copies a sub-batch's tokens to the arena's bottom.
func (p *Pass) openWeighed(r Rows) {
	p.in.seqs = gpustage.Sequences{Rows: r.Len(), Tokens: len(r.IDs)}
	v := p.m.Config.Vocab
	step := max(1, weighedFeatures/v)
	for lo := 0; lo < r.Len(); lo += step {
		hi := min(r.Len(), lo+step)
		ids := r.IDs[r.Cu[lo]:r.Cu[hi]]
		if len(ids) == 0 {
			continue
		}
		at := make([]int32, 0, len(ids))
		for b := lo; b < hi; b++ {
			for _, id := range r.IDs[r.Cu[b]:r.Cu[b+1]] {
				at = append(at, int32((b-lo)*v)+id)
			}
		}
		x := weighedBlock{lo: lo, hi: hi}
		for _, y := range []struct {
			to *gpustage.Tensor
			vs []int32
		}{{&x.ids, ids}, {&x.at, at}} {
			*y.to = p.a.Keep(p.s, gpustage.I32, 1, len(ids))
			p.s.CopyIn(*y.to, gpustage.Bytes(y.vs))
		}
		p.weighed = append(p.weighed, x)
	}
}

// features is a block's rows of embeddings, or of their gradient, with a row for each feature.
func (x weighedBlock) features(of gpustage.Tensor) gpustage.Tensor {
	return of.Span(x.lo, x.hi).Reshape((x.hi-x.lo)*of.Cols, 1)
}

// forwardWeighed makes embeddings [B, V] of weights.
func (p *Pass) forwardWeighed(r Rows) {
	n, v := r.Len(), p.m.Config.Vocab
	p.embeddings = p.keep(n, v)
	if p.projected = p.embeddings; p.m.Head.Normalize {
		p.projected, p.length = p.keep(n, v), p.keep(1, n)
	}
	p.openWeighed(r)
	p.s.Fill(p.projected, 0)
	for _, x := range p.weighed {
		mark := p.a.Mark()
		of := p.scratch(x.ids.Cols, 1)
		p.s.Gather(of, p.m.w.queries.Reshape(v, 1), x.ids, false)
		p.s.ScatterAdd(x.features(p.projected), of, x.at)
		p.a.ReleaseScratch(mark)
	}
	if p.m.Head.Normalize {
		p.s.Normalize(p.embeddings, p.length, p.projected)
	}
}

// backwardWeighed adds the weights' gradient, and tells of all others that nothing is added to them.
func (p *Pass) backwardWeighed(dEmbeddings gpustage.Tensor, to Gradients) {
	g := p.m.gradients(to).queries
	if !g.IsZero() {
		d := dEmbeddings
		if p.m.Head.Normalize {
			d = p.scratch(d.Rows, d.Cols)
			p.s.NormalizeBackward(d, dEmbeddings, p.embeddings, p.length)
		}
		for _, x := range p.weighed {
			mark := p.a.Mark()
			of := p.scratch(x.ids.Cols, 1)
			p.s.Gather(of, x.features(d), x.at, false)
			p.s.ScatterAdd(g.Reshape(p.m.Config.Vocab, 1), of, x.ids)
			p.a.ReleaseScratch(mark)
		}
	}
	if to.Done != nil {
		for _, mark := range p.m.Layout.Marks() {
			to.Done(mark)
		}
	}
}
