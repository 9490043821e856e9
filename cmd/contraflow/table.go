package main

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"contraflow/io/dataset"
	"contraflow/stages/embedder"
)

// tableFlags say which table a command reads, and where to it writes what a model makes of each row: beside the table's columns into a parquet file,
// alone into an array of NumPy, or as lines to standard output. embed and rerank are such commands.
type tableFlags struct {
	files  []string
	output string
	arrays bool // the output may be an array of NumPy
	bad    badRows
	rows   *rowCount // nil: not begun
}

// made is what a model makes of rows.
type made struct {
	columns []dataset.OutColumn
	dim     int                                                       // of an array of NumPy
	rows    int                                                       // at a time
	of      func(texts [][]string) (values []any, cut int, err error) // of the texts of each column that is read a value for each column
	wrong   func(query, document string) error                        // with a row of two texts; nil: nothing is
}

// ofRow is an error of one of the rows.
type ofRow struct {
	row int
	error
}

// npy tells that the output is an array of NumPy.
func (in *tableFlags) npy() bool {
	return in.arrays && strings.EqualFold(filepath.Ext(in.output), ".npy")
}

// to is what people call the output.
func (in *tableFlags) to() string {
	if in.output == std {
		return "standard output"
	}
	return in.output
}

// check refuses an output that can't be, or would replace what it is not to. written is what is written, fileFlags are flags of what is written to files.
func (in *tableFlags) check(cmd *cobra.Command, written string, fileFlags ...string) error {
	if err := checkStreams(cmd, in.files, in.output, fileFlags...); err != nil {
		return err
	}
	switch {
	case in.output == std:
		in.bad.instead = "null"
		return nil
	case in.npy():
		in.bad.instead = "NaN"
		if err := errors.Join(separate("--output", in.output, in.files...), noFolder("--output", in.output, "out.npy")); err != nil {
			return err
		}
		return sameKind("--output", in.output, "array of NumPy", isArray)
	}
	return in.bad.beside(in.output, in.files, written)
}

// run reads the texts of columns, and writes what is made of them.
func (in *tableFlags) run(cmd *cobra.Command, read []string, x made) (*rowCount, error) {
	ctx := cmd.Context()
	t, err := openRows(cmd, in.files, &in.bad)
	if err != nil {
		return nil, err
	}
	defer t.Close()
	w, err := in.writer(cmd, t, x)
	if err != nil {
		return nil, err
	}
	defer w.Abort()
	t.KeepEmpty()
	if err := in.bad.checkTexts(ctx, t, read...); err != nil {
		return nil, err
	}
	in.rows = &rowCount{ui: progressOf(cmd), of: t.Rows(), one: "text", many: "texts"}
	if len(read) > 1 {
		in.rows.one, in.rows.many = "pair", "pairs"
	}
	for c, err := range t.Chunks(ctx, read[0], x.rows) {
		if err == nil {
			err = in.chunk(t, c, read[1:], x, w)
		}
		if err != nil {
			return nil, err
		}
	}
	if err := in.bad.all(t); err != nil {
		return nil, err
	}
	return in.rows, w.Close()
}

// chunk is a part of run. more are columns besides the one whose texts the chunk has.
func (in *tableFlags) chunk(t *dataset.Table, c *dataset.Chunk, more []string, x made, w rowWriter) error {
	texts := [][]string{nil}
	for _, column := range more {
		of, err := t.Texts(c, column)
		if err != nil {
			return err
		}
		texts = append(texts, of)
	}
	if x.wrong != nil {
		for i := range c.Rows {
			if c.Bad[i] != nil {
				continue
			}
			if err := x.wrong(c.Texts[i], texts[1][i]); err != nil {
				row := c.First + int64(i)
				c.Leave(i, &dataset.RowError{Row: row, Location: t.Locate(row), Reason: err.Error()})
			}
		}
	}
	out, ids, err := in.bad.in(c)
	if err != nil {
		return err
	}
	for i, row := range out {
		for k := range more {
			texts[k+1] = slices.Delete(texts[k+1], row-i, row-i+1)
		}
	}
	c.Drop(out)
	texts[0] = c.Texts
	var values []any
	cut := 0
	if c.Rows > 0 {
		if values, cut, err = x.of(texts); err != nil {
			return inRows(t, ids, err)
		}
	}
	if err := w.write(c, values, out); err != nil {
		return err
	}
	in.rows.add(texts, len(out), cut)
	return nil
}

