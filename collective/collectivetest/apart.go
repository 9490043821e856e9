package collectivetest

import (
	"unsafe"

	"contraflow/gpustage"
)

// Apart makes of a device with host memory one whose memory is its own: only its own streams take it, and they take no
// other. It is how a World's ways with GPUs are tried without one. Its streams have what data collectives use: copies and
// sums.
func Apart(d gpustage.Device) gpustage.Device { return apart{d} }

type apart struct{ gpustage.Device }

type apartMemory struct{ gpustage.Memory }

// Pointer is the first byte's address.
func (m apartMemory) Pointer() uintptr {
	t := gpustage.Tensor{Mem: m.Memory, Rows: 1, Cols: 1, Stride: 1, DType: gpustage.F32}
	return uintptr(unsafe.Pointer(&gpustage.Slice[float32](t)[0]))
}

func (d apart) Alloc(bytes int) (gpustage.Memory, error) {
	m, err := d.Device.Alloc(max(bytes, 4))
	return apartMemory{m}, err
}

func (d apart) OpenStream() (gpustage.Stream, error) {
	s, err := d.Device.OpenStream()
	return apartStream{s, d}, err
}

type apartStream struct {
	gpustage.Stream
	device apart
}

func own(t gpustage.Tensor) gpustage.Tensor {
	t.Mem = t.Mem.(apartMemory).Memory // panics at host memory
	return t
}

func (s apartStream) Device() gpustage.Device                 { return s.device }
func (s apartStream) CopyIn(dst gpustage.Tensor, src []byte)  { s.Stream.CopyIn(own(dst), src) }
func (s apartStream) CopyOut(dst []byte, src gpustage.Tensor) { s.Stream.CopyOut(dst, own(src)) }
func (s apartStream) Copy(dst, src gpustage.Tensor)           { s.Stream.Copy(own(dst), own(src)) }
func (s apartStream) Add(y, a, b gpustage.Tensor)             { s.Stream.Add(own(y), own(a), own(b)) }
