// Attention of f32 tensors, and of bf16 ones whatever flash.cu does not cover: any head size up to 256, with soft caps or biases of positions.
// Arithmetic is f32, on values rounded to bf16 where the call says so. Never a T x T matrix: a block has 16*R rows (queries, or keys for their
// gradients) and walks over tiles of 32 partners. The backward pass is two kernels, by query and by key, so that nothing is added by two blocks.
//
// With positions (gpustage.Positions) a block takes the keys or queries of the distances of a tile beside its other rows, the one after the other: a score is
// three products instead of one, and a third kernel, whose rows are distances, makes the gradients of positions with the same products again: 4 products
// a pair of tokens instead of 2 forward, and 19 instead of 7 on the way back, without tensor cores in bf16 either.
//
// Where only a sequence's first tokens are keys (gpustage.Attention's Seen), what is queries alone is not read as keys: rows of zeros stand for it.
//
// What bounds the kernels is reading shared memory: a multiprocessor reads 32 values of it at a time and multiplies 128. So a lane has R*4 pairs of a tile and
// reads what they share once, four features at a time:
//
//	lane 8*y + x of warp w   own rows 8*R*(w/2) + 4*(w%2) + y + 8*r, r < R; partners x + 8*c, c < 4; features 4*x to 4*x+3 of each 32 of a sum
//
// Distances of such pairs are 8 apart as well, and only R+3. Of 64 features R is 4, and inner loops read, by the instructions of sm_90, 0.50 values for each
// multiplication forward with positions, 0.51 and 0.49 by query and by key, 0.54 by distance, and 0.44, 0.46 and 0.44 without positions; a lane with one pair
// at a time, which reads both factors, 2. Of 128 features it is 0.66 without positions (R is 2), of 256 1.1 (R is 1), for want of shared memory. By
// arithmetic, if 16 bytes that lanes share take as long as others, 16,384 tokens of DeBERTa-base in texts of 512 take 132 multiprocessors at 1.7 GHz 22 ms
// forward and 105 on the way back, half of which multiplying takes alone. None of it has been timed. Blocks with positions are two or three to such a
// multiprocessor, eight or twelve warps: what one of them reads at a time takes longer than waiting for it.
//
// Each sum adds up in the order of its features, or of its partners.
#include "attention.cuh"

#define OTHER 32 // rows of a tile
#define OWN (16 * R) // rows of a block
#define FAR (OWN + OTHER - 1) // distances of a tile
#define TILE_PITCH (32 * NV + 4) // of rows in shared memory: those that lanes next to each other read lie in different banks
#define OWN_PITCH (NV < 8 ? TILE_PITCH : 32 * NV) // of rows that eight lanes read together; with 256 features there is no room for more

enum Sees { TOKENS, POSITIONS }; // what a kernel's queries see: tokens; distances too

DEVICE float rounded(const Attention &a, float v) { return a.bf16 ? round_bf16(v) : v; }

// first_own is the first own row of a lane, warp_own that of its warp, and first_other the first partner.
template <int R> DEVICE int warp_own() { return warp_id() / 2 * 8 * R + warp_id() % 2 * 4; }
template <int R> DEVICE int first_own() { return warp_own<R>() + lane_id() / 8; }
DEVICE int first_other() { return lane_id() % 8; }

// stage_rows copies a head of count rows into shared memory, pitch apart: of row r that of from which row(r) names, and zeros if that is negative; zeros
// follow up to 32*NV features. They are there after wait_copies and a barrier. All that a thread moves is under way before it needs any of it: of f32
// everything, of bf16 four rows.
template <int NV, class Row> DEVICE void stage_rows(const Attention &a, float *to, int pitch, const void *from, int stride, int count, int head, Row row) {
	const int d = threadIdx.x % (8 * NV) * 4, step = 16 / NV, n = min(4, a.dim - d);
	int r = threadIdx.x / (8 * NV);
	to += d;
	if (a.vec && n == 4 && !a.bf16) {
		const float *head_of = (const float *)from + head * a.dim + d;
		for (; r < count; r += step) {
			int at = row(r);
			copy16(to + r * pitch, head_of + (size_t)max(0, at) * stride, at >= 0);
		}
	} else if (a.vec && n == 4 && a.half) {
		const u16 *head_of = (const u16 *)from + head * a.dim + d;
#pragma unroll 1
		for (; r < count; r += 4 * step) {
			uint2 q[4];
#pragma unroll
			for (int i = 0; i < 4; i++) {
				int at = r + i * step < count ? row(r + i * step) : -1;
				q[i].x = q[i].y = 0;
				if (at >= 0) q[i] = *(const uint2 *)(head_of + (size_t)at * stride);
			}
#pragma unroll
			for (int i = 0; i < 4; i++)
				if (r + i * step < count) store_quad(to + (r + i * step) * pitch, unpack(q[i].x, q[i].y), 4, 1);
		}
	} else {
#pragma unroll 1
		for (; r < count; r += step) {
			int at = row(r);
			Quad q = {};
			if (at >= 0) q = load_half(from, (size_t)at * stride + head * a.dim + d, n, a.vec, a.half);
#pragma unroll
			for (int e = 0; e < 4; e++) q.v[e] = rounded(a, q.v[e]);
			store_quad(to + r * pitch, q, 4, 1);
		}
	}
}

