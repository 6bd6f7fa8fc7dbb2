/* The balancing loss of Hugging Face's mixtures of experts, over the rows of all layers together.
 *
 * Which experts a row chooses follows from scores that nobody records: where their bounds overlap an expert may be chosen or not,
 * and its count has both as bound. */
#include "ref/bounds/foreign.h"

#include <stdlib.h>

typedef struct job {
    const double *logits, *weight; /* weight NULL: 1 */
    int64_t n, e, k;
    const ref_declared *d;
    ref_iv *score; /* [N,E] */
    ref_iv *share; /* [E] how many of the rows choose an expert */
    double *terms; /* scratch: values and bounds of max(N, E) */
    ref_iv rows;   /* weights added up */
} job;

static double weight_of(const job *j, int64_t row)
{
    return j->weight ? j->weight[row] : 1.0;
}

static ref_iv sum_of(job *j, int64_t count)
{
    return ref_sum_terms(j->terms, j->terms + count, count, &j->d->order);
}

/* softmax in the accumulate format, stored where that is declared */
static void scores(job *j, int64_t row)
{
    const ref_num *n = &j->d->num;
    const double *x = j->logits + row * j->e;
    double max = -HUGE_VAL;
    for (int64_t i = 0; i < j->e; i++)
        max = fmax(max, x[i]);
    for (int64_t i = 0; i < j->e; i++) {
        const double shift = x[i] - max;
        const ref_iv z = iv_exp(n, (ref_iv){shift, 2.0 * n->u * fabs(shift)});
        j->terms[i] = z.v;
        j->terms[j->e + i] = z.b;
    }
    const ref_iv sum = sum_of(j, j->e);
    for (int64_t i = 0; i < j->e; i++)
        j->score[row * j->e + i] =
            ref_stored(j->d, ASSAY_ROUND_SCORES, iv_div(n, (ref_iv){j->terms[i], j->terms[j->e + i]}, sum));
}

/* Adds a row's choice: the lower number among equals, `least` and `most` by what the bounds leave open. */
static void choose(const job *j, int64_t row, double *counted, double *least, double *most)
{
    const ref_iv *score = j->score + row * j->e;
    const double weight = weight_of(j, row);
    for (int64_t i = 0; i < j->e; i++) {
        const ref_iv x = score[i];
        int64_t above = 0, surely = 0, perhaps = 0;
        for (int64_t o = 0; o < j->e; o++) {
            const ref_iv y = score[o];
            above += y.v > x.v || (y.v == x.v && o < i);
            surely += o != i && y.v - y.b > x.v + x.b;
            perhaps += o != i && y.v + y.b >= x.v - x.b;
        }
        counted[i] += above < j->k ? weight : 0.0;
        least[i] += perhaps < j->k ? weight : 0.0;
        most[i] += surely < j->k ? weight : 0.0;
    }
}

static assay_status begin(job *j)
{
    const int64_t longest = j->e > j->n ? j->e : j->n;
    double total = 0.0, *counted = calloc((size_t)(3 * j->e + 1), sizeof *counted);
    assay_status st = ASSAY_OK;
    j->score = calloc((size_t)(j->n * j->e + 1), sizeof *j->score);
    j->share = calloc((size_t)(j->e + 1), sizeof *j->share);
    j->terms = calloc((size_t)(2 * longest + 1), sizeof *j->terms);
    ASSAY_CHECK_GOTO(counted && j->score && j->share && j->terms, ASSAY_OUT_OF_MEMORY, st, done,
                     "load_balancing: %lld rows of %lld experts", (long long)j->n, (long long)j->e);
    for (int64_t row = 0; row < j->n; row++) {
        total += weight_of(j, row);
        scores(j, row);
        choose(j, row, counted, counted + j->e, counted + 2 * j->e);
    }
    j->rows = iv_constant(&j->d->num, total);
    for (int64_t i = 0; i < j->e; i++) {
        const double least = counted[j->e + i], most = counted[2 * j->e + i];
        const ref_iv count = {counted[i], fmax(counted[i] - least, most - counted[i])};
        j->share[i] = iv_div(&j->d->num, count, j->rows);
    }
done:
    free(counted);
    return st;
}

static void end(job *j)
{
    free(j->terms);
    free(j->share);
    free(j->score);
}

static ref_iv mean_score(job *j, int64_t expert)
{
    const ref_num *n = &j->d->num;
    for (int64_t row = 0; row < j->n; row++) {
        const ref_iv z = iv_mul(n, j->score[row * j->e + expert], iv_exact(weight_of(j, row)));
        j->terms[row] = z.v;
        j->terms[j->n + row] = z.b;
    }
    return iv_div(n, sum_of(j, j->n), j->rows);
}

assay_status ref_bound_load_balancing_fwd(ref_pair loss, const double *logits, const double *weight,
                                          int64_t n, int64_t e, int64_t k, const ref_declared *d)
{
    job j = {.logits = logits, .weight = weight, .n = n, .e = e, .k = k, .d = d};
    const assay_status st = begin(&j);
    if (st == ASSAY_OK) {
        for (int64_t i = 0; i < e; i++)
            j.share[i] = iv_mul(&d->num, j.share[i], mean_score(&j, i));
        for (int64_t i = 0; i < e; i++) {
            j.terms[i] = j.share[i].v;
            j.terms[e + i] = j.share[i].b;
        }
        const ref_iv z = iv_mul(&d->num, sum_of(&j, e), iv_constant(&d->num, (double)e));
        loss.y[0] = z.v;
        loss.b[0] = z.b;
    }
    end(&j);
    return st;
}

/* One row: h_i = scale E share_i weight / rows, stored where scores are; dlogits_i = p_i (h_i - sum h p). */
static void row_gradient(ref_pair dlogits, job *j, int64_t row, ref_iv each)
{
    const ref_num *n = &j->d->num;
    const ref_iv *p = j->score + row * j->e;
    const ref_iv factor = iv_mul(n, each, iv_exact(weight_of(j, row)));
    for (int64_t i = 0; i < j->e; i++) {
        const ref_iv h = ref_stored(j->d, ASSAY_ROUND_SCORES, iv_mul(n, factor, j->share[i]));
        const ref_iv z = iv_mul(n, h, p[i]);
        j->terms[i] = z.v;
        j->terms[j->e + i] = z.b;
    }
    const ref_iv dot = sum_of(j, j->e);
    for (int64_t i = 0; i < j->e; i++) {
        const ref_iv h = ref_stored(j->d, ASSAY_ROUND_SCORES, iv_mul(n, factor, j->share[i]));
        /* p (h - dot), or p h - p dot */
        const ref_iv together = iv_mul(n, p[i], iv_sub(n, h, dot)),
                     apart = iv_sub(n, iv_mul(n, p[i], h), iv_mul(n, p[i], dot));
        ref_pair_set(dlogits, row * j->e + i, (ref_iv){together.v, fmax(together.b, apart.b)}, n);
    }
}

assay_status ref_bound_load_balancing_bwd(ref_pair dlogits, const double *logits, const double *weight,
                                          double scale, int64_t n, int64_t e, int64_t k,
                                          const ref_declared *d)
{
    job j = {.logits = logits, .weight = weight, .n = n, .e = e, .k = k, .d = d};
    const assay_status st = begin(&j);
    if (st == ASSAY_OK) {
        const ref_iv product = iv_mul(&d->num, iv_constant(&d->num, scale), iv_constant(&d->num, (double)e));
        const ref_iv each = iv_div(&d->num, product, j.rows);
        for (int64_t row = 0; row < n; row++)
            row_gradient(dlogits, &j, row, each);
    }
    end(&j);
    return st;
}
