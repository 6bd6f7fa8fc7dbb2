/* Bounds of RMSNorm. */
#include "ref/bounds/bounds.h"
#include "ref/ops/vector.h"

#include <stdlib.h>

void ref_bound_rmsnorm_fwd(ref_pair y, ref_pair rstd, const double *x, const double *gamma, double eps,
                           int64_t t, int64_t h, const ref_declared *d)
{
    const ref_num *n = &d->num;
#pragma omp parallel for schedule(static) if (ref_vec_parallel(t * h * 4))
    for (int64_t i = 0; i < t; i++) {
        const double *xi = x + i * h;
        ref_iv mean = {0.0, 0.0};
        if (h > 0) {
            mean = ref_sum_dot(xi, xi, h, &d->order);
            /* dividing by H, or multiplying with a rounded 1/H */
            mean = iv_mul(n, mean, iv_constant(n, 1.0 / (double)h));
        }
        const ref_iv r = iv_rsqrt(n, iv_add(n, mean, iv_constant(n, eps)));
        /* rsqrt's own rounding is counted in its math error: nothing can be taken off */
        rstd.y[i] = r.v;
        rstd.b[i] = r.b;
        for (int64_t j = 0; j < h; j++) {
            const ref_iv xr = ref_stored(d, ASSAY_ROUND_BEFORE_GAMMA, iv_mul(n, iv_exact(xi[j]), r));
            ref_pair_set(y, i * h + j, iv_mul(n, iv_exact(gamma[j]), xr), n);
        }
    }
}

/* terms: scratch [2 H], the squares and their bounds */
static void norm_of_sum(ref_pair y, ref_pair rstd, int64_t i, double *terms, const double *a, const double *b,
                        const double *gamma, double eps, int64_t h, const ref_declared *d)
{
    const ref_num *n = &d->num;
    for (int64_t j = 0; j < h; j++) {
        const ref_iv x = iv_add(n, iv_exact(a[j]), iv_exact(b[j])), square = iv_mul(n, x, x);
        terms[j] = square.v;
        terms[h + j] = square.b;
    }
    ref_iv mean = {0.0, 0.0};
    if (h > 0)
        mean = iv_mul(n, ref_sum_terms(terms, terms + h, h, &d->order), iv_constant(n, 1.0 / (double)h));
    const ref_iv r = iv_rsqrt(n, iv_add(n, mean, iv_constant(n, eps)));
    rstd.y[i] = r.v;
    rstd.b[i] = r.b;
    for (int64_t j = 0; j < h; j++) {
        const ref_iv x = iv_add(n, iv_exact(a[j]), iv_exact(b[j]));
        const ref_iv xr = ref_stored(d, ASSAY_ROUND_BEFORE_GAMMA, iv_mul(n, x, r));
        ref_pair_set(y, i * h + j, iv_mul(n, iv_exact(gamma[j]), xr), n);
    }
}

assay_status ref_bound_rmsnorm_fwd_of(ref_pair y, ref_pair rstd, const double *a, const double *b,
                                      const double *gamma, double eps, int64_t t, int64_t h,
                                      const ref_declared *d)
{
    double *terms = malloc((size_t)(2 * h + 1) * sizeof *terms);
    ASSAY_CHECK(terms, ASSAY_OUT_OF_MEMORY, "add_rmsnorm_fwd: rows of %lld", (long long)h);
    for (int64_t i = 0; i < t; i++)
        norm_of_sum(y, rstd, i, terms, a + i * h, b + i * h, gamma, eps, h, d);
    free(terms);
    return ASSAY_OK;
}

/* One number of a gradient dy, which has bounds or (dyb NULL) is exact. */
static inline ref_iv given(const double *dy, const double *dyb, int64_t i)
{
    return (ref_iv){dy[i], dyb ? dyb[i] : 0.0};
}

static inline const double *from(const double *p, int64_t at)
{
    return p ? p + at : NULL;
}

/* g xh of every column: terms [2 H], values and bounds */
static void dot_terms(double *terms, const double *dy, const double *dyb, const double *x,
                      const double *gamma, double rstd, int64_t h, const ref_num *n)
{
    for (int64_t j = 0; j < h; j++) {
        const ref_iv g = iv_mul(n, given(dy, dyb, j), iv_exact(gamma[j]));
        const ref_iv z = iv_mul(n, g, iv_mul(n, iv_exact(x[j]), iv_exact(rstd)));
        terms[j] = z.v;
        terms[h + j] = z.b;
    }
}

