/* Several neighbouring numbers at a time: accesses of 128 bits, two-dimensional grids, 32-bit indices inside a row.
 *
 *   gpu_load_n, gpu_store_n   4 or 8 numbers from an address of a multiple of their bytes, at most 16; rounded once when stored.
 *                             gpu_store_n and gpu_write_*: to global memory alone (st.global)
 *   GPU_EACH_EIGHT            a kernel's loop over rows of a multiple of 8 columns; gpu_pieces_of is its launch
 *   gpu_eights                whether every operand of a call can be read so
 *   gpu_16_bytes              copies of bits: how many pieces of 16 bytes a row has */
#ifndef GPU_VECTOR_CUH
#define GPU_VECTOR_CUH

#include "gpu/device.cuh"
#include <limits.h>

enum { GPU_EIGHT = 8, GPU_VECTOR_BYTES = 16 };

/* bf16 numbers as words in one access; to a host compiler a copy, or it would take them for other objects. */
template <class W> __device__ static __forceinline__ W gpu_read_words(const bf16 *p)
{
#if ASSAY_SIM
    W words;
    memcpy(&words, __builtin_assume_aligned(p, sizeof words), sizeof words);
    return words;
#else
    return *reinterpret_cast<const W *>(p);
#endif
}
template <class W> __device__ static __forceinline__ void gpu_write_words(bf16 *p, W words)
{
    __stwb(reinterpret_cast<W *>(p), words); /* nvcc cuts an assignment into four */
}

template <int N> __device__ static __forceinline__ void gpu_load_n(float (&v)[N], const float *p)
{
    static_assert(N % 4 == 0, "whole accesses");
    for (int i = 0; i < N; i += 4) {
        const float4 four = *reinterpret_cast<const float4 *>(p + i);
        v[i] = four.x;
        v[i + 1] = four.y;
        v[i + 2] = four.z;
        v[i + 3] = four.w;
    }
}
/* Two bf16 numbers in the halves of a word. */
__device__ static __forceinline__ void gpu_halves(float *v, unsigned both)
{
    v[0] = __uint_as_float(both << 16);
    v[1] = __uint_as_float(both & 0xffff0000u);
}
__device__ static __forceinline__ unsigned gpu_pair(float low, float high)
{
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    unsigned both;
    memcpy(&both, &pair, sizeof both);
    return both;
}
template <int N> __device__ static __forceinline__ void gpu_load_n(float (&v)[N], const bf16 *p)
{
    static_assert(N == 4 || N == 8, "one access");
    if (N == 8) {
        const uint4 eight = gpu_read_words<uint4>(p);
        gpu_halves(v, eight.x);
        gpu_halves(v + 2, eight.y);
        gpu_halves(v + N - 4, eight.z);
        gpu_halves(v + N - 2, eight.w);
    } else {
        const uint2 four = gpu_read_words<uint2>(p);
        gpu_halves(v, four.x);
        gpu_halves(v + 2, four.y);
    }
}

__device__ static __forceinline__ void gpu_write_four(float *p, float4 four)
{
    __stwb(reinterpret_cast<float4 *>(p), four);
}
template <int N> __device__ static __forceinline__ void gpu_store_n(float *p, const float (&v)[N])
{
    static_assert(N % 4 == 0, "whole accesses");
    for (int i = 0; i < N; i += 4)
        gpu_write_four(p + i, make_float4(v[i], v[i + 1], v[i + 2], v[i + 3]));
}
template <int N> __device__ static __forceinline__ void gpu_store_n(bf16 *p, const float (&v)[N])
{
    static_assert(N == 4 || N == 8, "one access");
    unsigned word[4];
    for (int i = 0; i < N / 2; ++i)
        word[i] = gpu_pair(v[2 * i], v[2 * i + 1]);
    if (N == 8)
        gpu_write_words(p, make_uint4(word[0], word[1], word[2], word[3]));
    else
        gpu_write_words(p, make_uint2(word[0], word[1]));
}

/* for each row of 0 ... rows-1, for the columns i of this thread: every `width`-th of 0 ... columns-1. */
#define GPU_EACH_PIECE(row, i, rows, columns, width)                                                         \
    for (int64_t row = (int64_t)blockIdx.y * blockDim.y + threadIdx.y; row < (rows);                         \
         row += (int64_t)gridDim.y * blockDim.y)                                                             \
        for (int i = (int)(blockIdx.x * blockDim.x + threadIdx.x) * (width); i < (columns);                  \
             i += (int)(gridDim.x * blockDim.x) * (width))
/* Columns i ... i+7 are this thread's; columns: a multiple of 8. */
#define GPU_EACH_EIGHT(row, i, rows, columns) GPU_EACH_PIECE(row, i, rows, columns, GPU_EIGHT)

typedef struct gpu_pieces_launch {
    dim3 grid, block;
} gpu_pieces_launch;

/* Blocks of 256 threads take pieces of a row each; short rows share a block. */
static inline gpu_pieces_launch gpu_pieces_of(int64_t rows, int64_t pieces)
{
    const int64_t most = 65535;
    unsigned x = 1;
    while (x < GPU_BLOCK && x < pieces)
        x *= 2;
    const unsigned y = GPU_BLOCK / x;
    const int64_t down = (rows + y - 1) / y;
    return {dim3((unsigned)((pieces + x - 1) / x), (unsigned)(down < most ? down : most)), dim3(x, y)};
}

/* Whether rows of `columns` numbers can be read by eights: a multiple of 8 that an int holds, addresses of 16. */
static inline bool gpu_eights(const gpu_operands *o, int64_t columns)
{
    if (columns % GPU_EIGHT != 0 || columns > INT_MAX / 4)
        return false;
    for (int i = 0; i < assay_op_n_slots(o->op); ++i)
        if ((uintptr_t)o->slot[i].data % GPU_VECTOR_BYTES != 0)
            return false;
    return true;
}

/* Pieces of 16 bytes of a row of `columns` elements, as uint4; 0 where rows cannot be copied so. */
static inline int gpu_16_bytes(const gpu_operands *o, assay_dtype dtype, int64_t columns)
{
    const int64_t in_piece = GPU_VECTOR_BYTES / (int64_t)assay_dtype_bytes(dtype);
    return columns % in_piece == 0 && gpu_eights(o, 0) && columns <= INT_MAX / 4 ? (int)(columns / in_piece)
                                                                                 : 0;
}

#endif
