package gpustage

import "fmt"

// The checks below are what every device's ops begin with, so that a mistake reads the same everywhere: op, argument, got and
// want. An op must not run when its check fails.

type checker struct {
	op  string
	err error
}

func (c *checker) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf("%s: %s", c.op, fmt.Sprintf(format, args...))
	}
}

func (c *checker) shape(name string, t Tensor, d DType, rows, cols int) {
	switch {
	case t.Mem == nil:
		c.fail("%s is missing, want %s[%d %d]", name, d, rows, cols)
	case t.Rows != rows || t.Cols != cols || t.DType != d:
		c.fail("%s is %v, want %s[%d %d]", name, t, d, rows, cols)
	default:
		c.bounds(name, t)
	}
}

func (c *checker) bounds(name string, t Tensor) {
	end := t.Off
	if t.Rows > 0 && t.Cols > 0 {
		end += (t.Rows-1)*t.Stride + t.Cols
	}
	if t.Off < 0 || t.Rows < 0 || t.Cols < 0 || t.Rows > 1 && t.Stride < t.Cols || end*t.DType.Size() > t.Mem.Bytes() {
		c.fail("%s is %v at element %d of %d bytes", name, t, t.Off, t.Mem.Bytes())
	}
}

func (c *checker) float(name string, t Tensor) {
	switch {
	case t.Mem == nil:
		c.fail("%s is missing", name)
	case t.DType != F32 && t.DType != F64 && t.DType != BF16:
		c.fail("%s is %v, want a floating-point tensor", name, t)
	default:
		c.bounds(name, t)
	}
}

// any is for tensors whose type does not matter.
func (c *checker) any(name string, t Tensor) {
	if t.Mem == nil {
		c.fail("%s is missing", name)
		return
	}
	c.bounds(name, t)
}

func (c *checker) same(name string, t Tensor, like Tensor) {
	c.shape(name, t, like.DType, like.Rows, like.Cols)
}

func (c *checker) optional(name string, t Tensor, d DType, rows, cols int) {
	if !t.IsZero() {
		c.shape(name, t, d, rows, cols)
	}
}

func (c *checker) sequences(s Sequences, tokens int) {
	if s.Tokens != tokens {
		c.fail("the sequences have %d tokens, the tensor has %d rows", s.Tokens, tokens)
	}
	c.shape("Cu", s.Cu, I32, 1, s.Rows+1)
}

func (c *checker) dropout(d Dropout, tokens int) {
	if !d.Active() {
		return
	}
	if !(d.P >= 0 && d.P < 1) {
		c.fail("dropout probability %v, want 0 <= p < 1", d.P)
	}
	if d.Seqs.Tokens != tokens {
		c.fail("the dropout's sequences have %d tokens, the tensor has %d rows", d.Seqs.Tokens, tokens)
	}
	c.shape("Keys", d.Seqs.Keys, U64, 1, d.Seqs.Rows)
	c.shape("Row", d.Seqs.Row, I32, 1, tokens)
	c.shape("Pos", d.Seqs.Pos, I32, 1, tokens)
}

// CheckPair checks an op whose tensors all have one shape and type.
func CheckPair(op string, ts ...Tensor) error {
	c := checker{op: op}
	c.float("argument 0", ts[0])
	for i, t := range ts[1:] {
		c.same(fmt.Sprintf("argument %d", i+1), t, ts[0])
	}
	return c.err
}

// CheckCopy allows the types to differ.
func CheckCopy(dst, src Tensor) error {
	c := checker{op: "copy"}
	if dst.DType == src.DType && (src.DType == I32 || src.DType == U64) {
		c.any("src", src)
		c.same("dst", dst, src)
		return c.err
	}
	c.float("src", src)
	c.float("dst", dst)
	if dst.Rows != src.Rows || dst.Cols != src.Cols {
		c.fail("dst is %v, src is %v", dst, src)
	}
	return c.err
}

// CheckFill checks a tensor of any type.
func CheckFill(dst Tensor) error {
	c := checker{op: "fill"}
	c.any("the tensor", dst)
	return c.err
}

// CheckHost checks the host side of CopyIn and CopyOut.
func CheckHost(op string, t Tensor, bytes int) error {
	c := checker{op: op}
	switch {
	case t.Mem == nil:
		c.fail("the tensor is missing")
	case !t.Contiguous():
		c.fail("the tensor is %v, want a contiguous one", t)
	case t.Len()*t.DType.Size() != bytes:
		c.fail("the tensor is %v (%d bytes), the host has %d bytes", t, t.Len()*t.DType.Size(), bytes)
	default:
		c.bounds("the tensor", t)
	}
	return c.err
}

