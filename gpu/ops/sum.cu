/* Sums in double: of a loss vector, of squares of gradients.  docs/OPS.md 6 (sum), 8 (sumsq).
 *
 *   k0  one thread                                                        double, sequential
 *   k1  blocks of 256 threads write one partial sum each, a second        double, tree of 256 x blocks lanes
 *       launch joins them; the order depends on the size alone
 *
 * The square of an fp32 number is exact in double. */
#include "gpu/device.cuh"
#include "gpu/ladder.h"

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

__device__ static __forceinline__ double warp_sum(double v)
{
    for (int offset = GPU_WARP / 2; offset > 0; offset /= 2)
        v += __shfl_xor_sync(gpu_all_lanes, v, offset);
    return v;
}

/* Tree over the block's threads; the result is valid in thread 0. */
__device__ static double block_sum(double v)
{
    GPU_SHARED(double, partial, SUM_BLOCK / GPU_WARP);
    const int warp = (int)threadIdx.x / GPU_WARP, lane = (int)threadIdx.x % GPU_WARP;
    v = warp_sum(v);
    if (lane == 0)
        partial[warp] = v;
    __syncthreads();
    if (warp == 0)
        v = warp_sum(lane < SUM_BLOCK / GPU_WARP ? partial[lane] : 0.0);
    return v;
}

template <bool SQUARE> __global__ void sum_k1(double *partials, const float *x, int64_t n)
{
    double sum = 0.0;
    for (int64_t i = gpu_thread(); i < n; i += gpu_threads())
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
                                     blocks == 1 ? y : partials, x, n);
    if (e != cudaSuccess || blocks == 1)
        return e;
    return GPU_LAUNCH(sum_join_k1, dim3(1), dim3(SUM_BLOCK), 0, stream, y, partials, blocks);
}

static void declare(gpu_declared *declared, int variant, int64_t largest)
{
    assay_arith a =
        variant == 0 ? gpu_arith_sequential(0) : gpu_arith_tree(SUM_BLOCK * sum_blocks(largest), 0);
    a.accumulate = ASSAY_F64;
    gpu_declare(declared, variant, a);
}

size_t gpu_sum_workspace(const gpu_ctx *ctx)
{
    (void)ctx;
    return sizeof(double) * SUM_MAX_BLOCKS;
}

assay_status gpu_sum(gpu_ctx *ctx, gpu_tensor y, gpu_tensor x, cudaStream_t stream, gpu_declared *declared)
{
    const char *op = "sum";
    ASSAY_TRY(gpu_check_tensor(op, "y", y, ASSAY_F64, ASSAY_F64));
    ASSAY_TRY(gpu_check_tensor(op, "x", x, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(gpu_check_count(op, "y", y, 1));
    ASSAY_TRY(gpu_check_workspace(op, ctx, gpu_sum_workspace(ctx)));
    const int variant = gpu_variant(ctx, GPU_FAMILY_ELEMENTWISE, 1, 1);
    const int64_t n = gpu_tensor_count(x);
    GPU_LAUNCHED(launch_sum<false>(variant, (double *)y.data, (const float *)x.data, n,
                                   (double *)ctx->workspace, stream),
                 op);
    declare(declared, variant, n);
    return ASSAY_OK;
}

assay_status gpu_sumsq(gpu_ctx *ctx, gpu_tensor y, const gpu_tensor *x, int64_t n_tensors,
                       cudaStream_t stream, gpu_declared *declared)
{
    const char *op = "sumsq";
    ASSAY_TRY(gpu_check_tensor(op, "y", y, ASSAY_F64, ASSAY_F64));
    ASSAY_TRY(gpu_check_count(op, "y", y, n_tensors));
    ASSAY_TRY(gpu_check_workspace(op, ctx, gpu_sum_workspace(ctx)));
    for (int64_t i = 0; i < n_tensors; ++i)
        ASSAY_TRY(gpu_check_tensor(op, "x", x[i], ASSAY_F32, ASSAY_F32));
    const int variant = gpu_variant(ctx, GPU_FAMILY_ELEMENTWISE, 1, 1);
    int64_t fewest = n_tensors > 0 ? INT64_MAX : 0;
    for (int64_t i = 0; i < n_tensors; ++i) {
        const int64_t n = gpu_tensor_count(x[i]);
        GPU_LAUNCHED(launch_sum<true>(variant, (double *)y.data + i, (const float *)x[i].data, n,
                                      (double *)ctx->workspace, stream),
                     op);
        fewest = n < fewest ? n : fewest;
    }
    declare(declared, variant, fewest); /* the fewest lanes are the longest chains: holds for every tensor */
    return ASSAY_OK;
}

/* --- the ladder --------------------------------------------------------------------------------------------- */
extern "C" const gpu_rung gpu_sum_rungs[] = {
    {"sum", 0, "one thread", "y: double, sequential", 0},
    {"sum", 1, "blocks of 256 threads, joined by a second launch",
     "y: double, tree of 256 x blocks lanes; the size alone decides the order", 0},
    {"sumsq", 0, "one thread", "y: double, sequential; squares are exact", 0},
    {"sumsq", 1, "blocks of 256 threads, joined by a second launch",
     "y: double, tree of 256 x blocks lanes of the smallest tensor; squares are exact", 0},
    {NULL, 0, NULL, NULL, 0},
};
