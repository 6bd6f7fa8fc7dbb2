/* Attention backward on matrix units, k2 (bf16).  docs/OPS.md 5.
 *
 * FlashAttention-2 (Dao 2023) without atomics, in three launches:
 *   attention_bwd_rows_k2   what a row (query, head) brings to all its pairs: the positions that it sees, lse, D = sum dO O
 *   attention_dq_k2         64 rows of a group, whose q and dO stay in registers, over tiles of keys
 *   attention_dkdv_k2       64 keys of a group, over tiles of rows (query, head of the group): the sum over heads is inside
 * Head dimensions above 128: q and dO are read from shared memory for each tile, and where registers do not hold the sums of both dk
 * and dv, attention_dkdv_k2 runs once for each.
 * All compute S and P again.  Tiles are copied one ahead; those that nobody sees are passed over; a mask is applied only where a
 * row may not see all of a tile.
 *
 * Arithmetic: S = q k and dP = dO v in steps of 16 from dimension 0 on; P = exp2(S c - lse log2(e)), c = scale log2(e) and
 * lse log2(e) rounded once from double; dS = P (dP - D); P and dS are rounded to bf16 for dv += P dO, dk += dS q, dq += dS k, in
 * steps of 16 from the first row or key of a tile on, hidden pairs with the factor 0 (a tile that is not finite: one fma a pair that
 * is seen, ascending); dq and dk times scale at the end.  D is one chain of fma. */
#include "gpu/ops/attention_bwd_mma.cuh"
#include "gpu/vector.cuh"

__global__ void attention_bwd_rows_k2(attention_bwd_row *of_rows, const bf16 *dout, const bf16 *o,
                                      const float *lse, attention_args a)
{
    const int64_t rows = a.seq_q * a.batch * a.heads;
    for (int64_t row = gpu_thread(); row < rows; row += gpu_threads()) {
        const int64_t token = row / a.heads;
        attention_bwd_row mine = {};
        mine.first = attention_first_seen(a, token);
        mine.last = a.q_position[token];
        mine.near_first = attention_position(mine.first);
        mine.near_last = attention_position(mine.last);
        for (int64_t i = 0; i < a.dv; i += 8) {
            float x[8], y[8];
            gpu_load_n(x, dout + row * a.dv + i);
            gpu_load_n(y, o + row * a.dv + i);
            GPU_UNROLL
            for (int c = 0; c < 8; ++c)
                mine.known.delta = fmaf(x[c], y[c], mine.known.delta);
        }
        mine.known.lse2 = (float)((double)lse[row] * 1.44269504088896340736);
        of_rows[row] = mine;
    }
}

