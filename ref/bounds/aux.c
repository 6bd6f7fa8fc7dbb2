/* Bounds of the auxiliary losses of the router. */
#include "ref/bounds/bounds.h"
#include "ref/ops/vector.h"

#include <stdlib.h>

static const double SIGMOID_SUM_EPS = 1e-20;

/* e [E] = exp(l - max); returns log sum exp with its bound, and turns e into the softmax. */
static ref_iv softmax_row(ref_iv *e, const double *l, int64_t n, const ref_num *num)
{
    double max = -HUGE_VAL;
    for (int64_t j = 0; j < n; j++)
        max = l[j] > max || isnan(l[j]) ? l[j] : max;
    for (int64_t j = 0; j < n; j++)
        e[j] = iv_exp(num, (ref_iv){l[j] - max, 2.0 * num->u * fabs(l[j] - max)});
    ref_iv sum = ref_sum_few(num, e, n);
    ref_iv lse = iv_add(num, iv_exact(max), iv_rounded(num, iv_log(num, sum)));
    sum.b += num->u * sum.v; /* a rounded reciprocal */
    for (int64_t j = 0; j < n; j++)
        e[j] = iv_div(num, e[j], sum);
    return lse;
}

/* a [E] = aux scores; sigmoid: *sum divides */
static void aux_row(ref_iv *a, ref_iv *sum, const double *l, const ref_router_desc *desc, const ref_num *n)
{
    *sum = iv_exact(1.0);
    if (desc->mode != REF_ROUTER_SIGMOID) {
        (void)softmax_row(a, l, desc->experts, n);
        return;
    }
    for (int64_t j = 0; j < desc->experts; j++)
        a[j] = iv_sigmoid(n, l[j]);
    *sum = iv_add(n, ref_sum_few(n, a, desc->experts), iv_constant(n, SIGMOID_SUM_EPS));
    sum->b += n->u * sum->v;
    for (int64_t j = 0; j < desc->experts; j++)
        a[j] = iv_div(n, a[j], *sum);
}

void ref_bound_router_aux_scores(ref_pair aux_scores, const double *logits, const ref_router_desc *desc,
                                 const ref_declared *d)
{
    ref_iv a[ASSAY_MAX_EXPERTS], sum;
    for (int64_t i = 0; i < desc->tokens; i++) {
        aux_row(a, &sum, logits + i * desc->experts, desc, &d->num);
        for (int64_t j = 0; j < desc->experts; j++) {
            aux_scores.y[i * desc->experts + j] = a[j].v;
            aux_scores.b[i * desc->experts + j] = a[j].b;
        }
    }
}

assay_status ref_bound_router_aux_sums(ref_pair score_sums, ref_pair z_sum, ref_pair aux_scores,
                                       const double *logits, const ref_router_desc *desc,
                                       const ref_declared *d)
{
    const int64_t t = desc->tokens, e = desc->experts;
    double *terms = malloc((size_t)(2 * t + 1) * sizeof *terms);
    ref_iv row[ASSAY_MAX_EXPERTS];
    ASSAY_CHECK(terms, ASSAY_OUT_OF_MEMORY, "router_aux_fwd: %lld tokens", (long long)t);
    for (int64_t j = 0; j < e; j++) {
        for (int64_t i = 0; i < t; i++) {
            terms[i] = aux_scores.y[i * e + j];
            terms[t + i] = aux_scores.b[i * e + j];
        }
        const ref_iv sum = ref_sum_terms(terms, terms + t, t, &d->order);
        score_sums.y[j] = sum.v;
        score_sums.b[j] = sum.b;
    }
    for (int64_t i = 0; i < t; i++) {
        const ref_iv lse = softmax_row(row, logits + i * e, e, &d->num), z = iv_mul(&d->num, lse, lse);
        terms[i] = z.v;
        terms[t + i] = z.b;
    }
    const ref_iv sum = ref_sum_terms(terms, terms + t, t, &d->order);
    z_sum.y[0] = sum.v;
    z_sum.b[0] = sum.b;
    free(terms);
    return ASSAY_OK;
}

assay_status ref_bound_router_seq_aux_sums(ref_pair score_sums, ref_pair aux_scores, int64_t rows,
                                           const ref_router_desc *desc, const ref_declared *d)
{
    const int64_t e = desc->experts, t = desc->tokens / rows;
    double *terms = calloc((size_t)(2 * t + 1), sizeof *terms);
    ASSAY_CHECK(terms, ASSAY_OUT_OF_MEMORY, "router_seq_aux_fwd: %lld tokens", (long long)desc->tokens);
    for (int64_t j = 0; j < rows * e; j++) {
        for (int64_t i = 0; i < t; i++) {
            const int64_t at = (i * rows + j / e) * e + j % e;
            terms[i] = aux_scores.y[at];
            terms[t + i] = aux_scores.b ? aux_scores.b[at] : 0.0;
        }
        const ref_iv sum = ref_sum_terms(terms, terms + t, t, &d->order);
        score_sums.y[j] = sum.v;
        score_sums.b[j] = sum.b;
    }
    free(terms);
    return ASSAY_OK;
}

