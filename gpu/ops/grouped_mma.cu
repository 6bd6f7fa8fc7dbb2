/* Grouped products on matrix units, k2 (bf16).  docs/OPS.md 2.
 *
 * One launch for all experts: a block takes 64 x 64 elements of a result, whose four warps take 32 x 32 each, and walks over the
 * terms in steps of 64, whose tiles are copied two steps ahead.  Forward and input gradient: tiles of 64 rows begin anew at every
 * expert, so that a tile has the weights of one; blocks that follow each other have columns of the same rows, so that few rows and
 * experts are read at a time.  Weight gradient: the terms are an expert's rows; without rows there is nothing to add, or zeros to
 * write.
 *
 * The counts lie in device memory: every block looks for its tile in them by prefix sums of 32 experts at a time.  The host knows
 * how many rows there are and launches as many tiles as they can need, rows / 64 + experts; what is not needed leaves.
 *
 * Widths of multiples of 8 and addresses of 16 are copied 16 bytes at a time, asynchronously.  Others go one number at a
 * time through registers: the same tiles, and the same bits.
 *
 * Arithmetic: terms in steps of 16, from the first one on; what lies beyond the last is zero in both operands.  An element's chain
 * does not depend on other rows. */
#include "gpu/mma.cuh"
#include "gpu/ops/grouped.cuh"

#include <limits.h>

enum {
    TILE = 64,
    PART = TILE / 2,
    STAGES = 3,
    THREADS = 4 * GPU_WARP,
    SHARED_BYTES = STAGES * 2 * TILE * TILE * 2
};

/* An operand: row-major, rows of `stride` numbers. */
typedef struct matrix {
    const bf16 *data;
    int64_t stride;
} matrix;

/* Eight numbers of a row, of which `n` are there, and zeros: to shared memory, where gpu_store_n must not go. */
__device__ static __forceinline__ void copy_each(bf16 *to, const bf16 *from, int n)
{
    GPU_UNROLL
    for (int j = 0; j < GPU_EIGHT; ++j)
        gpu_store(to + j, j < n ? gpu_load(from + j) : 0.0f);
}

/* Up to `rows` x `columns` numbers from `row`, `column` on, and zeros beyond. */
template <bool VECTOR>
__device__ static __forceinline__ void copy_tile(bf16 *tile, matrix m, int64_t row, int64_t column, int rows,
                                                 int columns)
{
    const bf16 *from = m.data + row * m.stride + column;
    GPU_UNROLL
    for (int i = (int)threadIdx.x; i < TILE * (TILE / 8); i += THREADS) {
        const int r = i / (TILE / 8), c = i % (TILE / 8);
        const bool in = r < rows && c * 8 < columns;
        const bf16 *eight = in ? from + r * m.stride + c * 8 : m.data;
        if (VECTOR)
            mma_copy16(mma_chunk<TILE>(tile, r, c), eight, in);
        else
            copy_each(mma_chunk<TILE>(tile, r, c), eight, in ? columns - c * 8 : 0);
    }
}

/* acc += the product of a block's tiles over all terms.  A_COLUMNS, B_COLUMNS: the rows of the operand's tiles are terms. */
template <bool A_COLUMNS, bool B_COLUMNS, bool VECTOR>
__device__ static __forceinline__ void multiply(float (&acc)[2][4][4], matrix a, int a_rows, matrix b,
                                                int b_rows, int terms)
{
    GPU_DYNAMIC_SHARED(bf16, shared);
    const int warp = (int)threadIdx.x / GPU_WARP, first_row = warp / 2 * PART, first_column = warp % 2 * PART;
    const int steps = (terms + TILE - 1) / TILE;
    auto copy = [&](int step) {
        if (step < steps) {
            bf16 *a_tile = shared + step % STAGES * 2 * TILE * TILE, *b_tile = a_tile + TILE * TILE;
            const int from = step * TILE, left = terms - from;
            if (A_COLUMNS)
                copy_tile<VECTOR>(a_tile, a, from, 0, left, a_rows);
            else
                copy_tile<VECTOR>(a_tile, a, 0, from, a_rows, left);
            if (B_COLUMNS)
                copy_tile<VECTOR>(b_tile, b, from, 0, left, b_rows);
            else
                copy_tile<VECTOR>(b_tile, b, 0, from, b_rows, left);
        }
        mma_commit(); /* a group for each step, also for one that is not there */
    };
    for (int step = 0; step < STAGES - 1; ++step)
        copy(step);
    for (int step = 0; step < steps; ++step) {
        bf16 *a_tile = shared + step % STAGES * 2 * TILE * TILE, *b_tile = a_tile + TILE * TILE;
        mma_wait<STAGES - 2>();
        __syncthreads(); /* the step's tiles are there, and nobody reads those of the step before */
        copy(step + STAGES - 1);
        if (first_row >= a_rows || first_column >= b_rows)
            continue;
        mma_rows<TILE, 2> rows;
        if (A_COLUMNS)
            mma_load_columns<TILE>(&rows, a_tile, first_row);
        else
            mma_load_rows(&rows, a_tile, first_row);
        if (B_COLUMNS)
            mma_ab<TILE>(acc, rows, b_tile, first_column);
        else
            mma_abt(acc, rows, b_tile + first_column * TILE);
    }
    mma_wait<0>();
}

