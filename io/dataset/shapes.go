package dataset

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"path/filepath"
	"slices"

	"github.com/parquet-go/parquet-go/format"
	"github.com/zeebo/xxh3"
)

// What the columns of a dataset are in its files, found when it is opened.

// shape is what a column turned out to be in one file.
type shape struct {
	text, list, number bool
	truth              bool   // true and false
	numbers            bool   // it is one of numbers, if true and false are some
	name               string // for messages
	at                 string // likewise: the line that has the first such value; "" of what has no lines
}

// settleColumns finds the columns in every file and makes sure that all files agree.
func (d *Dataset) settleColumns() error {
	h := xxh3.New128()
	first := make([]string, len(d.sources)) // the file that settled a column
	for i := range d.files {
		f := &d.files[i]
		if i > 0 {
			f.first = d.files[i-1].first + d.files[i-1].rows()
		}
		var size int64
		var find func(name string) (shape, error)
		if p := f.parquet; p != nil {
			find, size, f.content = p.shape, p.size, p.footer
		} else {
			names, kinds, err := f.jsonl.kinds()
			if err != nil {
				return err
			}
			if f.jsonl.rows == 0 {
				continue
			}
			find = func(name string) (shape, error) { return f.jsonl.shape(name, names, kinds) }
			size, f.content = f.jsonl.size, f.jsonl.hash
		}
		fmt.Fprintf(h, "%q %d %v\n", filepath.Base(f.path()), size, f.content)
		for k := range d.sources {
			got, err := find(d.sources[k].name)
			if err == nil {
				err = d.settle(k, got, f.path(), first)
			}
			if err != nil {
				return err
			}
		}
	}
	lists, err := d.settleRoles(first)
	if err := cmp.Or(err, d.checkTemplates(first), d.checkShapes(), d.checkNegativesPerQuery(lists)); err != nil {
		return err
	}
	fmt.Fprintf(h, "%q %q %q %d %q\n", d.src.Query, d.src.Positive, d.src.Negatives, d.src.NegativesPerQuery, d.src.Weight)
	if d.src.Documents != "" {
		fmt.Fprintf(h, "documents %q\n", d.src.Documents)
	}
	if d.src.Label != "" || d.src.Teacher != "" || len(d.src.Scores) > 0 {
		fmt.Fprintf(h, "%q %q %q\n", d.src.Label, d.src.Scores, d.src.Teacher)
	}
	if d.src.Queries != nil || d.src.Corpus != nil {
		fmt.Fprintf(h, "queries %v corpus %v\n", d.src.Queries.Fingerprint(), d.src.Corpus.Fingerprint())
	}
	if d.src.Relevance != "" {
		fmt.Fprintf(h, "relevance %q\n", d.src.Relevance)
	}
	d.hash = Hash128(h.Sum128())
	for i := range d.files {
		if err := d.files[i].makeChunks(d); err != nil {
			return err
		}
	}
	return nil
}

// settle holds what column k of the sources is in a file against what it is to be, and to what it is in the first file.
func (d *Dataset) settle(k int, got shape, path string, first []string) error {
	s := &d.sources[k]
	if got.numbers && s.truth {
		got = shape{number: true, truth: true}
	}
	at := cmp.Or(got.at, path)
	switch {
	case s.number && !got.number && !(got.truth && s.truth):
		help := ""
		if got.name == "a string" { // of JSON
			help = `: a number stands without quotes, 0.5 and not "0.5"`
		}
		return fail(ErrColumnType, "%s: column %q is %s, want %s%s", at, s.name, got.name, d.wantNumber(k), help)
	case !s.number && !got.text && !(s.id && got.number):
		return fail(ErrColumnType, "%s: column %q is %s, want %s", at, s.name, got.name, s.wantText())
	case got.list && d.src.texts:
		return fail(ErrColumnType, "%s: column %q is %s: want one id and one text in a row", at, s.name, got.name)
	case first[k] == "":
		s.list, first[k] = got.list, path
	case s.list != got.list:
		return fail(ErrColumnType, "%s: column %q is %s, which it is not in %s: all files of a dataset must agree", at, s.name, got.name, first[k])
	}
	return nil
}

