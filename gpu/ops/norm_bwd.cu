/* The backward of RMSNorm over the last axis.  docs/OPS.md 3; Zhang & Sennrich 2019 eq. 4.
 *
 *   k0  one thread for each row; dgamma: one thread for each column     fp32, sequential fma
 *   k1  the lanes of the forward; dgamma: as many chains of rows for    fp32, tree of that many lanes
 *       each column, joined by a tree through shared memory
 *   k2  the same lanes, eight elements at a time; dgamma, from 256      fp32, trees
 *       rows on: 256 chains for each column, 8 in a block, whose sums
 *       are joined by a second launch
 *   k3  dy and x are read once, by 16 threads a row (up to 128          fp32, trees
 *       columns) to 256; dgamma in registers beside dx
 *       (gpu/ops/norm_once.cuh).  Up to 16384 columns in bf16, 8192
 *       in fp32.
 *
 * No atomics. */
#include "gpu/ops/norm_once.cuh"

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

template <class T, int LANES>
__global__ void rmsnorm_bwd_k2(T *dx, const T *dy, const T *x, const T *gamma, const float *rstd, int64_t t,
                               int h)
{
    const int lane = gpu_lane<LANES>(), whole = norm_whole<LANES>(h);
    for (int64_t first = gpu_lanes_first<LANES>(); first < t; first += gpu_lanes_step<LANES>()) {
        const int64_t row = first + gpu_lanes_group<LANES>(), at = row * h;
        const float r = row < t ? rstd[row] : 0.0f;
        float d[GPU_EIGHT], v[GPU_EIGHT], g[GPU_EIGHT], sum = 0.0f;
        if (row < t) {
            for (int i = lane * GPU_EIGHT; i < whole; i += LANES * GPU_EIGHT) {
                gpu_load_n(d, dy + at + i);
                gpu_load_n(v, x + at + i);
                gpu_load_n(g, gamma + i);
                for (int j = 0; j < GPU_EIGHT; ++j)
                    sum = fmaf(d[j] * g[j], v[j] * r, sum);
            }
            for (int i = whole + lane; i < h; i += LANES)
                sum = fmaf(gpu_load(dy + at + i) * gpu_load(gamma + i), gpu_load(x + at + i) * r, sum);
        }
        const float mean = gpu_lanes_sum<LANES>(sum) / (float)h;
        if (row >= t)
            continue;
        for (int i = lane * GPU_EIGHT; i < h; i += LANES * GPU_EIGHT) {
            gpu_load_n(d, dy + at + i);
            gpu_load_n(v, x + at + i);
            gpu_load_n(g, gamma + i);
            for (int j = 0; j < GPU_EIGHT; ++j)
                d[j] = norm_dx(d[j], v[j], g[j], r, mean);
            gpu_store_n(dx + at + i, d);
        }
    }
}

/* dgamma in SLICES x SLICE_ROWS chains of rows for each column.  A block takes 256 columns, eight for each lane, and every
 * SLICES-th group of SLICE_ROWS rows; its sums go to partial [SLICES,h]. */
enum { SLICES = 32, SLICE_ROWS = 8, SLICE_COLUMNS = GPU_WARP * GPU_EIGHT };
template <class T>
__global__ void norm_dgamma_slices(float *partial, const T *dy, const T *x, const float *rstd, int64_t t,
                                   int h)
{
    GPU_SHARED_2D(float, chain, SLICE_ROWS, SLICE_COLUMNS);
    const int column = (int)(blockIdx.x * SLICE_COLUMNS + threadIdx.x * GPU_EIGHT);
    float sum[GPU_EIGHT] = {};
    if (column < h)
        for (int64_t row = (int64_t)blockIdx.y * SLICE_ROWS + threadIdx.y; row < t;
             row += SLICES * SLICE_ROWS) {
            float d[GPU_EIGHT], v[GPU_EIGHT];
            const float r = rstd[row];
            gpu_load_n(d, dy + row * h + column);
            gpu_load_n(v, x + row * h + column);
            for (int j = 0; j < GPU_EIGHT; ++j)
                sum[j] = fmaf(d[j], v[j] * r, sum[j]);
        }
    for (int j = 0; j < GPU_EIGHT; ++j)
        chain[threadIdx.y][threadIdx.x * GPU_EIGHT + j] = sum[j];
    __syncthreads();
    const int mine = (int)(threadIdx.y * GPU_WARP + threadIdx.x),
              out = (int)blockIdx.x * SLICE_COLUMNS + mine;
    float joined[SLICE_ROWS];
    for (int i = 0; i < SLICE_ROWS; ++i)
        joined[i] = chain[i][mine];
    for (int apart = 1; apart < SLICE_ROWS; apart *= 2)
        for (int i = 0; i < SLICE_ROWS; i += 2 * apart)
            joined[i] += joined[i + apart];
    if (out < h)
        partial[(int64_t)blockIdx.y * h + out] = joined[0];
}

