package cpu

import (
	"slices"

	"contraflow/gpustage"
	"contraflow/gpustage/cpu/vec"
)

// Copy copies and converts; f32 and bf16 are fast.
func (s *Stream) Copy(dst, src gpustage.Tensor) {
	if s.Refuse(gpustage.CheckCopy(dst, src)) {
		return
	}
	var f func(i int)
	switch {
	case isF32(dst) && isF32(src):
		f = func(i int) { copy(row(dst, i), row(src, i)) }
	case isF32(dst) && src.DType == gpustage.BF16:
		f = func(i int) { s.v.FromBF16(row(dst, i), gpustage.Slice[uint16](src.Span(i, i+1))) }
	case dst.DType == gpustage.BF16 && isF32(src):
		f = func(i int) { s.v.ToBF16(gpustage.Slice[uint16](dst.Span(i, i+1)), row(src, i)) }
	default:
		s.Stream.Copy(dst, src)
		return
	}
	s.eachRow(dst.Rows, dst.Cols, f)
}

func (s *Stream) eachRow(rows, cost int, f func(i int)) {
	s.rows(rows, cost, func(_ *worker, lo, hi int) {
		for i := lo; i < hi; i++ {
			f(i)
		}
	})
}

// pointwise runs f on corresponding pieces of tensors of one shape: pieces of contiguous ones, rows of others.
func (s *Stream) pointwise(f func(x [][]float32), ts ...gpustage.Tensor) {
	work := func(lo, hi, row int) {
		var x [4][]float32
		for k, t := range ts {
			if row >= 0 {
				t = t.Span(row, row+1)
			}
			x[k] = f32(t)[lo:hi]
		}
		f(x[:len(ts)])
	}
	if slices.ContainsFunc(ts, func(t gpustage.Tensor) bool { return !t.Contiguous() }) {
		s.eachRow(ts[0].Rows, ts[0].Cols, func(i int) { work(0, ts[0].Cols, i) })
		return
	}
	n := ts[0].Len()
	s.eachRow((n+elements-1)/elements, elements, func(i int) { work(i*elements, min(n, (i+1)*elements), -1) })
}

// Fill sets every element.
func (s *Stream) Fill(dst gpustage.Tensor, value float64) {
	if !isF32(dst) || dst.Len() == 0 || s.Refuse(gpustage.CheckFill(dst)) {
		s.Stream.Fill(dst, value)
		return
	}
	s.pointwise(func(x [][]float32) {
		if value == 0 {
			clear(x[0])
			return
		}
		for i := range x[0] {
			x[0][i] = float32(value)
		}
	}, dst)
}

// Add is y = a + b.
func (s *Stream) Add(y, a, b gpustage.Tensor) {
	if !isF32(y) {
		s.Stream.Add(y, a, b)
		return
	}
	if !s.Refuse(gpustage.CheckPair("add", y, a, b)) {
		s.pointwise(func(x [][]float32) { s.v.Add(x[0], x[1], x[2]) }, y, a, b)
	}
}

// Scale is y = alpha * x.
func (s *Stream) Scale(y, x gpustage.Tensor, alpha float64) {
	if !isF32(y) {
		s.Stream.Scale(y, x, alpha)
		return
	}
	if !s.Refuse(gpustage.CheckPair("scale", y, x)) {
		s.pointwise(func(x [][]float32) { s.v.Scale(x[0], x[1], float32(alpha)) }, y, x)
	}
}

// Activate is y = f(x).
func (s *Stream) Activate(y, x gpustage.Tensor, f gpustage.Activation) {
	if !isF32(y) {
		s.Stream.Activate(y, x, f)
		return
	}
	if !s.Refuse(gpustage.CheckPair("activate", y, x)) {
		s.pointwise(func(x [][]float32) { s.v.Act(f, x[0], x[1]) }, y, x)
	}
}

// ActivateBackward is dx = dy * f'(x).
func (s *Stream) ActivateBackward(dx, dy, x gpustage.Tensor, f gpustage.Activation) {
	if !isF32(dx) {
		s.Stream.ActivateBackward(dx, dy, x, f)
		return
	}
	if !s.Refuse(gpustage.CheckPair("activate backward", dx, dy, x)) {
		s.pointwise(func(x [][]float32) { s.v.ActBackward(f, x[0], x[1], x[2]) }, dx, dy, x)
	}
}

