/* Bounds of attention, forward and backward.
 *
 * Row by row (forward, dQ) and key by key (dK, dV), so that memory grows with the sequence, not with its
 * square. The backward is conditioned on the recorded lse and o.  Formulas: docs/TOLERANCES.md, section 4. */
#include "ref/bounds/bounds.h"
#include "ref/fast/vector.h"

#include <stdlib.h>

/* --- operands, packed once ---------------------------------------------------------------------------------- */

/* A tensor [sequence, batch, heads, width] head by head: as rows [batch, heads, sequence, width] and as
 * columns [batch, heads, width, stride], which are readable REF_PANEL beyond the sequence. */
typedef struct packed {
    double *rows, *columns;
    int64_t sequence, batch, heads, width, stride;
} packed;

static void packed_free(packed *x)
{
    free(x->rows);
    *x = (packed){0};
}

static bool packed_init(packed *p, const double *x, int64_t sequence, int64_t batch, int64_t heads,
                        int64_t width)
{
    const int64_t pieces = batch * heads, stride = sequence + REF_PANEL;
    double *at = malloc((size_t)(pieces * width * (sequence + stride) + 1) * sizeof *at);
    *p = (packed){at, at ? at + pieces * width * sequence : NULL, sequence, batch, heads, width, stride};
    if (!at)
        return false;
#pragma omp parallel for schedule(static) if (ref_vec_parallel(pieces * width * sequence))
    for (int64_t piece = 0; piece < pieces; piece++) {
        double *rows = p->rows + piece * sequence * width, *columns = p->columns + piece * width * stride;
        for (int64_t i = 0; i < sequence; i++)
            ref_vec_copy(rows + i * width, x + (i * pieces + piece) * width, width);
        for (int64_t c = 0; c < width; c++) {
            for (int64_t i = 0; i < sequence; i++)
                columns[c * stride + i] = rows[i * width + c];
            ref_vec_zero(columns + c * stride + sequence, REF_PANEL);
        }
    }
    return true;
}

/* --- what one row (or key) meets ---------------------------------------------------------------------------- */

/* Partners that are neighbours: of head `head`, sequence places start ... start+n-1. */
typedef struct run {
    int64_t head, start, n;
} run;

/* n visible partners.  Arrays hold `capacity` partners and a panel more. */
typedef struct partners {
    int64_t n, n_runs, batch_row;
    run *runs;
    double *s, *es;   /* dot products q k, later scaled scores, and their bounds */
    double *dp, *edp; /* dot products dO v */
    double *p, *ep;   /* probabilities: absolute error ep */
    double *ds, *eds; /* gradient of the scores */
    double *lse, *delta, *edelta;
    double *passed;               /* rescale steps of the online softmax before the partner */
    double *gathered;             /* [capacity, max(D, Dv)] rows of several runs */
    double *own, *size, *rounded; /* [max(D, Dv)] */
} partners;

static void partners_free(partners *x)
{
    free(x->s);
    free(x->runs);
    *x = (partners){0};
}

static bool partners_init(partners *x, int64_t capacity, int64_t width)
{
    const int64_t n = capacity + REF_PANEL;
    *x = (partners){0};
    double *at = malloc((size_t)(12 * n + n * width + 3 * width) * sizeof *at);
    x->s = at;
    x->runs = malloc((size_t)n * sizeof *x->runs);
    if (!at || !x->runs) {
        partners_free(x);
        return false;
    }
    double **const arrays[] = {&x->s,  &x->es,  &x->dp,  &x->edp,   &x->p,      &x->ep,
                               &x->ds, &x->eds, &x->lse, &x->delta, &x->edelta, &x->passed};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++, at += n)
        *arrays[i] = at;
    x->gathered = at;
    x->own = at + n * width;
    x->size = x->own + width;
    x->rounded = x->size + width;
    return true;
}

static void partners_clear(partners *z, int64_t batch_row)
{
    z->n = z->n_runs = 0;
    z->batch_row = batch_row;
}

static void partners_add(partners *z, int64_t head, int64_t place)
{
    run *last = z->n_runs > 0 ? &z->runs[z->n_runs - 1] : NULL;
    z->n++;
    if (last && last->head == head && last->start + last->n == place)
        last->n++;
    else
        z->runs[z->n_runs++] = (run){head, place, 1};
}

static bool visible(const ref_attention_desc *d, int64_t query_row, int64_t key_row)
{
    const int64_t q = d->q_position[query_row], k = d->k_position[key_row];
    return k <= q && (!d->first_key || k >= d->first_key[query_row]) && (d->window == 0 || k > q - d->window);
}

