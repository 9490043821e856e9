package gpustage

import "testing"

// host is a device with nothing but memory.
type host struct{ Device }

func (host) Alloc(bytes int) (Memory, error) { return AllocHost(bytes) }

// What freed forms took is room again.
func TestFormsRoom(t *testing.T) {
	v := NewVersion(100)
	f, other := v.Forms(), v.Forms()
	get := func(f *Forms) bool {
		t.Helper()
		x, err := f.Get(host{}, 0, 60, func(m Memory) any { return m }, func(any) error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		return x != nil
	}
	if !get(f) || get(other) || !get(f) {
		t.Fatal("of 100 bytes there is room for one form of 60, and it stays")
	}
	if err := v.Free(); err != nil {
		t.Fatal(err)
	}
	if !get(other) || get(f) {
		t.Error("of 100 bytes that are free again there is room for one form of 60")
	}
}
