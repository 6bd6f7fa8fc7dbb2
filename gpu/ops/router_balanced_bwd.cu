/* The router's backward and the gradients of its balancing losses in one pass over the tokens: router_bwd, then one, two or three
 * router_aux_bwd.  docs/OPS.md 10.
 *
 *   k0  one thread for each token, one part behind the other, in dlogits         fp32, sequential
 *   k1  one warp for each token: a row of logits is read once, softmax and       fp32, tree of 32 lanes
 *       its sums are made once for all losses, dlogits is written once
 *
 * What is between two parts is stored where somebody wants it.  k1 has the bits of the parts' highest rungs
 * (tests/gpu/test_router_balanced_bwd.c). */
#include "gpu/ops/router_grad.cuh"

enum { BALANCED_LOSSES = 3 };

typedef struct balanced_losses {
    int n;
    aux_loss loss[BALANCED_LOSSES];
    float *between[BALANCED_LOSSES]; /* dlogits before the loss, or NULL */
    float *dlogits;
} balanced_losses;

typedef struct balanced_in {
    const float *dprobs, *scores;
    const int64_t *indices;
} balanced_in;

template <class T>
__global__ void router_balanced_bwd_k0(balanced_losses x, balanced_in in, const T *logits, router_args a,
                                       aux_args aux)
{
    for (int64_t row = gpu_thread(); row < a.t; row += gpu_threads()) {
        float *out = x.dlogits + row * a.e;
        router_bwd_thread_row(out, in.dprobs + row * a.k, in.indices + row * a.k, in.scores + row * a.e, a);
        GPU_UNROLL
        for (int i = 0; i < BALANCED_LOSSES; ++i) {
            if (i >= x.n)
                break;
            for (int64_t e = 0; x.between[i] && e < a.e; ++e)
                x.between[i][row * a.e + e] = out[e];
            aux_bwd_thread_row(out, out, logits + row * a.e, x.loss[i].counts + row % x.loss[i].rows * a.e,
                               x.loss[i], aux);
        }
    }
}

/* The gradient through the choice, expert lane + 32 i in value[i].  place: of the warp's own, an element for each expert. */
template <int CHUNKS>
__device__ static __forceinline__ void spread(float (&value)[CHUNKS], float *place, const router_chosen &c,
                                              const float *scores, const router_args &a)
{
    const int lane = (int)threadIdx.x;
    for (int i = 0; i < CHUNKS; ++i) {
        const int64_t e = lane + GPU_WARP * i;
        if (e < a.e)
            place[e] = router_unchosen(a, scores[e], c.jacobian);
    }
    __syncwarp();
    if (lane < a.k)
        place[c.index] = c.gradient;
    __syncwarp();
    for (int i = 0; i < CHUNKS; ++i) {
        const int64_t e = lane + GPU_WARP * i;
        value[i] = e < a.e ? place[e] : 0.0f;
    }
    __syncwarp(); /* the next token's row lies in the same place */
}

template <int CHUNKS>
__device__ static __forceinline__ void store_row(float *out, const float (&value)[CHUNKS], int64_t experts)
{
    for (int i = 0; i < CHUNKS; ++i)
        if ((int)threadIdx.x + GPU_WARP * i < experts)
            out[(int)threadIdx.x + GPU_WARP * i] = value[i];
}

/* Of a row of logits as router_warp_load leaves it: its sums, and the exponentials in p. */
template <int CHUNKS>
__device__ static __forceinline__ aux_row row_sums(float (&p)[CHUNKS], const float (&logit)[CHUNKS],
                                                   const aux_args &a)
{
    aux_row r = {-INFINITY, 0.0f, 0.0f, 0.0f};
    for (int i = 0; i < CHUNKS; ++i)
        r.m = fmaxf(r.m, logit[i]);
    r.m = gpu_warp_max(r.m);
    for (int i = 0; i < CHUNKS; ++i) {
        p[i] = 0.0f;
        if ((int)threadIdx.x + GPU_WARP * i < a.e) {
            p[i] = expf(logit[i] - r.m);
            r.sum += p[i];
            r.total += gpu_sigmoid(logit[i]);
        }
    }
    r.sum = gpu_warp_sum(r.sum);
    r.total = gpu_warp_sum(r.total);
    return r;
}

