// What every kernel file begins with. NVRTC compiles it without any header of the CUDA toolkit; a C++ compiler for the host does so
// with host_cuda.h, which emulates a block of threads (tests only).
//
// Kernels take pointers and numbers of at most 8 bytes. Tensors are row-major with a stride in elements between rows, as in package
// gpustage; letters are that package's: T tokens, C columns, H heads, D head size, B rows.
#ifndef CONTRAFLOW_COMMON
#define CONTRAFLOW_COMMON

#ifndef SHARED_ALIGNMENT
#define SHARED_ALIGNMENT 16 // of dynamic shared memory
#endif
#ifdef HOST_CUDA
#include "host_cuda.h"
#else
#define DYNAMIC_SHARED(type, name)                         \
	extern __shared__ __align__(SHARED_ALIGNMENT) unsigned char shared_bytes[]; \
	type *name = (type *)shared_bytes
#endif

#define KERNEL extern "C" __global__ void
#define DEVICE static __device__ __forceinline__

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;

#define WARP 32
#define EVERY 0xffffffffu // all lanes of a warp

// The order is that of gpustage.Activation.
enum { IDENTITY, GELU, GELU_TANH, RELU, SILU, TANH };
// The order is that of gpustage.DType.
enum { F32, F64, BF16, I32, U64 };

#define MINUS_INF __int_as_float(0xff800000)
#define NOT_A_NUMBER __int_as_float(0x7fffffff)

DEVICE int lane_id() { return threadIdx.x % WARP; }
DEVICE int warp_id() { return threadIdx.x / WARP; }

// Butterflies: every lane gets the result, and the order of additions is fixed.
DEVICE float warp_sum(float v) {
	for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(EVERY, v, d);
	return v;
}
DEVICE float warp_max(float v) {
	for (int d = 16; d > 0; d /= 2) v = fmaxf(v, __shfl_xor_sync(EVERY, v, d));
	return v;
}
DEVICE double warp_sum64(double v) {
	for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(EVERY, v, d);
	return v;
}

// all_sums makes, of N values of each lane, one of all lanes: value lane / (32 / N), with the additions of warp_sum. Each step halves how many a lane
// still has to add up, so that eight take 9 exchanges, and eight butterflies 40.
template <int N> DEVICE float all_sums(const float (&v)[N]) {
	float left[N];
	int d = 16;
#pragma unroll
	for (int i = 0; i < N; i++) left[i] = v[i];
#pragma unroll
	for (int n = N / 2; n > 0; n /= 2, d /= 2) {
		bool upper = lane_id() & d;
#pragma unroll
		for (int i = 0; i < n; i++) left[i] = (upper ? left[n + i] : left[i]) + __shfl_xor_sync(EVERY, upper ? left[i] : left[n + i], d);
	}
#pragma unroll
	for (; d > 0; d /= 2) left[0] += __shfl_xor_sync(EVERY, left[0], d);
	return left[0];
}

// ---- bfloat16

DEVICE float from_bf16(u32 v) { return __uint_as_float(v << 16); }

// pack_bf16 rounds two values to nearest even, lo in the lower half.
DEVICE u32 pack_bf16(float lo, float hi) {
#ifdef HOST_CUDA
	return host_pack_bf16(lo, hi);
#else
	u32 r;
	asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
	return r;
#endif
}

DEVICE float round_bf16(float v) { return from_bf16(pack_bf16(v, 0.f) & 0xffff); }

// ---- four columns at a time

// Quad is up to four neighbours of a row; vec says that a whole one may be moved as 16 bytes.
struct Quad {
	float v[4];
};

DEVICE Quad load_quad(const float *p, int n, int vec) {
	Quad q;
	if (vec && n == 4) {
		float4 f = *(const float4 *)p;
		q.v[0] = f.x, q.v[1] = f.y, q.v[2] = f.z, q.v[3] = f.w;
		return q;
	}
#pragma unroll
	for (int i = 0; i < 4; i++) q.v[i] = i < n ? p[i] : 0.f;
	return q;
}

