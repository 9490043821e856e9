package main

import "contraflow/gpustage/cpu/vec/internal/coef"

// dropout computes Philox4x32-7 on four counters at a time, a word of each in a register's lanes: 64 elements.
func (g gen) dropout() {
	g.Func("dropout64NEON", "(y, x, residual []float32, group, keyLo, keyHi, pos, head, place, threshold uint32, scale float32)",
		"is y = residual + x*f, of y's length, a multiple of 64, where f is 0 or scale: see gpustage.Dropout. x[0] is element 16*group;\nresidual may be nil.", func() {
			const y, x, residual = 0, 1, 2
			g.from("y", "x", "residual")
			group, pos, head, place := g.Everywhere("group"), g.Everywhere("pos"), g.Everywhere("head"), g.Everywhere("place")
			keyLo, keyHi, threshold, scale := g.Everywhere("keyLo"), g.Everywhere("keyHi"), g.Everywhere("threshold"), g.Everywhere("scale")
			lane, _ := g.ConstBits(0) // four in a register: the counters
			for i := uint32(1); i < 4; i++ {
				g.ConstBits(i)
			}
			g.Op("add", group, group, lane)
			turned, _ := g.ConstBits(0x0C080400) // the bytes of four words, first those that are each word's first
			for _, four := range []uint32{0x0D090501, 0x0E0A0602, 0x0F0B0703} {
				g.ConstBits(four)
			}

			m0, m1, w0, w1 := g.HeldBits(coef.PhiloxM0), g.HeldBits(coef.PhiloxM1), g.HeldBits(coef.PhiloxW0), g.HeldBits(coef.PhiloxW1)
			const k0, k1, hi, t, u = 4, 5, 6, 7, 8
			g.While(count, 64, func() {
				w := [4]vreg{0, 1, 2, 3}
				for i, v := range []vreg{group, pos, head, place} {
					g.Mov(w[i], v)
				}
				g.Mov(k0, keyLo)
				g.Mov(k1, keyHi)
				multiply := func(a, m vreg) { // a and hi become the halves of a*m
					g.Product(t, a, m, false)
					g.Product(u, a, m, true)
					g.Op("uzp1", a, t, u)
					g.Op("uzp2", hi, t, u)
				}
				for round := range 7 {
					if round > 0 {
						g.Op("add", k0, k0, w0)
						g.Op("add", k1, k1, w1)
					}
					multiply(w[0], m0) // words 2 and 3 are hi ^ word 3 ^ key, and the lower half
					g.Bits("eor", w[3], w[3], hi)
					g.Bits("eor", w[3], w[3], k1)
					multiply(w[2], m1)
					g.Bits("eor", w[1], w[1], hi)
					g.Bits("eor", w[1], w[1], k0)
					w = [4]vreg{w[1], w[2], w[3], w[0]}
				}
				g.SetBits(t, 4)
				g.Op("add", group, group, t)
				const shared, own, low, high = 7, 12, 8, 9
				g.Bits("eor", shared, w[0], w[1])
				g.Bits("eor", shared, shared, w[2]) // its upper bytes are below all numbers of a counter
				// A register for each counter: words 0 to 3.
				g.Transpose([4]vreg{0, 1, 2, 3}, w, [4]vreg{8, 9, 10, 11})
				for i := range vreg(16) {
					const f, v = 4, 5
					if i%4 == 0 {
						g.Table(own, i/4, turned)
						g.DupByte(f, shared, int(i)+3)
						g.Bits("zip1", low, f, own)
						g.Bits("zip2", high, f, own)
					}
					g.Lengthen(f, low+i%4/2, i%2 == 1)
					g.Op("cmhs", f, f, threshold)
					g.Bits("and", f, f, scale)
					g.Load(v, x)
					g.Op("fmul", v, v, f)
					alone := g.Label("alone")
					g.Go("CBZ R%d, %s", residual, alone)
					g.Load(6, residual)
					g.Op("fadd", v, v, 6) // v has been rounded: all kernels give the same bits
					g.At(alone)
					g.Store(v, y)
				}
			})
		})
}
