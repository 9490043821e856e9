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
// it. Host data goes through pinned memory of a stream, in turns, so CopyIn returns when src has been read and the host stays ahead of the
// GPU; CopyOut has finished when it returns. What ranks of one process lend each other is pinned memory itself (Pin), and goes without a
// copy between: CopyIn then waits for the GPU, and CopyOut does not. By arithmetic BERT-base's gradients of two ranks take 20 ms so, and otherwise
// longer than the 130 ms of the sub-batch that they travel beside. Streams that communicate are ahead of those that compute (OpenUrgent): a
// bucket's sums are small kernels, and products' blocks fill the GPU.
//
// # Graphs
//
// A small model's passes are hundreds of kernels that take microseconds each, as long as starting one does. So passes over sub-batches of one
// shape are recorded as CUDA graphs: the stream holds a pass's launches back, knows work that it has seen before by its content, and
// starts its graph (package launch: repeat.go). Package transformer pads sub-batches to few shapes for it (buckets.go), and kept passes
// have places of equal size. It is a pass that is recorded, not a step: the loss, the update and their numbers (learning rate, gradient
// scale) are launched as they are, and so is the pass during which replicas reduce gradients. Streamed parameters go without.
// CONTRAFLOW_CUDA_GRAPHS=off turns it off, padding included. On the processor recordings are copies of launches (package onhost).
//
// # Products
//
// cuBLASLt's heuristic chooses an algorithm once for each shape, and has the epilogues that compute an op's own function: a bias, a residual
// or an accumulation, and in bf16 and TF32 the tanh approximation of GELU, its input kept, and its derivative. Where it has no algorithm with
// an epilogue, kernels surround the plain product; so they do, each time, where it refuses all that it has when it is to multiply.
//
// With CONTRAFLOW_CUDA_SUMS=on it also sums the columns of an output's gradient in bf16 (BGRADB) while it makes the weight's, into scratch
// memory, as it overwrites where ours add. A pass that reads the gradient again is what that takes off; but who has measured it found trainings
// that became faster and some that became much slower (NVIDIA/CUDALibrarySamples#90), as the heuristic may have no good algorithm with it. So it is
// off until testdata/peers/gpu.py has compared.
//
// What the library has besides is not used. Its GELU is never the exact one, which BERT's models have. Its ReLU wants a mask of bits for
// the way back, where the input is kept anyway.
//
// In bf16 what lies between products and attention is of bf16 in memory (gpustage.Ops: operands), and products write it so, with a bias that has been
// rounded as they want it. A layer of BERT's shape with dropout moves 96 C bytes of a token forward and 200 C backward (182 with the library's
// sums); with operands of f32, which each product would round into memory of its own first, 172 C and 386 C. That is reckoned from what each kernel reads and writes, not measured. What
// is f32 and multiplied nevertheless (gradients that come down a residual without dropout) is rounded once for both products of a layer's
// backward pass (gpustage.Rounded), and the pass that rounds it sums the bias's gradient on its way. CONTRAFLOW_CUDA_FUSE=off takes that apart, and embeddings, norms
// behind products and norms' backward passes; testdata/peers/gpu.py compares.
//
// f32 is f32 unless a recipe says train.precision: tf32: then the products of linear layers take the first 10 bits after the point of
// their inputs, on tensor cores. Attention, similarities, norms and sums stay as they are.
//
// # What has run
//
// The kernels pass the conformance suite on the processor, where each access to memory is checked and numbers are as far off as a GPU's may be
// (package onhost), and compile for three generations of GPUs, whose limits for a block's memory, registers and threads their launches keep (package
// launch: TestLaunchBounds). This package passes it, and the tests of training, with a driver that runs the kernels on the processor
// (testdata/driver.cpp): it does a stream's work as late as it may, so that what is not ordered comes wrong, and is as strict about contexts,
// handles, captures and memory as the driver's documentation. On an H200 both pass as well, with figures in README.md. Of other GPUs than Hopper's
// nobody has seen anything: opening the device there is an error that says so, and CONTRAFLOW_CUDA=try opens it nevertheless: testdata/peers/gpu.sh
// does, and runs the conformance suite first.
package cuda
