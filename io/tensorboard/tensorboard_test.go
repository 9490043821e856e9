package tensorboard

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestRecord: the message byte by byte, as event.proto says. That TensorBoard reads it is what testdata/peers/events.py shows.
func TestRecord(t *testing.T) {
	w, err := Create(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(w.Name())
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(before, []byte("brain.Event:2")) {
		t.Errorf("% x", before)
	}
	if err := w.Write(3, time.Unix(1, 1953125), Scalar{"a", 2.5}, Scalar{"b", -1}); err != nil { // 1 + 1/512 s

		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	after, err := os.ReadFile(w.Name())
	if err != nil {
		t.Fatal(err)
	}
	message := []byte{9, 0, 0, 0, 0, 0, 8, 0xf0, 0x3f, 16, 3, 42, 20, 10, 8, 10, 1, 'a', 21, 0, 0, 0x20, 0x40, 10, 8, 10, 1, 'b', 21, 0, 0, 0x80, 0xbf}
	got := after[len(before):]
	if len(got) != 12+len(message)+4 || got[0] != byte(len(message)) || !bytes.Equal(got[12:12+len(message)], message) {
		t.Errorf("% x", got)
	}
	sum := func(at int) uint32 { return binary.LittleEndian.Uint32(got[at:]) }
	if sum(8) != plainly(got[:8]) || sum(len(got)-4) != plainly(message) || bytes.Count(got[1:8], []byte{0}) != 7 {
		t.Errorf("checksums %x and %x, want %x of the length and %x of the message", sum(8), sum(len(got)-4), plainly(got[:8]), plainly(message))
	}
}

// TestDiscard: the message behind its wall time. Event.step is 300, and its SessionLog has status START.
func TestDiscard(t *testing.T) {
	w, err := Create(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(w.Name())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Discard(300), w.Close()); err != nil {
		t.Fatal(err)
	}
	after, err := os.ReadFile(w.Name())
	if err != nil {
		t.Fatal(err)
	}
	want := []byte{16, 0xac, 2, 58, 2, 8, 1}
	if got := after[len(before):]; len(got) != 12+9+len(want)+4 || got[0] != byte(9+len(want)) || !bytes.Equal(got[12+9:len(got)-4], want) {
		t.Errorf("% x", got)
	}
}

// plainly is CRC-32C bit by bit, masked.
func plainly(b []byte) uint32 {
	c := ^uint32(0)
	for _, x := range b {
		c ^= uint32(x)
		for range 8 {
			c = c>>1 ^ c&1*0x82f63b78
		}
	}
	c = ^c
	return (c>>15 | c<<17) + 0xa282ead8
}

// TestMasked: RFC 3720's check value of CRC-32C, 32 zero bytes, masked by hand.
func TestMasked(t *testing.T) {
	c := uint32(0x8a9136aa)
	if got, want := masked(make([]byte, 32)), (c>>15|c<<17)+0xa282ead8; got != want {
		t.Errorf("%x, want %x", got, want)
	}
}

// Files' names are such as TensorBoard looks for, in the order in which they were begun, in a folder that need not be there; what does not get into one is said.
func TestNothingIsOverwritten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run", "tensorboard")
	names := map[string]bool{}
	for range 3 {
		w, err := Create(dir)
		if err != nil {
			t.Fatal(err)
		}
		names[w.Name()] = true
		var seconds int64
		if _, err := fmt.Sscanf(filepath.Base(w.Name()), "events.out.tfevents.%d.", &seconds); err != nil || time.Since(time.Unix(seconds, 0)).Abs() > time.Minute || filepath.Dir(w.Name()) != dir {
			t.Errorf("%s: %v", w.Name(), err)
		}
		w.Close()
		if err := w.Write(1, time.Now(), Scalar{"a", 1}); !errors.Is(err, os.ErrClosed) {
			t.Errorf("writing to a closed file: %v", err)
		}
	}
	if len(names) != 3 {
		t.Errorf("%v", names)
	}
}

func Example() {
	dir, err := os.MkdirTemp("", "events")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	w, err := Create(dir)
	if err != nil {
		panic(err)
	}
	for step, loss := range []float64{2.3, 2.1} {
		if err := w.Write(step+1, time.Now(), Scalar{"train/loss", loss}); err != nil {
			panic(err)
		}
	}
	fmt.Println(w.Close()) // tensorboard --logdir dir
	// Output: <nil>
}