// sumRows is how many rows a partial sum over rows has: vec adds them in f32, and the parts are added in f64, in order. A
// contrastive loss's gradients nearly cancel in such sums (what pulls a query pushes its documents), so that what is left of
// a bias's gradient may be a hundredth of its parts: with 256 rows and f32 throughout, verify-grads saw 1.8e-5.
const sumRows = 32

// addParts adds the partial sums [parts, len(sum)] to sum.
func (s *Stream) addParts(sum, parts []float32) {
	n := len(sum)
	s.rows(n, len(parts)/n, func(_ *worker, lo, hi int) {
		for j := lo; j < hi; j++ {
			acc := float64(sum[j])
			for k := j; k < len(parts); k += n {
				acc += float64(parts[k])
			}
			sum[j] = float32(acc)
		}
	})
}

// ColumnSum adds the sum of x's rows to sum.
func (s *Stream) ColumnSum(sum, x gpustage.Tensor) {
	if !isF32(x) {
		s.Stream.ColumnSum(sum, x)
		return
	}
	if s.Refuse(gpustage.CheckColumnSum(sum, x)) || x.Len() == 0 {
		return
	}
	parts := (x.Rows + sumRows - 1) / sumRows
	sums := grow(&s.sums, parts*x.Cols)
	clear(sums)
	s.parts(x.Rows, sumRows, func(p, lo, hi int) {
		s.v.AddRows(sums[p*x.Cols:(p+1)*x.Cols], vec.Rows{X: f32(x.Span(lo, hi)), Stride: x.Stride}, hi-lo)
	})
	s.addParts(f32(sum), sums)
}

// Gather is y[t] = table[index[t]], or += with add.
func (s *Stream) Gather(y, table, index gpustage.Tensor, add bool) {
	if !isF32(y) {
		s.Stream.Gather(y, table, index, add)
		return
	}
	if s.Refuse(gpustage.CheckGather("gather", y, table, index)) || s.Refuse(gpustage.CheckIndex("gather", table, index)) {
		return
	}
	ids := ints(index)
	s.eachRow(y.Rows, y.Cols, func(t int) {
		out, x := row(y, t), row(table, int(ids[t]))
		if add {
			s.v.Add(out, out, x)
		} else {
			copy(out, x)
		}
	})
}

// ScatterAdd adds rows to the table's, in the order of t. Threads take stripes of columns, so that no two write one row's
// element and the order is the same for any number of them.
func (s *Stream) ScatterAdd(dTable, dy, index gpustage.Tensor) {
	if !isF32(dy) {
		s.Stream.ScatterAdd(dTable, dy, index)
		return
	}
	if s.Refuse(gpustage.CheckGather("scatter add", dy, dTable, index)) || s.Refuse(gpustage.CheckIndex("scatter add", dTable, index)) || dy.Len() == 0 {
		return
	}
	ids := ints(index)
	s.parts(dy.Cols, s.stripe(dy.Rows, dy.Cols), func(_, lo, hi int) {
		for t, id := range ids {
			d := part(dTable, int(id), lo, hi)
			s.v.Add(d, d, part(dy, t, lo, hi))
		}
	})
}

// stripe is how many of so many columns a thread has to itself, where rows are added in order.
func (s *Stream) stripe(rows, cols int) int {
	if n := s.d.pool.Threads(); n > 1 && rows*cols > elements {
		return max(16, (cols/n+15)/16*16)
	}
	return cols
}

func (s *Stream) layout(t gpustage.Tensor, lo, hi int) vec.Rows {
	return vec.Rows{X: f32(t.Span(lo, hi)), Stride: t.Stride}
}

// Embed is its steps: at the beginning of a pass, its memory is a small part of what one layer goes through.
func (s *Stream) Embed(y, sum, mean, rstd gpustage.Tensor, o gpustage.Embed) {
	if !s.Refuse(gpustage.CheckEmbed(y, sum, mean, rstd, o)) {
		o.Steps(s, y, sum, mean, rstd)
	}
}

