package dataset

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/parquet-go/parquet-go"

	"contraflow/io/spelling"
)

// Evaluation sets, which are small enough to be held in memory.

// Retrieval is a retrieval task: queries, documents, and which documents are relevant to which query.
type Retrieval struct {
	QueryIDs, Queries []string
	DocIDs, Docs      []string // a document with a title is "title text"
	Judgements        []Judgement

	Missed    []MissedJudgement // of documents that are not in the corpus
	Unknown   int               // judgements left out because their query is not there
	Repeated  int               // judgements that say again what one before has said
	EmptyDocs int               // documents without any text; they keep their place
	LeftOut   int               `json:",omitempty"` // queries and documents without any text that are not here

	// Ascending puts documents with equal scores in the order of their ids, as sentence-transformers does; else it is the reverse one, trec_eval's.
	Ascending bool `json:",omitempty"`
}

// Judgement says how relevant a document is to a query: indices into Queries and Docs, and a grade (0: not).
type Judgement struct {
	Query, Doc int
	Relevance  float64 // a whole number, as gains are in trec_eval
}

// MissedJudgement is a Judgement of a document that is not there. It belongs to the measures' definition, as trec_eval has it: recall and the
// ideal ranking count such a document, which no ranking has.
type MissedJudgement struct {
	Query     int
	Doc       string // its id
	Relevance float64
}

// Note says which judgements and documents are not as they should be; "" if all are.
func (r *Retrieval) Note() string {
	var notes []string
	if r.Unknown > 0 {
		notes = append(notes, spelling.Count(r.Unknown, "judgement names a query that is not there, and is left out", "judgements name queries that are not there, and are left out"))
	}
	if n := len(r.Missed); n > 0 {
		notes = append(notes, fmt.Sprintf("%s, such as %q: counted as not found", spelling.Count(n, "judgement names a document that is not in the corpus", "judgements name documents that are not in the corpus"), r.Missed[0].Doc))
	}
	if r.Repeated > 0 {
		notes = append(notes, spelling.Count(r.Repeated, "judgement says again what another said, and counts once", "judgements say again what others said, and count once"))
	}
	if r.EmptyDocs > 0 {
		notes = append(notes, spelling.Count(r.EmptyDocs, "document is empty, and ranked as such", "documents are empty, and ranked as such"))
	}
	if r.LeftOut > 0 {
		notes = append(notes, spelling.Count(r.LeftOut, "query or document is empty, and left out, as sentence-transformers does", "queries and documents are empty, and left out, as sentence-transformers does"))
	}
	return strings.Join(notes, "; ")
}

// TaskName is what a task is called by its queries' path: the name of the folder, or of the file without its ending.
func TaskName(path string) string {
	base := filepath.Base(path)
	if base == "." || base == ".." {
		if abs, err := filepath.Abs(path); err == nil {
			base = filepath.Base(abs)
		}
	}
	if ext := ending(base); slices.Contains(extensions, ext) {
		return base[:strings.LastIndex(strings.ToLower(base), ext)]
	}
	return base
}

// grade reads a relevance.
func grade(text string) (float64, error) {
	x, err := parseNumber(text)
	if err == nil && (x != math.Trunc(x) || math.Abs(x) > math.MaxInt32) {
		err = fmt.Errorf("the relevance is %v, want a whole number, such as 0, 1 or 2", x)
	}
	return x, err
}

// LoadRetrieval reads a task from parquet or JSONL files, or in the layout of BEIR:
//
//	queries    columns id (or _id) and text, or a .tsv file of these without a header whose ids are numbers, as MS MARCO's
//	corpus     columns id (or _id), text, and title if there is one, or such a file
//	qrels      columns query_id, doc_id, relevance (or query-id, corpus-id, score); or a .tsv file of these without a header; or lines of
//	           TREC: query, iteration, document and relevance between spaces or tabs, in a file of any other name or a .tsv file
//
// Ids are strings or integers, which may have become floats; of parquet a column of decimals, dates or the like is an error. Each argument is a
// file or a glob; queries may be a folder in BEIR's layout (queries.jsonl, corpus.jsonl, qrels/*.tsv) or MTEB's (qrels/test.jsonl, or folders of
// parquet files), then empty arguments are found there. Of several qrels files test's are taken.
//
// Judgements of unknown queries are left out and counted, those of unknown documents are kept apart; it is an error when no others remain, when
// an id comes twice, or a judgement with another grade, when a query is empty, or when a document's text is null and it has no title. Documents that
// are empty are counted, and so are judgements that are only repeated. Of a URL that names a dataset as a whole they are what is [HeldOut].
func LoadRetrieval(ctx context.Context, queries, corpus, qrels string) (*Retrieval, error) {
	r, err := loadRetrieval(ctx, queries, corpus, qrels)
	return r, measured(err)
}

