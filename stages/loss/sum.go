package loss

import (
	"errors"
	"fmt"

	"contraflow/gpustage"
)

// Term is a loss in a [Sum], and the factor that its mean has there.
type Term struct {
	Loss   Loss
	Factor float64
}

// Sum is the sum of losses of a batch's embeddings, each the mean over what it is a mean over (rows, documents, pairs of pairs) times its factor. That
// mean is the batch's, and the sum counts by the batch's rows: with batch.accumulate, or accumulated gradients of any kind, a step has the mean of
// its batches' sums. So each replica computes it as a whole. A term that finds nothing to be a mean over adds nothing. Parts of tokens (M3's) are
// beyond it.
func Sum(terms ...Term) (Loss, error) {
	if len(terms) == 0 {
		return nil, errors.New("a sum of no losses")
	}
	for i, t := range terms {
		switch f := t.Factor; {
		case t.Loss == nil:
			return nil, fmt.Errorf("term %d has no loss", i)
		case f < 0 || !finite(f):
			return nil, fmt.Errorf("term %d, %T, has the factor %v, want a number of at least 0", i, t.Loss, f)
		}
	}
	return sum(terms), nil
}

type sum []Term

func (l sum) Compute(s gpustage.Stream, a *gpustage.Arena, b *Batch) (Result, error) {
	switch err := b.check(); {
	case err != nil:
		return Result{}, err
	case len(b.Parts) > 0:
		return Result{}, errors.New("a sum of losses has no gradients for parts of tokens: train with loss m3, or with a model of embeddings alone")
	case b.Only != nil:
		return Result{}, errors.New("a sum of losses is asked for some rows of a batch: its means are the batch's")
	}
	var total Result
	for i := range b.Rows {
		total.Weight += b.Weight(i)
	}
	mark := a.Mark()
	defer func() { a.Release(mark) }()
	part := *b
	part.Gradient = a.Scratch(s, b.Gradient.DType, b.N(), b.Gradient.Cols)
	for i, t := range l {
		s.Fill(part.Gradient, 0)
		r, err := t.Loss.Compute(s, a, &part)
		if err == nil {
			err = r.Check()
		}
		if err != nil {
			return r, fmt.Errorf("term %d, %T: %w", i, t.Loss, err)
		}
		if r.Weight == 0 {
			continue
		}
		f := t.Factor * total.Weight / r.Weight
		s.Scale(part.Gradient, part.Gradient, f)
		s.Add(b.Gradient, b.Gradient, part.Gradient)
		total.Sum += f * r.Sum
	}
	return total, nil
}

// Memory is a gradient, and that of the term that takes most.
func (l sum) Memory(z Size) int {
	most := 0
	for _, t := range l {
		most = max(most, t.Loss.Memory(z))
	}
	return z.Sequences*z.Dim*z.DType.Size() + 64 + most
}
