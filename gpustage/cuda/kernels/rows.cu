// Ops that reduce rows: a warp to a row, four rows to a block of 128 threads, but for norms that have a block for some rows (norm_rows). Where an op
// needs a row twice it reads it again from the first-level cache; forward norms keep it.
#include "common.cuh"

#define ROW_OF_WARP                                    \
	int row = blockIdx.x * 4 + warp_id();              \
	if (row >= rows) return

// EACH_OWN visits the lane's quads of a row.
#define EACH_OWN(cols) for (int col = lane_id() * 4, n; n = min(4, (cols)-col), col < (cols); col += 4 * WARP)

// A lane keeps so many quads of a row between the passes of a norm, 1,024 columns of the row: what has just been written would be read again from the
// second-level cache. EACH_KEPT visits those that the row has, EACH_OTHER the rest, which is read again. It takes 64 to 96 registers instead of 40,
// so that 20 to 32 warps fit into a multiprocessor; each then has all of its row under way.
#define KEPT 8
#define EACH_KEPT(cols)                                                     \
	_Pragma("unroll") for (int q = 0; q < KEPT; q++)                         \
		if (int col = (q * WARP + lane_id()) * 4, n = min(4, (cols)-col); n > 0)
#define EACH_OTHER(cols) for (int col = (KEPT * WARP + lane_id()) * 4, n; n = min(4, (cols)-col), col < (cols); col += 4 * WARP)

// with_other makes each kept quad of itself and of another row's, whose loads are under way four at a time: no register is left for more.
template <class Load, class Make> DEVICE void with_other(Quad kept[KEPT], int cols, Load load, Make make) {
#pragma unroll
	for (int turn = 0; turn < KEPT / 4; turn++) {
		Quad other[4];
		EACH_KEPT(cols)
			if (q / 4 == turn) other[q % 4] = load(col, n);
		EACH_KEPT(cols)
			if (q / 4 == turn) kept[q] = make(kept[q], other[q % 4], col, n);
	}
}

DEVICE void add(Quad &p, const Quad &q) {
	for (int i = 0; i < 4; i++) p.v[i] += q.v[i];
}

// all_of is a quad's sum, and squares_of that of the squares of its n distances from m. A row's sum is a lane's quads' in their order, and then
// warp_sum's: layer_norm has the bits of epilogue_norm and of epilogue_norm_wide.
DEVICE float all_of(const Quad &p) { return (p.v[0] + p.v[1]) + (p.v[2] + p.v[3]); }
DEVICE float squares_of(const Quad &p, float m, int n) {
	float squares = 0.f;
	for (int i = 0; i < n; i++) squares += (p.v[i] - m) * (p.v[i] - m);
	return squares;
}

// deviation is 1/sqrt(variance + eps) of a row with so many squares.
DEVICE float deviation(float squares, float eps, int cols) { return 1.f / sqrtf(squares / cols + eps); }

// deviation_of is that of a row whose mean is m.
DEVICE float deviation_of(const Quad kept[KEPT], const float *x, float m, float eps, int vec, int cols) {
	float squares = 0.f;
	EACH_KEPT(cols) squares += squares_of(kept[q], m, n);
	EACH_OTHER(cols) squares += squares_of(load_quad(x + col, n, vec), m, n);
	return deviation(warp_sum(squares), eps, cols);
}

// normalized is (p - m) * r * gamma + beta; there may be no beta. The product is rounded before the sum in every kernel: left to the compiler, some
// would do both in one instruction, and have other bits.
DEVICE void normalized(Quad &p, float m, float r, const Quad &gamma, bool shifts, const Quad &beta) {
	for (int i = 0; i < 4; i++) p.v[i] = (p.v[i] - m) * r * gamma.v[i];
	for (int i = 0; i < 4 && shifts; i++) p.v[i] = __fadd_rn(p.v[i], beta.v[i]);
}

DEVICE void normalized(Quad &p, float m, float r, const float *gamma, const float *beta, int col, int n, int vec) {
	normalized(p, m, r, load_quad(gamma + col, n, vec), beta, load_quad(beta + col, beta ? n : 0, vec));
}

