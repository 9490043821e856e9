//go:build linux && amd64

package launch

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"

	"contraflow/gpustage"
	"contraflow/gpustage/cuda/kernels"
	"contraflow/gpustage/devicetest"
	"contraflow/gpustage/ref"
)

// hostDevice runs the kernels on the processor. Its memory is the host's, and products are plain loops.
type hostDevice struct {
	ref.Device
	launch uintptr
}

// openHost compiles the kernels with the host's compiler.
func openHost(t *testing.T) *hostDevice {
	t.Helper()
	skip := func(format string, args ...any) {
		if os.Getenv("CI") == "true" {
			t.Fatalf(format, args...)
		}
		t.Skipf(format, args...)
	}
	cxx, err := exec.LookPath("g++")
	if err != nil {
		if cxx, err = exec.LookPath("clang++"); err != nil {
			skip("no g++ or clang++: the kernels' logic is not tested")
		}
	}
	dir := t.TempDir()
	folder, err := filepath.Abs(filepath.Join("..", "kernels"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.ReadFile(filepath.Join(folder, "host_cuda.h")); err != nil { // a file that go test should know of: its cache has results
		t.Fatal(err)
	}
	var main strings.Builder
	main.WriteString("#define HOST_CUDA\n#define HOST_CUDA_MAIN\n")
	for i, m := range kernels.Modules() {
		// Files have helpers of the same names.
		fmt.Fprintf(&main, "#include \"attention.cuh\"\nnamespace module%d {\n#include %q\n}\n#undef FOR_DIM\n", i, m)
	}
	main.WriteString("const Entry host_entries[] = {\n")
	for i, m := range kernels.Modules() {
		for _, k := range kernels.Names(m) {
			fmt.Fprintf(&main, "\t{%q, [](void **a) { host_invoke(module%d::%s, a); }},\n", k, i, k)
		}
	}
	main.WriteString("\t{nullptr, nullptr},\n};\n")
	source, library := filepath.Join(dir, "kernels.cpp"), filepath.Join(dir, "kernels.so")
	if err := os.WriteFile(source, []byte(main.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(cxx, "-std=c++17", "-O1", "-march=native", "-ffp-contract=off", "-w", "-shared", "-fPIC", "-I", folder, "-o", library, source).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cxx, err, out)
	}
	lib, err := purego.Dlopen(library, purego.RTLD_NOW)
	if err != nil {
		t.Fatal(err)
	}
	launch, err := purego.Dlsym(lib, "host_launch")
	if err != nil {
		t.Fatal(err)
	}
	return &hostDevice{launch: launch}
}

func (*hostDevice) Name() string { return "kernels on the host" }

func (d *hostDevice) OpenStream() (gpustage.Stream, error) {
	s := &hostStream{bytes: ref.NewStream(d), device: d}
	s.Stream = NewStream(d, s)
	return s, nil
}

func (*hostDevice) PackedBytes(k, n int, bf16 bool) int {
	if !bf16 {
		return 0
	}
	return BF16Bytes(k, n)
}

// hostStream has this package's ops; ref moves bytes.
type hostStream struct {
	*Stream
	bytes  *ref.Stream
	device *hostDevice
}

type happened struct{}

func (happened) Sync() error { return nil }

func (s *hostStream) Record() gpustage.Event { return happened{} }
func (s *hostStream) Wait(gpustage.Event)    {}
func (s *hostStream) Sync() error            { return s.Err() }
func (s *hostStream) Close() error           { return s.Free() }

func (s *hostStream) CopyIn(dst gpustage.Tensor, src []byte) {
	if !s.Refuse(gpustage.CheckHost("copy in", dst, len(src))) {
		s.bytes.CopyIn(dst, src)
	}
}

func (s *hostStream) CopyOut(dst []byte, src gpustage.Tensor) {
	if !s.Refuse(gpustage.CheckHost("copy out", src, len(dst))) {
		s.bytes.CopyOut(dst, src)
	}
}

func (s *hostStream) Address(m gpustage.Memory) uintptr {
	data := m.(*gpustage.HostMemory).Data()
	return uintptr(unsafe.Pointer(unsafe.SliceData(data)))
}

func (s *hostStream) Launch(kernel string, grid, block [3]int, shared int, words []uint64, at []int32) error {
	args := make([]unsafe.Pointer, len(at))
	for i, w := range at {
		args[i] = unsafe.Pointer(&words[w])
	}
	name := append([]byte(kernel), 0)
	var g, b [3]uint32
	for i := range 3 {
		g[i], b[i] = uint32(grid[i]), uint32(block[i])
	}
	r, _, _ := purego.SyscallN(s.device.launch, uintptr(unsafe.Pointer(&name[0])), uintptr(unsafe.Pointer(&g)), uintptr(unsafe.Pointer(&b)),
		uintptr(shared), uintptr(unsafe.Pointer(unsafe.SliceData(args))))
	if r != 0 {
		return fmt.Errorf("there is no such kernel")
	}
	return nil
}

// Multiply stands in for cuBLASLt: sums in f32, one product after the other.
func (s *hostStream) Multiply(p Product) error {
	if p.BF16 && (p.A.At%16 != 0 || p.B.At%16 != 0 || p.A.Stride%8 != 0 || p.B.Stride%8 != 0) {
		return fmt.Errorf("rows of bf16 that tensor cores' fast paths can't take")
	}
	c, d := view[float32](p.C), view[float32](p.D)
	bias := view[float32](Matrix{p.Bias, 1, p.C.Cols, 0})
	k := p.A.Cols
	if p.TransA {
		k = p.A.Rows
	}
	a, b := operand(p.A, p.BF16, p.TransA), operand(p.B, p.BF16, !p.TransB)
	for i := range p.C.Rows {
		for j := range p.C.Cols {
			sum := float32(0)
			for l := range k {
				sum += a[i*k+l] * b[j*k+l]
			}
			sum *= p.Alpha
			if p.Bias != 0 {
				sum += bias[j]
			}
			if p.Beta != 0 {
				sum += p.Beta * d[i*p.D.Stride+j]
			}
			c[i*p.C.Stride+j] = sum
		}
	}
	return nil
}

func view[T any](m Matrix) []T {
	at := *(*unsafe.Pointer)(unsafe.Pointer(&m.At))
	if at == nil {
		return nil
	}
	return unsafe.Slice((*T)(at), max(0, (m.Rows-1)*m.Stride+m.Cols))
}

// operand is a matrix, or its transpose, as rows of f32 without gaps.
func operand(m Matrix, bf16, trans bool) []float32 {
	out := make([]float32, m.Rows*m.Cols)
	for i := range m.Rows {
		for j := range m.Cols {
			to := i*m.Cols + j
			if trans {
				to = j*m.Rows + i
			}
			if bf16 {
				out[to] = gpustage.FromBF16(view[uint16](m)[i*m.Stride+j])
			} else {
				out[to] = view[float32](m)[i*m.Stride+j]
			}
		}
	}
	return out
}

// The kernels, as launched on a GPU, pass the conformance suite on the processor.
func TestConformance(t *testing.T) {
	d := openHost(t)
	devicetest.Run(t, func() (gpustage.Device, error) { return d, nil })
}
