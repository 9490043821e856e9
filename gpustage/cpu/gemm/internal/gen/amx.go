package main

import (
	"bytes"
	"encoding/binary"
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/ir"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// AMX has eight tiles, here of 16 rows of 64 bytes each. Four of them are C, 32 x 32 sums, two are A, 16 rows of 32 bf16
// each, and two are B, 16 pairs of k by 16 columns: TDPBF16PS adds the product of a tile of A and one of B to one of C, in
// 16 cycles. For each 32 of k that is four tiles read and four products, which keeps the unit busy if what is read lies in
// the first-level cache.
//
// Neither avo nor the Go assembler knows the instructions. Intel's manual (volume 2) gives
//
//	LDTILECFG  m512               VEX.128.NP.0F38.W0 49 !(11):000:bbb
//	TILERELEASE                   VEX.128.NP.0F38.W0 49 C0
//	TILEZERO   tmm1               VEX.128.F2.0F38.W0 49 11:rrr:000
//	TILELOADD  tmm1, sibmem       VEX.128.F2.0F38.W0 4B !(11):rrr:100
//	TILESTORED sibmem, tmm1       VEX.128.F3.0F38.W0 4B !(11):rrr:100
//	TDPBF16PS  tmm1, tmm2, tmm3   VEX.128.F3.0F38.W0 5C 11:rrr:bbb    tmm1 += tmm2 x tmm3, tmm3 in vvvv
//
// and a VEX instruction (section 2.3.5) begins with three bytes:
//
//	c4                      escape
//	~r3 ~x3 ~b3 00010       the fourth bits of the ModRM byte's register, the index and the base; opcode map 0F38
//	W=0 ~v3 ~v2 ~v1 ~v0 0 pp   pp: 00 is NP, 10 is F3, 11 is F2
//
// sibmem is base + index, the index being the bytes between a tile's rows; a displacement is always given, of eight bits or, with 10 in the
// place of ModRM's 01, of 32.
const (
	opTileConfig = 0x49
	opTileMove   = 0x4b
	opTileDot    = 0x5c
	ppNone       = 0
)

func vex(op, pp, v int, x, b GPPhysical, rest ...byte) []byte {
	fourth := func(r GPPhysical) int {
		if r == nil {
			return 0
		}
		return number(r) >> 3
	}
	return append([]byte{0xc4, byte(1<<7 | (1-fourth(x))<<6 | (1-fourth(b))<<5 | 2), byte(^v&15<<3 | pp), byte(op)}, rest...)
}

// number is a register's number in instructions.
func number(r GPPhysical) int {
	for i, q := range []GPPhysical{RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8, R9, R10, R11, R12, R13, R14, R15} {
		if q == r {
			return i
		}
	}
	panic(fmt.Sprintf("%s is no 64-bit register", r.Asm()))
}

func sibmem(pp, tile int, base, index GPPhysical, disp int) []byte {
	mod, tail := byte(1<<6), []byte{byte(disp)}
	if disp != int(int8(disp)) {
		mod, tail = 2<<6, binary.LittleEndian.AppendUint32(nil, uint32(disp))
	}
	return vex(opTileMove, pp, 0, index, base, append([]byte{mod | byte(tile<<3|4), byte(number(index)&7<<3 | number(base)&7)}, tail...)...)
}

func encodeTileDot(c, a, b int) []byte { return vex(opTileDot, ppF3, b, nil, nil, byte(3<<6|c<<3|a)) }

func encodeTileLoad(tile int, base, index GPPhysical, disp int) []byte {
	return sibmem(ppF2, tile, base, index, disp)
}

func encodeTileStore(tile int, base, index GPPhysical, disp int) []byte {
	return sibmem(ppF3, tile, base, index, disp)
}

func encodeTileZero(tile int) []byte {
	return vex(opTileConfig, ppF2, 0, nil, nil, byte(3<<6|tile<<3))
}

func encodeTileConfig(base GPPhysical, disp int8) []byte {
	return vex(opTileConfig, ppNone, 0, nil, base, byte(1<<6|number(base)&7), byte(disp))
}

func encodeTileRelease() []byte { return vex(opTileConfig, ppNone, 0, nil, nil, 0xc0) }

func tiledot(c, a, b int) {
	emit(encodeTileDot(c, a, b), fmt.Sprintf("TDPBF16PS TMM%d, TMM%d, TMM%d", b, a, c))
}

func tileload(base, index GPPhysical, disp, tile int) {
	emit(encodeTileLoad(tile, base, index, disp), fmt.Sprintf("TILELOADD %d(%s)(%s*1), TMM%d", disp, base.Asm(), index.Asm(), tile))
}

func tilestore(tile int, base, index GPPhysical, disp int) {
	emit(encodeTileStore(tile, base, index, disp), fmt.Sprintf("TILESTORED TMM%d, %d(%s)(%s*1)", tile, disp, base.Asm(), index.Asm()))
}

func tilezero(tile int) { emit(encodeTileZero(tile), fmt.Sprintf("TILEZERO TMM%d", tile)) }

// tileconfig takes all tiles into use, 16 rows of 64 bytes; it leaves R15 changed.
func tileconfig() {
	LEAQ(tileShapes, R15)
	emit(encodeTileConfig(R15, 0), "LDTILECFG (R15)")
}

// tilerelease leaves no tiles in use: what an interrupted thread has in them is saved each time.
func tilerelease() { emit(encodeTileRelease(), "TILERELEASE") }

// tileShapes is LDTILECFG's operand: palette 1; from byte 16 each tile's bytes in a row, from byte 48 its rows.
var tileShapes = NewDataAddr(Symbol{Name: "tileShapes", Static: true}, 0)

func defineTileShapes() {
	GLOBL(tileShapes.Symbol.Name, RODATA|NOPTR)
	for i, v := range []uint64{1, 0, 0x0040_0040_0040_0040, 0x0040_0040_0040_0040, 0, 0, 0x1010_1010_1010_1010, 0} {
		DATA(8*i, U64(v))
	}
}

// The tiles.
const (
	tileA, tileB = 4, 6
	scratchRow   = 128 // bytes: two tiles side by side
)

// pieceProducts are the products of a piece of A and one of B that make up a product in float32, in an order in which each loads new tiles of
// A or of B, not of both, and the largest comes last but one, so that adding most others rounds little where it is all there is. What is left
// out is no larger than float32's own rounding: see pieces_amd64.go.
var pieceProducts = [][2]int{{0, 2}, {0, 1}, {1, 1}, {1, 0}, {0, 0}, {2, 0}}

// stripAMX multiplies a strip of up to 32 rows. Tiles of C that exist as a whole, with alpha = 1, are read and written
// where they lie; all others pass through a block on the stack. Either way a sum starts with what it is added to, or, if
// alpha is not 1, is scaled and then added: an element's bits don't depend on which way it goes. In pieces it always starts
// with 0 and is added at the end: rounded six times for 32 elements of k, the sum of a long row would lose what its pieces have gained.
//
// Fetching B's tiles two steps ahead, or C's lines before they are written, changed nothing that could be told from noise.
func stripAMX(name string, inPieces bool) {
	var (
		a, a1, as = RSI, R8, R9
		bs        = R10 // bytes between rows of B
		ldc       = R11
		scratch   = R13
		row, left = R15, RDX
	)
	n, products := 1, [][2]int{{0, 0}}
	what := "A and B are pairs of bf16, neighbours in k, in the place of a float32"
	if inPieces {
		n, products = pieces, pieceProducts
		what = "Of A and B each 16 steps are the pairs of piece 0, as many of piece 1 and of piece 2 in the places of 48 float32"
	}
	TEXT(name, 0, "func(s *byte)")
	Pragma("noescape")
	Doc(name+" multiplies the strip32 at s: up to 32 rows of A by panels of B, 32 columns wide, one after another",
		fmt.Sprintf("until s.cols columns of C are done. s.rows and s.cols are at least 1, s.k is a multiple of %d and at least that.", 16*n),
		what+"; A can be read for whole tiles of 16 rows.")
	frame := AllocLocal(32*scratchRow + 64)
	Load(Param("s"), args)
	LEAQ(frame.Offset(64), scratch)
	ANDQ(I8(-64), scratch)
	MOVQ(field("b"), bp)
	MOVQ(field("rs"), as)
	SHLQ(Imm(2), as)
	MOVQ(field("c"), cp)
	MOVQ(field("ldc"), ldc)
	SHLQ(Imm(2), ldc)
	MOVQ(field("cols"), cols)
	MOVQ(U32(128), bs)
	tileconfig()

	Label("panel")
	MOVQ(field("a"), a)
	MOVQ(as, a1)
	SHLQ(Imm(4), a1)
	ADDQ(a, a1)
	// whole goes on if alpha is 1 and all of the panel's 32 x 32 elements of C exist, and else to one of two labels.
	whole := func(scaled, part string) {
		CMPL(field("alpha"), U32(0x3f800000))
		JNE(LabelRef(scaled))
		CMPQ(cols, Imm(32))
		JLT(LabelRef(part))
		CMPQ(field("rows"), Imm(32))
		JLT(LabelRef(part))
	}
	// each calls move for the four tiles of C, whose rows begin stride bytes apart from base on.
	each := func(base, stride GPPhysical, move func(tile int, base GPPhysical, disp int)) {
		move(0, base, 0)
		move(1, base, 64)
		MOVQ(stride, row)
		SHLQ(Imm(4), row)
		ADDQ(base, row)
		move(2, row, 0)
		move(3, row, 64)
	}
	load := func(base, stride GPPhysical) {
		each(base, stride, func(tile int, base GPPhysical, disp int) { tileload(base, stride, disp, tile) })
	}
	store := func(base, stride GPPhysical) {
		each(base, stride, func(tile int, base GPPhysical, disp int) { tilestore(tile, base, stride, disp) })
	}
	if !inPieces {
		whole("clear", "partial")
		CMPB(field("add"), Imm(0))
		JEQ(LabelRef("clear"))
		load(cp, ldc)
		JMP(LabelRef("multiply"))

		Label("partial")
		CMPB(field("add"), Imm(0))
		JEQ(LabelRef("clear"))
		selectColumns("masksin", 2, row)
		MOVQ(field("rows"), count)
		MOVQ(cp, row)
		MOVQ(scratch, left)
		Label("in")
		for v := range 2 {
			VMOVUPS_Z(Mem{Base: row, Disp: 64 * v}, opmasks[v], zmm[v])
			VMOVUPS(zmm[v], Mem{Base: left, Disp: 64 * v})
		}
		ADDQ(ldc, row)
		ADDQ(Imm(scratchRow), left)
		DECQ(count)
		JNZ(LabelRef("in"))
		load(scratch, bs)
		JMP(LabelRef("multiply"))

		Label("clear")
	}
	for i := range 4 {
		tilezero(i)
	}

	Label("multiply")
	MOVQ(field("k"), count)
	CMPQ(field("rows"), Imm(16))
	JLE(LabelRef("upper"))
	CMPQ(cols, Imm(16))
	JLE(LabelRef("left"))
	steps := func(name string, rows, cols int) {
		if rows*cols == 4 {
			pcalign(64)
		}
		Label(name)
		of := [2]int{-1, -1} // the pieces of A and B that are in their tiles
		for _, p := range products {
			if of[1] != p[1] {
				for j := range cols {
					tileload(bp, bs, p[1]*16*128+64*j, tileB+j)
				}
			}
			for i := range rows {
				if of[0] != p[0] {
					tileload([]GPPhysical{a, a1}[i], as, 64*p[0], tileA+i)
				}
				for j := range cols {
					tiledot(2*i+j, tileA+i, tileB+j)
				}
			}
			of = p
		}
		ADDQ(U32(uint32(64*n)), a)
		if rows > 1 {
			ADDQ(U32(uint32(64*n)), a1)
		}
		ADDQ(U32(uint32(16*128*n)), bp)
		SUBQ(Imm(uint64(16*n)), count)
		JNZ(LabelRef(name))
	}
	steps("all", 2, 2)
	JMP(LabelRef("done"))
	Label("upper")
	CMPQ(cols, Imm(16))
	JLE(LabelRef("one"))
	steps("uppers", 1, 2)
	JMP(LabelRef("done"))
	Label("left")
	steps("lefts", 2, 1)
	JMP(LabelRef("done"))
	Label("one")
	steps("ones", 1, 1)

	Label("done")
	if inPieces {
		CMPB(field("add"), Imm(0))
		JNE(LabelRef("out"))
	}
	whole("out", "out")
	store(cp, ldc)
	JMP(LabelRef("next"))

	// Through the stack: scaled, added if that has not been done before, and only what exists.
	Label("out")
	store(scratch, bs)
	selectColumns("masksout", 2, row)
	VBROADCASTSS(field("alpha"), Z3)
	MOVQ(cp, row)
	MOVQ(scratch, left)
	MOVQ(field("rows"), count)
	CMPB(field("add"), Imm(0))
	JEQ(LabelRef("set"))
	if !inPieces {
		CMPL(field("alpha"), U32(0x3f800000))
		JEQ(LabelRef("set"))
	}
	rowsOut := func(name string, f func(v int)) {
		Label(name)
		for v := range 2 {
			VMOVUPS(Mem{Base: left, Disp: 64 * v}, zmm[v])
			f(v)
			VMOVUPS(zmm[v], opmasks[v], Mem{Base: row, Disp: 64 * v})
		}
		ADDQ(ldc, row)
		ADDQ(Imm(scratchRow), left)
		DECQ(count)
		JNZ(LabelRef(name))
	}
	rowsOut("addscaled", func(v int) {
		VFMADD213PS(Mem{Base: row, Disp: 64 * v}, zmm[3], opmasks[v], zmm[v])
	})
	JMP(LabelRef("next"))
	rowsOut("set", func(v int) { VMULPS(zmm[3], zmm[v], zmm[v]) })

	// The next panel, if there is one. The loop over k has moved bp.
	Label("next")
	MOVQ(field("k"), count)
	SHLQ(Imm(7), count)
	SUBQ(count, bp)
	MOVQ(field("pb"), count)
	LEAQ(Mem{Base: bp, Index: count, Scale: 4}, bp)
	ADDQ(Imm(128), cp)
	SUBQ(Imm(32), cols)
	JGT(LabelRef("panel"))
	tilerelease()
	VZEROUPPER()
	RET()
}

// columnsBF16 makes rows of A, as tiles want them, of its transpose.
func columnsBF16(order Mem) {
	TEXT("columnsBF16", NOSPLIT|NOFRAME, "func(dst *float32, ds int, src *float32, ss int, k, cols int)")
	Pragma("noescape")
	Doc("columnsBF16 rounds k >= 1 rows of cols >= 1 elements from src, ss elements apart, to bf16 and writes each column as a row of pairs to dst,",
		"ds elements apart, up to a multiple of 16 pairs. What is missing is zero. It writes to as many rows as the next multiple of 16 columns.")
	Load(Param("dst"), RDI)
	Load(Param("ds"), RDX)
	SHLQ(Imm(2), RDX)
	Load(Param("src"), RSI)
	Load(Param("ss"), RAX)
	SHLQ(Imm(2), RAX)
	Load(Param("k"), R8)
	VMOVUPS(order, Z31)
	// pairs leaves 16 pairs of rows from RBX on in Z0 to Z15; at loads row i.
	pairs := func(at func(i, v int)) {
		for i := range 16 {
			at(2*i, i)
			at(2*i+1, 30)
			vcvtne2ps2bf16(i, 30, i)
			VPERMW(zmm[i], Z31, zmm[i])
		}
	}
	Label("rows")
	Load(Param("cols"), R9)
	MOVQ(RSI, R10)
	MOVQ(RDI, R11)
	Label("columns")
	MOVQ(U32(0xffff), R12)
	CMPQ(R9, Imm(16))
	JGE(LabelRef("masked"))
	MOVQ(R9, RCX)
	MOVQ(U32(1), R12)
	SHLQ(CL, R12)
	DECQ(R12)
	Label("masked")
	KMOVW(R12.As32(), K1)
	MOVQ(R10, RBX)
	MOVQ(RAX, R13)
	SHLQ(Imm(5), R13) // 32 rows on
	CMPQ(R8, Imm(32))
	JLT(LabelRef("tail"))
	pairs(func(i, v int) {
		VMOVUPS_Z(Mem{Base: RBX}, K1, zmm[v])
		PREFETCHT0(Mem{Base: RBX, Index: R13, Scale: 1})
		ADDQ(RAX, RBX)
	})
	Label("transpose")
	transpose16()
	MOVQ(R11, RBX)
	for i := range 16 {
		VMOVUPS(zmm[i], Mem{Base: RBX})
		ADDQ(RDX, RBX)
	}
	VMOVUPS(order, Z31)
	MOVQ(RDX, RBX)
	SHLQ(Imm(4), RBX)
	ADDQ(RBX, R11)
	ADDQ(Imm(64), R10)
	SUBQ(Imm(16), R9)
	JGT(LabelRef("columns"))
	ADDQ(R13, RSI)
	ADDQ(Imm(64), RDI)
	SUBQ(Imm(32), R8)
	JGT(LabelRef("rows"))
	VZEROUPPER()
	RET()

	// Rows that are missing are not read: their mask is empty.
	Label("tail")
	XORQ(RCX, RCX)
	pairs(func(i, v int) {
		CMPQ(R8, Imm(uint64(i)))
		CMOVQLE(RCX, R12)
		KMOVW(R12.As32(), K2)
		VMOVUPS_Z(Mem{Base: RBX}, K2, zmm[v])
		ADDQ(RAX, RBX)
	})
	JMP(LabelRef("transpose"))
}

// probeAMX measures what the unit can do at best.
func probeAMX() {
	TEXT("probeAMX", NOSPLIT|NOFRAME, "func(n int)")
	Doc("probeAMX does n times 4 products of tiles.")
	Load(Param("n"), RCX)
	tileconfig()
	for i := range 8 {
		tilezero(i)
	}
	pcalign(64)
	Label("loop")
	for i := range 4 {
		tiledot(i, tileA+i/2, tileB+i%2)
	}
	DECQ(RCX)
	JNZ(LabelRef("loop"))
	tilerelease()
	RET()
}

// emit prints the bytes on one line, with what they mean (operands in the Go assembler's order: destination last). avo
// prints an opcode as it is, which serves to get all of it past its tables.
func emit(code []byte, meaning string) {
	var b bytes.Buffer
	for _, c := range code {
		fmt.Fprintf(&b, "BYTE $0x%02x; ", c)
	}
	Instruction(&ir.Instruction{Opcode: b.String() + "// " + meaning})
}
