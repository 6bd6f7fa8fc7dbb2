/* The engine's operations.  Same names and argument order as ref/ops.h would have, plus the context first,
 * the stream and the declaration last; docs/OPS.md is the contract of each (formula, slots, rounding, edge cases).
 *
 * All of them: asynchronous on `stream`; allocate nothing; use ctx->workspace where *_workspace() says so
 * (ASSAY_LIMIT when it is too small); say in *declared (NULL: nobody asks)
 * which variant ran with which arithmetic; ASSAY_OK means enqueued.  ASSAY_INVALID_ARGUMENT:
 * rank, shape, dtype, alignment (checked before the first CUDA call; the message names operation, operand,
 * expected, found).  ASSAY_UNSUPPORTED: dtype or variant. ASSAY_CUDA / ASSAY_CUBLAS: launch.  Sizes may be 0.
 * act is F32 or BF16; every operation is deterministic.  Accumulated targets
 * (`+=`) are F32. */
#ifndef GPU_OPS_H
#define GPU_OPS_H

#include "gpu/gpu.h"

ASSAY_BEGIN_DECLS

/* --- linear.cu (cuBLASLt; k0 = plain kernel) ---------------------------------------------------------------- */
size_t gpu_linear_workspace(const gpu_ctx *ctx);
/* y [T,N] = x [T,K] w [N,K]^T (+ bias [N] or none); y may be F32 with BF16 operands */
assay_status gpu_linear_fwd(gpu_ctx *ctx, gpu_tensor y, gpu_tensor x, gpu_tensor w, gpu_tensor bias,
                            cudaStream_t stream, gpu_declared *declared);
assay_status gpu_linear_bwd_input(gpu_ctx *ctx, gpu_tensor dx, gpu_tensor dy, gpu_tensor w,
                                  cudaStream_t stream, gpu_declared *declared);
/* dweight F32 [N,K] += dy [T,N]^T x [T,K] */
assay_status gpu_linear_bwd_weight(gpu_ctx *ctx, gpu_tensor dweight, gpu_tensor dy, gpu_tensor x,
                                   cudaStream_t stream, gpu_declared *declared);
assay_status gpu_linear_bwd_bias(gpu_ctx *ctx, gpu_tensor dbias, gpu_tensor dy, cudaStream_t stream,
                                 gpu_declared *declared);
/* tokens_per_expert: HOST memory, El entries, read during the call (a loop of products over the experts) */
assay_status gpu_grouped_linear_fwd(gpu_ctx *ctx, gpu_tensor y, gpu_tensor x, gpu_tensor w,
                                    const int64_t *tokens_per_expert, cudaStream_t stream,
                                    gpu_declared *declared);
assay_status gpu_grouped_linear_bwd_input(gpu_ctx *ctx, gpu_tensor dx, gpu_tensor dy, gpu_tensor w,
                                          const int64_t *tokens_per_expert, cudaStream_t stream,
                                          gpu_declared *declared);
assay_status gpu_grouped_linear_bwd_weight(gpu_ctx *ctx, gpu_tensor dweight, gpu_tensor dy, gpu_tensor x,
                                           const int64_t *tokens_per_expert, cudaStream_t stream,
                                           gpu_declared *declared);

/* --- norm.cu ------------------------------------------------------------------------------------------------ */
assay_status gpu_rmsnorm_fwd(gpu_ctx *ctx, gpu_tensor y, gpu_tensor rstd, gpu_tensor x, gpu_tensor gamma,
                             float eps, cudaStream_t stream, gpu_declared *declared);
size_t gpu_rmsnorm_bwd_workspace(const gpu_ctx *ctx, int64_t t, int64_t h);
assay_status gpu_rmsnorm_bwd(gpu_ctx *ctx, gpu_tensor dx, gpu_tensor dgamma, gpu_tensor dy, gpu_tensor x,
                             gpu_tensor gamma, gpu_tensor rstd, cudaStream_t stream, gpu_declared *declared);

/* --- rope.cu ------------------------------------------------------------------------------------------------ */
typedef struct gpu_rope_desc {
    int type; /* assay_rope_type */
    int64_t rotary_dim;
    double base, factor, low_freq_factor, high_freq_factor;
    int64_t original_max_position_embeddings;
} gpu_rope_desc;
/* cos, sin F32 [P,R/2]; computed in double, rounded once */
assay_status gpu_rope_table(gpu_ctx *ctx, gpu_tensor cos_table, gpu_tensor sin_table, const gpu_rope_desc *d,
                            cudaStream_t stream, gpu_declared *declared);
/* x, y [T,heads,D]; position I64 [T] on the device */
assay_status gpu_rope_fwd(gpu_ctx *ctx, gpu_tensor y, gpu_tensor x, gpu_tensor cos_table,
                          gpu_tensor sin_table, gpu_tensor position, cudaStream_t stream,
                          gpu_declared *declared);
assay_status gpu_rope_bwd(gpu_ctx *ctx, gpu_tensor dx, gpu_tensor dy, gpu_tensor cos_table,
                          gpu_tensor sin_table, gpu_tensor position, cudaStream_t stream,
                          gpu_declared *declared);

