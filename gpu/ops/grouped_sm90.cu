/* Grouped products by warpgroups and tensor maps, k3 (bf16, sm_90a alone).  docs/OPS.md 2.  Seen on an H200: docs/BENCH.md.
 *
 * One launch for all experts: a block takes 128 x 256 or 128 x 128 elements of a result and walks over the terms in steps of 64.  One lane
 * loads the tiles of up to STAGES steps ahead; two warpgroups multiply, 64 rows each.  Forward and input gradient: tiles of 128 rows begin anew at
 * every expert; the rows of others that a tile brings along are multiplied and not stored.  Weight gradient: the terms are an expert's
 * rows; those of the next expert in the last step are overwritten with zeros (0 x NaN is NaN).
 *
 * Arithmetic: terms in steps of 16, from the first one on; what lies beyond the last is zero in both operands.  An element's chain
 * does not depend on other rows. */
#include "gpu/ops/sm90.cuh"

#include "gpu/ops/grouped.cuh"

/* Two warpgroups multiply, a warp behind them loads. */
enum { TILE = 128, GROUPS = 2, THREADS = GROUPS * WGMMA_THREADS + GPU_WARP, BOTH_GROUPS = 1 };

/* A block's tiles: 128 rows by WIDTH columns, STAGES steps of 64 terms, BLOCKS of them on a multiprocessor at a time. */
template <int WIDTH, int STAGES_, int BLOCKS_> struct grouped_shape {
    static constexpr int COLUMNS = WIDTH, PARTS = WIDTH / TILE, STAGES = STAGES_, BLOCKS = BLOCKS_;
    static constexpr int A = TILE * WGMMA_TERMS, B = WIDTH * WGMMA_TERMS; /* numbers of a stage */
    static constexpr int BYTES = WGMMA_TILE_ALIGN - 16 + STAGES * 2 * (A + B);
    static_assert(BLOCKS * BYTES <= 226 << 10, "what sm_90 has beside the barriers");
};

/* Tiles of 256 columns read a third less for the same products.  Of 128 two blocks are there, one of which writes while the other
 * multiplies: for the weight gradient, where an expert's few rows are soon multiplied and the result is long to write. */
template <int WIDTH> struct shape_of;
template <> struct shape_of<2 * TILE> : grouped_shape<2 * TILE, 4, 1> {
};
template <> struct shape_of<TILE> : grouped_shape<TILE, 3, 2> {
};

/* What a block multiplies: where its operands' boxes lie, and how many terms. */
typedef struct block_of {
    int a_row, a_column, b_row, b_column, b_plane, terms;
} block_of;

/* An operand of ROWS rows and 64 terms.  Rows: a box of 128; columns: a box of 64 terms for every 64 rows. */
template <bool COLUMNS, int ROWS>
__device__ static __forceinline__ void load_operand(bf16 *tile, const tma_map *map, mbarrier *bar, int row,
                                                    int column, int plane, int term)
{
    if constexpr (COLUMNS) {
        GPU_UNROLL
        for (int r = 0; r < ROWS; r += WGMMA_TERMS)
            tma_load(tile + r * WGMMA_TERMS, map, bar, column + r, row + term, plane);
    } else {
        GPU_UNROLL
        for (int r = 0; r < ROWS; r += TILE)
            tma_load(tile + r * WGMMA_TERMS, map, bar, term, row + r, plane);
    }
}

template <class S, bool A_COLUMNS, bool B_COLUMNS>
__device__ static __forceinline__ void load_all(bf16 *tiles, mbarrier *full, mbarrier *empty,
                                                const tma_map *a, const tma_map *b, block_of o)
{
    for (int step = 0; step * WGMMA_TERMS < o.terms; ++step) {
        const int stage = step % S::STAGES;
        bf16 *a_tile = tiles + stage * (S::A + S::B), *b_tile = a_tile + S::A;
        mbarrier_wait(&empty[stage], step / S::STAGES % 2 ^ 1);
        mbarrier_arrive_expect(&full[stage], 2 * (S::A + S::B));
        load_operand<A_COLUMNS, TILE>(a_tile, a, &full[stage], o.a_row, o.a_column, 0, step * WGMMA_TERMS);
        load_operand<B_COLUMNS, S::COLUMNS>(b_tile, b, &full[stage], o.b_row, o.b_column, o.b_plane,
                                            step * WGMMA_TERMS);
    }
}

