package ref

import (
	"math"

	"contraflow/gpustage"
)

// SumSquares adds the sum of squares to out.
func (s *Stream) SumSquares(out, x tensor) {
	if s.Refuse(gpustage.CheckSum(out, x)) {
		return
	}
	s.run("sum of squares", x, func() { sumSquares[float32](out, x) }, func() { sumSquares[float64](out, x) })
}

func sumSquares[T float](out, x tensor) {
	sum := 0.0
	for i := range x.Rows {
		for _, v := range row[T](x, i) {
			sum += float64(v) * float64(v)
		}
	}
	vec[float64](out)[0] += sum
}

// AdamW updates parameters and moments.
func (s *Stream) AdamW(p, m, v, g tensor, h gpustage.AdamW) {
	if s.Refuse(gpustage.CheckAdamW(p, m, v, g, h)) {
		return
	}
	h.EachRun(p, m, v, g, func(p, m, v, g tensor, h gpustage.AdamW) {
		s.run("adamw", p, func() { adamW[float32](p, m, v, g, h) }, func() { adamW[float64](p, m, v, g, h) })
	})
}

func adamW[T float](pt, mt, vt, gt tensor, h gpustage.AdamW) {
	c1 := 1 - math.Pow(h.Beta1, float64(h.Step))
	c2 := 1 - math.Pow(h.Beta2, float64(h.Step))
	for i := range pt.Rows {
		p, m, v := row[T](pt, i), row[T](mt, i), row[T](vt, i)
		for j, gj := range row[T](gt, i) {
			g := float64(gj) * h.GradScale
			mj := h.Beta1*float64(m[j]) + (1-h.Beta1)*g
			vj := h.Beta2*float64(v[j]) + (1-h.Beta2)*g*g
			x := float64(p[j]) * (1 - h.LR*h.WeightDecay)
			x -= h.LR * (mj / c1) / (math.Sqrt(vj/c2) + h.Eps)
			p[j], m[j], v[j] = T(x), T(mj), T(vj)
		}
	}
}

// SGD updates parameters and, with momentum, its buffer.
func (s *Stream) SGD(p, v, g tensor, h gpustage.SGD) {
	if s.Refuse(gpustage.CheckPair("sgd", p, g)) || !v.IsZero() && s.Refuse(gpustage.CheckPair("sgd", p, v)) {
		return
	}
	s.run("sgd", p, func() { sgd[float32](p, v, g, h) }, func() { sgd[float64](p, v, g, h) })
}

func sgd[T float](pt, vt, gt tensor, h gpustage.SGD) {
	for i := range pt.Rows {
		p := row[T](pt, i)
		for j, gj := range row[T](gt, i) {
			d := float64(gj)*h.GradScale + h.WeightDecay*float64(p[j])
			if !vt.IsZero() {
				v := row[T](vt, i)
				d += h.Momentum * float64(v[j])
				v[j] = T(d)
			}
			p[j] = T(float64(p[j]) - h.LR*d)
		}
	}
}
