package dataset

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"

	"contraflow/io/internal/plainfile"
)

// A Source says which columns of which files are a training set. Columns are named as in the files; a.b is field b of
// struct (or object) a.
//
// Query must be a column of strings. Positive and each of Negatives may be strings or lists of strings. Of a list of
// positives every row uses one, of a list of negatives NegativesPerQuery: chosen anew in each epoch, the same on every rank.
// FlagEmbedding's files are Source{Query: "query", Positive: "pos", Negatives: []string{"neg"}}, with its teacher's scores
// Scores: []string{"pos_scores", "neg_scores"}. Each of the three may be a template of several columns of strings:
// "{title} {text}".
type Source struct {
	// .parquet files, .jsonl, .ndjson or .json files (of JSON lines, or each one JSON array of objects), .csv and .tsv files whose first line names the columns (the last five also
	// .gz and .zst), in small or capital letters, and globs of those. What is there by the name that is given is that file, not a glob. In separated values lists are cells of JSON: ["a", "b"].
	Paths     []string
	Splits    Splits // of a dataset that a URL among Paths names as a whole
	Query     string
	Positive  string // "" if rows are single texts with a Label or a Teacher's embedding
	Negatives []string
	// Documents is a column of lists, each all of a row's documents in the order of its Scores: in the place of Positive and Negatives. The first is the
	// row's positive, and the others, which may be none, its negatives, all of them. With Raw they are one column, and any of them may be a positive.
	Documents string
	// NegativesPerQuery is how many texts a list of negatives gives. A row with fewer repeats them. 0: as many as the lists
	// hold, which then must all be equally long. AllNegatives: as many as each row has, which may be none.
	NegativesPerQuery int
	Weight            string // a column of numbers >= 0; "": every row weighs 1
	Label             string // a column of numbers, or of true and false, which are 1 and 0; "": none
	// CheckLabel says what is wrong with a label for what it is to be used for, such as loss.Contrastive's; its row can't be used then. nil: any number is one.
	CheckLabel func(label float64) error

	// Scores are columns of numbers or of lists of numbers: a teacher's scores of each row's documents. True is 1 and false is 0. The numbers of all of
	// them, one after the other, are one for each text of the document columns, one after the other: a single list, or a column for each column of
	// documents. Where a row uses some texts of a list, it uses their scores.
	Scores []string
	// Margins has scores that are one fewer than documents, in all rows, be by how much the positive's score is above each negative's, d1, d2, ...: the
	// scores are 0, -d1, -d2, ...
	Margins bool
	// CheckScore is CheckLabel of each score.
	CheckScore func(score float64) error
	// CheckNegatives says what is wrong with how many negatives a row has for what it is to be used for, such as loss.Triplet's, which takes at least one; the row
	// can't be used then. nil: any number will do.
	CheckNegatives func(n int) error
	// CheckText says of a text that has something in it, or of its ids where Tokens has those read, what is wrong with it for what it is to be used for; its
	// row can't be used then. "": nothing is. Of a list it is asked of every text. It is called from several goroutines; nil: any text will do.
	CheckText func(role Role, text string, ids []int32) string
	// Teacher is a column of lists of numbers, all of one length: a teacher's embedding of each row's text.
	Teacher string

	// Queries has the query column name texts by their ids, and Corpus all columns of documents, in the place of texts. Ids are strings or integers, or floats
	// that are integers, as pandas makes them; an integer is the same id as its digits in a string.
	Queries, Corpus *Texts
	// Relevance is a column of numbers, as judgements have one (qrels): rows in which it is 0 or less are none of the dataset's. "": relevance or score, if there
	// are Queries and Corpus, and the columns Query and Positive are called as [LoadRetrieval] has them. A .tsv file of such rows may lack the first line: of
	// three fields, and of TREC's four, it is known which are which. So may one of ids alone, in the order of Query, Positive and Negatives.
	Relevance string

	// Raw is for programs that look at rows before they are fit to train on: a query column alone will do, all lists give all their texts, and
	// parquet files' pages are not read to open them, but for those of each file's first rows.
	Raw bool
	// InOrder has rows come in the order in which Paths name the files, those of a glob in the order of their paths, and those of a file named
	// twice twice, as [OpenTable] does. Without it the same files are the same dataset, however they are named.
	InOrder bool
	// Tokens reads the ids that contraflow prep has written beside the texts, in place of the texts ([Dataset.Tokens]). All files must be
	// parquet and have them.
	Tokens bool

	texts bool // Query is a column of ids and Positive one of their texts, if they are known by now: see OpenTexts
}

