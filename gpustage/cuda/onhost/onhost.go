//go:build linux && amd64

package onhost

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"contraflow/gpustage"
	"contraflow/gpustage/cuda/kernels"
	"contraflow/gpustage/cuda/launch"
	"contraflow/gpustage/ref"
	"contraflow/testdata/harness"
)

// Here tells whether the system can have one.
const Here = true

// Product is what a library is asked for.
type Product = launch.Product

// Device runs the kernels on the processor. Its memory is the host's, and products are plain loops.
type Device struct {
	ref.Device

	NoEpilogues     bool           // products have none
	Refuses         bool           // products with an epilogue or a bias are refused when they are to multiply
	NoSums          bool           // products do not sum columns, as where CONTRAFLOW_CUDA_SUMS is not on
	Separate        bool           // of streams that are opened: what could be fused with products is not
	Apart           bool           // of streams that are opened: a kernel that leaves a tensor of scratch memory is reported, and what it takes is NaNs
	Warpgroups      bool           // of streams that are opened: attention is hopper.cu's, where that has it
	Piece           int            // of streams that are opened: elements of a vector that a kernel takes, launch.Stream's Piece
	Multiprocessors int            // of streams that are opened: launch.Stream's
	Asked           func(Product)  // sees products; may be nil
	Launched        map[string]int // how often each kernel has run, of a device that one stream uses; may be nil

	mode     Mode
	library  *library
	rounding bool
	counts   counts
	last     lastMemory
}

// lastMemory is what has been allocated last.
type lastMemory struct {
	sync.Mutex
	memory [64]gpustage.Memory
	at     int
}

type counts struct{ allocs, started, products, recorded, replayed atomic.Int64 }

// Open opens one, with the kernels of all of them. With -short the test is skipped: it is one thread's, and long. So it is without a compiler,
// with CI=true failed.
func Open(t testing.TB, mode Mode) *Device {
	t.Helper()
	return open(t, mode, compile, false)
}

// OpenUnchecked opens one that does not look at what kernels touch, which takes half of their time and more: for tests of models, of whose kernels
// the conformance suite has seen that.
func OpenUnchecked(t testing.TB, mode Mode) *Device {
	t.Helper()
	return open(t, mode, compileUnchecked, false)
}

// OpenRounding opens one whose numbers are as far off as a GPU's may be.
func OpenRounding(t testing.TB, mode Mode) *Device {
	t.Helper()
	return open(t, mode, compileRounding, true)
}

