package loss

import (
	"fmt"
	"math"

	"contraflow/gpustage"
)

// Metric is how two embeddings are compared.
type Metric string

const (
	Cosine    Metric = "cosine"    // x.y / (|x| |y|)
	Dot       Metric = "dot"       // x.y
	Euclidean Metric = "euclidean" // |x - y|
	Manhattan Metric = "manhattan" // the sum of |x_j - y_j|
	// Angle is |cos(x, y) + sin(x, y)| of AnglE (Li and Li, arXiv 2309.12871): with x = (x1, x2) and y = (y1, y2) cut in halves and
	// normalized, sin is x2.y1 - x1.y2.
	Angle Metric = "angle"
	// MaxSim is of vectors of tokens: the sum over the query's of the largest product with one of the document's, as ColBERT has it; see LateInteraction.
	MaxSim     Metric = "maxsim"
	MeanMaxSim Metric = "mean_maxsim" // the mean over the query's
)

// ofTokens tells whether vectors of tokens are compared, and no embeddings.
func (m Metric) ofTokens() bool { return m == MaxSim || m == MeanMaxSim }

// normalizes tells whether embeddings are compared by their directions alone.
func (m Metric) normalizes() bool { return m == Cosine || m == Angle }

// checkMetric finds a metric that a loss does not have; "" is its default.
func checkMetric(m Metric, known ...Metric) error {
	for _, k := range known {
		if m == k || m == "" {
			return nil
		}
	}
	return fmt.Errorf("%q is unknown: want %s", m, joinNames(known))
}

// view is a batch's embeddings as a loss compares them, and where their gradient is added up.
type view struct {
	x, dx gpustage.Tensor // [N, E]
	norm  gpustage.Tensor // [1, N]; absent where x is the batch's own
}

// viewOf normalizes a copy of the embeddings where that is asked for and not done.
func viewOf(s gpustage.Stream, a *gpustage.Arena, b *Batch, normalize bool) view {
	v := view{x: b.Embeddings, dx: b.Gradient}
	if normalize && !b.Normalized {
		n, e, t := b.N(), b.Embeddings.Cols, b.Embeddings.DType
		v = view{a.Scratch(s, t, n, e), a.Scratch(s, t, n, e), a.Scratch(s, t, 1, n)}
		s.Normalize(v.x, v.norm, b.Embeddings)
		s.Fill(v.dx, 0)
	}
	return v
}

// finish adds what dx has become to the batch's gradient.
func (v view) finish(s gpustage.Stream, b *Batch) {
	if !v.norm.IsZero() {
		s.NormalizeBackward(v.dx, v.dx, v.x, v.norm)
		s.Add(b.Gradient, b.Gradient, v.dx)
	}
}

// viewMemory is what viewOf takes.
func viewMemory(z Size, normalize bool) int {
	if !normalize || z.Normalized {
		return 0
	}
	return (2*z.Sequences*z.Dim+z.Sequences)*z.DType.Size() + 3*64
}

// pairs are pairs of a batch's sequences whose comparison a loss is a function of. Their embeddings are brought together a chunk at
// a time, so memory is linear in the batch whatever the pairs are.
type pairs struct {
	s      gpustage.Stream
	a      *gpustage.Arena
	v      view
	metric Metric
	eps    float64 // added to each difference, as PyTorch's pairwise_distance does

	left, right []int32   // sequences
	values      []float64 // of the metric, by compare
	coef        []float64 // of the gradient: d loss / d value
	raw         []float64 // what values are made of: of Euclidean its square, of Angle the sum without its sign

	// Of metrics of tokens.
	part *Part
	sims []*maxSim // of each pair
}

// chunk is how many pairs are compared at once: at 384 dimensions 1.5 MiB for each of the five matrices that it takes, which stay in
// a processor's L2 and L3 caches.
const chunk = 1024

func (p *pairs) dtype() gpustage.DType { return p.v.x.DType }