// settleRoles settles how many texts of a row each role uses, and tells whether there are lists of negatives.
func (d *Dataset) settleRoles(first []string) (lists bool, err error) {
	for i := range d.roles {
		r := &d.roles[i]
		s := d.listed(r.source)
		switch {
		case r.role == Query && s.list:
			return false, fail(ErrColumnType, "%s: column %q is list<string>: a query is one string%s", first[r.source], s.name, d.cellsOfLists(textsAsLists))
		case d.src.Raw && s.list:
			r.picks, s.ragged = AllNegatives, r.role == Negative
			lists = lists || r.role == Negative
		case d.src.Documents != "" && r.role != Query && !s.list && first[r.source] != "": // or else of files without rows
			return false, fail(ErrColumnType, "column %q is string, want list<string>: documents are lists, all of a row's%s", s.name, d.cellsOfLists(""))
		case d.src.Documents != "" && r.role == Negative && s.list:
			r.picks = AllNegatives
		case r.role == Negative && s.list:
			lists = true
			r.picks = d.src.NegativesPerQuery
			s.ragged = r.picks == AllNegatives
		}
	}
	for _, r := range d.roles { // of a list that is a positive as well every row needs a text
		if r.role != Negative {
			d.listed(r.source).ragged = false
		}
	}
	return lists, nil
}

// checkNegativesPerQuery tells what does not fit the columns.
func (d *Dataset) checkNegativesPerQuery(lists bool) error {
	switch n := d.src.NegativesPerQuery; {
	case n < AllNegatives:
		return fail(ErrColumnType, "negatives_per_query is %d: want how many texts a list of negatives gives, 0 for as many as the lists hold, or %d for all of each row's", n, AllNegatives)
	case n == AllNegatives && !lists:
		return fail(ErrColumnType, "negatives_per_query is all, but no column of negatives is a list%s", d.cellsOfLists(""))
	case n > 0 && !lists:
		return fail(ErrColumnType, "negatives_per_query is %d, but no column of negatives is a list%s", n, d.cellsOfLists(""))
	}
	return nil
}

// checkTemplates refuses templates of lists.
func (d *Dataset) checkTemplates(first []string) error {
	for _, j := range d.joins {
		for _, p := range j.parts {
			if p.source >= 0 && d.sources[p.source].list {
				return fail(ErrColumnType, "%s: column %q of the template %q is list<string>: a template takes strings%s", first[p.source], d.sources[p.source].name, j.name, d.cellsOfLists(textsAsLists))
			}
		}
	}
	return nil
}

// checkShapes refuses numbers that are lists where they must not be, and the other way round.
func (d *Dataset) checkShapes() error {
	for k, s := range d.sources[d.firstNumber:] {
		if s.list && (k == d.number.weight || k == d.number.label || k == d.number.relevance) {
			return fail(ErrColumnType, "column %q is a list, want a number", s.name)
		}
		if !s.list && k == d.number.teacher {
			return fail(ErrColumnType, "column %q is no list, want a list of numbers: a teacher's embedding%s", s.name, d.cellsOfLists(""))
		}
	}
	return nil
}

// cellsOfLists goes on from an error about lists: what they are in separated values, and what more there is to say of them, if there are such files.
func (d *Dataset) cellsOfLists(more string) string {
	if slices.ContainsFunc(d.files, func(f dataFile) bool { return f.jsonl != nil && f.jsonl.text }) {
		return ` (in .csv and .tsv lists are cells of JSON, ["a", "b"]` + more + ")"
	}
	return ""
}

// firstLength is that of the first list that has something in it. Rows before it can't be used, which a run may go on without.
func (b *Block) firstLength(length func(row int) int) int {
	for row := range b.Rows {
		if _, bad := b.bad[row]; !bad && length(row) > 0 {
			return length(row)
		}
	}
	return 0
}

