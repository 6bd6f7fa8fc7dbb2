/* Bounds of the router, and the judgement of its decisions. */
#include "ref/bounds/bounds.h"
#include "ref/ops/vector.h"

#include <stdlib.h>

static const double SIGMOID_SUM_EPS = 1e-20;

/* e [n]: terms of a softmax relative to their maximum, own errors only (the error of the divisor is common).
 */
static void softmax_terms(ref_iv *e, const double *x, const int64_t *index, int64_t n, const ref_num *num)
{
    double max = -HUGE_VAL;
    for (int64_t i = 0; i < n; i++) {
        const double v = index ? x[index[i]] : x[i];
        max = v > max || isnan(v) ? v : max;
    }
    for (int64_t i = 0; i < n; i++) {
        const double shift = (index ? x[index[i]] : x[i]) - max;
        e[i] = iv_exp(num, (ref_iv){shift, 2.0 * num->u * fabs(shift)});
    }
}

/* e_i / sum e: dividing, or multiplying with a rounded reciprocal. */
static void normalise(ref_iv *e, int64_t n, double extra, const ref_num *num)
{
    ref_iv sum = ref_sum_few(num, e, n);
    sum = (ref_iv){sum.v + extra, sum.b + 2.0 * num->u * (fabs(sum.v) + extra)};
    for (int64_t i = 0; i < n; i++)
        e[i] = iv_div(num, e[i], sum);
}

void ref_bound_router_scores(ref_pair scores, ref_pair keys, const double *logits, const double *expert_bias,
                             const ref_router_desc *desc, const ref_declared *d)
{
    const ref_num *n = &d->num;
    const int64_t experts = desc->experts;
#pragma omp parallel for schedule(static) if (ref_vec_parallel(desc->tokens * experts * 16))
    for (int64_t i = 0; i < desc->tokens; i++) {
        const double *l = logits + i * experts;
        ref_iv e[ASSAY_MAX_EXPERTS];
        if (desc->mode == REF_ROUTER_SOFTMAX_TOPK) {
            softmax_terms(e, l, NULL, experts, n);
            normalise(e, experts, 0.0, n);
        }
        for (int64_t j = 0; j < experts; j++) {
            const int64_t at = i * experts + j;
            const bool sigmoid = desc->mode == REF_ROUTER_SIGMOID;
            const ref_iv s = sigmoid                                 ? iv_sigmoid(n, l[j])
                             : desc->mode == REF_ROUTER_TOPK_SOFTMAX ? iv_exact(l[j])
                                                                     : e[j];
            const ref_iv key = sigmoid && expert_bias ? iv_add(n, s, iv_exact(expert_bias[j])) : s;
            scores.y[at] = s.v;
            scores.b[at] = s.b;
            keys.y[at] = key.v;
            keys.b[at] = key.b;
        }
    }
}

/* One token's keys as intervals; inputs that are equal bits give equal keys in any kernel. */
typedef struct row {
    double low[ASSAY_MAX_EXPERTS], high[ASSAY_MAX_EXPERTS];
    const double *logits, *bias;
    const ref_router_desc *d;
    int64_t size, best; /* experts of a group, keys of a group score */
    bool any;           /* nobody says which of equal keys is taken */
} row;

static bool same_inputs(const row *r, int64_t i, int64_t j)
{
    return r->logits[i] == r->logits[j] && (!r->bias || r->bias[i] == r->bias[j]);
}

/* Whether some honest kernel may rank expert i before expert j. */
static bool may_precede(const row *r, int64_t i, int64_t j)
{
    if (same_inputs(r, i, j))
        return r->any || i < j;
    if (r->high[i] == r->low[j] && r->low[i] == r->high[j])
        return r->any || i < j; /* two exact keys, equal */
    return r->high[i] >= r->low[j];
}

typedef struct group {
    double low, high;
} group;

