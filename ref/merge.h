/* Merging models, tensor by tensor, in double: formulas, sources and edge cases in docs/CHECKPOINT.md.
 * out [n] may not alias an input; x[i] [n] are the models, w [models] their weights. */
#ifndef REF_MERGE_H
#define REF_MERGE_H

#include "core/base/status.h"
#include <stdbool.h>
#include <stdint.h>

/* out = sum_i w_i x_i, divided by sum_i w_i with `normalize`.  The caller refuses a sum of 0. */
void ref_merge_linear(double *out, const double *const *x, const double *w, int models, int64_t n,
                      bool normalize);
/* out = the point t of the way from a to b on the sphere. */
void ref_merge_slerp(double *out, const double *a, const double *b, double t, int64_t n);

/* x = the elements of x of the greatest magnitudes, floor(density n) of them and at least one where density > 0, the others 0;
 * of equal ones the first. */
void ref_merge_trim(double *x, int64_t n, double density);
/* x = x / density where the draw of the element is below density, else 0.  Element i of a tensor of this name in model k. */
void ref_merge_drop(double *x, int64_t n, double density, uint64_t seed, const char *name, int k);

typedef enum { REF_MERGE_TOTAL, REF_MERGE_FREQUENCY } ref_merge_election;
/* out = base + lambda * d, d = sum_i w_i delta_i, divided by sum_i w_i with `normalize` (a sum below 1e-8: by 1). */
void ref_merge_add(double *out, const double *base, const double *const *delta, const double *w, int models,
                   int64_t n, bool normalize, double lambda);
/* out = base + lambda * d, d = the sum of the w_i delta_i that have the elected sign, with `normalize` divided by the sum of
 * their w_i (below 1e-8: by 1). */
void ref_merge_elect(double *out, const double *base, const double *const *delta, const double *w, int models,
                     int64_t n, bool normalize, double lambda, ref_merge_election election);

#endif
