package main

import (
	"bufio"
	"context"
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
func openRows(cmd *cobra.Command, bad *badRows) func(ctx context.Context, input []string) (*dataset.Table, error) {
	return func(ctx context.Context, input []string) (*dataset.Table, error) {
		if !slices.Contains(input, std) {
			return bad.open(ctx, input)
		}
		type opened struct {
			table *dataset.Table
			err   error
		}
		done := make(chan opened, 1)
		go func() { // reading standard input can't be interrupted
			var o opened
			o.err = protect(func() (err error) {
				o.table, err = dataset.OpenTableFrom(ctx, "standard input", cmd.InOrStdin(), bad.skips())
				return err
			})
			done <- o
		}()
		select {
		case o := <-done:
			return o.table, bad.stopped(o.err)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
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

// outputName is what people call an output.
func outputName(output string) string {
	if output == std {
		return "standard output"
	}
	return output
}

// lineWriter prints a line of JSON for each row.
type lineWriter struct {
	out *bufio.Writer
	enc *json.Encoder
}

func newLines(cmd *cobra.Command) *lineWriter {
	out := bufio.NewWriterSize(cmd.OutOrStdout(), 1<<16)
	return &lineWriter{out, json.NewEncoder(out)}
}

// write prints values, and null in the places of rows that are out (ascending).
func (w *lineWriter) write(values []any, out []int) error {
	for row := 0; len(values)+len(out) > 0; row++ {
		var v any
		if len(out) > 0 && out[0] == row {
			out = out[1:]
		} else {
			v, values = values[0], values[1:]
		}
		if err := w.enc.Encode(v); err != nil {
			return err
		}
	}
	return w.out.Flush()
}
