//go:build unix

package dataset

import (
	"runtime"
	"strings"
	"testing"
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
}
