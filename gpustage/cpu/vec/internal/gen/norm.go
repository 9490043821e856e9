package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// Layer norms take one row at a time. Two side by side hide what waiting for a row's sums costs, and are an eighth faster
// while everything is in the caches; but their rows come from memory by turns, which the prefetchers follow badly:
// LayerNormBackward of 8,704 x 384 took 2.1 ms by pairs and takes 1.1 (Add of as much: 1.1).

func (m *machine) norms() {
	m.layerNorm()
	m.layerNormBackward()
}

// stream is a matrix in memory: where its row is, and its stride's parameter.
type stream struct {
	row    GPPhysical
	stride string
}

// rows emits a loop over the rows whose number is in left.
func (m *machine) rows(left GPPhysical, ss []stream, body func()) {
	loop, done := m.label("row"), m.label("rows")
	TESTQ(left, left)
	JLE(LabelRef(done))
	Label(loop)
	body()
	for _, s := range ss {
		MOVQ(argument(s.stride), scratch)
		LEAQ(Mem{Base: s.row, Index: scratch, Scale: 4}, s.row)
	}
	DECQ(left)
	JNZ(LabelRef(loop))
	Label(done)
}

// inverse is 1/n in the first lane of r, for an integer n.
func (m *machine) inverse(n GPPhysical, r, tmp VecPhysical) {
	VXORPS(tmp.AsX(), tmp.AsX(), tmp.AsX())
	VCVTSI2SSQ(n, tmp.AsX(), tmp.AsX())
	VMOVSS(m.one(0x3f800000), r.AsX())
	VDIVSS(tmp.AsX(), r.AsX(), r.AsX())
}

// average leaves a row's sum, times inverse, in the first lane of the first accumulator.
func (m *machine) average(acc []VecPhysical, inverse, tmp VecPhysical) {
	fold(VADDPS, acc)
	m.across(VADDPS, acc[0], tmp)
	VMULSS(inverse.AsX(), acc[0].AsX(), acc[0].AsX())
}

// everywhere copies the first lane of r to all of to.
func everywhere(r, to VecPhysical) { VBROADCASTSS(r.AsX(), to) }

func (m *machine) layerNorm() {
	m.function("layerNorm", "(y []float32, ys int, x []float32, xs int, gamma, beta, mean, rstd []float32, eps float32)",
		"normalizes len(mean) rows of len(gamma) elements: y = (x-mean)*rstd*gamma + beta, with the sum of (x-mean)^2 in",
		"a pass of its own.")
	y, x := stream{RDI, "ys"}, stream{RSI, "xs"}
	gamma, beta, means, rstds, n, left := R8, R9, R10, R11, R12, R13
	slice("y", y.row)
	slice("x", x.row)
	slice("gamma", gamma)
	slice("beta", beta)
	slice("mean", means)
	slice("rstd", rstds)
	Load(Param("gamma").Len(), n)
	Load(Param("mean").Len(), left)
	inverse, mean, rstd, sum := m.take(), m.take(), m.take(), m.accumulators(sumStep)
	tmp := m.regs[0]
	m.inverse(n, inverse, tmp)
	m.rows(left, []stream{y, x}, func() {
		zero(sum...)
		MOVQ(n, count)
		m.each(sumStep, 1, func(b block) {
			b.load(x.row, b.t(0))
			VADDPS(b.t(0), sum[b.u], sum[b.u])
		})
		m.average(sum, inverse, tmp)
		VMOVSS(sum[0].AsX(), Mem{Base: means})
		everywhere(sum[0], mean)

		zero(sum...)
		MOVQ(n, count)
		m.each(sumStep, 1, func(b block) {
			b.load(x.row, b.t(0))
			VSUBPS(mean, b.t(0), b.t(0))
			b.clear(b.t(0))
			VFMADD231PS(b.t(0), b.t(0), sum[b.u])
		})
		m.average(sum, inverse, tmp)
		v, r := sum[0].AsX(), rstd.AsX()
		VADDSS(argument("eps"), v, v)
		VSQRTSS(v, v, v)
		VMOVSS(m.one(0x3f800000), r)
		VDIVSS(v, r, r)
		VMOVSS(r, Mem{Base: rstds})
		everywhere(rstd, rstd)

		MOVQ(n, count)
		m.each(1, 3, func(b block) {
			b.load(x.row, b.t(0))
			b.load(gamma, b.t(1))
			b.load(beta, b.t(2))
			VSUBPS(mean, b.t(0), b.t(0))
			VMULPS(rstd, b.t(0), b.t(0))
			VFMADD213PS(b.t(2), b.t(1), b.t(0))
			b.store(b.t(0), y.row)
		})
		ADDQ(Imm(4), means)
		ADDQ(Imm(4), rstds)
	})
	m.end()
}

