package dataset

import (
	"context"
	"iter"
)

// Row is a row of a dataset as its file holds it, in its block.
type Row struct {
	*Block
	Place int // in the block
}

// ID is the row's number in the dataset.
func (r Row) ID() int64 { return r.First + int64(r.Place) }

// Column appends the row's texts of a column, as [Block.Texts] does.
func (r Row) Column(to []string, column int) []string { return r.Texts(to, r.Place, column) }

// Each yields all rows in order, and with those that can't be used why, a *[RowError]. Any other error is the last that it yields.
func (d *Dataset) Each(ctx context.Context) iter.Seq2[Row, error] {
	return func(yield func(Row, error) bool) {
		for n := range d.Blocks() {
			b, err := d.ReadBlock(ctx, n)
			if err != nil {
				yield(Row{}, err)
				return
			}
			for i := range b.Rows {
				if !yield(Row{b, i}, b.Check(i)) {
					return
				}
			}
		}
	}
}
