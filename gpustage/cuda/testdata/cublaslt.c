// A cuBLASLt for the processor: the functions that products.c calls, on matrices in the host's memory, as NVIDIA's documentation of
// cublasLtMatmul, cublasLtMatmulDescAttributes_t and cublasLtEpilogue_t has them. It multiplies in plain loops, answers what the
// library answers to what it can't do, and holds the caller to what the heuristic was told: alignments, and that descriptors are freed.
#include <cuda.h>
#include <cublasLt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
	cublasComputeType_t compute;
	int32_t transA, transB, biasType;
	uint32_t epilogue;
	void *bias, *aux;
	int64_t auxStride;
	int used;
} Desc;

typedef struct {
	cudaDataType type;
	uint64_t rows, cols;
	int64_t stride;
} Layout;

typedef struct {
	uint32_t align[4];
} Preference;

int lt_refuse; // 1: the heuristic has no algorithm for epilogues with aux or sums; 2: it gives one, and says that it is none;
               // 3: the first of two is refused when it is to multiply; 4: both are; 5: what has an epilogue is
int lt_alive;  // what was made and not destroyed

CUresult __attribute__((weak)) CUDAAPI cuCtxSetCurrent(CUcontext c) { return CUDA_SUCCESS; } // where there is no driver

// The driver on the processor (driver.cpp) has work of a stream done in its turn. Without it all is done at once.
CUresult __attribute__((weak)) contraflow_enqueue(CUstream stream, int (*run)(void *), const void *from, size_t bytes);
CUresult __attribute__((weak)) contraflow_load(CUstream stream);

const char *cublasLtGetStatusString(cublasStatus_t s) { return s == CUBLAS_STATUS_NOT_SUPPORTED ? "not supported" : "invalid value"; }

static void *new(size_t n) {
	lt_alive++;
	return calloc(1, n);
}

