/* Hypotheses about attention: groups of heads, mask, scale, window. */
#include "parity/judge/suspect_ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Query heads in the order in which a repeat in place of a repeat_interleave deals them to key groups. */
static bool deal_heads(ref_value *v, int64_t heads, int64_t groups, int64_t d)
{
    double *row = malloc((size_t)(heads * d) * sizeof *row + 8);
    if (row == NULL)
        return false;
    for (int64_t i = 0; i + heads * d <= v->count; i += heads * d) {
        memcpy(row, v->value + i, (size_t)(heads * d) * sizeof *row);
        for (int64_t h = 0; h < heads; h++)
            memcpy(v->value + i + ((h % groups) * (heads / groups) + h / groups) * d, row + h * d,
                   (size_t)d * sizeof *row);
    }
    free(row);
    return true;
}

bool suspect_other_groups(suspect_trial *t, int number, char text[PARITY_TEXT])
{
    const int64_t heads = suspect_size(t, "heads"), groups = suspect_size(t, "groups"),
                  d = suspect_size(t, "head_dim"), dv = suspect_size(t, "head_dim_v");
    ref_value *q = suspect_input(t, "q"), *o = suspect_output(t, "o");
    (void)number;
    if (q == NULL || o == NULL || heads <= 0 || groups <= 1 || groups >= heads || heads % groups != 0 ||
        d <= 0 || heads > q->count || d > q->count || dv > o->count)
        return false;
    SUSPECT_SAY(
        "query head h reads key group h mod %lld where h / %lld is expected: GQA heads are repeated in "
        "another "
        "order (repeat in place of repeat_interleave)",
        (long long)groups, (long long)(heads / groups));
    return deal_heads(q, heads, groups, d) && deal_heads(o, heads, groups, dv > 0 ? dv : d);
}

bool suspect_other_mask(suspect_trial *t, int number, char text[PARITY_TEXT])
{
    ref_value *q = suspect_input(t, "q_position"), *k = suspect_input(t, "k_position");
    int64_t last = 0;
    if (q == NULL || k == NULL || q->ivalue == NULL || k->ivalue == NULL)
        return false;
    if (q == k || number > 2)
        return false;
    for (int64_t i = 0; i < k->count; i++)
        last = k->ivalue[i] > last ? k->ivalue[i] : last;
    for (int64_t i = 0; i < q->count; i++) {
        int64_t *x = &q->ivalue[i];
        *x = number == 0 ? (*x > 0 ? *x - 1 : 0) : number == 1 ? (*x < last ? *x + 1 : last) : last;
    }
    SUSPECT_SAY("%s", number == 0   ? "the causal mask is off by one: a query does not see its own key"
                      : number == 1 ? "the causal mask is off by one: a query sees the key behind it"
                                    : "there is no causal mask: every query sees every key");
    return true;
}

bool suspect_other_scale(suspect_trial *t, int number, char text[PARITY_TEXT])
{
    const double s = suspect_attr(t, "scale"), d = suspect_attr(t, "head_dim");
    const double heads = suspect_attr(t, "heads"),
                 tries[] = {s * s, 1.0, 1.0 / d, 1.0 / sqrt(d * heads), 1.0 / sqrt(d)};
    static const char *const words[] = {"scores are scaled twice", "scores are not scaled",
                                        "scores are divided by the head dimension, not its root",
                                        "scores are divided by the root of the hidden size",
                                        "scores are divided by the root of the head dimension"};
    const bool both = number == 0 && fabs(s * s * d - 1.0) < 1e-9; /* one number, two mistakes */
    if (!(tries[number] > 0.0) || tries[number] == s)
        return false;
    SUSPECT_SAY("%s: scale %.6g where %.6g is expected",
                both ? "scores are scaled twice, or divided by the head dimension, not its root"
                     : words[number],
                tries[number], s);
    return suspect_set_real(t, "scale", tries[number]);
}

/* --- rows of queries ---------------------------------------------------------------------------------------- */

