/* Attention forward by warpgroups and tensor maps, k3 (bf16, sm_90a alone).  docs/OPS.md 5.  Seen on an H200: docs/BENCH.md.
 *
 * The form of FlashAttention-3 (Shah et al. 2024): a block takes 128 rows (query, head of the group; longest rows first), of heads up to
 * 64 wide 192.  A warp walks over the tiles of keys, passes over those that no row sees, and loads the others up to STAGES ahead; two or
 * three warpgroups take 64 rows each.  A warpgroup has the scores of the next tile and P V of this one under way together, and computes
 * exponentials under the latter; they take turns at issuing products, so that one's exponentials lie under the other's products.  P
 * stays in registers.
 *
 * Arithmetic: as k2 (attention_mma.cu), in tiles of attention_sm90_keys keys.  A tile that hides something and holds an infinity or a
 * NaN in V is added pair by pair, by fma in ascending order: hidden keys have the factor 0 in a product, and 0 x inf is NaN. */
#include "gpu/ops/attention_sm90.cuh"

#define LN2 0.693147180559945309f

/* The warpgroup's rows of q, in parts of 64 columns; zeros past the end and behind the width. */
template <int D>
__device__ static __forceinline__ void copy_rows(bf16 *q_tile, const bf16 *q, const attention_args &a,
                                                 const block_rows &rows, int group)
{
    const uint4 zero = make_uint4(0, 0, 0, 0);
    for (int i = (int)threadIdx.x % WGMMA_THREADS; i < WGMMA_ROWS * (D / 8); i += WGMMA_THREADS) {
        const int r = i / (D / 8), c = i % (D / 8);
        const int64_t query = query_of(a, rows, rows.first + group * WGMMA_ROWS + r);
        bf16 *to = mma_chunk<WGMMA_TERMS>(q_tile + c / 8 * WGMMA_TILE, r, c % 8);
        *(uint4 *)to = query >= 0 && c * 8 < a.d ? *(const uint4 *)(q + query * a.d + c * 8) : zero;
    }
    proxy_fence(q_tile, WGMMA_ROWS * D * (int)sizeof(bf16));
    named_barrier_sync(OWN_GROUP + group, WGMMA_THREADS);
}

/* Rows of o and lse.  The warp's rows of q are where those of o are gathered, so that 16 bytes are stored at once. */
template <class S, int DV>
__device__ static __forceinline__ void put_rows(bf16 *o, float *lse, bf16 *tile,
                                                const float (&acc)[S::PARTS][S::COLUMNS / 8][4],
                                                row_softmax *r, const attention_args &a, int group)
{
    const block_rows rows = rows_of_block<S::ROWS>(a, mma_block_again());
    const int thread = (int)threadIdx.x, lane = thread % GPU_WARP;
    const int first = thread % WGMMA_THREADS / GPU_WARP * 16; /* row of the warp */
    named_barrier_sync(OWN_GROUP + group, WGMMA_THREADS);     /* no product reads q any more */
    r->any |= __shfl_xor_sync(gpu_all_lanes, r->any, 1);
    r->any |= __shfl_xor_sync(gpu_all_lanes, r->any, 2);
    GPU_UNROLL
    for (int h = 0; h < 2; ++h) {
        const float whole = attention_quad_sum(r->sum[h]), share = 1.0f / whole;
        const float shift = r->reference[h] == -INFINITY ? 0.0f : r->reference[h];
        const bool some = (r->any >> h & 1u) != 0;
        GPU_UNROLL
        for (int i = 0; i < S::PARTS; ++i)
            GPU_UNROLL
        for (int j = 0; j < S::COLUMNS / 8; ++j) {
            const int column = i * S::COLUMNS + j * 8 + mma_column(lane, 0);
            bf16 *to = mma_chunk<WGMMA_TERMS>(tile + column / WGMMA_TERMS * WGMMA_TILE,
                                              wgmma_row(thread, 2 * h), column % WGMMA_TERMS / 8);
            *(__nv_bfloat162 *)(to + column % 8) = __floats2bfloat162_rn(
                some ? acc[i][j][2 * h] * share : 0.0f, some ? acc[i][j][2 * h + 1] * share : 0.0f);
        }
        const int64_t query = query_of(a, rows, rows.first + group * WGMMA_ROWS + wgmma_row(thread, 2 * h));
        if (mma_column(lane, 0) == 0 && query >= 0)
            lse[query] = some ? fmaf(shift, LN2, logf(whole)) : -INFINITY;
    }
    __syncwarp();
    for (int i = lane; i < 16 * (DV / 8); i += GPU_WARP) {
        const int row = first + i / (DV / 8), c = i % (DV / 8);
        const int64_t query = query_of(a, rows, rows.first + group * WGMMA_ROWS + row);
        if (query >= 0 && c * 8 < a.dv)
            *(uint4 *)(o + query * a.dv + c * 8) =
                *(const uint4 *)mma_chunk<WGMMA_TERMS>(tile + c / 8 * WGMMA_TILE, row, c % 8);
    }
}

