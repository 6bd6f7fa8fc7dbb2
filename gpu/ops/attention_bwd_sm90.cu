/* Attention backward by warpgroups and tensor maps, k3 (bf16, sm_90a alone).  docs/OPS.md 5.  Seen on an H200: docs/BENCH.md.
 *
 * Without atomics, in four launches:
 *   attention_ranges_k3     positions of every tile's keys and queries (attention_sm90.cu)
 *   attention_bwd_rows_k2   what a row (query, head) brings to all its pairs (attention_bwd_mma.cu)
 *   attention_dq_k3         128 queries of a head over tiles of 64 keys; of heads up to 64 wide 192
 *   attention_dkdv_k3       128 keys of a group over tiles of 64 queries, each with one head of the group after the other: the sum over
 *                           heads is inside
 * A warp walks over the tiles, passes over those that nobody sees, and loads the others up to the stages' number ahead; two or
 * three warpgroups take 64 rows each.  Up to 128 dimensions the sums of a tile are under way beside S of the next one, and dP where there
 * are registers (attention_bwd_walk.cuh); above, only the other warpgroup's products are beside them.  P and dS stay in registers, and results go through the own rows' tiles to tensor maps.
 *
 * Head dimensions above 128: registers do not hold the sums of both dk and dv.  A block of attention_dkdv_k3 takes 64 keys, one warpgroup
 * for dk (S, dP, dS q), the other for dv (S, P dO): five products instead of four, and nothing to exchange.
 *
 * Arithmetic: as k2 (attention_bwd_mma.cu), in tiles of 64.  A tile that hides something and holds an infinity or a NaN is added pair by
 * pair, by fma in ascending order: hidden pairs have the factor 0 in a product, and 0 x inf is NaN. */
#include "gpu/ops/attention_bwd_walk.cuh"

/* Shared memory and barriers of a block.  Every thread calls it; then the block is in step. */
template <class S> __device__ static __forceinline__ bwd_places<S> bwd_begin(void)
{
    GPU_DYNAMIC_SHARED(unsigned char, shared);
    GPU_SHARED(bwd_barriers<S>, bar, 1);
    bf16 *own_x = wgmma_tiles(shared), *own_y = own_x + S::OWNERS * S::X, *x = own_x + S::OWN,
         *y = x + S::X_STAGES * S::X, *zeros = y + S::Y_STAGES * S::Y, *end = zeros + S::ZEROS;
    if (threadIdx.x == 0) {
        const int warps = S::GROUPS * WGMMA_THREADS / GPU_WARP;
        mbarrier_init(&bar->own, 1);
        for (int i = 0; i < S::X_STAGES; ++i) {
            mbarrier_init(&bar->x_full[i], 1);
            mbarrier_init(&bar->empty[i], warps);
        }
        for (int i = 0; i < S::Y_STAGES; ++i) {
            mbarrier_init(&bar->y_full[i], 1);
            mbarrier_init(&bar->y_empty[i], warps);
        }
        for (int i = 0; i < 2 * S::GROUPS; ++i)
            bar->unbounded[i / 2][i % 2] = 0;
        mbarrier_fence_init();
    }
    for (int i = (int)threadIdx.x; i < S::ZEROS / 8; i += S::THREADS)
        ((uint4 *)zeros)[i] = make_uint4(0, 0, 0, 0);
    proxy_fence(zeros, S::ZEROS * (int)sizeof(bf16));
    __syncthreads();
    if (S::ROWS_BYTES == 0)
        return {own_x, own_y, x, y, zeros, nullptr, nullptr, bar};
    attention_bwd_row *rows = (attention_bwd_row *)end;
    return {own_x, own_y, x, y, zeros, rows, (float *)(rows + S::X_STAGES * WGMMA_TERMS), bar};
}

/* The block's own rows.  last_first: the last rows of all planes first, else the first ones: under a causal mask they see, or are seen,
 * most, and blocks that end last should be short. */
template <class S>
__device__ static __forceinline__ bwd_block bwd_block_of(const attention_args &a, int64_t seq,
                                                         int planes_of_row, bool last_first, int number)
{
    const int blocks = ((int)seq + S::OWN_ROWS - 1) / S::OWN_ROWS, planes = (int)a.batch * planes_of_row;
    const int turn = number / planes, plane = number % planes;
    return {(last_first ? blocks - 1 - turn : turn) * S::OWN_ROWS, plane / planes_of_row, plane};
}