/* y, bound [n] = x [width] . partner.  A run is summed in whole panels: what they hold beyond it is
 * overwritten by the next run, or ignored. */
static void dots(double *y, double *bound, const partners *z, const double *x, const packed *other,
                 const ref_order *order)
{
    int64_t at = 0;
    for (int64_t i = 0; i < z->n_runs; at += z->runs[i++].n) {
        const run *r = &z->runs[i];
        const int64_t piece = z->batch_row * other->heads + r->head;
        const double *columns = other->columns + piece * other->width * other->stride + r->start;
        ref_sum_columns(y + at, bound + at, x, 1, columns, other->stride, other->width,
                        (r->n + REF_PANEL - 1) / REF_PANEL * REF_PANEL, order);
    }
}

/* The partners' rows [n, width], one below the other. */
static const double *partner_rows(const partners *z, const packed *other)
{
    const int64_t w = other->width;
    double *to = z->gathered;
    for (int64_t i = 0; i < z->n_runs; i++) {
        const run *r = &z->runs[i];
        const double *from =
            other->rows + ((z->batch_row * other->heads + r->head) * other->sequence + r->start) * w;
        if (z->n_runs == 1)
            return from;
        ref_vec_copy(to, from, r->n * w);
        to += r->n * w;
    }
    return z->gathered;
}

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

/* s, es = scale (x . partner) */
static void scores(partners *z, const double *x, double scale, const packed *other, const ref_declared *d,
                   const ref_order *order)
{
    dots(z->s, z->es, z, x, other, order);
    scale_scores(z->s, z->es, z->n, scale, &d->num);
}

