// Package gpustage is where arithmetic runs: devices, streams, memory, and the op set.
//
// A Device owns memory and opens streams. A Stream takes operations in order; on a GPU they run later, on a processor
// they have run when the call returns, and callers may rely on neither: Sync is what waits. Packages ref (the definition
// of every op in plain Go), cpu and cuda implement the interfaces; devicetest is the one conformance suite that all of
// them pass, and a new device is done when it does.
//
// # Shapes
//
// Activations are packed: the T real tokens of a sub-batch lie back to back as [T, C], and Sequences says where each
// row begins. Padding between rows does not exist. A letter means one thing everywhere:
//
//	T  tokens of a sub-batch        B  rows (sequences) of a sub-batch
//	C  hidden size                  H  attention heads            D  head size
//	F  feed-forward size            E  embedding size             V  vocabulary
//	M, N, K  a matrix product's [M, N] = [M, K] x [K, N]
//
// # Errors
//
// Ops return nothing. The first mistake (a shape that does not fit, memory that is missing, a failed launch) stays with
// the stream, turns every later op into nothing, and comes out of Sync: a transformer reads as arithmetic, and no error
// is lost. This is how CUDA behaves as well.
//
// # Order and determinism
//
// Every op gives the same bits for the same inputs, whatever the number of threads and the moment: reductions have an
// order that depends on shapes alone. Outputs may alias inputs only where an op says so.
package gpustage

import (
	"errors"
	"fmt"
)

// ErrOutOfMemory is wrapped by errors from Alloc when a device has no room.
var ErrOutOfMemory = errors.New("out of device memory")

// DType is the type of a tensor's elements.
type DType uint8

const (
	F32  DType = iota // float32: every activation, parameter and gradient of an ordinary run
	F64               // float64: the truth that verify-grads compares with
	BF16              // bfloat16: inputs of matrix products in bf16 mode, and what lies between them
	I32               // int32: ids, positions, offsets
	U64               // uint64: dropout keys
)

var dtypeNames = [...]string{"f32", "f64", "bf16", "i32", "u64"}
var dtypeSizes = [...]int{4, 8, 2, 4, 8}

func (d DType) String() string { return dtypeNames[d] }

// Size is the number of bytes of one element.
func (d DType) Size() int { return dtypeSizes[d] }

// Memory is one allocation on one device.
type Memory interface {
	Bytes() int
	// Free gives it back. Tensors that view it must not be used after.
	Free() error
}

// Info describes a device to people and to the planner.
type Info struct {
	Kind        string // "ref", "cpu", "cuda"
	Description string // "AMD EPYC, AVX-512, 2 threads"
	Threads     int    // worker threads of a processor; 0 on a GPU
	Ranks       int    // of this machine that share the memory; 0: all, as a processor's do
	TF32        bool   // products of f32 can be TF32's: inputs of 10 bits after the point
	F64         bool   // models can be of f64
	HostMemory  bool   // a GPU whose memory is the host's
	Besides     int64  // bytes that it takes beside tensors while a model trains: its streams' workspaces, recordings; a bound, or a guess above
	// PeakAllocated is the most bytes that Alloc had given out at a time, 0 where the device does not count them.
	PeakAllocated int64
}

// PassTokens is how many tokens should go through a model at once where nobody has said so: enough to keep the device busy,
// and on a processor not so many that activations leave its caches.
func (i Info) PassTokens() int {
	if i.Threads == 0 {
		return 16384
	}
	return min(16384, 1024*max(2, i.Threads))
}

// ReplayBudget is how many of so many bytes that are left go to activations where nobody has said so: half of the host's, which others want as
// well, and data that is read; fifteen sixteenths of a GPU's own. The rest, a GiB if that is no more than half, is for what no prediction has: kernels,
// the driver's own, what other programs begin to take.
func (i Info) ReplayBudget(left int64) int64 {
	if i.Threads > 0 || i.HostMemory {
		return left / 2
	}
	return left - max(left/16, min(left-left/2, 1<<30))
}

// Device owns memory and opens streams. Its methods are safe for concurrent use.
type Device interface {
	// Name is unique in a process: "cpu:0".
	Name() string
	Info() Info
	// FreeMemory is how many bytes are available now; 0: the device does not say. The error is why that is not known of one that does.
	FreeMemory() (int64, error)
	// Alloc gives zeroed memory. Its error wraps ErrOutOfMemory when there is no room.
	Alloc(bytes int) (Memory, error)
	// OpenStream must be called on the thread that will use the stream.
	OpenStream() (Stream, error)
	Close() error
}

