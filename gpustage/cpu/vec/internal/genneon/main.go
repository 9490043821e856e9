// Command genneon writes the assembly of package vec for arm64: run `go generate` in the package's folder after a change here. What the
// kernels compute is what gen's for amd64 do; package coef has the constants.
package main

import (
	"contraflow/gpustage/cpu/internal/neon"
)

type (
	vreg = neon.V
	greg = neon.R
)

func main() {
	neon.Main("vec", func(f *neon.File) {
		g := gen{f}
		g.elementwise()
		g.reductions()
		g.exponentials()
		g.activations()
		g.norms()
		g.dropout()
		g.updates()
		g.conversions()
	})
}

// gen writes kernels. Registers from 0 on are a loop's body's.
type gen struct{ *neon.File }

// count is the register of the number of elements that are left, scratch one for anything.
const (
	count   = greg(20)
	scratch = greg(21)
)

// block is one vector of a loop's body, or one element: then the other lanes are 0 as loaded.
type block struct {
	gen
	u      int // the vectors of an iteration are numbered
	single bool
}

func (b block) load(v vreg, p greg) {
	if b.single {
		b.Go("FMOVS.P 4(R%d), F%d", p, v)
		return
	}
	b.Load(v, p)
}

func (b block) store(v vreg, p greg) {
	if b.single {
		b.Go("FMOVS.P F%d, 4(R%d)", v, p)
		return
	}
	b.Store(v, p)
}

// clear makes lanes beyond the end 0.
func (b block) clear(v vreg) {
	if b.single {
		b.First(v, v)
	}
}

// each writes a loop over count elements: so many vectors an iteration, then one by one, then up to three elements.
func (g gen) each(unroll int, body func(b block)) {
	step := func(elements, vectors int) {
		g.While(count, elements, func() {
			for u := range vectors {
				body(block{g, u, elements == 1})
			}
		})
		if elements > 1 {
			g.Go("ADD $%d, R%d, R%d", elements, count, count)
		}
	}
	if unroll > 1 {
		step(4*unroll, unroll)
	}
	step(4, 1)
	step(1, 1)
}

// from loads slices' addresses into registers, the first one's length into count.
func (g gen) from(params ...string) {
	for i, p := range params {
		g.Slice(p, greg(i))
	}
	g.Len(params[0], count)
}

// copy copies a general register: to read at an address and write there, or to begin again.
func (g gen) copy(from, to greg) { g.Go("MOVD R%d, R%d", from, to) }

// fma is d += n*m with registers, or d -= n*m.
func (g gen) fma(d, n, m vreg) { g.Op("fmla", d, n, m) }
func (g gen) fms(d, n, m vreg) { g.Op("fmls", d, n, m) }

