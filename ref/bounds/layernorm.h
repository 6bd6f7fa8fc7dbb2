/* Bounds of LayerNorm, an operation of other programs' models (docs/OPS.md 3). */
#ifndef REF_BOUNDS_LAYERNORM_H
#define REF_BOUNDS_LAYERNORM_H

#include "ref/bounds/bounds.h"

/* Of one row: computed from it, or exact where they were kept. */
typedef struct ref_row_statistics {
    ref_iv mean, rstd;
} ref_row_statistics;

/* terms: scratch [2 H] */
ref_row_statistics ref_bound_row_statistics(const double *x, double *terms, double eps, int64_t h,
                                            const ref_declared *d);
/* beta NULL: none */
assay_status ref_bound_layernorm_fwd(ref_pair y, ref_pair mean, ref_pair rstd, const double *x,
                                     const double *gamma, const double *beta, double eps, int64_t t,
                                     int64_t h, const ref_declared *d);
/* s [T].  old_beta NULL: there is no beta, and dbeta is not touched. */
assay_status ref_bound_layernorm_bwd(ref_pair dx, ref_pair dgamma, ref_pair dbeta, const double *dy,
                                     const double *x, const double *gamma, const ref_row_statistics *s,
                                     const double *old_gamma, const double *old_beta, int64_t t, int64_t h,
                                     const ref_declared *d);

#endif