/* aux_coeff E / (K tokens^2 divisor) and z_coeff / tokens, in the accumulate format: a few roundings each */
static ref_iv weight(double exact, const ref_num *n)
{
    return (ref_iv){exact, 6.0 * n->u * fabs(exact)};
}

static double aux_factor(const ref_balance *b, const ref_router_desc *desc)
{
    if (b->tokens == 0 || desc->topk == 0)
        return 0.0;
    return b->aux_coeff * (double)desc->experts /
           ((double)desc->topk * (double)b->tokens * (double)b->tokens * (double)b->divisor);
}

assay_status ref_bound_router_aux_loss(ref_pair losses, const double *score_sums, const int64_t *counts,
                                       const double *z_sum, const ref_balance *b, const ref_router_desc *desc,
                                       const ref_declared *d)
{
    const ref_num *n = &d->num;
    const int64_t count = b->rows * desc->experts;
    ref_iv *t = malloc((size_t)(count + 1) * sizeof *t);
    ASSAY_CHECK(t, ASSAY_OUT_OF_MEMORY, "router_aux_loss: %lld counts", (long long)count);
    for (int64_t j = 0; j < count; j++)
        t[j] = iv_mul(n, iv_exact(score_sums[j]), iv_constant(n, (double)counts[j]));
    const ref_iv aux = iv_mul(n, ref_sum_few(n, t, count), weight(aux_factor(b, desc), n));
    const double z_factor = b->tokens == 0 || !z_sum ? 0.0 : b->z_coeff / (double)b->tokens;
    const ref_iv z = iv_mul(n, iv_exact(z_sum ? z_sum[0] : 0.0), weight(z_factor, n));
    losses.y[0] = aux.v;
    losses.b[0] = aux.b;
    losses.y[1] = z.v;
    losses.b[1] = z.b;
    free(t);
    return ASSAY_OK;
}

void ref_bound_router_aux_bwd(ref_pair dlogits, const double *logits, const int64_t *counts, ref_pair old,
                              const ref_balance *b, double loss_scale, const ref_router_desc *desc,
                              const ref_declared *d)
{
    const ref_num *n = &d->num;
    const int64_t e = desc->experts;
    const ref_iv aux_weight = weight(aux_factor(b, desc) * loss_scale, n);
    const ref_iv z_weight =
        weight(b->tokens == 0 ? 0.0 : b->z_coeff * 2.0 / (double)b->tokens * loss_scale, n);
    ref_iv a[ASSAY_MAX_EXPERTS], p[ASSAY_MAX_EXPERTS], t[ASSAY_MAX_EXPERTS], sum;
    for (int64_t i = 0; i < desc->tokens; i++) {
        const ref_iv lse = softmax_row(p, logits + i * e, e, n);
        const int64_t *row = counts + i % b->rows * e;
        aux_row(a, &sum, logits + i * e, desc, n);
        for (int64_t j = 0; j < e; j++)
            t[j] = iv_mul(n, a[j], iv_constant(n, (double)row[j]));
        const ref_iv dot = ref_sum_few(n, t, e);
        for (int64_t j = 0; j < e; j++) {
            const ref_iv count = iv_constant(n, (double)row[j]);
            ref_iv da = iv_mul(n, a[j], iv_sub(n, count, dot));
            /* also a n - a dot */
            da.b += n->u * a[j].v * (fabs(count.v) + fabs(dot.v));
            if (desc->mode == REF_ROUTER_SIGMOID)
                da = iv_mul(n, da, iv_sub(n, iv_exact(1.0), iv_mul(n, a[j], sum)));
            const ref_iv aux = iv_mul(n, aux_weight, da), z = iv_mul(n, z_weight, iv_mul(n, lse, p[j]));
            ref_iv total = iv_add(n, aux, z);
            /* the two parts may be added to the target one after the other */
            total.b += n->u * (fabs(aux.v) + fabs(z.v));
            const ref_iv before = {old.y[i * e + j], old.b ? old.b[i * e + j] : 0.0};
            total = iv_add(n, before, total);
            total.b += n->u * (fabs(before.v) + before.b + fabs(aux.v));
            dlogits.y[i * e + j] = total.v;
            dlogits.b[i * e + j] = total.b;
        }
    }
}

void ref_bound_expert_bias_update(ref_pair bias, const double *old, const int64_t *counts, double rate,
                                  int64_t e, const ref_declared *d)
{
    ref_vec_copy(bias.y, old, e);
    ref_expert_bias_update(bias.y, counts, rate, e);
    for (int64_t i = 0; i < e; i++) {
        const ref_iv step = iv_constant(&d->num, bias.y[i] == old[i] ? 0.0 : rate);
        ref_pair_set(bias, i, iv_rounded(&d->num, (ref_iv){bias.y[i], step.b}), &d->num);
    }
}
