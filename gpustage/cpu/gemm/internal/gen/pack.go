package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/ir"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

func pcalign(n int) {
	Instruction(&ir.Instruction{Opcode: "PCALIGN", Operands: []Op{Imm(uint64(n))}})
}

// laneTable is 16 times -1 and 16 times 0: eight of them from 16-n on are VMASKMOVPS's mask for the first n lanes.
var laneTable = NewDataAddr(Symbol{Name: "lanes", Static: true}, 0)

func defineLanes() {
	GLOBL(laneTable.Symbol.Name, RODATA|NOPTR)
	for i := range 32 {
		v := int32(0)
		if i < 16 {
			v = -1
		}
		DATA(4*i, I32(v))
	}
}

// loadMask loads the mask for lanes skip to skip+8 of n, given table = &laneTable and negN = -n.
func loadMask(table, negN GPPhysical, skip int, mask VecPhysical) {
	VMOVUPS(Mem{Base: table, Index: negN, Scale: 4, Disp: 4 * (16 + skip)}, mask)
}

// loadMask64 loads VMASKMOVPD's mask for the lanes skip to skip+4 of n, at most 8.
func loadMask64(table, negN GPPhysical, skip int, mask VecPhysical) {
	VMOVUPD(Mem{Base: table, Index: negN, Scale: 8, Disp: 8 * (8 + skip)}, mask)
}

// rowsAhead is how far the panel copies prefetch, in rows: they walk down a matrix whose rows are far apart, which the
// processor's own prefetchers, bound to a page, don't see.
const rowsAhead = 12

// copyPanelsAVX512 makes the copies for A (14 columns in a vector of 16) and B (32 in two).
func copyPanelsAVX512() {
	for _, c := range []struct {
		name      string
		width, nv int
	}{{"copyRowsAAVX512", 14, 1}, {"copyRowsBAVX512", 32, 2}} {
		panels(c.name, c.width, c.nv, 16, false, setMasks512, func(mask, v int) {
			VMOVUPS_Z(Mem{Base: R13, Disp: 64 * v}, opmasks[mask+v], zmm[v])
			VMOVUPS(zmm[v], Mem{Base: R12, Disp: 64 * v})
		}, nil)
	}
}

var opmasks = []OpmaskPhysical{K1, K2, K3, K4}

// setMasks512 makes opmasks[first] and, for two vectors, the next one select the first n lanes, n in CX.
func setMasks512(first, nv int) {
	MOVQ(U32(1), R11)
	SHLQ(CL, R11)
	DECQ(R11)
	KMOVW(R11.As32(), opmasks[first])
	if nv == 2 {
		SHRQ(Imm(16), R11)
		KMOVW(R11.As32(), opmasks[first+1])
	}
}

// interleave defines the order in which VPERMW makes pairs of two rows that VCVTNE2PS2BF16 has put one behind the other.
func interleave() Mem {
	order := GLOBL("interleave", RODATA|NOPTR)
	for i := range 16 {
		DATA(4*i, U32(uint32(16+i)<<16|uint32(i)))
	}
	return order
}

// copyPanelsBF16 makes the same copies rounding to bf16: two rows of k become one of pairs.
func copyPanelsBF16() {
	order := interleave()
	pair := func(v int) {
		vcvtne2ps2bf16(2*v, 2*v+1, 2*v)
		VPERMW(zmm[2*v], Z31, zmm[2*v])
		VMOVUPS(zmm[2*v], Mem{Base: R12, Disp: 64 * v})
	}
	for _, c := range []struct {
		name      string
		width, nv int
	}{{"pairRowsABF16", 14, 1}, {"pairRowsBBF16", 32, 2}} {
		pairPanels(c.name, c.width, c.nv, func() { VMOVUPS(order, Z31) }, pair)
	}
}

// pairPanels writes panels of pairs of rows: pair makes those of vector v of its row in zmm[2*v] and of the next one's, or zeros, in zmm[2*v+1].
func pairPanels(name string, width, nv int, constants func(), pair func(v int)) {
	panels(name, width, nv, 16, true, func(first, nv int) {
		constants()
		setMasks512(first, nv)
	}, func(mask, v int) {
		VMOVUPS_Z(Mem{Base: R13, Disp: 64 * v}, opmasks[mask+v], zmm[2*v])
		VMOVUPS_Z(Mem{Base: R13, Index: RAX, Scale: 1, Disp: 64 * v}, opmasks[mask+v], zmm[2*v+1])
		pair(v)
	}, func(mask, v int) {
		VMOVUPS_Z(Mem{Base: R13, Disp: 64 * v}, opmasks[mask+v], zmm[2*v])
		VPXORD(zmm[2*v+1], zmm[2*v+1], zmm[2*v+1])
		pair(v)
	})
}

