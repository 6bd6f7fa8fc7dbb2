/* What the kernels of attention backward k3 (attention_bwd_sm90.cu) are made of: the tiles of a block, the warp that loads them, what
 * a thread meets of a tile, the products of a warpgroup.
 *
 * Both kernels are the same walk.  A block owns rows of two tensors: q and dO of one head, or k and v of a group.  It meets tiles of 64
 * rows of the other two, the streamed ones, k and v or q and dO:
 *   S = own x x^T,  dP = own y y^T,  results for x += dS x,  and for dv += P y
 * A warpgroup has 64 own rows.  Registers hold the sums of both dk and dv up to 128 columns; of wider heads one warpgroup has those of dk,
 * the other those of dv of the same 64 keys, and both compute S. */
#ifndef GPU_OPS_ATTENTION_BWD_PARTS_CUH
#define GPU_OPS_ATTENTION_BWD_PARTS_CUH

#include "gpu/ops/attention_bwd_mma.cuh"
#include "gpu/ops/attention_sm90.cuh"

/* In numbers of bf16.  A tile of 64 rows lies in parts of 64 columns: for a product its rows are the columns of a result, or its terms. */
template <int D, int DV, bool OWNS_KEYS> struct bwd_shape {
    static constexpr bool SPLIT = OWNS_KEYS && D > 128; /* dk and dv have a warpgroup each */
    static constexpr int GROUPS = D == 64 && !OWNS_KEYS ? 3 : 2, THREADS = (1 + GROUPS) * WGMMA_THREADS;
    static constexpr int LOADER = GROUPS == 3 ? 32 : 40, MULTIPLIER = GROUPS == 3 ? 160 : 232; /* registers */
    static constexpr int OWNERS = SPLIT ? 1 : GROUPS, OWN_ROWS = OWNERS * WGMMA_ROWS;
    static constexpr int X = WGMMA_TERMS * D, Y = WGMMA_TERMS * DV, OWN = OWNERS * (X + Y);
    static constexpr int X_STAGES = D == 64    ? 4
                                    : D == 256 ? 2
                                               : 3,
                         Y_STAGES = D == 256 && !OWNS_KEYS ? 1 : X_STAGES;
    static constexpr bool KEEPS_Y =
        OWNS_KEYS; /* a tile of y until that of x is over, for P y; else until dP is there */
    static_assert(!KEEPS_Y || X_STAGES == Y_STAGES, "they are left together");
    static constexpr bool AHEAD = D <= 128,
                          AHEAD_DP =
                              AHEAD && (D == 64 || !OWNS_KEYS); /* bwd_walk_ahead (attention_bwd_walk.cuh) */
    static constexpr bool HOLDS_OWN =
        D == 64 && OWNS_KEYS; /* own rows in registers: products read what is streamed alone */
    static constexpr int ZEROS = AHEAD ? X : 0; /* a tile of them */
    static constexpr int ROWS_BYTES =
        OWNS_KEYS
            ? X_STAGES * WGMMA_TERMS * ((int)sizeof(attention_bwd_row) + (int)sizeof(attention_bwd_known))
            : 0; /* what streamed rows bring */
    static constexpr bool READS_EARLY =
        D == 64; /* of what is known, lse before a wait: it lies under the products */
    static constexpr int KNOWN =
        OWNS_KEYS ? WGMMA_TERMS / 4 : 2; /* numbers of lse, of the thread's columns or rows */
    static constexpr int POSITIONS = OWNS_KEYS ? 1 : X_STAGES * WGMMA_TERMS,
                         NEAR = OWNS_KEYS ? GROUPS * WGMMA_ROWS : 1;
    static constexpr int BYTES =
        WGMMA_TILE_ALIGN - 16 + 2 * (OWN + X_STAGES * X + Y_STAGES * Y + ZEROS) + ROWS_BYTES;
    static_assert(BYTES <= 226 << 10, "what sm_90 has beside the barriers");
};

template <class S> struct bwd_barriers {
    int64_t position[S::POSITIONS]; /* of streamed keys, stage by stage, where the tile is not seen whole */
    int near_key[S::NEAR];          /* positions of own keys, for tiles that are near */
    mbarrier own, x_full[S::X_STAGES], empty[S::X_STAGES], y_full[S::Y_STAGES], y_empty[S::Y_STAGES];
    stage_tile tile[S::X_STAGES];
    int unbounded
        [S::GROUPS]
        [2]; /* of odd and of even checks: the last one in which a warpgroup has found an infinity or NaN */
};

/* Where things are in shared memory. */
template <class S> struct bwd_places {
    bf16 *own_x, *own_y;     /* of all warpgroups */
    bf16 *x, *y;             /* stages */
    bf16 *zeros;             /* a tile of x or y that is 0 */
    attention_bwd_row *rows; /* of the stages of x; null where they are keys */
    float *
        known; /* of each stage lse2 of its rows, then their D: four lanes read two columns each, from different banks */
    bwd_barriers<S> *bar;
};

