/* What the kernels of the backward on matrix units share: rows, masks, P and dS in registers, terms that are not finite. */
#ifndef GPU_OPS_ATTENTION_BWD_MMA_CUH
#define GPU_OPS_ATTENTION_BWD_MMA_CUH

#include "gpu/ops/attention_mma.cuh"

/* What a row brings to P and dS. */
typedef struct attention_bwd_known {
    float lse2, delta; /* lse log2(e), D */
} attention_bwd_known;

/* 32 bytes, which tiles of rows copy asynchronously. */
typedef struct attention_bwd_row {
    int64_t first, last; /* positions of the keys that it sees */
    attention_bwd_known known;
    int near_first, near_last; /* the same as far as an int holds them (attention_position) */
} attention_bwd_row;
static_assert(sizeof(attention_bwd_row) == 32, "two asynchronous copies");

/* Whether this thread has copied a number that is not finite.  CHUNKS of a row were dealt to the threads (attention_copy_both:
 * as many as the wider tensor has), of which the tile keeps D / 8: a thread may look before the barrier at what it has copied itself alone. */
template <int D, int ROWS, int CHUNKS = D / 8>
__device__ static __forceinline__ bool attention_unbounded(bf16 *tile)
{
    unsigned any = 0;
    for (int i = (int)threadIdx.x; i < ROWS * CHUNKS; i += ATTENTION_MMA_THREADS)
        if (CHUNKS == D / 8 || i % CHUNKS < D / 8)
            any |= attention_unbounded_bits(
                *(const uint4 *)attention_chunk<D, ROWS>(tile, i / CHUNKS, i % CHUNKS));
    return any != 0;
}

/* acc += round(P) B by one fma for each pair that `sees(h, x)`, row h of the lane and row x of B, for a B that is not finite: a
 * product with the tile would meet its hidden rows, too, with the factor 0.  mine: room of the warp for P. */
template <int D, int NT, class F>
__device__ static __forceinline__ void
attention_add_seen(attention_sums<D, 1> *acc, const float (&p)[1][NT][4], bf16 *tile, bf16 *mine, F sees)
{
    constexpr int PART = attention_part(D);
    const int lane = (int)threadIdx.x % GPU_WARP;
    GPU_UNROLL
    for (int j = 0; j < NT; ++j)
        GPU_UNROLL
    for (int e = 0; e < 4; ++e)
        gpu_store(mine + mma_row(lane, e) * NT * 8 + j * 8 + mma_column(lane, e), p[0][j][e]);
    __syncwarp();
    GPU_NO_UNROLL
    for (int x = 0; x < NT * 8; ++x)
        GPU_UNROLL
    for (int h = 0; h < 2; ++h) {
        if (!sees(h, x))
            continue;
        const float weight = gpu_load(mine + mma_row(lane, 2 * h) * NT * 8 + x);
        GPU_UNROLL
        for (int i = 0; i < attention_parts(D); ++i)
            GPU_UNROLL
        for (int d = 0; d < PART / 8; ++d) {
            float *of = acc->part[i][0][d] + 2 * h;
            const bf16 *value = mma_chunk<PART>(tile + i * NT * 8 * PART, x, d) + mma_column(lane, 0);
            of[0] = fmaf(weight, gpu_load(value), of[0]);
            of[1] = fmaf(weight, gpu_load(value + 1), of[1]);
        }
    }
    __syncwarp();
}

/* Bit 4 j + e: `sees(h, x)` of the row and the column that register e of tile j has. */
template <int NT, class F> __device__ static __forceinline__ unsigned attention_seen_bits(F sees)
{
    static_assert(NT <= 8, "32 bits");
    const int lane = (int)threadIdx.x % GPU_WARP;
    unsigned bits = 0;
    GPU_NO_UNROLL
    for (int j = 0; j < NT; ++j)
        GPU_UNROLL
    for (int e = 0; e < 4; ++e)
        bits |= (sees(e >> 1, j * 8 + mma_column(lane, e)) ? 1u : 0u) << (4 * j + e);
    return bits;
}

/* In place of S and dP: P and dS; 0 where not `all` are seen nor bit 4 j + e of `seen` is set.  row(h, x): whose they are. */
template <int NT, class F>
__device__ static __forceinline__ void attention_bwd_pairs(float (&p)[1][NT][4], float (&ds)[1][NT][4],
                                                           float scale2, bool all, unsigned seen, F row)
{
    const int lane = (int)threadIdx.x % GPU_WARP;
    auto pairs = [&](auto is_seen) {
        GPU_UNROLL
        for (int j = 0; j < NT; ++j)
            GPU_UNROLL
        for (int e = 0; e < 4; ++e) {
            const attention_bwd_known r = row(e >> 1, j * 8 + mma_column(lane, e));
            const float prob = exp2f(fmaf(p[0][j][e], scale2, -r.lse2));
            const float slope = prob * (ds[0][j][e] - r.delta);
            p[0][j][e] = is_seen(4 * j + e) ? prob : 0.0f;
            ds[0][j][e] = is_seen(4 * j + e) ? slope : 0.0f;
        }
    };
    if (all)
        pairs([](int) { return true; });
    else
        pairs([&](int bit) { return (seen >> bit & 1u) != 0; });
}

/* attention_query in 32 bits (gpu_attention_takes_mma). */
__device__ static __forceinline__ int64_t attention_bwd_query(const attention_args &a, int b, int group,
                                                              int row)
{
    const int per_group = (int)(a.heads / a.groups), token = row / per_group;
    if (token >= (int)a.seq_q)
        return -1;
    return (token * a.batch + b) * a.heads + group * per_group + (row - token * per_group);
}

/* attention_copy_rows of two tensors whose rows have the same numbers. */
template <int D, int DV, int ROWS, class F>
__device__ static __forceinline__ void attention_copy_both(bf16 *x_tile, const bf16 *x, int64_t x_width,
                                                           bf16 *y_tile, const bf16 *y, int64_t y_width,
                                                           F row)
{
    static_assert(D >= DV, "chunks are those of x");
    constexpr int CHUNKS = D / 8;
    for (int i = (int)threadIdx.x; i < ROWS * CHUNKS; i += ATTENTION_MMA_THREADS) {
        const int r = i / CHUNKS, c = i % CHUNKS;
        const int64_t at = row(r);
        const bool has_x = at >= 0 && c * 8 < x_width, has_y = at >= 0 && c * 8 < y_width;
        mma_copy16(attention_chunk<D, ROWS>(x_tile, r, c), has_x ? x + at * x_width + c * 8 : x, has_x);
        if (c < DV / 8)
            mma_copy16(attention_chunk<DV, ROWS>(y_tile, r, c), has_y ? y + at * y_width + c * 8 : y, has_y);
    }
}

#endif
