/* What the attention kernels on matrix units (k2) share: tiles of rows in shared memory, and which tiles of keys a block sees. */
#ifndef GPU_OPS_ATTENTION_MMA_CUH
#define GPU_OPS_ATTENTION_MMA_CUH

#include "gpu/mma.cuh"
#include "gpu/ops/attention.cuh"

enum { ATTENTION_MMA_WARPS = 4, ATTENTION_MMA_THREADS = ATTENTION_MMA_WARPS * GPU_WARP };
/* Bytes of shared memory that a block may have on every device of sm_80 and later: those of sm_86. */
enum { ATTENTION_MMA_SHARED = 99 << 10 };

/* Widths of the tiles of a call, [d] of q and k and [dv] of v, filled up with zeros: both the larger of the two, but for heads of
 * DeepSeek's multi-latent attention (192 and 128). */
typedef struct attention_mma_widths {
    int d, dv;
} attention_mma_widths;
static inline attention_mma_widths attention_mma_widths_of(int64_t d, int64_t dv)
{
    const int64_t n = d > dv ? d : dv;
    const int width = n <= 32 ? 32 : n <= 64 ? 64 : n <= 96 ? 96 : n <= 128 ? 128 : n <= 192 ? 192 : 256;
    return {width, width == 192 && dv <= 128 ? 128 : width};
}

/* Calls run<d, dv>(...) of a call's widths. */
#define ATTENTION_MMA_BY_WIDTHS(widths, run, ...)                                                            \
    ((widths).d == 32                          ? run<32, 32>(__VA_ARGS__)                                    \
     : (widths).d == 64                        ? run<64, 64>(__VA_ARGS__)                                    \
     : (widths).d == 96                        ? run<96, 96>(__VA_ARGS__)                                    \
     : (widths).d == 128                       ? run<128, 128>(__VA_ARGS__)                                  \
     : (widths).d == 192 && (widths).dv == 128 ? run<192, 128>(__VA_ARGS__)                                  \
     : (widths).d == 192                       ? run<192, 192>(__VA_ARGS__)                                  \
                                               : run<256, 256>(__VA_ARGS__))

/* Keys of a tile of that width, forward. */
__host__ __device__ constexpr int attention_mma_keys(int width)
{
    return width == 64 || width == 96 ? 64 : 32;
}

/* A tile of more than 128 columns lies in parts of 64, one behind the other: a product takes one after the other, so that
 * its rows need the registers of one. */
__host__ __device__ constexpr int attention_parts(int width)
{
    return width <= 128 ? 1 : width / 64;
}
__host__ __device__ constexpr int attention_part(int width)
{
    return width / attention_parts(width);
}

/* Chunk c of a row of a tile [ROWS][D]. */
template <int D, int ROWS> __device__ static __forceinline__ bf16 *attention_chunk(bf16 *tile, int row, int c)
{
    constexpr int PART = attention_part(D), CHUNKS = PART / 8;
    if constexpr (attention_parts(D) == 1)
        return mma_chunk<D>(tile, row, c);
    else
        return mma_chunk<PART>(tile + c / CHUNKS * (ROWS * PART), row, c % CHUNKS);
}

/* Rows of a tile as the first operand of products. */
template <int D, int MT> struct attention_rows {
    mma_rows<attention_part(D), MT> part[attention_parts(D)];
};
template <int D, int ROWS, int MT>
__device__ static __forceinline__ void attention_load_rows(attention_rows<D, MT> *a, bf16 *tile,
                                                           int first_row)
{
    GPU_UNROLL
    for (int i = 0; i < attention_parts(D); ++i)
        mma_load_rows(&a->part[i], tile + i * ROWS * attention_part(D), first_row);
}

/* c += A B^T, B a tile of 8 NT rows. */
template <int D, int MT, int NT>
__device__ static __forceinline__ void attention_abt(float (&c)[MT][NT][4], const attention_rows<D, MT> &a,
                                                     bf16 *b)
{
    GPU_UNROLL
    for (int i = 0; i < attention_parts(D); ++i)
        mma_abt(c, a.part[i], b + i * NT * 8 * attention_part(D));
}

/* The same, A rows first_row, ... of a tile [ROWS][D], of which a part at a time is in registers. */
template <int D, int ROWS, int MT, int NT>
__device__ static __forceinline__ void attention_abt_tile(float (&c)[MT][NT][4], bf16 *a, int first_row,
                                                          bf16 *b)
{
    constexpr int PART = attention_part(D);
    GPU_UNROLL
    for (int i = 0; i < attention_parts(D); ++i) {
        mma_rows<PART, MT> own;
        mma_load_rows(&own, a + i * ROWS * PART, first_row);
        mma_abt(c, own, b + i * NT * 8 * PART);
    }
}

/* 16 MT rows of results of D columns. */
template <int D, int MT> struct attention_sums {
    float part[attention_parts(D)][MT][attention_part(D) / 8][4];
};

