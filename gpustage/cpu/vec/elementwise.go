package vec

import (
	"math"

	"contraflow/gpustage"
)

// Add is y = a + b.
func (k *Kernels) Add(y, a, b []float32) { k.add(y, a[:len(y)], b[:len(y)]) }

// Mul is y = a*b.
func (k *Kernels) Mul(y, a, b []float32) { k.mul(y, a[:len(y)], b[:len(y)]) }

// MulAdd is y += alpha*a*b.
func (k *Kernels) MulAdd(y, a, b []float32, alpha float32) {
	k.mulAdd(y, a[:len(y)], b[:len(y)], alpha)
}

// Rotate is y = a*cos - b*sin and z = b*cos + a*sin. y may be a, and then z b: a rotation in place. With y and z, and a and
// b, exchanged it turns the other way.
func (k *Kernels) Rotate(y, z, a, b, cos, sin []float32) {
	n := len(y)
	k.rotate(y, z[:n], a[:n], b[:n], cos[:n], sin[:n])
}

// Axpy is y += alpha*x.
func (k *Kernels) Axpy(y, x []float32, alpha float32) { k.axpy(y, x[:len(y)], alpha) }

// Scale is y = alpha*x.
func (k *Kernels) Scale(y, x []float32, alpha float32) { k.scale(y, x[:len(y)], alpha) }

// Axpby is y = alpha*x + beta*z.
func (k *Kernels) Axpby(y, x, z []float32, alpha, beta float32) {
	k.axpby(y, x[:len(y)], z[:len(y)], alpha, beta)
}

// AddRows adds the first rows of x to sum: sum[j] += x[i, j], summed in float32 in groups of eight rows. Errors grow
// with the number of groups; sum a few hundred rows at a time and then the sums.
func (k *Kernels) AddRows(sum []float32, x Rows, rows int) {
	if len(sum) == 0 {
		return
	}
	x.check(rows, len(sum))
	i := 0
	for ; i+8 <= rows; i += 8 {
		k.addRows(sum, x.X[i*x.Stride:], x.Stride)
	}
	for ; i < rows; i++ {
		k.add(sum, sum, x.Row(i, len(sum)))
	}
}

// Dot is the sum of a*b, in float32.
func (k *Kernels) Dot(a, b []float32) float32 { return k.dot(a, b[:len(a)]) }

// SumSquares is the sum of x's squares, in float64.
func (k *Kernels) SumSquares(x []float32) float64 { return k.sumSquares(x) }

// Max is the largest element that is not NaN, and -Inf if there is none.
func (k *Kernels) Max(x []float32) float32 { return k.largest(x) }

// normFloor is the smallest norm that Normalize divides by, as gpustage has it.
const normFloor = 1e-12

// Normalize is y = x / max(|x|, 1e-12). It returns that norm.
func (k *Kernels) Normalize(y, x []float32) (norm float32) {
	n := max(math.Sqrt(k.sumSquares(x[:len(y)])), normFloor)
	k.scale(y, x[:len(y)], float32(1/n))
	return float32(n)
}

// NormalizeBackward is dx = (dy - y * <dy, y>) / norm.
func (k *Kernels) NormalizeBackward(dx, dy, y []float32, norm float32) {
	dy, y = dy[:len(dx)], y[:len(dx)]
	k.axpby(dx, dy, y, 1/norm, -k.dot(dy, y)/norm)
}

// ToBF16 rounds to bfloat16 as gpustage.ToBF16 does: to nearest, ties to even; NaN stays NaN.
func (k *Kernels) ToBF16(y []uint16, x []float32) {
	x = x[:len(y)]
	k.toBF16(y, x)
	whole := len(y) &^ 15 // at least as much has been done
	toBF16Portable(y[whole:], x[whole:])
}

// FromBF16 widens.
func (k *Kernels) FromBF16(y []float32, x []uint16) {
	x = x[:len(y)]
	k.fromBF16(y, x)
	whole := len(y) &^ 15 // at least as much has been done
	fromBF16Portable(y[whole:], x[whole:])
}

func addPortable(y, a, b []float32) {
	for i := range y {
		y[i] = a[i] + b[i]
	}
}

func mulPortable(y, a, b []float32) {
	for i := range y {
		y[i] = a[i] * b[i]
	}
}

func mulAddPortable(y, a, b []float32, alpha float32) {
	for i := range y {
		y[i] += alpha * a[i] * b[i]
	}
}

func rotatePortable(y, z, a, b, cos, sin []float32) {
	for i := range y {
		y[i], z[i] = a[i]*cos[i]-b[i]*sin[i], b[i]*cos[i]+a[i]*sin[i]
	}
}

func axpyPortable(y, x []float32, alpha float32) {
	for i := range y {
		y[i] += alpha * x[i]
	}
}

func scalePortable(y, x []float32, alpha float32) {
	for i := range y {
		y[i] = alpha * x[i]
	}
}

func axpbyPortable(y, x, z []float32, alpha, beta float32) {
	for i := range y {
		y[i] = alpha*x[i] + beta*z[i]
	}
}

func addRowsPortable(acc, x []float32, stride int) {
	n := len(acc)
	x0, x1, x2, x3 := x[:n], x[stride:][:n], x[2*stride:][:n], x[3*stride:][:n]
	x4, x5, x6, x7 := x[4*stride:][:n], x[5*stride:][:n], x[6*stride:][:n], x[7*stride:][:n]
	for i := range acc {
		acc[i] += ((x0[i] + x1[i]) + (x2[i] + x3[i])) + ((x4[i] + x5[i]) + (x6[i] + x7[i]))
	}
}

// Sums have four lanes in plain Go: the processor adds them side by side.

func dotPortable(a, b []float32) float32 {
	var s0, s1, s2, s3 float32
	for len(a) >= 4 && len(b) >= 4 {
		s0 += a[0] * b[0]
		s1 += a[1] * b[1]
		s2 += a[2] * b[2]
		s3 += a[3] * b[3]
		a, b = a[4:], b[4:]
	}
	for i := range a {
		s0 += a[i] * b[i]
	}
	return (s0 + s1) + (s2 + s3)
}

func sumPortable(a []float32) float32 {
	var s0, s1, s2, s3 float32
	for len(a) >= 4 {
		s0 += a[0]
		s1 += a[1]
		s2 += a[2]
		s3 += a[3]
		a = a[4:]
	}
	for i := range a {
		s0 += a[i]
	}
	return (s0 + s1) + (s2 + s3)
}

func sumSquaresPortable(x []float32) float64 {
	var s0, s1 float64
	for len(x) >= 2 {
		s0 += float64(x[0]) * float64(x[0])
		s1 += float64(x[1]) * float64(x[1])
		x = x[2:]
	}
	if len(x) > 0 {
		s0 += float64(x[0]) * float64(x[0])
	}
	return s0 + s1
}

func largestPortable(x []float32) float32 {
	m := float32(math.Inf(-1))
	for _, v := range x {
		if v > m {
			m = v
		}
	}
	return m
}

func toBF16Portable(y []uint16, x []float32) {
	for i := range y {
		y[i] = gpustage.ToBF16(x[i])
	}
}

func fromBF16Portable(y []float32, x []uint16) {
	for i := range y {
		y[i] = gpustage.FromBF16(x[i])
	}
}
