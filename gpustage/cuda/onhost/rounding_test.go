//go:build linux && amd64

package onhost

import (
	"errors"
	"math"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/cpu"

	"contraflow/gpustage"
	"contraflow/testdata/harness"
)

// Kernels that round as GPUs do are as far off as their documents allow, up and down; a product that is added is not rounded; and tensor cores
// truncate, as the products that stand in for the library's do.
func TestRounding(t *testing.T) {
	names := []string{"powers", "reciprocals", "exponentials", "tangents", "logarithms", "squares", "products"}
	path, err := filepath.Abs("testdata/rounding.cu")
	if err != nil {
		t.Fatal(err)
	}
	object := filepath.Join(t.TempDir(), "rounding.so")
	err = build(object, []module{{path, names}}, append(slices.Clone(checked), rounding...)...)
	if errors.Is(err, exec.ErrNotFound) {
		harness.Missing(t, "no g++ or clang++: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	l, err := load(object)
	if err != nil {
		t.Fatal(err)
	}
	run := func(kernel string, x []float32) []float32 {
		m, err := gpustage.AllocHost(4 * len(x))
		if err != nil {
			t.Fatal(err)
		}
		l.mayTouch(m.Data())
		y := gpustage.Slice[float32](gpustage.Tensor{Mem: m, Rows: 1, Cols: len(x), Stride: len(x), DType: gpustage.F32})
		copy(y, x)
		s := Stream{device: &Device{library: l}}
		if err := l.start(kernel, [3]int{1, 1, 1}, [3]int{32, 1, 1}, 0, []uint64{uint64(s.Address(m)), uint64(len(x))}, []int32{0, 1}); err != nil {
			t.Fatal(err)
		}
		return y
	}
	r := rand.New(rand.NewPCG(6, 6))
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	same := func(a, b float32) bool { return a == b || a != a && b != b }
	for _, f := range []struct {
		kernel  string
		exact   func(float64) float64
		units   int
		scale   float64      // of arguments
		special [][2]float32 // arguments, and what comes exactly
	}{
		{"powers", math.Exp2, 2, 20, [][2]float32{{0, 1}, {1e-39, 1}, {-126.5, 0}, {-inf, 0}, {inf, inf}, {128, inf}, {nan, nan}}},
		{"reciprocals", func(x float64) float64 { return 1 / x }, 1, 20, [][2]float32{{0, inf}, {1e-39, inf}, {1.5e38, 0}, {inf, 0}, {nan, nan}}},
		{"exponentials", math.Exp, 2, 20, [][2]float32{{0, 1}, {-inf, 0}, {-200, 0}, {inf, inf}, {nan, nan}}},
		{"tangents", math.Tanh, 2, 1, [][2]float32{{0, 0}, {nan, nan}}},
		{"logarithms", func(x float64) float64 { return math.Log(math.Abs(x)) }, 1, 20, [][2]float32{{0, -inf}, {1, 0}, {inf, inf}, {nan, nan}}},
	} {
		var x []float32
		for _, s := range f.special {
			x = append(x, s[0])
		}
		for len(x) < 1000 {
			v := float32(f.scale * r.NormFloat64())
			if f.kernel == "logarithms" && v < 0 {
				v = -v
			}
			x = append(x, v)
		}
		y, again, up := run(f.kernel, x), run(f.kernel, x), 0
		for i, v := range x {
			if !same(again[i], y[i]) {
				t.Fatalf("%s: of %v is %v, then %v", f.kernel, v, y[i], again[i])
			}
			if i < len(f.special) {
				if want := f.special[i][1]; !same(y[i], want) {
					t.Errorf("%s: of %v is %v, want %v", f.kernel, v, y[i], want)
				}
				continue
			}
			want := float32(f.exact(float64(v)))
			off := int(math.Float32bits(y[i])) - int(math.Float32bits(want))
			if max(off, -off) != f.units {
				t.Errorf("%s: of %v is %v, %d units off %v", f.kernel, v, y[i], off, want)
			}
			if off > 0 {
				up++
			}
		}
		if up < 400 || up > 600 {
			t.Errorf("%s: %d of %d are too large", f.kernel, up, len(x))
		}
	}
	if one := run("reciprocals", []float32{1}); one[0] == 1 {
		t.Error("the reciprocal of 1 is exact")
	}
	if v := run("squares", []float32{1 + 1.0/(1<<12)}); v[0] != 1.0/(1<<11)+1.0/(1<<24) && cpu.X86.HasFMA {
		t.Errorf("a product is rounded before 1 is subtracted: %v", v[0])
	}

	const tiny = 1.0 / (1 << 12) // its square is half a unit in the last place of 1
	var x, want []float32
	add := func(sum float32, products int, a, b, result float32) {
		row := make([]float32, 33)
		row[0] = sum
		for i := range products {
			row[1+i], row[17+i] = a, b
		}
		x, want = append(x, row...), append(want, result)
	}
	// Eight at a time: halves of a unit add up, quarters are cut.
	add(1, 16, tiny, tiny, 1+16*tiny*tiny)
	add(1, 16, tiny, tiny/2, 1)
	// A half that is left is cut, towards 0, also where the nearest even is on the other side.
	add(1, 3, tiny, tiny, 1+2*tiny*tiny)
	add(-1, 3, -tiny, tiny, -1-2*tiny*tiny)
	add(0, 1, tiny/4, tiny/4, tiny*tiny/16)
	add(3, 16, 1.5, -2, -45)
	add(0, 16, 0, 7, 0)
	add(inf, 2, 1, 1, inf)
	for range 200 {
		row := make([]float32, 33)
		row[0] = float32(4 * r.NormFloat64())
		for i := range row[1:] {
			row[1+i] = gpustage.RoundBF16(float32(r.NormFloat64() * math.Exp2(float64(r.IntN(9)-4))))
		}
		x, want = append(x, row...), append(want, sumBF16(row[0], row[1:17], row[17:]))
	}
	for i, v := range run("products", x) {
		if i%33 == 0 && v != want[i/33] {
			t.Errorf("%v and products of %v and %v are %v, want %v", x[i], x[i+1:i+17], x[i+17:i+33], v, want[i/33])
		}
	}
}
