package dataset

import (
	"context"
	"fmt"
	"slices"
)

// filterRows is how many rows Filter reads at once.
const filterRows = 4096

// Filter reads all rows but those of skip (ascending, nil for none), in order, and returns the ids of those to leave out: skip's and those that keep
// refuses, as [Part] and [SamplerConfig] take them. Of lists keep sees as many texts as an epoch takes, which may be others in training. An error of
// keep ends it, and is returned with the row's place; rows that can't be used are errors, unless skip has them ([Index.Skip]).
func (d *Dataset) Filter(ctx context.Context, skip []int64, keep func(*Example) (bool, error)) (out []int64, err error) {
	r := d.NewReader(ReaderConfig{Window: Window{Rows: filterRows}})
	defer r.Close()
	rows := make([]int64, 0, filterRows)
	look := func() error {
		examples, err := r.Read(ctx, 0, rows)
		if err != nil {
			return err
		}
		for i := range examples {
			stays, err := keep(&examples[i])
			if err != nil {
				return fmt.Errorf("%v: %w", d.Locate(examples[i].Row), err)
			}
			if !stays {
				out = append(out, examples[i].Row)
			}
		}
		rows = rows[:0]
		return nil
	}
	for row := range d.Rows() {
		if _, bad := slices.BinarySearch(skip, row); bad {
			out = append(out, row)
			continue
		}
		if rows = append(rows, row); len(rows) == filterRows {
			if err := look(); err != nil {
				return nil, err
			}
		}
	}
	if len(rows) > 0 {
		if err := look(); err != nil {
			return nil, err
		}
	}
	slices.Sort(out)
	return out, nil
}
