package launch

import (
	"fmt"
	"math"

	"contraflow/gpustage"
)

// Copy copies and converts.
func (s *Stream) Copy(dst, src tensor) {
	if s.Refuse(gpustage.CheckCopy(dst, src)) {
		return
	}
	if dst.DType == gpustage.BF16 && src.DType == gpustage.F32 {
		s.toBF16(dst, src)
		return
	}
	s.launch("convert", elements(src.Len()), [3]int{block, 1, 1}, 0, dst, int(dst.DType), src, int(src.DType), src.Rows, src.Cols)
}

func (s *Stream) toBF16(dst, src tensor) {
	wide := s.wide(src) && s.address(dst)%8 == 0 && (dst.Rows <= 1 || dst.Stride%4 == 0)
	s.launch("to_bf16", elements(src.Rows*ceil(src.Cols, 4)), [3]int{block, 1, 1}, 0, dst, src, wide, src.Rows, src.Cols)
}

// Fill sets every element.
func (s *Stream) Fill(dst tensor, value float64) {
	if s.Refuse(gpustage.CheckHost("fill", dst.Span(0, min(1, dst.Rows)), min(1, dst.Rows)*dst.Cols*dst.DType.Size())) {
		return
	}
	var bits uint64
	switch dst.DType {
	case gpustage.F32:
		bits = uint64(math.Float32bits(float32(value)))
	case gpustage.F64:
		bits = math.Float64bits(value)
	case gpustage.I32:
		bits = uint64(uint32(int32(value)))
	case gpustage.U64:
		bits = uint64(value)
	default:
		bits = uint64(gpustage.ToBF16(float32(value)))
	}
	shift := map[int]int{2: 1, 4: 2, 8: 3}[dst.DType.Size()]
	s.launch("fill", elements(dst.Len()), [3]int{block, 1, 1}, 0, dst, bits, shift, dst.Rows, dst.Cols)
}

// Add is y = a + b.
func (s *Stream) Add(y, a, b tensor) {
	if !s.Refuse(gpustage.CheckPair("add", y, a, b)) && s.f32("add", y) {
		s.quads("add", []tensor{y, a, b})
	}
}

// Scale is y = alpha * x.
func (s *Stream) Scale(y, x tensor, alpha float64) {
	if !s.Refuse(gpustage.CheckPair("scale", y, x)) && s.f32("scale", y) {
		s.quads("scale", []tensor{y, x}, float32(alpha))
	}
}

// Activate is y = f(x).
func (s *Stream) Activate(y, x tensor, f gpustage.Activation) {
	if !s.Refuse(gpustage.CheckPair("activate", y, x)) && s.f32("activate", y) {
		s.quads("activation", []tensor{y, x}, int(f))
	}
}

// ActivateBackward is dx = dy * f'(x).
func (s *Stream) ActivateBackward(dx, dy, x tensor, f gpustage.Activation) {
	if !s.Refuse(gpustage.CheckPair("activate backward", dx, dy, x)) && s.f32("activate backward", x) {
		s.quads("activation_backward", []tensor{dx, dy, x}, int(f))
	}
}

// Gate is y = f(gate) * up.
func (s *Stream) Gate(y, gate, up tensor, f gpustage.Activation) {
	if !s.Refuse(gpustage.CheckPair("gate", y, gate, up)) && s.f32("gate", y) {
		s.quads("gate", []tensor{y, gate, up}, int(f))
	}
}

// GateBackward gives dGate and dUp.
func (s *Stream) GateBackward(dGate, dUp, dy, gate, up tensor, f gpustage.Activation) {
	if !s.Refuse(gpustage.CheckPair("gate backward", dGate, dUp, dy, gate, up)) && s.f32("gate backward", dy) {
		s.quads("gate_backward", []tensor{dGate, dUp, dy, gate, up}, int(f))
	}
}

