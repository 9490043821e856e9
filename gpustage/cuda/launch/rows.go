package launch

import (
	"cmp"

	"contraflow/gpustage"
)

// LayerNorm normalizes rows.
func (s *Stream) LayerNorm(y, mean, rstd, x, gamma, beta tensor, eps float64) {
	if !s.Refuse(gpustage.CheckLayerNorm("layer norm", as32(y), x, gamma, beta, mean, rstd)) && s.f32("layer norm", x) {
		s.eachRow("layer_norm", x.Rows, y, flat(mean), flat(rstd), x, flat(gamma), flat(beta), float32(eps), halves(y), s.wide(y, x, gamma, beta), x.Rows, x.Cols)
	}
}

// LayerNormWith is a layer norm whose statistics are there.
func (s *Stream) LayerNormWith(y, x, mean, rstd, gamma, beta tensor) {
	const op = "layer norm with"
	if !s.Refuse(gpustage.CheckLayerNorm(op, as32(y), as32(x), gamma, beta, mean, rstd)) && s.f32(op, as32(x)) {
		s.eachRow("layer_norm_with", x.Rows, y, x, flat(mean), flat(rstd), flat(gamma), flat(beta), halves(y, x), s.wide(y, x, gamma, beta), x.Rows, x.Cols)
	}
}

// epilogueNorm is what is around a product that ends in o's norm: c is the sum, acc the product.
func (s *Stream) epilogueNorm(c, acc, bias tensor, o gpustage.MatMul) {
	n := o.Norm
	args := []any{n.Y, n.Operand, flat(n.Mean), flat(n.Rstd), c, acc, flat(bias), o.Residual, flat(n.Gamma), flat(n.Beta), float32(n.Eps)}
	args = append(append(args, drops(o.Dropout)...), halves(c)|2*int(flag(n.OfRounded)))
	s.normRows("epilogue_norm", s.wide(n.Y, n.Operand, c, acc, bias, o.Residual, n.Gamma, n.Beta), c.Rows, c.Cols, args...)
}

// normRows runs a kernel that ends in a norm of so many rows: the one that has a block for a chunk of them, where they are wide and not too long, or
// the one that has a warp for each.
func (s *Stream) normRows(kernel string, wide bool, rows, cols int, args ...any) {
	if !wide || !normFits(cols) {
		s.eachRow(kernel, rows, append(args, wide, rows, cols)...)
		return
	}
	chunk, threads := max(8, s.normChunk(rows, cols, 32)), 32*ceil(cols, 128)
	shared := threads * 16 * (4*2 + 2) // four rows of two tensors that are on their way, and what a thread leaves of their sums, twice
	s.launch(kernel+"_wide", [3]int{ceil(rows, chunk), 1, 1}, [3]int{threads, 1, 1}, shared, append(args, chunk, rows, cols)...)
}

// Embed is one launch.
func (s *Stream) Embed(y, sum, mean, rstd tensor, o gpustage.Embed) {
	if s.Refuse(gpustage.CheckEmbed(y, sum, mean, rstd, o)) || !s.f32("embed", y) {
		return
	}
	if s.Separate {
		o.Steps(s, y, sum, mean, rstd)
		return
	}
	scale := float32(o.Scale)
	if o.Scale == 0 {
		scale = 1
	}
	if o.Gamma.IsZero() {
		sum = y
	}
	w, p, k := o.Words, o.Positions, o.Kinds
	args := []any{y, o.Operand, sum, flat(mean), flat(rstd), w.Table, flat(w.Index), p.Table, flat(p.Index), k.Table, flat(k.Index), scale,
		flat(o.Gamma), flat(o.Beta), float32(o.Eps)}
	args = append(args, drops(o.Dropout)...)
	wide := s.wide(y, o.Operand, sum, w.Table, p.Table, k.Table, o.Gamma, o.Beta)
	if o.Gamma.IsZero() {
		s.eachRow("embed", y.Rows, append(args, wide, y.Rows, y.Cols)...)
	} else {
		s.normRows("embed", wide, y.Rows, y.Cols, args...)
	}
}

// LayerNormBackward gives dx, dGamma and dBeta, and what then says.
func (s *Stream) LayerNormBackward(dx, dGamma, dBeta, dy, x, mean, rstd, gamma tensor, then gpustage.Dropped) {
	const op = "layer norm backward"
	if s.Refuse(gpustage.CheckLayerNorm(op, dx, as32(x), gamma, dGamma, mean, rstd)) || s.Refuse(gpustage.CheckColumns(op, dy, dBeta)) ||
		s.Refuse(gpustage.CheckPair(op, dx, dy)) || !s.f32(op, dx) {
		return
	}
	if !then.Y.IsZero() && (s.Refuse(gpustage.CheckDropout(as32(then.Y), dx, tensor{}, then.Dropout)) || s.Refuse(gpustage.CheckColumns(op, dx, then.Sum))) {
		return
	}
	if s.normBackward(dx, dGamma, dBeta, dy, x, mean, rstd, gamma, 0, then) {
		return
	}
	s.columns(dGamma, dBeta, dy, x, mean, rstd, x.Cols) // before dx, which may be dy
	s.eachRow("layer_norm_backward", x.Rows, dx, dy, x, flat(mean), flat(rstd), flat(gamma), halves(x), s.wide(dx, dy, x, gamma), x.Rows, x.Cols)
	then.Of(s, dx)
}

