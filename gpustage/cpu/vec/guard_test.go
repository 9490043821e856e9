//go:build unix

package vec

import (
	"os"
	"runtime/debug"
	"testing"
	"unsafe"

	"contraflow/gpustage"

	"golang.org/x/sys/unix"
)

// guardedPage is a page of elements between two that must not be touched.
func guardedPage[T float32 | uint16](t *testing.T) []T {
	page := os.Getpagesize()
	mem, err := unix.Mmap(-1, 0, 3*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(mem); err != nil {
			t.Error(err)
		}
	})
	for _, guard := range [][]byte{mem[:page], mem[2*page:]} {
		if err := unix.Mprotect(guard, unix.PROT_NONE); err != nil {
			t.Fatal(err)
		}
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&mem[page])), page/int(unsafe.Sizeof(T(0))))
}

// Nothing may be read or written beyond a slice's last element or before its first, where a tensor's memory may end.
func TestGuardPages(t *testing.T) {
	var pages [8][]float32
	for i := range pages {
		pages[i] = guardedPage[float32](t)
		for j := range pages[i] {
			pages[i][j] = 0.5
		}
	}
	halves, ids := guardedPage[uint16](t), make([]int32, 1024)
	forEach(t, func(t *testing.T, k *Kernels) {
		defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // of this goroutine
		for _, n := range lengths {
			if n == 0 || n > 300 {
				continue
			}
			for _, atEnd := range []bool{false, true} {
				at := func(page, n int) []float32 {
					if atEnd {
						return pages[page][len(pages[page])-n:]
					}
					return pages[page][:n:n]
				}
				half := halves[:n:n]
				if atEnd {
					half = halves[len(halves)-n:]
				}
				matrix := func(page, rows int) Rows { return Rows{at(page, (rows-1)*(n+1)+n), n + 1} }
				y, a, b, c := at(0, n), at(1, n), at(2, n), at(3, n)
				calls := map[string]func(){
					"dot":     func() { k.Dot(a, b) },
					"squares": func() { k.SumSquares(a) },
					"largest": func() { k.Max(a) },
					"sum exp": func() { k.SumExp(a, 1) },
					"mask":    func() { k.MaskRow(y, 1, ids[1024-n:]) },
					"rotate":  func() { k.Rotate(y, c, a, b, at(4, n), at(5, n)) },
					"dropout": func() { k.Dropout(y, a, b, 16, Dropout{Threshold: 1 << 14, Scale: 1}) },
					"to bf16": func() { k.ToBF16(half, a) },
					"widen":   func() { k.FromBF16(y, half) },
					"adamw":   func() { k.AdamW(y, a, b, c, gpustage.AdamW{LR: 1e-3, Beta1: 0.5, Beta2: 0.5, Eps: 1, Step: 1}) },
					"sgd":     func() { k.SGD(y, a, b, gpustage.SGD{LR: 1e-3, Momentum: 0.5}) },
					"norm":    func() { k.LayerNorm(matrix(0, 2), at(6, 2), at(7, 2), matrix(1, 2), b, c, 1) },
					"norm backward": func() {
						k.LayerNormBackward(matrix(0, 2), c, at(5, n), matrix(1, 2), matrix(4, 2), at(6, 2), at(7, 2), b)
					},
				}
				if n <= 100 {
					calls["add rows"] = func() { k.AddRows(y, matrix(1, 9), 9) }
				}
				for name, f := range pointwiseFunctions(k) {
					calls[name] = func() { f(y, a, b) }
				}
				for name, call := range calls {
					func() {
						defer func() {
							if err := recover(); err != nil {
								t.Fatalf("%s of %d elements, at the end of memory: %t: %v", name, n, atEnd, err)
							}
						}()
						call()
					}()
				}
			}
		}
	})
}
