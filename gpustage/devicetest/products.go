package devicetest

import (
	"bytes"
	"cmp"
	"math"
	"testing"

	"contraflow/gpustage"
)

var shapes = [][3]int{ // M, N, K
	{1, 1, 1}, {1, 5, 3}, {2, 3, 17}, {7, 1, 40}, {13, 33, 1}, {14, 32, 16}, {15, 31, 33}, {28, 64, 64}, {29, 65, 63},
	{64, 16, 100}, {100, 97, 129}, {3, 200, 384}, {140, 48, 7}, {150, 70, 390}, {65, 130, 400},
}

// productTolerance is for entries that are sums of k products of standard normals. Addition j rounds a partial sum of about
// sqrt(j), so the errors have a standard deviation of eps/sqrt(12) * sqrt(k*k/2), 0.2 k eps; of ten thousand entries the worst
// is 4 of those off, and 5 are allowed.
func productTolerance(k int) float64 { return 4 + float64(k) }

// operands are the shapes in which a product's inputs are stored.
func operands(m, n, k int, transA, transB bool) (ar, ac, br, bc int) {
	ar, ac, br, bc = m, k, k, n
	if transA {
		ar, ac = ac, ar
	}
	if transB {
		br, bc = bc, br
	}
	return ar, ac, br, bc
}

func testMatMul(t *testing.T, dev gpustage.Device) {
	for _, sh := range shapes {
		for mode := range 4 {
			for _, gap := range []int{0, 3} {
				ta, tb := mode&1 != 0, mode&2 != 0
				f := newFixture(t, dev, 11, gap)
				m, n, k := sh[0], sh[1], sh[2]
				ar, ac, br, bc := operands(m, n, k, ta, tb)
				a, b := f.floats("a", ar, ac, nil), f.floats("b", br, bc, nil)
				c, d := f.floats("c", m, n, nil), f.floats("d", m, n, nil)
				f.run(func(s gpustage.Stream, x picker) {
					s.MatMul(x(c), x(a), x(b), gpustage.MatMul{TransA: ta, TransB: tb})
					s.MatMul(x(d), x(a), x(b), gpustage.MatMul{TransA: ta, TransB: tb, Alpha: 0.25, Add: true})
				})
				f.check(c, productTolerance(k))
				f.check(d, productTolerance(k))
				f.untouched(a, b)
				f.run(func(s gpustage.Stream, x picker) {
					s.MatMul(x(c), x(a), x(b), gpustage.MatMul{TransA: ta, TransB: tb, BF16: true})
				})
				f.check(c, productTolerance(k)) // both sides round the inputs; the products are exact in f32
				if t.Failed() {
					t.Fatalf("at M N K %v, transposed %v %v, gap %d", sh, ta, tb, gap)
				}
			}
		}
	}
	// An inner size of zero gives zero.
	f := newFixture(t, dev, 12, 0)
	a, b, c := f.floats("a", 3, 0, nil), f.floats("b", 0, 4, nil), f.floats("c", 3, 4, nil)
	f.run(func(s gpustage.Stream, x picker) { s.MatMul(x(c), x(a), x(b), gpustage.MatMul{}) })
	f.check(c, 0)
}

// A device may keep forms of a parameter, with or without room for them: a product has the bits of one without Forms, and
// follows the parameter when it has changed.
func testForms(t *testing.T, dev gpustage.Device) {
	for _, limit := range []int64{0, 1 << 20} {
		for mode := range 4 {
			trans, bf16 := mode&1 != 0, mode&2 != 0
			f := newFixture(t, dev, 14, 0)
			k, n := 100, 70
			br, bc := k, n
			if trans {
				br, bc = n, k
			}
			a, b, next := f.floats("a", 9, k, nil), f.floats("b", br, bc, nil), f.floats("next", br, bc, nil)
			c, d := f.floats("c", 9, n, nil), f.floats("d", 9, n, nil)
			version := gpustage.NewVersion(limit)
			o := gpustage.MatMul{TransB: trans, BF16: bf16}
			kept := o
			kept.Forms = version.Forms()
			for step := range 3 {
				f.s.MatMul(c.dev, a.dev, b.dev, o)
				for range 2 {
					f.s.MatMul(d.dev, a.dev, b.dev, kept)
					got, want := download(t, f.s, d.dev), download(t, f.s, c.dev)
					if !bytes.Equal(gpustage.Bytes(got), gpustage.Bytes(want)) {
						t.Fatalf("step %d, transposed %v, bf16 %v, room %d: products with and without forms differ", step, trans, bf16, limit)
					}
				}
				f.s.Add(b.dev, b.dev, next.dev)
				version.Changed()
			}
			if err := version.Free(); err != nil {
				t.Error(err)
			}
		}
	}
}

