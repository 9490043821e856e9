// The attention of flash.cuh by warpgroups (wgmma, sm_90a), for heads of 64 and 128 features.
//
// Four warps multiply their 64 rows by a tile of partners, which the tensor cores read from shared memory themselves: once for 64 rows, where flash.cu
// reads it for 32, through registers. By others' measurements mma.sync comes to some 60 % of Hopper's rate.
//
// While one warpgroup of a multiprocessor has exponentials and sums, others can multiply; nothing makes them take turns (FlashAttention-3 has barriers
// for that). For 64 rows and 64 partners of 64 features products take 256 clocks forward (2,048 multiply-adds a clock), 384 by query and 512 by key,
// and exponentials 256 (16 a clock). With dropout a scheduler issues, for its warp of the four, 659 instructions forward, 608 by query and 763 by key,
// 230 or more of them philox. On an H200 a layer of 16 texts of 2,048 tokens and 12 heads of 64 features took 1,042 us, 1,257 and 1,766; there was
// something to issue in 55, 41 and 37 % of the clocks, with four warpgroups on a multiprocessor, three and two. By key they are three since, what dropout
// keeps is drawn by query alone, 16 keys by a call of philox instead of 8, and asking for its bits takes one instruction each instead of three: some 60 fewer
// forward, 100 by query, and 300 by key. That has not been timed.
//
// A row of a tile is 128 bytes of shared memory, 64 features; eight rows are an atom of 1,024 bytes, which begins at a multiple of that. Within it
// row r has its 16 bytes c at c ^ r (128-byte swizzle): what is read along rows or along columns comes from all banks. With more features an atom
// of the next 64 follows it. So lies what wgmma takes as x^T, rows of x being columns of the product (K-major), and as x (MN-major).
//
// Products are under way until they are waited for (settle). Meanwhile the compiler must not touch accumulators (hold). The tensor cores must not read
// what a thread has written and not published.
#define SHARED_ALIGNMENT 1024
#include "flash.cuh"
#include "short.cuh"

// matrix is a descriptor (PTX's "matrix descriptor format") of what begins there: next is the distance of atoms that have other features, rows
// that of atoms of other rows.
DEVICE u64 matrix(const u16 *at, int next, int rows) {
#ifdef HOST_CUDA
	u32 place = host_shared(at);
#else
	u32 place = __shfl_sync(EVERY, (u32)__cvta_generic_to_shared(at), 0); // all lanes have the same: this tells the compiler
#endif
	return place >> 4 | (u64)(next >> 4) << 16 | (u64)(rows >> 4) << 32 | 1ull << 62;
}

// further is what a descriptor grows by, of what begins so many bytes further.
DEVICE constexpr u64 further(int bytes) { return bytes >> 4; }

#define F4(how, j) how(c[j][0]), how(c[j][1]), how(c[j][2]), how(c[j][3])
#define F16(how, j) F4(how, j), F4(how, j + 1), F4(how, j + 2), F4(how, j + 3)
#define P8(a, b, c, d, e, f, g, h) "%" #a ",%" #b ",%" #c ",%" #d ",%" #e ",%" #f ",%" #g ",%" #h
#define P16 P8(0, 1, 2, 3, 4, 5, 6, 7) "," P8(8, 9, 10, 11, 12, 13, 14, 15)
#define P32 P16 "," P8(16, 17, 18, 19, 20, 21, 22, 23) "," P8(24, 25, 26, 27, 28, 29, 30, 31)
#define P64                                                                                                                  \
	P32 "," P8(32, 33, 34, 35, 36, 37, 38, 39) "," P8(40, 41, 42, 43, 44, 45, 46, 47) "," P8(48, 49, 50, 51, 52, 53, 54, 55) \
	    "," P8(56, 57, 58, 59, 60, 61, 62, 63)
#define WGMMA(n, places, a0, a1, a2, a3, matrix, turned, add, ...)                                                          \
	asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" places "}, {%" #a0 ",%" #a1 ",%" #a2 ",%" #a3 \
	             "}, %" #matrix ", " #add ", 1, 1, %" #turned ";"                                                           \
	             : __VA_ARGS__                                                                                              \
	             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"((int)TURNED))

// product begins c += a b, or c = a b, for 16 columns of a and 8*N columns of b. The matrix has these as rows, or if TURNED as columns.
template <int N, bool TURNED, bool ADD> DEVICE void product(float c[N][4], const u32 a[4], u64 b) {
#ifdef HOST_CUDA
	host_group_mma(c[0], N, a, b, TURNED, ADD);
#else
	if constexpr (N == 4 && ADD) WGMMA(32, P16, 16, 17, 18, 19, 20, 21, 1, F16("+f", 0));
	else if constexpr (N == 4) WGMMA(32, P16, 16, 17, 18, 19, 20, 21, 0, F16("=f", 0));
	else if constexpr (N == 8 && ADD) WGMMA(64, P32, 32, 33, 34, 35, 36, 37, 1, F16("+f", 0), F16("+f", 4));
	else if constexpr (N == 8) WGMMA(64, P32, 32, 33, 34, 35, 36, 37, 0, F16("=f", 0), F16("=f", 4));
	else {
		static_assert(N == 16 && ADD, "no product of so many columns");
		WGMMA(128, P64, 64, 65, 66, 67, 68, 69, 1, F16("+f", 0), F16("+f", 4), F16("+f", 8), F16("+f", 12));
	}
#endif
}

