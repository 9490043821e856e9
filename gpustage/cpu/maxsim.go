package cpu

import (
	"math"

	"contraflow/gpustage"
)

// SegmentMax is top[t, d] = max of s[t, cu[d]:cu[d+1]], and at[t, d] its column: the largest by the vector kernel, whether there are NaNs
// by another, then its place by comparing, in plain Go. For segments of 128 the first and the last are 45 ns beside the 390 ns that one
// thread's product takes for them at 384 dimensions (BenchmarkMaxSim in package loss); a scan for NaNs in plain Go would be 280 more.
func (s *Stream) SegmentMax(top, at, x, cu gpustage.Tensor) {
	if !isF32(x) {
		s.Stream.SegmentMax(top, at, x, cu)
		return
	}
	if s.Refuse(gpustage.CheckSegmentMax(top, at, x, cu)) {
		return
	}
	ends := ints(cu)
	s.eachRow(x.Rows, 2*x.Cols, func(t int) {
		r, best, place := row(x, t), row(top, t), ints(at.Span(t, t+1))
		for d := range best {
			best[d], place[d] = 0, -1
			if ends[d] == ends[d+1] {
				continue
			}
			segment := r[ends[d]:ends[d+1]]
			best[d] = s.v.Max(segment)
			nan := math.IsNaN(s.v.SumSquares(segment)) // Max passes over NaNs
			if nan {
				best[d] = float32(math.NaN())
			}
			for n, v := range segment {
				if v == best[d] || nan && v != v {
					place[d] = ends[d] + int32(n)
					break
				}
			}
		}
	})
}

// MaxSimBackward is dx[t] += g[t, d] y[at[t, d]], dy[at[t, d]] += g[t, d] x[t]: once by rows, then by segments, whose rows of dy
// are their own, so that threads never meet and sums have one order.
func (s *Stream) MaxSimBackward(dx, dy, g, at, x, y gpustage.Tensor) {
	if !isF32(x) {
		s.Stream.MaxSimBackward(dx, dy, g, at, x, y)
		return
	}
	if s.Refuse(gpustage.CheckMaxSimBackward(dx, dy, g, at, x, y)) {
		return
	}
	s.eachRow(x.Rows, g.Cols*x.Cols, func(t int) {
		to, gs := row(dx, t), row(g, t)
		for d, n := range ints(at.Span(t, t+1)) {
			if n >= 0 {
				s.v.Axpy(to, row(y, int(n)), gs[d])
			}
		}
	})
	s.rows(g.Cols, x.Rows*x.Cols, func(_ *worker, lo, hi int) {
		for t := range x.Rows {
			from, gs, places := row(x, t), row(g, t), ints(at.Span(t, t+1))
			for d := lo; d < hi; d++ {
				if n := places[d]; n >= 0 {
					s.v.Axpy(row(dy, int(n)), from, gs[d])
				}
			}
		}
	})
}
