package dataset

import (
	"context"
	"fmt"
	"iter"
	"math"
	"os"
	"unicode/utf8"

	"github.com/parquet-go/parquet-go"
)

// Block is a run of consecutive rows, decoded: the unit in which files are read. Its texts are stored one after the other;
// nothing is allocated per text.
type Block struct {
	First int64 // row id of its first row
	Rows  int

	d       *Dataset
	texts   []textColumn      // the source columns that hold texts, and then the joined ones
	numbers []rowsOf[float32] // the source columns that hold numbers; null is NaN
	bad     map[int]badRow
	raw     []byte // JSON lines, or ids row by row; the arena of all text columns then
	values  values
}

type badRow struct{ column, reason string }

// Blocks returns the number of blocks.
func (d *Dataset) Blocks() int { return len(d.blocks) }

// ReadBlock reads and decodes block b. An error means that the block can't be read; single rows that can't be used are
// told by Check.
func (d *Dataset) ReadBlock(ctx context.Context, b int) (*Block, error) {
	r := d.NewScanner()
	defer r.Close()
	out := new(Block)
	return out, r.Read(ctx, b, out)
}

// BlockRows returns the id of a block's first row, and its number of rows.
func (d *Dataset) BlockRows(b int) (first int64, rows int) {
	return d.blocks[b].first, int(d.blocks[b].rows)
}

// Lists tells which columns of [Source] (the query, the positive, the negatives; or the query, the documents) are lists of texts, ColumnName what they are called.
func (d *Dataset) Lists() []bool {
	var lists []bool
	for _, r := range d.roles {
		lists = append(lists, d.listed(r.source).list)
	}
	return lists
}

// ColumnName is the name or the template of a column of [Source].
func (d *Dataset) ColumnName(c int) string { return d.textName(d.roles[c].source) }

// Texts appends to dst what the files hold for the given row (0..Rows-1 of the block) and column of [Source]: 0 is the
// query, 1 the positive, 2.. the negatives, or 1 the documents. A list gives all its texts; nulls read as "". They are valid as long as the block.
func (b *Block) Texts(dst []string, row, column int) []string {
	t := &b.texts[b.d.roles[column].source]
	for _, s := range t.row(row) {
		if s.n == null {
			dst = append(dst, "")
			continue
		}
		dst = append(dst, string(t.bytes(s)))
	}
	return dst
}

// TextBytes is how many bytes of text the rows have in the columns of [Source]; no text is copied to count them.
func (b *Block) TextBytes() (n int64) {
	for _, r := range b.d.roles {
		for _, s := range b.texts[r.source].values {
			if s.n != null {
				n += int64(s.n)
			}
		}
	}
	return n
}

// Weight returns the row's weight, 1 if the source names no column for it.
func (b *Block) Weight(row int) float32 {
	if b.d.number.weight < 0 {
		return 1
	}
	return b.numbers[b.d.number.weight].values[row]
}

// Check returns what is wrong with a row as a *RowError: a text that is null, blank or not UTF-8, a list without elements
// or of a length that the others don't have, a value of the wrong type, a line that isn't JSON, a weight below 0, a label or a
// score that is no number, or none for [Source].CheckLabel or CheckScore, a text for CheckText, a number of negatives for CheckNegatives, other scores than
// documents. Of lists every text and score counts, also those that [Source].NegativesPerQuery leaves out of an epoch.
func (b *Block) Check(row int) error {
	if column, reason := b.check(row); reason != "" {
		return b.d.rowError(b.First+int64(row), column, reason)
	}
	return nil
}

func (b *Block) check(row int) (column, reason string) {
	if bad, ok := b.bad[row]; ok {
		return bad.column, bad.reason
	}
	for i := range b.texts {
		t, s := &b.texts[i], b.d.listed(i)
		if i < b.d.firstNumber && !s.direct {
			continue // a template's part: null or empty are well
		}
		list := t.row(row)
		if t.list && len(list) == 0 && !s.ragged {
			return s.name, "the list is null or empty"
		}
		if s.exact > 0 && len(list) != s.exact {
			return s.name, fmt.Sprintf("the list has %d texts, the first one has %d: negatives_per_query takes so many of each", len(list), s.exact)
		}
		if b.d.tokens != nil {
			continue // prep has looked at the texts
		}
		for k, sp := range list {
			reason := ""
			switch {
			case sp.n == null && sp.off == missing:
				reason = "missing: the row has no such key"
			case sp.n == null:
				reason = "null"
			default:
				reason = checkText(t.bytes(sp))
			}
			if reason != "" && t.of != nil && sp.n != null {
				reason = fmt.Sprintf("an id, %.100q, of a text that is %s", t.of.id(sp.off), reason)
			}
			if reason != "" && t.list {
				return s.name, fmt.Sprintf("text %d of the list is %s", k, reason)
			}
			if reason != "" && s.id {
				return s.name, "it is " + reason
			}
			if reason != "" {
				return b.d.textName(i), theText + reason
			}
		}
	}
	if b.d.src.CheckText != nil {
		if column, reason := b.checkTexts(row); reason != "" {
			return column, reason
		}
	}
	if b.d.src.CheckNegatives != nil {
		if column, reason := b.checkNegatives(row); reason != "" {
			return column, reason
		}
	}
	return b.checkNumbers(row)
}