// stage copies rows first to first+count of a sequence, zeros beside its n.
template <int NV> DEVICE void stage(const Attention &a, float *to, int pitch, const void *from, int stride, int lo, int first, int count, int n, int head) {
	stage_rows<NV>(a, to, pitch, from, stride, count, head, [=](int r) { return first + r >= 0 && first + r < n ? lo + first + r : -1; });
}

// Far is what a call has of positions; the launching side fills a struct of the same layout.
struct Far {
	const void *keys, *queries; // [R, H*D], or 0
	const int *rows;            // [2*reach-1]: theirs for each distance
	int skeys, squeries, reach, longest; // longest is that of sequences
};

// stage_far copies what positions have, keys or queries, of count distances from first on: zeros, if they have none. Nobody sees those beyond a sequence.
template <int NV> DEVICE void stage_far(const Attention &a, const Far &f, float *to, int pitch, const void *from, int stride, int first, int count, int head) {
	const int *rows = f.rows + f.reach - 1;
	const int most = f.reach - 1;
	stage_rows<NV>(a, to, pitch, from, stride, count, head, [=](int r) { return from ? rows[min(most, max(-most, first + r))] : -1; });
}

// Side is what a block's rows are. partner_of is c of the pair (r, c) that far row e of a lane's R+3, 8 apart, belongs to, if that is one of its four.
enum Side { QUERIES, KEYS, DISTANCES };
template <int R, Side SIDE> constexpr DEVICE int partner_of(int e, int r) { return SIDE == QUERIES ? e + r - (R - 1) : SIDE == KEYS ? r + 3 - e : e - r; }

// far_row is the first far row of a lane whose partner is the tile's first: partner x has that x further, or before where keys have a block.
template <int R, Side SIDE> DEVICE int far_row() { return SIDE == QUERIES ? 8 * R + 7 - first_own<R>() : first_own<R>() + (SIDE == KEYS ? 7 : 0); }

// What products multiplies: own rows with partners, own rows with far ones, partners with far ones.
enum { PAIRS = 1, OWN_FAR = 2, OTHER_FAR = 4 };

// products adds to s the products of a lane's own rows and partners, and to t those with far rows. Partners and far rows are TILE_PITCH apart.
template <int R, int NV, Side SIDE, int WHAT>
DEVICE void products(float (&s)[R][4], float (&t)[R][4], const float *own, const float *others, const float *far, int dim) {
	own += first_own<R>() * OWN_PITCH;
	others += first_other() * TILE_PITCH;
	far += (far_row<R, SIDE>() + (SIDE == KEYS ? -first_other() : first_other())) * TILE_PITCH;
#pragma unroll 1
	for (int d = 0; d < dim; d += 4) {
		Quad x[R], y[4];
#pragma unroll
		for (int r = 0; r < R; r++)
			if (WHAT & (PAIRS | OWN_FAR)) x[r] = load_quad(own + 8 * r * OWN_PITCH + d, 4, 1);
#pragma unroll
		for (int c = 0; c < 4; c++)
			if (WHAT & (PAIRS | OTHER_FAR)) y[c] = load_quad(others + 8 * c * TILE_PITCH + d, 4, 1);
		if (WHAT & PAIRS)
#pragma unroll
			for (int v = 0; v < 4; v++)
#pragma unroll
				for (int i = 0; i < 4 * R; i++) s[i / 4][i % 4] += x[i / 4].v[v] * y[i % 4].v[v];
		if (WHAT & (OWN_FAR | OTHER_FAR))
#pragma unroll
			for (int e = 0; e < R + 3; e++) {
				Quad z = load_quad(far + 8 * e * TILE_PITCH + d, 4, 1);
#pragma unroll
				for (int r = 0; r < R; r++) {
					const int c = partner_of<R, SIDE>(e, r);
					if (c < 0 || c > 3) continue;
#pragma unroll
					for (int v = 0; v < 4; v++) t[r][c] += (WHAT & OWN_FAR ? x[r] : y[c]).v[v] * z.v[v];
				}
			}
	}
}

// scores makes a tile's sums of products for what has a block, queries or keys. With positions far has those that partners are multiplied with, and
// then gets those for the block's own rows, if there are any, which are of distances from first on. works tells whether the warp has rows at all.
template <int R, int NV, Sees SEES, Side SIDE>
DEVICE void scores(float (&s)[R][4], const Attention &a, const Far &f, const float *own, const float *others, float *far, int first, int h, bool works) {
	float t[R][4] = {}, u[R][4] = {};
	if (works) products<R, NV, SIDE, SEES == POSITIONS ? PAIRS | OTHER_FAR : PAIRS>(s, t, own, others, far, a.dim);
	if (SEES != POSITIONS) return;
	if (SIDE == QUERIES ? f.keys : f.queries) {
		__syncthreads();
		if (SIDE == QUERIES) stage_far<NV>(a, f, far, TILE_PITCH, f.keys, f.skeys, first, FAR, h);
		else stage_far<NV>(a, f, far, TILE_PITCH, f.queries, f.squeries, first, FAR, h);
		wait_copies();
		__syncthreads();
		if (works) products<R, NV, SIDE, OWN_FAR>(u, u, own, others, far, a.dim);
	}
#pragma unroll
	for (int i = 0; i < 4 * R; i++) s[i / 4][i % 4] += t[i / 4][i % 4] + u[i / 4][i % 4];
}

