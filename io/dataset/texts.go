package dataset

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/parquet-go/parquet-go"
	"github.com/zeebo/xxh3"

	"contraflow/io/spelling"
)

// Rows that name texts by ids, as MS MARCO's and BEIR's do: a corpus is written once, and not once for each row that has a document of it.
//
// The texts of all files are put one after the other into a temporary file, which is mapped into memory: the system keeps what of it is used, and
// lets go of the rest where memory is short. What finds them takes 29 to 35 bytes a text, outside the Go heap. A block's ids become the numbers of
// their texts when it is decoded, and are then read as other texts are.

// TextSource says which columns of which files, named as in [Source], are texts and their ids.
type TextSource struct {
	Paths []string
	ID    string // ids as Source.Queries says; "": id, or _id
	Text  string // may be a template; "": text, behind title and a space where there is such a column, as BEIR's documents are read
}

// Texts are texts by their ids. They are safe for concurrent use.
type Texts struct {
	from   string    // their files, for messages
	bytes  []byte    // of each text the length of its id, that, and the text
	begins []uint64  // in these, of each text, and the end
	hashes []Hash128 // of each text
	slots  []uint32  // 1 + a text's number, or 0, where its id's hash says, or in the next slot that was free
	memory slab
	hash   Hash128
	notes  []string
}

// OpenTexts reads all texts. Files without rows, rows that can't be read, an id that is null or empty, and one that comes twice with different texts
// are errors; a context with [WithBadRows] hears of such rows and ids, and reading goes on. Texts may be anything: whether one can be used is asked of the
// rows that name it. A .tsv file of two columns may lack the first line that names them, as MS MARCO's do, if its ids are numbers. progress may be nil.
// Close gives the memory back, when nothing reads rows of these texts any more.
func OpenTexts(ctx context.Context, src TextSource, progress func(done, total int64)) (_ *Texts, err error) {
	d, err := Open(ctx, Source{Paths: src.Paths, Splits: All, Query: src.ID, Positive: src.Text, Raw: true, texts: true})
	if err != nil {
		return nil, err
	}
	defer d.Close()
	if d.Rows() >= math.MaxUint32 {
		return nil, fmt.Errorf("%s: more than %d texts", strings.Join(src.Paths, ", "), uint32(math.MaxUint32))
	}
	t := &Texts{from: filepath.Base(d.files[0].path()), notes: d.notes}
	if n := len(d.files) - 1; n > 0 {
		t.from += " and " + spelling.Count(n, "file more", "files more")
	}
	defer func() {
		if err != nil {
			t.Close()
		}
	}()
	if err := t.read(ctx, d, progress); err != nil {
		return nil, err
	}
	return t, t.find(ctx, d)
}

// read fills all but slots.
func (t *Texts) read(ctx context.Context, d *Dataset, progress func(done, total int64)) error {
	f, err := newScratch("texts")
	if err != nil {
		return err
	}
	defer f.dispose()
	t.begins, t.hashes = cut[uint64](&t.memory, int(d.Rows())+1), cut[Hash128](&t.memory, int(d.Rows()))
	type worker struct {
		scanner *Scanner
		block   Block
		bytes   []byte
		hash    Hash128
		bad     []*RowError
	}
	workers := make([]worker, runtime.GOMAXPROCS(0))
	for i := range workers {
		workers[i].scanner = d.NewScanner()
		defer workers[i].scanner.Close()
	}
	size := uint64(0)
	for first := 0; first < d.Blocks(); first += len(workers) {
		n := min(len(workers), d.Blocks()-first)
		err := forEach(n, n, func(i int) (err error) {
			w := &workers[i]
			if err = w.scanner.Read(ctx, first+i, &w.block); err == nil {
				w.bytes, w.bad = t.take(&w.block, w.bytes[:0], &w.hash)
			}
			return err
		})
		if err != nil {
			return err
		}
		for i := range n {
			w := &workers[i]
			for _, bad := range w.bad {
				if err := goOn(ctx, bad); err != nil {
					return err
				}
			}
			if _, err := f.Write(w.bytes); err != nil {
				return err
			}
			for row := range w.block.Rows {
				t.begins[w.block.First+int64(row)] += size
			}
			size += uint64(len(w.bytes))
		}
		if b := &workers[n-1].block; progress != nil {
			progress(b.First+int64(b.Rows), d.Rows())
		}
	}
	t.begins[d.Rows()] = size
	for _, w := range workers { // whatever the order of the texts
		t.hash.Hi, t.hash.Lo = t.hash.Hi+w.hash.Hi, t.hash.Lo+w.hash.Lo
	}
	t.bytes, err = mapFile(f.File, int(size))
	return err
}

