/* The backward of RMSNorm in one pass over the rows: dx, and what the residual's gradient makes of it, while a row is in registers,
 * and the terms of dgamma beside them.
 *
 * A block takes every blocks-th group of rows.  LANES threads share a row, eight columns at a time; a thread sums dgamma of its columns
 * over its rows in registers, the row groups of a block are joined by a tree in shared memory, and the blocks' sums go to partial
 * [blocks,H], which a second launch joins by a tree.  No atomics; the number of blocks follows from the rows alone, so that a device
 * changes no bits. */
#ifndef GPU_OPS_NORM_ONCE_CUH
#define GPU_OPS_NORM_ONCE_CUH

#include "gpu/ops/norm.cuh"

enum { NORM_ONCE_BLOCKS = 256, NORM_ONCE_JOINS = 8 };

/* Threads that share a row of h columns, and how many pieces of eight each has at most. */
static inline int norm_once_lanes(int64_t h)
{
    return h <= 128 ? 16 : h <= 256 ? 32 : h <= 1024 ? 128 : GPU_BLOCK;
}
static inline int64_t norm_once_pieces(int64_t h)
{
    const int64_t turn = (int64_t)norm_once_lanes(h) * GPU_EIGHT;
    return h > turn ? (h + turn - 1) / turn : 1;
}
/* Columns that the registers of a block hold: 64 of a thread in bf16, 32 in fp32. */
static inline int64_t norm_once_columns(assay_dtype dtype)
{
    return dtype == ASSAY_BF16 ? 16384 : 8192;
}

/* A power of two, so that the chains of a column are joined by whole levels. */
static inline int norm_once_blocks(int64_t t, int64_t h)
{
    const int64_t rows = GPU_BLOCK / norm_once_lanes(h);
    int blocks = 1;
    while (blocks < NORM_ONCE_BLOCKS && blocks * rows < t)
        blocks *= 2;
    return blocks;
}
static inline size_t norm_once_bytes(int64_t t, int64_t h)
{
    return sizeof(float) * (size_t)norm_once_blocks(t, h) * (size_t)h;
}

/* Sum over the LANES threads of a row, a tree; each gets the same bits.  turn: of the block's loop over rows, counted, so that one
 * barrier is enough: what is read behind it is written again two turns later. */
template <int LANES>
__device__ static __forceinline__ float norm_once_sum(float v, float (&warps)[2][GPU_BLOCK / GPU_WARP],
                                                      int turn)
{
    if constexpr (LANES <= GPU_WARP) {
        return gpu_lanes_sum<LANES>(v);
    } else {
        constexpr int of_row = LANES / GPU_WARP;
        const int warp = (int)threadIdx.x / GPU_WARP;
        const float sum = gpu_lanes_sum<GPU_WARP>(v);
        if (threadIdx.x % GPU_WARP == 0)
            warps[turn % 2][warp] = sum;
        __syncthreads();
        float joined[of_row];
        for (int i = 0; i < of_row; ++i)
            joined[i] = warps[turn % 2][warp / of_row * of_row + i];
        for (int apart = 1; apart < of_row; apart *= 2)
            for (int i = 0; i < of_row; i += 2 * apart)
                joined[i] += joined[i + apart];
        return joined[0];
    }
}

typedef struct norm_once_row {
    int64_t at; /* of its first element */
    float rstd;
} norm_once_row;

/* Eight columns of a row, d of dy and v of x: their part of mean_h(g xh), and the terms of dgamma. */
__device__ static __forceinline__ float norm_once_terms(float sum, float (&dgamma)[GPU_EIGHT],
                                                        const float (&d)[GPU_EIGHT],
                                                        const float (&v)[GPU_EIGHT],
                                                        const float (&g)[GPU_EIGHT], float rstd)
{
    for (int j = 0; j < GPU_EIGHT; ++j) {
        const float xh = v[j] * rstd;
        sum = fmaf(d[j] * g[j], xh, sum);
        dgamma[j] = fmaf(d[j], xh, dgamma[j]);
    }
    return sum;
}

/* A multiprocessor has two blocks: where a row has few bytes in a thread, what one row of each asks for keeps its memory half busy (an H200
 * moved bf16 at 43 to 51 % of copy speed).  There the next row is asked for before this one's sum, the residual's gradient with it.  Wider
 * rows ask for enough, and have no registers for more. */
template <class T, int EIGHTS> constexpr bool norm_once_ahead = sizeof(T) * EIGHTS <= 4;

/* What a thread reads of a row. */
template <class T, int EIGHTS, bool ADDS> struct norm_once_kept {
    norm_eight<T> d[EIGHTS], x[EIGHTS], residual[ADDS && norm_once_ahead<T, EIGHTS> ? EIGHTS : 1];
    norm_once_row row;
    bool mine; /* there is such a row */
};

