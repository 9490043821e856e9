//go:build cuda

package cuda

import (
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"

	"contraflow/gpustage"
)

// Products that the library refuses when it is to multiply, with what is fused with them, come without, in work that is recorded as well; a user is told
// of it once. What the library for the processor is told to refuse (testdata/cublaslt.c), NVIDIA's is not.
func TestConformanceRefused(t *testing.T) {
	d, s := gpuStream(t)
	library, err := purego.Dlopen(os.Getenv("CONTRAFLOW_CUBLASLT"), purego.RTLD_NOW)
	if err != nil {
		t.Skip("CONTRAFLOW_CUBLASLT names no library for the processor: ", err)
	}
	symbol, err := purego.Dlsym(library, "lt_refuse")
	if err != nil {
		t.Skip("cuBLASLt is NVIDIA's, which is not told to refuse anything")
	}
	refuse := *(**int32)(unsafe.Pointer(&symbol))
	defer func(was func(string)) { tell, *refuse = was, 0 }(tell)
	var told []string
	tell = func(message string) { told = append(told, message) }

	const m, n, k = 24, 40, 16
	r := rand.New(rand.NewPCG(9, 9))
	filled := func(rows, cols int) gpustage.Tensor {
		x, err := gpustage.NewTensor(d, gpustage.F32, rows, cols)
		if err != nil {
			t.Fatal(err)
		}
		v := make([]float32, rows*cols)
		for i := range v {
			v[i] = float32(r.NormFloat64())
		}
		s.CopyIn(x, gpustage.Bytes(v))
		return x
	}
	a, b, bias, pre, on, c, linear := filled(m, k), filled(n, k), filled(1, n), filled(m, n), filled(m, n), filled(m, n), filled(m, n)
	defer func() {
		for _, x := range []gpustage.Tensor{a, b, bias, pre, on, c, linear} {
			x.Mem.Free()
		}
	}()
	run := func(s gpustage.Stream) (got []float32) {
		gpustage.Repeat(s, func() {
			s.MatMul(linear, a, b, gpustage.MatMul{TransB: true, BF16: true, Bias: bias})
			s.MatMul(on, a, b, gpustage.MatMul{TransB: true, BF16: true, Bias: bias, Act: gpustage.GELUTanh, PreAct: pre})
			s.MatMul(c, a, b, gpustage.MatMul{TransB: true, BF16: true, GradOf: pre, Act: gpustage.GELUTanh})
		})
		for _, x := range []gpustage.Tensor{linear, on, pre, c} {
			v := make([]float32, m*n)
			s.CopyOut(gpustage.Bytes(v), x)
			if err := s.Sync(); err != nil {
				t.Fatal(err)
			}
			got = append(got, v...)
		}
		return got
	}
	want := run(s)
	other, err := d.OpenStream() // that has asked for nothing
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	*refuse = 5
	first := run(other)
	if len(told) != 1 || !strings.Contains(told[0], "refuses products") {
		t.Errorf("told %q, want one message", told)
	}
	for i, g := range first {
		if w := want[i]; !(math.Abs(float64(g-w)) <= 2e-5*(1+math.Abs(float64(w)))) {
			t.Fatalf("number %d is %v, the library's %v", i, g, w)
		}
	}
	*refuse = 0 // what is known by then is not asked for again
	for range 3 {
		if got := run(other); !slices.Equal(got, first) {
			t.Error("work that comes again has other bits")
		}
	}
	if len(told) != 1 {
		t.Errorf("told again: %q", told)
	}
}
