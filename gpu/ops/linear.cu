/* Linear layers.  docs/OPS.md 1.
 *
 *   k0  one thread for each element of the result, inner index      fp32, sequential fma
 *       ascending
 *   k1  cuBLASLt; bias in its epilogue, dweight through beta = 1    simulator: sequential fma
 *       or (stored) in the workspace and added behind it            sm_90 and bf16: tensor core, k_step 16,
 *       bwd_bias: 8 chains of rows for each column, and a tree      guard bits 2; otherwise: order unknown
 *                                                                   fp32, tree of 8 lanes
 *
 * An operation with a product that cuBLASLt has no algorithm for (odd sizes or addresses), or over nothing (K = 0), runs as
 * k0. */
#include "gpu/ops/product.cuh"

template <class T>
__global__ void bias_grad_k0(float *dbias, const T *dy, int64_t t, int64_t n, bool accumulate)
{
    for (int64_t j = gpu_thread(); j < n; j += gpu_threads()) {
        float sum = 0.0f;
        for (int64_t i = 0; i < t; ++i)
            sum += gpu_load(dy + i * n + j);
        dbias[j] = accumulate ? sum + dbias[j] : sum;
    }
}

/* 32 x CHAINS threads take 32 columns; thread row r sums rows r, r + CHAINS, ...; then groups of CHAINS lanes
 * join the chains of one column each. */
enum { CHAINS = 8 };
template <class T>
__global__ void bias_grad_k1(float *dbias, const T *dy, int64_t t, int64_t n, bool accumulate)
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
        dbias[out] = accumulate ? total + dbias[out] : total;
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
    p->a_is_km = p->b_is_kn = true;
    p->accumulate = gpu_operand_bool(o, "accumulate");
    p->stored = !gpu_operand_bool(o, "gradient_accumulation_fusion");
    return ASSAY_OK;
}

template <class T>
static cudaError_t launch_bias_grad(int variant, gpu_tensor dbias, gpu_tensor dy, int64_t t, int64_t n,
                                    bool accumulate, cudaStream_t stream)
{
    if (variant == 0)
        return GPU_LAUNCH_NO_BARRIER(bias_grad_k0<T>, gpu_grid(n, GPU_BLOCK), dim3(GPU_BLOCK), 0, stream,
                                     (float *)dbias.data, (const T *)dy.data, t, n, accumulate);
    return GPU_LAUNCH(bias_grad_k1<T>, gpu_grid(n, GPU_WARP), dim3(GPU_WARP, CHAINS), 0, stream,
                      (float *)dbias.data, (const T *)dy.data, t, n, accumulate);
}

static assay_status linear_bwd_bias(const gpu_work *w)
{
    const gpu_tensor dbias = gpu_operand(w->o, "dbias"), dy = gpu_operand(w->o, "dy");
    const char *op = "linear_bwd_bias";
    ASSAY_TRY(gpu_check_tensor(op, "dbias", dbias, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(gpu_check_act(op, "dy", dy));
    const int64_t n = gpu_tensor_count(dbias), t = gpu_tensor_row_count(dy);
    ASSAY_TRY(gpu_check_shape2(op, "dy", dy, t, n));
    const bool accumulate = gpu_operand_bool(w->o, "accumulate");
    if (n > 0 && (t > 0 || !accumulate))
        GPU_LAUNCHED(
            GPU_BY_ACT(dy.dtype, launch_bias_grad, w->variant, dbias, dy, t, n, accumulate, w->stream), op);
    return ASSAY_OK;
}

/* --- the ladder --------------------------------------------------------------------------------------------- */
typedef assay_status (*product_maker)(const gpu_operands *o, product *p);

template <product_maker MAKE> static assay_status plain(const gpu_work *w)
{
    product p;
    ASSAY_TRY(MAKE(w->o, &p));
    return gpu_product_plain(w, &p);
}
template <product_maker MAKE> static assay_status blas(const gpu_work *w)
{
    product p;
    ASSAY_TRY(MAKE(w->o, &p));
    return gpu_product_blas(w, &p);
}
/* Whether cuBLASLt has an algorithm (it keeps what it found: asking again costs little). */
template <product_maker MAKE> static bool blas_accepts(const gpu_ctx *ctx, const gpu_operands *o)
{
    product p;
    if (MAKE(o, &p) == ASSAY_OK)
        return gpu_product_blas_has(ctx, &p);
    assay_error_clear();
    return true;
}

#define PRODUCT_LADDER(op, output)                                                                           \
    GPU_LADDER(op) = {GPU_RUNG("one thread an element, inner index ascending", plain<op##_product>,          \
                               GPU_DECLARES(output, GPU_SEQUENTIAL(0))),                                     \
                      GPU_RUNG_BY_LIBRARY("cuBLASLt", blas<op##_product>, gpu_product_blas_bytes,            \
                                          blas_accepts<op##_product>, NULL, GPU_SM_80,                       \
                                          GPU_ADAPTS(output, GPU_SEQUENTIAL(0), gpu_product_blas_arith,      \
                                                     GPU_PRODUCT_BLAS_ARITH)),                               \
                      GPU_LADDER_END}
PRODUCT_LADDER(linear_fwd, "y");
PRODUCT_LADDER(linear_bwd_input, "dx");
PRODUCT_LADDER(linear_bwd_weight, "dweight");
GPU_LADDER(linear_bwd_bias) = {
    GPU_RUNG("one thread a column", linear_bwd_bias, GPU_DECLARES("dbias", GPU_SEQUENTIAL(0))),
    GPU_RUNG("8 chains of rows a column", linear_bwd_bias, GPU_DECLARES("dbias", GPU_TREE(CHAINS, 0))),
    GPU_LADDER_END,
};
