/* Attention of ref/ops/attention.c in tiles.
 *
 * One (batch row, head) of the forward and one (batch row, group) of the backward is one piece of independent
 * work.  A piece goes through its queries in tiles of TILE rows: the scores of a tile are one matrix product,
 * the probability of an invisible key is zero, and the sums over keys (or queries) are matrix products again.
 * The tiles are fixed by the sizes, so the bits do not depend on the number of threads (OpenBLAS itself on
 * one thread, as in linear.c).  Allocates the score matrices of one tile for each piece. */
#include "ref/fast.h"
#include "ref/fast/vector.h"

#include <cblas.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>

enum { TILE = 64 };

static void check_desc(const ref_attention_desc *d)
{
    assert(d->batch >= 0 && d->seq_q >= 0 && d->seq_k >= 0 && d->window >= 0);
    assert(d->groups > 0 && d->heads % d->groups == 0 && d->head_dim >= 0 && d->head_dim_v >= 0);
    assert(d->seq_k <= INT_MAX && d->head_dim <= INT_MAX && d->head_dim_v <= INT_MAX);
    assert(d->batch == 0 || d->heads <= INT_MAX / d->batch / (1 + d->head_dim + d->head_dim_v));
}

static double *scratch(int64_t rows, int64_t columns)
{
    double *x = calloc((size_t)(rows * columns + 1), sizeof *x);
    assert(x);
    return x;
}

/* --- matrices inside tensors -------------------------------------------------------------------------------- */

/* One head of one batch row of a tensor [sequence, batch, heads, dim]: a matrix with rows `stride` apart. */
typedef struct view {
    const double *x;
    int64_t stride, rows, dim;
} view;

static view view_head(const double *x, int64_t rows, int64_t batch, int64_t b, int64_t heads, int64_t head,
                      int64_t dim)
{
    return (view){x + (b * heads + head) * dim, batch * heads * dim, rows, dim};
}

static view view_rows(view v, int64_t start, int64_t rows)
{
    return (view){v.x + start * v.stride, v.stride, rows, v.dim};
}

/* A finite number times zero is zero; infinity and NaN give NaN. */
static bool all_finite(view v)
{
    double zero = 0.0;
    for (int64_t i = 0; i < v.rows; i++)
        for (int64_t c = 0; c < v.dim; c++)
            zero += 0.0 * v.x[i * v.stride + c];
    return zero == 0.0;
}

/* --- tiles -------------------------------------------------------------------------------------------------- */

/* The positions that one query sees: first <= k_position <= last. */
typedef struct span {
    int64_t first, last;
} span;

/* Queries [i0, i0 + rows) of batch row b against keys [j0, j0 + keys), which hold all that they see. */
typedef struct tile {
    int64_t i0, rows, j0, keys;
    span seen[TILE];
    const int64_t *key_position; /* of the first key; the next one is `batch` further */
    int64_t batch;
} tile;

static span span_of(const ref_attention_desc *d, int64_t query_row)
{
    const int64_t q = d->q_position[query_row];
    span s = {INT64_MIN, q};
    if (d->first_key)
        s.first = d->first_key[query_row];
    if (d->window > 0 && q - d->window + 1 > s.first)
        s.first = q - d->window + 1;
    return s;
}

static bool visible(const tile *t, int64_t i, int64_t j)
{
    const int64_t k = t->key_position[j * t->batch];
    return k >= t->seen[i].first && k <= t->seen[i].last;
}

static tile tile_make(const ref_attention_desc *d, int64_t b, int64_t i0)
{
    tile t = {.i0 = i0, .rows = d->seq_q - i0 < TILE ? d->seq_q - i0 : TILE, .batch = d->batch};
    span any = {INT64_MAX, INT64_MIN};
    for (int64_t i = 0; i < t.rows; i++) {
        t.seen[i] = span_of(d, (i0 + i) * d->batch + b);
        any.first = t.seen[i].first < any.first ? t.seen[i].first : any.first;
        any.last = t.seen[i].last > any.last ? t.seen[i].last : any.last;
    }
    const int64_t *k = d->k_position + b;
    int64_t end = d->seq_k;
    while (end > 0 && (k[(end - 1) * d->batch] < any.first || k[(end - 1) * d->batch] > any.last))
        end--;
    while (t.j0 < end && (k[t.j0 * d->batch] < any.first || k[t.j0 * d->batch] > any.last))
        t.j0++;
    t.keys = end - t.j0;
    t.key_position = k + t.j0 * d->batch;
    return t;
}

/* s [rows,keys] = alpha a [rows,dim] b [keys,dim]^T */
static void tile_scores(double *s, const tile *t, double alpha, view a, view b)
{
    if (a.dim == 0)
        ref_vec_zero(s, t->rows * t->keys);
    else
        cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)t->rows, (int)t->keys, (int)a.dim, alpha,
                    a.x, (int)a.stride, b.x, (int)b.stride, 0.0, s, (int)t->keys);
}

