//go:build cuda

package cuda

// #include "driver.h"
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"gorgonia.org/cu"

	"contraflow/gpustage"
	"contraflow/gpustage/cuda/launch"
)

// nonBlocking is CU_STREAM_NON_BLOCKING: it does not wait for the default stream. sleeping is CU_EVENT_BLOCKING_SYNC and untimed
// CU_EVENT_DISABLE_TIMING.
//
// A host thread that waits for an event sleeps: package nccl waits for every collective, a step's whole time, and would spin on a
// processor of its own for each communicator; so would host stages that wait for a lane, and a host that is a ring ahead. A lane's own waits,
// for what it copies out and in Sync, are cuStreamSynchronize's, and spin as the context is told: an interrupt's latency would come on top
// of each.
const (
	nonBlocking = 1
	sleeping    = 1
	untimed     = 2
)

// ringBytes is a stream's pinned memory: a sub-batch of 16,384 tokens brings 200 KB, so the host may be some twenty of them ahead. More than
// pieceBytes go in pieces.
const (
	ringBytes  = 4 << 20
	pieceBytes = 1 << 20
)

// Stream is a stream of the GPU.
type Stream struct {
	*launch.Stream
	d        *Device
	stream   cu.Stream
	products *products // nil until the first one
	sums     bool      // the library may sum columns beside products
	captures bool
	pinned   *gpustage.HostMemory
	ring     launch.Ring[cu.Event] // of pinned
}

// OpenStream opens one.
func (d *Device) OpenStream() (gpustage.Stream, error) { return d.open(false) }

// OpenUrgent opens one whose kernels' blocks are ahead of others' that wait for room.
func (d *Device) OpenUrgent() (gpustage.Stream, error) { return d.open(true) }

// warpgroups asks for hopper.cu's kernels, of a device when it is opened, and of each of its streams.
func warpgroups() (bool, error) {
	return enabled("CONTRAFLOW_CUDA_WARPGROUPS", "the default: on Hopper warpgroups multiply in attention", true)
}