// RMSNorm normalizes groups of features.
func (s *Stream) RMSNorm(y, rstd, x, gamma tensor, eps, offset float64) {
	if !s.Refuse(gpustage.CheckRMSNorm("rms norm", as32(y), as32(x), rstd, gamma, tensor{})) && s.f32("rms norm", as32(x)) {
		s.eachRow("rms_norm", rstd.Cols, y, flat(rstd), x, flat(gamma), float32(eps), float32(offset), gamma.Cols, halves(y, x),
			s.wide(y, x, gamma) && gamma.Cols%4 == 0, x.Rows, x.Cols)
	}
}

// RMSNormBackward gives dx and dGamma.
func (s *Stream) RMSNormBackward(dx, dGamma, dy, x, rstd, gamma tensor, offset float64) {
	const op = "rms norm backward"
	if s.Refuse(gpustage.CheckRMSNorm(op, as32(dx), as32(x), rstd, gamma, dGamma)) || s.Refuse(gpustage.CheckPair(op, as32(x), as32(dy))) || !s.f32(op, as32(x)) {
		return
	}
	if halves(dx, dy, x) == 0 && gamma.Cols == x.Cols && s.normBackward(dx, dGamma, tensor{}, dy, x, tensor{}, rstd, gamma, offset, gpustage.Dropped{}) {
		return
	}
	s.columns(dGamma, tensor{}, dy, x, tensor{}, rstd, gamma.Cols)
	s.eachRow("rms_norm_backward", rstd.Cols, dx, dy, x, flat(rstd), flat(gamma), float32(offset), gamma.Cols, halves(dx, dy, x),
		s.wide(dx, dy, x, gamma) && gamma.Cols%4 == 0, x.Rows, x.Cols)
}

// chunkRows is CHUNK of reduce.cu.
const chunkRows = 128

// normFits tells whether a block of norm_backward, or of norms' wide kernels, has so many columns, four to a thread.
func normFits(cols int) bool { return cols > 0 && cols%4 == 0 && cols <= 2048 }

// normChunk is how many rows such a block has, a multiple of four: at most so many blocks are launched as the multiprocessors have room for, so many
// warps each.
func (s *Stream) normChunk(rows, cols, warps int) int {
	return 4 * ceil(rows, 4*cmp.Or(s.Multiprocessors, 132)*(warps/ceil(cols, 128)))
}

// normBackward is a norm's whole way back in one pass over its rows, where reduce.cu has a kernel for it and it is more than dx.
func (s *Stream) normBackward(dx, dGamma, dBeta, dy, x, mean, rstd, gamma tensor, offset float64, then gpustage.Dropped) bool {
	sums := []tensor{dGamma, dBeta, then.Sum}
	if s.Separate || dGamma.IsZero() && dBeta.IsZero() && then.Y.IsZero() || x.Rows == 0 || !normFits(x.Cols) || !s.wide(dx, dy, x, gamma, then.Y) {
		return false
	}
	chunk := max(16, s.normChunk(x.Rows, x.Cols, 24))
	chunks, n := ceil(x.Rows, chunk), 0
	for _, sum := range sums {
		n += int(flag(!sum.IsZero()))
	}
	all := s.take(&s.sums.pool, gpustage.F32, n*chunks, x.Cols)
	if s.err != nil {
		return true
	}
	var out, parts []tensor // of the sums that there are
	for _, sum := range sums {
		part := tensor{}
		if !sum.IsZero() {
			part = all.Span(len(out)*chunks, (len(out)+1)*chunks)
			out = append(out, sum)
		}
		parts = append(parts, part)
	}
	args := []any{dx, then.Y, dy, x, flat(mean), flat(rstd), flat(gamma), float32(offset), flat(parts[0]), flat(parts[1]), flat(parts[2])}
	args = append(append(args, drops(then.Dropout)...), halves(x, then.Y), chunk, x.Rows, x.Cols)
	threads := 32 * ceil(x.Cols, 128)
	shared := threads * 4 * (16 + 4*x.DType.Size()) // four rows that are on their way
	s.launch("norm_backward", [3]int{chunks, 1, 1}, [3]int{threads, 1, 1}, shared, args...)
	for i, sum := range out {
		s.addUp(sum, all.Span(i*chunks, (i+1)*chunks), x.Cols)
	}
	s.added()
	return true
}

