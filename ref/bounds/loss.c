/* Bounds of the vocabulary-parallel cross entropy and of sums in double. */
#include "ref/bounds/bounds.h"
#include "ref/fast/vector.h"

#include <stdlib.h>

enum { IGNORED = -100 };

/* Rescale steps that a term of an online sum over n may pass. */
static double rescales(int64_t n, const ref_declared *d)
{
    if (d->tile <= 0)
        return 0.0;
    const int64_t step = d->tile > d->order.lanes ? d->tile : d->order.lanes;
    return (double)((n + step - 1) / step) + ceil(log2((double)d->order.lanes));
}

/* terms [2 V]: exp(l - max) and its errors */
REF_WIDE static void exp_terms(double *terms, const double *row, double max, double steps, int64_t v,
                               const ref_num *num)
{
    const ref_num n = *num;
    double *p = terms, *ep = terms + v;
#pragma omp simd
    for (int64_t j = 0; j < v; j++) {
        const double shift = row[j] - max, e = ref_fast_exp(shift);
        const double delta = 2.0 * n.u * fabs(shift) + n.f + steps * (n.f + 2.0 * n.u);
        const double error = e * ref_fast_expm1(delta);
        p[j] = e;
        ep[j] = (e > 0.0 ? error : 0.0) + n.tiny;
    }
}

REF_WIDE static double largest_logit(const double *row, int64_t v)
{
    return ref_vec_max(row, v);
}

/* Row i of stats [3,T]: max, sum of exp, target logit; terms: scratch [2 V]. */
static void stats_row(ref_pair stats, int64_t i, double *terms, const double *row, int64_t target, int64_t t,
                      int64_t v, const ref_declared *d)
{
    const double max = largest_logit(row, v);
    ref_iv sum = {0.0, 0.0};
    if (isfinite(max)) {
        exp_terms(terms, row, max, rescales(v, d), v, &d->num);
        sum = ref_sum_terms(terms, terms + v, v, &d->order);
    } else if (max != -HUGE_VAL) {
        sum.v = (double)NAN; /* of infinity - infinity, or of what is not a number */
    }
    stats.y[i] = max;
    stats.y[t + i] = sum.v;
    stats.y[2 * t + i] = target >= 0 && target < v ? row[target] : 0.0;
    stats.b[i] = stats.b[2 * t + i] = 0.0;
    stats.b[t + i] = sum.b;
}

assay_status ref_bound_cross_entropy_stats(ref_pair stats, const double *logits, const int64_t *targets,
                                           int64_t vocab_start, int64_t t, int64_t v, const ref_declared *d)
{
    bool failed = false;
#pragma omp parallel if (ref_vec_parallel(t * v * 16)) reduction(|| : failed)
    {
        double *terms = malloc((size_t)(2 * v + 1) * sizeof *terms);
        failed = terms == NULL;
#pragma omp for schedule(static)
        for (int64_t i = 0; i < t; i++)
            if (terms)
                stats_row(stats, i, terms, logits + i * v,
                          targets[i] == IGNORED ? -1 : targets[i] - vocab_start, t, v, d);
        free(terms);
    }
    ASSAY_CHECK(!failed, ASSAY_OUT_OF_MEMORY, "cross_entropy_stats: rows of %lld", (long long)v);
    return ASSAY_OK;
}