func open(t testing.TB, mode Mode, compile func() (*library, error), rounding bool) *Device {
	t.Helper()
	harness.Thorough(t)
	l, err := compile()
	if errors.Is(err, exec.ErrNotFound) {
		harness.Missing(t, "no g++ or clang++: the kernels' logic is not tested: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return &Device{mode: mode, library: l, rounding: rounding}
}

// As is the same device in another mode, with counts of its own.
func (d *Device) As(mode Mode) *Device {
	return &Device{mode: mode, library: d.library, rounding: d.rounding}
}

// Counts is what the device has done so far.
func (d *Device) Counts() Counts {
	c := &d.counts
	return Counts{Allocs: c.allocs.Load(), Started: c.started.Load(), Products: c.products.Load(), Recorded: c.recorded.Load(), Replayed: c.replayed.Load()}
}

// Traffic is that of each kernel that runs while f does, of this device or of another.
func (d *Device) Traffic(f func()) map[string]Traffic { return d.library.counted(f) }

// Name is that of no other device.
func (*Device) Name() string { return "kernels on the host" }

// Bags is false, as a GPU's is; ref's is true.
func (*Device) Bags() bool { return false }

// Watches is true: what a kernel reads beyond memory ends the process.
func (*Device) Watches() bool { return true }

// Repeats tells whether models round their shapes up.
func (d *Device) Repeats() bool { return d.mode != Plain }

// Alloc gives host memory, which kernels may then touch.
func (d *Device) Alloc(bytes int) (gpustage.Memory, error) {
	d.counts.allocs.Add(1)
	m, err := gpustage.AllocHost(bytes)
	if err != nil {
		return nil, err
	}
	d.library.mayTouch(m.Data())
	d.keep(m)
	return m, nil
}

// keep keeps the memory allocated last from the garbage collector, which does not see that a kernel has its address: a tensor that a caller has no
// use for any more was collected while the op that it was made for ran.
func (d *Device) keep(m gpustage.Memory) {
	d.last.Lock()
	defer d.last.Unlock()
	d.last.memory[d.last.at%len(d.last.memory)] = m
	d.last.at++
}

// OpenStream opens one.
func (d *Device) OpenStream() (gpustage.Stream, error) {
	s := &Stream{bytes: ref.NewStream(d), device: d}
	s.Stream = launch.NewStream(d, s)
	if d.mode != Recorded {
		s.Stream = launch.NewStream(d, struct{ launch.Driver }{s})
	}
	s.Stream.Separate, s.Stream.Warpgroups, s.Stream.Apart, s.Stream.Piece = d.Separate, d.Warpgroups, d.Apart, d.Piece
	s.Stream.Multiprocessors = d.Multiprocessors
	if d.Apart {
		s.Stream.Taken = spoil
	}
	return s, nil
}

// spoil fills what an op takes of scratch memory with NaNs, in integers -1: a GPU's has what earlier ops have left there. (What is issued within Repeat
// runs later; then it has what ops before it there have left.)
func spoil(x gpustage.Tensor) {
	at, size := x.Off*x.DType.Size(), x.Len()*x.DType.Size()
	bytes := x.Mem.(*gpustage.HostMemory).Data()[at : at+size]
	for i := range bytes {
		bytes[i] = 0xff
	}
}

// PackedBytes is the real device's.
func (*Device) PackedBytes(k, n int, bf16 bool) int { return launch.PackedBytes(k, n, bf16) }

// RoundedCols is the real device's.
func (*Device) RoundedCols(cols int) int { return launch.BF16Cols(cols) }

// TakesBF16 is the real device's.
func (*Device) TakesBF16() bool { return true }

// Stream has package launch's ops; ref moves bytes.
type Stream struct {
	*launch.Stream
	bytes     *ref.Stream
	device    *Device
	recording *recording // under way
}

// Record returns an event that has happened.
func (s *Stream) Record() gpustage.Event {
	s.between()
	return happened{}
}

// Wait returns at once: what another stream here has recorded has been done.
func (s *Stream) Wait(gpustage.Event) { s.between() }

// Sync returns the first error.
func (s *Stream) Sync() error {
	s.between()
	return s.Err()
}

// Close gives scratch memory and recordings back.
func (s *Stream) Close() error {
	s.between()
	return s.Free()
}

// between comes before whatever is no launch: what is held back is started, and nothing is being recorded.
func (s *Stream) between() {
	s.Issue()
	if s.recording != nil {
		s.Fail(errors.New("the stream is used for something else while it records"))
	}
}

// CopyIn copies host bytes to a tensor.
func (s *Stream) CopyIn(dst gpustage.Tensor, src []byte) {
	s.between()
	if !s.Refuse(gpustage.CheckHost("copy in", dst, len(src))) {
		s.bytes.CopyIn(dst, src)
	}
}

// CopyOut copies a tensor to host bytes.
func (s *Stream) CopyOut(dst []byte, src gpustage.Tensor) {
	s.between()
	if !s.Refuse(gpustage.CheckHost("copy out", src, len(dst))) {
		s.bytes.CopyOut(dst, src)
	}
}

// Address is where memory begins.
func (s *Stream) Address(m gpustage.Memory) uintptr {
	data := m.(*gpustage.HostMemory).Data()
	return uintptr(unsafe.Pointer(unsafe.SliceData(data)))
}

// Launch runs a kernel, or notes it.
func (s *Stream) Launch(kernel string, grid, block [3]int, shared int, words []uint64, at []int32) error {
	if s.recording != nil {
		words, at = slices.Clone(words), slices.Clone(at)
		s.recording.add(func() error { return s.run(kernel, grid, block, shared, words, at) })
		return nil
	}
	s.device.counts.started.Add(1)
	return s.run(kernel, grid, block, shared, words, at)
}

func (s *Stream) run(kernel string, grid, block [3]int, shared int, words []uint64, at []int32) error {
	if s.device.Launched != nil {
		s.device.Launched[kernel]++
	}
	const unbound = 256 // with 255 registers each they are as many as a multiprocessor has
	if n, most := block[0]*block[1]*block[2], cmp.Or(kernels.Bound(kernel), unbound); n > most {
		return fmt.Errorf("a block has %d threads, and %s's launch bounds allow %d, %d where there are none", n, kernel, most, unbound)
	}
	return s.device.library.start(kernel, grid, block, shared, words, at)
}

// Fuses is cuBLASLt's answer.
func (s *Stream) Fuses(p launch.Product) (bool, error) {
	return !s.device.NoEpilogues && !(s.device.NoSums && p.Epilogue == launch.ColumnSums) && fuses(p), nil
}

// Multiply stands in for cuBLASLt, or notes what is to be multiplied.
func (s *Stream) Multiply(p launch.Product) error {
	if s.device.Asked != nil {
		s.device.Asked(p)
	}
	if s.device.Refuses && (p.Epilogue != launch.NoEpilogue || p.Bias != 0) {
		return fmt.Errorf("%w: %+v", launch.ErrRefused, p)
	}
	if s.recording != nil {
		s.recording.add(func() error { return multiply(p, s.device.rounding) })
		return nil
	}
	s.device.counts.products.Add(1)
	return multiply(p, s.device.rounding)
}

// recording stands in for a CUDA graph: copies of what each call was given.
type recording struct {
	device *Device
	calls  []func() error
}

func (r *recording) add(call func() error) { r.calls = append(r.calls, call) }

// Begin has launches and products noted instead of run.
func (s *Stream) Begin() error {
	if s.recording != nil {
		return errors.New("a recording within a recording")
	}
	s.recording = &recording{device: s.device}
	return nil
}

// End gives what was noted.
func (s *Stream) End() (launch.Recording, error) {
	r := s.recording
	s.recording = nil
	s.device.counts.recorded.Add(1)
	return r, nil
}

// Start runs it.
func (r *recording) Start() error {
	if r.calls == nil {
		return errors.New("a recording that has been freed, or is empty")
	}
	r.device.counts.replayed.Add(1)
	for _, call := range r.calls {
		if err := call(); err != nil {
			return err
		}
	}
	return nil
}

// Free forgets it.
func (r *recording) Free() error {
	r.calls = nil
	return nil
}

// multiply sums in f32, one product after the other, with epilogues as cuBLASLt's documentation defines them. It is as coarse with TF32 as a
// library may be: what is beyond 10 bits is cut off.
func multiply(p launch.Product, rounding bool) error {
	if p.BF16 && (p.A.At%16 != 0 || p.B.At%16 != 0 || p.A.Stride%8 != 0 || p.B.Stride%8 != 0) {
		return fmt.Errorf("rows of bf16 that tensor cores' fast paths can't take")
	}
	if !fuses(p) {
		return fmt.Errorf("an epilogue that the library does not have: %+v", p)
	}
	product := sum
	switch {
	case rounding && p.BF16:
		product = sumBF16
	case rounding && p.TF32:
		product = sumTF32
	case rounding:
		product = sumFused
	}
	c, d, aux := values(p.C, p.Half), values(p.D, p.Half), values(p.Aux, p.Half)
	biases := p.C.Cols
	if p.Epilogue == launch.ColumnSums {
		biases = p.C.Rows
	}
	bias := values(launch.Matrix{At: p.Bias, Rows: 1, Cols: biases}, p.Half)
	k := p.A.Cols
	if p.TransA {
		k = p.A.Rows
	}
	a, b := operand(p.A, p.BF16, p.TransA), operand(p.B, p.BF16, !p.TransB)
	if p.TF32 {
		for _, x := range [][]float32{a, b} {
			for i, v := range x {
				x[i] = math.Float32frombits(math.Float32bits(v) &^ (1<<13 - 1))
			}
		}
	}
	for i := range p.C.Rows {
		if p.Epilogue == launch.ColumnSums {
			sum := float32(0)
			for _, v := range a[i*k : (i+1)*k] {
				sum += v
			}
			bias.set(i, sum)
		}
		for j := range p.C.Cols {
			sum := p.Alpha * product(0, a[i*k:(i+1)*k], b[j*k:(j+1)*k])
			if p.Bias != 0 && p.Epilogue != launch.ColumnSums {
				sum += bias.get(j)
			}
			if p.Beta != 0 {
				sum += p.Beta * d.get(i*p.D.Stride+j)
			}
			switch p.Epilogue {
			case launch.GELU:
				aux.set(i*p.Aux.Stride+j, sum)
				sum *= float32(0.5 * (1 + geluTanh(float64(sum))))
			case launch.DGELU:
				x := float64(aux.get(i*p.Aux.Stride + j))
				t := geluTanh(x)
				sum *= float32(0.5*(1+t) + 0.5*x*(1-t*t)*math.Sqrt(2/math.Pi)*(1+3*0.044715*x*x))
			}
			c.set(i*p.C.Stride+j, sum)
		}
	}
	return nil
}

// geluTanh is the tanh of GELU's approximation.
func geluTanh(x float64) float64 { return math.Tanh(math.Sqrt(2/math.Pi) * (x + 0.044715*x*x*x)) }

func view[T any](m launch.Matrix) []T {
	at := *(*unsafe.Pointer)(unsafe.Pointer(&m.At))
	if at == nil {
		return nil
	}
	return unsafe.Slice((*T)(at), max(0, (m.Rows-1)*m.Stride+m.Cols))
}

// elements are a matrix's, of one of two types.
type elements struct {
	f32  []float32
	bf16 []uint16
}

func values(m launch.Matrix, bf16 bool) elements {
	if bf16 {
		return elements{bf16: view[uint16](m)}
	}
	return elements{f32: view[float32](m)}
}

func (e elements) get(i int) float32 {
	if e.bf16 != nil {
		return gpustage.FromBF16(e.bf16[i])
	}
	return e.f32[i]
}

func (e elements) set(i int, v float32) {
	if e.bf16 != nil {
		e.bf16[i] = gpustage.ToBF16(v)
	} else {
		e.f32[i] = v
	}
}

// operand is a matrix, or its transpose, as rows of f32 without gaps.
func operand(m launch.Matrix, bf16, trans bool) []float32 {
	out := make([]float32, m.Rows*m.Cols)
	from := values(m, bf16)
	for i := range m.Rows {
		for j := range m.Cols {
			to := i*m.Cols + j
			if trans {
				to = j*m.Rows + i
			}
			out[to] = from.get(i*m.Stride + j)
		}
	}
	return out
}
