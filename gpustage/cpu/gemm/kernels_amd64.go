package gemm

import (
	"unsafe"

	"github.com/klauspost/cpuid/v2"
	"golang.org/x/sys/cpu"
)

func native() []Kernels {
	var all []Kernels
	x := &cpu.X86
	if x.HasAVX512F && x.HasAVX512DQ && x.HasAVX512BW && x.HasAVX512VL {
		if x.HasAVX512BF16 && x.HasAMXTile && x.HasAMXBF16 && mayUseTiles() {
			all = append(all, AMX)
		}
		switch {
		case x.HasAVX512BF16 && slowPairs():
			all = append(all, AVX512, AVX512BF16)
		case x.HasAVX512BF16:
			all = append(all, AVX512BF16, AVX512)
		default:
			all = append(all, AVX512)
		}
	}
	if x.HasAVX2 && x.HasFMA {
		all = append(all, AVX2)
	}
	return all
}

// slowPairs: this processor starts a multiply-add of pairs in bf16 (VDPBF16PS) every other cycle and two of float32 in each, so that products
// in bf16 are faster in float32 with operands rounded. Intel's do that since Sapphire Rapids, which has AVX512-FP16, AMD's are the
// other way round. An Emerald Rapids whose AMX is hidden from its guests: 166 GFLOP/s against 346 between registers; in bf16 MiniLM-L6 trains on
// 2.95 times sentence-transformers' pairs/s with VDPBF16PS and on 4.71 times without (64 pairs, two threads).
func slowPairs() bool {
	return cpuid.CPU.IsVendor(cpuid.Intel) && cpuid.CPU.Supports(cpuid.AVX512FP16)
}

var (
	avx2       = avx2Set()
	avx2Round  = emulateBF16(avx2, roundAVX2)
	avx2Wide   = avx2Set64()
	avx512     = avx512Set()
	avx512Bits = emulateBF16(avx512, roundAVX2)
	avx512Pair = bf16Set()
	amx        = amxSet()
	amxPieces  = piecesSet()
)

// nativeSet is the assembly's part of setOf.
func nativeSet(k Kernels, bf16 bool) *set[float32] {
	switch {
	case k == AVX2 && bf16:
		return avx2Round
	case k == AVX2:
		return avx2
	case k == AVX512 && bf16:
		return avx512Bits
	case k == AVX512BF16 && bf16:
		return avx512Pair
	case k == AMX && bf16:
		return amx
	case k == AMX:
		return amxPieces
	}
	return avx512
}

// nativeSet64 is nativeSet of float64: AVX2's kernel, whatever else there is.
func nativeSet64() *set[float64] { return avx2Wide }

func avx2Set() *set[float32] {
	return &set[float32]{
		rows: 6, cols: 16, span: 1, group: 1, kc: 384, nc: 192, mc: 144, packWork: 12,
		strip:  func(s *strip32) { stripAVX2((*byte)(unsafe.Pointer(s))) },
		packB:  copyB(copyRowsBAVX2, 16),
		packBT: transposeB(transposeAVX2, 16, 8),
		packA:  copyRowsOfA[float32],
		packAT: copyA(copyRowsAAVX2, 6),
		aWidth: 8,
		probe:  probeAVX2, probeWork: 12 * 8 * 2,
	}
}

// avx2Set64 is for double precision, of which only strips are worth assembly. verify-grads takes it for the truth beside kernels of the same generator,
// so TestFloat64 holds it against plain loops.
func avx2Set64() *set[float64] {
	s := packedInGo[float64](6, 8)
	s.kc, s.nc, s.mc = 256, 128, 144
	s.strip = func(s *strip64) { strip64AVX2((*byte)(unsafe.Pointer(s))) }
	return s
}

// avx512Set keeps a strip of A (11 KB) and a panel of B (24 KB) in a first-level cache of 48 KB together. With kc = 384 they don't
// fit, and a Xeon with AMX lost 4 to 6 percent of its peak (shapes of gemm's benchmark: 76 %, 72, 70 for NN, NT, TN against 71, 68,
// 66). Not measured where that cache has 32 KB, as Zen 4's.
func avx512Set() *set[float32] {
	return &set[float32]{
		rows: 14, cols: 32, span: 1, group: 1, kc: 192, nc: 384, mc: 140, packWork: 24,
		strip:   func(s *strip32) { stripAVX512((*byte)(unsafe.Pointer(s))) },
		fetches: true,
		packB:   copyB(copyRowsBAVX512, 32),
		packBT:  transposeB(transposeAVX512, 32, 16),
		packA:   copyRowsOfA[float32],
		packAT:  copyA(copyRowsAAVX512, 14),
		aWidth:  16,
		probe:   probeAVX512, probeWork: 28 * 16 * 2,
	}
}

