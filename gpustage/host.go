package gpustage

import (
	"fmt"
	"unsafe"
)

// HostMemory is memory that the processor can address, outside the Go heap where the system allows it, so that gigabytes
// of activations do not make the garbage collector double them.
type HostMemory struct {
	data  []byte
	unmap func() error
}

// AllocHost gives zeroed memory, aligned to 64 bytes.
func AllocHost(bytes int) (*HostMemory, error) {
	if bytes < 0 {
		return nil, fmt.Errorf("allocating %d bytes", bytes)
	}
	if bytes >= mapFrom {
		return mapHost(bytes)
	}
	return heapHost(bytes), nil
}

// Pinner is a device to and from which some memory of the host goes faster than the rest: on a GPU what is pinned, which it reads and
// writes itself while a stream goes on.
type Pinner interface {
	// Pin gives such memory, zeroed or not. It is for copies of any stream, of other devices too.
	Pin(bytes int) (*HostMemory, error)
}

// Staging gives memory of the host for what comes from a device, or goes there.
func Staging(d Device, bytes int) (*HostMemory, error) {
	if p, ok := d.(Pinner); ok {
		return p.Pin(bytes)
	}
	return AllocHost(bytes)
}

// HostMemoryAt is memory that somebody else has allocated; free gives it back.
func HostMemoryAt(data []byte, free func() error) *HostMemory { return &HostMemory{data, free} }

// heapHost serves small tensors: a mapping costs a system call and at least a page.
func heapHost(bytes int) *HostMemory {
	raw := make([]byte, bytes+64)
	off := int(-uintptr(unsafe.Pointer(&raw[0])) & 63)
	return &HostMemory{data: raw[off : off+bytes : off+bytes]}
}

const mapFrom = 1 << 20

func (m *HostMemory) Bytes() int { return len(m.data) }

// Data is the memory.
func (m *HostMemory) Data() []byte { return m.data }

// Free gives mapped memory back to the system. Freeing twice is harmless.
func (m *HostMemory) Free() error {
	m.data = nil
	if f := m.unmap; f != nil {
		m.unmap = nil
		return f()
	}
	return nil
}

// Element is a Go type that tensors hold.
type Element interface {
	float32 | float64 | int32 | uint64 | uint16
}

// Slice views a tensor in host memory, gaps between its rows included. T must be the tensor's type: uint16 for BF16.
func Slice[T Element](t Tensor) []T {
	var zero T
	if size := int(unsafe.Sizeof(zero)); size != t.DType.Size() {
		panic(fmt.Sprintf("gpustage: %v viewed as %T", t, zero))
	}
	n := 0
	if t.Rows > 0 && t.Cols > 0 {
		n = (t.Rows-1)*t.Stride + t.Cols
	}
	if n == 0 {
		return nil
	}
	m := t.Mem.(*HostMemory)
	bytes := m.data[t.Off*t.DType.Size() : (t.Off+n)*t.DType.Size()]
	return unsafe.Slice((*T)(unsafe.Pointer(&bytes[0])), n)
}

// InHost tells whether a tensor lies in memory that Slice can view.
func InHost(t Tensor) bool {
	_, ok := t.Mem.(*HostMemory)
	return ok
}

// Bytes views a slice as the bytes that CopyIn and CopyOut take.
func Bytes[T Element](s []T) []byte {
	if len(s) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&s[0])), len(s)*int(unsafe.Sizeof(s[0])))
}

// Upload copies numbers to a tensor of f32 or f64, rounded or widened to its type. They may be used again at once.
func Upload[T float32 | float64](s Stream, t Tensor, numbers []T) {
	if t.DType == F64 {
		s.CopyIn(t, Bytes(converted[float64](numbers)))
		return
	}
	s.CopyIn(t, Bytes(converted[float32](numbers)))
}

// converted is numbers themselves where they are of the type.
func converted[To, From float32 | float64](numbers []From) []To {
	if same, ok := any(numbers).([]To); ok {
		return same
	}
	out := make([]To, len(numbers))
	for i, v := range numbers {
		out[i] = To(v)
	}
	return out
}
