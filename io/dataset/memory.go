package dataset

import (
	"bytes"
	"context"
	"encoding/json"
)

// FromRows is [Open] of rows in memory: each is what encoding/json writes an object of, a struct or a map, and the source names its fields as they are
// called there, lists, scores and labels too, without Paths. The dataset is that of a file with these lines: it is shuffled, searched for duplicates and
// gone on with as any other, and a [Cursor] of other rows is an error. Errors call the rows by name, and number them as the slice does.
//
// It keeps a copy of the rows, as JSON: later changes to them are not seen. A row that JSON can't say, such as a label that is NaN, is an error; what a
// line of a file must not be, a null or blank text or one that is not UTF-8, is a row that can't be used. A []byte is no text: JSON has it in base64.
func FromRows[R any](ctx context.Context, name string, rows []R, src Source) (*Dataset, error) {
	return fromRows(ctx, name, rows, src, defaultLimit)
}

func fromRows[R any](ctx context.Context, name string, rows []R, src Source, limit blockLimit) (*Dataset, error) {
	if len(src.Paths) > 0 {
		return nil, fail(ErrNoFiles, "%s are rows in memory, and Source.Paths has files (%q): each is a dataset of its own, which a Mixer takes together", name, src.Paths)
	}
	src.Paths = []string{name}
	return openFrom(ctx, src, limit, func(d *Dataset) error {
		var lines bytes.Buffer
		out := json.NewEncoder(&lines)
		out.SetEscapeHTML(false)
		for i, row := range rows {
			if err := ctx.Err(); err != nil {
				return err
			}
			at := lines.Len()
			if err := out.Encode(row); err != nil {
				return fail(ErrBadRow, "%v: %w", Location{File: name, RowGroup: -1, Row: int64(i)}, err)
			}
			lines.Truncate(at + invalidAsIs(lines.Bytes()[at:]))
		}
		j := &jsonlFile{path: name, size: int64(lines.Len()), memory: lines.Bytes()}
		d.files = []dataFile{{file: file{jsonl: j}}}
		return j.count(ctx, bytes.NewReader(j.memory), 0, limit)
	})
}

// invalidAsIs puts a byte that is not UTF-8 where encoding/json has written \ufffd for one, so that its text is known for what it is, and returns how long
// the line is then. A text's own U+FFFD it writes as its three bytes.
func invalidAsIs(line []byte) int {
	const escape = `\ufffd`
	if !bytes.Contains(line, []byte(escape)) {
		return len(line)
	}
	n := 0
	for i := 0; i < len(line); {
		took, size := line[i], 1
		if bytes.HasPrefix(line[i:], []byte(escape)) {
			took, size = 0xff, len(escape)
		}
		line[n] = took
		n, i = n+1, i+size
		if took == '\\' { // with what it stands before
			line[n] = line[i]
			n, i = n+1, i+1
		}
	}
	return n
}