// take appends a block's texts to to, and adds what they and their ids are to sum. begins are from where to begins. A row that can't be used has an
// empty text with an empty id, which nothing finds.
func (t *Texts) take(b *Block, to []byte, sum *Hash128) (_ []byte, unusable []*RowError) {
	ids, texts := &b.texts[b.d.roles[0].source], &b.texts[b.d.roles[1].source]
	for row := range b.Rows {
		id, bad := ids.values[row], b.bad[row]
		switch {
		case bad.reason == "" && id.n == null:
			bad = badRow{b.d.ColumnName(0), "the id is null or missing"}
		case bad.reason == "" && id.n == 0:
			bad = badRow{b.d.ColumnName(0), "the id is empty"}
		}
		begin, text := len(to), []byte(nil)
		if bad.reason != "" {
			unusable = append(unusable, b.d.rowError(b.First+int64(row), bad.column, bad.reason))
			t.begins[b.First+int64(row)], to = uint64(begin), append(to, 0)
			continue
		}
		if s := texts.values[row]; s.n != null {
			text = texts.bytes(s)
		}
		to = append(binary.AppendUvarint(to, uint64(id.n)), ids.bytes(id)...)
		to = append(to, text...)
		t.begins[b.First+int64(row)], t.hashes[b.First+int64(row)] = uint64(begin), hashBytes(text)
		h := xxh3.Hash128(to[begin:])
		sum.Hi, sum.Lo = sum.Hi+h.Hi, sum.Lo+h.Lo
	}
	return to, unusable
}

// find makes the slots by which ids are found.
func (t *Texts) find(ctx context.Context, d *Dataset) error {
	size := 1
	for int64(size) < d.Rows()+d.Rows()/3+1 {
		size *= 2
	}
	t.slots = cut[uint32](&t.memory, size)
	for i := range uint32(d.Rows()) {
		id, _ := t.entry(i)
		if len(id) == 0 {
			continue
		}
		slot := t.slot(id)
		if *slot == 0 {
			*slot = i + 1
		} else if earlier := *slot - 1; t.hashes[earlier] != t.hashes[i] {
			bad := d.rowError(int64(i), d.ColumnName(0), fmt.Sprintf("the id %.100q comes a second time, with another text than in %v", id, d.Locate(int64(earlier))))
			if err := goOn(ctx, bad); err != nil {
				return err
			}
		}
	}
	return nil
}

// slot is an id's, or the free one where it belongs.
func (t *Texts) slot(id []byte) *uint32 {
	for i := xxh3.Hash(id); ; i++ {
		slot := &t.slots[i&uint64(len(t.slots)-1)]
		if *slot == 0 {
			return slot
		}
		if other, _ := t.entry(*slot - 1); bytes.Equal(other, id) {
			return slot
		}
	}
}

// entry is a text with its id.
func (t *Texts) entry(i uint32) (id, text []byte) {
	b := t.bytes[t.begins[i]:t.begins[i+1]]
	n, at := binary.Uvarint(b)
	return b[at : at+int(n)], b[at+int(n):]
}

func (t *Texts) id(i uint32) []byte {
	id, _ := t.entry(i)
	return id
}

func (t *Texts) text(i uint32) []byte {
	_, text := t.entry(i)
	return text
}

// Len is how many texts there are.
func (t *Texts) Len() int64 { return int64(len(t.hashes)) }

// Fingerprint changes when texts or ids do, and not with the names or the order of their files; that of nil is zero.
func (t *Texts) Fingerprint() Hash128 {
	if t == nil {
		return Hash128{}
	}
	return t.hash
}

// Notes are as [Dataset.Notes].
func (t *Texts) Notes() []string { return t.notes }

// Close gives the memory back.
func (t *Texts) Close() {
	unmapMemory(t.bytes)
	t.memory.release()
	t.bytes, t.begins, t.hashes, t.slots = nil, nil, nil, nil
}

// recogniseTexts names the columns of texts of which the source does not say what they are called.
func (d *Dataset) recogniseTexts() error {
	names, f, err := d.names()
	if err != nil {
		return err
	}
	first := func(column *string, of ...string) {
		if i := slices.IndexFunc(of, func(name string) bool { return slices.Contains(names, name) }); *column == "" && i >= 0 {
			*column = of[i]
		}
		if *column == "" && err == nil && f != nil {
			err = missingColumn(f.path(), of[0], names)
			if f.jsonl != nil {
				err = f.jsonl.missing(of[0], names)
			}
			err = fmt.Errorf("%w; {path: FILES, id: COLUMN, text: COLUMN} says what columns texts and their ids are in", err)
		}
	}
	first(&d.src.Query, "id", "_id")
	if d.src.Positive == "" && slices.Contains(names, "title") && slices.Contains(names, "text") {
		d.src.Positive = "{title} {text}"
	}
	first(&d.src.Positive, "text")
	return err
}

