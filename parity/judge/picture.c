/* Pictures of failing claims, curves of numbers over steps. */
#include "parity/judge/picture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int64_t columns_of(const parity_picture *p)
{
    return p->ndim > 0 ? p->shape[p->ndim - 1] : 1;
}

static int64_t rows_of(const parity_picture *p)
{
    int64_t n = 1;
    for (int d = 0; d + 1 < p->ndim; d++)
        n *= p->shape[d];
    return n;
}

static int cells_of(int64_t n)
{
    return n < PARITY_PICTURE_CELLS ? (int)n : PARITY_PICTURE_CELLS;
}

void parity_picture_init(parity_picture *p, const int64_t *shape, int ndim)
{
    memset(p, 0, sizeof *p);
    p->ndim = ndim < ASSAY_MAX_DIMS ? ndim : ASSAY_MAX_DIMS;
    memcpy(p->shape, shape, (size_t)p->ndim * sizeof *shape);
    p->rows = cells_of(rows_of(p));
    p->columns = cells_of(columns_of(p));
}

static int bin_of(double ratio)
{
    if (!isfinite(ratio))
        return PARITY_BINS - 1;
    if (ratio <= 0.0)
        return 0;
    for (int k = 1; k < PARITY_BINS - 2; k++)
        if (ratio <= parity_bin_edge(k, false))
            return k;
    return PARITY_BINS - 2;
}

double parity_bin_edge(int bin, bool ulps)
{
    return ldexp(1.0, bin - (ulps ? 1 : PARITY_BINS_WITHIN - 1));
}

void parity_picture_add(parity_picture *p, int64_t flat, double ratio, bool pass)
{
    const int64_t rows = rows_of(p), columns = columns_of(p);
    p->bins[bin_of(ratio)]++;
    if (pass || flat < 0 || rows == 0 || columns == 0 || flat / columns >= rows)
        return;
    const int64_t row = flat / columns * p->rows / rows, column = flat % columns * p->columns / columns;
    p->bad[row * p->columns + column]++;
}

/* One unit of the last place falls into the first bin, as 2^-7 of a bound does. */
void parity_picture_add_ulps(parity_picture *p, int64_t flat, double ulps, bool same)
{
    p->ulps = true;
    parity_picture_add(p, flat, same ? 0.0 : ldexp(ulps < 1.0 ? 1.0 : ulps, 2 - PARITY_BINS_WITHIN), same);
}

int64_t parity_picture_count(const parity_picture *p)
{
    return rows_of(p) * columns_of(p);
}

/* Elements e of n with e cells / n = cell. */
static int64_t share_of(int64_t n, int cells, int cell)
{
    return ((cell + 1) * n + cells - 1) / cells - (cell * n + cells - 1) / cells;
}

int64_t parity_picture_cell_count(const parity_picture *p, int row, int column)
{
    return share_of(rows_of(p), p->rows, row) * share_of(columns_of(p), p->columns, column);
}

bool parity_picture_valid(const parity_picture *p)
{
    int64_t n = 1;
    if (p->ndim < 0 || p->ndim > ASSAY_MAX_DIMS)
        return false;
    for (int d = 0; d < p->ndim; d++) {
        if (p->shape[d] < 0 || p->shape[d] > ((int64_t)1 << 48) ||
            (n > 0 && p->shape[d] > ((int64_t)1 << 48) / n))
            return false;
        n *= p->shape[d];
    }
    if (p->rows != cells_of(rows_of(p)) || p->columns != cells_of(columns_of(p)))
        return false;
    for (int row = 0; row < p->rows; row++)
        for (int column = 0; column < p->columns; column++)
            if (p->bad[row * p->columns + column] > parity_picture_cell_count(p, row, column))
                return false;
    for (int k = 0; k < PARITY_BINS; k++)
        if (p->bins[k] < 0 || p->bins[k] > n)
            return false;
    return true;
}

static bool worse(const parity_curve_point *a, const parity_curve_point *b)
{
    const double x = fabs(a->found - a->expected) / a->allowance,
                 y = fabs(b->found - b->expected) / b->allowance;
    return !(x <= y) && !isnan(y); /* a NaN is the worst and stays it */
}