// LayerNorm normalizes rows.
func (s *Stream) LayerNorm(y, mean, rstd, x, gamma, beta gpustage.Tensor, eps float64) {
	if !isF32(x) {
		s.Stream.LayerNorm(y, mean, rstd, x, gamma, beta, eps)
		return
	}
	if s.Refuse(gpustage.CheckLayerNorm("layer norm", y, x, gamma, beta, mean, rstd)) {
		return
	}
	m, r := f32(mean), f32(rstd)
	b := s.zeros(x.Cols)
	if !beta.IsZero() {
		b = f32(beta)
	}
	s.rows(x.Rows, x.Cols, func(_ *worker, lo, hi int) {
		s.v.LayerNorm(s.layout(y, lo, hi), m[lo:hi], r[lo:hi], s.layout(x, lo, hi), f32(gamma), b, eps)
	})
}

// LayerNormBackward gives dx and adds to dGamma and dBeta.
func (s *Stream) LayerNormBackward(dx, dGamma, dBeta, dy, x, mean, rstd, gamma gpustage.Tensor, then gpustage.Dropped) {
	if !isF32(x) {
		s.Stream.LayerNormBackward(dx, dGamma, dBeta, dy, x, mean, rstd, gamma, then)
		return
	}
	if s.Refuse(gpustage.CheckLayerNorm("layer norm backward", dx, x, gamma, dGamma, mean, rstd)) ||
		s.Refuse(gpustage.CheckColumns("layer norm backward", dy, dBeta)) || s.Refuse(gpustage.CheckPair("layer norm backward", x, dy)) || x.Len() == 0 {
		return
	}
	c, parts := x.Cols, (x.Rows+sumRows-1)/sumRows
	sums := grow(&s.sums, 2*parts*c)
	clear(sums)
	m, r := f32(mean), f32(rstd)
	s.parts(x.Rows, sumRows, func(p, lo, hi int) {
		var g, b []float32
		if !dGamma.IsZero() {
			g = sums[p*c : (p+1)*c]
		}
		if !dBeta.IsZero() {
			b = sums[(parts+p)*c : (parts+p+1)*c]
		}
		s.v.LayerNormBackward(s.layout(dx, lo, hi), g, b, s.layout(dy, lo, hi), s.layout(x, lo, hi), m[lo:hi], r[lo:hi], f32(gamma))
	})
	if !dGamma.IsZero() {
		s.addParts(f32(dGamma), sums[:parts*c])
	}
	if !dBeta.IsZero() {
		s.addParts(f32(dBeta), sums[parts*c:])
	}
	then.Of(s, dx)
}

// Dropout is y = residual + dropout(x).
func (s *Stream) Dropout(y, x, residual gpustage.Tensor, d gpustage.Dropout) {
	if !isF32(x) || !d.Active() {
		s.Stream.Dropout(y, x, residual, d)
		return
	}
	if s.Refuse(gpustage.CheckDropout(y, x, residual, d)) {
		return
	}
	common := vec.NewDropout(d)
	rowOf, pos, keys := ints(d.Seqs.Row), ints(d.Seqs.Pos), gpustage.Slice[uint64](d.Seqs.Keys)
	s.eachRow(x.Rows, 4*x.Cols, func(t int) {
		drop := common
		drop.Key, drop.Pos = keys[rowOf[t]], uint32(pos[t])
		var r []float32
		if !residual.IsZero() {
			r = row(residual, t)
		}
		s.v.Dropout(row(y, t), row(x, t), r, 0, drop)
	})
}

// Pool reduces each sequence to a vector.
func (s *Stream) Pool(y, x gpustage.Tensor, q gpustage.Sequences, mode gpustage.Pooling) {
	if !isF32(x) || mode != gpustage.MeanPooling {
		s.Stream.Pool(y, x, q, mode)
		return
	}
	if s.Refuse(gpustage.CheckPool("pool", y, x, q)) {
		return
	}
	cu := ints(q.Cu)
	s.eachRow(q.Rows, q.MaxLen*x.Cols, func(b int) {
		lo, hi, out := int(cu[b]), int(cu[b+1]), row(y, b)
		clear(out)
		s.v.AddRows(out, s.layout(x, lo, hi), hi-lo)
		s.v.Scale(out, out, 1/float32(max(1, hi-lo)))
	})
}

