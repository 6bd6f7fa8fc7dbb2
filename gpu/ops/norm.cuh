/* What the norm of whole rows and that of rows cut over ranks share: one element of dx, the gradient of gamma, the
 * lanes of a row, a row in registers. */
#ifndef GPU_OPS_NORM_CUH
#define GPU_OPS_NORM_CUH

#include "gpu/vector.cuh"

/* Eight numbers in registers, as they are stored. */
template <class T> struct norm_eight;
template <> struct norm_eight<float> {
    float value[GPU_EIGHT];
    __device__ __forceinline__ void load(const float *p)
    {
        gpu_load_n(value, p);
    }
    __device__ __forceinline__ void round(const float (&v)[GPU_EIGHT])
    {
        for (int j = 0; j < GPU_EIGHT; ++j)
            value[j] = v[j];
    }
    __device__ __forceinline__ void get(float (&v)[GPU_EIGHT]) const
    {
        for (int j = 0; j < GPU_EIGHT; ++j)
            v[j] = value[j];
    }
};
template <> struct norm_eight<bf16> {
    unsigned pair[GPU_EIGHT / 2];
    __device__ __forceinline__ void load(const bf16 *p)
    {
        const uint4 eight = gpu_read_words<uint4>(p);
        pair[0] = eight.x;
        pair[1] = eight.y;
        pair[2] = eight.z;
        pair[3] = eight.w;
    }
    __device__ __forceinline__ void round(const float (&v)[GPU_EIGHT])
    {
        for (int j = 0; j < GPU_EIGHT / 2; ++j)
            pair[j] = gpu_pair(v[2 * j], v[2 * j + 1]);
    }
    __device__ __forceinline__ void get(float (&v)[GPU_EIGHT]) const
    {
        for (int j = 0; j < GPU_EIGHT / 2; ++j)
            gpu_halves(v + 2 * j, pair[j]);
    }
};

/* Columns in pieces of 8 LANES; what is left one by one, so that no lane has more than h / LANES terms, rounded up. */
template <int LANES> __device__ static __forceinline__ int norm_whole(int h)
{
    return h / (GPU_EIGHT * LANES) * (GPU_EIGHT * LANES);
}

#define NORM_LANES_ADAPT "4 lanes up to H = 32, 8 up to 128"

/* The pieces of a row of h columns that a thread of LANES has, at most EIGHTS: number k, columns i ... i+7. */
#define NORM_EACH_PIECE(k, i, h)                                                                             \
    GPU_UNROLL                                                                                               \
    for (int k = 0, i = (int)(threadIdx.x % LANES) * GPU_EIGHT; k < EIGHTS; ++k, i += LANES * GPU_EIGHT)     \
        if (i < (h))

enum { NORM_CHAINS = 8 }; /* of dgamma, at least */

/* One element of dx: rstd (g - xh mean(g xh)), g = dy gamma, xh = x rstd. */
__device__ static inline float norm_dx(float dy, float x, float gamma, float r, float mean)
{
    const float g = dy * gamma, xh = x * r;
    return r * fmaf(-xh, mean, g);
}

template <class T>
__global__ void norm_dgamma_k0(float *dgamma, const T *dy, const T *x, const float *rstd, int64_t t,
                               int64_t h)
{
    for (int64_t j = gpu_thread(); j < h; j += gpu_threads()) {
        float sum = 0.0f;
        for (int64_t i = 0; i < t; ++i)
            sum = fmaf(gpu_load(dy + i * h + j), gpu_load(x + i * h + j) * rstd[i], sum);
        dgamma[j] = sum + dgamma[j];
    }
}

/* 32 x CHAINS threads take 32 columns; thread row r sums rows r, r + CHAINS, ...; then groups of CHAINS lanes
 * join the chains of one column each. */
