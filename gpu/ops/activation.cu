/* Activations and gates: SwiGLU, sigmoid gate.  docs/OPS.md 6.
 *
 *   k0  one thread for each element; sums over a row by one thread      fp32, sequential
 *   k1  row sums (dprobs, dgate): 4, 8 or 32 lanes for each row,        fp32, tree of that many lanes
 *       shuffles
 *
 * sigmoid is 1/(1 + exp(-x)), at most 6 ulp.  y may be the buffer of an input of the same dtype. */
#include "gpu/device.cuh"

template <class T> __global__ void swiglu_fwd_k0(T *y, const T *x, const float *probs, int64_t t, int64_t f)
{
    for (int64_t e = gpu_thread(); e < t * f; e += gpu_threads()) {
        const int64_t row = e / f, i = e % f;
        const float gate = gpu_load(x + row * 2 * f + i), up = gpu_load(x + row * 2 * f + f + i);
        const float h = gate * gpu_sigmoid(gate) * up;
        gpu_store(y + e, probs != nullptr ? h * probs[row] : h);
    }
}

/* Element i of a row: writes dgate and dup, returns the term dy h of dprobs. */
template <class T>
__device__ static float swiglu_bwd_element(T *dx, const T *dy, const T *x, float p, int64_t f, int64_t i)
{
    const float gate = gpu_load(x + i), up = gpu_load(x + f + i), d = gpu_load(dy + i);
    const float s = gpu_sigmoid(gate);
    gpu_store(dx + i, d * p * up * s * (1.0f + gate * (1.0f - s)));
    gpu_store(dx + f + i, d * p * gate * s);
    return d * (gate * s * up);
}

template <class T>
__global__ void swiglu_bwd_k0(T *dx, float *dprobs, const T *dy, const T *x, const float *probs, int64_t t,
                              int64_t f)
{
    for (int64_t row = gpu_thread(); row < t; row += gpu_threads()) {
        const float p = probs != nullptr ? probs[row] : 1.0f;
        float sum = 0.0f;
        for (int64_t i = 0; i < f; ++i)
            sum += swiglu_bwd_element(dx + row * 2 * f, dy + row * f, x + row * 2 * f, p, f, i);
        if (dprobs != nullptr)
            dprobs[row] = sum;
    }
}

template <class T, int LANES>
__global__ void swiglu_bwd_k1(T *dx, float *dprobs, const T *dy, const T *x, const float *probs, int64_t t,
                              int64_t f)
{
    for (int64_t first = gpu_lanes_first<LANES>(); first < t; first += gpu_lanes_step<LANES>()) {
        const int64_t row = first + gpu_lanes_group<LANES>();
        const float p = row < t ? probs[row] : 1.0f;
        float sum = 0.0f;
        if (row < t)
            for (int64_t i = gpu_lane<LANES>(); i < f; i += LANES)
                sum += swiglu_bwd_element(dx + row * 2 * f, dy + row * f, x + row * 2 * f, p, f, i);
        sum = gpu_lanes_sum<LANES>(sum);
        if (row < t && gpu_lane<LANES>() == 0)
            dprobs[row] = sum;
    }
}

/* Without probs there is no sum: one thread for each element. */
template <class T>
__global__ void swiglu_bwd_elements_k1(T *dx, const T *dy, const T *x, int64_t t, int64_t f)
{
    for (int64_t e = gpu_thread(); e < t * f; e += gpu_threads()) {
        const int64_t row = e / f;
        (void)swiglu_bwd_element(dx + row * 2 * f, dy + row * f, x + row * 2 * f, 1.0f, f, e % f);
    }
}

template <class T> __global__ void sigmoid_gate_fwd_k0(T *y, const T *x, const T *gate, int64_t t, int64_t h)
{
    for (int64_t e = gpu_thread(); e < t * h; e += gpu_threads())
        gpu_store(y + e, gpu_load(x + e) * gpu_sigmoid(gpu_load(gate + e / h)));
}

template <class T>
__global__ void sigmoid_gate_bwd_k0(T *dx, T *dgate, const T *dy, const T *x, const T *gate, int64_t t,
                                    int64_t h)
{
    for (int64_t row = gpu_thread(); row < t; row += gpu_threads()) {
        const float s = gpu_sigmoid(gpu_load(gate + row));
        float sum = 0.0f;
        for (int64_t i = row * h; i < (row + 1) * h; ++i) {
            const float d = gpu_load(dy + i);
            sum = fmaf(d, gpu_load(x + i), sum);
            gpu_store(dx + i, d * s);
        }
        gpu_store(dgate + row, s * (1.0f - s) * sum);
    }
}

