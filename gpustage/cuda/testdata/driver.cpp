// A CUDA driver for tests, on a processor: libcuda.so.1 with the functions that package cuda and gorgonia.org/cu call, which runs the
// kernels as host_cuda.h compiles them. So the package's own calls, their order and what they wait for are tested without a GPU.
//
// Streams do their work as late as they may: a stream's commands wait in a queue until the host waits for them, or until another stream that it
// waits for does ("late"). What was not ordered by an event then comes in the wrong order, and what the host overwrote too early is read too
// late. With CONTRAFLOW_DRIVER_ORDER=N, N a number, streams go on by chance at each call instead, and with "now" at once, as far as one
// call at a time is to the driver. Errors do not stay, as those of a GPU do.
//
// It is as strict as NVIDIA's documentation of the driver's interface, or stricter: contexts must be current, handles alive and of the
// current context, copies and kernels within memory that is allocated (what has been freed and what lies beyond an allocation cannot be
// touched), more than 48 KB of shared memory, declared and dynamic together, allowed before, and a stream that captures takes launches and nothing else, while its
// context may not be synchronized, and the host waits only for events for which it sleeps. What a kernel is given of memory is its GPU's. What is left of a context when it is given back is told on standard error.
//
// CONTRAFLOW_DRIVER_GPUS is how many GPUs there are (1), CONTRAFLOW_DRIVER_ARCH their generation (90), CONTRAFLOW_DRIVER_MEMORY the
// MiB that each has (16,384).
#include <cuda.h>
#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

struct Entry { // as in host_cuda.h
	const char *name;
	void (*run)(void **);
	int (*sizes)(unsigned *);
};
extern const Entry host_entries[];
extern "C" int host_launch(const char *name, const unsigned *grid, const unsigned *threads, unsigned shared, void **args);
extern "C" void host_memory(uintptr_t at, size_t bytes);

static std::mutex all; // one call at a time
#define ENTER std::lock_guard<std::mutex> entered(all)

static long setting(const char *name, long otherwise) {
	const char *v = getenv(name);
	return v ? atol(v) : otherwise;
}

[[noreturn]] static void fail(const char *format, ...) {
	va_list args;
	va_start(args, format);
	fprintf(stderr, "the driver on the processor: "), vfprintf(stderr, format, args), fputc('\n', stderr);
	abort();
}

// ---- what there is

struct Context {
	int retained;
	size_t used;
};

typedef std::function<bool()> Command; // false: it is not done yet, and wants to be called again

struct Stream;

// Moment is a place in a stream's order: that so many of its commands are done.
struct Moment {
	std::shared_ptr<Stream> stream;
	uint64_t after = 0;
};

struct Task {
	Command run; // none of those that wait
	Moment wait;
};

struct Stream {
	Context *context;
	std::deque<Task> todo;
	uint64_t issued, done;
	std::unique_ptr<std::vector<Command>> capture;
	bool spoiled; // its capture
	int priority;
};

struct Event {
	Context *context;
	Moment at;
	unsigned sleeping = 0;
};

struct Module {
	Context *context;
	std::string code;
	std::map<std::string, std::unique_ptr<struct Function>> functions;
};

struct Function {
	Context *context;
	const Entry *entry;
	int declared, shared; // memory that its code has, and that it may have besides
};

struct Graph {
	std::vector<Command> commands;
};

struct Memory {
	Context *context; // null for the host's
	size_t bytes;
	char *pages;
	size_t length;            // of pages
	Context *pinned = nullptr; // which has pinned it, of the host's
	bool portable = false;     // for other contexts as well
};

static Context contexts[16];
static std::map<CUstream, std::shared_ptr<Stream>> streams;
static std::map<CUevent, Event> events;
static std::map<CUmodule, std::unique_ptr<Module>> modules;
static std::set<Function *> functions;
static std::map<CUgraph, Graph> graphs;
static std::map<CUgraphExec, Graph> execs;
static std::map<uintptr_t, Memory> memory; // by where it begins
static thread_local Context *current;

// handle is a new one that has never been another thing's.
template <class T> static T handle() {
	static uintptr_t last = 0x1000;
	return (T)(last += 16);
}

static int gpus() { return setting("CONTRAFLOW_DRIVER_GPUS", 1); }
static size_t total() { return (size_t)setting("CONTRAFLOW_DRIVER_MEMORY", 16384) << 20; }