void ref_bound_cross_entropy_loss(ref_pair lse, ref_pair loss, const double *stats, const int64_t *targets,
                                  int n_pieces, int64_t t, const ref_declared *d)
{
    const ref_num *n = &d->num;
    ref_cross_entropy_loss(lse.y, loss.y, stats, targets, n_pieces, t);
    for (int64_t i = 0; i < t; i++) {
        double max = -HUGE_VAL, sum = 0.0, own = 0.0;
        double target = 0.0, target_size = 0.0;
        int target_parts = 0;
        for (int r = 0; r < n_pieces; r++)
            max = fmax(max, stats[r * 3 * t + i]);
        for (int r = 0; r < n_pieces; r++) {
            const double *piece = stats + r * 3 * t;
            const double shift = piece[i] - max;
            target += piece[2 * t + i];
            target_size += fabs(piece[2 * t + i]);
            target_parts += piece[2 * t + i] != 0.0;
            if (!isfinite(shift) || piece[t + i] == 0.0)
                continue; /* an empty piece adds an exact zero */
            const ref_iv e =
                shift == 0.0 ? iv_exact(1.0) : iv_exp(n, (ref_iv){shift, 2.0 * n->u * fabs(shift)});
            const ref_iv z = iv_mul(n, iv_exact(piece[t + i]), e);
            sum += z.v;
            own += z.b;
        }
        own += expm1((double)(n_pieces - 1) * n->u) * (sum + own);
        /* One piece of the vocabulary holds the target and the others add exact zeros; numbers of several pieces (no
         * split makes them) are rounded where they meet. */
        const double target_error =
            target_parts > 1 ? expm1((double)(target_parts - 1) * n->u) * target_size : 0.0;
        /* log and the sum of max and log; base-2 logarithms are multiplied with a rounded ln 2 */
        ref_iv z = iv_log(n, (ref_iv){sum, own});
        z = iv_rounded(n, z);
        const ref_iv total = iv_add(n, iv_exact(max), z);
        ref_pair_set(lse, i, (ref_iv){lse.y[i], total.b}, n);
        if (targets[i] == IGNORED)
            loss.b[i] = 0.0;
        else
            ref_pair_set(loss, i, (ref_iv){loss.y[i], iv_sub(n, total, (ref_iv){target, target_error}).b}, n);
    }
}

/* One row of dlogits [V]: (exp(l - lse) - [target]) c.  SAME is a constant in the calls, so that the loop runs in
 * vectors. */
static inline __attribute__((always_inline)) void bwd_body(ref_pair dlogits, int64_t at, const double *logits,
                                                           double lse, ref_iv c, int64_t v, ref_num num,
                                                           const bool SAME)
{
    const ref_num *n = &num;
    dlogits.same = SAME;
#pragma omp simd
    for (int64_t j = 0; j < v; j++) {
        const double shift = logits[j] - lse;
        const ref_iv p = iv_exp(n, (ref_iv){shift, 2.0 * n->u * fabs(shift)});
        ref_pair_set(dlogits, at + j, iv_mul(n, p, c), n);
    }
}

REF_WIDE static void bwd_row(ref_pair dlogits, int64_t at, const double *logits, double lse, ref_iv c,
                             int64_t v, const ref_num *n)
{
    if (dlogits.same)
        bwd_body(dlogits, at, logits, lse, c, v, *n, true);
    else
        bwd_body(dlogits, at, logits, lse, c, v, *n, false);
}

void ref_bound_cross_entropy_bwd(ref_pair dlogits, const double *logits, const double *lse,
                                 const int64_t *targets, int64_t vocab_start, double scale, int64_t t,
                                 int64_t v, const ref_declared *d)
{
    const ref_num *n = &d->num;
    const ref_iv c = iv_constant(n, scale);
#pragma omp parallel for schedule(static) if (ref_vec_parallel(t * v * 16))
    for (int64_t i = 0; i < t; i++) {
        const int64_t at = i * v, target = targets[i] - vocab_start;
        if (targets[i] == IGNORED) {
            ref_vec_zero(dlogits.y + at, v);
            ref_vec_zero(dlogits.b + at, v);
            continue;
        }
        bwd_row(dlogits, at, logits + at, lse[i], c, v, n);
        if (target >= 0 && target < v) {
            const double shift = logits[at + target] - lse[i];
            const ref_iv p = iv_exp(n, (ref_iv){shift, 2.0 * n->u * fabs(shift)});
            ref_pair_set(dlogits, at + target, iv_mul(n, iv_sub(n, p, iv_exact(1.0)), c), n);
        }
    }
}

void ref_bound_sum_double(ref_pair y, const double *x, int64_t n, bool square, const ref_declared *d)
{
    ref_order o = d->order;
    o.u = 0x1p-52; /* twice 2^-53: the reference's compensated sum has an error of its own */
    o.eta = 0x1p-1074;
    o.align = ldexp(o.align / d->num.u, 0) * o.u;
    const ref_iv z = ref_sum_dot(square ? x : NULL, x, n, &o);
    y.y[0] = square ? ref_sumsq(x, n) : ref_sum(x, n);
    y.b[0] = z.b;
}
