package cpu

import (
	"math"

	"contraflow/gpustage"
)

// Splade and its backward are the definition's loops, shared by threads: a feature is one thread's.
func (s *Stream) Splade(y, at, top, bias gpustage.Tensor, twice bool) {
	if !isF32(top) {
		s.Stream.Splade(y, at, top, bias, twice)
		return
	}
	if s.Refuse(gpustage.CheckSplade(y, at, top, bias)) {
		return
	}
	out := f32Rows(y)
	s.eachRow(top.Rows, spladeCost*top.Cols, func(v int) {
		place, add := ints(at.Span(v, v+1)), float32(0)
		if !bias.IsZero() {
			add = f32(bias)[v]
		}
		for b, x := range row(top, v) {
			switch x += add; {
			case x <= 0:
				x, place[b] = 0, -1
			case twice:
				x = float32(math.Log1p(float64(float32(math.Log1p(float64(x))))))
			default:
				x = float32(math.Log1p(float64(x)))
			}
			out[b][v] = x
		}
	})
}

// SpladeBackward gives g and adds to dBias.
func (s *Stream) SpladeBackward(g, dBias, dy, y gpustage.Tensor, twice bool) {
	if !isF32(y) {
		s.Stream.SpladeBackward(g, dBias, dy, y, twice)
		return
	}
	if s.Refuse(gpustage.CheckSpladeBackward(g, dBias, dy, y)) {
		return
	}
	ds, ys := f32Rows(dy), f32Rows(y)
	s.eachRow(g.Rows, spladeCost*g.Cols, func(v int) {
		sum, to := 0.0, row(g, v)
		for b := range to {
			to[b] = 0
			out := float64(ys[b][v])
			if out == 0 {
				continue
			}
			if twice {
				out += math.Expm1(out)
			}
			d := float64(ds[b][v]) * math.Exp(-out)
			to[b] = float32(d)
			sum += d
		}
		if !dBias.IsZero() {
			f32(dBias)[v] += float32(sum)
		}
	})
}

// CountActive counts rows, each by a thread.
func (s *Stream) CountActive(out, x gpustage.Tensor) {
	if !isF32(x) {
		s.Stream.CountActive(out, x)
		return
	}
	if s.Refuse(gpustage.CheckRows("count active", x, out)) {
		return
	}
	s.eachRow(x.Rows, x.Cols, func(i int) {
		n := 0
		for _, v := range row(x, i) {
			if v != 0 {
				n++
			}
		}
		f32(out)[i] = float32(n)
	})
}

// spladeCost is what a logarithm or an exponential of plain Go costs beside an element that is copied.
const spladeCost = 20

func f32Rows(t gpustage.Tensor) [][]float32 {
	rows := make([][]float32, t.Rows)
	for i := range rows {
		rows[i] = row(t, i)
	}
	return rows
}
