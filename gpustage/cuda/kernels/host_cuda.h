// CUDA C++ on a processor, as far as the kernels here use it: for tests of their logic on machines without a GPU (x86-64 Linux).
//
// A block's threads are fibers of one thread of the host. Each runs until it must wait: at __syncthreads for its block, at a shuffle, vote
// or mma for its warp; and a warp until all of its threads wait for other warps. What real threads may do in any order, odd launches do
// forwards and even ones backwards; shared memory begins as NaNs. It is an error, with the kernel's name, when threads of a warp meet at
// different operations, when some wait for ever, when ldmatrix, wgmma, a copy or a vector gets an odd address, when a launch is larger than the
// least of the GPUs from sm_80 on allows, and when what threads touch is not theirs or in no order: host_main.h checks each access. Numbers are
// what a processor makes of them, or with HOST_ROUNDING as far off as a GPU's may be: host_rounding.h.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

using std::max;
using std::min;

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static __attribute__((section("host_shared"))) // one block runs at a time

#define HOST_OWN __attribute__((no_sanitize_thread)) // touches nothing of a kernel's, or says so itself
inline void host_aligned(const void *at, unsigned bytes);
void host_touch(const void *at, unsigned bytes, bool write);
void host_met(int warp); // comes when all lanes have come to an operation of the warp

// A vector is moved as a whole, from and to a multiple of its size: a GPU ends the program otherwise.
#define HOST_VECTOR(name, type, ...)                                                                    \
	struct alignas(sizeof(type[HOST_COUNT(__VA_ARGS__)])) name {                                        \
		type __VA_ARGS__;                                                                               \
		name() {}                                                                                       \
		name(const name &from) { *this = from; }                                                        \
		HOST_OWN name &operator=(const name &from) {                                                             \
			host_aligned(this, sizeof(name)), host_aligned(&from, sizeof(name));                        \
			host_touch(&from, sizeof(name), false), host_touch(this, sizeof(name), true);               \
			memcpy(this, &from, sizeof(name));                                                          \
			return *this;                                                                               \
		}                                                                                               \
	}
#define HOST_COUNT(...) HOST_FIFTH(__VA_ARGS__, 4, 3, 2, 1)
#define HOST_FIFTH(a, b, c, d, e, ...) e
HOST_VECTOR(float4, float, x, y, z, w);
HOST_VECTOR(float2, float, x, y);
HOST_VECTOR(uint2, unsigned, x, y);
HOST_VECTOR(uint4, unsigned, x, y, z, w);
struct Dim {
	unsigned x, y, z;
};

// HostProduct is what wgmma is making of accumulators of one lane.
struct HostProduct {
	float *c;
	std::vector<float> values;
	std::vector<const void *> reads; // 16 bytes each
	unsigned group;                  // the last that it was committed in, from 1 on; 0 is none
	bool done;                       // waited for; accumulators have their values when they are held
};

// HostCopy is a copy that is under way.
struct HostCopy {
	unsigned char *to;
	const void *from;
	unsigned bytes;
	bool there;
};

struct Fiber {
	void *sp;
	Dim id;
	int warp, lane;
	bool done;
	uint64_t *gate, seen; // it waits while *gate == seen
	std::vector<HostCopy> copies;
	std::vector<HostProduct> products;
	unsigned groups;   // of products that it has committed
	uint64_t unfenced; // 1 more than the barriers before the first write to shared memory that no fence of the tensor cores followed
	bool fenced;       // registers, for wgmma
};

struct Warp {
	uint64_t gate;
	int live, arrived, what; // what: the operation that its lanes have come to
	unsigned syncs;          // __syncwarp, so far
	unsigned slot[2][32][6]; // of this operation and of the one before it
	uint64_t products;       // a hash of those of its group that it has begun
};

struct Block {
	uint64_t gate;
	int live, arrived;
	int any[2];
};

extern "C" {
void host_switch(void **from, void *to);
inline void *host_scheduler;
}
inline Fiber *host_me;
inline Warp host_warps[32];
inline Block host_block;
inline Dim blockIdx, blockDim, gridDim;
inline unsigned char *host_shared_bytes; // dynamic
inline unsigned host_alignment;          // that its kernel asked for
inline const char *host_kernel;
#define threadIdx (host_me->id)
#define DYNAMIC_SHARED(type, name) type *name = (type *)host_dynamic(SHARED_ALIGNMENT)
inline unsigned char *host_dynamic(unsigned alignment) {
	host_alignment = alignment;
	return host_shared_bytes;
}

[[noreturn]] HOST_OWN inline void host_fail(const char *what) {
	fprintf(stderr, "kernel %s, block %u %u %u, thread %d: %s\n", host_kernel, blockIdx.x, blockIdx.y, blockIdx.z,
	        host_me ? host_me->warp * 32 + host_me->lane : -1, what);
	abort();
}

__attribute__((noinline)) inline void host_aligned(const void *at, unsigned bytes) {
	if ((uintptr_t)at & (bytes - 1)) host_fail("moves a vector from or to an address that is no multiple of its size");
}

HOST_OWN inline void host_wait(uint64_t *gate) {
	host_me->gate = gate, host_me->seen = *gate;
	host_switch(&host_me->sp, host_scheduler);
}

// host_arrive opens the gate when the last one comes, and waits for it before.
template <class T> HOST_OWN void host_arrive(T &g) {
	if (++g.arrived == g.live) {
		g.arrived = 0, g.gate++;
		return;
	}
	host_wait(&g.gate);
}

