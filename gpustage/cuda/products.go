//go:build cuda

package cuda

// #include "driver.h"
// #include <stdlib.h>
import "C"

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"sync"
	"unsafe"

	"contraflow/gpustage"
	"contraflow/gpustage/cuda/launch"
	"contraflow/gpustage/cuda/nvrtc"
)

// products is cuBLASLt for one stream: a handle, workspace, and the algorithm of each shape that has come by of late. The library's heuristic
// chooses it, by the shape alone; the same shape then has the same algorithm, and so the same bits.
type products struct {
	d         *Device
	handle    unsafe.Pointer
	workspace gpustage.Memory
	plans     *launch.Recent[C.Shape, *plan]
}

// mostPlans bounds plans: sub-batches have any number of tokens, and each number about 20 shapes. What a step embeds it computes again on the
// way back, so plans of 200 sub-batches are kept: 4 MB or so.
const mostPlans = 4096

// loadProducts loads the library, once for the process.
var loadProducts = sync.OnceValue(func() error {
	files := nvrtc.Versions(DriverVersion(), "libcublasLt")
	if named := os.Getenv("CONTRAFLOW_CUBLASLT"); named != "" {
		files = []string{named}
	}
	var errs []error
	for _, f := range files {
		name := C.CString(f)
		e := C.lt_open(name)
		C.free(unsafe.Pointer(name))
		if e == nil {
			return nil
		}
		errs = append(errs, errors.New(C.GoString(e)))
	}
	return fmt.Errorf("cuBLASLt: %w (%s)", errors.Join(errs...), nvrtc.FromPyPI("nvidia-cublas-cu12", "nvidia/cublas/lib/libcublasLt.so.12", "CONTRAFLOW_CUBLASLT"))
})

// openProducts is the library for the stream, whose handle and workspace come with its first product: most streams communicate, copy or read.
func (s *Stream) openProducts() error {
	if s.products != nil {
		return nil
	}
	var err error
	s.products, err = newProducts(s.d)
	return err
}

func newProducts(d *Device) (*products, error) {
	p := &products{d: d, plans: launch.NewRecent[C.Shape](mostPlans, func(x *plan) { C.lt_free(x.made) })}
	whole.Lock() // see graphs.go
	err := productError(C.lt_create(d.raw(), &p.handle))
	whole.Unlock()
	if err != nil {
		return nil, err
	}
	if p.workspace, err = d.Alloc(launch.WorkspaceBytes); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

func productError(e *C.char) error {
	if e == nil {
		return nil
	}
	return fmt.Errorf("cuBLASLt: %s", C.GoString(e))
}

func (p *products) close() error {
	p.plans.Clear()
	whole.Lock()
	err := productError(C.lt_destroy(p.d.raw(), p.handle))
	whole.Unlock()
	if p.workspace != nil {
		err = errors.Join(err, p.workspace.Free())
	}
	return err
}

// align is the largest power of two up to 16 that divides an address. The widest load is of 16 bytes: what lies on a larger boundary by
// chance must not have an algorithm, and so bits, of its own.
func align(at uintptr) C.int32_t {
	return 1 << min(4, bits.TrailingZeros64(uint64(at)))
}

// stored describes a matrix to the library. A single row's stride must still be a row's length.
func stored(m launch.Matrix) C.Stored {
	return C.Stored{rows: C.int32_t(m.Rows), cols: C.int32_t(m.Cols), stride: C.int32_t(max(m.Stride, m.Cols)), align: align(m.At)}
}

// shapeOf is what a product's algorithm depends on.
func shapeOf(x launch.Product) C.Shape {
	truth := func(b bool) C.int32_t {
		if b {
			return 1
		}
		return 0
	}
	s := C.Shape{a: stored(x.A), b: stored(x.B), c: stored(x.C), d: stored(x.D), transA: truth(x.TransA), transB: truth(x.TransB), bf16: truth(x.BF16), tf32: truth(x.TF32), half: truth(x.Half)}
	if x.Bias != 0 {
		s.bias = align(x.Bias)
	}
	if s.epilogue = C.int32_t(x.Epilogue); x.Aux.At != 0 {
		s.aux = stored(x.Aux)
	}
	return s
}

// plan is the algorithm for a product.
type plan struct {
	made *C.Plan // nil where the library has none with its epilogue
	used bool
}

func (s *Stream) plan(x launch.Product) (*plan, error) {
	if err := s.openProducts(); err != nil {
		return nil, err
	}
	p, shape := s.products, shapeOf(x)
	return p.plans.Get(shape, func() (*plan, error) {
		mine, out := shape, &plan{}
		err := productError(C.lt_plan(s.d.raw(), p.handle, &mine, launch.WorkspaceBytes, &out.made))
		return out, err
	})
}

// Fuses tells whether the library has a product with its epilogue, and may use it.
func (s *Stream) Fuses(x launch.Product) (bool, error) {
	if x.Epilogue == launch.ColumnSums && !s.sums {
		return false, nil
	}
	plan, err := s.plan(x)
	return err == nil && plan.made != nil, err
}

// Multiply is one call of the library.
func (s *Stream) Multiply(x launch.Product) error {
	plan, err := s.plan(x)
	if err != nil {
		return err
	}
	if plan.made == nil {
		return fmt.Errorf("%w: cuBLASLt has no product with such an epilogue: %+v", launch.ErrRefused, x)
	}
	if !plan.used && !s.captures { // the library loads its kernel now
		whole.Lock()
		defer whole.Unlock()
	}
	plan.used = true
	p := s.products
	err = productError(C.lt_multiply(s.d.raw(), p.handle, plan.made, C.float(x.Alpha), C.uint64_t(x.A.At), C.uint64_t(x.B.At), C.float(x.Beta),
		C.uint64_t(x.D.At), C.uint64_t(x.C.At), C.uint64_t(x.Bias), C.uint64_t(x.Aux.At), C.uint64_t(s.Address(p.workspace)), launch.WorkspaceBytes, s.raw()))
	if fused := x.Epilogue != launch.NoEpilogue || x.Bias != 0; err == nil || !fused || C.lt_refused(plan.made) == 0 {
		return err
	}
	s.d.refused.Do(func() {
		tell(fmt.Sprintf("%s, %s: cuBLASLt refuses products that it has algorithms for, the first [%d %d] from [%d %d] and [%d %d] with epilogue %d: %v. Such products "+
			"are multiplied without what was to be fused with them, which kernels do: results are right, and steps may be slower", s.d.Name(), s.d.about,
			x.C.Rows, x.C.Cols, x.A.Rows, x.A.Cols, x.B.Rows, x.B.Cols, x.Epilogue, err))
	})
	return fmt.Errorf("%w: %w", launch.ErrRefused, err)
}

// tell says on standard error what a user should know although nothing failed.
var tell = func(message string) { fmt.Fprintln(os.Stderr, "contraflow:", message) }
