/* Every operation once more, with a bound on each element of its result for a declared arithmetic.
 *
 * A ref_pair is an output: y (double-precision value) and b (bound on how far an honest computation may lie
 * from y before the output is rounded), both overwritten.  Inputs and sizes are those of ref/ops.h, same
 * names and order.  Inputs are exact: they are the candidate's own recorded numbers.  Operations that need
 * scratch return ASSAY_OUT_OF_MEMORY.  Formulas: docs/TOLERANCES.md. */
#ifndef REF_BOUNDS_BOUNDS_H
#define REF_BOUNDS_BOUNDS_H

#include "ref/bounds/sum.h"
#include "ref/ops.h"
#include "ref/replay.h"

typedef struct ref_pair {
    double *y, *b;
    /* The output is stored in the accumulate format: its last rounding is the rounding of the output, which
     * ref_admissible adds. */
    bool same;
} ref_pair;

/* A declared arithmetic, prepared. */
typedef struct ref_declared {
    ref_num num;
    ref_order order;
    int64_t tile;              /* keys of a rescale step of an online softmax, 0 = two passes */
    unsigned rounding;         /* assay_rounding: places where an intermediate result is stored ... */
    double u_store, eta_store; /* ... in a dtype with this unit roundoff and smallest subnormal */
} ref_declared;
assay_status ref_declared_of(ref_declared *out, const assay_arith *arith, const char *op);
/* Takes the declared places of `arith`, whose intermediate results are stored in `store`; one as fine as the accumulate type
 * adds no rounding. */
void ref_declared_store(ref_declared *d, const assay_arith *arith, assay_dtype store);

/* x, stored at `place` where the operation declares it. */
static inline ref_iv ref_stored(const ref_declared *d, assay_rounding place, ref_iv x)
{
    if ((d->rounding & place) == 0)
        return x;
    return (ref_iv){x.v, x.b + d->u_store * (fabs(x.v) + x.b) + d->eta_store};
}

/* Stores z; takes the last rounding off when the output has the accumulate format. */
static inline void ref_pair_set(ref_pair out, int64_t i, ref_iv z, const ref_num *num)
{
    if (out.same) {
        /* z.b = b + u (|v| + b) with b the bound before the last rounding; 2^-50: the reference's own error, also of dividing
         * by a product (a loop does it once) */
        const double before = (z.b - num->u * fabs(z.v)) * (1.0 / (1.0 + num->u));
        z.b = (before > 0.0 ? before : 0.0) + 0x1p-50 * fabs(z.v);
    }
    out.y[i] = z.v;
    out.b[i] = z.b;
}

/* --- linear.c; `old` is the accumulated target before */
assay_status ref_bound_linear_fwd(ref_pair y, const double *x, const double *w, const double *bias, int64_t t,
                                  int64_t n, int64_t k, const ref_declared *d);
assay_status ref_bound_linear_bwd_input(ref_pair dx, const double *dy, const double *w, int64_t t, int64_t n,
                                        int64_t k, const ref_declared *d);
assay_status ref_bound_linear_bwd_weight(ref_pair dweight, const double *dy, const double *x,
                                         const double *old, int64_t t, int64_t n, int64_t k,
                                         const ref_declared *d);
/* The product is stored in `stored` before it is added. */
assay_status ref_bound_linear_bwd_weight_stored(ref_pair dweight, const double *dy, const double *x,
                                                const double *old, assay_dtype stored, int64_t t, int64_t n,
                                                int64_t k, const ref_declared *d);
assay_status ref_bound_linear_bwd_bias(ref_pair dbias, const double *dy, const double *old, int64_t t,
                                       int64_t n, const ref_declared *d);

/* --- norm.c */
void ref_bound_rmsnorm_fwd(ref_pair y, ref_pair rstd, const double *x, const double *gamma, double eps,
                           int64_t t, int64_t h, const ref_declared *d);
/* Of a + b, added in the accumulate type and rounded no further: the bound of the sum goes through the norm.
 * ASSAY_OUT_OF_MEMORY. */
assay_status ref_bound_rmsnorm_fwd_of(ref_pair y, ref_pair rstd, const double *a, const double *b,
                                      const double *gamma, double eps, int64_t t, int64_t h,
                                      const ref_declared *d);
/* dgamma {NULL, NULL}: not asked, and old is not read. */
assay_status ref_bound_rmsnorm_bwd(ref_pair dx, ref_pair dgamma, const double *dy, const double *x,
                                   const double *gamma, const double *rstd, const double *old, int64_t t,
                                   int64_t h, const ref_declared *d);
/* The same of a gradient dy with its bound; dyb NULL: it is exact. */
assay_status ref_bound_rmsnorm_bwd_of(ref_pair dx, ref_pair dgamma, const double *dy, const double *dyb,
                                      const double *x, const double *gamma, const double *rstd,
                                      const double *old, int64_t t, int64_t h, const ref_declared *d);