/* Rows from `rows` on of a warpgroup's part of both tiles. */
__device__ static __forceinline__ void clear_terms(bf16 *a_tile, bf16 *b_tile, int rows)
{
    const uint4 zero = make_uint4(0, 0, 0, 0);
    for (int i = rows * 8 + (int)threadIdx.x % WGMMA_THREADS; i < WGMMA_TILE / 8; i += WGMMA_THREADS) {
        ((uint4 *)a_tile)[i] = zero;
        ((uint4 *)b_tile)[i] = zero;
    }
}

/* acc = the product of a warpgroup's 64 rows over all terms. */
template <class S, bool A_COLUMNS, bool B_COLUMNS>
__device__ static __forceinline__ void multiply(float (&acc)[S::PARTS][TILE / 8][4], bf16 *tiles,
                                                mbarrier *full, mbarrier *empty, int group, int terms)
{
    const int steps = (terms + WGMMA_TERMS - 1) / WGMMA_TERMS;
    const bool arrives = threadIdx.x % GPU_WARP == 0; /* for its warp */
    for (int step = 0; step < steps; ++step) {
        const int stage = step % S::STAGES;
        bf16 *a_tile = tiles + stage * (S::A + S::B) + group * WGMMA_TILE;
        bf16 *b_tile = tiles + stage * (S::A + S::B) + S::A;
        mbarrier_wait(&full[stage], step / S::STAGES % 2);
        if (A_COLUMNS && step == steps - 1 && terms % WGMMA_TERMS != 0) {
            static_assert(!A_COLUMNS || S::B == GROUPS * WGMMA_TILE, "a part of b for each warpgroup");
            clear_terms(a_tile, b_tile + group * WGMMA_TILE, terms % WGMMA_TERMS);
            proxy_fence(a_tile, (S::A + WGMMA_TILE) * (int)sizeof(bf16)); /* to the end of b's part */
            named_barrier_sync(BOTH_GROUPS, GROUPS * WGMMA_THREADS);
        }
        wgmma_fence();
        GPU_UNROLL
        for (int i = 0; i < S::PARTS; ++i)
            wgmma_multiply<A_COLUMNS, B_COLUMNS>(acc[i], a_tile, b_tile + i * TILE * WGMMA_TERMS, step > 0);
        wgmma_commit();
        wgmma_wait<1>(); /* the step before is over, and its tiles may be loaded anew */
        if (step > 0 && arrives)
            mbarrier_arrive(&empty[(step - 1) % S::STAGES]);
    }
    GPU_UNROLL
    for (int i = 0; i < S::PARTS; ++i)
        wgmma_wait<0>(acc[i]);
}

/* A block's roles; put(acc, group) of a warpgroup's 64 rows. */
template <class S, bool A_COLUMNS, bool B_COLUMNS, class PUT>
__device__ static __forceinline__ void run_block(const tma_map *a, const tma_map *b, block_of o, PUT put)
{
    GPU_DYNAMIC_SHARED(unsigned char, shared);
    GPU_SHARED(mbarrier, full, S::STAGES);
    GPU_SHARED(mbarrier, empty, S::STAGES);
    bf16 *tiles = wgmma_tiles(shared);
    const int group = wgmma_group();
    if (threadIdx.x == 0) {
        for (int s = 0; s < S::STAGES; ++s) {
            mbarrier_init(&full[s], 1);
            mbarrier_init(&empty[s], GROUPS * WGMMA_THREADS / GPU_WARP);
        }
        mbarrier_fence_init();
    }
    __syncthreads();
    if (group == GROUPS) {
        if (elect_one())
            load_all<S, A_COLUMNS, B_COLUMNS>(tiles, full, empty, a, b, o);
        return;
    }
    float acc[S::PARTS][TILE / 8][4];
    multiply<S, A_COLUMNS, B_COLUMNS>(acc, tiles, full, empty, group, o.terms);
    put(acc, group);
}