// stage_partners_far copies the far rows that scores begins with.
template <int R, int NV, Side SIDE> DEVICE void stage_partners_far(const Attention &a, const Far &f, float *far, int first, int h) {
	if (SIDE == QUERIES) stage_far<NV>(a, f, far, TILE_PITCH, f.queries, f.squeries, first, FAR, h);
	else stage_far<NV>(a, f, far, TILE_PITCH, f.keys, f.skeys, first, FAR, h);
}

// weight is where the weight of own row r and partner c of a lane begins that has x = 0: groups of eight partners change places so that what a warp writes
// lies in different banks.
DEVICE int weight(int own, int r, int c) { return (own + 8 * r) * OTHER + ((c ^ own % 4) * 8); }

// accumulate adds the features that a lane has of OTHER rows, TILE_PITCH apart, each times the weights that its own rows have there.
template <int R, int NV> DEVICE void accumulate(float (&acc)[R][NV][4], const float *weights, const float *rows) {
	const int own = first_own<R>();
	rows += first_other() * 4;
#pragma unroll 1
	for (int k = 0; k < OTHER; k += 4) {
		Quad w[R];
#pragma unroll
		for (int r = 0; r < R; r++) w[r] = load_quad(weights + weight(own, r, k / 8) + k % 8, 4, 1);
#pragma unroll
		for (int i = 0; i < 4; i++)
#pragma unroll
			for (int v = 0; v < NV; v++) {
				Quad x = load_quad(rows + (k + i) * TILE_PITCH + 32 * v, 4, 1);
#pragma unroll
				for (int e = 0; e < 4 * R; e++) acc[e / 4][v][e % 4] += w[e / 4].v[i] * x.v[e % 4];
			}
	}
}

// accumulate_far adds far rows, each times the weights of the pairs that it belongs to.
template <int R, int NV, Side SIDE> DEVICE void accumulate_far(float (&acc)[R][NV][4], const float *weights, const float *far) {
	const int own = first_own<R>();
	far += far_row<R, SIDE>() * TILE_PITCH + first_other() * 4;
#pragma unroll
	for (int step = 0; step < R + 3; step++) { // partners of each own row in their order
		const int e = SIDE == KEYS ? R + 2 - step : step;
#pragma unroll 1
		for (int k = 0; k < 8; k += 4) {
			Quad w[R];
#pragma unroll
			for (int r = 0; r < R; r++) {
				const int c = partner_of<R, SIDE>(e, r);
				if (c >= 0 && c < 4) w[r] = load_quad(weights + weight(own, r, c) + k, 4, 1);
			}
#pragma unroll
			for (int i = 0; i < 4; i++)
#pragma unroll
				for (int v = 0; v < NV; v++) {
					Quad x = load_quad(far + (8 * e + (SIDE == KEYS ? -k - i : k + i)) * TILE_PITCH + 32 * v, 4, 1);
#pragma unroll
					for (int r = 0; r < R; r++) {
						const int c = partner_of<R, SIDE>(e, r);
						if (c < 0 || c > 3) continue;
#pragma unroll
						for (int j = 0; j < 4; j++) acc[r][v][j] += w[r].v[i] * x.v[j];
					}
				}
		}
	}
}

// store_features writes what a lane has of a row, which begins at.
template <int NV> DEVICE void store_features(const Attention &a, void *to, size_t at, const float (&of)[NV][4], int vec, int half) {
#pragma unroll
	for (int v = 0; v < NV; v++) {
		int d = 32 * v + 4 * first_other();
		if (d < a.dim) store_half(to, at + d, {{of[v][0], of[v][1], of[v][2], of[v][3]}}, min(4, a.dim - d), vec, half);
	}
}

// Score is what softmax sees of query i and key j, and the soft cap's slope.
struct Score {
	float s, slope;
};

DEVICE Score score(const Attention &a, float product, int i, int j, int h) {
	Score c;
	c.s = product * a.scale, c.slope = 1.f;
	if (a.cap > 0.f) {
		float t = tanhf(c.s / a.cap);
		c.s = a.cap * t, c.slope = 1.f - t * t;
	}
	if (a.bias) c.s += a.bias[(a.reach + min(a.reach, max(-a.reach, j - i))) * a.sbias + h];
	return c;
}

// keep8 is the half of keep16 that has keys 8*group to 8*group+7.
DEVICE u32 keep8(u64 key, u32 group, u32 pos, u32 head, u32 site, u32 threshold) {
	return keep16(key, group / 2, pos, head, site, threshold) >> 16 * (group % 2) & 0xff;
}

// factor is the dropout's for query i and key j.
DEVICE float factor(const Attention &a, int b, int i, int j, int h) {
	if (!a.keys) return 1.f;
	return keep8(a.keys[b], j / 8, i, h, a.site, a.threshold) >> (j % 8) & 1 ? a.keep : 0.f;
}

