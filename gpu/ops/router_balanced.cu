/* The router and the statistics of its balancing losses: router_fwd, then router_aux_fwd, then router_seq_aux_fwd where it is asked for.
 * docs/OPS.md 10.
 *
 *   k0  one thread for each token, one for each sum: a pass     fp32, sequential
 *       over the tokens and one over the sums of each kind
 *   k1  one launch.  One warp for each token: a row of logits   fp32, tree of 32 lanes; sums
 *       is read once and stays in registers; each block sums    over the tokens a tree of 4096
 *       its tokens, the last one the blocks (router_sums.cuh)
 *
 * k1 has the bits of the highest rungs of the three (tests/gpu/test_router_balanced.c).  Up to 256 experts and 32 groups, and 1024 sums
 * of sequences (GPU_ROUTER_SEQ_SUMS); the parts run otherwise. */
#include "gpu/ops/router_rows.cuh"
#include "gpu/ops/router_sums.cuh"
#include "gpu/ops/router_token.cuh"

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
__global__ void __launch_bounds__(GPU_WARP *sums_warps<CHUNKS>::COUNT)
    router_balanced_k1(balanced_out out, sums_args sums, const T *logits, const float *bias, router_args a,
                       aux_args aux)
{
    GPU_SHARED_2D(float, kept, sums_warps<CHUNKS>::COUNT, ROUTER_MAX_TOPK);
    sums_clear(sums.all, sums.of);
    sums_clear(sums.seq, sums.of);
    for (int64_t row = sums_first(); row < a.t; row = sums_next(row)) {
        float logit[CHUNKS];
        router_warp_load<CHUNKS>(logit, logits + row * a.e, a.e);
        router_warp_row<CHUNKS>(out.indices + row * a.k, out.probs + row * a.k, out.scores + row * a.e,
                                kept[threadIdx.y], logit, bias, a);
        aux_warp_row<CHUNKS>(out.aux_scores + row * a.e, out.aux_indices + row * a.k, out.z + row,
                             kept[threadIdx.y], logit, aux);
        __syncwarp(); /* kept is read no more */
    }
    sums_finish(sums);
}

template <int CHUNKS, class T>
static cudaError_t launch_k1(const balanced_out &out, const sums_args &sums, gpu_tensor logits,
                             gpu_tensor bias, const router_args &a, const aux_args &aux, cudaStream_t stream)
{
    return GPU_LAUNCH((router_balanced_k1<CHUNKS, T>), sums_grid(a.t),
                      sums_threads_of(a.t, sums_warps<CHUNKS>::COUNT), 0, stream, out, sums,
                      (const T *)logits.data, (const float *)bias.data, a, aux);
}

