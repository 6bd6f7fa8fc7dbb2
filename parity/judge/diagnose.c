/* What kind of mistake a difference looks like.  A diagnosis is a hint for people: it never changes a
 * verdict.
 *
 * Two sentences are put together: *where* (one element, one row, one slice or one shard of a dimension) and
 * *what* (not a number, zeros, constant ratio, sign, transposition, permuted or shifted rows, bf16 grid). */
#include "parity/judge/judge.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 2048 };

typedef struct comparison {
    const double *found, *expected, *allowance;
    const int64_t *shape;
    int ndim;
    int64_t count, n_bad;
    const unsigned char *bad; /* [count] */
    assay_dtype stored;
    const parity_scales *scales;
    double scale; /* largest finite |expected| */
} comparison;

/* How far two values may lie apart and still count as the same in a diagnosis. */
static double slack(const comparison *v, int64_t i)
{
    const int p = assay_dtype_precision(v->stored);
    const double unit = ldexp(1.0, 1 - (p > 0 ? p : 24));
    const double allowed = v->allowance ? v->allowance[i] : 0.0;
    return 2.0 * allowed + 4.0 * unit * fabs(v->expected[i]) + 1e-12 * v->scale;
}

static bool near(const comparison *v, double found, double wanted, int64_t i)
{
    return fabs(found - wanted) <= slack(v, i) || (isnan(found) && isnan(wanted));
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

static void say_where(const comparison *v, char *out, size_t capacity)
{
    out[0] = '\0';
    if (v->n_bad == 1) {
        int64_t at[ASSAY_MAX_DIMS];
        char text[128];
        const unsigned char *p = memchr(v->bad, 1, (size_t)v->count);
        parity_unflatten(p - v->bad, v->shape, v->ndim, at);
        parity_index_text(at, v->ndim, text, sizeof text);
        snprintf(out, capacity, "only the element %s is wrong", text);
        return;
    }
    for (int d = 0; d < v->ndim; d++) {
        if (v->shape[d] < 2)
            continue;
        int64_t first, last, index = 0;
        unsigned char *hit = calloc(1, (size_t)v->shape[d] + 1);
        if (!hit)
            return;
        const int64_t n = bad_range(v, d, &first, &last, hit);
        free(hit);
        const int64_t pieces = n == last - first + 1 ? equal_piece(first, last, v->shape[d], &index) : 0;
        if (n == 1)
            snprintf(out, capacity, "only slice %lld of %lld of dimension %d is wrong", (long long)first,
                     (long long)v->shape[d], d);
        else if (pieces > 1)
            snprintf(out, capacity, "only shard %lld of %lld along dimension %d is wrong ([%lld, %lld))",
                     (long long)index, (long long)pieces, d, (long long)first, (long long)last + 1);
        if (out[0])
            return;
    }
}

/* --- what --------------------------------------------------------------------------------------------------- */

static bool say_not_finite(const comparison *v, char *out, size_t capacity)
{
    int64_t n_nan = 0, n_inf = 0, first = -1;
    for (int64_t i = 0; i < v->count; i++) {
        const bool nan_here = isnan(v->found[i]) && !isnan(v->expected[i]);
        const bool inf_here = isinf(v->found[i]) && !isinf(v->expected[i]);
        n_nan += nan_here;
        n_inf += inf_here;
        if ((nan_here || inf_here) && first < 0)
            first = i;
    }
    if (first < 0)
        return false;
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
        snprintf(out, capacity, "%lld elements hold one NaN pattern, the first at %s: never written (poison)",
                 (long long)n_nan, text);
    else
        snprintf(out, capacity, "%lld NaN and %lld infinities where finite values belong, the first at %s",
                 (long long)n_nan, (long long)n_inf, text);
    return true;
}

static bool say_zero(const comparison *v, char *out, size_t capacity)
{
    for (int64_t i = 0; i < v->count; i++) {
        if (v->bad[i] && v->found[i] != 0.0)
            return false;
    }
    snprintf(out, capacity, "zero where values belong: never written, masked, or a missing term");
    return true;
}

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
                 {"top-k", s->topk},
                 {"world", s->world},
                 {"microbatches", s->microbatches},
                 {"microbatches*dp", s->dp > 1 ? s->microbatches * s->dp : 0}};
    out[0] = '\0';
    for (size_t k = 0; k < sizeof known / sizeof known[0]; k++)
        add_name(out, capacity, known[k].name, known[k].size, ratio);
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Most of the bad elements share a ratio (a small term beside the scaled one has another): the median
 * decides. */
static bool say_usual_ratio(const comparison *v, char *out, size_t capacity)
{
    double *ratios = malloc(((size_t)v->n_bad + 1) * sizeof *ratios);
    int64_t n = 0, near_median = 0;
    if (!ratios)
        return false;
    for (int64_t i = 0; i < v->count; i++) {
        const double r = v->bad[i] ? v->found[i] / v->expected[i] : (double)NAN;
        if (isfinite(r))
            ratios[n++] = r;
    }
    qsort(ratios, (size_t)n, sizeof *ratios, compare_doubles);
    const double median = n > 0 ? ratios[n / 2] : 1.0;
    for (int64_t i = 0; i < n; i++)
        near_median += fabs(ratios[i] - median) <= 0.05 * fabs(median);
    free(ratios);
    if (n < 8 || 4 * near_median < 3 * v->n_bad || fabs(median - 1.0) <= 1e-2)
        return false;
    char names[160];
    const double rounded = fabs(median) >= 1.0 ? round(median) : 1.0 / round(1.0 / median);
    name_ratio(v, fabs(median - rounded) <= 0.02 * fabs(median) ? rounded : median, names, sizeof names);
    snprintf(out, capacity, "most wrong values (%lld of %lld) are about %.3g times the expected ones%s",
             (long long)near_median, (long long)v->n_bad, median, names);
    return true;
}

