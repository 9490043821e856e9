//go:build cuda

package cuda

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"

	"contraflow/gpustage"
	"contraflow/gpustage/cuda/launch"
	"contraflow/testdata/harness"
)

// hostProducts is products.c with a library for the processor in cuBLASLt's place.
type hostProducts struct {
	create   func(context uintptr, handle *uintptr) string
	destroy  func(context, handle uintptr) string
	plan     func(context, handle uintptr, shape unsafe.Pointer, workspace uintptr, plan *uintptr) string
	free     func(plan uintptr)
	multiply func(context, handle, plan uintptr, alpha float32, a, b uint64, beta float32, d, c, bias, aux, workspace uint64, bytes, stream uintptr) string
	refused  func(plan uintptr) int32
	alive    *int32
	refuse   *int32
	handle   uintptr
}

func openHostProducts(t *testing.T) *hostProducts {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		harness.Missing(t, "no C compiler, so products.c is not tested: %v", err)
	}
	file := filepath.Join(t.TempDir(), "products.so")
	args := append(strings.Fields(os.Getenv("CGO_CFLAGS")), "-w", "-shared", "-fPIC", "-Wl,-Bsymbolic", "-I.", "-o", file, "products.c", "testdata/cublaslt.c", "-lm", "-ldl")
	if out, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cc, err, out)
	}
	lib, err := purego.Dlopen(file, purego.RTLD_NOW)
	if err != nil {
		t.Fatal(err)
	}
	h := &hostProducts{}
	for name, f := range map[string]any{"lt_create": &h.create, "lt_destroy": &h.destroy, "lt_plan": &h.plan, "lt_free": &h.free, "lt_multiply": &h.multiply, "lt_refused": &h.refused} {
		purego.RegisterLibFunc(f, lib, name)
	}
	for name, at := range map[string]**int32{"lt_alive": &h.alive, "lt_refuse": &h.refuse} {
		symbol, err := purego.Dlsym(lib, name)
		if err != nil {
			t.Fatal(err)
		}
		*at = *(**int32)(unsafe.Pointer(&symbol))
	}
	var open func(string) string
	purego.RegisterLibFunc(&open, lib, "lt_open")
	if e := open(file); e != "" {
		t.Fatal(e)
	}
	if e := h.create(0, &h.handle); e != "" {
		t.Fatal(e)
	}
	return h
}

// planFor is lt_plan of a product.
func (h *hostProducts) planFor(p launch.Product) (plan uintptr, err string) {
	shape := shapeOf(p)
	err = h.plan(0, h.handle, unsafe.Pointer(&shape), launch.WorkspaceBytes, &plan)
	return plan, err
}

// storedMatrix is a row-major matrix in memory of its own, with a gap between rows and so many elements before it.
type storedMatrix struct {
	launch.Matrix
	raw   []byte
	first int
	bf16  bool
}

func newMatrix(r *rand.Rand, rows, cols, gap, first int, bf16 bool) *storedMatrix {
	size := 4
	if bf16 {
		size = 2
	}
	m := &storedMatrix{Matrix: launch.Matrix{Rows: rows, Cols: cols, Stride: cols + gap}, first: first, bf16: bf16}
	words := make([]uint64, (first+rows*(cols+gap))*size/8+64) // 256-byte alignment is made below
	at := uintptr(unsafe.Pointer(&words[0]))
	skip := int(-at & 255)
	m.raw = unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), len(words)*8)[skip:]
	m.At = at + uintptr(skip+first*size)
	for i := range rows * (cols + gap) {
		m.set(i, float32(r.NormFloat64()))
	}
	return m
}

func (m *storedMatrix) set(i int, v float32) {
	i += m.first
	if m.bf16 {
		*(*uint16)(unsafe.Pointer(&m.raw[2*i])) = gpustage.ToBF16(v)
	} else {
		*(*float32)(unsafe.Pointer(&m.raw[4*i])) = v
	}
}

func (m *storedMatrix) get(i, j int) float64 {
	at := m.first + i*m.Stride + j
	if m.bf16 {
		return float64(gpustage.FromBF16(*(*uint16)(unsafe.Pointer(&m.raw[2*at]))))
	}
	return float64(*(*float32)(unsafe.Pointer(&m.raw[4*at])))
}

// op is an element of the matrix, or of its transpose.
func (m *storedMatrix) op(trans bool, i, j int) float64 {
	if trans {
		i, j = j, i
	}
	return m.get(i, j)
}

func (m *storedMatrix) copy() []float64 {
	out := make([]float64, m.Rows*m.Stride)
	for i := range out {
		out[i] = m.get(0, i)
	}
	return out
}