template <class T>
static cudaError_t launch_k0(const balanced_out &out, gpu_tensor logits, gpu_tensor bias,
                             const router_args &a, const aux_args &aux, cudaStream_t stream)
{
    return a.t == 0
               ? cudaSuccess
               : GPU_LAUNCH_NO_BARRIER(router_balanced_k0<T>, gpu_grid(a.t, GPU_BLOCK), dim3(GPU_BLOCK), 0,
                                       stream, out, (const T *)logits.data, (const float *)bias.data, a, aux);
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

/* 0: no sums of sequences are asked for. */
static int64_t rows_of(const gpu_operands *o)
{
    return assay_op_attr_find(o->op, "rows") != nullptr ? gpu_operand_int(o, "rows") : 0;
}

static size_t workspace(const gpu_ctx *ctx, const gpu_operands *o)
{
    const int64_t e = gpu_tensor_cols(gpu_operand(o, "logits")),
                  t = gpu_tensor_row_count(gpu_operand(o, "logits"));
    return aux_workspace(ctx, o) + sums_bytes(t, e, 1) + sums_bytes(t, e, rows_of(o));
}

/* What is summed and where to, checked. */
static assay_status make_sums(const char *op, const gpu_work *w, const router_args &a, sums_args *s)
{
    const gpu_tensor counts = gpu_operand(w->o, "tokens_per_expert"), sums = gpu_operand(w->o, "score_sums"),
                     z = gpu_operand(w->o, "z_sum");
    char *at = (char *)w->ctx->workspace + aux_workspace(w->ctx, w->o);
    ASSAY_TRY(sums_check(op, counts, "tokens_per_expert", sums, "score_sums", 1, a.e));
    ASSAY_TRY(gpu_check_tensor(op, "z_sum", z, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(gpu_check_count(op, "z_sum", z, 1));
    *s = sums_args{{(const float *)gpu_operand(w->o, "aux_scores").data, (const float *)w->ctx->workspace,
                    (const int64_t *)gpu_operand(w->o, "aux_indices").data, a.t, a.e, a.k},
                   {1, (int64_t *)counts.data, (float *)sums.data, (float *)z.data, nullptr, nullptr},
                   {},
                   w->ctx->ticket};
    sums_place(&s->all, at, a.t, a.e);
    if (assay_op_attr_find(w->o->op, "rows") == nullptr)
        return ASSAY_OK;
    const gpu_tensor seq_counts = gpu_operand(w->o, "seq_tokens_per_expert"),
                     seq_sums = gpu_operand(w->o, "seq_score_sums");
    const int64_t rows = rows_of(w->o);
    ASSAY_TRY(router_check_rows(op, a.t, rows));
    ASSAY_TRY(sums_check(op, seq_counts, "seq_tokens_per_expert", seq_sums, "seq_score_sums", rows, a.e));
    s->seq = sums_to{rows, (int64_t *)seq_counts.data, (float *)seq_sums.data, nullptr, nullptr, nullptr};
    sums_place(&s->seq, at + sums_bytes(a.t, a.e, 1), a.t, a.e);
    return ASSAY_OK;
}

/* k0: the passes over the sums. */
static cudaError_t sum_columns(const sums_args &sums, cudaStream_t stream)
{
    const cudaError_t e = router_columns(0, sums.all, sums.of, stream);
    return e != cudaSuccess || sums.seq.rows == 0 ? e : router_columns(0, sums.seq, sums.of, stream);
}

static assay_status router_balanced_fwd(const gpu_work *w)
{
    const router_desc d = router_desc_of(w->o);
    const gpu_tensor logits = gpu_operand(w->o, "logits"), bias = gpu_operand(w->o, "expert_bias"),
                     probs = gpu_operand(w->o, "probs");
    const char *op = w->o->op->name;
    router_args a;
    aux_args aux;
    sums_args sums;
    ASSAY_TRY(router_make_args(op, &d, logits, &a));
    ASSAY_TRY(aux_make_args(op, &d, logits, &aux));
    ASSAY_TRY(check_rows(op, w, "indices", "scores", a));
    ASSAY_TRY(check_rows(op, w, "aux_indices", "aux_scores", a));
    ASSAY_TRY(gpu_check_tensor(op, "probs", probs, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(gpu_check_shape2(op, "probs", probs, a.t, a.k));
    ASSAY_TRY(router_check_bias(op, bias, a));
    ASSAY_TRY(make_sums(op, w, a, &sums));
    ASSAY_TRY(gpu_check_workspace(op, w->ctx, workspace(w->ctx, w->o)));
    const balanced_out out = {(int64_t *)gpu_operand(w->o, "indices").data,
                              (int64_t *)gpu_operand(w->o, "aux_indices").data,
                              (float *)probs.data,
                              (float *)gpu_operand(w->o, "scores").data,
                              (float *)gpu_operand(w->o, "aux_scores").data,
                              (float *)w->ctx->workspace};
    const bool f32 = logits.dtype == ASSAY_F32;
    if (w->variant > 0) {
        GPU_LAUNCHED(
            f32 ? ROUTER_BY_256_EXPERTS(a.e, launch_k1, float, out, sums, logits, bias, a, aux, w->stream)
                : ROUTER_BY_256_EXPERTS(a.e, launch_k1, bf16, out, sums, logits, bias, a, aux, w->stream),
            op);
        return ASSAY_OK;
    }
    GPU_LAUNCHED(f32 ? launch_k0<float>(out, logits, bias, a, aux, w->stream)
                     : launch_k0<bf16>(out, logits, bias, a, aux, w->stream),
                 op);
    GPU_LAUNCHED(sum_columns(sums, w->stream), op);
    return ASSAY_OK;
}

/* --- the ladders -------------------------------------------------------------------------------------------- */
static bool row_in_registers(const gpu_ctx *, const gpu_operands *o)
{
    const int64_t e = gpu_tensor_cols(gpu_operand(o, "logits"));
    return gpu_operand_int(o, "num_groups") <= GPU_WARP && e <= ROUTER_SUMS_EXPERTS &&
           (rows_of(o) == 0 || router_sums_in_one_launch(rows_of(o), e));
}

#define BALANCED_SCORES "aux_scores aux_indices tokens_per_expert"
#define BALANCED_RUNGS(k0_sequences, k1_sequences)                                                           \
    {                                                                                                        \
        GPU_RUNG_IF(                                                                                         \
            "one thread a token, one a sum", router_balanced_fwd, workspace, NULL, NULL, GPU_SM_80,          \
            GPU_ADAPTS("probs score_sums " BALANCED_SCORES, GPU_SEQUENTIAL(GPU_ULP_EXP), router_ulp,         \
                       ROUTER_ULP),                                                                          \
            GPU_ADAPTS("scores indices", GPU_SEQUENTIAL(GPU_ULP_EXP), router_score_arith, ROUTER_SCORES),    \
            GPU_DECLARES("z_sum", GPU_SEQUENTIAL(GPU_ULP_EXP)), k0_sequences),                               \
            GPU_RUNG_IF("one launch: one warp a token, the row read once; the last block ends the sums; up " \
                        "to 256 experts",                                                                    \
                        router_balanced_fwd, workspace, row_in_registers, NULL, GPU_SM_80,                   \
                        GPU_ADAPTS("probs " BALANCED_SCORES, GPU_TREE(GPU_WARP, GPU_ULP_EXP), router_ulp,    \
                                   ROUTER_ULP),                                                              \
                        GPU_ADAPTS("scores indices", GPU_TREE(GPU_WARP, GPU_ULP_EXP), router_score_arith,    \
                                   ROUTER_SCORES),                                                           \
                        GPU_ADAPTS("score_sums", GPU_TREE(SUMS_LANES, GPU_ULP_EXP), router_ulp, ROUTER_ULP), \
                        GPU_DECLARES("z_sum", GPU_TREE(SUMS_LANES, GPU_ULP_EXP)), k1_sequences),             \
            GPU_LADDER_END                                                                                   \
    }

GPU_LADDER(router_balanced_fwd) = BALANCED_RUNGS({}, {});
GPU_LADDER(router_balanced_seq_fwd) = BALANCED_RUNGS(
    GPU_DECLARES("seq_tokens_per_expert seq_score_sums", GPU_SEQUENTIAL(0)),
    GPU_ADAPTS("seq_tokens_per_expert seq_score_sums", GPU_TREE(SUMS_LANES, 0), sums_seq_arith, SUMS_SEQ));
