/* RMSNorm whose rows are cut over ranks: the sum over a row's columns here, an all_reduce between the halves, the rest.
 * docs/OPS.md 3.
 *
 *   k0  one thread for each row                                         fp32, sequential fma
 *   k1  4, 8 or 32 lanes for each row, as the norm of whole rows        fp32, tree of that many lanes
 *
 * What follows the sum is element-wise; dgamma is that of the norm of whole rows (gpu/ops/norm.cuh). */
#include "gpu/ops/norm.cuh"

/* One term of a row's sum: x^2, or g xh with g = dy gamma, xh = x rstd. */
template <class T> struct square {
    const T *x;
    __device__ float operator()(float sum, int64_t at, int64_t, int64_t) const
    {
        return fmaf(gpu_load(x + at), gpu_load(x + at), sum);
    }
};
template <class T> struct gradient_dot {
    const T *dy, *x, *gamma;
    const float *rstd;
    __device__ float operator()(float sum, int64_t at, int64_t row, int64_t column) const
    {
        return fmaf(gpu_load(dy + at) * gpu_load(gamma + column), gpu_load(x + at) * rstd[row], sum);
    }
};

template <class F> __global__ void norm_row_sum_k0(float *y, F term, int64_t t, int64_t h)
{
    for (int64_t row = gpu_thread(); row < t; row += gpu_threads()) {
        float sum = 0.0f;
        for (int64_t i = 0; i < h; ++i)
            sum = term(sum, row * h + i, row, i);
        y[row] = sum;
    }
}

template <class F, int LANES> __global__ void norm_row_sum_k1(float *y, F term, int64_t t, int64_t h)
{
    const int lane = gpu_lane<LANES>();
    for (int64_t first = gpu_lanes_first<LANES>(); first < t; first += gpu_lanes_step<LANES>()) {
        const int64_t row = first + gpu_lanes_group<LANES>();
        float sum = 0.0f;
        if (row < t)
            for (int64_t i = lane; i < h; i += LANES)
                sum = term(sum, row * h + i, row, i);
        sum = gpu_lanes_sum<LANES>(sum);
        if (row < t && lane == 0)
            y[row] = sum;
    }
}

/* y = x r gamma, r = 1/sqrt(sumsq / width + eps); LANES threads share a row. */
template <class T, int LANES>
__global__ void norm_apply(T *y, float *rstd, const T *x, const T *gamma, const float *sumsq, float width,
                           float eps, int64_t t, int64_t h)
{
    const int64_t threads = gpu_threads() / LANES;
    const int lane = (int)(gpu_thread() % LANES);
    for (int64_t row = gpu_thread() / LANES; row < t; row += threads) {
        const float r = 1.0f / sqrtf(sumsq[row] / width + eps);
        for (int64_t i = lane; i < h; i += LANES)
            gpu_store(y + row * h + i, gpu_load(x + row * h + i) * r * gpu_load(gamma + i));
        if (lane == 0)
            rstd[row] = r;
    }
}

template <class T, int LANES>
__global__ void norm_bwd_apply(T *dx, const T *dy, const T *x, const T *gamma, const float *rstd,
                               const float *dot, float width, int64_t t, int64_t h)
{
    const int64_t threads = gpu_threads() / LANES;
    const int lane = (int)(gpu_thread() % LANES);
    for (int64_t row = gpu_thread() / LANES; row < t; row += threads) {
        const float r = rstd[row], mean = dot[row] / width;
        for (int64_t i = lane; i < h; i += LANES)
            gpu_store(dx + row * h + i, norm_dx(gpu_load(dy + row * h + i), gpu_load(x + row * h + i),
                                                gpu_load(gamma + i), r, mean));
    }
}

/* --- launches ----------------------------------------------------------------------------------------------- */
typedef struct cut_args {
    gpu_tensor y, rstd, x, gamma, sumsq;
    float width, eps;
    int64_t t, h;
} cut_args;

template <class F, int LANES>
static cudaError_t launch_sum_k1(gpu_tensor y, F term, int64_t t, int64_t h, cudaStream_t stream)
{
    return GPU_LAUNCH((norm_row_sum_k1<F, LANES>), gpu_grid(t, GPU_ROW_BLOCK / LANES), dim3(GPU_ROW_BLOCK), 0,
                      stream, (float *)y.data, term, t, h);
}

template <class F>
static cudaError_t launch_sum(int variant, gpu_tensor y, F term, int64_t t, int64_t h, cudaStream_t stream)
{
    if (variant == 0)
        return GPU_LAUNCH_NO_BARRIER(norm_row_sum_k0<F>, gpu_grid(t, GPU_BLOCK), dim3(GPU_BLOCK), 0, stream,
                                     (float *)y.data, term, t, h);
    return GPU_BY_LANES(gpu_row_lanes(h), launch_sum_k1, F, y, term, t, h, stream);
}

template <class T> static cudaError_t launch_sumsq(int variant, const cut_args *a, cudaStream_t stream)
{
    return launch_sum(variant, a->y, square<T>{(const T *)a->x.data}, a->t, a->h, stream);
}

