//go:build cuda

// cuBLASLt, loaded when a device opens: its headers are needed to build, the library only to run.
#include "driver.h"

#include <cublasLt.h>
#include <dlfcn.h>
#include <stdlib.h>

#define CALLS(F)                                                                                                            \
	F(cublasLtCreate) F(cublasLtDestroy) F(cublasLtMatmul) F(cublasLtMatmulAlgoGetHeuristic) F(cublasLtMatmulDescCreate)      \
	F(cublasLtMatmulDescSetAttribute) F(cublasLtMatmulDescDestroy) F(cublasLtMatrixLayoutCreate) F(cublasLtMatrixLayoutDestroy) \
	F(cublasLtMatmulPreferenceCreate) F(cublasLtMatmulPreferenceSetAttribute) F(cublasLtMatmulPreferenceDestroy) F(cublasLtGetStatusString)

#define DECLARE(f) static __typeof__(&f) p_##f;
CALLS(DECLARE)

const char *lt_open(const char *file) {
	void *lib = dlopen(file, RTLD_NOW);
	if (!lib) return dlerror();
#define LOAD(f) \
	if (!(p_##f = (__typeof__(&f))dlsym(lib, #f))) return dlerror();
	CALLS(LOAD)
	return NULL;
}

static const char *text(cublasStatus_t s) { return s ? p_cublasLtGetStatusString(s) : NULL; }
static const char *current(CUcontext c) { return cuCtxSetCurrent(c) ? "the context can't be made current" : NULL; }

const char *lt_create(CUcontext c, void **handle) {
	const char *e = current(c);
	return e ? e : text(p_cublasLtCreate((cublasLtHandle_t *)handle));
}

const char *lt_destroy(CUcontext c, void *handle) {
	const char *e = current(c);
	return e ? e : text(p_cublasLtDestroy((cublasLtHandle_t)handle));
}

enum { ALGORITHMS = 8 };

struct Plan {
	cublasLtMatmulDesc_t op;
	cublasLtMatrixLayout_t a, b, c, d;
	cublasLtMatmulAlgo_t algos[ALGORITHMS]; // the best first
	int algorithms, at;                     // how many there are; the one that is used, or all if the library has refused them
	int bias, aux;
};

// refuses tells whether the library says that it can't do something, and not that something went wrong.
static int refuses(cublasStatus_t s) { return s == CUBLAS_STATUS_NOT_SUPPORTED || s == CUBLAS_STATUS_INVALID_VALUE || s == CUBLAS_STATUS_ARCH_MISMATCH; }

void lt_free(Plan *p) {
	if (!p) return;
	if (p->op) p_cublasLtMatmulDescDestroy(p->op);
	cublasLtMatrixLayout_t all[] = {p->a, p->b, p->c, p->d};
	for (int i = 0; i < 4; i++)
		if (all[i]) p_cublasLtMatrixLayoutDestroy(all[i]);
	free(p);
}

static cublasStatus_t point(Plan *p, cublasLtMatmulDescAttributes_t what, uint64_t at) {
	void *pointer = (void *)at;
	return p_cublasLtMatmulDescSetAttribute(p->op, what, &pointer, sizeof pointer);
}

enum { GELU = 1, DGELU, COLUMN_SUMS }; // launch.Epilogue

#define TRY(x) \
	if ((s = (x))) goto failed

// Row-major matrices are column-major ones transposed: c = op(a) op(b) is c' = op(b)' op(a)', with b as the first operand. A bias along
// c's columns is then one along the rows of c', which is what the library adds.
const char *lt_plan(CUcontext ctx, void *handle, const Shape *x, size_t workspace, Plan **out) {
	const char *e = current(ctx);
	if (e) return e;
	cublasStatus_t s;
	cublasLtMatmulPreference_t pref = NULL;
	cublasLtMatmulHeuristicResult_t found[ALGORITHMS];
	int n = 0;
	Plan *p = calloc(1, sizeof *p);
	if (!p) return "out of host memory";
	cudaDataType_t in = x->bf16 ? CUDA_R_16BF : CUDA_R_32F, result = x->half ? CUDA_R_16BF : CUDA_R_32F;
	cublasOperation_t first = x->transB ? CUBLAS_OP_T : CUBLAS_OP_N, second = x->transA ? CUBLAS_OP_T : CUBLAS_OP_N;
	TRY(p_cublasLtMatmulDescCreate(&p->op, x->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F));
	TRY(p_cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first));
	TRY(p_cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second));
	cublasLtEpilogue_t epilogue = x->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
	if (x->epilogue == GELU) epilogue = x->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
	if (x->epilogue == DGELU) epilogue = CUBLASLT_EPILOGUE_DGELU;
	if (x->epilogue == COLUMN_SUMS) epilogue = CUBLASLT_EPILOGUE_BGRADB; // of the library's second operand, our a, along k
	TRY(p_cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
	// The heuristic does not follow these pointers but takes from them how what they point to is aligned. Unless told, it takes a bias to
	// be of the result's type; aux and a bias's gradient, which may be no other, are.
	if ((p->bias = x->bias)) {
		if (x->epilogue != COLUMN_SUMS) TRY(p_cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &result, sizeof result));
		TRY(point(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, x->bias));
	}
	if ((p->aux = x->epilogue == GELU || x->epilogue == DGELU)) {
		int64_t stride = x->aux.stride;
		TRY(p_cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &stride, sizeof stride));
		TRY(point(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, x->aux.align));
	}
	TRY(p_cublasLtMatrixLayoutCreate(&p->a, in, x->b.cols, x->b.rows, x->b.stride));
	TRY(p_cublasLtMatrixLayoutCreate(&p->b, in, x->a.cols, x->a.rows, x->a.stride));
	TRY(p_cublasLtMatrixLayoutCreate(&p->c, result, x->d.cols, x->d.rows, x->d.stride));
	TRY(p_cublasLtMatrixLayoutCreate(&p->d, result, x->c.cols, x->c.rows, x->c.stride));
	TRY(p_cublasLtMatmulPreferenceCreate(&pref));
	TRY(p_cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace));
	// Parts of a sum that are added to the result in place come in any order. What adds parts and then a bias to a result in bf16 rounds twice (cuBLASLt
	// 13.0 on an H200).
	uint32_t reductions = x->half && x->bias ? CUBLASLT_REDUCTION_SCHEME_NONE : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, align[] = {x->b.align, x->a.align, x->d.align, x->c.align};
	TRY(p_cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions));
	cublasLtMatmulPreferenceAttributes_t which[] = {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
	                                                CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
	for (int i = 0; i < 4; i++) TRY(p_cublasLtMatmulPreferenceSetAttribute(pref, which[i], &align[i], sizeof align[i]));
	s = p_cublasLtMatmulAlgoGetHeuristic(handle, p->op, p->a, p->b, p->c, p->d, pref, ALGORITHMS, found, &n);
	for (int i = 0; s == CUBLAS_STATUS_SUCCESS && i < n; i++)
		if (found[i].state == CUBLAS_STATUS_SUCCESS) p->algos[p->algorithms++] = found[i].algo;
	if (s == CUBLAS_STATUS_SUCCESS && !p->algorithms) s = n ? found[0].state : CUBLAS_STATUS_NOT_SUPPORTED;
	if (epilogue != CUBLASLT_EPILOGUE_DEFAULT && refuses(s)) {
		lt_free(p);
		p = NULL;
		s = CUBLAS_STATUS_SUCCESS;
	}
failed:
	if (pref) p_cublasLtMatmulPreferenceDestroy(pref);
	if (s) {
		lt_free(p);
		return text(s);
	}
	*out = p;
	return NULL;
}

const char *lt_multiply(CUcontext ctx, void *handle, Plan *p, float alpha, uint64_t a, uint64_t b, float beta, uint64_t d, uint64_t c,
                        uint64_t bias, uint64_t aux, uint64_t workspace, size_t bytes, CUstream stream) {
	const char *e = current(ctx);
	if (e) return e;
	if (p->bias && (e = text(point(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias)))) return e;
	if (p->aux && (e = text(point(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux)))) return e;
	// What the heuristic takes to be possible the library may refuse when it is asked for it, before it has begun; the next algorithm then is the shape's.
	cublasStatus_t s = CUBLAS_STATUS_NOT_SUPPORTED;
	for (; p->at < p->algorithms; p->at++) {
		s = p_cublasLtMatmul(handle, p->op, &alpha, (void *)b, p->a, (void *)a, p->b, &beta, (void *)d, p->c, (void *)c, p->d, &p->algos[p->at],
		                     (void *)workspace, bytes, (cudaStream_t)stream);
		if (!refuses(s)) break;
	}
	return text(s);
}

int lt_refused(const Plan *p) { return p->at == p->algorithms; }
