// The attention of flash.cuh by warps (mma.sync.m16n8k16, from sm_80 on).
//
// A block has 64 rows, of longer sequences up to 128 (48 at 256 features by key). A warp has 32 of them, so that it multiplies what it reads of a
// partner twice: for 16 rows reading takes as long as multiplying, or longer (2,048 multiply-adds want 256 bytes, of which a multiprocessor reads 128
// a clock; sm_80 multiplies and adds 1,024 times a clock, sm_90 more often). Where registers don't suffice, from 128 features on but for the forward
// pass at 128, it has 16.
//
// At 256 features registers and shared memory of 99 KB have no room for two buffers on the way back. There the block's own rows stay in shared
// memory, there is one buffer, which blocks on one multiprocessor fill in turns, and by key a block has half of the features of its rows' gradients:
// scores are computed twice.
#include "flash.cuh"
#include "short.cuh"

DEVICE void mma(float c[4], const u32 a[4], u32 b0, u32 b1) {
#ifdef HOST_CUDA
	host_mma(c, a, b0, b1);
#else
	asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
	    : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
	    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

// Rows in shared memory are 16 bytes longer than D elements: the eight rows of a matrix then lie in different banks.
#define PITCH(D) ((D) + 8)

// left_shared reads 16 rows by 16 columns of shared memory as a left operand.
template <int D> DEVICE void left_shared(u32 f[4], const u16 *from) {
	int m = lane_id() / 8, r = lane_id() % 8;
	load_matrices(f, from + (m % 2 * 8 + r) * PITCH(D) + m / 2 * 8);
}

// Two right operands, for 16 columns: of x^T, where x has those columns as rows; and of x itself.
template <int D> DEVICE void right_rows(u32 f[4], const u16 *x) {
	int m = lane_id() / 8, r = lane_id() % 8;
	load_matrices(f, x + (m / 2 * 8 + r) * PITCH(D) + m % 2 * 8);
}
template <int D> DEVICE void right_columns(u32 f[4], const u16 *x) {
	int m = lane_id() / 8, r = lane_id() % 8;
	load_transposed(f, x + (m % 2 * 8 + r) * PITCH(D) + m / 2 * 8);
}

// A warp has R tiles of 16 rows, and multiplies right operands by all of them: times_two is columns 8j to 8j+15 of c += a b.
template <int N, int R> DEVICE void times_two(float c[R][N][4], int j, const u32 a[R][4], const u32 b[4]) {
#pragma unroll
	for (int r = 0; r < R; r++) {
		mma(c[r][j], a[r], b[0], b[1]);
		mma(c[r][j + 1], a[r], b[2], b[3]);
	}
}

// left_tiles are columns 16k to 16k+15 of the warp's rows, which are in registers or in shared memory.
template <int D, int R> DEVICE void left_tiles(u32 l[R][4], const u32 (&a)[R][D / 16][4], int k) {
#pragma unroll
	for (int r = 0; r < R; r++)
#pragma unroll
		for (int e = 0; e < 4; e++) l[r][e] = a[r][k][e];
}
template <int D, int R> DEVICE void left_tiles(u32 l[R][4], const u16 *a, int k) {
#pragma unroll
	for (int r = 0; r < R; r++) left_shared<D>(l[r], a + r * 16 * PITCH(D) + k * 16);
}

// Warps is this way, for tiles of 8*N partners.
template <int DIM, int TILES, int PARTNERS> struct Warps {
	static const int D = DIM, R = TILES, N = PARTNERS, PITCH = PITCH(DIM);
	static const bool SHARED_QUERIES = DIM == 128, ASYNC = false; // registers don't suffice

	DEVICE u32 place(u32 row, u32 d) { return row * PITCH(DIM) + d; }
	DEVICE int first_row(int w0) { return w0; }
	DEVICE void publish() {}
	template <class... C> DEVICE void settle(C &...) {}
	template <class C> DEVICE void settle_first(C &) {}

	template <int N, class Left> DEVICE void times_rows(float c[R][N][4], const Left &a, const u16 *x) {
#pragma unroll
		for (int k = 0; k < D / 16; k++) {
			u32 l[R][4], b[4];
			left_tiles<D, R>(l, a, k);
#pragma unroll
			for (int j = 0; j < N; j += 2) {
				right_rows<D>(b, x + j * 8 * PITCH(D) + k * 16);
				times_two<N, R>(c, j, l, b);
			}
		}
	}

	template <int N, int W> DEVICE void times(float c[R][W / 8][4], const float p[R][N][4], const u16 *x) {
#pragma unroll
		for (int k = 0; k < N / 2; k++) {
			u32 l[R][4];
#pragma unroll
			for (int r = 0; r < R; r++) left_of(l[r], p[r], k);
			times_columns<W>(c, l, x + k * 16 * PITCH(D));
		}
	}

	template <int K, int W> DEVICE void times_left(float c[1][W / 8][4], const u32 (&l)[1][K][4], const u16 *x) {
#pragma unroll
		for (int k = 0; k < K; k++) times_columns<W>(c, &l[0][k], x + k * 16 * PITCH(D));
	}

	template <int W> DEVICE void times_columns(float c[R][W / 8][4], const u32 (*l)[4], const u16 *x) { // of 16 rows
#pragma unroll
		for (int j = 0; j < W / 8; j += 2) {
			u32 b[4];
			right_columns<D>(b, x + j * 8);
			times_two<W / 8, R>(c, j, l, b);
		}
	}
};

// flash_dbias is the gradient of biases: a block adds up those of a head in every so many sequences, from scores as flash_backward_q has them, and
// writes its sums to parts[workers, H, 2*reach+1]. It has one tile of keys and values, for which it waits. A warp leaves a tile of gradients in
// shared memory, whose diagonals are distances: a lane adds one after the other, so that no two add to one place, and the order is always the same.
template <int D> DEVICE void flash_dbias(const Attention &a, float *parts) {
	typedef Warps<D, 1, 4> Way;
	const int N = Way::N, C = 8 * N, P = C + 8, BUFFER = 2 * C * PITCH(D); // with this pitch 16 lanes write pairs to different banks
	DYNAMIC_SHARED(u16, shared);
	int h = blockIdx.y, t = lane_id() % 4, g = lane_id() / 4, size = 2 * a.reach + 1;
	float *grads = (float *)(shared + BUFFER) + warp_id() * 16 * P, *bias = (float *)(shared + BUFFER) + 4 * 16 * P;
	float *sums = bias + (1 + warp_id()) * size, below = 0.f, above = 0.f;
	stage_bias(a, bias, h);
	for (int r = lane_id(); r < size; r += WARP) sums[r] = 0.f;
	for (int b = blockIdx.x; b < a.rows; b += gridDim.x) {
		int lo = a.cu[b], n = a.cu[b + 1] - lo;
		u64 key = key_of(a, b);
		const u16 *k = head_of(a.k, a.sk, lo, h * D), *v = head_of(a.v, a.sv, lo, h * D);
		for (int q0 = 0; q0 < n; q0 += 64) {
			int w0 = q0 + warp_id() * 16, i = w0 + g;
			u32 q[1][D / 16][4], o[1][D / 16][4];
			left_rows<D>(a, q[0], head_of(a.q, a.sq, lo, h * D), a.sq, w0, n);
			left_rows<D>(a, o[0], head_of(a.dctx, a.sdctx, lo, h * D), a.sdctx, w0, n);
			float lse[2], delta[2];
			row_numbers<1>(a, lse, delta, lo, h, i, n);
			Range see = keys_of(a, q0, q0 + 63, n);
			for (int k0 = see.from / 16 * 16; k0 < see.to; k0 += C) {
				__syncthreads(); // the tile before is done with
				partners<Way, N>(a, shared, k, a.sk, v, a.sv, k0, n);
				wait_copies();
				__syncthreads();
				if (w0 >= n) continue;
				float s[1][N][4] = {}, dp[1][N][4] = {};
				Way::template times_rows<N>(s, q, shared);
				Way::template times_rows<N>(dp, o, shared + BUFFER / 2);
				u32 kept = keys_kept<N>(a, key, h, i, k0);
				float bends[N][4];
				powers_by_query<D, true, N>(a, s[0], bends, bias, lse, i, k0);
				gradients_by_query<N, false>(a, dp[0], s[0], bends, delta, kept);
				hide<N>(a, dp[0], i, k0, n, 0.f);
#pragma unroll
				for (int j = 0; j < N; j++)
#pragma unroll
					for (int half = 0; half < 2; half++) {
						float2 pair;
						pair.x = i + 8 * half < n ? dp[0][j][2 * half] : 0.f, pair.y = i + 8 * half < n ? dp[0][j][2 * half + 1] : 0.f;
						*(float2 *)(grads + (g + 8 * half) * P + 8 * j + 2 * t) = pair;
					}
				__syncwarp();
				for (int column = lane_id() - 15; column < C; column += WARP) { // of the diagonal in row 0
					float sum = 0.f;
					for (int r = 0; r < 16; r++) {
						float v = grads[r * P + ((column + r) & (C - 1))]; // all lanes read, from different banks
						if (column + r >= 0 && column + r < C) sum += v;
					}
					int distance = k0 - w0 + column;
					if (distance <= -a.reach) below += sum;
					else if (distance >= a.reach) above += sum;
					else sums[a.reach + distance] += sum;
				}
			}
		}
	}
	below = warp_sum(below), above = warp_sum(above);
	__syncwarp();
	if (lane_id() == 0) sums[0] += below, sums[size - 1] += above;
	__syncthreads();
	sums = bias + size;
	for (int r = threadIdx.x; r < size; r += blockDim.x)
		parts[((size_t)blockIdx.x * a.heads + h) * size + r] = (sums[r] + sums[size + r]) + (sums[2 * size + r] + sums[3 * size + r]);
}

// Launch bounds are what registers allow: 8 warps to a multiprocessor, at 32 features 12, at 256 features 6 by key, in blocks of 3.
// Shared memory has room for as many on sm_90, with 10 to 99 KB a block. It has not on sm_80 at 256 features, which takes one block by query and by
// key, and of 64 rows at 128 features, of which the forward pass has three. GPUs with 99 KB take half as many warps, or fewer, but at 32 features.
#define FOR_DIM(D, BIAS, forward_blocks, by_query, query_blocks, by_key, key_blocks, NAME)                                                           \
	KERNEL __launch_bounds__(128, forward_blocks) flash_##NAME(Attention a) { flash_forward<Warps<D, D <= 128 ? 2 : 1, D >= 128 ? 4 : 8>, BIAS>(a); } \
	KERNEL __launch_bounds__(by_query, query_blocks) flash_backward_q_##NAME(Attention a) { flash_backward_q<Warps<D, D <= 64 ? 2 : 1, 4>, BIAS>(a); } \
	KERNEL __launch_bounds__(by_key, key_blocks) flash_backward_kv_##NAME(Attention a) { flash_backward_kv<Warps<D, D <= 64 ? 2 : 1, 4>, BIAS, 4>(a); }

KERNEL __launch_bounds__(128, 4) flash_short_32(Attention a) { short_forward<Warps<32, 1, 8>>(a); }
KERNEL __launch_bounds__(256, 2) flash_short_backward_32(Attention a) { short_backward<Warps<32, 1, 4>>(a); }

FOR_DIM(32, false, 3, 128, 3, 128, 3, 32)
FOR_DIM(64, false, 2, 128, 2, 128, 2, 64)
FOR_DIM(64, true, 2, 128, 2, 128, 2, 64_bias)
FOR_DIM(128, false, 2, 256, 1, 128, 2, 128)
FOR_DIM(256, false, 2, 128, 2, 96, 2, 256)

KERNEL __launch_bounds__(128) flash_dbias_64(Attention a, float *parts) { flash_dbias<64>(a, parts); }

// flash_dbias_sum adds what the workers have to the gradient, a thread to each bias.
KERNEL flash_dbias_sum(Attention a, const float *parts, int workers) {
	int size = 2 * a.reach + 1, r = blockIdx.x * blockDim.x + threadIdx.x, h = blockIdx.y;
	if (r >= size) return;
	float sum = 0.f;
	for (int w = 0; w < workers; w++) sum += parts[((size_t)w * a.heads + h) * size + r];
	a.dbias[(size_t)r * a.sdbias + h] += sum;
}
