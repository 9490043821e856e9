// MaxSim: the largest of each segment of a row of scores, and the way back; and what SPLADE makes of such. No two threads write one element, and sums have one order.
#include "common.cuh"

// segment_max has a warp for each row, four to a block, which goes through the row's segments.
KERNEL segment_max(float *top, int st, int *at, int sa, const float *s, int ss, const int *cu, int segments, int rows) {
	int row = blockIdx.x * 4 + warp_id();
	if (row >= rows) return;
	const int none = 0x7fffffff;
	for (int d = 0; d < segments; d++) {
		float best = MINUS_INF;
		int place = none;
		for (int col = cu[d] + lane_id(); col < cu[d + 1]; col += WARP) {
			float v = *AT(s, ss);
			if (place == none || v > best || v != v && best == best) best = v, place = col;
		}
		u32 nans = __ballot_sync(EVERY, best != best); // larger than any number, but warp_max passes over them
		float largest = nans ? NOT_A_NUMBER : warp_max(best);
		if (nans ? best == best : best != largest) place = none;
		for (int i = 16; i > 0; i /= 2) place = min(place, __shfl_xor_sync(EVERY, place, i)); // the first of several
		if (lane_id() == 0) {
			top[(size_t)row * st + d] = place == none ? 0.f : largest;
			at[(size_t)row * sa + d] = place == none ? -1 : place;
		}
	}
}

// maxsim_dx: a block has 128 columns of one row of dx.
KERNEL maxsim_dx(float *dx, int sdx, const float *g, int sg, const int *at, int sa, const float *y, int sy, int segments, int cols) {
	int row = blockIdx.x, col = blockIdx.y * blockDim.x + threadIdx.x;
	if (col >= cols) return;
	float sum = *AT(dx, sdx);
	for (int d = 0; d < segments; d++) {
		int n = at[(size_t)row * sa + d];
		if (n >= 0) sum += g[(size_t)row * sg + d] * y[(size_t)n * sy + col];
	}
	*AT(dx, sdx) = sum;
}

// maxsim_dy: a block has 128 columns of one segment, whose rows of dy are its own.
KERNEL maxsim_dy(float *dy, int sdy, const float *g, int sg, const int *at, int sa, const float *x, int sx, int rows, int cols) {
	int d = blockIdx.x, col = blockIdx.y * blockDim.x + threadIdx.x;
	if (col >= cols) return;
	for (int row = 0; row < rows; row++) {
		int n = at[(size_t)row * sa + d];
		if (n >= 0) dy[(size_t)n * sdy + col] += g[(size_t)row * sg + d] * *AT(x, sx);
	}
}

// splade is y[b, v] = f(top[v, b] + bias[v]): rows are texts, columns features.
KERNEL splade(float *y, int sy, int *at, int sa, const float *top, int st, const float *bias, int twice, u32 rows, u32 cols) {
	EACH(rows, cols, 1) {
		float x = top[(size_t)col * st + row] + (bias ? bias[col] : 0.f);
		if (x <= 0.f) x = 0.f, at[(size_t)col * sa + row] = -1; // a NaN stays one
		x = log1pf(x);
		*AT(y, sy) = twice ? log1pf(x) : x;
	}
}

// splade_backward has a thread for each feature, which goes through the texts.
KERNEL splade_backward(float *g, int sg, float *dbias, const float *dy, int sdy, const float *y, int sy, int twice, int texts, int features) {
	int col = blockIdx.x * blockDim.x + threadIdx.x;
	if (col >= features) return;
	float sum = 0.f;
	for (int row = 0; row < texts; row++) {
		float out = *AT(y, sy), d = 0.f;
		if (out != 0.f) d = *AT(dy, sdy) * expf(-(twice ? out + expm1f(out) : out));
		g[(size_t)col * sg + row] = d;
		sum += d;
	}
	if (dbias) dbias[col] += sum;
}

// count_active has a warp for each row, four to a block. Numbers of elements are exact in f32 up to 2^24.
KERNEL count_active(float *out, const float *x, int sx, int rows, int cols) {
	int row = blockIdx.x * 4 + warp_id();
	if (row >= rows) return;
	float n = 0.f;
	for (int col = lane_id(); col < cols; col += WARP) n += *AT(x, sx) != 0.f ? 1.f : 0.f;
	n = warp_sum(n);
	if (lane_id() == 0) out[row] = n;
}
