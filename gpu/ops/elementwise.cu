/* Element-wise operations: add, cast, clamp, and rows of a tensor.  docs/OPS.md 6.
 *
 *   k0  one thread for each element
 *   k1  add, clamp: four elements for each thread where sizes allow; the same arithmetic
 *
 * y may be the buffer of an input of the same dtype. */
#include "gpu/device.cuh"

template <class T> __global__ void add_k0(T *y, const T *a, const T *b, int64_t n)
{
    for (int64_t i = gpu_thread(); i < n; i += gpu_threads())
        gpu_store(y + i, gpu_load(a + i) + gpu_load(b + i));
}

template <class T> struct alignas(4 * sizeof(T)) four {
    T v[4];
};

template <class T> __global__ void add_k1(four<T> *y, const four<T> *a, const four<T> *b, int64_t n)
{
    for (int64_t i = gpu_thread(); i < n; i += gpu_threads()) {
        const four<T> p = a[i], q = b[i];
        four<T> r;
        for (int j = 0; j < 4; ++j)
            gpu_store(&r.v[j], gpu_load(&p.v[j]) + gpu_load(&q.v[j]));
        y[i] = r;
    }
}

template <class TY, class T> __global__ void cast_k0(TY *y, const T *x, int64_t n)
{
    for (int64_t i = gpu_thread(); i < n; i += gpu_threads())
        gpu_store(y + i, gpu_load(x + i));
}

/* The limit as the dtype of x holds it. */
static float clamp_limit(double limit, assay_dtype dtype)
{
    const float near = (float)limit;
    return dtype == ASSAY_BF16 ? __bfloat162float(__float2bfloat16_rn(near)) : near;
}

/* Comparisons, not fminf and fmaxf: those would lose a NaN. */
__device__ static float clamp_value(float x, float limit)
{
    return x > limit ? limit : x < -limit ? -limit : x;
}

/* Nothing passes on the limit, as in torch 2.15. */
__device__ static float clamp_slope(float dy, float x, float limit)
{
    return fabsf(x) < limit ? dy : 0.0f;
}

template <class T> __global__ void clamp_fwd_k0(T *y, const T *x, float limit, int64_t n)
{
    for (int64_t i = gpu_thread(); i < n; i += gpu_threads())
        gpu_store(y + i, clamp_value(gpu_load(x + i), limit));
}

template <class T> __global__ void clamp_fwd_k1(four<T> *y, const four<T> *x, float limit, int64_t n)
{
    for (int64_t i = gpu_thread(); i < n; i += gpu_threads()) {
        const four<T> p = x[i];
        four<T> r;
        for (int j = 0; j < 4; ++j)
            gpu_store(&r.v[j], clamp_value(gpu_load(&p.v[j]), limit));
        y[i] = r;
    }
}

template <class T> __global__ void clamp_bwd_k0(T *dx, const T *dy, const T *x, float limit, int64_t n)
{
    for (int64_t i = gpu_thread(); i < n; i += gpu_threads())
        gpu_store(dx + i, clamp_slope(gpu_load(dy + i), gpu_load(x + i), limit));
}

template <class T>
__global__ void clamp_bwd_k1(four<T> *dx, const four<T> *dy, const four<T> *x, float limit, int64_t n)
{
    for (int64_t i = gpu_thread(); i < n; i += gpu_threads()) {
        const four<T> d = dy[i], p = x[i];
        four<T> r;
        for (int j = 0; j < 4; ++j)
            gpu_store(&r.v[j], clamp_slope(gpu_load(&d.v[j]), gpu_load(&p.v[j]), limit));
        dx[i] = r;
    }
}

template <class T>
static cudaError_t launch_add(int variant, gpu_tensor y, gpu_tensor a, gpu_tensor b, int64_t n,
                              cudaStream_t stream)
{
    if (variant == 0)
        return GPU_LAUNCH_NO_BARRIER(add_k0<T>, gpu_grid(n, GPU_BLOCK), dim3(GPU_BLOCK), 0, stream,
                                     (T *)y.data, (const T *)a.data, (const T *)b.data, n);
    return GPU_LAUNCH_NO_BARRIER(add_k1<T>, gpu_grid(n / 4, GPU_BLOCK), dim3(GPU_BLOCK), 0, stream,
                                 (four<T> *)y.data, (const four<T> *)a.data, (const four<T> *)b.data, n / 4);
}