/* Sum of the `best` largest of x [n]. */
static double best_sum(const double *x, int64_t n, int64_t best)
{
    double sum = 0.0, last = HUGE_VAL;
    int64_t taken = 0;
    while (taken < best) {
        double next = -HUGE_VAL;
        int64_t ties = 0;
        for (int64_t i = 0; i < n; i++)
            if (x[i] < last && x[i] > next)
                next = x[i];
        for (int64_t i = 0; i < n; i++)
            ties += x[i] == next;
        if (ties == 0)
            return sum + next;
        const int64_t use = ties < best - taken ? ties : best - taken;
        sum += (double)use * next;
        taken += use;
        last = next;
    }
    return sum;
}

static group group_interval(const row *r, int64_t g, const ref_num *n)
{
    const double *low = r->low + g * r->size, *high = r->high + g * r->size;
    group z = {best_sum(low, r->size, r->best), best_sum(high, r->size, r->best)};
    double magnitude = 0.0;
    for (int64_t i = 0; i < r->size; i++)
        magnitude = fmax(magnitude, fmax(fabs(low[i]), fabs(high[i])));
    const double rounding = (double)(r->best - 1) * n->u * magnitude * (double)r->best;
    z.low -= rounding;
    z.high += rounding;
    return z;
}

static bool group_may_precede(const group *q, int64_t g, int64_t h)
{
    if (q[g].low == q[g].high && q[h].low == q[h].high && q[g].high == q[h].low)
        return g < h;
    return q[g].high >= q[h].low;
}

/* Whether `chosen` is a legal top-k among the experts of the kept groups; *gap grows with the distance. */
static bool choice_within(const row *r, const bool *kept, const bool *chosen, double *gap)
{
    bool legal = true;
    double worst_in = HUGE_VAL, best_out = -HUGE_VAL;
    for (int64_t i = 0; i < r->d->experts; i++) {
        if (!chosen[i])
            continue;
        worst_in = fmin(worst_in, r->low[i]);
        legal = legal && kept[i / r->size];
    }
    for (int64_t j = 0; j < r->d->experts; j++) {
        if (chosen[j] || !kept[j / r->size])
            continue;
        best_out = fmax(best_out, r->high[j]);
        for (int64_t i = 0; legal && i < r->d->experts; i++)
            if (chosen[i] && !may_precede(r, i, j))
                legal = false;
    }
    *gap = best_out - worst_in;
    return legal;
}

/* Largest key an unchosen expert of group g is sure to have. */
static double sure_rival(const row *r, const bool *chosen, int64_t g)
{
    double best = -HUGE_VAL;
    for (int64_t i = g * r->size; i < (g + 1) * r->size; i++)
        if (!chosen[i])
            best = fmax(best, r->low[i]);
    return best;
}

/* Completes the set of kept groups for a threshold: every group that is surely above it, then, of those that
 * may reach it, the ones with the weakest unchosen experts. */
static bool complete_groups(const row *r, const group *q, double threshold, const bool *chosen,
                            const bool *needed, bool *kept)
{
    int64_t n = 0;
    for (int64_t g = 0; g < r->d->num_groups; g++) {
        kept[g] = needed[g] || q[g].low > threshold;
        if (kept[g] && q[g].high < threshold)
            return false;
        n += kept[g];
    }
    for (; n < r->d->group_topk; n++) {
        int64_t pick = -1;
        for (int64_t g = 0; g < r->d->num_groups; g++)
            if (!kept[g] && q[g].high >= threshold &&
                (pick < 0 || sure_rival(r, chosen, g) < sure_rival(r, chosen, pick)))
                pick = g;
        if (pick < 0)
            return false;
        kept[pick] = true;
    }
    return n == r->d->group_topk;
}

static bool groups_legal(const group *q, const bool *kept, int64_t n)
{
    for (int64_t g = 0; g < n; g++)
        for (int64_t h = 0; kept[g] && h < n; h++)
            if (!kept[h] && !group_may_precede(q, g, h))
                return false;
    return true;
}

