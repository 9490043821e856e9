package loss

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"contraflow/gpustage"
)

// Direction is one kind of comparison: whose embedding is the anchor, and whose are the candidates.
type Direction string

const (
	QueryToDoc   Direction = "query_to_doc"   // the query against all documents
	QueryToQuery Direction = "query_to_query" // the query against the other queries
	DocToQuery   Direction = "doc_to_query"   // the positive against all queries
	DocToDoc     Direction = "doc_to_doc"     // the positive against the documents of other rows
	// PositiveToPositive is the positive against those of other rows.
	PositiveToPositive Direction = "positive_to_positive"
)

// Directions lists all of them.
var Directions = []Direction{QueryToDoc, QueryToQuery, DocToQuery, DocToDoc, PositiveToPositive}

// InfoNCE is the contrastive loss with in-batch negatives (van den Oord et al., arXiv 1807.03748), in the forms of
// sentence-transformers' MultipleNegativesRankingLoss. With s(x, y) = Scale * similarity and row i's anchors q_i and p_i,
//
//	l_i = log Z_i - s(q_i, p_i)
//	Z_i = sum over Directions and their candidates of exp s            (joint)
//	log Z_i = average over Directions of log sum over candidates exp s   (PerDirection)
//
// All documents of the batch are candidates: positives and every column of negatives. A query is no candidate of itself, nor are
// a row's own documents of its positive.
type InfoNCE struct {
	meanOverRows
	Scale        float64     // 20 if 0; 1/temperature
	Directions   []Direction // QueryToDoc if empty; must contain QueryToDoc
	PerDirection bool
	// Dot takes the embeddings as they are; otherwise they are normalized first, unless the batch says that they are.
	Dot bool
	// Hardness gives negatives of QueryToDoc more weight the nearer they are: HardnessStrength times their similarity, as a number
	// that has no gradient, is added to their scores. It is not multiplied by Scale.
	Hardness         Hardness
	HardnessStrength float64
	// MaskDuplicates leaves out candidates that are no negatives, told by text identity: any text equal to the row's query or
	// positive, documents that are another row's positive for the same query, and queries that share the positive.
	MaskDuplicates bool
	// Guide leaves out candidates that another model takes for positives; nil: none does. The batch has that model's embeddings.
	Guide *Guide

	// Tile sizes; 0 means the defaults, which are larger on a GPU. TileRows is also how many rows' scores with all candidates are in memory at once.
	// They change speed and rounding, nothing else.
	TileRows, TileCols int
}

// Hardness says which negatives it is.
type Hardness string

const (
	NoHardness       Hardness = ""
	InBatchNegatives Hardness = "in_batch_negatives" // documents of other rows (LLaVE, arXiv 2503.04812, equation 5)
	HardNegatives    Hardness = "hard_negatives"     // the row's own negatives (EmbeddingGemma, arXiv 2509.20354)
	AllNegatives     Hardness = "all_negatives"      // both
)

// HardnessModes lists them.
var HardnessModes = []Hardness{InBatchNegatives, HardNegatives, AllNegatives}

// Guide is the rule of GISTEmbed (Solatorio, arXiv 2402.16829). With g the guide's cosine and t_i = g(q_i, p_i) less a margin, row i has no
// candidate y, compared with its anchor x, for which g(x, y) > t_i; its positive stays. sentence-transformers' GISTEmbedLoss is InfoNCE
// with Directions QueryToDoc, QueryToQuery (contrast_anchors) and PositiveToPositive (contrast_positives) and Scale 1/temperature.
//
// A text that the guide embeds as it does the positive has the same cosine but for rounding, which differs between tiles, sub-batches and
// ranks. So that it does not decide, 4e-6 is added to t_i: such a text stays, by this rule, in every computation. An anchor is
// no candidate of itself whatever the margin; the peer leaves that to rounding where query and positive are one text.
type Guide struct {
	Margin   float64 // at least 0
	Relative bool    // the margin is Margin times |g(q_i, p_i)|
}

// guideSlack is some 30 eps of f32, which cosines of a few hundred products are off at most.
const guideSlack = 4e-6