template <int LANES, class T, int EIGHTS, bool ADDS>
__device__ static __forceinline__ void norm_once_load(norm_once_kept<T, EIGHTS, ADDS> &kept,
                                                      const T *dresidual, const T *dy, const T *x,
                                                      const float *rstd, int64_t number, int64_t t, int h)
{
    kept.mine = number < t;
    if (!kept.mine)
        return;
    kept.row = {number * h, rstd[number]};
    NORM_EACH_PIECE(k, i, h)
    {
        kept.d[k].load(dy + kept.row.at + i);
        kept.x[k].load(x + kept.row.at + i);
        if constexpr (ADDS && norm_once_ahead<T, EIGHTS>)
            kept.residual[k].load(dresidual + kept.row.at + i);
    }
}

/* The row's part of mean_h(g xh), and the terms of dgamma. */
template <int LANES, class T, int EIGHTS, bool ADDS>
__device__ static __forceinline__ float norm_once_sums_of(const norm_once_kept<T, EIGHTS, ADDS> &kept,
                                                          float (&dgamma)[EIGHTS][GPU_EIGHT],
                                                          const norm_eight<T> (&gamma)[EIGHTS], int h)
{
    float d[GPU_EIGHT], v[GPU_EIGHT], g[GPU_EIGHT], sum = 0.0f;
    NORM_EACH_PIECE(k, i, h)
    {
        kept.d[k].get(d);
        kept.x[k].get(v);
        gamma[k].get(g);
        sum = norm_once_terms(sum, dgamma[k], d, v, g, kept.row.rstd);
    }
    return sum;
}

/* dx, where it is asked for, and y = dresidual + dx as dx is stored. */
template <int LANES, class T, int EIGHTS, bool ADDS>
__device__ static __forceinline__ void
norm_once_write(T *dx, T *y, const T *dresidual, const norm_once_kept<T, EIGHTS, ADDS> &kept,
                const norm_eight<T> (&gamma)[EIGHTS], float mean, int h)
{
    float d[GPU_EIGHT], v[GPU_EIGHT], g[GPU_EIGHT];
    NORM_EACH_PIECE(k, i, h)
    {
        kept.d[k].get(d);
        kept.x[k].get(v);
        gamma[k].get(g);
        for (int j = 0; j < GPU_EIGHT; ++j)
            d[j] = norm_dx(d[j], v[j], g[j], kept.row.rstd, mean);
        if (!ADDS || dx)
            gpu_store_n(dx + kept.row.at + i, d);
        if constexpr (ADDS) {
            norm_eight<T> stored;
            stored.round(d);
            stored.get(d);
            if constexpr (norm_once_ahead<T, EIGHTS>)
                kept.residual[k].get(v);
            else
                gpu_load_n(v, dresidual + kept.row.at + i);
            for (int j = 0; j < GPU_EIGHT; ++j)
                v[j] = __fadd_rn(v[j], d[j]); /* not into one fused multiply-add with what made d */
            gpu_store_n(y + kept.row.at + i, v);
        }
    }
}

/* Row groups of a block to its row of partial, out: column c of the block is eight k's of a lane. */
template <int LANES, int EIGHTS>
__device__ static __forceinline__ void norm_once_join(float *out, const float (&dgamma)[EIGHTS][GPU_EIGHT],
                                                      int h)
{
    constexpr int rows = GPU_BLOCK / LANES, columns = LANES * GPU_EIGHT;
    if constexpr (rows == 1) {
        NORM_EACH_PIECE(k, i, h)
        gpu_store_n(out + i, dgamma[k]);
    } else {
        GPU_SHARED_2D(float, chain, rows, columns);
        for (int j = 0; j < GPU_EIGHT; ++j)
            chain[threadIdx.x / LANES][threadIdx.x % LANES * GPU_EIGHT + j] = dgamma[0][j];
        __syncthreads();
        for (int c = (int)threadIdx.x; c < columns && c < h; c += GPU_BLOCK) {
            float joined[rows];
            for (int i = 0; i < rows; ++i)
                joined[i] = chain[i][c];
            for (int apart = 1; apart < rows; apart *= 2)
                for (int i = 0; i < rows; i += 2 * apart)
                    joined[i] += joined[i + apart];
            out[c] = joined[0];
        }
    }
}

