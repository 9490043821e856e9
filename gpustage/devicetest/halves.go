package devicetest

import (
	"bytes"
	"fmt"
	"math"
	"testing"

	"contraflow/gpustage"
)

// Operands in bf16: each op that gpustage.Ops lists, but attention, with its arguments BF16 or F32 in every mix, against ref in f64 of the
// same values. Arguments that stay F32 have values that bf16 has not: a device must not round what it is not asked to.

// bf16Half is the most that rounding to bf16 changes, relative to the value: half a spacing just above a power of two.
const bf16Half = 1.0 / (1 << 8)

// mix makes arguments of which some are BF16 on the device: those of kind i, if bit i of halves is set.
type mix struct {
	*fixture
	halves, rows, cols int
	places             []place
	made               int
}

// place is how a tensor lies in memory: with elements after each row, and before, so that it may begin at an odd element.
type place struct{ gap, lead int }

var placings = [][]place{ // of the arguments, in turn
	{{0, 0}}, {{3, 0}}, {{8, 0}}, {{8, 0}, {0, 0}}, {{0, 1}}, {{3, 0}, {0, 0}, {7, 1}}, {{4, 4}, {8, 0}},
}

// half tells whether arguments of a kind are BF16.
func (m *mix) half(kind int) bool { return m.halves>>kind&1 != 0 }

// arg makes an argument, of bf16's values if it is BF16.
func (m *mix) arg(kind int, name string, rows, cols int, value func(i, j int) float64) *arg {
	m.t.Helper()
	if value == nil {
		value = func(int, int) float64 { return m.rng.NormFloat64() }
	}
	p := m.places[m.made%len(m.places)]
	m.made++
	m.gap = p.gap
	shifted := func(i, j int) float64 { return value(i, max(0, j-p.lead)) }
	a := m.tensor(name, m.half(kind), rows, p.lead+cols, shifted)
	if p.lead > 0 { // what is before the rows is a guard as well
		whole := a.ref.Columns(p.lead, p.lead+cols)
		a.dev = a.dev.Columns(p.lead, p.lead+cols)
		var err error
		if a.ref, err = gpustage.NewTensor(m.ref.Device(), gpustage.F64, rows, cols); err != nil {
			m.t.Fatal(err)
		}
		m.ref.Copy(a.ref, whole)
	}
	return a
}

// tokens makes sequences of all rows.
func (m *mix) tokens(rows int) sequences {
	m.t.Helper()
	return m.sequences([]int{rows - rows/2, rows / 2}[:1+min(1, rows/2)])
}

// sweep runs a test for every mix of so many kinds of arguments, each with a few sizes and placings. The numbers of rows, columns and placings
// have no common divisor, so that all meet each other. i counts the sizes of a mix.
func sweep(t *testing.T, dev gpustage.Device, kinds, sizes int, test func(m *mix, i int)) {
	t.Helper()
	rows, cols := [...]int{5, 150, 33, 1}, [...]int{31, 64, 6, 130, 1}
	at := 0
	for halves := range 1 << kinds {
		for i := range sizes {
			r, c, p := rows[at%len(rows)], cols[at%len(cols)], at%len(placings)
			at++
			t.Run(fmt.Sprintf("halves %0*b, %d x %d, placing %d", kinds, halves, r, c, p), func(t *testing.T) {
				test(&mix{fixture: newFixture(t, dev, 30, 0), halves: halves, rows: r, cols: c, places: placings[p]}, i)
			})
			if t.Failed() {
				return
			}
		}
	}
}

func testOperandsBF16(t *testing.T, dev gpustage.Device) {
	if !gpustage.TakesBF16(dev) {
		return
	}
	for _, g := range []struct {
		name string
		test func(*testing.T, gpustage.Device)
	}{
		{"Copy", testCopyHalves}, {"ColumnSum", testColumnSumHalves}, {"Activation", testActivationHalves}, {"Gate", testGateHalves}, {"Dropout", testDropoutHalves},
		{"Rotary", testRotaryHalves}, {"LayerNorm", testLayerNormHalves}, {"LayerNormWith", testLayerNormWithHalves}, {"LayerNormBackward", testLayerNormBackwardHalves}, {"RMSNorm", testRMSNormHalves}, {"Refused", testHalvesRefused},
	} {
		t.Run(g.name, func(t *testing.T) { g.test(t, dev) })
	}
}

