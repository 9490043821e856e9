// A library with NCCL's C interface that carries out its operations between processes of one machine, on host pointers, through shared
// memory: what package nccl's tests load in place of libnccl on machines without GPUs.
//
// It behaves as NCCL does where the binding could go wrong: a communicator is made from an id by all ranks together; calls on a
// non-blocking communicator return ncclInProgress and are done when ncclCommGetAsyncError says so; operations of a group make progress
// together; a peer that never comes, or means another size, is waited for without end; and only ncclCommAbort, from another thread, ends that.
//
// Where package cuda's driver on the processor is (gpustage/cuda/testdata/driver.cpp), operations on a stream come when it is their turn, and
// what is behind them waits, as on a GPU. Communicators are made and ended there by threads on which a context is current.
//
//	cc -shared -fPIC -O2 -pthread -o libtestnccl.so testnccl.c
//
// Messages pass through one mailbox for each pair of ranks, in pieces.

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

typedef enum { ncclSuccess, ncclUnhandledCudaError, ncclSystemError, ncclInternalError, ncclInvalidArgument, ncclInvalidUsage, ncclRemoteError, ncclInProgress } ncclResult_t;
typedef struct { char internal[128]; } ncclUniqueId;
typedef struct { size_t size; unsigned magic, version; int blocking; } config; // the fields that matter here
typedef int ncclDataType_t;
typedef void *cudaStream_t;

#define API __attribute__((visibility("default")))
enum { PIECE = 1 << 15 };

typedef struct {
	_Atomic uint32_t full;
	uint32_t bytes;
	uint64_t total; // of the message
	char data[PIECE];
} mailbox;

typedef struct {
	_Atomic int joined;
	mailbox box[]; // [from * n + to]
} shared;

typedef struct op {
	struct op *next;
	int sends, peer;
	char *at;
	const char *from; // of a copy that stays here
	size_t total, done;
} op;

typedef struct comm {
	int rank, n;
	size_t bytes;
	char name[64];
	shared *mem;
	pthread_t worker;
	pthread_mutex_t mu;
	pthread_cond_t todo;
	op *ops;
	_Atomic int state, aborted, quit;
} comm;

static void nap(void) {
	struct timespec t = {0, 20000};
	nanosleep(&t, NULL);
}

static mailbox *box(comm *c, int from, int to) { return &c->mem->box[from * c->n + to]; }

// step moves what it can of an operation.
static int step(comm *c, op *o) {
	int moved = 0;
	if (o->from) {
		if (o->done == o->total) return 0;
		memcpy(o->at, o->from, o->done = o->total);
		return 1;
	}
	mailbox *b = o->sends ? box(c, c->rank, o->peer) : box(c, o->peer, c->rank);
	while (o->done < o->total && atomic_load(&b->full) == !o->sends) {
		if (o->sends) {
			b->bytes = o->total - o->done < PIECE ? o->total - o->done : PIECE;
			b->total = o->total;
			memcpy(b->data, o->at + o->done, b->bytes);
		} else {
			if (b->total != o->total) return 0; // the peer means something else: wait
			memcpy(o->at + o->done, b->data, b->bytes);
		}
		o->done += b->bytes;
		atomic_store(&b->full, o->sends);
		moved = 1;
	}
	return moved;
}

// advance moves what it can of a group's operations, and tells whether any is left.
static int advance(comm *c, op *ops, int *moved) {
	int left = 0;
	*moved = 0;
	for (op *o = ops; o; o = o->next) {
		// Operations with one peer in one direction keep their order.
		int first = 1;
		for (op *p = ops; p != o; p = p->next) first &= !(p->peer == o->peer && p->sends == o->sends && p->done < p->total);
		if (first) *moved |= step(c, o);
		left |= o->done < o->total;
	}
	return left && !atomic_load(&c->aborted);
}

static void release(op *ops) {
	while (ops) {
		op *next = ops->next;
		free(ops);
		ops = next;
	}
}

static void run(comm *c, op *ops) {
	for (int moved, idle = 0; advance(c, ops, &moved);) {
		idle = moved ? 0 : idle + 1;
		if (idle > 50) nap();
	}
	release(ops);
}

