//go:build cuda

#include "driver.h"

CUresult start(CUcontext c, CUfunction f, const unsigned *sizes, unsigned shared, CUstream s, uint64_t *words, const int32_t *at, int n) {
	void *args[n]; // few: launch.Stream has room for them
	CUresult r = cuCtxSetCurrent(c);
	if (r) return r;
	for (int i = 0; i < n; i++) args[i] = words + at[i];
	return cuLaunchKernel(f, sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5], shared, s, args, NULL);
}

CUresult allow_shared(CUcontext c, CUfunction f, int bytes) {
	CUresult r = cuCtxSetCurrent(c);
	return r ? r : cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes);
}

CUresult static_shared(CUcontext c, CUfunction f, int *bytes) {
	CUresult r = cuCtxSetCurrent(c);
	return r ? r : cuFuncGetAttribute(bytes, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, f);
}

CUresult pinned(CUcontext c, size_t bytes, void **at) {
	CUresult r = cuCtxSetCurrent(c);
	return r ? r : cuMemHostAlloc(at, bytes, CU_MEMHOSTALLOC_PORTABLE);
}

CUresult begin_capture(CUcontext c, CUstream s) {
	CUresult r = cuCtxSetCurrent(c);
	return r ? r : cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED);
}

// end_capture ends the capture whatever has become of it.
CUresult end_capture(CUcontext c, CUstream s, CUgraphExec *exec) {
	CUgraph graph = NULL;
	CUresult bound = cuCtxSetCurrent(c), r = cuStreamEndCapture(s, &graph);
	if (bound) r = bound;
	if (!r) r = cuGraphInstantiateWithFlags(exec, graph, 0);
	if (graph) cuGraphDestroy(graph);
	return r;
}

CUresult start_graph(CUcontext c, CUgraphExec exec, CUstream s) {
	CUresult r = cuCtxSetCurrent(c);
	return r ? r : cuGraphLaunch(exec, s);
}

CUresult free_graph(CUcontext c, CUgraphExec exec) {
	CUresult r = cuCtxSetCurrent(c);
	return r ? r : cuGraphExecDestroy(exec);
}

CUresult release_context(CUdevice d) { return cuDevicePrimaryCtxRelease(d); }

const char *error_name(CUresult r) {
	const char *name = NULL;
	return cuGetErrorName(r, &name) || !name ? "unknown" : name;
}