/* y = dresidual + dx, of dx with its bound, stored first where that is declared */
void ref_bound_rmsnorm_bwd_add(ref_pair y, const double *dresidual, ref_pair dx, int64_t n,
                               const ref_declared *d);
void ref_bound_rmsnorm_sumsq(ref_pair y, const double *x, int64_t t, int64_t h, const ref_declared *d);
void ref_bound_rmsnorm_apply(ref_pair y, ref_pair rstd, const double *x, const double *gamma,
                             const double *sumsq, double eps, int64_t width, int64_t t, int64_t h,
                             const ref_declared *d);
assay_status ref_bound_rmsnorm_bwd_dot(ref_pair y, const double *dy, const double *x, const double *gamma,
                                       const double *rstd, int64_t t, int64_t h, const ref_declared *d);
assay_status ref_bound_rmsnorm_bwd_apply(ref_pair dx, ref_pair dgamma, const double *dy, const double *x,
                                         const double *gamma, const double *rstd, const double *dot,
                                         const double *old, int64_t width, int64_t t, int64_t h,
                                         const ref_declared *d);

/* --- jitter.c: one product with a number of F32 */
void ref_bound_input_jitter(ref_pair y, const double *x, const int64_t *token, int64_t t, int64_t h,
                            const ref_jitter *j, const ref_declared *d);

/* --- elementwise.c */
/* No rounding but the one of the store: of limit, where the stored type has not that number. */
/* x times 0 or 1/(1-p): y of x in the forward, dx of dy in the backward */
void ref_bound_dropout(ref_pair y, const double *x, const int64_t *token, int64_t t, int64_t h,
                       const ref_dropout *drop, const ref_declared *d);
void ref_bound_clamp_fwd(ref_pair y, const double *x, double limit, int64_t n, const ref_declared *d);
void ref_bound_clamp_bwd(ref_pair dx, const double *dy, const double *x, double limit, int64_t n,
                         const ref_declared *d);
void ref_bound_add(ref_pair y, const double *a, const double *b, int64_t n, const ref_declared *d);
void ref_bound_swiglu_fwd(ref_pair y, const double *x, const double *probs, int64_t t, int64_t f,
                          const ref_declared *d);
assay_status ref_bound_swiglu_bwd(ref_pair dx, ref_pair dprobs, const double *dy, const double *x,
                                  const double *probs, int64_t t, int64_t f, const ref_declared *d);
void ref_bound_sigmoid_gate_fwd(ref_pair y, const double *x, const double *gate, int64_t t, int64_t h,
                                const ref_declared *d);
void ref_bound_sigmoid_gate_bwd(ref_pair dx, ref_pair dgate, const double *dy, const double *x,
                                const double *gate, int64_t t, int64_t h, const ref_declared *d);
void ref_bound_rope_table(ref_pair cos_table, ref_pair sin_table, const ref_rope_desc *desc,
                          int64_t n_positions, const ref_declared *d);
/* sign +1: forward, -1: backward */
void ref_bound_rope(ref_pair y, const double *x, const double *cos_table, const double *sin_table,
                    const int64_t *position, int64_t rotary_dim, int64_t t, int64_t heads, int64_t dim,
                    double sign, const ref_declared *d);
/* Forward, of numbers x with bounds xb: they go through the rotation. */
void ref_bound_rope_of(ref_pair y, const double *x, const double *xb, const double *cos_table,
                       const double *sin_table, const int64_t *position, int64_t rotary_dim, int64_t t,
                       int64_t heads, int64_t dim, const ref_declared *d);
/* --- mla.c: of what turns; columns that pass have bound 0 */
void ref_bound_mla_rope_q(ref_pair y, const double *x, const double *cos_table, const double *sin_table,
                          const int64_t *position, int64_t rotary, int64_t t, int64_t heads, int64_t dim,
                          bool back, const ref_declared *d);
void ref_bound_mla_rope_k(ref_pair k, const double *kv, const double *k_pos_emb, const double *cos_table,
                          const double *sin_table, const int64_t *position, int64_t rotary, int64_t t,
                          int64_t heads, int64_t nope, int64_t value, const ref_declared *d);
/* dk_pos_emb alone: the heads' sum in the declared order turns with its bound */
assay_status ref_bound_mla_rope_dk(ref_pair dk_pos_emb, const double *dk, const double *cos_table,
                                   const double *sin_table, const int64_t *position, int64_t rotary,
                                   int64_t t, int64_t heads, int64_t nope, const ref_declared *d);

/* --- elementwise.c, too */
/* Ascending rows onto the old value or beside it: the larger of both. */
assay_status ref_bound_embedding_bwd(ref_pair dweight, const double *dy, const int64_t *ids,
                                     const double *old, int64_t vocab_start, int64_t padding_idx, int64_t t,
                                     int64_t v, int64_t h, const ref_declared *d);
assay_status ref_bound_combine_rows(ref_pair y, const double *x, const int64_t *token_row, int64_t t,
                                    int64_t k, int64_t h, const ref_declared *d);

