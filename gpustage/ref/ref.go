// Package ref is the definition of every op of package gpustage, in plain Go.
//
// Each op is written to be read: one loop nest, its backward directly under it, sums in float64 whatever the tensors
// hold, rounded once when stored. It runs on float32 and float64 tensors, so the same code is the specification of a step, the truth
// in double precision that verify-grads compares with, and what the fast devices are tested against. Speed is not its business.
//
// Gradients were derived by hand and are checked against finite differences in this package's tests, and against PyTorch
// through the goldens in testdata/golden/ops.
package ref

import (
	"fmt"

	"contraflow/gpustage"
)

type (
	tensor = gpustage.Tensor
	float  interface{ float32 | float64 }
)

// Device is the host without any acceleration.
type Device struct{ jump Jump }

// Jump is for those who ask what rounding can change where a gradient jumps: it is asked of each value there whether its gradient is to be that of the
// other side, as if a ReLU's input, or a sparse embedding's weight, had the other sign, or a segment's element were the largest of it. off is how far away
// that is, in root mean squares of all the op's values. What is computed forward stays as it is.
type Jump func(value, off float64) bool

// Jumper is a device that asks, at least where it computes in f64. Its streams may do so at the same time.
type Jumper interface {
	WithJump(Jump) gpustage.Device // the same device otherwise; nil: nothing is asked
}

// New returns the reference device.
func New() *Device { return &Device{} }

// Name is "ref".
func (*Device) Name() string { return "ref" }

// Info describes the device.
func (*Device) Info() gpustage.Info {
	return gpustage.Info{Kind: "ref", Description: "plain Go, one thread", Threads: 1, F64: true}
}

// FreeMemory is the host's.
func (*Device) FreeMemory() (int64, error) {
	_, free := gpustage.HostMemorySize()
	return free, nil
}

// Alloc gives host memory.
func (*Device) Alloc(bytes int) (gpustage.Memory, error) { return gpustage.AllocHost(bytes) }

// Bags is true.
func (*Device) Bags() bool { return true }

// KeepsBF16 is true: where it computes in bf16, it is what the CPU device is compared with.
func (*Device) KeepsBF16() bool { return true }

// OpenStream returns a stream that runs each op before the call returns.
func (d *Device) OpenStream() (gpustage.Stream, error) {
	return NewStream(d).WithJump(d.jump), nil
}

// WithJump is the device with a Jump.
func (*Device) WithJump(j Jump) gpustage.Device { return &Device{jump: j} }

// Close does nothing.
func (*Device) Close() error { return nil }

// Stream runs ops on the calling goroutine. The fast CPU device embeds it for what it does not speed up.
type Stream struct {
	device gpustage.Device
	jump   Jump
	err    error
}

// NewStream makes a stream for a device whose memory is host memory.
func NewStream(d gpustage.Device) *Stream { return &Stream{device: d} }

// WithJump has the stream ask a Jump, and returns it.
func (s *Stream) WithJump(j Jump) *Stream {
	s.jump = j
	return s
}

type done struct{}

func (done) Sync() error { return nil }

// Device returns the device that opened the stream.
func (s *Stream) Device() gpustage.Device { return s.device }

// Record returns an event that has happened.
func (s *Stream) Record() gpustage.Event { return done{} }

// Wait returns at once: what another host stream has recorded has been done.
func (s *Stream) Wait(e gpustage.Event) { s.Fail(e.Sync()) }

// Sync returns the first error.
func (s *Stream) Sync() error { return s.err }

// Fail keeps the first error.
func (s *Stream) Fail(err error) {
	if s.err == nil {
		s.err = err
	}
}

// Close does nothing.
func (s *Stream) Close() error { return nil }

// Refuse reports whether an op must not run: its check has failed, or an earlier op's has.
func (s *Stream) Refuse(check error) bool {
	s.Fail(check)
	return s.err != nil
}

// run calls the op for the tensors' type.
func (s *Stream) run(op string, t tensor, f32, f64 func()) {
	switch t.DType {
	case gpustage.F32:
		f32()
	case gpustage.F64:
		f64()
	default:
		s.Fail(fmt.Errorf("%s: %s tensors are not supported on this device", op, t.DType))
	}
}

// row is row i of a tensor.
func row[T gpustage.Element](t tensor, i int) []T {
	return gpustage.Slice[T](t.Span(i, i+1))
}

// vec is a vector's elements, or nil for an absent one.
func vec[T gpustage.Element](t tensor) []T {
	if t.IsZero() {
		return nil
	}
	return gpustage.Slice[T](t)
}

func init() {
	gpustage.Register("ref", 0, func(gpustage.Share) (gpustage.Device, error) { return New(), nil })
}
