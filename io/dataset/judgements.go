package dataset

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// bareTexts and bareJudgements tell whether a path's files may be lines without a header: .tsv files, and of judgements those of a name that says
// nothing.
func bareTexts(path string) bool { return ending(path) == ".tsv" }
func bareJudgements(path string) bool {
	return bareTexts(path) || !slices.Contains(extensions, ending(path))
}

// linesOrTables reads the files of a path: those that bare says may be lines without a header by lines, unless that finds that they are tables, and all
// others as tables, which say what is wrong where nothing is there.
func linesOrTables(ctx context.Context, path string, bare func(path string) bool, lines func(file string) (table bool, err error), table func(t *Table) error) error {
	files := []string{path}
	if bare(path) && Remote(path) {
		found, err := fetchURL(ctx, path, HeldOut)
		if err != nil {
			return err
		}
		slices.Sort(found)
		files = found
	} else if bare(path) && IsGlob(path) {
		if found, _ := filepath.Glob(path); len(found) > 0 { // sorted
			files = found
		}
	}
	for _, file := range files {
		if bare(file) && !IsGlob(file) {
			if table, err := lines(file); err != nil {
				return err
			} else if !table {
				continue
			}
		}
		t, err := OpenTableOf(ctx, []string{file}, HeldOut)
		if err != nil {
			return err
		}
		err = table(t)
		t.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// loadJudgements reads qrels, of tables or of lines without a header.
func loadJudgements(ctx context.Context, path string, add func(query, doc string, relevance float64, where Location) error) error {
	return linesOrTables(ctx, path, bareJudgements, func(file string) (table bool, err error) {
		return loadLines(ctx, file, add)
	}, func(t *Table) error {
		return t.cells(ctx, judgementColumns, func(row int64, c []cell) error {
			relevance, err := grade(c[2].text)
			if err != nil || c[0].null || c[1].null {
				reason := fmt.Sprintf("query %q, document %q, relevance %q: want two ids and a whole number", c[0].text, c[1].text, c[2].text)
				if err != nil && !errors.Is(err, strconv.ErrSyntax) {
					reason = fmt.Sprintf("query %q, document %q: %v", c[0].text, c[1].text, err)
				}
				return &RowError{Row: row, Location: t.Locate(row), Reason: reason}
			}
			return add(c[0].text, c[1].text, relevance, t.Locate(row))
		})
	})
}

// judgementColumns are the names that a judgement's query, document and relevance may have.
var judgementColumns = [][]string{{"query_id", "query-id"}, {"doc_id", "corpus-id", "corpus_id"}, {"relevance", "score"}}

// namesJudgements tells whether a first line's fields are such names.
func namesJudgements(fields []string) bool {
	for _, names := range judgementColumns {
		if !slices.ContainsFunc(fields, func(f string) bool { return slices.Contains(names, strings.TrimSpace(f)) }) {
			return false
		}
	}
	return true
}

// loadLines reads qrels whose first line does not name the columns: they are BEIR's, query-id, corpus-id and score, or TREC's, with an iteration
// behind the query. It may be a header all the same, of other names, if its score is no number. Of a file whose first line names them it reads
// no more than that: it is a table. Fields are between tabs in .tsv files, and between any spaces elsewhere.
func loadLines(ctx context.Context, path string, add func(query, doc string, relevance float64, where Location) error) (table bool, err error) {
	next, close, err := openTabbed(path)
	if err != nil {
		return false, err
	}
	defer close()
	width := 0
	for first, row := true, int64(0); ; first, row = false, row+1 {
		fields, line, err := next()
		if separated(path) == "" || len(fields) == 1 {
			fields = strings.Fields(strings.Join(fields, " "))
		}
		switch {
		case err == io.EOF:
			return false, nil
		case err != nil:
			return false, fmt.Errorf("%s: %w", path, err)
		case first && namesJudgements(fields) && separated(path) != "":
			return true, nil
		case first && namesJudgements(fields):
			return false, fail(ErrCorrupt, "%s:%d: the first line names columns, as that of a table: its file has to be called .tsv (with tabs) or .csv", path, line)
		case slices.ContainsFunc(fields, func(f string) bool { return !utf8.ValidString(f) }):
			return false, fail(ErrCorrupt, "%s:%d: the line %s", path, line, notUTF8)
		case len(fields) != 3 && len(fields) != 4:
			return false, fail(ErrCorrupt, "%s:%d: %d fields, want query-id, corpus-id and score, or TREC's query, iteration, document and relevance, or in a table a first line that names its columns", path, line, len(fields))
		case width > 0 && len(fields) != width:
			return false, fail(ErrCorrupt, "%s:%d: %d fields, the lines before it have %d", path, line, len(fields), width)
		}
		width = len(fields)
		doc, text := fields[width-2], fields[width-1]
		score, err := grade(text)
		if first && errors.Is(err, strconv.ErrSyntax) && separated(path) != "" {
			continue
		}
		if err != nil {
			return false, fail(ErrCorrupt, "%s:%d: the score is %q, want a whole number", path, line, text)
		}
		if err := goOn(ctx, add(fields[0], doc, score, Location{File: path, RowGroup: -1, Row: row, Line: line})); err != nil {
			return false, err
		}
	}
}

// loadBareTexts reads a .tsv file of ids and texts whose first line does not name the columns, as MS MARCO's queries and collection: it begins with a
// number. Of another file it reads no more than that line: it is a table.
func loadBareTexts(ctx context.Context, path string, ids textsByID) (table bool, err error) {
	next, close, err := openTabbed(path)
	if err != nil {
		return false, err
	}
	defer close()
	for row := int64(0); ; row++ {
		fields, line, err := next()
		switch {
		case row == 0 && (err != nil || len(fields) != 2 || !isNumber(fields[0])):
			return true, nil // which says what is wrong with it, if anything is
		case err == io.EOF:
			return false, nil
		case err != nil:
			return false, fmt.Errorf("%s: %w", path, err)
		case len(fields) != 2:
			return false, fail(ErrCorrupt, "%s:%d: %d fields between tabs, want an id and a text, as the first line has them", path, line, len(fields))
		}
		where := Location{File: path, RowGroup: -1, Row: row, Line: line}
		if !utf8.ValidString(fields[0]) {
			err = &RowError{Row: row, Location: where, Column: "id", Reason: "the id " + notUTF8}
		} else {
			err = ids.add("id", fields[0], fields[1], row, where)
		}
		if err := goOn(ctx, err); err != nil {
			return false, err
		}
	}
}

func isNumber(text string) bool {
	_, err := strconv.ParseUint(text, 10, 64)
	return err == nil
}

// openTabbed opens a file of lines, compressed or not, whose fields are between tabs. close belongs to the caller.
func openTabbed(path string) (next func() (fields []string, line int64, err error), close func(), err error) {
	f, _, err := openFile(path, -1)
	if err != nil {
		return nil, nil, err
	}
	content, end, err := unpacked(path, f)
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	limit := &rowLimit{r: content, max: maxRow}
	in, _, err := afterMark(path, limit)
	if err != nil {
		end()
		f.Close()
		return nil, nil, err
	}
	split := tabbed(in)
	next = func() ([]string, int64, error) {
		limit.read = 0
		return split()
	}
	return next, func() { end(); f.Close() }, nil
}