// each brings chunks of pairs together.
func (p *pairs) each(do func(lo, hi int, x, y, left, right gpustage.Tensor)) {
	mark := p.a.Mark()
	defer p.a.Release(mark)
	e := p.v.x.Cols
	for lo := 0; lo < len(p.left); lo += chunk {
		hi := min(len(p.left), lo+chunk)
		left, right := p.a.Scratch(p.s, gpustage.I32, 1, hi-lo), p.a.Scratch(p.s, gpustage.I32, 1, hi-lo)
		p.s.CopyIn(left, gpustage.Bytes(p.left[lo:hi]))
		p.s.CopyIn(right, gpustage.Bytes(p.right[lo:hi]))
		x, y := p.a.Scratch(p.s, p.dtype(), hi-lo, e), p.a.Scratch(p.s, p.dtype(), hi-lo, e)
		p.s.Gather(x, p.v.x, left, false)
		p.s.Gather(y, p.v.x, right, false)
		do(lo, hi, x, y, left, right)
		p.a.ReleaseScratch(mark)
	}
}

// difference leaves x - y + eps in y.
func (p *pairs) difference(x, y gpustage.Tensor) {
	p.s.Scale(y, y, -1)
	p.s.Add(y, y, x)
	if p.eps != 0 {
		eps := p.a.Scratch(p.s, p.dtype(), y.Rows, y.Cols)
		p.s.Fill(eps, p.eps)
		p.s.Add(y, y, eps)
	}
}

// halves are where Angle's first and second halves are: of an odd number of features the last has no partner.
func halves(e int) (half, paired int) { return (e + 1) / 2, e / 2 }

// compare computes the values of all pairs.
func (p *pairs) compare() error {
	if p.metric.ofTokens() {
		return p.compareTokens()
	}
	p.raw = make([]float64, 0, len(p.left))
	var err error
	p.each(func(lo, hi int, x, y, _, _ gpustage.Tensor) {
		n := hi - lo
		out := p.a.Scratch(p.s, p.dtype(), 2, n)
		first, second := out.Span(0, 1), out.Span(1, 2)
		p.s.Fill(out, 0)
		switch p.metric {
		case Euclidean:
			p.difference(x, y)
			p.s.RowDot(first, y, y, 1)
		case Manhattan:
			p.difference(x, y)
			ones := p.a.Scratch(p.s, p.dtype(), n, y.Cols)
			p.s.Fill(ones, 1)
			p.s.Activate(x, y, gpustage.ReLU)
			p.s.RowDot(first, x, ones, 1)
			p.s.Scale(y, y, -1)
			p.s.Activate(x, y, gpustage.ReLU)
			p.s.RowDot(second, x, ones, 1)
		default:
			p.s.RowDot(first, x, y, 1)
		}
		got, e := download(p.s, out)
		if p.metric == Angle {
			half, paired := halves(x.Cols)
			p.s.RowDot(first, x.Columns(half, x.Cols), y.Columns(0, paired), 1)
			p.s.RowDot(second, x.Columns(0, paired), y.Columns(half, y.Cols), -1)
			var sine []float64
			if e == nil {
				sine, e = download(p.s, out)
			}
			for i := range sine {
				got[i%n] += sine[i]
			}
		}
		if err == nil {
			err = e
		}
		for i := range n {
			v := got[i]
			if p.metric == Manhattan {
				v += got[n+i]
			}
			p.raw = append(p.raw, v)
		}
	})
	p.values, p.coef = make([]float64, len(p.raw)), make([]float64, len(p.raw))
	for i, v := range p.raw {
		switch p.metric {
		case Euclidean:
			v = math.Sqrt(v)
		case Angle:
			v = math.Abs(v)
		}
		p.values[i] = v
	}
	return err
}

