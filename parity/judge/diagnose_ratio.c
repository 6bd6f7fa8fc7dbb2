/* Diagnoses: a factor between what was found and what was expected. */
#include "parity/judge/diagnose.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Names that a factor may have: each is a choice of four or five bits. */
enum { NAMES_BITS = 5 };

/* Appends " = tp" or " = 1/tp". */
static void add_name(char *out, size_t capacity, const char *name, int64_t size, double ratio)
{
    const bool equal = fabs(ratio - (double)size) <= 1e-3 * (double)size;
    const bool inverse = fabs(ratio * (double)size - 1.0) <= 1e-3;
    const size_t used = strlen(out);
    if (size >= 2 && (equal || inverse) && used < capacity)
        snprintf(out + used, capacity - used, " = %s%s", equal ? "" : "1/", name);
}

static void name_ratio(const comparison *v, double ratio, char *out, size_t capacity)
{
    const parity_scales *s = v->scales;
    const struct {
        const char *name;
        int64_t size;
    } known[] = {{"tp", s->tp},
                 {"dp", s->dp},
                 {"ep", s->ep},
                 {"pp", s->pp},
                 {"cp", s->cp},
                 {"tp*cp", s->tp > 1 && s->cp > 1 ? s->tp * s->cp : 0},
                 {"top-k", s->topk},
                 {"world", s->world},
                 {"microbatches", s->microbatches},
                 {"microbatches*dp", s->dp > 1 && s->microbatches > 1 ? s->microbatches * s->dp : 0}};
    out[0] = '\0';
    for (size_t k = 0; k < sizeof known / sizeof known[0]; k++)
        add_name(out, capacity, known[k].name, known[k].size, ratio);
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Most of the wrong elements share a ratio (a small term beside the scaled one has another): the median
 * decides, where "1, roughly" would not do as well. */
bool parity_say_usual_ratio(const comparison *v, char *out, size_t capacity)
{
    double *ratios = malloc(((size_t)v->n_bad + 1) * sizeof *ratios);
    int64_t n = 0, near_median = 0, near_one = 0;
    if (!ratios)
        return false;
    for (int64_t i = 0; i < v->count; i++) {
        if (!v->bad[i] || fabs(v->expected[i]) <= 2.0 * parity_trial_slack(v, i, 1.0))
            continue;
        const double r = v->found[i] / v->expected[i];
        if (isfinite(r))
            ratios[n++] = r;
    }
    qsort(ratios, (size_t)n, sizeof *ratios, compare_doubles);
    const double median = n > 0 ? ratios[n / 2] : 1.0;
    for (int64_t i = 0; i < n; i++) {
        near_median += fabs(ratios[i] - median) <= 0.05 * fabs(median);
        near_one += fabs(ratios[i] - 1.0) <= 0.05;
    }
    free(ratios);
    if (n < 8 || 4 * near_median < 3 * v->n_bad || fabs(median - 1.0) <= 0.1 || 2 * near_one > n)
        return false;
    char names[160];
    const double rounded = fabs(median) >= 1.0 ? round(median) : 1.0 / round(1.0 / median);
    name_ratio(v, fabs(median - rounded) <= 0.02 * fabs(median) ? rounded : median, names, sizeof names);
    snprintf(out, capacity, "most wrong values (%lld of %lld) are about %.3g times the expected ones%s",
             (long long)near_median, (long long)v->n_bad, median, names);
    return true;
}

/* Every wrong element: found = ratio * expected.  A factor that has a name (a group size, -1) is one of few; any
 * other is fitted, which costs the best of its matches and needs expected values that differ (a constant may as
 * well have been added to). */
bool parity_say_ratio(const comparison *v, char *out, size_t capacity)
{
    double fe = 0.0, ee = 0.0, low = (double)INFINITY, high = -(double)INFINITY;
    for (int64_t i = 0; i < v->count; i++) {
        if (!v->bad[i])
            continue;
        fe += v->found[i] * v->expected[i];
        ee += v->expected[i] * v->expected[i];
        low = fmin(low, v->expected[i]);
        high = fmax(high, v->expected[i]);
    }
    if (!(ee > 0.0))
        return false;
    const double ratio = fe / ee;
    const bool flipped = fabs(ratio + 1.0) <= 1e-3;
    char names[160];
    trial t = {0};
    name_ratio(v, ratio, names, sizeof names);
    for (int64_t i = 0; i < v->count; i++) {
        if (v->bad[i])
            parity_trial_add(&t, v, i, i, ratio, (double)INFINITY);
    }
    const bool named = flipped || names[0] != '\0';
    if (!named && !(high - low > 1e-3 * v->scale))
        return false;
    if (!parity_trial_holds(&t, named ? (double)NAMES_BITS : t.largest))
        return false;
    if (flipped)
        snprintf(out, capacity, "the sign is flipped");
    else
        snprintf(out, capacity, "%s wrong value is %.6g times the expected one%s",
                 v->n_bad > 1 ? "every" : "the", ratio, names);
    return true;
}
