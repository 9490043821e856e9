// Ops that reduce rows: a warp to a row, four rows to a block of 128 threads. Where an op needs a row twice it reads it again from the first-level
// cache; forward norms keep it.
#include "common.cuh"

#define ROW_OF_WARP                                    \
	int row = blockIdx.x * 4 + warp_id();              \
	if (row >= rows) return

// EACH_OWN visits the lane's quads of a row.
#define EACH_OWN(cols) for (int col = lane_id() * 4, n; n = min(4, (cols)-col), col < (cols); col += 4 * WARP)

// A lane keeps so many quads of a row between the passes of a norm, 1,024 columns of the row: what has just been written would be read again from the
// second-level cache. EACH_KEPT visits those that the row has, EACH_OTHER the rest, which is read again. It takes 64 to 96 registers instead of 40, so
// that some 20 warps fit into a multiprocessor; each then has all of its row under way. Not timed.
#define KEPT 8
#define EACH_KEPT(cols)                                                     \
	_Pragma("unroll") for (int q = 0; q < KEPT; q++)                         \
		if (int col = (q * WARP + lane_id()) * 4, n = min(4, (cols)-col); n > 0)
#define EACH_OTHER(cols) for (int col = (KEPT * WARP + lane_id()) * 4, n; n = min(4, (cols)-col), col < (cols); col += 4 * WARP)

// deviation is 1/sqrt(variance + eps) of a row whose mean is m.
DEVICE float deviation(const Quad kept[KEPT], const float *x, float m, float eps, int vec, int cols) {
	float squares = 0.f;
	EACH_KEPT(cols)
		for (int i = 0; i < n; i++) squares += (kept[q].v[i] - m) * (kept[q].v[i] - m);
	EACH_OTHER(cols) {
		Quad p = load_quad(x + col, n, vec);
		for (int i = 0; i < n; i++) squares += (p.v[i] - m) * (p.v[i] - m);
	}
	return 1.f / sqrtf(warp_sum(squares) / cols + eps);
}

// normalized is (p - m) * r * gamma + beta; beta may be 0.
DEVICE void normalized(Quad &p, float m, float r, const float *gamma, const float *beta, int col, int n, int vec) {
	Quad g = load_quad(gamma + col, n, vec);
	for (int i = 0; i < 4; i++) p.v[i] = (p.v[i] - m) * r * g.v[i];
	if (!beta) return;
	Quad b = load_quad(beta + col, n, vec);
	for (int i = 0; i < 4; i++) p.v[i] += b.v[i];
}

// copy_quad is a quad of y's operand, if there is one.
DEVICE void copy_quad(u16 *operand, size_t at, const Quad &p, int n, int vec) {
	if (operand) store_bf16(operand + at, p, n, vec);
}

// all_of is a quad's sum, in one order: a backward pass gets the same bits from layer_norm as from epilogue_norm.
DEVICE float all_of(const Quad &p) { return (p.v[0] + p.v[1]) + (p.v[2] + p.v[3]); }

// layer_norm is y = norm(x), and operand y in bf16, if it is not 0.
KERNEL layer_norm(void *y, int sy, u16 *operand, int so, float *mean, float *rstd, const float *x, int sx, const float *gamma,
                  const float *beta, float eps, int half, int vec, int rows, int cols) {
	ROW_OF_WARP;
	x += (size_t)row * sx;
	float sum = 0.f;
	Quad kept[KEPT];
	EACH_KEPT(cols) kept[q] = load_quad(x + col, n, vec); // all are under way at once
	EACH_KEPT(cols) sum += all_of(kept[q]);
	EACH_OTHER(cols) sum += all_of(load_quad(x + col, n, vec));
	float m = warp_sum(sum) / cols, r = deviation(kept, x, m, eps, vec, cols);
	if (lane_id() == 0) mean[row] = m, rstd[row] = r;
	auto finish = [&](Quad p, int col, int n) {
		normalized(p, m, r, gamma, beta, col, n, vec);
		store_half(y, PLACE(sy), p, n, vec, half & 1);
		copy_quad(operand, PLACE(so), p, n, vec);
	};
	EACH_KEPT(cols) finish(kept[q], col, n);
	EACH_OTHER(cols) finish(load_quad(x + col, n, vec), col, n);
}