// CheckMatMul returns the product's M, N and K.
func CheckMatMul(c, a, b Tensor, o MatMul) (m, n, k int, err error) {
	ck := checker{op: "matmul"}
	ck.float("a", a)
	ck.float("b", b)
	m, k = a.Rows, a.Cols
	if o.TransA {
		m, k = k, m
	}
	kb, n := b.Rows, b.Cols
	if o.TransB {
		kb, n = n, kb
	}
	if k != kb || a.DType != b.DType {
		ck.fail("a is %v (transposed: %v), b is %v (transposed: %v): the inner sizes %d and %d differ", a, o.TransA, b, o.TransB, k, kb)
	}
	if !c.IsZero() || o.PreAct.IsZero() || !o.Residual.IsZero() || o.Add || !o.Norm.Y.IsZero() || !o.ResultSum.IsZero() {
		ck.shape("c", c, a.DType, m, n)
	}
	ck.optional("Bias", o.Bias, a.DType, 1, n)
	ck.optional("PreAct", o.PreAct, a.DType, m, n)
	ck.optional("GradOf", o.GradOf, a.DType, m, n)
	ck.optional("Again", o.Again, a.DType, m, n)
	ck.optional("Residual", o.Residual, a.DType, m, n)
	ck.optional("ColumnSum", o.ColumnSum, a.DType, 1, a.Cols)
	ck.optional("ResultSum", o.ResultSum, a.DType, 1, n)
	if o := o.Norm; !o.Y.IsZero() {
		ck.shape("Norm.Y", o.Y, a.DType, m, n)
		ck.shape("Norm.Mean", o.Mean, a.DType, 1, m)
		ck.shape("Norm.Rstd", o.Rstd, a.DType, 1, m)
		ck.shape("Norm.Gamma", o.Gamma, a.DType, 1, n)
		ck.optional("Norm.Beta", o.Beta, a.DType, 1, n)
		ck.optional("Norm.Operand", o.Operand, BF16, m, n)
	}
	ck.dropout(o.Dropout, m)
	if r := o.Rounded; r != nil && o.BF16 {
		ck.shape("the room for rounding a", r.Room, BF16, a.Rows, max(a.Cols, r.Room.Cols))
	}
	if !o.GradOf.IsZero() && !o.PreAct.IsZero() {
		ck.fail("PreAct and GradOf exclude each other")
	}
	if o.GradOf.IsZero() && !o.Again.IsZero() {
		ck.fail("Again without GradOf")
	}
	if !o.ResultSum.IsZero() && c.SamePlace(o.Norm.Y) {
		ck.fail("ResultSum is c's, and Norm.Y has its place")
	}
	return m, n, k, ck.err
}

// CheckGateBackward checks tensors of one shape, of which again may be absent.
func CheckGateBackward(dGate, dUp, again, dy, gate, up Tensor) error {
	ts := []Tensor{dy, gate, up, dGate, dUp, again}
	if again.IsZero() {
		ts = ts[:5]
	}
	return CheckPair("gate backward", ts...)
}

// CheckGather serves Gather and ScatterAdd: y[T, C], table[V, C], index[1, T].
func CheckGather(op string, y, table, index Tensor) error {
	c := checker{op: op}
	c.float("the table", table)
	c.shape("y", y, table.DType, y.Rows, table.Cols)
	c.shape("index", index, I32, 1, y.Rows)
	return c.err
}

// CheckColumns serves ops of x[R, C] with vectors over its columns.
func CheckColumns(op string, x Tensor, vectors ...Tensor) error {
	c := checker{op: op}
	c.float("x", x)
	for i, v := range vectors {
		c.optional(fmt.Sprintf("vector %d", i), v, x.DType, 1, x.Cols)
	}
	return c.err
}

// CheckColumnSum checks sum[1, C] and x[R, C].
func CheckColumnSum(sum, x Tensor) error {
	c := checker{op: "column sum"}
	c.float("x", x)
	c.shape("sum", sum, x.DType, 1, x.Cols)
	return c.err
}

// CheckRows serves ops of x[R, C] with vectors over its rows.
func CheckRows(op string, x Tensor, vectors ...Tensor) error {
	c := checker{op: op}
	c.float("x", x)
	for i, v := range vectors {
		c.shape(fmt.Sprintf("vector %d", i), v, x.DType, 1, x.Rows)
	}
	return c.err
}

