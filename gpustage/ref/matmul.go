package ref

import (
	"errors"

	"contraflow/gpustage"
)

// MatMul is c = epilogue(alpha * op(a) x op(b)).
func (s *Stream) MatMul(c, a, b tensor, o gpustage.MatMul) {
	_, _, k, err := gpustage.CheckMatMul(c, a, b, o)
	if err == nil && c.IsZero() {
		err = errors.New("matmul: c is missing, and this device gives PreAct beside it alone")
	}
	if s.Refuse(err) {
		return
	}
	s.run("matmul", c, func() { matmul[float32](c, a, b, k, o, s.jump) }, func() { matmul[float64](c, a, b, k, o, s.jump) })
	if !o.ColumnSum.IsZero() {
		s.ColumnSum(o.ColumnSum, a)
	}
	if !o.ResultSum.IsZero() {
		s.ColumnSum(o.ResultSum, c)
	}
	o.Norm.Of(s, c)
}

func matmul[T float](c, a, b tensor, k int, o gpustage.MatMul, jump Jump) {
	alpha := o.Alpha
	if alpha == 0 {
		alpha = 1
	}
	as, bs := operand[T](a, c.Rows, k, o.TransA, o.BF16), operand[T](b, c.Cols, k, !o.TransB, o.BF16)
	slope, acc := slopes[T](o.GradOf, o.Act, jump), make([]float64, c.Cols)
	for i := range c.Rows {
		x := as[i*k : (i+1)*k]
		j := 0
		for ; j+4 <= len(acc); j += 4 { // four sums, none of which waits for another: all tests compute their truth here
			y0, y1, y2, y3 := bs[j*k:][:k], bs[(j+1)*k:][:k], bs[(j+2)*k:][:k], bs[(j+3)*k:][:k]
			var s0, s1, s2, s3 float64
			for p, v := range x {
				s0 += v * y0[p]
				s1 += v * y1[p]
				s2 += v * y2[p]
				s3 += v * y3[p]
			}
			acc[j], acc[j+1], acc[j+2], acc[j+3] = alpha*s0, alpha*s1, alpha*s2, alpha*s3
		}
		for ; j < len(acc); j++ {
			sum := 0.0
			for p, v := range bs[j*k:][:k] {
				sum += x[p] * v
			}
			acc[j] = alpha * sum
		}
		epilogue[T](c, acc, i, o, slope)
	}
}

// operand is a matrix as rows of k in float64, transposed if it is stored the other way, rounded to bf16 if need be.
func operand[T float](t tensor, rows, k int, trans, bf16 bool) []float64 {
	out, x := make([]float64, rows*k), gpustage.Slice[T](t)
	for i := range rows {
		for p := range k {
			at := i*t.Stride + p
			if trans {
				at = p*t.Stride + i
			}
			v := float64(x[at])
			if bf16 {
				v = float64(gpustage.RoundBF16(float32(v)))
			}
			out[i*k+p] = v
		}
	}
	return out
}

// epilogue finishes row i of a product.
func epilogue[T float](c tensor, acc []float64, i int, o gpustage.MatMul, slope func(float64) float64) {
	keep := tokenMask(o.Dropout, i)
	out := row[T](c, i)
	for j, x := range acc {
		if !o.Bias.IsZero() {
			x += float64(vec[T](o.Bias)[j])
		}
		if !o.PreAct.IsZero() {
			row[T](o.PreAct, i)[j] = T(x)
		}
		if !o.GradOf.IsZero() {
			pre := float64(row[T](o.GradOf, i)[j])
			x *= slope(pre)
			if !o.Again.IsZero() {
				row[T](o.Again, i)[j] = T(act(pre, o.Act))
			}
		} else {
			x = act(x, o.Act)
		}
		x *= keep(j)
		if !o.Residual.IsZero() {
			x += float64(row[T](o.Residual, i)[j])
		}
		if o.Add {
			x += float64(out[j])
		}
		out[j] = T(x)
	}
}

// Epilogue finishes a product whose sums, alpha included, were computed elsewhere: c = epilogue(acc).
func (s *Stream) Epilogue(c, acc tensor, o gpustage.MatMul) {
	if s.Refuse(gpustage.CheckPair("matmul's epilogue", c, acc)) {
		return
	}
	s.run("matmul's epilogue", c, func() { epilogueRows[float32](c, acc, o, s.jump) }, func() { epilogueRows[float64](c, acc, o, s.jump) })
}

func epilogueRows[T float](c, acc tensor, o gpustage.MatMul, jump Jump) {
	slope, sums := slopes[T](o.GradOf, o.Act, jump), make([]float64, c.Cols)
	for i := range c.Rows {
		for j, v := range row[T](acc, i) {
			sums[j] = float64(v)
		}
		epilogue[T](c, sums, i, o, slope)
	}
}
