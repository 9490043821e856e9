// Ops whose elements don't meet: bound by memory, a quad of columns to a thread.
#include "common.cuh"

// fill sets [rows, cols] elements of 1 << shift bytes to the lower bits of value.
KERNEL fill(void *dst, int stride, u64 value, int shift, u32 rows, u32 cols) {
	for (u64 at = blockIdx.x * blockDim.x + threadIdx.x, all = (u64)rows * cols; at < all; at += gridDim.x * blockDim.x) {
		size_t i = at / cols * stride + at % cols;
		switch (shift) {
		case 1: ((u16 *)dst)[i] = (u16)value; break;
		case 2: ((u32 *)dst)[i] = (u32)value; break;
		default: ((u64 *)dst)[i] = value;
		}
	}
}

DEVICE double load_any(const void *p, size_t i, int type) {
	switch (type) {
	case F32: return ((const float *)p)[i];
	case F64: return ((const double *)p)[i];
	default: return from_bf16(((const u16 *)p)[i]);
	}
}

DEVICE void store_any(void *p, size_t i, int type, double v) {
	switch (type) {
	case F32: ((float *)p)[i] = (float)v; break;
	case F64: ((double *)p)[i] = v; break;
	default: ((u16 *)p)[i] = (u16)pack_bf16((float)v, 0.f);
	}
}

// convert copies between floating-point types, or elements of one type bit by bit.
KERNEL convert(void *dst, int dstride, int dtype, const void *src, int sstride, int stype, u32 rows, u32 cols) {
	for (u64 at = blockIdx.x * blockDim.x + threadIdx.x, all = (u64)rows * cols; at < all; at += gridDim.x * blockDim.x) {
		size_t to = at / cols * dstride + at % cols, from = at / cols * sstride + at % cols;
		if (dtype != stype) store_any(dst, to, dtype, load_any(src, from, stype));
		else if (dtype == F64 || dtype == U64) ((u64 *)dst)[to] = ((const u64 *)src)[from];
		else if (dtype == BF16) ((u16 *)dst)[to] = ((const u16 *)src)[from];
		else ((u32 *)dst)[to] = ((const u32 *)src)[from];
	}
}

// to_bf16 is convert for a product's inputs. dst is contiguous but for its stride, which is even.
KERNEL to_bf16(u16 *dst, int dstride, const float *src, int sstride, int vec, u32 rows, u32 cols) {
	EACH_QUAD(rows, cols) {
		Quad q = load_quad(AT(src, sstride), n, vec);
		u16 *to = AT(dst, dstride);
		u32 lo = pack_bf16(q.v[0], q.v[1]), hi = pack_bf16(q.v[2], q.v[3]);
		if (n == 4 && vec) {
			uint2 both;
			both.x = lo, both.y = hi;
			*(uint2 *)to = both;
			continue;
		}
		for (int i = 0; i < n; i++) to[i] = (u16)((i < 2 ? lo : hi) >> (i % 2 * 16));
	}
}

KERNEL add(float *y, int sy, const float *a, int sa, const float *b, int sb, int vec, u32 rows, u32 cols) {
	EACH_QUAD(rows, cols) {
		Quad p = load_quad(AT(a, sa), n, vec), q = load_quad(AT(b, sb), n, vec);
		for (int i = 0; i < 4; i++) p.v[i] += q.v[i];
		store_quad(AT(y, sy), p, n, vec);
	}
}

KERNEL scale(float *y, int sy, const float *x, int sx, float alpha, int vec, u32 rows, u32 cols) {
	EACH_QUAD(rows, cols) {
		Quad p = load_quad(AT(x, sx), n, vec);
		for (int i = 0; i < 4; i++) p.v[i] *= alpha;
		store_quad(AT(y, sy), p, n, vec);
	}
}

KERNEL activation(float *y, int sy, const float *x, int sx, int f, int vec, u32 rows, u32 cols) {
	EACH_QUAD(rows, cols) {
		Quad p = load_quad(AT(x, sx), n, vec);
		for (int i = 0; i < 4; i++) p.v[i] = activate(p.v[i], f);
		store_quad(AT(y, sy), p, n, vec);
	}
}