// A tile of 1024 x 1024 scores is 4 MiB in f32: with its two operands it stays in a processor's L3 cache. Fewer rows give products that pack
// their operands, and go through the sums of gradients, for less arithmetic: blocks of 512 rows take 1.02 times as long, of 256 rows 1.15 times
// (medians of three runs in turns, 16,384 candidates of 256 features, two threads, AVX-512). So a block has 1,024 rows up to 32,768 candidates, fewer
// beyond, so that its scores stay within 128 MiB, and at least 256, which are more than that from 131,072 candidates on: 1 KiB each, a third of what embeddings of 384
// features take with their gradient.
//
// Each tile takes three products. To compute it again for the gradient, which needs one tile of memory where a block has many, was a fourth: 1.27 times
// as long with blocks of 1,024 rows, 16,384 pairs and 256 or 384 features, 1.10 times what blocks of 256 rows take (the same runs). That is for models whose
// loss is much of a step: static embeddings. Where an encoder has layers, it takes next to none of its time.
//
// A GPU would spend a loss of 16,384 pairs on starting kernels that don't fill it: 1,024 such tiles are 6,000 launches (9,000 with masks of
// duplicates), and most of their products have 12 to 16 blocks of 128 x 128 for an H200's 132 multiprocessors; some 0.15 s. At 4096 x 4096
// they are 100 to 150 launches of 96 blocks and more, and what remains is the arithmetic: 1.2 TFLOP in f32 for 768 features, 18 ms
// at 67 TFLOP/s, of a step that takes BERT-base some 3 s and MiniLM half a second. Of a model that trains in bf16 it is of pairs (takesPairs), by
// arithmetic in a third of that. A block waits for the host once, some 50 us.
//
// A kernel that computes scores and gradient without any tile in memory would save its way there and back, six times, 6 GB or 1.3 ms at
// 4.8 TB/s, if its products were as fast as cuBLASLt's, and would compute scores twice; folding Mask into OnlineLSE and SoftmaxTile, half a millisecond.
// Neither is worth a second form of these ops. (All of a GPU are estimates; BenchmarkLossTiles of package stages measures both sizes of tiles.)
const (
	blockRows  = 1024
	leastRows  = 256
	blockBytes = 128 << 20
	tileCols   = 1024

	tileOnGPU  = 4096 // rows and columns
	leastOnGPU = 1024
	blockOnGPU = 1 << 30
)

// Check finds settings that make no sense.
func (l InfoNCE) Check() error {
	if err := checkPositive("scale", l.Scale); err != nil {
		return err
	}
	if !slices.Contains(HardnessModes, l.Hardness) && l.Hardness != NoHardness {
		return fmt.Errorf("hardness mode %q is unknown: want %s", l.Hardness, joinNames(HardnessModes))
	}
	if err := checkNotNegative("hardness strength", l.HardnessStrength); err != nil {
		return err
	}
	if (l.Hardness == NoHardness) != (l.HardnessStrength == 0) {
		return fmt.Errorf("hardness %q of strength %v: one without the other does nothing", l.Hardness, l.HardnessStrength)
	}
	if err := checkTiles(l.TileRows, l.TileCols); err != nil {
		return err
	}
	if l.Guide != nil {
		if err := checkNotNegative("margin", l.Guide.Margin); err != nil {
			return err
		}
		if l.HardnessStrength > 0 {
			return fmt.Errorf("hardness and a guide don't go together")
		}
	}
	seen := map[Direction]bool{}
	for _, d := range l.Directions {
		if !slices.Contains(Directions, d) {
			return fmt.Errorf("direction %q is unknown: want %s", d, joinNames(Directions))
		}
		if seen[d] {
			return fmt.Errorf("direction %q is given twice", d)
		}
		seen[d] = true
	}
	if len(l.Directions) > 0 && !seen[QueryToDoc] {
		return fmt.Errorf("directions must contain %q: it has the positive pair", QueryToDoc)
	}
	if l.PerDirection && (seen[QueryToQuery] || seen[DocToDoc] || seen[PositiveToPositive]) {
		return fmt.Errorf("one softmax per direction needs the positive pair in each: %q, %q and %q don't have it", QueryToQuery, DocToDoc, PositiveToPositive)
	}
	return nil
}

// checkTiles refuses sizes below 0, with which a walk would not get on.
func checkTiles(rows, cols int) error {
	if rows < 0 || cols < 0 {
		return fmt.Errorf("tiles of %d and %d: want 0, for the default, or more", rows, cols)
	}
	return nil
}

func (l InfoNCE) scale() float64 { return cmp.Or(l.Scale, 20) }

func (l InfoNCE) directions() []Direction {
	if len(l.Directions) == 0 {
		return []Direction{QueryToDoc}
	}
	return l.Directions
}

