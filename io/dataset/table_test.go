package dataset

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"
)

// TestTable passes files through with a column added: every type, nested ones too, keeps its values and levels.
func TestTable(t *testing.T) {
	ctx := context.Background()
	for file, text := range map[string]string{"types": "text", "default": "query", "tiny_pages": "query", "many_groups": "positive", "large": "query", "split_rows": "query", "two_levels": "query", "required": "query", "delta": "query"} {
		for _, rows := range []int{1, 7, 1000} {
			in := golden(file + ".parquet")
			table, err := OpenTable(ctx, []string{in})
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(t.TempDir(), "out.parquet")
			w, err := table.NewWriter(path, OutColumn{"embedding", VectorOut})
			if err != nil {
				t.Fatal(err)
			}
			var texts []string
			for c, err := range table.Chunks(ctx, text, rows) {
				if err != nil {
					t.Fatal(err)
				}
				if c.First != int64(len(texts)) || len(c.Texts) != c.Rows || c.Rows > rows {
					t.Fatalf("%s: chunk %d + %d after %d rows", file, c.First, c.Rows, len(texts))
				}
				texts = append(texts, c.Texts...)
				v := Vectors{Dim: 2, Data: make([]float32, 2*c.Rows)}
				for i := range v.Data {
					v.Data[i] = float32(c.First) + float32(i)/2
				}
				if err := w.Write(c, v); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			wantColumns, want := allRows(t, in)
			gotColumns, got := allRows(t, path)
			n := len(wantColumns)
			if !slices.Equal(gotColumns[:n], wantColumns) || len(gotColumns) != n+1 || !strings.HasPrefix(gotColumns[n], "embedding.list.element FLOAT") {
				t.Fatalf("%s: columns %q, want %q and an embedding", file, gotColumns, wantColumns)
			}
			if len(got) != len(want) || table.Rows() != int64(len(want)) {
				t.Fatalf("%s: %d rows, want %d", file, len(got), len(want))
			}
			for i := range want {
				values := slices.DeleteFunc(slices.Clone(got[i]), func(v parquet.Value) bool { return v.Column() == n })
				if !slices.EqualFunc(values, want[i], sameValue) {
					t.Fatalf("%s row %d:\n got %+v\nwant %+v", file, i, values, want[i])
				}
				v := got[i][len(values):]
				if len(v) != 2 || v[0].Float() != float32(i) && rows == 1 || v[1].RepetitionLevel() != 1 {
					t.Fatalf("%s row %d: embedding %+v", file, i, v)
				}
			}
		}
	}
}

func sameValue(a, b parquet.Value) bool {
	if a.Kind() == parquet.Double && b.Kind() == parquet.Double && math.Float64bits(a.Double()) != math.Float64bits(b.Double()) {
		return false
	}
	return a.Kind() == b.Kind() && a.RepetitionLevel() == b.RepetitionLevel() && a.DefinitionLevel() == b.DefinitionLevel() && a.Column() == b.Column() && parquet.Equal(a, b)
}

// Rows that can't be read keep their places in a table that takes them, as nulls, and have no part in its columns and their types.
func TestTableWithBad(t *testing.T) {
	folder := write(t, map[string]string{
		"a.jsonl": "{\"n\": 1, \"s\": \"a\"}\n{\"n\": \"x\", \"new\": [\n\nno json\n{\"n\": 2, \"s\": \"b\"}\n{\"n\": 3, \"s\": \"caf\xe9\"}\n{\"n\": 4, \"s\": \"\\u0063\"}\n",
		"b.csv":   "n,s\n1,a\n2\n3,b\n",
	})
	for name, want := range map[string][2]string{
		"a.jsonl": {`1 "a"|- -|- -|2 "b"|- -|4 "c"|`, "1 a.jsonl:2|2 a.jsonl:4|4 a.jsonl:6|"},
		"b.csv":   {`"1" "a"|- -|"3" "b"|`, "1 b.csv:3|"},
	} {
		path := filepath.Join(folder, name)
		if _, err := OpenTable(t.Context(), []string{path}); !errors.Is(err, ErrBadRow) {
			t.Errorf("%s: %v", name, err)
		}
		table, err := OpenTableWithBad(t.Context(), []string{path})
		if err != nil {
			t.Fatal(err)
		}
		defer table.Close()
		for _, rows := range []int{1, 2, 100} {
			var got, bad string
			for c, err := range table.Chunks(t.Context(), "", rows) {
				if err != nil {
					t.Fatal(err)
				}
				for i := range c.Rows {
					for leaf, end := range []string{" ", "|"} {
						switch v := c.leaves[leaf].list[i]; {
						case v.IsNull():
							got += "-" + end
						case v.Kind() == parquet.ByteArray:
							got += fmt.Sprintf("%q", v.String()) + end
						default:
							got += v.String() + end
						}
					}
					if b := c.Bad[i]; b != nil {
						bad += fmt.Sprintf("%d %s:%d|", c.First+int64(i), filepath.Base(b.Location.File), b.Location.Line)
					}
				}
			}
			if got != want[0] || bad != want[1] || !slices.Equal(table.Columns(), []string{"n", "s"}) {
				t.Errorf("%s, %d rows at a time: %s bad %s, want %s bad %s", name, rows, got, bad, want[0], want[1])
			}
		}
	}
}

// TestTableJSONL turns JSON lines into typed columns.
func TestTableJSONL(t *testing.T) {
	ctx := context.Background()
	folder := write(t, map[string]string{
		"a.jsonl": `{"text": "caf\u00e9", "n": 1, "x": 1, "b": true, "list": ["a", null], "ints": [1, 2], "o": {"k": ["\"v\""]}, "mix": 1, "nothing": null, "deep": [[1]]}
{"text": "zwei", "n": -9223372036854775808, "x": 2.5, "b": null, "list": [], "o": [1], "mix": "s\n", "n": 7}
`,
		"b.jsonl": `{"text": "drei", "list": null, "late": "here", "ints": [3], "x": null, "mix": [1]}
{"text": "vier", "ids": 18446744073709551615, "hashes": [9223372036854775807, -9223372036854775809], "far": 18446744073709551615}
{"text": "f\u00fcnf", "ids": 1, "far": 0.5}`,
	})
	table, err := OpenTable(ctx, []string{filepath.Join(folder, "*.jsonl")})
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	path := filepath.Join(folder, "out.parquet")
	w, err := table.NewWriter(path)
	if err != nil {
		t.Fatal(err)
	}
	for c, err := range table.Chunks(ctx, "text", 2) {
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Write(c); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	_, got := allRows(t, path)
	want := []string{
		`"café" "1" "1" "true" "a" - "1" "2" "{\"k\": [\"\\\"v\\\"\"]}" "1" - "[[1]]" - - - -`,
		`"zwei" "7" "2.5" - - - "[1]" "s\n" - - - - - -`,
		`"drei" - - - - "3" - "[1]" - - "here" - - -`,
		`"vier" - - - - - - - - - - "18446744073709551615" "9223372036854775807" "-9223372036854775809" "1.8446744073709552e+19"`,
		`"fünf" - - - - - - - - - - "1" - "0.5"`,
	}
	for i, r := range got {
		var parts []string
		for _, v := range r {
			if v.IsNull() {
				parts = append(parts, "-")
			} else {
				parts = append(parts, fmt.Sprintf("%q", v.String()))
			}
		}
		if s := strings.Join(parts, " "); s != want[i] {
			t.Errorf("row %d: %s\nwant %s", i, s, want[i])
		}
	}
}

// TestTableOrder: rows come as the files are named, those of a glob by their paths: an .npy of embeddings has nothing else to be joined on.
func TestTableOrder(t *testing.T) {
	folder := write(t, map[string]string{
		"a.csv": "text\na\n", "b.csv": "text\nb\n", "c1.csv": "text\nc1\n", "c2.csv": "text\nc2\n",
	})
	at := func(name string) string { return filepath.Join(folder, name) }
	table, err := OpenTable(t.Context(), []string{at("b.csv"), at("c*.csv"), at("a.csv"), at("b.csv")})
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	var texts []string
	for c, err := range table.Chunks(t.Context(), "text", 10) {
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, c.Texts...)
	}
	if want := []string{"b", "c1", "c2", "a", "b"}; !slices.Equal(texts, want) || table.Rows() != int64(len(want)) {
		t.Errorf("%d rows: %q, want %q", table.Rows(), texts, want)
	}
	for inOrder, want := range map[bool][]string{true: {"b", "c1", "c2", "a", "b"}, false: {"a", "b", "c1", "c2"}} {
		d, err := Open(t.Context(), Source{Paths: []string{at("b.csv"), at("c*.csv"), at("a.csv"), at("b.csv")}, Query: "text", Raw: true, InOrder: inOrder})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		r := d.NewReader(ReaderConfig{})
		defer r.Close()
		texts = nil
		for row := range d.Rows() {
			examples, err := r.Read(t.Context(), 0, []int64{row})
			if err != nil {
				t.Fatal(err)
			}
			texts = append(texts, examples[0].Texts...)
		}
		if !slices.Equal(texts, want) {
			t.Errorf("a dataset, in order %t: %q, want %q", inOrder, texts, want)
		}
	}
}

// A file of separated values without the column is no file of nulls, wherever it is named; one without rows does no harm.
func TestTableColumns(t *testing.T) {
	folder := write(t, map[string]string{"a.csv": "text\na\n", "none.csv": "text\n", "other.csv": "query,title\nb,c\n", "b.jsonl": "{\"text\": \"b\"}\n"})
	for names, want := range map[string]string{
		"a.csv none.csv b.jsonl": "",
		"a.csv other.csv":        `other.csv has no column "text"; its columns are "query", "title" (the first line has to name the columns)`,
		"other.csv a.csv":        `other.csv has no column "text"; its columns are "query", "title" (the first line has to name the columns)`,
	} {
		var paths, texts []string
		for name := range strings.FieldsSeq(names) {
			paths = append(paths, filepath.Join(folder, name))
		}
		table, err := OpenTable(t.Context(), paths)
		if err != nil {
			t.Fatal(err)
		}
		defer table.Close()
		for c, e := range table.Chunks(t.Context(), "text", 10) {
			if err = e; err == nil {
				texts = append(texts, c.Texts...)
			}
		}
		if want == "" && (err != nil || !slices.Equal(texts, []string{"a", "b"})) || want != "" && (!errors.Is(err, ErrMissingColumn) || !strings.HasSuffix(err.Error(), want)) {
			t.Errorf("%s: %q, %v, want %s", names, texts, err, want)
		}
	}
	// What a corpus may have, a file of it may lack.
	titles := write(t, map[string]string{"1.csv": "id,text,title\na,b,c\n", "2.csv": "id,text\nd,e\n", "r.csv": "query_id,doc_id,relevance\na,d,1\n"})
	x, err := LoadRetrieval(t.Context(), filepath.Join(titles, "1.csv"), filepath.Join(titles, "[12].csv"), filepath.Join(titles, "r.csv"))
	if err != nil || !slices.Equal(x.Docs, []string{"c b", "e"}) {
		t.Errorf("a title in one of two files: %v, %v", x, err)
	}
}

func TestTableErrors(t *testing.T) {
	ctx := context.Background()
	folder := write(t, map[string]string{
		"broken.jsonl": "{\"a\": \"x\"}\n{\"a\": \n",
		"nulls.jsonl":  "{\"a\": \"x\"}\n\n{\"a\": \" \"}\n",
		"one.jsonl":    "{\"a\": \"x\"}\n",
		"latin.jsonl":  "{\"a\": \"x\"}\n\n{\"a\": \"x\", \"b\": \"caf\xe9\"}\n",
	})
	open := func(paths ...string) error {
		table, err := OpenTable(ctx, paths)
		if err == nil {
			table.Close()
		}
		return err
	}
	for want, err := range map[string]error{
		"broken.jsonl:2: not JSON":                                        open(filepath.Join(folder, "broken.jsonl")),
		"latin.jsonl:3: the line is not UTF-8, which it has to be (iconv": open(filepath.Join(folder, "latin.jsonl")),
		"is not parquet, but":                                             open(golden("default.parquet"), filepath.Join(folder, "one.jsonl")),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	table, err := OpenTable(ctx, []string{filepath.Join(folder, "nulls.jsonl")})
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{"a": `nulls.jsonl:3, column "a": the text is blank`, "b": `has no column "b"`} {
		var last error
		for _, err := range table.Chunks(ctx, text, 10) {
			last = err
		}
		if last == nil || !strings.Contains(last.Error(), want) {
			t.Errorf("text %q: %v, want %q", text, last, want)
		}
	}
	if _, err := table.NewWriter(filepath.Join(folder, "out.parquet"), OutColumn{"a", VectorOut}); err == nil || !strings.Contains(err.Error(), `already has a column "a"`) {
		t.Error(err)
	}
	// Stopping early is no error, and null texts in parquet are found with their place.
	if table, err = OpenTable(ctx, []string{golden("nulls.parquet")}); err != nil {
		t.Fatal(err)
	}
	for c, err := range table.Chunks(ctx, "query", 1) {
		if err != nil || c.Texts[0] != "a" {
			t.Error(err)
		}
		break
	}
	for c, err := range table.Chunks(ctx, "query", 100) {
		if err == nil || !strings.Contains(err.Error(), `nulls.parquet: row group 0, row 1, column "query": the text is null`) {
			t.Error(c, err)
		}
	}
}

// Parquet files are one table where their columns hold the same, however their writers say it: an INT64 of which nothing is said is one with a
// sign. A column that differs is named with its two types, and matters only to who passes it on or asks for it.
func TestTableSchemas(t *testing.T) {
	ctx, folder := t.Context(), t.TempDir()
	at := func(name string) string { return filepath.Join(folder, name+".parquet") }
	text := parquet.Optional(parquet.String())
	long := parquet.Optional(parquet.Leaf(parquet.Int64Type))
	for name, columns := range map[string]struct {
		names []string
		nodes []parquet.Node
	}{
		"plain":    {[]string{"id", "text"}, []parquet.Node{long, text}},
		"said":     {[]string{"id", "text"}, []parquet.Node{parquet.Optional(parquet.Int(64)), text}},
		"unsigned": {[]string{"id", "text"}, []parquet.Node{parquet.Optional(parquet.Uint(64)), text}},
		"narrow":   {[]string{"id", "text"}, []parquet.Node{parquet.Optional(parquet.Int(32)), text}},
		"more":     {[]string{"url", "text", "id"}, []parquet.Node{text, parquet.Required(parquet.String()), long}},
		"other":    {[]string{"id", "text"}, []parquet.Node{long, long}},
		"lists":    {[]string{"id", "text"}, []parquet.Node{parquet.Optional(parquet.List(long)), text}},
		"required": {[]string{"id", "text"}, []parquet.Node{parquet.Optional(parquet.List(parquet.Required(parquet.Leaf(parquet.Int64Type)))), text}},
	} {
		root := orderedGroup{}
		var row parquet.Row
		for i, column := range columns.names {
			root.add(column, columns.nodes[i])
			switch {
			case columns.nodes[i] == long || name != "more" && i == 0:
				level := 1
				if !columns.nodes[i].Leaf() {
					level = map[string]int{"lists": 3, "required": 2}[name]
				}
				value := parquet.Int64Value(int64(len(name)))
				if name == "narrow" {
					value = parquet.Int32Value(6)
				}
				row = append(row, value.Level(0, level, i))
			default:
				level := 1
				if columns.nodes[i].Required() {
					level = 0
				}
				row = append(row, textValue(name+" "+column).Level(0, level, i))
			}
		}
		writeParquet(t, at(name), parquet.NewSchema("x", root), row)
	}
	for _, c := range []struct{ second, want, ids string }{
		{"said", "", "5 4"},
		{"unsigned", `column "id" is int64 in ` + at("plain") + `, and uint64 in ` + at("unsigned"), ""},
		{"narrow", `column "id" is int64 in ` + at("plain") + `, and int32 in ` + at("narrow"), ""},
		{"more", `column 1 is "id" in ` + at("plain") + `, and "url" in ` + at("more"), "5 4"},
		{"lists", `column "id" is int64 in ` + at("plain") + `, and list<int64> in ` + at("lists"), ""},
	} {
		table, err := OpenTable(ctx, []string{at("plain"), at(c.second)})
		if err != nil {
			t.Fatal(err)
		}
		w, err := table.NewWriter(at("out"), OutColumn{"n", IntOut})
		if w != nil {
			w.Abort()
		}
		if c.want == "" && err != nil || c.want != "" && (err == nil || err.Error() != c.want+": all files of a table must agree") {
			t.Errorf("%s: %v, want %q", c.second, err, c.want)
		}
		var texts, ids []string
		for chunk, err := range table.Chunks(ctx, "text", 10) {
			if err != nil {
				t.Fatal(err)
			}
			texts = append(texts, chunk.Texts...)
		}
		if got, want := fmt.Sprint(texts), "[plain text "+c.second+" text]"; got != want {
			t.Errorf("%s: texts %v, want %v", c.second, got, want)
		}
		err = table.cells(ctx, [][]string{{"id"}}, func(_ int64, cells []cell) error {
			ids = append(ids, cells[0].text)
			return nil
		})
		if got := strings.Join(ids, " "); got != c.ids || (err == nil) != (c.ids != "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: ids %q, %v, want %q", c.second, got, err, c.ids)
		}
	}
	table, err := OpenTable(ctx, []string{at("plain"), at("other")})
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range table.Chunks(ctx, "text", 10) {
		if want := `column "text" is string in ` + at("plain") + `, and int64 in ` + at("other"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	for _, c := range []struct{ a, b, want string }{
		{golden("default.parquet"), golden("required.parquet"), " not null in "},
		{at("lists"), at("required"), `column "id.element" is int64 in ` + at("lists") + ", and int64 not null in " + at("required")},
	} {
		table, err := OpenTable(ctx, []string{c.a, c.b})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := table.NewWriter(at("out")); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}

// namedType is a type as files have it that parquet-go has no name for.
type namedType struct {
	parquet.Type
	logical format.LogicalType
}

func (t namedType) LogicalType() *format.LogicalType { return &t.logical }

// writeParquet writes a file with one row group.
func writeParquet(t *testing.T, path string, schema *parquet.Schema, rows ...parquet.Row) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := parquet.NewWriter(f, schema)
	if _, err := w.WriteRows(rows); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestTableRareTypes passes on columns of half floats, and of nulls alone, as Arrow writes them.
func TestTableRareTypes(t *testing.T) {
	ctx, folder := context.Background(), t.TempDir()
	in, out := filepath.Join(folder, "in.parquet"), filepath.Join(folder, "out.parquet")
	schema := parquet.NewSchema("schema", parquet.Group{
		"a": parquet.Optional(parquet.Leaf(namedType{parquet.FixedLenByteArrayType(2), format.LogicalType{Value: &format.Float16Type{}}})),
		"b": parquet.Optional(parquet.Leaf(namedType{parquet.Int32Type, format.LogicalType{Value: &format.NullType{}}})),
		"c": parquet.String(),
	})
	want := parquet.Row{parquet.FixedLenByteArrayValue([]byte{0, 0x3c}).Level(0, 1, 0), parquet.NullValue().Level(0, 0, 1), parquet.ByteArrayValue([]byte("text")).Level(0, 0, 2)}
	writeParquet(t, in, schema, want)
	table, err := OpenTable(ctx, []string{in})
	if err != nil {
		t.Fatal(err)
	}
	w, err := table.NewWriter(out, OutColumn{"more", IntOut})
	if err != nil {
		t.Fatal(err)
	}
	for c, err := range table.Chunks(ctx, "c", 10) {
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Write(c, []int64{7}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	p, err := openParquet(out)
	if err != nil {
		t.Fatal(err)
	}
	var types []string
	for _, n := range p.leaves {
		types = append(types, n.scalarName())
	}
	if got, want := fmt.Sprint(types), "[float16 null string int64]"; got != want {
		t.Errorf("columns %s, want %s", got, want)
	}
	table, err = OpenTable(ctx, []string{out})
	if err != nil {
		t.Fatal(err)
	}
	for c, err := range table.Chunks(ctx, "", 10) {
		if err != nil {
			t.Fatal(err)
		}
		for i, v := range want {
			if got := c.leaves[i].list; len(got) != 1 || !sameValue(got[0], v) {
				t.Errorf("column %d: %+v, want %+v", i, got, v)
			}
		}
	}
}

// TestTableFieldNames: fields of another order are other columns, though their types are the same; names inside lists mean nothing.
func TestTableFieldNames(t *testing.T) {
	folder := t.TempDir()
	file := func(name, element string, fields ...string) {
		s, inner, list := orderedGroup{}, orderedGroup{}, orderedGroup{typ: parquet.List(parquet.String()).Type()}
		for _, f := range fields {
			inner.add(f, parquet.String())
		}
		one := orderedGroup{}
		one.add(element, parquet.String())
		list.add("list", parquet.Repeated(one))
		s.add("s", parquet.Required(inner))
		s.add("l", parquet.Required(list))
		row := parquet.Row{parquet.ByteArrayValue([]byte(fields[0])).Level(0, 0, 0), parquet.ByteArrayValue([]byte(fields[1])).Level(0, 0, 1), parquet.ByteArrayValue([]byte("l")).Level(0, 1, 2)}
		writeParquet(t, filepath.Join(folder, name), parquet.NewSchema("schema", s), row)
	}
	file("a.parquet", "element", "x", "y")
	file("b.parquet", "item", "x", "y")
	file("c.parquet", "element", "y", "x")
	for name, want := range map[string]string{"b": "", "c": "and struct<y, x> not null in "} {
		table, err := OpenTable(context.Background(), []string{filepath.Join(folder, "a.parquet"), filepath.Join(folder, name+".parquet")})
		if err != nil {
			t.Fatal(err)
		}
		w, err := table.NewWriter(filepath.Join(folder, "out.parquet"))
		if err == nil {
			w.Abort()
		}
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("a and %s: %v, want %q", name, err, want)
		}
	}
}

// A column whose name has a dot comes before the member of a group that is called the same.
func TestNamesWithDots(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dots.parquet")
	schema := parquet.NewSchema("schema", parquet.Group{"a": parquet.Required(parquet.Group{"b": parquet.String(), "c": parquet.String()}), "a.b": parquet.String()})
	row := parquet.Row{}
	for i, text := range []string{"a's b", "a's c", "a.b"} {
		row = append(row, parquet.ByteArrayValue([]byte(text)).Level(0, 0, i))
	}
	writeParquet(t, path, schema, row)
	d, err := Open(t.Context(), Source{Paths: []string{path}, Query: "a.b", Positive: "a.c"})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	b, err := d.ReadBlock(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if got := append(b.Texts(nil, 0, 0), b.Texts(nil, 0, 1)...); !slices.Equal(got, []string{"a.b", "a's c"}) {
		t.Errorf("%q", got)
	}
	table, err := OpenTable(t.Context(), []string{path})
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	for _, err := range table.Chunks(t.Context(), "a", 10) { // a group, which has no text
		if !errors.Is(err, ErrColumnType) || !strings.Contains(err.Error(), `column "a" is struct<b, c>, want a scalar`) {
			t.Error(err)
		}
	}
}

// A table's empty texts are errors, unless they are to keep their places; what is null is one always.
func TestTableEmpty(t *testing.T) {
	path := filepath.Join(t.TempDir(), "in.jsonl")
	if err := os.WriteFile(path, []byte("{\"a\": \"x\", \"b\": \"x\"}\n{\"a\": \"\", \"b\": null}\n{\"a\": \" \\n\", \"b\": \"y\"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	read := func(column string, keep bool) (texts []string, err error) {
		table, err := OpenTable(t.Context(), []string{path})
		if err != nil {
			t.Fatal(err)
		}
		defer table.Close()
		if keep {
			table.KeepEmpty()
		}
		for c, err := range table.Chunks(t.Context(), column, 10) {
			if err != nil {
				return nil, err
			}
			texts = append(texts, c.Texts...)
		}
		return texts, nil
	}
	if got, err := read("a", true); err != nil || !slices.Equal(got, []string{"x", "", " \n"}) {
		t.Errorf("%q, %v", got, err)
	}
	for column, keep := range map[string]bool{"a": false, "b": true} {
		if _, err := read(column, keep); err == nil || !strings.Contains(err.Error(), `in.jsonl:2, column "`+column+`": the text is `) {
			t.Errorf("column %s: %v", column, err)
		}
	}
}