/* put(row, column, first, second) for what a thread holds of a block's elements, two neighbours at a time. */
template <class PUT>
__device__ static __forceinline__ void each_pair(const float (&acc)[2][4][4], int rows, int columns, PUT put)
{
    const int warp = (int)threadIdx.x / GPU_WARP, lane = (int)threadIdx.x % GPU_WARP;
    GPU_UNROLL
    for (int m = 0; m < 2; ++m)
        GPU_UNROLL
    for (int j = 0; j < 4; ++j)
        GPU_UNROLL
    for (int e = 0; e < 4; e += 2) {
        const int row = warp / 2 * PART + m * 16 + mma_row(lane, e);
        const int column = warp % 2 * PART + j * 8 + mma_column(lane, e);
        if (row < rows && column < columns)
            put(row, column, acc[m][j][e], acc[m][j][e + 1]);
    }
}

/* The same for one at a time. */
template <class PUT>
__device__ static __forceinline__ void each_one(const float (&acc)[2][4][4], int rows, int columns, PUT put)
{
    each_pair(acc, rows, columns, [&](int row, int column, float first, float second) {
        put(row, column, first);
        if (column + 1 < columns)
            put(row, column + 1, second);
    });
}

/* What a warp holds of a block's elements, rounded: to rows of `stride` numbers, 16 bytes a lane. */
__device__ static __forceinline__ void store_rows(bf16 *to, int stride, const float (&acc)[2][4][4], int rows,
                                                  int columns)
{
    const int warp = (int)threadIdx.x / GPU_WARP, lane = (int)threadIdx.x % GPU_WARP;
    const int column = warp % 2 * PART + lane % 4 * 8;
    GPU_UNROLL
    for (int m = 0; m < 2; ++m)
        GPU_UNROLL
    for (int h = 0; h < 2; ++h) {
        float pair[4][2];
        GPU_UNROLL
        for (int j = 0; j < 4; ++j)
            GPU_UNROLL
        for (int e = 0; e < 2; ++e)
            pair[j][e] = acc[m][j][2 * h + e];
        const uint4 eight = mma_row_of_four(pair, lane);
        const int row = warp / 2 * PART + m * 16 + mma_row(lane, 2 * h);
        if (row < rows && column < columns)
            gpu_write_words(to + (int64_t)row * stride + column, eight);
    }
}

/* c [R,n] = a [R,terms] times the matrix of a row's expert, b [El,n,terms], or [El,terms,n] with B_COLUMNS. */
template <bool B_COLUMNS, bool VECTOR>
__global__ void __launch_bounds__(THREADS)
    grouped_rows_k2(bf16 *c, const bf16 *a, const bf16 *b, int n, int terms, grouped_rows all)
{
    const int across = (n + TILE - 1) / TILE;
    const grouped_range tile = grouped_rows_of_tile<TILE>(all, (int)blockIdx.x / across);
    const int first_column = (int)blockIdx.x % across * TILE, columns = min(TILE, n - first_column);
    bf16 *out = c + (int64_t)tile.first * n + first_column;
    if (tile.expert == all.experts) {
        grouped_put_nobodys<TILE, THREADS>(out, tile.n, columns, n);
        return;
    }
    const matrix left = {a + (int64_t)tile.first * terms, terms};
    const bf16 *weight = b + (int64_t)tile.expert * n * terms;
    const matrix right = {weight + (int64_t)first_column * (B_COLUMNS ? 1 : terms), B_COLUMNS ? n : terms};
    float acc[2][4][4] = {};
    multiply<false, B_COLUMNS, VECTOR>(acc, left, tile.n, right, columns, terms);
    if (VECTOR)
        store_rows(out, n, acc, tile.n, columns);
    else
        each_one(acc, tile.n, columns, [&](int row, int column, float value) {
            gpu_store(out + (int64_t)row * n + column, value);
        });
}

/* c [El,m,n] += (or, not to accumulate, =) a^T b over each expert's rows of a [R,m] and b [R,n]; stored: the product is rounded to
 * bf16 before. */