KERNEL activation_backward(float *dx, int sdx, const float *dy, int sdy, const float *x, int sx, int f, int vec, u32 rows, u32 cols) {
	EACH_QUAD(rows, cols) {
		Quad d = load_quad(AT(dy, sdy), n, vec), p = load_quad(AT(x, sx), n, vec);
		for (int i = 0; i < 4; i++) d.v[i] *= activate_grad(p.v[i], f);
		store_quad(AT(dx, sdx), d, n, vec);
	}
}

KERNEL gate(float *y, int sy, const float *g, int sg, const float *u, int su, int f, int vec, u32 rows, u32 cols) {
	EACH_QUAD(rows, cols) {
		Quad p = load_quad(AT(g, sg), n, vec), q = load_quad(AT(u, su), n, vec);
		for (int i = 0; i < 4; i++) p.v[i] = activate(p.v[i], f) * q.v[i];
		store_quad(AT(y, sy), p, n, vec);
	}
}

KERNEL gate_backward(float *dg, int sdg, float *du, int sdu, const float *dy, int sdy, const float *g, int sg, const float *u, int su,
                     int f, int vec, u32 rows, u32 cols) {
	EACH_QUAD(rows, cols) {
		Quad d = load_quad(AT(dy, sdy), n, vec), p = load_quad(AT(g, sg), n, vec), q = load_quad(AT(u, su), n, vec);
		Quad a, b;
		for (int i = 0; i < 4; i++) {
			a.v[i] = d.v[i] * q.v[i] * activate_grad(p.v[i], f);
			b.v[i] = d.v[i] * activate(p.v[i], f);
		}
		store_quad(AT(dg, sdg), a, n, vec);
		store_quad(AT(du, sdu), b, n, vec);
	}
}

// dropout is y = residual + mask * x; res may be 0.
KERNEL dropout(float *y, int sy, const float *x, int sx, const float *res, int sres, const u64 *keys, const int *rowOf, const int *pos,
               u32 site, u32 threshold, float keep, int vec, u32 rows, u32 cols) {
	EACH_QUAD(rows, cols) {
		Quad p = load_quad(AT(x, sx), n, vec);
		if (keys) drop_quad(p, row, col, keys, rowOf, pos, site, threshold, keep);
		if (res) {
			Quad r = load_quad(AT(res, sres), n, vec);
			for (int i = 0; i < 4; i++) p.v[i] += r.v[i];
		}
		store_quad(AT(y, sy), p, n, vec);
	}
}

// epilogue is what gpustage.MatMul puts around a product, c = f(acc); each pointer may be 0, and acc may be c.
KERNEL epilogue(float *c, int sc, const float *acc, int sacc, const float *bias, float *pre, int spre, const float *gradOf, int sgrad,
                int f, const u64 *keys, const int *rowOf, const int *pos, u32 site, u32 threshold, float keep, const float *res, int sres,
                int sum, int vec, u32 rows, u32 cols) {
	EACH_QUAD(rows, cols) {
		Quad x = load_quad(AT(acc, sacc), n, vec);
		if (bias) {
			Quad b = load_quad(bias + col, n, vec);
			for (int i = 0; i < 4; i++) x.v[i] += b.v[i];
		}
		if (pre) store_quad(AT(pre, spre), x, n, vec);
		if (gradOf) {
			Quad g = load_quad(AT(gradOf, sgrad), n, vec);
			for (int i = 0; i < 4; i++) x.v[i] *= activate_grad(g.v[i], f);
		} else if (f != IDENTITY) {
			for (int i = 0; i < 4; i++) x.v[i] = activate(x.v[i], f);
		}
		if (keys) drop_quad(x, row, col, keys, rowOf, pos, site, threshold, keep);
		if (res) {
			Quad r = load_quad(AT(res, sres), n, vec);
			for (int i = 0; i < 4; i++) x.v[i] += r.v[i];
		}
		if (sum) {
			Quad r = load_quad(AT(c, sc), n, vec);
			for (int i = 0; i < 4; i++) x.v[i] += r.v[i];
		}
		store_quad(AT(c, sc), x, n, vec);
	}
}

