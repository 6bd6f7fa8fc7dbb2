/* A residual and the norm that reads it, in one launch: add, then rmsnorm_fwd.  docs/OPS.md 3.
 *
 *   k0  one thread for each row: stores the sum, then reads it          fp32, sequential fma
 *   k1  the lanes of rmsnorm's k2, eight elements at a time; the        fp32, tree of that many lanes
 *       row stays in registers as it is stored, so that nothing is
 *       read twice.  Up to 8192 columns in bf16, 4096 in fp32.
 *
 * The norm reads the sum as it is rounded to the residual's type, in registers, too: k1 has the bits of add's and rmsnorm_fwd's
 * highest rungs (tests/gpu/test_residual_norm.c). */
#include "gpu/ops/norm.cuh"

template <class T>
__global__ void add_rmsnorm_fwd_k0(T *residual, T *y, float *rstd, const T *a, const T *b, const T *gamma,
                                   float eps, int64_t t, int64_t h)
{
    for (int64_t row = gpu_thread(); row < t; row += gpu_threads()) {
        T *x = residual + row * h;
        float sum = 0.0f;
        for (int64_t i = 0; i < h; ++i) {
            gpu_store(x + i, gpu_load(a + row * h + i) + gpu_load(b + row * h + i));
            sum = fmaf(gpu_load(x + i), gpu_load(x + i), sum);
        }
        const float r = 1.0f / sqrtf(sum / (float)h + eps);
        for (int64_t i = 0; i < h; ++i)
            gpu_store(y + row * h + i, gpu_load(x + i) * r * gpu_load(gamma + i));
        rstd[row] = r;
    }
}

/* a + b as T stores it. */
__device__ static __forceinline__ float norm_sum(const float *a, const float *b)
{
    return *a + *b;
}
__device__ static __forceinline__ float norm_sum(const bf16 *a, const bf16 *b)
{
    return __bfloat162float(__float2bfloat16_rn(gpu_load(a) + gpu_load(b)));
}

/* A lane has EIGHTS pieces of a row at most, h <= 8 LANES EIGHTS.  The sum of squares goes by rmsnorm's k2: pieces of whole turns of
 * the lanes, then the columns that are left one by one. */
template <class T, int LANES, int EIGHTS>
__global__ void add_rmsnorm_fwd_k1(T *residual, T *y, float *rstd, const T *a, const T *b, const T *gamma,
                                   float eps, int64_t t, int h)
{
    const int lane = gpu_lane<LANES>(), turn = GPU_EIGHT * LANES, whole = h / turn * turn;
    for (int64_t first = gpu_lanes_first<LANES>(); first < t; first += gpu_lanes_step<LANES>()) {
        const int64_t row = first + gpu_lanes_group<LANES>(), at = row * h;
        norm_eight<T> kept[EIGHTS] = {};
        float v[GPU_EIGHT], g[GPU_EIGHT], sum = 0.0f;
        if (row < t) {
            NORM_EACH_PIECE(k, i, h)
            {
                gpu_load_n(v, a + at + i);
                gpu_load_n(g, b + at + i);
                for (int j = 0; j < GPU_EIGHT; ++j)
                    v[j] = v[j] + g[j];
                kept[k].round(v);
            }
            NORM_EACH_PIECE(k, i, h)
            {
                kept[k].get(v);
                gpu_store_n(residual + at + i, v);
                for (int j = 0; i < whole && j < GPU_EIGHT; ++j)
                    sum = fmaf(v[j], v[j], sum);
            }
            for (int i = whole + lane; i < h; i += LANES) {
                const float x = norm_sum(a + at + i, b + at + i);
                sum = fmaf(x, x, sum);
            }
        }
        sum = gpu_lanes_sum<LANES>(sum);
        if (row >= t)
            continue;
        const float r = 1.0f / sqrtf(sum / (float)h + eps);
        NORM_EACH_PIECE(k, i, h)
        {
            kept[k].get(v);
            gpu_load_n(g, gamma + i);
            for (int j = 0; j < GPU_EIGHT; ++j)
                v[j] = v[j] * r * g[j];
            gpu_store_n(y + at + i, v);
        }
        if (lane == 0)
            rstd[row] = r;
    }
}

typedef struct residual_norm_args {
    gpu_tensor residual, y, rstd, a, b, gamma;
    float eps;
    int64_t t, h;
} residual_norm_args;

template <class T> static cudaError_t launch_k0(const residual_norm_args *o, cudaStream_t stream)
{
    return GPU_LAUNCH_NO_BARRIER(add_rmsnorm_fwd_k0<T>, gpu_grid(o->t, GPU_BLOCK), dim3(GPU_BLOCK), 0, stream,
                                 (T *)o->residual.data, (T *)o->y.data, (float *)o->rstd.data,
                                 (const T *)o->a.data, (const T *)o->b.data, (const T *)o->gamma.data, o->eps,
                                 o->t, o->h);
}

template <class T, int LANES, int EIGHTS>
static cudaError_t launch_lanes(const residual_norm_args *o, cudaStream_t stream)
{
    return GPU_LAUNCH((add_rmsnorm_fwd_k1<T, LANES, EIGHTS>), gpu_grid(o->t, GPU_ROW_BLOCK / LANES),
                      dim3(GPU_ROW_BLOCK), 0, stream, (T *)o->residual.data, (T *)o->y.data,
                      (float *)o->rstd.data, (const T *)o->a.data, (const T *)o->b.data,
                      (const T *)o->gamma.data, o->eps, o->t, (int)o->h);
}

/* Columns that the registers of a warp hold: 128 of a thread. */
static int64_t most_columns(assay_dtype dtype)
{
    return dtype == ASSAY_BF16 ? 8192 : 4096;
}

