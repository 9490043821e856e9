// What gorgonia.org/cu lacks of the driver, and cuBLASLt. Each call makes the context current first: Go may have moved its goroutine to
// another thread since the last one.
#include <cuda.h>
#include <stddef.h>
#include <stdint.h>

CUresult start(CUcontext c, CUfunction f, const unsigned *sizes, unsigned shared, CUstream s, uint64_t *words, const int32_t *at, int n);
CUresult allow_shared(CUcontext c, CUfunction f, int bytes);
CUresult static_shared(CUcontext c, CUfunction f, int *bytes);
CUresult pinned(CUcontext c, size_t bytes, void **at);
CUresult release_context(CUdevice d);
CUresult begin_capture(CUcontext c, CUstream s);
CUresult end_capture(CUcontext c, CUstream s, CUgraphExec *exec);
CUresult start_graph(CUcontext c, CUgraphExec exec, CUstream s);
CUresult free_graph(CUcontext c, CUgraphExec exec);
const char *error_name(CUresult r);

// Shape is what a product's algorithm depends on. a, b, c, d and aux are row-major: rows, columns, stride, and the largest power of two
// up to 16 that divides the address. Of a bias there is only that, 0 without one; the rest is launch.Product's.
typedef struct {
	int32_t rows, cols, stride, align;
} Stored;
typedef struct {
	Stored a, b, c, d, aux;
	int32_t transA, transB, bf16, tf32, half, bias, epilogue;
} Shape;

typedef struct Plan Plan;

// Functions that can fail return a message, or NULL.
const char *lt_open(const char *file);
const char *lt_create(CUcontext c, void **handle);
const char *lt_destroy(CUcontext c, void *handle);
// lt_plan's *plan stays NULL where the library has no algorithm for a product with its epilogue.
const char *lt_plan(CUcontext c, void *handle, const Shape *s, size_t workspace, Plan **plan);
void lt_free(Plan *plan);
const char *lt_multiply(CUcontext ctx, void *handle, Plan *plan, float alpha, uint64_t a, uint64_t b, float beta, uint64_t d, uint64_t c,
                        uint64_t bias, uint64_t aux, uint64_t workspace, size_t bytes, CUstream stream);
// lt_refused tells whether all algorithms of a plan were refused when they were to multiply.
int lt_refused(const Plan *plan);
