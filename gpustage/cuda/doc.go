// Package cuda is an NVIDIA GPU as a device. It is built with -tags cuda; without the tag it is empty.
//
// # Parts
//
// gorgonia.org/cu has devices, contexts, streams, events, memory and modules. What it lacks is C in this package: launches with
// arguments of any size, more than 48 KB of shared memory, pinned memory. Matrices are multiplied by cuBLASLt, kernels compiled by
// NVRTC (package nvrtc; see package kernels for why at run time), and both libraries are loaded when a device opens, so that one
// binary starts everywhere. Which kernels an op launches is package launch's business, which the processor can test.
//
// # Contexts and threads
//
// All streams of a GPU share its primary context, which is also NCCL's and cuBLASLt's; a context for each lane would have memory that the
// other lanes can't address. A context belongs to whatever thread it is current on, so every call makes it current first, within one
// call to C: a stream then does not depend on its goroutine staying on one thread.
//
// # Memory
//
// Alloc is cuMemAlloc, and zeroes. It is for arenas and parameters, not for steps: ops take scratch memory from their stream, which keeps
// it. Host data goes through two pinned buffers of a stream, so CopyIn returns when src has been read and the GPU goes on; CopyOut has
// finished when it returns.
//
// # Not yet run
//
// The kernels pass the conformance suite on the processor, and compile for three generations of GPUs; this package has been compiled and
// linked. Neither has met a GPU. Until they have, opening the device is an error that says so, and CONTRAFLOW_CUDA=try opens it
// nevertheless: testdata/peers/gpu.sh does, and runs the conformance suite first.
//
// Steps are launched kernel by kernel: no CUDA graphs. Products have cuBLASLt's bias and residual, not its GELU, and f32 is never TF32.
package cuda
