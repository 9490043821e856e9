// Reductions over rows. Parts are cut by shapes alone and added in order: the same bits every time.
#include "common.cuh"

#define CHUNK 128 // rows of a part; the launching side knows it too

// column_parts sums the columns of chunk blockIdx.y: of dy itself into sum, and of dy times x normalized, (x-mean)*rstd, into dot, both
// [chunks, cols]. Either may be 0, and so may mean; rstd has cols/dim values a row. 32 columns to a block of 256 threads.
KERNEL column_parts(float *dot, float *sum, const float *dy, int sdy, const float *x, int sx, const float *mean, const float *rstd, int dim,
                    int rows, int cols) {
	__shared__ float parts[2][8][WARP];
	int col = blockIdx.x * WARP + lane_id(), lo = blockIdx.y * CHUNK, hi = min(rows, lo + CHUNK);
	float d = 0.f, s = 0.f;
	if (col < cols) {
		int groups = cols / dim, group = col / dim;
		for (int row = lo + warp_id(); row < hi; row += 8) {
			float v = *AT(dy, sdy);
			s += v;
			if (dot) d += v * (*AT(x, sx) - (mean ? mean[row] : 0.f)) * rstd[row * groups + group];
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

// column_finish is out[1, dim] += the parts of every chunk and group.
KERNEL column_finish(float *out, const float *parts, int chunks, int cols, int dim) {
	int d = blockIdx.x * blockDim.x + threadIdx.x;
	if (d >= dim) return;
	float total = 0.f;
	for (int c = 0; c < chunks; c++)
		for (int i = d; i < cols; i += dim) total += parts[(size_t)c * cols + i];
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

// scatter_add is dTable[index[t]] += dy[t] in the order of t. Atomic additions would come in any order; sorting would take several launches.
// Here the block of an index's first token adds all its tokens, the others leave: T*T/128 comparisons of 128 indices that lie in the
// second-level cache. A block has 128 threads and 512 columns, from 512*blockIdx.y.
KERNEL scatter_add(float *dTable, int st, const float *dy, int sdy, const int *index, int vec, int tokens, int cols) {
	__shared__ int list[128], counts[4];
	int t = blockIdx.x, id = index[t], me = threadIdx.x;
	for (int from = 0; from < t; from += 128)
		if (__syncthreads_or(from + me < t && index[from + me] == id)) return;
	int col = blockIdx.y * 512 + me * 4, n = min(4, cols - col);
	float *to = dTable + (size_t)id * st + col;
	Quad sum = load_quad(to, n, vec);
	for (int from = t; from < tokens; from += 128) {
		bool mine = from + me < tokens && index[from + me] == id;
		u32 which = __ballot_sync(EVERY, mine);
		if (lane_id() == 0) counts[warp_id()] = __popc(which);
		__syncthreads();
		int at = __popc(which & ((1u << lane_id()) - 1)), all = 0;
		for (int w = 0; w < 4; w++) {
			if (w < warp_id()) at += counts[w];
			all += counts[w];
		}
		if (mine) list[at] = from + me;
		__syncthreads();
#pragma unroll 8
		for (int i = 0; i < all; i++) {
			Quad d = load_quad(dy + (size_t)list[i] * sdy + col, n, vec);
			for (int k = 0; k < 4; k++) sum.v[k] += d.v[k];
		}
	}
	store_quad(to, sum, n, vec);
}