template <int D, int DV, int KEYS>
__global__ void __launch_bounds__(ATTENTION_MMA_THREADS, 2)
    attention_dq_k2(bf16 *dq, const bf16 *dout, const bf16 *q, const bf16 *k, const bf16 *v,
                    const attention_bwd_row *of_rows, float scale2, attention_args a)
{
    constexpr int ROWS = ATTENTION_MMA_WARPS * 16, NT = KEYS / 8;
    constexpr bool KEPT = D <= 128;
    static_assert(KEYS <= D && (KEPT || ROWS <= DV), "dS fits where rows of q were, or the tile of values");
    GPU_DYNAMIC_SHARED(bf16, shared);
    bf16 *q_tile = shared, *do_tile = q_tile + ROWS * D, *k_tiles = do_tile + ROWS * DV,
         *v_tiles = k_tiles + 2 * KEYS * D;
    const int warp = (int)threadIdx.x / GPU_WARP, lane = (int)threadIdx.x % GPU_WARP;
    /* in 32 bits (gpu_attention_takes_mma) */
    const int per_group = (int)(a.heads / a.groups), rows = (int)a.seq_q * per_group;
    const attention_block block =
        attention_block_of((int)blockIdx.x, (rows + ROWS - 1) / ROWS, (int)a.batch, (int)a.groups, true);
    const int group = block.plane, b = block.b, first_row = block.number * ROWS;
    const int last_row = first_row + ROWS < rows ? first_row + ROWS : rows;
    const int seq_k = (int)a.seq_k, tiles = (seq_k + KEYS - 1) / KEYS;
    auto query = [&](int r) { return attention_bwd_query(a, b, group, first_row + r); };
    attention_copy_both<D, DV, ROWS>(q_tile, q, a.d, do_tile, dout, a.dv, query);
    mma_commit();
    const attention_query_range sees =
        attention_queries_range(a, b, first_row / per_group, (last_row - 1) / per_group + 1, lane);
    auto next_seen = [&](int n, attention_sight *s) {
        for (*s = ATTENTION_SEES_NONE; n < tiles; ++n) {
            const int end = (n + 1) * KEYS;
            *s = attention_sees(sees, attention_keys_range(a, b, n * KEYS, end < seq_k ? end : seq_k, lane));
            if (*s == ATTENTION_SEES_ALL && end > seq_k)
                *s = ATTENTION_SEES_SOME;
            if (*s != ATTENTION_SEES_NONE)
                break;
        }
        return n;
    };
    auto copy = [&](int n, int stage) {
        auto key = [&](int r) {
            return n * KEYS + r < seq_k ? ((n * KEYS + r) * a.batch + b) * a.groups + group : (int64_t)-1;
        };
        attention_copy_both<D, DV, KEYS>(k_tiles + stage * KEYS * D, k, a.d, v_tiles + stage * KEYS * DV, v,
                                         a.dv, key);
        mma_commit();
    };
    attention_bwd_known mine[2];
    GPU_UNROLL
    for (int h = 0; h < 2; ++h) {
        const int64_t row = query(warp * 16 + mma_row(lane, 2 * h));
        mine[h] = row >= 0 ? of_rows[row].known : attention_bwd_known{0.0f, 0.0f};
    }
    attention_sums<D, 1> acc = {};
    attention_rows<KEPT ? D : 32, 1> q_rows;
    attention_rows<KEPT ? DV : 32, 1> do_rows;
    attention_sight sight;
    int n = next_seen(0, &sight);
    if (n < tiles)
        copy(n, 0);
    for (int stage = 0, begun = 0; n < tiles; stage ^= 1) {
        bf16 *k_tile = k_tiles + stage * KEYS * D, *v_tile = v_tiles + stage * KEYS * DV;
        mma_wait<0>();
        const bool unbounded = __syncthreads_or((int)attention_unbounded<D, KEYS>(k_tile)) != 0;
        attention_sight next_sight;
        const int next = next_seen(n + 1, &next_sight);
        if (next < tiles)
            copy(next, stage ^ 1);
        if constexpr (KEPT)
            if (!begun) {
                attention_load_rows<D, ROWS>(&q_rows, q_tile, warp * 16);
                attention_load_rows<DV, ROWS>(&do_rows, do_tile, warp * 16);
            }
        begun = 1;
        auto visible = [&](int h, int x) {
            const int64_t row = query(warp * 16 + mma_row(lane, 2 * h));
            if (row < 0 || n * KEYS + x >= seq_k)
                return false;
            const int64_t position = a.k_position[(n * KEYS + x) * a.batch + b];
            return position >= of_rows[row].first && position <= of_rows[row].last;
        };
        const unsigned seen = sight == ATTENTION_SEES_ALL ? ~0u : attention_seen_bits<NT>(visible);
        float p[1][NT][4] = {}, ds[1][NT][4] = {};
        if constexpr (KEPT) {
            attention_abt<D>(p, q_rows, k_tile);
            attention_abt<DV>(ds, do_rows, v_tile);
        } else {
            attention_abt_tile<D, ROWS>(p, q_tile, warp * 16, k_tile);
            attention_abt_tile<DV, ROWS>(ds, do_tile, warp * 16, v_tile);
        }
        attention_bwd_pairs(p, ds, scale2, sight == ATTENTION_SEES_ALL, seen,
                            [&](int h, int) { return mine[h]; });
        if (unbounded) {
            if (!KEPT)
                __syncthreads(); /* nobody reads the tile of values any more */
            attention_add_seen<D>(&acc, ds, k_tile, KEPT ? q_tile + warp * 16 * D : v_tile + warp * 16 * KEYS,
                                  visible);
        } else {
            attention_ab<D>(&acc, ds, k_tile);
        }
        n = next;
        sight = next_sight;
    }
    mma_wait<0>();
    GPU_UNROLL
    for (int h = 0; h < 2; ++h) {
        const int64_t row = query(warp * 16 + mma_row(lane, 2 * h));
        attention_store_row(dq + row * a.d, acc, 0, h, a.d, a.scale, row >= 0);
    }
}

