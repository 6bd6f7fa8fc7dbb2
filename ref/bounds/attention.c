/* Bounds of attention, forward and backward.
 *
 * Row by row (forward, dQ) and key by key (dK, dV), so that memory grows with the sequence, not with its
 * square. The backward is conditioned on the recorded lse and o.  Formulas: docs/TOLERANCES.md, section 4. */
#include "ref/bounds/attention_partners.h"
#include "ref/fast/vector.h"

#include <stdlib.h>

/* s, es: scaled.  The scale is a constant of the kernel, the product with it one rounding. */
REF_WIDE static void scale_scores(double *s, double *es, int64_t n, double scale, const ref_num *num)
{
    const double u = num->u, eta = num->eta, grown = fabs(scale);
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        s[i] *= scale;
        es[i] = grown * es[i] * (1.0 + 4.0 * u) + 2.0 * u * fabs(s[i]) + eta;
    }
}

/* Where a module stores its scores. */
static void store_scores(const partners *z, const ref_declared *d)
{
    for (int64_t i = 0; i < z->n && d->rounding & ASSAY_ROUND_SCORES; i++)
        z->es[i] = ref_stored(d, ASSAY_ROUND_SCORES, (ref_iv){z->s[i], z->es[i]}).b;
}

/* s, es = scale (x . partner) */
static void scores(partners *z, const double *x, double scale, const packed *other, const ref_declared *d,
                   const ref_order *order)
{
    partners_dots(z->s, z->es, z, x, other, order);
    store_scores(z, d);
    scale_scores(z->s, z->es, z->n, scale, &d->num);
    store_scores(z, d);
}

typedef struct job {
    const ref_attention_desc *desc;
    const ref_declared *d;
    ref_order order;                  /* of q k and dO v */
    ref_order key_order, group_order; /* of sums over keys; over the queries of all heads of a group */
    ref_order delta_order;            /* of D: no matrix unit computes it */
    double u_p, eta_p;                /* rounding of P and dS before a product */
    const double *dout, *q, *k, *v, *o, *lse;
    packed packed_q, packed_k, packed_v, packed_dout; /* what is met: keys by queries, queries by keys */
    sight sight;
    double *passed; /* forward: [seq_k] key / tile, or zeros */
    /* backward, [batch, heads, seq_q]: lse and D of every query, and the bound of D */
    double *query_lse, *delta, *edelta;
} job;

static void job_init(job *j, const ref_attention_desc *desc, assay_dtype p_dtype, const ref_declared *d)
{
    *j = (job){.desc = desc, .d = d, .order = d->order};
    j->order.or_chain = true;
    j->key_order = j->group_order = j->delta_order = j->order;
    /* Nobody declares whether heads or queries run in the outer loop of the sum over a group. */
    if (desc->heads != desc->groups && d->order.order == ASSAY_ORDER_SEQUENTIAL)
        j->group_order.order = ASSAY_ORDER_UNKNOWN;
    /* Nor at which key or query a step of a matrix unit begins: what is hidden takes a place in it. */
    j->key_order.any_steps = j->group_order.any_steps = true;
    if (d->order.order == ASSAY_ORDER_TENSOR_CORE)
        j->delta_order.order = ASSAY_ORDER_UNKNOWN;
    if (assay_dtype_is_float(p_dtype) && p_dtype != ASSAY_F64 &&
        (p_dtype != ASSAY_F32 || d->num.u < 0x1p-30)) {
        j->u_p = ldexp(1.0, -assay_dtype_precision(p_dtype));
        j->eta_p = ldexp(1.0, assay_dtype_emin(p_dtype) - assay_dtype_precision(p_dtype));
    }
}

/* p = exp(s - max); returns their sum */
REF_WIDE static double softmax_terms(const partners *z, double max)
{
    const double *s = z->s;
    double *p = z->p, sum = 0.0;
    ref_eight sums = REF_EIGHT(0.0);
    int64_t i = 0;
#pragma omp simd
    for (int64_t j = 0; j < z->n; j++)
        p[j] = ref_fast_exp(s[j] - max);
    for (; i + 8 <= z->n; i += 8)
        sums += *(const ref_eight *)(p + i);
    for (; i < z->n; i++)
        sum += p[i];
    return sum + REF_EIGHT_SUM(sums);
}

