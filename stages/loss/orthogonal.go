package loss

import (
	"cmp"
	"errors"
	"fmt"

	"contraflow/gpustage"
)

// GlobalOrthogonal spreads embeddings out, beside another loss in a [Sum] (Zhang et al., arXiv 1708.06320; EmbeddingGemma, arXiv 2509.20354): texts that
// have nothing to do with each other shall be as near as random directions are. Of a column of n texts with embeddings x_i of d features,
//
//	M1 = mean over i != j of s(x_i, x_j)
//	M2 = mean over i != j of s(x_i, x_j)^2
//	column = Mean * M1^2 + SecondMoment * max(0, M2 - 1/d)
//
// as sentence-transformers' GlobalOrthogonalRegularizationLoss. Columns are the queries, the positives, and the rows' first, second, ... negatives, and the loss
// is the mean over them, or with AddColumns their sum. A column of one text is 0 and counts in the mean over columns: where one row
// alone has a third negative, the others count for less. A text that several rows have is in the column as often.
//
// It is of the batch as a whole, all ranks' rows, whatever sub-batches they come in; rows' weights don't count in M1 and M2. As a mean over rows it has the
// same loss for each row, so that it splits them, and a step of several batches has the mean of theirs, each by the weights of its rows: each batch has means
// of its own, as it has its own negatives. Of each rank is the gradient of its own rows' texts.
//
// No matrix of all similarities is needed. With X = [n, d] and its sum over texts S, the sum of s is |S|^2 - sum |x_i|^2, and that of s^2 is |K|^2 - sum |x_i|^4, where
// K is X^T X of the features, or X X^T of the texts if these are fewer: of 16,384 texts of 768 features 2.25 MiB, and never more than X.
type GlobalOrthogonal struct {
	meanOverRows
	Metric             Metric  // Cosine if empty; Dot
	Mean, SecondMoment float64 // weights, one of which is above 0; sentence-transformers' are 1, EmbeddingGemma's 0 and 1
	AddColumns         bool    // EmbeddingGemma's way
}

func (l GlobalOrthogonal) metric() Metric { return cmp.Or(l.Metric, Cosine) }

// Check finds settings that make no sense.
func (l GlobalOrthogonal) Check() error {
	if err := checkMetric(l.Metric, Cosine, Dot); err != nil {
		return fmt.Errorf("similarity %w", err)
	}
	for _, w := range []struct {
		what string
		of   float64
	}{{"mean_weight", l.Mean}, {"second_moment_weight", l.SecondMoment}} {
		if err := checkNotNegative(w.what, w.of); err != nil {
			return err
		}
	}
	if l.Mean == 0 && l.SecondMoment == 0 {
		return errors.New("mean_weight and second_moment_weight are both 0, and nothing is left of the loss: one of them has to be above 0")
	}
	return nil
}

// columns are the sequences of each column, ascending.
func (b *Batch) columns() [][]int32 {
	var all [][]int32
	nth := make([]int, b.Rows) // how many of a row's sequences there have been
	for n := range b.N() {
		row := b.rowOf(n)
		if nth[row] == len(all) {
			all = append(all, nil)
		}
		all[nth[row]] = append(all[nth[row]], int32(n))
		nth[row]++
	}
	return all
}

// Compute goes through the columns, one after the other.
func (l GlobalOrthogonal) Compute(s gpustage.Stream, a *gpustage.Arena, b *Batch) (Result, error) {
	if err := l.Check(); err != nil {
		return Result{}, err
	}
	if err := b.check(); err != nil {
		return Result{}, err
	}
	mark := a.Mark()
	defer a.Release(mark)
	v := viewOf(s, a, b, l.metric() == Cosine)
	all := b.weigh(0, b.Rows) // by which the batch's sum is divided
	r := Result{Weight: b.weigh(b.Own())}
	columns, share := b.columns(), 1.0
	if !l.AddColumns {
		share /= float64(len(columns))
	}
	for _, rows := range columns {
		value, err := l.column(s, a, b, v, rows, share*all)
		if err != nil {
			return Result{}, err
		}
		r.Sum += r.Weight * share * value
	}
	v.finish(s, b)
	return r, nil
}

