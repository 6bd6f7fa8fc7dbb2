/* Matrix products, dense and grouped by expert: every element is one dot product. */
#include "ref/ops.h"
#include "ref/ops/vector.h"

void ref_linear_fwd(double *y, const double *x, const double *w, const double *bias, int64_t t, int64_t n,
                    int64_t k)
{
#pragma omp parallel for schedule(static) if (ref_vec_parallel(t * n * k))
    for (int64_t i = 0; i < t; i++)
        for (int64_t j = 0; j < n; j++)
            y[i * n + j] = ref_vec_dot(x + i * k, w + j * k, k) + (bias ? bias[j] : 0.0);
}

void ref_linear_bwd_input(double *dx, const double *dy, const double *w, int64_t t, int64_t n, int64_t k)
{
    ref_vec_zero(dx, t * k);
#pragma omp parallel for schedule(static) if (ref_vec_parallel(t * n * k))
    for (int64_t i = 0; i < t; i++)
        for (int64_t j = 0; j < n; j++)
            ref_vec_axpy(dx + i * k, dy[i * n + j], w + j * k, k);
}

void ref_linear_bwd_weight(double *dweight, const double *dy, const double *x, int64_t t, int64_t n,
                           int64_t k)
{
#pragma omp parallel for schedule(static) if (ref_vec_parallel(t * n * k))
    for (int64_t j = 0; j < n; j++)
        for (int64_t i = 0; i < t; i++)
            ref_vec_axpy(dweight + j * k, dy[i * n + j], x + i * k, k);
}

void ref_linear_bwd_bias(double *dbias, const double *dy, int64_t t, int64_t n)
{
    for (int64_t i = 0; i < t; i++)
        for (int64_t j = 0; j < n; j++)
            dbias[j] += dy[i * n + j];
}

void ref_grouped_linear_fwd(double *y, const double *x, const double *w, const int64_t *tokens_per_expert,
                            int64_t e, int64_t n, int64_t k)
{
    for (int64_t i = 0, row = 0; i < e; row += tokens_per_expert[i++])
        ref_linear_fwd(y + row * n, x + row * k, w + i * n * k, NULL, tokens_per_expert[i], n, k);
}

void ref_grouped_linear_bwd_input(double *dx, const double *dy, const double *w,
                                  const int64_t *tokens_per_expert, int64_t e, int64_t n, int64_t k)
{
    for (int64_t i = 0, row = 0; i < e; row += tokens_per_expert[i++])
        ref_linear_bwd_input(dx + row * k, dy + row * n, w + i * n * k, tokens_per_expert[i], n, k);
}

void ref_grouped_linear_bwd_weight(double *dweight, const double *dy, const double *x,
                                   const int64_t *tokens_per_expert, int64_t e, int64_t n, int64_t k)
{
    for (int64_t i = 0, row = 0; i < e; row += tokens_per_expert[i++])
        ref_linear_bwd_weight(dweight + i * n * k, dy + row * n, x + row * k, tokens_per_expert[i], n, k);
}