func (g gen) elementwise() {
	for _, f := range []struct{ name, sign string }{{"add", " + "}, {"mul", "*"}} {
		g.Func(f.name+"NEON", "(y, a, b []float32)", "is y = a"+f.sign+"b, of y's length.", func() {
			g.from("y", "a", "b")
			g.each(1, func(b block) {
				b.load(0, 1)
				b.load(1, 2)
				b.Op("f"+f.name, 0, 0, 1)
				b.store(0, 0)
			})
		})
	}
	g.Func("mulAddNEON", "(y, a, b []float32, alpha float32)", "is y += alpha*a*b, of y's length.", func() {
		g.from("y", "a", "b")
		g.copy(0, 3)
		alpha := g.Everywhere("alpha")
		g.each(1, func(b block) {
			b.load(0, 1)
			b.load(1, 2)
			b.load(2, 3)
			b.Op("fmul", 0, 0, alpha)
			b.fma(2, 0, 1)
			b.store(2, 0)
		})
	})
	g.Func("axpyNEON", "(y, x []float32, alpha float32)", "is y += alpha*x, of y's length.", func() {
		g.from("y", "x")
		g.copy(0, 3)
		alpha := g.Everywhere("alpha")
		g.each(1, func(b block) {
			b.load(0, 1)
			b.load(1, 3)
			b.fma(1, 0, alpha)
			b.store(1, 0)
		})
	})
	g.Func("scaleNEON", "(y, x []float32, alpha float32)", "is y = alpha*x, of y's length.", func() {
		g.from("y", "x")
		alpha := g.Everywhere("alpha")
		g.each(1, func(b block) {
			b.load(0, 1)
			b.Op("fmul", 0, 0, alpha)
			b.store(0, 0)
		})
	})
	g.Func("axpbyNEON", "(y, x, z []float32, alpha, beta float32)", "is y = alpha*x + beta*z, of y's length.", func() {
		g.from("y", "x", "z")
		alpha, beta := g.Everywhere("alpha"), g.Everywhere("beta")
		g.each(1, func(b block) {
			b.load(0, 1)
			b.load(1, 2)
			b.Op("fmul", 0, 0, alpha)
			b.fma(0, 1, beta)
			b.store(0, 0)
		})
	})
	g.Func("softmaxBackwardNEON", "(ds, p, dp []float32, delta, scale float32)", "is ds = scale*p*(dp - delta), of ds's length.", func() {
		g.from("ds", "p", "dp")
		delta, scale := g.Everywhere("delta"), g.Everywhere("scale")
		g.each(1, func(b block) {
			b.load(0, 1)
			b.load(1, 2)
			b.Op("fmul", 0, 0, scale)
			b.Op("fsub", 1, 1, delta)
			b.Op("fmul", 0, 0, 1)
			b.store(0, 0)
		})
	})
	g.Func("rotateNEON", "(y, z, a, b, cos, sin []float32)", "is y = a*cos - b*sin, z = b*cos + a*sin, of y's length.", func() {
		g.from("y", "z", "a", "b", "cos", "sin")
		g.each(1, func(b block) { // what is read is read before anything is written: both outputs may be the inputs
			const x, w, cos, sin, y, z = 0, 1, 2, 3, 4, 5
			for i := range vreg(4) {
				b.load(i, greg(2+i))
			}
			b.Op("fmul", y, x, cos)
			b.fms(y, w, sin)
			b.Op("fmul", z, w, cos)
			b.fma(z, x, sin)
			b.store(y, 0)
			b.store(z, 1)
		})
	})
	g.Func("addRowsNEON", "(acc, x []float32, stride int)",
		"adds eight rows of x, stride elements apart, to acc: acc += ((x0+x1)+(x2+x3)) + ((x4+x5)+(x6+x7)), of acc's length.", func() {
			const first, stride = 1, 10 // rows are in R1 to R8
			g.from("acc", "x")
			g.copy(0, 9)
			g.Arg("stride", stride)
			for i := 1; i < 8; i++ {
				g.Go("ADD R%d<<2, R%d, R%d", stride, first+i-1, first+i)
			}
			g.each(1, func(b block) {
				for i := range vreg(8) {
					b.load(i, greg(first+i))
				}
				b.load(8, 9)
				for d := vreg(1); d < 8; d *= 2 {
					for i := vreg(0); i < 8; i += 2 * d {
						b.Op("fadd", i, i, i+d)
					}
				}
				b.Op("fadd", 8, 8, 0)
				b.store(8, 0)
			})
		})
	g.Func("maskRowNEON", "(s []float32, id int32, ids []int32)", "sets s[j] to -Inf where ids[j] == id.", func() {
		g.Slice("s", 0)
		g.Len("s", count)
		g.Slice("ids", 1)
		g.copy(0, 2)
		id, inf := g.Everywhere("id"), g.Take()
		g.SetBits(inf, 0xff800000)
		g.each(1, func(b block) {
			b.load(0, 1)
			b.load(1, 2)
			b.Op("cmeq", 0, 0, id)
			b.Bits("bit", 1, inf, 0)
			b.store(1, 0)
		})
	})
}
