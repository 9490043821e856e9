package dataset

import (
	"context"
	"errors"
)

type badRowsKey struct{}

// WithBadRows has bad called with every row that can't be used of the files that a model is measured on ([LoadRetrieval], [LoadPairs], [LoadLabelledPairs],
// [LoadTriplets] and [LoadCandidates]), where it would end reading them else. What they return lacks these rows: it is to look at, nothing is measured on it.
func WithBadRows(ctx context.Context, bad func(*RowError)) context.Context {
	return context.WithValue(ctx, badRowsKey{}, bad)
}

// badRows is a context's function, nil if it has none.
func badRows(ctx context.Context) func(*RowError) {
	bad, _ := ctx.Value(badRowsKey{}).(func(*RowError))
	return bad
}

// goOn tells a context's function of a row that can't be used, if it has one: then it is no error.
func goOn(ctx context.Context, err error) error {
	var row *RowError
	if bad := badRows(ctx); bad != nil && errors.As(err, &row) {
		bad(row)
		return nil
	}
	return err
}
