// Attention in bf16 on tensor cores, for head sizes 32, 64, 128 and 256: FlashAttention-2 (Dao, arXiv 2307.08691) on packed sequences, causal or not,
// with windows, grouped heads and dropout, at 256 features with soft caps, at 64 with biases of positions (MPNet's). Tensors are bf16; scores
// and sums are f32, and outputs are rounded once.
//
// A block has rows of one sequence and head and walks over tiles of partners. How it multiplies is a Way: by warps, from sm_80 on (flash.cu), or by
// warpgroups, on Hopper (hopper.cu). In both a warp has R tiles of 16 rows, and fragments are the same, for lane = 4*g + t: rows g and g+8 of the
// left operand and the accumulator, columns 2t and 2t+1 (and 8 more) of it. Accumulators of a product have the layout of the next one's left operand, so
// probabilities stay in registers. The backward pass is two kernels, by query and by key, which costs 7 products instead of 5 and gives the same
// bits every time: FlashAttention's one kernel adds dq atomically.
//
// Tiles come to shared memory by copies that no thread waits for until it needs them (cp.async), into two buffers in turns: while one
// is multiplied the next tile is on its way, and one barrier a tile says both that it is there and that the other buffer is free.
//
// A Way has
//
//	D, R, N                        features, tiles of 16 rows of a warp, 8*N partners of a tile
//	PITCH, place(row, d)           elements of shared memory that a row of a tile takes, and where one is in its tile: so many rows of a block's
//	                               threads further (blockDim/(D/8)) it is as many PITCH further
//	SHARED_QUERIES, SHARED_KEYS    whether the block's own are in shared memory, for want of registers (forward; by key)
//	ASYNC                          whether products are under way until settle; meanwhile the next tile's copies are begun, and otherwise before them
//	first_row(w0)                  of the rows that multiply together with the warp's from w0
//	publish()                      comes between writing to shared memory and the barrier
//	times_rows<N>(c, a, x)         c = a x^T for 8*N rows of x, where c is 0
//	times<N, W>(c, p, x)           c += p x for W columns of the 8*N rows of x, p accumulators
//	settle(c...)                   waits for such products
#include "attention.cuh"

// copy16 copies 16 bytes from memory to shared memory, or zeros where nothing is there. They have come after wait_copies, for this thread.
DEVICE void copy16(u16 *to, const u16 *from, bool there) {
#ifdef HOST_CUDA
	host_copy_async(to, from, 16, there);
#else
	u32 at = (u32)__cvta_generic_to_shared(to);
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(there ? 16 : 0) : "memory");
#endif
}

// copy4 is copy16 of a float.
DEVICE void copy4(float *to, const float *from, bool there) {
#ifdef HOST_CUDA
	host_copy_async(to, from, 4, there);
#else
	u32 at = (u32)__cvta_generic_to_shared(to);
	asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(at), "l"(from), "r"(there ? 4 : 0) : "memory");
#endif
}

DEVICE void wait_copies() {
#ifdef HOST_CUDA
	host_wait_copies();
#else
	asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// head_of is where a head begins in a sequence's first row.
DEVICE const u16 *head_of(const void *x, int stride, int lo, int column) { return (const u16 *)x + (size_t)lo * stride + column; }

// row_of is where a row of a tensor begins whose rows are stride elements apart. Of C++ the compiler makes up to five instructions.
DEVICE const u16 *row_of(const u16 *x, int row, int stride) {
#ifdef HOST_CUDA
	return x + (size_t)row * stride;
#else
	const u16 *at;
	asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(at) : "r"(row), "r"(2 * stride), "l"(x));
	return at;
#endif
}

// tile copies rows first to first+count of a head of x into shared memory, 16 bytes to a thread, and behind them those of y, if there is a y; rows
// from n on are zero. They are there after wait_copies and a barrier.
template <class Way, bool BOTH> DEVICE void tile(const Attention &a, u16 *to, const u16 *x, int sx, const u16 *y, int sy, int first, int count, int n) {
	const int D = Way::D;
	int d = threadIdx.x % (D / 8) * 8, own = threadIdx.x / (D / 8), step = blockDim.x / (D / 8);
	if (D == 32) own = own / 8 * 8 + own % 2 * 4 + own % 8 / 2; // eight threads have two rows, whose banks differ when they are four apart
	x += d, y += d;
#pragma unroll 1
	for (int r = own, e = Way::place(own, d); r < count; r += step, e += step * Way::PITCH) {
		u16 *at = to + e;
		const u16 *px = row_of(x, first + r, sx), *py = row_of(y, first + r, sy);
		bool there = first + r < n;
		if (a.vec) {
			copy16(at, px, there);
			if (BOTH) copy16(at + count * Way::PITCH, py, there);
		} else {
			for (int i = 0; i < 8; i++) at[i] = there ? px[i] : 0;
			for (int i = 0; BOTH && i < 8; i++) at[count * Way::PITCH + i] = there ? py[i] : 0;
		}
	}
}