template <bool VECTOR>
__global__ void __launch_bounds__(THREADS)
    grouped_weight_k2(float *c, const bf16 *a, const bf16 *b, int m, int n, bool stored, bool accumulate,
                      grouped_rows all)
{
    const grouped_range terms = grouped_rows_of_expert(all, (int)blockIdx.z);
    const int first_row = (int)blockIdx.y * TILE, first_column = (int)blockIdx.x * TILE;
    const int rows = min(TILE, m - first_row), columns = min(TILE, n - first_column);
    const matrix left = {a + (int64_t)terms.first * m + first_row, m};
    const matrix right = {b + (int64_t)terms.first * n + first_column, n};
    float acc[2][4][4] = {};
    if (terms.n == 0 && accumulate)
        return;
    multiply<true, true, VECTOR>(acc, left, rows, right, columns, terms.n);
    float *out = c + ((int64_t)terms.expert * m + first_row) * n + first_column;
    if (VECTOR)
        each_pair(acc, rows, columns, [&](int row, int column, float first, float second) {
            grouped_put_gradient(out + (int64_t)row * n + column, first, second, stored, accumulate);
        });
    else
        each_one(acc, rows, columns, [&](int row, int column, float value) {
            float *to = out + (int64_t)row * n + column;
            value = stored ? __bfloat162float(__float2bfloat16_rn(value)) : value;
            *to = accumulate ? value + *to : value;
        });
}

static unsigned tiles_of(int64_t n)
{
    return (unsigned)((n + TILE - 1) / TILE);
}

template <bool B_COLUMNS, bool VECTOR>
static cudaError_t launch_rows(const product *p, const grouped_rows &all, cudaStream_t stream)
{
    const int64_t blocks = (int64_t)grouped_most_tiles(all, TILE) * tiles_of(p->n);
    if (blocks > INT_MAX)
        return cudaErrorInvalidValue;
    return GPU_LAUNCH((grouped_rows_k2<B_COLUMNS, VECTOR>), dim3((unsigned)blocks), dim3(THREADS),
                      SHARED_BYTES, stream, (bf16 *)p->c.data, (const bf16 *)p->a.data,
                      (const bf16 *)p->b.data, (int)p->n, (int)p->k, all);
}

template <bool VECTOR>
static cudaError_t launch_weight(const product *p, const grouped_rows &all, cudaStream_t stream)
{
    const dim3 grid(tiles_of(p->n), tiles_of(p->m), (unsigned)all.experts);
    return GPU_LAUNCH(grouped_weight_k2<VECTOR>, grid, dim3(THREADS), SHARED_BYTES, stream,
                      (float *)p->c.data, (const bf16 *)p->a.data, (const bf16 *)p->b.data, (int)p->m,
                      (int)p->n, p->stored, p->accumulate, all);
}

template <bool VECTOR>
static cudaError_t launch(const product *p, const grouped_rows &all, cudaStream_t stream)
{
    if (p->a_is_km)
        return launch_weight<VECTOR>(p, all, stream);
    return p->b_is_kn ? launch_rows<true, VECTOR>(p, all, stream)
                      : launch_rows<false, VECTOR>(p, all, stream);
}

assay_status gpu_grouped_mma(const gpu_work *w, const product *p)
{
    const grouped_rows all = grouped_rows_of(p);
    if (p->m == 0 || p->n == 0 || (all.rows == 0 && (p->accumulate || !p->a_is_km)))
        return ASSAY_OK;
    GPU_LAUNCHED(
        gpu_grouped_in_eights(p) ? launch<true>(p, all, w->stream) : launch<false>(p, all, w->stream), p->op);
    return ASSAY_OK;
}

/* Widths of an operand's rows: the two that every expert's product has, whichever of them are terms. */
bool gpu_grouped_in_eights(const product *p)
{
    bool all = p->n % GPU_EIGHT == 0 && (p->a_is_km ? p->m : p->k) % GPU_EIGHT == 0;
    for (gpu_tensor t : {p->a, p->b, p->c})
        all = all && (uintptr_t)t.data % GPU_VECTOR_BYTES == 0;
    return all;
}

/* Numbers of tiles are those of a launch's second and third dimension, rows and terms int. */
bool gpu_grouped_takes_mma(const product *p)
{
    const int64_t most = 65535, width = p->a_is_km ? p->m : p->k;
    return p->experts > 0 && p->experts <= most && p->a.dtype == ASSAY_BF16 && p->b.dtype == ASSAY_BF16 &&
           p->c.dtype == (p->a_is_km ? ASSAY_F32 : ASSAY_BF16) && gpu_tensor_row_count(p->a) < INT_MAX / 2 &&
           p->n <= most * TILE && width <= most * TILE;
}