func (d *Device) open(urgent bool) (gpustage.Stream, error) {
	unbind, err := d.bind()
	if err != nil {
		return nil, err
	}
	defer unbind()
	s := &Stream{d: d, ring: launch.Ring[cu.Event]{Size: ringBytes}}
	priority := 0 // the default is the least there is
	if urgent {
		if _, priority, err = cu.StreamPriorityRange(); err != nil {
			return nil, fmt.Errorf("%s: priorities of streams: %w", d.Name(), err)
		}
	}
	if s.stream, err = cu.MakeStreamWithPriority(priority, nonBlocking); err != nil {
		return nil, fmt.Errorf("%s: a stream: %w", d.Name(), err)
	}
	s.Stream = launch.NewStream(d, s)
	fuses, err := enabled("CONTRAFLOW_CUDA_FUSE", "the default: parts of a step are fused with products", true)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.Stream.Separate = !fuses
	if s.Stream.Warpgroups, err = warpgroups(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.Stream.Warpgroups = s.Stream.Warpgroups && d.compiled.Sources["hopper.cu"].Text != ""
	if s.sums, err = enabled("CONTRAFLOW_CUDA_SUMS", "cuBLASLt sums a bias's gradient beside its weight's", false); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if s.pinned, err = d.Pin(ringBytes); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Stream) raw() C.CUstream { return *(*C.CUstream)(unsafe.Pointer(&s.stream)) }

// Handle is the stream as CUDA knows it, for NCCL. What the stream was given before is ahead of what comes through the handle.
func (s *Stream) Handle() uintptr {
	s.Issue()
	return uintptr(unsafe.Pointer(s.raw()))
}

// Address is where memory begins.
func (s *Stream) Address(m gpustage.Memory) uintptr { return uintptr(m.(*memory).at) }

// Launch starts a kernel.
func (s *Stream) Launch(kernel string, grid, block [3]int, shared int, words []uint64, at []int32) error {
	f, err := s.d.function(kernel, shared, s.captures)
	if err != nil {
		return err
	}
	sizes := [6]C.uint{C.uint(grid[0]), C.uint(grid[1]), C.uint(grid[2]), C.uint(block[0]), C.uint(block[1]), C.uint(block[2])}
	return driverError(C.start(s.d.raw(), f, &sizes[0], C.uint(shared), s.raw(), (*C.uint64_t)(&words[0]), (*C.int32_t)(&at[0]), C.int(len(at))))
}

// bound runs f, which is no launch, with the context current; its error is the stream's.
func (s *Stream) bound(f func() error) {
	s.Issue()
	unbind, err := s.d.bind()
	if err == nil {
		defer unbind()
		err = f()
	}
	if err != nil {
		s.Fail(fmt.Errorf("%s: %w", s.d.Name(), err))
	}
}

// CopyIn copies host bytes to a tensor.
func (s *Stream) CopyIn(dst gpustage.Tensor, src []byte) {
	if s.Refuse(gpustage.CheckHost("copy in", dst, len(src))) || len(src) == 0 {
		return
	}
	to := cu.DevicePtr(s.Address(dst.Mem) + uintptr(dst.Off*dst.DType.Size()))
	s.bound(func() error {
		if isPinned(src) {
			if err := cu.MemcpyHtoDAsync(to, unsafe.Pointer(&src[0]), int64(len(src)), s.stream); err != nil {
				return err
			}
			return s.stream.Synchronize()
		}
		for len(src) > 0 {
			n := min(len(src), pieceBytes)
			at, err := s.ring.Take(n, cu.Event.Synchronize, s.d.giveEvent)
			if err != nil {
				return err
			}
			from := s.pinned.Data()[at : at+n]
			copy(from, src)
			if err := cu.MemcpyHtoDAsync(to, unsafe.Pointer(&from[0]), int64(n), s.stream); err != nil {
				return err
			}
			read, err := s.d.takeEvent()
			if err != nil {
				return err
			}
			if err := read.Record(s.stream); err != nil {
				return err
			}
			s.ring.Put(at, n, read)
			to, src = to+cu.DevicePtr(n), src[n:]
		}
		return nil
	})
}

// CopyOut copies a tensor to host bytes.
func (s *Stream) CopyOut(dst []byte, src gpustage.Tensor) {
	if s.Refuse(gpustage.CheckHost("copy out", src, len(dst))) || len(dst) == 0 {
		return
	}
	from := cu.DevicePtr(s.Address(src.Mem) + uintptr(src.Off*src.DType.Size()))
	s.bound(func() error {
		if err := cu.MemcpyDtoHAsync(unsafe.Pointer(&dst[0]), from, int64(len(dst)), s.stream); err != nil {
			return err
		}
		if isPinned(dst) {
			return nil
		}
		return s.stream.Synchronize() // dst is the garbage collector's: the GPU must not write to it later
	})
}

// event is a point in a stream's order. Its handle goes back to the device when nobody has it any more.
type event struct {
	d      *Device
	handle cu.Event
	err    error
}

// Record returns the point after everything issued so far.
func (s *Stream) Record() gpustage.Event {
	e := &event{d: s.d}
	s.bound(func() error {
		if e.handle, e.err = s.d.takeEvent(); e.err == nil {
			runtime.AddCleanup(e, s.d.giveEvent, e.handle)
			e.err = e.handle.Record(s.stream)
		}
		return e.err
	})
	if e.err == nil {
		e.err = s.Err() // of what should have come before: who waits for it has it too
	}
	return e
}

func (d *Device) takeEvent() (cu.Event, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := len(d.unused); n > 0 {
		e := d.unused[n-1]
		d.unused = d.unused[:n-1]
		return e, nil
	}
	e, err := cu.MakeEvent(sleeping | untimed)
	if err == nil {
		d.events = append(d.events, e)
	}
	return e, err
}

func (d *Device) giveEvent(e cu.Event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.unused = append(d.unused, e)
}

// Sync makes the host wait.
func (e *event) Sync() error {
	if e.err != nil {
		return e.err
	}
	unbind, err := e.d.bind()
	if err != nil {
		return err
	}
	defer unbind()
	err = e.handle.Synchronize()
	runtime.KeepAlive(e)
	return err
}

// Wait makes everything issued from now on wait for e.
func (s *Stream) Wait(e gpustage.Event) {
	mine, ok := e.(*event)
	if !ok || mine.err != nil {
		s.Fail(e.Sync())
		return
	}
	s.bound(func() error { return s.stream.Wait(mine.handle, 0) })
	runtime.KeepAlive(e)
}

// Sync waits for everything issued.
func (s *Stream) Sync() error {
	s.bound(s.stream.Synchronize)
	return s.Err()
}

// Close waits for the stream and gives back what it holds.
func (s *Stream) Close() error {
	s.Issue()
	unbind, err := s.d.bind()
	if err != nil {
		return err
	}
	defer unbind()
	errs := []error{s.stream.Synchronize(), s.Free()}
	if s.products != nil {
		errs = append(errs, s.products.close())
	}
	s.ring.Drop(s.d.giveEvent)
	if s.pinned != nil {
		errs = append(errs, s.pinned.Free())
	}
	return errors.Join(append(errs, s.stream.Destroy())...)
}

// driverError is a CUresult as cu names it.
func driverError(r C.CUresult) error {
	if r == 0 {
		return nil
	}
	return fmt.Errorf("CUDA error %d: %s", int(r), C.GoString(C.error_name(r)))
}