/* --- a warpgroup's products ------------------------------------------------------------------------------------- */

/* s = q k^T of 64 rows and a tile of keys; a group of its own. */
template <class S, int D>
__device__ static __forceinline__ void scores(float (&s)[S::KEYS / 8][4], const bf16 *q_tile,
                                              const bf16 *k_tile)
{
    GPU_UNROLL
    for (int i = 0; i < D / WGMMA_TERMS; ++i)
        wgmma_multiply<false, false>(s, q_tile + i * WGMMA_TILE, k_tile + i * S::KEYS * WGMMA_TERMS, i > 0);
    wgmma_commit();
}

/* acc += p v, of a tile of values; zeros: v is S::ZEROS of them, whatever the place in a tile.  A group of its own. */
template <class S, int DV>
__device__ static __forceinline__ void values(float (&acc)[S::PARTS][S::COLUMNS / 8][4],
                                              const unsigned (&p)[S::HALVES][4][4], const bf16 *v, bool zeros)
{
    GPU_UNROLL
    for (int i = 0; i < S::PARTS; ++i)
        GPU_UNROLL
    for (int h = 0; h < S::HALVES; ++h)
        wgmma_multiply<true>(acc[i], p[h], v + (zeros ? 0 : (h * DV + i * S::COLUMNS) * WGMMA_TERMS), true);
    wgmma_commit();
}

/* The same of the keys that a row sees, pair by pair. */
template <class S, int DV>
__device__ static __forceinline__ void add_values(float (&acc)[S::PARTS][S::COLUMNS / 8][4],
                                                  const unsigned (&p)[S::HALVES][4][4], bf16 *v_tile,
                                                  const attention_args &a, int group, int first_key)
{
    const block_rows rows = rows_of_block<S::ROWS>(a, mma_block_again());
    const int row = rows.first + group * WGMMA_ROWS + wgmma_row((int)threadIdx.x, 0);
    GPU_UNROLL
    for (int h = 0; h < S::HALVES; ++h) {
        const int first = first_key + h * WGMMA_TERMS;
        GPU_UNROLL
        for (int i = 0; i < S::PARTS; ++i)
            add_pairs(acc[i], p[h], v_tile + (h * DV + i * S::COLUMNS) * WGMMA_TERMS,
                      min((int)WGMMA_TERMS, (int)a.seq_k - first), [&](int r, int k) {
                          return sight_of_row(a, rows, row + 8 * r)
                              .sees(a.k_position[(first + k) * a.batch + rows.b]);
                      });
    }
}

/* Until they are there. */
template <class S>
__device__ static __forceinline__ void wait_values(float (&acc)[S::PARTS][S::COLUMNS / 8][4],
                                                   unsigned (&p)[S::HALVES][4][4])
{
    GPU_UNROLL
    for (int i = 0; i < S::PARTS; ++i)
        wgmma_wait<0>(acc[i]);
    GPU_UNROLL
    for (int h = 0; h < S::HALVES; ++h)
        wgmma_hold(p[h]);
}

template <class S>
__device__ static __forceinline__ void round_all(unsigned (&p)[S::HALVES][4][4],
                                                 const float (&s)[S::KEYS / 8][4])
{
    GPU_UNROLL
    for (int h = 0; h < S::HALVES; ++h)
        wgmma_round(p[h], s, h * WGMMA_TERMS);
}

