/* Tile products, asynchronous copies to tiles and functions of a whole warp: who fills a tile, and who multiplies it or writes to it
 * again. */
#include "races.h"

#include "gpu/device.cuh"
#include "gpu/mma.cuh"
#include "gpu/wgmma.cuh"

#define KERNEL(name, grid, block, bytes)                                                                     \
    __global__ void name(int *x, int *y);                                                                    \
    LAUNCH_CASE(name, grid, block, bytes)                                                                    \
    __global__ void name([[maybe_unused]] int *x, [[maybe_unused]] int *y)

enum { D = 64, ROWS = 16, CHUNKS = ROWS * D / 8, TILE = ROWS * D };

/* Every thread of two warps copies its part of both tiles. */
#define COPY(to, from)                                                                                       \
    for (unsigned i = threadIdx.x; i < CHUNKS; i += blockDim.x)                                              \
    mma_copy16(mma_chunk<D>(to, (int)i / (D / 8), (int)i % (D / 8)), (from) + 4 * i, true)

__device__ static void store(int *y, const float (&sum)[1][2][4])
{
    for (int j = 0; j < 2; ++j)
        for (int e = 0; e < 4; ++e)
            y[(threadIdx.x * 2 + (unsigned)j) * 4 + (unsigned)e] = (int)sum[0][j][e];
}

KERNEL(tiles_behind_a_barrier, 2, 64, 2 * TILE * 2)
{
    GPU_DYNAMIC_SHARED(bf16, tiles);
    float sum[1][2][4] = {};
    mma_rows<D, 1> rows;
    for (int step = 0; step < 2; ++step) {
        COPY(tiles, x);
        COPY(tiles + TILE, x);
        mma_commit();
        mma_wait<0>();
        __syncthreads();
        mma_load_rows(&rows, tiles, 0);
        mma_abt(sum, rows, tiles + TILE);
        __syncthreads();
    }
    store(y + 512 * blockIdx.x, sum);
}

KERNEL(rows_before_barrier, 1, 64, 2 * TILE * 2)
{
    GPU_DYNAMIC_SHARED(bf16, tiles);
    mma_rows<D, 1> rows;
    COPY(tiles, x); /* b: rows_before_barrier */
    mma_commit();
    mma_wait<0>();
    mma_load_rows(&rows, tiles, 0); /* a: rows_before_barrier */
    y[threadIdx.x] = (int)rows.r[0][0][0];
}

KERNEL(tile_filled_by_threads, 1, 64, 2 * TILE * 2)
{
    GPU_DYNAMIC_SHARED(bf16, tiles);
    float sum[1][2][4] = {};
    mma_rows<D, 1> rows;
    COPY(tiles, x);
    mma_commit();
    mma_wait<0>();
    __syncthreads();
    mma_load_rows(&rows, tiles, 0);
    for (unsigned i = threadIdx.x; i < TILE; i += blockDim.x)
        tiles[TILE + i] = __float2bfloat16_rn(1.0f); /* b: tile_filled_by_threads */
    mma_abt(sum, rows, tiles + TILE);                /* a: tile_filled_by_threads */
    store(y, sum);
}

KERNEL(next_copy_too_early, 1, 64, 2 * TILE * 2)
{
    GPU_DYNAMIC_SHARED(bf16, tiles);
    float sum[1][2][4] = {};
    mma_rows<D, 1> rows;
    COPY(tiles, x);
    COPY(tiles + TILE, x);
    mma_commit();
    mma_wait<0>();
    __syncthreads();
    mma_load_rows(&rows, tiles, 0);
    mma_abt(sum, rows, tiles + TILE); /* a: next_copy_too_early */
    COPY(tiles + TILE, x);            /* b: next_copy_too_early */
    mma_commit();
    mma_wait<0>();
    store(y, sum);
}

KERNEL(copy_of_what_a_block_writes, 2, 64, 2 * TILE * 2)
{
    GPU_DYNAMIC_SHARED(bf16, tiles);
    if (blockIdx.x == 0)
        x[threadIdx.x] = 1; /* b: copy_of_what_a_block_writes */
    else
        COPY(tiles, x); /* a: copy_of_what_a_block_writes */
    mma_commit();
    mma_wait<0>();
}

