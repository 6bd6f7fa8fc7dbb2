/* SwiGLU.  docs/OPS.md 6.
 *
 *   k0  one thread for each element; dprobs: one thread for each row    fp32, sequential
 *   k1  fwd: eight elements for each thread; bwd: one, and dprobs by    fp32, tree of that many lanes
 *       4, 8 or 32 lanes for each row, shuffles
 *   k2  bwd: eight elements for each thread, or for each lane           the same
 *
 * sigmoid is 1/(1 + exp(-x)), at most 6 ulp.  dx may be the buffer of x. */
#include "gpu/vector.cuh"

template <class T> __global__ void swiglu_fwd_k0(T *y, const T *x, const float *probs, int64_t t, int64_t f)
{
    for (int64_t e = gpu_thread(); e < t * f; e += gpu_threads()) {
        const int64_t row = e / f, i = e % f;
        const float gate = gpu_load(x + row * 2 * f + i), up = gpu_load(x + row * 2 * f + f + i);
        const float h = gate * gpu_sigmoid(gate) * up;
        gpu_store(y + e, probs != nullptr ? h * probs[row] : h);
    }
}

template <class T> __global__ void swiglu_fwd_k1(T *y, const T *x, const float *probs, int64_t t, int f)
{
    GPU_EACH_EIGHT(row, i, t, f)
    {
        float gate[GPU_EIGHT], up[GPU_EIGHT];
        gpu_load_n(gate, x + row * 2 * f + i);
        gpu_load_n(up, x + row * 2 * f + f + i);
        for (int j = 0; j < GPU_EIGHT; ++j) {
            const float h = gate[j] * gpu_sigmoid(gate[j]) * up[j];
            up[j] = probs != nullptr ? h * probs[row] : h;
        }
        gpu_store_n(y + row * f + i, up);
    }
}

/* dgate and dup in place of gate and up; returns the term dy h of dprobs. */
__device__ static __forceinline__ float swiglu_slopes(float *gate, float *up, float d, float p)
{
    const float s = gpu_sigmoid(*gate), h = *gate * s * *up;
    const float dgate = d * p * *up * s * (1.0f + *gate * (1.0f - s));
    *up = d * p * *gate * s;
    *gate = dgate;
    return d * h;
}

/* Element i of a row. */
template <class T>
__device__ static float swiglu_bwd_element(T *dx, const T *dy, const T *x, float p, int64_t f, int64_t i)
{
    float gate = gpu_load(x + i), up = gpu_load(x + f + i);
    const float term = swiglu_slopes(&gate, &up, gpu_load(dy + i), p);
    gpu_store(dx + i, gate);
    gpu_store(dx + f + i, up);
    return term;
}