static bool admissible(const row *r, const ref_num *n, const bool *chosen, double *gap)
{
    bool needed[ASSAY_MAX_EXPERTS] = {false}, kept[ASSAY_MAX_EXPERTS] = {true};
    group q[ASSAY_MAX_EXPERTS] = {{0}};
    *gap = HUGE_VAL;
    if (r->d->num_groups == 0)
        return choice_within(r, kept, chosen, gap);
    for (int64_t g = 0; g < r->d->num_groups; g++)
        q[g] = group_interval(r, g, n);
    for (int64_t i = 0; i < r->d->experts; i++)
        needed[i / r->size] = needed[i / r->size] || chosen[i];
    for (int64_t t = 0; t < r->d->num_groups; t++) {
        double this_gap;
        if (!complete_groups(r, q, q[t].high, chosen, needed, kept) ||
            !groups_legal(q, kept, r->d->num_groups))
            continue;
        if (choice_within(r, kept, chosen, &this_gap))
            return true;
        *gap = fmin(*gap, this_gap);
    }
    return false;
}

/* Whether another choice than the reference's may be legal: some pair may change places. */
static bool ambiguous(const row *r, const ref_num *n, const bool *chosen)
{
    bool kept[ASSAY_MAX_EXPERTS] = {false};
    for (int64_t i = 0; i < r->d->experts; i++)
        kept[i / r->size] = kept[i / r->size] || chosen[i] || r->d->num_groups == 0;
    for (int64_t i = 0; i < r->d->experts; i++)
        for (int64_t j = 0; chosen[i] && j < r->d->experts; j++)
            if (!chosen[j] && kept[j / r->size] && may_precede(r, j, i))
                return true;
    for (int64_t g = 0; g < r->d->num_groups; g++)
        for (int64_t h = 0; kept[g] && h < r->d->num_groups; h++) {
            const group a = group_interval(r, g, n), b = group_interval(r, h, n);
            const group q[2] = {h < g ? b : a, h < g ? a : b};
            if (!kept[h] && group_may_precede(q, h < g ? 0 : 1, h < g ? 1 : 0))
                return true;
        }
    return false;
}

static bool well_formed(const int64_t *indices, const ref_router_desc *d)
{
    for (int64_t j = 0; j < d->topk; j++)
        if (indices[j] < 0 || indices[j] >= d->experts || (j > 0 && indices[j] <= indices[j - 1]))
            return false;
    return true;
}

/* Keeps the first inadmissible decisions, before the candidate's choice replaces the reference's. */
static void show(ref_decisions *out, int64_t token, const row *r, const double *keys, const bool *reference,
                 const bool *chosen)
{
    if (out->n_shown == REF_DECISIONS_SHOWN)
        return;
    ref_decision *s = &out->shown[out->n_shown++];
    *s = (ref_decision){.row = token, .left_out = -1, .taken = -1};
    for (int64_t i = 0; i < r->d->experts; i++) {
        if (reference[i] && s->n_expected < REF_DECISION_EXPERTS)
            s->expected[s->n_expected++] = i;
        if (reference[i] && !chosen[i] && (s->left_out < 0 || r->low[i] > r->low[s->left_out]))
            s->left_out = i;
        if (!reference[i] && chosen[i] && (s->taken < 0 || r->high[i] < r->high[s->taken]))
            s->taken = i;
    }
    if (s->left_out < 0 || s->taken < 0) {
        s->left_out = s->taken = -1;
        return;
    }
    s->left_score = keys[s->left_out];
    s->left_bound = r->high[s->left_out] - keys[s->left_out];
    s->taken_score = keys[s->taken];
    s->taken_bound = r->high[s->taken] - keys[s->taken];
}

