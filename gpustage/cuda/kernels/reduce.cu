// Reductions over rows. Parts are cut by shapes alone and added in order: the same bits every time.
#include "common.cuh"

#define CHUNK 128 // rows of a part; the launching side knows it too

// column_parts sums the columns of chunk blockIdx.y: of dy itself into sum, and of dy times x normalized, (x-mean)*rstd, into dot, both
// [chunks, cols]. Either may be 0, and so may mean; rstd has cols/dim values a row. With an index only the rows whose index is id count.
// 32 columns to a block of 256 threads.
KERNEL column_parts(float *dot, float *sum, const void *dy, int sdy, const void *x, int sx, const float *mean, const float *rstd, int dim,
                    const int *index, int id, int half, int rows, int cols) {
	__shared__ float parts[2][8][WARP];
	int col = blockIdx.x * WARP + lane_id(), lo = blockIdx.y * CHUNK, hi = min(rows, lo + CHUNK);
	float d = 0.f, s = 0.f;
	if (col < cols) {
		int groups = cols / dim, group = col / dim;
		for (int row = lo + warp_id(); row < hi; row += 8) {
			if (index && index[row] != id) continue;
			float v = load_one(dy, PLACE(sdy), half & 1);
			s += v;
			if (dot) d += v * (load_one(x, PLACE(sx), half & 2) - (mean ? mean[row] : 0.f)) * rstd[row * groups + group];
		}
	}
	parts[0][warp_id()][lane_id()] = d;
	parts[1][warp_id()][lane_id()] = s;
	__syncthreads();
	float *to = warp_id() == 0 ? dot : sum;
	if (warp_id() > 1 || col >= cols || !to) return;
	float total = 0.f;
	for (int i = 0; i < 8; i++) total += parts[warp_id()][i][lane_id()];
	to[(size_t)blockIdx.y * cols + col] = total;
}

// column_sums makes the sums that column_parts makes of dy alone, the same additions in the same order, and what it reads is rounded into dst
// on the way, if there is one. 128 columns to a block of 256 threads; a warp has every eighth row, a lane four columns.
KERNEL column_sums(float *sum, u16 *dst, int dstride, const void *src, int sstride, int half, int vec, int rows, int cols) {
	alignas(16) __shared__ float parts[8][4 * WARP];
	int first = blockIdx.x * 4 * WARP, col = first + 4 * lane_id(), lo = blockIdx.y * CHUNK, hi = min(rows, lo + CHUNK);
	int n = min(4, cols - col);
	Quad s = {{0.f, 0.f, 0.f, 0.f}};
	if (n > 0) {
#pragma unroll 4
		for (int row = lo + warp_id(); row < hi; row += 8) {
			Quad q = load_half(src, PLACE(sstride), n, vec, half);
			if (dst) store_bf16(AT(dst, dstride), q, n, vec);
			for (int i = 0; i < 4; i++) s.v[i] += q.v[i];
		}
	}
	store_quad(parts[warp_id()] + 4 * lane_id(), s, 4, true);
	__syncthreads();
	int me = threadIdx.x;
	if (me >= 4 * WARP || first + me >= cols) return;
	float total = 0.f;
	for (int i = 0; i < 8; i++) total += parts[i][me];
	sum[(size_t)blockIdx.y * cols + first + me] = total;
}

