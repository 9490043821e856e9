package devicetest

import (
	"fmt"
	"math"
	"testing"

	"contraflow/gpustage"
)

// Products of bf16 operands, with what surrounds them.

func testProductsBF16(t *testing.T, dev gpustage.Device) {
	if !gpustage.TakesBF16(dev) {
		return
	}
	t.Run("Epilogues", func(t *testing.T) { testHalfEpilogues(t, dev) })
	t.Run("ColumnSum", func(t *testing.T) { testHalfColumnSums(t, dev) })
	t.Run("Forms", func(t *testing.T) { testHalfForms(t, dev) })
	t.Run("Rounded", func(t *testing.T) { testHalfRounded(t, dev) })
}

// The kinds of a product's arguments that may be BF16.
const (
	kindA = iota
	kindB
	kindC
	kindAux // PreAct, GradOf and Again
)

// epilogue is what surrounds a product in a test.
type epilogue struct {
	bias, act, keep, grad, drop, residual, add, norm bool // keep is PreAct
	over                                             bool // c is GradOf, or else the residual
	again, inPlace                                   bool // in place it is GradOf
	sum                                              bool // ResultSum
	plain                                            bool // the norm's Operand is of Y
	alpha                                            float64
}

var epilogues = []epilogue{
	{},
	{bias: true},
	{alpha: -0.5, add: true},
	{bias: true, act: true},
	{bias: true, act: true, keep: true},
	{alpha: 0.5, act: true, keep: true},
	{bias: true, keep: true},
	{act: true, grad: true},
	{act: true, grad: true, again: true},
	{act: true, grad: true, again: true, inPlace: true},
	{act: true, grad: true, over: true},
	{act: true, grad: true, over: true, add: true, drop: true},
	{act: true, grad: true, bias: true, drop: true},
	{residual: true},
	{bias: true, drop: true, residual: true},
	{drop: true, residual: true, over: true},
	{bias: true, residual: true, over: true},
	{bias: true, residual: true, add: true},
	{bias: true, act: true, keep: true, drop: true, residual: true, add: true},
	{bias: true, drop: true, residual: true, norm: true},
	{residual: true, norm: true},
	{act: true, grad: true, sum: true},
	{act: true, grad: true, again: true, inPlace: true, sum: true},
	{bias: true, sum: true},
	{bias: true, norm: true},
	{bias: true, act: true, norm: true},
	{add: true, norm: true},
	{bias: true, drop: true, residual: true, norm: true, plain: true},
	{residual: true, norm: true, plain: true},
	{add: true, norm: true, plain: true},
}

// mayBeHalf tells whether a product with the epilogue may have a BF16 c: its residual is F32.
func (e epilogue) mayBeHalf() bool { return !(e.residual && e.over) }

// slack is what an entry of PreAct and one of c may be off, beyond sums and what is stored, for the product acc and its bias. Where c or
// PreAct is BF16 the product may be rounded before the rest: either itself, or with its bias, which then is rounded as well. The activations
// are no steeper than 1.13, and so are their derivatives no larger; GELU's tanh may be approximated to half a spacing, as in
// testRoundedEpilogue.
func (e epilogue) slack(half bool, act gpustage.Activation, acc, bias, scale float64) (pre, c float64) {
	x := acc + bias
	if half {
		pre = bf16Half * math.Abs(acc)
		if e.bias {
			pre = bf16Half * (math.Abs(bias) + max(math.Abs(acc), math.Abs(x)))
		}
	}
	c = pre
	if e.act {
		c *= 1.13
		if act == gpustage.GELUTanh {
			c += math.Abs(x) / (1 << 9)
		}
	}
	return pre, c * scale
}