// checkNegatives asks CheckNegatives of a row. The column is the first one of negatives, or else the positive's.
func (b *Block) checkNegatives(row int) (column, reason string) {
	n, found := 0, false
	for role, r := range b.d.roles {
		if r.role == Query {
			continue
		}
		if !found {
			column, found = b.d.textName(r.source), r.role == Negative
		}
		if r.role == Negative && r.picks != AllNegatives {
			n += r.picks
		} else if r.role == Negative {
			n += max(0, len(b.texts[r.source].row(row))-b.d.firstText(role))
		}
	}
	err := b.d.src.CheckNegatives(n)
	switch {
	case err == nil:
		return "", ""
	case n == 0 && b.d.src.Documents != "":
		return column, "the list has one document, and it takes two or more: " + err.Error()
	}
	return column, err.Error()
}

// checkTexts asks CheckText of each of a row's texts.
func (b *Block) checkTexts(row int) (column, reason string) {
	for role, r := range b.d.roles {
		t := &b.texts[r.source]
		for k, s := range t.row(row) {
			if k < b.d.firstText(role) {
				continue
			}
			if b.d.tokens != nil {
				reason = b.d.src.CheckText(r.role, "", idsOf(t.bytes(s)))
			} else {
				reason = b.d.src.CheckText(r.role, string(t.bytes(s)), nil)
			}
			if reason != "" && t.list {
				return b.d.textName(r.source), fmt.Sprintf("text %d of the list: %s", k, reason)
			}
			if reason != "" {
				return b.d.textName(r.source), reason
			}
		}
	}
	return "", ""
}

const theText, textEmpty, textBlank = "the text is ", "empty", "blank"

// checkText tells why a text can't be trained on; "" if it can.
func checkText(b []byte) string {
	if len(b) == 0 {
		return textEmpty
	}
	for i, c := range b {
		if c > ' ' {
			if !utf8.Valid(b[i:]) {
				return textNotUTF8
			}
			return ""
		}
	}
	return textBlank
}

// Row is a row of a dataset as its file holds it, in its block.
type Row struct {
	*Block
	Place int // in the block
}

// Column appends the row's texts of a column, as [Block.Texts] does.
func (r Row) Column(to []string, column int) []string { return r.Texts(to, r.Place, column) }

// Each yields all rows in order, and with those that can't be used why, a *[RowError]. Any other error is the last that it yields.
func (d *Dataset) Each(ctx context.Context) iter.Seq2[Row, error] {
	return func(yield func(Row, error) bool) {
		for n := range d.Blocks() {
			b, err := d.ReadBlock(ctx, n)
			if err != nil {
				yield(Row{}, err)
				return
			}
			for i := range b.Rows {
				if !yield(Row{b, i}, b.Check(i)) {
					return
				}
			}
		}
	}
}

// Scanner reads blocks one after the other; in their order, it decodes each page once. It is for one goroutine.
type Scanner struct {
	d       *Dataset
	columns []columnReader
	parser  jsonlParser
	file    int32 // the open parquet file
	f       *os.File
	tokens  []tokenReaders // of the text columns
	atRest  bool           // blocks have the rows that are at rest, and of ids these
}

// NewScanner returns a scanner that has read nothing.
func (d *Dataset) NewScanner() *Scanner {
	return &Scanner{d: d, columns: make([]columnReader, len(d.sources)), parser: jsonlParser{want: d.sources}, file: -1}
}

// Close closes files.
func (r *Scanner) Close() {
	if r.f != nil {
		r.f.Close()
		r.f, r.file = nil, -1
	}
}

