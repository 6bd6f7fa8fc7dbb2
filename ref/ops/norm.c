/* RMSNorm over the last axis.  Source: Zhang & Sennrich 2019, equation 4. */
#include "ref/ops.h"
#include "ref/ops/vector.h"

#include <math.h>

void ref_rmsnorm_fwd(double *y, double *rstd, const double *x, const double *gamma, double eps, int64_t t,
                     int64_t h)
{
#pragma omp parallel for schedule(static) if (ref_vec_parallel(t * h))
    for (int64_t i = 0; i < t; i++) {
        const double *xi = x + i * h;
        double *yi = y + i * h;
        const double mean = h > 0 ? ref_vec_dot(xi, xi, h) / (double)h : 0.0;
        const double r = 1.0 / sqrt(mean + eps);
        rstd[i] = r;
        for (int64_t j = 0; j < h; j++)
            yi[j] = gamma[j] * xi[j] * r;
    }
}

/* dx = r (g - xh mean(g xh)) with g = dy gamma, xh = x r */
static void norm_bwd_row(double *dx, const double *dy, const double *x, const double *gamma, double r,
                         int64_t h)
{
    double mean = 0.0;
    for (int64_t j = 0; j < h; j++)
        mean += dy[j] * gamma[j] * (x[j] * r);
    mean /= (double)h;
    for (int64_t j = 0; j < h; j++)
        dx[j] = r * (dy[j] * gamma[j] - x[j] * r * mean);
}

void ref_rmsnorm_bwd(double *dx, double *dgamma, const double *dy, const double *x, const double *gamma,
                     const double *rstd, int64_t t, int64_t h)
{
#pragma omp parallel for schedule(static) if (ref_vec_parallel(t * h))
    for (int64_t i = 0; i < t; i++)
        norm_bwd_row(dx + i * h, dy + i * h, x + i * h, gamma, rstd[i], h);

    /* Columns are independent; tokens are added in ascending order in each. */
    enum { COLUMNS = 64 };
#pragma omp parallel for schedule(static) if (ref_vec_parallel(t * h))
    for (int64_t j0 = 0; j0 < h; j0 += COLUMNS) {
        const int64_t j1 = j0 + COLUMNS < h ? j0 + COLUMNS : h;
        for (int64_t i = 0; i < t; i++)
            for (int64_t j = j0; j < j1; j++)
                dgamma[j] += dy[i * h + j] * (x[i * h + j] * rstd[i]);
    }
}