/* c += round(P) B, B a tile of 8 KT rows. */
template <int D, int MT, int KT>
__device__ static __forceinline__ void attention_ab(attention_sums<D, MT> *c, const float (&p)[MT][KT][4],
                                                    bf16 *b)
{
    GPU_UNROLL
    for (int i = 0; i < attention_parts(D); ++i)
        mma_ab<attention_part(D)>(c->part[i], p, b + i * KT * 8 * attention_part(D));
}

/* Column of register e of tile d of part i of such a result. */
template <int D> __device__ static __forceinline__ int attention_column(int i, int d, int lane, int e)
{
    return i * attention_part(D) + d * 8 + mma_column(lane, e);
}

/* Row h of this lane of tile m of a result, times scale, to a tensor's row of `width` columns; there: whether the tensor has the row.
 * All lanes of the warp. */
template <int D, int MT>
__device__ static __forceinline__ void attention_store_row(bf16 *to, const attention_sums<D, MT> &of, int m,
                                                           int h, int64_t width, float scale, bool there)
{
    const int lane = (int)threadIdx.x % GPU_WARP;
    static_assert(attention_part(D) % 32 == 0, "four tiles of 8 columns at once");
    GPU_UNROLL
    for (int i = 0; i < attention_parts(D); ++i)
        GPU_UNROLL
    for (int d = 0; d < attention_part(D) / 8; d += 4) {
        float pair[4][2];
        GPU_UNROLL
        for (int j = 0; j < 4; ++j)
            GPU_UNROLL
        for (int e = 0; e < 2; ++e)
            pair[j][e] = scale * of.part[i][m][d + j][2 * h + e];
        const uint4 eight = mma_row_of_four(pair, lane);
        const int column = i * attention_part(D) + (d + lane % 4) * 8;
        if (there && column < width)
            gpu_write_words(to + column, eight);
    }
}

/* Lanes of a warp that hold the same rows of a result: mma_row. */
enum { ATTENTION_MMA_QUAD = 4 };

/* The neighbour's first, then that of the other pair.  The simulator computes the warp's at once, with the same bits. */
__device__ static __forceinline__ float attention_quad_max_shuffled(float v)
{
    v = fmaxf(v, __shfl_xor_sync(gpu_all_lanes, v, 1));
    return fmaxf(v, __shfl_xor_sync(gpu_all_lanes, v, 2));
}
__device__ static __forceinline__ float attention_quad_sum_shuffled(float v)
{
    v += __shfl_xor_sync(gpu_all_lanes, v, 1);
    return v + __shfl_xor_sync(gpu_all_lanes, v, 2);
}
#if ASSAY_SIM
template <bool MAX> static void attention_quads_together(void *const *lane)
{
    float v[GPU_WARP], next[GPU_WARP];
    for (int i = 0; i < GPU_WARP; ++i)
        v[i] = *(const float *)lane[i];
    for (int apart = 1; apart < ATTENTION_MMA_QUAD; apart *= 2) {
        for (int i = 0; i < GPU_WARP; ++i)
            next[i] = MAX ? fmaxf(v[i], v[i ^ apart]) : v[i] + v[i ^ apart];
        for (int i = 0; i < GPU_WARP; ++i)
            v[i] = next[i];
    }
    for (int i = 0; i < GPU_WARP; ++i)
        *(float *)lane[i] = v[i];
}
static inline float attention_quad_max(float v)
{
    assay_sim_warp_call(attention_quads_together<true>, &v, ASSAY_SIM_HERE);
    return v;
}
static inline float attention_quad_sum(float v)
{
    assay_sim_warp_call(attention_quads_together<false>, &v, ASSAY_SIM_HERE);
    return v;
}
#else
__device__ static __forceinline__ float attention_quad_max(float v)
{
    return attention_quad_max_shuffled(v);
}
__device__ static __forceinline__ float attention_quad_sum(float v)
{
    return attention_quad_sum_shuffled(v);
}
#endif

/* Positions as int; what does not fit becomes the limit, which decides nothing (attention_sees). */
__device__ static __forceinline__ int attention_position(int64_t position)
{
    return position > INT_MAX ? INT_MAX : position < INT_MIN ? INT_MIN : (int)position;
}

/* The first key that a query sees, by position; its own position is the last. */
__device__ static __forceinline__ int64_t attention_first_seen(const attention_args &a, int64_t q_row)
{
    const int64_t first = a.first_key != nullptr ? a.first_key[q_row] : 0;
    const int64_t in_window = a.window > 0 ? a.q_position[q_row] - a.window + 1 : first;
    return first > in_window ? first : in_window;
}

/* Smallest and largest position of some queries or keys. */
typedef struct attention_range {
    int least, most;
} attention_range;
typedef struct attention_query_range {
    attention_range first, last; /* of the first and the last keys that they see */
} attention_query_range;

__device__ static __forceinline__ attention_range attention_range_join(attention_range mine)
{
    return {__reduce_min_sync(gpu_all_lanes, mine.least), __reduce_max_sync(gpu_all_lanes, mine.most)};
}
__device__ static __forceinline__ void attention_range_add(attention_range *r, int64_t position)
{
    const int p = attention_position(position);
    r->least = min(r->least, p);
    r->most = max(r->most, p);
}

