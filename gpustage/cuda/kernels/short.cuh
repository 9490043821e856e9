// Flash.cuh's attention of sequences of up to 128 tokens: a block has a head's, and all of it in shared memory (short_backward: of short ones two heads').

// left_tile reads 16 rows of a tile from row on as left operands.
template <class Way> DEVICE void left_tile(u32 (&l)[1][Way::D / 16][4], const u16 *from, int row) {
	int m = lane_id() / 8, r = lane_id() % 8;
#pragma unroll
	for (int k = 0; k < Way::D / 16; k++) load_matrices(l[0][k], from + Way::place(row + m % 2 * 8 + r, 16 * k + m / 2 * 8));
}

// block_rows is how many rows of tiles such a sequence takes.
DEVICE int block_rows(int n) { return (n + 63) / 64 * 64; }

// The four warps of a block have 64 queries, and then those that are left. 12,232 tokens of 192 sequences and 12 heads of 64 features took 45 us on an
// H200, and with a block for each 64 queries, which reads keys and values again, 57. What dropout keeps was drawn in the loop then, and now is while rows
// are on their way.
template <class Way> DEVICE void short_forward(const Attention &a) {
	const int D = Way::D, N = Way::N;
	static_assert(Way::R == 1 && N == 8, "64 queries to four warps, by 64 keys");
	DYNAMIC_SHARED(u16, ks);
	int b = blockIdx.x, h = blockIdx.y, lo = a.cu[b], n = a.cu[b + 1] - lo, rows = block_rows(n);
	u64 key = key_of(a, b);
	u16 *vs = ks + rows * Way::PITCH, *qs = vs + rows * Way::PITCH;
	const u16 *ownQ = head_of(a.q, a.sq, lo, h * D);
	tile<Way, true>(a, ks, head_of(a.k, a.sk, lo, h * D), a.sk, head_of(a.v, a.sv, lo, h * D), a.sv, 0, rows, n, threadIdx.x, blockDim.x);
	tile<Way, false>(a, qs, ownQ, a.sq, ownQ, 0, 0, rows, n, threadIdx.x, blockDim.x);
	u32 kept[4] = {}; // of a warp's first queries: first keys, second keys; and of second ones. Moved along, as what is indexed is in memory
#pragma unroll 1
	for (int part = 0; part < 4; part++) {
		int w0 = warp_id() * 16 + part / 2 * 64, k0 = part % 2 * 8 * N;
		kept[0] = kept[1], kept[1] = kept[2], kept[2] = kept[3];
		if (works<Way>(w0, n) && k0 < n) kept[3] = keys_kept<N>(a, key, h, w0 + lane_id() / 4, k0);
	}
	wait_copies();
	Way::publish();
	__syncthreads();
#pragma unroll 1
	for (int w0 = warp_id() * 16; works<Way>(w0, n); w0 += 64) {
		Range all = keys_of_all(a, w0, w0 + 15, n);
		u32 q[1][D / 16][4];
		float o[1][D / 8][4] = {}, top[2] = {MINUS_INF, MINUS_INF}, z[2] = {};
		left_tile<Way>(q, qs, w0);
#pragma unroll 1
		for (int k0 = 0; k0 < n; k0 += 8 * N) {
			const u16 *k = ks + k0 * Way::PITCH, *v = vs + k0 * Way::PITCH;
			auto keptOf = [&](int) { return k0 ? kept[1] : kept[0]; };
			if (n - k0 <= 4 * N) forward_tile<Way, false, 4>(a, o, top, z, q, k, v, 0, w0, k0, n, outside(all, k0, 4 * N), keptOf, [] {});
			else forward_tile<Way, false, N>(a, o, top, z, q, k, v, 0, w0, k0, n, outside(all, k0, 8 * N), keptOf, [] {});
		}
		kept[0] = kept[2], kept[1] = kept[3];
		finish_forward<Way>(a, o, top, z, lo, h, w0, n);
	}
}

// The way back in one kernel, whose scores, powers and random numbers are made once: 5 products. A warp has 16 queries. For each 64 keys warps leave
// probabilities and gradients of the scores in shared memory, and after a barrier read them as columns: the first four warps for the gradient of the
// values, the next four, if there are, for that of the keys. Of sequences of up to 64 tokens a block of eight warps has two heads side by side, as four
// warps would have nothing to multiply.
//
// With a block for each head 12,232 tokens of 192 sequences and 12 heads of 64 features took 112 us on an H200, where 42 would issue all instructions
// and 36 move all bytes; by query and then by key they took 243. A warp waited for its rows five times, one after the other, and had 480 instructions
// for 16 queries and 32 keys. Now it waits once, and has drawn what dropout keeps by then, by some 67 instructions for so many; 240 are left. Neither this
// nor pairs of heads have been timed.