KERNEL gather(float *y, int sy, const float *table, int st, const int *index, int sum, int vec, u32 rows, u32 cols) {
	EACH_QUAD(rows, cols) {
		Quad p = load_quad(table + (size_t)index[row] * st + col, n, vec);
		if (sum) {
			Quad q = load_quad(AT(y, sy), n, vec);
			for (int i = 0; i < 4; i++) p.v[i] += q.v[i];
		}
		store_quad(AT(y, sy), p, n, vec);
	}
}

// rotary turns the pairs (j, j + half) of every head; a thread has one pair, or one of the features beyond them.
KERNEL rotary(float *y, int sy, const float *x, int sx, const float *table, int st, const int *index, int half, int dim, float sign,
              u32 rows, u32 cols) {
	u32 per = dim - half, heads = cols / dim;
	for (u64 at = blockIdx.x * blockDim.x + threadIdx.x, all = (u64)rows * heads * per; at < all; at += gridDim.x * blockDim.x) {
		u32 j = at % per, head = at / per % heads, row = at / per / heads;
		const float *from = x + (size_t)row * sx + head * dim;
		float *to = y + (size_t)row * sy + head * dim;
		if (j >= half) {
			to[j + half] = from[j + half];
			continue;
		}
		const float *angles = table + (size_t)index[row] * st;
		float a = from[j], b = from[j + half], cosine = angles[j], sine = sign * angles[j + half];
		to[j] = a * cosine - b * sine;
		to[j + half] = b * cosine + a * sine;
	}
}

// adamw updates all parameters in one launch: they are one vector. keep is 1 - LR*WeightDecay, step is LR/(1-Beta1^t), root is
// 1/sqrt(1-Beta2^t).
KERNEL adamw(float *p, int sp, float *m, int sm, float *v, int sv, const float *g, int sg, float gradScale, float beta1, float rest1,
             float beta2, float rest2, float keep, float step, float root, float eps, int vec, u32 rows, u32 cols) {
	EACH_QUAD(rows, cols) {
		Quad a = load_quad(AT(p, sp), n, vec), b = load_quad(AT(m, sm), n, vec), c = load_quad(AT(v, sv), n, vec);
		Quad d = load_quad(AT(g, sg), n, vec);
		for (int i = 0; i < 4; i++) {
			float grad = d.v[i] * gradScale;
			b.v[i] = beta1 * b.v[i] + rest1 * grad;
			c.v[i] = beta2 * c.v[i] + rest2 * grad * grad;
			a.v[i] = a.v[i] * keep - step * b.v[i] / (sqrtf(c.v[i]) * root + eps);
		}
		store_quad(AT(p, sp), a, n, vec);
		store_quad(AT(m, sm), b, n, vec);
		store_quad(AT(v, sv), c, n, vec);
	}
}

// sgd updates p and, where v is not 0, the momentum's buffer.
KERNEL sgd(float *p, int sp, float *v, int sv, const float *g, int sg, float gradScale, float lr, float decay, float momentum, int vec,
           u32 rows, u32 cols) {
	EACH_QUAD(rows, cols) {
		Quad a = load_quad(AT(p, sp), n, vec), d = load_quad(AT(g, sg), n, vec);
		for (int i = 0; i < 4; i++) d.v[i] = d.v[i] * gradScale + decay * a.v[i];
		if (v) {
			Quad b = load_quad(AT(v, sv), n, vec);
			for (int i = 0; i < 4; i++) d.v[i] += momentum * b.v[i];
			store_quad(AT(v, sv), d, n, vec);
		}
		for (int i = 0; i < 4; i++) a.v[i] -= lr * d.v[i];
		store_quad(AT(p, sp), a, n, vec);
	}
}