// One parameter's forms serve products with it and with its transpose, in f32 and in bf16, as a linear layer's two passes have them.
func testFormsOfBothPasses(t *testing.T, dev gpustage.Device) {
	f := newFixture(t, dev, 17, 0)
	const n = 96 // square: a form of the wrong kind would fit
	a, b, c, d := f.floats("a", 20, n, nil), f.floats("b", n, n, nil), f.floats("c", 20, n, nil), f.floats("d", 20, n, nil)
	version := gpustage.NewVersion(1 << 20)
	forms := version.Forms()
	for i := range 8 {
		o := gpustage.MatMul{TransB: i&1 != 0, BF16: i&2 != 0}
		f.s.MatMul(c.dev, a.dev, b.dev, o)
		o.Forms = forms
		f.s.MatMul(d.dev, a.dev, b.dev, o)
		got, want := download(t, f.s, d.dev), download(t, f.s, c.dev)
		if !bytes.Equal(gpustage.Bytes(got), gpustage.Bytes(want)) {
			t.Errorf("transposed %v, bf16 %v: products with and without forms differ", o.TransB, o.BF16)
		}
	}
	if err := version.Free(); err != nil {
		t.Error(err)
	}
}

func testEpilogue(t *testing.T, dev gpustage.Device) {
	for _, sh := range [][3]int{{1, 1, 1}, {15, 31, 33}, {30, 70, 64}, {33, 100, 390}, {6, 1030, 40}} {
		for _, gap := range []int{0, 3} {
			m, n, k := sh[0], sh[1], sh[2]
			f := newFixture(t, dev, 13, gap)
			q := f.sequences([]int{m - m/2, m / 2}[:1+min(1, m/2)])
			matrix := func(name string) *arg { return f.floats(name, m, n, nil) }
			a, b := f.floats("a", m, k, nil), f.floats("b", n, k, nil)
			bias, residual, pre, kept := f.vector("bias", n, nil), matrix("residual"), matrix("pre"), matrix("kept")
			plain, gelu, drop, all, grad, dropped, add := matrix("plain"), matrix("gelu"), matrix("drop"), matrix("all"), matrix("grad"), matrix("dropped"), matrix("add")
			overResidual, overGrad := matrix("over its residual"), matrix("over its pre-activation")
			gamma, beta := f.vector("gamma", n, nil), f.vector("beta", n, nil)
			var sums, norms, means, rstds, copies [3]*arg // of products that end in a layer norm
			for i := range sums {
				sums[i], norms[i] = matrix(name("sum ", i)), matrix(name("norm ", i))
				means[i], rstds[i] = f.vector(name("mean ", i), m, nil), f.vector(name("rstd ", i), m, nil)
				copies[i] = f.copyFor(name("operand ", i), m, n)
			}
			copyInPlace := f.copyFor("operand of a norm in place", m, n)
			gradToo, again, droppedToo, overPre := matrix("grad beside again"), matrix("again"), matrix("dropped beside again"), matrix("again in place")
			var results [5]*arg // sums of results
			for i := range results {
				results[i] = f.vector(name("the sum of result ", i), n, nil)
			}
			summed := []*arg{matrix("summed"), matrix("summed, with a bias"), matrix("summed beside again"), matrix("summed over its pre-activation"), matrix("summed before a norm")}
			againToo, normToo := matrix("again beside a sum"), matrix("norm beside a sum")
			inPlace, mean, rstd := []*arg{matrix("norm in place"), matrix("norm in place, without dropout")}, f.vector("mean", m, nil), f.vector("rstd", m, nil)
			f.run(func(s gpustage.Stream, x picker) {
				d := gpustage.Dropout{P: 0.2, Seqs: q.on(x), Layer: 2, Site: gpustage.SiteAttentionOut}
				product := func(c *arg, o gpustage.MatMul) {
					o.TransB = true
					s.MatMul(x(c), x(a), x(b), o)
				}
				product(plain, gpustage.MatMul{Bias: x(bias)})
				product(gelu, gpustage.MatMul{Bias: x(bias), PreAct: x(pre), Act: gpustage.GELU})
				product(drop, gpustage.MatMul{Bias: x(bias), Dropout: d, Residual: x(residual)})
				product(all, gpustage.MatMul{Bias: x(bias), PreAct: x(kept), Act: gpustage.SiLU, Dropout: d, Residual: x(residual), Add: true})
				product(grad, gpustage.MatMul{GradOf: x(residual), Act: gpustage.GELU})
				product(dropped, gpustage.MatMul{GradOf: x(residual), Act: gpustage.Tanh, Dropout: d})
				product(add, gpustage.MatMul{Bias: x(bias), Act: gpustage.ReLU, Residual: x(residual), Add: true, Alpha: 0.5})
				product(overResidual, gpustage.MatMul{Bias: x(bias), Dropout: d, Residual: x(overResidual)})
				product(overGrad, gpustage.MatMul{GradOf: x(overGrad), Act: gpustage.GELU})
				norm := func(i int) gpustage.Norm { // of one column, or of few, the variance is small: not with this eps
					return gpustage.Norm{Y: x(norms[i]), Mean: x(means[i]), Rstd: x(rstds[i]), Gamma: x(gamma), Beta: x(beta), Eps: 0.5, Operand: f.in(s, copies[i]), OfRounded: i != 1}
				}
				product(sums[0], gpustage.MatMul{Bias: x(bias), Dropout: d, Residual: x(residual), Norm: norm(0)})
				product(sums[1], gpustage.MatMul{Residual: x(residual), Norm: norm(1)})
				last := norm(2)
				last.Beta = gpustage.Tensor{}
				product(sums[2], gpustage.MatMul{Dropout: d, Residual: x(sums[2]), Norm: last})
				product(gradToo, gpustage.MatMul{GradOf: x(residual), Again: x(again), Act: gpustage.GELU})
				product(droppedToo, gpustage.MatMul{GradOf: x(overPre), Again: x(overPre), Act: gpustage.Tanh, Dropout: d})
				product(summed[0], gpustage.MatMul{ResultSum: x(results[0])})
				product(summed[1], gpustage.MatMul{Bias: x(bias), GradOf: x(residual), Act: gpustage.Tanh, ResultSum: x(results[1])})
				product(summed[2], gpustage.MatMul{GradOf: x(residual), Again: x(againToo), Act: gpustage.GELU, ResultSum: x(results[2])})
				product(summed[3], gpustage.MatMul{GradOf: x(summed[3]), Act: gpustage.GELU, ResultSum: x(results[3])})
				n := gpustage.Norm{Y: x(normToo), Mean: x(mean), Rstd: x(rstd), Gamma: x(gamma), Eps: 0.5}
				product(summed[4], gpustage.MatMul{Dropout: d, Residual: x(residual), ResultSum: x(results[4]), Norm: n})
				for i, p := range []gpustage.Dropout{d, {}} { // in place
					n := gpustage.Norm{Y: x(inPlace[i]), Mean: x(mean), Rstd: x(rstd), Gamma: x(gamma), Beta: x(beta), Eps: 0.5}
					if i == 0 {
						n.Operand, n.OfRounded = f.in(s, copyInPlace), true
					}
					product(inPlace[i], gpustage.MatMul{Bias: x(bias), Dropout: p, Residual: x(residual), Norm: n})
				}
			})
			for _, o := range []*arg{plain, pre, kept, drop, add, overResidual} {
				f.check(o, 2*productTolerance(k))
			}
			f.check(again, 4*productTolerance(1))
			f.check(overPre, 4*productTolerance(1))
			for _, o := range []*arg{gelu, all, grad, dropped, overGrad, gradToo, droppedToo} {
				f.check(o, 4*productTolerance(k))
			}
			for i, o := range summed {
				f.check(o, 4*productTolerance(k))
				f.check(results[i], 4*float64(m)*productTolerance(k))
			}
			f.check(againToo, 4*productTolerance(1))
			for i := range sums {
				f.check(sums[i], 2*productTolerance(k))
				f.check(means[i], 2*productTolerance(k))
				f.check(rstds[i], 4*productTolerance(k))
				f.check(norms[i], 16*productTolerance(k))
				switch i {
				case 0:
					f.checkOperand(copies[i], sums[i], means[i], rstds[i], gamma.dev, beta.dev)
				case 1:
					f.checkCopy(copies[i], norms[i])
				case 2:
					f.checkOperand(copies[i], sums[i], means[i], rstds[i], gamma.dev, gpustage.Tensor{})
				}
			}
			for _, o := range inPlace {
				f.check(o, 16*productTolerance(k))
			}
			if gpustage.TakesBF16(dev) {
				same(t, f, copyInPlace, copies[0], "the operands of a norm in place and of one beside its sum")
			} else {
				f.untouched(copyInPlace)
			}
			fused := download(t, f.s, norms[0].back)
			f.s.LayerNorm(norms[0].dev, means[0].dev, rstds[0].dev, sums[0].dev, gamma.dev, beta.dev, 0.5)
			if alone := download(t, f.s, norms[0].back); !bytes.Equal(gpustage.Bytes(fused), gpustage.Bytes(alone)) {
				t.Error("a norm behind a product has other bits than one of its result")
			}
			f.untouched(a, b, bias, residual, gamma, beta)
			if t.Failed() {
				t.Fatalf("at M N K %v, gap %d", sh, gap)
			}
		}
	}
}

