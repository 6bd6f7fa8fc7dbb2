/* The router and the statistics of its balancing losses in one pass over the tokens: router_fwd, then router_aux_fwd.  docs/OPS.md 10.
 *
 *   k0  one thread for each token, one for each sum         fp32, sequential
 *   k1  one warp for each token: a row of logits is read    fp32, tree of 32 lanes
 *       once and stays in registers; one warp for each sum
 *
 * The sums over the tokens are a second pass in one fixed order, router_aux_fwd's own.  k1 has the bits of router_fwd's and
 * router_aux_fwd's highest rungs (tests/gpu/test_router_balanced.c).  Up to 256 experts and 32 groups; the parts run otherwise. */
#include "gpu/ops/router_token.cuh"

enum { BALANCED_MOST_EXPERTS = 256 };

/* Where the first pass writes. */
typedef struct balanced_out {
    int64_t *indices, *aux_indices;
    float *probs, *scores, *aux_scores, *z;
} balanced_out;

template <class T>
__global__ void router_balanced_k0(balanced_out out, const T *logits, const float *bias, router_args a,
                                   aux_args aux)
{
    for (int64_t row = gpu_thread(); row < a.t; row += gpu_threads()) {
        const T *logit = logits + row * a.e;
        router_thread_row(out.indices + row * a.k, out.probs + row * a.k, out.scores + row * a.e, logit, bias,
                          a);
        aux_thread_row(out.aux_scores + row * a.e, out.aux_indices + row * a.k, out.z + row, logit, aux);
    }
}

template <int CHUNKS, class T>
__global__ void router_balanced_k1(balanced_out out, const T *logits, const float *bias, router_args a,
                                   aux_args aux)
{
    GPU_SHARED_2D(float, kept, GPU_ROWS_PER_BLOCK, ROUTER_MAX_TOPK);
    const int64_t step = (int64_t)gridDim.x * blockDim.y;
    for (int64_t row = gpu_warp_row(); row < a.t; row += step) {
        float logit[CHUNKS];
        router_warp_load<CHUNKS>(logit, logits + row * a.e, a.e);
        router_warp_row<CHUNKS>(out.indices + row * a.k, out.probs + row * a.k, out.scores + row * a.e,
                                kept[threadIdx.y], logit, bias, a);
        aux_warp_row<CHUNKS>(out.aux_scores + row * a.e, out.aux_indices + row * a.k, out.z + row,
                             kept[threadIdx.y], logit, aux);
        __syncwarp(); /* kept is read no more */
    }
}

template <int CHUNKS, class T>
static cudaError_t launch_warps(const balanced_out &out, gpu_tensor logits, gpu_tensor bias,
                                const router_args &a, const aux_args &aux, cudaStream_t stream)
{
    return GPU_LAUNCH((router_balanced_k1<CHUNKS, T>), gpu_grid(a.t, GPU_ROWS_PER_BLOCK), gpu_warp_block(), 0,
                      stream, out, (const T *)logits.data, (const float *)bias.data, a, aux);
}

template <class T>
static cudaError_t launch(int variant, const balanced_out &out, gpu_tensor logits, gpu_tensor bias,
                          const router_args &a, const aux_args &aux, cudaStream_t stream)
{
    if (variant == 0)
        return GPU_LAUNCH_NO_BARRIER(router_balanced_k0<T>, gpu_grid(a.t, GPU_BLOCK), dim3(GPU_BLOCK), 0,
                                     stream, out, (const T *)logits.data, (const float *)bias.data, a, aux);
    if (a.e <= 32)
        return launch_warps<1, T>(out, logits, bias, a, aux, stream);
    if (a.e <= 64)
        return launch_warps<2, T>(out, logits, bias, a, aux, stream);
    if (a.e <= 128)
        return launch_warps<4, T>(out, logits, bias, a, aux, stream);
    return launch_warps<8, T>(out, logits, bias, a, aux, stream);
}

