package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

func (m *machine) updates() {
	m.function("adamW", "(p, m, v, g []float32, gradScale, beta1, rest1, beta2, rest2, correct2, eps, lr, decay float32)",
		"updates p, m and v from g, of p's length: see gpustage.AdamW. rest1 is 1-beta1, rest2 1-beta2; correct2 is",
		"1/sqrt(1-beta2^step), lr is divided by 1-beta1^step, decay is the learning rate times the weight decay.")
	slice("p", RDI)
	length("p")
	slice("m", RSI)
	slice("v", RDX)
	slice("g", RBX)
	gradScale, beta1, rest1, beta2, rest2 := m.broadcast("gradScale"), m.broadcast("beta1"), m.broadcast("rest1"), m.broadcast("beta2"), m.broadcast("rest2")
	correct2, eps, lr, decay := m.broadcast("correct2"), m.broadcast("eps"), m.broadcast("lr"), m.broadcast("decay")
	m.each(1, 5, func(b block) {
		g, mean, square, p := b.t(0), b.t(1), b.t(2), b.t(3)
		b.load(RBX, g)
		b.load(RSI, mean)
		b.load(RDX, square)
		b.load(RDI, p)
		VMULPS(gradScale, g, g)
		VMULPS(beta1, mean, mean)
		VFMADD231PS(rest1, g, mean)
		VMULPS(g, g, g)
		VMULPS(beta2, square, square)
		VFMADD231PS(rest2, g, square)
		b.store(mean, RSI)
		b.store(square, RDX)
		VSQRTPS(square, square)
		VFMADD213PS(eps, correct2, square)
		VMULPS(lr, mean, mean)
		VDIVPS(square, mean, mean)
		// What p loses is added up before p is rounded, once: a decay of 1e-7 alone would be lost.
		VFMADD231PS(decay, p, mean)
		VSUBPS(mean, p, p)
		b.store(p, RDI)
	})
	m.end()

	m.function("sgd", "(p, v, g []float32, gradScale, momentum, lr, decay float32)",
		"updates p and, unless it is nil, v from g, of p's length: see gpustage.SGD.")
	slice("p", RDI)
	length("p")
	slice("v", RSI)
	slice("g", RBX)
	gradScale, lr, decay = m.broadcast("gradScale"), m.broadcast("lr"), m.broadcast("decay")
	momentum := m.broadcast("momentum")
	m.each(1, 3, func(b block) {
		g, p, v := b.t(0), b.t(1), b.t(2)
		b.load(RBX, g)
		b.load(RDI, p)
		VMULPS(gradScale, g, g)
		VFMADD231PS(decay, p, g)
		bare := m.label("bare")
		TESTQ(RSI, RSI)
		JZ(LabelRef(bare))
		b.load(RSI, v)
		VFMADD231PS(momentum, v, g)
		b.store(g, RSI)
		Label(bare)
		VFNMADD231PS(lr, g, p)
		b.store(p, RDI)
	})
	m.end()
}

// conversions do whole vectors only: what is left of a slice is the portable code's, with the same bits.
func (m *machine) conversions() {
	whole := func(body func()) {
		loop, done := m.label("loop"), m.label("done")
		XORQ(index, index)
		SUBQ(Imm(uint64(m.lanes)), count)
		JLT(LabelRef(done))
		Label(loop)
		body()
		ADDQ(Imm(uint64(m.lanes)), index)
		SUBQ(Imm(uint64(m.lanes)), count)
		JGE(LabelRef(loop))
		Label(done)
	}
	r := m.regs
	halves := Mem{Base: RDI, Index: index, Scale: 2}
	m.function("toBF16", "(y []uint16, x []float32)",
		"rounds the whole vectors of y's length to bf16: to nearest, ties to even, NaN with its quiet bit set.")
	slice("y", RDI)
	length("y")
	slice("x", RSI)
	m.holdBits(1, 0x7FFF, 0x40)
	whole(func() {
		const unordered = 3
		x, top, odd := r[0], r[1], r[2]
		VMOVUPS(Mem{Base: RSI, Index: index, Scale: 4}, x)
		VPSRLD(Imm(16), x, top)
		m.and(m.bits(1), top, odd)
		VPADDD(m.bits(0x7FFF), odd, odd)
		VPADDD(odd, x, odd)
		VPSRLD(Imm(16), odd, odd)
		m.or(m.bits(0x40), top, top)
		if m.wide {
			VCMPPS(Imm(unordered), x, x, K2)
			VMOVDQA32(top, K2, odd)
			VPMOVDW(odd, odd.AsY())
			VMOVDQU(odd.AsY(), halves)
			return
		}
		VCMPPS(Imm(unordered), x, x, x)
		VBLENDVPS(x, top, odd, odd)
		VPACKUSDW(odd, odd, odd)
		VPERMQ(Imm(0x08), odd, odd)
		VMOVDQU(odd.AsX(), halves)
	})
	m.end()

	m.function("fromBF16", "(y []float32, x []uint16)", "widens the whole vectors of y's length from bf16.")
	slice("y", RDI)
	length("y")
	slice("x", RSI)
	whole(func() {
		VPMOVZXWD(Mem{Base: RSI, Index: index, Scale: 2}, r[0])
		VPSLLD(Imm(16), r[0], r[0])
		VMOVUPS(r[0], Mem{Base: RDI, Index: index, Scale: 4})
	})
	m.end()
}

func (m *machine) and(a Op, b, dst VecPhysical) {
	if m.wide {
		VPANDD(a, b, dst)
	} else {
		VPAND(a, b, dst)
	}
}

func (m *machine) or(a Op, b, dst VecPhysical) {
	if m.wide {
		VPORD(a, b, dst)
	} else {
		VPOR(a, b, dst)
	}
}