bool suspect_rows_open(suspect_trial *t, suspect_rows *r)
{
    const ref_value *at = suspect_input(t, "q_position"), *of = suspect_input(t, "k_position"),
                    *first = suspect_input(t, "first_key");
    *r = (suspect_rows){.batch = suspect_size(t, "batch"),
                        .heads = suspect_size(t, "heads"),
                        .groups = suspect_size(t, "groups"),
                        .d = suspect_size(t, "head_dim"),
                        .dv = suspect_size(t, "head_dim_v"),
                        .window = suspect_size(t, "window"),
                        .scale = suspect_attr(t, "scale"),
                        .q = suspect_input(t, "q"),
                        .k = suspect_input(t, "k"),
                        .v = suspect_input(t, "v"),
                        .o = suspect_output(t, "o")};
    if (at == NULL || of == NULL || at->ivalue == NULL || of->ivalue == NULL || r->q == NULL ||
        r->k == NULL || r->v == NULL || r->o == NULL || r->q->value == NULL || r->k->value == NULL ||
        r->v->value == NULL || r->o->value == NULL ||
        (first != NULL && (first->ivalue == NULL || first->count != at->count)))
        return false;
    r->queries = at->count;
    r->keys = of->count;
    r->q_position = at->ivalue;
    r->k_position = of->ivalue;
    r->first_key = first != NULL ? first->ivalue : NULL;
    r->dv = r->dv > 0 ? r->dv : r->d;
    const int64_t most = (int64_t)1 << 20;
    if (r->batch < 1 || r->heads < 1 || r->groups < 1 || r->d < 1 || r->heads % r->groups != 0 ||
        r->heads > most || r->d > most || r->dv > most || r->queries > most || r->keys > most ||
        r->keys % r->batch != 0)
        return false;
    return r->q->count == r->queries * r->heads * r->d && r->k->count == r->keys * r->groups * r->d &&
           r->v->count == r->keys * r->groups * r->dv && r->o->count == r->queries * r->heads * r->dv;
}

int64_t suspect_rows_seen(const suspect_rows *r, int64_t query, int64_t head, int64_t *key, double *dot)
{
    const int64_t group = head / (r->heads / r->groups), at = r->q_position[query];
    const double *q = r->q->value + (query * r->heads + head) * r->d;
    int64_t n = 0;
    for (int64_t j = query % r->batch; j < r->keys; j += r->batch) {
        const int64_t p = r->k_position[j];
        if (p > at || (r->window > 0 && p <= at - r->window) ||
            (r->first_key != NULL && p < r->first_key[query]))
            continue;
        const double *k = r->k->value + (j * r->groups + group) * r->d;
        double sum = 0.0;
        for (int64_t c = 0; c < r->d; c++)
            sum += q[c] * k[c];
        key[n] = j;
        dot[n++] = sum;
    }
    return n;
}

bool suspect_softmax(const double *dot, int64_t n, double scale, double *p)
{
    double most = -(double)INFINITY, sum = 0.0;
    for (int64_t j = 0; j < n; j++)
        most = fmax(most, scale * dot[j]);
    for (int64_t j = 0; j < n; j++)
        sum += p[j] = exp(scale * dot[j] - most);
    for (int64_t j = 0; j < n; j++)
        p[j] /= sum;
    return isfinite(sum) && sum > 0.0;
}

/* --- a scale that fits -------------------------------------------------------------------------------------- */

enum { FIT_ROWS = 64, FIT_STEPS = 50 };

