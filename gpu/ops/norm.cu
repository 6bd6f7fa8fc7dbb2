/* RMSNorm over the last axis.  docs/OPS.md 3; Zhang & Sennrich 2019 eq. 4.
 *
 *   k0  one thread for each row; dgamma: one thread for each column     fp32, sequential fma
 *   k1  4, 8 or 32 lanes for each row (up to 32, up to 128, more        fp32, tree of that many lanes
 *       elements): neighbours read neighbours, the row sum goes by
 *       shuffles; dgamma: as many chains of rows for each column,
 *       joined by a tree through shared memory
 *
 * dgamma is complete in one launch: no atomics, no partial sums in memory. */
#include "gpu/ops/norm.cuh"

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
            gpu_store(dx + row * h + i, norm_dx(gpu_load(dy + row * h + i), gpu_load(x + row * h + i),
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
                      norm_dx(gpu_load(dy + at + i), gpu_load(x + at + i), gpu_load(gamma + i), r, mean));
    }
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

/* dgamma first: dx may be the buffer of dy or of x. */
template <class T> static cudaError_t launch_bwd_k0(const norm_bwd_args *a, cudaStream_t stream)
{
    const cudaError_t e = launch_dgamma_k0<T>(a, stream);
    if (e != cudaSuccess)
        return e;
    return GPU_LAUNCH_NO_BARRIER(rmsnorm_bwd_k0<T>, gpu_grid(a->t, GPU_BLOCK), dim3(GPU_BLOCK), 0, stream,
                                 (T *)a->dx.data, (const T *)a->dy.data, (const T *)a->x.data,
                                 (const T *)a->gamma.data, (const float *)a->rstd.data, a->t, a->h);
}

template <class T, int LANES> static cudaError_t launch_bwd_k1(const norm_bwd_args *a, cudaStream_t stream)
{
    const cudaError_t e = launch_dgamma_k1<T, LANES>(a, stream);
    if (e != cudaSuccess)
        return e;
    return GPU_LAUNCH((rmsnorm_bwd_k1<T, LANES>), gpu_grid(a->t, GPU_ROW_BLOCK / LANES), dim3(GPU_ROW_BLOCK),
                      0, stream, (T *)a->dx.data, (const T *)a->dy.data, (const T *)a->x.data,
                      (const T *)a->gamma.data, (const float *)a->rstd.data, a->t, a->h);
}

template <class T> static cudaError_t launch_bwd(int variant, const norm_bwd_args *a, cudaStream_t stream)
{
    if (variant == 0)
        return launch_bwd_k0<T>(a, stream);
    return GPU_BY_LANES(gpu_row_lanes(a->h), launch_bwd_k1, T, a, stream);
}

static assay_status rmsnorm_fwd(const gpu_work *w)
{
    const gpu_tensor gamma = gpu_operand(w->o, "gamma"), rstd = gpu_operand(w->o, "rstd");
    const gpu_tensor x = norm_rows(gpu_operand(w->o, "x"), gamma),
                     y = norm_rows(gpu_operand(w->o, "y"), gamma);
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
    const gpu_tensor x = norm_rows(gpu_operand(w->o, "x"), gamma),
                     dy = norm_rows(gpu_operand(w->o, "dy"), gamma);
    const gpu_tensor dx = norm_rows(gpu_operand(w->o, "dx"), gamma);
    const char *op = "rmsnorm_bwd";
    ASSAY_TRY(gpu_check_act(op, "x", x));
    ASSAY_TRY(gpu_check_tensor(op, "dy", dy, x.dtype, x.dtype));
    ASSAY_TRY(gpu_check_tensor(op, "gamma", gamma, x.dtype, x.dtype));
    ASSAY_TRY(gpu_check_tensor(op, "rstd", rstd, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(gpu_check_tensor(op, "dx", dx, x.dtype, x.dtype));
    if (gpu_tensor_present(dgamma))
        ASSAY_TRY(gpu_check_tensor(op, "dgamma", dgamma, ASSAY_F32, ASSAY_F32));
    const int64_t h = gpu_tensor_count(gamma), t = gpu_tensor_row_count(x);
    ASSAY_TRY(gpu_check_shape2(op, "x", x, t, h));
    ASSAY_TRY(gpu_check_count(op, "dy", dy, t * h));
    ASSAY_TRY(gpu_check_count(op, "dx", dx, t * h));
    ASSAY_TRY(gpu_check_count(op, "rstd", rstd, t));
    if (gpu_tensor_present(dgamma))
        ASSAY_TRY(gpu_check_count(op, "dgamma", dgamma, h));
    const norm_bwd_args a = {dx, dgamma, dy, x, gamma, rstd, {}, 0.0f, t, h};
    if (t > 0 && h > 0)
        GPU_LAUNCHED(GPU_BY_ACT(x.dtype, launch_bwd, w->variant, &a, w->stream), op);
    return ASSAY_OK;
}

/* --- the ladder --------------------------------------------------------------------------------------------- */
GPU_LADDER(rmsnorm_fwd) = {
    GPU_RUNG("one thread a row", rmsnorm_fwd, GPU_DECLARES("y rstd", GPU_SEQUENTIAL(2))),
    GPU_RUNG("4, 8 or 32 lanes a row: coalesced, sums by shuffles", rmsnorm_fwd,
             GPU_ADAPTS("y rstd", GPU_TREE(32, 2), norm_row_lanes, "4 lanes up to H = 32, 8 up to 128")),
    GPU_LADDER_END,
};
GPU_LADDER(rmsnorm_bwd) = {
    GPU_RUNG("one thread a row, one a column", rmsnorm_bwd, GPU_DECLARES("dx dgamma", GPU_SEQUENTIAL(0))),
    GPU_RUNG("lanes a row, chains a column, one launch", rmsnorm_bwd,
             GPU_ADAPTS("dx", GPU_TREE(32, 0), norm_row_lanes, "4 lanes up to H = 32, 8 up to 128"),
             GPU_ADAPTS("dgamma", GPU_TREE(32, 0), norm_column_chains, "8 chains up to H = 128")),
    GPU_LADDER_END,
};
