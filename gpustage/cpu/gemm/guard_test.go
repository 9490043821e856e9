//go:build unix

package gemm

import (
	"os"
	"runtime/debug"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// guarded is n elements that end where a page that must not be touched begins, or begin where one ends.
func guarded[T Float](t *testing.T, x []T, atEnd bool) []T {
	page, element := os.Getpagesize(), int(unsafe.Sizeof(T(0)))
	size := (len(x)*element + page - 1) / page * page
	mem, err := unix.Mmap(-1, 0, size+2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(mem); err != nil {
			t.Error(err)
		}
	})
	for _, guard := range [][]byte{mem[:page], mem[page+size:]} {
		if err := unix.Mprotect(guard, unix.PROT_NONE); err != nil {
			t.Fatal(err)
		}
	}
	inner := mem[page : page+size]
	if atEnd {
		inner = inner[size-element*len(x):]
	}
	y := unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(inner))), len(x))
	copy(y, x)
	return y
}

// Nothing may be read or written beyond a matrix's last element or before its first, nor of B beyond what PackedSize says it takes.
func TestGuardPages(t *testing.T) {
	forEachKernel(t, inGuards[float32])
	forEachKernel(t, inGuards[float64])
}

func inGuards[T Float](t *testing.T, k Kernels) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // of this goroutine
	r := newRand(t)
	ws := thorough[T](k)
	for range 250 {
		j := randomJob[T](r, 1+r.IntN(70), 1+r.IntN(70), 1+r.IntN(70))
		j.BF16 = !isFloat64[T]() && r.IntN(2) == 0
		j.A = guarded(t, j.A, r.IntN(2) == 0)
		j.B = guarded(t, j.B, r.IntN(2) == 0)
		j.C = guarded(t, j.C, r.IntN(2) == 0)
		func() {
			defer func() {
				if err := recover(); err != nil {
					t.Fatalf("%s: %v", describe(j), err)
				}
			}()
			way := r.IntN(3) * 2
			if err := verify(j, func() error {
				if way < 4 {
					return run(ws, j, way)
				}
				j.Packed = NewPacked(guarded(t, make([]T, ws.PackedSize(j.K, j.N, j.BF16)), r.IntN(2) == 0))
				if err := ws.Pack(j.Packed, j.B, j.LDB, j.TransB, j.K, j.N, j.BF16, threads(2)); err != nil {
					return err
				}
				return ws.Multiply(j, threads(2))
			}); err != nil {
				t.Fatal(err)
			}
		}()
	}
}
