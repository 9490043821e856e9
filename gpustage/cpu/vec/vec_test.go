package vec

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"contraflow/gpustage"
)

// eps is float32's relative spacing at 1. Tolerances are multiples of it.
const eps = 1.0 / (1 << 23)

// forEach runs a test with every set of kernels that this processor can run.
func forEach(t *testing.T, f func(t *testing.T, k *Kernels)) {
	for _, name := range Available() {
		k, err := Select(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(name, func(t *testing.T) { f(t, k) })
	}
}

// lengths are all numbers of elements that a few vectors and a tail can have, and some that are long.
var lengths = func() []int {
	var ns []int
	for n := range 100 {
		ns = append(ns, n)
	}
	return append(ns, 127, 128, 129, 255, 257, 384, 1000, 1023, 4099)
}()

// bed hands out slices at odd addresses with guards on both sides: NaN, so that what reads them shows it, and with bits of
// their own, so that what writes them is seen.
type bed struct {
	t      *testing.T
	rng    *rand.Rand
	floats [][]float32
	halves [][]uint16
}

const (
	guards    = 40
	guardBits = 0x7fc0dead
	halfGuard = 0x7fde
)

func newBed(t *testing.T) *bed {
	return &bed{t: t, rng: rand.New(rand.NewPCG(1, 2))}
}

// row is n elements made by value, or standard normal.
func (b *bed) row(n int, value func() float32) []float32 {
	if value == nil {
		value = b.normal
	}
	at := guards + b.rng.IntN(16)
	all := make([]float32, at+n+guards)
	for i := range all {
		all[i] = math.Float32frombits(guardBits)
	}
	x := all[at : at+n : at+n]
	for i := range x {
		x[i] = value()
	}
	b.floats = append(b.floats, all[:at:at], all[at+n:])
	return x
}

func (b *bed) half(n int) []uint16 {
	at := guards + b.rng.IntN(16)
	all := make([]uint16, at+n+guards)
	for i := range all {
		all[i] = halfGuard
	}
	b.halves = append(b.halves, all[:at:at], all[at+n:])
	return all[at : at+n : at+n]
}

func (b *bed) copy(x []float32) []float32 {
	y := b.row(len(x), nil)
	copy(y, x)
	return y
}

func (b *bed) normal() float32 { return float32(b.rng.NormFloat64()) }

// check fails if a guard has been written.
func (b *bed) check() {
	b.t.Helper()
	for _, g := range b.floats {
		for _, v := range g {
			if math.Float32bits(v) != guardBits {
				b.t.Fatalf("outside a slice %v was written", v)
			}
		}
	}
	for _, g := range b.halves {
		for _, v := range g {
			if v != halfGuard {
				b.t.Fatalf("outside a slice %#x was written", v)
			}
		}
	}
	b.floats, b.halves = nil, nil
}

// near compares with the truth in float64: |got - want| <= tolerance * eps * (1 + |want|). What is too large for float32
// has to be infinite, and NaN has to be NaN. It returns the largest error in those units.
func near(t *testing.T, what string, got []float32, want func(i int) float64, tolerance float64) (worst float64) {
	t.Helper()
	for i, g := range got {
		w := want(i)
		if float64(g) == w || g != g && w != w {
			continue
		}
		if math.Abs(w) > math.MaxFloat32*(1+eps/4) {
			if float64(g) != math.Inf(int(math.Copysign(1, w))) {
				t.Fatalf("%s: element %d of %d is %v, want %v", what, i, len(got), g, w)
			}
			continue
		}
		e := math.Abs(float64(g)-w) / (eps * (1 + math.Abs(w)))
		if !(e <= tolerance) {
			t.Fatalf("%s: element %d of %d is %v, want %v: %.2f units off, %v allowed", what, i, len(got), g, w, e, tolerance)
		}
		worst = max(worst, e)
	}
	return worst
}

func bitsEqual(a, b []float32) int {
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) && (a[i] == a[i] || b[i] == b[i]) {
			return i
		}
	}
	return -1
}