/* p /= sum; ep = errors of p; returns their sum */
REF_WIDE static double softmax_errors(const partners *z, const job *j, double max, double sum, double steps)
{
    const ref_num n = j->d->num;
    const double *s = z->s, *es = z->es, *passed = z->passed;
    const double again = j->d->tile > 0 ? n.f + 2.0 * n.u : 0.0;
    double *p = z->p, *ep = z->ep, spread = 0.0;
    ref_eight spreads = REF_EIGHT(0.0);
    int64_t i = 0;
#pragma omp simd
    for (int64_t k = 0; k < z->n; k++) {
        const double delta = es[k] + 2.0 * n.u * fabs(s[k] - max) + n.f + (steps - passed[k]) * again;
        p[k] /= sum;
        ep[k] = p[k] * ref_fast_expm1(delta) + n.tiny;
    }
    for (; i + 8 <= z->n; i += 8)
        spreads += *(const ref_eight *)(ep + i);
    for (; i < z->n; i++)
        spread += ep[i];
    return spread + REF_EIGHT_SUM(spreads);
}

REF_WIDE static double largest_score(const partners *z)
{
    return ref_vec_max(z->s, z->n);
}

/* Softmax of the scores: p sums to 1, ep absolute; returns the sum of ep, *lse the logarithm of the sum of exp.
 * *steps: rescale steps of an online softmax. */
static double softmax(partners *z, const job *j, ref_iv *lse, double *relative_sum, double *steps)
{
    const ref_num *n = &j->d->num;
    const int64_t tile = j->d->tile;
    const double merge = ceil(log2((double)j->order.lanes)), max = largest_score(z),
                 sum = softmax_terms(z, max);
    *steps = tile > 0 ? (double)((j->desc->seq_k + tile - 1) / tile) + merge : 0.0;
    const double spread = softmax_errors(z, j, max, sum, *steps);
    *relative_sum = ref_sum_positive(z->p, z->n, &j->order) + 2.0 * n->u * *steps;
    const double log_error = fmin(spread + *relative_sum, 0.5), l = log(sum);
    lse->v = max + l;
    lse->b = -log1p(-log_error) + (n->f + 2.0 * n->u) * fabs(l) + n->u * (fabs(lse->v) + fabs(max));
    lse->b *= 1.0 + 8.0 * n->u;
    return spread;
}

/* own [8 BLOCKS] += sum ep |v - y| over n partners v, rows `width` apart; BLOCKS is a constant in the calls */
static inline __attribute__((always_inline)) void error_columns(double *own, const double *v, const double *y,
                                                                const double *ep, int64_t n, int64_t width,
                                                                const int BLOCKS)
{
    typedef int64_t bits __attribute__((vector_size(64)));
    const bits not_sign = (bits){0} + INT64_MAX;
    ref_eight sums[4];
#pragma GCC unroll 4
    for (int c = 0; c < BLOCKS; c++)
        sums[c] = *(const ref_eight *)(own + 8 * c);
    for (int64_t i = 0; i < n; i++) {
#pragma GCC unroll 4
        for (int c = 0; c < BLOCKS; c++) {
            const ref_eight apart =
                *(const ref_eight *)(v + i * width + 8 * c) - *(const ref_eight *)(y + 8 * c);
            sums[c] += REF_EIGHT(ep[i]) * (ref_eight)((bits)apart & not_sign);
        }
    }
#pragma GCC unroll 4
    for (int c = 0; c < BLOCKS; c++)
        *(ref_eight *)(own + 8 * c) = sums[c];
}

/* own [width] += sum ep |v - y| over n partners v */
REF_WIDE static void value_errors(double *own, const double *v, const double *y, const double *ep, int64_t n,
                                  int64_t width)
{
    int64_t c = 0;
    for (; c + 32 <= width; c += 32)
        error_columns(own + c, v + c, y + c, ep, n, width, 4);
    for (; c + 8 <= width; c += 8)
        error_columns(own + c, v + c, y + c, ep, n, width, 1);
    for (; c < width; c++)
        for (int64_t i = 0; i < n; i++)
            own[c] += ep[i] * fabs(v[i * width + c] - y[c]);
}