// works tells whether a warp, or its group, has rows below n to multiply, or only helps to copy.
template <class Way> DEVICE bool works(int w0, int n) { return Way::first_row(w0) < n; }

// partners copies a tile of 8*N rows of x, and behind it one of y.
template <class Way, int N> DEVICE void partners(const Attention &a, u16 *to, const u16 *x, int sx, const u16 *y, int sy, int first, int n) {
	tile<Way, true>(a, to, x, sx, y, sy, first, 8 * N, n);
}

// exchange transposes what four neighbours have: lane i's v[t] becomes what lane t had as v[i].
DEVICE void exchange(u32 v[4]) {
#pragma unroll
	for (int d = 1; d <= 2; d *= 2) {
		bool upper = lane_id() & d;
#pragma unroll
		for (int i = 0; i < 4; i++) {
			if (i & d) continue;
			u32 theirs = __shfl_xor_sync(EVERY, upper ? v[i] : v[i + d], d);
			if (upper) v[i] = theirs;
			else v[i + d] = theirs;
		}
	}
}

// Operands and accumulators have two features of a row in a register, and four lanes eight: memory would be moved by half a sector. So lanes move 16
// bytes, features 8t to 8t+7 of 32, and exchange them.

// left_rows reads the warp's 16 rows of a head as left operands, from memory.
template <int D> DEVICE void left_rows(const Attention &a, u32 f[D / 16][4], const u16 *from, int stride, int row, int n) {
	int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
	for (int half = 0; half < 2; half++) {
		int r = row + g + half * 8;
		const u16 *p = from + (size_t)r * stride;
#pragma unroll
		for (int k = 0; k < D / 8; k += 4) {
			u32 v[4] = {};
			if (a.vec) {
				if (r < n) {
					uint4 all = *(const uint4 *)(p + (k + t) * 8);
					v[0] = all.x, v[1] = all.y, v[2] = all.z, v[3] = all.w;
				}
				exchange(v);
			} else if (r < n) {
#pragma unroll
				for (int i = 0; i < 4; i++) v[i] = p[(k + i) * 8 + 2 * t] | (u32)p[(k + i) * 8 + 2 * t + 1] << 16;
			}
#pragma unroll
			for (int i = 0; i < 4; i++) f[(k + i) / 2][i % 2 * 2 + half] = v[i];
		}
	}
}

// store_rows writes accumulators, the warp's 16 rows of W columns, to memory.
template <int W> DEVICE void store_rows(const Attention &a, u16 *to, int stride, int row, int n, const float c[W / 8][4]) {
	int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
	for (int half = 0; half < 2; half++) {
		int r = row + g + half * 8;
		u16 *p = to + (size_t)r * stride;
#pragma unroll
		for (int k = 0; k < W / 8; k += 4) {
			u32 v[4];
#pragma unroll
			for (int i = 0; i < 4; i++) v[i] = pack_bf16(c[k + i][2 * half], c[k + i][2 * half + 1]);
			if (a.vec) {
				exchange(v);
				uint4 all;
				all.x = v[0], all.y = v[1], all.z = v[2], all.w = v[3];
				if (r < n) *(uint4 *)(p + (k + t) * 8) = all;
			} else if (r < n) {
#pragma unroll
				for (int i = 0; i < 4; i++) p[(k + i) * 8 + 2 * t] = (u16)v[i], p[(k + i) * 8 + 2 * t + 1] = (u16)(v[i] >> 16);
			}
		}
	}
}

// left_of makes left operand k of accumulators: columns 16k to 16k+15.
DEVICE void left_of(u32 f[4], const float (*c)[4], int k) {
	f[0] = pack_bf16(c[2 * k][0], c[2 * k][1]);
	f[1] = pack_bf16(c[2 * k][2], c[2 * k][3]);
	f[2] = pack_bf16(c[2 * k + 1][0], c[2 * k + 1][1]);
	f[3] = pack_bf16(c[2 * k + 1][2], c[2 * k + 1][3]);
}

// Range of a warp's partners that all of its rows see: only tiles that are not within it need hide.
DEVICE Range keys_of_all(const Attention &a, int first, int last, int n) {
	Range r = {a.window ? last - a.window : 0, n};
	if (a.causal) r.to = min(r.to, first + 1);
	if (a.window) r.to = min(r.to, first + a.window + 1);
	return r;
}
DEVICE Range queries_of_all(const Attention &a, int first, int last, int n) {
	Range r = {a.causal ? last : a.window ? last - a.window : 0, a.window ? min(n, first + a.window + 1) : n};
	return r;
}
DEVICE bool outside(const Range &r, int first, int count) { return first < r.from || first + count > r.to; }

