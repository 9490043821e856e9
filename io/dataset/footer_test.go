package dataset

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"
)

// TestFootersThatLie: what a footer says of its columns is held against the file before anything is made of it.
func TestFootersThatLie(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.parquet")
	w, err := NewParquetWriter(path, OutColumn{"q", TextOut}, OutColumn{"p", TextListOut})
	if err == nil {
		err = errors.Join(w.Write([]string{"a", "b"}, [][]string{{"c", "d"}, {"e"}}), w.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var protocol thrift.CompactProtocol
	pages := len(whole) - 8 - int(binary.LittleEndian.Uint32(whole[len(whole)-8:]))
	const huge = 1 << 32 // of which a column of one value, said in runs, would have more bytes
	for want, lie := range map[string]func(m *format.FileMetaData, q, p *format.ColumnChunk){
		"": func(*format.FileMetaData, *format.ColumnChunk, *format.ColumnChunk) {},
		"column \"q\": 4294967296 rows in ": func(m *format.FileMetaData, q, p *format.ColumnChunk) {
			m.NumRows, m.RowGroups[0].NumRows, q.MetaData.NumValues, p.MetaData.NumValues = huge, huge, huge, huge
		},
		"its row groups have 2 rows together, the footer says 3": func(m *format.FileMetaData, _, _ *format.ColumnChunk) { m.NumRows = 3 },
		"row group 0 has -1 rows":                                func(m *format.FileMetaData, _, _ *format.ColumnChunk) { m.RowGroups[0].NumRows = -1 },
		"row group 0 has 1 columns, the schema 2": func(m *format.FileMetaData, _, _ *format.ColumnChunk) {
			m.RowGroups[0].Columns = m.RowGroups[0].Columns[:1]
		},
		`column "q": 3 values in 2 rows`: func(_ *format.FileMetaData, q, _ *format.ColumnChunk) { q.MetaData.NumValues = 3 },
		`column "p": 1 values in 2 rows`: func(_ *format.FileMetaData, _, p *format.ColumnChunk) { p.MetaData.NumValues = 1 },
		"cut off?": func(_ *format.FileMetaData, _, p *format.ColumnChunk) {
			p.MetaData.TotalCompressedSize += int64(len(whole))
		},
		"its pages are at bytes 3 to ":                     func(_ *format.FileMetaData, q, _ *format.ColumnChunk) { q.MetaData.DataPageOffset = 3 },
		"its data is in another file (b.parquet)":          func(_ *format.FileMetaData, q, _ *format.ColumnChunk) { q.FilePath = "b.parquet" },
		"its values are INT64, the schema says BYTE_ARRAY": func(_ *format.FileMetaData, q, _ *format.ColumnChunk) { q.MetaData.Type = format.Int64 },
		"encrypted columns can't be read":                  func(_ *format.FileMetaData, q, _ *format.ColumnChunk) { q.EncryptedColumnMetadata = []byte("x") },
	} {
		var m format.FileMetaData
		if err := thrift.NewDecoder(protocol.NewReaderFromBytes(whole[pages : len(whole)-8])).Decode(&m); err != nil {
			t.Fatal(err)
		}
		lie(&m, &m.RowGroups[0].Columns[0], &m.RowGroups[0].Columns[len(m.RowGroups[0].Columns)-1])
		var footer bytes.Buffer
		if err := thrift.NewEncoder(protocol.NewWriter(&footer)).Encode(&m); err != nil {
			t.Fatal(err)
		}
		size := binary.LittleEndian.AppendUint32(nil, uint32(footer.Len()))
		if err := os.WriteFile(path, slices.Concat(whole[:pages], footer.Bytes(), size, []byte(magic)), 0o600); err != nil {
			t.Fatal(err)
		}
		d, err := Open(t.Context(), Source{Paths: []string{path}, Query: "q", Positive: "p"})
		if err == nil {
			d.Close()
		}
		if want == "" && err != nil || want != "" && (!errors.Is(err, ErrCorrupt) || !strings.HasPrefix(err.Error(), path+": ") || !strings.Contains(err.Error(), want)) {
			t.Errorf("%v\nwant %q", err, want)
		}
	}
}
