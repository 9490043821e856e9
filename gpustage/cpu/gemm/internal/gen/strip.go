package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// A strip kernel is one function: a loop over panels of B, and in it one loop over k for each number of rows, exactly as
// many accumulators as there are rows (a strip with fewer rows than the most is common: the end of a matrix, a short
// sequence). Whole strips have others besides, unrolled. What comes before and after the loop over k is shared by all of them.
//
// The registers: a5 and a10 point at rows 5 and 10 of A. With one and three row strides as index and the scales 1, 2
// and 4, three bases reach 14 rows, whatever A's strides are: A may be read where it lies, by rows or by columns.
var (
	args  = RDI
	a0    = RSI
	a5    = R10
	a10   = R11
	rs1   = R8
	rs3   = R9
	ks    = R13
	bp    = RBX
	far   = RDX // a third of a strip's rows
	fetch = R14
	fstep = R15
	count = RCX
	cp    = R12
	cols  = RAX
	zmm   = []VecPhysical{Z0, Z1, Z2, Z3, Z4, Z5, Z6, Z7, Z8, Z9, Z10, Z11, Z12, Z13, Z14, Z15, Z16, Z17, Z18, Z19, Z20, Z21, Z22, Z23, Z24, Z25, Z26, Z27, Z28, Z29, Z30, Z31}
	ymm   = []VecPhysical{Y0, Y1, Y2, Y3, Y4, Y5, Y6, Y7, Y8, Y9, Y10, Y11, Y12, Y13, Y14, Y15}
	masks = []OpmaskPhysical{K1, K2}
)

// stepsAhead is how far the loop over k fetches a panel of B, which comes from the second-level cache.
const stepsAhead = 8

// rowOfA is the address of A's row i, disp bytes after the current k.
func rowOfA(i, disp int) Mem {
	base := []GPPhysical{a0, a5, a10}[i/5]
	switch i % 5 {
	case 0:
		return Mem{Base: base, Disp: disp}
	case 3:
		return Mem{Base: base, Index: rs3, Scale: 1, Disp: disp}
	}
	return Mem{Base: base, Index: rs1, Scale: uint8(i % 5), Disp: disp}
}

// tile is a micro-kernel: up to rows x 2*lanes elements of C in registers, or half as wide for the last few columns.
type tile struct {
	name        string
	rows, lanes int
	columns     int  // steps of k are so many elements apart where A's transpose was packed; 0 if the loop is not unrolled
	fetches     bool // rows of A for later
	doc         string
	zero        func(acc int)
	loadB       func(v, disp int)
	broadcastA  func(i, disp int)
	mul         func(v, i, acc int)
	store       func(nv int, rows rowChain)

	size int // bytes of an element
}

func (t tile) shift() Op    { return Imm(uint64(t.size/8 + 2)) } // to the left: elements to bytes
func (t tile) scale() uint8 { return uint8(t.size) }
func (t tile) panel() int   { return 2 * t.lanes * t.size } // bytes of a step

// multiplier is the instruction at the heart of a 512-bit kernel: acc += a*b on registers with these numbers.
type multiplier struct {
	doc string
	mul func(b, a, acc int)
}

var (
	fma = multiplier{"A and B are float32.", func(b, a, acc int) { VFMADD231PS(zmm[b], zmm[a], zmm[acc]) }}
	dot = multiplier{"A and B are pairs of bf16, neighbours in k, in the place of a float32.", vdpbf16ps}
)

// stripAVX512 has 28 accumulators, 2 registers for B and 2 in turn for A.
func stripAVX512(name string, m multiplier) {
	const b, a = 28, 30
	strip(tile{
		name: name, rows: 14, lanes: 16, size: 4, columns: 16, fetches: true, doc: m.doc,
		zero:       func(acc int) { VPXORD(zmm[acc], zmm[acc], zmm[acc]) },
		loadB:      func(v, disp int) { VMOVUPS(Mem{Base: bp, Disp: disp + 64*v}, zmm[b+v]) },
		broadcastA: func(i, disp int) { VBROADCASTSS(rowOfA(i, disp), zmm[a+i%2]) },
		mul:        func(v, i, acc int) { m.mul(b+v, a+i%2, acc) },
		store:      func(nv int, rows rowChain) { store512(nv, zmm[a], rows) },
	})
}