/* Which of dk and dv a launch computes. */
enum { OF_DK = 1, OF_DV = 2 };

template <int D, int DV, int ROWS, int OF>
__global__ void __launch_bounds__(ATTENTION_MMA_THREADS, 2)
    attention_dkdv_k2(bf16 *dk, bf16 *dv, const bf16 *dout, const bf16 *q, const bf16 *k, const bf16 *v,
                      const attention_bwd_row *of_rows, float scale2, attention_args a)
{
    constexpr int KEYS = ATTENTION_MMA_WARPS * 16, NT = ROWS / 8;
    GPU_DYNAMIC_SHARED(bf16, shared);
    /* dv needs no values */
    bf16 *k_tile = shared, *v_tile = k_tile + KEYS * D,
         *q_tiles = v_tile + ((OF & OF_DK) != 0 ? KEYS * DV : 0), *do_tiles = q_tiles + 2 * ROWS * D,
         *p_tile = do_tiles + 2 * ROWS * DV;
    attention_bwd_row *row_tiles = (attention_bwd_row *)(p_tile + KEYS * ROWS);
    const int warp = (int)threadIdx.x / GPU_WARP, lane = (int)threadIdx.x % GPU_WARP;
    const int per_group = (int)(a.heads / a.groups), rows = (int)a.seq_q * per_group;
    const int seq_k = (int)a.seq_k, tiles = (rows + ROWS - 1) / ROWS;
    const attention_block block =
        attention_block_of((int)blockIdx.x, (seq_k + KEYS - 1) / KEYS, (int)a.batch, (int)a.groups, false);
    const int group = block.plane, b = block.b, first_key = block.number * KEYS;
    auto key_of = [&](int r) {
        return first_key + r < seq_k ? ((first_key + r) * a.batch + b) * a.groups + group : (int64_t)-1;
    };
    if constexpr ((OF & OF_DK) != 0)
        attention_copy_both<D, DV, KEYS>(k_tile, k, a.d, v_tile, v, a.dv, key_of);
    else
        attention_copy_rows<D, KEYS>(k_tile, k, a.d, key_of);
    mma_commit();
    const attention_range keys =
        attention_keys_range(a, b, first_key, first_key + KEYS < seq_k ? first_key + KEYS : seq_k, lane);
    auto next_seen = [&](int n, attention_sight *s) {
        for (*s = ATTENTION_SEES_NONE; n < tiles; ++n) {
            const int end = (n + 1) * ROWS, last = (end < rows ? end : rows) - 1;
            *s = attention_sees(
                attention_queries_range(a, b, n * ROWS / per_group, last / per_group + 1, lane), keys);
            if (*s == ATTENTION_SEES_ALL && end > rows)
                *s = ATTENTION_SEES_SOME;
            if (*s != ATTENTION_SEES_NONE)
                break;
        }
        return n;
    };
    auto copy = [&](int n, int stage) {
        auto query = [&](int r) { return attention_bwd_query(a, b, group, n * ROWS + r); };
        attention_copy_both<D, DV, ROWS>(q_tiles + stage * ROWS * D, q, a.d, do_tiles + stage * ROWS * DV,
                                         dout, a.dv, query);
        for (int i = (int)threadIdx.x; i < 2 * ROWS; i += ATTENTION_MMA_THREADS) {
            const int64_t row = query(i / 2);
            mma_copy16((char *)(row_tiles + stage * ROWS + i / 2) + i % 2 * 16,
                       (const char *)(of_rows + (row >= 0 ? row : 0)) + i % 2 * 16, row >= 0);
        }
        mma_commit();
    };
    int64_t position[2];
    GPU_UNROLL
    for (int h = 0; h < 2; ++h) {
        const int key = first_key + warp * 16 + mma_row(lane, 2 * h);
        position[h] = key < seq_k ? a.k_position[key * a.batch + b] : 0;
    }
    attention_sums<(OF & OF_DK) != 0 ? D : 32, 1> acc_k = {};
    attention_sums<(OF & OF_DV) != 0 ? DV : 32, 1> acc_v = {};
    attention_sight sight;
    int n = next_seen(0, &sight);
    if (n < tiles)
        copy(n, 0);
    for (int stage = 0; n < tiles; stage ^= 1) {
        bf16 *q_tile = q_tiles + stage * ROWS * D, *do_tile = do_tiles + stage * ROWS * DV;
        const attention_bwd_row *row_tile = row_tiles + stage * ROWS;
        mma_wait<0>();
        const bool mine_is =
            attention_unbounded<D, ROWS>(q_tile) || attention_unbounded<DV, ROWS, D / 8>(do_tile);
        const bool unbounded = __syncthreads_or((int)mine_is) != 0;
        attention_sight next_sight;
        const int next = next_seen(n + 1, &next_sight);
        if (next < tiles)
            copy(next, stage ^ 1);
        auto visible = [&](int h, int x) {
            return n * ROWS + x < rows && position[h] >= row_tile[x].first && position[h] <= row_tile[x].last;
        };
        const unsigned seen = sight == ATTENTION_SEES_ALL ? ~0u : attention_seen_bits<NT>(visible);
        float p[1][NT][4] = {}, ds[1][NT][4] = {};
        /* for each tile: the sums of a wide head leave no registers to keep k and v in */
        attention_abt_tile<D, KEYS>(p, k_tile, warp * 16, q_tile);
        if constexpr ((OF & OF_DK) != 0)
            attention_abt_tile<DV, KEYS>(ds, v_tile, warp * 16, do_tile);
        attention_bwd_pairs(p, ds, scale2, sight == ATTENTION_SEES_ALL, seen,
                            [&](int, int x) { return row_tile[x].known; });
        if constexpr ((OF & OF_DV) != 0) {
            if (unbounded)
                attention_add_seen<DV>(&acc_v, p, do_tile, p_tile + warp * 16 * ROWS, visible);
            else
                attention_ab<DV>(&acc_v, p, do_tile);
        }
        if constexpr ((OF & OF_DK) != 0) {
            if (unbounded)
                attention_add_seen<D>(&acc_k, ds, q_tile, p_tile + warp * 16 * ROWS, visible);
            else
                attention_ab<D>(&acc_k, ds, q_tile);
        }
        n = next;
        sight = next_sight;
    }
    mma_wait<0>();
    GPU_UNROLL
    for (int h = 0; h < 2; ++h) {
        const int64_t key = key_of(warp * 16 + mma_row(lane, 2 * h));
        if constexpr ((OF & OF_DK) != 0)
            attention_store_row(dk + key * a.d, acc_k, 0, h, a.d, a.scale, key >= 0);
        if constexpr ((OF & OF_DV) != 0)
            attention_store_row(dv + key * a.dv, acc_v, 0, h, a.dv, 1.0f, key >= 0);
    }
}

