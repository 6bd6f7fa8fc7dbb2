/* Bounds of attention, forward and backward.
 *
 * Row by row (forward, dQ) and key by key (dK, dV), so that memory grows with the sequence, not with its
 * square. The backward is conditioned on the recorded lse and o.  Formulas: docs/TOLERANCES.md, section 4. */
#include "ref/bounds/bounds.h"
#include "ref/ops/vector.h"

#include <stdlib.h>

/* What one row (or key) meets: n visible partners, packed.  All arrays hold `capacity` partners. */
typedef struct partners {
    int64_t n, capacity;
    double *s, *es;   /* dot products q k, later scaled scores, and their bounds */
    double *dp, *edp; /* dot products dO v */
    double *p, *ep;   /* probabilities: absolute error ep */
    double *ds, *eds; /* gradient of the scores */
    double *rows;     /* [n, max(D, Dv)] packed partner rows */
    double *columns;  /* [max(D, Dv), n] the same, transposed */
    double *lse, *delta, *edelta;
    int64_t *index, *tile;
    double *sum, *esum; /* [max(D, Dv)] */
} partners;

static void partners_free(partners *x)
{
    free(x->s);
    free(x->index);
    *x = (partners){0};
}

static bool partners_init(partners *x, int64_t capacity, int64_t width)
{
    const int64_t n = capacity + 1, w = width + 1;
    *x = (partners){.capacity = capacity};
    double *at = malloc((size_t)(11 * n + 2 * n * w + 2 * w) * sizeof *at);
    x->s = at;
    x->index = malloc((size_t)(2 * n) * sizeof *x->index);
    if (!at || !x->index) {
        partners_free(x);
        return false;
    }
    double **const arrays[] = {&x->s,  &x->es,  &x->dp,  &x->edp,   &x->p,     &x->ep,
                               &x->ds, &x->eds, &x->lse, &x->delta, &x->edelta};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++, at += n)
        *arrays[i] = at;
    x->rows = at;
    x->columns = at + n * w;
    x->sum = at + 2 * n * w;
    x->esum = x->sum + w;
    x->tile = x->index + n;
    return true;
}

static bool visible(const ref_attention_desc *d, int64_t query_row, int64_t key_row)
{
    const int64_t q = d->q_position[query_row], k = d->k_position[key_row];
    return k <= q && (!d->first_key || k >= d->first_key[query_row]) && (d->window == 0 || k > q - d->window);
}

/* Packs row index[i] of x (width w) into rows [n,w] and columns [w,n]. */
static void pack(partners *z, const double *x, int64_t w)
{
    for (int64_t i = 0; i < z->n; i++) {
        const double *from = x + z->index[i] * w;
        ref_vec_copy(z->rows + i * w, from, w);
        for (int64_t c = 0; c < w; c++)
            z->columns[c * z->n + i] = from[c];
    }
}

/* s, es = scale (x . partner).  The scale is a constant of the kernel, the product with it one rounding. */
static void scores(partners *z, const double *x, double scale, int64_t w, const ref_declared *d,
                   const ref_order *order)
{
    ref_sum_columns(z->s, z->es, x, 1, z->columns, z->n, w, z->n, order);
    for (int64_t i = 0; i < z->n; i++) {
        z->s[i] *= scale;
        z->es[i] =
            fabs(scale) * z->es[i] * (1.0 + 4.0 * d->num.u) + 2.0 * d->num.u * fabs(z->s[i]) + d->num.eta;
    }
}

typedef struct job {
    const ref_attention_desc *desc;
    const ref_declared *d;
    ref_order order, group_order; /* group_order: sums over the queries of all heads of a group */
    double u_p, eta_p;            /* rounding of P and dS before a product */
    const double *dout, *q, *k, *v, *o, *lse;
} job;

static void job_init(job *j, const ref_attention_desc *desc, assay_dtype p_dtype, const ref_declared *d)
{
    *j = (job){.desc = desc, .d = d, .order = d->order};
    j->order.or_chain = true;
    j->group_order = j->order;
    /* Nobody declares whether heads or queries run in the outer loop of the sum over a group. */
    if (desc->heads != desc->groups && d->order.order == ASSAY_ORDER_SEQUENTIAL)
        j->group_order.order = ASSAY_ORDER_UNKNOWN;
    if (assay_dtype_is_float(p_dtype) && p_dtype != ASSAY_F64 &&
        (p_dtype != ASSAY_F32 || d->num.u < 0x1p-30)) {
        j->u_p = ldexp(1.0, -assay_dtype_precision(p_dtype));
        j->eta_p = ldexp(1.0, assay_dtype_emin(p_dtype) - assay_dtype_precision(p_dtype));
    }
}

