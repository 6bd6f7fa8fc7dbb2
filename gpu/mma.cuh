/* Matrix units and asynchronous copies, in tile products of one warp: the only inline PTX but for gpu/wgmma.cuh.  bf16 operands, fp32 results.
 *
 *   tiles      [rows][D] bf16 in dynamic shared memory, D a multiple of 32, in chunks of 8 (mma_chunk): the chunks of a row are
 *              swapped by the row's number, so that 8 rows of one column of chunks lie in different banks
 *   mma_rows   rows of the first operand in registers, loaded by mma_load_rows from rows of a tile, by mma_load_columns from
 *              its columns (ldmatrix)
 *   results    float[MT][NT][4]: 16 MT rows, 8 NT columns; mma_row and mma_column say which a register holds
 *   mma_abt    result += A B^T, B a tile of 8 NT rows; mma_ab: result += A B, B columns of a tile, or result += round(P) B, P a
 *              result, B a tile
 *   mma_row_of_four            a row of four neighbouring results as bf16, 8 columns a lane, to store 16 bytes at once
 *   mma_copy16, mma_commit, mma_wait   16 bytes from global memory to a tile (cp.async), or zeros
 *   mma_exp2, mma_block_again, mma_thread_again   what else the kernels on matrix units need an instruction by name for
 *
 * All 32 lanes of a warp call them together.  On a device: mma.m16n8k16, ldmatrix, cp.async of sm_80; k ascends in steps of 16.  In
 * the simulator: gpu/sim/include/assay_sim_matrix.h, which reports what a device would compute wrongly in silence. */
#ifndef GPU_MMA_CUH
#define GPU_MMA_CUH

#include "gpu/vector.cuh"

#if ASSAY_SIM
#include "assay_sim_matrix.h"
#endif

/* Chunks of a row in groups of 8, the last of which may have 4. */
template <int D> __device__ static __forceinline__ bf16 *mma_chunk(bf16 *tile, int row, int c)
{
    static_assert(D % 32 == 0, "a row of a tile has a multiple of 32 elements");
    const int last = D / 8 / 8 * 8; /* where groups of 8 end */
    const int swapped = c < last ? c ^ (row & 7) : c ^ (row & 3);
    return tile + row * D + swapped * 8;
}

/* The row and the column of register e of a 16 x 8 result. */
__device__ static __forceinline__ int mma_row(int lane, int e)
{
    return (lane >> 2) + (e >> 1) * 8;
}
__device__ static __forceinline__ int mma_column(int lane, int e)
{
    return 2 * (lane & 3) + (e & 1);
}

/* Words w[0..3] of the four lanes that hold a row, as a square: lane l gets word l % 4 of each. */
__device__ static __forceinline__ void mma_turn_fours_shuffled(unsigned (&w)[4], int lane)
{
    GPU_UNROLL
    for (int apart = 1; apart < 4; apart *= 2)
        GPU_UNROLL
    for (int i = 0; i < 2; ++i) {
        const int low = apart == 1 ? 2 * i : i, high = low + apart;
        const bool upper = (lane & apart) != 0;
        const unsigned got = __shfl_xor_sync(gpu_all_lanes, upper ? w[low] : w[high], apart);
        w[low] = upper ? got : w[low];
        w[high] = upper ? w[high] : got;
    }
}
#if ASSAY_SIM
/* The warp's eight squares at once (tests/sim/test_lanes.cu). */
static inline void mma_fours_together(void *const *lane)
{
    unsigned word[GPU_WARP][4];
    for (int i = 0; i < GPU_WARP; ++i)
        for (int j = 0; j < 4; ++j)
            word[i][j] = ((const unsigned *)lane[i])[j];
    for (int i = 0; i < GPU_WARP; ++i)
        for (int j = 0; j < 4; ++j)
            ((unsigned *)lane[i])[j] = word[i / 4 * 4 + j][i % 4];
}
static inline void mma_turn_fours(unsigned (&w)[4], int)
{
    assay_sim_warp_call(mma_fours_together, w, ASSAY_SIM_HERE);
}
#else
__device__ static __forceinline__ void mma_turn_fours(unsigned (&w)[4], int lane)
{
    mma_turn_fours_shuffled(w, lane);
}
#endif

/* The four lanes that hold a row have two columns of each result: stored as they are, half sectors.  pair[j]: this lane's columns of
 * result j, in one row; returned: that row of result lane % 4, all 8 columns, rounded. */
