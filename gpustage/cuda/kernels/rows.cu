// Ops that reduce rows: a warp to a row, four rows to a block of 128 threads. A row is read again from the first-level cache where an
// op needs it twice.
#include "common.cuh"

#define ROW_OF_WARP                                    \
	int row = blockIdx.x * 4 + warp_id();              \
	if (row >= rows) return

// EACH_OWN visits the lane's quads of a row.
#define EACH_OWN(cols) for (int col = lane_id() * 4, n; n = min(4, (cols)-col), col < (cols); col += 4 * WARP)

KERNEL layer_norm(float *y, int sy, float *mean, float *rstd, const float *x, int sx, const float *gamma, const float *beta, float eps,
                  int vec, int rows, int cols) {
	ROW_OF_WARP;
	float sum = 0.f, squares = 0.f;
	EACH_OWN(cols) {
		Quad p = load_quad(AT(x, sx), n, vec);
		sum += (p.v[0] + p.v[1]) + (p.v[2] + p.v[3]);
	}
	float m = warp_sum(sum) / cols;
	EACH_OWN(cols) {
		Quad p = load_quad(AT(x, sx), n, vec);
		for (int i = 0; i < n; i++) squares += (p.v[i] - m) * (p.v[i] - m);
	}
	float r = 1.f / sqrtf(warp_sum(squares) / cols + eps);
	if (lane_id() == 0) mean[row] = m, rstd[row] = r;
	EACH_OWN(cols) {
		Quad p = load_quad(AT(x, sx), n, vec), g = load_quad(gamma + col, n, vec);
		for (int i = 0; i < 4; i++) p.v[i] = (p.v[i] - m) * r * g.v[i];
		if (beta) {
			Quad b = load_quad(beta + col, n, vec);
			for (int i = 0; i < 4; i++) p.v[i] += b.v[i];
		}
		store_quad(AT(y, sy), p, n, vec);
	}
}

KERNEL layer_norm_backward(float *dx, int sdx, const float *dy, int sdy, const float *x, int sx, const float *mean, const float *rstd,
                           const float *gamma, int vec, int rows, int cols) {
	ROW_OF_WARP;
	float m = mean[row], r = rstd[row], avgE = 0.f, avgEN = 0.f;
	EACH_OWN(cols) {
		Quad d = load_quad(AT(dy, sdy), n, vec), p = load_quad(AT(x, sx), n, vec), g = load_quad(gamma + col, n, vec);
		for (int i = 0; i < n; i++) {
			float e = d.v[i] * g.v[i];
			avgE += e;
			avgEN += e * (p.v[i] - m) * r;
		}
	}
	avgE = warp_sum(avgE) / cols, avgEN = warp_sum(avgEN) / cols;
	EACH_OWN(cols) {
		Quad d = load_quad(AT(dy, sdy), n, vec), p = load_quad(AT(x, sx), n, vec), g = load_quad(gamma + col, n, vec);
		for (int i = 0; i < 4; i++) d.v[i] = r * (d.v[i] * g.v[i] - avgE - (p.v[i] - m) * r * avgEN);
		store_quad(AT(dx, sdx), d, n, vec);
	}
}

// rms_norm has rows * (cols / dim) groups, a warp each: gamma has dim elements.
KERNEL rms_norm(float *y, int sy, float *rstd, const float *x, int sx, const float *gamma, float eps, float offset, int dim, int vec,
                int rows, int cols) {
	int group = blockIdx.x * 4 + warp_id(), groups = cols / dim, row = group / groups, first = group % groups * dim;
	if (row >= rows) return;
	x += first, y += first;
	float squares = 0.f;
	EACH_OWN(dim) {
		Quad p = load_quad(AT(x, sx), n, vec);
		for (int i = 0; i < n; i++) squares += p.v[i] * p.v[i];
	}
	float r = 1.f / sqrtf(warp_sum(squares) / dim + eps);
	if (lane_id() == 0) rstd[group] = r;
	EACH_OWN(dim) {
		Quad p = load_quad(AT(x, sx), n, vec), g = load_quad(gamma + col, n, vec);
		for (int i = 0; i < 4; i++) p.v[i] = p.v[i] * r * (g.v[i] + offset);
		store_quad(AT(y, sy), p, n, vec);
	}
}

KERNEL rms_norm_backward(float *dx, int sdx, const float *dy, int sdy, const float *x, int sx, const float *rstd, const float *gamma,
                         float offset, int dim, int vec, int rows, int cols) {
	int group = blockIdx.x * 4 + warp_id(), groups = cols / dim, row = group / groups, first = group % groups * dim;
	if (row >= rows) return;
	x += first, dx += first, dy += first;
	float r = rstd[group], avg = 0.f;
	EACH_OWN(dim) {
		Quad d = load_quad(AT(dy, sdy), n, vec), p = load_quad(AT(x, sx), n, vec), g = load_quad(gamma + col, n, vec);
		for (int i = 0; i < n; i++) avg += d.v[i] * (g.v[i] + offset) * (p.v[i] * r);
	}
	avg = warp_sum(avg) / dim;
	EACH_OWN(dim) {
		Quad d = load_quad(AT(dy, sdy), n, vec), p = load_quad(AT(x, sx), n, vec), g = load_quad(gamma + col, n, vec);
		for (int i = 0; i < 4; i++) d.v[i] = r * (d.v[i] * (g.v[i] + offset) - p.v[i] * r * avg);
		store_quad(AT(dx, sdx), d, n, vec);
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

// online_lse folds a tile of scores into each row's running maximum and sum.
KERNEL online_lse(float *top, float *sum, const float *s, int ss, int vec, int rows, int cols) {
	ROW_OF_WARP;
	float was = top[row], m = was, z = 0.f;
	EACH_OWN(cols) {
		Quad p = load_quad(AT(s, ss), n, vec);
		for (int i = 0; i < n; i++) m = fmaxf(m, p.v[i]);
	}
	m = warp_max(m);
	if (m == MINUS_INF) return;
	EACH_OWN(cols) {
		Quad p = load_quad(AT(s, ss), n, vec);
		for (int i = 0; i < n; i++) z += expf(p.v[i] - m);
	}
	z = warp_sum(z);
	if (lane_id() == 0) sum[row] = sum[row] * expf(was - m) + z, top[row] = m;
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
	for (int row = lo; row < hi; row++) sum += *AT(x, sx);
	y[(size_t)b * sy + col] = sum / (hi - lo);
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
