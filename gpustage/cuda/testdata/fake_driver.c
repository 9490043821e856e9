// What tests need of CUDA's driver, writing down each call. FAKE_END is what ending a capture answers, FAKE_LOAD what loading a module does, which with
// FAKE_SLOW takes until an event has been made, or 20 s, and FAKE_MEMORY what asking for the memory does, of which nothing is left. FAKE_ARCH is the GPU's, and FAKE_SHARED
// what shared memory a kernel's code declares.
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define SAY(...) (fprintf(stdout, "driver: " __VA_ARGS__), fputc('\n', stdout), fflush(stdout), 0)

int cuInit(unsigned flags) { return 0; }
int cuDeviceGetCount(int *n) { return *n = 1, 0; }
int cuDeviceGet(int *device, int i) { return *device = i, 0; }
int cuDeviceGetName(char *name, int bytes, int device) { return snprintf(name, bytes, "a fake"), 0; }
int cuDeviceGetAttribute(int *v, int what, int device) {
	const char *answer = getenv("FAKE_ARCH");
	int arch = answer ? atoi(answer) : 0;
	return *v = what == 75 ? arch / 10 : what == 76 ? arch % 10 : 0, 0;
}
int cuCtxSetCurrent(void *context) { return 0; }
int cuGetErrorName(int error, const char **name) { return *name = "FAKE", 0; }
int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream,
                   void **args, void **extra) {
	return SAY("launch %u blocks of %u, argument 5 is %u", gx, bx, *(unsigned *)args[5]);
}
int cuMemGetInfo_v2(size_t *available, size_t *all) {
	const char *answer = getenv("FAKE_MEMORY");
	return *available = 0, *all = 1 << 30, answer ? atoi(answer) : 0;
}
static volatile int events;
int cuEventCreate(void **event, unsigned flags) { return *event = (void *)0x20, SAY("event %d", events + 1), events++, 0; } // said before others see it
int cuModuleLoadData(void **module, const void *image) {
	const char *answer = getenv("FAKE_LOAD");
	SAY("load");
	if (getenv("FAKE_SLOW")) {
		for (int i = 0; !events && i < 2000; i++) usleep(10000);
		SAY("loaded");
	}
	return answer ? atoi(answer) : 0;
}
int cuModuleGetFunction(void **f, void *module, const char *name) { return *f = (void *)0x30, SAY("function %s", name); }
int cuFuncGetAttribute(int *v, int what, void *f) {
	const char *answer = getenv("FAKE_SHARED");
	return *v = answer ? atoi(answer) : 0, 0;
}
int cuFuncSetAttribute(void *f, int what, int v) { return SAY("shared %d", v); }
int cuStreamBeginCapture_v2(void *stream, int mode) { return SAY("begin in mode %d", mode); }
int cuStreamEndCapture(void *stream, void **graph) {
	const char *answer = getenv("FAKE_END");
	*graph = (void *)(answer ? 0 : 0x10);
	SAY("end");
	return answer ? atoi(answer) : 0;
}
int cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags) {
	*exec = (char *)graph + 1;
	return SAY("instantiate %p", graph);
}
int cuGraphDestroy(void *graph) { return SAY("destroy %p", graph); }
int cuGraphLaunch(void *exec, void *stream) { return SAY("start %p", exec); }
int cuGraphExecDestroy(void *exec) { return SAY("free %p", exec); }