__device__ static __forceinline__ uint4 mma_row_of_four(const float (&pair)[4][2], int lane)
{
    unsigned w[4];
    GPU_UNROLL
    for (int j = 0; j < 4; ++j)
        w[j] = gpu_pair(pair[j][0], pair[j][1]);
    mma_turn_fours(w, lane);
    return make_uint4(w[0], w[1], w[2], w[3]);
}

/* 2^x, at most 2 ulp off; 0 for what is below 2^-126.  exp2f is three instructions more, for numbers there. */
__device__ static __forceinline__ float mma_exp2(float x)
{
#if defined(__CUDACC__)
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    const float y = exp2f(x);
    return y < 0x1p-126f ? 0.0f : y; /* NaN as it is */
#endif
}
/* blockIdx.x, asked for again: what was made of it before need not stay in a register until here. */
__device__ static __forceinline__ int mma_block_again(void)
{
#if defined(__CUDACC__)
    int block;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
    return block;
#else
    return (int)blockIdx.x;
#endif
}

/* threadIdx.x, likewise. */
__device__ static __forceinline__ int mma_thread_again(void)
{
#if defined(__CUDACC__)
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
#else
    return (int)threadIdx.x;
#endif
}

template <int D, int MT> struct mma_rows {
    unsigned r[MT][D / 16][4];
#if ASSAY_SIM
    assay_sim_fragment_owner owner;
#endif
};

#if defined(__CUDACC__)