// Rotary turns pairs of features.
func (s *Stream) Rotary(y, x tensor, o gpustage.Rotary) {
	if s.Refuse(gpustage.CheckRotary(y, x, o)) || !s.f32("rotary", x) {
		return
	}
	sign := float32(1)
	if o.Inverse {
		sign = -1
	}
	half := o.Table.Cols / 2
	n := x.Rows * (x.Cols / o.HeadDim) * (o.HeadDim - half)
	s.launch("rotary", elements(n), [3]int{block, 1, 1}, 0, y, x, o.Table, flat(o.Index), half, o.HeadDim, sign, x.Rows, x.Cols)
}

// Gather is y[t] = table[index[t]], or += with add. The host has checked the index.
func (s *Stream) Gather(y, table, index tensor, add bool) {
	if !s.Refuse(gpustage.CheckGather("gather", y, table, index)) && s.f32("gather", y) {
		s.launch("gather", elements(y.Rows*ceil(y.Cols, 4)), [3]int{block, 1, 1}, 0, y, table, flat(index), add, s.wide(y, table), y.Rows, y.Cols)
	}
}

// drops are dropout's arguments; without keys nothing drops.
func drops(d gpustage.Dropout) []any {
	if !d.Active() {
		return []any{uint64(0), uint64(0), uint64(0), uint32(0), uint32(0), float32(1)}
	}
	return []any{flat(d.Seqs.Keys), flat(d.Seqs.Row), flat(d.Seqs.Pos), site(d), d.Threshold(), float32(d.KeepScale())}
}

// site is the fourth word of dropout's counter.
func site(d gpustage.Dropout) uint32 { return uint32(d.Layer)<<8 | uint32(d.Site) }

// Dropout is y = residual + dropout(x).
func (s *Stream) Dropout(y, x, residual tensor, d gpustage.Dropout) {
	if !s.Refuse(gpustage.CheckDropout(y, x, residual, d)) && s.f32("dropout", x) {
		s.shaped("dropout", x.Rows, x.Cols, []tensor{y, x, residual}, drops(d)...)
	}
}

// AdamW updates parameters and moments, in one launch whatever their number.
func (s *Stream) AdamW(p, m, v, g tensor, h gpustage.AdamW) {
	if s.Refuse(gpustage.CheckPair("adamw", p, m, v, g)) || !s.f32("adamw", p) {
		return
	}
	c1, c2 := 1-math.Pow(h.Beta1, float64(h.Step)), 1-math.Pow(h.Beta2, float64(h.Step))
	s.quads("adamw", []tensor{p, m, v, g}, float32(h.GradScale), float32(h.Beta1), float32(1-h.Beta1), float32(h.Beta2), float32(1-h.Beta2),
		float32(1-h.LR*h.WeightDecay), float32(h.LR/c1), float32(1/math.Sqrt(c2)), float32(h.Eps))
}

// SGD updates parameters and, with momentum, its buffer.
func (s *Stream) SGD(p, v, g tensor, h gpustage.SGD) {
	if s.Refuse(gpustage.CheckPair("sgd", p, g)) || !v.IsZero() && s.Refuse(gpustage.CheckPair("sgd", p, v)) || !s.f32("sgd", p) {
		return
	}
	s.quads("sgd", []tensor{p, v, g}, float32(h.GradScale), float32(h.LR), float32(h.WeightDecay), float32(h.Momentum))
}