template <class T, int LANES>
__global__ void sigmoid_gate_bwd_k1(T *dx, T *dgate, const T *dy, const T *x, const T *gate, int64_t t,
                                    int64_t h)
{
    for (int64_t first = gpu_lanes_first<LANES>(); first < t; first += gpu_lanes_step<LANES>()) {
        const int64_t row = first + gpu_lanes_group<LANES>();
        const float s = row < t ? gpu_sigmoid(gpu_load(gate + row)) : 0.0f;
        float sum = 0.0f;
        if (row < t)
            for (int64_t i = row * h + gpu_lane<LANES>(); i < (row + 1) * h; i += LANES) {
                const float d = gpu_load(dy + i);
                sum = fmaf(d, gpu_load(x + i), sum);
                gpu_store(dx + i, d * s);
            }
        sum = gpu_lanes_sum<LANES>(sum);
        if (row < t && gpu_lane<LANES>() == 0)
            gpu_store(dgate + row, s * (1.0f - s) * sum);
    }
}

template <class T>
static cudaError_t launch_swiglu_fwd(gpu_tensor y, gpu_tensor x, gpu_tensor probs, int64_t t, int64_t f,
                                     cudaStream_t stream)
{
    return GPU_LAUNCH_NO_BARRIER(swiglu_fwd_k0<T>, gpu_grid(t * f, GPU_BLOCK), dim3(GPU_BLOCK), 0, stream,
                                 (T *)y.data, (const T *)x.data, (const float *)probs.data, t, f);
}

static assay_status check_swiglu(const char *op, const char *y_name, gpu_tensor y, gpu_tensor x,
                                 gpu_tensor probs)
{
    ASSAY_TRY(gpu_check_act(op, "x", x));
    ASSAY_TRY(gpu_check_tensor(op, y_name, y, x.dtype, x.dtype));
    const int64_t t = gpu_tensor_row_count(x), f = gpu_tensor_cols(x) / 2;
    ASSAY_CHECK(gpu_tensor_cols(x) % 2 == 0, ASSAY_INVALID_ARGUMENT,
                "%s: x: expected an even number of columns [gate | up], found %" PRId64, op,
                gpu_tensor_cols(x));
    ASSAY_TRY(gpu_check_shape2(op, y_name, y, t, f));
    if (gpu_tensor_present(probs)) {
        ASSAY_TRY(gpu_check_tensor(op, "probs", probs, ASSAY_F32, ASSAY_F32));
        ASSAY_TRY(gpu_check_count(op, "probs", probs, t));
    }
    return ASSAY_OK;
}

static assay_status swiglu_fwd(const gpu_work *w)
{
    const gpu_tensor y = gpu_operand(w->o, "y"), x = gpu_operand(w->o, "x"),
                     probs = gpu_operand(w->o, "probs");
    const char *op = "swiglu_fwd";
    ASSAY_TRY(check_swiglu(op, "y", y, x, probs));
    const int64_t t = gpu_tensor_row_count(x), f = gpu_tensor_cols(x) / 2;
    if (t * f > 0)
        GPU_LAUNCHED(GPU_BY_ACT(x.dtype, launch_swiglu_fwd, y, x, probs, t, f, w->stream), op);
    return ASSAY_OK;
}

typedef struct swiglu_bwd_args {
    gpu_tensor dx, dprobs, dy, x, probs;
    int64_t t, f;
} swiglu_bwd_args;

template <class T, int LANES>
static cudaError_t launch_swiglu_rows(const swiglu_bwd_args *a, cudaStream_t stream)
{
    return GPU_LAUNCH((swiglu_bwd_k1<T, LANES>), gpu_grid(a->t, GPU_ROW_BLOCK / LANES), dim3(GPU_ROW_BLOCK),
                      0, stream, (T *)a->dx.data, (float *)a->dprobs.data, (const T *)a->dy.data,
                      (const T *)a->x.data, (const float *)a->probs.data, a->t, a->f);
}

template <class T>
static cudaError_t launch_swiglu_bwd(int variant, const swiglu_bwd_args *a, cudaStream_t stream)
{
    if (variant == 0)
        return GPU_LAUNCH_NO_BARRIER(swiglu_bwd_k0<T>, gpu_grid(a->t, GPU_BLOCK), dim3(GPU_BLOCK), 0, stream,
                                     (T *)a->dx.data, (float *)a->dprobs.data, (const T *)a->dy.data,
                                     (const T *)a->x.data, (const float *)a->probs.data, a->t, a->f);
    if (a->dprobs.data == nullptr)
        return GPU_LAUNCH_NO_BARRIER(swiglu_bwd_elements_k1<T>, gpu_grid(a->t * a->f, GPU_BLOCK),
                                     dim3(GPU_BLOCK), 0, stream, (T *)a->dx.data, (const T *)a->dy.data,
                                     (const T *)a->x.data, a->t, a->f);
    return GPU_BY_LANES(gpu_row_lanes(a->f), launch_swiglu_rows, T, a, stream);
}

