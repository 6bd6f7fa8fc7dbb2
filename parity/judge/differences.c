/* Where two tensors that must be equal are not: a picture of the elements that differ with how far apart they are, and the first
 * of them as an excerpt. */
#include "parity/judge/judge.h"

#include <math.h>
#include <string.h>

enum { SHOWN = 5 };

/* In units of the last place of the expected value, of integers in ones; NaN: one of them is no finite number. */
static double apart(double found, double expected, assay_dtype dtype)
{
    if (!isfinite(found) || !isfinite(expected))
        return (double)NAN;
    const double unit = assay_dtype_is_float(dtype) ? ref_ulp(expected, dtype) : 1.0;
    return fabs(found - expected) / unit;
}

assay_status parity_worst_redraw_equal(parity_worst *w, parity_differences *d, parity_gallery *g,
                                       const int64_t *shape, int ndim, assay_dtype dtype, parity_result *r)
{
    static const char *const numbers[] = {"element", "expected", "found", "apart", NULL};
    static const char *const bits[] = {"element",       "expected",   "found", "apart",
                                       "bits expected", "bits found", NULL};
    const bool raw = d->found != NULL && d->expected != NULL;
    parity_worst_init(w);
    if (g == NULL || r->verdict != PARITY_FAIL)
        return ASSAY_OK;
    d->shape = shape;
    d->ndim = ndim;
    d->dtype = dtype;
    ASSAY_TRY(parity_gallery_draw(g, shape, ndim, &d->picture, &r->picture));
    if (r->excerpt == 0) /* the claim may have one that says more */
        ASSAY_TRY(parity_gallery_excerpt(g, &d->excerpt, &r->excerpt));
    if (d->excerpt != NULL && r->n_bad > SHOWN)
        parity_excerpt_begin(d->excerpt, raw ? bits : numbers,
                             "The first %d of %lld elements that differ, %s; expected they are equal", SHOWN,
                             (long long)r->n_bad, assay_dtype_name(dtype));
    else if (d->excerpt != NULL)
        parity_excerpt_begin(
            d->excerpt, raw ? bits : numbers, "The %lld element%s that differ%s, %s; expected they are equal",
            (long long)r->n_bad, r->n_bad == 1 ? "" : "s", r->n_bad == 1 ? "s" : "", assay_dtype_name(dtype));
    if (d->picture != NULL || d->excerpt != NULL)
        w->differences = d;
    return ASSAY_OK;
}

static void put_apart(parity_excerpt *e, double off, assay_dtype dtype)
{
    if (isnan(off))
        parity_excerpt_cell(e, 3, "not finite");
    else if (!assay_dtype_is_float(dtype))
        parity_excerpt_cell(e, 3, "%.0f", off);
    else
        parity_excerpt_cell(e, 3, "%.4g ulp", off);
}

/* The most significant byte first. */
static void put_bits(parity_excerpt *e, int column, const void *data, int64_t flat, assay_dtype dtype)
{
    const int width = (int)assay_dtype_bytes(dtype);
    char text[2 * 16 + 1] = "";
    for (int k = 0; k < width && k < 16; k++)
        snprintf(text + 2 * k, 3, "%02x", ((const unsigned char *)data)[flat * width + (width - 1 - k)]);
    parity_excerpt_cell(e, column, "%s", text);
}

void parity_differences_add(parity_differences *d, int64_t flat, double found, double expected, bool same)
{
    const double off = apart(found, expected, d->dtype);
    if (d->picture != NULL)
        parity_picture_add_ulps(d->picture, flat, off, same);
    if (same || d->excerpt == NULL || d->n == SHOWN || !parity_excerpt_add(d->excerpt, PARITY_ROW_WRONG))
        return;
    int64_t index[ASSAY_MAX_DIMS];
    char where[128];
    d->n++;
    parity_unflatten(flat, d->shape, d->ndim, index);
    parity_index_text(index, d->ndim, where, sizeof where);
    parity_excerpt_cell(d->excerpt, 0, "%s", where);
    parity_excerpt_cell(d->excerpt, 1, "%.9g", expected);
    parity_excerpt_cell(d->excerpt, 2, "%.9g", found);
    put_apart(d->excerpt, off, d->dtype);
    if (d->excerpt->n_columns == 4)
        return;
    put_bits(d->excerpt, 4, d->expected, flat, d->dtype);
    put_bits(d->excerpt, 5, d->found, flat, d->dtype);
}

assay_status parity_compare_bits(const void *found, const void *expected, const int64_t *shape, int ndim,
                                 int64_t count, assay_dtype dtype, parity_gallery *g, parity_result *r)
{
    parity_worst w;
    parity_differences d = {.found = found, .expected = expected};
    parity_worst_init(&w);
    parity_worst_add_bits(&w, found, expected, count, dtype);
    parity_worst_to_result(&w, shape, ndim, r);
    ASSAY_TRY(parity_worst_redraw_equal(&w, &d, g, shape, ndim, dtype, r));
    if (w.differences != NULL)
        parity_worst_add_bits(&w, found, expected, count, dtype);
    return ASSAY_OK;
}
