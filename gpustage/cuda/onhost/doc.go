// Package onhost is the CUDA device without a GPU, for tests: package launch's ops start the same kernels, compiled for the processor (a
// block's threads are fibers; see kernels/host_cuda.h), and products are plain loops. What a CUDA graph does is done by noting
// launches with copies of their arguments.
//
// Whatever kernels touch is checked: memory that is not allocated, shared memory that nobody wrote, and two threads at the same place
// without a barrier between them end the process, with the kernel, its block and thread, and the place (kernels/host_main.h).
// OpenUnchecked's devices do without that, in half the time: for models, as the conformance suite has run the same kernels with it.
//
//	d := onhost.Open(t, onhost.Recorded)
//
// Kernels take half a minute to compile, and are kept in contraflow/onhost of the user's cache for the packages that use them next.
//
// Its numbers are a processor's. Those of OpenRounding's devices are as far off as a GPU's may be: approximations by the whole of their documented
// bounds, products that are added without being rounded, sums that tensor cores truncate (kernels/host_rounding.h).
//
// Driver makes a driver of the same kernels, for tests of package cuda.
package onhost

// Mode is what a device does with work that comes again (gpustage.Repeater).
type Mode int

const (
	Plain    Mode = iota // nothing, as a processor
	Padded               // models round shapes up for it; every launch is started by itself
	Recorded             // as on a GPU: shapes are rounded up and what repeats is recorded
)

// Counts is what a device has done.
type Counts struct {
	Allocs            int64 // of memory
	Started, Products int64 // kernels and products, one by one
	Recorded          int64 // recordings made
	Replayed          int64 // and started
}

// Traffic is what a kernel's warps have asked of memory, as a GPU serves it: sectors of 32 bytes of global memory, and wavefronts of shared
// memory, which take a word of each of its 32 banks. The least are those if what a warp asks for at once lay without gaps, and in
// different banks.
type Traffic struct {
	Sectors, LeastSectors, Wavefronts, LeastWavefronts int64
}
