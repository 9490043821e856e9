package gpustage_test

import (
	"testing"

	"contraflow/gpustage"
)

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
