package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// sumStep is how many vectors a sum takes at once, so that additions to one register don't wait for each other: Dot in
// AVX2 runs at 18 elements/ns with two and at 28 with four. Other loops gain nothing from more than one vector.
const sumStep = 4

// accumulators reserves registers for sums and clears them.
func (m *machine) accumulators(n int) []VecPhysical {
	var acc []VecPhysical
	for range n {
		acc = append(acc, m.take())
	}
	zero(acc...)
	return acc
}

func (m *machine) reductions() {
	m.function("dot", "(a, b []float32) float32", "is the sum of a*b, of a's length.")
	slice("a", RSI)
	length("a")
	slice("b", RDX)
	acc := m.accumulators(sumStep)
	m.each(sumStep, 2, func(b block) {
		b.load(RSI, b.t(0))
		b.load(RDX, b.t(1))
		VFMADD231PS(b.t(0), b.t(1), acc[b.u])
	})
	fold(VADDPS, acc)
	m.across(VADDPS, acc[0], acc[1])
	m.result(acc[0])

	m.function("sumSquares", "(x []float32) float64", "is the sum of x*x, in float64.")
	slice("x", RSI)
	length("x")
	acc = m.accumulators(4)
	m.each(2, 2, func(b block) {
		lo, hi := b.t(0), b.t(1)
		b.load(RSI, lo)
		if m.wide {
			VEXTRACTF64X4(Imm(1), lo, hi.AsY())
			VCVTPS2PD(hi.AsY(), hi)
			VCVTPS2PD(lo.AsY(), lo)
		} else {
			VEXTRACTF128(Imm(1), lo, hi.AsX())
			VCVTPS2PD(hi.AsX(), hi)
			VCVTPS2PD(lo.AsX(), lo)
		}
		VFMADD231PD(lo, lo, acc[2*b.u])
		VFMADD231PD(hi, hi, acc[2*b.u+1])
	})
	fold(VADDPD, acc)
	r, tmp := acc[0], acc[1]
	if m.wide {
		VEXTRACTF64X4(Imm(1), r, tmp.AsY())
		VADDPD(tmp.AsY(), r.AsY(), r.AsY())
	}
	m.upper(r.AsY(), tmp)
	VADDPD(tmp.AsX(), r.AsX(), r.AsX())
	VPSHUFD(Imm(0xee), r.AsX(), tmp.AsX())
	VADDPD(tmp.AsX(), r.AsX(), r.AsX())
	m.result(r)

	m.function("largest", "(x []float32) float32", "is the largest element of x that is not NaN, or -Inf.")
	slice("x", RSI)
	length("x")
	fill := m.take()
	VBROADCASTSS(m.one(0xff800000), fill)
	acc = nil
	for range sumStep {
		acc = append(acc, m.take())
		VMOVAPS(fill, acc[len(acc)-1])
	}
	m.each(sumStep, 1, func(b block) {
		b.loadOr(RSI, b.t(0), fill)
		VMAXPS(acc[b.u], b.t(0), acc[b.u]) // of two operands one of which is NaN, the first as written here
	})
	fold(VMAXPS, acc)
	m.across(VMAXPS, acc[0], acc[1])
	m.result(acc[0])
}

// result returns the first lane of r.
func (m *machine) result(r VecPhysical) {
	if r != m.regs[0] {
		VMOVAPS(r.AsX(), m.regs[0].AsX())
	}
	VZEROUPPER()
	Store(X0, ReturnIndex(0))
	RET()
}
