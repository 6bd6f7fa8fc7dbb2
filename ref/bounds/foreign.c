/* Norm, loss and experts of other frameworks.  Attention: ref/bounds/foreign_attention.c. */
#include "ref/bounds/foreign.h"

#include <stdlib.h>

enum { IGNORED = -100 };

/* --- rmsnorm ------------------------------------------------------------------------------------------------ */
static ref_iv row_rstd(const double *x, double eps, int64_t h, const ref_declared *d)
{
    const ref_num *n = &d->num;
    const ref_iv mean = iv_mul(n, ref_sum_dot(x, x, h, &d->order), iv_constant(n, 1.0 / (double)h));
    return iv_rsqrt(n, iv_add(n, mean, iv_constant(n, eps)));
}

/* One row: dx = rstd (g - xh mean(g xh)), g stored where the module stores before gamma. */
static void norm_row(ref_pair dx, int64_t at, double *terms, const double *dy, const double *x,
                     const double *gamma, ref_iv rstd, int64_t h, const ref_declared *d)
{
    const ref_num *n = &d->num;
    for (int64_t j = 0; j < h; j++) {
        const ref_iv g =
            ref_stored(d, ASSAY_ROUND_BEFORE_GAMMA, iv_mul(n, iv_exact(dy[j]), iv_exact(gamma[j])));
        const ref_iv z = iv_mul(n, g, iv_mul(n, iv_exact(x[j]), rstd));
        terms[j] = z.v;
        terms[h + j] = z.b;
    }
    const ref_iv mean =
        iv_mul(n, ref_sum_terms(terms, terms + h, h, &d->order), iv_constant(n, 1.0 / (double)h));
    for (int64_t j = 0; j < h; j++) {
        const ref_iv g =
            ref_stored(d, ASSAY_ROUND_BEFORE_GAMMA, iv_mul(n, iv_exact(dy[j]), iv_exact(gamma[j])));
        const ref_iv xh = iv_mul(n, iv_exact(x[j]), rstd);
        /* rstd multiplies the difference, or each of its terms, as a cube: one more rounding of each */
        const ref_iv first = iv_mul(n, rstd, g), second = iv_rounded(n, iv_mul(n, rstd, iv_mul(n, xh, mean)));
        ref_pair_set(dx, at + j, iv_sub(n, first, second), n);
    }
}

static void norm_gamma(ref_pair dgamma, int64_t j, double *terms, const double *dy, const double *x,
                       const ref_iv *rstd, const double *old, int64_t t, int64_t h, const ref_declared *d)
{
    const ref_num *n = &d->num;
    for (int64_t i = 0; i < t; i++) {
        const ref_iv xh = ref_stored(d, ASSAY_ROUND_BEFORE_GAMMA, iv_mul(n, iv_exact(x[i * h + j]), rstd[i]));
        const ref_iv z = ref_stored(d, ASSAY_ROUND_BEFORE_GAMMA, iv_mul(n, iv_exact(dy[i * h + j]), xh));
        terms[i] = z.v;
        terms[t + i] = z.b;
    }
    const ref_iv sum = ref_sum_terms(terms, terms + t, t, &d->order);
    const ref_iv z = iv_add(n, sum, iv_exact(old[j]));
    dgamma.y[j] = z.v;
    dgamma.b[j] = t > 0 ? z.b : 0.0;
}

assay_status ref_bound_rmsnorm_bwd_alone(ref_pair dx, ref_pair dgamma, const double *dy, const double *x,
                                         const double *gamma, double eps, const double *old, int64_t t,
                                         int64_t h, const ref_declared *d)
{
    double *terms = malloc((size_t)(2 * (t > h ? t : h) + 1) * sizeof *terms);
    ref_iv *rstd = malloc((size_t)(t + 1) * sizeof *rstd);
    assay_status st = ASSAY_OK;
    ASSAY_CHECK_GOTO(terms && rstd, ASSAY_OUT_OF_MEMORY, st, done, "rmsnorm_bwd: %lld rows of %lld",
                     (long long)t, (long long)h);
    for (int64_t i = 0; i < t && h > 0; i++) {
        rstd[i] = row_rstd(x + i * h, eps, h, d);
        norm_row(dx, i * h, terms, dy + i * h, x + i * h, gamma, rstd[i], h, d);
    }
    for (int64_t j = 0; j < (dgamma.y ? h : 0); j++)
        norm_gamma(dgamma, j, terms, dy, x, rstd, old, t, h, d);
done:
    free(terms);
    free(rstd);
    return st;
}

/* --- cross entropy ------------------------------------------------------------------------------------------ */

/* log of the sum of exp of a row; terms: scratch [2 V] */
static ref_iv row_lse(double *terms, const double *row, int64_t v, const ref_declared *d)
{
    const ref_num *n = &d->num;
    double max = -HUGE_VAL;
    for (int64_t j = 0; j < v; j++)
        max = fmax(max, row[j]);
    for (int64_t j = 0; j < v; j++) {
        const double shift = row[j] - max;
        const ref_iv e = iv_exp(n, (ref_iv){shift, 2.0 * n->u * fabs(shift)});
        terms[j] = e.v;
        terms[v + j] = e.b;
    }
    const ref_iv z = iv_rounded(n, iv_log(n, ref_sum_terms(terms, terms + v, v, &d->order)));
    return iv_add(n, iv_exact(max), z);
}

/* A log-softmax kernel makes l - max - log(sum): one more rounding, of the shifted logit. */
static ref_iv log_prob(double l, ref_iv lse, const ref_num *n)
{
    return iv_rounded(n, iv_sub(n, iv_exact(l), lse));
}

