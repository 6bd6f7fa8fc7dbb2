/* Attention over the keys of several ranks: two results merged.  docs/OPS.md 5.
 *
 * One thread an element.  A merge computes both weights anew for every element: two exponentials against a load of o. */
#include "gpu/ops/attention.cuh"

template <class TO, class TA, class T>
__global__ void attention_merge_k0(TO *o, float *lse, const TA *o_a, const float *lse_a, const T *o_b,
                                   const float *lse_b, int64_t rows, int64_t d)
{
    for (int64_t e = gpu_thread(); e < rows * d; e += gpu_threads()) {
        const int64_t row = e / d;
        const float a = lse_a[row], b = lse_b[row], larger = fmaxf(a, b);
        const bool nothing = a == -INFINITY && b == -INFINITY;
        const float m = larger == -INFINITY ? 0.0f : larger; /* a NaN beside -inf stays one */
        const float w_a = expf(a - m), w_b = expf(b - m), sum = w_a + w_b;
        const float terms = fmaf(w_a, gpu_load(o_a + e), w_b * gpu_load(o_b + e));
        gpu_store(o + e, nothing ? 0.0f : terms / sum);
        if (e % d == 0)
            lse[row] = nothing ? -INFINITY : m + logf(sum);
    }
}

typedef struct merge_tensors {
    gpu_tensor o, lse, o_a, lse_a, o_b, lse_b;
    int64_t rows, d;
} merge_tensors;

template <class TO, class TA, class T>
static cudaError_t launch_merge_of(const merge_tensors *t, cudaStream_t stream)
{
    return GPU_LAUNCH_NO_BARRIER((attention_merge_k0<TO, TA, T>), gpu_grid(t->rows * t->d, GPU_BLOCK),
                                 dim3(GPU_BLOCK), 0, stream, (TO *)t->o.data, (float *)t->lse.data,
                                 (const TA *)t->o_a.data, (const float *)t->lse_a.data,
                                 (const T *)t->o_b.data, (const float *)t->lse_b.data, t->rows, t->d);
}

/* o_a and o are F32 or as o_b. */
static cudaError_t launch_merge(const merge_tensors *t, cudaStream_t stream)
{
    const bool wide = t->o.dtype == ASSAY_F32, wide_a = t->o_a.dtype == ASSAY_F32;
    if (t->o_b.dtype == ASSAY_F32)
        return launch_merge_of<float, float, float>(t, stream);
    if (wide)
        return wide_a ? launch_merge_of<float, float, bf16>(t, stream)
                      : launch_merge_of<float, bf16, bf16>(t, stream);
    return wide_a ? launch_merge_of<bf16, float, bf16>(t, stream)
                  : launch_merge_of<bf16, bf16, bf16>(t, stream);
}

static assay_status attention_merge(const gpu_work *w)
{
    const char *op = "attention_merge";
    const int64_t heads = gpu_operand_int(w->o, "heads"), d = gpu_operand_int(w->o, "head_dim");
    merge_tensors t = {gpu_operand(w->o, "o"),
                       gpu_operand(w->o, "lse"),
                       gpu_operand(w->o, "o_a"),
                       gpu_operand(w->o, "lse_a"),
                       gpu_operand(w->o, "o_b"),
                       gpu_operand(w->o, "lse_b"),
                       0,
                       d};
    const struct {
        const char *name;
        gpu_tensor t;
    } statistic[] = {{"lse", t.lse}, {"lse_a", t.lse_a}, {"lse_b", t.lse_b}};
    ASSAY_TRY(gpu_check_act(op, "o_a", t.o_a));
    ASSAY_TRY(gpu_check_act(op, "o_b", t.o_b));
    ASSAY_TRY(gpu_check_act(op, "o", t.o));
    ASSAY_CHECK(t.o_b.dtype != ASSAY_F32 || (t.o_a.dtype == ASSAY_F32 && t.o.dtype == ASSAY_F32),
                ASSAY_INVALID_ARGUMENT, "%s: beside o_b of F32: expected o_a and o of F32, found %s and %s",
                op, assay_dtype_name(t.o_a.dtype), assay_dtype_name(t.o.dtype));
    ASSAY_CHECK(d >= 1 && heads >= 1 && gpu_tensor_count(t.o_b) % (heads * d) == 0, ASSAY_INVALID_ARGUMENT,
                "%s: o_b: expected rows of %" PRId64 " heads of %" PRId64 ", found %" PRId64 " elements", op,
                heads, d, gpu_tensor_count(t.o_b));
    t.rows = gpu_tensor_count(t.o_b) / d;
    ASSAY_TRY(gpu_check_count(op, "o_a", t.o_a, t.rows * d));
    ASSAY_TRY(gpu_check_count(op, "o", t.o, t.rows * d));
    for (int i = 0; i < 3; ++i) {
        ASSAY_TRY(gpu_check_tensor(op, statistic[i].name, statistic[i].t, ASSAY_F32, ASSAY_F32));
        ASSAY_TRY(gpu_check_count(op, statistic[i].name, statistic[i].t, t.rows));
    }
    if (t.rows > 0)
        GPU_LAUNCHED(launch_merge(&t, w->stream), op);
    return ASSAY_OK;
}

/* --- the ladder --------------------------------------------------------------------------------------------- */
GPU_LADDER(attention_merge) = {
    GPU_RUNG("one thread an element", attention_merge, GPU_DECLARES("o lse", GPU_ELEMENTWISE(GPU_ULP_EXP))),
    GPU_LADDER_END,
};
