package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

func (m *machine) elementwise() {
	m.function("add", "(y, a, b []float32)", "is y = a + b, of y's length.")
	slice("y", RDI)
	length("y")
	slice("a", RSI)
	slice("b", RDX)
	m.each(1, 2, func(b block) {
		b.load(RSI, b.t(0))
		b.load(RDX, b.t(1))
		VADDPS(b.t(1), b.t(0), b.t(0))
		b.store(b.t(0), RDI)
	})
	m.end()

	m.function("mul", "(y, a, b []float32)", "is y = a*b, of y's length.")
	slice("y", RDI)
	length("y")
	slice("a", RSI)
	slice("b", RDX)
	m.each(1, 2, func(b block) {
		b.load(RSI, b.t(0))
		b.load(RDX, b.t(1))
		VMULPS(b.t(1), b.t(0), b.t(0))
		b.store(b.t(0), RDI)
	})
	m.end()

	m.function("mulAdd", "(y, a, b []float32, alpha float32)", "is y += alpha*a*b, of y's length.")
	slice("y", RDI)
	length("y")
	slice("a", RSI)
	slice("b", RDX)
	alpha := m.broadcast("alpha")
	m.each(1, 3, func(b block) {
		b.load(RSI, b.t(0))
		b.load(RDX, b.t(1))
		b.load(RDI, b.t(2))
		VMULPS(alpha, b.t(0), b.t(0))
		VFMADD231PS(b.t(1), b.t(0), b.t(2))
		b.store(b.t(2), RDI)
	})
	m.end()

	m.function("axpy", "(y, x []float32, alpha float32)", "is y += alpha*x, of y's length.")
	slice("y", RDI)
	length("y")
	slice("x", RSI)
	alpha = m.broadcast("alpha")
	m.each(1, 2, func(b block) {
		b.load(RSI, b.t(0))
		b.load(RDI, b.t(1))
		VFMADD231PS(b.t(0), alpha, b.t(1))
		b.store(b.t(1), RDI)
	})
	m.end()

	m.function("scale", "(y, x []float32, alpha float32)", "is y = alpha*x, of y's length.")
	slice("y", RDI)
	length("y")
	slice("x", RSI)
	alpha = m.broadcast("alpha")
	m.each(1, 1, func(b block) {
		b.load(RSI, b.t(0))
		VMULPS(alpha, b.t(0), b.t(0))
		b.store(b.t(0), RDI)
	})
	m.end()

	m.function("axpby", "(y, x, z []float32, alpha, beta float32)", "is y = alpha*x + beta*z, of y's length.")
	slice("y", RDI)
	length("y")
	slice("x", RSI)
	slice("z", RDX)
	alpha, beta := m.broadcast("alpha"), m.broadcast("beta")
	m.each(1, 2, func(b block) {
		b.load(RSI, b.t(0))
		b.load(RDX, b.t(1))
		VMULPS(alpha, b.t(0), b.t(0))
		VFMADD231PS(b.t(1), beta, b.t(0))
		b.store(b.t(0), RDI)
	})
	m.end()

	m.function("softmaxBackward", "(ds, p, dp []float32, delta, scale float32)", "is ds = scale*p*(dp - delta), of ds's length.")
	slice("ds", RDI)
	length("ds")
	slice("p", RSI)
	slice("dp", RDX)
	delta, scale := m.broadcast("delta"), m.broadcast("scale")
	m.each(1, 2, func(b block) {
		b.load(RSI, b.t(0))
		b.load(RDX, b.t(1))
		VMULPS(scale, b.t(0), b.t(0))
		VSUBPS(delta, b.t(1), b.t(1))
		VMULPS(b.t(1), b.t(0), b.t(0))
		b.store(b.t(0), RDI)
	})
	m.end()

	m.rotate()
	m.addRows()
	m.maskRow()
}

// rotate reads all of a vector's inputs before it writes, so that both outputs may be the inputs.
func (m *machine) rotate() {
	m.function("rotate", "(y, z, a, b, cos, sin []float32)", "is y = a*cos - b*sin, z = b*cos + a*sin, of y's length.")
	slice("y", RDI)
	length("y")
	slice("z", RBX)
	slice("a", RSI)
	slice("b", RDX)
	slice("cos", R8)
	slice("sin", R9)
	m.each(1, 6, func(b block) {
		for i, p := range [...]GPPhysical{RSI, RDX, R8, R9} {
			b.load(p, b.t(i))
		}
		x, w, cos, sin, y, z := b.t(0), b.t(1), b.t(2), b.t(3), b.t(4), b.t(5)
		VMULPS(w, sin, y)
		VFMSUB231PS(x, cos, y)
		VMULPS(x, sin, z)
		VFMADD231PS(w, cos, z)
		b.store(y, RDI)
		b.store(z, RBX)
	})
	m.end()
}

// addRows adds eight rows in one pass: the accumulators are loaded and stored once for all of them, and eight streams are
// as many as the prefetchers follow.
func (m *machine) addRows() {
	m.function("addRows", "(acc, x []float32, stride int)",
		"adds eight rows of x, stride elements apart, to acc: acc += ((x0+x1)+(x2+x3)) + ((x4+x5)+(x6+x7)), of acc's length.")
	slice("acc", RDI)
	length("acc")
	rows := [8]GPPhysical{RSI, RDX, RBX, R8, R9, R10, R11, R12}
	slice("x", RSI)
	word("stride", R13)
	for i := 1; i < len(rows); i++ {
		LEAQ(Mem{Base: rows[i-1], Index: R13, Scale: 4}, rows[i])
	}
	m.each(1, 9, func(b block) {
		var r []VecPhysical
		for i, p := range rows {
			r = append(r, b.t(i))
			b.load(p, r[i])
		}
		b.load(RDI, b.t(8))
		fold(VADDPS, r)
		VADDPS(r[0], b.t(8), b.t(8))
		b.store(b.t(8), RDI)
	})
	m.end()
}

// maskRow compares integers and writes only what is masked.
func (m *machine) maskRow() {
	m.function("maskRow", "(s []float32, id int32, ids []int32)", "sets s[j] to -Inf where ids[j] == id.")
	slice("s", RDI)
	length("s")
	slice("ids", RSI)
	id := m.broadcast("id")
	inf := m.take()
	VBROADCASTSS(m.one(0xff800000), inf)
	m.each(1, 2, func(b block) {
		b.load(RSI, b.t(0))
		if m.wide {
			if b.masked {
				VPCMPEQD(id, b.t(0), partial, K2)
			} else {
				VPCMPEQD(id, b.t(0), K2)
			}
			VMOVUPS(inf, K2, b.at(RDI))
			return
		}
		b.load(RDI, b.t(1))
		VPCMPEQD(id, b.t(0), b.t(0))
		VBLENDVPS(b.t(0), inf, b.t(1), b.t(1))
		b.store(b.t(1), RDI)
	})
	m.end()
}