// stripAVX2 has 12 accumulators, 2 registers for B and 2 in turn for A. It fetches no rows of A for later: its step is 12
// multiply-adds and 9 reads, and three fetches more cost up to a fifth (Zen 3, shapes of gemm's benchmark: medians of 14
// rounds 83, 85, 81, 74, 73, 83, 79, 75 % of the peak without and 84, 83, 71, 68, 61, 75, 73, 64 with).
func stripAVX2() {
	const b, a = 12, 14
	strip(tile{
		name: "stripAVX2", rows: 6, lanes: 8, size: 4, doc: fma.doc,
		zero:       func(acc int) { VXORPS(ymm[acc], ymm[acc], ymm[acc]) },
		loadB:      func(v, disp int) { VMOVUPS(Mem{Base: bp, Disp: disp + 32*v}, ymm[b+v]) },
		broadcastA: func(i, disp int) { VBROADCASTSS(rowOfA(i, disp), ymm[a+i%2]) },
		mul:        func(v, i, acc int) { VFMADD231PS(ymm[b+v], ymm[a+i%2], ymm[acc]) },
		store:      func(nv int, rows rowChain) { store256(nv, single, ymm[a], ymm[b:b+2], ymm[a+1], rows) },
	})
}

// strip64AVX2 is stripAVX2 of float64, of which a register has half as many.
func strip64AVX2() {
	const b, a = 12, 14
	strip(tile{
		name: "strip64AVX2", rows: 6, lanes: 4, size: 8, doc: "A and B are float64.",
		zero:       func(acc int) { VXORPD(ymm[acc], ymm[acc], ymm[acc]) },
		loadB:      func(v, disp int) { VMOVUPD(Mem{Base: bp, Disp: disp + 32*v}, ymm[b+v]) },
		broadcastA: func(i, disp int) { VBROADCASTSD(rowOfA(i, disp), ymm[a+i%2]) },
		mul:        func(v, i, acc int) { VFMADD231PD(ymm[b+v], ymm[a+i%2], ymm[acc]) },
		store:      func(nv int, rows rowChain) { store256(nv, double, ymm[a], ymm[b:b+2], ymm[a+1], rows) },
	})
}

func strip(t tile) {
	stripType = fmt.Sprintf("strip%d", 8*t.size)
	// A byte stands in for the strip, a type that avo can't know.
	TEXT(t.name, NOSPLIT|NOFRAME, "func(s *byte)")
	Pragma("noescape")
	Doc(fmt.Sprintf("%s multiplies the %s at s: up to %d rows of A by panels of B, %d columns wide, one after another", t.name, stripType, t.rows, 2*t.lanes),
		"until s.cols columns of C are done. s.k, s.rows and s.cols are at least 1. "+t.doc)
	Load(Param("s"), args)
	MOVQ(field("b"), bp)
	MOVQ(field("ks"), ks)
	SHLQ(t.shift(), ks)
	MOVQ(field("rs"), rs1)
	SHLQ(t.shift(), rs1)
	LEAQ(Mem{Base: rs1, Index: rs1, Scale: 2}, rs3)
	if t.fetches {
		MOVQ(field("fetch"), fetch)
		MOVQ(field("fetchRow"), far)
		IMUL3Q(Imm(uint64(4*((t.rows+2)/3))), far, far)
		MOVQ(field("fetchStep"), fstep)
		SHLQ(Imm(2), fstep)
	}
	MOVQ(field("c"), cp)
	MOVQ(field("cols"), cols)

	Label("panel")
	panelStart(t)
	CMPQ(cols, Imm(uint64(t.lanes)))
	JLE(LabelRef("narrow"))
	panel(t, 2)

	// The next panel, if there is one. The loop over k has moved bp and fetch.
	MOVQ(field("k"), count)
	if t.fetches {
		MOVQ(count, a0)
		IMULQ(fstep, a0)
		SUBQ(a0, fetch)
		MOVQ(field("fetchRow"), a0)
		LEAQ(Mem{Base: fetch, Index: a0, Scale: 4}, fetch)
	}
	IMUL3Q(Imm(uint64(t.panel())), count, count)
	SUBQ(count, bp)
	MOVQ(field("pb"), count)
	LEAQ(Mem{Base: bp, Index: count, Scale: t.scale()}, bp)
	ADDQ(Imm(uint64(t.panel())), cp)
	SUBQ(Imm(uint64(2*t.lanes)), cols)
	JGT(LabelRef("panel"))
	VZEROUPPER()
	RET()

	Label("narrow")
	panel(t, 1)
	VZEROUPPER()
	RET()
}