static assay_status swiglu_bwd(const gpu_work *w)
{
    const gpu_tensor dx = gpu_operand(w->o, "dx"), dprobs = gpu_operand(w->o, "dprobs"),
                     dy = gpu_operand(w->o, "dy"), x = gpu_operand(w->o, "x"),
                     probs = gpu_operand(w->o, "probs");
    const char *op = "swiglu_bwd";
    ASSAY_TRY(check_swiglu(op, "dy", dy, x, probs));
    const int64_t t = gpu_tensor_row_count(x), f = gpu_tensor_cols(x) / 2;
    ASSAY_TRY(gpu_check_tensor(op, "dx", dx, x.dtype, x.dtype));
    ASSAY_TRY(gpu_check_shape2(op, "dx", dx, t, 2 * f));
    ASSAY_CHECK(gpu_tensor_present(dprobs) == gpu_tensor_present(probs), ASSAY_INVALID_ARGUMENT,
                "%s: dprobs: expected %s, found %s", op,
                gpu_tensor_present(probs) ? "a tensor as probs" : "none",
                gpu_tensor_present(dprobs) ? "one" : "none");
    if (gpu_tensor_present(dprobs)) {
        ASSAY_TRY(gpu_check_tensor(op, "dprobs", dprobs, ASSAY_F32, ASSAY_F32));
        ASSAY_TRY(gpu_check_count(op, "dprobs", dprobs, t));
    }
    const swiglu_bwd_args a = {dx, dprobs, dy, x, probs, t, f};
    if (t > 0 && (f > 0 || gpu_tensor_present(dprobs)))
        GPU_LAUNCHED(GPU_BY_ACT(x.dtype, launch_swiglu_bwd, w->variant, &a, w->stream), op);
    return ASSAY_OK;
}

template <class T>
static cudaError_t launch_gate_fwd(gpu_tensor y, gpu_tensor x, gpu_tensor gate, int64_t t, int64_t h,
                                   cudaStream_t stream)
{
    return GPU_LAUNCH_NO_BARRIER(sigmoid_gate_fwd_k0<T>, gpu_grid(t * h, GPU_BLOCK), dim3(GPU_BLOCK), 0,
                                 stream, (T *)y.data, (const T *)x.data, (const T *)gate.data, t, h);
}

static assay_status sigmoid_gate_fwd(const gpu_work *w)
{
    const gpu_tensor y = gpu_operand(w->o, "y"), x = gpu_operand(w->o, "x"), gate = gpu_operand(w->o, "gate");
    const char *op = "sigmoid_gate_fwd";
    ASSAY_TRY(gpu_check_act(op, "x", x));
    ASSAY_TRY(gpu_check_tensor(op, "gate", gate, x.dtype, x.dtype));
    ASSAY_TRY(gpu_check_tensor(op, "y", y, x.dtype, x.dtype));
    const int64_t t = gpu_tensor_row_count(x), h = gpu_tensor_cols(x);
    ASSAY_TRY(gpu_check_count(op, "gate", gate, t));
    ASSAY_TRY(gpu_check_count(op, "y", y, t * h));
    if (t * h > 0)
        GPU_LAUNCHED(GPU_BY_ACT(x.dtype, launch_gate_fwd, y, x, gate, t, h, w->stream), op);
    return ASSAY_OK;
}

typedef struct gate_bwd_args {
    gpu_tensor dx, dgate, dy, x, gate;
    int64_t t, h;
} gate_bwd_args;

template <class T, int LANES> static cudaError_t launch_gate_rows(const gate_bwd_args *a, cudaStream_t stream)
{
    return GPU_LAUNCH((sigmoid_gate_bwd_k1<T, LANES>), gpu_grid(a->t, GPU_ROW_BLOCK / LANES),
                      dim3(GPU_ROW_BLOCK), 0, stream, (T *)a->dx.data, (T *)a->dgate.data,
                      (const T *)a->dy.data, (const T *)a->x.data, (const T *)a->gate.data, a->t, a->h);
}

template <class T>
static cudaError_t launch_gate_bwd(int variant, const gate_bwd_args *a, cudaStream_t stream)
{
    if (variant == 0)
        return GPU_LAUNCH_NO_BARRIER(sigmoid_gate_bwd_k0<T>, gpu_grid(a->t, GPU_BLOCK), dim3(GPU_BLOCK), 0,
                                     stream, (T *)a->dx.data, (T *)a->dgate.data, (const T *)a->dy.data,
                                     (const T *)a->x.data, (const T *)a->gate.data, a->t, a->h);
    return GPU_BY_LANES(gpu_row_lanes(a->h), launch_gate_rows, T, a, stream);
}

