/* Bounds of matrix products: rows in parallel, columns side by side, the inner index in the declared order.
 */
#include "ref/bounds/bounds.h"
#include "ref/ops/vector.h"

#include <stdlib.h>

/* out [m, columns] = sum_k a[i row_stride + k lda] b[k, columns] (+ last [m or 1, columns]): `last` is added
 * to the finished sum, one rounding; last_stride 0: the same row (a bias), columns: its own (an old
 * gradient). */
static void product(ref_pair out, const double *a, int64_t row_stride, int64_t lda, const double *b,
                    const double *last, int64_t last_stride, int64_t m, int64_t inner, int64_t columns,
                    const ref_declared *d)
{
    if (columns == 0)
        return;
#pragma omp parallel for schedule(static) if (ref_vec_parallel(m * inner * columns))
    for (int64_t i = 0; i < m; i++) {
        double *y = out.y + i * columns, *bound = out.b + i * columns;
        ref_sum_columns(y, bound, a ? a + i * row_stride : NULL, lda, b, columns, inner, columns, &d->order);
        for (int64_t c = 0; last && c < columns; c++) {
            const double sum = y[c] + last[i * last_stride + c];
            /* an empty sum leaves the other summand as it is */
            if (inner > 0)
                bound[c] += d->num.u * (fabs(sum) + bound[c]);
            y[c] = sum;
        }
    }
}

assay_status ref_bound_linear_fwd(ref_pair y, const double *x, const double *w, const double *bias, int64_t t,
                                  int64_t n, int64_t k, const ref_declared *d)
{
    double *transposed = malloc(((size_t)(n * k) + 1) * sizeof *transposed);
    ASSAY_CHECK(transposed, ASSAY_OUT_OF_MEMORY, "linear_fwd: %lld x %lld weights", (long long)n,
                (long long)k);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < k; j++)
            transposed[j * n + i] = w[i * k + j];
    product(y, x, k, 1, transposed, bias, 0, t, k, n, d);
    free(transposed);
    return ASSAY_OK;
}

void ref_bound_linear_bwd_input(ref_pair dx, const double *dy, const double *w, int64_t t, int64_t n,
                                int64_t k, const ref_declared *d)
{
    product(dx, dy, n, 1, w, NULL, 0, t, n, k, d);
}

void ref_bound_linear_bwd_weight(ref_pair dweight, const double *dy, const double *x, const double *old,
                                 int64_t t, int64_t n, int64_t k, const ref_declared *d)
{
    product(dweight, dy, 1, n, x, old, k, n, t, k, d);
}

void ref_bound_linear_bwd_bias(ref_pair dbias, const double *dy, const double *old, int64_t t, int64_t n,
                               const ref_declared *d)
{
    product(dbias, NULL, 0, 0, dy, old, 0, 1, t, n, d);
}
