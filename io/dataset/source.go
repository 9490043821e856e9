package dataset

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"sort"
	"strings"
	"sync"

	"github.com/zeebo/xxh3"
)

// A Source says which columns of which files are a training set. Columns are named as in the files; a.b is field b of
// struct (or object) a.
//
// Query must be a column of strings. Positive and each of Negatives may be strings or lists of strings. Of a list of
// positives every row uses one, of a list of negatives NegativesPerQuery: chosen anew in each epoch, the same on every rank.
// FlagEmbedding's files are Source{Query: "query", Positive: "pos", Negatives: []string{"neg"}}.
type Source struct {
	Paths     []string // .parquet files and .jsonl, .ndjson or .json files (of JSON lines; also .gz, .zst), and globs of those
	Query     string
	Positive  string
	Negatives []string
	// NegativesPerQuery is how many texts a list of negatives gives. A row with fewer repeats them. 0: as many as the lists
	// hold, which then must all be equally long.
	NegativesPerQuery int
	Weight            string // a column of numbers >= 0; "": every row weighs 1
}

// Role says what a text is to the loss.
type Role uint8

const (
	Query Role = iota
	Positive
	Negative
)

func (r Role) String() string { return [...]string{"query", "positive", "negative"}[r] }

// Column is one of the texts that every example has.
type Column struct {
	Role   Role
	Source string // the column of the files it comes from
}

// Dataset is a set of files seen as rows 0..Rows()-1, in the order of the sorted paths. It holds the files' structure,
// never their content, and is safe for concurrent use.
type Dataset struct {
	src     Source
	files   []dataFile
	blocks  []blockRef
	sources []sourceColumn // distinct text columns, then the weight
	roles   []roleColumn
	perRow  int // texts of an example
	hash    Hash128
}

// sourceColumn is a column of the files.
type sourceColumn struct {
	name   string
	list   bool
	number bool
	exact  int // lists: every row must have this many; 0: any number above 0
}

// roleColumn is a column of the recipe: which source column it is, and how many of a row's texts it gives.
type roleColumn struct {
	role   Role
	source int
	picks  int
}

// dataFile is a file of either format. Exactly one of parquet and jsonl is set.
type dataFile struct {
	parquet *parquetFile
	jsonl   *jsonlFile
	groups  [][]*chunk // parquet: per row group, per source column
	first   int64      // global id of its first row
}

func (f *dataFile) path() string {
	if f.parquet != nil {
		return f.parquet.path
	}
	return f.jsonl.path
}

func (f *dataFile) rows() int64 {
	if f.parquet != nil {
		return f.parquet.rows
	}
	return f.jsonl.rows
}

// blockRef is the unit of reading: consecutive rows of one row group, or of one stretch of JSON lines.
type blockRef struct {
	first int64 // global id of its first row
	file  int32
	part  int32 // row group, or block of JSON lines
	from  int64 // parquet: its first row in the row group
	rows  int32
	bytes int64 // estimate
}

// Open finds the files and checks the columns in each of them by name, shape and type. Of parquet files only the footers
// are read; JSON lines are counted in one pass (and unpacked to a temporary file if compressed), which ctx can stop.
// Close releases those temporary files.
func Open(ctx context.Context, src Source) (*Dataset, error) { return open(ctx, src, defaultLimit) }

