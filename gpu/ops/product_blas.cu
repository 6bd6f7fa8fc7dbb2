/* Products of cuBLASLt: descriptors, the plan of a product, and one timing of the algorithms that it offers.
 *
 * Split-K is forbidden, so that a declared chain is one chain. */
#include "gpu/ops/product.cuh"
#include "gpu/product_plans.h"
#include <algorithm>
#include <stdio.h>

/* A gradient of no rows that nothing is added to. */
static bool is_zeros(const product *p)
{
    return p->k == 0 && p->a_is_km && !p->accumulate;
}

static cudaDataType blas_type(assay_dtype dtype)
{
    return dtype == ASSAY_F32 ? CUDA_R_32F : CUDA_R_16BF;
}

/* Largest power of two up to 256 that divides the address. */
static uint32_t alignment_of(const void *p)
{
    const uintptr_t address = (uintptr_t)p;
    uint32_t a = 256;
    while (a > 1 && address % a != 0)
        a /= 2;
    return a;
}

/* The epilogue adds a bias of the result's dtype. */
static bool has_bias(const product *p)
{
    return p->bias.data != nullptr && p->bias.dtype == p->c.dtype;
}

/* The library has no word for how a bias is aligned: an algorithm that may not read it by 16 bytes is one that may not write so. */
static uint32_t alignment_of_result(const product *p)
{
    const uint32_t c = alignment_of(p->c.data);
    return has_bias(p) ? std::min(c, alignment_of(p->bias.data)) : c;
}

enum { BLAS_WORKSPACE = 32 << 20 };

/* A product that is stored before it is added lies at the begin of the workspace, in front of the library's. */
static size_t stored_bytes(const product *p)
{
    const size_t unit = 256, bytes = (size_t)(p->m * p->n * assay_dtype_bytes(p->a.dtype));
    return p->stored ? (bytes + unit - 1) / unit * unit : 0;
}

static size_t blas_workspace(const gpu_ctx *ctx, size_t taken)
{
    const size_t most = BLAS_WORKSPACE,
                 left = ctx->workspace_bytes > taken ? ctx->workspace_bytes - taken : 0;
    return left < most ? left : most;
}

/* What the library computes of it. */
static product blas_part(const gpu_ctx *ctx, const product *p)
{
    product part = *p;
    if (!p->stored)
        return part;
    part.c = gpu_tensor_2d(ctx->workspace, p->a.dtype, p->m, p->n);
    part.accumulate = false;
    return part;
}

static assay_status blas_preference(const gpu_ctx *ctx, const product *p,
                                    cublasLtMatmulPreferenceOpaque_t *pref)
{
    const uint64_t bytes = blas_workspace(ctx, stored_bytes(p));
    const uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_NONE;
    const uint32_t a = alignment_of(p->b.data), b = alignment_of(p->a.data), c = alignment_of(p->c.data),
                   d = alignment_of_result(p);
    CUBLAS_TRY(cublasLtMatmulPreferenceInit(pref));
    CUBLAS_TRY(cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
                                                    sizeof bytes));
    CUBLAS_TRY(cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &scheme,
                                                    sizeof scheme));
    CUBLAS_TRY(
        cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &a, sizeof a));
    CUBLAS_TRY(
        cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &b, sizeof b));
    CUBLAS_TRY(
        cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &c, sizeof c));
    CUBLAS_TRY(
        cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &d, sizeof d));
    return ASSAY_OK;
}

/* Leading dimensions follow from sizes and layouts: operands are contiguous. */
static gpu_product_key key_of(const gpu_ctx *ctx, const product *p)
{
    gpu_product_key key;
    memset(&key, 0, sizeof key);
    key.m = p->m;
    key.n = p->n;
    key.k = p->k;
    key.a_is_km = p->a_is_km;
    key.b_is_kn = p->b_is_kn;
    key.accumulate = p->accumulate;
    key.bias = has_bias(p);
    key.in = p->a.dtype;
    key.out = p->c.dtype;
    key.align_a = alignment_of(p->a.data);
    key.align_b = alignment_of(p->b.data);
    key.align_c = alignment_of_result(p);
    key.workspace_bytes = (int64_t)blas_workspace(ctx, stored_bytes(p));
    return key;
}