func testHalfEpilogues(t *testing.T, dev gpustage.Device) {
	shapes := [][3]int{ // M, N, K: a prime number of them, so that each meets all modes and placings
		{33, 64, 64}, {1, 6, 31}, {5, 31, 6}, {33, 130, 31}, {5, 1, 130}, {150, 31, 5}, {64, 72, 40},
		{33, 8, 130}, {5, 64, 1}, {1, 136, 64}, {1, 1, 1}, {8, 16, 1200}, {70, 96, 32},
	}
	acts := []gpustage.Activation{gpustage.GELU, gpustage.GELUTanh, gpustage.SiLU, gpustage.GELUTanh, gpustage.ReLU} // libraries have the approximation
	for at := range 2 * 16 * 4 {
		halves, mode, sh, p := at/4%16, at%4, shapes[at%len(shapes)], at%len(placings)
		t.Run(fmt.Sprintf("halves %04b, mode %d, M N K %v, placing %d", halves, mode, sh, p), func(t *testing.T) {
			x := &mix{fixture: newFixture(t, dev, 32, 0), halves: halves, places: placings[p]}
			for i, e := range epilogues {
				if x.half(kindC) && !e.mayBeHalf() {
					continue
				}
				t.Run(fmt.Sprintf("%+v", e), func(t *testing.T) {
					x.t = t
					testHalfEpilogue(x, e, acts[(at+i)%len(acts)], sh, mode&1 != 0, mode&2 != 0)
				})
			}
		})
		if t.Failed() {
			return
		}
	}
	for i, act := range acts { // PreAct alone, with the bits that it has beside c
		for _, kind := range []int{kindAux, kindC} { // c of its type
			x := &mix{fixture: newFixture(t, dev, 32, 0), halves: 1<<kindA | 1<<kind, places: placings[0]}
			a, b, bias := x.arg(kindA, "a", 33, 40, nil), x.arg(kindB, "b", 72, 40, nil), x.vector("bias", 72, nil)
			c, beside, alone := x.arg(kind, "c", 33, 72, nil), x.arg(kind, "PreAct", 33, 72, nil), x.arg(kind, "PreAct alone", 33, 72, nil)
			o := gpustage.MatMul{TransB: true, BF16: true, Act: act}
			if i%2 == 0 {
				o.Bias = bias.dev
			}
			o.PreAct = beside.dev
			x.s.MatMul(c.dev, a.dev, b.dev, o)
			o.PreAct = alone.dev
			x.s.MatMul(gpustage.Tensor{}, a.dev, b.dev, o)
			same(t, x.fixture, beside, alone, fmt.Sprintf("%v: PreAct beside a result and alone", act))
		}
	}
	// A device may keep short rows of a norm in registers.
	x := &mix{fixture: newFixture(t, dev, 32, 0), halves: 1 << kindC, places: placings[0]}
	testHalfEpilogue(x, epilogue{bias: true, drop: true, residual: true, norm: true}, gpustage.Identity, [3]int{3, 1030, 8}, false, true)
}