// columns adds the sums of dy*n to dot, n being x normalized, and those of dy to sum; either may be absent. dim is their length, of which x
// may have several.
func (s *Stream) columns(dot, sum, dy, x, mean, rstd tensor, dim int) {
	s.columnsOf(tensor{}, 0, dot, sum, dy, x, mean, rstd, dim)
}

// columnsOf is columns of the rows whose index is id; without an index, of all.
func (s *Stream) columnsOf(index tensor, id int, dot, sum, dy, x, mean, rstd tensor, dim int) {
	dots, sums := s.parts(dot, dy), s.parts(sum, dy)
	if dot.IsZero() && sum.IsZero() {
		return
	}
	s.launch("column_parts", [3]int{ceil(dy.Cols, 32), ceil(dy.Rows, chunkRows), 1}, [3]int{block, 1, 1}, 0, flat(dots), flat(sums), dy, x, flat(mean), flat(rstd),
		dim, flat(index), id, halves(dy, x), dy.Rows, dy.Cols)
	s.addUp(dot, dots, dim)
	s.addUp(sum, sums, dim)
	s.added()
}

// parts is room for the parts of sum that are the sums of chunks of x's rows; absent as sum is.
func (s *Stream) parts(sum, x tensor) tensor {
	if sum.IsZero() {
		return tensor{}
	}
	return s.take(&s.sums.pool, gpustage.F32, ceil(x.Rows, chunkRows), x.Cols)
}

// ColumnSum adds the sum of x's rows to sum.
func (s *Stream) ColumnSum(sum, x tensor) {
	if !s.Refuse(gpustage.CheckColumnSum(sum, as32(x))) && s.f32("column sum", as32(x)) {
		s.columnSums(sum, tensor{}, x)
	}
}

// columnSums adds the sum of x's rows to sum, and rounds x into to, if that is there.
func (s *Stream) columnSums(sum, to, x tensor) {
	parts, grid := s.parts(sum, x), [3]int{ceil(x.Cols, 128), ceil(x.Rows, chunkRows), 1}
	if to.IsZero() && half(x) && x.Cols%8 == 0 && s.eights(x) {
		s.launch("column_sums_wide", grid, [3]int{128, 1, 1}, 0, flat(parts), x, x.Rows, x.Cols)
	} else {
		s.launch("column_sums", grid, [3]int{block, 1, 1}, 0, flat(parts), to, x, halves(x), s.wide(to, x), x.Rows, x.Cols)
	}
	s.addUp(sum, parts, x.Cols)
	s.added()
}

// fewRows is up to how many rows of a table are summed by columns, one after the other. BERT has two token types, of which texts have one:
// scatter_add would leave 16,384 tokens to a block for each 256 columns, half a millisecond, where this reads the gradient once a row, 10 us each
// (estimates for an H200 and 768 columns).
const fewRows = 4

// ScatterAdd is Gather's backward.
func (s *Stream) ScatterAdd(dTable, dy, index tensor) {
	if s.Refuse(gpustage.CheckGather("scatter add", dy, dTable, index)) || !s.f32("scatter add", dy) {
		return
	}
	if dTable.Rows <= fewRows && dy.Rows > chunkRows {
		for id := range dTable.Rows {
			s.columnsOf(index, id, tensor{}, dTable.Span(id, id+1), dy, tensor{}, tensor{}, tensor{}, dy.Cols)
		}
		return
	}
	s.launch("scatter_add", [3]int{ceil(dy.Rows, 8), ceil(dy.Cols, block), 1}, [3]int{block, 1, 1}, 0, dTable, dy, flat(index), s.wide(index), dy.Rows, dy.Cols)
}

// squares is SQUARES of reduce.cu.
const squares = 8192

// SumSquares adds the sum of squares to out.
func (s *Stream) SumSquares(out, x tensor) {
	if s.Refuse(gpustage.CheckSum(out, x)) || !s.f32("sum of squares", x) || x.Len() == 0 {
		return
	}
	parts := s.scratch(gpustage.F64, 1, ceil(x.Len(), squares))
	if s.err != nil {
		return
	}
	rest := parts
	for ts := range s.pieces(x) {
		n := ceil(ts[0].Len(), squares)
		s.launch("square_parts", [3]int{n, 1, 1}, [3]int{block, 1, 1}, 0, flat(rest), ts[0], s.wide(ts[0]), ts[0].Rows, ts[0].Cols)
		rest = rest.Columns(n, rest.Cols)
	}
	s.launch("square_finish", [3]int{1, 1, 1}, [3]int{1024, 1, 1}, 0, flat(out), flat(parts), parts.Cols)
}

