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
)

// products is cuBLASLt for one stream: a handle, workspace, and the algorithm of each shape that has come by. The library's heuristic
// chooses it once; the same shape then has the same algorithm, and so the same bits.
type products struct {
	d         *Device
	handle    unsafe.Pointer
	workspace gpustage.Memory
	plans     map[C.Shape]*C.Plan
}

// workspaceBytes is what the library's documentation recommends for Hopper.
const workspaceBytes = 32 << 20

const mendProducts = "pip install --no-deps --target ~/.cache/contraflow/nvidia nvidia-cublas-cu12 && export CONTRAFLOW_CUBLASLT=~/.cache/contraflow/nvidia/nvidia/cublas/lib/libcublasLt.so.12"

// openProducts loads the library, once for the process.
var openProducts = sync.OnceValue(func() error {
	files := []string{"libcublasLt.so.13", "libcublasLt.so.12", "/usr/local/cuda/lib64/libcublasLt.so"}
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
	return fmt.Errorf("cuBLASLt: %w (%s)", errors.Join(errs...), mendProducts)
})

func newProducts(d *Device) (*products, error) {
	p := &products{d: d, plans: map[C.Shape]*C.Plan{}}
	if err := productError(C.lt_create(d.raw(), &p.handle)); err != nil {
		return nil, err
	}
	var err error
	if p.workspace, err = d.Alloc(workspaceBytes); err != nil {
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
	for _, x := range p.plans {
		C.lt_free(x)
	}
	err := productError(C.lt_destroy(p.d.raw(), p.handle))
	if p.workspace != nil {
		err = errors.Join(err, p.workspace.Free())
	}
	return err
}

// stored describes a matrix to the library. A single row's stride must still be a row's length.
func stored(m launch.Matrix) C.Stored {
	align := 8
	if m.At != 0 {
		align = min(align, bits.TrailingZeros64(uint64(m.At)))
	}
	return C.Stored{rows: C.int32_t(m.Rows), cols: C.int32_t(m.Cols), stride: C.int32_t(max(m.Stride, m.Cols)), align: C.int32_t(1) << align}
}

// Multiply is one call of the library.
func (s *Stream) Multiply(x launch.Product) error {
	p := s.products
	truth := func(b bool) C.int32_t {
		if b {
			return 1
		}
		return 0
	}
	shape := C.Shape{a: stored(x.A), b: stored(x.B), c: stored(x.C), d: stored(x.D), transA: truth(x.TransA), transB: truth(x.TransB), bf16: truth(x.BF16), bias: truth(x.Bias != 0)}
	plan, ok := p.plans[shape]
	if !ok {
		if err := productError(C.lt_plan(s.d.raw(), p.handle, shape, workspaceBytes, &plan)); err != nil {
			return err
		}
		p.plans[shape] = plan
	}
	return productError(C.lt_multiply(s.d.raw(), p.handle, plan, C.float(x.Alpha), C.uint64_t(x.A.At), C.uint64_t(x.B.At), C.float(x.Beta),
		C.uint64_t(x.D.At), C.uint64_t(x.C.At), C.uint64_t(x.Bias), C.uint64_t(s.Address(p.workspace)), workspaceBytes, s.raw()))
}