DEVICE void store_quad(float *p, const Quad &q, int n, int vec) {
	if (vec && n == 4) {
		float4 f;
		f.x = q.v[0], f.y = q.v[1], f.z = q.v[2], f.w = q.v[3];
		*(float4 *)p = f;
		return;
	}
#pragma unroll
	for (int i = 0; i < 4; i++)
		if (i < n) p[i] = q.v[i];
}

// store_bf16 rounds a quad.
DEVICE void store_bf16(u16 *p, const Quad &q, int n, int vec) {
	u32 lo = pack_bf16(q.v[0], q.v[1]), hi = pack_bf16(q.v[2], q.v[3]);
	if (vec && n == 4) {
		uint2 both;
		both.x = lo, both.y = hi;
		*(uint2 *)p = both;
		return;
	}
	for (int i = 0; i < n; i++) p[i] = (u16)((i < 2 ? lo : hi) >> (i % 2 * 16));
}

// unpack is the quad of two words of bf16.
DEVICE Quad unpack(u32 lo, u32 hi) { return {{from_bf16(lo & 0xffff), from_bf16(lo >> 16), from_bf16(hi & 0xffff), from_bf16(hi >> 16)}}; }

// A tensor whose kernel has a mask may be of bf16 (package launch: halves.go): half is not 0 then. at counts elements.
DEVICE Quad load_half(const void *p, size_t at, int n, int vec, int half) {
	if (!half) return load_quad((const float *)p + at, n, vec);
	const u16 *from = (const u16 *)p + at;
	if (vec && n == 4) {
		uint2 both = *(const uint2 *)from;
		return unpack(both.x, both.y);
	}
	Quad q;
#pragma unroll
	for (int i = 0; i < 4; i++) q.v[i] = i < n ? from_bf16(from[i]) : 0.f;
	return q;
}

DEVICE void store_half(void *p, size_t at, const Quad &q, int n, int vec, int half) {
	if (half) store_bf16((u16 *)p + at, q, n, vec);
	else store_quad((float *)p + at, q, n, vec);
}

DEVICE float load_one(const void *p, size_t at, int half) { return half ? from_bf16(((const u16 *)p)[at]) : ((const float *)p)[at]; }

DEVICE void store_one(void *p, size_t at, float v, int half) {
	if (half) ((u16 *)p)[at] = (u16)pack_bf16(v, 0.f);
	else ((float *)p)[at] = v;
}

// ---- copies that no thread waits for until it needs them

// copy16, copy8 and copy4 copy so many bytes from memory to shared memory, or zeros where nothing is there. They have come after wait_copies, for
// this thread.
#ifdef HOST_CUDA
#define COPY(bytes, caches) \
	DEVICE void copy##bytes(void *to, const void *from, bool there) { host_copy_async(to, from, bytes, there); }
#else
#define COPY(bytes, caches)                                                                                                                      \
	DEVICE void copy##bytes(void *to, const void *from, bool there) {                                                                            \
		u32 at = (u32)__cvta_generic_to_shared(to);                                                                                              \
		asm volatile("cp.async." #caches ".shared.global [%0], [%1], " #bytes ", %2;" ::"r"(at), "l"(from), "r"(there ? bytes : 0) : "memory"); \
	}
#endif
COPY(16, cg)
COPY(8, ca)
COPY(4, ca)

