/* RMSNorm over the last axis.  docs/OPS.md 3; Zhang & Sennrich 2019 eq. 4.
 *
 *   k0  one thread for each row; dgamma: one thread for each column     fp32, sequential fma
 *   k1  4, 8 or 32 lanes for each row (up to 32, up to 128, more        fp32, tree of that many lanes
 *       elements): neighbours read neighbours, the row sum goes by
 *       shuffles; dgamma: as many chains of rows for each column,
 *       joined by a tree through shared memory
 *
 * dgamma is complete in one launch: no atomics, no partial sums in memory. */
#include "gpu/device.cuh"

enum { NORM_CHAINS = 8 }; /* of dgamma, at least */

template <class T>
__global__ void rmsnorm_fwd_k0(T *y, float *rstd, const T *x, const T *gamma, float eps, int64_t t, int64_t h)
{
    for (int64_t row = gpu_thread(); row < t; row += gpu_threads()) {
        const T *xr = x + row * h;
        float sum = 0.0f;
        for (int64_t i = 0; i < h; ++i)
            sum = fmaf(gpu_load(xr + i), gpu_load(xr + i), sum);
        const float r = 1.0f / sqrtf(sum / (float)h + eps);
        for (int64_t i = 0; i < h; ++i)
            gpu_store(y + row * h + i, gpu_load(xr + i) * r * gpu_load(gamma + i));
        rstd[row] = r;
    }
}

template <class T, int LANES>
__global__ void rmsnorm_fwd_k1(T *y, float *rstd, const T *x, const T *gamma, float eps, int64_t t, int64_t h)
{
    const int lane = gpu_lane<LANES>();
    for (int64_t first = gpu_lanes_first<LANES>(); first < t; first += gpu_lanes_step<LANES>()) {
        const int64_t row = first + gpu_lanes_group<LANES>();
        const T *xr = x + row * h;
        float sum = 0.0f;
        if (row < t)
            for (int64_t i = lane; i < h; i += LANES)
                sum = fmaf(gpu_load(xr + i), gpu_load(xr + i), sum);
        sum = gpu_lanes_sum<LANES>(sum);
        if (row >= t)
            continue;
        const float r = 1.0f / sqrtf(sum / (float)h + eps);
        for (int64_t i = lane; i < h; i += LANES)
            gpu_store(y + row * h + i, gpu_load(xr + i) * r * gpu_load(gamma + i));
        if (lane == 0)
            rstd[row] = r;
    }
}

/* One element of dx: rstd (g - xh mean(g xh)), g = dy gamma, xh = x rstd. */
__device__ static float rmsnorm_dx(float dy, float x, float gamma, float r, float mean)
{
    const float g = dy * gamma, xh = x * r;
    return r * fmaf(-xh, mean, g);
}

template <class T>
__global__ void rmsnorm_bwd_k0(T *dx, const T *dy, const T *x, const T *gamma, const float *rstd, int64_t t,
                               int64_t h)
{
    for (int64_t row = gpu_thread(); row < t; row += gpu_threads()) {
        const float r = rstd[row];
        float sum = 0.0f;
        for (int64_t i = 0; i < h; ++i)
            sum = fmaf(gpu_load(dy + row * h + i) * gpu_load(gamma + i), gpu_load(x + row * h + i) * r, sum);
        const float mean = sum / (float)h;
        for (int64_t i = 0; i < h; ++i)
            gpu_store(dx + row * h + i, rmsnorm_dx(gpu_load(dy + row * h + i), gpu_load(x + row * h + i),
                                                   gpu_load(gamma + i), r, mean));
    }
}