static assay_status add(const gpu_work *w)
{
    const gpu_tensor y = gpu_operand(w->o, "y"), a = gpu_operand(w->o, "a"), b = gpu_operand(w->o, "b");
    const char *op = "add";
    ASSAY_TRY(gpu_check_act(op, "a", a));
    ASSAY_TRY(gpu_check_tensor(op, "b", b, a.dtype, a.dtype));
    ASSAY_TRY(gpu_check_tensor(op, "y", y, a.dtype, a.dtype));
    const int64_t n = gpu_tensor_count(a);
    ASSAY_TRY(gpu_check_count(op, "b", b, n));
    ASSAY_TRY(gpu_check_count(op, "y", y, n));
    if (n > 0)
        GPU_LAUNCHED(GPU_BY_ACT(a.dtype, launch_add, w->variant, y, a, b, n, w->stream), op);
    return ASSAY_OK;
}

template <class TY, class T>
static cudaError_t launch_cast(gpu_tensor y, gpu_tensor x, int64_t n, cudaStream_t stream)
{
    return GPU_LAUNCH_NO_BARRIER((cast_k0<TY, T>), gpu_grid(n, GPU_BLOCK), dim3(GPU_BLOCK), 0, stream,
                                 (TY *)y.data, (const T *)x.data, n);
}

static assay_status cast(const gpu_work *w)
{
    const gpu_tensor y = gpu_operand(w->o, "y"), x = gpu_operand(w->o, "x");
    const char *op = "cast";
    ASSAY_TRY(gpu_check_act(op, "x", x));
    ASSAY_TRY(gpu_check_act(op, "y", y));
    const int64_t n = gpu_tensor_count(x);
    ASSAY_TRY(gpu_check_count(op, "y", y, n));
    if (n > 0) {
        cudaError_t e;
        if (x.dtype == ASSAY_F32)
            e = y.dtype == ASSAY_F32 ? launch_cast<float, float>(y, x, n, w->stream)
                                     : launch_cast<bf16, float>(y, x, n, w->stream);
        else
            e = y.dtype == ASSAY_F32 ? launch_cast<float, bf16>(y, x, n, w->stream)
                                     : launch_cast<bf16, bf16>(y, x, n, w->stream);
        GPU_LAUNCHED(e, op);
    }
    return ASSAY_OK;
}

template <class T>
static cudaError_t launch_clamp_fwd(int variant, gpu_tensor y, gpu_tensor x, float limit, int64_t n,
                                    cudaStream_t stream)
{
    if (variant == 0)
        return GPU_LAUNCH_NO_BARRIER(clamp_fwd_k0<T>, gpu_grid(n, GPU_BLOCK), dim3(GPU_BLOCK), 0, stream,
                                     (T *)y.data, (const T *)x.data, limit, n);
    return GPU_LAUNCH_NO_BARRIER(clamp_fwd_k1<T>, gpu_grid(n / 4, GPU_BLOCK), dim3(GPU_BLOCK), 0, stream,
                                 (four<T> *)y.data, (const four<T> *)x.data, limit, n / 4);
}

static assay_status clamp_fwd(const gpu_work *w)
{
    const gpu_tensor y = gpu_operand(w->o, "y"), x = gpu_operand(w->o, "x");
    const float limit = clamp_limit(gpu_operand_double(w->o, "limit"), x.dtype);
    const char *op = "clamp_fwd";
    ASSAY_TRY(gpu_check_act(op, "x", x));
    ASSAY_TRY(gpu_check_tensor(op, "y", y, x.dtype, x.dtype));
    const int64_t n = gpu_tensor_count(x);
    ASSAY_TRY(gpu_check_count(op, "y", y, n));
    if (n > 0)
        GPU_LAUNCHED(GPU_BY_ACT(x.dtype, launch_clamp_fwd, w->variant, y, x, limit, n, w->stream), op);
    return ASSAY_OK;
}

template <class T>
static cudaError_t launch_clamp_bwd(int variant, gpu_tensor dx, gpu_tensor dy, gpu_tensor x, float limit,
                                    int64_t n, cudaStream_t stream)
{
    if (variant == 0)
        return GPU_LAUNCH_NO_BARRIER(clamp_bwd_k0<T>, gpu_grid(n, GPU_BLOCK), dim3(GPU_BLOCK), 0, stream,
                                     (T *)dx.data, (const T *)dy.data, (const T *)x.data, limit, n);
    return GPU_LAUNCH_NO_BARRIER(clamp_bwd_k1<T>, gpu_grid(n / 4, GPU_BLOCK), dim3(GPU_BLOCK), 0, stream,
                                 (four<T> *)dx.data, (const four<T> *)dy.data, (const four<T> *)x.data, limit,
                                 n / 4);
}