// What a copy rounds has the bits of gpustage.ToBF16, and what it widens is exact.
func testCopyHalves(t *testing.T, dev gpustage.Device) {
	special := []float64{math.NaN(), math.Inf(1), math.Inf(-1), 0, 1 + 1.0/(1<<8), 1 + 3.0/(1<<8), -1 - 1.0/(1<<8) - 1.0/(1<<20), math.MaxFloat32, 3.39e38, 1e-40, -9.2e-41}
	sweep(t, dev, 0, 140, func(m *mix, _ int) {
		x := m.arg(0, "x", m.rows, m.cols, func(i, j int) float64 {
			if i == 0 && j < len(special) {
				return special[j]
			}
			return m.rng.NormFloat64()
		})
		m.halves = 1
		half, moved := m.arg(0, "half", m.rows, m.cols, nil), m.arg(0, "moved", m.rows, m.cols, nil)
		m.halves = 0
		wide, widened := m.arg(0, "wide", m.rows, m.cols, nil), m.arg(0, "widened", m.rows, m.cols, nil)
		m.run(func(s gpustage.Stream, p picker) {
			rounded, err := gpustage.NewTensor(s.Device(), gpustage.BF16, m.rows, m.cols)
			if err != nil {
				m.t.Fatal(err)
			}
			s.Copy(rounded, p(x))
			s.Copy(p(moved), rounded)
			s.Copy(p(wide), p(moved))
			s.Copy(p(half), p(x))
			s.Copy(p(widened), p(half))
		})
		for _, a := range []*arg{half, widened} { // on ref they are F64, and not rounded yet
			m.ref.Copy(a.ref, wide.ref)
		}
		for _, a := range []*arg{half, moved, wide, widened} {
			m.check(a, 0)
		}
		m.untouched(x)
	})
}

func testColumnSumHalves(t *testing.T, dev gpustage.Device) {
	sweep(t, dev, 1, 60, func(m *mix, i int) {
		rows := m.rows
		if i%3 == 0 {
			rows += 128 // more than a device sums in one piece
		}
		x, sum := m.arg(0, "x", rows, m.cols, nil), m.vector("sum", m.cols, nil)
		m.run(func(s gpustage.Stream, p picker) { s.ColumnSum(p(sum), p(x)) })
		m.check(sum, 2*float64(rows))
		m.untouched(x)
	})
}

func testActivationHalves(t *testing.T, dev gpustage.Device) {
	extreme := []float64{0, 1e-30, -1e-30, 1e-8, 0.5, -0.5, 1, -1, 3, -3, 5.5, -5.5, 10, -10, 40, -40, 88, -88, 1e4, -1e4, 3e38, -3e38}
	acts := []gpustage.Activation{gpustage.Identity, gpustage.GELU, gpustage.GELUTanh, gpustage.ReLU, gpustage.SiLU, gpustage.Tanh}
	sweep(t, dev, 4, len(acts), func(m *mix, i int) {
		act := acts[i]
		x := m.arg(0, "x", m.rows, m.cols, func(i, j int) float64 {
			if i == 0 && j < len(extreme) {
				return extreme[j]
			}
			return 3 * m.rng.NormFloat64()
		})
		y, dy, dx := m.arg(1, "y", m.rows, m.cols, nil), m.arg(2, "dy", m.rows, m.cols, nil), m.arg(3, "dx", m.rows, m.cols, nil)
		m.run(func(s gpustage.Stream, p picker) {
			s.Activate(p(y), p(x), act)
			s.ActivateBackward(p(dx), p(dy), p(x), act)
		})
		m.check(y, 8)
		m.check(dx, 16)
		m.untouched(x, dy)
		m.run(func(s gpustage.Stream, p picker) {
			s.ActivateBackward(p(dy), p(dy), p(x), act)
			s.Activate(p(x), p(x), act)
		})
		m.check(dy, 16)
		m.check(x, 8)
	})
}