// fence comes before products whose operands in registers have been written.
DEVICE void fence() {
#ifdef HOST_CUDA
	host_group_fence();
#else
	asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

DEVICE void commit() {
#ifdef HOST_CUDA
	host_group_commit();
#else
	asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

// wait_products waits for all but the last groups.
template <int LEFT> DEVICE void wait_products() {
#ifdef HOST_CUDA
	host_group_wait(LEFT);
#else
	asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
#endif
}

// hold keeps the compiler from reading what products write before it, and from writing what they read or write after it.
template <int N> DEVICE void hold(float (&c)[1][N][4]) {
#ifdef HOST_CUDA
	host_group_hold(c[0][0]);
#else
#pragma unroll
	for (int j = 0; j < N; j++)
#pragma unroll
		for (int e = 0; e < 4; e++) asm volatile("" : "+f"(c[0][j][e])::"memory");
#endif
}
template <int K> DEVICE void hold(u32 (&a)[K][4]) {
#ifndef HOST_CUDA
#pragma unroll
	for (int k = 0; k < K; k++)
#pragma unroll
		for (int e = 0; e < 4; e++) asm volatile("" : "+r"(a[k][e])::"memory");
#endif
}

// Groups is this way, for tiles of 8*N partners.
template <int DIM, int PARTNERS> struct Groups {
	static const int D = DIM, R = 1, N = PARTNERS, PITCH = DIM;
	static const bool SHARED_QUERIES = false, ASYNC = true;
	static const int ATOM = 1024, ATOMS = DIM / 64 * ATOM; // of all features

	DEVICE u32 place(u32 row, u32 d) { return row / 8 * 8 * D + d / 64 * (ATOM / 2) + row % 8 * 64 + (d / 8 % 8 ^ row % 8) * 8 + d % 8; }
	DEVICE int first_row(int w0) { return w0 - warp_id() % 4 * 16; } // of the group
	DEVICE void publish() {
#ifdef HOST_CUDA
		host_fence_async();
#else
		asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); // the tensor cores are not ordered with what threads write
#endif
	}

	template <class... C> DEVICE void settle(C &...c) {
		wait_products<0>();
		(hold(c), ...);
	}
	template <class C> DEVICE void settle_first(C &c) {
		wait_products<1>();
		hold(c);
	}

	template <int N> DEVICE void times_rows(float (&c)[1][N][4], const u16 *a, const u16 *x) {
		u32 l[1][D / 16][4];
		left_tile<Groups>(l, a, 0);
		times_rows<N>(c, l, x);
	}

	template <int N> DEVICE void times_rows(float (&c)[1][N][4], const u32 (&a)[1][D / 16][4], const u16 *x) {
		fence();
		u64 b = matrix(x, ATOM, ATOMS);
		product<N, false, false>(c[0], a[0][0], b);
#pragma unroll
		for (int k = 1; k < D / 16; k++) product<N, false, true>(c[0], a[0][k], b + further(k / 4 * ATOM + k % 4 * 32));
		commit();
	}

	template <int N, int W> DEVICE void times(float (&c)[1][W / 8][4], const float (&p)[1][N][4], const u16 *x) {
		u32 l[1][N / 2][4];
#pragma unroll
		for (int k = 0; k < N / 2; k++) left_of(l[0][k], p[0], k);
		times_left<N / 2, W>(c, l, x);
	}

	template <int K, int W> DEVICE void times_left(float (&c)[1][W / 8][4], u32 (&l)[1][K][4], const u16 *x) {
		u64 b = matrix(x, ATOM, ATOMS);
		hold(l[0]);
		hold(c);
		fence();
#pragma unroll
		for (int k = 0; k < K; k++) product<W / 8, true, true>(c[0], l[0][k], b + further(k * 2 * ATOMS));
		commit();
	}
};

// Launch bounds are what registers allow: at 64 features four warpgroups to a multiprocessor on the way forward, in blocks of two, and on the way back
// three; at 128 features two.
#define FOR_DIM(D, BIAS, forward_blocks, backward, QUERIES, NAME)                                                                 \
	KERNEL __launch_bounds__(256, forward_blocks) flash_group_##NAME(Attention a) { flash_forward<Groups<D, 8>, BIAS>(a); }       \
	KERNEL __launch_bounds__(backward, 1) flash_group_backward_q_##NAME(Attention a) { flash_backward_q<Groups<D, 8>, BIAS>(a); } \
	KERNEL __launch_bounds__(backward, 1) flash_group_backward_kv_##NAME(Attention a) { flash_backward_kv<Groups<D, QUERIES>, BIAS, 4>(a); }

KERNEL __launch_bounds__(128, 4) flash_group_short_64(Attention a) { short_forward<Groups<64, 8>>(a); }
KERNEL __launch_bounds__(256, 2) flash_group_short_backward_64(Attention a) { short_backward<Groups<64, 4>>(a); }

FOR_DIM(64, false, 2, 384, 8, 64)
FOR_DIM(64, true, 2, 384, 8, 64_bias)
FOR_DIM(128, false, 1, 256, 4, 128)