// copyPanelsAVX2 makes the copies for A (6 columns in a vector of 8) and B (16 in two).
func copyPanelsAVX2() {
	defineLanes()
	for _, c := range []struct {
		name      string
		width, nv int
	}{{"copyRowsAAVX2", 6, 1}, {"copyRowsBAVX2", 16, 2}} {
		panels(c.name, c.width, c.nv, 8, false, func(first, nv int) {
			LEAQ(laneTable, R11)
			NEGQ(RCX)
			for v := range nv {
				loadMask(R11, RCX, 8*v, ymm[4+first+v])
			}
		}, func(mask, v int) {
			VMASKMOVPS(Mem{Base: R13, Disp: 32 * v}, ymm[4+mask+v], ymm[v])
			VMOVUPS(ymm[v], Mem{Base: R12, Disp: 32 * v})
		}, nil)
	}
}

// panels writes a function that copies a part of a matrix, row after row, into panels of width columns, which take nv
// vectors of so many lanes. move moves vector v of a row, or of a pair of rows, from R13 to R12 through mask number mask+v;
// single does for a last row without partner. setMasks makes nv masks, from number first on, for CX columns.
func panels(name string, width, nv, lanes int, pairs bool, setMasks func(first, nv int), move, single func(mask, v int)) {
	TEXT(name, NOSPLIT|NOFRAME, "func(dst *float32, ps int, src *float32, ss int, k, cols int)")
	Pragma("noescape")
	if pairs {
		Doc(fmt.Sprintf("%s rounds k >= 1 rows of cols >= 1 elements from src, ss elements apart, to bf16 and writes them as panels", name),
			fmt.Sprintf("of %d columns to dst, ps elements apart: (k+1)/2 rows of %d pairs (row 2i, row 2i+1). What is missing is zero.", width, nv*lanes))
	} else {
		Doc(fmt.Sprintf("%s copies k >= 1 rows of cols >= 1 elements from src, ss elements apart, into panels of %d columns at", name, width),
			fmt.Sprintf("dst, ps elements apart: k rows of %d elements, of which those without a column are zero.", nv*lanes))
	}
	Load(Param("dst"), RDI)
	Load(Param("src"), RSI)
	Load(Param("ps"), RDX)
	SHLQ(Imm(2), RDX)
	Load(Param("ss"), RAX)
	SHLQ(Imm(2), RAX)
	Load(Param("k"), R8)
	IMUL3Q(Imm(rowsAhead/4), RAX, R9)
	// R10 panels are full; the last one has CX columns.
	MOVQ(U32(uint32(width)), RCX)
	setMasks(0, nv)
	XORQ(R10, R10)
	Load(Param("cols"), RCX)
	Label("count")
	CMPQ(RCX, Imm(uint64(width)))
	JLE(LabelRef("counted"))
	SUBQ(Imm(uint64(width)), RCX)
	INCQ(R10)
	JMP(LabelRef("count"))
	Label("counted")
	setMasks(nv, nv)

	if pairs {
		LEAQ(Mem{Base: RAX, Index: R9, Scale: 4}, RBX)
	}
	prefetch := func(disp int) {
		PREFETCHT0(Mem{Base: R13, Index: R9, Scale: 4, Disp: disp})
		if pairs {
			PREFETCHT0(Mem{Base: R13, Index: RBX, Scale: 1, Disp: disp})
		}
	}
	// row goes over the panels of one row of dst.
	row := func(id string, move func(mask, v int)) {
		MOVQ(RSI, R13)
		MOVQ(RDI, R12)
		MOVQ(R10, R11)
		TESTQ(R11, R11)
		JEQ(LabelRef("last" + id))
		Label("full" + id)
		for v := 0; v < width*4; v += 64 {
			prefetch(v)
		}
		for v := range nv {
			move(0, v)
		}
		ADDQ(Imm(uint64(4*width)), R13)
		ADDQ(RDX, R12)
		DECQ(R11)
		JNZ(LabelRef("full" + id))
		Label("last" + id)
		prefetch(0)
		for v := range nv {
			move(nv, v)
		}
		ADDQ(Imm(uint64(4*nv*lanes)), RDI)
	}
	Label("row")
	if pairs {
		CMPQ(R8, Imm(1))
		JEQ(LabelRef("single"))
	}
	row("", move)
	if pairs {
		LEAQ(Mem{Base: RSI, Index: RAX, Scale: 2}, RSI)
		SUBQ(Imm(2), R8)
	} else {
		ADDQ(RAX, RSI)
		DECQ(R8)
	}
	JNZ(LabelRef("row"))
	VZEROUPPER()
	RET()
	if pairs {
		Label("single")
		row("single", single)
		VZEROUPPER()
		RET()
	}
}