const int SCORES = 64; // keys

// score_place is where a score is: 16 bytes c of row r are at c ^ r, so that neither writing nor reading meets in a bank.
DEVICE u32 score_place(u32 row, u32 key) { return row * SCORES + (key / 8 ^ row % 8) * 8 + key % 8; }

// leave_scores writes left operands, the warp's rows from row on, to 32 columns from key on, a multiple of 32. Of its score_places the compiler makes
// 70 instructions; eight rows further only the row is another one.
DEVICE void leave_scores(u16 *to, const u32 (&l)[1][2][4], u32 row, u32 key) {
	u32 g = lane_id() / 4, t = lane_id() % 4;
	to += (row + g) * SCORES + (key / 8 ^ g & 4) * 8 + 2 * t;
#pragma unroll
	for (int c = 0; c < 4; c++) {
		u16 *at = to + (c ^ g & 3) * 8;
		*(u32 *)at = l[0][c / 2][c % 2 * 2], *(u32 *)(at + 8 * SCORES) = l[0][c / 2][c % 2 * 2 + 1];
	}
}

// left_scores reads columns key to key+15 of 16*K rows as left operands, of the matrix transposed. Rows of warps without queries are zeros.
template <int K> DEVICE void left_scores(u32 (&l)[1][K][4], const u16 *from, int row, int key, int n) {
	u32 m = lane_id() / 8, r = lane_id() % 8;
	from += score_place(row + m / 2 * 8 + r, key + m % 2 * 8);
#pragma unroll
	for (int k = 0; k < K; k++)
		if (row + 16 * k < n) load_transposed(l[0][k], from + 16 * k * SCORES);
}

// gradients_by_column makes the gradients of the values and keys from k0 on, of scores that are all there: groups of four warps take turns.
template <class Way>
DEVICE void gradients_by_column(const Attention &a, const u16 *ps, const u16 *gs, const u16 *qs, const u16 *os, int warp, int groups, int h, int lo, int k0,
                                int n) {
	const int D = Way::D;
	int key0 = warp % 4 * 16;
#pragma unroll 1
	for (int what = warp / 4; what < 2; what += groups) { // the gradient of the values, of the keys
		float d[1][D / 8][4] = {};
#pragma unroll 1
		for (int q0 = 0; q0 < n; q0 += 64) {
			u32 l[1][4][4] = {};
			if (k0 + key0 < n) left_scores<4>(l, what ? gs : ps, q0, key0, n);
			Way::template times_left<4, D>(d, l, (what ? qs : os) + q0 * Way::PITCH);
			Way::settle(d);
		}
		multiply<D>(d[0], what ? a.scale : a.keep);
		u16 *to = (u16 *)(what ? a.dk : a.dv);
		int stride = what ? a.sdk : a.sdv;
		store_rows<D>(a, to + (size_t)lo * stride + h * D, stride, k0 + key0, n, d[0]);
	}
}

// chunk_row is a lane's row, of eight, where tiles in shared memory are read by chunks: eight lanes have two rows, whose banks differ when they are four
// apart. chunk_products makes <dctx, ctx> of queries i and i+8, of a tile and of what row_chunks has read of ctx, rows as chunk_row says.
DEVICE int chunk_row() { return lane_id() / 4 % 2 * 4 + lane_id() / 8; }
template <class Way> DEVICE void chunk_products(float delta[2], const u16 *from, const u32 (&ctx)[2][Way::D / 32][4], int row) {
	int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
	for (int half = 0; half < 2; half++) {
		float sum = 0.f;
#pragma unroll
		for (int k = 0; k < Way::D / 32; k++) {
			uint4 o = *(const uint4 *)(from + Way::place(row + chunk_row() + 8 * half, 32 * k + 8 * t));
			const u32 *c = ctx[half][k];
			sum += dot_pairs(o.x, c[0]) + dot_pairs(o.y, c[1]) + dot_pairs(o.z, c[2]) + dot_pairs(o.w, c[3]);
		}
		sum += __shfl_xor_sync(EVERY, sum, 1);
		sum += __shfl_xor_sync(EVERY, sum, 2);
		delta[half] = __shfl_sync(EVERY, sum, g % 4 * 8 + g / 4 * 4); // of the lanes with row g
	}
}

