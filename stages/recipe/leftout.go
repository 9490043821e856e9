package recipe

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"contraflow/io/atomicfile"
	"contraflow/io/dataset"
	"contraflow/io/spelling"
)

// LeftOutError says that too few rows are left to train, because others can't be used.
type LeftOutError struct {
	err  error
	rows []*dataset.RowError
}

func (e *LeftOutError) Error() string { return e.err.Error() }
func (e *LeftOutError) Unwrap() error { return e.err }

// List writes which rows those are, and why, into a run's folder, which it makes: skipped.jsonl, as a run that trains does, or skipped.jsonl.failed where
// the folder has a run already, until one begins there. It returns the file's path.
func (e *LeftOutError) List(dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return "", err
	}
	path := filepath.Join(dir, skippedFile)
	if _, err := os.Stat(filepath.Join(dir, "recipe.yaml")); err == nil {
		path += notBegun
	}
	return path, writeSkipped(path, e.rows)
}

// leftOut goes on from an error about data that is too small: with how many rows of it can't be used, and why the first of them can't, for what is left
// tells nothing of it.
func (t *trainingData) leftOut(err error) error {
	bad := t.skipped
	var of *sourceError
	if errors.As(err, &of) {
		from := 0
		for _, p := range t.parts[:of.Part] {
			from += len(p.Skip)
		}
		bad = bad[from : from+len(t.parts[of.Part].Skip)]
	}
	if len(bad) == 0 {
		return err
	}
	return &LeftOutError{fmt.Errorf("%w; data.on_error: skip has left out %s that can't be used, the first one: %w", err, spelling.Count(len(bad), "row", "rows"), bad[0]), t.skipped}
}

// SkippedRow is a line of skipped.jsonl.
type SkippedRow struct {
	File     string `json:"file"`
	RowGroup *int   `json:"row_group,omitempty"` // parquet
	Row      int64  `json:"row"`                 // of the file, from 0
	Line     int64  `json:"line,omitempty"`      // JSON lines, .csv and .tsv, from 1
	Element  int64  `json:"element,omitempty"`   // of a file that is a JSON array, from 1
	Column   string `json:"column,omitempty"`
	Reason   string `json:"reason"`
}

// SkippedRowOf is the line of a row that can't be used.
func SkippedRowOf(e *dataset.RowError) SkippedRow {
	row := SkippedRow{File: e.Location.File, Row: e.Location.Row, Line: e.Location.Line, Element: e.Location.Element, Column: e.Column, Reason: e.Reason}
	if e.Location.RowGroup >= 0 {
		row.RowGroup = &e.Location.RowGroup
	}
	return row
}

// Where says where the row is, as errors do.
func (r SkippedRow) Where() dataset.Location {
	at := dataset.Location{File: r.File, RowGroup: -1, Row: r.Row, Line: r.Line, Element: r.Element}
	if r.RowGroup != nil {
		at.RowGroup = *r.RowGroup
	}
	return at
}

// skippedFile is where in save.dir they are; with notBegun behind it those of a run that has not begun.
const skippedFile, notBegun = "skipped.jsonl", ".failed"

// writeSkipped lists the rows that can't be used; without any there is no file.
func writeSkipped(path string, rows []*dataset.RowError) error {
	if len(rows) == 0 {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	for _, s := range rows {
		if err := enc.Encode(SkippedRowOf(s)); err != nil {
			return err
		}
	}
	return atomicfile.WriteFile(path, b.Bytes())
}
