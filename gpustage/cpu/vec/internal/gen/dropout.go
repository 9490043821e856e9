package main

import (
	"contraflow/gpustage/cpu/vec/internal/coef"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// sets is how many vectors of counters are computed side by side. A round waits for the one before, and the processor's
// schedulers don't reach far enough ahead: with AVX-512 one set ran at 3.1 elements/ns, two at 4.7 (with ten rounds).
const sets = 2

// dropout computes Philox4x32-7 on as many counters as a vector has lanes of 64 bits. A counter's words are kept in the low
// halves of such lanes; the high halves may hold anything, because VPMULUDQ does not look at them, and the low half of a
// product is the product as it is: a round is two multiplications, two shifts and two three-way exclusive ors.
//
// The counters are ordered so that merging the words by pairs and interleaving the pairs gives them in the order of the elements, 16 bytes each.
// With the byte that these share they become numbers of 16 bits, which go to the stack, from where a loop like any other picks them up.
func (m *machine) dropout() {
	m.function("dropout", "(y, x, residual []float32, group, keyLo, keyHi, pos, head, place, threshold uint32, scale float32)",
		"is y = residual + x*f, of y's length, where f is 0 or scale: see gpustage.Dropout. x[0] is element 16*group;",
		"residual may be nil.")
	left, number, bare := R8, RBX, R9
	slice("y", RDI)
	length("y")
	MOVQ(count, left)
	slice("x", RSI)
	slice("residual", RDX)
	MOVQ(RDX, bare)
	groups := m.lanes / 2 // in a set
	chunk := sets * groups * 16
	numbers := AllocLocal(2 * chunk)
	LEAQ(numbers, number)

	group, threshold, scale := m.take(), m.broadcast("threshold"), m.broadcast("scale")
	VBROADCASTSS(argument("group"), group)
	VPADDD(m.vector("groups", func(i int) uint32 {
		lane := i / 2 // of 64 bits: the even ones are interleaved first
		return uint32(lane%2*groups/2 + lane/2)
	}), group, group)
	m.holdBits(coef.PhiloxM0, coef.PhiloxM1, coef.PhiloxW0, coef.PhiloxW1, uint32(groups))
	if m.wide {
		MOVL(U32(0x5555), scratch.As32())
		KMOVW(scratch.As32(), evenLanes)
	}
	loop, done := m.label("chunk"), m.label("end")
	TESTQ(left, left)
	JLE(LabelRef(done))
	Label(loop)
	m.philox(group, number)
	MOVQ(U32(uint32(chunk)), count)
	CMPQ(left, count)
	CMOVQLT(left, count)
	m.each(1, 3, func(b block) {
		x, f, r := b.t(0), b.t(1), b.t(2)
		at := Mem{Base: number, Index: index, Scale: 2}
		b.load(RSI, x)
		VPMOVZXWD(at, f)
		if b.wide {
			const notLess = 5
			VPCMPD(Imm(notLess), threshold, f, K2)
			VMOVUPS_Z(scale, K2, f)
		} else { // the mask is of what is dropped
			VPCMPGTD(f, threshold, f)
			VANDNPS(scale, f, f)
		}
		VMULPS(x, f, x)
		alone := m.label("alone")
		TESTQ(bare, bare)
		JZ(LabelRef(alone))
		b.load(RDX, r)
		VADDPS(r, x, x) // x*f has been rounded: all kernels give the same bits
		Label(alone)
		b.store(x, RDI)
	})
	for _, p := range []GPPhysical{RDI, RSI, RDX} {
		ADDQ(U32(uint32(4*chunk)), p)
	}
	SUBQ(U32(uint32(chunk)), left)
	JGT(LabelRef(loop))
	Label(done)
	m.end()
}

// evenLanes selects lanes 0, 2, 4 and so on.
var evenLanes = K3

// philox writes the numbers of the next sets of counters, in the order of the elements, and moves group on.
func (m *machine) philox(group VecPhysical, numbers GPPhysical) {
	r := m.regs
	k0, k1 := r[0], r[1]
	// free are two registers that a round needs besides the words: it leaves two others behind.
	free := [2]VecPhysical{r[2], r[3]}
	var c [sets][4]VecPhysical
	for s := range c {
		copy(c[s][:], r[4+4*s:])
	}
	VBROADCASTSS(argument("keyLo"), k0)
	VBROADCASTSS(argument("keyHi"), k1)
	for s := range c {
		VMOVUPS(group, c[s][0])
		VPADDD(m.bits(uint32(m.lanes/2)), group, group)
		VBROADCASTSS(argument("pos"), c[s][1])
		VBROADCASTSS(argument("head"), c[s][2])
		VBROADCASTSS(argument("place"), c[s][3])
	}
	for round := range 7 {
		if round > 0 {
			VPADDD(m.bits(coef.PhiloxW0), k0, k0)
			VPADDD(m.bits(coef.PhiloxW1), k1, k1)
		}
		for s := range c {
			w, p := &c[s], free
			VPMULUDQ(m.bits(coef.PhiloxM0), w[0], p[0])
			VPMULUDQ(m.bits(coef.PhiloxM1), w[2], p[1])
			VPSRLQ(Imm(32), p[1], w[0])
			VPSRLQ(Imm(32), p[0], w[2])
			m.xor3(w[1], k0, w[0])
			m.xor3(w[3], k1, w[2])
			free = [2]VecPhysical{w[1], w[3]}
			w[1], w[3] = p[1], p[0]
		}
	}
	for s, w := range c {
		for i := 0; i < 4; i += 2 {
			VPSLLQ(Imm(32), w[i+1], w[i+1])
			if m.wide {
				VMOVDQA32(w[i], evenLanes, w[i+1])
			} else {
				VPBLENDD(Imm(0xAA), w[i+1], w[i], w[i+1])
			}
		}
		VPUNPCKLQDQ(w[3], w[1], w[0])
		VPUNPCKHQDQ(w[3], w[1], w[2])
		for half, own := range []VecPhysical{w[0], w[2]} {
			shared := w[1]
			VPSRLDQ(Imm(4), own, shared) // of each four words the second, and the third
			VPSRLDQ(Imm(8), own, w[3])
			m.xor3(own, w[3], shared)
			// Of each four words the first bytes, the second and so on; and the upper byte that is shared, 16 times.
			VPSHUFB(m.vector("turned", func(i int) uint32 { return 0x0C080400 + 0x01010101*uint32(i%4) }), own, own)
			VPSHUFB(m.vector("upper", func(int) uint32 { return 0x03030303 }), shared, shared)
			// Bytes are interleaved within 128 bits: first the lower halves of these, then the upper ones.
			m.spread(own, k0)
			m.spread(shared, k0)
			at := 16*m.lanes*s + 8*m.lanes*half
			VPUNPCKLBW(own, shared, w[3])
			VMOVUPS(w[3], Mem{Base: numbers, Disp: at})
			VPUNPCKHBW(own, shared, w[3])
			VMOVUPS(w[3], Mem{Base: numbers, Disp: at + 4*m.lanes})
		}
	}
}

// spread puts the first half of r's quadwords where they are the lower ones of each 128 bits, and the others where they are the upper ones.
func (m *machine) spread(r, order VecPhysical) {
	if !m.wide {
		VPERMQ(Imm(0b11_01_10_00), r, r)
		return
	}
	half := m.lanes / 4 // of the quadwords
	VMOVUPS(m.vector("spread", func(i int) uint32 { return uint32((i/2%2*half + i/4) * (1 - i%2)) }), order)
	VPERMQ(r, order, r)
}

// xor3 is r ^= a ^ b.
func (m *machine) xor3(a, b, r VecPhysical) {
	if m.wide {
		VPTERNLOGD(Imm(0x96), a, b, r)
		return
	}
	VPXOR(a, r, r)
	VPXOR(b, r, r)
}