func open(ctx context.Context, src Source, limit blockLimit) (*Dataset, error) {
	if src.Query == "" || src.Positive == "" {
		return nil, fail(ErrMissingColumn, "a dataset needs a query and a positive column (query: %q, positive: %q)", src.Query, src.Positive)
	}
	paths, err := expand(src.Paths)
	if err != nil {
		return nil, err
	}
	d := &Dataset{src: src}
	d.nameColumns()
	if err := d.openFiles(ctx, paths, limit); err != nil {
		d.Close()
		return nil, err
	}
	if err := d.settleColumns(); err != nil {
		d.Close()
		return nil, err
	}
	d.makeBlocks(limit)
	if d.Rows() == 0 {
		d.Close()
		return nil, fail(ErrNoFiles, "%s: no rows", strings.Join(src.Paths, ", "))
	}
	if err := d.countNegatives(ctx); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

// Close removes temporary files. Parquet files are open only while they are read.
func (d *Dataset) Close() error {
	for i := range d.files {
		if j := d.files[i].jsonl; j != nil {
			j.close()
		}
	}
	return nil
}

// Rows returns the number of rows.
func (d *Dataset) Rows() int64 {
	if len(d.blocks) == 0 {
		return 0
	}
	last := &d.blocks[len(d.blocks)-1]
	return last.first + int64(last.rows)
}

// Columns returns what the texts of an example are, in their order: the query, the positive, the negatives.
func (d *Dataset) Columns() []Column {
	var cols []Column
	for _, r := range d.roles {
		for range r.picks {
			cols = append(cols, Column{r.role, d.sources[r.source].name})
		}
	}
	return cols
}

// Fingerprint changes when rows, columns or their order may have: it covers the files' names without their folders, their
// sizes, parquet footers, the content of JSON lines, and the columns. Moving a dataset elsewhere keeps it.
func (d *Dataset) Fingerprint() Hash128 { return d.hash }

// Locate says where a row is at rest.
func (d *Dataset) Locate(row int64) Location {
	if row < 0 || row >= d.Rows() {
		return Location{File: fmt.Sprintf("no such row (%d of %d)", row, d.Rows()), RowGroup: -1, Row: row}
	}
	b := &d.blocks[d.blockOf(row)]
	f := &d.files[b.file]
	l := Location{File: f.path(), RowGroup: -1, Row: row - f.first}
	if f.jsonl != nil {
		l.Line = f.jsonl.line(l.Row)
	} else {
		l.RowGroup = int(b.part)
	}
	return l
}

// blockOf returns the block that holds a row.
func (d *Dataset) blockOf(row int64) int {
	return sort.Search(len(d.blocks), func(i int) bool { return d.blocks[i].first > row }) - 1
}

func (d *Dataset) rowError(row int64, column, reason string) *RowError {
	return &RowError{Row: row, Location: d.Locate(row), Column: column, Reason: reason}
}

var extensions = []string{".parquet", ".jsonl", ".ndjson", ".json"}

func isParquet(path string) bool { return filepath.Ext(path) == ".parquet" }

// expand turns files and globs into sorted, distinct paths.
func expand(patterns []string) ([]string, error) {
	if len(patterns) == 0 {
		return nil, fail(ErrNoFiles, "no path of data files is given")
	}
	var paths []string
	for _, p := range patterns {
		found := []string{filepath.Clean(p)}
		if strings.ContainsAny(p, "*?[") {
			matches, err := filepath.Glob(p)
			if err != nil {
				return nil, fail(ErrNoFiles, "%s: %w", p, err)
			}
			if len(matches) == 0 {
				return nil, fail(ErrNoFiles, "%s matches no file", p)
			}
			found = matches
		}
		paths = append(paths, found...)
	}
	slices.Sort(paths)
	paths = slices.Compact(paths)
	for _, p := range paths {
		plain := strings.TrimSuffix(strings.TrimSuffix(p, ".gz"), ".zst")
		if ext := filepath.Ext(plain); !slices.Contains(extensions, ext) || ext == ".parquet" && plain != p {
			if _, _, err := openFile(p, -1); err != nil {
				return nil, err
			}
			return nil, fail(ErrNoFiles, "%s: not known as data by its name; known are %s, the last three also with .gz or .zst", p, strings.Join(extensions, ", "))
		}
	}
	return paths, nil
}

// nameColumns makes the distinct source columns and the roles that use them.
func (d *Dataset) nameColumns() {
	use := func(name string) int {
		for i, s := range d.sources {
			if s.name == name {
				return i
			}
		}
		d.sources = append(d.sources, sourceColumn{name: name})
		return len(d.sources) - 1
	}
	d.roles = append(d.roles, roleColumn{Query, use(d.src.Query), 1}, roleColumn{Positive, use(d.src.Positive), 1})
	for _, n := range d.src.Negatives {
		d.roles = append(d.roles, roleColumn{Negative, use(n), 1})
	}
	if d.src.Weight != "" {
		d.sources = append(d.sources, sourceColumn{name: d.src.Weight, number: true})
	}
}

// pick appends to dst which of the n texts that a row has for a role it uses in an epoch.
func (d *Dataset) pick(dst []int, seed uint64, epoch int, row int64, role, n int) []int {
	return choose(dst, seed, epoch, row, role, n, d.roles[role].picks)
}

// texts returns the source columns that hold texts.
func (d *Dataset) texts() []sourceColumn {
	if d.src.Weight != "" {
		return d.sources[:len(d.sources)-1]
	}
	return d.sources
}

// openFiles opens all files, several at once. The error is the first file's that has one.
func (d *Dataset) openFiles(ctx context.Context, paths []string, limit blockLimit) error {
	d.files = make([]dataFile, len(paths))
	errs := make([]error, len(paths))
	forEach(runtime.GOMAXPROCS(0), len(paths), func(i int) bool {
		if errs[i] = ctx.Err(); errs[i] == nil {
			if isParquet(paths[i]) {
				d.files[i].parquet, errs[i] = openParquet(paths[i])
			} else {
				d.files[i].jsonl, errs[i] = openJSONL(ctx, paths[i], limit)
			}
		}
		return errs[i] == nil
	})
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// forEach calls do(0..n-1) from up to threads goroutines and returns when all are done. After a false it starts no more.
func forEach(threads, n int, do func(i int) bool) {
	var mu sync.Mutex
	next := 0
	take := func() int {
		mu.Lock()
		defer mu.Unlock()
		next++
		return next - 1
	}
	var wg sync.WaitGroup
	for range max(1, min(threads, n)) {
		wg.Go(func() {
			for i := take(); i < n; i = take() {
				if !do(i) {
					mu.Lock()
					next = n
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
}

// shape is what a column turned out to be in one file.
type shape struct {
	text, list, number bool
	name               string // for messages
}

// settleColumns finds the columns in every file and makes sure that all files agree.
func (d *Dataset) settleColumns() error {
	first := make([]string, len(d.sources)) // the file that settled a column
	h := xxh3.New128()
	for i := range d.files {
		f := &d.files[i]
		if i > 0 {
			f.first = d.files[i-1].first + d.files[i-1].rows()
		}
		var size int64
		var content Hash128
		var find func(name string) (shape, error)
		if p := f.parquet; p != nil {
			find, size, content = p.shape, p.size, p.footer
		} else {
			names, kinds, err := f.jsonl.kinds()
			if err != nil {
				return err
			}
			if f.jsonl.rows == 0 {
				continue
			}
			find = func(name string) (shape, error) { return jsonShape(f.jsonl.path, name, names, kinds) }
			size, content = f.jsonl.size, f.jsonl.hash
		}
		fmt.Fprintf(h, "%q %d %v\n", filepath.Base(f.path()), size, content)
		for k := range d.sources {
			s := &d.sources[k]
			got, err := find(s.name)
			switch {
			case err != nil:
				return err
			case s.number && !got.number:
				return fail(ErrColumnType, "%s: column %q is %s, want a number", f.path(), s.name, got.name)
			case !s.number && !got.text:
				return fail(ErrColumnType, "%s: column %q is %s, want string or list<string>", f.path(), s.name, got.name)
			case first[k] == "":
				s.list, first[k] = got.list, f.path()
			case s.list != got.list:
				return fail(ErrColumnType, "%s: column %q is %s, which it is not in %s: all files of a dataset must agree", f.path(), s.name, got.name, first[k])
			}
		}
	}
	lists := false
	for i := range d.roles {
		r := &d.roles[i]
		list := d.sources[r.source].list
		if r.role == Query && list {
			return fail(ErrColumnType, "column %q is list<string>: a query is one string", d.sources[r.source].name)
		}
		if r.role == Negative && list {
			lists = true
			r.picks = d.src.NegativesPerQuery
		}
	}
	if d.src.NegativesPerQuery < 0 || d.src.NegativesPerQuery > 0 && !lists {
		return fail(ErrColumnType, "negatives_per_query is %d, but no column of negatives is a list", d.src.NegativesPerQuery)
	}
	fmt.Fprintf(h, "%q %q %q %d %q\n", d.src.Query, d.src.Positive, d.src.Negatives, d.src.NegativesPerQuery, d.src.Weight)
	sum := h.Sum128()
	d.hash = Hash128{sum.Hi, sum.Lo}
	for i := range d.files {
		if err := d.files[i].makeChunks(d.sources); err != nil {
			return err
		}
	}
	return nil
}

func (p *parquetFile) shape(name string) (shape, error) {
	c, n, err := p.column(name)
	if err != nil {
		return shape{}, err
	}
	s := shape{name: n.typeName(), list: c.list}
	if c.leaf != nil {
		s.text, s.number = c.leaf.isText(), c.leaf.isNumber() && !c.list
	}
	return s, nil
}

func jsonShape(path, name string, names []string, kinds map[string]byte) (shape, error) {
	kind, ok := kinds[name]
	if !ok {
		return shape{}, missingColumn(path, name, names)
	}
	s := shape{name: jsonKind(kind)}
	switch kind {
	case '"', 'n': // null so far: rows are checked one by one
		s.text, s.number = true, kind == 'n'
	case '[':
		s.text, s.list = true, true
	case '{', 't', 'f':
	default:
		s.number = true
	}
	return s, nil
}

// makeChunks keeps what reading the columns of a parquet file takes, and lets go of the footer.
func (f *dataFile) makeChunks(sources []sourceColumn) error {
	p := f.parquet
	if p == nil {
		return nil
	}
	for g := range p.meta.RowGroups {
		var chunks []*chunk
		for _, s := range sources {
			col, _, err := p.column(s.name)
			if err != nil {
				return err
			}
			c, err := p.chunk(g, col)
			if err != nil {
				return p.wrapColumn(g, s.name, err)
			}
			chunks = append(chunks, c)
		}
		f.groups = append(f.groups, chunks)
	}
	p.meta = nil
	return nil
}

// makeBlocks cuts the files into blocks.
func (d *Dataset) makeBlocks(limit blockLimit) {
	for i := range d.files {
		f := &d.files[i]
		first := f.first
		add := func(b blockRef) {
			b.first, b.file = first, int32(i)
			first += int64(b.rows)
			d.blocks = append(d.blocks, b)
		}
		if f.jsonl != nil {
			for k, b := range f.jsonl.blocks {
				add(blockRef{part: int32(k), rows: int32(b.rows), bytes: b.bytes})
			}
			continue
		}
		for g, chunks := range f.groups {
			rows := chunks[0].rows
			per := bytesPerRow(chunks)
			size := max(1, min(limit.rows, limit.bytes/per))
			for from := int64(0); from < rows; from += size {
				n := min(size, rows-from)
				add(blockRef{part: int32(g), from: from, rows: int32(n), bytes: n * per})
			}
		}
	}
}

// countNegatives settles how many negatives a list gives when the source doesn't say: as many as the first row has, and
// every row is then held to it.
func (d *Dataset) countNegatives(ctx context.Context) error {
	var first *Block
	for i := range d.roles {
		r := &d.roles[i]
		if r.picks == 0 {
			if first == nil {
				var err error
				if first, err = d.ReadBlock(ctx, 0); err != nil {
					return err
				}
			}
			s := &d.sources[r.source]
			if r.picks = len(first.texts[r.source].row(0)); r.picks == 0 {
				return d.rowError(0, s.name, "the list is null or empty")
			}
			s.exact = r.picks
		}
		d.perRow += r.picks
	}
	return nil
}