/* y [rows,dim] (rows `stride` apart) = alpha w [rows,keys] x [keys,dim], over the visible keys only.  w is
 * zero elsewhere, which is enough as long as x is finite: zero times NaN is NaN. */
static void tile_sum_keys(double *y, int64_t stride, const tile *t, double alpha, const double *w, view x,
                          bool finite)
{
    if (finite && t->keys > 0 && x.dim > 0) {
        cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)t->rows, (int)x.dim, (int)t->keys, alpha,
                    w, (int)t->keys, x.x, (int)x.stride, 0.0, y, (int)stride);
        return;
    }
    for (int64_t i = 0; i < t->rows; i++) {
        ref_vec_zero(y + i * stride, x.dim);
        for (int64_t j = 0; j < t->keys; j++)
            if (visible(t, i, j))
                ref_vec_axpy(y + i * stride, alpha * w[i * t->keys + j], x.x + j * x.stride, x.dim);
    }
}

/* y [keys,dim] += alpha w [rows,keys]^T x [rows,dim], each key over the queries that see it. */
static void tile_sum_queries(double *y, int64_t stride, const tile *t, double alpha, const double *w, view x,
                             bool finite)
{
    if (finite && t->keys > 0 && x.dim > 0) {
        cblas_dgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)t->keys, (int)x.dim, (int)t->rows, alpha, w,
                    (int)t->keys, x.x, (int)x.stride, 1.0, y, (int)stride);
        return;
    }
    for (int64_t i = 0; i < t->rows; i++)
        for (int64_t j = 0; j < t->keys; j++)
            if (visible(t, i, j))
                ref_vec_axpy(y + j * stride, alpha * w[i * t->keys + j], x.x + i * x.stride, x.dim);
}

/* p = exp(p - shift) */
REF_WIDE static void exp_row(double *p, int64_t n, double shift)
{
#pragma omp simd
    for (int64_t j = 0; j < n; j++)
        p[j] = ref_fast_exp(p[j] - shift);
}

/* w of head a, times what dropout makes of each probability of query i */
static void drop_row(double *w, const tile *t, int64_t i, const ref_attention_desc *d, int64_t b, int64_t a)
{
    for (int64_t j = 0; d->dropout.p > 0.0 && j < t->keys; j++)
        if (visible(t, i, j))
            w[j] *= ref_attention_factor(d, (t->i0 + i) * d->batch + b, a, (t->j0 + j) * d->batch + b);
}

/* --- forward ------------------------------------------------------------------------------------------------ */

/* Turns the scores of query i into exp(score - max); returns their sum and the max. */
static double softmax_row(double *p, double *max, const tile *t, int64_t i)
{
    double sum = 0.0;
    *max = -HUGE_VAL;
    for (int64_t j = 0; j < t->keys; j++) {
        if (!visible(t, i, j))
            p[j] = -HUGE_VAL;
        /* A NaN score must reach the output: it wins and stays. */
        else if (p[j] > *max || isnan(p[j]))
            *max = p[j];
    }
    if (*max == -HUGE_VAL) {
        ref_vec_zero(p, t->keys);
        return 0.0;
    }
    exp_row(p, t->keys, *max);
    for (int64_t j = 0; j < t->keys; j++)
        sum += p[j];
    return sum;
}

/* The head of o and lse that belongs to q; p is scratch [TILE,seq_k]. */
static void attention_fwd_head(double *o, double *lse, double *p, view q, view k, view v,
                               const ref_attention_desc *d, int64_t b, int64_t a)
{
    const bool finite = all_finite(v);
    const int64_t stride = d->batch * d->heads * d->head_dim_v, lse_stride = d->batch * d->heads;
    for (int64_t i0 = 0; i0 < d->seq_q; i0 += TILE) {
        const tile t = tile_make(d, b, i0);
        double *out = o + i0 * stride, max, sum[TILE];
        tile_scores(p, &t, d->scale, view_rows(q, i0, t.rows), view_rows(k, t.j0, t.keys));
        for (int64_t i = 0; i < t.rows; i++) {
            sum[i] = softmax_row(p + i * t.keys, &max, &t, i);
            lse[(i0 + i) * lse_stride] = max == -HUGE_VAL ? max : max + log(sum[i]);
            drop_row(p + i * t.keys, &t, i, d, b, a);
        }
        tile_sum_keys(out, stride, &t, 1.0, p, view_rows(v, t.j0, t.keys), finite);
        for (int64_t i = 0; i < t.rows; i++)
            for (int64_t c = 0; c < d->head_dim_v && sum[i] != 0.0; c++)
                out[i * stride + c] /= sum[i];
    }
}