__device__ static __forceinline__ unsigned mma_pack(float low, float high)
{
    unsigned both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
__device__ static __forceinline__ void mma_16816(float *c, const unsigned *a, const unsigned *b)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
template <bool TRANSPOSED> __device__ static __forceinline__ void mma_ldmatrix(unsigned *r, const void *row)
{
    const unsigned at = (unsigned)__cvta_generic_to_shared(row);
    if (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(at)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(at)
                     : "memory");
}

template <int D, int MT>
__device__ static __forceinline__ void mma_load_rows(mma_rows<D, MT> *a, bf16 *tile, int first_row)
{
    const int lane = (int)(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % GPU_WARP;
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
        for (int s = 0; s < D / 16; ++s)
            mma_ldmatrix<false>(a->r[m][s],
                                mma_chunk<D>(tile, first_row + m * 16 + (lane & 15), 2 * s + (lane >> 4)));
}

/* Columns first_column, ... (a multiple of 8) of a tile of K rows become the rows of an operand. */
template <int D, int K, int MT>
__device__ static __forceinline__ void mma_load_columns(mma_rows<K, MT> *a, bf16 *tile, int first_column)
{
    const int lane = (int)(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % GPU_WARP;
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
        for (int s = 0; s < K / 16; ++s)
            mma_ldmatrix<true>(a->r[m][s], mma_chunk<D>(tile, s * 16 + (lane & 7) + ((lane >> 4) << 3),
                                                        first_column / 8 + 2 * m + ((lane >> 3) & 1)));
}

template <int D, int MT, int NT>
__device__ static __forceinline__ void mma_abt(float (&c)[MT][NT][4], const mma_rows<D, MT> &a, bf16 *b)
{
    static_assert(NT % 2 == 0, "two tiles of 8 rows are loaded at once");
    const int lane = (int)(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % GPU_WARP;
#pragma unroll
    for (int s = 0; s < D / 16; ++s)
#pragma unroll
        for (int j = 0; j < NT; j += 2) {
            unsigned two[4];
            mma_ldmatrix<false>(
                two, mma_chunk<D>(b, j * 8 + (lane & 7) + ((lane >> 4) << 3), 2 * s + ((lane >> 3) & 1)));
#pragma unroll
            for (int m = 0; m < MT; ++m) {
                mma_16816(c[m][j], a.r[m][s], two);
                mma_16816(c[m][j + 1], a.r[m][s], two + 2);
            }
        }
}

template <int D, int MT, int KT>
__device__ static __forceinline__ void mma_ab(float (&c)[MT][D / 8][4], const float (&p)[MT][KT][4], bf16 *b)
{
    static_assert(KT % 2 == 0, "a step has 16 terms");
    const int lane = (int)(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % GPU_WARP;
#pragma unroll
    for (int s = 0; s < KT / 2; ++s) {
        unsigned a[MT][4];
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int e = 0; e < 4; ++e)
                a[m][e] =
                    mma_pack(p[m][2 * s + (e >> 1)][2 * (e & 1)], p[m][2 * s + (e >> 1)][2 * (e & 1) + 1]);
#pragma unroll
        for (int d = 0; d < D / 8; d += 2) {
            unsigned two[4];
            mma_ldmatrix<true>(two, mma_chunk<D>(b, s * 16 + (lane & 15), d + (lane >> 4)));
#pragma unroll
            for (int m = 0; m < MT; ++m) {
                mma_16816(c[m][d], a[m], two);
                mma_16816(c[m][d + 1], a[m], two + 2);
            }
        }
    }
}

/* B: columns first_column, ... (a multiple of 8) of a tile of K rows. */
template <int D, int K, int MT, int NT>
__device__ static __forceinline__ void mma_ab(float (&c)[MT][NT][4], const mma_rows<K, MT> &a, bf16 *b,
                                              int first_column)
{
    static_assert(NT % 2 == 0, "two tiles of 8 columns are loaded at once");
    const int lane = (int)(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % GPU_WARP;
#pragma unroll
    for (int s = 0; s < K / 16; ++s)
#pragma unroll
        for (int j = 0; j < NT; j += 2) {
            unsigned two[4];
            mma_ldmatrix<true>(two,
                               mma_chunk<D>(b, s * 16 + (lane & 15), first_column / 8 + j + (lane >> 4)));
#pragma unroll
            for (int m = 0; m < MT; ++m) {
                mma_16816(c[m][j], a.r[m][s], two);
                mma_16816(c[m][j + 1], a.r[m][s], two + 2);
            }
        }
}

/* What is not valid is not read. */
__device__ static __forceinline__ void mma_copy16(void *to, const void *from, bool valid)
{
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    const int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(bytes) : "memory");
}
__device__ static __forceinline__ void mma_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* Until at most N groups of this thread are under way; a barrier shows the others what it has copied. */
template <int N> __device__ static __forceinline__ void mma_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

#else

template <int D> static const void *mma_chunk_of(const void *tile, int row, int c)
{
    return mma_chunk<D>((bf16 *)const_cast<void *>(tile), row, c);
}
template <int D, int MT> static inline void mma_load_rows(mma_rows<D, MT> *a, bf16 *tile, int first_row)
{
    const assay_sim_tile_load load = {&a->r[0][0][0], &a->owner, tile, mma_chunk_of<D>, first_row, MT, D, 0};
    assay_sim_matrix_load(&load, ASSAY_SIM_HERE);
}
template <int D, int K, int MT>
static inline void mma_load_columns(mma_rows<K, MT> *a, bf16 *tile, int first_column)
{
    const assay_sim_tile_load load = {&a->r[0][0][0], &a->owner, tile, mma_chunk_of<D>,
                                      first_column,   MT,        K,    1};
    assay_sim_matrix_load(&load, ASSAY_SIM_HERE);
}
template <int D, int MT, int NT>
static inline void mma_abt(float (&c)[MT][NT][4], const mma_rows<D, MT> &a, bf16 *b)
{
    const assay_sim_tile_product product = {
        &c[0][0][0], &a.r[0][0][0], &a.owner, nullptr, b, mma_chunk_of<D>, MT, NT, D, 0, 0};
    assay_sim_matrix_product(&product, ASSAY_SIM_HERE);
}
template <int D, int MT, int KT>
static inline void mma_ab(float (&c)[MT][D / 8][4], const float (&p)[MT][KT][4], bf16 *b)
{
    const assay_sim_tile_product product = {&c[0][0][0], nullptr, nullptr, &p[0][0][0], b, mma_chunk_of<D>,
                                            MT,          D / 8,   KT * 8,  1,           0};
    assay_sim_matrix_product(&product, ASSAY_SIM_HERE);
}
template <int D, int K, int MT, int NT>
static inline void mma_ab(float (&c)[MT][NT][4], const mma_rows<K, MT> &a, bf16 *b, int first_column)
{
    const assay_sim_tile_product product = {
        &c[0][0][0], &a.r[0][0][0], &a.owner, nullptr, b, mma_chunk_of<D>, MT, NT, K, 1, first_column};
    assay_sim_matrix_product(&product, ASSAY_SIM_HERE);
}
static inline void mma_copy16(void *to, const void *from, bool valid)
{
    assay_sim_async_copy16(to, from, valid, ASSAY_SIM_HERE);
}
static inline void mma_commit(void)
{
    assay_sim_async_commit(ASSAY_SIM_HERE);
}
template <int N> static inline void mma_wait(void)
{
    assay_sim_async_wait(N, ASSAY_SIM_HERE);
}

#endif

#endif