/* dx of a row from the mean of g xh */
static void dx_row(ref_pair dx, int64_t i, const double *dy, const double *dyb, const double *x,
                   const double *gamma, double rstd, ref_iv mean, int64_t h, const ref_num *n)
{
    for (int64_t j = 0; j < h; j++) {
        const ref_iv g = iv_mul(n, given(dy, dyb, j), iv_exact(gamma[j]));
        const ref_iv xh = iv_mul(n, iv_exact(x[j]), iv_exact(rstd));
        const ref_iv z = iv_mul(n, iv_exact(rstd), iv_sub(n, g, iv_mul(n, xh, mean)));
        ref_pair_set(dx, i * h + j, z, n);
    }
}

/* terms: scratch [2 H] */
static void bwd_row(ref_pair dx, int64_t i, double *terms, const double *dy, const double *dyb,
                    const double *x, const double *gamma, double rstd, int64_t h, const ref_order *order,
                    const ref_num *n)
{
    dot_terms(terms, dy, dyb, x, gamma, rstd, h, n);
    const ref_iv mean = iv_mul(n, ref_sum_terms(terms, terms + h, h, order), iv_constant(n, 1.0 / (double)h));
    dx_row(dx, i, dy, dyb, x, gamma, rstd, mean, h, n);
}

static void bwd_gamma(ref_pair dgamma, int64_t j, double *terms, const double *dy, const double *dyb,
                      const double *x, const double *rstd, const double *old, int64_t t, int64_t h,
                      const ref_order *order, const ref_num *n)
{
    for (int64_t i = 0; i < t; i++) {
        const ref_iv xh = iv_mul(n, iv_exact(x[i * h + j]), iv_exact(rstd[i]));
        const ref_iv z = iv_mul(n, given(dy, dyb, i * h + j), xh);
        terms[i] = z.v;
        terms[t + i] = z.b;
    }
    ref_iv z = ref_sum_terms(terms, terms + t, t, order);
    if (t > 0)
        z = iv_add(n, z, iv_exact(old[j]));
    else
        z.v = old[j];
    dgamma.y[j] = z.v;
    dgamma.b[j] = z.b;
}

/* The part of the calling thread, of all of them in a parallel region and of one outside; false: no memory. */
static bool bwd_part(ref_pair dx, ref_pair dgamma, const double *dy, const double *dyb, const double *x,
                     const double *gamma, const double *rstd, const double *old, int64_t t, int64_t h,
                     const ref_declared *d)
{
    double *terms = malloc((size_t)(2 * (t > h ? t : h) + 1) * sizeof *terms);
    const bool enough = terms != NULL;
#pragma omp for schedule(static)
    for (int64_t i = 0; i < t; i++)
        if (terms)
            bwd_row(dx, i, terms, dy + i * h, from(dyb, i * h), x + i * h, gamma, rstd[i], h, &d->order,
                    &d->num);
#pragma omp for schedule(static)
    for (int64_t j = 0; j < (dgamma.y ? h : 0); j++)
        if (terms)
            bwd_gamma(dgamma, j, terms, dy, dyb, x, rstd, old, t, h, &d->order, &d->num);
    free(terms);
    return enough;
}

assay_status ref_bound_rmsnorm_bwd_of(ref_pair dx, ref_pair dgamma, const double *dy, const double *dyb,
                                      const double *x, const double *gamma, const double *rstd,
                                      const double *old, int64_t t, int64_t h, const ref_declared *d)
{
    bool failed = false;
    if (ref_vec_parallel(t * h * 4)) {
#pragma omp parallel reduction(|| : failed)
        failed = !bwd_part(dx, dgamma, dy, dyb, x, gamma, rstd, old, t, h, d);
    } else {
        failed = !bwd_part(dx, dgamma, dy, dyb, x, gamma, rstd, old, t, h, d);
    }
    ASSAY_CHECK(!failed, ASSAY_OUT_OF_MEMORY, "rmsnorm_bwd: %lld rows of %lld", (long long)t, (long long)h);
    return ASSAY_OK;
}