// copy_quad is a quad of y's operand, if there is one.
DEVICE void copy_quad(u16 *operand, size_t at, const Quad &p, int n, int vec) {
	if (operand) store_bf16(operand + at, p, n, vec);
}

// layer_norm is y = norm(x).
KERNEL layer_norm(void *y, int sy, float *mean, float *rstd, const float *x, int sx, const float *__restrict__ gamma, const float *__restrict__ beta,
                  float eps, int half, int vec, int rows, int cols) {
	ROW_OF_WARP;
	x += (size_t)row * sx;
	float sum = 0.f;
	Quad kept[KEPT];
	EACH_KEPT(cols) kept[q] = load_quad(x + col, n, vec); // all are under way at once
	EACH_KEPT(cols) sum += all_of(kept[q]);
	EACH_OTHER(cols) sum += all_of(load_quad(x + col, n, vec));
	float m = warp_sum(sum) / cols, r = deviation_of(kept, x, m, eps, vec, cols);
	if (lane_id() == 0) mean[row] = m, rstd[row] = r;
	auto finish = [&](Quad p, int col, int n) {
		normalized(p, m, r, gamma, beta, col, n, vec);
		store_half(y, PLACE(sy), p, n, vec, half & 1);
	};
	EACH_KEPT(cols) finish(kept[q], col, n);
	EACH_OTHER(cols) finish(load_quad(x + col, n, vec), col, n);
}

// layer_norm_with is layer_norm with a mean and a rstd that are there. y may be x. A lean pass's way back has two of them a layer, in bf16: by bytes,
// 9 us each for 12,232 rows of 768 columns (an estimate for an H200).
KERNEL layer_norm_with(void *y, int sy, const void *x, int sx, const float *mean, const float *rstd, const float *__restrict__ gamma,
                       const float *__restrict__ beta, int half, int vec, int rows, int cols) {
	const int N = 4; // quads of a lane that are under way at once
	ROW_OF_WARP;
	float m = mean[row], r = rstd[row];
	for (int from = 4 * lane_id(); from < cols; from += N * 4 * WARP) {
		Quad p[N];
#pragma unroll
		for (int i = 0; i < N; i++) {
			int col = from + i * 4 * WARP;
			p[i] = load_half(x, PLACE(sx), max(0, min(4, cols - col)), vec, half & 2);
		}
#pragma unroll
		for (int i = 0; i < N; i++) {
			int col = from + i * 4 * WARP, n = min(4, cols - col);
			if (n <= 0) break;
			normalized(p[i], m, r, gamma, beta, col, n, vec);
			store_half(y, PLACE(sy), p[i], n, vec, half & 1);
		}
	}
}

// How epilogue_norm says what of its tensors is of bf16, and what operand is of.
enum { HALF_SUM = 1, OF_ROUNDED = 2 };

// finish_quad makes a quad of y and of operand, if there is one, of the sum's.
template <class Normalize>
DEVICE void finish_quad(float *y, size_t at, u16 *operand, size_t there, Quad p, int n, int vec, int half, Normalize normalize) {
	if (operand && half & OF_ROUNDED) { // before p is normalized: no register has both
		Quad q = unpack(pack_bf16(p.v[0], p.v[1]), pack_bf16(p.v[2], p.v[3]));
		normalize(q);
		store_bf16(operand + there, q, n, vec);
	}
	normalize(p);
	store_quad(y + at, p, n, vec);
	if (!(half & OF_ROUNDED)) copy_quad(operand, there, p, n, vec);
}

DEVICE void add_row(Quad &p, const float *from, int col, int n, int vec) {
	if (from) add(p, load_quad(from + col, n, vec));
}