func testHalfEpilogue(x *mix, e epilogue, act gpustage.Activation, sh [3]int, transA, transB bool) {
	m, n, k := sh[0], sh[1], sh[2]
	if !e.act {
		act = gpustage.Identity
	}
	ar, ac, br, bc := operands(m, n, k, transA, transB)
	q := x.tokens(m)
	a, b, c := x.arg(kindA, "a", ar, ac, nil), x.arg(kindB, "b", br, bc, nil), x.arg(kindC, "c", m, n, nil)
	pre, grad, residual, y := x.arg(kindAux, "PreAct", m, n, nil), x.arg(kindAux, "GradOf", m, n, nil), x.floats("residual", m, n, nil), x.floats("norm", m, n, nil)
	bias, gamma, beta, mean, rstd := x.vector("bias", n, nil), x.vector("gamma", n, nil), x.vector("beta", n, nil), x.vector("mean", m, nil), x.vector("rstd", m, nil)
	again, sum, operand := x.arg(kindAux, "Again", m, n, nil), x.vector("ResultSum", n, nil), x.copyFor("operand", m, n)
	if e.inPlace {
		again = grad
	}
	readGrad, readResidual := grad, residual
	if e.over {
		readGrad, readResidual = c, c
	}
	base := gpustage.MatMul{TransA: transA, TransB: transB, BF16: true, Alpha: e.alpha}
	acc, err := gpustage.NewTensor(x.ref.Device(), gpustage.F64, m, n)
	if err != nil {
		x.t.Fatal(err)
	}
	x.ref.MatMul(acc, a.ref, b.ref, base)
	scale := 1.0
	x.run(func(s gpustage.Stream, at picker) {
		o := base
		o.Add, o.Act = e.add, act
		if e.bias {
			o.Bias = at(bias)
		}
		if e.keep {
			o.PreAct = at(pre)
		}
		if e.grad {
			o.GradOf = at(readGrad)
		}
		if e.again {
			o.Again = at(again)
		}
		if e.drop {
			o.Dropout = gpustage.Dropout{P: 0.2, Seqs: q.on(at), Layer: 2, Site: gpustage.SiteAttentionOut}
			scale = o.Dropout.KeepScale()
		}
		if e.residual {
			o.Residual = at(readResidual)
		}
		if e.sum {
			o.ResultSum = at(sum)
		}
		if e.norm { // of few columns the variance is small: not with this eps
			o.Norm = gpustage.Norm{Y: at(y), Mean: at(mean), Rstd: at(rstd), Gamma: at(gamma), Beta: at(beta), Eps: 0.5, Operand: x.in(s, operand), OfRounded: !e.plain}
		}
		s.MatMul(at(c), at(a), at(b), o)
	})
	half := (x.half(kindC) || e.keep && x.half(kindAux)) && !e.norm // what a norm is of is not rounded before
	c.slack, pre.slack = make([]float64, m*n), make([]float64, m*n)
	biases := download(x.t, x.ref, bias.ref)
	for i, v := range download(x.t, x.ref, acc) {
		added := 0.0
		if e.bias {
			added = biases[i%n]
		}
		pre.slack[i], c.slack[i] = e.slack(half, act, v, added, scale)
	}
	x.check(c, 4*productTolerance(k))
	if e.keep {
		x.check(pre, 4*productTolerance(k))
	} else {
		x.untouched(pre)
	}
	if e.sum {
		sum.slack = make([]float64, n)
		for i, v := range download(x.t, x.ref, c.ref) {
			sum.slack[i%n] += c.slack[i]
			if x.half(kindC) {
				sum.slack[i%n] += bf16Half * math.Abs(v)
			}
		}
		x.check(sum, 4*float64(m)*productTolerance(k))
	} else {
		x.untouched(sum)
	}
	if e.norm { // as testEpilogue's
		x.check(mean, 2*productTolerance(k))
		x.check(rstd, 4*productTolerance(k))
		x.check(y, 16*productTolerance(k))
		if e.plain {
			x.checkCopy(operand, y)
		} else {
			x.checkOperand(operand, c, mean, rstd, gamma.dev, beta.dev)
		}
	} else {
		x.untouched(y, mean, rstd, operand)
	}
	if e.again {
		x.check(again, 4*productTolerance(1))
	} else {
		x.untouched(again)
	}
	if !e.inPlace {
		x.untouched(grad)
	}
	x.untouched(a, b, residual, bias, gamma, beta)
}

// The sums of an a beside a product are those of the op on its own: to the same bits, but of a BF16 a's transpose, which the device's library may
// sum.
func testHalfColumnSums(t *testing.T, dev gpustage.Device) {
	sweep(t, dev, 3, 10, func(x *mix, i int) {
		rows, cols, other := x.rows, x.cols, 1+9*(i%4)
		if i%3 == 0 {
			rows += 128
		}
		trans := i%2 == 0
		m, k := rows, cols
		if trans {
			m, k = k, m
		}
		half := func(int, int) float64 { return 0.5 }
		a, b, c := x.arg(kindA, "a", rows, cols, nil), x.arg(kindB, "b", k, other, nil), x.arg(kindC, "c", m, other, nil)
		beside, alone := x.vector("beside a product", cols, half), x.vector("alone", cols, half)
		x.run(func(s gpustage.Stream, at picker) {
			s.MatMul(at(c), at(a), at(b), gpustage.MatMul{TransA: trans, BF16: true, ColumnSum: at(beside)})
			s.ColumnSum(at(alone), at(a))
		})
		x.check(beside, 2*float64(rows))
		x.check(alone, 2*float64(rows))
		if !trans || !x.half(kindA) {
			same(x.t, x.fixture, beside, alone, "the sums beside a product and those of the op on its own")
		}
		c.slack = make([]float64, m*other)
		if x.half(kindC) {
			for i, v := range download(x.t, x.ref, c.ref) {
				_, c.slack[i] = epilogue{}.slack(true, gpustage.Identity, v, 0, 1)
			}
		}
		x.check(c, productTolerance(k))
		x.untouched(a, b)
	})
}

