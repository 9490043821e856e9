// The processor's side of host_cuda.h: a scheduler of fibers, and checks of what kernels touch, as NVIDIA's compute-sanitizer makes them on a GPU.
//
// Each access of a kernel's to shared or global memory comes to touch: from the compiler, which instruments as for -fsanitize=thread, but is
// given the functions here instead of that library; and from host_cuda.h's own. It is an error to touch memory that was not allocated, to read
// shared memory that nobody wrote, and to touch what another thread touches, one of them writing, when nothing orders the two. A block's
// threads are ordered by __syncthreads, a warp's by __syncwarp as well (not by shuffles, mma or ldmatrix), blocks by nothing: no kernel here
// has atomics. So an access's time is two counts, of the barriers that its block and its warp have behind them.
//
// What it cannot see: one tensor's end that runs into another within one allocation (models have an arena), memory that has been given back,
// global memory that nobody wrote, and with clang++ a read of what the same thread writes next. Lanes that meet at two operations of one kind pass.
// Of numbers, with HOST_ROUNDING (host_rounding.h): which products the GPU's compiler adds without rounding them, as compilers choose for themselves;
// errors that all have one sign; in what order and with what approximations the library multiplies.
//
// With HOST_UNCHECKED nothing of this is checked, and kernels may be compiled as they are.
#include "host_cuda.h"

#include <algorithm>
#include <link.h>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>

static const size_t host_stack = (64 << 10) + 17 * 64; // not a power of two: stacks would share a few lines of the cache
static std::vector<Fiber> fibers; // of a block
static std::vector<unsigned char> stacks;
extern "C" unsigned char __start_host_shared[], __stop_host_shared[]; // static shared memory: a section

// ---- who touched what

// Access is by whom and when a place was touched last.
struct Access {
	unsigned barriers, syncs : 19, warp : 5, lane : 5;
	unsigned is : 1, several : 1; // several: also by other lanes of the warp since its last barrier
	unsigned coming : 1;          // written by a copy that has not been waited for

	uint64_t bits() const {
		uint64_t u;
		static_assert(sizeof *this == sizeof u, "one word");
		memcpy(&u, this, sizeof u);
		return u;
	}
};

// Cell is what is known of some bytes next to each other.
struct Cell {
	uint64_t block : 62;                      // all of this is of this one, but for what earlier blocks of its launch have done:
	uint64_t read_before : 1, written_before : 1;
	Access write, reads[2]; // reads: of two warps, as a writer is in one of them at most
};

// Page has cells of as many bytes as all of a launch's accesses to it move together, of 16, 4 or 2, the least that kernels move: to look at cells is most
// of what checks take.
static const uintptr_t page_bytes = 1024;
struct Page {
	uint64_t launch = 0;
	unsigned shift = 4; // a cell has 1 << shift bytes
	Cell cells[page_bytes / 2];

	// divide makes a cell be of no more than 1 << to bytes.
	void divide(unsigned to) {
		for (int i = page_bytes >> shift; to < shift && i-- > 0;) {
			const Cell whole = cells[i];
			for (int part = 0; part < 1 << (shift - to); part++) cells[(i << (shift - to)) + part] = whole;
		}
		shift = min(shift, to);
	}
};

static std::unordered_map<uintptr_t, std::unique_ptr<Page>> pages; // by address / page_bytes
static struct {
	uintptr_t number;
	Page *page;
} recent[64];
static std::map<uintptr_t, size_t> memory; // allocated, by where it begins
static uintptr_t last_from, last_to;       // which of it was touched last
static uint64_t block, launch;             // blocks begun so far, and before this launch
static size_t shared_bytes;                // dynamic

// Range is some memory.
struct Range {
	uintptr_t from, bytes;

	bool has(uintptr_t at) const { return at - from < bytes; }
};

// What is nobody else's, and not checked: threads' own variables, which are most of what kernels touch, fibers, and this library but for
// its shared memory.
static Range own_stacks, own_fibers, image;