/* Of queries from ... to-1 of batch row b, by the whole warp; FEW: which has few registers. */
template <bool FEW = false>
__device__ static __forceinline__ attention_query_range attention_queries_range(const attention_args &a,
                                                                                int64_t b, int64_t from,
                                                                                int64_t to, int lane)
{
    attention_query_range r = {{INT_MAX, INT_MIN}, {INT_MAX, INT_MIN}};
    auto add = [&](int64_t s) {
        attention_range_add(&r.first, attention_first_seen(a, s * a.batch + b));
        attention_range_add(&r.last, a.q_position[s * a.batch + b]);
    };
    if (FEW) {
        GPU_NO_UNROLL
        for (int64_t s = from + lane; s < to; s += GPU_WARP)
            add(s);
    } else {
        for (int64_t s = from + lane; s < to; s += GPU_WARP)
            add(s);
    }
    return {attention_range_join(r.first), attention_range_join(r.last)};
}

/* Of keys from ... to-1 of batch row b, by the whole warp. */
__device__ static __forceinline__ attention_range attention_keys_range(const attention_args &a, int64_t b,
                                                                       int64_t from, int64_t to, int lane)
{
    attention_range r = {INT_MAX, INT_MIN};
    for (int64_t s = from + lane; s < to; s += GPU_WARP)
        attention_range_add(&r, a.k_position[s * a.batch + b]);
    return attention_range_join(r);
}

/* What some queries see of some keys. */
enum attention_sight { ATTENTION_SEES_NONE, ATTENTION_SEES_SOME, ATTENTION_SEES_ALL };

__device__ static __forceinline__ attention_sight attention_sees(const attention_query_range &q,
                                                                 const attention_range &k)
{
    if (k.least > q.last.most || k.most < q.first.least)
        return ATTENTION_SEES_NONE;
    const bool known = k.most < INT_MAX && k.least > INT_MIN && q.last.least < INT_MAX &&
                       q.first.most > INT_MIN && q.last.most < INT_MAX && q.first.least > INT_MIN;
    return known && k.most <= q.last.least && k.least >= q.first.most ? ATTENTION_SEES_ALL
                                                                      : ATTENTION_SEES_SOME;
}

/* The block copies rows of [.., width] tensors to tile [ROWS][D]: row r from `from + row(r) * width`, zeros where row(r) < 0 and
 * behind the width.  Asynchronous: mma_commit, mma_wait. */
template <int D, int ROWS, class F>
__device__ static __forceinline__ void attention_copy_rows(bf16 *tile, const bf16 *from, int64_t width, F row)
{
    for (int i = (int)threadIdx.x; i < ROWS * (D / 8); i += ATTENTION_MMA_THREADS) {
        const int r = i / (D / 8), c = i % (D / 8);
        const int64_t at = row(r);
        const bool valid = at >= 0 && c * 8 < width;
        mma_copy16(attention_chunk<D, ROWS>(tile, r, c), valid ? from + at * width + c * 8 : from, valid);
    }
}

/* A product with a tile meets every row of it, the hidden ones with the factor 0: 0 x NaN and 0 x inf would reach the results.  So
 * each thread makes zeros of what is not finite among the numbers that it has copied (attention_copy_rows), before others read
 * the tile, and says whether there was any: the block then adds those that are seen by themselves. */
template <int D, int ROWS> __device__ static __forceinline__ bool attention_clear_rows(bf16 *tile)
{
    bool any = false;
    for (int i = (int)threadIdx.x; i < ROWS * (D / 8); i += ATTENTION_MMA_THREADS) {
        uint4 *chunk = (uint4 *)attention_chunk<D, ROWS>(tile, i / (D / 8), i % (D / 8));
        unsigned word[4] = {chunk->x, chunk->y, chunk->z, chunk->w};
        bool mine = false;
        GPU_UNROLL
        for (int w = 0; w < 4; ++w) {
            const bool low = (word[w] & 0x7f80u) == 0x7f80u, high = (word[w] & 0x7f800000u) == 0x7f800000u;
            word[w] &= (low ? 0xffff0000u : ~0u) & (high ? 0xffffu : ~0u);
            mine = mine || low || high;
        }
        if (mine)
            *chunk = make_uint4(word[0], word[1], word[2], word[3]);
        any = any || mine;
    }
    return any;
}

/* Bits 15 and 31 of the pairs of bf16 that are not finite: an exponent of ones carries into the sign's place, and no further. */
__device__ static __forceinline__ unsigned attention_unbounded_bits(uint4 eight)
{
    const unsigned exponents = 0x7f807f80u, one = 0x00800080u;
    return (((eight.x & exponents) + one) | ((eight.y & exponents) + one) | ((eight.z & exponents) + one) |
            ((eight.w & exponents) + one)) &
           0x80008000u;
}

__device__ static __forceinline__ bool attention_finite(float v)
{
    return (__float_as_uint(v) & 0x7f800000u) != 0x7f800000u;
}

#endif