// epilogue_norm is what is around a product that ends in a layer norm: sum = residual + dropout(acc + bias), y = norm(sum), and operand y in
// bf16, or with OF_ROUNDED what layer_norm_with makes of sum in bf16. keys, bias, res and operand may be 0; acc and res may be sum. Where sum is of
// bf16, y is of what it was before, and acc may be y. In two passes sum would be read once more: 10 us for 16,384 tokens and 768 columns, twice a
// layer and forward pass, 0.5 ms of the 30 of a BERT-base's forward and backward passes (an estimate for an H200, with a cached batch's second
// forward pass).
//
// Nothing is written before a lane has all that it keeps: the compiler moves no load above a store that may be to the same place. When one quad's
// residual waited for the store of the one before, six times for 768 columns, 12,232 rows took 62 us, measured on an H200, where memory is busy for
// 38 us.
KERNEL __launch_bounds__(128, 5) epilogue_norm(float *y, int sy, u16 *operand, int so, float *mean, float *rstd, void *sum, int ssum,
                                               const float *acc, int sacc, const float *__restrict__ bias, const float *res, int sres,
                                               const float *__restrict__ gamma, const float *__restrict__ beta, float eps,
                                               const u64 *__restrict__ keys, const int *__restrict__ rowOf, const int *__restrict__ pos, u32 site,
                                               u32 threshold, float keep, int half, int vec, int rows, int cols) {
	ROW_OF_WARP;
	float *again = half & HALF_SUM ? y + (size_t)row * sy : (float *)sum + (size_t)row * ssum; // what is read again in f32
	float total = 0.f;
	Quad kept[KEPT];
	EACH_KEPT(cols) kept[q] = load_quad(AT(acc, sacc), n, vec); // all are under way at once
	u64 key = keys ? keys[rowOf[row]] : 0;
	u32 place = keys ? pos[row] : 0;
	auto residual = [&](int col, int n) { return load_quad(AT(res, sres), res ? n : 0, vec); };
	auto make = [&](Quad p, const Quad &other, int col, int n) {
		add_row(p, bias, col, n, vec);
		if (keys) drop_quad(p, col, key, place, site, threshold, keep);
		add(p, other);
		total += all_of(p);
		return p;
	};
	with_other(kept, cols, residual, make);
	EACH_KEPT(cols) store_half(sum, PLACE(ssum), kept[q], n, vec, half & HALF_SUM);
	EACH_OTHER(cols) {
		Quad p = make(load_quad(AT(acc, sacc), n, vec), residual(col, n), col, n);
		store_half(sum, PLACE(ssum), p, n, vec, half & HALF_SUM);
		if (half & HALF_SUM) store_quad(again + col, p, n, vec);
	}
	float m = warp_sum(total) / cols, r = deviation_of(kept, again, m, eps, vec, cols);
	if (lane_id() == 0) mean[row] = m, rstd[row] = r;
	auto finish = [&](Quad p, int col, int n) {
		finish_quad(y, PLACE(sy), operand, PLACE(so), p, n, vec, half, [&](Quad &p) { normalized(p, m, r, gamma, beta, col, n, vec); });
	};
	EACH_KEPT(cols) finish(kept[q], col, n);
	EACH_OTHER(cols) finish(load_quad(again + col, n, vec), col, n);
}

// What follows is of kernels that make layer norms of up to 2,048 columns whose rows are moved four elements at a time, with layer_norm's additions
// in their order. A block has a chunk of rows and a warp for each 128 columns, a thread four columns of all rows: what is the same for all waits in
// registers. NORM_ROWS of them are made at once while the next are on their way to shared memory, where a thread reads nothing but what it has
// copied itself. Launch bounds are not those of a block: they keep 32 warps on a multiprocessor, by 64 registers to a thread, which the launching
// side counts on.
#define NORM_ROWS 4

