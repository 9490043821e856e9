package loss

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"contraflow/gpustage"
)

// Term is a loss in a [Sum], and the factor that its mean has there.
type Term struct {
	Loss   Loss
	Factor float64
}

// Sum is the sum of losses of a batch's embeddings, each the mean over what it is a mean over (rows, documents, pairs of pairs) times its factor.
//
// Where all terms are means over rows ([RowMean]: every loss of this package for embeddings, and those of [Groups] but rank_net, lambda and adr_mse), the
// sum is one too: it splits rows, so that replicas share the work, and the rows of a step's batches count alike in every term.
//
// A term that is a mean over anything else, or a loss of one's own that does not say so, is divided by its own weight of the batch, and the sum counts
// by the batch's rows: with batch.accumulate, or accumulated gradients of any kind, a step has the mean of its batches' sums. Each replica then
// computes all of it, and where negatives stay on their ranks, a rank's rows are a batch. A term that finds nothing to be a mean over adds nothing.
//
// Parts of tokens (M3's) are beyond a sum.
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
	if slices.ContainsFunc(terms, func(t Term) bool { return !meansRows(t.Loss) }) {
		return sum(terms), nil
	}
	return splitSum{sum: terms}, nil
}

type sum []Term

// splitSum is one of means over rows.
type splitSum struct {
	meanOverRows
	sum
}

// Check finds settings of the terms that make no sense.
func (l sum) Check() error {
	for i, t := range l {
		if err := Check(t.Loss); err != nil {
			return fmt.Errorf("term %d, %T: %w", i, t.Loss, err)
		}
	}
	return nil
}

func (l sum) Compute(s gpustage.Stream, a *gpustage.Arena, b *Batch) (Result, error) {
	if b.Only != nil {
		return Result{}, errors.New("a sum of losses is asked for some rows of a batch, and not all of its terms are means over rows")
	}
	return l.compute(s, a, b)
}

func (l splitSum) Compute(s gpustage.Stream, a *gpustage.Arena, b *Batch) (Result, error) {
	return l.compute(s, a, b)
}

func (l sum) compute(s gpustage.Stream, a *gpustage.Arena, b *Batch) (Result, error) {
	switch err := b.check(); {
	case err != nil:
		return Result{}, err
	case len(b.Parts) > 0:
		return Result{}, errors.New("a sum of losses has no gradients for parts of tokens: train with loss m3, or with a model of embeddings alone")
	}
	total := Result{Weight: b.weigh(b.Own())}
	mark := a.Mark()
	defer a.Release(mark)
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
		f := t.Factor
		switch {
		case !meansRows(t.Loss) && r.Weight == 0:
			continue
		case !meansRows(t.Loss):
			f *= total.Weight / r.Weight
		case math.Abs(r.Weight-total.Weight) > 1e-9*total.Weight: // far above the rounding of a sum of float64
			return r, fmt.Errorf("term %d, %T, is a mean over rows (MeansRows), and its Result.Weight is %v for rows that weigh %v", i, t.Loss, r.Weight, total.Weight)
		}
		s.Scale(part.Gradient, part.Gradient, f)
		s.Add(b.Gradient, b.Gradient, part.Gradient)
		total.Sum += f * r.Sum
		if p := r.Sparsity; p != nil {
			if total.Sparsity == nil {
				found := *p // terms find the same of the same embeddings
				found.Added = 0
				total.Sparsity = &found
			}
			total.Sparsity.Added += t.Factor * p.Added
		}
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