/* Softmax of the scores: p sums to 1, ep absolute; returns the sum of ep, *lse and *else the logarithm.
 * *steps: rescale steps of an online softmax. */
static double softmax(partners *z, const job *j, ref_iv *lse, double *relative_sum, double *steps)
{
    const ref_num *n = &j->d->num;
    const int64_t tile = j->d->tile;
    double max = -HUGE_VAL, sum = 0.0, spread = 0.0;
    for (int64_t i = 0; i < z->n; i++)
        max = z->s[i] > max || isnan(z->s[i]) ? z->s[i] : max;
    for (int64_t i = 0; i < z->n; i++)
        sum += z->p[i] = exp(z->s[i] - max);
    const double merge = ceil(log2((double)j->order.lanes));
    *steps = tile > 0 ? (double)((j->desc->seq_k + tile - 1) / tile) + merge : 0.0;
    for (int64_t i = 0; i < z->n; i++) {
        z->p[i] /= sum;
        const double left = tile > 0 ? *steps - (double)(z->tile[i] / tile) : 0.0;
        const double delta = z->es[i] + 2.0 * n->u * fabs(z->s[i] - max) + n->f + left * (n->f + 2.0 * n->u);
        z->ep[i] = z->p[i] * expm1(delta) + n->tiny;
        spread += z->ep[i];
    }
    *relative_sum = ref_sum_positive(z->p, z->n, &j->order) + 2.0 * n->u * *steps;
    const double log_error = fmin(spread + *relative_sum, 0.5), l = log(sum);
    lse->v = max + l;
    lse->b = -log1p(-log_error) + (n->f + 2.0 * n->u) * fabs(l) + n->u * (fabs(lse->v) + fabs(max));
    lse->b *= 1.0 + 8.0 * n->u;
    return spread;
}

static void fwd_row(ref_pair o, ref_pair lse, partners *z, const job *j, int64_t query_row, int64_t a)
{
    const ref_attention_desc *d = j->desc;
    const ref_num *n = &j->d->num;
    const int64_t g = a / (d->heads / d->groups), b = query_row % d->batch, at = query_row * d->heads + a;
    double *y = o.y + at * d->head_dim_v, *bound = o.b + at * d->head_dim_v;
    z->n = 0;
    for (int64_t i = 0; i < d->seq_k; i++)
        if (visible(d, query_row, i * d->batch + b)) {
            z->tile[z->n] = i;
            z->index[z->n++] = (i * d->batch + b) * d->groups + g;
        }
    if (z->n == 0) {
        ref_vec_zero(y, d->head_dim_v);
        ref_vec_zero(bound, d->head_dim_v);
        lse.y[at] = -HUGE_VAL;
        lse.b[at] = 0.0;
        return;
    }
    pack(z, j->k, d->head_dim);
    scores(z, j->q + at * d->head_dim, d->scale, d->head_dim, j->d, &j->order);
    ref_iv l;
    double sum_error, steps;
    const double spread = softmax(z, j, &l, &sum_error, &steps);
    lse.y[at] = l.v;
    lse.b[at] = l.b;
    pack(z, j->v, d->head_dim_v);
    ref_sum_columns(y, bound, z->p, 1, z->rows, d->head_dim_v, z->n, d->head_dim_v, &j->order);
    /* Two passes may multiply with exp(S - lse) instead of dividing: lse's own roundings do not cancel then.
     */
    const double common = sum_error + 2.0 * n->u +
                          (j->d->tile > 0 ? 0.0 : (n->f + 2.0 * n->u) * (1.0 + fabs(l.v)) + n->u * fabs(l.v));
    for (int64_t c = 0; c < d->head_dim_v; c++) {
        double from_p = 0.0, rounded_p = 0.0, magnitude = 0.0;
        for (int64_t i = 0; i < z->n; i++) {
            const double v = z->rows[i * d->head_dim_v + c];
            from_p += z->ep[i] * fabs(v - y[c]);
            magnitude += z->p[i] * fabs(v);
            rounded_p += (j->u_p * z->p[i] + j->eta_p) * fabs(v);
        }
        const double first =
            from_p + rounded_p + bound[c] + steps * 2.0 * n->u * magnitude + common * fabs(y[c]);
        bound[c] = first * (1.0 + 2.0 * (spread + sum_error)) / (1.0 - fmin(spread, 0.5)) + n->eta;
    }
}

