/* What kind of mistake a difference looks like.  A diagnosis is a hint for people: it never changes a
 * verdict, and nothing is said that explains the values no better than "unknown" does (diagnose.h).
 *
 * Two sentences are put together: *where* (one element, one row, one slice or one shard of a dimension) and
 * *what* (not a number, zeros, bf16 grid; constant ratio, sign, transposition, permuted or shifted rows). */
#include "parity/judge/diagnose.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double allowed(const comparison *v, int64_t i)
{
    return v->allowance ? v->allowance[i] : 0.0;
}

static double unit_of(assay_dtype stored)
{
    const int p = assay_dtype_precision(stored);
    /* sums that fit a factor are not exact either: no finer than 2^-45 */
    return ldexp(1.0, 1 - (p <= 0 ? 24 : p > 46 ? 46 : p));
}

double parity_trial_slack(const comparison *v, int64_t source, double factor)
{
    const double wanted = fabs(factor * v->expected[source]);
    return fabs(factor) * allowed(v, source) + unit_of(v->stored) * wanted + 1e-12 * v->scale;
}

void parity_trial_add(trial *t, const comparison *v, int64_t i, int64_t source, double factor, double rarity)
{
    const double room = parity_trial_slack(v, source, factor);
    const double off = fabs(v->found[i] - v->expected[i]);
    const bool usual = off <= parity_trial_slack(v, i, 1.0);
    const bool explained = fabs(v->found[i] - factor * v->expected[source]) <= room;
    t->elements++;
    t->explained += explained;
    if (!v->bad[i])
        return;
    t->wrong++;
    t->usual += usual;
    if (!explained || usual || !(off > room))
        return;
    const double bits = fmin(room > 0.0 ? log2(off / room) : 20.0, fmin(rarity, 20.0));
    t->bits += bits;
    t->largest = fmax(t->largest, bits);
}

bool parity_trial_lost(const trial *t, int64_t elements)
{
    return 50 * (t->elements - t->explained) > elements;
}

bool parity_trial_holds(const trial *t, double cost)
{
    return t->wrong > 0 && 50 * t->explained >= 49 * t->elements && 2 * t->usual <= t->wrong &&
           t->bits - cost >= (double)EVIDENCE_BITS;
}

/* --- where -------------------------------------------------------------------------------------------------- */

/* First and last bad index of dimension d and how many of its indices hold a bad element. */
static int64_t bad_range(const comparison *v, int d, int64_t *first, int64_t *last, unsigned char *hit)
{
    int64_t n = 0;
    memset(hit, 0, (size_t)v->shape[d]);
    for (int64_t i = 0; i < v->count; i++) {
        if (!v->bad[i])
            continue;
        int64_t at[ASSAY_MAX_DIMS];
        parity_unflatten(i, v->shape, v->ndim, at);
        n += !hit[at[d]];
        hit[at[d]] = 1;
    }
    *first = 0;
    while (*first < v->shape[d] && !hit[*first])
        (*first)++;
    *last = v->shape[d] - 1;
    while (*last > *first && !hit[*last])
        (*last)--;
    return n;
}

/* Whether [first, last] is one of k equal pieces of an extent; 0 when not. */
static int64_t equal_piece(int64_t first, int64_t last, int64_t extent, int64_t *index)
{
    const int64_t length = last - first + 1;
    if (length <= 0 || extent % length != 0 || first % length != 0 || extent / length < 2)
        return 0;
    *index = first / length;
    return extent / length;
}

static double log_choose(int64_t n, int64_t k)
{
    return lgamma((double)n + 1.0) - lgamma((double)k + 1.0) - lgamma((double)(n - k) + 1.0);
}

/* Whether errors thrown anywhere would all land in one of the `places` parts of `part` elements less than once
 * in a hundred tensors. */
static bool is_no_chance(const comparison *v, int64_t part, int64_t places)
{
    return log_choose(part, v->n_bad) - log_choose(v->count, v->n_bad) + log((double)places) < log(0.01);
}

static void say_one_element(const comparison *v, char *out, size_t capacity)
{
    int64_t at[ASSAY_MAX_DIMS];
    char text[128];
    const unsigned char *p = memchr(v->bad, 1, (size_t)v->count);
    if (v->count == 1) /* the only one there is */
        return;
    parity_unflatten(p - v->bad, v->shape, v->ndim, at);
    parity_index_text(at, v->ndim, text, sizeof text);
    snprintf(out, capacity, "only the element %s is wrong", text);
}