// layerNormBackward goes over a row twice: for the two averages (and the sums for gamma and beta), and for dx.
func (m *machine) layerNormBackward() {
	m.function("layerNormBackward", "(dx []float32, dxs int, dy []float32, dys int, x []float32, xs int, gamma, mean, rstd, dGamma, dBeta []float32)",
		"gives dx of len(mean) rows of len(gamma) elements and adds to dGamma and to dBeta, unless they are nil. With",
		"n = (x-mean)*rstd and e = dy*gamma: dx = rstd*(e - avg(e) - n*avg(e*n)).")
	dx, dy, x := stream{RDI, "dxs"}, stream{RDX, "dys"}, stream{RSI, "xs"}
	gamma, dGamma, dBeta, means, rstds, n, left := R8, RBX, R9, R10, R11, R12, R13
	slice("dx", dx.row)
	slice("dy", dy.row)
	slice("x", x.row)
	slice("gamma", gamma)
	slice("mean", means)
	slice("rstd", rstds)
	slice("dGamma", dGamma)
	slice("dBeta", dBeta)
	Load(Param("gamma").Len(), n)
	Load(Param("mean").Len(), left)
	inverse, mean, rstd := m.take(), m.take(), m.take()
	const unroll = 2
	sum, sumN := m.accumulators(unroll), m.accumulators(unroll)
	tmp := m.regs[0]
	m.inverse(n, inverse, tmp)

	// normalize loads dy into t(0), (x-mean)*rstd into t(1) and dy*gamma into t(2).
	normalize := func(b block) {
		b.load(dy.row, b.t(0))
		b.load(x.row, b.t(1))
		b.load(gamma, b.t(2))
		VSUBPS(mean, b.t(1), b.t(1))
		VMULPS(rstd, b.t(1), b.t(1))
		VMULPS(b.t(0), b.t(2), b.t(2))
	}
	m.rows(left, []stream{dx, dy, x}, func() {
		VBROADCASTSS(Mem{Base: means}, mean)
		VBROADCASTSS(Mem{Base: rstds}, rstd)
		zero(sum...)
		zero(sumN...)
		MOVQ(n, count)
		m.each(unroll, 4, func(b block) { // lanes beyond the end are 0 in dy and so in what is added
			normalize(b)
			VADDPS(b.t(2), sum[b.u], sum[b.u])
			VFMADD231PS(b.t(1), b.t(2), sumN[b.u])
			noGamma, noBeta := m.label("nogamma"), m.label("nobeta")
			TESTQ(dGamma, dGamma)
			JZ(LabelRef(noGamma))
			b.load(dGamma, b.t(3))
			VFMADD231PS(b.t(0), b.t(1), b.t(3))
			b.store(b.t(3), dGamma)
			Label(noGamma)
			TESTQ(dBeta, dBeta)
			JZ(LabelRef(noBeta))
			b.load(dBeta, b.t(3))
			VADDPS(b.t(0), b.t(3), b.t(3))
			b.store(b.t(3), dBeta)
			Label(noBeta)
		})
		for _, s := range [][]VecPhysical{sum, sumN} {
			m.average(s, inverse, tmp)
			everywhere(s[0], s[0])
		}
		MOVQ(n, count)
		m.each(1, 3, func(b block) {
			normalize(b)
			VSUBPS(sum[0], b.t(2), b.t(2))
			VFNMADD231PS(sumN[0], b.t(1), b.t(2))
			VMULPS(rstd, b.t(2), b.t(2))
			b.store(b.t(2), dx.row)
		})
		ADDQ(Imm(4), means)
		ADDQ(Imm(4), rstds)
	})
	m.end()
}