static assay_status sigmoid_gate_bwd(const gpu_work *w)
{
    const gpu_tensor dx = gpu_operand(w->o, "dx"), dgate = gpu_operand(w->o, "dgate"),
                     dy = gpu_operand(w->o, "dy"), x = gpu_operand(w->o, "x"),
                     gate = gpu_operand(w->o, "gate");
    const char *op = "sigmoid_gate_bwd";
    ASSAY_TRY(gpu_check_act(op, "x", x));
    ASSAY_TRY(gpu_check_tensor(op, "dy", dy, x.dtype, x.dtype));
    ASSAY_TRY(gpu_check_tensor(op, "gate", gate, x.dtype, x.dtype));
    ASSAY_TRY(gpu_check_tensor(op, "dx", dx, x.dtype, x.dtype));
    ASSAY_TRY(gpu_check_tensor(op, "dgate", dgate, x.dtype, x.dtype));
    const int64_t t = gpu_tensor_row_count(x), h = gpu_tensor_cols(x);
    ASSAY_TRY(gpu_check_count(op, "dy", dy, t * h));
    ASSAY_TRY(gpu_check_count(op, "dx", dx, t * h));
    ASSAY_TRY(gpu_check_count(op, "gate", gate, t));
    ASSAY_TRY(gpu_check_count(op, "dgate", dgate, t));
    const gate_bwd_args a = {dx, dgate, dy, x, gate, t, h};
    if (t > 0)
        GPU_LAUNCHED(GPU_BY_ACT(x.dtype, launch_gate_bwd, w->variant, &a, w->stream), op);
    return ASSAY_OK;
}

/* --- the ladder --------------------------------------------------------------------------------------------- */
/* Columns of a row of x that are summed. */
static void half_row_lanes(assay_arith *a, const gpu_ctx *, const gpu_operands *o)
{
    a->lanes = gpu_row_lanes(gpu_tensor_cols(gpu_operand(o, "x")) / 2);
}
static void row_lanes(assay_arith *a, const gpu_ctx *, const gpu_operands *o)
{
    a->lanes = gpu_row_lanes(gpu_tensor_cols(gpu_operand(o, "x")));
}

GPU_LADDER(swiglu_fwd) = {
    GPU_RUNG("one thread an element", swiglu_fwd, GPU_DECLARES("y", GPU_ELEMENTWISE(GPU_ULP_SIGMOID))),
    GPU_LADDER_END,
};
/* The terms of dprobs are rounded products. */
GPU_LADDER(swiglu_bwd) = {
    GPU_RUNG("one thread a row", swiglu_bwd, GPU_DECLARES("dx", GPU_ELEMENTWISE(GPU_ULP_SIGMOID)),
             GPU_DECLARES("dprobs", GPU_ARITH(F32, SEQUENTIAL, 1, false, GPU_ULP_SIGMOID, 0))),
    GPU_RUNG("4, 8 or 32 lanes a row: coalesced, sums by shuffles", swiglu_bwd,
             GPU_DECLARES("dx", GPU_ELEMENTWISE(GPU_ULP_SIGMOID)),
             GPU_ADAPTS("dprobs", GPU_ARITH(F32, TREE, 32, false, GPU_ULP_SIGMOID, 0), half_row_lanes,
                        "4 lanes up to F = 32, 8 up to 128")),
    GPU_LADDER_END,
};
GPU_LADDER(sigmoid_gate_fwd) = {
    GPU_RUNG("one thread an element", sigmoid_gate_fwd, GPU_DECLARES("y", GPU_ELEMENTWISE(GPU_ULP_SIGMOID))),
    GPU_LADDER_END,
};
GPU_LADDER(sigmoid_gate_bwd) = {
    GPU_RUNG("one thread a row", sigmoid_gate_bwd, GPU_DECLARES("dx", GPU_ELEMENTWISE(GPU_ULP_SIGMOID)),
             GPU_DECLARES("dgate", GPU_SEQUENTIAL(GPU_ULP_SIGMOID))),
    GPU_RUNG("4, 8 or 32 lanes a row", sigmoid_gate_bwd, GPU_DECLARES("dx", GPU_ELEMENTWISE(GPU_ULP_SIGMOID)),
             GPU_ADAPTS("dgate", GPU_TREE(32, GPU_ULP_SIGMOID), row_lanes,
                        "4 lanes up to H = 32, 8 up to 128")),
    GPU_LADDER_END,
};