// MatMul is a product and what surrounds it.
func (s *Stream) MatMul(c, a, b tensor, o gpustage.MatMul) {
	m, n, k, err := gpustage.CheckMatMul(c, a, b, o)
	if s.Refuse(err) || !s.f32("matmul", a) || m == 0 || n == 0 {
		return
	}
	p := Product{TransA: o.TransA, TransB: o.TransB, BF16: o.BF16, Alpha: float32(o.Alpha)}
	if o.Alpha == 0 {
		p.Alpha = 1
	}
	plain := o.PreAct.IsZero() && o.GradOf.IsZero() && o.Act == gpustage.Identity && !o.Dropout.Active()
	if plain && !(o.Add && !o.Residual.IsZero()) {
		p.D = s.matrix(c)
		if !o.Residual.IsZero() {
			p.D = s.matrix(o.Residual)
		}
		p.Beta = float32(flag(o.Add || !o.Residual.IsZero()))
		p.Bias = s.address(o.Bias)
		s.multiply(c, a, b, k, p, o)
		return
	}
	// The product goes where its surroundings read it: to PreAct, which is to have it (with the bias), to c, or where c still has to say
	// something, to scratch memory.
	acc, bias := c, o.Bias
	switch {
	case !o.PreAct.IsZero():
		acc, bias = o.PreAct, tensor{}
		p.Bias = s.address(o.Bias)
	case o.Add || same(c, o.Residual) || same(c, o.GradOf):
		acc = s.scratch(gpustage.F32, m, n)
	}
	if s.err != nil {
		return
	}
	p.D = s.matrix(acc)
	s.multiply(acc, a, b, k, p, o)
	args := append([]any{c, acc, flat(bias), uint64(0), 0, o.GradOf, int(o.Act)}, drops(o.Dropout)...)
	args = append(args, o.Residual, o.Add, s.wide(c, acc, bias, o.GradOf, o.Residual), m, n)
	s.launch("epilogue", elements(m*ceil(n, 4)), [3]int{block, 1, 1}, 0, args...)
}

func same(a, b tensor) bool { return !b.IsZero() && a.Mem == b.Mem && a.Off == b.Off }

func (s *Stream) matrix(t tensor) Matrix { return Matrix{s.address(t), t.Rows, t.Cols, t.Stride} }

// bf16Key is of the form that a product in bf16 keeps of a parameter.
type bf16Key struct{}

// BF16Bytes is what it takes.
func BF16Bytes(rows, cols int) int { return rows * bf16Stride(cols) * 2 }

// bf16Stride makes rows of bf16 begin at multiples of 16 bytes, which tensor cores' fast paths want.
func bf16Stride(cols int) int { return (cols + 7) &^ 7 }

// multiply rounds the inputs if need be.
func (s *Stream) multiply(c, a, b tensor, k int, p Product, o gpustage.MatMul) {
	p.C = s.matrix(c)
	if k == 0 { // libraries differ about it
		s.fillProduct(c, p)
		return
	}
	if o.BF16 {
		b = s.rounded(b, o.Forms)
		a = s.rounded(a, nil)
	}
	if s.err != nil {
		return
	}
	p.A, p.B = s.matrix(a), s.matrix(b)
	if err := s.driver.Multiply(p); err != nil {
		s.Fail(fmt.Errorf("matmul: %v x %v: %w", a, b, err))
	}
}

// fillProduct is a product without anything to add up.
func (s *Stream) fillProduct(c tensor, p Product) {
	if p.Beta == 0 {
		s.launch("fill", elements(c.Len()), [3]int{block, 1, 1}, 0, c, uint64(0), 2, c.Rows, c.Cols)
	}
	if p.Bias != 0 || p.Beta != 0 && p.D != p.C {
		s.Fail(fmt.Errorf("matmul: an inner size of 0 with a bias or a residual is not supported on this device"))
	}
}

// rounded is a matrix in bf16.
func (s *Stream) rounded(t tensor, forms *gpustage.Forms) tensor {
	view := func(m gpustage.Memory) tensor {
		return tensor{Mem: m, Rows: t.Rows, Cols: t.Cols, Stride: bf16Stride(t.Cols), DType: gpustage.BF16}
	}
	if forms != nil {
		form, err := forms.Get(s.device, bf16Key{}, BF16Bytes(t.Rows, t.Cols), func(m gpustage.Memory) any { return view(m) }, func(form any) error {
			s.toBF16(form.(tensor), t)
			return s.err
		})
		if err != nil {
			s.Fail(err)
			return tensor{}
		}
		if form != nil {
			return form.(tensor)
		}
	}
	out := s.scratch(gpustage.BF16, t.Rows, bf16Stride(t.Cols))
	if s.err != nil {
		return tensor{}
	}
	out.Cols = t.Cols
	s.toBF16(out, t)
	return out
}
