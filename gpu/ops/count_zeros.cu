/* Zeros of a gradient.  docs/OPS.md 8.
 *
 *   k0  one thread
 *   k1  blocks of 256 threads write one count each, a second launch adds them up
 *
 * Integers: the order says nothing. */
#include "gpu/device.cuh"

enum { COUNT_BLOCK = 256, COUNT_MAX_BLOCKS = 256, COUNT_PER_THREAD = 16 };

__global__ void zeros_k0(int64_t *y, const float *x, int64_t n)
{
    if (gpu_thread() != 0)
        return;
    int64_t zeros = 0;
    for (int64_t i = 0; i < n; ++i)
        zeros += x[i] == 0.0f;
    *y = zeros;
}

/* Over the block's threads; the result is valid in thread 0. */
__device__ static long long block_total(long long v)
{
    GPU_SHARED(long long, partial, COUNT_BLOCK / GPU_WARP);
    const int warp = (int)threadIdx.x / GPU_WARP, lane = (int)threadIdx.x % GPU_WARP;
    v = gpu_warp_sum(v);
    if (lane == 0)
        partial[warp] = v;
    __syncthreads();
    if (warp == 0)
        v = gpu_warp_sum(lane < COUNT_BLOCK / GPU_WARP ? partial[lane] : 0ll);
    return v;
}

__global__ void zeros_k1(int64_t *partials, const float *x, int64_t n)
{
    long long zeros = 0;
    for (int64_t i = gpu_thread(); i < n; i += gpu_threads())
        zeros += x[i] == 0.0f;
    zeros = block_total(zeros);
    if (threadIdx.x == 0)
        partials[blockIdx.x] = zeros;
}

__global__ void zeros_join_k1(int64_t *y, const int64_t *partials, int n)
{
    const long long zeros = block_total((int)threadIdx.x < n ? partials[threadIdx.x] : 0);
    if (threadIdx.x == 0)
        *y = zeros;
}

static int count_blocks(int64_t n)
{
    const int64_t per_block = COUNT_BLOCK * COUNT_PER_THREAD, most = COUNT_MAX_BLOCKS,
                  wanted = (n + per_block - 1) / per_block;
    return (int)(wanted < 1 ? 1 : wanted > most ? most : wanted);
}

static cudaError_t launch_zeros(int variant, int64_t *y, const float *x, int64_t n, int64_t *partials,
                                cudaStream_t stream)
{
    if (variant == 0)
        return GPU_LAUNCH_NO_BARRIER(zeros_k0, dim3(1), dim3(1), 0, stream, y, x, n);
    const int blocks = count_blocks(n);
    const cudaError_t e = GPU_LAUNCH(zeros_k1, dim3((unsigned)blocks), dim3(COUNT_BLOCK), 0, stream,
                                     blocks == 1 ? y : partials, x, n);
    if (e != cudaSuccess || blocks == 1)
        return e;
    return GPU_LAUNCH(zeros_join_k1, dim3(1), dim3(COUNT_BLOCK), 0, stream, y, partials, blocks);
}

static size_t partial_counts(const gpu_ctx *, const gpu_operands *)
{
    return sizeof(int64_t) * COUNT_MAX_BLOCKS;
}

static assay_status count_zeros(const gpu_work *w)
{
    const char *op = "count_zeros";
    if (w->variant > 0)
        ASSAY_TRY(gpu_check_workspace(op, w->ctx, partial_counts(w->ctx, w->o)));
    for (int64_t i = 0; i < w->n; ++i) {
        const gpu_tensor x = gpu_operand(&w->o[i], "x"), y = gpu_operand(&w->o[i], "y");
        ASSAY_TRY(gpu_check_tensor(op, "x", x, ASSAY_F32, ASSAY_F32));
        ASSAY_TRY(gpu_check_tensor(op, "y", y, ASSAY_I64, ASSAY_I64));
        ASSAY_TRY(gpu_check_count(op, "y", y, 1));
    }
    for (int64_t i = 0; i < w->n; ++i) {
        const gpu_tensor x = gpu_operand(&w->o[i], "x"), y = gpu_operand(&w->o[i], "y");
        GPU_LAUNCHED(launch_zeros(w->variant, (int64_t *)y.data, (const float *)x.data, gpu_tensor_count(x),
                                  (int64_t *)w->ctx->workspace, w->stream),
                     op);
    }
    return ASSAY_OK;
}

/* --- the ladder --------------------------------------------------------------------------------------------- */
GPU_LADDER(count_zeros) = {
    GPU_RUNG("one thread", count_zeros, GPU_DECLARES("y", GPU_ELEMENTWISE(0))),
    GPU_RUNG_IF("blocks of 256 threads, joined by a second launch", count_zeros, partial_counts, NULL, NULL,
                GPU_SM_80, GPU_DECLARES("y", GPU_ELEMENTWISE(0))),
    GPU_LADDER_END,
};
