/* Linear layers and grouped linear layers (experts).  docs/OPS.md 1, 2.
 *
 *   k0  one thread for each element of the result, inner index      fp32, sequential fma
 *       ascending
 *   k1  cuBLASLt; bias in its epilogue, dweight through beta = 1    simulator: sequential fma
 *       or (stored) in the workspace and added behind it;           sm_90 and bf16: tensor core, k_step 16,
 *       experts one after the other                                 guard bits 2; otherwise: order unknown
 *       bwd_bias: 8 chains of rows for each column, and a tree      fp32, tree of 8 lanes
 *
 * An operation with a product that cuBLASLt has no algorithm for (odd sizes or addresses), or over nothing (K = 0), runs as
 * k0.  Split-K is forbidden, so that a declared chain is one chain. */
#include "gpu/device.cuh"

/* C[m,n] = sum_p A(i,p) B(j,p) (+ bias[n]) (+ C): row-major.  A is stored [m,k], or [k,m] when a_is_km; B is
 * stored [n,k], or [k,n] when b_is_kn.  With `experts` it stands for one product for each: all operands whole, and m (forward,
 * input gradient) or k (weight gradient) is the number of rows of all. */
typedef struct product {
    const char *op;
    int64_t m, n, k;
    bool a_is_km, b_is_kn, accumulate;
    gpu_tensor c, a, b, bias;
    const int64_t *tokens_per_expert; /* host memory */
    int64_t experts;                  /* -1: a single product */
    bool stored = false; /* accumulate: the product is rounded to the type of a before it is added */
} product;

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

template <class T> __global__ void add_product(float *c, const T *from, int64_t count)
{
    for (int64_t e = gpu_thread(); e < count; e += gpu_threads())
        c[e] += gpu_load(from + e);
}

template <class T> __global__ void bias_grad_k0(float *dbias, const T *dy, int64_t t, int64_t n)
{
    for (int64_t j = gpu_thread(); j < n; j += gpu_threads()) {
        float sum = 0.0f;
        for (int64_t i = 0; i < t; ++i)
            sum += gpu_load(dy + i * n + j);
        dbias[j] = sum + dbias[j];
    }
}

/* 32 x CHAINS threads take 32 columns; thread row r sums rows r, r + CHAINS, ...; then groups of CHAINS lanes
 * join the chains of one column each. */
enum { CHAINS = 8 };
template <class T> __global__ void bias_grad_k1(float *dbias, const T *dy, int64_t t, int64_t n)
{
    GPU_SHARED_2D(float, partial, CHAINS, GPU_WARP + 1);
    const int64_t column = (int64_t)blockIdx.x * GPU_WARP + threadIdx.x;
    float sum = 0.0f;
    if (column < n)
        for (int64_t i = threadIdx.y; i < t; i += CHAINS)
            sum += gpu_load(dy + i * n + column);
    partial[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    const int chain = (int)threadIdx.x % CHAINS;
    const int mine = (int)(threadIdx.y * GPU_WARP + threadIdx.x) / CHAINS;
    const float total = gpu_lanes_sum<CHAINS>(partial[chain][mine]);
    const int64_t out = (int64_t)blockIdx.x * GPU_WARP + mine;
    if (chain == 0 && out < n)
        dbias[out] = total + dbias[out];
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
                                 (float *)p->c.data, (const T *)from, p->m * p->n);
}

template <class T> static cudaError_t launch_add_bias(const product *p, cudaStream_t stream)
{
    return GPU_LAUNCH_NO_BARRIER(add_bias<T>, gpu_grid(p->m * p->n, GPU_BLOCK), dim3(GPU_BLOCK), 0, stream,
                                 (float *)p->c.data, (const T *)p->bias.data, p->m, p->n);
}

/* Nothing to compute: no element, or nothing to add. */
static bool is_nothing(const product *p)
{
    return p->m == 0 || p->n == 0 || (p->k == 0 && p->accumulate);
}

