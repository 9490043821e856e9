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

// TestPagesThatLie: so is what a page's header says, and what its levels do.
func TestPagesThatLie(t *testing.T) {
	flat := &chunk{end: 1000, rows: 10, values: 10, size: 500}
	lists := &chunk{column: column{list: true}, end: 1000, rows: 10, values: 20, size: 500}
	for _, c := range []struct {
		of     *chunk
		header pageHeader
		before int64 // slots
		want   string
	}{
		{flat, pageHeader{kind: pageData, values: 6, size: 100, compressed: 900}, 4, ""},
		{flat, pageHeader{kind: pageData, values: 6, size: 100, compressed: 901}, 4, "the page reaches beyond its column"},
		{flat, pageHeader{kind: pageData, values: 6, size: 100, compressed: -1}, 4, "the page reaches beyond its column"},
		{flat, pageHeader{kind: pageData, values: 6, size: 17 << 20, compressed: 9}, 4, "an uncompressed size of 17825792 bytes"},
		{flat, pageHeader{kind: pageData, values: -1, size: 100, compressed: 9}, 4, "-1 values in one page"},
		{flat, pageHeader{kind: pageData, values: 7, size: 100, compressed: 9}, 4, "more values than the column has (10)"},
		{flat, pageHeader{kind: pageDataV2, values: 6, rows: 6, size: 100, compressed: 9}, 4, ""},
		{flat, pageHeader{kind: pageDataV2, values: 6, rows: 5, size: 100, compressed: 9}, 4, "5 rows in 6 values"},
		{lists, pageHeader{kind: pageDataV2, values: 6, rows: 5, size: 100, compressed: 9}, 4, ""},
		{lists, pageHeader{kind: pageDataV2, values: 6, rows: 7, size: 100, compressed: 9}, 4, "7 rows in 6 values"},
		{lists, pageHeader{kind: pageDataV2, values: 6, rows: 6, size: 100, compressed: 9, repBytes: 5, defBytes: 5}, 4, "levels larger than their page"},
	} {
		err := c.of.checkHeader(&pageInfo{pageHeader: c.header, at: 100}, c.before)
		if c.want == "" && err != nil || c.want != "" && (err == nil || err.Error() != c.want) {
			t.Errorf("%+v: %v\nwant %s", c.header, err, c.want)
		}
	}
	for _, c := range []struct {
		page   int
		starts int64
		mid    bool
		want   string
	}{
		{0, 6, false, ""}, {1, 4, true, ""}, {1, 5, false, "more rows than the row group has (10)"}, {0, 6, true, "it begins in the middle of a row"},
	} {
		of := &chunk{column: column{list: true}, rows: 10, pages: make([]pageInfo, 2)}
		if c.page == 1 {
			of.setRows(0, 6, false)
		}
		_, err := of.settle(c.page, c.starts, c.mid)
		if c.want == "" && err != nil || c.want != "" && (err == nil || err.Error() != c.want) {
			t.Errorf("page %d, %d rows, in the middle %v: %v\nwant %s", c.page, c.starts, c.mid, err, c.want)
		}
		if _, err := of.settle(c.page, c.starts+1, c.mid); err == nil || !strings.Contains(err.Error(), "rows start here, its header or the index says") {
			t.Errorf("page %d, one row more than before: %v", c.page, err)
		}
	}
}