/* value += the gradient of one loss. */
template <int CHUNKS>
__device__ static __forceinline__ void add_loss(float (&value)[CHUNKS], aux_row r, const aux_loss &loss,
                                                const int64_t *n, const float (&p)[CHUNKS],
                                                const float (&logit)[CHUNKS], const aux_args &a)
{
    for (int i = 0; i < CHUNKS; ++i) {
        const int64_t e = (int)threadIdx.x + GPU_WARP * i;
        if (e < a.e)
            r.dot = fmaf(a.sigmoid ? gpu_sigmoid(logit[i]) : p[i], aux_weight(loss, n[e]), r.dot);
    }
    r.dot = gpu_warp_sum(r.dot);
    for (int i = 0; i < CHUNKS; ++i) {
        const int64_t e = (int)threadIdx.x + GPU_WARP * i;
        if (e < a.e)
            value[i] =
                fmaf(loss.scale, aux_gradient(r, loss, logit[i], p[i] / r.sum, n[e], a.sigmoid), value[i]);
    }
}

template <int CHUNKS, class T>
__global__ void router_balanced_bwd_k1(balanced_losses x, balanced_in in, const T *logits, router_args a,
                                       aux_args aux)
{
    GPU_SHARED_2D(float, place, GPU_ROWS_PER_BLOCK, CHUNKS *GPU_WARP);
    const int64_t step = (int64_t)gridDim.x * blockDim.y;
    for (int64_t row = gpu_warp_row(); row < a.t; row += step) {
        float logit[CHUNKS], p[CHUNKS], value[CHUNKS];
        router_warp_load<CHUNKS>(logit, logits + row * a.e, a.e);
        const router_chosen c =
            router_warp_chosen(in.dprobs + row * a.k, in.indices + row * a.k, in.scores + row * a.e, a);
        spread<CHUNKS>(value, place[threadIdx.y], c, in.scores + row * a.e, a);
        const aux_row r = row_sums<CHUNKS>(p, logit, aux);
        GPU_UNROLL
        for (int i = 0; i < BALANCED_LOSSES; ++i) {
            if (i >= x.n)
                break;
            if (x.between[i])
                store_row<CHUNKS>(x.between[i] + row * a.e, value, a.e);
            add_loss<CHUNKS>(value, r, x.loss[i], x.loss[i].counts + row % x.loss[i].rows * a.e, p, logit,
                             aux);
        }
        store_row<CHUNKS>(x.dlogits + row * a.e, value, a.e);
    }
}

template <int CHUNKS, class T>
static cudaError_t launch_warps(const balanced_losses &x, const balanced_in &in, gpu_tensor logits,
                                const router_args &a, const aux_args &aux, cudaStream_t stream)
{
    return GPU_LAUNCH((router_balanced_bwd_k1<CHUNKS, T>), gpu_grid(a.t, GPU_ROWS_PER_BLOCK),
                      gpu_warp_block(), 0, stream, x, in, (const T *)logits.data, a, aux);
}

template <class T>
static cudaError_t launch(int variant, const balanced_losses &x, const balanced_in &in, gpu_tensor logits,
                          const router_args &a, const aux_args &aux, cudaStream_t stream)
{
    if (variant == 0)
        return GPU_LAUNCH_NO_BARRIER(router_balanced_bwd_k0<T>, gpu_grid(a.t, GPU_BLOCK), dim3(GPU_BLOCK), 0,
                                     stream, x, in, (const T *)logits.data, a, aux);
    return ROUTER_BY_EXPERTS(a.e, launch_warps, T, x, in, logits, a, aux, stream);
}