// Read is [Dataset.ReadBlock] of block i into the memory that b has.
func (r *Scanner) Read(ctx context.Context, i int, b *Block) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	ref := &r.d.blocks[i]
	f := &r.d.files[ref.file]
	b.reset(r.d, ref, f.jsonl != nil || r.d.tokens != nil)
	if f.jsonl != nil {
		return r.readJSONL(f.jsonl, ref, b)
	}
	if r.file != ref.file {
		r.Close()
		file, _, err := openFile(f.path(), f.parquet.size)
		if err != nil {
			return err
		}
		r.f, r.file = file, ref.file
	}
	for k := range r.d.sources {
		err := guard(func() error {
			if r.d.tokens != nil && k < r.d.firstNumber {
				return r.readTokens(f, ref, k, b)
			}
			return r.readColumn(f, ref, k, b)
		})
		if err != nil {
			return f.parquet.wrapColumn(int(ref.part), r.d.sources[k].name, err)
		}
	}
	if r.d.tokens != nil {
		if err := r.weave(f, ref, b); err != nil {
			return err
		}
	}
	r.complete(ref, b)
	return nil
}

// complete makes of what is at rest what the dataset has.
func (r *Scanner) complete(ref *blockRef, b *Block) {
	if r.atRest {
		return
	}
	b.drop(ref.out)
	b.resolve()
	b.join()
}

// reset empties a block; shared tells that its text columns will have one arena.
func (b *Block) reset(d *Dataset, ref *blockRef, shared bool) {
	b.First, b.Rows, b.d = ref.first, int(ref.rows)+len(ref.out), d
	if n := d.firstNumber + len(d.joins); len(b.texts) != n {
		b.texts = make([]textColumn, n)
	}
	for i := range b.texts {
		if b.raw != nil && i < d.firstNumber {
			b.texts[i].arena = nil // appending to a shared one would mix the columns
		}
		b.texts[i].reset(d.listed(i).list)
	}
	numbers := d.sources[d.firstNumber:]
	if len(b.numbers) != len(numbers) {
		b.numbers = make([]rowsOf[float32], len(numbers))
	}
	for i, s := range numbers {
		b.numbers[i].reset(s.list)
	}
	if !shared {
		b.raw = nil
	}
	b.bad = nil
}

func (r *Scanner) readColumn(f *dataFile, ref *blockRef, k int, b *Block) error {
	c := f.groups[ref.part][k]
	col := &r.columns[k]
	col.reset(r.f, c)
	from, to := ref.from, ref.from+int64(b.Rows)
	if r.d.sources[k].number {
		b.values = values{list: b.values.list[:0]}
		if err := col.readValues(&b.values, from, to, 0); err != nil {
			return err
		}
		n := &b.numbers[k-r.d.firstNumber]
		takeNumbers(n, &b.values, c.column)
		return n.end(b.Rows)
	}
	t := &b.texts[k]
	if r.d.sources[k].id {
		b.values = values{list: b.values.list[:0]}
		if err := col.readValues(&b.values, from, to, 0); err != nil {
			return err
		}
		b.takeIDs(k, c.column)
		return t.end(b.Rows)
	}
	if err := col.readTexts(t, from, to); err != nil {
		return err
	}
	return t.end(b.Rows)
}

// fault notes what is wrong with a row, unless something is already.
func (b *Block) fault(row int, column, reason string) {
	if b.bad == nil {
		b.bad = map[int]badRow{}
	}
	if _, there := b.bad[row]; !there {
		b.bad[row] = badRow{column, reason}
	}
}

// number turns a value into a float; NaN for null.
func number(v parquet.Value, leaf *node) float64 {
	switch {
	case v.IsNull():
		return math.NaN()
	case v.Kind() == parquet.Boolean:
		return truth(v.Boolean())
	case v.Kind() == parquet.Float:
		return float64(v.Float())
	case v.Kind() == parquet.Double:
		return v.Double()
	case v.Kind() == parquet.Int32 && leaf.unsigned():
		return float64(v.Uint32())
	case v.Kind() == parquet.Int32:
		return float64(v.Int32())
	case leaf.unsigned():
		return float64(v.Uint64())
	}
	return float64(v.Int64())
}

func (r *Scanner) readJSONL(j *jsonlFile, ref *blockRef, b *Block) error {
	raw, err := j.read(j.blocks[ref.part], b.raw)
	if err != nil {
		return asCorrupt(fmt.Errorf("%s: %w", j.path, err))
	}
	b.raw = raw
	r.parser.strings = j.text
	row := 0
	lines(raw, func(from, to int) error {
		column, reason := r.parser.parse(raw, from, to, b.texts[:r.d.firstNumber], b.numbers)
		if reason != "" {
			b.fault(row, column, reason)
		}
		row++
		return nil
	})
	if row != b.Rows {
		return fail(ErrCorrupt, "%s has changed while it was in use: %d lines where there were %d", j.path, row, b.Rows)
	}
	for i := range b.numbers {
		b.numbers[i].end(row)
	}
	for i := range r.d.firstNumber {
		b.texts[i].arena = raw
		b.texts[i].end(row)
	}
	r.complete(ref, b)
	return nil
}
