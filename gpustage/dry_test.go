package gpustage_test

import (
	"testing"

	"contraflow/gpustage"
)

// gpu has what is asked of devices on paper.
type gpu struct{ gpustage.Device }

func (gpu) Info() gpustage.Info {
	return gpustage.Info{TF32: true, HostMemory: true, Besides: 7}
}
func (gpu) FreeMemory() (int64, error)       { return 9, nil }
func (gpu) TakesBF16() bool                  { return true }
func (gpu) PackedBytes(k, n int, _ bool) int { return k * n }

// What it would take and could do is what the other one does; what it has left is its own.
func TestDryHabits(t *testing.T) {
	d := gpustage.Dry{Like: gpustage.Dry{Like: gpu{}}, Free: 5}
	if i := d.Info(); !i.TF32 || !i.HostMemory || i.Besides != 7 {
		t.Errorf("%+v", i)
	}
	if free, err := d.FreeMemory(); free != 5 || err != nil {
		t.Errorf("%d bytes left, %v", free, err)
	}
	if !d.TakesBF16() || d.KeepsBF16() || d.PackedBytes(2, 3, true) != 6 {
		t.Error("other habits than the device that it is like")
	}
}

type threads struct {
	gpustage.Device
	n int
}

func (d threads) Info() gpustage.Info { return gpustage.Info{Threads: d.n} }

// A device on paper is a processor or a GPU as the one that it is like: tiles, sub-batches and the memory that is planned differ.
func TestDryIsLike(t *testing.T) {
	for _, n := range []int{0, 3} {
		if got := (gpustage.Dry{Like: threads{n: n}}).Info().Threads; got != n {
			t.Errorf("like a device of %d threads, it has %d", n, got)
		}
	}
}