// bf16Spacing is the spacing of bf16 at 1 in units of Epsilon.
const bf16Spacing = 1 << 16

// tf32Spacing is that of TF32, 2^-10.
const tf32Spacing = 1 << 13

// tf32Tolerance is for products that may round their inputs to TF32, or cut them: each is up to a spacing off, 0.4 spacings in the quadratic mean
// for normal inputs, and so a term 0.8; of ten thousand sums of k terms the worst is 4 standard deviations off, 3.2 sqrt(k) spacings, and
// 4 are allowed.
func tf32Tolerance(k int) float64 { return productTolerance(k) + 4*math.Sqrt(float64(k))*tf32Spacing }

// pairsTolerance is for products of pairs. Of a term a*b the product of what both are rounded by is left out, and each of the two is off by what is
// rounded again: three times a product of two roundings, which are at most 2^-8 and 0.4 times that in the quadratic mean, 0.28 * 2^-16 together. Of
// ten thousand sums of k terms the worst is 4 standard deviations off, 1.1 sqrt(k) * 2^-16, and 1.5 are allowed.
func pairsTolerance(k int) float64 {
	return productTolerance(k) + 1.5*math.Sqrt(float64(k))*float64(bf16Spacing)/(1<<9)
}

// A device may multiply pairs of bf16 where it is asked to, but not less: an error of bf16 alone is some 250 times what is allowed, and one of TF32
// 30 times. What is around a product is as in f32.
func testPairs(t *testing.T, dev gpustage.Device) {
	for _, sh := range append(shapes, [3]int{40, 24, 700}) {
		for mode := range 4 {
			ta, tb, gap := mode&1 != 0, mode&2 != 0, 3*(mode%2)
			f := newFixture(t, dev, 19, gap)
			m, n, k := sh[0], sh[1], sh[2]
			ar, ac, br, bc := operands(m, n, k, ta, tb)
			wide := func(int, int) float64 { return f.rng.NormFloat64() * math.Exp2(float64(f.rng.IntN(9)-4)) }
			a, b, huge := f.floats("a", ar, ac, nil), f.floats("b", br, bc, nil), f.floats("a of many sizes", ar, ac, wide)
			c, d, e, bias, sum := f.floats("c", m, n, nil), f.floats("d", m, n, nil), f.floats("e", m, n, nil), f.vector("bias", n, nil), f.vector("sum", n, nil)
			f.run(func(s gpustage.Stream, x picker) {
				o := gpustage.MatMul{TransA: ta, TransB: tb, Pairs: true}
				s.MatMul(x(c), x(a), x(b), o)
				o.Add, o.Alpha = true, -0.5
				s.MatMul(x(d), x(a), x(b), o)
				s.MatMul(x(d), x(huge), x(b), o)
				o.Add, o.Bias, o.Act, o.ResultSum = false, x(bias), gpustage.GELU, x(sum)
				s.MatMul(x(e), x(a), x(b), o)
			})
			f.check(c, pairsTolerance(k))
			f.check(d, 16*pairsTolerance(k))
			f.check(e, pairsTolerance(k))
			f.check(sum, float64(m)*pairsTolerance(k))
			f.untouched(a, b, huge, bias)
			if t.Failed() {
				t.Fatalf("at M N K %v, transposed %v %v, gap %d", sh, ta, tb, gap)
			}
		}
	}
}

