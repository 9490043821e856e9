package recipe

import (
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/ref"
)

// gpu is one of a machine's two, which are given out in turn.
type gpu struct {
	gpustage.Device
	share gpustage.Share
}

func (g gpu) Info() gpustage.Info {
	_, ranks := g.share.On(2)
	return gpustage.Info{Kind: "gpu", Ranks: ranks}
}
func (gpu) FreeMemory() (int64, error) { return 12 << 30, nil }

// processor is the memory that all ranks of a machine share.
type processor struct{ gpustage.Device }

func (processor) Info() gpustage.Info        { return gpustage.Info{Kind: "cpu", Threads: 1} }
func (processor) FreeMemory() (int64, error) { return 12 << 30, nil }

// A rank plans with what it has of its device: all of a GPU of its own, its part of one that ranks share, and of the host's memory, even
// where it has processors of its own.
func TestFreeMemoryOfARank(t *testing.T) {
	for _, c := range []struct {
		share gpustage.Share
		gpu   bool
		want  int64
	}{
		{gpustage.Share{}, true, 12 << 30},
		{gpustage.Share{Rank: 0, Ranks: 2}, true, 12 << 30},
		{gpustage.Share{Rank: 1, Ranks: 2}, true, 12 << 30},
		{gpustage.Share{Rank: 0, Ranks: 3}, true, 6 << 30},
		{gpustage.Share{Rank: 1, Ranks: 3}, true, 12 << 30},
		{gpustage.Share{Rank: 2, Ranks: 3}, true, 6 << 30},
		{gpustage.Share{Rank: 5, Ranks: 6, Bound: true}, true, 4 << 30},
		{gpustage.Share{}, false, 12 << 30},
		{gpustage.Share{Rank: 1, Ranks: 3}, false, 4 << 30},
		{gpustage.Share{Rank: 1, Ranks: 3, Bound: true}, false, 4 << 30},
	} {
		x := &Run{share: c.share, device: processor{ref.New()}}
		if c.gpu {
			x.device = gpu{ref.New(), c.share}
		}
		if got := x.freeMemory(); got != c.want {
			t.Errorf("%+v, on a GPU %v: plans with %d bytes, want %d", c.share, c.gpu, got, c.want)
		}
	}
}

// A full device is none that does not say what it has left.
func TestFreeMemoryOfFullDevice(t *testing.T) {
	x := &Run{share: gpustage.Share{Ranks: 4}, device: fullDevice{ref.New()}}
	if got := x.freeMemory(); got != 1 {
		t.Errorf("plans with %d bytes", got)
	}
}

type fullDevice struct{ gpustage.Device }

func (fullDevice) FreeMemory() (int64, error) { return 1, nil }

// What is left goes to activations by half on a processor and by fifteen sixteenths on a GPU, unless the recipe says how much.
func TestReplayBudget(t *testing.T) {
	given := Bytes(5 << 30)
	for _, c := range []struct {
		batch Batch
		rest  int64
		gpu   bool
		want  int64
	}{
		{Batch{}, 4 << 30, false, 4 << 30},
		{Batch{}, 4 << 30, true, 7 << 30}, // of 8 GiB
		{Batch{}, 13 << 30, true, 0},
		{Batch{}, 9 << 30, true, 2 << 30},    // of 3 GiB
		{Batch{}, -36 << 30, true, 45 << 30}, // of 48 GiB
		{Batch{}, 11 << 30, true, 1 << 29},
		{Batch{ReplayBudget: &given}, 4 << 30, true, 5 << 30},
		{Batch{Cache: "always"}, 4 << 30, true, 0},
		{Batch{Cache: "never"}, 4 << 30, true, -1},
	} {
		x := &Run{Recipe: Recipe{Batch: c.batch}, device: processor{ref.New()}}
		if c.gpu {
			x.device = gpu{ref.New(), gpustage.Share{}}
		}
		if got := x.budget(Memory{Parameters: 1 << 30, Gradients: c.rest, Activations: 7 << 30}); got != c.want {
			t.Errorf("%+v: %d bytes for activations, want %d", c, got, c.want)
		}
	}
}
