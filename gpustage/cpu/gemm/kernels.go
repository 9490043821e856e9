package gemm

import (
	"fmt"
	"slices"
	"strings"
)

// Kernels is a choice of micro-kernels: one of the names below.
type Kernels string

const (
	Portable   Kernels = "portable"   // plain Go: any processor
	NEON       Kernels = "neon"       // arm64
	AVX2       Kernels = "avx2"       // amd64 with AVX2 and FMA
	AVX512     Kernels = "avx512"     // amd64 with AVX-512 F, DQ, BW and VL
	AVX512BF16 Kernels = "avx512bf16" // the same, and AVX512-BF16 for products in bf16
	AMX        Kernels = "amx"        // the same, and AMX-BF16 for products in bf16 and large ones in float32; on Linux
)

// Available lists the kernels that this machine can run, the fastest first. On Linux the first call asks the system for the use of
// AMX, which some sandboxes refuse.
func Available() []Kernels {
	return append(native(), Portable)
}

// Select finds kernels by name; the empty name means the fastest. The error says what there is.
func Select(name string) (Kernels, error) {
	all := Available()
	if name == "" {
		return all[0], nil
	}
	if slices.Contains(all, Kernels(name)) {
		return Kernels(name), nil
	}
	var names []string
	for _, k := range all {
		names = append(names, string(k))
	}
	what := "there are no kernels named %q"
	if slices.Contains([]Kernels{NEON, AVX2, AVX512, AVX512BF16, AMX}, Kernels(name)) {
		what = "this machine can't run the kernels %q"
	}
	return "", fmt.Errorf(what+"; it can run %s", name, strings.Join(names, ", "))
}

// set is the kernels of one type and precision, and how they want their operands.
type set[T Float] struct {
	rows, cols int // the micro-tile: rows of A in a strip, columns of B in a panel
	// The kernel does group steps at a time, for span elements of k: what is missing of the last group is packed as zeros.
	span, group int
	// kc steps of nc columns of B are a block, which stays in the second-level cache while rows of A pass by it.
	kc, nc int
	mc     int // rows of A in a tile when B is packed for all of them
	// packWork is what packing an element takes, in multiply-adds: 12 at 48 GB/s against 240 GFLOP/s, twice that where it comes from memory
	// (AVX-512 on a Xeon, two threads, 4096 x 1536 x 384 in rounds by turns: 319, 324, 294 GFLOP/s with 24, four tiles, and 289, 300, 252
	// with 12, six). With AMX it counts ten times as much: weight gradients on two
	// threads (4096 x 384 x 384, 4096 x 1536 x 384, 4096 x 384 x 1536) ran at 846, 1,047 and 1,205 GFLOP/s with 120 and at 799,
	// 1,032 and 918 with 12, medians of 21.
	packWork int

	strip func(*strip[T])
	// small, if not nil, is what Small takes in the place of these kernels, and Multiply where k is below leastK.
	small   *set[T]
	leastK  int
	fetches bool // the strip fetches rows of A for later strips
	// packB packs k x n elements of B into panels of steps(k) rows of cols elements, ps apart; packBT does from B's
	// transpose, n x k.
	packB, packBT func(w *worker[T], dst []T, ps int, src []T, ld, k, n int)
	// packA packs k elements of each of n rows of A into rows ds apart, zeros up to steps(k). roundsA: the kernel can't read A as it is.
	packA   func(dst []T, ds int, src []T, ld, n, k int)
	roundsA bool
	// packAT packs k x n elements of A's transpose into panels of steps(k) rows of aWidth elements, ps apart, for rows rows
	// of A each; if aWidth is 0 into rows ps apart, as packA does, of which there must be a multiple of 16.
	packAT func(w *worker[T], dst []T, ps int, src []T, ld, k, n int)
	aWidth int
	// probe does n times probeWork floating-point operations, as fast as can be.
	probe     func(n int)
	probeWork int
}

// steps is how many steps a block of k elements takes.
func (s *set[T]) steps(k int) int { return ceil(k, s.span) * s.group }

