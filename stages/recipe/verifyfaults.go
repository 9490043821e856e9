package recipe

import (
	"slices"

	"contraflow/gpustage"
	"contraflow/stages/loss"
)

// Faults that are planted in a loss.

// scaled is a loss whose gradient is too large.
type scaled struct {
	loss.Loss
	factor float64
}

func (l scaled) Compute(s gpustage.Stream, a *gpustage.Arena, b *loss.Batch) (loss.Result, error) {
	r, err := l.Loss.Compute(s, a, b)
	d, _ := gradientOf(b)
	s.Scale(*d, *d, l.factor)
	return r, err
}

// gradientOf is a batch's gradient, and where sequence n's rows begin in it: of embeddings, or of tokens' vectors where there are no others.
func gradientOf(b *loss.Batch) (d *gpustage.Tensor, at func(n int) int) {
	if b.Gradient.IsZero() && len(b.Parts) > 0 {
		return &b.Parts[0].Gradient, func(n int) int { return int(b.Parts[0].Cu[n]) }
	}
	return &b.Gradient, func(n int) int { return n }
}

// detached is what two ranks compute that gather each other's embeddings without gradients: each row's gradient comes from
// the losses of its own half of the batch alone.
type detached struct{ loss.Loss }

func (l detached) Compute(s gpustage.Stream, a *gpustage.Arena, b *loss.Batch) (loss.Result, error) {
	total := loss.Result{}
	all, at := gradientOf(b)
	mark := a.Mark()
	defer a.Release(mark)
	own := a.Keep(s, all.DType, all.Rows, all.Cols)
	for half := range 2 {
		part := *b
		part.Parts = slices.Clone(b.Parts)
		gradient, _ := gradientOf(&part)
		*gradient = own
		mine := func(row int) bool { return (row >= b.Rows/2) == (half == 1) }
		first, last := b.Own()
		part.Only = &loss.Rows{Lo: max(first, half*(b.Rows/2)), Hi: last}
		if half == 0 {
			part.Only.Hi = min(last, b.Rows/2)
		}
		if part.Only.Lo >= part.Only.Hi {
			continue
		}
		if len(b.Teacher) > 0 {
			d := len(b.Teacher) / (last - first)
			part.Teacher = b.Teacher[(part.Only.Lo-first)*d : (part.Only.Hi-first)*d]
		}
		s.Fill(own, 0)
		r, err := l.Loss.Compute(s, a, &part)
		if err != nil {
			return r, err
		}
		total.Sum, total.Weight = total.Sum+r.Sum, total.Weight+r.Weight
		for n := range b.N() {
			row := n % b.Rows
			if n >= 2*b.Rows {
				row = int(b.Owner[n-2*b.Rows])
			}
			if mine(row) {
				s.Copy(all.Span(at(n), at(n+1)), own.Span(at(n), at(n+1)))
			}
		}
	}
	return total, nil
}

// Memory has room for one more gradient.
func (l detached) Memory(z loss.Size) int {
	return l.Loss.Memory(z) + max(z.Sequences, z.Tokens)*z.Dim*z.DType.Size() + 64
}

// redrawn is a loss that draws as in another batch.
type redrawn struct {
	loss.Loss
	draws map[uint64]uint64
}

func (l redrawn) Compute(s gpustage.Stream, a *gpustage.Arena, b *loss.Batch) (loss.Result, error) {
	own := *b
	own.Draw = l.draws[b.Draw]
	return l.Loss.Compute(s, a, &own)
}

// splitting makes a RowSplitter of what wraps one.
type splitting struct{ loss.Loss }

func (splitting) SplitsRows() {}

// as is what wraps a loss, and splits rows if that does.
func as(l, wraps loss.Loss) loss.Loss {
	if _, ok := l.(loss.RowSplitter); ok {
		return splitting{wraps}
	}
	return wraps
}
