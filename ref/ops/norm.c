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

void ref_rmsnorm_sumsq(double *sumsq, const double *x, int64_t t, int64_t h)
{
    for (int64_t i = 0; i < t; i++)
        sumsq[i] = ref_vec_dot(x + i * h, x + i * h, h);
}

void ref_rmsnorm_apply(double *y, double *rstd, const double *x, const double *gamma, const double *sumsq,
                       double eps, int64_t width, int64_t t, int64_t h)
{
    for (int64_t i = 0; i < t; i++) {
        rstd[i] = 1.0 / sqrt(sumsq[i] / (double)width + eps);
        for (int64_t j = 0; j < h; j++)
            y[i * h + j] = gamma[j] * x[i * h + j] * rstd[i];
    }
}

/* sum over the row of g xh with g = dy gamma, xh = x r */
static double norm_dot(const double *dy, const double *x, const double *gamma, double r, int64_t h)
{
    double dot = 0.0;
    for (int64_t j = 0; j < h; j++)
        dot += dy[j] * gamma[j] * (x[j] * r);
    return dot;
}

/* dx = r (g - xh mean(g xh)) */
static void norm_bwd_row(double *dx, const double *dy, const double *x, const double *gamma, double r,
                         double mean, int64_t h)
{
    for (int64_t j = 0; j < h; j++)
        dx[j] = r * (dy[j] * gamma[j] - x[j] * r * mean);
}

/* Columns are independent; tokens are added in ascending order in each. */
static void norm_bwd_gamma(double *dgamma, const double *dy, const double *x, const double *rstd, int64_t t,
                           int64_t h)
{
    enum { COLUMNS = 64 };
#pragma omp parallel for schedule(static) if (ref_vec_parallel(t * h))
    for (int64_t j0 = 0; j0 < h; j0 += COLUMNS) {
        const int64_t j1 = j0 + COLUMNS < h ? j0 + COLUMNS : h;
        for (int64_t i = 0; i < t; i++)
            for (int64_t j = j0; j < j1; j++)
                dgamma[j] += dy[i * h + j] * (x[i * h + j] * rstd[i]);
    }
}

void ref_rmsnorm_bwd(double *dx, double *dgamma, const double *dy, const double *x, const double *gamma,
                     const double *rstd, int64_t t, int64_t h)
{
#pragma omp parallel for schedule(static) if (ref_vec_parallel(t * h))
    for (int64_t i = 0; i < t; i++) {
        const double *dyi = dy + i * h, *xi = x + i * h;
        norm_bwd_row(dx + i * h, dyi, xi, gamma, rstd[i], norm_dot(dyi, xi, gamma, rstd[i], h) / (double)h,
                     h);
    }
    norm_bwd_gamma(dgamma, dy, x, rstd, t, h);
}

void ref_rmsnorm_bwd_dot(double *dot, const double *dy, const double *x, const double *gamma,
                         const double *rstd, int64_t t, int64_t h)
{
    for (int64_t i = 0; i < t; i++)
        dot[i] = norm_dot(dy + i * h, x + i * h, gamma, rstd[i], h);
}

void ref_rmsnorm_bwd_apply(double *dx, double *dgamma, const double *dy, const double *x, const double *gamma,
                           const double *rstd, const double *dot, int64_t width, int64_t t, int64_t h)
{
    for (int64_t i = 0; i < t; i++)
        norm_bwd_row(dx + i * h, dy + i * h, x + i * h, gamma, rstd[i], dot[i] / (double)width, h);
    norm_bwd_gamma(dgamma, dy, x, rstd, t, h);
}
