package pipeline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
)

// A source has ended when it says io.EOF itself: an error that holds one, as of a file that ends too early, is an error, and not the end of the rows.
func TestEndOfSource(t *testing.T) {
	for _, end := range []error{io.EOF, fmt.Errorf("part-3.parquet, page 7: %w", io.EOF)} {
		g := New("ends")
		next, rows := count(2), 0
		Sink(g, "work", Source(g, "rows", func(ctx context.Context) (int, error) {
			v, err := next(ctx)
			if err != nil {
				err = end
			}
			return v, err
		}), func(*Task, int) error { rows++; return nil })
		p, err := g.Build()
		if err != nil {
			t.Fatal(err)
		}
		err = p.Run(t.Context())
		if end == io.EOF && (err != nil || rows != 2) || end != io.EOF && (!errors.Is(err, end) || !strings.HasPrefix(err.Error(), `graph "ends": stage "rows", item #2: part-3`)) {
			t.Errorf("a source that ends with %v: %v after %d rows", end, err, rows)
		}
	}
}
