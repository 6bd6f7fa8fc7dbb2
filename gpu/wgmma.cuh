/* Matrix units of sm_90a: tile products of a warpgroup, tile copies by the tensor memory accelerator, and the barriers between them.
 * For *_sm90.cu alone, which are compiled for 90a (gpu/cuda/CMakeLists.txt).  bf16 operands, fp32 results.
 *
 *   tiles       [rows][64] bf16 in dynamic shared memory, from a multiple of 1024 bytes on (wgmma_tiles), with the 128-byte swizzle: chunk c
 *               of 8 numbers of row r lies where mma_chunk<64> says
 *   operands    rows: a tile [rows][64], whose columns are the 64 terms; columns: tiles [64][64], whose rows are the 64 terms, one
 *               tile for every 64 rows of the operand (what a device calls K-major and MN-major)
 *   factors     unsigned[4][4] of each thread, pairs of bf16: a first operand of 64 rows and 64 terms in registers, which wgmma_round
 *               makes of columns of a result; like results they must not be touched until the wait (wgmma_hold)
 *   results     float[N / 8][4] of each thread of a warpgroup (4 warps, 128 threads that begin at a multiple of 128): 64 rows, N
 *               columns; wgmma_row and wgmma_column say which a register holds
 *   wgmma_*     fence, before the first product and after registers were written; multiply; commit; wait<N>: until at most N groups
 *               are under way.  Until then tiles must stay and results must not be touched
 *
 * Copies, barriers and registers of a warpgroup: gpu/tma.cuh.
 *
 * In the simulator: gpu/sim/include/assay_sim_wgmma.h, which reports what a device would do wrongly in silence.  Descriptors and
 * instructions: PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions", "Tensor copies". */
#ifndef GPU_WGMMA_CUH
#define GPU_WGMMA_CUH

#include "gpu/tma.cuh"

/* The row and the column of register e of columns 8 j, ... of a warpgroup's result. */
__device__ static __forceinline__ int wgmma_row(int thread, int e)
{
    return thread % WGMMA_THREADS / GPU_WARP * 16 + mma_row(thread % GPU_WARP, e);
}
__device__ static __forceinline__ int wgmma_column(int thread, int j, int e)
{
    return j * 8 + mma_column(thread % GPU_WARP, e);
}

/* The warpgroup of a thread, from 0 on.  From one lane to all, so that the compiler knows that a warp has one: what names the tiles of a
 * product is then worked out by the warp's uniform unit, once, and not by every lane and moved there. */
__device__ static __forceinline__ int wgmma_group(void)
{
    const int group = (int)threadIdx.x / WGMMA_THREADS;
#if defined(__CUDACC__)
    return __shfl_sync(gpu_all_lanes, group, 0);
#else
    return group;
#endif
}

/* The first place for a tile at or behind p: up to WGMMA_TILE_ALIGN - 16 bytes are left over. */
__device__ static __forceinline__ bf16 *wgmma_tiles(void *p)
{
    const uintptr_t at = (uintptr_t)p;
    return (bf16 *)((char *)p + ((at + WGMMA_TILE_ALIGN - 1) / WGMMA_TILE_ALIGN * WGMMA_TILE_ALIGN -
                                 at)); /* GPU_DYNAMIC_SHARED */
}

/* 64 columns of a result, rounded to bf16, as the first operand of a product. */
template <int NT>
__device__ static __forceinline__ void wgmma_round(unsigned (&a)[4][4], const float (&p)[NT][4],
                                                   int first_column)
{
    GPU_UNROLL
    for (int i = 0; i < 16; ++i) {
        const int j = first_column / 8 + i / 4 * 2 + i % 4 / 2, e = i % 2 * 2;
        const __nv_bfloat162 two = __floats2bfloat162_rn(p[j][e], p[j][e + 1]);
        memcpy(&a[i / 4][i % 4], &two, sizeof two);
    }
}

#if defined(__CUDACC__)

/* What names a tile to the matrix units: address, distances and swizzle, in units of 16 bytes.  Rows: groups of 8 rows are 1024 bytes
 * apart.  Columns: groups of 8 terms are, and the next 64 rows of the operand one tile.  Steps of 16 terms are added to the lower
 * half, which nothing carries out of: one addition of 32 bits instead of two. */
