package loss

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"sort"

	"contraflow/gpustage"
)

// BatchTriplet finds its triplets in a batch of labelled texts: anchors with every text of their label as positive and every text of another
// one as negative (Hermans, Beyer and Leibe, arXiv 1703.07737). With distances d,
//
//	Hard        l_i = max(0, max d(i, p) - min d(i, n) + Margin)
//	SoftMargin  l_i = log(1 + exp(max d(i, p) - min d(i, n)))
//	SemiHard    max(0, d(i, p) - d(i, n) + Margin) for the nearest n farther than p, or else the farthest; the mean over positives
//	All         the mean over all triplets of max(0, d(i, p) - d(i, n) + Margin) that is not 0
//
// as sentence-transformers' four losses of these names. The last two are of the batch as a whole.
//
// Distances are computed a few anchors at a time, against the whole batch, and looked through on the host; what comes back is a
// coefficient for each of them, which products turn into the gradient. Euclidean distances are made of products, |x|^2 - 2 x.y + |y|^2,
// which for near texts is a difference of nearly equal numbers: those few are computed anew from the differences of their embeddings.
type BatchTriplet struct {
	meanOverRows
	Mode   BatchMode // Hard if empty
	Metric Metric    // Euclidean if empty; Cosine (the distance is 1 - cosine)
	Margin float64   // 5 if 0
}

// BatchMode is how triplets are chosen.
type BatchMode string

const (
	Hard       BatchMode = "hard"
	SoftMargin BatchMode = "soft_margin"
	SemiHard   BatchMode = "semi_hard"
	All        BatchMode = "all"
)

// Check finds settings that make no sense.
func (l BatchTriplet) Check() error {
	if err := checkMetric(l.Metric, Euclidean, Cosine); err != nil {
		return fmt.Errorf("distance %w", err)
	}
	switch l.Mode {
	case "", Hard, SoftMargin, SemiHard, All:
		return checkNotNegative("margin", l.Margin)
	}
	return fmt.Errorf("mode %q is unknown: want %s", l.Mode, joinNames([]BatchMode{Hard, SoftMargin, SemiHard, All}))
}

// near is which distances are computed from differences: squares below this part of the squared lengths. A square made of products is off
// by some eps of the lengths, so in f32 a distance at this border is good to 1e-5.
const near = 0.01

// stripRows is how many anchors are compared with a batch's rows at once: 1 Mi numbers, 4 MiB in f32 and twice as much on the host.
func stripRows(rows int) int { return max(1, min(rows, (1<<20)/max(1, rows))) }

func (l BatchTriplet) metric() Metric { return cmp.Or(l.Metric, Euclidean) }

// triplets is one call of Compute.
type triplets struct {
	l       BatchTriplet
	s       gpustage.Stream
	a       *gpustage.Arena
	b       *Batch
	v       view
	squares []float64 // of lengths
	margin  float64
	scale   float64 // what a row's terms count for in a mean over rows
	sorted  []int   // scratch: negatives by distance
}

func (l BatchTriplet) Compute(s gpustage.Stream, a *gpustage.Arena, b *Batch) (_ Result, err error) {
	defer func() { err = b.culprit(s, err) }()
	if err := l.Check(); err != nil {
		return Result{}, err
	}
	if err := b.check(); err != nil {
		return Result{}, err
	}
	switch {
	case b.N() != b.Rows:
		return Result{}, errors.New("the loss takes single texts with labels: leave out data.train[].positive (in Go dataset.Source.Positive)")
	case b.Labels == nil:
		return Result{}, errors.New("the loss needs labels: data.train[].label (in Go dataset.Source.Label) names their column")
	}
	whole := l.Mode == SemiHard || l.Mode == All
	for i, w := range b.Weights {
		if whole && w != 1 {
			return Result{}, fmt.Errorf("row %d has weight %v, but the loss is of the batch as a whole and knows none: leave out data.train[].weight (in Go dataset.Source.Weight)", i, w)
		}
	}
	mark := a.Mark()
	defer a.Release(mark)
	t := triplets{l: l, s: s, a: a, b: b, v: viewOf(s, a, b, l.metric() == Cosine), margin: cmp.Or(l.Margin, 5), scale: 1}
	lengths := a.Scratch(s, t.v.x.DType, 1, b.Rows)
	s.RowDot(lengths, t.v.x, t.v.x, 1)
	if t.squares, err = download(s, lengths); err != nil {
		return Result{}, err
	}
	switch l.Mode {
	case SemiHard: // pairs of a label
		count, of := 0, map[float64]int{}
		for _, y := range b.Labels {
			count, of[y] = count+of[y], of[y]+1
		}
		t.scale = float64(b.Rows) / max(1, 2*float64(count))
	case All: // triplets that are not solved
		count := 0
		if err := t.walk(0, b.Rows, func(i int, d, _ []float64) float64 {
			count += t.all(i, d, nil, nil)
			return 0
		}, nil); err != nil {
			return Result{}, err
		}
		t.scale = float64(b.Rows) / max(1, float64(count))
	}
	lo, hi := b.Own()
	var r Result
	sums := make([]float64, b.Rows) // of each row's coefficients
	err = t.walk(lo, hi, func(i int, d, c []float64) float64 {
		value := t.row(i, d, c)
		w := b.Weight(i)
		for j := range c {
			c[j] *= w
		}
		r.Sum, r.Weight = r.Sum+w*value, r.Weight+w
		return value
	}, sums)
	if err != nil {
		return Result{}, err
	}
	if l.metric() == Euclidean {
		gpustage.Upload(s, lengths, sums)
		s.RowAxpy(t.v.dx, t.v.x, lengths, 1)
	}
	t.v.finish(s, b)
	return r, nil
}

