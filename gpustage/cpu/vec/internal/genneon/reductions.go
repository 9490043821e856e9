package main

// sumStep is how many vectors a sum takes at once: additions to one register wait for each other.
const sumStep = 4

// accumulators takes registers for sums and clears them.
func (g gen) accumulators(n int) []vreg {
	var acc []vreg
	for range n {
		acc = append(acc, g.Take())
	}
	g.zero(acc)
	return acc
}

func (g gen) zero(vs []vreg) {
	for _, v := range vs {
		g.Zero(v)
	}
}

// fold adds the accumulators up into the first one, neighbours first.
func (g gen) fold(op func(name string, d, n, m vreg), acc []vreg) {
	for d := 1; d < len(acc); d *= 2 {
		for i := 0; i+d < len(acc); i += 2 * d {
			op("fadd", acc[i], acc[i], acc[i+d])
		}
	}
}

// sum leaves the sum of accumulators and their lanes in every lane of the first.
func (g gen) sum(acc []vreg) vreg {
	g.fold(g.Op, acc)
	g.Op("faddp", acc[0], acc[0], acc[0])
	g.Op("faddp", acc[0], acc[0], acc[0])
	return acc[0]
}

func (g gen) reductions() {
	g.Func("dotNEON", "(a, b []float32) float32", "is the sum of a*b, of a's length.", func() {
		g.from("a", "b")
		acc := g.accumulators(sumStep)
		g.each(sumStep, func(b block) {
			b.load(0, 0)
			b.load(1, 1)
			b.fma(acc[b.u], 0, 1)
		})
		g.Result(g.sum(acc))
	})
	g.Func("sumSquaresNEON", "(x []float32) float64", "is the sum of x*x, in float64.", func() {
		g.from("x")
		acc := g.accumulators(4)
		g.each(2, func(b block) {
			b.load(0, 0)
			b.Widen(1, 0, false)
			b.Widen(2, 0, true)
			b.Wide("fmla", acc[2*b.u], 1, 1)
			b.Wide("fmla", acc[2*b.u+1], 2, 2)
		})
		g.fold(g.Wide, acc)
		g.SumWide(acc[0], acc[0])
		g.ResultWide(acc[0])
	})
	// A comparison with NaN is false: NaN never gets in.
	g.Func("largestNEON", "(x []float32) float32", "is the largest element of x that is not NaN, or -Inf.", func() {
		g.from("x")
		acc := g.accumulators(sumStep)
		for _, v := range acc {
			g.SetBits(v, 0xff800000)
		}
		g.each(sumStep, func(b block) {
			b.load(0, 0)
			if b.single {
				b.Dup(0, 0, 0)
			}
			b.Op("fcmgt", 1, 0, acc[b.u])
			b.Bits("bit", acc[b.u], 0, 1)
		})
		for _, v := range acc[1:] {
			g.Op("fmaxnm", acc[0], acc[0], v)
		}
		g.Max(acc[0], acc[0])
		g.Result(acc[0])
	})
}