// gradient_sums is epilogue's c = acc * activation'(gradOf), and again = activation(gradOf) if there is room for it, with the sums of c's columns
// before it is rounded, in column_sums' order: the gradient of the bias before the activation. acc may be c, and again gradOf.
KERNEL gradient_sums(void *c, int sc, const void *acc, int sacc, const void *gradOf, int sgrad, void *again, int sagain, int f, float *sum, int half,
                     int vec, int rows, int cols) {
	const int N = 4; // rows of a warp that are under way at once
	alignas(16) __shared__ float parts[8][4 * WARP];
	int first = blockIdx.x * 4 * WARP, col = first + 4 * lane_id(), lo = blockIdx.y * CHUNK, hi = min(rows, lo + CHUNK);
	int n = min(4, cols - col);
	Quad s = {{0.f, 0.f, 0.f, 0.f}};
	for (int from = lo + warp_id(); from < hi && n > 0; from += 8 * N) {
		Quad x[N], g[N];
#pragma unroll
		for (int i = 0; i < N; i++) {
			int row = from + 8 * i, there = row < hi ? n : 0;
			x[i] = load_half(acc, PLACE(sacc), there, vec, half & 2), g[i] = load_half(gradOf, PLACE(sgrad), there, vec, half & 4);
		}
#pragma unroll
		for (int i = 0; i < N; i++) {
			int row = from + 8 * i;
			if (row >= hi) break;
			Quad on, slope;
			activate(g[i], f, on, slope);
			for (int k = 0; k < 4; k++) x[i].v[k] *= slope.v[k], s.v[k] += x[i].v[k];
			store_half(c, PLACE(sc), x[i], n, vec, half & 1);
			if (again) store_half(again, PLACE(sagain), on, n, vec, half & 8);
		}
	}
	store_quad(parts[warp_id()] + 4 * lane_id(), s, 4, true);
	__syncthreads();
	int me = threadIdx.x;
	if (me >= 4 * WARP || first + me >= cols) return;
	float total = 0.f;
	for (int i = 0; i < 8; i++) total += parts[i][me];
	sum[(size_t)blockIdx.y * cols + first + me] = total;
}

// all_sums makes, of eight values of each lane, one of all lanes: value lane / 4, in a fixed order. Each step halves how many a lane still has to add
// up, so that it takes 9 exchanges, and eight butterflies 40.
DEVICE float all_sums(const float v[8]) {
	float four[4], two[2], one;
	bool upper = lane_id() & 16;
#pragma unroll
	for (int i = 0; i < 4; i++) four[i] = (upper ? v[4 + i] : v[i]) + __shfl_xor_sync(EVERY, upper ? v[i] : v[4 + i], 16);
	upper = lane_id() & 8;
#pragma unroll
	for (int i = 0; i < 2; i++) two[i] = (upper ? four[2 + i] : four[i]) + __shfl_xor_sync(EVERY, upper ? four[i] : four[2 + i], 8);
	upper = lane_id() & 4;
	one = (upper ? two[1] : two[0]) + __shfl_xor_sync(EVERY, upper ? two[0] : two[1], 4);
	one += __shfl_xor_sync(EVERY, one, 2);
	return one + __shfl_xor_sync(EVERY, one, 1);
}