// drop zeroes what dropout drops of 8*N keys from j, for queries i and i+8. Eight keys of a query are one call of philox: each lane of
// four makes it for one tile of four, and gets its own columns of the others' (see keep8).
template <int N> DEVICE void drop(const Attention &a, float p[N][4], u64 key, int h, int i, int j) {
	int t = lane_id() % 4;
#pragma unroll
	for (int first = 0; first < N; first += 4) {
		u32 group = j / 8 + first + t;
		u32 bits = keep8(key, group, i, h, a.site, a.threshold) | keep8(key, group, i + 8, h, a.site, a.threshold) << 8;
#pragma unroll
		for (int k = 0; k < 4; k++) {
			u32 x = __shfl_sync(EVERY, bits, (lane_id() & ~3) + k) >> (2 * t);
#pragma unroll
			for (int e = 0; e < 4; e++)
				if (!(x & (e / 2 ? 256 : 1) << e % 2)) p[first + k][e] = 0.f;
		}
	}
}

// Softmax sees scores times a factor, of which it takes powers of two: unit is the factor times log2 e. With a soft cap, capped makes scores of
// products, and bend is the cap's derivative, 1 - (score/cap)^2, where by_cap is 1/cap^2; it is 0 without one.
template <int D> DEVICE bool has_cap(const Attention &a) { return D == 256 && a.cap != 0.f; }
template <int D> DEVICE float unit(const Attention &a) { return has_cap<D>(a) ? LOG2E : a.scale * LOG2E; }
template <int D, int N> DEVICE void capped(const Attention &a, float s[N][4]) {
	if (!has_cap<D>(a)) return;
#pragma unroll
	for (int j = 0; j < N; j++)
#pragma unroll
		for (int e = 0; e < 4; e++) s[j][e] = a.cap * tanhf(s[j][e] * (a.scale / a.cap));
}
template <int D> DEVICE float by_cap(const Attention &a) { return has_cap<D>(a) ? 1.f / (a.cap * a.cap) : 0.f; }
template <int D> DEVICE float bend(float s, float r) { return D == 256 && r > 0.f ? 1.f - s * s * r : 1.f; }

// hide puts a value where queries i and i+8 do not see the 8*N keys from j, of which there are n. Most tiles don't need it. Queries from n on may hold
// anything: what comes of them is not stored, and goes into no other query's sums.
template <int N> DEVICE void hide(const Attention &a, float s[N][4], int i, int j, int n, float value) {
	j += lane_id() % 4 * 2;
#pragma unroll
	for (int k = 0; k < N; k++)
#pragma unroll
		for (int e = 0; e < 2; e++)
			if (j + 8 * k + e >= n) s[k][e] = s[k][e + 2] = value;
	if (!a.causal && !a.window) return;
#pragma unroll
	for (int k = 0; k < N; k++)
#pragma unroll
		for (int e = 0; e < 4; e++)
			if (!visible(a, i + e / 2 * 8, j + 8 * k + e % 2, n)) s[k][e] = value;
}

// A head's biases of positions are in shared memory, divided by the scale: they are added to products.

// stage_bias copies them there, for the block; it takes a barrier to see them.
DEVICE void stage_bias(const Attention &a, float *to, int h) {
	for (int r = threadIdx.x; r <= 2 * a.reach; r += blockDim.x) to[r] = a.bias[(size_t)r * a.sbias + h] / a.scale;
}

// add_bias adds them to products whose row g and column 2t have this distance, a key's position less a query's; by columns it grows by step.
template <int N> DEVICE void add_bias(const Attention &a, float s[N][4], const float *bias, int distance, int step) {
#pragma unroll
	for (int k = 0; k < N; k++)
#pragma unroll
		for (int e = 0; e < 4; e++) s[k][e] += bias[a.reach + min(a.reach, max(-a.reach, distance + step * (8 * k + e % 2 - 8 * (e / 2))))];
}

// multiply is c *= f.
template <int W> DEVICE void multiply(float c[W / 8][4], float f) {
#pragma unroll
	for (int j = 0; j < W / 8; j++)
#pragma unroll
		for (int e = 0; e < 4; e++) c[j][e] *= f;
}