// ---- streams

static void drain(Stream &s, uint64_t until);

// step goes on with a stream's next command, and tells whether anything was done. Where that is to wait, by_force has the other stream do
// its work.
static bool step(Stream &s, bool by_force) {
	if (s.todo.empty()) return false;
	Task &next = s.todo.front();
	if (next.wait.stream && next.wait.stream->done < next.wait.after) {
		if (!by_force) return false;
		drain(*next.wait.stream, next.wait.after);
		return true; // and meanwhile other threads have had their turns
	}
	if (next.run && !next.run()) return false;
	s.todo.pop_front();
	s.done++;
	return true;
}

static void drain(Stream &s, uint64_t until) {
	while (s.done < until) {
		if (s.todo.empty()) fail("a stream waits for what was never issued");
		if (step(s, true)) continue;
		all.unlock(); // its command waits for another thread, or process
		usleep(20);
		all.lock();
	}
}

static void drain(Context *c) {
	std::vector<std::shared_ptr<Stream>> its;
	for (auto &s : streams)
		if (s.second->context == c) its.push_back(s.second);
	for (auto &s : its) drain(*s, s->issued);
}

// by_chance lets streams go on, between any two calls.
static void by_chance() {
	static const char *order = getenv("CONTRAFLOW_DRIVER_ORDER");
	if (!order || !strcmp(order, "late")) return;
	if (!strcmp(order, "now")) {
		auto its = streams;
		for (auto &s : its) drain(*s.second, s.second->issued);
		return;
	}
	static std::minstd_rand random(1 + atol(order));
	std::vector<Stream *> busy;
	for (auto &s : streams)
		if (!s.second->todo.empty()) busy.push_back(s.second.get());
	for (unsigned steps = busy.empty() ? 0 : random() % 4; steps > 0; steps--) step(*busy[random() % busy.size()], false);
}

static Stream *find(CUstream s) {
	auto at = streams.find(s);
	return at == streams.end() ? nullptr : at->second.get();
}

#define CURRENT \
	ENTER;      \
	by_chance(); \
	if (!current) return CUDA_ERROR_INVALID_CONTEXT; \
	if (!current->retained) return CUDA_ERROR_CONTEXT_IS_DESTROYED
#define STREAM(name, handle)                                  \
	CURRENT;                                                  \
	Stream *name = find(handle);                              \
	if (!name || name->context != current) return CUDA_ERROR_INVALID_HANDLE

