/* The inner products of k1: four rows of a warp with a tile of 32 keys (or queries), fp32, one chain of fma in ascending order for
 * every result.  A device computes each lane's share in the lane; the simulator computes the warp's at once, where the compiler finds
 * vectors: the same operations in the same order (tests/sim/test_attention_warp.cu). */
#ifndef GPU_OPS_ATTENTION_WARP_CUH
#define GPU_OPS_ATTENTION_WARP_CUH

#include "gpu/device.cuh"

/* Keys (or queries) of a tile: one for each lane.  A block has ATTENTION_WARPS warps of ATTENTION_ROWS rows
 * each. */
enum {
    ATTENTION_TILE = 32,
    ATTENTION_WARPS = 4,
    ATTENTION_ROWS = 4,
    ATTENTION_BLOCK_ROWS = ATTENTION_WARPS * ATTENTION_ROWS,
    ATTENTION_MAX_DIM = 256,
    ATTENTION_CHUNK = 32
};

/* scores[r] = sum over i ascending of rows[i][r] column[i]; rows [n][ATTENTION_ROWS] are the warp's, column the lane's. */
typedef struct attention_dots {
    float *scores;
    const float *rows, *column;
    int64_t n;
} attention_dots;

__device__ static __forceinline__ void attention_dots_lane(const attention_dots &d)
{
    for (int r = 0; r < ATTENTION_ROWS; ++r)
        d.scores[r] = 0.0f;
    for (int64_t i = 0; i < d.n; ++i) {
        const float value = d.column[i];
        for (int r = 0; r < ATTENTION_ROWS; ++r)
            d.scores[r] = fmaf(d.rows[i * ATTENTION_ROWS + r], value, d.scores[r]);
    }
}

/* acc[r][c] += sum over the tile's rows i ascending, of those that have bit r of seen[i], of weight[r][i] tile[i][lane + 32 c].
 * With sum: sum[r] += counted[r][i] as well, and any |= seen[i].  A row that is not seen may hold anything.  Everything but acc,
 * sum and any is the warp's. */
template <int CHUNKS> struct attention_adds {
    float (*acc)[CHUNKS];
    const unsigned *seen;
    const float *weight, *tile; /* [ATTENTION_ROWS][ATTENTION_TILE], [ATTENTION_TILE][stride] */
    int64_t stride, width;
    const float *counted;
    float *sum;
    unsigned *any;
};

template <int CHUNKS>
__device__ static __forceinline__ void attention_adds_lane(const attention_adds<CHUNKS> &d, int lane)
{
    for (int i = 0; i < ATTENTION_TILE; ++i) {
        const unsigned who = d.seen[i];
        if (d.sum != nullptr)
            *d.any |= who;
        for (int r = 0; r < ATTENTION_ROWS; ++r) {
            if ((who >> r & 1u) == 0)
                continue;
            const float weight = d.weight[r * ATTENTION_TILE + i];
            if (d.sum != nullptr)
                d.sum[r] += d.counted[r * ATTENTION_TILE + i];
            for (int c = 0; c < CHUNKS; ++c) {
                const int64_t column = lane + GPU_WARP * c;
                if (column < d.width)
                    d.acc[r][c] = fmaf(weight, d.tile[i * d.stride + column], d.acc[r][c]);
            }
        }
    }
}

#if ASSAY_SIM

typedef struct attention_dots_pair {
    const attention_dots *first, *second;
} attention_dots_pair;

static void attention_dots_warp(void *const *lane)
{
    enum { TOGETHER = 8 }; /* chains at once, or each waits for itself */
    for (int which = 0; which < 2; ++which)
        for (int from = 0; from < GPU_WARP; from += TOGETHER) {
            const attention_dots *d[TOGETHER];
            const float *column[TOGETHER];
            float sum[TOGETHER][ATTENTION_ROWS] = {};
            for (int l = 0; l < TOGETHER; ++l) {
                const attention_dots_pair *p = (const attention_dots_pair *)lane[from + l];
                d[l] = which == 0 ? p->first : p->second;
            }
            if (d[0] == nullptr)
                return;
            for (int l = 0; l < TOGETHER; ++l)
                column[l] = d[l]->column;
            const float *rows = d[0]->rows;
            for (int64_t i = 0; i < d[0]->n; ++i)
                for (int l = 0; l < TOGETHER; ++l)
                    for (int r = 0; r < ATTENTION_ROWS; ++r)
                        sum[l][r] = fmaf(rows[i * ATTENTION_ROWS + r], column[l][i], sum[l][r]);
            for (int l = 0; l < TOGETHER; ++l)
                for (int r = 0; r < ATTENTION_ROWS; ++r)
                    d[l]->scores[r] = sum[l][r];
        }
}