DEVICE void add_row(Quad &p, const float *from, int col, int n, int vec) {
	if (!from) return;
	Quad q = load_quad(from + col, n, vec);
	for (int i = 0; i < 4; i++) p.v[i] += q.v[i];
}

// epilogue_norm is what is around a product that ends in a layer norm: sum = residual + dropout(acc + bias), y = norm(sum), and operand y
// in bf16. keys, bias, res and operand may be 0; acc may be sum. Where sum is of bf16, y is of what it was before, and acc may be y. In two passes sum would be read once more: 10 us for 16,384 tokens and 768 columns,
// twice a layer and forward pass, 0.5 ms of the 30 of a BERT-base's forward and backward passes (an estimate for an H200, with a cached
// batch's second forward pass).
KERNEL epilogue_norm(float *y, int sy, u16 *operand, int so, float *mean, float *rstd, void *sum, int ssum, const float *acc, int sacc,
                     const float *bias, const float *res, int sres, const float *gamma, const float *beta, float eps, const u64 *keys,
                     const int *rowOf, const int *pos, u32 site, u32 threshold, float keep, int half, int vec, int rows, int cols) {
	ROW_OF_WARP;
	float *again = half ? y + (size_t)row * sy : (float *)sum + (size_t)row * ssum; // what is read again in f32
	float total = 0.f;
	Quad kept[KEPT];
	auto make = [&](Quad p, int col, int n) {
		Quad other = {};
		add_row(other, res ? res + (size_t)row * sres : 0, col, n, vec);
		add_row(p, bias, col, n, vec);
		if (keys) drop_quad(p, row, col, keys, rowOf, pos, site, threshold, keep);
		for (int i = 0; i < 4; i++) p.v[i] += other.v[i];
		total += all_of(p);
		store_half(sum, PLACE(ssum), p, n, vec, half);
		return p;
	};
	EACH_KEPT(cols) kept[q] = load_quad(AT(acc, sacc), n, vec); // all are under way at once
	EACH_KEPT(cols) kept[q] = make(kept[q], col, n);
	EACH_OTHER(cols) {
		Quad p = make(load_quad(AT(acc, sacc), n, vec), col, n);
		if (half) store_quad(again + col, p, n, vec);
	}
	float m = warp_sum(total) / cols, r = deviation(kept, again, m, eps, vec, cols);
	if (lane_id() == 0) mean[row] = m, rstd[row] = r;
	auto finish = [&](Quad p, int col, int n) {
		normalized(p, m, r, gamma, beta, col, n, vec);
		store_quad(AT(y, sy), p, n, vec);
		copy_quad(operand, PLACE(so), p, n, vec);
	};
	EACH_KEPT(cols) finish(kept[q], col, n);
	EACH_OTHER(cols) finish(load_quad(again + col, n, vec), col, n);
}