// PoolBackward spreads each row's gradient over its sequence.
func (s *Stream) PoolBackward(dx, dy gpustage.Tensor, q gpustage.Sequences, mode gpustage.Pooling) {
	if !isF32(dx) {
		s.Stream.PoolBackward(dx, dy, q, mode)
		return
	}
	if s.Refuse(gpustage.CheckPool("pool backward", dy, dx, q)) {
		return
	}
	cu := ints(q.Cu)
	s.eachRow(q.Rows, q.MaxLen*dx.Cols, func(b int) {
		lo, hi, d := int(cu[b]), int(cu[b+1]), row(dy, b)
		for t := lo; t < hi; t++ {
			switch {
			case mode == gpustage.MeanPooling:
				s.v.Scale(row(dx, t), d, 1/float32(hi-lo))
			case mode == gpustage.CLSPooling && t == lo, mode == gpustage.LastPooling && t == hi-1:
				copy(row(dx, t), d)
			default:
				clear(row(dx, t))
			}
		}
	})
}

// Bag reads each token's row of the table once. Gather and Pool would write all of them and read them again: at 1,024 features 450,000 tokens of
// 2,048 pairs are 1.8 GB, and a step was a third longer.
func (s *Stream) Bag(y, table, index gpustage.Tensor, q gpustage.Sequences) {
	if !isF32(y) {
		s.Stream.Bag(y, table, index, q)
		return
	}
	if s.Refuse(gpustage.CheckBag(y, table, index, q)) || s.Refuse(gpustage.CheckIndex("bag", table, index)) {
		return
	}
	cu, ids, rows, c := ints(q.Cu), ints(index), f32(table), table.Cols
	s.eachRow(q.Rows, q.MaxLen*c, func(b int) {
		ids, out := ids[cu[b]:cu[b+1]], row(y, b)
		clear(out)
		for _, id := range ids {
			from := int(id) * table.Stride
			s.v.Add(out, out, rows[from:from+c])
		}
		s.v.Scale(out, out, 1/float32(max(1, len(ids))))
	})
}

// BagBackward is ScatterAdd of PoolBackward, without what lies between them. Each thread has columns of its own, so that sums have one order.
func (s *Stream) BagBackward(dTable, dy, index gpustage.Tensor, q gpustage.Sequences) {
	if !isF32(dy) {
		s.Stream.BagBackward(dTable, dy, index, q)
		return
	}
	if s.Refuse(gpustage.CheckBagBackward(dTable, dy, index, q)) || s.Refuse(gpustage.CheckIndex("bag backward", dTable, index)) || dy.Len() == 0 {
		return
	}
	cu, ids, rows := ints(q.Cu), ints(index), f32(dTable)
	s.parts(dy.Cols, s.stripe(q.Tokens, dy.Cols), func(_, lo, hi int) {
		for b := range q.Rows {
			from, to := int(cu[b]), int(cu[b+1])
			d, w := part(dy, b, lo, hi), 1/float32(max(1, to-from))
			for _, id := range ids[min(from, len(ids)):min(to, len(ids))] {
				at := int(id) * dTable.Stride
				s.v.Axpy(rows[at+lo:at+hi], d, w)
			}
		}
	})
}

// Normalize is y = x / max(|x|, 1e-12).
func (s *Stream) Normalize(y, norm, x gpustage.Tensor) {
	if !isF32(x) {
		s.Stream.Normalize(y, norm, x)
		return
	}
	if s.Refuse(gpustage.CheckRows("normalize", x, norm)) || s.Refuse(gpustage.CheckPair("normalize", x, y)) {
		return
	}
	n := f32(norm)
	s.eachRow(x.Rows, x.Cols, func(i int) { n[i] = s.v.Normalize(row(y, i), row(x, i)) })
}

// NormalizeBackward is dx = (dy - y * <dy, y>) / norm.
func (s *Stream) NormalizeBackward(dx, dy, y, norm gpustage.Tensor) {
	if !isF32(y) {
		s.Stream.NormalizeBackward(dx, dy, y, norm)
		return
	}
	if s.Refuse(gpustage.CheckRows("normalize backward", y, norm)) || s.Refuse(gpustage.CheckPair("normalize backward", y, dx, dy)) {
		return
	}
	n := f32(norm)
	s.eachRow(y.Rows, 2*y.Cols, func(i int) { s.v.NormalizeBackward(row(dx, i), row(dy, i), row(y, i), n[i]) })
}