// host_memory says that these bytes are allocated.
extern "C" void host_memory(uintptr_t at, size_t bytes) {
	auto from = memory.lower_bound(at);
	if (from != memory.begin() && std::prev(from)->first + std::prev(from)->second > at) --from;
	while (from != memory.end() && from->first < at + bytes) from = memory.erase(from); // had been given back
	if (bytes) memory[at] = bytes;
	last_from = last_to = 0;
}

// find_image finds where this library lies.
static void find_image() {
	auto look = [](dl_phdr_info *info, size_t, void *) {
		uintptr_t first = -1, last = 0, here = (uintptr_t)&memory;
		for (int i = 0; i < info->dlpi_phnum; i++) {
			auto &part = info->dlpi_phdr[i];
			if (part.p_type != PT_LOAD) continue;
			first = min(first, (uintptr_t)(info->dlpi_addr + part.p_vaddr));
			last = max(last, (uintptr_t)(info->dlpi_addr + part.p_vaddr + part.p_memsz));
		}
		if (here < first || here >= last) return 0;
		image = {first, last - first};
		return 1;
	};
	dl_iterate_phdr(look, nullptr);
}

static bool is_static_shared(uintptr_t at) { return Range{(uintptr_t)__start_host_shared, (uintptr_t)(__stop_host_shared - __start_host_shared)}.has(at); }
static bool is_dynamic_shared(uintptr_t at) { return Range{(uintptr_t)host_shared_bytes, shared_bytes}.has(at); }

[[noreturn]] static void fail(bool write, const char *what, const Access *other, uintptr_t at) {
	char text[300], by[60] = "", where[100];
	if (other) snprintf(by, sizeof by, " thread %d of its block", other->warp * 32 + other->lane);
	auto m = memory.upper_bound(at);
	if (is_dynamic_shared(at)) snprintf(where, sizeof where, "byte %zu of dynamic shared memory", at - (uintptr_t)host_shared_bytes);
	else if (is_static_shared(at)) snprintf(where, sizeof where, "static shared memory");
	else if (m != memory.begin()) --m, snprintf(where, sizeof where, "byte %zu of an allocation of %zu", at - m->first, m->second);
	else snprintf(where, sizeof where, "address %zx", at);
	snprintf(text, sizeof text, "%s %s%s: %s", write ? "writes" : "reads", what, by, where);
	host_fail(text);
}

static Page &page(uintptr_t at) {
	uintptr_t number = at / page_bytes;
	auto &r = recent[number % 64];
	if (!r.page || r.number != number) {
		auto &p = pages[number];
		if (!p) p = std::make_unique<Page>();
		r = {number, p.get()};
	}
	return *r.page;
}

// ---- what a warp asks for at once

// Request is a warp's part in one instruction's turn, by lane. Vectors count as one instruction, and copies: lanes that leave one out are counted
// with the others' previous one.
struct Request {
	uintptr_t at[32];
	unsigned bytes, lanes; // bytes of each; a bit for each lane
	bool is_shared;
};

// Traffic is a kernel's requests, as a GPU serves them: global memory comes in sectors of 32 bytes; shared memory has 32 banks of 4 bytes, and a
// wavefront takes a word of each, for 32 lanes, or for the 16 or 8 next to each other whose words are that many.
struct Traffic {
	uint64_t sectors, least_sectors, wavefronts, least_wavefronts; // least: if what is asked for lay without gaps, and in different banks
};

static bool counting;
static std::map<std::string, Traffic> traffic;                         // by kernel
static std::map<std::pair<uintptr_t, unsigned>, Request> requests[32]; // of warps whose lanes have not met since: by instruction and turn
static std::unordered_map<uintptr_t, unsigned> turns[1024];            // how often a thread has come to an instruction since then

// distinct is how many multiples of size the bytes of lanes first to last begin or lie in; most is how many of them are in one bank.
static unsigned distinct(const Request &r, int first, int last, unsigned size, unsigned &most) {
	std::vector<uintptr_t> all;
	for (int i = first; i < last; i++)
		for (unsigned b = 0; (r.lanes >> i & 1) && b < r.bytes; b += min(r.bytes, size)) all.push_back((r.at[i] + b) / size);
	std::sort(all.begin(), all.end());
	all.erase(std::unique(all.begin(), all.end()), all.end());
	unsigned bank[32] = {};
	most = 0;
	for (uintptr_t word : all) most = max(most, ++bank[word % 32]);
	return all.size();
}

