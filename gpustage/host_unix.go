//go:build unix

package gpustage

import (
	"fmt"

	"golang.org/x/sys/unix"
)

func mapHost(bytes int) (*HostMemory, error) {
	b, err := unix.Mmap(-1, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("%d bytes of host memory: %w (%v)", bytes, ErrOutOfMemory, err)
	}
	adviseHuge(b)
	return &HostMemory{data: b, unmap: func() error { return unix.Munmap(b) }}, nil
}