#define WHOLE \
	CURRENT;  \
	if (capturing(current)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
#define UNCAPTURED(name, handle) \
	STREAM(name, handle);        \
	if (CUresult r = refused(*name)) return r

// WHOLE is for what may synchronize the context, UNCAPTURED for what is no launch.

// capturing tells whether a stream of the context captures, and spoils what does: the context is to be synchronized.
static bool capturing(Context *c, Stream *but = nullptr) {
	bool any = false;
	for (auto &s : streams)
		if (s.second->context == c && s.second->capture && s.second.get() != but) any = s.second->spoiled = true;
	return any;
}

// issue has a command done some time, or captured.
static CUresult issue(Stream &s, Command c) {
	if (s.capture) return s.capture->push_back(std::move(c)), CUDA_SUCCESS;
	s.todo.push_back({std::move(c), {}});
	s.issued++;
	return CUDA_SUCCESS;
}

// once is issue of a command that is done when it has been called.
template <class F> static CUresult once(Stream &s, F f) {
	return issue(s, [=] { return f(), true; });
}

// refused is for what is no launch, while a stream captures.
static CUresult refused(Stream &s) {
	if (!s.capture) return CUDA_SUCCESS;
	s.spoiled = true;
	return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

// holding is the allocation that an address lies in, or null.
static std::pair<const uintptr_t, Memory> *holding(uintptr_t at) {
	auto m = memory.upper_bound(at);
	return m != memory.begin() && at < (--m)->first + m->second.bytes ? &*m : nullptr;
}

static CUresult release(Context *c, uintptr_t at);

// destroy ends a context and all that is in it.
static void destroy(Context *c) {
	drain(c);
	auto drop = [&](auto &its, auto of) {
		size_t n = 0;
		for (auto x = its.begin(); x != its.end();)
			if (of(*x) == c) x = its.erase(x), n++;
			else ++x;
		return n;
	};
	drop(functions, [](auto &x) { return x->context; });
	const size_t left[] = {drop(streams, [](auto &x) { return x.second->context; }), drop(events, [](auto &x) { return x.second.context; }),
	                       drop(modules, [](auto &x) { return x.second->context; })};
	size_t pinned = 0;
	std::vector<uintptr_t> its;
	for (auto &m : memory) {
		if (m.second.context == c || m.second.pinned == c) its.push_back(m.first);
		if (m.second.pinned == c) pinned += m.second.bytes;
	}
	if (left[0] || left[1] || left[2] || c->used || pinned)
		fprintf(stderr, "the driver on the processor: a context is given back that has %zu streams, %zu events, %zu modules, %zu bytes of memory and %zu of the host's\n", left[0], left[1], left[2], c->used, pinned);
	for (uintptr_t at : its) release(memory[at].context, at);
}

extern "C" {

// contraflow_enqueue is for libraries that work on streams: run comes, with a copy of these bytes, when it is its turn, and as long as it
// returns 0 again and again.
CUresult contraflow_enqueue(CUstream stream, int (*run)(void *), const void *from, size_t bytes) {
	ENTER; // such a library sees to its context by itself
	by_chance();
	Stream *s = find(stream);
	if (!s) return CUDA_ERROR_INVALID_HANDLE;
	std::string copy((const char *)from, bytes);
	return issue(*s, [=]() mutable { return run(copy.data()) != 0; });
}

// contraflow_load is for libraries too: what they use on a stream for the first time is loaded, and so are modules and their functions. For that the
// context may be synchronized.
CUresult contraflow_load(CUstream stream) {
	ENTER;
	Stream *s = find(stream);
	if (!s) return CUDA_ERROR_INVALID_HANDLE;
	return capturing(s->context, s) ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

// ---- devices and contexts

CUresult cuInit(unsigned flags) { return CUDA_SUCCESS; }

// NVRTC asks the driver for what is in no documentation, and does without.
CUresult cuGetExportTable(const void **table, const CUuuid *id) { return CUDA_ERROR_NOT_FOUND; }

CUresult cuDriverGetVersion(int *version) { return *version = 12090, CUDA_SUCCESS; }

CUresult cuDeviceGetCount(int *n) { return *n = gpus(), CUDA_SUCCESS; }

CUresult cuDeviceGet(CUdevice *d, int n) {
	if (n < 0 || n >= gpus()) return CUDA_ERROR_INVALID_DEVICE;
	return *d = n, CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int bytes, CUdevice d) { return snprintf(name, bytes, "a processor as GPU"), CUDA_SUCCESS; }

CUresult cuDeviceGetAttribute(int *v, CUdevice_attribute a, CUdevice d) {
	long arch = setting("CONTRAFLOW_DRIVER_ARCH", 90);
	switch (a) {
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return *v = arch / 10, CUDA_SUCCESS;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: return *v = arch % 10, CUDA_SUCCESS;
	case CU_DEVICE_ATTRIBUTE_INTEGRATED: return *v = 0, CUDA_SUCCESS;
	default: return CUDA_ERROR_NOT_SUPPORTED;
	}
}

CUresult cuDeviceTotalMem(size_t *bytes, CUdevice d) { return *bytes = total(), CUDA_SUCCESS; }

CUresult cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice d) {
	ENTER;
	if (d < 0 || d >= gpus()) return CUDA_ERROR_INVALID_DEVICE;
	contexts[d].retained++;
	return *c = (CUcontext)&contexts[d], CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice d) {
	ENTER;
	if (d < 0 || d >= gpus() || !contexts[d].retained) return CUDA_ERROR_INVALID_CONTEXT;
	if (--contexts[d].retained == 0) destroy(&contexts[d]);
	return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext c) {
	ENTER;
	Context *mine = (Context *)c;
	if (mine && (mine < contexts || mine >= contexts + gpus() || !mine->retained)) return CUDA_ERROR_INVALID_CONTEXT;
	return current = mine, CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *c) { return *c = (CUcontext)current, CUDA_SUCCESS; }

CUresult cuGetErrorName(CUresult r, const char **name) {
	static const std::map<int, const char *> names{
#define NAME(e) {e, #e}
		NAME(CUDA_ERROR_INVALID_VALUE), NAME(CUDA_ERROR_OUT_OF_MEMORY), NAME(CUDA_ERROR_INVALID_DEVICE), NAME(CUDA_ERROR_INVALID_IMAGE),
		NAME(CUDA_ERROR_INVALID_CONTEXT), NAME(CUDA_ERROR_INVALID_HANDLE), NAME(CUDA_ERROR_NOT_FOUND), NAME(CUDA_ERROR_NOT_SUPPORTED),
		NAME(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED), NAME(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED), NAME(CUDA_ERROR_ILLEGAL_STATE)};
	auto at = names.find(r);
	if (at == names.end()) return CUDA_ERROR_INVALID_VALUE;
	return *name = at->second, CUDA_SUCCESS;
}

// ---- memory

} // extern "C"

static const size_t page = 4096, room = (size_t)1 << 44;

static void *map(void *at, size_t bytes, int may) {
	return mmap(at, bytes, may, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (at ? MAP_FIXED : 0), -1, 0);
}

// allocate gives memory that ends, but for what is missing to 256 bytes, where a page begins that can't be touched. Addresses do not come again.
static uintptr_t allocate(Context *c, size_t bytes) {
	static char *next = (char *)map(nullptr, room, PROT_NONE);
	const size_t whole = (bytes + 255) / 256 * 256, length = (whole + page - 1) / page * page;
	if (next == MAP_FAILED || map(next, length, PROT_READ | PROT_WRITE) == MAP_FAILED) fail("no memory of %zu bytes", bytes);
	uintptr_t at = (uintptr_t)next + length - whole;
	if (c) memset((void *)at, 0xff, std::min(bytes, (size_t)1 << 20)); // NaNs
	memory[at] = {c, bytes, next, length};
	next += length + page;
	if (c) c->used += bytes, host_memory(at, bytes);
	return at;
}

static CUresult release(Context *c, uintptr_t at) {
	auto m = memory.find(at);
	if (m == memory.end() || m->second.context != c) return CUDA_ERROR_INVALID_VALUE;
	if (c) c->used -= m->second.bytes;
	host_memory(at, 0);
	map(m->second.pages, m->second.length, PROT_NONE);
	memory.erase(m);
	return CUDA_SUCCESS;
}

// clear sets bytes that are an allocation's to a value; many that become zero are new pages.
static void clear(uintptr_t at, int v, size_t bytes) {
	uintptr_t from = (at + page - 1) / page * page, to = (at + bytes) / page * page;
	if (v || bytes < 1 << 20) return (void)memset((void *)at, v, bytes);
	memset((void *)at, 0, from - at), memset((void *)to, 0, at + bytes - to);
	map((void *)from, to - from, PROT_READ | PROT_WRITE);
}

// within tells whether bytes lie in one allocation of a context.
static bool within(Context *c, uintptr_t at, size_t bytes) {
	auto m = holding(at);
	return m && m->second.context == c && at + bytes <= m->first + m->second.bytes;
}

extern "C" {

CUresult cuMemAlloc(CUdeviceptr *at, size_t bytes) {
	WHOLE;
	if (!bytes) return CUDA_ERROR_INVALID_VALUE;
	if (current->used + bytes > total()) return CUDA_ERROR_OUT_OF_MEMORY;
	return *at = allocate(current, bytes), CUDA_SUCCESS;
}

CUresult cuMemFree(CUdeviceptr at) {
	WHOLE;
	drain(current);
	return release(current, at);
}

CUresult cuMemGetInfo(size_t *available, size_t *whole) {
	CURRENT;
	return *whole = total(), *available = total() - current->used, CUDA_SUCCESS;
}

CUresult cuMemsetD8Async(CUdeviceptr at, unsigned char v, size_t bytes, CUstream stream) {
	UNCAPTURED(s, stream);
	if (!within(current, at, bytes)) return CUDA_ERROR_INVALID_VALUE;
	return once(*s, [=] { clear(at, v, bytes); });
}

CUresult cuMemHostAlloc(void **at, size_t bytes, unsigned flags) {
	WHOLE;
	uintptr_t begin = allocate(nullptr, bytes);
	memory[begin].pinned = current, memory[begin].portable = flags & CU_MEMHOSTALLOC_PORTABLE;
	return *at = (void *)begin, CUDA_SUCCESS;
}

CUresult cuMemFreeHost(void *at) {
	WHOLE;
	drain(current);
	return release(nullptr, (uintptr_t)at);
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
	UNCAPTURED(s, stream);
	if (!within(current, to, bytes)) return CUDA_ERROR_INVALID_VALUE;
	if (!within(nullptr, (uintptr_t)from, bytes)) fail("an asynchronous copy of %zu bytes from memory that is not pinned", bytes);
	auto &host = holding((uintptr_t)from)->second;
	if (host.pinned != current && !host.portable) fail("a copy from what another context has pinned for itself");
	return once(*s, [=] { memcpy((void *)to, from, bytes); });
}

CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
	UNCAPTURED(s, stream);
	if (!within(current, from, bytes)) return CUDA_ERROR_INVALID_VALUE;
	return once(*s, [=] { memcpy(to, (void *)from, bytes); });
}

// ---- modules and launches

CUresult cuModuleLoadData(CUmodule *m, const void *image) {
	WHOLE;
	auto elf = (const Elf64_Ehdr *)image;
	if (memcmp(elf->e_ident, ELFMAG, SELFMAG)) return CUDA_ERROR_INVALID_IMAGE;
	size_t bytes = elf->e_shoff + elf->e_shnum * sizeof(Elf64_Shdr);
	*m = handle<CUmodule>();
	modules[*m].reset(new Module{current, std::string((const char *)image, bytes)});
	return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule m) {
	WHOLE;
	if (!modules.count(m) || modules[m]->context != current) return CUDA_ERROR_INVALID_HANDLE;
	for (auto &f : modules[m]->functions) functions.erase(f.second.get());
	modules.erase(m);
	return CUDA_SUCCESS;
}

} // extern "C"

// declared is how many bytes of shared memory a kernel's code has: a section's, less what compilers for sm_90 and later say of the system's there.
static int declared(const std::string &code, const char *kernel) {
	auto elf = (const Elf64_Ehdr *)code.data();
	auto sections = (const Elf64_Shdr *)(code.data() + elf->e_shoff);
	const char *names = code.data() + sections[elf->e_shstrndx].sh_offset;
	int bytes = 0, systems = 0;
	for (int i = 0; i < elf->e_shnum; i++) {
		const char *name = names + sections[i].sh_name;
		if (name == std::string(".nv.shared.") + kernel) bytes = sections[i].sh_size;
		if (!strcmp(name, ".nv.shared.reserved.0")) systems = 1024;
	}
	return std::max(0, bytes - systems);
}

extern "C" {

CUresult cuModuleGetFunction(CUfunction *f, CUmodule m, const char *name) {
	WHOLE;
	if (!modules.count(m) || modules[m]->context != current) return CUDA_ERROR_INVALID_HANDLE;
	if (modules[m]->code.find(std::string(".text.") + name + '\0') == std::string::npos) return CUDA_ERROR_NOT_FOUND;
	auto &function = modules[m]->functions[name];
	for (const Entry *e = host_entries; e->name && !function; e++)
		if (!strcmp(e->name, name)) {
			const int has = declared(modules[m]->code, name);
			function.reset(new Function{current, e, has, (48 << 10) - has});
		}
	if (!function) return CUDA_ERROR_NOT_FOUND;
	functions.insert(function.get());
	return *f = (CUfunction)function.get(), CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *v, CUfunction_attribute a, CUfunction f) {
	CURRENT;
	auto mine = (Function *)f;
	if (!functions.count(mine)) return CUDA_ERROR_INVALID_HANDLE;
	if (a != CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES) return CUDA_ERROR_INVALID_VALUE;
	return *v = mine->declared, CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction f, CUfunction_attribute a, int v) {
	CURRENT;
	auto mine = (Function *)f;
	if (!functions.count(mine)) return CUDA_ERROR_INVALID_HANDLE;
	const int most = 99 << 10; // of all GPUs from sm_80 on
	if (a != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || v < 0 || mine->declared + v > most) return CUDA_ERROR_INVALID_VALUE;
	return mine->shared = v, CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream stream,
                        void **args, void **extra) {
	STREAM(s, stream);
	auto mine = (Function *)f;
	if (!functions.count(mine) || mine->context != current) return CUDA_ERROR_INVALID_HANDLE;
	if (!gx || !gy || !gz || !bx || !by || !bz || gx > 0x7fffffff || gy > 65535 || gz > 65535 || bx * by * bz > 1024 || shared > (unsigned)mine->shared || !args)
		return CUDA_ERROR_INVALID_VALUE;
	unsigned sizes[64];
	const int n = mine->entry->sizes(sizes);
	std::vector<std::string> copy;
	for (int i = 0; i < n; i++) {
		copy.emplace_back((const char *)args[i], sizes[i]);
		if (sizes[i] != sizeof(uintptr_t)) continue;
		auto m = holding(*(uintptr_t *)args[i]);
		if (m && m->second.context != current)
			fail("%s is given memory of another GPU, or of the host", mine->entry->name);
	}
	return once(*s, [=] {
		unsigned grid[] = {gx, gy, gz}, threads[] = {bx, by, bz};
		void *at[64];
		for (int i = 0; i < n; i++) at[i] = (void *)copy[i].data();
		if (host_launch(mine->entry->name, grid, threads, shared, at)) fail("no kernel %s", mine->entry->name);
	});
}

// ---- streams and events

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
	CURRENT;
	return *least = 0, *greatest = -5, CUDA_SUCCESS;
}

CUresult cuStreamCreateWithPriority(CUstream *s, unsigned flags, int priority) {
	CURRENT;
	if (flags != CU_STREAM_NON_BLOCKING) fail("a stream that waits for the default stream");
	if (priority > 0 || priority < -5) fail("a stream of priority %d", priority); // NVIDIA's clamps it
	*s = handle<CUstream>();
	streams[*s] = std::make_shared<Stream>(Stream{current});
	streams[*s]->priority = priority;
	return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream *s, unsigned flags) { return cuStreamCreateWithPriority(s, flags, 0); }

CUresult cuStreamGetPriority(CUstream stream, int *priority) {
	STREAM(s, stream);
	return *priority = s->priority, CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream stream) {
	UNCAPTURED(s, stream);
	drain(*s, s->issued);
	streams.erase(stream);
	return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream) {
	UNCAPTURED(s, stream);
	drain(*s, s->issued);
	return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent *e, unsigned flags) {
	CURRENT;
	*e = handle<CUevent>();
	events[*e] = {current};
	events[*e].sleeping = flags & CU_EVENT_BLOCKING_SYNC;
	return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent e) {
	CURRENT;
	return events.erase(e) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuEventRecord(CUevent e, CUstream stream) {
	UNCAPTURED(s, stream);
	if (!events.count(e) || events[e].context != current) return CUDA_ERROR_INVALID_HANDLE;
	events[e].at = {streams[stream], s->issued};
	return CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent e, unsigned flags) {
	UNCAPTURED(s, stream);
	if (!events.count(e)) return CUDA_ERROR_INVALID_HANDLE;
	s->todo.push_back({nullptr, events[e].at});
	s->issued++;
	return CUDA_SUCCESS;
}

CUresult cuEventSynchronize(CUevent e) {
	CURRENT;
	if (!events.count(e)) return CUDA_ERROR_INVALID_HANDLE;
	if (!events[e].sleeping) return CUDA_ERROR_NOT_PERMITTED; // the host would spin
	Moment at = events[e].at;
	if (at.stream) drain(*at.stream, at.after);
	return CUDA_SUCCESS;
}

// ---- graphs

CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) {
	STREAM(s, stream);
	if (s->capture) return CUDA_ERROR_ILLEGAL_STATE;
	if (mode != CU_STREAM_CAPTURE_MODE_RELAXED) fail("a capture that belongs to a thread, or forbids what other threads do");
	s->capture = std::make_unique<std::vector<Command>>(), s->spoiled = false;
	return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *g) {
	STREAM(s, stream);
	if (!s->capture) return CUDA_ERROR_ILLEGAL_STATE;
	auto commands = std::move(s->capture);
	*g = nullptr;
	if (s->spoiled) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	*g = handle<CUgraph>();
	graphs[*g] = {std::move(*commands)};
	return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph g, unsigned long long flags) {
	CURRENT;
	if (!graphs.count(g)) return CUDA_ERROR_INVALID_VALUE;
	*exec = handle<CUgraphExec>();
	execs[*exec] = graphs[g];
	return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph g) {
	CURRENT;
	return graphs.erase(g) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
	UNCAPTURED(s, stream);
	if (!execs.count(exec)) return CUDA_ERROR_INVALID_VALUE;
	for (const Command &c : execs[exec].commands) issue(*s, c);
	return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec exec) {
	CURRENT;
	return execs.erase(exec) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

} // extern "C"