// draw makes what factors takes for a lane's pairs of a tile: each lane of those that share it a part. first_i and first_j are the tile's first query and
// key; with distances the first key is that of the first of both.
template <int R, Side SIDE> DEVICE void draw(const Attention &a, u32 (&drawn)[R], int b, int first_i, int first_j, int h) {
	if (!a.keys) return;
	u64 key = a.keys[b];
	if (SIDE == QUERIES) { // lane x has eight keys, x*8 further
#pragma unroll
		for (int r = 0; r < R; r++) drawn[r] = keep8(key, first_j / 8 + first_other(), first_i + first_own<R>() + 8 * r, h, a.site, a.threshold);
		return;
	}
	int of = first_other() + lane_id() / 8 * 8; // lane 8*y + x has query x + 8*y
	if (SIDE == KEYS) {
#pragma unroll
		for (int r = 0; r < R; r++) drawn[r] = keep8(key, (first_j + warp_own<R>()) / 8 + r, first_i + of, h, a.site, a.threshold);
		return;
	}
	int group = (first_j + of + warp_own<R>()) >> 3; // keys of the warp's four rows may be in two groups
	u32 before = keep8(key, group, first_i + of, h, a.site, a.threshold);
#pragma unroll
	for (int r = 0; r < R; r++) {
		u32 next = keep8(key, group + r + 1, first_i + of, h, a.site, a.threshold);
		drawn[r] = before | next << 8, before = next;
	}
}

// drawn_factor is factor of a lane's pair (r, c), i and j. All lanes of a warp ask at once.
template <int R, Side SIDE> DEVICE float drawn_factor(const Attention &a, const u32 (&drawn)[R], int r, int c, int j, int first_j) {
	if (!a.keys) return 1.f;
	int from = c * 8 + first_other(), bit = j & 7;
	if (SIDE == QUERIES) from = lane_id() / 8 * 8 + j / 8 - first_j / 8;
	if (SIDE == DISTANCES) bit = j - ((first_j + from + warp_own<R>()) >> 3) * 8 - 8 * r;
	return __shfl_sync(EVERY, drawn[r], from) >> bit & 1 ? a.keep : 0.f;
}

// NV is a 32nd of the features that a kernel has room for.
template <int R, int NV, Sees SEES> DEVICE void forward(const Attention &a, const Far &f, const int *seen) {
	DYNAMIC_SHARED(float, shared);
	int b = blockIdx.x, h = blockIdx.y, q0 = blockIdx.z * OWN, lo = a.cu[b], n = a.cu[b + 1] - lo, dim = a.dim;
	if (q0 >= n) return;
	int keys = seen ? seen[b] : n, own = first_own<R>();
	bool works = q0 + warp_own<R>() < n;
	float *qs = shared, *ks = qs + OWN * OWN_PITCH, *vs = ks + OTHER * TILE_PITCH, *ps = vs + OTHER * TILE_PITCH;
	float *far = ps + OWN * OTHER; // of distance d at d - (k0 - q0) + OWN - 1
	stage<NV>(a, qs, OWN_PITCH, a.q, a.sq, lo, q0, OWN, n, h);
	float acc[R][NV][4] = {}, top[R], z[R] = {};
#pragma unroll
	for (int r = 0; r < R; r++) top[r] = MINUS_INF;
	Range see = keys_of(a, q0, q0 + OWN - 1, keys);
	for (int k0 = see.from; k0 < see.to; k0 += OTHER) {
		__syncthreads();
		stage<NV>(a, ks, TILE_PITCH, a.k, a.sk, lo, k0, OTHER, keys, h / a.group);
		stage<NV>(a, vs, TILE_PITCH, a.v, a.sv, lo, k0, OTHER, keys, h / a.group);
		int first = k0 - q0 - (OWN - 1);
		if (SEES == POSITIONS) stage_partners_far<R, NV, QUERIES>(a, f, far, first, h);
		wait_copies();
		__syncthreads();
		float s[R][4] = {};
		scores<R, NV, SEES, QUERIES>(s, a, f, qs, ks, far, first, h, works);
		if (!works) continue;
		u32 drawn[R];
		draw<R, QUERIES>(a, drawn, b, q0, k0, h);
#pragma unroll
		for (int r = 0; r < R; r++) {
			int i = q0 + own + 8 * r;
			float m = top[r], p[4];
#pragma unroll
			for (int c = 0; c < 4; c++) {
				int j = k0 + first_other() + 8 * c;
				s[r][c] = visible(a, i, j, n) && j < keys ? score(a, s[r][c], i, j, h).s : MINUS_INF;
				m = fmaxf(m, s[r][c]);
			}
			for (int d = 4; d > 0; d /= 2) m = fmaxf(m, __shfl_xor_sync(EVERY, m, d));
			float from = m == MINUS_INF ? 0.f : m, shrink = expf(top[r] - from); // a row may see nothing yet
#pragma unroll
			for (int c = 0; c < 4; c++) {
				int j = k0 + first_other() + 8 * c;
				float stays = drawn_factor<R, QUERIES>(a, drawn, r, c, j, k0);
				p[c] = expf(s[r][c] - from);
				ps[weight(own, r, c) + first_other()] = p[c] > 0.f ? rounded(a, p[c] * stays) : 0.f;
			}
			float sum = (p[0] + p[2]) + (p[1] + p[3]);
			for (int d = 4; d > 0; d /= 2) sum += __shfl_xor_sync(EVERY, sum, d);
			z[r] = z[r] * shrink + sum;
			top[r] = m;
#pragma unroll
			for (int v = 0; v < 4 * NV; v++) acc[r][v / 4][v % 4] *= shrink;
		}
		__syncwarp();
		accumulate<R, NV>(acc, ps, vs);
	}
	wait_copies(); // of blocks without a tile
#pragma unroll
	for (int r = 0; r < R; r++) {
		int i = q0 + own + 8 * r;
		if (i >= n) continue;
#pragma unroll
		for (int v = 0; v < 4 * NV; v++) acc[r][v / 4][v % 4] = seen && z[r] == 0.f ? 0.f : acc[r][v / 4][v % 4] / z[r];
		store_features<NV>(a, a.ctx, (size_t)(lo + i) * a.sctx + h * dim, acc[r], a.vec, a.half);
		if (first_other() == 0) a.lse[(size_t)h * a.slse + lo + i] = top[r] + logf(z[r]);
	}
}

