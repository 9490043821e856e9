// Reductions over rows. Parts are cut by shapes alone and added in order: the same bits every time.
#include "common.cuh"

#define CHUNK 128 // rows of a part; the launching side knows it too

// column_parts sums the columns of chunk blockIdx.y: of dy itself into sum, and of dy times x normalized, (x-mean)*rstd, into dot, both
// [chunks, cols]. Either may be 0, and so may mean; rstd has cols/dim values a row. With an index only the rows whose index is id count.
// 32 columns to a block of 256 threads.
KERNEL column_parts(float *dot, float *sum, const void *dy, int sdy, const void *x, int sx, const float *mean, const float *rstd, int dim,
                    const int *index, int id, int half, int rows, int cols) {
	const int N = 4; // rows of a warp that are under way at once
	__shared__ float parts[2][8][WARP];
	int col = blockIdx.x * WARP + lane_id(), lo = blockIdx.y * CHUNK, hi = min(rows, lo + CHUNK);
	float d = 0.f, s = 0.f;
	if (col < cols) {
		int groups = cols / dim, group = col / dim;
		for (int from = lo + warp_id(); from < hi; from += 8 * N) {
			float v[N] = {}, u[N] = {};
			bool counts[N];
#pragma unroll
			for (int i = 0; i < N; i++) {
				int row = from + 8 * i;
				counts[i] = row < hi && (!index || index[row] == id);
			}
#pragma unroll
			for (int i = 0; i < N; i++) {
				int row = from + 8 * i;
				if (!counts[i]) continue;
				v[i] = load_one(dy, PLACE(sdy), half & 1);
				if (dot) u[i] = (load_one(x, PLACE(sx), half & 2) - (mean ? mean[row] : 0.f)) * rstd[row * groups + group];
			}
#pragma unroll
			for (int i = 0; i < N; i++) s += v[i], d += v[i] * u[i];
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

// place_of is where a column's part is among 128 in shared memory: neighbors of a warp leave four columns each there, or four of eight, in different
// banks.
DEVICE int place_of(int col) { return col ^ (col >> 3 & 4); }

// finish_chunk adds what the eight rows of parts say of 128 columns from first on, in order: the sums of this block's chunk.
DEVICE void finish_chunk(float *sum, const float parts[8][4 * WARP], int first, int cols) {
	__syncthreads();
	int me = threadIdx.x;
	if (me >= 4 * WARP || first + me >= cols) return;
	float total = 0.f;
	for (int i = 0; i < 8; i++) total += parts[i][place_of(me)];
	sum[(size_t)blockIdx.y * cols + first + me] = total;
}

// column_sums makes the sums that column_parts makes of dy alone, the same additions in the same order, and what it reads is rounded into dst
// on the way, if there is one. 128 columns to a block of 256 threads; a warp has every eighth row, a lane four columns.
KERNEL column_sums(float *sum, u16 *dst, int dstride, const void *src, int sstride, int half, int vec, int rows, int cols) {
	const int N = 4; // rows of a warp that are under way at once
	alignas(16) __shared__ float parts[8][4 * WARP];
	int first = blockIdx.x * 4 * WARP, col = first + 4 * lane_id(), lo = blockIdx.y * CHUNK, hi = min(rows, lo + CHUNK);
	int n = min(4, cols - col);
	Quad s = {{0.f, 0.f, 0.f, 0.f}};
	for (int from = lo + warp_id(); from < hi && n > 0; from += 8 * N) {
		Quad q[N];
#pragma unroll
		for (int i = 0; i < N; i++) {
			int row = from + 8 * i;
			q[i] = load_half(src, PLACE(sstride), row < hi ? n : 0, vec, half);
		}
#pragma unroll
		for (int i = 0; i < N; i++) {
			int row = from + 8 * i;
			if (row >= hi) break;
			if (dst) store_bf16(AT(dst, dstride), q[i], n, vec);
			for (int k = 0; k < 4; k++) s.v[k] += q[i].v[k];
		}
	}
	store_quad(parts[warp_id()] + place_of(4 * lane_id()), s, 4, true);
	finish_chunk(sum, parts, first, cols);
}

// A block of 128 threads may have 128 columns of bf16 that are a multiple of eight, in rows that begin at multiples of 16 bytes: each 16 threads have
// every eighth row, a thread eight columns from col on. OWN_EIGHTS says so; finish_eights is finish_chunk of what each has added up.
#define OWN_EIGHTS                                                                              \
	int first = blockIdx.x * 4 * WARP, own = threadIdx.x / 16, col = first + threadIdx.x % 16 * 8; \
	int lo = blockIdx.y * CHUNK, hi = min(rows, lo + CHUNK)
DEVICE void finish_eights(float *sum, const Quad s[2], int first, int own, int col, int cols) {
	alignas(16) __shared__ float parts[8][4 * WARP];
	for (int k = 0; k < 2; k++) store_quad(parts[own] + place_of(col - first + 4 * k), s[k], 4, true);
	finish_chunk(sum, parts, first, cols);
}

// column_sums_wide is column_sums of such columns: the same additions in the same order. With four columns to a lane, four rows of a warp under way
// and 40 warps on a multiprocessor, 12,232 rows of 2,304 columns took 29 us, measured on an H200, and now 20; memory is busy for 13 us.
KERNEL __launch_bounds__(128, 8) column_sums_wide(float *sum, const u16 *src, int sstride, int rows, int cols) {
	const int N = 8; // rows of a thread that are under way at once, packed
	OWN_EIGHTS;
	Quad s[2] = {};
	for (int from = lo + own; from < hi && col < cols; from += 8 * N) {
		uint4 x[N];
#pragma unroll
		for (int i = 0; i < N; i++) {
			int row = min(from + 8 * i, hi - 1);
			x[i] = *(const uint4 *)AT(src, sstride);
		}
#pragma unroll
		for (int i = 0; i < N; i++) {
			if (from + 8 * i >= hi) break;
			Quad p[2] = {unpack(x[i].x, x[i].y), unpack(x[i].z, x[i].w)};
			for (int k = 0; k < 8; k++) s[k / 4].v[k % 4] += p[k / 4].v[k % 4];
		}
	}
	finish_eights(sum, s, first, own, col, cols);
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
	store_quad(parts[warp_id()] + place_of(4 * lane_id()), s, 4, true);
	finish_chunk(sum, parts, first, cols);
}

// gradient_sums_wide is gradient_sums where all is of bf16, of such columns: the same additions in the same order. While a thread computes two rows
// the next two are on their way to shared memory, where it reads nothing but what it has copied itself.
//
// Four columns to a thread, 24 warps of 72 registers on a multiprocessor, took 150 us for 12,232 rows of 3,072 columns, measured on an H200, where
// memory is busy for 71 us; eight, packed, with two rows that were waited for before two were asked for, and 36 warps, 110 us. With copies it took
// 100 us while each quad asked which activation it is.
template <int F, int N> // N rows of a thread at once
DEVICE void gradient_eights(Quad s[2], u16 (&coming)[N][2][128][8], u16 *c, int sc, const u16 *acc, int sacc, const u16 *gradOf, int sgrad, u16 *again,
                            int sagain, int from, int hi, int col) {
	int me = threadIdx.x;
	auto begin = [&](int from) {
#pragma unroll
		for (int i = 0; i < N; i++) {
			int row = from + 8 * i;
			copy16(coming[i][0][me], AT(acc, sacc), row < hi), copy16(coming[i][1][me], AT(gradOf, sgrad), row < hi);
		}
	};
	if (from < hi) begin(from);
	for (; from < hi; from += 8 * N) {
		uint4 x[N], g[N];
		wait_copies();
#pragma unroll
		for (int i = 0; i < N; i++) x[i] = *(const uint4 *)coming[i][0][me], g[i] = *(const uint4 *)coming[i][1][me];
		if (from + 8 * N < hi) begin(from + 8 * N);
#pragma unroll
		for (int i = 0; i < N; i++) {
			int row = from + 8 * i;
			if (row >= hi) break;
			u32 two[4] = {x[i].x, x[i].y, x[i].z, x[i].w}, of[4] = {g[i].x, g[i].y, g[i].z, g[i].w};
#pragma unroll
			for (int k = 0; k < 4; k += 2) {
				Quad p = unpack(two[k], two[k + 1]), on, slope;
				activate(unpack(of[k], of[k + 1]), F, on, slope);
				for (int e = 0; e < 4; e++) p.v[e] *= slope.v[e], s[k / 2].v[e] += p.v[e];
				two[k] = pack_bf16(p.v[0], p.v[1]), two[k + 1] = pack_bf16(p.v[2], p.v[3]);
				of[k] = pack_bf16(on.v[0], on.v[1]), of[k + 1] = pack_bf16(on.v[2], on.v[3]);
			}
			x[i].x = two[0], x[i].y = two[1], x[i].z = two[2], x[i].w = two[3];
			*(uint4 *)AT(c, sc) = x[i];
			if (!again) continue;
			g[i].x = of[0], g[i].y = of[1], g[i].z = of[2], g[i].w = of[3];
			*(uint4 *)AT(again, sagain) = g[i];
		}
	}
}

KERNEL __launch_bounds__(128, 10) gradient_sums_wide(u16 *c, int sc, const u16 *acc, int sacc, const u16 *gradOf, int sgrad, u16 *again, int sagain,
                                                    int f, float *sum, int rows, int cols) {
	alignas(16) __shared__ u16 coming[2][2][128][8]; // rows of acc and gradOf
	OWN_EIGHTS;
	Quad s[2] = {};
	if (col < cols) FOR_ACTIVATION(f, gradient_eights, s, coming, c, sc, acc, sacc, gradOf, sgrad, again, sagain, lo + own, hi, col);
	finish_eights(sum, s, first, own, col, cols);
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
// rows at once; a barrier for each four tells that all warps have left theirs, into two places in turns. While four rows are computed the next four
// are on their way to shared memory, where a thread reads nothing but what it has copied itself. Rows are moved four elements at a time, and up to
// 2,048 columns fit, a warp for each 128.
//
// The bounds are not those of a block: they keep 24 warps on a multiprocessor, by 80 registers to a thread, which the launching side counts on. With
// 98 registers, 12 warps of 768 columns and loads that nothing hid, 12,232 rows took 75 us, measured on an H200, and now 32; memory is busy for 27 us.
KERNEL __launch_bounds__(768) norm_backward(float *dx, int sdx, void *z, int sz, const float *dy, int sdy, const void *x, int sx, const float *mean,
                                            const float *rstd, const float *gamma, float offset, float *dots, float *sums, float *dropped,
                                            const u64 *keys, const int *rowOf, const int *pos, u32 site, u32 threshold, float keep, int half,
                                            int chunk, int rows, int cols) {
	const int N = 4; // rows at once
	DYNAMIC_SHARED(unsigned char, coming); // N rows of dy, then of x, each a quad of each thread's
	__shared__ float across[2][16][2 * N]; // of each warp: N rows' sums of dy * gamma, and of that times x normalized
	int col = threadIdx.x * 4, n = col < cols ? 4 : 0, lo = blockIdx.x * chunk, hi = min(rows, lo + chunk);
	float *dys = (float *)coming;
	void *xs = dys + N * 4 * blockDim.x;
	Quad g = load_quad(gamma + col, n, true), dot = {}, sum = {}, drop = {};
	for (int i = 0; i < n; i++) g.v[i] += offset;
	float number = 0.f; // a row's mean, or of the next four lanes 1 / deviation; lane i has row i % N, here and below
	int text = 0, position = 0; // of that row, where the keys of dropout are asked for
	auto begin = [&](int first) {
#pragma unroll
		for (int i = 0; i < N; i++) {
			int row = first + i, at = 4 * (i * blockDim.x + threadIdx.x);
			bool there = row < hi && n > 0;
			copy16(dys + at, AT(dy, sdy), there);
			if (half & 1) copy8((u16 *)xs + at, AT((const u16 *)x, sx), there);
			else copy16((float *)xs + at, AT((const float *)x, sx), there);
		}
		int row = min(first + lane_id() % N, hi - 1);
		if (lane_id() & N) number = rstd[row];
		else if (mean) number = mean[row];
		if (keys) text = rowOf[row], position = pos[row];
	};
	begin(lo);
	for (int first = lo, turn = 0; first < hi; first += N, turn ^= 1) {
		Quad d[N], p[N];
		float r[N], e[2 * N] = {}, numbers = number;
		u64 key = keys ? keys[text] : 0;
		u32 here = position, kept = 0;
		wait_copies();
#pragma unroll
		for (int i = 0; i < N; i++) {
			int at = 4 * (i * blockDim.x + threadIdx.x);
			d[i] = load_quad(dys + at, 4, true), p[i] = load_half(xs, at, 4, true, half & 1);
		}
		if (first + N < hi) begin(first + N);
#pragma unroll
		for (int i = 0; i < N; i++) {
			float m = __shfl_sync(EVERY, numbers, i);
			r[i] = __shfl_sync(EVERY, numbers, N + i);
			for (int k = 0; k < 4; k++) {
				float &w = d[i].v[k], &u = p[i].v[k];
				u = (u - m) * r[i];
				dot.v[k] += w * u, sum.v[k] += w;
				w *= g.v[k];
				e[i] += w, e[N + i] += w * u;
			}
		}
		if (keys) kept = keep_rows(key, col, here, site, threshold);
		float one = all_sums(e);
		if (lane_id() % 4 == 0) across[turn][warp_id()][lane_id() / 4] = one;
		__syncthreads();
		float avg = 0.f; // lane i has value i % 8, of the warps of which it adds every fourth
#pragma unroll
		for (int i = 0; i < 4; i++) {
			int w = 4 * i + lane_id() / 8;
			if (w < blockDim.x / WARP) avg += across[turn][w][lane_id() % 8];
		}
		avg += __shfl_xor_sync(EVERY, avg, 8);
		avg += __shfl_xor_sync(EVERY, avg, 16);
		avg = mean || lane_id() & N ? avg / cols : 0.f;
#pragma unroll
		for (int i = 0; i < N; i++) {
			int row = first + i;
			float ofE = __shfl_sync(EVERY, avg, i), ofEN = __shfl_sync(EVERY, avg, N + i);
			if (row >= hi || n == 0) continue;
			for (int k = 0; k < 4; k++) d[i].v[k] = r[i] * (d[i].v[k] - ofE - p[i].v[k] * ofEN);
			store_quad(AT(dx, sdx), d[i], 4, true);
			if (!z) continue;
			if (keys) drop_bits(d[i], kept >> (8 * i + 4), keep);
			for (int k = 0; k < 4; k++) drop.v[k] += d[i].v[k];
			store_half(z, PLACE(sz), d[i], 4, true, half & 2);
		}
	}
	size_t at = (size_t)blockIdx.x * cols + col;
	if (dots) store_quad(dots + at, dot, n, true);
	if (sums) store_quad(sums + at, sum, n, true);
	if (dropped) store_quad(dropped + at, drop, n, true);
}

#define SUMS 64

// Sum is parts[n, dim], whose rows column_finish adds to out[1, dim]; without parts, zeros in their place.
struct Sum {
	float *out;
	const float *parts;
	int n, dim;
	size_t stride; // of the parts
};

// Sums are one launch's; the launching side fills a struct of the same layout.
struct Sums {
	Sum sum[SUMS];
};

// column_finish makes a sum for each blockIdx.y. 32 columns to a block, which has a warp for each part of the sum that has most, up to 32. Of n parts
// W = min(n, 32) warps add, warp w rows w, w + W, w + 2W and so on, and the sums of the warps are added in their order: which sums are made together
// changes no bits. With eight warps one took 6 to 8 us, measured on an H200, and with 32 it took 5, with up to three sums to a launch: a step of
// BERT-base had 51 such launches, and 12 that filled a key's bias, for each sub-batch that goes backward. At 12,000 tokens it now has six, which have
// not been timed.
KERNEL __launch_bounds__(1024) column_finish(Sums all) {
	__shared__ float sums[WARP][WARP];
	const Sum &s = all.sum[blockIdx.y];
	int n = s.n, dim = s.dim, d = blockIdx.x * WARP + lane_id(), warps = min(n, WARP);
	if (blockIdx.x * WARP >= dim) return; // another sum is longer
	float total = 0.f;
	if (warp_id() < warps) {
		size_t step = warps * s.stride;
		for (int first = warp_id(); first < n && d < dim; first += 16 * warps) {
			const float *from = s.parts + first * s.stride + d;
			float v[16]; // under way at once
#pragma unroll
			for (int k = 0; k < 16; k++) v[k] = first + k * warps < n ? from[k * step] : 0.f;
#pragma unroll
			for (int k = 0; k < 16; k++) total += v[k];
		}
		sums[warp_id()][lane_id()] = total;
	}
	__syncthreads();
	if (warp_id() > 0 || d >= dim) return;
	for (int i = 1; i < warps; i++) total += sums[i][lane_id()];
	s.out[d] = n > 0 ? s.out[d] + total : 0.f;
}

DEVICE double block_sum64(double v) { // thread 0 has it
	__shared__ double parts[WARP];
	v = warp_sum64(v);
	if (lane_id() == 0) parts[warp_id()] = v;
	__syncthreads();
	double total = 0.;
	for (int i = 0; i < blockDim.x / WARP; i++) total += parts[i];
	return total;
}

#define SQUARES 8192 // elements of a part

// square_parts has a part to a block of 256 threads, a thread every 256th quad of it. An element at a time, 109 million took 181 us, measured on an
// H200, and now 98.
KERNEL square_parts(double *parts, const float *x, int sx, int vec, u32 rows, u32 cols) {
	u64 all = (u64)rows * cols, lo = (u64)blockIdx.x * SQUARES;
	double sum = 0.;
	if (rows == 1) {
		Quad q[SQUARES / 1024]; // under way at once
#pragma unroll
		for (int k = 0; k < SQUARES / 1024; k++) {
			u64 at = lo + 4 * (k * 256 + threadIdx.x);
			q[k] = load_quad(x + at, at + 4 <= all ? 4 : at < all ? (int)(all - at) : 0, vec);
		}
#pragma unroll
		for (int k = 0; k < SQUARES / 1024; k++)
			for (int i = 0; i < 4; i++) sum += (double)q[k].v[i] * q[k].v[i];
	} else {
#pragma unroll 1
		for (int k = 0; k < SQUARES / 256; k++) {
			u64 at = lo + k / 4 * 1024 + 4 * threadIdx.x + k % 4;
			float v = at < all ? x[at / cols * sx + at % cols] : 0.f;
			sum += (double)v * v;
		}
	}
	sum = block_sum64(sum);
	if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

// square_finish is out[0] += all parts; one block. Of 256 threads it took 21 us for 13,293 parts, measured on an H200, and now 4.
KERNEL __launch_bounds__(1024) square_finish(double *out, const double *parts, int n) {
	double sum = 0.;
	for (int first = threadIdx.x; first < n; first += 16 * blockDim.x) {
		double v[16]; // as many under way as registers allow
#pragma unroll
		for (int k = 0; k < 16; k++) v[k] = first + k * blockDim.x < n ? parts[first + k * blockDim.x] : 0.;
#pragma unroll
		for (int k = 0; k < 16; k++) sum += v[k];
	}
	sum = block_sum64(sum);
	if (threadIdx.x == 0) out[0] += sum;
}

// load_ids is four indices of which n are there, and no index in the place of the others. vec says that they may be moved as 16 bytes.
DEVICE uint4 load_ids(const int *p, int n, int vec) {
	if (vec && n >= 4) return *(const uint4 *)p;
	uint4 v;
	v.x = n > 0 ? p[0] : -1, v.y = n > 1 ? p[1] : -1, v.z = n > 2 ? p[2] : -1, v.w = n > 3 ? p[3] : -1;
	return v;
}

// which_are is what a thread of n sees of 16*n indices from a multiple of four on: bits 4*k to 4*k + 3 are of its four of the k-th 4*n, 1 where an
// index before end is id.
DEVICE u32 which_are(int id, const int *index, int from, int end, int thread, int n, int vec) {
	uint4 v[4]; // under way at once
#pragma unroll
	for (int k = 0; k < 4; k++) {
		int at = from + 4 * (k * n + thread);
		v[k] = load_ids(index + at, end - at, vec);
	}
	u32 which = 0;
#pragma unroll
	for (int k = 0; k < 4; k++)
		which |= ((u32)(v[k].x == id) | (u32)(v[k].y == id) << 1 | (u32)(v[k].z == id) << 2 | (u32)(v[k].w == id) << 3) << 4 * k;
	return which;
}

#define STEP 4096 // indices that a block of scatter_add compares at a time: 16 to a thread

// scatter_add is dTable[index[t]] += dy[t] in the order of t. Atomic additions would come in any order; sorting would take several launches.
// Here the block of an index's first token adds all its tokens. A block has eight tokens, a warp each, which looks through the indices before its
// token, 512 at a time, and 256 columns from 256*blockIdx.y, a thread each. The tokens are not neighbors, whose indices may all be first ones.
// Then the block adds up, one first token after the other: it lists the tokens of the next STEP that have the index, and has up to 24 of their rows
// under way. An index that most tokens have is one block's work: tables of few rows have column_parts instead.
//
// With blocks that compared 512 indices at a time and waited for one row after the other where a step had few, 12,229 tokens of 768 columns took
// 402 us for a table of words and 107 for one of positions, measured on an H200, and now 160 together. What grows with the square of the
// tokens is looking at those before: of 32,768 the positions take 422 us, of 12,229 they take 38.
KERNEL __launch_bounds__(256, 4) scatter_add(float *dTable, int st, const float *dy, int sdy, const int *index, int vec, int tokens, int cols) {
	const int N = 24; // rows under way at once
	__shared__ int firsts[8], counts[STEP / (4 * WARP)];
	__shared__ u32 list[STEP + 8];
	int me = threadIdx.x, col = blockIdx.y * 256 + me, t = blockIdx.x + warp_id() * gridDim.x;
	bool before = t >= tokens;
	int id = before ? 0 : index[t];
	for (int from = 0; from < t && !before; from += 512)
		before = __ballot_sync(EVERY, which_are(id, index, from, t, lane_id(), WARP, vec) != 0);
	if (lane_id() == 0) firsts[warp_id()] = before ? -1 : t;
	__syncthreads();
	for (int w = 0; w < 8; w++) {
		if ((t = firsts[w]) < 0) continue;
		id = index[t];
		float *to = dTable + (size_t)id * st + col, sum = col < cols ? *to : 0.f;
		for (int from = t & ~3; from < tokens; from += STEP) {
			u32 mine = which_are(id, index, from, tokens, me, 256, vec);
			if (!__syncthreads_or(mine)) continue;
#pragma unroll
			for (int k = 0; k < 4; k++) {
				int n = 0;
				for (int i = 0; i < 4; i++) n += __popc(__ballot_sync(EVERY, mine >> (4 * k + i) & 1));
				if (lane_id() == 0) counts[8 * k + warp_id()] = n;
			}
			__syncthreads();
			int all = 0;
#pragma unroll
			for (int k = 0; k < 4; k++) {
				u32 *next = list;
				for (int i = 0; i < 8; i++) {
					if (i == warp_id()) next += all;
					all += counts[8 * k + i];
				}
				for (int i = 0; i < 4; i++) { // a lane lists one of 32 neighbors, which another has looked at
					bool is = __shfl_sync(EVERY, mine, 8 * i + lane_id() / 4) >> (4 * k + lane_id() % 4) & 1;
					u32 which = __ballot_sync(EVERY, is);
					if (is) next[__popc(which & ((1u << lane_id()) - 1))] = from + 1024 * k + 128 * warp_id() + 32 * i + lane_id();
					next += __popc(which);
				}
			}
			if (me < 8) list[all + me] = t; // rows are read eight at a time
			__syncthreads();
			for (int i = 0; i < all && col < cols; i += N) {
				float d[N];
#pragma unroll
				for (int j = 0; j < N; j++)
					if (i + j / 8 * 8 < all) d[j] = dy[(size_t)list[i + j] * (u32)sdy + col];
#pragma unroll
				for (int j = 0; j < N; j++)
					if (i + j < all) sum += d[j];
			}
		}
		if (col < cols) *to = sum;
	}
}
