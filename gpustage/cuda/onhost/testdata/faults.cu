// Kernels of 64 threads for x[64], or of a group of 128: some are right, and others lack or do what their names say.
#define SHARED_ALIGNMENT 1024
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
// Vectors, and numbers of them: of the thread that moved the vector, or each thread its own behind a barrier.
KERNEL vectors_meet(float *x) {
	if (threadIdx.x < 16) ((float4 *)x)[threadIdx.x] = ((const float4 *)x)[threadIdx.x];
	if (x[threadIdx.x] == 7.f) x[0] = 2.f;
}
KERNEL vector_then_number(float *x) {
	const float4 v = ((const float4 *)x)[0];
	if (threadIdx.x == 63) x[3] = v.y;
}
KERNEL vectors_apart(float *x) {
	for (int i = 0; i < 2; i++) {
		if (threadIdx.x < 16) ((float4 *)x)[threadIdx.x] = ((const float4 *)x)[threadIdx.x];
		__syncthreads();
		x[threadIdx.x] += 1.f;
		__syncthreads();
	}
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

// numbers are 16 rows of 64 features in shared memory, in atoms as wgmma reads them: row r has r+1 sixteen times, then twice that.
DEVICE void numbers(u16 *s) {
	for (int i = threadIdx.x; i < 1024; i += blockDim.x) {
		int r = i / 64, d = i % 64;
		s[r / 8 * 512 + r % 8 * 64 + (d / 8 ^ r % 8) * 8 + d % 8] = pack_bf16((r + 1) * (d < 16 ? 1.f : 2.f), 0.f);
	}
}

// ones_times checks n columns of 8 of ones times the numbers' first 16 features, turned, or times all of them.
DEVICE void ones_times(const float (*c)[4], int n, bool turned) {
	for (int j = 0; j < n; j++)
		for (int e = 0; e < 4; e++) {
			int column = 8 * j + lane_id() % 4 * 2 + e % 2;
			if (c[j][e] != (turned ? column < 16 ? 136.f : 272.f : 16.f * (column + 1))) host_fail("accumulators are wrong");
		}
}

#define ATOMS(at, swizzle) (host_shared(at) >> 4 | 64ull << 16 | 64ull << 32 | (u64)(swizzle) << 62)
#define GROUP(name, before, behind, who, n, turned, matrix, wait)        \
	KERNEL name(float *) {                                               \
		DYNAMIC_SHARED(u16, s);                                          \
		const u32 one = 0x3f803f80, a[4] = {one, one, one, one};         \
		float c[8][4];                                                   \
		numbers(s);                                                      \
		before;                                                          \
		__syncthreads();                                                 \
		behind;                                                          \
		if (who) host_group_mma(c[0], n, a, matrix, turned, false);      \
		wait;                                                            \
		if (who) ones_times(c, n, turned);                               \
	}
#define PUBLISHED host_fence_async()
#define FENCED host_group_fence()
#define WAITED host_group_commit(), host_group_wait(0), host_group_hold(c[0])
GROUP(group, PUBLISHED, FENCED, true, 2, false, ATOMS(s, 1), WAITED)
GROUP(group_turned, PUBLISHED, FENCED, true, 8, true, ATOMS(s, 1), WAITED)
GROUP(group_without_proxy_fence, , FENCED, true, 2, false, ATOMS(s, 1), WAITED)
GROUP(group_fences_after_barrier, , FENCED; if (warp_id() == 0) PUBLISHED, true, 2, false, ATOMS(s, 1), WAITED)
GROUP(group_without_fence, PUBLISHED, , true, 2, false, ATOMS(s, 1), WAITED)
GROUP(group_without_commit, PUBLISHED, FENCED, true, 2, false, ATOMS(s, 1), host_group_wait(0); host_group_hold(c[0]); return)
GROUP(group_without_wait, PUBLISHED, FENCED, true, 2, false, ATOMS(s, 1), return)
GROUP(group_reads_early, PUBLISHED, FENCED, true, 2, false, ATOMS(s, 1), host_group_commit(); ones_times(c, 2, false); host_group_wait(0); host_group_hold(c[0]))
GROUP(group_written_before_wait, PUBLISHED, FENCED, true, 2, false, ATOMS(s, 1), host_group_commit(); __syncthreads(); numbers(s); host_group_wait(0); host_group_hold(c[0]))
GROUP(group_of_three, PUBLISHED, FENCED, warp_id() < 3, 2, false, ATOMS(s, 1), WAITED)
GROUP(group_of_two_matrices, PUBLISHED, FENCED, true, 2, false, ATOMS(s + lane_id() / 16 * 16, 1), WAITED)
GROUP(group_between_atoms, PUBLISHED, FENCED, true, 1, false, ATOMS(s + 64, 1), WAITED)
GROUP(group_of_no_swizzle, PUBLISHED, FENCED, true, 2, false, ATOMS(s, 0), WAITED)
GROUP(group_without_hold, PUBLISHED, FENCED, true, 2, false, ATOMS(s, 1), host_group_commit(); host_group_wait(0))
GROUP(group_written_early, PUBLISHED, FENCED, true, 2, false, ATOMS(s, 1), host_group_commit(); c[1][2] = 1.f; host_group_wait(0); host_group_hold(c[0]))
GROUP(group_left_over, PUBLISHED, FENCED, true, 2, false, ATOMS(s, 1), host_group_commit(); host_group_wait(1); host_group_hold(c[0]))

// Two products, of which the first is waited for before the second.
#define TWO(name, between, first, behind)                                                \
	KERNEL name(float *) {                                                               \
		DYNAMIC_SHARED(u16, s);                                                          \
		const u32 one = 0x3f803f80, a[4] = {one, one, one, one};                         \
		float c[2][4], d[2][4];                                                          \
		numbers(s);                                                                      \
		PUBLISHED;                                                                       \
		__syncthreads();                                                                 \
		FENCED;                                                                          \
		host_group_mma(c[0], 2, a, ATOMS(s, 1), false, false);                           \
		host_group_commit();                                                             \
		between;                                                                         \
		host_group_mma(d[0], 2, a, ATOMS(s, 1), false, false);                           \
		host_group_commit();                                                             \
		host_group_wait(1);                                                              \
		host_group_hold(first[0]);                                                       \
		ones_times(first, 2, false);                                                     \
		behind;                                                                          \
		host_group_wait(0);                                                              \
		host_group_hold(first == c ? d[0] : c[0]);                                       \
		ones_times(first == c ? d : c, 2, false);                                        \
	}
TWO(group_after_group, FENCED, c, )
TWO(group_after_group_without_fence, , c, )
TWO(group_taken_for_the_first, FENCED, d, )
TWO(group_read_with_the_first, FENCED, c, ones_times(d, 2, false))
TWO(group_read_without_its_hold, FENCED, c, host_group_wait(0); ones_times(d, 2, false))

#undef SHARED_ALIGNMENT
#define SHARED_ALIGNMENT 16
GROUP(group_unaligned, PUBLISHED, FENCED, true, 2, false, ATOMS(s, 1), WAITED)

// matrices reads 8 x 8 halves by ldmatrix, where its barrier and its rows are.
#define MATRICES(name, barrier, place)                                           \
	KERNEL name(float *x) {                                                  \
		DYNAMIC_SHARED(float, s);                                        \
		s[threadIdx.x] = x[threadIdx.x];                                 \
		barrier;                                                         \
		unsigned r[4];                                                   \
		host_ldmatrix(r, (const unsigned short *)s + (place), false);    \
		x[threadIdx.x] = __uint_as_float(r[0] ^ r[1] ^ r[2] ^ r[3]);     \
	}
MATRICES(matrices, __syncthreads(), threadIdx.x % 16 * 8)
MATRICES(matrices_without_barrier, , threadIdx.x % 16 * 8)
MATRICES(matrices_unaligned, __syncthreads(), threadIdx.x % 8 * 8 + 4)
MATRICES(matrices_behind, __syncthreads(), threadIdx.x % 16 * 8 + 64)

// Each lane asks for the row that it has written.
#define OWN_ROWS(name, barrier)                                                  \
	KERNEL name(float *x) {                                                  \
		DYNAMIC_SHARED(uint4, s);                                        \
		uint4 row;                                                       \
		row.x = row.y = row.z = row.w = threadIdx.x;                     \
		s[threadIdx.x] = row;                                            \
		barrier;                                                         \
		unsigned r[4];                                                   \
		host_ldmatrix(r, s + threadIdx.x, false);                        \
		x[threadIdx.x] = __uint_as_float(r[0] ^ r[1] ^ r[2] ^ r[3]);     \
	}
OWN_ROWS(rows_of_a_warp, __syncwarp())
OWN_ROWS(rows_without_barrier, )

// What a GPU does not launch, whatever the kernel is.
KERNEL launched_without_blocks(float *) {}
KERNEL launched_without_threads(float *) {}
KERNEL launched_in_z(float *) {}
KERNEL launched_with_shared(float *) {}
