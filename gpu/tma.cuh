/* Tile copies of sm_90a by the tensor memory accelerator, and the barriers between them and products (gpu/wgmma.cuh, which includes this
 * and says what a tile is).  For *_sm90.cu alone.
 *
 *   mbarrier_*  a phase ends when all arrivals have come and all bytes that were announced; parity of a phase: its number's last bit
 *   tma_*       boxes of a tensor map to and from tiles: [planes][rows][columns] bf16, zeros outside
 *   named_barrier_*, setmaxnreg_*, elect_one, proxy_fence
 *
 * In the simulator: gpu/sim/include/assay_sim_wgmma.h.  Tensor maps and instructions: PTX ISA, "Tensor copies", "mbarrier". */
#ifndef GPU_TMA_CUH
#define GPU_TMA_CUH

#include "gpu/mma.cuh"

#if ASSAY_SIM
#include "assay_sim_wgmma.h"
typedef assay_sim_tensor_map tma_map;
#define TMA_MAP_PARAMETER const tma_map & /* a kernel's parameter */
#else
#include <cuda.h>
typedef CUtensorMap tma_map;
#define TMA_MAP_PARAMETER const __grid_constant__ tma_map
#endif

enum { WGMMA_THREADS = 4 * GPU_WARP, WGMMA_ROWS = 64, WGMMA_TERMS = 64, WGMMA_TILE_ALIGN = 1024 };
enum { WGMMA_TILE = WGMMA_TERMS * WGMMA_TERMS }; /* numbers of a tile of 64 rows */

/* A map of [planes][rows][columns] bf16 in device memory, for boxes of box_planes x box_rows x 64.  columns: a multiple of 8; data: of
 * 16 bytes; box_rows and box_planes 1 to 256, their product too.  cudaErrorInvalidValue: something else; cudaErrorNotSupported: the driver has no tensor maps. */
static inline cudaError_t tma_map_make(tma_map *map, const void *data, int64_t planes, int64_t rows,
                                       int64_t columns, int box_rows, int box_planes = 1)
{
    const uint64_t sizes[3] = {(uint64_t)columns, (uint64_t)rows, (uint64_t)planes};
    const uint64_t strides[2] = {(uint64_t)columns * 2, (uint64_t)(rows * columns) * 2};
    const uint32_t box[3] = {WGMMA_TERMS, (uint32_t)box_rows, (uint32_t)box_planes};
#if ASSAY_SIM
    return assay_sim_tensor_map_make(map, data, 2, 3, sizes, strides, box, 128);
#else
    static const uint32_t steps[3] = {1, 1, 1};
    typedef CUresult encode(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                            const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                            CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
    void *function =
        nullptr; /* the driver's library is not linked: a machine without it can start the program */
    cudaDriverEntryPointQueryResult found;
    const cudaError_t asked = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                               cudaEnableDefault, &found);
    if (asked != cudaSuccess)
        return asked;
    if (found != cudaDriverEntryPointSuccess || function == nullptr)
        return cudaErrorNotSupported;
    const CUresult made = ((encode *)function)(
        map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<void *>(data), (const cuuint64_t *)sizes,
        (const cuuint64_t *)strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return made == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
#endif
}

#if defined(__CUDACC__)

typedef uint64_t mbarrier;

__device__ static __forceinline__ unsigned wgmma_shared(const void *p)
{
    return (unsigned)__cvta_generic_to_shared(p);
}

/* --- barriers --------------------------------------------------------------------------------------------------- */

/* By one thread; then mbarrier_fence_init by it, and a barrier of the block. */
__device__ static __forceinline__ void mbarrier_init(mbarrier *bar, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(wgmma_shared(bar)), "r"(arrivals)
                 : "memory");
}
__device__ static __forceinline__ void mbarrier_fence_init(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ static __forceinline__ void mbarrier_arrive(mbarrier *bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(wgmma_shared(bar)) : "memory");
}
/* Arrives, and announces bytes that copies will bring in this phase. */
__device__ static __forceinline__ void mbarrier_arrive_expect(mbarrier *bar, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(wgmma_shared(bar)), "r"(bytes)
                 : "memory");
}
/* Until the phase of this parity is over; at the beginning the one of parity 1 is. */
__device__ static __forceinline__ void mbarrier_wait(mbarrier *bar, int parity)
{
    unsigned over;
    do {
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(over)
                     : "r"(wgmma_shared(bar)), "r"(parity)
                     : "memory");
    } while (over == 0);
}
/* Orders this thread's writes of shared memory before later products and copies that read it.  With a range the simulator takes it for
 * writes of that range alone, which is stricter, and has less to compare. */
