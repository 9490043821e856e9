package gemm

import "unsafe"

// A float32 has 24 bits, a bf16 eight: x rounded to bf16, what that leaves rounded to bf16, and what is left then (which is one as it is) are three
// pieces whose sum is x. Of the nine products of two numbers' pieces the six largest are summed,
//
//	a0 b0 + (a0 b1 + a1 b0) + (a0 b2 + a1 b1 + a2 b0)
//
// and what is left out, a1 b2 + a2 b1 + a2 b2, is 2^-24 of a b at most, mostly far less: with a and b from 1 to 2, a1 and b1 are 2^-8 at most, a2 and b2
// 2^-17. The sum is rounded when a product of tiles is added, six times for 32 elements of k, where AVX-512 rounds after each: it comes out closer to
// the true one than AVX-512's (TestPieces), but where most products are zero, which AVX-512 adds without rounding (384 elements, half of A's and of
// B's zero, the others positive: 1.4 times as far off). Henry, Tang and Heinecke, "Leveraging the bfloat16 artificial intelligence datatype for higher-precision
// computations" (2019), has the error's analysis.
//
// The six share what a product in bf16 reads and writes of C, which is what bounds that one, so these reach 75 to 80 % of the unit's
// peak in the cache where it reaches half: 370 GFLOP/s a core with random numbers, AVX-512 176.
const (
	piecePairs    = 16             // pairs of a piece in a group
	groupSpan     = 2 * piecePairs // elements of k in a group
	groupPairs    = 3 * piecePairs // pairs of a group: those of the first pieces, of the second and of the third
	groupProducts = 6              // products of tiles for a group
)

// piecesSet multiplies float32 with AMX. kc is as large as for products in bf16, although neither a strip of A nor a panel of B then fits the first-level
// cache: with half of it C is read and written twice as often, which costs more (4096 x 384 x 384: 225 GFLOP/s against 283). With k below leastK
// reading and writing C is nearly all there is to do, and AVX-512 is faster: 4096 x 384 x 16 at 125 GFLOP/s against 75, x 32 at 147 against 135, x 64 at
// 159 against 213.
func piecesSet() *set[float32] {
	return &set[float32]{
		rows: 32, cols: 32, span: groupSpan, group: groupPairs, kc: 384, nc: 192, mc: 256, packWork: 120,
		strip: func(s *strip32) { stripPieces((*byte)(unsafe.Pointer(s))) },
		small: avx512, leastK: 64,
		packB:   piecesOfB,
		packBT:  piecesOfBT,
		packA:   piecesOfA,
		packAT:  piecesOfAT,
		roundsA: true,
		probe:   probeAMX, probeWork: 4 * 16 * 16 * 32 * 2 / groupProducts,
	}
}

func piecesOfA(dst []float32, ds int, src []float32, ld, n, k int) {
	_, _ = dst[:n*ds], src[:(n-1)*ld+k]
	piecesOfRowsA(&dst[0], ds, &src[0], ld, n, k)
}

func piecesOfB(_ *worker[float32], dst []float32, ps int, src []float32, ld, k, n int) {
	_, _ = dst[:ceil(n, 32)*ps], src[:(k-1)*ld+n]
	for g := 0; g*groupSpan < k; g++ {
		group, have := dst[g*groupPairs*32:], min(groupSpan, k-g*groupSpan)
		piecesOfRowsB(&group[0], ps, &src[g*groupSpan*ld], ld, have, n)
		for p := 0; p < groupPairs; p += piecePairs {
			fill(group, ps, 32, p+ceil(have, 2), p+piecePairs, n)
		}
	}
}

// piecesOfBT splits rows of the transpose as A's, and transposes the pairs.
func piecesOfBT(w *worker[float32], dst []float32, ps int, src []float32, ld, k, n int) {
	_, _ = dst[:ceil(n, 32)*ps], src[:(n-1)*ld+k]
	steps := ceil(k, groupSpan) * groupPairs
	w.pairs = atLeast(w.pairs, 16*steps)
	for i := range w.rows {
		w.rows[i] = &w.pairs[i*steps]
	}
	for j := 0; j < n; j += 16 {
		piecesOfRowsA(&w.pairs[0], steps, &src[j*ld], ld, min(16, n-j), k)
		transposeAVX512(&dst[j/32*ps+j%32], 32, &w.rows, steps)
	}
}

// piecesOfAT splits a part of a group of the transpose as B's, and transposes the pairs.
func piecesOfAT(w *worker[float32], dst []float32, ds int, src []float32, ld, k, n int) {
	_, _ = dst[:ceil(n, 16)*16*ds], src[:(k-1)*ld+n]
	const part, panelPairs = 128, 32 * groupPairs
	w.pairs = atLeast(w.pairs, part*groupPairs)
	for g := 0; g*groupSpan < k; g++ {
		for c := 0; c < n; c += part {
			have := min(part, n-c)
			piecesOfB(w, w.pairs, panelPairs, src[g*groupSpan*ld+c:], ld, min(groupSpan, k-g*groupSpan), have)
			for col := 0; col < have; col += 32 {
				for p := 0; p < groupPairs; p += piecePairs {
					for i := range w.rows {
						w.rows[i] = &w.pairs[col*groupPairs+(p+i)*32]
					}
					transposeAVX512(&dst[(c+col)*ds+g*groupPairs+p], ds, &w.rows, ceil(min(32, have-col), 16)*16)
				}
			}
		}
	}
}