static void serve(const Request &r) {
	Traffic &t = traffic[host_kernel];
	unsigned most;
	if (!r.is_shared) {
		t.sectors += distinct(r, 0, 32, 32, most);
		t.least_sectors += (distinct(r, 0, 32, min(r.bytes, 4u), most) * min(r.bytes, 4u) + 31) / 32;
		return;
	}
	for (int lanes = 32 / max(1u, r.bytes / 4), first = 0; first < 32; first += lanes) {
		t.least_wavefronts += (distinct(r, first, first + lanes, 4, most) + 31) / 32;
		t.wavefronts += most;
	}
}

void host_met(int warp) {
	if (!counting) return;
	for (auto &r : requests[warp]) serve(r.second);
	requests[warp].clear();
	for (int i = 0; i < 32; i++) turns[warp * 32 + i].clear();
}

static void ask(uintptr_t instruction, uintptr_t at, unsigned bytes, bool is_shared) {
	const int warp = host_me->warp, lane = host_me->lane;
	Request &r = requests[warp][{instruction, turns[warp * 32 + lane][instruction]++}];
	r.at[lane] = at, r.bytes = bytes, r.lanes |= 1u << lane, r.is_shared = is_shared;
}

// host_count begins to count, or ends it and forgets.
extern "C" void host_count(int on) { counting = on, traffic.clear(); }

// host_traffic is a kernel's since then.
extern "C" void host_traffic(const char *kernel, Traffic *to) { *to = traffic[kernel]; }

// ---- who may touch what

enum Kind { READ, READ_FOR_ALL, WRITE, COPY_BEGINS, COPY_ENDS }; // for all: of its warp

// check is touch for what others may touch as well.
__attribute__((noinline)) static void check(uintptr_t at, unsigned bytes, Kind kind, const void *instruction) {
	const bool write = kind > READ_FOR_ALL, all = kind == READ_FOR_ALL;
	if (!host_me) return;
	const bool is_shared = is_dynamic_shared(at + bytes - 1) || is_static_shared(at);
	if (!is_shared) {
		if (at < last_from || at + bytes > last_to) {
			auto m = memory.upper_bound(at);
			if (m == memory.begin() || (--m)->first + m->second < at + bytes) fail(write, "what is not allocated", nullptr, at);
			last_from = m->first, last_to = last_from + m->second;
		}
	}
	if (counting && instruction) ask((uintptr_t)instruction, at, bytes, is_shared);
	const unsigned warp = host_me->warp, lane = host_me->lane, barriers = host_block.gate, syncs = host_warps[warp].syncs;
	const Access now{barriers, syncs, warp, lane, 1, all, kind == COPY_BEGINS};
	auto clash = [&](const Access &a) {
		if (!a.is || a.barriers != barriers) return false;
		return a.warp != warp || a.syncs == syncs && (all || a.several || a.lane != lane);
	};
	// Once two lanes have read without a barrier between them, any of their warp may, until there is one: who writes before that fails.
	const uint64_t lanes = Access{0, 0, 0, 31, 0, 0, 0}.bits(), allowed = Access{barriers, syncs, warp, 0, 1, 1, 0}.bits();
	const uintptr_t to = at + bytes;
	const unsigned shift = (at | to) % 4 ? 1 : (at | to) % 16 ? 2 : 4;
	for (Page *p = nullptr; at < to; at += 1 << p->shift) {
		if (!p || at % page_bytes == 0) {
			p = &page(at);
			if (p->launch != launch) p->launch = launch, p->shift = shift; // its cells are of earlier ones, and say nothing
			p->divide(shift);
		}
		Cell &c = p->cells[at % page_bytes >> p->shift];
		if (!write && c.block == block && ((c.reads[0].bits() & ~lanes) == allowed || (c.reads[1].bits() & ~lanes) == allowed)) continue;
		if (c.block != block) {
			const bool same = c.block > launch && !is_shared;
			const bool read = same && (c.read_before || c.reads[0].is), written = same && (c.written_before || c.write.is);
			c = Cell{block};
			c.read_before = read, c.written_before = written;
		}
		if (c.written_before) fail(write, "what another block writes", nullptr, at);
		if (c.write.coming && kind != COPY_ENDS) fail(write, "what has not come yet of a copy by", &c.write, at);
		if (clash(c.write)) fail(write, "without a barrier what has been written by", &c.write, at);
		if (write && is_shared && !host_me->unfenced) host_me->unfenced = barriers + 1;
		if (write) {
			if (c.read_before) fail(write, "what another block reads", nullptr, at);
			for (const Access &r : c.reads)
				if (clash(r)) fail(write, "without a barrier what has been read by", &r, at);
			c.write = now;
			continue;
		}
		if (is_shared && !c.write.is) fail(write, "what nobody wrote", nullptr, at);
		Access *r = nullptr;
		for (Access &a : c.reads)
			if (a.is && a.warp == warp) r = &a;
		if (r && r->barriers == barriers && r->syncs == syncs) {
			r->several |= all || r->lane != lane;
			continue;
		}
		for (Access &a : c.reads)
			if (!r && (!a.is || a.barriers != barriers)) r = &a;
		if (r) *r = now;
	}
}

