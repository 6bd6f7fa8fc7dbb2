/* Two result files (`--out` of assay step), tensor by tensor in the first one's order: what differs in value first, what only
 * one of them holds last.  F64 against F32 is compared as F32. */
#include "core/base/text.h"
#include "core/files/tensorfile.h"
#include "parity/judge/judge.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN_FILES = 12 };

typedef struct files {
    double tolerance;
    FILE *out;
    int64_t passed, failed;
} files;

static void name_clean(const char *name, char *out, size_t capacity)
{
    snprintf(out, capacity, "%s", name);
    assay_clean_text(out);
}

static void print_failure(files *d, const char *name, const char *text)
{
    char clean[PARITY_TEXT];
    d->failed++;
    if (d->failed > SHOWN_FILES)
        return;
    name_clean(name, clean, sizeof clean);
    fprintf(d->out, "%s: %s\n", clean, text);
}

static bool same_shape(const assay_tensor_info *a, const assay_tensor_info *b)
{
    bool same = a->ndim == b->ndim;
    for (int d = 0; same && d < a->ndim; d++)
        same = a->shape[d] == b->shape[d];
    return same;
}

/* F32 where one of them is, and the same bits then; or within tolerance times the largest magnitude of the first. */
static assay_status compare(files *d, const assay_tensor_info *a, const assay_tensor_info *b)
{
    double *x = NULL, *y = NULL, largest = 0.0, worst = 0.0;
    int64_t differ = 0, at = 0;
    assay_status st = ASSAY_OK;
    if (d->tolerance < 0.0 && a->dtype == b->dtype && memcmp(a->data, b->data, a->bytes) == 0) {
        d->passed++;
        return ASSAY_OK;
    }
    const bool narrow = a->dtype != b->dtype && (a->dtype == ASSAY_F32 || b->dtype == ASSAY_F32);
    ASSAY_TRY_GOTO(parity_decode_all(a->data, a->count, a->dtype, &x), st, done);
    ASSAY_TRY_GOTO(parity_decode_all(b->data, b->count, b->dtype, &y), st, done);
    for (int64_t i = 0; i < a->count; i++) {
        x[i] = narrow ? (double)(float)x[i] : x[i];
        y[i] = narrow ? (double)(float)y[i] : y[i];
        largest = isfinite(x[i]) ? fmax(largest, fabs(x[i])) : largest;
    }
    const bool counted = parity_is_integer(a->dtype) && parity_is_integer(b->dtype); /* no tolerance */
    const bool bits = d->tolerance < 0.0 && a->dtype == b->dtype; /* -0 is not 0, and one NaN not another */
    const size_t size = a->count > 0 ? (size_t)a->bytes / (size_t)a->count : 0;
    for (int64_t i = 0; i < a->count; i++) {
        const double error = fabs(y[i] - x[i]);
        const bool pass =
            bits ? memcmp((const char *)a->data + (size_t)i * size, (const char *)b->data + (size_t)i * size,
                          size) == 0
                 : x[i] == y[i] || (!counted && d->tolerance >= 0.0 && error <= d->tolerance * largest);
        if (pass)
            continue;
        if (differ++ == 0 || !(error <= worst)) {
            worst = error;
            at = i;
        }
    }
    if (differ > 0) {
        char text[256];
        snprintf(text, sizeof text, "%lld of %lld elements differ, the worst at %lld: %.9g, %.9g",
                 (long long)differ, (long long)a->count, (long long)at, x[at], y[at]);
        print_failure(d, a->name, text);
    } else {
        d->passed++;
    }
done:
    free(y);
    free(x);
    return st;
}

static assay_status compare_common(files *d, const assay_tensorfile *a, const assay_tensorfile *b)
{
    for (int64_t i = 0; i < assay_tensorfile_count(a); i++) {
        const assay_tensor_info *x = assay_tensorfile_at(a, i), *y = assay_tensorfile_find(b, x->name);
        const bool kinds = y != NULL && assay_dtype_is_float(x->dtype) == assay_dtype_is_float(y->dtype);
        if (y != NULL && (!same_shape(x, y) || !kinds))
            print_failure(d, x->name, "another shape or dtype");
        else if (y != NULL)
            ASSAY_TRY(compare(d, x, y));
    }
    return ASSAY_OK;
}

static void find_missing(files *d, const assay_tensorfile *a, const assay_tensorfile *b, const char *text)
{
    for (int64_t i = 0; i < assay_tensorfile_count(a); i++)
        if (assay_tensorfile_find(b, assay_tensorfile_at(a, i)->name) == NULL)
            print_failure(d, assay_tensorfile_at(a, i)->name, text);
}

assay_status parity_diff_files(const char *path_a, const char *path_b, double tolerance, FILE *out,
                               int *exit_code)
{
    assay_status st = ASSAY_OK;
    assay_tensorfile *a = NULL, *b = NULL;
    files d = {.tolerance = tolerance, .out = out};
    *exit_code = 2;
    ASSAY_TRY_GOTO(assay_tensorfile_open(&a, path_a), st, done);
    ASSAY_TRY_GOTO(assay_tensorfile_open(&b, path_b), st, done);
    ASSAY_TRY_GOTO(compare_common(&d, a, b), st, done);
    find_missing(&d, a, b, "in the first file only");
    find_missing(&d, b, a, "in the second file only");
    if (d.failed > SHOWN_FILES)
        fprintf(out, "  and %lld more\n", (long long)(d.failed - SHOWN_FILES));
    if (d.failed == 0)
        fprintf(out, "no difference in %lld tensors%s\n", (long long)d.passed,
                tolerance < 0.0 ? ", bit for bit" : "");
    fprintf(out, "%lld passed, %lld failed, 0 skipped\n", (long long)d.passed, (long long)d.failed);
    *exit_code = d.failed > 0 ? 1 : d.passed == 0 ? 2 : 0;
done:
    assay_tensorfile_close(b);
    assay_tensorfile_close(a);
    return st;
}
