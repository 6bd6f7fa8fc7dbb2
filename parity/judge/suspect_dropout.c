/* Hypotheses about dropout, whose mask nobody recorded: every element is lost or 1/(1-p) of itself, one p for all, and about the
 * share p of them is lost. */
#include "parity/judge/suspect_ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Six standard deviations, and one element. */
static bool is_share(int64_t lost, int64_t n, double p)
{
    const double expected = (double)n * p;
    return lost > 0 && fabs((double)lost - expected) <= 6.0 * sqrt(expected * (1.0 - p)) + 1.0;
}

/* p of a factor 1/(1-p) that was fitted, as a number of few digits: the factor may be rounded to `stored`.  0: none. */
static double share_of(double factor, assay_dtype stored)
{
    const double fit = factor > 1.0 ? 1.0 - 1.0 / factor : 0.0,
                 off = 0.5 * ref_ulp(1.0, stored) * (1.0 - fit);
    const double p = fit > 0.0 ? suspect_short_number(fit, 4e-3 + off / fit) : 0.0;
    return p >= 1e-3 && p <= 0.99 ? p : 0.0;
}

/* --- the second term of an addition -------------------------------------------------------------------------- */

/* Whether rounding of the sum leaves enough of the second term to tell what became of it. */
static bool tells(const ref_value *b, const ref_value *y, int64_t i)
{
    return fabs(b->value[i]) > 8.0 * ref_ulp(fabs(y->value[i]) + fabs(b->value[i]), y->dtype);
}

bool suspect_dropout(suspect_trial *t, int number, char text[PARITY_TEXT])
{
    const ref_value *a = suspect_input(t, "a"), *b = suspect_input(t, "b"), *y = suspect_output(t, "y");
    double xy = 0.0, xx = 0.0;
    int64_t lost = 0, n = 0;
    (void)number;
    if (a == NULL || b == NULL || y == NULL || a->count != y->count || b->count != y->count ||
        a->value == NULL || b->value == NULL || y->value == NULL)
        return false;
    for (int64_t i = 0; i < y->count; i++) {
        const double part = y->value[i] - a->value[i];
        if (!tells(b, y, i))
            continue;
        const bool zero = fabs(part) < 0.25 * fabs(b->value[i]);
        n++;
        lost += zero;
        xy += zero ? 0.0 : part * b->value[i];
        xx += zero ? 0.0 : b->value[i] * b->value[i];
    }
    const double p = share_of(xx > 0.0 ? xy / xx : 0.0, b->dtype), kept = 1.0 / (1.0 - p);
    if (!(p > 0.0) || !is_share(lost, n, p))
        return false;
    /* 1/(1-p) and its product are rounded before the sum is */
    const double unit = ref_ulp(1.0, b->dtype), sum_unit = ref_ulp(1.0, ASSAY_F32);
    t->counted = true;
    for (int64_t i = 0; i < y->count; i++) {
        const double part = b->value[i] * kept;
        const double bound = unit * fabs(part) + sum_unit * (fabs(a->value[i]) + fabs(part));
        double ratio;
        t->bad += !ref_admissible(y->value[i], a->value[i] + part, bound, y->dtype, &ratio) &&
                  !ref_admissible(y->value[i], a->value[i], 0.0, y->dtype, &ratio);
    }
    SUSPECT_SAY("dropout is on (p %.3g): %lld of %lld elements of the block are lost, the others %.3g times "
                "themselves",
                p, (long long)lost, (long long)n, kept);
    return true;
}

/* --- probabilities of attention ------------------------------------------------------------------------------ */

/* A row of n keys has 2^n masks: rows up to KEYS, WORK masks in all, and HITS of a row looked at in every column. */
enum { KEYS = 20, LOW = 10, HITS = 4096 };
static const int64_t WORK = (int64_t)1 << 27;

typedef struct masked {
    suspect_rows r;
    const double *bound; /* of o without dropout */
    double kept;
    int64_t *key;
    double *dot, *p, *low,
        *allowed; /* low: sums of the first LOW terms of a column; allowed: of a row's columns */
} masked;

static double value_at(const masked *m, int64_t key, int64_t head, int64_t c)
{
    const suspect_rows *r = &m->r;
    return r->v->value[(key * r->groups + head / (r->heads / r->groups)) * r->dv + c];
}

/* The factor of rows that see one key: each is lost or that many times its value.  Also whether no row sees too many. */
static double fit_kept(masked *m)
{
    const suspect_rows *r = &m->r;
    double xy = 0.0, xx = 0.0;
    int64_t work = 0;
    for (int64_t i = 0; i < r->queries; i++) {
        const int64_t n = suspect_rows_seen(r, i, 0, m->key, m->dot);
        work += n <= KEYS ? r->heads << n : WORK + 1;
        if (work > WORK)
            return 0.0;
        for (int64_t head = 0; n == 1 && head < r->heads; head++) {
            const double *o = r->o->value + (i * r->heads + head) * r->dv;
            double product = 0.0, square = 0.0;
            for (int64_t c = 0; c < r->dv; c++) {
                const double v = value_at(m, m->key[0], head, c);
                product += o[c] * v;
                square += v * v;
            }
            const bool zero = fabs(product) < 0.25 * square;
            xy += zero ? 0.0 : product;
            xx += zero ? 0.0 : square;
        }
    }
    return xx > 0.0 ? xy / xx : 0.0;
}

