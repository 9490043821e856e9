package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"contraflow/io/dataset"
)

// --input - is standard input, as JSON lines, and --output - standard output, a line for each row: nothing else is written there. What is read is kept in
// a temporary file first, for it is looked at before anything is computed; so the first line comes out when the last one is in.

const std = "-"

// streamHelp is what the help of commands says of it; line is what stands in a line.
func streamHelp(line string) string {
	return "--input - reads JSON lines from standard input, to their end. --output - writes lines to standard output instead of a file, and nothing else there: " + line + "\nof each row, in their order, and with --on-error skip null for a row that can't be used."
}

// openRows opens what a command reads: files, or standard input.
func openRows(cmd *cobra.Command, input []string, bad *badRows) (*dataset.Table, error) {
	if !slices.Contains(input, std) {
		return bad.open(cmd.Context(), input)
	}
	t, err := interruptible(cmd, func() (*dataset.Table, error) {
		return dataset.OpenTableFrom(cmd.Context(), "standard input", cmd.InOrStdin(), bad.skips())
	})
	return t, bad.stopped(err)
}

// interruptible does what reads standard input, which can't be interrupted: a signal ends the command, and with it what waits for a line.
func interruptible[T any](cmd *cobra.Command, read func() (T, error)) (result T, err error) {
	type ended struct {
		result T
		err    error
	}
	done := make(chan ended, 1)
	go func() {
		var e ended
		e.err = protect(func() (err error) {
			e.result, err = read()
			return err
		})
		done <- e
	}()
	select {
	case e := <-done:
		return e.result, e.err
	case <-cmd.Context().Done():
		return result, cmd.Context().Err()
	}
}

// checkStreams refuses what does not go with standard input and output. file are flags of what is written to files.
func checkStreams(cmd *cobra.Command, input []string, output string, file ...string) error {
	if slices.Contains(input, std) && len(input) > 1 {
		return usageError{errors.New("--input - is standard input, and the only input")}
	}
	for _, flag := range file {
		if output == std && cmd.Flags().Changed(flag) {
			return usageError{fmt.Errorf("--%s is for files: --output - writes lines to standard output", flag)}
		}
	}
	return nil
}

// lineWriter prints a line of JSON for each row.
type lineWriter struct {
	columns []dataset.OutColumn
	out     *bufio.Writer
	enc     *json.Encoder
}

func newLines(cmd *cobra.Command, columns []dataset.OutColumn) *lineWriter {
	out := bufio.NewWriterSize(cmd.OutOrStdout(), 1<<16)
	return &lineWriter{columns, out, json.NewEncoder(out)}
}

func (w *lineWriter) write(c *dataset.Chunk, values []any, out []int) error {
	return w.lines(c.Rows, values, out)
}

func (w *lineWriter) Close() error { return nil }
func (w *lineWriter) Abort()       {}

// lines prints the values of so many rows, and null in the places of those that are out (ascending).
func (w *lineWriter) lines(rows int, values []any, out []int) error {
	next := 0
	for row := range rows + len(out) {
		var v any
		if len(out) > 0 && out[0] == row {
			out = out[1:]
		} else {
			v, next = w.value(values, next), next+1
		}
		if err := w.enc.Encode(v); err != nil {
			return err
		}
	}
	return w.out.Flush()
}

// value is what is printed of a row: a score or an embedding, or an object of what there is more.
func (w *lineWriter) value(values []any, row int) any {
	if t := w.columns[0].Type; len(w.columns) == 1 && (t == dataset.FloatOut || t == dataset.VectorOut) {
		return cell(values[0], row)
	}
	object := object{}
	for i, c := range w.columns {
		object = append(object, field{c.Name, cell(values[i], row)})
	}
	return object
}

// cell is a column's value of a row.
func cell(column any, row int) any {
	switch column := column.(type) {
	case []float32:
		return column[row]
	case dataset.Vectors:
		return column.Data[row*column.Dim : (row+1)*column.Dim]
	case [][]int32:
		return append([]int32{}, column[row]...) // [] where there is none, not null
	case [][]float32:
		return append([]float32{}, column[row]...)
	case dataset.VectorLists:
		vectors := [][]float32{}
		for i := column.Cu[row]; i < column.Cu[row+1]; i++ {
			vectors = append(vectors, column.Data[int(i)*column.Dim:(int(i)+1)*column.Dim])
		}
		return vectors
	}
	panic(fmt.Sprintf("a column of %T", column))
}

// object is a JSON object whose fields keep their order.
type object []field

type field struct {
	name  string
	value any
}

func (o object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	for i, f := range o {
		value, err := json.Marshal(f.value)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, "%c%q:%s", "{,"[min(i, 1)], f.name, value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}
