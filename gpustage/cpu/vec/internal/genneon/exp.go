package main

import (
	"math"
	"slices"

	"contraflow/gpustage/cpu/vec/internal/coef"
)

// magic + x*log2(e) rounds to an integer, which is in the lowest bits.
const magic = 1.5 * (1 << 23)

// An exponent is what exp is applied to: factor*x, for a factor of 1, of -1/2 when x is a square, or of -2. The factor goes into the
// constants.
type exponent struct {
	gen
	factor float64
}

// split leaves in z the sum with magic, in n the power of two, and turns x into r = x - n*ln(2)/factor.
func (e exponent) split(x, z, n vreg) {
	e.Set(z, magic)
	e.ByConst("fmla", z, x, float32(e.factor*coef.Log2E))
	e.Op("fsub", n, z, e.Held(magic))
	e.ByConst("fmls", x, n, float32(coef.Ln2Hi/e.factor))
	e.ByConst("fmls", x, n, float32(coef.Ln2Lo/e.factor))
}

// polynomial is p = c1 + r*(c2 + ...), with which exp(r) is 1 + r*p.
func (e exponent) polynomial(r, p, tmp vreg) {
	cs := coef.Exp1
	power := 1.0
	for i := range cs {
		power *= e.factor
		cs[i] *= float32(power)
	}
	e.horner(cs[:], r, p, tmp)
}

// horner is p = cs[0] + x*(cs[1] + x*(...)).
func (g gen) horner(cs []float32, x, p, tmp vreg) {
	last := len(cs) - 1
	if last%2 == 0 {
		p, tmp = tmp, p
	}
	g.Set(p, cs[last-1])
	g.ByConst("fmla", p, x, cs[last])
	for _, c := range slices.Backward(cs[:last-1]) {
		g.Set(tmp, c)
		g.fma(tmp, p, x)
		p, tmp = tmp, p
	}
}

// within replaces x by its exponential, for arguments from ExpMin to ExpMax. t are four other registers.
func (e exponent) within(x vreg, t ...vreg) {
	z, n, p, tmp := t[0], t[1], t[2], t[3]
	e.split(x, z, n)
	e.polynomial(x, p, tmp)
	e.Set(n, 1)
	e.fma(n, p, x)
	e.Shift("shl", z, z, 23)
	e.Op("add", x, n, z)
}

// exp replaces x by its exponential: 0 below ExpMin, infinite above ExpMax, NaN for NaN. t are five other registers.
func (g gen) exp(x vreg, t ...vreg) {
	was, tmp := t[4], t[0]
	g.Mov(was, x)
	exponent{g, 1}.within(x, t[:4]...)
	g.Op("fcmgt", tmp, g.Held(coef.ExpMin), was)
	g.Bits("bic", x, x, tmp)
	g.Op("fcmgt", tmp, was, g.Held(coef.ExpMax))
	g.Bits("bit", x, g.Held(float32(math.Inf(1))), tmp)
	g.Op("fcmeq", tmp, was, was)
	g.Bits("bif", x, was, tmp)
}

func (g gen) exponentials() {
	g.Func("expScaleNEON", "(y, x []float32, shift, w float32)", "is y = w*exp(x - shift), of y's length.", func() {
		g.from("y", "x")
		shift, w := g.Everywhere("shift"), g.Everywhere("w")
		g.each(1, func(b block) {
			b.load(0, 1)
			b.Op("fsub", 0, 0, shift)
			b.exp(0, 1, 2, 3, 4, 5)
			b.Op("fmul", 0, 0, w)
			b.store(0, 0)
		})
	})
	sum := func(store bool) {
		shift := g.Everywhere("shift")
		acc := g.accumulators(1)
		g.each(1, func(b block) {
			b.load(0, 1)
			b.Op("fsub", 0, 0, shift)
			b.exp(0, 1, 2, 3, 4, 5)
			b.clear(0)
			b.Op("fadd", acc[0], acc[0], 0)
			if store {
				b.store(0, 0)
			}
		})
		g.Result(g.sum(acc))
	}
	g.Func("expSumNEON", "(y, x []float32, shift float32) float32", "is y = exp(x - shift), of y's length, and returns the sum.", func() {
		g.from("y", "x")
		sum(true)
	})
	g.Func("sumExpNEON", "(x []float32, shift float32) float32", "is the sum of exp(x - shift).", func() {
		g.Slice("x", 1)
		g.Len("x", count)
		sum(false)
	})
}
