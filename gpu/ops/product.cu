/* Matrix products: one thread an element (k0), and cuBLASLt (k1).  docs/OPS.md 1, 2.
 *
 * Split-K is forbidden, so that a declared chain is one chain. */
#include "gpu/ops/product.cuh"

template <class TC, class T>
__global__ void product_k0(TC *c, const T *a, const T *b, const T *bias, int64_t m, int64_t n, int64_t k,
                           int64_t a_row, int64_t a_step, int64_t b_row, int64_t b_step, bool accumulate,
                           bool stored)
{
    for (int64_t e = gpu_thread(); e < m * n; e += gpu_threads()) {
        const int64_t i = e / n, j = e % n;
        float sum = 0.0f;
        for (int64_t p = 0; p < k; ++p)
            sum = fmaf(gpu_load(a + i * a_row + p * a_step), gpu_load(b + j * b_row + p * b_step), sum);
        if (bias != nullptr)
            sum += gpu_load(bias + j);
        if (stored) {
            T narrow;
            gpu_store(&narrow, sum);
            sum = gpu_load(&narrow);
        }
        if (accumulate)
            sum += gpu_load(c + e);
        gpu_store(c + e, sum);
    }
}

template <class T> __global__ void add_bias(float *c, const T *bias, int64_t m, int64_t n)
{
    for (int64_t e = gpu_thread(); e < m * n; e += gpu_threads())
        c[e] += gpu_load(bias + e % n);
}

template <class T> __global__ void add_product(float *c, const T *from, int64_t count, bool accumulate)
{
    for (int64_t e = gpu_thread(); e < count; e += gpu_threads())
        c[e] = accumulate ? c[e] + gpu_load(from + e) : gpu_load(from + e);
}

template <class TC, class T> static cudaError_t launch_k0(const product *p, cudaStream_t stream)
{
    return GPU_LAUNCH_NO_BARRIER((product_k0<TC, T>), gpu_grid(p->m * p->n, GPU_BLOCK), dim3(GPU_BLOCK), 0,
                                 stream, (TC *)p->c.data, (const T *)p->a.data, (const T *)p->b.data,
                                 (const T *)p->bias.data, p->m, p->n, p->k, p->a_is_km ? 1 : p->k,
                                 p->a_is_km ? p->m : 1, p->b_is_kn ? 1 : p->k, p->b_is_kn ? p->n : 1,
                                 p->accumulate, p->stored);
}

template <class T>
static cudaError_t launch_add_product(const product *p, const void *from, cudaStream_t stream)
{
    return GPU_LAUNCH_NO_BARRIER(add_product<T>, gpu_grid(p->m * p->n, GPU_BLOCK), dim3(GPU_BLOCK), 0, stream,
                                 (float *)p->c.data, (const T *)from, p->m * p->n, p->accumulate);
}

template <class T> static cudaError_t launch_add_bias(const product *p, cudaStream_t stream)
{
    return GPU_LAUNCH_NO_BARRIER(add_bias<T>, gpu_grid(p->m * p->n, GPU_BLOCK), dim3(GPU_BLOCK), 0, stream,
                                 (float *)p->c.data, (const T *)p->bias.data, p->m, p->n);
}

bool gpu_product_is_nothing(const product *p)
{
    return p->m == 0 || p->n == 0 || (p->k == 0 && p->accumulate);
}

/* A gradient of no rows that nothing is added to. */
static bool is_zeros(const product *p)
{
    return p->k == 0 && p->a_is_km && !p->accumulate;
}

assay_status gpu_product_plain(const gpu_work *w, const product *p)
{
    cudaError_t e;
    if (gpu_product_is_nothing(p))
        return ASSAY_OK;
    if (p->a.dtype == ASSAY_F32)
        e = launch_k0<float, float>(p, w->stream);
    else if (p->c.dtype == ASSAY_F32)
        e = launch_k0<float, bf16>(p, w->stream);
    else
        e = launch_k0<bf16, bf16>(p, w->stream);
    GPU_LAUNCHED(e, p->op);
    return ASSAY_OK;
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
    const uint32_t a = alignment_of(p->b.data), b = alignment_of(p->a.data), c = alignment_of(p->c.data);
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
        cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &c, sizeof c));
    return ASSAY_OK;
}

/* A product as cuBLASLt takes it; found is false when the library has no algorithm. */
typedef struct blas_plan {
    cublasLtMatmulDescOpaque_t desc;
    cublasLtMatrixLayoutOpaque_t first, second, result;
    cublasLtMatmulHeuristicResult_t choice;
    bool found, epilogue_bias;
} blas_plan;

/* Row-major C [m,n] is column-major [n,m]: cuBLASLt computes C^T = op(B) op(A), its first operand is our B.  The epilogue adds
 * a bias of the result's dtype; an fp32 result takes any bias afterwards: the sum is still in the accumulate type, so there is no
 * intermediate rounding. */
