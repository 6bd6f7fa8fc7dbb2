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
#include "gpu/ladder.h"

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
    const int chains = LANES < 8 ? 8 : LANES;
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

/* dgamma of rows of up to 32 elements has 8 chains where 4 are declared: more chains are shorter ones. */
static void declare(gpu_declared *declared, int variant, int64_t h)
{
    gpu_declare(declared, variant,
                variant == 0 ? gpu_arith_sequential(2) : gpu_arith_tree(gpu_row_lanes(h), 2));
}

assay_status gpu_rmsnorm_fwd(gpu_ctx *ctx, gpu_tensor y, gpu_tensor rstd, gpu_tensor x, gpu_tensor gamma,
                             float eps, cudaStream_t stream, gpu_declared *declared)
{
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
    const int variant = gpu_variant(ctx, GPU_FAMILY_NORM, 1, 1);
    if (t > 0)
        GPU_LAUNCHED(GPU_BY_ACT(x.dtype, launch_fwd, variant, y, rstd, x, gamma, eps, t, h, stream), op);
    declare(declared, variant, h);
    return ASSAY_OK;
}

size_t gpu_rmsnorm_bwd_workspace(const gpu_ctx *ctx, int64_t t, int64_t h)
{
    (void)ctx;
    (void)t;
    (void)h;
    return 0;
}

assay_status gpu_rmsnorm_bwd(gpu_ctx *ctx, gpu_tensor dx, gpu_tensor dgamma, gpu_tensor dy, gpu_tensor x,
                             gpu_tensor gamma, gpu_tensor rstd, cudaStream_t stream, gpu_declared *declared)
{
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
    const int variant = gpu_variant(ctx, GPU_FAMILY_NORM, 1, 1);
    const bwd_args a = {dx, dgamma, dy, x, gamma, rstd, t, h};
    if (t > 0 && h > 0)
        GPU_LAUNCHED(GPU_BY_ACT(x.dtype, launch_bwd, variant, &a, stream), op);
    declare(declared, variant, h);
    return ASSAY_OK;
}

/* --- the ladder --------------------------------------------------------------------------------------------- */
extern "C" const gpu_rung gpu_norm_rungs[] = {
    {"rmsnorm_fwd", 0, "one thread a row", "y, rstd: sequential fma, rsqrt 2 ulp", 0},
    {"rmsnorm_fwd", 1, "4, 8 or 32 lanes a row: coalesced, sums by shuffles",
     "y, rstd: tree of 4 (H <= 32), 8 (H <= 128) or 32 lanes, rsqrt 2 ulp", 0},
    {"rmsnorm_bwd", 0, "one thread a row, one a column", "dx, dgamma: sequential fma", 0},
    {"rmsnorm_bwd", 1, "lanes a row, chains a column, one launch",
     "dx: tree of 4 (H <= 32), 8 (H <= 128) or 32 lanes; dgamma: tree of at least as many chains of rows", 0},
    {NULL, 0, NULL, NULL, 0},
};