/* What a warpgroup holds of a block's elements, rounded: to rows of `stride` numbers, 16 bytes a lane. */
template <class S>
__device__ static __forceinline__ void
put_rows(bf16 *out, int stride, const float (&acc)[S::PARTS][TILE / 8][4], int group, int rows, int columns)
{
    const int thread = (int)threadIdx.x, lane = thread % GPU_WARP;
    GPU_UNROLL
    for (int i = 0; i < S::PARTS; ++i)
        GPU_UNROLL
    for (int first = 0; first < TILE / 8; first += 4)
        GPU_UNROLL
    for (int h = 0; h < 2; ++h) {
        float pair[4][2];
        GPU_UNROLL
        for (int j = 0; j < 4; ++j)
            GPU_UNROLL
        for (int e = 0; e < 2; ++e)
            pair[j][e] = acc[i][first + j][2 * h + e];
        const uint4 eight = mma_row_of_four(pair, lane);
        const int row = group * WGMMA_ROWS + wgmma_row(thread, 2 * h);
        const int column = i * TILE + (first + lane % 4) * 8;
        if (row < rows && column < columns)
            gpu_write_words(out + (int64_t)row * stride + column, eight);
    }
}

/* c [R,n] = a [R,terms] times the matrix of a row's expert, b [El,n,terms], or [El,terms,n] with B_COLUMNS.  Blocks that follow each other
 * take the columns of the same rows: what is under way at a time reads few rows and the matrices of few experts, which the second-level
 * cache holds.  Row by row it would read all rows again for every tile of columns. */
template <int WIDTH, bool B_COLUMNS>
__global__ void __launch_bounds__(THREADS, shape_of<WIDTH>::BLOCKS)
    grouped_rows_k3(bf16 *c, TMA_MAP_PARAMETER a, TMA_MAP_PARAMETER b, int n, int terms, grouped_rows all)
{
    typedef shape_of<WIDTH> S;
    const int across = (n + S::COLUMNS - 1) / S::COLUMNS;
    const grouped_range tile = grouped_rows_of_tile<TILE>(all, (int)blockIdx.x / across);
    const int first_column = (int)blockIdx.x % across * S::COLUMNS;
    const int columns = min((int)S::COLUMNS, n - first_column);
    bf16 *out = c + (int64_t)tile.first * n + first_column;
    if (tile.n <= 0)
        return;
    if (tile.expert == all.experts) {
        grouped_put_nobodys<S::COLUMNS, THREADS>(out, tile.n, columns, n);
        return;
    }
    const block_of o = {tile.first, 0, B_COLUMNS ? 0 : first_column, first_column, tile.expert, terms};
    run_block<S, false, B_COLUMNS>(&a, &b, o, [&](const float(&acc)[S::PARTS][TILE / 8][4], int group) {
        put_rows<S>(out, n, acc, group, tile.n, columns);
    });
}

/* c [El,m,n] += (or, not to accumulate, =) a^T b over each expert's rows of a [R,m] and b [R,n]; stored: the product is rounded to
 * bf16 before. */
__global__ void __launch_bounds__(THREADS, shape_of<TILE>::BLOCKS)
    grouped_weight_k3(float *c, TMA_MAP_PARAMETER a, TMA_MAP_PARAMETER b, int m, int n, bool stored,
                      bool accumulate, grouped_rows all)
{
    const grouped_range terms = grouped_rows_of_expert(all, (int)blockIdx.z);
    const int e = terms.expert, first_row = (int)blockIdx.y * TILE, first_column = (int)blockIdx.x * TILE;
    const int rows = min(TILE, m - first_row), columns = min(TILE, n - first_column);
    const block_of o = {terms.first, first_row, terms.first, first_column, 0, terms.n};
    if (terms.n == 0) {
        for (int i = (int)threadIdx.x; i < rows * TILE && !accumulate; i += THREADS)
            if (i % TILE < columns)
                c[((int64_t)e * m + first_row + i / TILE) * n + first_column + i % TILE] = 0.0f;
        return;
    }
    run_block<shape_of<TILE>, true, true>(&a, &b, o, [&](const float(&acc)[1][TILE / 8][4], int group) {
        float *out = c + ((int64_t)e * m + first_row) * n + first_column;
        GPU_UNROLL
        for (int i = 0; i < 2; ++i) {
            const int row = group * WGMMA_ROWS + wgmma_row((int)threadIdx.x, 2 * i);
            GPU_UNROLL
            for (int j = 0; j < TILE / 8; ++j) {
                const int column = wgmma_column((int)threadIdx.x, j, 0);
                if (row < rows && column < columns)
                    grouped_put_gradient(out + (int64_t)row * n + column, acc[0][j][2 * i],
                                         acc[0][j][2 * i + 1], stored, accumulate);
            }
        }
    });
}

/* --- launches --------------------------------------------------------------------------------------------------- */