KERNEL(sums_of_warps, 2, 64, 0)
{
    int before = 0;
    const float sum = gpu_warp_sum((float)x[threadIdx.x]);
    const int place = gpu_warp_prefix(x[threadIdx.x], 1000, &before);
    y[64 * blockIdx.x + threadIdx.x] = (int)sum + place + before;
}

/* The lanes meet in a sum; what they write before and read behind it is ordered. */
KERNEL(warp_sum_orders_lanes, 1, 32, 0)
{
    GPU_SHARED(int, s, 32);
    s[threadIdx.x] = x[threadIdx.x];
    const float sum = gpu_warp_sum(1.0f);
    y[threadIdx.x] = s[31 - threadIdx.x] + (int)sum;
}

KERNEL(warp_sum_orders_no_other_warp, 1, 64, 0)
{
    GPU_SHARED(int, s, 64);
    s[threadIdx.x] = x[threadIdx.x]; /* b: warp_sum_orders_no_other_warp */
    const float sum = gpu_warp_sum(1.0f);
    y[threadIdx.x] = s[63 - threadIdx.x] + (int)sum; /* a: warp_sum_orders_no_other_warp */
}

/* Two tiles of ones, multiplied by a warpgroup: a warp's results go where its own 16 rows of the first were. */
__device__ static bf16 *fill(void *shared)
{
    bf16 *tiles = wgmma_tiles(shared);
    for (unsigned i = threadIdx.x; i < 2 * WGMMA_TILE; i += blockDim.x)
        tiles[i] = __float2bfloat16_rn(1.0f);
    proxy_fence();
    __syncthreads();
    return tiles;
}
#define PUT(tiles, c)                                                                                        \
    *mma_chunk<WGMMA_TERMS>(tiles, wgmma_row((int)threadIdx.x, 0), 0) = __float2bfloat16_rn((c)[0][0])

KERNEL(rows_of_a_product_behind_a_barrier, 1, WGMMA_THREADS, 2 * WGMMA_TILE * 2 + WGMMA_TILE_ALIGN)
{
    GPU_DYNAMIC_SHARED(unsigned char, shared);
    bf16 *tiles = fill(shared);
    float c[8][4] = {};
    wgmma_fence();
    wgmma_multiply<false, false>(c, tiles, tiles + WGMMA_TILE, false);
    wgmma_commit();
    wgmma_wait<0>(c);
    named_barrier_sync(1, WGMMA_THREADS);
    if (threadIdx.x % 4 == 0)
        PUT(tiles, c);
}

/* The last warp writes to rows that no result of the others is made of; they have waited, and nothing says so. */
KERNEL(rows_of_a_product_too_early, 1, WGMMA_THREADS, 2 * WGMMA_TILE * 2 + WGMMA_TILE_ALIGN)
{
    GPU_DYNAMIC_SHARED(unsigned char, shared);
    bf16 *tiles = fill(shared);
    float c[8][4] = {};
    wgmma_fence();
    wgmma_multiply<false, false>(c, tiles, tiles + WGMMA_TILE, false);
    wgmma_commit();
    wgmma_wait<0>(c); /* b: rows_of_a_product_too_early */
    if (threadIdx.x / GPU_WARP == 3 && threadIdx.x % 4 == 0)
        PUT(tiles, c); /* a: rows_of_a_product_too_early */
}

#define CASE(name, words)                                                                                    \
    {                                                                                                        \
#name, "race", words, __FILE__, run_##name                                                           \
    }
#define FREE(name)                                                                                           \
    {                                                                                                        \
#name, nullptr, "", __FILE__, run_##name                                                             \
    }
const race_case RACES_OF_TILES[] = {
    FREE(tiles_behind_a_barrier),
    CASE(rows_before_barrier, "of two threads of a block"),
    CASE(tile_filled_by_threads, "of two threads of a block"),
    CASE(next_copy_too_early, "of two threads of a block"),
    CASE(copy_of_what_a_block_writes, "of two blocks of a grid"),
    FREE(sums_of_warps),
    FREE(warp_sum_orders_lanes),
    CASE(warp_sum_orders_no_other_warp, "of two threads of a block"),
    FREE(rows_of_a_product_behind_a_barrier),
    CASE(rows_of_a_product_too_early, "of two threads of a block"),
    {},
};
