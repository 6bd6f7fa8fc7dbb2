/* What attention k3 (attention_sm90.cu) is made of: the tiles of a block, the warp that loads them, masks and the online softmax of a
 * warpgroup's rows. */
#ifndef GPU_OPS_ATTENTION_SM90_CUH
#define GPU_OPS_ATTENTION_SM90_CUH

#include "gpu/ops/attention_mma.cuh"
#include "gpu/ops/sm90.cuh"

enum { MOST_GROUPS = 3 };
enum {
    TURN_OF_GROUP = 1,
    OWN_GROUP = TURN_OF_GROUP + MOST_GROUPS
}; /* named barriers, and one more for each group */

/* Keys of a tile of that width. */
__host__ __device__ constexpr int attention_sm90_keys(int width)
{
    return width <= 192 ? 128 : 64;
}

/* In numbers of bf16.  A tile of keys lies in parts of 64 columns; one of values in parts of 64 rows and 64 columns. */
template <int D, int DV> struct shape {
    /* Warpgroups that multiply; a third one of narrow heads hides more of what the others wait for. */
    static constexpr int GROUPS = D == 64 ? 3 : 2, THREADS = (1 + GROUPS) * WGMMA_THREADS,
                         ROWS = GROUPS * WGMMA_ROWS;
    static constexpr int LOADER = D == 64 ? 32 : 40, MULTIPLIER = D == 64 ? 160 : 232; /* registers */
    static constexpr int KEYS = attention_sm90_keys(D), HALVES = KEYS / WGMMA_TERMS;
    static constexpr int STAGES = D == 64 ? 4 : 2;
    static constexpr int Q = WGMMA_ROWS * D, K = KEYS * D, V = KEYS * DV;     /* Q of a warpgroup */
    static constexpr int COLUMNS = DV < 128 ? DV : 128, PARTS = DV / COLUMNS; /* of a result */
    static constexpr int ZEROS = WGMMA_TERMS * COLUMNS;
    static constexpr bool HAS_POSITIONS = D != 192; /* there is no room for them beside its tiles */
    static constexpr int POSITIONS = HAS_POSITIONS ? KEYS : 1;
    static constexpr int BYTES = WGMMA_TILE_ALIGN - 16 + 2 * (GROUPS * Q + STAGES * (K + V) + ZEROS);
};

/* What is in a stage: the number of a tile, -1 behind the last, and what the block sees of it.  near: the positions of its keys lie within
 * those of an int, so that as much of others as an int holds (attention_position) compares with them as they do. */
typedef struct stage_tile {
    int n;
    attention_sight sight;
    bool near;
} stage_tile;
__device__ static __forceinline__ bool attention_is_near(const attention_range &keys)
{
    return keys.least > INT_MIN && keys.most < INT_MAX;
}

/* What a warp finds out about tiles before, so that the warps that load have one number to read for a tile (attention_ranges_k3): of the
 * keys of a tile [batch][tiles], and, for the backward, of the queries of one of 64. */
typedef struct attention_ranges {
    attention_range *keys;
    attention_query_range *queries; /* or null */
    int tile;                       /* keys of one */
} attention_ranges;
__host__ __device__ static inline int64_t attention_tiles(int64_t rows, int tile)
{
    return (rows + tile - 1) / tile;
}
cudaError_t gpu_attention_ranges(const attention_ranges &to, const attention_args &a, cudaStream_t stream);

/* Which of 32 tiles from `first` on a block meets: a bit for each, those that it sees whole, and whether all their keys are near.
 * sight_of(n, near): the sight of tile n. */
typedef struct tiles_met {
    int first;
    unsigned some, whole;
    bool near;
    __device__ stage_tile tile(int i) const
    {
        return {first + i, (whole >> i & 1u) != 0 ? ATTENTION_SEES_ALL : ATTENTION_SEES_SOME, near};
    }
} tiles_met;
template <class F>
__device__ static __forceinline__ tiles_met meet_tiles(int first, int rows, int tile, int lane, F sight_of)
{
    const int n = first + lane;
    const bool there = (int64_t)n * tile < rows;
    bool near = false;
    const attention_sight sight = there ? sight_of(n, &near) : ATTENTION_SEES_NONE;
    const bool whole = sight == ATTENTION_SEES_ALL && (int64_t)(n + 1) * tile <= rows;
    return {first, __ballot_sync(gpu_all_lanes, (int)(sight != ATTENTION_SEES_NONE)),
            __ballot_sync(gpu_all_lanes, (int)whole),
            __ballot_sync(gpu_all_lanes, (int)(there && !near)) == 0};
}

