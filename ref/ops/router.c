/* Top-k router: scores, group-limited choice, combine weights, their gradient, and the two auxiliary losses
 * (load balancing of Switch Transformer as in Megatron-LM, z-loss of ST-MoE). */
#include "ref/ops.h"
#include "ref/ops/vector.h"

#include <math.h>

/* Megatron-LM's guard against a zero sum of sigmoid scores. */
static const double SIGMOID_SUM_EPS = 1e-20;

static double sigmoid(double x)
{
    if (x >= 0.0)
        return 1.0 / (1.0 + exp(-x));
    const double e = exp(x);
    return e / (1.0 + e);
}

/* y [n] = softmax of x [n]; returns log sum exp. */
static double softmax(double *y, const double *x, int64_t n)
{
    double max = -HUGE_VAL, sum = 0.0;
    for (int64_t i = 0; i < n; i++)
        if (x[i] > max || isnan(x[i]))
            max = x[i];
    for (int64_t i = 0; i < n; i++) {
        y[i] = exp(x[i] - max);
        sum += y[i];
    }
    for (int64_t i = 0; i < n; i++)
        y[i] /= sum;
    return max + log(sum);
}

static bool normalised(const ref_router_desc *d)
{
    if (d->mode == REF_ROUTER_SIGMOID)
        return d->norm_topk_prob && d->topk > 1;
    return d->mode == REF_ROUTER_SOFTMAX_TOPK && d->norm_topk_prob;
}

void ref_router_scores(double *scores, double *keys, const double *logits, const double *expert_bias,
                       const ref_router_desc *d)
{
    const int64_t e = d->experts;
    for (int64_t i = 0; i < d->tokens; i++) {
        double *s = scores + i * e, *key = keys + i * e;
        const double *l = logits + i * e;
        switch (d->mode) {
        case REF_ROUTER_SOFTMAX_TOPK:
            (void)softmax(s, l, e);
            break;
        case REF_ROUTER_TOPK_SOFTMAX:
            ref_vec_copy(s, l, e);
            break;
        case REF_ROUTER_SIGMOID:
            for (int64_t j = 0; j < e; j++)
                s[j] = sigmoid(l[j]);
            break;
        }
        for (int64_t j = 0; j < e; j++)
            key[j] = s[j] + (expert_bias && d->mode == REF_ROUTER_SIGMOID ? expert_bias[j] : 0.0);
    }
}

/* Whether a is chosen before b: a larger key, or the same key and a lower index.  NaN counts as -inf. */
static bool before(double key_a, int64_t a, double key_b, int64_t b)
{
    const double x = isnan(key_a) ? -HUGE_VAL : key_a, y = isnan(key_b) ? -HUGE_VAL : key_b;
    return x > y || (x == y && a < b);
}

/* How many of key [n] are chosen before i. */
static int64_t rank_of(const double *key, int64_t n, int64_t i)
{
    int64_t rank = 0;
    for (int64_t j = 0; j < n; j++)
        rank += j != i && before(key[j], j, key[i], i);
    return rank;
}

static double group_score(const double *key, int64_t size, int64_t best)
{
    double sum = 0.0;
    for (int64_t r = 0; r < best; r++)
        for (int64_t i = 0; i < size; i++)
            if (rank_of(key, size, i) == r)
                sum += key[i];
    return sum;
}

/* Of every group whether it is among the group_topk best; kept [num_groups]. */
static void keep_groups(bool *kept, const double *key, const ref_router_desc *d)
{
    const int64_t size = d->experts / d->num_groups, best = d->topk / d->group_topk;
    double score[ASSAY_MAX_EXPERTS];
    for (int64_t g = 0; g < d->num_groups; g++)
        score[g] = group_score(key + g * size, size, best);
    for (int64_t g = 0; g < d->num_groups; g++)
        kept[g] = rank_of(score, d->num_groups, g) < d->group_topk;
}

static void check_groups(const ref_router_desc *d)
{
    assert(d->topk >= 0 && d->topk <= d->experts);
    if (d->num_groups == 0)
        return;
    assert(d->num_groups > 0 && d->experts % d->num_groups == 0);
    assert(d->group_topk > 0 && d->group_topk <= d->num_groups && d->topk >= d->group_topk);
    assert(d->topk <= d->group_topk * (d->experts / d->num_groups));
}

static void topk_row(int64_t *indices, const double *key, const ref_router_desc *d)
{
    const int64_t size = d->num_groups ? d->experts / d->num_groups : d->experts;
    bool group[ASSAY_MAX_EXPERTS] = {true}, kept[ASSAY_MAX_EXPERTS]; /* or one group of all experts */
    int64_t n = 0;
    if (d->num_groups)
        keep_groups(group, key, d);
    for (int64_t i = 0; i < d->experts; i++)
        kept[i] = group[i / size];
    for (int64_t i = 0; i < d->experts; i++) {
        int64_t rank = 0;
        for (int64_t j = 0; kept[i] && rank < d->topk && j < d->experts; j++)
            rank += kept[j] && j != i && before(key[j], j, key[i], i);
        if (kept[i] && rank < d->topk)
            indices[n++] = i;
    }
    assert(n == d->topk);
}

