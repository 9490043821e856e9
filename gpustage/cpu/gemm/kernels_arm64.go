package gemm

// native is NEON, which every processor of 64 bits of Arm's has.
func native() []Kernels { return []Kernels{NEON} }

var (
	neon      = neonSet()
	neonRound = emulateBF16(neon, roundByNEON)
)

// nativeSet is the assembly's part of setOf.
func nativeSet(_ Kernels, bf16 bool) *set[float32] {
	if bf16 {
		return neonRound
	}
	return neon
}

// nativeSet64 is nativeSet of float64.
func nativeSet64() *set[float64] { return portable64 }

const neonRows, neonCols = 6, 16

// neonSet has avx2Set's tiles and blocks: registers are half as wide and twice as many. A strip of A (9 KB) and a panel of B (24 KB) fit a
// first-level cache of 64 KB. A strip of one to three rows costs three. It has been tested in QEMU, and not timed.
func neonSet() *set[float32] {
	return &set[float32]{
		rows: neonRows, cols: neonCols, span: 1, group: 1, kc: 384, nc: 192, mc: 144, packWork: 12,
		strip:  stripNEON,
		packB:  packBNEON,
		packBT: transposeB(transposeNEON, neonCols, 4),
		packA:  copyRowsOfA[float32],
		packAT: packATNEON,
		aWidth: neonWidth,
		probe:  probeNEON, probeWork: 24 * 4 * 2,
	}
}

// Whole panels are copied by arrays, for which the compiler has vector instructions.

func packBNEON(_ *worker[float32], dst []float32, ps int, src []float32, ld, k, n int) {
	c := 0
	for ; c+neonCols <= n; c += neonCols {
		panel, src := dst[c/neonCols*ps:], src[c:]
		for p := range k {
			*(*[neonCols]float32)(panel[p*neonCols:]) = *(*[neonCols]float32)(src[p*ld:])
		}
	}
	if c < n {
		copyPanels(dst[c/neonCols*ps:], ps, src[c:], ld, k, n-c, neonCols, neonCols)
	}
}

// neonWidth is how many elements lie from row to row in a panel of packed A.
const neonWidth = 8

func packATNEON(_ *worker[float32], dst []float32, ps int, src []float32, ld, k, n int) {
	c := 0
	for ; c+neonRows <= n; c += neonRows {
		panel, src := dst[c/neonRows*ps:], src[c:]
		for p := range k {
			row := (*[neonWidth]float32)(panel[p*neonWidth:])
			*(*[neonRows]float32)(row[:]) = *(*[neonRows]float32)(src[p*ld:])
			clear(row[neonRows:])
		}
	}
	if c < n {
		copyPanels(dst[c/neonRows*ps:], ps, src[c:], ld, k, n-c, neonRows, neonWidth)
	}
}

// stripNEON goes through a strip's panels. Of the last one's columns, what is not there is computed in a place of its own.
func stripNEON(s *strip32) {
	for j := 0; j < s.cols; j += neonCols {
		b := &s.b[j/neonCols*s.pb]
		if n := s.cols - j; n < neonCols {
			var c [neonRows * neonCols]float32
			if s.add {
				for i := range s.rows {
					copy(c[i*neonCols:][:n], s.c[i*s.ldc+j:])
				}
			}
			tileNEON(&c[0], neonCols, &s.a[0], s.rs, s.ks, b, s.k, s.alpha, s.add, s.rows)
			for i := range s.rows {
				copy(s.c[i*s.ldc+j:][:n], c[i*neonCols:])
			}
			return
		}
		tileNEON(&s.c[j], s.ldc, &s.a[0], s.rs, s.ks, b, s.k, s.alpha, s.add, s.rows)
	}
}

func roundByNEON(dst, src []float32) {
	src = src[:len(dst)]
	whole := len(dst) &^ 3
	if whole > 0 {
		roundNEON(&dst[0], &src[0], whole)
	}
	roundPortable(dst[whole:][:copy(dst[whole:], src[whole:])])
}
