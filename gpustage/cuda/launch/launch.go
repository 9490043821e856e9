// Package launch is how ops become kernel launches: which kernel, over which grid, with which arguments, and the order of the launches
// that make one op.
//
// It needs no GPU and no build tag. A Driver starts kernels and multiplies matrices; package cuda has the real one, package onhost
// one that runs the same kernels on the processor, and both pass the conformance suite through the code here. Work that comes again is
// recorded, where the driver can: see repeat.go.
//
// # What a stream costs
//
// An op is one launch, but for: sums over rows, also beside products, and norms' backward passes (a second one adds up the parts of each sum; within
// Repeat, of many ops' sums together: see sums.go), attention's backward pass (of sequences of up to 128 tokens one, of others two on tensor cores,
// three elsewhere and at 256 features; with biases of positions two or one more), and products whose surroundings cuBLASLt can't do. Those are
// cuBLASLt's with a bias, a residual or an accumulation, and where inputs are rounded with the tanh approximation of GELU or its derivative; another
// activation or dropout is one more pass over the result. In bf16 mode
// inputs that are of f32 are rounded into scratch memory first; parameters are rounded once per update (gpustage.Forms), and the dy of a linear
// layer once for both of its products (gpustage.Rounded), where the gradient of a bias of f32's dy costs no pass: its sums are made while dy is
// rounded. So is a bias of a product whose result is of bf16, once per update.
//
// # Types
//
// Arithmetic is on f32, as training has it. Sums of squares are f64. Copies convert between all types. Operands of products and attention may
// be of bf16 (halves.go).
package launch

import (
	"cmp"
	"fmt"
	"iter"
	"math"
	"slices"
	"unsafe"

	"contraflow/gpustage"
)

type tensor = gpustage.Tensor

// Driver does things on a device, in the order of the calls. One that is a Recorder as well can do repeated work as one launch; see Repeat.
type Driver interface {
	// Launch starts a kernel. Argument i begins at words[at[i]].
	Launch(kernel string, grid, block [3]int, shared int, words []uint64, at []int32) error
	// Fuses tells whether Multiply takes a product with its epilogue, or its bias. It is asked between any two other calls.
	Fuses(p Product) (bool, error)
	// Multiply is what p says. Its error wraps ErrRefused if the library does not have the epilogue or the bias after all.
	Multiply(p Product) error
	// Address is where memory begins on the device.
	Address(m gpustage.Memory) uintptr
}

// Matrix is a row-major matrix at a place on the device.
type Matrix struct {
	At                 uintptr
	Rows, Cols, Stride int
}

// Product is c[M, N] = epilogue(alpha * op(a) x op(b) + bias + beta * d), with f32 sums. d may be c. All are f32, but for what says otherwise.
type Product struct {
	C, A, B, D     Matrix
	TransA, TransB bool
	BF16           bool // a and b are bf16
	Half           bool // c, d, bias and aux are bf16; a and b too
	TF32           bool // a and b are f32, and may be rounded to TF32
	Alpha, Beta    float32
	Bias           uintptr // [1, N], or 0; of ColumnSums the result [1, M], of c's type
	Epilogue       Epilogue
	Aux            Matrix // [M, N], of epilogues
}

// Epilogue is a function of x, a product's result, in which it ends, or what it does besides.
type Epilogue uint8

const (
	NoEpilogue Epilogue = iota
	GELU                // c = gelu(x), the tanh approximation; aux = x
	DGELU               // c = x * gelu'(aux)
	ColumnSums          // c = x; Bias = the sums of op(a)'s rows, a's columns where a is transposed
)

// kind is of a's elements, for errors.
func (p Product) kind() string {
	switch {
	case p.BF16:
		return "bf16"
	case p.TF32:
		return "tf32"
	}
	return "f32"
}

// failed is what a product's error says.
func (p Product) failed(err error) error {
	return fmt.Errorf("matmul: [%d %d] from %s[%d %d] and [%d %d]: %w", p.C.Rows, p.C.Cols, p.kind(), p.A.Rows, p.A.Cols, p.B.Rows, p.B.Cols, err)
}

// Stream turns ops into launches. A device's stream embeds it.
type Stream struct {
	// Separate launches what could be part of a product, or of what prepares it, on its own, and embeddings step by step: to measure what
	// that saves.
	Separate bool

	// Warpgroups says that the device has hopper.cu's kernels, which do what those of flash.cu do.
	Warpgroups bool

	// Apart gives each tensor of scratch memory an allocation of its own, which a device that checks accesses sees a kernel leave.
	Apart bool

	// Taken is told of each tensor of scratch memory before an op has it, which then has nothing that anybody wrote; may be nil.
	Taken func(gpustage.Tensor)

	// Piece is how many elements of a vector a kernel takes, a multiple of squares; 0: as many as it counts.
	Piece int

	// Multiprocessors is for how many norms cut their rows; 0: 132, a Hopper's, on every GPU, as sums of parts then have the same bits.
	Multiprocessors int

	device gpustage.Device
	driver Driver
	err    error
	op     pool        // scratch memory of the running op
	spare  pool        // and of a product that has been refused
	words  [512]uint64 // of a launch's arguments: 4 KB is the most that every driver takes
	at     [48]int32   // where they begin

	sums    sums
	repeats repeats
}