/* One thread for each column: a tree over the slices, then the gradient so far. */
__global__ void norm_dgamma_join(float *dgamma, const float *partial, int h)
{
    for (int64_t column = gpu_thread(); column < h; column += gpu_threads()) {
        float joined[SLICES];
        for (int i = 0; i < SLICES; ++i)
            joined[i] = partial[(int64_t)i * h + column];
        for (int apart = 1; apart < SLICES; apart *= 2)
            for (int i = 0; i < SLICES; i += 2 * apart)
                joined[i] += joined[i + apart];
        dgamma[column] = joined[0] + dgamma[column];
    }
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

/* Fewer rows: the chains of k1, in one launch. */
static bool fills_slices(int64_t t)
{
    return t >= SLICES * SLICE_ROWS;
}

template <class T>
static cudaError_t launch_dgamma_k2(const norm_bwd_args *a, float *partial, cudaStream_t stream)
{
    const int h = (int)a->h;
    if (a->dgamma.data == nullptr)
        return cudaSuccess;
    const cudaError_t e =
        GPU_LAUNCH(norm_dgamma_slices<T>, dim3((unsigned)((h + SLICE_COLUMNS - 1) / SLICE_COLUMNS), SLICES),
                   dim3(GPU_WARP, SLICE_ROWS), 0, stream, partial, (const T *)a->dy.data,
                   (const T *)a->x.data, (const float *)a->rstd.data, a->t, h);
    if (e != cudaSuccess)
        return e;
    return GPU_LAUNCH_NO_BARRIER(norm_dgamma_join, gpu_grid(h, GPU_BLOCK), dim3(GPU_BLOCK), 0, stream,
                                 (float *)a->dgamma.data, partial, h);
}

template <class T, int LANES>
static cudaError_t launch_bwd_k2(const norm_bwd_args *a, float *partial, cudaStream_t stream)
{
    const cudaError_t e =
        fills_slices(a->t) ? launch_dgamma_k2<T>(a, partial, stream) : launch_dgamma_k1<T, LANES>(a, stream);
    if (e != cudaSuccess)
        return e;
    return GPU_LAUNCH((rmsnorm_bwd_k2<T, LANES>), gpu_grid(a->t, GPU_ROW_BLOCK / LANES), dim3(GPU_ROW_BLOCK),
                      0, stream, (T *)a->dx.data, (const T *)a->dy.data, (const T *)a->x.data,
                      (const T *)a->gamma.data, (const float *)a->rstd.data, a->t, (int)a->h);
}

template <class T>
static cudaError_t launch_bwd(int variant, const norm_bwd_args *a, float *partial, cudaStream_t stream)
{
    if (variant == 0)
        return launch_bwd_k0<T>(a, stream);
    if (variant == 3)
        return launch_bwd_once<T, false>(a, partial, stream);
    if (variant == 2)
        return GPU_BY_LANES(gpu_row_lanes(a->h), launch_bwd_k2, T, a, partial, stream);
    return GPU_BY_LANES(gpu_row_lanes(a->h), launch_bwd_k1, T, a, stream);
}

static size_t slices_bytes(const gpu_ctx *, const gpu_operands *o)
{
    return sizeof(float) * SLICES * (size_t)gpu_tensor_count(gpu_operand(o, "dgamma"));
}

static assay_status rmsnorm_bwd(const gpu_work *w)
{
    const norm_bwd_args a = norm_bwd_args_of(w->o);
    const char *op = "rmsnorm_bwd";
    ASSAY_TRY(norm_check_bwd(op, &a));
    ASSAY_TRY(gpu_check_tensor(op, "dx", a.dx, a.x.dtype, a.x.dtype));
    ASSAY_TRY(gpu_check_count(op, "dx", a.dx, a.t * a.h));
    ASSAY_TRY(norm_check_dgamma(op, &a));
    if (w->variant >= 2)
        ASSAY_TRY(gpu_check_workspace(
            op, w->ctx, w->variant == 3 ? norm_once_workspace(w->ctx, w->o) : slices_bytes(w->ctx, w->o)));
    if (a.t > 0 && a.h > 0)
        GPU_LAUNCHED(GPU_BY_ACT(a.x.dtype, launch_bwd, w->variant, &a, (float *)w->ctx->workspace, w->stream),
                     op);
    return ASSAY_OK;
}

/* --- the ladder --------------------------------------------------------------------------------------------- */
static void norm_slices(assay_arith *a, const gpu_ctx *ctx, const gpu_operands *o)
{
    const gpu_tensor gamma = gpu_operand(o, "gamma");
    if (!fills_slices(gpu_tensor_row_count(norm_rows(gpu_operand(o, "x"), gamma))))
        norm_column_chains(a, ctx, o);
}

GPU_LADDER(rmsnorm_bwd) = {
    GPU_RUNG("one thread a row, one a column", rmsnorm_bwd, GPU_DECLARES("dx dgamma", GPU_SEQUENTIAL(0))),
    GPU_RUNG("lanes a row, chains a column, one launch", rmsnorm_bwd,
             GPU_ADAPTS("dx", GPU_TREE(32, 0), norm_row_lanes, NORM_LANES_ADAPT),
             GPU_ADAPTS("dgamma", GPU_TREE(32, 0), norm_column_chains, "8 chains up to H = 128")),
    GPU_RUNG_IF("eight elements a lane at a time; dgamma of many rows by many blocks", rmsnorm_bwd,
                slices_bytes, norm_of_eights, NULL, GPU_SM_80,
                GPU_ADAPTS("dx", GPU_TREE(32, 0), norm_row_lanes, NORM_LANES_ADAPT),
                GPU_ADAPTS("dgamma", GPU_TREE(SLICES *SLICE_ROWS, 0), norm_slices,
                           "below 256 rows 32 chains, 8 up to H = 128")),
    GPU_RUNG_IF("dy and x are read once: dgamma in registers beside dx", rmsnorm_bwd, norm_once_workspace,
                norm_once_accepts, NULL, GPU_SM_80, NORM_ONCE_ROWS, NORM_ONCE_GAMMA),
    GPU_LADDER_END,
};
