package loss

import (
	"fmt"
	"slices"

	"contraflow/gpustage"
)

// ByDataset computes each batch with the loss of the dataset that its rows are from, by [Batch.Dataset]. Sums and weights of a step's batches add
// up whatever their losses are, so a loss counts as much as the rows it sees.
type ByDataset []RowSplitter

// SplitsRows is what all of them do.
func (ByDataset) SplitsRows() {}

// MeansRows tells whether all of them are means over rows.
func (l ByDataset) MeansRows() bool {
	return !slices.ContainsFunc(l, func(own RowSplitter) bool { return !meansRows(own) })
}

// Check finds settings of the losses that make no sense.
func (l ByDataset) Check() error {
	for i, own := range l {
		if own == nil {
			return fmt.Errorf("dataset %d has no loss", i)
		}
		if err := Check(own); err != nil {
			return fmt.Errorf("dataset %d, %T: %w", i, own, err)
		}
	}
	return nil
}

// Compute is that of the batch's dataset.
func (l ByDataset) Compute(s gpustage.Stream, a *gpustage.Arena, b *Batch) (Result, error) {
	if b.Dataset < 0 || b.Dataset >= len(l) {
		return Result{}, fmt.Errorf("a batch is of dataset %d, and there are losses for %d", b.Dataset, len(l))
	}
	return l[b.Dataset].Compute(s, a, b)
}

// Memory is the most that one of them takes.
func (l ByDataset) Memory(z Size) int {
	most := 0
	for _, own := range l {
		most = max(most, own.Memory(z))
	}
	return most
}
