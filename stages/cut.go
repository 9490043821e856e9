package stages

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"

	"contraflow/io/dataset"
	"contraflow/pipeline"
)

// Cut tokenizes all rows of a dataset but those of skip (ascending), as its first epoch draws them, and counts their texts, of which those that are
// longer than x lets them be are cut. Of models that score, which read pairs, it counts these. progress may be nil.
func (x Text) Cut(ctx context.Context, d *dataset.Dataset, source int, skip []int64, seed uint64, progress func(done, total int64)) (texts, cut int64, err error) {
	reader := d.NewReader(dataset.ReaderConfig{Seed: seed})
	defer reader.Close()
	next := int64(0)
	var unread error // what a user can act on, without the graph around it
	g := pipeline.New("lengths")
	chunks := pipeline.Source(g, "read", func(ctx context.Context) (*Chunk, error) {
		var ids []int64
		for ; next < d.Rows() && len(ids) < chunkRows; next++ {
			if _, bad := slices.BinarySearch(skip, next); !bad {
				ids = append(ids, next)
			}
		}
		if len(ids) == 0 {
			return nil, io.EOF
		}
		examples, err := reader.Read(ctx, 0, ids)
		unread = err
		return &Chunk{Data: d, Source: source, Examples: examples, EndsBatch: true, EndsStep: true, Total: len(examples)}, err
	})
	done := int64(0)
	pipeline.Sink(g, "count", Tokenize(g, chunks, x), func(_ *pipeline.Task, c *TokenChunk) error {
		for i, column := range d.Columns() {
			if x.Pairs == nil || column.Role != dataset.Query {
				texts += int64(len(c.IDs[i]))
			}
		}
		cut += int64(c.Truncated)
		if done += int64(len(c.Rows)); progress != nil {
			progress(done, d.Rows()-int64(len(skip)))
		}
		return nil
	})
	p, err := g.Build()
	if err != nil {
		return 0, 0, err
	}
	if err := p.Run(ctx); err != nil {
		if bad := (*dataset.RowError)(nil); errors.As(err, &bad) {
			return 0, 0, bad
		}
		return 0, 0, cmp.Or(unread, err)
	}
	return texts, cut, nil
}
