package loss

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"contraflow/gpustage"
)

// Matryoshka is the weighted sum of a loss over the first Dims features of the embeddings, normalized anew each time (Kusupati et al.,
// arXiv 2205.13147), as sentence-transformers' MatryoshkaLoss computes it: whatever the loss, it sees embeddings of length 1. Each is the mean over its own
// Result.Weight. weights nil means 1 each. perBatch is how many of the dimensions a batch takes, which Batch.Draw chooses; 0: all. It splits rows if the loss does.
func Matryoshka(l Loss, dims []int, weights []float64, perBatch int) (Loss, error) {
	if l == nil {
		return nil, errors.New("there is no loss")
	}
	if len(dims) == 0 {
		return nil, fmt.Errorf("there are no dimensions")
	}
	if weights != nil && len(weights) != len(dims) {
		return nil, fmt.Errorf("%d dimensions have %d weights", len(dims), len(weights))
	}
	if perBatch < 0 || perBatch > len(dims) {
		return nil, fmt.Errorf("%d of %d dimensions in each batch", perBatch, len(dims))
	}
	m := matryoshka{l: l, dims: dims, weights: weights, perBatch: perBatch}
	for i, d := range dims {
		if d < 1 {
			return nil, fmt.Errorf("%d dimensions, want at least 1", d)
		}
		if slices.Contains(dims[:i], d) {
			return nil, fmt.Errorf("%d dimensions twice: weights are for one to count more", d)
		}
		if weights != nil && (weights[i] < 0 || !finite(weights[i])) {
			return nil, fmt.Errorf("weight %v, want a number of at least 0", weights[i])
		}
		m.widest = max(m.widest, d)
	}
	if _, ok := l.(RowSplitter); ok {
		return splitMatryoshka{m}, nil
	}
	return m, nil
}

type matryoshka struct {
	l        Loss
	dims     []int
	weights  []float64
	perBatch int
	widest   int
}

// of are the places of the dimensions that a batch takes.
func (l matryoshka) of(b *Batch) []int {
	n := l.perBatch
	if n == 0 {
		n = len(l.dims)
	}
	places := rand.New(rand.NewPCG(b.Draw, 0)).Perm(len(l.dims))[:n]
	slices.Sort(places)
	return places
}

// splitMatryoshka is one of a RowSplitter.
type splitMatryoshka struct{ matryoshka }

func (splitMatryoshka) SplitsRows() {}

func (l splitMatryoshka) MeansRows() bool { return meansRows(l.l) }

// Check finds settings of the loss in it that make no sense.
func (l matryoshka) Check() error { return Check(l.l) }

func (l matryoshka) Compute(s gpustage.Stream, a *gpustage.Arena, b *Batch) (Result, error) {
	switch err := b.check(); {
	case err != nil:
		return Result{}, err
	case len(b.Parts) > 0:
		return Result{}, errors.New("matryoshka: parts of tokens have no first dimensions: train with loss m3, or with a model of embeddings alone")
	}
	n, e, t := b.N(), b.Embeddings.Cols, b.Embeddings.DType
	if l.widest > e {
		return Result{}, fmt.Errorf("matryoshka: %d dimensions, and embeddings have %d", l.widest, e)
	}
	var total Result
	lo, hi := b.Own()
	for _, i := range l.of(b) {
		dim := l.dims[i]
		mark := a.Mark()
		part := *b
		norm := a.Scratch(s, t, 1, n)
		part.Embeddings, part.Gradient, part.Normalized = a.Scratch(s, t, n, dim), a.Scratch(s, t, n, dim), true
		s.Normalize(part.Embeddings, norm, b.Embeddings.Columns(0, dim))
		s.Fill(part.Gradient, 0)
		if rows := hi - lo; rows > 0 && len(b.Teacher) == rows*e && dim < e { // of a teacher's embeddings as many features
			part.Teacher = make([]float32, 0, rows*dim)
			for r := range rows {
				part.Teacher = append(part.Teacher, b.Teacher[r*e:r*e+dim]...)
			}
		}
		r, err := l.l.Compute(s, a, &part)
		if err != nil {
			a.Release(mark)
			return r, err
		}
		w := 1.0
		if l.weights != nil {
			w = l.weights[i]
		}
		switch _, splits := l.l.(RowSplitter); {
		case total.Weight == 0:
			total.Weight = r.Weight
		case r.Weight == 0, math.Abs(r.Weight-total.Weight) <= 1e-9*total.Weight: // of nothing there is no mean; far above the rounding of a sum of float64
		case splits: // of which nobody knows the other ranks' weights
			a.Release(mark)
			return r, fmt.Errorf("matryoshka: %T splits rows, and its Result.Weight is %v with %d features and %v with fewer or more: want the same", l.l, r.Weight, dim, total.Weight)
		default: // each is a mean over its own weight
			w *= total.Weight / r.Weight
		}
		s.NormalizeBackward(part.Gradient, part.Gradient, part.Embeddings, norm)
		s.Scale(part.Gradient, part.Gradient, w)
		sum := b.Gradient.Columns(0, dim)
		s.Add(sum, sum, part.Gradient)
		total.Sum += w * r.Sum
		a.Release(mark)
	}
	return total, nil
}

// Memory is that of the widest part.
func (l matryoshka) Memory(z Size) int {
	part := z
	part.Dim, part.Normalized = min(l.widest, z.Dim), true
	return z.Sequences*(2*part.Dim+1)*z.DType.Size() + 3*64 + l.l.Memory(part)
}
