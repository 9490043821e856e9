package ref

import (
	"math"

	"contraflow/gpustage"
)

// CopyIn copies host bytes to a tensor.
func (s *Stream) CopyIn(dst tensor, src []byte) {
	if s.Refuse(gpustage.CheckHost("copy in", dst, len(src))) || len(src) == 0 {
		return
	}
	copy(bytes(dst), src)
}

// CopyOut copies a tensor to host bytes.
func (s *Stream) CopyOut(dst []byte, src tensor) {
	if s.Refuse(gpustage.CheckHost("copy out", src, len(dst))) || len(dst) == 0 {
		return
	}
	copy(dst, bytes(src))
}

func bytes(t tensor) []byte {
	switch t.DType {
	case gpustage.F32:
		return gpustage.Bytes(gpustage.Slice[float32](t))
	case gpustage.F64:
		return gpustage.Bytes(gpustage.Slice[float64](t))
	case gpustage.I32:
		return gpustage.Bytes(gpustage.Slice[int32](t))
	case gpustage.U64:
		return gpustage.Bytes(gpustage.Slice[uint64](t))
	default:
		return gpustage.Bytes(gpustage.Slice[uint16](t))
	}
}

// Copy copies and converts.
func (s *Stream) Copy(dst, src tensor) {
	if s.Refuse(gpustage.CheckCopy(dst, src)) {
		return
	}
	for i := range src.Rows {
		d, x := dst.Span(i, i+1), src.Span(i, i+1)
		if dst.DType == src.DType {
			copy(bytes(d), bytes(x))
			continue
		}
		for j := range src.Cols {
			store(d, j, load(x, j))
		}
	}
}

func load(t tensor, j int) float64 {
	switch t.DType {
	case gpustage.F32:
		return float64(gpustage.Slice[float32](t)[j])
	case gpustage.F64:
		return gpustage.Slice[float64](t)[j]
	default:
		return float64(gpustage.FromBF16(gpustage.Slice[uint16](t)[j]))
	}
}

func store(t tensor, j int, v float64) {
	switch t.DType {
	case gpustage.F32:
		gpustage.Slice[float32](t)[j] = float32(v)
	case gpustage.F64:
		gpustage.Slice[float64](t)[j] = v
	default:
		gpustage.Slice[uint16](t)[j] = gpustage.ToBF16(float32(v))
	}
}

// Fill sets every element.
func (s *Stream) Fill(dst tensor, value float64) {
	if s.Refuse(gpustage.CheckFill(dst)) {
		return
	}
	for i := range dst.Rows {
		switch dst.DType {
		case gpustage.F32:
			fill(row[float32](dst, i), float32(value))
		case gpustage.F64:
			fill(row[float64](dst, i), value)
		case gpustage.I32:
			fill(row[int32](dst, i), int32(value))
		case gpustage.U64:
			fill(row[uint64](dst, i), uint64(value))
		default:
			fill(row[uint16](dst, i), gpustage.ToBF16(float32(value)))
		}
	}
}

func fill[T any](x []T, v T) {
	for i := range x {
		x[i] = v
	}
}

// Add is y = a + b.
func (s *Stream) Add(y, a, b tensor) {
	if s.Refuse(gpustage.CheckPair("add", y, a, b)) {
		return
	}
	s.run("add", y, func() { add[float32](y, a, b) }, func() { add[float64](y, a, b) })
}

func add[T float](y, a, b tensor) {
	for i := range y.Rows {
		y, a, b := row[T](y, i), row[T](a, i), row[T](b, i)
		for j := range y {
			y[j] = a[j] + b[j]
		}
	}
}

// Scale is y = alpha * x.
func (s *Stream) Scale(y, x tensor, alpha float64) {
	if s.Refuse(gpustage.CheckPair("scale", y, x)) {
		return
	}
	s.run("scale", y, func() { scale[float32](y, x, alpha) }, func() { scale[float64](y, x, alpha) })
}

func scale[T float](y, x tensor, alpha float64) {
	for i := range y.Rows {
		y, x := row[T](y, i), row[T](x, i)
		for j := range y {
			y[j] = T(alpha * float64(x[j]))
		}
	}
}

// ColumnSum adds the sum of x's rows to sum.
func (s *Stream) ColumnSum(sum, x tensor) {
	if s.Refuse(gpustage.CheckColumnSum(sum, x)) {
		return
	}
	s.run("column sum", x, func() { columnSum[float32](sum, x) }, func() { columnSum[float64](sum, x) })
}