// short_backward_head is that of a head, by so many threads, a multiple of 128, whose first has number 0.
template <class Way> DEVICE void short_backward_head(const Attention &a, u16 *qs, int thread, int threads, u64 key, int h, int lo, int n) {
	const int D = Way::D, N = Way::N, K = N / 2; // tiles of 8 keys, half of SCORES
	static_assert(Way::R == 1 && 2 * 8 * N == SCORES && D < 256, "16 queries to a warp, and no soft cap");
	int rows = block_rows(n), warp = thread / WARP, w0 = warp * 16, i = w0 + lane_id() / 4;
	u16 *os = qs + rows * Way::PITCH, *ks = os + rows * Way::PITCH, *vs = ks + rows * Way::PITCH, *ps = vs + rows * Way::PITCH, *gs = ps + rows * SCORES;
	tile<Way, true>(a, ks, head_of(a.k, a.sk, lo, h * D), a.sk, head_of(a.v, a.sv, lo, h * D), a.sv, 0, rows, n, thread, threads);
	tile<Way, true>(a, qs, head_of(a.q, a.sq, lo, h * D), a.sq, head_of(a.dctx, a.sdctx, lo, h * D), a.sdctx, 0, rows, n, thread, threads);
	u32 own[1][D / 16][4], ctx[2][D / 32][4];
	row_chunks<D>(a, ctx, head_of(a.ctx, a.sctx, lo, h * D), a.sctx, w0 + chunk_row(), n);
	float lse[2], delta[2], dq[1][D / 8][4] = {};
#pragma unroll
	for (int half = 0; half < 2; half++) lse[half] = a.lse[(size_t)h * a.slse + lo + min(i + 8 * half, n - 1)]; // row_lse would wait for it here
	bool mine = works<Way>(w0, n);
	Range all = keys_of_all(a, w0, w0 + 15, n);
	u32 first = 0, second = 0; // what dropout keeps of SCORES keys each, drawn in a loop, which is half as many instructions to fetch
#pragma unroll 1
	for (int k0 = 0; mine && k0 < 2 * SCORES; k0 += SCORES) {
		first = second;
		if (k0 < n) second = keys_kept<2 * N>(a, key, h, i, k0);
	}
	wait_copies();
	Way::publish();
	__syncthreads();
#pragma unroll
	for (int half = 0; half < 2; half++) lse[half] = i + 8 * half < n ? lse[half] * LOG2E : 0.f;
	if (mine) chunk_products<Way>(delta, os, ctx, w0);
	for (int k0 = 0; k0 < n; k0 += SCORES) {
		u32 kept = k0 ? second : first;
		for (int j = k0; mine && j < min(n, k0 + SCORES); j += 8 * N, kept >>= N) {
			float p[1][N][4] = {}, ds[1][N][4] = {}, bends[N][4];
			left_tile<Way>(own, qs, w0);
			Way::template times_rows<N>(p, own, ks + j * Way::PITCH);
			Way::settle(p);
			left_tile<Way>(own, os, w0);
			Way::template times_rows<N>(ds, own, vs + j * Way::PITCH);
			powers_by_query<D, false, N>(a, p[0], bends, 0, lse, i, j);
			Way::settle(ds);
			gradients_by_query<N, true>(a, ds[0], p[0], bends, delta, kept);
			if (outside(all, j, 8 * N)) hide<N>(a, p[0], i, j, n, 0.f), hide<N>(a, ds[0], i, j, n, 0.f);
			u32 l[1][2][4];
#pragma unroll
			for (int k = 0; k < K; k++) left_of(l[0][k], p[0], k);
			leave_scores(ps, l, w0, j - k0);
#pragma unroll
			for (int k = 0; k < K; k++) left_of(l[0][k], ds[0], k);
			leave_scores(gs, l, w0, j - k0);
			Way::template times_left<K, D>(dq, l, ks + j * Way::PITCH);
			Way::settle(dq);
		}
		Way::publish(); // not that wgmma reads scores: what is written is published, everywhere
		__syncthreads();
		gradients_by_column<Way>(a, ps, gs, qs, os, warp, threads / 128, h, lo, k0, n);
		if (k0 + SCORES < n) __syncthreads(); // its scores have been read
	}
	if (!mine) return;
	multiply<D>(dq[0], a.scale);
	store_rows<D>(a, (u16 *)a.dq + (size_t)lo * a.sdq + h * D, a.sdq, w0, n, dq[0]);
}

template <class Way> DEVICE void short_backward(const Attention &a) {
	DYNAMIC_SHARED(u16, shared);
	int b = blockIdx.x, h = blockIdx.y, lo = a.cu[b], n = a.cu[b + 1] - lo;
	if (n == 0) return;
	u64 key = key_of(a, b);
	bool pair = blockDim.x > 128 && n <= 64 && a.heads % 2 == 0;
	int threads = pair ? 128 : blockDim.x, team = pair ? warp_id() / 4 : 0;
	if (pair && h % 2) return; // all of the block: the one of the head before has this head as well
	int room = 64 * (4 * Way::PITCH + 2 * SCORES); // of a head whose sequence is so short
	short_backward_head<Way>(a, shared + team * room, threadIdx.x - team * threads, threads, key, h + team, lo, n);
}