HOST_OWN inline void __syncthreads() { host_arrive(host_block); }

HOST_OWN inline int __syncthreads_or(int v) {
	int turn = host_block.gate & 1;
	if (host_block.arrived == 0) host_block.any[turn] = 0;
	host_block.any[turn] |= v != 0;
	host_arrive(host_block);
	return host_block.any[turn];
}

enum { HOST_SYNC = 1, HOST_SHUFFLE, HOST_BALLOT, HOST_MMA, HOST_MATRICES, HOST_GROUP };

// host_meet posts words for the other lanes and returns everybody's.
template <class... W> HOST_OWN auto host_meet(int what, unsigned mask, W... words) -> unsigned (*)[6] {
	static_assert(sizeof...(W) <= 6, "a lane's slot");
	Warp &w = host_warps[host_me->warp];
	if (mask != 0xffffffffu || w.live != 32) host_fail("a warp's operation without all of its lanes");
	if (w.arrived == 0) w.what = what;
	else if (w.what != what) host_fail("the lanes of a warp are at different operations");
	auto slots = w.slot[w.gate & 1];
	unsigned *mine = slots[host_me->lane];
	((*mine++ = words), ...);
	if (w.arrived == 31) {
		host_met(host_me->warp);
		if (what == HOST_SYNC) w.syncs++;
	}
	host_arrive(w);
	return slots;
}

inline void __syncwarp() { host_meet(HOST_SYNC, 0xffffffffu); }

inline unsigned host_bits(float v) {
	unsigned u;
	memcpy(&u, &v, 4);
	return u;
}
inline float host_value(unsigned u) {
	float v;
	memcpy(&v, &u, 4);
	return v;
}

template <class T> HOST_OWN T __shfl_sync(unsigned mask, T v, int from) {
	unsigned words[2] = {};
	memcpy(words, &v, sizeof v);
	auto all = host_meet(HOST_SHUFFLE, mask, words[0], words[1]);
	memcpy(&v, all[from & 31], sizeof v);
	return v;
}
template <class T> T __shfl_xor_sync(unsigned mask, T v, int d) { return __shfl_sync(mask, v, host_me->lane ^ d); }

HOST_OWN inline unsigned __ballot_sync(unsigned mask, bool v) {
	auto all = host_meet(HOST_BALLOT, mask, v);
	unsigned bits = 0;
	for (int i = 0; i < 32; i++) bits |= all[i][0] << i;
	return bits;
}

inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned which) {
	unsigned out = 0;
	for (int i = 0; i < 4; i++) out |= (unsigned)(unsigned char)(((uint64_t)y << 32 | x) >> 8 * (which >> 4 * i & 7)) << 8 * i;
	return out;
}
inline unsigned __umulhi(unsigned a, unsigned b) { return (uint64_t)a * b >> 32; }
inline float __int_as_float(int v) { return host_value(v); }
inline float __uint_as_float(unsigned v) { return host_value(v); }
inline float __fadd_rn(float a, float b) { return a + b; } // and no part of a multiplication's instruction
inline float __saturatef(float v) { return v > 0.f ? min(v, 1.f) : 0.f; } // of a NaN too

#include "host_rounding.h"

inline unsigned host_to_bf16(float v) {
	unsigned b = host_bits(v);
	if ((b & 0x7fffffff) > 0x7f800000) return 0x7fff;
	return (b + 0x7fff + (b >> 16 & 1)) >> 16;
}
inline unsigned host_pack_bf16(float lo, float hi) { return host_to_bf16(lo) | host_to_bf16(hi) << 16; }

// host_mma is mma.sync.m16n8k16 in bf16, with the fragments that the PTX manual's section on it draws, and host_ldmatrix is ldmatrix.x4, optionally
// .trans.
void host_mma(float c[4], const unsigned a[4], unsigned b0, unsigned b1);
void host_ldmatrix(unsigned r[4], const void *row, bool trans);

void host_copy_async(void *to, const void *from, unsigned bytes, bool there); // cp.async
void host_wait_copies();

// wgmma in bf16, its left operand and accumulators with the fragments that the PTX manual's section on it draws, its right operand where a matrix
// descriptor says: fence.proxy.async, wgmma.fence, mma_async of n columns of 8, commit_group and wait_group,
// and what keeps the compiler from reading accumulators before.
void host_fence_async();
void host_group_fence();
void host_group_mma(float *c, int n, const unsigned a[4], uint64_t b, bool turned, bool add);
void host_group_commit();
void host_group_wait(unsigned left);
void host_group_hold(const float *c);

// host_shared is what an address in dynamic shared memory is there, which begins at the least place of its alignment that is not 0.
inline unsigned host_shared(const void *at) { return (const unsigned char *)at - host_shared_bytes + host_alignment; }

template <class... A, size_t... I> HOST_OWN void host_call(void (*k)(A...), void **args, std::index_sequence<I...>) {
	k(*(A *)args[I]...);
}
template <class... A> HOST_OWN void host_invoke(void (*k)(A...), void **args) { host_call(k, args, std::index_sequence_for<A...>{}); }

// host_sizes writes the sizes of a kernel's arguments and returns how many they are.
template <class... A> int host_sizes(void (*)(A...), unsigned *to) {
	const unsigned sizes[] = {sizeof(A)...};
	memcpy(to, sizes, sizeof sizes);
	return sizeof...(A);
}

struct Entry {
	const char *name;
	void (*run)(void **);
	int (*sizes)(unsigned *);
};
extern const Entry host_entries[]; // ends with an entry without a name
