/* Bounds of matrix products: rows in parallel, columns side by side, the inner index in the declared order.
 */
#include "ref/bounds/bounds.h"
#include "ref/ops/vector.h"
#include "ref/replay.h"

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

/* to [n, REF_PANEL] = `count` vectors of n numbers, `stride` apart, their numbers `ld` apart; filled up with zeros. */
static void pack_panel(double *to, const double *from, int64_t stride, int64_t ld, int64_t count, int64_t n)
{
    if (count < REF_PANEL)
        ref_vec_zero(to, n * REF_PANEL);
    if (count == REF_PANEL && stride == 1) {
        for (int64_t k = 0; k < n; k++)
            memcpy(to + k * REF_PANEL, from + k * ld, REF_PANEL * sizeof *to);
    } else if (count == REF_PANEL) {
        for (int64_t k = 0; k < n; k++)
            for (int64_t c = 0; c < REF_PANEL; c++)
                to[k * REF_PANEL + c] = from[c * stride + k * ld];
    } else {
        for (int64_t k = 0; k < n; k++)
            for (int64_t c = 0; c < count; c++)
                to[k * REF_PANEL + c] = from[c * stride + k * ld];
    }
}

/* Both operands in panels one after the other: walking down a wide matrix would meet the same few cache lines again and
 * again.  a: tiles of rows; b: panels of columns. */
typedef struct panels {
    double *a, *b;
} panels;

static int64_t panels_of(int64_t n)
{
    return (n + REF_PANEL - 1) / REF_PANEL;
}

static int64_t part_of(int64_t n, int64_t first, int64_t most)
{
    return n - first < most ? n - first : most;
}

/* Rows i0 ... i1-1 of the columns of one panel. */
static void panel_rows(const task *p, const panels *x, int64_t c0, int64_t i0, int64_t i1,
                       const ref_declared *d)
{
    const int64_t width = part_of(p->columns, c0, REF_PANEL);
    ref_sum_panel(p->out.y + i0 * p->columns + c0, p->out.b + i0 * p->columns + c0, p->columns,
                  p->a ? x->a + i0 * p->inner : NULL, i1 - i0, x->b + c0 * p->inner, p->inner, width,
                  &d->order);
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

/* The part of the calling thread, of all of them in a parallel region and of one outside.  A block of rows stays in the cache while all
 * panels pass by. */
static void product_part(const task *p, const panels *x, int64_t n_a, int64_t n_b, const ref_declared *d)
{
    enum { ROWS = 64 };
#pragma omp for schedule(static) nowait
    for (int64_t i = 0; i < n_a; i += REF_PANEL)
        pack_panel(x->a + i * p->inner, p->a + i * p->row_stride, p->row_stride, p->lda,
                   part_of(p->m, i, REF_PANEL), p->inner);
#pragma omp for schedule(static)
    for (int64_t c = 0; c < n_b; c += REF_PANEL)
        pack_panel(x->b + c * p->inner, p->b + c * p->b_stride, p->b_stride, p->ldb,
                   part_of(p->columns, c, REF_PANEL), p->inner);
#pragma omp for collapse(2) schedule(static)
    for (int64_t i0 = 0; i0 < p->m; i0 += ROWS)
        for (int64_t c = 0; c < n_b; c += REF_PANEL)
            panel_rows(p, x, c, i0, i0 + part_of(p->m, i0, ROWS), d);
}

static assay_status product(const task *p, const char *op, const ref_declared *d)
{
    const int64_t n_a = p->a ? panels_of(p->m) * REF_PANEL : 0, n_b = panels_of(p->columns) * REF_PANEL;
    double *packed = malloc(((size_t)((n_a + n_b) * p->inner) + 1) * sizeof *packed);
    ASSAY_CHECK(packed, ASSAY_OUT_OF_MEMORY, "%s: %lld rows and columns of %lld", op, (long long)(n_a + n_b),
                (long long)p->inner);
    const panels x = {packed, packed + n_a * p->inner};
    if (ref_vec_parallel(p->m * p->inner * p->columns)) {
#pragma omp parallel
        product_part(p, &x, n_a, n_b, d);
    } else {
        product_part(p, &x, n_a, n_b, d);
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

assay_status ref_bound_linear_bwd_weight(ref_pair dweight, const double *dy, const double *x,
                                         const double *old, int64_t t, int64_t n, int64_t k,
                                         const ref_declared *d)
{
    const task p = {dweight, dy, x, old, 1, n, 1, k, k, n, t, k};
    return product(&p, "linear_bwd_weight", d);
}

assay_status ref_bound_linear_bwd_weight_stored(ref_pair dweight, const double *dy, const double *x,
                                                const double *old, assay_dtype stored, int64_t t, int64_t n,
                                                int64_t k, const ref_declared *d)
{
    ASSAY_TRY(ref_bound_linear_bwd_weight(dweight, dy, x, NULL, t, n, k, d));
    for (int64_t i = 0; i < n * k; i++) {
        if (!isfinite(dweight.y[i])) { /* the class decides: there is no interval */
            dweight.y[i] += old ? old[i] : 0.0;
            continue;
        }
        /* rounding is monotone: the interval's ends, rounded, are the ends of what may be stored */
        const double low = ref_round(dweight.y[i] - dweight.b[i], stored);
        const double high = ref_round(dweight.y[i] + dweight.b[i], stored);
        const double sum = 0.5 * (low + high) + (old ? old[i] : 0.0), bound = 0.5 * (high - low);
        dweight.y[i] = sum;
        dweight.b[i] = t == 0 ? 0.0 : old ? bound + d->num.u * (fabs(sum) + bound) : bound;
    }
    return ASSAY_OK;
}

assay_status ref_bound_linear_bwd_bias(ref_pair dbias, const double *dy, const double *old, int64_t t,
                                       int64_t n, const ref_declared *d)
{
    const task p = {dbias, NULL, dy, old, 0, 0, 1, n, 0, 1, t, n};
    return product(&p, "linear_bwd_bias", d);
}