/* What the threads do that multiply nothing: a warp loads own rows and then, by load_streamed(whether this lane starts copies), the
 * others.  false: the thread multiplies. */
template <class S, int D, int DV, class F>
__device__ static __forceinline__ bool bwd_loads(const bwd_places<S> &at, const tma_map *own_x,
                                                 const tma_map *own_y, const bwd_block &block,
                                                 F load_streamed)
{
    if (threadIdx.x >= WGMMA_THREADS) {
        setmaxnreg_inc<S::MULTIPLIER>();
        return false;
    }
    setmaxnreg_dec<S::LOADER>();
    if (threadIdx.x >= GPU_WARP)
        return true;
    const bool loads = elect_one();
    if (loads)
        load_own<S, D, DV>(at, own_x, own_y, block);
    load_streamed(loads);
    return true;
}

/* --- dq --------------------------------------------------------------------------------------------------------- */

template <class S, int D, int DV>
__device__ static __forceinline__ void load_keys(const bwd_places<S> &at, const tma_map *k, const tma_map *v,
                                                 const attention_range *of_keys, const attention_args &a,
                                                 const bwd_block &rows, int plane, bool loads)
{
    const int lane = (int)threadIdx.x, seq_k = (int)a.seq_k;
    const attention_query_range sees = attention_queries_range<true>(
        a, rows.b, rows.first, min(rows.first + S::OWN_ROWS, (int)a.seq_q), lane);
    const attention_range *ranges = of_keys + rows.b * attention_tiles(seq_k, WGMMA_TERMS);
    int item = 0;
    for (int first = 0; first * WGMMA_TERMS < seq_k; first += GPU_WARP) {
        const tiles_met met = meet_tiles(first, seq_k, WGMMA_TERMS, lane, [&](int n, bool *near) {
            *near = attention_is_near(ranges[n]);
            return attention_sees(sees, ranges[n]);
        });
        for (unsigned left = met.some; left != 0; left &= left - 1) {
            const stage_tile tile = met.tile(__ffs((int)left) - 1);
            load_tile<S, D, DV>(at, k, v, loads, item++, tile, plane, [&](int stage) {
                for (int x = lane; x < WGMMA_TERMS && tile.sight == ATTENTION_SEES_SOME; x += GPU_WARP) {
                    const int key = tile.n * WGMMA_TERMS + x;
                    at.bar->position[stage * WGMMA_TERMS + x] =
                        key < seq_k ? a.k_position[key * a.batch + rows.b] : 0;
                }
            });
        }
    }
    load_tile<S, D, DV>(at, k, v, loads, item, {-1, ATTENTION_SEES_NONE, false}, plane, [](int) {});
}

template <int D, int DV>
__global__ void __launch_bounds__((bwd_shape<D, DV, false>::THREADS), 1)
    attention_dq_k3(TMA_MAP_PARAMETER dq, TMA_MAP_PARAMETER dout, TMA_MAP_PARAMETER q, TMA_MAP_PARAMETER k,
                    TMA_MAP_PARAMETER v, const attention_bwd_row *of_rows, const attention_range *of_keys,
                    float scale2, attention_args a)
{
    typedef bwd_shape<D, DV, false> S;
    const bwd_places<S> at = bwd_begin<S>();
    const int heads = (int)a.heads;
    const bwd_block rows = bwd_block_of<S>(a, a.seq_q, heads, true, (int)blockIdx.x);
    const int head = rows.plane % heads, group = wgmma_group() - 1;
    if (bwd_loads<S, D, DV>(at, &q, &dout, rows, [&](bool loads) {
            load_keys<S, D, DV>(at, &k, &v, of_keys, a, rows,
                                rows.b * (int)a.groups + head / (int)(a.heads / a.groups), loads);
        }))
        return;
    keys_met met = {nullptr, 0, {{0, -1}, {0, -1}}, {{0.0f, 0.0f}, {0.0f, 0.0f}}};
    const int first = rows.first + group * WGMMA_ROWS;
    GPU_UNROLL
    for (int h = 0; h < 2; ++h) {
        const int token = first + wgmma_row((int)threadIdx.x, 2 * h);
        if (token < (int)a.seq_q) {
            const attention_bwd_row mine = of_rows[(token * a.batch + rows.b) * a.heads + head];
            met.sight[h] = {mine.first, mine.last};
            met.mine[h] = mine.known;
        }
    }
    float of_q[D / 8][4] = {}, unused[1][4] = {};
    auto tile_of = [&](int n, int stage) {
        met.position = at.bar->position + stage * WGMMA_TERMS;
        met.there = (int)a.seq_k - n * WGMMA_TERMS;
        return met;
    };
    if constexpr (S::AHEAD)
        bwd_walk_ahead<S, D, DV, false>(of_q, unused, at, group, (int)a.seq_k, scale2, tile_of);
    else
        bwd_walk<S, D, DV, true, false>(of_q, unused, at, group, (int)a.seq_k, scale2, tile_of);
    const bwd_block again = bwd_block_of<S>(a, a.seq_q, heads, true, mma_block_again());
    bwd_put(&dq, at.own_x + group * S::X, of_q, a.scale, again.plane, again.first + group * WGMMA_ROWS);
    tma_store_wait_read<0>();
}