void ref_router_topk(int64_t *indices, const double *keys, const ref_router_desc *d)
{
    check_groups(d);
    assert(d->experts <= ASSAY_MAX_EXPERTS);
#pragma omp parallel for schedule(static) if (ref_vec_parallel(d->tokens * d->experts * d->experts))
    for (int64_t i = 0; i < d->tokens; i++)
        topk_row(indices + i * d->topk, keys + i * d->experts, d);
}

void ref_router_probs(double *probs, const double *scores, const double *logits, const int64_t *indices,
                      const ref_router_desc *d)
{
    const int64_t e = d->experts, k = d->topk;
    for (int64_t i = 0; i < d->tokens; i++) {
        const double *from = (d->mode == REF_ROUTER_TOPK_SOFTMAX ? logits : scores) + i * e;
        double *p = probs + i * k;
        double sum = d->mode == REF_ROUTER_SIGMOID ? SIGMOID_SUM_EPS : 0.0;
        for (int64_t j = 0; j < k; j++) {
            assert(indices[i * k + j] >= 0 && indices[i * k + j] < e);
            p[j] = from[indices[i * k + j]];
            sum += p[j];
        }
        if (d->mode == REF_ROUTER_TOPK_SOFTMAX)
            (void)softmax(p, p, k);
        for (int64_t j = 0; j < k; j++)
            p[j] = (normalised(d) ? p[j] / sum : p[j]) * d->scaling_factor;
    }
}

/* a - b, or what their sizes add up to. */
static double difference(double a, double b, const ref_router_desc *d)
{
    return d->magnitudes ? fabs(a) + b : a - b;
}

static double size_of(double x, const ref_router_desc *d)
{
    return d->magnitudes ? fabs(x) : x;
}

/* ds [K] from dprobs [K] of one token, chosen scores s [K]; out may not alias. */
static void probs_bwd(double *ds, const double *dprobs, const double *s, const ref_router_desc *d)
{
    double sum = d->mode == REF_ROUTER_SIGMOID ? SIGMOID_SUM_EPS : 0.0, dot = 0.0;
    for (int64_t j = 0; j < d->topk; j++)
        sum += s[j];
    for (int64_t j = 0; j < d->topk; j++)
        dot += size_of(dprobs[j], d) * s[j] / sum;
    for (int64_t j = 0; j < d->topk; j++)
        ds[j] =
            d->scaling_factor * (normalised(d) ? difference(dprobs[j], dot, d) / sum : size_of(dprobs[j], d));
}

void ref_router_bwd(double *dlogits, const double *dprobs, const int64_t *indices, const double *scores,
                    const double *logits, const ref_router_desc *d)
{
    const int64_t e = d->experts, k = d->topk;
    assert(e <= ASSAY_MAX_EXPERTS && k <= e);
    double chosen[ASSAY_MAX_EXPERTS], ds[ASSAY_MAX_EXPERTS];
    ref_vec_zero(dlogits, d->tokens * e);
    for (int64_t i = 0; i < d->tokens; i++) {
        const int64_t *index = indices + i * k;
        const double *s = scores + i * e;
        double *dl = dlogits + i * e, dot = 0.0;
        for (int64_t j = 0; j < k; j++) {
            assert(index[j] >= 0 && index[j] < e);
            chosen[j] = (d->mode == REF_ROUTER_TOPK_SOFTMAX ? logits : scores)[i * e + index[j]];
        }
        if (d->mode == REF_ROUTER_TOPK_SOFTMAX) {
            (void)softmax(chosen, chosen, k);
            for (int64_t j = 0; j < k; j++)
                dot += chosen[j] * size_of(dprobs[i * k + j], d);
            for (int64_t j = 0; j < k; j++)
                dl[index[j]] = d->scaling_factor * chosen[j] * difference(dprobs[i * k + j], dot, d);
            continue;
        }
        probs_bwd(ds, dprobs + i * k, chosen, d);
        for (int64_t j = 0; j < k; j++) {
            dl[index[j]] = ds[j];
            dot += ds[j] * chosen[j];
        }
        for (int64_t j = 0; j < e; j++)
            dl[j] = d->mode == REF_ROUTER_SIGMOID ? dl[j] * s[j] * (1.0 - s[j])
                                                  : s[j] * difference(dl[j], dot, d);
    }
}

/* One row of aux scores; returns the sum that divided the sigmoids (1 for softmax). */
static double aux_row(double *a, const double *logits, const ref_router_desc *d)
{
    if (d->mode != REF_ROUTER_SIGMOID) {
        (void)softmax(a, logits, d->experts);
        return 1.0;
    }
    double sum = 0.0;
    for (int64_t j = 0; j < d->experts; j++) {
        a[j] = sigmoid(logits[j]);
        sum += a[j];
    }
    sum += SIGMOID_SUM_EPS;
    for (int64_t j = 0; j < d->experts; j++)
        a[j] /= sum;
    return sum;
}

