//go:build !unix

package dataset

import (
	"errors"
	"os"
)

func mapMemory(int) ([]byte, error) { return nil, errors.ErrUnsupported }

func unmapMemory([]byte) {}

// mapFile gives a file's content.
func mapFile(f *os.File, size int) ([]byte, error) {
	b := make([]byte, size)
	_, err := f.ReadAt(b, 0)
	return b, err
}