// CheckLayerNorm serves both directions: dy and dx are y and x, and dGamma is beta.
func CheckLayerNorm(op string, y, x, gamma, beta, mean, rstd Tensor) error {
	if err := CheckColumns(op, x, beta); err != nil {
		return err
	}
	c := checker{op: op}
	if c.shape("gamma", gamma, x.DType, 1, x.Cols); c.err != nil {
		return c.err
	}
	if err := CheckRows(op, x, mean, rstd); err != nil {
		return err
	}
	return CheckPair(op, x, y)
}

// CheckRMSNorm serves both directions: dy and dx are y and x.
func CheckRMSNorm(op string, y, x, rstd, gamma, dGamma Tensor) error {
	c := checker{op: op}
	c.float("x", x)
	c.same("y", y, x)
	c.shape("gamma", gamma, x.DType, 1, gamma.Cols)
	if gamma.Cols < 1 || x.Cols%gamma.Cols != 0 {
		c.fail("x is %v, gamma %v: want a multiple of its columns", x, gamma)
		return c.err
	}
	c.shape("rstd", rstd, x.DType, 1, x.Rows*(x.Cols/gamma.Cols))
	c.optional("dGamma", dGamma, x.DType, 1, gamma.Cols)
	return c.err
}

// CheckRotary checks y and x[T, H*D].
func CheckRotary(y, x Tensor, o Rotary) error {
	c := checker{op: "rotary"}
	c.float("x", x)
	c.same("y", y, x)
	c.shape("the table", o.Table, x.DType, o.Table.Rows, o.Table.Cols)
	c.shape("index", o.Index, I32, 1, x.Rows)
	if r := o.Table.Cols; o.HeadDim < 1 || x.Cols%o.HeadDim != 0 || r > o.HeadDim || r%2 != 0 {
		c.fail("x is %v with heads of %d, the table %v: want whole heads and an even number of at most %d angles", x, o.HeadDim, o.Table, o.HeadDim)
	}
	return c.err
}

// CheckDropout checks y, x and the optional residual.
func CheckDropout(y, x, residual Tensor, d Dropout) error {
	c := checker{op: "dropout"}
	c.float("x", x)
	c.same("y", y, x)
	c.optional("residual", residual, x.DType, x.Rows, x.Cols)
	c.dropout(d, x.Rows)
	return c.err
}

// CheckAttention serves both directions; pairs are further tensors that must have q's, k's or v's shape.
func CheckAttention(op string, ctx, lse, q, k, v Tensor, o Attention) error {
	c := checker{op: op}
	kv := o.KVHeads
	if kv == 0 {
		kv = o.Heads
	}
	if o.Heads <= 0 || o.HeadDim <= 0 || kv <= 0 || o.Heads%kv != 0 {
		c.fail("%d heads of %d with %d key-value heads", o.Heads, o.HeadDim, kv)
	}
	t := o.Seqs.Tokens
	c.float("q", q)
	c.shape("q", q, q.DType, t, o.Heads*o.HeadDim)
	c.shape("k", k, q.DType, t, kv*o.HeadDim)
	c.shape("v", v, q.DType, t, kv*o.HeadDim)
	c.shape("ctx", ctx, q.DType, t, o.Heads*o.HeadDim)
	c.shape("lse", lse, q.DType, o.Heads, t)
	c.sequences(o.Seqs, t)
	c.dropout(o.Dropout, t)
	if o.Window < 0 || o.SoftCap < 0 {
		c.fail("a window of %d, a soft cap of %v", o.Window, o.SoftCap)
	}
	if !o.Bias.IsZero() {
		if o.Bias.Rows%2 == 0 {
			c.fail("Bias is %v, want an odd number of rows", o.Bias)
		}
		c.shape("Bias", o.Bias, q.DType, o.Bias.Rows, o.Heads)
		c.optional("DBias", o.DBias, q.DType, o.Bias.Rows, o.Heads)
	} else if !o.DBias.IsZero() {
		c.fail("DBias without Bias")
	}
	c.positions(o.Positions, q, lse, o)
	if !o.Seen.IsZero() {
		c.shape("Seen", o.Seen, I32, 1, o.Seqs.Rows)
		if !o.Positions.None() {
			c.fail("Seen and positions exclude each other")
		}
	}
	return c.err
}

// CheckPool checks y[B, C] and x[T, C].
func CheckPool(op string, y, x Tensor, s Sequences) error {
	c := checker{op: op}
	c.float("x", x)
	c.shape("y", y, x.DType, s.Rows, x.Cols)
	c.sequences(s, x.Rows)
	return c.err
}