// A device may multiply in TF32 where it is asked to, but not in less: inputs that TF32 can hold, which have 11 bits and are more than bf16's
// 8, give f32's product.
func testTF32(t *testing.T, dev gpustage.Device) {
	for _, sh := range shapes {
		for mode := range 4 {
			ta, tb, gap := mode&1 != 0, mode&2 != 0, 3*(mode%2)
			f := newFixture(t, dev, 18, gap)
			m, n, k := sh[0], sh[1], sh[2]
			ar, ac, br, bc := operands(m, n, k, ta, tb)
			held := func(int, int) float64 { return float64(f.rng.IntN(1<<12)-1<<11) / (1 << 10) }
			a, b, exactA, exactB := f.floats("a", ar, ac, nil), f.floats("b", br, bc, nil), f.floats("a of 11 bits", ar, ac, held), f.floats("b of 11 bits", br, bc, held)
			c, d, bias := f.floats("c", m, n, nil), f.floats("c of 11 bits", m, n, nil), f.vector("bias", n, nil)
			f.run(func(s gpustage.Stream, x picker) {
				s.MatMul(x(c), x(a), x(b), gpustage.MatMul{TransA: ta, TransB: tb, TF32: true, Bias: x(bias)})
				s.MatMul(x(d), x(exactA), x(exactB), gpustage.MatMul{TransA: ta, TransB: tb, TF32: true, Add: true})
			})
			f.check(c, tf32Tolerance(k))
			f.check(d, productTolerance(k))
			f.untouched(a, b, bias)
			if t.Failed() {
				t.Fatalf("at M N K %v, transposed %v %v, gap %d", sh, ta, tb, gap)
			}
		}
	}
}

