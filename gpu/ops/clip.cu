/* The sums of a step and what it is clipped by, without the host.  docs/OPS.md 8.
 *
 *   total             k0  one thread: a number for each tensor of a rank, a few hundred     sequential, in double or integers
 *   clip_coefficient  k0  one thread                                                        double, each step rounded once */
#include "gpu/device.cuh"

template <class T> __global__ void total_k0(T *y, const T *x, int64_t n)
{
    if (gpu_thread() != 0)
        return;
    T sum = 0;
    for (int64_t i = 0; i < n; ++i)
        sum += x[i];
    *y = sum;
}

/* A norm that is no number leaves the gradients as they are: c < 1 is false then. */
__global__ void clip_k0(double *norm, double *scale, const double *sumsq, double clip_grad)
{
    if (gpu_thread() != 0)
        return;
    const double root = sqrt(*sumsq), c = clip_grad / (root + 1e-6);
    *norm = root;
    *scale = clip_grad > 0.0 && c < 1.0 ? c : 1.0;
}

static assay_status total(const gpu_work *w)
{
    const char *op = "total";
    const gpu_tensor x = gpu_operand(w->o, "x"), y = gpu_operand(w->o, "y");
    ASSAY_CHECK(x.dtype == ASSAY_F64 || x.dtype == ASSAY_I64, ASSAY_UNSUPPORTED,
                "%s: x: expected F64 or I64, found %s", op, assay_dtype_name(x.dtype));
    ASSAY_TRY(gpu_check_tensor(op, "x", x, ASSAY_F64, ASSAY_I64));
    ASSAY_TRY(gpu_check_tensor(op, "y", y, x.dtype, x.dtype));
    ASSAY_TRY(gpu_check_count(op, "y", y, 1));
    const int64_t n = gpu_tensor_count(x);
    const cudaError_t e = x.dtype == ASSAY_F64
                              ? GPU_LAUNCH_NO_BARRIER(total_k0<double>, dim3(1), dim3(1), 0, w->stream,
                                                      (double *)y.data, (const double *)x.data, n)
                              : GPU_LAUNCH_NO_BARRIER(total_k0<int64_t>, dim3(1), dim3(1), 0, w->stream,
                                                      (int64_t *)y.data, (const int64_t *)x.data, n);
    GPU_LAUNCHED(e, op);
    return ASSAY_OK;
}

static assay_status clip_coefficient(const gpu_work *w)
{
    static const char *const slots[] = {"sumsq", "norm", "scale"};
    const char *op = "clip_coefficient";
    const double clip_grad = gpu_operand_double(w->o, "clip_grad");
    for (int i = 0; i < 3; ++i) {
        ASSAY_TRY(gpu_check_tensor(op, slots[i], gpu_operand(w->o, slots[i]), ASSAY_F64, ASSAY_F64));
        ASSAY_TRY(gpu_check_count(op, slots[i], gpu_operand(w->o, slots[i]), 1));
    }
    ASSAY_CHECK(clip_grad >= 0.0 && isfinite(clip_grad), ASSAY_INVALID_ARGUMENT,
                "%s: clip_grad: expected a finite number of 0 or more, found %g", op, clip_grad);
    GPU_LAUNCHED(GPU_LAUNCH_NO_BARRIER(clip_k0, dim3(1), dim3(1), 0, w->stream,
                                       (double *)gpu_operand(w->o, "norm").data,
                                       (double *)gpu_operand(w->o, "scale").data,
                                       (const double *)gpu_operand(w->o, "sumsq").data, clip_grad),
                 op);
    return ASSAY_OK;
}

/* --- the ladder --------------------------------------------------------------------------------------------- */
GPU_LADDER(total) = {
    GPU_RUNG("one thread", total, GPU_DECLARES("y", GPU_ARITH(F64, SEQUENTIAL, 1, false, 0, 0))),
    GPU_LADDER_END,
};
GPU_LADDER(clip_coefficient) = {
    GPU_RUNG("one thread", clip_coefficient,
             GPU_DECLARES("norm scale", GPU_ARITH(F64, NONE, 1, false, 0, 0))),
    GPU_LADDER_END,
};