// forward_tile is what a warp's queries from w0 get of 8*N keys from k0: top is the largest product of each so far, z the sum of powers, o that of
// values. Queries are in registers or in shared memory.
template <class Way, bool BIAS, int N, class Queries, class Copy>
DEVICE void forward_tile(const Attention &a, float (&o)[Way::R][Way::D / 8][4], float top[2 * Way::R], float z[2 * Way::R], const Queries &q, const u16 *ks, const u16 *vs,
                         const float *bias, int b, int h, int w0, int k0, int n, bool hidden, Copy next) {
	const int D = Way::D, R = Way::R;
	int i = w0 + lane_id() / 4;
	float s[R][N][4] = {}, c = unit<D>(a);
	Way::template times_rows<N>(s, q, ks);
	if (Way::ASYNC) next();
	Way::settle(s);
#pragma unroll
	for (int r = 0; r < R; r++) {
		capped<D, N>(a, s[r]);
		if (BIAS) add_bias<N>(a, s[r], bias, k0 + lane_id() % 4 * 2 - i - 16 * r, 1);
		if (hidden) hide<N>(a, s[r], i + 16 * r, k0, n, MINUS_INF);
#pragma unroll
		for (int half = 0; half < 2; half++) {
			float m = top[2 * r + half];
#pragma unroll
			for (int j = 0; j < N; j++) m = fmaxf(m, fmaxf(s[r][j][2 * half], s[r][j][2 * half + 1]));
			m = fmaxf(m, __shfl_xor_sync(EVERY, m, 1));
			m = fmaxf(m, __shfl_xor_sync(EVERY, m, 2));
			float from = m == MINUS_INF ? 0.f : m * c, shrink = power_of_two(top[2 * r + half] * c - from), sum = 0.f; // a row may see nothing yet
			top[2 * r + half] = m;
#pragma unroll
			for (int j = 0; j < N; j++)
#pragma unroll
				for (int e = 0; e < 2; e++) {
					float &v = s[r][j][2 * half + e];
					v = power_of_two(v * c - from);
					sum += v;
				}
			z[2 * r + half] = z[2 * r + half] * shrink + sum;
#pragma unroll
			for (int d = 0; d < D / 8; d++) o[r][d][2 * half] *= shrink, o[r][d][2 * half + 1] *= shrink;
		}
		if (a.keys) drop<N>(a, s[r], a.keys[b], h, i + 16 * r, k0);
	}
	Way::template times<N, D>(o, s, vs);
	Way::settle(o);
}

template <class Way, bool BIAS> DEVICE void flash_forward(const Attention &a) {
	const int D = Way::D, R = Way::R, N = Way::N, BUFFER = 2 * 8 * N * Way::PITCH; // tiles of 8 keys
	DYNAMIC_SHARED(u16, shared);
	int b = blockIdx.x, h = blockIdx.y, rows = blockDim.x / 2 * R, q0 = blockIdx.z * rows, lo = a.cu[b], n = a.cu[b + 1] - lo;
	if (q0 >= n) return;
	int t = lane_id() % 4, w0 = q0 + warp_id() * 16 * R, i = w0 + lane_id() / 4;
	const u16 *k = head_of(a.k, a.sk, lo, h / a.group * D), *v = head_of(a.v, a.sv, lo, h / a.group * D);
	Range see = keys_of(a, q0, q0 + rows - 1, n);
	int k0 = see.from / 8 * 8;
	partners<Way, N>(a, shared, k, a.sk, v, a.sv, k0, n);
	const u16 *ownQ = head_of(a.q, a.sq, lo, h * D);
	u32 q[R][D / 16][4];
	if (Way::SHARED_QUERIES) {
		u16 *own = shared + 2 * BUFFER;
		tile<Way, false>(a, own, ownQ, a.sq, ownQ, 0, q0, rows, n);
		ownQ = own + warp_id() * 16 * R * Way::PITCH;
	} else {
#pragma unroll
		for (int r = 0; r < R; r++) left_rows<D>(a, q[r], ownQ, a.sq, w0 + 16 * r, n);
	}
	float *bias = (float *)(shared + 2 * BUFFER);
	if (BIAS) stage_bias(a, bias, h);
	float o[R][D / 8][4] = {}, top[2 * R], z[2 * R] = {};
#pragma unroll
	for (int half = 0; half < 2 * R; half++) top[half] = MINUS_INF;
	Range all = keys_of_all(a, w0, w0 + 16 * R - 1, n);
	for (int here = 0; k0 < see.to; k0 += 8 * N, here = BUFFER - here) {
		u16 *ks = shared + here, *vs = ks + BUFFER / 2;
		wait_copies();
		Way::publish();
		__syncthreads();
		auto next = [&] {
			if (k0 + 8 * N < see.to) partners<Way, N>(a, shared + BUFFER - here, k, a.sk, v, a.sv, k0 + 8 * N, n);
		};
		if (!Way::ASYNC || !works<Way>(w0, n)) next();
		if (!works<Way>(w0, n)) continue;
		bool hidden = outside(all, k0, 8 * N);
		if constexpr (Way::SHARED_QUERIES) forward_tile<Way, BIAS, N>(a, o, top, z, ownQ, ks, vs, bias, b, h, w0, k0, n, hidden, next);
		else if (N == 8 && see.to - k0 <= 4 * N) forward_tile<Way, BIAS, 4>(a, o, top, z, q, ks, vs, bias, b, h, w0, k0, n, hidden, [] {}); // the last
		else forward_tile<Way, BIAS, N>(a, o, top, z, q, ks, vs, bias, b, h, w0, k0, n, hidden, next);
	}
	float c = unit<D>(a);
#pragma unroll
	for (int r = 0; r < R; r++) {
#pragma unroll
		for (int half = 0; half < 2; half++) {
			int row = i + 16 * r + 8 * half;
			float sum = z[2 * r + half] + __shfl_xor_sync(EVERY, z[2 * r + half], 1);
			sum += __shfl_xor_sync(EVERY, sum, 2);
			float f = a.keep * reciprocal(sum);
#pragma unroll
			for (int d = 0; d < D / 8; d++) o[r][d][2 * half] *= f, o[r][d][2 * half + 1] *= f;
			if (row < n && t == 0) a.lse[(size_t)h * a.slse + lo + row] = top[2 * r + half] * c / LOG2E + logf(sum);
		}
		store_rows<D>(a, (u16 *)a.ctx + (size_t)lo * a.sctx + h * D, a.sctx, w0 + 16 * r, n, o[r]);
	}
}