/* --- dk and dv -------------------------------------------------------------------------------------------------- */

/* Rows of a tile and head come into registers before the stage is free. */
template <class S, int D, int DV>
__device__ static __forceinline__ void
load_rows(const bwd_places<S> &at, const tma_map *q, const tma_map *dout, const attention_bwd_row *of_rows,
          const attention_query_range *of_queries, const attention_args &a, const bwd_block &keys, int group,
          bool loads)
{
    const int lane = (int)threadIdx.x, seq_q = (int)a.seq_q, per_group = (int)(a.heads / a.groups);
    const attention_range seen =
        attention_keys_range(a, keys.b, keys.first, min(keys.first + S::OWN_ROWS, (int)a.seq_k), lane);
    const attention_query_range *ranges = of_queries + keys.b * attention_tiles(seq_q, WGMMA_TERMS);
    attention_bwd_row mine[WGMMA_TERMS / GPU_WARP];
    auto read = [&](int n, int head) {
        GPU_UNROLL
        for (int i = 0; i < WGMMA_TERMS / GPU_WARP; ++i) {
            const int token = n * WGMMA_TERMS + i * GPU_WARP + lane;
            attention_bwd_row none = {};
            none.last = none.near_last = -1;
            mine[i] = token < seq_q ? of_rows[((int64_t)token * a.batch + keys.b) * a.heads + head] : none;
        }
    };
    int item = 0;
    for (int first = 0; first * WGMMA_TERMS < seq_q; first += GPU_WARP) {
        const tiles_met met = meet_tiles(first, seq_q, WGMMA_TERMS, lane, [&](int n, bool *near) {
            *near = attention_is_near(seen);
            return attention_sees(ranges[n], seen);
        });
        unsigned left = met.some;
        if (left != 0)
            read(first + __ffs((int)left) - 1, group * per_group);
        while (left != 0) {
            const stage_tile tile = met.tile(__ffs((int)left) - 1);
            left &= left - 1;
            for (int head = group * per_group; head < (group + 1) * per_group; ++head) {
                const bool last = head + 1 == (group + 1) * per_group;
                load_tile<S, D, DV>(at, q, dout, loads, item++, tile, keys.b * (int)a.heads + head,
                                    [&](int stage) {
                                        GPU_UNROLL
                                        for (int r = 0; r < WGMMA_TERMS / GPU_WARP; ++r) {
                                            const int row = r * GPU_WARP + lane;
                                            float *known = at.known + stage * 2 * WGMMA_TERMS + row;
                                            at.rows[stage * WGMMA_TERMS + row] = mine[r];
                                            known[0] = mine[r].known.lse2;
                                            known[WGMMA_TERMS] = mine[r].known.delta;
                                        }
                                    });
                if (!last || left != 0)
                    read(last ? first + __ffs((int)left) - 1 : tile.n, last ? group * per_group : head + 1);
            }
        }
    }
    load_tile<S, D, DV>(at, q, dout, loads, item, {-1, ATTENTION_SEES_NONE, false}, 0, [](int) {});
}