/* partial NULL: gamma is frozen. */
template <class T, int LANES, int EIGHTS, bool ADDS>
__global__ void __launch_bounds__(GPU_BLOCK)
    rmsnorm_bwd_once(T *dx, T *y, float *partial, const T *dresidual, const T *dy, const T *x, const T *gamma,
                     const float *rstd, int64_t t, int h)
{
    static_assert(EIGHTS == 1 || LANES == GPU_BLOCK, "several pieces: one row a block");
    GPU_SHARED_2D(float, warps, 2, GPU_BLOCK / GPU_WARP);
    constexpr int rows = GPU_BLOCK / LANES;
    float dgamma[EIGHTS][GPU_EIGHT] = {};
    norm_eight<T> kept_gamma[EIGHTS] = {}; /* the same columns of every row */
    NORM_EACH_PIECE(k, i, h)
    {
        float g[GPU_EIGHT];
        gpu_load_n(g, gamma + i);
        kept_gamma[k].round(g);
    }
    constexpr bool ahead = norm_once_ahead<T, EIGHTS>;
    const int64_t step = (int64_t)gridDim.x * rows;
    int64_t number = (int64_t)blockIdx.x * rows + threadIdx.x / LANES;
    norm_once_kept<T, EIGHTS, ADDS> next = {};
    if (ahead)
        norm_once_load<LANES>(next, dresidual, dy, x, rstd, number, t, h);
    int turn = 0;
    for (int64_t first = (int64_t)blockIdx.x * rows; first < t; first += step, number += step, ++turn) {
        norm_once_kept<T, EIGHTS, ADDS> row = next;
        if (ahead)
            norm_once_load<LANES>(next, dresidual, dy, x, rstd, number + step, t, h);
        else
            norm_once_load<LANES>(row, dresidual, dy, x, rstd, number, t, h);
        const float sum = row.mine ? norm_once_sums_of<LANES>(row, dgamma, kept_gamma, h) : 0.0f;
        const float mean = norm_once_sum<LANES>(sum, warps, turn) / (float)h;
        if (row.mine)
            norm_once_write<LANES>(dx, y, dresidual, row, kept_gamma, mean, h);
    }
    if (partial)
        norm_once_join<LANES>(partial + (int64_t)blockIdx.x * h, dgamma, h);
}

/* The blocks' sums of one gamma, and its gradient so far; dgamma NULL: it is frozen. */
typedef struct norm_once_sums {
    float *dgamma;
    const float *partial;
    int blocks;
} norm_once_sums;

/* dgamma += the tree over the blocks' sums, of one gamma or, by the grid's second dimension, of two.  32 columns a block; thread row r
 * takes blocks r, r + 8, ... */
__global__ static void rmsnorm_bwd_once_gamma(norm_once_sums first, norm_once_sums second, int h)
{
    const norm_once_sums of = blockIdx.y ? second : first;
    const float *partial = of.partial;
    const int blocks = of.blocks;
    if (of.dgamma == nullptr)
        return;
    constexpr int each = NORM_ONCE_BLOCKS / NORM_ONCE_JOINS;
    GPU_SHARED_2D(float, chain, NORM_ONCE_JOINS, GPU_WARP);
    const int column = (int)(blockIdx.x * GPU_WARP + threadIdx.x);
    float joined[each];
    GPU_UNROLL
    for (int i = 0; i < each; ++i) {
        const int block = (int)threadIdx.y + i * NORM_ONCE_JOINS;
        joined[i] = block < blocks && column < h ? partial[(int64_t)block * h + column] : 0.0f;
    }
    GPU_UNROLL
    for (int apart = 1; apart < each; apart *= 2)
        GPU_UNROLL
    for (int i = 0; i < each; i += 2 * apart)
        joined[i] += joined[i + apart];
    chain[threadIdx.y][threadIdx.x] = joined[0];
    __syncthreads();
    if (threadIdx.y > 0 || column >= h)
        return;
    float sums[NORM_ONCE_JOINS];
    for (int i = 0; i < NORM_ONCE_JOINS; ++i)
        sums[i] = chain[i][threadIdx.x];
    for (int apart = 1; apart < NORM_ONCE_JOINS; apart *= 2)
        for (int i = 0; i < NORM_ONCE_JOINS; i += 2 * apart)
            sums[i] += sums[i + apart];
    of.dgamma[column] = sums[0] + of.dgamma[column];
}

/* --- launches ----------------------------------------------------------------------------------------------- */
static inline cudaError_t norm_once_gammas(norm_once_sums first, norm_once_sums second, int64_t h,
                                           cudaStream_t stream)
{
    const dim3 columns = gpu_grid(h, GPU_WARP), grid(columns.x, second.dgamma ? 2 : 1);
    return GPU_LAUNCH(rmsnorm_bwd_once_gamma, grid, dim3(GPU_WARP, NORM_ONCE_JOINS), 0, stream, first, second,
                      (int)h);
}

