package main

func (g gen) updates() {
	g.Func("adamWNEON", "(p, m, v, g []float32, gradScale, beta1, rest1, beta2, rest2, correct2, eps, lr, decay float32)",
		"updates p, m and v from g, of p's length: see gpustage.AdamW. rest1 is 1-beta1, rest2 1-beta2; correct2 is\n1/sqrt(1-beta2^step), lr is divided by 1-beta1^step, decay is the learning rate times the weight decay.", func() {
			g.from("p", "m", "v", "g")
			g.copy(0, 4)
			g.copy(1, 5)
			g.copy(2, 6)
			var c []vreg
			for _, name := range []string{"gradScale", "beta1", "rest1", "beta2", "rest2", "correct2", "eps", "lr", "decay"} {
				c = append(c, g.Everywhere(name))
			}
			gradScale, beta1, rest1, beta2, rest2, correct2, eps, lr, decay := c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7], c[8]
			g.each(1, func(b block) {
				const grad, mean, square, p, t = 0, 1, 2, 3, 4
				b.load(grad, 3)
				b.load(mean, 5)
				b.load(square, 6)
				b.load(p, 4)
				b.Op("fmul", grad, grad, gradScale)
				b.Op("fmul", mean, mean, beta1)
				b.fma(mean, grad, rest1)
				b.Op("fmul", grad, grad, grad)
				b.Op("fmul", square, square, beta2)
				b.fma(square, grad, rest2)
				b.store(mean, 1)
				b.store(square, 2)
				b.Un("fsqrt", square, square)
				b.Mov(t, eps)
				b.fma(t, square, correct2)
				b.Op("fmul", mean, mean, lr)
				b.Op("fdiv", mean, mean, t)
				// What p loses is added up before p is rounded, once: a decay of 1e-7 alone would be lost.
				b.fma(mean, p, decay)
				b.Op("fsub", p, p, mean)
				b.store(p, 0)
			})
		})
	g.Func("sgdNEON", "(p, v, g []float32, gradScale, momentum, lr, decay float32)",
		"updates p and, unless it is nil, v from g, of p's length: see gpustage.SGD.", func() {
			g.from("p", "v", "g")
			g.copy(0, 3)
			gradScale, momentum, lr, decay := g.Everywhere("gradScale"), g.Everywhere("momentum"), g.Everywhere("lr"), g.Everywhere("decay")
			g.each(1, func(b block) {
				const grad, p, v = 0, 1, 2
				b.load(grad, 2)
				b.load(p, 3)
				b.Op("fmul", grad, grad, gradScale)
				b.fma(grad, p, decay)
				bare := b.Label("bare")
				b.Go("CBZ R1, %s", bare)
				b.copy(1, scratch)
				b.load(v, scratch)
				b.fma(grad, v, momentum)
				b.store(grad, 1)
				b.At(bare)
				b.fms(p, grad, lr)
				b.store(p, 0)
			})
		})
}

// conversions do whole vectors only: what is left of a slice is the portable code's, with the same bits.
func (g gen) conversions() {
	whole := func(body func()) {
		g.from("y", "x")
		g.While(count, 4, body)
	}
	g.Func("toBF16NEON", "(y []uint16, x []float32)",
		"rounds the whole vectors of y's length to bf16: to nearest, ties to even, NaN with its quiet bit set.", func() {
			whole(func() {
				g.Load(0, 1)
				g.RoundBF16(1, 0, 2, 3)
				g.Halve(1, 1)
				g.Go("FMOVD.P F1, 8(R0)")
			})
		})
	g.Func("fromBF16NEON", "(y []float32, x []uint16)", "widens the whole vectors of y's length from bf16.", func() {
		whole(func() {
			g.Go("FMOVD.P 8(R1), F0")
			g.Double(0, 0)
			g.Store(0, 0)
		})
	})
}