__device__ static __forceinline__ void proxy_fence(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ static __forceinline__ void proxy_fence(const void *, int)
{
    proxy_fence();
}
/* Barrier 1 to 15 of n threads, whole warps: sync waits for the others, arrive does not. */
__device__ static __forceinline__ void named_barrier_sync(int id, int n)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(n) : "memory");
}
__device__ static __forceinline__ void named_barrier_arrive(int id, int n)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(n) : "memory");
}
/* One lane of a whole warp. */
__device__ static __forceinline__ bool elect_one(void)
{
    unsigned me;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(me));
    return me != 0;
}
/* Registers of each thread from here on, a multiple of 8 from 24 to 256; by all warps of a warpgroup. */
template <int REGISTERS> __device__ static __forceinline__ void setmaxnreg_inc(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS> __device__ static __forceinline__ void setmaxnreg_dec(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

/* --- copies, each by one thread --------------------------------------------------------------------------------- */

/* The box that begins at row, column, plane; its bytes, those outside the map too, are of the barrier's phase. */
__device__ static __forceinline__ void tma_load(bf16 *tile, const tma_map *map, mbarrier *bar, int column,
                                                int row, int plane)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, "
                 "{%3, %4, %5}], [%2];" ::"r"(wgmma_shared(tile)),
                 "l"(map), "r"(wgmma_shared(bar)), "r"(column), "r"(row), "r"(plane)
                 : "memory");
}
/* What lies outside the map is not written. */
__device__ static __forceinline__ void tma_store(const tma_map *map, const bf16 *tile, int column, int row,
                                                 int plane)
{
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
                 "r"(wgmma_shared(tile)), "r"(column), "r"(row), "r"(plane)
                 : "memory");
}
__device__ static __forceinline__ void tma_store_commit(void)
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/* Until at most N groups of this thread still read their tiles; until at most N are under way. */
template <int N> __device__ static __forceinline__ void tma_store_wait_read(void)
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}
template <int N> __device__ static __forceinline__ void tma_store_wait(void)
{
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory");
}

#else

typedef assay_sim_mbarrier mbarrier;

static inline void mbarrier_init(mbarrier *bar, int arrivals, int line = ASSAY_SIM_HERE)
{
    assay_sim_mbarrier_init(bar, arrivals, line);
}
static inline void mbarrier_fence_init(int line = ASSAY_SIM_HERE)
{
    assay_sim_mbarrier_fence_init(line);
}
static inline void mbarrier_arrive(mbarrier *bar, int line = ASSAY_SIM_HERE)
{
    assay_sim_mbarrier_arrive(bar, 0, line);
}
static inline void mbarrier_arrive_expect(mbarrier *bar, int bytes, int line = ASSAY_SIM_HERE)
{
    assay_sim_mbarrier_arrive(bar, bytes, line);
}
static inline void mbarrier_wait(mbarrier *bar, int parity, int line = ASSAY_SIM_HERE)
{
    assay_sim_mbarrier_wait(bar, parity, line);
}
static inline void proxy_fence(int line = ASSAY_SIM_HERE)
{
    assay_sim_proxy_fence(nullptr, 0, line);
}
static inline void proxy_fence(const void *p, int bytes, int line = ASSAY_SIM_HERE)
{
    assay_sim_proxy_fence(p, static_cast<size_t>(bytes), line);
}
static inline void named_barrier_sync(int id, int n, int line = ASSAY_SIM_HERE)
{
    assay_sim_named_barrier(id, n, 1, line);
}
static inline void named_barrier_arrive(int id, int n, int line = ASSAY_SIM_HERE)
{
    assay_sim_named_barrier(id, n, 0, line);
}
static inline bool elect_one(int line = ASSAY_SIM_HERE)
{
    return assay_sim_elect(line) != 0;
}
template <int REGISTERS> static inline void setmaxnreg_inc(int line = ASSAY_SIM_HERE)
{
    assay_sim_set_registers(REGISTERS, 1, line);
}
template <int REGISTERS> static inline void setmaxnreg_dec(int line = ASSAY_SIM_HERE)
{
    assay_sim_set_registers(REGISTERS, 0, line);
}
static inline void tma_load(bf16 *tile, const tma_map *map, mbarrier *bar, int column, int row, int plane,
                            int line = ASSAY_SIM_HERE)
{
    const int at[3] = {column, row, plane};
    assay_sim_tensor_load(tile, map, bar, at, 3, line);
}
static inline void tma_store(const tma_map *map, const bf16 *tile, int column, int row, int plane,
                             int line = ASSAY_SIM_HERE)
{
    const int at[3] = {column, row, plane};
    assay_sim_tensor_store(map, tile, at, 3, line);
}
static inline void tma_store_commit(int line = ASSAY_SIM_HERE)
{
    assay_sim_tensor_store_commit(line);
}
template <int N> static inline void tma_store_wait_read(int line = ASSAY_SIM_HERE)
{
    assay_sim_tensor_store_wait(N, 1, line);
}
template <int N> static inline void tma_store_wait(int line = ASSAY_SIM_HERE)
{
    assay_sim_tensor_store_wait(N, 0, line);
}

#endif

#endif
