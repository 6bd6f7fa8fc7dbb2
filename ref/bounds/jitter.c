/* Jitter: one product with a number of F32. */
#include "ref/bounds/bounds.h"
#include "ref/bounds/interval.h"

void ref_bound_input_jitter(ref_pair y, const double *x, const int64_t *token, int64_t t, int64_t h,
                            const ref_jitter *j, const ref_declared *d)
{
    for (int64_t i = 0; i < t * h; i++) {
        const double factor = ref_jitter_factor(j, token[i / h], h, i % h);
        ref_pair_set(y, i, iv_mul(&d->num, iv_exact(x[i]), iv_exact(factor)), &d->num);
    }
}