// panelSize is the elements from one packed panel to the next, for panels whose rows have width elements. An odd number of
// rows keeps the panels from falling into the same lines of the first-level cache: copying 384 columns of A into 28
// panels ran at 11 GB/s without that and at 48 with it.
func (s *set[T]) panelSize(k, width int) int { return (s.steps(k) | 1) * width }

func portableSet[T Float]() *set[T] {
	s := packedInGo[T](portableRows, portableCols)
	s.kc, s.nc, s.mc = 256, 128, 64
	s.strip = stripPortable[T]
	return s
}

// packedInGo is a set without a strip and blocks, whose operands plain Go packs.
func packedInGo[T Float](rows, cols int) *set[T] {
	return &set[T]{
		rows: rows, cols: cols, span: 1, group: 1, packWork: 12,
		packB: func(_ *worker[T], dst []T, ps int, src []T, ld, k, n int) {
			copyPanels(dst, ps, src, ld, k, n, cols, cols)
		},
		packBT: func(_ *worker[T], dst []T, ps int, src []T, ld, k, n int) {
			transposePanels(dst, ps, src, ld, k, n, cols)
		},
		packA: copyRowsOfA[T],
		packAT: func(_ *worker[T], dst []T, ps int, src []T, ld, k, n int) {
			copyPanels(dst, ps, src, ld, k, n, rows, cols)
		},
		aWidth: cols,
		probe:  probePortable[T], probeWork: 8 * 2,
	}
}

// copyPanels copies k rows of n elements, ld apart, to panels of cols columns, ps apart, whose rows have width elements: what has no column is 0.
func copyPanels[T Float](dst []T, ps int, src []T, ld, k, n, cols, width int) {
	for c := 0; c < n; c += cols {
		panel, have := dst[c/cols*ps:], min(cols, n-c)
		for p := range k {
			row := panel[p*width:][:width]
			clear(row[copy(row, src[p*ld+c:][:have]):])
		}
	}
}

func copyRowsOfA[T Float](dst []T, ds int, src []T, ld, n, k int) {
	for i := range n {
		copy(dst[i*ds:][:k], src[i*ld:])
	}
}

// emulateBF16 makes kernels for products in bf16 of those in float32: what is packed is rounded, so everything is packed.
func emulateBF16(s *set[float32], round func(dst, src []float32)) *set[float32] {
	e := *s
	e.roundsA = true
	e.packB = func(w *worker[float32], dst []float32, ps int, src []float32, ld, k, n int) {
		s.packB(w, dst, ps, src, ld, k, n)
		round(dst[:ceil(n, s.cols)*ps], dst)
	}
	e.packBT = func(w *worker[float32], dst []float32, ps int, src []float32, ld, k, n int) {
		s.packBT(w, dst, ps, src, ld, k, n)
		round(dst[:ceil(n, s.cols)*ps], dst)
	}
	e.packA = func(dst []float32, ds int, src []float32, ld, n, k int) {
		for i := range n {
			round(dst[i*ds:][:k], src[i*ld:])
		}
	}
	e.packAT = func(w *worker[float32], dst []float32, ps int, src []float32, ld, k, n int) {
		s.packAT(w, dst, ps, src, ld, k, n)
		round(dst[:ceil(n, s.rows)*ps], dst)
	}
	return &e
}

// setOf finds the kernels for a type and precision.
func setOf[T Float](k Kernels, bf16 bool) *set[T] {
	if !slices.Contains(Available(), k) {
		panic(fmt.Sprintf("gemm: this processor can't run the kernels %q", k))
	}
	var s any
	switch {
	case isFloat64[T]() && k == Portable:
		s = portable64
	case isFloat64[T]():
		s = nativeSet64()
	case k != Portable:
		s = nativeSet(k, bf16)
	case bf16:
		s = portableRound
	default:
		s = portable32
	}
	return s.(*set[T])
}

var (
	portable32    = portableSet[float32]()
	portable64    = portableSet[float64]()
	portableRound = emulateBF16(portable32, func(dst, src []float32) { roundPortable(dst[:copy(dst, src)]) })
)