// attention_delta is delta[h, t] = <dctx, ctx>, so many lanes to each, a power of two. Heads of bf16 that may be moved 16 bytes at a time
// have a lane for each 8 features: the kernel waits for memory, and a warp then has twice 512 bytes under way.
KERNEL attention_delta(Attention a, int lanes) {
	int at = (blockIdx.x * 4 + warp_id()) * (WARP / lanes) + lane_id() / lanes, lane = lane_id() % lanes;
	bool there = at < a.tokens * a.heads;
	int t = at / a.heads, h = at % a.heads;
	size_t o = (size_t)t * a.sdctx + h * a.dim, c = (size_t)t * a.sctx + h * a.dim;
	float sum = 0.f;
	if (there && a.half && a.vec) {
		if (8 * lane < a.dim) {
			uint4 x = *(const uint4 *)((const u16 *)a.dctx + o + 8 * lane), y = *(const uint4 *)((const u16 *)a.ctx + c + 8 * lane);
			sum = dot_pairs(x.x, y.x) + dot_pairs(x.y, y.y) + (dot_pairs(x.z, y.z) + dot_pairs(x.w, y.w));
		}
	} else if (there) {
		for (int d = lane; d < a.dim; d += lanes) sum += load_one(a.dctx, o + d, a.half) * load_one(a.ctx, c + d, a.half);
	}
	for (int d = lanes / 2; d > 0; d /= 2) sum += __shfl_xor_sync(EVERY, sum, d);
	if (there && lane == 0) a.delta[(size_t)h * a.sdelta + t] = sum;
}

template <int R, int NV, Sees SEES> DEVICE void backward_q(const Attention &a, const Far &f, const int *seen) {
	DYNAMIC_SHARED(float, shared);
	int b = blockIdx.x, h = blockIdx.y, q0 = blockIdx.z * OWN, lo = a.cu[b], n = a.cu[b + 1] - lo, dim = a.dim;
	if (q0 >= n) return;
	int keys = seen ? seen[b] : n, own = first_own<R>();
	bool works = q0 + warp_own<R>() < n;
	float *qs = shared, *os = qs + OWN * OWN_PITCH, *ks = os + OWN * OWN_PITCH, *vs = ks + OTHER * TILE_PITCH, *ds = vs + OTHER * TILE_PITCH;
	float *far = ds + OWN * OTHER; // of distance d at d - (k0 - q0) + OWN - 1
	stage<NV>(a, qs, OWN_PITCH, a.q, a.sq, lo, q0, OWN, n, h);
	stage<NV>(a, os, OWN_PITCH, a.dctx, a.sdctx, lo, q0, OWN, n, h);
	float acc[R][NV][4] = {}, lse[R], delta[R];
#pragma unroll
	for (int r = 0; r < R; r++) {
		int i = q0 + own + 8 * r;
		lse[r] = i < n ? a.lse[(size_t)h * a.slse + lo + i] : 0.f;
		delta[r] = i < n ? a.delta[(size_t)h * a.sdelta + lo + i] : 0.f;
	}
	Range see = keys_of(a, q0, q0 + OWN - 1, keys);
	for (int k0 = see.from; k0 < see.to; k0 += OTHER) {
		__syncthreads();
		stage<NV>(a, ks, TILE_PITCH, a.k, a.sk, lo, k0, OTHER, keys, h / a.group);
		stage<NV>(a, vs, TILE_PITCH, a.v, a.sv, lo, k0, OTHER, keys, h / a.group);
		int first = k0 - q0 - (OWN - 1);
		if (SEES == POSITIONS) stage_partners_far<R, NV, QUERIES>(a, f, far, first, h);
		wait_copies();
		__syncthreads();
		float s[R][4] = {}, dp[R][4] = {};
		scores<R, NV, SEES, QUERIES>(s, a, f, qs, ks, far, first, h, works);
		if (!works) continue;
		products<R, NV, QUERIES, PAIRS>(dp, dp, os, vs, far, dim);
		u32 drawn[R];
		draw<R, QUERIES>(a, drawn, b, q0, k0, h);
#pragma unroll
		for (int r = 0; r < R; r++)
#pragma unroll
			for (int c = 0; c < 4; c++) {
				int i = q0 + own + 8 * r, j = k0 + first_other() + 8 * c;
				float stays = drawn_factor<R, QUERIES>(a, drawn, r, c, j, k0), d = 0.f;
				if (visible(a, i, j, n) && j < keys) {
					Score of = score(a, s[r][c], i, j, h);
					float p = expf(of.s - lse[r]);
					d = rounded(a, p * (stays * dp[r][c] - delta[r]) * of.slope * a.scale);
				}
				ds[weight(own, r, c) + first_other()] = d;
			}
		__syncwarp();
		accumulate<R, NV>(acc, ds, ks);
		if (SEES == POSITIONS && f.keys) accumulate_far<R, NV, QUERIES>(acc, ds, far);
	}
	wait_copies();
#pragma unroll
	for (int r = 0; r < R; r++) {
		int i = q0 + own + 8 * r;
		if (i < n) store_features<NV>(a, a.dq, (size_t)(lo + i) * a.sdq + h * dim, acc[r], a.vec, a.half);
	}
}

