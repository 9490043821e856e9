//go:build cuda

package cuda

// #include "driver.h"
import "C"

import (
	"fmt"
	"os"
	"sync"

	"contraflow/gpustage/cuda/launch"
)

// A recording is a CUDA graph: launches captured from the stream. Package launch decides what is recorded; this is how. The capture is
// relaxed, so it neither belongs to a thread nor forbids anything to others, but a context must not be synchronized while one of its streams
// captures, and all ranks on a GPU have the same.

// whole is held while a stream captures, and by what may synchronize the context: Alloc, Pin, their Free, the library's handles, and the
// first use of a kernel, ours or cuBLASLt's, which is loaded then. (What a stream captures it has launched before.)
var whole sync.Mutex

// enabled is what the environment says of something; otherwise where it says nothing.
func enabled(name, what string, otherwise bool) (bool, error) {
	switch v := os.Getenv(name); v {
	case "":
		return otherwise, nil
	case "on":
		return true, nil
	case "off":
		return false, nil
	default:
		return false, fmt.Errorf("%s=%s: want on (%s) or off", name, v, what)
	}
}

// Repeats tells whether sub-batches are padded to few shapes, and recorded.
func (d *Device) Repeats() bool { return d.repeats }

// Begin has what follows captured.
func (s *Stream) Begin() error {
	whole.Lock()
	err := driverError(C.begin_capture(s.d.raw(), s.raw()))
	if s.captures = err == nil; err != nil {
		whole.Unlock()
	}
	return err
}

// End makes a graph of what was captured.
func (s *Stream) End() (launch.Recording, error) {
	s.captures = false
	defer whole.Unlock()
	g := &graph{s: s}
	if err := driverError(C.end_capture(s.d.raw(), s.raw(), &g.exec)); err != nil {
		return nil, err
	}
	return g, nil
}

// graph is one that can be started on its stream.
type graph struct {
	s    *Stream
	exec C.CUgraphExec
}

// Start is one launch.
func (g *graph) Start() error {
	if err := driverError(C.start_graph(g.s.d.raw(), g.exec, g.s.raw())); err != nil {
		return fmt.Errorf("a CUDA graph: %w", err)
	}
	return nil
}

// Free gives it back, when it has ended if it is running.
func (g *graph) Free() error { return driverError(C.free_graph(g.s.d.raw(), g.exec)) }
