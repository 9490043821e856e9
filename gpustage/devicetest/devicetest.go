// Package devicetest is the conformance suite of package gpustage: a device is done when it passes.
//
// Every op runs on the device in f32 and on package ref in f64, from the same inputs, over sizes with odd tails, tensors
// with gaps between their rows, aliased arguments where the op allows them, and extreme values. What lies in the gaps and
// around every tensor must come back untouched. Tolerances are stated beside each op, in units of f32's epsilon. On a GPU a last group has the sizes
// of training (large.go).
//
//	func TestConformance(t *testing.T) {
//		devicetest.Run(t, func() (gpustage.Device, error) { return mine.New() })
//	}
package devicetest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/ref"
)

// Epsilon is f32's relative spacing at 1.
const Epsilon = 1.0 / (1 << 23)

// Run runs the suite, but for groups that are named. open is called once.
func Run(t *testing.T, open func() (gpustage.Device, error), except ...string) {
	dev, err := open()
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	for _, g := range []struct {
		name string
		test func(*testing.T, gpustage.Device)
	}{
		{"Memory", testMemory}, {"Streams", testStreams}, {"Errors", testErrors}, {"Empty", testEmpty}, {"Basic", testBasic}, {"Integers", testIntegers}, {"MatMul", testMatMul}, {"Epilogue", testEpilogue}, {"RoundedEpilogue", testRoundedEpilogue}, {"TF32", testTF32}, {"Pairs", testPairs}, {"ProductColumnSum", testProductColumnSum}, {"Rounded", testRounded}, {"Forms", testForms}, {"FormsOfBothPasses", testFormsOfBothPasses},
		{"Gather", testGather}, {"Embed", testEmbed}, {"LayerNorm", testLayerNorm}, {"RMSNorm", testRMSNorm}, {"Gate", testGate}, {"Rotary", testRotary}, {"Activation", testActivation}, {"Dropout", testDropout},
		{"Attention", testAttention}, {"AttentionNaN", testAttentionNaN}, {"Positions", testPositions}, {"Seen", testSeen}, {"AttentionBF16", testHalvesAttention}, {"Pool", testPool}, {"Bag", testBag}, {"Normalize", testNormalize}, {"Scores", testScores}, {"ScoresNaN", testScoresNaN}, {"MaxSim", testMaxSim}, {"Splade", testSplade},
		{"Update", testUpdate}, {"Runs", testRuns}, {"Deterministic", testDeterministic}, {"Repeat", testRepeat},
		{"OperandsBF16", testOperandsBF16}, {"ProductsBF16", testProductsBF16}, {"Large", testLarge},
	} {
		if i := slices.Index(except, g.name); i >= 0 {
			except = slices.Delete(except, i, i+1)
			continue
		}
		t.Run(g.name, func(t *testing.T) { g.test(t, dev) })
	}
	if len(except) > 0 {
		t.Errorf("the suite has no groups %v", except)
	}
}

// arg is one argument on both devices.
type arg struct {
	name     string
	dev, ref gpustage.Tensor
	back     gpustage.Tensor // the device's whole allocation, guard elements included
	guard    []float64       // what it held at first
	slack    []float64       // what check allows each element beyond its tolerance; nil: nothing
}

// fixture is one comparison: arguments are made, an op is run on both devices, outputs are compared.
type fixture struct {
	t      *testing.T
	dev    gpustage.Device
	s, ref gpustage.Stream
	rng    *rand.Rand
	args   []*arg
	gap    int // elements between rows
}

func newFixture(t *testing.T, dev gpustage.Device, seed uint64, gap int) *fixture {
	t.Helper()
	s, err := dev.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	r, _ := ref.New().OpenStream()
	f := &fixture{t: t, dev: dev, s: s, ref: r, rng: rand.New(rand.NewPCG(seed, 7)), gap: gap}
	t.Cleanup(func() { s.Close() })
	return f
}

// floats makes an F32 argument (F64 on ref) from a function of row and column; nil means standard normal.
func (f *fixture) floats(name string, rows, cols int, value func(i, j int) float64) *arg {
	if value == nil {
		value = func(int, int) float64 { return f.rng.NormFloat64() }
	}
	return f.make(name, gpustage.F32, gpustage.F64, rows, cols, f.gap, value)
}

