package gpustage

import "math"

// ToBF16 rounds to bfloat16, to nearest and ties to even; NaN stays NaN.
func ToBF16(v float32) uint16 {
	b := math.Float32bits(v)
	if b&0x7FFFFFFF > 0x7F800000 {
		return uint16(b>>16) | 0x40
	}
	return uint16((b + 0x7FFF + b>>16&1) >> 16)
}

// FromBF16 widens.
func FromBF16(v uint16) float32 { return math.Float32frombits(uint32(v) << 16) }

// RoundBF16 is FromBF16(ToBF16(v)).
func RoundBF16(v float32) float32 { return FromBF16(ToBF16(v)) }