// UrgentOpener is a device some of whose streams are ahead of others: of work that those have issued and the device has not begun.
type UrgentOpener interface {
	// OpenUrgent is OpenStream of such a stream.
	OpenUrgent() (Stream, error)
}

// OpenUrgent opens a stream whose work is short and waited for, beside one that computes: what communicates. Behind large products a
// sum of gradients would otherwise start when they are over. On most devices it is a stream like any other.
func OpenUrgent(d Device) (Stream, error) {
	if h, ok := d.(UrgentOpener); ok {
		return h.OpenUrgent()
	}
	return d.OpenStream()
}

// Event is a point in a stream's order.
type Event interface {
	// Sync makes the host wait for it.
	Sync() error
}

// Stream takes operations in order. It belongs to one thread.
type Stream interface {
	Device() Device
	// Record returns the point after everything issued so far.
	Record() Event
	// Wait makes everything issued from now on wait for e, which may come from another stream.
	Wait(e Event)
	// Sync waits for everything issued and returns the first error since the stream was opened.
	Sync() error
	// Fail makes err the stream's error, if it has none yet.
	Fail(err error)
	Close() error

	// CopyIn copies host bytes to a contiguous tensor; src may be reused when it returns.
	CopyIn(dst Tensor, src []byte)
	// CopyOut copies a contiguous tensor to host bytes, which are valid after Sync.
	CopyOut(dst []byte, src Tensor)

	Ops
}

// Tensor is a row-major view of device memory: Rows rows of Cols elements, Stride elements apart. A vector has one row.
type Tensor struct {
	Mem    Memory
	Off    int // elements from the start of Mem
	Rows   int
	Cols   int
	Stride int // elements between rows; >= Cols
	DType  DType
}

// NewTensor allocates a [rows, cols] tensor of its own, zeroed.
func NewTensor(d Device, t DType, rows, cols int) (Tensor, error) {
	m, err := d.Alloc(rows * cols * t.Size())
	if err != nil {
		return Tensor{}, fmt.Errorf("a %s tensor [%d %d]: %w", t, rows, cols, err)
	}
	return Tensor{Mem: m, Rows: rows, Cols: cols, Stride: cols, DType: t}, nil
}

// IsZero tells an absent tensor, as optional arguments of ops may be.
func (t Tensor) IsZero() bool { return t.Mem == nil }

// Len is the number of elements.
func (t Tensor) Len() int { return t.Rows * t.Cols }

// Contiguous tells that no bytes lie between the rows.
func (t Tensor) Contiguous() bool { return t.Stride == t.Cols || t.Rows <= 1 }

// SamePlace tells whether o begins where t does. One that is absent has no place.
func (t Tensor) SamePlace(o Tensor) bool { return !o.IsZero() && t.Mem == o.Mem && t.Off == o.Off }

// Span is rows lo to hi.
func (t Tensor) Span(lo, hi int) Tensor {
	t.Off += lo * t.Stride
	t.Rows = hi - lo
	return t
}

// Columns is columns lo to hi of every row.
func (t Tensor) Columns(lo, hi int) Tensor {
	t.Off += lo
	t.Cols = hi - lo
	return t
}

// Reshape views a contiguous tensor as [rows, cols].
func (t Tensor) Reshape(rows, cols int) Tensor {
	if !t.Contiguous() || rows*cols != t.Len() {
		panic(fmt.Sprintf("gpustage: reshape of %v to [%d %d]", t, rows, cols))
	}
	t.Rows, t.Cols, t.Stride = rows, cols, cols
	return t
}

// Vector views a contiguous tensor as one row.
func (t Tensor) Vector() Tensor { return t.Reshape(1, t.Len()) }

func (t Tensor) String() string {
	if t.IsZero() {
		return "no tensor"
	}
	if t.Contiguous() {
		return fmt.Sprintf("%s[%d %d]", t.DType, t.Rows, t.Cols)
	}
	return fmt.Sprintf("%s[%d %d]/%d", t.DType, t.Rows, t.Cols, t.Stride)
}
