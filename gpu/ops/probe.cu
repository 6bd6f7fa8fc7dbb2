/* What `probe` asks: sums by the matrix units as the kernels use them (gpu/mma.cuh), functions as the kernels call them. */
#include "gpu/mma.cuh"
#include "gpu/probe.h"

enum { PROBE_ROWS = 16, PROBE_COLUMNS = 16, PROBE_BLOCK = 256 };
constexpr int probe_terms = ASSAY_PROBE_TERMS;

/* One question a block of one warp: every row of both tiles is the same. */
__global__ void probe_products(float *d, const float *c, const bf16 *a, const bf16 *b)
{
    GPU_DYNAMIC_SHARED(bf16, shared);
    bf16 *as = shared, *bs = as + PROBE_ROWS * probe_terms;
    const int lane = (int)threadIdx.x, chunks = probe_terms / 8;
    const int64_t question = blockIdx.x;
    for (int i = lane; i < PROBE_ROWS * chunks; i += GPU_WARP)
        mma_copy16(mma_chunk<probe_terms>(as, i / chunks, i % chunks),
                   a + question * probe_terms + i % chunks * 8, true);
    for (int i = lane; i < PROBE_COLUMNS * chunks; i += GPU_WARP)
        mma_copy16(mma_chunk<probe_terms>(bs, i / chunks, i % chunks),
                   b + question * probe_terms + i % chunks * 8, true);
    mma_commit();
    mma_wait<0>();
    __syncthreads();
    mma_rows<probe_terms, 1> rows;
    mma_load_rows(&rows, as, 0);
    float sum[1][PROBE_COLUMNS / 8][4];
    for (int j = 0; j < PROBE_COLUMNS / 8; ++j)
        for (int e = 0; e < 4; ++e)
            sum[0][j][e] = c[question];
    mma_abt(sum, rows, bs);
    for (int j = 0; j < PROBE_COLUMNS / 8; ++j)
        for (int e = 0; e < 4; ++e)
            d[question * ASSAY_PROBE_TILE + mma_row(lane, e) * PROBE_COLUMNS + j * 8 + mma_column(lane, e)] =
                sum[0][j][e];
}

__device__ static float probe_value(int function, float x)
{
    switch (function) {
    case ASSAY_PROBE_EXP:
        return expf(x);
    case ASSAY_PROBE_LOG:
        return logf(x);
    case ASSAY_PROBE_RSQRT:
        return rsqrtf(x);
    case ASSAY_PROBE_SIGMOID:
        return gpu_sigmoid(x);
    case ASSAY_PROBE_SIN:
        return sinf(x);
    case ASSAY_PROBE_COS:
        return cosf(x);
    case ASSAY_PROBE_TANH:
        return tanhf(x);
    default:
        return erff(x);
    }
}

__global__ void probe_function(float *y, int function, uint32_t first, uint32_t stride, int64_t n)
{
    for (int64_t i = gpu_thread(); i < n; i += gpu_threads())
        y[i] = probe_value(function, __uint_as_float(first + stride * (uint32_t)i));
}

cudaError_t gpu_probe_products(float *d, const float *c, const void *a, const void *b, int64_t n,
                               cudaStream_t stream)
{
    return GPU_LAUNCH(probe_products, dim3((unsigned)n), dim3(GPU_WARP),
                      sizeof(bf16) * (PROBE_ROWS + PROBE_COLUMNS) * probe_terms, stream, d, c,
                      static_cast<const bf16 *>(a), static_cast<const bf16 *>(b));
}

cudaError_t gpu_probe_function(float *y, const assay_probe_arguments *x, cudaStream_t stream)
{
    const int64_t most = 4096, blocks = (x->count + PROBE_BLOCK - 1) / PROBE_BLOCK;
    return GPU_LAUNCH_NO_BARRIER(probe_function, dim3((unsigned)(blocks < most ? blocks : most)),
                                 dim3(PROBE_BLOCK), 0, stream, y, (int)x->function, x->first, x->stride,
                                 x->count);
}