// AllNegatives has lists of negatives give all their texts.
const AllNegatives = -1

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
	Source string // the column of the files it comes from, or the template
	Ragged bool   // an example has any number of its texts, not one
}

// Dataset is a set of files seen as rows 0..Rows()-1, in the order of the sorted paths (but see Source.InOrder). It holds the files' structure,
// never their content, and is safe for concurrent use.
type Dataset struct {
	src     Source
	files   []dataFile
	blocks  []blockRef
	sources []sourceColumn // distinct text columns, then distinct columns of numbers
	joins   []joined       // texts made of these; as sources of roles, numbers go on with them after the text columns
	roles   []roleColumn
	number  numberRoles // numbered from firstNumber
	perRow  int         // texts of an example, about as many where lists are ragged
	ragged  bool        // some column is
	dim     int         // numbers of a teacher's embedding
	margins bool        // scores are differences
	least   int         // texts of an example with ragged lists, at least in the first block
	most    int         // and at most
	hash    Hash128

	firstNumber int // sources before are texts

	tokens *TokenInfo // set: texts are ids
	cut    int64      // of these, how many lost tokens
	notes  []string
}

// sourceColumn is a column of the files.
type sourceColumn struct {
	name   string
	list   bool
	number bool
	truth  bool   // true and false are numbers too, 1 and 0
	id     bool   // texts are ids
	of     *Texts // and stand for these; nil: for themselves
	direct bool   // a role uses it, not only a template
	ragged bool   // lists may be empty
	exact  int    // lists: every row must have this many; 0: any number above 0
}

// roleColumn is a column of the recipe: which source column it is, and how many of a row's texts it gives.
type roleColumn struct {
	role   Role
	source int // of texts: a source column, or one of joins
	picks  int // AllNegatives: all
}

// file is a file of either format, or rows in memory. Exactly one of parquet and jsonl is set.
type file struct {
	parquet *parquetFile
	jsonl   *jsonlFile
	first   int64 // the files' rows before it
}

func (f *file) path() string {
	if f.parquet != nil {
		return f.parquet.path
	}
	return f.jsonl.path
}

func (f *file) rows() int64 {
	if f.parquet != nil {
		return f.parquet.rows
	}
	return f.jsonl.rows
}

// locate says where a row, counted through all files, is at rest.
func (f *file) locate(row int64) Location {
	row -= f.first
	if f.jsonl != nil {
		return f.jsonl.at(row)
	}
	group := sort.Search(len(f.parquet.ends), func(i int) bool { return f.parquet.ends[i] > row })
	return Location{File: f.parquet.path, RowGroup: group, Row: row}
}

// dataFile is a file of a dataset.
type dataFile struct {
	file
	groups  [][]*chunk      // parquet: per row group, per source column
	tokens  [][]tokenChunks // likewise, of the text columns' ids
	info    string          // what the file says of them
	cut     string          // and of texts that were cut
	mined   string          // and the column that it says to have mined scores
	content Hash128         // of what the dataset's fingerprint has of it
}

// blockRef is the unit of reading: consecutive rows of one row group, or of one stretch of JSON lines.
type blockRef struct {
	first int64 // global id of its first row
	file  int32
	part  int32 // row group, or block of JSON lines
	from  int64 // parquet: its first row in the row group
	at    int64 // its first row in the file
	rows  int32
	out   []int32 // beside these: which of the rows at rest are left out
	bytes int64   // estimate
}

