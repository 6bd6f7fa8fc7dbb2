/* Attention forward on matrix units, k2 (bf16).  docs/OPS.md 5.
 *
 * FlashAttention-2 (Dao 2023): a block of four warps takes 64 rows (query, head of the group; longest rows first), whose
 * operands stay in registers (of 256 dimensions they are read from shared memory for each tile), and walks over tiles of 32 or 64
 * keys that are copied one tile ahead.  Tiles that no row sees are passed over, a mask is applied only where a row may not see all
 * of a tile.
 *
 * Arithmetic: q k in steps of 16 from dimension 0 on; exp2 of (score x c - reference), c = scale log2(e) rounded once from double and
 * reference the largest score x c so far; the sum adds what exp2 gives, unrounded; P is rounded to bf16 for P V, in steps of 16 keys
 * from the first key of a tile on, hidden keys with the factor 0. */
#include "gpu/ops/attention_mma.cuh"

#define LN2 0.693147180559945309f

/* Whether the rows of q of a warp stay in registers beside its sums. */
__host__ __device__ constexpr bool keeps_rows(int d, int dv)
{
    return d / 4 + dv / 2 <= 128;
}

template <int D, int DV, int MT, int KEYS>
__global__ void __launch_bounds__(ATTENTION_MMA_THREADS, 2)
    attention_fwd_k2(bf16 *o, float *lse, const bf16 *q, const bf16 *k, const bf16 *v, float scale2,
                     attention_args a)
{
    constexpr int ROWS = ATTENTION_MMA_WARPS * MT * 16, NT = KEYS / 8;
    constexpr int PARTS = attention_parts(DV), DT = attention_part(DV) / 8;
    constexpr bool KEPT = keeps_rows(D, DV);
    static_assert(KEYS <= attention_part(D), "the probabilities of a warp fit where its rows of q were");
    static_assert(KEPT || ROWS <= D, "the probabilities of the block fit where a tile of keys was");
    GPU_DYNAMIC_SHARED(bf16, shared);
    bf16 *q_tile = shared, *k_tiles = q_tile + ROWS * D, *v_tiles = k_tiles + 2 * KEYS * D;
    const int warp = (int)threadIdx.x / GPU_WARP, lane = (int)threadIdx.x % GPU_WARP;
    /* in 32 bits (gpu_attention_takes_mma): registers are what limits the tiles */
    const int per_group = (int)(a.heads / a.groups), rows = (int)a.seq_q * per_group;
    const attention_block block =
        attention_block_of((int)blockIdx.x, (rows + ROWS - 1) / ROWS, (int)a.batch, (int)a.groups, true);
    const int group = block.plane, b = block.b, first_row = block.number * ROWS;
    const int last_row = first_row + ROWS < rows ? first_row + ROWS : rows;
    const int seq_k = (int)a.seq_k, tiles = (seq_k + KEYS - 1) / KEYS;
    attention_copy_rows<D, ROWS>(q_tile, q, a.d,
                                 [&](int r) { return attention_query(a, b, group, first_row + r); });
    mma_commit();
    GPU_SHARED(attention_query_range, sees, 1);
    if (warp == 0) {
        const attention_query_range mine =
            attention_queries_range(a, b, first_row / per_group, (last_row - 1) / per_group + 1, lane);
        if (lane == 0)
            *sees = mine;
    }
    __syncthreads();
    auto sight_of = [&](int n) {
        const int end = (n + 1) * KEYS;
        const attention_sight s =
            attention_sees(*sees, attention_keys_range(a, b, n * KEYS, end < seq_k ? end : seq_k, lane));
        return s == ATTENTION_SEES_ALL && end > seq_k ? ATTENTION_SEES_SOME : s;
    };
    auto next_seen = [&](int n, attention_sight *s) {
        for (*s = ATTENTION_SEES_NONE; n < tiles; ++n)
            if ((*s = sight_of(n)) != ATTENTION_SEES_NONE)
                break;
        return n;
    };
    auto copy = [&](int n, int stage) {
        auto key = [&](int r) {
            return n * KEYS + r < seq_k ? ((n * KEYS + r) * a.batch + b) * a.groups + group : (int64_t)-1;
        };
        attention_copy_rows<D, KEYS>(k_tiles + stage * KEYS * D, k, a.d, key);
        attention_copy_rows<DV, KEYS>(v_tiles + stage * KEYS * DV, v, a.dv, key);
        mma_commit();
    };
    attention_sums<DV, MT> acc = {};
    float reference[MT][2], sum[MT][2] = {};
    unsigned any = 0; /* bit 2 m + h: the row has seen a key, of this lane's columns */
    GPU_UNROLL
    for (int m = 0; m < MT; ++m)
        reference[m][0] = reference[m][1] = -INFINITY;
    /* Row h of m of this lane, as [token, head]; -1 past the end. */
    auto query_of = [&](int m, int h) {
        return attention_query(a, b, group, first_row + (warp * MT + m) * 16 + mma_row(lane, 2 * h));
    };
    auto visible = [&](int64_t query, int key) {
        return query >= 0 && key < seq_k && attention_visible(a, query / a.heads, key * a.batch + b);
    };
    attention_rows<KEPT ? D : 32, MT> q_rows;
    attention_sight sight;
    int n = next_seen(0, &sight);
    if (n < tiles)
        copy(n, 0);
    for (int stage = 0, begun = 0; n < tiles; stage ^= 1) {
        bf16 *k_tile = k_tiles + stage * KEYS * D, *v_tile = v_tiles + stage * KEYS * DV;
        mma_wait<0>();
        const bool unbounded = __syncthreads_or((int)attention_clear_rows<DV, KEYS>(v_tile)) != 0;
        attention_sight next_sight;
        const int next = next_seen(n + 1, &next_sight);
        if (next < tiles)
            copy(next, stage ^ 1);
        float p[MT][NT][4] = {};
        if constexpr (KEPT) {
            if (!begun)
                attention_load_rows<D, ROWS>(&q_rows, q_tile, warp * MT * 16);
            begun = 1;
            attention_abt<D>(p, q_rows, k_tile);
        } else {
            attention_abt_tile<D, ROWS>(p, q_tile, warp * MT * 16, k_tile);
        }
        if (sight == ATTENTION_SEES_ALL)
            any = ~0u;
        else
            GPU_UNROLL
        for (int m = 0; m < MT; ++m)
            GPU_UNROLL
        for (int e = 0; e < 4; ++e) {
            const int64_t query = query_of(m, e >> 1);
            GPU_UNROLL
            for (int j = 0; j < NT; ++j) {
                const bool seen = visible(query, n * KEYS + j * 8 + mma_column(lane, e));
                p[m][j][e] = seen ? p[m][j][e] : -INFINITY;
                any |= seen ? 1u << (2 * m + (e >> 1)) : 0u;
            }
        }
        GPU_UNROLL
        for (int m = 0; m < MT; ++m)
            GPU_UNROLL
        for (int h = 0; h < 2; ++h) {
            float most = -INFINITY, added = 0.0f;
            GPU_UNROLL
            for (int j = 0; j < NT; ++j)
                most = fmaxf(most, fmaxf(p[m][j][2 * h], p[m][j][2 * h + 1]));
            const float before = reference[m][h],
                        larger = fmaxf(before, __fmul_rn(attention_quad_max(most), scale2));
            /* exp2(score - shift) never meets inf - inf because nothing was seen yet */
            const float shift = larger == -INFINITY ? 0.0f : larger;
            const float rescale = before == -INFINITY ? 1.0f : exp2f(before - shift);
            reference[m][h] = larger;
            GPU_UNROLL
            for (int j = 0; j < NT; ++j)
                GPU_UNROLL
            for (int e = 2 * h; e < 2 * h + 2; ++e) {
                p[m][j][e] = exp2f(fmaf(p[m][j][e], scale2, -shift));
                added += p[m][j][e];
            }
            sum[m][h] = sum[m][h] * rescale + added;
            GPU_UNROLL
            for (int i = 0; i < PARTS; ++i)
                GPU_UNROLL
            for (int d = 0; d < DT; ++d) {
                acc.part[i][m][d][2 * h] *= rescale;
                acc.part[i][m][d][2 * h + 1] *= rescale;
            }
        }
        attention_ab<DV>(&acc, p, v_tile);
        if (unbounded) { /* what attention_clear_rows took out of the product */
            bf16 *mine = q_tile + warp * MT * 16 * attention_part(D);
            if constexpr (!KEPT) {
                __syncthreads(); /* nobody reads the tile of keys any more */
                mine = k_tile + warp * MT * 16 * KEYS;
            }
            GPU_UNROLL
            for (int m = 0; m < MT; ++m)
                GPU_UNROLL
            for (int j = 0; j < NT; ++j)
                GPU_UNROLL
            for (int e = 0; e < 4; ++e)
                gpu_store(mine + (m * 16 + mma_row(lane, e)) * KEYS + j * 8 + mma_column(lane, e),
                          p[m][j][e]);
            __syncwarp();
            for (int s = n * KEYS; s < seq_k && s < (n + 1) * KEYS; ++s)
                GPU_UNROLL
            for (int m = 0; m < MT; ++m)
                GPU_UNROLL
            for (int e = 0; e < 4; ++e) {
                if (!visible(query_of(m, e >> 1), s))
                    continue;
                const float weight = gpu_load(mine + (m * 16 + mma_row(lane, e)) * KEYS + s - n * KEYS);
                GPU_UNROLL
                for (int i = 0; i < PARTS; ++i)
                    GPU_UNROLL
                for (int d = 0; d < DT; ++d) {
                    const int column = attention_column<DV>(i, d, lane, e);
                    const float value =
                        column < a.dv ? gpu_load(v + ((s * a.batch + b) * a.groups + group) * a.dv + column)
                                      : 0.0f;
                    if (!attention_finite(value))
                        acc.part[i][m][d][e] = fmaf(weight, value, acc.part[i][m][d][e]);
                }
            }
            __syncwarp();
        }
        n = next;
        sight = next_sight;
    }
    mma_wait<0>();
    any |= __shfl_xor_sync(gpu_all_lanes, any, 1);
    any |= __shfl_xor_sync(gpu_all_lanes, any, 2);
    GPU_UNROLL
    for (int m = 0; m < MT; ++m)
        GPU_UNROLL
    for (int h = 0; h < 2; ++h) {
        const int64_t query = query_of(m, h);
        const float whole = attention_quad_sum(sum[m][h]);
        const bool some = (any >> (2 * m + h) & 1u) != 0;
        attention_store_row(o + query * a.dv, acc, m, h, a.dv, some ? 1.0f / whole : 0.0f, query >= 0);
        if (query < 0)
            continue;
        const float shift = reference[m][h] == -INFINITY ? 0.0f : reference[m][h];
        if (mma_column(lane, 0) == 0)
            lse[query] = some ? fmaf(shift, LN2, logf(whole)) : -INFINITY;
    }
}

