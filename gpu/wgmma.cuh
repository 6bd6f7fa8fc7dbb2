/* Matrix units of sm_90a: tile products of a warpgroup, tile copies by the tensor memory accelerator, and the barriers between them.
 * For *_sm90.cu alone, which are compiled for 90a (gpu/cuda/CMakeLists.txt).  bf16 operands, fp32 results.
 *
 *   tiles       [rows][64] bf16 in dynamic shared memory, from a multiple of 1024 bytes on (wgmma_tiles), with the 128-byte swizzle: chunk c
 *               of 8 numbers of row r lies where mma_chunk<64> says
 *   operands    rows: a tile [rows][64], whose columns are the 64 terms; columns: tiles [64][64], whose rows are the 64 terms, one
 *               tile for every 64 rows of the operand (what a device calls K-major and MN-major)
 *   results     float[N / 8][4] of each thread of a warpgroup (4 warps, 128 threads that begin at a multiple of 128): 64 rows, N
 *               columns; wgmma_row and wgmma_column say which a register holds
 *   wgmma_*     fence, before the first product and after registers were written; multiply; commit; wait<N>: until at most N groups
 *               are under way.  Until then tiles must stay and results must not be touched
 *   mbarrier_*  a phase ends when all arrivals have come and all bytes that were announced; parity of a phase: its number's last bit
 *   tma_*       boxes of a tensor map to and from tiles: [planes][rows][columns] bf16, zeros outside
 *   named_barrier_*, setmaxnreg_*, elect_one, proxy_fence
 *
 * In the simulator: gpu/sim/include/assay_sim_wgmma.h, which reports what a device would do wrongly in silence.  Descriptors and
 * instructions: PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions", "Tensor copies". */
#ifndef GPU_WGMMA_CUH
#define GPU_WGMMA_CUH

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

/* The row and the column of register e of columns 8 j, ... of a warpgroup's result. */
__device__ static __forceinline__ int wgmma_row(int thread, int e)
{
    return thread % WGMMA_THREADS / GPU_WARP * 16 + mma_row(thread % GPU_WARP, e);
}
__device__ static __forceinline__ int wgmma_column(int thread, int j, int e)
{
    return j * 8 + mma_column(thread % GPU_WARP, e);
}

/* The first place for a tile at or behind p: up to WGMMA_TILE_ALIGN - 16 bytes are left over. */
__device__ static __forceinline__ bf16 *wgmma_tiles(void *p)
{
    const uintptr_t at = (uintptr_t)p;
    return (bf16 *)((char *)p + ((at + WGMMA_TILE_ALIGN - 1) / WGMMA_TILE_ALIGN * WGMMA_TILE_ALIGN -
                                 at)); /* GPU_DYNAMIC_SHARED */
}

/* A map of [planes][rows][columns] bf16 in device memory, for boxes of box_rows x 64 of one plane.  columns: a multiple of 8; data: of
 * 16 bytes; box_rows 1 to 256.  cudaErrorInvalidValue: something else; cudaErrorNotSupported: the driver has no tensor maps. */