// row_lse reads the log-sum-exps of queries i, i+8 and so on, as powers of two, and row_numbers <dctx, ctx> too.
template <int R> DEVICE void row_lse(const Attention &a, float lse[2 * R], int lo, int h, int i, int n) {
#pragma unroll
	for (int half = 0; half < 2 * R; half++) lse[half] = i + 8 * half < n ? a.lse[(size_t)h * a.slse + lo + i + 8 * half] * LOG2E : 0.f;
}
template <int R> DEVICE void row_numbers(const Attention &a, float lse[2 * R], float delta[2 * R], int lo, int h, int i, int n) {
	row_lse<R>(a, lse, lo, h, i, n);
#pragma unroll
	for (int half = 0; half < 2 * R; half++) delta[half] = i + 8 * half < n ? a.delta[(size_t)h * a.sdelta + lo + i + 8 * half] : 0.f;
}

// make_delta makes <dctx, ctx> of queries i and i+8, of dctx in registers, and leaves it for the kernels that come after. In a pass of its own it
// would read dctx once more, and is one launch more.
template <int D> DEVICE void make_delta(const Attention &a, float delta[2], const u32 o[D / 16][4], int lo, int h, int w0, int n) {
	u32 ctx[D / 16][4];
	left_rows<D>(a, ctx, head_of(a.ctx, a.sctx, lo, h * D), a.sctx, w0, n);
#pragma unroll
	for (int half = 0; half < 2; half++) {
		float sum = 0.f;
#pragma unroll
		for (int k = 0; k < D / 16; k++) sum += dot_pairs(o[k][half], ctx[k][half]) + dot_pairs(o[k][half + 2], ctx[k][half + 2]);
		sum += __shfl_xor_sync(EVERY, sum, 1);
		delta[half] = sum + __shfl_xor_sync(EVERY, sum, 2);
		int row = w0 + lane_id() / 4 + 8 * half;
		if (row < n && lane_id() % 4 == 0) a.delta[(size_t)h * a.sdelta + lo + row] = delta[half];
	}
}

// score_gradients makes gradients of the scores of queries i and i+8, divided by the scale, of products s of queries and keys and dp of dctx and
// values.
template <int D, bool BIAS, int N>
DEVICE void score_gradients(const Attention &a, float s[N][4], float dp[N][4], const float *bias, const float lse[2], const float delta[2], int b, int h,
                            int i, int k0) {
	float c = unit<D>(a), byCap = by_cap<D>(a);
	if (a.keys) drop<N>(a, dp, a.keys[b], h, i, k0);
	capped<D, N>(a, s);
	if (BIAS) add_bias<N>(a, s, bias, k0 + lane_id() % 4 * 2 - i, 1);
#pragma unroll
	for (int j = 0; j < N; j++)
#pragma unroll
		for (int e = 0; e < 4; e++) s[j][e] = power_of_two(s[j][e] * c - lse[e / 2]) * (dp[j][e] * a.keep - delta[e / 2]) * bend<D>(s[j][e], byCap);
}

