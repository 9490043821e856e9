package loss

import (
	"errors"
	"fmt"

	"contraflow/gpustage"
)

// MegaBatchMargin compares each query with its positive and with the nearest positive of another row, the hardest negative of the batch (Wieting and Gimpel,
// ACL 2018, section 3.4). With c the cosine,
//
//	l_i = max(0, PositiveMargin - c(q_i, p_i)) + max(0, max over j != i of c(q_i, p_j) - NegativeMargin)
//
// as sentence-transformers' MegaBatchMarginLoss. Of several that are equally near the first counts. A row without any candidate has the first part alone.
//
// Cosines are computed a strip of queries at a time, against all positives, and looked through on the host; the nearest ones' are
// computed anew, as pairs.
type MegaBatchMargin struct {
	meanOverRows
	PositiveMargin, NegativeMargin float64 // sentence-transformers' are 0.8 and 0.3
	// MaskDuplicates leaves out positives that are no negatives, told by text identity: those whose text is the row's query or positive, and those of
	// rows with the same query.
	MaskDuplicates bool
}

// Check finds margins that are no numbers.
func (l MegaBatchMargin) Check() error {
	for _, m := range []struct {
		what string
		of   float64
	}{{"positive_margin", l.PositiveMargin}, {"negative_margin", l.NegativeMargin}} {
		if !finite(m.of) {
			return fmt.Errorf("%s is %v, want a number, such as a cosine", m.what, m.of)
		}
	}
	return nil
}

// Compute finds the negatives, and is then one of pairs.
func (l MegaBatchMargin) Compute(s gpustage.Stream, a *gpustage.Arena, b *Batch) (Result, error) {
	if err := l.Check(); err != nil {
		return Result{}, err
	}
	if err := b.checkPairs(); err != nil {
		return Result{}, err
	}
	if len(b.Owner) > 0 || b.Ragged {
		return Result{}, errors.New("the loss finds its negatives among the other rows' positives, and the batch has negatives: leave out data.train[].negatives (in Go dataset.Source.Negatives)")
	}
	mark := a.Mark()
	defer a.Release(mark)
	v := viewOf(s, a, b, true)
	lo, hi := b.Own()
	hardest, err := l.hardest(s, a, b, v, lo, hi)
	if err != nil {
		return Result{}, err
	}
	p := pairs{s: s, a: a, v: v, metric: Cosine}
	for i := lo; i < hi; i++ {
		p.left, p.right = append(p.left, int32(i)), append(p.right, int32(b.Rows+i))
		if j := hardest[i-lo]; j >= 0 {
			p.left, p.right = append(p.left, int32(i)), append(p.right, int32(b.Rows+j))
		}
	}
	if err := p.compare(); err != nil {
		return Result{}, err
	}
	var r Result
	k := 0 // pair
	for i := lo; i < hi; i++ {
		w, value := b.Weight(i), 0.0
		if short := l.PositiveMargin - p.values[k]; short > 0 {
			value, p.coef[k] = short, -w
		}
		k++
		if hardest[i-lo] >= 0 {
			if over := p.values[k] - l.NegativeMargin; over > 0 {
				value, p.coef[k] = value+over, w
			}
			k++
		}
		if err := r.add(i, w, value); err != nil {
			return Result{}, err
		}
	}
	p.backward()
	v.finish(s, b)
	return r, nil
}

// hardest are the rows whose positives are nearest to the queries of rows lo to hi-1; -1 where there is none.
func (l MegaBatchMargin) hardest(s gpustage.Stream, a *gpustage.Arena, b *Batch, v view, lo, hi int) ([]int, error) {
	mark := a.Mark()
	defer a.Release(mark)
	n := b.Rows
	positives, step := v.x.Span(n, 2*n), stripRows(n)
	out := make([]int, 0, hi-lo)
	for from := lo; from < hi; from += step {
		to := min(hi, from+step)
		tile := a.Scratch(s, v.x.DType, to-from, n)
		s.MatMul(tile, v.x.Span(from, to), positives, gpustage.MatMul{TransB: true, Alpha: 1})
		cosines, err := download(s, tile)
		if err != nil {
			return nil, err
		}
		for i := from; i < to; i++ {
			row := cosines[(i-from)*n : (i-from+1)*n]
			if !finite(row[i]) { // the rank that has a text which is not finite names its row, before the text is another's negative
				return nil, &RowError{i, row[i]}
			}
			best, at := 0.0, -1
			for j, c := range row {
				if (at < 0 || c > best) && j != i && !l.masked(b, i, j) {
					best, at = c, j
				}
			}
			out = append(out, at)
		}
		a.ReleaseScratch(mark)
	}
	return out, nil
}

// masked tells whether row j's positive is no negative of row i.
func (l MegaBatchMargin) masked(b *Batch, i, j int) bool {
	text := b.Texts[b.Rows+j]
	return l.MaskDuplicates && (text == b.Texts[i] || text == b.Texts[b.Rows+i] || b.Texts[j] == b.Texts[i])
}

// Memory is a strip of cosines, and pairs after it.
func (l MegaBatchMargin) Memory(z Size) int {
	return viewMemory(z, true) + max(stripRows(z.Rows)*z.Rows*z.DType.Size()+64, pairsMemory(z))
}