void ref_fast_attention_fwd(double *o, double *lse, const double *q, const double *k, const double *v,
                            const ref_attention_desc *d)
{
    check_desc(d);
    const int64_t work = d->batch * d->heads * d->seq_q * d->seq_k * (d->head_dim + d->head_dim_v);
#pragma omp parallel for schedule(dynamic) if (ref_vec_parallel(work))
    for (int64_t piece = 0; piece < d->batch * d->heads; piece++) {
        const int64_t b = piece / d->heads, a = piece % d->heads, g = a / (d->heads / d->groups);
        double *p = scratch(TILE, d->seq_k);
        attention_fwd_head(o + piece * d->head_dim_v, lse + piece, p,
                           view_head(q, d->seq_q, d->batch, b, d->heads, a, d->head_dim),
                           view_head(k, d->seq_k, d->batch, b, d->groups, g, d->head_dim),
                           view_head(v, d->seq_k, d->batch, b, d->groups, g, d->head_dim_v), d, b, a);
        free(p);
    }
}

/* --- backward ----------------------------------------------------------------------------------------------- */

typedef struct bwd_tensors {
    double *dq, *dk, *dv;
    const double *dout, *q, *k, *v, *o, *lse;
} bwd_tensors;

/* p = exp(s - lse) over the scores s, dp turns into ds = p (dp - delta); both zero where the key is
 * invisible. */
static void softmax_bwd_row(double *p, double *dp, double lse, double delta, const tile *t, int64_t i)
{
    exp_row(p, t->keys, lse);
    for (int64_t j = 0; j < t->keys; j++) {
        const bool seen = visible(t, i, j);
        p[j] = seen ? p[j] : 0.0;
        dp[j] = seen ? p[j] * (dp[j] - delta) : 0.0;
    }
}

/* Head a of the queries against its group g; p and dp are scratch [TILE,seq_k]. */
static void attention_bwd_head(const bwd_tensors *x, double *p, double *dp, const ref_attention_desc *d,
                               int64_t b, int64_t g, int64_t a)
{
    const int64_t head = b * d->heads + a, group = b * d->groups + g;
    const view q = view_head(x->q, d->seq_q, d->batch, b, d->heads, a, d->head_dim);
    const view k = view_head(x->k, d->seq_k, d->batch, b, d->groups, g, d->head_dim);
    const view v = view_head(x->v, d->seq_k, d->batch, b, d->groups, g, d->head_dim_v);
    const view o = view_head(x->o, d->seq_q, d->batch, b, d->heads, a, d->head_dim_v);
    const view dout = view_head(x->dout, d->seq_q, d->batch, b, d->heads, a, d->head_dim_v);
    const bool q_finite = all_finite(q), k_finite = all_finite(k), dout_finite = all_finite(dout);
    for (int64_t i0 = 0; i0 < d->seq_q; i0 += TILE) {
        const tile t = tile_make(d, b, i0);
        const view qt = view_rows(q, i0, t.rows), dot = view_rows(dout, i0, t.rows);
        const view kt = view_rows(k, t.j0, t.keys), vt = view_rows(v, t.j0, t.keys);
        tile_scores(p, &t, d->scale, qt, kt);
        tile_scores(dp, &t, 1.0, dot, vt);
        for (int64_t i = 0; i < t.rows; i++) {
            const double delta = ref_vec_dot(dot.x + i * dot.stride, o.x + (i0 + i) * o.stride, o.dim);
            const double lse = x->lse[(i0 + i) * d->batch * d->heads + head];
            drop_row(dp + i * t.keys, &t, i, d, b, a);
            softmax_bwd_row(p + i * t.keys, dp + i * t.keys, lse, delta, &t, i);
            drop_row(p + i * t.keys, &t, i, d, b, a); /* what dV takes */
        }
        tile_sum_queries(x->dv + t.j0 * v.stride + group * v.dim, v.stride, &t, 1.0, p, dot, dout_finite);
        tile_sum_queries(x->dk + t.j0 * k.stride + group * k.dim, k.stride, &t, d->scale, dp, qt, q_finite);
        tile_sum_keys(x->dq + i0 * q.stride + head * q.dim, q.stride, &t, d->scale, dp, kt, k_finite);
    }
}

void ref_fast_attention_bwd(double *dq, double *dk, double *dv, const double *dout, const double *q,
                            const double *k, const double *v, const double *o, const double *lse,
                            const ref_attention_desc *d)
{
    check_desc(d);
    const bwd_tensors x = {dq, dk, dv, dout, q, k, v, o, lse};
    const int64_t ratio = d->heads / d->groups;
    const int64_t work = 2 * d->batch * d->heads * d->seq_q * d->seq_k * (d->head_dim + d->head_dim_v);
    ref_vec_zero(dk, d->seq_k * d->batch * d->groups * d->head_dim);
    ref_vec_zero(dv, d->seq_k * d->batch * d->groups * d->head_dim_v);
#pragma omp parallel for schedule(dynamic) if (ref_vec_parallel(work))
    for (int64_t piece = 0; piece < d->batch * d->groups; piece++) {
        const int64_t b = piece / d->groups, g = piece % d->groups;
        double *p = scratch(TILE, d->seq_k), *dp = scratch(TILE, d->seq_k);
        for (int64_t a = g * ratio; a < (g + 1) * ratio; a++)
            attention_bwd_head(&x, p, dp, d, b, g, a);
        free(p);
        free(dp);
    }
}
