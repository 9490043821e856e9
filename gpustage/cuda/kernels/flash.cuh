// Attention in bf16 on tensor cores, for head sizes 32, 64, 128 and 256: FlashAttention-2 (Dao, arXiv 2307.08691) on packed sequences, causal or not,
// with windows, grouped heads and dropout, at 256 features with soft caps, at 64 with biases of positions (MPNet's). Tensors are bf16; scores
// and sums are f32, and outputs are rounded once.
//
// A block has rows of one sequence and head and walks over tiles of partners. How it multiplies is a Way: by warps, from sm_80 on (flash.cu), or by
// warpgroups, on Hopper (hopper.cu). In both a warp has R tiles of 16 rows, and fragments are the same, for lane = 4*g + t: rows g and g+8 of the
// left operand and the accumulator, columns 2t and 2t+1 (and 8 more) of it. Accumulators of a product have the layout of the next one's left operand, so
// probabilities stay in registers. The backward pass is two kernels, by query and by key, which costs 7 products instead of 5 and gives the same
// bits every time: FlashAttention's one kernel adds dq atomically. What dropout keeps the first draws and the second reads, n^2/8 bytes of a sequence and head.
// Of sequences of up to 128 tokens a block has all, and it is one kernel with 5 (short.cuh).
//
// Tiles come to shared memory by copies that no thread waits for until it needs them (cp.async), into two buffers in turns: while one
// is multiplied the next tile is on its way, and one barrier a tile says both that it is there and that the other buffer is free.
//
// A Way has
//
//	D, R, N                        features, tiles of 16 rows of a warp, 8*N partners of a tile
//	PITCH, place(row, d)           elements of shared memory that a row of a tile takes, and where one is in its tile: so many rows of a block's
//	                               threads further (blockDim/(D/8)) it is as many PITCH further
//	SHARED_QUERIES                 whether the block's own are in shared memory on the way forward, for want of registers; by key its keys are
//	ASYNC                          whether products are under way until settle; meanwhile the next tile's copies are begun, and otherwise before them
//	first_row(w0)                  of the rows that multiply together with the warp's from w0
//	publish()                      comes between writing to shared memory and the barrier
//	times_rows<N>(c, a, x)         c = a x^T for 8*N rows of x, where c is 0
//	times<N, W>(c, p, x)           c += p x for W columns of the 8*N rows of x, p accumulators
//	times_left<K, W>(c, l, x)      c += l x for W columns of the 16*K rows of x, l left operands, where R is 1
//	settle(c...)                   waits for such products; settle_first(c) for all but the last ones
#include "attention.cuh"

// load_matrices reads four 8x8 matrices: lane 8*m + r has the address of row r of matrix m.
DEVICE void load_matrices(u32 r[4], const u16 *row) {
#ifdef HOST_CUDA
	host_ldmatrix(r, row, false);
#else
	u32 at = (u32)__cvta_generic_to_shared(row);
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
#endif
}

