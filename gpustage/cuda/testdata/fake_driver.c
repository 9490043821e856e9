// What tests need of CUDA's driver, writing down each call. FAKE_END is what ending a capture answers, FAKE_LOAD what loading a module does.
#include <stdio.h>
#include <stdlib.h>

#define SAY(...) (fprintf(stdout, "driver: " __VA_ARGS__), fputc('\n', stdout), fflush(stdout), 0)

int cuInit(unsigned flags) { return 0; }
int cuCtxSetCurrent(void *context) { return 0; }
int cuGetErrorName(int error, const char **name) { return *name = "FAKE", 0; }
int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream,
                   void **args, void **extra) {
	return SAY("launch %u blocks of %u, argument 5 is %u", gx, bx, *(unsigned *)args[5]);
}
int cuModuleLoadData(void **module, const void *image) {
	const char *answer = getenv("FAKE_LOAD");
	SAY("load");
	return answer ? atoi(answer) : 0;
}
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