typedef struct wgmma_tile_name {
    unsigned low;
} wgmma_tile_name;
__device__ static __forceinline__ wgmma_tile_name wgmma_name(const bf16 *tile, bool columns)
{
    const unsigned leading = columns ? WGMMA_TILE * 2 / 16 : 1;
    return {(wgmma_shared(tile) & 0x3ffff) >> 4 | leading << 16};
}
/* Of terms 16 step, ...: 32 bytes of a row on, or 16 rows of 128 bytes. */
__device__ static __forceinline__ uint64_t wgmma_descriptor(wgmma_tile_name name, bool columns, int step)
{
    const uint64_t swizzle_128 = 1, stride = 1024 / 16;
    return name.low + (unsigned)(step * (columns ? 2048 : 32) / 16) | stride << 32 | swizzle_128 << 62;
}

#define WGMMA_FOUR(c, j) "+f"(c[j][0]), "+f"(c[j][1]), "+f"(c[j][2]), "+f"(c[j][3])
#define WGMMA_SIXTEEN(c, j) WGMMA_FOUR(c, j), WGMMA_FOUR(c, j + 1), WGMMA_FOUR(c, j + 2), WGMMA_FOUR(c, j + 3)

/* 16 terms; a: in a tile, or registers. */
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

template <bool B_COLUMNS>
__device__ static __forceinline__ void wgmma_16(float (&c)[8][4], const unsigned (&a)[4], uint64_t b, int add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
                 "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, {%32, %33, %34, %35}, %36, p, "
                 "1, 1, %38;\n}"
                 : WGMMA_SIXTEEN(c, 0), WGMMA_SIXTEEN(c, 4)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"((int)B_COLUMNS));
}
template <bool B_COLUMNS>
__device__ static __forceinline__ void wgmma_16(float (&c)[16][4], const unsigned (&a)[4], uint64_t b,
                                                int add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
                 "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, "
                 "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, "
                 "%56, %57, %58, %59, %60, %61, %62, %63}, {%64, %65, %66, %67}, %68, p, 1, 1, %70;\n}"
                 : WGMMA_SIXTEEN(c, 0), WGMMA_SIXTEEN(c, 4), WGMMA_SIXTEEN(c, 8), WGMMA_SIXTEEN(c, 12)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"((int)B_COLUMNS));
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
    const wgmma_tile_name of_a = wgmma_name(a, A_COLUMNS), of_b = wgmma_name(b, B_COLUMNS);
#pragma unroll
    for (int s = 0; s < WGMMA_TERMS / 16; ++s)
        wgmma_16<A_COLUMNS, B_COLUMNS>(c, wgmma_descriptor(of_a, A_COLUMNS, s),
                                       wgmma_descriptor(of_b, B_COLUMNS, s), s > 0 || add);
}
/* The same, A in registers. */
template <bool B_COLUMNS, int NT>
__device__ static __forceinline__ void wgmma_multiply(float (&c)[NT][4], const unsigned (&a)[4][4],
                                                      const bf16 *b, bool add)
{
    const wgmma_tile_name of_b = wgmma_name(b, B_COLUMNS);
#pragma unroll
    for (int s = 0; s < WGMMA_TERMS / 16; ++s)
        wgmma_16<B_COLUMNS>(c, a[s], wgmma_descriptor(of_b, B_COLUMNS, s), s > 0 || add);
}
/* Behind the wait: the compiler may write the registers of a first operand from here on. */
__device__ static __forceinline__ void wgmma_hold(unsigned (&a)[4][4])
{
#pragma unroll
    for (int s = 0; s < 4; ++s)
        asm volatile("" : "+r"(a[s][0]), "+r"(a[s][1]), "+r"(a[s][2]), "+r"(a[s][3])::"memory");
}

#else

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
    const assay_sim_wgmma what = {&c[0][0], a, b, NT * 8, A_COLUMNS, B_COLUMNS, add, nullptr};
    assay_sim_wgmma_product(&what, line);
}
template <bool B_COLUMNS, int NT>
static inline void wgmma_multiply(float (&c)[NT][4], const unsigned (&a)[4][4], const bf16 *b, bool add,
                                  int line = ASSAY_SIM_HERE)
{
    static_assert(NT == 8 || NT == 16, "64 or 128 columns");
    const assay_sim_wgmma what = {&c[0][0], nullptr, b, NT * 8, false, B_COLUMNS, add, &a[0][0]};
    assay_sim_wgmma_product(&what, line);
}
static inline void wgmma_hold(unsigned (&)[4][4])
{
}

#endif

#endif