template <class T> static cudaError_t launch_k1(const residual_norm_args *o, cudaStream_t stream)
{
    const int lanes = gpu_row_lanes(o->h);
    if (lanes == 4)
        return launch_lanes<T, 4, 1>(o, stream);
    if (lanes == 8)
        return launch_lanes<T, 8, 2>(o, stream);
    if (o->h <= 1024)
        return launch_lanes<T, 32, 4>(o, stream);
    if (o->h <= 2048)
        return launch_lanes<T, 32, 8>(o, stream);
    if constexpr (sizeof(T) == 2)
        if (o->h > 4096)
            return launch_lanes<T, 32, 32>(o, stream);
    return launch_lanes<T, 32, 16>(o, stream);
}

template <class T> static cudaError_t launch(int variant, const residual_norm_args *o, cudaStream_t stream)
{
    return variant == 0 ? launch_k0<T>(o, stream) : launch_k1<T>(o, stream);
}

static assay_status check_apart(const char *op, const char *output, gpu_tensor t, const residual_norm_args *o)
{
    ASSAY_CHECK(o->t * o->h == 0 || (t.data != o->a.data && t.data != o->b.data && t.data != o->gamma.data),
                ASSAY_INVALID_ARGUMENT, "%s: %s: expected memory of its own, found that of an input", op,
                output);
    return ASSAY_OK;
}

static assay_status add_rmsnorm_fwd(const gpu_work *w)
{
    const gpu_tensor gamma = gpu_operand(w->o, "gamma");
    const residual_norm_args o = {norm_rows(gpu_operand(w->o, "residual"), gamma),
                                  norm_rows(gpu_operand(w->o, "y"), gamma),
                                  gpu_operand(w->o, "rstd"),
                                  norm_rows(gpu_operand(w->o, "a"), gamma),
                                  norm_rows(gpu_operand(w->o, "b"), gamma),
                                  gamma,
                                  (float)gpu_operand_double(w->o, "eps"),
                                  gpu_tensor_row_count(norm_rows(gpu_operand(w->o, "a"), gamma)),
                                  gpu_tensor_count(gamma)};
    const char *op = "add_rmsnorm_fwd";
    ASSAY_TRY(gpu_check_act(op, "a", o.a));
    ASSAY_TRY(gpu_check_tensor(op, "b", o.b, o.a.dtype, o.a.dtype));
    ASSAY_TRY(gpu_check_tensor(op, "gamma", gamma, o.a.dtype, o.a.dtype));
    ASSAY_TRY(gpu_check_tensor(op, "residual", o.residual, o.a.dtype, o.a.dtype));
    ASSAY_TRY(gpu_check_tensor(op, "y", o.y, o.a.dtype, o.a.dtype));
    ASSAY_TRY(gpu_check_tensor(op, "rstd", o.rstd, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(gpu_check_shape2(op, "a", o.a, o.t, o.h));
    ASSAY_TRY(gpu_check_count(op, "b", o.b, o.t * o.h));
    ASSAY_TRY(gpu_check_count(op, "residual", o.residual, o.t * o.h));
    ASSAY_TRY(gpu_check_count(op, "y", o.y, o.t * o.h));
    ASSAY_TRY(gpu_check_count(op, "rstd", o.rstd, o.t));
    ASSAY_CHECK(o.eps >= 0.0f, ASSAY_INVALID_ARGUMENT,
                "%s: eps: expected a number that is not negative, found %g", op, (double)o.eps);
    ASSAY_TRY(check_apart(op, "residual", o.residual, &o));
    ASSAY_TRY(check_apart(op, "y", o.y, &o));
    ASSAY_CHECK(o.t * o.h == 0 || o.y.data != o.residual.data, ASSAY_INVALID_ARGUMENT,
                "%s: y: expected memory of its own, found that of residual", op);
    if (o.t > 0)
        GPU_LAUNCHED(GPU_BY_ACT(o.a.dtype, launch, w->variant, &o, w->stream), op);
    return ASSAY_OK;
}

/* --- the ladder --------------------------------------------------------------------------------------------- */
static bool rows_in_registers(const gpu_ctx *, const gpu_operands *o)
{
    const int64_t columns = gpu_tensor_count(gpu_operand(o, "gamma"));
    return columns <= most_columns(gpu_operand(o, "a").dtype) && gpu_eights(o, columns);
}

static void reads_stored(assay_arith *a, const gpu_ctx *, const gpu_operands *)
{
    a->rounding = ASSAY_ROUND_RESIDUAL;
}

static void lanes_read_stored(assay_arith *a, const gpu_ctx *ctx, const gpu_operands *o)
{
    reads_stored(a, ctx, o);
    norm_row_lanes(a, ctx, o);
}

GPU_LADDER(add_rmsnorm_fwd) = {
    GPU_RUNG("one thread a row", add_rmsnorm_fwd, GPU_DECLARES("residual", GPU_ELEMENTWISE(0)),
             GPU_ADAPTS("y rstd", GPU_SEQUENTIAL(2), reads_stored, "the residual is read as it is stored")),
    GPU_RUNG_IF("lanes a row, eight elements at a time, the row in registers", add_rmsnorm_fwd, NULL,
                rows_in_registers, NULL, GPU_SM_80, GPU_DECLARES("residual", GPU_ELEMENTWISE(0)),
                GPU_ADAPTS("y rstd", GPU_TREE(32, 2), lanes_read_stored,
                           "the residual is read as it is stored; 4 lanes up to H = 32, 8 up to 128")),
    GPU_LADDER_END,
};