/* Row-major C [m,n] is column-major [n,m]: cuBLASLt computes C^T = op(B) op(A), its first operand is our B.  The epilogue adds
 * a bias of the result's dtype; an fp32 result takes any bias afterwards: the sum is still in the accumulate type, so there is no
 * intermediate rounding. */
static assay_status describe(const product *p, gpu_product_plan *plan)
{
    const cublasOperation_t op_first = p->b_is_kn ? CUBLAS_OP_N : CUBLAS_OP_T;
    const cublasOperation_t op_second = p->a_is_km ? CUBLAS_OP_T : CUBLAS_OP_N;
    const uint64_t m = (uint64_t)p->m, n = (uint64_t)p->n, k = (uint64_t)p->k;
    const cudaDataType in = blas_type(p->a.dtype), out = blas_type(p->c.dtype);
    CUBLAS_TRY(cublasLtMatmulDescInit(&plan->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    CUBLAS_TRY(
        cublasLtMatmulDescSetAttribute(&plan->desc, CUBLASLT_MATMUL_DESC_TRANSA, &op_first, sizeof op_first));
    CUBLAS_TRY(cublasLtMatmulDescSetAttribute(&plan->desc, CUBLASLT_MATMUL_DESC_TRANSB, &op_second,
                                              sizeof op_second));
    if (plan->key.bias) {
        const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
        CUBLAS_TRY(cublasLtMatmulDescSetAttribute(&plan->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                                  sizeof epilogue));
    }
    CUBLAS_TRY(cublasLtMatrixLayoutInit(&plan->first, in, p->b_is_kn ? n : k, p->b_is_kn ? k : n,
                                        p->b_is_kn ? p->n : p->k));
    CUBLAS_TRY(cublasLtMatrixLayoutInit(&plan->second, in, p->a_is_km ? m : k, p->a_is_km ? k : m,
                                        p->a_is_km ? p->m : p->k));
    CUBLAS_TRY(cublasLtMatrixLayoutInit(&plan->result, out, n, m, p->n));
    return ASSAY_OK;
}

static assay_status offered_by(const gpu_ctx *ctx, const product *p, gpu_product_plan *plan, int most,
                               cublasLtMatmulHeuristicResult_t *offered, int *n)
{
    cublasLtMatmulPreferenceOpaque_t preference;
    ASSAY_TRY(blas_preference(ctx, p, &preference));
    const cublasStatus_t asked =
        cublasLtMatmulAlgoGetHeuristic(ctx->blas, &plan->desc, &plan->first, &plan->second, &plan->result,
                                       &plan->result, &preference, most, offered, n);
    if (asked == CUBLAS_STATUS_NOT_SUPPORTED) {
        *n = 0;
        return ASSAY_OK;
    }
    CUBLAS_TRY(asked);
    const int found = *n;
    *n = 0;
    for (int i = 0; i < found; ++i) /* of another state an entry says nothing */
        if (offered[i].state == CUBLAS_STATUS_SUCCESS)
            offered[(*n)++] = offered[i];
    return ASSAY_OK;
}

/* The algorithm that the device's file has for the product, where the library still offers it; else its first. */
static void choose(const gpu_ctx *ctx, gpu_product_plan *plan, const cublasLtMatmulHeuristicResult_t *offered,
                   int n)
{
    const cublasLtMatmulAlgo_t *chosen = gpu_product_plans_chosen(ctx->plans, &plan->key);
    plan->found = n > 0;
    if (n > 0)
        plan->algo = offered[0].algo;
    for (int i = 0; i < n && chosen != NULL; ++i)
        if (memcmp(&offered[i].algo, chosen, sizeof *chosen) == 0) {
            plan->algo = *chosen;
            return;
        }
    if (chosen != NULL)
        (void)fprintf(
            stderr,
            "assay: warning: product [%lld,%lld] of %lld terms: cuBLASLt does not offer the algorithm "
            "that the file of plans names: the first of %d is used\n",
            (long long)plan->key.m, (long long)plan->key.n, (long long)plan->key.k, n);
}

/* The plan of a product, kept by what it depends on. */
static assay_status plan_of(const gpu_ctx *ctx, const product *p, gpu_product_plan *plan)
{
    const gpu_product_key key = key_of(ctx, p);
    cublasLtMatmulHeuristicResult_t offered[GPU_PRODUCT_OFFERED];
    int n = 0;
    if (gpu_product_plans_find(ctx->plans, &key, plan))
        return ASSAY_OK;
    memset(plan, 0, sizeof *plan);
    plan->key = key;
    ASSAY_TRY(describe(p, plan));
    const bool several = gpu_product_plans_chosen(ctx->plans, &key) != NULL;
    ASSAY_TRY(offered_by(ctx, p, plan, several ? GPU_PRODUCT_OFFERED : 1, offered, &n));
    choose(ctx, plan, offered, n);
    gpu_product_plans_keep(ctx->plans, plan);
    return ASSAY_OK;
}

/* To `to`, of the shape and alignment of c. */
static assay_status multiply(const gpu_work *w, const gpu_product_plan *plan, const product *p, void *to,
                             const cublasLtMatmulAlgo_t *algo)
{
    const float alpha = 1.0f, beta = p->accumulate ? 1.0f : 0.0f;
    CUBLAS_TRY(cublasLtMatmul(
        w->ctx->blas, (cublasLtMatmulDesc_t)&plan->desc, &alpha, p->b.data,
        (cublasLtMatrixLayout_t)&plan->first, p->a.data, (cublasLtMatrixLayout_t)&plan->second, &beta, to,
        (cublasLtMatrixLayout_t)&plan->result, to, (cublasLtMatrixLayout_t)&plan->result, algo,
        (char *)w->ctx->workspace + stored_bytes(p), (size_t)plan->key.workspace_bytes, w->stream));
    return ASSAY_OK;
}

/* The median ms of TIMINGS runs behind one that is not counted. */
static assay_status time_algorithm(const gpu_work *w, const gpu_product_plan *plan, const product *p,
                                   void *to, const cublasLtMatmulAlgo_t *algo, const cudaEvent_t event[2],
                                   float *ms)
{
    enum { TIMINGS = 5 };
    float all[TIMINGS];
    ASSAY_TRY(multiply(w, plan, p, to, algo));
    for (int i = 0; i < TIMINGS; ++i) {
        CUDA_TRY(cudaEventRecord(event[0], w->stream));
        ASSAY_TRY(multiply(w, plan, p, to, algo));
        CUDA_TRY(cudaEventRecord(event[1], w->stream));
        CUDA_TRY(cudaEventSynchronize(event[1]));
        CUDA_TRY(cudaEventElapsedTime(&all[i], event[0], event[1]));
    }
    std::sort(all, all + TIMINGS);
    *ms = all[TIMINGS / 2];
    return ASSAY_OK;
}

/* Of all that the library offers, for later runs (gpu/product_plans.h).  Operands are read where they are, because what is
 * multiplied decides the clock; the result goes to memory of its own, aligned as the plan asks of it. */
static assay_status time_algorithms(const gpu_work *w, gpu_product_plan *plan, const product *p)
{
    const size_t bytes = gpu_tensor_bytes(p->c), shift = plan->key.align_c < 256 ? plan->key.align_c : 0;
    cublasLtMatmulHeuristicResult_t offered[GPU_PRODUCT_OFFERED];
    float ms[GPU_PRODUCT_OFFERED];
    cudaEvent_t event[2] = {NULL, NULL};
    char *room = NULL;
    int n = 0;
    assay_status st = offered_by(w->ctx, p, plan, GPU_PRODUCT_OFFERED, offered, &n);
    if (st != ASSAY_OK)
        return st;
    cudaError_t e = cudaMalloc((void **)&room, bytes + shift);
    if (e == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        (void)fprintf(stderr, "assay: warning: %s: no memory for another result of %zu bytes: not timed\n",
                      p->op, bytes);
        return ASSAY_OK;
    }
    for (int i = 0; i < 2 && e == cudaSuccess; ++i)
        e = cudaEventCreate(&event[i]);
    if (e == cudaSuccess)
        e = cudaMemsetAsync(room, 0, bytes + shift, w->stream);
    if (e != cudaSuccess)
        st = gpu_cuda_error(e, "timing of products", __FILE__, __LINE__, __func__);
    for (int i = 0; i < n && st == ASSAY_OK; ++i)
        st = time_algorithm(w, plan, p, room + shift, &offered[i].algo, event, &ms[i]);
    if (st == ASSAY_OK)
        gpu_product_plans_record(w->ctx->plans, &plan->key, offered, ms, n);
    for (int i = 0; i < 2; ++i)
        if (event[i] != NULL)
            (void)cudaEventDestroy(event[i]);
    (void)cudaFree(room);
    return st;
}

/* A capture takes no wait: its products are timed when they run outside one. */
static assay_status may_time(const gpu_work *w, const gpu_product_plan *plan, bool *yes)
{
    cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    *yes = gpu_product_plans_wants(w->ctx->plans, &plan->key);
    if (*yes)
        CUDA_TRY(cudaStreamIsCapturing(w->stream, &capturing));
    *yes = *yes && capturing == cudaStreamCaptureStatusNone;
    return ASSAY_OK;
}

assay_status gpu_product_blas(const gpu_work *w, const product *whole)
{
    const product part = blas_part(w->ctx, whole), *p = &part;
    gpu_product_plan plan;
    bool timed;
    if (gpu_product_is_nothing(whole))
        return ASSAY_OK;
    if (is_zeros(whole)) {
        CUDA_TRY(cudaMemsetAsync(whole->c.data, 0, gpu_tensor_bytes(whole->c), w->stream));
        return ASSAY_OK;
    }
    ASSAY_TRY(gpu_check_workspace(p->op, w->ctx, stored_bytes(whole)));
    ASSAY_TRY(plan_of(w->ctx, p, &plan));
    ASSAY_CHECK(plan.found, ASSAY_CUBLAS, "%s: cuBLASLt has no algorithm for a product that it had one for",
                p->op);
    ASSAY_CHECK(w->stream == w->ctx->stream || plan.key.workspace_bytes == 0, ASSAY_UNSUPPORTED,
                "%s: cuBLASLt's %lld bytes of workspace belong to the compute stream of the context: another "
                "stream would write them at the same time",
                p->op, (long long)plan.key.workspace_bytes);
    if (plan.key.bias) { /* the call's: the plan of another call has another address */
        const void *bias = p->bias.data;
        CUBLAS_TRY(cublasLtMatmulDescSetAttribute(&plan.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                                  sizeof bias));
    }
    ASSAY_TRY(may_time(w, &plan, &timed));
    if (timed)
        ASSAY_TRY(time_algorithms(w, &plan, p));
    ASSAY_TRY(multiply(w, &plan, p, p->c.data, &plan.algo));
    if (whole->stored)
        ASSAY_TRY(gpu_product_add_stored(w, whole, p->c.data));
    return p->bias.data != nullptr && !plan.key.bias ? gpu_product_add_bias(w, p) : ASSAY_OK;
}

bool gpu_product_blas_has(const gpu_ctx *ctx, const product *p)
{
    const product part = blas_part(ctx, p);
    gpu_product_plan plan;
    if (gpu_product_is_nothing(p) || is_zeros(p))
        return true;
    if (p->k == 0)
        return false;
    const bool found = plan_of(ctx, &part, &plan) != ASSAY_OK || plan.found;
    assay_error_clear();
    return found;
}

void gpu_product_blas_arith(assay_arith *a, const gpu_ctx *ctx, const gpu_operands *o)
{
    const gpu_tensor x = gpu_operand(o, "x");
    const assay_dtype in = gpu_tensor_present(x) ? x.dtype : gpu_operand(o, "dy").dtype;
    if (ctx->simulated) {
        if (gpu_product_plans_in_use(ctx->plans))
            a->order = ASSAY_ORDER_UNKNOWN;
        return;
    }
    if (in == ASSAY_BF16 && ctx->sm_major == 9) {
        a->order = ASSAY_ORDER_TENSOR_CORE;
        a->k_step = 16;
        a->guard_bits = 2;
    } else {
        a->order = ASSAY_ORDER_UNKNOWN;
    }
}

size_t gpu_product_blas_bytes(const gpu_ctx *ctx, const gpu_operands *o)
{
    const gpu_tensor dweight = gpu_operand(o, "dweight");
    product p = {};
    if (gpu_tensor_present(dweight) && dweight.ndim >= 2) {
        p.m = dweight.shape[dweight.ndim - 2];
        p.n = dweight.shape[dweight.ndim - 1];
        p.a = gpu_operand(o, "dy");
        p.stored = !gpu_operand_bool(o, "gradient_accumulation_fusion");
    }
    return stored_bytes(&p) + (ctx->simulated ? 0 : (size_t)BLAS_WORKSPACE);
}