// pool is scratch memory.
type pool struct {
	chunks []gpustage.Memory
	chunk  int // the one in use
	used   int // bytes of it
}

func (r *pool) clear() { r.chunk, r.used = 0, 0 }

// NewStream makes the ops of a stream.
func NewStream(d gpustage.Device, driver Driver) *Stream {
	return &Stream{device: d, driver: driver, repeats: newRepeats(d, driver)}
}

// Device returns the device that opened the stream.
func (s *Stream) Device() gpustage.Device { return s.device }

// Fail keeps the first error.
func (s *Stream) Fail(err error) {
	if s.err == nil {
		s.err = err
	}
}

// Err is the first error.
func (s *Stream) Err() error { return s.err }

// Free gives scratch memory and recordings back.
func (s *Stream) Free() (err error) {
	err = s.repeats.free()
	for _, r := range []*pool{&s.op, &s.spare, &s.sums.pool} {
		for _, m := range r.chunks {
			if e := m.Free(); err == nil {
				err = e
			}
		}
		*r = pool{}
	}
	return err
}

// Refuse is what every op begins with: it reports whether the op must not run, because its check has failed or an earlier op's has. What
// scratch memory the op before had is free again. An op with several checks calls it for each, before it takes any.
func (s *Stream) Refuse(check error) bool {
	s.Fail(check)
	s.op.clear() // scratch memory is an op's own: in a stream's order the next may use it again
	if s.sums.n == 0 {
		s.sums.pool.clear()
	}
	return s.err != nil
}

// f32 refuses tensors of other types.
func (s *Stream) f32(op string, t tensor) bool {
	if t.DType != gpustage.F32 {
		s.Fail(fmt.Errorf("%s: %s tensors are not supported on this device", op, t.DType))
	}
	return s.err == nil
}

// scratch takes memory for the running op.
func (s *Stream) scratch(t gpustage.DType, rows, cols int) tensor {
	return s.take(&s.op, t, rows, cols)
}

func (s *Stream) take(r *pool, t gpustage.DType, rows, cols int) tensor {
	n := rows * cols * t.Size()
	if !s.Apart {
		n = (n + 255) &^ 255
	}
	for ; r.chunk < len(r.chunks); r.chunk, r.used = r.chunk+1, 0 {
		if has := r.chunks[r.chunk].Bytes(); r.used+n <= has && (!s.Apart || has == n) {
			break
		}
	}
	if r.chunk == len(r.chunks) {
		size := n
		if !s.Apart {
			size = 1 << 20
			for _, m := range r.chunks {
				size += m.Bytes() // each as large as all before: soon the first that fits is the last
			}
			size = max(size, n)
		}
		m, err := s.device.Alloc(size)
		if err != nil {
			s.Fail(fmt.Errorf("scratch memory of %d bytes: %w", size, err))
			return tensor{}
		}
		r.chunks = append(r.chunks, m)
	}
	x := tensor{Mem: r.chunks[r.chunk], Off: r.used / t.Size(), Rows: rows, Cols: cols, Stride: cols, DType: t}
	r.used += n
	if s.Taken != nil {
		s.Taken(x)
	}
	return x
}

// address is a tensor's, 0 for an absent one.
func (s *Stream) address(t tensor) uintptr {
	if t.IsZero() {
		return 0
	}
	return s.driver.Address(t.Mem) + uintptr(t.Off*t.DType.Size())
}

// flat is a tensor whose stride a kernel doesn't ask for.
type flat tensor