// embed is y = dropout(norm(sum)) for sum[T, C] = scale * a row of words[V, C] + rows of two other tables, which may be 0; and operand y in
// bf16, if it is not 0. A warp has a token. Without gamma there is no norm: mean, rstd and beta are 0 too. sum may be y: a lane reads what it
// has written itself.
//
// By itself it is five launches that move [T, C] ten times; here the words' rows come and sum and y go. For 16,384 tokens and 768
// columns that is 0.5 GB against 0.15 GB, 70 us of the 30 ms of a BERT-base's forward and backward passes, twice with a cached batch; a
// MiniLM's take an eighth of that time, and this half (estimates for an H200: 4.8 TB/s, 45 % of 790 TFLOP/s).
KERNEL embed(float *y, int sy, u16 *operand, int so, float *sum, int ssum, float *mean, float *rstd, const float *words, int sw,
             const int *ids, const float *places, int sp, const int *placeOf, const float *kinds, int sk, const int *kindOf, float scale,
             const float *gamma, const float *beta, float eps, const u64 *keys, const int *rowOf, const int *pos, u32 site, u32 threshold,
             float keep, int vec, int rows, int cols) {
	ROW_OF_WARP;
	const float *word = words + (size_t)ids[row] * sw;
	const float *place = places ? places + (size_t)placeOf[row] * sp : 0, *kind = kinds ? kinds + (size_t)kindOf[row] * sk : 0;
	sum += (size_t)row * ssum, y += (size_t)row * sy;
	float total = 0.f, m = 0.f, r = 0.f;
	Quad kept[KEPT];
	auto make = [&](Quad p, int col, int n) {
		for (int i = 0; i < 4; i++) p.v[i] *= scale;
		add_row(p, place, col, n, vec);
		add_row(p, kind, col, n, vec);
		for (int i = 0; i < n; i++) total += p.v[i];
		store_quad(sum + col, p, n, vec);
		return p;
	};
	EACH_KEPT(cols) kept[q] = load_quad(word + col, n, vec); // all are under way at once
	EACH_KEPT(cols) kept[q] = make(kept[q], col, n);
	EACH_OTHER(cols) make(load_quad(word + col, n, vec), col, n);
	if (!gamma && !keys && sum == y && !operand) return;
	if (gamma) {
		m = warp_sum(total) / cols, r = deviation(kept, sum, m, eps, vec, cols);
		if (lane_id() == 0) mean[row] = m, rstd[row] = r;
	}
	auto finish = [&](Quad p, int col, int n) {
		if (gamma) normalized(p, m, r, gamma, beta, col, n, vec);
		if (keys) drop_quad(p, row, col, keys, rowOf, pos, site, threshold, keep);
		store_quad(y + col, p, n, vec);
		copy_quad(operand, PLACE(so), p, n, vec);
	};
	EACH_KEPT(cols) finish(kept[q], col, n);
	EACH_OTHER(cols) finish(load_quad(sum + col, n, vec), col, n);
}

KERNEL layer_norm_backward(float *dx, int sdx, const float *dy, int sdy, const void *x, int sx, const float *mean, const float *rstd,
                           const float *gamma, int half, int vec, int rows, int cols) {
	ROW_OF_WARP;
	float m = mean[row], r = rstd[row], avgE = 0.f, avgEN = 0.f;
	EACH_OWN(cols) {
		Quad d = load_quad(AT(dy, sdy), n, vec), p = load_half(x, PLACE(sx), n, vec, half), g = load_quad(gamma + col, n, vec);
		for (int i = 0; i < n; i++) {
			float e = d.v[i] * g.v[i];
			avgE += e;
			avgEN += e * (p.v[i] - m) * r;
		}
	}
	avgE = warp_sum(avgE) / cols, avgEN = warp_sum(avgEN) / cols;
	EACH_OWN(cols) {
		Quad d = load_quad(AT(dy, sdy), n, vec), p = load_half(x, PLACE(sx), n, vec, half), g = load_quad(gamma + col, n, vec);
		for (int i = 0; i < 4; i++) d.v[i] = r * (d.v[i] * g.v[i] - avgE - (p.v[i] - m) * r * avgEN);
		store_quad(AT(dx, sdx), d, n, vec);
	}
}

// rms_norm has rows * (cols / dim) groups, a warp each: gamma has dim elements.
KERNEL rms_norm(void *y, int sy, float *rstd, const void *x, int sx, const float *gamma, float eps, float offset, int dim, int half, int vec,
                int rows, int cols) {
	int group = blockIdx.x * 4 + warp_id(), groups = cols / dim, row = group / groups, first = group % groups * dim;
	if (row >= rows) return;
	float squares = 0.f;
	EACH_OWN(dim) {
		Quad p = load_half(x, PLACE(sx) + first, n, vec, half & 2);
		for (int i = 0; i < n; i++) squares += p.v[i] * p.v[i];
	}
	float r = 1.f / sqrtf(warp_sum(squares) / dim + eps);
	if (lane_id() == 0) rstd[group] = r;
	EACH_OWN(dim) {
		Quad p = load_half(x, PLACE(sx) + first, n, vec, half & 2), g = load_quad(gamma + col, n, vec);
		for (int i = 0; i < 4; i++) p.v[i] = p.v[i] * r * (g.v[i] + offset);
		store_half(y, PLACE(sy) + first, p, n, vec, half & 1);
	}
}

