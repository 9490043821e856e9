package dataset

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"
)

// The written files are read back with parquet-go's own readers, not with ours.

type writtenRow struct {
	Query     string    `parquet:"query,optional"`
	Negatives []string  `parquet:"negatives,optional,list"`
	Count     int64     `parquet:"count,optional"`
	Score     float64   `parquet:"score,optional"`
	Embedding []float32 `parquet:"embedding,optional,list"`
}

var writtenColumns = []OutColumn{{"query", TextOut}, {"negatives", TextListOut}, {"count", IntOut}, {"score", FloatOut}, {"embedding", VectorOut}}

func writtenRows(n int) (rows []writtenRow, columns []any) {
	const dim = 7
	var q []string
	var neg [][]string
	var count []int64
	var score []float64
	v := Vectors{Dim: dim}
	for i := range n {
		r := writtenRow{Query: fmt.Sprintf("query %d 🙂", i), Negatives: []string{}, Count: int64(i) - 5, Score: float64(i) / 3}
		for k := range i % 4 {
			r.Negatives = append(r.Negatives, strings.Repeat("n", k)) // one of them empty
		}
		for k := range dim {
			r.Embedding = append(r.Embedding, float32(i)+float32(k)/8)
		}
		rows = append(rows, r)
		q, neg, count, score, v.Data = append(q, r.Query), append(neg, r.Negatives), append(count, r.Count), append(score, r.Score), append(v.Data, r.Embedding...)
	}
	return rows, []any{q, neg, count, score, v}
}