// What products.c asks cuBLASLt for is the product that package launch describes, whatever is transposed, aligned, added and fused. The
// library is one for the processor, written after the documentation: what NVIDIA's computes, only a GPU can tell.
func TestProducts(t *testing.T) {
	h := openHostProducts(t)
	r := rand.New(rand.NewPCG(5, 7))
	const tf32 = 1.0 / (1 << 10)
	rounded := 0 // elements that only TF32 can have given
	refused := 0
	seen := map[string]int{}
	for i := range 400 {
		m, n, k := 1+r.IntN(20), 1+r.IntN(20), 1+r.IntN(30)
		bf16 := r.IntN(2) == 0
		p := launch.Product{TransA: r.IntN(2) == 0, TransB: r.IntN(2) == 0, BF16: bf16, TF32: !bf16 && r.IntN(2) == 0, Alpha: 0.5 + r.Float32()}
		p.Half = bf16 && r.IntN(2) == 0
		ar, ac, br, bc := m, k, k, n
		if p.TransA {
			ar, ac = ac, ar
		}
		if p.TransB {
			br, bc = bc, br
		}
		gap := func() int { return r.IntN(9) }
		a, b, c := newMatrix(r, ar, ac, gap(), gap(), bf16), newMatrix(r, br, bc, gap(), gap(), bf16), newMatrix(r, m, n, gap(), gap(), p.Half)
		d, bias := c, newMatrix(r, 1, n, 0, gap(), p.Half)
		aux := newMatrix(r, m, n, 7-(n-1)%8+8*r.IntN(2), 8*r.IntN(3), p.Half)
		p.Epilogue = launch.Epilogue(r.IntN(4))
		if (p.Epilogue == launch.NoEpilogue || p.Epilogue == launch.ColumnSums) && r.IntN(2) == 0 {
			if p.Beta = 1; r.IntN(2) == 0 {
				d = newMatrix(r, m, n, gap(), gap(), p.Half)
			}
		}
		p.A, p.B, p.C, p.D = a.Matrix, b.Matrix, c.Matrix, d.Matrix
		for _, x := range []*launch.Matrix{&p.A, &p.B, &p.C, &p.D} {
			if x.Rows == 1 {
				x.Stride = r.IntN(2) * x.Cols // a single row's may be anything
			}
		}
		switch p.Epilogue {
		case launch.GELU, launch.DGELU:
			p.Aux = aux.Matrix
		case launch.ColumnSums:
			bias = newMatrix(r, 1, m, 0, gap(), p.Half)
			p.Bias = bias.At
		}
		if (p.Epilogue == launch.NoEpilogue || p.Epilogue == launch.GELU) && r.IntN(2) == 0 {
			p.Bias = bias.At
		}
		before, beforeAux, beforeD := c.copy(), aux.copy(), d.copy()

		plan, e := h.planFor(p)
		if thin := m == 1 || n == 1 || k == 1; thin && p.Bias != 0 && plan == 0 && e == "" { // see launch's takesBias
			refused++
			continue
		}
		if e != "" || plan == 0 {
			t.Fatalf("%+v: plan %#x, error %q", p, plan, e)
		}
		if e := h.multiply(0, h.handle, plan, p.Alpha, uint64(p.A.At), uint64(p.B.At), p.Beta, uint64(p.D.At), uint64(p.C.At), uint64(p.Bias), uint64(p.Aux.At), 0, 0, 0); e != "" {
			t.Fatalf("%+v: %s", p, e)
		}
		h.free(plan)

		limit := 1e-5 * float64(k)
		if p.TF32 {
			limit += 6 * math.Sqrt(float64(k)) * tf32 * float64(p.Alpha)
		}
		if p.Half { // what is written
			limit += 1.0 / (1 << 8)
		}
		seen[fmt.Sprint(p.Half, p.Epilogue, p.Bias != 0, p.Beta != 0)]++
		near := func(what string, got, want float64) {
			t.Helper()
			if p.TF32 && !(math.Abs(got-want) <= 1e-5*float64(k)*(1+math.Abs(want))) {
				rounded++
			}
			if !(math.Abs(got-want) <= limit*(1+math.Abs(want))) {
				t.Fatalf("product %d, %+v: %s is %v, want %v", i, p, what, got, want)
			}
		}
		for i := range m {
			if p.Epilogue == launch.ColumnSums {
				x := 0.0
				for l := range k {
					x += a.op(p.TransA, i, l)
				}
				near(fmt.Sprint("sum ", i), bias.get(0, i), x)
			}
			for j := range n {
				x := 0.0
				for l := range k {
					x += a.op(p.TransA, i, l) * b.op(p.TransB, l, j)
				}
				x *= float64(p.Alpha)
				if p.Beta != 0 {
					x += beforeD[i*d.Stride+j]
				}
				if p.Bias != 0 && p.Epilogue != launch.ColumnSums {
					x += bias.get(0, j)
				}
				at, cell := fmt.Sprintf("[%d %d]", i, j), i*aux.Stride+j
				switch p.Epilogue {
				case launch.GELU:
					near("aux"+at, aux.get(i, j), x)
					x = geluTanh(x)
				case launch.DGELU:
					v, h := beforeAux[cell], 1e-4
					x *= (geluTanh(v+h) - geluTanh(v-h)) / (2 * h)
				}
				near("c"+at, c.get(i, j), x)
			}
		}
		// Nothing else was written.
		for i, v := range c.copy() {
			if i%c.Stride >= n && v != before[i] {
				t.Fatalf("%+v: element %d between c's rows was written", p, i)
			}
		}
		for i, v := range aux.copy() {
			if (i%aux.Stride >= n || p.Epilogue != launch.GELU) && v != beforeAux[i] {
				t.Fatalf("%+v: element %d of aux was written", p, i)
			}
		}
		runtime.KeepAlive(bias)
		runtime.KeepAlive(d)
	}

	if len(seen) != 2*(4+2+1+2) {
		t.Errorf("of the epilogues, with and without a bias and an addition, these came by: %v", seen)
	}
	if refused == 0 {
		t.Error("no bias beside a side of 1 was refused")
	}
	if rounded == 0 {
		t.Error("products in TF32 are f32's")
	}

	// Where there is no algorithm with an epilogue, there is no plan and no error, and without one there is an error.
	a, b, c := newMatrix(r, 4, 8, 0, 0, true), newMatrix(r, 8, 8, 0, 0, true), newMatrix(r, 4, 8, 0, 0, false)
	p := launch.Product{A: a.Matrix, B: b.Matrix, C: c.Matrix, D: c.Matrix, BF16: true, Alpha: 1, Epilogue: launch.GELU, Aux: newMatrix(r, 4, 8, 3, 0, false).Matrix}
	if plan, e := h.planFor(p); plan != 0 || e != "" { // its rows are 11 elements apart
		t.Errorf("aux of an odd stride: plan %#x, error %q", plan, e)
	}
	p.Aux = newMatrix(r, 4, 8, 0, 0, false).Matrix
	for *h.refuse = 1; *h.refuse <= 2; *h.refuse++ {
		if plan, e := h.planFor(p); plan != 0 || e != "" {
			t.Errorf("a library without epilogues (%d): plan %#x, error %q", *h.refuse, plan, e)
		}
	}
	p.Epilogue, p.Aux, p.Bias = launch.ColumnSums, launch.Matrix{}, a.At
	for *h.refuse = 1; *h.refuse <= 2; *h.refuse++ {
		if plan, e := h.planFor(p); plan != 0 || e != "" {
			t.Errorf("a library without sums (%d): plan %#x, error %q", *h.refuse, plan, e)
		}
	}
	p.Epilogue, p.Bias = launch.NoEpilogue, 0
	if plan, e := h.planFor(p); plan == 0 || e != "" {
		t.Errorf("a product without epilogue: plan %#x, error %q", plan, e)
	} else {
		h.free(plan)
	}
	// An algorithm that is refused when it is to multiply gives way to the next one, once.
	multiply := func(plan uintptr) string {
		return h.multiply(0, h.handle, plan, p.Alpha, uint64(p.A.At), uint64(p.B.At), p.Beta, uint64(p.D.At), uint64(p.C.At), 0, 0, 0, 0, 0)
	}
	for *h.refuse = 3; *h.refuse <= 4; *h.refuse++ {
		plan, e := h.planFor(p)
		if plan == 0 || e != "" {
			t.Fatalf("two algorithms: plan %#x, error %q", plan, e)
		}
		for range 2 {
			c.set(0, float32(math.NaN()))
			e := multiply(plan)
			if *h.refuse == 3 && (e != "" || math.IsNaN(c.get(0, 0))) || *h.refuse == 4 && e != "not supported" {
				t.Errorf("algorithms are refused (%d): error %q, c[0 0] is %v", *h.refuse, e, c.get(0, 0))
			}
			if refused := h.refused(plan) != 0; refused != (*h.refuse == 4) {
				t.Errorf("algorithms are refused (%d), and all of them: %v", *h.refuse, refused)
			}
		}
		h.free(plan)
	}
	p.B.Rows = 9
	if plan, e := h.planFor(p); plan != 0 || e == "" {
		t.Errorf("inner sizes that differ: plan %#x, error %q", plan, e)
	}
	if e := h.destroy(0, h.handle); e != "" || *h.alive != 0 {
		t.Errorf("error %q, %d descriptors were not freed", e, *h.alive)
	}
}

func geluTanh(x float64) float64 {
	return 0.5 * x * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
}