// load_transposed is load_matrices with each matrix transposed.
DEVICE void load_transposed(u32 r[4], const u16 *row) {
#ifdef HOST_CUDA
	host_ldmatrix(r, row, true);
#else
	u32 at = (u32)__cvta_generic_to_shared(row);
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
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

// tile copies rows first to first+count of a head of x into shared memory, 16 bytes to each of so many threads, and behind them those of y, if there is
// a y; rows from n on are zero. They are there after wait_copies and a barrier.
template <class Way, bool BOTH>
DEVICE void tile(const Attention &a, u16 *to, const u16 *x, int sx, const u16 *y, int sy, int first, int count, int n, int thread, int threads) {
	const int D = Way::D;
	int d = thread % (D / 8) * 8, own = thread / (D / 8), step = threads / (D / 8);
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
	tile<Way, true>(a, to, x, sx, y, sy, first, 8 * N, n, threadIdx.x, blockDim.x);
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

// row_chunks reads of two rows of a head, row and row+8, what a lane moves. With vec all is under way before anything is needed.
template <int D> DEVICE void row_chunks(const Attention &a, u32 v[2][D / 32][4], const u16 *from, int stride, int row, int n) {
	int t = lane_id() % 4;
#pragma unroll
	for (int half = 0; half < 2; half++) {
		int r = row + half * 8;
		const u16 *p = from + (size_t)r * stride + 8 * t;
#pragma unroll
		for (int k = 0; k < D / 32; k++) {
			u32 *to = v[half][k];
			to[0] = to[1] = to[2] = to[3] = 0;
			if (r >= n || !a.vec) continue;
			uint4 all = *(const uint4 *)(p + 32 * k);
			to[0] = all.x, to[1] = all.y, to[2] = all.z, to[3] = all.w;
		}
	}
	if (a.vec) return;
#pragma unroll
	for (int half = 0; half < 2; half++) {
		int r = row + half * 8;
		const u16 *p = from + (size_t)r * stride + 8 * t;
#pragma unroll
		for (int k = 0; k < D / 32; k++)
#pragma unroll
			for (int i = 0; i < 4; i++)
				if (r < n) v[half][k][i] = p[32 * k + 2 * i] | (u32)p[32 * k + 2 * i + 1] << 16;
	}
}

// left_rows reads the warp's 16 rows of a head as left operands, from memory.
template <int D> DEVICE void left_rows(const Attention &a, u32 f[D / 16][4], const u16 *from, int stride, int row, int n) {
	u32 v[2][D / 32][4];
	row_chunks<D>(a, v, from, stride, row + lane_id() / 4, n);
#pragma unroll
	for (int half = 0; half < 2; half++)
#pragma unroll
		for (int k = 0; k < D / 32; k++) {
			exchange(v[half][k]);
#pragma unroll
			for (int i = 0; i < 4; i++) f[2 * k + i / 2][i % 2 * 2 + half] = v[half][k][i];
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

// A lane's 4*N elements of a warp's 16 queries and 8*N keys have a bit each that says what dropout keeps, in a word. Its bytes are of
//
//	query i, even tiles | query i+8, even tiles | query i, odd tiles | query i+8, odd tiles
//
// with two bits of each tile. Sixteen keys of a query are one call of philox (keep16). draw makes it for two tiles and both queries in each of four lanes,
// or of four tiles for one query in each, and the lanes with query i get what those with i+8 have: a byte is of the eight keys of one tile then. share
// exchanges two bits of each byte among the four, lane t getting the t-th ones of each. kept_bit is the bit of element e of tile j.
DEVICE constexpr u32 kept_bit(int j, int e) { return 1u << (8 * (j % 2 * 2 + e / 2) + j / 2 * 2 + e % 2); }
const u32 ALL_KEPT = 0xffffffff;
template <int N> DEVICE u32 draw(const Attention &a, u64 key, int h, int i, int j) {
	static_assert(N == 4 || N == 8, "a bit each");
	int t = lane_id() % 4, group = j / 16 + t % (N / 2);
	u32 one = keep16(key, group, N == 8 ? i : i + t / 2 * 8, h, a.site, a.threshold);
	u32 other = N == 8 ? keep16(key, group, i + 8, h, a.site, a.threshold) : __shfl_xor_sync(EVERY, one, 2);
	return __byte_perm(one, other, 0x6240);
}
DEVICE u32 share(u32 all) {
	int t = lane_id() % 4;
	u32 mine = t & 1 ? 0xcccccccc : 0x33333333, theirs = __shfl_xor_sync(EVERY, all, 1) & mine;
	all = all & mine | (t & 1 ? theirs >> 2 : theirs << 2);
	mine = t & 2 ? 0xf0f0f0f0 : 0x0f0f0f0f, theirs = __shfl_xor_sync(EVERY, all, 2) & mine;
	return all & mine | (t & 2 ? theirs >> 4 : theirs << 4);
}

// The way back draws by query, and leaves for what comes by key what it has drawn, a bit for each pair: of each head and sequence, whose words drawn_of
// finds, 32 keys of all n queries after 32 keys of all. leave_drawn writes those of queries i and i+8 and of 8*N keys from j, a multiple of 32. Two lanes
// have two bytes each of two words; each gets one of them and writes it.
DEVICE u32 *drawn_of(const Attention &a, int h, int lo) { return (u32 *)a.kept + ((size_t)h * a.tokens + lo) * a.skept; }
template <int N> DEVICE void leave_drawn(u32 all, u32 *drawn, int i, int j, int n) {
	int t = lane_id() % 4, row = i + t % 2 * 8;
	u32 theirs = __shfl_xor_sync(EVERY, all, 1);
	all = __byte_perm(all, theirs, t % 2 ? 0x3175 : 0x6420);
	if (t / 2 * 4 < N && row < n) drawn[(size_t)(j / 32 + t / 2) * n + row] = all;
}

// choose is x where a bit is set, and else y. Of C++ the compiler makes three instructions of asking for the bit.
DEVICE float choose(u32 bits, u32 bit, float x, float y) {
#ifdef HOST_CUDA
	return bits & bit ? x : y;
#else
	float z;
	asm("{.reg .pred p; .reg .b32 t; and.b32 t, %3, %4; setp.ne.u32 p, t, 0; selp.f32 %0, %1, %2, p;}" : "=f"(z) : "f"(x), "f"(y), "r"(bits), "r"(bit));
	return z;
#endif
}

// keep_elements zeroes what has no bit.
template <int N> DEVICE void keep_elements(float c[N][4], u32 kept) {
#pragma unroll
	for (int j = 0; j < N; j++)
#pragma unroll
		for (int e = 0; e < 4; e++)
			c[j][e] = choose(kept, kept_bit(j, e), c[j][e], 0.f);
}

// key_of is the key of a block's sequence.
DEVICE u64 key_of(const Attention &a, int b) {
	return a.keys ? a.keys[b] : 0;
}

// keys_kept is what dropout keeps, if anything is dropped. It is made while nothing else could be done: while products or copies are under way.
template <int N> DEVICE u32 keys_kept(const Attention &a, u64 key, int h, int i, int j) { return a.keys ? share(draw<N>(a, key, h, i, j)) : ALL_KEPT; }

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
// values. Queries are in registers or in shared memory; keptOf(r) is what dropout keeps of the warp's tile r.
template <class Way, bool BIAS, int N, class Queries, class Kept, class Copy>
DEVICE void forward_tile(const Attention &a, float (&o)[Way::R][Way::D / 8][4], float top[2 * Way::R], float z[2 * Way::R], const Queries &q, const u16 *ks, const u16 *vs,
                         const float *bias, int w0, int k0, int n, bool hidden, Kept keptOf, Copy next) {
	const int D = Way::D, R = Way::R;
	int i = w0 + lane_id() / 4;
	float s[R][N][4] = {}, c = unit<D>(a);
	Way::template times_rows<N>(s, q, ks);
	if (Way::ASYNC) next();
	u32 kept = R == 1 ? keptOf(0) : 0; // while products are under way; of more tiles registers don't suffice for it as early
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
		if (a.keys) keep_elements<N>(s[r], R == 1 ? kept : keptOf(r));
	}
	Way::template times<N, D>(o, s, vs);
	Way::settle(o);
}

// finish_forward writes what a warp's queries from w0 got.
template <class Way>
DEVICE void finish_forward(const Attention &a, float (&o)[Way::R][Way::D / 8][4], const float top[2 * Way::R], const float z[2 * Way::R], int lo, int h,
                           int w0, int n) {
	const int D = Way::D;
	float c = unit<D>(a);
#pragma unroll
	for (int r = 0; r < Way::R; r++) {
#pragma unroll
		for (int half = 0; half < 2; half++) {
			int row = w0 + lane_id() / 4 + 16 * r + 8 * half;
			float sum = z[2 * r + half] + __shfl_xor_sync(EVERY, z[2 * r + half], 1);
			sum += __shfl_xor_sync(EVERY, sum, 2);
			float f = a.keep * reciprocal(sum);
#pragma unroll
			for (int d = 0; d < D / 8; d++) o[r][d][2 * half] *= f, o[r][d][2 * half + 1] *= f;
			if (row < n && lane_id() % 4 == 0) a.lse[(size_t)h * a.slse + lo + row] = top[2 * r + half] * c / LOG2E + logf(sum);
		}
		store_rows<D>(a, (u16 *)a.ctx + (size_t)lo * a.sctx + h * D, a.sctx, w0 + 16 * r, n, o[r]);
	}
}

template <class Way, bool BIAS> DEVICE void flash_forward(const Attention &a) {
	const int D = Way::D, R = Way::R, N = Way::N, BUFFER = 2 * 8 * N * Way::PITCH; // tiles of 8 keys
	DYNAMIC_SHARED(u16, shared);
	int b = blockIdx.x, h = blockIdx.y, rows = blockDim.x / 2 * R, q0 = blockIdx.z * rows, lo = a.cu[b], n = a.cu[b + 1] - lo;
	if (q0 >= n) return;
	u64 key = key_of(a, b);
	int w0 = q0 + warp_id() * 16 * R;
	const u16 *k = head_of(a.k, a.sk, lo, h / a.group * D), *v = head_of(a.v, a.sv, lo, h / a.group * D);
	Range see = keys_of(a, q0, q0 + rows - 1, n);
	int k0 = see.from / 16 * 16;
	partners<Way, N>(a, shared, k, a.sk, v, a.sv, k0, n);
	const u16 *ownQ = head_of(a.q, a.sq, lo, h * D);
	u32 q[R][D / 16][4];
	if (Way::SHARED_QUERIES) {
		u16 *own = shared + 2 * BUFFER;
		tile<Way, false>(a, own, ownQ, a.sq, ownQ, 0, q0, rows, n, threadIdx.x, blockDim.x);
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
		auto keptOf = [&](int r) { return keys_kept<N>(a, key, h, w0 + lane_id() / 4 + 16 * r, k0); };
		auto keptOfHalf = [&](int r) { return keys_kept<4>(a, key, h, w0 + lane_id() / 4 + 16 * r, k0); };
		if constexpr (Way::SHARED_QUERIES) forward_tile<Way, BIAS, N>(a, o, top, z, ownQ, ks, vs, bias, w0, k0, n, hidden, keptOf, next);
		else if (N == 8 && see.to - k0 <= 4 * N) forward_tile<Way, BIAS, 4>(a, o, top, z, q, ks, vs, bias, w0, k0, n, hidden, keptOfHalf, [] {}); // the last
		else forward_tile<Way, BIAS, N>(a, o, top, z, q, ks, vs, bias, w0, k0, n, hidden, keptOf, next);
	}
	finish_forward<Way>(a, o, top, z, lo, h, w0, n);
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

// products_of_rows makes <dctx, ctx> of queries i and i+8, both left operands.
template <int D> DEVICE void products_of_rows(float delta[2], const u32 o[D / 16][4], const u32 ctx[D / 16][4]) {
#pragma unroll
	for (int half = 0; half < 2; half++) {
		float sum = 0.f;
#pragma unroll
		for (int k = 0; k < D / 16; k++) sum += dot_pairs(o[k][half], ctx[k][half]) + dot_pairs(o[k][half + 2], ctx[k][half + 2]);
		sum += __shfl_xor_sync(EVERY, sum, 1);
		delta[half] = sum + __shfl_xor_sync(EVERY, sum, 2);
	}
}

// make_delta makes <dctx, ctx> of queries i and i+8, of dctx in registers, and leaves it for the kernels that come after. In a pass of its own it
// would read dctx once more, and is one launch more.
template <int D> DEVICE void make_delta(const Attention &a, float delta[2], const u32 o[D / 16][4], int lo, int h, int w0, int n) {
	u32 ctx[D / 16][4];
	left_rows<D>(a, ctx, head_of(a.ctx, a.sctx, lo, h * D), a.sctx, w0, n);
	products_of_rows<D>(delta, o, ctx);
#pragma unroll
	for (int half = 0; half < 2; half++) {
		int row = w0 + lane_id() / 4 + 8 * half;
		if (row < n && lane_id() % 4 == 0) a.delta[(size_t)h * a.sdelta + lo + row] = delta[half];
	}
}

// powers_by_query makes probabilities of products of queries i and i+8 and 8*N keys from k0, and where there is a cap its derivatives.
template <int D, bool BIAS, int N>
DEVICE void powers_by_query(const Attention &a, float s[N][4], float bends[N][4], const float *bias, const float lse[2], int i, int k0) {
	float c = unit<D>(a), byCap = by_cap<D>(a);
	capped<D, N>(a, s);
	if (BIAS) add_bias<N>(a, s, bias, k0 + lane_id() % 4 * 2 - i, 1);
#pragma unroll
	for (int j = 0; j < N; j++)
#pragma unroll
		for (int e = 0; e < 4; e++) bends[j][e] = bend<D>(s[j][e], byCap), s[j][e] = power_of_two(s[j][e] * c - lse[e / 2]);
}

// gradients_by_query makes gradients of the scores, divided by the scale, of products of dctx and values. A bit tells whether dropout keeps an element;
// with DROP it is of the probabilities as well.
template <int N, bool DROP>
DEVICE void gradients_by_query(const Attention &a, float ds[N][4], float p[N][4], const float bends[N][4], const float delta[2], u32 kept) {
#pragma unroll
	for (int j = 0; j < N; j++)
#pragma unroll
		for (int e = 0; e < 4; e++) {
			float above = fmaf(ds[j][e], a.keep, -delta[e / 2]);
			ds[j][e] = p[j][e] * choose(kept, kept_bit(j, e), above, -delta[e / 2]) * bends[j][e];
			if (DROP) p[j][e] = choose(kept, kept_bit(j, e), p[j][e], 0.f);
		}
}

template <class Way, bool BIAS> DEVICE void flash_backward_q(const Attention &a) {
	const int D = Way::D, R = Way::R, N = Way::N, BUFFERS = D == 256 ? 1 : 2, BUFFER = 2 * 8 * N * Way::PITCH; // tiles of 8 keys
	static_assert(!Way::ASYNC || BUFFERS == 2, "copies come before the products' end");
	DYNAMIC_SHARED(u16, shared);
	int b = blockIdx.x, h = blockIdx.y, rows = blockDim.x / 2 * R, q0 = blockIdx.z * rows, lo = a.cu[b], n = a.cu[b + 1] - lo;
	if (q0 >= n) return;
	u64 key = key_of(a, b);
	int w0 = q0 + warp_id() * 16 * R, i = w0 + lane_id() / 4;
	const u16 *k = head_of(a.k, a.sk, lo, h / a.group * D), *v = head_of(a.v, a.sv, lo, h / a.group * D);
	Range see = keys_of(a, q0, q0 + rows - 1, n);
	int k0 = see.from / 32 * 32;
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
		tile<Way, true>(a, own, ownQ, a.sq, ownO, a.sdctx, q0, rows, n, threadIdx.x, blockDim.x);
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
	u32 *drawn = drawn_of(a, h, lo);
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
			u32 kept[R];
#pragma unroll
			for (int r = 0; r < R; r++) {
				kept[r] = ALL_KEPT;
				if (!a.keys) continue;
				u32 all = draw<N>(a, key, h, i + 16 * r, k0);
				leave_drawn<N>(all, drawn, i + 16 * r, k0, n);
				kept[r] = share(all);
			}
			Way::settle_first(s);
			float bends[R][N][4];
#pragma unroll
			for (int r = 0; r < R; r++) powers_by_query<D, BIAS, N>(a, s[r], bends[r], bias, lse + 2 * r, i + 16 * r, k0);
			Way::settle(dp);
#pragma unroll
			for (int r = 0; r < R; r++) {
				gradients_by_query<N, false>(a, dp[r], s[r], bends[r], delta + 2 * r, kept[r]);
				if (hidden) hide<N>(a, dp[r], i + 16 * r, k0, n, 0.f);
			}
			Way::template times<N, D>(dq, dp, ks);
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

// Numbers of 8*N queries are their log-sum-exps, <dctx, ctx>, and DRAWN words each of what has been drawn for a block's keys.
const int DRAWN = 6; // of 192 keys
DEVICE constexpr int number_floats(int N) { return 8 * N * (2 + DRAWN); }

// queries copies a tile of 8*N queries and their numbers for keys from k0 on, log-sum-exps by the block's last threads, which copy no more rows than others.
// q, dctx, lse and delta are those of the sequence's first token, which is lo.
template <class Way, int N>
DEVICE void queries(const Attention &a, u16 *to, float *numbers, const u16 *q, const u16 *dctx, const float *lse, const float *delta, int h, int first, int n,
                    int lo, int k0) {
	partners<Way, N>(a, to, q + h * Way::D, a.sq, dctx + h * Way::D, a.sdctx, first, n);
	if (a.keys) {
		const u32 *from = drawn_of(a, h, lo) + first;
		for (int w = threadIdx.x; w < 8 * N * DRAWN; w += blockDim.x) {
			int r = w % (8 * N), keys = k0 / 32 + w / (8 * N);
			copy4(numbers + 16 * N + w, from + (size_t)keys * n + r, first + r < n && 32 * keys < n);
		}
	}
	int i = own_query<N>(), r = first + i;
	if (i < 0) return;
	copy4(numbers + i, lse + (size_t)h * a.slse + r, r < n);
	copy4(numbers + 8 * N + i, delta + (size_t)h * a.sdelta + r, r < n);
}

// kept_by_key is what dropout keeps of a warp's keys, bits of the 8*N queries' words from the key's place on. key_bit is the bit of element e of tile j, of
// the warp's first tile; those of a second one are 16 bits further.
DEVICE constexpr u32 key_bit(int j, int e) { return 1u << (8 * (e / 2) + 2 * j + e % 2); }
template <int R, int N> DEVICE u32 kept_by_key(const u32 *words, int place) {
	static_assert(N <= 4 && R <= 2, "a bit each");
	const u32 MINE = R == 2 ? 0x01010101 : 0x0101; // keys are a byte apart
	u32 kept = 0;
#pragma unroll
	for (int j = 0; j < N; j++) {
		uint2 two = *(const uint2 *)(words + 8 * j + lane_id() % 4 * 2);
		kept |= (two.x >> place & MINE) << 2 * j | (two.y >> place & MINE) << (2 * j + 1);
	}
	return kept;
}

// powers_by_key and gradients_by_key are powers_by_query and gradients_by_query, with DROP, of scores of keys g and g+8 and 8*N queries.
template <int D, int N> DEVICE void powers_by_key(const Attention &a, float s[N][4], float bends[N][4], const float *lse) {
	float c = unit<D>(a), byCap = by_cap<D>(a);
	capped<D, N>(a, s);
#pragma unroll
	for (int j = 0; j < N; j++)
#pragma unroll
		for (int e = 0; e < 4; e++) bends[j][e] = bend<D>(s[j][e], byCap), s[j][e] = power_of_two(s[j][e] * c - lse[8 * j + lane_id() % 4 * 2 + e % 2]);
}
template <int N>
DEVICE void gradients_by_key(const Attention &a, float ds[N][4], float p[N][4], const float bends[N][4], const float *delta, u32 kept) {
#pragma unroll
	for (int j = 0; j < N; j++)
#pragma unroll
		for (int e = 0; e < 4; e++) {
			float mean = delta[8 * j + lane_id() % 4 * 2 + e % 2], above = fmaf(ds[j][e], a.keep, -mean);
			ds[j][e] = p[j][e] * choose(kept, key_bit(j, e), above, -mean) * bends[j][e];
			p[j][e] = choose(kept, key_bit(j, e), p[j][e], 0.f);
		}
}

// The gradients of a block's keys: scores are transposed, a row to a key. Query heads that share a key-value head come one after another. A tile's
// queries are multiplied 8*P at a time.
template <class Way, bool BIAS, int P> DEVICE void flash_backward_kv(const Attention &a) {
	const int D = Way::D, R = Way::R, N = Way::N, BUFFERS = D == 256 ? 1 : 2, BUFFER = 2 * 8 * N * Way::PITCH; // tiles of 8 queries
	const int W = D == 256 ? D / 2 : D; // features of the gradients
	DYNAMIC_SHARED(u16, buffers);
	float *numbers = (float *)(buffers + BUFFERS * BUFFER);
	int rows = blockDim.x / 2 * R;
	u16 *ks = (u16 *)(numbers + BUFFERS * number_floats(N)), *vs = ks + rows * Way::PITCH;
	int b = blockIdx.x, kv = blockIdx.y, k0 = blockIdx.z / (D / W) * rows, first = blockIdx.z % (D / W) * W, lo = a.cu[b], n = a.cu[b + 1] - lo;
	if (k0 >= n) return;
	int g = lane_id() / 4, t = lane_id() % 4, w0 = k0 + warp_id() * 16 * R;
	Range see = queries_of(a, k0, k0 + rows - 1, n);
	int h = kv * a.group, q0 = see.from;
	tile<Way, true>(a, ks, head_of(a.k, a.sk, lo, kv * D), a.sk, head_of(a.v, a.sv, lo, kv * D), a.sv, k0, rows, n, threadIdx.x, blockDim.x);
	const u16 *ownK = ks + warp_id() * 16 * R * Way::PITCH, *ownV = vs + warp_id() * 16 * R * Way::PITCH;
	float *bias = (float *)(vs + rows * Way::PITCH);
	const u16 *q = head_of(a.q, a.sq, lo, 0), *dctx = head_of(a.dctx, a.sdctx, lo, 0);
	queries<Way, N>(a, buffers, numbers, q, dctx, a.lse + lo, a.delta + lo, h, q0, n, lo, k0);
	if (BIAS) stage_bias(a, bias, h); // no heads share keys then
	float dk[R][W / 8][4] = {}, dv[R][W / 8][4] = {};
	for (int turn = 0, last = h + a.group, nextH, nextQ; h < last; h = nextH, q0 = nextQ, turn ^= BUFFERS - 1) {
		u16 *qs = buffers + turn * BUFFER, *os = qs + BUFFER / 2;
		float *lse = numbers + turn * number_floats(N), *delta = lse + 8 * N;
		const u32 *drawn = (u32 *)(delta + 8 * N) + (w0 / 32 - k0 / 32) * 8 * N;
		nextH = h, nextQ = q0 + 8 * N;
		if (nextQ >= see.to) nextH++, nextQ = see.from;
		wait_copies();
		if (own_query<N>() >= 0) lse[own_query<N>()] *= LOG2E; // its own copy
		Way::publish();
		__syncthreads();
		auto next = [&] {
			int other = turn ^ BUFFERS - 1;
			if (nextH >= last) return;
			queries<Way, N>(a, buffers + other * BUFFER, numbers + other * number_floats(N), q, dctx, a.lse + lo, a.delta + lo, nextH, nextQ, n, lo, k0);
		};
		if (BUFFERS == 2 && (!Way::ASYNC || !works<Way>(w0, n))) next();
		if (works<Way>(w0, n)) {
#pragma unroll 1
			for (int part = 0; part < 8 * N && q0 + part < see.to; part += 8 * P) {
				int qp = q0 + part;
				const u16 *qt = qs + part * Way::PITCH, *ot = os + part * Way::PITCH;
				float s[R][P][4] = {}, dp[R][P][4] = {}, bends[R][P][4];
				Way::template times_rows<P>(s, ownK, qt);
				if (Way::ASYNC && part == 0) next();
				u32 kept = a.keys ? kept_by_key<R, P>(drawn + part, w0 % 32 + g) : ALL_KEPT;
				Way::settle(s);
				Way::template times_rows<P>(dp, ownV, ot);
#pragma unroll
				for (int r = 0; r < R; r++) {
					if (BIAS) add_bias<P>(a, s[r], bias, w0 + 16 * r + g - qp - 2 * t, -1);
					powers_by_key<D, P>(a, s[r], bends[r], lse + part);
				}
				Way::settle(dp);
				// Queries from n on are zeros, and their gradients too, but for biases that exp makes infinite; keys from n on have no result.
				bool hidden = outside(queries_of_all(a, w0, w0 + 16 * R - 1, BIAS ? n : n + 8 * N), qp, 8 * P);
#pragma unroll
				for (int r = 0; r < R; r++) {
					gradients_by_key<P>(a, dp[r], s[r], bends[r], delta + part, kept >> 16 * r);
					if (!hidden) continue;
#pragma unroll
					for (int j = 0; j < P; j++)
#pragma unroll
						for (int e = 0; e < 4; e++)
							if (!visible(a, qp + 8 * j + 2 * t + e % 2, w0 + 16 * r + g + e / 2 * 8, n)) s[r][j][e] = dp[r][j][e] = 0.f;
				}
				Way::template times<P, W>(dv, s, ot + first);
				Way::template times<P, W>(dk, dp, qt + first);
				Way::settle(dv, dk);
			}
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