/* Keys of a tile that attention_dq_k2 meets. */
static constexpr int keys_of_tile(int width)
{
    return width > 192 ? 16 : attention_mma_keys(width);
}

/* Rows of a tile that attention_dkdv_k2 meets. */
static constexpr int rows_of_tile(int width)
{
    return width <= 64 ? 64 : width <= 128 ? 32 : 16;
}

template <int D, int DV, int OF>
static cudaError_t launch_dkdv(const gpu_attention_bwd_tensors *t, const attention_bwd_row *of_rows,
                               float scale2, const attention_args &a, cudaStream_t stream)
{
    constexpr int BLOCK = ATTENTION_MMA_WARPS * 16, ROWS = rows_of_tile(D);
    constexpr int own = (OF & OF_DK) != 0 ? D + DV : D;
    constexpr size_t bytes = sizeof(bf16) * (size_t)(BLOCK * own + 2 * ROWS * (D + DV) + BLOCK * ROWS) +
                             sizeof(attention_bwd_row) * (size_t)(2 * ROWS);
    static_assert(bytes <= ATTENTION_MMA_SHARED, "every device of sm_80 and later");
    const int64_t blocks = (a.seq_k + BLOCK - 1) / BLOCK * a.batch * a.groups;
    const cudaError_t e = attention_allow_shared(attention_dkdv_k2<D, DV, ROWS, OF>, bytes);
    if (e != cudaSuccess || blocks == 0)
        return e;
    return GPU_LAUNCH((attention_dkdv_k2<D, DV, ROWS, OF>), dim3((unsigned)blocks),
                      dim3(ATTENTION_MMA_THREADS), bytes, stream, (bf16 *)t->dk.data, (bf16 *)t->dv.data,
                      (const bf16 *)t->dout.data, (const bf16 *)t->q.data, (const bf16 *)t->k.data,
                      (const bf16 *)t->v.data, of_rows, scale2, a);
}