// backward adds the gradient of the sum of coef times values to the view's. Pairs of coefficient 0 are left out.
func (p *pairs) backward() {
	if p.metric.ofTokens() {
		p.backwardTokens()
		return
	}
	n := 0
	for i, c := range p.coef {
		switch {
		case (p.metric == Euclidean || p.metric == Angle) && p.values[i] == 0: // its least value: no direction is better than the opposite one
			c = 0
		case p.metric == Euclidean:
			c /= p.values[i]
		case p.metric == Angle && p.raw[i] < 0:
			c = -c
		}
		if c != 0 {
			p.coef[n], p.left[n], p.right[n] = c, p.left[i], p.right[i]
			n++
		}
	}
	p.coef, p.left, p.right = p.coef[:n], p.left[:n], p.right[:n]
	p.each(func(lo, hi int, x, y, left, right gpustage.Tensor) {
		t, n, e := p.dtype(), hi-lo, x.Cols
		w, dx := p.a.Scratch(p.s, t, 1, n), p.a.Scratch(p.s, t, n, e)
		gpustage.Upload(p.s, w, p.coef[lo:hi])
		p.s.Fill(dx, 0)
		switch p.metric {
		case Euclidean:
			p.difference(x, y)
			p.s.RowAxpy(dx, y, w, 1)
			p.s.ScatterAdd(p.v.dx, dx, left)
			p.s.Scale(dx, dx, -1)
		case Manhattan:
			p.difference(x, y)
			p.s.Fill(x, 1)
			p.s.ActivateBackward(x, x, y, gpustage.ReLU)
			p.s.RowAxpy(dx, x, w, 1)
			p.s.Scale(y, y, -1)
			p.s.Fill(x, 1)
			p.s.ActivateBackward(x, x, y, gpustage.ReLU)
			p.s.RowAxpy(dx, x, w, -1)
			p.s.ScatterAdd(p.v.dx, dx, left)
			p.s.Scale(dx, dx, -1)
		default:
			p.s.RowAxpy(dx, y, w, 1)
			p.turn(dx, y, w, 1)
			p.s.ScatterAdd(p.v.dx, dx, left)
			p.s.Fill(dx, 0)
			p.s.RowAxpy(dx, x, w, 1)
			p.turn(dx, x, w, -1)
		}
		p.s.ScatterAdd(p.v.dx, dx, right)
	})
}

// turn adds the gradient of Angle's sine: of x, for sign 1, it is (-y2, y1); of y the other way.
func (p *pairs) turn(dx, y, w gpustage.Tensor, sign float64) {
	if p.metric != Angle {
		return
	}
	half, paired := halves(y.Cols)
	p.s.RowAxpy(dx.Columns(0, paired), y.Columns(half, y.Cols), w, -sign)
	p.s.RowAxpy(dx.Columns(half, y.Cols), y.Columns(0, paired), w, sign)
}

// pairsMemory is what comparing n pairs takes.
func pairsMemory(z Size) int {
	return 5*chunk*z.Dim*z.DType.Size() + 6*chunk*8 + 16*64
}

// groups are a batch's queries with their own documents.
type groups struct {
	pairs
	b     *Batch
	row   []int32 // of each pair
	start []int32 // [rows+1]: row i's documents, the positive first, are order[start[i]:start[i+1]]
	order []int32 // pairs
	first int     // the row that start[0] is of
}

// groupsOf pairs each of the rows lo to hi-1 with its documents.
func groupsOf(s gpustage.Stream, a *gpustage.Arena, b *Batch, m Metric, lo, hi int) *groups {
	return newGroups(s, a, b, viewOf(s, a, b, m.normalizes()), m, lo, hi, 0)
}

// negativesOf pairs them with their negatives alone.
func negativesOf(s gpustage.Stream, a *gpustage.Arena, b *Batch, v view, lo, hi int) *groups {
	return newGroups(s, a, b, v, Dot, lo, hi, b.Rows)
}

// newGroups leaves out the first documents.
func newGroups(s gpustage.Stream, a *gpustage.Arena, b *Batch, v view, m Metric, lo, hi, skip int) *groups {
	g := &groups{pairs: pairs{s: s, a: a, v: v, metric: m}, b: b, first: lo}
	g.start = make([]int32, hi-lo+1)
	add := func(row, document int) {
		if row >= lo && row < hi {
			g.left, g.right, g.row = append(g.left, int32(row)), append(g.right, int32(document)), append(g.row, int32(row))
			g.start[row-lo+1]++
		}
	}
	for i := skip; i < b.Rows; i++ {
		add(i, b.Rows+i)
	}
	for k, o := range b.Owner {
		add(int(o), 2*b.Rows+k)
	}
	for i := range hi - lo {
		g.start[i+1] += g.start[i]
	}
	g.order = make([]int32, len(g.row))
	next := append([]int32(nil), g.start...)
	for k, row := range g.row {
		g.order[next[int(row)-lo]] = int32(k)
		next[int(row)-lo]++
	}
	return g
}

