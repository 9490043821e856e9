package loss

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"contraflow/gpustage"
)

// Part is what a model gives of a batch's tokens besides the embeddings, back to back.
type Part struct {
	Name        string          // "sparse", "multi_vector"
	X, Gradient gpustage.Tensor // [T', features]; a loss adds to Gradient
	Cu          []int32         // [N+1]: sequence n has rows Cu[n] to Cu[n+1]-1
}

// The parts of M3 (Chen et al., arXiv 2402.03216).
const (
	DensePart   = "dense"
	SparsePart  = "sparse"
	VectorsPart = "multi_vector"
)

// M3Parts lists them, in the order in which a model gives them.
var M3Parts = []string{DensePart, SparsePart, VectorsPart}

// Fusion is what each part counts in the fused score, FlagEmbedding's: dense + 0.3 sparse + multi_vector.
var Fusion = map[string]float64{DensePart: 1, SparsePart: 0.3, VectorsPart: 1}

// sparseShare is what the sparse part's loss counts beside the others'.
const sparseShare = 0.1

// Distillation is how a teacher's scores of a row's own documents teach. With p = softmax(teacher's scores) and S the student's scores:
type Distillation string

const (
	NoTeacher Distillation = ""
	// TeacherKL is -sum p log softmax(S of the row's own documents), and the contrastive loss besides.
	TeacherKL Distillation = "kl_div"
	// TeacherM3 is the sum over a row's documents k of p_k times the contrastive loss of which k is the positive, with the documents before
	// k left out.
	TeacherM3 Distillation = "m3_kd_loss"
)

// M3 is the objective of FlagEmbedding's unified fine-tuning. Each part gives scores of all pairs of a query and a document, Scale times
//
//	dense          the product of the embeddings
//	sparse         the sum of w_q w_d over the token ids that both have; of equal tokens the largest weight counts
//	multi_vector   the mean over the query's vectors of the largest product with one of the document's (MaxSim)
//
// and the ensemble is dense + 0.3 sparse + multi_vector. With l(S) the contrastive loss of scores with a row's positive, or what
// Teacher makes of it, a row's loss is
//
//	L = (l(dense) + l(ensemble) + 0.1 l(sparse) + l(multi_vector)) / 4
//	D = (h(dense) + 0.1 h(sparse) + h(multi_vector)) / 3,   h(S) = -sum softmax(ensemble) log softmax(S)
//
// L, or from step DistillFrom on with SelfDistill (L + D) / 2, where softmax(ensemble) has no gradient. Of two parts both are means over
// what there is; one part alone is l of it.
//
// FlagEmbedding pads: a document's padding has products of 0 there, so that it never scores less than 0 for a query's vector if the batch
// has a longer one. Here only tokens count.
type M3 struct {
	Parts          []string // nil: all
	Scale          float64  // 50 if 0; 1/temperature
	SelfDistill    bool
	DistillFrom    int // step, from 0
	Teacher        Distillation
	MaskDuplicates bool // see InfoNCE; of a row's own documents only where no teacher speaks of them

	// Block bounds the places that a strip of queries takes, in bytes; 0: 64 MiB. TileCols is the tokens of documents in a tile; 0: 1,024, on a GPU 16,384.
	// They change speed and rounding, nothing else.
	Block, TileCols int

	sums bool // multi_vector is the sum over the query's vectors, not their mean: see LateInteraction
}

const defaultBlock = 64 << 20

// stripPairs bounds the pairs whose scores are on the host at once, to 2 MiB for each part.
const stripPairs = 1 << 18

// SplitsRows tells that M3 is a RowSplitter.
func (M3) SplitsRows() {}

