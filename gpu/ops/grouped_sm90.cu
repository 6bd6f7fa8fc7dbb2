/* Grouped products by warpgroups and tensor maps, k3 (bf16, sm_90a alone).  docs/OPS.md 2.  Compiled, and run in the simulator; no device
 * has run it.
 *
 * One launch for all experts: a block takes 128 x 128 elements of a result and walks over the terms in steps of 64.  One lane loads the
 * tiles of up to STAGES steps ahead; two warpgroups multiply, 64 rows each.  Forward and input gradient: tiles of 128 rows begin anew at
 * every expert; the rows of others that a tile brings along are multiplied and not stored.  Weight gradient: the terms are an expert's
 * rows; those of the next expert in the last step are overwritten with zeros (0 x NaN is NaN).
 *
 * Arithmetic: terms in steps of 16, from the first one on; what lies beyond the last is zero in both operands.  An element's chain
 * does not depend on other rows. */
#include "gpu/ops/sm90.cuh"

#include "gpu/ops/grouped.cuh"

enum { TILE = 128, STAGES = 4, GROUPS = 2, THREADS = (1 + GROUPS) * WGMMA_THREADS };
enum { OPERAND_BYTES = GROUPS * WGMMA_TILE * 2, STAGE_BYTES = 2 * OPERAND_BYTES };
enum { SHARED_BYTES = WGMMA_TILE_ALIGN - 16 + STAGES * STAGE_BYTES, BOTH_GROUPS = 1 };

/* What a block multiplies: where its operands' boxes lie, and how many terms. */
typedef struct block_of {
    int a_row, a_column, b_row, b_column, b_plane, terms;
} block_of;

/* An operand of 128 rows and 64 terms.  Rows: one box; columns: a box of 64 terms for every 64 rows. */
template <bool COLUMNS>
__device__ static __forceinline__ void load_operand(bf16 *tile, const tma_map *map, mbarrier *bar, int row,
                                                    int column, int plane, int term)
{
    if constexpr (COLUMNS) {
        GPU_UNROLL
        for (int g = 0; g < GROUPS; ++g)
            tma_load(tile + g * WGMMA_TILE, map, bar, column + g * WGMMA_TERMS, row + term, plane);
    } else {
        tma_load(tile, map, bar, term, row, plane);
    }
}

template <bool A_COLUMNS, bool B_COLUMNS>
__device__ static __forceinline__ void load_all(bf16 *tiles, mbarrier *full, mbarrier *empty,
                                                const tma_map *a, const tma_map *b, block_of o)
{
    for (int step = 0; step * WGMMA_TERMS < o.terms; ++step) {
        const int stage = step % STAGES;
        bf16 *a_tile = tiles + stage * (STAGE_BYTES / 2), *b_tile = a_tile + OPERAND_BYTES / 2;
        mbarrier_wait(&empty[stage], step / STAGES % 2 ^ 1);
        mbarrier_arrive_expect(&full[stage], STAGE_BYTES);
        load_operand<A_COLUMNS>(a_tile, a, &full[stage], o.a_row, o.a_column, 0, step * WGMMA_TERMS);
        load_operand<B_COLUMNS>(b_tile, b, &full[stage], o.b_row, o.b_column, o.b_plane, step * WGMMA_TERMS);
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
template <bool A_COLUMNS, bool B_COLUMNS>
__device__ static __forceinline__ void multiply(float (&acc)[TILE / 8][4], bf16 *tiles, mbarrier *full,
                                                mbarrier *empty, int group, int terms)
{
    const int steps = (terms + WGMMA_TERMS - 1) / WGMMA_TERMS;
    const bool arrives = threadIdx.x % GPU_WARP == 0; /* for its warp */
    for (int step = 0; step < steps; ++step) {
        const int stage = step % STAGES;
        bf16 *a_tile = tiles + stage * (STAGE_BYTES / 2) + group * WGMMA_TILE;
        bf16 *b_tile = tiles + stage * (STAGE_BYTES / 2) + OPERAND_BYTES / 2;
        mbarrier_wait(&full[stage], step / STAGES % 2);
        if (A_COLUMNS && step == steps - 1 && terms % WGMMA_TERMS != 0) {
            clear_terms(a_tile, b_tile + group * WGMMA_TILE, terms % WGMMA_TERMS);
            proxy_fence(a_tile, OPERAND_BYTES + WGMMA_TILE * (int)sizeof(bf16)); /* to the end of b's part */
            named_barrier_sync(BOTH_GROUPS, GROUPS * WGMMA_THREADS);
        }
        wgmma_fence();
        wgmma_multiply<A_COLUMNS, B_COLUMNS>(acc, a_tile, b_tile, step > 0);
        wgmma_commit();
        wgmma_wait<1>(); /* the step before is over, and its tiles may be loaded anew */
        if (step > 0 && arrives)
            mbarrier_arrive(&empty[(step - 1) % STAGES]);
    }
    wgmma_wait<0>(acc);
}

/* put(row, column, first, second) for what a thread holds of a block's elements, two neighbours at a time. */
template <class PUT>
__device__ static __forceinline__ void each_pair(const float (&acc)[TILE / 8][4], int group, int rows,
                                                 int columns, PUT put)
{
    GPU_UNROLL
    for (int j = 0; j < TILE / 8; ++j)
        GPU_UNROLL
    for (int e = 0; e < 4; e += 2) {
        const int row = group * WGMMA_ROWS + wgmma_row((int)threadIdx.x, e);
        const int column = wgmma_column((int)threadIdx.x, j, e);
        if (row < rows && column < columns)
            put(row, column, acc[j][e], acc[j][e + 1]);
    }
}

/* A block's roles; put as in each_pair. */
template <bool A_COLUMNS, bool B_COLUMNS, class PUT>
__device__ static __forceinline__ void run_block(const tma_map *a, const tma_map *b, block_of o, int rows,
                                                 int columns, PUT put)
{
    GPU_DYNAMIC_SHARED(unsigned char, shared);
    GPU_SHARED(mbarrier, full, STAGES);
    GPU_SHARED(mbarrier, empty, STAGES);
    bf16 *tiles = wgmma_tiles(shared);
    const int group = (int)threadIdx.x / WGMMA_THREADS - 1; /* -1 loads */
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) {
            mbarrier_init(&full[s], 1);
            mbarrier_init(&empty[s], GROUPS * WGMMA_THREADS / GPU_WARP);
        }
        mbarrier_fence_init();
    }
    __syncthreads();
    if (group < 0) {
        setmaxnreg_dec<40>();
        if (threadIdx.x < GPU_WARP && elect_one())
            load_all<A_COLUMNS, B_COLUMNS>(tiles, full, empty, a, b, o);
        return;
    }
    setmaxnreg_inc<232>();
    float acc[TILE / 8][4];
    multiply<A_COLUMNS, B_COLUMNS>(acc, tiles, full, empty, group, o.terms);
    each_pair(acc, group, rows, columns, put);
}