// pairRowBF16 rounds consecutive elements: neighbours in k are pairs as they are.
func pairRowBF16() {
	TEXT("pairRowBF16", NOSPLIT|NOFRAME, "func(dst, src *float32, k int)")
	Pragma("noescape")
	Doc("pairRowBF16 rounds k elements of src to bf16 and writes (k+1)/2 pairs to dst, the last one with a zero if k is odd.")
	Load(Param("dst"), RDI)
	Load(Param("src"), RSI)
	Load(Param("k"), R8)
	Label("loop")
	CMPQ(R8, Imm(32))
	JLT(LabelRef("tail"))
	VMOVUPS(Mem{Base: RSI}, Z0)
	VMOVUPS(Mem{Base: RSI, Disp: 64}, Z1)
	vcvtne2ps2bf16(0, 1, 0)
	VMOVUPS(Z0, Mem{Base: RDI})
	ADDQ(Imm(128), RSI)
	ADDQ(Imm(64), RDI)
	SUBQ(Imm(32), R8)
	JMP(LabelRef("loop"))
	Label("tail")
	TESTQ(R8, R8)
	JEQ(LabelRef("done"))
	MOVQ(R8, RCX)
	setMasks512(0, 2)
	VMOVUPS_Z(Mem{Base: RSI}, K1, Z0)
	VMOVUPS_Z(Mem{Base: RSI, Disp: 64}, K2, Z1)
	vcvtne2ps2bf16(0, 1, 0)
	INCQ(RCX)
	SHRQ(Imm(1), RCX)
	setMasks512(0, 1)
	VMOVUPS(Z0, K1, Mem{Base: RDI})
	Label("done")
	VZEROUPPER()
	RET()
}

var rowPointers = []GPPhysical{R9, R10, R11, R12}

// loadTransposeArgs leaves rows in SI, dst in DI, ds (bytes) in DX, k in R8 and a byte offset of 0 into the rows in BX.
func loadTransposeArgs() {
	Load(Param("rows"), RSI)
	Load(Param("dst"), RDI)
	Load(Param("ds"), RDX)
	SHLQ(Imm(2), RDX)
	Load(Param("k"), R8)
	XORQ(RBX, RBX)
}

