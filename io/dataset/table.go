package dataset

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"
)

// Table is a set of files with all their columns, for programs that pass data through and add to it. Parquet columns keep
// their types, nested ones included. JSON lines get the types that their values have (see tablejson.go).
//
// What is not carried over is metadata beside the schema, but for [MinedKey]: pyarrow's and pandas' notes would contradict the new columns.
type Table struct {
	files  []tableFile
	leaves []tableLeaf
	names  []string // top-level columns
	schema func(*orderedGroup) error
	json   []jsonColumn // of JSON lines
	differ error        // of parquet: how files differ, which matters to who passes all columns on
	arena  []byte       // of the text at hand, if it is joined
	empty  bool         // texts of nothing are texts
	bad    bool         // rows that can't be read are rows of nulls
	splits Splits       // that URLs stand for
}

// KeepEmpty has texts without anything in them taken, as corpora have some and their rows are to keep their places. Otherwise they are errors.
// One that is null is an error still.
func (t *Table) KeepEmpty() { t.empty = true }

type tableFile struct {
	file
	names []string             // of separated values: its columns
	cells map[string]valueKind // and their kinds
	own   map[int]*node        // of parquet files that differ: where it has the table's leaves that have been asked for
}

// add adds a file, behind the others.
func (t *Table) add(f file) *tableFile {
	f.first = t.Rows()
	t.files = append(t.files, tableFile{file: f})
	return &t.files[len(t.files)-1]
}

// tableLeaf is a column of scalars in the schema's tree.
type tableLeaf struct {
	column
	path string // a.list.element
	name string // of the top-level column
}

// OpenTable opens parquet, JSONL, CSV or TSV files, named or globbed as in [Source]. Parquet files must all have the same columns, in their order, for
// NewWriter, which passes them on, and in any case those that are asked for, by name; Chunks has no others where files differ. Rows
// come in the order in which the files are named, those of a glob in the order of their paths; a file named twice has its rows twice.
// JSON lines are read once to find out their types; columns of CSV and TSV are text, lists of JSON in their cells too. Close releases
// temporary files.
func OpenTable(ctx context.Context, patterns []string) (*Table, error) {
	return openTable(ctx, patterns, &Table{})
}

// OpenTableOf is [OpenTable] where URLs that name datasets as a whole stand for other splits than train.
func OpenTableOf(ctx context.Context, patterns []string, s Splits) (*Table, error) {
	return openTable(ctx, patterns, &Table{splits: s, bad: badRows(ctx) != nil})
}

// OpenTableWithBad is [OpenTable] for programs that leave out rows that can't be used. A line that is no JSON, or a row with more or fewer fields
// than its file has columns, is no error: it has no part in the columns' types and keeps its place as a row of nulls, and [Chunk].Bad says what
// is wrong with it. So it does of rows whose texts can't be used: an empty one stands for them.
func OpenTableWithBad(ctx context.Context, patterns []string) (*Table, error) {
	return openTable(ctx, patterns, &Table{bad: true})
}