KERNEL rms_norm_backward(void *dx, int sdx, const void *dy, int sdy, const void *x, int sx, const float *rstd, const float *gamma,
                         float offset, int dim, int half, int vec, int rows, int cols) {
	int group = blockIdx.x * 4 + warp_id(), groups = cols / dim, row = group / groups, first = group % groups * dim;
	if (row >= rows) return;
	float r = rstd[group], avg = 0.f;
	EACH_OWN(dim) {
		Quad d = load_half(dy, PLACE(sdy) + first, n, vec, half & 2), p = load_half(x, PLACE(sx) + first, n, vec, half & 4);
		Quad g = load_quad(gamma + col, n, vec);
		for (int i = 0; i < n; i++) avg += d.v[i] * (g.v[i] + offset) * (p.v[i] * r);
	}
	avg = warp_sum(avg) / dim;
	EACH_OWN(dim) {
		Quad d = load_half(dy, PLACE(sdy) + first, n, vec, half & 2), p = load_half(x, PLACE(sx) + first, n, vec, half & 4);
		Quad g = load_quad(gamma + col, n, vec);
		for (int i = 0; i < 4; i++) d.v[i] = r * (d.v[i] * (g.v[i] + offset) - p.v[i] * r * avg);
		store_half(dx, PLACE(sdx) + first, d, n, vec, half & 1);
	}
}

KERNEL normalize(float *y, int sy, float *norm, const float *x, int sx, int vec, int rows, int cols) {
	ROW_OF_WARP;
	float squares = 0.f;
	EACH_OWN(cols) {
		Quad p = load_quad(AT(x, sx), n, vec);
		for (int i = 0; i < n; i++) squares += p.v[i] * p.v[i];
	}
	float length = fmaxf(sqrtf(warp_sum(squares)), 1e-12f);
	if (lane_id() == 0) norm[row] = length;
	EACH_OWN(cols) {
		Quad p = load_quad(AT(x, sx), n, vec);
		for (int i = 0; i < 4; i++) p.v[i] /= length;
		store_quad(AT(y, sy), p, n, vec);
	}
}

KERNEL normalize_backward(float *dx, int sdx, const float *dy, int sdy, const float *y, int sy, const float *norm, int vec, int rows,
                          int cols) {
	ROW_OF_WARP;
	float dot = 0.f, length = norm[row];
	EACH_OWN(cols) {
		Quad d = load_quad(AT(dy, sdy), n, vec), p = load_quad(AT(y, sy), n, vec);
		for (int i = 0; i < n; i++) dot += d.v[i] * p.v[i];
	}
	dot = warp_sum(dot);
	EACH_OWN(cols) {
		Quad d = load_quad(AT(dy, sdy), n, vec), p = load_quad(AT(y, sy), n, vec);
		for (int i = 0; i < 4; i++) d.v[i] = (d.v[i] - p.v[i] * dot) / length;
		store_quad(AT(dx, sdx), d, n, vec);
	}
}

KERNEL row_dot(float *out, const float *a, int sa, const float *b, int sb, float alpha, int vec, int rows, int cols) {
	ROW_OF_WARP;
	float dot = 0.f;
	EACH_OWN(cols) {
		Quad p = load_quad(AT(a, sa), n, vec), q = load_quad(AT(b, sb), n, vec);
		for (int i = 0; i < n; i++) dot += p.v[i] * q.v[i];
	}
	dot = warp_sum(dot);
	if (lane_id() == 0) out[row] = alpha * dot;
}

KERNEL row_axpy(float *y, int sy, const float *x, int sx, const float *w, float alpha, int vec, int rows, int cols) {
	ROW_OF_WARP;
	float f = alpha * w[row];
	EACH_OWN(cols) {
		Quad p = load_quad(AT(y, sy), n, vec), q = load_quad(AT(x, sx), n, vec);
		for (int i = 0; i < 4; i++) p.v[i] += f * q.v[i];
		store_quad(AT(y, sy), p, n, vec);
	}
}

