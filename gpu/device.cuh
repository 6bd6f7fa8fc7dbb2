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

/* GPU_TENSOR_CORE holds of sm_90 and of the simulator. */
static inline void gpu_mma_arith(assay_arith *a, const gpu_ctx *ctx, const gpu_operands *)
{
    if (!ctx->simulated && ctx->sm_major != 9)
        a->order = ASSAY_ORDER_UNKNOWN;
}
#define GPU_MMA_ARITH "sm_90: as it says; else: order unknown"

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

/* Sum over groups of LANES lanes (a power of two) as a binary tree; every lane of a group gets the same bits.
 * All 32 lanes of the warp must arrive.  The simulator adds all lanes' trees at once, with the same bits. */
template <int LANES, typename T> __device__ static __forceinline__ T gpu_lanes_sum_shuffled(T v)
{
    for (int offset = LANES / 2; offset > 0; offset /= 2)
        v += __shfl_xor_sync(gpu_all_lanes, v, offset);
    return v;
}
#if ASSAY_SIM
template <int LANES, typename T> static void gpu_lanes_sum_together(void *const *lane)
{
    T v[GPU_WARP], sum[GPU_WARP];
    for (int i = 0; i < GPU_WARP; ++i)
        v[i] = *(const T *)lane[i];
    for (int offset = LANES / 2; offset > 0; offset /= 2) {
        for (int i = 0; i < GPU_WARP; ++i)
            sum[i] = v[i] + v[i ^ offset];
        for (int i = 0; i < GPU_WARP; ++i)
            v[i] = sum[i];
    }
    for (int i = 0; i < GPU_WARP; ++i)
        *(T *)lane[i] = v[i];
}
template <int LANES, typename T> static inline T gpu_lanes_sum(T v)
{
    assay_sim_warp_call(gpu_lanes_sum_together<LANES, T>, &v, ASSAY_SIM_HERE);
    return v;
}
#else
template <int LANES, typename T> __device__ static __forceinline__ T gpu_lanes_sum(T v)
{
    return gpu_lanes_sum_shuffled<LANES>(v);
}
#endif
template <typename T> __device__ static __forceinline__ T gpu_warp_sum(T v)
{
    return gpu_lanes_sum<GPU_WARP>(v);
}

/* Inclusive prefix sums of the lanes' numbers, of which none is negative, cut at `most` (below 2^30); *before: of the lanes
 * before.  All 32 lanes of the warp must arrive.  The simulator adds all lanes' at once. */
#if ASSAY_SIM
struct gpu_prefix {
    int sum, most, before;
};
static inline void gpu_warp_prefix_together(void *const *lane)
{
    int sum = 0;
    for (int i = 0; i < GPU_WARP; ++i) {
        gpu_prefix *p = (gpu_prefix *)lane[i];
        p->before = sum;
        sum = p->sum + sum < p->most ? p->sum + sum : p->most;
        p->sum = sum;
    }
}
static inline int gpu_warp_prefix(int v, int most, int *before)
{
    gpu_prefix p = {v, most, 0};
    assay_sim_warp_call(gpu_warp_prefix_together, &p, ASSAY_SIM_HERE);
    *before = p.before;
    return p.sum;
}
#else
__device__ static __forceinline__ int gpu_warp_prefix(int v, int most, int *before)
{
    const int lane = (int)(threadIdx.x % GPU_WARP);
    for (int offset = 1; offset < GPU_WARP; offset *= 2) {
        const int lower = __shfl_up_sync(gpu_all_lanes, v, offset);
        v = lane >= offset ? min(v + lower, most) : v;
    }
    const int lower = __shfl_up_sync(gpu_all_lanes, v, 1);
    *before = lane > 0 ? lower : 0;
    return v;
}
#endif

/* Bits that order as the numbers do; -0 and +0 are equal, a NaN is below everything (0). */
__device__ static __forceinline__ unsigned gpu_order_bits(float v)
{
    const unsigned bits = __float_as_uint(v + 0.0f);
    return isnan(v) ? 0u : (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
/* Largest number of the 32 lanes in one integer reduction (sm_80); a NaN is passed over (the sum that follows
 * carries it), and is the result only when there is nothing else. */
__device__ static __forceinline__ float gpu_warp_max(float v)
{
    const unsigned order = __reduce_max_sync(gpu_all_lanes, gpu_order_bits(v));
    return __uint_as_float((order & 0x80000000u) != 0 ? order & 0x7fffffffu : ~order);
}

/* Lanes that work on a row of n elements: fewer for short rows, so that a warp takes several. */
static inline int gpu_row_lanes(int64_t n)
{
    return n <= 32 ? 4 : n <= 128 ? 8 : 32;
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

/* The same for LANES lanes a row: a block of 128 threads takes 128 / LANES rows.  `first` is the row of the
 * warp's first group, so that all lanes of a warp leave a loop over rows together. */
enum { GPU_ROW_BLOCK = 128 };
template <int LANES> __device__ static __forceinline__ int64_t gpu_lanes_first(void)
{
    return ((int64_t)blockIdx.x * GPU_ROW_BLOCK + threadIdx.x / GPU_WARP * GPU_WARP) / LANES;
}
template <int LANES> __device__ static __forceinline__ int64_t gpu_lanes_step(void)
{
    return (int64_t)gridDim.x * (GPU_ROW_BLOCK / LANES);
}
template <int LANES> __device__ static __forceinline__ int gpu_lanes_group(void)
{
    return (int)(threadIdx.x % GPU_WARP) / LANES;
}
template <int LANES> __device__ static __forceinline__ int gpu_lane(void)
{
    return (int)(threadIdx.x % LANES);
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

/* Calls the launcher's instance for the lanes of a row. */
#define GPU_BY_LANES(lanes, launcher, T, ...)                                                                \
    ((lanes) == 4   ? launcher<T, 4>(__VA_ARGS__)                                                            \
     : (lanes) == 8 ? launcher<T, 8>(__VA_ARGS__)                                                            \
                    : launcher<T, 32>(__VA_ARGS__))

/* Before a loop over registers, of which a device has none to choose by number; and before one that must not take more of them. */
#if ASSAY_SIM
#define GPU_UNROLL
#define GPU_NO_UNROLL
#define GPU_UNROLL_TWICE
#else
#define GPU_UNROLL _Pragma("unroll")
#define GPU_NO_UNROLL _Pragma("unroll 1")
#define GPU_UNROLL_TWICE _Pragma("unroll 2")
#endif

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