assay_status parity_curve_add(parity_curve *c, const parity_curve_point *point)
{
    c->stride = c->stride > 0 ? c->stride : 1;
    while (c->n == PARITY_CURVE_POINTS && point->step / c->stride != c->points[c->n - 1].step / c->stride) {
        int64_t kept = 0;
        c->stride *= 2;
        for (int64_t i = 0; i < c->n; i++)
            if (kept == 0 || c->points[kept - 1].step / c->stride != c->points[i].step / c->stride)
                c->points[kept++] = c->points[i];
            else if (worse(&c->points[i], &c->points[kept - 1]))
                c->points[kept - 1] = c->points[i];
        c->n = kept;
    }
    parity_curve_point *last = c->n > 0 ? &c->points[c->n - 1] : NULL;
    if (last != NULL && last->step / c->stride == point->step / c->stride) {
        if (worse(point, last))
            *last = *point;
        return ASSAY_OK;
    }
    if ((c->n & (c->n - 1)) == 0) { /* a power of two: full */
        parity_curve_point *grown = realloc(c->points, (size_t)(c->n > 0 ? 2 * c->n : 1) * sizeof *grown);
        ASSAY_CHECK(grown != NULL, ASSAY_OUT_OF_MEMORY, "a curve of %lld points", (long long)c->n);
        c->points = grown;
    }
    c->points[c->n++] = *point;
    return ASSAY_OK;
}

void parity_gallery_free(parity_gallery *g)
{
    for (int64_t i = 0; i < g->n_pictures; i++)
        free(g->pictures[i]);
    for (int64_t i = 0; i < g->n_excerpts; i++)
        free(g->excerpts[i]);
    for (int64_t i = 0; i < g->n_curves; i++)
        free(g->curves[i].points);
    free(g->pictures);
    free(g->excerpts);
    free(g->curves);
    memset(g, 0, sizeof *g);
}

assay_status parity_gallery_draw(parity_gallery *g, const int64_t *shape, int ndim, parity_picture **out,
                                 int *number)
{
    *out = NULL;
    *number = 0;
    if (g->n_pictures == PARITY_GALLERY_PICTURES)
        return ASSAY_OK;
    parity_picture **grown = realloc(g->pictures, ((size_t)g->n_pictures + 1) * sizeof *grown);
    ASSAY_CHECK(grown != NULL, ASSAY_OUT_OF_MEMORY, "a picture of a failing claim");
    g->pictures = grown;
    *out = malloc(sizeof **out);
    ASSAY_CHECK(*out != NULL, ASSAY_OUT_OF_MEMORY, "a picture of a failing claim");
    parity_picture_init(*out, shape, ndim);
    g->pictures[g->n_pictures++] = *out;
    *number = (int)g->n_pictures;
    return ASSAY_OK;
}

assay_status parity_gallery_excerpt(parity_gallery *g, parity_excerpt **out, int *number)
{
    *out = NULL;
    *number = 0;
    if (g->n_excerpts == PARITY_GALLERY_PICTURES)
        return ASSAY_OK;
    parity_excerpt **grown = realloc(g->excerpts, ((size_t)g->n_excerpts + 1) * sizeof *grown);
    ASSAY_CHECK(grown != NULL, ASSAY_OUT_OF_MEMORY, "an excerpt of a failing claim");
    g->excerpts = grown;
    *out = calloc(1, sizeof **out);
    ASSAY_CHECK(*out != NULL, ASSAY_OUT_OF_MEMORY, "an excerpt of a failing claim");
    g->excerpts[g->n_excerpts++] = *out;
    *number = (int)g->n_excerpts;
    return ASSAY_OK;
}

assay_status parity_gallery_take(parity_gallery *g, const parity_drawn *drawn, int *picture, int *excerpt)
{
    parity_picture *p = NULL;
    parity_excerpt *e = NULL;
    *picture = *excerpt = 0;
    if (drawn->picture != NULL)
        ASSAY_TRY(parity_gallery_draw(g, drawn->picture->shape, drawn->picture->ndim, &p, picture));
    if (p != NULL)
        *p = *drawn->picture;
    if (drawn->excerpt != NULL)
        ASSAY_TRY(parity_gallery_excerpt(g, &e, excerpt));
    if (e != NULL)
        *e = *drawn->excerpt;
    return ASSAY_OK;
}

assay_status parity_gallery_curve(parity_gallery *g, int *number)
{
    *number = 0;
    parity_curve *grown = realloc(g->curves, ((size_t)g->n_curves + 1) * sizeof *grown);
    ASSAY_CHECK(grown != NULL, ASSAY_OUT_OF_MEMORY, "%lld curves", (long long)g->n_curves + 1);
    g->curves = grown;
    g->curves[g->n_curves++] = (parity_curve){.stride = 1};
    *number = (int)g->n_curves;
    return ASSAY_OK;
}

const parity_picture *parity_gallery_picture_at(const parity_gallery *g, int number)
{
    return number > 0 && number <= g->n_pictures ? g->pictures[number - 1] : NULL;
}

const parity_excerpt *parity_gallery_excerpt_at(const parity_gallery *g, int number)
{
    return number > 0 && number <= g->n_excerpts ? g->excerpts[number - 1] : NULL;
}

parity_curve *parity_gallery_curve_at(const parity_gallery *g, int number)
{
    return number > 0 && number <= g->n_curves ? &g->curves[number - 1] : NULL;
}
