// MaxSim: the largest of each segment of a row of scores, and the way back; and what SPLADE makes of such. No two threads write one element, and sums have one order.
#include "common.cuh"

// A thread asks for the numbers of so many rows, segments or texts before it needs any. For 16,384 tokens of 128 texts and BERT's vocabulary, all of which
// the texts have as long as a model is new, maxsim_dy goes through 30,522 rows one after the other: with two waits for memory each it would take some
// 17 ms of a sub-batch's 40, and with two for eight 2 (estimates for an H200). Who is not there asks for a number that is, so that the compiler, which
// has few predicates, begins all of these before it waits for one.
#define UNDER_WAY 8

// segment_max has a warp for each row, four to a block, which goes through every gridDim.y-th of the row's segments.
KERNEL segment_max(float *top, int st, int *at, int sa, const float *s, int ss, const int *cu, int segments, int rows) {
	int row = blockIdx.x * 4 + warp_id();
	if (row >= rows) return;
	const int none = 0x7fffffff;
	for (int d = blockIdx.y; d < segments; d += gridDim.y) {
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
KERNEL __launch_bounds__(128) maxsim_dx(float *dx, int sdx, const float *g, int sg, const int *at, int sa, const float *y, int sy, int segments, int cols) {
	int row = blockIdx.x, col = blockIdx.y * blockDim.x + threadIdx.x;
	if (col >= cols) return;
	const int N = UNDER_WAY;
	float *to = AT(dx, sdx), sum = *to;
	at += (size_t)row * sa, g += (size_t)row * sg;
	for (int first = 0; first < segments; first += N) {
		int n[N];
		float a[N], b[N];
#pragma unroll
		for (int i = 0; i < N; i++) n[i] = first + i < segments ? at[first + i] : -1;
#pragma unroll
		for (int i = 0; i < N; i++) {
			int d = n[i] >= 0 ? first + i : 0;
			a[i] = g[d], b[i] = *(n[i] >= 0 ? y + (size_t)n[i] * sy + col : to);
		}
#pragma unroll
		for (int i = 0; i < N; i++)
			if (n[i] >= 0) sum += a[i] * b[i];
	}
	*to = sum;
}

// maxsim_dy: a block has 128 columns of one segment, whose rows of dy are its own. Of the rows under way several may have gone to one row of dy, whose
// last one then has all of it, and is written last.
KERNEL __launch_bounds__(128) maxsim_dy(float *dy, int sdy, const float *g, int sg, const int *at, int sa, const float *x, int sx, int rows, int cols) {
	int d = blockIdx.x, col = blockIdx.y * blockDim.x + threadIdx.x;
	if (col >= cols) return;
	const int N = UNDER_WAY;
	for (int first = 0; first < rows; first += N) {
		int n[N];
		float a[N], b[N], sum[N];
#pragma unroll
		for (int i = 0; i < N; i++) n[i] = first + i < rows ? at[(size_t)(first + i) * sa + d] : -1;
#pragma unroll
		for (int i = 0; i < N; i++) {
			size_t row = n[i] >= 0 ? first + i : 0;
			a[i] = g[row * sg + d], b[i] = *AT(x, sx), sum[i] = *(n[i] >= 0 ? dy + (size_t)n[i] * sdy + col : x);
		}
#pragma unroll
		for (int i = 0; i < N; i++) {
#pragma unroll
			for (int k = 0; k < i; k++) sum[i] = n[k] == n[i] ? sum[k] : sum[i];
			sum[i] += a[i] * b[i];
		}
#pragma unroll
		for (int i = 0; i < N; i++)
			if (n[i] >= 0) dy[(size_t)n[i] * sdy + col] = sum[i];
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
KERNEL __launch_bounds__(128) splade_backward(float *g, int sg, float *dbias, const float *dy, int sdy, const float *y, int sy, int twice, int texts, int features) {
	int col = blockIdx.x * blockDim.x + threadIdx.x;
	if (col >= features) return;
	const int N = UNDER_WAY;
	float sum = 0.f;
	for (int first = 0; first < texts; first += N) {
		float out[N], by[N];
#pragma unroll
		for (int i = 0; i < N; i++) {
			size_t row = first + i;
			out[i] = row < texts ? *AT(y, sy) : 0.f, by[i] = row < texts ? *AT(dy, sdy) : 0.f;
		}
#pragma unroll
		for (int i = 0; i < N; i++) {
			if (first + i >= texts) break;
			float d = out[i] != 0.f ? by[i] * expf(-(twice ? out[i] + expm1f(out[i]) : out[i])) : 0.f;
			g[(size_t)col * sg + first + i] = d;
			sum += d;
		}
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