// measured is the error of rows that a model is measured on. None is left out, as others of training data are: a number of fewer rows is another task's.
func measured(err error) error {
	if errors.Is(err, ErrBadRow) {
		return fmt.Errorf("%w; a model is measured on all rows, so it takes a file without this one, or with it put right", err)
	}
	return err
}

func loadRetrieval(ctx context.Context, queries, corpus, qrels string) (*Retrieval, error) {
	queries, corpus, qrels, err := layoutBEIR(ctx, queries, corpus, qrels)
	if err != nil {
		return nil, err
	}
	r := &Retrieval{}
	queryAt, err := loadTexts(ctx, queries, func(id, text string, empty bool, where Location) error {
		if empty {
			return &RowError{Row: where.Row, Location: where, Column: "text", Reason: "the query is null or empty"}
		}
		r.QueryIDs, r.Queries = append(r.QueryIDs, id), append(r.Queries, text)
		return nil
	})
	if err != nil {
		return nil, err
	}
	docAt, err := loadTexts(ctx, corpus, func(id, text string, empty bool, _ Location) error {
		if empty {
			r.EmptyDocs++
		}
		r.DocIDs, r.Docs = append(r.DocIDs, id), append(r.Docs, text)
		return nil
	})
	if err != nil {
		return nil, err
	}
	var strangerQuery, strangerDoc string
	grades := map[[2]string]float64{} // by query and document
	err = loadJudgements(ctx, qrels, func(query, doc string, relevance float64, where Location) error {
		q, okQuery := queryAt[query]
		if !okQuery {
			strangerQuery = query
			r.Unknown++
			return nil
		}
		pair := [2]string{query, doc}
		switch grade, twice := grades[pair]; {
		case twice && grade == relevance:
			r.Repeated++
			return nil
		case twice:
			return &RowError{Row: where.Row, Location: where, Reason: fmt.Sprintf("query %q: document %q is judged a second time, with %v and %v: keep one of them", query, doc, grade, relevance)}
		}
		grades[pair] = relevance
		if d, ok := docAt[doc]; ok {
			r.Judgements = append(r.Judgements, Judgement{q, d, relevance})
		} else {
			strangerDoc = doc
			r.Missed = append(r.Missed, MissedJudgement{q, doc, relevance})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(r.Judgements)+len(r.Missed)+r.Unknown == 0 {
		return nil, fail(ErrNoFiles, "%s: no judgements", qrels)
	}
	if len(r.Judgements) == 0 {
		what := fmt.Sprintf("query %q is not in %s", strangerQuery, queries)
		if strangerDoc != "" {
			what = fmt.Sprintf("document %q is not in %s", strangerDoc, corpus)
		}
		return nil, fail(ErrMissingColumn, "%s: none of its %s is about a query and a document that exist; for one, %s", qrels, spelling.Count(r.Unknown+len(r.Missed), "judgement", "judgements"), what)
	}
	return r, nil
}

// layoutBEIR fills in what a folder has.
func layoutBEIR(ctx context.Context, queries, corpus, qrels string) (_, _, _ string, err error) {
	if Remote(queries) && (corpus == "" || qrels == "") {
		if queries, err = fetchFolder(ctx, queries); err != nil {
			return "", "", "", err
		}
	}
	folder := queries
	if info, err := os.Stat(queries); err != nil || !info.IsDir() {
		if queries == "" || corpus == "" || qrels == "" {
			return "", "", "", fail(ErrNoFiles, "retrieval needs queries, corpus and qrels (%q, %q, %q), or a folder in BEIR's layout as queries", queries, corpus, qrels)
		}
		return queries, corpus, qrels, nil
	}
	find := func(name string) (string, error) {
		for _, ext := range []string{".jsonl", ".jsonl.gz", ".parquet"} {
			if p := filepath.Join(folder, name+ext); exists(p) {
				return p, nil
			}
		}
		for _, ext := range []string{"*.parquet", "*.jsonl"} { // MTEB's
			pattern := globIn(filepath.Join(folder, name), ext)
			if found, _ := filepath.Glob(pattern); len(found) > 0 {
				return pattern, nil
			}
		}
		return "", fail(ErrNoFiles, "%s has no %s.jsonl or %s.parquet", folder, name, name)
	}
	if queries, err = find("queries"); err != nil {
		return "", "", "", err
	}
	if corpus == "" {
		if corpus, err = find("corpus"); err != nil {
			return "", "", "", err
		}
	}
	if qrels == "" {
		qrels = filepath.Join(folder, "qrels")
		if p := qrels + ".parquet"; !exists(qrels) && exists(p) {
			qrels = p
		}
	}
	if info, err := os.Stat(qrels); err == nil && info.IsDir() {
		found, _ := filepath.Glob(globIn(qrels, "*.tsv"))
		test := filepath.Join(qrels, "test.tsv")
		for _, pattern := range []string{"test*.parquet", "test*.jsonl"} { // MTEB's
			pattern = globIn(qrels, pattern)
			if there, _ := filepath.Glob(pattern); len(found) == 0 && len(there) > 0 {
				return queries, corpus, pattern, nil
			}
		}
		switch {
		case exists(test):
			qrels = test
		case len(found) == 1:
			qrels = found[0]
		case len(found) == 0:
			return "", "", "", fail(ErrNoFiles, "%s has no .tsv file", qrels)
		default:
			return "", "", "", fail(ErrNoFiles, "%s has no test.tsv, but %s: name one of them as qrels", qrels, quoteList(found))
		}
	}
	return queries, corpus, qrels, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// loadTexts reads ids and texts, and returns where each id is.
func loadTexts(ctx context.Context, path string, add addText) (map[string]int, error) {
	ids := textsByID{map[string]int{}, add, Reading(ctx)}
	return ids.at, linesOrTables(ctx, path, bareTexts, func(file string) (table bool, err error) {
		return loadBareTexts(ctx, file, ids)
	}, func(t *Table) error {
		column := "id"
		if !t.has("id") {
			column = "_id"
		}
		return t.cells(ctx, [][]string{{"id", "_id"}, {"text"}, {"title", ""}}, func(row int64, c []cell) error {
			id, text, title, where := c[0], c[1], c[2], t.Locate(row)
			if id.null {
				return &RowError{Row: row, Location: where, Column: column, Reason: "null"}
			}
			if text.null && title.text == "" && !t.separated() { // which have nothing else for an empty text
				return &RowError{Row: row, Location: where, Column: "text", Reason: theText + "null"}
			}
			full := text.text
			if title.text != "" {
				full = strings.TrimSpace(title.text + " " + text.text)
			}
			return ids.add(column, id.text, full, row, where)
		})
	})
}

// addText is told of each text, and whether nothing is in it.
type addText func(id, text string, empty bool, where Location) error

// textsByID are texts of distinct ids, and where each id is.
type textsByID struct {
	at   map[string]int
	to   addText
	tell func(what string, texts int)
}

// tellEvery is after how many texts it is told how many there have been. A test sets it.
var tellEvery = 1 << 17

func (ids textsByID) add(column, id, text string, row int64, where Location) error {
	if _, twice := ids.at[id]; twice {
		return &RowError{Row: row, Location: where, Column: column, Reason: fmt.Sprintf("%q comes a second time", id)}
	}
	ids.at[id] = len(ids.at)
	if n := len(ids.at); n%tellEvery == 0 {
		ids.tell("reading "+filepath.Base(where.File), n)
	}
	reason := checkText([]byte(text))
	if reason == textNotUTF8 {
		return &RowError{Row: row, Location: where, Column: "text", Reason: theText + reason}
	}
	return ids.to(id, text, reason != "", where)
}

// Pairs are two columns of texts and a column of scores, as semantic textual similarity has them.
type Pairs struct {
	A, B   []string
	Scores []float64
}

// LoadPairs reads the named columns of files as [OpenTableOf] does what is [HeldOut]; those of texts may be templates. Null or empty texts and scores that are no numbers are errors.
func LoadPairs(ctx context.Context, path, a, b, score string) (*Pairs, error) {
	p := &Pairs{}
	return p, loadColumns(ctx, path, []string{a, b}, score, func(texts []string, text string) (reason string) {
		s, err := parseNumber(text)
		if err != nil || s-s != 0 {
			return fmt.Sprintf("a score of %q: want a number", text)
		}
		p.A, p.B, p.Scores = append(p.A, texts[0]), append(p.B, texts[1]), append(p.Scores, s)
		return ""
	})
}

// LabelledPairs are two columns of texts and one that tells which of them belong together.
type LabelledPairs struct {
	A, B     []string
	Together []bool
}

// LoadLabelledPairs is LoadPairs of pairs with a label: 1 or true of texts that belong together, 0 or false of others.
func LoadLabelledPairs(ctx context.Context, path, a, b, label string) (*LabelledPairs, error) {
	p := &LabelledPairs{}
	return p, loadColumns(ctx, path, []string{a, b}, label, func(texts []string, text string) (reason string) {
		yes, err := strconv.ParseBool(strings.TrimSpace(text))
		if s, bad := parseNumber(text); bad == nil && (s == 0 || s == 1) {
			yes, err = s == 1, nil
		}
		if err != nil {
			return fmt.Sprintf("a label of %q: want 1 or true of texts that belong together, 0 or false of others", text)
		}
		p.A, p.B, p.Together = append(p.A, texts[0]), append(p.B, texts[1]), append(p.Together, yes)
		return ""
	})
}

// Triplets are three columns of texts: of one that the second belongs to, and the third does not.
type Triplets struct {
	Queries, Positives, Negatives []string
}

// Pairs are the queries with their positives, then with their negatives.
func (t *Triplets) Pairs() (queries, documents []string) {
	return slices.Concat(t.Queries, t.Queries), slices.Concat(t.Positives, t.Negatives)
}

// LoadTriplets reads the named columns as LoadPairs does.
func LoadTriplets(ctx context.Context, path, query, positive, negative string) (*Triplets, error) {
	t := &Triplets{}
	return t, loadColumns(ctx, path, []string{query, positive, negative}, "", func(texts []string, _ string) string {
		t.Queries, t.Positives, t.Negatives = append(t.Queries, texts[0]), append(t.Positives, texts[1]), append(t.Negatives, texts[2])
		return ""
	})
}

// loadColumns yields the texts of columns, which may be templates, and what a column of numbers has, unless it is "". A reason makes an error of the row.
func loadColumns(ctx context.Context, path string, names []string, number string, row func(texts []string, number string) (reason string)) error {
	t, err := OpenTableOf(ctx, []string{path}, HeldOut)
	if err != nil {
		return measured(err)
	}
	defer t.Close()
	columns := [][]string{{number}} // none, if that is ""
	use := func(column string) int {
		columns = append(columns, []string{column})
		return len(columns) - 1
	}
	texts := make([]struct {
		column int
		joined *joined // of a template
	}, len(names))
	for i, name := range names {
		if !isTemplate(name) {
			texts[i].column = use(name)
			continue
		}
		j, err := parseTemplate(name, use)
		if err != nil {
			return err
		}
		texts[i].joined = &j
	}
	read := make([]string, len(names))
	return measured(t.cells(ctx, columns, func(n int64, c []cell) error {
		for i, x := range texts {
			if read[i] = c[x.column].text; x.joined != nil {
				text, off, size := x.joined.appendTo(nil, func(column int) []byte { return []byte(c[column].text) })
				read[i] = string(text[off : off+size])
			}
			if reason := checkText([]byte(read[i])); reason != "" {
				return &RowError{Row: n, Location: t.Locate(n), Column: names[i], Reason: "the text is null or " + reason}
			}
		}
		if number != "" && c[0].null {
			return &RowError{Row: n, Location: t.Locate(n), Column: number, Reason: "null"}
		}
		if reason := row(read, c[0].text); reason != "" {
			return &RowError{Row: n, Location: t.Locate(n), Column: number, Reason: reason}
		}
		return nil
	}))
}

// cell is a scalar as text.
type cell struct {
	text string
	null bool
}

// cells yields some columns of all rows as text. Each column is given by the names it may have; a last name of "" makes it
// optional, null when it is not there.
func (t *Table) cells(ctx context.Context, columns [][]string, row func(row int64, cells []cell) error) error {
	leaves := make([]int, len(columns))
	var wanted []int
	for i, names := range columns {
		leaves[i] = -1
		optional := names[len(names)-1] == ""
		for _, name := range names {
			if t.has(name) {
				leaf, list, typ, err := t.find(name)
				if err != nil && !(optional && errors.Is(err, ErrMissingColumn) && t.differ == nil) { // lines and cells may lack it where others have it
					return err
				}
				if list {
					return fail(ErrColumnType, "%s: column %q is list<%s>, want a scalar", t.files[0].path(), name, typ)
				}
				if t.json == nil && !t.leaves[leaf].leaf.isPlain() {
					return fail(ErrColumnType, "%s: column %q is %s, want string, or a number: cast it to one", t.files[0].path(), name, typ)
				}
				leaves[i] = leaf
				wanted = append(wanted, leaf)
				break
			}
		}
		if leaves[i] < 0 && !optional {
			_, _, _, err := t.find(names[0]) // says what there is instead
			return err
		}
	}
	cells := make([]cell, len(columns))
	for c, err := range t.chunks(ctx, wanted, 4096) {
		if err != nil {
			return err
		}
		for i := range c.Rows {
			if bad := c.Bad[i]; bad != nil {
				if err := goOn(ctx, bad); err != nil {
					return err
				}
				continue
			}
			for k, leaf := range leaves {
				cells[k] = cell{null: true}
				if leaf >= 0 {
					cells[k] = t.cell(c.leaves[leaf].list[i], leaf)
				}
			}
			if err := goOn(ctx, row(c.First+int64(i), cells)); err != nil {
				return err
			}
		}
	}
	return nil
}

// has tells whether some file has a column.
func (t *Table) has(name string) bool {
	for _, f := range t.files {
		if f.parquet != nil && len(f.parquet.root.find(name)) > 0 {
			return true
		}
	}
	return slices.Contains(t.names, name)
}

// separated tells whether the table's cells are between separators.
func (t *Table) separated() bool { return t.files[0].cells != nil }

// appendInteger appends an integer's digits.
func appendInteger(b []byte, v parquet.Value, unsigned bool) []byte {
	switch {
	case v.Kind() == parquet.Int32 && unsigned:
		return strconv.AppendUint(b, uint64(v.Uint32()), 10)
	case v.Kind() == parquet.Int32:
		return strconv.AppendInt(b, int64(v.Int32()), 10)
	case unsigned:
		return strconv.AppendUint(b, v.Uint64(), 10)
	}
	return strconv.AppendInt(b, v.Int64(), 10)
}

func (t *Table) cell(v parquet.Value, leaf int) cell {
	unsigned := len(t.leaves) > 0 && t.leaves[leaf].leaf.unsigned()
	switch v.Kind() {
	case parquet.ByteArray:
		return cell{text: string(v.ByteArray())}
	case parquet.Int32, parquet.Int64:
		return cell{text: string(appendInteger(nil, v, unsigned))}
	case parquet.Float:
		return cell{text: strconv.FormatFloat(float64(v.Float()), 'f', -1, 32)}
	case parquet.Double: // without an exponent: pandas makes one of ids that have gaps, which are integers elsewhere
		return cell{text: strconv.FormatFloat(v.Double(), 'f', -1, 64)}
	case parquet.Boolean:
		return cell{text: strconv.FormatBool(v.Boolean())}
	}
	return cell{null: true}
}