// panelStart fetches the lines of C that the panel will end in, points at A, and clears the accumulators.
func panelStart(t tile) {
	MOVQ(field("rows"), count)
	MOVQ(field("ldc"), a5)
	MOVQ(cp, a0)
	Label("touch")
	for d := 0; d < t.panel(); d += 64 {
		PREFETCHT0(Mem{Base: a0, Disp: d})
	}
	LEAQ(Mem{Base: a0, Index: a5, Scale: t.scale()}, a0)
	DECQ(count)
	JNZ(LabelRef("touch"))
	MOVQ(field("a"), a0)
	LEAQ(Mem{Base: rs1, Index: rs1, Scale: 4}, a5)
	if t.rows > 10 {
		LEAQ(Mem{Base: a0, Index: a5, Scale: 2}, a10)
	}
	ADDQ(a0, a5)
	for acc := range 2 * t.rows {
		t.zero(acc)
	}
}

// dispatch goes to label(rows) for the strip's number of rows, and falls through for 1.
func dispatch(t tile, label func(rows int) string) {
	MOVQ(field("rows"), count)
	for rows := t.rows; rows > 1; rows-- {
		CMPQ(count, Imm(uint64(rows)))
		JEQ(LabelRef(label(rows)))
	}
}

// panel is the loop over k for each number of rows, and what writes C.
func panel(t tile, nv int) {
	width := nv * t.lanes
	id := func(what string) func(rows int) string {
		return func(rows int) string { return fmt.Sprintf("%s%dx%d", what, rows, width) }
	}
	rowsID, stepID := id("rows"), id("step")
	done := fmt.Sprintf("done%d", width)
	dispatch(t, rowsID)
	for rows := 1; rows <= t.rows; rows++ {
		Label(rowsID(rows))
		MOVQ(field("k"), count)
		if t.columns > 0 && rows == t.rows && nv == 2 {
			unrolled(t, done, stepID(rows))
		} else {
			pcalign(64) // of a loop behind the unrolled ones, or of these, it would keep Go's assembler busy for ever
		}
		Label(stepID(rows))
		step(t, nv, rows, 0, 0)
		fetchRows(t)
		move(t, rows, 1, func(p GPPhysical) { ADDQ(ks, p) })
		DECQ(count)
		JNZ(LabelRef(stepID(rows)))
		if rows < t.rows {
			JMP(LabelRef(done))
		}
	}
	Label(done)
	// From the last row of C upwards: whatever the number of rows, the end of the chain is the same code.
	MOVQ(field("ldc"), a5)
	SHLQ(t.shift(), a5)
	MOVQ(field("rows"), a0)
	DECQ(a0)
	IMULQ(a5, a0)
	ADDQ(cp, a0)
	NEGQ(a5)
	t.store(nv, func(what string, row func(c Mem, acc int)) {
		label := id(what)
		dispatch(t, label)
		JMP(LabelRef(label(1)))
		for i := t.rows - 1; i >= 0; i-- {
			Label(label(i + 1))
			row(Mem{Base: a0}, 2*i)
			if i > 0 {
				ADDQ(a5, a0)
			}
		}
		JMP(LabelRef(fmt.Sprintf("written%d", width)))
	})
	Label(fmt.Sprintf("written%d", width))
}