// operand is floats whose values are bf16's, BF16 on the device with halves.
func (f *fixture) operand(name string, halves bool, rows, cols int, value func(i, j int) float64) *arg {
	if value == nil {
		value = func(int, int) float64 { return f.rng.NormFloat64() }
	}
	kind := gpustage.F32
	if halves {
		kind = gpustage.BF16
	}
	return f.make(name, kind, gpustage.F64, rows, cols, f.gap, func(i, j int) float64 { return float64(gpustage.RoundBF16(float32(value(i, j)))) })
}

// tensor is floats, or an operand that is BF16 on the device.
func (f *fixture) tensor(name string, half bool, rows, cols int, value func(i, j int) float64) *arg {
	if half {
		return f.operand(name, true, rows, cols, value)
	}
	return f.floats(name, rows, cols, value)
}

// vector is floats with one row and no gap.
func (f *fixture) vector(name string, n int, value func(i, j int) float64) *arg {
	if value == nil {
		value = func(int, int) float64 { return f.rng.NormFloat64() }
	}
	return f.make(name, gpustage.F32, gpustage.F64, 1, n, 0, value)
}

// double is an F64 argument on both devices.
func (f *fixture) double(name string, n int) *arg {
	return f.make(name, gpustage.F64, gpustage.F64, 1, n, 0, func(int, int) float64 { return 0 })
}

func (f *fixture) ints(name string, vs []int32) *arg {
	return f.make(name, gpustage.I32, gpustage.I32, 1, len(vs), 0, func(_, j int) float64 { return float64(vs[j]) })
}

// places is an I32 argument [rows, cols].
func (f *fixture) places(name string, rows, cols int) *arg {
	return f.make(name, gpustage.I32, gpustage.I32, rows, cols, f.gap, func(_, _ int) float64 { return 0 })
}

const guardRows = 2 // elements of guard before and after, in units of a row's stride (at least 64); of a device that watches what is read, before alone

func (f *fixture) make(name string, devType, refType gpustage.DType, rows, cols, gap int, value func(i, j int) float64) *arg {
	f.t.Helper()
	stride := cols + gap
	lead := max(64, guardRows*stride)
	n := lead + rows*stride + lead
	if w, ok := f.dev.(interface{ Watches() bool }); ok && w.Watches() { // who reads behind the tensor then reads behind the memory
		n = lead + max(0, (rows-1)*stride+cols)
	}
	back, err := gpustage.NewTensor(f.dev, devType, 1, n)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { back.Mem.Free() }) // a device's memory is not the garbage collector's
	reft, err := gpustage.NewTensor(f.ref.Device(), refType, rows, cols)
	if err != nil {
		f.t.Fatal(err)
	}
	host := make([]float64, n)
	for i := range host {
		host[i] = float64(7 + i%13)
	}
	vs := make([]float64, rows*cols)
	for i := range rows {
		for j := range cols {
			v := value(i, j)
			if devType == gpustage.F32 {
				v = float64(float32(v))
			}
			host[lead+i*stride+j] = v
			vs[i*cols+j] = v
		}
	}
	upload(f.s, back, host)
	upload(f.ref, reft, vs)
	a := &arg{
		name: name, ref: reft, back: back, guard: host,
		dev: gpustage.Tensor{Mem: back.Mem, Off: lead, Rows: rows, Cols: cols, Stride: stride, DType: devType},
	}
	f.args = append(f.args, a)
	return a
}

func upload(s gpustage.Stream, t gpustage.Tensor, vs []float64) {
	switch t.DType {
	case gpustage.F32:
		s.CopyIn(t, gpustage.Bytes(convert[float32](vs)))
	case gpustage.F64:
		s.CopyIn(t, gpustage.Bytes(vs))
	case gpustage.I32:
		s.CopyIn(t, gpustage.Bytes(convert[int32](vs)))
	case gpustage.BF16:
		out := make([]uint16, len(vs))
		for i, v := range vs {
			out[i] = gpustage.ToBF16(float32(v))
		}
		s.CopyIn(t, gpustage.Bytes(out))
	}
}