template <int D, int DV>
static cudaError_t launch(const gpu_attention_bwd_tensors *t, const attention_bwd_row *of_rows, float scale2,
                          const attention_args &a, cudaStream_t stream)
{
    constexpr int BLOCK = ATTENTION_MMA_WARPS * 16, KEYS = keys_of_tile(D);
    constexpr size_t bytes = sizeof(bf16) * (size_t)((BLOCK + 2 * KEYS) * (D + DV));
    static_assert(bytes <= ATTENTION_MMA_SHARED, "every device of sm_80 and later");
    const int64_t blocks = (a.seq_q * (a.heads / a.groups) + BLOCK - 1) / BLOCK * a.batch * a.groups;
    cudaError_t e = attention_allow_shared(attention_dq_k2<D, DV, KEYS>, bytes);
    if (e == cudaSuccess && blocks > 0)
        e = GPU_LAUNCH((attention_dq_k2<D, DV, KEYS>), dim3((unsigned)blocks), dim3(ATTENTION_MMA_THREADS),
                       bytes, stream, (bf16 *)t->dq.data, (const bf16 *)t->dout.data, (const bf16 *)t->q.data,
                       (const bf16 *)t->k.data, (const bf16 *)t->v.data, of_rows, scale2, a);
    if (e != cudaSuccess)
        return e;
    if constexpr (D + DV <= 320) { /* registers hold the sums of both */
        return launch_dkdv<D, DV, OF_DK | OF_DV>(t, of_rows, scale2, a, stream);
    } else {
        e = launch_dkdv<D, DV, OF_DV>(t, of_rows, scale2, a, stream);
        return e == cudaSuccess ? launch_dkdv<D, DV, OF_DK>(t, of_rows, scale2, a, stream) : e;
    }
}

cudaError_t gpu_attention_bwd_rows(const gpu_attention_bwd_tensors *t, void *workspace,
                                   const attention_args &a, cudaStream_t stream)
{
    const int64_t rows = a.seq_q * a.batch * a.heads;
    if (rows == 0)
        return cudaSuccess;
    return GPU_LAUNCH_NO_BARRIER(attention_bwd_rows_k2, gpu_grid(rows, GPU_BLOCK), dim3(GPU_BLOCK), 0, stream,
                                 (attention_bwd_row *)workspace, (const bf16 *)t->dout.data,
                                 (const bf16 *)t->o.data, (const float *)t->lse.data, a);
}

cudaError_t gpu_attention_bwd_mma(const gpu_attention_bwd_tensors *t, void *workspace, float scale2,
                                  const attention_args &a, cudaStream_t stream)
{
    const attention_bwd_row *of_rows = (const attention_bwd_row *)workspace;
    const cudaError_t e = gpu_attention_bwd_rows(t, workspace, a, stream);
    if (e != cudaSuccess)
        return e;
    return ATTENTION_MMA_BY_WIDTHS(attention_mma_widths_of(a.d, a.dv), launch, t, of_rows, scale2, a, stream);
}

size_t gpu_attention_bwd_mma_workspace(const gpu_ctx *, const gpu_operands *o)
{
    const attention_desc d = attention_desc_of(o);
    return sizeof(attention_bwd_row) * (size_t)d.seq_q * (size_t)d.batch * (size_t)d.heads;
}