func bf16Set() *set[float32] {
	return &set[float32]{
		rows: 14, cols: 32, span: 2, group: 1, kc: 384, nc: 192, mc: 140, packWork: 12,
		strip:   func(s *strip32) { stripBF16((*byte)(unsafe.Pointer(s))) },
		fetches: true,
		packB:   copyB(pairRowsBBF16, 32),
		packBT:  transposeB(transposeBF16, 32, 16),
		packA:   pairRowsOfA,
		roundsA: true,
		packAT:  copyA(pairRowsABF16, 14),
		aWidth:  16,
		probe:   probeBF16, probeWork: 28 * 32 * 2,
	}
}

func pairRowsOfA(dst []float32, ds int, src []float32, ld, n, k int) {
	_, _ = dst[:n*ds], src[:(n-1)*ld+k]
	for i := range n {
		pairRowBF16(&dst[i*ds], &src[i*ld], k)
	}
}

// amxSet reads the same panels of B as bf16Set, but 16 steps of 32 columns at a time, and 16 steps of 32 rows of A.
func amxSet() *set[float32] {
	s := &set[float32]{
		rows: 32, cols: 32, span: 32, group: 16, kc: 384, nc: 192, mc: 128, packWork: 120,
		strip: func(s *strip32) { stripAMX((*byte)(unsafe.Pointer(s))) },
		probe: probeAMX, probeWork: 4 * 16 * 16 * 32 * 2,
		roundsA: true,
	}
	pair, transpose := copyB(pairRowsBBF16, 32), transposeB(transposeBF16, 32, 16)
	s.packB = func(w *worker[float32], dst []float32, ps int, src []float32, ld, k, n int) {
		pair(w, dst, ps, src, ld, k, n)
		fill(dst, ps, 32, ceil(k, 2), s.steps(k), n)
	}
	s.packBT = func(w *worker[float32], dst []float32, ps int, src []float32, ld, k, n int) {
		transpose(w, dst, ps, src, ld, k, n)
		fill(dst, ps, 32, ceil(k, 2), s.steps(k), n)
	}
	s.packA = func(dst []float32, ds int, src []float32, ld, n, k int) {
		pairRowsOfA(dst, ds, src, ld, n, k)
		fill(dst, ds, 1, ceil(k, 2), s.steps(k), n)
	}
	s.packAT = func(_ *worker[float32], dst []float32, ds int, src []float32, ld, k, n int) {
		_, _ = dst[:ceil(n, 16)*16*ds], src[:(k-1)*ld+n]
		columnsBF16(&dst[0], ds, &src[0], ld, k, n)
	}
	return s
}

// fill writes the zeros from pair done up to pair all of n rows or columns, in panels of width of them, ps apart.
func fill(dst []float32, ps, width, done, all, n int) {
	if done == all {
		return
	}
	for i := range ceil(n, width) {
		clear(dst[i*ps:][done*width : all*width])
	}
}

type copyRows func(dst *float32, ps int, src *float32, ss, k, cols int)

// copyB is packB by assembly, for panels of so many columns.
func copyB(f copyRows, cols int) func(w *worker[float32], dst []float32, ps int, src []float32, ld, k, n int) {
	return func(_ *worker[float32], dst []float32, ps int, src []float32, ld, k, n int) {
		_, _ = dst[:ceil(n, cols)*ps], src[:(k-1)*ld+n]
		f(&dst[0], ps, &src[0], ld, k, n)
	}
}

// copyA is packAT by assembly, for panels of so many rows of A.
func copyA(f copyRows, rows int) func(w *worker[float32], dst []float32, ps int, src []float32, ld, k, n int) {
	return func(_ *worker[float32], dst []float32, ps int, src []float32, ld, k, n int) {
		_, _ = dst[:ceil(n, rows)*ps], src[:(k-1)*ld+n]
		f(&dst[0], ps, &src[0], ld, k, n)
	}
}

func roundAVX2(dst, src []float32) {
	if len(dst) > 0 {
		roundBF16AVX2(&dst[0], &src[:len(dst)][0], len(dst))
	}
}
