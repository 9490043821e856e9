package safetensors

import (
	"encoding/binary"
	"fmt"
	"math"
)

// As is the tensor in another type, F32, BF16 or F16: each value is rounded to the nearest one of it, ties to even, as torch's
// Tensor.to does. A value that this makes infinite is an error, which says where it is. A tensor that has the type is returned as it is.
func (t Tensor) As(d DType) (Tensor, error) {
	if t.DType == d {
		return t, nil
	}
	if d == F32 {
		vs := make([]float32, t.Len())
		if err := t.Float32s(vs); err != nil {
			return Tensor{}, err
		}
		return FromFloat32s(t.Name, t.Shape, vs)
	}
	narrow, ok := map[DType]func(float32) uint16{BF16: toBF16, F16: toF16}[d]
	if !ok {
		return Tensor{}, fmt.Errorf("tensor %q: numbers are written in F32, BF16 and F16, not in %s", t.Name, d)
	}
	vs := make([]float32, t.Len())
	if err := t.Float32s(vs); err != nil {
		return Tensor{}, err
	}
	exponent := map[DType]uint16{BF16: 0x7f80, F16: 0x7c00}[d] // of what is not finite
	out := Tensor{Name: t.Name, DType: d, Shape: t.Shape, Data: make([]byte, 2*len(vs))}
	for i, v := range vs {
		h := narrow(v)
		if h&exponent == exponent && v-v == 0 {
			return Tensor{}, fmt.Errorf("tensor %q: number %d of %d is %g, more than %s holds (%g)", t.Name, i, len(vs), v, d, map[DType]float64{BF16: 0x1.fep127, F16: 65504}[d])
		}
		binary.LittleEndian.PutUint16(out.Data[2*i:], h)
	}
	return out, nil
}

// toBF16 keeps a float32's first 16 bits, rounded; a NaN stays one.
func toBF16(v float32) uint16 {
	b := math.Float32bits(v)
	if v != v {
		return uint16(b>>16) | 0x40
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// toF16 is the IEEE half nearest to v; a NaN stays one. Both of its kinds are rounded by float32's own addition: a number is added that
// is so large that the sum's last bit is the half's.
func toF16(v float32) uint16 {
	b := math.Float32bits(v)
	sign := uint16(b >> 16 & 0x8000)
	switch b &^= 1 << 31; {
	case b > 0x7f800000: // NaN
		return sign | 0x7e00
	case b >= 0x47800000: // 65536 and more
		return sign | 0x7c00
	case b < 0x38800000: // below 2^-14 halves are multiples of 2^-24, as float32's between 0.5 and 1 are
		return sign | uint16(math.Float32bits(math.Float32frombits(b)+0.5)-math.Float32bits(0.5))
	default: // the mantissa's 13 last bits go; a carry reaches the exponent, and of the largest ones makes infinity
		return sign | uint16((b-112<<23+0xfff+b>>13&1)>>13)
	}
}
