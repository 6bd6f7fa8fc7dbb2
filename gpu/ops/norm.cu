/* RMSNorm over the last axis.  docs/OPS.md 3; Zhang & Sennrich 2019 eq. 4.
 *
 *   k0  one thread for each row                                         fp32, sequential fma
 *   k1  4, 8 or 32 lanes for each row (up to 32, up to 128, more        fp32, tree of that many lanes
 *       elements): neighbours read neighbours, the row sum goes by
 *       shuffles
 *   k2  the same lanes, eight elements at a time; of a row as much as   fp32, tree of that many lanes
 *       registers hold is read once: 8192 columns in bf16, 4096 in
 *       fp32
 *
 * No atomics.  The backward: gpu/ops/norm_bwd.cu. */
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

/* y of eight columns of x, in v. */
template <class T>
__device__ static __forceinline__ void rmsnorm_eight(T *y, float (&v)[GPU_EIGHT], const T *gamma, float r)
{
    float g[GPU_EIGHT];
    gpu_load_n(g, gamma);
    for (int j = 0; j < GPU_EIGHT; ++j)
        v[j] = v[j] * r * g[j];
    gpu_store_n(y, v);
}

/* The first EIGHTS pieces of a lane stay in registers; those behind them are read again. */
template <class T, int LANES, int EIGHTS>
__global__ void rmsnorm_fwd_k2(T *y, float *rstd, const T *x, const T *gamma, float eps, int64_t t, int h)
{
    constexpr int turn = GPU_EIGHT * LANES;
    const int lane = gpu_lane<LANES>(), whole = norm_whole<LANES>(h);
    for (int64_t first = gpu_lanes_first<LANES>(); first < t; first += gpu_lanes_step<LANES>()) {
        const int64_t row = first + gpu_lanes_group<LANES>(), at = row * h;
        norm_eight<T> kept[EIGHTS] = {};
        float v[GPU_EIGHT], sum = 0.0f;
        if (row < t) {
            NORM_EACH_PIECE(k, i, h)
            {
                gpu_load_n(v, x + at + i);
                kept[k].round(v);
            }
            NORM_EACH_PIECE(k, i, whole)
            {
                kept[k].get(v);
                for (int j = 0; j < GPU_EIGHT; ++j)
                    sum = fmaf(v[j], v[j], sum);
            }
            for (int i = lane * GPU_EIGHT + EIGHTS * turn; i < whole; i += turn) {
                gpu_load_n(v, x + at + i);
                for (int j = 0; j < GPU_EIGHT; ++j)
                    sum = fmaf(v[j], v[j], sum);
            }
            for (int i = whole + lane; i < h; i += LANES)
                sum = fmaf(gpu_load(x + at + i), gpu_load(x + at + i), sum);
        }
        sum = gpu_lanes_sum<LANES>(sum);
        if (row >= t)
            continue;
        const float r = 1.0f / sqrtf(sum / (float)h + eps);
        NORM_EACH_PIECE(k, i, h)
        {
            kept[k].get(v);
            rmsnorm_eight(y + at + i, v, gamma + i, r);
        }
        for (int i = lane * GPU_EIGHT + EIGHTS * turn; i < h; i += turn) {
            gpu_load_n(v, x + at + i);
            rmsnorm_eight(y + at + i, v, gamma + i, r);
        }
        if (lane == 0)
            rstd[row] = r;
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

template <class T, int LANES, int EIGHTS>
static cudaError_t launch_kept(gpu_tensor y, gpu_tensor rstd, gpu_tensor x, gpu_tensor gamma, float eps,
                               int64_t t, int64_t h, cudaStream_t stream)
{
    return GPU_LAUNCH((rmsnorm_fwd_k2<T, LANES, EIGHTS>), gpu_grid(t, GPU_ROW_BLOCK / LANES),
                      dim3(GPU_ROW_BLOCK), 0, stream, (T *)y.data, (float *)rstd.data, (const T *)x.data,
                      (const T *)gamma.data, eps, t, (int)h);
}

template <class T>
static cudaError_t launch_fwd_k2(gpu_tensor y, gpu_tensor rstd, gpu_tensor x, gpu_tensor gamma, float eps,
                                 int64_t t, int64_t h, cudaStream_t stream)
{
    const int lanes = gpu_row_lanes(h);
    if (lanes == 4)
        return launch_kept<T, 4, 1>(y, rstd, x, gamma, eps, t, h, stream);
    if (lanes == 8)
        return launch_kept<T, 8, 2>(y, rstd, x, gamma, eps, t, h, stream);
    if (h <= 1024)
        return launch_kept<T, 32, 4>(y, rstd, x, gamma, eps, t, h, stream);
    if (h <= 2048)
        return launch_kept<T, 32, 8>(y, rstd, x, gamma, eps, t, h, stream);
    if constexpr (sizeof(T) == 2)
        if (h > 4096)
            return launch_kept<T, 32, 32>(y, rstd, x, gamma, eps, t, h, stream);
    return launch_kept<T, 32, 16>(y, rstd, x, gamma, eps, t, h, stream);
}

template <class T>
static cudaError_t launch_fwd(int variant, gpu_tensor y, gpu_tensor rstd, gpu_tensor x, gpu_tensor gamma,
                              float eps, int64_t t, int64_t h, cudaStream_t stream)
{
    if (variant == 0)
        return launch_fwd_k0<T>(y, rstd, x, gamma, eps, t, h, stream);
    if (variant == 2)
        return launch_fwd_k2<T>(y, rstd, x, gamma, eps, t, h, stream);
    return GPU_BY_LANES(gpu_row_lanes(h), launch_fwd_k1, T, y, rstd, x, gamma, eps, t, h, stream);
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

/* --- the ladder --------------------------------------------------------------------------------------------- */
GPU_LADDER(rmsnorm_fwd) = {
    GPU_RUNG("one thread a row", rmsnorm_fwd, GPU_DECLARES("y rstd", GPU_SEQUENTIAL(2))),
    GPU_RUNG("4, 8 or 32 lanes a row: coalesced, sums by shuffles", rmsnorm_fwd,
             GPU_ADAPTS("y rstd", GPU_TREE(32, 2), norm_row_lanes, NORM_LANES_ADAPT)),
    GPU_RUNG_IF("eight elements a lane at a time, the row in registers", rmsnorm_fwd, NULL, norm_of_eights,
                NULL, GPU_SM_80, GPU_ADAPTS("y rstd", GPU_TREE(32, 2), norm_row_lanes, NORM_LANES_ADAPT)),
    GPU_LADDER_END,
};