void ref_router_aux_scores(double *aux_scores, const double *logits, const ref_router_desc *d)
{
    for (int64_t i = 0; i < d->tokens; i++)
        (void)aux_row(aux_scores + i * d->experts, logits + i * d->experts, d);
}

void ref_router_aux_topk(int64_t *indices, const double *aux_scores, const ref_router_desc *d)
{
    ref_router_desc plain = *d;
    plain.num_groups = plain.group_topk = 0;
    ref_router_topk(indices, aux_scores, &plain);
}

void ref_router_aux_sums(double *score_sums, int64_t *counts, double *z_sum, const double *aux_scores,
                         const int64_t *indices, const double *logits, const ref_router_desc *d)
{
    const int64_t e = d->experts;
    double row[ASSAY_MAX_EXPERTS];
    assert(e <= ASSAY_MAX_EXPERTS);
    ref_vec_zero(score_sums, e);
    memset(counts, 0, (size_t)e * sizeof *counts);
    *z_sum = 0.0;
    for (int64_t i = 0; i < d->tokens; i++) {
        ref_vec_axpy(score_sums, 1.0, aux_scores + i * e, e);
        for (int64_t j = 0; j < d->topk; j++) {
            assert(indices[i * d->topk + j] >= 0 && indices[i * d->topk + j] < e);
            counts[indices[i * d->topk + j]]++;
        }
        const double lse = softmax(row, logits + i * e, e);
        *z_sum += lse * lse;
    }
}

void ref_router_seq_aux_sums(double *score_sums, int64_t *counts, const double *aux_scores,
                             const int64_t *indices, int64_t rows, const ref_router_desc *d)
{
    const int64_t e = d->experts;
    ref_vec_zero(score_sums, rows * e);
    memset(counts, 0, (size_t)(rows * e) * sizeof *counts);
    for (int64_t i = 0; i < d->tokens; i++) {
        const int64_t row = i % rows;
        ref_vec_axpy(score_sums + row * e, 1.0, aux_scores + i * e, e);
        for (int64_t j = 0; j < d->topk; j++)
            counts[row * e + indices[i * d->topk + j]]++;
    }
}

/* aux_coeff E / (K tokens^2 divisor): the weight of score_sums_bi n_bi in the loss. */
static double aux_weight(const ref_balance *b, const ref_router_desc *d)
{
    return b->tokens == 0
               ? 0.0
               : b->aux_coeff * (double)d->experts /
                     ((double)d->topk * (double)b->tokens * (double)b->tokens * (double)b->divisor);
}

void ref_router_aux_loss(double losses[2], const double *score_sums, const int64_t *counts,
                         const double *z_sum, const ref_balance *b, const ref_router_desc *d)
{
    double dot = 0.0;
    for (int64_t j = 0; j < b->rows * d->experts; j++)
        dot += score_sums[j] * (double)counts[j];
    losses[0] = aux_weight(b, d) * dot;
    losses[1] = b->tokens == 0 || !z_sum ? 0.0 : b->z_coeff / (double)b->tokens * *z_sum;
}

void ref_router_aux_bwd(double *dlogits, const double *logits, const int64_t *counts, const ref_balance *b,
                        double loss_scale, const ref_router_desc *d)
{
    const int64_t e = d->experts;
    const double weight = aux_weight(b, d);
    const double z_weight = b->tokens == 0 ? 0.0 : b->z_coeff * 2.0 / (double)b->tokens;
    double a[ASSAY_MAX_EXPERTS], p[ASSAY_MAX_EXPERTS];
    assert(e <= ASSAY_MAX_EXPERTS);
    for (int64_t i = 0; i < d->tokens; i++) {
        const double *l = logits + i * e;
        const int64_t *n = counts + i % b->rows * e;
        const double sum = aux_row(a, l, d), lse = softmax(p, l, e);
        double dot = 0.0;
        for (int64_t j = 0; j < e; j++)
            dot += a[j] * (double)n[j];
        for (int64_t j = 0; j < e; j++) {
            double da = a[j] * difference((double)n[j], dot, d);
            /* a_j = s_j / sum: the derivative of s_j is s_j (1 - s_j), and s_j = a_j sum. */
            if (d->mode == REF_ROUTER_SIGMOID)
                da *= 1.0 - a[j] * sum;
            dlogits[i * e + j] += loss_scale * (weight * da + z_weight * size_of(lse, d) * p[j]);
        }
    }
}

void ref_running_counts(int64_t *total, const int64_t *counts, const int64_t *previous, int64_t e)
{
    for (int64_t i = 0; i < e; i++)
        total[i] = counts[i] + (previous ? previous[i] : 0);
}

void ref_expert_bias_update(double *bias, const int64_t *counts, double rate, int64_t e)
{
    int64_t total = 0;
    for (int64_t i = 0; i < e; i++)
        total += counts[i];
    /* sign(mean - n_i) = sign(total - E n_i), in integers: no rounding of the mean can flip it */
    for (int64_t i = 0; i < e; i++) {
        const int64_t excess = total - e * counts[i];
        bias[i] += rate * (double)((excess > 0) - (excess < 0));
    }
}