template <class S> struct stage_barriers {
    int64_t position[S::STAGES][S::POSITIONS]; /* of keys, where the tile is not seen whole */
    mbarrier k_full[S::STAGES], k_empty[S::STAGES], v_full[S::STAGES], v_empty[S::STAGES];
    stage_tile tile[S::STAGES];
    int unbounded[S::GROUPS]; /* the last item (from 1 on) where a warpgroup has found an infinity or NaN */
};

/* Where a block is. */
typedef struct block_rows {
    int first, last, b, group, per_group;
} block_rows;

template <int ROWS>
__device__ static __forceinline__ block_rows rows_of_block(const attention_args &a, int number)
{
    const int per_group = (int)(a.heads / a.groups), rows = (int)a.seq_q * per_group;
    const attention_block block =
        attention_block_of(number, (rows + ROWS - 1) / ROWS, (int)a.batch, (int)a.groups, true);
    const int first = block.number * ROWS;
    return {first, min(first + ROWS, rows), block.b, block.plane, per_group};
}

/* Row `row` of (b, group) as [token, head]; -1 past the end.  Not kept: registers are what is scarce. */
__device__ static __forceinline__ int64_t query_of(const attention_args &a, const block_rows &rows, int row)
{
    return row >= rows.last ? -1
                            : ((int64_t)(row / rows.per_group) * a.batch + rows.b) * a.heads +
                                  rows.group * rows.per_group + row % rows.per_group;
}

/* --- the warp that loads ---------------------------------------------------------------------------------------- */

/* By the whole warp, one lane of which loads; tile.n -1: there are no more. */
template <class S, int D, int DV>
__device__ static __forceinline__ void load_tile(bf16 *stages, stage_barriers<S> *bar, const tma_map *k,
                                                 const tma_map *v, int item, stage_tile tile, int plane,
                                                 const attention_args &a, int b, bool loads)
{
    const int stage = item % S::STAGES, parity = item / S::STAGES % 2 ^ 1;
    bf16 *k_tile = stages + stage * (S::K + S::V), *v_tile = k_tile + S::K;
    mbarrier_wait(&bar->k_empty[stage], parity);
    if (S::HAS_POSITIONS && tile.sight == ATTENTION_SEES_SOME) {
        /* the warp has few registers */
        GPU_NO_UNROLL
        for (int i = (int)threadIdx.x; i < S::KEYS; i += GPU_WARP) {
            const int key = tile.n * S::KEYS + i;
            bar->position[stage][i] = key < (int)a.seq_k ? a.k_position[key * a.batch + b] : 0;
        }
    }
    __syncwarp();
    if (!loads)
        return;
    bar->tile[stage] = tile;
    if (tile.n < 0) {
        mbarrier_arrive(&bar->k_full[stage]);
        return;
    }
    const int row = tile.n * S::KEYS;
    mbarrier_arrive_expect(&bar->k_full[stage], S::K * 2);
    GPU_UNROLL
    for (int c = 0; c < D; c += WGMMA_TERMS)
        tma_load(k_tile + c * S::KEYS, k, &bar->k_full[stage], c, plane, row);
    mbarrier_wait(&bar->v_empty[stage], parity);
    mbarrier_arrive_expect(&bar->v_full[stage], S::V * 2);
    GPU_UNROLL
    for (int r = 0; r < S::KEYS; r += WGMMA_TERMS)
        GPU_UNROLL
    for (int c = 0; c < DV; c += WGMMA_TERMS)
        tma_load(v_tile + r * DV + c * WGMMA_TERMS, v, &bar->v_full[stage], c, plane, row + r);
}