template <class Way, bool BIAS> DEVICE void flash_backward_q(const Attention &a) {
	const int D = Way::D, R = Way::R, N = Way::N, BUFFERS = D == 256 ? 1 : 2, BUFFER = 2 * 8 * N * Way::PITCH; // tiles of 8 keys
	static_assert(!Way::ASYNC || BUFFERS == 2, "copies come before the products' end");
	DYNAMIC_SHARED(u16, shared);
	int b = blockIdx.x, h = blockIdx.y, rows = blockDim.x / 2 * R, q0 = blockIdx.z * rows, lo = a.cu[b], n = a.cu[b + 1] - lo;
	if (q0 >= n) return;
	int w0 = q0 + warp_id() * 16 * R, i = w0 + lane_id() / 4;
	const u16 *k = head_of(a.k, a.sk, lo, h / a.group * D), *v = head_of(a.v, a.sv, lo, h / a.group * D);
	Range see = keys_of(a, q0, q0 + rows - 1, n);
	int k0 = see.from / 8 * 8;
	partners<Way, N>(a, shared, k, a.sk, v, a.sv, k0, n);
	const u16 *ownQ = head_of(a.q, a.sq, lo, h * D), *ownO = head_of(a.dctx, a.sdctx, lo, h * D);
	u32 q[R][D / 16][4], o[R][D / 16][4];
	if (BUFFERS == 2) {
#pragma unroll
		for (int r = 0; r < R; r++) {
			left_rows<D>(a, q[r], ownQ, a.sq, w0 + 16 * r, n);
			left_rows<D>(a, o[r], ownO, a.sdctx, w0 + 16 * r, n);
		}
	} else {
		u16 *own = shared + BUFFER;
		tile<Way, true>(a, own, ownQ, a.sq, ownO, a.sdctx, q0, rows, n);
		ownQ = own + warp_id() * 16 * R * Way::PITCH, ownO = ownQ + rows * Way::PITCH;
	}
	float *bias = (float *)(shared + BUFFERS * BUFFER);
	if (BIAS) stage_bias(a, bias, h);
	float lse[2 * R], delta[2 * R], dq[R][D / 8][4] = {};
	if constexpr (BUFFERS == 2) {
		row_lse<R>(a, lse, lo, h, i, n);
#pragma unroll
		for (int r = 0; r < R; r++) make_delta<D>(a, delta + 2 * r, o[r], lo, h, w0 + 16 * r, n);
	} else {
		row_numbers<R>(a, lse, delta, lo, h, i, n);
	}
	Range all = keys_of_all(a, w0, w0 + 16 * R - 1, n);
	for (int turn = 0; k0 < see.to; k0 += 8 * N, turn ^= BUFFERS - 1) {
		u16 *ks = shared + turn * BUFFER, *vs = ks + BUFFER / 2;
		wait_copies();
		Way::publish();
		__syncthreads();
		auto next = [&] {
			if (k0 + 8 * N < see.to) partners<Way, N>(a, shared + (turn ^ BUFFERS - 1) * BUFFER, k, a.sk, v, a.sv, k0 + 8 * N, n);
		};
		if (BUFFERS == 2 && (!Way::ASYNC || !works<Way>(w0, n))) next();
		if (works<Way>(w0, n)) {
			bool hidden = outside(all, k0, 8 * N);
			float s[R][N][4] = {}, dp[R][N][4] = {};
			if constexpr (BUFFERS == 2) {
				Way::template times_rows<N>(s, q, ks);
				Way::template times_rows<N>(dp, o, vs);
			} else {
				Way::template times_rows<N>(s, ownQ, ks);
				Way::template times_rows<N>(dp, ownO, vs);
			}
			if (Way::ASYNC) next();
			Way::settle(s, dp);
#pragma unroll
			for (int r = 0; r < R; r++) {
				score_gradients<D, BIAS, N>(a, s[r], dp[r], bias, lse + 2 * r, delta + 2 * r, b, h, i + 16 * r, k0);
				if (hidden) hide<N>(a, s[r], i + 16 * r, k0, n, 0.f);
			}
			Way::template times<N, D>(dq, s, ks);
			Way::settle(dq);
		}
		if (BUFFERS == 1) {
			__syncthreads();
			next();
		}
	}
#pragma unroll
	for (int r = 0; r < R; r++) {
		multiply<D>(dq[r], a.scale);
		store_rows<D>(a, (u16 *)a.dq + (size_t)lo * a.sdq + h * D, a.sdq, w0 + 16 * r, n, dq[r]);
	}
}