// Check finds settings that make no sense.
func (l M3) Check() error {
	if err := checkPositive("scale", l.Scale); err != nil {
		return err
	}
	for i, p := range l.Parts {
		if !slices.Contains(M3Parts, p) {
			return fmt.Errorf("part %q is unknown: want %s", p, joinNames(M3Parts))
		}
		if slices.Contains(l.Parts[:i], p) {
			return fmt.Errorf("part %q is given twice", p)
		}
	}
	if l.Parts != nil && len(l.Parts) == 0 {
		return errors.New("no parts")
	}
	if l.SelfDistill && l.Parts != nil && len(l.Parts) < 2 {
		return errors.New("self-distillation is from the ensemble of several parts")
	}
	if l.DistillFrom < 0 {
		return errors.New("self-distillation from a negative step")
	}
	if l.Teacher != NoTeacher && l.Teacher != TeacherKL && l.Teacher != TeacherM3 {
		return fmt.Errorf("distillation %q is unknown: want kl_div or m3_kd_loss", l.Teacher)
	}
	return checkTiles(l.Block, l.TileCols)
}

func (l M3) parts() []string {
	if l.Parts == nil {
		return M3Parts
	}
	return l.Parts
}

func (l M3) has(part string) bool { return slices.Contains(l.parts(), part) }

func (l M3) scale() float64 { return cmp.Or(l.Scale, 50) }

func (l M3) block() int { return cmp.Or(l.Block, defaultBlock) }

func (l M3) tileCols(gpu bool) int {
	_, cols := maxSimTile(gpu)
	return cmp.Or(l.TileCols, cols)
}

// part finds one of a batch's.
func (b *Batch) part(name string) (*Part, error) {
	for i := range b.Parts {
		p := &b.Parts[i]
		if p.Name != name {
			continue
		}
		if len(p.Cu) != b.N()+1 || int(p.Cu[b.N()]) > p.X.Rows || len(b.IDs) < int(p.Cu[b.N()]) {
			return nil, fmt.Errorf("the part %s has %d rows and %d offsets for %d sequences of %d tokens", name, p.X.Rows, len(p.Cu), b.N(), len(b.IDs))
		}
		for n := range b.N() {
			switch {
			case p.Cu[n] < p.Cu[n+1]:
			case b.Embeddings.IsZero() && len(b.Texts) == b.N(): // a batch that trains
				return nil, &LabelError{b.rowOf(n), "a text has no token with a vector: all of its tokens are in model.skiplist (in Go transformer.Reading.Skip); leave the row out, or a token out of the skiplist"}
			case b.Embeddings.IsZero():
				return nil, fmt.Errorf("sequence %d of the batch has no token with a vector: leave it out of what is compared", n)
			default:
				return nil, fmt.Errorf("sequence %d of the batch has no token but the first: %s needs one", n, name)
			}
		}
		return p, nil
	}
	return nil, fmt.Errorf("the loss needs the part %q, which the model does not give: model.kind: m3 does", name)
}

// m3Scores are every part's scores of a batch's queries with all documents, a strip of queries at a time.
type m3Scores struct {
	s    gpustage.Stream
	a    *gpustage.Arena
	b    *Batch
	l    M3
	lo   int
	lex  *lexical
	sims *maxSim

	strip          map[string][]float64 // [queries of the strip, documents], without a scale
	dense, vectors gpustage.Tensor      // likewise on the device
}

// openScores prepares those of queries lo to hi-1.
func (l M3) openScores(s gpustage.Stream, a *gpustage.Arena, b *Batch, lo, hi int) (*m3Scores, error) {
	x := &m3Scores{s: s, a: a, b: b, l: l, lo: lo}
	if l.has(DensePart) && b.Embeddings.IsZero() {
		return nil, errNoEmbeddings
	}
	if l.has(SparsePart) {
		p, err := b.part(SparsePart)
		if err != nil {
			return nil, err
		}
		weights, err := download(s, p.X.Span(0, int(p.Cu[b.N()])))
		if err != nil {
			return nil, err
		}
		for n := range b.N() {
			for _, w := range weights[p.Cu[n]:p.Cu[n+1]] {
				switch { // NaN is not more than 0, and would count as no weight
				case finite(w):
				case len(b.Texts) == b.N(): // a batch that trains
					return nil, &RowError{b.rowOf(n), w}
				default:
					return nil, fmt.Errorf("sequence %d of the batch has a lexical weight of %v", n, w)
				}
			}
		}
		x.lex = newLexical(p, b.IDs, weights, b.Rows, lo, hi, b.Special)
	}
	if l.has(VectorsPart) {
		p, err := b.part(VectorsPart)
		if err != nil {
			return nil, err
		}
		x.sims = openMaxSim(s, a, p, b.Rows, l.tileCols(b.onGPU()))
	}
	return x, nil
}