// walk gives each anchor's distances to all texts. of returns its loss and, where sums are given, writes the derivatives, of which the
// gradient is made but for the part along each embedding itself, whose coefficients are added to sums.
func (t *triplets) walk(lo, hi int, of func(i int, d, c []float64) float64, sums []float64) error {
	mark := t.a.Mark()
	defer t.a.Release(mark)
	n, euclidean := t.b.Rows, t.l.metric() == Euclidean
	step := stripRows(n)
	for from := lo; from < hi; from += step {
		to := min(hi, from+step)
		anchors := t.v.x.Span(from, to)
		tile := t.a.Scratch(t.s, t.v.x.DType, to-from, n)
		t.s.MatMul(tile, anchors, t.v.x, gpustage.MatMul{TransB: true, Alpha: 1})
		d, err := download(t.s, tile)
		if err != nil {
			return err
		}
		close := pairs{s: t.s, a: t.a, v: t.v, metric: Euclidean}
		for k, dot := range d {
			i, j := from+k/n, k%n
			if !euclidean {
				d[k] = 1 - dot
				continue
			}
			square := t.squares[i] - 2*dot + t.squares[j]
			if i == j {
				square = 0
			} else if square < near*(t.squares[i]+t.squares[j]) {
				close.left, close.right = append(close.left, int32(i)), append(close.right, int32(j))
			}
			d[k] = math.Sqrt(max(0, square))
		}
		if err := close.compare(); err != nil {
			return err
		}
		at := func(k int) int { return (int(close.left[k])-from)*n + int(close.right[k]) }
		for k, v := range close.values {
			d[at(k)] = v
		}
		c := make([]float64, len(d))
		for i := from; i < to; i++ {
			own := d[(i-from)*n : (i-from+1)*n]
			if value := of(i, own, c[(i-from)*n:(i-from+1)*n]); !finite(value) { // whatever its weight: see Result.add
				return &RowError{i, value}
			}
		}
		if sums != nil {
			for k := range close.coef {
				close.coef[k], c[at(k)] = c[at(k)], 0
			}
			t.backward(tile, from, to, d, c, sums)
			close.backward()
		}
		t.a.ReleaseScratch(mark)
	}
	return nil
}

// backward turns the coefficients of distances into those of products.
func (t *triplets) backward(tile gpustage.Tensor, from, to int, d, c, sums []float64) {
	n := t.b.Rows
	for k := range c {
		if t.l.metric() != Euclidean || c[k] == 0 {
			continue
		}
		if d[k] == 0 {
			c[k] = 0
			continue
		}
		c[k] /= d[k]
		sums[from+k/n] += c[k]
		sums[k%n] += c[k]
	}
	gpustage.Upload(t.s, tile, c)
	t.s.MatMul(t.v.dx.Span(from, to), tile, t.v.x, gpustage.MatMul{Alpha: -1, Add: true})
	t.s.MatMul(t.v.dx, tile, t.v.x.Span(from, to), gpustage.MatMul{TransA: true, Alpha: -1, Add: true})
}