assay_status ref_bound_attention_fwd(ref_pair o, ref_pair lse, const double *q, const double *k,
                                     const double *v, const ref_attention_desc *desc, assay_dtype p_dtype,
                                     const ref_declared *d)
{
    const int64_t width = desc->head_dim > desc->head_dim_v ? desc->head_dim : desc->head_dim_v;
    bool failed = false;
    job j;
    job_init(&j, desc, p_dtype, d);
    j.q = q;
    j.k = k;
    j.v = v;
#pragma omp parallel reduction(|| : failed)
    {
        partners z;
        const bool ok = partners_init(&z, desc->seq_k, width);
        failed = !ok;
#pragma omp for schedule(dynamic, 8)
        for (int64_t i = 0; i < desc->seq_q * desc->batch * desc->heads; i++)
            if (ok)
                fwd_row(o, lse, &z, &j, i / desc->heads, i % desc->heads);
        partners_free(&z);
    }
    ASSAY_CHECK(!failed, ASSAY_OUT_OF_MEMORY, "attention_fwd: %lld keys of %lld", (long long)desc->seq_k,
                (long long)width);
    return ASSAY_OK;
}

/* P = exp(S - lse), dS = P (dP - D) from s, es, dp, edp, lse, delta, edelta. */
static void bwd_pairs(partners *z, const job *j)
{
    const ref_num *n = &j->d->num;
    for (int64_t i = 0; i < z->n; i++) {
        /* S - lse, also as exp2(S log2 e - lse log2 e) with rounded factors */
        const double shift = z->s[i] - z->lse[i];
        const double delta = z->es[i] + n->u * (fabs(shift) + fabs(z->s[i]) + fabs(z->lse[i])) + n->f;
        z->p[i] = exp(shift);
        z->ep[i] = z->p[i] * expm1(delta) + n->tiny;
        const ref_iv inner = iv_sub(n, (ref_iv){z->dp[i], z->edp[i]}, (ref_iv){z->delta[i], z->edelta[i]});
        const ref_iv ds = iv_mul(n, (ref_iv){z->p[i], z->ep[i]}, inner);
        z->ds[i] = ds.v;
        /* the scale may be multiplied in here (a constant and a rounding); dS may be rounded for its product
         */
        z->eds[i] = ds.b + (2.0 * n->u + j->u_p) * (fabs(ds.v) + ds.b) + (j->u_p > 0.0 ? j->eta_p : 0.0);
        z->ep[i] += j->u_p * (z->p[i] + z->ep[i]) + (j->u_p > 0.0 ? j->eta_p : 0.0);
    }
}

/* out [width] = factor sum_i t_i rows_i with errors et of the t */
static void weighted_rows(ref_pair out, int64_t at, partners *z, const double *t, const double *et,
                          double factor, int64_t width, const ref_order *order, const ref_num *n)
{
    double *y = out.y + at, *b = out.b + at;
    ref_sum_columns(y, b, t, 1, z->rows, width, z->n, width, order);
    for (int64_t c = 0; c < width; c++) {
        double own = 0.0;
        for (int64_t i = 0; i < z->n; i++)
            own += et[i] * fabs(z->rows[i * width + c]);
        const double sum = b[c] + own * (1.0 + 2.0 * (double)z->n * order->u);
        y[c] *= factor;
        b[c] =
            factor == 1.0 ? sum : fabs(factor) * sum * (1.0 + 4.0 * n->u) + 2.0 * n->u * fabs(y[c]) + n->eta;
    }
}

/* D_i = sum dO O with its bound */
static ref_iv row_delta(const job *j, int64_t at)
{
    const int64_t w = j->desc->head_dim_v;
    return ref_sum_dot(j->dout + at * w, j->o + at * w, w, &j->order);
}

