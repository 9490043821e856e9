package dataset

import (
	"context"
	"io"
)

// OpenTableFrom is [OpenTable] of rows that do not come from a file, such as standard input: JSON lines, or one JSON array. They are read to their end, into
// a temporary file. name is what errors call them. withBad: rows that can't be used are told, as [OpenTableWithBad] has it. A read of in that waits does
// not end with ctx.
func OpenTableFrom(ctx context.Context, name string, in io.Reader, withBad bool) (*Table, error) {
	t := &Table{bad: withBad}
	err := t.openLines(ctx, 1, func(int) (*jsonlFile, error) {
		j := &jsonlFile{path: name}
		return j, j.open(ctx, nil, in, defaultLimit)
	})
	if err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}