// numbers_of_queries reads one number for each of a tile's queries, and gives a lane those of its own.
DEVICE void numbers_of_queries(float (&to)[4], const float *from, int q0, int n) {
	float mine = q0 + lane_id() < n ? from[q0 + lane_id()] : 0.f;
#pragma unroll
	for (int c = 0; c < 4; c++) to[c] = __shfl_sync(EVERY, mine, 8 * c + first_other());
}

template <int R, int NV, Sees SEES> DEVICE void backward_kv(const Attention &a, const Far &f, const int *seen) {
	DYNAMIC_SHARED(float, shared);
	int b = blockIdx.x, kv = blockIdx.y, k0 = blockIdx.z * OWN, lo = a.cu[b], n = a.cu[b + 1] - lo, dim = a.dim;
	if (k0 >= n) return;
	int keys = seen ? seen[b] : n, own = first_own<R>();
	bool works = k0 + warp_own<R>() < keys;
	float *ks = shared, *vs = ks + OWN * OWN_PITCH, *qs = vs + OWN * OWN_PITCH, *os = qs + OTHER * TILE_PITCH;
	float *ps = os + OTHER * TILE_PITCH; // of probabilities, then of their gradients: with both, 256 features would not fit into 99 KB
	float *far = ps + OWN * OTHER;  // of distance d at d - (k0 - q0) + OTHER - 1
	stage<NV>(a, ks, OWN_PITCH, a.k, a.sk, lo, k0, OWN, keys, kv);
	stage<NV>(a, vs, OWN_PITCH, a.v, a.sv, lo, k0, OWN, keys, kv);
	float dk[R][NV][4] = {}, dv[R][NV][4] = {};
	Range see = queries_of(a, k0, k0 + OWN - 1, n);
	if (k0 >= keys) see.to = see.from;
	for (int h = kv * a.group; h < (kv + 1) * a.group; h++) {
		for (int q0 = see.from; q0 < see.to; q0 += OTHER) {
			__syncthreads();
			stage<NV>(a, qs, TILE_PITCH, a.q, a.sq, lo, q0, OTHER, n, h);
			stage<NV>(a, os, TILE_PITCH, a.dctx, a.sdctx, lo, q0, OTHER, n, h);
			int first = k0 - q0 - (OTHER - 1);
			if (SEES == POSITIONS) stage_partners_far<R, NV, KEYS>(a, f, far, first, h);
			wait_copies();
			__syncthreads();
			float s[R][4] = {}, dp[R][4] = {}, lse[4], delta[4];
			scores<R, NV, SEES, KEYS>(s, a, f, ks, qs, far, first, h, works);
			if (!works) continue;
			products<R, NV, KEYS, PAIRS>(dp, dp, vs, os, far, dim);
			numbers_of_queries(lse, a.lse + (size_t)h * a.slse + lo, q0, n);
			numbers_of_queries(delta, a.delta + (size_t)h * a.sdelta + lo, q0, n);
			u32 drawn[R];
			draw<R, KEYS>(a, drawn, b, q0, k0, h);
#pragma unroll
			for (int r = 0; r < R; r++)
#pragma unroll
				for (int c = 0; c < 4; c++) {
					int i = q0 + first_other() + 8 * c, j = k0 + own + 8 * r;
					float stays = drawn_factor<R, KEYS>(a, drawn, r, c, j, k0), p = 0.f, d = 0.f;
					if (visible(a, i, j, n) && j < keys) {
						Score of = score(a, s[r][c], i, j, h);
						p = expf(of.s - lse[c]);
						d = rounded(a, p * (stays * dp[r][c] - delta[c]) * of.slope * a.scale);
						p = rounded(a, stays * p);
					}
					ps[weight(own, r, c) + first_other()] = p;
					dp[r][c] = d;
				}
			__syncwarp();
			accumulate<R, NV>(dv, ps, os);
			__syncwarp();
#pragma unroll
			for (int i = 0; i < 4 * R; i++) ps[weight(own, i / 4, i % 4) + first_other()] = dp[i / 4][i % 4];
			__syncwarp();
			accumulate<R, NV>(dk, ps, qs);
			if (SEES == POSITIONS && f.queries) accumulate_far<R, NV, KEYS>(dk, ps, far);
		}
	}
	wait_copies();
#pragma unroll
	for (int r = 0; r < R; r++) {
		int j = k0 + own + 8 * r;
		if (j >= n) continue;
		store_features<NV>(a, a.dk, (size_t)(lo + j) * a.sdk + kv * dim, dk[r], a.vec, a.half);
		store_features<NV>(a, a.dv, (size_t)(lo + j) * a.sdv + kv * dim, dv[r], a.vec, a.half);
	}
}