template <int D, int DV>
__global__ void __launch_bounds__((bwd_shape<D, DV, true>::THREADS), 1)
    attention_dkdv_k3(TMA_MAP_PARAMETER dk, TMA_MAP_PARAMETER dv, TMA_MAP_PARAMETER dout, TMA_MAP_PARAMETER q,
                      TMA_MAP_PARAMETER k, TMA_MAP_PARAMETER v, const attention_bwd_row *of_rows,
                      const attention_query_range *of_queries, float scale2, attention_args a)
{
    typedef bwd_shape<D, DV, true> S;
    const bwd_places<S> at = bwd_begin<S>();
    const int groups = (int)a.groups;
    const bwd_block keys = bwd_block_of<S>(a, a.seq_k, groups, false, (int)blockIdx.x);
    if (bwd_loads<S, D, DV>(at, &k, &v, keys, [&](bool loads) {
            load_rows<S, D, DV>(at, &q, &dout, of_rows, of_queries, a, keys, keys.plane % groups, loads);
        }))
        return;
    const int group = wgmma_group() - 1, mine = group % S::OWNERS;
    const int first = keys.first + mine * WGMMA_ROWS;
    bf16 *const x_room = at.own_x + mine * S::X, *const y_room = at.own_y + mine * S::Y;
    int *const near = at.bar->near_key + group * WGMMA_ROWS;
    for (int h = 0; h < 2 && threadIdx.x % 4 == 0; ++h) { /* one of the four lanes that have the key */
        const int row = wgmma_row((int)threadIdx.x, 2 * h), key = first + row;
        near[row] = key < (int)a.seq_k ? (int)a.k_position[key * a.batch + keys.b] : 0;
    }
    __syncwarp();
    auto tile_of = [&](int n, int stage) {
        return rows_met{at.rows + stage * WGMMA_TERMS,
                        at.known + stage * 2 * WGMMA_TERMS,
                        (int)a.seq_q - n * WGMMA_TERMS,
                        &a,
                        keys.b,
                        first,
                        near};
    };
    float unused[1][4] = {};
    if constexpr (!S::SPLIT) {
        float of_k[D / 8][4] = {}, of_v[DV / 8][4] = {};
        bwd_walk_ahead<S, D, DV, true>(of_k, of_v, at, group, (int)a.seq_q, scale2, tile_of);
        bwd_put(&dk, x_room, of_k, a.scale, keys.plane, first);
        bwd_put(&dv, y_room, of_v, 1.0f, keys.plane, first);
    } else { /* one array for both, so that they meet in one place */
        static_assert(D >= DV, "the sums of dv have room");
        float sums[D / 8][4] = {};
        float(&of_v)[DV / 8][4] = *(float(*)[DV / 8][4]) sums;
        if (group == 0)
            bwd_walk<S, D, DV, true, false>(sums, unused, at, group, (int)a.seq_q, scale2, tile_of);
        else
            bwd_walk<S, D, DV, false, true>(unused, of_v, at, group, (int)a.seq_q, scale2, tile_of);
        named_barrier_sync(TURN_OF_GROUP, S::GROUPS * WGMMA_THREADS); /* no product reads own rows any more */
        if (group == 0)
            bwd_put(&dk, x_room, sums, a.scale, keys.plane, first);
        else
            bwd_put(&dv, y_room, of_v, 1.0f, keys.plane, first);
    }
    tma_store_wait_read<0>();
}

/* --- launches --------------------------------------------------------------------------------------------------- */

/* Rows (token, plane) as planes of one token each: a box is 64 of them, of one row (batch, head or group). */
static cudaError_t map_of(tma_map *map, gpu_tensor t, int64_t tokens, int64_t planes, int64_t width)
{
    return tma_map_make(map, t.data, tokens, planes, width, 1, WGMMA_TERMS);
}

