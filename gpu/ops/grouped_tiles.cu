/* Grouped products in tiles, k2 in F32.  docs/OPS.md 2.
 *
 * One launch for all experts: a block takes 64 x 128 elements of a result, each of its 128 threads 8 x 8 of them, and walks over
 * the terms in steps of 16.  A step's tiles lie in shared memory, terms outermost; the next step's are on their way in registers
 * meanwhile.  Which rows are a block's follows from the counts in device memory, as in grouped_mma.cu.
 *
 * Four numbers at a time where widths are multiples of 4 and addresses of 16, one by one where they are not.
 *
 * Arithmetic: an element is one chain of fma, terms ascending, whatever its tile; what lies beyond the last term is zero in both
 * operands.  An element's chain does not depend on other rows. */
#include "gpu/ops/grouped.cuh"
#include "gpu/vector.cuh"

/* A thread has 4 neighbouring rows in each half of the tile, and 4 neighbouring columns. */
enum { ROWS = 64, COLUMNS = 128, STEP = 16, FOUR = 4, PART = 8, THREADS = ROWS * COLUMNS / (PART * PART) };
enum { BLOCKS = 3 }; /* of a multiprocessor: 168 registers a thread, which nothing here has to spill */
enum { ACROSS = COLUMNS / PART };
/* Rows of a tile in shared memory, of one more float4: threads that write a column of terms meet in fewer banks. */
enum { A_STRIDE = ROWS + FOUR, B_STRIDE = COLUMNS + FOUR, STAGE = STEP * (A_STRIDE + B_STRIDE) };
enum { SHARED_BYTES = 2 * STAGE * 4 };

/* An operand from its block's first element on: row-major, rows of `stride` numbers, of which `width` are the block's. */
typedef struct operand {
    const float *data;
    int64_t stride;
    int width;
} operand;

/* What a thread carries of a step of an operand with WIDTH rows or columns in a tile. */
template <int WIDTH> struct carried {
    float four[WIDTH * STEP / FOUR / THREADS][FOUR];
};

/* Four numbers of a row, of which `n` are there, and zeros. */
template <bool VECTOR>
__device__ static __forceinline__ void read_four(float (&v)[FOUR], const float *from, int n)
{
    if (VECTOR && n > 0) {
        gpu_load_n(v, from);
        return;
    }
    GPU_UNROLL
    for (int j = 0; j < FOUR; ++j)
        v[j] = !VECTOR && j < n ? from[j] : 0.0f;
}

/* The step that begins at term `first`.  BY_TERM: a row of the operand is a term; else its columns are. */
template <int WIDTH, bool BY_TERM, bool VECTOR>
__device__ static __forceinline__ void fetch(carried<WIDTH> *c, operand m, int first, int terms)
{
    const int left = terms - first;
    GPU_UNROLL
    for (int p = 0; p < WIDTH * STEP / FOUR / THREADS; ++p) {
        const int i = p * THREADS + (int)threadIdx.x;
        if (BY_TERM) {
            const int term = i / (WIDTH / FOUR), at = i % (WIDTH / FOUR) * FOUR;
            read_four<VECTOR>(c->four[p], m.data + (int64_t)(first + term) * m.stride + at,
                              term < left ? m.width - at : 0);
        } else {
            const int at = i / (STEP / FOUR), term = i % (STEP / FOUR) * FOUR;
            read_four<VECTOR>(c->four[p], m.data + at * m.stride + first + term,
                              at < m.width ? left - term : 0);
        }
    }
}

template <int WIDTH, bool BY_TERM>
__device__ static __forceinline__ void place(float *tile, const carried<WIDTH> &c)
{
    GPU_UNROLL
    for (int p = 0; p < WIDTH * STEP / FOUR / THREADS; ++p) {
        const int i = p * THREADS + (int)threadIdx.x;
        const float *v = c.four[p];
        if (BY_TERM) {
            const int term = i / (WIDTH / FOUR), at = i % (WIDTH / FOUR) * FOUR;
            *(float4 *)(tile + term * (WIDTH + FOUR) + at) = make_float4(v[0], v[1], v[2], v[3]);
        } else {
            const int at = i / (STEP / FOUR), term = i % (STEP / FOUR) * FOUR;
            GPU_UNROLL
            for (int j = 0; j < FOUR; ++j)
                tile[(term + j) * (WIDTH + FOUR) + at] = v[j];
        }
    }
}

/* Row or column k of a thread's eight. */
__device__ static __forceinline__ int row_of(int k)
{
    return (int)threadIdx.x / ACROSS * FOUR + k / FOUR * (ROWS / 2) + k % FOUR;
}
__device__ static __forceinline__ int column_of(int k)
{
    return (int)threadIdx.x % ACROSS * FOUR + k / FOUR * (COLUMNS / 2) + k % FOUR;
}