func testGateHalves(t *testing.T, dev gpustage.Device) {
	acts := []gpustage.Activation{gpustage.SiLU, gpustage.GELU, gpustage.GELUTanh, gpustage.ReLU}
	sweep(t, dev, 6, 3, func(m *mix, i int) {
		act := acts[(m.halves+i)%len(acts)]
		wide := func(int, int) float64 { return 2 * m.rng.NormFloat64() }
		gate, up, y := m.arg(0, "gate", m.rows, m.cols, wide), m.arg(1, "up", m.rows, m.cols, wide), m.arg(2, "y", m.rows, m.cols, nil)
		dGate, dUp, dy := m.arg(3, "dGate", m.rows, m.cols, nil), m.arg(4, "dUp", m.rows, m.cols, nil), m.arg(5, "dy", m.rows, m.cols, nil)
		again := m.arg(2, "again", m.rows, m.cols, nil)
		m.run(func(s gpustage.Stream, p picker) {
			s.Gate(p(y), p(gate), p(up), act)
			s.GateBackward(p(dGate), p(dUp), p(again), p(dy), p(gate), p(up), act)
		})
		m.check(again, 32)
		m.check(y, 32)
		m.check(dGate, 64)
		m.check(dUp, 64)
		m.untouched(gate, up, dy)
		overGate, overUp := m.arg(0, "y over its gate", m.rows, m.cols, wide), m.arg(1, "y over what is gated", m.rows, m.cols, wide)
		m.run(func(s gpustage.Stream, p picker) {
			s.Gate(p(overGate), p(overGate), p(up), act)
			s.Gate(p(overUp), p(gate), p(overUp), act)
			s.GateBackward(p(gate), p(up), p(dy), p(dy), p(gate), p(up), act)
		})
		m.check(dy, 32)
		m.check(overGate, 32)
		m.check(overUp, 32)
		m.check(gate, 64)
		m.check(up, 64)
	})
}

func testDropoutHalves(t *testing.T, dev gpustage.Device) {
	probabilities := []float64{0, 0.1, 0.5, 0.99}
	sweep(t, dev, 2, 24, func(m *mix, i int) {
		q, prob := m.tokens(m.rows), probabilities[i/3%len(probabilities)]
		x, y, z := m.arg(0, "x", m.rows, m.cols, nil), m.arg(1, "y", m.rows, m.cols, nil), m.arg(1, "with residual", m.rows, m.cols, nil)
		r := m.arg(2, "residual", m.rows, m.cols, nil)
		over := m.arg(2, "y over its residual", m.rows, m.cols, nil)
		m.run(func(s gpustage.Stream, p picker) {
			d := gpustage.Dropout{P: prob, Seqs: q.on(p), Layer: 5, Site: gpustage.SiteFeedForward}
			s.Dropout(p(y), p(x), gpustage.Tensor{}, d)
			s.Dropout(p(z), p(x), p(r), d)
			s.Dropout(p(over), p(x), p(over), d)
		})
		withResidual := 2 * (1 + 1/(1-prob))
		m.check(y, 2)
		m.check(z, withResidual)
		m.check(over, withResidual)
		m.untouched(x, r)
		again := m.arg(0, "x with residual", m.rows, m.cols, nil)
		m.run(func(s gpustage.Stream, p picker) {
			d := gpustage.Dropout{P: prob, Seqs: q.on(p), Layer: 0, Site: gpustage.SiteEmbeddings}
			s.Dropout(p(x), p(x), gpustage.Tensor{}, d)
			s.Dropout(p(again), p(again), p(r), d)
		})
		m.check(x, 2)
		m.check(again, withResidual)
	})
}