template <class T, int LANES>
__global__ void rmsnorm_bwd_k1(T *dx, const T *dy, const T *x, const T *gamma, const float *rstd, int64_t t,
                               int64_t h)
{
    const int lane = gpu_lane<LANES>();
    for (int64_t first = gpu_lanes_first<LANES>(); first < t; first += gpu_lanes_step<LANES>()) {
        const int64_t row = first + gpu_lanes_group<LANES>(), at = row * h;
        const float r = row < t ? rstd[row] : 0.0f;
        float sum = 0.0f;
        if (row < t)
            for (int64_t i = lane; i < h; i += LANES)
                sum = fmaf(gpu_load(dy + at + i) * gpu_load(gamma + i), gpu_load(x + at + i) * r, sum);
        const float mean = gpu_lanes_sum<LANES>(sum) / (float)h;
        if (row >= t)
            continue;
        for (int64_t i = lane; i < h; i += LANES)
            gpu_store(dx + at + i,
                      rmsnorm_dx(gpu_load(dy + at + i), gpu_load(x + at + i), gpu_load(gamma + i), r, mean));
    }
}

template <class T>
__global__ void rmsnorm_dgamma_k0(float *dgamma, const T *dy, const T *x, const float *rstd, int64_t t,
                                  int64_t h)
{
    for (int64_t j = gpu_thread(); j < h; j += gpu_threads()) {
        float sum = 0.0f;
        for (int64_t i = 0; i < t; ++i)
            sum = fmaf(gpu_load(dy + i * h + j), gpu_load(x + i * h + j) * rstd[i], sum);
        dgamma[j] = sum + dgamma[j];
    }
}

/* 32 x CHAINS threads take 32 columns; thread row r sums rows r, r + CHAINS, ...; then groups of CHAINS lanes
 * join the chains of one column each. */
