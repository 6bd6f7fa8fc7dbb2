/* Element-wise operations: add, cast, clamp, and rows of a tensor.  docs/OPS.md 6.
 *
 *   k0  one thread for each element
 *   k1  add, cast, clamp: eight elements for each thread where sizes allow; the same arithmetic
 *
 * y may be the buffer of an input of the same dtype. */
#include "gpu/vector.cuh"

template <class T> __global__ void add_k0(T *y, const T *a, const T *b, int64_t n)
{
    for (int64_t i = gpu_thread(); i < n; i += gpu_threads())
        gpu_store(y + i, gpu_load(a + i) + gpu_load(b + i));
}

template <class T> __global__ void add_k1(T *y, const T *a, const T *b, int64_t eights)
{
    for (int64_t i = gpu_thread(); i < eights; i += gpu_threads()) {
        float p[GPU_EIGHT], q[GPU_EIGHT];
        gpu_load_n(p, a + i * GPU_EIGHT);
        gpu_load_n(q, b + i * GPU_EIGHT);
        for (int j = 0; j < GPU_EIGHT; ++j)
            p[j] = p[j] + q[j];
        gpu_store_n(y + i * GPU_EIGHT, p);
    }
}

template <class TY, class T> __global__ void cast_k0(TY *y, const T *x, int64_t n)
{
    for (int64_t i = gpu_thread(); i < n; i += gpu_threads())
        gpu_store(y + i, gpu_load(x + i));
}

/* Numbers of a thread at a time: 16 bytes of the wider type, so that a warp asks for whole sectors on both sides. */
template <class TY, class T> struct cast_piece {
    static constexpr int width = GPU_VECTOR_BYTES / (int)(sizeof(TY) > sizeof(T) ? sizeof(TY) : sizeof(T));
};