// CheckBag checks y[B, C], a table [V, C] and all tokens' rows of it.
func CheckBag(y, table, index Tensor, s Sequences) error {
	return checkBag(checker{op: "bag"}, y, table, index, s, s.Tokens)
}

// CheckBagBackward checks the same, of all tokens or the first ones.
func CheckBagBackward(dTable, dy, index Tensor, s Sequences) error {
	return checkBag(checker{op: "bag backward"}, dy, dTable, index, s, min(index.Cols, s.Tokens))
}

func checkBag(c checker, y, table, index Tensor, s Sequences, tokens int) error {
	c.float("the table", table)
	c.shape("y", y, table.DType, s.Rows, table.Cols)
	c.shape("index", index, I32, 1, tokens)
	c.sequences(s, s.Tokens)
	return c.err
}

// CheckMask checks a score tile's identities.
func CheckMask(s Tensor, m Mask) error {
	c := checker{op: "mask"}
	c.float("s", s)
	for i, e := range m {
		c.shape(fmt.Sprintf("match %d, Row", i), e.Row, I32, 1, s.Rows)
		c.shape(fmt.Sprintf("match %d, Col", i), e.Col, I32, 1, s.Cols)
	}
	return c.err
}

// CheckSegmentMax checks top[T, D], at[T, D], s[T, N] and cu.
func CheckSegmentMax(top, at, s, cu Tensor) error {
	c := checker{op: "segment max"}
	c.float("s", s)
	c.shape("top", top, s.DType, s.Rows, top.Cols)
	c.shape("at", at, I32, s.Rows, top.Cols)
	c.shape("cu", cu, I32, 1, top.Cols+1)
	return c.err
}

// CheckMaxSimBackward checks dx, x[T, E], dy, y[N, E], g[T, D] and at.
func CheckMaxSimBackward(dx, dy, g, at, x, y Tensor) error {
	c := checker{op: "MaxSim's backward"}
	c.float("x", x)
	c.same("dx", dx, x)
	c.shape("y", y, x.DType, y.Rows, x.Cols)
	c.same("dy", dy, y)
	c.shape("g", g, x.DType, x.Rows, g.Cols)
	c.shape("at", at, I32, x.Rows, g.Cols)
	return c.err
}

// CheckSplade checks y[B, V], at and top[V, B], and bias.
func CheckSplade(y, at, top, bias Tensor) error {
	c := checker{op: "splade"}
	c.float("top", top)
	c.shape("y", y, top.DType, top.Cols, top.Rows)
	c.shape("at", at, I32, top.Rows, top.Cols)
	c.optional("bias", bias, top.DType, 1, top.Rows)
	return c.err
}

// CheckSpladeBackward checks g[V, B], dBias, and dy and y[B, V].
func CheckSpladeBackward(g, dBias, dy, y Tensor) error {
	c := checker{op: "splade backward"}
	c.float("y", y)
	c.same("dy", dy, y)
	c.shape("g", g, y.DType, y.Cols, y.Rows)
	c.optional("dBias", dBias, y.DType, 1, y.Cols)
	return c.err
}

// CheckSum checks the accumulator of SumSquares.
func CheckSum(out, x Tensor) error {
	c := checker{op: "sum of squares"}
	c.float("x", x)
	c.shape("out", out, F64, 1, 1)
	return c.err
}

// CheckInside checks what an attention call has in host memory, Positions' Rows and Seen, against what they count. Devices whose memory is not the host's
// rely on whoever made them.
func CheckInside(op string, o Attention) error {
	if p := o.Positions; !p.None() {
		return CheckIndex(op+", rows of positions", Tensor{Rows: p.Count()}, p.Rows)
	}
	if o.Seen.IsZero() {
		return nil
	}
	cu := Slice[int32](o.Seqs.Cu)
	for b, n := range Slice[int32](o.Seen) {
		if have := cu[b+1] - cu[b]; n < 0 || n > have {
			return fmt.Errorf("%s: Seen has %d tokens of sequence %d, which has %d", op, n, b, have)
		}
	}
	return nil
}

// CheckIndex checks that host-side indices are rows of the table. Devices whose indices are not in host memory can't
// afford it and rely on the host having checked them.
func CheckIndex(op string, table, index Tensor) error {
	for t, id := range Slice[int32](index) {
		if id < 0 || int(id) >= table.Rows {
			return fmt.Errorf("%s: index %d of token %d is outside the table's %d rows", op, id, t, table.Rows)
		}
	}
	return nil
}
