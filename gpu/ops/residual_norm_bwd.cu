/* The backward of a norm and the residual's gradient that is added to it, in one launch: rmsnorm_bwd, then add.  docs/OPS.md 3.
 *
 *   k0  one thread for each row: dx, rounded, then the sum              fp32, sequential fma
 *   k1  rmsnorm_bwd's k3 (gpu/ops/norm_once.cuh), which adds what it    fp32, trees
 *       has in registers: dy, x and the residual's gradient are read
 *       once, and dx is stored only where somebody asks for it
 *
 * The sum takes dx as it is rounded to its type, in registers, too: k1 has the bits of rmsnorm_bwd's and add's highest rungs
 * (tests/gpu/test_residual_norm.c). */
#include "gpu/ops/norm_once.cuh"

/* What T stores of v. */
__device__ static __forceinline__ float norm_stored(const float *, float v)
{
    return v;
}
__device__ static __forceinline__ float norm_stored(const bf16 *, float v)
{
    return __bfloat162float(__float2bfloat16_rn(v));
}

template <class T>
__global__ void rmsnorm_bwd_add_k0(T *dx, T *y, const T *dresidual, const T *dy, const T *x, const T *gamma,
                                   const float *rstd, int64_t t, int64_t h)
{
    for (int64_t row = gpu_thread(); row < t; row += gpu_threads()) {
        const float r = rstd[row];
        const int64_t at = row * h;
        float sum = 0.0f;
        for (int64_t i = 0; i < h; ++i)
            sum = fmaf(gpu_load(dy + at + i) * gpu_load(gamma + i), gpu_load(x + at + i) * r, sum);
        const float mean = sum / (float)h;
        for (int64_t i = 0; i < h; ++i) {
            const float d = norm_stored(
                dy, norm_dx(gpu_load(dy + at + i), gpu_load(x + at + i), gpu_load(gamma + i), r, mean));
            if (dx)
                gpu_store(dx + at + i, d);
            gpu_store(y + at + i, __fadd_rn(gpu_load(dresidual + at + i), d));
        }
    }
}

template <class T> static cudaError_t launch_k0(const norm_bwd_args *a, cudaStream_t stream)
{
    const cudaError_t e = launch_dgamma_k0<T>(a, stream);
    if (e != cudaSuccess)
        return e;
    return GPU_LAUNCH_NO_BARRIER(rmsnorm_bwd_add_k0<T>, gpu_grid(a->t, GPU_BLOCK), dim3(GPU_BLOCK), 0, stream,
                                 (T *)a->dx.data, (T *)a->y.data, (const T *)a->dresidual.data,
                                 (const T *)a->dy.data, (const T *)a->x.data, (const T *)a->gamma.data,
                                 (const float *)a->rstd.data, a->t, a->h);
}

template <class T>
static cudaError_t launch(int variant, const norm_bwd_args *a, float *partial, cudaStream_t stream)
{
    return variant == 0 ? launch_k0<T>(a, stream) : launch_bwd_once<T, true>(a, partial, stream);
}

static assay_status check_apart(const char *op, const char *output, gpu_tensor t, const norm_bwd_args *a)
{
    ASSAY_CHECK(!gpu_tensor_present(t) || a->t * a->h == 0 ||
                    (t.data != a->dy.data && t.data != a->x.data && t.data != a->gamma.data &&
                     t.data != a->dresidual.data),
                ASSAY_INVALID_ARGUMENT, "%s: %s: expected memory of its own, found that of an input", op,
                output);
    return ASSAY_OK;
}

static assay_status rmsnorm_bwd_add(const gpu_work *w)
{
    const char *op = "rmsnorm_bwd_add";
    norm_bwd_args a = norm_bwd_args_of(w->o);
    a.dresidual = norm_rows(gpu_operand(w->o, "dresidual"), a.gamma);
    a.y = norm_rows(gpu_operand(w->o, "y"), a.gamma);
    const assay_dtype act = a.x.dtype;
    ASSAY_TRY(norm_check_bwd(op, &a));
    ASSAY_TRY(gpu_check_tensor(op, "dresidual", a.dresidual, act, act));
    ASSAY_TRY(gpu_check_tensor(op, "y", a.y, act, act));
    ASSAY_TRY(gpu_check_count(op, "dresidual", a.dresidual, a.t * a.h));
    ASSAY_TRY(gpu_check_count(op, "y", a.y, a.t * a.h));
    if (gpu_tensor_present(a.dx)) {
        ASSAY_TRY(gpu_check_tensor(op, "dx", a.dx, act, act));
        ASSAY_TRY(gpu_check_count(op, "dx", a.dx, a.t * a.h));
    }
    ASSAY_TRY(norm_check_dgamma(op, &a));
    ASSAY_TRY(check_apart(op, "dx", a.dx, &a));
    ASSAY_TRY(check_apart(op, "y", a.y, &a));
    ASSAY_CHECK(a.t * a.h == 0 || a.y.data != a.dx.data, ASSAY_INVALID_ARGUMENT,
                "%s: y: expected memory of its own, found that of dx", op);
    if (w->variant == 1)
        ASSAY_TRY(gpu_check_workspace(op, w->ctx, norm_once_workspace(w->ctx, w->o)));
    if (a.t > 0 && a.h > 0)
        GPU_LAUNCHED(GPU_BY_ACT(act, launch, w->variant, &a, (float *)w->ctx->workspace, w->stream), op);
    return ASSAY_OK;
}

/* --- the ladder --------------------------------------------------------------------------------------------- */
static void adds_stored(assay_arith *a, const gpu_ctx *, const gpu_operands *)
{
    a->rounding = ASSAY_ROUND_RESIDUAL;
}

static void chains_add_stored(assay_arith *a, const gpu_ctx *ctx, const gpu_operands *o)
{
    adds_stored(a, ctx, o);
    norm_once_row_chains(a, ctx, o);
}
#define ADDS_STORED "dx is added as it is stored, there or not"

GPU_LADDER(rmsnorm_bwd_add) = {
    GPU_RUNG("one thread a row, one a column", rmsnorm_bwd_add, GPU_DECLARES("dx dgamma", GPU_SEQUENTIAL(0)),
             GPU_ADAPTS("y", GPU_SEQUENTIAL(0), adds_stored, ADDS_STORED)),
    GPU_RUNG_IF("dy, x and dresidual are read once, dx stays in registers", rmsnorm_bwd_add,
                norm_once_workspace, norm_once_accepts, NULL, GPU_SM_80, NORM_ONCE_ROWS, NORM_ONCE_GAMMA,
                GPU_ADAPTS("y", GPU_TREE(256, 0), chains_add_stored, ADDS_STORED "; lanes as dx")),
    GPU_LADDER_END,
};
