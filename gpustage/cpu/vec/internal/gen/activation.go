package main

import (
	"contraflow/gpustage/cpu/vec/internal/coef"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

const (
	signBit = 0x80000000
	allBut  = 0x7fffffff // the sign
)

// activations are pairs: y = f(x), and dx = dy * f'(x).
func (m *machine) activations() {
	gauss := exponent{m, -0.5}
	one := exponent{m, 1}

	m.activation("gelu", func() {
		gauss.hold()
		m.holdBits(allBut)
		m.hold(coef.TailMax, coef.TailEnd, coef.Phi0)
		m.hold(coef.TailN[:]...)
		m.hold(coef.TailD[:]...)
	}, func(b block, x VecPhysical, t ...VecPhysical) { // x * Phi(x)
		_, e, num, den := b.tail(x, t)
		VMULPS(e, num, num)
		VDIVPS(den, num, num)
		b.fromTail(x, num, den)
		VMULPS(num, x, x)
	}, func(b block, x VecPhysical, t ...VecPhysical) {
		// Phi(x) + x*phi(x) is 1 minus itself at -x: with a = |x|, Phi(-a) - a*phi(a) = exp(-a*a/2) * (N/D - a*phi(0)).
		a, e, num, den := b.tail(x, t)
		VDIVPS(den, num, num)
		VFNMADD231PS(b.c(coef.Phi0), a, num)
		VMULPS(e, num, num)
		b.fromTail(x, num, den)
		VMOVAPS(num, x)
	})

	m.activation("geluTanh", func() {
		m.holdExp()
		m.hold(1, -coef.Tanh1, -coef.Tanh3, coef.Tanh1, 3*coef.Tanh3, 10, -10)
	}, func(b block, x VecPhysical, t ...VecPhysical) { // x / (1 + exp(-x*(Tanh1 + Tanh3*x*x)))
		e := t[0]
		VMULPS(x, x, e)
		VMULPS(b.c(-coef.Tanh3), e, e)
		VADDPS(b.c(-coef.Tanh1), e, e)
		VMULPS(x, e, e)
		b.exp(e, t[1:]...)
		VADDPS(b.c(1), e, e)
		VDIVPS(e, x, x)
	}, func(b block, x VecPhysical, t ...VecPhysical) {
		// With v = x*(Tanh1 + Tanh3*x*x), e = exp(-v) and s = 1/(1+e): s * (1 + x*v'*e*s). Beyond 10 it is 0 or 1, and e
		// would leave the range of normal numbers.
		b.clamp(x, 10, t[0])
		e, slope := t[0], t[1]
		VMULPS(x, x, slope)
		VMULPS(b.c(-coef.Tanh3), slope, slope)
		VADDPS(b.c(-coef.Tanh1), slope, e)
		VMULPS(x, e, e)
		one.within(e, t[2:]...)
		VMULPS(x, x, slope)
		VMULPS(b.c(3*coef.Tanh3), slope, slope)
		VADDPS(b.c(coef.Tanh1), slope, slope)
		VMULPS(slope, x, x)
		b.logistic(x, e, t[2], t[3])
	})

	m.activation("silu", func() {
		m.holdExp()
		m.holdBits(signBit)
		m.hold(1, 87, -87)
	}, func(b block, x VecPhysical, t ...VecPhysical) { // x / (1 + exp(-x))
		e := t[0]
		VXORPS(b.bits(signBit), x, e)
		b.exp(e, t[1:]...)
		VADDPS(b.c(1), e, e)
		VDIVPS(e, x, x)
	}, func(b block, x VecPhysical, t ...VecPhysical) { // with s = 1/(1+e): s * (1 + x*e*s). Beyond 87 it is 0 or 1.
		b.clamp(x, 87, t[0])
		e := t[0]
		VXORPS(b.bits(signBit), x, e)
		one.within(e, t[1:]...)
		b.logistic(x, e, t[1], t[2])
	})

	m.activation("tanh", func() {
		exponent{m, -2}.hold()
		m.holdBits(signBit, allBut)
		m.hold(1, 2, 10)
	}, func(b block, x VecPhysical, t ...VecPhysical) {
		b.tanh(x, t...)
	}, func(b block, x VecPhysical, t ...VecPhysical) {
		b.tanh(x, t...)
		VMOVUPS(b.c(1), t[0])
		VFNMADD231PS(x, x, t[0])
		VMOVAPS(t[0], x)
	})

	m.relu()
}

// activation emits name(y, x) and name+"Backward"(dx, dy, x). Both bodies replace x.
func (m *machine) activation(name string, hold func(), forward, backward func(b block, x VecPhysical, t ...VecPhysical)) {
	const temps = 8
	registers := func(b block) (VecPhysical, []VecPhysical) {
		var t []VecPhysical
		for i := range temps {
			t = append(t, b.t(1+i))
		}
		return b.t(0), t
	}
	m.function(name, "(y, x []float32)", "is y = f(x), of y's length.")
	slice("y", RDI)
	length("y")
	slice("x", RSI)
	hold()
	m.each(1, 1+temps, func(b block) {
		x, t := registers(b)
		b.load(RSI, x)
		forward(b, x, t...)
		b.store(x, RDI)
	})
	m.end()

	m.function(name+"Backward", "(dx, dy, x []float32)", "is dx = dy*f'(x), of dx's length.")
	slice("dx", RDI)
	length("dx")
	slice("dy", RDX)
	slice("x", RSI)
	hold()
	m.each(1, 1+temps, func(b block) {
		x, t := registers(b)
		b.load(RSI, x)
		backward(b, x, t...)
		b.load(RDX, t[0])
		VMULPS(t[0], x, x)
		b.store(x, RDI)
	})
	m.end()
}

// tail gives, for a = |x| or TailMax, exp(-a*a/2), N(a) and D(a) of package coef. Beyond TailEnd e is 0.
func (m *machine) tail(x VecPhysical, t []VecPhysical) (a, e, num, den VecPhysical) {
	gauss := exponent{m, -0.5}
	a, e, num, den = t[0], t[1], t[2], t[3]
	VANDPS(m.bits(allBut), x, a)
	VMOVUPS(m.c(coef.TailMax), e)
	VMINPS(a, e, a)
	VMULPS(a, a, e)
	gauss.within(e, t[4:]...)
	const lessOrEqual = 2
	if m.wide {
		VCMPPS(Imm(lessOrEqual), m.c(coef.TailEnd), a, K2)
		VMOVAPS_Z(e, K2, e)
	} else {
		VCMPPS(Imm(lessOrEqual), m.c(coef.TailEnd), a, num)
		VANDPS(num, e, e)
	}
	horner := func(cs []float32, p VecPhysical) {
		VMOVUPS(m.c(cs[len(cs)-1]), p)
		for i := len(cs) - 2; i >= 0; i-- {
			VFMADD213PS(m.c(cs[i]), a, p)
		}
	}
	horner(coef.TailN[:], num)
	horner(coef.TailD[:], den)
	return a, e, num, den
}

// fromTail is p = 1-p where x is not negative.
func (m *machine) fromTail(x, p, tmp VecPhysical) {
	if m.wide {
		VPMOVD2M(x, K2)
		KNOTW(K2, K2)
		VSUBPS(p, m.c(1), K2, p)
		return
	}
	VMOVUPS(m.c(1), tmp)
	VSUBPS(p, tmp, tmp)
	VBLENDVPS(x, p, tmp, p)
}

// clamp keeps x within -limit to limit, and NaN as it is.
func (m *machine) clamp(x VecPhysical, limit float32, tmp VecPhysical) {
	VMOVUPS(m.c(limit), tmp)
	VMINPS(x, tmp, x)
	VMOVUPS(m.c(-limit), tmp)
	VMAXPS(x, tmp, x)
}

// logistic is x = s * (1 + x*e*s), s = 1/(1+e).
func (m *machine) logistic(x, e, s, tmp VecPhysical) {
	VMOVUPS(m.c(1), s)
	VADDPS(s, e, tmp)
	VDIVPS(tmp, s, s)
	VMULPS(s, x, x) // before e, which may be 1/s and large
	VFMADD213PS(m.c(1), e, x)
	VMULPS(s, x, x)
}

// tanh is (1 - e)/(1 + e) for e = exp(-2|x|), with x's sign. 1 - e is put together from 1 - 2^n, which is exact or nearly so,
// and 2^n * (exp(r)-1): near 0 nothing cancels.
func (m *machine) tanh(x VecPhysical, t ...VecPhysical) {
	e := exponent{m, -2}
	a, z, n, p, s := t[0], t[1], t[2], t[3], t[4]
	VANDPS(m.bits(allBut), x, a)
	VMOVUPS(m.c(10), p)
	VMINPS(a, p, a) // tanh(10) is 1, and exp(-20) far from the smallest number
	e.split(a, z, n)
	e.polynomial(a, p)
	VPERMPS(m.tableOperand(), z, s)
	e.scale(z, n, s)
	VMULPS(s, a, a)
	VMULPS(p, a, a)
	VSUBPS(m.c(1), s, s)
	VADDPS(s, a, a)      // e - 1
	VADDPS(m.c(2), a, s) // e + 1
	VDIVPS(s, a, a)
	VANDPS(m.bits(signBit), x, x)
	VANDPS(m.bits(allBut), a, a)
	VORPS(x, a, x)
}

func (m *machine) relu() {
	m.function("relu", "(y, x []float32)", "is y = max(x, 0), of y's length; NaN stays NaN.")
	slice("y", RDI)
	length("y")
	slice("x", RSI)
	null := m.take()
	zero(null)
	m.each(1, 1, func(b block) {
		b.load(RSI, b.t(0))
		VMAXPS(b.t(0), null, b.t(0))
		b.store(b.t(0), RDI)
	})
	m.end()

	m.function("reluBackward", "(dx, dy, x []float32)", "is dx = dy where x > 0, and 0 elsewhere, of dx's length.")
	slice("dx", RDI)
	length("dx")
	slice("dy", RDX)
	slice("x", RSI)
	null = m.take()
	zero(null)
	m.each(1, 2, func(b block) {
		const greater = 14
		b.load(RSI, b.t(0))
		b.load(RDX, b.t(1))
		if b.wide {
			VCMPPS(Imm(greater), null, b.t(0), K2)
			VMOVAPS_Z(b.t(1), K2, b.t(1))
		} else {
			VCMPPS(Imm(greater), null, b.t(0), b.t(0))
			VANDPS(b.t(0), b.t(1), b.t(1))
		}
		b.store(b.t(1), RDI)
	})
	m.end()
}
