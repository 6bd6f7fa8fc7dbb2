/* Diagnoses: right values in the wrong places. */
#include "parity/judge/diagnose.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 2048 };

typedef struct table {
    const comparison *v;
    int64_t rows, width;
    double *sorted; /* every expected value, ascending: how many elements share one */
} table;

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* First place in `sorted` whose value is not below x. */
static int64_t lower(const table *t, double x)
{
    int64_t low = 0, high = t->v->count;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (t->sorted[middle] < x)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Bits of meeting the value of expected[source] by chance: unbounded for a value that occurs once. */
static double rarity(const table *t, int64_t source)
{
    const double x = t->v->expected[source], room = parity_trial_slack(t->v, source, 1.0);
    const int64_t equal = lower(t, nextafter(x + room, (double)INFINITY)) - lower(t, x - room);
    return equal > 1 ? log2((double)t->v->count / (double)equal) : (double)INFINITY;
}

static void add(trial *held, const table *t, int64_t i, int64_t source)
{
    parity_trial_add(held, t->v, i, source, 1.0, t->v->bad[i] ? rarity(t, source) : 0.0);
}

static bool say_transposed(const table *t, char *out, size_t capacity)
{
    const comparison *v = t->v;
    trial held = {0};
    if (v->ndim < 2)
        return false;
    const int64_t n = v->shape[v->ndim - 2], m = v->shape[v->ndim - 1];
    if (n < 2 || m < 2)
        return false;
    for (int64_t block = 0; block < v->count / (n * m); block++) {
        for (int64_t k = 0; k < n * m && !parity_trial_lost(&held, v->count); k++)
            add(&held, t, block * n * m + k % m * n + k / m, block * n * m + k);
    }
    if (!parity_trial_holds(&held, 1.0))
        return false;
    snprintf(out, capacity, "the matrix is transposed");
    return true;
}

static bool row_is_bad(const table *t, int64_t row)
{
    return memchr(t->v->bad + row * t->width, 1, (size_t)t->width) != NULL;
}

/* From the first wrong row to the last, right ones among them included. */
static bool say_shifted(const table *t, char *out, size_t capacity)
{
    int64_t first = 0, last = t->rows - 1;
    while (first < last && !row_is_bad(t, first))
        first++;
    while (last > first && !row_is_bad(t, last))
        last--;
    for (int shift = -1; shift <= 1; shift += 2) {
        trial held = {0};
        int64_t n = 0;
        for (int64_t i = first; i <= last && !parity_trial_lost(&held, (last - first + 1) * t->width); i++) {
            if (i - shift < 0 || i - shift >= t->rows)
                continue;
            n++;
            for (int64_t j = 0; j < t->width; j++)
                add(&held, t, i * t->width + j, (i - shift) * t->width + j);
        }
        if (n >= 2 && parity_trial_holds(&held, 1.0)) {
            snprintf(out, capacity, "rows are shifted by one: row i holds row i%+d", -shift);
            return true;
        }
    }
    return false;
}

static bool rows_match(const table *t, int64_t found_row, int64_t expected_row)
{
    for (int64_t j = 0; j < t->width; j++) {
        const int64_t source = expected_row * t->width + j;
        if (!(fabs(t->v->found[found_row * t->width + j] - t->v->expected[source]) <=
              parity_trial_slack(t->v, source, 1.0)))
            return false;
    }
    return true;
}

/* The other row that row i holds: a wrong one that nobody holds yet, else any; -1: none. */
static int64_t source_of(const table *t, int64_t i, const unsigned char *taken)
{
    int64_t other = -1;
    for (int64_t k = 0; k < t->rows; k++) {
        if (k == i || !rows_match(t, i, k))
            continue;
        if (!taken[k] && row_is_bad(t, k))
            return k;
        other = other < 0 ? k : other;
    }
    return other;
}

/* Every wrong row is another expected row. */
static bool say_permuted(const table *t, char *out, size_t capacity)
{
    int64_t first = -1, source = -1, moved = 0;
    trial held = {0};
    bool permutation = true, found = true;
    unsigned char *taken = calloc(1, (size_t)t->rows);
    if (!taken)
        return false;
    for (int64_t i = 0; i < t->rows && found; i++) {
        if (!row_is_bad(t, i))
            continue;
        const int64_t k = source_of(t, i, taken);
        found = k >= 0;
        if (!found)
            break;
        permutation = permutation && !taken[k] && row_is_bad(t, k);
        taken[k] = 1;
        if (first < 0) {
            first = i;
            source = k;
        }
        moved++;
        for (int64_t j = 0; j < t->width; j++)
            add(&held, t, i * t->width + j, k * t->width + j);
    }
    free(taken);
    if (!found || !parity_trial_holds(&held, (double)moved * log2((double)t->rows)))
        return false;
    snprintf(out, capacity, "%s%lld row%s another row, row %lld holds row %lld",
             permutation ? "rows are permuted: " : "", (long long)moved, moved > 1 ? "s hold" : " holds",
             (long long)first, (long long)source);
    return true;
}

bool parity_say_rows(const comparison *v, char *out, size_t capacity)
{
    table t = {.v = v, .rows = v->ndim > 0 ? v->shape[0] : 1};
    t.width = v->count / t.rows;
    const bool few = t.rows >= 2 && t.rows <= MAX_ROWS && t.rows * v->count <= 20000000;
    t.sorted = malloc((size_t)v->count * sizeof *t.sorted);
    if (!t.sorted)
        return false;
    memcpy(t.sorted, v->expected, (size_t)v->count * sizeof *t.sorted);
    qsort(t.sorted, (size_t)v->count, sizeof *t.sorted, compare_doubles);
    const bool said = say_transposed(&t, out, capacity) ||
                      (few && (say_shifted(&t, out, capacity) || say_permuted(&t, out, capacity)));
    free(t.sorted);
    return said;
}