void ref_bound_router_choice(int64_t *taken, const int64_t *candidate, ref_pair keys, const double *logits,
                             const double *expert_bias, const ref_router_desc *desc, const ref_num *num,
                             bool any, ref_decisions *out)
{
    const int64_t e = desc->experts, k = desc->topk;
    const bool biased = expert_bias && desc->mode == REF_ROUTER_SIGMOID;
    row r = {.bias = biased ? expert_bias : NULL, .d = desc, .any = any};
    r.size = desc->num_groups ? e / desc->num_groups : (e > 0 ? e : 1);
    r.best = desc->num_groups ? k / desc->group_topk : 0;
    *out = (ref_decisions){.n = desc->tokens, .first_inadmissible = -1, .n_experts = e};
    ref_router_topk(taken, keys.y, desc);
    for (int64_t i = 0; i < desc->tokens; i++) {
        bool chosen[ASSAY_MAX_EXPERTS] = {false}, reference[ASSAY_MAX_EXPERTS] = {false};
        double gap = HUGE_VAL;
        r.logits = logits + i * e;
        for (int64_t j = 0; j < e; j++) {
            r.low[j] = keys.y[i * e + j] - keys.b[i * e + j];
            r.high[j] = keys.y[i * e + j] + keys.b[i * e + j];
        }
        for (int64_t j = 0; j < k; j++)
            reference[taken[i * k + j]] = true;
        out->n_ambiguous += ambiguous(&r, num, reference);
        if (!candidate)
            continue;
        const bool formed = well_formed(candidate + i * k, desc);
        for (int64_t j = 0; formed && j < k; j++)
            chosen[candidate[i * k + j]] = true;
        if (formed)
            memcpy(taken + i * k, candidate + i * k, (size_t)k * sizeof *taken);
        if (formed && admissible(&r, num, chosen, &gap))
            continue;
        if (out->n_inadmissible++ == 0)
            out->first_inadmissible = i;
        show(out, i, &r, keys.y + i * e, reference, chosen);
        out->gap = fmax(out->gap, gap);
    }
}

void ref_bound_router_probs(ref_pair probs, const double *logits, const int64_t *indices,
                            const ref_router_desc *desc, const ref_declared *d)
{
    const ref_num *n = &d->num;
    const int64_t k = desc->topk;
    const bool sigmoid = desc->mode == REF_ROUTER_SIGMOID;
    ref_iv p[ASSAY_MAX_EXPERTS];
    for (int64_t i = 0; i < desc->tokens; i++) {
        const double *l = logits + i * desc->experts;
        const int64_t *index = indices + i * k;
        if (sigmoid) {
            for (int64_t j = 0; j < k; j++)
                p[j] = iv_sigmoid(n, l[index[j]]);
            if (desc->norm_topk_prob && k > 1)
                normalise(p, k, SIGMOID_SUM_EPS, n);
        } else if (desc->mode == REF_ROUTER_TOPK_SOFTMAX || desc->norm_topk_prob) {
            /* softmax over E divided by the sum of the chosen is the softmax over the chosen, with two more
             * divisions */
            softmax_terms(p, l, index, k, n);
            normalise(p, k, 0.0, n);
            for (int64_t j = 0; desc->mode == REF_ROUTER_SOFTMAX_TOPK && j < k; j++)
                p[j].b += 4.0 * n->u * p[j].v;
        } else {
            ref_iv all[ASSAY_MAX_EXPERTS];
            softmax_terms(all, l, NULL, desc->experts, n);
            normalise(all, desc->experts, 0.0, n);
            for (int64_t j = 0; j < k; j++)
                p[j] = all[index[j]];
        }
        for (int64_t j = 0; j < k; j++) {
            if (desc->scaling_factor != 1.0)
                p[j] = iv_mul(n, p[j], iv_constant(n, desc->scaling_factor));
            probs.y[i * k + j] = p[j].v;
            probs.b[i * k + j] = p[j].b;
        }
    }
}