static bool mask_fits(const masked *m, const double *o, int64_t head, int64_t n, uint32_t mask)
{
    for (int64_t c = 0; c < m->r.dv; c++) {
        double sum = 0.0, ratio;
        for (int64_t j = 0; j < n; j++)
            sum += mask >> j & 1 ? m->p[j] * value_at(m, m->key[j], head, c) : 0.0;
        if (!ref_admissible(o[c], m->kept * sum, m->allowed[c], m->r.o->dtype, &ratio))
            return false;
    }
    return true;
}

/* Terms of a column times the factor; of the column that has the most. */
static int64_t terms_of(const masked *m, int64_t head, int64_t n, double term[KEYS])
{
    double most = -1.0;
    int64_t best = 0;
    for (int64_t c = 0; c < m->r.dv; c++) {
        double sum = 0.0;
        for (int64_t j = 0; j < n; j++)
            sum += fabs(m->p[j] * value_at(m, m->key[j], head, c));
        m->allowed[c] = m->kept * (m->allowed[c] + 4.0 * ref_ulp(1.0, ASSAY_F32) * sum);
        if (sum > most) {
            most = sum;
            best = c;
        }
    }
    for (int64_t j = 0; j < n; j++)
        term[j] = m->kept * m->p[j] * value_at(m, m->key[j], head, best);
    return best;
}

static double sum_of(const double *term, int64_t n, uint32_t mask)
{
    double sum = 0.0;
    for (int64_t j = 0; j < n; j++)
        sum += mask >> j & 1 ? term[j] : 0.0;
    return sum;
}

/* Keys of the row that are lost; -1: no mask makes what was found. */
static int64_t find_mask(const masked *m, int64_t query, int64_t head)
{
    const suspect_rows *r = &m->r;
    const int64_t n = suspect_rows_seen(r, query, head, m->key, m->dot), row = query * r->heads + head;
    const double *o = r->o->value + row * r->dv;
    double term[KEYS];
    memcpy(m->allowed, m->bound + row * r->dv, (size_t)r->dv * sizeof *m->allowed);
    if (n > KEYS || (n > 0 && !suspect_softmax(m->dot, n, r->scale, m->p)))
        return -1;
    const int64_t c = terms_of(m, head, n, term), few = n < LOW ? n : LOW;
    const double within = 1.01 * (m->allowed[c] + ref_ulp(fabs(o[c]) + m->allowed[c], r->o->dtype));
    for (uint32_t k = 0; k < (uint32_t)1 << few; k++)
        m->low[k] = sum_of(term, few, k);
    int hits = 0;
    for (uint32_t high = 0; high < (uint32_t)1 << (n - few); high++) {
        const double rest = o[c] - sum_of(term + few, n - few, high);
        for (uint32_t k = 0; k < (uint32_t)1 << few; k++) {
            if (!(fabs(rest - m->low[k]) <= within))
                continue;
            const uint32_t mask = high << few | k;
            if (mask_fits(m, o, head, n, mask))
                return n - __builtin_popcount(mask);
            if (++hits > HITS)
                return -1;
        }
    }
    return -1;
}

static bool try_masks(suspect_trial *t, masked *m, double p, char text[PARITY_TEXT])
{
    const suspect_rows *r = &m->r;
    int64_t lost = 0, n = 0;
    m->kept = 1.0 / (1.0 - p);
    t->counted = true;
    for (int64_t i = 0; i < r->queries * r->heads && t->bad == 0; i++) {
        const int64_t of_row = find_mask(m, i / r->heads, i % r->heads);
        t->bad += of_row < 0;
        lost += of_row < 0 ? 0 : of_row;
        n += suspect_rows_seen(r, i / r->heads, i % r->heads, m->key, m->dot);
    }
    SUSPECT_SAY(
        "dropout is on in attention (p %.3g): %lld of %lld probabilities are lost, the others %.3g times "
        "themselves",
        p, (long long)lost, (long long)n, m->kept);
    return is_share(lost, n, p);
}

/* What attention allows without dropout, for every element of o. */
static bool try_bounds(suspect_trial *t, masked *m, double p, char text[PARITY_TEXT])
{
    ref_replay_result result;
    memset(&result, 0, sizeof result);
    if (ref_replay(t->op->op, t->attrs, &t->declared, t->in, t->n_in, t->out, t->n_out, &result) !=
        ASSAY_OK) {
        assay_error_clear();
        return false;
    }
    const ref_value *o = parity_find_value(result.outputs, result.n_outputs, "o");
    m->bound = o != NULL && o->count == m->r.o->count ? o->bound : NULL;
    const bool applies = m->bound != NULL && try_masks(t, m, p, text);
    ref_replay_free(&result);
    return applies;
}

bool suspect_attention_dropout(suspect_trial *t, int number, char text[PARITY_TEXT])
{
    masked m = {.kept = 1.0};
    bool applies = false;
    (void)number;
    if (!suspect_rows_open(t, &m.r) || suspect_attr(t, "dropout_p") > 0.0)
        return false;
    const size_t keys = (size_t)m.r.keys + 1;
    m.key = malloc(keys * sizeof *m.key);
    m.dot = malloc(keys * sizeof *m.dot);
    m.p = malloc(keys * sizeof *m.p);
    m.low = malloc(sizeof *m.low << LOW);
    m.allowed = malloc(((size_t)m.r.dv + 1) * sizeof *m.allowed);
    if (m.key != NULL && m.dot != NULL && m.p != NULL && m.low != NULL && m.allowed != NULL) {
        const double p = share_of(fit_kept(&m), m.r.o->dtype);
        applies = p > 0.0 && try_bounds(t, &m, p, text);
    }
    free(m.allowed);
    free(m.low);
    free(m.p);
    free(m.dot);
    free(m.key);
    return applies;
}