// own_query is which of a tile's queries a thread copies the numbers of, below 0 for none: a block has at least as many threads.
template <int N> DEVICE int own_query() { return (int)threadIdx.x - (int)(blockDim.x - 8 * N); }

// queries copies a tile of 8*N queries and their numbers, by the block's last threads, which copy no more rows than others. q, dctx, lse and delta
// are those of the sequence's first token.
template <class Way, int N>
DEVICE void queries(const Attention &a, u16 *to, float *numbers, const u16 *q, const u16 *dctx, const float *lse, const float *delta, int h, int first, int n) {
	partners<Way, N>(a, to, q + h * Way::D, a.sq, dctx + h * Way::D, a.sdctx, first, n);
	int i = own_query<N>(), r = first + i;
	if (i < 0) return;
	copy4(numbers + i, lse + (size_t)h * a.slse + r, r < n);
	copy4(numbers + 8 * N + i, delta + (size_t)h * a.sdelta + r, r < n);
}

// kept_by_key is what dropout keeps of a warp's keys from w0, for 8*N queries from q0: bit 4*(N*r + j) + e is that of element e of tile j of the
// warp's tile r. Two tiles of 8 queries by two groups of 8 keys are 32 calls of philox, one to a lane, and a byte of what the lanes ask for.
template <int R, int N> DEVICE u32 kept_by_key(const Attention &a, int b, int h, int w0, int q0) {
	static_assert(R * N <= 8, "a bit each");
	int lane = lane_id(), g = lane / 4, t = lane % 4;
	u32 all = 0, kept = 0;
#pragma unroll
	for (int r = 0; r < R; r++)
#pragma unroll
		for (int j = 0; j < N; j += 2) {
			int group = w0 / 8 + 2 * r + lane / 8 % 2, query = q0 + 8 * j + lane / 16 * 8 + lane % 8;
			all |= keep8(a.keys[b], group, query, h, a.site, a.threshold) << 8 * (r * N / 2 + j / 2);
		}
#pragma unroll
	for (int e = 0; e < 8; e++) kept |= (__shfl_sync(EVERY, all, e / 4 * 16 + e / 2 % 2 * 8 + 2 * t + e % 2) >> g & 0x01010101) << e;
	return kept;
}

// keep_elements zeroes what has no bit.
template <int N> DEVICE void keep_elements(float c[N][4], u32 kept) {
#pragma unroll
	for (int j = 0; j < N; j++)
#pragma unroll
		for (int e = 0; e < 4; e++)
			if (!(kept >> (4 * j + e) & 1)) c[j][e] = 0.f;
}

// key_gradients makes probabilities of scores s of keys g and g+8 and 8*N queries, and gradients of the scores, divided by the scale, of products dp
// of values and dctx.
template <int D, int N> DEVICE void key_gradients(const Attention &a, float s[N][4], float dp[N][4], const float *lse, const float *delta) {
	float c = unit<D>(a), byCap = by_cap<D>(a);
#pragma unroll
	for (int j = 0; j < N; j++)
#pragma unroll
		for (int e = 0; e < 4; e++) {
			int at = 8 * j + lane_id() % 4 * 2 + e % 2;
			float x = s[j][e];
			s[j][e] = power_of_two(x * c - lse[at]);
			dp[j][e] = s[j][e] * (dp[j][e] * a.keep - delta[at]) * bend<D>(x, byCap);
		}
}