template <int CHUNKS> struct attention_adds_pair {
    const attention_adds<CHUNKS> *first, *second;
};

template <int CHUNKS> static void attention_adds_warp(void *const *lane)
{
    for (int which = 0; which < 2; ++which) {
        const attention_adds<CHUNKS> *d[GPU_WARP];
        for (int l = 0; l < GPU_WARP; ++l) {
            const attention_adds_pair<CHUNKS> *p = (const attention_adds_pair<CHUNKS> *)lane[l];
            d[l] = which == 0 ? p->first : p->second;
        }
        if (d[0] == nullptr)
            return;
        const attention_adds<CHUNKS> &w = *d[0];
        for (int r = 0; r < ATTENTION_ROWS; ++r) {
            float sum = w.sum != nullptr ? w.sum[r] : 0.0f;
            for (int i = 0; i < ATTENTION_TILE && w.sum != nullptr; ++i)
                if ((w.seen[i] >> r & 1u) != 0)
                    sum += w.counted[r * ATTENTION_TILE + i];
            for (int l = 0; l < GPU_WARP && w.sum != nullptr; ++l)
                d[l]->sum[r] = sum;
            for (int c = 0; c < CHUNKS; ++c) {
                const int64_t first = GPU_WARP * c, live = w.width - first;
                float acc[GPU_WARP];
                for (int l = 0; l < GPU_WARP; ++l)
                    acc[l] = d[l]->acc[r][c];
                for (int i = 0; i < ATTENTION_TILE; ++i) {
                    if ((w.seen[i] >> r & 1u) == 0)
                        continue;
                    const float weight = w.weight[r * ATTENTION_TILE + i];
                    const float *tile = w.tile + i * w.stride + first;
                    if (live >= GPU_WARP)
                        for (int l = 0; l < GPU_WARP; ++l)
                            acc[l] = fmaf(weight, tile[l], acc[l]);
                    else
                        for (int l = 0; l < live; ++l)
                            acc[l] = fmaf(weight, tile[l], acc[l]);
                }
                for (int l = 0; l < GPU_WARP; ++l)
                    d[l]->acc[r][c] = acc[l];
            }
        }
        unsigned any = 0;
        for (int i = 0; i < ATTENTION_TILE; ++i)
            any |= w.seen[i];
        for (int l = 0; l < GPU_WARP && w.sum != nullptr; ++l)
            *d[l]->any |= any;
    }
}

#endif

/* One or two (second: or NULL) products of a warp, all of whose lanes call it.  wanted: whether this lane needs its scores. */
__device__ static __forceinline__ void attention_warp_dots(bool wanted, const attention_dots *first,
                                                           const attention_dots *second)
{
#if ASSAY_SIM
    attention_dots_pair p = {first, second};
    (void)wanted;
    assay_sim_warp_call(attention_dots_warp, &p, ASSAY_SIM_HERE);
#else
    if (!wanted)
        return;
    attention_dots_lane(*first);
    if (second != nullptr)
        attention_dots_lane(*second);
#endif
}

/* Waits until the warp has written what is read here, and until all lanes have read it. */
template <int CHUNKS>
__device__ static __forceinline__ void attention_warp_adds(const attention_adds<CHUNKS> *first,
                                                           const attention_adds<CHUNKS> *second)
{
#if ASSAY_SIM
    attention_adds_pair<CHUNKS> p = {first, second};
    assay_sim_warp_call(attention_adds_warp<CHUNKS>, &p, ASSAY_SIM_HERE);
#else
    __syncwarp();
    attention_adds_lane(*first, (int)threadIdx.x);
    if (second != nullptr)
        attention_adds_lane(*second, (int)threadIdx.x);
    __syncwarp();
#endif
}

#endif