// each computes strip by strip of queries lo to hi-1, and lets visit look at it and go back through it.
func (x *m3Scores) each(hi int, visit func(from, to int) error) error {
	docs := x.b.N() - x.b.Rows
	mark := x.a.Mark()
	for from := x.lo; from < hi; {
		to := from + 1
		for to < hi && (to+1-from)*docs <= stripPairs && (x.sims == nil || x.sims.part.tokens(from, to+1)*docs*4 <= x.l.block()) {
			to++
		}
		if err := x.forward(from, to, docs); err != nil {
			return err
		}
		if err := visit(from, to); err != nil {
			return err
		}
		x.a.ReleaseScratch(mark)
		from = to
	}
	return nil
}

func (x *m3Scores) forward(from, to, docs int) (err error) {
	x.strip = map[string][]float64{}
	if x.l.has(DensePart) {
		q, d := x.b.Embeddings.Span(from, to), x.b.Embeddings.Span(x.b.Rows, x.b.N())
		x.dense = x.a.Scratch(x.s, q.DType, to-from, docs)
		x.s.MatMul(x.dense, q, d, gpustage.MatMul{TransB: true})
		if x.strip[DensePart], err = download(x.s, x.dense); err != nil {
			return err
		}
	}
	if x.sims != nil {
		x.vectors = x.a.Scratch(x.s, x.sims.part.X.DType, to-from, docs)
		x.sims.forward(from, to, x.vectors)
		if x.strip[VectorsPart], err = download(x.s, x.vectors); err != nil {
			return err
		}
		x.sum(from)
	}
	if x.lex != nil {
		out := make([]float64, (to-from)*docs)
		for i := range to - from {
			x.lex.scores(from-x.lo+i, out[i*docs:(i+1)*docs])
		}
		x.strip[SparsePart] = out
	}
	return nil
}

// row is a query's scores, by part.
func (x *m3Scores) row(i int) map[string][]float64 {
	docs, out := x.b.N()-x.b.Rows, map[string][]float64{}
	for name, s := range x.strip {
		out[name] = s[i*docs : (i+1)*docs]
	}
	return out
}

// backward adds the gradient of the parts, where strip has become that of its scores. The lexical weights' waits for finish.
func (x *m3Scores) backward(from, to int) {
	b := x.b
	if x.l.has(DensePart) {
		gpustage.Upload(x.s, x.dense, x.strip[DensePart])
		x.s.MatMul(b.Gradient.Span(from, to), x.dense, b.Embeddings.Span(b.Rows, b.N()), gpustage.MatMul{Add: true})
		x.s.MatMul(b.Gradient.Span(b.Rows, b.N()), x.dense, b.Embeddings.Span(from, to), gpustage.MatMul{TransA: true, Add: true})
	}
	if x.sims != nil {
		x.sum(from)
		gpustage.Upload(x.s, x.vectors, x.strip[VectorsPart])
		x.sims.backward(x.vectors)
	}
	if x.lex != nil {
		for i := range to - from {
			x.lex.backward(from-x.lo+i, x.row(i)[SparsePart])
		}
	}
}

// sum makes sums of MaxSim's means, or of the gradient of sums that of means.
func (x *m3Scores) sum(from int) {
	if !x.l.sums {
		return
	}
	docs := x.b.N() - x.b.Rows
	for i, v := range x.strip[VectorsPart] {
		x.strip[VectorsPart][i] = v * x.sims.factor(from+i/docs)
	}
}

func (x *m3Scores) finish() error {
	if x.lex != nil {
		p, err := x.b.part(SparsePart)
		if err != nil {
			return err
		}
		d := p.Gradient.Span(0, len(x.lex.d))
		add := x.a.Scratch(x.s, d.DType, d.Rows, 1)
		gpustage.Upload(x.s, add, x.lex.d)
		x.s.Add(d, d, add)
	}
	return x.s.Sync()
}