// norm_rows makes the rows from lo to hi. begin(first) begins the copies of the rows from first on; take(p) is the quads that have come, whose
// places are free then; came(row, p) stores one; next() is the time for what the next take waits for; and finish(row, i, p, m, r) stores the norm of
// the i-th, whose mean and 1 / deviation are m and r. A thread without columns, whose n is 0, has quads of 0. left is room for 8 floats of each
// thread.
//
// Sums go through the block, of x and then of (x - mean)^2, with a barrier each: every warp adds up what all lanes have left, as one that had the
// whole rows would.
template <class Begin, class Take, class Came, class Next, class Finish>
DEVICE void norm_rows(int lo, int hi, int n, int cols, float eps, float *mean, float *rstd, float *left, Begin begin, Take take, Came came, Next next,
                      Finish finish) {
	int quads = 4 * blockDim.x, own = 4 * threadIdx.x;
	float *totals = left, *squares = left + quads;
	auto all = [&](const float *left) { // of row lane / 8
		Quad sum = {};
		for (int from = 4 * lane_id(); from < quads; from += 4 * WARP) add(sum, load_quad(left + from, 4, true));
		return all_sums(sum.v);
	};
	begin(lo);
	next();
	for (int first = lo; first < hi; first += NORM_ROWS) {
		Quad p[NORM_ROWS], part;
		take(p);
#pragma unroll
		for (int i = 0; i < NORM_ROWS; i++) part.v[i] = all_of(p[i]);
		store_quad(totals + own, part, 4, true);
		if (first + NORM_ROWS < hi) begin(first + NORM_ROWS);
		__syncthreads();
#pragma unroll
		for (int i = 0; i < NORM_ROWS; i++)
			if (first + i < hi && n > 0) came(first + i, p[i]);
		float m = all(totals) / cols;
#pragma unroll
		for (int i = 0; i < NORM_ROWS; i++) part.v[i] = squares_of(p[i], __shfl_sync(EVERY, m, 8 * i), n);
		store_quad(squares + own, part, 4, true);
		next();
		__syncthreads();
		float r = deviation(all(squares), eps, cols);
		if (int row = first + lane_id() / 8; threadIdx.x < WARP && lane_id() % 8 == 0 && row < hi) mean[row] = m, rstd[row] = r;
#pragma unroll
		for (int i = 0; i < NORM_ROWS; i++) {
			float ofM = __shfl_sync(EVERY, m, 8 * i), ofR = __shfl_sync(EVERY, r, 8 * i);
			if (first + i < hi && n > 0) finish(first + i, i, p[i], ofM, ofR);
		}
	}
}

// epilogue_norm_wide is epilogue_norm of such rows. A thread writes to a row when it has read its part of that: acc and res may be sum, or y. With a
// warp to a row, which asks for dropout's bits twice, 1,470 instructions of a warp and 20 warps on a multiprocessor, 12,232 rows of 768 columns took
// 58 us, measured on an H200, and now 41; memory is busy for 36 us.
KERNEL __launch_bounds__(1024) epilogue_norm_wide(float *y, int sy, u16 *operand, int so, float *mean, float *rstd, void *sum, int ssum,
                                                  const float *acc, int sacc, const float *bias, const float *res, int sres, const float *gamma,
                                                  const float *beta, float eps, const u64 *keys, const int *rowOf, const int *pos, u32 site,
                                                  u32 threshold, float keep, int half, int chunk, int rows, int cols) {
	const int N = NORM_ROWS;
	DYNAMIC_SHARED(float, coming); // N rows of acc, then of res, each a quad of each thread's; then what norm_rows has room for
	int quads = 4 * blockDim.x, own = 4 * threadIdx.x, col = own, n = col < cols ? 4 : 0, lo = blockIdx.x * chunk, hi = min(rows, lo + chunk);
	Quad b = load_quad(bias + col, bias ? n : 0, true), g = load_quad(gamma + col, n, true), shift = load_quad(beta + col, beta ? n : 0, true);
	u64 key = 0; // lane i has row i % N, here and below
	int text = 0, place = 0;
	auto begin = [&](int first) {
#pragma unroll
		for (int i = 0; i < N; i++) {
			int row = first + i;
			bool there = row < hi && n > 0;
			copy16(coming + i * quads + own, AT(acc, sacc), there);
			copy16(coming + (N + i) * quads + own, AT(res, sres), there && res);
		}
		int row = min(first + lane_id() % N, hi - 1);
		if (keys) text = rowOf[row], place = pos[row];
	};
	auto next = [&] {
		if (keys) key = keys[text];
	};
	auto take = [&](Quad p[N]) {
		u32 kept = keys ? keep_rows(key, col, place, site, threshold) : 0;
		wait_copies();
#pragma unroll
		for (int i = 0; i < N; i++) {
			p[i] = load_quad(coming + i * quads + own, 4, true);
			add(p[i], b);
			if (keys) drop_bits(p[i], kept >> (8 * i + 4), keep);
			add(p[i], load_quad(coming + (N + i) * quads + own, 4, true));
		}
	};
	auto came = [&](int row, const Quad &p) { store_half(sum, PLACE(ssum), p, 4, true, half & HALF_SUM); };
	auto finish = [&](int row, int, Quad &p, float m, float r) {
		finish_quad(y, PLACE(sy), operand, PLACE(so), p, 4, true, half, [&](Quad &p) { normalized(p, m, r, g, beta, shift); });
	};
	norm_rows(lo, hi, n, cols, eps, mean, rstd, coming + 2 * N * quads, begin, take, came, next, finish);
}