/* A block's own rows: from `first` on, and the row (batch row, head or group) of their maps. */
typedef struct bwd_block {
    int first, b, plane;
} bwd_block;

/* --- the warp that loads ---------------------------------------------------------------------------------------- */

template <int D>
__device__ static __forceinline__ void bwd_load(bf16 *tile, const tma_map *map, mbarrier *bar, int plane,
                                                int row)
{
    GPU_UNROLL
    for (int c = 0; c < D; c += WGMMA_TERMS)
        tma_load(tile + c * WGMMA_TERMS, map, bar, c, plane, row);
}

template <class S, int D, int DV>
__device__ static __forceinline__ void load_own(const bwd_places<S> &at, const tma_map *x, const tma_map *y,
                                                const bwd_block &block)
{
    mbarrier_arrive_expect(&at.bar->own, S::OWN * 2);
    for (int g = 0; g < S::OWNERS; ++g) {
        bwd_load<D>(at.own_x + g * S::X, x, &at.bar->own, block.plane, block.first + g * WGMMA_ROWS);
        bwd_load<DV>(at.own_y + g * S::Y, y, &at.bar->own, block.plane, block.first + g * WGMMA_ROWS);
    }
}

/* Tile tile.n of a plane of the streamed tensors into the stage of an item, by the whole warp; tile.n -1: there are no more.
 * put(stage): what else is in shared memory of a tile, by the whole warp. */
template <class S, int D, int DV, class F>
__device__ static __forceinline__ void load_tile(const bwd_places<S> &at, const tma_map *x, const tma_map *y,
                                                 bool loads, int item, stage_tile tile, int plane, F put)
{
    const int x_stage = item % S::X_STAGES, y_stage = item % S::Y_STAGES;
    mbarrier *x_full = &at.bar->x_full[x_stage], *y_full = &at.bar->y_full[y_stage];
    mbarrier_wait(&at.bar->empty[x_stage], item / S::X_STAGES % 2 ^ 1);
    if (tile.n >= 0)
        put(x_stage);
    __syncwarp();
    if (!loads)
        return;
    at.bar->tile[x_stage] = tile;
    if (tile.n < 0) {
        mbarrier_arrive(x_full);
        return;
    }
    mbarrier_arrive_expect(x_full, S::X * 2);
    bwd_load<D>(at.x + x_stage * S::X, x, x_full, plane, tile.n * WGMMA_TERMS);
    if constexpr (!S::KEEPS_Y)
        mbarrier_wait(&at.bar->y_empty[y_stage], item / S::Y_STAGES % 2 ^ 1);
    mbarrier_arrive_expect(y_full, S::Y * 2);
    bwd_load<DV>(at.y + y_stage * S::Y, y, y_full, plane, tile.n * WGMMA_TERMS);
}

/* --- a tile as a thread meets it --------------------------------------------------------------------------------- */

/* What two queries see of the keys of a tile that is near. */
typedef struct near_keys {
    const int64_t *position;
    int there, first[2], last[2];
    __device__ bool operator()(int h, int x) const
    {
        const int key = (int)position[x];
        return (x < there) & (key >= first[h]) & (key <= last[h]);
    }
} near_keys;

/* A tile of keys, for the two queries of a thread. */
typedef struct keys_met {
    const int64_t *position; /* of the tile's keys */
    int there;               /* how many of them there are */
    row_sight sight[2];
    attention_bwd_known mine[2];
    __device__ bool sees(int h, int x) const
    {
        return x < there && sight[h].sees(position[x]);
    }
    __device__ near_keys near() const
    {
        return {position,
                there,
                {attention_position(sight[0].first), attention_position(sight[1].first)},
                {attention_position(sight[0].last), attention_position(sight[1].last)}};
    }
    static constexpr bool OF_ROWS = true;
    template <bool DELTA> __device__ float2 known(int) const
    {
        return DELTA ? make_float2(mine[0].delta, mine[1].delta) : make_float2(mine[0].lse2, mine[1].lse2);
    }
} keys_met;

/* Two keys by their positions beside the queries of a tile that is near. */
typedef struct near_rows {
    const attention_bwd_row *row;
    int key[2];
    __device__ bool operator()(int h, int x) const
    {
        const int2 sight = *(const int2 *)&row[x].near_first; /* of rows behind the last one: 0 and -1 */
        return (key[h] >= sight.x) & (key[h] <= sight.y);
    }
} near_rows;