assay_status ref_bound_rmsnorm_bwd(ref_pair dx, ref_pair dgamma, const double *dy, const double *x,
                                   const double *gamma, const double *rstd, const double *old, int64_t t,
                                   int64_t h, const ref_declared *d)
{
    return ref_bound_rmsnorm_bwd_of(dx, dgamma, dy, NULL, x, gamma, rstd, old, t, h, d);
}

void ref_bound_rmsnorm_bwd_add(ref_pair y, const double *dresidual, ref_pair dx, int64_t n,
                               const ref_declared *d)
{
    for (int64_t i = 0; i < n; i++) {
        const ref_iv added = ref_stored(d, ASSAY_ROUND_RESIDUAL, (ref_iv){dx.y[i], dx.b[i]});
        ref_pair_set(y, i, iv_add(&d->num, iv_exact(dresidual[i]), added), &d->num);
    }
}

/* --- rows cut over ranks ------------------------------------------------------------------------------------ */
void ref_bound_rmsnorm_sumsq(ref_pair y, const double *x, int64_t t, int64_t h, const ref_declared *d)
{
    for (int64_t i = 0; i < t; i++) {
        const ref_iv sum = ref_sum_dot(x + i * h, x + i * h, h, &d->order);
        y.y[i] = sum.v;
        y.b[i] = sum.b;
    }
}

void ref_bound_rmsnorm_apply(ref_pair y, ref_pair rstd, const double *x, const double *gamma,
                             const double *sumsq, double eps, int64_t width, int64_t t, int64_t h,
                             const ref_declared *d)
{
    const ref_num *n = &d->num;
    for (int64_t i = 0; i < t; i++) {
        const ref_iv mean = iv_mul(n, iv_exact(sumsq[i]), iv_constant(n, 1.0 / (double)width));
        const ref_iv r = iv_rsqrt(n, iv_add(n, mean, iv_constant(n, eps)));
        rstd.y[i] = r.v;
        rstd.b[i] = r.b;
        for (int64_t j = 0; j < h; j++) {
            const ref_iv xr = iv_mul(n, iv_exact(x[i * h + j]), r);
            ref_pair_set(y, i * h + j, iv_mul(n, iv_exact(gamma[j]), xr), n);
        }
    }
}

assay_status ref_bound_rmsnorm_bwd_dot(ref_pair y, const double *dy, const double *x, const double *gamma,
                                       const double *rstd, int64_t t, int64_t h, const ref_declared *d)
{
    double *terms = malloc((size_t)(2 * h + 1) * sizeof *terms);
    ASSAY_CHECK(terms, ASSAY_OUT_OF_MEMORY, "rmsnorm_bwd_dot: rows of %lld", (long long)h);
    for (int64_t i = 0; i < t; i++) {
        dot_terms(terms, dy + i * h, NULL, x + i * h, gamma, rstd[i], h, &d->num);
        const ref_iv sum = ref_sum_terms(terms, terms + h, h, &d->order);
        y.y[i] = sum.v;
        y.b[i] = sum.b;
    }
    free(terms);
    return ASSAY_OK;
}

assay_status ref_bound_rmsnorm_bwd_apply(ref_pair dx, ref_pair dgamma, const double *dy, const double *x,
                                         const double *gamma, const double *rstd, const double *dot,
                                         const double *old, int64_t width, int64_t t, int64_t h,
                                         const ref_declared *d)
{
    const ref_num *n = &d->num;
    double *terms = malloc((size_t)(2 * t + 1) * sizeof *terms);
    ASSAY_CHECK(terms, ASSAY_OUT_OF_MEMORY, "rmsnorm_bwd_apply: %lld rows", (long long)t);
    for (int64_t i = 0; i < t; i++) {
        const ref_iv mean = iv_mul(n, iv_exact(dot[i]), iv_constant(n, 1.0 / (double)width));
        dx_row(dx, i, dy + i * h, NULL, x + i * h, gamma, rstd[i], mean, h, n);
    }
    for (int64_t j = 0; j < (dgamma.y ? h : 0); j++)
        bwd_gamma(dgamma, j, terms, dy, NULL, x, rstd, old, t, h, &d->order, n);
    free(terms);
    return ASSAY_OK;
}