// touch checks an access. instruction is null for what is no request of a lane's, as what wgmma reads, or has been counted as one, as copies that end.
static inline void touch(uintptr_t at, unsigned bytes, Kind kind, const void *instruction) {
#ifndef HOST_UNCHECKED
	if (own_stacks.has(at) || own_fibers.has(at) || image.has(at) && !is_static_shared(at)) return;
	check(at, bytes, kind, instruction);
#endif
}

#define CALLER __builtin_return_address(0)

void host_touch(const void *at, unsigned bytes, bool write) { touch((uintptr_t)at, bytes, write ? WRITE : READ, CALLER); }

static float half(unsigned w, int i) { return host_value(i ? w & 0xffff0000u : w << 16); }

void host_mma(float c[4], const unsigned a[4], unsigned b0, unsigned b1) {
	auto all = host_meet(HOST_MMA, 0xffffffffu, a[0], a[1], a[2], a[3], b0, b1);
	int g = host_me->lane / 4, t = host_me->lane % 4;
	float x[2][16], y[2][16]; // the rows and columns of this lane's elements
	for (int i = 0; i < 2; i++)
		for (int k = 0; k < 16; k++) {
			x[i][k] = half(all[g * 4 + k % 8 / 2][i + k / 8 * 2], k % 2);
			y[i][k] = half(all[(2 * t + i) * 4 + k % 8 / 2][4 + k / 8], k % 2);
		}
	host_products(c, x, y);
}

// A lane of ldmatrix asks for a row, and gets elements of the others', which it must not have written itself without a barrier either.
void host_ldmatrix(unsigned r[4], const void *row, bool trans) {
	uintptr_t at = (uintptr_t)row;
	if (at % 16 != 0) host_fail("ldmatrix from an address that is no multiple of 16");
	touch(at, 16, READ_FOR_ALL, CALLER);
	auto all = host_meet(HOST_MATRICES, 0xffffffffu, (unsigned)at, (unsigned)(at >> 32));
	int g = host_me->lane / 4, t = host_me->lane % 4;
	for (int m = 0; m < 4; m++) {
		unsigned out = 0;
		for (int i = 0; i < 2; i++) {
			int y = trans ? 2 * t + i : g, x = trans ? g : 2 * t + i;
			auto from = (const uint16_t *)((uintptr_t)all[m * 8 + y][1] << 32 | all[m * 8 + y][0]);
			out |= (unsigned)from[x] << (16 * i);
		}
		r[m] = out;
	}
}