// mask_pairs excludes the pairs of one match from a tile of scores. (Plain "mask" crashes CUDA 12.9's assembler for sm_80 to sm_89, if a
// kernel before it shuffles.)
KERNEL mask_pairs(float *s, int ss, const int *rowIds, const int *colIds, int rows, int cols) {
	ROW_OF_WARP;
	int id = rowIds[row];
	if (id < 0) return;
	for (int col = lane_id(); col < cols; col += WARP)
		if (colIds[col] == id) *AT(s, ss) = MINUS_INF;
}

// mask_above excludes the pairs whose g is above their row's limit.
KERNEL mask_above(float *s, int ss, const float *g, int sg, const float *limit, int rows, int cols) {
	ROW_OF_WARP;
	float most = limit[row];
	for (int col = lane_id(); col < cols; col += WARP)
		if (*AT(g, sg) > most) *AT(s, ss) = MINUS_INF;
}

// online_lse folds a tile of scores into each row's running maximum and sum. A NaN makes the sum NaN, also of a row that is -Inf otherwise.
KERNEL online_lse(float *top, float *sum, const float *s, int ss, int vec, int rows, int cols) {
	ROW_OF_WARP;
	float was = top[row], m = was, z = 0.f;
	EACH_OWN(cols) {
		Quad p = load_quad(AT(s, ss), n, vec);
		for (int i = 0; i < n; i++) m = fmaxf(m, p.v[i]);
	}
	m = warp_max(m);
	float from = m == MINUS_INF ? 0.f : m;
	EACH_OWN(cols) {
		Quad p = load_quad(AT(s, ss), n, vec);
		for (int i = 0; i < n; i++) z += expf(p.v[i] - from);
	}
	z = warp_sum(z);
	__syncwarp(); // every lane has read top
	if (lane_id() == 0) sum[row] = sum[row] * expf(was - from) + z, top[row] = m;
}

// softmax_tile is s = w * exp(s - lse), sum += the row's sum.
KERNEL softmax_tile(float *s, int ss, float *sum, const float *lse, const float *w, int vec, int rows, int cols) {
	ROW_OF_WARP;
	float l = lse[row], f = w[row], total = 0.f;
	EACH_OWN(cols) {
		Quad p = load_quad(AT(s, ss), n, vec);
		for (int i = 0; i < n; i++) p.v[i] = f * expf(p.v[i] - l), total += p.v[i];
		store_quad(AT(s, ss), p, n, vec);
	}
	total = warp_sum(total);
	if (lane_id() == 0) sum[row] += total;
}

enum { MEAN_POOLING, CLS_POOLING, LAST_POOLING }; // as gpustage.Pooling

// pool: a block has 128 columns of one sequence.
KERNEL pool(float *y, int sy, const float *x, int sx, const int *cu, int mode, int cols) {
	int b = blockIdx.x, lo = cu[b], hi = cu[b + 1], col = blockIdx.y * blockDim.x + threadIdx.x;
	if (col >= cols) return;
	if (mode == CLS_POOLING) hi = lo + 1;
	if (mode == LAST_POOLING) lo = hi - 1;
	float sum = 0.f;
#pragma unroll 8
	for (int row = lo; row < hi; row++) sum += *AT(x, sx);
	y[(size_t)b * sy + col] = sum / (hi > lo ? hi - lo : 1);
}

KERNEL pool_backward(float *dx, int sdx, const float *dy, int sdy, const int *cu, int mode, int cols) {
	int b = blockIdx.x, lo = cu[b], hi = cu[b + 1], col = blockIdx.y * blockDim.x + threadIdx.x;
	if (col >= cols) return;
	float d = dy[(size_t)b * sdy + col], mean = d / (hi - lo);
	for (int row = lo; row < hi; row++) {
		bool whole = mode == CLS_POOLING && row == lo || mode == LAST_POOLING && row == hi - 1;
		*AT(dx, sdx) = mode == MEAN_POOLING ? mean : whole ? d : 0.f;
	}
}