/* --- attention.cu ------------------------------------------------------------------------------------------- */
typedef struct gpu_attention_desc {
    int64_t batch, seq_q, seq_k, heads, groups, head_dim, head_dim_v;
    float scale;
    int64_t window;
    gpu_tensor q_position, k_position; /* I64 [Tq], [Tk] */
    gpu_tensor first_key;              /* I64 [Tq] or none */
} gpu_attention_desc;
assay_status gpu_attention_fwd(gpu_ctx *ctx, gpu_tensor o, gpu_tensor lse, gpu_tensor q, gpu_tensor k,
                               gpu_tensor v, const gpu_attention_desc *d, cudaStream_t stream,
                               gpu_declared *declared);
size_t gpu_attention_bwd_workspace(const gpu_ctx *ctx, const gpu_attention_desc *d);
assay_status gpu_attention_bwd(gpu_ctx *ctx, gpu_tensor dq, gpu_tensor dk, gpu_tensor dv, gpu_tensor dout,
                               gpu_tensor q, gpu_tensor k, gpu_tensor v, gpu_tensor o, gpu_tensor lse,
                               const gpu_attention_desc *d, cudaStream_t stream, gpu_declared *declared);
assay_status gpu_qkv_split_fwd(gpu_ctx *ctx, gpu_tensor q, gpu_tensor k, gpu_tensor v, gpu_tensor qkv,
                               cudaStream_t stream, gpu_declared *declared);
assay_status gpu_qkv_split_bwd(gpu_ctx *ctx, gpu_tensor dqkv, gpu_tensor dq, gpu_tensor dk, gpu_tensor dv,
                               cudaStream_t stream, gpu_declared *declared);

/* --- activation.cu ------------------------------------------------------------------------------------------ */
assay_status gpu_add(gpu_ctx *ctx, gpu_tensor y, gpu_tensor a, gpu_tensor b, cudaStream_t stream,
                     gpu_declared *declared);
assay_status gpu_cast(gpu_ctx *ctx, gpu_tensor y, gpu_tensor x, cudaStream_t stream, gpu_declared *declared);
/* y = min(max(x, -limit), limit), NaN stays; dx = dy where |x| < limit, else 0.  Any shape, all of one dtype. */
assay_status gpu_clamp_fwd(gpu_ctx *ctx, gpu_tensor y, gpu_tensor x, double limit, cudaStream_t stream,
                           gpu_declared *declared);
assay_status gpu_clamp_bwd(gpu_ctx *ctx, gpu_tensor dx, gpu_tensor dy, gpu_tensor x, double limit,
                           cudaStream_t stream, gpu_declared *declared);
/* x [T,2F]; probs F32 [T] or none */
assay_status gpu_swiglu_fwd(gpu_ctx *ctx, gpu_tensor y, gpu_tensor x, gpu_tensor probs, cudaStream_t stream,
                            gpu_declared *declared);
assay_status gpu_swiglu_bwd(gpu_ctx *ctx, gpu_tensor dx, gpu_tensor dprobs, gpu_tensor dy, gpu_tensor x,
                            gpu_tensor probs, cudaStream_t stream, gpu_declared *declared);
assay_status gpu_sigmoid_gate_fwd(gpu_ctx *ctx, gpu_tensor y, gpu_tensor x, gpu_tensor gate,
                                  cudaStream_t stream, gpu_declared *declared);
assay_status gpu_sigmoid_gate_bwd(gpu_ctx *ctx, gpu_tensor dx, gpu_tensor dgate, gpu_tensor dy, gpu_tensor x,
                                  gpu_tensor gate, cudaStream_t stream, gpu_declared *declared);

/* --- embedding.cu ------------------------------------------------------------------------------------------- */
assay_status gpu_embedding_fwd(gpu_ctx *ctx, gpu_tensor y, gpu_tensor ids, gpu_tensor w, int64_t vocab_start,
                               cudaStream_t stream, gpu_declared *declared);
assay_status gpu_embedding_bwd(gpu_ctx *ctx, gpu_tensor dweight, gpu_tensor dy, gpu_tensor ids,
                               int64_t vocab_start, cudaStream_t stream, gpu_declared *declared);

/* --- loss.cu ------------------------------------------------------------------------------------------------ */
/* stats F32 [3,T] */
assay_status gpu_cross_entropy_stats(gpu_ctx *ctx, gpu_tensor stats, gpu_tensor logits, gpu_tensor targets,
                                     int64_t vocab_start, cudaStream_t stream, gpu_declared *declared);
/* stats F32 [n,3,T]; lse, loss F32 [T] */
assay_status gpu_cross_entropy_loss(gpu_ctx *ctx, gpu_tensor lse, gpu_tensor loss, gpu_tensor stats,
                                    gpu_tensor targets, cudaStream_t stream, gpu_declared *declared);
assay_status gpu_cross_entropy_bwd(gpu_ctx *ctx, gpu_tensor dlogits, gpu_tensor logits, gpu_tensor lse,
                                   gpu_tensor targets, int64_t vocab_start, float scale, cudaStream_t stream,
                                   gpu_declared *declared);
