/* Grouped-query attention with a causal mask, sliding window and document starts.
 *
 * One (batch row, head) of the forward and one (batch row, group) of the backward is one piece of independent
 * work; inside, queries and keys ascend.  Allocates one row of scratch for each piece. */
#include "ref/ops.h"
#include "ref/ops/vector.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void check_desc(const ref_attention_desc *d)
{
    assert(d->batch >= 0 && d->seq_q >= 0 && d->seq_k >= 0 && d->window >= 0);
    assert(d->groups > 0 && d->heads % d->groups == 0);
}

static double *scratch_row(int64_t n)
{
    double *row = malloc((size_t)(n + 1) * sizeof *row);
    assert(row);
    return row;
}

static bool visible(const ref_attention_desc *d, int64_t query_row, int64_t key_row)
{
    const int64_t q = d->q_position[query_row], k = d->k_position[key_row];
    return k <= q && (!d->first_key || k >= d->first_key[query_row]) && (d->window == 0 || k > q - d->window);
}

static double factor(const ref_attention_desc *d, int64_t query_row, int64_t head, int64_t key_row)
{
    return d->dropout.p > 0.0 ? ref_attention_factor(d, query_row, head, key_row) : 1.0;
}

/* One query row: scores of the visible keys, their softmax, the weighted sum of the values. */
static void attention_row(double *o, double *lse, double *row, const double *q, const double *k,
                          const double *v, const ref_attention_desc *d, int64_t query_row, int64_t b,
                          int64_t a)
{
    const int64_t g = a / (d->heads / d->groups);
    double max = -HUGE_VAL, sum = 0.0;
    for (int64_t j = 0; j < d->seq_k; j++) {
        const int64_t key_row = j * d->batch + b;
        row[j] = -HUGE_VAL;
        if (!visible(d, query_row, key_row))
            continue;
        row[j] = d->scale * ref_vec_dot(q, k + (key_row * d->groups + g) * d->head_dim, d->head_dim);
        /* A NaN score must reach the output: it wins and stays. */
        if (row[j] > max || isnan(row[j]))
            max = row[j];
    }
    ref_vec_zero(o, d->head_dim_v);
    *lse = max;
    if (max == -HUGE_VAL)
        return;
    for (int64_t j = 0; j < d->seq_k; j++) {
        if (!visible(d, query_row, j * d->batch + b))
            continue;
        const double p = exp(row[j] - max);
        sum += p; /* of all: what is dropped counts in the softmax */
        ref_vec_axpy(o, p * factor(d, query_row, a, j * d->batch + b),
                     v + ((j * d->batch + b) * d->groups + g) * d->head_dim_v, d->head_dim_v);
    }
    for (int64_t c = 0; c < d->head_dim_v; c++)
        o[c] /= sum;
    *lse = max + log(sum);
}

void ref_attention_fwd(double *o, double *lse, const double *q, const double *k, const double *v,
                       const ref_attention_desc *d)
{
    check_desc(d);
    const int64_t work = d->batch * d->heads * d->seq_q * d->seq_k * (d->head_dim + d->head_dim_v);
#pragma omp parallel for schedule(dynamic) if (ref_vec_parallel(work))
    for (int64_t piece = 0; piece < d->batch * d->heads; piece++) {
        const int64_t b = piece / d->heads, a = piece % d->heads;
        double *row = scratch_row(d->seq_k);
        for (int64_t i = 0; i < d->seq_q; i++) {
            const int64_t query_row = i * d->batch + b, at = query_row * d->heads + a;
            attention_row(o + at * d->head_dim_v, lse + at, row, q + at * d->head_dim, k, v, d, query_row, b,
                          a);
        }
        free(row);
    }
}

typedef struct bwd_tensors {
    double *dq, *dk, *dv;
    const double *dout, *q, *k, *v, *o, *lse;
} bwd_tensors;