static cublasStatus_t destroy(void *p) {
	lt_alive--;
	free(p);
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *h) {
	*h = new(1);
	return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t h) { return destroy(h); }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute, cudaDataType_t scale) {
	if (scale != CUDA_R_32F) return CUBLAS_STATUS_INVALID_VALUE;
	Desc *d = new(sizeof *d);
	d->compute = compute, d->epilogue = CUBLASLT_EPILOGUE_DEFAULT, d->biasType = -1;
	*out = (cublasLtMatmulDesc_t)d;
	return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) { return destroy(d); }

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t what, const void *from, size_t n) {
	Desc *d = (Desc *)desc;
#define ATTRIBUTE(name, field) \
	case CUBLASLT_MATMUL_DESC_##name: \
		if (n != sizeof d->field) return CUBLAS_STATUS_INVALID_VALUE; \
		memcpy(&d->field, from, n); \
		return CUBLAS_STATUS_SUCCESS
	switch (what) {
		ATTRIBUTE(TRANSA, transA);
		ATTRIBUTE(TRANSB, transB);
		ATTRIBUTE(EPILOGUE, epilogue);
		ATTRIBUTE(BIAS_POINTER, bias);
		ATTRIBUTE(BIAS_DATA_TYPE, biasType);
		ATTRIBUTE(EPILOGUE_AUX_POINTER, aux);
		ATTRIBUTE(EPILOGUE_AUX_LD, auxStride);
	default: return CUBLAS_STATUS_INVALID_VALUE;
	}
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type, uint64_t rows, uint64_t cols, int64_t stride) {
	if (stride < (int64_t)rows) return CUBLAS_STATUS_INVALID_VALUE;
	Layout *l = new(sizeof *l);
	*l = (Layout){type, rows, cols, stride};
	*out = (cublasLtMatrixLayout_t)l;
	return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) { return destroy(l); }

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out) {
	Preference *p = new(sizeof *p);
	for (int i = 0; i < 4; i++) p->align[i] = 256; // the documentation's default
	*out = (cublasLtMatmulPreference_t)p;
	return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) { return destroy(p); }

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t pref, cublasLtMatmulPreferenceAttributes_t what, const void *from, size_t n) {
	static const cublasLtMatmulPreferenceAttributes_t aligns[] = {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
	                                                              CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
	for (int i = 0; i < 4; i++)
		if (what == aligns[i]) memcpy(&((Preference *)pref)->align[i], from, sizeof(uint32_t));
	size_t want = what == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES ? sizeof(uint64_t) : sizeof(uint32_t);
	return n == want ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

// alignment is the largest power of two up to 256 that divides an address, which a NULL pointer does not bound.
static uint64_t alignment(const void *p) {
	uint64_t at = (uint64_t)p | 256;
	return at & -at;
}

static int has_aux(const Desc *d) {
	return d->epilogue == CUBLASLT_EPILOGUE_GELU_AUX || d->epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS || d->epilogue == CUBLASLT_EPILOGUE_DGELU;
}
static int has_bias(const Desc *d) { return d->epilogue == CUBLASLT_EPILOGUE_BIAS || d->epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS; }
static int has_sums(const Desc *d) { return d->epilogue == CUBLASLT_EPILOGUE_BGRADB; }

// An algorithm here is what the heuristic was told of alignments, and whether it is refused.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t la, cublasLtMatrixLayout_t lb,
                                              cublasLtMatrixLayout_t lc, cublasLtMatrixLayout_t ld, cublasLtMatmulPreference_t pref, int most,
                                              cublasLtMatmulHeuristicResult_t out[], int *n) {
	Desc *d = (Desc *)desc;
	Layout *a = (Layout *)la, *b = (Layout *)lb, *c = (Layout *)lc, *r = (Layout *)ld;
	uint64_t m = d->transA ? a->cols : a->rows, k = d->transA ? a->rows : a->cols, kb = d->transB ? b->cols : b->rows, nn = d->transB ? b->rows : b->cols;
	*n = 0;
	if (k != kb || r->rows != m || r->cols != nn || c->rows != m || c->cols != nn || a->type != b->type) return CUBLAS_STATUS_INVALID_VALUE;
	if (c->type != r->type || r->type != CUDA_R_32F && r->type != a->type || d->compute == CUBLAS_COMPUTE_32F_FAST_TF32 && a->type != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
	if (!has_aux(d) && !has_bias(d) && !has_sums(d) && d->epilogue != CUBLASLT_EPILOGUE_DEFAULT) return CUBLAS_STATUS_NOT_SUPPORTED;
	if ((has_bias(d) || has_sums(d)) && d->biasType != -1 && d->biasType != r->type) return CUBLAS_STATUS_NOT_SUPPORTED;
	if ((has_bias(d) || has_sums(d)) && (m == 1 || nn == 1 || k == 1)) return CUBLAS_STATUS_INVALID_VALUE; // as PyTorch has seen it
	if (has_aux(d) && (d->auxStride < (int64_t)m || d->auxStride % 8)) return CUBLAS_STATUS_INVALID_VALUE;
	if ((has_aux(d) || has_sums(d)) && lt_refuse == 1) return CUBLAS_STATUS_NOT_SUPPORTED;
	if (lt_refuse >= 3 && most < 2) return CUBLAS_STATUS_INVALID_VALUE;
	memset(&out[0], 0, sizeof out[0]);
	if ((has_aux(d) || has_sums(d)) && lt_refuse == 2) out[0].state = CUBLAS_STATUS_NOT_SUPPORTED;
	for (int i = 0; i < 4; i++) out[0].algo.data[i] = ((Preference *)pref)->align[i];
	out[0].algo.data[4] = alignment(d->bias);
	out[0].algo.data[5] = alignment(d->aux);
	*n = 1;
	if (lt_refuse == 5) out[0].algo.data[6] = d->epilogue != CUBLASLT_EPILOGUE_DEFAULT;
	else if (lt_refuse >= 3) {
		out[1] = out[0];
		out[0].algo.data[6] = 1, out[1].algo.data[6] = lt_refuse == 4;
		*n = 2;
	}
	return CUBLAS_STATUS_SUCCESS;
}

// value is x[at]; put sets it, rounded to nearest.
static float value(const void *x, cudaDataType type, uint64_t at) {
	uint32_t bits;
	if (type == CUDA_R_16BF) bits = (uint32_t)((const uint16_t *)x)[at] << 16;
	else memcpy(&bits, (const float *)x + at, 4);
	float v;
	memcpy(&v, &bits, 4);
	return v;
}
static void put(void *x, cudaDataType type, uint64_t at, float v) {
	uint32_t bits;
	memcpy(&bits, &v, 4);
	if (type == CUDA_R_16BF) ((uint16_t *)x)[at] = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
	else ((float *)x)[at] = v;
}

// element is op(x)[i, j].
static float element(const void *x, const Layout *l, int trans, int tf32, uint64_t i, uint64_t j) {
	float v = value(x, l->type, trans ? j + i * l->stride : i + j * l->stride);
	uint32_t bits;
	memcpy(&bits, &v, 4);
	if (tf32) bits &= ~0u << 13; // the 10 bits that it has; what else rounding does, it is no worse
	memcpy(&v, &bits, 4);
	return v;
}

// Call is a product with all that it was called with: what the caller changes or destroys afterwards is no longer of interest.
typedef struct {
	Desc d;
	Layout a, b, c, r;
	float alpha, beta;
	const void *A, *B, *C;
	void *D, *workspace;
	size_t bytes;
} Call;

static int multiply(void *call);

cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t desc, const void *alpha, const void *A, cublasLtMatrixLayout_t la, const void *B,
                              cublasLtMatrixLayout_t lb, const void *beta, const void *C, cublasLtMatrixLayout_t lc, void *D, cublasLtMatrixLayout_t ld,
                              const cublasLtMatmulAlgo_t *algo, void *workspace, size_t bytes, cudaStream_t stream) {
	Desc *d = (Desc *)desc;
	if (algo->data[6]) return CUBLAS_STATUS_NOT_SUPPORTED;
	const void *all[] = {A, B, C, D};
	for (int i = 0; i < 4; i++)
		if (alignment(all[i]) < algo->data[i]) return CUBLAS_STATUS_INVALID_VALUE;
	if ((has_bias(d) || has_sums(d)) && (!d->bias || alignment(d->bias) < algo->data[4])) return CUBLAS_STATUS_INVALID_VALUE;
	if (has_aux(d) && (!d->aux || alignment(d->aux) < algo->data[5])) return CUBLAS_STATUS_NOT_SUPPORTED;
	if (!d->used++ && contraflow_load && contraflow_load((CUstream)stream)) return CUBLAS_STATUS_EXECUTION_FAILED;
	Call call = {*d, *(Layout *)la, *(Layout *)lb, *(Layout *)lc, *(Layout *)ld, *(const float *)alpha, *(const float *)beta, A, B, C, D, workspace, bytes};
	if (contraflow_enqueue) return contraflow_enqueue((CUstream)stream, multiply, &call, sizeof call) ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
	multiply(&call);
	return CUBLAS_STATUS_SUCCESS;
}

// multiply has op(A) as rows of k floats, and op(B) a column at a time.
static int multiply(void *call) {
	const Call *x = call;
	const Desc *d = &x->d;
	const Layout *a = &x->a, *b = &x->b, *c = &x->c, *r = &x->r;
	const int tf32 = d->compute == CUBLAS_COMPUTE_32F_FAST_TF32;
	const uint64_t k = d->transA ? a->rows : a->cols;
	const size_t some = x->bytes < 4096 ? x->bytes : 4096;
	if (x->workspace) memset(x->workspace, 0xff, some), memset((char *)x->workspace + x->bytes - some, 0xff, some); // it is the product's, until it ends
	float *rows = malloc((r->rows + 1) * k * sizeof *rows + 1), *col = rows + r->rows * k;
	for (uint64_t i = 0; i < r->rows; i++)
		for (uint64_t p = 0; p < k; p++) rows[i * k + p] = element(x->A, a, d->transA, tf32, i, p);
	for (uint64_t j = 0; j < r->cols; j++) {
		double sums = 0;
		for (uint64_t p = 0; p < k; p++) sums += col[p] = element(x->B, b, d->transB, tf32, p, j);
		if (has_sums(d)) put(d->bias, r->type, j, (float)sums);
		for (uint64_t i = 0; i < r->rows; i++) {
			double v = 0;
			for (uint64_t p = 0; p < k; p++) v += (double)rows[i * k + p] * col[p];
			v *= x->alpha;
			if (x->beta != 0) v += (double)x->beta * value(x->C, c->type, i + j * c->stride);
			if (has_bias(d)) v += value(d->bias, r->type, i);
			uint64_t aux = i + j * d->auxStride;
			double at = d->epilogue == CUBLASLT_EPILOGUE_DGELU ? value(d->aux, r->type, aux) : v;
			double u = 0.7978845608028654 * (at + 0.044715 * at * at * at), t = tanh(u);
			if (d->epilogue == CUBLASLT_EPILOGUE_DGELU) v *= 0.5 * (1 + t) + 0.5 * at * (1 - t * t) * 0.7978845608028654 * (1 + 3 * 0.044715 * at * at);
			else if (has_aux(d)) put(d->aux, r->type, aux, (float)v), v *= 0.5 * (1 + t);
			put(x->D, r->type, i + j * r->stride, (float)v);
		}
	}
	free(rows);
	return 1;
}