/* The warpgroups issue products in turns, the first one first; the last turn of all is nobody's to wait for. */
template <int GROUPS> __device__ static __forceinline__ void begin_turn(int group, int turn)
{
    if (group > 0 || turn > 0)
        named_barrier_sync(TURN_OF_GROUP + group, 2 * WGMMA_THREADS); /* it and the one before it */
}
template <int GROUPS> __device__ static __forceinline__ void end_turn(int group, bool last)
{
    if (group < GROUPS - 1 || !last)
        named_barrier_arrive(TURN_OF_GROUP + (group < GROUPS - 1 ? group + 1 : 0), 2 * WGMMA_THREADS);
}

/* What a row does not see of the scores of a stage's tile. */
template <class S>
__device__ static __forceinline__ void hide_some(float (&s)[S::KEYS / 8][4], row_softmax *r,
                                                 const stage_tile &tile, const int64_t *position,
                                                 const attention_args &a, int group)
{
    if (tile.sight == ATTENTION_SEES_ALL) {
        r->any = 3;
    } else {
        const block_rows rows = rows_of_block<S::ROWS>(a, mma_block_again());
        const int row = rows.first + group * WGMMA_ROWS + wgmma_row((int)threadIdx.x, 0);
        auto position_of = [&](int x) {
            return S::HAS_POSITIONS ? position[S::HAS_POSITIONS ? x : 0]
                                    : a.k_position[(tile.n * S::KEYS + x) * a.batch + rows.b];
        };
        const int there = (int)a.seq_k - tile.n * S::KEYS;
        if (tile.near)
            hide<int>(s, a, rows, row, position_of, there, &r->any);
        else
            hide<int64_t>(s, a, rows, row, position_of, there, &r->any);
    }
}

/* A warpgroup's 64 rows over all tiles. */
template <class S, int D, int DV>
__device__ static __forceinline__ void attend(bf16 *o, float *lse, bf16 *q_tile, bf16 *stages, bf16 *zeros,
                                              stage_barriers<S> *bar, float scale2, const attention_args &a,
                                              int group)
{
    row_softmax soft = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}, 0};
    float acc[S::PARTS][S::COLUMNS / 8][4] = {}, s[S::KEYS / 8][4], rescale[2];
    unsigned p[S::HALVES][4][4];
    mbarrier_wait(&bar->k_full[0], 0);
    stage_tile tile = bar->tile[0];
    if (tile.n >= 0) {
        begin_turn<S::GROUPS>(group, 0);
        wgmma_fence();
        scores<S, D>(s, q_tile, stages);
        end_turn<S::GROUPS>(group, false);
        wgmma_wait<0>(s);
        hide_some<S>(s, &soft, tile, bar->position[0], a, group);
        leave(&bar->k_empty[0]);
        exponentials(s, &soft, rescale, scale2);
        round_all<S>(p, s);
    }
    for (int item = 0; tile.n >= 0; ++item) {
        const int stage = item % S::STAGES, next = (item + 1) % S::STAGES;
        bf16 *v_tile = stages + stage * (S::K + S::V) + S::K;
        mbarrier_wait(&bar->k_full[next], (item + 1) / S::STAGES % 2);
        const stage_tile next_tile = bar->tile[next];
        mbarrier_wait(&bar->v_full[stage], item / S::STAGES % 2);
        const bool by_pairs = tile.sight != ATTENTION_SEES_ALL &&
                              is_unbounded<S::V>(v_tile, v_tile, &bar->unbounded[group], group,
                                                 item + 1); /* it meets at its turns */
        if (by_pairs) {
            add_values<S, DV>(acc, p, v_tile, a, group, tile.n * S::KEYS);
            v_tile = zeros; /* a branch around products would take their overlap away */
        }
        begin_turn<S::GROUPS>(group, item + 1);
        if (next_tile.n < 0) {
            wgmma_fence(); /* in each branch: the compiler wants it where the products are */
            values<S, DV>(acc, p, v_tile, by_pairs);
            end_turn<S::GROUPS>(group, true);
            wait_values<S>(acc, p);
            break;
        }
        wgmma_fence();
        scores<S, D>(s, q_tile, stages + next * (S::K + S::V));
        values<S, DV>(acc, p, v_tile, by_pairs);
        end_turn<S::GROUPS>(group, false);
        wgmma_wait<1>(s);
        hide_some<S>(s, &soft, next_tile, bar->position[next], a, group);
        leave(&bar->k_empty[next]);
        exponentials(s, &soft, rescale, scale2);
        wait_values<S>(acc, p);
        leave(&bar->v_empty[stage]);
        GPU_UNROLL
        for (int i = 0; i < S::PARTS; ++i)
            GPU_UNROLL
        for (int j = 0; j < S::COLUMNS / 8; ++j)
            GPU_UNROLL
        for (int e = 0; e < 4; ++e)
            acc[i][j][e] *= rescale[e / 2];
        round_all<S>(p, s);
        tile = next_tile;
    }
    put_rows<S, DV>(o, lse, q_tile, acc, &soft, a, group);
}