func convert[T float32 | int32 | float64](vs []float64) []T {
	out := make([]T, len(vs))
	for i, v := range vs {
		out[i] = T(v)
	}
	return out
}

func download(t *testing.T, s gpustage.Stream, x gpustage.Tensor) []float64 {
	t.Helper()
	var out []float64
	switch x.DType {
	case gpustage.F32:
		vs := make([]float32, x.Len())
		s.CopyOut(gpustage.Bytes(vs), x)
		done(t, s)
		for _, v := range vs {
			out = append(out, float64(v))
		}
	case gpustage.F64:
		out = make([]float64, x.Len())
		s.CopyOut(gpustage.Bytes(out), x)
		done(t, s)
	case gpustage.I32:
		vs := make([]int32, x.Len())
		s.CopyOut(gpustage.Bytes(vs), x)
		done(t, s)
		for _, v := range vs {
			out = append(out, float64(v))
		}
	case gpustage.BF16:
		vs := make([]uint16, x.Len())
		s.CopyOut(gpustage.Bytes(vs), x)
		done(t, s)
		for _, v := range vs {
			out = append(out, float64(gpustage.FromBF16(v)))
		}
	}
	return out
}

func done(t *testing.T, s gpustage.Stream) {
	t.Helper()
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
}

// picker gives an argument's tensor on the device at hand.
type picker func(*arg) gpustage.Tensor

// run runs an op on both devices.
func (f *fixture) run(op func(gpustage.Stream, picker)) {
	f.t.Helper()
	op(f.s, func(a *arg) gpustage.Tensor { return a.dev })
	op(f.ref, func(a *arg) gpustage.Tensor { return a.ref })
	done(f.t, f.s)
	done(f.t, f.ref)
}

// check compares an output: |got - want| <= tolerance * epsilon * (1 + |want|). Where want is not finite, got must be the
// same. Guard elements must be untouched.
func (f *fixture) check(a *arg, tolerance float64) {
	f.t.Helper()
	got := download(f.t, f.s, a.back)
	want := download(f.t, f.ref, a.ref)
	lead, bad := a.dev.Off, 0
	inside := func(k int) (i, j int, ok bool) {
		k -= lead
		if k < 0 || a.dev.Stride == 0 || k/a.dev.Stride >= a.dev.Rows || k%a.dev.Stride >= a.dev.Cols {
			return 0, 0, false
		}
		return k / a.dev.Stride, k % a.dev.Stride, true
	}
	for k, g := range got {
		i, j, ok := inside(k)
		if !ok {
			if g != a.guard[k] {
				f.t.Errorf("%s: element %d outside the tensor was written: %v", a.name, k-lead, g)
				return
			}
			continue
		}
		w := want[i*a.ref.Cols+j]
		limit := tolerance * Epsilon * (1 + math.Abs(w))
		if a.dev.DType == gpustage.BF16 { // rounded when it is stored, to 8 bits
			limit += 2 * math.Abs(w) / (1 << 9)
		}
		if a.slack != nil {
			limit += a.slack[i*a.ref.Cols+j]
		}
		same := math.Abs(g-w) <= limit || g == w || math.IsNaN(g) && math.IsNaN(w)
		if math.Abs(w) > math.MaxFloat32 { // rounds to infinity
			same = math.IsInf(g, 0) && math.Signbit(g) == math.Signbit(w) || math.IsNaN(w)
		}
		if !same {
			if bad++; bad <= 3 {
				f.t.Errorf("%s[%d %d] = %v, want %v (error %.3g, limit %.3g)", a.name, i, j, g, w, math.Abs(g-w), limit)
			}
		}
	}
	if bad > 3 {
		f.t.Errorf("%s: %d of %d elements are wrong", a.name, bad, a.ref.Len())
	}
}

// copyFor is room for a copy in bf16 of what an op gives, on a device that takes such: the op with it is run there alone.
func (f *fixture) copyFor(name string, rows, cols int) *arg {
	return f.operand(name, gpustage.TakesBF16(f.dev), rows, cols, nil)
}

