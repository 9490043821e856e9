// Kernels of 32 threads that replace values of x[n] by a function's, and one that adds products on tensor cores.
#include "common.cuh"

#define FUNCTION(name, y)                              \
	KERNEL name(float *x, int n) {                     \
		for (int i = threadIdx.x; i < n; i += 32) {    \
			float v = x[i];                            \
			x[i] = y;                                  \
		}                                              \
	}
FUNCTION(powers, power_of_two(v))
FUNCTION(reciprocals, reciprocal(v))
FUNCTION(exponentials, expf(v))
FUNCTION(tangents, tanhf(v))
FUNCTION(logarithms, logf(v))
FUNCTION(squares, v * v - 1.f)

// products adds products of 16 pairs to x[0] of every 33 values. All rows and columns are alike.
KERNEL products(float *x, int n) {
	__shared__ float sums[WARP];
	int t = lane_id() % 4 * 2;
	for (int i = 0; i + 33 <= n; i += 33) {
		const float *a = x + i + 1, *b = a + 16;
		u32 left[4], right[2];
		for (int k = 0; k < 2; k++) {
			left[2 * k] = left[2 * k + 1] = pack_bf16(a[t + 8 * k], a[t + 8 * k + 1]);
			right[k] = pack_bf16(b[t + 8 * k], b[t + 8 * k + 1]);
		}
		sums[lane_id()] = x[i];
		__syncwarp();
		float c[4] = {sums[31], sums[31], sums[31], sums[31]};
		host_mma(c, left, right[0], right[1]);
		if (lane_id() == 0) x[i] = c[0];
		__syncwarp();
	}
}
