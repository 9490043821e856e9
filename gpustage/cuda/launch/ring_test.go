package launch

import (
	"errors"
	"math/rand/v2"
	"testing"
)

// A device that reads late finds what was written for it, however large the pieces are; the host waits for it only when it comes to what
// has not been read, and every moment is given back once.
func TestRing(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 9))
	buffer := make([]byte, 16*ringAlign)
	r := Ring[int]{Size: len(buffer)}
	type copying struct {
		at, n int
		value byte
	}
	var queue []copying // what the device was told to read, by moment
	read, waits := 0, 0
	freed := map[int]int{}
	until := func(e int) error {
		for ; read <= e; read++ {
			c := queue[read]
			for i, v := range buffer[c.at : c.at+c.n] {
				if v != c.value {
					t.Fatalf("piece %d: byte %d of %d is %d, want %d", read, i, c.n, v, c.value)
				}
			}
		}
		return nil
	}
	free := func(e int) {
		if freed[e]++; e >= read {
			t.Fatalf("moment %d is free before it has come", e)
		}
	}
	for range 3000 {
		n := 1 + rng.IntN(ringAlign)
		if rng.IntN(4) == 0 {
			n = 1 + rng.IntN(r.Size)
		}
		e := len(queue)
		at, err := r.Take(n, func(e int) error {
			if waits++; e < read {
				t.Fatalf("waited for piece %d, which has been read", e)
			}
			return until(e)
		}, free)
		if err != nil || at+n > r.Size {
			t.Fatal(at, n, err)
		}
		queue = append(queue, copying{at, n, byte(e)})
		for i := range n {
			buffer[at+i] = byte(e)
		}
		r.Put(at, n, e)
	}
	until(len(queue) - 1)
	r.Drop(free)
	for e := range queue {
		if freed[e] != 1 {
			t.Fatalf("moment %d was given back %d times", e, freed[e])
		}
	}
	// Small pieces go round once before the host waits.
	r, waits = Ring[int]{Size: len(buffer)}, 0
	for e := range 16 {
		if _, err := r.Take(100, func(int) error { return errors.New("it waits") }, nil); err != nil {
			t.Fatalf("piece %d: %v", e, err)
		}
		r.Put(e*ringAlign, 100, e)
	}
	if _, err := r.Take(100, func(e int) error { return errors.New("it waits") }, nil); err == nil {
		t.Error("the first piece was overwritten")
	}
}
