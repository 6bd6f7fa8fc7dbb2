/* Backward of attention in frameworks that keep no lse, or whose softmax is a kernel of its own (docs/TOLERANCES.md, section 4):
 * pair by pair, in plain loops. */
#include "ref/bounds/foreign.h"

#include <stdlib.h>

typedef struct job {
    const double *dout, *q, *k, *v, *o;
    const ref_attention_desc *desc;
    const ref_declared *d;
    double u_p, eta_p,
        u_row; /* rounding of P and dS before a product; of what D is made of where that is P dP */
    ref_iv *s, *p, *dp, *ds; /* [seq_q, seq_k] of one head of one batch row */
    bool *seen;
    double *terms; /* [2 n], n the longest sum */
    int64_t pairs;
} job;

static int64_t query_at(const job *j, int64_t i, int64_t b, int64_t a)
{
    return (i * j->desc->batch + b) * j->desc->heads + a;
}

static int64_t key_at(const job *j, int64_t i, int64_t b, int64_t a)
{
    const ref_attention_desc *d = j->desc;
    return (i * d->batch + b) * d->groups + a / (d->heads / d->groups);
}

static bool visible(const ref_attention_desc *d, int64_t i, int64_t j, int64_t b)
{
    const int64_t row = i * d->batch + b, q = d->q_position[row], k = d->k_position[j * d->batch + b];
    return k <= q && (!d->first_key || k >= d->first_key[row]) && (d->window == 0 || k > q - d->window);
}

/* Softmax of the scores of one query: p with bounds, for one pass, tiles, and exp(S - lse) with a stored lse. */
static void probabilities(job *j, const ref_iv *s, ref_iv *p, const bool *seen)
{
    const ref_num *n = &j->d->num;
    const int64_t keys = j->desc->seq_k, tile = j->d->tile;
    const double steps = tile > 0 ? (double)((keys + tile - 1) / tile) : 0.0;
    double max = -HUGE_VAL, sum = 0.0, spread = 0.0;
    int64_t m = 0;
    for (int64_t c = 0; c < keys; c++)
        max = seen[c] ? fmax(max, s[c].v) : max;
    for (int64_t c = 0; c < keys; c++)
        sum += seen[c] ? exp(s[c].v - max) : 0.0;
    const double lse = max + log(sum), relative = (double)keys * n->u * (1.0 + (double)keys * n->u);
    for (int64_t c = 0; c < keys; c++) {
        if (!seen[c])
            continue;
        const double delta = s[c].b + 2.0 * n->u * fabs(s[c].v - max) + n->f + steps * (n->f + 2.0 * n->u);
        p[c] = (ref_iv){exp(s[c].v - max) / sum, expm1(delta)};
        spread += p[c].v * p[c].b;
        m++;
    }
    const double common = -log1p(-fmin(spread + relative, 0.5)) +
                          (n->f + 2.0 * n->u) * (1.0 + fabs(log(sum))) + 2.0 * n->u * (fabs(lse) + fabs(max));
    for (int64_t c = 0; c < keys && m > 0; c++)
        if (seen[c])
            p[c].b =
                p[c].v * expm1(log1p(p[c].b) + common + n->u * (fabs(s[c].v - lse) + fabs(s[c].v))) + n->tiny;
}

/* D of one query: dO O, or the sum of P dP, which differs by the roundings of O, of dP and of the sum. */
static ref_iv row_delta(const job *j, int64_t at, const ref_iv *p, const ref_iv *dp, const bool *seen)
{
    const int64_t w = j->desc->head_dim_v;
    ref_iv z = ref_sum_dot(j->dout + at * w, j->o + at * w, w, &j->d->order);
    for (int64_t c = 0; c < w && j->u_row > 0.0; c++)
        z.b += j->u_row * fabs(j->dout[at * w + c] * j->o[at * w + c]) * (1.0 + 0x1p-6);
    for (int64_t c = 0; c < j->desc->seq_k && j->u_row > 0.0; c++)
        if (seen[c])
            z.b += (fabs(p[c].v) + p[c].b) *
                       (dp[c].b + (j->u_row + j->u_p + (double)(j->desc->seq_k + w + 2) * j->d->num.u) *
                                      (fabs(dp[c].v) + dp[c].b)) +
                   j->eta_p * fabs(dp[c].v);
    return z;
}

/* Scores, P, dP and dS of one head. */
static void head_pairs(job *j, int64_t b, int64_t a)
{
    const ref_attention_desc *d = j->desc;
    const ref_num *n = &j->d->num;
    const int64_t keys = d->seq_k;
    for (int64_t i = 0; i < d->seq_q; i++) {
        const int64_t at = query_at(j, i, b, a);
        ref_iv *s = j->s + i * keys, *p = j->p + i * keys, *dp = j->dp + i * keys, *ds = j->ds + i * keys;
        bool *seen = j->seen + i * keys;
        for (int64_t c = 0; c < keys; c++) {
            const int64_t key = key_at(j, c, b, a);
            seen[c] = visible(d, i, c, b);
            if (!seen[c])
                continue;
            s[c] = ref_sum_dot(j->q + at * d->head_dim, j->k + key * d->head_dim, d->head_dim, &j->d->order);
            s[c] = iv_mul(n, ref_stored(j->d, ASSAY_ROUND_SCORES, s[c]), iv_constant(n, d->scale));
            s[c] = ref_stored(j->d, ASSAY_ROUND_SCORES, s[c]);
            dp[c] = ref_sum_dot(j->dout + at * d->head_dim_v, j->v + key * d->head_dim_v, d->head_dim_v,
                                &j->d->order);
            dp[c] = ref_stored(j->d, ASSAY_ROUND_SCORES, dp[c]);
        }
        probabilities(j, s, p, seen);
        const ref_iv delta = row_delta(j, at, p, dp, seen);
        for (int64_t c = 0; c < keys; c++) {
            if (!seen[c])
                continue;
            const ref_iv z = iv_mul(n, p[c], iv_sub(n, dp[c], delta));
            /* stored as the gradient of the softmax, and again after the scale */
            ds[c] = ref_stored(j->d, ASSAY_ROUND_SCORES, ref_stored(j->d, ASSAY_ROUND_SCORES, z));
            ds[c].b += (2.0 * n->u + j->u_p) * (fabs(ds[c].v) + ds[c].b) + j->eta_p;
            p[c].b += j->u_p * (p[c].v + p[c].b) + j->eta_p;
        }
    }
}