assay_status ref_bound_cross_entropy_bwd_alone(ref_pair dlogits, const double *logits, const int64_t *targets,
                                               double scale, int64_t t, int64_t v, const ref_declared *d)
{
    const ref_num *n = &d->num;
    const ref_iv c = iv_rounded(n, iv_constant(n, scale)); /* a product or a quotient */
    double *terms = malloc((size_t)(2 * v + 1) * sizeof *terms);
    ASSAY_CHECK(terms, ASSAY_OUT_OF_MEMORY, "cross_entropy_bwd: rows of %lld", (long long)v);
    for (int64_t i = 0; i < t; i++) {
        const double *row = logits + i * v;
        const ref_iv lse = row_lse(terms, row, v, d);
        for (int64_t j = 0; j < v; j++) {
            ref_iv z = {0.0, 0.0};
            if (targets[i] != IGNORED) {
                const ref_iv p = iv_exp(n, log_prob(row[j], lse, n)), pc = iv_mul(n, p, c);
                /* (p - 1) c, or c subtracted from p c */
                const ref_iv apart = iv_sub(n, pc, c), together = iv_mul(n, iv_sub(n, p, iv_exact(1.0)), c);
                z = j != targets[i] ? pc : (ref_iv){together.v, fmax(apart.b, together.b)};
            }
            dlogits.y[i * v + j] = z.v;
            dlogits.b[i * v + j] = z.b;
        }
    }
    free(terms);
    return ASSAY_OK;
}

assay_status ref_bound_cross_entropy_fwd(ref_pair loss, const double *logits, const int64_t *targets,
                                         bool reduced, double divisor, int64_t t, int64_t v,
                                         const ref_declared *d)
{
    const ref_num *n = &d->num;
    double *terms = malloc((size_t)(2 * (v > t ? v : t) + 2 * t + 1) * sizeof *terms);
    double *each = terms ? terms + 2 * (v > t ? v : t) : NULL;
    ASSAY_CHECK(terms, ASSAY_OUT_OF_MEMORY, "cross_entropy_fwd: rows of %lld", (long long)v);
    for (int64_t i = 0; i < t; i++) {
        ref_iv z = {0.0, 0.0};
        if (targets[i] != IGNORED)
            z = iv_neg(log_prob(logits[i * v + targets[i]], row_lse(terms, logits + i * v, v, d), n));
        each[i] = z.v;
        each[t + i] = z.b;
        if (!reduced) {
            loss.y[i] = z.v;
            loss.b[i] = z.b;
        }
    }
    if (reduced) {
        const ref_iv z = iv_div(n, ref_sum_terms(each, each + t, t, &d->order), iv_constant(n, divisor));
        loss.y[0] = z.v;
        loss.b[0] = z.b;
    }
    free(terms);
    return ASSAY_OK;
}

/* --- experts ------------------------------------------------------------------------------------------------ */
assay_status ref_bound_weighted_combine_fwd(ref_pair y, const double *x, const double *probs,
                                            const int64_t *token_row, int64_t t, int64_t k, int64_t h,
                                            const ref_declared *d)
{
    const ref_num *n = &d->num;
    double *terms = malloc((size_t)(2 * k + 1) * sizeof *terms);
    ASSAY_CHECK(terms, ASSAY_OUT_OF_MEMORY, "weighted_combine_fwd: %lld choices", (long long)k);
    for (int64_t i = 0; i < t * h; i++) {
        double size = 0.0;
        for (int64_t a = 0; a < k; a++) {
            const int64_t row = token_row[i / h * k + a];
            const ref_iv z =
                row < 0 ? (ref_iv){0.0, 0.0}
                        : ref_stored(d, ASSAY_ROUND_PRODUCTS,
                                     iv_mul(n, iv_exact(x[row * h + i % h]), iv_exact(probs[i / h * k + a])));
            terms[a] = z.v;
            terms[k + a] = z.b;
            size += fabs(z.v) + z.b;
        }
        const ref_iv sum = ref_sum_terms(terms, terms + k, k, &d->order);
        y.y[i] = sum.v;
        y.b[i] = sum.b;
        if (d->rounding & ASSAY_ROUND_PARTIAL_SUMS)
            y.b[i] += expm1((double)k * d->u_store) * size + (double)k * d->eta_store;
    }
    free(terms);
    return ASSAY_OK;
}

assay_status ref_bound_weighted_combine_bwd(ref_pair dx, ref_pair dprobs, const double *dy, const double *x,
                                            const double *probs, const int64_t *token_row, int64_t t,
                                            int64_t k, int64_t h, const ref_declared *d)
{
    const ref_num *n = &d->num;
    double *terms = malloc((size_t)(2 * h + 1) * sizeof *terms);
    ASSAY_CHECK(terms, ASSAY_OUT_OF_MEMORY, "weighted_combine_bwd: rows of %lld", (long long)h);
    for (int64_t i = 0; i < t * k; i++) {
        const double *g = dy + i / k * h;
        const int64_t row = token_row[i];
        dprobs.y[i] = dprobs.b[i] = 0.0;
        if (row < 0)
            continue;
        for (int64_t j = 0; j < h; j++) {
            const ref_iv p =
                ref_stored(d, ASSAY_ROUND_PRODUCTS, iv_mul(n, iv_exact(g[j]), iv_exact(x[row * h + j])));
            terms[j] = p.v;
            terms[h + j] = p.b;
            ref_pair_set(dx, row * h + j, iv_mul(n, iv_exact(g[j]), iv_exact(probs[i])), n);
        }
        const ref_iv sum = ref_sum_terms(terms, terms + h, h, &d->order);
        dprobs.y[i] = sum.v;
        dprobs.b[i] = sum.b;
    }
    free(terms);
    return ASSAY_OK;
}
