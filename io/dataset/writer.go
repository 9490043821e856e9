package dataset

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress/zstd"

	"contraflow/io/atomicfile"
)

// OutType is what a written column holds, and the Go type that Write takes for it.
type OutType uint8

const (
	TextOut       OutType = iota // []string
	TextListOut                  // [][]string
	IntOut                       // []int64
	FloatOut                     // []float64
	VectorOut                    // Vectors: a list<float32> a row
	NumbersOut                   // [][]float32: a list<float32> a row, of any length
	IDsOut                       // [][]int32
	LongsOut                     // [][]int64
	VectorListOut                // VectorLists: a list<list<float32>> a row
)

// outTypes are what each has for no rows, with room for n, and what a column's values are in the file.
//
// Ids are stored as they are used, and hashes can't be made smaller. What 5.4 million ids (100,000 texts of Go and its comments) took at
// rest, and each row of 107 to be fed to training on a busy core, where its texts took 9.6 to 11.7 us:
//
//	plain                     21.9 MB   1.3 us
//	dictionary                 9.1 MB   1.5 to 1.9 us
//	plain, snappy (or lz4)     7.3 MB   1.8 us
//	dictionary, zstd           6.6 MB   2.1 us
//	plain, zstd                5.7 MB   2.2 us
//	bytes split, zstd          5.7 MB   3.0 us
var outTypes = [...]struct {
	empty func(n int) any
	node  parquet.Node
}{
	TextOut:       {room[string], plainLeaf(parquet.String())},
	TextListOut:   {room[[]string], listOf(plainLeaf(parquet.String()))},
	IntOut:        {room[int64], plainLeaf(parquet.Int(64))},
	FloatOut:      {room[float64], plainLeaf(parquet.Leaf(parquet.DoubleType))},
	VectorOut:     {func(int) any { return Vectors{} }, listOf(plainLeaf(parquet.Leaf(parquet.FloatType)))},
	NumbersOut:    {room[[]float32], listOf(plainLeaf(parquet.Leaf(parquet.FloatType)))},
	IDsOut:        {room[[]int32], listOf(bareLeaf(parquet.Int(32)))},
	LongsOut:      {room[[]int64], listOf(bareLeaf(parquet.Int(64)))},
	VectorListOut: {func(int) any { return VectorLists{} }, listOf(listOf(plainLeaf(parquet.Leaf(parquet.FloatType))))},
}

func room[T any](n int) any              { return make([]T, 0, n) }
func listOf(n parquet.Node) parquet.Node { return parquet.Optional(parquet.List(n)) }
func plainLeaf(n parquet.Node) parquet.Node {
	return parquet.Optional(parquet.Encoded(n, &parquet.Plain))
}

// bareLeaf is a leaf that is not compressed.
func bareLeaf(n parquet.Node) parquet.Node {
	return parquet.Optional(parquet.Compressed(parquet.Encoded(n, &parquet.Plain), &parquet.Uncompressed))
}

// Empty is a value of the type for no rows, with room for n.
func (t OutType) Empty(n int) any { return outTypes[t].empty(n) }

// VectorLists are rows of any number of vectors of float32 of one length: row i's are Data[Cu[i]*Dim:Cu[i+1]*Dim].
type VectorLists struct {
	Dim  int
	Cu   []int32 // [rows+1]
	Data []float32
}

// Vectors are rows of float32 of one length, one after the other: Data is (rows, Dim).
type Vectors struct {
	Dim  int
	Data []float32
}

// OutColumn is a column to write.
type OutColumn struct {
	Name string
	Type OutType
}

// ParquetWriter writes a parquet file row group by row group. The file appears under its name when Close succeeds, whole
// and on disk, or not at all: until then it is a temporary file beside it, and what stood there before stays.
//
// Pages are compressed with zstd, those of IDsOut and LongsOut not at all, and carry checksums; columns are nullable, lists have three levels with "element", the
// types are those that pyarrow and Hugging Face datasets give such data. A row group (up to 64 MiB) is held in memory.
type ParquetWriter struct {
	path    string
	file    *atomicfile.File
	w       *parquet.Writer
	columns []OutColumn
	leaves  int
	pending int64 // bytes in the open row group, about
	rows    int64
	err     error
	scratch []parquet.Value
}

const (
	groupBytes = 64 << 20
	sliceRows  = 1024 // rows that go to the library at once: a page is closed between slices
)

// NewParquetWriter creates the temporary file for path, or of a link for what it leads to.
func NewParquetWriter(path string, columns ...OutColumn) (*ParquetWriter, error) {
	if len(columns) == 0 {
		return nil, fmt.Errorf("%s: no columns to write", path)
	}
	root := orderedGroup{}
	for i, c := range columns {
		if c.Name == "" {
			return nil, fmt.Errorf("%s: column %d has no name", path, i)
		}
		if err := root.addOut(path, c); err != nil {
			return nil, err
		}
	}
	w, err := newParquetWriter(path, root)
	if err != nil {
		return nil, err
	}
	w.columns = columns
	return w, nil
}

