//go:build amd64 || arm64

package gemm

// transposeB is packBT by assembly that makes a part of a panel, so many columns, at a time.
func transposeB(f func(dst *float32, ds int, rows *[16]*float32, k int), cols, part int) func(w *worker[float32], dst []float32, ps int, src []float32, ld, k, n int) {
	return func(w *worker[float32], dst []float32, ps int, src []float32, ld, k, n int) {
		_, _ = dst[:ceil(n, cols)*ps], src[:(n-1)*ld+k]
		for j := 0; j < n; j += part {
			// Columns that would come of rows beyond the last are never used: they may as well be the last again.
			for i := range part {
				w.rows[i] = &src[min(j+i, n-1)*ld]
			}
			f(&dst[j/cols*ps+j%cols], cols, &w.rows, k)
		}
		clear(w.rows[:]) // they may point into memory that is not Go's
	}
}
