package cpu

import "contraflow/gpustage"

// SumSquares adds the sum of squares to out: pieces of a fixed size, added in order.
func (s *Stream) SumSquares(out, x gpustage.Tensor) {
	if !isF32(x) || !x.Contiguous() {
		s.Stream.SumSquares(out, x)
		return
	}
	if s.Refuse(gpustage.CheckSum(out, x)) || x.Len() == 0 {
		return
	}
	vs := f32(x)
	sums := make([]float64, (len(vs)+elements-1)/elements)
	s.parts(len(vs), elements, func(p, lo, hi int) { sums[p] = s.v.SumSquares(vs[lo:hi]) })
	total := gpustage.Slice[float64](out)
	for _, v := range sums {
		total[0] += v
	}
}

// AdamW updates parameters and moments.
func (s *Stream) AdamW(p, m, v, g gpustage.Tensor, h gpustage.AdamW) {
	if !isF32(p) {
		s.Stream.AdamW(p, m, v, g, h)
		return
	}
	if s.Refuse(gpustage.CheckAdamW(p, m, v, g, h)) {
		return
	}
	h.EachRun(p, m, v, g, func(p, m, v, g gpustage.Tensor, h gpustage.AdamW) {
		s.pointwise(func(x [][]float32) { s.v.AdamW(x[0], x[1], x[2], x[3], h) }, p, m, v, g)
	})
}

// SGD updates parameters and, with momentum, its buffer.
func (s *Stream) SGD(p, v, g gpustage.Tensor, h gpustage.SGD) {
	if !isF32(p) {
		s.Stream.SGD(p, v, g, h)
		return
	}
	if s.Refuse(gpustage.CheckPair("sgd", p, g)) {
		return
	}
	if v.IsZero() {
		s.pointwise(func(x [][]float32) { s.v.SGD(x[0], nil, x[1], h) }, p, g)
		return
	}
	if !s.Refuse(gpustage.CheckPair("sgd", p, v)) {
		s.pointwise(func(x [][]float32) { s.v.SGD(x[0], x[1], x[2], h) }, p, v, g)
	}
}
