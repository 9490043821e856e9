package gpustage

import "fmt"

// Arena is one allocation that a step's tensors live in, so that the steady state allocates nothing. It is a stack with
// two ends: what must outlive a call (activations kept for the backward pass) grows from the bottom, what a call needs
// only while it runs grows from the top. Sub-batches are embedded upwards and back-propagated downwards, so the kept ones
// come off in the reverse order and a stack is all it takes.
//
// An arena belongs to one thread.
type Arena struct {
	mem    Memory
	lo, hi int // bytes taken from the bottom; first byte taken at the top
	peak   int // bytes
	size   int
}

const arenaAlign = 64 // bytes: a cache line and a vector register

// NewArena takes bytes from the device.
func NewArena(d Device, bytes int) (*Arena, error) {
	bytes = alignUp(bytes)
	m, err := d.Alloc(bytes)
	if err != nil {
		return nil, fmt.Errorf("an arena of %d bytes: %w", bytes, err)
	}
	return &Arena{mem: m, hi: bytes, size: bytes}, nil
}

func alignUp(n int) int { return (n + arenaAlign - 1) &^ (arenaAlign - 1) }

// Mark is a state of the arena to return to.
type Mark struct{ lo, hi int }

// Mark returns the present state.
func (a *Arena) Mark() Mark { return Mark{a.lo, a.hi} }

// Release gives back everything taken since m.
func (a *Arena) Release(m Mark) { a.lo, a.hi = m.lo, m.hi }

// ReleaseScratch gives back what was taken from the top since m.
func (a *Arena) ReleaseScratch(m Mark) { a.hi = m.hi }

// Reserve takes from the bottom what is missing to so many bytes since m: what comes next then has the same place whatever came before.
func (a *Arena) Reserve(m Mark, bytes int) {
	a.lo = max(a.lo, m.lo+alignUp(bytes))
	a.peak = max(a.peak, a.Used())
}

// Size is the number of bytes that the arena holds, Used those taken now, Peak the most that were ever taken at once.
func (a *Arena) Size() int { return a.size }
func (a *Arena) Used() int { return a.lo + a.size - a.hi }
func (a *Arena) Peak() int { return a.peak }

// Free gives the arena's memory back to the device.
func (a *Arena) Free() error { return a.mem.Free() }

// Keep takes a tensor from the bottom. A full arena is an error of the stream, wrapping ErrOutOfMemory, and gives no tensor.
// The tensor holds whatever was there before.
func (a *Arena) Keep(s Stream, t DType, rows, cols int) Tensor {
	n := alignUp(rows * cols * t.Size())
	if a.full(s, n) {
		return Tensor{}
	}
	at := a.lo
	a.lo += n
	return a.tensor(at, t, rows, cols)
}

// Scratch takes a tensor from the top, otherwise like Keep.
func (a *Arena) Scratch(s Stream, t DType, rows, cols int) Tensor {
	n := alignUp(rows * cols * t.Size())
	if a.full(s, n) {
		return Tensor{}
	}
	a.hi -= n
	return a.tensor(a.hi, t, rows, cols)
}

func (a *Arena) full(s Stream, n int) bool {
	if a.lo+n > a.hi {
		s.Fail(fmt.Errorf("%w: the arena holds %d bytes, %d are taken, %d more are needed", ErrOutOfMemory, a.size, a.Used(), n))
		return true
	}
	a.peak = max(a.peak, a.Used()+n)
	return false
}

func (a *Arena) tensor(at int, t DType, rows, cols int) Tensor {
	return Tensor{Mem: a.mem, Off: at / t.Size(), Rows: rows, Cols: cols, Stride: cols, DType: t}
}
