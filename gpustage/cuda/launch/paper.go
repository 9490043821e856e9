package launch

import "contraflow/gpustage"

// WorkspaceBytes is what cuBLASLt's documentation recommends for Hopper, for each stream. For other GPUs it recommends no more.
const WorkspaceBytes = 32 << 20

// Besides is what a rank takes of a GPU beside tensors: workspaces of the streams of its four lanes, and, by guesses nobody has measured, 256 MiB
// for recordings (which are bounded to 65,536 launches, at 4 KiB each) and as much for the ops' scratch memory.
const Besides = 4*WorkspaceBytes + 512<<20

// Paper is a GPU that nobody has: it computes nothing, and what a model is predicted to take on it is what it would take on a GPU, where CUDA graphs
// are recorded as they are by default.
type Paper struct{ gpustage.Dry }

// Name is "a GPU".
func (Paper) Name() string { return "a GPU" }

// Info describes it.
func (Paper) Info() gpustage.Info {
	return gpustage.Info{Kind: "paper", Description: "a GPU on paper", TF32: true, Besides: Besides}
}

// Repeats is true: sub-batches are padded to few shapes.
func (Paper) Repeats() bool { return true }

// PackedBytes is a GPU's.
func (Paper) PackedBytes(k, n int, bf16 bool) int { return PackedBytes(k, n, bf16) }

// RoundedCols is a GPU's.
func (Paper) RoundedCols(cols int) int { return BF16Cols(cols) }

// TakesBF16 is true.
func (Paper) TakesBF16() bool { return true }
