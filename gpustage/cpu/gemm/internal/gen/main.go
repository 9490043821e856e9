// Command gen writes the assembly of package gemm: run `go generate` in the package's folder after a change here.
//
// It is written with avo, which checks every instruction's operands against the instruction tables. Registers are named
// rather than left to avo's allocator: a micro-kernel is an exact fit (28 accumulators, 2 vectors of B, 2 of A), and a
// spill would cost more than the kernel gains. The instructions that neither avo nor the Go assembler knows are in
// evex.go and amx.go.
package main

import (
	"flag"
	"log"

	"github.com/mmcloughlin/avo/build"
)

// files are what -kernels can ask for.
var files = map[string]func(){
	"avx2": func() {
		stripAVX2()
		strip64AVX2()
		copyPanelsAVX2()
		transposeAVX2()
		roundBF16()
		probeAVX2()
	},
	"avx512": func() {
		stripAVX512("stripAVX512", fma)
		copyPanelsAVX512()
		transposeAVX512("transposeAVX512", false)
		probeAVX512("probeAVX512", fma)
	},
	"avx512bf16": func() {
		stripAVX512("stripBF16", dot)
		copyPanelsBF16()
		transposeAVX512("transposeBF16", true)
		pairRowBF16()
		probeAVX512("probeBF16", dot)
	},
	"amx": func() {
		defineTileShapes()
		stripAMX("stripAMX", false)
		stripAMX("stripPieces", true)
		order := interleave()
		columnsBF16(order)
		copyPanelsPieces(order)
		piecesOfRows(order)
		probeAMX()
	},
}

func main() {
	kernels := flag.String("kernels", "", "which file to write: avx2, avx512, avx512bf16 or amx")
	flag.Parse() // avo's -out, -stubs and -pkg as well
	write, ok := files[*kernels]
	if !ok {
		log.Fatalf("there are no kernels %q; see -help", *kernels)
	}
	write()
	build.Generate()
}