/* A tile of queries, for the two keys of a thread. */
typedef struct rows_met {
    const attention_bwd_row *row;
    const float *of_row; /* bwd_places.known */
    int there;
    const attention_args *a;
    int b, first;        /* key of the warpgroup's first row */
    const int *near_key; /* positions of the warpgroup's keys, for tiles that are near */
    __device__ bool sees(int h, int x) const
    {
        /* Not kept: registers are what is scarce, and few tiles ask. */
        const int key = first + wgmma_row(mma_thread_again(), 2 * h);
        const int64_t position = key < (int)a->seq_k ? a->k_position[key * a->batch + b] : 0;
        return x < there && position >= row[x].first && position <= row[x].last;
    }
    __device__ near_rows near() const
    {
        const int mine = wgmma_row(mma_thread_again(), 0);
        return {row, {near_key[mine], near_key[mine + 8]}};
    }
    static constexpr bool OF_ROWS = false;
    template <bool DELTA> __device__ float2 known(int x) const
    {
        return *(const float2 *)&of_row[(DELTA ? WGMMA_TERMS : 0) + x];
    }
} rows_met;

/* --- the warpgroups that multiply ------------------------------------------------------------------------------- */

/* c = own rows times the rows of a tile; a group of its own. */
template <int D>
__device__ static __forceinline__ void bwd_scores(float (&c)[WGMMA_TERMS / 8][4], const bf16 *own,
                                                  const bf16 *tile)
{
    GPU_UNROLL
    for (int i = 0; i < D / WGMMA_TERMS; ++i)
        wgmma_multiply<false, false>(c, own + i * WGMMA_TILE, tile + i * WGMMA_TILE, i > 0);
    wgmma_commit();
}

/* Own rows, as the first operand of those products: from the tile, or (HOLDS) from registers, into which it is read once. */
template <int D, bool HOLDS> struct bwd_own {
    bf16 *tile;
    mma_rows<WGMMA_TERMS, 1> part[HOLDS ? D / WGMMA_TERMS : 1];
    __device__ void read(bf16 *from)
    {
        tile = from;
        GPU_UNROLL
        for (int i = 0; i < D / WGMMA_TERMS && HOLDS; ++i)
            mma_load_rows(&part[i], from + i * WGMMA_TILE, (int)threadIdx.x % WGMMA_THREADS / GPU_WARP * 16);
    }
    __device__ void scores(float (&c)[WGMMA_TERMS / 8][4], const bf16 *x) const
    {
        if constexpr (!HOLDS) {
            bwd_scores<D>(c, tile, x);
        } else {
            GPU_UNROLL
            for (int i = 0; i < D / WGMMA_TERMS; ++i)
                wgmma_multiply<false>(c, part[i].r[0], x + i * WGMMA_TILE, i > 0);
            wgmma_commit();
        }
    }
};

/* lse2 or (DELTA) D of a tile's pairs, 8 j + mma_column(lane, e) by the thread's row e / 2, as `known<DELTA>(x)` of the tile says: the
 * numbers of the thread's two rows (OF_ROWS), or of columns x and x + 1.  EARLY: read
 * into registers by read(), so that what shared memory takes lies under the products that are waited for behind it. */
template <class S, bool DELTA, class F> struct bwd_values {
    const F &of;
    float kept[S::READS_EARLY ? S::KNOWN : 1];
    __device__ explicit bwd_values(const F &tile) : of(tile)
    {
    }
    __device__ static float one(const F &of, int j, int e)
    {
        const float2 two = of.template known<DELTA>(j * 8 + mma_column((int)threadIdx.x % GPU_WARP, 0));
        return (F::OF_ROWS ? e >> 1 : e & 1) == 0 ? two.x : two.y;
    }
    __device__ void read()
    {
        if constexpr (S::READS_EARLY) {
            GPU_UNROLL
            for (int i = 0; i < S::KNOWN; i += 2) {
                const float2 two =
                    of.template known<DELTA>(i * 4 + mma_column((int)threadIdx.x % GPU_WARP, 0));
                kept[i] = two.x;
                kept[i + 1] = two.y;
            }
        }
    }
    __device__ float operator()(int j, int e) const
    {
        if constexpr (S::READS_EARLY)
            return kept[F::OF_ROWS ? e >> 1 : 2 * j + (e & 1)];
        else
            return one(of, j, e);
    }
};

/* Scores become P; HIDES: bit 4 j + e of `seen` says which of them, the others become 0. */
template <bool HIDES, class F>
__device__ static __forceinline__ void bwd_exponentials(float (&s)[WGMMA_TERMS / 8][4], float scale2,
                                                        unsigned seen, const F &lse2)
{
    GPU_UNROLL
    for (int j = 0; j < WGMMA_TERMS / 8; ++j)
        GPU_UNROLL
    for (int e = 0; e < 4; ++e) {
        const float p = mma_exp2(fmaf(s[j][e], scale2, -lse2(j, e)));
        s[j][e] = !HIDES || (seen >> (4 * j + e) & 1u) != 0 ? p : 0.0f;
    }
}
template <class F>
__device__ static __forceinline__ void bwd_probabilities(float (&s)[WGMMA_TERMS / 8][4], float scale2,
                                                         bool all, unsigned seen, const F &lse2)
{
    if (all)
        bwd_exponentials<false>(s, scale2, seen, lse2);
    else
        bwd_exponentials<true>(s, scale2, seen, lse2);
}