func testRotaryHalves(t *testing.T, dev gpustage.Device) {
	heads := [][3]int{{6, 6, 4}, {31, 31, 30}, {64, 32, 32}, {64, 64, 16}, {130, 10, 10}, {130, 26, 12}, {2, 2, 2}} // columns, of a head, turned
	sweep(t, dev, 2, 2*len(heads), func(m *mix, i int) {
		cols, dim, r := heads[i%len(heads)][0], heads[i%len(heads)][1], heads[i%len(heads)][2]
		const places = 5
		index := make([]int32, m.rows)
		for i := range index {
			index[i] = int32(m.rng.IntN(places))
		}
		x, y, back := m.arg(0, "x", m.rows, cols, nil), m.arg(1, "y", m.rows, cols, nil), m.arg(1, "back", m.rows, cols, nil)
		table, idx := m.floats("table", places, r, nil), m.ints("index", index)
		turn := func(s gpustage.Stream, p picker, y, x *arg, inverse bool) {
			s.Rotary(p(y), p(x), gpustage.Rotary{Table: p(table), Index: p(idx), HeadDim: dim, Inverse: inverse})
		}
		m.run(func(s gpustage.Stream, p picker) {
			turn(s, p, y, x, false)
			turn(s, p, back, x, true)
		})
		m.check(y, 16)
		m.check(back, 16)
		m.untouched(x, table, idx)
		m.run(func(s gpustage.Stream, p picker) { turn(s, p, x, x, i%2 != 0) })
		m.check(x, 16)
	})
}

func testLayerNormHalves(t *testing.T, dev gpustage.Device) {
	sweep(t, dev, 1, 40, func(m *mix, _ int) {
		if m.cols == 1 { // the variance is zero
			m.cols = 2
		}
		y, plain := m.arg(0, "y", m.rows, m.cols, nil), m.arg(0, "without beta", m.rows, m.cols, nil)
		x := m.arg(1, "x", m.rows, m.cols, func(i, j int) float64 { return 3 + 2*m.rng.NormFloat64() })
		gamma, beta := m.vector("gamma", m.cols, nil), m.vector("beta", m.cols, nil)
		mean, rstd := m.vector("mean", m.rows, nil), m.vector("rstd", m.rows, nil)
		m.run(func(s gpustage.Stream, p picker) {
			s.LayerNorm(p(plain), p(mean), p(rstd), p(x), p(gamma), gpustage.Tensor{}, 1e-2) // two features may be nearly equal
			s.LayerNorm(p(y), p(mean), p(rstd), p(x), p(gamma), p(beta), 1e-2)
		})
		m.check(y, 200) // as testLayerNorm's
		m.check(plain, 200)
		m.check(mean, 8)
		m.check(rstd, 200)
		m.untouched(x, gamma, beta)
	})
}

func testLayerNormWithHalves(t *testing.T, dev gpustage.Device) {
	sweep(t, dev, 2, 40, func(m *mix, i int) {
		x := m.arg(0, "x", m.rows, m.cols, func(i, j int) float64 { return 3 + 2*m.rng.NormFloat64() })
		y, plain := m.arg(1, "y", m.rows, m.cols, nil), m.arg(1, "without beta", m.rows, m.cols, nil)
		const f32 = 2                                                                          // a kind that no mix has in bf16
		gamma, beta := m.arg(f32, "gamma", 1, m.cols, nil), m.arg(f32, "beta", 1, m.cols, nil) // they begin anywhere, too
		mean, rstd := m.vector("mean", m.rows, nil), m.vector("rstd", m.rows, func(int, int) float64 { return 0.5 + m.rng.Float64() })
		m.run(func(s gpustage.Stream, p picker) {
			s.LayerNormWith(p(plain), p(x), p(mean), p(rstd), p(gamma), gpustage.Tensor{})
			s.LayerNormWith(p(y), p(x), p(mean), p(rstd), p(gamma), p(beta))
		})
		m.check(y, 32) // four operations on values of up to 10
		m.check(plain, 32)
		m.untouched(x, gamma, beta, mean, rstd)
		m.run(func(s gpustage.Stream, p picker) { s.LayerNormWith(p(x), p(x), p(mean), p(rstd), p(gamma), p(beta)) })
		m.check(x, 32)
	})
}

