package main

import (
	"math"

	"contraflow/gpustage/cpu/vec/internal/coef"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// The method is in package coef. With 1.5*2^p as magic, magic + x*log2(e) rounds to a multiple of 1/entries, whose
// fraction is in the lowest bits, where VPERMPS takes its index from, and whose integer part is right above.
func (m *machine) magic() float32 {
	return 1.5 * float32(int(1)<<23/m.lanes)
}

// table is 2^(i/entries).
func (m *machine) table() Mem {
	return m.vector("exp2", func(i int) uint32 {
		return math.Float32bits(float32(math.Exp2(float64(i) / float64(m.lanes))))
	})
}

func (m *machine) expCoefficients() [3]float32 {
	if m.wide {
		return coef.Exp16
	}
	return coef.Exp8
}

// An exponent is what exp is applied to: factor*x, for a factor of 1, or of -1/2 when x is a square. The factor goes into
// the constants.
type exponent struct {
	*machine
	factor float32
}

func (e exponent) log2e() float32 { return float32(float64(e.factor) * coef.Log2E) }
func (e exponent) ln2hi() float32 { return coef.Ln2Hi / e.factor }
func (e exponent) ln2lo() float32 { return float32(coef.Ln2Lo / float64(e.factor)) }

// power is the coefficient of r^i, for r = x - n*ln(2)/factor.
func (e exponent) power(i int) float32 {
	c := e.expCoefficients()[i-1]
	for range i {
		c *= e.factor
	}
	return c
}

// hold keeps the constants in registers.
func (e exponent) hold() {
	e.machine.hold(e.log2e(), e.magic(), e.ln2hi(), e.ln2lo(), e.power(1), e.power(2), e.power(3))
	if e.wide {
		r := e.take()
		VMOVUPS(e.table(), r)
		e.held[tableKey] = r
	}
}

// tableKey is the table's key among the constants held, a NaN.
const tableKey = 0x7fc00001

func (m *machine) tableOperand() Op {
	if r, ok := m.held[tableKey]; ok {
		return r
	}
	return m.table()
}

// split leaves in z the sum with magic, in n the power of two, and turns x into r.
func (e exponent) split(x, z, n VecPhysical) {
	VMOVUPS(e.c(e.magic()), z)
	VFMADD231PS(e.c(e.log2e()), x, z)
	VSUBPS(e.c(e.magic()), z, n)
	VFNMADD231PS(e.c(e.ln2hi()), n, x)
	VFNMADD231PS(e.c(e.ln2lo()), n, x)
}

// polynomial is p = c1 + r*(c2 + r*c3).
func (e exponent) polynomial(r, p VecPhysical) {
	VMOVUPS(e.c(e.power(3)), p)
	VFMADD213PS(e.c(e.power(2)), r, p)
	VFMADD213PS(e.c(e.power(1)), r, p)
}

// scale is y *= 2^floor(n).
func (e exponent) scale(z, n, y VecPhysical) {
	if e.wide {
		VSCALEFPS(n, y, y)
		return
	}
	VPSRLD(Imm(3), z, z)
	VPSLLD(Imm(23), z, z)
	VPADDD(z, y, y)
}

// within replaces x by its exponential, for arguments from ExpMin to ExpMax. t are three other registers.
func (e exponent) within(x VecPhysical, t ...VecPhysical) {
	z, n, p := t[0], t[1], t[2]
	e.split(x, z, n)
	e.polynomial(x, p)
	if e.wide {
		VPERMPS(e.tableOperand(), z, z)
		VMULPS(z, x, x)
		VFMADD213PS(z, p, x)
		VSCALEFPS(n, x, x)
		return
	}
	VPERMPS(e.tableOperand(), z, n)
	VMULPS(n, x, x)
	VFMADD213PS(n, p, x)
	e.scale(z, n, x)
}

// exp replaces x by its exponential: 0 below ExpMin, infinite above ExpMax, NaN for NaN. t are four other registers;
// ExpMin and ExpMax must be held if registers permit.
func (m *machine) exp(x VecPhysical, t ...VecPhysical) {
	e := exponent{m, 1}
	const notLess, notLessOrEqual = 5, 6 // true if unordered
	if m.wide {
		VCMPPS(Imm(notLess), m.c(coef.ExpMin), x, K2)
		VMINPS(x, m.c(expTop), x)
		z, n, p := t[0], t[1], t[2]
		e.split(x, z, n)
		e.polynomial(x, p)
		VPERMPS(m.tableOperand(), z, z)
		VMULPS(z, x, x)
		VFMADD213PS(z, p, x)
		VSCALEFPS_Z(n, x, K2, x)
		return
	}
	was := t[3]
	VMOVAPS(x, was)
	e.within(x, t...)
	VCMPPS(Imm(notLess), m.c(coef.ExpMin), was, t[0])
	VANDPS(t[0], x, x)
	VCMPPS(Imm(notLessOrEqual), m.c(coef.ExpMax), was, t[0])
	VMULPS(m.c(float32(math.Inf(1))), was, was)
	VBLENDVPS(t[0], was, x, x)
}

// expTop is where AVX-512 stops: VSCALEFPS makes its exponential infinite.
const expTop = 90

func (m *machine) holdExp() {
	exponent{m, 1}.hold()
	m.hold(coef.ExpMin, expTop)
}

func (m *machine) exponentials() {
	m.function("expScale", "(y, x []float32, shift, w float32)", "is y = w*exp(x - shift), of y's length.")
	slice("y", RDI)
	length("y")
	slice("x", RSI)
	shift, w := m.broadcast("shift"), m.broadcast("w")
	m.holdExp()
	m.each(1, 5, func(b block) {
		b.load(RSI, b.t(0))
		VSUBPS(shift, b.t(0), b.t(0))
		b.exp(b.t(0), b.t(1), b.t(2), b.t(3), b.t(4))
		VMULPS(w, b.t(0), b.t(0))
		b.store(b.t(0), RDI)
	})
	m.end()

	for _, store := range []bool{true, false} {
		if store {
			m.function("expSum", "(y, x []float32, shift float32) float32", "is y = exp(x - shift), of y's length, and returns the sum.")
			slice("y", RDI)
			length("y")
		} else {
			m.function("sumExp", "(x []float32, shift float32) float32", "is the sum of exp(x - shift).")
			length("x")
		}
		slice("x", RSI)
		shift = m.broadcast("shift")
		m.holdExp()
		acc := m.accumulators(1)[0]
		m.each(1, 5, func(b block) {
			b.load(RSI, b.t(0))
			VSUBPS(shift, b.t(0), b.t(0))
			b.exp(b.t(0), b.t(1), b.t(2), b.t(3), b.t(4))
			b.clear(b.t(0))
			VADDPS(b.t(0), acc, acc)
			if store {
				b.store(b.t(0), RDI)
			}
		})
		m.across(VADDPS, acc, m.regs[0])
		m.result(acc)
	}
}
