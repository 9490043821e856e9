package loss

import (
	"cmp"
	"errors"
	"fmt"
	"math"

	"contraflow/gpustage"
)

// Flops adds to a loss of sparse embeddings what keeps them sparse, as sentence-transformers' SpladeLoss does (Formal et al., arXiv 2109.10086, with the
// regularizer of Paria et al., arXiv 2004.05665): of n texts, an estimate of the products that a search for one of them takes in an inverted index,
//
//	FLOPS(x) = sum over the features v of (1/n sum over the texts i of x_iv)^2
//	loss + Query * FLOPS(the queries) + Document * FLOPS(the positives and all negatives)
//
// The means are over all texts of the batch, those of all ranks, whatever sub-batches they come in, and so is the gradient; sentence-transformers' are of
// one device's rows. Rows' weights don't count in them. With batch.accumulate, or accumulated gradients of any kind, each batch of a step has its own, as
// it has its own negatives. Embeddings are not negative.
//
// It is a mean over rows, and splits them: the sum over v of m_v^2, for the mean m, is the sum of each text's part <x_i, m>/n.
type Flops struct {
	Loss     RowMean
	Query    float64
	Document float64
	// Together takes queries for documents: all texts have one mean, and Query is not used.
	Together bool
	// QueryAbove and DocumentAbove leave out of the sums texts with no more active features (arXiv 2504.14839); of the texts that are left out n still counts. 0: none are.
	QueryAbove, DocumentAbove int

	// Warmup is how many steps both weights take from 0 to what they are: with the square of the part of these steps that is over, or with that part if
	// Linear. 0: they are what they are from the first step on.
	Warmup int
	Linear bool
}

// Sparsity is what a [Flops] has found of a batch: that of all ranks where negatives are gathered. In a [Sum] Added is what all of its terms add, with their
// factors, and the other figures are those of the first Flops.
type Sparsity struct {
	QueryFlops, DocumentFlops   float64 // without the weights; with Together of all texts, and of queries there is none
	QueryActive, DocumentActive float64 // how many features a text has on average
	Added                       float64 // to the loss
	// Batches is how many batches have each of the figures: not all do, as some have no documents.
	Batches struct{ QueryFlops, DocumentFlops, QueryActive, DocumentActive int }
}

// Plus is the sum of two, either of which may be nil.
func (s *Sparsity) Plus(o *Sparsity) *Sparsity {
	if s == nil || o == nil {
		return cmp.Or(s, o)
	}
	r := *s
	r.QueryFlops += o.QueryFlops
	r.DocumentFlops += o.DocumentFlops
	r.QueryActive += o.QueryActive
	r.DocumentActive += o.DocumentActive
	r.Added += o.Added
	r.Batches.QueryFlops += o.Batches.QueryFlops
	r.Batches.DocumentFlops += o.Batches.DocumentFlops
	r.Batches.QueryActive += o.Batches.QueryActive
	r.Batches.DocumentActive += o.Batches.DocumentActive
	return &r
}

// Over is the mean of n batches whose sum it is: each figure's of the batches that have it, and Added's of all n. Of nil it is nil.
func (s *Sparsity) Over(n int) *Sparsity {
	if s == nil {
		return nil
	}
	r := *s
	r.QueryFlops /= float64(max(1, s.Batches.QueryFlops))
	r.DocumentFlops /= float64(max(1, s.Batches.DocumentFlops))
	r.QueryActive /= float64(max(1, s.Batches.QueryActive))
	r.DocumentActive /= float64(max(1, s.Batches.DocumentActive))
	r.Added /= float64(n)
	return &r
}

func (Flops) SplitsRows() {}

// MeansRows tells that it is a mean over rows, as the loss in it is.
func (l Flops) MeansRows() bool { return meansRows(l.Loss) }

// Check finds settings that make no sense, of the loss in it too.
func (l Flops) Check() error {
	switch {
	case l.Loss == nil:
		return errors.New("flops: there is no loss that it is added to")
	case !meansRows(l.Loss):
		return fmt.Errorf("flops: %T is no mean over rows, to which it could be added", l.Loss)
	case l.QueryAbove < 0 || l.DocumentAbove < 0 || l.Warmup < 0:
		return fmt.Errorf("flops: thresholds of %d and %d features and a warm-up of %d steps: none can be negative", l.QueryAbove, l.DocumentAbove, l.Warmup)
	}
	for _, w := range []float64{l.Query, l.Document} {
		if err := checkNotNegative("flops: weight", w); err != nil {
			return err
		}
	}
	return Check(l.Loss)
}

// factor is what the weights are multiplied by in a step, counted from 0.
func (l Flops) factor(step int) float64 {
	if step >= l.Warmup {
		return 1
	}
	part := float64(step) / float64(l.Warmup)
	if l.Linear {
		return part
	}
	return part * part
}