static void bwd_query(ref_pair dq, partners *z, const job *j, int64_t query_row, int64_t a)
{
    const ref_attention_desc *d = j->desc;
    const int64_t g = a / (d->heads / d->groups), b = query_row % d->batch, at = query_row * d->heads + a;
    const ref_iv delta = row_delta(j, at);
    z->n = 0;
    for (int64_t i = 0; i < d->seq_k; i++)
        if (visible(d, query_row, i * d->batch + b)) {
            z->lse[z->n] = j->lse[at];
            z->delta[z->n] = delta.v;
            z->edelta[z->n] = delta.b;
            z->index[z->n++] = (i * d->batch + b) * d->groups + g;
        }
    pack(z, j->v, d->head_dim_v);
    ref_sum_columns(z->dp, z->edp, j->dout + at * d->head_dim_v, 1, z->columns, z->n, d->head_dim_v, z->n,
                    &j->order);
    pack(z, j->k, d->head_dim);
    scores(z, j->q + at * d->head_dim, d->scale, d->head_dim, j->d, &j->order);
    bwd_pairs(z, j);
    weighted_rows(dq, at * d->head_dim, z, z->ds, z->eds, d->scale, d->head_dim, &j->order, &j->d->num);
}

/* deltas [Tq, A]: D_i of every query row */
static void bwd_key(ref_pair dk, ref_pair dv, partners *z, const job *j, const ref_iv *deltas,
                    int64_t key_row, int64_t g)
{
    const ref_attention_desc *d = j->desc;
    const int64_t ratio = d->heads / d->groups, b = key_row % d->batch, at = key_row * d->groups + g;
    z->n = 0;
    for (int64_t a = g * ratio; a < (g + 1) * ratio; a++)
        for (int64_t i = 0; i < d->seq_q; i++) {
            const int64_t query_row = i * d->batch + b, from = query_row * d->heads + a;
            if (!visible(d, query_row, key_row))
                continue;
            z->lse[z->n] = j->lse[from];
            z->delta[z->n] = deltas[from].v;
            z->edelta[z->n] = deltas[from].b;
            z->index[z->n++] = from;
        }
    pack(z, j->dout, d->head_dim_v);
    ref_sum_columns(z->dp, z->edp, j->v + at * d->head_dim_v, 1, z->columns, z->n, d->head_dim_v, z->n,
                    &j->order);
    pack(z, j->q, d->head_dim);
    scores(z, j->k + at * d->head_dim, d->scale, d->head_dim, j->d, &j->order);
    bwd_pairs(z, j);
    weighted_rows(dk, at * d->head_dim, z, z->ds, z->eds, d->scale, d->head_dim, &j->group_order, &j->d->num);
    pack(z, j->dout, d->head_dim_v);
    weighted_rows(dv, at * d->head_dim_v, z, z->p, z->ep, 1.0, d->head_dim_v, &j->group_order, &j->d->num);
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
    ref_iv *deltas = malloc((size_t)(queries + 1) * sizeof *deltas);
    bool failed = deltas == NULL;
    job j;
    job_init(&j, desc, p_dtype, d);
    j = (job){desc, d, j.order, j.group_order, j.u_p, j.eta_p, dout, q, k, v, o, lse};
    for (int64_t i = 0; deltas && i < queries; i++)
        deltas[i] = row_delta(&j, i);
#pragma omp parallel reduction(|| : failed)
    {
        partners z;
        const bool ok = partners_init(&z, capacity, width) && deltas;
        failed = failed || !ok;
#pragma omp for schedule(dynamic, 8)
        for (int64_t i = 0; i < queries; i++)
            if (ok)
                bwd_query(dq, &z, &j, i / desc->heads, i % desc->heads);
#pragma omp for schedule(dynamic, 8)
        for (int64_t i = 0; i < desc->seq_k * desc->batch * desc->groups; i++)
            if (ok)
                bwd_key(dk, dv, &z, &j, deltas, i / desc->groups, i % desc->groups);
        partners_free(&z);
    }
    free(deltas);
    ASSAY_CHECK(!failed, ASSAY_OUT_OF_MEMORY, "attention_bwd: %lld keys of %lld", (long long)desc->seq_k,
                (long long)width);
    return ASSAY_OK;
}