/* Every index of every dimension is a place that the errors might have chosen. */
static int64_t places_of(const comparison *v)
{
    int64_t places = 0;
    for (int d = 0; d < v->ndim; d++)
        places += v->shape[d];
    return places;
}

static void say_where(const comparison *v, char *out, size_t capacity)
{
    out[0] = '\0';
    if (v->n_bad == 1) {
        say_one_element(v, out, capacity);
        return;
    }
    for (int d = 0; d < v->ndim && out[0] == '\0'; d++) {
        if (v->shape[d] < 2)
            continue;
        int64_t first, last, index = 0;
        unsigned char *hit = calloc(1, (size_t)v->shape[d] + 1);
        if (!hit)
            return;
        const int64_t n = bad_range(v, d, &first, &last, hit);
        free(hit);
        const int64_t pieces = n == last - first + 1 ? equal_piece(first, last, v->shape[d], &index) : 0;
        if (n < v->shape[d] && !is_no_chance(v, v->count / v->shape[d] * (last - first + 1), places_of(v)))
            continue;
        if (n == 1)
            snprintf(out, capacity, "only slice %lld of %lld of dimension %d is wrong", (long long)first,
                     (long long)v->shape[d], d);
        else if (pieces > 1)
            snprintf(out, capacity, "only shard %lld of %lld along dimension %d is wrong ([%lld, %lld))",
                     (long long)index, (long long)pieces, d, (long long)first, (long long)last + 1);
    }
}

/* --- what --------------------------------------------------------------------------------------------------- */

/* Infinities and NaN in each other's places. */
static bool say_classes(const comparison *v, char *out, size_t capacity)
{
    int64_t n_nan = 0, n_inf = 0;
    for (int64_t i = 0; i < v->count; i++) {
        n_nan += isnan(v->found[i]) && isinf(v->expected[i]);
        n_inf += isinf(v->found[i]) && isnan(v->expected[i]);
    }
    if (n_nan > 0)
        snprintf(out, capacity, "%lld NaN where infinities belong", (long long)n_nan);
    if (n_inf > 0)
        snprintf(out + strlen(out), capacity - strlen(out), "%s%lld infinities where NaN belong",
                 n_nan > 0 ? ", " : "", (long long)n_inf);
    return n_nan + n_inf > 0;
}

static bool say_not_finite(const comparison *v, char *out, size_t capacity)
{
    int64_t n_nan = 0, n_inf = 0, first = -1;
    for (int64_t i = 0; i < v->count; i++) {
        const bool finite = isfinite(v->expected[i]);
        const bool nan_here = isnan(v->found[i]) && finite, inf_here = isinf(v->found[i]) && finite;
        n_nan += nan_here;
        n_inf += inf_here;
        if ((nan_here || inf_here) && first < 0)
            first = i;
    }
    if (first < 0)
        return say_classes(v, out, capacity);
    int64_t at[ASSAY_MAX_DIMS], equal = 0;
    uint64_t pattern, other;
    char text[128];
    memcpy(&pattern, &v->found[first], sizeof pattern);
    for (int64_t i = first; i < v->count; i++) {
        memcpy(&other, &v->found[i], sizeof other);
        equal += isnan(v->found[i]) && other == pattern;
    }
    parity_unflatten(first, v->shape, v->ndim, at);
    parity_index_text(at, v->ndim, text, sizeof text);
    /* Arithmetic makes quiet NaNs without a payload; poison has one. */
    const uint64_t payload = pattern & 0x0007ffffffffffffu;
    const bool poison = n_nan > 0 && isnan(v->found[first]) && payload != 0 && equal == n_nan;
    if (poison)
        snprintf(out, capacity,
                 "%lld elements hold one NaN pattern, the first at %s: poison, never written or made of "
                 "unwritten memory",
                 (long long)n_nan, text);
    else
        snprintf(out, capacity, "%lld NaN and %lld infinities where finite values belong, the first at %s",
                 (long long)n_nan, (long long)n_inf, text);
    return true;
}

/* Below the smallest normal number hardware may flush; beside the rounding of much larger values a sum may
 * cancel to nothing.  Neither is a term that is missing. */
