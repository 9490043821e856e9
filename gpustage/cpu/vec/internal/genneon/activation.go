package main

import "contraflow/gpustage/cpu/vec/internal/coef"

const (
	signBit = 0x80000000
	null    = vreg(15) // zeros
)

// activations are pairs: y = f(x), and dx = dy * f'(x). Bodies have registers 0 to 14.
func (g gen) activations() {
	g.activation("gelu", func(b block) { // x * Phi(x)
		_, e, num, den := b.tail()
		b.Op("fmul", num, num, e)
		b.Op("fdiv", num, num, den)
		b.fromTail(0, num, den, e)
		b.Op("fmul", 0, 0, num)
	}, func(b block) {
		// Phi(x) + x*phi(x) is 1 minus itself at -x: with a = |x|, Phi(-a) - a*phi(a) = exp(-a*a/2) * (N/D - a*phi(0)).
		a, e, num, den := b.tail()
		b.Op("fdiv", num, num, den)
		b.ByConst("fmls", num, a, coef.Phi0)
		b.Op("fmul", num, num, e)
		b.fromTail(0, num, den, e)
		b.Mov(0, num)
	})
	slope := func(b block, x, v vreg) { // -(Tanh1 + Tanh3*x*x)
		b.Op("fmul", v, x, x)
		b.ByConst("fmul", v, v, -coef.Tanh3)
		b.Op("fsub", v, v, b.Held(coef.Tanh1))
	}
	g.activation("geluTanh", func(b block) { // x / (1 + exp(-x*(Tanh1 + Tanh3*x*x)))
		slope(b, 0, 1)
		b.Op("fmul", 1, 1, 0)
		b.exp(1, 2, 3, 4, 5, 6)
		b.Op("fadd", 1, 1, b.Held(1))
		b.Op("fdiv", 0, 0, 1)
	}, func(b block) {
		// With v = x*(Tanh1 + Tanh3*x*x), e = exp(-v) and s = 1/(1+e): s * (1 + x*v'*e*s). Beyond 10 it is 0 or 1, and e
		// would leave the range of normal numbers.
		b.clamp(0, 10)
		slope(b, 0, 1)
		b.Op("fmul", 1, 1, 0)
		exponent{b.gen, 1}.within(1, 2, 3, 4, 5)
		b.Op("fmul", 2, 0, 0)
		b.Set(3, coef.Tanh1)
		b.ByConst("fmla", 3, 2, 3*coef.Tanh3)
		b.Op("fmul", 0, 0, 3)
		b.logistic(0, 1, 2, 3)
	})
	g.activation("silu", func(b block) { // x / (1 + exp(-x))
		b.Un("fneg", 1, 0)
		b.exp(1, 2, 3, 4, 5, 6)
		b.Op("fadd", 1, 1, b.Held(1))
		b.Op("fdiv", 0, 0, 1)
	}, func(b block) { // with s = 1/(1+e): s * (1 + x*e*s). Beyond 87 it is 0 or 1.
		b.clamp(0, 87)
		b.Un("fneg", 1, 0)
		exponent{b.gen, 1}.within(1, 2, 3, 4, 5)
		b.logistic(0, 1, 2, 3)
	})
	g.activation("tanh", func(b block) {
		b.tanh()
	}, func(b block) {
		b.tanh()
		b.Set(1, 1)
		b.fms(1, 0, 0)
		b.Mov(0, 1)
	})
	g.Func("reluNEON", "(y, x []float32)", "is y = max(x, 0), of y's length; NaN stays NaN.", func() {
		g.from("y", "x")
		g.Zero(null)
		g.each(1, func(b block) {
			b.load(0, 1)
			b.Op("fmax", 0, 0, null)
			b.store(0, 0)
		})
	})
	g.Func("reluBackwardNEON", "(dx, dy, x []float32)", "is dx = dy where x > 0, and 0 elsewhere, of dx's length.", func() {
		g.from("dx", "dy", "x")
		g.Zero(null)
		g.each(1, func(b block) {
			b.load(0, 1)
			b.load(1, 2)
			b.Op("fcmgt", 1, 1, null)
			b.Bits("and", 0, 0, 1)
			b.store(0, 0)
		})
	})
}