/* Outputs of one part: choices [T,K] and scores [T,E]. */
static assay_status check_rows(const char *op, const gpu_work *w, const char *choices, const char *scores,
                               const router_args &a)
{
    const gpu_tensor n = gpu_operand(w->o, choices), s = gpu_operand(w->o, scores);
    ASSAY_TRY(gpu_check_tensor(op, choices, n, ASSAY_I64, ASSAY_I64));
    ASSAY_TRY(gpu_check_tensor(op, scores, s, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(gpu_check_shape2(op, choices, n, a.t, a.k));
    return gpu_check_shape2(op, scores, s, a.t, a.e);
}

static assay_status check_sums(const char *op, const gpu_work *w, const router_args &a)
{
    const gpu_tensor counts = gpu_operand(w->o, "tokens_per_expert"), sums = gpu_operand(w->o, "score_sums"),
                     z = gpu_operand(w->o, "z_sum");
    ASSAY_TRY(gpu_check_tensor(op, "tokens_per_expert", counts, ASSAY_I64, ASSAY_I64));
    ASSAY_TRY(gpu_check_tensor(op, "score_sums", sums, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(gpu_check_tensor(op, "z_sum", z, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(gpu_check_count(op, "tokens_per_expert", counts, a.e));
    ASSAY_TRY(gpu_check_count(op, "score_sums", sums, a.e));
    return gpu_check_count(op, "z_sum", z, 1);
}

static assay_status router_balanced_fwd(const gpu_work *w)
{
    const router_desc d = router_desc_of(w->o);
    const gpu_tensor logits = gpu_operand(w->o, "logits"), bias = gpu_operand(w->o, "expert_bias"),
                     probs = gpu_operand(w->o, "probs");
    const char *op = "router_balanced_fwd";
    router_args a;
    aux_args aux;
    ASSAY_TRY(router_make_args(op, &d, logits, &a));
    ASSAY_TRY(aux_make_args(op, &d, logits, &aux));
    ASSAY_TRY(check_rows(op, w, "indices", "scores", a));
    ASSAY_TRY(check_rows(op, w, "aux_indices", "aux_scores", a));
    ASSAY_TRY(gpu_check_tensor(op, "probs", probs, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(gpu_check_shape2(op, "probs", probs, a.t, a.k));
    ASSAY_TRY(router_check_bias(op, bias, a));
    ASSAY_TRY(check_sums(op, w, a));
    ASSAY_TRY(gpu_check_workspace(op, w->ctx, aux_workspace(w->ctx, w->o)));
    const balanced_out out = {(int64_t *)gpu_operand(w->o, "indices").data,
                              (int64_t *)gpu_operand(w->o, "aux_indices").data,
                              (float *)probs.data,
                              (float *)gpu_operand(w->o, "scores").data,
                              (float *)gpu_operand(w->o, "aux_scores").data,
                              (float *)w->ctx->workspace};
    if (a.t > 0)
        GPU_LAUNCHED(logits.dtype == ASSAY_F32
                         ? launch<float>(w->variant, out, logits, bias, a, aux, w->stream)
                         : launch<bf16>(w->variant, out, logits, bias, a, aux, w->stream),
                     op);
    GPU_LAUNCHED(router_aux_columns(w->variant, gpu_operand(w->o, "tokens_per_expert"),
                                    gpu_operand(w->o, "score_sums"), gpu_operand(w->o, "z_sum"),
                                    gpu_operand(w->o, "aux_scores"), gpu_operand(w->o, "aux_indices"), out.z,
                                    aux, w->stream),
                 op);
    return ASSAY_OK;
}

/* --- the ladder --------------------------------------------------------------------------------------------- */
static bool row_in_registers(const gpu_ctx *, const gpu_operands *o)
{
    return gpu_operand_int(o, "num_groups") <= GPU_WARP &&
           gpu_tensor_cols(gpu_operand(o, "logits")) <= BALANCED_MOST_EXPERTS;
}

#define BALANCED_SUMS "aux_scores aux_indices tokens_per_expert score_sums"
GPU_LADDER(router_balanced_fwd) = {
    GPU_RUNG_IF("one thread a token, one a sum", router_balanced_fwd, aux_workspace, NULL, NULL, GPU_SM_80,
                GPU_ADAPTS("probs " BALANCED_SUMS, GPU_SEQUENTIAL(GPU_ULP_EXP), router_ulp, ROUTER_ULP),
                GPU_ADAPTS("scores indices", GPU_SEQUENTIAL(GPU_ULP_EXP), router_score_arith, ROUTER_SCORES),
                GPU_DECLARES("z_sum", GPU_SEQUENTIAL(GPU_ULP_EXP))),
    GPU_RUNG_IF("one warp a token, the row read once; one a sum; up to 256 experts", router_balanced_fwd,
                aux_workspace, row_in_registers, NULL, GPU_SM_80,
                GPU_ADAPTS("probs " BALANCED_SUMS, GPU_TREE(GPU_WARP, GPU_ULP_EXP), router_ulp, ROUTER_ULP),
                GPU_ADAPTS("scores indices", GPU_TREE(GPU_WARP, GPU_ULP_EXP), router_score_arith,
                           ROUTER_SCORES),
                GPU_DECLARES("z_sum", GPU_TREE(GPU_WARP, GPU_ULP_EXP))),
    GPU_LADDER_END,
};
