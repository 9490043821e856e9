// Attention of f32 tensors, and of bf16 ones whatever flash.cu does not cover: any head size up to 256, with soft caps or biases of positions.
// Arithmetic is f32, on values rounded to bf16 where the call says so. Never a T x T matrix: a block has 16 rows (queries, or keys for their
// gradients), 4 to each of its warps, and walks over tiles of 32 partners, a lane to each. The backward pass is two kernels, by query and by
// key, so that nothing is added by two blocks.
//
// With positions (gpustage.Positions) a block takes the keys and queries of the 47 distances of a tile beside its other rows: a score is three products
// from shared memory instead of one, and a third kernel, whose rows are distances, makes the gradients of positions with the same products again: 4 products
// a pair of tokens instead of 2 forward, and 19 instead of 7 on the way back, without tensor cores in bf16 either.
//
// Where only a sequence's first tokens are keys (gpustage.Attention's Seen), what is queries alone is not read as keys: rows of zeros stand for it.
#include "attention.cuh"

#define OWN 16   // rows of a block
#define OTHER 32 // rows of a tile
#define FAR (OWN + OTHER - 1) // distances of a tile

enum Sees { TOKENS, POSITIONS, SOME }; // what a kernel's queries see: all tokens; distances too; some tokens

DEVICE float rounded(const Attention &a, float v) { return a.bf16 ? round_bf16(v) : v; }

// stage copies rows first to first+count of a sequence's head into shared memory, pitch apart; rows from n on are zero.
DEVICE void stage(const Attention &a, float *to, int pitch, const void *from, int stride, int lo, int first, int count, int n, int head) {
	for (int i = threadIdx.x; i < count * a.dim; i += blockDim.x) {
		int r = i / a.dim, d = i % a.dim;
		to[r * pitch + d] = first + r < n ? rounded(a, load_one(from, (size_t)(lo + first + r) * stride + head * a.dim + d, a.half)) : 0.f;
	}
}

DEVICE float dot(const float *a, const float *b, int n) {
	float s = 0.f;
	for (int d = 0; d < n; d++) s += a[d] * b[d];
	return s;
}

// Far is what a call has of positions; the launching side fills a struct of the same layout.
struct Far {
	const void *keys, *queries; // [R, H*D], or 0
	const int *rows;            // [2*reach-1]: theirs for each distance
	int skeys, squeries, reach, longest; // longest is that of sequences
};

// stage_far copies what positions have, keys or queries, of count distances from first on. Nobody sees those beyond a sequence.
DEVICE void stage_far(const Attention &a, const Far &f, float *to, int pitch, const void *from, int stride, int first, int count, int head) {
	for (int i = threadIdx.x; from && i < count * a.dim; i += blockDim.x) {
		int r = i / a.dim, d = i % a.dim, row = f.rows[min(2 * f.reach - 2, max(0, f.reach - 1 + first + r))];
		to[r * pitch + d] = rounded(a, load_one(from, (size_t)row * stride + head * a.dim + d, a.half));
	}
}