template <class S, int D, int DV>
__device__ static __forceinline__ void load_all(bf16 *stages, stage_barriers<S> *bar, const tma_map *k,
                                                const tma_map *v, const attention_range *of_tiles,
                                                const attention_args &a, const block_rows &rows)
{
    const int lane = (int)threadIdx.x, seq_k = (int)a.seq_k, plane = rows.b * (int)a.groups + rows.group;
    const bool loads = elect_one();
    const attention_query_range sees = attention_queries_range<true>(
        a, rows.b, rows.first / rows.per_group, (rows.last - 1) / rows.per_group + 1, lane);
    const attention_range *ranges = of_tiles + rows.b * attention_tiles(seq_k, S::KEYS);
    int item = 0;
    for (int first = 0; first * S::KEYS < seq_k; first += GPU_WARP) {
        const tiles_met met = meet_tiles(first, seq_k, S::KEYS, lane, [&](int n, bool *near) {
            *near = attention_is_near(ranges[n]);
            return attention_sees(sees, ranges[n]);
        });
        for (unsigned left = met.some; left != 0; left &= left - 1)
            load_tile<S, D, DV>(stages, bar, k, v, item++, met.tile(__ffs((int)left) - 1), plane, a, rows.b,
                                loads);
    }
    load_tile<S, D, DV>(stages, bar, k, v, item, {-1, ATTENTION_SEES_NONE, false}, plane, a, rows.b, loads);
}

/* --- the warpgroups that multiply ------------------------------------------------------------------------------- */

/* The first and the last position that a row sees. */
typedef struct row_sight {
    int64_t first, last;
    __device__ bool sees(int64_t position) const
    {
        return position >= first && position <= last;
    }
} row_sight;
__device__ static __forceinline__ row_sight sight_of_row(const attention_args &a, const block_rows &rows,
                                                         int row)
{
    const int64_t token = (int64_t)(row / rows.per_group) * a.batch + rows.b;
    const bool there = row < rows.last;
    return {there ? attention_first_seen(a, token) : 0, there ? a.q_position[token] : -1};
}

/* Scores of a tile's keys, `there` of which are there, that a row of the thread, `row` and 8 below it, does not see become -inf; bit h of
 * *any: row h has seen a key.  position_of(x): of key x; int: the tile is near.  One row after the other, and first all bits, in a loop: registers are what is scarce. */
template <class P, int NT, class F>
__device__ static __forceinline__ void hide(float (&s)[NT][4], const attention_args &a,
                                            const block_rows &rows, int row, F position_of, int there,
                                            unsigned *any)
{
    GPU_UNROLL
    for (int h = 0; h < 2; ++h) {
        const row_sight sight = sight_of_row(a, rows, row + 8 * h);
        const bool near = sizeof(P) == sizeof(int);
        const P from = (P)(near ? attention_position(sight.first) : sight.first);
        const P to = (P)(near ? attention_position(sight.last) : sight.last);
        unsigned seen = 0; /* bit 2 j + e */
        GPU_NO_UNROLL
        for (int first = 0; first < 2 * NT; first += 8)
            GPU_UNROLL
        for (int i = first; i < first + 8; ++i) {
            const int x = wgmma_column((int)threadIdx.x, i / 2, i % 2);
            const P position = x < there ? (P)position_of(x) : 0;
            seen |= x < there && position >= from && position <= to ? 1u << i : 0u;
        }
        *any |= seen != 0 ? 1u << h : 0u;
        GPU_UNROLL
        for (int i = 0; i < 2 * NT; ++i)
            s[i / 2][2 * h + i % 2] = (seen >> i & 1u) != 0 ? s[i / 2][2 * h + i % 2] : -INFINITY;
    }
}

/* The online softmax of two rows. */
typedef struct row_softmax {
    float reference[2], sum[2];
    unsigned any;
} row_softmax;

/* Scores become exp2 of score x scale2 - reference; rescale: what was summed by the reference before is to be multiplied by it. */
template <int NT>
__device__ static __forceinline__ void exponentials(float (&s)[NT][4], row_softmax *r, float (&rescale)[2],
                                                    float scale2)
{
    GPU_UNROLL
    for (int h = 0; h < 2; ++h) {
        float most = -INFINITY, added = 0.0f;
        GPU_UNROLL
        for (int j = 0; j < NT; ++j)
            most = fmaxf(most, fmaxf(s[j][2 * h], s[j][2 * h + 1]));
        const float before = r->reference[h],
                    larger = fmaxf(before, __fmul_rn(attention_quad_max(most), scale2));
        /* exp2(score - shift) never meets inf - inf because nothing was seen yet */
        const float shift = larger == -INFINITY ? 0.0f : larger;
        rescale[h] = before == -INFINITY ? 1.0f : mma_exp2(before - shift);
        r->reference[h] = larger;
        GPU_UNROLL
        for (int j = 0; j < NT; ++j)
            GPU_UNROLL
        for (int e = 2 * h; e < 2 * h + 2; ++e) {
            s[j][e] = mma_exp2(fmaf(s[j][e], scale2, -shift));
            added += s[j][e];
        }
        r->sum[h] = r->sum[h] * rescale[h] + added;
    }
}

