/* What the kernels share: loads and stores that convert once, warp sums, launch shapes.
 * Numbers are read in their storage type, computed in fp32, and rounded once, to nearest even, when stored.
 */
#ifndef GPU_DEVICE_CUH
#define GPU_DEVICE_CUH

#include "gpu/check.h"
#include "gpu/launch.cuh"
#include "gpu/ops.h"
#include <cuda_bf16.h>
#include <inttypes.h>
#include <math.h>

typedef __nv_bfloat16 bf16;

enum { GPU_WARP = 32, GPU_BLOCK = 256, GPU_ROWS_PER_BLOCK = 4 };
static const unsigned gpu_all_lanes = 0xffffffffu;

/* Longest error of 1/(1+exp(-x)) in ulp: exp 2 ulp, one sum, one quotient, and a mantissa near 2. */
enum { GPU_ULP_EXP = 2, GPU_ULP_SIGMOID = 6 };

__device__ static __forceinline__ float gpu_load(const float *p)
{
    return *p;
}
__device__ static __forceinline__ float gpu_load(const bf16 *p)
{
    return __bfloat162float(*p);
}
__device__ static __forceinline__ void gpu_store(float *p, float v)
{
    *p = v;
}
__device__ static __forceinline__ void gpu_store(bf16 *p, float v)
{
    *p = __float2bfloat16_rn(v);
}

/* Sum over the 32 lanes as a binary tree; every lane gets the same bits.  All 32 lanes must arrive. */
__device__ static __forceinline__ float gpu_warp_sum(float v)
{
    for (int offset = GPU_WARP / 2; offset > 0; offset /= 2)
        v += __shfl_xor_sync(gpu_all_lanes, v, offset);
    return v;
}
/* Largest number of the 32 lanes; a NaN is passed over (the sum that follows carries it). */
__device__ static __forceinline__ float gpu_warp_max(float v)
{
    for (int offset = GPU_WARP / 2; offset > 0; offset /= 2)
        v = fmaxf(v, __shfl_xor_sync(gpu_all_lanes, v, offset));
    return v;
}

__device__ static __forceinline__ float gpu_sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* Index of this thread in the grid, and the number of threads, for loops over n elements with that stride. */
__device__ static __forceinline__ int64_t gpu_thread(void)
{
    return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}
__device__ static __forceinline__ int64_t gpu_threads(void)
{
    return (int64_t)gridDim.x * blockDim.x;
}
/* Rows handled by a block of (32, GPU_ROWS_PER_BLOCK) threads: one warp for each row. */
__device__ static __forceinline__ int64_t gpu_warp_row(void)
{
    return (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
}

/* Blocks of `per_block` for n items; loops in the kernel take the rest when the grid is at its ceiling. */
static inline dim3 gpu_grid(int64_t n, int64_t per_block)
{
    const int64_t ceiling = 1 << 30;
    const int64_t blocks = (n + per_block - 1) / per_block;
    return dim3((unsigned)(blocks < 1 ? 1 : blocks > ceiling ? ceiling : blocks));
}
static inline dim3 gpu_warp_block(void)
{
    return dim3(GPU_WARP, GPU_ROWS_PER_BLOCK);
}

/* Enqueued, or ASSAY_CUDA with the operation's name. */
static inline assay_status gpu_launched(cudaError_t e, const char *op, const char *file, int line,
                                        const char *func)
{
    return e == cudaSuccess ? ASSAY_OK : gpu_cuda_error(e, op, file, line, func);
}
#define GPU_LAUNCHED(call, op) ASSAY_TRY(gpu_launched((call), (op), __FILE__, __LINE__, __func__))

/* Calls the launcher's instance for the activation dtype. */
#define GPU_BY_ACT(dtype, launcher, ...)                                                                     \
    ((dtype) == ASSAY_F32 ? launcher<float>(__VA_ARGS__) : launcher<bf16>(__VA_ARGS__))

#endif
