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

// pins holds the pinned memory of all GPUs: one GPU's stream may copy what another's device has pinned.
var pins struct {
	sync.RWMutex
	at map[uintptr]pin // by where it begins
}

type pin struct {
	d   *Device
	at  unsafe.Pointer
	end uintptr
}

// Pin gives pinned memory, which the GPU reads and writes itself, as fast as the bus goes: from other memory of the host CopyIn goes through
// a stream's ring, and to it CopyOut through a buffer of the driver's. What has not been given back ends with the device.
func (d *Device) Pin(bytes int) (*gpustage.HostMemory, error) {
	if bytes < 0 {
		return nil, fmt.Errorf("pinning %d bytes", bytes)
	}
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
		pins.at = map[uintptr]pin{}
	}
	pins.at[begin] = pin{d, at, begin + uintptr(bytes)}
	return gpustage.HostMemoryAt(unsafe.Slice((*byte)(at), bytes), func() error {
		pins.Lock()
		p, ok := pins.at[begin]
		ok = ok && p.d == d
		if ok {
			delete(pins.at, begin)
		}
		pins.Unlock()
		if !ok { // the device was closed first
			return nil
		}
		unbind, err := d.bind()
		if err != nil {
			return err
		}
		defer unbind()
		return unpin(at)
	}), nil
}

// unpin gives memory back. The context is current.
func unpin(at unsafe.Pointer) error {
	whole.Lock()
	defer whole.Unlock()
	return cu.MemFreeHost(at)
}

// unpinAll gives back what a device has left. Its context is current.
func (d *Device) unpinAll() (errs []error) {
	pins.Lock()
	defer pins.Unlock()
	for begin, p := range pins.at {
		if p.d == d {
			delete(pins.at, begin)
			errs = append(errs, unpin(p.at))
		}
	}
	return errs
}

// isPinned tells whether all of b, which is not empty, lies in such memory. There are few pieces: a ring for each stream, and two for each
// group that communicates.
func isPinned(b []byte) bool {
	from := uintptr(unsafe.Pointer(&b[0]))
	pins.RLock()
	defer pins.RUnlock()
	for begin, p := range pins.at {
		if begin <= from && from+uintptr(len(b)) <= p.end {
			return true
		}
	}
	return false
}