template <class T> static cudaError_t launch_dot(int variant, const norm_bwd_args *a, cudaStream_t stream)
{
    const gradient_dot<T> term = {(const T *)a->dy.data, (const T *)a->x.data, (const T *)a->gamma.data,
                                  (const float *)a->rstd.data};
    return launch_sum(variant, a->dot, term, a->t, a->h, stream);
}

template <class T, int LANES> static cudaError_t launch_apply_lanes(const cut_args *a, cudaStream_t stream)
{
    return GPU_LAUNCH_NO_BARRIER((norm_apply<T, LANES>), gpu_grid(a->t * LANES, GPU_BLOCK), dim3(GPU_BLOCK),
                                 0, stream, (T *)a->y.data, (float *)a->rstd.data, (const T *)a->x.data,
                                 (const T *)a->gamma.data, (const float *)a->sumsq.data, a->width, a->eps,
                                 a->t, a->h);
}

template <class T> static cudaError_t launch_apply(int variant, const cut_args *a, cudaStream_t stream)
{
    if (variant == 0)
        return launch_apply_lanes<T, 1>(a, stream);
    return GPU_BY_LANES(gpu_row_lanes(a->h), launch_apply_lanes, T, a, stream);
}

template <class T, int LANES> static cudaError_t launch_bwd_lanes(const norm_bwd_args *a, cudaStream_t stream)
{
    return GPU_LAUNCH_NO_BARRIER((norm_bwd_apply<T, LANES>), gpu_grid(a->t * LANES, GPU_BLOCK),
                                 dim3(GPU_BLOCK), 0, stream, (T *)a->dx.data, (const T *)a->dy.data,
                                 (const T *)a->x.data, (const T *)a->gamma.data, (const float *)a->rstd.data,
                                 (const float *)a->dot.data, a->width, a->t, a->h);
}

template <class T, int LANES> static cudaError_t launch_bwd_k1(const norm_bwd_args *a, cudaStream_t stream)
{
    const cudaError_t e = launch_dgamma_k1<T, LANES>(a, stream);
    return e != cudaSuccess ? e : launch_bwd_lanes<T, LANES>(a, stream);
}

/* dgamma first: dx may be the buffer of dy or of x. */
template <class T> static cudaError_t launch_bwd(int variant, const norm_bwd_args *a, cudaStream_t stream)
{
    if (variant > 0)
        return GPU_BY_LANES(gpu_row_lanes(a->h), launch_bwd_k1, T, a, stream);
    const cudaError_t e = launch_dgamma_k0<T>(a, stream);
    return e != cudaSuccess ? e : launch_bwd_lanes<T, 1>(a, stream);
}

/* --- operations --------------------------------------------------------------------------------------------- */
static assay_status check_width(const char *op, int64_t width, int64_t h)
{
    ASSAY_CHECK(width >= h && width > 0, ASSAY_INVALID_ARGUMENT,
                "%s: width: expected the columns of a whole row, at least %lld, found %lld", op, (long long)h,
                (long long)width);
    return ASSAY_OK;
}

static assay_status rmsnorm_sumsq(const gpu_work *w)
{
    const int64_t h = gpu_operand_int(w->o, "columns");
    const gpu_tensor x = norm_rows_of(gpu_operand(w->o, "x"), h), y = gpu_operand(w->o, "y");
    const char *op = "rmsnorm_sumsq";
    ASSAY_TRY(gpu_check_act(op, "x", x));
    ASSAY_TRY(gpu_check_tensor(op, "y", y, ASSAY_F32, ASSAY_F32));
    const int64_t t = gpu_tensor_row_count(x);
    ASSAY_TRY(gpu_check_shape2(op, "x", x, t, h));
    ASSAY_TRY(gpu_check_count(op, "y", y, t));
    const cut_args a = {y, {}, x, {}, {}, 0.0f, 0.0f, t, h};
    if (t > 0)
        GPU_LAUNCHED(GPU_BY_ACT(x.dtype, launch_sumsq, w->variant, &a, w->stream), op);
    return ASSAY_OK;
}