// Pool reduces each sequence to a vector.
func (s *Stream) Pool(y, x tensor, q gpustage.Sequences, mode gpustage.Pooling) {
	if !s.Refuse(gpustage.CheckPool("pool", y, x, q)) && s.f32("pool", x) {
		s.launch("pool", [3]int{q.Rows, ceil(x.Cols, 128), 1}, [3]int{128, 1, 1}, 0, y, x, flat(q.Cu), int(mode), x.Cols)
	}
}

// PoolBackward spreads each row's gradient over its sequence.
func (s *Stream) PoolBackward(dx, dy tensor, q gpustage.Sequences, mode gpustage.Pooling) {
	if !s.Refuse(gpustage.CheckPool("pool backward", dy, dx, q)) && s.f32("pool backward", dx) {
		s.launch("pool_backward", [3]int{q.Rows, ceil(dx.Cols, 128), 1}, [3]int{128, 1, 1}, 0, dx, dy, flat(q.Cu), int(mode), dx.Cols)
	}
}

// Normalize is y = x / |x|.
func (s *Stream) Normalize(y, norm, x tensor) {
	if !s.Refuse(gpustage.CheckRows("normalize", x, norm)) && !s.Refuse(gpustage.CheckPair("normalize", x, y)) && s.f32("normalize", x) {
		s.eachRow("normalize", x.Rows, y, flat(norm), x, s.wide(y, x), x.Rows, x.Cols)
	}
}

// NormalizeBackward gives dx.
func (s *Stream) NormalizeBackward(dx, dy, y, norm tensor) {
	const op = "normalize backward"
	if !s.Refuse(gpustage.CheckRows(op, y, norm)) && !s.Refuse(gpustage.CheckPair(op, y, dx, dy)) && s.f32(op, y) {
		s.eachRow("normalize_backward", y.Rows, dx, dy, y, flat(norm), s.wide(dx, dy, y), y.Rows, y.Cols)
	}
}

// RowDot is out[i] = alpha * <a[i], b[i]>.
func (s *Stream) RowDot(out, a, b tensor, alpha float64) {
	if !s.Refuse(gpustage.CheckRows("row dot", a, out)) && !s.Refuse(gpustage.CheckPair("row dot", a, b)) && s.f32("row dot", a) {
		s.eachRow("row_dot", a.Rows, flat(out), a, b, float32(alpha), s.wide(a, b), a.Rows, a.Cols)
	}
}

// RowAxpy is y[i] += alpha * w[i] * x[i].
func (s *Stream) RowAxpy(y, x, w tensor, alpha float64) {
	if !s.Refuse(gpustage.CheckRows("row axpy", y, w)) && !s.Refuse(gpustage.CheckPair("row axpy", y, x)) && s.f32("row axpy", y) {
		s.eachRow("row_axpy", y.Rows, y, x, flat(w), float32(alpha), s.wide(y, x), y.Rows, y.Cols)
	}
}

// Mask sets excluded pairs to -Inf.
func (s *Stream) Mask(t tensor, m gpustage.Mask) {
	if s.Refuse(gpustage.CheckMask(t, m)) || !s.f32("mask", t) {
		return
	}
	for _, e := range m {
		s.eachRow("mask_pairs", t.Rows, t, flat(e.Row), flat(e.Col), t.Rows, t.Cols)
	}
}

// MaskAbove sets pairs whose g is above their row's limit to -Inf.
func (s *Stream) MaskAbove(t, g, limit tensor) {
	if !s.Refuse(gpustage.CheckPair("mask above", t, g)) && !s.Refuse(gpustage.CheckRows("mask above", t, limit)) && s.f32("mask above", t) {
		s.eachRow("mask_above", t.Rows, t, g, flat(limit), t.Rows, t.Cols)
	}
}

// OnlineLSE folds a tile into running log-sum-exps.
func (s *Stream) OnlineLSE(top, sum, t tensor) {
	if !s.Refuse(gpustage.CheckRows("online lse", t, top, sum)) && s.f32("online lse", t) {
		s.eachRow("online_lse", t.Rows, flat(top), flat(sum), t, s.wide(t), t.Rows, t.Cols)
	}
}

// SoftmaxTile is s[i, j] = w[i] * exp(s[i, j] - lse[i]), sum[i] += the row's sum.
func (s *Stream) SoftmaxTile(t, sum, lse, w tensor) {
	if !s.Refuse(gpustage.CheckRows("softmax tile", t, sum, lse, w)) && s.f32("softmax tile", t) {
		s.eachRow("softmax_tile", t.Rows, t, flat(sum), flat(lse), flat(w), s.wide(t), t.Rows, t.Cols)
	}
}