/* acc += a thread's elements of the product of a step's tiles. */
__device__ static __forceinline__ void multiply_step(float (&acc)[PART][PART], const float *a, const float *b)
{
    GPU_UNROLL
    for (int term = 0; term < STEP; ++term) {
        float left[PART], right[PART];
        GPU_UNROLL
        for (int k = 0; k < PART; k += FOUR) {
            const float4 l = *(const float4 *)(a + term * A_STRIDE + row_of(k));
            const float4 r = *(const float4 *)(b + term * B_STRIDE + column_of(k));
            left[k] = l.x, left[k + 1] = l.y, left[k + 2] = l.z, left[k + 3] = l.w;
            right[k] = r.x, right[k + 1] = r.y, right[k + 2] = r.z, right[k + 3] = r.w;
        }
        GPU_UNROLL
        for (int i = 0; i < PART; ++i)
            GPU_UNROLL
        for (int j = 0; j < PART; ++j)
            acc[i][j] = fmaf(left[i], right[j], acc[i][j]);
    }
}

/* acc += a thread's elements of the block's product over all terms.  Two stages: who writes one has seen everybody leave it. */
template <bool A_BY_TERM, bool B_BY_TERM, bool VECTOR>
__device__ static __forceinline__ void multiply(float (&acc)[PART][PART], operand a, operand b, int terms)
{
    GPU_DYNAMIC_SHARED(float, shared);
    const bool has_some = row_of(0) < a.width && column_of(0) < b.width;
    carried<ROWS> next_a;
    carried<COLUMNS> next_b;
    if (terms == 0)
        return;
    fetch<ROWS, A_BY_TERM, VECTOR>(&next_a, a, 0, terms);
    fetch<COLUMNS, B_BY_TERM, VECTOR>(&next_b, b, 0, terms);
    for (int first = 0, stage = 0; first < terms; first += STEP, stage = STAGE - stage) {
        float *a_tile = shared + stage, *b_tile = a_tile + STEP * A_STRIDE;
        place<ROWS, A_BY_TERM>(a_tile, next_a);
        place<COLUMNS, B_BY_TERM>(b_tile, next_b);
        __syncthreads();
        if (first + STEP < terms) {
            fetch<ROWS, A_BY_TERM, VECTOR>(&next_a, a, first + STEP, terms);
            fetch<COLUMNS, B_BY_TERM, VECTOR>(&next_b, b, first + STEP, terms);
        }
        if (has_some)
            multiply_step(acc, a_tile, b_tile);
    }
}

/* put(row, column, four neighbours, how many of them are there) for what a thread holds. */
template <class PUT>
__device__ static __forceinline__ void each_four(const float (&acc)[PART][PART], int rows, int columns,
                                                 PUT put)
{
    GPU_UNROLL
    for (int i = 0; i < PART; ++i)
        GPU_UNROLL
    for (int j = 0; j < PART; j += FOUR)
        if (row_of(i) < rows && column_of(j) < columns)
            put(row_of(i), column_of(j), &acc[i][j], min((int)FOUR, columns - column_of(j)));
}

/* c [R,n] = a [R,terms] times the matrix of a row's expert, b [El,n,terms], or [El,terms,n] with B_BY_TERM. */
template <bool B_BY_TERM, bool VECTOR>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    grouped_tiles_rows_k2(float *c, const float *a, const float *b, int n, int terms, grouped_rows all)
{
    const grouped_range tile = grouped_rows_of_tile<ROWS>(all, (int)blockIdx.x);
    const int first_column = (int)blockIdx.y * COLUMNS, columns = min((int)COLUMNS, n - first_column);
    float *out = c + (int64_t)tile.first * n + first_column;
    if (tile.expert == all.experts) {
        grouped_put_nobodys<COLUMNS, THREADS>(out, tile.n, columns, n);
        return;
    }
    const operand left = {a + (int64_t)tile.first * terms, terms, tile.n};
    const float *weight = b + (int64_t)tile.expert * n * terms;
    const operand right = {weight + (int64_t)first_column * (B_BY_TERM ? 1 : terms), B_BY_TERM ? n : terms,
                           columns};
    float acc[PART][PART] = {};
    multiply<false, B_BY_TERM, VECTOR>(acc, left, right, terms);
    each_four(acc, tile.n, columns, [&](int row, int column, const float *v, int there) {
        float *to = out + (int64_t)row * n + column;
        if (VECTOR)
            gpu_write_four(to, make_float4(v[0], v[1], v[2], v[3]));
        else
            for (int j = 0; j < FOUR; ++j)
                if (j < there)
                    to[j] = v[j];
    });
}