// Open finds the files and checks the columns in each of them by name, shape and type. Of parquet files the footers are
// decoded and the bytes of these columns hashed ([Dataset.Fingerprint]); JSON lines are counted in one pass (and unpacked to a
// temporary file if compressed, or if they are elements of an array). ctx can stop both.
// Close releases those temporary files.
func Open(ctx context.Context, src Source) (*Dataset, error) { return open(ctx, src, defaultLimit) }

func open(ctx context.Context, src Source, limit blockLimit) (*Dataset, error) {
	return openFrom(ctx, src, limit, func(d *Dataset) error {
		named := Files
		if src.InOrder {
			named = expandInOrder
		}
		paths, err := named(ctx, src.Paths, src.Splits)
		if err != nil {
			return err
		}
		return d.openFiles(ctx, paths, limit)
	})
}

// openFrom makes a dataset of what files opens for it.
func openFrom(ctx context.Context, src Source, limit blockLimit, files func(d *Dataset) error) (_ *Dataset, err error) {
	if src.Documents != "" && (src.Positive != "" || len(src.Negatives) > 0 || src.NegativesPerQuery != 0 || src.Tokens || isTemplate(src.Documents)) {
		return nil, fail(ErrMissingColumn, "documents: %q is a column of lists with all of a row's documents: there is no positive column beside it, no negatives and no template of columns, and no token ids are read of it", src.Documents)
	}
	if !src.texts && (src.Query == "" || src.Positive == "" && src.Documents == "" && src.Label == "" && src.Teacher == "" && !src.Raw) {
		return nil, fail(ErrMissingColumn, "a dataset needs a query and a positive column (query: %q, positive: %q): rows of single texts have a label's or a teacher's in the place of the positive", src.Query, src.Positive)
	}
	if src.Tokens && (src.Queries != nil || src.Corpus != nil) {
		return nil, fail(ErrMissingColumn, "rows that name texts by ids have no token ids beside them")
	}
	if src.Positive == "" && src.Documents == "" && len(src.Negatives)+len(src.Scores) > 0 {
		return nil, fail(ErrMissingColumn, "without a positive column rows are single texts with a label or a teacher's embedding: they have no negatives and no scores")
	}
	d := &Dataset{src: src}
	defer func() {
		if err != nil {
			d.Close()
		}
	}()
	if err := files(d); err != nil {
		return nil, err
	}
	recognise := d.recogniseJudgements
	if src.texts {
		recognise = d.recogniseTexts
	}
	if err := recognise(); err != nil {
		return nil, err
	}
	if err := d.nameColumns(); err != nil {
		return nil, err
	}
	if err := d.settleColumns(); err != nil {
		return nil, err
	}
	if err := d.settleTokens(); err != nil {
		return nil, err
	}
	if !src.Raw {
		if err := d.hashPages(ctx); err != nil {
			return nil, err
		}
	}
	d.makeBlocks(limit)
	if err := d.leaveOut(ctx); err != nil {
		return nil, err
	}
	if d.Rows() == 0 {
		return nil, fail(ErrNoFiles, "%s: no rows", strings.Join(src.Paths, ", "))
	}
	if err := d.checkLists(ctx); err != nil {
		return nil, err
	}
	if err := d.countTexts(ctx); err != nil {
		return nil, err
	}
	d.noteMined()
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
		c := Column{Role: r.role, Source: d.textName(r.source), Ragged: r.picks == AllNegatives}
		for range max(1, r.picks) {
			cols = append(cols, c)
		}
	}
	return cols
}

// FewestTexts is how many texts an example has: at least as many in the first block, where a column is ragged.
func (d *Dataset) FewestTexts() int {
	if d.ragged {
		return d.least
	}
	return d.perRow
}

