// Package cpu is the processor as a device: package ref's ops, fast.
//
// Three packages carry it. gemm multiplies matrices, vec does what remains on rows (normalization, activations, softmax,
// dropout, optimizers), pool runs the parts of an op on several threads. This package cuts ops into such parts: products
// by tiles, attention by sequence and head, the rest by rows; and it fuses what surrounds a product into the moment when a block of
// it is finished and still in the cache.
//
// # The same bits
//
// Whatever the number of threads, an op gives the same bits. Most ops are independent by row, so it does not matter who
// computes which. Sums over rows (bias and norm gradients, scattered embeddings, squares) are cut at places that depend on shapes
// alone, and the parts are added in order.
//
// # What is not fast
//
// Only f32 is. Of f64, which is for verification, products have a kernel of AVX2; other ops are package ref's, attention's sequences on
// several threads.
//
// CONTRAFLOW_CPU forces the kernels: portable, neon, avx2, avx512, avx512bf16 or amx. testdata/bochs/run tests avx512 and avx512bf16 in
// an emulator, where the processor lacks them; neon, arm64's, has been tested in one and not been timed (package internal/neon).
package cpu

import (
	"fmt"
	"os"
	"runtime"
	"sync/atomic"

	"contraflow/gpustage"
	"contraflow/gpustage/cpu/gemm"
	"contraflow/gpustage/cpu/pool"
	"contraflow/gpustage/cpu/vec"
	"contraflow/gpustage/ref"
)

// Device is a processor, or some threads of one.
type Device struct {
	name    string
	pool    *pool.Pool
	kernels gemm.Kernels
	vec     *vec.Kernels
	jump    ref.Jump
}

// Option configures a device.
type Option func(*options)

type options struct {
	threads int
	kernels string
}

// Threads sets how many threads the device computes with; the default is GOMAXPROCS.
func Threads(n int) Option { return func(o *options) { o.threads = n } }

// Kernels chooses the kernels by name; the default is CONTRAFLOW_CPU, or the fastest that the processor has.
func Kernels(name string) Option { return func(o *options) { o.kernels = name } }

// devices numbers the devices of a process.
var devices atomic.Int64

// New makes a device. Close ends its threads.
func New(opts ...Option) (*Device, error) {
	o := options{threads: runtime.GOMAXPROCS(0), kernels: os.Getenv("CONTRAFLOW_CPU")}
	for _, f := range opts {
		f(&o)
	}
	if o.threads < 1 {
		return nil, fmt.Errorf("a CPU device with %d threads", o.threads)
	}
	g, err := gemm.Select(o.kernels)
	if err != nil {
		return nil, fmt.Errorf("CONTRAFLOW_CPU: %w", err)
	}
	v, err := vec.Select(o.kernels)
	if err != nil {
		return nil, fmt.Errorf("CONTRAFLOW_CPU: %w", err)
	}
	return &Device{name: fmt.Sprintf("cpu:%d", devices.Add(1)-1), pool: pool.New(o.threads), kernels: g, vec: v}, nil
}

// Name is "cpu:0" for the first device of a process.
func (d *Device) Name() string { return d.name }

// Info describes the processor.
func (d *Device) Info() gpustage.Info {
	return gpustage.Info{Kind: "cpu", Description: fmt.Sprintf("%s kernels, %d threads", d.kernels, d.pool.Threads()), Threads: d.pool.Threads(), F64: true}
}

// FreeMemory is the host's.
func (d *Device) FreeMemory() (int64, error) {
	_, free := gpustage.HostMemorySize()
	return free, nil
}

// PackedBytes is what a packed [k, n] matrix takes.
func (d *Device) PackedBytes(k, n int, bf16 bool) int {
	return 4 * gemm.NewWorkspace[float32](d.kernels).PackedSize(k, n, bf16)
}

// Bags is true.
func (d *Device) Bags() bool { return true }

// KeepsBF16 is true.
func (d *Device) KeepsBF16() bool { return true }

// WithJump is the device with a ref.Jump, on the same threads: the device that it is of is the one to close.
func (d *Device) WithJump(j ref.Jump) gpustage.Device {
	with := *d
	with.jump = j
	return &with
}

// Alloc gives host memory.
func (d *Device) Alloc(bytes int) (gpustage.Memory, error) { return gpustage.AllocHost(bytes) }

// OpenStream returns a stream. Streams of one device share its threads: ops of one wait for nobody, but run on one thread
// while another stream's use the others.
func (d *Device) OpenStream() (gpustage.Stream, error) {
	s := &Stream{Stream: ref.NewStream(d).WithJump(d.jump), d: d, v: d.vec, f32: gemm.NewWorkspace[float32](d.kernels), f64: gemm.NewWorkspace[float64](d.kernels)}
	s.workers = make([]worker, d.pool.Threads())
	for i := range s.workers {
		s.workers[i].gemm = gemm.NewWorkspace[float32](d.kernels)
	}
	return s, nil
}

// Close ends the device's threads. Streams must not be used any more.
func (d *Device) Close() error {
	d.pool.Close()
	return nil
}

// Stream runs each op before the call returns, on the device's threads.
type Stream struct {
	*ref.Stream
	d       *Device
	v       *vec.Kernels
	f32     *gemm.Workspace[float32]
	f64     *gemm.Workspace[float64]
	workers []worker
	sums    []float32 // partial sums of reductions over rows
	places  []float32 // those of positions
	scratch []float32
	zero    []float32 // nothing else, ever
}

// worker is what one thread needs of its own.
type worker struct {
	gemm *gemm.Workspace[float32]
	buf  []float32
	wide []float64
}

// take returns the worker's scratch with at least n elements, whatever is in them.
func (w *worker) take(n int) []float32 {
	if len(w.buf) < n {
		w.buf = make([]float32, n)
	}
	return w.buf[:n]
}

// grow returns a slice of n elements, p's if it is long enough.
func grow[T any](p *[]T, n int) []T {
	if len(*p) < n {
		*p = make([]T, n)
	}
	return (*p)[:n]
}

// elements is how many elements of simple arithmetic a task of its own is worth: about 10 us.
const elements = 1 << 15

// rows cuts n rows of the given cost (in elements) into tasks. Which rows go together must not matter.
func (s *Stream) rows(n, cost int, f func(w *worker, lo, hi int)) {
	if n == 0 {
		return
	}
	chunk := max(1, elements/max(1, cost))
	tasks := (n + chunk - 1) / chunk
	if tasks <= 1 {
		f(&s.workers[0], 0, n)
		return
	}
	s.d.pool.Run(tasks, func(w, i int) { f(&s.workers[w], i*chunk, min(n, (i+1)*chunk)) })
}

// parts cuts n rows into parts of a fixed size, for sums whose order must not depend on threads.
func (s *Stream) parts(n, size int, f func(part, lo, hi int)) {
	s.d.pool.Run((n+size-1)/size, func(_, i int) { f(i, i*size, min(n, (i+1)*size)) })
}

func f32(t gpustage.Tensor) []float32 { return gpustage.Slice[float32](t) }

func ints(t gpustage.Tensor) []int32 { return gpustage.Slice[int32](t) }

// row is row i.
func row(t gpustage.Tensor, i int) []float32 { return f32(t.Span(i, i+1)) }

// isF32 tells whether an op's tensors are what this package speeds up.
func isF32(t gpustage.Tensor) bool { return t.DType == gpustage.F32 }

func init() {
	gpustage.Register("cpu", 10, func(share gpustage.Share) (gpustage.Device, error) {
		return New(Threads(share.Of(runtime.GOMAXPROCS(0))))
	})
}
