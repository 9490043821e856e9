package dataset

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"

	"contraflow/io/spelling"
)

// OpenTableFrom is [OpenTable] of rows that do not come from a file, such as standard input: JSON lines, or one JSON array. They are read to their end, into
// a temporary file. name is what errors call them. withBad: rows that can't be used are told, as [OpenTableWithBad] has it. What is compressed, parquet
// or CSV is refused as that. A read of in that waits does
// not end with ctx.
func OpenTableFrom(ctx context.Context, name string, in io.Reader, withBad bool) (*Table, error) {
	t, content := &Table{bad: withBad}, bufio.NewReaderSize(in, 64<<10)
	head, _ := content.Peek(content.Size())
	for _, of := range otherHeads {
		if bytes.HasPrefix(head, []byte(of.head)) {
			return nil, fail(ErrCorrupt, "%s is %s, where JSON lines are read: %s", name, of.is, of.way)
		}
	}
	values := looksSeparated(head)
	err := t.openLines(ctx, 1, func(int) (*jsonlFile, error) {
		j := &jsonlFile{path: name}
		return j, j.open(ctx, content, false, defaultLimit)
	})
	if values && len(t.json) == 0 && (err == nil || errors.Is(err, ErrBadRow)) {
		if err == nil {
			err = fail(ErrCorrupt, "%s: none of %s is an object of JSON", name, spelling.Count(t.Rows(), "row", "rows"))
		}
		err = fail(ErrCorrupt, "%v; the first line looks like CSV or TSV, where JSON lines are read: a file of such values is read by its name, x.csv or x.tsv", err)
	}
	if err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

// otherHeads are what data begins with that is known by a file's name, and not on a stream.
var otherHeads = []struct{ head, is, way string }{
	{"\x1f\x8b", "compressed, by gzip", "unpack it first (gzip -dc)"},
	{"\x28\xb5\x2f\xfd", "compressed, by zstd", "unpack it first (zstd -dc)"},
	{"PAR1", "parquet", "a file of that is read by its name"},
}

// looksSeparated tells a first line that is no JSON and has a comma or a tab.
func looksSeparated(head []byte) bool {
	line, _, _ := bytes.Cut(bytes.TrimLeft(bytes.TrimPrefix(head, []byte(byteOrderMark)), " \t\r\n"), []byte("\n"))
	if len(line) == 0 || line[0] == '{' || line[0] == '[' || !bytes.ContainsAny(line, ",\t") {
		return false
	}
	r := jsonReader{b: bytes.Clone(line)}
	return r.skip() != nil || r.end("it") != nil
}