static assay_status plan_blas(const gpu_ctx *ctx, const product *p, blas_plan *plan)
{
    cublasLtMatmulPreferenceOpaque_t preference;
    const cublasOperation_t op_first = p->b_is_kn ? CUBLAS_OP_N : CUBLAS_OP_T;
    const cublasOperation_t op_second = p->a_is_km ? CUBLAS_OP_T : CUBLAS_OP_N;
    const uint64_t m = (uint64_t)p->m, n = (uint64_t)p->n, k = (uint64_t)p->k;
    const cudaDataType in = blas_type(p->a.dtype), out = blas_type(p->c.dtype);
    plan->found = false;
    plan->epilogue_bias = p->bias.data != nullptr && p->bias.dtype == p->c.dtype;
    CUBLAS_TRY(cublasLtMatmulDescInit(&plan->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    CUBLAS_TRY(
        cublasLtMatmulDescSetAttribute(&plan->desc, CUBLASLT_MATMUL_DESC_TRANSA, &op_first, sizeof op_first));
    CUBLAS_TRY(cublasLtMatmulDescSetAttribute(&plan->desc, CUBLASLT_MATMUL_DESC_TRANSB, &op_second,
                                              sizeof op_second));
    if (plan->epilogue_bias) {
        const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
        const void *bias = p->bias.data;
        CUBLAS_TRY(cublasLtMatmulDescSetAttribute(&plan->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                                  sizeof epilogue));
        CUBLAS_TRY(cublasLtMatmulDescSetAttribute(&plan->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                                  sizeof bias));
    }
    CUBLAS_TRY(cublasLtMatrixLayoutInit(&plan->first, in, p->b_is_kn ? n : k, p->b_is_kn ? k : n,
                                        p->b_is_kn ? p->n : p->k));
    CUBLAS_TRY(cublasLtMatrixLayoutInit(&plan->second, in, p->a_is_km ? m : k, p->a_is_km ? k : m,
                                        p->a_is_km ? p->m : p->k));
    CUBLAS_TRY(cublasLtMatrixLayoutInit(&plan->result, out, n, m, p->n));
    ASSAY_TRY(blas_preference(ctx, p, &preference));
    int count = 0;
    const cublasStatus_t asked =
        cublasLtMatmulAlgoGetHeuristic(ctx->blas, &plan->desc, &plan->first, &plan->second, &plan->result,
                                       &plan->result, &preference, 1, &plan->choice, &count);
    if (asked != CUBLAS_STATUS_NOT_SUPPORTED)
        CUBLAS_TRY(asked);
    plan->found = asked == CUBLAS_STATUS_SUCCESS && count > 0;
    return ASSAY_OK;
}

assay_status gpu_product_blas(const gpu_work *w, const product *whole)
{
    const product part = blas_part(w->ctx, whole), *p = &part;
    const size_t taken = stored_bytes(whole);
    blas_plan plan;
    if (gpu_product_is_nothing(whole))
        return ASSAY_OK;
    if (is_zeros(whole)) {
        CUDA_TRY(cudaMemsetAsync(whole->c.data, 0, gpu_tensor_bytes(whole->c), w->stream));
        return ASSAY_OK;
    }
    ASSAY_TRY(gpu_check_workspace(p->op, w->ctx, taken));
    ASSAY_TRY(plan_blas(w->ctx, p, &plan));
    ASSAY_CHECK(plan.found, ASSAY_CUBLAS, "%s: cuBLASLt has no algorithm for a product that it had one for",
                p->op);
    const float alpha = 1.0f, beta = p->accumulate ? 1.0f : 0.0f;
    CUBLAS_TRY(cublasLtMatmul(w->ctx->blas, &plan.desc, &alpha, p->b.data, &plan.first, p->a.data,
                              &plan.second, &beta, p->c.data, &plan.result, p->c.data, &plan.result,
                              &plan.choice.algo, (char *)w->ctx->workspace + taken,
                              blas_workspace(w->ctx, taken), w->stream));
    if (whole->stored)
        GPU_LAUNCHED(GPU_BY_ACT(p->a.dtype, launch_add_product, whole, p->c.data, w->stream), p->op);
    if (p->bias.data != nullptr && !plan.epilogue_bias)
        GPU_LAUNCHED(GPU_BY_ACT(p->bias.dtype, launch_add_bias, p, w->stream), p->op);
    return ASSAY_OK;
}

bool gpu_product_blas_has(const gpu_ctx *ctx, const product *p)
{
    const product part = blas_part(ctx, p);
    blas_plan plan;
    if (gpu_product_is_nothing(p) || is_zeros(p))
        return true;
    if (p->k == 0)
        return false;
    const bool found = plan_blas(ctx, &part, &plan) != ASSAY_OK || plan.found;
    assay_error_clear();
    return found;
}

void gpu_product_blas_arith(assay_arith *a, const gpu_ctx *ctx, const gpu_operands *o)
{
    const gpu_tensor x = gpu_operand(o, "x");
    const assay_dtype in = gpu_tensor_present(x) ? x.dtype : gpu_operand(o, "dy").dtype;
    if (ctx->simulated)
        return;
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
