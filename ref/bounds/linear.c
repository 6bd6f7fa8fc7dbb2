/* Bounds of matrix products: rows in parallel, columns side by side, the inner index in the declared order.
 */
#include "ref/bounds/bounds.h"
#include "ref/ops/vector.h"

#include <stdlib.h>

/* out [m, columns] = sum_k a[i, k] b[k, columns] (+ last [m or 1, columns]): `last` is added to the finished
 * sum, one rounding; last_stride 0: the same row (a bias), columns: its own (an old gradient).  a NULL: ones.
 */
typedef struct task {
    ref_pair out;
    const double *a, *b, *last;
    int64_t row_stride, lda; /* of a */
    int64_t b_stride, ldb;   /* b[k, c] is b[k * ldb + c * b_stride] */
    int64_t last_stride, m, inner, columns;
} task;

/* b in panels [inner, REF_PANEL] one after the other, the last filled up with zeros: walking down a wide matrix
 * would meet the same few cache lines again and again. */
static void pack_panel(double *panel, const task *p, int64_t c0)
{
    for (int64_t k = 0; k < p->inner; k++)
        for (int64_t c = 0; c < REF_PANEL; c++)
            panel[k * REF_PANEL + c] = c0 + c < p->columns ? p->b[k * p->ldb + (c0 + c) * p->b_stride] : 0.0;
}

/* Rows i0 ... i1-1 of the columns of one panel. */
static void panel_rows(const task *p, const double *panel, int64_t c0, int64_t i0, int64_t i1,
                       const ref_declared *d)
{
    const int64_t width = p->columns - c0 < REF_PANEL ? p->columns - c0 : REF_PANEL;
    ref_sum_panel(p->out.y + i0 * p->columns + c0, p->out.b + i0 * p->columns + c0, p->columns,
                  p->a ? p->a + i0 * p->row_stride : NULL, p->row_stride, p->lda, i1 - i0, panel, p->inner,
                  width, &d->order);
    for (int64_t i = i0; p->last && i < i1; i++) {
        double *y = p->out.y + i * p->columns + c0, *bound = p->out.b + i * p->columns + c0;
        for (int64_t c = 0; c < width; c++) {
            const double sum = y[c] + p->last[i * p->last_stride + c0 + c];
            /* an empty sum leaves the other summand as it is */
            if (p->inner > 0)
                bound[c] += d->num.u * (fabs(sum) + bound[c]);
            y[c] = sum;
        }
    }
}

/* A block of rows stays in the cache while all panels pass by. */
static assay_status product(const task *p, const char *op, const ref_declared *d)
{
    enum { ROWS = 64 };
    const int64_t panels = (p->columns + REF_PANEL - 1) / REF_PANEL, size = p->inner * REF_PANEL;
    double *packed = malloc(((size_t)(panels * size) + 1) * sizeof *packed);
    ASSAY_CHECK(packed, ASSAY_OUT_OF_MEMORY, "%s: %lld panels of %lld rows", op, (long long)panels,
                (long long)p->inner);
#pragma omp parallel if (ref_vec_parallel(p->m * p->inner * p->columns))
    {
#pragma omp for schedule(static)
        for (int64_t c = 0; c < panels; c++)
            pack_panel(packed + c * size, p, c * REF_PANEL);
#pragma omp for collapse(2) schedule(static)
        for (int64_t i0 = 0; i0 < p->m; i0 += ROWS)
            for (int64_t c = 0; c < panels; c++)
                panel_rows(p, packed + c * size, c * REF_PANEL, i0, p->m - i0 < ROWS ? p->m : i0 + ROWS, d);
    }
    free(packed);
    return ASSAY_OK;
}

assay_status ref_bound_linear_fwd(ref_pair y, const double *x, const double *w, const double *bias, int64_t t,
                                  int64_t n, int64_t k, const ref_declared *d)
{
    const task p = {y, x, w, bias, k, 1, k, 1, 0, t, k, n};
    return product(&p, "linear_fwd", d);
}

assay_status ref_bound_linear_bwd_input(ref_pair dx, const double *dy, const double *w, int64_t t, int64_t n,
                                        int64_t k, const ref_declared *d)
{
    const task p = {dx, dy, w, NULL, n, 1, 1, k, 0, t, n, k};
    return product(&p, "linear_bwd_input", d);
}

/* y [n,t] = x [t,n]^T, a block of cache lines at a time */
static void transpose(double *y, const double *x, int64_t t, int64_t n)
{
    enum { SIDE = 8 };
#pragma omp parallel for schedule(static) if (ref_vec_parallel(t * n))
    for (int64_t i0 = 0; i0 < t; i0 += SIDE)
        for (int64_t j0 = 0; j0 < n; j0 += SIDE)
            for (int64_t j = j0; j < n && j < j0 + SIDE; j++)
                for (int64_t i = i0; i < t && i < i0 + SIDE; i++)
                    y[j * t + i] = x[i * n + j];
}

assay_status ref_bound_linear_bwd_weight(ref_pair dweight, const double *dy, const double *x,
                                         const double *old, int64_t t, int64_t n, int64_t k,
                                         const ref_declared *d)
{
    double *columns = malloc(((size_t)(t * n) + 1) * sizeof *columns);
    ASSAY_CHECK(columns, ASSAY_OUT_OF_MEMORY, "linear_bwd_weight: %lld x %lld gradients", (long long)t,
                (long long)n);
    transpose(columns, dy, t, n);
    const task p = {dweight, columns, x, old, t, 1, 1, k, k, n, t, k};
    const assay_status st = product(&p, "linear_bwd_weight", d);
    free(columns);
    return st;
}

assay_status ref_bound_linear_bwd_bias(ref_pair dbias, const double *dy, const double *old, int64_t t,
                                       int64_t n, const ref_declared *d)
{
    const task p = {dbias, NULL, dy, old, 0, 0, 1, n, 0, 1, t, n};
    return product(&p, "linear_bwd_bias", d);
}