// of are the pairs of a row: its positive's first.
func (g *groups) of(row int) []int32 {
	return g.order[g.start[row-g.first]:g.start[row-g.first+1]]
}

// score is a teacher's score of a pair.
func (g *groups) score(k int32) float64 { return g.b.Scores[int(g.right[k])-g.b.Rows] }

// rows sums the losses of the rows that are asked for. of gives a row's loss, and writes its derivatives to coef. A value that is not finite is an error
// also where a loss would be: a negative that is infinitely far costs nothing.
func (g *groups) rows(of func(row int, own []int32) float64) (r Result, err error) {
	lo, hi := g.b.Own()
	for i := lo; i < hi; i++ {
		w, own := g.b.Weight(i), g.of(i)
		for _, k := range own {
			if v := g.values[k]; !finite(v) {
				return Result{}, &RowError{i, v}
			}
		}
		l := of(i, own)
		if err := r.add(i, w, l); err != nil {
			return Result{}, err
		}
		for _, k := range own {
			g.coef[k] *= w
		}
	}
	return r, nil
}

// computeRows is Compute of a loss that is a function of each row's own documents.
func computeRows(s gpustage.Stream, a *gpustage.Arena, b *Batch, m Metric, eps float64, of func(g *groups) func(row int, own []int32) float64) (Result, error) {
	mark := a.Mark()
	defer a.Release(mark)
	lo, hi := b.Own()
	g := groupsOf(s, a, b, m, lo, hi)
	g.eps = eps
	if m.ofTokens() {
		var err error
		if g.part, err = b.part(VectorsPart); err != nil {
			return Result{}, err
		}
	}
	if err := g.compare(); err != nil {
		return Result{}, err
	}
	r, err := g.rows(of(g))
	if err != nil {
		return r, err
	}
	g.backward()
	g.v.finish(s, b)
	return r, nil
}

func rowsMemory(z Size, m Metric) int {
	if m.ofTokens() {
		return tokenPairsMemory(z)
	}
	return viewMemory(z, m.normalizes()) + pairsMemory(z)
}

// needs says what a loss asks of a batch.
type needs struct {
	tokens         bool // there may be no embeddings
	labels, scores bool
	orNegatives    bool // labels are not needed where there are negatives, or may be
	pairs          bool // no negatives
	negatives      bool // some negatives, or rows that may have some
	unweighted     bool
}

// checkNegatives refuses a row without negatives, for a loss of this name.
func checkNegatives(name string, n int) error {
	if n < 1 {
		return fmt.Errorf("the row has no negatives, which %s compares with the positive", name)
	}
	return nil
}

func (b *Batch) need(n needs) error {
	err := b.checkPairs()
	if n.tokens {
		if err = b.checkRows(); err == nil {
			err = b.checkPositives()
		}
	}
	if err != nil {
		return err
	}
	switch {
	case n.labels && b.Labels == nil && !(n.orNegatives && (len(b.Owner) > 0 || b.Ragged)):
		return fmt.Errorf("the loss needs labels: data.train[].label (in Go dataset.Source.Label) names their column")
	case n.scores && b.Scores == nil:
		return fmt.Errorf("the loss needs a teacher's scores: data.train[].scores (in Go dataset.Source.Scores) names their columns")
	case n.pairs && len(b.Owner) > 0:
		return fmt.Errorf("the loss takes pairs with labels, and the batch has negatives: leave out data.train[].negatives (in Go dataset.Source.Negatives)")
	case n.negatives && len(b.Owner) == 0 && !b.Ragged:
		return fmt.Errorf("the loss needs negatives: data.train[].negatives (in Go dataset.Source.Negatives) names their columns")
	}
	if n.unweighted {
		for i, w := range b.Weights {
			if w != 1 {
				return fmt.Errorf("row %d has weight %v, but the loss is of the batch as a whole and knows none: leave out data.train[].weight (in Go dataset.Source.Weight)", i, w)
			}
		}
	}
	return nil
}