// norm_backward is a norm's whole way back, of a layer norm or of an RMS norm (without a mean), in one pass over its rows:
//
//	dx                    = layer_norm_backward or rms_norm_backward
//	z                     = dropout(dx), or dx without keys: in bf16, what the products behind it read
//	dots, sums, dropped   = the sums over a chunk of rows of dy * x normalized, of dy, and of z before it is rounded: dGamma, dBeta and the bias's
//
// Each of z and the sums, [chunks, cols], may be 0. In passes of their own they would read what this one has in registers: 4 + 4 bytes of an
// element for column_parts, 4 for dropout, 2 for column_sums, where this reads 6 and writes 6 (x and z in bf16).
//
// A block has a chunk of rows, a thread four columns of all of them: sums need no other thread. A row's own two sums go through the block, of four
// rows at once; a barrier for each four tells that all warps have left theirs, into two places in turns. Of 768 columns three blocks of six warps
// fit into a multiprocessor, each thread with 4 x 20 bytes under way; with a warp to a row, as it was, 16,384 tokens were one block of eight warps.
// Rows are moved four elements at a time, and up to 2,048 columns fit. (By arithmetic; no GPU has timed it.)
KERNEL __launch_bounds__(512) norm_backward(float *dx, int sdx, void *z, int sz, const float *dy, int sdy, const void *x, int sx, const float *mean,
                                            const float *rstd, const float *gamma, float offset, float *dots, float *sums, float *dropped,
                                            const u64 *keys, const int *rowOf, const int *pos, u32 site, u32 threshold, float keep, int half,
                                            int chunk, int rows, int cols) {
	const int N = 4; // rows at once
	alignas(16) __shared__ float across[2][16][2 * N]; // of each warp: N rows' sums of dy * gamma, and of that times x normalized
	int col = threadIdx.x * 4, n = col < cols ? 4 : 0, lo = blockIdx.x * chunk, hi = min(rows, lo + chunk);
	Quad g = load_quad(gamma + col, n, true), dot = {}, sum = {}, drop = {};
	for (int i = 0; i < n; i++) g.v[i] += offset;
	for (int first = lo, turn = 0; first < hi; first += N, turn ^= 1) {
		Quad d[N], p[N];
		float r[N], e[2 * N] = {};
#pragma unroll
		for (int i = 0; i < N; i++) {
			int row = first + i, there = row < hi ? n : 0;
			d[i] = load_quad(AT(dy, sdy), there, true), p[i] = load_half(x, PLACE(sx), there, true, half & 1);
		}
#pragma unroll
		for (int i = 0; i < N; i++) {
			int row = min(first + i, hi - 1);
			float m = mean ? mean[row] : 0.f;
			r[i] = rstd[row];
			for (int k = 0; k < 4; k++) {
				float w = d[i].v[k] * g.v[k], &u = p[i].v[k];
				u = (u - m) * r[i];
				e[i] += w, e[N + i] += w * u;
				dot.v[k] += d[i].v[k] * u, sum.v[k] += d[i].v[k];
			}
		}
		float one = all_sums(e);
		if (lane_id() % 4 == 0) across[turn][warp_id()][lane_id() / 4] = one;
		__syncthreads();
		float avg[2 * N] = {};
		for (int w = 0; w < blockDim.x / WARP; w++)
#pragma unroll
			for (int i = 0; i < 2 * N; i += 4) {
				Quad q = load_quad(across[turn][w] + i, 4, true);
				for (int k = 0; k < 4; k++) avg[i + k] += q.v[k];
			}
		for (int i = 0; i < 2 * N; i++) avg[i] = mean || i >= N ? avg[i] / cols : 0.f;
		u32 kept[N] = {};
		if (keys) { // eight columns are two lanes': each makes the bits of every other row for both
#pragma unroll
			for (int i = 0; i < N; i += 2) {
				int row = min(first + i + lane_id() % 2, hi - 1);
				u32 mine = keep8(keys[rowOf[row]], col / 8, pos[row], 0, site, threshold), theirs = __shfl_xor_sync(EVERY, mine, 1);
				kept[i] = (lane_id() % 2 ? theirs : mine) >> col % 8, kept[i + 1] = (lane_id() % 2 ? mine : theirs) >> col % 8;
			}
		}
#pragma unroll
		for (int i = 0; i < N; i++) {
			int row = first + i;
			if (row >= hi || n == 0) continue;
			for (int k = 0; k < 4; k++) d[i].v[k] = r[i] * (d[i].v[k] * g.v[k] - avg[i] - p[i].v[k] * avg[N + i]);
			store_quad(AT(dx, sdx), d[i], 4, true);
			if (!z) continue;
			for (int k = 0; k < 4; k++) {
				if (keys) d[i].v[k] = kept[i] >> k & 1 ? d[i].v[k] * keep : 0.f;
				drop.v[k] += d[i].v[k];
			}
			store_half(z, PLACE(sz), d[i], 4, true, half & 2);
		}
	}
	size_t at = (size_t)blockIdx.x * cols + col;
	if (dots) store_quad(dots + at, dot, n, true);
	if (sums) store_quad(sums + at, sum, n, true);
	if (dropped) store_quad(dropped + at, drop, n, true);
}

// column_finish adds the rows of parts[n, dim] to out[1, dim], of up to three such sums whose parts lie behind each other. 32 columns to a block, whose
// eight warps take every eighth row: one thread a column, as it was, waits for memory 128 times for 16,384 tokens, some 20 us where this takes 3
// (estimates), and a step of BERT-base has 50 such launches for each sub-batch that goes backward.
KERNEL column_finish(float *out, float *second, float *third, const float *parts, int n, int dim) {
	__shared__ float sums[8][WARP];
	int d = blockIdx.x * WARP + lane_id();
	parts += (size_t)blockIdx.y * n * dim;
	if (blockIdx.y > 0) out = blockIdx.y == 1 ? second : third;
	float total = 0.f;
	if (d < dim) {
#pragma unroll 8
		for (int i = warp_id(); i < n; i += 8) total += parts[(size_t)i * dim + d];
	}
	sums[warp_id()][lane_id()] = total;
	__syncthreads();
	if (warp_id() > 0 || d >= dim) return;
	for (int i = 1; i < 8; i++) total += sums[i][lane_id()];
	out[d] += total;
}