/* dP becomes dS = P (dP - D); 0 where `seen` has no bit: D or dP of a hidden pair may be no number. */
template <bool HIDES, class F>
__device__ static __forceinline__ void bwd_differences(float (&dp)[WGMMA_TERMS / 8][4],
                                                       const float (&p)[WGMMA_TERMS / 8][4], unsigned seen,
                                                       const F &delta)
{
    GPU_UNROLL
    for (int j = 0; j < WGMMA_TERMS / 8; ++j)
        GPU_UNROLL
    for (int e = 0; e < 4; ++e) {
        const float ds = p[j][e] * (dp[j][e] - delta(j, e));
        dp[j][e] = !HIDES || (seen >> (4 * j + e) & 1u) != 0 ? ds : 0.0f;
    }
}
template <class F>
__device__ static __forceinline__ void bwd_slopes(float (&dp)[WGMMA_TERMS / 8][4],
                                                  const float (&p)[WGMMA_TERMS / 8][4], bool all,
                                                  unsigned seen, const F &delta)
{
    if (all)
        bwd_differences<false>(dp, p, seen, delta);
    else
        bwd_differences<true>(dp, p, seen, delta);
}

/* c += a times a tile, 128 columns a product and 64 behind them. */
template <int NT>
__device__ static __forceinline__ void bwd_add(float (&c)[NT][4], const unsigned (&a)[4][4], const bf16 *tile)
{
    GPU_UNROLL
    for (int j = 0; j + 16 <= NT; j += 16)
        wgmma_multiply<true>(*(float(*)[16][4])c[j], a, tile + j * 8 * WGMMA_TERMS, true);
    if constexpr (NT % 16 != 0)
        wgmma_multiply<true>(*(float(*)[8][4])c[NT - 8], a, tile + (NT - 8) * 8 * WGMMA_TERMS, true);
}

/* Bit 4 j + e: the thread sees that pair of the tile.  In a loop, which needs few registers, but where S has some to spare. */
template <class S, class F> __device__ static __forceinline__ unsigned bwd_seen(const F &of_tile, bool near)
{
    if (!near)
        return attention_seen_bits<WGMMA_TERMS / 8>([&](int h, int x) { return of_tile.sees(h, x); });
    const auto sees = of_tile.near();
    if constexpr (!S::READS_EARLY)
        return attention_seen_bits<WGMMA_TERMS / 8>(sees);
    unsigned bits = 0;
    GPU_UNROLL
    for (int j = 0; j < WGMMA_TERMS / 8; ++j)
        GPU_UNROLL
    for (int e = 0; e < 4; ++e) {
        const int x = j * 8 + mma_column((int)threadIdx.x % GPU_WARP, e);
        bits |= sees(e >> 1, x) ? 1u << (4 * j + e) : 0u;
    }
    return bits;
}

/* 64 rows of a result, times scale, from row `row` of a plane of its map on.  tile: room for them that no product reads. */
template <int NT>
__device__ static __forceinline__ void bwd_put(const tma_map *map, bf16 *tile, const float (&acc)[NT][4],
                                               float scale, int plane, int row)
{
    const int thread = (int)threadIdx.x, lane = thread % GPU_WARP;
    GPU_UNROLL
    for (int j = 0; j < NT; ++j)
        GPU_UNROLL
    for (int h = 0; h < 2; ++h) {
        bf16 *to = mma_chunk<WGMMA_TERMS>(tile + j / 8 * WGMMA_TILE, wgmma_row(thread, 2 * h),
                                          j % (WGMMA_TERMS / 8));
        *(__nv_bfloat162 *)(to + mma_column(lane, 0)) =
            __floats2bfloat162_rn(scale * acc[j][2 * h], scale * acc[j][2 * h + 1]);
    }
    proxy_fence(tile, NT / 8 * WGMMA_TILE * (int)sizeof(bf16));
    named_barrier_sync(OWN_GROUP + thread / WGMMA_THREADS - 1, WGMMA_THREADS);
    if (thread % WGMMA_THREADS != 0)
        return;
    GPU_UNROLL
    for (int c = 0; c < NT * 8; c += WGMMA_TERMS)
        tma_store(map, tile + c * WGMMA_TERMS, c, plane, row);
    tma_store_commit();
}

#endif