func openTable(ctx context.Context, patterns []string, t *Table) (*Table, error) {
	paths, err := expandInOrder(ctx, patterns, t.splits)
	if err != nil {
		return nil, err
	}
	if isParquet(paths[0]) {
		err = t.openParquet(paths)
	} else {
		err = t.openJSONL(ctx, paths)
	}
	if err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

// Close removes temporary files.
func (t *Table) Close() error {
	for _, f := range t.files {
		if f.jsonl != nil {
			f.jsonl.close()
		}
	}
	return nil
}

// Rows returns the number of rows.
func (t *Table) Rows() int64 {
	n := int64(0)
	for i := range t.files {
		n += t.files[i].rows()
	}
	return n
}

// Columns returns the names of the top-level columns.
func (t *Table) Columns() []string { return t.names }

func (t *Table) openParquet(paths []string) error {
	for i, path := range paths {
		if !isParquet(path) {
			return fail(ErrColumnType, "%s is not parquet, but %s is: a table is one or the other", path, paths[0])
		}
		p, err := openParquet(path)
		if err != nil {
			return err
		}
		if t.add(file{parquet: p}); i > 0 && t.differ == nil {
			t.differ = sameSchema(t.files[0].parquet, p)
		}
	}
	p := t.files[0].parquet
	var walk func(n *node, path, top string)
	walk = func(n *node, path, top string) {
		for _, c := range n.children {
			name, inner := top, path+c.elem.Name
			if n == p.root {
				name = c.elem.Name
				t.names = append(t.names, name)
			}
			if c.leaf < 0 {
				walk(c, inner+".", name)
				continue
			}
			col := column{leaf: c, list: c.maxRep > 0, listDef: c.maxDef}
			t.leaves = append(t.leaves, tableLeaf{column: col, path: inner, name: name})
		}
	}
	walk(p.root, "", "")
	t.schema = func(g *orderedGroup) error { return copySchema(p, g) }
	return nil
}

// sameSchema compares two files column by column, and names the first that differs.
func sameSchema(a, b *parquetFile) error {
	for i := range max(len(a.root.children), len(b.root.children)) {
		switch {
		case i >= len(a.root.children):
			return differ("%s has column %q, which %s lacks", b.path, b.root.children[i].elem.Name, a.path)
		case i >= len(b.root.children):
			return differ("%s has column %q, which %s lacks", a.path, a.root.children[i].elem.Name, b.path)
		}
		x, y := a.root.children[i], b.root.children[i]
		if x.elem.Name != y.elem.Name {
			return differ("column %d is %q in %s, and %q in %s", i+1, x.elem.Name, a.path, y.elem.Name, b.path)
		}
		where, x, y := unlike(x.elem.Name, x, y)
		switch {
		case x != nil && x.nullableName() == y.nullableName():
			return differ("column %q, which is %s, is stored in another way in %s than in %s", where, x.nullableName(), b.path, a.path)
		case x != nil:
			return differ("column %q is %s in %s, and %s in %s", where, x.nullableName(), a.path, y.nullableName(), b.path)
		}
	}
	return nil
}

func differ(format string, args ...any) error {
	return fail(ErrColumnType, format+": all files of a table must agree", args...)
}

// unlike finds where two columns of a name differ in what their values are; nil: nowhere. Names that lists and maps have of their own mean nothing.
func unlike(path string, a, b *node) (where string, x, y *node) {
	if a.repetition() != b.repetition() || a.leaf >= 0 != (b.leaf >= 0) || len(a.children) != len(b.children) {
		return path, a, b
	}
	if a.leaf >= 0 {
		if a.elem.Type != b.elem.Type || a.scalarName() != b.scalarName() || a.width() != b.width() {
			return path, a, b
		}
		return "", nil, nil
	}
	wraps := a.isList() || a.isMap() || a.repetition() == format.Repeated && len(a.children) == 1
	for i, p := range a.children {
		q, in := b.children[i], path
		if !wraps {
			if in += "." + p.elem.Name; p.elem.Name != q.elem.Name {
				return path, a, b
			}
		} else if a.repetition() == format.Repeated {
			in += ".element"
		}
		if where, x, y := unlike(in, p, q); x != nil {
			if wraps && a.nullableName() != b.nullableName() { // list<string> says more than string
				return path, a, b
			}
			return where, x, y
		}
	}
	return "", nil, nil
}

// nullableName is a type, and whether it has nulls.
func (n *node) nullableName() string {
	if n.repetition() == format.Required {
		return n.typeName() + " not null"
	}
	return n.typeName()
}

// copySchema adds a file's columns to a schema to write. Types come from parquet-go, which knows the logical ones.
func copySchema(p *parquetFile, g *orderedGroup) error {
	f, size, err := openFile(p.path, p.size)
	if err != nil {
		return err
	}
	defer f.Close()
	err = guard(func() error {
		file, err := parquet.OpenFile(f, size, parquet.SkipPageIndex(true), parquet.SkipBloomFilters(true))
		if err != nil {
			return err
		}
		for i, c := range file.Root().Columns() {
			g.add(c.Name(), copyNode(c, p.root.children[i]))
		}
		return nil
	})
	if err != nil {
		return p.wrap(err)
	}
	return nil
}

func copyNode(c *parquet.Column, as *node) parquet.Node {
	var n parquet.Node
	if c.Leaf() {
		n = parquet.Encoded(parquet.Leaf(leafType(c.Type(), as.elem)), &parquet.Plain)
	} else {
		g := orderedGroup{typ: c.Type()}
		for i, child := range c.Columns() {
			g.add(child.Name(), copyNode(child, as.children[i]))
		}
		n = g
	}
	switch {
	case c.Optional():
		return parquet.Optional(n)
	case c.Repeated():
		return parquet.Repeated(n)
	}
	return parquet.Required(n)
}

// leafType is parquet-go's type of a leaf, with two logical types that it does not know how to write.
func leafType(t parquet.Type, elem *format.SchemaElement) parquet.Type {
	switch elem.LogicalType.Value.(type) {
	case *format.NullType: // nothing but nulls: Arrow says int32, of which there are none
		t = parquet.Int32Type
	case *format.Float16Type:
	default:
		return t
	}
	return annotatedType{t, &elem.LogicalType}
}

type annotatedType struct {
	parquet.Type
	logical *format.LogicalType
}

func (t annotatedType) LogicalType() *format.LogicalType { return t.logical }

// Chunk is a run of rows of a table.
type Chunk struct {
	First int64    // row id of its first row
	Rows  int      //
	Texts []string // of the text column that Chunks was asked for
	Empty int      // of those, after KeepEmpty, how many have nothing in them

	Bad map[int]*RowError // of OpenTableWithBad: rows (0..Rows-1) that can't be used

	leaves []values // of the table's leaves
}

// Chunks yields all rows in order, at most rows at a time. text names a column of strings, or is a template of several ("{title} {text}"), which each
// chunk shows as Texts, checked as training texts are (null, blank, not UTF-8: a *RowError); "" for none. A chunk is valid until the next.
func (t *Table) Chunks(ctx context.Context, text string, rows int) iter.Seq2[*Chunk, error] {
	return func(yield func(*Chunk, error) bool) {
		all := make([]int, len(t.leaves))
		for i := range all {
			all[i] = i
		}
		var col tableText
		if text != "" {
			var err error
			if col, err = t.textColumn(text); err != nil {
				yield(nil, err)
				return
			}
		}
		switch {
		case t.differ != nil && text == "":
			yield(nil, t.differ)
			return
		case t.differ != nil: // the others are no table
			all = col.leaves
		}
		for c, err := range t.chunks(ctx, all, rows) {
			if err == nil && text != "" {
				c.Texts, c.Empty, err = t.texts(c, &col, c.Texts[:0])
			}
			if err != nil {
				yield(nil, err)
				return
			}
			if !yield(c, nil) {
				return
			}
		}
	}
}

// Texts are another text column of a chunk, or a template, checked likewise.
func (t *Table) Texts(c *Chunk, column string) ([]string, error) {
	if t.differ != nil {
		return nil, t.differ
	}
	col, err := t.textColumn(column)
	if err != nil {
		return nil, err
	}
	texts, _, err := t.texts(c, &col, nil)
	return texts, err
}

// Blank tells that a text has nothing in it but white space.
func Blank(text string) bool {
	return strings.IndexFunc(text, func(r rune) bool { return r > ' ' }) < 0
}

// isEmpty tells that checkText's reason is that a text says nothing.
func isEmpty(reason string) bool { return reason == textEmpty || reason == textBlank }

// CheckTexts reads columns of texts, or templates, as Chunks does, and returns the first row of which one can't be used. It is for programs that stop at
// such a row and do much with those before it.
func (t *Table) CheckTexts(ctx context.Context, columns ...string) error {
	var cols []tableText
	var leaves []int
	for _, name := range columns {
		col, err := t.textColumn(name)
		if err != nil {
			return err
		}
		cols, leaves = append(cols, col), append(leaves, col.leaves...)
	}
	slices.Sort(leaves)
	for c, err := range t.chunks(ctx, slices.Compact(leaves), 4096) {
		if err != nil {
			return err
		}
		for i := range c.Rows {
			for k := range cols {
				if _, _, bad := t.usable(c, &cols[k], i); bad != nil {
					return bad
				}
			}
		}
	}
	return nil
}

// Leave says of a row (0..Rows-1) that it can't be used.
func (c *Chunk) Leave(row int, bad *RowError) {
	if c.Bad == nil {
		c.Bad = map[int]*RowError{}
	}
	c.Bad[row] = bad
}

// Drop takes rows (0..Rows-1, ascending) out of a chunk, and their texts: of those that follow a row's id is no longer First and its place, and
// what Bad says is no longer of theirs.
func (c *Chunk) Drop(rows []int) {
	if len(rows) == 0 {
		return
	}
	for l := range c.leaves {
		list, left := c.leaves[l].list[:0], rows
		row, out := -1, false
		for _, v := range c.leaves[l].list {
			if v.RepetitionLevel() == 0 { // begins a row
				row++
				if out = len(left) > 0 && left[0] == row; out {
					left = left[1:]
				}
			}
			if !out {
				list = append(list, v)
			}
		}
		c.leaves[l].list = list
	}
	if c.Texts != nil {
		for i, row := range rows {
			c.Texts = slices.Delete(c.Texts, row-i, row-i+1)
		}
	}
	c.Rows -= len(rows)
}

// textLeaf returns the leaf of a column of strings. In JSON lines some rows' values may be others, which usable says of these rows.
func (t *Table) textLeaf(name string) (int, error) {
	leaf, list, typ, err := t.find(name)
	at := 0
	if err == nil && t.json != nil {
		if at = t.json[leaf].file; t.json[leaf].mixed() {
			return leaf, nil
		}
	}
	if err == nil && (typ != "string" && typ != "null" || list) {
		if list {
			typ = "list<" + typ + ">"
		}
		err = fail(ErrColumnType, "%s: column %q is %s, want string", t.files[at].path(), name, typ)
	}
	return leaf, err
}

// find returns the leaf of a column of scalars, or of lists of scalars, and its type.
func (t *Table) find(name string) (leaf int, list bool, typ string, err error) {
	if p := t.files[0].parquet; p != nil {
		c, n, err := p.column(name)
		if err != nil {
			return 0, false, "", err
		}
		if c.leaf == nil {
			return 0, false, n.typeName(), fail(ErrColumnType, "%s: column %q is %s, want a scalar", p.path, name, n.typeName())
		}
		if t.differ != nil {
			err = t.locate(name, c, n)
		}
		return c.leaf.leaf, c.list, c.leaf.scalarName(), err
	}
	for i, c := range t.json {
		if c.name == name {
			return i, c.list, c.kind.String(), t.checkCells(name)
		}
	}
	return 0, false, "", t.files[0].jsonl.missing(name, t.names)
}

// locate finds a column of the first file in the others, where it must be the same though others differ. Whether it may be null does not matter.
func (t *Table) locate(name string, first column, top *node) error {
	for i := range t.files {
		f := &t.files[i]
		c, n, err := f.parquet.column(name)
		if err != nil {
			return err
		}
		if c.leaf == nil || c.list != first.list || c.leaf.elem.Type != first.leaf.elem.Type || c.leaf.scalarName() != first.leaf.scalarName() || c.leaf.width() != first.leaf.width() {
			return differ("column %q is %s in %s, and %s in %s", name, top.typeName(), t.files[0].path(), n.typeName(), f.parquet.path)
		}
		if f.own == nil {
			f.own = map[int]*node{}
		}
		f.own[first.leaf.leaf] = c.leaf
	}
	return nil
}

// checkCells refuses a column that a file of separated values does not have, which is no column of nulls as it may be with JSON lines, and one
// of lists. The table passes these on as the text that they are, but they are no text to embed and no value to look up.
func (t *Table) checkCells(name string) error {
	for _, f := range t.files {
		if f.cells == nil || f.rows() == 0 {
			continue
		}
		s, err := f.jsonl.shape(name, f.names, f.cells)
		if err != nil {
			return err
		}
		if s.list {
			return fail(ErrColumnType, `%s: the cells of column %q are lists, such as ["a", "b"]: want one value in each%s`, f.jsonl.path, name, textsAsLists)
		}
	}
	return nil
}

// texts appends a chunk's texts of a column.
func (t *Table) texts(c *Chunk, col *tableText, to []string) (texts []string, empty int, err error) {
	for i := range c.Rows {
		if c.Bad[i] != nil { // nothing of the row is a text, not even an empty one
			to = append(to, "")
			continue
		}
		text, says, bad := t.usable(c, col, i)
		switch {
		case bad != nil && !t.bad:
			return nil, 0, bad
		case bad != nil:
			c.Leave(i, bad)
		case !says:
			empty++
		}
		to = append(to, string(text))
	}
	return to, empty, nil
}

// usable is a row's text of a column, valid until the next, and whether it says anything, or what is wrong with it.
func (t *Table) usable(c *Chunk, col *tableText, row int) (text []byte, says bool, bad *RowError) {
	id := c.First + int64(row)
	for _, leaf := range col.leaves {
		if kind := c.leaves[leaf].others[row]; kind != "" {
			return nil, false, &RowError{Row: id, Location: t.Locate(id), Column: t.json[leaf].name, Reason: fmt.Sprintf("it is %s, want a string", kind)}
		}
	}
	text, null := col.text(c, row, &t.arena)
	reason := "null"
	if !null {
		reason = checkText(text)
	}
	if reason == "" || t.empty && isEmpty(reason) {
		return text, reason == "", nil
	}
	return nil, false, &RowError{Row: id, Location: t.Locate(id), Column: col.name, Reason: theText + reason}
}

// Locate says where a row is at rest.
func (t *Table) Locate(row int64) Location {
	for i := range t.files {
		f := &t.files[i]
		if row < f.first+f.rows() {
			return f.locate(row)
		}
	}
	return Location{File: "no such row", RowGroup: -1, Row: row}
}

// chunks yields the given leaves of all rows.
func (t *Table) chunks(ctx context.Context, leaves []int, rows int) iter.Seq2[*Chunk, error] {
	return func(yield func(*Chunk, error) bool) {
		if rows < 1 {
			yield(nil, fmt.Errorf("chunks of %d rows", rows))
			return
		}
		c := &Chunk{leaves: make([]values, len(t.leaves)+len(t.json))}
		send := func(first int64, n int) bool {
			c.First, c.Rows = first, n
			more := yield(c, nil)
			c.Bad = nil
			return more
		}
		for i := range t.files {
			f := &t.files[i]
			var more bool
			var err error
			if f.parquet != nil {
				more, err = t.parquetChunks(ctx, f, leaves, rows, c, send)
			} else {
				more, err = t.jsonChunks(ctx, f, rows, c, send)
			}
			if err != nil {
				yield(nil, err)
				return
			}
			if !more {
				return
			}
		}
	}
}

// parquetChunks reads a file. more is false when the receiver wants no more.
func (t *Table) parquetChunks(ctx context.Context, f *tableFile, leaves []int, rows int, c *Chunk, send func(int64, int) bool) (more bool, err error) {
	p := f.parquet
	file, _, err := openFile(p.path, p.size)
	if err != nil {
		return false, err
	}
	defer file.Close()
	readers := make([]columnReader, len(leaves))
	first := f.first
	for g := range p.meta.RowGroups {
		n := p.meta.RowGroups[g].NumRows
		for k, leaf := range leaves {
			col := t.leaves[leaf].column
			if col.leaf = p.leaves[leaf]; t.differ != nil {
				col.leaf = f.own[leaf]
			}
			ch, err := p.chunk(g, col)
			if err != nil {
				return false, p.wrapColumn(g, t.leaves[leaf].path, err)
			}
			readers[k].reset(file, ch)
		}
		for from := int64(0); from < n; from += int64(rows) {
			if err := ctx.Err(); err != nil {
				return false, err
			}
			to := min(n, from+int64(rows))
			for k, leaf := range leaves {
				if err := t.readLeaf(&readers[k], &c.leaves[leaf], leaf, from, to); err != nil {
					return false, p.wrapColumn(g, t.leaves[leaf].path, err)
				}
			}
			if !send(first+from, int(to-from)) {
				return false, nil
			}
		}
		first += n
	}
	return true, nil
}

func (t *Table) readLeaf(r *columnReader, v *values, leaf int, from, to int64) error {
	*v = values{list: v.list[:0]} // a new arena: the caller may still hold texts of the old one
	return guard(func() error { return r.readValues(v, from, to, leaf) })
}

// TableWriter writes a table's columns and more beside them.
type TableWriter struct {
	w    *ParquetWriter
	t    *Table
	more []OutColumn
}

// NewWriter creates a parquet file (as [NewParquetWriter] does) with the table's columns, in their order, and then more.
func (t *Table) NewWriter(path string, more ...OutColumn) (*TableWriter, error) {
	if t.differ != nil {
		return nil, t.differ
	}
	for _, m := range more {
		if m.Name == "" {
			return nil, fail(ErrColumnType, "%s: the new column needs a name (--output-column)", path)
		}
		if slices.Contains(t.names, m.Name) {
			return nil, fail(ErrColumnType, "%s already has a column %q: the new one needs another name (--output-column)", t.files[0].path(), m.Name)
		}
	}
	root := orderedGroup{}
	if err := t.schema(&root); err != nil {
		return nil, err
	}
	for _, m := range more {
		if err := root.addOut(path, m); err != nil {
			return nil, err
		}
	}
	w, err := newParquetWriter(path, root)
	if err != nil {
		return nil, err
	}
	w.columns = more
	for _, f := range t.files {
		if f.parquet == nil {
			break
		}
		if mined := f.parquet.said(MinedKey); slices.Contains(t.names, mined) { // a column that is written anew has other scores
			w.SetMetadata(MinedKey, mined)
			break
		}
	}
	return &TableWriter{w: w, t: t, more: more}, nil
}

// Write appends a chunk of the table with the values of the additional columns for its rows (as in ParquetWriter.Write).
func (w *TableWriter) Write(c *Chunk, more ...any) error {
	if w.w.err != nil {
		return w.w.err
	}
	rows, err := w.w.rowsOf(more)
	if err != nil {
		return err
	}
	if len(more) > 0 && rows != c.Rows {
		return fmt.Errorf("%s: %d rows of new columns for %d rows of the table", w.w.path, rows, c.Rows)
	}
	for i := range c.leaves {
		if err := w.w.put(i, c.leaves[i].list); err != nil {
			return err
		}
	}
	for i := range more {
		if err := w.w.put(len(c.leaves)+i, w.w.values(more[i], len(c.leaves)+i, 0, rows)); err != nil {
			return err
		}
	}
	return w.w.endSlice(c.Rows)
}

// Close completes the file, as ParquetWriter.Close does.
func (w *TableWriter) Close() error { return w.w.Close() }

// Abort removes the temporary file.
func (w *TableWriter) Abort() { w.w.Abort() }