// Compute goes through strips of queries: every part's scores of them with all documents, the losses and the scores' gradient on the
// host, where it is a few numbers a pair, and back through the parts.
func (l M3) Compute(s gpustage.Stream, a *gpustage.Arena, b *Batch) (r Result, err error) {
	if err := l.Check(); err != nil {
		return r, err
	}
	if err := b.need(needs{tokens: true, scores: l.Teacher != NoTeacher}); err != nil {
		return r, err
	}
	defer func() { err = b.culprit(s, err) }()
	mark := a.Mark()
	defer a.Release(mark)
	lo, hi := b.Own()
	x, err := l.openScores(s, a, b, lo, hi)
	if err != nil {
		return r, err
	}
	rows := newM3Rows(l, b)
	if err := x.each(hi, func(from, to int) error {
		for i := range to - from { // scores become their gradients
			if err := r.add(from+i, b.Weight(from+i), rows.row(from+i, x.row(i))); err != nil {
				return err
			}
		}
		x.backward(from, to)
		return nil
	}); err != nil {
		return r, err
	}
	return r, x.finish()
}

// Fuse gives yield each query's scores with all documents, the weighted sum of the parts' [N-B], without a scale. It takes the arena of an
// M3 of the weighted parts, and the batch may have fewer documents than queries.
func Fuse(s gpustage.Stream, a *gpustage.Arena, b *Batch, weights map[string]float64, yield func(query int, scores []float64) error) error {
	l := FusedParts(weights)
	if err := l.Check(); err != nil {
		return err
	}
	mark := a.Mark()
	defer a.Release(mark)
	x, err := l.openScores(s, a, b, 0, b.Rows)
	if err != nil {
		return err
	}
	sum := make([]float64, b.N()-b.Rows)
	return x.each(b.Rows, func(from, to int) error {
		for i := range to - from {
			clear(sum)
			row := x.row(i)
			for _, name := range l.Parts {
				for d, v := range row[name] {
					sum[d] += weights[name] * v
				}
			}
			if err := yield(from+i, sum); err != nil {
				return err
			}
		}
		return nil
	})
}

// FusedParts is an M3 of the parts that have a weight.
func FusedParts(weights map[string]float64) M3 {
	l := M3{Parts: []string{}}
	for _, name := range M3Parts {
		if weights[name] != 0 {
			l.Parts = append(l.Parts, name)
		}
	}
	return l
}

// Memory is what the tiles, places and scores of a strip of queries take, and a copy of the lexical weights' gradient.
func (l M3) Memory(z Size) int {
	t, docs := z.DType.Size(), z.Sequences-z.Rows
	strip := 2 * max(docs, min(stripPairs, z.Rows*docs)) * t
	if !l.has(VectorsPart) {
		return strip + z.Tokens*t + 8*64
	}
	queries := max(z.Longest, min(z.Rows*z.Longest, l.block()/(4*max(1, docs)))) // tokens of a strip
	places := queries * docs * 4
	rows, _ := maxSimTile(z.GPU)
	tops := queries * min(docs, l.tileCols(z.GPU)) * t
	tile := min(rows, queries) * max(z.Longest, min(l.tileCols(z.GPU), z.Tokens)) * t
	ints := 4 * (3*queries + 2 + 3*docs)
	return strip + places + tops + tile + ints + z.Tokens*t + (docs+16)*64
}

// m3Rows computes rows' losses from their scores.
type m3Rows struct {
	l    M3
	b    *Batch
	ids  []int32 // of texts
	docs [][]int // of the batch

	at     []int // documents that are compared
	scores map[string][]float64
	d      map[string][]float64
	more   []float64
}

func newM3Rows(l M3, b *Batch) *m3Rows {
	return &m3Rows{l: l, b: b, ids: number(b.Texts), docs: b.documents(), scores: map[string][]float64{}, d: map[string][]float64{}}
}

