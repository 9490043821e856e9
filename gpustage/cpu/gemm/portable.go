package gemm

import "math"

// The portable kernels: plain Go, for processors without assembly here, and for float64 on arm64.

// portableRows and portableCols are the tile that stripPortable works on. amd64 has 16 registers, some of which spill: 4 x 4
// ran at 6.3 GFLOP/s there all the same, 2 x 4 at 4.7. Arm has 32.
const (
	portableRows = 4
	portableCols = 4
)

// stripPortable is what the assembly's strip kernels do.
func stripPortable[T Float](s *strip[T]) {
	for j := 0; j < s.cols; j += portableCols {
		b := s.b[j/portableCols*s.pb:]
		cols := min(portableCols, s.cols-j)
		i := 0
		for ; i+4 <= s.rows; i += 4 {
			rows4(s, i, j, cols, b)
		}
		for ; i < s.rows; i++ {
			row1(s, i, j, cols, b)
		}
	}
}

func rows4[T Float](s *strip[T], i, j, cols int, b []T) {
	var c00, c01, c02, c03, c10, c11, c12, c13, c20, c21, c22, c23, c30, c31, c32, c33 T
	a0, a1, a2, a3 := s.a[i*s.rs:], s.a[(i+1)*s.rs:], s.a[(i+2)*s.rs:], s.a[(i+3)*s.rs:]
	ia, ib := 0, 0
	for range s.k {
		row := b[ib : ib+4 : ib+4]
		b0, b1, b2, b3 := row[0], row[1], row[2], row[3]
		x := a0[ia]
		c00 += x * b0
		c01 += x * b1
		c02 += x * b2
		c03 += x * b3
		x = a1[ia]
		c10 += x * b0
		c11 += x * b1
		c12 += x * b2
		c13 += x * b3
		x = a2[ia]
		c20 += x * b0
		c21 += x * b1
		c22 += x * b2
		c23 += x * b3
		x = a3[ia]
		c30 += x * b0
		c31 += x * b1
		c32 += x * b2
		c33 += x * b3
		ia += s.ks
		ib += portableCols
	}
	writeRow(s, i, j, cols, [4]T{c00, c01, c02, c03})
	writeRow(s, i+1, j, cols, [4]T{c10, c11, c12, c13})
	writeRow(s, i+2, j, cols, [4]T{c20, c21, c22, c23})
	writeRow(s, i+3, j, cols, [4]T{c30, c31, c32, c33})
}

func row1[T Float](s *strip[T], i, j, cols int, b []T) {
	var c0, c1, c2, c3 T
	a := s.a[i*s.rs:]
	ia, ib := 0, 0
	for range s.k {
		row := b[ib : ib+4 : ib+4]
		x := a[ia]
		c0 += x * row[0]
		c1 += x * row[1]
		c2 += x * row[2]
		c3 += x * row[3]
		ia += s.ks
		ib += portableCols
	}
	writeRow(s, i, j, cols, [4]T{c0, c1, c2, c3})
}

func writeRow[T Float](s *strip[T], i, j, cols int, acc [4]T) {
	c := s.c[i*s.ldc+j:][:cols]
	if s.add {
		for x := range c {
			c[x] += s.alpha * acc[x]
		}
		return
	}
	for x := range c {
		c[x] = s.alpha * acc[x]
	}
}

// transposePanels makes panels of cols columns, ps apart, of n rows of k elements. Columns that would come of rows beyond the last are the last
// again: they are never used.
func transposePanels[T Float](dst []T, ps int, src []T, ld, k, n, cols int) {
	for c := 0; c < n; c += cols {
		panel := dst[c/cols*ps:]
		for j := range cols {
			for p, x := range src[min(c+j, n-1)*ld:][:k] {
				panel[p*cols+j] = x
			}
		}
	}
}

// roundPortable rounds to the nearest bf16, ties to even.
func roundPortable(x []float32) {
	for i, v := range x {
		x[i] = toBF16(v)
	}
}

func toBF16(x float32) float32 {
	bits := math.Float32bits(x)
	if x != x {
		return math.Float32frombits((bits | 0x00400000) &^ 0xffff)
	}
	return math.Float32frombits((bits + 0x7fff + bits>>16&1) &^ 0xffff)
}
