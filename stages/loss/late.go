package loss

import (
	"cmp"
	"fmt"

	"contraflow/gpustage"
)

// LateInteraction is the contrastive loss of vectors of tokens, ColBERT's with in-batch negatives (Khattab and Zaharia, arXiv 2004.12832;
// sentence-transformers' MultiVectorMultipleNegativesRankingLoss). With S(q, d) the sum, or MeanMaxSim's mean, over the query's vectors of
// the largest product with one of the document's, a row's loss is
//
//	l = -log (exp(Scale S(q, positive)) / sum over all documents d of the batch of exp(Scale S(q, d)))
//
// Tokens without a vector do not count on either side, as masked ones do not there. It takes the tiles of M3's multi_vector part, of which it
// is the loss of sums.
type LateInteraction struct {
	meanOverRows
	Scale          float64 // 1 if 0; 1/temperature
	Metric         Metric  // MaxSim if empty; MeanMaxSim
	MaskDuplicates bool    // see InfoNCE

	Block, TileCols int // see M3
}

// Check finds settings that make no sense.
func (l LateInteraction) Check() error {
	if err := checkMetric(l.Metric, MaxSim, MeanMaxSim); err != nil {
		return fmt.Errorf("similarity %w", err)
	}
	return l.parts().Check()
}

func (l LateInteraction) parts() M3 {
	return M3{
		Parts: []string{VectorsPart}, Scale: cmp.Or(l.Scale, 1), MaskDuplicates: l.MaskDuplicates, Block: l.Block, TileCols: l.TileCols, sums: l.Metric != MeanMaxSim,
	}
}

// Compute goes through strips of queries, as M3 does.
func (l LateInteraction) Compute(s gpustage.Stream, a *gpustage.Arena, b *Batch) (Result, error) {
	if err := l.Check(); err != nil {
		return Result{}, err
	}
	return l.parts().Compute(s, a, b)
}

// Memory is that of M3's tiles.
func (l LateInteraction) Memory(z Size) int { return l.parts().Memory(z) }

// compareTokens computes the values of all pairs by their vectors of tokens, pair by pair: products of a query's with a document's. Each
// pair's places stay.
func (p *pairs) compareTokens() error {
	values := p.a.Scratch(p.s, p.part.X.DType, 1, max(1, len(p.left)))
	for k, query := range p.left {
		m := openDocuments(p.s, p.a, p.part, int(p.right[k]), int(p.right[k])+1, maxSimCols)
		m.forward(int(query), int(query)+1, values.Columns(k, k+1))
		p.sims = append(p.sims, m)
	}
	got, err := download(p.s, values)
	p.values, p.coef = got[:len(p.left)], make([]float64, len(p.left))
	for k := range p.left {
		p.values[k] *= p.factor(k)
	}
	return err
}

// factor makes of a pair's mean what its metric is.
func (p *pairs) factor(k int) float64 {
	if p.metric == MeanMaxSim {
		return 1
	}
	return p.sims[k].factor(int(p.left[k]))
}

// backwardTokens adds the gradient of the sum of coef times values to the part's.
func (p *pairs) backwardTokens() {
	if len(p.left) == 0 {
		return
	}
	for k := range p.coef {
		p.coef[k] *= p.factor(k)
	}
	d := p.a.Scratch(p.s, p.part.X.DType, 1, len(p.left))
	gpustage.Upload(p.s, d, p.coef)
	for k, m := range p.sims {
		if p.coef[k] != 0 {
			m.backward(d.Columns(k, k+1))
		}
	}
}

// tokenPairsMemory is what they take: values and their gradient, each pair's places and where its document ends, and one pair's tile.
func tokenPairsMemory(z Size) int {
	pairs, t := max(1, z.Sequences-z.Rows), z.DType.Size()
	places := pairs * (roundUp64(4*z.Longest) + 64)
	rows, _ := maxSimTile(z.GPU)
	tile := (min(rows, z.Longest) + 2) * z.Longest * t
	return 2*roundUp64(pairs*t) + places + tile + 4*(3*z.Longest+4) + 16*64
}

func roundUp64(bytes int) int { return (bytes + 63) / 64 * 64 }
