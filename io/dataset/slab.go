package dataset

import (
	"sync"
	"unsafe"
)

// slab is memory outside the Go heap where the system allows it: on Windows it is in the heap. An index lives as long as a run, and of a heap with
// gigabytes that stay the garbage collector lets as many again gather before it collects.
type slab struct {
	mu     sync.Mutex
	pieces [][]byte // mapped
	free   []byte   // of the last one
}

const slabPiece = 4 << 20

// cut gives zeroed memory for n numbers, until the slab is released.
func cut[T Hash128 | uint64 | uint32](s *slab, n int) []T {
	var zero T
	const align = int(unsafe.Alignof(Hash128{}))
	bytes := (n*int(unsafe.Sizeof(zero)) + align - 1) / align * align
	if n == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if bytes > len(s.free) {
		piece, err := mapMemory(max(bytes, slabPiece))
		if err != nil {
			return make([]T, n)
		}
		s.pieces, s.free = append(s.pieces, piece), piece
	}
	out := unsafe.Slice((*T)(unsafe.Pointer(&s.free[0])), n)
	s.free = s.free[bytes:]
	return out
}

// release gives all of it back.
func (s *slab) release() {
	for _, p := range s.pieces {
		unmapMemory(p)
	}
	s.pieces, s.free = nil, nil
}