// seen is 0, or how many tokens of each sequence are keys.
#define FOR_DIM(r, nv, dim)                                                                                                                          \
	KERNEL __launch_bounds__(128) attention_##dim(Attention a, const int *seen) { forward<r, nv, TOKENS>(a, Far(), seen); }                    \
	KERNEL __launch_bounds__(128) attention_backward_q_##dim(Attention a, const int *seen) { backward_q<r, nv, TOKENS>(a, Far(), seen); }      \
	KERNEL __launch_bounds__(128) attention_backward_kv_##dim(Attention a, const int *seen) { backward_kv<r, nv, TOKENS>(a, Far(), seen); }

FOR_DIM(4, 1, 32)
FOR_DIM(4, 2, 64)
FOR_DIM(2, 4, 128)
FOR_DIM(1, 8, 256)

// attention_dbias: block (r, h) adds the gradients of all scores that had bias[r, h]. Products come straight from memory, slowly: of models
// with such biases (MPNet) heads have 64 features, for which flash.cu has a kernel in bf16.
KERNEL attention_dbias(Attention a, const int *seen) {
	__shared__ float parts[4];
	int r = blockIdx.x, h = blockIdx.y, dim = a.dim;
	float sum = 0.f;
	for (int b = 0; b < a.rows; b++) {
		int lo = a.cu[b], n = a.cu[b + 1] - lo;
		for (int i = threadIdx.x; i < n; i += blockDim.x) {
			Range see = keys_of(a, i, i, seen ? seen[b] : n);
			int first = i + r - a.reach, last = first;
			if (r == 0) first = see.from;
			if (r == 2 * a.reach) last = see.to - 1;
			size_t q = (size_t)(lo + i) * a.sq + h * dim, o = (size_t)(lo + i) * a.sdctx + h * dim;
			for (int j = max(first, see.from); j <= min(last, see.to - 1); j++) {
				size_t k = (size_t)(lo + j) * a.sk + h / a.group * dim, v = (size_t)(lo + j) * a.sv + h / a.group * dim;
				float s = 0.f, dp = 0.f;
				for (int d = 0; d < dim; d++) {
					s += rounded(a, load_one(a.q, q + d, a.half)) * rounded(a, load_one(a.k, k + d, a.half));
					dp += rounded(a, load_one(a.dctx, o + d, a.half)) * rounded(a, load_one(a.v, v + d, a.half));
				}
				float p = expf(score(a, s, i, j, h).s - a.lse[(size_t)h * a.slse + lo + i]);
				sum += p * (factor(a, b, i, j, h) * dp - a.delta[(size_t)h * a.sdelta + lo + i]);
			}
		}
	}
	sum = warp_sum(sum);
	if (lane_id() == 0) parts[warp_id()] = sum;
	__syncthreads();
	if (threadIdx.x == 0) a.dbias[(size_t)r * a.sdbias + h] += parts[0] + parts[1] + parts[2] + parts[3];
}