// The gradients of a block's keys: scores are transposed, a row to a key. Query heads that share a key-value head come one after another.
template <class Way, bool BIAS> DEVICE void flash_backward_kv(const Attention &a) {
	const int D = Way::D, R = Way::R, N = Way::N, BUFFERS = D == 256 ? 1 : 2, BUFFER = 2 * 8 * N * Way::PITCH; // tiles of 8 queries
	const int W = D == 256 ? D / 2 : D; // features of the gradients
	DYNAMIC_SHARED(u16, buffers);
	float *numbers = (float *)(buffers + BUFFERS * BUFFER);
	int rows = blockDim.x / 2 * R;
	u16 *ks = (u16 *)(numbers + BUFFERS * 16 * N), *vs = ks + rows * Way::PITCH;
	int b = blockIdx.x, kv = blockIdx.y, k0 = blockIdx.z / (D / W) * rows, first = blockIdx.z % (D / W) * W, lo = a.cu[b], n = a.cu[b + 1] - lo;
	if (k0 >= n) return;
	int g = lane_id() / 4, t = lane_id() % 4, w0 = k0 + warp_id() * 16 * R;
	Range see = queries_of(a, k0, k0 + rows - 1, n);
	int h = kv * a.group, q0 = see.from;
	const u16 *ownK = head_of(a.k, a.sk, lo, kv * D), *ownV = head_of(a.v, a.sv, lo, kv * D);
	u32 k[R][D / 16][4], v[R][D / 16][4];
	float *bias = (float *)ks;
	if constexpr (Way::SHARED_KEYS) {
		tile<Way, true>(a, ks, ownK, a.sk, ownV, a.sv, k0, rows, n);
		ownK = ks + warp_id() * 16 * R * Way::PITCH, ownV = vs + warp_id() * 16 * R * Way::PITCH;
		bias = (float *)(vs + rows * Way::PITCH);
	} else {
#pragma unroll
		for (int r = 0; r < R; r++) {
			left_rows<D>(a, k[r], ownK, a.sk, w0 + 16 * r, n);
			left_rows<D>(a, v[r], ownV, a.sv, w0 + 16 * r, n);
		}
	}
	const u16 *q = head_of(a.q, a.sq, lo, 0), *dctx = head_of(a.dctx, a.sdctx, lo, 0);
	queries<Way, N>(a, buffers, numbers, q, dctx, a.lse + lo, a.delta + lo, h, q0, n);
	if (BIAS) stage_bias(a, bias, h); // no heads share keys then
	float dk[R][W / 8][4] = {}, dv[R][W / 8][4] = {};
	for (int turn = 0, last = h + a.group, nextH, nextQ; h < last; h = nextH, q0 = nextQ, turn ^= BUFFERS - 1) {
		u16 *qs = buffers + turn * BUFFER, *os = qs + BUFFER / 2;
		float *lse = numbers + turn * 16 * N, *delta = lse + 8 * N;
		nextH = h, nextQ = q0 + 8 * N;
		if (nextQ >= see.to) nextH++, nextQ = see.from;
		wait_copies();
		if (own_query<N>() >= 0) lse[own_query<N>()] *= LOG2E; // its own copy
		Way::publish();
		__syncthreads();
		auto next = [&] {
			int other = turn ^ BUFFERS - 1;
			if (nextH < last) queries<Way, N>(a, buffers + other * BUFFER, numbers + other * 16 * N, q, dctx, a.lse + lo, a.delta + lo, nextH, nextQ, n);
		};
		if (BUFFERS == 2 && (!Way::ASYNC || !works<Way>(w0, n))) next();
		if (works<Way>(w0, n)) {
			float s[R][N][4] = {}, dp[R][N][4] = {};
			if constexpr (Way::SHARED_KEYS) {
				Way::template times_rows<N>(s, ownK, qs);
				Way::template times_rows<N>(dp, ownV, os);
			} else {
				Way::template times_rows<N>(s, k, qs);
				Way::template times_rows<N>(dp, v, os);
			}
			if (Way::ASYNC) next();
			Way::settle(s, dp);
			// Queries from n on are zeros, and their gradients too, but for biases that exp makes infinite; keys from n on have no result.
			bool hidden = outside(queries_of_all(a, w0, w0 + 16 * R - 1, BIAS ? n : n + 8 * N), q0, 8 * N);
			u32 kept = a.keys ? kept_by_key<R, N>(a, b, h, w0, q0) : EVERY;
#pragma unroll
			for (int r = 0; r < R; r++) {
				capped<D, N>(a, s[r]);
				if (BIAS) add_bias<N>(a, s[r], bias, w0 + 16 * r + g - q0 - 2 * t, -1);
				if (a.keys) keep_elements<N>(dp[r], kept >> 4 * N * r);
				key_gradients<D, N>(a, s[r], dp[r], lse, delta);
				if (a.keys) keep_elements<N>(s[r], kept >> 4 * N * r);
				if (!hidden) continue;
#pragma unroll
				for (int j = 0; j < N; j++)
#pragma unroll
					for (int e = 0; e < 4; e++)
						if (!visible(a, q0 + 8 * j + 2 * t + e % 2, w0 + 16 * r + g + e / 2 * 8, n)) s[r][j][e] = dp[r][j][e] = 0.f;
			}
			Way::template times<N, W>(dv, s, os + first);
			Way::template times<N, W>(dk, dp, qs + first);
			Way::settle(dv, dk);
		}
		if (BUFFERS == 1) {
			__syncthreads();
			next();
		}
	}
	int column = kv * D + first;
#pragma unroll
	for (int r = 0; r < R; r++) {
		multiply<W>(dk[r], a.scale);
		multiply<W>(dv[r], a.keep);
		store_rows<W>(a, (u16 *)a.dk + (size_t)lo * a.sdk + column, a.sdk, w0 + 16 * r, n, dk[r]);
		store_rows<W>(a, (u16 *)a.dv + (size_t)lo * a.sdv + column, a.sdv, w0 + 16 * r, n, dv[r]);
	}
}