// Where a product's inputs are rounded, a device may take an approximation of GELU's tanh that is good enough for bf16, as the result is
// rounded to that before the next product: half a spacing at most, 2^-9 relative. The derivative's is relative to what it multiplies, sums
// of k products. Other activations, the exact GELU among them, have no such freedom: it and the approximation differ by up to 2^-11.
func testRoundedEpilogue(t *testing.T, dev gpustage.Device) {
	for _, sh := range [][4]int{{1, 8, 3, 0}, {15, 31, 33, 3}, {30, 72, 64, 0}, {33, 96, 390, 8}, {20, 40, 17, 1}} { // M, N, K, gap
		for _, tf32 := range []bool{false, true} {
			m, n, k := sh[0], sh[1], sh[2]
			f := newFixture(t, dev, 19, sh[3])
			q := f.sequences([]int{m - m/2, m / 2}[:1+min(1, m/2)])
			matrix := func(name string) *arg { return f.floats(name, m, n, nil) }
			a, b, bias, residual, in := f.floats("a", m, k, nil), f.floats("b", n, k, nil), f.vector("bias", n, nil), matrix("residual"), matrix("in")
			names := []string{"gelu", "without bias", "exact", "with residual", "dropped", "added"}
			var out, pre []*arg
			for _, name := range names {
				out, pre = append(out, matrix(name)), append(pre, matrix("input of "+name))
			}
			gradToo, again := matrix("derivative beside again"), matrix("again")
			grad, exactGrad, inPlace, withBias := matrix("derivative"), matrix("exact derivative"), matrix("derivative in place"), matrix("derivative and bias")
			f.run(func(s gpustage.Stream, x picker) {
				d := gpustage.Dropout{P: 0.2, Seqs: q.on(x), Layer: 2, Site: gpustage.SiteFeedForward}
				product := func(c *arg, o gpustage.MatMul) {
					o.TransB, o.BF16, o.TF32 = true, !tf32, tf32
					s.MatMul(x(c), x(a), x(b), o)
				}
				product(out[0], gpustage.MatMul{Bias: x(bias), PreAct: x(pre[0]), Act: gpustage.GELUTanh})
				product(out[1], gpustage.MatMul{PreAct: x(pre[1]), Act: gpustage.GELUTanh, Alpha: 0.5})
				product(out[2], gpustage.MatMul{Bias: x(bias), PreAct: x(pre[2]), Act: gpustage.GELU})
				product(out[3], gpustage.MatMul{Bias: x(bias), PreAct: x(pre[3]), Act: gpustage.GELUTanh, Residual: x(residual)})
				product(out[4], gpustage.MatMul{Bias: x(bias), PreAct: x(pre[4]), Act: gpustage.GELUTanh, Dropout: d})
				product(out[5], gpustage.MatMul{Bias: x(bias), PreAct: x(pre[5]), Act: gpustage.GELUTanh, Add: true})
				product(grad, gpustage.MatMul{GradOf: x(in), Act: gpustage.GELUTanh})
				product(gradToo, gpustage.MatMul{GradOf: x(in), Again: x(again), Act: gpustage.GELUTanh})
				product(exactGrad, gpustage.MatMul{GradOf: x(in), Act: gpustage.GELU})
				product(inPlace, gpustage.MatMul{GradOf: x(inPlace), Act: gpustage.GELUTanh})
				product(withBias, gpustage.MatMul{Bias: x(bias), GradOf: x(in), Act: gpustage.GELUTanh})
			})
			product, gelu := 4*productTolerance(k), float64(bf16Spacing/4)
			if tf32 {
				product = 2 * tf32Tolerance(k) // its slope is at most 1.13, and dropout's factor 1.25
			}
			for i := range names {
				f.check(pre[i], product)
				if i == 2 {
					f.check(out[i], product)
				} else {
					f.check(out[i], product+gelu)
				}
			}
			f.check(exactGrad, product)
			f.check(again, 4*productTolerance(1))
			for _, o := range []*arg{grad, gradToo, inPlace, withBias} {
				f.check(o, product+4*math.Sqrt(float64(k))*gelu)
			}
			f.untouched(a, b, bias, residual, in)
			if t.Failed() {
				t.Fatalf("at M N K %v, gap %d, TF32 %v", sh[:3], sh[3], tf32)
			}
		}
	}
}

// A product sums the columns of a as op ColumnSum does, to the same bits, whatever it rounds.
func testProductColumnSum(t *testing.T, dev gpustage.Device) {
	for _, sh := range [][3]int{{1, 1, 1}, {128, 5, 3}, {129, 128, 2}, {300, 131, 40}, {70, 260, 7}, {0, 4, 3}} { // rows and columns of a, of b
		for _, gap := range []int{0, 3, 4} {
			for _, o := range []gpustage.MatMul{{}, {BF16: true}, {TF32: true}} {
				f := newFixture(t, dev, 20, gap)
				dy, x, dw := f.floats("dy", sh[0], sh[1], nil), f.floats("x", sh[0], sh[2], nil), f.floats("dw", sh[1], sh[2], nil)
				db, alone, other := f.vector("db", sh[1], nil), f.vector("alone", sh[1], func(int, int) float64 { return 0.5 }), f.vector("other", sh[1], func(int, int) float64 { return 0.5 })
				f.run(func(s gpustage.Stream, at picker) {
					o := o
					o.TransA, o.Add, o.ColumnSum = true, true, at(db)
					s.MatMul(at(dw), at(dy), at(x), o)
					o.ColumnSum = at(other)
					s.MatMul(at(dw), at(dy), at(x), o)
					s.ColumnSum(at(alone), at(dy))
				})
				f.check(db, 2*float64(sh[0]))
				f.check(alone, 2*float64(sh[0]))
				f.check(other, 2*float64(sh[0]))
				if !bytes.Equal(gpustage.Bytes(download(t, f.s, other.dev)), gpustage.Bytes(download(t, f.s, alone.dev))) {
					t.Error("the sums beside a product have other bits than those of the op on its own")
				}
				limit := 2 * productTolerance(sh[0])
				if o.TF32 {
					limit = 2 * tf32Tolerance(sh[0])
				}
				f.check(dw, limit)
				f.untouched(dy, x)
				if t.Failed() {
					t.Fatalf("at %v, gap %d, %+v", sh, gap, o)
				}
			}
		}
	}
	// Of a matrix that is not transposed as well.
	f := newFixture(t, dev, 21, 0)
	a, b, c, sum := f.floats("a", 9, 20, nil), f.floats("b", 20, 6, nil), f.floats("c", 9, 6, nil), f.vector("sum", 20, nil)
	f.run(func(s gpustage.Stream, x picker) {
		s.MatMul(x(c), x(a), x(b), gpustage.MatMul{BF16: true, ColumnSum: x(sum)})
	})
	f.check(sum, 18)
	f.check(c, productTolerance(20))
}

