/* Operations of ref/ops.h for speed: tiles, OpenBLAS, vector registers.
 *
 * Each has the arguments, shapes, dtypes and preconditions of the plain operation of the same name, which is
 * the definition: `ref_fast_x` beside `ref_x`.
 *
 * law: equals plain within the derived bound.  For every element, |fast - plain| is at most twice the bound
 * that ref/bounds derives for a double-precision computation that adds in any order and whose exp is right to
 * one ulp: both are such computations.  Where plain is not finite, fast is the same infinity or not a number,
 * too.  Held by tests/ref/test_fast_*.c.
 *
 * The bits depend on the sizes alone, not on the number of threads, as long as OpenBLAS itself runs on one
 * thread (OPENBLAS_NUM_THREADS=1 or openblas_set_num_threads(1), the caller's job).
 *
 * Who uses which: the reference engine (assay step, the whole-model check) runs these; a step of plain loops
 * would take an order of magnitude longer.  The judge of single operations (ref_replay) uses neither: ref/bounds
 * computes value and bound in one go, in plain chains; of ref/fast it has the exp (ref/fast/vector.h). */
#ifndef REF_FAST_H
#define REF_FAST_H

#include "ref/ops.h"

/* --- linear.c: y, dx =; dweight += ------------------------------------------------------------------------- */
void ref_fast_linear_fwd(double *y, const double *x, const double *w, const double *bias, int64_t t,
                         int64_t n, int64_t k);
void ref_fast_linear_bwd_input(double *dx, const double *dy, const double *w, int64_t t, int64_t n,
                               int64_t k);
void ref_fast_linear_bwd_weight(double *dweight, const double *dy, const double *x, int64_t t, int64_t n,
                                int64_t k);
void ref_fast_grouped_linear_fwd(double *y, const double *x, const double *w,
                                 const int64_t *tokens_per_expert, int64_t e, int64_t n, int64_t k);
void ref_fast_grouped_linear_bwd_input(double *dx, const double *dy, const double *w,
                                       const int64_t *tokens_per_expert, int64_t e, int64_t n, int64_t k);
void ref_fast_grouped_linear_bwd_weight(double *dweight, const double *dy, const double *x,
                                        const int64_t *tokens_per_expert, int64_t e, int64_t n, int64_t k);

/* --- attention.c: o, lse, dq, dk, dv =.  Allocates the scores of a tile of queries for each head. ---------- */
void ref_fast_attention_fwd(double *o, double *lse, const double *q, const double *k, const double *v,
                            const ref_attention_desc *d);
void ref_fast_attention_bwd(double *dq, double *dk, double *dv, const double *dout, const double *q,
                            const double *k, const double *v, const double *o, const double *lse,
                            const ref_attention_desc *d);

/* --- activation.c: y, dx, dprobs = -------------------------------------------------------------------------- */
void ref_fast_swiglu_fwd(double *y, const double *x, const double *probs, int64_t t, int64_t f);
void ref_fast_swiglu_bwd(double *dx, double *dprobs, const double *dy, const double *x, const double *probs,
                         int64_t t, int64_t f);

#endif