// What cp.async writes may come at any time until it is waited for: it is NaNs first, and right only after host_wait_copies.
void host_copy_async(void *to, const void *from, unsigned bytes, bool there) {
	host_aligned(to, bytes), host_aligned(from, bytes);
	touch((uintptr_t)to, bytes, COPY_BEGINS, CALLER);
	if (there) touch((uintptr_t)from, bytes, READ, (char *)CALLER + 1);
	memset(to, 0xff, bytes);
	host_me->copies.push_back({(unsigned char *)to, from, bytes, there});
}

void host_wait_copies() {
	for (const HostCopy &c : host_me->copies) {
		if (c.there) touch((uintptr_t)c.from, c.bytes, READ, nullptr);
		touch((uintptr_t)c.to, c.bytes, COPY_ENDS, nullptr);
		if (c.there) memcpy(c.to, c.from, c.bytes);
		else memset(c.to, 0, c.bytes);
	}
	host_me->copies.clear();
}

void host_fence_async() { host_me->unfenced = 0; }
void host_group_fence() { host_me->fenced = true; }

static const unsigned under_way = 0x7fedcba9; // a NaN, and no other

// host_group_mma takes effect when it has been waited for and its accumulators are held: until then they are NaNs.
void host_group_mma(float *c, int n, const unsigned a[4], uint64_t b, bool turned, bool add) {
	const int warp = host_me->warp, lane = host_me->lane, g = lane / 4, t = lane % 4;
	auto all = host_meet(HOST_GROUP + n * 4 + turned * 2 + add, 0xffffffffu, a[0], a[1], a[2], a[3], (unsigned)b, (unsigned)(b >> 32));
	for (int i = 0; i < 32; i++)
		if (all[i][4] != (unsigned)b || all[i][5] != (unsigned)(b >> 32)) host_fail("the lanes of a warp have different matrix descriptors");
	if (lane == 0) {
		host_warps[warp].products = (host_warps[warp].products + b + n * 4 + turned * 2 + add + 1) * 0x9E3779B97F4A7C15u;
		for (const Fiber &f : fibers)
			if (f.unfenced && f.unfenced <= host_block.gate) host_fail("wgmma without fence.proxy.async between a thread's writes to shared memory and the barrier");
	}
	if (!host_me->fenced) host_fail("wgmma without wgmma.fence");
	if (b & ~0xC0003fff3fff3fffu || b >> 62 != 1) host_fail("a matrix descriptor that is not one of 128-byte swizzle with a base offset of 0");
	const unsigned start = (b & 0x3fff) << 4, next = (b >> 16 & 0x3fff) << 4, rows = (b >> 32 & 0x3fff) << 4;
	if (start % 1024 >= (turned ? 1 : 128) || start % 32) host_fail("a matrix descriptor whose atoms do not begin at a multiple of 1,024");
	// Element k of column j. Bits 4 to 6 of an address are those of the matrix xor bits 7 to 9.
	auto place = [&](int j, int k) {
		unsigned at = turned ? start + j / 64 * next + k / 8 * rows + k % 8 * 128 + j % 64 * 2 : start + j / 8 * rows + j % 8 * 128 + k * 2;
		return host_shared_bytes + ((at ^ (at >> 7 & 7) << 4) - host_alignment);
	};
	HostProduct *p = nullptr;
	for (HostProduct &q : host_me->products)
		if (q.c == c) p = &q;
	if (!p) {
		host_me->products.push_back({c, std::vector<float>(c, c + 4 * n)});
		p = &host_me->products.back();
	}
	p->group = 0, p->done = false;
	for (int i = lane; i < 16 * n; i += 32) { // 16 bytes each, which one of the lanes has to answer for
		const void *at = turned ? place(i % n * 8, i / n) : place(i / 2, i % 2 * 8);
		touch((uintptr_t)at, 16, READ, nullptr);
		p->reads.push_back(at);
	}
	float x[2][16], y[2][16];
	for (int k = 0; k < 16; k++)
		for (int r = 0; r < 2; r++) x[r][k] = half(all[g * 4 + k % 8 / 2][r + k / 8 * 2], k % 2);
	if (!add) std::fill(p->values.begin(), p->values.end(), 0.f);
	for (int j = 0; j < n; j++) {
		for (int e = 0; e < 2; e++)
			for (int k = 0; k < 16; k++) y[e][k] = half(*(const uint16_t *)place(8 * j + 2 * t + e, k), 0);
		host_products(&p->values[4 * j], x, y);
	}
	for (int i = 0; i < 4 * n; i++) memcpy(c + i, &under_way, 4);
}