static assay_status run_plain(const gpu_work *w, const product *p)
{
    cudaError_t e;
    if (is_nothing(p))
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

static assay_status run_blas(const gpu_work *w, const product *whole)
{
    const product part = blas_part(w->ctx, whole), *p = &part;
    const size_t taken = stored_bytes(whole);
    blas_plan plan;
    if (is_nothing(whole))
        return ASSAY_OK;
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

/* w is [N,K]; x [..,K]; y [..,N]. */
static assay_status check_linear(const char *op, const char *y_name, gpu_tensor y, const char *x_name,
                                 gpu_tensor x, gpu_tensor w)
{
    ASSAY_TRY(gpu_check_act(op, "weight", w));
    ASSAY_CHECK(w.ndim == 2, ASSAY_INVALID_ARGUMENT, "%s: weight: expected 2 dimensions [N,K], found %d", op,
                w.ndim);
    ASSAY_TRY(gpu_check_act(op, x_name, x));
    ASSAY_TRY(gpu_check_same_dtype(op, x_name, x, "weight", w));
    ASSAY_TRY(gpu_check_tensor(op, y_name, y, x.dtype, ASSAY_F32));
    return ASSAY_OK;
}

/* c [m,n] = a [m,k] · b [n,k]ᵀ, one product without bias. */
static product product_of(const char *op, int64_t m, int64_t n, int64_t k, gpu_tensor c, gpu_tensor a,
                          gpu_tensor b)
{
    product p = {};
    p.op = op;
    p.m = m;
    p.n = n;
    p.k = k;
    p.c = c;
    p.a = a;
    p.b = b;
    p.bias = gpu_tensor_none();
    p.experts = -1;
    return p;
}

static assay_status linear_fwd_product(const gpu_operands *o, product *p)
{
    const gpu_tensor y = gpu_operand(o, "y"), x = gpu_operand(o, "x"), weight = gpu_operand(o, "weight"),
                     bias = gpu_operand(o, "bias");
    const char *op = "linear_fwd";
    ASSAY_TRY(check_linear(op, "y", y, "x", x, weight));
    const int64_t t = gpu_tensor_row_count(x), n = weight.shape[0], k = weight.shape[1];
    ASSAY_TRY(gpu_check_shape2(op, "x", x, t, k));
    ASSAY_TRY(gpu_check_shape2(op, "y", y, t, n));
    if (gpu_tensor_present(bias)) {
        ASSAY_TRY(gpu_check_tensor(op, "bias", bias, weight.dtype, weight.dtype));
        ASSAY_TRY(gpu_check_count(op, "bias", bias, n));
    }
    *p = product_of(op, t, n, k, y, x, weight);
    p->bias = bias;
    return ASSAY_OK;
}

static assay_status linear_bwd_input_product(const gpu_operands *o, product *p)
{
    const gpu_tensor dx = gpu_operand(o, "dx"), dy = gpu_operand(o, "dy"), weight = gpu_operand(o, "weight");
    const char *op = "linear_bwd_input";
    ASSAY_TRY(check_linear(op, "dx", dx, "dy", dy, weight));
    const int64_t t = gpu_tensor_row_count(dy), n = weight.shape[0], k = weight.shape[1];
    ASSAY_TRY(gpu_check_shape2(op, "dy", dy, t, n));
    ASSAY_TRY(gpu_check_shape2(op, "dx", dx, t, k));
    *p = product_of(op, t, k, n, dx, dy, weight);
    p->b_is_kn = true;
    return ASSAY_OK;
}

static assay_status linear_bwd_weight_product(const gpu_operands *o, product *p)
{
    const gpu_tensor dweight = gpu_operand(o, "dweight"), dy = gpu_operand(o, "dy"), x = gpu_operand(o, "x");
    const char *op = "linear_bwd_weight";
    ASSAY_TRY(gpu_check_tensor(op, "dweight", dweight, ASSAY_F32, ASSAY_F32));
    ASSAY_CHECK(dweight.ndim == 2, ASSAY_INVALID_ARGUMENT,
                "%s: dweight: expected 2 dimensions [N,K], found %d", op, dweight.ndim);
    ASSAY_TRY(gpu_check_act(op, "dy", dy));
    ASSAY_TRY(gpu_check_act(op, "x", x));
    ASSAY_TRY(gpu_check_same_dtype(op, "x", x, "dy", dy));
    const int64_t t = gpu_tensor_row_count(dy), n = dweight.shape[0], k = dweight.shape[1];
    ASSAY_TRY(gpu_check_shape2(op, "dy", dy, t, n));
    ASSAY_TRY(gpu_check_shape2(op, "x", x, t, k));
    *p = product_of(op, n, k, t, dweight, dy, x);
    p->a_is_km = p->b_is_kn = p->accumulate = true;
    p->stored = !gpu_operand_bool(o, "gradient_accumulation_fusion");
    return ASSAY_OK;
}

template <class T>
static cudaError_t launch_bias_grad(int variant, gpu_tensor dbias, gpu_tensor dy, int64_t t, int64_t n,
                                    cudaStream_t stream)
{
    if (variant == 0)
        return GPU_LAUNCH_NO_BARRIER(bias_grad_k0<T>, gpu_grid(n, GPU_BLOCK), dim3(GPU_BLOCK), 0, stream,
                                     (float *)dbias.data, (const T *)dy.data, t, n);
    return GPU_LAUNCH(bias_grad_k1<T>, gpu_grid(n, GPU_WARP), dim3(GPU_WARP, CHAINS), 0, stream,
                      (float *)dbias.data, (const T *)dy.data, t, n);
}

static assay_status linear_bwd_bias(const gpu_work *w)
{
    const gpu_tensor dbias = gpu_operand(w->o, "dbias"), dy = gpu_operand(w->o, "dy");
    const char *op = "linear_bwd_bias";
    ASSAY_TRY(gpu_check_tensor(op, "dbias", dbias, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(gpu_check_act(op, "dy", dy));
    const int64_t n = gpu_tensor_count(dbias), t = gpu_tensor_row_count(dy);
    ASSAY_TRY(gpu_check_shape2(op, "dy", dy, t, n));
    if (t > 0 && n > 0)
        GPU_LAUNCHED(GPU_BY_ACT(dy.dtype, launch_bias_grad, w->variant, dbias, dy, t, n, w->stream), op);
    return ASSAY_OK;
}

/* Counts are not negative and sum to the number of rows. */
static assay_status check_groups(const char *op, const int64_t *tokens_per_expert, int64_t experts,
                                 int64_t rows)
{
    int64_t sum = 0;
    ASSAY_CHECK(tokens_per_expert != nullptr || experts == 0, ASSAY_INVALID_ARGUMENT,
                "%s: tokens_per_expert: expected %" PRId64 " entries in host memory, found NULL", op,
                experts);
    for (int64_t e = 0; e < experts; ++e) {
        ASSAY_CHECK(tokens_per_expert[e] >= 0 && assay_add_i64(sum, tokens_per_expert[e], &sum),
                    ASSAY_INVALID_ARGUMENT,
                    "%s: tokens_per_expert[%" PRId64 "]: expected a count, found %" PRId64, op, e,
                    tokens_per_expert[e]);
    }
    ASSAY_CHECK(sum == rows, ASSAY_INVALID_ARGUMENT,
                "%s: tokens_per_expert: expected a sum of %" PRId64 " rows, found %" PRId64, op, rows, sum);
    return ASSAY_OK;
}

/* The matrix of expert e in [El,N,K]. */
static gpu_tensor expert_matrix(gpu_tensor w, int64_t e)
{
    const int64_t n = w.shape[1], k = w.shape[2];
    char *data = (char *)w.data;
    if (data != nullptr)
        data += e * n * k * assay_dtype_bytes(w.dtype);
    return gpu_tensor_2d(data, w.dtype, n, k);
}

static gpu_tensor expert_rows(gpu_tensor t, int64_t start, int64_t length)
{
    return gpu_tensor_rows(gpu_tensor_2d(t.data, t.dtype, gpu_tensor_row_count(t), gpu_tensor_cols(t)), start,
                           length);
}

static assay_status check_grouped(const char *op, const char *name, gpu_tensor w)
{
    ASSAY_CHECK(w.ndim == 3, ASSAY_INVALID_ARGUMENT, "%s: %s: expected 3 dimensions [El,N,K], found %d", op,
                name, w.ndim);
    return ASSAY_OK;
}

static assay_status grouped_linear_fwd_product(const gpu_operands *o, product *p)
{
    const gpu_tensor y = gpu_operand(o, "y"), x = gpu_operand(o, "x"), weight = gpu_operand(o, "weight");
    const int64_t *tokens_per_expert = gpu_operand_host(o, "tokens_per_expert");
    const char *op = "grouped_linear_fwd";
    ASSAY_TRY(gpu_check_act(op, "weight", weight));
    ASSAY_TRY(check_grouped(op, "weight", weight));
    ASSAY_TRY(gpu_check_tensor(op, "x", x, weight.dtype, weight.dtype));
    ASSAY_TRY(gpu_check_tensor(op, "y", y, weight.dtype, ASSAY_F32));
    const int64_t rows = gpu_tensor_row_count(x), n = weight.shape[1], k = weight.shape[2];
    ASSAY_TRY(gpu_check_shape2(op, "x", x, rows, k));
    ASSAY_TRY(gpu_check_shape2(op, "y", y, rows, n));
    ASSAY_TRY(check_groups(op, tokens_per_expert, weight.shape[0], rows));
    *p = product_of(op, rows, n, k, y, x, weight);
    p->tokens_per_expert = tokens_per_expert;
    p->experts = weight.shape[0];
    return ASSAY_OK;
}

static assay_status grouped_linear_bwd_input_product(const gpu_operands *o, product *p)
{
    const gpu_tensor dx = gpu_operand(o, "dx"), dy = gpu_operand(o, "dy"), weight = gpu_operand(o, "weight");
    const int64_t *tokens_per_expert = gpu_operand_host(o, "tokens_per_expert");
    const char *op = "grouped_linear_bwd_input";
    ASSAY_TRY(gpu_check_act(op, "weight", weight));
    ASSAY_TRY(check_grouped(op, "weight", weight));
    ASSAY_TRY(gpu_check_tensor(op, "dy", dy, weight.dtype, weight.dtype));
    ASSAY_TRY(gpu_check_tensor(op, "dx", dx, weight.dtype, ASSAY_F32));
    const int64_t rows = gpu_tensor_row_count(dy), n = weight.shape[1], k = weight.shape[2];
    ASSAY_TRY(gpu_check_shape2(op, "dy", dy, rows, n));
    ASSAY_TRY(gpu_check_shape2(op, "dx", dx, rows, k));
    ASSAY_TRY(check_groups(op, tokens_per_expert, weight.shape[0], rows));
    *p = product_of(op, rows, k, n, dx, dy, weight);
    p->b_is_kn = true;
    p->tokens_per_expert = tokens_per_expert;
    p->experts = weight.shape[0];
    return ASSAY_OK;
}

static assay_status grouped_linear_bwd_weight_product(const gpu_operands *o, product *p)
{
    const gpu_tensor dweight = gpu_operand(o, "dweight"), dy = gpu_operand(o, "dy"), x = gpu_operand(o, "x");
    const int64_t *tokens_per_expert = gpu_operand_host(o, "tokens_per_expert");
    const char *op = "grouped_linear_bwd_weight";
    ASSAY_TRY(gpu_check_tensor(op, "dweight", dweight, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(check_grouped(op, "dweight", dweight));
    ASSAY_TRY(gpu_check_act(op, "dy", dy));
    ASSAY_TRY(gpu_check_tensor(op, "x", x, dy.dtype, dy.dtype));
    const int64_t rows = gpu_tensor_row_count(dy), n = dweight.shape[1], k = dweight.shape[2];
    ASSAY_TRY(gpu_check_shape2(op, "dy", dy, rows, n));
    ASSAY_TRY(gpu_check_shape2(op, "x", x, rows, k));
    ASSAY_TRY(check_groups(op, tokens_per_expert, dweight.shape[0], rows));
    *p = product_of(op, n, k, rows, dweight, dy, x);
    p->a_is_km = p->b_is_kn = p->accumulate = true;
    p->tokens_per_expert = tokens_per_expert;
    p->experts = dweight.shape[0];
    p->stored = !gpu_operand_bool(o, "gradient_accumulation_fusion");
    return ASSAY_OK;
}

/* The product of expert e, whose rows begin at `start`. */
static product expert_product(const product *whole, int64_t e, int64_t start)
{
    const int64_t rows = whole->tokens_per_expert[e];
    product p = *whole;
    p.experts = -1;
    p.a = expert_rows(whole->a, start, rows);
    if (whole->accumulate) {
        p.k = rows;
        p.b = expert_rows(whole->b, start, rows);
        p.c = expert_matrix(whole->c, e);
    } else {
        p.m = rows;
        p.b = expert_matrix(whole->b, e);
        p.c = expert_rows(whole->c, start, rows);
    }
    return p;
}

/* --- the ladder --------------------------------------------------------------------------------------------- */
typedef assay_status (*product_maker)(const gpu_operands *o, product *p);

typedef assay_status (*product_runner)(const gpu_work *w, const product *p);

/* An operation: its product, or one for each expert that has rows. */
static assay_status run_each(const gpu_work *w, product_maker make, product_runner run)
{
    product p;
    ASSAY_TRY(make(w->o, &p));
    if (p.experts < 0)
        return run(w, &p);
    for (int64_t e = 0, start = 0; e < p.experts; start += p.tokens_per_expert[e++]) {
        const product expert = expert_product(&p, e, start);
        ASSAY_TRY(run(w, &expert));
    }
    return ASSAY_OK;
}
template <product_maker MAKE> static assay_status each_plain(const gpu_work *w)
{
    return run_each(w, MAKE, run_plain);
}
template <product_maker MAKE> static assay_status each_blas(const gpu_work *w)
{
    return run_each(w, MAKE, run_blas);
}

/* An error counts as yes: `run` meets it again and reports it. */
static bool blas_has(const gpu_ctx *ctx, const product *p)
{
    const product part = blas_part(ctx, p);
    blas_plan plan;
    if (is_nothing(p))
        return true;
    if (p->k == 0)
        return false;
    const bool found = plan_blas(ctx, &part, &plan) != ASSAY_OK || plan.found;
    assay_error_clear();
    return found;
}

/* Whether cuBLASLt has an algorithm for every product (it keeps what it found: asking again costs little). */
template <product_maker MAKE> static bool blas_accepts(const gpu_ctx *ctx, const gpu_operands *o)
{
    product p;
    if (MAKE(o, &p) != ASSAY_OK) {
        assay_error_clear();
        return true;
    }
    bool all = p.experts >= 0 || blas_has(ctx, &p);
    for (int64_t e = 0, start = 0; e < p.experts && all; start += p.tokens_per_expert[e++]) {
        const product expert = expert_product(&p, e, start);
        all = blas_has(ctx, &expert);
    }
    return all;
}

static size_t blas_bytes(const gpu_ctx *ctx, const gpu_operands *o)
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

/* What cuBLASLt's arithmetic is on this device; the simulator's is one chain. */
static void blas_arith(assay_arith *a, const gpu_ctx *ctx, const gpu_operands *o)
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

#define BLAS_ARITH                                                                                           \
    "the simulator's; sm_90 and bf16: tensor core, k_step 16, guard bits 2; else: order unknown"
#define PRODUCT_LADDER(op, output, blas)                                                                     \
    GPU_LADDER(op) = {GPU_RUNG("one thread an element, inner index ascending", each_plain<op##_product>,     \
                               GPU_DECLARES(output, GPU_SEQUENTIAL(0))),                                     \
                      GPU_RUNG_IF(blas, each_blas<op##_product>, blas_bytes, blas_accepts<op##_product>,     \
                                  NULL, GPU_SM_80,                                                           \
                                  GPU_ADAPTS(output, GPU_SEQUENTIAL(0), blas_arith, BLAS_ARITH)),            \
                      GPU_LADDER_END}
PRODUCT_LADDER(linear_fwd, "y", "cuBLASLt");
PRODUCT_LADDER(linear_bwd_input, "dx", "cuBLASLt");
PRODUCT_LADDER(linear_bwd_weight, "dweight", "cuBLASLt");
PRODUCT_LADDER(grouped_linear_fwd, "y", "cuBLASLt, experts one after the other");
PRODUCT_LADDER(grouped_linear_bwd_input, "dx", "cuBLASLt, experts one after the other");
PRODUCT_LADDER(grouped_linear_bwd_weight, "dweight", "cuBLASLt, experts one after the other");
GPU_LADDER(linear_bwd_bias) = {
    GPU_RUNG("one thread a column", linear_bwd_bias, GPU_DECLARES("dbias", GPU_SEQUENTIAL(0))),
    GPU_RUNG("8 chains of rows a column", linear_bwd_bias, GPU_DECLARES("dbias", GPU_TREE(CHAINS, 0))),
    GPU_LADDER_END,
};