// Products that share a rounded matrix have the bits of those that don't, whichever comes first, and a matrix that has changed is another.
func testRounded(t *testing.T, dev gpustage.Device) {
	for _, sums := range []bool{false, true} {
		for _, cols := range []int{64, 70} {
			f := newFixture(t, dev, 22, 2)
			dy, x, w, more := f.floats("dy", 150, cols, nil), f.floats("x", 150, 40, nil), f.floats("w", cols, 40, nil), f.floats("more", 150, cols, nil)
			dw, dx, sum := f.floats("dw", cols, 40, nil), f.floats("dx", 150, 40, nil), f.vector("sum", cols, nil)
			room, err := gpustage.NewTensor(dev, gpustage.BF16, 150, 72)
			if err != nil {
				t.Fatal(err)
			}
			for step := range 2 {
				var want []byte
				for _, shared := range []bool{false, true} {
					var r *gpustage.Rounded
					if shared {
						r = &gpustage.Rounded{Room: room}
					}
					f.s.Fill(sum.dev, 0)
					weight := gpustage.MatMul{TransA: true, BF16: true, Rounded: r}
					if sums {
						weight.ColumnSum = sum.dev
					}
					for i := range 3 { // the second time its rows are there already
						if i == 1 {
							f.s.MatMul(dx.dev, dy.dev, w.dev, gpustage.MatMul{BF16: true, Rounded: r})
						} else {
							f.s.MatMul(dw.dev, dy.dev, x.dev, weight)
						}
					}
					var got []byte
					for _, a := range []*arg{dw, dx, sum} {
						got = append(got, gpustage.Bytes(download(t, f.s, a.back))...)
					}
					if want == nil {
						want = got
					}
					if !bytes.Equal(got, want) {
						t.Fatalf("%d columns, sums %v, step %d: products that share a rounded matrix differ", cols, sums, step)
					}
				}
				f.s.Add(dy.dev, dy.dev, more.dev)
			}
		}
	}
}

// attentionCase is attention, forward and backward, of one shape.
type attentionCase struct {
	what                   string // the subtest's name; "": all of it
	heads, kv, dim, window int
	causal                 bool
	p                      float64
	lengths                []int
	cap                    float64
	bias                   int     // rows of Bias
	around                 float64 // the biases' mean: float32 has no exponential of 95
	negative               bool    // the scale
	bf16                   bool
	halves                 bool    // tensors are BF16 on the device
	gap                    int     // elements between rows
	lead                   int     // columns before q
	sharp                  float64 // times as long are queries; 0: once
	positions              string  // "keys", "queries" or "both"
	frozen                 bool    // positions without gradients
	seen                   []int   // how many tokens of each sequence are keys; nil: all
}

