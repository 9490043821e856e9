//go:build linux && amd64

package onhost

import "math"

// sum adds products of x and y to total, each rounded.
func sum(total float32, x, y []float32) float32 {
	for i, v := range x {
		total += v * y[i]
	}
	return total
}

// sumFused is sum of products that are not rounded.
func sumFused(total float32, x, y []float32) float32 {
	for i, v := range x {
		total = float32(float64(v)*float64(y[i]) + float64(total))
	}
	return total
}

func sumBF16(total float32, x, y []float32) float32 { return sumTruncated(total, x, y, 8) }
func sumTF32(total float32, x, y []float32) float32 { return sumTruncated(total, x, y, 4) }

// sumTruncated is sum on tensor cores, a group of products at a time (kernels/host_rounding.h).
func sumTruncated(total float32, x, y []float32, group int) float32 {
	const one, exponents = 1 << 52, 0x7ff << 52 // one more in the exponent
	for from := 0; from < len(x); from += group {
		terms, n := [9]float64{float64(total)}, 1
		top := math.Float64bits(terms[0]) & exponents
		for i := from; i < min(from+group, len(x)); i++ {
			terms[n] = float64(x[i]) * float64(y[i])
			top = max(top, math.Float64bits(terms[n])&exponents)
			n++
		}
		if top == 0 || top == exponents { // nothing to add, or infinite
			for _, v := range terms[1:n] {
				total += float32(v)
			}
			continue
		}
		up, down := math.Float64frombits((2*1023+24)*one-top), math.Float64frombits(top-24*one) // by up the largest has 25 bits before the point
		whole := int64(0)
		for _, v := range terms[:n] {
			whole += int64(v * up)
		}
		total = float32(math.Float64frombits(math.Float64bits(float64(whole)*down) &^ (1<<29 - 1))) // without what f32 has no room for
	}
	return total
}