/* --- attention.c; p_dtype: the format P (and dS) is rounded to before a product, F32 or F64: not rounded */
assay_status ref_bound_attention_fwd(ref_pair o, ref_pair lse, const double *q, const double *k,
                                     const double *v, const ref_attention_desc *desc, assay_dtype p_dtype,
                                     const ref_declared *d);
assay_status ref_bound_attention_bwd(ref_pair dq, ref_pair dk, ref_pair dv, const double *dout,
                                     const double *q, const double *k, const double *v, const double *o,
                                     const double *lse, const ref_attention_desc *desc, assay_dtype p_dtype,
                                     const ref_declared *d);

/* --- merge.c; rows of head_dim */
void ref_bound_attention_merge(ref_pair o, ref_pair lse, const double *o_a, const double *lse_a,
                               const double *o_b, const double *lse_b, int64_t rows, int64_t head_dim,
                               const ref_declared *d);

/* --- loss.c */
assay_status ref_bound_cross_entropy_stats(ref_pair stats, const double *logits, const int64_t *targets,
                                           int64_t vocab_start, int64_t t, int64_t v, const ref_declared *d);
void ref_bound_cross_entropy_loss(ref_pair lse, ref_pair loss, const double *stats, const int64_t *targets,
                                  int n_pieces, int64_t t, const ref_declared *d);
void ref_bound_cross_entropy_bwd(ref_pair dlogits, const double *logits, const double *lse,
                                 const int64_t *targets, int64_t vocab_start, double scale, int64_t t,
                                 int64_t v, const ref_declared *d);
/* square false: sum x, true: sum x^2; in double whatever is declared */
void ref_bound_sum_double(ref_pair y, const double *x, int64_t n, bool square, const ref_declared *d);
/* norm = sqrt(sumsq), scale = min(1, clip_grad/(norm + 1e-6)), 1 where clip_grad is 0 or the norm is no number; in double likewise. */
void ref_bound_clip_coefficient(ref_pair norm, ref_pair scale, double sumsq, double clip_grad);

/* --- router.c */
typedef struct ref_decisions {
    int64_t n, n_ambiguous, n_inadmissible, first_inadmissible, n_experts;
    double gap;
    int n_shown;
    ref_decision shown[REF_DECISIONS_SHOWN];
} ref_decisions;
/* scores, keys [T,E] */
void ref_bound_router_scores(ref_pair scores, ref_pair keys, const double *logits, const double *expert_bias,
                             const ref_router_desc *desc, const ref_declared *d);
/* Judges the candidate's choice and takes it over into `taken` [T,K]; a row that is not K ascending experts,
 * or not admissible in shape, is replaced by the reference's.  any: of equal keys any may be taken. */
void ref_bound_router_choice(int64_t *taken, const int64_t *candidate, ref_pair keys, const double *logits,
                             const double *expert_bias, const ref_router_desc *desc, const ref_num *num,
                             bool any, ref_decisions *out);
void ref_bound_router_probs(ref_pair probs, const double *logits, const int64_t *indices,
                            const ref_router_desc *desc, const ref_declared *d);
void ref_bound_router_bwd(ref_pair dlogits, const double *dprobs, const int64_t *indices,
                          const double *scores, const ref_router_desc *desc, const ref_declared *d);

/* --- aux.c */
void ref_bound_router_aux_scores(ref_pair aux_scores, const double *logits, const ref_router_desc *desc,
                                 const ref_declared *d);
assay_status ref_bound_router_aux_sums(ref_pair score_sums, ref_pair z_sum, ref_pair aux_scores,
                                       const double *logits, const ref_router_desc *desc,
                                       const ref_declared *d);
/* aux_scores.b NULL: they are exact. */
assay_status ref_bound_router_seq_aux_sums(ref_pair score_sums, ref_pair aux_scores, int64_t rows,
                                           const ref_router_desc *desc, const ref_declared *d);
assay_status ref_bound_router_aux_loss(ref_pair losses, const double *score_sums, const int64_t *counts,
                                       const double *z_sum, const ref_balance *b, const ref_router_desc *desc,
                                       const ref_declared *d);
/* old.b NULL: exact; else how far what the target held may lie from old.y.  dlogits may be old. */
void ref_bound_router_aux_bwd(ref_pair dlogits, const double *logits, const int64_t *counts, ref_pair old,
                              const ref_balance *b, double loss_scale, const ref_router_desc *desc,
                              const ref_declared *d);
void ref_bound_expert_bias_update(ref_pair bias, const double *old, const int64_t *counts, double rate,
                                  int64_t e, const ref_declared *d);

/* --- optimizer.c */
void ref_bound_adamw(ref_pair param, ref_pair exp_avg, ref_pair exp_avg_sq, const double *param_in,
                     const double *exp_avg_in, const double *exp_avg_sq_in, const double *grad,
                     const ref_adamw_desc *desc, int64_t count, const ref_declared *d);

#endif
