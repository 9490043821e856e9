package loss

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"

	"contraflow/gpustage"
)

// GradientCheck says how [CheckGradient] looks at a loss.
type GradientCheck struct {
	// Limit is how far a difference quotient q and the gradient may be apart, as a share of |q| and of the Result's Weight together. 0: 1e-6.
	Limit float64
	// Step is how far an embedding's number is moved, up and down, and where that is too far also half of it. 0: 2^-17, for losses that sum up
	// float64s, as a [Host] may. One that sums up float32s has a value that is known to seven digits, and needs a large step, such as 1/64, with a
	// Limit of 1e-3.
	Step float64
	// Elements is about how many numbers of each matrix are looked at, evenly spread over it. 0: all.
	Elements int
}

// CheckGradient is for tests of losses: it compares the gradient that a loss gives of a batch with the difference quotients of its Result's Sum, for
// each number of the embeddings and of the parts. The batch is in f64 in the host's memory, such as [RandomBatch] makes, with what else the loss
// asks for: labels, scores. Numbers that are 0 are left out, as those of sparse embeddings have nothing below them. Where two texts change
// places in a maximum, or a margin ends, within a step, the quotient is of neither side: that takes another batch.
//
// It finds besides a loss that is another one when it is computed again, that changes the embeddings, keeps memory of the arena, or says that it splits rows
// ([RowSplitter]) where the rows' sums and gradients do not add up to the batch's. Tiles and blocks, which some losses have as fields, are the caller's to try.
func CheckGradient(s gpustage.Stream, l Loss, b *Batch, o GradientCheck) error {
	if o.Limit == 0 {
		o.Limit = 1e-6
	}
	if o.Step == 0 {
		o.Step = 1. / (1 << 17)
	}
	if b.Rows == 0 {
		return errors.New("the batch has no rows: there is nothing to compare")
	}
	c := gradientCheck{s: s, l: l, b: *b, o: o}
	if !b.Embeddings.IsZero() {
		c.add("Embeddings", b.Embeddings, b.Gradient)
	}
	for _, p := range b.Parts {
		c.add("part "+p.Name, p.X, p.Gradient)
	}
	for _, m := range c.of {
		if m.x.DType != gpustage.F64 || m.dx.DType != gpustage.F64 || !gpustage.InHost(m.x) || !gpustage.InHost(m.dx) || m.x.Stride != m.x.Cols || m.dx.Stride != m.dx.Cols || m.dx.Len() != m.x.Len() {
			return fmt.Errorf("%s: %v with the gradient %v: want both of float64, in the host's memory, without gaps between rows, as RandomBatch makes them", m.name, m.x, m.dx)
		}
	}
	var err error
	if c.arena, err = gpustage.NewArena(s.Device(), l.Memory(b.Size())); err != nil {
		return err
	}
	defer c.arena.Free()
	if err := c.run(); err != nil {
		return fmt.Errorf("%T: %w", l, err)
	}
	return nil
}

type gradientCheck struct {
	s     gpustage.Stream
	l     Loss
	b     Batch
	o     GradientCheck
	arena *gpustage.Arena
	of    []checkedMatrix
}

type checkedMatrix struct {
	name  string
	x, dx gpustage.Tensor
	want  []float64 // the gradient of all rows
}

func (c *gradientCheck) add(name string, x, dx gpustage.Tensor) {
	c.of = append(c.of, checkedMatrix{name: name, x: x, dx: dx})
}

// compute is the loss of the rows that are asked for; their gradient is added.
func (c *gradientCheck) compute() (Result, error) {
	r, err := c.l.Compute(c.s, c.arena, &c.b)
	if err = errors.Join(err, c.s.Sync()); err != nil {
		return r, err
	}
	if n := c.arena.Used(); n != 0 {
		return r, fmt.Errorf("%d bytes of the arena were not given back", n)
	}
	return r, r.Check()
}

func (c *gradientCheck) clear() {
	for _, m := range c.of {
		clear(gpustage.Slice[float64](m.dx))
	}
}

// alone is compute of a gradient that was zero.
func (c *gradientCheck) alone() (Result, error) {
	c.clear()
	return c.compute()
}

func (c *gradientCheck) run() error {
	var before [][]float64
	for _, m := range c.of {
		before = append(before, append([]float64(nil), gpustage.Slice[float64](m.x)...))
	}
	whole, err := c.alone()
	if err != nil {
		return err
	}
	for i := range c.of {
		m := &c.of[i]
		m.want = append([]float64(nil), gpustage.Slice[float64](m.dx)...)
		for k, v := range gpustage.Slice[float64](m.x) {
			if v != before[i][k] {
				return fmt.Errorf("the loss has changed %s: it may change gradients alone", m.at(k))
			}
		}
	}
	if again, err := c.alone(); err != nil {
		return err
	} else if again.Sum != whole.Sum || again.Weight != whole.Weight {
		return fmt.Errorf("computed again, the loss is %v of weight %v, and was %v of %v: losses keep no state, and what is drawn at random follows from Batch.Draw", again.Sum, again.Weight, whole.Sum, whole.Weight)
	}
	if err := c.compare("of the batch computed again", 0); err != nil {
		return err
	}
	if err := c.rows(whole); err != nil {
		return err
	}
	return c.differences(whole)
}

// at names an element.
func (m *checkedMatrix) at(k int) string {
	return fmt.Sprintf("%s[%d, %d]", m.name, k/m.x.Cols, k%m.x.Cols)
}

// compare is of the gradient at hand with the batch's.
func (c *gradientCheck) compare(what string, limit float64) error {
	for i := range c.of {
		m := &c.of[i]
		for k, v := range gpustage.Slice[float64](m.dx) {
			if w := m.want[k]; !(math.Abs(v-w) <= limit) {
				return fmt.Errorf("the gradient of %s is %v %s, and %v of the batch", m.at(k), v, what, w)
			}
		}
	}
	return nil
}

