/* Grouped products, one for each expert: what their kernels share, k2, on matrix units (grouped_mma.cu) and in tiles
 * (grouped_tiles.cu), and k3 (grouped_sm90.cu). */
#ifndef GPU_OPS_GROUPED_CUH
#define GPU_OPS_GROUPED_CUH

#include "gpu/ops/product.cuh"

#include <limits.h>

/* Rows of an expert as the kernels read its count: not below 0, and no more than are left.  Counts in device memory are not
 * checked before the launch; whatever they say, no kernel leaves its buffers. */
__device__ static __forceinline__ int64_t grouped_count(int64_t count, int64_t left)
{
    return count < 0 ? 0 : count < left ? count : left;
}

/* The counts, one for each expert, and how many rows there are. */
typedef struct grouped_rows {
    const int64_t *count;
    int experts, rows;
} grouped_rows;

/* Rows of one expert: all, or those of a tile. */
typedef struct grouped_range {
    int expert, first, n;
} grouped_range;

static inline grouped_rows grouped_rows_of(const product *p)
{
    return {p->tokens_per_expert, (int)p->experts, (int)gpu_tensor_row_count(p->a)};
}

/* Blocks for tiles of rows: every expert, and what nobody has, may begin one that is not full. */
static inline unsigned grouped_most_tiles(grouped_rows all, int tile)
{
    return (unsigned)(all.rows / tile + (all.experts < all.rows ? all.experts : all.rows) + 1);
}

/* The rows of a tile.  Tiles begin anew at every expert; behind the last expert's come those of rows that nobody has, with the
 * number of experts in place of one.  n is 0, or less, where there are no more tiles. */
template <int TILE>
__device__ static __forceinline__ grouped_range grouped_rows_of_tile_searched(grouped_rows all, int tile)
{
    int row = 0, tiles = 0, before, tiles_before;
    for (int base = 0; base < all.experts; base += GPU_WARP) {
        const int e = base + (int)threadIdx.x % GPU_WARP, left = all.rows - row;
        const int mine = e < all.experts ? (int)grouped_count(all.count[e], left) : 0;
        const int end = gpu_warp_prefix(mine, left, &before), n = end - before;
        const int tile_end = tiles + gpu_warp_prefix((n + TILE - 1) / TILE, INT_MAX / 2, &tiles_before);
        const unsigned found = __ballot_sync(gpu_all_lanes, (int)(tile < tile_end));
        if (found != 0) { /* the first that ends behind it */
            const int lane = __ffs((int)found) - 1;
            const int first = (tile - tiles - tiles_before) * TILE;
            const int in = __shfl_sync(gpu_all_lanes, first, lane);
            return {base + lane, row + __shfl_sync(gpu_all_lanes, before, lane) + in,
                    min(TILE, __shfl_sync(gpu_all_lanes, n, lane) - in)};
        }
        row += __shfl_sync(gpu_all_lanes, end, GPU_WARP - 1);
        tiles = __shfl_sync(gpu_all_lanes, tile_end, GPU_WARP - 1);
    }
    const int first = row + (tile - tiles) * TILE;
    return {all.experts, first, min(TILE, all.rows - first)};
}

#if ASSAY_SIM && !defined(ASSAY_OPS_RACES)
/* One expert after the other, once for the warp (tests/sim/test_lanes.cu).  Not where each lane's reads are looked at. */
struct grouped_search {
    grouped_rows all;
    int tile;
    grouped_range found;
};
template <int TILE> static void grouped_search_together(void *const *lane)
{
    const grouped_search &s = *(const grouped_search *)lane[0];
    int row = 0, tile = s.tile, e = 0, n = 0;
    for (; e < s.all.experts; ++e) {
        n = (int)grouped_count(s.all.count[e], s.all.rows - row);
        const int tiles = (n + TILE - 1) / TILE;
        if (tile < tiles)
            break;
        tile -= tiles;
        row += n;
    }
    const int first = tile * TILE, left = (e < s.all.experts ? n : s.all.rows - row) - first;
    for (int l = 0; l < GPU_WARP; ++l)
        ((grouped_search *)lane[l])->found = {e, row + first, min(TILE, left)};
}
template <int TILE> static inline grouped_range grouped_rows_of_tile(grouped_rows all, int tile)
{
    grouped_search s = {all, tile, {}};
    assay_sim_warp_call(grouped_search_together<TILE>, &s, ASSAY_SIM_HERE);
    return s.found;
}
#else
template <int TILE>
__device__ static __forceinline__ grouped_range grouped_rows_of_tile(grouped_rows all, int tile)
{
    return grouped_rows_of_tile_searched<TILE>(all, tile);
}
#endif

/* All rows of an expert. */
__device__ static __forceinline__ grouped_range grouped_rows_of_expert(grouped_rows all, int expert)
{
    int64_t before = 0;
    for (int e = (int)threadIdx.x % GPU_WARP; e < expert; e += GPU_WARP)
        before += grouped_count(all.count[e], all.rows);
    before = gpu_warp_sum(before);
    const int first = (int)(before < all.rows ? before : all.rows);
    return {expert, first, (int)grouped_count(all.count[expert], all.rows - first)};
}

/* Two neighbours of a weight gradient.  stored: the product is rounded to bf16 first; accumulate: it is added to what is there. */
__device__ static __forceinline__ void grouped_put_gradient(float *at, float first, float second, bool stored,
                                                            bool accumulate)
{
    float2 *to = (float2 *)at;
    if (stored) {
        first = __bfloat162float(__float2bfloat16_rn(first));
        second = __bfloat162float(__float2bfloat16_rn(second));
    }
    const float2 before = accumulate ? *to : make_float2(0.0f, 0.0f);
    *to = accumulate ? make_float2(first + before.x, second + before.y) : make_float2(first, second);
}

/* Rows of a tile that nobody has, in the block's columns: NaN. */
template <int TILE, int THREADS, class T>
__device__ static __forceinline__ void grouped_put_nobodys(T *out, int rows, int columns, int n)
{
    for (int i = (int)threadIdx.x; i < rows * TILE; i += THREADS)
        if (i % TILE < columns)
            gpu_store(out + (int64_t)(i / TILE) * n + i % TILE, NAN);
}

/* Whether k2 takes the product of all experts on matrix units: bf16, 1 to 65535 experts, any width up to 65535 tiles. */
bool gpu_grouped_takes_mma(const product *p);
/* In one launch; for an expert without rows nothing is added, or zeros are written. */
assay_status gpu_grouped_mma(const gpu_work *w, const product *p);
/* Whether it copies, and k3 can copy, 16 bytes at a time: widths that are multiples of 8, addresses of 16. */
bool gpu_grouped_in_eights(const product *p);

/* The same in F32, of any width up to 65535 tiles. */
bool gpu_grouped_takes_tiles(const product *p);
assay_status gpu_grouped_tiles(const gpu_work *w, const product *p);

/* The same of k3, whose code is for capability 9.0 alone: on another device gpu_grouped_takes_sm90 says no, and gpu_grouped_sm90
 * refuses (ASSAY_UNSUPPORTED). */
bool gpu_grouped_takes_sm90(const gpu_ctx *ctx, const product *p);
assay_status gpu_grouped_sm90(const gpu_work *w, const product *p);

#endif