// host_group_commit asks for a fence before the products after it: most have operands or accumulators that have been written since.
void host_group_commit() {
	host_me->fenced = false, host_me->groups++;
	for (HostProduct &p : host_me->products)
		if (!p.group) p.group = host_me->groups;
}

// host_group_wait waits for all groups but the last ones.
void host_group_wait(unsigned left) {
	for (HostProduct &p : host_me->products) {
		if (p.done || !p.group || p.group + left > host_me->groups) continue;
		for (const void *at : p.reads) touch((uintptr_t)at, 16, READ, nullptr); // nobody may have written it since
		p.done = true;
	}
}

void host_group_hold(const float *c) {
	auto &products = host_me->products;
	for (size_t i = 0; i < products.size(); i++) {
		if (products[i].c != c || !products[i].done) continue;
		for (size_t e = 0; e < products[i].values.size(); e++)
			if (memcmp(c + e, &under_way, 4)) host_fail("accumulators have been written while products were under way");
		memcpy(products[i].c, products[i].values.data(), products[i].values.size() * sizeof(float));
		products.erase(products.begin() + i);
		return;
	}
}

#define HOOKS(n)                                                                       \
	void __tsan_read##n(void *at) { touch((uintptr_t)at, n, READ, CALLER); }           \
	void __tsan_write##n(void *at) { touch((uintptr_t)at, n, WRITE, CALLER); }         \
	void __tsan_unaligned_read##n(void *at) { touch((uintptr_t)at, n, READ, CALLER); } \
	void __tsan_unaligned_write##n(void *at) { touch((uintptr_t)at, n, WRITE, CALLER); }
