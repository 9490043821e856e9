package recipe

import (
	"fmt"

	"contraflow/stages/loss"
)

// Memory is what a run is predicted to hold on its device, in bytes.
type Memory struct {
	Parameters  int64
	Packed      int64 // parameters a second time, as products like them
	Gradients   int64
	Optimizer   int64
	Embeddings  int64 // of a whole batch, with their gradient
	Activations int64 // kept between embed and backward: at most the replay budget
	Working     int64 // of one sub-batch, forward and backward, or of the loss
}

// Total is the sum.
func (m Memory) Total() int64 {
	return m.Parameters + m.Packed + m.Gradients + m.Optimizer + m.Embeddings + m.Activations + m.Working
}

// predict bounds a run's memory from above: it takes every text to be as long as it may be.
func (x *Run) predict() Memory {
	r, m := x.Recipe, x.model
	params, trained := int64(m.Params.Mem.Bytes()), int64(m.Layout.Trained())*int64(m.DType.Size())
	columns := x.data.Columns()
	n := min(int64(r.Batch.GlobalSize), x.data.Rows()) * int64(len(columns))
	longest := max(x.text.QueryLength, x.text.DocumentLength)

	// A sub-batch of the longest rows that its size allows.
	size := x.size()
	rows := size.Rows
	if size.Tokens > 0 {
		rows = max(1, size.Tokens/longest)
	}
	rows = int(min(int64(rows), n))
	lengths := make([]int, rows)
	for i := range lengths {
		lengths[i] = longest
	}
	sub := m.Memory(lengths)
	subs := (n + int64(rows) - 1) / int64(rows)

	mem := Memory{
		Parameters: params, Packed: m.PackedBytes(true), Gradients: trained, Optimizer: trained * int64(r.update(1).Optimizer.States()) / int64(r.Mesh.Shard),
		Embeddings: 2 * n * int64(m.EmbeddingSize()) * int64(m.DType.Size()),
	}
	work := int64(max(sub.Backward, r.loss().Memory(loss.Size{Rows: r.Batch.GlobalSize, Sequences: int(n), Dim: m.EmbeddingSize(), Normalized: m.Head.Normalize, DType: m.DType})))
	mem.Working = work
	mem.Activations = (subs - 1) * int64(sub.Kept)
	if b := x.budget(mem); b >= 0 {
		mem.Activations = min(mem.Activations, b)
	}
	return mem
}

// budget is the replay budget: what the recipe says, or half of what the device has left.
func (x *Run) budget(rest Memory) int64 {
	switch r := x.Recipe.Batch; {
	case r.Cache == "always":
		return 0
	case r.Cache == "never":
		return -1
	case r.ReplayBudget > 0:
		return int64(r.ReplayBudget)
	}
	rest.Activations = 0
	free := x.freeMemory()
	if free == 0 {
		return defaultBudget
	}
	return max(0, (free-rest.Total()+rest.Parameters)/2)
}

// defaultBudget is for systems that don't say how much memory they have.
const defaultBudget = 2 << 30

// freeMemory is what the device has left for this rank; 0 if it does not say.
func (x *Run) freeMemory() int64 {
	return x.device.Info().FreeMemory / int64(max(1, x.share.Ranks))
}

// check refuses what can't fit.
func (m Memory) check(free int64) error {
	need := m.Total() - m.Parameters // these are there already
	if free == 0 || need <= free {
		return nil
	}
	return fmt.Errorf("the run needs %s more and the device has %s: a smaller batch.sub_batch (%s for one), batch.replay_budget (%s kept) or batch.global_size (%s of embeddings) helps",
		Size(need), Size(free), Size(m.Working), Size(m.Activations), Size(m.Embeddings))
}

// Size prints an amount of memory for people.
func Size(b int64) string {
	switch {
	case b >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(b)/(1<<30))
	case b >= 1<<20:
		return fmt.Sprintf("%.0f MiB", float64(b)/(1<<20))
	}
	return fmt.Sprintf("%.0f KiB", float64(b)/(1<<10))
}