/* e = (u_p + 2u steps) p + eta_p: P rounded before the product, and the rescale steps of the sum */
REF_WIDE static void rounding_errors(double *e, const partners *z, const job *j, double steps)
{
    const double relative = j->u_p + 2.0 * j->d->num.u * steps, eta_p = j->eta_p, *p = z->p;
#pragma omp simd
    for (int64_t i = 0; i < z->n; i++)
        e[i] = relative * p[i] + eta_p;
}

/* What dropout makes of the probabilities of query i of head a and its partners, keys; or of key j and its partners, queries. */
static void factors_of_query(const partners *z, const ref_attention_desc *d, int64_t query_row, int64_t a)
{
    for (int64_t r = 0, at = 0; r < z->n_runs; at += z->runs[r++].n)
        for (int64_t i = 0; i < z->runs[r].n; i++)
            z->factor[at + i] =
                ref_attention_factor(d, query_row, a, (z->runs[r].start + i) * d->batch + z->batch_row);
}

static void factors_of_key(const partners *z, const ref_attention_desc *d, int64_t key_row)
{
    for (int64_t r = 0, at = 0; r < z->n_runs; at += z->runs[r++].n)
        for (int64_t i = 0; i < z->runs[r].n; i++)
            z->factor[at + i] = ref_attention_factor(d, (z->runs[r].start + i) * d->batch + z->batch_row,
                                                     z->runs[r].head, key_row);
}

/* x times the factors: 1/(1-p) is a constant of the kernel, the product one rounding (which may come behind a sum). */
static void times_factors(double *x, double *ex, const partners *z, const ref_num *n)
{
    for (int64_t i = 0; i < z->n; i++) {
        x[i] *= z->factor[i];
        ex[i] = z->factor[i] * ex[i] * (1.0 + 4.0 * n->u) + 3.0 * n->u * fabs(x[i]) + n->eta;
    }
}

/* value_errors of values that dropout has scaled */
static void dropped_value_errors(const partners *z, const ref_rows *rows, const double *y, int64_t width)
{
    for (int64_t r = 0, first = 0; r < z->n_runs; first += rows[r++].n)
        for (int64_t i = 0; i < rows[r].n; i++)
            for (int64_t c = 0; c < width; c++)
                z->own[c] += z->ep[first + i] * fabs(z->factor[first + i] * rows[r].x[i * width + c] - y[c]);
}

static void fwd_row(ref_pair o, ref_pair lse, partners *z, const job *j, int64_t query_row, int64_t a)
{
    const ref_attention_desc *d = j->desc;
    const ref_num *n = &j->d->num;
    const int64_t g = a / (d->heads / d->groups), b = query_row % d->batch, at = query_row * d->heads + a;
    double *y = o.y + at * d->head_dim_v, *bound = o.b + at * d->head_dim_v;
    partners_keys(z, &j->sight, b, query_row / d->batch, g);
    for (int64_t r = 0, at_run = 0; r < z->n_runs; at_run += z->runs[r++].n)
        ref_vec_copy(z->passed + at_run, j->passed + z->runs[r].start, z->runs[r].n);
    if (z->n == 0) {
        ref_vec_zero(y, d->head_dim_v);
        ref_vec_zero(bound, d->head_dim_v);
        lse.y[at] = -HUGE_VAL;
        lse.b[at] = 0.0;
        return;
    }
    scores(z, j->q + at * d->head_dim, d->scale, &j->packed_k, j->d, &j->order);
    ref_iv l;
    double sum_error, steps;
    const double spread = softmax(z, j, &l, &sum_error, &steps);
    lse.y[at] = l.v;
    lse.b[at] = l.b;
    const ref_rows *rows = partners_rows(z, &j->packed_v);
    const bool drops = d->dropout.p > 0.0;
    rounding_errors(z->ds, z, j, steps);
    if (drops) {
        factors_of_query(z, d, query_row, a);
        times_factors(z->p, z->ds, z, n);
    }
    ref_sum_rows(y, bound, z->rounded, z->p, z->ds, rows, z->n_runs, d->head_dim_v, z->gathered,
                 &j->key_order);
    ref_vec_zero(z->own, d->head_dim_v);
    if (drops)
        dropped_value_errors(z, rows, y, d->head_dim_v);
    for (int64_t r = 0, first = 0; r < z->n_runs && !drops; first += rows[r++].n)
        value_errors(z->own, rows[r].x, y, z->ep + first, rows[r].n, d->head_dim_v);
    /* Two passes may multiply with exp(S - lse) instead of dividing: lse's own roundings do not cancel then.
     */
    const double common = sum_error + 2.0 * n->u +
                          (j->d->tile > 0 ? 0.0 : (n->f + 2.0 * n->u) * (1.0 + fabs(l.v)) + n->u * fabs(l.v));
    for (int64_t c = 0; c < d->head_dim_v; c++) {
        const double first = z->own[c] + z->rounded[c] + bound[c] * (1.0 + j->u_p) + common * fabs(y[c]);
        bound[c] = first * (1.0 + 2.0 * (spread + sum_error)) / (1.0 - fmin(spread, 0.5)) + n->eta;
    }
}