func testLayerNormBackwardHalves(t *testing.T, dev gpustage.Device) {
	sweep(t, dev, 2, 40, func(m *mix, i int) {
		if m.cols == 1 { // the variance is zero
			m.cols = 2
		}
		q, prob := m.tokens(m.rows), []float64{0, 0.3}[i%2]
		x := m.arg(0, "x", m.rows, m.cols, func(i, j int) float64 { return 3 + 2*m.rng.NormFloat64() })
		z := m.arg(1, "dropped", m.rows, m.cols, nil)
		dx, dy, gamma := m.arg(2, "dx", m.rows, m.cols, nil), m.arg(2, "dy", m.rows, m.cols, nil), m.vector("gamma", m.cols, nil)
		mean, rstd := m.vector("mean", m.rows, nil), m.vector("rstd", m.rows, func(int, int) float64 { return 0.5 + m.rng.Float64() })
		dGamma, dBeta, sum := m.vector("dGamma", m.cols, nil), m.vector("dBeta", m.cols, nil), m.vector("the sum of dropped", m.cols, nil)
		scale := 1.0
		m.run(func(s gpustage.Stream, p picker) {
			o := gpustage.Dropped{Y: p(z), Sum: p(sum)}
			if prob > 0 {
				o.Dropout = gpustage.Dropout{P: prob, Seqs: q.on(p), Layer: 1, Site: gpustage.SiteAttentionOut}
				scale = o.Dropout.KeepScale()
			}
			s.LayerNormBackward(p(dx), p(dGamma), p(dBeta), p(dy), p(x), p(mean), p(rstd), p(gamma), o)
		})
		m.check(dx, 200)
		m.check(z, 200*scale)
		m.check(dGamma, 20+20*float64(m.rows))
		m.check(dBeta, 4*float64(m.rows))
		if sum.slack = make([]float64, m.cols); m.half(1) { // it may be of what z rounds
			for i, v := range download(m.t, m.ref, z.ref) {
				sum.slack[i%m.cols] += bf16Half * math.Abs(v)
			}
		}
		m.check(sum, 200*scale*math.Sqrt(float64(m.rows)))
		m.untouched(x, dy, gamma, mean, rstd)
		m.run(func(s gpustage.Stream, p picker) {
			s.LayerNormBackward(p(dy), gpustage.Tensor{}, gpustage.Tensor{}, p(dy), p(x), p(mean), p(rstd), p(gamma), gpustage.Dropped{Y: p(z)})
		})
		m.check(dy, 200)
		m.check(z, 200)
	})
}

func testRMSNormHalves(t *testing.T, dev gpustage.Device) {
	sweep(t, dev, 4, 10, func(m *mix, i int) {
		d, groups, offset := m.cols, 1+2*(i/2%2), float64(i/4%2)
		rows, c := m.rows, d*groups
		x := m.arg(0, "x", rows, c, func(i, j int) float64 { return 0.5 + 2*m.rng.NormFloat64() })
		y, dy, dx := m.arg(1, "y", rows, c, nil), m.arg(2, "dy", rows, c, nil), m.arg(3, "dx", rows, c, nil)
		gamma, rstd := m.vector("gamma", d, nil), m.vector("rstd", rows*groups, nil)
		dGamma, inGamma := m.vector("dGamma", d, nil), m.vector("dGamma in place", d, nil)
		m.run(func(s gpustage.Stream, p picker) {
			s.RMSNorm(p(y), p(rstd), p(x), p(gamma), 1e-6, offset)
			s.RMSNormBackward(p(dx), p(dGamma), p(dy), p(x), p(rstd), p(gamma), offset)
		})
		m.check(y, 8)
		m.check(rstd, 8)
		if d > 1 { // of one feature the gradient is zero, but for rounding
			m.check(dx, 400)
		}
		m.check(dGamma, 20+20*float64(rows*groups))
		m.untouched(x, gamma, dy)
		m.run(func(s gpustage.Stream, p picker) {
			s.RMSNormBackward(p(dx), gpustage.Tensor{}, p(dy), p(x), p(rstd), p(gamma), offset)
			s.RMSNormBackward(p(dy), p(inGamma), p(dy), p(x), p(rstd), p(gamma), offset) // gamma's gradient is of dy as it was
			s.RMSNorm(p(x), p(rstd), p(x), p(gamma), 1e-6, offset)
		})
		m.check(inGamma, 20+20*float64(rows*groups))
		if d > 1 {
			m.check(dx, 400)
			m.check(dy, 400)
		}
		m.check(x, 8)
	})
}