/* c [R,n] = a [R,terms] times the matrix of a row's expert, b [El,n,terms], or [El,terms,n] with B_COLUMNS. */
template <bool B_COLUMNS>
__global__ void __launch_bounds__(THREADS, 1)
    grouped_rows_k3(bf16 *c, TMA_MAP_PARAMETER a, TMA_MAP_PARAMETER b, int n, int terms, grouped_rows all)
{
    const grouped_range tile = grouped_rows_of_tile<TILE>(all, (int)blockIdx.x);
    const int first_column = (int)blockIdx.y * TILE, columns = min(TILE, n - first_column);
    bf16 *out = c + (int64_t)tile.first * n + first_column;
    if (tile.n <= 0)
        return;
    if (tile.expert == all.experts) {
        grouped_put_nobodys<TILE, THREADS>(out, tile.n, columns, n);
        return;
    }
    const block_of o = {tile.first, 0, B_COLUMNS ? 0 : first_column, first_column, tile.expert, terms};
    run_block<false, B_COLUMNS>(
        &a, &b, o, tile.n, columns, [&](int row, int column, float first, float second) {
            *(__nv_bfloat162 *)(out + (int64_t)row * n + column) = __floats2bfloat162_rn(first, second);
        });
}

/* c [El,m,n] += (or, not to accumulate, =) a^T b over each expert's rows of a [R,m] and b [R,n]; stored: the product is rounded to
 * bf16 before. */
__global__ void __launch_bounds__(THREADS, 1)
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
    run_block<true, true>(&a, &b, o, rows, columns, [&](int row, int column, float first, float second) {
        grouped_put_gradient(c + ((int64_t)e * m + first_row + row) * n + first_column + column, first,
                             second, stored, accumulate);
    });
}

/* --- launches --------------------------------------------------------------------------------------------------- */

static unsigned tiles_of(int64_t n)
{
    return (unsigned)((n + TILE - 1) / TILE);
}

template <class... P> static cudaError_t allow_shared(void (*kernel)(P...))
{
    return cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                SHARED_BYTES);
}

template <bool B_COLUMNS>
static cudaError_t launch_rows(const product *p, const grouped_rows &all, const tma_map &a, const tma_map &b,
                               cudaStream_t stream)
{
    const dim3 grid(grouped_most_tiles(all, TILE), tiles_of(p->n));
    const cudaError_t allowed = allow_shared(grouped_rows_k3<B_COLUMNS>);
    if (allowed != cudaSuccess)
        return allowed;
    return GPU_LAUNCH(grouped_rows_k3<B_COLUMNS>, grid, dim3(THREADS), SHARED_BYTES, stream,
                      (bf16 *)p->c.data, a, b, (int)p->n, (int)p->k, all);
}

static cudaError_t launch_weight(const product *p, const grouped_rows &all, const tma_map &a,
                                 const tma_map &b, cudaStream_t stream)
{
    const dim3 grid(tiles_of(p->n), tiles_of(p->m), (unsigned)all.experts);
    const cudaError_t allowed = allow_shared(grouped_weight_k3);
    if (allowed != cudaSuccess)
        return allowed;
    return GPU_LAUNCH(grouped_weight_k3, grid, dim3(THREADS), SHARED_BYTES, stream, (float *)p->c.data, a, b,
                      (int)p->m, (int)p->n, p->stored, p->accumulate, all);
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