/* Work goes head by head, so that the packed operands of a head stay in the cache: item i of [heads, batch,
 * sequence] is this row of [sequence, batch]. */
static int64_t row_of(int64_t i, int64_t sequence, int64_t batch)
{
    return i % sequence * batch + i / sequence % batch;
}

assay_status ref_bound_attention_fwd(ref_pair o, ref_pair lse, const double *q, const double *k,
                                     const double *v, const ref_attention_desc *desc, assay_dtype p_dtype,
                                     const ref_declared *d)
{
    const int64_t width = desc->head_dim > desc->head_dim_v ? desc->head_dim : desc->head_dim_v;
    job j;
    job_init(&j, desc, p_dtype, d);
    j.q = q;
    j.passed = malloc((size_t)(desc->seq_k + 1) * sizeof *j.passed);
    const bool unpacked =
        !j.passed || !sight_init(&j.sight, desc) ||
        !packed_init(&j.packed_k, k, desc->seq_k, desc->batch, desc->groups, desc->head_dim) ||
        !packed_init(&j.packed_v, v, desc->seq_k, desc->batch, desc->groups, desc->head_dim_v);
    for (int64_t i = 0; !unpacked && i < desc->seq_k; i++)
        j.passed[i] = d->tile > 0 ? (double)(i / d->tile) : 0.0;
    bool failed = false;
#pragma omp parallel reduction(|| : failed)
    {
        partners z;
        const bool ok = partners_init(&z, desc->seq_k, width) && !unpacked;
        failed = !ok;
#pragma omp for schedule(dynamic, 8)
        for (int64_t i = 0; i < desc->seq_q * desc->batch * desc->heads; i++)
            if (ok)
                fwd_row(o, lse, &z, &j, row_of(i, desc->seq_q, desc->batch), i / (desc->seq_q * desc->batch));
        partners_free(&z);
    }
    free(j.passed);
    sight_free(&j.sight);
    packed_free(&j.packed_k);
    packed_free(&j.packed_v);
    ASSAY_CHECK(!failed, ASSAY_OUT_OF_MEMORY, "attention_fwd: %lld keys of %lld", (long long)desc->seq_k,
                (long long)width);
    return ASSAY_OK;
}

/* P = exp(S - lse), dS = P (dP - D) from s, es, dp, edp, lse, delta, edelta; P and dS may be rounded for their products. */
REF_WIDE static void bwd_pairs(const partners *z, const job *j)
{
    const ref_num num = j->d->num, *n = &num;
    const double u_p = j->u_p, eta_p = u_p > 0.0 ? j->eta_p : 0.0;
    const double *s = z->s, *es = z->es, *lse = z->lse;
    const double *dp = z->dp, *edp = z->edp, *delta = z->delta, *edelta = z->edelta;
    double *p = z->p, *ep = z->ep, *ds = z->ds, *eds = z->eds;
#pragma omp simd
    for (int64_t i = 0; i < z->n; i++) {
        /* S - lse, also as exp2(S log2 e - lse log2 e) with rounded factors */
        const double shift = s[i] - lse[i];
        const double relative = es[i] + n->u * (fabs(shift) + fabs(s[i]) + fabs(lse[i])) + n->f;
        const double prob = ref_fast_exp(shift), error = prob * ref_fast_expm1(relative) + n->tiny;
        const ref_iv inner = iv_sub(n, (ref_iv){dp[i], edp[i]}, (ref_iv){delta[i], edelta[i]});
        const ref_iv product = iv_mul(n, (ref_iv){prob, error}, inner);
        p[i] = prob;
        ds[i] = product.v;
        /* the scale may be multiplied in here: a constant and a rounding */
        eds[i] = product.b + (2.0 * n->u + u_p) * (fabs(product.v) + product.b) + eta_p;
        ep[i] = error + (u_p * (prob + error) + eta_p);
    }
}

