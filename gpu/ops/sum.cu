/* Sums in double: of a loss vector, of squares of gradients.  docs/OPS.md 6 (sum), 8 (sumsq).
 *
 *   k0  one thread                                                        double, sequential
 *   k1  blocks of 256 threads write one partial sum each, a second        double, tree of 256 x blocks lanes
 *       launch joins them; the order depends on the size alone
 *
 * The square of an fp32 number is exact in double. */
#include "gpu/vector.cuh"

enum { SUM_BLOCK = 256, SUM_MAX_BLOCKS = 256, SUM_PER_THREAD = 16 };

template <bool SQUARE> __device__ static __forceinline__ double term(float v)
{
    return SQUARE ? (double)v * (double)v : (double)v;
}

template <bool SQUARE> __global__ void sum_k0(double *y, const float *x, int64_t n)
{
    if (gpu_thread() != 0)
        return;
    double sum = 0.0;
    for (int64_t i = 0; i < n; ++i)
        sum += term<SQUARE>(x[i]);
    *y = sum;
}

/* Tree over the block's threads; the result is valid in thread 0. */
__device__ static double block_sum(double v)
{
    GPU_SHARED(double, partial, SUM_BLOCK / GPU_WARP);
    const int warp = (int)threadIdx.x / GPU_WARP, lane = (int)threadIdx.x % GPU_WARP;
    v = gpu_warp_sum(v);
    if (lane == 0)
        partial[warp] = v;
    __syncthreads();
    if (warp == 0)
        v = gpu_warp_sum(lane < SUM_BLOCK / GPU_WARP ? partial[lane] : 0.0);
    return v;
}

/* Four neighbours for each thread while all threads have four, then one: no chain is longer than n / threads, rounded up.  The order
 * does not depend on the address: by_four says how four are read. */
template <bool SQUARE> __global__ void sum_k1(double *partials, const float *x, int64_t n, bool by_four)
{
    const int64_t fours = n / (4 * gpu_threads()) * gpu_threads();
    double sum = 0.0;
    for (int64_t i = gpu_thread(); i < fours; i += gpu_threads()) {
        float v[4];
        if (by_four)
            gpu_load_n(v, x + 4 * i);
        else
            for (int j = 0; j < 4; ++j)
                v[j] = x[4 * i + j];
        for (int j = 0; j < 4; ++j)
            sum += term<SQUARE>(v[j]);
    }
    for (int64_t i = 4 * fours + gpu_thread(); i < n; i += gpu_threads())
        sum += term<SQUARE>(x[i]);
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        partials[blockIdx.x] = sum;
}

__global__ void sum_join_k1(double *y, const double *partials, int n)
{
    const double sum = block_sum((int)threadIdx.x < n ? partials[threadIdx.x] : 0.0);
    if (threadIdx.x == 0)
        *y = sum;
}

/* A power of two, so that the tree has exactly log2(256 x blocks) levels. */
static int sum_blocks(int64_t n)
{
    int blocks = 1;
    while (blocks < SUM_MAX_BLOCKS && (int64_t)blocks * SUM_BLOCK * SUM_PER_THREAD < n)
        blocks *= 2;
    return blocks;
}

template <bool SQUARE>
static cudaError_t launch_sum(int variant, double *y, const float *x, int64_t n, double *partials,
                              cudaStream_t stream)
{
    if (variant == 0)
        return GPU_LAUNCH_NO_BARRIER(sum_k0<SQUARE>, dim3(1), dim3(1), 0, stream, y, x, n);
    const int blocks = sum_blocks(n);
    const cudaError_t e = GPU_LAUNCH(sum_k1<SQUARE>, dim3((unsigned)blocks), dim3(SUM_BLOCK), 0, stream,
                                     blocks == 1 ? y : partials, x, n, (uintptr_t)x % GPU_VECTOR_BYTES == 0);
    if (e != cudaSuccess || blocks == 1)
        return e;
    return GPU_LAUNCH(sum_join_k1, dim3(1), dim3(SUM_BLOCK), 0, stream, y, partials, blocks);
}

static size_t partial_sums(const gpu_ctx *, const gpu_operands *)
{
    return sizeof(double) * SUM_MAX_BLOCKS;
}

template <bool SQUARE> static assay_status run(const gpu_work *w)
{
    const char *op = w->o->op->name;
    if (w->variant > 0)
        ASSAY_TRY(gpu_check_workspace(op, w->ctx, partial_sums(w->ctx, w->o)));
    for (int64_t i = 0; i < w->n; ++i) {
        const gpu_tensor x = gpu_operand(&w->o[i], "x"), y = gpu_operand(&w->o[i], "y");
        ASSAY_TRY(gpu_check_tensor(op, "x", x, ASSAY_F32, ASSAY_F32));
        ASSAY_TRY(gpu_check_tensor(op, "y", y, ASSAY_F64, ASSAY_F64));
        ASSAY_TRY(gpu_check_count(op, "y", y, 1));
    }
    for (int64_t i = 0; i < w->n; ++i) {
        const gpu_tensor x = gpu_operand(&w->o[i], "x"), y = gpu_operand(&w->o[i], "y");
        GPU_LAUNCHED(launch_sum<SQUARE>(w->variant, (double *)y.data, (const float *)x.data,
                                        gpu_tensor_count(x), (double *)w->ctx->workspace, w->stream),
                     op);
    }
    return ASSAY_OK;
}

/* --- the ladder --------------------------------------------------------------------------------------------- */
static void block_lanes(assay_arith *a, const gpu_ctx *, const gpu_operands *o)
{
    a->lanes = SUM_BLOCK * sum_blocks(gpu_tensor_count(gpu_operand(o, "x")));
}

#define SUM_RUNGS(run)                                                                                       \
    GPU_RUNG("one thread", run, GPU_DECLARES("y", GPU_ARITH(F64, SEQUENTIAL, 1, true, 0, 0))),               \
        GPU_RUNG_IF("blocks of 256 threads, joined by a second launch", run, partial_sums, NULL, NULL,       \
                    GPU_SM_80,                                                                               \
                    GPU_ADAPTS("y", GPU_ARITH(F64, TREE, SUM_BLOCK, true, 0, 0), block_lanes,                \
                               "256 lanes for each of up to 256 blocks; the size decides")),                 \
        GPU_LADDER_END
GPU_LADDER(sum) = {SUM_RUNGS(run<false>)};
GPU_LADDER(sumsq) = {SUM_RUNGS(run<true>)};