// MostTexts is how many texts an example has: at most as many in the first block, where a column is ragged.
func (d *Dataset) MostTexts() int { return max(d.perRow, d.most) }

// TeacherSize is the length of a teacher's embeddings; 0 if the source names none.
func (d *Dataset) TeacherSize() int { return d.dim }

// HasLabels and HasScores tell what the source names.
func (d *Dataset) HasLabels() bool { return d.number.label >= 0 }
func (d *Dataset) HasScores() bool { return len(d.number.scores) > 0 }

// Notes are what a user should know of texts that can be used but may not be what was meant, each with file, row and column, of token ids
// that are not of whole texts, and of scores that are no teacher's.
func (d *Dataset) Notes() []string { return d.notes }

// textName is the name of a source of texts.
func (d *Dataset) textName(source int) string {
	if source >= d.firstNumber {
		return d.joins[source-d.firstNumber].name
	}
	return d.sources[source].name
}

// listed is a source of texts' lists: none, for joined ones.
func (d *Dataset) listed(source int) *sourceColumn {
	if source >= d.firstNumber {
		return &sourceColumn{}
	}
	return &d.sources[source]
}

// Fingerprint changes when rows, columns or their order may have: it covers the files' names without their folders, their
// sizes, parquet footers and the stored bytes of the columns in use, the content of JSON lines, the columns, and the texts that rows name by ids. Moving a dataset elsewhere
// keeps it. Of Raw sources the stored bytes are left out: who goes through terabytes twice should not read them a third time, on each worker.
func (d *Dataset) Fingerprint() Hash128 { return d.hash }

// File is a file of a dataset, as its fingerprint knows it.
type File struct {
	Name    string `json:"name"` // without its folders
	Rows    int64  `json:"rows"`
	Content string `json:"content"` // a hash
}

// Files are a dataset's files, in their order, and then the texts that their rows name, those of [Source].Queries and Corpus as one file each.
func (d *Dataset) Files() []File {
	out := make([]File, len(d.files))
	for i := range d.files {
		f := &d.files[i]
		out[i] = File{filepath.Base(f.path()), f.rows(), f.content.String()}
	}
	if t := d.src.Queries; t != nil {
		out = append(out, File{"queries", t.Len(), t.hash.String()})
	}
	if t := d.src.Corpus; t != nil {
		out = append(out, File{"corpus", t.Len(), t.hash.String()})
	}
	return out
}

// Locate says where a row is at rest.
func (d *Dataset) Locate(row int64) Location {
	if row < 0 || row >= d.Rows() {
		return Location{File: fmt.Sprintf("no such row (%d of %d)", row, d.Rows()), RowGroup: -1, Row: row}
	}
	b := &d.blocks[d.blockOf(row)]
	f := &d.files[b.file]
	return f.locate(f.first + b.at + b.atRest(row-b.first))
}

// blockOf returns the block that holds a row.
func (d *Dataset) blockOf(row int64) int {
	return sort.Search(len(d.blocks), func(i int) bool { return d.blocks[i].first > row }) - 1
}

func (d *Dataset) rowError(row int64, column, reason string) *RowError {
	return &RowError{Row: row, Location: d.Locate(row), Column: column, Reason: reason}
}

var extensions = []string{".parquet", ".jsonl", ".ndjson", ".json", ".csv", ".tsv"}

// ending is how a path's name ends, in small letters, without what says that it is compressed.
func ending(path string) string {
	return filepath.Ext(strings.TrimSuffix(strings.TrimSuffix(strings.ToLower(path), ".gz"), ".zst"))
}

func isParquet(path string) bool { return strings.EqualFold(filepath.Ext(path), ".parquet") }

// IsGlob tells whether a path of data files is a glob, as path/filepath has them. A file of that very name is itself, whatever characters are in it.
func IsGlob(path string) bool {
	if !strings.ContainsAny(path, "*?[") || Remote(path) {
		return false
	}
	_, err := os.Lstat(path)
	return err != nil
}