func testAttention(t *testing.T, dev gpustage.Device) {
	for _, c := range []attentionCase{
		{heads: 1, dim: 4, lengths: []int{1}},
		{heads: 4, dim: 8, lengths: []int{3, 1, 17}},
		{heads: 2, dim: 32, lengths: []int{64, 2, 33, 130}},
		{heads: 3, dim: 64, lengths: []int{31, 65}},
		{heads: 2, dim: 5, lengths: []int{9, 40}, causal: true},
		{heads: 4, kv: 2, dim: 16, lengths: []int{20, 7}, causal: true},
		{heads: 2, dim: 16, lengths: []int{50, 5}, window: 6},
		{heads: 2, dim: 16, lengths: []int{50, 5}, window: 6, causal: true},
		{heads: 4, dim: 32, lengths: []int{19, 70}, p: 0.3},
		{heads: 4, kv: 1, dim: 8, lengths: []int{33, 12}, p: 0.1, causal: true, window: 9},
		{heads: 2, dim: 32, lengths: []int{300}},
		{heads: 4, kv: 2, dim: 96, lengths: []int{140, 3}, causal: true},
		{heads: 3, kv: 1, dim: 128, lengths: []int{33, 150}, causal: true, window: 20},
		{heads: 2, kv: 1, dim: 256, lengths: []int{9, 131}, cap: 3},
		{heads: 2, dim: 40, lengths: []int{300}, window: 16, cap: 50, causal: true},
		{heads: 4, kv: 2, dim: 16, lengths: []int{7, 200}, cap: 0.5, p: 0.2, window: 30},
		{heads: 2, dim: 64, lengths: []int{1, 2, 150}, bias: 33},
		{heads: 3, dim: 12, lengths: []int{20, 40, 5}, bias: 257, p: 0.3},
		{heads: 4, kv: 2, dim: 8, lengths: []int{30, 140}, bias: 1, causal: true},
		{heads: 4, kv: 2, dim: 8, lengths: []int{30, 140}, bias: 17, causal: true, cap: 2, window: 6},
		{heads: 2, dim: 32, lengths: []int{66, 2, 33}, bf16: true},
		{heads: 1, dim: 64, lengths: []int{1, 80}, bf16: true, causal: true},
		{heads: 2, kv: 1, dim: 64, lengths: []int{70}, bf16: true, p: 0.3},
		{heads: 2, kv: 1, dim: 128, lengths: []int{3, 75}, bf16: true, p: 0.1, causal: true, window: 20},
		{heads: 1, dim: 128, lengths: []int{67}, bf16: true, p: 0.1},
		{heads: 1, dim: 64, lengths: []int{140}, bf16: true, window: 9},
		{heads: 1, dim: 32, lengths: []int{150}, bf16: true, window: 78}, // larger than a tile
		{heads: 1, dim: 32, lengths: []int{3, 135}, bf16: true, causal: true, p: 0.1},
		{heads: 1, dim: 128, lengths: []int{130, 200}, bf16: true},
		{heads: 2, dim: 32, lengths: []int{40}, bf16: true, p: 0.2, gap: 3},
		{heads: 2, dim: 40, lengths: []int{19, 30}, bf16: true, p: 0.2, bias: 9},
	} {
		c.test(t, dev, 14)
	}
}

// test is a subtest. ref has the same values in f64.
func (c attentionCase) test(t *testing.T, dev gpustage.Device, seed uint64) {
	work := 0
	for _, n := range c.lengths {
		work += n * n * c.heads * c.dim
	}
	if testing.Short() && work > 1e6 && c.sharp == 0 { // ref takes most of the suite's time for these, which an emulator has not
		return
	}
	t.Run(cmp.Or(c.what, name(c)), func(t *testing.T) {
		f := newFixture(t, dev, seed, c.gap)
		q := f.sequences(c.lengths)
		kv := c.kv
		if kv == 0 {
			kv = c.heads
		}
		e, ek := c.heads*c.dim, kv*c.dim
		// q, k and v are columns of one tensor, as the fused projection leaves them.
		columns := c.lead + e + 2*ek
		qkv := f.tensor("qkv", c.halves, q.tokens, columns, func(i, j int) float64 {
			v := f.rng.NormFloat64()
			if c.unseen(i) && j >= c.lead+e {
				v = math.NaN()
			}
			if c.sharp > 0 && j >= c.lead && j < c.lead+e {
				v *= c.sharp
			}
			return v
		})
		dqkv := f.tensor("dqkv", c.halves, q.tokens, columns, nil)
		ctx, dctx, lse := f.tensor("ctx", c.halves, q.tokens, e, nil), f.tensor("dctx", c.halves, q.tokens, e, nil), f.floats("lse", c.heads, q.tokens, nil)
		var bias, dBias *arg
		if c.bias > 0 {
			bias, dBias = f.floats("bias", c.bias, c.heads, func(int, int) float64 { return c.around + f.rng.NormFloat64() }), f.floats("dBias", c.bias, c.heads, nil)
		}
		at := c.newPositions(f, q)
		seen := c.newSeen(f)
		parts := func(x gpustage.Tensor) (q, k, v gpustage.Tensor) {
			x = x.Columns(c.lead, x.Cols)
			return x.Columns(0, e), x.Columns(e, e+ek), x.Columns(e+ek, e+2*ek)
		}
		scale := 1 / math.Sqrt(float64(c.dim))
		if c.negative {
			scale = -scale
		}
		f.run(func(s gpustage.Stream, x picker) {
			o := gpustage.Attention{Seqs: q.on(x), Heads: c.heads, KVHeads: c.kv, HeadDim: c.dim, Scale: scale,
				SoftCap: c.cap, Causal: c.causal, Window: c.window, BF16: c.bf16, Dropout: gpustage.Dropout{P: c.p, Seqs: q.on(x), Layer: 3, Site: gpustage.SiteAttention}}
			if c.bias > 0 {
				o.Bias, o.DBias = x(bias), x(dBias)
			}
			o.Positions = at.on(x, e)
			if seen != nil {
				o.Seen = x(seen)
			}
			q, k, v := parts(x(qkv))
			dq, dk, dv := parts(x(dqkv))
			s.Attention(x(ctx), x(lse), q, k, v, o)
			s.AttentionBackward(dq, dk, dv, x(dctx), x(ctx), x(lse), q, k, v, o)
		})
		// In bf16 both sides round what goes into products, but a device may round probabilities before or after they are divided by
		// their sum, and take <dctx, ctx> for the sum of rounded products: a term may differ by half of bf16's spacing, and
		// gradients have several such terms.
		//
		// Of BF16 tensors what is written is rounded, which check adds, and <dctx, ctx> is taken from a rounded ctx as well: its terms are
		// off by half a spacing at most, 0.2 spacings in the quadratic mean, and the sum by 0.2 sqrt(D), which Scale divides by sqrt(D)
		// for dq and dk; not for the bias, where up to 65 of them are added. Errors that were seen: 0.7, 1.3, 3.3 spacings.
		limit := map[bool][3]float64{false: {64, 512, 512}, true: {bf16Spacing, 3 * bf16Spacing, 6 * bf16Spacing}}[c.bf16]
		f.check(ctx, limit[0])
		f.check(lse, 32)
		f.check(dqkv, limit[1]*max(1, c.sharp)) // queries are factors of keys' gradients
		f.untouched(qkv, dctx)
		c.checkUnseen(f, dqkv, e)
		if c.bias > 0 { // a sum over up to 140 queries
			f.check(dBias, limit[2])
			f.untouched(bias)
		}
		if at.table != nil { // sums over queries, as the bias's is, of products as long as dq's
			f.untouched(at.table, at.rows)
			f.check(at.grads, limit[2])
		}
	})
}

