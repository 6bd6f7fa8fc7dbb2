/* Bounds of operations as other frameworks compute them: without the intermediate results that our engines keep (rstd, lse), and
 * of formulas that our engines have not.  Conventions: ref/bounds/bounds.h; formulas: docs/TOLERANCES.md, section 3. */
#ifndef REF_BOUNDS_FOREIGN_H
#define REF_BOUNDS_FOREIGN_H

#include "ref/bounds/bounds.h"

/* rstd is computed from x and eps, its error goes into both results. */
assay_status ref_bound_rmsnorm_bwd_alone(ref_pair dx, ref_pair dgamma, const double *dy, const double *x,
                                         const double *gamma, double eps, const double *old, int64_t t,
                                         int64_t h, const ref_declared *d);
/* lse is computed from q and k.  products: D is the sum of P dP (a softmax kernel's backward), not of dO O. */
assay_status ref_bound_attention_bwd_alone(ref_pair dq, ref_pair dk, ref_pair dv, const double *dout,
                                           const double *q, const double *k, const double *v, const double *o,
                                           const ref_attention_desc *desc, assay_dtype p_dtype, bool products,
                                           const ref_declared *d);
/* lse is computed from the logits; the vocabulary is whole. */
assay_status ref_bound_cross_entropy_bwd_alone(ref_pair dlogits, const double *logits, const int64_t *targets,
                                               double scale, int64_t t, int64_t v, const ref_declared *d);
/* loss [T], or their sum [1] divided by `divisor` */
assay_status ref_bound_cross_entropy_fwd(ref_pair loss, const double *logits, const int64_t *targets,
                                         bool reduced, double divisor, int64_t t, int64_t v,
                                         const ref_declared *d);
/* y [T,H] = sum_k probs[t,k] x[token_row[t,k],:]; a row of -1 adds nothing */
assay_status ref_bound_weighted_combine_fwd(ref_pair y, const double *x, const double *probs,
                                            const int64_t *token_row, int64_t t, int64_t k, int64_t h,
                                            const ref_declared *d);
/* dx [R,H] =, dprobs [T,K] =; every row belongs to one assignment at most */
assay_status ref_bound_weighted_combine_bwd(ref_pair dx, ref_pair dprobs, const double *dy, const double *x,
                                            const double *probs, const int64_t *token_row, int64_t t,
                                            int64_t k, int64_t h, const ref_declared *d);
/* foreign_balancing.c: p = softmax of logits [N,E], the K largest of a row chosen, rows weighted (NULL: by 1), M = their weights added up:
 * loss [1] = E sum_e (chosen_e / M)(sum_n weight_n p_ne / M); a choice that the bounds of p leave open is in the bound of chosen_e.
 * Source: load_balancing_loss_func of transformers. */
assay_status ref_bound_load_balancing_fwd(ref_pair loss, const double *logits, const double *weight,
                                          int64_t n, int64_t e, int64_t k, const ref_declared *d);
/* dlogits [N,E] = the derivative of loss with the choice held, times scale */
assay_status ref_bound_load_balancing_bwd(ref_pair dlogits, const double *logits, const double *weight,
                                          double scale, int64_t n, int64_t e, int64_t k,
                                          const ref_declared *d);

#endif