// in is the copy's room on the device, and no tensor on ref and on devices that take none.
func (f *fixture) in(s gpustage.Stream, copy *arg) gpustage.Tensor {
	if s != f.s || copy.dev.DType != gpustage.BF16 {
		return gpustage.Tensor{}
	}
	return copy.dev
}

// checkCopy checks that copy has the bits of what it is of, rounded; where no copies are made, that it is untouched.
func (f *fixture) checkCopy(copy, of *arg) {
	f.t.Helper()
	if copy.dev.DType != gpustage.BF16 {
		f.untouched(copy)
		return
	}
	got, want := download(f.t, f.s, copy.back), download(f.t, f.s, of.back)
	for k, g := range got {
		w := copy.guard[k]
		if k -= copy.dev.Off; k >= 0 && k/copy.dev.Stride < copy.dev.Rows && k%copy.dev.Stride < copy.dev.Cols {
			w = float64(gpustage.RoundBF16(float32(want[of.dev.Off+k/copy.dev.Stride*of.dev.Stride+k%copy.dev.Stride])))
		}
		if g != w && !math.IsNaN(w) {
			f.t.Errorf("%s: element %d is %v, want %v", copy.name, k, g, w)
			return
		}
	}
}

// untouched checks that an input came back as it was.
func (f *fixture) untouched(as ...*arg) {
	f.t.Helper()
	for _, a := range as {
		for k, g := range download(f.t, f.s, a.back) {
			if g != a.guard[k] && !math.IsNaN(g) {
				f.t.Errorf("%s: an input was written", a.name)
				break
			}
		}
	}
}

// checkOperand checks that a norm's operand has the bits that LayerNormWith makes of the sum rounded to bf16, with the statistics of the sum as it
// was; where no operands are made, that it is untouched.
func (f *fixture) checkOperand(operand, sum, mean, rstd *arg, gamma, beta gpustage.Tensor) {
	f.t.Helper()
	if operand.dev.DType != gpustage.BF16 {
		f.untouched(operand)
		return
	}
	again := f.copyFor(operand.name+" again", sum.dev.Rows, sum.dev.Cols)
	f.s.Copy(again.dev, sum.dev)
	f.s.LayerNormWith(again.dev, again.dev, mean.dev, rstd.dev, gamma, beta)
	same(f.t, f, operand, again, operand.name+" and what is made again of the rounded sum")
}

// sequences makes rows of the given lengths on both devices, with dropout keys.
type sequences struct {
	rows, tokens, maxLen int
	cu, row, pos         *arg
	keys, refKeys        gpustage.Tensor
}

func (f *fixture) sequences(lengths []int) sequences {
	f.t.Helper()
	cu := []int32{0}
	var row, pos []int32
	s := sequences{rows: len(lengths)}
	keys := make([]uint64, len(lengths))
	for b, n := range lengths {
		cu = append(cu, cu[b]+int32(n))
		for p := range n {
			row, pos = append(row, int32(b)), append(pos, int32(p))
		}
		s.maxLen = max(s.maxLen, n)
		keys[b] = gpustage.RowKey(42, 3, int64(1000+b), 1)
	}
	s.tokens = len(row)
	s.cu, s.row, s.pos = f.ints("cu", cu), f.ints("row", row), f.ints("pos", pos)
	for _, d := range []struct {
		s gpustage.Stream
		t *gpustage.Tensor
	}{{f.s, &s.keys}, {f.ref, &s.refKeys}} {
		t, err := gpustage.NewTensor(d.s.Device(), gpustage.U64, 1, len(keys))
		if err != nil {
			f.t.Fatal(err)
		}
		d.s.CopyIn(t, gpustage.Bytes(keys))
		*d.t = t
	}
	return s
}

// on is the sequences as an op takes them.
func (s sequences) on(get picker) gpustage.Sequences {
	keys := s.keys
	if get(s.cu).Mem == s.cu.ref.Mem {
		keys = s.refKeys
	}
	return gpustage.Sequences{Rows: s.rows, Tokens: s.tokens, MaxLen: s.maxLen, Cu: get(s.cu), Row: get(s.row), Pos: get(s.pos), Keys: keys}
}

func name(parts ...any) string { return fmt.Sprint(parts...) }