func TestWriter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out.parquet")
	w, err := NewParquetWriter(path, writtenColumns...)
	if err != nil {
		t.Fatal(err)
	}
	var want []writtenRow
	for _, n := range []int{3, 0, 2500, 1} {
		rows, columns := writtenRows(n)
		if err := w.Write(columns...); err != nil {
			t.Fatal(err)
		}
		want = append(want, rows...)
		if exists(path) {
			t.Fatal("the file is there before it is whole")
		}
	}
	if err := w.Close(); err != nil || w.Rows() != int64(len(want)) {
		t.Fatal(err, w.Rows())
	}
	got, err := parquet.ReadFile[writtenRow](path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range want {
		if got[i].Negatives == nil {
			got[i].Negatives = []string{}
		}
		if !reflect.DeepEqual(got[i], want[i]) {
			t.Fatalf("row %d: %+v, want %+v", i, got[i], want[i])
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d rows, want %d", len(got), len(want))
	}

	p, err := openParquet(path)
	if err != nil {
		t.Fatal(err)
	}
	f, _ := os.Open(path)
	defer f.Close()
	for i, leaf := range p.leaves {
		c, err := p.chunk(0, column{leaf: leaf, list: leaf.maxRep > 0})
		if err == nil {
			err = c.open(f)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, page := range c.pages {
			if !page.hasCRC {
				t.Errorf("column %d: a page without a checksum", i)
			}
		}
		if c.codec != format.Zstd {
			t.Errorf("column %d: codec %v", i, c.codec)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// Ragged numbers, and vectors of which a row has any number: by their values and levels, as the format says them.
func TestWriterRagged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out.parquet")
	w, err := NewParquetWriter(path, OutColumn{"ids", IDsOut}, OutColumn{"weights", NumbersOut}, OutColumn{"vectors", VectorListOut})
	if err != nil {
		t.Fatal(err)
	}
	vectors := VectorLists{Dim: 2, Cu: []int32{0, 2, 2, 3}, Data: []float32{1, 2, 3, 4, 5, 6}}
	if err := w.Write([][]int32{{7, 8}, {}, {9}}, [][]float32{{0.5, 1}, {}, {2}}, vectors); err != nil {
		t.Fatal(err)
	}
	if err := w.Write([][]int32{{1}}, [][]float32{{1}}, VectorLists{Dim: 2, Cu: []int32{0, 1}, Data: []float32{1}}); err == nil || !strings.Contains(err.Error(), "1 floats for 2 offsets of vectors of 2") {
		t.Error(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := w.Write([][]int32{{1}}, [][]float32{{1}}, VectorLists{Dim: 2, Cu: []int32{0, 0}}); err == nil || !strings.Contains(err.Error(), "its writer is closed") {
		t.Errorf("written after Close: %v", err)
	}
	data, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer data.Close()
	info, _ := data.Stat()
	f, err := parquet.OpenFile(data, info.Size())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	rows := f.RowGroups()[0].Rows()
	defer rows.Close()
	buf := make([]parquet.Row, 4)
	n, _ := rows.ReadRows(buf)
	for _, row := range buf[:n] {
		for _, v := range row {
			got = append(got, fmt.Sprintf("%d:%v/%d/%d", v.Column(), v, v.RepetitionLevel(), v.DefinitionLevel()))
		}
	}
	if want := "0:7/0/3 0:8/1/3 1:0.5/0/3 1:1/1/3 2:1/0/5 2:2/2/5 2:3/1/5 2:4/2/5 0:<null>/0/1 1:<null>/0/1 2:<null>/0/1 0:9/0/3 1:2/0/3 2:5/0/5 2:6/2/5"; strings.Join(got, " ") != want {
		t.Errorf("got %s, want %s", strings.Join(got, " "), want)
	}
}

// Of a path that is a link, the file that it leads to is written.
func TestWritersFollowLinks(t *testing.T) {
	writers := map[string]func(path string) (interface{ Close() error }, error){
		"x.parquet": func(path string) (interface{ Close() error }, error) {
			return NewParquetWriter(path, OutColumn{"a", TextOut})
		},
		"x.npy": func(path string) (interface{ Close() error }, error) { return NewNPYWriter(path, 0, 3) },
	}
	for name, create := range writers {
		file, link := filepath.Join(t.TempDir(), name), filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(file, link); err != nil {
			t.Skip(err)
		}
		w, err := create(link)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Lstat(link); err != nil || info.Mode().IsRegular() {
			t.Errorf("%s: in place of the link there is %v (%v)", name, info, err)
		}
		if info, err := os.Stat(file); err != nil || info.Size() == 0 {
			t.Errorf("%s: the file that it leads to has %v (%v)", name, info, err)
		}
	}
}

func TestWriterErrors(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "out.parquet")
	if err := os.WriteFile(path, []byte("before"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := NewParquetWriter(filepath.Join(folder, "no", "such", "out.parquet"), writtenColumns...); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a folder that isn't there: %v", err)
	}
	if _, err := NewParquetWriter(path, OutColumn{"a", TextOut}, OutColumn{"a", IntOut}); err == nil {
		t.Error("two columns of one name")
	}
	if _, err := NewParquetWriter(path); err == nil {
		t.Error("no columns")
	}
	if _, err := NewParquetWriter(path, OutColumn{"a", TextOut}, OutColumn{}); err == nil || !strings.Contains(err.Error(), "column 1 has no name") {
		t.Errorf("a column without a name: %v", err)
	}
	if _, err := NewParquetWriter(path, OutColumn{"a", VectorListOut + 1}); err == nil || !strings.Contains(err.Error(), `column "a" is of OutType 9, which there is not`) {
		t.Errorf("a column of no type: %v", err)
	}
	w, err := NewParquetWriter(path, OutColumn{"a", TextOut}, OutColumn{"v", VectorOut})
	if err != nil {
		t.Fatal(err)
	}
	for want, columns := range map[string][]any{
		"1 columns given, it has 2":                          {[]string{"a"}},
		`column "a" is given as []int64, want []string`:      {[]int64{1}, Vectors{}},
		`column "v" has 2 rows, "a" has 1`:                   {[]string{"a"}, Vectors{Dim: 1, Data: []float32{1, 2}}},
		`column "v" has 3 floats, which are no rows of 2`:    {[]string{"a"}, Vectors{Dim: 2, Data: []float32{1, 2, 3}}},
		`column "v" has 3 floats, which are no rows of 0`:    {[]string{"a"}, Vectors{Data: []float32{1, 2, 3}}},
		`column "v" is given as []float32, want dataset.Vec`: {[]string{"a"}, []float32{1}},
	} {
		if err := w.Write(columns...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	lists, err := NewParquetWriter(filepath.Join(folder, "lists.parquet"), OutColumn{"v", VectorListOut})
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range []VectorLists{{}, {Dim: 1, Cu: []int32{0, 2}, Data: make([]float32, 1)}, {Dim: 1, Cu: []int32{1, 2}, Data: make([]float32, 2)}, {Dim: 1, Cu: []int32{0, 3, 2}, Data: make([]float32, 2)}, {Cu: []int32{0, 1}}} {
		if err := lists.Write(v); err == nil || !strings.Contains(err.Error(), "offsets begin at 0 and do not fall") {
			t.Errorf("%v: %v", v, err)
		}
	}
	lists.Abort()
	// A disk that fails: the file is gone, what was there stays.
	w.file.Close()
	if err := w.Write([]string{"a"}, Vectors{Dim: 1, Data: []float32{1}}); err != nil {
		t.Fatal(err) // nothing reaches the file yet
	}
	if err := w.Close(); err == nil || !strings.Contains(err.Error(), "writing "+path) {
		t.Errorf("closed on a failing disk: %v", err)
	}
	w, err = NewParquetWriter(path, OutColumn{"a", TextOut})
	if err != nil {
		t.Fatal(err)
	}
	w.Abort()
	w.Abort()
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	if err := w.Write([]string{"lost"}); err == nil || !strings.Contains(err.Error(), "its writer is closed") {
		t.Errorf("written after Abort: %v", err)
	}
	files, _ := os.ReadDir(folder)
	if b, _ := os.ReadFile(path); string(b) != "before" || len(files) != 1 {
		t.Errorf("left behind: %q in %v", b, files)
	}
}

// allRows reads every value of a file with its levels, column by column.
func allRows(t *testing.T, path string) (columns []string, rows [][]parquet.Value) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, _ := f.Stat()
	p, err := parquet.OpenFile(f, info.Size())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range p.Schema().Columns() {
		leaf, _ := p.Schema().Lookup(c...)
		// parquet-go annotates plain integers when it writes them.
		typ := strings.NewReplacer("INT(64,true)", "INT64", "INT(32,true)", "INT32").Replace(leaf.Node.Type().String())
		columns = append(columns, fmt.Sprintf("%s %s %v", strings.Join(c, "."), typ, leaf.Node.Optional()))
	}
	for _, g := range p.RowGroups() {
		r := g.Rows()
		for {
			buf := make([]parquet.Row, 1)
			n, err := r.ReadRows(buf)
			if n > 0 {
				rows = append(rows, buf[0].Clone())
			}
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		r.Close()
	}
	return columns, rows
}

// Rows that are dropped from chunks are missing in all columns, lists and nested ones too, and nothing else is.
func TestDrop(t *testing.T) {
	in := filepath.Join(t.TempDir(), "in.jsonl")
	var content strings.Builder
	for i := range 20 {
		fmt.Fprintf(&content, `{"id": %d, "text": "t%d", "list": %s}`+"\n", i, i, []string{`["a", null, "c"]`, "[]", "null"}[i%3])
	}
	if err := os.WriteFile(in, []byte(content.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	asParquet := filepath.Join(t.TempDir(), "in.parquet")
	for _, path := range []string{in, asParquet} {
		table, err := OpenTable(t.Context(), []string{path})
		if err != nil {
			t.Fatal(err)
		}
		out := filepath.Join(t.TempDir(), "out.parquet")
		w, err := table.NewWriter(out)
		if err != nil {
			t.Fatal(err)
		}
		whole, err := table.NewWriter(asParquet)
		if err != nil {
			t.Fatal(err)
		}
		defer table.Close()
		for c, err := range table.Chunks(t.Context(), "text", 7) {
			if err != nil {
				t.Fatal(err)
			}
			if path == in {
				if err := whole.Write(c); err != nil {
					t.Fatal(err)
				}
			}
			rows := c.Rows
			c.Drop([]int{0, 3, rows - 1})
			if c.Rows != rows-3 || len(c.Texts) != c.Rows || c.Texts[0] != fmt.Sprint("t", c.First+1) {
				t.Errorf("%d rows of %d, texts %q", c.Rows, rows, c.Texts)
			}
			if err := w.Write(c); err != nil {
				t.Fatal(err)
			}
		}
		if path == in {
			if err := whole.Close(); err != nil {
				t.Fatal(err)
			}
		}
		whole.Abort()
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		d, err := Open(t.Context(), Source{Paths: []string{out}, Query: "text", Negatives: []string{"list"}, Positive: "text", Weight: "id", NegativesPerQuery: AllNegatives})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		b, err := d.ReadBlock(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for i := range b.Rows {
			id := int(b.Weight(i))
			got = append(got, fmt.Sprint(id))
			if want := len([][]int{{0, 0, 0}, {}, {}}[id%3]); len(b.Texts(nil, i, 2)) != want || b.Texts(nil, i, 0)[0] != fmt.Sprint("t", id) {
				t.Errorf("%s: row %d has %q and %q", path, id, b.Texts(nil, i, 0), b.Texts(nil, i, 2))
			}
		}
		if want := "1 2 4 5 8 9 11 12 15 16 18"; strings.Join(got, " ") != want {
			t.Errorf("%s: rows %v, want %s", path, got, want)
		}
	}
}