template <int D, int DV>
__global__ void __launch_bounds__((shape<D, DV>::THREADS), 1)
    attention_fwd_k3(bf16 *o, float *lse, const bf16 *q, TMA_MAP_PARAMETER k, TMA_MAP_PARAMETER v,
                     const attention_range *of_tiles, float scale2, attention_args a)
{
    typedef shape<D, DV> S;
    GPU_DYNAMIC_SHARED(unsigned char, shared);
    GPU_SHARED(stage_barriers<S>, bar, 1);
    bf16 *q_tiles = wgmma_tiles(shared), *zeros = q_tiles + S::GROUPS * S::Q, *stages = zeros + S::ZEROS;
    const block_rows rows = rows_of_block<S::ROWS>(a, (int)blockIdx.x);
    const int group = wgmma_group() - 1; /* -1 loads */
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::STAGES; ++i) {
            mbarrier_init(&bar->k_full[i], 1);
            mbarrier_init(&bar->v_full[i], 1);
            mbarrier_init(&bar->k_empty[i], S::GROUPS * WGMMA_THREADS / GPU_WARP);
            mbarrier_init(&bar->v_empty[i], S::GROUPS * WGMMA_THREADS / GPU_WARP);
        }
        for (int i = 0; i < S::GROUPS; ++i)
            bar->unbounded[i] = 0;
        mbarrier_fence_init();
    }
    for (int i = (int)threadIdx.x; i < S::ZEROS / 8; i += S::THREADS)
        ((uint4 *)zeros)[i] = make_uint4(0, 0, 0, 0);
    proxy_fence(zeros, S::ZEROS * (int)sizeof(bf16));
    __syncthreads();
    if (group < 0) {
        setmaxnreg_dec<S::LOADER>();
        if (threadIdx.x < GPU_WARP)
            load_all<S, D, DV>(stages, bar, &k, &v, of_tiles, a, rows);
        return;
    }
    setmaxnreg_inc<S::MULTIPLIER>();
    copy_rows<D>(q_tiles + group * S::Q, q, a, rows, group);
    attend<S, D, DV>(o, lse, q_tiles + group * S::Q, stages, zeros, bar, scale2, a, group);
}

/* --- ranges of tiles -------------------------------------------------------------------------------------------- */

/* A warp a tile: first those of keys, then those of queries. */
__global__ void attention_ranges_k3(attention_ranges to, attention_args a)
{
    const int lane = (int)threadIdx.x % GPU_WARP;
    const int64_t keys = attention_tiles(a.seq_k, to.tile), queries = attention_tiles(a.seq_q, WGMMA_TERMS);
    const int64_t warp = gpu_thread() / GPU_WARP, n = warp - a.batch * keys;
    if (warp < a.batch * keys) {
        const int64_t first = warp % keys * to.tile, end = min(first + to.tile, a.seq_k);
        const attention_range r = attention_keys_range(a, warp / keys, first, end, lane);
        if (lane == 0)
            to.keys[warp] = r;
    } else if (to.queries != nullptr && n < a.batch * queries) {
        const int64_t first = n % queries * WGMMA_TERMS, end = min(first + WGMMA_TERMS, a.seq_q);
        const attention_query_range r = attention_queries_range(a, n / queries, first, end, lane);
        if (lane == 0)
            to.queries[n] = r;
    }
}

cudaError_t gpu_attention_ranges(const attention_ranges &to, const attention_args &a, cudaStream_t stream)
{
    const int64_t tiles = attention_tiles(a.seq_k, to.tile) +
                          (to.queries != nullptr ? attention_tiles(a.seq_q, WGMMA_TERMS) : 0);
    const int64_t warps = GPU_BLOCK / GPU_WARP, blocks = (a.batch * tiles + warps - 1) / warps;
    return GPU_LAUNCH(attention_ranges_k3, dim3((unsigned)blocks), dim3(GPU_BLOCK), 0, stream, to, a);
}