// row is an anchor's loss with its derivatives.
func (t *triplets) row(i int, d, c []float64) float64 {
	for _, v := range d {
		if !finite(v) {
			return v
		}
	}
	switch t.l.Mode {
	case SemiHard:
		return t.semiHard(i, d, c)
	case All:
		sum := 0.0
		t.all(i, d, c, &sum)
		return t.scale * sum
	}
	labels := t.b.Labels
	positive, negative := -1, -1 // the farthest and the nearest; a distance of 0 is no farther than none
	least, most := 0, 0
	for j, v := range d {
		switch {
		case labels[j] != labels[i]:
			if negative < 0 || v < d[negative] {
				negative = j
			}
		case j != i && v > 0 && (positive < 0 || v > d[positive]):
			positive = j
		}
		if v < d[least] {
			least = j
		}
		if v > d[most] {
			most = j
		}
	}
	z := 0.0
	if positive >= 0 {
		z += d[positive]
	}
	if negative >= 0 {
		z -= d[negative]
	} else { // the peer's stand-in, where a batch has one label
		z -= d[least] + d[most]
	}
	slope, value := 1.0, z+t.margin
	switch {
	case t.l.Mode == SoftMargin:
		slope, value = sigmoid(z), logAdd(0, z)
	case value < 0:
		return 0
	}
	if positive >= 0 {
		c[positive] += slope
	}
	if negative >= 0 {
		c[negative] -= slope
	} else {
		c[least] -= slope
		c[most] -= slope
	}
	return value
}

// negatives are an anchor's, the nearest first.
func (t *triplets) negatives(i int, d []float64) []int {
	t.sorted = t.sorted[:0]
	for j := range d {
		if t.b.Labels[j] != t.b.Labels[i] {
			t.sorted = append(t.sorted, j)
		}
	}
	sort.SliceStable(t.sorted, func(x, y int) bool { return d[t.sorted[x]] < d[t.sorted[y]] })
	return t.sorted
}

func (t *triplets) semiHard(i int, d, c []float64) (sum float64) {
	negatives := t.negatives(i, d)
	if len(negatives) == 0 {
		least := 0
		for j, v := range d {
			if v < d[least] {
				least = j
			}
		}
		negatives = append(negatives, least) // the peer's stand-in
	}
	for j, v := range d {
		if j == i || t.b.Labels[j] != t.b.Labels[i] {
			continue
		}
		k := sort.Search(len(negatives), func(k int) bool { return d[negatives[k]] > v })
		n := negatives[min(k, len(negatives)-1)]
		if l := v - d[n] + t.margin; l > 0 {
			sum += l
			c[j] += t.scale
			c[n] -= t.scale
		}
	}
	return t.scale * sum
}

// all adds up the triplets of an anchor that are not solved and returns how many there are: of each positive those with the k nearest
// negatives, whose sums are kept for every k. So an anchor takes B log B steps, not positives times negatives, which with two labels are B^2/4.
func (t *triplets) all(i int, d, c []float64, sum *float64) (count int) {
	negatives := t.negatives(i, d)
	var nearest []float64 // [k]: the sum of the k nearest negatives' distances
	var met []int         // [k]: positives that meet just these
	if c != nil {
		nearest, met = make([]float64, len(negatives)+1), make([]int, len(negatives)+1)
		for k, n := range negatives {
			nearest[k+1] = nearest[k] + d[n]
		}
	}
	for j, v := range d {
		if j == i || t.b.Labels[j] != t.b.Labels[i] {
			continue
		}
		k := sort.Search(len(negatives), func(k int) bool { return !(v-d[negatives[k]]+t.margin > 1e-16) })
		count += k
		if c == nil || k == 0 {
			continue
		}
		c[j] += t.scale * float64(k)
		*sum += float64(k)*(v+t.margin) - nearest[k]
		met[k]++
	}
	if c != nil {
		for k, n := len(negatives), 0; k > 0; k-- {
			n += met[k]
			c[negatives[k-1]] -= t.scale * float64(n)
		}
	}
	return count
}

// Memory is a strip of distances and a chunk of near ones.
func (l BatchTriplet) Memory(z Size) int {
	return viewMemory(z, l.metric() == Cosine) + (stripRows(z.Rows)*z.Rows+z.Rows)*z.DType.Size() + 4*64 + pairsMemory(z)
}