// launch starts a kernel. A tensor is a pointer and a stride. An empty grid is an op's of an empty tensor: there is nothing to do, and CUDA would
// call it an invalid value.
func (s *Stream) launch(kernel string, grid, block [3]int, shared int, args ...any) {
	if s.err != nil || grid[0] == 0 || grid[1] == 0 || grid[2] == 0 {
		return
	}
	s.settle(args...)
	n, used := 0, 0
	box := func(vs ...uint64) {
		if n == len(s.at) || used+len(vs) > len(s.words) {
			s.Fail(fmt.Errorf("%s: more than %d arguments, or more than %d bytes of them", kernel, len(s.at), 8*len(s.words)))
			return
		}
		s.at[n] = int32(used)
		used += copy(s.words[used:], vs)
		n++
	}
	number := func(v int) {
		if int64(int32(v)) != int64(v) {
			s.Fail(fmt.Errorf("%s: a size of %d is beyond this device's kernels", kernel, v))
		}
		box(uint64(uint32(v)))
	}
	for _, a := range args {
		switch v := a.(type) {
		case tensor:
			if v.Rows <= 1 {
				v.Stride = 0 // nobody asks for it, and a long vector's does not fit
			}
			box(uint64(s.address(v)))
			number(v.Stride)
		case flat:
			box(uint64(s.address(tensor(v))))
		case Matrix:
			box(uint64(v.At))
			if v.Rows <= 1 {
				v.Stride = 0
			}
			number(v.Stride)
		case int:
			number(v)
		case uint32:
			box(uint64(v))
		case uint64:
			box(v)
		case float32:
			box(uint64(math.Float32bits(v)))
		case bool:
			box(uint64(flag(v)))
		case *attentionArgs:
			box(unsafe.Slice((*uint64)(unsafe.Pointer(v)), unsafe.Sizeof(*v)/8)...)
		case *farArgs:
			box(unsafe.Slice((*uint64)(unsafe.Pointer(v)), unsafe.Sizeof(*v)/8)...)
		case *sumArgs:
			box(unsafe.Slice((*uint64)(unsafe.Pointer(v)), unsafe.Sizeof(*v)/8)...)
		case *updateArgs:
			box(unsafe.Slice((*uint64)(unsafe.Pointer(v)), unsafe.Sizeof(*v)/8)...)
		default:
			panic(fmt.Sprintf("launch: an argument of type %T", a))
		}
	}
	if s.err != nil {
		return
	}
	if err := s.start(kernel, grid, block, shared, s.words[:used], s.at[:n]); err != nil {
		s.Fail(fmt.Errorf("%s: %w", kernel, err))
	}
}

func flag(b bool) int32 {
	if b {
		return 1
	}
	return 0
}

func ceil(n, d int) int { return (n + d - 1) / d }

// wide tells whether all tensors' rows may be moved four elements at a time.
func (s *Stream) wide(ts ...tensor) bool {
	for _, t := range ts {
		if !t.IsZero() && (s.address(t)%uintptr(4*t.DType.Size()) != 0 || t.Rows > 1 && t.Stride%4 != 0) {
			return false
		}
	}
	return true
}

const (
	block      = 256
	mostBlocks = 1<<16 - 1 // a grid has no more in y, and needs no more in x: threads take several elements then
)

// longest is how many elements of a vector a kernel takes: all parameters of a model are one, and kernels count in 32 bits.
func (s *Stream) longest() int { return cmp.Or(s.Piece, 1<<30) }

// pieces are tensors of one shape as pointwise kernels take them: without gaps they are vectors, and of long ones so many elements at a time.
func (s *Stream) pieces(ts ...tensor) iter.Seq[[]tensor] {
	return func(yield func([]tensor) bool) {
		for _, t := range ts {
			if !t.IsZero() && !t.Contiguous() {
				yield(ts)
				return
			}
		}
		n, most := ts[0].Len(), s.longest()
		for lo := 0; lo < n; lo += most {
			part := slices.Clone(ts)
			for i, t := range part {
				if !t.IsZero() {
					part[i] = t.Vector().Columns(lo, min(n, lo+most))
				}
			}
			if !yield(part) {
				return
			}
		}
	}
}

// quads runs a pointwise kernel over tensors of one shape. extra come after the tensors.
func (s *Stream) quads(kernel string, ts []tensor, extra ...any) {
	for part := range s.pieces(ts...) {
		var args []any
		for _, t := range part {
			args = append(args, t)
		}
		args = append(args, extra...)
		s.pointwise(kernel, 4, part[0].Rows, part[0].Cols, append(args, s.wide(part...))...)
	}
}

// pointwise runs a kernel over [rows, cols], its last two arguments, whose threads take step neighbors of a row at a time (EACH and EACH_QUAD of
// common.cuh). Blocks have a row's steps, or an even part of them, in x, rounded up to whole warps, and as many rows in y as 256 threads have room for.
func (s *Stream) pointwise(kernel string, step, rows, cols int, args ...any) {
	if rows == 0 || cols == 0 {
		return
	}
	steps := ceil(cols, step)
	x := 32 * ceil(ceil(steps, ceil(steps, block)), 32)
	y := min(rows, block/x)
	s.launch(kernel, [3]int{min(ceil(steps, x), mostBlocks), min(ceil(rows, y), mostBlocks), 1}, [3]int{x, y, 1}, 0, append(args, rows, cols)...)
}

const rowBlock = 128 // four warps

// eachRow runs a kernel that has a warp for each of n rows.
func (s *Stream) eachRow(kernel string, n int, args ...any) {
	s.launch(kernel, [3]int{ceil(n, rowBlock/32), 1, 1}, [3]int{rowBlock, 1, 1}, 0, args...)
}