// embed is y = dropout(norm(sum)) for sum[T, C] = scale * a row of words[V, C] + rows of two other tables, which may be 0; and operand y in
// bf16, if it is not 0. A warp has a token. Without gamma there is no norm: mean, rstd and beta are 0 too. sum may be y: a lane reads what it
// has written itself.
//
// By itself it is five launches that move [T, C] ten times; here the words' rows come and sum and y go. For 16,384 tokens and 768
// columns that is 0.5 GB against 0.15 GB, 70 us of the 30 ms of a BERT-base's forward and backward passes, twice with a cached batch; a
// MiniLM's take an eighth of that time, and this half (estimates for an H200: 4.8 TB/s, 45 % of 790 TFLOP/s).
//
// When a quad of the other tables' rows waited for the store of the one before, 12,232 tokens of 768 columns took 53 us, measured on an H200, where
// memory is busy for some 25 us (an estimate).
KERNEL __launch_bounds__(128, 5) embed(float *y, int sy, u16 *operand, int so, float *sum, int ssum, float *mean, float *rstd,
                                       const float *__restrict__ words, int sw, const int *__restrict__ ids, const float *__restrict__ places,
                                       int sp, const int *__restrict__ placeOf, const float *__restrict__ kinds, int sk,
                                       const int *__restrict__ kindOf, float scale, const float *__restrict__ gamma,
                                       const float *__restrict__ beta, float eps, const u64 *__restrict__ keys, const int *__restrict__ rowOf,
                                       const int *__restrict__ pos, u32 site, u32 threshold, float keep, int vec, int rows, int cols) {
	ROW_OF_WARP;
	const float *word = words + (size_t)ids[row] * sw;
	const float *place = places ? places + (size_t)placeOf[row] * sp : 0, *kind = kinds ? kinds + (size_t)kindOf[row] * sk : 0;
	sum += (size_t)row * ssum, y += (size_t)row * sy;
	float total = 0.f, m = 0.f, r = 0.f;
	u64 key = keys ? keys[rowOf[row]] : 0;
	u32 at = keys ? pos[row] : 0;
	Quad kept[KEPT];
	auto placed = [&](int col, int n) { return load_quad(place + col, place ? n : 0, vec); };
	auto make = [&](Quad p, const Quad &other, int col, int n) {
		for (int i = 0; i < 4; i++) p.v[i] = p.v[i] * scale + other.v[i];
		add_row(p, kind, col, n, vec);
		total += all_of(p);
		return p;
	};
	EACH_KEPT(cols) kept[q] = load_quad(word + col, n, vec); // all are under way at once
	with_other(kept, cols, placed, make);
	EACH_KEPT(cols) store_quad(sum + col, kept[q], n, vec);
	EACH_OTHER(cols) store_quad(sum + col, make(load_quad(word + col, n, vec), placed(col, n), col, n), n, vec);
	if (!gamma && !keys && sum == y && !operand) return;
	if (gamma) {
		m = warp_sum(total) / cols, r = deviation_of(kept, sum, m, eps, vec, cols);
		if (lane_id() == 0) mean[row] = m, rstd[row] = r;
	}
	auto finish = [&](Quad p, int col, int n) {
		if (gamma) normalized(p, m, r, gamma, beta, col, n, vec);
		if (keys) drop_quad(p, col, key, at, site, threshold, keep);
		store_quad(y + col, p, n, vec);
		copy_quad(operand, PLACE(so), p, n, vec);
	};
	EACH_KEPT(cols) finish(kept[q], col, n);
	EACH_OTHER(cols) finish(load_quad(sum + col, n, vec), col, n);
}