static bool say_zero(const comparison *v, char *out, size_t capacity)
{
    const double normal = assay_dtype_is_float(v->stored) ? ldexp(1.0, assay_dtype_emin(v->stored)) : 0.0;
    int64_t tiny = 0, cancelled = 0;
    for (int64_t i = 0; i < v->count; i++) {
        if (v->bad[i] && v->found[i] != 0.0)
            return false;
        tiny += v->bad[i] && fabs(v->expected[i]) < normal;
        cancelled +=
            v->bad[i] && allowed(v, i) == 0.0 && fabs(v->expected[i]) <= 4.0 * unit_of(v->stored) * v->scale;
    }
    if (tiny == v->n_bad)
        snprintf(out, capacity, "zero where values below the smallest normal number of %s belong: flushed",
                 assay_dtype_name(v->stored));
    else if (2 * cancelled <= v->n_bad)
        snprintf(out, capacity, "zero where values belong: never written, masked, or a missing term");
    return tiny == v->n_bad || 2 * cancelled <= v->n_bad;
}

static bool on_bf16_grid(double x)
{
    float f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return (double)f == x && (bits & 0xffffu) == 0;
}

static bool say_bf16(const comparison *v, char *out, size_t capacity)
{
    if (v->stored != ASSAY_F32 && v->stored != ASSAY_F64)
        return false;
    int64_t on_found = 0, on_expected = 0, close = 0, n = 0;
    for (int64_t i = 0; i < v->count; i++) {
        if (v->found[i] == 0.0)
            continue;
        n++;
        on_found += on_bf16_grid(v->found[i]);
        on_expected += on_bf16_grid((double)(float)v->expected[i]);
        close += fabs(v->found[i] - v->expected[i]) <= allowed(v, i) + 0x1p-5 * fabs(v->expected[i]);
    }
    /* ones and other plain numbers lie on it as well, but not near the values that belong there */
    if (n < 2 || on_found != n || 2 * on_expected > n || 50 * close < 49 * n)
        return false;
    snprintf(out, capacity, "all values lie on the bf16 grid although %s is stored: rounded too early",
             assay_dtype_name(v->stored));
    return true;
}

static void say_what(const comparison *v, char *out, size_t capacity)
{
    out[0] = '\0';
    if (say_not_finite(v, out, capacity) || say_zero(v, out, capacity) || say_bf16(v, out, capacity) ||
        parity_say_ratio(v, out, capacity) || parity_say_rows(v, out, capacity) ||
        parity_say_usual_ratio(v, out, capacity))
        return;
    out[0] = '\0';
}

static int64_t mark_bad(const comparison *v, unsigned char *bad)
{
    int64_t n = 0;
    for (int64_t i = 0; i < v->count; i++) {
        const bool same = v->found[i] == v->expected[i] || (isnan(v->found[i]) && isnan(v->expected[i]));
        bad[i] = !(same || fabs(v->found[i] - v->expected[i]) <= allowed(v, i));
        n += bad[i];
    }
    return n;
}

void parity_diagnose(const double *found, const double *expected, const double *allowance,
                     const int64_t *shape, int ndim, assay_dtype stored, const parity_scales *scales,
                     char out[PARITY_TEXT])
{
    static const parity_scales none = {1, 1, 1, 1, 1, 1, 1, 1};
    comparison v = {.found = found,
                    .expected = expected,
                    .allowance = allowance,
                    .shape = shape,
                    .ndim = ndim,
                    .stored = stored,
                    .scales = scales ? scales : &none};
    out[0] = '\0';
    if (!assay_shape_count(shape, ndim, &v.count) || v.count == 0)
        return;
    unsigned char *bad = malloc((size_t)v.count);
    if (!bad)
        return;
    for (int64_t i = 0; i < v.count; i++) {
        if (isfinite(expected[i]))
            v.scale = fmax(v.scale, fabs(expected[i]));
    }
    v.n_bad = mark_bad(&v, bad);
    v.bad = bad;
    if (v.n_bad > 0) {
        char where[160], what[300];
        say_where(&v, where, sizeof where);
        say_what(&v, what, sizeof what);
        snprintf(out, PARITY_TEXT, "%s%s%s", where, where[0] && what[0] ? ": " : "", what);
    }
    free(bad);
}