static inline cudaError_t tma_map_make(tma_map *map, const void *data, int64_t planes, int64_t rows,
                                       int64_t columns, int box_rows)
{
    const uint64_t sizes[3] = {(uint64_t)columns, (uint64_t)rows, (uint64_t)planes};
    const uint64_t strides[2] = {(uint64_t)columns * 2, (uint64_t)(rows * columns) * 2};
    const uint32_t box[3] = {WGMMA_TERMS, (uint32_t)box_rows, 1};
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
/* Orders this thread's writes of shared memory before later products and copies that read it. */
__device__ static __forceinline__ void proxy_fence(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
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

/* The box that begins at row, column of a plane; its bytes, those outside the map too, are of the barrier's phase. */
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

/* --- products --------------------------------------------------------------------------------------------------- */

/* What names a tile to the matrix units: address, distances and swizzle, in units of 16 bytes.  Rows: groups of 8 rows are 1024 bytes
 * apart.  Columns: groups of 8 terms are, and the next 64 rows of the operand one tile. */
__device__ static __forceinline__ uint64_t wgmma_descriptor(const bf16 *tile, bool columns)
{
    const uint64_t swizzle_128 = 1, leading = columns ? WGMMA_TILE * 2 / 16 : 1, stride = 1024 / 16;
    return (uint64_t)((wgmma_shared(tile) & 0x3ffff) >> 4) | leading << 16 | stride << 32 | swizzle_128 << 62;
}

#define WGMMA_FOUR(c, j) "+f"(c[j][0]), "+f"(c[j][1]), "+f"(c[j][2]), "+f"(c[j][3])
#define WGMMA_SIXTEEN(c, j) WGMMA_FOUR(c, j), WGMMA_FOUR(c, j + 1), WGMMA_FOUR(c, j + 2), WGMMA_FOUR(c, j + 3)

template <bool A_COLUMNS, bool B_COLUMNS>
__device__ static __forceinline__ void wgmma_16(float (&c)[8][4], uint64_t a, uint64_t b, int add)
{
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, p, 1, 1, %35, %36;\n}"
        : WGMMA_SIXTEEN(c, 0), WGMMA_SIXTEEN(c, 4)
        : "l"(a), "l"(b), "r"(add), "n"((int)A_COLUMNS), "n"((int)B_COLUMNS));
}
template <bool A_COLUMNS, bool B_COLUMNS>
__device__ static __forceinline__ void wgmma_16(float (&c)[16][4], uint64_t a, uint64_t b, int add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
                 "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, "
                 "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, "
                 "%56, %57, %58, %59, %60, %61, %62, %63}, %64, %65, p, 1, 1, %67, %68;\n}"
                 : WGMMA_SIXTEEN(c, 0), WGMMA_SIXTEEN(c, 4), WGMMA_SIXTEEN(c, 8), WGMMA_SIXTEEN(c, 12)
                 : "l"(a), "l"(b), "r"(add), "n"((int)A_COLUMNS), "n"((int)B_COLUMNS));
}

__device__ static __forceinline__ void wgmma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ static __forceinline__ void wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N> __device__ static __forceinline__ void wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
/* c: what the compiler may not read earlier. */
template <int N, int NT> __device__ static __forceinline__ void wgmma_wait(float (&c)[NT][4])
{
    wgmma_wait<N>();
#pragma unroll
    for (int j = 0; j < NT; ++j)
        asm volatile("" : WGMMA_FOUR(c, j)::"memory");
}

/* c [64][8 NT] (+)= A B^T over 64 terms in steps of 16; add = false: without what c held. */
template <bool A_COLUMNS, bool B_COLUMNS, int NT>
__device__ static __forceinline__ void wgmma_multiply(float (&c)[NT][4], const bf16 *a, const bf16 *b,
                                                      bool add)
{
    const uint64_t a0 = wgmma_descriptor(a, A_COLUMNS), b0 = wgmma_descriptor(b, B_COLUMNS);
#pragma unroll
    for (int s = 0; s < WGMMA_TERMS / 16; ++s) /* 16 terms on: 32 bytes of a row, or 16 rows of 128 bytes */
        wgmma_16<A_COLUMNS, B_COLUMNS>(c, a0 + s * (A_COLUMNS ? 2048 : 32) / 16,
                                       b0 + s * (B_COLUMNS ? 2048 : 32) / 16, s > 0 || add);
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
    assay_sim_proxy_fence(line);
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
static inline void wgmma_fence(int line = ASSAY_SIM_HERE)
{
    assay_sim_wgmma_fence(line);
}
static inline void wgmma_commit(int line = ASSAY_SIM_HERE)
{
    assay_sim_wgmma_commit(line);
}
template <int N> static inline void wgmma_wait(int line = ASSAY_SIM_HERE)
{
    assay_sim_wgmma_wait(N, line);
}
template <int N, int NT> static inline void wgmma_wait(float (&)[NT][4], int line = ASSAY_SIM_HERE)
{
    assay_sim_wgmma_wait(N, line);
}
template <bool A_COLUMNS, bool B_COLUMNS, int NT>
static inline void wgmma_multiply(float (&c)[NT][4], const bf16 *a, const bf16 *b, bool add,
                                  int line = ASSAY_SIM_HERE)
{
    static_assert(NT == 8 || NT == 16, "64 or 128 columns");
    const assay_sim_wgmma product = {&c[0][0], a, b, NT * 8, A_COLUMNS, B_COLUMNS, add};
    assay_sim_wgmma_product(&product, line);
}

#endif

#endif