/* out [width] = factor sum_i t_i partner_i with errors et of the t */
static void weighted_rows(ref_pair out, int64_t at, partners *z, const double *t, const double *et,
                          double factor, const packed *other, const ref_order *order, const ref_num *n)
{
    const int64_t width = other->width;
    double *y = out.y + at, *b = out.b + at;
    /* the errors of the terms are in the partial sums, too: what an addition adds for each of them */
    const double again = order->order == ASSAY_ORDER_TENSOR_CORE
                             ? 2.0 * order->u + (double)(order->k_step + 1) * order->align
                             : 2.0 * order->u;
    ref_sum_rows(y, b, z->own, t, et, partners_rows(z, other), z->n_runs, width, z->gathered, order);
    for (int64_t c = 0; c < width; c++) {
        const double sum = b[c] + z->own[c] * exp((double)z->n * again);
        y[c] *= factor;
        b[c] =
            factor == 1.0 ? sum : fabs(factor) * sum * (1.0 + 4.0 * n->u) + 2.0 * n->u * fabs(y[c]) + n->eta;
    }
}

/* D_i = sum dO O with its bound */
static ref_iv row_delta(const job *j, int64_t at)
{
    const int64_t w = j->desc->head_dim_v;
    return ref_sum_dot(j->dout + at * w, j->o + at * w, w, &j->delta_order);
}

static void bwd_query(ref_pair dq, partners *z, const job *j, int64_t query_row, int64_t a)
{
    const ref_attention_desc *d = j->desc;
    const int64_t g = a / (d->heads / d->groups), b = query_row % d->batch, at = query_row * d->heads + a;
    const int64_t i = query_row / d->batch, query = (b * d->heads + a) * d->seq_q + i;
    partners_keys(z, &j->sight, b, i, g);
    for (int64_t k = 0; k < z->n; k++) {
        z->lse[k] = j->query_lse[query];
        z->delta[k] = j->delta[query];
        z->edelta[k] = j->edelta[query];
    }
    partners_dots(z->dp, z->edp, z, j->dout + at * d->head_dim_v, &j->packed_v, &j->order);
    if (d->dropout.p > 0.0) {
        factors_of_query(z, d, query_row, a);
        times_factors(z->dp, z->edp, z, &j->d->num);
    }
    scores(z, j->q + at * d->head_dim, d->scale, &j->packed_k, j->d, &j->order);
    bwd_pairs(z, j);
    weighted_rows(dq, at * d->head_dim, z, z->ds, z->eds, d->scale, &j->packed_k, &j->key_order, &j->d->num);
}

static void bwd_key(ref_pair dk, ref_pair dv, partners *z, const job *j, int64_t key_row, int64_t g)
{
    const ref_attention_desc *d = j->desc;
    const int64_t ratio = d->heads / d->groups, b = key_row % d->batch, at = key_row * d->groups + g;
    partners_queries(z, &j->sight, b, key_row / d->batch, g * ratio, ratio);
    for (int64_t r = 0, at_run = 0; r < z->n_runs; at_run += z->runs[r++].n) {
        const int64_t query = (b * d->heads + z->runs[r].head) * d->seq_q + z->runs[r].start;
        ref_vec_copy(z->lse + at_run, j->query_lse + query, z->runs[r].n);
        ref_vec_copy(z->delta + at_run, j->delta + query, z->runs[r].n);
        ref_vec_copy(z->edelta + at_run, j->edelta + query, z->runs[r].n);
    }
    partners_dots(z->dp, z->edp, z, j->v + at * d->head_dim_v, &j->packed_dout, &j->order);
    if (d->dropout.p > 0.0) {
        factors_of_key(z, d, key_row);
        times_factors(z->dp, z->edp, z, &j->d->num);
    }
    scores(z, j->k + at * d->head_dim, d->scale, &j->packed_q, j->d, &j->order);
    bwd_pairs(z, j);
    weighted_rows(dk, at * d->head_dim, z, z->ds, z->eds, d->scale, &j->packed_q, &j->group_order,
                  &j->d->num);
    if (d->dropout.p > 0.0)
        times_factors(z->p, z->ep, z, &j->d->num);
    weighted_rows(dv, at * d->head_dim_v, z, z->p, z->ep, 1.0, &j->packed_dout, &j->group_order, &j->d->num);
}