/* Whether the thread's share of a tile of N numbers holds an infinity or a NaN. */
template <int N> __device__ static __forceinline__ bool has_unbounded(const bf16 *tile)
{
    unsigned any = 0;
    /* twice: all of them at once would take registers of those who call it */
    GPU_UNROLL_TWICE
    for (int i = (int)threadIdx.x % WGMMA_THREADS; i < N / 8; i += WGMMA_THREADS) {
        any |= attention_unbounded_bits(((const uint4 *)tile)[i]);
    }
    return any != 0;
}

/* Whether one of two tiles of NX and NY numbers does, for the whole warpgroup, which meets here.  item: from 1 on, another one at each
 * call of the same *found, between two of which the warpgroup meets once more. */
template <int NX, int NY = 0>
__device__ static __forceinline__ bool is_unbounded(const bf16 *x, const bf16 *y, int *found, int group,
                                                    int item)
{
    if (has_unbounded<NX>(x) || has_unbounded<NY>(y))
        *(volatile int *)found = item;
    named_barrier_sync(OWN_GROUP + group, WGMMA_THREADS);
    return *(volatile int *)found == item;
}

/* o [64][8 NT] += round(P) B of the first `rows` of 64 terms, pair by pair where `sees(h, x)`, row h of the thread and row x of B. */
template <int NT, class F>
__device__ static __forceinline__ void add_pairs(float (&o)[NT][4], const unsigned (&p)[4][4], bf16 *tile,
                                                 int rows, F sees)
{
    const int lane = (int)threadIdx.x % GPU_WARP;
    GPU_NO_UNROLL
    for (int x = 0; x < rows; ++x) {
        float weight[2];
        bool seen[2];
        GPU_UNROLL
        for (int h = 0; h < 2; ++h) { /* a lane of the quad has it, in a register that no index may name */
            unsigned pair = 0;
            GPU_UNROLL
            for (int i = 0; i < WGMMA_TERMS / 8; ++i)
                pair |= p[i / 2][i % 2 * 2 + h] & (i == x / 8 ? ~0u : 0u);
            pair = __shfl_sync(gpu_all_lanes, pair, lane / 4 * 4 + x % 8 / 2);
            weight[h] = __uint_as_float(x % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
            seen[h] = sees(h, x);
        }
        GPU_UNROLL
        for (int j = 0; j < NT; ++j)
            GPU_UNROLL
        for (int e = 0; e < 4; ++e) {
            const int column = j * 8 + mma_column(lane, e), part = column / WGMMA_TERMS;
            const float value = gpu_load(
                mma_chunk<WGMMA_TERMS>(tile + part * WGMMA_TILE, x, column % WGMMA_TERMS / 8) + column % 8);
            o[j][e] = seen[e / 2] ? fmaf(weight[e / 2], value, o[j][e]) : o[j][e];
        }
    }
}

/* Widths of the tiles of a call, [d] of q and k and [dv] of v, filled up with zeros. */
static inline attention_mma_widths attention_sm90_widths(int64_t d, int64_t dv)
{
    const int64_t most = d > dv ? d : dv;
    if (most <= 128)
        return most <= 64 ? attention_mma_widths{64, 64} : attention_mma_widths{128, 128};
    return most <= 192 && dv <= 128 ? attention_mma_widths{192, 128} : attention_mma_widths{256, 256};
}

/* The warp needs what a stage's barrier guards no more. */
__device__ static __forceinline__ void leave(mbarrier *empty)
{
    __syncwarp();
    if (threadIdx.x % GPU_WARP == 0)
        mbarrier_arrive(empty);
}

#endif
