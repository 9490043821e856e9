package cpu

import (
	"math"

	"contraflow/gpustage"
)

// RowDot is out[i] = alpha * <a[i], b[i]>.
func (s *Stream) RowDot(out, a, b gpustage.Tensor, alpha float64) {
	if !isF32(a) {
		s.Stream.RowDot(out, a, b, alpha)
		return
	}
	if s.Refuse(gpustage.CheckRows("row dot", a, out)) || s.Refuse(gpustage.CheckPair("row dot", a, b)) {
		return
	}
	o := f32(out)
	s.eachRow(a.Rows, a.Cols, func(i int) { o[i] = float32(alpha) * s.v.Dot(row(a, i), row(b, i)) })
}

// RowAxpy is y[i] += alpha * w[i] * x[i].
func (s *Stream) RowAxpy(y, x, w gpustage.Tensor, alpha float64) {
	if !isF32(y) {
		s.Stream.RowAxpy(y, x, w, alpha)
		return
	}
	if s.Refuse(gpustage.CheckRows("row axpy", y, w)) || s.Refuse(gpustage.CheckPair("row axpy", y, x)) {
		return
	}
	ws := f32(w)
	s.eachRow(y.Rows, y.Cols, func(i int) { s.v.Axpy(row(y, i), row(x, i), float32(alpha)*ws[i]) })
}

// Mask sets excluded pairs to -Inf.
func (s *Stream) Mask(t gpustage.Tensor, m gpustage.Mask) {
	if !isF32(t) {
		s.Stream.Mask(t, m)
		return
	}
	if s.Refuse(gpustage.CheckMask(t, m)) || len(m) == 0 {
		return
	}
	s.eachRow(t.Rows, len(m)*t.Cols, func(i int) {
		for _, e := range m {
			s.v.MaskRow(row(t, i), ints(e.Row)[i], ints(e.Col))
		}
	})
}

// MaskAbove sets pairs whose g is above their row's limit to -Inf.
func (s *Stream) MaskAbove(t, g, limit gpustage.Tensor) {
	if !isF32(t) {
		s.Stream.MaskAbove(t, g, limit)
		return
	}
	if s.Refuse(gpustage.CheckPair("mask above", t, g)) || s.Refuse(gpustage.CheckRows("mask above", t, limit)) {
		return
	}
	inf, limits := float32(math.Inf(-1)), f32(limit)
	s.eachRow(t.Rows, 2*t.Cols, func(i int) {
		x, l := row(t, i), limits[i]
		for j, v := range row(g, i) {
			if v > l { // few are: the branch is predicted, and a tile takes a tenth of its product's time
				x[j] = inf
			}
		}
	})
}

// OnlineLSE folds a tile into running log-sum-exps.
func (s *Stream) OnlineLSE(top, sum, t gpustage.Tensor) {
	if !isF32(t) {
		s.Stream.OnlineLSE(top, sum, t)
		return
	}
	if s.Refuse(gpustage.CheckRows("online lse", t, top, sum)) {
		return
	}
	m, z := f32(top), f32(sum)
	s.eachRow(t.Rows, 2*t.Cols, func(i int) { m[i], z[i] = s.v.OnlineLSE(m[i], z[i], row(t, i)) })
}

// SoftmaxTile is s[i, j] = w[i] * exp(s[i, j] - lse[i]), sum[i] += the row's sum.
func (s *Stream) SoftmaxTile(t, sum, lse, w gpustage.Tensor) {
	if !isF32(t) {
		s.Stream.SoftmaxTile(t, sum, lse, w)
		return
	}
	if s.Refuse(gpustage.CheckRows("softmax tile", t, sum, lse, w)) {
		return
	}
	total, l, ws := f32(sum), f32(lse), f32(w)
	s.eachRow(t.Rows, 2*t.Cols, func(i int) {
		x := row(t, i)
		total[i] += ws[i] * s.v.ExpSum(x, x, l[i])
		if ws[i] != 1 {
			s.v.Scale(x, x, ws[i])
		}
	})
}