template <int D, int DV>
static cudaError_t launch(gpu_tensor o, gpu_tensor lse, gpu_tensor q, gpu_tensor k, gpu_tensor v,
                          float scale2, const attention_args &a, cudaStream_t stream)
{
    constexpr int KEYS = attention_mma_keys(D), ROWS = ATTENTION_MMA_WARPS * 16;
    const int64_t blocks = (a.seq_q * (a.heads / a.groups) + ROWS - 1) / ROWS * a.batch * a.groups;
    constexpr size_t bytes = sizeof(bf16) * (size_t)(ROWS * D + 2 * KEYS * (D + DV));
    static_assert(bytes <= ATTENTION_MMA_SHARED, "every device of sm_80 and later");
    const cudaError_t e = attention_allow_shared(attention_fwd_k2<D, DV, 1, KEYS>, bytes);
    if (e != cudaSuccess)
        return e;
    return GPU_LAUNCH((attention_fwd_k2<D, DV, 1, KEYS>), dim3((unsigned)blocks), dim3(ATTENTION_MMA_THREADS),
                      bytes, stream, (bf16 *)o.data, (float *)lse.data, (const bf16 *)q.data,
                      (const bf16 *)k.data, (const bf16 *)v.data, scale2, a);
}

cudaError_t gpu_attention_fwd_mma(gpu_tensor o, gpu_tensor lse, gpu_tensor q, gpu_tensor k, gpu_tensor v,
                                  float scale2, const attention_args &a, cudaStream_t stream)
{
    return ATTENTION_MMA_BY_WIDTHS(attention_mma_widths_of(a.d, a.dv), launch, o, lse, q, k, v, scale2, a,
                                   stream);
}

