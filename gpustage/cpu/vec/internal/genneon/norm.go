package main

// rows writes a loop over as many rows as left has, after each of which pointers move on by strides, in bytes.
func (g gen) rows(left greg, pointers, strides []greg, body func()) {
	loop, done := g.Label("row"), g.Label("rows")
	g.Go("CMP $0, R%d", left)
	g.Go("BLE %s", done)
	g.At(loop)
	body()
	for i, p := range pointers {
		g.Go("ADD R%d, R%d, R%d", strides[i], p, p)
	}
	g.Go("SUBS $1, R%d, R%d", left, left)
	g.Go("BNE %s", loop)
	g.At(done)
}

// stride loads a stride in elements and makes bytes of it.
func (g gen) stride(param string, r greg) {
	g.Arg(param, r)
	g.Go("LSL $2, R%d, R%d", r, r)
}

// inverse is 1/n in the first lane of r.
func (g gen) inverse(n greg, r vreg) {
	g.Go("SCVTFS R%d, F0", n)
	g.Go("FMOVS $1.0, F1")
	g.Go("FDIVS F0, F1, F%d", r)
}

// average leaves a row's sum, times inverse, in every lane of the first accumulator.
func (g gen) average(acc []vreg, inverse vreg) vreg {
	sum := g.sum(acc)
	g.By("fmul", sum, sum, inverse, 0)
	return sum
}

func (g gen) norms() {
	g.layerNorm()
	g.layerNormBackward()
}

func (g gen) layerNorm() {
	g.Func("layerNormNEON", "(y []float32, ys int, x []float32, xs int, gamma, beta, mean, rstd []float32, eps float32)",
		"normalizes len(mean) rows of len(gamma) elements: y = (x-mean)*rstd*gamma + beta, with the sum of (x-mean)^2 in\na pass of its own.", func() {
			const y, x, gamma, beta, means, rstds, ys, xs, n, left, py, px, pg, pb = 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13
			g.Slice("y", y)
			g.Slice("x", x)
			g.Slice("gamma", gamma)
			g.Slice("beta", beta)
			g.Slice("mean", means)
			g.Slice("rstd", rstds)
			g.stride("ys", ys)
			g.stride("xs", xs)
			g.Len("gamma", n)
			g.Len("mean", left)
			inverse, mean, rstd, acc := g.Take(), g.Take(), g.Take(), g.accumulators(sumStep)
			g.inverse(n, inverse)
			g.rows(left, []greg{y, x}, []greg{ys, xs}, func() {
				start := func() {
					g.copy(x, px)
					g.copy(n, count)
				}
				start()
				g.zero(acc)
				g.each(sumStep, func(b block) {
					b.load(0, px)
					b.Op("fadd", acc[b.u], acc[b.u], 0)
				})
				g.Mov(mean, g.average(acc, inverse))
				g.Go("FMOVS.P F%d, 4(R%d)", mean, means)

				start()
				g.zero(acc)
				g.each(sumStep, func(b block) {
					b.load(0, px)
					b.Op("fsub", 0, 0, mean)
					b.clear(0)
					b.fma(acc[b.u], 0, 0)
				})
				v := g.average(acc, inverse)
				g.Float("eps", 0)
				g.Go("FADDS F0, F%d, F0", v)
				g.Go("FSQRTS F0, F0")
				g.Go("FMOVS $1.0, F1")
				g.Go("FDIVS F0, F1, F0")
				g.Go("FMOVS.P F0, 4(R%d)", rstds)
				g.Dup(rstd, 0, 0)

				start()
				g.copy(y, py)
				g.copy(gamma, pg)
				g.copy(beta, pb)
				g.each(1, func(b block) {
					b.load(0, px)
					b.load(1, pg)
					b.load(2, pb)
					b.Op("fsub", 0, 0, mean)
					b.Op("fmul", 0, 0, rstd)
					b.fma(2, 0, 1)
					b.store(2, py)
				})
			})
		})
}

// layerNormBackward goes over a row twice: for the two averages (and the sums for gamma and beta), and for dx.
func (g gen) layerNormBackward() {
	g.Func("layerNormBackwardNEON", "(dx []float32, dxs int, dy []float32, dys int, x []float32, xs int, gamma, mean, rstd, dGamma, dBeta []float32)",
		"gives dx of len(mean) rows of len(gamma) elements and adds to dGamma and to dBeta, unless they are nil. With\nn = (x-mean)*rstd and e = dy*gamma: dx = rstd*(e - avg(e) - n*avg(e*n)).", func() {
			const dx, dy, x, gamma, means, rstds, dGamma, dBeta, dxs, dys, xs, n, left = 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12
			const pdx, pdy, px, pg, pdg, pdb = 13, 14, 15, 16, 17, 19
			for i, p := range []string{"dx", "dy", "x", "gamma", "mean", "rstd", "dGamma", "dBeta"} {
				g.Slice(p, greg(i))
			}
			for i, p := range []string{"dxs", "dys", "xs"} {
				g.stride(p, greg(dxs+i))
			}
			g.Len("gamma", n)
			g.Len("mean", left)
			inverse, mean, rstd := g.Take(), g.Take(), g.Take()
			const unroll = 2
			sums, sumsN := g.accumulators(unroll), g.accumulators(unroll)
			g.inverse(n, inverse)
			start := func() {
				g.copy(dy, pdy)
				g.copy(x, px)
				g.copy(gamma, pg)
				g.copy(n, count)
			}
			// normalize loads dy into register 0, (x-mean)*rstd into 1 and dy*gamma into 2.
			normalize := func(b block) {
				b.load(0, pdy)
				b.load(1, px)
				b.load(2, pg)
				b.Op("fsub", 1, 1, mean)
				b.Op("fmul", 1, 1, rstd)
				b.Op("fmul", 2, 2, 0)
			}
			g.rows(left, []greg{dx, dy, x}, []greg{dxs, dys, xs}, func() {
				for i, p := range []greg{means, rstds} {
					g.Go("FMOVS.P 4(R%d), F0", p)
					g.Dup([]vreg{mean, rstd}[i], 0, 0)
				}
				start()
				g.copy(dGamma, pdg)
				g.copy(dBeta, pdb)
				g.zero(sums)
				g.zero(sumsN)
				g.each(unroll, func(b block) { // lanes beyond the end are 0 in dy and so in what is added
					normalize(b)
					b.Op("fadd", sums[b.u], sums[b.u], 2)
					b.fma(sumsN[b.u], 2, 1)
					add := func(sum, p greg, body func()) {
						none := b.Label("none")
						b.Go("CBZ R%d, %s", sum, none)
						b.copy(p, scratch)
						b.load(3, scratch)
						body()
						b.store(3, p)
						b.At(none)
					}
					add(dGamma, pdg, func() { b.fma(3, 1, 0) })
					add(dBeta, pdb, func() { b.Op("fadd", 3, 3, 0) })
				})
				avg, avgN := g.average(sums, inverse), g.average(sumsN, inverse)
				start()
				g.copy(dx, pdx)
				g.each(1, func(b block) {
					normalize(b)
					b.Op("fsub", 2, 2, avg)
					b.fms(2, 1, avgN)
					b.Op("fmul", 2, 2, rstd)
					b.store(2, pdx)
				})
			})
		})
}
