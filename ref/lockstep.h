/* The operations of ref/ops.h on lockstep tensors: each runs on every rank of the stage, with that rank's
 * pieces and weights, then the result is stored as the recipe says (ref/policy.h) and traced.
 *
 * Outputs first and newly made; then inputs, parameters (rows of the parameter table, -1 = none), and the
 * name.  Backward results are named `<name of the forward tensor>.grad`, or `<instance>.dx` where an instance
 * is given because the gradient is one of several contributions.  Parameter gradients are accumulated. */
#ifndef REF_LOCKSTEP_H
#define REF_LOCKSTEP_H

#include "ref/engine.h"

/* What a mask is of: docs/OPS.md 9.12. */
typedef enum {
    REF_DROP_PROBS,
    REF_DROP_MIXER,
    REF_DROP_MLP,
    REF_DROP_EMBEDDING,
    REF_DROP_SITES
} ref_dropout_site;

/* A new tensor called PREFIX instance.slot (or NAME itself), without pieces. */
assay_status ref_new(ref_pass *p, ref_tensor *t, const char *instance, const char *slot);
assay_status ref_new_grad(ref_pass *p, ref_tensor *t, const ref_tensor *of, const char *instance);
/* Rounds, perturbs and traces. */
assay_status ref_store(ref_pass *p, ref_tensor *t, ref_store_class class);
/* The same for the main gradient of a parameter that the pass has just added to. */
void ref_store_main_grad(ref_pass *p, int64_t param);

assay_status ref_ranks_linear(ref_pass *p, ref_tensor *y, const ref_tensor *x, int64_t weight, int64_t bias,
                              bool bias_on_first_tp_only, const char *instance, ref_store_class class);
assay_status ref_ranks_linear_bwd(ref_pass *p, ref_tensor *dx, const ref_tensor *dy, const ref_tensor *x,
                                  int64_t weight, int64_t bias, const char *instance);
/* gamma [h]: columns of x are groups of h, each normalised by itself (q/k norms) */
assay_status ref_ranks_rmsnorm(ref_pass *p, ref_tensor *y, ref_tensor *rstd, const ref_tensor *x,
                               int64_t gamma, const char *instance);
/* The same with an eps of its own. */
assay_status ref_ranks_rmsnorm_of(ref_pass *p, ref_tensor *y, ref_tensor *rstd, const ref_tensor *x,
                                  int64_t gamma, double eps, const char *instance);
assay_status ref_ranks_rmsnorm_bwd(ref_pass *p, ref_tensor *dx, const ref_tensor *dy, const ref_tensor *x,
                                   const ref_tensor *rstd, int64_t gamma, const char *instance);
assay_status ref_ranks_add(ref_pass *p, ref_tensor *y, const ref_tensor *a, const ref_tensor *b,
                           const char *instance);
/* y = a + b, named as the gradient of `of` */
assay_status ref_ranks_add_grad(ref_pass *p, ref_tensor *y, const ref_tensor *a, const ref_tensor *b,
                                const ref_tensor *of);
assay_status ref_ranks_clamp(ref_pass *p, ref_tensor *y, const ref_tensor *x, double limit,
                             const char *instance);
assay_status ref_ranks_clamp_bwd(ref_pass *p, ref_tensor *dx, const ref_tensor *dy, const ref_tensor *x,
                                 double limit, ref_clip_operand operand);
/* Dropout of a tensor in the sequence-parallel form: the mask of the rank's tokens in the whole microbatch.  dx is the
 * gradient of x. */
assay_status ref_ranks_dropout(ref_pass *p, ref_tensor *y, const ref_tensor *x, double share,
                               ref_dropout_site site, const char *instance);
assay_status ref_ranks_dropout_bwd(ref_pass *p, ref_tensor *dx, const ref_tensor *dy, const ref_tensor *x,
                                   double share, ref_dropout_site site);
/* The masks of rank r's microbatch at a site of the present layer. */
ref_dropout ref_pass_dropout(const ref_pass *p, int r, double share, ref_dropout_site site);
assay_status ref_ranks_swiglu(ref_pass *p, ref_tensor *y, const ref_tensor *x, const ref_tensor *probs,
                              const char *instance);
assay_status ref_ranks_swiglu_bwd(ref_pass *p, ref_tensor *dx, ref_tensor *dprobs, const ref_tensor *dy,
                                  const ref_tensor *x, const ref_tensor *probs);
assay_status ref_ranks_sigmoid_gate(ref_pass *p, ref_tensor *y, const ref_tensor *x, const ref_tensor *gate,
                                    const char *instance);
assay_status ref_ranks_sigmoid_gate_bwd(ref_pass *p, ref_tensor *dx, ref_tensor *dgate, const ref_tensor *dy,
                                        const ref_tensor *x, const ref_tensor *gate);
/* attention: of which positions of the rows the queries and keys are, and where the queries' documents begin (no tensor: rows
 * are one document) */
typedef struct ref_seen {
    ref_ints q_position, k_position; /* [Tq,1], [Tk,1] */
    ref_ints document_start;         /* [Tq,1] */
} ref_seen;
assay_status ref_ranks_qkv_split(ref_pass *p, ref_tensor *q, ref_tensor *k, ref_tensor *v,
                                 const ref_tensor *qkv);
assay_status ref_ranks_qkv_split_bwd(ref_pass *p, ref_tensor *dqkv, const ref_tensor *dq,
                                     const ref_tensor *dk, const ref_tensor *dv, const ref_tensor *qkv);
assay_status ref_ranks_rope(ref_pass *p, ref_tensor *y, const ref_tensor *x, const char *instance);
assay_status ref_ranks_rope_bwd(ref_pass *p, ref_tensor *dx, const ref_tensor *dy, const ref_tensor *x);
assay_status ref_ranks_attention(ref_pass *p, ref_tensor *o, ref_tensor *lse, const ref_tensor *q,
                                 const ref_tensor *k, const ref_tensor *v, const ref_seen *seen,
                                 const char *instance);
assay_status ref_ranks_attention_bwd(ref_pass *p, ref_tensor *dq, ref_tensor *dk, ref_tensor *dv,
                                     const ref_tensor *dout, const ref_tensor *q, const ref_tensor *k,
                                     const ref_tensor *v, const ref_tensor *o, const ref_tensor *lse,
                                     const ref_seen *seen);
/* experts */
assay_status ref_ranks_gather_rows(ref_pass *p, ref_tensor *y, const ref_tensor *x, const ref_ints *index,
                                   const char *name);
assay_status ref_ranks_combine_rows(ref_pass *p, ref_tensor *y, const ref_tensor *x,
                                    const ref_ints *token_row, const char *name);
assay_status ref_ranks_grouped_linear(ref_pass *p, ref_tensor *y, const ref_tensor *x,
                                      const ref_ints *tokens_per_expert, int64_t weight,
                                      const char *instance);
assay_status ref_ranks_grouped_linear_bwd(ref_pass *p, ref_tensor *dx, const ref_tensor *dy,
                                          const ref_tensor *x, const ref_ints *tokens_per_expert,
                                          int64_t weight);
/* embedding */
assay_status ref_ranks_embedding(ref_pass *p, ref_tensor *y, const ref_ints *ids, int64_t weight);
assay_status ref_ranks_embedding_bwd(ref_pass *p, const ref_tensor *dy, const ref_ints *ids, int64_t weight);

#endif
