// What the two families of attention kernels share.
#ifndef CONTRAFLOW_ATTENTION
#define CONTRAFLOW_ATTENTION
#include "common.cuh"

// Attention is one call; the launching side fills a struct of the same layout. q, ctx and their gradients are [T, H*D], k and v
// [T, H/group*D], lse and delta [H, T]; a stride follows each. With half q, k, v, ctx and their gradients are bf16, all others f32. vec says that
// each head of these may be moved 16 bytes at a time.
struct Attention {
	void *ctx;
	float *lse;
	const void *q, *k, *v, *dctx;
	float *delta; // <dctx, ctx> of each head and token
	void *dq, *dk, *dv;
	const float *bias; // [2*reach+1, H], or 0
	float *dbias;
	const int *cu;
	const u64 *keys; // of dropout, or 0
	void *kept;      // what the way back has drawn by query (flash.cuh), skept words for each head and token
	int sctx, slse, sq, sk, sv, sdctx, sdelta, sdq, sdk, sdv, sbias, sdbias, skept;
	int heads, group, dim, causal, window, reach, bf16, half, tokens, rows, vec;
	u32 site, threshold;
	float scale, cap, keep;
};

// dot_pairs is the product of two pairs of bf16.
DEVICE float dot_pairs(u32 a, u32 b) { return from_bf16(a & 0xffff) * from_bf16(b & 0xffff) + from_bf16(a >> 16) * from_bf16(b >> 16); }

// Range is half-open.
struct Range {
	int from, to;
};

// keys_of are the positions that queries first to last of a sequence of n tokens see.
DEVICE Range keys_of(const Attention &a, int first, int last, int n) {
	Range r;
	r.from = a.window ? max(0, first - a.window) : 0;
	r.to = a.causal ? last + 1 : a.window ? last + a.window + 1 : n;
	r.to = min(r.to, n);
	return r;
}

// queries_of are the positions that see keys first to last.
DEVICE Range queries_of(const Attention &a, int first, int last, int n) {
	Range r;
	r.from = a.causal ? first : a.window ? max(0, first - a.window) : 0;
	r.to = a.window ? min(n, last + a.window + 1) : n;
	return r;
}

DEVICE bool visible(const Attention &a, int i, int j, int n) {
	return i < n && j < n && !(a.causal && j > i) && !(a.window && (j < i - a.window || j > i + a.window));
}

#endif