// group is one on a stream of the driver on the processor.
typedef struct {
	comm *c;
	op *ops;
} group;

extern int __attribute__((weak)) contraflow_enqueue(cudaStream_t stream, int (*run)(void *), const void *from, size_t bytes);
extern int __attribute__((weak)) cuCtxGetCurrent(void **context);

// without_context tells that the driver is there, but the calling thread has no device. NCCL would give it GPU 0.
static int without_context(const char *what) {
	void *context = NULL;
	if (!contraflow_enqueue || (cuCtxGetCurrent(&context) == 0 && context)) return 0;
	fprintf(stderr, "%s from a thread without a context\n", what);
	return 1;
}

static int on_stream(void *at) {
	group *g = at;
	int moved;
	if (advance(g->c, g->ops, &moved)) return 0;
	release(g->ops);
	return 1;
}

static void *work(void *arg) {
	comm *c = arg;
	if (atomic_fetch_add(&c->mem->joined, 1) + 1 == c->n) shm_unlink(c->name);
	while (atomic_load(&c->mem->joined) < c->n && !atomic_load(&c->aborted)) nap();
	atomic_store(&c->state, ncclSuccess);
	for (;;) {
		pthread_mutex_lock(&c->mu);
		while (!c->ops && !atomic_load(&c->quit)) pthread_cond_wait(&c->todo, &c->mu);
		op *ops = c->ops;
		c->ops = NULL;
		pthread_mutex_unlock(&c->mu);
		if (!ops) return NULL;
		run(c, ops);
		atomic_store(&c->state, ncclSuccess);
	}
}

API ncclResult_t ncclGetVersion(int *v) {
	*v = 22705;
	return ncclSuccess;
}

API ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
	static _Atomic int count;
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	memset(id, 0, sizeof *id);
	snprintf(id->internal, 64, "/testnccl-%d-%d-%ld", (int)getpid(), atomic_fetch_add(&count, 1), t.tv_nsec);
	return ncclSuccess;
}