static int64_t tiles_of(int64_t n, int tile)
{
    return (n + tile - 1) / tile;
}

template <class... P> static cudaError_t allow_shared(void (*kernel)(P...), int bytes)
{
    return cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

template <int WIDTH, bool B_COLUMNS>
static cudaError_t launch_width(const product *p, const grouped_rows &all, const tma_map &a, const tma_map &b,
                                cudaStream_t stream)
{
    const int64_t blocks = grouped_most_tiles(all, TILE) * tiles_of(p->n, WIDTH);
    const int bytes = shape_of<WIDTH>::BYTES;
    const cudaError_t allowed =
        blocks > INT_MAX ? cudaErrorInvalidValue : allow_shared(grouped_rows_k3<WIDTH, B_COLUMNS>, bytes);
    if (allowed != cudaSuccess)
        return allowed;
    return GPU_LAUNCH((grouped_rows_k3<WIDTH, B_COLUMNS>), dim3((unsigned)blocks), dim3(THREADS), bytes,
                      stream, (bf16 *)p->c.data, a, b, (int)p->n, (int)p->k, all);
}

/* Of 128 columns where the last tile would be half empty. */
template <bool B_COLUMNS>
static cudaError_t launch_rows(const product *p, const grouped_rows &all, const tma_map &a, const tma_map &b,
                               cudaStream_t stream)
{
    return tiles_of(p->n, TILE) % 2 == 0 ? launch_width<2 * TILE, B_COLUMNS>(p, all, a, b, stream)
                                         : launch_width<TILE, B_COLUMNS>(p, all, a, b, stream);
}

static cudaError_t launch_weight(const product *p, const grouped_rows &all, const tma_map &a,
                                 const tma_map &b, cudaStream_t stream)
{
    const dim3 grid((unsigned)tiles_of(p->n, TILE), (unsigned)tiles_of(p->m, TILE), (unsigned)all.experts);
    const cudaError_t allowed = allow_shared(grouped_weight_k3, shape_of<TILE>::BYTES);
    if (allowed != cudaSuccess)
        return allowed;
    return GPU_LAUNCH(grouped_weight_k3, grid, dim3(THREADS), shape_of<TILE>::BYTES, stream,
                      (float *)p->c.data, a, b, (int)p->m, (int)p->n, p->stored, p->accumulate, all);
}

assay_status gpu_grouped_sm90(const gpu_work *w, const product *p)
{
    const grouped_rows all = grouped_rows_of(p);
    const int64_t rows = all.rows;
    tma_map a, b;
    ASSAY_TRY(sm90_check(w->ctx, p->op));
    if (p->m == 0 || p->n == 0 || (rows == 0 && (p->accumulate || !p->a_is_km)))
        return ASSAY_OK;
    if (rows == 0) {
        CUDA_TRY(cudaMemsetAsync(p->c.data, 0, gpu_tensor_bytes(p->c), w->stream));
        return ASSAY_OK;
    }
    if (p->a_is_km) {
        GPU_LAUNCHED(tma_map_make(&a, p->a.data, 1, rows, p->m, WGMMA_TERMS), p->op);
        GPU_LAUNCHED(tma_map_make(&b, p->b.data, 1, rows, p->n, WGMMA_TERMS), p->op);
        GPU_LAUNCHED(launch_weight(p, all, a, b, w->stream), p->op);
        return ASSAY_OK;
    }
    GPU_LAUNCHED(tma_map_make(&a, p->a.data, 1, rows, p->k, TILE), p->op);
    if (p->b_is_kn) {
        GPU_LAUNCHED(tma_map_make(&b, p->b.data, p->experts, p->k, p->n, WGMMA_TERMS), p->op);
        GPU_LAUNCHED(launch_rows<true>(p, all, a, b, w->stream), p->op);
    } else {
        GPU_LAUNCHED(tma_map_make(&b, p->b.data, p->experts, p->n, p->k, TILE), p->op);
        GPU_LAUNCHED(launch_rows<false>(p, all, a, b, w->stream), p->op);
    }
    return ASSAY_OK;
}

bool gpu_grouped_takes_sm90(const gpu_ctx *ctx, const product *p)
{
    return sm90_has_code(ctx) && gpu_grouped_takes_mma(p) && gpu_grouped_in_eights(p) && p->n > 0 &&
           (p->a_is_km ? p->m : p->k) > 0;
}
