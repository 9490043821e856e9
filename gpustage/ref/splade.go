package ref

import (
	"math"

	"contraflow/gpustage"
)

// Splade is y[b, v] = f(top[v, b] + bias[v]), f(x) = log(1 + max(x, 0)) once or twice, and at[v, b] = -1 where that is 0.
func (s *Stream) Splade(y, at, top, bias tensor, twice bool) {
	if s.Refuse(gpustage.CheckSplade(y, at, top, bias)) {
		return
	}
	s.run("splade", top, func() { splade[float32](y, at, top, bias, twice, s.jump) }, func() { splade[float64](y, at, top, bias, twice, s.jump) })
}

func splade[T float](y, at, top, bias tensor, twice bool, jump Jump) {
	scale := 0.0
	if jump != nil {
		scale = rms[T](top)
	}
	for v := range top.Rows {
		place := row[int32](at, v)
		for b, x := range row[T](top, v) {
			if !bias.IsZero() {
				x += vec[T](bias)[v]
			}
			jumps := jump != nil && jump(float64(x), math.Abs(float64(x))/scale)
			switch {
			case x <= 0 != jumps: // a NaN stays one
				x, place[b] = 0, -1
			case jumps:
				x = math.SmallestNonzeroFloat32
			}
			x = T(math.Log1p(float64(x)))
			if twice {
				x = T(math.Log1p(float64(x)))
			}
			row[T](y, b)[v] = x
		}
	}
}

// SpladeBackward is g[v, b] = dy[b, v] * f'(x), where y[b, v] = f(x) is not 0, and dBias[v] += the sum of g[v]. With y = log(1+x) it is 1/(1+x) =
// exp(-y); with y = log(1+u), u = log(1+x), it is 1/(1+u) * 1/(1+x) = exp(-y - u).
func (s *Stream) SpladeBackward(g, dBias, dy, y tensor, twice bool) {
	if s.Refuse(gpustage.CheckSpladeBackward(g, dBias, dy, y)) {
		return
	}
	s.run("splade backward", y, func() { spladeBackward[float32](g, dBias, dy, y, twice) }, func() { spladeBackward[float64](g, dBias, dy, y, twice) })
}

func spladeBackward[T float](g, dBias, dy, y tensor, twice bool) {
	for v := range g.Rows {
		sum := 0.0
		for b := range row[T](g, v) {
			d, out := 0.0, float64(row[T](y, b)[v])
			if out != 0 {
				if twice {
					out += math.Expm1(out)
				}
				d = float64(row[T](dy, b)[v]) * math.Exp(-out)
			}
			row[T](g, v)[b] = T(d)
			sum += d
		}
		if !dBias.IsZero() {
			vec[T](dBias)[v] += T(sum)
		}
	}
}

// CountActive is out[i] = how many elements of x[i] are not 0.
func (s *Stream) CountActive(out, x tensor) {
	if s.Refuse(gpustage.CheckRows("count active", x, out)) {
		return
	}
	s.run("count active", x, func() { countActive[float32](out, x) }, func() { countActive[float64](out, x) })
}

func countActive[T float](out, x tensor) {
	for i := range x.Rows {
		n := 0
		for _, v := range row[T](x, i) {
			if v != 0 {
				n++
			}
		}
		vec[T](out)[i] = T(n)
	}
}