// A BF16 tensor where an op can't have one is an error and nothing is written, and so is one that is larger than its memory.
func testHalvesRefused(t *testing.T, dev gpustage.Device) {
	f := newFixture(t, dev, 31, 0)
	const n = 4 // everything is square: only types are wrong
	square := func(half bool, rows int) gpustage.Tensor { return f.operand("an argument", half, rows, n, nil).dev }
	h, h2, h3, w, w2, w3 := square(true, n), square(true, n), square(true, n), square(false, n), square(false, n), square(false, n)
	hv, v, v2, v3 := square(true, 1), square(false, 1), square(false, 1), square(false, 1)
	q, ids := f.sequences([]int{1, 3}), f.ints("ids", []int32{0, 1, 2, 3}).dev
	seqs := q.on(func(a *arg) gpustage.Tensor { return a.dev })
	short, err := gpustage.NewTensor(dev, gpustage.BF16, n, n)
	if err != nil {
		t.Fatal(err)
	}
	short.Off = 1
	var none gpustage.Tensor
	type stream = gpustage.Stream
	product := func(c, a, b gpustage.Tensor, o gpustage.MatMul) func(stream) {
		return func(s stream) { s.MatMul(c, a, b, o) }
	}
	rounding := func(c, a, b gpustage.Tensor, o gpustage.MatMul) func(stream) {
		o.BF16 = true
		return product(c, a, b, o)
	}
	norm := gpustage.Norm{Y: w3, Mean: v, Rstd: v2, Gamma: v3, Eps: 1}
	normOf := func(change func(*gpustage.Norm)) gpustage.MatMul {
		o := norm
		change(&o)
		return gpustage.MatMul{Norm: o}
	}
	table := func(x gpustage.Tensor) gpustage.Rotary { return gpustage.Rotary{Table: x, Index: ids, HeadDim: n} }
	for _, r := range []struct {
		name string
		op   func(stream)
	}{
		{"a product in f32, a", product(w, h, w2, gpustage.MatMul{})},
		{"a product in f32, b", product(w, w2, h, gpustage.MatMul{})},
		{"a product in f32, a and b", product(w, h, h2, gpustage.MatMul{})},
		{"a product in f32, a, b and c", product(h, h2, h3, gpustage.MatMul{})},
		{"a product in f32, c", product(h, w, w2, gpustage.MatMul{})},
		{"a product in f32, PreAct", product(w, w2, w3, gpustage.MatMul{PreAct: h, Act: gpustage.GELU})},
		{"a product in f32, GradOf", product(w, w2, w3, gpustage.MatMul{GradOf: h, Act: gpustage.GELU})},
		{"a product in f32, Again", product(w, w2, w3, gpustage.MatMul{GradOf: w, Again: h, Act: gpustage.GELU})},
		{"a product in TF32, a and b", product(w, h, h2, gpustage.MatMul{TF32: true})},
		{"a product, Bias", rounding(w, h, h2, gpustage.MatMul{Bias: hv})},
		{"a product, Bias and c", rounding(h, h2, h3, gpustage.MatMul{Bias: hv})},
		{"a product, Residual", rounding(w, h, h2, gpustage.MatMul{Residual: h3})},
		{"a product, Residual and c", rounding(h, w, w2, gpustage.MatMul{Residual: h3})},
		{"a product, c over its residual", rounding(h, w, w2, gpustage.MatMul{Residual: h})},
		{"a product, ColumnSum", rounding(w, h, h2, gpustage.MatMul{ColumnSum: hv})},
		{"a product in f32, c with a norm", product(h, w, w2, gpustage.MatMul{Norm: norm})},
		{"a product, Norm.Y", rounding(w, h, h2, normOf(func(o *gpustage.Norm) { o.Y = h3 }))},
		{"a product, Norm.Mean", rounding(w, h, h2, normOf(func(o *gpustage.Norm) { o.Mean = hv }))},
		{"a product, Norm.Rstd", rounding(w, h, h2, normOf(func(o *gpustage.Norm) { o.Rstd = hv }))},
		{"a product, Norm.Gamma", rounding(w, h, h2, normOf(func(o *gpustage.Norm) { o.Gamma = hv }))},
		{"a product, Norm.Beta", rounding(w, h, h2, normOf(func(o *gpustage.Norm) { o.Beta = hv }))},
		{"add, all", func(s stream) { s.Add(h, h2, h3) }},
		{"add, one", func(s stream) { s.Add(w, h, w2) }},
		{"scale, both", func(s stream) { s.Scale(h, h2, 2) }},
		{"scale, y", func(s stream) { s.Scale(h, w, 2) }},
		{"gather", func(s stream) { s.Gather(h, h2, ids, false) }},
		{"scatter", func(s stream) { s.ScatterAdd(h, h2, ids) }},
		{"embed", func(s stream) {
			s.Embed(h, none, none, none, gpustage.Embed{Words: gpustage.Lookup{Table: h2, Index: ids}})
		}},
		{"pool, both", func(s stream) { s.Pool(h.Span(0, 2), h2, seqs, gpustage.MeanPooling) }},
		{"pool, x", func(s stream) { s.Pool(w.Span(0, 2), h, seqs, gpustage.CLSPooling) }},
		{"pool's backward", func(s stream) { s.PoolBackward(h, h2.Span(0, 2), seqs, gpustage.MeanPooling) }},
		{"normalize, x and y", func(s stream) { s.Normalize(h, v, h2) }},
		{"normalize, all", func(s stream) { s.Normalize(h, hv, h2) }},
		{"normalize's backward", func(s stream) { s.NormalizeBackward(h, h2, h3, v) }},
		{"layer norm, x", func(s stream) { s.LayerNorm(w, v, v2, h, v3, none, 1) }},
		{"layer norm, x and y", func(s stream) { s.LayerNorm(h, v, v2, h2, v3, none, 1) }},
		{"layer norm, mean", func(s stream) { s.LayerNorm(h, hv, v2, w, v3, none, 1) }},
		{"layer norm, rstd", func(s stream) { s.LayerNorm(h, v, hv, w, v3, none, 1) }},
		{"layer norm, gamma", func(s stream) { s.LayerNorm(h, v, v2, w, hv, none, 1) }},
		{"layer norm, beta", func(s stream) { s.LayerNorm(h, v, v2, w, v3, hv, 1) }},
		{"layer norm with statistics, mean", func(s stream) { s.LayerNormWith(h, h2, hv, v2, v3, none) }},
		{"layer norm with statistics, rstd", func(s stream) { s.LayerNormWith(h, h2, v, hv, v3, none) }},
		{"layer norm with statistics, gamma", func(s stream) { s.LayerNormWith(h, h2, v, v2, hv, none) }},
		{"layer norm with statistics, beta", func(s stream) { s.LayerNormWith(h, h2, v, v2, v3, hv) }},
		{"layer norm's backward, dx", func(s stream) { s.LayerNormBackward(h, none, none, w, w2, v, v2, v3, gpustage.Dropped{}) }},
		{"layer norm's backward, dy", func(s stream) { s.LayerNormBackward(w, none, none, h, w2, v, v2, v3, gpustage.Dropped{}) }},
		{"layer norm's backward, all", func(s stream) { s.LayerNormBackward(h, none, none, h2, h3, v, v2, v3, gpustage.Dropped{}) }},
		{"layer norm's backward, the sum of what is dropped", func(s stream) {
			s.LayerNormBackward(w, none, none, w, w2, v, v2, v3, gpustage.Dropped{Y: w3, Sum: hv})
		}},
		{"RMS norm, rstd", func(s stream) { s.RMSNorm(h, hv, h2, v, 1, 0) }},
		{"RMS norm, gamma", func(s stream) { s.RMSNorm(h, v, h2, hv, 1, 0) }},
		{"RMS norm's backward, dGamma", func(s stream) { s.RMSNormBackward(h, hv, h2, h3, v, v2, 0) }},
		{"RMS norm's backward, rstd", func(s stream) { s.RMSNormBackward(h, v, h2, h3, hv, v2, 0) }},
		{"rotary, table", func(s stream) { s.Rotary(h, h2, table(h3)) }},
		{"dropout, residual", func(s stream) { s.Dropout(w, w2, h, gpustage.Dropout{}) }},
		{"dropout, all", func(s stream) { s.Dropout(h, h2, h3, gpustage.Dropout{}) }},
		{"column sum, sum", func(s stream) { s.ColumnSum(hv, h) }},
		{"row dot", func(s stream) { s.RowDot(v, h, h2, 1) }},
		{"SGD", func(s stream) { s.SGD(h, none, h2, gpustage.SGD{LR: 1, GradScale: 1}) }},
		{"beyond memory: a", rounding(w, short, h, gpustage.MatMul{})},
		{"beyond memory: b", rounding(w, h, short, gpustage.MatMul{})},
		{"beyond memory: c", rounding(short, h, h2, gpustage.MatMul{})},
		{"beyond memory: PreAct", rounding(h, h2, h3, gpustage.MatMul{PreAct: short, Act: gpustage.GELU})},
		{"beyond memory: GradOf", rounding(h, h2, h3, gpustage.MatMul{GradOf: short, Act: gpustage.GELU})},
		{"beyond memory: activation", func(s stream) { s.Activate(w, short, gpustage.GELU) }},
		{"beyond memory: activation's backward", func(s stream) { s.ActivateBackward(short, h, h2, gpustage.GELU) }},
		{"beyond memory: gate", func(s stream) { s.Gate(w, h, short, gpustage.SiLU) }},
		{"beyond memory: gate's backward", func(s stream) { s.GateBackward(h, short, none, h2, h3, w, gpustage.SiLU) }},
		{"beyond memory: dropout", func(s stream) { s.Dropout(short, h, none, gpustage.Dropout{}) }},
		{"beyond memory: rotary", func(s stream) { s.Rotary(h, short, table(w)) }},
		{"beyond memory: layer norm", func(s stream) { s.LayerNorm(short, v, v2, w, v3, none, 1) }},
		{"beyond memory: layer norm with statistics, y", func(s stream) { s.LayerNormWith(short, h, v, v2, v3, none) }},
		{"beyond memory: layer norm with statistics, x", func(s stream) { s.LayerNormWith(h, short, v, v2, v3, none) }},
		{"beyond memory: layer norm's backward", func(s stream) { s.LayerNormBackward(w, none, none, w, short, v, v2, v3, gpustage.Dropped{}) }},
		{"beyond memory: what is dropped", func(s stream) {
			s.LayerNormBackward(w, none, none, w, w2, v, v2, v3, gpustage.Dropped{Y: short})
		}},
		{"beyond memory: RMS norm", func(s stream) { s.RMSNorm(h, v, short, v2, 1, 0) }},
		{"beyond memory: RMS norm's backward", func(s stream) { s.RMSNormBackward(h, v, short, h2, v2, v3, 0) }},
		{"beyond memory: column sum", func(s stream) { s.ColumnSum(v, short) }},
		{"another shape", func(s stream) { s.Activate(h, h2.Columns(0, n-1), gpustage.GELU) }},
	} {
		t.Run(r.name, func(t *testing.T) {
			s, err := dev.OpenStream() // an error stays with its stream
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			r.op(s)
			if s.Sync() == nil {
				t.Error("the op was accepted")
			}
			g := *f
			g.t = t
			g.untouched(g.args...)
		})
		if t.Failed() { // what was written stays so
			return
		}
	}
}

// same checks that two tensors on the device have the same bits.
func same(t *testing.T, f *fixture, a, b *arg, what string) {
	t.Helper()
	var got [2][]float64
	for i, x := range []*arg{a, b} {
		flat, err := gpustage.NewTensor(f.dev, x.dev.DType, x.dev.Rows, x.dev.Cols)
		if err != nil {
			t.Fatal(err)
		}
		f.s.Copy(flat, x.dev)
		got[i] = download(t, f.s, flat)
	}
	if !bytes.Equal(gpustage.Bytes(got[0]), gpustage.Bytes(got[1])) {
		t.Fatal(what + " differ")
	}
}