func columnSum[T float](sum, x tensor) {
	acc := make([]float64, x.Cols)
	for i := range x.Rows {
		for j, v := range row[T](x, i) {
			acc[j] += float64(v)
		}
	}
	for j, out := 0, vec[T](sum); j < len(acc); j++ {
		out[j] += T(acc[j])
	}
}

// Gather is y[t] = table[index[t]], or += with add.
func (s *Stream) Gather(y, table, index tensor, add bool) {
	if s.Refuse(gpustage.CheckGather("gather", y, table, index)) || s.Refuse(gpustage.CheckIndex("gather", table, index)) {
		return
	}
	s.run("gather", y, func() { gather[float32](y, table, index, add) }, func() { gather[float64](y, table, index, add) })
}

func gather[T float](y, table, index tensor, add bool) {
	for t, id := range vec[int32](index) {
		y, x := row[T](y, t), row[T](table, int(id))
		for j := range y {
			if add {
				y[j] += x[j]
			} else {
				y[j] = x[j]
			}
		}
	}
}

// ScatterAdd is Gather's backward.
func (s *Stream) ScatterAdd(dTable, dy, index tensor) {
	if s.Refuse(gpustage.CheckGather("scatter add", dy, dTable, index)) || s.Refuse(gpustage.CheckIndex("scatter add", dTable, index)) {
		return
	}
	s.run("scatter add", dy, func() { scatterAdd[float32](dTable, dy, index) }, func() { scatterAdd[float64](dTable, dy, index) })
}

func scatterAdd[T float](dTable, dy, index tensor) {
	for t, id := range vec[int32](index) {
		d, y := row[T](dTable, int(id)), row[T](dy, t)
		for j := range d {
			d[j] += y[j]
		}
	}
}

// Activate is y = f(x).
func (s *Stream) Activate(y, x tensor, f gpustage.Activation) {
	if s.Refuse(gpustage.CheckPair("activate", y, x)) {
		return
	}
	s.run("activate", y, func() { activate[float32](y, x, f) }, func() { activate[float64](y, x, f) })
}

func activate[T float](y, x tensor, f gpustage.Activation) {
	for i := range y.Rows {
		y, x := row[T](y, i), row[T](x, i)
		for j := range y {
			y[j] = T(act(float64(x[j]), f))
		}
	}
}

// ActivateBackward is dx = dy * f'(x).
func (s *Stream) ActivateBackward(dx, dy, x tensor, f gpustage.Activation) {
	if s.Refuse(gpustage.CheckPair("activate backward", dx, dy, x)) {
		return
	}
	s.run("activate backward", dx, func() { activateBackward[float32](dx, dy, x, f, s.jump) }, func() { activateBackward[float64](dx, dy, x, f, s.jump) })
}

func activateBackward[T float](dx, dy, x tensor, f gpustage.Activation, jump Jump) {
	slope := slopes[T](x, f, jump)
	for i := range dx.Rows {
		dx, dy, x := row[T](dx, i), row[T](dy, i), row[T](x, i)
		for j := range dx {
			dx[j] = T(float64(dy[j]) * slope(float64(x[j])))
		}
	}
}

// Gate is y = f(gate) * up (Shazeer, arXiv 2002.05202).
func (s *Stream) Gate(y, gate, up tensor, f gpustage.Activation) {
	if s.Refuse(gpustage.CheckPair("gate", y, gate, up)) {
		return
	}
	s.run("gate", y, func() { gated[float32](y, gate, up, f) }, func() { gated[float64](y, gate, up, f) })
}

func gated[T float](y, gate, up tensor, f gpustage.Activation) {
	for i := range y.Rows {
		y, gate, up := row[T](y, i), row[T](gate, i), row[T](up, i)
		for j := range y {
			y[j] = T(act(float64(gate[j]), f) * float64(up[j]))
		}
	}
}

// GateBackward is dGate = dy * up * f'(gate), dUp = dy * f(gate).
func (s *Stream) GateBackward(dGate, dUp, again, dy, gate, up tensor, f gpustage.Activation) {
	if s.Refuse(gpustage.CheckGateBackward(dGate, dUp, again, dy, gate, up)) {
		return
	}
	s.run("gate backward", dy, func() { gatedBackward[float32](dGate, dUp, again, dy, gate, up, f, s.jump) },
		func() { gatedBackward[float64](dGate, dUp, again, dy, gate, up, f, s.jump) })
}