// rows asks for the rows one after the other, and for none, as ranks do, into one gradient.
func (c *gradientCheck) rows(whole Result) error {
	if _, splits := c.l.(RowSplitter); !splits || c.b.Only != nil {
		return nil
	}
	teacher := c.b.Teacher
	defer func() { c.b.Only, c.b.Teacher = nil, teacher }()
	var sum Result
	c.clear()
	for i := range c.b.Rows + 1 {
		only := Rows{i, min(i+1, c.b.Rows)}
		each := len(teacher) / c.b.Rows
		c.b.Only, c.b.Teacher = &only, teacher[only.Lo*each:only.Hi*each]
		r, err := c.compute()
		if err != nil {
			return fmt.Errorf("rows %d to %d alone (Batch.Only): %w", only.Lo, only.Hi, err)
		}
		sum.Sum, sum.Weight = sum.Sum+r.Sum, sum.Weight+r.Weight
	}
	if limit := c.o.Limit * (whole.Weight + math.Abs(whole.Sum)); !(math.Abs(sum.Sum-whole.Sum) <= limit && math.Abs(sum.Weight-whole.Weight) <= limit) {
		return fmt.Errorf("row by row (Batch.Only) the loss is %v of weight %v, and as a whole %v of %v: a RowSplitter's rows add up", sum.Sum, sum.Weight, whole.Sum, whole.Weight)
	}
	return c.compare("row by row (Batch.Only)", c.o.Limit*(whole.Weight+c.largest()))
}

func (c *gradientCheck) largest() (most float64) {
	for _, m := range c.of {
		for _, v := range m.want {
			most = max(most, math.Abs(v))
		}
	}
	return most
}

// differences moves numbers one after the other. The error is of the one that is furthest off.
func (c *gradientCheck) differences(whole Result) error {
	type element struct {
		at          string
		quotient, g float64
	}
	var worst element
	off, looked, far, most := 0, 0, 0.0, 0.0
	for i := range c.of {
		m := &c.of[i]
		x := gpustage.Slice[float64](m.x)
		stride := 1
		if c.o.Elements > 0 {
			stride = max(1, len(x)/c.o.Elements)
		}
		for k := 0; k < len(x); k += stride {
			was := x[k]
			if was == 0 {
				continue
			}
			quotient := func(step float64) (float64, error) {
				x[k] = was + step
				up, err := c.alone()
				x[k] = was - step
				down, err2 := c.alone()
				x[k] = was
				if err := errors.Join(err, err2); err != nil {
					return 0, fmt.Errorf("with %s %v more and less: %w", m.at(k), step, err)
				}
				return (up.Sum - down.Sum) / (2 * step), nil
			}
			q, err := quotient(c.o.Step)
			if err != nil {
				return err
			}
			e := element{m.at(k), q, m.want[k]}
			apart := func() float64 { return math.Abs(e.quotient-e.g) / (whole.Weight + math.Abs(e.quotient)) }
			looked++
			if !(apart() <= c.o.Limit) { // or the loss bends within the step: half of it tells (Richardson's extrapolation)
				half, err := quotient(c.o.Step / 2)
				if err != nil {
					return err
				}
				e.quotient = (4*half - q) / 3
			}
			most = max(most, math.Abs(e.quotient))
			if d := apart(); !(d <= c.o.Limit) {
				if off++; off == 1 || !(d <= far) {
					worst, far = e, d
				}
			}
		}
	}
	switch {
	case looked == 0:
		return errors.New("all embeddings are 0: there is nothing to compare")
	case off > 0:
		return fmt.Errorf("the gradient of %s is %v, and the difference quotient of Result.Sum %v (steps %v and %v): %d of %d numbers are further apart than %v", worst.at, worst.g, worst.quotient, c.o.Step, c.o.Step/2, off, looked, c.o.Limit)
	case most/(whole.Weight+most) <= c.o.Limit:
		return fmt.Errorf("no gradient at all would be near enough: the largest difference quotient of Result.Sum is %v, the weight %v and the limit %v; take larger embeddings, a batch that has a loss or a smaller GradientCheck.Limit", most, whole.Weight, c.o.Limit)
	}
	return nil
}

// RandomBatch makes a batch for tests of losses: pairs of as many rows, and negatives that belong to any of them, of embeddings of that size that are not
// normalized, with weights, and with texts that come more than once. What else a loss asks for is the caller's to add. A float32 has the embeddings
// exactly, also where [CheckGradient] moves them.
func RandomBatch(d gpustage.Device, t gpustage.DType, rng *rand.Rand, rows, negatives, size int) (*Batch, error) {
	n := 2*rows + negatives
	x, err := gpustage.NewTensor(d, t, n, size)
	if err != nil {
		return nil, err
	}
	dx, err := gpustage.NewTensor(d, t, n, size)
	if err != nil {
		return nil, err
	}
	s, err := d.OpenStream()
	if err != nil {
		return nil, err
	}
	defer s.Close()
	numbers := make([]float64, n*size)
	for i := range numbers {
		numbers[i] = math.Round(rng.NormFloat64()*4096) / 4096
	}
	gpustage.Upload(s, x, numbers)
	b := &Batch{Rows: rows, Embeddings: x, Gradient: dx}
	for range negatives {
		b.Owner = append(b.Owner, int32(rng.IntN(rows)))
	}
	for range n {
		b.Texts = append(b.Texts, TextID{uint64(rng.IntN(n)), 0})
	}
	for range rows {
		b.Weights = append(b.Weights, rng.Float64())
	}
	return b, s.Sync()
}