static assay_status check_row(const char *op, const gpu_work *w, const char *slot, assay_dtype dtype,
                              int64_t rows, int64_t columns)
{
    const gpu_tensor t = gpu_operand(w->o, slot);
    ASSAY_TRY(gpu_check_tensor(op, slot, t, dtype, dtype));
    return gpu_check_shape2(op, slot, t, rows, columns);
}

static assay_status make_losses(const char *op, const gpu_work *w, const aux_args &a, balanced_losses *x)
{
    x->n = assay_op_n_parts(w->o->op) - 1;
    x->dlogits = (float *)gpu_operand(w->o, "dlogits").data;
    ASSAY_TRY(check_row(op, w, "dlogits", ASSAY_F32, a.t, a.e));
    for (int i = 0; i < BALANCED_LOSSES; ++i) {
        char slot[16];
        x->loss[i] = aux_loss{};
        x->between[i] = nullptr;
        if (i >= x->n)
            continue;
        ASSAY_TRY(aux_make_loss(op, w->o, i, a, &x->loss[i]));
        snprintf(slot, sizeof slot, "dlogits_%d", i);
        const gpu_tensor between = gpu_operand(w->o, slot);
        if (!gpu_tensor_present(between))
            continue;
        ASSAY_TRY(check_row(op, w, slot, ASSAY_F32, a.t, a.e));
        x->between[i] = (float *)between.data;
    }
    return ASSAY_OK;
}

static assay_status router_balanced_bwd(const gpu_work *w)
{
    const char *op = w->o->op->name;
    const gpu_tensor logits = gpu_operand(w->o, "logits");
    const router_desc d = router_desc_of(w->o);
    router_args a;
    aux_args aux;
    balanced_losses x;
    ASSAY_TRY(router_make_args(op, &d, logits, &a));
    ASSAY_TRY(aux_make_args(op, &d, logits, &aux));
    ASSAY_TRY(check_row(op, w, "dprobs", ASSAY_F32, a.t, a.k));
    ASSAY_TRY(check_row(op, w, "indices", ASSAY_I64, a.t, a.k));
    ASSAY_TRY(check_row(op, w, "scores", ASSAY_F32, a.t, a.e));
    ASSAY_TRY(make_losses(op, w, aux, &x));
    const balanced_in in = {(const float *)gpu_operand(w->o, "dprobs").data,
                            (const float *)gpu_operand(w->o, "scores").data,
                            (const int64_t *)gpu_operand(w->o, "indices").data};
    if (a.t > 0)
        GPU_LAUNCHED(logits.dtype == ASSAY_F32 ? launch<float>(w->variant, x, in, logits, a, aux, w->stream)
                                               : launch<bf16>(w->variant, x, in, logits, a, aux, w->stream),
                     op);
    return ASSAY_OK;
}

/* --- the ladders -------------------------------------------------------------------------------------------- */
#define BALANCED_RUNGS(outputs)                                                                              \
    {                                                                                                        \
        GPU_RUNG("one thread a token, one part behind the other", router_balanced_bwd,                       \
                 GPU_ADAPTS(outputs, GPU_SEQUENTIAL(GPU_ULP_EXP), router_ulp, ROUTER_ULP)),                  \
            GPU_RUNG("one warp a token, the row read and written once", router_balanced_bwd,                 \
                     GPU_ADAPTS(outputs, GPU_TREE(GPU_WARP, GPU_ULP_EXP), router_ulp, ROUTER_ULP)),          \
            GPU_LADDER_END                                                                                   \
    }

GPU_LADDER(router_balanced_bwd) = BALANCED_RUNGS("dlogits_0 dlogits");
GPU_LADDER(router_balanced_bwd_two) = BALANCED_RUNGS("dlogits_0 dlogits_1 dlogits");
GPU_LADDER(router_balanced_bwd_three) = BALANCED_RUNGS("dlogits_0 dlogits_1 dlogits_2 dlogits");