template <class TY, class T> __global__ void cast_k1(TY *y, const T *x, int64_t pieces)
{
    constexpr int width = cast_piece<TY, T>::width;
    for (int64_t i = gpu_thread(); i < pieces; i += gpu_threads()) {
        float v[width];
        gpu_load_n(v, x + i * width);
        gpu_store_n(y + i * width, v);
    }
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

template <class T> __global__ void clamp_fwd_k1(T *y, const T *x, float limit, int64_t eights)
{
    for (int64_t i = gpu_thread(); i < eights; i += gpu_threads()) {
        float v[GPU_EIGHT];
        gpu_load_n(v, x + i * GPU_EIGHT);
        for (int j = 0; j < GPU_EIGHT; ++j)
            v[j] = clamp_value(v[j], limit);
        gpu_store_n(y + i * GPU_EIGHT, v);
    }
}

template <class T> __global__ void clamp_bwd_k0(T *dx, const T *dy, const T *x, float limit, int64_t n)
{
    for (int64_t i = gpu_thread(); i < n; i += gpu_threads())
        gpu_store(dx + i, clamp_slope(gpu_load(dy + i), gpu_load(x + i), limit));
}

template <class T> __global__ void clamp_bwd_k1(T *dx, const T *dy, const T *x, float limit, int64_t eights)
{
    for (int64_t i = gpu_thread(); i < eights; i += gpu_threads()) {
        float d[GPU_EIGHT], v[GPU_EIGHT];
        gpu_load_n(d, dy + i * GPU_EIGHT);
        gpu_load_n(v, x + i * GPU_EIGHT);
        for (int j = 0; j < GPU_EIGHT; ++j)
            d[j] = clamp_slope(d[j], v[j], limit);
        gpu_store_n(dx + i * GPU_EIGHT, d);
    }
}

template <class T>
static cudaError_t launch_add(int variant, gpu_tensor y, gpu_tensor a, gpu_tensor b, int64_t n,
                              cudaStream_t stream)
{
    if (variant == 0)
        return GPU_LAUNCH_NO_BARRIER(add_k0<T>, gpu_grid(n, GPU_BLOCK), dim3(GPU_BLOCK), 0, stream,
                                     (T *)y.data, (const T *)a.data, (const T *)b.data, n);
    return GPU_LAUNCH_NO_BARRIER(add_k1<T>, gpu_grid(n / GPU_EIGHT, GPU_BLOCK), dim3(GPU_BLOCK), 0, stream,
                                 (T *)y.data, (const T *)a.data, (const T *)b.data, n / GPU_EIGHT);
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
static cudaError_t launch_cast(int variant, gpu_tensor y, gpu_tensor x, int64_t n, cudaStream_t stream)
{
    const int64_t pieces = n / cast_piece<TY, T>::width;
    if (variant > 0)
        return GPU_LAUNCH_NO_BARRIER((cast_k1<TY, T>), gpu_grid(pieces, GPU_BLOCK), dim3(GPU_BLOCK), 0,
                                     stream, (TY *)y.data, (const T *)x.data, pieces);
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
            e = y.dtype == ASSAY_F32 ? launch_cast<float, float>(w->variant, y, x, n, w->stream)
                                     : launch_cast<bf16, float>(w->variant, y, x, n, w->stream);
        else
            e = y.dtype == ASSAY_F32 ? launch_cast<float, bf16>(w->variant, y, x, n, w->stream)
                                     : launch_cast<bf16, bf16>(w->variant, y, x, n, w->stream);
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
    return GPU_LAUNCH_NO_BARRIER(clamp_fwd_k1<T>, gpu_grid(n / GPU_EIGHT, GPU_BLOCK), dim3(GPU_BLOCK), 0,
                                 stream, (T *)y.data, (const T *)x.data, limit, n / GPU_EIGHT);
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
    return GPU_LAUNCH_NO_BARRIER(clamp_bwd_k1<T>, gpu_grid(n / GPU_EIGHT, GPU_BLOCK), dim3(GPU_BLOCK), 0,
                                 stream, (T *)dx.data, (const T *)dy.data, (const T *)x.data, limit,
                                 n / GPU_EIGHT);
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

static int64_t row_elements(gpu_tensor t)
{
    int64_t n = 1;
    for (int d = 1; d < t.ndim; ++d)
        n *= t.shape[d];
    return n;
}

/* Rows of s, where the tensor's rows are tokens: y has its share of x. */
static assay_status slice_rows(const gpu_work *w)
{
    const gpu_tensor x = gpu_operand(w->o, "x"), y = gpu_operand(w->o, "y");
    const int64_t start = gpu_operand_int(w->o, "start"), length = gpu_operand_int(w->o, "length");
    const char *op = "slice_rows";
    ASSAY_TRY(gpu_check_tensor(op, "x", x, x.dtype, x.dtype));
    ASSAY_TRY(gpu_check_tensor(op, "y", y, x.dtype, x.dtype));
    ASSAY_CHECK(x.ndim > 0 && y.ndim > 0, ASSAY_INVALID_ARGUMENT, "%s: x, y: expected rows", op);
    const int64_t unit = length > 0 ? y.shape[0] / length : 1;
    ASSAY_CHECK(unit > 0 && y.shape[0] == unit * length, ASSAY_INVALID_ARGUMENT,
                "%s: y: expected %" PRId64 " rows or a multiple, found %" PRId64, op, length, y.shape[0]);
    ASSAY_CHECK(row_elements(x) == row_elements(y), ASSAY_INVALID_ARGUMENT,
                "%s: y: expected rows of %" PRId64 " elements as x has, found %" PRId64, op, row_elements(x),
                row_elements(y));
    ASSAY_CHECK(start >= 0 && length >= 0 && length <= x.shape[0] && start <= x.shape[0] / unit - length,
                ASSAY_INVALID_ARGUMENT,
                "%s: x: expected rows inside %" PRId64 ", found start %" PRId64 ", length %" PRId64, op,
                x.shape[0], start, length);
    const gpu_tensor piece = gpu_tensor_rows(x, start * unit, y.shape[0]);
    if (gpu_tensor_bytes(y) > 0 && y.data != piece.data) /* else a view */
        CUDA_TRY(
            cudaMemcpyAsync(y.data, piece.data, gpu_tensor_bytes(y), cudaMemcpyDeviceToDevice, w->stream));
    return ASSAY_OK;
}

/* --- the ladder --------------------------------------------------------------------------------------------- */
static bool by_eight(const gpu_ctx *, const gpu_operands *o)
{
    for (int i = 0; i < assay_op_n_slots(o->op); ++i)
        if (gpu_tensor_count(o->slot[i]) % GPU_EIGHT != 0)
            return false;
    return gpu_eights(o, 0);
}

GPU_LADDER(add) = {
    GPU_RUNG("one thread an element, plain", add, GPU_DECLARES("y", GPU_ELEMENTWISE(0))),
    GPU_RUNG_IF("eight elements a thread where sizes allow: fewer, wider loads", add, NULL, by_eight, NULL,
                GPU_SM_80, GPU_DECLARES("y", GPU_ELEMENTWISE(0))),
    GPU_LADDER_END,
};
GPU_LADDER(cast) = {
    GPU_RUNG("one thread an element", cast, GPU_DECLARES("y", GPU_ELEMENTWISE(0))),
    GPU_RUNG_IF("16 bytes of the wider type a thread where sizes allow", cast, NULL, by_eight, NULL,
                GPU_SM_80, GPU_DECLARES("y", GPU_ELEMENTWISE(0))),
    GPU_LADDER_END,
};
GPU_LADDER(slice_rows) = {
    GPU_RUNG("a view in the engine, one copy otherwise", slice_rows, GPU_DECLARES("y", GPU_ELEMENTWISE(0))),
    GPU_LADDER_END,
};
GPU_LADDER(clamp_fwd) = {
    GPU_RUNG("one thread an element, plain", clamp_fwd, GPU_DECLARES("y", GPU_ELEMENTWISE(0))),
    GPU_RUNG_IF("eight elements a thread where sizes allow", clamp_fwd, NULL, by_eight, NULL, GPU_SM_80,
                GPU_DECLARES("y", GPU_ELEMENTWISE(0))),
    GPU_LADDER_END,
};
GPU_LADDER(clamp_bwd) = {
    GPU_RUNG("one thread an element, plain", clamp_bwd, GPU_DECLARES("dx", GPU_ELEMENTWISE(0))),
    GPU_RUNG_IF("eight elements a thread where sizes allow", clamp_bwd, NULL, by_eight, NULL, GPU_SM_80,
                GPU_DECLARES("dx", GPU_ELEMENTWISE(0))),
    GPU_LADDER_END,
};