// transposeAVX512 turns 16 rows along k into 16 columns of a panel, 16 x 16 elements (or pairs) at a time.
func transposeAVX512(name string, bf16 bool) {
	step := 16
	what, count := "elements", "k"
	if bf16 {
		step = 32
		what, count = "pairs, rounded to bf16", "(k+1)/2"
	}
	TEXT(name, NOSPLIT|NOFRAME, "func(dst *float32, ds int, rows *[16]*float32, k int)")
	Pragma("noescape")
	Doc(fmt.Sprintf("%s reads k >= 1 elements of each of 16 rows and writes %s rows of 16 %s to dst, ds apart.", name, count, what))
	loadTransposeArgs()
	row := func(i int) GPPhysical {
		p := rowPointers[i%len(rowPointers)]
		MOVQ(Mem{Base: RSI, Disp: 8 * i}, p)
		return p
	}
	Label("block")
	CMPQ(R8, Imm(uint64(step)))
	JLT(LabelRef("tail"))
	for i := range 16 {
		p := row(i)
		if bf16 {
			VMOVUPS(Mem{Base: p, Index: RBX, Scale: 1}, zmm[16+i])
			VMOVUPS(Mem{Base: p, Index: RBX, Scale: 1, Disp: 64}, zmm[i])
			vcvtne2ps2bf16(16+i, i, i)
		} else {
			VMOVUPS(Mem{Base: p, Index: RBX, Scale: 1}, zmm[i])
		}
	}
	Label("transpose")
	transpose16()
	CMPQ(R8, Imm(uint64(step)))
	JLT(LabelRef("part"))
	for i := range 16 {
		VMOVUPS(zmm[i], Mem{Base: RDI})
		ADDQ(RDX, RDI)
	}
	ADDQ(Imm(uint64(4*step)), RBX)
	SUBQ(Imm(uint64(step)), R8)
	JNZ(LabelRef("block"))
	VZEROUPPER()
	RET()

	Label("tail")
	MOVQ(R8, RCX)
	if bf16 {
		setMasks512(0, 2)
	} else {
		setMasks512(0, 1)
	}
	for i := range 16 {
		p := row(i)
		if bf16 {
			VMOVUPS_Z(Mem{Base: p, Index: RBX, Scale: 1}, K1, zmm[16+i])
			VMOVUPS_Z(Mem{Base: p, Index: RBX, Scale: 1, Disp: 64}, K2, zmm[i])
			vcvtne2ps2bf16(16+i, i, i)
		} else {
			VMOVUPS_Z(Mem{Base: p, Index: RBX, Scale: 1}, K1, zmm[i])
		}
	}
	JMP(LabelRef("transpose"))

	// The next panel begins right after the last row: write no more than there are.
	Label("part")
	if bf16 {
		INCQ(R8)
		SHRQ(Imm(1), R8)
	}
	for i := range 16 {
		VMOVUPS(zmm[i], Mem{Base: RDI})
		if i < 15 {
			ADDQ(RDX, RDI)
			DECQ(R8)
			JEQ(LabelRef("done"))
		}
	}
	Label("done")
	VZEROUPPER()
	RET()
}

// transpose16 transposes the 16 x 16 matrix in Z0..Z15, with Z16..Z31 as scratch: within 128-bit lanes by unpacking,
// then the lanes.
func transpose16() {
	z := zmm
	for i := 0; i < 16; i += 2 {
		VUNPCKLPS(z[i+1], z[i], z[16+i])
		VUNPCKHPS(z[i+1], z[i], z[17+i])
	}
	for i := 0; i < 16; i += 4 {
		VUNPCKLPD(z[16+i+2], z[16+i], z[i])
		VUNPCKHPD(z[16+i+2], z[16+i], z[i+1])
		VUNPCKLPD(z[16+i+3], z[16+i+1], z[i+2])
		VUNPCKHPD(z[16+i+3], z[16+i+1], z[i+3])
	}
	// Now lane l of z[4g+c] holds column 4l+c of rows 4g to 4g+3.
	for c := range 4 {
		VSHUFF32X4(Imm(0x88), z[4+c], z[c], z[16+c])
		VSHUFF32X4(Imm(0xdd), z[4+c], z[c], z[20+c])
		VSHUFF32X4(Imm(0x88), z[12+c], z[8+c], z[24+c])
		VSHUFF32X4(Imm(0xdd), z[12+c], z[8+c], z[28+c])
	}
	for c := range 4 {
		VSHUFF32X4(Imm(0x88), z[24+c], z[16+c], z[c])
		VSHUFF32X4(Imm(0xdd), z[24+c], z[16+c], z[8+c])
		VSHUFF32X4(Imm(0x88), z[28+c], z[20+c], z[4+c])
		VSHUFF32X4(Imm(0xdd), z[28+c], z[20+c], z[12+c])
	}
}

