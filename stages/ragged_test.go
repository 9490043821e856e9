package stages

import (
	"testing"

	"contraflow/io/dataset"
	"contraflow/stages/loss"
	"contraflow/stages/transformer"
)

// A loss is told whether rows may have negatives that a batch happens to have none of: of columns with one text each they may not.
func TestRaggedForLoss(t *testing.T) {
	for _, ragged := range []bool{false, true} {
		b := &Batch{Rows: []int64{0, 1}, Texts: make([]loss.TextID, 4), Columns: []dataset.Column{{Role: dataset.Query}, {Role: dataset.Positive}}}
		if ragged {
			b.Columns = append(b.Columns, dataset.Column{Role: dataset.Negative, Ragged: true})
		}
		if lb := b.forLoss(&transformer.Model{}); lb.Ragged != ragged || lb.Rows != 2 {
			t.Errorf("a batch with a ragged column, %t: the loss is told %t", ragged, lb.Ragged)
		}
	}
}