// within says how far a chunk is, whose end [rowCount.add] tells.
func (in *tableFlags) within(done, total int) {
	if n := in.rows; n != nil && done < total { // nil: of texts that flags give
		n.progress(int64(n.read+done), n.of, "", n.one, n.many)
	}
}

// ofOne tells which of the rows or texts of a call an error is of, and what is wrong with it.
func ofOne(err error) (row int, what error, ok bool) {
	var one *ofRow
	if errors.As(err, &one) {
		return one.row, one.error, true
	}
	return embedder.OfText(err)
}

// inRows is an error of rows with these ids.
func inRows(t *dataset.Table, ids []int64, err error) error {
	if row, what, ok := ofOne(err); ok {
		return fmt.Errorf("%v: %w", t.Locate(ids[row]), what)
	}
	return fmt.Errorf("rows %d to %d: %w", ids[0], ids[len(ids)-1], err)
}

// rowCount counts rows, and says so.
type rowCount struct {
	*ui
	read, done, cut, empty int
	of                     int64
	one, many              string // what they are
}

// add counts a chunk's rows, besides which some were left out.
func (n *rowCount) add(texts [][]string, out, cut int) {
	for i := range texts[0] {
		if slices.ContainsFunc(texts, func(of []string) bool { return dataset.Blank(of[i]) }) {
			n.empty++
		}
	}
	n.read, n.done, n.cut = n.read+len(texts[0])+out, n.done+len(texts[0]), n.cut+cut
	n.progress(int64(n.read), n.of, "", n.one, n.many)
}

// rowWriter writes values of the rows of a chunk that are left; out (ascending) are the places of those that are not.
type rowWriter interface {
	write(c *dataset.Chunk, values []any, out []int) error
	Close() error
	Abort() // of what is complete nothing
}

func (in *tableFlags) writer(cmd *cobra.Command, t *dataset.Table, x made) (rowWriter, error) {
	switch {
	case in.output == std:
		return newLines(cmd, x.columns), nil
	case in.npy():
		w, err := dataset.NewNPYWriter(in.output, t.Rows(), x.dim)
		return arrayRows{w, x.dim}, err
	}
	w, err := t.NewWriter(in.output, x.columns...)
	return besideRows{w}, err
}

// besideRows writes values beside the table's columns.
type besideRows struct{ *dataset.TableWriter }

func (w besideRows) write(c *dataset.Chunk, values []any, _ []int) error {
	if c.Rows == 0 {
		return nil
	}
	for i, v := range values {
		if numbers, ok := v.([]float32); ok {
			values[i] = widened(numbers)
		}
	}
	return w.Write(c, values...)
}

// arrayRows writes vectors, and NaN in the places of rows that are out.
type arrayRows struct {
	*dataset.NPYWriter
	dim int
}

func (w arrayRows) write(c *dataset.Chunk, values []any, out []int) error {
	var vectors []float32
	if c.Rows > 0 {
		vectors = values[0].(dataset.Vectors).Data
	}
	if len(out) == 0 {
		return w.Write(vectors)
	}
	nan := slices.Repeat([]float32{float32(math.NaN())}, w.dim)
	all := make([]float32, 0, (c.Rows+len(out))*w.dim)
	for row := range c.Rows + len(out) {
		if len(out) > 0 && out[0] == row {
			all, out = append(all, nan...), out[1:]
		} else {
			all, vectors = append(all, vectors[:w.dim]...), vectors[w.dim:]
		}
	}
	return w.Write(all)
}
