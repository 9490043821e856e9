package safetensors

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"unsafe"
)

// littleEndian: this machine stores numbers as the file does, and F32 is a plain copy.
var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

// Float32s decodes the tensor into dst, whose length must be t.Len(). F32, F16 and BF16 are exact; F64 is rounded to
// the nearest. Other types are an error.
func (t Tensor) Float32s(dst []float32) (err error) {
	where := ""
	if t.file != nil {
		where = t.file.path + ": "
		t.file.mu.RLock()
		defer t.file.mu.RUnlock()
		if t.file.unmap == nil {
			return fmt.Errorf("%stensor %q: the file is closed", where, t.Name)
		}
		// If another program truncates the file, reading its mapping faults. That is the user's to repair, not a crash.
		old := debug.SetPanicOnFault(true)
		defer debug.SetPanicOnFault(old)
		defer func() {
			if r := recover(); r != nil {
				fault, ok := r.(interface{ Addr() uintptr })
				if !ok {
					panic(r)
				}
				err = fmt.Errorf("%stensor %q: reading failed at address %#x: the file was changed or the disk failed "+
					"while it was open", where, t.Name, fault.Addr())
			}
		}()
	}
	if err := t.float32s(dst); err != nil {
		return fmt.Errorf("%stensor %q: %w", where, t.Name, err)
	}
	return nil
}

// Elements are n elements of the tensor, in row-major order, from the given one on: a vector in the same memory. Of a type whose elements are no
// whole bytes there is none, nor of elements that the tensor does not have.
func (t Tensor) Elements(from, n int) (Tensor, error) {
	size := t.DType.Bits() / 8
	if size*8 != t.DType.Bits() || size == 0 || from < 0 || n < 0 || from > t.Len()-n || len(t.Data) != t.Len()*size {
		return Tensor{}, fmt.Errorf("tensor %v has no %d elements from %d on", t, n, from)
	}
	t.Shape, t.Data = []int{n}, t.Data[from*size:(from+n)*size]
	return t, nil
}

func (t Tensor) float32s(dst []float32) error {
	size, err := byteSize(t.DType, t.Shape)
	if err != nil {
		return err
	}
	if size != len(t.Data) {
		return fmt.Errorf("%d bytes of data, but shape %v of %s takes %d", len(t.Data), t.Shape, t.DType, size)
	}
	if n := t.Len(); n != len(dst) {
		return fmt.Errorf("shape %v has %d elements, but there is room for %d", t.Shape, n, len(dst))
	}
	if len(dst) == 0 {
		return nil
	}
	src := t.Data
	switch t.DType {
	case F32:
		if littleEndian {
			copy(bytesOf(dst), src) // as bytes: src need not be aligned
			return nil
		}
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
		}
	case BF16:
		for i := range dst {
			dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(src[2*i:])) << 16)
		}
	case F16:
		for i := range dst {
			dst[i] = float16(binary.LittleEndian.Uint16(src[2*i:]))
		}
	case F64:
		for i := range dst {
			dst[i] = float32(math.Float64frombits(binary.LittleEndian.Uint64(src[8*i:])))
		}
	default:
		return fmt.Errorf("%s can't be read as float32; F32, F16, BF16 and F64 can", t.DType)
	}
	return nil
}

// float16 widens an IEEE half. Shifted into a float32's place the exponent's bias is off by 112, which one exact
// multiplication repairs, subnormals included; infinities and NaN need their exponent set.
func float16(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	body := uint32(h&0x7fff) << 13
	if h&0x7c00 == 0x7c00 {
		return math.Float32frombits(sign | 0x7f800000 | body)
	}
	return math.Float32frombits(sign | math.Float32bits(math.Float32frombits(body)*0x1p112))
}

// FromFloat32s makes an F32 tensor of v, whose length must be the product of shape. On the usual little-endian machines
// Data shares v's memory.
func FromFloat32s(name string, shape []int, v []float32) (Tensor, error) {
	t := Tensor{Name: name, DType: F32, Shape: shape}
	size, err := byteSize(F32, shape)
	if err == nil && size != 4*len(v) {
		err = errors.New("wrong number of values")
	}
	if err != nil {
		return Tensor{}, fmt.Errorf("tensor %q: shape %v with %d values: %w", name, shape, len(v), err)
	}
	if littleEndian || len(v) == 0 {
		t.Data = bytesOf(v)
		return t, nil
	}
	t.Data = make([]byte, size)
	for i, x := range v {
		binary.LittleEndian.PutUint32(t.Data[4*i:], math.Float32bits(x))
	}
	return t, nil
}

func bytesOf(v []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 4*len(v))
}