template <class T, int CHAINS>
__global__ void rmsnorm_dgamma_k1(float *dgamma, const T *dy, const T *x, const float *rstd, int64_t t,
                                  int64_t h)
{
    GPU_SHARED_2D(float, partial, CHAINS, GPU_WARP + 1);
    const int64_t column = (int64_t)blockIdx.x * GPU_WARP + threadIdx.x;
    float sum = 0.0f;
    if (column < h)
        for (int64_t i = threadIdx.y; i < t; i += CHAINS)
            sum = fmaf(gpu_load(dy + i * h + column), gpu_load(x + i * h + column) * rstd[i], sum);
    partial[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    const int chain = (int)threadIdx.x % CHAINS;
    const int mine = (int)(threadIdx.y * GPU_WARP + threadIdx.x) / CHAINS;
    const float total = gpu_lanes_sum<CHAINS>(partial[chain][mine]);
    const int64_t out = (int64_t)blockIdx.x * GPU_WARP + mine;
    if (chain == 0 && out < h)
        dgamma[out] = total + dgamma[out];
}

template <class T>
static cudaError_t launch_fwd_k0(gpu_tensor y, gpu_tensor rstd, gpu_tensor x, gpu_tensor gamma, float eps,
                                 int64_t t, int64_t h, cudaStream_t stream)
{
    return GPU_LAUNCH_NO_BARRIER(rmsnorm_fwd_k0<T>, gpu_grid(t, GPU_BLOCK), dim3(GPU_BLOCK), 0, stream,
                                 (T *)y.data, (float *)rstd.data, (const T *)x.data, (const T *)gamma.data,
                                 eps, t, h);
}

template <class T, int LANES>
static cudaError_t launch_fwd_k1(gpu_tensor y, gpu_tensor rstd, gpu_tensor x, gpu_tensor gamma, float eps,
                                 int64_t t, int64_t h, cudaStream_t stream)
{
    return GPU_LAUNCH((rmsnorm_fwd_k1<T, LANES>), gpu_grid(t, GPU_ROW_BLOCK / LANES), dim3(GPU_ROW_BLOCK), 0,
                      stream, (T *)y.data, (float *)rstd.data, (const T *)x.data, (const T *)gamma.data, eps,
                      t, h);
}

template <class T>
static cudaError_t launch_fwd(int variant, gpu_tensor y, gpu_tensor rstd, gpu_tensor x, gpu_tensor gamma,
                              float eps, int64_t t, int64_t h, cudaStream_t stream)
{
    if (variant == 0)
        return launch_fwd_k0<T>(y, rstd, x, gamma, eps, t, h, stream);
    return GPU_BY_LANES(gpu_row_lanes(h), launch_fwd_k1, T, y, rstd, x, gamma, eps, t, h, stream);
}

typedef struct bwd_args {
    gpu_tensor dx, dgamma, dy, x, gamma, rstd;
    int64_t t, h;
} bwd_args;

/* dgamma first: dx may be the buffer of dy or of x. */
template <class T> static cudaError_t launch_bwd_k0(const bwd_args *a, cudaStream_t stream)
{
    const cudaError_t e = GPU_LAUNCH_NO_BARRIER(
        rmsnorm_dgamma_k0<T>, gpu_grid(a->h, GPU_BLOCK), dim3(GPU_BLOCK), 0, stream, (float *)a->dgamma.data,
        (const T *)a->dy.data, (const T *)a->x.data, (const float *)a->rstd.data, a->t, a->h);
    if (e != cudaSuccess)
        return e;
    return GPU_LAUNCH_NO_BARRIER(rmsnorm_bwd_k0<T>, gpu_grid(a->t, GPU_BLOCK), dim3(GPU_BLOCK), 0, stream,
                                 (T *)a->dx.data, (const T *)a->dy.data, (const T *)a->x.data,
                                 (const T *)a->gamma.data, (const float *)a->rstd.data, a->t, a->h);
}

template <class T, int LANES> static cudaError_t launch_bwd_k1(const bwd_args *a, cudaStream_t stream)
{
    const int chains = LANES < NORM_CHAINS ? (int)NORM_CHAINS : LANES;
    const cudaError_t e =
        GPU_LAUNCH((rmsnorm_dgamma_k1<T, chains>), gpu_grid(a->h, GPU_WARP), dim3(GPU_WARP, chains), 0,
                   stream, (float *)a->dgamma.data, (const T *)a->dy.data, (const T *)a->x.data,
                   (const float *)a->rstd.data, a->t, a->h);
    if (e != cudaSuccess)
        return e;
    return GPU_LAUNCH((rmsnorm_bwd_k1<T, LANES>), gpu_grid(a->t, GPU_ROW_BLOCK / LANES), dim3(GPU_ROW_BLOCK),
                      0, stream, (T *)a->dx.data, (const T *)a->dy.data, (const T *)a->x.data,
                      (const T *)a->gamma.data, (const float *)a->rstd.data, a->t, a->h);
}

template <class T> static cudaError_t launch_bwd(int variant, const bwd_args *a, cudaStream_t stream)
{
    if (variant == 0)
        return launch_bwd_k0<T>(a, stream);
    return GPU_BY_LANES(gpu_row_lanes(a->h), launch_bwd_k1, T, a, stream);
}

/* Rows as wide as gamma: [T,A,D] is [T*A,D] for a norm of each head and [T,A*D] for one over all heads. */
static gpu_tensor as_rows(gpu_tensor t, gpu_tensor gamma)
{
    const int64_t h = gpu_tensor_count(gamma), count = gpu_tensor_count(t);
    const int64_t shape[2] = {h > 0 ? count / h : gpu_tensor_row_count(t), h};
    return h > 0 && count % h != 0 ? t : gpu_tensor_make(t.data, t.dtype, 2, shape);
}

static assay_status rmsnorm_fwd(const gpu_work *w)
{
    const gpu_tensor gamma = gpu_operand(w->o, "gamma"), rstd = gpu_operand(w->o, "rstd");
    const gpu_tensor x = as_rows(gpu_operand(w->o, "x"), gamma), y = as_rows(gpu_operand(w->o, "y"), gamma);
    const float eps = (float)gpu_operand_double(w->o, "eps");
    const char *op = "rmsnorm_fwd";
    ASSAY_TRY(gpu_check_act(op, "x", x));
    ASSAY_TRY(gpu_check_tensor(op, "gamma", gamma, x.dtype, x.dtype));
    ASSAY_TRY(gpu_check_tensor(op, "y", y, x.dtype, x.dtype));
    ASSAY_TRY(gpu_check_tensor(op, "rstd", rstd, ASSAY_F32, ASSAY_F32));
    const int64_t h = gpu_tensor_count(gamma), t = gpu_tensor_row_count(x);
    ASSAY_TRY(gpu_check_shape2(op, "x", x, t, h));
    ASSAY_TRY(gpu_check_count(op, "y", y, t * h));
    ASSAY_TRY(gpu_check_count(op, "rstd", rstd, t));
    ASSAY_CHECK(eps >= 0.0f, ASSAY_INVALID_ARGUMENT,
                "%s: eps: expected a number that is not negative, found %g", op, (double)eps);
    if (t > 0)
        GPU_LAUNCHED(GPU_BY_ACT(x.dtype, launch_fwd, w->variant, y, rstd, x, gamma, eps, t, h, w->stream),
                     op);
    return ASSAY_OK;
}

static assay_status rmsnorm_bwd(const gpu_work *w)
{
    const gpu_tensor gamma = gpu_operand(w->o, "gamma"), rstd = gpu_operand(w->o, "rstd"),
                     dgamma = gpu_operand(w->o, "dgamma");
    const gpu_tensor x = as_rows(gpu_operand(w->o, "x"), gamma), dy = as_rows(gpu_operand(w->o, "dy"), gamma);
    const gpu_tensor dx = as_rows(gpu_operand(w->o, "dx"), gamma);
    const char *op = "rmsnorm_bwd";
    ASSAY_TRY(gpu_check_act(op, "x", x));
    ASSAY_TRY(gpu_check_tensor(op, "dy", dy, x.dtype, x.dtype));
    ASSAY_TRY(gpu_check_tensor(op, "gamma", gamma, x.dtype, x.dtype));
    ASSAY_TRY(gpu_check_tensor(op, "rstd", rstd, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(gpu_check_tensor(op, "dx", dx, x.dtype, x.dtype));
    ASSAY_TRY(gpu_check_tensor(op, "dgamma", dgamma, ASSAY_F32, ASSAY_F32));
    const int64_t h = gpu_tensor_count(gamma), t = gpu_tensor_row_count(x);
    ASSAY_TRY(gpu_check_shape2(op, "x", x, t, h));
    ASSAY_TRY(gpu_check_count(op, "dy", dy, t * h));
    ASSAY_TRY(gpu_check_count(op, "dx", dx, t * h));
    ASSAY_TRY(gpu_check_count(op, "rstd", rstd, t));
    ASSAY_TRY(gpu_check_count(op, "dgamma", dgamma, h));
    const bwd_args a = {dx, dgamma, dy, x, gamma, rstd, t, h};
    if (t > 0 && h > 0)
        GPU_LAUNCHED(GPU_BY_ACT(x.dtype, launch_bwd, w->variant, &a, w->stream), op);
    return ASSAY_OK;
}

/* --- the ladder --------------------------------------------------------------------------------------------- */
static void row_lanes(assay_arith *a, const gpu_ctx *, const gpu_operands *o)
{
    a->lanes = gpu_row_lanes(gpu_tensor_count(gpu_operand(o, "gamma")));
}
static void column_chains(assay_arith *a, const gpu_ctx *ctx, const gpu_operands *o)
{
    row_lanes(a, ctx, o);
    a->lanes = a->lanes < NORM_CHAINS ? (int)NORM_CHAINS : a->lanes;
}

GPU_LADDER(rmsnorm_fwd) = {
    GPU_RUNG("one thread a row", rmsnorm_fwd, GPU_DECLARES("y rstd", GPU_SEQUENTIAL(2))),
    GPU_RUNG("4, 8 or 32 lanes a row: coalesced, sums by shuffles", rmsnorm_fwd,
             GPU_ADAPTS("y rstd", GPU_TREE(32, 2), row_lanes, "4 lanes up to H = 32, 8 up to 128")),
    GPU_LADDER_END,
};
GPU_LADDER(rmsnorm_bwd) = {
    GPU_RUNG("one thread a row, one a column", rmsnorm_bwd, GPU_DECLARES("dx dgamma", GPU_SEQUENTIAL(0))),
    GPU_RUNG("lanes a row, chains a column, one launch", rmsnorm_bwd,
             GPU_ADAPTS("dx", GPU_TREE(32, 0), row_lanes, "4 lanes up to H = 32, 8 up to 128"),
             GPU_ADAPTS("dgamma", GPU_TREE(32, 0), column_chains, "8 chains up to H = 128")),
    GPU_LADDER_END,
};
