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
	__shared__ float parts[8][4 * WARP];
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
	for (int i = 0; i < 4; i++) parts[warp_id()][4 * lane_id() + i] = s.v[i];
	__syncthreads();
	int me = threadIdx.x;
	if (me >= 4 * WARP || first + me >= cols) return;
	float total = 0.f;
	for (int i = 0; i < 8; i++) total += parts[i][me];
	sum[(size_t)blockIdx.y * cols + first + me] = total;
}

// norm_backward is layer_norm_backward or rms_norm_backward (without a mean) with column_parts: chunk blockIdx.x of dy and x is read once instead of
// twice, 8 bytes of 20 that a norm's way back moves of an element, and BERT has 25 norms. A warp has every eighth row, as there, and a lane 4*NQ
// columns, whose sums stay in registers. Rows are moved four elements at a time. dot and sum may be 0.
template <int NQ>
DEVICE void norm_backward(float *dx, int sdx, const float *dy, int sdy, const float *x, int sx, const float *mean, const float *rstd,
                          const float *gamma, float offset, float *dot, float *sum, int rows, int cols) {
	DYNAMIC_SHARED(float, parts); // [8, cols]
	Quad dots[NQ] = {}, sums[NQ] = {};
	int hi = min(rows, (int)(blockIdx.x + 1) * CHUNK);
	for (int row = blockIdx.x * CHUNK + warp_id(); row < hi; row += 8) {
		float m = mean ? mean[row] : 0.f, r = rstd[row], avgE = 0.f, avgEN = 0.f;
		Quad d[NQ], p[NQ];
#pragma unroll
		for (int q = 0; q < NQ; q++) {
			int col = (q * WARP + lane_id()) * 4, n = col < cols ? 4 : 0;
			d[q] = load_quad(AT(dy, sdy), n, true), p[q] = load_quad(AT(x, sx), n, true);
		}
#pragma unroll
		for (int q = 0; q < NQ; q++) {
			int col = (q * WARP + lane_id()) * 4;
			if (col >= cols) continue;
			Quad g = load_quad(gamma + col, 4, true);
			for (int i = 0; i < 4; i++) {
				float e = d[q].v[i] * (g.v[i] + offset);
				avgE += e;
				avgEN += e * (p[q].v[i] - m) * r;
				dots[q].v[i] += d[q].v[i] * (p[q].v[i] - m) * r;
				sums[q].v[i] += d[q].v[i];
			}
		}
		avgE = mean ? warp_sum(avgE) / cols : 0.f, avgEN = warp_sum(avgEN) / cols;
#pragma unroll
		for (int q = 0; q < NQ; q++) {
			int col = (q * WARP + lane_id()) * 4;
			if (col >= cols) continue;
			Quad g = load_quad(gamma + col, 4, true);
			for (int i = 0; i < 4; i++) d[q].v[i] = r * (d[q].v[i] * (g.v[i] + offset) - avgE - (p[q].v[i] - m) * r * avgEN);
			store_quad(AT(dx, sdx), d[q], 4, true);
		}
	}
#pragma unroll
	for (int which = 0; which < 2; which++) {
		float *to = which ? sum : dot;
		if (!to) continue;
		__syncthreads();
#pragma unroll
		for (int q = 0; q < NQ; q++) {
			int col = (q * WARP + lane_id()) * 4;
			if (col < cols) store_quad(parts + warp_id() * cols + col, which ? sums[q] : dots[q], 4, true);
		}
		__syncthreads();
		for (int col = threadIdx.x; col < cols; col += 8 * WARP) {
			float total = 0.f;
			for (int i = 0; i < 8; i++) total += parts[i * cols + col];
			to[(size_t)blockIdx.x * cols + col] = total;
		}
	}
}

// For up to 128*NQ columns.
#define NORM_BACKWARD(NQ)                                                                                                               \
	(float *dx, int sdx, const float *dy, int sdy, const float *x, int sx, const float *mean, const float *rstd, const float *gamma,     \
	 float offset, float *dot, float *sum, int rows, int cols) {                                                                          \
		norm_backward<NQ>(dx, sdx, dy, sdy, x, sx, mean, rstd, gamma, offset, dot, sum, rows, cols);                                      \
	}
KERNEL __launch_bounds__(256) norm_backward_384 NORM_BACKWARD(3)
KERNEL __launch_bounds__(256) norm_backward_768 NORM_BACKWARD(6)
KERNEL __launch_bounds__(256) norm_backward_1024 NORM_BACKWARD(8)

// column_finish is out[1, dim] += the rows of parts[n, dim]. 32 columns to a block, whose eight warps take every eighth row: one thread a
// column, as it was, waits for memory 128 times for 16,384 tokens, some 20 us where this takes 3 (estimates), and a step of BERT-base has
// 110 such sums for each sub-batch that goes backward.
KERNEL column_finish(float *out, const float *parts, int n, int dim) {
	__shared__ float sums[8][WARP];
	int d = blockIdx.x * WARP + lane_id();
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