DEVICE void wait_copies() {
#ifdef HOST_CUDA
	host_wait_copies();
#else
	asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// EACH visits row and col of every step-th element of a [rows, cols] tensor, a thread each. Blocks have columns in x and rows in y, so that no
// thread divides.
#define EACH(rows, cols, step)                                                                                       \
	for (u32 row = blockIdx.y * blockDim.y + threadIdx.y; row < (u32)(rows); row += gridDim.y * blockDim.y)          \
		for (u32 col = (step) * (blockIdx.x * blockDim.x + threadIdx.x); col < (u32)(cols); col += (step)*gridDim.x * blockDim.x)

// EACH_QUAD is EACH for quads: n, at most 4, is how many columns there are from col.
#define EACH_QUAD(rows, cols)  \
	EACH(rows, cols, 4)        \
		if (int n = min(4u, (u32)(cols)-col); true)

#define PLACE(stride) ((size_t)row * (stride) + col)
#define AT(p, stride) ((p) + PLACE(stride))

// ---- dropout

// philox is gpustage.Philox.
DEVICE void philox(u64 key, u32 c0, u32 c1, u32 c2, u32 c3, u32 out[4]) {
	u32 k0 = (u32)key, k1 = (u32)(key >> 32);
#pragma unroll
	for (int i = 0; i < 7; i++) {
		u32 h0 = __umulhi(0xD2511F53u, c0), l0 = 0xD2511F53u * c0;
		u32 h1 = __umulhi(0xCD9E8D57u, c2), l1 = 0xCD9E8D57u * c2;
		c0 = h1 ^ c1 ^ k0, c1 = l1, c2 = h0 ^ c3 ^ k1, c3 = l0;
		k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
	}
	out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

// not_less compares four bytes: the uppermost bit of each says whether a's is at least b's. Where these bits of a and b are equal it is by the other
// seven, of which rest has the difference. Of C++ the compiler makes three instructions of the last one.
DEVICE u32 not_less(u32 a, u32 b) {
	const u32 UPPER = 0x80808080;
	u32 rest = (a | UPPER) - (b & ~UPPER);
#ifdef HOST_CUDA
	return a & ~b | ~(a ^ b) & rest;
#else
	u32 y;
	asm("lop3.b32 %0, %1, %2, %3, 0xb2;" : "=r"(y) : "r"(a), "r"(b), "r"(rest));
	return y;
#endif
}

// keep_quads is a bit for each of the elements 16*group to 16*group+15 of a vector: 1 where it stays. Those of quad i are the upper four bits of byte i; the
// lower ones are not for use. See gpustage.Dropout.Element: a number is at least the threshold where its own byte is at least what the shared one leaves of
// the threshold, rounded up to whole bytes. threshold is at most 0xff00.
DEVICE u32 keep_quads(u64 key, u32 group, u32 pos, u32 head, u32 site, u32 threshold) {
	u32 w[4];
	philox(key, group, pos, head, site, w);
	u32 least = __byte_perm(threshold + 0xff - ((w[0] ^ w[1] ^ w[2]) >> 24), 0, 0x1111), bits = not_less(w[0], least);
#pragma unroll
	for (int i = 1; i < 4; i++) bits = bits >> 1 & 0x7f7f7f7f | not_less(w[i], least) & 0x80808080;
	return bits;
}

// keep16 is keep_quads with the bits of elements 0 to 7 in byte 0, and the others' in byte 2, in their order; what is in other bytes is not for use.
DEVICE u32 keep16(u64 key, u32 group, u32 pos, u32 head, u32 site, u32 threshold) {
	u32 quads = keep_quads(key, group, pos, head, site, threshold);
	return quads >> 4 & 0x0f0f0f0f | quads >> 8 & 0xf0f0f0f0;
}

// drop_bits multiplies what stays of a quad, as its last four bits say.
DEVICE void drop_bits(Quad &q, u32 bits, float scale) {
#pragma unroll
	for (int i = 0; i < 4; i++) q.v[i] = bits >> i & 1 ? q.v[i] * scale : 0.f;
}

// drop_quad multiplies a quad of a token's features from col by what dropout makes of them.
DEVICE void drop_quad(Quad &q, u32 col, u64 key, u32 pos, u32 site, u32 threshold, float scale) {
	drop_bits(q, keep_quads(key, col / 16, pos, 0, site, threshold) >> (2 * (col % 16) + 4), scale);
}

// keep_rows is four bits of each of four rows, of a lane's quad from col on: row i's are the upper ones of byte i. Lane i has the key and the place of row
// i % 4. Sixteen columns are four neighboring lanes': each makes the bits of its row for all, and they exchange bytes.
DEVICE u32 keep_rows(u64 key, u32 col, u32 pos, u32 site, u32 threshold) {
	int own = lane_id() % 4;
	u32 all = keep_quads(key, col / 16, pos, 0, site, threshold), theirs = __shfl_xor_sync(EVERY, all, 1);
	all = __byte_perm(all, theirs, own % 2 ? 0x3715 : 0x6240);
	theirs = __shfl_xor_sync(EVERY, all, 2);
	return __byte_perm(all, theirs, own < 2 ? 0x5410 : 0x3276);
}

// ---- activations

// One instruction each: 2 and 1 units in the last place off, also where the result is 1. Results below the least normal number are 0.
DEVICE float power_of_two(float x) {
#ifdef HOST_CUDA
	return host_power_of_two(x);
#else
	float y;
	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
#endif
}
DEVICE float reciprocal(float x) {
#ifdef HOST_CUDA
	return host_reciprocal(x);
#else
	float y;
	asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
#endif
}

#define LOG2E 1.4426950408889634f

// sigmoid is 1/(1 + 2^-x), and rest is 1 less that. Subtracted, rest would be off by what reciprocal is off, also where it is nearly 0 and a slope
// multiplies it by x or x^3. Where the power is infinite, the product is a NaN, which saturates to 0.
DEVICE float sigmoid(float x, float &rest) {
	float e = power_of_two(-x), s = reciprocal(1.f + e);
	rest = __saturatef(e * s);
	return s;
}

// normal_below is the share of a standard normal distribution below x, and its density there. Beyond |x| both fall as exp(-x^2/2); what is left of
// the share is a polynomial of t = 1/(1 + 0.3|x|), fitted for the least relative error up to |x| = 13: 1.2e-7. With the exponent's it is 1e-6 up to
// |x| = 3, and 1e-5 at 12. It takes 18 instructions; erfcf takes 48, which is more than there is time for while memory is moved.
DEVICE float normal_below(float x, float &density) {
	float t = reciprocal(1.f + 0.3f * fabsf(x)), y = 0.849321800288019f * x; // sqrt(log2(e)/2)
	float p = 0.0360362157f;
	p = p * t - 0.158713266f;
	p = p * t + 0.208964035f;
	p = p * t - 0.0560954027f;
	p = p * t + 0.129843175f;
	p = p * t + 0.0995231345f;
	p = p * t + 0.120816879f;
	p = p * t + 0.119625166f;
	float e = power_of_two(-y * y), tail = p * t * e;
	density = 0.3989422804014327f * e;
	return x < 0.f ? tail : 1.f - tail;
}

#define GELU_A 1.5957691216057308f  // 2 sqrt(2/pi)
#define GELU_B 0.07135481627260025f // 0.044715 times that

// activate makes y, the activation of x, and its derivative; what nobody reads costs nothing.
DEVICE void activate(const Quad &x, int f, Quad &y, Quad &slope) {
#define OF(formula)                 \
	for (int i = 0; i < 4; i++) {   \
		float v = x.v[i], on, by;   \
		formula;                    \
		y.v[i] = on, slope.v[i] = by; \
	}                               \
	break
	switch (f) {
	case GELU: OF(float density; float below = normal_below(v, density); on = v * below; by = below + v * density);
	case GELU_TANH: // x (1 + tanh(u)) / 2 = x / (1 + exp(-2u)) for 2u = x (A + B x^2); where x^2 may be infinite, the sigmoid or its rest is 0
		OF(float w = v * v; float rest; float s = sigmoid(v * (LOG2E * GELU_A + LOG2E * GELU_B * w), rest); on = v * s;
		   by = s + on * rest * (GELU_A + 3.f * GELU_B * fminf(w, 400.f)));
	case RELU: OF(on = fmaxf(v, 0.f); by = v > 0.f ? 1.f : 0.f);
	case SILU: OF(float rest; float s = sigmoid(LOG2E * v, rest); on = v * s; by = s + on * rest);
	case TANH: OF(on = tanhf(v); by = 1.f - on * on);
	default: OF(on = v; by = 1.f);
	}
#undef OF
}

// FOR_ACTIVATION calls a function template with f: asked for in a loop it costs a jump for each quad, past which nothing is moved.
#define FOR_ACTIVATION(f, function, ...)                        \
	switch (f) {                                                \
	case GELU: function<GELU>(__VA_ARGS__); break;              \
	case GELU_TANH: function<GELU_TANH>(__VA_ARGS__); break;    \
	case RELU: function<RELU>(__VA_ARGS__); break;              \
	case SILU: function<SILU>(__VA_ARGS__); break;              \
	case TANH: function<TANH>(__VA_ARGS__); break;              \
	default: function<IDENTITY>(__VA_ARGS__);                   \
	}

#endif