static void attention_bwd_row(const bwd_tensors *x, const ref_attention_desc *d, int64_t i, int64_t b,
                              int64_t a)
{
    const int64_t g = a / (d->heads / d->groups), query_row = i * d->batch + b, at = query_row * d->heads + a;
    const double *q = x->q + at * d->head_dim, *dout = x->dout + at * d->head_dim_v;
    double *dq = x->dq + at * d->head_dim;
    const double delta = ref_vec_dot(dout, x->o + at * d->head_dim_v, d->head_dim_v);
    ref_vec_zero(dq, d->head_dim);
    for (int64_t j = 0; j < d->seq_k; j++) {
        const int64_t key_row = j * d->batch + b, key = key_row * d->groups + g;
        if (!visible(d, query_row, key_row))
            continue;
        const double *k = x->k + key * d->head_dim, *v = x->v + key * d->head_dim_v;
        const double p = exp(d->scale * ref_vec_dot(q, k, d->head_dim) - x->lse[at]);
        const double kept = factor(d, query_row, a, key_row);
        const double ds = p * (kept * ref_vec_dot(dout, v, d->head_dim_v) - delta);
        ref_vec_axpy(x->dv + key * d->head_dim_v, p * kept, dout, d->head_dim_v);
        ref_vec_axpy(dq, d->scale * ds, k, d->head_dim);
        ref_vec_axpy(x->dk + key * d->head_dim, d->scale * ds, q, d->head_dim);
    }
}

void ref_attention_bwd(double *dq, double *dk, double *dv, const double *dout, const double *q,
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
        for (int64_t a = g * ratio; a < (g + 1) * ratio; a++)
            for (int64_t i = 0; i < d->seq_q; i++)
                attention_bwd_row(&x, d, i, b, a);
    }
}

/* --- split of the fused projection -------------------------------------------------------------------------- */

void ref_qkv_split_fwd(double *q, double *k, double *v, const double *qkv, int64_t t, int64_t heads,
                       int64_t groups, int64_t d)
{
    assert(groups > 0 && heads % groups == 0);
    const int64_t n = heads / groups * d; /* query columns of one group */
    for (int64_t i = 0; i < t * groups; i++) {
        const double *from = qkv + i * (n + 2 * d);
        ref_vec_copy(q + i * n, from, n);
        ref_vec_copy(k + i * d, from + n, d);
        ref_vec_copy(v + i * d, from + n + d, d);
    }
}

void ref_qkv_split_bwd(double *dqkv, const double *dq, const double *dk, const double *dv, int64_t t,
                       int64_t heads, int64_t groups, int64_t d)
{
    assert(groups > 0 && heads % groups == 0);
    const int64_t n = heads / groups * d;
    for (int64_t i = 0; i < t * groups; i++) {
        double *to = dqkv + i * (n + 2 * d);
        ref_vec_copy(to, dq + i * n, n);
        ref_vec_copy(to + n, dk + i * d, d);
        ref_vec_copy(to + n + d, dv + i * d, d);
    }
}

void ref_attention_merge(double *o, double *lse, const double *o_a, const double *lse_a, const double *o_b,
                         const double *lse_b, int64_t rows, int64_t d)
{
    for (int64_t r = 0; r < rows; r++) {
        const double a = lse_a[r], b = lse_b[r];
        const bool nothing = a == -HUGE_VAL && b == -HUGE_VAL;
        const double max = nothing ? 0.0 : fmax(a, b), w_a = exp(a - max), w_b = exp(b - max);
        lse[r] = nothing ? -HUGE_VAL : max + log(w_a + w_b);
        for (int64_t i = r * d; i < (r + 1) * d; i++)
            o[i] = nothing ? 0.0 : (w_a * o_a[i] + w_b * o_b[i]) / (w_a + w_b);
    }
}

/* Where element (t, head, i) of [T,A,D] lies in [P,T,A/P,D]. */
static int64_t packed_place(int64_t t, int64_t head, int64_t tokens, int64_t heads, int64_t parts)
{
    const int64_t each = heads / parts;
    return (head / each * tokens + t) * each + head % each;
}

void ref_pack_heads(double *y, const double *x, int64_t t, int64_t heads, int64_t d, int64_t parts)
{
    for (int64_t s = 0; s < t; s++)
        for (int64_t a = 0; a < heads; a++)
            memcpy(y + packed_place(s, a, t, heads, parts) * d, x + (s * heads + a) * d,
                   (size_t)d * sizeof *y);
}

void ref_unpack_heads(double *y, const double *x, int64_t t, int64_t heads, int64_t d, int64_t parts)
{
    for (int64_t s = 0; s < t; s++)
        for (int64_t a = 0; a < heads; a++)
            memcpy(y + (s * heads + a) * d, x + packed_place(s, a, t, heads, parts) * d,
                   (size_t)d * sizeof *y);
}