assay_status ref_bound_attention_bwd(ref_pair dq, ref_pair dk, ref_pair dv, const double *dout,
                                     const double *q, const double *k, const double *v, const double *o,
                                     const double *lse, const ref_attention_desc *desc, assay_dtype p_dtype,
                                     const ref_declared *d)
{
    const int64_t width = desc->head_dim > desc->head_dim_v ? desc->head_dim : desc->head_dim_v;
    const int64_t group_queries = desc->seq_q * (desc->heads / desc->groups);
    const int64_t capacity = desc->seq_k > group_queries ? desc->seq_k : group_queries;
    const int64_t queries = desc->seq_q * desc->batch * desc->heads;
    double *of_queries = malloc((size_t)(3 * queries + 1) * sizeof *of_queries);
    job j;
    job_init(&j, desc, p_dtype, d);
    j.dout = dout;
    j.q = q;
    j.k = k;
    j.v = v;
    j.o = o;
    j.lse = lse;
    const bool unpacked =
        !of_queries || !sight_init(&j.sight, desc) ||
        !packed_init(&j.packed_q, q, desc->seq_q, desc->batch, desc->heads, desc->head_dim) ||
        !packed_init(&j.packed_dout, dout, desc->seq_q, desc->batch, desc->heads, desc->head_dim_v) ||
        !packed_init(&j.packed_k, k, desc->seq_k, desc->batch, desc->groups, desc->head_dim) ||
        !packed_init(&j.packed_v, v, desc->seq_k, desc->batch, desc->groups, desc->head_dim_v);
    j.query_lse = of_queries;
    j.delta = of_queries ? of_queries + queries : NULL;
    j.edelta = of_queries ? of_queries + 2 * queries : NULL;
    for (int64_t row = 0; of_queries && row < queries; row++) {
        const int64_t head = row % (desc->batch * desc->heads), i = row / (desc->batch * desc->heads);
        const int64_t at = head * desc->seq_q + i;
        const ref_iv delta = row_delta(&j, row);
        j.query_lse[at] = lse[row];
        j.delta[at] = delta.v;
        j.edelta[at] = delta.b;
    }
    bool failed = false;
#pragma omp parallel reduction(|| : failed)
    {
        partners z;
        const bool ok = partners_init(&z, capacity, width) && !unpacked;
        failed = !ok;
#pragma omp for schedule(dynamic, 8)
        for (int64_t i = 0; i < queries; i++)
            if (ok)
                bwd_query(dq, &z, &j, row_of(i, desc->seq_q, desc->batch), i / (desc->seq_q * desc->batch));
#pragma omp for schedule(dynamic, 8)
        for (int64_t i = 0; i < desc->seq_k * desc->batch * desc->groups; i++)
            if (ok)
                bwd_key(dk, dv, &z, &j, row_of(i, desc->seq_k, desc->batch), i / (desc->seq_k * desc->batch));
        partners_free(&z);
    }
    free(of_queries);
    sight_free(&j.sight);
    packed_free(&j.packed_q);
    packed_free(&j.packed_dout);
    packed_free(&j.packed_k);
    packed_free(&j.packed_v);
    ASSAY_CHECK(!failed, ASSAY_OUT_OF_MEMORY, "attention_bwd: %lld keys of %lld", (long long)desc->seq_k,
                (long long)width);
    return ASSAY_OK;
}