// far_gradients adds up, for 16*R distances of a head, the gradients of their keys and queries, over every workers-th sequence: into parts
// [workers, H, 2*longest-1, 2*D].
template <int R, int NV> DEVICE void far_gradients(const Attention &a, const Far &f, float *parts) {
	DYNAMIC_SHARED(float, shared);
	int h = blockIdx.y, longest = f.longest, first = blockIdx.z * OWN - (longest - 1), dim = a.dim, own = first_own<R>();
	float *pks = shared, *pqs = pks + OWN * OWN_PITCH, *qs = pqs + OWN * OWN_PITCH, *os = qs + OTHER * TILE_PITCH;
	float *far = os + OTHER * TILE_PITCH, *ds = far + FAR * TILE_PITCH; // far has values, then keys
	stage_far<NV>(a, f, pks, OWN_PITCH, f.keys, f.skeys, first, OWN, h);
	stage_far<NV>(a, f, pqs, OWN_PITCH, f.queries, f.squeries, first, OWN, h);
	float dk[R][NV][4] = {}, dq[R][NV][4] = {};
	for (int b = blockIdx.x; b < a.rows; b += gridDim.x) {
		int lo = a.cu[b], n = a.cu[b + 1] - lo;
		for (int q0 = 0; q0 < n; q0 += OTHER) {
			int k0 = q0 + first; // query q0 + l and distance first + o have key k0 + l + o
			if (k0 >= n || k0 + FAR <= 0) continue;
			__syncthreads();
			stage<NV>(a, qs, TILE_PITCH, a.q, a.sq, lo, q0, OTHER, n, h);
			stage<NV>(a, os, TILE_PITCH, a.dctx, a.sdctx, lo, q0, OTHER, n, h);
			stage<NV>(a, far, TILE_PITCH, a.v, a.sv, lo, k0, FAR, n, h);
			wait_copies();
			__syncthreads();
			float dp[R][4] = {}, s[R][4] = {}, t[R][4] = {}, u[R][4] = {}, lse[4], delta[4];
			products<R, NV, DISTANCES, OTHER_FAR>(dp, dp, pks, os, far, dim);
			__syncthreads();
			stage<NV>(a, far, TILE_PITCH, a.k, a.sk, lo, k0, FAR, n, h);
			wait_copies();
			__syncthreads();
			products<R, NV, DISTANCES, PAIRS | OTHER_FAR>(t, s, pks, qs, far, dim);
			if (f.queries) products<R, NV, DISTANCES, OWN_FAR>(u, u, pqs, qs, far, dim);
			numbers_of_queries(lse, a.lse + (size_t)h * a.slse + lo, q0, n);
			numbers_of_queries(delta, a.delta + (size_t)h * a.sdelta + lo, q0, n);
			u32 drawn[R];
			draw<R, DISTANCES>(a, drawn, b, q0, k0, h);
#pragma unroll
			for (int r = 0; r < R; r++)
#pragma unroll
				for (int c = 0; c < 4; c++) {
					int l = first_other() + 8 * c, i = q0 + l, j = k0 + l + own + 8 * r;
					float stays = drawn_factor<R, DISTANCES>(a, drawn, r, c, j, k0), d = 0.f;
					if (j >= 0 && visible(a, i, j, n)) {
						Score of = score(a, s[r][c] + (t[r][c] + u[r][c]), i, j, h);
						float p = expf(of.s - lse[c]);
						d = rounded(a, p * (stays * dp[r][c] - delta[c]) * of.slope * a.scale);
					}
					ds[weight(own, r, c) + first_other()] = d;
				}
			__syncwarp();
			accumulate<R, NV>(dk, ds, qs);
			accumulate_far<R, NV, DISTANCES>(dq, ds, far);
			__syncwarp();
		}
	}
	wait_copies();
#pragma unroll
	for (int r = 0; r < R; r++) {
		int at = blockIdx.z * OWN + own + 8 * r;
		size_t to = ((size_t)(blockIdx.x * a.heads + h) * (2 * longest - 1) + at) * 2 * dim;
		if (at >= 2 * longest - 1) continue;
		store_features<NV>(a, parts, to, dk[r], dim % 4 == 0, 0);
		store_features<NV>(a, parts, to + dim, dq[r], dim % 4 == 0, 0);
	}
}

KERNEL __launch_bounds__(128) positions_32(Attention a, Far f) { forward<4, 1, POSITIONS>(a, f, 0); }
KERNEL __launch_bounds__(128, 2) positions_backward_q_32(Attention a, Far f) { backward_q<4, 1, POSITIONS>(a, f, 0); }
KERNEL __launch_bounds__(128) positions_backward_kv_32(Attention a, Far f) { backward_kv<4, 1, POSITIONS>(a, f, 0); }
KERNEL __launch_bounds__(128) positions_gradients_32(Attention a, Far f, float *parts) { far_gradients<4, 1>(a, f, parts); }
KERNEL __launch_bounds__(128) positions_64(Attention a, Far f) { forward<4, 2, POSITIONS>(a, f, 0); }
KERNEL __launch_bounds__(128) positions_backward_q_64(Attention a, Far f) { backward_q<4, 2, POSITIONS>(a, f, 0); }
KERNEL __launch_bounds__(128) positions_backward_kv_64(Attention a, Far f) { backward_kv<4, 2, POSITIONS>(a, f, 0); }
KERNEL __launch_bounds__(128) positions_gradients_64(Attention a, Far f, float *parts) { far_gradients<4, 2>(a, f, parts); }
KERNEL __launch_bounds__(128) positions_128(Attention a, Far f) { forward<2, 4, POSITIONS>(a, f, 0); }
KERNEL __launch_bounds__(128, 2) positions_backward_q_128(Attention a, Far f) { backward_q<1, 4, POSITIONS>(a, f, 0); }
KERNEL __launch_bounds__(128) positions_backward_kv_128(Attention a, Far f) { backward_kv<1, 4, POSITIONS>(a, f, 0); }
KERNEL __launch_bounds__(128) positions_gradients_128(Attention a, Far f, float *parts) { far_gradients<1, 4>(a, f, parts); }

// positions_sum adds what workers have of all distances that share row blockIdx.x, of a head, to its keys' and queries' gradients, in their order.
KERNEL positions_sum(Attention a, Far f, const float *parts, int workers, float *dk, int sdk, float *dq, int sdq) {
	int row = blockIdx.x, h = blockIdx.y, dim = a.dim, count = 2 * f.longest - 1;
	for (int d = threadIdx.x; d < 2 * dim; d += blockDim.x) {
		float *to = d < dim ? dk : dq;
		if (!to) continue;
		float sum = 0.f;
		for (int i = 0; i < count; i++) {
			if (f.rows[f.reach - f.longest + i] != row) continue;
			for (int w = 0; w < workers; w++) sum += parts[((size_t)(w * a.heads + h) * count + i) * 2 * dim + d];
		}
		to[(size_t)row * (d < dim ? sdk : sdq) + h * dim + d % dim] += sum;
	}
}