typedef struct job {
    const ref_attention_desc *desc;
    const ref_declared *d;
    ref_order order, group_order; /* group_order: sums over the queries of all heads of a group */
    double u_p, eta_p;            /* rounding of P and dS before a product */
    const double *dout, *q, *k, *v, *o, *lse;
    packed packed_q, packed_k, packed_v, packed_dout; /* what is met: keys by queries, queries by keys */
    double *passed;                                   /* forward: [seq_k] key / tile, or zeros */
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

/* p /= sum; ep = relative errors of p */
REF_WIDE static void softmax_errors(partners *z, const job *j, double max, double sum, double steps)
{
    const ref_num n = j->d->num;
    const double *s = z->s, *es = z->es, *passed = z->passed;
    const double again = j->d->tile > 0 ? n.f + 2.0 * n.u : 0.0;
    double *p = z->p, *ep = z->ep;
#pragma omp simd
    for (int64_t i = 0; i < z->n; i++) {
        p[i] /= sum;
        ep[i] = es[i] + 2.0 * n.u * fabs(s[i] - max) + n.f + (steps - passed[i]) * again;
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
    softmax_errors(z, j, max, sum, *steps);
    for (int64_t i = 0; i < z->n; i++) {
        z->ep[i] = z->p[i] * iv_expm1(z->ep[i]) + n->tiny;
        spread += z->ep[i];
    }
    *relative_sum = ref_sum_positive(z->p, z->n, &j->order) + 2.0 * n->u * *steps;
    const double log_error = fmin(spread + *relative_sum, 0.5), l = log(sum);
    lse->v = max + l;
    lse->b = -log1p(-log_error) + (n->f + 2.0 * n->u) * fabs(l) + n->u * (fabs(lse->v) + fabs(max));
    lse->b *= 1.0 + 8.0 * n->u;
    return spread;
}

/* own [width] = sum ep |v - y| over n partners v */
REF_WIDE static void value_errors(double *own, const double *v, const double *y, const double *ep, int64_t n,
                                  int64_t width)
{
    for (int64_t c = 0; c < width; c++)
        own[c] = 0.0;
    for (int64_t i = 0; i < n; i++) {
#pragma omp simd
        for (int64_t c = 0; c < width; c++)
            own[c] += ep[i] * fabs(v[i * width + c] - y[c]);
    }
}

/* rounded [width] = sum (u p + eta) |v|: P rounded before the product; scratch [n] */
static void rounding_errors(double *rounded, double *scratch, const partners *z, const double *v,
                            const job *j, int64_t width)
{
    ref_vec_zero(rounded, width);
    if (j->u_p == 0.0 && j->eta_p == 0.0)
        return;
    for (int64_t i = 0; i < z->n; i++)
        scratch[i] = j->u_p * z->p[i] + j->eta_p;
    ref_sum_magnitudes(rounded, scratch, v, width, z->n, width);
}

static void fwd_row(ref_pair o, ref_pair lse, partners *z, const job *j, int64_t query_row, int64_t a)
{
    const ref_attention_desc *d = j->desc;
    const ref_num *n = &j->d->num;
    const int64_t g = a / (d->heads / d->groups), b = query_row % d->batch, at = query_row * d->heads + a;
    double *y = o.y + at * d->head_dim_v, *bound = o.b + at * d->head_dim_v;
    partners_clear(z, b);
    for (int64_t i = 0; i < d->seq_k; i++)
        if (visible(d, query_row, i * d->batch + b)) {
            z->passed[z->n] = j->passed[i];
            partners_add(z, g, i);
        }
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
    const double *rows = partner_rows(z, &j->packed_v);
    ref_sum_columns(y, bound, z->p, 1, rows, d->head_dim_v, z->n, d->head_dim_v, &j->order);
    value_errors(z->own, rows, y, z->ep, z->n, d->head_dim_v);
    rounding_errors(z->rounded, z->ds, z, rows, j, d->head_dim_v);
    ref_vec_zero(z->size, d->head_dim_v);
    if (steps > 0.0)
        ref_sum_magnitudes(z->size, z->p, rows, d->head_dim_v, z->n, d->head_dim_v);
    /* Two passes may multiply with exp(S - lse) instead of dividing: lse's own roundings do not cancel then.
     */
    const double common = sum_error + 2.0 * n->u +
                          (j->d->tile > 0 ? 0.0 : (n->f + 2.0 * n->u) * (1.0 + fabs(l.v)) + n->u * fabs(l.v));
    for (int64_t c = 0; c < d->head_dim_v; c++) {
        const double first =
            z->own[c] + z->rounded[c] + bound[c] + steps * 2.0 * n->u * z->size[c] + common * fabs(y[c]);
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
        !j.passed || !packed_init(&j.packed_k, k, desc->seq_k, desc->batch, desc->groups, desc->head_dim) ||
        !packed_init(&j.packed_v, v, desc->seq_k, desc->batch, desc->groups, desc->head_dim_v);
    for (int64_t i = 0; j.passed && i < desc->seq_k; i++)
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
    packed_free(&j.packed_k);
    packed_free(&j.packed_v);
    ASSAY_CHECK(!failed, ASSAY_OUT_OF_MEMORY, "attention_fwd: %lld keys of %lld", (long long)desc->seq_k,
                (long long)width);
    return ASSAY_OK;
}

/* ep = relative errors of P */
REF_WIDE static void bwd_errors(partners *z, const ref_num *num)
{
    const ref_num n = *num;
    const double *s = z->s, *es = z->es, *lse = z->lse;
    double *ep = z->ep;
#pragma omp simd
    for (int64_t i = 0; i < z->n; i++)
        /* S - lse, also as exp2(S log2 e - lse log2 e) with rounded factors */
        ep[i] = es[i] + n.u * (fabs(s[i] - lse[i]) + fabs(s[i]) + fabs(lse[i])) + n.f;
}

/* dS = P (dP - D) from p, ep, dp, edp, delta, edelta; P and dS may be rounded for their products. */
REF_WIDE static void bwd_scores(partners *z, const job *j)
{
    const ref_num num = j->d->num, *n = &num;
    const double u_p = j->u_p, eta_p = u_p > 0.0 ? j->eta_p : 0.0;
    const double *dp = z->dp, *edp = z->edp, *delta = z->delta, *edelta = z->edelta, *p = z->p;
    double *ep = z->ep, *ds = z->ds, *eds = z->eds;
#pragma omp simd
    for (int64_t i = 0; i < z->n; i++) {
        const ref_iv inner = iv_sub(n, (ref_iv){dp[i], edp[i]}, (ref_iv){delta[i], edelta[i]});
        const ref_iv product = iv_mul(n, (ref_iv){p[i], ep[i]}, inner);
        ds[i] = product.v;
        /* the scale may be multiplied in here: a constant and a rounding */
        eds[i] = product.b + (2.0 * n->u + u_p) * (fabs(product.v) + product.b) + eta_p;
        ep[i] += u_p * (p[i] + ep[i]) + eta_p;
    }
}

/* P = exp(S - lse), dS = P (dP - D) from s, es, dp, edp, lse, delta, edelta. */
static void bwd_pairs(partners *z, const job *j)
{
    bwd_errors(z, &j->d->num);
    for (int64_t i = 0; i < z->n; i++) {
        z->p[i] = exp(z->s[i] - z->lse[i]);
        z->ep[i] = z->p[i] * iv_expm1(z->ep[i]) + j->d->num.tiny;
    }
    bwd_scores(z, j);
}

/* out [width] = factor sum_i t_i partner_i with errors et of the t */
static void weighted_rows(ref_pair out, int64_t at, partners *z, const double *t, const double *et,
                          double factor, const packed *other, const ref_order *order, const ref_num *n)
{
    const int64_t width = other->width;
    const double *rows = partner_rows(z, other);
    double *y = out.y + at, *b = out.b + at;
    ref_sum_columns(y, b, t, 1, rows, width, z->n, width, order);
    ref_sum_magnitudes(z->own, et, rows, width, z->n, width);
    for (int64_t c = 0; c < width; c++) {
        const double sum = b[c] + z->own[c] * (1.0 + 2.0 * (double)z->n * order->u);
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
    partners_clear(z, b);
    for (int64_t i = 0; i < d->seq_k; i++)
        if (visible(d, query_row, i * d->batch + b)) {
            z->lse[z->n] = j->lse[at];
            z->delta[z->n] = delta.v;
            z->edelta[z->n] = delta.b;
            partners_add(z, g, i);
        }
    dots(z->dp, z->edp, z, j->dout + at * d->head_dim_v, &j->packed_v, &j->order);
    scores(z, j->q + at * d->head_dim, d->scale, &j->packed_k, j->d, &j->order);
    bwd_pairs(z, j);
    weighted_rows(dq, at * d->head_dim, z, z->ds, z->eds, d->scale, &j->packed_k, &j->order, &j->d->num);
}

/* deltas [Tq, A]: D_i of every query row */
static void bwd_key(ref_pair dk, ref_pair dv, partners *z, const job *j, const ref_iv *deltas,
                    int64_t key_row, int64_t g)
{
    const ref_attention_desc *d = j->desc;
    const int64_t ratio = d->heads / d->groups, b = key_row % d->batch, at = key_row * d->groups + g;
    partners_clear(z, b);
    for (int64_t a = g * ratio; a < (g + 1) * ratio; a++)
        for (int64_t i = 0; i < d->seq_q; i++) {
            const int64_t query_row = i * d->batch + b, from = query_row * d->heads + a;
            if (!visible(d, query_row, key_row))
                continue;
            z->lse[z->n] = j->lse[from];
            z->delta[z->n] = deltas[from].v;
            z->edelta[z->n] = deltas[from].b;
            partners_add(z, a, i);
        }
    dots(z->dp, z->edp, z, j->v + at * d->head_dim_v, &j->packed_dout, &j->order);
    scores(z, j->k + at * d->head_dim, d->scale, &j->packed_q, j->d, &j->order);
    bwd_pairs(z, j);
    weighted_rows(dk, at * d->head_dim, z, z->ds, z->eds, d->scale, &j->packed_q, &j->group_order,
                  &j->d->num);
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
    ref_iv *deltas = malloc((size_t)(queries + 1) * sizeof *deltas);
    job j;
    job_init(&j, desc, p_dtype, d);
    j.dout = dout;
    j.q = q;
    j.k = k;
    j.v = v;
    j.o = o;
    j.lse = lse;
    const bool unpacked =
        !deltas || !packed_init(&j.packed_q, q, desc->seq_q, desc->batch, desc->heads, desc->head_dim) ||
        !packed_init(&j.packed_dout, dout, desc->seq_q, desc->batch, desc->heads, desc->head_dim_v) ||
        !packed_init(&j.packed_k, k, desc->seq_k, desc->batch, desc->groups, desc->head_dim) ||
        !packed_init(&j.packed_v, v, desc->seq_k, desc->batch, desc->groups, desc->head_dim_v);
    for (int64_t i = 0; deltas && i < queries; i++)
        deltas[i] = row_delta(&j, i);
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
                bwd_key(dk, dv, &z, &j, deltas, row_of(i, desc->seq_k, desc->batch),
                        i / (desc->seq_k * desc->batch));
        partners_free(&z);
    }
    free(deltas);
    packed_free(&j.packed_q);
    packed_free(&j.packed_dout);
    packed_free(&j.packed_k);
    packed_free(&j.packed_v);
    ASSAY_CHECK(!failed, ASSAY_OUT_OF_MEMORY, "attention_bwd: %lld keys of %lld", (long long)desc->seq_k,
                (long long)width);
    return ASSAY_OK;
}