// createdBy is what a parquet file's footer says of who wrote it.
const createdBy = "contraflow"

func newParquetWriter(path string, root orderedGroup) (*ParquetWriter, error) {
	seen := map[string]bool{}
	for _, f := range root.fields {
		if seen[f.Name()] {
			return nil, fmt.Errorf("%s: two columns named %q", path, f.Name())
		}
		seen[f.Name()] = true
	}
	file, err := atomicfile.Replace(path)
	if err != nil {
		return nil, err
	}
	w := &ParquetWriter{path: path, file: file}
	err = guard(func() error {
		schema := parquet.NewSchema("schema", root)
		w.leaves = len(schema.Columns())
		w.w = parquet.NewWriter(file, schema, parquet.Compression(&zstd.Codec{Level: zstd.SpeedDefault}),
			parquet.DataPageStatistics(false), parquet.CreatedBy(createdBy, "", ""))
		return nil
	})
	if err != nil {
		w.Abort()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return w, nil
}

// Write appends rows: one value per column, of the type that goes with it, all of the same number of rows.
func (w *ParquetWriter) Write(columns ...any) error {
	if w.err != nil {
		return w.err
	}
	rows, err := w.rowsOf(columns)
	if err != nil {
		return err // the caller's mistake: the file is as it was
	}
	for from := 0; from < rows; from += sliceRows {
		to := min(rows, from+sliceRows)
		for i := range columns {
			if err := w.put(i, w.values(columns[i], i, from, to)); err != nil {
				return err
			}
		}
		if err := w.endSlice(to - from); err != nil {
			return err
		}
	}
	return nil
}

// rowsOf checks the values of a Write and counts their rows.
func (w *ParquetWriter) rowsOf(columns []any) (rows int, err error) {
	if len(columns) != len(w.columns) {
		return 0, fmt.Errorf("%s: %d columns given, it has %d", w.path, len(columns), len(w.columns))
	}
	for i, c := range columns {
		col := w.columns[i]
		if want := col.Type.Empty(0); reflect.TypeOf(c) != reflect.TypeOf(want) {
			return 0, fmt.Errorf("%s: column %q is given as %T, want %T", w.path, col.Name, c, want)
		}
		n := 0
		if v, ok := c.(VectorLists); ok {
			if n = len(v.Cu) - 1; n < 0 || v.Cu[0] != 0 || !slices.IsSorted(v.Cu) || int(v.Cu[n])*v.Dim != len(v.Data) || v.Dim < 1 && v.Cu[n] > 0 {
				return 0, fmt.Errorf("%s: column %q has %d floats for %d offsets of vectors of %d: offsets begin at 0 and do not fall", w.path, col.Name, len(v.Data), len(v.Cu), v.Dim)
			}
		} else if v, ok := c.(Vectors); !ok {
			n = reflect.ValueOf(c).Len()
		} else if v.Dim > 0 && len(v.Data)%v.Dim == 0 {
			n = len(v.Data) / v.Dim
		} else if len(v.Data) > 0 {
			return 0, fmt.Errorf("%s: column %q has %d floats, which are no rows of %d", w.path, col.Name, len(v.Data), v.Dim)
		}
		if i > 0 && n != rows {
			return 0, fmt.Errorf("%s: column %q has %d rows, %q has %d", w.path, col.Name, n, w.columns[0].Name, rows)
		}
		rows = n
	}
	return rows, nil
}

// values makes the library's values of rows [from, to).
func (w *ParquetWriter) values(column any, leaf, from, to int) []parquet.Value {
	out := w.scratch[:0]
	switch c := column.(type) {
	case []string:
		out = appendScalars(out, leaf, c[from:to], textValue)
	case []int64:
		out = appendScalars(out, leaf, c[from:to], parquet.Int64Value)
	case []float64:
		out = appendScalars(out, leaf, c[from:to], parquet.DoubleValue)
	case [][]string:
		out = appendLists(out, leaf, c[from:to], textValue)
	case [][]int32:
		out = appendLists(out, leaf, c[from:to], parquet.Int32Value)
	case [][]int64:
		out = appendLists(out, leaf, c[from:to], parquet.Int64Value)
	case [][]float32:
		out = appendLists(out, leaf, c[from:to], parquet.FloatValue)
	case Vectors:
		for i := from; i < to; i++ {
			out = appendList(out, leaf, c.Data[i*c.Dim:(i+1)*c.Dim], parquet.FloatValue)
		}
	case VectorLists: // definition levels: 1 an empty list, 3 an empty element of one, 5 its element
		for i := from; i < to; i++ {
			if c.Cu[i] == c.Cu[i+1] {
				out = append(out, parquet.NullValue().Level(0, 1, leaf))
			}
			for k := c.Cu[i]; k < c.Cu[i+1]; k++ {
				for j := range c.Dim {
					repetition := 2
					if j == 0 {
						repetition = min(1, int(k-c.Cu[i]))
					}
					out = append(out, parquet.FloatValue(c.Data[int(k)*c.Dim+j]).Level(repetition, 5, leaf))
				}
			}
		}
	}
	w.scratch = out
	return out
}

func appendScalars[T any](out []parquet.Value, leaf int, rows []T, value func(T) parquet.Value) []parquet.Value {
	for _, v := range rows {
		out = append(out, value(v).Level(0, 1, leaf))
	}
	return out
}

func appendLists[T any](out []parquet.Value, leaf int, rows [][]T, value func(T) parquet.Value) []parquet.Value {
	for _, row := range rows {
		out = appendList(out, leaf, row, value)
	}
	return out
}

// appendList appends a row's list. Definition levels: 1 an empty one, 3 an element.
func appendList[T any](out []parquet.Value, leaf int, row []T, value func(T) parquet.Value) []parquet.Value {
	if len(row) == 0 {
		out = append(out, parquet.NullValue().Level(0, 1, leaf))
	}
	for i, v := range row {
		out = append(out, value(v).Level(min(i, 1), 3, leaf))
	}
	return out
}

func textValue(s string) parquet.Value { return parquet.ByteArrayValue([]byte(s)) }

// put hands whole rows of one leaf to the library.
func (w *ParquetWriter) put(leaf int, values []parquet.Value) error {
	err := guard(func() error {
		_, err := w.w.ColumnWriters()[leaf].WriteRowValues(values)
		return err
	})
	for _, v := range values {
		if k := v.Kind(); k == parquet.ByteArray || k == parquet.FixedLenByteArray {
			w.pending += int64(len(v.ByteArray()))
		}
		w.pending += 4
	}
	return w.sticky(err)
}

// endSlice counts rows of which all leaves are put, and closes the row group when it is large.
func (w *ParquetWriter) endSlice(rows int) error {
	w.rows += int64(rows)
	if w.pending < groupBytes {
		return nil
	}
	w.pending = 0
	return w.sticky(guard(w.w.Flush))
}

// sticky remembers the first error: after it the file can't be completed.
func (w *ParquetWriter) sticky(err error) error {
	if err != nil && w.err == nil {
		w.err = fmt.Errorf("writing %s: %w", w.path, err)
	}
	return w.err
}

// SetMetadata adds a pair to the footer.
func (w *ParquetWriter) SetMetadata(key, value string) { w.w.SetKeyValueMetadata(key, value) }

// Rows returns how many rows were written.
func (w *ParquetWriter) Rows() int64 { return w.rows }

// Close completes the file, brings it to disk and gives it its name. After an error the temporary file is gone, and what
// stood under the name before is untouched. Close after Abort or Close does nothing.
func (w *ParquetWriter) Close() error {
	if w.file == nil {
		return nil
	}
	defer w.Abort()
	if w.err != nil {
		return w.err
	}
	if err := w.sticky(guard(w.w.Close)); err != nil {
		return err
	}
	err := w.file.Commit()
	w.file = nil
	if w.err == nil {
		w.err = cmp.Or(err, closedWriter(w.path))
	}
	return err
}

// Abort removes the temporary file. It does nothing after Close.
func (w *ParquetWriter) Abort() {
	if w.file != nil {
		w.file.Abort(nil)
		w.file = nil
		if w.err == nil {
			w.err = closedWriter(w.path)
		}
	}
}

// orderedGroup is a group whose fields keep their order; parquet.Group sorts them by name.
type orderedGroup struct {
	parquet.Group
	typ    parquet.Type // a list's or map's; nil: a plain group
	fields []parquet.Field
}

func (g *orderedGroup) add(name string, n parquet.Node) {
	if g.Group == nil {
		g.Group = parquet.Group{}
	}
	g.Group[name] = n
	g.fields = append(g.fields, namedNode{n, name})
}

// addOut adds a column to write.
func (g *orderedGroup) addOut(path string, c OutColumn) error {
	if int(c.Type) >= len(outTypes) {
		return fmt.Errorf("%s: column %q is of OutType %d, which there is not", path, c.Name, c.Type)
	}
	g.add(c.Name, outTypes[c.Type].node)
	return nil
}

func (g orderedGroup) Fields() []parquet.Field { return g.fields }

func (g orderedGroup) Type() parquet.Type {
	if g.typ != nil {
		return g.typ
	}
	return g.Group.Type()
}

type namedNode struct {
	parquet.Node
	name string
}

func (n namedNode) Name() string { return n.name }

// Value would be asked for by writers that take Go values; this one takes columns.
func (n namedNode) Value(base reflect.Value) reflect.Value {
	return base.MapIndex(reflect.ValueOf(n.name))
}