/* y F64 [1] = sum of x F32 [n] in double */
/* Bytes of ctx->workspace that gpu_sum and gpu_sumsq need (any size). */
size_t gpu_sum_workspace(const gpu_ctx *ctx);
assay_status gpu_sum(gpu_ctx *ctx, gpu_tensor y, gpu_tensor x, cudaStream_t stream, gpu_declared *declared);

/* --- router.cu ---------------------------------------------------------------------------------------------- */
typedef struct gpu_router_desc {
    int64_t topk;
    int score_function; /* assay_score_function */
    bool pre_softmax, norm_topk_prob;
    float scaling_factor;
    int64_t num_groups, group_topk;
} gpu_router_desc;
/* indices I64 [T,K] ascending, probs F32 [T,K], scores F32 [T,E]; logits F32 [T,E], expert_bias F32 [E] or
 * none */
assay_status gpu_router_fwd(gpu_ctx *ctx, gpu_tensor indices, gpu_tensor probs, gpu_tensor scores,
                            gpu_tensor logits, gpu_tensor expert_bias, const gpu_router_desc *d,
                            cudaStream_t stream, gpu_declared *declared);
assay_status gpu_router_bwd(gpu_ctx *ctx, gpu_tensor dlogits, gpu_tensor dprobs, gpu_tensor indices,
                            gpu_tensor scores, gpu_tensor logits, const gpu_router_desc *d,
                            cudaStream_t stream, gpu_declared *declared);
/* Bytes of ctx->workspace that gpu_router_aux_fwd needs for `tokens` rows. */
size_t gpu_router_aux_workspace(const gpu_ctx *ctx, int64_t tokens);
assay_status gpu_router_aux_fwd(gpu_ctx *ctx, gpu_tensor aux_scores, gpu_tensor aux_indices,
                                gpu_tensor tokens_per_expert, gpu_tensor score_sums, gpu_tensor z_sum,
                                gpu_tensor logits, const gpu_router_desc *d, cudaStream_t stream,
                                gpu_declared *declared);
typedef struct gpu_router_aux_desc {
    double aux_coeff, z_coeff, loss_scale;
    int64_t group_tokens;
    gpu_router_desc router;
} gpu_router_aux_desc;
/* losses F32 [2] */
assay_status gpu_router_aux_loss(gpu_ctx *ctx, gpu_tensor losses, gpu_tensor score_sums,
                                 gpu_tensor tokens_per_expert, gpu_tensor z_sum, const gpu_router_aux_desc *d,
                                 cudaStream_t stream, gpu_declared *declared);
/* dlogits += */
assay_status gpu_router_aux_bwd(gpu_ctx *ctx, gpu_tensor dlogits, gpu_tensor logits,
                                gpu_tensor tokens_per_expert, const gpu_router_aux_desc *d,
                                cudaStream_t stream, gpu_declared *declared);
assay_status gpu_expert_bias_update(gpu_ctx *ctx, gpu_tensor bias, gpu_tensor tokens_per_expert, float rate,
                                    cudaStream_t stream, gpu_declared *declared);

/* --- experts.cu --------------------------------------------------------------------------------------------- */
/* all I64: row_token [T*K], row_slot [T*K], tokens_per_expert [E], token_row [T,K] from indices [T,K] */
assay_status gpu_permute_plan(gpu_ctx *ctx, gpu_tensor row_token, gpu_tensor row_slot,
                              gpu_tensor tokens_per_expert, gpu_tensor token_row, gpu_tensor indices,
                              cudaStream_t stream, gpu_declared *declared);
/* x [n,H] or [n]; index I64 [R] */
assay_status gpu_gather_rows(gpu_ctx *ctx, gpu_tensor y, gpu_tensor x, gpu_tensor index, cudaStream_t stream,
                             gpu_declared *declared);
assay_status gpu_combine_rows(gpu_ctx *ctx, gpu_tensor y, gpu_tensor x, gpu_tensor token_row,
                              cudaStream_t stream, gpu_declared *declared);

/* --- optimizer.cu ------------------------------------------------------------------------------------------- */
typedef struct gpu_adamw_desc {
    double lr, beta1, beta2, eps, weight_decay, grad_scale;
    int64_t step; /* from 1 */
} gpu_adamw_desc;
/* One list of tensors in one launch (multi-tensor); param[i] is BF16, F32 (another buffer) or none.  descs[i]
 * differ only in weight_decay. */
assay_status gpu_adamw(gpu_ctx *ctx, int64_t n_tensors, const gpu_tensor *main_param,
                       const gpu_tensor *exp_avg, const gpu_tensor *exp_avg_sq, const gpu_tensor *param,
                       const gpu_tensor *grad, const gpu_adamw_desc *descs, cudaStream_t stream,
                       gpu_declared *declared);
/* y F64 [n_tensors]: sum of squares of each, in double */
assay_status gpu_sumsq(gpu_ctx *ctx, gpu_tensor y, const gpu_tensor *x, int64_t n_tensors,
                       cudaStream_t stream, gpu_declared *declared);

ASSAY_END_DECLS

#endif