// column is the loss of a column's sequences. It adds scale times its gradient, of those of rows that are asked for.
func (l GlobalOrthogonal) column(s gpustage.Stream, a *gpustage.Arena, b *Batch, v view, rows []int32, scale float64) (float64, error) {
	mark := a.Mark()
	defer a.ReleaseScratch(mark)
	n, e, t := len(rows), v.x.Cols, v.x.DType
	x := rowsOf(s, a, v.x, rows)
	squares, total, length := a.Scratch(s, t, 1, n), a.Scratch(s, t, 1, e), a.Scratch(s, t, 1, 1)
	s.RowDot(squares, x, x, 1)
	lengths, err := download(s, squares)
	if err != nil {
		return 0, err
	}
	longest, first, second := 0, 0.0, 0.0 // of the sums of s and of s^2, what pairs of a text with itself have
	for i, v := range lengths {
		if !finite(v) {
			return 0, &RowError{b.rowOf(int(rows[i])), v}
		}
		if v > lengths[longest] {
			longest = i
		}
		first, second = first-v, second-v*v
	}
	if n < 2 {
		return 0, nil
	}
	ones := a.Scratch(s, t, 1, n)
	s.Fill(ones, 1)
	s.MatMul(total, ones, x, gpustage.MatMul{Alpha: 1})
	s.RowDot(length, total, total, 1)
	found, err := download(s, length)
	if err != nil {
		return 0, err
	}
	first += found[0]
	ofTexts := n < e
	var k gpustage.Tensor
	if l.SecondMoment > 0 {
		k = a.Scratch(s, t, min(n, e), min(n, e))
		s.MatMul(k, x, x, gpustage.MatMul{TransA: !ofTexts, TransB: ofTexts, Alpha: 1})
		of := a.Scratch(s, t, 1, k.Rows)
		s.RowDot(of, k, k, 1)
		if found, err = download(s, of); err != nil {
			return 0, err
		}
		for _, v := range found {
			second += v
		}
	}
	pairs := float64(n) * float64(n-1)
	m1, above := first/pairs, 0.0
	if l.SecondMoment > 0 {
		above = max(0, second/pairs-1/float64(e))
	}
	value := l.Mean*m1*m1 + l.SecondMoment*above
	if !finite(value) {
		return 0, &RowError{b.rowOf(int(rows[longest])), value}
	}

	var own, at []int32 // sequences, and their places in the column
	var toSelf []float64
	ofMean, ofSecond := scale*l.Mean*m1*4/pairs, 0.0
	if above > 0 {
		ofSecond = scale * l.SecondMoment * 4 / pairs
	}
	for i, n := range rows {
		if b.asks(int(n)) {
			own, at, toSelf = append(own, n), append(at, int32(i)), append(toSelf, -ofMean-ofSecond*lengths[i])
		}
	}
	if len(own) == 0 || ofMean == 0 && ofSecond == 0 {
		return value, nil
	}
	m := len(own)
	mine, d, w := rowsOf(s, a, x, at), a.Scratch(s, t, m, e), a.Scratch(s, t, 1, m)
	s.Fill(d, 0)
	if ofMean != 0 { // a factor of 0 is 1 to MatMul
		s.MatMul(d, ones.Columns(0, m), total, gpustage.MatMul{TransA: true, Alpha: ofMean})
	}
	switch {
	case ofSecond == 0:
	case ofTexts:
		s.MatMul(d, rowsOf(s, a, k, at), x, gpustage.MatMul{Alpha: ofSecond, Add: true})
	default:
		s.MatMul(d, mine, k, gpustage.MatMul{Alpha: ofSecond, Add: true})
	}
	gpustage.Upload(s, w, toSelf)
	s.RowAxpy(d, mine, w, 1)
	index := a.Scratch(s, gpustage.I32, 1, m)
	s.CopyIn(index, gpustage.Bytes(own))
	s.ScatterAdd(v.dx, d, index)
	return value, nil
}

// rowsOf are some rows of a matrix, ascending: where they are, if they follow each other, or else a copy.
func rowsOf(s gpustage.Stream, a *gpustage.Arena, x gpustage.Tensor, rows []int32) gpustage.Tensor {
	if first, last := int(rows[0]), int(rows[len(rows)-1]); last-first == len(rows)-1 {
		return x.Span(first, last+1)
	}
	index, out := a.Scratch(s, gpustage.I32, 1, len(rows)), a.Scratch(s, x.DType, len(rows), x.Cols)
	s.CopyIn(index, gpustage.Bytes(rows))
	s.Gather(out, x, index, false)
	return out
}

// Memory is that of a column: its gradient, K and, where its rows are not next to each other, copies of what is of them.
func (l GlobalOrthogonal) Memory(z Size) int {
	n := z.Rows
	least := min(n, z.Dim)
	size := n*z.Dim + least*least + 3*n + z.Dim + least
	if z.Sequences > 2*n {
		size += 2*n*z.Dim + least*least
	}
	return viewMemory(z, l.metric() == Cosine) + size*z.DType.Size() + 4*n*4 + 16*64 // alignment
}