// tile is how many anchors a block has, and how many candidates a tile.
func (l InfoNCE) tile(z Size) (rows, cols int) {
	rows, cols, least, most := blockRows, tileCols, leastRows, blockBytes
	if z.GPU {
		rows, cols, least, most = tileOnGPU, tileOnGPU, leastOnGPU, blockOnGPU
	}
	for rows > least && rows*l.candidates(z)*z.DType.Size() > most {
		rows /= 2
	}
	return cmp.Or(l.TileRows, rows), cmp.Or(l.TileCols, cols)
}

// groups is the number of softmaxes per row.
func (l InfoNCE) groups() int {
	if l.PerDirection {
		return len(l.directions())
	}
	return 1
}

// strip is one direction: all anchors against all its candidates.
type strip struct {
	anchors, candidates   gpustage.Tensor // [B, E], [n, E]
	dAnchors, dCandidates gpustage.Tensor
	mask                  gpustage.Mask // over all anchors and candidates
	group                 int
	alpha                 float64 // scores are alpha times the product
	positive              bool    // whether the positive pair is among the candidates; it is masked, see Compute

	guideAnchors, guideCandidates gpustage.Tensor // [B, G], [n, G]; absent without a guide
}

// pass is one call of Compute.
type pass struct {
	l      InfoNCE
	s      gpustage.Stream
	a      *gpustage.Arena
	t      gpustage.DType
	pairs  bool // embeddings have been rounded: products of pairs do
	lo, hi int  // rows that are asked for
	strips []strip
	cols   int             // of a tile
	hard   *groups         // rows with their own negatives, where tiles leave them out; nil otherwise
	masked []bool          // of hard's pairs: duplicates
	limit  gpustage.Tensor // [1, B]: t_i of Guide
}

// tile is some anchors' scores with some candidates.
type tile struct {
	group                 int
	scores                gpustage.Tensor
	anchors, candidates   gpustage.Tensor
	dAnchors, dCandidates gpustage.Tensor
}

// Compute goes through blocks of rows; see the package comment.
//
// The positive pair stays out of the tiles. With n_i the log-sum-exp of everything else in row i's softmax and k the number of times that
// the positive is in it, log Z_i - s(q_i, p_i) = log(k + exp(n_i - s(q_i, p_i))), and the pair's own gradient coefficient,
// P_i - 1 of the positive, is minus the sum of the other probabilities. Both are exact where the textbook's forms subtract two nearly equal
// numbers: rows that are almost solved, which late in training is most of them, keep their digits in f32.
func (l InfoNCE) Compute(s gpustage.Stream, a *gpustage.Arena, b *Batch) (_ Result, err error) {
	if err := l.Check(); err != nil {
		return Result{}, err
	}
	if err := b.checkPairs(); err != nil {
		return Result{}, err
	}
	defer func() { err = b.culprit(s, err) }()
	mark := a.Mark()
	defer a.Release(mark)
	p := pass{l: l, s: s, a: a, t: b.Embeddings.DType, pairs: b.Rounded}
	p.lo, p.hi = b.Own()
	rows, cols := l.tile(b.Size())
	p.cols = cols

	v := viewOf(s, a, b, !l.Dot)
	p.strips = l.strips(s, a, b, v.x, v.dx)
	if l.Guide != nil {
		if err := p.guide(b); err != nil {
			return Result{}, err
		}
	}
	if l.separates() && len(b.Owner) > 0 {
		if err := p.compareOwn(b, v); err != nil {
			return Result{}, err
		}
	}
	var r Result
	for lo := p.lo; lo < p.hi; lo += rows {
		if err := p.block(b, v, &r, lo, min(p.hi, lo+rows)); err != nil {
			return r, err
		}
	}
	if p.hard != nil {
		p.hard.backward()
	}
	v.finish(s, b)
	return r, nil
}

