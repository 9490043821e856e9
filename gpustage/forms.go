package gpustage

import (
	"errors"
	"sync"
	"sync/atomic"
)

// Parameters meet many products before they change, so a device may keep forms of them that its kernels like: packed panels
// on a processor, a bf16 copy on a GPU. Who owns the parameters keeps a Version, gives each matrix Forms of it, passes them
// with every product (MatMul.Forms), and calls Changed when the parameters have changed.

// Version counts the changes of a set of parameters.
type Version struct {
	n     atomic.Uint64
	room  atomic.Int64 // bytes that forms may still take
	mu    sync.Mutex
	forms []*Forms
}

// NewVersion starts at a first version. All forms together take at most so many bytes; matrices that come later go without.
func NewVersion(limit int64) *Version {
	v := &Version{}
	v.n.Store(1)
	v.room.Store(limit)
	return v
}

// Changed tells that parameters were written. It must be ordered with the ops that read them, as the writing itself is.
func (v *Version) Changed() { v.n.Add(1) }

// Forms is what devices have made of one matrix.
func (v *Version) Forms() *Forms {
	v.mu.Lock()
	defer v.mu.Unlock()
	f := &Forms{version: v}
	v.forms = append(v.forms, f)
	return f
}

// Free gives the memory of all forms back.
func (v *Version) Free() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	var errs []error
	for _, f := range v.forms {
		for _, x := range f.held {
			v.room.Add(int64(x.mem.Bytes())) // of freed memory it may be 0
			errs = append(errs, x.mem.Free())
		}
		f.held = nil
	}
	return errors.Join(errs...)
}

// Forms holds the forms of one matrix. Its methods are safe for concurrent use.
type Forms struct {
	version *Version
	mu      sync.Mutex
	held    []*form
}

type form struct {
	key  any
	at   uint64 // version that the memory holds
	mem  Memory
	made any
}

// Get returns the form of the given key, current. On first use it allocates the form's memory on d and wraps it with open;
// whenever the parameters have changed it calls fill. It returns nil where there is no room.
func (f *Forms) Get(d Device, key any, bytes int, open func(Memory) any, fill func(form any) error) (any, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var x *form
	for _, h := range f.held {
		if h.key == key {
			x = h
		}
	}
	if x == nil {
		if f.version.room.Add(-int64(bytes)) < 0 {
			f.version.room.Add(int64(bytes))
			return nil, nil
		}
		mem, err := d.Alloc(bytes)
		if err != nil {
			return nil, err
		}
		x = &form{key: key, mem: mem, made: open(mem)}
		f.held = append(f.held, x)
	}
	if n := f.version.n.Load(); x.at != n {
		if err := fill(x.made); err != nil {
			return nil, err
		}
		x.at = n
	}
	return x.made, nil
}

// Packer is a device that keeps forms of parameters. PackedBytes is what the form of a [k, n] matrix takes.
type Packer interface {
	PackedBytes(k, n int, bf16 bool) int
}

// KeepsBF16 tells whether what waits for a backward pass, and is rounded to bf16 when it is used, waits as a copy in bf16 on d: where the
// memory is worth more than a pass over it.
func KeepsBF16(d Device) bool {
	k, ok := d.(interface{ KeepsBF16() bool })
	return ok && k.KeepsBF16()
}

// TakesBF16 tells whether d's ops read and write operands of products and attention in bf16: see Ops. Nothing is copied then, and KeepsBF16 does
// not matter.
func TakesBF16(d Device) bool {
	k, ok := d.(interface{ TakesBF16() bool })
	return ok && k.TakesBF16()
}

// Rounded is room for a matrix in bf16, which products share whose a it is (MatMul.Rounded): the first fills it, the others read it, on devices
// that make such copies. The matrix must stay as it is from the first to the last.
type Rounded struct {
	Room Tensor // BF16 [rows of a, Rounder's columns]
	Full bool
}

// Rounder is a device that makes copies in bf16 of what it multiplies. RoundedCols is how many columns that of a matrix has.
type Rounder interface {
	RoundedCols(cols int) int
}
