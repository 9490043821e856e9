// Kernels of 64 threads for x[64]: some are right, and others lack or do what their names say.
#include "common.cuh"

// turn gives each thread the value of the one opposite, by shared memory.
#define TURN(name, barrier, opposite)                        \
	KERNEL name(float *x) {                                  \
		__shared__ float all[64];                            \
		all[threadIdx.x] = x[threadIdx.x];                   \
		barrier;                                             \
		x[threadIdx.x] = all[opposite];                      \
	}
TURN(block_turns, __syncthreads(), 63 - threadIdx.x)
TURN(warp_turns, __syncwarp(), threadIdx.x ^ 31)
TURN(no_barrier, , 63 - threadIdx.x)
TURN(no_barrier_for_the_first, , 0)
TURN(only_warps_barrier, __syncwarp(), 0)
TURN(only_a_shuffle, __shfl_xor_sync(EVERY, 0.f, 1), threadIdx.x ^ 31)

// each block doubles its own half of x.
KERNEL blocks_apart(float *x) {
	if (threadIdx.x < 32) x[blockIdx.x * 32 + threadIdx.x] *= 2.f;
}
KERNEL blocks_write_alike(float *x) {
	if (threadIdx.x < 32) x[threadIdx.x] = 2.f;
}
KERNEL blocks_read_each_other(float *x) {
	if (blockIdx.x == 0) x[threadIdx.x] = 2.f;
	else if (x[threadIdx.x] == 7.f) x[threadIdx.x] = 1.f;
}
// x[0] is read by all and then written: the last of them may come later.
KERNEL read_then_written(float *x) { x[threadIdx.x] += x[0]; }
KERNEL read_barrier_written(float *x) {
	float v = x[0];
	__syncthreads();
	x[threadIdx.x] += v;
}
// Halves of numbers: of the thread before, or each thread its own.
KERNEL halves_meet(float *x) {
	x[threadIdx.x] = 1.f;
	if (((unsigned short *)x)[(2 * threadIdx.x + 127) % 128] == 7) x[threadIdx.x] = 2.f;
}
KERNEL halves_apart(float *x) {
	auto half = (unsigned short *)x;
	half[threadIdx.x] = threadIdx.x;
	half[64 + threadIdx.x] += half[threadIdx.x];
}

KERNEL reads_behind(float *x) {
	if (threadIdx.x == 63) x[63] = x[64];
}
KERNEL reads_a_vector_behind(float *x) {
	if (threadIdx.x == 63) *(float4 *)x = *(const float4 *)(x + 64);
}
KERNEL writes_before(float *x) { (x - 1)[threadIdx.x] = 1.f; }
KERNEL writes_behind_shared(float *x) { // which is of 64
	DYNAMIC_SHARED(float, s);
	s[threadIdx.x + (x[0] > 0.f)] = 1.f;
}
KERNEL reads_unwritten(float *x) {
	DYNAMIC_SHARED(float, s);
	if (threadIdx.x != 5) s[threadIdx.x] = 1.f;
	__syncthreads();
	x[threadIdx.x] = s[63 - threadIdx.x];
}

// copies turns by copies that are under way until they are waited for.
#define COPIES(name, before, from, behind)                   \
	KERNEL name(float *x) {                                  \
		DYNAMIC_SHARED(float, s);                            \
		host_copy_async(s + threadIdx.x, x + threadIdx.x, 4, true); \
		before;                                              \
		float v = s[from];                                   \
		behind;                                              \
		__syncthreads();                                     \
		x[threadIdx.x] = v;                                  \
	}
COPIES(copies, host_wait_copies(); __syncthreads(), 63 - threadIdx.x, )
COPIES(copies_without_barrier, host_wait_copies(), 0, )
COPIES(waits_too_late, , threadIdx.x, host_wait_copies())
