//go:build unix

package dataset

import (
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// An index is outside the heap, which the garbage collector would let grow by as much again, and is there for as long as somebody has it.
func TestIndexMemory(t *testing.T) {
	folder := write(t, map[string]string{"a.jsonl": strings.Repeat(`{"q": "query", "p": "positive"}`+"\n", 100_000)})
	d, err := Open(t.Context(), Source{Paths: []string{folder + "/a.jsonl"}, Query: "q", Positive: "p"})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	x, err := d.Index(t.Context(), IndexConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if after := heap(); after > before+1_000_000 { // of 4,000,000 bytes
		t.Errorf("the heap has grown by %d bytes", after-before)
	}
	want := [2]Hash128{HashText("query"), HashText("positive")}
	for row := range d.Rows() {
		if got := x.Hashes(nil, 0, 0, row); [2]Hash128(got) != want {
			t.Fatalf("row %d: %v", row, got)
		}
	}
	page := unsafe.Slice((*byte)(unsafe.Pointer(uintptr(unsafe.Pointer(&x.blocks[0][0].hashes[0]))&^uintptr(os.Getpagesize()-1))), 1)
	there := func() bool { return unix.Madvise(page, unix.MADV_NORMAL) == nil }
	if !there() {
		t.Error("the index is not where it is")
	}
	runtime.KeepAlive(x)
	x = nil
	for end := time.Now().Add(10 * time.Second); there(); time.Sleep(time.Millisecond) {
		if runtime.GC(); time.Now().After(end) {
			t.Fatal("the memory of an index is there after the index")
		}
	}
}

// What goroutines cut from a slab at once, of any size, is zero, in line and nobody else's, until all is given back.
func TestSlab(t *testing.T) {
	s := new(slab)
	var all sync.WaitGroup
	for g := range uint32(4) {
		all.Go(func() {
			var mine [][]uint32
			for n := range 1000 {
				numbers, hashes := cut[uint32](s, n), cut[Hash128](s, n)
				for i := range n {
					if numbers[i] != 0 || hashes[i] != (Hash128{}) {
						t.Error("not zero, or somebody else's")
						return
					}
					numbers[i], hashes[i] = g+1, Hash128{Lo: 1}
				}
				if n > 0 && uintptr(unsafe.Pointer(&hashes[0]))%unsafe.Alignof(hashes[0]) != 0 {
					t.Error("out of line")
				}
				mine = append(mine, numbers)
			}
			for _, numbers := range mine {
				for _, v := range numbers {
					if v != g+1 {
						t.Error("somebody else's")
						return
					}
				}
			}
		})
	}
	all.Wait()
	if large := cut[uint32](s, slabPiece); len(large) != slabPiece {
		t.Errorf("%d numbers, want more than a piece has", len(large))
	}
	pieces := s.pieces
	s.release()
	for _, p := range pieces {
		if unix.Munmap(p) == nil {
			t.Fatal("a piece was not given back")
		}
	}
}
