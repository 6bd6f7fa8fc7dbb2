/* Sigmoid gate of rows.  docs/OPS.md 6.
 *
 *   k0  one thread for each element; dgate: one thread for each row     fp32, sequential
 *   k1  fwd: eight elements for each thread; bwd: 4, 8 or 32 lanes      fp32, tree of that many lanes
 *       for each row, shuffles
 *
 * sigmoid is 1/(1 + exp(-x)), at most 6 ulp.  y may be the buffer of an input of the same dtype. */
#include "gpu/vector.cuh"

template <class T> __global__ void sigmoid_gate_fwd_k0(T *y, const T *x, const T *gate, int64_t t, int64_t h)
{
    for (int64_t e = gpu_thread(); e < t * h; e += gpu_threads())
        gpu_store(y + e, gpu_load(x + e) * gpu_sigmoid(gpu_load(gate + e / h)));
}

template <class T> __global__ void sigmoid_gate_fwd_k1(T *y, const T *x, const T *gate, int64_t t, int h)
{
    GPU_EACH_EIGHT(row, i, t, h)
    {
        const float s = gpu_sigmoid(gpu_load(gate + row));
        float v[GPU_EIGHT];
        gpu_load_n(v, x + row * h + i);
        for (int j = 0; j < GPU_EIGHT; ++j)
            v[j] = v[j] * s;
        gpu_store_n(y + row * h + i, v);
    }
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
static cudaError_t launch_gate_fwd(int variant, gpu_tensor y, gpu_tensor x, gpu_tensor gate, int64_t t,
                                   int64_t h, cudaStream_t stream)
{
    const gpu_pieces_launch eights = gpu_pieces_of(t, h / GPU_EIGHT);
    if (variant > 0)
        return GPU_LAUNCH_NO_BARRIER(sigmoid_gate_fwd_k1<T>, eights.grid, eights.block, 0, stream,
                                     (T *)y.data, (const T *)x.data, (const T *)gate.data, t, (int)h);
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
        GPU_LAUNCHED(GPU_BY_ACT(x.dtype, launch_gate_fwd, w->variant, y, x, gate, t, h, w->stream), op);
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
static void row_lanes(assay_arith *a, const gpu_ctx *, const gpu_operands *o)
{
    a->lanes = gpu_row_lanes(gpu_tensor_cols(gpu_operand(o, "x")));
}

static bool rows_of_eights(const gpu_ctx *, const gpu_operands *o)
{
    return gpu_eights(o, gpu_tensor_cols(gpu_operand(o, "x")));
}

GPU_LADDER(sigmoid_gate_fwd) = {
    GPU_RUNG("one thread an element", sigmoid_gate_fwd, GPU_DECLARES("y", GPU_ELEMENTWISE(GPU_ULP_SIGMOID))),
    GPU_RUNG_IF("eight elements a thread, rows along the grid", sigmoid_gate_fwd, NULL, rows_of_eights, NULL,
                GPU_SM_80, GPU_DECLARES("y", GPU_ELEMENTWISE(GPU_ULP_SIGMOID))),
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