static assay_status rmsnorm_apply(const gpu_work *w)
{
    const gpu_tensor gamma = gpu_operand(w->o, "gamma"), rstd = gpu_operand(w->o, "rstd"),
                     sumsq = gpu_operand(w->o, "sumsq");
    const gpu_tensor x = norm_rows(gpu_operand(w->o, "x"), gamma),
                     y = norm_rows(gpu_operand(w->o, "y"), gamma);
    const float eps = (float)gpu_operand_double(w->o, "eps");
    const int64_t width = gpu_operand_int(w->o, "width");
    const char *op = "rmsnorm_apply";
    ASSAY_TRY(gpu_check_act(op, "x", x));
    ASSAY_TRY(gpu_check_tensor(op, "gamma", gamma, x.dtype, x.dtype));
    ASSAY_TRY(gpu_check_tensor(op, "y", y, x.dtype, x.dtype));
    ASSAY_TRY(gpu_check_tensor(op, "sumsq", sumsq, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(gpu_check_tensor(op, "rstd", rstd, ASSAY_F32, ASSAY_F32));
    const int64_t h = gpu_tensor_count(gamma), t = gpu_tensor_row_count(x);
    ASSAY_TRY(gpu_check_shape2(op, "x", x, t, h));
    ASSAY_TRY(gpu_check_count(op, "y", y, t * h));
    ASSAY_TRY(gpu_check_count(op, "sumsq", sumsq, t));
    ASSAY_TRY(gpu_check_count(op, "rstd", rstd, t));
    ASSAY_TRY(check_width(op, width, h));
    ASSAY_CHECK(eps >= 0.0f, ASSAY_INVALID_ARGUMENT,
                "%s: eps: expected a number that is not negative, found %g", op, (double)eps);
    const cut_args a = {y, rstd, x, gamma, sumsq, (float)width, eps, t, h};
    if (t > 0)
        GPU_LAUNCHED(GPU_BY_ACT(x.dtype, launch_apply, w->variant, &a, w->stream), op);
    return ASSAY_OK;
}

static assay_status rmsnorm_bwd_dot(const gpu_work *w)
{
    const char *op = "rmsnorm_bwd_dot";
    norm_bwd_args a = norm_bwd_args_of(w->o);
    a.dot = gpu_operand(w->o, "y");
    ASSAY_TRY(norm_check_bwd(op, &a));
    ASSAY_TRY(gpu_check_tensor(op, "y", a.dot, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(gpu_check_count(op, "y", a.dot, a.t));
    if (a.t > 0)
        GPU_LAUNCHED(GPU_BY_ACT(a.x.dtype, launch_dot, w->variant, &a, w->stream), op);
    return ASSAY_OK;
}

static assay_status rmsnorm_bwd_apply(const gpu_work *w)
{
    const char *op = "rmsnorm_bwd_apply";
    const int64_t width = gpu_operand_int(w->o, "width");
    norm_bwd_args a = norm_bwd_args_of(w->o);
    a.dot = gpu_operand(w->o, "dot");
    a.width = (float)width;
    ASSAY_TRY(norm_check_bwd(op, &a));
    ASSAY_TRY(gpu_check_tensor(op, "dot", a.dot, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(gpu_check_tensor(op, "dx", a.dx, a.x.dtype, a.x.dtype));
    ASSAY_TRY(gpu_check_count(op, "dot", a.dot, a.t));
    ASSAY_TRY(gpu_check_count(op, "dx", a.dx, a.t * a.h));
    ASSAY_TRY(norm_check_dgamma(op, &a));
    ASSAY_TRY(check_width(op, width, a.h));
    if (a.t > 0 && a.h > 0)
        GPU_LAUNCHED(GPU_BY_ACT(a.x.dtype, launch_bwd, w->variant, &a, w->stream), op);
    return ASSAY_OK;
}

/* --- the ladders -------------------------------------------------------------------------------------------- */
static void columns_lanes(assay_arith *a, const gpu_ctx *, const gpu_operands *o)
{
    a->lanes = gpu_row_lanes(gpu_operand_int(o, "columns"));
}

GPU_LADDER(rmsnorm_sumsq) = {
    GPU_RUNG("one thread a row", rmsnorm_sumsq, GPU_DECLARES("y", GPU_SEQUENTIAL(0))),
    GPU_RUNG("4, 8 or 32 lanes a row: coalesced, sums by shuffles", rmsnorm_sumsq,
             GPU_ADAPTS("y", GPU_TREE(32, 0), columns_lanes, "4 lanes up to H = 32, 8 up to 128")),
    GPU_LADDER_END,
};
GPU_LADDER(rmsnorm_apply) = {
    GPU_RUNG("one thread a row", rmsnorm_apply, GPU_DECLARES("y rstd", GPU_ELEMENTWISE(2))),
    GPU_RUNG("4, 8 or 32 lanes a row: coalesced", rmsnorm_apply, GPU_DECLARES("y rstd", GPU_ELEMENTWISE(2))),
    GPU_LADDER_END,
};
GPU_LADDER(rmsnorm_bwd_dot) = {
    GPU_RUNG("one thread a row", rmsnorm_bwd_dot, GPU_DECLARES("y", GPU_SEQUENTIAL(0))),
    GPU_RUNG("lanes a row: coalesced, sums by shuffles", rmsnorm_bwd_dot,
             GPU_ADAPTS("y", GPU_TREE(32, 0), norm_row_lanes, "4 lanes up to H = 32, 8 up to 128")),
    GPU_LADDER_END,
};
GPU_LADDER(rmsnorm_bwd_apply) = {
    GPU_RUNG("one thread a row, one a column", rmsnorm_bwd_apply, GPU_DECLARES("dx", GPU_ELEMENTWISE(0)),
             GPU_DECLARES("dgamma", GPU_SEQUENTIAL(0))),
    GPU_RUNG("lanes a row, chains a column, one launch", rmsnorm_bwd_apply,
             GPU_DECLARES("dx", GPU_ELEMENTWISE(0)),
             GPU_ADAPTS("dgamma", GPU_TREE(32, 0), norm_column_chains, "8 chains up to H = 128")),
    GPU_LADDER_END,
};