/* Found = ratio * expected at every bad element (at least two of them with different expected values). */
static bool say_ratio(const comparison *v, char *out, size_t capacity)
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
    if (!(ee > 0.0) || (!(high > low) && v->n_bad != v->count))
        return false;
    const double ratio = fe / ee;
    if (fabs(ratio - 1.0) <= 1e-3)
        return false;
    for (int64_t i = 0; i < v->count; i++) {
        if (v->bad[i] && !(fabs(v->found[i] - ratio * v->expected[i]) <=
                           fabs(ratio) * slack(v, i) + slack(v, i) + 1e-3 * fabs(ratio * v->expected[i])))
            return false;
    }
    if (fabs(ratio + 1.0) <= 1e-3) {
        snprintf(out, capacity, "the sign is flipped");
        return true;
    }
    char names[160];
    name_ratio(v, ratio, names, sizeof names);
    snprintf(out, capacity, "every wrong value is %.6g times the expected one%s", ratio, names);
    return true;
}

static bool say_transposed(const comparison *v, char *out, size_t capacity)
{
    if (v->ndim < 2)
        return false;
    const int64_t n = v->shape[v->ndim - 2], m = v->shape[v->ndim - 1];
    if (n < 2 || m < 2)
        return false;
    for (int64_t block = 0; block < v->count / (n * m); block++) {
        const double *f = v->found + block * n * m, *e = v->expected + block * n * m;
        for (int64_t i = 0; i < n; i++) {
            for (int64_t j = 0; j < m; j++) {
                if (!near(v, f[j * n + i], e[i * m + j], block * n * m + i * m + j))
                    return false;
            }
        }
    }
    snprintf(out, capacity, "the matrix is transposed");
    return true;
}

static bool rows_match(const comparison *v, int64_t found_row, int64_t expected_row, int64_t width)
{
    for (int64_t j = 0; j < width; j++) {
        if (!near(v, v->found[found_row * width + j], v->expected[expected_row * width + j],
                  expected_row * width + j))
            return false;
    }
    return true;
}

static bool row_is_bad(const comparison *v, int64_t row, int64_t width)
{
    return memchr(v->bad + row * width, 1, (size_t)width) != NULL;
}

static bool say_shifted(const comparison *v, int64_t rows, int64_t width, char *out, size_t capacity)
{
    for (int shift = -1; shift <= 1; shift += 2) {
        int64_t matched = 0, tested = 0;
        for (int64_t i = 0; i < rows; i++) {
            if (!row_is_bad(v, i, width) || i - shift < 0 || i - shift >= rows)
                continue;
            tested++;
            matched += rows_match(v, i, i - shift, width);
        }
        if (tested >= 2 && matched == tested) {
            snprintf(out, capacity, "rows are shifted by one: row i holds row i%+d", -shift);
            return true;
        }
    }
    return false;
}

/* Every bad row is another expected row. */
static bool say_permuted(const comparison *v, int64_t rows, int64_t width, char *out, size_t capacity)
{
    int64_t first = -1, source = -1, moved = 0;
    for (int64_t i = 0; i < rows; i++) {
        if (!row_is_bad(v, i, width))
            continue;
        int64_t k = 0;
        while (k < rows && !(row_is_bad(v, k, width) && rows_match(v, i, k, width)))
            k++;
        if (k == rows)
            return false;
        if (first < 0) {
            first = i;
            source = k;
        }
        moved++;
    }
    if (moved < 2)
        return false;
    snprintf(out, capacity, "rows are permuted: %lld rows hold other rows, row %lld holds row %lld",
             (long long)moved, (long long)first, (long long)source);
    return true;
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
    int64_t on_found = 0, on_expected = 0, n = 0;
    for (int64_t i = 0; i < v->count; i++) {
        if (v->found[i] == 0.0)
            continue;
        n++;
        on_found += on_bf16_grid(v->found[i]);
        on_expected += on_bf16_grid((double)(float)v->expected[i]);
    }
    if (n < 2 || on_found != n || 2 * on_expected > n)
        return false;
    snprintf(out, capacity, "all values lie on the bf16 grid although %s is stored: rounded too early",
             assay_dtype_name(v->stored));
    return true;
}

static void say_what(const comparison *v, char *out, size_t capacity)
{
    out[0] = '\0';
    const int64_t rows = v->ndim > 0 ? v->shape[0] : 1, width = rows > 0 ? v->count / rows : 0;
    const bool has_rows = rows >= 2 && rows <= MAX_ROWS && width >= 1 && rows * v->count <= 20000000;
    if (say_not_finite(v, out, capacity) || say_zero(v, out, capacity) || say_bf16(v, out, capacity))
        return;
    if (v->n_bad >= 2 && (say_ratio(v, out, capacity) || say_transposed(v, out, capacity)))
        return;
    if (has_rows &&
        (say_shifted(v, rows, width, out, capacity) || say_permuted(v, rows, width, out, capacity)))
        return;
    if (v->n_bad >= 8 && say_usual_ratio(v, out, capacity))
        return;
    out[0] = '\0';
}

static int64_t mark_bad(const comparison *v, unsigned char *bad)
{
    int64_t n = 0;
    for (int64_t i = 0; i < v->count; i++) {
        const double allowed = v->allowance ? v->allowance[i] : 0.0;
        const bool same = v->found[i] == v->expected[i] || (isnan(v->found[i]) && isnan(v->expected[i]));
        bad[i] = !(same || fabs(v->found[i] - v->expected[i]) <= allowed);
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