/* --- launches --------------------------------------------------------------------------------------------------- */

/* Keys or values of tokens [seq_k][batch], as planes of one key each: a box is KEYS of them, of one row (batch, group). */
static cudaError_t map_of(tma_map *map, gpu_tensor t, const attention_args &a, int64_t width, int keys)
{
    return tma_map_make(map, t.data, a.seq_k, a.batch * a.groups, width, 1, keys);
}

template <int D, int DV>
static cudaError_t launch(const gpu_attention_fwd_tensors &t, attention_range *of_tiles, float scale2,
                          const attention_args &a, cudaStream_t stream)
{
    typedef shape<D, DV> S;
    const int64_t blocks = (a.seq_q * (a.heads / a.groups) + S::ROWS - 1) / S::ROWS * a.batch * a.groups;
    tma_map k, v;
    static_assert(S::BYTES <= 227 << 10, "what sm_90 has");
    cudaError_t e = attention_allow_shared(attention_fwd_k3<D, DV>, S::BYTES);
    if (e == cudaSuccess)
        e = map_of(&k, t.k, a, a.d, S::KEYS);
    if (e == cudaSuccess)
        e = map_of(&v, t.v, a, a.dv, WGMMA_TERMS);
    if (e == cudaSuccess)
        e = gpu_attention_ranges({of_tiles, nullptr, S::KEYS}, a, stream);
    if (e != cudaSuccess)
        return e;
    return GPU_LAUNCH((attention_fwd_k3<D, DV>), dim3((unsigned)blocks), dim3(S::THREADS), S::BYTES, stream,
                      (bf16 *)t.o.data, (float *)t.lse.data, (const bf16 *)t.q.data, k, v, of_tiles, scale2,
                      a);
}

static cudaError_t launch_by_width(const gpu_attention_fwd_tensors &t, attention_range *of_tiles,
                                   float scale2, const attention_args &a, cudaStream_t stream)
{
    const int width = attention_sm90_widths(a.d, a.dv).d;
    return width == 64    ? launch<64, 64>(t, of_tiles, scale2, a, stream)
           : width == 128 ? launch<128, 128>(t, of_tiles, scale2, a, stream)
           : width == 192 ? launch<192, 128>(t, of_tiles, scale2, a, stream)
                          : launch<256, 256>(t, of_tiles, scale2, a, stream);
}

/* Ranges of tiles of keys: of 64, which are as many as of 128 or more. */
size_t gpu_attention_sm90_workspace(const gpu_ctx *, const gpu_operands *o)
{
    const attention_desc d = attention_desc_of(o);
    return sizeof(attention_range) * (size_t)(d.batch * attention_tiles(d.seq_k, WGMMA_TERMS));
}

assay_status gpu_attention_fwd_sm90(const gpu_work *w, const gpu_attention_fwd_tensors *t,
                                    const attention_args &a)
{
    ASSAY_TRY(sm90_check(w->ctx, "attention_fwd"));
    ASSAY_TRY(gpu_check_workspace("attention_fwd", w->ctx, gpu_attention_sm90_workspace(w->ctx, w->o)));
    GPU_LAUNCHED(
        launch_by_width(*t, (attention_range *)w->ctx->workspace, gpu_attention_scale2(w->o), a, w->stream),
        "attention_fwd");
    return ASSAY_OK;
}

bool gpu_attention_takes_sm90(const gpu_ctx *ctx, const gpu_operands *o)
{
    return sm90_has_code(ctx) && gpu_attention_takes_mma(ctx, o) && gpu_operand_int(o, "seq_k") > 0;
}

bool gpu_attention_sm90_pays(const gpu_operands *o)
{
    const attention_desc d = attention_desc_of(o);
    const int64_t whole = 2 * WGMMA_ROWS;
    return d.seq_q * (d.heads / d.groups) >= whole && d.seq_k >= whole;
}

void gpu_attention_sm90_arith(assay_arith *a, const gpu_ctx *ctx, const gpu_operands *o)
{
    a->tile = attention_sm90_keys(
        attention_sm90_widths(gpu_operand_int(o, "head_dim"), gpu_operand_int(o, "head_dim_v")).d);
    gpu_mma_arith(a, ctx, o);
}
