package ref

import (
	"math"

	"contraflow/gpustage"
)

// RowDot is out[i] = alpha * <a[i], b[i]>.
func (s *Stream) RowDot(out, a, b tensor, alpha float64) {
	if s.Refuse(gpustage.CheckRows("row dot", a, out)) || s.Refuse(gpustage.CheckPair("row dot", a, b)) {
		return
	}
	s.run("row dot", a, func() { rowDot[float32](out, a, b, alpha) }, func() { rowDot[float64](out, a, b, alpha) })
}

func rowDot[T float](out, a, b tensor, alpha float64) {
	for i := range a.Rows {
		sum := 0.0
		for j, x := range row[T](a, i) {
			sum += float64(x) * float64(row[T](b, i)[j])
		}
		vec[T](out)[i] = T(alpha * sum)
	}
}

// RowAxpy is y[i] += alpha * w[i] * x[i].
func (s *Stream) RowAxpy(y, x, w tensor, alpha float64) {
	if s.Refuse(gpustage.CheckRows("row axpy", y, w)) || s.Refuse(gpustage.CheckPair("row axpy", y, x)) {
		return
	}
	s.run("row axpy", y, func() { rowAxpy[float32](y, x, w, alpha) }, func() { rowAxpy[float64](y, x, w, alpha) })
}

func rowAxpy[T float](y, x, w tensor, alpha float64) {
	for i := range y.Rows {
		y, f := row[T](y, i), alpha*float64(vec[T](w)[i])
		for j, v := range row[T](x, i) {
			y[j] += T(f * float64(v))
		}
	}
}

// Mask sets excluded pairs to -Inf.
func (s *Stream) Mask(t tensor, m gpustage.Mask) {
	if s.Refuse(gpustage.CheckMask(t, m)) {
		return
	}
	s.run("mask", t, func() { mask[float32](t, m) }, func() { mask[float64](t, m) })
}

func mask[T float](s tensor, m gpustage.Mask) {
	for _, e := range m {
		rows, cols := vec[int32](e.Row), vec[int32](e.Col)
		for i := range s.Rows {
			s := row[T](s, i)
			for j := range s {
				if rows[i] >= 0 && rows[i] == cols[j] {
					s[j] = T(math.Inf(-1))
				}
			}
		}
	}
}

// MaskAbove sets pairs whose g is above their row's limit to -Inf.
func (s *Stream) MaskAbove(t, g, limit tensor) {
	if s.Refuse(gpustage.CheckPair("mask above", t, g)) || s.Refuse(gpustage.CheckRows("mask above", t, limit)) {
		return
	}
	s.run("mask above", t, func() { maskAbove[float32](t, g, limit) }, func() { maskAbove[float64](t, g, limit) })
}

func maskAbove[T float](s, g, limit tensor) {
	for i := range s.Rows {
		for j, v := range row[T](g, i) {
			if v > vec[T](limit)[i] {
				row[T](s, i)[j] = T(math.Inf(-1))
			}
		}
	}
}

// OnlineLSE folds a tile into a running log-sum-exp (Milakov and Gimelshein, arXiv 1805.02867).
func (s *Stream) OnlineLSE(top, sum, t tensor) {
	if s.Refuse(gpustage.CheckRows("online lse", t, top, sum)) {
		return
	}
	s.run("online lse", t, func() { onlineLSE[float32](top, sum, t) }, func() { onlineLSE[float64](top, sum, t) })
}

func onlineLSE[T float](top, sum, s tensor) {
	for i := range s.Rows {
		was := float64(vec[T](top)[i])
		m := was
		for _, v := range row[T](s, i) {
			m = max(m, float64(v))
		}
		if math.IsInf(m, -1) {
			continue
		}
		z := float64(vec[T](sum)[i]) * math.Exp(was-m)
		for _, v := range row[T](s, i) {
			z += math.Exp(float64(v) - m)
		}
		vec[T](top)[i], vec[T](sum)[i] = T(m), T(z)
	}
}

// SoftmaxTile is s[i, j] = w[i] * exp(s[i, j] - lse[i]), sum[i] += the row's sum.
func (s *Stream) SoftmaxTile(t, sum, lse, w tensor) {
	if s.Refuse(gpustage.CheckRows("softmax tile", t, sum, lse, w)) {
		return
	}
	s.run("softmax tile", t, func() { softmaxTile[float32](t, sum, lse, w) }, func() { softmaxTile[float64](t, sum, lse, w) })
}

func softmaxTile[T float](s, sum, lse, w tensor) {
	for i := range s.Rows {
		l, f := float64(vec[T](lse)[i]), float64(vec[T](w)[i])
		total := 0.0
		for j, v := range row[T](s, i) {
			p := f * math.Exp(float64(v)-l)
			row[T](s, i)[j] = T(p)
			total += p
		}
		vec[T](sum)[i] += T(total)
	}
}