/* ds [K]: gradient by the chosen scores */
static void probs_bwd(ref_iv *ds, const double *dprobs, const double *scores, const int64_t *index,
                      const ref_router_desc *desc, const ref_num *n)
{
    const bool sigmoid = desc->mode == REF_ROUTER_SIGMOID;
    const ref_iv factor = desc->scaling_factor == 1.0 ? iv_exact(1.0) : iv_constant(n, desc->scaling_factor);
    ref_iv s[ASSAY_MAX_EXPERTS], t[ASSAY_MAX_EXPERTS];
    for (int64_t j = 0; j < desc->topk; j++) {
        s[j] = iv_exact(scores[index[j]]);
        ds[j] = iv_mul(n, iv_exact(dprobs[j]), factor);
    }
    if (!desc->norm_topk_prob || (sigmoid && desc->topk == 1))
        return;
    ref_iv sum = ref_sum_few(n, s, desc->topk);
    if (sigmoid)
        sum = iv_add(n, sum, iv_constant(n, SIGMOID_SUM_EPS));
    for (int64_t j = 0; j < desc->topk; j++)
        t[j] = iv_mul(n, ds[j], iv_div(n, s[j], sum));
    const ref_iv dot = ref_sum_few(n, t, desc->topk);
    for (int64_t j = 0; j < desc->topk; j++)
        ds[j] = iv_div(n, iv_sub(n, ds[j], dot), sum);
}

/* Gradient through a softmax with values p [n] and incoming g [n]: t_j = p_j (g_j - sum p g). */
static void softmax_bwd(ref_iv *out, const ref_iv *p, const ref_iv *g, int64_t n, const ref_num *num)
{
    ref_iv t[ASSAY_MAX_EXPERTS];
    t[0] = iv_exact(0.0);
    for (int64_t j = 0; j < n; j++)
        t[j] = iv_mul(num, p[j], g[j]);
    const ref_iv dot = ref_sum_few(num, t, n);
    for (int64_t j = 0; j < n; j++) {
        /* also as p g - p dot: each part rounded by itself */
        out[j] = iv_mul(num, p[j], iv_sub(num, g[j], dot));
        out[j].b += num->u * p[j].v * (fabs(g[j].v) + fabs(dot.v));
    }
}

void ref_bound_router_bwd(ref_pair dlogits, const double *dprobs, const int64_t *indices,
                          const double *scores, const ref_router_desc *desc, const ref_declared *d)
{
    const ref_num *n = &d->num;
    const int64_t e = desc->experts, k = desc->topk;
    ref_iv p[ASSAY_MAX_EXPERTS], g[ASSAY_MAX_EXPERTS], out[ASSAY_MAX_EXPERTS];
    for (int64_t i = 0; i < desc->tokens; i++) {
        const double *s = scores + i * e;
        const int64_t *index = indices + i * k;
        for (int64_t j = 0; j < e; j++)
            out[j] = iv_exact(0.0);
        if (desc->mode == REF_ROUTER_TOPK_SOFTMAX) {
            ref_iv chosen[ASSAY_MAX_EXPERTS];
            softmax_terms(p, s, index, k, n);
            normalise(p, k, 0.0, n);
            for (int64_t j = 0; j < k; j++)
                g[j] = iv_mul(n, iv_exact(dprobs[i * k + j]), iv_constant(n, desc->scaling_factor));
            softmax_bwd(chosen, p, g, k, n);
            for (int64_t j = 0; j < k; j++)
                out[index[j]] = chosen[j];
        } else {
            ref_iv ds[ASSAY_MAX_EXPERTS];
            probs_bwd(ds, dprobs + i * k, s, index, desc, n);
            for (int64_t j = 0; j < e; j++) {
                p[j] = iv_exact(s[j]);
                g[j] = iv_exact(0.0);
            }
            for (int64_t j = 0; j < k; j++)
                g[index[j]] = ds[j];
            if (desc->mode == REF_ROUTER_SIGMOID)
                for (int64_t j = 0; j < k; j++) {
                    const ref_iv rest = iv_sub(n, iv_exact(1.0), p[index[j]]);
                    out[index[j]] = iv_mul(n, ds[j], iv_mul(n, p[index[j]], rest));
                }
            else
                softmax_bwd(out, p, g, e, n);
        }
        for (int64_t j = 0; j < e; j++) {
            dlogits.y[i * e + j] = out[j].v;
            dlogits.b[i * e + j] = out[j].b;
        }
    }
}