/* y, dresidual: absent without ADDS */
template <class T, int LANES, int EIGHTS, bool ADDS>
static cudaError_t norm_once_rows(const norm_bwd_args *a, float *partial, cudaStream_t stream)
{
    return GPU_LAUNCH((rmsnorm_bwd_once<T, LANES, EIGHTS, ADDS>),
                      dim3((unsigned)norm_once_blocks(a->t, a->h)), dim3(GPU_BLOCK), 0, stream,
                      (T *)a->dx.data, (T *)a->y.data, partial, (const T *)a->dresidual.data,
                      (const T *)a->dy.data, (const T *)a->x.data, (const T *)a->gamma.data,
                      (const float *)a->rstd.data, a->t, (int)a->h);
}

template <class T, bool ADDS>
static cudaError_t norm_once_by_width(const norm_bwd_args *a, float *partial, cudaStream_t stream)
{
    const int lanes = norm_once_lanes(a->h);
    const int64_t pieces = norm_once_pieces(a->h);
    if (lanes == 16)
        return norm_once_rows<T, 16, 1, ADDS>(a, partial, stream);
    if (lanes == GPU_WARP)
        return norm_once_rows<T, GPU_WARP, 1, ADDS>(a, partial, stream);
    if (lanes == 128)
        return norm_once_rows<T, 128, 1, ADDS>(a, partial, stream);
    if (pieces == 1)
        return norm_once_rows<T, GPU_BLOCK, 1, ADDS>(a, partial, stream);
    if (pieces == 2)
        return norm_once_rows<T, GPU_BLOCK, 2, ADDS>(a, partial, stream);
    if constexpr (sizeof(T) == 2)
        if (pieces > 4)
            return norm_once_rows<T, GPU_BLOCK, 8, ADDS>(a, partial, stream);
    return norm_once_rows<T, GPU_BLOCK, 4, ADDS>(a, partial, stream);
}

template <class T, bool ADDS>
static cudaError_t launch_bwd_once(const norm_bwd_args *a, float *workspace, cudaStream_t stream)
{
    float *partial = a->dgamma.data ? workspace : nullptr;
    const cudaError_t e = norm_once_by_width<T, ADDS>(a, partial, stream);
    if (e != cudaSuccess || partial == nullptr)
        return e;
    const norm_once_sums sums = {(float *)a->dgamma.data, partial, norm_once_blocks(a->t, a->h)};
    return norm_once_gammas(sums, norm_once_sums{}, a->h, stream);
}

/* --- the ladder --------------------------------------------------------------------------------------------- */
static inline int64_t norm_once_t(const gpu_operands *o)
{
    return gpu_tensor_row_count(norm_rows(gpu_operand(o, "x"), gpu_operand(o, "gamma")));
}
static inline size_t norm_once_workspace(const gpu_ctx *, const gpu_operands *o)
{
    return gpu_tensor_present(gpu_operand(o, "dgamma"))
               ? norm_once_bytes(norm_once_t(o), gpu_tensor_count(gpu_operand(o, "gamma")))
               : 0;
}
static inline bool norm_once_accepts(const gpu_ctx *, const gpu_operands *o)
{
    const int64_t h = gpu_tensor_count(gpu_operand(o, "gamma"));
    return h <= norm_once_columns(gpu_operand(o, "x").dtype) && gpu_eights(o, h);
}

/* Chains of a row are those of lanes that have all their pieces: of fewer columns fewer lanes have any, and nothing is added to 0. */
static inline void norm_once_row_chains(assay_arith *a, const gpu_ctx *, const gpu_operands *o)
{
    const int64_t h = gpu_tensor_count(gpu_operand(o, "gamma")), lanes = h / GPU_EIGHT / norm_once_pieces(h);
    a->lanes = lanes > 1 ? (int)lanes : 1;
}
static inline void norm_once_column_chains(assay_arith *a, const gpu_ctx *, const gpu_operands *o)
{
    const int64_t h = gpu_tensor_count(gpu_operand(o, "gamma"));
    a->lanes = norm_once_blocks(norm_once_t(o), h) * (GPU_BLOCK / norm_once_lanes(h));
}
#define NORM_ONCE_ROWS                                                                                       \
    GPU_ADAPTS("dx", GPU_TREE(256, 0), norm_once_row_chains, "H / 8 up to H = 2048, a block has 256")
#define NORM_ONCE_GAMMA                                                                                      \
    GPU_ADAPTS("dgamma", GPU_TREE(4096, 0), norm_once_column_chains,                                         \
               "as many as rows up to those of 256 blocks, a power of two: 16 in each up to H = 128, 8 up "  \
               "to 256, 2 up to 1024, "                                                                      \
               "then 1")

#endif
