package dataset_test

import (
	"bytes"
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"contraflow/io/dataset"
)

// The bytes are those that numpy.save of NumPy 2.4 writes for numpy.array([[1, 2, 3], [-4, 0.5, inf]], "float32"); without all vectors there
// is no file.
func TestNPY(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.npy")
	w, err := dataset.NewNPYWriter(path, 2, 3)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	if err := w.Write([]float32{1, 2, 3}); err != nil {
		t.Fatal(err)
	}
	if err := w.Write([]float32{-4, 0.5, float32(math.Inf(1))}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	want := []byte("\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }")
	want = append(want, bytes.Repeat([]byte(" "), 127-len(want))...)
	want, _ = binary.Append(append(want, '\n'), binary.LittleEndian, []float32{1, 2, 3, -4, 0.5, float32(math.Inf(1))})
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%v\n%q, want\n%q", err, got, want)
	}

	if err := w.Write([]float32{1, 2, 3}); err == nil || !strings.Contains(err.Error(), "its writer is closed") {
		t.Errorf("written after Close: %v", err)
	}
	if err := w.Close(); err != nil {
		t.Errorf("closed again: %v", err)
	}
	for _, shape := range [][2]int{{-1, 3}, {1, 0}, {1, -1}} {
		if _, err := dataset.NewNPYWriter(path, int64(shape[0]), shape[1]); err == nil {
			t.Errorf("%v is a shape", shape)
		}
	}
	if w, err = dataset.NewNPYWriter(filepath.Join(filepath.Dir(path), "y.npy"), 2, 3); err != nil {
		t.Fatal(err)
	}
	if err := w.Write([]float32{1, 2, 3}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err == nil {
		t.Error("one vector of two was enough")
	}
	if files, _ := os.ReadDir(filepath.Dir(path)); len(files) != 1 {
		t.Errorf("%v is left", files)
	}
}
