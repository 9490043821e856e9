package launch

import "contraflow/gpustage"

// What products and attention read may be of bf16 (gpustage.Ops): the kernels of ops that take such tensors have a mask, whose bit i says that
// their i-th one is.

// half tells whether a tensor is of bf16.
func half(t tensor) bool { return !t.IsZero() && t.DType == gpustage.BF16 }

// halves is the mask of a kernel's tensors.
func halves(ts ...tensor) (mask int) {
	for i, t := range ts {
		mask |= int(flag(half(t))) << i
	}
	return mask
}

// twice is a BF16 tensor's memory as if its elements were F32.
type twice struct{ gpustage.Memory }

func (m twice) Bytes() int { return 2 * m.Memory.Bytes() }

// as32 is a tensor that may be BF16 as the checks see it, which know of F32: of the same shape, at the same place among its elements.
func as32(t tensor) tensor {
	if half(t) {
		t.Mem, t.DType = twice{t.Mem}, gpustage.F32
	}
	return t
}

// all32 is as32 of several.
func all32(ts ...tensor) []tensor {
	out := make([]tensor, len(ts))
	for i, t := range ts {
		out[i] = as32(t)
	}
	return out
}