// wantText says what a column of texts may be.
func (s *sourceColumn) wantText() string {
	if s.id {
		return "ids: strings or integers, or lists of them"
	}
	return "string or list<string>"
}

// wantNumber says what column k of the sources, a column of numbers, may be.
func (d *Dataset) wantNumber(k int) string {
	switch k -= d.firstNumber; {
	case k == d.number.weight || k == d.number.label || k == d.number.relevance:
		return "a number"
	case k == d.number.teacher:
		return "a list of numbers"
	}
	return "a number or a list of numbers"
}

func (p *parquetFile) shape(name string) (shape, error) {
	c, n, err := p.column(name)
	if err != nil {
		return shape{}, err
	}
	s := shape{name: n.typeName(), list: c.list}
	if c.leaf != nil {
		null := c.leaf.isNull()
		s.text, s.number = null || c.leaf.isText(), null || c.leaf.isNumber()
		s.truth = c.leaf.elem.Type.V == format.Boolean
	}
	return s, nil
}

func (j *jsonlFile) shape(name string, names []string, kinds map[string]valueKind) (shape, error) {
	kind, ok := kinds[name]
	if !ok {
		return shape{}, j.missing(name, names)
	}
	s := shape{name: jsonKind(kind.first), numbers: kind.numbers}
	if kind.row >= 0 {
		s.at = j.at(kind.row).String()
	}
	switch kind.first {
	case '"', 'n': // null so far: rows are checked one by one
		s.text, s.number = true, kind.first == 'n' || j.text
	case '[':
		s.text, s.number, s.list = true, true, true // what the list holds is checked row by row
	case listOfPython:
		return shape{}, fail(ErrColumnType, `%s:%d: most cells of column %q are lists, as this one is, but not of JSON: as Python prints them? Write ["a", "b"] (json.dumps)`, j.path, j.line(kind.row), name)
	case 't', 'f':
		s.truth = true
	case '{':
	default:
		s.number = true
	}
	return s, nil
}

// countTexts settles what the source doesn't say and the first rows do: how many negatives a list gives, as many as the first one has,
// to which every row is then held; the length of a teacher's embeddings and whether scores are margins likewise; and about how many texts a ragged row has.
func (d *Dataset) countTexts(ctx context.Context) error {
	var first *Block
	read := func() (err error) {
		if first == nil {
			first, err = d.ReadBlock(ctx, 0)
		}
		return err
	}
	for i := range d.roles {
		r := &d.roles[i]
		if r.picks == AllNegatives {
			d.ragged = true
			continue
		}
		if r.picks == 0 {
			if err := read(); err != nil {
				return err
			}
			s := &d.sources[r.source]
			if r.picks = first.firstLength(func(row int) int { return len(first.texts[r.source].row(row)) }); r.picks == 0 {
				return first.Check(0)
			}
			s.exact = r.picks
		}
		d.perRow += r.picks
	}
	differ := d.src.Margins && len(d.number.scores) > 0
	if !d.ragged && d.number.teacher < 0 && !differ {
		return nil
	}
	if err := read(); err != nil {
		return err
	}
	if k := d.number.teacher; k >= 0 {
		if d.dim = first.firstLength(func(row int) int { return len(first.teacher(row)) }); d.dim == 0 {
			return first.Check(0)
		}
	}
	if differ {
		const scores, margins = 1, 2
		d.margins = margins == first.firstLength(func(row int) int {
			switch {
			case first.margins(row):
				return margins
			case first.scoreCount(row) == first.documents(row):
				return scores
			}
			return 0
		})
	}
	sum := 0
	d.least = math.MaxInt
	for row := range first.Rows {
		n := 0
		for i, r := range d.roles {
			if r.picks == AllNegatives {
				n += max(0, len(first.texts[r.source].row(row))-d.firstText(i))
			}
		}
		sum, d.least, d.most = sum+n, min(d.least, d.perRow+n), max(d.most, d.perRow+n)
	}
	d.perRow += (sum + first.Rows - 1) / first.Rows
	return nil
}