// excluded tells that a document is no negative of a row: that its text is the row's query or positive, or the positive of a row with the
// same query.
func (x *m3Rows) excluded(row, doc int) bool {
	rows := x.b.Rows
	text := x.ids[rows+doc]
	return text == x.ids[row] || text == x.ids[rows+row] || doc < rows && x.ids[doc] == x.ids[row]
}

// ensemble is the fused score by its name among scores.
const ensemble = "ensemble"

// row is a row's loss. raw, scores by part [documents] without the scale, become the gradient of the row's weight times its loss.
func (x *m3Rows) row(row int, raw map[string][]float64) float64 {
	l, own := x.l, x.docs[row]
	x.at = append(x.at[:0], own...)
	n := x.b.N() - x.b.Rows
	mine := map[int]bool{}
	for _, d := range own {
		mine[d] = true
	}
	if l.MaskDuplicates && l.Teacher == NoTeacher {
		x.at = slices.DeleteFunc(x.at, func(d int) bool { return d != own[0] && x.excluded(row, d) })
	}
	for d := range n {
		if !mine[d] && !(l.MaskDuplicates && x.excluded(row, d)) {
			x.at = append(x.at, d)
		}
	}
	parts := l.parts()
	names := parts
	if len(parts) > 1 {
		names = append(slices.Clone(parts), ensemble)
	}
	for _, name := range names {
		x.scores[name] = slices.Grow(x.scores[name][:0], len(x.at))[:len(x.at)]
		x.d[name] = slices.Grow(x.d[name][:0], len(x.at))[:len(x.at)]
		clear(x.d[name])
	}
	for k, d := range x.at {
		sum := 0.0
		for _, name := range parts {
			s := l.scale() * raw[name][d]
			x.scores[name][k] = s
			sum += Fusion[name] * s
		}
		if len(parts) > 1 {
			x.scores[ensemble][k] = sum
		}
	}
	share := func(name string, of int) float64 {
		if name == SparsePart && len(parts) > 1 {
			return sparseShare / float64(of)
		}
		return 1 / float64(of)
	}
	distill := l.SelfDistill && x.b.Step >= l.DistillFrom
	halved := 1.0
	if distill {
		halved = 0.5
	}
	var teacher []float64
	if l.Teacher != NoTeacher {
		given := make([]float64, len(own))
		for k, d := range own {
			given[k] = x.b.Scores[d]
		}
		teacher = softmax(given)
	}
	total := 0.0
	for _, name := range names {
		total += x.term(name, teacher, halved*share(name, len(names)))
	}
	if distill {
		target := softmax(x.scores[ensemble])
		for _, name := range parts {
			total += x.add(name, 0, len(x.at), target, halved*share(name, len(parts)))
		}
	}
	weight := x.b.Weight(row) * l.scale()
	for _, name := range parts {
		clear(raw[name])
		for k, d := range x.at {
			g := x.d[name][k]
			if len(parts) > 1 {
				g += Fusion[name] * x.d[ensemble][k]
			}
			raw[name][d] = weight * g
		}
	}
	return total
}

// term is share times l of some scores.
func (x *m3Rows) term(name string, teacher []float64, share float64) (sum float64) {
	n := len(x.at)
	first := make([]float64, n)
	first[0] = 1
	switch x.l.Teacher {
	case TeacherKL:
		sum = x.add(name, 0, len(teacher), teacher, share)
	case TeacherM3:
		for k, p := range teacher { // the row's own documents are in front
			sum += x.add(name, k, n, first[:n-k], p*share)
		}
		return sum
	}
	return sum + x.add(name, 0, n, first, share)
}

// add is share times the cross-entropy of the target with scores lo to hi-1.
func (x *m3Rows) add(name string, lo, hi int, target []float64, share float64) float64 {
	x.more = slices.Grow(x.more[:0], hi-lo)[:hi-lo]
	sum := crossEntropy(x.scores[name][lo:hi], target, x.more)
	for k, g := range x.more {
		x.d[name][lo+k] += share * g
	}
	return share * sum
}
