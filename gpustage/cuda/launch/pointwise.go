package launch

import (
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
	s.convert(dst, src)
}

func (s *Stream) convert(dst, src tensor) {
	for ts := range s.pieces(dst, src) {
		to, from := ts[0], ts[1]
		s.pointwise("convert", 1, to.Rows, to.Cols, to, int(to.DType), from, int(from.DType))
	}
}

func (s *Stream) toBF16(dst, src tensor) {
	s.quads("to_bf16", []tensor{dst, src})
}

// toPairs is x as the sum of two numbers of bf16.
func (s *Stream) toPairs(x tensor) (hi, lo tensor) {
	hi, lo = s.scratchBF16(x), s.scratchBF16(x)
	if s.err == nil {
		s.quads("to_pairs", []tensor{hi, lo, x})
	}
	return hi, lo
}

// Fill sets every element.
func (s *Stream) Fill(dst tensor, value float64) {
	if s.Refuse(gpustage.CheckFill(dst)) {
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
	if bits == 0 && s.zeros(dst) {
		return
	}
	shift := map[int]int{2: 1, 4: 2, 8: 3}[dst.DType.Size()]
	for ts := range s.pieces(dst) {
		s.pointwise("fill", 1, ts[0].Rows, ts[0].Cols, ts[0], bits, shift)
	}
}

// Add is y = a + b.
func (s *Stream) Add(y, a, b tensor) {
	if s.Refuse(gpustage.CheckPair("add", y, a, b)) {
		return
	}
	if y.DType == gpustage.F64 {
		for ts := range s.pieces(y, a, b) {
			s.pointwise("add_f64", 1, ts[0].Rows, ts[0].Cols, ts[0], ts[1], ts[2])
		}
	} else if s.f32("add", y) {
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
	if !s.Refuse(gpustage.CheckPair("activate", all32(y, x)...)) && s.f32("activate", as32(y)) {
		s.activate(y, x, f)
	}
}

func (s *Stream) activate(y, x tensor, f gpustage.Activation) {
	if !half(y) || !half(x) {
		s.quads("activation", []tensor{y, x}, int(f), halves(y, x))
		return
	}
	for part := range s.pieces(y, x) {
		y, x := part[0], part[1]
		if y.Cols%8 == 0 && s.eights(y) && s.eights(x) {
			s.pointwise("activation_wide", 8, y.Rows, y.Cols, y, x, int(f))
		} else {
			s.pointwise("activation", 4, y.Rows, y.Cols, y, x, int(f), halves(y, x), s.wide(y, x))
		}
	}
}

// eights tells whether the rows of a tensor of bf16 may be moved eight elements at a time.
func (s *Stream) eights(t tensor) bool {
	return s.address(t)%16 == 0 && (t.Rows == 1 || t.Stride%8 == 0)
}

// ActivateBackward is dx = dy * f'(x).
func (s *Stream) ActivateBackward(dx, dy, x tensor, f gpustage.Activation) {
	if !s.Refuse(gpustage.CheckPair("activate backward", all32(dx, dy, x)...)) && s.f32("activate backward", as32(x)) {
		s.quads("activation_backward", []tensor{dx, dy, x}, int(f), halves(dx, dy, x))
	}
}

// Gate is y = f(gate) * up.
func (s *Stream) Gate(y, gate, up tensor, f gpustage.Activation) {
	if !s.Refuse(gpustage.CheckPair("gate", all32(y, gate, up)...)) && s.f32("gate", as32(y)) {
		s.quads("gate", []tensor{y, gate, up}, int(f), halves(y, gate, up))
	}
}

// GateBackward gives dGate and dUp, and what Gate gives again.
func (s *Stream) GateBackward(dGate, dUp, again, dy, gate, up tensor, f gpustage.Activation) {
	ts := []tensor{dGate, dUp, again, dy, gate, up}
	as := all32(ts...)
	if !s.Refuse(gpustage.CheckGateBackward(as[0], as[1], as[2], as[3], as[4], as[5])) && s.f32("gate backward", as32(dy)) {
		s.quads("gate_backward", ts, int(f), halves(ts...))
	}
}

// Rotary turns pairs of features.
func (s *Stream) Rotary(y, x tensor, o gpustage.Rotary) {
	if s.Refuse(gpustage.CheckRotary(as32(y), as32(x), o)) || !s.f32("rotary", as32(x)) {
		return
	}
	sign := float32(1)
	if o.Inverse {
		sign = -1
	}
	s.launch("rotary", [3]int{min(x.Rows, mostBlocks), 1, 1}, [3]int{32, min(8, x.Cols/o.HeadDim), 1}, 0, y, x, o.Table, flat(o.Index), o.Table.Cols/2,
		o.HeadDim, sign, halves(y, x), x.Rows, x.Cols)
}

// Gather is y[t] = table[index[t]], or += with add. The host has checked the index.
func (s *Stream) Gather(y, table, index tensor, add bool) {
	if !s.Refuse(gpustage.CheckGather("gather", y, table, index)) && s.f32("gather", y) {
		s.pointwise("gather", 4, y.Rows, y.Cols, y, table, flat(index), add, s.wide(y, table))
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
	if !s.Refuse(gpustage.CheckDropout(as32(y), as32(x), residual, d)) && s.f32("dropout", as32(x)) {
		args := append([]any{y, x, residual}, drops(d)...)
		s.pointwise("dropout", 4, x.Rows, x.Cols, append(args, halves(y, x), s.wide(y, x, residual))...)
	}
}

// SGD updates parameters and, with momentum, its buffer.
func (s *Stream) SGD(p, v, g tensor, h gpustage.SGD) {
	ts := []tensor{p, g, v}
	if v.IsZero() {
		ts = ts[:2]
	}
	if s.Refuse(gpustage.CheckPair("sgd", ts...)) || !s.f32("sgd", p) {
		return
	}
	s.quads("sgd", []tensor{p, v, g}, float32(h.GradScale), float32(h.LR), float32(h.WeightDecay), float32(h.Momentum))
}
