//go:build cuda

package cuda

// #include "driver.h"
import "C"

import (
	"fmt"
	"sync"
	"unsafe"

	"gorgonia.org/cu"

	"contraflow/gpustage"
)

// pins is pinned memory of all GPUs, as each takes part in the others' copies.
var pins struct {
	sync.RWMutex
	at map[uintptr]uintptr // where it ends, by where it begins
}

// Pin gives pinned memory: the GPU copies it as fast as the bus goes, where other memory of the host goes through a buffer of the driver's.
func (d *Device) Pin(bytes int) (*gpustage.HostMemory, error) {
	var at unsafe.Pointer
	whole.Lock() // see graphs.go
	err := driverError(C.pinned(d.raw(), C.size_t(max(bytes, 1)), &at))
	whole.Unlock()
	if err != nil {
		return nil, fmt.Errorf("%s: %d bytes of pinned memory: %w", d.Name(), bytes, err)
	}
	begin := uintptr(at)
	pins.Lock()
	defer pins.Unlock()
	if pins.at == nil {
		pins.at = map[uintptr]uintptr{}
	}
	pins.at[begin] = begin + uintptr(bytes)
	return gpustage.HostMemoryAt(unsafe.Slice((*byte)(at), bytes), func() error {
		pins.Lock()
		delete(pins.at, begin)
		pins.Unlock()
		unbind, err := d.bind()
		if err != nil {
			return err
		}
		defer unbind()
		whole.Lock()
		defer whole.Unlock()
		return cu.MemFreeHost(at)
	}), nil
}

// isPinned tells whether all of b, which is not empty, lies in such memory. There are few pieces: four streams' and four collectives'.
func isPinned(b []byte) bool {
	from := uintptr(unsafe.Pointer(&b[0]))
	pins.RLock()
	defer pins.RUnlock()
	for begin, end := range pins.at {
		if begin <= from && from+uintptr(len(b)) <= end {
			return true
		}
	}
	return false
}
