// Package vec is the CPU device's arithmetic on rows: everything of a training step that is not a matrix product. Its
// functions are single-threaded and take slices of float32; who splits rows among threads is the device.
//
// There are four sets of kernels: plain Go for any processor, AVX2 with FMA, AVX-512, and NEON for arm64. Select finds one by name. The
// assembly is generated: AVX's, from one description for both instruction sets, by internal/gen, and NEON's by internal/genneon.
//
// # Results
//
// A pointwise function gives an element the same bits wherever it lies in a slice, so work may be split anywhere. A sum
// (Dot, ExpSum, a row's mean) depends on the row's elements alone: lanes are added up side by side and then combined in a
// fixed order. Between two sets of kernels sums differ by rounding and exponentials by the last bit; dropout, masks and bf16 are
// the same bits in all of them.
//
// Exponentials are at most 1.5 units in the last place off, and zero where the result is below the normal range. A NaN
// that goes in comes out. Activations at plus and minus infinity are what their definitions give: GELU and SiLU of -Inf
// are NaN, as in PyTorch.
//
// # Slices
//
// Every slice of a call has the length of the output, which is the first argument; where a function has no output, that
// of the first slice. A longer one is used as far as needed, a shorter one panics as slicing it would. An output may be
// one of the inputs unless a function says otherwise, but must not overlap one in another way.
//
// Functions are called through a table, so a slice of an array on the stack moves the array to the heap: scratch belongs
// in something that lives longer. And a call can't be preempted, which the garbage collector waits for: split what takes
// more than a millisecond.
//
// # Speed
//
// In elements per nanosecond, on one thread of an AMD EPYC (Zen 5), in the first-level cache (BenchmarkKernels, the best
// of 15 runs on a shared machine):
//
//	                          AVX-512    AVX2      Go
//	Add                          41       24      3.2
//	Dot                          52       28      3.6
//	ExpSum, ExpScale             10      4.2      0.2
//	GELU forward, backward  4.7, 4.5     2.1      0.1
//	SiLU forward, backward  9.2, 5.9  3.7, 2.8    0.1
//	LayerNorm, backward         9.8  6.3, 5.6     0.4
//	Dropout                     5.2      2.1      0.3
//	AdamW                       6.9      3.7      0.4
//
// On whole activations it is memory that counts: at 8,704 x 384 Scale takes 0.6 ms, LayerNorm 0.65 and its backward 1.0; at
// 8,704 x 1,536 GELU takes 3.1 and its backward 4.6 (BenchmarkStep).
package vec

import (
	"fmt"
	"slices"
	"strings"
)

// Kernels is a set of kernels. Its methods are safe for concurrent use.
type Kernels struct {
	name string
	// What the methods call after they have checked that all slices have the same length.
	add             func(y, a, b []float32)
	mul             func(y, a, b []float32)
	mulAdd          func(y, a, b []float32, alpha float32)
	rotate          func(y, z, a, b, cos, sin []float32)
	axpy            func(y, x []float32, alpha float32)
	scale           func(y, x []float32, alpha float32)
	axpby           func(y, x, z []float32, alpha, beta float32)
	softmaxBackward func(ds, p, dp []float32, delta, scale float32)
	addRows         func(acc, x []float32, stride int) // eight rows
	maskRow         func(s []float32, id int32, ids []int32)

	dot        func(a, b []float32) float32
	sumSquares func(x []float32) float64
	largest    func(x []float32) float32

	expScale func(y, x []float32, shift, w float32)
	expSum   func(y, x []float32, shift float32) float32
	sumExp   func(x []float32, shift float32) float32

	act         [activations]func(y, x []float32)
	actBackward [activations]func(dx, dy, x []float32)

	layerNorm         func(y []float32, ys int, x []float32, xs int, gamma, beta, mean, rstd []float32, eps float32)
	layerNormBackward func(dx []float32, dxs int, dy []float32, dys int, x []float32, xs int, gamma, mean, rstd, dGamma, dBeta []float32)

	// x[0] is element 8*group.
	dropout func(y, x, residual []float32, group, keyLo, keyHi, pos, head, place, threshold uint32, scale float32)

	adamW func(p, m, v, g []float32, gradScale, beta1, rest1, beta2, rest2, correct2, eps, lr, decay float32)
	sgd   func(p, v, g []float32, gradScale, momentum, lr, decay float32)

	// The native ones do y's whole vectors only.
	toBF16   func(y []uint16, x []float32)
	fromBF16 func(y []float32, x []uint16)
}

// String is the set's name.
func (k *Kernels) String() string { return k.name }

// Available lists the kernels that this processor can run, the fastest first.
func Available() []string {
	var names []string
	for _, k := range all() {
		names = append(names, k.name)
	}
	return names
}

func all() []*Kernels { return append(native(), &portable) }

// Select finds kernels by name, "portable", "neon", "avx2" or "avx512"; the empty name means the fastest. "avx512bf16" and
// "amx" are avx512: only matrix products have a use for more. The error says what there is.
func Select(name string) (*Kernels, error) {
	ks := all()
	if name == "" {
		return ks[0], nil
	}
	want := name
	if name == "avx512bf16" || name == "amx" {
		want = "avx512"
	}
	for _, k := range ks {
		if k.name == want {
			return k, nil
		}
	}
	what := "there are no kernels named %q"
	if slices.Contains([]string{"neon", "avx2", "avx512"}, want) {
		what = "this processor can't run the kernels %q"
	}
	return nil, fmt.Errorf("vec: "+what+"; it can run %s", name, strings.Join(Available(), ", "))
}

// Rows is a matrix whose rows begin Stride elements apart in X.
type Rows struct {
	X      []float32
	Stride int
}

// Part is columns lo to hi of row i.
func (r Rows) Part(i, lo, hi int) []float32 { return r.X[i*r.Stride+lo : i*r.Stride+hi] }

// check panics unless rows of n elements are there, as the assembly would not.
func (r Rows) check(rows, n int) {
	if rows > 0 && n > 0 {
		_ = r.X[(rows-1)*r.Stride : (rows-1)*r.Stride+n]
	}
}

// Row is row i's first n elements.
func (r Rows) Row(i, n int) []float32 { return r.X[i*r.Stride:][:n] }
