// Package safetensors reads and writes Hugging Face's safetensors files: named tensors, without code in them.
//
// A file is an 8-byte little-endian length, a JSON header of that length, and the tensors' bytes back to back:
//
//	{"__metadata__": {"format": "pt"},
//	 "encoder.weight": {"dtype": "F32", "shape": [384, 1536], "data_offsets": [0, 2359296]}, ...}
//
// A model file comes from a stranger, so Open trusts nothing in it: the header's length, its JSON (no name twice), and
// every offset are checked before the first byte of a tensor is handed out. The offsets must tile the data exactly, in
// order, without overlap or hole, and agree with shape times element size; what the reference implementation refuses
// is refused here, in terms that name the file and the tensor.
//
// Open maps the file into memory where the system can, so that opening a large model reads only its header and many
// processes share one copy. Write streams into a sibling and renames it over the target: a full disk or a kill leaves
// the previous file.
//
// Format: https://github.com/huggingface/safetensors, version 0.8.
package safetensors

import (
	"fmt"
	"math"
	"math/bits"
	"strings"
)

// DType is a tensor's element type, spelled as in the file.
type DType string

const (
	Bool    DType = "BOOL"
	U8      DType = "U8"
	I8      DType = "I8"
	U16     DType = "U16"
	I16     DType = "I16"
	U32     DType = "U32"
	I32     DType = "I32"
	U64     DType = "U64"
	I64     DType = "I64"
	F16     DType = "F16"
	BF16    DType = "BF16"
	F32     DType = "F32"
	F64     DType = "F64"
	C64     DType = "C64" // two F32
	F8E4M3  DType = "F8_E4M3"
	F8E5M2  DType = "F8_E5M2"
	F8E8M0  DType = "F8_E8M0"
	F8E4M3Z DType = "F8_E4M3FNUZ"
	F8E5M2Z DType = "F8_E5M2FNUZ"
	F6E2M3  DType = "F6_E2M3"
	F6E3M2  DType = "F6_E3M2"
	F4      DType = "F4"
)

// dtypes is in the reference's order, in which a writer places tensors from last to first: the most strictly aligned
// come first, so that every tensor of a file is aligned.
var dtypes = []struct {
	dtype DType
	bits  int
}{
	{Bool, 8}, {F4, 4}, {F6E2M3, 6}, {F6E3M2, 6}, {U8, 8}, {I8, 8}, {F8E5M2, 8}, {F8E4M3, 8}, {F8E8M0, 8},
	{F8E4M3Z, 8}, {F8E5M2Z, 8}, {I16, 16}, {U16, 16}, {F16, 16}, {BF16, 16}, {I32, 32}, {U32, 32}, {F32, 32},
	{C64, 64}, {F64, 64}, {I64, 64}, {U64, 64},
}

// rank is the index in dtypes, or -1.
func (d DType) rank() int {
	for i := range dtypes {
		if dtypes[i].dtype == d {
			return i
		}
	}
	return -1
}

// Bits is the size of one element in bits, 0 for a type this package doesn't know. Some are smaller than a byte.
func (d DType) Bits() int {
	if r := d.rank(); r >= 0 {
		return dtypes[r].bits
	}
	return 0
}

// Tensor is a named array.
type Tensor struct {
	Name  string
	DType DType
	Shape []int // no dimensions: a scalar
	// Data is row-major and little-endian. Of a tensor read from a File it is a view of the mapped file: read-only, not
	// necessarily aligned, and gone after File.Close.
	Data []byte

	file *File
}

// Len is the number of elements.
func (t Tensor) Len() int {
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// String describes the tensor: `encoder.weight F32 [384 1536]`.
func (t Tensor) String() string { return fmt.Sprintf("%s %s %v", t.Name, t.DType, t.Shape) }

// byteSize is how many bytes a tensor takes, with every overflow checked.
func byteSize(d DType, shape []int) (int, error) {
	size := d.Bits()
	if size == 0 {
		return 0, fmt.Errorf("dtype %q is unknown; known are %s", d, knownDTypes())
	}
	n := uint64(size)
	for _, dim := range shape {
		if dim < 0 {
			return 0, fmt.Errorf("shape %v has a negative dimension", shape)
		}
		hi, lo := bits.Mul64(n, uint64(dim))
		if hi != 0 {
			return 0, fmt.Errorf("shape %v of %s has more bytes than an address can hold", shape, d)
		}
		n = lo
	}
	if n%8 != 0 {
		return 0, fmt.Errorf("shape %v of %s (%d bits each) does not end at a whole byte", shape, d, size)
	}
	if n/8 > math.MaxInt {
		return 0, fmt.Errorf("shape %v of %s has more bytes than an address can hold", shape, d)
	}
	return int(n / 8), nil
}

func knownDTypes() string {
	var names []string
	for _, d := range dtypes {
		names = append(names, string(d.dtype))
	}
	return strings.Join(names, ", ")
}
