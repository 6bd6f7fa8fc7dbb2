/* RMSNorm over the last axis.  docs/OPS.md 3; Zhang & Sennrich 2019 eq. 4.
 *
 *   k0  one thread for each row; dgamma: one thread for each column     fp32, sequential fma
 *   k1  one warp for each row, neighbouring lanes read neighbouring     fp32, tree of 32 lanes
 *       elements, the row sum by shuffles; dgamma: 32 chains of rows
 *       for each column, joined by a tree through shared memory
 *
 * dgamma is complete in one launch: no atomics, no partial sums in memory. */
#include "gpu/device.cuh"

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

template <class T>
__global__ void rmsnorm_fwd_k1(T *y, float *rstd, const T *x, const T *gamma, float eps, int64_t t, int64_t h)
{
    const int64_t step = (int64_t)gridDim.x * blockDim.y;
    for (int64_t row = gpu_warp_row(); row < t; row += step) {
        const T *xr = x + row * h;
        float sum = 0.0f;
        for (int64_t i = threadIdx.x; i < h; i += GPU_WARP)
            sum = fmaf(gpu_load(xr + i), gpu_load(xr + i), sum);
        sum = gpu_warp_sum(sum);
        const float r = 1.0f / sqrtf(sum / (float)h + eps);
        for (int64_t i = threadIdx.x; i < h; i += GPU_WARP)
            gpu_store(y + row * h + i, gpu_load(xr + i) * r * gpu_load(gamma + i));
        if (threadIdx.x == 0)
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

template <class T>
__global__ void rmsnorm_bwd_k1(T *dx, const T *dy, const T *x, const T *gamma, const float *rstd, int64_t t,
                               int64_t h)
{
    const int64_t step = (int64_t)gridDim.x * blockDim.y;
    for (int64_t row = gpu_warp_row(); row < t; row += step) {
        const float r = rstd[row];
        float sum = 0.0f;
        for (int64_t i = threadIdx.x; i < h; i += GPU_WARP)
            sum = fmaf(gpu_load(dy + row * h + i) * gpu_load(gamma + i), gpu_load(x + row * h + i) * r, sum);
        const float mean = gpu_warp_sum(sum) / (float)h;
        for (int64_t i = threadIdx.x; i < h; i += GPU_WARP)
            gpu_store(dx + row * h + i, rmsnorm_dx(gpu_load(dy + row * h + i), gpu_load(x + row * h + i),
                                                   gpu_load(gamma + i), r, mean));
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

/* 32 x 32 threads take 32 columns; thread row r sums rows r, r + 32, ...; then warp w joins column w. */
template <class T>
__global__ void rmsnorm_dgamma_k1(float *dgamma, const T *dy, const T *x, const float *rstd, int64_t t,
                                  int64_t h)
{
    GPU_SHARED_2D(float, partial, GPU_WARP, GPU_WARP + 1);
    const int64_t column = (int64_t)blockIdx.x * GPU_WARP + threadIdx.x;
    float sum = 0.0f;
    if (column < h)
        for (int64_t i = threadIdx.y; i < t; i += GPU_WARP)
            sum = fmaf(gpu_load(dy + i * h + column), gpu_load(x + i * h + column) * rstd[i], sum);
    partial[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    const float total = gpu_warp_sum(partial[threadIdx.x][threadIdx.y]);
    const int64_t mine = (int64_t)blockIdx.x * GPU_WARP + threadIdx.y;
    if (threadIdx.x == 0 && mine < h)
        dgamma[mine] = total + dgamma[mine];
}

template <class T>
static cudaError_t launch_fwd(int variant, gpu_tensor y, gpu_tensor rstd, gpu_tensor x, gpu_tensor gamma,
                              float eps, int64_t t, int64_t h, cudaStream_t stream)
{
    if (variant == 0)
        return GPU_LAUNCH_NO_BARRIER(rmsnorm_fwd_k0<T>, gpu_grid(t, GPU_BLOCK), dim3(GPU_BLOCK), 0, stream,
                                     (T *)y.data, (float *)rstd.data, (const T *)x.data,
                                     (const T *)gamma.data, eps, t, h);
    return GPU_LAUNCH(rmsnorm_fwd_k1<T>, gpu_grid(t, GPU_ROWS_PER_BLOCK), gpu_warp_block(), 0, stream,
                      (T *)y.data, (float *)rstd.data, (const T *)x.data, (const T *)gamma.data, eps, t, h);
}

template <class T>
static cudaError_t launch_bwd(int variant, gpu_tensor dx, gpu_tensor dgamma, gpu_tensor dy, gpu_tensor x,
                              gpu_tensor gamma, gpu_tensor rstd, int64_t t, int64_t h, cudaStream_t stream)
{
    cudaError_t e;
    if (variant == 0) {
        /* dgamma first: dx may be the buffer of dy or of x. */
        e = GPU_LAUNCH_NO_BARRIER(rmsnorm_dgamma_k0<T>, gpu_grid(h, GPU_BLOCK), dim3(GPU_BLOCK), 0, stream,
                                  (float *)dgamma.data, (const T *)dy.data, (const T *)x.data,
                                  (const float *)rstd.data, t, h);
        if (e != cudaSuccess)
            return e;
        return GPU_LAUNCH_NO_BARRIER(rmsnorm_bwd_k0<T>, gpu_grid(t, GPU_BLOCK), dim3(GPU_BLOCK), 0, stream,
                                     (T *)dx.data, (const T *)dy.data, (const T *)x.data,
                                     (const T *)gamma.data, (const float *)rstd.data, t, h);
    }
    e = GPU_LAUNCH(rmsnorm_dgamma_k1<T>, gpu_grid(h, GPU_WARP), dim3(GPU_WARP, GPU_WARP), 0, stream,
                   (float *)dgamma.data, (const T *)dy.data, (const T *)x.data, (const float *)rstd.data, t,
                   h);
    if (e != cudaSuccess)
        return e;
    return GPU_LAUNCH(rmsnorm_bwd_k1<T>, gpu_grid(t, GPU_ROWS_PER_BLOCK), gpu_warp_block(), 0, stream,
                      (T *)dx.data, (const T *)dy.data, (const T *)x.data, (const T *)gamma.data,
                      (const float *)rstd.data, t, h);
}

static void declare(gpu_ctx *ctx, int variant)
{
    gpu_declare(ctx, variant, variant == 0 ? gpu_arith_sequential(2) : gpu_arith_tree(GPU_WARP, 2));
}

assay_status gpu_rmsnorm_fwd(gpu_ctx *ctx, gpu_tensor y, gpu_tensor rstd, gpu_tensor x, gpu_tensor gamma,
                             float eps, cudaStream_t stream)
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
    declare(ctx, variant);
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
                             gpu_tensor gamma, gpu_tensor rstd, cudaStream_t stream)
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
    if (t > 0 && h > 0)
        GPU_LAUNCHED(GPU_BY_ACT(x.dtype, launch_bwd, variant, dx, dgamma, dy, x, gamma, rstd, t, h, stream),
                     op);
    declare(ctx, variant);
    return ASSAY_OK;
}
