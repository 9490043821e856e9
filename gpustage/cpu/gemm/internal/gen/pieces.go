package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// pieces is how many numbers of bf16 hold one of float32: 8 bits each of 24.
const pieces = 3

// split writes the pairs of lo's and hi's elements, a piece at a time: what rounding them to bf16 leaves is exact, and the next piece. Z31 is
// the order of interleave, Z30 has the upper halves set. It leaves lo, hi, t and u changed.
func split(lo, hi, t, u int, store func(piece int)) {
	for p := range pieces {
		vcvtne2ps2bf16(lo, hi, t)
		VPERMW(zmm[t], Z31, zmm[t])
		store(p)
		if p+1 == pieces {
			return
		}
		VPSLLD(Imm(16), zmm[t], zmm[u])
		VSUBPS(zmm[u], zmm[lo], zmm[lo])
		VPANDD(Z30, zmm[t], zmm[u])
		VSUBPS(zmm[u], zmm[hi], zmm[hi])
	}
}

// splitConstants sets what split wants. It leaves R11 changed.
func splitConstants(order Mem) {
	VMOVUPS(order, Z31)
	MOVL(U32(0xffff0000), R11L)
	VPBROADCASTD(R11L, Z30)
}

// copyPanelsPieces makes copies as copyPanelsBF16 does, for one group: 16 rows of pairs of each piece, one behind the other.
func copyPanelsPieces(order Mem) {
	pairPanels("piecesOfRowsB", 32, 2, func() { splitConstants(order) }, func(v int) {
		split(2*v, 2*v+1, 4+v, 6+v, func(p int) {
			VMOVUPS(zmm[4+v], Mem{Base: R12, Disp: 64*v + p*16*128})
		})
	})
	Doc("piecesOfRowsB splits k rows, 1 to 32, of cols >= 1 elements from src, ss elements apart, into pieces and writes them as panels",
		"of 32 columns to dst, ps elements apart: (k+1)/2 rows of 32 pairs (row 2i, row 2i+1) of each piece, 16 rows from piece to piece.")
}

// piecesOfRows makes rows of A, whose neighbours in k are pairs as they are.
func piecesOfRows(order Mem) {
	everyOther := GLOBL("everyOther", RODATA|NOPTR)
	for i := range 32 {
		DATA(4*i, U32(uint32(2*(i%16)+i/16)))
	}
	TEXT("piecesOfRowsA", NOSPLIT|NOFRAME, "func(dst *float32, ds int, src *float32, ld, n, k int)")
	Pragma("noescape")
	Doc("piecesOfRowsA splits k >= 1 elements of each of n >= 1 rows, ld apart, into pieces and writes them to rows of dst, ds apart:",
		"for each 32 elements 16 pairs of each piece, one behind the other. What is missing of the last 32 is zero.")
	Load(Param("dst"), RDI)
	Load(Param("ds"), RDX)
	SHLQ(Imm(2), RDX)
	Load(Param("src"), RSI)
	Load(Param("ld"), RAX)
	SHLQ(Imm(2), RAX)
	Load(Param("n"), R9)
	Load(Param("k"), R8)
	splitConstants(order)
	VMOVUPS(everyOther, Z29)
	VMOVUPS(everyOther.Offset(64), Z28)
	MOVQ(R8, RCX)
	ANDQ(Imm(31), RCX)
	setMasks512(0, 2)
	group := func() {
		VMOVAPS(Z29, Z2)
		VPERMI2PS(Z1, Z0, Z2)
		VMOVAPS(Z28, Z3)
		VPERMI2PS(Z1, Z0, Z3)
		split(2, 3, 4, 5, func(p int) { VMOVUPS(Z4, Mem{Base: R13, Disp: 64 * p}) })
	}
	Label("row")
	MOVQ(RSI, R12)
	MOVQ(RDI, R13)
	MOVQ(R8, R10)
	SUBQ(Imm(32), R10)
	JLT(LabelRef("tail"))
	Label("group")
	VMOVUPS(Mem{Base: R12}, Z0)
	VMOVUPS(Mem{Base: R12, Disp: 64}, Z1)
	group()
	ADDQ(Imm(128), R12)
	ADDQ(U32(64*pieces), R13)
	SUBQ(Imm(32), R10)
	JGE(LabelRef("group"))
	Label("tail")
	CMPQ(R10, I8(-32))
	JEQ(LabelRef("next"))
	VMOVUPS_Z(Mem{Base: R12}, K1, Z0)
	VMOVUPS_Z(Mem{Base: R12, Disp: 64}, K2, Z1)
	group()
	Label("next")
	ADDQ(RAX, RSI)
	ADDQ(RDX, RDI)
	DECQ(R9)
	JNZ(LabelRef("row"))
	VZEROUPPER()
	RET()
}