static assay_status clamp_bwd(const gpu_work *w)
{
    const gpu_tensor dx = gpu_operand(w->o, "dx"), dy = gpu_operand(w->o, "dy"), x = gpu_operand(w->o, "x");
    const char *op = "clamp_bwd";
    const float limit = clamp_limit(gpu_operand_double(w->o, "limit"), x.dtype);
    ASSAY_TRY(gpu_check_act(op, "x", x));
    ASSAY_TRY(gpu_check_tensor(op, "dy", dy, x.dtype, x.dtype));
    ASSAY_TRY(gpu_check_tensor(op, "dx", dx, x.dtype, x.dtype));
    const int64_t n = gpu_tensor_count(x);
    ASSAY_TRY(gpu_check_count(op, "dy", dy, n));
    ASSAY_TRY(gpu_check_count(op, "dx", dx, n));
    if (n > 0)
        GPU_LAUNCHED(GPU_BY_ACT(x.dtype, launch_clamp_bwd, w->variant, dx, dy, x, limit, n, w->stream), op);
    return ASSAY_OK;
}

/* Rows of s, where the tensor's rows are tokens: y has its share of x. */
static assay_status slice_rows(const gpu_work *w)
{
    const gpu_tensor x = gpu_operand(w->o, "x"), y = gpu_operand(w->o, "y");
    const int64_t start = gpu_operand_int(w->o, "start"), length = gpu_operand_int(w->o, "length");
    const int64_t unit = length > 0 ? y.shape[0] / length : 1;
    ASSAY_CHECK(x.ndim > 0 && length <= x.shape[0] && start <= x.shape[0] / (unit > 0 ? unit : 1) - length,
                ASSAY_INVALID_ARGUMENT,
                "slice_rows: expected rows inside %" PRId64 ", found start %" PRId64 ", length %" PRId64,
                x.shape[0], start, length);
    const gpu_tensor piece = gpu_tensor_rows(x, start * unit, y.shape[0]);
    if (gpu_tensor_bytes(y) > 0 && y.data != piece.data) /* else a view */
        CUDA_TRY(
            cudaMemcpyAsync(y.data, piece.data, gpu_tensor_bytes(y), cudaMemcpyDeviceToDevice, w->stream));
    return ASSAY_OK;
}

/* --- the ladder --------------------------------------------------------------------------------------------- */
/* Whether four elements at a time can be taken of every operand. */
static bool by_four(const gpu_ctx *, const gpu_operands *o)
{
    for (int i = 0; i < assay_op_n_slots(o->op); ++i) {
        const gpu_tensor t = o->slot[i];
        if (gpu_tensor_count(t) % 4 != 0 || (uintptr_t)t.data % (4 * (size_t)assay_dtype_bytes(t.dtype)) != 0)
            return false;
    }
    return true;
}

GPU_LADDER(add) = {
    GPU_RUNG("one thread an element, plain", add, GPU_DECLARES("y", GPU_ELEMENTWISE(0))),
    GPU_RUNG_IF("four elements a thread where sizes allow: fewer, wider loads", add, NULL, by_four, NULL,
                GPU_SM_80, GPU_DECLARES("y", GPU_ELEMENTWISE(0))),
    GPU_LADDER_END,
};
GPU_LADDER(cast) = {
    GPU_RUNG("one thread an element", cast, GPU_DECLARES("y", GPU_ELEMENTWISE(0))),
    GPU_LADDER_END,
};
GPU_LADDER(slice_rows) = {
    GPU_RUNG("a view in the engine, one copy otherwise", slice_rows, GPU_DECLARES("y", GPU_ELEMENTWISE(0))),
    GPU_LADDER_END,
};
GPU_LADDER(clamp_fwd) = {
    GPU_RUNG("one thread an element, plain", clamp_fwd, GPU_DECLARES("y", GPU_ELEMENTWISE(0))),
    GPU_RUNG_IF("four elements a thread where sizes allow", clamp_fwd, NULL, by_four, NULL, GPU_SM_80,
                GPU_DECLARES("y", GPU_ELEMENTWISE(0))),
    GPU_LADDER_END,
};
GPU_LADDER(clamp_bwd) = {
    GPU_RUNG("one thread an element, plain", clamp_bwd, GPU_DECLARES("dx", GPU_ELEMENTWISE(0))),
    GPU_RUNG_IF("four elements a thread where sizes allow", clamp_bwd, NULL, by_four, NULL, GPU_SM_80,
                GPU_DECLARES("dx", GPU_ELEMENTWISE(0))),
    GPU_LADDER_END,
};