// block adds rows lo to hi's losses to r and their gradient to the view's.
func (p *pass) block(b *Batch, v view, r *Result, lo, hi int) error {
	l, s, n, g := p.l, p.s, hi-lo, p.l.groups()
	mark := p.a.Mark()
	defer p.a.ReleaseScratch(mark)
	found, given := p.a.Scratch(s, p.t, 2*g+1, n), p.a.Scratch(s, p.t, g+2, n) // each goes to the host, or comes from it, as one
	top, sum, positive := found.Span(0, g), found.Span(g, 2*g), found.Span(2*g, 2*g+1)
	lse, share, others := given.Span(0, g), given.Span(g, g+1), given.Span(g+1, g+2)
	q, d := v.x.Span(lo, hi), v.x.Span(b.Rows+lo, b.Rows+hi)
	s.RowDot(positive, q, d, l.scale())
	s.Fill(top, math.Inf(-1))
	s.Fill(sum, 0)
	var tiles []tile
	for _, st := range p.strips {
		for from := 0; from < st.candidates.Rows; from += p.cols {
			t := p.score(st, lo, hi, from, min(st.candidates.Rows, from+p.cols))
			s.OnlineLSE(top.Span(t.group, t.group+1), sum.Span(t.group, t.group+1), t.scores)
			tiles = append(tiles, t)
		}
	}

	if err := p.losses(b, r, lo, found, given); err != nil {
		return err
	}

	for _, t := range tiles {
		s.SoftmaxTile(t.scores, others, lse.Span(t.group, t.group+1), share)
		pairs := p.takesPairs(t.scores, t.anchors)
		s.MatMul(t.dAnchors, t.scores, t.candidates, gpustage.MatMul{Alpha: l.scale(), Add: true, Pairs: pairs})
		s.MatMul(t.dCandidates, t.scores, t.anchors, gpustage.MatMul{TransA: true, Alpha: l.scale(), Add: true, Pairs: pairs})
	}
	s.RowAxpy(v.dx.Span(lo, hi), d, others, -l.scale())
	s.RowAxpy(v.dx.Span(b.Rows+lo, b.Rows+hi), q, others, -l.scale())
	return nil
}

// guide computes how similar a candidate may be.
func (p *pass) guide(b *Batch) error {
	if b.Guide.IsZero() {
		return errors.New("the loss needs a guide model's embeddings, and the batch has none")
	}
	p.limit = p.a.Scratch(p.s, p.t, 1, b.Rows)
	p.s.RowDot(p.limit, b.Guide.Span(0, b.Rows), b.Guide.Span(b.Rows, 2*b.Rows), 1)
	limits, err := download(p.s, p.limit)
	if err != nil {
		return err
	}
	for i, c := range limits {
		margin := p.l.Guide.Margin
		if p.l.Guide.Relative {
			margin *= math.Abs(c)
		}
		limits[i] = c - margin + guideSlack
	}
	gpustage.Upload(p.s, p.limit, limits)
	return nil
}

// separates tells whether a row's own negatives are scored otherwise than other documents, so that tiles leave them out.
func (l InfoNCE) separates() bool {
	return l.HardnessStrength > 0 && (l.Hardness == InBatchNegatives || l.Hardness == HardNegatives)
}

// compareOwn scores rows' own negatives, which are few.
func (p *pass) compareOwn(b *Batch, v view) error {
	p.hard = negativesOf(p.s, p.a, b, v, p.lo, p.hi)
	if err := p.hard.compare(); err != nil {
		return err
	}
	p.masked = make([]bool, len(p.hard.row))
	for k, row := range p.hard.row {
		text := b.Texts[p.hard.right[k]]
		p.masked[k] = p.l.MaskDuplicates && (text == b.Texts[row] || text == b.Texts[b.Rows+int(row)])
	}
	return nil
}

// own is the score of one of hard's pairs.
func (p *pass) own(k int) float64 {
	scale := p.l.scale()
	if p.l.Hardness == HardNegatives {
		scale += p.l.HardnessStrength
	}
	return scale * p.hard.values[k]
}

// score computes a tile: of anchors lo to hi and candidates from to to.
func (p *pass) score(st strip, lo, hi, from, to int) tile {
	t := tile{
		group: st.group, scores: p.a.Scratch(p.s, p.t, hi-lo, to-from),
		anchors: st.anchors.Span(lo, hi), candidates: st.candidates.Span(from, to), dAnchors: st.dAnchors.Span(lo, hi), dCandidates: st.dCandidates.Span(from, to),
	}
	p.s.MatMul(t.scores, t.anchors, t.candidates, gpustage.MatMul{TransB: true, Alpha: st.alpha, Pairs: p.takesPairs(t.scores, t.anchors)})
	p.s.Mask(t.scores, st.mask.Tile(lo, hi, from, to))
	if p.l.Guide != nil {
		mark := p.a.Mark()
		cosines := p.a.Scratch(p.s, p.t, hi-lo, to-from)
		p.s.MatMul(cosines, st.guideAnchors.Span(lo, hi), st.guideCandidates.Span(from, to), gpustage.MatMul{TransB: true})
		p.s.MaskAbove(t.scores, cosines, p.limit.Columns(lo, hi))
		p.a.ReleaseScratch(mark)
	}
	return t
}

// takesPairs tells whether a tile's products may be of pairs: where embeddings have 8 bits anyway, and where 40 us that a product of f32 takes are
// more than the five kernels of one of pairs (an estimate for an H200). A guide's cosines, which are compared with each other, are of f32.
func (p *pass) takesPairs(scores, anchors gpustage.Tensor) bool {
	return p.pairs && scores.Rows*scores.Cols*anchors.Cols >= pairsFrom
}