// step is one step of k, dispA and dispB bytes after the current one.
func step(t tile, nv, rows, dispA, dispB int) {
	for v := range nv {
		t.loadB(v, dispB)
	}
	for d := 0; d < nv*t.lanes*t.size; d += 64 {
		PREFETCHT0(Mem{Base: bp, Disp: dispB + stepsAhead*t.panel() + d})
	}
	for i := range rows {
		t.broadcastA(i, dispA)
		for v := range nv {
			t.mul(v, i, 2*i+v)
		}
	}
}

// fetchRows brings lines of A for a later strip.
func fetchRows(t tile) {
	if t.fetches {
		PREFETCHT1(Mem{Base: fetch})
		PREFETCHT1(Mem{Base: fetch, Index: far, Scale: 1})
		PREFETCHT1(Mem{Base: fetch, Index: far, Scale: 2})
	}
}

// unrolled is the loop over k for whole strips and panels, four steps at a time, for the two strides of A there are in large
// products: 1, and panels of packed columns. It goes on at done, or at single for the steps that are left.
//
// Additions of integers share ports with the multiply-adds: on a Xeon with AMX, on a quiet machine, a product of 4096 x 1536 x 384
// went from 179 to 186 GFLOP/s (NN and NT) and from 163 to 166 (TN); the peak was 229. With AVX2 nothing changed.
func unrolled(t tile, done, single string) {
	const steps = 4
	for _, stride := range []int{1, t.columns} {
		next, loop, last := fmt.Sprintf("stride%d", stride), fmt.Sprintf("four%d", stride), fmt.Sprintf("last%d", stride)
		CMPQ(ks, Imm(uint64(t.size*stride)))
		JNE(LabelRef(next))
		SUBQ(Imm(steps), count)
		JLT(LabelRef(last))
		Label(loop)
		for u := range steps {
			step(t, 2, t.rows, t.size*stride*u, t.panel()*u)
		}
		fetchRows(t)
		move(t, t.rows, steps, func(p GPPhysical) { ADDQ(U32(uint32(t.size*stride*steps)), p) })
		SUBQ(Imm(steps), count)
		JGE(LabelRef(loop))
		Label(last)
		ADDQ(Imm(steps), count)
		JEQ(LabelRef(done))
		JMP(LabelRef(single))
		Label(next)
	}
}

// move goes on by some steps of k; byStep moves a pointer to A.
func move(t tile, rows, steps int, byStep func(p GPPhysical)) {
	ADDQ(U32(uint32(t.panel()*steps)), bp)
	if t.fetches {
		LEAQ(Mem{Base: fetch, Index: fstep, Scale: uint8(steps)}, fetch)
	}
	byStep(a0)
	if rows > 5 {
		byStep(a5)
	}
	if rows > 10 {
		byStep(a10)
	}
}

// rowChain emits row for each row of C from the last one up, entered at the strip's number of rows. acc is the number
// of the row's first accumulator. a0 walks over C; count, a10 and cols are free for the use of what comes before.
type rowChain func(label string, row func(c Mem, acc int))

// selectColumns makes masks select the columns of a panel of nv vectors that exist. It changes count and tmp.
func selectColumns(label string, nv int, tmp GPPhysical) {
	MOVQ(I64(-1), tmp)
	CMPQ(cols, Imm(uint64(16*nv)))
	JGE(LabelRef(label))
	MOVQ(cols, count)
	MOVQ(U32(1), tmp)
	SHLQ(CL, tmp)
	DECQ(tmp)
	Label(label)
	KMOVW(tmp.As32(), masks[0])
	if nv == 2 {
		SHRQ(Imm(16), tmp)
		KMOVW(tmp.As32(), masks[1])
	}
}