template <class T, int CHAINS>
__global__ void norm_dgamma_k1(float *dgamma, const T *dy, const T *x, const float *rstd, int64_t t,
                               int64_t h)
{
    GPU_SHARED_2D(float, partial, CHAINS, GPU_WARP + 1);
    const int64_t column = (int64_t)blockIdx.x * GPU_WARP + threadIdx.x;
    float sum = 0.0f;
    if (column < h)
        for (int64_t i = threadIdx.y; i < t; i += CHAINS)
            sum = fmaf(gpu_load(dy + i * h + column), gpu_load(x + i * h + column) * rstd[i], sum);
    partial[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    const int chain = (int)threadIdx.x % CHAINS;
    const int mine = (int)(threadIdx.y * GPU_WARP + threadIdx.x) / CHAINS;
    const float total = gpu_lanes_sum<CHAINS>(partial[chain][mine]);
    const int64_t out = (int64_t)blockIdx.x * GPU_WARP + mine;
    if (chain == 0 && out < h)
        dgamma[out] = total + dgamma[out];
}

typedef struct norm_bwd_args {
    gpu_tensor dx, dgamma, dy, x, gamma, rstd, dot; /* dot: of a row whose other columns are elsewhere */
    float width;                                    /* of the whole row */
    int64_t t, h;
    gpu_tensor y, dresidual; /* y = dresidual + dx */
} norm_bwd_args;

template <class T> static cudaError_t launch_dgamma_k0(const norm_bwd_args *a, cudaStream_t stream)
{
    if (a->dgamma.data == nullptr)
        return cudaSuccess;
    return GPU_LAUNCH_NO_BARRIER(norm_dgamma_k0<T>, gpu_grid(a->h, GPU_BLOCK), dim3(GPU_BLOCK), 0, stream,
                                 (float *)a->dgamma.data, (const T *)a->dy.data, (const T *)a->x.data,
                                 (const float *)a->rstd.data, a->t, a->h);
}

template <class T, int LANES> static cudaError_t launch_dgamma_k1(const norm_bwd_args *a, cudaStream_t stream)
{
    if (a->dgamma.data == nullptr)
        return cudaSuccess;
    const int chains = LANES < NORM_CHAINS ? (int)NORM_CHAINS : LANES;
    return GPU_LAUNCH((norm_dgamma_k1<T, chains>), gpu_grid(a->h, GPU_WARP), dim3(GPU_WARP, chains), 0,
                      stream, (float *)a->dgamma.data, (const T *)a->dy.data, (const T *)a->x.data,
                      (const float *)a->rstd.data, a->t, a->h);
}

/* t as rows of h columns; as it is where it has none such, and the checks say so. */
static inline gpu_tensor norm_rows_of(gpu_tensor t, int64_t h)
{
    int64_t count = 0;
    const bool known = gpu_tensor_present(t) && assay_shape_count(t.shape, t.ndim, &count);
    const int64_t shape[2] = {h > 0 ? count / h : gpu_tensor_row_count(t), h};
    return known && (h > 0 ? count % h == 0 : count == 0) ? gpu_tensor_make(t.data, t.dtype, 2, shape) : t;
}

/* Rows as wide as gamma: [T,A,D] is [T*A,D] for a norm of each head and [T,A*D] for one over all heads. */
static inline gpu_tensor norm_rows(gpu_tensor t, gpu_tensor gamma)
{
    return norm_rows_of(t, gpu_tensor_count(gamma));
}

/* What every backward has: gamma, dy, x, rstd, and the gradients that are there. */
static inline norm_bwd_args norm_bwd_args_of(const gpu_operands *o)
{
    norm_bwd_args a = {};
    a.gamma = gpu_operand(o, "gamma");
    a.x = norm_rows(gpu_operand(o, "x"), a.gamma);
    a.dy = norm_rows(gpu_operand(o, "dy"), a.gamma);
    a.dx = norm_rows(gpu_operand(o, "dx"), a.gamma);
    a.rstd = gpu_operand(o, "rstd");
    a.dgamma = gpu_operand(o, "dgamma");
    a.h = gpu_tensor_count(a.gamma);
    a.t = gpu_tensor_row_count(a.x);
    return a;
}

/* What every backward reads. */
static inline assay_status norm_check_bwd(const char *op, const norm_bwd_args *a)
{
    const assay_dtype act = a->x.dtype;
    ASSAY_TRY(gpu_check_act(op, "x", a->x));
    ASSAY_TRY(gpu_check_tensor(op, "dy", a->dy, act, act));
    ASSAY_TRY(gpu_check_tensor(op, "gamma", a->gamma, act, act));
    ASSAY_TRY(gpu_check_tensor(op, "rstd", a->rstd, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(gpu_check_shape2(op, "x", a->x, a->t, a->h));
    ASSAY_TRY(gpu_check_count(op, "dy", a->dy, a->t * a->h));
    return gpu_check_count(op, "rstd", a->rstd, a->t);
}

/* dgamma, where gamma is trained. */
static inline assay_status norm_check_dgamma(const char *op, const norm_bwd_args *a)
{
    if (!gpu_tensor_present(a->dgamma))
        return ASSAY_OK;
    ASSAY_TRY(gpu_check_tensor(op, "dgamma", a->dgamma, ASSAY_F32, ASSAY_F32));
    return gpu_check_count(op, "dgamma", a->dgamma, a->h);
}

static inline bool norm_of_eights(const gpu_ctx *, const gpu_operands *o)
{
    return gpu_eights(o, gpu_tensor_count(gpu_operand(o, "gamma")));
}

static inline void norm_row_lanes(assay_arith *a, const gpu_ctx *, const gpu_operands *o)
{
    a->lanes = gpu_row_lanes(gpu_tensor_count(gpu_operand(o, "gamma")));
}
static inline void norm_column_chains(assay_arith *a, const gpu_ctx *ctx, const gpu_operands *o)
{
    norm_row_lanes(a, ctx, o);
    a->lanes = a->lanes < NORM_CHAINS ? (int)NORM_CHAINS : a->lanes;
}

#endif