// pairsFrom is how many multiplications such a product has at least; a variable for tests.
var pairsFrom = 1 << 30

// losses brings a block's log-sum-exps and scores of positives to the host, adds its losses to r, and sends back what the gradient needs: each softmax's
// log-sum-exp, the positive pair included, each row's share in it, and what the tiles leave out of the sum of its other probabilities.
func (p *pass) losses(b *Batch, r *Result, lo int, found, given gpustage.Tensor) error {
	groups, rows := p.l.groups(), found.Cols
	all, err := download(p.s, found)
	if err != nil {
		return err
	}
	tops, sums, positives := all[:groups*rows], all[groups*rows:2*groups*rows], all[2*groups*rows:]
	softmax := 0 // QueryToDoc's, which a row's own negatives are in
	if p.l.PerDirection {
		softmax = slices.Index(p.l.directions(), QueryToDoc)
	}
	times := make([]float64, groups) // how often the positive pair is in each softmax
	for _, st := range p.strips {
		if st.positive {
			times[st.group]++
		}
	}
	back := make([]float64, given.Len())
	lses, shares := back[:groups*rows], back[groups*rows:(groups+1)*rows]
	ownSums := back[(groups+1)*rows:] // of their probabilities
	for i := range rows {
		row := lo + i
		w := b.Weight(row)
		l := 0.0
		for g := range groups {
			k := g*rows + i
			others := math.Inf(-1)
			if sums[k] != 0 {
				others = tops[k] + math.Log(sums[k])
			}
			if p.hard != nil && g == softmax {
				for _, own := range p.hard.of(row) {
					if !p.masked[own] {
						others = logAdd(others, p.own(int(own)))
					}
				}
			}
			d := logPlusExp(times[g], others-positives[i])
			l += d / float64(groups)
			lses[k] = positives[i] + d
		}
		if err := r.add(row, w, l); err != nil {
			return err
		}
		shares[i] = w / float64(groups)
		if p.hard != nil {
			for _, own := range p.hard.of(row) {
				if !p.masked[own] && w > 0 {
					c := shares[i] * math.Exp(p.own(int(own))-lses[softmax*rows+i])
					p.hard.coef[own], ownSums[i] = c*p.l.scale(), ownSums[i]+c
				}
			}
		}
	}
	gpustage.Upload(p.s, given, back)
	return nil
}

// logPlusExp is log(k + exp(x)) for k >= 1.
func logPlusExp(k, x float64) float64 {
	if x > 0 {
		return x + math.Log1p(k*math.Exp(-x))
	}
	return math.Log1p(k - 1 + math.Exp(x))
}

func download(s gpustage.Stream, t gpustage.Tensor) ([]float64, error) {
	out := make([]float64, t.Len())
	if t.DType == gpustage.F64 {
		s.CopyOut(gpustage.Bytes(out), t)
		return out, s.Sync()
	}
	narrow := make([]float32, t.Len())
	s.CopyOut(gpustage.Bytes(narrow), t)
	for i, v := range narrow {
		out[i] = float64(v)
	}
	return out, s.Sync()
}

// Products is how many products of all anchors and candidates a loss and its gradient take: two of them are the gradient's.
const Products = 3

// candidates is how many an anchor is compared with, in all directions.
func (l InfoNCE) candidates(z Size) int {
	n := 0
	for _, d := range l.directions() {
		switch d {
		case QueryToDoc, DocToDoc:
			n += z.Sequences - z.Rows
		default:
			n += z.Rows
		}
	}
	return n
}

// Memory is the scratch of Compute: identities, a block's log-sum-exps and tiles, and copies of embeddings and gradient if it normalizes.
func (l InfoNCE) Memory(z Size) int {
	t := z.DType
	rows, cols := l.tile(z)
	rows = min(rows, z.Rows)
	tiles := rows*l.candidates(z)*t.Size() + len(l.directions())*(z.Sequences/cols+1)*64 // alignment
	perRow := rows * (3*l.groups() + 3) * t.Size()
	ids := (3*z.Rows + 3*z.Sequences) * 4 * 2
	own := 0
	if l.separates() {
		own = pairsMemory(z)
	}
	if l.Guide != nil {
		own += rows*min(cols, z.Sequences-z.Rows)*t.Size() + z.Rows*t.Size()
	}
	return tiles + perRow + ids + viewMemory(z, !l.Dot) + own + 64*64 // alignment
}