/* Elements i ... i+7 of a row, added to *sum one after the other. */
template <class T>
__device__ static __forceinline__ void swiglu_bwd_eight(T *dx, const T *dy, const T *x, float p, int64_t f,
                                                        int i, float *sum)
{
    float gate[GPU_EIGHT], up[GPU_EIGHT], d[GPU_EIGHT];
    gpu_load_n(gate, x + i);
    gpu_load_n(up, x + f + i);
    gpu_load_n(d, dy + i);
    for (int j = 0; j < GPU_EIGHT; ++j)
        *sum += swiglu_slopes(&gate[j], &up[j], d[j], p);
    gpu_store_n(dx + i, gate);
    gpu_store_n(dx + f + i, up);
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

/* f is a multiple of 8 LANES: every lane has as many terms as in k1. */
template <class T, int LANES>
__global__ void swiglu_bwd_k2(T *dx, float *dprobs, const T *dy, const T *x, const float *probs, int64_t t,
                              int f)
{
    for (int64_t first = gpu_lanes_first<LANES>(); first < t; first += gpu_lanes_step<LANES>()) {
        const int64_t row = first + gpu_lanes_group<LANES>();
        const float p = row < t ? probs[row] : 1.0f;
        float sum = 0.0f;
        if (row < t)
            for (int i = gpu_lane<LANES>() * GPU_EIGHT; i < f; i += LANES * GPU_EIGHT)
                swiglu_bwd_eight(dx + row * 2 * f, dy + row * f, x + row * 2 * f, p, f, i, &sum);
        sum = gpu_lanes_sum<LANES>(sum);
        if (row < t && gpu_lane<LANES>() == 0)
            dprobs[row] = sum;
    }
}

template <class T> __global__ void swiglu_bwd_elements_k2(T *dx, const T *dy, const T *x, int64_t t, int f)
{
    GPU_EACH_EIGHT(row, i, t, f)
    {
        float unused = 0.0f;
        swiglu_bwd_eight(dx + row * 2 * f, dy + row * f, x + row * 2 * f, 1.0f, f, i, &unused);
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

template <class T>
static cudaError_t launch_swiglu_fwd(int variant, gpu_tensor y, gpu_tensor x, gpu_tensor probs, int64_t t,
                                     int64_t f, cudaStream_t stream)
{
    const gpu_pieces_launch eights = gpu_pieces_of(t, f / GPU_EIGHT);
    if (variant > 0)
        return GPU_LAUNCH_NO_BARRIER(swiglu_fwd_k1<T>, eights.grid, eights.block, 0, stream, (T *)y.data,
                                     (const T *)x.data, (const float *)probs.data, t, (int)f);
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
        GPU_LAUNCHED(GPU_BY_ACT(x.dtype, launch_swiglu_fwd, w->variant, y, x, probs, t, f, w->stream), op);
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

template <class T, int LANES>
static cudaError_t launch_swiglu_eights(const swiglu_bwd_args *a, cudaStream_t stream)
{
    return GPU_LAUNCH((swiglu_bwd_k2<T, LANES>), gpu_grid(a->t, GPU_ROW_BLOCK / LANES), dim3(GPU_ROW_BLOCK),
                      0, stream, (T *)a->dx.data, (float *)a->dprobs.data, (const T *)a->dy.data,
                      (const T *)a->x.data, (const float *)a->probs.data, a->t, (int)a->f);
}

template <class T>
static cudaError_t launch_swiglu_bwd(int variant, const swiglu_bwd_args *a, cudaStream_t stream)
{
    if (variant == 0)
        return GPU_LAUNCH_NO_BARRIER(swiglu_bwd_k0<T>, gpu_grid(a->t, GPU_BLOCK), dim3(GPU_BLOCK), 0, stream,
                                     (T *)a->dx.data, (float *)a->dprobs.data, (const T *)a->dy.data,
                                     (const T *)a->x.data, (const float *)a->probs.data, a->t, a->f);
    const gpu_pieces_launch eights = gpu_pieces_of(a->t, a->f / GPU_EIGHT);
    if (variant == 2 && a->dprobs.data == nullptr)
        return GPU_LAUNCH_NO_BARRIER(swiglu_bwd_elements_k2<T>, eights.grid, eights.block, 0, stream,
                                     (T *)a->dx.data, (const T *)a->dy.data, (const T *)a->x.data, a->t,
                                     (int)a->f);
    if (variant == 2)
        return GPU_BY_LANES(gpu_row_lanes(a->f), launch_swiglu_eights, T, a, stream);
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

/* --- the ladder --------------------------------------------------------------------------------------------- */
/* Columns of a row of x that are summed. */
static void half_row_lanes(assay_arith *a, const gpu_ctx *, const gpu_operands *o)
{
    a->lanes = gpu_row_lanes(gpu_tensor_cols(gpu_operand(o, "x")) / 2);
}

static bool halves_of_eights(const gpu_ctx *, const gpu_operands *o)
{
    return gpu_tensor_cols(gpu_operand(o, "x")) % 2 == 0 &&
           gpu_eights(o, gpu_tensor_cols(gpu_operand(o, "x")) / 2);
}
/* With a sum over a row: as many terms for every lane. */
static bool lanes_of_eights(const gpu_ctx *ctx, const gpu_operands *o)
{
    const int64_t f = gpu_tensor_cols(gpu_operand(o, "x")) / 2;
    return halves_of_eights(ctx, o) &&
           (!gpu_tensor_present(gpu_operand(o, "dprobs")) || f % (GPU_EIGHT * gpu_row_lanes(f)) == 0);
}

GPU_LADDER(swiglu_fwd) = {
    GPU_RUNG("one thread an element", swiglu_fwd, GPU_DECLARES("y", GPU_ELEMENTWISE(GPU_ULP_SIGMOID))),
    GPU_RUNG_IF("eight elements a thread, rows along the grid", swiglu_fwd, NULL, halves_of_eights, NULL,
                GPU_SM_80, GPU_DECLARES("y", GPU_ELEMENTWISE(GPU_ULP_SIGMOID))),
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
    GPU_RUNG_IF("eight elements a lane", swiglu_bwd, NULL, lanes_of_eights, NULL, GPU_SM_80,
                GPU_DECLARES("dx", GPU_ELEMENTWISE(GPU_ULP_SIGMOID)),
                GPU_ADAPTS("dprobs", GPU_ARITH(F32, TREE, 32, false, GPU_ULP_SIGMOID, 0), half_row_lanes,
                           "4 lanes up to F = 32, 8 up to 128")),
    GPU_LADDER_END,
};