/* scale log2(e), rounded once */
float gpu_attention_scale2(const gpu_operands *o)
{
    return (float)(gpu_operand_double(o, "scale") * 1.44269504088896340736);
}

bool gpu_attention_takes_mma(const gpu_ctx *, const gpu_operands *o)
{
    static const char *const rows[] = {"q", "k", "v", "o", "do", "dq", "dk", "dv"};
    const attention_desc d = attention_desc_of(o);
    bool aligned = true;
    for (const char *name : rows)
        aligned = aligned && (uintptr_t)gpu_operand(o, name).data % 16 == 0;
    return aligned && gpu_operand(o, "q").dtype == ASSAY_BF16 && d.head_dim % 8 == 0 &&
           d.head_dim_v % 8 == 0 && !(d.dropout_p > 0.0) && d.seq_q * (d.heads / d.groups) < INT_MAX / 2 &&
           d.seq_k < INT_MAX / 2 && gpu_attention_scale2(o) >= 0x1p-100f && isfinite(gpu_attention_scale2(o));
}

void gpu_attention_mma_arith(assay_arith *a, const gpu_ctx *ctx, const gpu_operands *o)
{
    a->tile = attention_mma_keys(
        attention_mma_widths_of(gpu_operand_int(o, "head_dim"), gpu_operand_int(o, "head_dim_v")).d);
    gpu_mma_arith(a, ctx, o);
}