// activation writes name(y, x) and nameBackward(dx, dy, x). Bodies replace register 0, which is x, by f(x) or by f'(x).
func (g gen) activation(name string, forward, backward func(b block)) {
	g.Func(name+"NEON", "(y, x []float32)", "is y = f(x), of y's length.", func() {
		g.from("y", "x")
		g.Zero(null)
		g.each(1, func(b block) {
			b.load(0, 1)
			forward(b)
			b.store(0, 0)
		})
	})
	g.Func(name+"BackwardNEON", "(dx, dy, x []float32)", "is dx = dy*f'(x), of dx's length.", func() {
		g.from("dx", "dy", "x")
		g.Zero(null)
		g.each(1, func(b block) {
			b.load(0, 2)
			backward(b)
			b.load(1, 1)
			b.Op("fmul", 0, 0, 1)
			b.store(0, 0)
		})
	})
}

// tail gives, for a = |x| or TailMax, exp(-a*a/2), N(a) and D(a) of package coef. Beyond TailEnd e is 0.
func (g gen) tail() (a, e, num, den vreg) {
	a, e, num, den = 1, 2, 3, 4
	g.Un("fabs", a, 0)
	g.Op("fmin", a, a, g.Held(coef.TailMax))
	g.Op("fmul", e, a, a)
	exponent{g, -0.5}.within(e, 5, 6, 7, 8)
	g.Op("fcmgt", num, a, g.Held(coef.TailEnd))
	g.Bits("bic", e, e, num)
	g.horner(coef.TailN[:], a, num, 5)
	g.horner(coef.TailD[:], a, den, 5)
	return a, e, num, den
}

// fromTail is p = 1-p where x is not negative.
func (g gen) fromTail(x, p, rest, mask vreg) {
	g.Op("fsub", rest, g.Held(1), p)
	g.Op("fcmge", mask, x, null)
	g.Bits("bit", p, rest, mask)
}

// clamp keeps x within -limit to limit, and NaN as it is.
func (g gen) clamp(x vreg, limit float32) {
	g.Op("fmin", x, x, g.Held(limit))
	g.Op("fmax", x, x, g.Held(-limit))
}

// logistic is x = s * (1 + x*e*s), s = 1/(1+e).
func (g gen) logistic(x, e, s, tmp vreg) {
	one := g.Held(1)
	g.Op("fadd", tmp, one, e)
	g.Op("fdiv", s, one, tmp)
	g.Op("fmul", x, x, s) // before e, which may be 1/s and large
	g.Mov(tmp, one)
	g.fma(tmp, x, e)
	g.Op("fmul", x, tmp, s)
}

// tanh is (1 - e)/(1 + e) for e = exp(-2|x|), with x's sign. 1 - e is put together from 1 - 2^n, which is exact or nearly so,
// and 2^n * (exp(r)-1): near 0 nothing cancels.
func (g gen) tanh() {
	const x, a, z, n, p, s, tmp = 0, 1, 2, 3, 4, 5, 6
	e := exponent{g, -2}
	g.Un("fabs", a, x)
	g.Op("fmin", a, a, g.Held(10)) // tanh(10) is 1, and exp(-20) far from the smallest number
	e.split(a, z, n)
	e.polynomial(a, p, tmp)
	g.Shift("shl", z, z, 23)
	one := g.Held(1)
	g.Op("add", s, one, z) // 2^n
	g.Op("fmul", a, a, s)
	g.Op("fmul", a, a, p)
	g.Op("fsub", s, s, one)
	g.Op("fadd", a, a, s)         // e - 1
	g.Op("fadd", s, a, g.Held(2)) // e + 1
	g.Op("fdiv", a, a, s)
	g.SetBits(tmp, signBit)
	g.Bits("bsl", tmp, x, a) // x's sign, and a without one
	g.Mov(x, tmp)
}