// Keys that are NaN make all that see them NaN, also where they fill a device's first tile, and nothing else.
func testAttentionNaN(t *testing.T, dev gpustage.Device) {
	for _, c := range []struct {
		bf16, halves bool
		seed         uint64
	}{{false, false, 18}, {true, false, 18}, {true, true, 32}} {
		if c.halves && !gpustage.TakesBF16(dev) {
			continue
		}
		f := newFixture(t, dev, c.seed, 0)
		q := f.sequences([]int{100, 7})
		const dim = 32
		qkv := f.tensor("qkv", c.halves, q.tokens, 3*dim, func(i, j int) float64 {
			if i < 64 && j >= dim && j < 2*dim {
				return math.NaN()
			}
			return f.rng.NormFloat64()
		})
		ctx, lse := f.tensor("ctx", c.halves, q.tokens, dim, nil), f.floats("lse", 1, q.tokens, nil)
		f.run(func(s gpustage.Stream, x picker) {
			in := x(qkv)
			s.Attention(x(ctx), x(lse), in.Columns(0, dim), in.Columns(dim, 2*dim), in.Columns(2*dim, 3*dim),
				gpustage.Attention{Seqs: q.on(x), Heads: 1, HeadDim: dim, Scale: 0.2, BF16: c.bf16})
		})
		f.check(ctx, map[bool]float64{false: 64, true: bf16Spacing}[c.bf16])
	}
}

// Two runs of one op give the same bits.
func testDeterministic(t *testing.T, dev gpustage.Device) {
	once := func() []byte {
		f := newFixture(t, dev, 15, 0)
		q := f.sequences([]int{90, 3, 60, 33})
		x, w := f.floats("x", q.tokens, 96, nil), f.floats("w", 200, 96, nil)
		y, dw, sum := f.floats("y", q.tokens, 200, nil), f.floats("dw", 200, 96, nil), f.vector("sum", 200, nil)
		ctx, lse := f.floats("ctx", q.tokens, 32, nil), f.floats("lse", 2, q.tokens, nil)
		dq := f.floats("dq", q.tokens, 96, nil)
		total := f.double("total", 1)
		f.s.MatMul(y.dev, x.dev, w.dev, gpustage.MatMul{TransB: true})
		f.s.MatMul(dw.dev, y.dev, x.dev, gpustage.MatMul{TransA: true, Add: true})
		f.s.ColumnSum(sum.dev, y.dev)
		f.s.SumSquares(total.dev, y.dev)
		o := gpustage.Attention{Seqs: q.on(func(a *arg) gpustage.Tensor { return a.dev }), Heads: 2, HeadDim: 16, Scale: 0.25}
		f.s.Attention(ctx.dev, lse.dev, x.dev.Columns(0, 32), x.dev.Columns(32, 64), x.dev.Columns(64, 96), o)
		f.s.AttentionBackward(dq.dev.Columns(0, 32), dq.dev.Columns(32, 64), dq.dev.Columns(64, 96), ctx.dev, ctx.dev, lse.dev,
			x.dev.Columns(0, 32), x.dev.Columns(32, 64), x.dev.Columns(64, 96), o)
		var out []float64
		for _, a := range []*arg{y, dw, sum, total, ctx, lse, dq} {
			out = append(out, download(t, f.s, a.back)...)
		}
		return gpustage.Bytes(out)
	}
	want := once()
	for range 5 {
		if !bytes.Equal(once(), want) {
			t.Fatal("two runs differ")
		}
	}
}
