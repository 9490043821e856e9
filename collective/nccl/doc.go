// Package nccl runs a job's ranks over NCCL: NVIDIA GPUs on one machine or many, one process for each.
//
//	torchrun --nnodes 2 --nproc-per-node 8 --no-python ./contraflow train -c recipe.yaml
//
// libnccl is loaded at run time, with cgo or without: the program needs it only where it uses it. CONTRAFLOW_NCCL names the
// library if the system's loader does not find libnccl.so.2.
//
// Data travel by grouped send and receive, where sizes may differ between ranks, by ncclAllGather where they do not, and by
// ncclBroadcast. Sums are taken here, by the device's own ops, in the order of ranks (package engine), not by ncclReduceScatter: so they
// do not depend on NCCL's choice of rings and trees, and a bfloat16 wire is summed in f32. That sends (W-1)/W of a
// tensor from each rank, as a ring does; between machines of 8 GPUs a ring would send an eighth.
//
// Ranks meet at MASTER_ADDR:MASTER_PORT, over TCP: host exchanges, deadlines and news of failures go that way (package remote), and the
// communicators' ids. Communicators are non-blocking, so that a rank that learns of a failure can abort them from another thread:
// what waits on a GPU for a dead peer ends, and the stream goes on with whatever is in memory. So a result counts only if the world's
// Err is nil after the stream's Sync.
//
// # What a device implements
//
// Memory that NCCL can address is a [Pointer], a stream that runs behind its calls a [Queue]. Host memory and streams of
// processors need nothing; real NCCL does not take them, but the library in testlib does: it has NCCL's interface and
// executes over shared memory, so that all of this is tested without a GPU.
package nccl

import (
	"errors"
	"time"
)

// Pointer is implemented by a device's memory.
type Pointer interface {
	Pointer() uintptr // the first byte's address, as CUDA knows it
}

// Queue is implemented by streams whose ops run later. Events that they record may be synchronized with by any goroutine.
type Queue interface {
	Handle() uintptr // a CUstream
}

// Option configures Open.
type Option func(*options)

type options struct {
	deadline time.Duration
	library  string
	onDevice func() error
}

// Deadline sets how long an operation waits for other ranks; the default is collective.DefaultDeadline, which is also
// how long they may take to start.
func Deadline(d time.Duration) Option { return func(o *options) { o.deadline = d } }

// Library names the library's file; the default is CONTRAFLOW_NCCL, or else libnccl.so.2.
func Library(file string) Option { return func(o *options) { o.library = file } }

// OnDevice sets what makes this rank's CUDA device current on the calling thread. It is called on each thread that makes a
// communicator or ends one.
func OnDevice(f func() error) Option { return func(o *options) { o.onDevice = f } }

// ErrUnavailable is wrapped by Open's error where there is no NCCL.
var ErrUnavailable = errors.New("NCCL is not available")