DEVICE double block_sum64(double v) { // of 256 threads; thread 0 has it
	__shared__ double parts[8];
	v = warp_sum64(v);
	if (lane_id() == 0) parts[warp_id()] = v;
	__syncthreads();
	double total = 0.;
	for (int i = 0; i < 8; i++) total += parts[i];
	return total;
}

#define SQUARES 8192 // elements of a part

KERNEL square_parts(double *parts, const float *x, int sx, u32 rows, u32 cols) {
	u64 all = (u64)rows * cols, lo = (u64)blockIdx.x * SQUARES, hi = lo + SQUARES < all ? lo + SQUARES : all;
	double sum = 0.;
	for (u64 at = lo + threadIdx.x; at < hi; at += blockDim.x) {
		float v = rows == 1 ? x[at] : x[at / cols * sx + at % cols];
		sum += (double)v * v;
	}
	sum = block_sum64(sum);
	if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

// square_finish is out[0] += all parts; one block.
KERNEL square_finish(double *out, const double *parts, int n) {
	double sum = 0.;
	for (int i = threadIdx.x; i < n; i += blockDim.x) sum += parts[i];
	sum = block_sum64(sum);
	if (threadIdx.x == 0) out[0] += sum;
}

#define STEP 512 // indices that a block of scatter_add compares at a time: four to a thread

// scatter_add is dTable[index[t]] += dy[t] in the order of t. Atomic additions would come in any order; sorting would take several launches.
// Here the block of an index's first token adds all its tokens, the others leave: T*T/512 steps of 512 indices that lie in the
// second-level cache. A block has 128 threads and 512 columns, from 512*blockIdx.y. An index that most tokens have is one block's
// work: tables of few rows have column_parts instead.
KERNEL scatter_add(float *dTable, int st, const float *dy, int sdy, const int *index, int vec, int tokens, int cols) {
	__shared__ int list[STEP], counts[STEP / WARP];
	int t = blockIdx.x, id = index[t], me = threadIdx.x;
	for (int from = 0; from < t; from += STEP) {
		bool before = false;
#pragma unroll
		for (int k = 0; k < STEP; k += 128) before |= from + k + me < t && index[from + k + me] == id;
		if (__syncthreads_or(before)) return;
	}
	int col = blockIdx.y * 512 + me * 4, n = min(4, cols - col);
	float *to = dTable + (size_t)id * st + col;
	Quad sum = load_quad(to, n, vec);
	for (int from = t; from < tokens; from += STEP) {
		u32 mine = 0; // bit k: of the k-th 128
#pragma unroll
		for (int k = 0; k < STEP / 128; k++) mine |= (u32)(from + k * 128 + me < tokens && index[from + k * 128 + me] == id) << k;
		if (!__syncthreads_or(mine)) continue;
		int rank[STEP / 128]; // among the warp's
#pragma unroll
		for (int k = 0; k < STEP / 128; k++) {
			u32 which = __ballot_sync(EVERY, mine >> k & 1);
			rank[k] = __popc(which & ((1u << lane_id()) - 1));
			if (lane_id() == 0) counts[4 * k + warp_id()] = __popc(which);
		}
		__syncthreads();
		int all = 0;
#pragma unroll
		for (int i = 0; i < STEP / WARP; i++) {
			if (i % 4 == warp_id() && mine >> i / 4 & 1) list[all + rank[i / 4]] = from + i / 4 * 128 + me;
			all += counts[i];
		}
		__syncthreads();
#pragma unroll 8
		for (int i = 0; i < all; i++) {
			Quad d = load_quad(dy + (size_t)list[i] * sdy + col, n, vec);
			for (int k = 0; k < 4; k++) sum.v[k] += d.v[k];
		}
	}
	store_quad(to, sum, n, vec);
}