func gatedBackward[T float](dGate, dUp, again, dy, gate, up tensor, f gpustage.Activation, jump Jump) {
	slope := slopes[T](gate, f, jump)
	for i := range dy.Rows {
		dGate, dUp, dy, gate, up := row[T](dGate, i), row[T](dUp, i), row[T](dy, i), row[T](gate, i), row[T](up, i)
		for j := range dy {
			g, u, d := float64(gate[j]), float64(up[j]), float64(dy[j])
			dGate[j], dUp[j] = T(d*u*slope(g)), T(d*act(g, f))
			if !again.IsZero() {
				row[T](again, i)[j] = T(act(g, f) * u)
			}
		}
	}
}

// The tanh approximation's constants (Hendrycks and Gimpel, arXiv 1606.08415).
const (
	geluA = 0.7978845608028654 // sqrt(2/pi)
	geluB = 0.044715
)

func act(x float64, f gpustage.Activation) float64 {
	switch f {
	case gpustage.GELU:
		return x * 0.5 * math.Erfc(-x/math.Sqrt2)
	case gpustage.GELUTanh:
		return 0.5 * x * (1 + math.Tanh(geluA*(x+geluB*x*x*x)))
	case gpustage.ReLU:
		return max(x, 0)
	case gpustage.SiLU:
		return x * sigmoid(x)
	case gpustage.Tanh:
		return math.Tanh(x)
	default:
		return x
	}
}

func actGrad(x float64, f gpustage.Activation) float64 {
	switch f {
	case gpustage.GELU: // Phi(x) + x * phi(x)
		return 0.5*math.Erfc(-x/math.Sqrt2) + x*math.Exp(-x*x/2)/math.Sqrt(2*math.Pi)
	case gpustage.GELUTanh:
		t := math.Tanh(geluA * (x + geluB*x*x*x))
		return 0.5*(1+t) + 0.5*x*(1-t*t)*geluA*(1+3*geluB*x*x)
	case gpustage.ReLU:
		if x > 0 {
			return 1
		}
		return 0
	case gpustage.SiLU:
		g := sigmoid(x)
		return g * (1 + x*(1-g))
	case gpustage.Tanh:
		t := math.Tanh(x)
		return 1 - t*t
	default:
		return 1
	}
}

// slopes is f', where x has the values at which it is asked for: but a ReLU's is that of the other side where a Jump says so.
func slopes[T float](x tensor, f gpustage.Activation, jump Jump) func(float64) float64 {
	if jump == nil || f != gpustage.ReLU {
		return func(x float64) float64 { return actGrad(x, f) }
	}
	scale := rms[T](x)
	return func(x float64) float64 {
		if jump(x, math.Abs(x)/scale) {
			x = -x
		}
		return actGrad(x, f)
	}
}

// rms is the root mean square of all values.
func rms[T float](x tensor) float64 {
	sum := 0.0
	for i := range x.Rows {
		for _, v := range row[T](x, i) {
			sum += float64(v) * float64(v)
		}
	}
	return math.Sqrt(sum / float64(x.Rows*x.Cols))
}

func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

// Dropout is y = residual + dropout(x).
func (s *Stream) Dropout(y, x, residual tensor, d gpustage.Dropout) {
	if s.Refuse(gpustage.CheckDropout(y, x, residual, d)) {
		return
	}
	s.run("dropout", y, func() { dropout[float32](y, x, residual, d) }, func() { dropout[float64](y, x, residual, d) })
}

func dropout[T float](y, x, residual tensor, d gpustage.Dropout) {
	for t := range x.Rows {
		y, x := row[T](y, t), row[T](x, t)
		var r []T
		if !residual.IsZero() {
			r = row[T](residual, t)
		}
		keep := tokenMask(d, t)
		for j := range y {
			v := float64(x[j]) * keep(j)
			if r != nil {
				v += float64(r[j])
			}
			y[j] = T(v)
		}
	}
}

// tokenMask is what each feature of token t is multiplied by.
func tokenMask(d gpustage.Dropout, t int) func(feature int) float64 {
	if !d.Active() {
		return func(int) float64 { return 1 }
	}
	b := vec[int32](d.Seqs.Row)[t]
	return elementMask(d, int(b), int(vec[int32](d.Seqs.Pos)[t]), 0)
}

// elementMask gives what the elements of a vector (gpustage.Dropout.Element) of a sequence are multiplied by.
func elementMask(d gpustage.Dropout, sequence, pos, head int) func(element int) float64 {
	if !d.Active() {
		return func(int) float64 { return 1 }
	}
	key, scale, threshold := vec[uint64](d.Seqs.Keys)[sequence], d.KeepScale(), d.Threshold()
	return func(j int) float64 {
		if d.Element(key, j, pos, head) < threshold {
			return 0
		}
		return scale
	}
}
