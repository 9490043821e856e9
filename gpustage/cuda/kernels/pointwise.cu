// Ops whose elements don't meet: bound by memory, a quad of columns to a thread.
#include "common.cuh"

// fill sets [rows, cols] elements of 1 << shift bytes to the lower bits of value.
KERNEL fill(void *dst, int stride, u64 value, int shift, u32 rows, u32 cols) {
	EACH(rows, cols, 1) {
		size_t i = PLACE(stride);
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
	EACH(rows, cols, 1) {
		size_t to = PLACE(dstride), from = PLACE(sstride);
		if (dtype != stype) store_any(dst, to, dtype, load_any(src, from, stype));
		else if (dtype == F64 || dtype == U64) ((u64 *)dst)[to] = ((const u64 *)src)[from];
		else if (dtype == BF16) ((u16 *)dst)[to] = ((const u16 *)src)[from];
		else ((u32 *)dst)[to] = ((const u32 *)src)[from];
	}
}

// to_bf16 is convert of f32, as products take it.
KERNEL to_bf16(u16 *dst, int dstride, const float *src, int sstride, int vec, u32 rows, u32 cols) {
	EACH_QUAD(rows, cols) {
		Quad q = load_quad(AT(src, sstride), n, vec);
		store_bf16(AT(dst, dstride), q, n, vec);
	}
}

// to_pairs makes of x what products of pairs take: hi is x rounded, and lo what that left, rounded. Where hi is infinite, or no number, lo is 0.
KERNEL to_pairs(u16 *hi, int shi, u16 *lo, int slo, const float *x, int sx, int vec, u32 rows, u32 cols) {
	EACH_QUAD(rows, cols) {
		Quad q = load_quad(AT(x, sx), n, vec), rest;
		for (int i = 0; i < 4; i++) {
			float r = q.v[i] - round_bf16(q.v[i]);
			rest.v[i] = fabsf(r) <= 3e38f ? r : 0.f;
		}
		store_bf16(AT(hi, shi), q, n, vec);
		store_bf16(AT(lo, slo), rest, n, vec);
	}
}

KERNEL add(float *y, int sy, const float *a, int sa, const float *b, int sb, int vec, u32 rows, u32 cols) {
	EACH_QUAD(rows, cols) {
		Quad p = load_quad(AT(a, sa), n, vec), q = load_quad(AT(b, sb), n, vec);
		for (int i = 0; i < 4; i++) p.v[i] += q.v[i];
		store_quad(AT(y, sy), p, n, vec);
	}
}

// add_f64 is for sums over ranks of what is counted in f64.
KERNEL add_f64(double *y, int sy, const double *a, int sa, const double *b, int sb, u32 rows, u32 cols) {
	EACH(rows, cols, 1) *AT(y, sy) = *AT(a, sa) + *AT(b, sb);
}

KERNEL scale(float *y, int sy, const float *x, int sx, float alpha, int vec, u32 rows, u32 cols) {
	EACH_QUAD(rows, cols) {
		Quad p = load_quad(AT(x, sx), n, vec);
		for (int i = 0; i < 4; i++) p.v[i] *= alpha;
		store_quad(AT(y, sy), p, n, vec);
	}
}

KERNEL activation(void *y, int sy, const void *x, int sx, int f, int half, int vec, u32 rows, u32 cols) {
	EACH_QUAD(rows, cols) {
		Quad p = load_half(x, PLACE(sx), n, vec, half & 2), on, slope;
		activate(p, f, on, slope);
		store_half(y, PLACE(sy), on, n, vec, half & 1);
	}
}

// activation_wide is activation from bf16 to bf16, eight elements to a thread, 16 bytes: with 8 a multiprocessor has 16 KB of reads under way, for
// which an H200's memory wants some 25 (its bandwidth times 700 ns). Rows begin at multiples of 16 bytes and have a multiple of eight columns.
template <int F> DEVICE void activate_eights(u16 *y, int sy, const u16 *x, int sx, u32 rows, u32 cols) {
	EACH(rows, cols, 8) {
		uint4 v = *(const uint4 *)AT(x, sx);
		u32 two[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
		for (int i = 0; i < 4; i += 2) {
			Quad on, slope;
			activate(unpack(two[i], two[i + 1]), F, on, slope);
			two[i] = pack_bf16(on.v[0], on.v[1]), two[i + 1] = pack_bf16(on.v[2], on.v[3]);
		}
		v.x = two[0], v.y = two[1], v.z = two[2], v.w = two[3];
		*(uint4 *)AT(y, sy) = v;
	}
}

KERNEL activation_wide(u16 *y, int sy, const u16 *x, int sx, int f, u32 rows, u32 cols) {
	FOR_ACTIVATION(f, activate_eights, y, sy, x, sx, rows, cols);
}

KERNEL activation_backward(void *dx, int sdx, const void *dy, int sdy, const void *x, int sx, int f, int half, int vec, u32 rows, u32 cols) {
	EACH_QUAD(rows, cols) {
		Quad d = load_half(dy, PLACE(sdy), n, vec, half & 2), p = load_half(x, PLACE(sx), n, vec, half & 4), on, slope;
		activate(p, f, on, slope);
		for (int i = 0; i < 4; i++) d.v[i] *= slope.v[i];
		store_half(dx, PLACE(sdx), d, n, vec, half & 1);
	}
}

KERNEL gate(void *y, int sy, const void *g, int sg, const void *u, int su, int f, int half, int vec, u32 rows, u32 cols) {
	EACH_QUAD(rows, cols) {
		Quad p = load_half(g, PLACE(sg), n, vec, half & 2), q = load_half(u, PLACE(su), n, vec, half & 4), on, slope;
		activate(p, f, on, slope);
		for (int i = 0; i < 4; i++) on.v[i] *= q.v[i];
		store_half(y, PLACE(sy), on, n, vec, half & 1);
	}
}

// again, which may be dy, is what gate makes, or 0.
KERNEL gate_backward(void *dg, int sdg, void *du, int sdu, void *again, int sagain, const void *dy, int sdy, const void *g, int sg,
                     const void *u, int su, int f, int half, int vec, u32 rows, u32 cols) {
	EACH_QUAD(rows, cols) {
		Quad d = load_half(dy, PLACE(sdy), n, vec, half & 8), p = load_half(g, PLACE(sg), n, vec, half & 16);
		Quad q = load_half(u, PLACE(su), n, vec, half & 32), on, slope, a, b, c;
		activate(p, f, on, slope);
		for (int i = 0; i < 4; i++) {
			a.v[i] = d.v[i] * q.v[i] * slope.v[i];
			b.v[i] = d.v[i] * on.v[i];
			c.v[i] = on.v[i] * q.v[i];
		}
		store_half(dg, PLACE(sdg), a, n, vec, half & 1);
		store_half(du, PLACE(sdu), b, n, vec, half & 2);
		if (again) store_half(again, PLACE(sagain), c, n, vec, half & 4);
	}
}

// dropout is y = residual + mask * x; res may be 0.
KERNEL dropout(void *y, int sy, const void *x, int sx, const float *res, int sres, const u64 *keys, const int *rowOf, const int *pos,
               u32 site, u32 threshold, float keep, int half, int vec, u32 rows, u32 cols) {
	EACH_QUAD(rows, cols) {
		Quad p = load_half(x, PLACE(sx), n, vec, half & 2);
		if (keys) drop_quad(p, col, keys[rowOf[row]], pos[row], site, threshold, keep);
		if (res) {
			Quad r = load_quad(AT(res, sres), n, vec);
			for (int i = 0; i < 4; i++) p.v[i] += r.v[i];
		}
		store_half(y, PLACE(sy), p, n, vec, half & 1);
	}
}

// epilogue is what gpustage.MatMul puts around a product, c = f(acc); each pointer may be 0, acc may be c and again gradOf.
KERNEL epilogue(void *c, int sc, const void *acc, int sacc, const float *bias, const void *gradOf, int sgrad, void *again, int sagain, int f,
                const u64 *keys, const int *rowOf, const int *pos, u32 site, u32 threshold, float keep, const float *res, int sres, int sum,
                int half, int vec, u32 rows, u32 cols) {
	EACH_QUAD(rows, cols) {
		Quad x = load_half(acc, PLACE(sacc), n, vec, half & 2);
		if (bias) {
			Quad b = load_quad(bias + col, n, vec);
			for (int i = 0; i < 4; i++) x.v[i] += b.v[i];
		}
		if (gradOf) {
			Quad g = load_half(gradOf, PLACE(sgrad), n, vec, half & 4), on, slope;
			activate(g, f, on, slope);
			for (int i = 0; i < 4; i++) x.v[i] *= slope.v[i];
			if (again) store_half(again, PLACE(sagain), on, n, vec, half & 8);
		} else if (f != IDENTITY) {
			Quad slope;
			activate(x, f, x, slope);
		}
		if (keys) drop_quad(x, col, keys[rowOf[row]], pos[row], site, threshold, keep);
		if (res) {
			Quad r = load_quad(AT(res, sres), n, vec);
			for (int i = 0; i < 4; i++) x.v[i] += r.v[i];
		}
		if (sum) {
			Quad r = load_half(c, PLACE(sc), n, vec, half & 1);
			for (int i = 0; i < 4; i++) x.v[i] += r.v[i];
		}
		store_half(c, PLACE(sc), x, n, vec, half & 1);
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

// rotary turns the pairs (j, j + half) of every head. A block has a token, its threads pairs in x, or features beyond them, and heads in y. bf16 is
// a mask as elsewhere.
KERNEL rotary(void *y, int sy, const void *x, int sx, const float *table, int st, const int *index, int half, int dim, float sign, int bf16,
              u32 rows, u32 cols) {
	u32 per = dim - half, heads = cols / dim;
	for (u32 row = blockIdx.x; row < rows; row += gridDim.x) {
		const float *angles = table + (size_t)index[row] * st;
		for (u32 j = threadIdx.x; j < per; j += blockDim.x) {
			bool pair = j < half;
			float cosine = pair ? angles[j] : 1.f, sine = pair ? sign * angles[j + half] : 0.f;
			for (u32 head = threadIdx.y; head < heads; head += blockDim.y) {
				size_t from = (size_t)row * sx + head * dim + j, to = (size_t)row * sy + head * dim + j;
				float b = load_one(x, from + half, bf16 & 2);
				if (!pair) {
					store_one(y, to + half, b, bf16 & 1);
					continue;
				}
				float a = load_one(x, from, bf16 & 2);
				store_one(y, to, a * cosine - b * sine, bf16 & 1);
				store_one(y, to + half, b * cosine + a * sine, bf16 & 1);
			}
		}
	}
}

#define RUNS 140
#define RUN_BLOCK 4096 // elements of a run for each block

// Run is parameters n elements from p on, their moments from state, their gradients from g. keep is 1 - LR*WeightDecay, step LR/(1-Beta1^t).
struct Run {
	u32 block, n, p, state, g; // block: the first one that works on it
	float keep, step;
};

// Updates is one launch's; the launching side fills a struct of the same layout, of less than the 4 KB that a launch's arguments may take. root is
// 1/sqrt(1-Beta2^t).
struct Updates {
	float *p, *m, *v;
	const float *g;
	float gradScale, beta1, rest1, beta2, rest2, root, eps;
	int runs;
	Run run[RUNS];
};

// adamw updates all parameters in one launch, up to RUNS runs. Weights decay and biases don't, so that a BERT-base has 98 runs: as
// launches of their own they would add some 0.3 ms (an estimate) to the 0.74 ms that its 3.1 GB take on an H200, 84 % of what its memory does. That is
// nothing in a step of 16,384 pairs, and a fiftieth of one of 256 short ones through MiniLM.
KERNEL adamw(Updates a) {
	int lo = 0, hi = a.runs - 1; // the last run that begins at this block or before
	while (lo < hi) {
		int mid = (lo + hi + 1) / 2;
		if (a.run[mid].block <= blockIdx.x) lo = mid;
		else hi = mid - 1;
	}
	float *p = a.p + a.run[lo].p, *m = a.m + a.run[lo].state, *v = a.v + a.run[lo].state, keep = a.run[lo].keep, step = a.run[lo].step;
	const float *g = a.g + a.run[lo].g;
	int vec = (((size_t)p | (size_t)m | (size_t)v | (size_t)g) & 15) == 0;
	u32 from = (blockIdx.x - a.run[lo].block) * RUN_BLOCK, end = min(from + RUN_BLOCK, a.run[lo].n);
	for (u32 at = from + threadIdx.x * 4; at < end; at += blockDim.x * 4) {
		int n = min(4u, end - at);
		Quad x = load_quad(p + at, n, vec), b = load_quad(m + at, n, vec), c = load_quad(v + at, n, vec), d = load_quad(g + at, n, vec);
		for (int i = 0; i < 4; i++) {
			float grad = d.v[i] * a.gradScale;
			b.v[i] = a.beta1 * b.v[i] + a.rest1 * grad;
			c.v[i] = a.beta2 * c.v[i] + a.rest2 * grad * grad;
			x.v[i] = x.v[i] * keep - step * b.v[i] / (sqrtf(c.v[i]) * a.root + a.eps);
		}
		store_quad(p + at, x, n, vec);
		store_quad(m + at, b, n, vec);
		store_quad(v + at, c, n, vec);
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
