package cpu

import (
	"math"

	"contraflow/gpustage"
)

// What newer architectures have where BERT has layer norms, activations and position embeddings. Each is a few of vec's passes over a
// row, or a piece of one, that stays in the first-level cache. Fusing them further is not worth it: in a training step of Qwen3's
// shape (4 layers of 512, 2,048 tokens, AVX2, one thread) RMSNorm takes 2.3 % of the time, Gate 1.8 %, Rotary 0.6 %, products 88 %.

// RMSNorm normalizes groups of features.
func (s *Stream) RMSNorm(y, rstd, x, gamma gpustage.Tensor, eps, offset float64) {
	if !isF32(x) {
		s.Stream.RMSNorm(y, rstd, x, gamma, eps, offset)
		return
	}
	if s.Refuse(gpustage.CheckRMSNorm("rms norm", y, x, rstd, gamma, gpustage.Tensor{})) {
		return
	}
	g, rs := s.shifted(gamma, offset), f32(rstd)
	d, groups := len(g), x.Cols/len(g)
	s.eachRow(x.Rows, 2*x.Cols, func(t int) {
		x, y := row(x, t), row(y, t)
		for k := range groups {
			x, y := x[k*d:(k+1)*d], y[k*d:(k+1)*d]
			r := float32(1 / math.Sqrt(s.v.SumSquares(x)/float64(d)+eps))
			rs[t*groups+k] = r
			s.v.Scale(y, x, r)
			s.v.Mul(y, y, g)
		}
	})
}

// shifted is gamma + offset, valid until the next call.
func (s *Stream) shifted(gamma gpustage.Tensor, offset float64) []float32 {
	g := f32(gamma)
	if offset == 0 {
		return g
	}
	out := grow(&s.scratch, len(g))
	for j := range out {
		out[j] = g[j] + float32(offset)
	}
	return out
}

// RMSNormBackward gives dx and adds to dGamma.
func (s *Stream) RMSNormBackward(dx, dGamma, dy, x, rstd, gamma gpustage.Tensor, offset float64) {
	if !isF32(x) {
		s.Stream.RMSNormBackward(dx, dGamma, dy, x, rstd, gamma, offset)
		return
	}
	if s.Refuse(gpustage.CheckRMSNorm("rms norm backward", dx, x, rstd, gamma, dGamma)) || s.Refuse(gpustage.CheckPair("rms norm backward", x, dy)) || x.Len() == 0 {
		return
	}
	g, rs := s.shifted(gamma, offset), f32(rstd)
	d, groups := len(g), x.Cols/len(g)
	parts := (x.Rows + sumRows - 1) / sumRows
	sums := grow(&s.sums, parts*d)
	clear(sums)
	s.d.pool.Run(parts, func(w, p int) {
		sum, e := sums[p*d:(p+1)*d], s.workers[w].take(d)
		for t := p * sumRows; t < min(x.Rows, (p+1)*sumRows); t++ {
			dx, dy, x := row(dx, t), row(dy, t), row(x, t)
			for k := range groups {
				dx, dy, x, r := dx[k*d:(k+1)*d], dy[k*d:(k+1)*d], x[k*d:(k+1)*d], rs[t*groups+k]
				s.v.MulAdd(sum, dy, x, r)
				s.v.Mul(e, dy, g)
				s.v.Axpby(dx, e, x, r, -r*r*r*s.v.Dot(e, x)/float32(d))
			}
		}
	})
	if !dGamma.IsZero() {
		s.addParts(f32(dGamma), sums)
	}
}

// gatePiece is how many elements Gate's passes do at a time: three rows of them stay in the first-level cache.
const gatePiece = 1024

// gatedRows runs f on pieces of rows.
func (s *Stream) gatedRows(y gpustage.Tensor, f func(w *worker, t, lo, hi int)) {
	s.rows(y.Rows, 4*y.Cols, func(w *worker, from, to int) {
		for t := from; t < to; t++ {
			for lo := 0; lo < y.Cols; lo += gatePiece {
				f(w, t, lo, min(y.Cols, lo+gatePiece))
			}
		}
	})
}

// Gate is y = f(gate) * up.
func (s *Stream) Gate(y, gate, up gpustage.Tensor, f gpustage.Activation) {
	if !isF32(y) {
		s.Stream.Gate(y, gate, up, f)
		return
	}
	if s.Refuse(gpustage.CheckPair("gate", y, gate, up)) {
		return
	}
	s.gatedRows(y, func(w *worker, t, lo, hi int) {
		a := w.take(gatePiece)[:hi-lo] // y may be up
		s.v.Act(f, a, part(gate, t, lo, hi))
		s.v.Mul(part(y, t, lo, hi), a, part(up, t, lo, hi))
	})
}

// GateBackward is dGate = dy * up * f'(gate), dUp = dy * f(gate), again = f(gate) * up.
func (s *Stream) GateBackward(dGate, dUp, again, dy, gate, up gpustage.Tensor, f gpustage.Activation) {
	if !isF32(dy) {
		s.Stream.GateBackward(dGate, dUp, again, dy, gate, up, f)
		return
	}
	if s.Refuse(gpustage.CheckGateBackward(dGate, dUp, again, dy, gate, up)) {
		return
	}
	s.gatedRows(dy, func(w *worker, t, lo, hi int) {
		buf := w.take(3 * gatePiece)
		a, b, c := buf[:hi-lo], buf[gatePiece:][:hi-lo], buf[2*gatePiece:][:hi-lo]
		g, u, d := part(gate, t, lo, hi), part(up, t, lo, hi), part(dy, t, lo, hi)
		s.v.Act(f, a, g)
		s.v.Mul(b, d, u)
		if !again.IsZero() {
			s.v.Mul(c, a, u)
		}
		s.v.Mul(part(dUp, t, lo, hi), d, a)
		s.v.ActBackward(f, part(dGate, t, lo, hi), b, g)
		if !again.IsZero() {
			copy(part(again, t, lo, hi), c)
		}
	})
}

// Rotary turns every head by its token's angles.
func (s *Stream) Rotary(y, x gpustage.Tensor, o gpustage.Rotary) {
	if !isF32(x) {
		s.Stream.Rotary(y, x, o)
		return
	}
	if s.Refuse(gpustage.CheckRotary(y, x, o)) || s.Refuse(gpustage.CheckIndex("rotary", o.Table, o.Index)) {
		return
	}
	index, r, half := ints(o.Index), o.Table.Cols, o.Table.Cols/2
	s.eachRow(x.Rows, 2*x.Cols, func(t int) {
		x, y, angles := row(x, t), row(y, t), row(o.Table, int(index[t]))
		cos, sin := angles[:half], angles[half:]
		for h := 0; h < len(x); h += o.HeadDim {
			a, b, c, d := x[h:h+half], x[h+half:h+r], y[h:h+half], y[h+half:h+r]
			if o.Inverse {
				a, b, c, d = b, a, d, c
			}
			s.v.Rotate(c, d, a, b, cos, sin)
			copy(y[h+r:h+o.HeadDim], x[h+r:h+o.HeadDim])
		}
	})
}

// zeros are n zeros, which nobody may write.
func (s *Stream) zeros(n int) []float32 { return grow(&s.zero, n) }