// Compute is that of the loss, and what is added.
func (l Flops) Compute(s gpustage.Stream, a *gpustage.Arena, b *Batch) (Result, error) {
	if err := l.Check(); err != nil {
		return Result{}, err
	}
	if err := b.check(); err != nil {
		return Result{}, err
	}
	r, err := l.Loss.Compute(s, a, b)
	if err != nil {
		return r, err
	}
	if b.N() == b.Rows && !l.Together && l.Document > 0 {
		return r, errors.New("flops: the batch has single texts, and no documents: with document_only (in Go Flops.Together) they are documents")
	}
	all := b.weigh(0, b.Rows) // by which the batch's sum is divided
	f := l.factor(b.Step)
	sparsity := &Sparsity{}
	have := &sparsity.Batches
	add := func(lo, hi int, weight float64, above int, flops *float64, has *int) error {
		value, own, err := regularize(s, a, b, lo, hi, above, weight*f*all)
		*flops, *has = value, 1
		sparsity.Added += weight * f * value
		r.Sum += own
		return err
	}
	first := b.Rows
	if l.Together {
		first = 0
	} else if err := add(0, b.Rows, l.Query, l.QueryAbove, &sparsity.QueryFlops, &have.QueryFlops); err != nil {
		return r, err
	}
	if first < b.N() {
		if err := add(first, b.N(), l.Document, l.DocumentAbove, &sparsity.DocumentFlops, &have.DocumentFlops); err != nil {
			return r, err
		}
	}
	have.QueryActive = 1
	if sparsity.QueryActive, err = meanActive(s, a, b.Embeddings.Span(0, b.Rows)); err == nil && b.N() > b.Rows {
		have.DocumentActive = 1
		sparsity.DocumentActive, err = meanActive(s, a, b.Embeddings.Span(b.Rows, b.N()))
	}
	r.Sparsity = sparsity
	return r, err
}

// regularize is FLOPS of sequences lo to hi-1, and scale times the part of it that is of the rows that are asked for, the gradient of which it adds.
func regularize(s gpustage.Stream, a *gpustage.Arena, b *Batch, lo, hi, above int, scale float64) (value, own float64, err error) {
	mark := a.Mark()
	defer a.Release(mark)
	x, t := b.Embeddings.Span(lo, hi), b.Embeddings.DType
	n := x.Rows
	counts, mine := make([]float64, n), make([]float64, n) // 1 for texts that count, and for those of them that are this rank's
	var active []float64
	if above > 0 {
		if active, err = countActive(s, a, x); err != nil {
			return 0, 0, err
		}
	}
	for i := range counts {
		if above > 0 && active[i] <= float64(above) {
			continue
		}
		counts[i] = 1
		if b.asks(lo + i) {
			mine[i] = 1
		}
	}
	c, o, m, dots := a.Scratch(s, t, 1, n), a.Scratch(s, t, 1, n), a.Scratch(s, t, 1, x.Cols), a.Scratch(s, t, n, 1)
	gpustage.Upload(s, c, counts)
	gpustage.Upload(s, o, mine)
	s.MatMul(m, c, x, gpustage.MatMul{Alpha: 1 / float64(n)})
	s.MatMul(dots, x, m, gpustage.MatMul{TransB: true})
	if scale != 0 {
		s.MatMul(b.Gradient.Span(lo, hi), o, m, gpustage.MatMul{TransA: true, Alpha: 2 * scale / float64(n), Add: true})
	}
	parts, err := download(s, dots.Reshape(1, n))
	for i, v := range parts {
		value += counts[i] * v / float64(n)
		own += mine[i] * v / float64(n)
	}
	return value, scale * own, err
}

// asks tells whether a sequence is of a row that is asked for.
func (b *Batch) asks(sequence int) bool {
	row := b.rowOf(sequence)
	lo, hi := b.Own()
	return row >= lo && row < hi
}

func countActive(s gpustage.Stream, a *gpustage.Arena, x gpustage.Tensor) ([]float64, error) {
	mark := a.Mark()
	defer a.Release(mark)
	n := a.Scratch(s, x.DType, 1, x.Rows)
	s.CountActive(n, x)
	return download(s, n)
}

func meanActive(s gpustage.Stream, a *gpustage.Arena, x gpustage.Tensor) (float64, error) {
	all, err := countActive(s, a, x)
	sum := 0.0
	for _, n := range all {
		sum += n
	}
	return sum / math.Max(1, float64(len(all))), err
}

// Memory is the loss's, or what the regularizer takes after it.
func (l Flops) Memory(z Size) int {
	return max(l.Loss.Memory(z), (4*z.Sequences+z.Dim)*z.DType.Size()+5*64)
}
