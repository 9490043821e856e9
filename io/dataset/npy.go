package dataset

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"strings"

	"contraflow/io/atomicfile"
)

// NPYWriter writes vectors as NumPy's numpy.load reads them: an array of float32 of shape [rows, features], in version 1.0 of its format
// (numpy.lib.format). What it has written is in a temporary file until Close.
type NPYWriter struct {
	path       string
	rows, dim  int64
	written    int64 // numbers
	file       *atomicfile.File
	buffered   *bufio.Writer
	inBytes    []byte
	incomplete error
}

// NewNPYWriter begins a file of so many vectors, of dim numbers each, for path or, of a link, for what it leads to.
func NewNPYWriter(path string, rows int64, dim int) (*NPYWriter, error) {
	if rows < 0 || dim < 1 {
		return nil, fmt.Errorf("%s: %d vectors of %d numbers: want 0 or more, of at least 1", path, rows, dim)
	}
	file, err := atomicfile.Replace(path)
	if err != nil {
		return nil, err
	}
	w := &NPYWriter{path: path, rows: rows, dim: int64(dim), file: file, buffered: bufio.NewWriterSize(file, 1<<20)}
	const before = 10 // magic, version and the header's length
	header := fmt.Sprintf("{'descr': '<f4', 'fortran_order': False, 'shape': (%d, %d), }", rows, dim)
	header += strings.Repeat(" ", 63-(before+len(header))%64) + "\n" // data begins at a multiple of 64
	w.buffered.WriteString("\x93NUMPY\x01\x00")
	w.buffered.Write(binary.LittleEndian.AppendUint16(nil, uint16(len(header))))
	w.buffered.WriteString(header)
	return w, nil
}

// Write appends whole vectors, one after the other.
func (w *NPYWriter) Write(vectors []float32) error {
	if w.file == nil {
		return closedWriter(w.path)
	}
	w.written += int64(len(vectors))
	w.inBytes = w.inBytes[:0]
	for _, v := range vectors {
		w.inBytes, _ = binary.Append(w.inBytes, binary.LittleEndian, v)
	}
	if _, err := w.buffered.Write(w.inBytes); err != nil {
		w.incomplete = fmt.Errorf("writing %s: %w", w.path, err)
	}
	return w.incomplete
}

// Close puts the file in its place, if it has all vectors. Close after Abort or Close does nothing.
func (w *NPYWriter) Close() error {
	if w.file == nil {
		return nil
	}
	defer w.Abort()
	if w.incomplete == nil && w.written != w.rows*w.dim {
		w.incomplete = fmt.Errorf("%s: %d numbers, for %d vectors of %d", w.path, w.written, w.rows, w.dim)
	}
	if w.incomplete == nil {
		if err := w.buffered.Flush(); err != nil {
			w.incomplete = fmt.Errorf("writing %s: %w", w.path, err)
		}
	}
	if w.incomplete != nil {
		return w.incomplete
	}
	err := w.file.Commit()
	w.file = nil
	return err
}

// closedWriter is the error of writing to a file after its writer's Close or Abort.
func closedWriter(path string) error { return fmt.Errorf("%s: its writer is closed", path) }

// Abort removes the temporary file. It does nothing after Close.
func (w *NPYWriter) Abort() {
	if w.file != nil {
		w.file.Abort(nil)
		w.file = nil
	}
}