/* A row's part of a step of Gauss and Newton: (found - o(s)) . do/ds and |do/ds|^2. */
static void fit_row(const suspect_rows *r, int64_t query, int64_t head, double s, int64_t *key, double *dot,
                    double *p, double *top, double *below)
{
    const int64_t n = suspect_rows_seen(r, query, head, key, dot);
    const int64_t group = head / (r->heads / r->groups);
    double mean = 0.0;
    if (n < 2 || !suspect_softmax(dot, n, s, p))
        return;
    for (int64_t j = 0; j < n; j++)
        mean += p[j] * dot[j];
    for (int64_t c = 0; c < r->dv; c++) {
        double y = 0.0, slope = 0.0;
        for (int64_t j = 0; j < n; j++) {
            const double v = r->v->value[(key[j] * r->groups + group) * r->dv + c];
            y += p[j] * v;
            slope += p[j] * (dot[j] - mean) * v;
        }
        *top += (r->o->value[(query * r->heads + head) * r->dv + c] - y) * slope;
        *below += slope * slope;
    }
}

/* The scale with which some rows come nearest to what was found; NaN: none. */
static double fit_scale(suspect_trial *t)
{
    suspect_rows r;
    double s = suspect_attr(t, "scale");
    if (!suspect_rows_open(t, &r) || !(s > 0.0))
        return (double)NAN;
    const int64_t rows = r.queries * r.heads, stride = rows > FIT_ROWS ? rows / FIT_ROWS : 1;
    int64_t *key = malloc((size_t)r.keys * sizeof *key + 8);
    double *dot = malloc((size_t)r.keys * sizeof *dot + 8), *p = malloc((size_t)r.keys * sizeof *p + 8);
    for (int step = 0; key != NULL && dot != NULL && p != NULL && step < FIT_STEPS && isfinite(s); step++) {
        double top = 0.0, below = 0.0;
        for (int64_t i = rows - 1; i >= 0; i -= stride)
            fit_row(&r, i / r.heads, i % r.heads, s, key, dot, p, &top, &below);
        const double next = below > 0.0 ? s + top / below : (double)NAN, before = s;
        s = next < 0.25 * s ? 0.25 * s : next > 4.0 * s ? 4.0 * s : next;
        if (fabs(s - before) <= 1e-13 * before)
            break;
    }
    free(p);
    free(dot);
    free(key);
    return s;
}

/* The root of a whole number, a number with few digits, or what fits. */
bool suspect_fitted_scale(suspect_trial *t, int number, char text[PARITY_TEXT])
{
    const double declared = suspect_attr(t, "scale"), fit = fit_scale(t);
    const int64_t d = suspect_size(t, "head_dim");
    if (!(fit > 1e-6) || !(fit < 1e6) || fabs(fit - declared) <= 1e-5 * declared)
        return false;
    const double n = nearbyint(1.0 / (fit * fit)), few = suspect_short_number(fit, 1e-4);
    const bool of_heads = fabs(declared * declared * (double)d - 1.0) < 1e-6;
    if (number == 0) {
        if (n < 2.0 || fabs(fit * sqrt(n) - 1.0) > 1e-3)
            return false;
        SUSPECT_SAY("scores are divided by the root of %.0f%s: scale %.6g where %.6g is expected", n,
                    of_heads && n < (double)d
                        ? ", less than the head dimension (of multi-latent attention: only of the "
                          "columns that rope does not turn)"
                        : "",
                    1.0 / sqrt(n), declared);
        return suspect_set_real(t, "scale", 1.0 / sqrt(n));
    }
    if (number == 2 && few == fit)
        return false;
    const double s = number == 1 ? few : fit;
    SUSPECT_SAY("scores have another scale: %.6g where %.6g is expected", s, declared);
    return suspect_set_real(t, "scale", s);
}

/* --- the window --------------------------------------------------------------------------------------------- */

bool suspect_other_window(suspect_trial *t, int number, char text[PARITY_TEXT])
{
    const int64_t w = suspect_size(t, "window");
    const int64_t other = number == 0 ? 0 : number == 1 ? w + 1 : w - 1;
    if (w <= 0 || other == w || (number > 0 && other <= 0))
        return false;
    if (other == 0)
        SUSPECT_SAY("the sliding window of %lld is not applied", (long long)w);
    else
        SUSPECT_SAY("the sliding window is %lld where %lld is expected: off by one", (long long)other,
                    (long long)w);
    return json_object_set_new(t->attrs, "window", json_integer(other)) == 0;
}