// globIn is a glob of files in a folder, whose name stands for itself.
func globIn(folder, pattern string) string { return filepath.Join(InGlob(folder), pattern) }

// InGlob is a name that stands for itself in a glob, whatever characters are in it.
func InGlob(name string) string {
	special := []string{"[", "[[]", "*", "[*]", "?", "[?]"}
	if filepath.Separator != '\\' {
		special = append(special, `\`, `\\`)
	}
	return strings.NewReplacer(special...).Replace(name)
}

// Files turns files, globs and URLs, as [Source] has them, into sorted, distinct paths of files on this machine. They are sorted by where the files
// are, not by how they are named: ../b.jsonl and c.jsonl are in the order that they have from any other folder, and a file that is named twice, once
// with its folder's full path, is one. Those of URLs come first, wherever the cache is.
func Files(ctx context.Context, patterns []string, s Splits) ([]string, error) {
	if len(patterns) == 0 {
		return nil, errNoPath
	}
	type file struct {
		path, place string
		local       int // 0: of a URL
	}
	var files []file
	for _, p := range patterns {
		paths, err := expandInOrder(ctx, []string{p}, s)
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			f := file{path: path}
			if f.place, err = FullPath(path); err != nil {
				return nil, err
			}
			if !Remote(p) {
				f.local = 1
			}
			files = append(files, f)
		}
	}
	slices.SortStableFunc(files, func(a, b file) int { return cmp.Or(cmp.Compare(a.local, b.local), strings.Compare(a.place, b.place)) })
	var out []string
	for i, f := range files {
		if i == 0 || f.place != files[i-1].place {
			out = append(out, f.path)
		}
	}
	return out, nil
}

// FullPath names what a path does from any folder that a program may run in.
func FullPath(path string) (string, error) {
	path = filepath.Clean(path)
	if filepath.IsAbs(path) {
		return path, nil
	}
	here, err := os.Getwd() // as the shell has it, with symbolic links
	if err != nil {
		return "", err
	}
	up, separator := ".", string(filepath.Separator)
	for rest := path + separator; strings.HasPrefix(rest, ".."+separator); rest = rest[3:] {
		up = filepath.Join(up, "..")
	}
	if up == "." {
		return filepath.Join(here, path), nil
	}
	named, err := os.Stat(filepath.Join(here, up))
	if really, _ := os.Stat(up); err != nil || !os.SameFile(named, really) { // .. of a link's name is another folder
		if here, err = filepath.EvalSymlinks(here); err != nil {
			return "", err
		}
	}
	return filepath.Join(here, path), nil
}

var errNoPath = fail(ErrNoFiles, "no path of data files is given")

// expandInOrder keeps the order of the patterns, and files that are named twice. The files of one pattern are in the order of their paths.
func expandInOrder(ctx context.Context, patterns []string, s Splits) ([]string, error) {
	if len(patterns) == 0 {
		return nil, errNoPath
	}
	var paths []string
	for _, p := range patterns {
		if p == "-" {
			return nil, fail(ErrNoFiles, "-: data is read from files, some of it twice, and not from standard input: write it to one, such as data.jsonl")
		}
		if err := checkDepth(p); err != nil {
			return nil, err
		}
		found := []string{filepath.Clean(p)}
		if Remote(p) {
			var err error
			if found, err = fetchURL(ctx, p, s); err != nil {
				return nil, err
			}
		} else if IsGlob(p) {
			var err error
			if found, err = matching(p); err != nil {
				return nil, err
			}
		}
		slices.Sort(found)
		paths = append(paths, found...)
	}
	if err := complete(paths); err != nil {
		return nil, err
	}
	for _, p := range paths {
		if ext := ending(p); !slices.Contains(extensions, ext) || ext == ".parquet" && !isParquet(p) {
			f, _, err := openFile(p, -1)
			if errors.Is(err, fs.ErrNotExist) && slices.Contains(patterns, p) {
				return nil, fail(ErrNoFiles, "%w%s", err, onHub(p))
			}
			if err != nil {
				return nil, err
			}
			f.Close()
			if ext == ".arrow" {
				return nil, fail(ErrNoFiles, "%s", arrowFile(p))
			}
			return nil, fail(ErrNoFiles, "%s: not known as data by its name; known are %s, all but the first also with .gz or .zst", p, strings.Join(extensions, ", "))
		}
	}
	return paths, nil
}

// checkDepth refuses a pattern of folders in folders, which would be read as one of a single depth.
func checkDepth(p string) error {
	if strings.Contains(p, "**") && (Remote(p) || IsGlob(p)) {
		return fail(ErrNoFiles, "%s: ** for folders in folders is not known: name them, or give a path for each depth, such as %s and %s", p, strings.ReplaceAll(p, "**/", ""), strings.ReplaceAll(p, "**", "*"))
	}
	return nil
}

func matching(glob string) ([]string, error) {
	found, err := filepath.Glob(glob)
	if err != nil {
		return nil, fail(ErrNoFiles, "%s: %w", glob, err)
	}
	if len(found) == 0 {
		return nil, fail(ErrNoFiles, "%s matches no file", glob)
	}
	return found, nil
}

// Missing is the error of a file or folder that is not here, or of a glob that matches none. What a URL names only fetching it tells.
func Missing(path string) error {
	if err := checkDepth(path); err != nil {
		return err
	}
	if IsGlob(path) {
		_, err := matching(path)
		return err
	}
	err := plainfile.Here(filepath.Clean(path)) // as it is read: a/../b needs no a
	switch {
	case errors.Is(err, fs.ErrNotExist) && !Remote(path):
		return fail(ErrNoFiles, "%w%s", err, onHub(path))
	case errors.Is(err, plainfile.ErrElsewhere):
		return err
	}
	return nil
}

// Temporary is the folder in which contraflow prep writes. It is removed when the folder that holds it is complete.
const Temporary = "_temporary"

// complete refuses files of a folder that contraflow prep has not completed.
func complete(paths []string) error {
	asked := ""
	for _, p := range paths {
		dir := filepath.Dir(p)
		if dir == asked {
			continue
		}
		asked = dir
		if info, err := os.Stat(filepath.Join(dir, Temporary)); err == nil && info.IsDir() {
			return fail(ErrCorrupt, "%s is not complete: contraflow prep is writing it, or was ended while it did (then run it again)", dir)
		}
	}
	return nil
}

// nameColumns makes the distinct source columns and the roles that use them.
func (d *Dataset) nameColumns() error {
	is := sourceColumn{} // what the column at hand is
	var both error
	use := func(name string) int {
		for i, s := range d.sources {
			if s.name == name && i >= d.firstNumber {
				if s.of != is.of || s.id != is.id {
					both = fail(ErrColumnType, "column %q is that of queries and of documents, and its ids would be of other texts in each, or one of them no ids: it has to be there twice, by two names", name)
				}
				return i
			}
		}
		is.name = name
		d.sources = append(d.sources, is)
		return len(d.sources) - 1
	}
	names := []string{d.src.Query, d.src.Positive}
	if d.src.Positive == "" {
		names = names[:1]
	}
	names = append(names, d.src.Negatives...)
	switch {
	case d.src.Documents != "" && d.src.Raw:
		names = append(names, d.src.Documents)
	case d.src.Documents != "":
		names = append(names, d.src.Documents, d.src.Documents)
	}
	joins := map[string]int{}
	for i, name := range names {
		r := roleColumn{role: min(Role(i), Negative), picks: 1}
		is.of = d.src.Corpus
		if r.role == Query {
			is.of = d.src.Queries
		}
		is.id = is.of != nil || d.src.texts && r.role == Query
		if isTemplate(name) && is.id {
			return fail(ErrColumnType, "the template %q would be an id: %s are named by those of one column", name, []string{"queries", "documents"}[min(i, 1)])
		}
		if isTemplate(name) {
			k, ok := joins[name]
			if !ok {
				j, err := parseTemplate(name, use)
				if err != nil {
					return err
				}
				k = len(d.joins)
				joins[name], d.joins = k, append(d.joins, j)
			}
			r.source = -1 - k // until the text columns are counted
		} else {
			r.source = use(name)
			d.sources[r.source].direct = true
		}
		d.roles = append(d.roles, r)
	}
	d.firstNumber, is = len(d.sources), sourceColumn{number: true}
	for i := range d.roles {
		if r := &d.roles[i]; r.source < 0 {
			r.source = d.firstNumber - 1 - r.source
		}
	}
	number := func(name string) int {
		if name == "" {
			return -1
		}
		return use(name) - d.firstNumber
	}
	d.number = numberRoles{weight: number(d.src.Weight), label: number(d.src.Label), teacher: number(d.src.Teacher), relevance: number(d.src.Relevance)}
	for _, name := range d.src.Scores {
		d.number.scores = append(d.number.scores, number(name))
	}
	for i := range d.sources[d.firstNumber:] {
		is := d.number
		d.sources[d.firstNumber+i].truth = (i == is.label || slices.Contains(is.scores, i)) && i != is.weight && i != is.teacher && i != is.relevance
	}
	return both
}

// firstText is the first of a list's texts that is a role's: of Documents' negatives the second.
func (d *Dataset) firstText(role int) int {
	if d.src.Documents != "" && d.roles[role].role == Negative {
		return 1
	}
	return 0
}

// pick appends to dst which of the n texts that a row has for a role it uses in an epoch.
func (d *Dataset) pick(dst []int, seed uint64, epoch int, row int64, role, n int) []int {
	if first := d.firstText(role); d.roles[role].picks == AllNegatives {
		for i := first; i < n; i++ {
			dst = append(dst, i)
		}
		return dst
	}
	if d.src.Documents != "" {
		return append(dst, 0)
	}
	return choose(dst, seed, epoch, row, role, n, d.roles[role].picks)
}

// openFiles opens all files, several at once.
func (d *Dataset) openFiles(ctx context.Context, paths []string, limit blockLimit) error {
	d.files = make([]dataFile, len(paths))
	return forEach(runtime.GOMAXPROCS(0), len(paths), func(i int) (err error) {
		switch err = ctx.Err(); {
		case err != nil:
		case isParquet(paths[i]):
			d.files[i].parquet, err = openParquet(paths[i])
		default:
			d.files[i].jsonl, err = openJSONL(ctx, paths[i], limit, d.bare)
		}
		return err
	})
}

// forEach calls do(0..n-1) from up to threads goroutines and returns when all are done. After an error it starts no more; it returns that of the
// lowest number.
func forEach(threads, n int, do func(i int) error) error {
	errs := make([]error, n)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range max(1, min(threads, n)) {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				if errs[i] = do(int(i)); errs[i] != nil {
					next.Store(int64(n))
				}
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// textsAsLists goes on from an error about a list in a cell.
const textsAsLists = "; texts that look like that have to come as JSON lines or parquet"

// makeChunks keeps what reading the columns of a parquet file takes, and lets go of the footer. With tokens they are those of the ids.
func (f *dataFile) makeChunks(d *Dataset) error {
	p, sources := f.parquet, d.sources
	if p == nil {
		return nil
	}
	if d.src.Tokens {
		if err := f.tokenChunks(d); err != nil {
			return err
		}
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
	f.mined = p.said(MinedKey)
	p.meta = nil
	return nil
}

// makeBlocks cuts the files into blocks.
func (d *Dataset) makeBlocks(limit blockLimit) {
	for i := range d.files {
		f := &d.files[i]
		at := int64(0)
		add := func(b blockRef) {
			b.first, b.file, b.at = f.first+at, int32(i), at
			at += int64(b.rows)
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