func TestSelect(t *testing.T) {
	all := Available()
	if all[len(all)-1] != "portable" {
		t.Errorf("available: %v", all)
	}
	for name, want := range map[string]string{"": all[0], "portable": "portable"} {
		if k, err := Select(name); err != nil || k.String() != want {
			t.Errorf("Select(%q): %v, %v", name, k, err)
		}
	}
	if _, err := Select("sse9"); err == nil || !strings.Contains(err.Error(), `no kernels named "sse9"; it can run`) {
		t.Errorf("an unknown name: %v", err)
	}
	for _, name := range []string{"avx512bf16", "amx"} {
		k, err := Select(name)
		if strings.Contains(strings.Join(all, " "), "avx512") {
			if err != nil || k.String() != "avx512" {
				t.Errorf("%s: %v, %v", name, k, err)
			}
		} else if err == nil || !strings.Contains(err.Error(), `can't run the kernels "`+name+`"`) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestElementwise(t *testing.T) {
	forEach(t, func(t *testing.T, k *Kernels) {
		b := newBed(t)
		for _, n := range lengths {
			x, z, p := b.row(n, nil), b.row(n, nil), b.row(n, nil)
			X, Z, P := widen(x), widen(z), widen(p)
			const alpha, beta = -1.625, 0.3125 // exact in float32
			for _, f := range []struct {
				name string
				run  func(y, x, z []float32)
				want func(i int) float64
			}{
				{"add", func(y, x, z []float32) { k.Add(y, x, z) }, func(i int) float64 { return X[i] + Z[i] }},
				{"mul", func(y, x, z []float32) { k.Mul(y, x, z) }, func(i int) float64 { return X[i] * Z[i] }},
				{"scale", func(y, x, z []float32) { k.Scale(y, x, alpha) }, func(i int) float64 { return alpha * X[i] }},
				{"axpby", func(y, x, z []float32) { k.Axpby(y, x, z, alpha, beta) }, func(i int) float64 { return alpha*X[i] + beta*Z[i] }},
				{"softmax backward", func(y, x, z []float32) { k.SoftmaxBackward(y, x, z, beta, alpha) },
					func(i int) float64 { return alpha * X[i] * (Z[i] - beta) }},
			} {
				y := b.row(n, nil)
				f.run(y, x, z)
				near(t, f.name, y, f.want, 2)
				for i := range 2 { // in place of either
					in := [2][]float32{b.copy(x), b.copy(z)}
					f.run(in[i], in[0], in[1])
					near(t, f.name+" in place", in[i], f.want, 2)
				}
			}
			k.Axpy(p, x, alpha)
			near(t, "axpy", p, func(i int) float64 { return P[i] + alpha*X[i] }, 2)
			P = widen(p)
			k.MulAdd(p, x, z, alpha)
			near(t, "mulAdd", p, func(i int) float64 { return P[i] + alpha*X[i]*Z[i] }, 4)
			b.check()
		}
	})
}

func TestRotate(t *testing.T) {
	forEach(t, func(t *testing.T, k *Kernels) {
		b := newBed(t)
		for _, n := range lengths {
			x, w, cos, sin := b.row(n, nil), b.row(n, nil), b.row(n, nil), b.row(n, nil)
			X, W, C, S := widen(x), widen(w), widen(cos), widen(sin)
			first := func(i int) float64 { return X[i]*C[i] - W[i]*S[i] }
			second := func(i int) float64 { return W[i]*C[i] + X[i]*S[i] }
			size := 0.0
			for i := range X {
				size = max(size, math.Abs(X[i]*C[i])+math.Abs(W[i]*S[i]), math.Abs(W[i]*C[i])+math.Abs(X[i]*S[i]))
			}
			y, z := b.row(n, nil), b.row(n, nil)
			k.Rotate(y, z, x, w, cos, sin)
			near(t, "rotate", y, first, 1+size)
			near(t, "rotate", z, second, 1+size)
			p, q := b.copy(x), b.copy(w)
			k.Rotate(p, q, p, q, cos, sin)
			if bitsEqual(p, y) >= 0 || bitsEqual(q, z) >= 0 {
				t.Fatalf("%d elements: rotated in place they differ", n)
			}
			b.check()
		}
	})
}

func widen(x []float32) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}

func TestSums(t *testing.T) {
	forEach(t, func(t *testing.T, k *Kernels) {
		b := newBed(t)
		for _, n := range lengths {
			x, y := b.row(n, nil), b.row(n, nil)
			dot, size, squares, top := 0.0, 0.0, 0.0, math.Inf(-1)
			for i := range x {
				p := float64(x[i]) * float64(y[i])
				dot, size = dot+p, size+math.Abs(p)
				squares += float64(x[i]) * float64(x[i])
				top = max(top, float64(x[i]))
			}
			// Each of n/4 additions to a lane, and one product each, rounds by half a unit of a partial sum below size.
			if got := float64(k.Dot(x, y)); !(math.Abs(got-dot) <= (1+float64(n)/8)*eps*size) {
				t.Errorf("dot of %d: %v, want %v", n, got, dot)
			}
			if got := k.SumSquares(x); !(math.Abs(got-squares) <= 1e-15*float64(n+1)*squares) {
				t.Errorf("sum of squares of %d: %v, want %v", n, got, squares)
			}
			if got := float64(k.Max(x)); got != top {
				t.Errorf("max of %d: %v, want %v", n, got, top)
			}
			for i := range x { // wherever it is, the largest is found, and NaN is not it
				was := x[i]
				if x[i] = 100; k.Max(x) != 100 {
					t.Fatalf("the largest of %d, at %d, was not found", n, i)
				}
				x[i] = float32(math.NaN())
				if m := k.Max(x); m != m || n > 1 && m < -10 {
					t.Fatalf("with NaN at %d of %d the largest is %v", i, n, m)
				}
				x[i] = was
			}
		}
		for i := range 33 {
			x := b.row(33, func() float32 { return -7 })
			if x[i] = -3; k.Max(x) != -3 {
				t.Errorf("the largest of negative numbers, at %d: %v", i, k.Max(x))
			}
		}
		b.check()
	})
}

func TestAddRows(t *testing.T) {
	forEach(t, func(t *testing.T, k *Kernels) {
		b := newBed(t)
		for _, n := range append(lengths[:40:40], 100, 384) {
			for _, rows := range []int{0, 1, 7, 8, 9, 16, 31} {
				for _, gap := range []int{0, 3} {
					stride := n + gap
					x := Rows{X: b.row(max(0, rows*stride-gap), nil), Stride: stride}
					sum := b.row(n, nil)
					was := widen(sum)
					k.AddRows(sum, x, rows)
					near(t, "rows added", sum, func(j int) float64 {
						w := was[j]
						for i := range rows {
							w += float64(x.X[i*stride+j])
						}
						return w
					}, 2+float64(rows)/2)
				}
			}
			b.check()
		}
	})
}

// A shorter slice must not reach the assembly: any one of a call's, but the one that has the output's length.
func TestShortSlices(t *testing.T) {
	type slices = [][]float32
	ids, halves := make([]int32, 39), make([]uint16, 39)
	forEach(t, func(t *testing.T, k *Kernels) {
		for name, c := range map[string]struct {
			lengths []int // of slices, as long as they must be; the first is not shortened
			call    func(s slices)
		}{
			"add":               {[]int{40, 40, 40}, func(s slices) { k.Add(s[0], s[1], s[2]) }},
			"mul":               {[]int{40, 40, 40}, func(s slices) { k.Mul(s[0], s[1], s[2]) }},
			"mulAdd":            {[]int{40, 40, 40}, func(s slices) { k.MulAdd(s[0], s[1], s[2], 2) }},
			"rotate":            {[]int{40, 40, 40, 40, 40, 40}, func(s slices) { k.Rotate(s[0], s[1], s[2], s[3], s[4], s[5]) }},
			"axpy":              {[]int{40, 40}, func(s slices) { k.Axpy(s[0], s[1], 2) }},
			"scale":             {[]int{40, 40}, func(s slices) { k.Scale(s[0], s[1], 2) }},
			"axpby":             {[]int{40, 40, 40}, func(s slices) { k.Axpby(s[0], s[1], s[2], 2, 3) }},
			"softmax backward":  {[]int{40, 40, 40}, func(s slices) { k.SoftmaxBackward(s[0], s[1], s[2], 2, 3) }},
			"dot":               {[]int{40, 40}, func(s slices) { k.Dot(s[0], s[1]) }},
			"exp":               {[]int{40, 40}, func(s slices) { k.Exp(s[0], s[1]) }},
			"expScale":          {[]int{40, 40}, func(s slices) { k.ExpScale(s[0], s[1], 1, 2) }},
			"expSum":            {[]int{40, 40}, func(s slices) { k.ExpSum(s[0], s[1], 1) }},
			"normalize":         {[]int{40, 40}, func(s slices) { k.Normalize(s[0], s[1]) }},
			"normalizeBackward": {[]int{40, 40, 40}, func(s slices) { k.NormalizeBackward(s[0], s[1], s[2], 1) }},
			"gelu":              {[]int{40, 40}, func(s slices) { k.Act(gpustage.GELU, s[0], s[1]) }},
			"identity":          {[]int{40, 40}, func(s slices) { k.Act(gpustage.Identity, s[0], s[1]) }},
			"gelu backward":     {[]int{40, 40, 40}, func(s slices) { k.ActBackward(gpustage.GELU, s[0], s[1], s[2]) }},
			"dropout":           {[]int{40, 40, 40}, func(s slices) { k.Dropout(s[0], s[1], s[2], 16, Dropout{}) }},
			"adamw":             {[]int{40, 40, 40, 40}, func(s slices) { k.AdamW(s[0], s[1], s[2], s[3], gpustage.AdamW{Step: 1}) }},
			"sgd":               {[]int{40, 40, 40}, func(s slices) { k.SGD(s[0], s[1], s[2], gpustage.SGD{}) }},
			"add rows":          {[]int{40, 9*41 - 1}, func(s slices) { k.AddRows(s[0], Rows{s[1], 41}, 9) }},
			"eight rows":        {[]int{40, 8*41 - 1}, func(s slices) { k.AddRows(s[0], Rows{s[1], 41}, 8) }},
			"layer norm": {[]int{20, 41, 41, 20, 2}, func(s slices) {
				k.LayerNorm(Rows{s[1], 21}, make([]float32, 2), s[4], Rows{s[2], 21}, s[0], s[3], 1)
			}},
			"layer norm backward": {[]int{20, 41, 41, 41, 2, 20, 20}, func(s slices) {
				k.LayerNormBackward(Rows{s[1], 21}, s[5], s[6], Rows{s[2], 21}, Rows{s[3], 21}, make([]float32, 2), s[4], s[0])
			}},
			"mask":    {[]int{40}, func(s slices) { k.MaskRow(s[0], 1, ids) }},
			"to bf16": {[]int{40, 40}, func(s slices) { k.ToBF16(make([]uint16, 40), s[1]) }},
			"widen":   {[]int{40}, func(s slices) { k.FromBF16(s[0], halves) }},
		} {
			for short := range c.lengths {
				if short == 0 && len(c.lengths) > 1 {
					continue
				}
				var all slices
				for i, n := range c.lengths {
					if i == short && i > 0 {
						n--
					}
					all = append(all, make([]float32, n))
				}
				func() {
					defer func() {
						if recover() == nil {
							t.Errorf("%s took a slice, number %d, that is too short", name, short)
						}
					}()
					c.call(all)
				}()
			}
		}
	})
}

// Pointwise functions give an element the same bits wherever it lies, so a device may split rows anywhere.
func TestSplit(t *testing.T) {
	forEach(t, func(t *testing.T, k *Kernels) {
		b := newBed(t)
		const n = 131
		x, z := b.row(n, func() float32 { return 4 * b.normal() }), b.row(n, nil)
		for name, f := range pointwiseFunctions(k) {
			whole, parts := b.row(n, nil), b.row(n, nil)
			f(whole, x, z)
			for lo := 0; lo < n; {
				hi := min(n, lo+1+b.rng.IntN(40))
				f(parts[lo:hi], x[lo:hi], z[lo:hi])
				lo = hi
			}
			if i := bitsEqual(whole, parts); i >= 0 {
				t.Errorf("%s: element %d is %v in one piece and %v in several", name, i, whole[i], parts[i])
			}
		}
		b.check()
	})
}

func pointwiseFunctions(k *Kernels) map[string]func(y, x, z []float32) {
	fs := map[string]func(y, x, z []float32){
		"add":             func(y, x, z []float32) { k.Add(y, x, z) },
		"mul":             func(y, x, z []float32) { k.Mul(y, x, z) },
		"mulAdd":          func(y, x, z []float32) { copy(y, z); k.MulAdd(y, x, z, 1.1) },
		"rotate":          func(y, x, z []float32) { k.Rotate(y, make([]float32, len(y)), x, z, z, x) },
		"axpby":           func(y, x, z []float32) { k.Axpby(y, x, z, 1.1, 2.3) },
		"axpy":            func(y, x, z []float32) { copy(y, z); k.Axpy(y, x, 1.1) },
		"scale":           func(y, x, z []float32) { k.Scale(y, x, 1.1) },
		"exp":             func(y, x, z []float32) { k.Exp(y, x) },
		"expScale":        func(y, x, z []float32) { k.ExpScale(y, x, 0.3, 1.7) },
		"expSum":          func(y, x, z []float32) { k.ExpSum(y, x, 0.3) },
		"softmaxBackward": func(y, x, z []float32) { k.SoftmaxBackward(y, x, z, 0.3, 1.7) },
	}
	for f := range activations {
		fs[f.String()] = func(y, x, z []float32) { k.Act(f, y, x) }
		fs[f.String()+" backward"] = func(y, x, z []float32) { k.ActBackward(f, y, z, x) }
	}
	return fs
}
