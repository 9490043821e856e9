package main

import (
	"fmt"
	"math"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/gotypes"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// machine is an instruction set.
type machine struct {
	suffix string // of every kernel's name
	wide   bool   // AVX-512
	lanes  int    // float32 in a vector
	regs   []VecPhysical

	held   map[uint32]VecPhysical // constants in registers, in the current function
	top    int                    // registers from here on hold constants
	pool   map[string]Mem         // constants in memory, in the current file
	labels int
}

var machines = map[string]*machine{
	"avx2": {
		suffix: "AVX2", lanes: 8, pool: map[string]Mem{},
		regs: []VecPhysical{Y0, Y1, Y2, Y3, Y4, Y5, Y6, Y7, Y8, Y9, Y10, Y11, Y12, Y13, Y14, Y15},
	},
	"avx512": {
		suffix: "AVX512", wide: true, lanes: 16, pool: map[string]Mem{},
		regs: []VecPhysical{Z0, Z1, Z2, Z3, Z4, Z5, Z6, Z7, Z8, Z9, Z10, Z11, Z12, Z13, Z14, Z15, Z16, Z17, Z18, Z19, Z20, Z21, Z22, Z23, Z24, Z25, Z26, Z27, Z28, Z29, Z30, Z31},
	},
}

// The general registers with a fixed use, and the mask of the last, partial vector: K1, or the last of the AVX2 registers.
var (
	index   = RAX // of the vector at hand, in elements
	count   = RCX // elements still to do
	scratch = R15
	partial = K1
)

// function begins a kernel: name and parameters as in Go, without the suffix.
func (m *machine) function(name, signature string, doc ...string) {
	TEXT(name+m.suffix, NOSPLIT, "func"+signature)
	Pragma("noescape")
	doc[0] = name + m.suffix + " " + doc[0]
	Doc(doc...)
	m.held = map[uint32]VecPhysical{}
	m.top = len(m.regs)
	if !m.wide {
		m.top-- // for the mask
	}
}

func (m *machine) end() {
	VZEROUPPER()
	RET()
}

// slice loads a slice's address.
func slice(param string, into GPPhysical) { Load(Param(param).Base(), into) }

// word loads a parameter of one word.
func word(param string, into GPPhysical) { Load(Param(param), into) }

// length loads a slice's length into count.
func length(param string) { Load(Param(param).Len(), count) }

// argument is where a parameter is.
func argument(param string) Mem { return place(Param(param)) }

// place is where a part of a parameter is.
func place(c gotypes.Component) Mem {
	b, err := c.Resolve()
	if err != nil {
		panic(err)
	}
	return b.Addr
}

// take reserves a register at the top, until the function ends.
func (m *machine) take() VecPhysical {
	m.top--
	return m.regs[m.top]
}

// broadcast loads a parameter of 32 bits into every lane of a reserved register.
func (m *machine) broadcast(param string) VecPhysical {
	r := m.take()
	VBROADCASTSS(argument(param), r)
	return r
}

// hold keeps constants in reserved registers in AVX-512, which has enough. AVX2 reads them from memory, which costs
// little.
func (m *machine) hold(values ...float32) {
	for _, v := range values {
		m.holdBits(math.Float32bits(v))
	}
}

func (m *machine) holdBits(values ...uint32) {
	for _, bits := range values {
		if m.wide && m.held[bits] == nil {
			m.held[bits] = m.take()
			VBROADCASTSS(m.one(bits), m.held[bits])
		}
	}
}

// c is a constant in every lane: a register or memory.
func (m *machine) c(v float32) Op { return m.bits(math.Float32bits(v)) }

// bits is c for a bit pattern.
func (m *machine) bits(bits uint32) Op {
	if !m.wide {
		return m.vector(fmt.Sprintf("f%08x", bits), func(int) uint32 { return bits })
	}
	r, ok := m.held[bits]
	if !ok {
		panic(fmt.Sprintf("the constant %#x (%v) is not held", bits, math.Float32frombits(bits)))
	}
	return r
}

// vector is a vector in memory.
func (m *machine) vector(name string, lane func(i int) uint32) Mem {
	return m.data(name, m.lanes, lane)
}

// one is a single constant in memory.
func (m *machine) one(bits uint32) Mem {
	return m.data(fmt.Sprintf("s%08x", bits), 1, func(int) uint32 { return bits })
}

func (m *machine) data(name string, n int, lane func(i int) uint32) Mem {
	a, ok := m.pool[name]
	if ok {
		return a
	}
	a = GLOBL(name, RODATA|NOPTR)
	if n == 1 {
		DATA(0, U32(lane(0)))
	}
	for i := 0; i+1 < n; i += 2 {
		DATA(4*i, U64(uint64(lane(i+1))<<32|uint64(lane(i))))
	}
	m.pool[name] = a
	return a
}

func (m *machine) label(what string) string {
	m.labels++
	return fmt.Sprintf("%s%d", what, m.labels)
}

func zero(rs ...VecPhysical) {
	for _, r := range rs {
		if r.Size() == 64 {
			VPXORD(r, r, r)
		} else {
			VPXOR(r, r, r)
		}
	}
}

// block is one vector of a loop's body: the u-th of those that an iteration does.
type block struct {
	*machine
	u       int
	masked  bool // the last, partial vector
	perCopy int
}

// t is the body's i-th register. Each of an iteration's vectors has its own.
func (b block) t(i int) VecPhysical {
	if i >= b.perCopy || b.u*b.perCopy+i >= b.top {
		panic("the body uses more registers than it asked for")
	}
	return b.regs[b.u*b.perCopy+i]
}

// each emits a loop over count elements: unroll vectors an iteration, then one by one, the last one in part. The body
// uses perCopy registers of its own; those from unroll*perCopy on are the caller's.
func (m *machine) each(unroll, perCopy int, body func(block)) {
	XORQ(index, index)
	step := func(n int) { // while n vectors are left
		loop, next := m.label("loop"), m.label("next")
		SUBQ(Imm(uint64(m.lanes*n)), count)
		JLT(LabelRef(next))
		Label(loop)
		for u := range n {
			body(block{machine: m, u: u, perCopy: perCopy})
		}
		ADDQ(Imm(uint64(m.lanes*n)), index)
		SUBQ(Imm(uint64(m.lanes*n)), count)
		JGE(LabelRef(loop))
		Label(next)
		ADDQ(Imm(uint64(m.lanes*n)), count)
	}
	last := block{machine: m, masked: true, perCopy: perCopy}
	done := m.label("done")
	step(unroll)
	if unroll > 1 && !m.wide {
		step(1)
	}
	TESTQ(count, count)
	JLE(LabelRef(done))
	if unroll > 1 && m.wide { // what is left goes through masks, which cost AVX-512 nothing
		rest := m.label("rest")
		Label(rest)
		m.maskCount()
		body(last)
		ADDQ(Imm(uint64(m.lanes)), index)
		SUBQ(Imm(uint64(m.lanes)), count)
		JGT(LabelRef(rest))
	} else {
		m.maskCount()
		body(last)
	}
	Label(done)
}

// maskCount makes the mask for the first count lanes. AVX2's clobbers count.
func (m *machine) maskCount() {
	if m.wide {
		MOVL(I32(-1), scratch.As32())
		BZHIL(count.As32(), scratch.As32(), scratch.As32())
		KMOVW(scratch.As32(), partial)
		return
	}
	LEAQ(m.data("lanes", 2*m.lanes, func(i int) uint32 {
		if i < m.lanes {
			return 1<<32 - 1
		}
		return 0
	}), scratch)
	NEGQ(count)
	VMOVUPS(Mem{Base: scratch, Index: count, Scale: 4, Disp: 4 * m.lanes}, m.mask())
}

// mask is the partial vector's, of AVX2.
func (m *machine) mask() VecPhysical { return m.regs[15] }

// at is the vector's place in a slice of float32.
func (b block) at(base GPPhysical) Mem {
	return Mem{Base: base, Index: index, Scale: 4, Disp: 4 * b.lanes * b.u}
}

// load loads the vector; lanes beyond the end are 0.
func (b block) load(base GPPhysical, r VecPhysical) {
	switch {
	case !b.masked:
		VMOVUPS(b.at(base), r)
	case b.wide:
		VMOVUPS_Z(b.at(base), partial, r)
	default:
		VMASKMOVPS(b.at(base), b.mask(), r)
	}
}

// loadOr loads the vector; lanes beyond the end are fill's.
func (b block) loadOr(base GPPhysical, r, fill VecPhysical) {
	switch {
	case !b.masked:
		VMOVUPS(b.at(base), r)
	case b.wide:
		VMOVAPS(fill, r)
		VMOVUPS(b.at(base), partial, r)
	default:
		VMASKMOVPS(b.at(base), b.mask(), r)
		VBLENDVPS(b.mask(), r, fill, r)
	}
}

func (b block) store(r VecPhysical, base GPPhysical) {
	switch {
	case !b.masked:
		VMOVUPS(r, b.at(base))
	case b.wide:
		VMOVUPS(r, partial, b.at(base))
	default:
		VMASKMOVPS(r, b.mask(), b.at(base))
	}
}

// clear makes lanes beyond the end 0.
func (b block) clear(r VecPhysical) {
	switch {
	case !b.masked:
	case b.wide:
		VMOVAPS_Z(r, partial, r)
	default:
		VANDPS(b.mask(), r, r)
	}
}

// fold combines the accumulators into the first one, neighbours first.
func fold(op func(...Op), acc []VecPhysical) {
	for d := 1; d < len(acc); d *= 2 {
		for i := 0; i+d < len(acc); i += 2 * d {
			op(acc[i+d], acc[i], acc[i])
		}
	}
}

// upper extracts the upper half of a 256-bit register.
func (m *machine) upper(y Op, tmp VecPhysical) {
	if m.wide { // the registers above 15 have AVX-512's instructions only
		VEXTRACTF32X4(Imm(1), y, tmp.AsX())
	} else {
		VEXTRACTF128(Imm(1), y, tmp.AsX())
	}
}

// across combines the lanes of r into its first one: halves, quarters, and so on. tmp is another register.
func (m *machine) across(op func(...Op), r, tmp VecPhysical) {
	x, y := r.AsX(), r.AsY()
	if m.wide {
		VEXTRACTF64X4(Imm(1), r, tmp.AsY())
		op(tmp.AsY(), y, y)
	}
	m.upper(y, tmp)
	op(tmp.AsX(), x, x)
	VPSHUFD(Imm(0xee), x, tmp.AsX())
	op(tmp.AsX(), x, x)
	VPSHUFD(Imm(0x55), x, tmp.AsX())
	op(tmp.AsX(), x, x)
}