// transposeAVX2 turns 8 rows along k into 8 columns of a panel.
func transposeAVX2() {
	TEXT("transposeAVX2", NOSPLIT|NOFRAME, "func(dst *float32, ds int, rows *[16]*float32, k int)")
	Pragma("noescape")
	Doc("transposeAVX2 reads k >= 1 elements of each of the first 8 rows and writes k rows of 8 elements to dst, ds apart.")
	loadTransposeArgs()
	y := ymm
	row := func(i int) Mem {
		p := rowPointers[i%len(rowPointers)]
		MOVQ(Mem{Base: RSI, Disp: 8 * i}, p)
		return Mem{Base: p, Index: RBX, Scale: 1}
	}
	Label("block")
	CMPQ(R8, Imm(8))
	JLT(LabelRef("tail"))
	for i := range 8 {
		VMOVUPS(row(i), y[i])
	}
	Label("transpose")
	for i := 0; i < 8; i += 2 {
		VUNPCKLPS(y[i+1], y[i], y[8+i])
		VUNPCKHPS(y[i+1], y[i], y[9+i])
	}
	for i := 0; i < 8; i += 4 {
		VUNPCKLPD(y[10+i], y[8+i], y[i])
		VUNPCKHPD(y[10+i], y[8+i], y[i+1])
		VUNPCKLPD(y[11+i], y[9+i], y[i+2])
		VUNPCKHPD(y[11+i], y[9+i], y[i+3])
	}
	for c := range 4 {
		VPERM2F128(Imm(0x20), y[4+c], y[c], y[8+c])
		VPERM2F128(Imm(0x31), y[4+c], y[c], y[12+c])
	}
	CMPQ(R8, Imm(8))
	JLT(LabelRef("part"))
	for i := range 8 {
		VMOVUPS(y[8+i], Mem{Base: RDI})
		ADDQ(RDX, RDI)
	}
	ADDQ(Imm(32), RBX)
	SUBQ(Imm(8), R8)
	JNZ(LabelRef("block"))
	VZEROUPPER()
	RET()

	Label("tail")
	LEAQ(laneTable, RAX)
	MOVQ(R8, RCX)
	NEGQ(RCX)
	loadMask(RAX, RCX, 0, y[15])
	for i := range 8 {
		VMASKMOVPS(row(i), y[15], y[i])
	}
	JMP(LabelRef("transpose"))

	// The next panel begins right after the last row: write no more than there are.
	Label("part")
	for i := range 7 {
		VMOVUPS(y[8+i], Mem{Base: RDI})
		ADDQ(RDX, RDI)
		DECQ(R8)
		JEQ(LabelRef("done"))
	}
	Label("done")
	VZEROUPPER()
	RET()
}

// roundBF16 rounds to bf16 and stays float32, for processors that lack the instruction.
func roundBF16() {
	TEXT("roundBF16AVX2", NOSPLIT|NOFRAME, "func(dst, src *float32, n int)")
	Pragma("noescape")
	Doc("roundBF16AVX2 rounds n elements to the nearest bf16, ties to even, and keeps them as float32. dst may be src.")
	Load(Param("dst"), RDI)
	Load(Param("src"), RSI)
	Load(Param("n"), R8)
	broadcast := func(v uint32, y VecPhysical) {
		MOVL(U32(v), EAX)
		VMOVD(EAX, y.AsX())
		VPBROADCASTD(y.AsX(), y)
	}
	broadcast(0x7fff, Y12)
	broadcast(1, Y13)
	broadcast(0xffff0000, Y14)
	broadcast(0x00400000, Y15)
	round := func() {
		VPSRLD(Imm(16), Y0, Y1)
		VPAND(Y13, Y1, Y1)
		VPADDD(Y12, Y1, Y1)
		VPADDD(Y0, Y1, Y1)
		// A NaN must neither lose its last bit nor carry into an infinity: it becomes quiet instead.
		VPOR(Y15, Y0, Y2)
		VCMPPS(Imm(3), Y0, Y0, Y3)
		VBLENDVPS(Y3, Y2, Y1, Y1)
		VPAND(Y14, Y1, Y1)
	}
	Label("loop")
	CMPQ(R8, Imm(8))
	JLT(LabelRef("tail"))
	VMOVUPS(Mem{Base: RSI}, Y0)
	round()
	VMOVUPS(Y1, Mem{Base: RDI})
	ADDQ(Imm(32), RSI)
	ADDQ(Imm(32), RDI)
	SUBQ(Imm(8), R8)
	JMP(LabelRef("loop"))
	Label("tail")
	TESTQ(R8, R8)
	JEQ(LabelRef("done"))
	LEAQ(laneTable, RAX)
	NEGQ(R8)
	loadMask(RAX, R8, 0, Y11)
	VMASKMOVPS(Mem{Base: RSI}, Y11, Y0)
	round()
	VMASKMOVPS(Y1, Y11, Mem{Base: RDI})
	Label("done")
	VZEROUPPER()
	RET()
}