API ncclResult_t ncclCommInitRankConfig(comm **out, int n, ncclUniqueId id, int rank, config *cfg) {
	if (without_context("ncclCommInitRankConfig")) return ncclUnhandledCudaError;
	if (cfg->magic != 0xcafebeef || cfg->blocking != 0 || rank < 0 || rank >= n) return ncclInvalidArgument;
	comm *c = calloc(1, sizeof *c);
	c->rank = rank, c->n = n;
	c->bytes = sizeof(shared) + sizeof(mailbox) * n * n;
	memcpy(c->name, id.internal, sizeof c->name);
	int fd = shm_open(c->name, O_RDWR | O_CREAT, 0600);
	if (fd < 0 || ftruncate(fd, c->bytes)) return ncclSystemError;
	c->mem = mmap(NULL, c->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (c->mem == MAP_FAILED) return ncclSystemError;
	pthread_mutex_init(&c->mu, NULL);
	pthread_cond_init(&c->todo, NULL);
	c->state = ncclInProgress;
	if (pthread_create(&c->worker, NULL, work, c)) return ncclSystemError;
	*out = c;
	return ncclInProgress;
}

API ncclResult_t ncclCommGetAsyncError(comm *c, ncclResult_t *r) {
	*r = atomic_load(&c->state);
	return ncclSuccess;
}

API ncclResult_t ncclCommFinalize(comm *c) { return without_context("ncclCommFinalize") ? ncclUnhandledCudaError : atomic_load(&c->state); }

static ncclResult_t end(comm *c) {
	atomic_store(&c->aborted, 1);
	pthread_mutex_lock(&c->mu);
	atomic_store(&c->quit, 1);
	pthread_cond_signal(&c->todo);
	pthread_mutex_unlock(&c->mu);
	pthread_join(c->worker, NULL);
	if (contraflow_enqueue) return ncclSuccess; // a stream may still have a group of it
	munmap(c->mem, c->bytes);
	free(c);
	return ncclSuccess;
}

API ncclResult_t ncclCommAbort(comm *c) {
	fprintf(stderr, "ncclCommAbort\n"); // a test looks for it
	if (without_context("ncclCommAbort")) abort();
	return end(c);
}

API ncclResult_t ncclCommDestroy(comm *c) {
	if (atomic_load(&c->state) != ncclSuccess) return ncclInvalidUsage;
	if (without_context("ncclCommDestroy")) return ncclUnhandledCudaError;
	return end(c);
}

API const char *ncclGetErrorString(ncclResult_t r) {
	static const char *names[] = {"no error", "unhandled cuda error", "unhandled system error", "internal error", "invalid argument", "invalid usage", "remote process exited or there was a network error", "NCCL operation in progress"};
	return r >= 0 && r <= ncclInProgress ? names[r] : "unknown result code";
}

API const char *ncclGetLastError(comm *c) { return ""; }

// A group collects the operations of this thread.
static _Thread_local int depth;
static _Thread_local op *first, *last;
static _Thread_local comm *among;
static _Thread_local cudaStream_t on;

static ncclResult_t submit(void) {
	comm *c = among;
	op *ops = first;
	first = last = NULL, among = NULL;
	if (!c) return ncclSuccess;
	if (atomic_load(&c->state) != ncclSuccess) return ncclInvalidUsage; // the last group has not ended
	if (contraflow_enqueue) {
		group g = {c, ops};
		return contraflow_enqueue(on, on_stream, &g, sizeof g) ? ncclUnhandledCudaError : ncclSuccess;
	}
	atomic_store(&c->state, ncclInProgress);
	pthread_mutex_lock(&c->mu);
	c->ops = ops;
	pthread_cond_signal(&c->todo);
	pthread_mutex_unlock(&c->mu);
	return ncclInProgress;
}

API ncclResult_t ncclGroupStart(void) {
	depth++;
	return ncclSuccess;
}

API ncclResult_t ncclGroupEnd(void) {
	if (depth == 0) return ncclInvalidUsage;
	return --depth ? ncclSuccess : submit();
}

static ncclResult_t add(comm *c, int sends, int peer, const void *at, const void *from, size_t count, ncclDataType_t t, cudaStream_t s) {
	static const int sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
	if (t < 0 || t > 9 || peer < 0 || peer >= c->n || (among && (among != c || on != s))) return ncclInvalidArgument;
	op *o = calloc(1, sizeof *o);
	*o = (op){NULL, sends, peer, (char *)at, from, count * sizes[t], 0};
	if (last) last->next = o;
	else first = o;
	last = o;
	among = c, on = s;
	return ncclSuccess;
}

API ncclResult_t ncclSend(const void *p, size_t n, ncclDataType_t t, int peer, comm *c, cudaStream_t s) {
	ncclGroupStart();
	ncclResult_t r = add(c, 1, peer, p, NULL, n, t, s);
	return r ? r : ncclGroupEnd();
}

API ncclResult_t ncclRecv(void *p, size_t n, ncclDataType_t t, int peer, comm *c, cudaStream_t s) {
	ncclGroupStart();
	ncclResult_t r = add(c, 0, peer, p, NULL, n, t, s);
	return r ? r : ncclGroupEnd();
}

API ncclResult_t ncclAllGather(const void *from, void *to, size_t n, ncclDataType_t t, comm *c, cudaStream_t s) {
	static const int sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
	ncclGroupStart();
	for (int k = 0; k < c->n; k++) {
		char *at = (char *)to + k * n * sizes[t];
		ncclResult_t r = ncclSuccess;
		if (k != c->rank) {
			if ((r = add(c, 1, k, from, NULL, n, t, s)) == 0) r = add(c, 0, k, at, NULL, n, t, s);
		} else if (at != from) {
			r = add(c, 0, k, at, from, n, t, s);
		}
		if (r) return r;
	}
	return ncclGroupEnd();
}

API ncclResult_t ncclBroadcast(const void *from, void *to, size_t n, ncclDataType_t t, int root, comm *c, cudaStream_t s) {
	ncclGroupStart();
	ncclResult_t r = ncclSuccess;
	if (c->rank != root) {
		r = add(c, 0, root, to, NULL, n, t, s);
	} else {
		for (int k = 0; k < c->n && !r; k++)
			if (k != root) r = add(c, 1, k, from, NULL, n, t, s);
	}
	return r ? r : ncclGroupEnd();
}