// names are the columns of the first file that has rows, if there is one.
func (d *Dataset) names() (names []string, of *dataFile, err error) {
	for i := range d.files {
		switch f := &d.files[i]; {
		case f.parquet != nil:
			return f.parquet.root.names(), f, nil
		case f.jsonl.rows > 0:
			names, _, err = f.jsonl.kinds()
			return names, f, err
		}
	}
	return nil, nil, nil
}

// resolve has texts stand where a block has ids. Of one that nothing has it notes that.
func (b *Block) resolve() {
	for i := range b.d.firstNumber {
		s, t := &b.d.sources[i], &b.texts[i]
		if s.of == nil {
			continue
		}
		for row := range b.Rows {
			list := t.row(row)
			for k, v := range list {
				if v.n == null {
					continue
				}
				id := t.arena[v.off : v.off+v.n]
				if slot := *s.of.slot(id); slot > 0 {
					list[k] = span{slot - 1, uint32(len(s.of.text(slot - 1)))}
					continue
				}
				list[k] = nullText
				b.fault(row, s.name, s.of.none(id))
			}
		}
		t.of = s.of
	}
}

// none says that no text has an id.
func (t *Texts) none(id []byte) string {
	why := fmt.Sprintf("no text has the id %.100q, of %s in %s", id, spelling.Count(t.Len(), "text", "texts"), t.from)
	if whole, is := bytes.CutSuffix(id, []byte(".0")); is && *t.slot(whole) > 0 {
		why += fmt.Sprintf("; %q has one: in quotes, and in .csv and .tsv, ids have to be written alike", whole)
	}
	return why
}

// wholeDouble and wholeFloat are what floats of 64 and of 32 bits are less than, if no other integer is read as the same one.
const wholeDouble, wholeFloat = 1 << 53, 1 << 24

const noWhole = "want an id: a string or an integer"

func inexact(number any) string {
	return fmt.Sprintf("it is %v as a float, which may be another integer's: ids that large have to be written as integers or strings", number)
}

// takeIDs takes the ids of source k from the values as parquet has them.
func (b *Block) takeIDs(k int, leaf column) {
	t, name, row := &b.texts[k], b.d.sources[k].name, -1
	float := func(x float64, whole float64) {
		switch {
		case x != math.Trunc(x) || x-x != 0:
			b.fault(row, name, fmt.Sprintf("it is %v, %s", x, noWhole))
		case math.Abs(x) >= whole:
			b.fault(row, name, inexact(x))
		default:
			t.arena = appendInteger(t.arena, parquet.Int64Value(int64(x)), false)
		}
	}
	for _, v := range b.values.list {
		if v.RepetitionLevel() == 0 {
			if row++; t.list {
				t.begin()
			}
		}
		if t.list && v.DefinitionLevel() < int(leaf.listDef) {
			continue
		}
		if v.IsNull() {
			t.values = append(t.values, nullText)
			continue
		}
		from := len(t.arena)
		switch v.Kind() {
		case parquet.ByteArray:
			t.arena = append(t.arena, v.ByteArray()...)
		case parquet.Float:
			float(float64(v.Float()), wholeFloat)
		case parquet.Double:
			float(v.Double(), wholeDouble)
		default:
			t.arena = appendInteger(t.arena, v, leaf.leaf.unsigned())
		}
		t.values = append(t.values, span{uint32(from), uint32(len(t.arena) - from)})
	}
}

// id reads an id: a string, or an integer, which a point and zeros may follow.
func (p *jsonlParser) id(w *sourceColumn) (span, error) {
	if p.r.peek() == '"' {
		return p.text(w)
	}
	digits, err := p.r.number()
	from := p.from + p.r.i - len(digits)
	whole, fraction, pointed := bytes.Cut(digits, []byte("."))
	switch size := bytes.TrimPrefix(whole, []byte("-")); {
	case err != nil:
	case len(bytes.Trim(fraction, "0")) > 0 || bytes.ContainsAny(whole, "eE"):
		p.fault(w.name, "it is %s, %s", digits, noWhole)
	case pointed && (len(size) > 16 || len(size) == 16 && string(size) >= fmt.Sprint(uint64(wholeDouble))):
		p.fault(w.name, "%s", inexact(string(digits)))
	}
	return span{uint32(from), uint32(len(whole))}, err
}