// embed_wide is embed of such rows, with a norm. With a warp to a row 12,232 tokens of 768 columns took 47 us, measured on an H200, and now 35.
KERNEL __launch_bounds__(1024) embed_wide(float *y, int sy, u16 *operand, int so, float *sum, int ssum, float *mean, float *rstd, const float *words,
                                          int sw, const int *ids, const float *places, int sp, const int *placeOf, const float *kinds, int sk,
                                          const int *kindOf, float scale, const float *gamma, const float *beta, float eps, const u64 *keys,
                                          const int *rowOf, const int *pos, u32 site, u32 threshold, float keep, int chunk, int rows, int cols) {
	const int N = NORM_ROWS;
	DYNAMIC_SHARED(float, coming); // N rows of words, then of places, each a quad of each thread's; then what norm_rows has room for
	int quads = 4 * blockDim.x, own = 4 * threadIdx.x, col = own, n = col < cols ? 4 : 0, lo = blockIdx.x * chunk, hi = min(rows, lo + chunk);
	Quad g = load_quad(gamma + col, n, true), shift = load_quad(beta + col, beta ? n : 0, true);
	u64 key = 0; // lane i has row i % N, here and below
	int word = 0, at = 0, kind = 0, text = 0, place = 0;
	u32 kept = 0; // see keep_rows
	auto look = [&](int first) {
		int row = min(first + lane_id() % N, hi - 1);
		word = ids[row];
		if (places) at = placeOf[row];
	};
	auto begin = [&](int first) {
#pragma unroll
		for (int i = 0; i < N; i++) {
			bool there = first + i < hi && n > 0;
			int row = __shfl_sync(EVERY, word, i);
			copy16(coming + i * quads + own, AT(words, sw), there);
			row = __shfl_sync(EVERY, at, i);
			copy16(coming + (N + i) * quads + own, AT(places, sp), there && places);
		}
		look(first + N);
		int row = min(first + lane_id() % N, hi - 1);
		if (kinds) kind = kindOf[row];
		if (keys) text = rowOf[row], place = pos[row];
	};
	auto next = [&] {
		if (keys) key = keys[text];
	};
	auto take = [&](Quad p[N]) {
		if (keys) kept = keep_rows(key, col, place, site, threshold);
		wait_copies();
#pragma unroll
		for (int i = 0; i < N; i++) {
			Quad w = load_quad(coming + i * quads + own, 4, true);
			p[i] = load_quad(coming + (N + i) * quads + own, 4, true);
			for (int k = 0; k < 4; k++) p[i].v[k] += w.v[k] * scale;
			int row = __shfl_sync(EVERY, kind, i);
			add(p[i], load_quad(AT(kinds, sk), kinds ? n : 0, true)); // few rows, which the first-level cache has
		}
	};
	auto came = [&](int row, const Quad &p) { store_quad(AT(sum, ssum), p, 4, true); };
	auto finish = [&](int row, int i, Quad &p, float m, float r) {
		normalized(p, m, r, g, beta, shift);
		if (keys) drop_bits(p, kept >> (8 * i + 4), keep);
		store_quad(AT(y, sy), p, 4, true);
		copy_quad(operand, PLACE(so), p, 4, true);
	};
	look(lo);
	norm_rows(lo, hi, n, cols, eps, mean, rstd, coming + 2 * N * quads, begin, take, came, next, finish);
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