/* c [El,m,n] += (or, not to accumulate, =) a^T b over each expert's rows of a [R,m] and b [R,n]. */
template <bool VECTOR>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    grouped_tiles_weight_k2(float *c, const float *a, const float *b, int m, int n, bool accumulate,
                            grouped_rows all)
{
    const grouped_range terms = grouped_rows_of_expert(all, (int)blockIdx.z);
    const int first_row = (int)blockIdx.y * ROWS, first_column = (int)blockIdx.x * COLUMNS;
    const operand left = {a + (int64_t)terms.first * m + first_row, m, min((int)ROWS, m - first_row)};
    const operand right = {b + (int64_t)terms.first * n + first_column, n,
                           min((int)COLUMNS, n - first_column)};
    float acc[PART][PART] = {};
    if (terms.n == 0 && accumulate)
        return;
    multiply<true, true, VECTOR>(acc, left, right, terms.n);
    each_four(acc, left.width, right.width, [&](int row, int column, const float *v, int there) {
        float *to = c + ((int64_t)terms.expert * m + first_row + row) * n + first_column + column;
        if (VECTOR) {
            const float4 before = accumulate ? *(const float4 *)to : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            gpu_write_four(to, accumulate ? make_float4(before.x + v[0], before.y + v[1], before.z + v[2],
                                                        before.w + v[3])
                                          : make_float4(v[0], v[1], v[2], v[3]));
        } else {
            for (int j = 0; j < FOUR; ++j)
                if (j < there)
                    to[j] = accumulate ? to[j] + v[j] : v[j];
        }
    });
}

/* --- launches ----------------------------------------------------------------------------------------------- */
static unsigned tiles_of(int64_t n, int tile)
{
    return (unsigned)((n + tile - 1) / tile);
}

template <bool B_BY_TERM, bool VECTOR>
static cudaError_t launch_rows(const product *p, const grouped_rows &all, cudaStream_t stream)
{
    const dim3 grid(grouped_most_tiles(all, ROWS), tiles_of(p->n, COLUMNS));
    return GPU_LAUNCH((grouped_tiles_rows_k2<B_BY_TERM, VECTOR>), grid, dim3(THREADS), SHARED_BYTES, stream,
                      (float *)p->c.data, (const float *)p->a.data, (const float *)p->b.data, (int)p->n,
                      (int)p->k, all);
}

template <bool VECTOR>
static cudaError_t launch(const product *p, const grouped_rows &all, cudaStream_t stream)
{
    if (!p->a_is_km)
        return p->b_is_kn ? launch_rows<true, VECTOR>(p, all, stream)
                          : launch_rows<false, VECTOR>(p, all, stream);
    const dim3 grid(tiles_of(p->n, COLUMNS), tiles_of(p->m, ROWS), (unsigned)all.experts);
    return GPU_LAUNCH(grouped_tiles_weight_k2<VECTOR>, grid, dim3(THREADS), SHARED_BYTES, stream,
                      (float *)p->c.data, (const float *)p->a.data, (const float *)p->b.data, (int)p->m,
                      (int)p->n, p->accumulate, all);
}

/* Widths of an operand's rows: the two that every rank of the product has, whichever of them are terms. */
static bool in_fours(const product *p)
{
    bool all = p->n % FOUR == 0 && (p->a_is_km ? p->m : p->k) % FOUR == 0;
    for (gpu_tensor t : {p->a, p->b, p->c})
        all = all && (uintptr_t)t.data % GPU_VECTOR_BYTES == 0;
    return all;
}

assay_status gpu_grouped_tiles(const gpu_work *w, const product *p)
{
    const grouped_rows all = grouped_rows_of(p);
    if (p->m == 0 || p->n == 0 || (all.rows == 0 && (p->accumulate || !p->a_is_km)))
        return ASSAY_OK;
    GPU_LAUNCHED(in_fours(p) ? launch<true>(p, all, w->stream) : launch<false>(p, all, w->stream), p->op);
    return ASSAY_OK;
}

/* Numbers of tiles are those of a launch's second and third dimension, rows and terms int. */
bool gpu_grouped_takes_tiles(const product *p)
{
    const int64_t most = 65535, width = p->a_is_km ? p->m : p->k;
    return p->experts > 0 && p->experts <= most && p->a.dtype == ASSAY_F32 && p->b.dtype == ASSAY_F32 &&
           p->c.dtype == ASSAY_F32 && gpu_tensor_row_count(p->a) < INT_MAX / 2 && p->n <= most * COLUMNS &&
           width <= most * ROWS;
}
