//go:build linux && amd64

package onhost

import (
	"bytes"
	"strings"
	"testing"

	"contraflow/gpustage"
)

// What an op takes of scratch memory has nothing in it, each time that it is taken, and what the op makes there stays.
func TestSpoil(t *testing.T) {
	d := Open(t, Plain)
	d.Apart = true
	stream, err := d.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	s, taken := stream.(*Stream), 0
	spoils := s.Taken
	var last gpustage.Tensor
	s.Taken = func(x gpustage.Tensor) {
		last, taken = x, taken+1
		spoils(x)
		all := x.Mem.(*gpustage.HostMemory).Data()
		if want := x.Len() * x.DType.Size(); x.Off != 0 || len(all) != want || !bytes.Equal(all, bytes.Repeat([]byte{0xff}, want)) {
			t.Errorf("%v of %d bytes: not spoilt", x, len(all))
		}
	}
	x, err := gpustage.NewTensor(d, gpustage.F32, 1, 20000)
	if err != nil {
		t.Fatal(err)
	}
	sum, err := gpustage.NewTensor(d, gpustage.F64, 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	s.Fill(x, 2)
	for range 2 {
		s.SumSquares(sum, x)
	}
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	parts, got := gpustage.Slice[float64](last), gpustage.Slice[float64](sum)[0]
	if taken != 2 || got != 2*80000 || len(parts) != 3 || parts[0] != 4*8192 {
		t.Errorf("taken %d times, the sum is %v of parts %v", taken, got, parts)
	}
}

// Blocks that a GPU refuses for their threads or these threads' registers are refused.
func TestBlocks(t *testing.T) {
	s := &Stream{device: &Device{}}
	for kernel, threads := range map[string]int{"fill": 257, "flash_64": 129, "norm_backward": 769} {
		if err := s.run(kernel, [3]int{1, 1, 1}, [3]int{threads, 1, 1}, 0, nil, nil); err == nil || !strings.Contains(err.Error(), kernel+"'s launch bounds allow") {
			t.Errorf("%s by %d threads: error %v", kernel, threads, err)
		}
	}
}
