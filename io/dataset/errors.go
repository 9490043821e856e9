package dataset

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"contraflow/io/spelling"
)

// What a caller may want to branch on. The errors themselves say more: which file, row group, row, column or line.
var (
	ErrNoFiles       = errors.New("no data files")
	ErrMissingColumn = errors.New("missing column")
	ErrColumnType    = errors.New("column of the wrong type")
	ErrCorrupt       = errors.New("corrupt file")
	ErrBadRow        = errors.New("bad row")
	ErrBatchTooLarge = errors.New("batch larger than the data")
	ErrCursor        = errors.New("cursor does not fit")
)

// failure is an error whose text is complete without its sentinel: errors.Is finds the sentinel, people read the text.
type failure struct {
	kind error
	text string
	err  error // the cause, if it is an error; its text is part of text
}

func (e *failure) Error() string { return e.text }
func (e *failure) Unwrap() []error {
	return slices.DeleteFunc([]error{e.kind, e.err}, func(e error) bool { return e == nil })
}

func fail(kind error, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	return &failure{kind: kind, text: err.Error(), err: errors.Unwrap(err)}
}

// A RowError says what is wrong with one row. The rows around it can be read. errors.Is(err, ErrBadRow) holds.
type RowError struct {
	Row      int64 // global row id
	Location Location
	Column   string // "" when the whole line is at fault
	Reason   string
}

func (e *RowError) Error() string {
	if e.Column == "" {
		return fmt.Sprintf("%v: %s", e.Location, e.Reason)
	}
	return fmt.Sprintf("%v, column %q: %s", e.Location, e.Column, e.Reason)
}

func (e *RowError) Unwrap() error { return ErrBadRow }

// Kind is the column and the reason without what is this row's alone, numbers and quoted values, for which … stands: the same for all rows with
// such a fault.
func (e *RowError) Kind() string {
	reason := rowsQuotes.ReplaceAllString(e.Reason, "…")
	reason = rowsNumbers.ReplaceAllString(reason, "${1}…")
	reason = strings.Replace(reason, "… field ", "… fields ", 1) // 1 field is no other fault than 2 fields
	if e.Column == "" {
		return reason
	}
	return fmt.Sprintf("column %q: %s", e.Column, reason)
}

var (
	rowsQuotes  = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.){1,9}'`) // a text, or a character
	rowsNumbers = regexp.MustCompile(`(^|[\s(:,\[])[-+]?(?:\d+(?:\.\d+)?(?:e[-+]?\d+)?|Inf\b)`)
)

// Empty tells that the row's fault is a text without anything in it, not one that is null.
func (e *RowError) Empty() bool {
	return e.Reason == theText+textEmpty || e.Reason == theText+textBlank
}

// Location says where a row is at rest.
type Location struct {
	File     string
	RowGroup int   // -1 of what is no parquet file
	Row      int64 // of the file, from 0
	Line     int64 // of a JSONL file, from 1; 0 in parquet files and JSON arrays
	Element  int64 // of a file that is a JSON array, from 1; 0 in others
}

// String returns "a.parquet: row group 3, row 3071" (rows count from 0 at the start of the file), "a.jsonl:12" or "a.json: element 12".
func (l Location) String() string {
	if l.Element > 0 {
		return fmt.Sprintf("%s: element %d", l.File, l.Element)
	}
	if l.Line > 0 {
		return fmt.Sprintf("%s:%d", l.File, l.Line)
	}
	if l.RowGroup < 0 {
		return fmt.Sprintf("%s: row %d", l.File, l.Row)
	}
	return fmt.Sprintf("%s: row group %d, row %d", l.File, l.RowGroup, l.Row)
}

// missingColumn tells which columns there are, and which one was probably meant.
func missingColumn(file, name string, have []string) error {
	hint := ""
	if near := nearest(name, have); near != "" {
		hint = fmt.Sprintf(" (did you mean %q?)", near)
	}
	return fail(ErrMissingColumn, "%s has no column %q%s; its columns are %s", file, name, hint, quoteList(have))
}

func quoteList(names []string) string {
	const most = 20
	more := ""
	if len(names) > most {
		more = fmt.Sprintf(" and %d more", len(names)-most)
		names = names[:most]
	}
	if len(names) == 0 {
		return "none"
	}
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = fmt.Sprintf("%q", n)
	}
	return strings.Join(quoted, ", ") + more
}

// nearest returns the name that was probably meant; "" if none was.
func nearest(name string, have []string) string {
	if near := spelling.Nearest(name, have); near != "" {
		return near
	}
	for _, h := range have { // "pos" for "positive"
		if len(name) >= 3 && strings.Contains(strings.ToLower(h), strings.ToLower(name)) ||
			len(h) >= 3 && strings.Contains(strings.ToLower(name), strings.ToLower(h)) {
			return h
		}
	}
	return ""
}

type badRowsKey struct{}

// WithBadRows has bad called with every row that can't be used of texts by their ids ([OpenTexts]) and of the files that a model is measured on
// ([LoadRetrieval], [LoadPairs], [LoadLabelledPairs], [LoadTriplets] and [LoadCandidates]), where it would end reading them else. What they return lacks
// these rows: it is to look at, nothing trains or is measured on it.
func WithBadRows(ctx context.Context, bad func(*RowError)) context.Context {
	return context.WithValue(ctx, badRowsKey{}, bad)
}

// badRows is a context's function, nil if it has none.
func badRows(ctx context.Context) func(*RowError) {
	bad, _ := ctx.Value(badRowsKey{}).(func(*RowError))
	return bad
}

// goOn tells a context's function of a row that can't be used, if it has one: then it is no error.
func goOn(ctx context.Context, err error) error {
	var row *RowError
	if bad := badRows(ctx); bad != nil && errors.As(err, &row) {
		bad(row)
		return nil
	}
	return err
}
