//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package safetensors

import (
	"fmt"
	"math"
	"os"

	"golang.org/x/sys/unix"

	"contraflow/io/internal/plainfile"
)

// mapFile gives the file's bytes and what releases them.
func mapFile(path string) ([]byte, func() error, error) {
	if err := plainfile.Check(path); err != nil {
		return nil, nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close() // a mapping outlives its descriptor
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	switch size := info.Size(); {
	case info.IsDir():
		return nil, nil, fmt.Errorf("%s is a folder, not a file", path)
	case size == 0: // can't be mapped
		return nil, func() error { return nil }, nil
	case size > math.MaxInt:
		return nil, nil, fmt.Errorf("%s: %d bytes are more than this machine can address", path, size)
	}
	data, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, fmt.Errorf("map %s into memory: %w", path, err)
	}
	return data, func() error { return unix.Munmap(data) }, nil
}

// forget lets the system take the mapping's pages back; they are read again where they are needed again.
func forget(data []byte) {
	if len(data) > 0 {
		unix.Madvise(data, unix.MADV_DONTNEED) // advice: that it fails changes nothing
	}
}