extern "C" {
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
void __tsan_read_range(void *at, size_t bytes) { touch((uintptr_t)at, bytes, READ, CALLER); }
void __tsan_write_range(void *at, size_t bytes) { touch((uintptr_t)at, bytes, WRITE, CALLER); }
void *__tsan_memcpy(void *to, const void *from, size_t bytes) { // clang's
	touch((uintptr_t)from, bytes, READ, CALLER), touch((uintptr_t)to, bytes, WRITE, (char *)CALLER + 1);
	return memcpy(to, from, bytes);
}
void *__tsan_memset(void *to, int v, size_t bytes) {
	touch((uintptr_t)to, bytes, WRITE, CALLER);
	return memset(to, v, bytes);
}
void __tsan_vptr_update(void **, void *) {}
void __tsan_init() {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
}

// ---- the scheduler

asm(R"(
.text
.globl host_switch
.type host_switch,@function
host_switch:
	pushq %rbp
	pushq %rbx
	pushq %r12
	pushq %r13
	pushq %r14
	pushq %r15
	movq %rsp, (%rdi)
	movq %rsi, %rsp
	popq %r15
	popq %r14
	popq %r13
	popq %r12
	popq %rbx
	popq %rbp
	ret
)");

static const Entry *host_entry;
static void **host_args;

static void host_begin() {
	host_entry->run(host_args);
	Warp &w = host_warps[host_me->warp];
	host_me->done = true;
	if (!host_me->copies.empty()) host_fail("a thread has ended and not waited for its copies");
	if (!host_me->products.empty()) host_fail("a thread has ended and not waited for its products");
	if (w.live == 1) host_met(host_me->warp);
	w.live--, host_block.live--;
	if (w.live && w.arrived == w.live) host_fail("a lane has ended while its warp waits");
	if (host_block.live && host_block.arrived == host_block.live) host_block.arrived = 0, host_block.gate++;
	host_switch(&host_me->sp, host_scheduler);
}

static void host_run(bool backwards) {
	int n = fibers.size();
	host_block = Block{};
	host_block.live = n;
	for (int i = 0; i < n; i++) {
		if (i % 32 == 0) host_warps[i / 32] = Warp{};
		host_warps[i / 32].live++;
		Fiber &f = fibers[i];
		f = Fiber{};
		f.id = {i % blockDim.x, i / blockDim.x % blockDim.y, i / blockDim.x / blockDim.y};
		f.warp = i / 32, f.lane = i % 32;
		auto top = (uintptr_t)(stacks.data() + (i + 1) * host_stack) / 16 * 16;
		void **sp = (void **)top - 2; // a return address where a call would leave it
		sp[0] = (void *)host_begin, sp[1] = nullptr;
		f.sp = sp - 6;
	}
	// A warp goes on until it waits for others, however far behind they are: a barrier of the block that is missing then shows.
	int warps = (n + 31) / 32;
	for (int live = n; live > 0;) {
		bool moved = false;
		for (int k = 0; k < warps; k++) {
			int first = (backwards ? warps - 1 - k : k) * 32, count = std::min(32, n - first);
			for (bool again = true; again;) {
				again = false;
				for (int i = 0; i < count; i++) {
					Fiber &f = fibers[first + (backwards ? count - 1 - i : i)];
					if (f.done || f.gate && *f.gate == f.seen) continue;
					host_me = &f, f.gate = nullptr, moved = again = true;
					host_switch(&host_scheduler, f.sp);
					if (f.done) live--;
				}
			}
		}
		if (!moved) host_me = nullptr, host_fail("its threads wait for ever");
	}
	for (int k = 0; k < warps; k++)
		if (host_warps[k].products != host_warps[k / 4 * 4].products || host_warps[k].products && (k / 4 * 4 + 4) * 32 > n)
			host_me = nullptr, host_fail("the warps of a group have multiplied different things");
}

// host_launch is cuLaunchKernel: 0, or 1 for a kernel that isn't there.
extern "C" int host_launch(const char *name, const unsigned *grid, const unsigned *threads, unsigned shared, void **args) {
	static unsigned launches;
	static std::vector<unsigned char> bytes;
	host_entry = nullptr;
	for (const Entry *e = host_entries; e->name; e++)
		if (!strcmp(e->name, name)) host_entry = e;
	if (!host_entry) return 1;
	host_kernel = name, host_args = args, host_me = nullptr;
	for (int i = 0; i < 3; i++)
		if (!grid[i] || !threads[i]) host_fail("no GPU launches nothing: it calls that an invalid value");
	if (grid[0] > 0x7fffffff || grid[1] > 65535 || grid[2] > 65535 || threads[2] > 64 || threads[0] * threads[1] * threads[2] > 1024 || shared > 99 << 10) host_fail("no GPU launches so much");
	gridDim = {grid[0], grid[1], grid[2]}, blockDim = {threads[0], threads[1], threads[2]};
	fibers.resize(threads[0] * threads[1] * threads[2]);
	if (stacks.size() < fibers.size() * host_stack) stacks.resize(fibers.size() * host_stack);
	bytes.resize(shared + 1024);
	host_shared_bytes = (unsigned char *)(((uintptr_t)bytes.data() + 1023) / 1024 * 1024);
	shared_bytes = shared, launch = block;
	own_stacks = {(uintptr_t)stacks.data(), stacks.size()}, own_fibers = {(uintptr_t)fibers.data(), fibers.size() * sizeof(Fiber)};
	if (!image.bytes) find_image();
	if (pages.size() > 20000) pages.clear(), memset(recent, 0, sizeof recent); // each is 16 KiB
	bool backwards = launches++ % 2;
	uint64_t blocks = (uint64_t)grid[0] * grid[1] * grid[2];
	for (uint64_t i = 0; i < blocks; i++) {
		uint64_t b = backwards ? blocks - 1 - i : i;
		blockIdx = {(unsigned)(b % grid[0]), (unsigned)(b / grid[0] % grid[1]), (unsigned)(b / grid[0] / grid[1])};
		memset(host_shared_bytes, 0xff, shared);
		memset(__start_host_shared, 0xff, __stop_host_shared - __start_host_shared);
		block++;
		host_run(backwards);
	}
	return 0;
}