// A parameter's forms serve products whose other arguments are BF16: with the bits of one without, also when the parameter has changed.
func testHalfForms(t *testing.T, dev gpustage.Device) {
	for i, halves := range []int{1 << kindA, 1 << kindC, 1<<kindA | 1<<kindC} { // the parameter is F32
		for mode := range 4 {
			trans, limit := mode&1 != 0, int64(mode>>1)<<20
			x := &mix{fixture: newFixture(t, dev, 33, 0), halves: halves, places: placings[(i+mode)%len(placings)]}
			const k, n = 100, 70
			_, _, br, bc := operands(9, n, k, false, trans)
			a, b, c, d := x.arg(kindA, "a", 9, k, nil), x.arg(kindB, "b", br, bc, nil), x.arg(kindC, "c", 9, n, nil), x.arg(kindC, "d", 9, n, nil)
			version := gpustage.NewVersion(limit)
			forms := version.Forms()
			for step := range 3 {
				x.s.MatMul(c.dev, a.dev, b.dev, gpustage.MatMul{TransB: trans, BF16: true})
				for range 2 {
					x.s.MatMul(d.dev, a.dev, b.dev, gpustage.MatMul{TransB: trans, BF16: true, Forms: forms})
					same(t, x.fixture, c, d, fmt.Sprintf("halves %03b, transposed %v, room %d, step %d: products with and without forms", halves, trans, limit, step))
				}
				x.s.Scale(b.dev, b.dev, 1.7)
				version.Changed()
			}
			if err := version.Free(); err != nil {
				t.Error(err)
			}
		}
	}
}

// Products that share a rounded F32 matrix have the bits of those that don't, where their other arguments are BF16.
func testHalfRounded(t *testing.T, dev gpustage.Device) {
	const kindX, kindW, kindDW, kindDX = 0, 1, 2, 3
	for halves := range 16 {
		for _, cols := range []int{64, 31} {
			f := &mix{fixture: newFixture(t, dev, 34, 0), halves: halves, places: placings[(halves+cols)%len(placings)]}
			dy, x, w := f.floats("dy", 150, cols, nil), f.arg(kindX, "x", 150, 40, nil), f.arg(kindW, "w", cols, 40, nil)
			var dw, dx, sums [2]*arg
			placed := f.made
			for i := range 2 {
				f.made = placed // both lie alike: a library may add up in another order where they don't
				dw[i], dx[i] = f.arg(kindDW, "dw", cols, 40, nil), f.arg(kindDX, "dx", 150, 40, nil)
				sums[i] = f.vector("sum", cols, func(int, int) float64 { return 0 })
			}
			wide := 72
			if r, ok := dev.(gpustage.Rounder); ok { // other columns are another shape, for which a library may add up in another order
				wide = max(cols, r.RoundedCols(cols))
			}
			room, err := gpustage.NewTensor(dev, gpustage.BF16, 150, wide)
			if err != nil {
				t.Fatal(err)
			}
			for step := range 2 {
				for i, r := range []*gpustage.Rounded{nil, {Room: room}} {
					f.s.MatMul(dw[i].dev, dy.dev, x.dev, gpustage.MatMul{TransA: true, BF16: true, Rounded: r, ColumnSum: sums[i].dev})
					f.s.MatMul(dx[i].dev, dy.dev, w.dev, gpustage.MatMul{BF16: true, Rounded: r})
				}
				for _, pair := range [][2]*arg{dw, dx, sums} {
					same(t, f.fixture, pair[0], pair[1], fmt.Sprintf("halves %04b, %d columns, step %d: %s of products that share a rounded matrix or don't", halves, cols, step, pair[0].name))
				}
				f.s.Scale(dy.dev, dy.dev, 1.7)
			}
		}
	}
}