template <int D, int DV>
static cudaError_t launch(const gpu_attention_bwd_tensors *t, const attention_bwd_row *of_rows,
                          const attention_ranges &ranges, float scale2, const attention_args &a,
                          cudaStream_t stream)
{
    typedef bwd_shape<D, DV, false> of_q;
    typedef bwd_shape<D, DV, true> of_k;
    constexpr int q_bytes = of_q::BYTES, k_bytes = of_k::BYTES;
    const int64_t heads = a.batch * a.heads, groups = a.batch * a.groups;
    const int64_t q_blocks = (a.seq_q + of_q::OWN_ROWS - 1) / of_q::OWN_ROWS * heads,
                  k_blocks = (a.seq_k + of_k::OWN_ROWS - 1) / of_k::OWN_ROWS * groups;
    const struct {
        gpu_tensor t;
        int64_t tokens, planes, width;
    } of[] = {{t->dq, a.seq_q, heads, a.d},    {t->dk, a.seq_k, groups, a.d}, {t->dv, a.seq_k, groups, a.dv},
              {t->dout, a.seq_q, heads, a.dv}, {t->q, a.seq_q, heads, a.d},   {t->k, a.seq_k, groups, a.d},
              {t->v, a.seq_k, groups, a.dv}};
    tma_map map[7];
    cudaError_t e = attention_allow_shared(attention_dq_k3<D, DV>, q_bytes);
    if (e == cudaSuccess)
        e = attention_allow_shared(attention_dkdv_k3<D, DV>, k_bytes);
    for (int i = 0; i < 7 && e == cudaSuccess; ++i)
        e = map_of(&map[i], of[i].t, of[i].tokens, of[i].planes, of[i].width);
    if (e == cudaSuccess)
        e = GPU_LAUNCH((attention_dq_k3<D, DV>), dim3((unsigned)q_blocks), dim3(of_q::THREADS), q_bytes,
                       stream, map[0], map[3], map[4], map[5], map[6], of_rows,
                       (const attention_range *)ranges.keys, scale2, a);
    if (e == cudaSuccess)
        e = GPU_LAUNCH((attention_dkdv_k3<D, DV>), dim3((unsigned)k_blocks), dim3(of_k::THREADS), k_bytes,
                       stream, map[1], map[2], map[3], map[4], map[5], map[6], of_rows,
                       (const attention_query_range *)ranges.queries, scale2, a);
    return e;
}

static cudaError_t launch_by_width(const gpu_attention_bwd_tensors *t, const attention_bwd_row *of_rows,
                                   const attention_ranges &ranges, float scale2, const attention_args &a,
                                   cudaStream_t stream)
{
    const int width = attention_sm90_widths(a.d, a.dv).d;
    return width == 64    ? launch<64, 64>(t, of_rows, ranges, scale2, a, stream)
           : width == 128 ? launch<128, 128>(t, of_rows, ranges, scale2, a, stream)
           : width == 192 ? launch<192, 128>(t, of_rows, ranges, scale2, a, stream)
                          : launch<256, 256>(t, of_rows, ranges, scale2, a, stream);
}

/* Rows as k2's, then the ranges of tiles of queries and keys. */
size_t gpu_attention_bwd_sm90_workspace(const gpu_ctx *ctx, const gpu_operands *o)
{
    const attention_desc d = attention_desc_of(o);
    return gpu_attention_bwd_mma_workspace(ctx, o) +
           (size_t)d.batch * ((size_t)attention_tiles(d.seq_q, WGMMA_TERMS) * sizeof(attention_query_range) +
                              (size_t)attention_tiles(d.seq_k, WGMMA_TERMS) * sizeof(attention_range));
}

assay_status gpu_attention_bwd_sm90(const gpu_work *w, const gpu_attention_bwd_tensors *t,
                                    const attention_args &a)
{
    const attention_bwd_row *of_rows = (const attention_bwd_row *)w->ctx->workspace;
    const float scale2 = gpu_attention_scale2(w->o);
    attention_query_range *queries =
        (attention_query_range *)((char *)w->ctx->workspace + gpu_attention_bwd_mma_workspace(w->ctx, w->o));
    const attention_ranges ranges = {
        (attention_range *)(queries + a.batch * attention_tiles(a.seq_q, WGMMA_TERMS)), queries, WGMMA_TERMS};
    ASSAY_TRY(sm90_check(w->ctx, "attention_bwd"));
    GPU_LAUNCHED(gpu_attention_bwd_rows(t, w->ctx->workspace, a, w->stream), "attention_bwd");
    GPU_LAUNCHED(gpu_attention_ranges(ranges, a, w->stream), "attention_bwd");
    GPU_LAUNCHED(launch_by_width(t, of_rows, ranges, scale2, a, w->stream), "attention_bwd");
    return ASSAY_OK;
}

bool gpu_attention_bwd_takes_sm90(const gpu_ctx *ctx, const gpu_operands *o)
{
    return gpu_attention_takes_sm90(ctx, o) && gpu_operand_int(o, "seq_q") > 0 &&
           gpu_operand_int(o, "batch") > 0;
}