// far_products is what positions add to a query's product with a key.
DEVICE float far_products(const Attention &a, const Far &f, const float *q, const float *k, const float *pk, const float *pq) {
	float s = 0.f;
	if (f.keys) s += dot(q, pk, a.dim);
	if (f.queries) s += dot(k, pq, a.dim);
	return s;
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

// factor is the dropout's for query i and key j.
DEVICE float factor(const Attention &a, int b, int i, int j, int h) {
	if (!a.keys) return 1.f;
	return keep8(a.keys[b], j / 8, i, h, a.site, a.threshold) >> (j % 8) & 1 ? a.keep : 0.f;
}

// NV is the number of features of a lane: dim <= 32*NV.
template <int NV, Sees SEES> DEVICE void forward(const Attention &a, const Far &f, const int *seen) {
	DYNAMIC_SHARED(float, shared);
	int b = blockIdx.x, h = blockIdx.y, q0 = blockIdx.z * OWN, lo = a.cu[b], n = a.cu[b + 1] - lo, dim = a.dim;
	if (q0 >= n) return;
	int keys = SEES == SOME ? seen[b] : n;
	float *qs = shared, *ks = qs + OWN * dim, *vs = ks + OTHER * (dim + 1), *ps = vs + OTHER * dim;
	float *pks = ps + OWN * OTHER, *pqs = pks + FAR * (dim + 1); // of distance d at d - (k0 - q0) + OWN - 1
	stage(a, qs, dim, a.q, a.sq, lo, q0, OWN, n, h);
	float acc[4][NV] = {}, top[4], z[4] = {};
	for (int r = 0; r < 4; r++) top[r] = MINUS_INF;
	Range see = keys_of(a, q0, q0 + OWN - 1, keys);
	for (int k0 = see.from; k0 < see.to; k0 += OTHER) {
		__syncthreads();
		stage(a, ks, dim + 1, a.k, a.sk, lo, k0, OTHER, keys, h / a.group);
		stage(a, vs, dim, a.v, a.sv, lo, k0, OTHER, keys, h / a.group);
		if (SEES == POSITIONS) {
			stage_far(a, f, pks, dim + 1, f.keys, f.skeys, k0 - q0 - (OWN - 1), FAR, h);
			stage_far(a, f, pqs, dim + 1, f.queries, f.squeries, k0 - q0 - (OWN - 1), FAR, h);
		}
		__syncthreads();
#pragma unroll
		for (int r = 0; r < 4; r++) {
			int own = warp_id() * 4 + r, i = q0 + own, j = k0 + lane_id();
			float s = MINUS_INF;
			if (visible(a, i, j, n) && (SEES != SOME || j < keys)) {
				const float *q = qs + own * dim, *k = ks + lane_id() * (dim + 1);
				float product = dot(q, k, dim);
				int far = (lane_id() - own + OWN - 1) * (dim + 1);
				if (SEES == POSITIONS) product += far_products(a, f, q, k, pks + far, pqs + far);
				s = score(a, product, i, j, h).s;
			}
			float m = fmaxf(top[r], warp_max(s));
			float from = m == MINUS_INF ? 0.f : m, p = expf(s - from), shrink = expf(top[r] - from); // a row may see nothing yet
			z[r] = z[r] * shrink + warp_sum(p);
			top[r] = m;
			ps[own * OTHER + lane_id()] = p > 0.f ? rounded(a, p * factor(a, b, i, j, h)) : 0.f;
			__syncwarp();
#pragma unroll
			for (int v = 0; v < NV; v++) {
				int d = lane_id() + v * WARP;
				if (d >= dim) continue;
				float sum = acc[r][v] * shrink;
				for (int k = 0; k < OTHER; k++) sum += ps[own * OTHER + k] * vs[k * dim + d];
				acc[r][v] = sum;
			}
		}
	}
#pragma unroll
	for (int r = 0; r < 4; r++) {
		int i = q0 + warp_id() * 4 + r;
		if (i >= n) continue;
#pragma unroll
		for (int v = 0; v < NV; v++) {
			int d = lane_id() + v * WARP;
			if (d < dim) store_one(a.ctx, (size_t)(lo + i) * a.sctx + h * dim + d, SEES == SOME && z[r] == 0.f ? 0.f : acc[r][v] / z[r], a.half);
		}
		if (lane_id() == 0) a.lse[(size_t)h * a.slse + lo + i] = top[r] + logf(z[r]);
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

// accumulate adds the features that a lane has of OTHER rows, pitch apart, each times its weight.
template <int NV> DEVICE void accumulate(float acc[NV], const float *weights, const float *rows, int pitch, int dim) {
#pragma unroll
	for (int v = 0; v < NV; v++) {
		int f = lane_id() + v * WARP;
		if (f >= dim) continue;
#pragma unroll 4
		for (int k = 0; k < OTHER; k++) acc[v] += weights[k] * rows[k * pitch + f];
	}
}

template <int NV, Sees SEES> DEVICE void backward_q(const Attention &a, const Far &f, const int *seen) {
	DYNAMIC_SHARED(float, shared);
	int b = blockIdx.x, h = blockIdx.y, q0 = blockIdx.z * OWN, lo = a.cu[b], n = a.cu[b + 1] - lo, dim = a.dim;
	if (q0 >= n) return;
	int keys = SEES == SOME ? seen[b] : n;
	float *qs = shared, *os = qs + OWN * dim, *ks = os + OWN * dim, *vs = ks + OTHER * (dim + 1), *ds = vs + OTHER * (dim + 1);
	float *pks = ds + OWN * OTHER, *pqs = pks + FAR * (dim + 1);
	stage(a, qs, dim, a.q, a.sq, lo, q0, OWN, n, h);
	stage(a, os, dim, a.dctx, a.sdctx, lo, q0, OWN, n, h);
	float acc[4][NV] = {};
	Range see = keys_of(a, q0, q0 + OWN - 1, keys);
	for (int k0 = see.from; k0 < see.to; k0 += OTHER) {
		__syncthreads();
		stage(a, ks, dim + 1, a.k, a.sk, lo, k0, OTHER, keys, h / a.group);
		stage(a, vs, dim + 1, a.v, a.sv, lo, k0, OTHER, keys, h / a.group);
		if (SEES == POSITIONS) {
			stage_far(a, f, pks, dim + 1, f.keys, f.skeys, k0 - q0 - (OWN - 1), FAR, h);
			stage_far(a, f, pqs, dim + 1, f.queries, f.squeries, k0 - q0 - (OWN - 1), FAR, h);
		}
		__syncthreads();
#pragma unroll
		for (int r = 0; r < 4; r++) {
			int own = warp_id() * 4 + r, i = q0 + own, j = k0 + lane_id();
			float d = 0.f;
			if (visible(a, i, j, n) && (SEES != SOME || j < keys)) {
				const float *q = qs + own * dim, *k = ks + lane_id() * (dim + 1);
				float product = dot(q, k, dim);
				int far = (lane_id() - own + OWN - 1) * (dim + 1);
				if (SEES == POSITIONS) product += far_products(a, f, q, k, pks + far, pqs + far);
				Score c = score(a, product, i, j, h);
				float p = expf(c.s - a.lse[(size_t)h * a.slse + lo + i]);
				float dp = factor(a, b, i, j, h) * dot(os + own * dim, vs + lane_id() * (dim + 1), dim);
				d = rounded(a, p * (dp - a.delta[(size_t)h * a.sdelta + lo + i]) * c.slope * a.scale);
			}
			ds[own * OTHER + lane_id()] = d;
			__syncwarp();
			accumulate<NV>(acc[r], ds + own * OTHER, ks, dim + 1, dim);
			if (SEES == POSITIONS && f.keys) accumulate<NV>(acc[r], ds + own * OTHER, pks + (OWN - 1 - own) * (dim + 1), dim + 1, dim);
		}
	}
#pragma unroll
	for (int r = 0; r < 4; r++) {
		int i = q0 + warp_id() * 4 + r;
#pragma unroll
		for (int v = 0; v < NV; v++) {
			int d = lane_id() + v * WARP;
			if (i < n && d < dim) store_one(a.dq, (size_t)(lo + i) * a.sdq + h * dim + d, acc[r][v], a.half);
		}
	}
}

template <int NV, Sees SEES> DEVICE void backward_kv(const Attention &a, const Far &f, const int *seen) {
	DYNAMIC_SHARED(float, shared);
	int b = blockIdx.x, kv = blockIdx.y, k0 = blockIdx.z * OWN, lo = a.cu[b], n = a.cu[b + 1] - lo, dim = a.dim;
	if (k0 >= n) return;
	int keys = SEES == SOME ? seen[b] : n;
	float *ks = shared, *vs = ks + OWN * dim, *qs = vs + OWN * dim, *os = qs + OTHER * (dim + 1);
	float *ps = os + OTHER * (dim + 1); // of probabilities, then of their gradients: with both, 256 features would not fit into 99 KB
	float *pks = ps + OWN * OTHER, *pqs = pks + FAR * (dim + 1); // of distance d at d - (k0 - q0) + OTHER - 1
	stage(a, ks, dim, a.k, a.sk, lo, k0, OWN, keys, kv);
	stage(a, vs, dim, a.v, a.sv, lo, k0, OWN, keys, kv);
	float dk[4][NV] = {}, dv[4][NV] = {};
	Range see = queries_of(a, k0, k0 + OWN - 1, n);
	if (SEES == SOME && k0 >= keys) see.to = see.from;
	for (int h = kv * a.group; h < (kv + 1) * a.group; h++) {
		for (int q0 = see.from; q0 < see.to; q0 += OTHER) {
			__syncthreads();
			stage(a, qs, dim + 1, a.q, a.sq, lo, q0, OTHER, n, h);
			stage(a, os, dim + 1, a.dctx, a.sdctx, lo, q0, OTHER, n, h);
			if (SEES == POSITIONS) {
				stage_far(a, f, pks, dim + 1, f.keys, f.skeys, k0 - q0 - (OTHER - 1), FAR, h);
				stage_far(a, f, pqs, dim + 1, f.queries, f.squeries, k0 - q0 - (OTHER - 1), FAR, h);
			}
			__syncthreads();
#pragma unroll
			for (int r = 0; r < 4; r++) {
				int own = warp_id() * 4 + r, i = q0 + lane_id(), j = k0 + own;
				float p = 0.f, d = 0.f;
				if (visible(a, i, j, n) && (SEES != SOME || j < keys)) {
					const float *q = qs + lane_id() * (dim + 1), *k = ks + own * dim;
					float product = dot(q, k, dim);
					int far = (own - lane_id() + OTHER - 1) * (dim + 1);
					if (SEES == POSITIONS) product += far_products(a, f, q, k, pks + far, pqs + far);
					Score c = score(a, product, i, j, h);
					float m = factor(a, b, i, j, h);
					p = expf(c.s - a.lse[(size_t)h * a.slse + lo + i]);
					d = m * dot(os + lane_id() * (dim + 1), vs + own * dim, dim);
					d = rounded(a, p * (d - a.delta[(size_t)h * a.sdelta + lo + i]) * c.slope * a.scale);
					p = rounded(a, m * p);
				}
				ps[own * OTHER + lane_id()] = p;
				__syncwarp();
				accumulate<NV>(dv[r], ps + own * OTHER, os, dim + 1, dim);
				__syncwarp();
				ps[own * OTHER + lane_id()] = d;
				__syncwarp();
				accumulate<NV>(dk[r], ps + own * OTHER, qs, dim + 1, dim);
				if (SEES == POSITIONS && f.queries) accumulate<NV>(dk[r], ps + own * OTHER, pqs + (own + OTHER - 1) * (dim + 1), -(dim + 1), dim);
			}
		}
	}
#pragma unroll
	for (int r = 0; r < 4; r++) {
		int j = k0 + warp_id() * 4 + r;
#pragma unroll
		for (int v = 0; v < NV; v++) {
			int d = lane_id() + v * WARP;
			if (j >= n || d >= dim) continue;
			store_one(a.dk, (size_t)(lo + j) * a.sdk + kv * dim + d, dk[r][v], a.half);
			store_one(a.dv, (size_t)(lo + j) * a.sdv + kv * dim + d, dv[r][v], a.half);
		}
	}
}

#define FOR_DIM(nv, dim)                                                                                                 \
	KERNEL __launch_bounds__(128) attention_##dim(Attention a) { forward<nv, TOKENS>(a, Far(), 0); }                 \
	KERNEL __launch_bounds__(128) attention_backward_q_##dim(Attention a) { backward_q<nv, TOKENS>(a, Far(), 0); }   \
	KERNEL __launch_bounds__(128) attention_backward_kv_##dim(Attention a) { backward_kv<nv, TOKENS>(a, Far(), 0); }

FOR_DIM(1, 32)
FOR_DIM(2, 64)
FOR_DIM(4, 128)
FOR_DIM(8, 256)

// Of few calls, queries of late interaction: one for the sizes that most models have, and one for all.
KERNEL __launch_bounds__(128) seen_64(Attention a, const int *seen) { forward<2, SOME>(a, Far(), seen); }
KERNEL __launch_bounds__(128) seen_backward_q_64(Attention a, const int *seen) { backward_q<2, SOME>(a, Far(), seen); }
KERNEL __launch_bounds__(128) seen_backward_kv_64(Attention a, const int *seen) { backward_kv<2, SOME>(a, Far(), seen); }
KERNEL __launch_bounds__(128) seen_256(Attention a, const int *seen) { forward<8, SOME>(a, Far(), seen); }
KERNEL __launch_bounds__(128) seen_backward_q_256(Attention a, const int *seen) { backward_q<8, SOME>(a, Far(), seen); }
KERNEL __launch_bounds__(128) seen_backward_kv_256(Attention a, const int *seen) { backward_kv<8, SOME>(a, Far(), seen); }

// bias_gradient: block (r, h) adds the gradients of all scores that had bias[r, h]. Products come straight from memory, slowly: of models
// with such biases (MPNet) heads have 64 features, for which flash.cu has a kernel in bf16.
template <Sees SEES> DEVICE void bias_gradient(const Attention &a, const int *seen) {
	__shared__ float parts[4];
	int r = blockIdx.x, h = blockIdx.y, dim = a.dim;
	float sum = 0.f;
	for (int b = 0; b < a.rows; b++) {
		int lo = a.cu[b], n = a.cu[b + 1] - lo;
		for (int i = threadIdx.x; i < n; i += blockDim.x) {
			Range see = keys_of(a, i, i, SEES == SOME ? seen[b] : n);
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

KERNEL attention_dbias(Attention a) { bias_gradient<TOKENS>(a, 0); }
KERNEL seen_dbias(Attention a, const int *seen) { bias_gradient<SOME>(a, seen); }

// far_gradients adds up, for 16 distances of a head, the gradients of their keys and queries, over every workers-th sequence: into parts
// [workers, H, 2*longest-1, 2*D].
template <int NV> DEVICE void far_gradients(const Attention &a, const Far &f, float *parts) {
	DYNAMIC_SHARED(float, shared);
	int h = blockIdx.y, longest = f.longest, first = blockIdx.z * OWN - (longest - 1), dim = a.dim, pitch = dim + 1;
	float *pks = shared, *pqs = pks + OWN * dim, *qs = pqs + OWN * dim, *os = qs + OTHER * pitch;
	float *ks = os + OTHER * pitch, *vs = ks + FAR * pitch, *ds = vs + FAR * pitch;
	stage_far(a, f, pks, dim, f.keys, f.skeys, first, OWN, h);
	stage_far(a, f, pqs, dim, f.queries, f.squeries, first, OWN, h);
	float dk[4][NV] = {}, dq[4][NV] = {};
	for (int b = blockIdx.x; b < a.rows; b += gridDim.x) {
		int lo = a.cu[b], n = a.cu[b + 1] - lo;
		for (int q0 = 0; q0 < n; q0 += OTHER) {
			int k0 = q0 + first; // query q0 + l and distance first + o have key k0 + l + o
			if (k0 >= n || k0 + FAR <= 0) continue;
			__syncthreads();
			stage(a, qs, pitch, a.q, a.sq, lo, q0, OTHER, n, h);
			stage(a, os, pitch, a.dctx, a.sdctx, lo, q0, OTHER, n, h);
			int before = max(0, -k0); // keys that are not there
			for (int i = threadIdx.x; i < before * pitch; i += blockDim.x) ks[i] = vs[i] = 0.f;
			stage(a, ks + before * pitch, pitch, a.k, a.sk, lo, k0 + before, FAR - before, n, h);
			stage(a, vs + before * pitch, pitch, a.v, a.sv, lo, k0 + before, FAR - before, n, h);
			__syncthreads();
#pragma unroll
			for (int r = 0; r < 4; r++) {
				int own = warp_id() * 4 + r, i = q0 + lane_id(), at = lane_id() + own, j = k0 + at;
				float d = 0.f;
				if (j >= 0 && visible(a, i, j, n)) {
					const float *q = qs + lane_id() * pitch, *k = ks + at * pitch;
					Score c = score(a, dot(q, k, dim) + far_products(a, f, q, k, pks + own * dim, pqs + own * dim), i, j, h);
					float p = expf(c.s - a.lse[(size_t)h * a.slse + lo + i]);
					d = factor(a, b, i, j, h) * dot(os + lane_id() * pitch, vs + at * pitch, dim);
					d = rounded(a, p * (d - a.delta[(size_t)h * a.sdelta + lo + i]) * c.slope * a.scale);
				}
				ds[own * OTHER + lane_id()] = d;
				__syncwarp();
				accumulate<NV>(dk[r], ds + own * OTHER, qs, pitch, dim);
				accumulate<NV>(dq[r], ds + own * OTHER, ks + own * pitch, pitch, dim);
				__syncwarp();
			}
		}
	}
#pragma unroll
	for (int r = 0; r < 4; r++) {
		int at = blockIdx.z * OWN + warp_id() * 4 + r;
		float *to = parts + ((size_t)(blockIdx.x * a.heads + h) * (2 * longest - 1) + at) * 2 * dim;
#pragma unroll
		for (int v = 0; v < NV; v++) {
			int d = lane_id() + v * WARP;
			if (at < 2 * longest - 1 && d < dim) to[d] = dk[r][v], to[dim + d] = dq[r][v];
		}
	}
}

KERNEL __launch_bounds__(128) positions_32(Attention a, Far f) { forward<1, POSITIONS>(a, f, 0); }
KERNEL __launch_bounds__(128) positions_backward_q_32(Attention a, Far f) { backward_q<1, POSITIONS>(a, f, 0); }
KERNEL __launch_bounds__(128) positions_backward_kv_32(Attention a, Far f) { backward_kv<1, POSITIONS>(a, f, 0); }
KERNEL __launch_bounds__(128) positions_gradients_32(Attention a, Far f, float *parts) { far_gradients<1>(a, f, parts); }
KERNEL __launch_bounds__(128) positions_64(Attention a, Far f) { forward<2, POSITIONS>(a, f, 0); }
KERNEL __launch_bounds__(128) positions_backward_q_64(Attention a, Far f) { backward_q<2, POSITIONS>(a, f, 0); }
KERNEL __launch_bounds__(128) positions_backward_kv_64(Attention a, Far f) { backward_kv<2, POSITIONS>(a, f, 0); }
KERNEL __launch_bounds__(128) positions_gradients_64(Attention a, Far f, float *parts) { far_gradients<2>(a, f, parts); }
KERNEL __launch_bounds__(128) positions_128(Attention a, Far f) { forward<4, POSITIONS>(a, f, 0); }
KERNEL __launch_bounds__(128) positions_backward_q_128(Attention a, Far f) { backward_q<4, POSITIONS>(a, f, 0); }
KERNEL __launch_bounds__(128) positions_backward_kv_128(Attention a, Far f) { backward_kv<4, POSITIONS>(a, f, 0); }
KERNEL __launch_bounds__(128) positions_gradients_128(Attention a, Far f, float *parts) { far_gradients<4>(a, f, parts); }

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
