/* Bounds of LayerNorm: the same for kernels that subtract the mean first and for those that multiply first (x rstd - mean rstd,
 * PyTorch's), for two passes and for Welford's one. */
#include "ref/bounds/layernorm.h"

#include <stdlib.h>

/* Squares of what is left without the mean: an error of the mean enters each by twice the deviation, which together is no less than
 * what Welford's updates lose (sqrt(sum of squares x sum of squared deviations) for every unit of their sum). */
static ref_iv variance(const double *x, ref_iv mean, double *terms, int64_t h, const ref_declared *d)
{
    const ref_num *n = &d->num;
    for (int64_t j = 0; j < h; j++) {
        const ref_iv c = iv_sub(n, iv_exact(x[j]), mean), z = iv_mul(n, c, c);
        terms[j] = z.v;
        terms[h + j] = z.b;
    }
    return iv_mul(n, ref_sum_terms(terms, terms + h, h, &d->order), iv_constant(n, 1.0 / (double)h));
}

/* 1/sqrt(var + eps): no kernel's variance is below zero, so the sum is eps at least. */
static ref_iv one_over_deviation(ref_iv var, double eps, const ref_num *n)
{
    const ref_iv x = iv_add(n, var, iv_constant(n, eps));
    const double low = fmax(x.v - x.b, eps * (1.0 - 3.0 * n->u)), v = 1.0 / sqrt(x.v);
    const double b = low > 0.0 ? fmax(1.0 / sqrt(low) - v, v - 1.0 / sqrt(x.v + x.b)) : HUGE_VAL;
    return (ref_iv){v, b * (1.0 + 0x1p-40) + n->f * (v + b)};
}

/* What Welford's updates mean += (x - mean) / k round beyond a sum: the differences, 3 u (|x| + |mean|) / H each, where the mean
 * after k values is at most the sum of all magnitudes over k. */
static double of_updates(const double *x, int64_t h, const ref_num *n)
{
    double magnitude = 0.0;
    for (int64_t j = 0; j < h; j++)
        magnitude += fabs(x[j]);
    return 3.0 * n->u * (2.0 + log((double)h)) * magnitude / (double)h;
}

ref_row_statistics ref_bound_row_statistics(const double *x, double *terms, double eps, int64_t h,
                                            const ref_declared *d)
{
    const ref_num *n = &d->num;
    ref_row_statistics s = {{0.0, 0.0}, {0.0, 0.0}};
    ref_iv var = {0.0, 0.0};
    if (h > 0) {
        s.mean = iv_mul(n, ref_sum_dot(NULL, x, h, &d->order), iv_constant(n, 1.0 / (double)h));
        s.mean.b += of_updates(x, h, n);
        var = variance(x, s.mean, terms, h, d);
    }
    s.rstd = one_over_deviation(var, eps, n);
    return s;
}

/* (x - mean) rstd, or x rstd - mean rstd, whose three roundings are of the size of their terms. */
static ref_iv normalized(double x, const ref_row_statistics *s, const ref_num *n)
{
    ref_iv z = iv_mul(n, iv_sub(n, iv_exact(x), s->mean), s->rstd);
    z.b += 3.0 * n->u * (fabs(x) + fabs(s->mean.v) + s->mean.b) * (s->rstd.v + s->rstd.b) + 3.0 * n->eta;
    return z;
}

assay_status ref_bound_layernorm_fwd(ref_pair y, ref_pair mean, ref_pair rstd, const double *x,
                                     const double *gamma, const double *beta, double eps, int64_t t,
                                     int64_t h, const ref_declared *d)
{
    const ref_num *n = &d->num;
    double *terms = malloc((size_t)(2 * h + 1) * sizeof *terms);
    ASSAY_CHECK(terms, ASSAY_OUT_OF_MEMORY, "layernorm_fwd: rows of %lld", (long long)h);
    for (int64_t i = 0; i < t; i++) {
        const ref_row_statistics s = ref_bound_row_statistics(x + i * h, terms, eps, h, d);
        ref_pair_set(mean, i, s.mean, n);
        rstd.y[i] = s.rstd.v; /* rsqrt's own rounding is in its math error: nothing can be taken off */
        rstd.b[i] = s.rstd.b;
        for (int64_t j = 0; j < h; j++) {
            ref_iv z = iv_mul(n, iv_exact(gamma[j]), normalized(x[i * h + j], &s, n));
            if (beta)
                z = iv_add(n, z, iv_exact(beta[j]));
            ref_pair_set(y, i * h + j, z, n);
        }
    }
    free(terms);
    return ASSAY_OK;
}