// store512 is c = alpha*acc, or alpha*acc + c, of the columns that exist.
func store512(nv int, alpha VecPhysical, rows rowChain) {
	width := fmt.Sprint(16 * nv)
	selectColumns("mask"+width, nv, a10)
	VBROADCASTSS(field("alpha"), alpha)
	at := func(c Mem, v int) Mem { c.Disp = 64 * v; return c }
	CMPB(field("add"), Imm(0))
	JEQ(LabelRef("write" + width))
	rows("add", func(c Mem, acc int) {
		for v := range nv {
			VFMADD213PS(at(c, v), alpha, masks[v], zmm[acc+v])
			VMOVUPS(zmm[acc+v], masks[v], at(c, v))
		}
	})
	Label("write" + width)
	rows("set", func(c Mem, acc int) {
		for v := range nv {
			VMULPS(alpha, zmm[acc+v], zmm[acc+v])
			VMOVUPS(zmm[acc+v], masks[v], at(c, v))
		}
	})
}

// precision is AVX2's instructions for elements of so many lanes.
type precision struct {
	lanes                 int
	broadcast, move       func(ops ...Op)
	multiply, multiplyAdd func(ops ...Op)
	moveMasked            func(from, mask, to Op)
	mask                  func(table, negN GPPhysical, skip int, mask VecPhysical)
}

var (
	single = precision{8, VBROADCASTSS, VMOVUPS, VMULPS, VFMADD213PS, VMASKMOVPS, loadMask}
	double = precision{4, VBROADCASTSD, VMOVUPD, VMULPD, VFMADD213PD, VMASKMOVPD, loadMask64}
)

// store256 is store512 for AVX2. Masked stores are slow on some processors: a full panel is stored without.
func store256(nv int, p precision, alpha VecPhysical, mask []VecPhysical, tmp VecPhysical, rows rowChain) {
	width := fmt.Sprint(p.lanes * nv)
	p.broadcast(field("alpha"), alpha)
	at := func(c Mem, v int) Mem { c.Disp = 32 * v; return c }
	CMPQ(cols, Imm(uint64(p.lanes*nv)))
	JLT(LabelRef("part" + width))
	CMPB(field("add"), Imm(0))
	JEQ(LabelRef("write" + width))
	rows("add", func(c Mem, acc int) {
		for v := range nv {
			p.multiplyAdd(at(c, v), alpha, ymm[acc+v])
			p.move(ymm[acc+v], at(c, v))
		}
	})
	Label("write" + width)
	rows("set", func(c Mem, acc int) {
		for v := range nv {
			p.multiply(alpha, ymm[acc+v], ymm[acc+v])
			p.move(ymm[acc+v], at(c, v))
		}
	})
	Label("part" + width)
	LEAQ(laneTable, count)
	MOVQ(cols, a10)
	NEGQ(a10)
	for v := range nv {
		p.mask(count, a10, p.lanes*v, mask[v])
	}
	CMPB(field("add"), Imm(0))
	JEQ(LabelRef("writepart" + width))
	rows("addpart", func(c Mem, acc int) {
		for v := range nv {
			p.moveMasked(at(c, v), mask[v], tmp)
			p.multiplyAdd(tmp, alpha, ymm[acc+v])
			p.moveMasked(ymm[acc+v], mask[v], at(c, v))
		}
	})
	Label("writepart" + width)
	rows("setpart", func(c Mem, acc int) {
		for v := range nv {
			p.multiply(alpha, ymm[acc+v], ymm[acc+v])
			p.moveMasked(ymm[acc+v], mask[v], at(c, v))
		}
	})
}