/* Sum over the first m of j->terms, whose bounds stand behind the first n. */
static ref_iv sum_terms(const job *j, int64_t m, int64_t n)
{
    return ref_sum_terms(j->terms, j->terms + n, m, &j->d->order);
}

static void put(const job *j, int64_t m, int64_t n, ref_iv weight, double x)
{
    const double v = weight.v * x;
    j->terms[m] = v;
    j->terms[n + m] = weight.b * fabs(x) + j->d->num.u * (fabs(v) + weight.b * fabs(x)) + j->d->num.eta;
}

static void head_queries(job *j, ref_pair dq, int64_t b, int64_t a)
{
    const ref_attention_desc *d = j->desc;
    const ref_iv scale = iv_constant(&j->d->num, d->scale);
    for (int64_t i = 0; i < d->seq_q; i++)
        for (int64_t c = 0; c < d->head_dim; c++) {
            int64_t m = 0;
            for (int64_t key = 0; key < d->seq_k; key++)
                if (j->seen[i * d->seq_k + key])
                    put(j, m++, j->pairs, j->ds[i * d->seq_k + key],
                        j->k[key_at(j, key, b, a) * d->head_dim + c]);
            const ref_iv z = iv_mul(&j->d->num, sum_terms(j, m, j->pairs), scale);
            dq.y[query_at(j, i, b, a) * d->head_dim + c] = z.v;
            dq.b[query_at(j, i, b, a) * d->head_dim + c] = z.b;
        }
}

/* out += sum_i t_i x_i over the queries, stored for the head where the module does that; width and start of the rows of x */
static void add_head(job *j, ref_pair out, const ref_iv *t, const double *x, int64_t width, double scale,
                     int64_t b, int64_t a)
{
    const ref_attention_desc *d = j->desc;
    const ref_num *n = &j->d->num;
    const bool first = a % (d->heads / d->groups) == 0;
    for (int64_t key = 0; key < d->seq_k; key++)
        for (int64_t c = 0; c < width; c++) {
            const int64_t at = key_at(j, key, b, a) * width + c;
            int64_t m = 0;
            for (int64_t i = 0; i < d->seq_q; i++)
                if (j->seen[i * d->seq_k + key])
                    put(j, m++, j->pairs, t[i * d->seq_k + key], x[query_at(j, i, b, a) * width + c]);
            ref_iv z = sum_terms(j, m, j->pairs);
            if (scale != 1.0)
                z = iv_mul(n, z, iv_constant(n, scale));
            z = ref_stored(j->d, ASSAY_ROUND_HEADS, z);
            if (!first)
                z = iv_add(n, z, (ref_iv){out.y[at], out.b[at]});
            out.y[at] = z.v;
            out.b[at] = z.b;
        }
}

assay_status ref_bound_attention_bwd_alone(ref_pair dq, ref_pair dk, ref_pair dv, const double *dout,
                                           const double *q, const double *k, const double *v, const double *o,
                                           const ref_attention_desc *desc, assay_dtype p_dtype, bool products,
                                           const ref_declared *d)
{
    assay_status st = ASSAY_OK;
    job j = {.dout = dout, .q = q, .k = k, .v = v, .o = o, .desc = desc, .d = d};
    j.pairs = desc->seq_q > desc->seq_k ? desc->seq_q : desc->seq_k;
    if (assay_dtype_is_float(p_dtype) && p_dtype != ASSAY_F64 &&
        (p_dtype != ASSAY_F32 || d->num.u < 0x1p-30)) {
        j.u_p = ldexp(1.0, -assay_dtype_precision(p_dtype));
        j.eta_p = ldexp(1.0, assay_dtype_emin(p_dtype) - assay_dtype_precision(p_dtype));
    }
    j.u_row = products ? fmax(d->num.u, d->u_store) : 0.0;
    const size_t cells = (size_t)(desc->seq_q * desc->seq_k + 1);
    ref_iv *pairs = calloc(4 * cells, sizeof *pairs);
    bool *seen = calloc(cells, sizeof *seen);
    double *terms = calloc((size_t)(2 * j.pairs + 1), sizeof *terms);
    ASSAY_CHECK_GOTO(pairs && seen && terms, ASSAY_OUT_OF_MEMORY, st, done,
                     "attention_bwd: %lld x %lld pairs", (long long)desc->seq_q, (long long)desc->seq_k);
    j.s = pairs;
    j.p = pairs + cells;
    j.dp = pairs + 2 * cells;
    j.ds = pairs + 3 * cells;
    j.seen = seen;
    j.terms = terms;
    for (int64_t b = 0; b < desc->batch; b++)
        for (int64_t a = 0; a < desc->heads; a++) {
            head_pairs(&j, b, a);
            head_queries(&j, dq, b, a);
            add_head(&j, dk, j.ds, q, desc->head_dim, desc->scale, b, a);
            add_head(&j, dv, j.p, dout, desc->head_dim_v, 1.0, b, a);
        }
done:
    free(terms);
    free(seen);
    free(pairs);
    return st;
}