/* mean(g xh): sums of g (x - mean), or sums of g x and of g apart and their difference (PyTorch's).  terms: scratch [6 H]. */
static ref_iv mean_dot(double *terms, const double *x, const ref_iv *g, const ref_row_statistics *s,
                       ref_iv sum, int64_t h, const ref_declared *d)
{
    const ref_num *n = &d->num;
    double *plain = terms + 2 * h;
    for (int64_t j = 0; j < h; j++) {
        const ref_iv z = iv_mul(n, g[j], iv_sub(n, iv_exact(x[j]), s->mean));
        const ref_iv p = iv_mul(n, g[j], iv_exact(x[j]));
        terms[j] = z.v;
        terms[h + j] = z.b;
        plain[j] = p.v;
        plain[h + j] = p.b;
    }
    ref_iv together = ref_sum_terms(terms, terms + h, h, &d->order);
    const ref_iv apart = iv_sub(n, ref_sum_terms(plain, plain + h, h, &d->order), iv_mul(n, s->mean, sum));
    together.b = fmax(together.b, apart.b + fabs(together.v - apart.v));
    return iv_mul(n, iv_mul(n, together, s->rstd), iv_constant(n, 1.0 / (double)h));
}

/* dx = rstd (g - mean(g) - xh mean(g xh)), also with rstd multiplied into every term. */
static void dx_row(ref_pair dx, int64_t at, double *terms, ref_iv *g, const double *dy, const double *x,
                   const double *gamma, const ref_row_statistics *s, int64_t h, const ref_declared *d)
{
    const ref_num *n = &d->num;
    for (int64_t j = 0; j < h; j++) {
        g[j] = iv_mul(n, iv_exact(dy[j]), iv_exact(gamma[j]));
        terms[j] = g[j].v;
        terms[h + j] = g[j].b;
    }
    const ref_iv sum = ref_sum_terms(terms, terms + h, h, &d->order);
    const ref_iv mean = iv_mul(n, sum, iv_constant(n, 1.0 / (double)h));
    const ref_iv dot = mean_dot(terms, x, g, s, sum, h, d);
    for (int64_t j = 0; j < h; j++) {
        const ref_iv third = iv_mul(n, normalized(x[j], s, n), dot);
        const ref_iv together = iv_mul(n, s->rstd, iv_sub(n, iv_sub(n, g[j], mean), third));
        const ref_iv apart =
            iv_sub(n, iv_sub(n, iv_mul(n, s->rstd, g[j]), iv_rounded(n, iv_mul(n, s->rstd, mean))),
                   iv_rounded(n, iv_rounded(n, iv_mul(n, s->rstd, third))));
        ref_pair_set(dx, at + j, (ref_iv){together.v, fmax(together.b, apart.b)}, n);
    }
}

/* sum over rows of dy xh (of dy: xh NULL), added to what was there */
static void column(ref_pair out, int64_t j, double *terms, const double *dy, const double *x,
                   const ref_row_statistics *s, const double *old, int64_t t, int64_t h,
                   const ref_declared *d)
{
    const ref_num *n = &d->num;
    for (int64_t i = 0; i < t; i++) {
        const ref_iv g = iv_exact(dy[i * h + j]);
        const ref_iv z = x ? iv_mul(n, g, normalized(x[i * h + j], &s[i], n)) : g;
        terms[i] = z.v;
        terms[t + i] = z.b;
    }
    const ref_iv sum = ref_sum_terms(terms, terms + t, t, &d->order);
    const ref_iv z = iv_add(n, sum, iv_exact(old[j]));
    out.y[j] = t > 0 ? z.v : old[j];
    out.b[j] = t > 0 ? z.b : 0.0;
    for (int64_t i = 0; i < t && d->rounding & ASSAY_ROUND_PARTIAL_SUMS; i++) /* stored behind every row */
        out.b[j] += expm1((double)(t + 1) * d->u_store) * (fabs(terms[i]) + terms[t + i]) + d->eta_store;
}

assay_status ref_bound_layernorm_bwd(ref_pair dx, ref_pair dgamma, ref_pair dbeta, const double *dy,
                                     const double *x, const double *gamma, const ref_row_statistics *s,
                                     const double *old_gamma, const double *old_beta, int64_t t, int64_t h,
                                     const ref_declared *d)
{
    double *terms = malloc((size_t)(4 * (t > h ? t : h) + 1) * sizeof *terms);
    ref_iv *g = malloc((size_t)(h + 1) * sizeof *g);
    assay_status st = ASSAY_OK;
    ASSAY_CHECK_GOTO(terms && g, ASSAY_OUT_OF_MEMORY, st, done, "layernorm_bwd: %lld rows of %lld",
                     (long long)t, (long long)h);
    for (int64_t i = 0; i < t && h > 0; i++)
        dx_row(dx, i * h, terms, g, dy + i * h, x + i * h, gamma, &s[i], h, d);
    for (int64_t j = 0; j < h; j++) {
        column(dgamma, j, terms, dy, x, s, old_gamma, t, h, d);
        if (old_beta)
            column(dbeta, j, terms, dy, NULL, s, old_beta, t, h, d);
    }
done:
    free(terms);
    free(g);
    return st;
}
